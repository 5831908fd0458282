# -*- test-case-name: tests.storage.test_expiry -*-
"""
Whether the disk is full, and whether the oldest data file may go.

Ratios are Java's: used / (used + usable), in whole percent rounded up. Unlike Java's, the files
that go hold committed entries only (docs/divergence.md W18); the caller sees to that.

Source: CleanSpaceService in DLedgerMmapFileStore.java (0.3.1.2).
"""

from __future__ import annotations

from dledger.base.disk.disk import Disk, DiskSpace
from dledger.base.disk.segment import SegmentList
from dledger.config import DLedgerConfig

_HOUR_S = 3600.0


def used_ratio(space: DiskSpace) -> float:
    """Share of the file system in use, in whole percent, as a fraction."""
    used = space.total - space.free
    whole = used + space.usable
    return -(-used * 100 // whole) / 100 if whole > 0 else 1.0


class Expiry:
    """
    What the last look at the disk showed.

    @cvar FILES_MAX: at most so many files go at a time.
    """

    FILES_MAX = 10

    def __init__(self, config: DLedgerConfig) -> None:
        self._config = config
        self._hours = {int(hour) for hour in config.delete_when.split(";")}
        self._ratio = 0.0
        self.disk_full = False
        self.why_full = ""

    def look(self, disk: Disk, data: SegmentList, base_path: str) -> None:
        """Measure the room on the file systems of the ledger."""
        spaces = [disk.space(base_path)]
        if disk.exists(data.directory):
            spaces.append(disk.space(data.directory))
        self._ratio = max(used_ratio(space) for space in spaces)
        usable = min(space.usable for space in spaces)
        self.why_full = ""
        if self._ratio > self._config.disk_full_ratio:
            limit = self._config.disk_full_ratio
            self.why_full = f"disk used to {self._ratio:.0%}, above disk_full_ratio={limit}"
        elif usable < self._config.min_free_bytes:
            self.why_full = f"{usable} bytes usable, below min_free_bytes={self._config.min_free_bytes}"
        self.disk_full = bool(self.why_full)

    def wants(self, data: SegmentList, now_s: float, local_hour: int, *, free_to_go: bool) -> bool:
        """
        Whether the oldest file should go.

        @param free_to_go: nobody still needs its entries; force cleaning does not ask.
        """
        config = self._config
        forced = config.enable_disk_force_clean and self._ratio > config.disk_space_ratio_to_force_clean
        if forced:
            return True
        if not free_to_go:
            return False
        held = len(data.offsets) * data.file_size
        if config.retention_bytes and held - data.file_size >= config.retention_bytes:
            return True
        due = local_hour in self._hours or self._ratio > config.disk_space_ratio_to_check_expired
        age_s = now_s - data.modified_s(data.offsets[0])
        return due and age_s >= max(config.file_reserved_hours, 1) * _HOUR_S
