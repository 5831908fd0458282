# -*- test-case-name: tests.base.test_group_state -*-
"""
What a group knows beside its entries: its producers, its readers, the time of its last entries. It is a fold
of the entries whose C{channel} is not 0 (L{protocols.wire.ledger.own.own_entries}), so every member has the
same at the same entry.

L{GroupState} is that of a committed entry. L{GroupFold} has it, and on top the entries after it that are not
committed: a leader judges by both, a cut takes back the latter.

Rule 1: of a producer the log takes the number after its last one alone. So of all attempts to append a body
one log has one at most: a leader that judges by its own log finds every earlier attempt that its log has.
Rule 2: an entry that does not fit is refused before it is written: one of a slot without a session, one whose
digits are not those of the next number, a second session of a slot or of a producer, an own entry of a kind
that this program does not know. A fold that left one out would shift all numbers after it.
Rule 3: a reader entry counts only if it was made from the state of its reader that counts now: it names the
entry of that. So of two decisions that were made from one state, the second one in the log is void, whoever
made it. One that finds no room (L{dledger.values.ledger.reader_table}) is void, too.
Rule 4: producers are forgotten by age entries alone, and by no other producer. Those of one owner have a
share of the room, which follows from the entries, so each leader judges alike. (An operator can let the state
begin anew: then it is empty from that entry on, and no producer is certainly new.)

Values are replaced, never changed, and producers are kept in pages by slot: L{GroupState.capture} takes the
pages, and a page is copied before it changes for the first time after that. So neither depends on the number
of producers, and a state becomes bytes a page at a time, in any thread.

Source: Raft thesis, 6.3.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections import deque
from collections.abc import Iterable, Sequence
from enum import Enum, auto
from typing import NamedTuple

import attrs

from dledger.values.ledger.reader_table import KnownReader, ReaderTable, Room
from protocols.wire.errors import WireError
from protocols.wire.ledger.own.age_entries import AGE_STEP_MS, AgeEntry, decode_age_entry
from protocols.wire.ledger.own.own_entries import (
    AGE_CHANNEL,
    DIGITS_MASK,
    HIDDEN,
    OWN_KINDS,
    READER_CHANNEL,
    SESSION_CHANNEL,
    SLOT_MAX,
    STATE_CHANNEL,
    TIME_CHANNEL,
    slot_of,
)
from protocols.wire.ledger.own.session_entries import Session, decode_session_entry
from protocols.wire.ledger.own.state_entries import StateEntry, StateWord, decode_state_entry
from protocols.wire.ledger.own.time_entries import TimeNote, TimeReset, decode_time_entry
from protocols.wire.ledger.owners import may_use
from protocols.wire.ledger.producers import NUMBERED_RUN, RUNS_MAX
from protocols.wire.ledger.readers import ReaderState, decode_reader_entry

#: Bytes that all producers together may take: each counts with its id, its owner and this much more.
PRODUCER_BYTES_MAX, PRODUCER_BYTES = 16 * 1024 * 1024, 96
#: Those of one owner, so that one client does not shut all others out.
SHARE_BYTES_MAX = PRODUCER_BYTES_MAX // 2
#: Runs of hidden entries that are remembered, so that these do not count as lag.
HIDDEN_MAX = 4096
#: Producers in a page at most, as a power of two.
_PAGE_SHIFT = 8
_RUN_BYTES = NUMBERED_RUN.size


class UnfitEntry(Exception):
    """An entry does not follow from the entries before it; the reason says which, and what to do."""


class Marked(NamedTuple):
    """
    Entries of one C{channel} that follow each other in the log: one of the log's own, or some of one
    producer.

    @ivar channel: of the first one. Those of a producer have digits that follow each other.
    @ivar body: of one of the log's own.
    """

    first_index: int
    term: int
    channel: int
    entries: int = 1
    body: bytes = b""


class NumberedRun(NamedTuple):
    """
    Entries of a producer that follow each other in the log. @ivar number, first_index: of the first one.
    """

    number: int
    first_index: int
    entries: int

    @property
    def end_index(self) -> int:
        """After the last one."""
        return self.first_index + self.entries


class Producer(NamedTuple):
    """
    A producer.

    @ivar last: the last of its numbers that the log has; -1: none yet.
    @ivar used_ms: the age of the group at its last entry.
    @ivar run_bytes: C{runs} as the file has them: at most L{RUNS_MAX} objects more for each producer cost
        seconds where there are many.
    @ivar owner: see L{protocols.wire.ledger.owners}.
    """

    name: str
    slot: int
    used_ms: int
    last: int = -1
    run_bytes: bytes = b""
    owner: str = ""

    @property
    def runs(self) -> tuple[NumberedRun, ...]:
        """Its last runs of entries, in order."""
        return tuple(map(NumberedRun._make, NUMBERED_RUN.iter_unpack(self.run_bytes)))

    def wrote(self, index: int, count: int, age_ms: int) -> Producer:
        """With C{count} more entries, from C{index} on."""
        runs = self.run_bytes
        number, first, before = self.last + 1, index, 0
        if runs:
            last = NUMBERED_RUN.unpack_from(runs, len(runs) - _RUN_BYTES)
            if last[1] + last[2] == index:
                number, first, before = last
                runs = runs[:-_RUN_BYTES]
        runs = runs[(1 - RUNS_MAX) * _RUN_BYTES :] + NUMBERED_RUN.pack(number, first, before + count)
        return Producer(self.name, self.slot, age_ms, self.last + count, runs, self.owner)


class NotedTime(NamedTuple):
    """A time entry, and its place. @ivar time_ms, resets: as of L{TimeNote}; each reset has its index."""

    entry_index: int
    term: int
    time_ms: int
    resets: tuple[TimeReset, ...] = ()


class Known(Enum):
    """What the log says about an append."""

    NEW = auto()
    REPEATED = auto()
    GAP = auto()
    FORGOTTEN = auto()
    UNKNOWN_PRODUCER = auto()
    FORGOTTEN_PRODUCER = auto()
    FULL = auto()
    SHARE_FULL = auto()
    FOREIGN = auto()


class Verdict(NamedTuple):
    """
    The answer about an append.

    @ivar first_index, found: REPEATED: index of its first body, and number of its bodies that are known to
        follow each other there.
    @ivar last: of the numbers of the producer; -1: it has none.
    """

    known: Known
    first_index: int = -1
    found: int = 0
    last: int = -1


#: What an entry says, if it changes the state: the log's own one; or a producer as it is after its entries.
_Said = tuple[Session, ...] | ReaderState | AgeEntry | StateEntry | TimeNote | Producer | None


def _said(marked: Marked) -> _Said:
    """@raise UnfitEntry: it is malformed, or of a later version."""
    channel = marked.channel
    try:
        if channel == SESSION_CHANNEL:
            return decode_session_entry(marked.body)
        if channel == READER_CHANNEL:
            return decode_reader_entry(marked.body)
        if channel == TIME_CHANNEL:
            return decode_time_entry(marked.body).at(marked.first_index)
        if channel == AGE_CHANNEL:
            return decode_age_entry(marked.body)
        if channel == STATE_CHANNEL:
            return decode_state_entry(marked.body)
    except WireError as error:
        raise UnfitEntry(f"entry {marked.first_index}: {error}") from None
    if channel not in OWN_KINDS:
        raise UnfitEntry(f"entry {marked.first_index} is of the kind {channel & 0x7FFF_FFFF}, which this "
                         "program does not know: upgrade this member")
    return None


class _Layer:
    """
    A table of producers, over another one or over none.

    Invariant: each producer has one slot, and each slot that is not free has one producer.

    @ivar age_ms, clock_ms: the age of the group, and the highest clock in an age entry; -1: there is none.
    @ivar time: the last time entry.
    @ivar producer_bytes: of all producers, see L{PRODUCER_BYTES_MAX}.
    @ivar has_forgotten: whether a producer was ever forgotten.
    """

    age_ms = 0
    clock_ms = -1
    time: NotedTime | None = None
    producer_bytes = 0
    has_forgotten = False

    def producer(self, name: str) -> Producer | None:
        """The producer of this id."""
        raise NotImplementedError

    def held_bytes(self, owner: str) -> int:
        """Bytes of the producers of one owner."""
        raise NotImplementedError

    def hold(self, owner: str, held_bytes: int) -> None:
        """These are its bytes from now on."""
        raise NotImplementedError

    def in_slot(self, slot: int) -> Producer | None:
        """The producer with this slot."""
        raise NotImplementedError

    def put(self, producer: Producer) -> None:
        """It is so from now on."""
        raise NotImplementedError

    def drop(self, producer: Producer) -> None:
        """It is forgotten."""
        raise NotImplementedError

    def all(self) -> Iterable[Producer]:
        """All producers."""
        raise NotImplementedError

    def begin_anew(self) -> None:
        """
        Nothing is known of the entries before, so what does not follow from those after is not certain. The
        age begins anew, too: producers that begin now are not older by it.
        """
        self.age_ms = 0
        self.clock_ms = -1
        self.time = None
        self.producer_bytes = 0
        self.has_forgotten = True

    def take(self, marked: Marked, said: _Said) -> _Said:
        """
        Take an entry, or some of one producer. @param said: None for a producer that is not known yet.

        @return: C{said}, or the producer as it is after its entries.
        @raise UnfitEntry: they do not fit; nothing has changed.
        """
        channel = marked.channel
        if channel > 0:
            producer = said if isinstance(said, Producer) else self._after(marked)
            self.put(producer)
            return producer
        if channel == TIME_CHANNEL:
            assert isinstance(said, TimeNote)
            self.time = NotedTime(marked.first_index, marked.term, *said)
        elif channel == SESSION_CHANNEL:
            assert type(said) is tuple
            self._bind(marked, said)  # type: ignore[arg-type]
        elif channel == AGE_CHANNEL:
            assert isinstance(said, AgeEntry)
            self._grow_older(said)
        elif channel == STATE_CHANNEL:
            assert isinstance(said, StateEntry)
            if said.word is StateWord.BEGIN_ANEW:
                self.begin_anew()
        return said

    def _after(self, marked: Marked) -> Producer:
        producer = self.in_slot(slot_of(marked.channel))
        if producer is None:
            raise UnfitEntry(f"entry {marked.first_index} is of the slot {slot_of(marked.channel)}, which no "
                             "session entry before it has bound")
        if (producer.last + 1 ^ marked.channel) & DIGITS_MASK:
            raise UnfitEntry(
                f"entry {marked.first_index} of the producer {producer.name!r} ends with the digits "
                f"{marked.channel & DIGITS_MASK}, the number after its last one is {producer.last + 1}"
            )
        return producer.wrote(marked.first_index, marked.entries, self.age_ms)

    def _bind(self, marked: Marked, sessions: tuple[Session, ...]) -> None:
        slots, names = {one.slot for one in sessions}, {one.producer for one in sessions}
        for slot, name, _ in sessions:
            if self.in_slot(slot) is not None or self.producer(name) is not None:
                raise UnfitEntry(f"entry {marked.first_index} begins a session of {name!r} in the slot "
                                 f"{slot}: one of the two has a session")
        if len(slots) < len(sessions) or len(names) < len(sessions):
            raise UnfitEntry(
                f"entry {marked.first_index} begins two sessions of one producer, or in one slot"
            )
        for slot, name, owner in sessions:
            self.put(Producer(name, slot, self.age_ms, owner=owner))
            self._grow(owner, cost_of(name, owner))

    def _grow(self, owner: str, more_bytes: int) -> None:
        self.producer_bytes += more_bytes
        self.hold(owner, self.held_bytes(owner) + more_bytes)

    def _grow_older(self, entry: AgeEntry) -> None:
        if self.clock_ms >= 0:
            self.age_ms += min(max(entry.clock_ms - self.clock_ms, 0), AGE_STEP_MS)
        self.clock_ms = max(self.clock_ms, entry.clock_ms)
        for producer in [one for one in self.all() if one.used_ms + entry.limit_ms <= self.age_ms]:
            self.drop(producer)
            self._grow(producer.owner, -cost_of(producer.name, producer.owner))
            self.has_forgotten = True


def cost_of(name: str, owner: str) -> int:
    """Bytes that a producer counts with."""
    return PRODUCER_BYTES + len(name.encode()) + len(owner.encode())


@attrs.frozen(kw_only=True)
class StateCapture:
    """
    A L{GroupState} as it was at a moment; the fields are those of it.

    @ivar pages: of producers, by slot; none of them changes any more.
    """

    index: int
    age_ms: int
    clock_ms: int
    has_forgotten: bool
    time: NotedTime | None
    hidden: int
    hidden_runs: array[int]
    hidden_counts: array[int]
    producers: int
    pages: dict[int, dict[int, Producer]]
    readers: tuple[KnownReader, ...]


class DigestPlace(NamedTuple):
    """An entry that says: take the digest of the state. @ivar state: as of that entry, with it."""

    entry_index: int
    term: int
    state: StateCapture


class GroupState(_Layer):
    """
    What the entries up to a committed one say.

    Invariant: a page is in C{_captured} if a L{StateCapture} may have it, too.

    @ivar index: of that entry; -1: no entry yet.
    @ivar hidden: number of hidden entries.
    @ivar hidden_runs, hidden_counts: index of the first one of each of the last runs of hidden entries that
        follow each other, and number of hidden entries before it.
    @ivar digest_place: the last one that was not taken yet, see L{take_digest_place}.
    @ivar digest_entry: the last entry with a digest. The file has none of both: they are about it.
    """

    digest_place: DigestPlace | None = None
    digest_entry: StateEntry | None = None

    def __init__(self) -> None:
        self.index = -1
        self._pages: dict[int, dict[int, Producer]] = {}
        self._captured: set[int] = set()
        self._slots: dict[str, int] = {}
        self._held: dict[str, int] = {}
        self.readers = ReaderTable()
        self.hidden = 0
        self.hidden_runs = array("q")
        self.hidden_counts = array("q")

    def restored(self, producers: Iterable[Producer], readers: Iterable[KnownReader]) -> None:
        """The producers and readers are these: it was read from a file."""
        for producer in producers:
            self.put(producer)
            self._grow(producer.owner, cost_of(producer.name, producer.owner))
        for reader in readers:
            self.readers.put(reader)

    @property
    def producers(self) -> dict[str, Producer]:
        """All producers, by id: as long as there are many."""
        return {one.name: one for one in self.all()}

    @property
    def has_producers(self) -> bool:
        """Whether there is one."""
        return bool(self._slots)

    def producer(self, name: str) -> Producer | None:
        slot = self._slots.get(name)
        return None if slot is None else self._pages[slot >> _PAGE_SHIFT][slot]

    def held_bytes(self, owner: str) -> int:
        return self._held.get(owner, 0)

    def hold(self, owner: str, held_bytes: int) -> None:
        if held_bytes:
            self._held[owner] = held_bytes
        else:
            self._held.pop(owner, None)

    def in_slot(self, slot: int) -> Producer | None:
        page = self._pages.get(slot >> _PAGE_SHIFT)
        return None if page is None else page.get(slot)

    def put(self, producer: Producer) -> None:
        slot = producer.slot
        number = slot >> _PAGE_SHIFT
        page = self._pages.get(number)
        if page is None or number in self._captured:
            page = self._fresh_page(number)
        page[slot] = producer
        self._slots[producer.name] = slot

    def drop(self, producer: Producer) -> None:
        number = producer.slot >> _PAGE_SHIFT
        page = self._fresh_page(number) if number in self._captured else self._pages[number]
        del page[producer.slot], self._slots[producer.name]
        if not page:
            del self._pages[number]

    def _fresh_page(self, number: int) -> dict[int, Producer]:
        """A page that no capture has."""
        page = self._pages[number] = self._pages.get(number, {}).copy()
        self._captured.discard(number)
        return page

    def all(self) -> Iterable[Producer]:
        for page in self._pages.values():
            yield from page.values()

    def begin_anew(self) -> None:
        super().begin_anew()
        self._pages = {}
        self._slots = {}
        self._held = {}
        self.readers = ReaderTable()
        self.hidden = 0
        self.hidden_runs = array("q")
        self.hidden_counts = array("q")
        self.digest_place = self.digest_entry = None

    def take(self, marked: Marked, said: _Said) -> _Said:
        said = super().take(marked, said)
        if 0 < marked.channel < HIDDEN:
            return said
        runs, counts = self.hidden_runs, self.hidden_counts
        if not runs or runs[-1] + self.hidden - counts[-1] < marked.first_index:
            runs.append(marked.first_index)
            counts.append(self.hidden)
            del runs[:-HIDDEN_MAX], counts[:-HIDDEN_MAX]  # (So it does not depend on starts.)
        self.hidden += marked.entries
        if isinstance(said, ReaderState):
            self._decided(marked.first_index, said)
        elif isinstance(said, StateEntry) and said.word is StateWord.TAKE_DIGEST:
            self.digest_place = DigestPlace(marked.first_index, marked.term, self.capture())
        elif isinstance(said, StateEntry) and said.word is StateWord.DIGEST:
            self.digest_entry = said
        return said

    def take_digest_place(self) -> DigestPlace | None:
        """The last entry that wants a digest, once. @return: None: there is none, or it was taken."""
        found, self.digest_place = self.digest_place, None
        return found

    def _decided(self, index: int, state: ReaderState) -> None:
        known = self.readers.get(state.name)
        if known is not None and state.previous != known.entry_index:
            return
        if known is None and state.previous >= 0:
            return  # It follows a state that nobody remembers: it was made before that was forgotten.
        if self.readers.room_for(state) is not Room.FREE:
            return  # (The leader has judged by a state in which those before it were not committed.)
        self.readers.put(KnownReader(
            index, with_tokens(state, index), self.hidden_before(state.next_index)
        ))

    def hidden_before(self, index: int) -> int:
        """
        Number of hidden entries before C{index}. Those of runs that are not remembered all count as before
        it, which is too many where it is far back; never where only hidden ones follow.
        """
        runs, counts = self.hidden_runs, self.hidden_counts
        at = bisect_right(runs, index) - 1
        if at < 0:
            return counts[0] if counts else 0
        return min(counts[at] + index - runs[at], counts[at + 1] if at + 1 < len(counts) else self.hidden)

    def lag(self, reader: KnownReader) -> int:
        """Entries of programs that a reader has not done."""
        behind = self.index + 1 - reader.state.next_index
        return max(0, behind - (self.hidden - reader.hidden_before)) if behind > 0 else 0

    def share_end(self, begin: int, count: int) -> int:
        """Index after C{count} entries of programs from C{begin} on, or after all; C{begin} without any."""
        if not self.has_entries(begin):
            return begin
        before, low, high = self.hidden_before(begin), begin + count, self.index + 1
        while low < high:
            middle = (low + high) // 2
            if middle - begin - (self.hidden_before(middle) - before) < count:
                low = middle + 1
            else:
                high = middle
        return high

    def has_entries(self, index: int) -> bool:
        """Whether programs have entries from C{index} on."""
        return self.index + 1 - index > self.hidden - self.hidden_before(index)

    def capture(self) -> StateCapture:
        """It as it is now."""
        self._captured = set(self._pages)
        return StateCapture(
            index=self.index, age_ms=self.age_ms, clock_ms=self.clock_ms, has_forgotten=self.has_forgotten,
            time=self.time, hidden=self.hidden, hidden_runs=self.hidden_runs[:],
            hidden_counts=self.hidden_counts[:], producers=len(self._slots), pages=self._pages.copy(),
            readers=tuple(self.readers.values()),
        )


class _Ahead(_Layer):
    """The entries that are not committed, over those that are."""

    def __init__(self, below: GroupState) -> None:
        self._below = below
        self.age_ms = below.age_ms
        self.clock_ms = below.clock_ms
        self.time = below.time
        self.producer_bytes = below.producer_bytes
        self.has_forgotten = below.has_forgotten
        self._producers: dict[str, Producer | None] = {}
        self._slots: dict[int, Producer | None] = {}
        self._held: dict[str, int] = {}

    def producer(self, name: str) -> Producer | None:
        return self._producers[name] if name in self._producers else self._below.producer(name)

    def held_bytes(self, owner: str) -> int:
        return self._held[owner] if owner in self._held else self._below.held_bytes(owner)

    def hold(self, owner: str, held_bytes: int) -> None:
        self._held[owner] = held_bytes

    def in_slot(self, slot: int) -> Producer | None:
        return self._slots[slot] if slot in self._slots else self._below.in_slot(slot)

    def put(self, producer: Producer) -> None:
        self._producers[producer.name] = self._slots[producer.slot] = producer

    def begin_anew(self) -> None:
        super().begin_anew()
        self._below = GroupState()
        self._producers.clear()
        self._slots.clear()
        self._held.clear()

    def drop(self, producer: Producer) -> None:
        self._producers[producer.name] = self._slots[producer.slot] = None

    def all(self) -> Iterable[Producer]:
        yield from (one for one in self._producers.values() if one is not None)
        yield from (one for one in self._below.all() if one.name not in self._producers)


class GroupFold:
    """
    Invariant: C{state} has the entries up to the last one that was reported as committed, C{_ahead} those of
    C{_tail} besides, which are all that follow it in the log; with each of a producer, the producer as it is
    after it.
    """

    def __init__(self, state: GroupState) -> None:
        self.state = state
        self._tail: deque[tuple[Marked, _Said]] = deque()
        self._ahead = _Ahead(state)
        self._next_slot = 1

    @property
    def time(self) -> NotedTime | None:
        """The last time entry of the log, committed or not."""
        return self._ahead.time

    @property
    def clock_ms(self) -> int:
        """The highest clock in an age entry, committed or not; -1: there is none."""
        return self._ahead.clock_ms

    def take(self, marks: Sequence[Marked]) -> None:
        """
        These entries are about to be written.

        @raise UnfitEntry: one does not fit; nothing has changed.
        """
        taken = 0
        try:
            for marked in marks:
                said = _said(marked) if marked.channel < 0 else None
                self._tail.append((marked, self._ahead.take(marked, said)))
                taken += 1
        except UnfitEntry:
            if taken:
                self.cut(marks[0].first_index)
            raise

    def commit(self, committed_index: int) -> None:
        """The entries up to here are committed."""
        tail = self._tail
        if not tail or tail[0][0].first_index > committed_index:
            if committed_index > self.state.index:
                self.state.index = committed_index
            return
        while tail and tail[0][0].first_index <= committed_index:
            marked, said = tail.popleft()
            rest = marked.first_index + marked.entries - 1 - committed_index
            if rest > 0:
                done = marked.entries - rest
                channel = marked.channel & ~DIGITS_MASK | marked.channel + done & DIGITS_MASK
                tail.appendleft((marked._replace(first_index=committed_index + 1, channel=channel,
                                                 entries=rest), said))
                marked, said = marked._replace(entries=done), None
            self.state.take(marked, said)
        self.state.index = committed_index
        if not tail:
            self._ahead = _Ahead(self.state)

    def cut(self, first_gone: int) -> None:
        """The entries from C{first_gone} on are gone. None of them was committed."""
        kept, self._tail = self._tail, deque()
        self._ahead = _Ahead(self.state)
        for marked, said in kept:
            if marked.first_index < first_gone:
                left = marked._replace(entries=min(marked.entries, first_gone - marked.first_index))
                self._tail.append((left, self._ahead.take(left, None if marked.channel > 0 else said)))

    def producer(self, name: str) -> Producer | None:
        """A producer, with the entries that are not committed."""
        return self._ahead.producer(name)

    def may_have_forgotten(self, name: str) -> bool:
        """Whether entries of a producer that is not known may be in the log all the same."""
        return self._ahead.has_forgotten and self._ahead.producer(name) is None

    def judge(
        self, name: str, number: int, count: int, owner: str = "", begun: tuple[int, int] = (0, 0)
    ) -> Verdict:
        """
        How many of C{count} bodies of a producer the log has.

        @param number: of the first one, 0 or more.
        @param owner: of the bodies.
        @param begun: bytes of the producers that begin in the same write before it: of all, of its owner.
        """
        producer = self._ahead.producer(name)
        if producer is None:
            if number:
                is_sure = not self._ahead.has_forgotten
                return Verdict(Known.UNKNOWN_PRODUCER if is_sure else Known.FORGOTTEN_PRODUCER)
            more = cost_of(name, owner)
            if self._ahead.producer_bytes + begun[0] + more > PRODUCER_BYTES_MAX:
                return Verdict(Known.FULL)
            is_over = self._ahead.held_bytes(owner) + begun[1] + more > SHARE_BYTES_MAX
            return Verdict(Known.SHARE_FULL if is_over else Known.NEW)
        if not may_use(producer.owner, owner):
            return Verdict(Known.FOREIGN)
        last = producer.last
        if number > last:
            return Verdict(Known.NEW if number == last + 1 else Known.GAP, last=last)
        for run in reversed(producer.runs):
            if run.number <= number:
                skipped = number - run.number
                return Verdict(Known.REPEATED, run.first_index + skipped, min(count, run.entries - skipped),
                               last)
        return Verdict(Known.FORGOTTEN, last=last)

    def free_slots(self, count: int) -> list[int]:
        """
        Slots that no producer has.

        @return: C{count} of them; fewer only if all are taken.
        """
        found: list[int] = []
        for _ in range(SLOT_MAX):
            if len(found) == count:
                break
            if self._ahead.in_slot(self._next_slot) is None:
                found.append(self._next_slot)
            self._next_slot = self._next_slot % SLOT_MAX + 1
        return found


def with_tokens(state: ReaderState, index: int) -> ReaderState:
    """A state as the entry at C{index} says it: parts that it gives have its index as their token."""
    return state._replace(parts=tuple(
        part if part.token >= 0 else part._replace(token=index) for part in state.parts
    ))
