# -*- test-case-name: tests.storage.test_state_file -*-
"""
The file of what a group knows beside its entries (L{dledger.values.ledger.group_state}), and its bytes, which
members send each other, too.

The file has two slots of one length, written in turn by pwrite, so that a torn write costs the newer state
only. A state names the entry up to which it counts by index, term, place and C{chainCrc}: index and term
alone are not unique in a group with Java members. The file is replaced by a longer one when a state no longer
fits.

Rule: a state is written for an entry that is committed and on stable storage, so no log that a start finds
ends before it, or has another entry there, unless the files are of two directories, or a process ended while
it cut its log to begin anew: then the state is void.

An absent file is no error, and neither are slots that are not sound.

Source: none, this is ours; docs/wire-format.md.
"""

from __future__ import annotations

import os.path
import struct
from array import array
from collections.abc import Generator, Iterator
from hashlib import sha256
from typing import NamedTuple

from construct import Int8ub, Int32sb, Int32ub, Int64sb, Int64ub, Struct

from dledger.base.disk.disk import Disk
from dledger.base.disk.unreadable import read_copy
from dledger.values.ledger.group_state import GroupState, NotedTime, Producer, StateCapture
from dledger.values.ledger.reader_table import KnownReader
from protocols.wire.checksums import crc32
from protocols.wire.errors import WireError
from protocols.wire.layout import struct_of
from protocols.wire.ledger.own.own_entries import SLOT_MAX
from protocols.wire.ledger.own.state_entries import STATE_DIGEST_BYTES
from protocols.wire.ledger.own.time_entries import RESETS_MAX, TIME_RESET_DECLARATION, TimeReset
from protocols.wire.ledger.producers import NUMBERED_RUN, RUNS_MAX
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
    "time_resets" / Int8ub,  # their number: they follow, as in a time entry
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
STATE_READER_DECLARATION = Struct(
    "index" / Int64sb,  # of its last entry
    "hidden_before" / Int64sb,
    "length" / Int32ub,  # bytes of the body of that entry, which follows
)
_HEAD, _FIXED = struct_of(STATE_DECLARATION), struct_of(STATE_FIXED_DECLARATION)
_PRODUCER = struct_of(STATE_PRODUCER_DECLARATION)
_READER, _RESET = struct_of(STATE_READER_DECLARATION), struct_of(TIME_RESET_DECLARATION)
_CRC_FROM = 12
#: A step of encoding or decoding ends after this many bytes: some milliseconds of a slow machine.
STEP_BYTES = 64 * 1024
#: A step of checking bytes ends after this many.
_CHECKED_BYTES = 1024 * 1024
_PAD = bytes(1024 * 1024)


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


class StateEncoding:
    """
    A state on its way to bytes, in steps that do not depend on its size. Any thread may run it.

    @ivar pieces: all bytes, in order, when it is done.
    @ivar size: of these.
    """

    def __init__(self, state: StateCapture, place: StatePlace, generation: int = 0) -> None:
        self._head = (generation, *place)
        self._rest = _pieces_of(state)
        self._crc = 0
        self.pieces = [b""]
        self.size = _HEAD.size

    def step(self) -> bool:
        """Go on. @return: whether it is done."""
        done = 0
        for piece in self._rest:
            self.pieces.append(piece)
            self._crc = crc32(piece, self._crc)
            self.size += len(piece)
            done += len(piece)
            if done >= STEP_BYTES:
                return False
        head = _HEAD.pack(_MAGIC, _VERSION, 0, *self._head, self.size - _HEAD.size, self._crc)
        self.pieces[0] = (
            head[: _CRC_FROM - 4] + crc32(head[_CRC_FROM:]).to_bytes(4, "big") + head[_CRC_FROM:]
        )
        return True

    def run(self) -> list[bytes]:
        """Go on to the end. @return: C{pieces}."""
        while not self.step():
            pass
        return self.pieces


def digesting(state: StateCapture) -> Generator[None, None, int]:
    """
    The digest of a state, in steps as L{decoding}: equal states of one entry have equal ones.
    """
    digest, done = sha256(), 0
    for piece in _pieces_of(state):
        digest.update(piece)
        done += len(piece)
        if done >= STEP_BYTES:
            done = 0
            yield
    return int.from_bytes(digest.digest()[:STATE_DIGEST_BYTES])


def _pieces_of(state: StateCapture) -> Iterator[bytes]:
    """The bytes after the head. Equal states have equal ones: producers come in the order of their slots."""
    *time, resets = state.time or NotedTime(-1, -1, -1)
    yield _FIXED.pack(
        state.age_ms, state.clock_ms, state.has_forgotten, *time, len(resets), state.hidden, state.producers,
        len(state.readers), len(state.hidden_runs),
    ) + b"".join(_RESET.pack(*one) for one in resets)
    for number in sorted(state.pages):
        page, parts = state.pages[number], list[bytes]()
        for at in sorted(page):
            name, slot, used_ms, last, runs, owner = page[at]
            raw, account = name.encode(), owner.encode()
            count = len(runs) // NUMBERED_RUN.size
            parts += [_PRODUCER.pack(slot, used_ms, last, count, len(raw), len(account)), raw, account, runs]
        yield b"".join(parts)
    for index, reader, hidden_before in state.readers:
        body = encode_reader_entry(reader)
        yield _READER.pack(index, hidden_before, len(body)) + body
    for numbers in (state.hidden_runs, state.hidden_counts):
        yield struct.pack(f">{len(numbers)}q", *numbers)


def encode_state(state: GroupState, place: StatePlace, generation: int = 0) -> bytes:
    """A state as bytes, at once."""
    return b"".join(StateEncoding(state.capture(), place, generation).run())


def decode_state(data: bytes | bytearray) -> StoredState:
    """
    The state that L{StateEncoding} has made of it, at once. Bytes after its end are ignored.

    @raise WireError: it is damaged, or of a later version.
    """
    steps = decoding(data)
    try:
        while True:
            next(steps)
    except StopIteration as done:
        stored: StoredState = done.value
        return stored


def decoding(data: bytes | bytearray) -> Generator[None, None, StoredState]:
    """
    L{decode_state} in steps that do not depend on the size: each C{next} is one, and the last one returns it.

    @raise WireError: see there.
    """
    if len(data) < _HEAD.size:
        raise WireError(f"group state: {len(data)} bytes, at least {_HEAD.size} are needed")
    magic, version, head_crc, generation, *place, length, crc = _HEAD.unpack_from(data)
    if magic != _MAGIC or crc32(data[_CRC_FROM : _HEAD.size]) != head_crc:
        raise WireError("group state: its magic or its checksum does not fit")
    if version != _VERSION:
        raise WireError(f"group state: version={version}, this program reads {_VERSION}: upgrade it")
    end, found = _HEAD.size + length, 0
    for at in range(_HEAD.size, min(end, len(data)), _CHECKED_BYTES):
        found = crc32(data[at : min(at + _CHECKED_BYTES, end)], found)
        yield
    if len(data) < end or found != crc:
        raise WireError("group state: its checksum does not fit")
    state = GroupState()
    state.index = place[0]
    try:
        yield from _filling(state, data, end)
    except (struct.error, UnicodeDecodeError, IndexError, KeyError) as error:
        raise WireError(f"group state: {error}") from None
    return StoredState(generation, StatePlace(*place), state)


def _filling(state: GroupState, data: bytes | bytearray, end: int) -> Generator[None, None, None]:
    at, step_end = _HEAD.size, _HEAD.size + STEP_BYTES
    (state.age_ms, state.clock_ms, has_forgotten, *time, resets, state.hidden, producers, readers,
     hidden) = _FIXED.unpack_from(data, at)
    state.has_forgotten = bool(has_forgotten)
    at += _FIXED.size
    reset_end = at + resets * _RESET.size
    if resets > RESETS_MAX or reset_end > end:
        raise WireError(f"group state: {resets} resets of times, at most {RESETS_MAX} are allowed")
    found = tuple(map(TimeReset._make, _RESET.iter_unpack(data[at:reset_end])))
    state.time = NotedTime(time[0], time[1], time[2], found) if time[0] >= 0 else None
    at = reset_end
    for _ in range(producers):
        slot, used_ms, last, runs, length, owner_length = _PRODUCER.unpack_from(data, at)
        at += _PRODUCER.size
        name_end, owner_end = at + length, at + length + owner_length
        runs_end = owner_end + runs * NUMBERED_RUN.size
        if runs_end > end:
            raise WireError("group state: it ends within a producer")
        name = data[at:name_end].decode()
        if state.in_slot(slot) or state.producer(name) or not 0 < slot <= SLOT_MAX or runs > RUNS_MAX:
            raise WireError(f"group state: slot={slot} runs={runs}: malformed, or there twice")
        state.restored([Producer(
            name, slot, used_ms, last, bytes(data[owner_end:runs_end]), data[name_end:owner_end].decode()
        )], ())
        at = runs_end
        if at >= step_end:
            yield
            step_end = at + STEP_BYTES
    for _ in range(readers):
        index, hidden_before, length = _READER.unpack_from(data, at)
        at += _READER.size
        body = bytes(data[at : min(at + length, end)])
        state.restored((), [KnownReader(index, decode_reader_entry(body), hidden_before)])
        at += length
        if at >= step_end:
            yield
            step_end = at + STEP_BYTES
    if at + 16 * hidden != end:
        raise WireError("group state: its parts are not as long as it")
    state.hidden_runs = array("q", struct.unpack_from(f">{hidden}q", data, at))
    state.hidden_counts = array("q", struct.unpack_from(f">{hidden}q", data, at + 8 * hidden))


def state_damage(content: bytes) -> str:
    """What is wrong with the bytes of the file; empty if nothing is. One sound slot is enough for a start."""
    size = len(content) // 2
    wrong = [_slot_damage(content[:size]), _slot_damage(content[size:])]
    if all(wrong):
        return f"neither slot is sound ({wrong[0]}): the member folds its log, or asks another member"
    return next((f"slot {slot}: {one}; the other one counts" for slot, one in enumerate(wrong) if one), "")


def _slot_damage(slot: bytes) -> str:
    try:
        decode_state(slot)
    except WireError as error:
        return str(error)
    length = _HEAD.size + int(_HEAD.unpack_from(slot)[-2])
    return "bytes after the state are not zero" if any(slot[length:]) else ""


class StateFile:
    """
    The file of one directory. One caller at a time writes.

    Invariant: C{_generations} and C{_indexes} are those of the states in the two slots, 0 and L{NO_STATE} for
    a slot that is not sound. After C{_lengths} a slot has zeros.
    """

    def __init__(self, disk: Disk, path: str) -> None:
        self._disk = disk
        self._path = path
        self._slot_bytes = 0
        self._generations = [0, 0]
        self._indexes = [NO_STATE, NO_STATE]
        self._lengths = [0, 0]

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
        data = read_copy(self._disk, self._path)
        self._slot_bytes = len(data) // 2
        self._lengths = [self._slot_bytes] * 2
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

    def remove(self) -> None:
        """No state in it counts. @raise OSError: the disk failed."""
        if self._disk.exists(self._path):
            self._disk.unlink(self._path)
            self._disk.sync_directory(os.path.dirname(self._path))
        self._slot_bytes = 0
        self._lengths = [0, 0]
        self._generations = [0, 0]
        self._indexes = [NO_STATE, NO_STATE]

    def write(self, state: StateCapture, place: StatePlace) -> None:
        """
        Write a state durably in the place of the older one. May run in another thread.

        @raise OSError: it failed; the newer one is as it was.
        """
        generation = max(self._generations) + 1
        encoding = StateEncoding(state, place, generation)
        pieces, size = encoding.run(), encoding.size
        if size > self._slot_bytes:
            slot_bytes = -(-2 * size // _SLOT_STEP) * _SLOT_STEP
            pads, rest = divmod(slot_bytes - size, len(_PAD))
            self._disk.write_file(self._path, b"".join(2 * [*pieces, *pads * [_PAD], bytes(rest)]))
            self._slot_bytes = slot_bytes
            self._generations = [generation] * 2
            self._indexes = [place.entry_index] * 2
            self._lengths = [size] * 2
            return
        slot = int(self._generations[1] < self._generations[0])
        self._generations[slot], self._indexes[slot] = 0, NO_STATE
        file = self._disk.open(self._path)
        try:
            pieces.append(bytes(max(0, self._lengths[slot] - size)))
            file.pwrite(b"".join(pieces), slot * self._slot_bytes)
            file.datasync()
        finally:
            file.close()
        self._generations[slot], self._indexes[slot] = generation, place.entry_index
        self._lengths[slot] = size
