# -*- test-case-name: tests.storage.test_producer_writes -*-
"""The producers of a ledger while it is written, and after a cut."""

from __future__ import annotations

from dledger.ledger.producers import Known, Verdict
from dledger.storage.store.file_store import FileStore
from dledger.values.errors import DLedgerError
from protocols.wire.codes import ResponseCode
from protocols.wire.ledger.batches import EntryBatch
from protocols.wire.ledger.entry import ENTRY_HEADER, iterate_records
from protocols.wire.ledger.producers import PRODUCER_CHANNEL, ProducerRun
from tests.storage.producer_logs import (
    ListCase,
    announced,
    append,
    config_of,
    in_log,
)


class WriteTests(ListCase):
    """Its own writes and those of a leader."""

    def test_no_producer_makes_no_file(self) -> None:
        """Without producers there is no file."""
        self.store.append_bodies((b"a",), 1)
        self.reopen()
        self.assertEqual((len(self.table()), self.disk.exists(self.path)), (0, False))

    def test_a_producer_entry_has_its_form(self) -> None:
        """The record is one of Java's form, with a channel of its own; only that one."""
        self.store.append_bodies((b"x", *announced(ProducerRun("p", 0, 1, 2)), b"y"), 1, producers_at=1)
        headers = [header for header, _ in iterate_records(
            self.store.read_range(0, end_index=4, max_bytes=4096)
        )]
        self.assertEqual([header.channel for header in headers], [0, PRODUCER_CHANNEL, 0, 0, 0])
        self.assertEqual({header.magic for header in headers}, {1})
        self.assertEqual(self.judge("p", 1).first_index, 3)
        self.assertTrue(self.disk.exists(self.path))
        self.check()

    def test_pushed_producers_are_listed(self) -> None:
        """In batches and in chunks, with entries of one size and of others."""
        source = FileStore.open(config_of("n1"), self.disk)
        size = len(announced(ProducerRun("p", 0, 1, 1))[0])
        for at in range(40):
            append(source, 1, "p", 3 * at, 3)
            source.append_bodies((b"%0*d" % (size, at),) * (at % 5 + 1), 1)
            append(source, 1, f"q{at % 3}", at // 3)
        source.record_commit(source.ledger_end_index)
        kinds, index = set(), 0
        while index <= source.ledger_end_index:
            chunk = source.chunk_from(index)
            entries = source.read_chunk(chunk) if chunk is not None and chunk.first_index == index else None
            batch = entries or source.read_batch(index, max_count=7, max_bytes=1000)
            kinds.add(type(batch))
            self.store.append_entries(batch)
            index += batch.count
        self.assertEqual(len(kinds), 2)
        self.check()
        self.assertEqual(len(in_log(self.store)), 160)

    def test_word_in_bodies(self) -> None:
        """Bodies may look like producer entries: without the channel they are none."""
        source = FileStore.open(config_of("n1"), self.disk)
        fake = announced(ProducerRun("p", 0, 1, 1))[0]
        for at in range(60):
            source.append_bodies((fake, b"x" * at), 1)
        source.record_commit(source.ledger_end_index)
        index = 0
        while index <= source.ledger_end_index:
            chunk = source.chunk_from(index)
            entries = source.read_chunk(chunk) if chunk is not None and chunk.first_index == index else None
            batch = entries or source.read_batch(index, max_count=3, max_bytes=1000)
            self.store.append_entries(batch)
            index += batch.count
        self.assertEqual(len(self.table()), 0)
        self.reopen(clean=False)
        self.assertEqual(len(self.table()), 0)

    def test_an_unreadable_producer_entry_is_refused(self) -> None:
        """A producer entry of a later version is refused, and nothing has changed."""
        source = FileStore.open(config_of("n1"), self.disk)
        append(source, 1, "p", 0)
        record = bytearray(source.read_range(0, end_index=0, max_bytes=1).records)
        record[ENTRY_HEADER.size + 7] = 3
        record[36:44] = bytes(8)  # as Java passes it on: without checksums
        batch = EntryBatch(first_index=0, count=1, term=1, records=bytes(record))
        error = self.assertRaises(DLedgerError, self.store.append_entries, batch)
        self.assertIs(error.code, ResponseCode.INCONSISTENT_STATE)
        self.assertIn("upgrade this member", str(error))
        self.assertEqual((self.store.ledger_end_index, len(self.table())), (-1, 0))


class CutTests(ListCase):
    """What is cut was never there."""

    def test_a_cut_forgets_producers(self) -> None:
        """In the middle of a run, too."""
        append(self.store, 1, "p", 0, 4)
        self.store.truncate_to(self.store.read_range(2, end_index=2, max_bytes=1))
        self.assertEqual(self.judge("p", 2).known, Known.NEW)
        self.check()
        self.reopen(clean=False)
        self.check()

    def test_another_term_behind(self) -> None:
        """A run ends where a later leader goes on, with a cut or without, written or pushed."""
        for is_pushed in (False, True):
            source = FileStore.open(config_of(f"n{1 + is_pushed}"), self.disk)
            append(source, 1, "p", 0, 3)
            part = source.read_batch(0, max_count=2, max_bytes=1000)  # the producer entry, and p 0
            follower = FileStore.open(config_of(f"n{1 + is_pushed}", store_base_dir="/t"), self.disk)
            follower.append_entries(part)
            if is_pushed:
                other = FileStore.open(config_of("n0", store_base_dir="/u"), self.disk)
                other.append_entries(part)
                other.append_bodies((b"x", b"y"), 2)
                follower.append_entries(other.read_batch(2, max_count=2, max_bytes=1000))
            else:
                follower.append_bodies((b"x", b"y"), 2)
            self.assertEqual(self.judge("p", 1, follower).known, Known.NEW)
            self.check(follower)
            follower.abandon()
            follower = FileStore.open(config_of(f"n{1 + is_pushed}", store_base_dir="/t"), self.disk)
            self.check(follower)

    def test_a_new_ledger_remembers_committed_ones(self) -> None:
        """
        What was committed is remembered though the ledger begins after it; the rest is not, nor what came
        between: a producer does not go on there.
        """
        append(self.store, 1, "p", 0)
        self.store.record_commit(1)
        append(self.store, 1, "q", 0)
        source = FileStore.open(config_of("n1"), self.disk)
        source.append_bodies(tuple(b"x" * 900 for _ in range(8)), 2)
        index = next(
            index for index in range(2, 8) if source.position_of(index) % 4096 == 0
        )
        self.store.truncate_to(source.read_range(index, end_index=index, max_bytes=1), anew=True)
        self.assertEqual(self.store.ledger_begin_index, index)
        self.store.append_bodies(announced(ProducerRun("r", 0, 1, 1)), 2, producers_at=0)
        self.assertEqual(self.judge("q", 0).known, Known.NEW)
        for is_clean in (False, True, False):
            self.assertEqual(self.judge("p", 0).first_index, 1)
            self.assertEqual(self.judge("p", 1), Verdict(Known.UNKNOWN_PRODUCER))
            self.assertEqual(self.judge("r", 1).known, Known.NEW)
            self.reopen(clean=is_clean)
        self.store.record_commit(self.store.ledger_end_index)
        append(self.store, 2, "p", 5)
        self.assertEqual(self.judge("p", 6), Verdict(Known.NEW, last_sequence=5))
        self.assertEqual(self.judge("p", 0), Verdict(Known.FORGOTTEN, last_sequence=5))

    def test_anew_in_a_run(self) -> None:
        """Announced entries that had not come when the ledger began anew: their producer is forgotten."""
        append(self.store, 1, "p", 0)
        append(self.store, 1, "q", 0, 3)
        self.store.record_commit(3)
        source = FileStore.open(config_of("n1"), self.disk)
        source.append_bodies(tuple(b"x" * 900 for _ in range(8)), 2)
        index = next(index for index in range(4, 8) if source.position_of(index) % 4096 == 0)
        self.store.truncate_to(source.read_range(index, end_index=index, max_bytes=1), anew=True)
        self.assertEqual(self.judge("q", 1).known, Known.UNKNOWN_PRODUCER)
        self.assertEqual(self.judge("p", 0).first_index, 1)
