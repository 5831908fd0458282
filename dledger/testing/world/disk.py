# -*- test-case-name: tests.sim.test_disk -*-
"""
A disk in memory that knows the written bytes and those that would survive a power cut.

Every file has two contents: the one that processes read (the page cache) and the one on the platter. A
write changes the first, C{datasync} brings it to the second; the same holds for directories and
C{sync_directory}. After a power cut each write since the last sync is kept, lost or torn, independently of
the others; so is each entry of a directory. The end of a process alone loses nothing.

Tests arm faults: EIO of the next reads, writes or syncs, bad sectors, a full disk, and a crash in the middle
of the n-th changing call from now (L{PowerLoss}, L{ProcessKilled}). A page with a bad sector cannot be read
until the whole of it has been written again.
"""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Iterator
from contextlib import contextmanager

from dledger.base.disk.disk import DiskSpace, File
from dledger.testing.world.platter import NO_BARRIER, PAGE_BYTES, Inode, SimDirectory


class MemberDied(BaseException):
    """The process ended inside a call. Not an C{Exception}, so that the code under test does not catch it."""


class PowerLoss(MemberDied):
    """The machine lost power."""


class ProcessKilled(MemberDied):
    """The process was killed."""


class SimFile:
    """An open file. See L{dledger.base.disk.disk.File}."""

    __slots__ = ("_disk", "_inode", "_life", "_locked", "path")

    def __init__(self, disk: SimDisk, path: str, inode: Inode, *, locked: bool = False) -> None:
        self.path = path
        self._disk = disk
        self._inode = inode
        self._life = disk.life
        self._locked = locked

    def _check(self) -> None:
        if self._life != self._disk.life:
            raise OSError(errno.EBADF, "closed, or of a process that has died", self.path)

    def pread(self, size: int, position: int) -> bytes:
        """See L{dledger.base.disk.disk.File.pread}."""
        self._check()
        if self._disk.failing_reads:
            self._disk.fail_read(self.path)
        self._disk.lag_us += self._disk.read_us
        inode = self._inode
        if inode.bad and size > 0:
            end = min(position + size, len(inode.data)) - 1
            if not inode.bad.isdisjoint(range(position // PAGE_BYTES, end // PAGE_BYTES + 1)):
                raise OSError(errno.EIO, "simulated bad sector", self.path)
        return bytes(inode.data[position : position + size])

    def pwrite(self, data: bytes | memoryview, position: int) -> None:
        """See L{dledger.base.disk.disk.File.pwrite}."""
        self._check()
        disk = self._disk
        whole = bytes(data)
        if self._inode.bad:
            self._inode.check_write(position, position + len(whole), self.path)
        if disk.is_armed:
            if whole and (disk.countdown == 1 or disk.failing_writes):
                # The call that dies or fails has written a part of the data.
                self._inode.write(whole[: int(disk.rng.random() * len(whole))], position, disk.count())
            disk.before_change(self.path, "write")
            if disk.is_full and (disk.copies_on_write or position + len(whole) > self._inode.reserved):
                raise OSError(errno.ENOSPC, "No space left on device", self.path)
        self._inode.write(whole, position, disk.count())
        self._inode.reserved = max(self._inode.reserved, position + len(whole))
        self._inode.modified_s = disk.now_s

    def reserve(self, position: int, size: int) -> None:
        """See L{dledger.base.disk.disk.File.reserve}."""
        self._check()
        disk = self._disk
        assert position + size <= len(self._inode.data), "reserved beyond the end of the file"
        if position + size <= self._inode.reserved:
            return
        if disk.is_armed:
            disk.before_change(self.path, "reserve")
            if disk.is_full:
                raise OSError(errno.ENOSPC, "No space left on device", self.path)
        self._inode.reserved = position + size

    def datasync(self) -> None:
        """See L{dledger.base.disk.disk.File.datasync}."""
        self._check()
        disk = self._disk
        if disk.is_armed:
            try:
                disk.before_change(self.path, "sync")
            except OSError:
                self._inode.sync_failed = not disk.keeps_failed_writes
                raise
        self._inode.sync(disk.barrier, disk.since)

    def size(self) -> int:
        """See L{dledger.base.disk.disk.File.size}."""
        self._check()
        return len(self._inode.data)

    def modified_s(self) -> float:
        """See L{dledger.base.disk.disk.File.modified_s}."""
        return self._inode.modified_s

    def close(self) -> None:
        """See L{dledger.base.disk.disk.File.close}."""
        if self._locked and self._life == self._disk.life:
            self._disk.unlock(self.path)
            self._locked = False
        self._life = -1


class SimDisk:
    """
    A file system in memory. See L{dledger.base.disk.disk.Disk}.

    @ivar life: number of the process that uses the disk; handles of earlier ones are dead.
    @ivar power_cuts: number of losses of power so far; it names the boot of the machine.
    @ivar now_s: seconds, for modification times.
    @ivar is_full: creating and growing files, reserving, and writes to bytes that were not reserved fail with
        ENOSPC; other writes do not.
    @ivar copies_on_write: while the disk is full, other writes fail, too, as on a file system that copies on
        write, or on a thin volume.
    @ivar failing_reads, failing_writes, failing_syncs: number of the next calls that fail with EIO.
    @ivar read_us: time that a read takes; C{lag_us} is that of all reads since the owner of the process took
        it, and stops the process for as long.
    @ivar failing_opens: number of the next calls that find no descriptor.
    @ivar used_ratio: the used share of the disk as C{space} reports it, while it is not full.
    @ivar keeps_failed_writes: writes that a failed sync did not bring to the platter stay in the cache.
    @ivar barrier, since: C{datasync} misses the writes with a number after C{barrier} up to C{since}.
    @ivar countdown: the process dies in this changing call, counted from now; 0: in none.
    """

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.life = 0
        self.power_cuts = 0
        self.now_s = 0.0
        self.is_armed = False
        self.is_full = self.copies_on_write = False
        self.failing_reads = 0
        self.read_us = self.lag_us = 0
        self.failing_writes = 0
        self.failing_syncs = 0
        self.failing_opens = 0
        self.used_ratio = 0.5
        self.countdown = 0
        self.keeps_failed_writes = False
        self.barrier = self.since = NO_BARRIER
        self._writes = 0
        self._death: type[MemberDied] = PowerLoss
        self._directories = {name: SimDirectory() for name in ("", "/", ".")}
        self._locks: set[str] = set()

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

    # -- faults ----------------------------------------------------------------------------

    def arm(
        self, *, reads: int = 0, writes: int = 0, syncs: int = 0, opens: int = 0, die_in: int = 0,
        death: type[MemberDied] = PowerLoss,
    ) -> None:
        """Let the next calls fail. A fault that is not named stays as it was armed."""
        self.failing_reads = reads or self.failing_reads
        self.failing_writes = writes or self.failing_writes
        self.failing_syncs = syncs or self.failing_syncs
        self.failing_opens = opens or self.failing_opens
        if die_in:
            self.countdown = die_in
            self._death = death
        self._rearm()

    def set_full(self, full: bool, *, copies_on_write: bool = False) -> None:
        """Fill the disk, or free it again."""
        self.is_full = full
        self.copies_on_write = full and copies_on_write
        self._rearm()

    def disarm(self) -> None:
        """Disarm all faults. What cannot be read stays so until it is written."""
        self.read_us = self.lag_us = 0
        self.is_full = self.copies_on_write = False
        self.failing_reads = self.failing_writes = self.failing_syncs = self.countdown = 0
        self.failing_opens = 0
        self.used_ratio = 0.5
        self._rearm()

    def _rearm(self) -> None:
        self.is_armed = bool(self.is_full or self.failing_writes or self.failing_syncs or self.countdown)

    def fail_read(self, path: str) -> None:
        """Raise one of the armed read errors."""
        self.failing_reads -= 1
        raise OSError(errno.EIO, "simulated read error", path)

    def fail_open(self, path: str) -> None:
        """Raise one of the armed errors of opening files."""
        self.failing_opens -= 1
        raise OSError(errno.EMFILE, "Too many open files", path)

    def before_change(self, path: str, kind: str) -> None:
        """Called before every change: die or fail if that is armed."""
        if self.countdown:
            self.countdown -= 1
            if not self.countdown:
                self._rearm()
                raise self._death(f"in a {kind} of {path}")
        if kind == "sync" and self.failing_syncs:
            self.failing_syncs -= 1
            self._rearm()
            raise OSError(errno.EIO, "simulated sync error", path)
        if kind != "sync" and self.failing_writes:
            self.failing_writes -= 1
            self._rearm()
            raise OSError(errno.EIO, "simulated write error", path)

    def end_process(self) -> None:
        """End the process: its handles and locks are lost, its writes are kept."""
        self.life += 1
        self._locks.clear()
        self.countdown = 0
        self._rearm()
        for directory in self._directories.values():
            for inode in directory.entries.values():
                if inode.sync_failed:
                    # The kernel dropped the pages that it could not write; the next process reads the
                    # platter.
                    inode.lose_power(self.rng)

    def lose_power(self) -> None:
        """Lose power: the process ends, and writes that were not synced may be lost."""
        self.life += 1
        self.power_cuts += 1
        self._locks.clear()
        self.countdown = 0
        self._rearm()
        done: set[int] = set()
        for directory in self._directories.values():
            inodes = list(directory.entries.values()) + list(directory.durable.values())
            directory.lose_power(self.rng)
            for inode in inodes:
                if id(inode) not in done:
                    done.add(id(inode))
                    inode.lose_power(self.rng)

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

    def spoil(self, path: str, position: int, size: int = 1) -> None:
        """The pages with these bytes of a file cannot be read until they are written."""
        self._inode(path).bad.update(range(position // PAGE_BYTES, -(-(position + size) // PAGE_BYTES)))

    def read_anyway(self, path: str) -> bytes:
        """The content of a file as processes see it; no armed fault hits this read."""
        return bytes(self._inode(path).data)

    # -- looking, for checks -----------------------------------------------------------------

    def is_durable(self, path: str, start: int, end: int) -> bool:
        """Whether C{start} to C{end} of a file would survive a power cut now."""
        head, tail = os.path.split(path)
        directory = self._directories[head]
        inode = directory.entries.get(tail)
        if inode is None or directory.durable.get(tail) is not inode or len(inode.durable) < end:
            return False
        return not inode.pending or inode.durable[start:end] == inode.data[start:end]

    def durable_content(self, path: str) -> bytes | None:
        """The content of a file that a power cut now would surely leave, or None."""
        head, tail = os.path.split(path)
        directory = self._directories.get(head)
        inode = directory.durable.get(tail) if directory else None
        return None if inode is None else bytes(inode.durable)

    def cached_content(self, path: str) -> bytes:
        """
        The content of a file as processes read it, for the rig: armed read errors stay armed for processes.

        @raise FileNotFoundError: there is none.
        """
        return bytes(self._inode(path).data)

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
        """See L{dledger.base.disk.disk.Disk.open}."""
        if self.failing_opens:
            self.fail_open(path)
        if not create:
            return SimFile(self, path, self._inode(path))
        head, tail = os.path.split(path)
        directory = self._directory(head)
        if tail in directory.entries:
            raise FileExistsError(errno.EEXIST, "File exists", path)
        if self.is_armed:
            self.before_change(path, "create")
            if self.is_full and size:
                raise OSError(errno.ENOSPC, "No space left on device", path)
        inode = Inode(size, self.now_s)
        inode.reserved = size if reserved < 0 else reserved
        directory.put(tail, inode)
        return SimFile(self, path, inode)

    def read_file(self, path: str) -> bytes:
        """See L{dledger.base.disk.disk.Disk.read_file}."""
        inode = self._inode(path)
        if self.failing_reads:
            self.fail_read(path)
        if inode.bad:
            raise OSError(errno.EIO, "simulated bad sector", path)
        return bytes(inode.data)

    def write_file(self, path: str, data: bytes) -> None:
        """See L{dledger.base.disk.disk.Disk.write_file}."""
        if self.failing_opens:
            self.fail_open(path)
        head, tail = os.path.split(path)
        directory = self._directory(head)
        aside = tail + ".tmp"
        if self.is_armed:
            self.before_change(path, "create")
            if self.is_full:
                raise OSError(errno.ENOSPC, "No space left on device", path)
        inode = Inode(0, self.now_s)
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
        return len(self._inode(path).data)

    def makedirs(self, path: str) -> None:
        """See L{dledger.base.disk.disk.Disk.makedirs}."""
        while path not in self._directories:
            self._directories[path] = SimDirectory()
            path = os.path.dirname(path)

    def unlink(self, path: str) -> None:
        """See L{dledger.base.disk.disk.Disk.unlink}."""
        self._inode(path)
        if self.is_armed:
            self.before_change(path, "unlink")
        head, tail = os.path.split(path)
        self._directory(head).put(tail, None)

    def rename(self, path: str, to: str) -> None:
        """See L{dledger.base.disk.disk.Disk.rename}."""
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

    def sync_directory(self, path: str) -> None:
        """See L{dledger.base.disk.disk.Disk.sync_directory}."""
        directory = self._directory(path)
        if self.is_armed:
            self.before_change(path, "sync")
        directory.sync()

    def space(self, path: str) -> DiskSpace:
        """See L{dledger.base.disk.disk.Disk.space}."""
        total = 1 << 40
        room = 0 if self.is_full else int(total * (1 - self.used_ratio))
        return DiskSpace(total=total, free=room, usable=room)

    def lock(self, path: str) -> File:
        """See L{dledger.base.disk.disk.Disk.lock}."""
        head, tail = os.path.split(path)
        directory = self._directory(head)
        if path in self._locks:
            raise BlockingIOError(errno.EWOULDBLOCK, "Resource temporarily unavailable", path)
        if tail not in directory.entries:
            directory.put(tail, Inode(0, self.now_s))
        self._locks.add(path)
        return SimFile(self, path, directory.entries[tail], locked=True)

    def unlock(self, path: str) -> None:
        """Release the lock; its handle was closed."""
        self._locks.discard(path)

    def clone(self) -> SimDisk:
        """A disk with the same files, all durable, no fault armed, no lock held."""
        twin = SimDisk(random.Random(0))
        for path, directory in self._directories.items():
            copy = twin._directories.setdefault(path, SimDirectory())
            for name, inode in directory.entries.items():
                fresh = Inode(0, inode.modified_s)
                fresh.data = bytearray(inode.data)
                fresh.reserved = inode.reserved
                fresh.bad = set(inode.bad)
                fresh.durable = bytearray(inode.data)
                copy.put(name, fresh)
            copy.sync()
        return twin
