# -*- test-case-name: tests.node.test_reports -*-
"""What is repeated is logged when it begins, once a minute while it goes on, and when it is over."""

from __future__ import annotations

from typing import Any

from twisted.logger import Logger, LogLevel, capturedLogs, formatEvent
from twisted.trial.unittest import SynchronousTestCase

from dledger.base.serving.folding import AGAIN_S, KEYS_MAX, QUIET_S
from dledger.core.state.effects import Report
from dledger.node.reporting.reports import EVENT_CHARACTERS_MAX, EVENTS_MAX, FACT_CHARACTERS_MAX, Reports
from tests.node.rig import Rig

REFUSED = Report(event="push-refused", facts={"code": "INCONSISTENT_STATE", "reason": "expected pos=7",
                                              "type": "APPEND"})


class RepetitionTests(SynchronousTestCase):
    """A follower whose files have another size than the leader's."""

    def setUp(self) -> None:
        self.now_s = 1000.0
        self.counts: dict[str, int] = {}
        self.reports = Reports(Logger(), self_id="n2", counts=self.counts, seconds=lambda: self.now_s,
                               wall_clock=lambda: (1_700_000_000.0 + self.now_s, 4))

    def said(self, *reports: Report, seconds: float, every_s: float = 1.0) -> list[str]:
        """Lines that come of these reports, once in C{every_s}, as time goes by."""
        with capturedLogs() as events:
            for _ in range(round(seconds / every_s)):
                for report in reports:
                    self.reports.report(report)
                self.now_s += every_s
                self.reports.sweep(self.now_s)
        self.events: list[dict[str, Any]] = list(events)
        return [str(formatEvent(event)) for event in events]

    def test_begin_and_end(self) -> None:
        """Two lines for a hundred refusals in less than a minute; all are counted."""
        line = "push-refused code=INCONSISTENT_STATE reason=expected pos=7 type=APPEND"
        self.assertEqual(self.said(REFUSED, seconds=50, every_s=0.5), [line])
        self.assertEqual(self.said(seconds=QUIET_S - 1), [])
        self.assertEqual(
            self.said(seconds=2),
            ["push-refused code=INCONSISTENT_STATE type=APPEND: over after 100 times in 50 s"],
        )
        self.assertEqual([event["log_level"] for event in self.events], [LogLevel.warn])
        self.assertEqual((self.events[0]["times"], self.events[0]["self_id"]), (100, "n2"))
        self.assertEqual(self.counts, {"push-refused": 100})

    def test_events_are_kept(self) -> None:
        """The last ones, as the log has them, within a bound."""
        self.said(REFUSED, seconds=2)
        (event,) = self.reports.events()
        self.assertEqual((event.number, event.at_s, event.level, event.event),
                         (1, 1_700_001_000.0, "warn", "push-refused"))
        self.assertEqual(event.facts, "code=INCONSISTENT_STATE reason=expected pos=7 type=APPEND")
        for term in range(EVENTS_MAX):
            self.reports.report(Report(event="role-changed", facts={"term": term, **{
                f"fact{n}": "x" * 300 for n in range(9)}}))
        events = self.reports.events()
        self.assertEqual((len(events), events[0].number), (EVENTS_MAX, 2))
        self.assertEqual(len(events[-1].facts), EVENT_CHARACTERS_MAX)

    def test_once_a_minute(self) -> None:
        """While it goes on, with a number."""
        lines = self.said(REFUSED, seconds=10 * AGAIN_S)
        self.assertEqual(len(lines), 10)
        reported = [line.partition("times=")[2] for line in lines[1:3]]
        self.assertEqual(reported, ["61 since_s=60", "121 since_s=120"])
        self.assertIn("reason=expected pos=7", lines[1])

    def test_names_of_strangers(self) -> None:
        """Votes for candidates that are no members are one event; a long name is cut."""
        reports = [
            Report(event="vote-answered", facts={
                "candidate_id": f"{number}" + "x" * 30_000, "term": 3, "result": "REJECT_UNKNOWN_LEADER",
            })
            for number in range(300)
        ]
        (line,) = self.said(*reports, seconds=1)
        self.assertLess(len(line), FACT_CHARACTERS_MAX + 100)
        self.assertRegex(line, r"candidate_id=0x+\.\.\. \(30001 characters\)")
        (over,) = self.said(seconds=QUIET_S + 1)
        self.assertIn("candidate_id=any result=REJECT_UNKNOWN_LEADER: over after 300 times", over)
        member = Report(event="vote-answered", facts={"candidate_id": "n1", "result": "REJECT_ALREADY_VOTED"})
        self.assertEqual(len(self.said(member, seconds=1)), 1)

    def test_a_repetition_begins_anew(self) -> None:
        """What was over begins anew; what happened once needs no end."""
        self.assertEqual(len(self.said(REFUSED, seconds=1)), 1)
        self.assertEqual(self.said(seconds=QUIET_S + 1), [])
        self.assertEqual(len(self.said(REFUSED, seconds=1)), 1)

    def test_what_is_another_thing(self) -> None:
        """Another peer, another change of state, another code: a line of its own."""
        reports = [
            Report(event="push-set-back", facts={"peer_id": peer_id, "state": "append", "setbacks": 1})
            for peer_id in ("n0", "n1")
        ] + [
            Report(event="dispatcher-state", facts={"peer_id": "n0", "old": old, "new": new})
            for old, new in (("compare", "append"), ("append", "compare"))
        ] + [REFUSED, Report(event="push-refused", facts={"code": "DISK_FULL", "type": "APPEND"})]
        self.assertEqual(len(self.said(*reports, seconds=30)), len(reports))

    def test_what_is_never_left_out(self) -> None:
        """All others come one by one."""
        self.assertEqual(len(self.said(Report(event="role-changed", facts={"term": 3}), seconds=5)), 5)

    def test_a_flood_is_two_lines(self) -> None:
        """A flood that another party causes is two lines: its begin, and its end with a number."""
        for event, facts in (
            ("vote-answered", {"candidate_id": "n1", "result": "REJECT_ALREADY_HAS_LEADER"}),
            ("two-leaders", {"known": "n1", "other": "n2"}),
            ("truncate-refused", {"leader_id": "n1"}),
            ("message-refused", {"sender_id": "n1", "kind": "VoteRequest", "fault": "term"}),
            ("append-refused", {"code": "DISK_FULL"}),
        ):
            flood = [Report(event=event, facts={**facts, "term": term}) for term in range(100)]
            self.assertEqual(len(self.said(*flood, seconds=30)), 1, event)
            self.assertEqual(len(self.said(seconds=QUIET_S + 1)), 1, event)

    def test_names_without_end(self) -> None:
        """A stranger's names are distinguished up to a bound; then they are one."""
        flood = [
            Report(event="vote-answered", facts={"candidate_id": f"x{number}", "result": "UNKNOWN"})
            for number in range(10 * KEYS_MAX)
        ]
        self.assertEqual(len(self.said(*flood, seconds=1)), KEYS_MAX + 1)
        self.assertEqual(len(self.said(seconds=QUIET_S + 1)), 1)

    def test_a_node_reports_the_end_itself(self) -> None:
        """A node says when it is over by itself."""
        rig = Rig().lead()
        with capturedLogs() as events:
            for _ in range(3):
                rig.node.report(REFUSED)
            rig.clock.pump([0.1] * 120)
        lines = [str(formatEvent(event)) for event in events]
        self.assertEqual(len(lines), 2)
        self.assertIn("over after 3 times in 0 s", lines[1])
