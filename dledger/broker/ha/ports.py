# -*- test-case-name: tests.broker.ha.test_log_contract -*-
"""
What replication needs of a commit log.

Offsets are bytes since the log began, as in every RocketMQ file name. The log is a row of files of
C{file_size} bytes each; what stands in them is nobody's business here but for L{CommitLog.cut}, which
knows where records begin.

Calls are made on the reactor's thread. What goes wrong on the disk is an C{OSError}, or the
L{dledger.base.errors.StoreError} after which the log cannot go on.
"""

from __future__ import annotations

from typing import Protocol

from twisted.internet.defer import Deferred


class CommitLog(Protocol):
    """
    Invariant: C{begin_offset <= flushed_offset <= end_offset}, and C{begin_offset} is a multiple of
    C{file_size}. The log is empty when C{begin_offset == end_offset}.

    A log that is opened again after a crash ends where a record ends, not below the last such place
    at or below C{flushed_offset}. It holds what was appended, byte for byte, but for what stood behind
    C{flushed_offset} when the power was cut: that was found by parsing, which may overlook a hole.
    """

    @property
    def file_size(self) -> int:
        """Bytes of every file of the log."""

    @property
    def begin_offset(self) -> int:
        """The lowest offset that is held; 0 for a log that never had a file."""

    @property
    def end_offset(self) -> int:
        """The first offset that is not held: everything below can be read."""

    @property
    def flushed_offset(self) -> int:
        """Everything below survives a power cut."""

    def read(self, offset: int, size: int) -> bytes:
        """
        Up to C{size} bytes from C{offset} on, none of them beyond the file that holds C{offset}, none
        beyond C{end_offset}. Never fewer than these limits allow; none at C{end_offset}.

        @param offset: C{begin_offset} to C{end_offset}.
        """

    def append_raw(self, offset: int, data: bytes | memoryview) -> None:
        """
        Write bytes that came from a master, as they are. They need not end where a record ends.

        @param offset: C{end_offset}; in an empty log, the beginning of any file: the log begins there then.
        @param data: at least one byte, none beyond the file of C{offset}.
        @raise ValueError: not such an offset, or too many bytes.
        @raise WireError: these bytes cannot be records; nothing was appended.
        @raise OSError: nothing was appended; C{end_offset} is what it was.
        """

    def cut(self, offset: int) -> int:
        """
        Let the log end where the last record that ends at or below C{offset} ends. What stood behind is
        zero afterwards, files behind are gone, and that is durable on return. Nothing happens to a log that
        ends there already. Records are found from the beginning of the file of C{offset}, so the cost is
        at most one file.

        @param offset: at least C{begin_offset}.
        @return: the new C{end_offset}.
        """

    def flush(self) -> Deferred[int]:
        """
        Bring to stable storage what has been appended before the call. May be called while another one is
        under way.

        @return: fires with C{flushed_offset}; fails with L{dledger.base.errors.StoreError} or C{OSError},
        after
            which nothing more may be promised.
        """
