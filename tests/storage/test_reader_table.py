# -*- test-case-name: tests.storage.test_reader_table -*-
"""The readers of a ledger: folded while it is written, pushed, cut, opened again, damaged, without power."""

from __future__ import annotations

from random import Random
from unittest import mock

from twisted.trial.unittest import SynchronousTestCase

from dledger.base.disk.memory_disk import MemoryDisk
from dledger.storage.files import reader_table
from dledger.storage.files.reader_table import ReaderTable
from dledger.storage.store import producer_list
from dledger.storage.store.file_store import FileStore
from dledger.testing.world.disk import MemberDied, PowerLoss, ProcessKilled, SimDisk
from protocols.wire.ledger.batches import EntryChunk
from protocols.wire.ledger.readers import READERS_MAX, ReaderPart, ReaderState, encode_reader_entry
from tests.storage.producer_logs import TableCase, config_of
from tests.storage.producer_logs import append as append_of_producer


def state(name: str, previous: int, next_index: int, *, is_forgotten: bool = False) -> ReaderState:
    """One with a part that this entry gives."""
    if is_forgotten:
        return ReaderState(name, previous, 0, is_forgotten=True)
    return ReaderState(name, previous, 1 << 62, (ReaderPart(next_index, 1 << 62, -1, 1000, "p"),))


class FoldTests(SynchronousTestCase):
    """The table alone."""

    def setUp(self) -> None:
        self.table = ReaderTable()

    def test_each_share_has_its_token(self) -> None:
        """A part that an entry gives has its index as token; others keep theirs."""
        self.table.note(5, state("a", -1, 0))
        (part,) = self.table.at(5)["a"].state.parts
        self.assertEqual(part.token, 5)
        self.table.note(6, ReaderState("a", 5, 1 << 62, (part._replace(begin=3),)))
        self.assertEqual(self.table.at(6)["a"].state.parts[0], part._replace(begin=3))

    def test_only_committed_entries_count(self) -> None:
        """An entry counts when it is committed; what is cut before never does."""
        self.table.note(5, state("a", -1, 0))
        self.table.note(6, state("a", 5, 4))
        self.assertEqual(dict(self.table.at(4)), {})
        self.table.cut(6)
        self.table.note(6, state("a", 5, 2))
        self.assertEqual(self.table.at(9)["a"].state.next_index, 2)

    def test_a_void_decision_is_ignored(self) -> None:
        """Of two decisions from one state, the second one is void; so is one that comes again."""
        self.table.note(5, state("a", -1, 0))
        self.table.note(6, state("a", 5, 4))
        self.table.note(7, state("a", 5, 9))
        self.table.note(8, state("a", -1, 9))
        self.assertEqual(self.table.at(8)["a"].index, 6)
        self.table.note(5, state("a", -1, 0))
        self.assertEqual(self.table.at(8)["a"].index, 6)

    def test_a_gap_names_lacking_readers(self) -> None:
        """
        A member that got its log from a later entry on lacks those that are named: what was made from the
        later state counts, whether it knew the reader or not.
        """
        for old in (ReaderTable(), self.table):
            old.note(5, state("a", -1, 0))
            old.at(5)
            for table in (old, ReaderTable()):
                table.note(51, state("a", 40, 7))  # void: that of 45 came first
                table.note(60, state("a", 45, 8))
                table.note(61, state("a", 40, 9))
                self.assertEqual(table.at(61)["a"].index, 60)
                table.note(70, state("a", 60, 12))
                self.assertEqual(table.at(70)["a"].state.next_index, 12)

    def test_a_forgotten_reader_stays_forgotten(self) -> None:
        """A decision from before cannot bring a reader back; a new one can."""
        self.table.note(5, state("a", -1, 0))
        self.table.note(6, state("a", 5, 0, is_forgotten=True))
        self.table.note(7, state("a", 5, 3))
        self.assertTrue(self.table.at(7)["a"].state.is_forgotten)
        self.table.note(8, state("a", 6, 3))
        self.assertFalse(self.table.at(8)["a"].state.is_forgotten)

    def test_traces_are_bounded(self) -> None:
        """The oldest traces of forgotten readers go."""
        for at in range(READERS_MAX + 9):
            self.table.note(at, state(f"r{at}", -1, 0, is_forgotten=True))
        known = self.table.at(9999)
        self.assertEqual(len(known), READERS_MAX)
        self.assertNotIn("r8", known)
        self.assertIn("r9", known)

    def test_entries_of_readers_are_no_lag(self) -> None:
        """Entries of readers are no lag, as far as they are remembered."""
        self.patch(reader_table, "OWN_MAX", 4)
        for at in (5, 6, 7):
            self.table.note(at, state(f"r{at}", -1, 0))
        self.table.at(7)
        self.assertEqual(self.table.lag(0, 9), 7)
        self.assertEqual(self.table.lag(6, 9), 2)
        self.assertEqual(self.table.lag(6, 6), 0)
        self.assertEqual(self.table.lag(11, 9), 0)
        for at in range(8, 20):
            self.table.note(at, state(f"r{at}", -1, 0))
        self.table.at(20)
        self.assertLessEqual(len(self.table._own), 8)

    def test_rows_are_written_and_read(self) -> None:
        """As a file has them; what is after the end of the ledger has gone."""
        self.table.note(5, state("a", -1, 0))
        self.table.note(6, state("b", -1, 0, is_forgotten=True))
        rows = self.table.rows(6)
        self.assertEqual(ReaderTable.of_rows(rows, 6).at(6), self.table.at(6))
        self.assertEqual(set(ReaderTable.of_rows(rows, 5).at(6)), {"a"})
        for wrong in ([[1]], [["x"] * 6], [[1, 2, 3, 4, [], False]], [[1, "a", 3, 4, [[1]], False]], [5], 7):
            with self.assertRaises((ValueError, TypeError)):
                ReaderTable.of_rows(wrong, 6)  # type: ignore[arg-type]


class StoreCase(TableCase):
    """The readers of a store."""

    def setUp(self) -> None:
        super().setUp()
        self.last: dict[str, int] = {}

    def write(self, name: str, next_index: int, term: int = 1) -> int:
        """As a leader does. @return: its index."""
        body = encode_reader_entry(state(name, self.last.get(name, -1), next_index))
        self.store.append_bodies((body,), term, producers_at=0)
        self.last[name] = self.store.ledger_end_index
        return self.store.ledger_end_index

    def known(self, store: FileStore | None = None) -> dict[str, tuple[int, int]]:
        """Name to index of its entry, and next index."""
        store = store or self.store
        assert store.readers is not None
        return {
            name: (one.index, one.state.next_index)
            for name, one in store.readers.at(store.committed_index).items()
        }

    def commit(self) -> None:
        """All that is written."""
        self.store.record_commit(self.store.ledger_end_index)


class StoreTests(StoreCase):
    """A ledger that has readers."""

    def test_reader_entries_are_written(self) -> None:
        """Beside producers, in one log; only what is committed."""
        append_of_producer(self.store, 1, "p", 0)
        first = self.write("a", 0)
        self.commit()
        self.write("a", 3)
        append_of_producer(self.store, 1, "p", 1)
        self.assertEqual(self.known(), {"a": (first, 0)})
        self.commit()
        self.assertEqual(self.known(), {"a": (first + 1, 3)})
        assert self.store.producers is not None
        self.assertEqual(self.store.producers.judge("p", 2, 1, 99).last_sequence, 1)

    def test_readers_survive_a_restart(self) -> None:
        """After a clean stop, and after kill -9."""
        for clean in (True, False):
            self.write("a", 3)
            self.write("b", 1)
            self.commit()
            before = self.known()
            self.reopen(clean=clean)
            self.store.record_commit(self.store.ledger_end_index)
            self.assertEqual(self.known(), before)

    def test_by_the_file(self) -> None:
        """What lies before what recovery looks at; entries after it are folded once more, without harm."""
        self.write("a", 0)
        self.write("a", 2)
        self.commit()
        self.fill(30)
        self.write("b", 5)
        self.commit()
        before = self.known()
        self.reopen()
        with mock.patch("dledger.storage.store.producer_list.ProducerList._fold_from") as fold:
            fold.side_effect = lambda table, readers, times, index: self.store.ledger_end_index + 1
            self.reopen()
        self.assertEqual(self.known(), before)
        self.disk.unlink(self.path)
        self.reopen()
        self.assertEqual(self.known(), before, "all of this ledger is looked at")

    def test_a_damaged_file_is_not_used(self) -> None:
        """It is as good as none: the log counts."""
        self.write("a", 1)
        self.write("a", 2)
        self.commit()
        before = self.known()
        self.reopen()
        self.store.clean_close()
        sound = self.disk.read_file(self.path)
        self.assertIn(b'"readers"', sound)
        for bad in (sound[:-3], b"", sound.replace(b"1000", b"1001")):
            self.disk.write_file(self.path, bad)
            self.store = FileStore.open(config_of(), self.disk)
            self.assertEqual(self.known(), before)
            self.store.clean_close()

    def test_pushed_readers_are_known(self) -> None:
        """A follower that gets records, or chunks of them, has the same readers."""
        for at in range(12):
            self.write("ab"[at % 2], at)
            self.fill(3, 60)
        self.commit()
        for is_chunk in (False, True):
            other = FileStore.open(config_of("n1", store_base_dir=f"/o{is_chunk}"), MemoryDisk())
            chunks = 0
            while other.ledger_end_index < self.store.ledger_end_index:
                first = other.ledger_end_index + 1
                found = self.store.chunk_from(first) if is_chunk else None
                entries = None
                if found is not None and found.first_index == first:
                    entries = self.store.read_chunk(found)
                    chunks += isinstance(entries, EntryChunk)
                other.append_entries(
                    entries or self.store.read_batch(first, max_count=3, max_bytes=10**6)
                )
            other.record_commit(other.ledger_end_index)
            self.assertEqual(self.known(other), self.known())
            self.assertEqual(set(self.known(other)), {"a", "b"})
            self.assertEqual(chunks > 0, is_chunk)

    def test_a_cut_reader_entry_never_counts(self) -> None:
        """A reader entry that a leader cuts never counts."""
        first = self.write("a", 0)
        self.commit()
        kept = self.store.read_batch(first, max_count=1, max_bytes=10**6)
        self.write("a", 5)
        self.store.truncate_to(kept)
        self.fill(1)
        self.commit()
        self.assertEqual(self.known(), {"a": (first, 0)})

    def test_saved_by_flushes(self) -> None:
        """While the ledger grows, a flush writes the file, with what is committed."""
        self.patch(producer_list, "SAVE_EVERY_BYTES", 1000)
        self.write("a", 0)
        self.write("a", 1)
        self.commit()
        self.fill(5)
        job = self.store.prepare_flush()
        assert job is not None
        job.run()
        self.store.finish_flush(job)
        self.assertIn(b'"a"', self.disk.read_file(self.path))

    def test_a_hole_hides_all_readers(self) -> None:
        """While entries are damaged that may report readers, nothing is known."""
        self.write("a", 1)
        self.commit()
        self.fill(3)
        position = self.store.position_of(0)
        self.store.clean_close()
        path = next(one for one in self.disk.files if "/data/" in one)
        raw = bytearray(self.disk.read_file(path))
        raw[position + 60] ^= 1
        self.disk.write_file(path, bytes(raw))
        self.store = FileStore.open(config_of(), self.disk)
        self.assertIsNone(self.store.readers)
        self.store.abandon()


class PowerTests(SynchronousTestCase):
    """The process or the machine ends in every changing call of the disk."""

    def test_every_end_keeps_the_readers(self) -> None:
        """After a start the readers have the state of the ledger, and no more."""
        self.patch(producer_list, "SAVE_EVERY_BYTES", 1500)
        for death in (PowerLoss, ProcessKilled):
            for seed in range(2):
                die_in = 1
                while self._story(die_in, death, seed):
                    die_in += 1
                self.assertGreater(die_in, 60)

    def _story(self, die_in: int, death: type[MemberDied], seed: int) -> bool:
        """@return: whether it ended before its end."""
        disk, is_dead = SimDisk(Random(1000 * seed + die_in)), False
        disk.arm(die_in=die_in, death=death)
        try:
            store = FileStore.open(config_of(), disk)
            last = -1
            for step in range(12):
                body = encode_reader_entry(state("a", last, step))
                store.append_bodies((body,), 1, producers_at=0)
                last = store.ledger_end_index
                store.append_bodies((b"x" * 300,), 1)
                job = store.prepare_flush()
                if job is not None:
                    job.run()
                    store.finish_flush(job)
                store.record_commit(store.ledger_end_index)
            store.clean_close()
        except MemberDied:
            is_dead = True
            disk.lose_power() if death is PowerLoss else disk.end_process()
        disk.disarm()
        store = FileStore.open(config_of(), disk)
        end = store.ledger_end_index
        assert store.readers is not None
        known = {name: (one.index, one.state.next_index) for name, one in store.readers.at(end).items()}
        steps = (end + 2) // 2
        expected = {"a": (2 * steps - 2, steps - 1)} if steps else {}
        self.assertEqual(known, expected, (die_in, death))
        store.abandon()
        return is_dead
