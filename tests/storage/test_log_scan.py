# -*- test-case-name: tests.storage.test_log_scan -*-
"""The part of a ledger that a start reads, and bytes that it takes for no record."""

from __future__ import annotations

from unittest import mock

from twisted.trial.unittest import SynchronousTestCase

from dledger.storage.start import scanner
from dledger.storage.store.file_store import FileStore
from dledger.values.errors import DamagedEntryError
from tests.storage.support import (
    DATA_SIZE,
    INDEX_SIZE,
    HookedDisk,
    bare_record,
    batch_of,
    bodies,
    bodies_in,
    config_of,
    flush,
    our_record,
)

ROOT = "base/dledger-n0"


class ScanTests(SynchronousTestCase):
    """How much is read at a start."""

    def test_only_the_end_is_read(self) -> None:
        """Of a long ledger only the end is read, after a clean stop and after a kill."""
        disk = HookedDisk()
        config = config_of(mapped_file_size_for_entry_data=1 << 22, mapped_file_size_for_entry_index=1 << 20)
        with mock.patch.object(scanner, "SCAN_BACK_BYTES", 1 << 16):
            store = FileStore.open(config, disk)
            for _ in range(80):
                store.append_bodies((b"x" * 950,) * 100, 1)
            flush(store)
            store.append_bodies((b"x" * 950,) * 100, 1)
            for stop in (FileStore.abandon, FileStore.clean_close):
                stop(store)
                with mock.patch.object(scanner, "walk_records", wraps=scanner.walk_records) as walked:
                    store = FileStore.open(config, disk)
                self.assertEqual((store.ledger_end_index, store.repair_end_index), (8099, -1))
                scanned = sum(len(call.args[0]) for call in walked.call_args_list)
                self.assertLess(scanned, 1 << 21)
                self.assertGreater(scanned, 1 << 16)

    def test_the_last_java_files_are_read(self) -> None:
        """Without a mark the last files are read."""
        disk = HookedDisk()
        with mock.patch.object(scanner, "SCAN_BACK_BYTES", 1024):
            store = FileStore.open(config_of(), disk)
            for number in range(100):
                store.append_bodies((bytes([number]) * 50,), 1)
            store.abandon()
            disk.unlink(f"{ROOT}/commitmark")
            disk.files[f"{ROOT}/data/{0:020d}"].data[60] ^= 1
            store = FileStore.open(config_of(), disk)
            self.assertEqual(store.ledger_end_index, 99)
            with self.assertRaises(DamagedEntryError):
                bodies_in(store)
            store.abandon()
            store = FileStore.open(config_of(), disk)
            self.assertEqual((store.ledger_end_index, store.holes[0].first_index), (99, 0))


    def test_java_late_files(self) -> None:
        """Scanning starts in a late file, if index and data agree on its first record; else further back."""
        for damage in ("", "index", "pos", "term", "data", "blank", "no index"):
            disk = HookedDisk()
            with mock.patch.object(scanner, "SCAN_BACK_BYTES", 1024):
                store = FileStore.open(config_of(), disk)
                for number in range(100):
                    store.append_bodies((bytes([number]) * 50,), 1)
                late = store.parts.data.offsets[-3]
                index = next(at for at in range(100) if store.position_of(at) == late)
                store.abandon()
                disk.unlink(f"{ROOT}/commitmark")
                unit = disk.files[f"{ROOT}/index/{index * 32 // INDEX_SIZE * INDEX_SIZE:020d}"].data
                at = index * 32 % INDEX_SIZE
                if damage == "index":
                    unit[at + 23] ^= 1
                elif damage == "pos":
                    unit[at + 11] ^= 1
                elif damage == "term":
                    unit[at + 31] ^= 2
                elif damage == "no index":
                    for path in [path for path in disk.files if "/index/" in path]:
                        disk.unlink(path)
                elif damage in ("data", "blank"):
                    magic = b"\xff" * 4 if damage == "blank" else b"xxxx"
                    disk.files[f"{ROOT}/data/{late:020d}"].data[0:4] = magic
                with mock.patch.object(scanner.Scanner, "scan", autospec=True,
                                       side_effect=scanner.Scanner.scan) as scan:
                    store = FileStore.open(config_of(), disk)
                started_at = scan.call_args.args[3]
                if damage == "no index":
                    self.assertEqual(started_at, 0)
                elif damage:
                    self.assertEqual(started_at, late - DATA_SIZE, damage)
                else:
                    self.assertEqual(started_at, late)
                whole = damage not in ("data", "blank")
                self.assertEqual(store.ledger_end_index, 99 if whole else index - 1, damage)
                self.assertEqual(bodies_in(store), bodies(0, store.ledger_end_index + 1))

    def test_index_leads_nowhere(self) -> None:
        """A unit that points outside the data is no place to start from."""
        disk = HookedDisk()
        with mock.patch.object(scanner, "SCAN_BACK_BYTES", 500):
            store = FileStore.open(config_of(), disk)
            for number in range(60):
                store.append_bodies((bytes([number]) * 50,), 1)
            flush(store)
            store.abandon()
            for position in (5, 6, 10, 11, 31):
                twin = disk.clone()
                for path in [path for path in twin.files if "/index/" in path]:
                    for at in range(0, INDEX_SIZE, 32):
                        twin.files[path].data[at + position] ^= 1
                store = FileStore.open(config_of(), twin)
                self.assertEqual((store.ledger_end_index, store.repair_end_index), (59, -1))
                self.assertEqual(bodies_in(store), bodies(0, 60))

    def test_big_records_are_read(self) -> None:
        """Records that are longer than what is read at a time."""
        disk = HookedDisk()
        config = config_of(mapped_file_size_for_entry_data=1 << 23)
        big = [bytes([number]) * ((3 << 20) + number) for number in range(4)]
        store = FileStore.open(config, disk)
        store.append_bodies(tuple(big), 1)
        flush(store)
        store.abandon()
        store = FileStore.open(config, disk)
        self.assertEqual([len(body) for body in bodies_in(store)], [len(body) for body in big])
        self.assertEqual(store.repair_end_index, -1)
        # And one of which the file does not hold the end.
        end = store.end_position
        header = our_record(b"x", index=4, term=1, pos=end)[:4] + (3 << 20).to_bytes(4, "big")
        store.parts.data.pwrite(header, end)
        store.abandon()
        self.assertEqual(FileStore.open(config, disk).ledger_end_index, 3)


class NoRecordTests(SynchronousTestCase):
    """The bytes at the end of a file that are neither record nor blank."""

    def setUp(self) -> None:
        self.disk = HookedDisk()
        self.store = FileStore.open(config_of(), self.disk)
        self.store.append_bodies((bytes(DATA_SIZE - 56 - 20),), 1)
        self.assertEqual(self.store.end_position, DATA_SIZE - 28)

    def ends_there(self) -> None:
        """The next start ends the ledger where it was."""
        end = self.store.end_position
        self.store.abandon()
        self.store = FileStore.open(config_of(), self.disk)
        self.assertEqual((self.store.ledger_end_index, self.store.end_position), (0, end))
        self.store.append_bodies((b"on",), 1)
        self.assertEqual(bodies_in(self.store)[1:], [b"on"])

    def test_small_sizes_are_no_record(self) -> None:
        """A size below that of a header, too close to the end of the file for one."""
        for word in (b"\0\0\0\1\0\0\0\5", b"\0\0\0\1\x80\0\0\0", b"abcdefgh", b"\0\0\0\1\0\0\0\x1c"):
            self.setUp()
            self.store.parts.data.pwrite(word, self.store.end_position)
            self.ends_there()

    def test_record_without_room_for_a_blank(self) -> None:
        """Java's oversize accident: a record up to the very end of its file is not believed."""
        store = FileStore.open(config_of("other"), self.disk)
        store.append_bodies((bytes(900),), 1)
        record = bare_record(bytes(28), index=1, term=1, pos=948)
        self.assertEqual(948 + len(record), DATA_SIZE)
        store.parts.data.pwrite(record, 948)
        store.abandon()
        self.assertEqual(FileStore.open(config_of("other"), self.disk).ledger_end_index, 0)

    def test_first_file_is_a_blank(self) -> None:
        """A beginning that Java wasted: the first record is in the next file."""
        disk = HookedDisk()
        store = FileStore.open(config_of(), disk)
        store.truncate_to(batch_of([our_record(b"x", index=7, term=1, pos=DATA_SIZE)]))
        store.abandon()
        disk.unlink(f"{ROOT}/commitmark")
        disk.write_file(f"{ROOT}/data/{0:020d}", b"\xff\xff\xff\xff\0\0\4\0" + bytes(DATA_SIZE - 8))
        store = FileStore.open(config_of(), disk)
        self.assertEqual((store.ledger_begin_index, store.ledger_end_index), (7, 7))
        self.assertEqual(bodies_in(store), [b"x"])
