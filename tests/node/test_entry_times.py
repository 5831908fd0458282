# -*- test-case-name: tests.node.test_entry_times -*-
"""The times that a leader notes in the log."""

from __future__ import annotations

from collections.abc import Mapping

from twisted.trial.unittest import SynchronousTestCase

from dledger.client.values import Entry, entries_of
from dledger.node.requests.entry_times import CLOCK_BEHIND_MS, EntryTimes
from dledger.node.requests.group_clock import GroupClock
from dledger.values.ledger.group_state import GroupFold, GroupState, Marked
from protocols.wire.codes import ResponseCode
from protocols.wire.ledger.messages import AppendIfRequest, MetadataRequest
from protocols.wire.ledger.own.own_entries import TIME_CHANNEL, OwnKind
from protocols.wire.ledger.own.time_entries import (
    TIME_MS_MAX,
    TIME_SPAN_BYTES,
    TIME_SPAN_ENTRIES,
    decode_time_entry,
    encode_time_entry,
)
from tests.node.rig import Rig
from tests.node.test_group_clock import FakeLeading


class FakeLedger:
    """A ledger of which only its end and its times are asked."""

    def __init__(self) -> None:
        self.group: GroupFold | None = GroupFold(GroupState())
        self.ledger_end_index = -1
        self.end_position = 0


class DueTests(SynchronousTestCase):
    """When a time entry is due, and of what time."""

    def setUp(self) -> None:
        self.ledger = FakeLedger()
        self.leading = FakeLeading(3)
        self.now_ms = 5000
        self.events: list[tuple[str, Mapping[str, object]]] = []
        self.times = self.make()

    def make(self) -> EntryTimes:
        """Of the leader as it is."""
        def note(event: str, facts: Mapping[str, object]) -> None:
            self.events.append((event, facts))

        clock = GroupClock(3000, leading=self.leading, wall_s=lambda: self.now_ms / 1000, note=note)
        return EntryTimes(100, ledger=self.ledger, leading=self.leading, clock=clock, note=note)

    def noted(self, index: int, time_ms: int, term: int = 3) -> None:
        """The ledger ends with a time entry."""
        assert self.ledger.group is not None
        self.ledger.group.take([Marked(index, term, TIME_CHANNEL, body=encode_time_entry(time_ms))])
        self.ledger.ledger_end_index = index

    def due(self) -> int | None:
        """Its time; None: none is due."""
        body = self.times.due()
        return None if body is None else decode_time_entry(body).time_ms

    def test_time_entries_come_at_intervals(self) -> None:
        """The first bodies have one, then those after the interval."""
        self.assertEqual(self.due(), 5000)
        self.noted(0, 5000)
        self.now_ms = 5099
        self.assertIsNone(self.due())
        self.now_ms = 5100
        self.assertEqual(self.due(), 5100)

    def test_clock_that_is_far_behind_is_reported(self) -> None:
        """An operator must know why times do not go on: this clock is wrong, or another one was."""
        self.noted(0, 5000 + CLOCK_BEHIND_MS - 1)
        self.due()
        self.assertEqual(self.events, [])
        self.now_ms -= 1
        self.due()
        self.assertEqual(self.events, [("clock-behind", {"seconds": 60})])

    def test_each_term_begins_with_a_time(self) -> None:
        """A new leader begins with one, at once."""
        self.noted(7, 5000, term=2)
        self.assertEqual(self.due(), 5000)

    def test_times_never_go_back(self) -> None:
        """A clock that was set back waits for its own time; one out of any calendar is bounded."""
        self.noted(7, 9000, term=2)
        self.assertEqual(self.due(), 9000)
        self.noted(8, 9000)
        self.now_ms = 9099
        self.assertIsNone(self.due())
        self.now_ms = 9100
        self.assertEqual(self.due(), 9100)
        self.now_ms = 10 * TIME_MS_MAX
        self.assertEqual(self.due(), TIME_MS_MAX)
        self.noted(9, TIME_MS_MAX)
        self.assertIsNone(self.due())

    def test_times_before_1970_count_as_1970(self) -> None:
        """It counts as the begin of 1970."""
        self.now_ms = -5
        self.assertEqual(self.due(), 0)

    def test_times_come_within_a_bounded_span(self) -> None:
        """Who looks back finds one before long, in entries and in bytes."""
        self.assertEqual(self.due(), 5000)
        self.noted(0, 5000)
        self.ledger.ledger_end_index = TIME_SPAN_ENTRIES - 1
        self.assertIsNone(self.due())
        self.ledger.ledger_end_index += 1
        self.assertEqual(self.due(), 5000)
        self.noted(TIME_SPAN_ENTRIES + 1, 5000)
        self.ledger.end_position = TIME_SPAN_BYTES - 1
        self.assertIsNone(self.due())
        self.ledger.end_position += 1
        self.assertEqual(self.due(), 5000)

    def test_a_time_may_not_be_due(self) -> None:
        """To a follower; while it is not known what the log says."""
        self.leading.is_leader = False
        self.assertIsNone(self.due())
        self.leading.is_leader, self.ledger.group = True, None
        self.assertIsNone(self.due())

    def test_a_clock_that_is_far_ahead_freezes_nothing(self) -> None:
        """The log gets the time of the majority, also at intervals, and the true one goes on from there."""
        self.leading = FakeLeading(3, 3)
        self.times = self.make()
        self.assertIsNone(self.due(), "the others have not said their clocks")
        self.leading.said = {"n1": 5000, "n2": 5000}
        self.now_ms += 400 * 86_400_000
        self.assertEqual(self.due(), 5000)
        self.noted(0, 5000)
        self.leading.said = {"n1": 5099, "n2": 5099}
        self.assertIsNone(self.due())
        self.leading.said = {"n1": 5100, "n2": 5100}
        self.assertEqual(self.due(), 5100)
        self.noted(1, 5100)
        self.now_ms = 5200
        self.assertEqual(self.due(), 5200)
        self.noted(2, 5200)
        self.leading.said, self.now_ms = {}, 5300
        self.assertIsNone(self.due(), "nobody confirms it")


class MemberTests(SynchronousTestCase):
    """A member that leads alone."""

    def setUp(self) -> None:
        self.rig = Rig(entry_times_ms=100).lead()

    def append(self, *bodies: bytes) -> None:
        """All at once."""
        self.rig.node.append(list(bodies))
        self.rig.clock.pump([0.0] * 5)

    def entries(self) -> list[Entry]:
        """All entries."""
        batch = self.rig.node.read_committed(0, max_bytes=1 << 20)
        assert batch is not None
        return entries_of(batch)

    def test_bodies_get_the_time_of_the_clock(self) -> None:
        """Bodies have the time of the clock when they came; the entries of one interval share it."""
        for wall_s, bodies in ((1e9, (b"a", b"b")), (1e9 + 0.099, (b"c",)), (1e9 + 0.1, (b"d",))):
            self.rig.wall_s = wall_s
            self.append(*bodies)
        shown = [(entry.body, entry.time_ms) for entry in self.entries() if not entry.is_control]
        first, later = 10**12, 10**12 + 100
        self.assertEqual(shown, [(b"a", first), (b"b", first), (b"c", first), (b"d", later)])
        kinds = [entry.kind for entry in self.entries() if entry.kind is not None]
        self.assertEqual(kinds.count(OwnKind.TIME), 2)

    def test_no_times_come_without_the_option(self) -> None:
        """Without the option the log is as it was."""
        self.rig = Rig().lead()
        self.append(b"a")
        self.assertEqual([entry.time_ms for entry in self.entries()], [None] * len(self.entries()))
        self.assertNotIn(OwnKind.TIME, [entry.kind for entry in self.entries()])

    def test_a_time_entry_makes_no_conflict(self) -> None:
        """A time entry comes first; no program has appended, so the expectation holds."""
        client, end = self.rig.client(), self.rig.node.committed_index
        self.rig.wall_s += 60.0
        client.send(AppendIfRequest(**self.rig.base(), body=b"x", expected_end=end))
        self.rig.clock.pump([0.0] * 5)
        (answer,) = client.answers()
        self.assertEqual((answer.code, answer.index), (ResponseCode.SUCCESS, end + 2))

    def test_metadata_reports_times(self) -> None:
        """METADATA says that readers may look for times: by the option, or by what the log has."""
        for rig, expected in ((self.rig, True), (Rig().lead(), False)):
            answer = rig.client().ask(MetadataRequest(**rig.base()), native=False)
            self.assertIs(answer.has_times, expected)
