# -*- test-case-name: tests.broker.ha.test_log_contract -*-
"""
The interface of a commit log that replication needs.

Offsets are bytes since the log began, as in every RocketMQ file name. The log is a row of files of
C{file_size} bytes each. Replication knows nothing of their content; L{LogPort.cut} knows where records begin.

Calls are made on the reactor's thread. A failure of the disk is an C{OSError}, or the
L{dledger.values.errors.StoreError} after which the log is unusable.
"""

from __future__ import annotations

from typing import Protocol

from twisted.internet.defer import Deferred


class LogPort(Protocol):
    """
    Invariant: C{begin_offset <= flushed_offset <= end_offset}, and C{begin_offset} is a multiple of
    C{file_size}. The log is empty when C{begin_offset == end_offset}.

    A log that is opened again after a crash ends where a record ends, not below the last record end
    at or below C{flushed_offset}. It holds the appended bytes unchanged, except after the
    C{flushed_offset} of a power cut: that part was found by parsing, which may overlook a hole.
    """

    @property
    def file_size(self) -> int:
        """Bytes of every file of the log."""

    @property
    def begin_offset(self) -> int:
        """The lowest offset in the log; 0 for a log that never had a file."""

    @property
    def end_offset(self) -> int:
        """The offset after the last byte: everything below can be read."""

    @property
    def flushed_offset(self) -> int:
        """Every byte below this offset is on stable storage."""

    @property
    def doubtful(self) -> range:
        """
        The bytes of a slave that a start after a crash found by parsing, and that are still in the log; not
        known to have been on stable storage before. A power cut may have left holes (zeroes) in them. They
        stay doubtful, also over a further crash, until L{compared}.
        """

    def compared(self) -> None:
        """All bytes equal the master's: none is doubtful any more."""

    def read(self, offset: int, size: int) -> bytes:
        """
        Read C{size} bytes from C{offset} on, or fewer at the end of the file that holds C{offset} or at
        C{end_offset}.

        @param offset: C{begin_offset} to C{end_offset}.
        """

    def append_raw(self, offset: int, data: bytes | memoryview) -> None:
        """
        Write bytes of a master unchanged. They need not end where a record ends.

        @param offset: C{end_offset}; in an empty log the start of any file, where the log then begins.
        @param data: at least one byte, none beyond the file of C{offset}.
        @raise ValueError: C{offset} or the size of C{data} is not allowed.
        @raise WireError: the bytes cannot be records; nothing was appended.
        @raise OSError: the write failed; nothing was appended, and C{end_offset} is unchanged.
        """

    def cut(self, offset: int) -> int:
        """
        Cut the log to the end of the last record that ends at or below C{offset}. Bytes after it are zero
        and files after it are deleted, durably, on return. A log that ends there already is unchanged.
        Records are searched from the beginning of the file of C{offset}, so the cost is at most one file.

        @param offset: at least C{begin_offset}.
        @return: the new C{end_offset}.
        """

    def record_end_below(self, offset: int) -> int:
        """
        End of the last record that ends at or below C{offset}: the offset to which L{cut} would cut.

        @param offset: at least C{begin_offset}.
        """

    def problem_at(self, offset: int, data: bytes | bytearray | None = None) -> str | None:
        """
        Check the record or blank that begins at C{offset}, by its lengths and checksum.

        @param data: the bytes from there on, as another broker has them; None: ours.
        @return: why it is not sound; empty for a sound one; None if there are too few bytes to say.
        """

    def set_aside(self, offset: int) -> Deferred[str]:
        """
        Cut the log as L{cut} does, but keep the files that it loses or changes in a directory of their own.
        Nothing may be appended in the meantime.

        @return: fires with the path of the directory; fails with C{OSError} or
            L{dledger.values.errors.DLedgerError} if the log has not changed.
        """

    def flush(self) -> Deferred[int]:
        """
        Bring all bytes appended before the call to stable storage. May be called while another flush is
        under way.

        @return: fires with C{flushed_offset}; fails with L{dledger.values.errors.StoreError} or C{OSError},
            after which no byte may be reported as flushed.
        """

    def idle(self) -> Deferred[None]:
        """@return: fires when no flush is under way, and the callers that waited for the last one know."""
