# -*- test-case-name: tests.storage.test_reader -*-
"""
A view of a data directory, ours or Java's, live or stopped, that writes nothing and takes no lock.

File sizes are taken from the files. The index says where the ledger ends. On a live member it may be a
moment ahead of the data or behind it: the reader checks the last records, and the last sound record is the
end. The committed index comes from the commit mark (ours) or the checkpoint (Java's, written every three
seconds); it may lag, but is never ahead.

A file that expires while it is read is not damage: the beginning has moved, see L{LogReader.refresh}.
"""

from __future__ import annotations

from collections.abc import Iterator

import attrs

from dledger.base.disk.disk import Disk, ReadOnlyDisk
from dledger.base.disk.hints import Hints
from dledger.base.disk.segment import SegmentReader, offsets_in
from dledger.storage.files.commit_mark import COMMIT_MARK_NAME, CommitMark, is_superseded, read_mark
from dledger.storage.files.properties import read_checkpoint
from dledger.storage.files.records import DamagedRecord, Walk, walk_records
from dledger.storage.manifests.archive_manifest import SLOT_NAMES
from dledger.values.errors import DirectoryError, StoreError
from protocols.wire.ledger.batches import EntryBatch
from protocols.wire.ledger.entry import (
    BLANK_MAGIC,
    ENTRY_HEADER,
    ENTRY_HEADER_SIZE,
    INDEX_UNIT,
    INDEX_UNIT_SIZE,
)

_UNITS_MAX = 32 * 1024
#: Files of data, and of index, that stay open.
_HANDLES_MAX = 32
#: Of files that are held: see L{LogReader.hold}.
HELD_BYTES_MAX, HELD_FILES_MAX = 4 << 30, 64


@attrs.frozen(kw_only=True)
class RawRun:
    """
    Whole consecutive records of one data file, as bytes, and their index units.

    @ivar position: stream offset of the first record.
    @ivar path, offset: the file and the byte in it where C{records} starts.
    @ivar records: bytes of the records; only their length was checked.
    @ivar units: 32 bytes for each record.
    """

    first_index: int
    count: int
    position: int
    path: str
    offset: int
    records: bytes
    units: bytes


def require_ledger(disk: Disk, path: str, data_path: str) -> None:
    """
    Check that C{path} is a member's directory, by the names in it.

    @raise DirectoryError: it is none.
    @raise OSError: it cannot be read.
    """
    if any(disk.exists(f"{path}/{name}") for name in SLOT_NAMES):
        raise DirectoryError(f"{path} is an archive or a backup, which has no index, and no member's "
                             "directory: begin a member with it (dledger restore), or name a member's "
                             "directory")
    # A member without entries has neither data nor index.
    is_new = disk.exists(f"{path}/{COMMIT_MARK_NAME}") and not disk.exists(f"{path}/index")
    if not is_new and not disk.exists(data_path):
        raise DirectoryError(_no_ledger(disk, path, data_path))


def _refresh(files: SegmentReader, disk: Disk) -> None:
    """List a directory of segments again."""
    directory = files.directory
    offsets, foreign = offsets_in(disk, directory) if disk.exists(directory) else ([], "")
    if foreign:
        raise DirectoryError(f"{directory}/{foreign} is not a ledger's file (names are 20 digits)")
    file_size = disk.file_size(files.path(offsets[0])) if offsets else files.file_size
    # A live member may be creating the last file.
    if len(offsets) > 1 and disk.file_size(files.path(offsets[-1])) != file_size:
        offsets.pop()
    files.show(offsets, file_size)


class LogReader:
    """
    The ledger of one directory, read only.

    @ivar path: the member's directory (the one that holds C{data} and C{index}).
    @ivar begin_index, end_index, committed_index: indexes at the last L{refresh}; -1 for none.
    @ivar mark: the commit mark; None if it is absent or not trusted.
    """

    def __init__(self, disk: Disk, path: str, data_path: str) -> None:
        self._disk = disk
        self.path = path
        self.data = SegmentReader(disk, data_path, handles_max=_HANDLES_MAX)
        self.index = SegmentReader(disk, f"{path}/index", handles_max=_HANDLES_MAX)
        self.mark: CommitMark | None = None
        self.begin_index = self.end_index = self.committed_index = -1

    @classmethod
    def open(cls, path: str, *, data_path: str = "", disk: Disk | None = None) -> LogReader:
        """
        Open a member's directory for reading.

        @param path: C{<store_base_dir>/dledger-<self_id>}.
        @param data_path: directory of the data files; empty: C{<path>/data}.
        @raise DirectoryError: C{path} is not a ledger's directory.
        @raise StoreError: the directory cannot be read.
        """
        disk = disk if disk is not None else ReadOnlyDisk()
        path = path.rstrip("/") or "/"
        data_path = data_path or f"{path}/data"
        try:
            require_ledger(disk, path, data_path)
            reader = cls(disk, path, data_path)
            reader.refresh()
        except OSError as error:
            raise StoreError(f"{path} cannot be read: {error}", path=path) from error
        return reader

    @property
    def data_file_size(self) -> int:
        """Bytes of one data file; 0 if there is none."""
        return self.data.file_size

    @property
    def index_file_size(self) -> int:
        """Bytes of one index file; 0 if there is none."""
        return self.index.file_size

    def refresh(self) -> None:
        """Find again where the ledger begins and ends, and how far it is committed."""
        _refresh(self.data, self._disk)
        _refresh(self.index, self._disk)
        self.begin_index = self._find_begin()
        checkpoint = read_checkpoint(Hints(self._disk), self.path)
        found = read_mark(self._disk, f"{self.path}/{COMMIT_MARK_NAME}")
        self.mark = found[1] if found is not None else None
        if self.mark is not None and is_superseded(self.mark, checkpoint):
            self.mark = None
        self.end_index = self._find_end() if self.begin_index >= 0 else -1
        committed = max(checkpoint[0] if checkpoint else -1, self.mark.committed_index if self.mark else -1)
        self.committed_index = min(committed, self.end_index)
        if self.committed_index < self.begin_index:
            self.committed_index = -1

    def _find_begin(self) -> int:
        for offset in self.data.offsets:
            header = self.data.pread(ENTRY_HEADER_SIZE, offset)
            if len(header) < ENTRY_HEADER_SIZE:
                continue
            fields = ENTRY_HEADER.unpack(header)
            if fields[0] == BLANK_MAGIC:
                continue
            return int(fields[2]) if fields[0] == 1 and fields[4] == offset else -1
        return -1

    def unit(self, index: int) -> tuple[int, int, int, int, int] | None:
        """Magic, pos, size, index and term of an index unit; None if it is absent or not sound."""
        data = self.index.pread(INDEX_UNIT_SIZE, index * INDEX_UNIT_SIZE)
        if len(data) < INDEX_UNIT_SIZE:
            return None
        unit: tuple[int, int, int, int, int] = INDEX_UNIT.unpack(data)
        return unit if unit[0] == 1 and unit[3] == index else None

    def _find_end(self) -> int:
        low = self.begin_index
        if self.mark is not None and self.unit(self.mark.end_index) is not None:
            low = max(low, self.mark.end_index)
        if self.unit(low) is None:
            return -1
        high = (self.index.offsets[-1] + self.index.file_size) // INDEX_UNIT_SIZE - 1
        while low < high:
            middle = (low + high + 1) // 2
            if self.unit(middle) is None:
                high = middle - 1
            else:
                low = middle
        while low > self.begin_index and not self._sound(low):
            low -= 1
        return low

    def _sound(self, index: int) -> bool:
        unit = self.unit(index)
        if unit is None:
            return False
        try:
            walk = Walk(index=index, position=unit[1])
            data = self.data.pread(min(unit[2], self.data.file_size), unit[1])
            walk_records(data, walk, max_count=1, one_term=True, size_max=self.data.file_size)
        except DamagedRecord:
            return False
        return walk.count == 1

    def hold(self, position: int, index: int) -> None:
        """
        Keep the files that come next from being lost to the member's retention while they are read: up to
        C{HELD_BYTES_MAX} and C{HELD_FILES_MAX} from C{position} and C{index} on, two of each kind at least.
        """
        self.data.hold(position, HELD_BYTES_MAX, HELD_FILES_MAX)
        self.index.hold(index * INDEX_UNIT_SIZE, HELD_BYTES_MAX, HELD_FILES_MAX)

    def runs(
        self, first_index: int, *, end_index: int | None = None, max_bytes: int = 4 * 1024 * 1024
    ) -> Iterator[RawRun]:
        """
        Raw records from C{first_index} on, in runs of at most C{max_bytes} (but at least one record).

        @param end_index: last index wanted, inclusive; None: the committed index. Entries after the
            committed index may be cut again.
        @raise StoreError: the index or a data file is damaged or gone.
        """
        last = self.committed_index if end_index is None else min(end_index, self.end_index)
        index = first_index
        while index <= last:
            run = self._run(index, last, max_bytes)
            yield run
            index += run.count

    def _run(self, first_index: int, last_index: int, max_bytes: int) -> RawRun:
        at = first_index * INDEX_UNIT_SIZE
        wanted = min(last_index - first_index + 1, _UNITS_MAX, max_bytes // ENTRY_HEADER_SIZE + 1)
        units = self.index.pread(wanted * INDEX_UNIT_SIZE, at)
        units = units[: len(units) - len(units) % INDEX_UNIT_SIZE]
        count, base, start, end = 0, -1, 0, 0
        for magic, pos, size, index, _term in INDEX_UNIT.iter_unpack(units):
            if magic != 1 or index != first_index + count or size < ENTRY_HEADER_SIZE:
                break
            if not count:
                base, start, end = self.data.base(pos), pos, pos
            if pos != end or self.data.base(pos) != base or base < 0:
                break
            if count and pos + size - start > max_bytes:
                break
            end = pos + size
            count += 1
        if not count:
            raise self._bad(self.index, at, first_index, "the index has no sound unit for it")
        records = self.data.pread(end - start, start)
        if len(records) < end - start:
            raise self._bad(self.data, start, first_index, "its file is gone or truncated")
        return RawRun(
            first_index=first_index, count=count, position=start, path=self.data.path(base),
            offset=start - base, records=records, units=units[: count * INDEX_UNIT_SIZE],
        )

    def _bad(self, files: SegmentReader, position: int, index: int, what: str) -> StoreError:
        base = files.base(position)
        path = files.path(base) if base >= 0 else files.directory
        return StoreError(f"entry {index} cannot be read: {path} at {position - max(base, 0)}: {what}",
                          file=path, offset=position - max(base, 0), index=index)

    def batches(
        self, first_index: int, *, end_index: int | None = None, max_bytes: int = 4 * 1024 * 1024,
        behind: tuple[int, int | None] = (-1, None),
    ) -> Iterator[EntryBatch]:
        """
        As L{runs}, with every record checked: index, position, term, size and any checksums.

        @param behind: term (-1: any) and C{chainCrc} (None: not known) of the entry before C{first_index}.
        @raise StoreError: a record is not sound; the message names file and offset.
        """
        term, chain = behind
        for run in self.runs(first_index, end_index=end_index, max_bytes=max_bytes):
            walk = Walk(index=run.first_index, position=run.position, term=term, chain_crc=chain)
            try:
                walk_records(run.records, walk, max_count=run.count, one_term=False,
                             size_max=self.data.file_size)
            except DamagedRecord as damage:
                raise self._bad(self.data, damage.position, damage.index, damage.what) from None
            if walk.count != run.count:
                raise self._bad(self.data, walk.position, walk.index, "its size is not the indexed one")
            chain, term = walk.chain_crc, walk.term
            yield EntryBatch(first_index=run.first_index, count=run.count, term=term, records=run.records)

    def close(self) -> None:
        """Release all handles."""
        self.data.close()
        self.index.close()


def _no_ledger(disk: Disk, path: str, data_path: str) -> str:
    if not disk.exists(path):
        return f"{path} does not exist: name a member's directory, <store_base_dir>/dledger-<self_id>"
    members = _members_in(disk, path)
    for name in disk.listdir(path)[:8]:  # (dledger local has a directory for each member.)
        members += [f"{name}/{member}" for member in _members_in(disk, f"{path}/{name}")]
    if members:
        return f"{path} holds members' directories: name one of them ({', '.join(members[:8])})"
    return f"{path} is not a member's directory: there is no {data_path}"


def _members_in(disk: Disk, path: str) -> list[str]:
    try:
        return [name for name in disk.listdir(path) if name.startswith("dledger-")]
    except OSError:
        return []  # a file, for example
