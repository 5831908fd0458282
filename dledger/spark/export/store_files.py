# -*- test-case-name: tests.spark.test_export_stores -*-
"""
An object store as the target of an export into files; L{dledger.spark.export.files} has that of a directory::

    OUT/part-<first>-<last>.parquet        as in a directory
    OUT/_export/<number>.json              how far the export is, and its settings: the highest number counts
    OUT/_pending/<run>-<number>            files that have no final name yet

A store has neither a rename nor a lock, but shows a file when all of it is there, copies files, and refuses a
name that is taken.

Rule 1: each state is a new file, whose number was free and is the highest afterwards: a state that was
removed as too old cannot be written again. So of two programs that write the next state one goes on, and the
other ends.
Rule 2: who opens the export writes the next state first. A run of before, here or on another machine, can
write none any more, and so show no further part.
Rule 3: a part is whole in C{_pending} before a state lists it, and is then copied to its final names: by its
own run, or by the next one. Both copy the same bytes. Then the next state is written, and the files in
C{_pending} are removed.
Rule 4: other files in C{_pending} are removed only if they were listed before the first state of the own run:
later ones may belong to a later run.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import tempfile
import uuid
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from dledger.base.disk.disk import ReadOnlyDisk
from dledger.spark.export.files import (
    PENDING_NAME,
    ExportError,
    ExportState,
    KeptExport,
    PendingPart,
    new_state,
    read_state,
    staged_path,
)
from dledger.storage.backups.place import RemotePlace, opened_place
from dledger.values.errors import DirectoryError

STATES_NAME = "_export"
#: The name of a L{LocalFolder} begins so, and a file in it is locked.
_FOLDER = "dledger-export-"
_LOCK_NAME = "_staging-lock"
#: Bytes of a file that are given to a store at a time.
_CHUNK_BYTES = 4 * 1024 * 1024
#: Times that an opening looks at the state again, because another run has written the next one.
_ATTEMPTS = 5


def store_place(url: str, options: Mapping[str, object]) -> RemotePlace:
    """
    @param options: of the kind of store, as fsspec's.
    @raise ExportError: the kind of store is not known, a package is missing, or an option is wrong.
    """
    try:
        place = opened_place(url, ReadOnlyDisk(), options=options or None)
    except DirectoryError as error:
        raise ExportError(
            f"{error.facts['reason']}. Allowed are a directory, and a URL of a kind of store that fsspec "
            "knows and that is installed, such as s3://bucket/out (pip install 'dledger[s3]')"
        ) from error
    if not isinstance(place, RemotePlace):
        raise ExportError(f"{url} is a directory of this machine: write its path alone")
    return place


def file_chunks(path: Path) -> Iterator[bytes]:
    """The bytes of a file."""
    with open(path, "rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            yield chunk


class LocalFolder:
    """
    A directory of this machine for files on their way into a store.

    Rule: it is locked as long as its process lives. The next one of the same user removes those that were
    left by killed processes, and so have no lock: else each kill would cost the bytes of a part.

    @ivar path: of the directory.
    """

    def __init__(self) -> None:
        """@raise OSError: it cannot be made."""
        top = Path(tempfile.gettempdir())
        for left in top.glob(f"{_FOLDER}*"):
            _remove_unlocked(left)
        # Under its name it is never seen without a lock.
        new = Path(tempfile.mkdtemp(prefix=f"new-{_FOLDER}", dir=top))
        self._lock = os.open(new / _LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        self.path = new.rename(top / new.name.removeprefix("new-"))

    def close(self) -> None:
        """Remove it."""
        shutil.rmtree(self.path, ignore_errors=True)
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1


def _remove_unlocked(folder: Path) -> None:
    """Remove a L{LocalFolder} of a process that has ended; anything else, as an OUT of this name, stays."""
    try:
        if folder.lstat().st_uid != os.getuid():
            return
        lock = os.open(folder / _LOCK_NAME, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(folder, ignore_errors=True)  # (It follows no link.)
    except BlockingIOError:
        pass
    finally:
        os.close(lock)


class StoreExport(KeptExport):
    """
    An open export; a run that was opened before cannot go on.

    @ivar path: its URL.
    """

    def __init__(self, place: RemotePlace, state: ExportState, number: int) -> None:
        """@param number: of C{state}; -1: it is not written yet."""
        super().__init__(state)
        self.path = place.directory
        self._place = place
        self._number = number
        self._run = uuid.uuid4().hex
        self._kept = 0
        self._local = LocalFolder()

    @classmethod
    def open(cls, place: RemotePlace, settings: Mapping[str, object]) -> StoreExport:
        """
        Take the export over, or begin one; finish the part that an earlier run did not.

        @param settings: must be the same for all parts; JSON values.
        @raise ExportError: the place has other files, was begun with other settings, or is written by other
            programs all the time; or the store fails.
        """
        try:
            return cls._taken(place, settings)
        except OSError as error:
            place.close()
            raise ExportError(f"{place.directory} cannot be used: {error}. Check the URL, and the options of "
                              "the store (--store-option)") from error
        except BaseException:
            place.close()
            raise

    @classmethod
    def _taken(cls, place: RemotePlace, settings: Mapping[str, object]) -> StoreExport:
        for _attempt in range(_ATTEMPTS):
            stale = place.disk.listdir(f"{place.directory}/{PENDING_NAME}")
            try:
                state, number = cls._found(place, settings)
            except FileNotFoundError:
                continue  # a run has written the next one
            export = cls(place, state, number)
            try:
                if export._is_next():
                    export._recover(stale)
                    return export
            except BaseException:
                export._local.close()
                raise
            export._local.close()
        raise ExportError(f"{place.directory} is being written by other exports: let one of them go on")

    @classmethod
    def _found(cls, place: RemotePlace, settings: Mapping[str, object]) -> tuple[ExportState, int]:
        numbers = _numbers(place)
        if not numbers:
            names = place.disk.listdir(place.directory)
            foreign = [name for name in names if not name.startswith(("_", "."))]
            foreign += [f"{PENDING_NAME}/{name}"
                        for name in place.disk.listdir(f"{place.directory}/{PENDING_NAME}")]
            numbers = _numbers(place)  # another run may have begun the export meanwhile
            if not numbers and foreign:
                raise ExportError(
                    f"{place.directory} is not empty and holds no export ({foreign[0]!r} is in it, "
                    f"{STATES_NAME} not): name a new place"
                )
        if not numbers:
            return new_state(settings), -1
        name = _name(numbers[-1])
        data = place.disk.read_file(f"{place.directory}/{name}")
        return read_state(place.directory, name, data, settings), numbers[-1]

    def _recover(self, stale: Sequence[str]) -> None:
        """@param stale: see rule 4."""
        pending = self._state["pending"]
        if pending is not None:
            self._show(pending["files"])
            self._finish(pending)
        for name in stale:
            self._place.remove(f"{PENDING_NAME}/{name}")
        for number in _numbers(self._place):
            if number < self._number:
                self._place.remove(_name(number))

    def _save(self) -> None:
        if not self._is_next():
            raise ExportError(
                f"another export has taken {self.path} over, and goes on where this one ends: let one of "
                "them run"
            )
        if self._number:
            self._place.remove(_name(self._number - 1))

    def _is_next(self) -> bool:
        """Write the next state. @return: whether it counts, see rule 1."""
        # (The run distinguishes it from the same state of another one.)
        data = (json.dumps({**self._state, "run": self._run}, indent=1) + "\n").encode()
        number = self._number + 1
        try:
            self._place.create(_name(number), data)
        except FileExistsError:
            # A client that has not got an answer sends its request again, and is refused.
            if not self._is_written(number, data):
                return False
        if _numbers(self._place)[-1:] != [number]:
            return False
        self._number = number
        return True

    def _is_written(self, number: int, data: bytes) -> bool:
        try:
            return self._place.disk.read_file(f"{self.path}/{_name(number)}") == data
        except FileNotFoundError:
            return False

    def _keep(self, files: Sequence[tuple[str, str]]) -> list[list[str]]:
        kept = []
        for staged, final in files:
            name = f"{PENDING_NAME}/{self._run}-{self._kept}"
            self._kept += 1
            self._place.put(name, file_chunks(self._local.path / PENDING_NAME / staged))
            kept.append([name, final])
            (self._local.path / PENDING_NAME / staged).unlink()
        return kept

    def _show(self, files: Sequence[Sequence[str]]) -> None:
        for kept, final in files:
            try:
                self._place.copy(kept, final)
            except FileNotFoundError:
                # Another run has finished the part; or somebody else removed the file.
                if _numbers(self._place)[-1:] == [self._number] and not self._place.disk.exists(
                    f"{self.path}/{final}"
                ):
                    raise ExportError(
                        f"{self.path}/{kept} is gone, which the export has not copied to {final} yet: only "
                        f"exports may remove files in {PENDING_NAME}. Export to a new place"
                    ) from None

    def _finish(self, pending: PendingPart) -> None:
        super()._finish(pending)
        for kept, _final in pending["files"]:
            self._place.remove(kept)

    def stage(self, name: str) -> Path:
        """A new path on this machine for an unfinished file."""
        return staged_path(self._local.path, name)

    def close(self) -> None:
        """Remove the files of this machine, and end the calls of the store."""
        self._local.close()
        self._place.close()


def _name(number: int) -> str:
    return f"{STATES_NAME}/{number:020d}.json"


def _numbers(place: RemotePlace) -> list[int]:
    """Of the states that are there, ascending."""
    names = place.disk.listdir(f"{place.directory}/{STATES_NAME}")
    return sorted(int(name[:20]) for name in names if name[:20].isdigit() and name[20:] == ".json")
