# -*- test-case-name: tests.sim.test_disk -*-
"""
A file system in memory that knows the written bytes and those that would survive a power cut.

Every file has two contents: the one that processes read (the page cache) and the one on the platter. A
write changes the first, C{datasync} brings it to the second; the same holds for directories and
C{sync_directory}.

The disks of the simulators are made of it: L{dledger.testing.world.disk.SimDisk} lets calls fail and power be
lost, L{dledger.testing.crashes.disk.CrashDisk} keeps each state. They are asked before each call that changes
something, and before reads, where they have set C{is_armed} and C{are_reads_armed}.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager

from dledger.base.disk.disk import DiskSpace, File
from dledger.testing.world.platter import NO_BARRIER, PAGE_BYTES, Inode, SimDirectory

#: Of every disk.
TOTAL_BYTES = 1 << 40


class SimFile:
    """An open file. Implements L{dledger.base.disk.disk.File}."""

    __slots__ = ("_disk", "_inode", "_life", "_locked", "path")

    def __init__(self, disk: SimVolume, path: str, inode: Inode, *, locked: bool = False) -> None:
        self.path = path
        self._disk = disk
        self._inode = inode
        self._life = disk.life
        self._locked = locked

    def _check(self) -> None:
        if self._life != self._disk.life:
            raise OSError(errno.EBADF, "closed, or of a process that has died", self.path)

    def pread(self, size: int, position: int) -> bytes:
        self._check()
        if self._disk.are_reads_armed:
            self._disk.before_read(self.path)
        inode = self._inode
        if inode.bad and size > 0:
            end = min(position + size, len(inode.data)) - 1
            if not inode.bad.isdisjoint(range(position // PAGE_BYTES, end // PAGE_BYTES + 1)):
                raise OSError(errno.EIO, "simulated bad sector", self.path)
        return bytes(inode.data[position : position + size])

    def pwrite(self, data: bytes | memoryview, position: int) -> None:
        self._check()
        disk = self._disk
        whole = bytes(data)
        if self._inode.bad:
            self._inode.check_write(position, position + len(whole), self.path)
        if disk.is_armed:
            disk.before_write(self.path, self._inode, whole, position)
        self._inode.write(whole, position, disk.count())
        self._inode.reserved = max(self._inode.reserved, position + len(whole))
        self._inode.modified_s = disk.now_s

    def reserve(self, position: int, size: int) -> None:
        self._check()
        disk = self._disk
        assert position + size <= len(self._inode.data), "reserved beyond the end of the file"
        if position + size <= self._inode.reserved:
            return
        if disk.is_armed:
            disk.before_reserve(self.path)
        self._inode.reserved = position + size

    def datasync(self) -> None:
        self._check()
        disk = self._disk
        if disk.is_armed:
            disk.before_sync(self.path, self._inode)
        self._inode.sync(disk.barrier, disk.since)

    def size(self) -> int:
        self._check()
        return len(self._inode.data)

    def modified_s(self) -> float:
        return self._inode.modified_s

    def close(self) -> None:
        if self._locked and self._life == self._disk.life:
            self._disk.unlock(self.path)
            self._locked = False
        self._life = -1


class SimVolume:
    """
    See the module, and L{dledger.base.disk.disk.Disk}.

    Implements L{dledger.base.disk.disk.Disk}.

    @ivar life: number of the process that uses the disk; handles of earlier ones are dead.
    @ivar now_s: seconds, for modification times.
    @ivar is_armed: the methods C{before_...} are called for changes.
    @ivar are_reads_armed: C{before_read} and C{before_open} are called.
    @ivar barrier, since: C{datasync} misses the writes with a number after C{barrier} up to C{since}.
    """

    def __init__(self) -> None:
        self.life = 0
        self.now_s = 0.0
        self.is_armed = False
        self.are_reads_armed = False
        self.barrier = self.since = NO_BARRIER
        self._writes = 0
        self._directories = {name: self._new_directory() for name in ("", "/", ".")}
        self._locks: set[str] = set()

    # -- for those that are made of it ----------------------------------------------------------

    def before_change(self, path: str, kind: str) -> None:
        """
        Something is about to change.

        @param kind: "sync", "unlink", "rename", or as the methods below say.
        """

    def before_create(self, path: str, *, takes_room: bool) -> None:
        """A file is about to be made. @param takes_room: with bytes in it."""
        self.before_change(path, "create")

    def before_write(self, path: str, inode: Inode, data: bytes, position: int) -> None:
        """A file is about to be written."""
        self.before_change(path, "write")

    def before_reserve(self, path: str) -> None:
        """Room is about to be reserved."""

    def before_sync(self, path: str, inode: Inode) -> None:
        """A file is about to be brought to the platter."""
        self.before_change(path, "sync")

    def before_read(self, path: str, *, is_whole: bool = False) -> None:
        """A file is about to be read. @param is_whole: all of it, by name."""

    def before_open(self, path: str) -> None:
        """A descriptor is needed."""

    def _new_inode(self, size: int) -> Inode:
        return Inode(size, self.now_s)

    def _new_directory(self) -> SimDirectory:
        return SimDirectory()

    def count(self) -> int:
        """Number of the next write."""
        self._writes += 1
        return self._writes

    def begin_sync(self) -> int:
        """Begin a sync, which may miss later writes. @return: the barrier."""
        return self._writes

    @contextmanager
    def syncing_up_to(self, barrier: int | None) -> Iterator[None]:
        """
        Within, C{datasync} acts as one that began at C{barrier}; None: now. It misses no write made within:
        a thread that writes a file before it syncs it has its own order.
        """
        self.barrier = NO_BARRIER if barrier is None else barrier
        self.since = self._writes
        try:
            yield
        finally:
            self.barrier = self.since = NO_BARRIER

    def flip_bit(self, path: str, position: int, bit: int) -> None:
        """Damage one bit, on the platter and in the cache."""
        self.overwrite(path, position, bytes([self._inode(path).data[position] ^ 1 << bit]))

    def overwrite(self, path: str, position: int, data: bytes) -> None:
        """Damage bytes of a file, on the platter and in the cache."""
        inode, end = self._inode(path), position + len(data)
        assert end <= len(inode.data)
        inode.data[position:end] = data
        on_platter = min(end, len(inode.durable)) - position
        if on_platter > 0:
            inode.durable[position : position + on_platter] = data[:on_platter]

    # -- the file system ------------------------------------------------------------------------

    def _directory(self, path: str) -> SimDirectory:
        found = self._directories.get(path)
        if found is None:
            raise FileNotFoundError(errno.ENOENT, "No such file or directory", path)
        return found

    def _inode(self, path: str) -> Inode:
        head, tail = os.path.split(path)
        inode = self._directory(head).entries.get(tail)
        if inode is None:
            if path in self._directories:
                raise IsADirectoryError(errno.EISDIR, "Is a directory", path)
            raise FileNotFoundError(errno.ENOENT, "No such file or directory", path)
        return inode

    def open(self, path: str, *, create: bool = False, size: int = 0, reserved: int = -1) -> File:
        if self.are_reads_armed:
            self.before_open(path)
        if not create:
            return SimFile(self, path, self._inode(path))
        head, tail = os.path.split(path)
        directory = self._directory(head)
        if tail in directory.entries:
            raise FileExistsError(errno.EEXIST, "File exists", path)
        if self.is_armed:
            self.before_create(path, takes_room=size > 0)
        inode = self._new_inode(size)
        inode.reserved = size if reserved < 0 else reserved
        directory.put(tail, inode)
        return SimFile(self, path, inode)

    def read_file(self, path: str) -> bytes:
        inode = self._inode(path)
        if self.are_reads_armed:
            self.before_read(path, is_whole=True)
        if inode.bad:
            raise OSError(errno.EIO, "simulated bad sector", path)
        return bytes(inode.data)

    def write_file(self, path: str, data: bytes) -> None:
        if self.are_reads_armed:
            self.before_open(path)
        head, tail = os.path.split(path)
        directory = self._directory(head)
        aside = tail + ".tmp"
        if self.is_armed:
            self.before_create(path, takes_room=True)
        inode = self._new_inode(0)
        directory.put(aside, inode)
        inode.write(bytes(data), 0, self.count())
        if self.is_armed:
            self.before_change(path, "sync")
        inode.sync()
        if self.is_armed:
            self.before_change(path, "rename")
        directory.put(aside, None)
        directory.put(tail, inode)
        if self.is_armed:
            self.before_change(path, "sync")
        directory.sync()

    def exists(self, path: str) -> bool:
        head, tail = os.path.split(path)
        directory = self._directories.get(head)
        return path in self._directories or (directory is not None and tail in directory.entries)

    def listdir(self, path: str) -> list[str]:
        names = list(self._directory(path).entries)
        names += [os.path.basename(other) for other in self._directories if other and other != path
                  and os.path.dirname(other) == path]
        return sorted(names)

    def file_size(self, path: str) -> int:
        return len(self._inode(path).data)

    def makedirs(self, path: str) -> None:
        while path not in self._directories:
            self._directories[path] = self._new_directory()
            path = os.path.dirname(path)

    def unlink(self, path: str) -> None:
        self._inode(path)
        if self.is_armed:
            self.before_change(path, "unlink")
        head, tail = os.path.split(path)
        self._directory(head).put(tail, None)

    def rename(self, path: str, to: str) -> None:
        if path in self._directories:
            self._rename_directory(path, to)
            return
        inode = self._inode(path)
        head, tail = os.path.split(to)
        target = self._directory(head)
        if tail in target.entries:
            raise FileExistsError(errno.EEXIST, "File exists", to)
        if self.is_armed:
            self.before_change(path, "rename")
        # The two changes of a rename are one: where the old name is gone, the new one is there.
        target.put(tail, inode)
        target.sync()
        source, name = os.path.split(path)
        self._directory(source).put(name, None)
        if self.is_armed:
            self.before_change(path, "sync")
        self._directory(source).sync()

    def _rename_directory(self, path: str, to: str) -> None:
        """Durably, as directories are made: what is in it is as durable as before."""
        if to in self._directories:
            raise FileExistsError(errno.EEXIST, "File exists", to)
        if self.is_armed:
            self.before_change(path, "rename")
        for one in [one for one in self._directories if one == path or one.startswith(f"{path}/")]:
            self._directories[to + one[len(path):]] = self._directories.pop(one)

    def sync_directory(self, path: str) -> None:
        directory = self._directory(path)
        if self.is_armed:
            self.before_change(path, "sync")
        directory.sync()

    def space(self, path: str) -> DiskSpace:
        """Half of it is free."""
        return DiskSpace(total=TOTAL_BYTES, free=TOTAL_BYTES // 2, usable=TOTAL_BYTES // 2)

    def lock(self, path: str) -> File:
        head, tail = os.path.split(path)
        directory = self._directory(head)
        if path in self._locks:
            raise BlockingIOError(errno.EWOULDBLOCK, "Resource temporarily unavailable", path)
        if tail not in directory.entries:
            directory.put(tail, self._new_inode(0))
        self._locks.add(path)
        return SimFile(self, path, directory.entries[tail], locked=True)

    def unlock(self, path: str) -> None:
        """Release the lock; its handle was closed."""
        self._locks.discard(path)
