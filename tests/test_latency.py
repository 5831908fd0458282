# -*- test-case-name: tests.test_latency -*-
"""How the moments of four processes become the parts of an append."""

from __future__ import annotations

import math

from twisted.trial.unittest import SynchronousTestCase

from benchmarks.latency import PARTS, Taken, parts_of, summary
from benchmarks.trace_points import READ, SEND, STORE, STORED, TracePoints

Moments = list[tuple[str, int]]


def at(*moments: tuple[str, int]) -> Moments:
    """Moments in microseconds."""
    return [(name, us * 1000) for name, us in moments]


def client(begin: int) -> Moments:
    """One append of 140 us."""
    return at(("call", begin), (SEND, begin + 10), (READ, begin + 130), ("reported", begin + 140))


def leader(begin: int) -> Moments:
    """Its way through the leader, with the answer of a second follower after it."""
    return at(
        (READ, begin + 20), (STORE, begin + 30), (STORED, begin + 35), (SEND, begin + 45), (SEND, begin + 47),
        (READ, begin + 100), (SEND, begin + 120), (READ, begin + 125),
    )


def follower(begin: int, late: int = 0) -> Moments:
    """Its way through a follower."""
    return at((READ, begin + 60 + late), (STORE, begin + 70 + late), (STORED, begin + 76 + late),
              (SEND, begin + 90 + late))


class PartsTests(SynchronousTestCase):
    """One append after the other."""

    #: The differences of the moments above.
    PARTS_US = [10.0, 10.0, 10.0, 5.0, 10.0, 15.0, 10.0, 6.0, 14.0, 10.0, 20.0, 10.0, 10.0]

    def test_parts(self) -> None:
        """Of each append, by the follower that answered first; they are as long as the whole."""
        begins = (0, 1000, 2000)
        rows = parts_of(
            [one for begin in begins for one in client(begin)],
            [one for begin in begins for one in leader(begin)],
            [[one for begin in begins for one in follower(begin, late=20)],
             [one for begin in begins for one in follower(begin)]],
        )
        self.assertEqual(rows, [self.PARTS_US] * 3)
        self.assertEqual(len(self.PARTS_US), len(PARTS))
        self.assertEqual(sum(self.PARTS_US), 140.0)

    def test_others_between(self) -> None:
        """Heartbeats and answers between appends are passed over."""
        noise = at((READ, 500), (SEND, 510))
        rows = parts_of(
            client(0) + client(1000), leader(0) + noise + leader(1000),
            [follower(0) + noise + follower(1000)],
        )
        self.assertEqual(rows, [self.PARTS_US] * 2)

    def test_missing(self) -> None:
        """An append of which a process has no moments is left out: its file begins later, say."""
        rows = parts_of(client(0) + client(1000), leader(0) + leader(1000), [follower(1000)])
        self.assertEqual(rows[-1:], [self.PARTS_US])
        self.assertEqual(parts_of(client(0), [], [follower(0)]), [])
        self.assertEqual(parts_of(client(0), leader(0), []), [])

    def test_summary(self) -> None:
        """Medians over the rounds, and how many times the least they are."""
        found = summary({
            "epoll relay": [Taken(whole=(50.0, 50.0, 90.0)), Taken(whole=(52.0, 52.0, 80.0))],
            "ours": [Taken(whole=(102.0,) * 3, parts=tuple((float(one),) for one in range(len(PARTS))))],
        })
        self.assertEqual(found["systems"]["epoll relay"]["p50_us"], 51.0)
        self.assertEqual(found["systems"]["epoll relay"]["p99_us"], 85.0)
        self.assertEqual(found["systems"]["ours"]["times_epoll"], 2.0)
        self.assertEqual(found["parts"][2], {"who": PARTS[2][0], "part": PARTS[2][1], "p50_us": 2.0})
        self.assertFalse(any(math.isnan(one["p50_us"]) for one in found["parts"]))


class PointsTests(SynchronousTestCase):
    """Points around methods."""

    def test_around(self) -> None:
        """A method works as before, and its begin and end are noted."""

        class Storing:
            def double(self, number: int) -> int:
                return 2 * number

        points = TracePoints()
        points.around(Storing, "double", before=STORE, after=STORED)
        self.assertEqual(Storing().double(4), 8)
        self.assertEqual([name for name, _ in points.moments], [STORE, STORED])
        self.assertTrue(points.moments[0][1] <= points.moments[1][1])

    def test_bounded(self) -> None:
        """Old moments go."""
        points = TracePoints()
        self.patch(TracePoints, "moments_max", 10)
        for _ in range(11):
            points.note(READ)
        self.assertEqual(len(points.moments), 6)
