# -*- test-case-name: tests.base.test_disk -*-
"""
A file system in memory: no durability, no faults. For tests and fuzzing.

A file is made with a length and grows when it is written beyond it. Only bytes after the last written one
take no memory.
"""

from __future__ import annotations

import errno
import math
import os

import attrs

from dledger.base.disk.disk import DiskSpace, File


@attrs.define
class _Content:
    data: bytearray = attrs.Factory(bytearray)
    size: int = 0


class MemoryFile:
    """An open file. Implements L{dledger.base.disk.disk.File}."""

    def __init__(
        self, path: str, content: _Content, locked: set[str] | None = None, modified_s: float = math.inf
    ) -> None:
        self.path = path
        self._content = content
        self._locked = locked
        self._modified_s = modified_s

    def pread(self, size: int, position: int) -> bytes:
        content = self._content
        end = min(position + size, content.size)
        data = bytes(content.data[position:end])
        return data if len(data) >= end - position else data + bytes(max(end - position - len(data), 0))

    def pwrite(self, data: bytes | memoryview, position: int) -> None:
        content = self._content
        if len(content.data) < position:
            content.data.extend(bytes(position - len(content.data)))
        content.data[position : position + len(data)] = data
        content.size = max(content.size, len(content.data))

    def reserve(self, position: int, size: int) -> None:
        """Nothing to do."""

    def datasync(self) -> None:
        """Nothing to do."""

    def size(self) -> int:
        return self._content.size

    def modified_s(self) -> float:
        """See L{MemoryDisk}."""
        return self._modified_s

    def close(self) -> None:
        if self._locked is not None:
            self._locked.discard(self.path)
            self._locked = None


class MemoryDisk:
    """
    A file system; see L{dledger.base.disk.disk.Disk}.

    Implements L{dledger.base.disk.disk.Disk}.

    @ivar locked: paths of the files that are locked; the end of a process releases all of its own.
    """

    def __init__(self, *, modified_s: float = math.inf) -> None:
        """
        @param modified_s: time of the last write of every file, in seconds since 1970. Infinity by default: a
            file in memory never grows old, so expiry keeps it.
        """
        self._modified_s = modified_s
        self.files: dict[str, _Content] = {}
        self.directories: set[str] = {"", "/", "."}
        self.locked: set[str] = set()

    def _find(self, path: str) -> _Content:
        found = self.files.get(path)
        if found is None:
            number = errno.EISDIR if path in self.directories else errno.ENOENT
            raise OSError(number, os.strerror(number), path)
        return found

    def open(self, path: str, *, create: bool = False, size: int = 0, reserved: int = -1) -> File:
        if create:
            if path in self.files:
                raise FileExistsError(errno.EEXIST, "exists", path)
            self.files[path] = _Content(size=size)
        return MemoryFile(path, self._find(path), modified_s=self._modified_s)

    def read_file(self, path: str) -> bytes:
        content = self._find(path)
        return bytes(content.data).ljust(content.size, b"\0")

    def write_file(self, path: str, data: bytes) -> None:
        self.files[path] = _Content(bytearray(data), len(data))

    def exists(self, path: str) -> bool:
        return path in self.files or path in self.directories

    def listdir(self, path: str) -> list[str]:
        if path not in self.directories:
            number = errno.ENOTDIR if path in self.files else errno.ENOENT
            raise OSError(number, os.strerror(number), path)
        inside = path + "/"
        names = [name[len(inside) :] for name in (*self.files, *self.directories) if name.startswith(inside)]
        return sorted(name for name in names if "/" not in name)

    def file_size(self, path: str) -> int:
        return self._find(path).size

    def makedirs(self, path: str) -> None:
        while path not in self.directories:
            if path in self.files:
                raise FileExistsError(errno.EEXIST, "exists", path)
            self.directories.add(path)
            path = os.path.dirname(path)

    def unlink(self, path: str) -> None:
        self._find(path)
        del self.files[path]

    def rename(self, path: str, to: str) -> None:
        if to in self.files or to in self.directories:
            raise FileExistsError(errno.EEXIST, "exists", to)
        if path in self.directories:
            self._rename_directory(path, to)
            return
        self.files[to] = self._find(path)
        del self.files[path]

    def _rename_directory(self, path: str, to: str) -> None:
        inside = path + "/"
        for one in [one for one in self.files if one.startswith(inside)]:
            self.files[to + one[len(path) :]] = self.files.pop(one)
        for one in [one for one in self.directories if one == path or one.startswith(inside)]:
            self.directories.remove(one)
            self.directories.add(to + one[len(path) :])

    def sync_directory(self, path: str) -> None:
        """Nothing to do."""

    def space(self, path: str) -> DiskSpace:
        """There is always room."""
        return DiskSpace(total=1 << 50, free=1 << 50, usable=1 << 50)

    def lock(self, path: str) -> File:
        if path in self.locked:
            raise BlockingIOError(errno.EWOULDBLOCK, "locked", path)
        self.locked.add(path)
        self.files.setdefault(path, _Content())
        return MemoryFile(path, self.files[path], self.locked)

    def clone(self) -> MemoryDisk:
        """A disk with the same files, no lock held."""
        twin = MemoryDisk(modified_s=self._modified_s)
        twin.directories = set(self.directories)
        twin.files = {path: _Content(bytearray(one.data), one.size) for path, one in self.files.items()}
        return twin
