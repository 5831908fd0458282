# -*- test-case-name: tests.storage.test_archive -*-
"""
Where an archive is: a directory, or (L{dledger.storage.backups.place}) an object store.

A place needs little: files that are written once and as a whole, and two small ones that are replaced. No
rename, no lock and no atomic replacement is asked of a store; L{dledger.storage.manifests.archive_manifest}
says why that is enough. A store that can refuse a name that is taken keeps two writers apart.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from typing import Protocol

from dledger.base.disk.disk import Disk
from dledger.storage.manifests.archive_manifest import GENERATIONS, ArchiveBusy, piece_span
from dledger.storage.manifests.kept_snapshot import MACHINE_DIRECTORY, parsed_snapshot_name
from dledger.values.errors import DLedgerError

#: Ends the name of a file that is not whole.
PART_SUFFIX = ".part"
_LOCK_NAME = "lock"
#: Directories in an archive.
FOLDERS = ("data", GENERATIONS, MACHINE_DIRECTORY)


class ArchivePlace(Protocol):
    """Calls raise C{OSError}. Names of files are relative: C{archive-0.json}, C{data/...}."""

    @property
    def directory(self) -> str:
        """Path or URL; a name after it and a slash is the path of a file on L{disk}."""

    @property
    def disk(self) -> Disk:
        """For reading."""

    def hold(self) -> Callable[[], None]:
        """
        Keep other writers away, as far as the place can.

        @return: ends that.
        @raise ArchiveBusy: another program writes there.
        """

    def sizes(self) -> dict[str, int]:
        """
        Names of the files at the top, in C{data}, in C{generations} and in C{machine}, and their lengths in
        bytes; none without any.
        """

    def put(self, name: str, chunks: Iterator[bytes]) -> None:
        """
        Write a file as a whole, durably. A file of that name is replaced. If C{chunks} or a call fails, the
        file may be there in part, be as it was, or be gone.
        """

    def replace(self, name: str, data: bytes) -> None:
        """Write a small file, durably, as atomically as the place can."""

    def create(self, name: str, data: bytes) -> None:
        """
        Write a small file whose name must be free, durably. Of several programs that try, one succeeds, as
        far as the place can say.

        @raise FileExistsError: the name is taken.
        """

    def remove(self, name: str) -> None:
        """Remove a file, durably; one that is absent is no error."""


class DirectoryPlace:
    """A directory. A file gets its name when all of it is on stable storage. Implements L{ArchivePlace}."""

    def __init__(self, disk: Disk, directory: str) -> None:
        self.disk = disk
        self.directory = directory.rstrip("/") or "/"

    def hold(self) -> Callable[[], None]:
        self.disk.makedirs(f"{self.directory}/data")
        try:
            lock = self.disk.lock(f"{self.directory}/{_LOCK_NAME}")
        except BlockingIOError:
            raise ArchiveBusy(f"{self.directory} is in use by another dledger archive or backup: "
                              "end that one, or name another target") from None
        try:
            # A run that was killed may have left a manifest whose name is not on stable storage yet.
            self.disk.sync_directory(self.directory)
            if self.disk.exists(f"{self.directory}/{GENERATIONS}"):
                self.disk.sync_directory(f"{self.directory}/{GENERATIONS}")
            self._remove_parts()
        except OSError:
            lock.close()
            raise
        return lock.close

    def _remove_parts(self) -> None:
        """A file that was not finished has no name in any manifest; the next run writes a whole one."""
        machine = f"{self.directory}/{MACHINE_DIRECTORY}"
        for folder in (f"{self.directory}/data", *([machine] if self.disk.exists(machine) else ())):
            for name in self.disk.listdir(folder):
                whole = name.removesuffix(PART_SUFFIX)
                is_ours = parsed_snapshot_name(whole) if folder == machine else piece_span(f"data/{whole}")
                if name != whole and is_ours:
                    self.disk.unlink(f"{folder}/{name}")

    def sizes(self) -> dict[str, int]:
        """See L{ArchivePlace.sizes}. Without the lock, and files that are being written."""
        found: dict[str, int] = {}
        for inside in ("", *(f"{one}/" for one in FOLDERS)):
            path = f"{self.directory}/{inside}".rstrip("/")
            for name in self.disk.listdir(path) if self.disk.exists(path) else ():
                is_ours = f"{inside}{name}" in (*FOLDERS, _LOCK_NAME)
                if not is_ours and not name.endswith((".tmp", PART_SUFFIX)):
                    found[f"{inside}{name}"] = self._size(f"{path}/{name}")
        return found

    def _size(self, path: str) -> int:
        try:
            return self.disk.file_size(path)
        except IsADirectoryError:
            return -1

    def put(self, name: str, chunks: Iterator[bytes]) -> None:
        path = f"{self.directory}/{name}"
        part, size = f"{path}{PART_SUFFIX}", 0
        if name.startswith(f"{MACHINE_DIRECTORY}/"):
            self.disk.makedirs(part.rpartition("/")[0])
        if self.disk.exists(part):
            self.disk.unlink(part)
        file = self.disk.open(part, create=True)
        try:
            for chunk in chunks:
                file.pwrite(chunk, size)
                size += len(chunk)
            file.datasync()
        except DLedgerError:  # of the chunks: there will be no whole one
            self.disk.unlink(part)
            raise
        finally:
            file.close()
        if self.disk.exists(path):  # of a run that was cut short before it wrote the manifest
            self.disk.unlink(path)
        self.disk.rename(part, path)

    def replace(self, name: str, data: bytes) -> None:
        self.disk.write_file(f"{self.directory}/{name}", data)

    def create(self, name: str, data: bytes) -> None:
        """See L{ArchivePlace.create}. The lock keeps others away."""
        path = f"{self.directory}/{name}"
        self.disk.makedirs(path.rpartition("/")[0])
        if self.disk.exists(path):
            raise FileExistsError(errno.EEXIST, "is there", path)
        self.disk.write_file(path, data)

    def remove(self, name: str) -> None:
        """See L{ArchivePlace.remove}. A power cut does not bring it back."""
        path = f"{self.directory}/{name}"
        if self.disk.exists(path):
            self.disk.unlink(path)
            self.disk.sync_directory(path.rpartition("/")[0])
