# -*- test-case-name: tests.broker.sending.test_puts -*-
"""
A master (or slave) without sockets: a store in memory, replication with played slaves, the put pipeline.
"""

from __future__ import annotations

import random
from typing import Any

from twisted.internet.address import IPv4Address

from dledger.base.disk.disk import Disk
from dledger.base.disk.memory_disk import MemoryDisk
from dledger.broker.ha.config import HAConfig
from dledger.broker.ha.service import TICK_MS, HAService
from dledger.broker.sending.puts import PutPipeline
from protocols.wire.rocketmq.ha import encode_report
from tests.broker.ha.fakes import plug
from tests.broker.support import Opened

#: The time of day at the start.
WALL_MS = 1_700_000_000_000


class Writing:
    """
    One broker's write side.

    @ivar reasons: why it could not go on.
    """

    def __init__(
        self, disk: Disk | None = None, *, pending_max: int = 1000, store: dict[str, Any] | None = None,
        **ha: Any,
    ) -> None:
        self.disk = disk if disk is not None else MemoryDisk()
        config = HAConfig(**ha)
        self.opened = Opened(self.disk, is_slave=config.is_slave, **(store or {}))
        self.opened.settle()
        self.clock = self.opened.clock
        self.store = self.opened.store
        self.reasons: list[str] = []
        self.service = HAService(
            config, self.store.log, self.clock, rng=random.Random(1), failed=self.reasons.append
        )
        self.service.startService()
        self.pipeline = PutPipeline(
            self.store, self.service, wall_ms=self.wall_ms, failed=self.reasons.append,
            pending_max=pending_max,
        )

    def wall_ms(self) -> int:
        """The time of day."""
        return WALL_MS + round(self.clock.seconds() * 1000)

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
        self.opened.close()
