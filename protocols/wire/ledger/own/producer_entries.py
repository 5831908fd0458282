# -*- test-case-name: tests.wire.test_producers -*-
"""
The body of a producer entry as bytes, see L{protocols.wire.ledger.producers}.

Source: none, this is ours; docs/exactly-once.md.
"""

from __future__ import annotations

from collections.abc import Iterable

from construct import Int16ub, Int32sb, Int32ub, Int64sb, Struct

from protocols.wire.checksums import crc32
from protocols.wire.errors import WireError
from protocols.wire.layout import struct_of
from protocols.wire.ledger.producers import (
    PRODUCER_CHANNEL,
    PRODUCER_HEADER_BYTES,
    PRODUCER_ID_BYTES_MAX,
    RUN_BYTES_MAX,
    ProducerRun,
    producer_problem,
)

#: An entry whose runs are closed; one with an open run, or without runs.
PRODUCER_ENTRY_VERSION = 1
OPEN_ENTRY_VERSION = 2

PRODUCER_ENTRY_DECLARATION = Struct(
    "magic" / Int32sb,  # "PRDC"
    "version" / Int32sb,
    "crc" / Int32ub,  # CRC-32 of the runs
    "count" / Int32sb,  # runs that follow
)
PRODUCER_RUN_DECLARATION = Struct(
    "distance" / Int32sb,  # of its first entry from the producer entry, 1 or more
    "entries" / Int32sb,  # number of them; 0, in version 2, for the last run: it is open
    "sequence" / Int64sb,  # of its first entry
    "id_length" / Int16ub,  # bytes of the id of the producer, which follows
)
_HEADER = struct_of(PRODUCER_ENTRY_DECLARATION)
_RUN = struct_of(PRODUCER_RUN_DECLARATION)
assert (RUN_BYTES_MAX, PRODUCER_HEADER_BYTES) == (_RUN.size + PRODUCER_ID_BYTES_MAX, _HEADER.size)


def encode_producer_entry(runs: Iterable[ProducerRun]) -> bytes:
    """The body of a producer entry."""
    pieces, count, entries = [], 0, 0
    for producer, sequence, distance, entries in runs:
        raw = producer.encode()
        assert 0 < len(raw) <= PRODUCER_ID_BYTES_MAX, producer
        pieces += [_RUN.pack(distance, entries, sequence, len(raw)), raw]
        count += 1
    text = b"".join(pieces)
    version = PRODUCER_ENTRY_VERSION if entries else OPEN_ENTRY_VERSION
    return _HEADER.pack(PRODUCER_CHANNEL, version, crc32(text), count) + text


def decode_producer_entry(body: bytes) -> tuple[ProducerRun, ...]:
    """
    The runs in the body of a producer entry, in order of their entries.

    @raise WireError: it is malformed, or of a later version.
    """
    if len(body) < _HEADER.size:
        raise WireError(f"producer entry: {len(body)} bytes, at least {_HEADER.size} are needed")
    magic, version, crc, count = _HEADER.unpack_from(body)
    if magic == PRODUCER_CHANNEL and version not in (PRODUCER_ENTRY_VERSION, OPEN_ENTRY_VERSION):
        raise WireError(f"producer entry: version={version}, this program reads {PRODUCER_ENTRY_VERSION} and "
                        f"{OPEN_ENTRY_VERSION}: upgrade this member")
    if magic != PRODUCER_CHANNEL or crc32(memoryview(body)[_HEADER.size :]) != crc:
        raise WireError("producer entry: its magic or its checksum does not fit")
    runs: list[ProducerRun] = []
    at, behind = _HEADER.size, 1
    for number in range(1, count + 1):
        if at + _RUN.size > len(body):
            raise WireError(f"producer entry: {len(runs)} runs of {count}")
        distance, entries, sequence, length = _RUN.unpack_from(body, at)
        at += _RUN.size + length
        raw = body[at - length : at]
        try:
            producer = raw.decode()
        except UnicodeDecodeError as error:
            raise WireError(f"producer entry: an id is not UTF-8: {error}") from None
        problem = producer_problem(producer, sequence)
        if problem or len(raw) != length or distance < behind or (
            entries < (0 if number == count and version == OPEN_ENTRY_VERSION else 1)
        ):
            raise WireError(f"producer entry: run of {entries} at {distance}: {problem or 'malformed'}")
        behind = distance + entries
        runs.append(ProducerRun(producer, sequence, distance, entries))
    if at != len(body):
        raise WireError(f"producer entry: {len(body) - at} bytes after its runs")
    return tuple(runs)
