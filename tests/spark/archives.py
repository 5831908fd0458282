# -*- test-case-name: tests.spark.test_archive -*-
"""Archives for the tests, made by the code of C{dledger archive}."""

from __future__ import annotations

import itertools

from dledger.base.disk.disk import OsDisk, ReadOnlyDisk
from dledger.storage.backups.archive import ArchiveSummary, archive_segments
from dledger.storage.backups.backup_source import BackupSource
from dledger.storage.backups.place import opened_place

_NUMBERS = itertools.count(1)


def ship(member: str, target: str) -> ArchiveSummary:
    """One run of C{dledger archive}."""
    source = BackupSource.open(ReadOnlyDisk(), member)
    try:
        return archive_segments(source, opened_place(target, OsDisk()), taken_s=1_700_000_000)
    finally:
        source.close()


def memory_url() -> str:
    """A store in the memory of this process that nothing else uses."""
    return f"memory://archive-{next(_NUMBERS)}/log"
