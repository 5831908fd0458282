# -*- test-case-name: tests.sim.test_traced_members -*-
"""Simulated members with spans: these are as they should be, and wrong ones are noticed."""

from __future__ import annotations

from unittest import mock

from twisted.trial.unittest import SynchronousTestCase

from dledger.node.work.tracing import OpenSpans
from dledger.testing.group.checks.invariants import GroupInvariants
from dledger.testing.group.checks.require import InvariantError
from dledger.testing.group.focuses import FOCUSES
from dledger.testing.group.schedule import run_schedule
from dledger.testing.group.watching import spans as spans_module
from dledger.testing.group.watching.spans import SpanRules

_, TRACED = FOCUSES["traced-members"]


class TracedTests(SynchronousTestCase):
    """Whole schedules, and single spans."""

    def test_traced_members_pass(self) -> None:
        """Spans of all kinds begin and end."""
        made: list[SpanRules] = []

        def make(*arguments: object) -> SpanRules:
            made.append(SpanRules(*arguments))  # type: ignore[arg-type]
            return made[-1]

        with mock.patch.object(spans_module, "SpanRules", make):
            names: set[str] = set()
            for seed in (2, 4, 8):
                self.assertEqual(run_schedule(seed, focus=TRACED).failure, "")
                names = {name for rules in made for name, _ in rules.results}
                if len(names) == 5:
                    break
        self.assertEqual(names, {"append", "write", "commit", "flush", "apply"})

    def test_spans_left_open_are_noticed(self) -> None:
        """A member that stops, and leaves the spans of its commits open."""
        with mock.patch.object(OpenSpans, "stop", lambda self: None), \
                mock.patch.object(OpenSpans, "committed", lambda self, index: None):
            failures = [run_schedule(seed, focus=TRACED, seconds=20).failure for seed in (3, 4)]
        self.assertIn("invariant 16", "".join(failures))

    def test_wrong_spans_are_noticed(self) -> None:
        """One ends twice, or without a result, is under a wrong one, or names a commit that was none."""
        rules = SpanRules("n0", GroupInvariants(["n0"], is_sync=True))
        span = rules.begin("flush", {}, None)
        self.assertRaises(InvariantError, rules.end, span, {})
        self.assertRaises(InvariantError, rules.end, span, {"result": "flushed"})
        self.assertRaises(InvariantError, rules.begin, "append", {}, span)
        write = rules.begin("write", {}, None)
        commit = rules.begin("commit", {"first_index": 3, "count": 1, "term": 1}, write)
        self.assertRaises(InvariantError, rules.end, commit, {"result": "committed"})
