# -*- test-case-name: tests.storage.test_backup -*-
"""
Files that get their name when they are whole: pieces of backups and of archives in a directory.

Until then a piece is called C{.part}. One that was cut short has no name in any manifest, and is removed by
the next run.
"""

from __future__ import annotations

from dledger.base.disk.disk import Disk

PART_SUFFIX = ".part"


def is_piece_name(name: str) -> bool:
    """Whether a file in C{data} is called as a piece."""
    first, minus, end = name.partition("-")
    return bool(minus) and all(len(one) == 20 and one.isascii() and one.isdecimal() for one in (first, end))


def remove_parts(disk: Disk, directory: str) -> None:
    """A piece that was not finished has no name in any manifest; its entries are copied again."""
    for name in disk.listdir(f"{directory}/data"):
        if name.endswith(PART_SUFFIX) and is_piece_name(name.removesuffix(PART_SUFFIX)):
            disk.unlink(f"{directory}/data/{name}")


class PartFile:
    """A file that is being written, from its begin on."""

    def __init__(self, disk: Disk, path: str) -> None:
        """@param path: ends with L{PART_SUFFIX}; free."""
        self._disk = disk
        self._path = path
        self._file = disk.open(path, create=True)
        self._size = 0

    def write(self, data: bytes) -> None:
        """Write after what is there."""
        self._file.pwrite(data, self._size)
        self._size += len(data)

    def finish(self, path: str) -> None:
        """Bring it to stable storage, and give it its name. A file of that name, which none lists, goes."""
        self._file.datasync()
        self._file.close()
        if self._disk.exists(path):  # of a run that was cut short before it wrote the manifest
            self._disk.unlink(path)
        self._disk.rename(self._path, path)

    def close(self) -> None:
        """Leave it unfinished."""
        self._file.close()
