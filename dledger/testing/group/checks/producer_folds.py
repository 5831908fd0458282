# -*- test-case-name: tests.sim.test_producer_folds -*-
"""
What a member knows of its producers, compared with a fold of the records that it has.

The fold here reads whole records, in their order, and knows nothing of cuts, files and starts. So it says the
same as the member's table only if that survived all of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from dledger.ledger.producers import Known, NotedRun, SequenceTable
from dledger.storage.store.producer_list import PRODUCERS_DECLARATION
from dledger.testing.group.checks.apart import ApartInvariants
from dledger.testing.group.checks.checked_member import CheckedMember
from dledger.testing.group.checks.invariants import GroupInvariants
from dledger.testing.group.checks.mirror import Mirror
from dledger.testing.group.checks.require import require
from protocols.wire.errors import BodyError, WireError
from protocols.wire.fastjson import as_int, as_list, read_object
from protocols.wire.layout import struct_of
from protocols.wire.ledger.entry import ENTRY_HEADER, decode_header
from protocols.wire.ledger.own.producer_entries import decode_producer_entry
from protocols.wire.ledger.producers import PRODUCER_CHANNEL, ProducerRun

PRODUCERS_HEADER_BYTES = struct_of(PRODUCERS_DECLARATION).size


class LastEntry(NamedTuple):
    """The last entry of a producer. @ivar told_at: index of its last producer entry."""

    sequence: int
    entry_index: int
    told_at: int


class _Told(NamedTuple):
    """A producer entry that counts for the entries that come: the only one, as the next one replaces it."""

    at: int
    term: int
    runs: tuple[ProducerRun, ...]

    def owner_of(self, index: int) -> tuple[str, int] | None:
        """The producer and the sequence of an entry."""
        for producer, sequence, distance, entries in self.runs:
            number = index - self.at - distance
            if 0 <= number and (not entries or number < entries):
                return producer, sequence + number
        return None


def fold(records: Iterable[bytes]) -> dict[str, LastEntry]:
    """The last entry of each producer in records that follow each other."""
    last: dict[str, LastEntry] = {}
    told = _Told(-1, -1, ())
    for record in records:
        header = decode_header(record)
        if header.channel == PRODUCER_CHANNEL:
            try:
                told = _Told(header.index, header.term, decode_producer_entry(record[ENTRY_HEADER.size :]))
            except WireError:  # an entry of a reader, or an order to the machines
                told = _Told(-1, -1, ())
        elif header.channel or header.term != told.term:
            told = _Told(-1, -1, ())
        else:
            owner = told.owner_of(header.index)
            if owner is not None:
                last[owner[0]] = LastEntry(owner[1], header.index, told.at)
    return last


def check_producers(invariants: GroupInvariants, member: CheckedMember) -> None:
    """What a member knows of its producers is what its records say (11)."""
    if isinstance(invariants, ApartInvariants):
        return  # A leader that lies may push two entries of one term and index.
    mirror = invariants.mirror(member.member_id)
    problem = producers_problem(member.ledger.producers, mirror, invariants.records)
    require(not problem, 11, f"{member.member_id}: {problem}")


def producers_problem(
    table: SequenceTable | None, mirror: Mirror, records: Mapping[tuple[int, int], tuple[bytes, int]]
) -> str:
    """
    How a table differs from the fold of the records of its member; empty: it does not.

    @param table: None: the member says nothing, as entries are damaged.
    @param records: by index and term: the record, and the term before it.
    """
    if table is None or mirror.lost:
        return ""
    begin, end = mirror.begin_index, mirror.end_index
    last = fold(records[begin + at, term][0] for at, term in enumerate(mirror.terms))
    for name, entry in last.items():
        known, index, _, sequence = table.judge(name, entry.sequence, 1, end)
        if known is Known.REPEATED and (index, sequence) == (entry.entry_index, entry.sequence):
            continue
        later = sum(one.told_at >= entry.told_at for one in last.values()) - 1
        # Some that are announced, and whose entries have not come, count as later, too.
        is_forgotten = later + _announced(table, end) >= table.producers_max
        if known is Known.UNKNOWN_PRODUCER and (is_forgotten or table.gap_end > begin):
            continue
        if known is Known.NEW and is_forgotten:
            continue
        return (f"sequence {entry.sequence} of {name} is at {entry.entry_index}, the table says {known.name} "
                f"at {index}, last {sequence}")
    return ""


def _announced(table: SequenceTable, end: int) -> int:
    return sum(run.first_index > end for run in table.last_runs(1 << 60))


def file_problem(
    content: bytes, mirror: Mirror, records: Mapping[tuple[int, int], tuple[bytes, int]], producers_max: int
) -> str:
    """
    How a file of producers differs from the fold of the records up to its index, and whether a run goes on
    after that: a start reads no producer entry up to there again. Empty: it is right, or damaged.
    """
    begin, end = mirror.begin_index, mirror.end_index
    try:
        told = read_object(content[PRODUCERS_HEADER_BYTES:])
        index, gap_end = as_int(told["index"]), as_int(told.get("gap_end", 0))
        rows = [as_list(row) for row in as_list(told["producers"])]
        runs = [NotedRun(str(row[0]), *map(as_int, row[1:])) for row in rows]
    except (ValueError, KeyError, TypeError, BodyError):
        return ""
    if mirror.lost or not begin <= index <= end:
        return ""
    table = SequenceTable(producers_max, gap_end)
    for run in runs:
        table.note(run)
        needed = run.first_index if run.open_term >= 0 else run.first_index + run.entries - 1
        if needed > index:
            return f"its file, of {index}, has a run of {run.producer} up to {needed}"
    cut = Mirror(begin, mirror.terms[: index + 1 - begin], mirror.ends)
    problem = producers_problem(table, cut, records)
    return problem and f"its file, of {index}: {problem}"
