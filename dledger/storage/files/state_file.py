# -*- test-case-name: tests.storage.test_state_file -*-
"""
The file of what a group knows beside its entries (L{dledger.ledger.group_state}), and its bytes, which
members send each other, too.

The file has two slots of one length, written in turn by pwrite, so that a torn write costs the newer state
only. A state names the entry up to which it counts by index, term, place and C{chainCrc}: index and term
alone are not unique in a group with Java members. The file is replaced by a longer one when a state no longer
fits.

Rule: a state is written for an entry that is committed and on stable storage, so no log that a start finds
ends before it, or has another entry there, unless the files are of two directories: then the state is void.

An absent file is no error, and neither are slots that are not sound.

Source: none, this is ours; docs/wire-format.md.
"""

from __future__ import annotations

import struct
from array import array
from typing import NamedTuple

from construct import Int8ub, Int32sb, Int32ub, Int64sb, Int64ub, Struct

from dledger.base.disk.disk import Disk
from dledger.base.disk.unreadable import is_unreadable
from dledger.ledger.group_state import GroupState, NotedTime, NumberedRun, Producer
from dledger.ledger.reader_table import KnownReader
from protocols.wire.checksums import crc32
from protocols.wire.errors import WireError
from protocols.wire.layout import struct_of
from protocols.wire.ledger.readers import decode_reader_entry, encode_reader_entry

STATE_NAME = "groupstate"
#: In place of an index, for a slot without a sound state: below all.
NO_STATE = -2
#: Lengths of slots are multiples of this.
_SLOT_STEP = 64 * 1024
_MAGIC, _VERSION = 0x444C4753, 1  # "DLGS"

STATE_DECLARATION = Struct(
    "magic" / Int32ub,  # "DLGS"
    "version" / Int32ub,
    "head_crc" / Int32ub,  # CRC-32 of the fields that follow
    "generation" / Int64ub,  # grows with every write
    "index" / Int64sb,  # of the entry up to which it counts; -1: none
    "term" / Int64sb,
    "position" / Int64sb,  # stream offset of its record
    "chain_crc" / Int32sb,
    "length" / Int64ub,  # bytes of the rest, which follows
    "crc" / Int32ub,  # CRC-32 of the rest
)
STATE_FIXED_DECLARATION = Struct(
    "age_ms" / Int64sb,  # time that has passed for producers
    "clock_ms" / Int64sb,  # of the last age entry; -1: none
    "has_forgotten" / Int8ub,  # 0 or 1
    "time_index" / Int64sb,  # of the last time entry; -1: none
    "time_term" / Int64sb,
    "time_ms" / Int64sb,
    "hidden" / Int64sb,  # number of hidden entries
    "producers" / Int32ub,  # their number: they follow, then the readers, then the runs of hidden entries
    "readers" / Int32ub,
    "hidden_runs" / Int32ub,  # their number: 8 bytes each for the indexes, and then for the counts
)
STATE_PRODUCER_DECLARATION = Struct(
    "slot" / Int32ub,
    "used_ms" / Int64sb,  # age at its last entry
    "last" / Int64sb,  # of its numbers; -1: none
    "runs" / Int8ub,  # their number; they follow the account
    "id_length" / Int8ub,  # bytes of the id, which follows
    "owner_length" / Int8ub,  # bytes of the owner, which follows the id
)
STATE_RUN_DECLARATION = Struct("number" / Int64sb, "index" / Int64sb, "count" / Int64sb)
STATE_READER_DECLARATION = Struct(
    "index" / Int64sb,  # of its last entry
    "hidden_before" / Int64sb,
    "length" / Int32ub,  # bytes of the body of that entry, which follows
)
_HEAD, _FIXED = struct_of(STATE_DECLARATION), struct_of(STATE_FIXED_DECLARATION)
_PRODUCER, _RUN = struct_of(STATE_PRODUCER_DECLARATION), struct_of(STATE_RUN_DECLARATION)
_READER = struct_of(STATE_READER_DECLARATION)
_CRC_FROM = 12


class StatePlace(NamedTuple):
    """The entry up to which a state counts, as in the declaration."""

    entry_index: int
    term: int
    position: int
    chain_crc: int


class StoredState(NamedTuple):
    """A state that was read."""

    generation: int
    place: StatePlace
    state: GroupState


def encode_state(state: GroupState, place: StatePlace, generation: int = 0) -> bytes:
    """A state as bytes."""
    time = state.time or NotedTime(-1, -1, -1)
    pieces = [_FIXED.pack(
        state.age_ms, state.clock_ms, state.has_forgotten, *time, state.hidden, len(state.producers),
        len(state.readers), len(state.hidden_runs),
    )]
    for name, slot, used_ms, last, runs, owner in state.producers.values():
        raw, account = name.encode(), owner.encode()
        pieces += [_PRODUCER.pack(slot, used_ms, last, len(runs), len(raw), len(account)), raw, account]
        pieces += [_RUN.pack(*run) for run in runs]
    for index, reader, hidden_before in state.readers.values():
        body = encode_reader_entry(reader)
        pieces += [_READER.pack(index, hidden_before, len(body)), body]
    for numbers in (state.hidden_runs, state.hidden_counts):
        pieces.append(struct.pack(f">{len(numbers)}q", *numbers))
    rest = b"".join(pieces)
    head = _HEAD.pack(_MAGIC, _VERSION, 0, generation, *place, len(rest), crc32(rest))
    return head[: _CRC_FROM - 4] + crc32(head[_CRC_FROM:]).to_bytes(4, "big") + head[_CRC_FROM:] + rest


def decode_state(data: bytes) -> StoredState:
    """
    The state that L{encode_state} has made of it. Bytes after its end are ignored.

    @raise WireError: it is damaged, or of a later version.
    """
    if len(data) < _HEAD.size:
        raise WireError(f"group state: {len(data)} bytes, at least {_HEAD.size} are needed")
    magic, version, head_crc, generation, *place, length, crc = _HEAD.unpack_from(data)
    if magic != _MAGIC or crc32(data[_CRC_FROM : _HEAD.size]) != head_crc:
        raise WireError("group state: its magic or its checksum does not fit")
    if version != _VERSION:
        raise WireError(f"group state: version={version}, this program reads {_VERSION}: upgrade it")
    rest = data[_HEAD.size : _HEAD.size + length]
    if len(rest) != length or crc32(rest) != crc:
        raise WireError("group state: its checksum does not fit")
    state = GroupState()
    state.index = place[0]
    try:
        _fill(state, rest)
    except (struct.error, UnicodeDecodeError, IndexError) as error:
        raise WireError(f"group state: {error}") from None
    return StoredState(generation, StatePlace(*place), state)


def _fill(state: GroupState, rest: bytes) -> None:
    (state.age_ms, state.clock_ms, has_forgotten, *time, state.hidden, producers, readers,
     hidden) = _FIXED.unpack_from(rest)
    state.has_forgotten = bool(has_forgotten)
    state.time = NotedTime(*time) if time[0] >= 0 else None
    at, found, known = _FIXED.size, list[Producer](), list[KnownReader]()
    for _ in range(producers):
        slot, used_ms, last, runs, length, owner_length = _PRODUCER.unpack_from(rest, at)
        at += _PRODUCER.size
        name = rest[at : at + length].decode()
        at += length + owner_length
        owner = rest[at - owner_length : at].decode()
        runs_end = at + runs * _RUN.size
        found.append(Producer(name, slot, used_ms, last, tuple(
            NumberedRun(*_RUN.unpack_from(rest, place)) for place in range(at, runs_end, _RUN.size)
        ), owner))
        at = runs_end
    for _ in range(readers):
        index, hidden_before, length = _READER.unpack_from(rest, at)
        at += _READER.size
        known.append(KnownReader(index, decode_reader_entry(rest[at : at + length]), hidden_before))
        at += length
    state.restored(found, known)
    state.hidden_runs = array("q", struct.unpack_from(f">{hidden}q", rest, at))
    state.hidden_counts = array("q", struct.unpack_from(f">{hidden}q", rest, at + 8 * hidden))


class StateFile:
    """
    The file of one directory. One caller at a time writes.

    Invariant: C{_generations} and C{_indexes} are those of the states in the two slots, 0 and L{NO_STATE} for
    a slot that is not sound.
    """

    def __init__(self, disk: Disk, path: str) -> None:
        self._disk = disk
        self._path = path
        self._slot_bytes = 0
        self._generations = [0, 0]
        self._indexes = [NO_STATE, NO_STATE]

    @property
    def older_index(self) -> int:
        """
        A start finds a state of this entry or a later one, whichever slot is lost; L{NO_STATE}: it may not.
        """
        return min(self._indexes)

    def read(self) -> list[StoredState]:
        """
        The sound states, the newest first.

        @raise OSError: the disk failed.
        """
        if not self._disk.exists(self._path):
            return []
        try:
            data = self._disk.read_file(self._path)
        except OSError as error:
            if not is_unreadable(error):
                raise
            return []
        self._slot_bytes = len(data) // 2
        found: list[StoredState] = []
        for slot in (0, 1):
            try:
                stored = decode_state(data[slot * self._slot_bytes : (slot + 1) * self._slot_bytes])
            except WireError:
                continue
            self._generations[slot], self._indexes[slot] = stored.generation, stored.place.entry_index
            found.append(stored)
        return sorted(found, key=lambda one: -one.generation)

    def void(self, generation: int) -> None:
        """A state that was read is of another ledger: it does not count, and is replaced first."""
        for slot in (0, 1):
            if self._generations[slot] == generation:
                self._generations[slot] = 0
                self._indexes[slot] = NO_STATE

    def write(self, state: GroupState, place: StatePlace) -> None:
        """
        Write a state durably in the place of the older one. May run in another thread.

        @raise OSError: it failed; the newer one is as it was.
        """
        generation = max(self._generations) + 1
        content = encode_state(state, place, generation)
        if len(content) > self._slot_bytes:
            slot_bytes = -(-2 * len(content) // _SLOT_STEP) * _SLOT_STEP
            self._disk.write_file(self._path, 2 * content.ljust(slot_bytes, b"\0"))
            self._slot_bytes = slot_bytes
            self._generations = [generation] * 2
            self._indexes = [place.entry_index] * 2
            return
        slot = int(self._generations[1] < self._generations[0])
        self._generations[slot], self._indexes[slot] = 0, NO_STATE
        file = self._disk.open(self._path)
        try:
            file.pwrite(content, slot * self._slot_bytes)
            file.datasync()
        finally:
            file.close()
        self._generations[slot], self._indexes[slot] = generation, place.entry_index
