# -*- test-case-name: tests.broker.store.test_bad_records -*-
"""
The records of a log that were found damaged: counted, and each logged once.

A damaged record is never served: a consumer gets the messages around it, a request for it by its offset an
error. Its bytes stay in the log until a slave has offered a sound copy, see
L{dledger.rocketmq.store.log.record_mending}.
"""

from __future__ import annotations

from twisted.logger import Logger

#: Records that are remembered, and logged.
REPORTED_MAX = 1000


class BadRecords:
    """
    @ivar count: damaged records in the log that are known, each counted once; at most L{REPORTED_MAX}.
    """

    log = Logger()

    def __init__(self) -> None:
        self._offsets: set[int] = set()

    @property
    def count(self) -> int:
        """Number of damaged records that are known."""
        return len(self._offsets)

    def offsets(self) -> list[int]:
        """Their offsets in the log, rising."""
        return sorted(self._offsets)

    def note(self, offset: int, problem: str) -> None:
        """A damaged record was found. @param problem: why it is not sound."""
        if offset in self._offsets or len(self._offsets) >= REPORTED_MAX:
            return
        self._offsets.add(offset)
        self.log.error(
            "the record at {offset} is damaged and is not served: {problem}. The other copy of the master or "
            "a slave, may be sound", offset=offset, problem=problem,
        )

    def mended(self, offset: int) -> None:
        """The record at C{offset} is sound again."""
        self._offsets.discard(offset)

    def forget(self, offset: int) -> None:
        """The log was cut at C{offset}: other records come there."""
        self._offsets = {one for one in self._offsets if one < offset}
