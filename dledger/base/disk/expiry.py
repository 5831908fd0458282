# -*- test-case-name: tests.storage.test_expiry -*-
"""
Decides whether a disk is full, and whether the oldest data file may be deleted.

Ratios are computed as in Java: used / (used + usable), in whole percent, rounded up. Unlike Java, we delete
only files whose entries are all committed (docs/divergence.md W18). The caller ensures that.

Source: CleanSpaceService in DLedgerMmapFileStore.java (0.3.1.2).
"""

from __future__ import annotations

import attrs

from dledger.base.disk.disk import Disk, DiskSpace
from dledger.base.disk.segment import SegmentList

_HOUR_S = 3600.0
#: The room is short from this share below that of a full disk on.
_SHORT = 0.05


def used_ratio(space: DiskSpace) -> float:
    """The share of the file system that is in use: 0.0 to 1.0, rounded up to whole hundredths."""
    used = space.total - space.free
    whole = used + space.usable
    return -(-used * 100 // whole) / 100 if whole > 0 else 1.0


@attrs.frozen(kw_only=True)
class ExpiryRules:
    """
    The limits by which a disk is full, and a file may be deleted. Ratios are 0 to 1.

    @ivar full_ratio: above it the disk is full.
    @ivar full_ratio_name: the option that sets C{full_ratio}, for messages.
    @ivar reserved_hours: a file is kept for this time after its last write; 0: no file is deleted for its
        age.
    @ivar delete_hours: the hours of the day, 0 to 23, at which old files are deleted.
    @ivar check_ratio: above it old files are deleted at any hour.
    @ivar force_ratio: above it the oldest file is deleted, even a young one; None: never.
    @ivar retention_bytes: the oldest file is deleted if the others have at least this size; 0: no such limit.
    """

    full_ratio: float
    full_ratio_name: str
    reserved_hours: int
    delete_hours: frozenset[int]
    check_ratio: float
    force_ratio: float | None
    retention_bytes: int


class Expiry:
    """
    The room on the disk at the last measurement, and the decisions that follow from it.

    @ivar rules: may be replaced at any time.
    @ivar why_full: why the disk is full; empty if it is not.
    @ivar is_nearly_full: whether it soon was at the last measurement, or is.
    @cvar FILES_MAX: the most files that are deleted at a time.
    """

    FILES_MAX = 10

    def __init__(self, rules: ExpiryRules) -> None:
        self.rules = rules
        self._ratio = 0.0
        self._refused = ""
        self._wanted_bytes = 0
        self.why_full = ""
        self.is_nearly_full = False

    @property
    def disk_full(self) -> bool:
        """Whether the disk was full at the last measurement, or a write has found no room since."""
        return bool(self.why_full)

    def refused(self, why: str, wanted_bytes: int) -> None:
        """
        Take the disk for full, because a write found no room.

        @param wanted_bytes: the disk is full until L{measure} finds this number of usable bytes.
        """
        self._refused = self.why_full = why
        self._wanted_bytes = wanted_bytes
        self.is_nearly_full = True

    def measure(self, disk: Disk, data: SegmentList, base_path: str) -> None:
        """
        Measure the room on the file systems of a ledger: of its directory, and of its data files.

        @param data: the data files.
        @param base_path: the directory.
        @raise OSError: it cannot be measured.
        """
        spaces = [disk.space(base_path)]
        if disk.exists(data.directory):
            spaces.append(disk.space(data.directory))
        self._ratio = max(used_ratio(space) for space in spaces)
        usable = min(space.usable for space in spaces)
        if usable >= self._wanted_bytes:
            self._refused = ""
        self.why_full = self._refused
        rules = self.rules
        if usable <= 0:
            self.why_full = "no byte of the file system is usable"
        elif self._ratio > rules.full_ratio:
            limit = f"{rules.full_ratio_name}={rules.full_ratio}"
            self.why_full = f"disk used to {self._ratio:.0%}, above {limit}"
        self.is_nearly_full = bool(self.why_full) or self._ratio > rules.full_ratio - _SHORT

    def wants(self, data: SegmentList, now_s: float, local_hour: int, *, free_to_go: bool) -> str:
        """
        Why the oldest file should be deleted; empty if it should stay.

        @param free_to_go: no follower and no reader needs its entries. Above C{force_ratio} this does not
            count.
        """
        rules = self.rules
        if rules.force_ratio is not None and self._ratio > rules.force_ratio:
            return f"the disk is used to {self._ratio:.0%}, above {rules.force_ratio:.0%}: forced cleaning"
        if not free_to_go:
            return ""
        held = len(data.offsets) * data.file_size
        if rules.retention_bytes and held - data.file_size >= rules.retention_bytes:
            return f"the segments had {held} bytes: retention_bytes={rules.retention_bytes}"
        due = local_hour in rules.delete_hours or self._ratio > rules.check_ratio
        if not (rules.reserved_hours and due):
            return ""
        age_s = now_s - data.modified_s(data.offsets[0])
        if age_s < rules.reserved_hours * _HOUR_S:
            return ""
        return f"it was {age_s / _HOUR_S:.0f} hours old: file_reserved_hours={rules.reserved_hours}"
