# -*- test-case-name: tests.base.test_group_state -*-
"""The fold of a group's own state, against a plain model, and rule by rule."""

from __future__ import annotations

import os
import random

from twisted.trial.unittest import SynchronousTestCase

from dledger.storage.files.state_file import StateEncoding, StatePlace, decode_state, encode_state
from dledger.values.ledger import group_state, reader_table
from dledger.values.ledger.group_state import (
    HIDDEN_MAX,
    PRODUCER_BYTES_MAX,
    GroupFold,
    GroupState,
    Known,
    Marked,
    Producer,
    StateCapture,
    UnfitEntry,
    cost_of,
)
from protocols.wire.ledger.own.age_entries import AGE_STEP_MS, encode_age_entry
from protocols.wire.ledger.own.own_entries import (
    AGE_CHANNEL,
    HIDDEN,
    READER_CHANNEL,
    SESSION_CHANNEL,
    STATE_CHANNEL,
    TERM_START_CHANNEL,
    TIME_CHANNEL,
    slot_channels,
)
from protocols.wire.ledger.own.session_entries import Session, encode_session_entry
from protocols.wire.ledger.own.state_entries import StateEntry, StateWord, encode_state_entry
from protocols.wire.ledger.own.time_entries import encode_time_entry
from protocols.wire.ledger.producers import RUNS_MAX
from protocols.wire.ledger.readers import ReaderState, encode_reader_entry

#: Random histories of L{HistoryTests}.
HISTORIES = int(os.environ.get("DLEDGER_GROUP_HISTORIES", "40"))
HOUR_MS = AGE_STEP_MS


class Log:
    """A log of marks, and a fold of it that is cut, committed and restored as a member does."""

    def __init__(self) -> None:
        self.fold = GroupFold(GroupState())
        self.entries: list[Marked] = []  # One for each entry; those of programs have the channel 0.

    @property
    def end(self) -> int:
        """Index of the next entry."""
        return len(self.entries)

    def add(self, *marks: Marked) -> None:
        """Marks of consecutive entries, in one write."""
        self.fold.take(marks)
        for one in marks:
            low = one.channel & 0xFF
            for number in range(one.entries):
                channel = one.channel if one.channel < 0 else one.channel & ~0xFF | (low + number) & 0xFF
                self.entries.append(Marked(one.first_index + number, one.term, channel, body=one.body))

    def plain(self, count: int = 1) -> None:
        """Entries of programs that number nothing."""
        self.entries += [Marked(self.end + number, 1, 0) for number in range(count)]

    def own(self, channel: int, body: bytes = b"") -> int:
        """One of the log's own. @return: its index."""
        self.add(Marked(self.end, 1, channel, body=body))
        return self.end - 1

    def begin(self, *names: str) -> None:
        """A session of each."""
        slots = self.fold.free_slots(len(names))
        self.own(SESSION_CHANNEL, encode_session_entry(map(Session, slots, names)))

    def number(self, name: str, count: int = 1, hidden: bool = False) -> int:
        """The next entries of a producer. @return: the index of the first."""
        producer = self.fold.producer(name)
        assert producer is not None
        channel = slot_channels(producer.slot, producer.last + 1, 1)[0] | (HIDDEN if hidden else 0)
        self.add(Marked(self.end, 1, channel, count))
        return self.end - count

    def age(self, clock_ms: int, limit_ms: int = 2 * HOUR_MS) -> None:
        """An age entry."""
        self.own(AGE_CHANNEL, encode_age_entry(clock_ms, limit_ms))

    def cut(self, first_gone: int) -> None:
        """The entries from there on are gone."""
        self.fold.cut(first_gone)
        del self.entries[first_gone:]

    def again(self, committed_index: int) -> GroupState:
        """The state after that entry, folded entry by entry."""
        fold = GroupFold(GroupState())
        fold.take([one for one in self.entries[: committed_index + 1] if one.channel])
        fold.commit(committed_index)
        return fold.state


def digest(state: GroupState) -> bytes:
    """All that a state has."""
    return encode_state(state, StatePlace(state.index, 0, 0, 0))


class BeginAnewTests(SynchronousTestCase):
    """An entry from which on the state is empty."""

    def setUp(self) -> None:
        self.log = Log()
        self.log.begin("p", "q")
        self.log.number("p", 3)
        self.log.age(1_000_000)
        self.log.fold.commit(self.log.end - 1)

    def test_nobody_is_certainly_new(self) -> None:
        """From its write on: the id may begin again, and a number in the middle may have been forgotten."""
        self.log.own(STATE_CHANNEL, encode_state_entry(StateEntry(StateWord.BEGIN_ANEW)))
        fold = self.log.fold
        self.assertIs(fold.judge("p", 3, 1).known, Known.FORGOTTEN_PRODUCER)
        self.assertIs(fold.judge("p", 0, 1).known, Known.NEW)
        self.assertEqual(fold.free_slots(1), [3])
        self.log.begin("p")
        self.log.number("p", 2)
        fold.commit(self.log.end - 1)
        self.assertEqual(set(fold.state.producers), {"p"})
        self.assertEqual(fold.judge("p", 1, 1)[:2], (Known.REPEATED, self.log.end - 1))

    def test_a_cut_takes_it_back(self) -> None:
        """As any entry that is not committed."""
        before = digest(self.log.fold.state)
        self.log.own(STATE_CHANNEL, encode_state_entry(StateEntry(StateWord.BEGIN_ANEW)))
        self.log.cut(self.log.end - 1)
        self.assertEqual(self.log.fold.judge("p", 2, 1).known, Known.REPEATED)
        self.assertEqual(digest(self.log.fold.state), before)

    def test_it_is_equal_at_members_that_knew_nothing(self) -> None:
        """The entries before do not count, and neither do those that were hidden."""
        self.log.own(TERM_START_CHANNEL)
        index = self.log.own(STATE_CHANNEL, encode_state_entry(StateEntry(StateWord.BEGIN_ANEW)))
        self.log.begin("r")
        self.log.number("r", 2)
        self.log.fold.commit(self.log.end - 1)
        fold = GroupFold(GroupState())
        fold.state.index, fold.state.has_forgotten = index - 1, True
        fold.take([one for one in self.log.entries[index:] if one.channel])
        fold.commit(self.log.end - 1)
        self.assertEqual(digest(fold.state), digest(self.log.fold.state))

    def test_the_age_begins_anew(self) -> None:
        """A clock that is far from the last one makes no producer older."""
        self.log.own(STATE_CHANNEL, encode_state_entry(StateEntry(StateWord.BEGIN_ANEW)))
        self.log.begin("r")
        self.log.age(1_000_000 + 1000 * HOUR_MS)
        self.assertIsNotNone(self.log.fold.producer("r"))
        self.assertEqual(self.log.fold.clock_ms, 1_000_000 + 1000 * HOUR_MS)

    def test_a_malformed_one_is_refused(self) -> None:
        """It must not be an order that others understand."""
        self.assertRaises(UnfitEntry, self.log.own, STATE_CHANNEL, b"anew")


class CaptureTests(SynchronousTestCase):
    """A state as it was, while the state goes on."""

    def bytes_of(self, capture: StateCapture) -> bytes:
        """All that a capture has."""
        return b"".join(StateEncoding(capture, StatePlace(capture.index, 0, 0, 0)).run())

    def test_a_capture_does_not_change(self) -> None:
        """Whatever is appended, begun or forgotten after it, in its pages and in others."""
        log = Log()
        log.begin(*(f"p{number}" for number in range(600)))
        log.number("p5", 3)
        log.fold.commit(log.end - 1)
        before = digest(log.fold.state)
        capture = log.fold.state.capture()
        log.number("p5", 2)
        log.number("p599")
        log.begin("q")
        log.age(0)
        for hour in range(1, 3):
            log.age(hour * HOUR_MS)
        log.fold.commit(log.end - 1)
        self.assertEqual(self.bytes_of(capture), before)
        self.assertFalse(log.fold.state.has_producers)

    def test_equal_states_have_equal_bytes(self) -> None:
        """In whatever order the producers came."""
        found = [Producer(f"p{number}", number + 1, 0) for number in range(300)]
        states = [GroupState(), GroupState()]
        states[0].restored(found, [])
        states[1].restored(reversed(found), [])
        self.assertEqual(digest(states[0]), digest(states[1]))

    def test_a_capture_copies_no_producer(self) -> None:
        """And the first change after it copies one page of them."""
        state = GroupState()
        state.restored((Producer(f"p{number}", number + 1, 0) for number in range(5000)), [])
        capture = state.capture()
        producer = state.producer("p700")
        assert producer is not None
        state.put(producer.wrote(3, 1, 0))
        state.put(producer.wrote(3, 2, 0))
        pages = state.capture().pages
        self.assertEqual(sum(one is not pages[number] for number, one in capture.pages.items()), 1)
        self.assertLessEqual(max(map(len, pages.values())), 256)


class LogCase(SynchronousTestCase):
    """An empty log."""

    def setUp(self) -> None:
        self.log = Log()

    def known(self, name: str, number: int, count: int = 1) -> Known:
        """What the log says about an append."""
        return self.log.fold.judge(name, number, count).known


class ProducerTests(LogCase):
    """Numbers of producers."""

    def test_each_number_is_taken_once(self) -> None:
        """The next one is new, one that is there is repeated with its place, one beyond the next is a gap."""
        self.assertIs(self.known("p", 0), Known.NEW)
        self.log.begin("p")
        self.log.number("p", 3)
        self.assertEqual(self.log.fold.judge("p", 1, 5), (Known.REPEATED, 2, 2, 2))
        self.assertEqual([self.known("p", number) for number in (2, 3, 4)],
                         [Known.REPEATED, Known.NEW, Known.GAP])

    def test_producers_interleave(self) -> None:
        """Each entry is its slot's next number, and entries of nobody shift none."""
        self.log.begin("p", "q")
        for _ in range(3):
            self.log.plain()
            self.log.number("p", 2)
            self.log.number("q")
        self.assertEqual(self.log.fold.judge("p", 2, 9), (Known.REPEATED, 6, 2, 5))
        self.assertEqual(self.log.fold.judge("q", 1, 9), (Known.REPEATED, 8, 1, 2))

    def test_old_runs_have_no_place(self) -> None:
        """Of a producer the last runs are remembered: older numbers are known, and their places are not."""
        self.log.begin("p")
        for _ in range(RUNS_MAX + 1):
            self.log.number("p")
            self.log.plain()
        self.assertIs(self.known("p", 0), Known.FORGOTTEN)
        self.assertIs(self.known("p", 1), Known.REPEATED)

    def test_what_does_not_fit_is_refused_whole(self) -> None:
        """A write with an entry that does not follow changes nothing."""
        self.log.begin("p")
        self.log.number("p")
        (slot,) = {one.slot for one in [self.log.fold.producer("p")] if one is not None}
        right = Marked(self.log.end, 1, slot_channels(slot, 1, 1)[0])
        session = encode_session_entry([Session(slot + 1, "p")])
        for wrong in (
            Marked(self.log.end + 1, 1, slot_channels(slot, 3, 1)[0]),
            Marked(self.log.end + 1, 1, slot_channels(slot + 1, 0, 1)[0]),
            Marked(self.log.end + 1, 1, SESSION_CHANNEL, body=session),
            Marked(self.log.end + 1, 1, SESSION_CHANNEL, body=encode_session_entry([Session(slot, "q")])),
            Marked(self.log.end + 1, 1, SESSION_CHANNEL,
                   body=encode_session_entry([Session(7, "a"), Session(7, "b")])),
            Marked(self.log.end + 1, 1, SESSION_CHANNEL,
                   body=encode_session_entry([Session(7, "a"), Session(8, "a")])),
            Marked(self.log.end + 1, 1, SESSION_CHANNEL, body=session[:-1]),
            Marked(self.log.end + 1, 1, -1),
        ):
            error = self.assertRaises(UnfitEntry, self.log.fold.take, [right, wrong])
            self.assertIn(f"entry {self.log.end + 1}", str(error))
            self.assertIs(self.known("p", 1), Known.NEW, wrong)

    def test_a_cut_takes_numbers_back(self) -> None:
        """Also in the middle of a run, and a session."""
        self.log.begin("p")
        self.log.number("p", 5)
        self.log.cut(3)
        self.assertIs(self.known("p", 2), Known.NEW)
        self.log.cut(0)
        self.assertIs(self.known("p", 1), Known.UNKNOWN_PRODUCER)

    def test_full_is_a_refusal_and_pushes_nobody_out(self) -> None:
        """A new producer is refused for lack of room; those that are known go on."""
        self.patch(group_state, "PRODUCER_BYTES_MAX", 2 * cost_of("p", ""))
        self.log.begin("p", "q")
        self.log.number("p")
        self.assertEqual([self.known("r", 0), self.known("p", 0), self.known("q", 0)],
                         [Known.FULL, Known.REPEATED, Known.NEW])

    def test_room_for_a_hundred_thousand(self) -> None:
        """With ids of 36 bytes."""
        self.assertGreaterEqual(PRODUCER_BYTES_MAX, 100_000 * cost_of("x" * 36, ""))


class AgeTests(LogCase):
    """Producers are forgotten by age entries alone."""

    def test_the_quiet_ones_go(self) -> None:
        """A producer that appended nothing for the limit is forgotten, whoever else comes."""
        self.log.begin("p", "q")
        self.log.number("p")
        for hour in range(4):
            self.log.age(hour * HOUR_MS)
            self.log.number("q")
        self.assertEqual([self.known("p", 1), self.known("q", 4), self.known("never", 3)],
                         [Known.FORGOTTEN_PRODUCER, Known.NEW, Known.FORGOTTEN_PRODUCER])
        self.assertTrue(self.log.fold.may_have_forgotten("p"))
        self.assertFalse(self.log.fold.may_have_forgotten("q"))

    def test_never_seen_while_nobody_was_forgotten(self) -> None:
        """An unknown producer is one that the log has never had, as long as nobody was forgotten."""
        self.log.begin("p")
        self.log.age(0)
        self.log.age(HOUR_MS)
        self.assertIs(self.known("q", 5), Known.UNKNOWN_PRODUCER)

    def test_one_entry_counts_an_hour_at_most(self) -> None:
        """
        A clock that jumps ahead makes nobody older than an hour. Clocks that have not come as far make nobody
        older or younger.
        """
        self.log.begin("p")
        self.log.age(0)
        for clock_ms in (1000 * HOUR_MS, 0, HOUR_MS, 999 * HOUR_MS):
            self.log.age(clock_ms)
            self.assertIsNotNone(self.log.fold.producer("p"))
        self.log.age(1001 * HOUR_MS)
        self.assertIs(self.known("p", 5), Known.FORGOTTEN_PRODUCER)

    def test_a_slot_is_free_again(self) -> None:
        """The slot of a producer that was forgotten may be another one's."""
        self.log.begin("p")
        for hour in range(3):
            self.log.age(hour * HOUR_MS)
        self.log.own(SESSION_CHANNEL, encode_session_entry([Session(1, "q")]))
        self.log.number("q")
        self.assertIs(self.known("q", 0), Known.REPEATED)

    def test_room_comes_back(self) -> None:
        """What was forgotten takes no room."""
        self.patch(group_state, "PRODUCER_BYTES_MAX", cost_of("p", ""))
        self.log.begin("p")
        self.assertIs(self.known("q", 0), Known.FULL)
        for hour in range(3):
            self.log.age(hour * HOUR_MS)
        self.assertIs(self.known("q", 0), Known.NEW)


    def test_bytes_of_each_owner(self) -> None:
        """A cut gives them back, a commit and a start keep them, age takes them."""
        fold, cost = self.log.fold, cost_of("p", "bob")

        def held(fold: GroupFold) -> tuple[int, int]:
            verdicts = []
            for room in range(4):
                self.patch(group_state, "SHARE_BYTES_MAX", room * cost)
                verdicts.append(fold.judge("z", 0, 1, "bob").known)
            return verdicts.count(Known.SHARE_FULL) - 1, fold.state.held_bytes("bob") // cost

        for slot, name in enumerate("pqr", 1):
            self.log.own(SESSION_CHANNEL, encode_session_entry([Session(slot, name, "bob")]))
        self.assertEqual(held(fold), (3, 0))
        self.log.cut(2)
        fold.commit(0)
        self.assertEqual(held(fold), (2, 1))
        fold.commit(1)
        for one in (fold.state, decode_state(digest(fold.state)).state):
            self.assertEqual(held(GroupFold(one)), (2, 2))
        for hour in range(3):
            self.log.age(hour * HOUR_MS)
        self.assertEqual(held(fold), (0, 2))
        fold.commit(self.log.end - 1)
        self.assertEqual(held(fold), (0, 0))


class ReaderTests(LogCase):
    """Readers, and what counts as their lag."""

    def decide(self, name: str, previous: int, next_index: int) -> int:
        """A reader entry. @return: its index."""
        return self.log.own(READER_CHANNEL, encode_reader_entry(ReaderState(name, previous, next_index)))

    def test_of_two_decisions_the_first_counts(self) -> None:
        """Both were made from one state."""
        first = self.decide("r", -1, 0)
        second = self.decide("r", first, 7)
        self.decide("r", first, 9)
        self.log.fold.commit(self.log.end - 1)
        known = self.log.fold.state.readers["r"]
        self.assertEqual((known.entry_index, known.state.next_index), (second, 7))

    def test_a_forgotten_reader_stays_forgotten(self) -> None:
        """A decision from before brings none back, not even one that nobody remembers any more."""
        cost = reader_table.reader_bytes(ReaderState("r", -1, 0))
        self.patch(reader_table, "FORGOTTEN_BYTES_MAX", 2 * cost)
        first = self.decide("r", -1, 0)
        for name, previous in (("r", first), ("s", -1), ("t", -1)):
            state = ReaderState(name, previous, 0, is_forgotten=True)
            self.log.own(READER_CHANNEL, encode_reader_entry(state))
            self.decide("r", first, 9)
            self.log.fold.commit(self.log.end - 1)
            known = self.log.fold.state.readers.get("r")
            self.assertTrue(known is None or known.state.is_forgotten)
        self.assertIsNone(known)

    def test_lag_counts_entries_of_programs(self) -> None:
        """After many entries of the log's own, and after a start, a reader that has read all has no lag."""
        before = self.decide("r", -1, 0)
        for _ in range(group_state.HIDDEN_MAX + 10):
            self.log.plain()
            before = self.decide("r", before, self.log.end)
            self.log.fold.commit(self.log.end - 1)
        state = self.log.fold.state
        self.assertEqual(state.lag(state.readers["r"]), 0)
        self.log.plain(3)
        self.log.own(TERM_START_CHANNEL)
        self.log.fold.commit(self.log.end - 1)
        for one in (state, decode_state(digest(state)).state):
            self.assertEqual(one.lag(one.readers["r"]), 3)


    def test_many_commits_behind_all_entries_are_no_lag(self) -> None:
        """A reader that has done all that was there, entry by entry: there is nothing to read, and no lag."""
        self.log.plain(group_state.HIDDEN_MAX + 10)
        before = self.decide("r", -1, 0)
        for done in range(group_state.HIDDEN_MAX + 10):
            before = self.decide("r", before, done + 1)
        self.log.fold.commit(self.log.end - 1)
        state = self.log.fold.state
        for one in (state, decode_state(digest(state)).state):
            self.assertEqual(one.lag(one.readers["r"]), 0)
            self.assertFalse(one.has_entries(group_state.HIDDEN_MAX + 10))
            self.assertTrue(one.has_entries(group_state.HIDDEN_MAX + 9))


    def test_shares(self) -> None:
        """A share ends after its last entry of a program, or after all; without any, at once."""
        before = self.decide("r", -1, 0)  # entry 0
        self.log.plain(2)
        for done in (1, 2):
            before = self.decide("r", before, done)
        self.log.plain(3)
        self.decide("r", before, 3)  # entry 8
        self.log.fold.commit(self.log.end - 1)
        state = self.log.fold.state
        for begin, count, end in (
            (0, 1, 2), (0, 2, 3), (0, 3, 6), (2, 2, 6), (3, 1, 6), (5, 3, 8), (5, 4, 9), (8, 1, 8),
        ):
            self.assertEqual(state.share_end(begin, count), end, (begin, count))


class HiddenTests(LogCase):
    """The places of hidden entries."""

    def test_a_start_changes_nothing(self) -> None:
        """Also with more of them than are remembered one by one."""
        for _ in range(HIDDEN_MAX + 400):
            self.log.plain()
            self.log.own(TERM_START_CHANNEL)
        self.log.fold.commit(self.log.end - 1)
        state = decode_state(digest(self.log.fold.state)).state
        more = [Marked(index, 1, TERM_START_CHANNEL) for index in range(self.log.end, self.log.end + 300)]
        reader = encode_reader_entry(ReaderState("r", -1, 9))
        more.append(Marked(self.log.end + 300, 1, READER_CHANNEL, body=reader))
        restarted = GroupFold(state)
        for fold in (self.log.fold, restarted):
            fold.take(more)
            fold.commit(more[-1].first_index)
        self.assertEqual(digest(restarted.state), digest(self.log.fold.state))


class HistoryTests(SynchronousTestCase):
    """Random histories of members: what is known is what a fold of the whole log says."""

    def test_histories(self) -> None:
        """Writes, cuts, commits and states that were stored, in any order; C{DLEDGER_GROUP_HISTORIES}."""
        for seed in range(HISTORIES):
            rng = random.Random(seed)
            log, names, committed = Log(), [f"p{number}" for number in range(rng.randrange(1, 6))], -1
            clock_ms, readers = 0, dict[str, int]()
            for _ in range(rng.randrange(5, 60)):
                step = rng.random()
                name = rng.choice(names)
                if step < 0.35:
                    if log.fold.producer(name) is None:
                        log.begin(name)
                    log.number(name, rng.choice((1, 1, 2, 300)), hidden=rng.random() < 0.1)
                elif step < 0.5:
                    log.plain(rng.randrange(1, 4))
                elif step < 0.6:
                    clock_ms += rng.choice((0, HOUR_MS, -HOUR_MS, 50 * HOUR_MS))
                    log.age(max(clock_ms, 0), 3 * HOUR_MS)
                elif step < 0.65:
                    log.own(TIME_CHANNEL, encode_time_entry(rng.randrange(10)))
                elif step < 0.75:
                    state = ReaderState(name, readers.get(name, -1), rng.randrange(log.end + 1))
                    readers[name] = log.own(READER_CHANNEL, encode_reader_entry(state))
                elif step < 0.85:
                    log.cut(rng.randrange(committed + 1, log.end + 1))
                    readers = {one: index for one, index in readers.items() if index < log.end}
                else:
                    committed = rng.randrange(committed, log.end) if log.end else -1
                    log.fold.commit(committed)
                    self.assertEqual(digest(log.fold.state), digest(log.again(committed)), seed)
                    if rng.random() < 0.5:
                        fold = GroupFold(decode_state(digest(log.fold.state)).state)
                        fold.take([one for one in log.entries[committed + 1 :] if one.channel])
                        log.fold = fold
                self._check(log, names, seed)

    def _check(self, log: Log, names: list[str], seed: int) -> None:
        """Each number is known at its place, by the log itself."""
        found: dict[str, list[int]] = {}
        slots: dict[int, str] = {}
        fold = GroupFold(GroupState())
        for one in log.entries:
            if not one.channel:
                continue
            fold.take([one])
            slots = {each.slot: name for name in names if (each := fold.producer(name)) is not None}
            found = {name: found.get(name, []) for name in slots.values()}
            if one.channel > 0:
                found[slots[one.channel >> 8 & 0x3FFFFF]].append(one.first_index)
        for name in names:
            producer = log.fold.producer(name)
            self.assertEqual(None if producer is None else producer.last + 1,
                             len(found[name]) if name in found else None, seed)
            for number, index in enumerate(found.get(name, ())):
                known, first, _, _ = log.fold.judge(name, number, 1)
                if known is not Known.FORGOTTEN:
                    self.assertEqual((known, first), (Known.REPEATED, index), seed)
