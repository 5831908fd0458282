# -*- test-case-name: tests.machine.test_kept_results -*-
"""
The last results of numbered commands, which a client that asks again is answered with.

They are a fold of the log, as the state is: the C{channel} of an entry says of which producer it is
(L{protocols.wire.ledger.own.own_entries}), and the machine reports its result. So every member has the same
ones at the same index, and they are a part of its snapshots. Which entry a number has is no question for the
machine: the log knows it.

Rule: the bounds are numbers of the log, not of the member: L{SLOTS_MAX} producers, those whose last entries
are the newest; of each the last L{RESULTS_MAX} results, and of all together L{RESULT_BYTES_IN_ALL}: the
results of the producer whose last entry is the oldest go first.

Source: Ongaro's dissertation, 6.3.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from struct import Struct as StructOfNumbers

import attrs
from construct import Int8ub, Int16ub, Int32ub, Int64sb, Struct

from dledger.machine.state_machine import RefusedAnswer
from dledger.storage.files.snapshot_file import SnapshotRefused
from protocols.wire.errors import WireError
from protocols.wire.layout import struct_of
from protocols.wire.ledger.entry import EntryHeader
from protocols.wire.ledger.own.own_entries import slot_of

#: Producers, results of one of them, and bytes of all results (each counts as L{RESULT_OVERHEAD} more).
SLOTS_MAX = 2048
RESULTS_MAX = 16
RESULT_BYTES_IN_ALL = 3 * 1024 * 1024
RESULT_OVERHEAD = 64

KEPT_MAGIC = 0x444C4B52  # "DLKR"
KEPT_DECLARATION = Struct(
    "magic" / Int32ub,  # "DLKR"
    "slots" / Int32ub,  # their number: that of the oldest last entry first
    "skips" / Int32ub,  # number of entries that the state was made without, which follow the slots
)
KEPT_SLOT_DECLARATION = Struct(
    "slot" / Int32ub,  # of a producer
    "results" / Int16ub,  # their number; they follow
)
KEPT_RESULT_DECLARATION = Struct(
    "index" / Int64sb,  # of the entry
    "is_refused" / Int8ub,  # 1: the result is the reason of a refusal
    "length" / Int32ub,  # bytes of the result, which follows
)
KEPT_SKIP_DECLARATION = Struct("index" / Int64sb)
_HEAD = struct_of(KEPT_DECLARATION)
_SLOT = struct_of(KEPT_SLOT_DECLARATION)
_RESULT = struct_of(KEPT_RESULT_DECLARATION)
_SKIP = struct_of(KEPT_SKIP_DECLARATION)


class _Pieces:
    """Reads declared numbers, and the bytes that these count."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def numbers(self, declared: StructOfNumbers) -> tuple[int, ...]:
        numbers: tuple[int, ...] = declared.unpack(self.bytes(declared.size))
        return numbers

    def bytes(self, length: int) -> bytes:
        """@raise WireError: there are fewer."""
        found = self._data[self._at : self._at + length]
        if len(found) != length:
            raise WireError(f"kept results: {len(found)} of {length} bytes at {self._at}")
        self._at += length
        return found

    def end(self) -> None:
        """@raise WireError: there is more."""
        if self._at != len(self._data):
            raise WireError(f"kept results: {len(self._data) - self._at} bytes after the end")


def _size_of(result: bytes) -> int:
    return len(result) + RESULT_OVERHEAD


@attrs.define
class KeptResults:
    """
    Invariant: C{slots} is in the order of the last entries, each of them in that of its own; C{held_bytes} is
    the size of all results.

    @ivar held_bytes: size of all results.
    @ivar slots: results by index of the entry, by the slot of the producer.
    """

    slots: dict[int, dict[int, bytes]] = attrs.Factory(dict)
    held_bytes: int = 0

    def find(self, index: int) -> bytes | None:
        """The result of the entry at C{index}; None: it is not kept."""
        return next((results[index] for results in self.slots.values() if index in results), None)

    def fold(self, batch: Sequence[tuple[EntryHeader, bytes]], results: dict[int, bytes]) -> None:
        """
        Entries are in the state now.

        @param batch: all of them, in their order. @param results: by their indexes.
        """
        for header, _ in batch:
            if header.channel > 0 and header.chain_crc and header.index in results:
                self._keep(slot_of(header.channel), header.index, results[header.index])

    def _keep(self, slot: int, index: int, result: bytes) -> None:
        kept = self.slots.pop(slot, {})
        self.slots[slot] = kept
        kept[index] = result
        self.held_bytes += _size_of(result)
        if len(kept) > RESULTS_MAX:
            self._drop_first(kept)
        while len(self.slots) > SLOTS_MAX:
            oldest = self.slots.pop(next(iter(self.slots)))
            self.held_bytes -= sum(map(_size_of, oldest.values()))
        if self.held_bytes > RESULT_BYTES_IN_ALL:
            self._shrink(kept)

    def _shrink(self, newest: dict[int, bytes]) -> None:
        for kept in self.slots.values():
            while kept and self.held_bytes > RESULT_BYTES_IN_ALL:
                if kept is newest and len(kept) == 1:
                    return  # (One result may be as long as it likes, as results go.)
                self._drop_first(kept)

    def _drop_first(self, kept: dict[int, bytes]) -> None:
        self.held_bytes -= _size_of(kept.pop(next(iter(kept))))

    # -- in snapshots -------------------------------------------------------------------------

    def encode(self, skips: Collection[int] = ()) -> bytes:
        """All as bytes, for a snapshot. @param skips: entries that the state was made without."""
        pieces = [_HEAD.pack(KEPT_MAGIC, len(self.slots), len(skips))]
        for slot, kept in self.slots.items():
            pieces.append(_SLOT.pack(slot, len(kept)))
            for index, result in kept.items():
                pieces += [_RESULT.pack(index, isinstance(result, RefusedAnswer), len(result)), result]
        pieces += [_SKIP.pack(index) for index in sorted(skips)]
        return b"".join(pieces)

    @classmethod
    def decode(cls, data: bytes) -> tuple[KeptResults, frozenset[int]]:
        """@return: all, and the entries that the state was made without. @raise WireError: malformed."""
        reader = _Pieces(data)
        magic, slots, skips = reader.numbers(_HEAD)
        if magic != KEPT_MAGIC:
            raise WireError("kept results: the magic does not fit")
        kept = cls()
        for _ in range(slots):
            slot, results = reader.numbers(_SLOT)
            of_slot = kept.slots[slot] = {}
            for _ in range(results):
                index, is_refused, length = reader.numbers(_RESULT)
                result = reader.bytes(length)
                of_slot[index] = RefusedAnswer(result) if is_refused else result
            kept.held_bytes += sum(map(_size_of, of_slot.values()))
        left_out = frozenset(reader.numbers(_SKIP)[0] for _ in range(skips))
        reader.end()
        return kept, left_out


def kept_in(piece: bytes) -> tuple[KeptResults, frozenset[int]]:
    """The first piece of a snapshot, see L{KeptResults.decode}. @raise SnapshotRefused: it is none."""
    try:
        return KeptResults.decode(piece)
    except WireError as error:
        raise SnapshotRefused(str(error)) from error
