# -*- test-case-name: tests.storage.test_backup -*-
"""
Files that get their name when they are whole: pieces and snapshots of backups and of archives in a directory.

Until then a file is called C{.part}. One that was cut short has no name in any manifest, and is removed by
the next run.
"""

from __future__ import annotations

from dledger.base.disk.disk import Disk
from dledger.storage.manifests.kept_snapshot import MACHINE_DIRECTORY, parsed_snapshot_name

PART_SUFFIX = ".part"


def is_piece_name(name: str) -> bool:
    """Whether a file in C{data} is called as a piece."""
    first, minus, end = name.partition("-")
    return bool(minus) and all(len(one) == 20 and one.isascii() and one.isdecimal() for one in (first, end))


def remove_parts(disk: Disk, directory: str) -> None:
    """A file that was not finished has no name in any manifest; the next run writes a whole one."""
    machine = f"{directory}/{MACHINE_DIRECTORY}"
    for folder in (f"{directory}/data", *([machine] if disk.exists(machine) else ())):
        for name in disk.listdir(folder):
            is_ours = is_piece_name if folder != machine else parsed_snapshot_name
            if name.endswith(PART_SUFFIX) and is_ours(name.removesuffix(PART_SUFFIX)):
                disk.unlink(f"{folder}/{name}")


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
