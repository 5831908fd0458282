# -*- test-case-name: tests.broker.store.test_key_index -*-
"""
The directory of the index of keys: the names of its files, and what is in it at a start.

Source: IndexService.load, getAndCreateLastIndexFile (4.9.8, 5.3.3).
"""

from __future__ import annotations

import time
from typing import NamedTuple

from dledger.base.disk.disk import Disk
from dledger.rocketmq.store.records.set_aside import next_directory

#: Digits of a name, a time; and the latest time with four digits of year.
NAME_SIZE = 17
_TIME_MS_MAX = 253_000_000_000_000


def index_file_name(timestamp_ms: int) -> int:
    """The name of a file that is made at a time, in local time: C{yyyyMMddHHmmssSSS} without colons."""
    timestamp_ms = min(max(timestamp_ms, 0), _TIME_MS_MAX)
    seconds, rest = divmod(timestamp_ms, 1000)
    return int(time.strftime("%Y%m%d%H%M%S", time.localtime(seconds))) * 1000 + rest


class FoundFiles(NamedTuple):
    """
    The files of a directory, oldest first.

    @ivar paths: of those of the right size.
    @ivar others: paths of those of another size.
    @ivar last_name: the highest name; 0 without one.
    """

    paths: list[str]
    others: list[str]
    last_name: int


def find_files(disk: Disk, directory: str, size: int) -> FoundFiles:
    """
    Look at a directory. An empty last file, which a crash can leave, is deleted.

    @raise OSError: reading or deleting failed.
    """
    found = FoundFiles([], [], 0)
    for name in disk.listdir(directory):
        if len(name) == NAME_SIZE and name.isascii() and name.isdecimal():
            path = f"{directory}/{name}"
            (found.paths if disk.file_size(path) == size else found.others).append(path)
            found = found._replace(last_name=int(name))
    others = found.others
    if others and others[-1].endswith(f"{found.last_name:0{NAME_SIZE}d}") and not disk.file_size(others[-1]):
        disk.unlink(others.pop())
    return found


def set_files_aside(disk: Disk, directory: str, paths: list[str]) -> str:
    """Move files. @return: the directory where they are now. @raise OSError: it failed."""
    aside = next_directory(disk, directory)
    disk.makedirs(aside)
    for path in paths:
        disk.rename(path, f"{aside}/{path.rpartition('/')[2]}")
    return aside
