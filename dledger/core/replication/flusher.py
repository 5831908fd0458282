# -*- test-case-name: tests.core.test_flusher -*-
"""
When to fsync, and which entries a completed fsync proves durable.

Rule 1: at most one fsync runs. With C{sync} flushing the next starts as soon as there are entries
to flush (group commit: all entries written while one runs share the next); with C{async} one starts
at most every C{flush_file_interval} milliseconds.
Rule 2: an fsync that began before a truncation proves nothing about entries written after it.
"""

from __future__ import annotations

import attrs

from dledger.core.state import effects as fx
from dledger.core.state.member_state import MemberState


@attrs.define
class Flusher:
    """
    Invariant: C{_under_way} is the id of the one FlushLedger without an outcome, or None.
    """

    member: MemberState
    _next_id: int = 1
    _under_way: int | None = None
    _is_void: bool = False
    _last_start_ms: int = -(1 << 40)

    def wanted(self) -> None:
        """Start a flush if there are unflushed entries, the interval is over and no flush runs."""
        member = self.member
        if self._under_way is not None or member.ledger_end_index <= member.flushed_index:
            return
        interval = 0 if member.config.is_sync else member.config.flush_file_interval
        if member.out.now_ms - self._last_start_ms < interval:
            return
        self._under_way = self._next_id
        self._next_id += 1
        self._is_void = False
        self._last_start_ms = member.out.now_ms
        member.peers.pace.began(member.out.now_ms)
        member.out.emit(fx.FlushLedger(flush_id=self._under_way, end_index=member.ledger_end_index))

    def on_flushed(self, flush_id: int, end_index: int) -> bool:
        """An fsync succeeded. @return: whether C{flushed_index} rose."""
        if flush_id != self._under_way:
            return False
        self._under_way = None
        member = self.member
        member.peers.pace.ended(member.out.now_ms)
        proved = min(end_index, member.ledger_end_index)
        if self._is_void or proved <= member.flushed_index:
            return False
        member.flushed_index = proved
        return True

    def on_truncated(self) -> None:
        """The ledger was truncated durably: all its entries are on stable storage now."""
        self._is_void = self._under_way is not None
        self.member.flushed_index = self.member.ledger_end_index
