# -*- test-case-name: tests.sim.test_schedule -*-
"""Whole schedules: they pass, they repeat, and what is wrong comes out."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from unittest import mock

from twisted.trial.unittest import SynchronousTestCase

from dledger.core.replication.handler import EntryHandler
from dledger.testing.group.checks.require import InvariantError
from dledger.testing.group.clients import Load
from dledger.testing.group.members.cluster import GroupOptions
from dledger.testing.group.schedule import Focus, member_options, run_schedule

ROOT = Path(__file__).parent.parent.parent


class ScheduleTests(SynchronousTestCase):
    """One seed, one outcome."""

    def test_some_seeds(self) -> None:
        """A few short schedules of both sizes hold."""
        for seed in range(1, 7):
            outcome = run_schedule(seed, seconds=15, members=3 if seed % 2 else 5)
            self.assertEqual(outcome.failure, "", f"seed {seed}")
            self.assertGreater(outcome.steps, 100)

    def test_the_same_seed_gives_the_same_trace(self) -> None:
        """Step for step; another seed gives another one."""
        one, again, other = (run_schedule(seed, seconds=10) for seed in (11, 11, 12))
        self.assertEqual(one, again)
        self.assertNotEqual(one.digest, other.digest)

    def test_the_same_in_another_program(self) -> None:
        """Neither the order of hashes nor the collection of garbage has a part in a trace."""
        code = (
            "import gc, sys; gc.disable() if sys.argv[1] == 'off' else None; "
            "from dledger.testing.world.bugs import be_quiet; be_quiet(); "
            "from dledger.testing.group.schedule import run_schedule; "
            "print([run_schedule(seed, seconds=6).digest for seed in (11, 12)])"
        )
        found = set()
        for seed, collects in (("0", "on"), ("77", "off")):
            environment = {**os.environ, "PYTHONHASHSEED": seed}
            found.add(subprocess.run(
                [sys.executable, "-c", code, collects], capture_output=True, text=True, check=True,
                cwd=ROOT, env=environment,
            ).stdout)
        here = [run_schedule(seed, seconds=6).digest for seed in (11, 12)]
        self.assertEqual(found, {f"{here}\n"})

    def test_failure_is_reported(self) -> None:
        """A failed check gives the sentence and the last thirty steps."""
        def fails(*_: object) -> None:
            raise InvariantError(3, "made up")

        with mock.patch("dledger.testing.group.checks.invariants.GroupInvariants._committed", fails):
            outcome = run_schedule(1, seconds=20)
        self.flushLoggedErrors(InvariantError)
        self.assertIn("invariant 3: made up", outcome.failure)
        self.assertEqual(len(outcome.lines), 30)

    def test_exception_of_a_member_is_reported(self) -> None:
        """A bug that raises is a failure with its traceback."""
        with mock.patch.object(EntryHandler, "on_push", side_effect=ZeroDivisionError("made up")):
            outcome = run_schedule(1, seconds=20)
        self.flushLoggedErrors(ZeroDivisionError)
        self.assertIn("ZeroDivisionError", outcome.failure)

    def test_all_lines(self) -> None:
        """A traced schedule has every step that did something."""
        outcome = run_schedule(1, seconds=5, wants_all_lines=True)
        self.assertGreater(len(outcome.lines), 30)


class OptionsTests(SynchronousTestCase):
    """What a seed makes of the group."""

    def test_variety(self) -> None:
        """All kinds of groups come up."""
        options = [member_options(seed)[0] for seed in range(300)]
        self.assertEqual({option.members for option in options}, {3, 5, 7})
        self.assertEqual({option.is_native for option in options}, {True, False})
        self.assertEqual({option.settings["flush_disk_type"] for option in options}, {"sync", "async"})
        for name in ("retention_bytes", "preferred_leader_ids"):
            self.assertTrue(any(name in option.settings for option in options), name)
        self.assertTrue(any(option.member_settings for option in options))

    def test_bodies_fit(self) -> None:
        """No client sends bodies that the store must refuse."""
        for seed in range(100):
            options, load = member_options(seed)
            size = options.settings["mapped_file_size_for_entry_data"]
            assert isinstance(size, int)
            self.assertLessEqual(load.body_bytes_max + 56, size)

    def test_focus(self) -> None:
        """A focus replaces the settings that it names, and keeps the others."""
        focus = Focus(settings={"a": 1}, faults=("kill",), load={"clients": 9}, group={"members": 5})
        options, load = focus.narrow(GroupOptions(settings={"a": 0, "b": 2}), Load())
        self.assertEqual(options.settings, {"a": 1, "b": 2})
        self.assertEqual((options.members, load.clients), (5, 9))
