# -*- test-case-name: tests.broker.common.test_raft_options -*-
"""Options of a raft log: RocketMQ's names, and what is refused."""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from dledger.rocketmq.broker.admin.info import broker_options
from dledger.rocketmq.broker.options.config import broker_from_mapping

RAFT = {"enableDLegerCommitLog": "true", "dLegerPeers": "n0-a:1;n1-b:1", "dLegerSelfId": "n1"}


class RaftOptionsTests(SynchronousTestCase):
    """As a file of RocketMQ has them."""

    def test_read(self) -> None:
        """All of them, and shown again under RocketMQ's names."""
        config = broker_from_mapping({
            "store": "s", **RAFT, "dLegerGroup": "g", "preferredLeaderId": "n0", "enableBatchPush": "true",
            "storePathDLedgerCommitLog": "d",
        })
        raft = config.raft
        self.assertEqual((raft.dleger_group, raft.preferred_leader_id, raft.slave_id), ("g", "n0", 2))
        self.assertEqual(config.ignored, ("enableBatchPush",))
        shown = broker_options(config)
        for name, value in {**RAFT, "dLegerGroup": "g", "storePathDLedgerCommitLog": "d"}.items():
            self.assertEqual(shown[name], value)
        self.assertEqual((shown["brokerRole"], shown["brokerId"]), ("SLAVE", "2"))

    def test_refused(self) -> None:
        """What does not fit together."""
        for changed, words in (
            ({"enableDLegerCommitLog": "false"}, "dLegerPeers is given, but enableDLegerCommitLog is false"),
            ({"dLegerPeers": ""}, "needs dLegerPeers"),
            ({"dLegerSelfId": "one"}, "write a letter and a number"),
            ({"dLegerSelfId": ""}, "write a letter and a number"),
            ({"brokerRole": "SLAVE"}, "the raft group gives the roles"),
        ):
            with self.assertRaisesRegex(ValueError, words):
                broker_from_mapping({"store": "s", **RAFT, **changed})
