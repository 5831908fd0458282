# -*- test-case-name: tests.broker.sending.test_puts -*-
"""
A master (or slave) without sockets: a whole broker on a disk in memory, with played slaves.
"""

from __future__ import annotations

from typing import Any

from twisted.internet.address import IPv4Address
from twisted.internet.task import Clock

from dledger.base.disk.disk import Disk
from dledger.rocketmq.broker.options.config import BrokerConfig
from dledger.rocketmq.replication.config import HAConfig
from dledger.rocketmq.replication.service import TICK_MS
from dledger.rocketmq.store.queues.reput import DEFERRED_S
from dledger.testing.world.memory_disk import MemoryDisk
from protocols.wire.rocketmq.ha import encode_report
from tests.broker.ha.fakes import plug
from tests.broker.support import Made, config_of

#: The time of day at the start.
WALL_MS = 1_700_000_000_000


class Writing(Made):
    """
    One broker whose replication runs.

    @ivar service: its replication.
    @ivar pipeline: where messages are put.
    """

    def __init__(
        self, disk: Disk | None = None, *, options: dict[str, Any] | None = None,
        store: dict[str, Any] | None = None, **ha: Any,
    ) -> None:
        """
        @param options: of the broker.
        @param store: options of its store.
        @param ha: options of its replication.
        """
        replication = HAConfig(**ha)
        config = BrokerConfig(
            store=config_of(**(store or {})), ha=replication, broker_id=int(replication.is_slave),
            broker_ip1="10.0.0.1", broker_name="b", **{"broker_cluster_name": "C", **(options or {})},
        )
        super().__init__(config, disk if disk is not None else MemoryDisk(), Clock(), wall_ms=WALL_MS)
        self.service = self.ha
        self.service.startService()
        self.pipeline = self.broker.pipeline

    def slave(self, host: str = "10.0.0.1") -> Any:
        """One that holds everything so far."""
        assert self.service.master is not None
        connection = self.service.master.buildProtocol(IPv4Address("TCP", host, 1))
        assert connection is not None
        plug(connection, host)
        self.report(connection)
        return connection

    def report(self, connection: Any) -> None:
        """It is sent everything, and holds it."""
        self.clock.advance(0)
        connection.dataReceived(encode_report(self.store.log.end_offset))

    def pass_time(self, ms: int) -> None:
        """The reactor runs."""
        self.clock.pump([TICK_MS / 1000] * (ms // TICK_MS))

    def stop(self) -> None:
        """In order."""
        self.service.stopService()
        closed = self.store.close()
        self.clock.advance(DEFERRED_S)  # a dispatch may have given way to slaves
        self.settle()
        assert closed.called
        closed.addErrback(lambda failure: self.reasons.append(failure.getErrorMessage()))
