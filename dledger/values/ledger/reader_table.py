# -*- test-case-name: tests.base.test_reader_table -*-
"""
The named readers of a group, those included that were forgotten: so nothing that was decided before brings
one back.

Rule 1: all readers together, and those of one owner, have a bound in bytes. A reader counts as if it had one
part, so one that is known can always be read by one process; each further part counts besides.
Rule 2: of the forgotten ones the last are remembered, up to a bound of their own, which is not part of
those of rule 1.
Rule 3: no call here walks through all readers, except to copy them.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Iterator, Mapping
from enum import Enum, auto
from typing import NamedTuple

from protocols.wire.ledger.readers import ReaderState

#: Bytes of all readers that are not forgotten, of those of one owner among them, and of the forgotten ones.
ALL_BYTES_MAX = 16 * 1024 * 1024
SHARE_BYTES_MAX = ALL_BYTES_MAX // 2
FORGOTTEN_BYTES_MAX = 1024 * 1024
#: Bytes that a reader counts with, besides its name and owner, and each of its parts after the first.
READER_BYTES, PART_BYTES = 384, 192


class KnownReader(NamedTuple):
    """
    A reader, by the last entry of it that counts.

    @ivar entry_index: of that entry.
    @ivar state: C{token} of its parts is never -1.
    @ivar hidden_before: number of hidden entries before its next one, see
        L{dledger.values.ledger.group_state.GroupState.lag}.
    """

    entry_index: int
    state: ReaderState
    hidden_before: int


class Room(Enum):
    """Whether a state of a reader finds room."""

    FREE = auto()
    SHARE_TAKEN = auto()
    ALL_TAKEN = auto()


def reader_bytes(state: ReaderState) -> int:
    """Bytes that a reader counts with."""
    parts = max(len(state.parts) - 1, 0)
    return READER_BYTES + len(state.name.encode()) + len(state.owner.encode()) + parts * PART_BYTES


class ReaderTable(Mapping[str, KnownReader]):
    """
    Readers by name, in the order of their last entries.

    Invariant: C{_names} and C{_places} have the readers that are not forgotten, in order, C{_forgotten} the
    others, the oldest first; C{_held} has the bytes of each owner, C{_bytes} those of all, both without the
    forgotten ones, and C{_forgotten_bytes} those of these.
    """

    def __init__(self) -> None:
        self._readers: dict[str, KnownReader] = {}
        self._names: list[str] = []
        self._places: list[tuple[int, str]] = []
        self._forgotten: dict[str, None] = {}
        self._held: dict[str, int] = {}
        self._bytes = 0
        self._forgotten_bytes = 0

    def __getitem__(self, name: str) -> KnownReader:
        return self._readers[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._readers)

    def __len__(self) -> int:
        return len(self._readers)

    @property
    def count(self) -> int:
        """Number of readers that are not forgotten."""
        return len(self._names)

    @property
    def needed_index(self) -> int | None:
        """The first entry that a reader has not done; None: there is no reader."""
        return self._places[0][0] if self._places else None

    def after(self, name: str, count: int) -> list[KnownReader]:
        """Up to C{count} readers that are not forgotten, by name, after this one."""
        begin = bisect_right(self._names, name)
        return [self._readers[one] for one in self._names[begin : begin + count]]

    def count_after(self, name: str) -> int:
        """Number of readers that are not forgotten after this one, by name."""
        return len(self._names) - bisect_right(self._names, name)

    def furthest_behind(self, count: int) -> list[KnownReader]:
        """Up to C{count} readers that are not forgotten, by their next entries."""
        return [self._readers[name] for _, name in self._places[:count]]

    def room_for(self, state: ReaderState) -> Room:
        """Whether the next state of a reader finds room. One that needs no more than before always does."""
        if state.is_forgotten:
            return Room.FREE
        before = self._readers.get(state.name)
        more = more_held = reader_bytes(state)
        if before is not None and not before.state.is_forgotten:
            more -= reader_bytes(before.state)
            if before.state.owner == state.owner:
                more_held = more
        if more > 0 and self._bytes + more > ALL_BYTES_MAX:
            return Room.ALL_TAKEN
        is_over = more_held > 0 and self._held.get(state.owner, 0) + more_held > SHARE_BYTES_MAX
        return Room.SHARE_TAKEN if is_over else Room.FREE

    def put(self, known: KnownReader) -> None:
        """A reader is so from now on."""
        name = known.state.name
        if name in self._readers:
            self._drop(name)
        self._readers[name] = known
        self._count(known.state, 1)
        if known.state.is_forgotten:
            self._forgotten[name] = None
            while self._forgotten_bytes > FORGOTTEN_BYTES_MAX:
                self._drop(next(iter(self._forgotten)))
        else:
            insort(self._names, name)
            insort(self._places, (known.state.next_index, name))

    def _drop(self, name: str) -> None:
        state = self._readers.pop(name).state
        self._count(state, -1)
        if state.is_forgotten:
            del self._forgotten[name]
        else:
            del self._names[bisect_right(self._names, name) - 1]
            del self._places[bisect_right(self._places, (state.next_index, name)) - 1]

    def _count(self, state: ReaderState, sign: int) -> None:
        cost = sign * reader_bytes(state)
        if state.is_forgotten:
            self._forgotten_bytes += cost
            return
        self._bytes += cost
        held = self._held.get(state.owner, 0) + cost
        if held:
            self._held[state.owner] = held
        else:
            del self._held[state.owner]

    def copy(self) -> ReaderTable:
        """The same, which does not change."""
        other = ReaderTable()
        for name, value in vars(self).items():
            setattr(other, name, value if isinstance(value, int) else value.copy())
        return other
