# -*- test-case-name: tests.sim.test_traced_members -*-
"""
Spans of simulated members, and their rules: each begins under one that is known, ends once, and says what was
so; a member that stops leaves none open.
"""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from dledger.base.tracing.spans import SPANS_MAX, Facts, SpanContext
from dledger.core.driver import Ledger, Surroundings, Terms
from dledger.core.replica import DLedgerCore
from dledger.node.work.tracing import OpenSpans, TracedDriver
from dledger.testing.group.checks.invariants import GroupInvariants
from dledger.testing.group.checks.require import require
from dledger.testing.group.watching.watched import WatchedDriver, Watcher

#: Number in docs/invariants.md.
SPANS = 16
#: Names of spans, and those that each may be under; empty: none.
_PARENTS = {
    "append": {""}, "write": {"", "append"}, "commit": {"append", "write"}, "flush": {""},
    "apply": {"", "append", "write"},
}


@attrs.define(eq=False)
class SeenSpan:
    """A span. @ivar ended: number of times that it has."""

    name: str
    facts: dict[str, int | str]
    ended: int = 0


class SpanRules:
    """
    The spans of one process of a member, see L{dledger.base.tracing.spans.Spans}.

    Implements L{dledger.base.tracing.spans.Spans}.

    @ivar open: those that have not ended.
    @ivar results: number of spans that ended, by name and result.
    """

    def __init__(self, member_id: str, invariants: GroupInvariants) -> None:
        self.open: set[SeenSpan] = set()
        self.results: dict[tuple[str, str], int] = {}
        self._member_id = member_id
        self._invariants = invariants

    def begin(
        self, name: str, facts: Facts, parent: object | None, links: Sequence[SpanContext] = ()
    ) -> object:
        above = parent.name if isinstance(parent, SeenSpan) else ""
        require(above in _PARENTS[name], SPANS, f"{self._member_id} has {name} under {above or 'nothing'}")
        span = SeenSpan(name, dict(facts))
        self.open.add(span)
        require(len(self.open) <= SPANS_MAX, SPANS, f"{self._member_id} has {len(self.open)} open spans")
        return span

    def end(self, span: object, facts: Facts) -> None:
        assert isinstance(span, SeenSpan)
        span.ended += 1
        span.facts |= facts
        self.open.discard(span)
        reported = f"{self._member_id}: {span.name} {span.facts}"
        require(span.ended == 1, SPANS, f"{reported} ended {span.ended} times")
        result = str(span.facts.get("result", ""))
        require(bool(result), SPANS, f"{reported} has no result")
        self.results[span.name, result] = self.results.get((span.name, result), 0) + 1
        if (span.name, result) in (("commit", "committed"), ("apply", "applied")):
            first, count, term = (int(span.facts[name]) for name in ("first_index", "count", "term"))
            last = first if span.name == "apply" else first + count - 1
            known = self._invariants.committed
            require(all(index in known for index in range(first, last + 1)), SPANS,
                    f"{reported}: not committed")
            require(known[last] <= term, SPANS, f"{reported}: the last one is of term {known[last]}")

    def context_of(self, span: object) -> SpanContext | None:
        """No other process hears of it."""
        return None


class WatchedSpans(OpenSpans):
    """The open spans of one process of a member. @ivar rules: see them."""

    def __init__(self, member_id: str, invariants: GroupInvariants, *, has_machine: bool) -> None:
        self.rules = SpanRules(member_id, invariants)
        super().__init__(self.rules, has_machine=has_machine)


class _SpansOfDriver(TracedDriver):
    """A traced driver that finds its spans in the watched driver, which is in the place of its core."""

    def __init__(self, core: TracedWatchedDriver, ledger: Ledger, terms: Terms, around: Surroundings) -> None:
        super().__init__(core, ledger, terms, around, trace=core.spans)


class TracedWatchedDriver(WatchedDriver, _SpansOfDriver):
    """The watched driver of a member with tracing. @ivar spans: its spans."""

    def __init__(
        self, core: DLedgerCore, ledger: Ledger, terms: Terms, around: Surroundings, *, member: Watcher,
        trace: WatchedSpans,
    ) -> None:
        self.spans = trace
        super().__init__(core, ledger, terms, around, member=member)

    def stop(self) -> None:
        super().stop()
        if not self.member.is_dying:
            left = [(span.name, span.facts) for span in self.spans.rules.open if span.name != "apply"]
            require(not left, SPANS, f"{self.member.member_id} has stopped, and left {left[:3]} open")
