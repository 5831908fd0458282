# -*- test-case-name: tests.raft_broker.test_entry_indexing -*-
"""
Puts the keys of the messages of committed entries into the index.

An entry whose body is not a message has no keys.

Source: DLedgerCommitLog.checkMessageAndReturnSize, IndexService.buildIndex (4.9.8).
"""

from __future__ import annotations

from dledger.rocketmq.store.index.indexing import FIXED_SIZE, SCARCE_S, KeyIndexing
from protocols.wire.errors import WireError
from protocols.wire.ledger.entry import BLANK, BLANK_MAGIC, ENTRY_HEADER_SIZE, MAGIC
from protocols.wire.rocketmq.layout import INDEXED_PART, START_SIZE


class EntryIndexing(KeyIndexing):
    """A L{KeyIndexing} of a raft log. It waits at damage, which the other members mend."""

    def _size(self, data: bytes) -> int:
        return BLANK.unpack_from(data)[1] if len(data) >= START_SIZE else 0

    def _pass_over(self, bound: int, reason: str) -> float:
        if self._passed_to != self.index.offset:
            self._passed_to = self.index.offset
            self.log_events.warn("index: the records from {offset} on have to wait: {reason}",
                                 offset=self.index.offset, reason=reason)
        return SCARCE_S

    def _records(
        self, data: bytes, offset: int, room: int
    ) -> tuple[list[tuple[int, int, tuple[int, ...]]], int]:
        found: list[tuple[int, int, tuple[int, ...]]] = []
        at, end = 0, len(data)
        while end - at >= START_SIZE:
            magic, size = BLANK.unpack_from(data, at)
            if magic == BLANK_MAGIC:
                return found, room
            if magic != MAGIC or size < ENTRY_HEADER_SIZE:
                if found:
                    break  # the next slice meets it
                raise WireError(f"no entry begins at {offset + at}: magic={magic}, size={size}")
            if size > end - at:
                break
            body_at = at + ENTRY_HEADER_SIZE
            at += size
            if at - body_at >= FIXED_SIZE:
                fields = INDEXED_PART.unpack_from(data, body_at)
                if fields[0] == at - body_at:
                    found.append((body_at, at, fields))
        return found, at
