# -*- test-case-name: tests.sim.test_random_mutants -*-
"""Random mutants: which places there are, and that the command finds who notices."""

from __future__ import annotations

import subprocess
import sys

from twisted.trial.unittest import SynchronousTestCase

from tests.mutants.hunting import ROOT
from tests.mutants.random_run import equivalents, package_tests, schedules_of, tests_of
from tests.mutants.sites import ROOMS, compiles, drawn, sites_in

SOURCE = '''"""A module."""
LIMIT = 7

class Queue:
    """A docstring."""
    size: int = 3

    def take(self, count: int = 1) -> int:
        """Another."""
        assert count > 0
        if not self.items and count <= LIMIT:
            self.log.info("it is empty %d", 5)
            raise ValueError(count + 1)
        self.items[0] = self.join(count, self.rest)
        self.done.append(count)
        return min(count, 4)
'''


class SitesTests(SynchronousTestCase):
    """The places in a text."""

    def tearDown(self) -> None:
        """What dying processes of a schedule log is no failure of a test."""
        self.flushLoggedErrors()

    def test_kinds(self) -> None:
        """Each kind of change, in functions alone; neither assertions, errors nor log lines."""
        found = [(one.old, one.new) for one in sites_in("m", SOURCE)]
        self.assertEqual(found, [
            ("not self.items and count <= LIMIT", "(not self.items or count <= LIMIT)"),
            ("not self.items", "(self.items)"), ("count <= LIMIT", "(count < LIMIT)"),
            ("self.items[0] = self.join(count, self.rest)", "pass"), ("0", "1"),
            ("self.join(count, self.rest)", "self.join(self.rest, count)"),
            ("self.done.append(count)", "pass"), ("4", "5"), ("4", "3"),
        ])

    def test_ways(self) -> None:
        """A truth value, what leaves a loop or a function early, and an end before its time."""
        source = "def tick(self):\n    for one in self.all:\n        if one:\n            continue\n"
        source += "        self.step(one)\n    if self.ends:\n        return\n    self.step(True)\n"
        found = [(one.old, one.new) for one in sites_in("m", source)]
        self.assertEqual(found, [
            ("continue", "pass"), ("self.step(one)", "pass"), ("self.step(one)", "return"),
            ("return", "pass"), ("self.step(True)", "pass"), ("self.step(True)", "return"), ("True", "False"),
        ])

    def test_same_text(self) -> None:
        """Places of one function with the same text have keys of their own."""
        keys = [one.key for one in sites_in("m", "def take(self):\n    return self.all[0], self.old[0]\n")]
        self.assertEqual(keys, ["m:take: 0 -> 1", "m:take: 0 -> 1 (#2)"])

    def test_applied(self) -> None:
        """At that place alone, also after characters of several bytes."""
        source = SOURCE.replace("Another.", "\u00c4nderung.")
        splices = sites_in("m", source)
        for splice in splices:
            self.assertTrue(compiles(splice, source), splice.key)
        changed = splices[2].apply(source)
        self.assertEqual(changed, source.replace("count <= LIMIT", "(count < LIMIT)"))
        self.assertEqual(splices[2].key, "m:Queue.take: count <= LIMIT -> (count < LIMIT)")

    def test_rigs(self) -> None:
        """Modules of brokers are judged by whole pairs."""
        played = set()
        for module, rigs in (
            ("dledger.rocketmq.broker.consuming.popping.acks", ["run_pair_schedule"]),
            ("dledger.rocketmq.replication.acks", ["run_pair_schedule"]),
            ("dledger.raft_broker.marks", ["run_raft_schedule"]),
            ("dledger.core.replica", ["run_drawn_schedule"]),
        ):
            found = schedules_of(module)
            self.assertEqual([rig.__name__ for rig in found], rigs)
            for rig in found:
                if rig.__name__ not in played:
                    self.assertEqual(rig(7001).failure, "")  # of sound code
                    played.add(rig.__name__)

    def test_drawn(self) -> None:
        """The same seed draws the same ones; another one others."""
        first = drawn(ROOT, ("machine",), 5, 1)
        self.assertEqual(first, drawn(ROOT, ("machine",), 5, 1))
        self.assertNotEqual(first, drawn(ROOT, ("machine",), 5, 2))
        self.assertEqual(len({one.key for one in first}), 5)
        place = "dledger.machine.files.fetching:SnapshotFetch."
        within = drawn(ROOT, ("machine",), 3, 1, (place,))
        self.assertEqual([one.key.startswith(place) for one in within], [True] * 3)

    def test_rooms(self) -> None:
        """There are all of them, and modules name their tests."""
        for room in ROOMS:
            self.assertTrue((ROOT / "dledger" / room).is_dir(), room)
        self.assertEqual(tests_of("dledger.core.replication.flusher"), ["tests.core.test_flusher"])
        self.assertEqual(package_tests("dledger.core.replication.appends"), ["tests.core"])
        self.assertEqual(package_tests("dledger.rocketmq.replication.acks"), ["tests.broker.ha"])
        for splice in drawn(ROOT, ROOMS, 300, 1):
            for name in (*tests_of(splice.module), *package_tests(splice.module)):
                path = ROOT / name.replace(".", "/")
                self.assertTrue(path.is_dir() or path.with_suffix(".py").exists(), (splice.module, name))
        for key, reason in equivalents().items():
            self.assertTrue(" -> " in key and reason, key)


class RunTests(SynchronousTestCase):
    """The command."""

    def test_shown(self) -> None:
        """It says which are drawn."""
        command = [sys.executable, "-m", "tests.mutants.random_run", "--room", "machine", "--seed", "2"]
        command += ["--count", "1", "--show"]
        shown = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT)
        self.assertIn("dledger.machine.", shown.stdout)
