# -*- test-case-name: tests.sim.test_group_folds -*-
"""
What a member knows beside its entries, compared with a fold of all records of the group, from the first one
on, whatever members have deleted; and the places of numbers that were acknowledged.

The folds here read whole records, in their order, and know nothing of cuts, files, starts and states of other
members. So they say the same as the member's state only if that survived all of them. One fold is written
here, and has the producers of a log with its uncommitted end; the other one is that of the product, from the
first entry on, whose encoded state of a committed entry is equal at all members.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypeAlias

import attrs

from dledger.core.state.inputs import Origin
from dledger.node.node import Node
from dledger.storage.files.state_file import StatePlace, StoredState, encode_state
from dledger.testing.group.checks.apart import ApartInvariants
from dledger.testing.group.checks.checked_member import CheckedMember
from dledger.testing.group.checks.invariants import GroupInvariants
from dledger.testing.group.checks.mirror import Mirror
from dledger.testing.group.checks.moments import STATE_PIECE, STATE_TAKEN, Moments
from dledger.testing.group.checks.require import require
from dledger.values.ledger.group_state import GroupFold, GroupState, Known, Marked, UnfitEntry
from protocols.wire.ledger.entry import ENTRY_HEADER, decode_header
from protocols.wire.ledger.own.age_entries import AGE_STEP_MS, decode_age_entry
from protocols.wire.ledger.own.own_entries import AGE_CHANNEL, SESSION_CHANNEL, STATE_CHANNEL, slot_of
from protocols.wire.ledger.own.session_entries import decode_session_entry
from protocols.wire.ledger.own.state_entries import StateWord, decode_state_entry

#: By index and term: the record, and the term before it.
Records: TypeAlias = Mapping[tuple[int, int], tuple[bytes, int]]


@attrs.define
class FoldedProducer:
    """
    A producer.

    @ivar places: the index of each of its entries, by number. @ivar used_ms: age at the last one.
    """

    slot: int
    used_ms: int
    places: list[int] = attrs.Factory(list)


@attrs.define
class Folded:
    """
    What records say.

    @ivar forgotten: producers that an age entry made the group forget, and that have not begun again.
    @ivar wrong: why a record does not follow from those before it; empty: all do.
    """

    producers: dict[str, FoldedProducer] = attrs.Factory(dict)
    forgotten: set[str] = attrs.Factory(set)
    wrong: str = ""
    age_ms: int = 0
    _slots: dict[int, str] = attrs.Factory(dict)
    _clock_ms: int | None = None

    def add(self, record: bytes) -> None:
        """The next record."""
        header = decode_header(record)
        if not header.chain_crc or not header.channel:
            return
        if header.channel > 0:
            self._numbered(header.channel, header.index)
        elif header.channel == SESSION_CHANNEL:
            for slot, name, _ in decode_session_entry(record[ENTRY_HEADER.size :]):
                if name in self.producers or slot in self._slots:
                    self.wrong = f"a second session of {name} or of slot {slot} at {header.index}"
                self.producers[name] = FoldedProducer(slot, self.age_ms)
                self._slots[slot] = name
                self.forgotten.discard(name)
        elif header.channel == AGE_CHANNEL:
            clock_ms, limit_ms = decode_age_entry(record[ENTRY_HEADER.size :])
            if self._clock_ms is not None:
                self.age_ms += min(max(clock_ms - self._clock_ms, 0), AGE_STEP_MS)
            self._clock_ms = clock_ms if self._clock_ms is None else max(clock_ms, self._clock_ms)
            old = [name for name, one in self.producers.items() if one.used_ms + limit_ms <= self.age_ms]
            for name in old:
                del self._slots[self.producers.pop(name).slot]
            self.forgotten.update(old)
        elif header.channel == STATE_CHANNEL and (
            decode_state_entry(record[ENTRY_HEADER.size :]).word is StateWord.BEGIN_ANEW
        ):
            self.forgotten.update(self.producers)
            self.producers = {}
            self._slots = {}
            self.age_ms = 0
            self._clock_ms = None

    def _numbered(self, channel: int, index: int) -> None:
        producer = self.producers.get(self._slots.get(slot_of(channel), ""))
        if producer is None or len(producer.places) & 0xFF != channel & 0xFF:
            self.wrong = f"the channel {channel:#x} at {index} is of {producer}"
        else:
            producer.places.append(index)
            producer.used_ms = self.age_ms


def fold(records: Iterable[bytes]) -> Folded:
    """What records that follow each other say, from the first one of a group on."""
    found = Folded()
    for record in records:
        found.add(record)
    return found


def held_records(
    invariants: GroupInvariants, mirror: Mirror, end_index: int | None = None
) -> list[bytes] | None:
    """
    The records of a member up to an entry, the group's before and after its log included; None: they are not
    known.

    @param end_index: None: all that it has.
    """
    end_index = mirror.end_index if end_index is None else end_index
    found: list[bytes] = []
    for index in range(end_index + 1):
        term = mirror.term_of(index)
        term = invariants.committed.get(index, -1) if term < 0 else term
        if term < 0 or (index, term) not in invariants.records:
            return None
        found.append(invariants.records[index, term][0])
    return found


@attrs.define
class GroupRules:
    """
    The rules of one group.

    @ivar compared: states that were compared; C{acknowledged}: numbers whose places were.
    @ivar spoiled: members whose state a fault has changed; they are not compared.
    """

    compared: int = 0
    acknowledged: int = 0
    spoiled: set[str] = attrs.Factory(set)
    _committed: Folded = attrs.Factory(Folded)
    _next: int = 0
    _folds: dict[str, GroupFold] = attrs.Factory(dict)
    _fetched: dict[tuple[str, int], str] = attrs.Factory(dict)

    def forget(self) -> None:
        """Committed entries may be lost, and others come to their places."""
        self._committed = Folded()
        self._next = 0
        self._folds.clear()

    def check(self, invariants: GroupInvariants, member: CheckedMember) -> None:
        """What a member knows of producers is what the records of its log say (11)."""
        group, mirror = member.ledger.group, invariants.mirror(member.member_id)
        if group is None or member.member_id in self.spoiled or isinstance(invariants, ApartInvariants):
            return  # A leader that lies may push two entries of one term and index.
        records = None if mirror.lost else held_records(invariants, mirror)
        if records is not None:
            problem = group_problem(group, fold(records))
            require(not problem, 11, f"{member.member_id}: {problem}")
        self.check_state(invariants, member)

    def check_state(self, invariants: GroupInvariants, member: CheckedMember) -> None:
        """The state of a member is that of the committed log, up to the same entry, byte for byte (11)."""
        group, name = member.ledger.group, member.member_id
        if group is None or name in self.spoiled or isinstance(invariants, ApartInvariants):
            return
        folded = self._folds.get(name)
        if folded is None or folded.state.index > group.state.index:
            folded = self._folds[name] = GroupFold(GroupState())
        for index in range(folded.state.index + 1, group.state.index + 1):
            term = invariants.committed.get(index)
            if term is None:
                require(invariants.has_forgotten, 11,
                        f"{name} has the state of {group.state.index}, and {index} is not committed")
                return
            try:
                folded.take(_marks_of(invariants.records[index, term][0]))
            except UnfitEntry as error:
                require(False, 11, f"the committed log: {error}")
            folded.commit(index)
        self.compared += 1
        place = StatePlace(group.state.index, -1, -1, 0)
        is_equal = encode_state(group.state, place) == encode_state(folded.state, place)
        require(is_equal, 11, "" if is_equal else (
            f"{name} has the state {_reported(group.state)}, the log says {_reported(folded.state)}"
        ))

    def answered(self, invariants: GroupInvariants, origin: Origin, first_index: int, count: int) -> None:
        """Numbers of a producer are acknowledged: each is where the committed log has it (11)."""
        if isinstance(invariants, ApartInvariants):
            return
        folded = self._committed
        while self._next <= invariants.last_committed:
            term = invariants.committed.get(self._next)
            if term is None:
                return  # (It may be lost.)
            folded.add(invariants.records[self._next, term][0])
            require(not folded.wrong, 11, f"the committed log: {folded.wrong}")
            self._next += 1
        producer = folded.producers.get(origin.producer)
        numbers = range(origin.sequence, origin.sequence + count)
        if producer is None and origin.producer in folded.forgotten:
            return
        places = [] if producer is None else producer.places
        found = [places[number] if number < len(places) else -1 for number in numbers]
        wanted = [*range(first_index, first_index + count)]
        require(found == wanted, 11,
                f"{origin.producer} heard that {numbers} are at {wanted}, the log has them at {found}")
        self.acknowledged += count

    def look(self, member_id: str, boots: int, node: Node, moments: Moments) -> None:
        """Something happened at a member: a part of a state may have come to it, or a state was taken up."""
        progress, key = node.handlers.group_fetch.progress, (member_id, boots)
        before = self._fetched.get(key, "")
        if progress != before:
            self._fetched[key] = progress
            if "bytes" in progress:
                moments.came(member_id, STATE_PIECE)
            elif not progress:
                moments.came(member_id, STATE_TAKEN)


def _marks_of(record: bytes) -> tuple[Marked, ...]:
    header = decode_header(record)
    if not header.channel or not header.chain_crc:
        return ()
    body = record[ENTRY_HEADER.size :] if header.channel < 0 else b""
    return (Marked(header.index, header.term, header.channel, body=body),)


def _reported(state: GroupState) -> dict[str, object]:
    """All that a state has, for people."""
    names = ("index", "age_ms", "clock_ms", "time", "has_forgotten", "hidden", "producers", "readers")
    return {name: getattr(state, name) for name in names}


def group_problem(group: GroupFold, folded: Folded) -> str:
    """How a state differs from a fold of records; empty: it does not."""
    if folded.wrong:
        return folded.wrong
    for name, one in folded.producers.items():
        last = len(one.places) - 1
        known = group.producer(name)
        if known is None or (known.slot, known.last) != (one.slot, last):
            return f"{name} has the slot {one.slot} and the numbers up to {last}, the state says {known}"
        found = {number: index for run in known.runs for number, index in (
            (run.number + at, run.first_index + at) for at in range(run.entries)
        )}
        wrong = {number: index for number, index in found.items() if one.places[number] != index}
        if wrong or (last >= 0 and last not in found):
            return f"{name} is said to have {wrong}, of {found}"
        if last >= 0 and group.judge(name, last, 1)[:2] != (Known.REPEATED, one.places[last]):
            judged = group.judge(name, last, 1)
            return f"the number {last} of {name} is at {one.places[last]}, the state judges {judged}"
    known_here = {name for name in group.state.producers if group.producer(name) is not None}
    more = known_here - folded.producers.keys()
    return f"it knows {more}, which are forgotten" if more else ""


def stored_problem(
    stored: StoredState, invariants: GroupInvariants, mirror: Mirror, owed_index: int = -1
) -> str:
    """
    How a state in a file differs from the fold of the records up to its entry; empty: it does not.

    @param owed_index: the member has lost entries up to this one, and must get them back: when a process ends
        in a cut for a log that begins anew, the next one finds no log, and a state that does not count.
    """
    place, is_owed = stored.place, mirror.end_index < stored.place.entry_index <= owed_index
    if mirror.lost or place.entry_index < mirror.begin_index - 1:
        return ""
    if not is_owed and place.entry_index > max(mirror.end_index, mirror.begin_index - 1):
        return f"its file is of the entry {place.entry_index}, the log ends at {mirror.end_index}"
    term = place.term if is_owed else mirror.term_of(place.entry_index)
    if term >= 0:
        record = invariants.records.get((place.entry_index, term))
        if record is None:
            return f"its file names {place}, which nobody wrote"
        header = decode_header(record[0])
        at = (header.term, header.pos, header.chain_crc)
        if at != place[1:]:
            return f"its file names {place}, the entry is {at}"
    if is_owed and invariants.committed.get(place.entry_index) != term:
        return ""  # (It was committed, and acknowledged entries are lost since.)
    records = held_records(invariants, mirror, place.entry_index)
    if records is None:
        return ""
    problem = group_problem(GroupFold(stored.state), fold(records))
    return problem and f"its file, of {place.entry_index}: {problem}"
