# -*- test-case-name: tests.sim.test_crashes -*-
"""
States of a disk as values, and every state that a power cut may leave of one.

A state (L{DiskImage}) shares everything unchanged with the states before it, so one is kept for each call.
Between two syncs each write to a file, cut into sectors, is a separate change, and so are the length of a
new file and each change of a directory. A power cut keeps any subset of them, with three limits: changes of
one name are kept in order; a renamed file loses its old name only if it has the new one, so a sync of the
old directory brings the new name, too, to the platter; after a length that is lost no byte is kept. The end
of a process keeps all.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from typing import NamedTuple

import attrs

from dledger.testing.world.platter import PendingWrite


class NewLength(NamedTuple):
    """
    The length of a new file, which is not on stable storage: C{size} bytes of zeroes.

    @ivar number: of the change.
    """

    number: int
    size: int


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
    """
    One file: the content that processes read, the durable one, and the changes between the two.

    @ivar length: the first of the changes; None: the file has its length on stable storage.
    """

    data: bytes
    durable: bytes
    changes: tuple[PendingWrite, ...] = ()
    length: NewLength | None = None


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
    if file.length is not None and file.length.number in kept:
        left = left.ljust(file.length.size, b"\0")
    elif file.length is not None:
        limit = len(left)
    for position, written, number in file.changes:
        if number in kept:
            data = written if limit < 0 else written[: max(limit - position, 0)]
            if data:
                left = _written(left, position, data)
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
            file = self.files[inode]
            if file.length is not None:
                numbers.append(file.length.number)
            numbers += [number for _, _, number in file.changes]
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
            content = _kept_content(file, kept) if file.changes or file.length else file.durable
            files[number] = FileState(content, content)
        return DiskImage(files, directories, self.number)

    def with_torn(self, inode: int, position: int, data: bytes) -> DiskImage:
        """This state, and a write that was interrupted; the number of the new change is C{number + 1}."""
        file = self.files[inode]
        changes = (*file.changes, (position, data, self.number + 1))
        torn = file._replace(data=_written(file.data, position, data), changes=changes)
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
            (path, name, self.files[inode].data, self.files[inode].changes, self.files[inode].length)
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
