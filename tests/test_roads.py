# -*- test-case-name: tests.test_roads -*-
"""The roads of a call get no longer."""

from __future__ import annotations

import subprocess
import sys
from types import CodeType

from twisted.trial.unittest import SynchronousTestCase

from tests.roads import BASELINE, ROADS, Road, complaints, parsed, road_of
from tests.walks import ROOT, Calls


class RoadsTests(SynchronousTestCase):
    """Each road beside its line in tests/roads.txt."""

    def test_roads(self) -> None:
        """In a process of its own: what ran before leaves full caches, which shorten a road."""
        done = subprocess.run(
            [sys.executable, "-m", "tests.roads"], cwd=ROOT, capture_output=True, text=True, check=False,
            timeout=300,
        )
        self.assertEqual((done.returncode, done.stderr), (0, ""), done.stdout)
        self.assertGreaterEqual(done.stdout.count(" calls, "), 5)

    def test_all_are_written(self) -> None:
        """The file has these roads and no others."""
        self.assertEqual(list(parsed(BASELINE.read_text("utf-8"))), list(ROADS))

    def test_complaints(self) -> None:
        """A longer road is refused, a shorter one is to be written."""
        known = {"a": Road(10, 5, 3), "b": Road(10, 5, 3), "c": Road(10, 5, 3)}
        now = {"a": Road(10, 5, 3), "b": Road(11, 4, 3), "c": Road(9, 5, 3), "d": Road(1, 1, 1)}
        self.assertEqual(complaints(now, known), [
            "b is longer than before", "c is shorter: --write keeps that", "d is new: --write keeps it",
        ])


class CountTests(SynchronousTestCase):
    """What counts."""

    @staticmethod
    def code(path: str, name: str) -> CodeType:
        """The code of a function of this name in this file."""
        return road_of.__code__.replace(co_filename=f"{ROOT}/{path}", co_name=name)

    def test_counted(self) -> None:
        """Functions of the product up to the answer."""
        calls = Calls()
        one, other = self.code("dledger/a.py", "one"), self.code("protocols/b.py", "other")
        calls.codes = [
            one, other, one, self.code("dledger/testing/rig.py", "rig"),
            self.code("dledger/a.py", "<listcomp>"), self.code("dledger/c.py", "late"),
        ]
        self.assertEqual(road_of(calls), Road(4, 3, 3))
        calls.answered = 5
        self.assertEqual(road_of(calls), Road(3, 2, 2))

    def test_longer(self) -> None:
        """One of the three is enough."""
        road = Road(10, 5, 3)
        for longer in (Road(11, 5, 3), Road(9, 6, 3), Road(9, 5, 4)):
            self.assertTrue(longer.is_longer(road))
        self.assertFalse(Road(10, 5, 2).is_longer(road))

    def test_lines(self) -> None:
        """A line that is none is refused."""
        self.assertEqual(parsed("a b: 1 calls, 2 functions, 3 modules\n"), {"a b": Road(1, 2, 3)})
        for line in ("a b", "a: 1 calls", "a: x calls, 2 functions, 3 modules"):
            self.assertRaises(ValueError, parsed, line)
