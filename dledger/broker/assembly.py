# -*- test-case-name: tests.broker.test_service -*-
"""
Which groups of commands a broker has, and what each of them is told besides requests.

The one place where a new group is put in. L{BrokerService<dledger.broker.service.BrokerService>} makes the
parts, and calls what stands in the L{Assembly}.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import attrs
from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IReactorTime

from dledger.base.disk.disk import Disk
from dledger.broker.admin.commands import AdminCommands, AdminParts
from dledger.broker.admin.reset_offsets import ResetOffsets
from dledger.broker.admin.stats import StatsCommands
from dledger.broker.common.config import BrokerConfig
from dledger.broker.consuming.consumers import ConsumerCommands, ConsumerTable
from dledger.broker.consuming.offset_commands import OffsetCommands
from dledger.broker.consuming.pulls import PullCommands, usual_slow_bytes
from dledger.broker.consuming.queue_locks import QueueLocks
from dledger.broker.ha.service import HAService
from dledger.broker.metadata.files import Metadata
from dledger.broker.router import Commands
from dledger.broker.sending.native import NativeCommands
from dledger.broker.sending.plain_sends import PlainSends
from dledger.broker.sending.puts import PutPipeline
from dledger.broker.sending.schedule import ScheduleMessageService
from dledger.broker.sending.send_back import SendBack
from dledger.broker.sending.sends import Sends
from dledger.broker.sending.topic_checks import TopicChecks
from dledger.broker.store.log_reads import LogReads
from dledger.broker.store.reput import Arrived
from dledger.broker.store.store import MessageStore
from protocols.rocketmq.broker import NativeSink, SendSink
from protocols.turn import Turn
from protocols.wire.rocketmq.message import Host


@attrs.frozen(kw_only=True)
class Parts:
    """
    What groups of commands are made of.

    @ivar address: C{host:port} as name servers are told.
    @ivar store_host: the same as part of messages.
    @ivar wall_ms: ms since 1970.
    @ivar save: brings changed metadata to stable storage; fails with C{StoreError}.
    """

    config: BrokerConfig
    address: str
    store_host: Host
    store: MessageStore
    metadata: Metadata
    ha: HAService
    pipeline: PutPipeline
    checks: TopicChecks
    clock: IReactorTime
    turn: Turn
    wall_ms: Callable[[], int]
    disk: Disk
    rng: random.Random
    save: Callable[[], Deferred[None]]


@attrs.define(kw_only=True)
class Assembly:
    """
    @ivar groups: who answers requests.
    @ivar sends: who answers sends.
    @ivar plain_sends: who takes sends before they are commands; None for nobody.
    @ivar native: who answers native frames; None for nobody.
    @ivar sweeps: called every second.
    @ivar arrived: told which queues have new messages.
    @ivar grown: told that the log has new bytes.
    @ivar started: told when the broker is ready, and listens.
    @ivar stops: told when the broker stops, before its connections end.
    """

    sends: Sends
    groups: list[Commands | Any] = attrs.Factory(list)
    plain_sends: SendSink | None = None
    native: NativeSink | None = None
    sweeps: list[Callable[[], None]] = attrs.Factory(list)
    arrived: list[Callable[[Arrived], None]] = attrs.Factory(list)
    grown: list[Callable[[], None]] = attrs.Factory(list)
    started: list[Callable[[], None]] = attrs.Factory(list)
    stops: list[Callable[[], None]] = attrs.Factory(list)


def assemble(parts: Parts) -> Assembly:
    """Everything that this broker answers."""
    config, store, metadata, wall_ms = parts.config, parts.store, parts.metadata, parts.wall_ms
    made = Assembly(sends=Sends(
        parts.pipeline, parts.checks, metadata, config, store_host=parts.store_host, wall_ms=wall_ms
    ))  # fmt: skip
    table, slow_bytes = ConsumerTable(), usual_slow_bytes()
    pulls = PullCommands(
        config, store, metadata, table, clock=parts.clock, wall_ms=wall_ms, slow_bytes=slow_bytes
    )
    consumers = ConsumerCommands(config, metadata, table, wall_ms=wall_ms)
    locks = QueueLocks(wall_ms=wall_ms)
    offsets = OffsetCommands(config, store, metadata, wall_ms=wall_ms, slow_bytes=slow_bytes)
    admin = AdminCommands(AdminParts(
        config=config, store=store, metadata=metadata, disk=parts.disk, pulls=pulls, wall_ms=wall_ms,
        save=parts.save, topics_changed=parts.checks.on_created, ha_status=parts.ha.status,
        stored=lambda: parts.pipeline.stored,
    ), clock=parts.clock)  # fmt: skip
    stats = StatsCommands(config, store, metadata, table)
    resets = ResetOffsets(config, store, metadata, table)
    made.groups += [pulls, consumers, offsets, locks, admin, stats, resets]
    made.sweeps += [pulls.sweep, consumers.sweep, locks.sweep, admin.sweep]
    made.arrived.append(pulls.arrived)
    made.stops.append(pulls.stop)
    made.groups.append(SendBack(
        config, store, metadata, parts.pipeline, parts.checks, store_host=parts.store_host, wall_ms=wall_ms,
        rng=parts.rng,
    ))  # fmt: skip
    if not config.is_slave:
        schedule = ScheduleMessageService(
            store, metadata.delay_offsets, parts.pipeline, store_host=parts.store_host, clock=parts.clock,
            wall_ms=wall_ms,
        )
        made.arrived.append(schedule.arrived)
        made.started.append(schedule.start)
        made.stops.append(schedule.stop)
    if parts.ha.master is not None:
        made.grown.append(parts.ha.master.appended)
        # The processor belongs to the slaves and to the answer first, then to the queues.
        store.reput.defers = parts.ha.waits_for_slaves
        parts.ha.master.on_acked = store.reput.release
    made.plain_sends = PlainSends(made.sends, parts.pipeline, metadata, config, store_host=parts.store_host)
    reads = LogReads(store.log, clock=parts.clock, turn=parts.turn)
    native = made.native = NativeCommands(
        store, parts.pipeline, parts.checks, reads, config, store_host=parts.store_host, wall_ms=wall_ms
    )
    made.groups.append(native)
    made.grown.append(reads.grown)
    made.stops.append(reads.close)
    return made
