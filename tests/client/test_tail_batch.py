# -*- test-case-name: tests.client.test_tail_batch -*-
"""A batch has the bodies and indexes of the entries that a tail shows, and makes these entries when asked."""

from __future__ import annotations

import pickle
import random

import attrs
from twisted.internet.defer import CancelledError, Deferred
from twisted.trial.unittest import SynchronousTestCase

from dledger.client.tail_batch import scan
from dledger.client.tails import BatchTail
from dledger.client.values import Entry, entries_after
from protocols.wire.errors import WireError
from protocols.wire.ledger.batches import EntryBatch
from protocols.wire.ledger.entry import ENTRY_HEADER_SIZE, pack_record
from protocols.wire.ledger.envelopes import ENVELOPE_MAGIC, envelope_head
from protocols.wire.ledger.messages import PullRequest
from protocols.wire.ledger.own.own_entries import HIDDEN, TIME_CHANNEL, slot_channels
from protocols.wire.ledger.own.time_entries import encode_time_entry
from protocols.wire.ledger.runs import RUN_MIN
from tests.client.test_tail import TailCase
from tests.wire.marked import marked

#: A body, its term, and its channel.
Row = tuple[bytes, int, int]
TIME: Row = (encode_time_entry(1_700_000_000_000), 3, TIME_CHANNEL)


def batch_of(rows: list[Row], first_index: int = 5) -> EntryBatch:
    """Records of these rows."""
    records, pos, crc = [], 100, 0
    for index, (body, term, channel) in enumerate(rows, first_index):
        record, crc = pack_record(body, index=index, term=term, pos=pos, previous_chain_crc=crc)
        records.append(marked(record, channel))
        pos += len(record)
    return EntryBatch(
        first_index=first_index, count=len(rows), term=rows[-1][1], records=b"".join(records)
    )


def plain(count: int, term: int = 3, body: bytes = b"four") -> list[Row]:
    """Rows of one size that a program has appended."""
    return [(body, term, 0)] * count


BEFORE = Entry(index=4, term=2, pos=50, body=b"before", time_ms=1_600_000_000_000)


class ScanTests(SynchronousTestCase):
    """What is taken out of records is what their entries say."""

    def assertAlike(self, batch: EntryBatch, before: Entry | None, what: object = "") -> None:
        """Bodies, indexes, and what counts for the entries after them; or the same refusal."""
        for control in (False, True):
            try:
                entries = entries_after(before, batch)
            except WireError:
                self.assertRaises(WireError, scan, batch, before, control=control)
                continue
            shown = [entry for entry in entries if control or not entry.is_control]
            found = scan(batch, before, control=control)
            self.assertEqual(found.bodies, [entry.body for entry in shown], what)
            self.assertEqual(list(found.indexes), [entry.index for entry in shown], what)
            last = entries[-1]
            self.assertEqual(
                (found.last.index, found.last.term, found.last.time_ms), (last.index, last.term, last.time_ms)
            )

    def test_all_kinds_of_entries_are_as_entries_show_them(self) -> None:
        """In any order, in runs and between them, after an entry that is known and after none."""
        kinds: list[list[Row]] = [
            plain(1), plain(RUN_MIN), plain(2 * RUN_MIN + 1), plain(3, body=b""), plain(RUN_MIN, body=b""),
            [(bytes(number), 3, 0) for number in range(1, 80)], [TIME], [(b"a marker", 3, HIDDEN + 257)],
            [(b"ours", 3, channel) for channel in slot_channels(1, 200, 80)],
            plain(RUN_MIN, body=bytes(333)), [(b"own, of a later version", 3, -1)],
            plain(RUN_MIN, body=ENVELOPE_MAGIC), plain(RUN_MIN, body=b"\xff" * 9),
            [(envelope_head(7, {"a": b"b"}) + b"inside", 3, 0)],
            plain(RUN_MIN, body=envelope_head(7, {}) + b"inside"),
        ]
        rng = random.Random(8)
        for number in range(150):
            parts = rng.choices(kinds, k=rng.randrange(1, 6))
            rows = [row for part in parts for row in part]
            cut = rng.randrange(len(rows) + 1)
            rows = rows[:cut] + [(body, 4, channel) for body, _, channel in rows[cut:]]
            for before in (None, BEFORE, attrs.evolve(BEFORE, term=3)):
                self.assertAlike(batch_of(rows), before, number)

    def test_each_wrong_byte_has_the_same_verdict(self) -> None:
        """Of a run, of the records around it, and of the bytes after them."""
        rows = [(b"first", 3, 0), *plain(RUN_MIN), (b"last", 3, 0)]
        sound = batch_of(rows)
        size = ENTRY_HEADER_SIZE + 4
        end = len(sound.records)
        places = [*range(53 + size), *range(53 + 30 * size, 53 + 31 * size), *range(end - size, end)]
        for at in places:
            changed = bytearray(sound.records)
            changed[at] ^= 0x41
            self.assertAlike(attrs.evolve(sound, records=bytes(changed)), BEFORE, at)
        for records in (sound.records[:-1], sound.records + b"x", sound.records[:60], b""):
            self.assertRaises(
                WireError, scan, attrs.evolve(sound, records=records), None, control=False
            )

    def test_indexes_of_a_batch_without_own_entries_take_no_memory(self) -> None:
        """They are a range."""
        self.assertEqual(scan(batch_of(plain(200)), None, control=False).indexes, range(5, 205))

    def test_later_time_counts_after_a_run(self) -> None:
        """A run between a time entry and the end does not hide the time."""
        found = scan(batch_of([TIME, *plain(RUN_MIN)]), None, control=False)
        self.assertEqual((found.last.index, found.last.time_ms), (5 + RUN_MIN, 1_700_000_000_000))


class BatchTailTests(TailCase):
    """Batches of a tail, in order."""

    def read_all(self, tail: BatchTail) -> list[tuple[list[int], list[bytes], int]]:
        """All batches up to the end."""
        found: list[tuple[list[int], list[bytes], int]] = []
        while True:
            ready = tail.next_batch()
            self.group.run(0.2)
            batch = self.successResultOf(ready)
            if not batch:
                return found
            self.assertEqual([entry.index for entry in batch], list(batch.indexes))
            self.assertEqual([entry.body for entry in batch[:]], list(batch.bodies))
            self.assertEqual(batch[-1].index, batch.indexes[-1])
            found.append((list(batch.indexes), list(batch.bodies), batch.next_index))

    def test_batches_are_the_entries_of_a_tail(self) -> None:
        """With the place where the next one begins; from an index, and of the last ones."""
        found = self.read_all(self.client.tail_batches(0, False))
        self.assertEqual([index for indexes, _, _ in found for index in indexes], list(range(10)))
        self.assertEqual([body for _, bodies, _ in found for body in bodies], self.group.log)
        self.assertEqual([after for _, _, after in found], [2, 4, 6, 8, 10])
        self.assertEqual(self.read_all(self.client.tail_batches(9, False)), [([9], [b"9"], 10)])
        last = self.read_all(self.client.tail_batches(-3, False))
        self.assertEqual([index for indexes, _, _ in last for index in indexes], [7, 8, 9])

    def test_own_entries_are_left_out_unless_asked_for(self) -> None:
        """Their indexes are missing; a batch of nothing else is not shown."""
        self.group.note_time(1_700_000_000_000)
        self.group.note_time(1_700_000_000_001)
        self.group.note_time(1_700_000_000_002)
        self.group.log += [b"last"]
        found = self.read_all(self.client.tail_batches(8, False))
        self.assertEqual([(indexes, after) for indexes, _, after in found], [([8, 9], 10), ([13], 14)])
        found = self.read_all(self.client.tail_batches(8, False, control=True))
        self.assertEqual([index for indexes, _, _ in found for index in indexes], [8, 9, 10, 11, 12, 13])

    def test_members_without_pull_are_asked_one_by_one(self) -> None:
        """As Java's are; the batch is the same."""
        client = self.group.client(wire="remoting")
        self.addCleanup(client.close)
        found = self.read_all(client.tail_batches(0, False))
        self.assertEqual([body for _, bodies, _ in found for body in bodies], self.group.log)

    def test_loop_over_batches_ends_at_the_end(self) -> None:
        """As one over entries."""
        bodies: list[bytes] = []

        async def read() -> str:
            async for batch in self.client.tail_batches(0, False):
                bodies.extend(batch.bodies)
            return "ended"

        story = Deferred.fromCoroutine(read())
        self.group.run(1.0)
        self.assertEqual(self.successResultOf(story), "ended")
        self.assertEqual(bodies, self.group.log)

    def test_closed_tail_forgets_what_it_has_asked_for(self) -> None:
        """No timer of a question is left, though its member does not answer."""
        tail = self.client.tail_batches(0, follow=True)
        ready = tail.next_batch()
        def holds(asked: object) -> bool:
            return isinstance(asked, PullRequest) and asked.begin_index >= 4

        for member_id in ("n1", "n2"):
            self.group[member_id].holds = holds
        self.group.run(0.2)
        self.successResultOf(ready)
        before = len(self.clock.getDelayedCalls())
        tail.close()
        self.assertLess(len(self.clock.getDelayedCalls()), before)
        self.assertFalse(self.successResultOf(tail.next_batch()))

    def test_a_pause_of_the_program_is_no_time_without_a_member(self) -> None:
        """The time-out of a read begins with the read, so all members may be down for a moment after it."""
        tail = self.client.tail_batches(0, False)
        for first in (0, 2, 4):
            ready = tail.next_batch()
            self.group.run(0.5)
            self.assertEqual(self.successResultOf(ready).indexes[0], first)
        self.clock.advance(60.0)
        for member in self.group.members.values():
            member.is_up = False
            member.lose_connections()
        served = []
        for _ in range(3):  # two of them were there before the pause
            ready = tail.next_batch()
            self.group.run(0.5)
            served.append(ready)
            if not ready.called:
                break
        for member in self.group.members.values():
            member.is_up = True
        self.group.run(5.0)
        self.assertGreater(len(self.successResultOf(served[-1])), 0)

    def test_a_member_that_is_too_late_is_left_for_another(self) -> None:
        """Also if no time is left, as the program has held up the event loop: the others were not asked."""
        tail = self.client.tail_batches(0, False)
        ready = tail.next_batch()
        self.group.run(0.5)
        self.assertEqual(list(self.successResultOf(ready).indexes), [0, 1])
        serving = "n1" if self.pulls("n1") else "n2"
        self.group[serving].is_silent = True
        for first in (2, 4, 6):
            ready = tail.next_batch()
            if not ready.called:
                self.clock.advance(60.0)
                self.group.run(1.0)
            self.assertEqual(self.successResultOf(ready).indexes[0], first)

    def test_cancelling_ends_a_wait_for_a_connection(self) -> None:
        """And the next call goes on."""
        for member in self.group.members.values():
            member.is_silent = True
        tail = self.client.tail_batches(0, follow=True)
        ready = tail.next_batch()
        self.group.run(0.2)
        ready.cancel()
        self.failureResultOf(ready, CancelledError)
        for member in self.group.members.values():
            member.is_silent = False
            member.release(len(member.held))
        ready = tail.next_batch()
        self.group.run(12.0)
        self.assertEqual(list(self.successResultOf(ready).indexes), [0, 1])

    def test_two_calls_at_once_are_refused(self) -> None:
        """One of them would lose its batch."""
        tail = self.client.tail_batches(0, follow=True)
        first, second = tail.next_batch(), tail.next_batch()
        self.failureResultOf(second, RuntimeError)
        self.group.run(0.2)
        self.assertEqual(list(self.successResultOf(first).indexes), [0, 1])
        self.assertEqual(list(self.successResultOf(tail.next_batch()).indexes), [2, 3])

    def test_a_batch_goes_to_another_process(self) -> None:
        """With its entries, though none was asked for."""
        ready = self.client.tail_batches(0, False).next_batch()
        self.group.run(0.2)
        batch = self.successResultOf(ready)
        again = pickle.loads(pickle.dumps(batch))
        self.assertEqual(
            (again.bodies, list(again.indexes), again.next_index, list(again)),
            (list(batch.bodies), [0, 1], 2, list(batch)),
        )

    def test_answer_that_is_lost_before_it_is_wanted_is_no_error(self) -> None:
        """A program that ends its reading there hears of nothing."""
        other = self.client.tail_batches(0, follow=True)
        ready = other.next_batch()
        self.group.run(0.2)
        self.successResultOf(ready)
        for member in self.group.members.values():
            member.lose_connections()
        self.group.run(0.2)
        other.close()
