# -*- test-case-name: tests.storage.test_reader_table -*-
"""
What a ledger knows of its readers: the fold of its reader entries (L{protocols.wire.ledger.readers}).

Rule 1: an entry counts once it is committed, and only if it was made from the state that counts now: it names
the entry of that. So of two decisions that were made from one state, the second one in the log is void,
whoever made it. A member that lacks entries (the log was given to it from a later one on) may not have the
entry that is named; so what is compared is the entries that the two name, of which the later one is made from
a later state.
Rule 2: what counts is never taken back; what is not committed yet may be cut.
Rule 3: a reader that was forgotten leaves a trace, so that what was decided before cannot bring it back. The
oldest traces go first.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Iterable, Mapping

import attrs

from protocols.wire.ledger.readers import READERS_MAX, ReaderPart, ReaderState

#: Indexes of reader entries that are remembered, so that they do not count as lag.
OWN_MAX = 4096


@attrs.frozen
class KnownReader:
    """
    A reader, by the last entry of it that counts.

    @ivar index: of that entry.
    @ivar state: C{token} of its parts is never -1.
    """

    index: int
    state: ReaderState


@attrs.define
class ReaderTable:
    """
    Invariant: C{_pending} is in the order of the ledger; C{_known} has what the committed ones before it say.
    """

    _known: dict[str, KnownReader] = attrs.field(factory=dict)
    _pending: deque[tuple[int, ReaderState]] = attrs.field(factory=deque)
    _own: list[int] = attrs.field(factory=list)

    def note(self, index: int, state: ReaderState) -> None:
        """The ledger has a reader entry, after all that were noted before."""
        self._pending.append((index, state))

    def cut(self, first_gone: int) -> None:
        """The entries from C{first_gone} on are gone. None of them was committed."""
        while self._pending and self._pending[-1][0] >= first_gone:
            self._pending.pop()

    def at(self, committed_index: int) -> Mapping[str, KnownReader]:
        """The readers, those that were forgotten included, by the entries up to a committed one."""
        while self._pending and self._pending[0][0] <= committed_index:
            self._count(*self._pending.popleft())
        return self._known

    def _count(self, index: int, state: ReaderState) -> None:
        known = self._known.get(state.name)
        if known is not None and state.previous <= known.state.previous:
            return
        self._known.pop(state.name, None)
        self._known[state.name] = KnownReader(index, with_tokens(state, index))
        self._own.append(index)
        if len(self._own) > 2 * OWN_MAX:
            del self._own[:OWN_MAX]
        gone = [name for name, one in self._known.items() if one.state.is_forgotten]
        for name in gone[: max(0, len(gone) - READERS_MAX)]:
            del self._known[name]

    def lag(self, next_index: int, committed_index: int) -> int:
        """Committed entries from C{next_index} on, without the reader entries that are remembered."""
        own = bisect_left(self._own, committed_index + 1) - bisect_left(self._own, next_index)
        return max(0, committed_index + 1 - next_index - own)

    def rows(self, committed_index: int) -> list[list[object]]:
        """All of it up to a committed entry, for a file; see L{of_rows}."""
        return [
            [one.index, *one.state[:3], [list(part) for part in one.state.parts], one.state.is_forgotten]
            for one in self.at(committed_index).values()
        ]

    @classmethod
    def of_rows(cls, rows: Iterable[list[object]], end_index: int) -> ReaderTable:
        """
        The table that L{rows} wrote, without what entries after C{end_index} say: they have gone with the
        power, and others may come in their place.

        @raise ValueError, TypeError: it did not.
        """
        table = cls()
        for row in rows:
            index, name, previous, given, parts, is_forgotten = row
            if not isinstance(parts, list) or not isinstance(name, str):
                raise ValueError(f"reader {name!r}: malformed")
            if int(str(index)) > end_index:
                continue
            table._known[name] = KnownReader(int(str(index)), ReaderState(
                name, int(str(previous)), int(str(given)),
                tuple(_part_of(*part) for part in parts), bool(is_forgotten),
            ))
        return table


def _part_of(begin: int, end: int, token: int, lease_ms: int, holder: str) -> ReaderPart:
    return ReaderPart(int(begin), int(end), int(token), int(lease_ms), str(holder))


def with_tokens(state: ReaderState, index: int) -> ReaderState:
    """A state as the entry at C{index} says it: parts that it gives have its index as their token."""
    return state._replace(parts=tuple(
        part if part.token >= 0 else part._replace(token=index) for part in state.parts
    ))
