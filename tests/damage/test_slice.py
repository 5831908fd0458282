# -*- test-case-name: tests.damage.test_slice -*-
"""A part of the damage cases, and the guards that they need; C{python -m tests.damage} runs them all."""

from __future__ import annotations

import contextlib
import importlib.util
import io
from typing import TYPE_CHECKING
from unittest import mock

from twisted.trial.unittest import SynchronousTestCase

HAS_SPARK = all(importlib.util.find_spec(name) is not None for name in ("pyspark", "pyarrow"))
if HAS_SPARK or TYPE_CHECKING:
    from dledger.testing.world.running import Effort
    from tests.damage import cases, readers
    from tests.damage.__main__ import play
    from tests.damage.cases import CHANGES, FILE_CHANGES, START, Bench, Case, all_cases, bench
    from tests.damage.directories import Area
    from tests.damage.readers import READINGS
    from tests.spark.ledgers import Row

CASES = 400


class SliceTests(SynchronousTestCase):
    """Every row, or an error that names a file."""

    bench: Bench
    if not HAS_SPARK:
        skip = "needs the extra spark: pip install '.[spark]'"

    def setUp(self) -> None:
        held = bench()
        self.bench = held.__enter__()
        self.addCleanup(held.__exit__, None, None, None)

    def test_slice(self) -> None:
        """Seeded cases of all classes."""
        problems = []
        for case in all_cases(self.bench.shapes, CASES, seed=20):
            problem = self.bench.run(case)
            if problem:
                problems.append(f"{case}: {problem}")
        self.assertEqual(problems, [], "\n" + "\n".join(problems))
        self.assertGreater(self.bench.seen["error"], CASES // 3)
        self.assertGreater(self.bench.seen["equal"], CASES // 10)

    def test_classes(self) -> None:
        """The table has every file role, both ends, every kind of damage and every way to read."""
        made = list(all_cases(self.bench.shapes, 30_000, seed=1))
        self.assertEqual({case.area.role for case in made},
                         {"data", "index", "checkpoint", "commitmark", "currterm", "identity", "groupstate"})
        self.assertEqual({case.change for case in made}, {*CHANGES, *FILE_CHANGES})
        self.assertEqual({case.reading for case in made}, {*READINGS, START})
        names = {case.area.name.partition(".")[0] for case in made}
        self.assertLessEqual({"first", "last", "first-file", "last-file", "behind", "slot-0"}, names)

    def test_a_case_alone(self) -> None:
        """A case that fails is named with the command that plays it once more, and only it."""
        wrong = list(all_cases(self.bench.shapes, 8, seed=3))[5]
        out = io.StringIO()
        with mock.patch.object(Bench, "run", lambda _bench, case: "made up" if case == wrong else ""):
            with contextlib.redirect_stdout(out):
                self.assertEqual(play(self.bench, first=1, count=8, seed=3, effort=Effort()), (7, 1))
                self.assertEqual(play(self.bench, first=6, count=1, seed=3, effort=Effort()), (0, 1))
        again = "again: python -m tests.damage --seed 3 --first 6 --cases 1"
        self.assertEqual(out.getvalue().count(f"{wrong}: made up\n{again}\n"), 2)

    def test_no_row_twice(self) -> None:
        """The judge itself: rows that are fewer, or others, are a problem."""
        (shape, *_) = self.bench.shapes
        area = Area(role="data", name="middle.magic", file=shape.areas[0].file, at=0, size=4)
        case = Case(shape=shape, area=area, change="zeros", is_whole=False, reading="fewer", start=False,
                    seed=1)
        for rows, words in ((shape.rows[:-1], "49 rows without an error, expected 50"),
                            (shape.rows[:1] + shape.rows, "51 rows without an error")):
            def read(path: str, out: str, start: object, rows: list[Row] = rows) -> list[Row]:
                return rows

            self.patch(readers, "READINGS", {"fewer": read})
            self.patch(cases, "READINGS", {"fewer": read})
            self.assertIn(words, self.bench.run(case))
