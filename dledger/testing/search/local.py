# -*- test-case-name: tests.sim.test_search -*-
"""
The states of single members, each kept once, and the steps between them, each made once.

A step of a core is a function of its state and its input. There are few states of one member, compared with
those of a group, so the search makes each step of the real core once and remembers the result: a state of the
group is then a row of small numbers.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable
from enum import Enum
from itertools import permutations
from typing import NamedTuple

import attrs

from dledger.core.state import inputs as ev
from dledger.testing.search import member as parts
from dledger.testing.search.member import (
    CHANCE,
    SearchedEntry,
    SearchedLedger,
    SearchedMember,
    SearchedTerms,
    StepRun,
)
from dledger.values.ledger.config import DLedgerConfig
from dledger.values.ledger.membership import ADD, PROMOTE, REMOVE, Membership
from protocols.wire.ledger.batches import EntryBatch
from protocols.wire.ledger.messages import MembershipRequest, PushEntryRequest, Request, Response

#: Anything that is compared and hashed by its value.
Frozen = str | int | float | bytes | bool | None | tuple["Frozen", ...]

MEMBER_IDS = ("n0", "n1", "n2")
#: Changes of the members that an operator asks for.
SEARCHED_CHANGES = (REMOVE, ADD, PROMOTE)
#: All ways to rename the members: the new number of each old one.
RENAMINGS = tuple(permutations(range(len(MEMBER_IDS))))

#: Of the core, all that a step may read, besides its L{MemberState}.
_PARTS = ("elector", "handler", "flusher", "appends", "changes")
#: Of the part of the core that leads, likewise.
_OF_LEADING = ("dispatchers", "quorum", "is_ready")
#: Of the state of a member. The others are the same in all states of the search.
_OF_STATE = (
    "role", "leader_id", "term", "voted_for", "committed_index", "ledger_end_index", "ledger_end_term",
    "flushed_index",
)
#: Fields that lead back to the member, or are the same in every state.
_LEADS_BACK = frozenset((
    "member", "roles", "rng", "acks", "budget", "elector", "quota", "self_id", "transfer", "_wait",
))
#: Fields with ids of requests: peer and number are in them.
_WITH_IDS = frozenset(("_outstanding", "_inflight", "_asked_id"))
#: Begins a collection without an order.
_UNORDERED = "{}"


class Event(NamedTuple):
    """
    What happens to one member.

    @ivar kind: the name of a method of L{_Happenings}, with dashes.
    @ivar peer: number of the peer that it is about; -1 for none.
    @ivar message: number of the message, see L{LocalTable}; -1 for none.
    @ivar number: of the request.
    @ivar renumbered: old and new numbers of a peer's requests.
    """

    kind: str
    peer: int = -1
    message: int = -1
    number: int = 0
    renumbered: tuple[tuple[int, int], ...] = ()


class SentMessage(NamedTuple):
    """A message that a step sent. C{number}: of the request; 0: nobody waits for its answer."""

    to: int
    message: int
    is_request: bool
    is_push: bool
    number: int


@attrs.frozen(eq=False, kw_only=True)
class LocalState:
    """
    A member between two steps.

    @ivar content: the member itself, pickled.
    @ivar hashes: of all that its future depends on, for each of L{RENAMINGS}.
    @ivar signature: the same for members that differ in their names only.
    @ivar next_term: of its next candidacy.
    @ivar waiting: sender and number of every unanswered request.
    @ivar inflight: numbers of the peers that have not answered a push.
    @ivar voters, learners: ids of the members of its group, by its ledger.
    """

    member: int
    content: bytes
    hashes: tuple[int, ...]
    signature: int
    term: int
    next_term: int
    is_leader: bool
    may_lead: bool
    committed_index: int
    entries: tuple[SearchedEntry, ...]
    durable: int
    is_flushing: bool
    waiting: tuple[tuple[int, int], ...]
    inflight: tuple[int, ...]
    voters: frozenset[str]
    learners: frozenset[str]


@attrs.frozen(eq=False, kw_only=True)
class LocalStep:
    """
    The result of one step.

    @ivar state: number of the state after it.
    @ivar numbers: peer and old number of each request that may still be answered, to its new number.
    @ivar succeeded: last index of an append that was answered with SUCCESS; -1 for none.
    @ivar bug: an exception in the member, or empty.
    """

    state: int
    sent: tuple[SentMessage, ...]
    numbers: dict[tuple[int, int], int]
    succeeded: int
    bug: str


# -- freezing -------------------------------------------------------------------------------------


def freeze(value: object) -> Frozen:
    """The value of C{value}, without what is the same in all states."""
    if isinstance(value, Enum):
        return value.name
    if value is None or isinstance(value, (str, int, float, bytes)):
        return value
    if isinstance(value, Membership):
        ids = frozenset(value.voters), frozenset(value.learners)
        return ("membership", freeze(ids), value.index, value.term)
    if isinstance(value, EntryBatch):
        return ("batch", value.first_index, freeze(parts.entries_in(value)))
    if isinstance(value, (tuple, list)):
        return tuple(freeze(one) for one in value)
    if isinstance(value, dict):
        return _unordered((freeze(key), freeze(one)) for key, one in value.items())
    if isinstance(value, (set, frozenset)):
        return _unordered(freeze(one) for one in value)
    kind = type(value)
    return (kind.__name__, *(_freeze_field(name, getattr(value, name)) for name in _names_of(kind)))


def _unordered(values: object) -> Frozen:
    return (_UNORDERED, *sorted(values, key=repr))  # type: ignore[call-overload]


def _freeze_field(name: str, value: object) -> Frozen:
    if name in _WITH_IDS:
        if isinstance(value, dict):
            return _unordered((key % parts.PER_PEER, freeze(one)) for key, one in value.items())
        return value % parts.PER_PEER if isinstance(value, int) else None
    if name == "_matched_channel" and isinstance(value, int) and value > 0:
        return MEMBER_IDS[value - 1]  # whose connection it is
    return freeze(value)


_NAMES: dict[type, tuple[str, ...]] = {}


def _names_of(kind: type) -> tuple[str, ...]:
    names = _NAMES.get(kind)
    if names is None:
        names = tuple(field.name for field in attrs.fields(kind) if field.name not in _LEADS_BACK)
        _NAMES[kind] = names
    return names


def freeze_member(member: SearchedMember) -> Frozen:
    """All that the future of a settled member depends on."""
    core = member.core
    return (
        tuple(freeze(getattr(core.member, name)) for name in _OF_STATE),
        tuple(freeze(getattr(core, name)) for name in _PARTS),
        tuple(freeze(getattr(core.leading, name)) for name in _OF_LEADING),
        freeze(member.ledger), freeze(member.terms), member.flush, freeze(member.asked),
    )


def renamed(value: Frozen, names: dict[str, str]) -> Frozen:
    """C{value} with other ids of members."""
    if isinstance(value, str):
        return names.get(value, value)
    if isinstance(value, tuple):
        if value and value[0] == _UNORDERED:
            return _unordered(renamed(one, names) for one in value[1:])
        return tuple(renamed(one, names) for one in value)
    return value


def hashes_of(value: Frozen) -> tuple[int, ...]:
    """The hash of C{value} under each of L{RENAMINGS}."""
    found = []
    for renaming in RENAMINGS:
        names = {MEMBER_IDS[old]: MEMBER_IDS[new] for old, new in enumerate(renaming)}
        found.append(hash(renamed(value, names)))
    return tuple(found)


# -- steps ----------------------------------------------------------------------------------------


class _Happenings:
    """Makes one event happen to a member. The names of the methods are the kinds of events."""

    def __init__(self, member: SearchedMember, messages: list[Request | Response]) -> None:
        self.member = member
        self.run = StepRun(member)
        self._messages = messages

    def patience(self, _event: Event) -> None:
        """It has heard no leader for long."""
        parts.end_patience(self.member.core)
        self.run.feed(ev.Ticked())

    def no_quorum(self, _event: Event) -> None:
        """The leader has heard no quorum for long."""
        parts.end_quorum(self.member.core)
        self.run.feed(ev.Ticked())

    def tick(self, _event: Event) -> None:
        """A little time passed: idle followers are informed of the commit index."""
        self.run.feed(ev.Ticked())

    def late_push(self, event: Event) -> None:
        """The answer of a peer to a push is late; it may still come."""
        parts.end_push(self.member.core, MEMBER_IDS[event.peer])
        self.run.feed(ev.Ticked())

    def append(self, _event: Event) -> None:
        """A client appends an entry."""
        proposal = ev.Proposal(token=len(self.member.ledger.entries), bodies=(b"x",))
        self.run.feed(ev.AppendProposed((proposal,)))

    def change(self, event: Event) -> None:
        """An operator asks the leader for the change with the number of L{SEARCHED_CHANGES}."""
        member, target = self.member, MEMBER_IDS[event.peer]
        change = SEARCHED_CHANGES[event.number]
        token = next(token for token in range(99, 199) if token not in member.asked)
        member.asked[token] = member.config.self_id, 0  # nobody waits for the answer
        request = MembershipRequest(
            group=member.config.group, remote_id=member.config.self_id, change=change, member_id=target,
            address=parts.addresses_of([target])[target] if change == ADD else "", is_forced=True,
        )
        self.run.feed(ev.RequestReceived(token=token, request=request, channel=0))

    def flushed(self, _event: Event) -> None:
        """The fsync that is under way ends."""
        assert self.member.flush is not None
        (flush_id, end_index), self.member.flush = self.member.flush, None
        self.member.ledger.flushed(end_index)
        self.run.feed(ev.EntriesFlushed(flush_id=flush_id, end_index=end_index))

    def kill(self, _event: Event) -> None:
        """The process ends, and another one starts."""
        self._restart(len(self.member.ledger.entries))

    def power(self, _event: Event) -> None:
        """The machine loses power, and another process starts."""
        self._restart(self.member.ledger.durable)

    def _restart(self, count: int) -> None:
        member = self.member
        entries = member.ledger.entries[:count]
        # The checkpoint is an old one. Recovery brings all that it finds to stable storage.
        ledger = SearchedLedger(self_id=member.ledger.self_id, entries=entries, durable=count)
        self.member = SearchedMember.begin(member.config, ledger, member.terms)
        self.run = StepRun(self.member)

    def broken(self, event: Event) -> None:
        """The connection on which a peer's requests came is gone."""
        member, peer_id = self.member, MEMBER_IDS[event.peer]
        handler = member.core.handler
        if handler._matched_channel == event.peer + 1:
            handler._matched_channel = -1  # the next connection has another number
        for token in [token for token, (sender, _) in member.asked.items() if sender == peer_id]:
            del member.asked[token]
            self.run.feed(ev.RequestAbandoned(token=token))
        self.run.feed(ev.PeerDisconnected(peer_id=peer_id))

    def reconnected(self, event: Event) -> None:
        """The connection to a peer is gone, with all that was on it, and there is a new one."""
        member, peer_id = self.member, MEMBER_IDS[event.peer]
        dispatcher = member.core.leading.dispatchers.get(peer_id)
        for request_id in list(dispatcher._inflight) if dispatcher is not None else ():
            self.run.feed(ev.RequestFailed(peer_id=peer_id, request_id=request_id, reason="connection lost"))
        self.run.feed(ev.PeerConnected(peer_id=peer_id))

    def request(self, event: Event) -> None:
        """A request of a peer came."""
        member, request = self.member, self._messages[event.message]
        assert isinstance(request, Request)
        token = next(token for token in range(1, 99) if token not in member.asked)
        member.asked[token] = MEMBER_IDS[event.peer], event.number
        self.run.feed(ev.RequestReceived(token=token, request=request, channel=event.peer + 1))

    def response(self, event: Event) -> None:
        """An answer of a peer came."""
        response, peer_id = self._messages[event.message], MEMBER_IDS[event.peer]
        assert isinstance(response, Response)
        request_id = parts.request_of(self.member.core, peer_id, event.number)
        self.run.feed(ev.ResponseReceived(peer_id=peer_id, request_id=request_id, response=response))

    def renumber(self, event: Event) -> None:
        """A peer numbers its requests anew; 0: it has forgotten one."""
        numbers, peer_id = dict(event.renumbered), MEMBER_IDS[event.peer]
        for token, (sender, number) in self.member.asked.items():
            if sender == peer_id:
                self.member.asked[token] = sender, numbers.get(number, 0)


class LocalTable:
    """
    All states and messages that were met, by their numbers.

    @ivar states: of members.
    @ivar messages: without the numbers of requests.
    @ivar message_hashes: of each message, for each of L{RENAMINGS}.
    @ivar steps_made: steps of the real core.
    """

    def __init__(self, configs: tuple[DLedgerConfig, ...]) -> None:
        self._configs = configs
        self.states: list[LocalState] = []
        self.messages: list[Request | Response] = []
        self.message_hashes: list[tuple[int, ...]] = []
        self.steps_made = 0
        self._state_numbers: dict[tuple[int, int], int] = {}
        self._message_numbers: dict[Frozen, int] = {}
        self._steps: dict[tuple[int, Event], LocalStep] = {}

    def first(self, number: int) -> int:
        """The state of a new member."""
        config = self._configs[number]
        ledger = SearchedLedger(self_id=config.self_id)
        member = SearchedMember.begin(config, ledger, SearchedTerms())
        parts.settle(member)
        return self._state_of(member)

    def step(self, state: int, event: Event) -> LocalStep:
        """Let C{event} happen to a member in C{state}."""
        found = self._steps.get((state, event))
        if found is None:
            found = self._steps[state, event] = self._made(state, event)
        return found

    def _made(self, state: int, event: Event) -> LocalStep:
        self.steps_made += 1
        happening = _Happenings(self._loaded(self.states[state].content), self.messages)
        act: Callable[[Event], None] = getattr(happening, event.kind.replace("-", "_"))
        act(event)
        member, run = happening.member, happening.run
        numbers = parts.settle(member)
        sent = tuple(self._sent(one, numbers) for one in run.sent)
        peer_ids = parts.others_of(member.core)
        kept = {
            (MEMBER_IDS.index(peer_id), old - peer_ids.index(peer_id) * parts.PER_PEER): new
            for old, (peer_id, new) in numbers.items() if old < parts.PER_PEER * len(MEMBER_IDS)
        }
        return LocalStep(state=self._state_of(member), sent=sent, numbers=kept, succeeded=run.succeeded,
                         bug=run.bug)

    def _sent(self, one: parts.Sent, numbers: dict[int, tuple[str, int]]) -> SentMessage:
        is_request = isinstance(one.message, Request)
        number = numbers.get(one.number, ("", 0))[1] if is_request else one.number
        return SentMessage(MEMBER_IDS.index(one.peer_id), self._message_of(one.message), is_request,
                           isinstance(one.message, PushEntryRequest), number)

    def _message_of(self, message: Request | Response) -> int:
        frozen = freeze(message)
        number = self._message_numbers.get(frozen)
        if number is None:
            number = self._message_numbers[frozen] = len(self.messages)
            self.messages.append(message)
            self.message_hashes.append(hashes_of(frozen))
        return number

    def _state_of(self, member: SearchedMember) -> int:
        own = MEMBER_IDS.index(member.config.self_id)
        frozen = freeze_member(member)
        key = own, hash(frozen)
        number = self._state_numbers.get(key)
        if number is None:
            number = self._state_numbers[key] = len(self.states)
            self.states.append(self._described(own, member, frozen))
        return number

    def _described(self, own: int, member: SearchedMember, frozen: Frozen) -> LocalState:
        core, ledger = member.core, member.ledger
        mine, others = MEMBER_IDS[own], dict.fromkeys(MEMBER_IDS, "other")
        return LocalState(
            member=own, content=self._saved(member), hashes=hashes_of(frozen),
            signature=hash(renamed(frozen, {**others, mine: "own"})), term=core.member.term,
            next_term=core.member.next_term, is_leader=parts.is_leader(core), may_lead=core.member.may_lead,
            committed_index=core.committed_index, entries=ledger.entries, durable=ledger.durable,
            is_flushing=member.flush is not None,
            waiting=tuple((MEMBER_IDS.index(sender), number) for sender, number in member.asked.values()),
            inflight=tuple(
                MEMBER_IDS.index(peer_id) for peer_id, dispatcher in core.leading.dispatchers.items()
                if dispatcher.inflight
            ),
            voters=frozenset(core.member.membership.voters),
            learners=frozenset(core.member.membership.learners),
        )

    def _saved(self, member: SearchedMember) -> bytes:
        inputs, member.core._on = member.core._on, {}
        out = io.BytesIO()
        pickler = pickle.Pickler(out, protocol=5)
        pickler.persistent_id = self._shared_id  # type: ignore[method-assign]
        pickler.dump(member)
        member.core._on = inputs
        return out.getvalue()

    def _shared_id(self, value: object) -> int | tuple[int, int, frozenset[str], frozenset[str]] | None:
        if isinstance(value, DLedgerConfig):
            return MEMBER_IDS.index(value.self_id)
        if isinstance(value, Membership) and value.is_changed:
            # Some decisions ask whether it is the same object as before.
            return value.index, value.term, frozenset(value.voters), frozenset(value.learners)
        return -1 if value is CHANCE else None

    def _shared(self, known: int | tuple[int, int, frozenset[str], frozenset[str]]) -> object:
        if isinstance(known, tuple):
            return parts.membership_at(*known)
        return CHANCE if known < 0 else self._configs[known]

    def _loaded(self, content: bytes) -> SearchedMember:
        unpickler = pickle.Unpickler(io.BytesIO(content))
        unpickler.persistent_load = self._shared  # type: ignore[method-assign]
        member: SearchedMember = unpickler.load()
        member.core._on = member.core._input_table()
        return member
