# -*- test-case-name: tests.sim.test_cluster -*-
"""
The driver of a simulated member: the real one, with checks around each step.

They see the inputs and decisions of the core, its requests and answers, and when term and vote are saved;
they change nothing. The numbers are those of docs/invariants.md.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, cast

from dledger.core.driver import Driver, Ledger, Surroundings, Terms
from dledger.core.replica import DLedgerCore
from dledger.core.state import effects as fx
from dledger.core.state import inputs as ev
from dledger.core.state.member_state import Role
from dledger.node.node import Node
from dledger.storage.store.file_store import FileStore
from dledger.testing.group.checks.checked_member import CheckedMember
from dledger.testing.group.checks.chunks import ChunkRules
from dledger.testing.group.checks.group_folds import GroupRules
from dledger.testing.group.checks.invariants import GroupInvariants
from dledger.testing.group.checks.moments import Moments
from dledger.testing.group.checks.naming import NameRules
from dledger.testing.group.checks.readers import ReaderRules, check_readers
from dledger.testing.group.checks.require import require
from dledger.testing.group.checks.times import TimeRules
from dledger.testing.group.watching.outcomes import OutcomeRules, WaiterRules
from dledger.testing.group.watching.records_on_disk import RecordRules
from dledger.testing.group.watching.remembered import MemoryRules
from dledger.testing.group.watching.words import (
    WordRules,
    before_step,
    commits_at_once,
    is_heartbeat_of_follower,
)
from dledger.testing.world.clock import SimClock
from dledger.testing.world.trace import Trace
from protocols.wire.codes import ResponseCode
from protocols.wire.ledger.codes import PushType
from protocols.wire.ledger.messages import PushEntryRequest, Request, Response

#: The bounds of queues and tables are checked once in this number of ticks.
BOUNDED_TICKS = 10
#: Inputs that change the end of the log, and those after which a member stops.
_WRITTEN = (ev.EntriesWritten, ev.LedgerTruncated)
_STOPPING = (ev.StopRequested, ev.StoreFailed)


class WatchedWorld(Protocol):
    """The parts of the world that a step needs."""

    clock: SimClock
    invariants: GroupInvariants
    chunks: ChunkRules
    readers: ReaderRules | None
    groups: GroupRules
    times: TimeRules
    names: NameRules
    words: WordRules
    moments: Moments
    trace: Trace


class Watcher(CheckedMember, Protocol):
    """The member whose steps these are."""

    number: int
    records: RecordRules

    @property
    def world(self) -> WatchedWorld:
        """Its surroundings."""

    @property
    def node(self) -> Node:
        """The node of its process."""

    @property
    def is_dying(self) -> bool:
        """Whether its process has died inside the present event, so that its actions have no effect."""


class WatchedDriver(Driver):
    """
    Invariant: C{asked}, C{appends} and C{reads} have the tokens that the core was given and has not answered.

    @ivar outcomes: the rules for the answers to appends and reads. @ivar present: the input of this step.
    @ivar asked: token to the request. @ivar appends: token to the bodies.
    @ivar reads: token to the index that was known to be in the log when the read came.
    @ivar pushes: number of pushes of a kind that were sent to a member.
    """

    def __init__(
        self, core: DLedgerCore, ledger: Ledger, terms: Terms, around: Surroundings, *, member: Watcher
    ) -> None:
        self.watched = core
        self.member = member
        self.asked: dict[int, Request] = {}
        self.appends: dict[int, tuple[bytes, ...]] = {}
        self.reads: dict[int, int] = {}
        self.pushes: dict[tuple[str, PushType], int] = {}
        self.outcomes = OutcomeRules(member, member.world.invariants)
        self.present: ev.Input | None = None
        self._is_stopping = False
        self._waiters = WaiterRules()
        self.memory = MemoryRules(member, member.world, core, member.world.words.leaders)
        self._seen: tuple[object, ...] = ()
        self._ticks = 0
        self._awaited: list[tuple[Request, Callable[[Response], None]]] = []
        self._listeners: dict[int, Callable[[Response], None]] = {}
        # (the store of a node has the ledger)
        member.core = core
        member.ledger = cast("FileStore", ledger)
        super().__init__(self, ledger, WatchedTerms(terms, member), WatchedAround(around, self))
        self.stepped = self._settled

    def listen_for(self, request: Request, done: Callable[[Response], None]) -> None:
        """When a request comes that equals C{request}, C{done} gets the answer to it."""
        self._awaited.append((request, done))

    def heard(self, token: int, response: Response) -> None:
        """The core has answered a request."""
        listener = self._listeners.pop(token, None)
        if listener is not None:
            listener(response)

    @property
    def pending(self) -> int:
        """Number of tokens without an answer."""
        return len(self.asked) + len(self.appends) + len(self.reads)

    def step(self, happened: ev.Input, now_ms: int) -> tuple[fx.Effect, ...]:
        """Let the core take an input; see L{DLedgerCore.step}."""
        member = self.member
        world, outcomes = member.world, self.outcomes
        outcomes.now_ms = now_ms
        outcomes.before = before_step(self.watched.member)
        self.present = happened
        self._is_stopping = self._is_stopping or type(happened) in _STOPPING
        self.memory.before(happened)
        self._before(happened)
        effects = self.watched.step(happened, now_ms)
        self.memory.after(happened)
        if isinstance(happened, ev.EntriesFlushed) or is_heartbeat_of_follower(happened):
            commits_at_once(self.watched, world.invariants.mirror(member.member_id), member.member_id)
        if type(happened) is ev.Ticked:
            self._ticks += 1
            if self._ticks % BOUNDED_TICKS == 0:
                world.invariants.bounded(member)
            if not effects:
                world.trace.steps += 1  # nothing changes without an effect that says so
                return effects
        state = self.watched.member
        world.trace.step(world.clock.now_us, member.number, member.member_id, self.watched, happened, effects)
        if type(happened) in _WRITTEN:
            world.words.sees_its_end(member)
        seen = (state.term, state.role, state.leader_id, state.committed_index, state.repair_end_index)
        if seen != self._seen:
            is_elected = state.role is Role.LEADER and self._seen[:2] != seen[:2]
            self._seen = seen
            world.invariants.stepped(member, state)
            world.names.check(world.invariants, member)
            if is_elected:
                world.groups.check(world.invariants, member)
                world.times.check(world.invariants, member)
                check_readers(world.readers, world.invariants, member)
        return effects

    def _before(self, happened: ev.Input) -> None:
        member = self.member
        invariants = member.world.invariants
        if isinstance(happened, ev.EntriesWritten):
            invariants.written(member, happened.first_index, happened.count)
            return
        if isinstance(happened, ev.LedgerTruncated):
            invariants.truncated(member, happened.end_index)
            self.memory.cut(happened.end_index)
            return
        invariants.expired(member)
        if isinstance(happened, ev.HoleHandled):
            invariants.holes_changed(member)
        elif isinstance(happened, ev.RequestReceived):
            self.asked[happened.token] = happened.request
            for awaited in self._awaited:
                if awaited[0] == happened.request:
                    self._awaited.remove(awaited)
                    self._listeners[happened.token] = awaited[1]
                    break
        elif isinstance(happened, ev.AppendProposed):
            self.outcomes.proposed(happened.proposals)
            member.world.times.proposed(member, happened.proposals, member.world.clock.now_us)
            for proposal in happened.proposals:
                self.appends[proposal.token] = proposal.bodies
        elif isinstance(happened, ev.ReadRequested):
            self.outcomes.requested(happened.tokens)
            for token in happened.tokens:
                self.reads[token] = invariants.known_index
        elif type(happened) is ev.Ticked:
            self._before_tick()
        elif isinstance(happened, ev.RequestAbandoned):
            self.asked.pop(happened.token, None)

    def _before_tick(self) -> None:
        """All that the last step wanted has been done."""
        member = self.member
        self.outcomes.ticks()
        self._waiters.look(member.member_id, member.node.handlers.reads, self.watched.committed_index)
        if self._ticks % BOUNDED_TICKS == 0:
            member.records.look()
            member.world.groups.check_state(member.world.invariants, member)

    def _settled(self) -> None:
        if self._inbox and isinstance(self._inbox[0], ev.StoreFailed):
            return
        if not (self.is_stopped or self.member.is_dying or self.why_mute):  # a mute one: its messages alone
            self.member.world.invariants.settled(self.member, self.watched.member)

    def answered_append(self, answer: fx.AnswerAppend) -> None:
        """Check the answer to a proposal."""
        bodies, origin = self.appends.pop(answer.token, None), self.outcomes.origin_of(answer.token)
        who = self.member.member_id
        require(bodies is not None, 7, f"{who} answered append {answer.token} twice")
        assert bodies is not None
        is_right = 0 < answer.count <= len(bodies) if answer.is_repeated else answer.count == len(bodies)
        require(is_right, 7, f"{who} answered {answer.count} of {len(bodies)}")
        if answer.code is ResponseCode.SUCCESS:
            invariants = self.member.world.invariants
            invariants.acknowledged(self.member, answer.first_index, bodies[: answer.count])
            if origin is not None:
                self.member.world.groups.answered(invariants, origin, answer.first_index, answer.count)
        self.outcomes.appended(answer, is_stopping=self._is_stopping)

    def answered_read(self, answer: fx.AnswerRead) -> None:
        """Check the answer to a linearizable read."""
        known_index = self.reads.pop(answer.token, None)
        require(known_index is not None, 7, f"{self.member.member_id} answered read {answer.token} twice")
        assert known_index is not None
        if answer.code is ResponseCode.SUCCESS:
            self.member.world.invariants.shows(self.member, answer.read_index, known_index)
        self.outcomes.read(answer, is_stopping=self._is_stopping)


class WatchedTerms:
    """The real term file; its last durable term is recorded in the member. Implements L{Terms}."""

    def __init__(self, terms: Terms, member: Watcher) -> None:
        self._terms = terms
        self._member = member

    def save(self, term: int, voted_for: str | None) -> None:
        self._terms.save(term, voted_for)
        self._member.world.invariants.persisted(self._member, term, voted_for)

    def check_point(self) -> None:
        self._terms.check_point()


class WatchedAround:
    """
    The real surroundings of a driver; requests and answers are checked before they go out.

    Implements L{Surroundings}.
    """

    def __init__(self, around: Surroundings, driver: WatchedDriver) -> None:
        self._around = around
        self._driver = driver
        self._member = driver.member
        self.seconds = around.seconds
        self.continue_later = around.continue_later
        self.follow_membership = around.follow_membership
        self.stop_member = around.stop_member
        self.broken = around.broken

    def report(self, report: fx.Report) -> None:
        if not self._member.is_dying:
            self._member.world.words.reports(self._member, report)
        self._around.report(report)

    def send_request(self, effect: fx.SendRequest) -> None:
        peer_id, request = effect.peer_id, effect.request
        if not self._member.is_dying:
            self._member.world.invariants.asks(self._member, request)
            self._member.world.chunks.asks(self._member, request)
            self._member.world.words.asks(self._member, self._driver.outcomes.before, peer_id, request)
            self._driver.memory.asks(peer_id, effect.request_id, request)
            if isinstance(request, PushEntryRequest):
                pushes, key = self._driver.pushes, (peer_id, request.type)
                pushes[key] = pushes.get(key, 0) + 1
        self._around.send_request(effect)

    def reply(self, effect: fx.Reply) -> None:
        token, response = effect.token, effect.response
        request = self._driver.asked.pop(token, None)
        if request is not None and not self._member.is_dying:
            world = self._member.world
            world.invariants.answers(self._member, request, response)
            world.chunks.answers(self._member, request, response, world.invariants)
            if not self._driver.why_mute:
                happened = self._driver.present
                world.words.answers(
                    self._member, self._driver.outcomes.before, request, response,
                    is_at_once=isinstance(happened, ev.RequestReceived) and happened.token == token,
                )
            self._driver.heard(token, response)
        self._around.reply(effect)

    def start_flush(self, effect: fx.FlushLedger) -> None:
        self._around.start_flush(effect)

    def committed(self, committed_index: int) -> None:
        self._around.committed(committed_index)

    def answer_append(self, answer: fx.AnswerAppend) -> None:
        if not self._member.is_dying:
            self._driver.answered_append(answer)
        self._around.answer_append(answer)

    def answer_read(self, answer: fx.AnswerRead) -> None:
        if not self._member.is_dying:
            self._driver.answered_read(answer)
        self._around.answer_read(answer)
