# -*- test-case-name: tests.wire.test_entry -*-
"""
The check of a batch of records that came from elsewhere.

The store checks positions and checksums, because it knows the record before.
"""

from __future__ import annotations

from protocols.wire.errors import WireError
from protocols.wire.ledger.batches import EntryBatch
from protocols.wire.ledger.bounds import INDEX_MAX, POSITION_MAX, TERM_MAX
from protocols.wire.ledger.entry import ENTRY_HEADER, ENTRY_HEADER_SIZE
from protocols.wire.ledger.runs import RUN_MIN, is_run, run_at, run_view


def check_records(batch: EntryBatch) -> None:
    """
    Check a batch: sizes add up, indexes are consecutive, terms never fall, no number is above its bound.

    @raise WireError: the first disagreement.
    """
    records = batch.records
    length = len(records)
    if batch.count == 1 and length >= ENTRY_HEADER_SIZE:
        _, size, index, term, pos, _, _, _, body_length = ENTRY_HEADER.unpack_from(records)
        if (
            size == length == ENTRY_HEADER_SIZE + body_length and index == batch.first_index
            and term == batch.term and 0 <= index <= INDEX_MAX and 0 <= term <= TERM_MAX
            and pos <= POSITION_MAX
        ):
            return
    check_any_number(batch)


def check_any_number(batch: EntryBatch) -> None:
    """L{check_records}, run by run, and entry by entry between them."""
    records = batch.records
    length = len(records)
    if batch.first_index < 0 or batch.count < 1:
        raise WireError(
            f"batch: first_index={batch.first_index}, count={batch.count}; at least 0 and 1 are needed"
        )
    if batch.count * ENTRY_HEADER_SIZE > length:
        raise WireError(f"batch: {length} bytes are too few for {batch.count} entries")
    offset = done = last_term = 0
    while done < batch.count:
        left, index = batch.count - done, batch.first_index + done
        count, size = run_at(records, offset, left)
        if count and is_run(run_view(records, offset, count, size), count=count, size=size, index=index):
            term = ENTRY_HEADER.unpack_from(records, offset)[3]
            if term < last_term:
                raise WireError(f"entry {index}: term={term}, at least {last_term} is needed here")
            offset, last_term = offset + count * size, term
        else:
            count = min(left, RUN_MIN)
            offset, last_term = _check_each(records, offset, count, index, last_term)
        done += count
    if offset != length:
        raise WireError(f"batch: {length - offset} bytes after its {batch.count} entries")
    if last_term != batch.term:
        raise WireError(f"batch: term={batch.term} but its last entry has {last_term}")
    # Of indexes and terms, which rise, the last ones are the highest; the store knows all further positions.
    pos = ENTRY_HEADER.unpack_from(records, 0)[4]
    if batch.last_index > INDEX_MAX or last_term > TERM_MAX or pos > POSITION_MAX:
        raise WireError(
            f"batch: index={batch.last_index}, term={last_term}, pos={pos}; at most {INDEX_MAX}, {TERM_MAX} "
            f"and {POSITION_MAX} are allowed"
        )


def _check_each(records: bytes, offset: int, count: int, index: int, last_term: int) -> tuple[int, int]:
    """Check C{count} records one by one. @return: the offset after them, and the term of the last one."""
    length = len(records)
    unpack = ENTRY_HEADER.unpack_from
    for _ in range(count):
        if length - offset < ENTRY_HEADER_SIZE:
            raise WireError(f"batch: {length - offset} bytes left of a {ENTRY_HEADER_SIZE}-byte header")
        _, size, found, term, _, _, _, _, body_length = unpack(records, offset)
        offset += size
        if body_length < 0 or size != ENTRY_HEADER_SIZE + body_length or offset > length:
            raise WireError(
                f"entry {found}: size={size}, body_length={body_length}, {length - offset + size} bytes left"
            )
        if found != index:
            raise WireError(f"batch: entry {found} where entry {index} belongs")
        if term < last_term:
            raise WireError(f"entry {found}: term={term}, at least {last_term} is needed here")
        last_term = term
        index += 1
    return offset, last_term
