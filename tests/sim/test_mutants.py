# -*- test-case-name: tests.sim.test_mutants -*-
"""The catalogue of mutants is up to date, and its machinery notices when it is not."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import attrs
from twisted.python.reflect import namedAny
from twisted.trial.unittest import SynchronousTestCase

from dledger.testing.group.clients import Load
from dledger.testing.group.members.cluster import GroupOptions
from dledger.testing.group.schedule import Focus
from dledger.testing.search.group import Bounds
from tests.mutants import patching
from tests.mutants.catalogue import MUTANTS, Mutant
from tests.mutants.history_catalogue import HISTORY_MUTANTS
from tests.mutants.hunting import NOTICED, OUT_OF_DATE, ROOT, SURVIVED, Hunt
from tests.mutants.judging import Play, Verdict
from tests.mutants.patching import Patch, PatternNotFound
from tests.mutants.pins import Pin, read_pins, write_pins
from tests.mutants.renewing import PIN_S, Finder


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
        """Every command is a mutant, and every mutant that bears an issue's number is in the list."""
        text = (ROOT / "docs" / "history.md").read_text()
        rows = re.findall(r"^\* (?:.+\n)(?:  .+\n)*", text, re.MULTILINE)
        ends = [re.search(r"\(([^()]+)\)\n$", row) for row in rows]
        named = {name for end in ends if end for name in re.findall(r"`([^`]+)`", end[1])}
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


class PinTests(SynchronousTestCase):
    """The file of pins."""

    def test_every_mutant(self) -> None:
        """It has each mutant that names nothing itself, pinned or not, and no other one."""
        self.assertEqual(set(read_pins()), {mutant.name for mutant in MUTANTS if not mutant.is_certain})

    def test_tests_are_there(self) -> None:
        """The tests that pins and mutants name can be found: one that cannot would notice everything."""
        named = {pin.what for pin in read_pins().values() if pin is not None and not pin.what.isdecimal()}
        for name in sorted(named | {mutant.test for mutant in MUTANTS if mutant.test}):
            namedAny(name)

    def test_seconds(self) -> None:
        """Each takes a moment."""
        self.assertEqual({name for name, pin in read_pins().items() if pin and pin.seconds > PIN_S}, set())

    def test_written(self) -> None:
        """A file that was written is read again, in the order of the names."""
        path = Path(self.mktemp())
        self.assertEqual(read_pins(path), {})
        pins = {"b": Pin("tests.x.Tests.test_y", 0.5), "a": Pin("17", 1.2), "c": None}
        write_pins(pins, path)
        self.assertEqual(read_pins(path), pins)
        lines = path.read_text().splitlines()[-3:]
        self.assertEqual(lines, ["a 17 1.2", "b tests.x.Tests.test_y 0.5", "c -"])


@attrs.define
class Hunts:
    """
    Hunts that end as the table says.

    @ivar seconds: of each schedule and test that notices, by its pin; a search takes a second for each seed.
    """

    seconds: dict[str, float]
    made: list[Hunt] = attrs.Factory(list)
    status: int = NOTICED

    def __call__(self, mutant: Mutant, how: Hunt) -> Verdict:
        self.made.append(how)
        if how.pin:
            seen = how.pin if how.pin in self.seconds else ""
            spent = self.seconds.get(how.pin, 1.0)
        else:
            last = how.first_seed + int(how.seconds)
            seen = next((str(seed) for seed in range(how.first_seed, last) if str(seed) in self.seconds), "")
            spent = float(int(seen) - how.first_seed + 1 if seen else how.seconds)
        reported = f"schedule {seen}: wrong" if seen.isdecimal() else f"{seen}: wrong"
        return Verdict(mutant.name, self.status if seen else SURVIVED, spent, reported if seen
                       else "survived")


SINGLE = Mutant("single", "one patch", (Patch("dledger.core.election.voter", "a", "b"),))
DOUBLE = Mutant("double", "two patches", (*SINGLE.patches, Patch("dledger.core.election.elector", "a", "b")))
UNIT = "tests.core.test_elector"


class PlayTests(SynchronousTestCase):
    """Pins are certain, and other schedules are luck."""

    def played(self, hunts: Hunts, pin: Pin | None, **options: bool) -> str:
        """The word for a mutant; empty: it was not played."""
        judged = Play(seconds=20.0, hunt=hunts, **options).judge(SINGLE, pin)
        return "" if judged is None else judged[0]

    def test_pinned(self) -> None:
        """A pin is the only schedule; a mutant that survives it has failed, and one without is left out."""
        hunts = Hunts({"7": 1.0})
        self.assertEqual(self.played(hunts, Pin("7", 1.0), is_pinned=True), "noticed")
        self.assertEqual(self.played(hunts, Pin("8", 1.0), is_pinned=True), "FAILED")
        self.assertEqual(self.played(hunts, None, is_pinned=True), "")
        self.assertEqual([how.pin for how in hunts.made], ["7", "8"])

    def test_searched(self) -> None:
        """After the pin come schedules that no pin was chosen from; then surviving is no failure."""
        hunts = Hunts({"7": 1.0})
        self.assertEqual(self.played(hunts, Pin("7", 1.0)), "survived")
        self.assertEqual([(how.pin, how.first_seed) for how in hunts.made], [("7", 1), ("", 1001)])
        self.assertEqual(self.played(Hunts({"7": 1.0, "1003": 1.0}), Pin("7", 1.0)), "noticed")
        self.assertEqual(self.played(Hunts({"1003": 1.0}), Pin("7", 1.0)), "FAILED")
        self.assertEqual(self.played(Hunts({}), None), "survived")

    def test_sound(self) -> None:
        """On the unbroken system nothing may be noticed."""
        self.assertEqual(self.played(Hunts({}), Pin("7", 1.0), is_pinned=True, sound=True), "passed")
        self.assertEqual(self.played(Hunts({"7": 1.0}), Pin("7", 1.0), is_pinned=True, sound=True), "FAILED")

    def test_named(self) -> None:
        """What a mutant names is as certain as a pin."""
        judged = Play(hunt=Hunts({})).judge(attrs.evolve(SINGLE, test=UNIT), None)
        self.assertEqual(judged and judged[0], "FAILED")

    def test_out_of_date(self) -> None:
        """A mutant whose text is gone has failed by that."""
        hunts = Hunts({"7": 1.0}, status=OUT_OF_DATE)
        self.assertEqual(self.played(hunts, Pin("7", 1.0)), "OUT OF DATE")


class FinderTests(SynchronousTestCase):
    """A pin is quick, and holds after most changes."""

    def found(self, seconds: dict[str, float], mutant: Mutant = SINGLE) -> str:
        """The pin."""
        pin = Finder(hunt=Hunts(seconds)).find(mutant)
        return "" if pin is None else pin.what

    def test_quick_schedule(self) -> None:
        """The first quick schedule is taken, or the quickest of three; a slow one is none."""
        self.assertEqual(self.found({"2": 3.0, "3": 1.0, "4": 0.5}), "3")
        self.assertEqual(self.found({"2": 3.0, "3": 2.0, "4": 4.0, "5": 0.5}), "3")
        self.assertEqual(self.found({"2": PIN_S + 1}), "")

    def test_rare_schedule(self) -> None:
        """A test is better than a schedule that takes long to find, which is better than nothing."""
        self.assertEqual(self.found({"30": 1.0, UNIT: 1.0}), UNIT)
        self.assertEqual(self.found({"30": 1.0}), "30")
        self.assertEqual(self.found({"70": 1.0}), "")

    def test_two_patches(self) -> None:
        """A test may notice one of two patches alone, so any schedule is better."""
        self.assertEqual(self.found({"30": 1.0, UNIT: 1.0}, DOUBLE), "30")
        self.assertEqual(self.found({UNIT: 1.0}, DOUBLE), UNIT)


class RunTests(SynchronousTestCase):
    """The command, on the quickest of mutants."""

    def command(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run it."""
        command = [sys.executable, "-m", "tests.mutants", "--jobs", "1", *arguments]
        return subprocess.run(command, capture_output=True, text=True, timeout=100, check=False, cwd=ROOT)

    def test_noticed(self) -> None:
        """A mutant that is noticed is good; the same schedule on the sound system finds nothing."""
        done = self.command("--only", "persist-skipped", "--pinned", "--within", "5", "--drawn", "1")
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertIn("--drawn 1", done.stdout)
        self.assertIn("1 mutants, 1 noticed, 0 failed, 0 survived", done.stdout)
        done = self.command("--only", "persist-skipped", "--pinned", "--sound")
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertIn("1 mutants, 1 passed, 0 failed, 0 survived", done.stdout)

    def test_unknown(self) -> None:
        """A name that there is not is refused."""
        self.assertEqual(self.command("--only", "nonsense").returncode, 2)
