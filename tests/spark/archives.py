# -*- test-case-name: tests.spark.test_archive -*-
"""Archives and backups for the tests, made by the code of C{dledger archive}."""

from __future__ import annotations

import itertools

from dledger.base.disk.disk import OsDisk, ReadOnlyDisk
from dledger.storage.backups.archive import ArchiveSummary, archive_log
from dledger.storage.backups.place import opened_place
from dledger.storage.backups.source import ArchiveSource

_NUMBERS = itertools.count(1)


def ship(member: str, target: str, *, is_backup: bool = False) -> ArchiveSummary:
    """One run of C{dledger archive}, or of C{dledger backup}."""
    source = ArchiveSource.open(ReadOnlyDisk(), member)
    try:
        return archive_log(source, opened_place(target, OsDisk()), is_backup=is_backup,
                           taken_s=1_700_000_000)
    finally:
        source.close()


def memory_url() -> str:
    """A store in the memory of this process that nothing else uses."""
    return f"memory://archive-{next(_NUMBERS)}/log"
