# -*- test-case-name: tests.spark.test_export_files -*-
"""
The directory that an export writes: its files, and how a part gets into it exactly once::

    OUT/part-<first>-<last>.parquet            rows of the entries first to last, both inclusive
    OUT/term=3/part-<first>-<last>.parquet     the same with --partition-by term
    OUT/_export.json                           how far the export is, and its settings
    OUT/_pending/                              unfinished files
    OUT/_lock                                  held by the process that exports

Readers of data sets (Spark, pyarrow, DuckDB) ignore names that begin with an underscore.

Rule 1: a file is written in C{_pending}, brought to stable storage, and renamed: a file with its final name
is whole and never changes again.
Rule 2: before the first rename of a part, C{_export.json} durably lists the files to rename. After a crash
the next exporter finishes these renames and nothing else: a file that is in neither place was renamed and
taken away by a reader, which is allowed.
Rule 3: the next part begins where C{_export.json} says, not where the files end: finished files may be moved
away at any time.

Knows nothing of ledgers, Arrow and Spark. Needs a file system with an atomic rename; for object stores, which
have none, there is L{dledger.spark.export.store_files}.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypedDict
from urllib.parse import quote

import attrs

STATE_NAME = "_export.json"
PENDING_NAME = "_pending"
EXPORT_LOCK_NAME = "_lock"
_VERSION = 1
#: The name that Hive, Spark and Arrow give to a null value.
NULL_PARTITION = "__HIVE_DEFAULT_PARTITION__"


class ExportError(Exception):
    """The export cannot start or continue; the message says why and what to do."""


@attrs.frozen(kw_only=True)
class ExportPart:
    """
    Rows that become visible together.

    @ivar first, last: its first and last entry, inclusive.
    @ivar files: for each file, its path below C{_pending} and its final path below the directory.
    @ivar rows: in all files.
    """

    first: int
    last: int
    files: tuple[tuple[str, str], ...]
    rows: int


def part_name(first: int, last: int, suffix: str, number: int = -1) -> str:
    """The name of a file. @param number: numbers the files of one part in one directory; -1: there is one."""
    several = f"-{number:05d}" if number >= 0 else ""
    return f"part-{first:020d}-{last:020d}{several}.{suffix}"


def partition_folder(columns: Sequence[str], values: Sequence[object]) -> str:
    """C{term=3/channel=0}, as Hive spells it; empty without columns."""
    pieces = []
    for column, value in zip(columns, values, strict=True):
        text = NULL_PARTITION if value is None else quote(str(value), safe=" !#$&'()*+,;@^_`{|}~-.")
        pieces.append(f"{column}={text}")
    return "/".join(pieces)


def sync_directory(path: Path) -> None:
    """Bring the names in a directory to stable storage."""
    number = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(number)
    finally:
        os.close(number)


def sync_file(path: Path) -> None:
    """Bring the content of a file to stable storage."""
    number = os.open(path, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)


def _write_durably(path: Path, text: str) -> None:
    aside = path.with_name(path.name + ".new")
    with open(aside, "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(aside, path)
    sync_directory(path.parent)


def staged_path(directory: Path, name: str) -> Path:
    """A new path below C{_pending} for an unfinished file or directory."""
    path = directory / PENDING_NAME / name
    if path.is_dir():
        shutil.rmtree(path)
    path.unlink(missing_ok=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


def sync_staged(directory: Path, files: Sequence[Sequence[str]]) -> None:
    """Bring staged files to stable storage. @param files: as in L{ExportPart}."""
    staging = directory / PENDING_NAME
    folders = {staging}
    for staged, _final in files:
        sync_file(staging / staged)
        folders.add((staging / staged).parent)
    for folder in folders:
        sync_directory(folder)


def rename_staged(directory: Path, files: Sequence[Sequence[str]]) -> None:
    """Rename staged files to their final names, durably; those that are not staged any more are left out."""
    folders = set()
    for staged, final in files:
        source, target = directory / PENDING_NAME / staged, directory / final
        if not source.exists():
            continue  # Rule 2
        _make_folder(target.parent)
        os.rename(source, target)
        folders.add(target.parent)
    for folder in folders:
        sync_directory(folder)


def _make_folder(folder: Path) -> None:
    if not folder.is_dir():
        _make_folder(folder.parent)
        folder.mkdir(exist_ok=True)
        sync_directory(folder.parent)


class PendingPart(TypedDict):
    """A part whose files may be in their places already; C{files}: pairs of a staged and a final name."""

    first: int
    last: int
    rows: int
    proof: Mapping[str, int | str]
    files: list[list[str]]
    fields: list[list[str]]


class ExportState(TypedDict):
    """The content of L{STATE_NAME}; see L{ExportDirectory}."""

    version: int
    settings: dict[str, object]
    first: int | None
    next: int | None
    rows: int
    proof: Mapping[str, int | str]
    pending: PendingPart | None
    fields: list[list[str]]


class KeptExport(ABC):
    """
    How far an export into files is, and the way of a part: its files are kept, then the state lists them,
    then they get their final names.

    @ivar next_index: where the next part begins; None until the first L{begin}.
    @ivar first: where the export begins; None until the first L{begin}.
    @ivar rows: in all parts so far.
    @ivar proof: given with the last part; the log is recognised by it.
    @ivar fields: name and type of each column that is a field of the bodies; recorded with the next part.
    """

    def __init__(self, state: ExportState) -> None:
        self._state = state
        self.fields = tuple((name, kind) for name, kind in state["fields"])

    @property
    def next_index(self) -> int | None:
        """See the class."""
        return self._state["next"]

    @property
    def first(self) -> int | None:
        """See the class."""
        return self._state["first"]

    @property
    def rows(self) -> int:
        """See the class."""
        return self._state["rows"]

    @property
    def proof(self) -> Mapping[str, int | str]:
        """See the class."""
        return self._state["proof"]

    @abstractmethod
    def _save(self) -> None:
        """Write the state, durably."""

    @abstractmethod
    def _keep(self, files: Sequence[tuple[str, str]]) -> list[list[str]]:
        """
        Bring staged files to stable storage.

        @param files: as in L{ExportPart}.
        @return: for each file, where it is kept, and its final path.
        """

    @abstractmethod
    def _show(self, files: Sequence[Sequence[str]]) -> None:
        """Give kept files their final names, durably; those that are not there any more are left out."""

    def begin(self, index: int) -> None:
        """The next part begins at C{index}: called at the start, and where entries are skipped."""
        assert self.next_index is None or index >= self.next_index, "an export never goes back"
        if self.next_index is None:
            self._state["first"] = index
        self._state["next"] = index
        self._save()

    def commit(self, part: ExportPart, proof: Mapping[str, int | str]) -> None:
        """
        Make a part visible, durably; L{next_index} is after it afterwards.

        @param part: its files are below C{_pending}, closed.
        @raise OSError: the disk is full or fails. The visible files are still right, and the next exporter to
            open the directory finishes the part or begins it again.
        """
        assert part.first == self.next_index, "parts follow one another"
        pending: PendingPart = {
            "first": part.first, "last": part.last, "rows": part.rows, "proof": dict(proof),
            "files": self._keep(part.files), "fields": [list(pair) for pair in self.fields],
        }
        self._state["pending"] = pending
        self._save()
        self._show(pending["files"])
        self._finish(pending)

    def _finish(self, pending: PendingPart) -> None:
        self._state |= {
            "next": pending["last"] + 1, "rows": self.rows + pending["rows"], "proof": pending["proof"],
            "fields": pending["fields"], "pending": None,
        }
        self.fields = tuple((name, kind) for name, kind in pending["fields"])
        self._save()


class ExportDirectory(KeptExport):
    """
    An open directory; no other process writes to it.

    @ivar path: the directory.
    """

    def __init__(self, path: Path, lock: int, state: ExportState) -> None:
        super().__init__(state)
        self.path = path
        self._lock = lock

    @classmethod
    def open(cls, path: str | os.PathLike[str], settings: Mapping[str, object]) -> ExportDirectory:
        """
        Open or make the directory, and finish the renames that a crash interrupted.

        @param settings: must be the same for all parts; JSON values.
        @raise ExportError: it is in use, has other files, or was begun with other settings.
        """
        path = Path(path)
        try:
            path.mkdir(parents=True, exist_ok=True)
            is_new = not (path / STATE_NAME).exists()
            foreign = [name for name in sorted(os.listdir(path)) if not name.startswith(("_", "."))]
            if is_new and foreign:
                raise ExportError(
                    f"{path} is not empty and holds no export ({foreign[0]!r} is in it, {STATE_NAME} not): "
                    "name a new directory"
                )
            lock = take_lock(path)
        except OSError as error:
            raise ExportError(f"{path} cannot be written: {error.strerror}") from error
        try:
            state = new_state(settings) if is_new else read_state(
                path, STATE_NAME, (path / STATE_NAME).read_bytes(), settings
            )
            directory = cls(path, lock, state)
            directory._recover(is_new)
        except BaseException:
            os.close(lock)
            raise
        return directory

    def _recover(self, is_new: bool) -> None:
        pending = self._state["pending"]
        if pending is not None:
            self._show(pending["files"])
            self._finish(pending)
        shutil.rmtree(self.path / PENDING_NAME, ignore_errors=True)
        (self.path / PENDING_NAME).mkdir(exist_ok=True)
        if is_new:
            self._save()

    def _save(self) -> None:
        _write_durably(self.path / STATE_NAME, json.dumps(self._state, indent=1) + "\n")

    def _keep(self, files: Sequence[tuple[str, str]]) -> list[list[str]]:
        sync_staged(self.path, files)
        return [list(pair) for pair in files]

    def _show(self, files: Sequence[Sequence[str]]) -> None:
        rename_staged(self.path, files)

    def stage(self, name: str) -> Path:
        """A new path for an unfinished file or directory, to be committed later."""
        return staged_path(self.path, name)

    def close(self) -> None:
        """Remove the files that are not committed, and release the directory."""
        shutil.rmtree(self.path / PENDING_NAME, ignore_errors=True)
        os.close(self._lock)


def take_lock(path: Path) -> int:
    """
    The descriptor of the lock of an export, whose holder may remove what is in C{_pending}.

    @raise ExportError: another process holds it; or no export has ever run here, and C{_pending} has files.
    """
    if not (path / EXPORT_LOCK_NAME).exists() and any((path / PENDING_NAME).glob("*")):
        raise ExportError(f"{path / PENDING_NAME} has files of which no export knows: name a new directory")
    lock = os.open(path / EXPORT_LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        owner = os.pread(lock, 32, 0).decode("ascii", "replace").strip()
        os.close(lock)
        raise ExportError(f"{path} is being written by another export, process {owner or '?'}") from None
    os.ftruncate(lock, 0)
    os.pwrite(lock, f"{os.getpid()}\n".encode(), 0)
    return lock


def new_state(settings: Mapping[str, object]) -> ExportState:
    """Of an export that has not begun."""
    return {
        "version": _VERSION, "settings": dict(settings), "first": None, "next": None, "rows": 0, "proof": {},
        "pending": None, "fields": [],
    }


def read_state(
    where: str | os.PathLike[str], name: str, data: bytes, settings: Mapping[str, object]
) -> ExportState:
    """
    @param where: the directory or URL of the export.
    @param name: of the state in it.
    @param data: its bytes.
    @param settings: those of now.
    @raise ExportError: it is damaged, or has entries with other settings.
    """
    try:
        state: ExportState = json.loads(data.decode())
        version = state["version"]
        said = state["settings"]
        if not {"next", "rows", "proof", "pending", "fields"} <= state.keys():
            raise KeyError("next")
    except (ValueError, KeyError, TypeError) as error:
        raise ExportError(
            f"{where}/{name} is damaged ({type(error).__name__}: {error}), so the progress of the export is "
            "unknown: export to a new directory"
        ) from None
    if version != _VERSION:
        raise ExportError(f"{where}/{name} is of version {version}; this program knows {_VERSION}")
    if state["next"] is None:
        return new_state(settings)  # It ended before its first entry, so no file has the old settings.
    for setting, value in settings.items():
        if said.get(setting) != value:
            raise ExportError(
                f"{where} was begun with {setting}={_shown(said.get(setting))}, and now {_shown(value)} is "
                "asked for: use the same value as before, or name a new directory"
            )
    assert isinstance(state, dict)
    return state


def _shown(value: object) -> str:
    if isinstance(value, list):
        return ",".join(map(str, value)) or "nothing"
    return str(value) if value not in (None, "") else "nothing"
