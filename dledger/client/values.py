# -*- test-case-name: tests.client.test_values,tests.client.test_blocking -*-
"""
Values that the client returns: results, entries, and the two errors of an append.

Rule: an append that may be in the log is never reported as failed. C{AppendFailed} says "certainly
not in the log", C{UnknownOutcome} says "may be, now or later"; there is no third kind.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta

import attrs

from protocols.wire.checksums import crc32
from protocols.wire.errors import WireError
from protocols.wire.ledger.batches import EntryBatch
from protocols.wire.ledger.entry import ENTRY_HEADER, ENTRY_HEADER_SIZE
from protocols.wire.ledger.envelopes import ENVELOPE_MAGIC, KEY_HEADER, decode_envelope
from protocols.wire.ledger.own.own_entries import TIME_CHANNEL, OwnKind, own_kind
from protocols.wire.ledger.own.time_entries import TimeReset, decode_time_entry, shown_time_ms
from protocols.wire.values import value_class

_BEGIN_OF_1970 = datetime(1970, 1, 1, tzinfo=UTC)


@value_class(kw_only=True)
class Appended:
    """
    Committed bodies of one call with consecutive indexes.

    @ivar index: index of the first entry.
    @ivar term: term of the entries.
    @ivar pos: stream offset in bytes of the first entry's record; -1 if not known (an answer
        names it for the first body of a frame only, and calls of one turn share frames). Those of the others
        do not follow from it: a record may begin with the next data file. L{Entry.pos} has that of any entry.
    @ivar count: number of entries.
    @ivar offset: position of the first body in the call, from 0.
    """

    index: int
    term: int
    pos: int = -1
    count: int = 1
    offset: int = 0

    @property
    def last_index(self) -> int:
        """Index of the last entry, inclusive."""
        return self.index + self.count - 1


@attrs.frozen
class LastSequence:
    """
    The last sequence of a producer.

    @ivar sequence: the last one that is committed.
    @ivar index: of its entry, which may have expired.
    """

    sequence: int
    index: int


@attrs.frozen(kw_only=True)
class Entry:
    """
    A committed entry.

    @ivar pos: stream offset in bytes of its record.
    @ivar body: as the program has appended it, without its envelope.
    @ivar channel: 0, or the mark of a producer or of the log itself, see
        L{protocols.wire.ledger.own.own_entries}.
    @ivar kind: that of an entry which readers leave out; None: a program has appended it.
    @ivar time_ms: when the leader wrote it, see L{time}, in milliseconds since 1970; None: not known.
    """

    index: int
    term: int
    pos: int
    body: bytes
    channel: int = 0
    kind: OwnKind | None = None
    time_ms: int | None = None

    @property
    def time(self) -> datetime | None:
        """
        When the leader wrote it, in UTC, by the clock of the leader: the time of the last time entry before
        it; at most that of a later reset. Never earlier than that of an entry before. None: the group has no
        times (C{entry_times_ms}), or a Java leader wrote it, or the time entry has expired.
        """
        return None if self.time_ms is None else _BEGIN_OF_1970 + timedelta(milliseconds=self.time_ms)

    @property
    def is_control(self) -> bool:
        """Whether readers leave it out: it is one of the log's own entries, or a marker of the Spark sink."""
        return self.kind is not None

    @property
    def timestamp(self) -> int | None:
        """Milliseconds since 1970, by the clock of the client that appended it; None: it has no time."""
        return None

    @property
    def when_ms(self) -> int | None:
        """The time by which it is found: C{time_ms}, or C{timestamp} if that is not known."""
        return self.timestamp if self.time_ms is None else self.time_ms

    @property
    def headers(self) -> Mapping[str, bytes]:
        """What its program has appended beside the body, by name; empty without headers."""
        return {}

    @property
    def key(self) -> bytes | None:
        """What the entry is about, as its program says: the header C{key}; None without one."""
        return self.headers.get(KEY_HEADER)


@attrs.frozen(kw_only=True)
class EnvelopedEntry(Entry):
    """An entry with a time or headers, see docs/envelopes.md."""

    timestamp: int | None = None
    headers: Mapping[str, bytes] = attrs.field(factory=dict, hash=False)


@attrs.frozen(kw_only=True)
class MemberInfo:
    """
    A member's status from its log port, or the reason for its absence.

    @ivar role: C{leader}, C{follower}, C{candidate}; empty if not reported (Java).
    @ivar term: term; -1 if not reported.
    @ivar begin_index, end_index, committed_index: indexes; -2 if not reported.
    @ivar leader_id: the member that it considers the leader; None without one.
    @ivar wire_version: native wire version; 0 for a Java member.
    @ivar problem: reason for a missing answer; empty if it answered.
    @ivar health: reason why it answers but does not serve; empty if it serves, or did not say.
    @ivar admin: C{host:port} of its HTTP administration as it says; empty if not reported.
    @ivar configuration: the memberships of its log as METADATA reports them; empty if they never changed.
    @ivar peers: id to C{host:port} of the members of its group as it says; empty if not reported.
    @ivar machine: its state machine as METADATA reports it; empty without one.
    @ivar version: of its software; empty if not reported.
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
    health: str = ""
    admin: str = ""
    configuration: str = ""
    peers: Mapping[str, str] = attrs.Factory(dict)
    machine: str = ""
    version: str = ""


@attrs.frozen(kw_only=True)
class ChainMark:
    """
    What one member holds at an index. C{chainCrc} goes over all entries before it, so members with the same
    one there hold the same entries.

    @ivar index: the same of all members; -1 if no entry is committed that all of them have.
    @ivar term, chain_crc: of its entry there; 0 is "not recorded", Java's.
    @ivar is_leader: whether it leads.
    @ivar problem: why it is not known; empty if it is.
    """

    member_id: str
    index: int = -1
    term: int = -1
    chain_crc: int = 0
    is_leader: bool = False
    problem: str = ""


def diverging(marks: tuple[ChainMark, ...]) -> tuple[str, ...]:
    """
    Ids of the members that hold other entries than the leader; without a leader, than most. Members without a
    mark, or without checksums, are not judged.
    """
    known = [mark for mark in marks if not mark.problem and mark.chain_crc]
    held = [(mark.term, mark.chain_crc) for mark in known]
    if not known:
        return ()
    lead = next((pair for mark, pair in zip(known, held, strict=True) if mark.is_leader), None)
    right = lead or max(held, key=held.count)
    return tuple(mark.member_id for mark, pair in zip(known, held, strict=True) if pair != right)


def entries_of(
    batch: EntryBatch, *, term_before: int = -1, time_before: int | None = None
) -> list[Entry]:
    """
    The entries of a batch, after a check of every recorded C{bodyCrc}.

    @param term_before: of the entry before them; -1: not known.
    @param time_before: its C{time_ms}.
    @raise WireError: the sizes do not add up, an index is not consecutive, or a body does not match its
        C{bodyCrc} (0 means "not recorded").
    """
    entries: list[Entry] = []
    records = batch.records
    unpack, magic = ENTRY_HEADER.unpack_from, ENVELOPE_MAGIC
    offset = 0
    expected = batch.first_index
    left = len(records)
    time_ms = time_before
    for _ in range(batch.count):
        if left - offset < ENTRY_HEADER_SIZE:
            raise WireError(f"entry {expected}: {left - offset} of {ENTRY_HEADER_SIZE} header bytes left")
        _magic, size, index, term, pos, channel, chain_crc, body_crc, length = unpack(records, offset)
        end = offset + size
        if length < 0 or size != ENTRY_HEADER_SIZE + length or end > left:
            raise WireError(f"entry {expected}: size={size}, body_length={length}, {left - offset} left")
        if index != expected:
            raise WireError(f"entry {expected}: the record has index={index}")
        body = records[offset + ENTRY_HEADER_SIZE : end]
        if body_crc and (crc32(body) ^ body_crc) & 0xFFFFFFFF:
            raise WireError(f"entry {index}: its body does not match the recorded CRC")
        kind = own_kind(channel, chain_crc) if channel else None
        # A cheap question first: a body that comes before the magic in order cannot begin with it.
        envelope = None if body < magic or kind is not None else decode_envelope(body)
        if term != term_before:
            time_ms = None
        if channel == TIME_CHANNEL and kind is not None:
            time_ms = _time_from(body)
        term_before = term
        # A Java leader goes on in a term of ours, and notes no times.
        shown_ms = time_ms if chain_crc else None
        if envelope is None:
            entries.append(Entry(
                index=index, term=term, pos=pos, body=body, channel=channel, kind=kind, time_ms=shown_ms
            ))
        else:
            entries.append(EnvelopedEntry(
                index=index, term=term, pos=pos, body=envelope.body, channel=channel,
                timestamp=envelope.time_ms, headers=envelope.headers, time_ms=shown_ms,
            ))
        offset = end
        expected += 1
    if offset != left:
        raise WireError(f"batch from {batch.first_index}: {left - offset} bytes after {batch.count} entries")
    return entries


def entries_after(before: Entry | None, batch: EntryBatch) -> list[Entry]:
    """The entries of a batch, as of L{entries_of}. @param before: the one before them; None: not known."""
    if before is None:
        return entries_of(batch)
    return entries_of(batch, term_before=before.term, time_before=before.time_ms)


def as_shown(entries: list[Entry], resets: Sequence[TimeReset]) -> list[Entry]:
    """The entries with their times as they are shown since these resets (docs/times.md)."""
    if not resets or not entries or entries[0].index >= resets[-1].entry_index:
        return entries
    return [
        entry if entry.time_ms is None else
        attrs.evolve(entry, time_ms=shown_time_ms(entry.index, entry.time_ms, resets)) for entry in entries
    ]


def _time_from(body: bytes) -> int | None:
    """The time that a time entry gives; None: it is damaged, or of a later version."""
    try:
        return decode_time_entry(body).time_ms
    except WireError:
        return None


@attrs.frozen(kw_only=True)
class AppendSummary:
    """
    Result of L{Log.append_many}.

    @ivar count: number of bodies, all of them acknowledged.
    @ivar first_index, last_index: indexes of the first and the last entry; -1 without bodies. Entries
        of other writers may lie between them.
    @ivar seconds: seconds from the first body to the last acknowledgement.
    @ivar runs: the places of the bodies, in order: runs of consecutive indexes, as many as other writers have
        interrupted. C{offset} of a run is the number of bodies before it.
    """

    count: int
    first_index: int
    last_index: int
    seconds: float
    runs: tuple[Appended, ...] = ()

    def index_of(self, number: int) -> int:
        """
        Index of a body's entry.

        @param number: of the body, from 0.
        @raise IndexError: there was no such body.
        """
        if not 0 <= number < self.count:
            raise IndexError(f"body {number} of {self.count}")
        run = self.runs[bisect_right(self.runs, number, key=_offset) - 1]
        return run.index + number - run.offset

    @property
    def rate(self) -> float:
        """Acknowledged entries per second."""
        return self.count / self.seconds if self.seconds > 0 else 0.0


class AppendInterrupted(KeyboardInterrupt):
    """
    Ctrl-C in L{Log.append_many}.

    @ivar acknowledged: number of acknowledged bodies.
    @ivar unknown: number of bodies without an outcome: each may be in the log, now or later. Both follow the
        outcomes that still come. L{Log.close} ends all: a body that was never sent then counts no more.
    """

    def __init__(
        self, acknowledged: int, unknown: int, latest: Callable[[], tuple[int, int]] | None = None
    ) -> None:
        """@param latest: the present numbers."""
        super().__init__(f"{acknowledged} acknowledged, {unknown} unknown")
        self._latest = latest or (lambda: (acknowledged, unknown))

    @property
    def acknowledged(self) -> int:
        """Number of acknowledged bodies."""
        return self._latest()[0]

    @property
    def unknown(self) -> int:
        """Number of bodies without an outcome."""
        return self._latest()[1]


def _offset(run: Appended) -> int:
    return run.offset
