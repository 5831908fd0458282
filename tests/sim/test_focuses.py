# -*- test-case-name: tests.sim.test_focuses -*-
"""Schedules with a bias: each focus plays, and seeds draw them as often as they should."""

from __future__ import annotations

import gc
from collections import Counter
from unittest import mock

import attrs
from click.testing import CliRunner
from twisted.trial.unittest import SynchronousTestCase

from dledger.machine.guarded import SnapshotFailed
from dledger.testing.group import focuses
from dledger.testing.group.clients import Load
from dledger.testing.group.focuses import (
    FOCUSES,
    LAST,
    LAST_FOCUSED,
    focus_name_of,
    run_drawn_schedule,
)
from dledger.testing.group.members.cluster import GroupOptions
from dledger.testing.group.runner import main
from dledger.testing.group.schedule import EVERYTHING, Focus, ScheduleOutcome


class FocusTests(SynchronousTestCase):
    """The table, and the draw."""

    def test_enough(self) -> None:
        """There are many, and each has faults of its own."""
        self.assertGreaterEqual(len(FOCUSES), 20)
        for name, (weight, focus) in FOCUSES.items():
            self.assertTrue((weight > 0) != (name == LAST) and focus.faults, name)

    def test_drawn(self) -> None:
        """Half of the seeds draw one, each of them by its weight, after the last; a seed draws the same."""
        drawn = Counter(focus_name_of(seed) for seed in range(4000))
        self.assertApproximates(drawn.pop("") / 4000, 0.5, 0.05)
        self.assertEqual(set(drawn), set(FOCUSES))
        self.assertApproximates(drawn.pop(LAST) / 4000, LAST_FOCUSED, 0.01)
        total = sum(weight for weight, _ in FOCUSES.values())
        for name, (weight, _) in FOCUSES.items():
            self.assertApproximates(drawn[name] / 2000, weight / total, 0.03, name)
        self.assertEqual(focus_name_of(17), focus_name_of(17))

    def test_each_plays(self) -> None:
        """Faults with these names exist, and the options fit together."""
        for name in FOCUSES:
            outcome = run_drawn_schedule(1, seconds=3.0, focus_name=name)
            self.assertEqual(outcome.failure, "", name)
            self.assertGreater(outcome.steps, 0, name)
        gc.collect()
        self.flushLoggedErrors(SnapshotFailed)  # (of a process that ended while its machine failed)

    def test_group_smaller_than_drawn(self) -> None:
        """A leader that the seed prefers, and that the smaller group lacks, is preferred no more."""
        options = GroupOptions(members=7, settings={"preferred_leader_ids": ("n6",)})
        narrow = FOCUSES["former-leaders-of-five"][1].narrow
        self.assertNotIn("preferred_leader_ids", narrow(options, Load())[0].settings)
        options = attrs.evolve(options, settings={"preferred_leader_ids": ("n4",)})
        self.assertEqual(narrow(options, Load())[0].settings["preferred_leader_ids"], ("n4",))

    def test_a_preferred_leader_that_may_not_lead(self) -> None:
        """A leader that the seed prefers, and that the focus forbids to lead, is preferred no more."""
        options = GroupOptions(members=3, settings={"preferred_leader_ids": ("n2",)})
        narrow = FOCUSES["members-that-never-lead"][1].narrow
        self.assertNotIn("preferred_leader_ids", narrow(options, Load())[0].settings)

    def asked(self, *words: str) -> dict[int, Focus]:
        """The focus of each schedule that a command plays."""
        asked: dict[int, Focus] = {}

        def play(seed: int, *, focus: Focus, **_: object) -> ScheduleOutcome:
            asked[seed] = focus
            return ScheduleOutcome(seed=seed, failure="", lines=(), digest="", steps=1, acknowledged=0,
                                   committed=0, elections=0, restarts=0)

        with mock.patch.object(focuses, "run_schedule", play):
            done = CliRunner().invoke(main, ["--jobs", "1", "--schedules", "9", "--seed", "1", *words])
        self.assertEqual(done.exit_code, 0, done.output)
        return asked

    def test_commands(self) -> None:
        """As the seeds draw it, none, or one for all."""
        for seed, focus in self.asked().items():
            name = focus_name_of(seed)
            self.assertIs(focus, FOCUSES[name][1] if name else EVERYTHING)
        self.assertEqual(set(map(id, self.asked("--focus", "none").values())), {id(EVERYTHING)})
        retention = FOCUSES["retention"][1]
        self.assertEqual(set(map(id, self.asked("--focus", "retention").values())), {id(retention)})
        self.assertEqual(CliRunner().invoke(main, ["--focus", "retention", "--lying"]).exit_code, 2)
