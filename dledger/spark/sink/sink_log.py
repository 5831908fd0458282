# -*- test-case-name: tests.spark.test_sink_batch -*-
"""
What the sink needs of a group's log, the rows of a batch, and the errors.

Knows nothing of members, sockets and Spark.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from hashlib import blake2b
from typing import Protocol

import attrs

from dledger.spark.sink.markers import SinkMarker
from protocols.wire.ledger.producers import PRODUCER_ID_BYTES_MAX

_DIGEST_MAX = 1 << 64
_PREFIX = "sink:"
#: In place of the last sequence.
FORGOTTEN = -2
#: Characters of a long name that the id of its producer begins with.
_NAME_PART = 42


class SinkError(Exception):
    """The batch cannot be appended; the message says what is in the log, and what to do."""


class TakenOverError(SinkError):
    """Another run of the same sink appends the batch."""


class OutOfStepError(Exception):
    """
    The log has fewer entries of the producer than it reported before, or has deleted the entry: nothing was
    appended.

    @ivar is_expired: it has deleted it.
    """

    def __init__(self, reason: str, *, is_expired: bool = False) -> None:
        super().__init__(reason)
        self.is_expired = is_expired


def digest_of(row: bytes) -> int:
    """64 bits that distinguish rows."""
    return int.from_bytes(blake2b(row, digest_size=8).digest())


def digest_of_all(rows: Iterable[bytes]) -> int:
    """64 bits that distinguish batches, in any order of their rows."""
    return sum(map(digest_of, rows)) % _DIGEST_MAX


def producer_of(sink: str) -> str:
    """The producer of a sink, 64 bytes at most. No two sinks have the same one."""
    if len(_PREFIX) + len(sink) <= PRODUCER_ID_BYTES_MAX:
        return _PREFIX + sink
    # No name of a sink has the sign between the two.
    return f"{_PREFIX}{sink[:_NAME_PART]}~{blake2b(sink.encode(), digest_size=8).hexdigest()}"


@attrs.frozen(kw_only=True)
class PlacedBodies:
    """
    Bodies that are in the log, committed.

    @ivar index: of the first one.
    @ivar count: number of the bodies that are, from the first one; they follow each other.
    @ivar is_other: they are not those of the request, whose numbers they have.
    """

    index: int
    count: int
    is_other: bool = False


class SinkLog(Protocol):
    """The group's log, as far as a batch needs it."""

    def last_sequence(self, producer: str) -> int:
        """
        The last sequence of a producer; -1: it has none; L{FORGOTTEN}: the group may have forgotten it.

        @raise SinkError: nobody says.
        """

    def append(
        self, producer: str, sequence: int, bodies: Sequence[bytes], hidden: tuple[int, ...]
    ) -> PlacedBodies:
        """
        Append numbered bodies as one piece, or find those that have these numbers.

        @param hidden: numbers of the bodies that are markers.
        @raise OutOfStepError: the entry before is not in the log, or the one with this number is not any
            more; nothing was appended.
        @raise SinkError: they were not taken, or nobody has reported in time whether they were.
        """

    def first_index(self) -> int:
        """The first entry that is still there. @raise ReadError: it cannot be found out."""

    def markers(self, begin: int, end: int) -> list[tuple[int, SinkMarker]]:
        """
        Markers from C{begin} to C{end} (exclusive) with their indexes.

        @raise ReadError: the entries cannot be read.
        """

    def rows_behind(self, index: int, count: int, end: int) -> list[bytes]:
        """
        The bodies of at most C{count} entries after the marker at C{index}, in front of C{end}, as far as
        they have its term, and are entries of its producer that are shown.

        @raise ReadError: they cannot be read.
        """


@attrs.frozen(kw_only=True)
class BatchRows:
    """
    The rows of a batch.

    @ivar count, digest: of all rows; the latter is the sum of L{digest_of}.
    @ivar all: each row in order, each time it is called.
    """

    count: int
    digest: int
    all: Callable[[], Iterator[bytes]]


@attrs.frozen(kw_only=True)
class BatchOutcome:
    """
    A batch is in the log.

    @ivar appended: rows that this call has appended; the others were there.
    """

    appended: int
