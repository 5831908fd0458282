# -*- test-case-name: tests.spark.test_sink_markers -*-
"""
The sink's own entries, which say what of a batch is in the log.

A marker is an entry whose body is L{MARKER_BYTES} long and begins with L{MARKER_MAGIC}: the magic, the CRC-32
of the rest in hexadecimal, a blank, JSON, blanks up to the length (L{protocols.wire.ledger.own.own_entries}).
So it can be read in C{dledger tail --control}, and found by its size.

The sink of this version writes C{piece} and C{done}, as numbered entries of its producer, in the requests
that have the rows. C{begin}, C{rows} and C{end} are those of earlier versions, which numbered nothing; a
sink that goes on after them writes one more C{begin} (L{dledger.spark.sink.earlier}).

Rule: a body that only begins like a marker is none. The sink itself refuses such rows
(L{RESERVED_PREFIX}), and in bodies of other writers the CRC does not match by accident.

Knows nothing of batches in progress.
"""

from __future__ import annotations

import json
import re
from enum import StrEnum

import attrs
import numpy as np

from dledger.spark.basics.log import Chunk
from protocols.wire.checksums import crc32
from protocols.wire.ledger.entry import ENTRY_HEADER_SIZE
from protocols.wire.ledger.own.own_entries import (
    MARKER_BYTES,
    MARKER_MAGIC,
    MARKER_PREFIX,
    MARKER_TEXT_AT,
    is_marker,
)

#: Bodies of rows that begin with this are refused: a later version may begin its markers with it.
RESERVED_PREFIX = MARKER_PREFIX
_DIGITS = 16
_NUMBER_MAX = 2**63 - 1
_NAME = re.compile(r"[A-Za-z0-9._-]{1,64}", re.ASCII)
_HEX = re.compile(r"[0-9a-f]{16}", re.ASCII)


class MarkerKind(StrEnum):
    """What a marker says."""

    PIECE = "piece"
    DONE = "done"
    #: Asks for the place of an entry. It says nothing where it is in the log.
    LOOK = "look"
    #: Of earlier versions.
    BEGIN = "begin"
    ROWS = "rows"
    END = "end"


def is_sink_id(text: str) -> bool:
    """Whether C{text} can name a sink: 1 to 64 letters, digits, dots, dashes and underscores."""
    return _NAME.fullmatch(text) is not None


def _number(_marker: object, attribute: attrs.Attribute[int], value: int) -> None:
    if type(value) is not int or not 0 <= value <= _NUMBER_MAX:
        raise ValueError(f"{attribute.name}={value!r} is not a number from 0 to {_NUMBER_MAX}")


def _hex(_marker: object, attribute: attrs.Attribute[str], value: str) -> None:
    if type(value) is not str or not _HEX.fullmatch(value):
        raise ValueError(f"{attribute.name}={value!r} has not {_DIGITS} hexadecimal digits")


def _sink(_marker: object, attribute: attrs.Attribute[str], value: str) -> None:
    if type(value) is not str or not is_sink_id(value):
        raise ValueError(f"{attribute.name}={value!r} is not a name of a sink")


@attrs.frozen(kw_only=True)
class SinkMarker:
    """
    One marker.

    @ivar sink: the option C{sinkId}.
    @ivar batch: number of the batch.
    @ivar run: of the process that appended it, 16 random hexadecimal digits.
    @ivar count: C{piece}, C{rows}: the next C{count} entries of the same term are rows of the batch;
        C{done}, C{end}: rows of the whole batch.
    @ivar since: C{piece}: index of the marker of the batch before this one, 0: there is none; C{rows}: no
        marker of the batch is in front of this index; C{end}: no marker of a later batch is. 0 in others.
    @ivar digest: C{done}, C{end}: sum of the digests of all rows; else zeros.
    """

    kind: MarkerKind = attrs.field(converter=MarkerKind)
    sink: str = attrs.field(validator=_sink)
    batch: int = attrs.field(validator=_number)
    run: str = attrs.field(validator=_hex)
    count: int = attrs.field(default=0, validator=_number)
    since: int = attrs.field(default=0, validator=_number)
    digest: str = attrs.field(default="0" * _DIGITS, validator=_hex)


def encode_marker(marker: SinkMarker) -> bytes:
    """The body of a marker, L{MARKER_BYTES} long."""
    text = json.dumps(attrs.asdict(marker), separators=(",", ":")).encode()
    padded = text.ljust(MARKER_BYTES - MARKER_TEXT_AT)
    assert len(padded) == MARKER_BYTES - MARKER_TEXT_AT, f"a marker of {len(text)} bytes"
    return b"%b%08x %b" % (MARKER_MAGIC, crc32(padded), padded)


def decode_marker(body: bytes | memoryview) -> SinkMarker | None:
    """The marker, or None if C{body} is none."""
    if not is_marker(body):
        return None
    try:
        return SinkMarker(**json.loads(bytes(body[MARKER_TEXT_AT:])))
    except (TypeError, ValueError):
        return None


def markers_in(chunk: Chunk) -> list[tuple[int, SinkMarker]]:
    """The markers of a chunk with data, and their places in it, counted from 0."""
    assert chunk.data is not None
    view, found = memoryview(chunk.data), []
    for at in np.flatnonzero(np.diff(chunk.starts) == ENTRY_HEADER_SIZE + MARKER_BYTES).tolist():
        marker = decode_marker(view[int(chunk.starts[at]) + ENTRY_HEADER_SIZE : int(chunk.starts[at + 1])])
        if marker is not None:
            found.append((at, marker))
    return found
