# -*- test-case-name: tests.spark.test_archive -*-
"""
The files of an archive or a backup, in a directory or an object store: read only.

Rule 1: a call that fails is tried again until C{requestTimeoutMs} are over; a call that does not return is
given up after the same time. A file that is absent is reported at once: an archive loses none.
Rule 2: both slots of the manifest must be sound, as far as they were ever written: the damaged one may be the
newer one, which has more entries. A slot that is being written looks damaged for a moment, so it counts only
if it still does later.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import TypeVar

from dledger.base.disk.disk import ReadOnlyDisk
from dledger.spark.formats.log import PAUSE_MAX_S, PAUSE_S, DamageError, ReadError, skipped
from dledger.spark.formats.option_texts import OptionError
from dledger.spark.formats.options import ScanOptions
from dledger.storage.backups.place import RemoteDisk, opened_place
from dledger.storage.manifests.archive_manifest import SLOT_NAMES, ArchiveManifest, ArchiveState, read_archive
from dledger.storage.manifests.archive_place import ArchivePlace
from dledger.values.addresses import is_url
from dledger.values.errors import DirectoryError, StoreError

_Result = TypeVar("_Result")
#: A slot that is being written may look damaged for this long, seconds.
_PASSING_S = 1.0
#: Errors that trying again does not cure.
_FINAL = (FileNotFoundError, PermissionError, IsADirectoryError, NotADirectoryError)
_ALLOWED = ("allowed are a directory, and a URL of a kind of store that fsspec knows and that is installed, "
            "such as s3://bucket/log (pip install 'dledger[s3]')")


def is_archive(path: str) -> bool:
    """Whether C{path}, of option C{path}, is an archive: a URL, or a directory that has its files."""
    if is_url(path):
        return True
    if any(os.path.isfile(f"{path}/{name}") for name in SLOT_NAMES):
        return True
    data = f"{path}/data"
    if os.path.isdir(f"{path}/index") or not os.path.isdir(data):
        return False
    try:
        # Without its manifest it is damaged, and said to be.
        return any(len(name) == 41 and name[20] == "-" for name in os.listdir(data))
    except OSError:
        return False


class ArchiveFiles:
    """
    Invariant: no call is made on a place of which one has missed its deadline.

    @ivar where: the directory, or the URL.
    """

    def __init__(self, options: ScanOptions, where: str) -> None:
        """@param where: a directory, or a URL."""
        self.where = where.rstrip("/") or "/"
        self._option = "archive" if options.archive else "path"
        self._given = options.archive_options
        self._timeout_s = options.request_timeout_ms / 1000
        self._fail_on_damage = options.fail_on_damage
        self._place: ArchivePlace | None = None
        self._said: set[str] = set()

    def path(self, name: str) -> str:
        """The path or URL of a file."""
        return f"{self.where}/{name}"

    def _opened(self) -> ArchivePlace:
        if self._place is None:
            try:
                self._place = opened_place(
                    self.where, ReadOnlyDisk(), options=self._given, deadline_s=self._timeout_s
                )
            except DirectoryError as error:
                if isinstance(error.__cause__, OSError):
                    raise error.__cause__ from None
                raise OptionError(f"option {self._option}={self.where!r}: {error}; {_ALLOWED}") from None
        return self._place

    def _tried(self, path: str, call: Callable[[ArchivePlace], _Result]) -> _Result:
        """
        The result of C{call}, which is repeated after an error.

        @raise FileNotFoundError: there is no such file.
        @raise ReadError: see rule 1.
        """
        deadline, pause = time.monotonic() + self._timeout_s, PAUSE_S
        while True:
            try:
                return call(self._opened())
            except FileNotFoundError:
                raise
            except (OSError, StoreError) as error:
                cause = error.__cause__ if isinstance(error, StoreError) else error
                if isinstance(error, DirectoryError):
                    raise ReadError(str(error)) from None
                left = deadline - time.monotonic()
                if isinstance(cause, _FINAL) or left <= 0:
                    raise ReadError(f"{path} cannot be read: {cause or error}. It was tried for "
                                    f"{self._timeout_s * 1000:g} ms (requestTimeoutMs) at most") from error
                self.close()
                time.sleep(min(pause, left))
                pause = min(2 * pause, PAUSE_MAX_S)

    def manifest(self) -> ArchiveManifest:
        """
        What the archive has now.

        @raise DamageError: a slot is damaged, or lost, and C{failOnDamage} is set; or both are.
        @raise ReadError: there is no archive, it is of a later version, or it cannot be read.
        """
        deadline, pause = time.monotonic() + min(_PASSING_S, self._timeout_s), PAUSE_S
        while True:
            state = self._tried(self.where, lambda place: read_archive(place.disk, place.directory))
            trouble = list(state.trouble) or self._unlisted(state)
            if not trouble:
                assert state.manifest is not None
                return state.manifest
            if time.monotonic() >= deadline:
                break
            time.sleep(pause)
            pause = min(2 * pause, PAUSE_MAX_S)
        what = "; ".join(trouble)
        if state.manifest is None:
            raise DamageError(f"{self.where} has no sound manifest: {what}. Put a copy of one back")
        what += (f": the manifest that is left ends with entry {state.manifest.end_index}, and the lost one "
                 "may have more")
        if self._fail_on_damage:
            raise DamageError(f"{what}. Run dledger archive again, which writes the slot. With option "
                              "failOnDamage=false the manifest that is left counts")
        if what not in self._said:
            self._said.add(what)
            skipped(what)
        return state.manifest

    def _unlisted(self, state: ArchiveState) -> list[str]:
        """
        Why an archive without a listed segment may have lost its manifest.

        @raise ReadError: there is nothing of an archive.
        """
        if state.manifest is not None and state.manifest.pieces:
            return []
        pieces = sorted(name for name in self._tried(self.where, lambda place: place.sizes())
                        if name.startswith("data/"))
        if pieces:
            return [f"{self.path(pieces[0])} is there, but no manifest ({' or '.join(SLOT_NAMES)}) lists a "
                    "segment"]
        if state.manifest is None:
            raise ReadError(f"{self.where} holds no archive: there is no {' or '.join(SLOT_NAMES)}. Name the "
                            "target of dledger archive, and if it is a store, check its options "
                            "(archiveOptions)")
        return []

    def size(self, name: str) -> int:
        """
        Bytes of a file.

        @raise FileNotFoundError: there is no such file.
        @raise ReadError: it cannot be asked for.
        """
        path = self.path(name)
        return self._tried(path, lambda place: place.disk.file_size(path))

    def read(self, name: str, begin: int, end: int) -> bytes:
        """
        Bytes of a file, fewer only where it ends.

        @raise FileNotFoundError: there is no such file.
        @raise ReadError: it cannot be read.
        """
        path = self.path(name)

        def read(place: ArchivePlace) -> bytes:
            if isinstance(place.disk, RemoteDisk):
                return place.disk.read_range(path, begin, end)
            file = place.disk.open(path)
            try:
                return file.pread(end - begin, begin)
            finally:
                file.close()

        return self._tried(path, read)

    def close(self) -> None:
        """Release the place; the next call opens it again."""
        place, self._place = self._place, None
        close = getattr(place, "close", None)
        if close is not None:
            close()
