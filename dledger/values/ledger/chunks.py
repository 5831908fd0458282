# -*- test-case-name: tests.storage.test_chunk_sums -*-
"""
A chunk: consecutive entries of one term whose records lie in one data file without a gap, and the checksums
over the bytes of their records and of their index units.
"""

from __future__ import annotations

from typing import NamedTuple

#: Bytes of one index unit.
UNIT_BYTES = 32

class ChunkSum(NamedTuple):
    """
    What is recorded about a chunk.

    @ivar first_index, last_index: of its entries, inclusive.
    @ivar position, end_position: stream offsets in bytes of its first record, and after its last one.
    @ivar term: of all its entries.
    @ivar chain_crc: C{chainCrc} of its last record.
    @ivar records_crc, units_crc: CRC-32 of its records, and of its index units, when they were written.
    """

    first_index: int
    last_index: int
    position: int
    end_position: int
    term: int
    chain_crc: int
    records_crc: int
    units_crc: int

    @property
    def entries(self) -> int:
        """Number of entries."""
        return self.last_index - self.first_index + 1

    @property
    def size(self) -> int:
        """Bytes of its records and index units."""
        return self.end_position - self.position + self.entries * UNIT_BYTES
