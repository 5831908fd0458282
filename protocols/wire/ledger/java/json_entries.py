# -*- test-case-name: tests.wire.test_json_bodies -*-
"""
Entries in the JSON bodies of Java DLedger, and Java's numbers there. Entries become records, sized by their
bodies.

Source: DLedgerEntry in DLedger 0.3.1.2.
"""

from __future__ import annotations

import struct

from protocols.wire.errors import BodyError, WireError
from protocols.wire.fastjson import (
    INT_BITS,
    LONG_BITS,
    JsonObject,
    canonical_keys,
    folded,
    shown,
    to_bytes,
    to_int,
    write_bytes,
)
from protocols.wire.ledger.batches import EntryBatch
from protocols.wire.ledger.entry import ENTRY_HEADER, ENTRY_HEADER_SIZE, iterate_records
from protocols.wire.ledger.record_checks import check_records

_ENTRY_KEYS = ("magic", "index", "term", "pos", "channel", "chainCrc", "bodyCrc", "body", "size")
_ENTRY_NAMES = {folded(name): name for name in _ENTRY_KEYS}
_ENTRY_KNOWN = frozenset(_ENTRY_KEYS)


def json_of_entries(batch: EntryBatch | None) -> list[JsonObject]:
    """The entries of a batch; none without one."""
    if batch is None:
        return []
    return [
        {
            "body": write_bytes(body),
            "bodyCrc": header.body_crc,
            "chainCrc": header.chain_crc,
            "channel": header.channel,
            "index": header.index,
            "magic": header.magic,
            "pos": header.pos,
            "size": header.size,
            "term": header.term,
        }
        for header, body in iterate_records(batch)
    ]


def _read_record(value: object, name: str, *, sized: bool) -> bytes:
    """
    The record of one entry in JSON.

    @param sized: whether to refuse a wrong C{size}. Java compares it in COMPARE and recomputes it elsewhere.
    """
    if not isinstance(value, dict):
        raise BodyError(f"{name}={shown(value)} is not an object")
    if not value.keys() <= _ENTRY_KNOWN:
        value = canonical_keys(value, _ENTRY_NAMES)
    body = to_bytes(value.get("body"), "body")
    if body is None:
        raise BodyError(f"{name}: an entry without a body")
    length = len(body)
    size = ENTRY_HEADER_SIZE + length
    if sized and (said := json_int(value.get("size"), "size")) != size:
        raise BodyError(f"{name}: size={said} but the record has {size} bytes")
    get = value.get
    try:
        header = ENTRY_HEADER.pack(
            get("magic", 0), size, get("index", 0), get("term", 0), get("pos", 0), get("channel", 0),
            get("chainCrc", 0), get("bodyCrc", 0), length,
        )
    except struct.error:  # a value that is not a plain number in its range
        header = ENTRY_HEADER.pack(
            json_int(get("magic"), "magic") or 0, size, json_long(get("index"), "index") or 0,
            json_long(get("term"), "term") or 0, json_long(get("pos"), "pos") or 0,
            json_int(get("channel"), "channel") or 0, json_int(get("chainCrc"), "chainCrc") or 0,
            json_int(get("bodyCrc"), "bodyCrc") or 0, length,
        )
    return header + body


def entries_of_json(value: object, name: str, *, sized: bool = False) -> EntryBatch | None:
    """
    The batch of an array of entries; None if it is missing or empty.

    @param name: of the key, for errors. @param sized: whether to refuse a wrong C{size}.
    @raise BodyError: it is something else, or the entries do not fit each other.
    """
    if value is None or value == []:
        return None
    if not isinstance(value, list):
        raise BodyError(f"{name}={shown(value)} is not an array")
    records = [_read_record(item, name, sized=sized) for item in value]
    first_index = ENTRY_HEADER.unpack_from(records[0])[2]
    last_term = ENTRY_HEADER.unpack_from(records[-1])[3]
    batch = EntryBatch(
        first_index=first_index, count=len(records), term=last_term, records=b"".join(records)
    )
    try:
        check_records(batch)
    except WireError as error:
        raise BodyError(f"{name}: {error}") from None
    return batch


def json_int(value: object, name: str) -> int | None:
    """An C{int} of Java; None for C{null}. @raise BodyError: the value is something else."""
    return to_int(value, INT_BITS, name)


def json_long(value: object, name: str) -> int | None:
    """A C{long} of Java, likewise."""
    return to_int(value, LONG_BITS, name)
