# -*- test-case-name: tests.broker.admin.test_ha_info -*-
"""Replication as mqadmin reads it."""

from __future__ import annotations

from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from dledger.rocketmq.broker.admin.ha_info import ha_counters, ha_runtime_info
from dledger.rocketmq.broker.admin.runtime_stats import RuntimeStats
from dledger.rocketmq.replication.master import SlaveStatus
from dledger.rocketmq.replication.service import HAStatus
from dledger.rocketmq.replication.slave import FollowerStatus
from tests.broker.asked import NOW_MS


def master(sent: int = 0) -> HAStatus:
    """One with two slaves, of which one has not reported yet."""
    slaves = (
        SlaveStatus(address="10.0.0.2:4711", ack_offset=900, transfer_offset=950, gap_bytes=100,
                    is_in_sync=True, transferred_bytes=sent),
        SlaveStatus(address="10.0.0.3:4712", ack_offset=-1, transfer_offset=-1, gap_bytes=1000,
                    is_in_sync=False, transferred_bytes=0),
    )
    return HAStatus(broker_role="ASYNC_MASTER", begin_offset=0, end_offset=1000, flushed_offset=1000,
                    slaves=slaves, in_sync_slaves=1, waiting_puts=0, follower=None)


def slave(received: int = 0, *, sessions: int = 1) -> HAStatus:
    """One that follows a master."""
    follower = FollowerStatus(
        master="10.0.0.1:10912", is_connected=bool(sessions), reported_offset=700, master_offset=750,
        is_comparing=False, received_bytes=received, sessions=sessions, truncations=0, last_reason="",
        heard_ago_ms=300 if sessions else -1, reported_ago_ms=400 if sessions else -1,
    )
    return HAStatus(broker_role="SLAVE", begin_offset=0, end_offset=700, flushed_offset=700, slaves=(),
                    in_sync_slaves=0, waiting_puts=0, follower=follower)


class InfoTests(SynchronousTestCase):
    """The document."""

    def setUp(self) -> None:
        self.clock = Clock()
        self.status = master()
        self.stats = RuntimeStats(
            lambda: ha_counters(self.status), clock=self.clock, wall_ms=lambda: NOW_MS
        )

    def test_master(self) -> None:
        """Each slave with the bytes that it has, lacks and is sent."""
        self.stats.sweep()
        self.clock.advance(2)
        self.status = master(sent=4096)
        self.stats.sweep()
        info = ha_runtime_info(self.status, self.stats, NOW_MS)
        self.assertEqual(
            (info["master"], info["masterCommitLogMaxOffset"], info["inSyncSlaveNums"]), (True, 1000, 1)
        )
        self.assertEqual(info["haConnectionInfo"], [
            {"addr": "10.0.0.2:4711", "slaveAckOffset": 900, "diff": 100, "inSync": True,
             "transferredByteInSecond": 2048, "transferFromWhere": 950},
            {"addr": "10.0.0.3:4712", "slaveAckOffset": -1, "diff": 1001, "inSync": False,
             "transferredByteInSecond": 0, "transferFromWhere": -1},
        ])
        self.assertFalse(info["haClientRuntimeInfo"]["activated"])

    def test_slave(self) -> None:
        """Its master, how far it is, and when they heard of each other."""
        self.status = slave()
        self.stats.sweep()
        self.clock.advance(1)
        self.status = slave(received=1024)
        self.stats.sweep()
        info = ha_runtime_info(self.status, self.stats, NOW_MS)
        self.assertEqual((info["master"], info["haConnectionInfo"]), (False, []))
        self.assertEqual(info["haClientRuntimeInfo"], {
            "activated": True, "lastReadTimestamp": NOW_MS - 300, "lastWriteTimestamp": NOW_MS - 400,
            "masterAddr": "10.0.0.1:10912", "masterFlushOffset": 0, "masterNextOffset": 750, "maxOffset": 700,
            "problem": "", "stopped": False,
            "transferredByteInSecond": 1024,
        })

    def test_never_connected(self) -> None:
        """Times that never were are 0."""
        info = ha_runtime_info(slave(sessions=0), self.stats, NOW_MS)["haClientRuntimeInfo"]
        self.assertEqual((info["activated"], info["lastReadTimestamp"], info["lastWriteTimestamp"]),
                         (False, 0, 0))
