# -*- test-case-name: tests.wire.test_messages -*-
"""Consecutive entries as values that messages carry and stores take."""

from __future__ import annotations

from protocols.wire.values import value_class


@value_class(kw_only=True)
class EntryBatch:
    """
    Consecutive entries as the bytes of their records, which are the bytes on disk.

    @ivar first_index: index of the first entry.
    @ivar count: number of entries, at least 1.
    @ivar term: term of the I{last} entry. Batches that our members send hold one term only;
        a Java leader's batch may hold several, never falling.
    @ivar records: the records, without blanks between them. Each record has its own C{pos}, so a batch
        may cross a file boundary.
    """

    first_index: int
    count: int
    term: int
    records: bytes

    @property
    def last_index(self) -> int:
        """Index of the last entry, inclusive."""
        return self.first_index + self.count - 1

    @property
    def size(self) -> int:
        """Bytes that it carries."""
        return len(self.records)


@value_class(kw_only=True)
class EntryChunk(EntryBatch):
    """
    I{Ours}: a batch of one term and one data file, with the checksums that its leader made when it wrote the
    entries. A follower compares those, and does not check each record.

    @ivar units: the index units of the entries, as on disk.
    @ivar records_crc, units_crc: CRC-32 of C{records} and of C{units} when they were written.
    """

    units: bytes
    records_crc: int
    units_crc: int

    @property
    def size(self) -> int:
        """Bytes that it carries."""
        return len(self.records) + len(self.units)
