# -*- test-case-name: tests.storage.test_place -*-
"""
A place for archives, backups and exports on any file system that fsspec knows: C{s3://}, C{gs://},
C{abfs://}, C{sftp://}, C{memory://}.

Nothing is asked of the store but to write and read whole files, parts of files, lengths and listings; exports
also copy files. A name that is absent is distinguished from a store that fails: C{fs.exists} and C{fs.find}
do not, so they are not used.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Protocol, TypedDict

from dledger.base.disk.disk import Disk, DiskSpace, File
from dledger.storage.backups.place_worker import CallWorker
from dledger.storage.manifests.archive_place import FOLDERS, ArchivePlace, DirectoryPlace
from dledger.values.errors import DirectoryError

_LOCAL = ("file", "local")

_MISSING = "{0}: a URL needs fsspec, which is not installed: pip install 'dledger[archive]'"
_DRIVER = ("{0}: {1}. fsspec is installed, but not what it needs for this kind of store (for s3://: "
           "pip install 'dledger[s3]')")
_OPTION = "{0}: {1}. Check the URL, and the options of the store (--store-option)"


class FileInfo(TypedDict):
    """What a file system of fsspec knows of a file or directory; some know more."""

    name: str
    size: int
    type: str


class Moment(Protocol):
    """A time of fsspec."""

    def timestamp(self) -> float:
        """In seconds since 1970."""


class StoreFile(Protocol):
    """A file of fsspec that is written."""

    closed: bool

    def write(self, data: bytes, /) -> int:
        """Write after what was written."""

    def close(self) -> None:
        """Let the store show the file."""


class StoreFiles(Protocol):
    """The part of the file systems of fsspec that counts here. Paths are URLs."""

    def invalidate_cache(self) -> None:
        """Ask the store again."""

    def info(self, path: str) -> FileInfo:
        """Of a file or directory."""

    def ls(self, path: str, *, detail: bool) -> Iterable[FileInfo]:
        """See L{info}, of what is in a directory."""

    def cat_file(self, path: str, *, start: int | None = None, end: int | None = None) -> bytes:
        """The content of a file."""

    def pipe_file(self, path: str, data: bytes, mode: str = "overwrite") -> object:
        """Write a whole file. With mode C{create}, a file that is there is an error."""

    def cp_file(self, path1: str, path2: str) -> object:
        """Copy a file."""

    def modified(self, path: str) -> Moment:
        """When a file was written."""

    def rm_file(self, path: str) -> object:
        """Remove a file."""

    def open(self, path: str, mode: str) -> StoreFile:
        """Open a file."""

    def mkdir(self, path: str, *, create_parents: bool) -> None:
        """Make a directory."""

    def _strip_protocol(self, path: str) -> str:
        """The path without C{kind://}."""


def opened_place(
    target: str, disk: Disk, *, options: Mapping[str, object] | None = None, deadline_s: float = 120.0
) -> ArchivePlace:
    """
    The place of an archive or an export.

    @param target: a directory, or a URL.
    @param disk: for a directory.
    @param options: of the kind of store, as fsspec's; only for a URL.
    @param deadline_s: seconds in which each call of a store has to return.
    @raise DirectoryError: fsspec, or its part for this kind of store, is not installed; the kind is not
        known; an option is wrong; or the store cannot be reached.
    """
    kind, colon, rest = target.partition("://")
    if not colon or kind in _LOCAL:
        if options:
            raise DirectoryError(f"{target} is a directory, which has no options of a store")
        return DirectoryPlace(disk, rest if colon else target)
    if not rest.strip("/"):
        raise DirectoryError(f"{target} names no bucket, host or folder: write it as s3://bucket/log")
    try:
        from fsspec import core
    except ImportError:
        raise DirectoryError(_MISSING.format(target)) from None

    def connect() -> StoreFiles | DirectoryError:
        try:
            files: StoreFiles = core.url_to_fs(target, **(options or {}))[0]
            return files
        except ImportError as error:
            return DirectoryError(_DRIVER.format(target, error))
        except (ValueError, TypeError) as error:
            return DirectoryError(_OPTION.format(target, error))

    worker = CallWorker(deadline_s)
    try:
        files = worker.run(target, connect)
    except OSError as error:
        raise DirectoryError(f"{target} cannot be reached: {error}") from error
    if isinstance(files, DirectoryError):
        raise files
    return RemotePlace(files, target.rstrip("/"), worker)


#: Bytes that one request asks for, at least, as files are read from their begin to their end.
_AHEAD_BYTES = 8 * 1024 * 1024


class RemoteFile:
    """
    A file that is read; see L{File}.

    Invariant: C{_held} are bytes of the file from C{_held_at} on.
    """

    def __init__(self, disk: RemoteDisk, path: str) -> None:
        self.path = path
        self._disk = disk
        self._size = disk.file_size(path)
        self._held = b""
        self._held_at = 0

    def pread(self, size: int, position: int) -> bytes:
        """See L{File.pread}."""
        end = min(position + size, self._size)
        if end <= position:
            return b""
        if not self._held_at <= position <= end <= self._held_at + len(self._held):
            ahead = min(max(end, position + _AHEAD_BYTES), self._size)
            self._held = self._disk.read_range(self.path, position, ahead)
            self._held_at = position
        return self._held[position - self._held_at : end - self._held_at]

    def size(self) -> int:
        """See L{File.size}. As it was when the file was opened."""
        return self._size

    def modified_s(self) -> float:
        """Not asked of a store."""
        raise _refused(self.path)

    def pwrite(self, data: bytes | memoryview, position: int) -> None:
        """Refused."""
        raise _refused(self.path)

    def reserve(self, position: int, size: int) -> None:
        """Refused."""
        raise _refused(self.path)

    def datasync(self) -> None:
        """Refused."""
        raise _refused(self.path)

    def close(self) -> None:
        """Nothing to do."""


def _refused(path: str) -> OSError:
    return OSError(errno.EROFS, "files of a store are read, or written as a whole", path)


class RemoteDisk:
    """
    A store that is read; see L{Disk}. Paths are URLs. What changes files is refused.

    Implements L{Disk}.
    """

    def __init__(self, files: StoreFiles, worker: CallWorker) -> None:
        """@param files: a file system of fsspec."""
        self._files = files
        self._run = worker.run

    def _info(self, path: str) -> FileInfo:
        def ask() -> FileInfo:
            self._files.invalidate_cache()
            found: FileInfo = self._files.info(path)
            return found

        return self._run(path, ask)

    def open(self, path: str, *, create: bool = False, size: int = 0, reserved: int = -1) -> File:
        """See L{Disk.open}; never creates."""
        if create:
            raise _refused(path)
        return RemoteFile(self, path)

    def read_file(self, path: str) -> bytes:
        data: bytes = self._run(path, lambda: self._files.cat_file(path))
        return data

    def read_range(self, path: str, start: int, end: int) -> bytes:
        """The bytes from C{start} up to C{end}."""
        data: bytes = self._run(path, lambda: self._files.cat_file(path, start=start, end=end))
        return data

    def exists(self, path: str) -> bool:
        """See L{Disk.exists}. A store that fails is an error."""
        try:
            self._info(path)
        except FileNotFoundError:
            return False
        return True

    def listed(self, path: str) -> dict[str, int]:
        """The names in a directory, and the lengths of files, -1 for others; none if it is not there."""
        def ask() -> list[FileInfo]:
            self._files.invalidate_cache()
            return list(self._files.ls(path, detail=True))

        try:
            found = self._run(path, ask)
        except FileNotFoundError:
            return {}
        sizes: dict[str, int] = {}
        above = self._files._strip_protocol(path).strip("/")
        for one in found:
            name = self._files._strip_protocol(str(one["name"])).strip("/")
            if name != above:  # some stores have an empty file for the directory itself
                is_file = one["type"] == "file"
                sizes[name.rpartition("/")[2]] = int(one.get("size") or 0) if is_file else -1
        return sizes

    def listdir(self, path: str) -> list[str]:
        return sorted(self.listed(path))

    def file_size(self, path: str) -> int:
        found = self._info(path)
        if found["type"] != "file":
            raise OSError(errno.EISDIR, "not a regular file", path)
        return int(found["size"])

    def modified_s(self, path: str) -> float:
        """When a file was written, in seconds since 1970."""
        return self._run(path, lambda: self._files.modified(path)).timestamp()

    def write_file(self, path: str, data: bytes) -> None:
        """Refused."""
        raise _refused(path)

    def makedirs(self, path: str) -> None:
        """Refused."""
        raise _refused(path)

    def unlink(self, path: str) -> None:
        """Refused."""
        raise _refused(path)

    def rename(self, path: str, to: str) -> None:
        """Refused."""
        raise _refused(path)

    def sync_directory(self, path: str) -> None:
        """Refused."""
        raise _refused(path)

    def space(self, path: str) -> DiskSpace:
        """Refused."""
        raise _refused(path)

    def lock(self, path: str) -> File:
        """Refused."""
        raise _refused(path)


class RemotePlace:
    """
    See L{ArchivePlace}. A store has no lock: the second of two writers is noticed when it writes the next
    manifest, whose name is taken.

    Implements L{ArchivePlace}.
    """

    def __init__(self, files: StoreFiles, url: str, worker: CallWorker) -> None:
        """@param files: a file system of fsspec."""
        self.directory = url
        self.disk: RemoteDisk = RemoteDisk(files, worker)
        self._files = files
        self._run = worker.run
        self._worker = worker

    def close(self) -> None:
        """End the thread of the calls. None may follow."""
        self._worker.close()

    def hold(self) -> Callable[[], None]:
        return lambda: None

    def sizes(self) -> dict[str, int]:
        top = self.disk.listed(self.directory)
        found = {name: size for name, size in top.items() if name not in FOLDERS}
        for folder in FOLDERS:
            if folder in top:
                inside = self.disk.listed(f"{self.directory}/{folder}")
                found |= {f"{folder}/{name}": size for name, size in inside.items()}
        return found

    def put(self, name: str, chunks: Iterator[bytes]) -> None:
        """See L{ArchivePlace.put}. Most stores show no file before it is whole."""
        path = f"{self.directory}/{name}"
        file = self._run(path, lambda: self._open(path))
        try:
            for chunk in chunks:
                self._run(path, partial(file.write, chunk))
        except BaseException as error:
            self._forget(path, file, waits=isinstance(error, Exception))
            raise
        self._run(path, file.close)

    def _open(self, path: str) -> StoreFile:
        """Open a file for writing, and make its directory if the kind of store has directories."""
        try:
            return self._files.open(path, "wb")
        except FileNotFoundError:
            self._make_folders(path.rpartition("/")[0])
            return self._files.open(path, "wb")

    def _make_folders(self, folder: str) -> None:
        """Make a directory, and those above it from the place on."""
        try:
            self._make_directory(folder)
        except FileNotFoundError:
            if folder == self.directory:
                raise
            self._make_folders(folder.rpartition("/")[0])
            self._make_directory(folder)

    def _make_directory(self, path: str) -> None:
        """Not those above it, so that a mistyped URL does not make a bucket, for example."""
        if "/" not in self._files._strip_protocol(path).strip("/"):
            raise FileNotFoundError(errno.ENOENT, "does not exist; make it first", path)
        try:
            self._files.mkdir(path, create_parents=False)
        except FileExistsError:
            pass

    def _forget(self, path: str, file: StoreFile, *, waits: bool) -> None:
        """Do not let a file that is half-written be finished, by its destructor for example."""
        def forget() -> None:
            discard = getattr(file, "discard", None)
            if discard is not None:
                discard()

        try:
            file.closed = True
        except AttributeError:
            pass  # a file without a destructor that finishes it
        if waits:
            try:
                self._run(path, forget)
            except OSError:
                pass  # the error of before is reported; no manifest lists this file

    def replace(self, name: str, data: bytes) -> None:
        path = f"{self.directory}/{name}"
        self._run(path, partial(self._write, path, data, "overwrite"))

    def create(self, name: str, data: bytes) -> None:
        """
        See L{ArchivePlace.create}. Stores with a conditional write (S3, GCS) refuse a name that is taken. Of
        others, which may know no such mode, the file is asked for first, and read afterwards.
        """
        path = f"{self.directory}/{name}"
        if self.disk.exists(path):
            raise FileExistsError(errno.EEXIST, "is there", path)
        self._run(path, partial(self._write, path, data, "create"))
        try:
            is_ours = self.disk.read_file(path) == data
        except FileNotFoundError:
            is_ours = False
        if not is_ours:
            raise FileExistsError(errno.EEXIST, "was written by another program meanwhile", path)

    def _write(self, path: str, data: bytes, mode: str) -> None:
        try:
            self._files.pipe_file(path, data, mode=mode)
        except FileNotFoundError:
            self._make_folders(path.rpartition("/")[0])
            self._files.pipe_file(path, data, mode=mode)

    def copy(self, name: str, to: str) -> None:
        """
        Copy a file as a whole; a file of that name is replaced.

        @raise FileNotFoundError: there is no such file.
        """
        path, target = f"{self.directory}/{name}", f"{self.directory}/{to}"
        file = RemoteFile(self.disk, path)
        if not self._run(path, partial(self._copied, path, target)):
            self.put(to, (
                file.pread(_AHEAD_BYTES, position) for position in range(0, file.size(), _AHEAD_BYTES)
            ))

    def _copied(self, path: str, target: str) -> bool:
        """Whether the kind of store can copy."""
        try:
            self._files.cp_file(path, target)
        except NotImplementedError:
            return False
        except FileNotFoundError:
            self._make_folders(target.rpartition("/")[0])
            self._files.cp_file(path, target)
        return True

    def remove(self, name: str) -> None:
        path = f"{self.directory}/{name}"
        try:
            self._run(path, lambda: self._files.rm_file(path))
        except FileNotFoundError:
            pass
