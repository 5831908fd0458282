# -*- test-case-name: tests.client.test_numbered_appends -*-
"""Many appends in one call with the program's own numbers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from twisted.internet.defer import Deferred

from dledger.client import lone_appends
from dledger.client.errors import AppendError, AppendFailed, AppendTimeout, OutOfSequence
from dledger.client.feed import feed_numbered
from dledger.client.values import Appended, AppendInterrupted
from protocols.wire.codes import ResponseCode
from protocols.wire.ledger.messages import AppendOnceRequest
from tests.client.test_producers import ClientCase

BODIES = [b"%d" % number for number in range(7)]


class ManyTests(ClientCase):
    """C{append_many(bodies, producer=..., sequence=...)}."""

    def append(self, bodies: Any, sequence: int, **options: Any) -> Deferred[tuple[Appended, ...]]:
        """Called, and settled."""
        appended = self.client.append_many(bodies, producer="p", sequence=sequence, **options)
        self.group.run(0.5)
        return appended

    def requests(self) -> list[tuple[int, int]]:
        """Sequence and number of bodies of each request that arrived."""
        return [(request.sequence, len(request.bodies)) for member in self.group.members.values()
                for request in member.received if isinstance(request, AppendOnceRequest)]

    def test_one_frame_has_one_run(self) -> None:
        """One request, one run; called again, the same places."""
        (run,) = self.successResultOf(self.append(BODIES, 0))
        self.assertEqual((run.index, run.count, run.offset), (1, 7, 0))
        self.assertEqual(self.successResultOf(self.append(BODIES, 0)), (run,))
        self.assertEqual(self.bodies(), BODIES)
        self.assertEqual(self.requests(), [(0, 7), (0, 7)])
        self.assertEqual(self.successResultOf(self.append([], 7)), ())

    def test_some_are_there(self) -> None:
        """Those that the log has are reported at their places, the others are appended."""
        self.successResultOf(self.append(BODIES[:3], 0))
        runs = self.successResultOf(self.append(BODIES, 0))
        self.assertEqual([(run.index, run.count, run.offset) for run in runs], [(1, 7, 0)])
        self.assertEqual(self.bodies(), BODIES)

    def test_frames_are_bounded(self) -> None:
        """Bounded in bodies and bytes; a remoting frame has one body."""
        self.patch(lone_appends, "FRAME_COUNT_MAX", 3)
        self.successResultOf(self.append(BODIES, 0))
        self.assertEqual(self.requests(), [(0, 3), (3, 3), (6, 1)])
        self.patch(lone_appends, "FRAME_BYTES_MAX", 2)
        self.assertEqual(lone_appends.frame_of([b"abc", b"d"], 0), (b"abc",))
        self.assertEqual(lone_appends.frame_of([b"a", b"b", b"c"], 0), (b"a", b"b"))
        self.client.close()
        self.client = self.group.client(wire="remoting")
        self.successResultOf(self.append([b"7", b"8"], 7))
        self.assertEqual(self.requests()[3:], [(7, 1), (8, 1)])
        self.assertEqual(self.bodies()[7:], [b"7", b"8"])

    def test_a_lost_answer_is_repeated(self) -> None:
        """Asked again: each body is there once."""
        self.patch(lone_appends, "FRAME_COUNT_MAX", 3)
        self.lose_answer()
        appended = self.append(BODIES, 0)
        self.group.run(3)
        self.assertEqual(sum(run.count for run in self.successResultOf(appended)), 7)
        self.assertEqual(self.bodies(), BODIES)

    def test_a_broken_call_counts_its_bodies(self) -> None:
        """The error counts: acknowledged, without an outcome, certainly not there."""
        self.patch(lone_appends, "FRAME_COUNT_MAX", 3)
        member = self.group["n0"]
        member.holds = lambda request: isinstance(request, AppendOnceRequest) and request.sequence >= 3
        appended = self.append(BODIES, 0)
        self.group.run(30)
        error = self.failureResultOf(appended, AppendError).value
        assert isinstance(error, AppendTimeout)
        self.assertEqual((error.unknown, error.failed, error.facts["acknowledged"]), (3, 1, 3))
        self.assertEqual([(run.index, run.count) for run in error.appended], [(1, 3)])

    def test_a_refused_number_appends_nothing(self) -> None:
        """A gap, a malformed body or number: nothing is in the log."""
        error = self.failureResultOf(self.append(BODIES, 5), AppendError).value
        assert isinstance(error, OutOfSequence)
        self.assertEqual((error.failed, error.unknown), (7, 0))
        for bodies, sequence in (([b"x", "y"], 0), ([b"x"], -1), ([b"x", b"y"], 2**62), ([b"x"], 2**63)):
            failure = self.failureResultOf(self.append(bodies, sequence), AppendFailed).value
            assert isinstance(failure, AppendFailed)
            self.assertIs(failure.code, ResponseCode.UNEXPECTED_ARGUMENT)
            self.assertEqual(failure.failed, len(bodies))
        self.assertEqual(self.group.log, [])


class FeedTests(ClientCase):
    """The same from an iterator, as programs without a reactor call it."""

    def feed(self, bodies: Any, window: int = 3, sequence: int | None = 0) -> Any:
        """Waiting is running the group."""
        def wait(story: Any) -> Any:
            outcome: list[Any] = []
            story().addBoth(outcome.append)
            self.group.run(20 if self.is_slow else 0.1)
            if not outcome:
                raise KeyboardInterrupt
            failure = outcome[0]
            return failure.raiseException() if hasattr(failure, "raiseException") else failure

        def append(part: list[bytes], *, sequence: int | None) -> Any:
            return self.client.append_many(part, producer="p", sequence=sequence)

        return feed_numbered(wait, append, bodies, window, self.reported.append, sequence)

    def setUp(self) -> None:
        super().setUp()
        self.reported: list[int] = []
        self.is_slow = False

    def test_a_feed_sends_parts(self) -> None:
        """As many at a time as the window has; the places are those of all of them."""
        summary = self.feed(iter(BODIES))
        self.assertEqual((summary.count, summary.first_index, self.reported), (7, 1, [3, 6, 7]))
        self.assertEqual([self.group.log[summary.index_of(at)] for at in range(7)], BODIES)
        self.assertEqual(self.feed([], sequence=7).count, 0)

    def test_a_broken_feed_names_its_places(self) -> None:
        """The error names all that was acknowledged before."""
        def source() -> Iterator[bytes]:
            yield from BODIES[:3]
            self.group["n0"].refusals.append(ResponseCode.DISK_FULL)
            self.group["n0"].holds = lambda request: isinstance(request, AppendOnceRequest)
            yield from BODIES[3:]

        self.is_slow = True
        error = self.assertRaises(AppendTimeout, self.feed, source())
        self.assertEqual((error.facts["acknowledged"], error.unknown), (3, 3))
        self.assertEqual([(run.offset, run.count) for run in error.appended], [(0, 3)])

    def test_all_are_counted(self) -> None:
        """Of a list those that were not sent, too; of an iterator nobody knows how many would have come."""
        class Source(list[bytes]):
            """The leader does not answer for its fourth body, and later ones."""

            def __iter__(case_bodies) -> Iterator[bytes]:  # noqa: N805
                for at, body in enumerate(list.__iter__(case_bodies)):
                    if at == 3:
                        self.group["n0"].holds = lambda request: isinstance(request, AppendOnceRequest)
                    yield body

        self.is_slow = True
        error = self.assertRaises(AppendTimeout, self.feed, Source(BODIES))
        self.assertEqual((error.facts["acknowledged"], error.unknown, error.failed), (3, 3, 1))

    def test_an_interrupted_feed_says_what_is_known(self) -> None:
        """Ctrl-C says what is known."""
        self.group["n0"].holds = lambda request: isinstance(request, AppendOnceRequest)
        interrupted = self.assertRaises(AppendInterrupted, self.feed, BODIES)
        self.assertEqual((interrupted.acknowledged, interrupted.unknown), (0, 3))

    def test_a_producer_needs_a_sequence(self) -> None:
        """A producer alone is refused, also without bodies."""
        self.assertRaises(TypeError, self.feed, [], sequence=None)
