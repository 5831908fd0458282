# -*- test-case-name: tests.runner.test_stages -*-
"""The stages of this project."""

from __future__ import annotations

from pathlib import Path

from twisted.trial.unittest import SynchronousTestCase

from tests.runner import stages
from tests.runner.stages import all_stages, quick_stages


class StagesTests(SynchronousTestCase):
    """The stages of C{make test} and C{make test-all}."""

    def test_promise(self) -> None:
        """The budgets of C{make test} add up to what is promised."""
        budgets = [each.budget_s for each in quick_stages() if not each.joins]
        self.assertLessEqual(sum(budgets), stages.PROMISE_S)

    def test_every_kind(self) -> None:
        """C{make test} has every stage but those of the browser and of prices, in the same order."""
        quick = [each.name for each in quick_stages()]
        every = [each.name for each in all_stages()]
        self.assertEqual([name for name in every if name not in ("browser", "prices")], quick)

    def test_every_test_package_has_a_stage(self) -> None:
        """Every package in C{tests/} is a unit test or has its own stage in C{make test-all}."""
        commands = " ".join(" ".join(each.command) for each in all_stages())
        for path in sorted((stages.ROOT / "tests").iterdir()):
            if path.name in stages.SEPARATE:
                self.assertTrue(
                    f"tests.{path.name}" in commands or f"tests.lanes {path.name}" in commands, path.name
                )

    def test_some_suites(self) -> None:
        """Some unit tests run as one program instead of all."""
        (unit,) = [each for each in quick_stages(["tests.core"]) if each.name == "unit"]
        self.assertEqual(unit.command, (*stages.TRIAL, "tests.core"))

    def test_unit_suites_are_found(self) -> None:
        """A new module or package is found without a change; the separate ones are not among them."""
        root = Path(self.mktemp())
        for name in ("core", "interop", "scenarios", "mutants"):
            (root / "tests" / name).mkdir(parents=True)
        for name in ("core/__init__.py", "core/test_x.py", "interop/__init__.py", "interop/test_y.py",
                     "mutants/__init__.py", "test_tidy.py", "helper.py"):
            (root / "tests" / name).touch()
        self.assertEqual(stages.unit_suites(root), ["tests.core", "tests.test_tidy"])
