# -*- test-case-name: tests.broker.common.test_role -*-
"""The first role comes from the options; it may change."""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from dledger.rocketmq.broker.options.config import broker_from_mapping


class RoleTests(SynchronousTestCase):
    """Of a configuration."""

    def test_options(self) -> None:
        """A master, a slave, a member of a raft group, which begins as a slave."""
        raft = {"enableDLegerCommitLog": "true", "dLegerPeers": "n2-a:1", "dLegerSelfId": "n2"}
        for options, expected in (
            ({}, ("ASYNC_MASTER", 0, False)), ({"brokerRole": "SLAVE", "brokerId": "7"}, ("SLAVE", 7, True)),
            (raft, ("SLAVE", 3, True)), ({**raft, "brokerRole": "SYNC_MASTER"}, ("SLAVE", 3, True)),
        ):
            config = broker_from_mapping({"store": "s", **options})
            role = config.role
            self.assertEqual((role.name, role.broker_id, role.is_slave), expected)
            self.assertEqual(config.role.is_slave, expected[2])

    def test_changes(self) -> None:
        """The role in the configuration follows; the options stay."""
        config = broker_from_mapping({"store": "s"})
        config.role.become("SLAVE", 4)
        self.assertTrue(config.role.is_slave)
        self.assertEqual((config.role.broker_id, config.broker_id), (4, 0))
