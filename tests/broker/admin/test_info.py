# -*- test-case-name: tests.broker.admin.test_info -*-
"""A broker's options and state in RocketMQ's words."""

from __future__ import annotations

import attrs
from twisted.trial.unittest import SynchronousTestCase

from dledger.base.disk.disk import DiskSpace
from dledger.rocketmq.broker.admin.info import _room, broker_options, earliest_ms, java_name
from dledger.rocketmq.broker.options.config import BrokerConfig, broker_from_mapping
from dledger.rocketmq.replication.config import HAConfig
from dledger.testing.world.memory_disk import MemoryDisk
from dledger.values.option_fields import options_of
from tests.broker.asked import NOW_MS, Asked
from tests.broker.support import message


class OptionTests(SynchronousTestCase):
    """Options as files have them."""

    def test_names(self) -> None:
        """As RocketMQ spells them."""
        for name, expected in (
            ("broker_name", "brokerName"), ("broker_ip1", "brokerIP1"), ("listen_port", "listenPort"),
            ("file_reserved_time_h", "fileReservedTime"), ("ha_listen_port", "haListenPort"),
        ):
            self.assertEqual(java_name(name), expected)

    def test_read_again(self) -> None:
        """What is shown is what a file may say: read again it is the same broker."""
        values = {"store_path_root_dir": "base", "flushDiskType": "SYNC_FLUSH", "brokerName": "b-1",
                  "slaveReadEnable": "true", "haAllowedHosts": "10.0.0.1;10.0.0.2"}
        config = broker_from_mapping(values)
        shown = broker_options(config)
        self.assertEqual((shown["slaveReadEnable"], shown["flushDiskType"]), ("true", "SYNC_FLUSH"))
        self.assertEqual(attrs.evolve(broker_from_mapping(shown), ignored=()), config)
        for name in (
            "filterServerNums", "msgTraceTopicName", "rejectTransactionMessage", "traceTopicEnable", "useTLS"
        ):
            self.assertIn(name, shown)  # mqadmin exportConfigs fails without
        parts = (BrokerConfig, HAConfig, type(config.store), type(config.raft))
        self.assertEqual(len(shown), sum(len(options_of(one)) for one in parts) - 5 + 4)


class EarliestTests(SynchronousTestCase):
    """The oldest message."""

    def test_when(self) -> None:
        """When the first message was stored; there may be none."""
        asked = Asked()
        self.addCleanup(asked.close)
        self.assertEqual(earliest_ms(asked.store), -1)
        asked.append(message())
        asked.clock.advance(5)
        asked.append(message())
        self.assertEqual(earliest_ms(asked.store), NOW_MS)


class RoomTests(SynchronousTestCase):
    """How full the disks are, which monitors ask for."""

    def ratios(self, *paths: str, **options: object) -> tuple[str, str]:
        """Of the log and of the rest, if these directories exist; each disk is a tenth fuller."""
        disk = MemoryDisk()

        def space(path: str) -> DiskSpace:
            if path not in paths:
                raise FileNotFoundError(path)
            return DiskSpace(total=100, free=90 - 10 * paths.index(path), usable=90 - 10 * paths.index(path))

        self.patch(disk, "space", space)
        room = _room(broker_from_mapping({"store_path_root_dir": "base", **options}), disk)
        return str(room["commitLogDiskRatio"]), str(room["consumeQueueDiskRatio"])

    def test_of_a_plain_log(self) -> None:
        """Its own disk; before the first message that of the store."""
        self.assertEqual(self.ratios("base", "base/commitlog"), ("0.2000", "0.1000"))
        self.assertEqual(self.ratios("base"), ("0.1000", "0.1000"))
        self.assertEqual(self.ratios(), ("-1", "-1"))

    def test_of_a_raft_log(self) -> None:
        """The disk of its entries."""
        raft = {"enableDLegerCommitLog": "true", "dLegerPeers": "n0-127.0.0.1:1", "dLegerSelfId": "n0"}
        self.assertEqual(self.ratios("base", **raft), ("0.1000", "0.1000"))
        self.assertEqual(self.ratios("base", "entries", storePathDLedgerCommitLog="entries", **raft),
                         ("0.2000", "0.1000"))
