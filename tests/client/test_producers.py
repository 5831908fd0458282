# -*- test-case-name: tests.client.test_producers -*-
"""Appends that are in the log once: with sequences of the program's own, and numbered by the client."""

from __future__ import annotations

import random
from typing import Any

from twisted.internet.defer import Deferred
from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from dledger.client.connect_options import AppendLimits
from dledger.client.errors import (
    AppendError,
    AppendFailed,
    AppendTimeout,
    OutOfSequence,
    SequenceForgotten,
    SequenceTaken,
    UnknownOutcome,
)
from dledger.client.values import Appended
from protocols.wire.codes import ResponseCode
from protocols.wire.ledger.messages import AppendOnceRequest, Request
from tests.client.fakes import FakeGroup


class ClientCase(SynchronousTestCase):
    """Three members and a client."""

    options: dict[str, Any] = {}

    def setUp(self) -> None:
        self.clock = Clock()
        self.group = FakeGroup(self.clock)
        self.client = self.group.client(**self.options)

    def tearDown(self) -> None:
        self.client.close()
        self.group.settle()

    def bodies(self) -> list[bytes]:
        """Of the log, without producer entries."""
        return [body for body in self.group.log if not body.startswith(b"SESS")]

    def lose_answer(self, member_id: str = "n0", count: int = 1) -> None:
        """The next appends are done, and the connection goes before their answer."""
        member, left = self.group[member_id], [count]
        answer = member.answer

        def lost(request: Request) -> Any:
            reported = answer(request)
            if isinstance(request, AppendOnceRequest) and left[0]:
                left[0] -= 1
                self.clock.callLater(0, member.lose_connections)
                member.is_silent = True
                self.clock.callLater(0, setattr, member, "is_silent", False)
                for wire in member.wires:
                    wire.lose()
            return reported

        member.answer = lost  # type: ignore[method-assign]


class SequenceTests(ClientCase):
    """C{append(body, producer=..., sequence=...)}."""

    def append(self, sequence: int, body: bytes = b"x", producer: str = "p") -> Deferred[Appended]:
        """Called, and settled."""
        appended = self.client.append(body, producer=producer, sequence=sequence)
        self.group.settle()
        return appended

    def failed(self, appended: Deferred[Appended], kind: type[AppendError]) -> AppendError:
        """How it failed."""
        error = self.failureResultOf(appended, AppendError).value
        assert isinstance(error, AppendError)
        self.assertIs(type(error), kind)
        return error

    def test_taken_and_repeated(self) -> None:
        """The second call gets the first entry."""
        first = self.successResultOf(self.append(0))
        self.assertEqual((first.index, first.count), (1, 1))
        self.assertEqual(self.successResultOf(self.append(1, b"y")).index, 2)
        self.assertEqual(self.successResultOf(self.append(0)).index, 1)
        self.assertEqual(self.bodies(), [b"x", b"y"])

    def test_another_body_is_refused(self) -> None:
        """A sequence that another body has is refused, with the index of that one."""
        self.successResultOf(self.append(0))
        error = self.failed(self.append(0, b"z"), SequenceTaken)
        assert isinstance(error, SequenceTaken)
        self.assertEqual((error.index, error.failed, error.unknown), (1, 1, 0))
        self.assertEqual(self.bodies(), [b"x"])

    def test_out_of_sequence(self) -> None:
        """Reported with the last one."""
        self.successResultOf(self.append(0))
        error = self.failed(self.append(2), OutOfSequence)
        assert isinstance(error, OutOfSequence)
        self.assertEqual((error.last_sequence, error.code), (0, ResponseCode.SEQUENCE_GAP))
        error = self.failed(self.append(7, producer="q"), OutOfSequence)
        assert isinstance(error, OutOfSequence)
        self.assertEqual((error.last_sequence, error.code), (-1, ResponseCode.UNKNOWN_PRODUCER))
        self.assertEqual(self.bodies(), [b"x"])

    def test_answer_is_lost(self) -> None:
        """Asked again: the entry is there, once."""
        self.lose_answer(count=3)
        appended = self.append(0)
        self.group.run(4.0)
        self.assertEqual(self.successResultOf(appended).index, 1)
        self.assertEqual(self.bodies(), [b"x"])

    def test_the_next_leader_knows_sequences(self) -> None:
        """The next leader knows."""
        self.lose_answer()
        appended = self.append(0)
        self.group.lead("n2")
        self.group.run(4.0)
        self.assertEqual(self.successResultOf(appended).index, 1)
        self.assertEqual(self.bodies(), [b"x"])

    def test_unknown_in_the_end(self) -> None:
        """Once it may be in the log, no later refusal makes it certain that it is not."""
        self.lose_answer()
        appended = self.append(0)
        for member in self.group.members.values():
            member.is_up = False
            member.lose_connections()
        self.group.run(30.0)
        self.assertEqual(self.failed(appended, UnknownOutcome).unknown, 1)

    def test_a_forgotten_sequence_is_unknown(self) -> None:
        """It is in the log, but nobody knows where: unknown, reported at once."""
        self.group["n0"].refusals.append(ResponseCode.SEQUENCE_FORGOTTEN)
        error = self.failed(self.append(0), SequenceForgotten)
        self.assertIs(error.code, ResponseCode.SEQUENCE_FORGOTTEN)

    def test_going_on_after_forgotten_sequences(self) -> None:
        """The error of many appends names the last sequence, after which they go on."""
        rows = [b"%d" % number for number in range(24)]
        for sequence in range(20):
            for appended in (self.append(sequence), self.client.append(b"between")):
                self.group.run(1.0)
                self.successResultOf(appended)

        def append(first: int) -> Any:
            appended = self.client.append_many(rows[first:], producer="p", sequence=first)
            self.group.run(1.0)
            return appended

        error = self.failed(append(0), SequenceForgotten)
        self.assertEqual((error.unknown, error.last_sequence), (24, 19))
        self.assertEqual(sum(run.count for run in self.successResultOf(append(20))), 4)

    def test_bad_calls_are_refused_here(self) -> None:
        """Refused here, with what is allowed."""
        self.assertIn("sequence=-1", str(self.failed(self.append(-1), AppendFailed)))
        self.assertIn("1 to 64", str(self.failed(self.append(0, producer=""), AppendFailed)))
        self.assertIn("65 bytes", str(self.failed(self.append(0, producer="p" * 65), AppendFailed)))
        both = {"producer": "p", "sequence": 0, "expected_end": 1}
        for wrong in ({"producer": "p"}, {"sequence": 0}, both):
            arguments: dict[str, Any] = wrong
            self.assertRaises(TypeError, self.client.append, b"x", **arguments)

    def test_a_java_leader_is_not_asked(self) -> None:
        """A Java member is not asked."""
        self.group = FakeGroup(self.clock)
        for member in self.group.members.values():
            member.wire_version = 0
        self.client = self.group.client()
        self.assertIs(self.failed(self.append(0), AppendFailed).code, ResponseCode.UNSUPPORTED)
        self.assertEqual(self.group.log, [])

    def test_a_silent_group_times_out(self) -> None:
        """Until the time is over."""
        self.group["n0"].holds = lambda request: isinstance(request, AppendOnceRequest)
        appended = self.append(0)
        self.group.run(30.0)
        self.failed(appended, AppendTimeout)


class NumberedTests(ClientCase):
    """C{exactly_once=True}."""

    options = {"exactly_once": True}

    def sent(self) -> list[tuple[str, int, int]]:
        """Producer, sequence and number of bodies of each frame that the members got."""
        return [
            (one.producer, one.sequence, len(one.bodies)) for member in self.group.members.values()
            for one in member.received if isinstance(one, AppendOnceRequest)
        ]

    def test_bodies_are_numbered_in_order(self) -> None:
        """Bodies are numbered in order, across calls."""
        for count in (3, 1, 2):
            appended = self.client.append_many([b"%d" % count] * count)
            self.group.settle()
            self.successResultOf(appended)
        producers, sequences, counts = zip(*self.sent(), strict=True)
        self.assertEqual((len(set(producers)), sequences, counts), (1, (0, 3, 4), (3, 1, 2)))
        self.assertEqual(len(self.bodies()), 6)

    def test_lost_answers_repeat_nothing(self) -> None:
        """No outcome stays unknown, and nothing is in the log twice."""
        self.lose_answer(count=2)
        appended = [self.client.append(b"%d" % at) for at in range(20)]
        self.group.run(8.0)
        found = [self.successResultOf(one) for one in appended]
        self.assertEqual([self.group.log[one.index] for one in found], [b"%d" % at for at in range(20)])
        self.assertEqual(self.bodies(), [b"%d" % at for at in range(20)])

    def test_part_is_there(self) -> None:
        """The log has the first bodies of a frame: those are reported, the rest is appended."""
        self.successResultOf(self.append_settled([b"a", b"b"]))
        (producer, _, _), = self.sent()
        self.group.fold.cut(0)
        self.group.log.clear()
        self.group["n0"].append_once(AppendOnceRequest(producer=producer, bodies=(b"a", b"b", b"c")), {})
        found = self.successResultOf(self.append_settled([b"c", b"d", b"e"], seconds=2.0))
        self.assertEqual(self.bodies(), [b"a", b"b", b"c", b"d", b"e"])
        self.assertEqual([(run.index, run.count, run.offset) for run in found], [(3, 1, 0), (4, 2, 1)])

    def append_settled(self, bodies: list[bytes], seconds: float = 0.0) -> Deferred[tuple[Appended, ...]]:
        """Called, and given its time."""
        appended = self.client.append_many(bodies)
        self.group.settle()
        self.group.run(seconds)
        return appended

    def test_a_forgetful_log_gets_a_new_producer(self) -> None:
        """A log that has lost the producer gets a new one, for bodies that are certainly not in it."""
        self.successResultOf(self.append_settled([b"a"]))
        self.group.fold.cut(0)
        self.group.log.clear()
        self.successResultOf(self.append_settled([b"b"], seconds=2.0))
        self.assertEqual(self.bodies(), [b"b"])
        self.assertEqual(len({producer for producer, _, _ in self.sent()}), 2)

    def test_a_given_up_body_begins_anew(self) -> None:
        """After a body that is given up a new producer begins: its number may stay free."""
        self.group["n0"].refusals.append(ResponseCode.DISK_FULL)
        first = self.client.append(b"a")
        self.group.settle()
        self.failureResultOf(first, AppendFailed)
        self.successResultOf(self.append_settled([b"b"]))
        (one, zero, _), (other, again, _) = self.sent()
        self.assertNotEqual(one, other)
        self.assertEqual((zero, again, self.bodies()), (0, 0, [b"b"]))

    def test_calls_share_frames(self) -> None:
        """Calls of one turn are one frame, with numbers, too."""
        appended = [self.client.append(b"%d" % at) for at in range(5)]
        self.group.settle()
        self.assertEqual([self.successResultOf(one).index for one in appended], [1, 2, 3, 4, 5])
        self.assertEqual([count for _, _, count in self.sent()], [5])

    def test_what_may_be_there_is_not_renumbered(self) -> None:
        """A body that may be in the log gets no new number when the one before it is given up."""
        self.client.close()
        self.client = self.group.client(exactly_once=True, limits=AppendLimits(frame_count_max=1))
        self.successResultOf(self.append_settled([b"a"]))
        self.lose_answer()
        appended = [self.client.append(body) for body in (b"b", b"c")]
        self.group.settle()
        for member in self.group.members.values():
            member.wire_version = 0  # the leader is a Java member now
        self.group.run(8.0)
        first, second = (self.failureResultOf(one, UnknownOutcome).value for one in appended)
        self.assertEqual((first.unknown, second.unknown, first.code), (1, 1, ResponseCode.UNSUPPORTED))
        self.assertIn("an earlier append of this client was given up", str(second))
        self.assertEqual({producer for producer, _, _ in self.sent()}, {self.sent()[0][0]})

    def test_a_java_leader_is_refused(self) -> None:
        """Refused, not appended without numbers."""
        for member in self.group.members.values():
            member.wire_version = 0
        error = self.failureResultOf(self.append_settled([b"a"]), AppendFailed).value
        assert isinstance(error, AppendFailed)
        self.assertIs(error.code, ResponseCode.UNSUPPORTED)
        self.assertEqual(self.group.log, [])

    def test_random_failures_keep_the_order(self) -> None:
        """Leaders that move, answers that are lost, refusals: the entries are reported once, in order."""
        for seed in range(40):
            rng = random.Random(seed)
            self.group = FakeGroup(self.clock)
            self.client = self.group.client(exactly_once=True, timeout_s=rng.choice((3.0, 30.0)))
            calls: list[tuple[list[bytes], Deferred[Any]]] = []
            for step in range(30):
                bodies = [b"%d.%d" % (step, at) for at in range(rng.choice((1, 1, 3, 600)))]
                calls.append((bodies, self.client.append_many(bodies)))
                kind = rng.randrange(7)
                leader = next(m for m in self.group.members.values() if m.leader_id == m.member_id)
                if kind == 0:
                    self.group.lead(rng.choice(sorted(self.group.members)))
                elif kind == 1:
                    self.lose_answer(leader.member_id)
                elif kind == 2:
                    leader.refusals.extend([rng.choice((
                        ResponseCode.LEADER_NOT_READY, ResponseCode.LEADER_PENDING_FULL,
                        ResponseCode.TERM_CHANGED, ResponseCode.WAIT_QUORUM_ACK_TIMEOUT,
                        ResponseCode.DISK_FULL,
                    ))] * rng.randrange(3))
                elif kind == 3:
                    leader.lose_connections()
                self.group.run(rng.choice((0.0, 0.0, 0.05, 0.5)))
            self.group.run(40.0)
            log = self.bodies()
            self.assertEqual(len(log), len(set(log)), f"seed {seed}")
            place = {body: index for index, body in enumerate(self.group.log)}
            for bodies, call in calls:
                outcome = self.successResultOf(call.addErrback(lambda failure: failure.value))
                runs = outcome.appended if isinstance(outcome, AppendError) else outcome
                reported = {bodies[run.offset + at]: run.index + at for run in runs
                            for at in range(run.count)}
                for body, index in reported.items():
                    self.assertEqual(place[body], index, f"seed {seed}")
                if isinstance(outcome, AppendError):
                    there = sum(body in place for body in bodies)
                    self.assertTrue(len(reported) <= there <= len(reported) + outcome.unknown, f"seed {seed}")
                    counted = len(reported) + outcome.failed + outcome.unknown
                    self.assertEqual(counted, len(bodies), f"seed {seed}")
                else:
                    self.assertEqual(len(reported), len(bodies), f"seed {seed}")
            self.client.close()
            self.group.settle()
