# -*- test-case-name: tests.core.test_flusher -*-
"""When to fsync, and what an fsync has proved."""

from __future__ import annotations

from typing import Any

from twisted.trial.unittest import SynchronousTestCase

from dledger.core.replication.flusher import Flusher
from dledger.core.state import effects as fx
from dledger.core.state.member_state import MemberState
from tests.core.helpers import ListLedger, make_member


def dirty(count: int = 3, **options: Any) -> tuple[MemberState, Flusher]:
    """A member with C{count} entries, none of them flushed."""
    member = make_member(ListLedger.of(*[1] * count), **{"flush_disk_type": "sync", **options})
    member.flushed_index = -1
    member.out.now_ms = 1_000
    return member, Flusher(member)


def write(member: MemberState, count: int = 1) -> None:
    """More entries."""
    assert isinstance(member.view, ListLedger)
    member.view.entries.extend([(1, b"")] * count)
    member.refresh_end()


class FlusherTests(SynchronousTestCase):
    """One fsync at a time; it proves the entries that were there when it began."""

    def test_starts_when_there_is_something(self) -> None:
        """The effect names the end that is wanted."""
        member, flusher = dirty()
        flusher.wanted()
        self.assertEqual(member.out.take(), (fx.FlushLedger(flush_id=1, end_index=2),))

    def test_nothing_to_flush(self) -> None:
        """A clean ledger is left alone."""
        member, flusher = dirty()
        member.flushed_index = 2
        flusher.wanted()
        self.assertEqual(member.out.take(), ())

    def test_one_at_a_time(self) -> None:
        """What is written while one runs shares the next."""
        member, flusher = dirty()
        flusher.wanted()
        write(member, 2)
        flusher.wanted()
        member.out.take()
        self.assertTrue(flusher.on_flushed(1, 2))
        self.assertEqual(member.flushed_index, 2)
        flusher.wanted()
        self.assertEqual(member.out.take(), (fx.FlushLedger(flush_id=2, end_index=4),))

    def test_only_what_was_asked_for_counts(self) -> None:
        """An outcome of another flush is ignored, and the one under way stays under way."""
        member, flusher = dirty()
        flusher.wanted()
        self.assertFalse(flusher.on_flushed(7, 2))
        self.assertEqual(member.flushed_index, -1)
        flusher.wanted()
        self.assertEqual(len(member.out.take()), 1)

    def test_a_repeated_outcome_is_no_news(self) -> None:
        """The same outcome twice is news once."""
        _, flusher = dirty()
        flusher.wanted()
        self.assertTrue(flusher.on_flushed(1, 2))
        self.assertFalse(flusher.on_flushed(1, 2))

    def test_truncation_during_a_flush(self) -> None:
        """What began before a cut proves nothing about entries written after it."""
        member, flusher = dirty(5)
        flusher.wanted()
        assert isinstance(member.view, ListLedger)
        del member.view.entries[2:]
        member.refresh_end()
        flusher.on_truncated()
        self.assertEqual(member.flushed_index, 1)
        write(member, 3)
        self.assertFalse(flusher.on_flushed(1, 4))
        self.assertEqual(member.flushed_index, 1)
        flusher.wanted()
        self.assertTrue(flusher.on_flushed(2, 4))
        self.assertEqual(member.flushed_index, 4)

    def test_truncation_between_flushes(self) -> None:
        """It voids nothing that begins after it."""
        member, flusher = dirty(2)
        flusher.on_truncated()
        write(member)
        flusher.wanted()
        self.assertTrue(flusher.on_flushed(1, 2))

    def test_never_beyond_the_end(self) -> None:
        """Whatever the store claims, only entries that there are can be flushed."""
        member, flusher = dirty(3)
        flusher.wanted()
        flusher.on_flushed(1, 99)
        self.assertEqual(member.flushed_index, 2)

    def test_flushed_index_never_falls(self) -> None:
        """An outcome that proves less is no news."""
        member, flusher = dirty(3)
        flusher.wanted()
        member.flushed_index = 2
        self.assertFalse(flusher.on_flushed(1, 1))
        self.assertEqual(member.flushed_index, 2)

    def test_async_flushes_at_intervals(self) -> None:
        """Not more often than configured."""
        member, flusher = dirty(flush_disk_type="async", flush_file_interval=50)
        flusher.wanted()
        flusher.on_flushed(1, 2)
        write(member)
        member.out.take()
        member.out.now_ms = 1_049
        flusher.wanted()
        self.assertEqual(member.out.take(), ())
        member.out.now_ms = 1_050
        flusher.wanted()
        self.assertEqual(member.out.take(), (fx.FlushLedger(flush_id=2, end_index=3),))
