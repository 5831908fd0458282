# -*- test-case-name: tests.sim.test_crashes -*-
"""
An in-memory disk that reports each change before making it, and can produce every state after a power cut.

It is the file system of the simulators (L{dledger.testing.world.volume}) with a record on top: a number for
each change that is not on stable storage, and the present state as a value (L{DiskImage}), from which another
disk begins. (L{dledger.testing.world.disk.SimDisk} draws one outcome of a power cut, this disk gives all.)
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from typing import NamedTuple

from dledger.testing.crashes.image import DirectoryState, DiskImage, FileState, NameChange, NewLength
from dledger.testing.world.platter import NO_BARRIER, SECTOR_BYTES, Inode, SimDirectory
from dledger.testing.world.volume import SimVolume


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


class CrashInode(Inode):
    """
    A file, and its state as a value.

    @ivar file_number: unique on this disk.
    """

    __slots__ = ("_count", "_length", "_state", "file_number")

    def __init__(self, file_number: int, count: Callable[[], int], size: int) -> None:
        """@param count: gives the number of the next change."""
        super().__init__(size, 0.0)
        self.file_number = file_number
        self._count = count
        self._length = NewLength(count(), size) if size else None
        self._state: FileState | None = None

    @classmethod
    def of(cls, file_number: int, count: Callable[[], int], state: FileState) -> CrashInode:
        """The file that had this state."""
        made = cls(file_number, count, 0)
        made.data = bytearray(state.data)
        made.durable = bytearray(state.durable)
        made.reserved = len(state.data)
        made.pending = list(state.changes)
        made._length = state.length
        made._state = state
        return made

    def write(self, data: bytes, position: int, number: int) -> None:
        """One change for each sector."""
        self.touch()
        for at in _sectors(position, len(data)):
            end = at - at % SECTOR_BYTES + SECTOR_BYTES - position
            super().write(data[at - position : end], at, number)
            number = self._count()

    def sync(self, barrier: int = NO_BARRIER, since: int = NO_BARRIER) -> None:
        self.touch()
        self._length = None
        super().sync(barrier, since)

    def touch(self) -> None:
        """The state is another one from now on."""
        self._state = None

    def state(self) -> FileState:
        """The present state."""
        if self._state is None:
            data, durable = bytes(self.data), bytes(self.durable)
            changes = tuple(self.pending)
            self._state = FileState(data, data if data == durable else durable, changes, self._length)
        return self._state


def _sectors(position: int, size: int) -> list[int]:
    """Where the pieces of a write begin that are each in one sector."""
    first = position - position % SECTOR_BYTES + SECTOR_BYTES
    return [position, *range(first, position + size, SECTOR_BYTES)] if size else []


class CrashDirectory(SimDirectory):
    """A directory whose changes have numbers, and its state as a value."""

    __slots__ = ("_count", "_numbered", "_state")

    def __init__(self, count: Callable[[], int]) -> None:
        """@param count: gives the number of the next change."""
        super().__init__()
        self._count = count
        self._numbered: list[NameChange] = []
        self._state: DirectoryState | None = None

    def take_up(self, state: DirectoryState, files: dict[int, CrashInode]) -> None:
        """Become a directory that had this state."""
        self.entries = {name: files[number] for name, number in state.entries.items()}
        self.durable = {name: files[number] for name, number in state.durable.items()}
        self._numbered = list(state.changes)
        self._state = state

    def put(self, name: str, inode: Inode | None) -> None:
        self.put_after(name, inode, 0)

    def put_after(self, name: str, inode: Inode | None, after: int) -> int:
        """
        Bind or remove a name. @return: number of the change.

        @param after: number of the change without which this one is not kept; 0: none.
        """
        super().put(name, inode)
        change = NameChange(self._count(), name, None if inode is None else _number_of(inode), after)
        self._numbered.append(change)
        self._state = None
        return change.number

    def sync(self) -> None:
        super().sync()
        self._numbered.clear()
        self._state = None

    @property
    def renames(self) -> set[int]:
        """Numbers of the changes, anywhere, that names which are gone here have waited for."""
        return {change.after for change in self._numbered if change.after}

    def sync_some(self, numbers: set[int]) -> None:
        """Make those names durable that the changes with these numbers gave."""
        synced = [change for change in self._numbered if change.number in numbers]
        if synced:
            for change in synced:
                if change.inode is not None:
                    self.durable[change.name] = self.entries[change.name]
            self._numbered = [change for change in self._numbered if change.number not in numbers]
            self._state = None

    def state(self) -> DirectoryState:
        """The present state."""
        if self._state is None:
            self._state = DirectoryState(
                {name: _number_of(inode) for name, inode in self.entries.items()},
                {name: _number_of(inode) for name, inode in self.durable.items()}, tuple(self._numbered),
            )
        return self._state


def _number_of(inode: Inode) -> int:
    assert isinstance(inode, CrashInode)
    return inode.file_number


class CrashDisk(SimVolume):
    """
    See the module.

    @ivar watcher: called before every changing call; None: nobody is.
    """

    def __init__(self, image: DiskImage | None = None, watcher: Watcher | None = None) -> None:
        self.watcher = watcher
        self._files: dict[int, CrashInode] = {}
        super().__init__()
        self.is_armed = True
        if image is not None:
            self._take_up(image)

    def _take_up(self, image: DiskImage) -> None:
        count = self.count
        self._files = {number: CrashInode.of(number, count, one) for number, one in image.files.items()}
        for path, state in image.directories.items():
            directory = self._directories[path] = self._new_directory()
            directory.take_up(state, self._files)
        self._writes = image.number

    def image(self) -> DiskImage:
        """The present state."""
        files = {number: inode.state() for number, inode in self._files.items()}
        directories = {
            path: one.state() for path, one in self._directories.items() if isinstance(one, CrashDirectory)
        }
        return DiskImage(files, directories, self._writes)

    def settle(self) -> None:
        """Everything is on stable storage from now on."""
        for inode in self._files.values():
            inode.sync()
        for directory in self._directories.values():
            directory.sync()

    def notify(self, call: WatchedCall) -> None:
        """Call the watcher."""
        if self.watcher is not None:
            self.watcher(call)

    # -- what the file system asks for ------------------------------------------------------------

    def before_change(self, path: str, kind: str) -> None:
        """Report the call."""
        self.notify(WatchedCall(kind, path))

    def before_write(self, path: str, inode: Inode, data: bytes, position: int) -> None:
        """Report the call."""
        self.notify(WatchedCall("write", path, _number_of(inode), position, data))

    def _new_inode(self, size: int) -> CrashInode:
        number = max(self._files, default=0) + 1
        inode = self._files[number] = CrashInode(number, self.count, size)
        return inode

    def _new_directory(self) -> CrashDirectory:
        return CrashDirectory(self.count)

    def _recorded(self, path: str) -> CrashDirectory:
        found = self._directory(path)
        assert isinstance(found, CrashDirectory)
        return found

    def overwrite(self, path: str, position: int, data: bytes) -> None:
        super().overwrite(path, position, data)
        inode = self._inode(path)
        assert isinstance(inode, CrashInode)
        inode.touch()

    # -- calls in smaller steps than below --------------------------------------------------------

    def _move(self, path: str, to: str, inode: Inode) -> None:
        """The new name and the loss of the old one are two changes."""
        head, tail = os.path.split(to)
        new = self._recorded(head).put_after(tail, inode, 0)
        head, tail = os.path.split(path)
        self._recorded(head).put_after(tail, None, new)

    def write_file(self, path: str, data: bytes) -> None:
        aside = path + ".tmp"
        self.before_change(aside, "create")
        inode = self._new_inode(0)
        head, tail = os.path.split(aside)
        self._recorded(head).put(tail, inode)
        self.before_write(aside, inode, data, 0)
        inode.write(data, 0, self.count())
        self.before_change(aside, "sync")
        inode.sync()
        self.before_change(path, "rename")
        self._move(aside, path, inode)
        self.sync_directory(head)

    def makedirs(self, path: str) -> None:
        if path not in self._directories:
            self.makedirs(os.path.dirname(path))
            self.before_change(path, "mkdir")
            super().makedirs(path)

    def rename(self, path: str, to: str) -> None:
        inode = self._inode(path)
        if self.exists(to):
            raise FileExistsError(errno.EEXIST, "File exists", to)
        self.before_change(path, "rename")
        self._move(path, to, inode)
        self.sync_directory(os.path.dirname(to))
        self.sync_directory(os.path.dirname(path))

    def sync_directory(self, path: str) -> None:
        """A name that a file has lost here is gone for good: those files have their new names, too."""
        self.before_change(path, "sync")
        renames = self._recorded(path).renames
        if renames:
            for other in self._directories.keys() - {path}:
                self._recorded(other).sync_some(renames)
        self._directory(path).sync()
