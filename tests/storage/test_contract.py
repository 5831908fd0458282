# -*- test-case-name: tests.storage.test_contract -*-
"""The contract of any store with the core: the file store on real files, and the memory store."""

from __future__ import annotations

from typing import TYPE_CHECKING

from twisted.trial.unittest import SynchronousTestCase

from dledger.base.disk.disk import OsDisk
from dledger.storage.store.file_store import FileStore
from dledger.values.errors import DLedgerError, StoreError
from protocols.wire.codes import ResponseCode
from protocols.wire.ledger.batches import EntryBatch
from protocols.wire.ledger.entry import bodies_of, decode_header
from tests.storage.support import (
    DATA_SIZE,
    bare_record,
    batch_of,
    bodies_in,
    config_of,
    entry_at,
    flush,
    our_record,
)

if TYPE_CHECKING:
    _Case = SynchronousTestCase
else:
    _Case = object  # a contract is no test case by itself

#: Bodies of many sizes: with them every file ends in a blank of another length.
BODIES = [bytes([number]) * (number * 37 % 200) for number in range(60)]


class StoreContract(_Case):
    """C{self.store} is a new store with small files."""

    store: FileStore

    def open_other(self) -> FileStore:
        """Another new store of the same kind."""
        raise NotImplementedError

    def fill(self) -> None:
        """Sixty entries, a new term every ten."""
        for at in range(0, 60, 10):
            self.store.append_bodies(tuple(BODIES[at : at + 10]), 1 + at // 10)

    def refused(self, code: ResponseCode, entry: EntryBatch, *, truncate: bool = False) -> DLedgerError:
        """Append or truncate must be refused, and nothing may change."""
        store = self.store
        before = (store.ledger_begin_index, store.ledger_end_index, store.ledger_end_term,
                  store.end_position, bodies_in(store))
        with self.assertRaises(DLedgerError) as caught:
            (store.truncate_to if truncate else store.append_entries)(entry)
        self.assertNotIsInstance(caught.exception, StoreError)
        self.assertIs(caught.exception.code, code)
        after = (store.ledger_begin_index, store.ledger_end_index, store.ledger_end_term,
                 store.end_position, bodies_in(store))
        self.assertEqual(after, before)
        return caught.exception

    def test_an_empty_ledger_has_no_entry(self) -> None:
        """A new ledger."""
        store = self.store
        self.assertEqual((store.ledger_begin_index, store.ledger_end_index, store.ledger_end_term,
                          store.committed_index, store.repair_end_index, store.end_position),
                         (-1, -1, -1, -1, -1, 0))
        self.assertEqual(store.position_of(0), 0)
        self.assertFalse(store.disk_full)
        self.assertIsNone(store.prepare_flush())

    def test_append_and_read(self) -> None:
        """What a leader appended is there, term by term, across files."""
        self.fill()
        store = self.store
        self.assertEqual((store.ledger_begin_index, store.ledger_end_index), (0, 59))
        self.assertEqual(store.ledger_end_term, 6)
        self.assertEqual(bodies_in(store), BODIES)
        self.assertEqual([store.term_of(at) for at in range(60)], [1 + at // 10 for at in range(60)])
        for index in range(60):
            header = decode_header(entry_at(store, index).records)
            self.assertEqual((header.index, header.pos), (index, store.position_of(index)))
        self.assertEqual(store.position_of(60), store.end_position)

    def test_positions_are_those_of_records(self) -> None:
        """The positions that append returns are those of the records."""
        first = self.store.append_bodies((b"hello", b"world"), 1)
        second = self.store.append_bodies((bytes(900), bytes(900)), 1)
        self.assertEqual((first, second), ((0, 53), (1024, 2048)))

    def test_read_batch_bounds(self) -> None:
        """At least one entry, never more than asked, never two terms."""
        self.fill()
        for max_count, max_bytes in ((1, 10**6), (3, 10**6), (100, 300), (100, 0), (100, 10**6)):
            index = 0
            while index < 60:
                batch = self.store.read_batch(index, max_count=max_count, max_bytes=max_bytes)
                self.assertEqual(batch.first_index, index)
                self.assertLessEqual(batch.count, max_count)
                self.assertTrue(batch.count == 1 or len(batch.records) <= max_bytes)
                self.assertEqual({batch.term}, {1 + at // 10 for at in range(index, batch.last_index + 1)})
                self.assertEqual(bodies_of(batch), BODIES[index : batch.last_index + 1])
                index += batch.count

    def test_a_range_may_have_several_terms(self) -> None:
        """For clients: any number of terms, up to an index."""
        self.fill()
        found: list[bytes] = []
        while len(found) < 45:
            batch = self.store.read_range(len(found), end_index=44, max_bytes=600)
            self.assertEqual(batch.term, self.store.term_of(batch.last_index))
            found.extend(bodies_of(batch))
        self.assertEqual(found, BODIES[:45])

    def test_an_unchecked_read_is_the_same(self) -> None:
        """For bulk readers: the same records, within the bound of bytes and one file, one at least."""
        self.fill()
        for max_bytes in (0, 48, 300, 600, 10**6):
            found: list[bytes] = []
            while len(found) < 45:
                first = len(found)
                batch = self.store.read_unchecked(first, end_index=44, max_bytes=max_bytes)
                self.assertEqual(batch.term, self.store.term_of(batch.last_index))
                self.assertTrue(batch.count == 1 or len(batch.records) <= max_bytes)
                again = self.store.read_range(first, end_index=batch.last_index, max_bytes=10**6)
                self.assertEqual(batch, again)
                full = self.store.read_range(first, end_index=44, max_bytes=max_bytes)
                self.assertGreaterEqual(batch.count, full.count)
                found.extend(bodies_of(batch))
            self.assertEqual(found, BODIES[:45])

    def test_many_terms_in_one_range(self) -> None:
        """A range does not stop at a new term."""
        for term in range(1, 6):
            self.store.append_bodies((b"x",), term)
        self.assertEqual(self.store.read_range(0, end_index=9, max_bytes=9999).count, 5)
        self.assertEqual(self.store.read_batch(0, max_count=9, max_bytes=9999).count, 1)

    def test_a_follower_has_the_same_bytes(self) -> None:
        """A follower that appends what a leader reads holds the same bytes at the same positions."""
        self.fill()
        other = self.open_other()
        index = 0
        while index < 60:
            batch = self.store.read_batch(index, max_count=9, max_bytes=1000)
            other.append_entries(batch)
            index += batch.count
        self.assertEqual(other.end_position, self.store.end_position)
        for index in range(60):
            self.assertEqual(entry_at(other, index), entry_at(self.store, index))
            self.assertTrue(other.holds(entry_at(self.store, index)))
        # And each goes on from there with the same chain.
        self.store.append_bodies((b"more",), 7)
        other.append_bodies((b"more",), 7)
        self.assertEqual(entry_at(other, 60), entry_at(self.store, 60))

    def test_several_terms_in_one_batch(self) -> None:
        """A Java leader's batch may hold several terms."""
        records = [bare_record(b"a", index=0, term=1, pos=0), bare_record(b"b", index=1, term=3, pos=49),
                   bare_record(b"c", index=2, term=3, pos=98)]
        self.store.append_entries(batch_of(records))
        self.assertEqual([self.store.term_of(index) for index in range(3)], [1, 3, 3])
        self.assertEqual(self.store.ledger_end_term, 3)
        self.assertEqual(self.store.read_batch(0, max_count=9, max_bytes=999).count, 1)
        self.assertEqual(self.store.read_batch(1, max_count=9, max_bytes=999).count, 2)

    def test_an_unfit_append_changes_nothing(self) -> None:
        """Entries that do not fit after the end change nothing."""
        self.fill()
        pos = self.store.end_position
        for record in (
            our_record(b"x", index=59, term=6, pos=pos), our_record(b"x", index=61, term=6, pos=pos),
            our_record(b"x", index=60, term=5, pos=pos), our_record(b"x", index=60, term=6, pos=pos + 1),
            our_record(b"x", index=60, term=6, pos=pos, chain=12345),
            bare_record(b"x", index=60, term=6, pos=pos)[:-1],
        ):
            self.refused(ResponseCode.INCONSISTENT_STATE, batch_of([record]))
        self.store.append_entries(batch_of([bare_record(b"x", index=60, term=6, pos=pos)]))

    def test_equality_compares_all_fields(self) -> None:
        """Equality of entries: all fields, checksums where both have them."""
        self.store.append_bodies((b"abc", b"def"), 1)
        entry = entry_at(self.store, 1)
        self.assertTrue(self.store.holds(entry))
        for at in (0, 7, 15, 23, 31, 35, 47, 50):
            changed = bytearray(entry.records)
            changed[at] ^= 1
            batch = EntryBatch(first_index=1, count=1, term=1, records=bytes(changed))
            self.assertFalse(self.store.holds(batch), f"byte {at}")
        for at in (36, 40):
            changed = bytearray(entry.records)
            changed[at : at + 4] = bytes(4)
            self.assertTrue(self.store.holds(batch_of([bytes(changed)])), "not recorded there")
            changed[at] ^= 1
            self.assertFalse(self.store.holds(batch_of([bytes(changed)])), "recorded differently")
        bare = bare_record(b"ghi", index=2, term=1, pos=102)
        self.store.append_entries(batch_of([bare]))
        self.assertTrue(self.store.holds(batch_of([bare])))
        chain = decode_header(entry.records).chain_crc
        whole = our_record(b"ghi", index=2, term=1, pos=102, chain=chain)
        self.assertFalse(self.store.holds(batch_of([whole])), "ours lacks what theirs records")
        self.store.truncate_to(batch_of([whole]))
        self.assertEqual(entry_at(self.store, 2).records, whole)
        self.assertFalse(self.store.holds(batch_of([bare_record(b"abc", index=3, term=1, pos=153)])))
        self.assertFalse(self.open_other().holds(entry))

    def test_truncate_to_present(self) -> None:
        """Cut after an entry that is there, and go on."""
        for index in (58, 41, 40, 17, 3, 0):
            self.fill() if self.store.ledger_end_index < 0 else None
            entry = entry_at(self.store, index)
            self.store.truncate_to(entry)
            self.assertEqual((self.store.ledger_end_index, self.store.ledger_end_term),
                             (index, 1 + index // 10))
            self.assertEqual(bodies_in(self.store), BODIES[: index + 1])
            self.assertEqual(self.store.end_position, self.store.position_of(index) + len(entry.records))
        self.store.append_bodies(tuple(BODIES[1:]), 9)
        self.assertEqual(bodies_in(self.store), BODIES)

    def test_truncate_to_absent(self) -> None:
        """Cut at an index and write the leader's entry there."""
        self.fill()
        for index in (60, 59, 30, 12, 11, 1, 0):
            chain = decode_header(entry_at(self.store, index - 1).records).chain_crc if index else 0
            position = self.store.position_of(index) if index < 60 else self.store.end_position
            if index in (11,):
                body, position = bytes(960), -(-position // DATA_SIZE) * DATA_SIZE
            else:
                body = b""
            record = our_record(body, index=index, term=8, pos=position, chain=chain)
            self.store.truncate_to(batch_of([record]))
            self.assertEqual((self.store.ledger_end_index, self.store.ledger_end_term), (index, 8))
            self.assertEqual(bodies_in(self.store), [*BODIES[:index], body])
            if index == 11:
                self.store.truncate_to(entry_at(self.store, 10))
        self.store.append_bodies((b"on",), 9)
        self.assertEqual(bodies_in(self.store), [b"", b"on"])

    def test_truncate_writes_first_entry(self) -> None:
        """An empty ledger takes entry 0."""
        self.store.truncate_to(batch_of([our_record(b"x", index=0, term=1, pos=0)]))
        self.assertEqual(bodies_in(self.store), [b"x"])

    def test_an_unfit_truncation_changes_nothing(self) -> None:
        """An entry that cannot stand where it says changes nothing."""
        self.fill()
        pos = self.store.position_of(30)
        for record in (
            our_record(b"x", index=30, term=3, pos=pos + 1), our_record(b"x", index=30, term=2, pos=pos),
            our_record(b"x", index=30, term=4, pos=pos, chain=4711),
            our_record(b"x", index=70, term=9, pos=self.store.end_position),
            our_record(b"x", index=70, term=9, pos=-1024),
            bare_record(b"x", index=30, term=4, pos=pos)[:-1],
            bare_record(b"x", index=70, term=4, pos=0)[:20],
        ):
            entry = EntryBatch(first_index=70 if record[15] == 70 else 30, count=1, term=9, records=record)
            self.refused(ResponseCode.INCONSISTENT_STATE, entry, truncate=True)

    def test_never_below_the_commit(self) -> None:
        """Committed entries are not cut, whoever asks (W14)."""
        self.fill()
        self.store.record_commit(30)
        self.refused(ResponseCode.INCONSISTENT_STATE, entry_at(self.store, 29), truncate=True)
        pos = self.store.position_of(30)
        chain = decode_header(entry_at(self.store, 29).records).chain_crc
        record = our_record(b"x", index=30, term=9, pos=pos, chain=chain)
        self.refused(ResponseCode.INCONSISTENT_STATE, batch_of([record]), truncate=True)
        self.store.truncate_to(entry_at(self.store, 30))
        self.assertEqual((self.store.ledger_end_index, self.store.committed_index), (30, 30))

    def test_a_ledger_starts_anew_later(self) -> None:
        """A leader whose log begins after our end: start anew at the first record of a file."""
        self.fill()
        self.store.record_commit(20)
        record = our_record(b"far", index=5000, term=9, pos=7 * DATA_SIZE, chain=99)
        self.store.truncate_to(batch_of([record]))
        store = self.store
        self.assertEqual((store.ledger_begin_index, store.ledger_end_index, store.ledger_end_term),
                         (5000, 5000, 9))
        self.assertEqual(store.committed_index, 4999, "what lies below a leader's beginning is committed")
        store.append_bodies((b"on",), 9)
        self.assertEqual(bodies_in(store), [b"far", b"on"])
        self.assertEqual((store.term_of(5000), store.position_of(5000)), (9, 7 * DATA_SIZE))

    def test_start_anew_on_request(self) -> None:
        """The core may ask for a new beginning although the entry would fit."""
        self.fill()
        position = -(-self.store.end_position // DATA_SIZE) * DATA_SIZE
        record = our_record(b"x", index=60, term=9, pos=position)
        self.store.truncate_to(batch_of([record]), anew=True)
        self.assertEqual((self.store.ledger_begin_index, self.store.ledger_end_index), (60, 60))
        self.assertEqual(self.store.repair_end_index, -1)

    def test_start_anew_below_the_commit(self) -> None:
        """Not even on request is what is committed replaced."""
        self.fill()
        self.store.record_commit(30)
        entry = batch_of([our_record(b"x", index=30, term=9, pos=9 * DATA_SIZE)])
        with self.assertRaises(DLedgerError) as caught:
            self.store.truncate_to(entry, anew=True)
        self.assertIs(caught.exception.code, ResponseCode.INCONSISTENT_STATE)
        self.assertEqual(bodies_in(self.store), BODIES)

    def test_start_anew_empty(self) -> None:
        """An empty ledger begins where the leader's does."""
        self.store.truncate_to(batch_of([our_record(b"x", index=100, term=2, pos=2 * DATA_SIZE, chain=4)]))
        self.assertEqual((self.store.ledger_begin_index, self.store.ledger_end_index), (100, 100))

    def test_the_commit_never_falls(self) -> None:
        """The commit never falls and never passes the end."""
        self.fill()
        self.store.record_commit(7)
        self.store.record_commit(5)
        self.assertEqual(self.store.committed_index, 7)
        with self.assertRaises(AssertionError):
            self.store.record_commit(60)

    def test_a_flush_covers_earlier_writes(self) -> None:
        """A flush covers what was written before it, and nothing is left afterwards."""
        self.store.append_bodies((b"a", b"b"), 1)
        job = self.store.prepare_flush()
        assert job is not None
        self.store.append_bodies((b"c",), 1)
        job.run()
        self.store.finish_flush(job)
        self.assertEqual(job.end_index, 1)
        flush(self.store)
        self.assertIsNone(self.store.prepare_flush())

    def test_one_flush_at_a_time(self) -> None:
        """A second flush before the first is finished is a bug."""
        self.store.append_bodies((b"a",), 1)
        job = self.store.prepare_flush()
        assert job is not None
        with self.assertRaises(AssertionError):
            self.store.prepare_flush()
        job.run()
        self.store.finish_flush(job)

    def test_truncation_during_a_flush(self) -> None:
        """A flush that is under way does not vouch for what was cut, nor for what came after."""
        self.fill()
        job = self.store.prepare_flush()
        assert job is not None
        self.store.truncate_to(entry_at(self.store, 10))
        self.store.append_bodies((b"new",) * 60, 9)
        job.run()
        self.store.finish_flush(job)
        self.assertEqual(job.end_index, 10)
        again = self.store.prepare_flush()
        assert again is not None
        again.run()
        self.store.finish_flush(again)
        self.assertEqual(again.end_index, 70)

    def test_new_beginning_during_a_flush(self) -> None:
        """Nor for what was there before a new beginning."""
        self.fill()
        job = self.store.prepare_flush()
        assert job is not None
        self.store.truncate_to(batch_of([our_record(b"x", index=5000, term=9, pos=9 * DATA_SIZE)]))
        job.run()
        self.store.finish_flush(job)
        self.assertEqual(job.end_index, -1)

    def test_a_closed_store_refuses_calls(self) -> None:
        """A closed store refuses."""
        self.fill()
        self.store.clean_close()
        self.store.abandon()
        with self.assertRaises(StoreError):
            self.store.append_bodies((b"x",), 9)
        with self.assertRaises(StoreError):
            self.store.prepare_flush()

    def test_maintenance_of_nothing(self) -> None:
        """An empty ledger has nothing to expire."""
        self.assertEqual(self.store.maintenance(1e10, 4, keep_from_index=0), [])


class FileStoreTests(StoreContract, SynchronousTestCase):
    """The file store, on real files."""

    def setUp(self) -> None:
        self.base = self.mktemp()
        self.store = FileStore.open(config_of(self.base), OsDisk())
        self.addCleanup(lambda: self.store.abandon())

    def open_other(self) -> FileStore:
        """In another directory."""
        other = FileStore.open(config_of(self.mktemp()), OsDisk())
        self.addCleanup(other.abandon)
        return other

    def reopen(self) -> FileStore:
        """The same directory, as another process would open it."""
        self.store = FileStore.open(config_of(self.base), OsDisk())
        return self.store

    def test_a_reopened_store_loses_nothing(self) -> None:
        """A clean stop, and a kill, lose nothing that was written."""
        for stop in (FileStore.clean_close, FileStore.abandon):
            self.fill() if self.store.ledger_end_index < 0 else self.store.append_bodies((b"more",), 7)
            before = bodies_in(self.store)
            flush(self.store)
            self.store.record_commit(33)
            self.store.check_point()
            stop(self.store)
            store = self.reopen()
            self.assertEqual(bodies_in(store), before)
            self.assertEqual((store.committed_index, store.repair_end_index), (33, -1))

    def test_truncated_tail_stays_away(self) -> None:
        """What was cut does not come back after a restart (W5)."""
        self.fill()
        self.store.truncate_to(entry_at(self.store, 4))
        chain = decode_header(entry_at(self.store, 4).records).chain_crc
        # Of the size of the old entry 5, so that old records would line up after it.
        record = our_record(BODIES[5], index=5, term=7, pos=self.store.end_position, chain=chain)
        self.store.append_entries(batch_of([record]))
        self.store.abandon()
        self.assertEqual(bodies_in(self.reopen()), BODIES[:6])
