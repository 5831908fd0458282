# -*- test-case-name: tests.damage.test_file_table -*-
"""A disk in memory on which calls to one file fail, until they are allowed again."""

from __future__ import annotations

import errno
import os
from collections.abc import Mapping

from dledger.testing.world.platter import Inode
from dledger.testing.world.volume import SimVolume

#: From a kind of fault to the changes of L{SimVolume.before_change} that it hits.
_KINDS = {"write": ("create", "write", "reserve"), "rename": ("rename",), "sync": ("sync",), "read": ()}
KINDS = tuple(_KINDS)
ERRORS = (errno.EIO, errno.ENOSPC)


class FaultyDisk(SimVolume):
    """
    @ivar hits: number of calls that failed.
    """

    def __init__(self, files: Mapping[str, bytes], *, now_s: float) -> None:
        """@param files: by path, all on stable storage, and written now."""
        super().__init__()
        self.now_s = now_s
        self.hits = 0
        self._path = self._kind = ""
        self._errno = 0
        for path, data in files.items():
            self.makedirs(os.path.dirname(path))
            self.write_file(path, data)
        self.is_armed = self.are_reads_armed = True

    def fail(self, path: str, kind: str, number: int) -> None:
        """Calls of a kind to a file fail from now on. @param number: of the error."""
        self._path, self._kind, self._errno = path, kind, number

    def heal(self) -> None:
        """No call fails."""
        self._path = ""

    def _meet(self, path: str) -> None:
        if path == self._path:
            self.hits += 1
            raise OSError(self._errno, os.strerror(self._errno), path)

    def before_change(self, path: str, kind: str) -> None:
        if self._path and kind in _KINDS[self._kind]:
            self._meet(path)

    def before_reserve(self, path: str) -> None:
        self.before_change(path, "reserve")

    def before_read(self, path: str, *, is_whole: bool = False) -> None:
        if self._kind == "read":
            self._meet(path)

    def before_sync(self, path: str, inode: Inode) -> None:
        self.before_change(path, "sync")

    @property
    def content(self) -> dict[str, bytes]:
        """By path, what processes read."""
        return {f"{one}/{name}": bytes(inode.data) for one, directory in self._directories.items()
                for name, inode in directory.entries.items()}

    def put(self, path: str, data: bytes | None) -> None:
        """A file has another content, or is gone; no fault hits this."""
        before, self._path = self._path, ""
        if data is None:
            self.unlink(path)
        else:
            self.write_file(path, data)
        self._path = before
