# -*- test-case-name: tests.node.test_node -*-
"""Says what a ledger sets aside, and how much it has."""

from __future__ import annotations

from twisted.logger import Logger

from dledger.storage.store.file_store import FileStore


class AsideWatch:
    """
    @ivar files, size: number of files that were ever set aside, and their bytes; C{files} is -1 until known.
    """

    def __init__(self, store: FileStore, log: Logger, self_id: str) -> None:
        self.files = -1
        self.size = 0
        self._store = store
        self._log = log
        self._self_id = self_id
        self._reported = 0

    def look(self) -> None:
        """Log what is new. @raise StoreError: the files cannot be listed."""
        new = self._store.set_aside[self._reported :]
        self._reported += len(new)
        for one in new:
            self._log.warn(
                "{size} bytes were cut from the ledger and set aside in {path}; they are never deleted here",
                size=one.size, path=one.path, self_id=self._self_id,
            )
        if new or self.files < 0:
            kept = self._store.kept_files()
            self.files = len(kept)
            self.size = sum(one.size for one in kept)
