# -*- test-case-name: tests.commands.test_log_copy -*-
"""
Gives a broker that is stopped the commit log of another one: a master that of its slave::

    copy and compare -> move the old files to a directory of their own -> give the copy its name

C{commitlog.copying} is in the target from the first step until the last: no broker starts beside it, as the
target may have no log then. The same command once more goes through, wherever it was killed.

Rule 1: nothing of the target changes before the copy is whole, equal and durable. Its old files are moved,
with all that is made from them, and never deleted; its topics, groups and offsets stay.
Rule 2: only the files of the log are copied: the start makes marks, queues and the index again from them.
Rule 3: both directories are locked, so no broker runs on them.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import attrs

from dledger.base.disk.disk import OsDisk
from protocols.wire.checksums import crc32

LOG_NAME, COPY_NAME = "commitlog", "commitlog.copying"
#: The log, and all that is made from it, and would speak of another one.
MADE_NAMES = (
    LOG_NAME, "commitlogmark", "checkpoint", "consumequeue", "index", "indexed", "dispatched", "abort"
)
_FILE = re.compile(r"[0-9]{20}")
_PIECE = 1024 * 1024


class CopyRefused(Exception):
    """The log is not copied; the target has not changed."""


@attrs.frozen
class LogCopy:
    """@ivar set_aside: where the old files of the target are; empty if it had none. @ivar size: in bytes."""

    files: int
    size: int
    set_aside: str


def copy_log(source: Path, target: Path, *, progress: Callable[[int, int], None]) -> LogCopy:
    """
    Give the store in C{target} the commit log of the store in C{source}.

    @param progress: called with the number of bytes so far, and of all, copied and compared.
    @raise CopyRefused: a broker runs on one of them, the source has no whole log, or there is no room.
    @raise OSError: reading or writing failed; the target's own files have not changed, unless the message
        names one of them.
    """
    if source.resolve() == target.resolve():
        raise CopyRefused(f"{source} is both: name the directory to copy from, then the one to copy to")
    with _locked(source), _locked(target):
        files = _files_of(source / LOG_NAME)
        size = sum(file.stat().st_size for file in files)
        free = shutil.disk_usage(target).free
        if free < size:
            raise CopyRefused(f"the log has {size} bytes, and {target} has room for {free}: make room first")
        copying = _begin(target)
        done = 0
        for file in files:
            for count in _copied(file, copying / file.name):
                done += count
                progress(done, 2 * size)
        OsDisk().sync_directory(str(copying))
        aside = _move_aside(target, MADE_NAMES)
        copying.rename(target / LOG_NAME)
        OsDisk().sync_directory(str(target))
    return LogCopy(len(files), size, aside)


@contextlib.contextmanager
def _locked(root: Path) -> Iterator[None]:
    if not root.is_dir():
        raise CopyRefused(f"{root} is not a directory: name the store of a broker, storePathRootDir")
    try:
        lock = OsDisk().lock(str(root / "lock"))
    except OSError as error:
        if error.errno in (errno.EWOULDBLOCK, errno.EAGAIN):
            raise CopyRefused(f"a broker runs on {root}: stop it first") from error
        raise
    try:
        yield
    finally:
        lock.close()


def _files_of(log: Path) -> list[Path]:
    """The files of a log, in order. @raise CopyRefused: there are none, or one is missing or foreign."""
    files = sorted(log.iterdir()) if log.is_dir() else []
    if not files:
        raise CopyRefused(f"{log} has no commit log: name the store of a broker, storePathRootDir")
    size = files[0].stat().st_size
    for number, file in enumerate(files):
        if not _FILE.fullmatch(file.name):
            raise CopyRefused(f"{file} is not a file of a commit log")
        wanted = int(files[0].name) + number * size
        if int(file.name) != wanted or file.stat().st_size != size:
            raise CopyRefused(f"{file} has {file.stat().st_size} bytes: the file at {wanted}, of {size} "
                              "bytes, is needed there")
    return files


def _copied(source: Path, target: Path) -> Iterator[int]:
    """
    Copy a file, bring it to stable storage, and compare; gives the number of bytes as it goes on.

    @raise OSError: it failed, or the copy is not equal.
    """
    check = 0
    with source.open("rb") as reading, target.open("xb") as writing:
        while data := reading.read(_PIECE):
            writing.write(data)
            check = crc32(data, check)
            yield len(data)
        writing.flush()
        os.fsync(writing.fileno())
    again = 0
    with target.open("rb") as reading:
        while data := reading.read(_PIECE):
            again = crc32(data, again)
            yield len(data)
    if again != check:
        raise OSError(errno.EIO, "the copy differs from the file", str(source))


def _begin(target: Path) -> Path:
    """
    The directory for the copy, empty and durable. What a run that was interrupted has left in it is set
    aside, as its source may be gone; the directory stays, or a broker could start in between.
    """
    copying = target / COPY_NAME
    copying.mkdir(exist_ok=True)
    OsDisk().sync_directory(str(target))
    left = sorted(copying.iterdir())
    if left:
        aside = _new_aside(target) / COPY_NAME
        aside.mkdir()
        for file in left:
            file.rename(aside / file.name)
        for changed in (aside, aside.parent, copying, target):
            OsDisk().sync_directory(str(changed))
    return copying


def _new_aside(root: Path) -> Path:
    """A directory for files that are set aside."""
    number = 1
    while (aside := root / f"set-aside-{number}").exists():
        number += 1
    aside.mkdir()
    return aside


def _move_aside(root: Path, names: Sequence[str]) -> str:
    """Move these files to a directory of their own. @return: where to; empty if there was nothing."""
    found = [name for name in names if (root / name).exists()]
    if not found:
        return ""
    aside = _new_aside(root)
    # The log goes last: a start in between finds it whole, and makes the rest again.
    for name in sorted(found, key=lambda name: name == LOG_NAME):
        (root / name).rename(aside / name)
    OsDisk().sync_directory(str(aside))
    OsDisk().sync_directory(str(root))
    return str(aside)

