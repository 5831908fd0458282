# -*- test-case-name: tests.client.test_append_order -*-
"""A retry never overtakes, nothing is appended twice, every call has one outcome."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from dledger.client.appender import AppendOutcome
from dledger.client.connect_options import AppendLimits
from dledger.client.errors import AppendError, AppendFailed, AppendTimeout, UnknownOutcome
from protocols.wire.codes import ResponseCode
from protocols.wire.ledger.messages import AppendResponse
from tests.client.fakes import FakeGroup
from tests.client.test_appender import GroupCase, is_append, unknown


class OrderTests(GroupCase):
    """A retry never overtakes."""

    options = {"limits": AppendLimits(frame_count_max=1)}

    def setUp(self) -> None:
        super().setUp()
        self.submit(b"a")
        self.group.settle()
        self.leader = self.group["n0"]
        self.leader.holds = is_append
        self.outcomes = [self.submit(b"b"), self.submit(b"c"), self.submit(b"d")]
        self.group.settle()
        self.assertEqual(len(self.leader.held), 3)

    def answer(self, at: int, code: ResponseCode | None) -> None:
        """Answer the held request at this place: accept it, or refuse it with a code."""
        answerer = self.leader.held.pop(at)
        if code is None:
            answerer.send(self.leader.answer(answerer.request))
        else:
            answerer.send(AppendResponse(code=code, leader_id="n0", group="default"))

    def go_on(self) -> None:
        """Nothing is held any more."""
        self.leader.holds = lambda _: False
        self.group.run(1.0)

    def test_refused_frames_go_again_in_order(self) -> None:
        """When everything sent was refused, everything goes again, in order."""
        for _ in range(3):
            self.assertEqual(self.outcomes, [[], [], []])
            self.answer(0, ResponseCode.LEADER_PENDING_FULL)
        self.go_on()
        self.assertEqual(self.group.log, [b"a", b"b", b"c", b"d"])

    def test_nothing_is_sent_while_a_refusal_is_held(self) -> None:
        """A later append waits for the refused one."""
        self.answer(0, ResponseCode.LEADER_PENDING_FULL)
        self.submit(b"e")
        self.group.settle()
        self.assertEqual(len(self.leader.held), 2)
        self.answer(0, ResponseCode.LEADER_PENDING_FULL)
        self.answer(0, ResponseCode.LEADER_PENDING_FULL)
        self.go_on()
        self.assertEqual(self.group.log, [b"a", b"b", b"c", b"d", b"e"])

    def test_an_overtaken_frame_fails(self) -> None:
        """A refused one that a later one overtook fails; those after go again."""
        self.answer(0, ResponseCode.LEADER_PENDING_FULL)
        self.answer(0, None)
        (error,) = self.outcomes[0]
        assert isinstance(error, AppendFailed)
        self.assertIs(error.code, ResponseCode.LEADER_PENDING_FULL)
        self.assertIsInstance(self.outcomes[1][0], tuple)
        self.answer(0, ResponseCode.LEADER_PENDING_FULL)
        self.go_on()
        self.assertEqual(self.group.log, [b"a", b"c", b"d"])

    def test_a_frame_does_not_follow_an_unknown_one(self) -> None:
        """A later one of unknown outcome may be in the log: the refused one must not follow it."""
        self.answer(0, ResponseCode.LEADER_PENDING_FULL)
        self.answer(0, ResponseCode.WAIT_QUORUM_ACK_TIMEOUT)
        self.answer(0, ResponseCode.LEADER_PENDING_FULL)
        self.go_on()
        self.assertIsInstance(self.outcomes[0][0], AppendFailed)
        self.assertIsInstance(self.outcomes[1][0], UnknownOutcome)
        self.assertEqual(self.group.log, [b"a", b"d"])

    def test_answers_out_of_order(self) -> None:
        """A later refusal waits for the earlier ones, and goes again when they went through."""
        self.answer(2, ResponseCode.NOT_LEADER)
        self.answer(0, None)
        self.answer(0, None)
        self.go_on()
        self.assertEqual(self.group.log, [b"a", b"b", b"c", b"d"])

    def test_earlier_one_still_open(self) -> None:
        """A success overtakes only what was refused, not what has no answer yet."""
        self.answer(2, None)
        self.assertEqual(self.outcomes[:2], [[], []])
        self.answer(0, None)
        self.answer(0, None)
        self.assertEqual([type(outcome[0]) for outcome in self.outcomes], [tuple] * 3)

    def test_a_lost_connection_makes_frames_unknown(self) -> None:
        """Everything that was sent on a lost connection is unknown; what follows goes out again."""
        later = self.submit(b"e")
        self.leader.lose_connections()
        self.go_on()
        self.assertEqual([type(outcome[0]) for outcome in self.outcomes], [AppendTimeout] * 3)
        self.assertIsInstance(later[0], tuple)

    def test_refused_then_connection_lost(self) -> None:
        """The last one was refused before the connection went: it certainly may go again."""
        self.answer(2, ResponseCode.LEADER_PENDING_FULL)
        self.leader.lose_connections()
        self.go_on()
        self.assertTrue(unknown(self.outcomes[0][0]) and unknown(self.outcomes[1][0]))
        self.assertIsInstance(self.outcomes[2][0], tuple)
        self.assertEqual(self.group.log, [b"a", b"d"])

    def test_new_leader_only_after_the_old_one_has_answered(self) -> None:
        """Sent on two connections at once, they could change places."""
        self.answer(0, ResponseCode.NOT_LEADER)
        self.group.lead("n1")
        self.group.run(0.5)
        self.assertEqual(self.appends_at("n1"), [])
        self.answer(0, ResponseCode.NOT_LEADER)
        self.answer(0, ResponseCode.NOT_LEADER)
        self.go_on()
        self.assertEqual(self.group.log, [b"a", b"b", b"c", b"d"])


class AtOnceTests(GroupCase):
    """Appends that do not wait for the end of the turn."""

    def test_a_frame_is_sent_at_once(self) -> None:
        """A frame is sent before the call returns."""
        self.submit(b"a")
        self.submit(b"b")  # not a program that appends one after the other
        self.group.settle()
        (wire,) = self.group["n0"].wires
        self.submit(b"c")
        self.assertEqual(wire.outbox, b"")
        self.group.settle()
        self.submit(b"d")
        self.submit(b"e")
        self.group.settle()
        outcomes: list[AppendOutcome] = []
        self.client.submit_at_once((b"f",), outcomes.append)
        self.assertGreater(len(wire.outbox), 0)
        self.group.settle()
        self.assertEqual(self.appends_at("n0"), [(b"a", b"b"), (b"c",), (b"d",), (b"e",), (b"f",)])
        self.assertIsInstance(outcomes[0], tuple)


class ManyFramesTests(GroupCase):
    """One call in several frames, of which some fail."""

    options = {"limits": AppendLimits(frame_count_max=1, frames_in_flight_max=2)}

    def setUp(self) -> None:
        super().setUp()
        self.submit(b"a")
        self.group.settle()
        self.leader = self.group["n0"]
        self.leader.holds = is_append

    def test_the_rest_is_not_sent(self) -> None:
        """After a failed frame, what was not sent of the call never is; the error counts everything."""
        outcomes = self.submit(b"b", b"c", b"d", b"e")
        self.group.settle()
        self.leader.held.pop(0).send(AppendResponse(code=ResponseCode.DISK_FULL, group="default"))
        self.group.settle()
        self.leader.release()
        self.group.settle()
        (error,) = outcomes
        assert isinstance(error, AppendFailed)
        self.assertEqual([(run.index, run.offset) for run in error.appended], [(1, 1)])
        self.assertEqual((error.failed, error.unknown), (3, 0))
        self.assertEqual(self.group.log, [b"a", b"c"])
        self.assertEqual(self.client.pending_count, 0)

    def test_an_unknown_part_makes_the_call_unknown(self) -> None:
        """A call with a failed and an unknown part has an unknown outcome."""
        outcomes = self.submit(b"b", b"c")
        self.group.settle()
        self.leader.held.pop(0).send(AppendResponse(code=ResponseCode.DISK_FULL, group="default"))
        self.leader.lose_connections()
        self.group.settle()
        (error,) = outcomes
        assert isinstance(error, UnknownOutcome)
        self.assertEqual((error.failed, error.unknown), (1, 1))

    def test_put_back_in_the_middle(self) -> None:
        """A call half of which is committed is continued where it was refused."""
        outcomes = self.submit(b"b", b"c", b"d", b"e")
        self.submit(b"f")
        self.group.settle()
        self.leader.release()
        self.group.settle()  # c and d are under way now
        for _ in range(2):
            self.leader.held.pop(0).send(AppendResponse(code=ResponseCode.LEADER_NOT_READY, group="default"))
        self.leader.holds = lambda _: False
        self.group.run(0.5)
        self.assertEqual(self.group.log, [b"a", b"b", b"c", b"d", b"e", b"f"])
        self.assertEqual([run.offset for run in outcomes[0]], [0, 1, 2, 3])


class GeneratedTests(SynchronousTestCase):
    """Whatever the leader does: order, at most once, one outcome per call."""

    @settings(derandomize=True, max_examples=150, deadline=None)
    @given(
        calls=st.lists(st.integers(1, 4), min_size=1, max_size=12),
        limits=st.tuples(st.integers(1, 3), st.integers(1, 4)),
        plan=st.lists(
            st.sampled_from(["take", "refuse", "not-leader", "full", "unknown", "lose", "new-call", "late"]),
            max_size=40,
        ),
    )
    def test_leaders_keep_the_order(self, calls: list[int], limits: tuple[int, int], plan: list[str]) -> None:
        """The log holds a subsequence of the bodies; acknowledged ones are where they were said to be."""
        clock = Clock()
        group = FakeGroup(clock, count=1)
        client = group.client(
            limits=AppendLimits(frame_count_max=limits[0], frames_in_flight_max=limits[1])
        )
        leader = group["n0"]
        leader.holds = is_append
        outcomes: dict[int, list[AppendOutcome]] = {}
        sent: dict[int, list[bytes]] = {}
        left = list(calls)

        def call() -> None:
            if left:
                number = len(sent)
                sent[number] = [b"%d.%d" % (number, i) for i in range(left.pop())]
                outcomes[number] = []
                client.submit(sent[number], outcomes[number].append)

        for step in ["new-call", "new-call", *plan]:
            group.settle()
            if step == "new-call":
                call()
            elif step == "lose":
                leader.held.clear()
                leader.lose_connections()
            elif leader.held:
                answerer = leader.held.pop(-1 if step == "late" else 0)
                code = {
                    "refuse": ResponseCode.DISK_FULL,
                    "not-leader": ResponseCode.NOT_LEADER,
                    "full": ResponseCode.LEADER_PENDING_FULL,
                    "unknown": ResponseCode.WAIT_QUORUM_ACK_TIMEOUT,
                }.get(step)
                answer = (
                    leader.answer(answerer.request) if code is None
                    else AppendResponse(code=code, leader_id="n0", group="default")
                )
                answerer.send(answer)
            group.run(0.05)
        leader.holds = lambda _: False
        while left:
            call()
        while leader.held:
            leader.release()
        group.run(3.0)
        client.close()
        self._check(group.log, sent, outcomes, in_order="late" not in plan)

    def _check(
        self,
        log: list[bytes],
        sent: dict[int, list[bytes]],
        outcomes: dict[int, list[AppendOutcome]],
        in_order: bool,
    ) -> None:
        everything = [body for number in sorted(sent) for body in sent[number]]
        self.assertEqual(len(log), len(set(log)), "appended twice")
        if in_order:  # "late" is a leader that takes requests out of order itself
            self.assertEqual(log, [body for body in everything if body in set(log)], "out of order")
        for number, outcome in outcomes.items():
            (result,) = outcome
            runs = result.appended if isinstance(result, AppendError) else result
            acknowledged = 0
            for run in runs:
                bodies = sent[number][run.offset : run.offset + run.count]
                self.assertEqual(log[run.index : run.last_index + 1], bodies)
                acknowledged += run.count
            if isinstance(result, AppendError):
                self.assertEqual(acknowledged + result.failed + result.unknown, len(sent[number]))
                in_log = sum(body in log for body in sent[number])
                self.assertLessEqual(in_log, acknowledged + result.unknown, "a failed one is in the log")
            else:
                self.assertEqual(acknowledged, len(sent[number]))
