# -*- test-case-name: tests.node.test_time_orders -*-
"""Times that are ahead: reported, and reset."""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from dledger.client.values import as_shown, entries_of
from protocols.wire.codes import ResponseCode
from protocols.wire.ledger.messages import MetadataRequest, ResetTimesRequest, ResetTimesResponse
from protocols.wire.ledger.own.own_entries import OwnKind
from protocols.wire.ledger.own.time_entries import decode_resets
from tests.node.rig import Rig

DAY_S = 86_400.0


class TimeOrderTests(SynchronousTestCase):
    """A member that leads alone, whose clock was 400 days ahead."""

    def setUp(self) -> None:
        self.rig = Rig(entry_times_ms=100).lead()
        self.client = self.rig.client("127.0.0.1")
        self.true_s = self.rig.wall_s

    def append(self, at_s: float, body: bytes = b"x") -> None:
        """When the clock shows this."""
        self.rig.wall_s = at_s
        self.rig.node.append([body])
        self.rig.clock.pump([0.0] * 5)

    def order(self) -> ResetTimesResponse:
        """By an operator."""
        self.client.send(ResetTimesRequest(**self.rig.base()))
        self.rig.clock.pump([0.0] * 5)
        (answer,) = self.client.answers()
        assert isinstance(answer, ResetTimesResponse)
        return answer

    def times(self) -> list[float]:
        """Those of the entries of programs, as they are shown now; seconds after the true one."""
        answer = self.client.ask(MetadataRequest(**self.rig.base()), native=False)
        batch = self.rig.node.read_committed(0, max_bytes=1 << 20)
        assert batch is not None
        shown = as_shown(entries_of(batch), decode_resets(answer.time_resets))
        return [round((one.time_ms or 0) / 1000 - self.true_s, 3) for one in shown if one.kind is None]

    def test_a_log_whose_times_are_ahead_goes_on_with_true_ones(self) -> None:
        """What was ahead is shown with the time of the order; nothing falls."""
        self.append(self.true_s)
        self.append(self.true_s + 400 * DAY_S)
        self.append(self.true_s + 5)
        self.assertEqual(self.times(), [0, 400 * DAY_S, 400 * DAY_S])
        self.rig.wall_s = self.true_s + 7
        answer = self.order()
        self.assertEqual((answer.code, answer.index), (ResponseCode.SUCCESS, self.rig.node.committed_index))
        self.append(self.true_s + 7.5)
        self.rig.clock.advance(0.3)
        self.assertEqual(self.times(), [0, 7, 7, 7.5])
        self.append(self.true_s + 500 * DAY_S)
        self.rig.wall_s = self.true_s + 9
        self.assertIs(self.order().code, ResponseCode.SUCCESS)
        self.append(self.true_s + 9.5)
        self.rig.clock.advance(0.3)
        self.assertEqual(self.times(), [0, 7, 7, 7.5, 9, 9.5])

    def test_what_is_ahead_is_reported(self) -> None:
        """In the status, and as an event, from more than the bound on."""
        status = self.rig.node.status
        for ahead_s, events in ((0.0, 0), (3600.0, 0), (3601.0, 1)):
            self.append(self.true_s + ahead_s)
            self.rig.wall_s = self.true_s
            self.assertEqual(status().times_ahead_ms, ahead_s * 1000)
            self.rig.clock.advance(0.3)
            self.assertEqual(int("times-ahead" in status().counts.reports), events)

    def test_refusals(self) -> None:
        """A log whose times are right, and members that cannot know."""
        self.append(self.true_s)
        end = self.rig.node.committed_index
        answer = self.order()
        self.assertIs(answer.code, ResponseCode.UNEXPECTED_ARGUMENT)
        self.assertIn("0 ms ahead of the clocks of a majority", answer.reason)
        self.append(self.true_s + 3600)
        self.rig.wall_s = self.true_s
        self.assertIn("3600000 ms ahead", self.order().reason)
        self.rig.store.void_group("damaged")
        self.assertIn("does not know the state", self.order().reason)
        self.assertEqual(self.rig.node.status().times_ahead_ms, -1)
        self.assertGreater(self.rig.node.committed_index, end)
        rig = self.rig = Rig(peers="n0-h:1;n1-h:2;n2-h:3")
        rig.node.start()
        self.client = rig.client("127.0.0.1")
        self.assertIn("does not lead, nobody known does", self.order().reason)

    def test_a_reset_is_a_time_entry(self) -> None:
        """Programs see no entry of it."""
        self.append(self.true_s + 2 * DAY_S)
        self.rig.wall_s = self.true_s
        index = self.order().index
        batch = self.rig.node.read_committed(index, max_bytes=1)
        assert batch is not None
        self.assertEqual([one.kind for one in entries_of(batch)], [OwnKind.TIME])
