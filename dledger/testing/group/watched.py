# -*- test-case-name: tests.sim.test_cluster -*-
"""The real core and term file of a simulated member, with the checks that see each step."""

from __future__ import annotations

from typing import Protocol

from dledger.core import effects as fx
from dledger.core import inputs as ev
from dledger.core.replica import DLedgerCore
from dledger.storage.term_file import TermFile
from dledger.testing.clock import SimClock
from dledger.testing.group.invariants import CheckedMember, GroupInvariants
from dledger.testing.trace import Trace


class WatchedWorld(Protocol):
    """The parts of the world that a step needs."""

    clock: SimClock
    invariants: GroupInvariants
    trace: Trace


class Watcher(CheckedMember, Protocol):
    """
    The member whose core and terms these are.

    @ivar last_seen: its state after the last step that changed it.
    @ivar persisted_term: its last durable term.
    """

    number: int
    last_seen: tuple[object, ...]
    persisted_term: int

    @property
    def world(self) -> WatchedWorld:
        """Its surroundings."""


class WatchedCore(DLedgerCore):
    """The real core; the checks see every step."""

    watcher: Watcher

    def step(self, happened: ev.Input, now_ms: int) -> tuple[fx.Effect, ...]:
        """See L{DLedgerCore.step}."""
        watcher = self.watcher
        world = watcher.world
        if isinstance(happened, ev.EntriesWritten):
            world.invariants.written(watcher, happened.first_index, happened.count)
        elif isinstance(happened, ev.LedgerTruncated):
            world.invariants.truncated(watcher, happened.end_index)
        elif isinstance(happened, ev.HoleHandled):
            world.invariants.holes_changed(watcher)
        effects = DLedgerCore.step(self, happened, now_ms)
        if not effects and type(happened) is ev.Ticked:
            world.trace.steps += 1  # nothing changes without an effect that says so
            return effects
        state = self._member
        world.trace.step(world.clock.now_us, watcher.number, watcher.member_id, self, happened, effects)
        seen = (state.term, state.role, state.committed_index, state.repair_end_index)
        if seen != watcher.last_seen:
            watcher.last_seen = seen
            world.invariants.stepped(watcher, state)
        return effects


class WatchedTerms(TermFile):
    """The real term file; its last durable term is recorded in the member."""

    watcher: Watcher

    def save(self, term: int, voted_for: str | None) -> None:
        """See L{TermFile.save}."""
        super().save(term, voted_for)
        self.watcher.persisted_term = term
