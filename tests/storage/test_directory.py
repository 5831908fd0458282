# -*- test-case-name: tests.storage.test_directory -*-
"""What must not be opened is refused with a sentence, and nothing in it is touched."""

from __future__ import annotations

import errno
from typing import Any
from unittest import mock

from twisted.trial.unittest import SynchronousTestCase

from dledger.base.disk.disk import OsDisk
from dledger.storage.start import scanner
from dledger.storage.store.file_store import FileStore
from dledger.testing.world.memory_disk import MemoryDisk
from dledger.values.errors import DirectoryError, StoreError
from tests.storage.support import (
    BROKEN,
    DATA_SIZE,
    INDEX_SIZE,
    HookedDisk,
    append_bare,
    batch_of,
    bodies_in,
    config_of,
    flush,
    our_record,
)

ROOT = "base/dledger-n0"
DATA, INDEX = f"{ROOT}/data", f"{ROOT}/index"


class AccessCase(SynchronousTestCase):
    """A directory with sixty entries in it."""

    def setUp(self) -> None:
        self.disk = HookedDisk()
        store = FileStore.open(config_of(), self.disk)
        for number in range(60):
            store.append_bodies((bytes([number]) * 50,), 1)
        flush(store)
        store.record_commit(50)
        store.clean_close()

    def open(self, **options: Any) -> FileStore:
        """Open it."""
        return FileStore.open(config_of(**options), self.disk)

    def refused(self, *words: str, **options: Any) -> None:
        """It must be refused, with these words, and nothing may change; and it is not left locked."""
        before = self.disk.contents()
        with self.assertRaises(DirectoryError) as caught:
            self.open(**options)
        for word in words:
            self.assertIn(word, str(caught.exception))
        before.setdefault(f"{ROOT}/lock", b"")
        self.assertEqual(self.disk.contents(), before)
        self.assertEqual(self.disk.locked, set())

    def cut(self, path: str, size: int) -> None:
        """Shorten a file."""
        del self.disk.files[path].data[size:]
        self.disk.files[path].size = size

    def forget_mark(self) -> None:
        """As a Java directory: no mark."""
        self.disk.unlink(f"{ROOT}/commitmark")


class RefusalTests(AccessCase):
    """Directories that are not opened."""

    def test_foreign_files_are_refused(self) -> None:
        """A name that is none of the ledger's."""
        for path in (f"{DATA}/core", f"{INDEX}/.DS_Store"):
            self.disk.write_file(path, b"x")
            self.refused(path, "move it away")
            self.disk.unlink(path)

    def test_other_sizes_are_refused(self) -> None:
        """Other file sizes than the ledger was made with: the option and the right value are named."""
        self.refused("mapped_file_size_for_entry_data=1024", "start with 1024",
                     mapped_file_size_for_entry_data=2048)
        self.refused("mapped_file_size_for_entry_index=320", mapped_file_size_for_entry_index=640)
        self.forget_mark()
        for size in (1025, 2048):
            self.refused("mapped_file_size_for_entry_data", mapped_file_size_for_entry_data=size)
        for size in (352, 640, 320 * 50):
            self.refused("mapped_file_size_for_entry_index", mapped_file_size_for_entry_index=size)
            for offset in range(INDEX_SIZE, 6 * INDEX_SIZE, INDEX_SIZE):
                if self.disk.exists(f"{INDEX}/{offset:020d}"):
                    self.disk.unlink(f"{INDEX}/{offset:020d}")

    def test_a_wrong_length_is_refused(self) -> None:
        """A file with a length of its own, below the recorded end."""
        path = f"{DATA}/{2 * DATA_SIZE:020d}"
        self.cut(path, 500)
        self.refused(path, "500 bytes")
        self.forget_mark()
        self.refused(path, "500 bytes")

    def test_a_gap_between_files_is_refused(self) -> None:
        """A file that is missing between others."""
        self.disk.unlink(f"{DATA}/{2 * DATA_SIZE:020d}")
        self.refused("missing between offsets 1024 and 3072")
        self.forget_mark()
        self.refused("missing between offsets 1024 and 3072")

    def test_a_second_process_is_refused(self) -> None:
        """One process only, for as long as it lives."""
        store = self.open()
        before = self.disk.contents()
        with self.assertRaises(DirectoryError) as caught:
            self.open()
        self.assertIn("another process", str(caught.exception))
        self.assertEqual(self.disk.contents(), before)
        store.append_bodies((b"still mine",), 1)
        store.abandon()
        self.open()

    def test_second_process_on_real_files(self) -> None:
        """The operating system's lock does it."""
        base = self.mktemp()
        store = FileStore.open(config_of(base), OsDisk())
        with self.assertRaises(DirectoryError):
            FileStore.open(config_of(base), OsDisk())
        store.clean_close()
        FileStore.open(config_of(base), OsDisk()).abandon()

    def test_an_unwritable_directory_is_refused(self) -> None:
        """A directory, or a file system, that this user cannot write to."""
        for number in (errno.EACCES, errno.EROFS):
            self.disk.failures = {("lock", "lock"): number}
            self.refused("write")

    def test_an_unreadable_file_is_refused(self) -> None:
        """A file that this user cannot read."""
        self.disk.failures = {("read_file", "commitmark"): errno.EACCES}
        self.refused("accessible to this user")

    def test_a_broken_disk_is_an_error(self) -> None:
        """An I/O error is not a matter of the directory."""
        for failing in (("read_file", "commitmark"), ("lock", "lock"), ("pread", "/data/")):
            self.disk.failures = {failing: BROKEN}
            with self.assertRaises(StoreError) as caught:
                self.open()
            self.assertNotIsInstance(caught.exception, DirectoryError)
            self.assertEqual(self.disk.locked, set())

    def test_several_paths_are_refused(self) -> None:
        """Several data directories are not supported, and it says so."""
        self.refused("data_store_path", data_store_path="a,b")

    def test_a_damaged_mark_is_refused(self) -> None:
        """Nobody knows how far the ledger was good."""
        self.disk.files[f"{ROOT}/commitmark"].data = bytearray(b"x" * 1024)
        self.refused("commitmark", "Restore")

    def test_damaged_beginning_without_a_mark(self) -> None:
        """With nothing on record, a first record that makes no sense is not cut away."""
        self.forget_mark()
        path = f"{DATA}/{0:020d}"
        for position, bit in ((0, 64), (4, 64), (8, 64), (14, 64), (15, 8), (23, 2), (24, 64), (31, 1),
                              (47, 1)):
            self.disk.files[path].data[position] ^= bit
            self.refused(path, "first record is damaged")
            self.disk.files[path].data[position] ^= bit
        self.open()

    def test_a_file_where_a_directory_should_be(self) -> None:
        """Another thing of that name."""
        disk = MemoryDisk()
        disk.write_file(f"{ROOT}", b"")
        with self.assertRaises(StoreError):
            FileStore.open(config_of(), disk)


class CrashLeftoverTests(AccessCase):
    """What a power cut leaves of files that were being made is no damage."""

    def test_an_unfinished_file_is_no_damage(self) -> None:
        """A file that did not get its length yet, after the recorded end."""
        for size in (0, 100):
            for path in (f"{DATA}/{6 * DATA_SIZE:020d}", f"{INDEX}/{7 * INDEX_SIZE:020d}"):
                self.disk.write_file(path, bytes(size))
            self.disk.calls.clear()
            store = self.open()
            self.assertEqual((store.ledger_end_index, store.repair_end_index), (59, -1))
            removed = [call for call in self.disk.calls
                       if call[0] in ("unlink", "sync_directory") and call[1] != ROOT]
            self.assertEqual(removed[:4], [
                ("unlink", f"{DATA}/{6 * DATA_SIZE:020d}"), ("sync_directory", DATA),
                ("unlink", f"{INDEX}/{7 * INDEX_SIZE:020d}"), ("sync_directory", INDEX)])
            store.append_bodies((bytes(900), bytes(900)), 1)
            store.truncate_to(store.read_batch(59, max_count=1, max_bytes=0))
            store.clean_close()

    def test_file_behind_a_gap(self) -> None:
        """The name of a later file came through, that of an earlier one did not."""
        self.disk.write_file(f"{DATA}/{8 * DATA_SIZE:020d}", bytes(DATA_SIZE))
        store = self.open()
        self.assertEqual((store.ledger_end_index, store.repair_end_index), (59, -1))
        last = max(path for path in self.disk.files if "/data/" in path)
        self.assertEqual(last, f"{DATA}/{5 * DATA_SIZE:020d}")

    def test_first_name_lost(self) -> None:
        """Of the first two files, made and never synced, the second one's name came through alone."""
        disk = HookedDisk()
        store = FileStore.open(config_of(), disk)
        store.append_bodies((bytes(900), bytes(900)), 1)
        store.abandon()
        disk.unlink(f"{DATA}/{0:020d}")
        store = FileStore.open(config_of(), disk)
        self.assertEqual((store.ledger_end_index, store.repair_end_index), (-1, -1))
        self.assertEqual(store.parts.data.offsets, [])

    def begun_anew(self, first_unsynced: int) -> HookedDisk:
        """
        A disk on which a ledger of five files, the last of which were never synced, was about to start anew
        after them. The mark says so; no file has gone yet.
        """
        disk = HookedDisk()
        store = FileStore.open(config_of(), disk)
        store.append_bodies((bytes(900),) * first_unsynced, 1)
        flush(store)
        store.append_bodies((bytes(900),) * (5 - first_unsynced), 1)
        disk.failures = {("rename", ""): BROKEN}
        with self.assertRaises(StoreError):
            store.truncate_to(batch_of([our_record(b"far", index=99, term=2, pos=9 * DATA_SIZE, chain=7)]))
        store.abandon()
        disk.failures = {}
        return disk

    def test_old_file_without_its_length(self) -> None:
        """Power failed before the old files went: one of them, with no durable entry, is empty."""
        disk = self.begun_anew(2)
        disk.files[f"{DATA}/{3 * DATA_SIZE:020d}"].data[:] = b""
        disk.files[f"{DATA}/{3 * DATA_SIZE:020d}"].size = 0
        store = FileStore.open(config_of(), disk)
        self.assertEqual((store.ledger_end_index, store.repair_end_index), (2, 1))

    def test_old_file_without_its_name(self) -> None:
        """The same, and the name of one of them is lost."""
        disk = self.begun_anew(2)
        disk.unlink(f"{DATA}/{3 * DATA_SIZE:020d}")
        store = FileStore.open(config_of(), disk)
        self.assertEqual((store.ledger_end_index, store.repair_end_index), (2, 1))

    def test_a_killed_beginner_starts_again(self) -> None:
        """
        The names of a member's first files are durable before the identity says that its term was recorded,
        also if another process made the files and was killed: else a power cut there needs a person.
        """
        self.disk.calls.clear()
        store = self.open()
        store.identity.note_terms()
        calls = [call for call in self.disk.calls if ROOT in call[1]]
        self.assertLess(calls.index(("sync_directory", ROOT)), calls.index(("pwrite", f"{ROOT}/identity")))

    def test_old_files_are_synced(self) -> None:
        """The process was killed there: the next start brings the old files to stable storage."""
        disk = self.begun_anew(2)
        disk.calls.clear()
        FileStore.open(config_of(), disk)
        synced = {path for call, path in disk.calls if call == "datasync" and path.startswith(DATA)}
        self.assertEqual(synced, {f"{DATA}/{file * DATA_SIZE:020d}" for file in range(5)})

    def test_short_index_files(self) -> None:
        """Index files that a power cut emptied are made anew."""
        for offset in (3 * INDEX_SIZE, 5 * INDEX_SIZE):
            self.cut(f"{INDEX}/{offset:020d}", 0)
        store = self.open()
        self.assertEqual((store.ledger_end_index, store.repair_end_index), (59, -1))
        self.assertEqual(bodies_in(store), [bytes([number]) * 50 for number in range(60)])

    def test_a_spare_file_is_no_damage(self) -> None:
        """A file that was made and holds nothing, after an orderly stop."""
        self.disk.write_file(f"{DATA}/{6 * DATA_SIZE:020d}", bytes(DATA_SIZE))
        store = self.open()
        self.assertEqual(store.parts.data.offsets[-1], 5 * DATA_SIZE)

    def test_first_index_file_missing_of_a_long_ledger(self) -> None:
        """Although only the end is scanned otherwise."""
        with mock.patch.object(scanner, "SCAN_BACK_BYTES", 500):
            for forget in (False, True):
                if forget:
                    self.forget_mark()
                self.disk.unlink(f"{INDEX}/{0:020d}")
                store = self.open()
                self.assertEqual(store.position_of(0), 0)
                self.assertEqual(bodies_in(store), [bytes([number]) * 50 for number in range(60)])
                store.clean_close()

    def test_a_gap_in_the_index_is_filled(self) -> None:
        """The index is derived: a missing file, or all of them, are made anew."""
        for missing in ([2], [0], list(range(6))):
            store = self.open()
            store.clean_close()
            for number in missing:
                self.disk.unlink(f"{INDEX}/{number * INDEX_SIZE:020d}")
            store = self.open()
            self.assertEqual((store.ledger_end_index, store.repair_end_index), (59, -1))
            store.parts.reads.recent.reset(60)
            self.assertEqual(bodies_in(store), [bytes([number]) * 50 for number in range(60)])
            store.clean_close()

    def test_java_made_an_empty_file(self) -> None:
        """A file without length at the end of a Java directory."""
        self.forget_mark()
        self.disk.write_file(f"{DATA}/{6 * DATA_SIZE:020d}", b"")
        self.assertEqual(self.open().ledger_end_index, 59)


class JavaTests(SynchronousTestCase):
    """Directories that Java wrote."""

    def setUp(self) -> None:
        self.disk = HookedDisk()
        store = FileStore.open(config_of(), self.disk)
        for number in range(40):
            append_bare(store, [bytes([number]) * 50], 1 + number // 10)
        store.abandon()
        for name in ("commitmark", "lock"):
            self.disk.unlink(f"{ROOT}/{name}")

    def checkpoint(self, text: str) -> None:
        """As Java writes it."""
        self.disk.write_file(f"{ROOT}/checkpoint", text.encode())

    def test_a_java_directory_is_opened(self) -> None:
        """It is opened with its checkpoint, and goes on with checksums."""
        self.checkpoint("endIndex=39\ncommittedIndex=35\n")
        store = FileStore.open(config_of(), self.disk)
        self.assertEqual((store.ledger_begin_index, store.ledger_end_index), (0, 39))
        self.assertEqual(store.ledger_end_term, 4)
        self.assertEqual((store.committed_index, store.repair_end_index), (35, -1))
        store.append_bodies((b"ours",), 5)
        self.assertEqual(bodies_in(store), [bytes([number]) * 50 for number in range(40)] + [b"ours"])

    def test_a_missing_checkpoint_commits_nothing(self) -> None:
        """Nothing is known to be committed."""
        self.assertEqual(FileStore.open(config_of(), self.disk).committed_index, -1)

    def test_commit_behind_the_end(self) -> None:
        """A checkpoint of more than is there: something committed is lost, a leader must bring it back."""
        self.checkpoint("committedIndex=45\nendIndex=45\n")
        store = FileStore.open(config_of(), self.disk)
        self.assertEqual((store.committed_index, store.repair_end_index), (39, 45))

    def test_garbage_behind_the_end(self) -> None:
        """What Java's truncation left after the end is zeroed (W5)."""
        path = f"{DATA}/{3 * DATA_SIZE:020d}"
        store = FileStore.open(config_of(), self.disk)
        end = store.end_position - 3 * DATA_SIZE
        store.abandon()
        self.disk.unlink(f"{ROOT}/commitmark")
        self.disk.files[path].data[end : end + 20] = b"\0\0\0\0\0\0\0\0leftover rec"
        FileStore.open(config_of(), self.disk).abandon()
        self.assertEqual(self.disk.contents()[path][end:].strip(b"\0"), b"")

    def test_java_worked_here_since(self) -> None:
        """A checkpoint that is not ours: the mark of our last clean stop does not count any more."""
        store = FileStore.open(config_of(), self.disk)
        store.record_commit(20)
        store.clean_close()
        store = FileStore.open(config_of(), self.disk)
        store.truncate_to(store.read_batch(30, max_count=1, max_bytes=0))
        # Java knows nothing of the mark: put back the files that it would have left alone.
        store.abandon()
        twin = HookedDisk()
        other = FileStore.open(config_of(), twin)
        for number in range(40):
            append_bare(other, [bytes([number]) * 50], 1 + number // 10)
        other.record_commit(20)
        other.clean_close()
        self.disk.files[f"{ROOT}/commitmark"] = twin.files[f"{ROOT}/commitmark"]
        self.checkpoint("committedIndex=25\nendIndex=30\n")
        store = FileStore.open(config_of(), self.disk)
        self.assertEqual(store.ledger_end_index, 30)
        self.assertEqual(store.committed_index, 20, "a checkpoint has no checksum; a leader knows more")
        self.assertEqual(store.repair_end_index, -1)

    def test_first_file_is_missing(self) -> None:
        """Not expiry: the mark records where the ledger begins. Nothing is changed, and the way out works."""
        store = FileStore.open(config_of(), self.disk)
        store.clean_close()
        first = f"{DATA}/{0:020d}"
        content = self.disk.files[first]
        self.disk.unlink(first)
        before = self.disk.contents()
        with self.assertRaises(DirectoryError) as caught:
            FileStore.open(config_of(), self.disk)
        self.assertIn("retention has not deleted", str(caught.exception))
        self.assertEqual(self.disk.contents(), before)
        self.disk.files[first] = content
        FileStore.open(config_of(), self.disk).abandon()
        self.disk.unlink(first)
        self.disk.unlink(f"{ROOT}/commitmark")
        self.assertGreater(FileStore.open(config_of(), self.disk).ledger_begin_index, 0)

    def test_refused_before_anything_is_moved(self) -> None:
        """A directory that is refused for its beginning keeps the files that a crash left behind."""
        self.disk.unlink(f"{ROOT}/commitmark") if self.disk.exists(f"{ROOT}/commitmark") else None
        self.disk.files[f"{DATA}/{0:020d}"].data[20] ^= 255
        self.disk.files[f"{DATA}/{0:020d}"].data[2] ^= 255
        self.disk.open(f"{DATA}/{99 * DATA_SIZE:020d}", create=True, size=0)
        before = self.disk.contents()
        with self.assertRaises(DirectoryError):
            FileStore.open(config_of(), self.disk)
        self.assertEqual({path: data for path, data in self.disk.contents().items() if "/data/" in path},
                         {path: data for path, data in before.items() if "/data/" in path})

    def test_a_damaged_checkpoint_is_not_java(self) -> None:
        """A checkpoint that makes no sense, or only in part, is no sign of Java: the mark counts."""
        store = FileStore.open(config_of(), self.disk)
        store.clean_close()
        self.disk.unlink(f"{DATA}/{3 * DATA_SIZE:020d}")
        clean = self.disk.clone()
        for text in ("", "committedIndex=-1\nendIndex=2", "committedIndex=-1\n", "rubbish\n"):
            self.disk.files = clean.clone().files
            self.checkpoint(text)
            store = FileStore.open(config_of(), self.disk)
            self.assertEqual(store.repair_end_index, 39, repr(text))
            store.abandon()

    def test_a_wasted_file_is_skipped(self) -> None:
        """A file that holds a blank only is skipped."""
        store = FileStore.open(config_of(), self.disk)
        end = store.end_position
        self.assertEqual(end // DATA_SIZE, 3)
        # The record after it lies one file further than our rule has it.
        store.parts.data.create(4 * DATA_SIZE)
        store.parts.data.create(5 * DATA_SIZE)
        store.parts.data.pwrite(b"\xff\xff\xff\xff" + (DATA_SIZE - end % DATA_SIZE).to_bytes(4, "big"), end)
        store.parts.data.pwrite(b"\xff\xff\xff\xff\0\0\4\0", 4 * DATA_SIZE)
        store.parts.ledger.end_position = 5 * DATA_SIZE
        append_bare(store, [b"behind it"], 5)
        store.abandon()
        self.disk.unlink(f"{ROOT}/commitmark")
        store = FileStore.open(config_of(), self.disk)
        self.assertEqual((store.ledger_end_index, store.position_of(40)), (40, 5 * DATA_SIZE))
        self.assertEqual(bodies_in(store)[-1], b"behind it")
