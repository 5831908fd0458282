# -*- test-case-name: tests.sim.test_trace -*-
"""Lines of the trace."""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from dledger.core.state import effects as fx
from dledger.core.state import inputs as ev
from dledger.testing.world.trace import Trace, trace_text
from protocols.wire.ledger.batches import EntryBatch
from protocols.wire.ledger.messages import PushEntryRequest


class DescribeTests(SynchronousTestCase):
    """Inputs, effects and messages in a few characters."""

    def test_batch(self) -> None:
        """Indexes and term."""
        self.assertEqual(trace_text(EntryBatch(first_index=3, count=1, term=2, records=b"")), "[3 t2]")
        self.assertEqual(trace_text(EntryBatch(first_index=3, count=4, term=2, records=b"")), "[3..6 t2]")

    def test_message(self) -> None:
        """Term and leader first, defaults left out."""
        entries = EntryBatch(first_index=3, count=1, term=2, records=b"")
        request = PushEntryRequest(term=2, leader_id="n0", commit_index=1, entries=entries)
        self.assertEqual(trace_text(request), "PushEntry?(t2 by=n0 commit_index=1 [3 t2])")

    def test_effects_and_inputs(self) -> None:
        """By name, with what is not a default; bodies are counted, not shown."""
        self.assertEqual(trace_text(ev.Ticked()), "Ticked()")
        self.assertEqual(trace_text(fx.Report(event="role-changed")), "#role-changed")
        proposal = ev.Proposal(token=1, bodies=(b"x" * 500,))
        self.assertEqual(trace_text(ev.AppendProposed((proposal,))),
                         "AppendProposed(proposals=[Proposal(token=1 bodies=1 bodies)])")


class TraceTests(SynchronousTestCase):
    """The last lines, and a digest of all."""

    def test_keeps_the_last(self) -> None:
        """Older ones are forgotten, unless all are wanted."""
        trace = Trace(keep=2)
        trace.echo = []
        for number in range(4):
            trace.note(number, f"event {number}")
        self.assertEqual([line.split("---- ")[1] for line in trace.lines()], ["event 2", "event 3"])
        self.assertEqual(len(trace.echo), 4)

    def test_digest(self) -> None:
        """Distinguishes different runs."""
        one, other = Trace(), Trace()
        one.note(1, "a")
        other.note(1, "b")
        self.assertNotEqual(one.digest, other.digest)
