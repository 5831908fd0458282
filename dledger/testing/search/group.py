# -*- test-case-name: tests.sim.test_search -*-
"""
A group of three members and the messages between them, as one value; what may happen next; what must hold.

A member's pushes to a peer travel on one connection, in order; they are lost only with the connection. All
other messages overtake each other, and may be lost or delivered twice. Every timer may end at any time.

Checked in every state, by the numbers of docs/invariants.md:

  1. a term has one leader;
  2. the commit index of a process does not fall;
  3. equal index and term means an equal entry, there and before;
  4. a committed entry stays: on all members that committed it, on every later leader, and on stable storage
     of a majority (with changes of the members: when it is committed, on one of the list); an append is
     answered SUCCESS for a committed entry only;
  5. a leader commits by an entry of its own term.

And no assertion of the core fails.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import attrs

from dledger.testing.search.local import (
    MEMBER_IDS,
    RENAMINGS,
    SEARCHED_CHANGES,
    Event,
    LocalState,
    LocalStep,
    LocalTable,
)
from dledger.testing.search.member import SearchedEntry, addresses_of
from dledger.values.ledger.config import DLedgerConfig
from dledger.values.ledger.membership import ADD, PROMOTE

_MEMBERS = range(len(MEMBER_IDS))
_NUMBER = {member_id: number for number, member_id in enumerate(MEMBER_IDS)}
_RENAMING = {renaming: at for at, renaming in enumerate(RENAMINGS)}
_PAIRS = tuple((sender, receiver) for sender in _MEMBERS for receiver in _MEMBERS if sender != receiver)
_PAIR = {pair: at for at, pair in enumerate(_PAIRS)}

#: For each pair of members message and number of every push on the way, in order.
Queues = tuple[tuple[tuple[int, int], ...], ...]
#: What is left of crashes, broken connections, late answers, messages delivered twice, and changes.
Left = tuple[int, ...]


@attrs.frozen(kw_only=True)
class Bounds:
    """
    How far the search goes.

    @ivar terms_max: no member is a candidate of a later term.
    @ivar entries_max: no leader takes an append if its ledger has this number of entries.
    @ivar messages_max: in flight; a message beyond is lost, and each of the others may be, too.
    @ivar crashes, breaks, late, twice: how often a process ends, a connection breaks, an answer to a push is
        late, a message is delivered twice.
    @ivar changes: of the members of the group: removals, additions, promotions. The search begins with three
        voters.
    @ivar is_atomic: an answer arrives in the move that delivers its request, or it is lost, which counts as
        late.
    @ivar is_sync: acknowledge after fsync, and lose power at crashes.
    @ivar term_start_entry, pushes: options of the members.
    """

    terms_max: int = 3
    entries_max: int = 4
    messages_max: int = 4
    crashes: int = 1
    breaks: int = 0
    late: int = 1
    twice: int = 1
    changes: int = 0
    is_atomic: bool = False
    is_sync: bool = False
    term_start_entry: bool = False
    pushes: int = 1

    def config(self, number: int) -> DLedgerConfig:
        """The configuration of one member."""
        return DLedgerConfig(
            group="g", self_id=MEMBER_IDS[number], peers=addresses_of(MEMBER_IDS), pre_vote=False,
            max_batch_push_count=1,
            term_start_entry=self.term_start_entry, max_inflight_pushes=self.pushes,
            flush_disk_type="sync" if self.is_sync else "async",
        )


class Flying(NamedTuple):
    """A message that is not a push. C{number}: of the request; 0: nobody waits for the answer."""

    sender: int
    receiver: int
    is_request: bool
    message: int
    number: int


class SearchedState(NamedTuple):
    """
    A state of the group.

    @ivar members: numbers of their states.
    @ivar others: the other messages, sorted.
    @ivar committed: what any member ever committed.
    @ivar leaders: who led each term, from term 1 on; -1: nobody.
    """

    members: tuple[int, int, int]
    pushes: Queues
    others: tuple[Flying, ...]
    committed: tuple[SearchedEntry, ...]
    leaders: tuple[int, ...]
    left: Left


class Broken(Exception):
    """An invariant does not hold."""


class Move(NamedTuple):
    """
    One thing that may happen.

    @ivar what: in words.
    @ivar member: number of the member that C{event} happens to; None for no event.
    @ivar pushes, others, left: as they are after it, without what the member sends.
    @ivar is_answered: the answer of the member arrives in the same move.
    """

    what: str
    member: int
    event: Event | None
    pushes: Queues
    others: tuple[Flying, ...]
    left: Left
    is_answered: bool = False


def _spent(left: Left, at: int) -> Left:
    found = list(left)
    found[at] -= 1
    return tuple(found)


class SearchedGroup:
    """The rules of one search."""

    def __init__(self, bounds: Bounds) -> None:
        self.bounds = bounds
        self.table = LocalTable(tuple(bounds.config(number) for number in _MEMBERS))

    def first(self) -> SearchedState:
        """Three new members."""
        first = tuple(self.table.first(number) for number in _MEMBERS)
        bounds = self.bounds
        return SearchedState(
            (first[0], first[1], first[2]), ((),) * len(_PAIRS), (), (), (-1,) * bounds.terms_max,
            (bounds.crashes, bounds.breaks, bounds.late, bounds.twice, bounds.changes),
        )

    # -- what may happen ----------------------------------------------------------------------------

    def moves(self, state: SearchedState) -> Iterator[Move]:
        """Everything that may happen next."""
        for number in _MEMBERS:
            yield from self._own_moves(state, number)
        for move in self._deliveries(state):
            if not self.bounds.is_atomic:
                yield move
                continue
            yield move._replace(is_answered=True)
            if state.left[2]:
                yield move._replace(what=f"{move.what}, whose answer is lost", left=_spent(move.left, 2))
        count = len(state.others) + sum(map(len, state.pushes))
        if count >= self.bounds.messages_max:
            for at, one in enumerate(state.others):
                if at == 0 or one != state.others[at - 1]:
                    others = state.others[:at] + state.others[at + 1 :]
                    yield Move("lost", -1, None, state.pushes, others, state.left)
        if state.left[1]:
            for at, (sender, receiver) in enumerate(_PAIRS):
                if self.table.states[state.members[sender]].is_leader:
                    yield self._break(state, at, sender, receiver)

    def _break(self, state: SearchedState, at: int, sender: int, receiver: int) -> Move:
        """The connection from C{sender} to C{receiver} is replaced; pushes and answers on it are lost."""
        pushes = state.pushes[:at] + ((),) + state.pushes[at + 1 :]
        others = tuple(one for one in state.others
                       if one.is_request or (one.sender, one.receiver) != (receiver, sender))
        what = f"the connection to {MEMBER_IDS[receiver]} breaks"
        return Move(what, sender, Event("reconnected", receiver), pushes, others, _spent(state.left, 1))

    def _own_moves(self, state: SearchedState, number: int) -> Iterator[Move]:
        bounds, left = self.bounds, state.left
        known = self.table.states[state.members[number]]
        kinds = []
        if known.is_leader:
            kinds += ["no-quorum", "tick"]
            if len(known.entries) < bounds.entries_max:
                kinds.append("append")
                if left[4]:
                    yield from self._changes(state, number, known)
        elif known.may_lead and known.next_term <= bounds.terms_max:
            kinds.append("patience")
        if known.is_flushing:
            kinds.append("flushed")
        for kind in kinds:
            yield Move(kind, number, Event(kind), state.pushes, state.others, left)
        if left[0]:
            kind = "power" if bounds.is_sync else "kill"
            yield self._crash(state, number, kind)
        if left[2]:
            for peer in known.inflight:
                yield Move("late-push", number, Event("late-push", peer), state.pushes, state.others,
                           _spent(left, 2))

    def _changes(self, state: SearchedState, number: int, known: LocalState) -> Iterator[Move]:
        """Every change that the leader does not refuse now. It never removes itself."""
        for peer, member_id in enumerate(MEMBER_IDS):
            for at, change in enumerate(SEARCHED_CHANGES):
                event = Event("change", peer, -1, at)
                is_member = member_id in known.voters | known.learners
                if peer == number or (change == ADD) == is_member or (
                    change == PROMOTE and member_id in known.voters
                ):
                    continue
                if self.table.step(state.members[number], event).state != state.members[number]:
                    yield Move(f"{change} {member_id}", number, event, state.pushes, state.others,
                               _spent(state.left, 4))

    def _crash(self, state: SearchedState, number: int, kind: str) -> Move:
        """All connections of a crashed member break."""
        pushes = tuple(() if number in pair else queue
                       for pair, queue in zip(_PAIRS, state.pushes, strict=True))
        others = tuple(one for one in state.others if number not in (one.sender, one.receiver)
                       or (one.is_request and one.receiver != number))
        return Move(kind, number, Event(kind), pushes, others, _spent(state.left, 0))

    def _deliveries(self, state: SearchedState) -> Iterator[Move]:
        left = state.left
        for at, queue in enumerate(state.pushes):
            if queue:
                message, number = queue[0]
                sender, receiver = _PAIRS[at]
                pushes = state.pushes[:at] + (queue[1:],) + state.pushes[at + 1 :]
                push = Event("request", sender, message, number)
                what = f"push from {MEMBER_IDS[sender]}"
                yield Move(what, receiver, push, pushes, state.others, left)
                if left[3]:
                    again = state.pushes[:at] + ((*queue[1:], queue[0]),) + state.pushes[at + 1 :]
                    yield Move(f"{what}, which comes again", receiver, push, again, state.others,
                               _spent(left, 3))
        for at, one in enumerate(state.others):
            if at and one == state.others[at - 1]:
                continue
            event = Event("request" if one.is_request else "response", one.sender, one.message, one.number)
            rest = state.others[:at] + state.others[at + 1 :]
            what = f"{event.kind} from {MEMBER_IDS[one.sender]}"
            yield Move(what, one.receiver, event, state.pushes, rest, left)
            if left[3] and one.is_request:
                yield Move(f"{what}, which comes again", one.receiver, event, state.pushes, state.others,
                           _spent(left, 3))

    # -- the state after a move ---------------------------------------------------------------------------

    def after(self, state: SearchedState, move: Move) -> SearchedState:
        """
        The state after a move.

        @raise Broken: an invariant does not hold there.
        """
        after = self._moved(state, move)
        while move.is_answered:
            answer = next((one for one in after.others if not one.is_request), None)
            if answer is None:
                break
            rest = list(after.others)
            rest.remove(answer)
            event = Event("response", answer.sender, answer.message, answer.number)
            answering = Move("", answer.receiver, event, after.pushes, tuple(rest), after.left)
            after = self._moved(after, answering)
        if self.bounds.is_atomic and not move.is_answered:
            after = after._replace(others=tuple(one for one in after.others if one.is_request))
        return after

    def _moved(self, state: SearchedState, move: Move) -> SearchedState:
        if move.event is None:
            return state._replace(others=move.others)
        number = move.member
        step = self.table.step(state.members[number], move.event)
        if step.bug:
            raise Broken(f"{MEMBER_IDS[number]}: {step.bug}")
        members = list(state.members)
        members[number] = step.state
        pushes, others = self._renumbered(number, step, move, members)
        if move.event.kind == "reconnected":
            members[move.event.peer] = self._follow_up(members[move.event.peer], Event("broken", number))
        elif move.event.kind in ("kill", "power"):
            for peer in _MEMBERS:
                if peer != number:
                    members[peer] = self._follow_up(members[peer], Event("broken", number))
        pushes, others = self._with_sent(number, step, pushes, others)
        before, now = self.table.states[state.members[number]], self.table.states[step.state]
        committed, leaders = self._checked(state, number, before, now, members)
        if step.succeeded >= len(committed):
            raise Broken(f"4: an append of entry {step.succeeded} was answered before its commit")
        three = members[0], members[1], members[2]
        return SearchedState(three, pushes, others, committed, leaders, move.left)

    def _follow_up(self, state: int, event: Event) -> int:
        step = self.table.step(state, event)
        if step.bug:
            raise Broken(step.bug)
        return step.state

    def _renumbered(
        self, number: int, step: LocalStep, move: Move, members: list[int]
    ) -> tuple[Queues, tuple[Flying, ...]]:
        """The messages on the way, with the new numbers of the requests of one member."""
        numbers = step.numbers
        pushes = list(move.pushes)
        for peer in _MEMBERS:
            if peer == number:
                continue
            at = _PAIR[number, peer]
            if pushes[at]:
                pushes[at] = tuple((message, numbers.get((peer, old), 0)) for message, old in pushes[at])
            if not self.table.states[members[peer]].waiting:
                continue
            waiting = tuple(sorted({old for sender, old in self.table.states[members[peer]].waiting
                                    if sender == number and old}))
            mapping = tuple((old, numbers.get((peer, old), 0)) for old in waiting)
            if any(old != new for old, new in mapping):
                members[peer] = self._follow_up(members[peer], Event("renumber", number, renumbered=mapping))
        others = []
        for one in move.others:
            if one.is_request and one.sender == number:
                one = one._replace(number=numbers.get((one.receiver, one.number), 0))
            elif not one.is_request and one.receiver == number:
                new = numbers.get((one.sender, one.number), 0)
                if not new:
                    continue  # nobody waits for it
                one = one._replace(number=new)
            others.append(one)
        return tuple(pushes), tuple(others)

    def _with_sent(
        self, number: int, step: LocalStep, pushes: Queues, others: tuple[Flying, ...]
    ) -> tuple[Queues, tuple[Flying, ...]]:
        if not step.sent:
            return pushes, tuple(sorted(others))
        queues, rest = list(pushes), list(others)
        room = self.bounds.messages_max - len(rest) - sum(map(len, queues))
        for one in step.sent:
            if room <= 0 and not one.is_push:
                continue
            room -= 1
            if one.is_push:
                at = _PAIR[number, one.to]
                queues[at] = (*queues[at], (one.message, one.number))
            else:
                rest.append(Flying(number, one.to, one.is_request, one.message, one.number))
        return tuple(queues), tuple(sorted(rest))

    # -- invariants ---------------------------------------------------------------------------------

    def _checked(
        self, state: SearchedState, number: int, before: LocalState, now: LocalState, members: list[int]
    ) -> tuple[tuple[SearchedEntry, ...], tuple[int, ...]]:
        """The committed entries and the leaders after a step. @raise Broken: an invariant does not hold."""
        committed, leaders = state.committed, state.leaders
        if now.is_leader and not (before.is_leader and before.term == now.term):
            leaders = self._new_leader(number, now, committed, leaders)
        is_restart = now.committed_index < 0 <= before.committed_index
        if now.committed_index < before.committed_index and not is_restart:
            raise Broken(f"2: the commit index of {MEMBER_IDS[number]} fell to {now.committed_index}")
        if now.committed_index > before.committed_index:
            mine = now.entries[: now.committed_index + 1]
            common = min(len(mine), len(committed))
            if mine[:common] != committed[:common]:
                raise Broken(f"4: {MEMBER_IDS[number]} commits {mine}, but {committed} was committed")
            if now.is_leader and mine[-1].term != now.term:
                raise Broken(f"5: {MEMBER_IDS[number]}, leader of term {now.term}, commits {mine}")
            if len(mine) > common:
                committed = mine
                self._check_quorum(now, committed, members)
        is_shorter = now.durable < before.durable
        if is_shorter or now.entries != before.entries or committed is not state.committed:
            self._check_ledgers(number, now, committed, members)
        return committed, leaders

    def _new_leader(
        self, number: int, now: LocalState, committed: tuple[SearchedEntry, ...], leaders: tuple[int, ...]
    ) -> tuple[int, ...]:
        known = leaders[now.term - 1]
        if known not in (-1, number):
            raise Broken(f"1: {MEMBER_IDS[known]} and {MEMBER_IDS[number]} lead term {now.term}")
        if now.entries[: len(committed)] != committed:
            raise Broken(f"4: {MEMBER_IDS[number]} leads term {now.term} with {now.entries}, without the "
                         f"committed {committed}")
        return (*leaders[: now.term - 1], number, *leaders[now.term :])

    def _check_ledgers(
        self, number: int, now: LocalState, committed: tuple[SearchedEntry, ...], members: list[int]
    ) -> None:
        if now.entries[: now.committed_index + 1] != committed[: now.committed_index + 1]:
            raise Broken(f"4: {MEMBER_IDS[number]} has {now.entries}, without the committed {committed}")
        holders = 0
        for peer in _MEMBERS:
            other = self.table.states[members[peer]]
            holders += self._has(other, committed)
            if peer != number:
                _check_match(now.entries, other.entries)
        if committed and holders < 2 and not self.bounds.changes:
            raise Broken(f"4: {committed} was committed, and {holders} members have it on stable storage")

    def _check_quorum(
        self, leader: LocalState, committed: tuple[SearchedEntry, ...], members: list[int]
    ) -> None:
        """A majority of the leader's present list has the entries that it commits."""
        holders = {
            member_id for member_id, state in zip(MEMBER_IDS, members, strict=True)
            if self._has(self.table.states[state], committed)
        }
        voters = leader.voters
        if leader.is_leader and 2 * len(holders & voters) <= len(voters):
            raise Broken(f"4: {committed} is committed by {sorted(holders)}, of {sorted(voters)}")

    @staticmethod
    def _has(member: LocalState, committed: tuple[SearchedEntry, ...]) -> bool:
        return member.entries[: member.durable][: len(committed)] == committed

    # -- keys ---------------------------------------------------------------------------------------

    def key(self, state: SearchedState) -> int:
        """The same for states that differ in the names of the members only."""
        states = self.table.states
        first, second, third = (states[one].signature for one in state.members)
        if first != second != third != first:
            place = (first > second) + (first > third), (second > first) + (second > third)
            at = _RENAMING[(*place, 3 - sum(place))]
            return self._key_as(state, at, RENAMINGS[at])
        ordered = sorted((first, second, third))
        return min(
            self._key_as(state, at, renaming) for at, renaming in enumerate(RENAMINGS)
            if [ordered[place] for place in renaming] == [first, second, third]
        )

    def _key_as(self, state: SearchedState, at: int, renaming: tuple[int, ...]) -> int:
        states, hashes = self.table.states, self.table.message_hashes
        members = sorted((renaming[number], states[state.members[number]].hashes[at]) for number in _MEMBERS)
        pushes = sorted(
            (renaming[sender], renaming[receiver],
             tuple((hashes[message][at], number) for message, number in queue))
            for (sender, receiver), queue in zip(_PAIRS, state.pushes, strict=True) if queue
        )
        others = sorted(
            (renaming[sender], renaming[receiver], is_request, hashes[message][at], number)
            for sender, receiver, is_request, message, number in state.others
        )
        committed = tuple(
            (one.term, renaming[_NUMBER[one.leader_id]], _renamed(one.voters, renaming),
             _renamed(one.learners, renaming))
            for one in state.committed
        )
        leaders = tuple(-1 if one < 0 else renaming[one] for one in state.leaders)
        return hash((tuple(members), tuple(pushes), tuple(others), committed, leaders, state.left))


def _renamed(member_ids: frozenset[str], renaming: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(sorted(renaming[_NUMBER[one]] for one in member_ids))


def _check_match(one: tuple[SearchedEntry, ...], other: tuple[SearchedEntry, ...]) -> None:
    for index in range(min(len(one), len(other)) - 1, -1, -1):
        if one[index].term == other[index].term:
            if one[: index + 1] != other[: index + 1]:
                raise Broken(f"3: {one} and {other} have entry {index} of one term, and differ up to there")
            return
