# -*- test-case-name: tests.spark.test_tables,tests.spark.test_lake -*-
"""Where a table is: a directory, which is locked, or the URL of a store, which has no locks."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from pathlib import Path

from dledger.spark.export.files import (
    PENDING_NAME,
    rename_staged,
    staged_path,
    sync_staged,
    take_lock,
)
from dledger.spark.export.store_files import LocalFolder, file_chunks, store_place
from dledger.storage.backups.place import RemotePlace


class TablePlace:
    """
    A place of which only the package of the table knows more.

    @ivar where: its absolute path, or its URL without a slash at the end.
    """

    def __init__(self, where: str) -> None:
        self.where = where

    def names(self) -> list[str]:
        """What is in it, as far as it can be seen from here. @raise OSError."""
        return []

    def hold(self) -> None:
        """
        Make it, and keep other exports of this machine away.

        @raise OSError: it cannot be made.
        @raise ExportError: another export runs.
        """

    def stage(self, name: str) -> Path:
        """A new path of this machine for an unfinished file."""
        raise AssertionError("no file is staged here")

    def staged(self, name: str) -> Path:
        """The path of a staged file."""
        raise AssertionError("no file is staged here")

    def publish(self, files: Sequence[tuple[str, str]]) -> None:
        """
        Give staged files their names in the place, durably; those that are not staged any more have theirs.

        @param files: names given to L{stage}, and those in the place.
        """

    def close(self) -> None:
        """Remove what is staged, and let others write."""


class LocalTablePlace(TablePlace):
    """A directory of this machine."""

    _lock = -1

    def __init__(self, path: str | os.PathLike[str]) -> None:
        super().__init__(os.path.abspath(path))
        self.path = Path(self.where)

    def names(self) -> list[str]:
        return sorted(os.listdir(self.path)) if self.path.exists() else []

    def hold(self) -> None:
        self.path.mkdir(parents=True, exist_ok=True)
        self._lock = take_lock(self.path)
        shutil.rmtree(self.path / PENDING_NAME, ignore_errors=True)

    def stage(self, name: str) -> Path:
        return staged_path(self.path, name)

    def staged(self, name: str) -> Path:
        return self.path / PENDING_NAME / name

    def publish(self, files: Sequence[tuple[str, str]]) -> None:
        staged = [pair for pair in files if self.staged(pair[0]).exists()]
        if staged:
            sync_staged(self.path, staged)
            rename_staged(self.path, staged)

    def close(self) -> None:
        if self._lock >= 0:
            shutil.rmtree(self.path / PENDING_NAME, ignore_errors=True)
            os.close(self._lock)
            self._lock = -1


class StoreTablePlace(TablePlace):
    """
    A URL.

    @ivar place: reads and writes the store.
    """

    def __init__(self, url: str, options: dict[str, object]) -> None:
        """@param options: of the store, as fsspec's. @raise ExportError: see L{store_place}."""
        self.place: RemotePlace = store_place(url, options)
        super().__init__(self.place.directory)
        self._local = LocalFolder()

    def names(self) -> list[str]:
        return self.place.disk.listdir(self.where)

    def stage(self, name: str) -> Path:
        return staged_path(self._local.path, name)

    def staged(self, name: str) -> Path:
        return self._local.path / PENDING_NAME / name

    def publish(self, files: Sequence[tuple[str, str]]) -> None:
        for staged, final in files:
            path = self.staged(staged)
            if path.exists():
                self.place.put(final, file_chunks(path))
                path.unlink()

    def close(self) -> None:
        self._local.close()
        self.place.close()
