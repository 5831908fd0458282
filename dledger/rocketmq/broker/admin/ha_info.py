# -*- test-case-name: tests.broker.admin.test_ha_info -*-
"""
The status of a broker's replication (GET_BROKER_HA_STATUS, 907): the document that mqadmin haStatus of
RocketMQ 5.x reads.

Source: HARuntimeInfo, DefaultHAService.getRuntimeInfo (5.3.3).
"""

from __future__ import annotations

from collections.abc import Mapping

from dledger.rocketmq.broker.admin.runtime_stats import RuntimeStats
from dledger.rocketmq.replication.service import HAStatus
from dledger.rocketmq.replication.slave import FollowerStatus
from protocols.wire.fastjson import JsonObject

#: Name of the counter of bytes received from the master.
RECEIVED = "ha received"


def sent_to(address: str) -> str:
    """Name of the counter of bytes sent to a slave."""
    return f"ha sent {address}"


def ha_counters(status: HAStatus) -> Mapping[str, int]:
    """Bytes sent to each slave, and received from the master."""
    counters = {sent_to(slave.address): slave.transferred_bytes for slave in status.slaves}
    if status.follower is not None:
        counters[RECEIVED] = status.follower.received_bytes
    return counters


def ha_runtime_info(status: HAStatus, stats: RuntimeStats, wall_ms: int) -> JsonObject:
    """
    The document.

    A slave's acknowledged offset is -1 before its first report, as in RocketMQ. A slave does not know its
    master's flushed offset. Fields of ours: C{masterNextOffset} is the next offset that it receives;
    C{problem} says why it is not in order, empty if it is; C{stopped} whether only an operator can start
    replication again; a master's C{refusedSlaves} are the hosts whose slaves it has refused lately.

    @param wall_ms: milliseconds since 1970.
    """
    follower = status.follower
    return {
        "master": follower is None,
        "masterCommitLogMaxOffset": status.end_offset if follower is None else 0,
        "inSyncSlaveNums": sum(slave.is_in_sync for slave in status.slaves),
        "haConnectionInfo": [
            {
                "addr": slave.address,
                "slaveAckOffset": slave.ack_offset,
                "diff": status.end_offset - slave.ack_offset,
                "inSync": slave.is_in_sync,
                "transferredByteInSecond": int(stats.per_second(sent_to(slave.address))),
                "transferFromWhere": slave.transfer_offset,
            }
            for slave in status.slaves
        ],
        "refusedSlaves": [
            {"addr": one.host, "reason": one.reason, "count": one.count} for one in status.refused
        ],
        "haClientRuntimeInfo": _client_info(status, follower, stats, wall_ms),
    }


def _client_info(
    status: HAStatus, follower: FollowerStatus | None, stats: RuntimeStats, wall_ms: int
) -> JsonObject:
    if follower is None:
        return {"activated": False, "lastReadTimestamp": 0, "lastWriteTimestamp": 0, "masterFlushOffset": 0,
                "maxOffset": 0, "transferredByteInSecond": 0}
    return {
        "activated": follower.is_connected,
        "lastReadTimestamp": _moment(wall_ms, follower.heard_ago_ms),
        "lastWriteTimestamp": _moment(wall_ms, follower.reported_ago_ms),
        "masterAddr": follower.master,
        "masterFlushOffset": 0,
        "masterNextOffset": follower.master_offset,
        "problem": follower.problem,
        "stopped": follower.is_stopped,
        "maxOffset": status.end_offset,
        "transferredByteInSecond": int(stats.per_second(RECEIVED)),
    }


def _moment(wall_ms: int, ago_ms: int) -> int:
    """The time C{ago_ms} before C{wall_ms}, milliseconds since 1970; 0 for never."""
    return wall_ms - ago_ms if ago_ms >= 0 else 0
