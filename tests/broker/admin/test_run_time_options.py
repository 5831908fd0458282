# -*- test-case-name: tests.broker.admin.test_run_time_options -*-
"""Options change while the broker runs, and stay changed."""

from __future__ import annotations

from typing import Any

import attrs
from twisted.trial.unittest import SynchronousTestCase

from dledger.rocketmq.answering.refusals import Code, Refused
from dledger.rocketmq.broker.admin.commands import UPDATE_BROKER_CONFIG
from dledger.rocketmq.broker.admin.run_time_options import (
    UPDATE_BYTES_MAX,
    change_by_configuration,
    change_by_request,
    restore_options,
)
from dledger.rocketmq.broker.options.config import (
    RUN_TIME_OPTIONS,
    BrokerConfig,
    broker_from_mapping,
    option_value,
    run_time_options,
)
from dledger.rocketmq.metadata.changed_options import ChangedOption
from dledger.rocketmq.metadata.files import Metadata
from dledger.testing.world.memory_disk import MemoryDisk
from tests.broker.admin.test_commands import Case


def config_with(**options: Any) -> BrokerConfig:
    """As from a file."""
    return broker_from_mapping({"store_path_root_dir": "base", **options})


def metadata_of(disk: MemoryDisk | None = None) -> Metadata:
    """Empty."""
    return Metadata(disk or MemoryDisk(), "config", now_ms=1)


class ChangeTests(SynchronousTestCase):
    """One request."""

    def setUp(self) -> None:
        self.config, self.metadata = config_with(), metadata_of()

    def change(self, text: str) -> bool:
        """As mqadmin asks."""
        return change_by_request(self.config, self.metadata, text.encode(), "10.0.0.9:1", 5)

    def refused(self, text: str) -> str:
        """Nothing has changed, and why."""
        before = attrs.asdict(self.config, recurse=True)
        error = self.assertRaises(Refused, self.change, text)
        self.assertEqual(attrs.asdict(self.config, recurse=True), before)
        self.assertEqual(self.metadata.changed_options.entries, {})
        return error.remark

    def test_change(self) -> None:
        """In RocketMQ's spelling and in ours; what is equal already is not a change."""
        lines = "fileReservedTime=24\n# a comment\nlong_polling_enable = false\ntopicsMax=20000"
        self.assertFalse(self.change(lines))
        self.assertEqual(self.config.store.file_reserved_time_h, 24)
        self.assertEqual(self.config.store.expiry_rules.reserved_hours, 24)
        self.assertFalse(self.config.long_polling_enable)
        self.assertEqual(self.metadata.changed_options.entries, {
            "file_reserved_time_h": ChangedOption(24, 72), "long_polling_enable": ChangedOption(False, True),
        })

    def test_every_option(self) -> None:
        """Each of them can be set, and read again."""
        for name in sorted(RUN_TIME_OPTIONS):
            value = option_value(self.config, name)
            other = not value if isinstance(value, bool) else {
                "delete_when": "05", "broker_permission": 4, "transaction_check_max": 3,
                "disk_space_clean_forcibly_ratio": 0.5, "disk_space_warning_level_ratio": 0.5,
                "disk_max_used_space_ratio": 50,
            }.get(name, value if isinstance(value, str) else value * 2)
            self.change(f"{name}={other}")
            self.assertEqual(option_value(self.config, name), other)

    def test_fixed(self) -> None:
        """Others count from the start on; to name their present value is not a change."""
        reason = self.refused("listenPort=1\nbrokerPermission=4")
        self.assertIn("'listenPort' counts from the start on", reason)
        self.assertIn("broker_permission", self.refused("brokerRole=SLAVE"))
        self.change("listenPort=10911")

    def test_bad_values(self) -> None:
        """All or nothing."""
        for text, reason in (
            ("brokerPermission=4\ntopicsMax=0", "topics_max"), ("brokerPermission=9", "broker_permission"),
            ("longPollingEnable=maybe", "write true or false"), ("deleteWhen=25", "not an hour"),
            ("topicsMax=many", "a whole number"), ("brokerPermision=4", "broker_permission"),
            ("nothing", "name=value"),
            ("topicsMax=1\ntopicsMax=2", "twice"), ("topicsMax=1\ntopics_max=2", "twice"),
            ("enableControllerMode=true", "enableControllerMode"), ("x" * (UPDATE_BYTES_MAX + 1), "at most"),
        ):
            self.assertIn(reason, self.refused(text))
        self.assertRaises(Refused, change_by_request, self.config, self.metadata, b"\xff=1", "a", 1)

    def test_black_list(self) -> None:
        """As RocketMQ answers."""
        error = self.assertRaises(Refused, self.change, "rocketmqHome=/tmp")
        self.assertEqual(error.code, Code.NO_PERMISSION)
        self.assertEqual(error.remark, "Can not update config in black list.")

    def test_without_meaning(self) -> None:
        """RocketMQ's other options would change nothing: they are refused, unless they say what is so."""
        self.assertIn("'sendMessageThreadPoolNums' of RocketMQ has no meaning here",
                      self.refused("sendMessageThreadPoolNums=4"))
        self.assertFalse(self.change("useTLS=false"))

    def test_raft(self) -> None:
        """A raft log has its own rules of expiry, from the start on."""
        self.config = config_with(
            enableDLegerCommitLog=True, dLegerGroup="g", dLegerPeers="n0-127.0.0.1:1", dLegerSelfId="n0"
        )
        self.assertIn("from the start on", self.refused("fileReservedTime=24"))
        self.assertNotIn("delete_when", run_time_options(self.config))

    def test_permission(self) -> None:
        """Name servers read the topics again; a slave has none to report."""
        version = self.metadata.topics.version
        self.assertTrue(self.change("brokerPermission=4"))
        self.assertFalse(self.metadata.topics.version.is_same(version))
        self.config, version = config_with(brokerRole="SLAVE"), self.metadata.topics.version
        self.assertFalse(self.change("brokerPermission=4"))
        self.assertTrue(self.metadata.topics.version.is_same(version))

    def test_auto_create(self) -> None:
        """The topic that allows it comes and goes."""
        self.assertTrue(self.change("autoCreateTopicEnable=false"))
        self.assertIsNone(self.metadata.topics.get("TBW102"))
        self.assertTrue(self.change("autoCreateTopicEnable=true"))
        self.assertIsNotNone(self.metadata.topics.get("TBW102"))


class RereadTests(SynchronousTestCase):
    """The configuration was read again."""

    def test_younger(self) -> None:
        """It counts instead of what was changed by request before, which is forgotten."""
        config, metadata = config_with(), metadata_of()
        change_by_request(config, metadata, b"topicsMax=20000\nlongPollingEnable=false", "a", 5)
        taken = change_by_configuration(config, metadata, {"topics_max": 30_000, "connections_share": 20}, 6)
        self.assertEqual(taken, {"topics_max", "connections_share"})
        self.assertEqual((config.topics_max, config.connections_share), (30_000, 20))
        self.assertEqual(list(metadata.changed_options.entries), ["long_polling_enable"])
        self.assertTrue(metadata.changed_options.is_dirty)

    def test_unfit(self) -> None:
        """All or nothing."""
        config, metadata = config_with(), metadata_of()
        wanted = {"topics_max": 30_000, "delete_when": "25"}
        self.assertRaises(ValueError, change_by_configuration, config, metadata, wanted, 6)
        self.assertNotEqual(config.topics_max, 30_000)


class RestoreTests(SynchronousTestCase):
    """After the next start."""

    def restored(self, config: BrokerConfig, **kept: ChangedOption) -> dict[str, ChangedOption]:
        """What is kept then."""
        options = metadata_of().changed_options
        options.entries = dict(kept)
        restore_options(config, options)
        return options.entries

    def test_kept(self) -> None:
        """A change counts again, if the configuration has not changed since."""
        config, one = config_with(), ChangedOption(4, 6)
        self.assertEqual(self.restored(config, broker_permission=one), {"broker_permission": one})
        self.assertEqual(config.broker_permission, 4)

    def test_younger_configuration(self) -> None:
        """Then it counts, and the change is forgotten."""
        config = config_with(brokerPermission=2)
        self.assertEqual(self.restored(config, broker_permission=ChangedOption(4, 6)), {})
        self.assertEqual(config.broker_permission, 2)

    def test_does_not_fit(self) -> None:
        """Of another version or by hand: it is named, and does not stop the broker."""
        config = config_with()
        self.restored(config, broker_permission=ChangedOption(9, 6), gone=ChangedOption(1, 2),
                      listen_port=ChangedOption(1, 10911))
        self.assertEqual((config.broker_permission, config.listen_port), (6, 10911))


class CommandTests(Case):
    """The request."""

    def test_answer(self) -> None:
        """Answered when the change is on the disk; name servers are informed where it concerns them."""
        self.build()
        self.assertEqual(self.client.ask(UPDATE_BROKER_CONFIG, {}, b"brokerPermission=4\n").code, 0)
        self.assertEqual((self.asked.config.broker_permission, self.reported), (4, 1))
        self.assertEqual(self.client.ask(UPDATE_BROKER_CONFIG, {}, b"topicsMax=5\n").code, 0)
        self.assertEqual(self.reported, 1)
        self.assertEqual(self.client.ask(UPDATE_BROKER_CONFIG, {}, b"topicMax=5\n").code, Code.SYSTEM_ERROR)

    def test_slave(self) -> None:
        """A slave has its own options."""
        self.build(is_slave=True)
        self.assertEqual(self.client.ask(UPDATE_BROKER_CONFIG, {}, b"slaveReadEnable=true").code, 0)
        self.assertTrue(self.asked.config.slave_read_enable)
