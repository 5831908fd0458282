# -*- test-case-name: tests.storage.test_contract -*-
"""
A ledger that lives as long as its process.

It is the file store over files in memory, so positions, checks and refusals are those of the file
store, and it replicates to members with files. Commits are gated in the same way. Nothing is durable: a
restarted member has forgotten the entries that it acknowledged. For tests and trials only.

Source: DLedgerMemoryStore.java; differs: docs/divergence.md W22.
"""

from __future__ import annotations

from typing import Self

from dledger.base.disk.disk import Disk
from dledger.base.disk.memory_disk import MemoryDisk
from dledger.ledger.config import DLedgerConfig
from dledger.storage.store.file_store import FileStore


class MemoryStore(FileStore):
    """A L{FileStore} without a disk."""

    @classmethod
    def open(cls, config: DLedgerConfig, disk: Disk | None = None, *, boot_id: str = "") -> Self:
        """
        Open an empty ledger, or the one on C{disk}.

        @param disk: a L{MemoryDisk} that may hold a ledger; any other disk is ignored.
        @param boot_id: ignored, nothing here survives a boot.
        """
        return super().open(config, disk if isinstance(disk, MemoryDisk) else MemoryDisk())
