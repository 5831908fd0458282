# -*- test-case-name: tests.sim.test_process -*-
"""
The disk of a machine whose processes die inside calls.

L{dledger.testing.world.disk.SimDisk} raises what no code catches. A whole service runs on this one, with
Deferreds that catch everything: so the call that kills the process fails with an C{OSError}, as do all
changes after it, and the machine ends the process when the present event is over.
"""

from __future__ import annotations

import errno
import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeAlias

from dledger.testing.world.disk import MemberDied, SimDisk
from dledger.testing.world.platter import SimDirectory

#: A directory, by the paths of its parts relative to it.
DirectoryTree: TypeAlias = dict[str, SimDirectory]


class MachineDisk(SimDisk):
    """
    A disk that remembers that its process has died.

    @ivar death: how the process died; None while it lives.
    """

    _failing_under = ""

    def __init__(self, rng: random.Random) -> None:
        super().__init__(rng)
        self.death: MemberDied | None = None
        self._keeps = False

    def fail_under(self, path: str) -> None:
        """
        Let every change of some files fail from now on.

        @param path: of a directory, or of a file, whose name others may continue; empty: none.
        """
        self._failing_under = path
        self._rearm()

    def disarm(self) -> None:
        self._failing_under = ""
        super().disarm()

    def _rearm(self) -> None:
        super()._rearm()
        self.is_armed = self.is_armed or bool(self._failing_under)

    @contextmanager
    def unharmed(self) -> Iterator[None]:
        """What changes meanwhile is changed by no process: no armed fault hits it."""
        self.is_armed = self.are_reads_armed = False
        try:
            yield
        finally:
            self._rearm()

    def before_change(self, path: str, kind: str) -> None:
        if self._failing_under and self.death is None and path.startswith(self._failing_under):
            self.errors += 1
            raise OSError(errno.EIO, "simulated write error", path)
        if self.death is None:
            try:
                super().before_change(path, kind)
            except MemberDied as death:
                self.death = death
                # The call that dies has not failed: what was written stays, unless the power goes.
                self._keeps, self.keeps_failed_writes = self.keeps_failed_writes, True
        if self.death is not None:
            self.is_armed = True  # so that every later change comes here
            raise OSError(errno.EBADF, f"the process has died {self.death}", path)

    # -- directories that no process has open --------------------------------------------------------

    def take_away(self, path: str) -> DirectoryTree:
        """Lose a directory with all that is in it, durably. @return: its content."""
        known = [one for one in self._directories if one == path or one.startswith(f"{path}/")]
        return {one[len(path):]: self._directories.pop(one) for one in known}

    def copy_of(self, path: str) -> DirectoryTree:
        """A copy of a directory with all that is in it, as processes read it now."""
        twin = self.clone()
        return {one[len(path):]: directory for one, directory in twin._directories.items()
                if one == path or one.startswith(f"{path}/")}

    def put_back(self, path: str, tree: DirectoryTree) -> None:
        """
        Put a directory that was taken away, here or at another machine, where none is. Its disk was unmounted
        in between, so all of it is on stable storage: a loss of power at the other machine takes nothing.
        """
        assert path not in self._directories
        for below, directory in tree.items():
            self._directories[path + below] = directory
            directory.sync()
            for inode in directory.entries.values():
                inode.sync()

    def age(self, path: str, seconds: float) -> None:
        """A file was written this much earlier than it was."""
        self._inode(path).modified_s -= seconds

    def replace(self, path: str, data: bytes) -> None:
        """A file has another content, durably."""
        inode = self._inode(path)
        inode.pending.clear()
        inode.data = bytearray(data)
        inode.durable = bytearray(data)

    def has_bad_pages(self, path: str) -> bool:
        """Whether a page of a file in a directory cannot be read."""
        found = self._directories.get(path)
        return found is not None and any(inode.bad for inode in found.entries.values())

    def forgive(self, path: str) -> None:
        """All pages of the files in a directory can be read again."""
        for inode in self._directories[path].entries.values() if path in self._directories else ():
            inode.bad.clear()

    def restore(self, path: str, position: int, data: bytes) -> None:
        """Somebody writes a part of a file, durably, that could not be read. @param data: whole pages."""
        inode = self._inode(path)
        inode.write(data, position, self.count())
        inode.sync()

    def end_process(self) -> None:
        self._forget_death()
        super().end_process()

    def lose_power(self) -> None:
        self._forget_death()
        super().lose_power()

    def _forget_death(self) -> None:
        if self.death is not None:
            self.death = None
            self.keeps_failed_writes = self._keeps
