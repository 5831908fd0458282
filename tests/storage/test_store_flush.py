# -*- test-case-name: tests.storage.test_store_flush -*-
"""The bytes that a flush brings to stable storage, the end in the mark, the time of a checkpoint."""

from __future__ import annotations

import errno

from dledger.base.disk.flush_job import MARK_SYNC_EVERY
from dledger.base.disk.hints import Hints
from dledger.base.disk.two_slots import SLOT_SIZE
from dledger.storage.files.properties import read_checkpoint
from dledger.values.errors import StoreError
from tests.storage.support import BROKEN, FIRST, ROOT, HookedCase, flush

NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE)


class FlushTests(HookedCase):
    """What a flush brings to stable storage, and in which order."""

    options = {"flush_disk_type": "sync"}

    def test_data_and_names(self) -> None:
        """The data files of the batch and the directory that names new ones; not the index."""
        self.store.append_bodies((bytes(900), bytes(900)), 1)
        job = self.store.prepare_flush()
        assert job is not None
        self.disk.calls.clear()
        job.run()
        self.assertEqual(self.disk.calls, [
            ("datasync", f"{ROOT}/data/{FIRST}"), ("datasync", f"{ROOT}/data/00000000000000001024"),
            ("sync_directory", f"{ROOT}/data")])
        self.store.finish_flush(job)
        self.store.append_bodies((b"x",), 1)
        job = self.store.prepare_flush()
        assert job is not None
        self.disk.calls.clear()
        job.run()
        self.assertEqual(self.disk.calls, [("datasync", f"{ROOT}/data/00000000000000001024")])

    def test_mark_after_the_flush(self) -> None:
        """The mark records an end only when it has been synced, and is itself synced now and then."""
        for number in range(3 * MARK_SYNC_EVERY):
            self.store.append_bodies((b"x",), 1)
            self.assertEqual(self.mark().end_index, number - 1)
            flush(self.store)
            self.assertEqual(self.mark().end_index, number)
        self.assertEqual(self.disk.count("datasync", "commitmark"), 2 + 3 - 1)

    def test_commit_is_never_ahead_of_the_disk(self) -> None:
        """The recorded commit is at most what is on stable storage."""
        self.store.append_bodies((b"x",) * 5, 1)
        self.store.record_commit(4)
        self.store.check_point()
        self.assertEqual(self.mark().committed_index, -1)
        flush(self.store)
        self.assertEqual(self.mark().committed_index, 4)

    def test_a_failed_flush_is_not_repeated(self) -> None:
        """A failed fsync is reported, and no second one is tried."""
        self.store.append_bodies((b"x",), 1)
        self.disk.failures = {("datasync", "/data/"): BROKEN}
        job = self.store.prepare_flush()
        assert job is not None
        with self.assertRaises(OSError):
            job.run()
        with self.assertRaises(AssertionError):
            self.store.prepare_flush()
        self.assertEqual(self.mark().end_index, -1)
        self.store.abandon()
        self.assertFalse(self.mark().clean)

    def test_reported_of_the_failure(self) -> None:
        """A store that learns that its flush failed refuses everything, and releases all its handles."""
        self.store.append_bodies((b"x",), 1)
        self.assertIsNotNone(self.store.prepare_flush())
        reported = self.store.flush_failed("fsync: EIO")
        self.assertEqual(reported.facts["reason"], "fsync: EIO")
        for refused in (self.store.prepare_flush, self.store.end_repair,
                        lambda: self.store.append_bodies((b"y",), 1)):
            self.assertIn("fsync: EIO", str(self.assertRaises(StoreError, refused)))
        self.disk.calls.clear()
        self.store.clean_close()
        self.assertEqual({operation for operation, _ in self.disk.calls}, {"close"})
        self.assertEqual(self.disk.count("close", "commitmark"), 1)
        self.assertFalse(self.mark().clean)

    def test_abandoned_while_flushing(self) -> None:
        """The flush that is under way in another thread keeps its handles."""
        self.store.append_bodies((b"x",), 1)
        job = self.store.prepare_flush()
        assert job is not None
        self.disk.calls.clear()
        self.store.abandon()
        closed = [path for operation, path in self.disk.calls if operation == "close"]
        self.assertEqual(closed, [f"{ROOT}/index/{FIRST}", f"{ROOT}/identity"])
        job.run()

    def test_an_abandoned_store_releases_files(self) -> None:
        """Without a flush under way every handle is released."""
        self.store.append_bodies((b"x",), 1)
        self.disk.calls.clear()
        self.store.abandon()
        closed = {path for operation, path in self.disk.calls if operation == "close"}
        self.assertEqual(closed, {f"{ROOT}/data/{FIRST}", f"{ROOT}/index/{FIRST}", f"{ROOT}/commitmark",
                                  f"{ROOT}/identity"})
        self.assertEqual(self.disk.locked, set())

    def test_checkpoint_with_a_flush(self) -> None:
        """A checkpoint that is due goes with the next flush, in its thread, with the index."""
        self.store.append_bodies((b"x",) * 3, 1)
        flush(self.store)
        self.store.append_bodies((b"x",), 1)
        self.store.record_commit(2)
        self.store.check_point()
        self.assertNotIn(f"{ROOT}/checkpoint", self.disk.files)
        job = self.store.prepare_flush()
        assert job is not None
        self.assertNotIn(f"{ROOT}/checkpoint", self.disk.files)
        self.disk.calls.clear()
        job.run()
        self.assertEqual(read_checkpoint(Hints(self.disk), ROOT), (2, 2))
        self.assertEqual(self.disk.count("datasync", "/index/"), 1)
        self.assertEqual(self.disk.count("sync_directory", "/index"), 1)
        self.store.finish_flush(job)
        self.assertEqual(self.mark().index_end_position, self.store.end_position)

    def test_checkpoint_when_idle(self) -> None:
        """Without a flush to go with, the checkpoint is written at once, and once only."""
        self.store.append_bodies((b"x",) * 3, 1)
        flush(self.store)
        self.store.record_commit(1)
        self.store.check_point()
        self.assertEqual(read_checkpoint(Hints(self.disk), ROOT), (1, 2))
        self.disk.calls.clear()
        self.store.check_point()
        self.assertEqual(self.disk.calls, [])

    def test_checkpoint_that_waits_too_long(self) -> None:
        """A due checkpoint that no flush took is written by the next call."""
        self.store.append_bodies((b"x",) * 3, 1)
        self.store.record_commit(1)
        self.store.check_point()
        self.store.check_point()
        self.assertEqual(read_checkpoint(Hints(self.disk), ROOT), (1, 2))

    def test_commit_is_reported_soon(self) -> None:
        """A checkpoint that waits for a flush does not keep readers waiting for the commit."""
        self.store.append_bodies((b"x",) * 3, 1)
        flush(self.store)
        self.store.append_bodies((b"x",), 1)
        self.store.record_commit(1)
        self.store.check_point()
        self.assertEqual(self.mark().committed_index, 1)
        self.assertNotIn(f"{ROOT}/checkpoint", self.disk.files)

    def test_checkpoint_only_with_news(self) -> None:
        """A commit is news, an index that was not synced is; nothing else but force."""
        self.store.append_bodies((b"x",) * 3, 1)
        flush(self.store)
        self.store.check_point()
        for news, written in ((lambda: None, 0), (lambda: self.store.record_commit(1), 1),
                              (lambda: self.store.parts.index.pwrite(b"\0", 300), 1)):
            news()
            self.disk.calls.clear()
            self.store.check_point()
            self.assertEqual(self.disk.count("write_file", "checkpoint"), written)
        self.store.check_point(force=True)
        self.assertEqual(self.disk.count("write_file", "checkpoint"), 2)

    def test_flush_of_a_checkpoint_alone(self) -> None:
        """A due checkpoint is taken by a flush that has nothing else to do, and then it is done."""
        self.store.append_bodies((b"x",) * 3, 1)
        self.store.check_point()
        self.store.parts.flush.sync_files()
        self.disk.calls.clear()
        flush(self.store)
        self.assertEqual(self.disk.count("write_file", "checkpoint"), 1)
        self.store.check_point()
        flush(self.store)
        self.disk.calls.clear()
        self.store.check_point()
        self.assertEqual(self.disk.calls, [])

    def test_mark_slots_turn_with_the_flushes(self) -> None:
        """Once a flush has synced the mark, the next one is written to the other slot."""
        slots = set()
        for _ in range(2 * MARK_SYNC_EVERY + 1):
            before = bytes(self.disk.files[f"{ROOT}/commitmark"].data)
            self.store.append_bodies((b"x",), 1)
            flush(self.store)
            after = bytes(self.disk.files[f"{ROOT}/commitmark"].data)
            slots.add(0 if before[:SLOT_SIZE] != after[:SLOT_SIZE] else 1)
        self.assertEqual(slots, {0, 1})

    def test_sync_during_a_flush(self) -> None:
        """What was synced on this thread meanwhile stays on record when the flush is over."""
        self.store.append_bodies((b"x",), 1)
        job = self.store.prepare_flush()
        assert job is not None
        self.store.append_bodies((b"y",), 1)
        self.store.end_repair()
        job.run()
        self.store.finish_flush(job)
        self.assertEqual((self.mark().end_index, self.mark().index_end_position), (1, 98))

    def test_a_forced_checkpoint_is_there(self) -> None:
        """A forced checkpoint is there when the call returns."""
        self.store.append_bodies((b"x",), 1)
        self.store.check_point(force=True)
        self.assertIn(f"{ROOT}/checkpoint", self.disk.files)


class NoRoomTests(HookedCase):
    """A checkpoint that finds no room is written later; nothing else depends on it."""

    def checkpoint(self) -> bytes:
        """Its content."""
        return self.disk.read_file(f"{ROOT}/checkpoint") if self.disk.exists(f"{ROOT}/checkpoint") else b""

    def test_a_checkpoint_is_written_later(self) -> None:
        """On this thread and in a flush; the next call tries again."""
        for number in (*NO_ROOM, BROKEN):  # it is a hint: no error of it ends the store
            with self.subTest(errno=number):
                self.store.append_bodies((b"x",), 1)
                end = self.store.ledger_end_index
                before = self.checkpoint()
                self.disk.failures = {("write_file", "checkpoint"): number}
                self.store.check_point()  # a flush is due: it shall write the checkpoint
                flush(self.store)
                self.store.check_point(force=True)
                self.assertEqual(self.checkpoint(), before)
                self.disk.failures = {}
                self.store.check_point()
                self.assertIn(f"endIndex={end}\n".encode(), self.checkpoint())

    def test_closed_without_room(self) -> None:
        """The next start does not take the directory for one that Java has used since."""
        self.store.append_bodies((b"x",) * 3, 1)
        flush(self.store)
        self.store.check_point(force=True)
        self.store.append_bodies((b"x",) * 3, 1)
        self.disk.failures = {("write_file", "checkpoint"): NO_ROOM[0]}
        self.store.clean_close()
        self.assertFalse(self.mark().clean)
        self.assertEqual(self.mark().end_index, 5)
        again = self.reopen()
        self.assertEqual((again.ledger_end_index, again.repair_end_index), (5, -1))
