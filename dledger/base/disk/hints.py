# -*- test-case-name: tests.base.test_hints -*-
"""
Writes and reads the files that are hints (L{dledger.base.disk.file_table.Worth}).

Rule 1: no failure of a hint is raised. What cannot be read, or is damaged, counts as absent; what cannot be
written is reported, and the owner writes it again when it next has something to say, as it is not written.
Rule 2: a hint that would become false is lowered before (L{HintFile.lower}): written again, or removed. Only
if the disk can do neither does this raise, and what would make the hint false must not be done.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from dledger.base.disk.disk import Disk
from dledger.base.disk.file_table import FileRow, Worth

_T = TypeVar("_T")


class Hints:
    """
    The hints of one directory.

    @ivar disk: their disk.
    @ivar fresh: by path, the failures that L{news} returns.
    @ivar troubles: by path, the last failure of each that was not written since.
    """

    def __init__(self, disk: Disk) -> None:
        self.disk = disk
        self.troubles: dict[str, str] = {}
        self.fresh: dict[str, str] = {}

    def failed(self, path: str, why: str) -> None:
        """A hint could not be read or written, or is damaged. May run in another thread."""
        if self.troubles.get(path) != why:
            self.troubles[path] = self.fresh[path] = why

    def news(self) -> dict[str, str]:
        """By path, what has failed since the last call, but not what fails again in the same way."""
        news, self.fresh = self.fresh, {}
        return news


class HintFile:
    """
    One hint.

    @ivar path: of the file.
    """

    def __init__(self, hints: Hints, row: FileRow, directory: str) -> None:
        """@param directory: that of the table."""
        assert row.worth is Worth.HINT, row
        self.path = f"{directory}/{row.name}"
        self._hints = hints
        self._row = row

    def read(self, decode: Callable[[bytes], _T | None]) -> _T | None:
        """
        The content.

        @param decode: returns None for what is damaged.
        @return: None if there is no file, or none that is sound.
        """
        disk = self._hints.disk
        try:
            if not disk.exists(self.path):
                return None
            found = decode(disk.read_file(self.path))
        except OSError as error:
            self._hints.failed(self.path, f"it cannot be read: {error}; {self._row.without}")
            return None
        if found is None:
            self._hints.failed(self.path, f"it is damaged; {self._row.without}")
        return found

    def write(self, data: bytes) -> bool:
        """Replace the content, durably. @return: whether it was. May run in another thread."""
        try:
            self._hints.disk.write_file(self.path, data)
        except OSError as error:
            self._hints.failed(self.path, f"it cannot be written: {error}")
            return False
        self._hints.troubles.pop(self.path, None)
        return True

    def lower(self, data: bytes) -> bool:
        """
        Replace the content, or remove the file, durably: what it says is about to become false.

        @return: whether the file has C{data}.
        @raise OSError: neither could be done.
        """
        if self.write(data):
            return True
        disk = self._hints.disk
        if disk.exists(self.path):
            disk.unlink(self.path)
        disk.sync_directory(self.path.rpartition("/")[0])
        return False
