# -*- test-case-name: tests.base.test_disk -*-
"""
The few file calls that storage makes, so that a simulated disk can replace the real one.

Paths are strings. A handle is opaque. Every call raises C{OSError} as the system call would
(ENOSPC, EIO, ENOENT, EEXIST, ...). Short writes are completed here; a short read means end of file.
Nothing is buffered above the operating system.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
from typing import Protocol

import attrs

#: Errors that say that something is used up now: blocks or inodes, a quota, descriptors.
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE)


def is_no_room(error: OSError) -> bool:
    """
    Whether a call failed for want of room or descriptors. Such a call did nothing, and may succeed later;
    any other error of a disk ends the use of the store.
    """
    return error.errno in _NO_ROOM


@attrs.frozen(kw_only=True)
class DiskSpace:
    """Bytes of the file system that holds a path; C{usable}: free bytes that an ordinary user may take."""

    total: int
    free: int
    usable: int


class File(Protocol):
    """An open file."""

    @property
    def path(self) -> str:
        """Path under which the file was opened."""

    def pread(self, size: int, position: int) -> bytes:
        """Up to C{size} bytes at C{position}; fewer only at the end of the file."""

    def pwrite(self, data: bytes | memoryview, position: int) -> None:
        """Write all of C{data} at C{position}; on an error a part may have been written."""

    def reserve(self, position: int, size: int) -> None:
        """
        Reserve C{size} bytes at C{position}, within the file: later writes there cannot run out of room. On
        ENOSPC nothing that can be read has changed.
        """

    def datasync(self) -> None:
        """Bring the file's content (and its length) to stable storage. May run in another thread."""

    def size(self) -> int:
        """Length in bytes."""

    def modified_s(self) -> float:
        """Modification time, seconds since 1970."""

    def close(self) -> None:
        """Release the handle; a repeated call is harmless."""


class Disk(Protocol):
    """A file system."""

    def open(self, path: str, *, create: bool = False, size: int = 0, reserved: int = -1) -> File:
        """
        Open a file for reading and writing. With C{create} the file must not exist. It gets C{size} bytes of
        zeroes, of which the first C{reserved} (-1: all) are reserved: writes within them cannot run out of
        room; the rest takes no room until L{File.reserve}. On ENOSPC no file is left behind.
        """

    def read_file(self, path: str) -> bytes:
        """Whole content of a small file."""

    def write_file(self, path: str, data: bytes) -> None:
        """Replace a small file durably: write C{path.tmp}, fsync, rename it, fsync the directory."""

    def exists(self, path: str) -> bool:
        """Whether C{path} exists, as a file, a directory or anything else."""

    def listdir(self, path: str) -> list[str]:
        """Names in a directory, sorted."""

    def file_size(self, path: str) -> int:
        """Length in bytes of a regular file; raises EISDIR for anything else."""

    def makedirs(self, path: str) -> None:
        """Create a directory and its parents, durably; an existing directory is left alone."""

    def unlink(self, path: str) -> None:
        """Remove a file."""

    def rename(self, path: str, to: str) -> None:
        """
        Move a file, or a directory with all that is in it, to a free name on the same file system, durably; a
        power cut leaves it under one of the two names.
        """

    def sync_directory(self, path: str) -> None:
        """Bring a directory's entries to stable storage."""

    def space(self, path: str) -> DiskSpace:
        """Room on the file system of C{path}."""

    def lock(self, path: str) -> File:
        """
        Take an exclusive lock on the file C{path} (made if absent), held until the returned handle
        is closed or the process dies. Raises EWOULDBLOCK if another process holds it.
        """


class OsFile:
    """A file of the operating system. Implements L{File}."""

    def __init__(self, path: str, fd: int) -> None:
        self.path = path
        self._fd = fd

    def pread(self, size: int, position: int) -> bytes:
        try:
            data = os.pread(self._fd, size, position)
            if len(data) == size or not data:
                return data
            pieces = [data]
            got = len(data)
            while got < size:
                data = os.pread(self._fd, size - got, position + got)
                if not data:
                    break
                pieces.append(data)
                got += len(data)
            return b"".join(pieces)
        except OSError as error:
            error.filename = self.path  # calls with a descriptor do not name the file
            raise

    def pwrite(self, data: bytes | memoryview, position: int) -> None:
        try:
            written = os.pwrite(self._fd, data, position)
            if written == len(data):
                return
            rest = memoryview(data)[written:]
            while rest:
                position += written
                written = os.pwrite(self._fd, rest, position)
                if written == 0:
                    raise OSError(errno.EIO, "pwrite made no progress", self.path)
                rest = rest[written:]
        except OSError as error:
            error.filename = self.path
            raise

    def reserve(self, position: int, size: int) -> None:
        try:
            os.posix_fallocate(self._fd, position, size)
        except OSError as error:
            error.filename = self.path
            raise

    def datasync(self) -> None:
        try:
            os.fdatasync(self._fd)
        except OSError as error:
            error.filename = self.path
            raise

    def size(self) -> int:
        return os.fstat(self._fd).st_size

    def fileno(self) -> int:
        """The descriptor, for calls such as C{sendfile}; valid until L{close}."""
        return self._fd

    def modified_s(self) -> float:
        return os.fstat(self._fd).st_mtime

    def close(self) -> None:
        if self._fd >= 0:
            fd, self._fd = self._fd, -1
            os.close(fd)


def read_boot_id() -> str:
    """What the kernel calls this boot of the machine; empty if it does not say."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return file.read().strip()
    except (OSError, ValueError):
        return ""


#: Permissions of new files and directories: other users of the machine read no entries.
FILE_MODE = 0o640
DIRECTORY_MODE = 0o750

#: Descriptors kept for calls that need one for a moment, for a process that has used up all others.
_SPARE_DESCRIPTORS = 4
_spare: list[int] = []


def _open_descriptor(path: str, flags: int, mode: int = 0o777) -> int:
    """As C{os.open}; where the process has no descriptor left, one that was kept is given up for it."""
    try:
        return os.open(path, flags | os.O_CLOEXEC, mode)
    except OSError as error:
        if error.errno not in (errno.EMFILE, errno.ENFILE) or not _spare:
            raise
        os.close(_spare.pop())
        return os.open(path, flags | os.O_CLOEXEC, mode)


def _open_regular(path: str, flags: int) -> int:
    """Open an existing file. A pipe or a device in its place is refused: reading it might never end."""
    fd = _open_descriptor(path, flags | os.O_NONBLOCK)
    mode = os.fstat(fd).st_mode
    if stat.S_ISREG(mode):
        return fd
    os.close(fd)
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
    raise OSError(errno.EINVAL, "This is a pipe or a device, not a file", path)


def _keep_spare_descriptors() -> None:
    """Keep descriptors for L{_open_descriptor}, as far as there are any."""
    try:
        while len(_spare) < _SPARE_DESCRIPTORS:
            _spare.append(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
    except OSError:
        return


class OsDisk:
    """
    The file system of the operating system.

    A process that has used up its descriptors can still replace small files, bring directories to stable
    storage and open existing files: a few descriptors are kept for that. Only new segments are refused.

    Implements L{Disk}.
    """

    def open(self, path: str, *, create: bool = False, size: int = 0, reserved: int = -1) -> File:
        if not create:
            return OsFile(path, _open_regular(path, os.O_RDWR))
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_CREAT | os.O_EXCL, FILE_MODE)
        if size:
            try:
                os.ftruncate(fd, size)
                os.posix_fallocate(fd, 0, size if reserved < 0 else reserved)
            except OSError:
                os.close(fd)
                os.unlink(path)
                raise
        return OsFile(path, fd)

    def read_file(self, path: str) -> bytes:
        fd = _open_regular(path, os.O_RDONLY)
        try:
            with open(fd, "rb", closefd=False) as file:
                return file.read()
        finally:
            os.close(fd)

    def write_file(self, path: str, data: bytes) -> None:
        aside = path + ".tmp"
        _keep_spare_descriptors()
        fd = _open_descriptor(aside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, FILE_MODE)
        try:
            OsFile(aside, fd).pwrite(data, 0)
            os.fsync(fd)
        except OSError as error:
            error.filename = aside
            raise
        finally:
            os.close(fd)
        os.rename(aside, path)
        self.sync_directory(os.path.dirname(path) or ".")

    def exists(self, path: str) -> bool:
        return os.path.lexists(path)

    def listdir(self, path: str) -> list[str]:
        return sorted(os.listdir(path))

    def file_size(self, path: str) -> int:
        if not os.path.isfile(path):
            os.stat(path)
            raise OSError(errno.EISDIR, "not a regular file", path)
        return os.stat(path).st_size

    def makedirs(self, path: str) -> None:
        if os.path.isdir(path):
            return
        parent = os.path.dirname(path)
        if parent and parent != path:
            self.makedirs(parent)
        os.mkdir(path, DIRECTORY_MODE)
        self.sync_directory(parent or ".")

    def unlink(self, path: str) -> None:
        os.unlink(path)

    def rename(self, path: str, to: str) -> None:
        if os.path.lexists(to):
            raise FileExistsError(errno.EEXIST, "exists", to)
        os.rename(path, to)
        self.sync_directory(os.path.dirname(to) or ".")
        self.sync_directory(os.path.dirname(path) or ".")

    def sync_directory(self, path: str) -> None:
        fd = _open_descriptor(path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(fd)
        except OSError as error:
            error.filename = path
            raise
        finally:
            os.close(fd)

    def space(self, path: str) -> DiskSpace:
        found = os.statvfs(path)
        return DiskSpace(
            total=found.f_blocks * found.f_frsize,
            free=found.f_bfree * found.f_frsize,
            usable=found.f_bavail * found.f_frsize,
        )

    def lock(self, path: str) -> File:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, FILE_MODE)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # Java locks with fcntl, which flock does not see: a RocketMQ broker locks the first byte.
            fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 1)
        except OSError as error:
            os.close(fd)
            if error.errno in (errno.EACCES, errno.EAGAIN):
                raise BlockingIOError(errno.EWOULDBLOCK, "locked by another process", path) from error
            raise
        return OsFile(path, fd)


class ReadOnlyDisk(OsDisk):
    """The file system of the operating system, with files opened for reading only."""

    def open(self, path: str, *, create: bool = False, size: int = 0, reserved: int = -1) -> File:
        """See L{Disk.open}; never creates."""
        assert not create
        return OsFile(path, os.open(path, os.O_RDONLY | os.O_CLOEXEC))
