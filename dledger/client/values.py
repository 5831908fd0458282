# -*- test-case-name: tests.client.test_values -*-
"""
What the client hands to its callers: results, entries, and the two ways in which an append fails.

Rule: an append that may be in the log is never reported as failed. C{AppendFailed} says "certainly
not in the log", C{UnknownOutcome} says "may be, now or later"; there is no third kind.
"""

from __future__ import annotations

from zlib import crc32

import attrs

from dledger.base.errors import DLedgerError
from protocols.wire.errors import WireError
from protocols.wire.ledger.codes import ResponseCode
from protocols.wire.ledger.entry import ENTRY_HEADER, ENTRY_HEADER_SIZE
from protocols.wire.ledger.messages import EntryBatch


@attrs.frozen(kw_only=True)
class Appended:
    """
    Bodies of one call that are committed, with consecutive indexes.

    @ivar index: index of the first one.
    @ivar term: term they were written in.
    @ivar pos: stream offset in bytes of the first one's record; -1 when it is not known (the
        answer names it for the first body of a frame only, and calls of one turn share frames).
    @ivar count: number of entries.
    @ivar offset: which body of the call the first one is, from 0.
    """

    index: int
    term: int
    pos: int = -1
    count: int = 1
    offset: int = 0

    @property
    def last_index(self) -> int:
        """Index of the last one, inclusive."""
        return self.index + self.count - 1


class AppendError(DLedgerError):
    """
    A call of which not every body was acknowledged.

    @ivar appended: what was acknowledged all the same (only calls with many bodies).
    @ivar failed: number of bodies that are certainly not in the log.
    @ivar unknown: number of bodies that may be in the log, now or later.
    """

    def __init__(
        self,
        code: ResponseCode,
        *,
        appended: tuple[Appended, ...] = (),
        failed: int = 0,
        unknown: int = 0,
        **facts: object,
    ) -> None:
        super().__init__(code, **facts)
        self.appended = appended
        self.failed = failed
        self.unknown = unknown


class AppendFailed(AppendError):
    """What was not acknowledged is certainly not in the log: appending it again is safe."""


class UnknownOutcome(AppendError):
    """
    Something of the call may be in the log, now or later: appending it again may append it twice.

    Never retried by the client. Who must know reads the log.
    """


@attrs.frozen(kw_only=True)
class Entry:
    """
    A committed entry.

    @ivar pos: stream offset of its record in bytes.
    """

    index: int
    term: int
    pos: int
    body: bytes


@attrs.frozen(kw_only=True)
class MemberInfo:
    """
    What one member says of itself on its log port, or why it does not.

    @ivar role: C{leader}, C{follower}, C{candidate}; empty if it did not say (Java).
    @ivar term: -1 if it did not say.
    @ivar begin_index, end_index, committed_index: -2 if it did not say.
    @ivar leader_id: whom it takes for the leader.
    @ivar wire_version: native wire version; 0 for a Java member.
    @ivar problem: why it did not answer; empty if it did.
    """

    member_id: str
    address: str
    role: str = ""
    term: int = -1
    begin_index: int = -2
    end_index: int = -2
    committed_index: int = -2
    leader_id: str | None = None
    wire_version: int = 0
    problem: str = ""


def entries_of(batch: EntryBatch) -> list[Entry]:
    """
    The entries of a batch, with every recorded CRC checked.

    @raise WireError: sizes that do not add up, an index out of line, a body that is not what its
        C{bodyCrc} says (0 means "not recorded").
    """
    entries: list[Entry] = []
    records = batch.records
    unpack = ENTRY_HEADER.unpack_from
    offset = 0
    expected = batch.first_index
    left = len(records)
    for _ in range(batch.count):
        if left - offset < ENTRY_HEADER_SIZE:
            raise WireError(f"entry {expected}: {left - offset} of {ENTRY_HEADER_SIZE} header bytes left")
        _magic, size, index, term, pos, _channel, _chain, body_crc, length = unpack(records, offset)
        end = offset + size
        if length < 0 or size != ENTRY_HEADER_SIZE + length or end > left:
            raise WireError(f"entry {expected}: size={size}, body_length={length}, {left - offset} left")
        if index != expected:
            raise WireError(f"entry {expected}: the record says index={index}")
        body = records[offset + ENTRY_HEADER_SIZE : end]
        if body_crc and (crc32(body) ^ body_crc) & 0xFFFFFFFF:
            raise WireError(f"entry {index}: its body does not have the recorded CRC")
        entries.append(Entry(index=index, term=term, pos=pos, body=body))
        offset = end
        expected += 1
    if offset != left:
        raise WireError(f"batch from {batch.first_index}: {left - offset} bytes behind {batch.count} entries")
    return entries
