# -*- test-case-name: tests.broker.store.test_store -*-
"""
A log of message records: the part of it that everything but its writer sees, and the part that its store
uses.

Offsets are bytes since the log began. A record lies in one file. In RocketMQ's commit log records follow each
other; in a raft log each is the body of an entry, after the entry's header, C{record_lead} bytes. The offset
of a record never includes what is before it.
"""

from __future__ import annotations

from typing import Protocol

from twisted.internet.defer import Deferred


class MessageLog(Protocol):
    """
    @ivar record_lead: bytes before each record.
    @ivar queue_offsets: topic and queue to the offset of its next message.
    """

    record_lead: int
    queue_offsets: dict[tuple[str, int], int]

    @property
    def file_size(self) -> int:
        """Bytes of every file."""

    @property
    def begin_offset(self) -> int:
        """The lowest offset in the log."""

    @property
    def end_offset(self) -> int:
        """The end of what readers may see."""

    @property
    def record_end(self) -> int:
        """End of the last whole record that readers may see."""

    @property
    def flushed_offset(self) -> int:
        """Every byte below this offset is on stable storage here."""

    def read(self, offset: int, size: int) -> bytes:
        """
        Up to C{size} bytes of one file from C{offset} on; fewer at the end of the file or of the log.

        @raise ValueError: the offset is outside the log.
        @raise OSError: the file cannot be read.
        """

    def problem_at(self, offset: int) -> str | None:
        """Why the record or blank at C{offset} is not sound; empty for a sound one; None: not known."""


class StoredLog(MessageLog, Protocol):
    """A L{MessageLog} as its store has it: brought to stable storage at times, and closed at the end."""

    def flush(self) -> Deferred[int]:
        """
        Bring the log of this moment to stable storage. Called every half second, and by each checkpoint.

        @return: fires with the end of what is on stable storage; fails with L{StoreError}: the log is broken.
        """

    def idle(self) -> Deferred[None]:
        """@return: fires when no flush is under way; the log may then be closed."""

    def clean_close(self) -> None:
        """Record that the log was closed in order, and release it. @raise StoreError: that failed."""

    def abandon(self) -> None:
        """Release the log without writing. May be repeated."""
