# -*- test-case-name: tests.raft_broker.test_config -*-
"""The member's options come from the broker's."""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from dledger.raft_broker.config import member_config
from dledger.rocketmq.broker.options.config import broker_from_mapping

RAFT = {"store": "s", "enableDLegerCommitLog": "true", "dLegerPeers": "n0-a:20911;n1-b:20911",
        "dLegerSelfId": "n1"}


class MemberConfigTests(SynchronousTestCase):
    """From one file."""

    def test_same_as_java(self) -> None:
        """Directory, group, sizes and flush, as RocketMQ's broker gives them to DLedger."""
        config = member_config(broker_from_mapping({
            **RAFT, "brokerName": "b", "mappedFileSizeCommitLog": "65536", "flushDiskType": "SYNC_FLUSH",
            "preferredLeaderId": "n0", "fileReservedTime": "48",
            "diskMaxUsedSpaceRatio": "60",
        }))
        self.assertEqual(config.disk_space_ratio_to_check_expired, 0.6)
        self.assertEqual((config.self_path, config.group, config.self_id), ("s/dledger-n1", "b", "n1"))
        self.assertEqual((config.mapped_file_size_for_entry_data, config.is_sync), (65536, True))
        self.assertEqual((config.preferred_leader_ids, config.file_reserved_hours), (("n0",), 49))
        self.assertFalse(config.enable_disk_force_clean)
        self.assertEqual((config.change_hosts, config.ignored), ((), ()))

    def test_change_hosts_count_for_both_ports(self) -> None:
        """Of both ports."""
        broker = broker_from_mapping({**RAFT, "changeHosts": "10.0.0.7;fd00::/64"})
        self.assertEqual(member_config(broker).change_hosts, ("10.0.0.7", "fd00::/64"))

    def test_keys_may_be_for_the_member_too(self) -> None:
        """Of the broker, if they are for the member, too; and its tokens."""
        keys = {"tls_certificate": "c.pem", "tls_key": "c.key", "tls_authority": "a.pem"}
        for more, files in (
            ({"tls_mode": "enforcing"}, None), ({"tls_members_enable": "true"}, "c.pem"),
            ({"tls_members_enable": "true", "tls_mode": "enforcing"}, "c.pem"),
        ):
            config = member_config(broker_from_mapping({**RAFT, **keys, **more, "client_token_file": "t"}))
            found = config.tls_files
            self.assertEqual(found and found.certificate, files)
            self.assertEqual((config.client_token_file, config.insecure), ("t", False))
        for options in ({"tls_members_enable": "true", **keys}, {"client_token_file": "t"}):
            with self.assertRaisesRegex(ValueError, "needs enableDLegerCommitLog=true"):
                broker_from_mapping({"store": "s", **options})
        with self.assertRaisesRegex(ValueError, "tls_members_enable=true needs tls_certificate"):
            broker_from_mapping({**RAFT, "tls_members_enable": "true"})

    def test_a_member_has_names_of_its_own(self) -> None:
        """A group and a directory of its own."""
        config = member_config(broker_from_mapping({
            **RAFT, "dLegerGroup": "g", "storePathDLedgerCommitLog": "other"
        }))
        self.assertEqual((config.group, config.data_store_path, config.is_sync), ("g", "other", False))

    def test_wrong_options_are_refused(self) -> None:
        """Nobody's id; no list of members; a port that the broker has. RocketMQ's names are reported."""
        for changed, words in (
            ({"dLegerPeers": "n1"}, "dLegerPeers: 'n1' is not id-host:port"),
            ({"dLegerPeers": "n1-a:1;n1-b:2"}, "dLegerPeers: member 'n1' is given twice"),
            ({"dLegerSelfId": "n7"}, "dLegerSelfId=n7 is not one of"),
            ({"listenPort": "20911"}, "the port 20911, which is listenPort of the broker"),
            ({"listenPort": "20913"}, "the port 20911, which is listenPort - 2 of"),
        ):
            with self.assertRaisesRegex(ValueError, words):
                member_config(broker_from_mapping({**RAFT, **changed}))
