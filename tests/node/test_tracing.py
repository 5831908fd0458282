# -*- test-case-name: tests.node.test_tracing -*-
"""The spans of a member: their kinds and facts, that each ends, and that they are bounded."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any, cast

from dledger.client.values import Entry
from dledger.core.driver import Driver
from dledger.core.replica import DLedgerCore
from dledger.core.state import effects as fx
from dledger.core.state import inputs as ev
from dledger.machine.requests import MachineHandler
from dledger.machine.runner import MachineRunner
from dledger.machine.tracing import TracedMachine, traced_factory
from dledger.machine.waiting import WaitBounds
from dledger.node.host import MachineHost
from dledger.node.requests.machine_requests import Hosting
from dledger.node.work.tracing import OpenSpans, TracedDriver
from dledger.values.errors import DLedgerError, StoreError
from protocols.wire.codes import ResponseCode
from tests.base.reported_spans import ReportedSpans
from tests.core.helpers import batch
from tests.machine.machines import Journal
from tests.node.rig import Rig
from tests.node.test_driver import DriverCase, fails


class ScriptedCase(DriverCase):
    """A traced driver over a scripted core."""

    def setUp(self) -> None:
        super().setUp()
        self.spans = ReportedSpans()
        self.use(OpenSpans(self.spans))

    def use(self, trace: OpenSpans) -> None:
        """Another driver."""
        self.trace = trace
        self.driver = TracedDriver(
            cast(DLedgerCore, self.core), self.ledger, self.world, self.world, trace=trace
        )

    def propose(self, *tokens: int) -> None:
        """Each with one body of two bytes."""
        self.driver.feed(ev.AppendProposed(tuple(ev.Proposal(token=one, bodies=(b"xy",)) for one in tokens)))

    def writes(self, *bodies: bytes) -> fx.WriteBodies:
        """A leader's write at the end of the ledger."""
        return fx.WriteBodies(first_index=self.ledger.ledger_end_index + 1, term=3, bodies=bodies)

    def answer(self, token: int, code: ResponseCode = ResponseCode.SUCCESS) -> fx.AnswerAppend:
        """The outcome of one proposal."""
        index = token if code is ResponseCode.SUCCESS else -1
        return fx.AnswerAppend(token=token, code=code, term=3, count=1, first_index=index)


class LeaderTests(ScriptedCase):
    """A leader's appends."""

    def test_a_committed_append_has_its_spans(self) -> None:
        """Append, with write and commit in it; the answer comes last."""
        self.script((self.writes(b"xy", b"xy"),))
        self.propose(0, 1)
        self.assertEqual(self.spans.shown(), ["append - open", "write append written", "commit append open"])
        self.script((fx.RecordCommit(committed_index=0), self.answer(0)))
        self.driver.feed(ev.Ticked())
        self.assertEqual(self.spans.shown()[2], "commit append open")
        self.script((fx.RecordCommit(committed_index=1), self.answer(1)))
        self.driver.feed(ev.Ticked())
        self.assertEqual(
            self.spans.shown(), ["append - SUCCESS", "write append written", "commit append committed"]
        )
        append, write, commit = self.spans.all
        self.assertEqual(append.facts, {"requests": 2, "count": 2, "bytes": 4, "first_index": 0, "term": 3,
                                        "result": "SUCCESS"})
        self.assertEqual(write.facts, {"first_index": 0, "count": 2, "term": 3, "bytes": 4,
                                       "result": "written"})
        self.assertEqual(commit.facts, {"first_index": 0, "count": 2, "term": 3, "result": "committed"})
        self.assertEqual({one.ends for one in self.spans.all}, {1})
        self.assertEqual(self.world.diary.count(("append", 0)), 1)

    def test_a_refused_append_ends_its_span(self) -> None:
        """The first code that is not success is the result; a refused write has no commit."""
        self.script((self.answer(1), self.answer(2, ResponseCode.NOT_LEADER),
                     self.answer(3, ResponseCode.LEADER_PENDING_FULL)))
        self.propose(1, 2, 3)
        self.assertEqual(self.spans.shown(), ["append - NOT_LEADER"])
        self.ledger.refuse = ResponseCode.DISK_FULL
        self.script((self.writes(b"xy"),), (self.answer(4, ResponseCode.DISK_FULL),))
        self.propose(4)
        self.assertEqual(self.spans.shown()[1:], ["append - DISK_FULL", "write append DISK_FULL"])

    def test_a_broken_store_ends_all_spans(self) -> None:
        """A write that raises ends its span, and so does the stop."""
        self.ledger.broken = True
        self.patch(type(self.ledger), "append_bodies", lambda *_, **__: fails(StoreError("gone"))())
        self.script((self.writes(b"xy"),), (fx.StopMember(reason="gone"),))
        self.propose(4)
        self.assertEqual(self.spans.shown(), ["append - stopped", "write append DISK_ERROR"])

    def test_own_entries_have_their_own_trace(self) -> None:
        """Entries that nobody proposed are the root of their trace; unknown tokens are nothing."""
        self.script((self.writes(b""), ), (self.answer(77), fx.RecordCommit(committed_index=0)))
        self.driver.feed(ev.Ticked())
        self.assertEqual(self.spans.shown(), ["write - written", "commit write committed"])


class FollowerTests(ScriptedCase):
    """What a leader pushed."""

    def test_a_cut_entry_is_not_committed(self) -> None:
        """What a truncation cuts is not committed."""
        self.script((fx.WriteEntries(entries=batch(0, (3, b"a"))),), ())
        self.driver.feed(ev.Ticked())
        self.script((fx.WriteEntries(entries=batch(1, (3, b"b"))),), ())
        self.driver.feed(ev.Ticked())
        self.script((fx.TruncateLedger(entries=batch(0, (3, b"a"))),), (fx.RecordCommit(committed_index=0),))
        self.driver.feed(ev.Ticked())
        self.assertEqual(self.spans.shown(), [
            "write - written", "commit write committed", "write - written", "commit write truncated",
        ])
        self.assertEqual(self.spans.all[2].facts["first_index"], 1)

    def test_a_refused_push_ends_its_span(self) -> None:
        """By the store."""
        self.ledger.refuse = ResponseCode.INCONSISTENT_STATE
        self.script((fx.WriteEntries(entries=batch(0, (3, b"a"))),))
        self.driver.feed(ev.Ticked())
        self.assertEqual(self.spans.shown(), ["write - INCONSISTENT_STATE"])

    def test_one_flush_has_a_span_at_a_time(self) -> None:
        """One at a time; the stop ends the last one."""
        self.script((fx.FlushLedger(flush_id=1, end_index=5),), (fx.FlushLedger(flush_id=2, end_index=7),))
        self.driver.feed(ev.Ticked())
        self.driver.feed(ev.EntriesFlushed(flush_id=1, end_index=5))
        self.assertEqual(self.spans.shown(), ["flush - flushed", "flush - open"])
        self.driver.stop()
        self.driver.stop()
        self.assertEqual(self.spans.shown(), ["flush - flushed", "flush - stopped"])
        self.assertEqual([one.facts["end_index"] for one in self.spans.all], [5, 7])
        self.assertEqual({one.ends for one in self.spans.all}, {1})


class BoundTests(ScriptedCase):
    """No more spans than allowed."""

    def test_the_number_of_spans_is_bounded(self) -> None:
        """What is one too many is left out and counted; ended ones make room; work goes on as without."""
        self.use(OpenSpans(self.spans, spans_max=3))
        for token in range(5):
            self.script((self.writes(b"xy"),))
            self.propose(token)
        # (The spans of writes end at once.)
        self.assertEqual(len([one for one in self.spans.all if not one.ends]), 3)
        self.assertGreater(self.trace.left_out, 5)
        self.assertEqual(self.ledger.ledger_end_index, 4)
        self.script((fx.RecordCommit(committed_index=4), *map(self.answer, range(5))))
        self.driver.feed(ev.Ticked())
        self.assertEqual([one.ends for one in self.spans.all], [1] * len(self.spans.all))
        self.assertEqual([one for one in self.world.diary if one[0] == "append"],  # type: ignore[index]
                         [("append", token) for token in range(5)])
        began = len(self.spans.all)
        self.script((self.writes(b"xy"),))
        self.propose(5)
        self.assertEqual(len(self.spans.all), began + 3)

    def test_kept_for_the_machine(self) -> None:
        """Roots of committed entries, too."""
        trace = OpenSpans(self.spans, has_machine=True, spans_max=4)
        for index in range(10):
            trace.wrote(trace.begin("write", {}), None, index, 1, 1)
            trace.committed(index)
        self.assertIsNone(trace.root_with(5))
        self.assertIs(trace.root_with(7), self.spans.named("write")[7])
        self.assertIsNone(trace.root_with(6))
        without = OpenSpans(self.spans, spans_max=4)
        without.wrote(without.begin("write", {}), None, 0, 1, 1)
        without.committed(0)
        self.assertIsNone(without.root_with(0))

    def test_a_stopped_member_begins_no_span(self) -> None:
        """A member that has stopped begins none."""
        self.driver.stop()
        self.propose(1)
        self.assertEqual(self.spans.all, [])


class MemberTests(DriverCase):
    """A whole member with a state machine."""

    def test_a_whole_append_is_traced(self) -> None:
        """From the append of a caller to the machine; everything ends with the member."""
        spans = ReportedSpans()
        trace = OpenSpans(spans, has_machine=True)
        rig = Rig(make_driver=partial(TracedDriver, trace=trace))
        runner = MachineRunner(
            traced_factory(Journal, trace), rig.node,
            MachineHost(self_id="n0", clock=rig.clock, run_in_thread=rig.thread.run), snapshots=None,
            waits=WaitBounds(waits_max=10, wait_ms=1000),
        )
        handler = MachineHandler(rig.config, runner, rig.node.handlers.machine_surroundings)
        rig.node.machine_requests.hosting = Hosting(machine=runner, handler=handler)
        rig.lead()
        runner.start()
        spans.all.clear()
        results = [rig.node.append(b"one"), rig.node.append((b"two", b"three"))]
        for _ in range(20):
            rig.clock.advance(0)
        first = self.successResultOf(results[0])
        self.successResultOf(results[1])
        append, write, commit = spans.named("append", "write", "commit")
        self.assertEqual(spans.shown()[:3], [
            "append - SUCCESS", "write append written", "commit append committed",
        ])
        (apply,) = [one for one in spans.named("apply") if one.facts["first_index"] == first.index]
        self.assertIs(apply.parent, append)
        self.assertEqual(apply.facts, {"first_index": first.index, "count": 3, "term": first.term,
                                       "bytes": 11, "result": "applied"})
        self.assertEqual(append.facts["requests"], 2)
        rig.node.append(b"four").addErrback(lambda failure: None)
        rig.node.abort("enough")
        for _ in range(5):
            rig.clock.advance(0)
        self.assertEqual({one.ends for one in spans.all}, {1})

    def test_tracing_off_uses_the_plain_driver(self) -> None:
        """A member without tracing has the plain driver."""
        self.assertIs(type(Rig().node.driver), Driver)


class MachineTests(DriverCase):
    """Around a state machine."""

    def test_the_traced_machine_passes_everything_on(self) -> None:
        """Everything; failures are reported in the span, and stay failures."""
        spans, journal = ReportedSpans(), Journal()
        machine = TracedMachine(journal, OpenSpans(spans))
        entries = [Entry(index=index, term=2, pos=0, body=b"%d" % index) for index in (4, 5)]
        self.assertEqual((machine.name, machine.version), ("journal", 1))
        self.assertEqual(list(machine.apply(entries)), [b"4:4", b"5:5"])
        self.assertEqual(machine.query(b"+"), b"4+5")
        self.assertEqual(list(machine.snapshot()), [b"4", b"5"])
        machine.restore([b"x"])
        self.assertEqual(journal.bodies, [b"x"])
        journal.fails = lambda entry: fails(DLedgerError(ResponseCode.INTERNAL_ERROR))()
        self.assertRaises(DLedgerError, list, machine.apply(entries))

        def at_once(entries: Sequence[Entry]) -> Iterable[bytes]:
            raise KeyError(entries[0].index)

        cast(Any, journal).apply = at_once
        self.assertRaises(KeyError, machine.apply, entries)
        self.assertEqual(spans.shown(), ["apply - applied", "apply - failed", "apply - failed"])
        self.assertEqual(spans.all[0].facts["count"], 2)
