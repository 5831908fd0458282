# -*- test-case-name: tests.spark.test_sink_markers -*-
"""
The sink's own entries, which say what of a batch is in the log.

A marker is an entry whose body is L{MARKER_BYTES} long and begins with L{MARKER_MAGIC}: the magic, the CRC-32
of the rest in hexadecimal, a blank, JSON, blanks up to the length. So it can be read in C{dledger tail}, and
found by its size: a scan that reads only the index opens the data files for records of this size alone.

Rule: a body that only begins like a marker is none. The sink itself refuses such rows
(L{RESERVED_PREFIX}), and in bodies of other writers the CRC does not match by accident.

Knows nothing of batches in progress.
"""

from __future__ import annotations

import json
import re
from enum import StrEnum
from zlib import crc32

import attrs
import numpy as np

from dledger.spark.log import Chunk, Offsets
from protocols.wire.ledger.entry import ENTRY_HEADER_SIZE

#: Bodies of rows that begin with this are refused: a later version may begin its markers with it.
RESERVED_PREFIX = b"dledger-sink/"
#: Version 1.
MARKER_MAGIC = RESERVED_PREFIX + b"1 "
#: An odd number: bodies of a fixed length have it seldom.
MARKER_BYTES = 333
_JSON_AT = len(MARKER_MAGIC) + 9
_DIGITS = 16
_NUMBER_MAX = 2**63 - 1
_NAME = re.compile(r"[A-Za-z0-9._-]{1,64}", re.ASCII)
_HEX = re.compile(r"[0-9a-f]{16}", re.ASCII)


class MarkerKind(StrEnum):
    """What a marker says."""

    BEGIN = "begin"
    ROWS = "rows"
    END = "end"


def is_sink_id(text: str) -> bool:
    """Whether C{text} can name a sink: 1 to 64 letters, digits, dots, dashes and underscores."""
    return _NAME.fullmatch(text) is not None


def _number(_marker: object, attribute: attrs.Attribute[int], value: int) -> None:
    if type(value) is not int or not 0 <= value <= _NUMBER_MAX:
        raise ValueError(f"{attribute.name}={value!r} is no number from 0 to {_NUMBER_MAX}")


def _hex(_marker: object, attribute: attrs.Attribute[str], value: str) -> None:
    if type(value) is not str or not _HEX.fullmatch(value):
        raise ValueError(f"{attribute.name}={value!r} has not {_DIGITS} hexadecimal digits")


def _sink(_marker: object, attribute: attrs.Attribute[str], value: str) -> None:
    if type(value) is not str or not is_sink_id(value):
        raise ValueError(f"{attribute.name}={value!r} is no name of a sink")


@attrs.frozen(kw_only=True)
class SinkMarker:
    """
    One marker.

    @ivar sink: the option C{sinkId}.
    @ivar batch: number of the batch.
    @ivar run: of the process that appended it, 16 random hexadecimal digits.
    @ivar count: C{rows}: the next C{count} entries of the same term are rows of the batch; C{end}: rows of
        the whole batch.
    @ivar since: C{rows}: no marker of the batch is in front of this index; C{end}: no marker of a later batch
        is. 0 in C{begin}.
    @ivar digest: C{end}: sum of the digests of all rows; else zeros.
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
    padded = text.ljust(MARKER_BYTES - _JSON_AT)
    assert len(padded) == MARKER_BYTES - _JSON_AT, f"a marker of {len(text)} bytes"
    return b"%b%08x %b" % (MARKER_MAGIC, crc32(padded), padded)


def decode_marker(body: bytes | memoryview) -> SinkMarker | None:
    """The marker, or None if C{body} is none."""
    if len(body) != MARKER_BYTES:
        return None
    held = bytes(body)
    if not held.startswith(MARKER_MAGIC) or held[len(MARKER_MAGIC) : _JSON_AT] != b"%08x " % crc32(
        held[_JSON_AT:]
    ):
        return None
    try:
        return SinkMarker(**json.loads(held[_JSON_AT:]))
    except (TypeError, ValueError):
        return None


def _places_by_size(chunk: Chunk) -> Offsets:
    """Which records, counted from 0, have the size of a marker."""
    return np.flatnonzero(np.diff(chunk.starts) == ENTRY_HEADER_SIZE + MARKER_BYTES)


def runs_of_marker_size(chunk: Chunk) -> list[tuple[int, int]]:
    """The ranges of offsets (ends exclusive) whose records have the size of a marker."""
    places = _places_by_size(chunk)
    runs = np.split(places, np.flatnonzero(np.diff(places) > 1) + 1) if len(places) else []
    return [(chunk.first + int(run[0]), chunk.first + int(run[-1]) + 1) for run in runs]


def markers_in(chunk: Chunk) -> list[tuple[int, SinkMarker]]:
    """The markers of a chunk with data, and their places in it, counted from 0."""
    assert chunk.data is not None
    view, found = memoryview(chunk.data), []
    for at in _places_by_size(chunk).tolist():
        marker = decode_marker(view[int(chunk.starts[at]) + ENTRY_HEADER_SIZE : int(chunk.starts[at + 1])])
        if marker is not None:
            found.append((at, marker))
    return found
