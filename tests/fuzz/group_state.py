# -*- test-case-name: tests.fuzz.test_decoders -*-
"""
The fuzz target of what a group knows beside its entries: the log's own entries that say it, and the state,
which members keep in a file and send each other.

Any bytes yield a value or L{WireError}, also where the checksums fit; a value can be written and read again.
"""

from __future__ import annotations

import random
from array import array
from collections.abc import Callable
from zlib import crc32

from dledger.storage.files.state_file import StatePlace, decode_state, encode_state
from dledger.values.ledger.group_state import GroupState, NotedTime, Producer
from dledger.values.ledger.reader_table import KnownReader
from protocols.wire.errors import WireError
from protocols.wire.ledger.own.age_entries import decode_age_entry, encode_age_entry
from protocols.wire.ledger.own.session_entries import Session, decode_session_entry, encode_session_entry
from protocols.wire.ledger.producers import NUMBERED_RUN
from protocols.wire.ledger.readers import ReaderPart, ReaderState, decode_reader_entry, encode_reader_entry
from tests.fuzz.mutation import damaged

_READER = ReaderState("billing", 3, 900, (ReaderPart(10, 20, 7, 1000, "é"), ReaderPart(30, 40, 8, 0, "")))


def _state() -> bytes:
    state = GroupState()
    state.index, state.hidden, state.time = 99, 3, NotedTime(5, 1, 1000)
    state.hidden_runs = array("q", (0, 5, 98))
    state.hidden_counts = array("q", (0, 1, 2))
    runs = NUMBERED_RUN.pack(0, 1, 40) + NUMBERED_RUN.pack(40, 60, 2)
    state.restored(
        [Producer("p", 1, 0), Producer("größe", 9, 5, 41, runs)],
        [KnownReader(4, _READER, 2)],
    )
    return encode_state(state, StatePlace(99, 2, 5000, -7), 3)


_SOUND: tuple[bytes, ...] = (
    encode_session_entry([]), encode_session_entry([Session(1, "p"), Session(1 << 21, "ä" * 32)]),
    encode_age_entry(1_700_000_000_000, 3_600_000), encode_reader_entry(_READER), _state(),
)


def _age(data: bytes) -> bytes:
    return encode_age_entry(*decode_age_entry(data))


def _stored(data: bytes) -> bytes:
    generation, place, state = decode_state(data)
    return encode_state(state, place, generation)


_STATE_CRC_AT = 56
#: By the first bytes: where the checksum is, where its bytes begin, and a value read and written again.
_KINDS: dict[bytes, tuple[int, int, Callable[[bytes], bytes]]] = {
    b"SESS": (8, 12, lambda data: encode_session_entry(decode_session_entry(data))),
    b"AGES": (8, 12, _age),
    b"RDNM": (8, 12, lambda data: encode_reader_entry(decode_reader_entry(data))),
    b"DLGS": (_STATE_CRC_AT, _STATE_CRC_AT + 4, _stored),
}


def _with_crc(data: bytes, at: int, first: int, end: int | None = None) -> bytes:
    return data[:at] + crc32(data[first:end]).to_bytes(4) + data[at + 4 :]


def fuzz_group_state(rng: random.Random) -> None:
    """One damaged entry or state, often with checksums that fit."""
    sound = rng.choice(_SOUND)
    at, first, again = _KINDS[sound[:4]]
    data = damaged(sound, _SOUND, rng)
    if rng.random() < 0.8 and len(data) >= first:
        if at == _STATE_CRC_AT:
            length = (len(data) - first).to_bytes(8)
            data = data[: at - 8] + length + data[at:] if rng.random() < 0.5 else data
            data = _with_crc(data, at, first)
            data = _with_crc(data, 8, 12, first)
        else:
            data = _with_crc(data, at, first)
    try:
        written = again(data)
    except WireError:
        return
    assert again(written) == written
