# -*- test-case-name: tests.storage.test_marks -*-
"""
Finds the entries that are not plain ones of programs: those of producers, and the log's own
(L{protocols.wire.ledger.own.own_entries}).

Most batches have none, and most of the others have those of one producer: then columns of bytes are compared,
and no step of Python is made for each record.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from dledger.ledger.group_state import Marked
from protocols.wire.ledger.batches import EntryBatch
from protocols.wire.ledger.entry import CHANNEL_AT, ENTRY_HEADER, ENTRY_HEADER_SIZE
from protocols.wire.ledger.own.own_entries import CONFIGURATION_CHANNEL, DIGITS_MASK
from protocols.wire.ledger.runs import column, words


def add_mark(marks: list[Marked], index: int, term: int, channel: int, body_of: Callable[[], bytes]) -> None:
    """Note the next entry, whose C{channel} is not 0 and counts. @param body_of: called for the log's own."""
    if channel < 0:
        marks.append(Marked(index, term, channel, body=body_of()))
        return
    last = marks[-1] if marks else None
    if last is not None and last.channel > 0 and last.first_index + last.entries == index and (
        (last.channel ^ channel) <= DIGITS_MASK
        and (last.channel + last.entries) & DIGITS_MASK == channel & DIGITS_MASK
    ):
        marks[-1] = last._replace(entries=last.entries + 1)
    else:
        marks.append(Marked(index, term, channel))


def marks_of_channels(
    channels: Sequence[int], bodies: Sequence[bytes], first_index: int, term: int
) -> tuple[Marked, ...]:
    """Those of entries that a leader is about to write, by their channels."""
    marks: list[Marked] = []
    for number, channel in enumerate(channels):
        if channel:
            add_mark(marks, first_index + number, term, channel,
                     lambda at=number: bodies[at])  # type: ignore[misc]
    return tuple(marks)


def marks_of_run(view: bytes, count: int, size: int, first_index: int, term: int) -> tuple[Marked, ...]:
    """Those of records of one size, all with a C{chainCrc}. @param view: their bytes, and no others."""
    if not any(any(view[CHANNEL_AT + byte :: size]) for byte in range(4)):
        return ()
    found = column(view, CHANNEL_AT, size)
    channels = words(count, "i").unpack(found)
    first = channels[0]
    if first > 0:
        base = first & ~DIGITS_MASK
        expected = [base | (first + number & DIGITS_MASK) for number in range(count)]
        if words(count, "i").pack(*expected) == found:
            return (Marked(first_index, term, first, count),)
    marks: list[Marked] = []
    for number, channel in enumerate(channels):
        if channel:
            at = number * size
            add_mark(marks, first_index + number, term, channel,
                     lambda at=at: view[at + ENTRY_HEADER_SIZE : at + size])  # type: ignore[misc]
    return tuple(marks)


def marks_in(batch: EntryBatch) -> tuple[Marked, ...]:
    """Those of a batch whose sizes are known to add up."""
    marks: list[Marked] = []
    records, at, unpack = batch.records, 0, ENTRY_HEADER.unpack_from
    for _ in range(batch.count):
        _magic, size, index, term, _pos, channel, chain_crc, _crc, _length = unpack(records, at)
        if channel and chain_crc:
            add_mark(marks, index, term, channel,
                     lambda at=at, end=at + size: records[at + ENTRY_HEADER_SIZE : end])  # type: ignore[misc]
        at += size
    return tuple(marks)


def configurations_in(marks: Sequence[Marked]) -> tuple[tuple[int, int, bytes], ...]:
    """Index, term and body of each configuration entry."""
    return tuple((one.first_index, one.term, one.body)
                 for one in marks if one.channel == CONFIGURATION_CHANNEL)
