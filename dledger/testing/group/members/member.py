# -*- test-case-name: tests.sim.test_cluster -*-
"""
One simulated member: a machine with a disk, on which the real L{MemberService} runs in a process that can be
killed.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from functools import partial
from typing import Protocol

import attrs

from dledger.base.reactor import whole_reactor
from dledger.core.driver import Ledger, Surroundings, Terms
from dledger.core.replica import DLedgerCore
from dledger.node.member_process import MemberEndpoints, MemberExtras, MemberProcess
from dledger.node.node import Node
from dledger.node.service import MemberService
from dledger.node.threads import MemberThreads
from dledger.storage.files.term_file import TERM_FILE_NAME, TERM_TWIN_NAME
from dledger.storage.store.file_store import FileStore
from dledger.testing.group.checks.chunks import ChunkRules
from dledger.testing.group.checks.group_folds import GroupRules
from dledger.testing.group.checks.invariants import GroupInvariants
from dledger.testing.group.checks.machines import MachineRules
from dledger.testing.group.checks.moments import Moments
from dledger.testing.group.checks.naming import NameRules
from dledger.testing.group.checks.readers import ReaderRules, check_readers
from dledger.testing.group.checks.require import InvariantError
from dledger.testing.group.checks.times import TimeRules
from dledger.testing.group.members.network import GroupNetwork
from dledger.testing.group.watching.records_on_disk import RecordRules
from dledger.testing.group.watching.spans import TracedWatchedDriver, WatchedSpans
from dledger.testing.group.watching.watched import WatchedDriver
from dledger.testing.group.watching.words import WordRules
from dledger.testing.world.bugs import BugWatch
from dledger.testing.world.clock import SimClock
from dledger.testing.world.disk import PowerLoss
from dledger.testing.world.host import MachineDisk
from dledger.testing.world.process import ProcessReactor, ProcessThread, SimProcess
from dledger.testing.world.streams import StreamClient, StreamServer
from dledger.testing.world.trace import Trace
from dledger.values.ledger.config import DLedgerConfig
from dledger.values.option_values import with_values

#: A process stops for no longer because of its slow reads in one event.
LAG_MAX_US = 3_000_000
#: Number in docs/invariants.md.
ENDS = 17
#: Mean time of a call of a state machine, microseconds.
MACHINE_CALL_US = 200


class Ending(Protocol):
    """Hears of the ends of processes."""

    def process_ended(self, member: SimMember, *, asked: bool) -> None:
        """A process ended without a fault of the schedule. @param asked: it was asked to stop."""


@attrs.define(eq=False)
class World:
    """
    The common surroundings of the members of a group.

    @ivar flush_us: mean time of an fsync now.
    @ivar turn_us: a turn of a member's reactor takes so long.
    @ivar machines: of the state machines of the members; None: they run none.
    @ivar readers: of the named readers of the group; None: it has none.
    @ivar moments: those of members that come seldom.
    """

    clock: SimClock
    network: GroupNetwork
    invariants: GroupInvariants
    trace: Trace
    bugs: BugWatch
    ending: Ending
    flush_us: int = 500
    turn_us: int = 0
    chunks: ChunkRules = attrs.Factory(ChunkRules)
    machines: MachineRules | None = None
    readers: ReaderRules | None = None
    groups: GroupRules = attrs.Factory(GroupRules)
    times: TimeRules = attrs.Factory(TimeRules)
    names: NameRules = attrs.Factory(NameRules)
    moments: Moments = attrs.Factory(Moments)
    words: WordRules = attrs.Factory(lambda self: WordRules(self.invariants), takes_self=True)


class SimMember:
    """
    A member and its machine.

    @ivar is_up: a process runs; C{process}, C{service}, C{core}, C{ledger} and C{driver} are of this process,
        or of the last one.
    @ivar boots: number of processes so far.
    @ivar persisted_term, persisted_vote: those that were made durable last, or that a process began with.
    @ivar is_small_damaged: a bit of its small files was flipped since an operator last looked.
    @ivar damaged: indexes of entries of which a bit of the record or index unit was flipped, as far as they
        have not come back from a peer.
    @ivar may_be_torn: its machine lost power, and no process has started since.
    @ivar is_away: its directory is at another machine now, or its options do not fit.
    @ivar wall_offset_s: error of its wall clock.
    @ivar older_incarnation: its directory is an older copy of this incarnation, until it knows so; -1: it is
        none.
    @ivar start_error: why it could not start the last time; empty if it could.
    """

    def __init__(
        self, world: World, number: int, config: DLedgerConfig, disk: MachineDisk, rng: random.Random
    ) -> None:
        self.world = world
        self.number = number
        self.config = config
        self.disk = disk
        self.member_id = config.self_id
        self.term_path = f"{config.self_path}/{TERM_FILE_NAME}"
        self.twin_path = f"{config.self_path}/{TERM_TWIN_NAME}"
        self.is_up = False
        self.boots = 0
        self.start_error = ""
        self.persisted_term = 0
        self.persisted_vote: str | None = None
        self.damaged: set[int] = set()
        self.is_small_damaged = False
        self.may_be_torn = False
        self.records = RecordRules(self, world.invariants)
        self._slow_us = 0
        self.wall_offset_s = 0.0
        self._suspended_us = -1
        self._losses = self._sure_losses = 0
        self.older_incarnation = -1
        self._errors_at_start = 0
        self.is_away = False
        self._rng = rng
        self._rate = 0.97 + 0.06 * rng.random()
        self._data_path = config.data_store_path or f"{config.self_path}/data"
        self._is_stopping = False
        self.core: DLedgerCore
        self.ledger: FileStore
        self.process: SimProcess
        self.reactor: ProcessReactor
        self.thread: ProcessThread
        self._snapshots_thread: ProcessThread
        self._calls_thread: ProcessThread
        self.service: MemberService
        self.driver: WatchedDriver
        self.spans: WatchedSpans | None = None

    # -- life -------------------------------------------------------------------------------------

    def start(self) -> bool:
        """
        Start a process on the content of the disk.

        @return: whether it started; if not, C{start_error} says why.
        """
        assert not self.is_up
        world, rng, host = self.world, self._rng, self.member_id
        self.is_up = True
        self._is_stopping = False
        self.boots += 1
        self.start_error = ""
        self.may_be_torn = False
        self.disk.now_s = world.clock.now_us / 1e6
        self._errors_at_start = self.disk.errors
        self.records.before_start()
        process = self.process = SimProcess(world.clock, rng, self)
        self._suspended_us = -1
        reactor = self.reactor = ProcessReactor(
            process, boot_s=1000.0 + rng.random() * 1000, rate=self._rate, turn_us=world.turn_us
        )
        self.thread = ProcessThread(
            process, self.disk, rng, took_us=world.flush_us, slow_us=self._slow_us
        )
        self._snapshots_thread = ProcessThread(process, self.disk, rng, took_us=world.flush_us)
        self._calls_thread = ProcessThread(process, self.disk, rng, took_us=MACHINE_CALL_US)
        network = world.network
        trace = self._trace()
        self.service = MemberService(
            self.config,
            MemberProcess(
                reactor=whole_reactor(reactor), disk=self.disk, rng=rng, failed=self._failed,
                boot_id=f"boot {self.disk.power_cuts}", wall_clock=self._local_time,
                threads=MemberThreads(
                    flush=self.thread, snapshots=self._snapshots_thread, calls=self._calls_thread
                ),
            ),
            MemberEndpoints(
                listen=StreamServer(network, host, process),
                dial=lambda peer_id, _: StreamClient(network, host, process, peer_id),
            ),
            MemberExtras(
                make_driver=self._make_driver,
                make_machine=None if world.machines is None else partial(
                    world.machines.make, member_id=host, disk=self.disk, trace=trace
                ),
            ),
        )
        process.run("start", self._start, self.service)
        return self.is_up

    def _start(self, service: MemberService) -> None:
        service.startService()
        if service.node is not None and not self.is_dying:
            ledger = self.ledger
            self.note(f"started at {ledger.ledger_begin_index}..{ledger.ledger_end_index}"
                      f" term {self.core.member.term} committed {ledger.committed_index}"
                      f" repair {ledger.repair_end_index}")

    def _trace(self) -> WatchedSpans | None:
        """The spans of a new process, if its member has any."""
        is_traced, has_machine = self.config.tracing, self.world.machines is not None
        self.spans = WatchedSpans(self.member_id, self.world.invariants, has_machine=has_machine) if (
            is_traced) else None
        return self.spans

    def _make_driver(
        self, core: DLedgerCore, ledger: Ledger, terms: Terms, around: Surroundings
    ) -> WatchedDriver:
        trace = self.spans
        self.driver = WatchedDriver(core, ledger, terms, around, member=self) if trace is None else (
            TracedWatchedDriver(core, ledger, terms, around, member=self, trace=trace))
        self.persisted_term = core.member.term
        self.persisted_vote = core.member.voted_for
        self.world.invariants.started(self)
        self.records.after_start()
        self.world.groups.check(self.world.invariants, self)
        self.world.times.check(self.world.invariants, self)
        check_readers(self.world.readers, self.world.invariants, self)
        return self.driver

    def jump_clock(self, seconds: float) -> None:
        """The wall clock jumps."""
        before_s, self.wall_offset_s = self.wall_offset_s, self.wall_offset_s + seconds
        self.world.times.jumped(self.member_id, self.world.clock.now_us, before_s, self.wall_offset_s)

    def _local_time(self) -> tuple[float, int]:
        self.disk.now_s = now_s = self.world.clock.now_us / 1e6 + self.wall_offset_s
        return now_s, int(now_s / 3600) % 24

    @property
    def node(self) -> Node:
        """The node of the process that runs, or of the last one."""
        assert self.service.node is not None
        return self.service.node

    def _failed(self, reason: str) -> None:
        """The member cannot start, or not continue: its process ends, as twistd would end it."""
        if self.is_dying or not self.is_up:
            return
        if self.service.node is None:
            self.start_error = reason
            self._end(f"cannot start: {reason}")
        elif not self._is_stopping:
            self.note(f"stops: {reason}")
            if self.disk.errors == self._errors_at_start:  # (the member may catch what is raised here)
                self.world.bugs.note(InvariantError(
                    ENDS, f"{self.member_id} ends by itself, and no call of its disk failed: {reason}"))
            self._stop(asked=False)

    def stop(self) -> None:
        """SIGTERM: the member stops in an orderly way."""
        if self.is_up and not self._is_stopping:
            self.process.run("signal", partial(self._stop, asked=True))

    def _stop(self, *, asked: bool) -> None:
        if self._is_stopping:
            return
        self._is_stopping = True
        process = self.process
        process.clock.after(1, process.run, "signal", partial(self._stop_service, asked))

    def _stop_service(self, asked: bool) -> None:
        self.service.stopService().addBoth(self._stopped, asked)

    def _stopped(self, _: object, asked: bool) -> None:
        if not self.is_dying:
            process = self.process
            process.clock.after(1, process.run, "signal", partial(self._exit, asked))

    def _exit(self, asked: bool) -> None:
        self._end("stopped" if asked else f"stopped itself: {self.node.reason}")
        self.world.ending.process_ended(self, asked=asked)

    def call(self, action: Callable[[Node], object]) -> None:
        """Let the running process do something for a caller within it."""
        if self.is_up:
            self.process.run("caller", action, self.node)

    def kill(self) -> None:
        """SIGKILL: the writes stay."""
        if self.is_up:
            self._end("killed")

    def lose_power(self) -> None:
        """The machine loses power, whether a process runs or not."""
        self.may_be_torn = True
        if self.is_up:
            self._end("power lost", power=True)
        else:
            self.disk.lose_power()

    def lose_directory(self) -> None:
        """The machine has a new disk: the directory of the member is gone."""
        self.kill()
        self.note("has lost its directory")
        self.disk.take_away(self.config.self_path)
        self._losses += 1
        self.damaged.clear()
        self.is_small_damaged = False
        self.persisted_term = 0
        self.persisted_vote = None
        self.world.invariants.forget(self)

    @property
    def is_dying(self) -> bool:
        """Whether the process has died inside the present event, so that its actions have no effect."""
        return self.disk.death is not None

    def event_ended(self) -> None:
        """See L{dledger.testing.world.process.ProcessOwner.event_ended}."""
        death = self.disk.death
        if death is None:
            self.world.bugs.notify()
            lag_us = min(self.disk.lag_us, LAG_MAX_US)
            node = self.service.node
            if node is not None:
                self.world.groups.look(self.member_id, self.boots, node, self.world.moments)
                if self.world.machines is not None:
                    self.world.machines.check(self.member_id, self.boots, node, self.disk)
            self.disk.lag_us = 0
            if lag_us and self.is_up and not self.process.is_frozen:
                self.process.freeze()
                self.world.clock.after(lag_us, self._reads_ended, self.process)
        else:
            self.world.bugs.forget()
            power = isinstance(death, PowerLoss)
            self._end(f"{type(death).__name__} {death}", power=power)
            self.world.ending.process_ended(self, asked=False)

    def _reads_ended(self, process: SimProcess) -> None:
        """The slow reads of the last event are over."""
        if process is self.process and self._suspended_us < 0:
            process.thaw()

    def _end(self, why: str, *, power: bool = False) -> None:
        self.note(why)
        self.is_up = False
        self.process.end()
        self.world.network.died(self.member_id, self.process, silently=power)
        if power:
            self.disk.lose_power()
        else:
            self.disk.end_process()

    @property
    def is_paused(self) -> bool:
        """Whether the process is frozen."""
        return self.is_up and self.process.is_frozen

    def pause(self) -> None:
        """SIGSTOP."""
        if self.is_up and not self.is_paused:
            self.note("paused")
            self.process.freeze()

    def resume(self) -> None:
        """SIGCONT: the events that were held back are handled now."""
        if self.is_paused:
            self.note("resumed")
            if self._suspended_us >= 0:
                self.reactor.lost_us += self.world.clock.now_us - self._suspended_us
                self._suspended_us = -1
            self.process.thaw()

    def suspend(self) -> None:
        """The virtual machine is suspended: as L{pause}, and its monotonic clock stands still as well."""
        if self.is_up and not self.is_paused:
            self.note("suspended")
            self._suspended_us = self.world.clock.now_us
            self.process.freeze()

    def starve(self, turn_us: int) -> None:
        """A turn of the running process takes this time from now on, because the machine is busy."""
        if self.is_up:
            self.reactor.turn_us = max(turn_us, self.world.turn_us, 1)

    def reconfigure(self, settings: Mapping[str, object]) -> None:
        """The next process runs with other options."""
        self.config = with_values(self.config, settings)

    def slow_disk(self, us: int) -> None:
        """An fsync takes longer by C{us} from now on."""
        self._slow_us = us
        if self.is_up:
            self.thread.slow_us = us

    def hang_machine(self, us: int, *, is_calls: bool) -> None:
        """The calls of the machine of this process, or its snapshots, take longer by C{us} from now on."""
        if self.is_up:
            (self._calls_thread if is_calls else self._snapshots_thread).slow_us = us

    @property
    def has_slow_disk(self) -> bool:
        """Whether an fsync takes longer than usual."""
        return self._slow_us > 0

    def note(self, text: str) -> None:
        """Add a line to the trace."""
        self.world.trace.note(self.world.clock.now_us, f"{self.member_id} {text}")

    # -- looking, for checks ------------------------------------------------------------------------

    @property
    def is_serving(self) -> bool:
        """Whether a process runs, is not frozen, and its member has not stopped."""
        return self.is_up and not (self.process.is_frozen or self.driver.is_stopped)

    @property
    def is_doubtful(self) -> bool:
        """
        Whether the member lost its directory, or power with async flushing, and has not been sure of its
        ledger since.
        """
        losses = self._losses + (0 if self.config.is_sync else self.disk.power_cuts)
        if self.is_up and not self.core.member.is_unsure and not self._is_older():
            self._sure_losses = losses
        return self._sure_losses != losses

    def _is_older(self) -> bool:
        """Whether the directory is an older copy, and the process does not know it yet."""
        if self.older_incarnation < 0:
            return False
        lineage = self.known_lineage
        return lineage is None or lineage[0] == self.older_incarnation

    @property
    def known_lineage(self) -> tuple[int, int] | None:
        """Incarnation and starts of the directory of the running process; None: it reports none."""
        lineage = self.ledger.identity.lineage if self.is_up else None
        return None if lineage is None else (lineage.incarnation, lineage.starts)

    @property
    def pending(self) -> int:
        """Requests, appends and reads that the running process was given and has not answered."""
        return self.driver.pending if self.is_up else 0

    def is_durable(self, offset: int, size: int) -> bool:
        """Whether C{size} bytes at C{offset} of the data stream would survive a power cut now."""
        if self.is_away:
            return True  # an acknowledgement may be under way while the directory is elsewhere
        file_size = self.config.mapped_file_size_for_entry_data
        start = offset % file_size
        path = f"{self._data_path}/{offset - start:020d}"
        return self.disk.is_durable(path, start, start + size)
