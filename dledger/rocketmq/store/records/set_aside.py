# -*- test-case-name: tests.broker.store.test_set_aside -*-
"""
Keeps the bytes that a commit log gives up, in a directory beside the log.

The directory is C{commitlog.set-aside-1}, C{-2}, and so on: each use has its own. It holds whole files under
their old names. RocketMQ and our recovery ignore it; an operator deletes it.

Rule: a file is complete and durable in the directory before the log loses it.
"""

from __future__ import annotations

from dledger.base.disk.disk import Disk, File
from dledger.base.disk.segment import file_name

_CHUNK = 1024 * 1024


def next_directory(disk: Disk, log_path: str) -> str:
    """The first unused directory for files of the log in C{log_path}; it is not created."""
    number = 1
    while disk.exists(directory := f"{log_path}.set-aside-{number}"):
        number += 1
    return directory


def directories(disk: Disk, log_path: str) -> list[str]:
    """The directories with files that were set aside, oldest first. @raise OSError: listing failed."""
    parent, _, name = log_path.rpartition("/")
    if not disk.exists(parent or "."):
        return []
    start = f"{name}.set-aside-"
    numbers = [one[len(start) :] for one in disk.listdir(parent or ".") if one.startswith(start)]
    return [f"{log_path}.set-aside-{number}"
            for number in sorted((one for one in numbers if one.isdecimal()), key=int)]


def copy_file(disk: Disk, source: File, directory: str, offset: int, size: int) -> None:
    """
    Copy a file of the log, durably; zeroes take no room. May run in another thread.

    @param offset: of the file, which gives its name.
    @raise OSError: reading or writing failed; an incomplete copy may remain.
    """
    disk.makedirs(directory)
    target = disk.open(f"{directory}/{file_name(offset)}", create=True)
    try:
        for at in range(0, size, _CHUNK):
            data = source.pread(min(_CHUNK, size - at), at)
            if data.count(0) != len(data):
                target.pwrite(data, at)
        if target.size() < size:
            target.pwrite(b"\0", size - 1)
        target.datasync()
    finally:
        target.close()
    disk.sync_directory(directory)
