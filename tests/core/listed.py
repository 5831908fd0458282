# -*- test-case-name: tests.core.test_changes -*-
"""The memberships and the chunks of a ledger in memory."""

from __future__ import annotations

import attrs

from dledger.values.ledger.chunks import ChunkSum
from dledger.values.ledger.membership import Membership
from protocols.wire.ledger.batches import EntryBatch, EntryChunk
from protocols.wire.ledger.own.configuration import decode_configuration


@attrs.define
class ListedMemberships:
    """Those of the bodies that look like configuration entries; a membership is made once."""

    entries: list[tuple[int, bytes]] = attrs.Factory(list)
    begin_index: int = 0
    made: dict[tuple[int, int], Membership] = attrs.field(factory=dict, init=False)

    @property
    def memberships(self) -> tuple[Membership, ...]:
        """In order of indexes."""
        return tuple(
            self.made.setdefault((index, term), Membership(
                index=index, term=term, **decode_configuration(body)._asdict()
            ))
            for index, (term, body) in enumerate(self.entries, self.begin_index) if body.startswith(b"DLCF")
        )

    @property
    def membership(self) -> Membership | None:
        """The last of them."""
        known = self.memberships
        return known[-1] if known else None


@attrs.define
class ListedChunks(ListedMemberships):
    """
    The chunks of a ledger in a list, as if every record were a kibibyte.

    @ivar chunk_entries: entries of each chunk, which begin with its multiples; 0: there are none.
    @ivar stale_chunks: first indexes of chunks that turn out to be of other entries.
    """

    chunk_entries: int = attrs.field(default=0, kw_only=True)
    stale_chunks: tuple[int, ...] = attrs.field(default=(), kw_only=True)

    def read_batch(self, first_index: int, *, max_count: int, max_bytes: int) -> EntryBatch:
        """Records of one term."""
        raise NotImplementedError

    def chunk_from(self, index: int) -> ChunkSum | None:
        """See L{dledger.core.state.ports.LedgerView.chunk_from}."""
        first = -(-index // self.chunk_entries) * self.chunk_entries if self.chunk_entries else 0
        last = first + self.chunk_entries - 1
        if last < first or last >= self.begin_index + len(self.entries) or first < self.begin_index:
            return None
        term = self.entries[last - self.begin_index][0]
        return ChunkSum(first, last, first * 1024, (last + 1) * 1024, term, 0, 0, 0)

    def read_chunk(self, chunk: ChunkSum) -> EntryChunk | None:
        """Its entries, with empty index units."""
        if chunk.first_index in self.stale_chunks:
            return None
        batch = self.read_batch(chunk.first_index, max_count=chunk.entries, max_bytes=1 << 40)
        return EntryChunk(first_index=batch.first_index, count=batch.count, term=batch.term,
                          records=batch.records, units=bytes(32 * batch.count), records_crc=0, units_crc=0)
