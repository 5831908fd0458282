# -*- test-case-name: tests.sim.test_crashes -*-
"""
An in-memory disk that reports each change before making it, and can produce every state after a power cut.

A state of the disk is a value (L{DiskImage}) that shares everything unchanged with the states before it, so
one is kept for each call. Between two syncs each write to a file, cut into sectors, is a separate L{Change},
and so are the length of a new file and each change of a directory. A power cut keeps any subset of them,
with three limits: changes of one name are kept in order; a renamed file loses its old name
only if it has the new one, so a sync of the old directory brings the new name, too, to the platter; after a
length that is lost no byte is kept. The end of a process keeps all.

L{dledger.testing.world.disk.SimDisk} draws one of these outcomes; this disk gives all of them.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import NamedTuple

import attrs

from dledger.base.disk.disk import DiskSpace, File

SECTOR_BYTES = 512
_NO_BARRIER = 1 << 62
_ROOTS = ("", "/", ".")


class Change(NamedTuple):
    """
    A change of a file that is not on stable storage.

    @ivar number: of the change, on this disk; unique.
    @ivar position: where C{data} was written; -1: the file got C{size} bytes of zeroes.
    """

    number: int
    position: int
    data: bytes
    size: int = 0


class NameChange(NamedTuple):
    """
    A change of a directory that is not on stable storage.

    @ivar inode: the new file of that name; None: the name is gone.
    @ivar after: number of the change without which this one is not kept; 0: none.
    """

    number: int
    name: str
    inode: int | None
    after: int = 0


class FileState(NamedTuple):
    """One file: the content that processes read, the durable one, and the changes between the two."""

    data: bytes
    durable: bytes
    changes: tuple[Change, ...] = ()


class DirectoryState(NamedTuple):
    """One directory: names and the numbers of their files, now and durable, and the changes between them."""

    entries: Mapping[str, int]
    durable: Mapping[str, int]
    changes: tuple[NameChange, ...] = ()


def _written(content: bytes, position: int, data: bytes) -> bytes:
    if position > len(content):
        content = content.ljust(position, b"\0")
    return content[:position] + data + content[position + len(data) :]


def _kept_content(file: FileState, kept: Collection[int]) -> bytes:
    left, limit = file.durable, -1
    for change in file.changes:
        if change.position < 0:
            if change.number in kept:
                left = left.ljust(change.size, b"\0")
            else:
                limit = len(left)
        elif change.number in kept:
            data = change.data if limit < 0 else change.data[: max(limit - change.position, 0)]
            if data:
                left = _written(left, change.position, data)
    return left


def _kept_names(
    directory: DirectoryState, kept: Collection[int], is_pending: Collection[int]
) -> dict[str, int]:
    left, stopped = dict(directory.durable), set()
    for change in directory.changes:
        lacks = change.after in is_pending and change.after not in kept
        if change.number not in kept or lacks or change.name in stopped:
            stopped.add(change.name)
        elif change.inode is None:
            left.pop(change.name, None)
        else:
            left[change.name] = change.inode
    return left


@attrs.frozen(eq=False)
class DiskImage:
    """
    A state of a disk.

    @ivar files: by their numbers.
    @ivar directories: by their paths.
    @ivar number: of the last change.
    """

    files: Mapping[int, FileState]
    directories: Mapping[str, DirectoryState]
    number: int = 0

    @property
    def pending(self) -> list[int]:
        """Numbers of the changes that a power cut may lose, in order."""
        numbers: list[int] = []
        reached: set[int] = set()
        for directory in self.directories.values():
            reached.update(directory.entries.values(), directory.durable.values())
            for change in directory.changes:
                numbers.append(change.number)
                if change.inode is not None:
                    reached.add(change.inode)
        for inode in reached:
            numbers += [change.number for change in self.files[inode].changes]
        return sorted(numbers)

    def after_power_cut(self, kept: Collection[int]) -> DiskImage:
        """What is left if only the changes in C{kept} reached the platter, as far as the limits allow."""
        is_pending = set(self.pending)
        directories: dict[str, DirectoryState] = {}
        wanted: set[int] = set()
        for path, directory in self.directories.items():
            names = _kept_names(directory, kept, is_pending)
            directories[path] = DirectoryState(names, names)
            wanted.update(names.values())
        files = {}
        for number in wanted:
            file = self.files[number]
            content = _kept_content(file, kept) if file.changes else file.durable
            files[number] = FileState(content, content)
        return DiskImage(files, directories, self.number)

    def with_torn(self, inode: int, position: int, data: bytes) -> DiskImage:
        """This state, and a write that was interrupted; the number of the new change is C{number + 1}."""
        file = self.files[inode]
        change = Change(self.number + 1, position, data)
        torn = FileState(_written(file.data, position, data), file.durable, (*file.changes, change))
        return DiskImage({**self.files, inode: torn}, self.directories, self.number + 1)

    def contents(self) -> dict[str, bytes]:
        """Path and content of every file, as processes see them."""
        return {
            f"{path}/{name}": self.files[inode].data
            for path, directory in self.directories.items() for name, inode in directory.entries.items()
        }

    def key(self) -> int:
        """Equal images have equal keys, in this process."""
        names = sorted(
            (path, name, self.files[inode].data, self.files[inode].changes)
            for path, directory in self.directories.items() for name, inode in directory.entries.items()
        )
        changes = tuple((path, one.changes) for path, one in sorted(self.directories.items()) if one.changes)
        return hash((tuple(names), changes))

    def with_flipped_bit(self, path: str, position: int, bit: int) -> DiskImage:
        """This state with one damaged bit, on the platter and in the cache."""
        head, tail = os.path.split(path)
        inode = self.directories[head].entries[tail]
        data = bytearray(self.files[inode].data)
        data[position] ^= 1 << bit
        damaged = FileState(bytes(data), bytes(data))
        return DiskImage({**self.files, inode: damaged}, self.directories, self.number)


class WatchedCall(NamedTuple):
    """
    A changing call that is about to be made.

    @ivar kind: "write", "sync", "create", "unlink", "rename", "mkdir".
    @ivar inode, position, data: of a write; -1 and empty for the other calls.
    """

    kind: str
    path: str
    inode: int = -1
    position: int = -1
    data: bytes = b""


#: Called before every changing call.
Watcher = Callable[[WatchedCall], None]


class CrashFile:
    """An open file. See L{dledger.base.disk.disk.File}."""

    __slots__ = ("_disk", "_inode", "_locked", "path")

    def __init__(self, disk: CrashDisk, path: str, inode: int, *, locked: bool = False) -> None:
        self.path = path
        self._disk = disk
        self._inode = inode
        self._locked = locked

    def pread(self, size: int, position: int) -> bytes:
        """See L{dledger.base.disk.disk.File.pread}."""
        return self._disk.files[self._inode].data[position : position + size]

    def pwrite(self, data: bytes | memoryview, position: int) -> None:
        """See L{dledger.base.disk.disk.File.pwrite}."""
        self._disk.write(self.path, self._inode, bytes(data), position)

    def reserve(self, position: int, size: int) -> None:
        """Room never runs out here, and a reservation changes nothing that can be read."""

    def datasync(self) -> None:
        """See L{dledger.base.disk.disk.File.datasync}."""
        self._disk.tell(WatchedCall("sync", self.path))
        self._disk.sync_file(self._inode, self._disk.barrier)

    def size(self) -> int:
        """See L{dledger.base.disk.disk.File.size}."""
        return len(self._disk.files[self._inode].data)

    def modified_s(self) -> float:
        """See L{dledger.base.disk.disk.File.modified_s}."""
        return 0.0

    def close(self) -> None:
        """See L{dledger.base.disk.disk.File.close}."""
        if self._locked:
            self._disk.unlock(self.path)
            self._locked = False


class CrashDisk:
    """
    A file system in memory. See L{dledger.base.disk.disk.Disk}.

    @ivar watcher: called before every changing call; None: nobody is.
    @ivar number: of the last change.
    @ivar barrier: C{datasync} brings no change with a higher number to the platter.
    """

    def __init__(self, image: DiskImage | None = None, watcher: Watcher | None = None) -> None:
        self.watcher = watcher
        self.barrier = _NO_BARRIER
        empty = {path: DirectoryState({}, {}) for path in _ROOTS}
        self.files: dict[int, FileState] = dict(image.files) if image else {}
        self._directories: dict[str, DirectoryState] = dict(image.directories) if image else empty
        self.number = image.number if image else 0
        self._next_inode = max(self.files, default=0) + 1
        self._locks: set[str] = set()

    def image(self) -> DiskImage:
        """The present state."""
        return DiskImage(dict(self.files), dict(self._directories), self.number)

    def tell(self, call: WatchedCall) -> None:
        """Call the watcher."""
        if self.watcher is not None:
            self.watcher(call)

    def _count(self) -> int:
        self.number += 1
        return self.number

    @contextmanager
    def syncing_up_to(self, number: int) -> Iterator[None]:
        """Inside the block, C{datasync} covers only changes up to C{number}."""
        self.barrier = number
        try:
            yield
        finally:
            self.barrier = _NO_BARRIER

    def settle(self) -> None:
        """Everything is on stable storage from now on."""
        for inode, file in self.files.items():
            self.files[inode] = FileState(file.data, file.data)
        for path, directory in self._directories.items():
            self._directories[path] = DirectoryState(directory.entries, directory.entries)

    # -- files ------------------------------------------------------------------------------------

    def write(self, path: str, inode: int, data: bytes, position: int) -> None:
        """Write into the page cache; one change for each sector."""
        self.tell(WatchedCall("write", path, inode, position, data))
        file = self.files[inode]
        changes, at = list(file.changes), 0
        while at < len(data):
            until = at + SECTOR_BYTES - (position + at) % SECTOR_BYTES
            changes.append(Change(self._count(), position + at, data[at:until]))
            at = until
        self.files[inode] = FileState(_written(file.data, position, data), file.durable, tuple(changes))

    def sync_file(self, inode: int, barrier: int = _NO_BARRIER) -> None:
        """Bring the changes of a file, up to the barrier, to the platter."""
        file = self.files[inode]
        numbers = {change.number for change in file.changes if change.number <= barrier}
        rest = tuple(change for change in file.changes if change.number not in numbers)
        durable = _kept_content(file, numbers) if rest else file.data
        self.files[inode] = FileState(file.data, durable, rest)

    # -- directories ------------------------------------------------------------------------------

    def _directory(self, path: str) -> DirectoryState:
        found = self._directories.get(path)
        if found is None:
            raise FileNotFoundError(errno.ENOENT, "No such file or directory", path)
        return found

    def _inode(self, path: str) -> int:
        head, tail = os.path.split(path)
        inode = self._directory(head).entries.get(tail)
        if inode is None:
            if path in self._directories:
                raise IsADirectoryError(errno.EISDIR, "Is a directory", path)
            raise FileNotFoundError(errno.ENOENT, "No such file or directory", path)
        return inode

    def _bind(self, path: str, inode: int | None, *, after: int = 0) -> int:
        """Bind or remove (None) a name. @return: number of the change."""
        head, tail = os.path.split(path)
        directory = self._directory(head)
        entries = dict(directory.entries)
        if inode is None:
            del entries[tail]
        else:
            entries[tail] = inode
        change = NameChange(self._count(), tail, inode, after)
        self._directories[head] = DirectoryState(entries, directory.durable, (*directory.changes, change))
        return change.number

    def _new_file(self, path: str, size: int) -> int:
        inode, self._next_inode = self._next_inode, self._next_inode + 1
        changes = (Change(self._count(), -1, b"", size),) if size else ()
        self.files[inode] = FileState(bytes(size), b"", changes)
        self._bind(path, inode)
        return inode

    def open(self, path: str, *, create: bool = False, size: int = 0, reserved: int = -1) -> File:
        """See L{dledger.base.disk.disk.Disk.open}."""
        if not create:
            return CrashFile(self, path, self._inode(path))
        if self.exists(path):
            raise FileExistsError(errno.EEXIST, "File exists", path)
        self._directory(os.path.dirname(path))
        self.tell(WatchedCall("create", path))
        return CrashFile(self, path, self._new_file(path, size))

    def read_file(self, path: str) -> bytes:
        """See L{dledger.base.disk.disk.Disk.read_file}."""
        return self.files[self._inode(path)].data

    def write_file(self, path: str, data: bytes) -> None:
        """See L{dledger.base.disk.disk.Disk.write_file}."""
        aside = path + ".tmp"
        self.tell(WatchedCall("create", aside))
        inode = self._new_file(aside, 0)
        self.write(aside, inode, data, 0)
        self.tell(WatchedCall("sync", aside))
        self.sync_file(inode)
        self.tell(WatchedCall("rename", path))
        self._bind(aside, None, after=self._bind(path, inode))
        self.sync_directory(os.path.dirname(path))

    def exists(self, path: str) -> bool:
        """See L{dledger.base.disk.disk.Disk.exists}."""
        head, tail = os.path.split(path)
        directory = self._directories.get(head)
        return path in self._directories or (directory is not None and tail in directory.entries)

    def listdir(self, path: str) -> list[str]:
        """See L{dledger.base.disk.disk.Disk.listdir}."""
        names = list(self._directory(path).entries)
        names += [os.path.basename(other) for other in self._directories if other and other != path
                  and os.path.dirname(other) == path]
        return sorted(names)

    def file_size(self, path: str) -> int:
        """See L{dledger.base.disk.disk.Disk.file_size}."""
        return len(self.files[self._inode(path)].data)

    def makedirs(self, path: str) -> None:
        """See L{dledger.base.disk.disk.Disk.makedirs}."""
        if path not in self._directories:
            self.makedirs(os.path.dirname(path))
            self.tell(WatchedCall("mkdir", path))
            self._directories[path] = DirectoryState({}, {})

    def unlink(self, path: str) -> None:
        """See L{dledger.base.disk.disk.Disk.unlink}."""
        self._inode(path)
        self.tell(WatchedCall("unlink", path))
        self._bind(path, None)

    def rename(self, path: str, to: str) -> None:
        """See L{dledger.base.disk.disk.Disk.rename}."""
        inode = self._inode(path)
        if self.exists(to):
            raise FileExistsError(errno.EEXIST, "File exists", to)
        self.tell(WatchedCall("rename", path))
        self._bind(path, None, after=self._bind(to, inode))
        self.sync_directory(os.path.dirname(to))
        self.sync_directory(os.path.dirname(path))

    def sync_directory(self, path: str) -> None:
        """See L{dledger.base.disk.disk.Disk.sync_directory}."""
        self.tell(WatchedCall("sync", path))
        after = {change.after for change in self._directory(path).changes if change.after}
        for other, directory in self._directories.items():
            renamed = [change for change in directory.changes if change.number in after]
            if renamed and other != path:
                new = {change.name: change.inode for change in renamed if change.inode is not None}
                durable = {**directory.durable, **new}
                rest = tuple(change for change in directory.changes if change.number not in after)
                self._directories[other] = DirectoryState(directory.entries, durable, rest)
        names = self._directory(path).entries
        self._directories[path] = DirectoryState(names, names)

    def space(self, path: str) -> DiskSpace:
        """Half of it is free."""
        return DiskSpace(total=1 << 40, free=1 << 39, usable=1 << 39)

    def lock(self, path: str) -> File:
        """See L{dledger.base.disk.disk.Disk.lock}."""
        if path in self._locks:
            raise BlockingIOError(errno.EWOULDBLOCK, "Resource temporarily unavailable", path)
        self._locks.add(path)
        inode = self._inode(path) if self.exists(path) else self._new_file(path, 0)
        return CrashFile(self, path, inode, locked=True)

    def unlock(self, path: str) -> None:
        """Release the lock; its handle was closed."""
        self._locks.discard(path)

    def flip_bit(self, path: str, position: int, bit: int) -> None:
        """Damage one bit, on the platter and in the cache; the file has no changes that are not durable."""
        inode = self._inode(path)
        data = bytearray(self.files[inode].data)
        data[position] ^= 1 << bit
        self.files[inode] = FileState(bytes(data), bytes(data))
