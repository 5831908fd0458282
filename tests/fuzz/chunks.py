# -*- test-case-name: tests.fuzz.test_decoders -*-
"""
The fuzzing of chunks: any bytes with any numbers are the leader's chunk, or are refused, and nothing else.

With sums that were made of other bytes, a chunk that is taken still has the size, the index units and the
first and last record of a chunk at its place.
"""

from __future__ import annotations

import random
from functools import lru_cache
from zlib import crc32

import attrs

from dledger.storage.files.chunk_checks import check_chunk
from dledger.storage.store.file_store import FileStore
from dledger.testing.world.memory_disk import MemoryDisk
from dledger.values.errors import DLedgerError
from protocols.wire.codes import ResponseCode
from protocols.wire.ledger.batches import EntryBatch, EntryChunk
from protocols.wire.ledger.entry import ENTRY_HEADER, INDEX_UNIT, INDEX_UNIT_SIZE
from tests.fuzz.mutation import EDGES, damaged
from tests.storage.support import DATA_SIZE, config_of


@lru_cache(maxsize=1)
def _chunks() -> tuple[tuple[EntryChunk, dict[str, int]], ...]:
    """Chunks of a ledger with records of several sizes and of one, each with its place."""
    store = FileStore.open(config_of(push_chunk_bytes=500), MemoryDisk())
    for number in range(60):
        store.append_bodies((b"%d" % number * (number % 7 if number < 30 else 5),), 1 + number // 20)
    found: list[tuple[EntryChunk, dict[str, int]]] = []
    index = 0
    while index <= store.ledger_end_index:
        chunk = store.chunk_from(index)
        entries = None if chunk is None else store.read_chunk(chunk)
        if chunk is None or entries is None:
            index += 1
            continue
        first, last_term, chain_crc, end_position = chunk.first_index, -1, 0, 0
        if first:
            before = ENTRY_HEADER.unpack_from(store.read_batch(first - 1, max_count=1, max_bytes=0).records)
            last_term, chain_crc, end_position = before[3], before[6], before[4] + before[1]
        found.append((entries, {
            "first_index": first, "last_term": last_term, "end_position": end_position,
            "previous_chain_crc": chain_crc, "file_size": DATA_SIZE,
        }))
        index = chunk.last_index + 1
    return tuple(found)


def fuzz_chunks(rng: random.Random) -> None:
    """One damaged chunk."""
    chunks = _chunks()
    sound, place = rng.choice(chunks)
    others = (rng.choice(chunks)[0].records, rng.choice(chunks)[0].units)
    changes: dict[str, bytes | int] = {}
    for name in ("records", "units"):
        if rng.random() < 0.4:
            changes[name] = damaged(getattr(sound, name), others, rng)
    for name in ("first_index", "count", "term"):
        if rng.random() < 0.1:
            changes[name] = rng.choice((getattr(sound, name) + rng.choice((-1, 1)), rng.choice(EDGES)))
    chunk = attrs.evolve(sound, **changes)
    is_summed = rng.random() < 0.5
    if is_summed:
        chunk = attrs.evolve(chunk, records_crc=crc32(chunk.records), units_crc=crc32(chunk.units))
    try:
        layout = check_chunk(chunk, **place)
    except DLedgerError as error:
        assert error.code is ResponseCode.INCONSISTENT_STATE, error
        return
    if not is_summed:
        assert chunk == sound
    count = len(chunk.units) // INDEX_UNIT_SIZE
    assert count == chunk.count == layout.entries and layout.runs[-1][1] == chunk.records
    units = list(INDEX_UNIT.iter_unpack(chunk.units))
    assert sum(unit[2] for unit in units) == len(chunk.records)
    assert layout.end_position == units[-1][1] + units[-1][2]
    assert isinstance(chunk, EntryBatch) and units[0][3] == place["first_index"] == chunk.first_index
