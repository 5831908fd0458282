# -*- test-case-name: tests.sim.test_disk -*-
"""
A disk in memory that loses power, and whose calls fail.

After a power cut each write since the last sync is kept, lost or torn, independently of the others; so is
each entry of a directory. The end of a process alone loses nothing.

Tests arm faults: EIO of the next reads, writes or syncs, bad sectors, a full disk, and a crash in the middle
of the n-th changing call from now (L{PowerLoss}, L{ProcessKilled}). A page with a bad sector cannot be read
until the whole of it has been written again.
"""

from __future__ import annotations

import errno
import os
import random

from dledger.base.disk.disk import DiskSpace
from dledger.testing.world.platter import PAGE_BYTES, Inode, SimDirectory
from dledger.testing.world.volume import TOTAL_BYTES, SimVolume


class MemberDied(BaseException):
    """The process ended inside a call. Not an C{Exception}, so that the code under test does not catch it."""


class PowerLoss(MemberDied):
    """The machine lost power."""


class ProcessKilled(MemberDied):
    """The process was killed."""


class SimDisk(SimVolume):
    """
    See the module.

    @ivar power_cuts: number of losses of power so far; it names the boot of the machine.
    @ivar is_full: creating and growing files, reserving, and writes to bytes that were not reserved fail with
        ENOSPC; other writes do not.
    @ivar copies_on_write: while the disk is full, other writes fail, too, as on a file system that copies on
        write, or on a thin volume.
    @ivar failing_reads, failing_writes, failing_syncs: number of the next calls that fail with EIO.
    @ivar lag_us: the time that all reads took since the owner of the process took it; it stops the process
        for as long.
    @ivar failing_opens: number of the next calls that find no descriptor.
    @ivar used_ratio: the used share of the disk as C{space} reports it, while it is not full.
    @ivar keeps_failed_writes: writes that a failed sync did not bring to the platter stay in the cache.
    @ivar countdown: the process dies in this changing call, counted from now; 0: in none.
    """

    def __init__(self, rng: random.Random) -> None:
        super().__init__()
        self.rng = rng
        self.power_cuts = 0
        self.is_full = self.copies_on_write = False
        self.failing_reads = 0
        self._read_us = self.lag_us = 0
        self.failing_writes = 0
        self.failing_syncs = 0
        self.failing_opens = 0
        self.used_ratio = 0.5
        self.countdown = 0
        self.keeps_failed_writes = False
        self.errors = self.refusals = 0
        self._death: type[MemberDied] = PowerLoss

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
        self._read_us = self.lag_us = 0
        self.is_full = self.copies_on_write = False
        self.failing_reads = self.failing_writes = self.failing_syncs = self.countdown = 0
        self.failing_opens = 0
        self.used_ratio = 0.5
        self._rearm()

    def _rearm(self) -> None:
        self.is_armed = bool(self.is_full or self.failing_writes or self.failing_syncs or self.countdown)
        self.are_reads_armed = bool(self.failing_reads or self.failing_opens or self._read_us)

    @property
    def read_us(self) -> int:
        """The time that a read takes, microseconds."""
        return self._read_us

    @read_us.setter
    def read_us(self, read_us: int) -> None:
        self._read_us = read_us
        self._rearm()

    def before_read(self, path: str, *, is_whole: bool = False) -> None:
        """Fail if that is armed, or take time; files that are read as a whole are small."""
        if self.failing_reads:
            self.failing_reads -= 1
            self.errors += 1
            raise OSError(errno.EIO, "simulated read error", path)
        if not is_whole:
            self.lag_us += self._read_us

    def before_open(self, path: str) -> None:
        """Fail if that is armed."""
        if self.failing_opens:
            self.failing_opens -= 1
            self.errors += 1
            raise OSError(errno.EMFILE, "Too many open files", path)

    def before_change(self, path: str, kind: str) -> None:
        """Die or fail if that is armed."""
        if self.countdown:
            self.countdown -= 1
            if not self.countdown:
                self._rearm()
                raise self._death(f"in a {kind} of {path}")
        if kind == "sync" and self.failing_syncs:
            self.failing_syncs -= 1
            self.errors += 1
            self._rearm()
            raise OSError(errno.EIO, "simulated sync error", path)
        if kind != "sync" and self.failing_writes:
            self.failing_writes -= 1
            self.errors += 1
            self._rearm()
            raise OSError(errno.EIO, "simulated write error", path)

    def before_write(self, path: str, inode: Inode, data: bytes, position: int) -> None:
        """Die or fail if that is armed."""
        if data and (self.countdown == 1 or self.failing_writes):
            # The call that dies or fails has written a part of the data.
            inode.write(data[: int(self.rng.random() * len(data))], position, self.count())
        self.before_change(path, "write")
        if self.is_full and (self.copies_on_write or position + len(data) > inode.reserved):
            raise self._no_room(path)

    def before_create(self, path: str, *, takes_room: bool) -> None:
        """Die or fail if that is armed."""
        self.before_change(path, "create")
        if self.is_full and takes_room:
            raise self._no_room(path)

    def before_reserve(self, path: str) -> None:
        """Die or fail if that is armed."""
        self.before_change(path, "reserve")
        if self.is_full:
            raise self._no_room(path)

    def before_sync(self, path: str, inode: Inode) -> None:
        """Die or fail if that is armed."""
        try:
            self.before_change(path, "sync")
        except OSError:
            inode.sync_failed = not self.keeps_failed_writes
            raise

    def space(self, path: str) -> DiskSpace:
        room = 0 if self.is_full else int(TOTAL_BYTES * (1 - self.used_ratio))
        return DiskSpace(total=TOTAL_BYTES, free=room, usable=room)

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

    @property
    def drops_writes(self) -> bool:
        """Whether the end of the process loses writes of a file: a sync of it has failed."""
        return any(inode.sync_failed and inode.pending for directory in self._directories.values()
                   for inode in directory.entries.values())

    def spoil(self, path: str, position: int, size: int = 1) -> None:
        """The pages with these bytes of a file cannot be read until they are written."""
        self._inode(path).bad.update(range(position // PAGE_BYTES, -(-(position + size) // PAGE_BYTES)))

    def is_bad(self, path: str, position: int) -> bool:
        """Whether the page with this byte of a file cannot be read."""
        return position // PAGE_BYTES in self._inode(path).bad

    def read_anyway(self, path: str) -> bytes:
        """The content of a file as processes see it; no armed fault hits this read."""
        return bytes(self._inode(path).data)

    def _no_room(self, path: str) -> OSError:
        self.refusals += 1
        return OSError(errno.ENOSPC, "No space left on device", path)

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

    def files_below(self, path: str) -> dict[str, bytes]:
        """The content of every file, as processes would read it. @param path: empty: of the disk."""
        return {
            f"{one}/{name}": bytes(inode.data) for one, directory in self._directories.items()
            if one == path or one.startswith(f"{path}/") for name, inode in directory.entries.items()
        }

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
