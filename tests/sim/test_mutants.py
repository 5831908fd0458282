# -*- test-case-name: tests.sim.test_mutants -*-
"""The catalogue of mutants is up to date, and its machinery notices when it is not."""

from __future__ import annotations

import re
import subprocess
import sys

from twisted.trial.unittest import SynchronousTestCase

from dledger.testing.group.clients import Load
from dledger.testing.group.members.cluster import GroupOptions
from dledger.testing.group.schedule import Focus
from dledger.testing.search.group import Bounds
from tests.mutants import patching
from tests.mutants.catalogue import MUTANTS
from tests.mutants.history_catalogue import HISTORY_MUTANTS
from tests.mutants.hunting import ROOT
from tests.mutants.patching import Patch, PatternNotFound


class CatalogueTests(SynchronousTestCase):
    """Every mutant can be made."""

    def test_patterns_are_found(self) -> None:
        """The text that each one changes is at its place, once, and the result compiles."""
        for mutant in MUTANTS:
            patching.check(mutant.patches)

    def test_names(self) -> None:
        """Names are unique, and there are at least twenty."""
        names = [mutant.name for mutant in MUTANTS]
        self.assertEqual(len(set(names)), len(names))
        self.assertGreaterEqual(len(names), 20)

    def test_page(self) -> None:
        """docs/trust.md says how many there are."""
        page = (ROOT / "docs" / "trust.md").read_text("utf-8")
        self.assertIn(f"`python -m tests.mutants`: {len(MUTANTS)} mutants", page)

    def test_focus(self) -> None:
        """Each one's focus names fields that there are."""
        for mutant in MUTANTS:
            focus = Focus(settings=mutant.settings, load=mutant.load, group=mutant.group)
            focus.narrow(GroupOptions(), Load())


class HistoryTests(SynchronousTestCase):
    """docs/history.md names what there is."""

    def test_commands(self) -> None:
        """Every command is a mutant, and every mutant that bears an issue's number is in the table."""
        rows = [line for line in (ROOT / "docs" / "history.md").read_text().splitlines()
                if line.startswith(("| [", "| PySync"))]
        named = {name for row in rows for name in re.findall("`([^`]+)`", row.split("|")[4])}
        self.assertEqual(named - {mutant.name for mutant in MUTANTS}, set())
        self.assertEqual({row[0] for row in HISTORY_MUTANTS} - named, set())
        self.assertEqual(len(rows), 15)

    def test_scenarios(self) -> None:
        """The scenarios are there, and the bounds are bounds."""
        for mutant in MUTANTS:
            if mutant.script:
                self.assertTrue((ROOT / "tests" / "scenarios" / f"{mutant.script}.txt").exists(), mutant.name)
            if mutant.search is not None:
                Bounds(**mutant.search)  # type: ignore[arg-type]


class PatchTests(SynchronousTestCase):
    """Patches fit or fail."""

    def test_apply(self) -> None:
        """The text is replaced."""
        self.assertEqual(Patch("m", "b", "X").apply("abc"), "aXc")

    def test_not_there(self) -> None:
        """A text that is gone, or not unique any more, is an error."""
        self.assertRaises(PatternNotFound, Patch("m", "z", "X").apply, "abc")
        self.assertRaises(PatternNotFound, Patch("m", "b", "X").apply, "abcb")


class RunTests(SynchronousTestCase):
    """The command, on the quickest of mutants."""

    def command(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run it."""
        command = [sys.executable, "-m", "tests.mutants", "--jobs", "1", *arguments]
        return subprocess.run(command, capture_output=True, text=True, timeout=100, check=False, cwd=ROOT)

    def test_noticed(self) -> None:
        """A mutant that is noticed is good; the same schedules on the sound system find nothing."""
        done = self.command("--only", "persist-skipped", "--seconds", "30")
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertIn("1 mutants, 1 noticed, 0 not", done.stdout)
        done = self.command("--only", "persist-skipped", "--seconds", "1", "--sound")
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)

    def test_unknown(self) -> None:
        """A name that there is not is refused."""
        self.assertEqual(self.command("--only", "nonsense").returncode, 2)
