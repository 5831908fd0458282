# -*- test-case-name: tests.storage.test_contract -*-
"""
For the storage tests: small files, foreign records, a disk that fails when asked to.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterable
from typing import Any

from twisted.trial.unittest import SynchronousTestCase

from dledger.base.disk.disk import File
from dledger.storage.files.commit_mark import CommitMark, read_mark
from dledger.storage.store.file_store import FileStore
from dledger.testing.world.memory_disk import MemoryDisk
from dledger.values.ledger.config import DLedgerConfig
from protocols.wire.ledger.batches import EntryBatch
from protocols.wire.ledger.entry import ENTRY_HEADER, iterate_records, pack_record

#: Files so small that every test meets blanks, new data files and new index files.
DATA_SIZE = 1024
INDEX_SIZE = 320


def config_of(base: str = "base", **options: Any) -> DLedgerConfig:
    """A configuration with small files."""
    values: dict[str, Any] = {
        "store_base_dir": base,
        "mapped_file_size_for_entry_data": DATA_SIZE,
        "mapped_file_size_for_entry_index": INDEX_SIZE,
    }
    return DLedgerConfig(**{**values, **options})


def bodies_in(store: FileStore) -> list[bytes]:
    """All bodies, read batch by batch."""
    found: list[bytes] = []
    index = max(store.ledger_begin_index, 0)
    while index <= store.ledger_end_index:
        batch = store.read_batch(index, max_count=7, max_bytes=900)
        found.extend(body for _, body in iterate_records(batch))
        index = batch.last_index + 1
    return found


def entry_at(store: FileStore, index: int) -> EntryBatch:
    """A single entry."""
    return store.read_batch(index, max_count=1, max_bytes=0)


def batch_of(records: Iterable[bytes]) -> EntryBatch:
    """A batch of records as they are."""
    listed = list(records)
    first = ENTRY_HEADER.unpack_from(listed[0])
    last = ENTRY_HEADER.unpack_from(listed[-1])
    return EntryBatch(first_index=first[2], count=len(listed), term=last[3], records=b"".join(listed))


def bare_record(body: bytes, *, index: int, term: int, pos: int) -> bytes:
    """A record as Java writes it: without checksums."""
    return ENTRY_HEADER.pack(1, 48 + len(body), index, term, pos, 0, 0, 0, len(body)) + body


def our_record(body: bytes, *, index: int, term: int, pos: int, chain: int = 0) -> bytes:
    """A record as our leaders write it."""
    return pack_record(body, index=index, term=term, pos=pos, previous_chain_crc=chain)[0]


def append_bare(store: FileStore, bodies: Iterable[bytes], term: int) -> None:
    """Entries of a Java leader."""
    for body in bodies:
        size, pos = 48 + len(body), store.end_position
        if size + 8 > DATA_SIZE - pos % DATA_SIZE:
            pos += DATA_SIZE - pos % DATA_SIZE
        index = store.ledger_end_index + 1
        store.append_entries(batch_of([bare_record(body, index=index, term=term, pos=pos)]))


def flush(store: FileStore) -> None:
    """One whole flush, if there is anything to flush."""
    job = store.prepare_flush()
    if job is not None:
        job.run()
        store.finish_flush(job)


Hook = Callable[[str, str], None]


class HookedFile:
    """Reports its disk before every call."""

    def __init__(self, disk: HookedDisk, file: File) -> None:
        self.path = file.path
        self._disk = disk
        self._file = file

    def pread(self, size: int, position: int) -> bytes:
        """Report, then read."""
        self._disk.notify("pread", self.path)
        return self._file.pread(size, position)

    def pwrite(self, data: bytes | memoryview, position: int) -> None:
        """Report, then write."""
        self._disk.notify("pwrite", self.path)
        self._file.pwrite(data, position)

    def reserve(self, position: int, size: int) -> None:
        """Report."""
        self._disk.notify("reserve", self.path)

    def datasync(self) -> None:
        """Report."""
        self._disk.notify("datasync", self.path)

    def size(self) -> int:
        """Length in bytes."""
        return self._file.size()

    def modified_s(self) -> float:
        """Modification time of the disk."""
        return self._disk.modified_s.get(self.path, 0.0)

    def close(self) -> None:
        """Report, then close."""
        self._disk.notify("close", self.path)
        self._file.close()


class HookedDisk(MemoryDisk):
    """
    A disk in memory that keeps a list of calls and fails those that it is asked to fail.

    @ivar calls: operation and path, oldest first.
    @ivar failures: operation and a part of the path, to the errno that it fails with.
    @ivar fails_at: the number of the call that fails with EIO, whatever it is; -1 for none.
    """

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[str, str]] = []
        self.failures: dict[tuple[str, str], int] = {}
        self.fails_at = -1
        self.modified_s: dict[str, float] = {}

    def notify(self, operation: str, path: str) -> None:
        """Note a call, or fail it."""
        self.calls.append((operation, path))
        if len(self.calls) - 1 == self.fails_at:
            raise OSError(BROKEN, os.strerror(BROKEN), path)
        for (failing, part), number in self.failures.items():
            if failing == operation and part in path:
                raise OSError(number, os.strerror(number), path)

    def count(self, operation: str, part: str = "") -> int:
        """How many calls there were."""
        return sum(1 for called, path in self.calls if called == operation and part in path)

    def open(self, path: str, *, create: bool = False, size: int = 0, reserved: int = -1) -> File:
        """Report, then open."""
        self.notify("create" if create else "open", path)
        return HookedFile(self, super().open(path, create=create, size=size))

    def read_file(self, path: str) -> bytes:
        """Report, then read."""
        self.notify("read_file", path)
        return super().read_file(path)

    def write_file(self, path: str, data: bytes) -> None:
        """Report, then write."""
        self.notify("write_file", path)
        super().write_file(path, data)

    def rename(self, path: str, to: str) -> None:
        """Report, then rename."""
        self.notify("rename", path)
        super().rename(path, to)

    def unlink(self, path: str) -> None:
        """Report, then remove."""
        self.notify("unlink", path)
        super().unlink(path)

    def sync_directory(self, path: str) -> None:
        """Report."""
        self.notify("sync_directory", path)

    def lock(self, path: str) -> File:
        """Report, then lock."""
        self.notify("lock", path)
        return super().lock(path)

    def contents(self) -> dict[str, bytes]:
        """Every file, whole."""
        return {path: MemoryDisk.read_file(self, path) for path in self.files}


NO_SPACE = errno.ENOSPC
BROKEN = errno.EIO
ROOT = "base/dledger-n0"
FIRST = "00000000000000000000"


class HookedCase(SynchronousTestCase):
    """A store on a disk that is watched."""

    options: dict[str, object] = {}

    def setUp(self) -> None:
        self.disk = HookedDisk()
        self.config: DLedgerConfig = config_of(**self.options)
        self.store = FileStore.open(self.config, self.disk)

    def reopen(self) -> FileStore:
        """After a kill."""
        self.disk.failures.clear()
        self.store.abandon()
        self.store = FileStore.open(self.config, self.disk)
        return self.store

    def mark(self) -> CommitMark:
        """The mark as it is in the file."""
        found = read_mark(self.disk, f"{ROOT}/commitmark")
        assert found is not None
        return found[1]

    def data(self, name: str = FIRST) -> bytes:
        """A data file."""
        return self.disk.contents()[f"{ROOT}/data/{name}"]

    def index(self, name: str = FIRST) -> bytes:
        """An index file."""
        return self.disk.contents()[f"{ROOT}/index/{name}"]


def bodies(start: int, end: int) -> list[bytes]:
    """Bodies of entries, each its own."""
    return [bytes([number]) * 50 for number in range(start, end)]
