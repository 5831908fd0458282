# -*- test-case-name: tests.storage.test_marks -*-
"""
Finds the entries that are not plain ones of programs: those of producers, and the log's own
(L{protocols.wire.ledger.own.own_entries}).

Most batches have none: then columns of bytes are compared, and no step of Python is made for each record.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from dledger.values.ledger.group_state import Marked
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
    return _marks_of(tuple(channels), first_index, term, bodies.__getitem__)


def _marks_of(
    channels: tuple[int, ...], first_index: int, term: int, body_of: Callable[[int], bytes]
) -> tuple[Marked, ...]:
    """As L{add_mark} finds them, one after the other. @param body_of: by number."""
    marks: list[Marked] = []
    at, count = 0, len(channels)
    while at < count:
        channel, begin = channels[at], at
        at += 1
        if channel < 0:
            marks.append(Marked(first_index + begin, term, channel, body=body_of(begin)))
        elif channel:
            at = _end_of_run(channels, begin)
            marks.append(Marked(first_index + begin, term, channel, at - begin))
    return tuple(marks)


def _end_of_run(channels: tuple[int, ...], begin: int) -> int:
    """Where those end that follow the producer's entry at C{begin}; few steps, as there may be many."""
    end, count, base = begin + 1, len(channels), channels[begin] & ~DIGITS_MASK
    following = channels[begin] + 1 & DIGITS_MASK
    piece, widest = 1, count
    while end < count:
        size = min(piece, count - end, DIGITS_MASK + 1 - following)
        if channels[end : end + size] == tuple(range(base | following, (base | following) + size)):
            end += size
            following = following + size & DIGITS_MASK
            piece = widest
        elif size == 1:
            break
        else:
            piece = widest = size // 2
    return end


def marks_of_run(view: bytes, count: int, size: int, first_index: int, term: int) -> tuple[Marked, ...]:
    """Those of records of one size, all with a C{chainCrc}. @param view: their bytes, and no others."""
    if not any(any(view[CHANNEL_AT + byte :: size]) for byte in range(4)):
        return ()
    channels = words(count, "i").unpack(column(view, CHANNEL_AT, size))
    return _marks_of(channels, first_index, term,
                     lambda number: view[number * size + ENTRY_HEADER_SIZE : (number + 1) * size])


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
