# -*- test-case-name: tests.client.test_blocking_tail -*-
"""The entries of a log from an index on, one by one, for a program without a reactor."""

from __future__ import annotations

from collections.abc import Iterator

from dledger.base.sending.blocking_batches import BlockingBatches
from dledger.client.answers.values import Entry


class BlockingEntries:
    """An iterator of entries; one thread uses it. @ivar batches: those that have them."""

    def __init__(self, batches: BlockingBatches[list[Entry]]) -> None:
        self.batches = batches
        self._ready: Iterator[Entry] = iter(())

    def __iter__(self) -> BlockingEntries:
        return self

    def __next__(self) -> Entry:
        while True:
            for entry in self._ready:  # the rest of a batch
                return entry
            batch = self.batches.peek()
            self._ready = iter(batch)  # from here to the next line nothing interrupts
            self.batches.ahead = None

    def close(self) -> None:
        """Read no more."""
        self._ready = iter(())
        self.batches.close()
