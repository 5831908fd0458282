# -*- test-case-name: tests.spark.test_sink_markers -*-
"""
The sink's own entries, which say what of a batch is in the log.

Markers are numbered entries of the sink's producer, in the requests that have the rows, and their C{channel}
has the bit of hidden entries (L{protocols.wire.ledger.own.own_entries}). A body is L{MARKER_BYTES} long: the
magic, the CRC-32 of the rest in hexadecimal, a blank, JSON, blanks up to the length. So it can be read in
C{dledger tail --control}, and found by its size.

Knows nothing of batches in progress.
"""

from __future__ import annotations

import json
import re
from enum import StrEnum

import attrs
import numpy as np

from dledger.spark.formats.log import Chunk
from protocols.wire.checksums import crc32
from protocols.wire.ledger.entry import ENTRY_HEADER_SIZE, decode_header
from protocols.wire.ledger.own.own_entries import HIDDEN_MAGIC, is_hidden

#: Version 1; then the CRC-32 of the rest in hexadecimal, and a blank.
MARKER_MAGIC = HIDDEN_MAGIC + b"sink/1 "
_TEXT_AT = len(MARKER_MAGIC) + 9
#: Length of a marker. An odd number: bodies of a fixed length have it seldom.
MARKER_BYTES = 333
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
    @ivar count: C{piece}: the next C{count} entries of the same term are rows of the batch; C{done}: rows of
        the whole batch.
    @ivar since: C{piece}: index of the marker of the batch before this one, 0: there is none. 0 in others.
    @ivar digest: C{done}: sum of the digests of all rows; else zeros.
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
    padded = text.ljust(MARKER_BYTES - _TEXT_AT)
    assert len(padded) == MARKER_BYTES - _TEXT_AT, f"a marker of {len(text)} bytes"
    return b"%b%08x %b" % (MARKER_MAGIC, crc32(padded), padded)


def is_marker(body: bytes | memoryview) -> bool:
    """Whether a body is one of a marker: its length, its magic and its CRC-32 fit."""
    if len(body) != MARKER_BYTES or body[: len(MARKER_MAGIC)] != MARKER_MAGIC:
        return False
    return bytes(body[len(MARKER_MAGIC) : _TEXT_AT]) == b"%08x " % crc32(body[_TEXT_AT:])


def decode_marker(body: bytes | memoryview) -> SinkMarker | None:
    """The marker, or None if C{body} is none."""
    if not is_marker(body):
        return None
    try:
        return SinkMarker(**json.loads(bytes(body[_TEXT_AT:])))
    except (TypeError, ValueError):
        return None


def markers_in(chunk: Chunk) -> list[tuple[int, SinkMarker]]:
    """The markers of a chunk with data, and their places in it, counted from 0."""
    assert chunk.data is not None
    view, found = memoryview(chunk.data), []
    for at in np.flatnonzero(np.diff(chunk.starts) == ENTRY_HEADER_SIZE + MARKER_BYTES).tolist():
        header = decode_header(view, int(chunk.starts[at]))
        if header.channel < 0 or not is_hidden(header.channel, header.chain_crc):
            continue
        marker = decode_marker(view[int(chunk.starts[at]) + ENTRY_HEADER_SIZE : int(chunk.starts[at + 1])])
        if marker is not None:
            found.append((at, marker))
    return found
