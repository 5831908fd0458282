# -*- test-case-name: tests.sim.test_cluster -*-
"""
One simulated member: the real core, driver and store in a process that can be killed.

It does the work of a node on simulated time: ticks, fsyncs that end later, the proposals of one turn in one
input, reads served up to their read index. Rule: an event of a process carries its C{life}; an event of an
earlier process is dropped.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from typing import Any

import attrs

from dledger.base.errors import DamagedEntryError, DLedgerError
from dledger.config import DLedgerConfig
from dledger.core import effects as fx
from dledger.core import inputs as ev
from dledger.node.driver import Driver
from dledger.storage.file_store import FileStore
from dledger.storage.memory_store import MemoryStore
from dledger.storage.term_file import TERM_FILE_NAME, TERM_TWIN_NAME, TermFile
from dledger.testing.clock import SimClock
from dledger.testing.disk import MemberDied, PowerLoss, SimDisk
from dledger.testing.group.invariants import GroupInvariants, require
from dledger.testing.group.network import SimConnection, SimNetwork
from dledger.testing.group.peer_reads import read_for_peer
from dledger.testing.group.watched import WatchedCore, WatchedTerms
from dledger.testing.trace import Trace
from protocols.wire.ledger.codes import ResponseCode
from protocols.wire.ledger.entry import bodies_of
from protocols.wire.ledger.messages import GetRequest, PullRequest, Request, Response

#: The answer to a client whose connection breaks first.
LOST = ResponseCode.NETWORK_ERROR

#: A client's callback: code, first index or index read, bodies, id of the leader.
Done = Callable[[ResponseCode, int, "tuple[bytes, ...]", "str | None"], None]


@attrs.define(eq=False)
class World:
    """
    The common surroundings of the members of a group.

    @ivar flush_us: mean time of an fsync now.
    @ivar turn_us: proposals and reads within this time share one input.
    @ivar ended: called when a process ended without a fault of the schedule: the member, and whether it was
        asked to stop.
    """

    clock: SimClock
    network: SimNetwork
    invariants: GroupInvariants
    trace: Trace
    ended: Callable[[SimMember, bool], None]
    flush_us: int = 500
    turn_us: int = 0


class SimMember:
    """
    A member and its machine.

    @ivar persisted_term: the last term that a C{save} made durable, or that a process began with.

    @ivar life: number of the process; odd while one runs.
    @ivar is_small_damaged: a bit of its small files was flipped since an operator last looked.
    @ivar damaged: indexes of entries of which a bit of the record or index unit was flipped, as far as they
        have not come back from a peer.
    @ivar start_error: why it could not start the last time; None if it could.
    """

    def __init__(
        self, world: World, number: int, config: DLedgerConfig, disk: SimDisk, rng: random.Random
    ) -> None:
        self.world = world
        self.number = number
        self.config = config
        self.disk = disk
        self.member_id = config.self_id
        self.term_path = f"{config.self_path}/{TERM_FILE_NAME}"
        self.twin_path = f"{config.self_path}/{TERM_TWIN_NAME}"
        self.life = 0
        self.is_up = False
        self.is_paused = False
        self.start_error: BaseException | None = None
        self.last_seen: tuple[object, ...] = ()
        self.slow_flush_us = 0
        self.boots = 0
        self.persisted_term = 0
        self.damaged: set[int] = set()
        self.is_small_damaged = False
        self._sure_cuts = 0
        self._rng = rng
        self._boot_us = 0
        self._boot_ms = 0
        self._tick_us = int(config.tick_ms * 1000 * (0.97 + 0.06 * rng.random()))
        self._ticks = 0
        self._job: Any = None
        self._is_closing = False
        self._data_path = config.data_store_path or f"{config.self_path}/data"
        self._backlog: dict[int, deque[tuple[Callable[..., None], tuple[Any, ...]]]] = {}
        self._next_token = 0
        self._requests: dict[int, tuple[SimConnection, int, Request]] = {}
        self._asked: dict[int, Callable[[Response], None]] = {}
        self._appends: dict[int, tuple[tuple[bytes, ...], Done]] = {}
        self._reads: dict[int, tuple[int, Done]] = {}
        self._turn: list[ev.Proposal] = []
        self._read_turn: list[int] = []
        self.ledger: Any = None
        self.terms: TermFile
        self.core: WatchedCore
        self.driver: Driver

    # -- life -------------------------------------------------------------------------------------

    def start(self) -> bool:
        """
        Start a process on the content of the disk.

        @return: whether it started; if not, C{start_error} says why.
        """
        assert not self.is_up
        self.life += 1
        self.boots += 1
        self.start_error = None
        clock = self.world.clock
        self.disk.now_s = clock.now_us / 1e6
        self._boot_us, self._boot_ms = clock.now_us, 1000 + int(self._rng.random() * 1e6)
        try:
            core, terms = self._recover()
        except DLedgerError as error:
            self.start_error = error
            self._end(f"cannot start: {error}")
            return False
        except MemberDied as death:
            self.start_error = death
            self._died_inside(death)
            return False
        core.watcher = self
        self.core = core
        self.last_seen = ()
        self.driver = Driver(core, self.ledger, terms, self)
        self.is_up = True
        self._ticks = 0
        self._job, self._is_closing = None, False
        self.world.invariants.started(self)
        self.persisted_term = core._member.term
        self.note(f"started at {self.ledger.ledger_begin_index}..{self.ledger.ledger_end_index}"
                  f" term {core._member.term} committed {self.ledger.committed_index}"
                  f" repair {self.ledger.repair_end_index}")
        clock.after(int(self._rng.random() * self._tick_us), self._tick, self.life)
        self.driver.feed(ev.Started())
        return True

    def _recover(self) -> tuple[WatchedCore, WatchedTerms]:
        config = self.config
        if config.store_type == "memory":
            self.ledger = MemoryStore.open(config, self.disk)
            self.disk.makedirs(config.self_path)
        else:
            self.ledger = FileStore.open(config, self.disk, boot_id=f"boot {self.disk.power_cuts}")
        terms = WatchedTerms(self.disk, config.self_path, member_ids=config.peers)
        terms.watcher = self
        found = terms.take_up(
            ledger_end_term=self.ledger.ledger_end_term,
            has_ledger=config.store_type == "file" and self.ledger.identity.has_terms,
        )
        if config.store_type == "file":
            self.ledger.identity.note_terms()
        self.terms = terms
        core = WatchedCore(
            config=config, view=self.ledger, rng=self._rng, term=found.term, voted_for=found.voted_for,
            committed_index=self.ledger.committed_index, repair_end_index=self.ledger.repair_end_index,
            is_unsure=self.ledger.identity.is_unsure, group_name=self.ledger.identity.group_name,
        )
        return core, terms

    def kill(self) -> None:
        """SIGKILL: the writes stay."""
        if self.is_up:
            self._end("killed")

    def lose_power(self) -> None:
        """The machine loses power, whether a process runs or not."""
        if self.is_up:
            self._end("power lost", silently=True, power=True)
        else:
            self.disk.lose_power()

    @property
    def is_doubtful(self) -> bool:
        """Whether the member lost power, and has not been sure of its ledger since; with async flushing."""
        if self.config.is_sync:
            return False
        if self.is_up:
            self._sure_cuts = self._sure_cuts if self.core._member.is_unsure else self.disk.power_cuts
        return self._sure_cuts != self.disk.power_cuts

    def stop(self) -> None:
        """Ask the member to stop in an orderly way."""
        self.feed(ev.StopRequested())

    def _end(self, why: str, *, silently: bool = False, power: bool = False) -> None:
        self.note(why)
        was_up, self.is_up, self.is_paused = self.is_up, False, False
        self.life += 1
        if was_up:
            self.driver.stop()
        if power:
            self.disk.lose_power()
        else:
            self.disk.end_process()
        self._backlog.clear()
        self._requests.clear()
        self._turn, self._read_turn = [], []
        self.world.network.member_died(self.member_id, silently=silently)
        waiting = [done for _, done in self._appends.values()] + [done for _, done in self._reads.values()]
        self._appends.clear()
        self._reads.clear()
        for done in waiting:
            done(LOST, -1, (), None)

    def _died_inside(self, death: MemberDied) -> None:
        power = isinstance(death, PowerLoss)
        self._end(f"{type(death).__name__} {death}", silently=power, power=power)
        self.world.ended(self, False)

    def pause(self) -> None:
        """SIGSTOP."""
        if self.is_up and not self.is_paused:
            self.note("paused")
            self.is_paused = True

    def resume(self) -> None:
        """SIGCONT: the events that were held back are handled now."""
        if not self.is_paused:
            return
        self.note("resumed")
        self.is_paused = False
        life = self.life
        backlog, self._backlog = self._backlog, {}
        if self._rng.random() < 0.5:
            self.feed(ev.Ticked())
        keys = list(backlog)
        while keys and self.life == life:
            # Events of one connection stay in order; the next connection is chosen at random.
            at = int(self._rng.random() * len(keys))
            action, arguments = backlog[keys[at]].popleft()
            if not backlog[keys[at]]:
                del keys[at]
            action(*arguments)
            if self._rng.random() < 0.3:
                self._end_turn(life)

    def hold_back(self, action: Callable[..., None], arguments: tuple[Any, ...]) -> bool:
        """See L{dledger.testing.group.network.Endpoint.hold_back}."""
        if self.is_paused:
            source = arguments[0].number if isinstance(arguments[0], SimConnection) else -len(self._backlog)
            self._backlog.setdefault(source, deque()).append((action, arguments))
        return self.is_paused

    def note(self, text: str) -> None:
        """Add a line to the trace."""
        self.world.trace.note(self.world.clock.now_us, f"{self.member_id} {text}")

    # -- inputs -----------------------------------------------------------------------------------

    def feed(self, happened: ev.Input) -> None:
        """Give the core an input, now or when the process is resumed."""
        if not self.is_up:
            return
        if self.is_paused:
            self.hold_back(self.feed, (happened,))
            return
        self.driver.feed(happened)

    def _tick(self, life: int) -> None:
        if life != self.life:
            return
        self.world.clock.after(self._tick_us, self._tick, life)
        if self.is_paused or self._is_closing:
            return
        self._ticks += 1
        self.driver.feed(ev.Ticked())
        if self._ticks * self.config.tick_ms >= self.config.check_point_interval:
            self._ticks = 0
            self.world.invariants.bounded(self)
            self.disk.now_s = self.world.clock.now_us / 1e6
            self._keep_house(life)

    def _keep_house(self, life: int) -> None:
        if self.life != life or self.driver.is_stopped:
            return
        try:
            self.ledger.check_point()
            self.terms.check_point()
            self.ledger.house_keeping(self.disk.now_s, 0, keep_from_index=self.ledger.committed_index + 1)
            self.world.invariants.expired(self)
            if self.ledger.disk_full != self.core.is_full:
                self.driver.feed(ev.RoomChecked(self.ledger.disk_full))
        except MemberDied as death:
            self._died_inside(death)
        except (DLedgerError, OSError) as error:
            self.driver.feed(ev.StoreFailed(reason=str(error)))

    def _token(self) -> int:
        self._next_token += 1
        return self._next_token

    # -- peers ------------------------------------------------------------------------------------

    def request_came(self, connection: SimConnection, opaque: int, request: Request) -> None:
        """A request of a peer arrives."""
        if isinstance(request, (PullRequest, GetRequest)):
            self._answer_read(connection, opaque, request)
            return
        token = self._token()
        self._requests[token] = (connection, opaque, request)
        self.driver.feed(ev.RequestReceived(token=token, request=request, channel=connection.number))

    def _answer_read(self, connection: SimConnection, opaque: int, request: PullRequest | GetRequest) -> None:
        try:
            response = read_for_peer(
                request, self.ledger, self.core, is_native=self.world.network.codec.is_native
            )
        except MemberDied as death:  # while it recorded that an entry is damaged
            self._died_inside(death)
        except (DLedgerError, OSError) as error:
            self.driver.feed(ev.StoreFailed(reason=str(error)))
        else:
            self.world.network.reply(connection, opaque, response)

    def connection_opened(self, peer_id: str) -> None:
        """A connection for this member's requests is open."""
        self.feed(ev.PeerConnected(peer_id=peer_id))

    def response_came(self, peer_id: str, request_id: int, response: Response) -> None:
        """An answer of a peer arrives."""
        self.feed(ev.ResponseReceived(peer_id=peer_id, request_id=request_id, response=response))

    def request_failed(self, peer_id: str, request_id: int, reason: str) -> None:
        """A request will not be answered."""
        self.feed(ev.RequestFailed(peer_id=peer_id, request_id=request_id, reason=reason))

    def connection_closed(self, connection: SimConnection, *, is_last: bool) -> None:
        """An incoming connection is gone."""
        tokens = [token for token, found in self._requests.items() if found[0] is connection]
        for token in tokens:
            del self._requests[token]
            self.feed(ev.RequestAbandoned(token=token))
        if is_last:
            self.feed(ev.PeerDisconnected(peer_id=connection.client))

    def ask(self, request: Request, done: Callable[[Response], None]) -> None:
        """
        A request that does not come over the network: an operator's, or a script's.

        A script's push counts as one on the leader's connection.
        """
        token = self._token()
        self._asked[token] = done
        channel = self.world.network.channel(request.leader_id, self.member_id)
        self.feed(ev.RequestReceived(token=token, request=request, channel=channel))

    # -- clients ------------------------------------------------------------------------------------

    def append(self, bodies: tuple[bytes, ...], done: Done) -> None:
        """A client's proposal arrives."""
        if not self.is_up:
            done(LOST, -1, (), None)
        elif not self.hold_back(self.append, (bodies, done)):
            token = self._token()
            self._appends[token] = (bodies, done)
            self._turn.append(ev.Proposal(token=token, bodies=bodies))
            if len(self._turn) == 1:
                self.world.clock.after(self.world.turn_us, self._end_turn, self.life)

    def read(self, index: int, done: Done) -> None:
        """A client's linearizable get arrives; index -1 asks for the highest index."""
        if not self.is_up:
            done(LOST, -1, (), None)
        elif not self.hold_back(self.read, (index, done)):
            token = self._token()
            self._reads[token] = (index, done)
            self._read_turn.append(token)
            if len(self._read_turn) == 1:
                self.world.clock.after(self.world.turn_us, self._end_turn, self.life)

    def _end_turn(self, life: int) -> None:
        if life != self.life or self.hold_back(self._end_turn, (life,)):
            return
        turn, self._turn = self._turn, []
        tokens, self._read_turn = self._read_turn, []
        if turn:
            self.driver.feed(ev.AppendProposed(tuple(turn)))
        if tokens and life == self.life:
            self.driver.feed(ev.ReadRequested(tuple(tokens)))

    def read_committed(self, index: int, done: Done, *, most: int = 1) -> None:
        """A client's get or pull of committed entries arrives; every member answers it."""
        if not self.is_up:
            done(LOST, -1, (), None)
        elif not self.hold_back(self.read_committed, (index, done)):
            try:
                self._serve(index, min(self.core.committed_index, index + most - 1), done)
            except MemberDied as death:  # while it recorded that an entry is damaged
                self._died_inside(death)
                done(LOST, -1, (), None)

    def _serve(self, index: int, end_index: int, done: Done) -> None:
        leader_id = self.core.leader_id
        if index > end_index:
            done(ResponseCode.INDEX_OUT_OF_RANGE, end_index, (), leader_id)
            return
        if index < self.ledger.ledger_begin_index:
            done(ResponseCode.INDEX_LESS_THAN_LOCAL_BEGIN, self.ledger.ledger_begin_index, (), leader_id)
            return
        try:
            batch = self.ledger.read_range(index, end_index=end_index, max_bytes=1 << 20)
        except DamagedEntryError as error:
            done(error.code, -1, (), leader_id)
            return
        except (DLedgerError, OSError) as error:
            done(LOST, -1, (), None)
            self.driver.feed(ev.StoreFailed(reason=str(error)))
            return
        done(ResponseCode.SUCCESS, index, tuple(bodies_of(batch)), leader_id)

    def pending(self) -> int:
        """Clients' calls and peers' requests without an answer."""
        return len(self._appends) + len(self._reads) + len(self._requests)

    # -- surroundings of the driver -------------------------------------------------------------------

    def now_ms(self) -> int:
        """See L{dledger.node.driver.Surroundings.now_ms}."""
        return self._boot_ms + (self.world.clock.now_us - self._boot_us) // 1000

    def send_request(self, peer_id: str, request_id: int, request: Request) -> None:
        """See L{dledger.node.driver.Surroundings.send_request}."""
        self.world.invariants.asks(self, request)
        self.world.network.send_request(self.member_id, peer_id, request_id, request)

    def continue_later(self) -> None:
        """See L{dledger.node.driver.Surroundings.continue_later}."""
        self.world.clock.after(1, self.feed, ev.TurnCame())  # a later process ignores it

    def reply(self, token: int, response: Response) -> None:
        """See L{dledger.node.driver.Surroundings.reply}."""
        found = self._requests.pop(token, None)
        if found is None:
            asked = self._asked.pop(token, None)
            if asked is not None:
                asked(response)
            return
        connection, opaque, request = found
        self.world.invariants.answers(self, request, response)
        self.world.network.reply(connection, opaque, response)

    def answer_append(self, answer: fx.AnswerAppend) -> None:
        """See L{dledger.node.driver.Surroundings.answer_append}."""
        found = self._appends.pop(answer.token, None)
        require(found is not None, 7, f"{self.member_id} answered append {answer.token} twice")
        assert found is not None
        bodies, done = found
        require(len(bodies) == answer.count, 7, f"{self.member_id} answered {answer.count} of {len(bodies)}")
        if answer.code is ResponseCode.SUCCESS:
            self.world.invariants.acknowledged(self, answer.first_index, bodies)
        done(answer.code, answer.first_index, bodies, answer.leader_id)

    def answer_read(self, answer: fx.AnswerRead) -> None:
        """See L{dledger.node.driver.Surroundings.answer_read}."""
        found = self._reads.pop(answer.token, None)
        require(found is not None, 7, f"{self.member_id} answered read {answer.token} twice")
        assert found is not None
        index, done = found
        if answer.code is not ResponseCode.SUCCESS:
            done(answer.code, -1, (), answer.leader_id)
        elif index < 0:
            done(ResponseCode.SUCCESS, answer.read_index, (), answer.leader_id)
        else:
            self._serve(index, min(index, answer.read_index), done)

    def start_flush(self, flush_id: int, end_index: int) -> None:
        """See L{dledger.node.driver.Surroundings.start_flush}."""
        job = self.ledger.prepare_flush()
        if job is None:
            self.world.clock.after(1, self._flushed, self.life, flush_id, end_index, None)
            return
        self._job = job
        took_us = int((self.world.flush_us + self.slow_flush_us) * 2 * self._rng.random())
        # An fsync covers all writes before its beginning; it may miss later ones.
        barrier = self.disk.begin_sync() if self._rng.random() < 0.7 else None
        self.world.clock.after(took_us, self._run_flush, self.life, flush_id, job, barrier)

    def _run_flush(self, life: int, flush_id: int, job: Any, barrier: int | None) -> None:
        if life != self.life or self.hold_back(self._run_flush, (life, flush_id, job, barrier)):
            return
        try:
            with self.disk.syncing_up_to(barrier):
                job.run()
        except MemberDied as death:
            self._died_inside(death)
            return
        except (OSError, DLedgerError) as error:
            self._failed(f"fsync: {error}")
            return
        delay_us = int(self._rng.random() * 300)
        self.world.clock.after(delay_us, self._flushed, life, flush_id, job.end_index, job)

    def _flushed(self, life: int, flush_id: int, end_index: int, job: Any) -> None:
        if life != self.life or self.hold_back(self._flushed, (life, flush_id, end_index, job)):
            return
        self._job = None
        try:
            if job is not None:
                self.ledger.finish_flush(job)
                end_index = job.end_index  # a truncation meanwhile may have lowered it
        except MemberDied as death:
            self._died_inside(death)
            return
        except (OSError, DLedgerError) as error:
            self._failed(f"after fsync: {error}")
            return
        if self._is_closing:
            self._close()
        else:
            self.driver.feed(ev.EntriesFlushed(flush_id=flush_id, end_index=end_index))

    def _failed(self, reason: str) -> None:
        if self._is_closing:
            self.stop_member(fx.StopMember(reason=reason))
        else:
            self.driver.feed(ev.StoreFailed(reason=reason))

    def committed(self, committed_index: int) -> None:
        """See L{dledger.node.driver.Surroundings.committed}."""

    def report(self, report: fx.Report) -> None:
        """See L{dledger.node.driver.Surroundings.report}."""

    def stop_member(self, stop: fx.StopMember) -> None:
        """See L{dledger.node.driver.Surroundings.stop_member}."""
        if not stop.clean:
            self.ledger.abandon()
            self._end(f"stopped itself: {stop.reason}")
            self.world.ended(self, False)
        elif self._job is None:
            self._close()
        else:
            self._is_closing = True

    def _close(self) -> None:
        try:
            self.ledger.clean_close()
        except MemberDied as death:
            self._died_inside(death)
            return
        except (OSError, DLedgerError) as error:
            self.ledger.abandon()
            self._end(f"could not close: {error}")
            self.world.ended(self, False)
            return
        self._end("stopped")
        self.world.ended(self, True)

    def broken(self, error: BaseException) -> None:
        """See L{dledger.node.driver.Surroundings.broken}. Deaths are simulated; anything else is a bug."""
        if not isinstance(error, MemberDied):
            raise error
        self._died_inside(error)

    # -- looking, for checks ------------------------------------------------------------------------

    def is_durable(self, offset: int, size: int) -> bool:
        """Whether C{size} bytes at C{offset} of the data stream would survive a power cut now."""
        if self.config.store_type == "memory":
            return True
        file_size = self.config.mapped_file_size_for_entry_data
        start = offset % file_size
        path = f"{self._data_path}/{offset - start:020d}"
        return self.disk.is_durable(path, start, start + size)
