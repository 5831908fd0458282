# -*- test-case-name: tests.sim.test_sim_readers -*-
"""
The rules of named readers (12 of docs/invariants.md), checked with a second fold of the committed log, which
is written here.

The fold reads every committed reader entry from the first one of the log on, whatever members delete. Each
change of a reader must be one of the changes that readers know: a process gets entries that nobody has, does
the first ones of its part, or gives its part back; an operator moves or forgets a reader. The answers that
processes get, and what members know, are compared with it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import attrs

from dledger.client.values import Entry
from dledger.testing.group.checks.apart import ApartInvariants
from dledger.testing.group.checks.checked_member import CheckedMember
from dledger.testing.group.checks.invariants import GroupInvariants
from dledger.testing.group.checks.require import require
from dledger.values.ledger.group_state import GroupFold
from protocols.wire.ledger.entry import ENTRY_HEADER, decode_header
from protocols.wire.ledger.messages import ReaderRequest, ReaderResponse
from protocols.wire.ledger.own.own_entries import READER_CHANNEL
from protocols.wire.ledger.readers import (
    NO_END,
    ReaderPart,
    ReaderState,
    decode_reader_entry,
    decode_readers,
)

#: A part of a lease: clocks of members and clients differ by less.
_CERTAIN = 0.9
_NEW = ReaderState("", -1, 0)

#: Entries from the first one up to, not including, the second one.
_Range = tuple[int, int]


def undone(state: ReaderState) -> list[_Range]:
    """The entries that are not done, in order."""
    ranges = [(part.begin, part.end) for part in state.parts if part.begin < part.end]
    if state.given_index < NO_END:
        ranges.append((state.given_index, NO_END))
    return ranges


def without(ranges: Iterable[_Range], others: Sequence[_Range]) -> list[_Range]:
    """What of C{ranges} is in none of C{others}; both are in order."""
    left = []
    for begin, end in ranges:
        for other_begin, other_end in others:
            if other_begin < end and other_end > begin:
                if begin < other_begin:
                    left.append((begin, other_begin))
                begin = max(begin, other_end)
        if begin < end:
            left.append((begin, end))
    return left


def change_problem(before: ReaderState, after: ReaderState, index: int) -> str:
    """
    Why a process of a reader cannot have made this change; empty: it can.

    @param after: the parts that the entry at C{index} gives have this token.
    """
    again, done = without(undone(after), undone(before)), without(undone(before), undone(after))
    if again:
        return f"entries that were done are not any more: {again}"
    had = {part.token: part for part in before.parts}
    done_here = [
        (had[part.token].begin, part.begin) for part in after.parts
        if part.token in had and part.begin > had[part.token].begin
    ]
    if len(done_here) > 1 or done != done_here:
        return f"{done} are done, by their parts {done_here}"
    for part in after.parts:
        old = had.get(part.token)
        if old is None and part.token != index:
            return f"a part with the token {part.token}, which nobody had"
        if old is not None and (part.end != old.end or (part.holder and part.holder != old.holder)):
            return f"the part {old} has become {part}"
    return ""


@attrs.define
class _Known:
    """
    A reader in the fold.

    @ivar states: its states in order, each with the index of its entry.
    @ivar begins: token to the begins that its part had.
    """

    states: list[tuple[int, ReaderState]] = attrs.Factory(list)
    begins: dict[int, list[int]] = attrs.Factory(dict)

    def at(self, index: int) -> tuple[int, ReaderState] | None:
        """The last state up to an entry, if there is one."""
        return next((one for one in reversed(self.states) if one[0] <= index), None)

    def since(self, index: int) -> list[ReaderState]:
        """The state at an entry, and all later ones; those of an unknown reader are forgotten ones."""
        first = self.at(index)
        states = [_NEW._replace(is_forgotten=True) if first is None else first[1]]
        return states + [state for at, state in self.states if at > index]


@attrs.define
class _Lease:
    """When a lease was surely heard of last, and when its part had surely gone to another process."""

    heard_us: int
    lease_us: int
    taken_us: int | None = None


@attrs.define
class ReaderRules:
    """
    @ivar answers: by request, those that were compared.
    @ivar handed: entries that processes got.
    @ivar taken_over: parts that a process got from another one whose lease was over.
    """

    invariants: GroupInvariants
    now_us: Callable[[], int]
    answers: dict[str, int] = attrs.Factory(dict)
    handed: int = 0
    taken_over: int = 0
    _known: dict[str, _Known] = attrs.Factory(dict)
    _next: int = 0
    _leases: dict[tuple[str, int], _Lease] = attrs.Factory(dict)
    _moves: set[str] = attrs.Factory(set)

    def forget(self) -> None:
        """Acknowledged entries may be lost: what the log says is read again."""
        self._known.clear()
        self._leases.clear()
        self._next = 0

    # -- the fold -----------------------------------------------------------------------------

    def fold(self) -> int:
        """Read what is committed. @return: the last committed index."""
        invariants = self.invariants
        for index in range(self._next, invariants.last_committed + 1):
            record = invariants.records[index, invariants.committed[index]][0]
            header = decode_header(record)
            if header.channel == READER_CHANNEL and header.chain_crc:
                self._count(index, decode_reader_entry(record[ENTRY_HEADER.size :]))
        self._next = invariants.last_committed + 1
        return invariants.last_committed

    def _count(self, index: int, reported: ReaderState) -> None:
        known = self._known.setdefault(reported.name, _Known())
        last, before = known.states[-1] if known.states else (-1, _NEW)
        if reported.previous != last:
            return
        after = reported._replace(parts=tuple(
            part if part.token >= 0 else part._replace(token=index) for part in reported.parts
        ))
        if known.states and not self._is_order(before, after):
            problem = change_problem(before, after, index)
            require(not problem, 12, f"reader {reported.name} at {index}: {problem}")
        known.states.append((index, after))
        for part in after.parts:
            known.begins.setdefault(part.token, []).append(part.begin)

    def _is_order(self, before: ReaderState, after: ReaderState) -> bool:
        """Whether an operator has moved or forgotten it, or a process begins with one that was forgotten."""
        if before.is_forgotten:
            return True
        return after.name in self._moves and not after.parts

    def ordered(self, name: str) -> None:
        """An operator moves or forgets a reader, now or later."""
        self._moves.add(name)

    # -- members ------------------------------------------------------------------------------

    def check_state(self, member_id: str, group: GroupFold | None) -> None:
        """What a member knows up to a committed entry is what the log says."""
        if group is None or self.fold() < group.state.index:
            return  # (The log may be lost that the member knows to be committed.)
        index, shown = group.state.index, group.state.readers
        for name in self._known.keys() | shown.keys():
            known, other = self._known.get(name, _Known()), shown.get(name)
            reported = None if other is None else other[:2]
            one = known.at(index)
            if other is None and (one is None or one[1].is_forgotten):
                continue
            require(one == reported, 12, f"{member_id} at {index}: reader {name} is {reported}, not {one}")

    # -- answers ------------------------------------------------------------------------------

    def answered(self, request: ReaderRequest, answer: ReaderResponse, asked_us: int, known: int) -> None:
        """
        A request was answered with SUCCESS.

        @param known: the last committed index when it was sent.
        """
        self.fold()
        does, name = request.does, request.name
        self.answers[does] = self.answers.get(does, 0) + 1
        if does == "list":
            self._listed(name, answer, known)
            return
        reader = self._known.get(name, _Known())
        now = reader.since(known)
        reported = f"reader {name}, {does} by {request.holder or 'an operator'}"
        require(does == "forget" or any(state.next_index == answer.next_index for state in now), 12,
                f"{reported}: its next entry was never {answer.next_index}")
        if does == "take" and answer.token >= 0:
            self._took(request, answer, asked_us, reported)
        elif does == "renew":
            self._heard(name, request.token, asked_us, reported)
        elif does == "commit":
            reached = max(reader.begins.get(request.token, [-1]))
            is_whole = any(  # (Beyond its part a process may leave out what was deleted.)
                part.token == request.token and part.begin >= part.end
                for state in now for part in state.parts
            )
            require(reached > request.index or is_whole, 12,
                    f"{reported}: {request.index} is done, the log says {reached}")
            self._heard(name, request.token, asked_us, reported)
        elif does == "release":
            held = [part for part in now[-1].parts if part.token == request.token and part.holder]
            require(not held, 12, f"{reported}: it still has {held}")
        elif does in ("move", "forget"):
            is_so = any(state.is_forgotten for state in now) if does == "forget" else any(
                not state.parts and state.given_index == answer.next_index for state in now
            )
            require(is_so, 12, f"{reported}: the log does not say so")

    def _took(self, request: ReaderRequest, answer: ReaderResponse, asked_us: int, reported: str) -> None:
        reader, token = self._known.get(request.name, _Known()), answer.token
        given = reader.at(token)
        require(given is not None and given[0] == token, 12,
                f"{reported}: nobody has given the lease {token}")
        assert given is not None
        part = next((one for one in given[1].parts if one.token == token), None)
        require(part is not None and part.holder == request.holder and part.end == answer.end_index
                and answer.begin_index in reader.begins[token], 12,
                f"{reported}: the lease {token} is of {part}")
        assert part is not None
        is_new = (request.name, token) not in self._leases
        self._heard(request.name, token, asked_us, reported, part)
        before = reader.at(token - 1)
        if is_new and before is not None:
            self._left(request.name, before[1], part, reported)

    def _left(self, name: str, before: ReaderState, part: ReaderPart, reported: str) -> None:
        """Whoever had the entries of a part before has lost them by now, and must have been silent."""
        for old in before.parts:
            if not old.holder or old.begin >= old.end or old.begin >= part.end or old.end <= part.begin:
                continue
            self.taken_over += 1
            lease = self._leases.get((name, old.token))
            if lease is not None:
                lease.taken_us = self.now_us()
                self._judge(lease, f"{reported}: the lease {old.token} of {old.holder}")

    def _heard(
        self, name: str, token: int, asked_us: int, reported: str, part: ReaderPart | None = None
    ) -> None:
        lease = self._leases.get((name, token))
        if lease is None and part is not None:
            lease = self._leases[name, token] = _Lease(asked_us, part.lease_ms * 1000)
        if lease is not None:
            lease.heard_us = max(lease.heard_us, asked_us)
            self._judge(lease, f"{reported}: the lease {token}")

    @staticmethod
    def _judge(lease: _Lease, reported: str) -> None:
        until_us = lease.heard_us + int(_CERTAIN * lease.lease_us)
        require(lease.taken_us is None or lease.taken_us >= until_us, 12,
                f"{reported} was good until {until_us} us at least, its entries went by {lease.taken_us}")

    def _listed(self, after: str, answer: ReaderResponse, known: int) -> None:
        shown = {info.name: info.next_index for info in decode_readers(answer.readers)}
        for name, reader in self._known.items():
            if name <= after or (answer.more and name > max(shown)):
                continue
            allowed = {
                None if state.is_forgotten else state.next_index for state in reader.since(known)
            }
            require(shown.get(name) in allowed, 12,
                    f"the list says {shown.get(name)} of the reader {name}, which was at {allowed}")

    # -- what processes get -------------------------------------------------------------------

    def check_handed(self, name: str, token: int, from_index: int, entry: Entry) -> None:
        """
        A process has got an entry with a lease.

        @param from_index: where its part begins, or the entry after the one before.
        """
        self.fold()
        self.handed += 1
        begins = self._known.get(name, _Known()).begins.get(token)
        reported = f"reader {name}: the lease {token} has shown {entry.index} after {from_index - 1}"
        require(begins is not None and from_index >= begins[0], 12, f"{reported}: it begins at {begins}")
        require(entry.index >= from_index, 12, reported)
        invariants = self.invariants
        require(entry.index in invariants.committed and invariants.body_of(entry.index) == entry.body, 4,
                f"{reported}, which is not what is committed there")
        passed = [index for index in range(from_index, entry.index) if self.is_owed(index)]
        require(not passed, 12, f"{reported}, and left out {passed}")

    def is_owed(self, index: int) -> bool:
        """Whether an entry is one of a program."""
        return not self.invariants.is_hidden(index)

    def done_by(self, name: str, index: int) -> bool:
        """Whether all entries up to one are done by a reader, if the group knows it."""
        self.fold()
        known = self._known.get(name, _Known())
        return not known.states or known.states[-1][1].next_index > index


def check_readers(rules: ReaderRules | None, invariants: GroupInvariants, member: CheckedMember) -> None:
    """What a member knows of its readers is what the log says (12)."""
    if rules is not None and not isinstance(invariants, ApartInvariants):
        rules.check_state(member.member_id, member.ledger.group)
