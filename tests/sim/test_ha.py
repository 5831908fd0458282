# -*- test-case-name: tests.sim.test_ha -*-
"""Schedules of master/slave replication: they pass, they repeat, and what is wrong comes out."""

from __future__ import annotations

from typing import Any
from unittest import mock

import attrs
from click.testing import CliRunner
from twisted.trial.unittest import SynchronousTestCase

from dledger.rocketmq.replication import slave_session
from dledger.rocketmq.replication.config import HAConfig
from dledger.rocketmq.replication.put_status import PutStatus
from dledger.testing.brokers.__main__ import main
from dledger.testing.brokers.invariants import HAInvariantError, HAInvariants, needed_at_least
from dledger.testing.brokers.schedule import (
    EMPTIED,
    FAULTS,
    POWER,
    REPLACED,
    HAFocus,
    HAWorld,
    drawn_options,
    run_ha_schedule,
)

#: One slave, nothing happens by itself.
CALM = HAFocus(settings={"slaves": 1, "pace_s": 1e6, "put_us": 100_000, "delay_us": 100, "spread_us": 100,
                         "master": {"broker_role": "SYNC_MASTER", "sync_rule": "any_slave"},
                         "slave": {"ha_full_history": True}})


def calm(**options: dict[str, object]) -> HAFocus:
    """L{CALM}, with other options of the master or its slave."""
    merged = {role: {**CALM.settings[role], **more} for role, more in options.items()}
    return HAFocus(settings={**CALM.settings, **merged})


class HACase(SynchronousTestCase):
    """What dying processes log is no failure of a test: the rig itself hears of bugs."""

    def tearDown(self) -> None:
        self.flushLoggedErrors()


class ScheduleTests(HACase):
    """One seed, one outcome."""

    def test_some_seeds(self) -> None:
        """A few schedules hold."""
        for seed in range(1, 9):
            outcome = run_ha_schedule(seed, seconds=6)
            self.assertEqual(outcome.failure, "", f"seed {seed}")
            self.assertGreater(outcome.puts, 0)

    def test_the_same_seed_gives_the_same_run(self) -> None:
        """Event for event; another seed gives another one."""
        one, again, other = (run_ha_schedule(seed, seconds=4) for seed in (11, 11, 12))
        self.assertEqual(one, again)
        self.assertNotEqual(one.digest, other.digest)

    def test_variety(self) -> None:
        """All kinds of pairs come up."""
        options = [drawn_options(seed, HAFocus()) for seed in range(200)]
        self.assertEqual({option.slaves for option in options}, {1, 2, 3})
        for name, values in (
            ("broker_role", {"SYNC_MASTER", "ASYNC_MASTER"}), ("ha_transfer_flushed_only", {True, False}),
            ("flush_disk_type", {"SYNC_FLUSH", "ASYNC_FLUSH"}),
        ):
            self.assertEqual({option.master[name] for option in options}, values)
        usual = {FAULTS, FAULTS + POWER}
        usual |= {one + REPLACED for one in usual}
        usual |= {one + EMPTIED for one in usual}
        self.assertEqual({option.faults for option in options}, usual)
        for option in options:
            HAConfig(**option.master)
            HAConfig(**option.slave)

    def test_found_seeds(self) -> None:
        """
        Seeds that failed once: 81095 (a copying thread lost its writes), 80822 (an old disk with rot),
        911434 (no room for the first file of an emptied slave), 9100102 (a cut that was killed, and set aside
        twice), 7720075 (an old disk with rot), 7720077 (an empty slave of a master that came back empty).
        """
        for seed in (81095, 80822, 911434, 9100102, 7720075, 7720077):
            self.assertEqual(run_ha_schedule(seed).failure, "", f"seed {seed}")

    def test_slaves_mend_their_master(self) -> None:
        """Flipped bits of the master's disk are replaced by copies of slaves, mostly without an operator."""
        settings = {"slave": {"ha_verify_size": 65536}, "master": {"flush_disk_type": "SYNC_FLUSH"}}
        focus = HAFocus(settings=settings, faults=("flip_master",), pace_s=1.5)
        found = [run_ha_schedule(seed, focus=focus) for seed in range(4)]
        self.assertEqual([outcome.failure for outcome in found], [""] * 4)
        mended = sum(outcome.mended for outcome in found)
        self.assertGreater(mended, 5)
        self.assertLessEqual(sum(outcome.resolved for outcome in found), mended)

    def test_holes_need_no_operator(self) -> None:
        """
        A slave that lost power in the middle of a record goes on by itself; pieces end inside heads. An
        operator decides where a single bit differs, and nowhere else.
        """
        settings = {"slave": {"flush_disk_type": "ASYNC_FLUSH", "ha_flush_interval": 2000}, "piece_size": 50,
                    "put_us": 60_000}
        focus = HAFocus(settings=settings, faults=("power_slave",), pace_s=0.7)
        is_hole, verdicts = slave_session._has_holes, []

        def judged(ours: bytes, theirs: bytes) -> bool:
            bits = sum((one ^ other).bit_count() for one, other in zip(ours, theirs, strict=True))
            verdicts.append((bits, is_hole(ours, theirs)))
            return verdicts[-1][1]

        found = []
        for seed in (2, 5, 6, 11, 16):
            verdicts.clear()
            with mock.patch.object(slave_session, "_has_holes", judged):
                outcome = run_ha_schedule(seed, focus=focus)
            self.assertEqual(outcome.failure, "", seed)
            # A hole in place of a single bit looks like a bit that has flipped in the master's log: 6 and 16.
            self.assertEqual([bits for bits, is_found in verdicts if not is_found and bits > 1], [], seed)
            self.assertLessEqual(outcome.resolved, sum(bits == 1 for bits, _ in verdicts), seed)
            found += verdicts
        self.assertTrue(any(is_found for _, is_found in found), found)

    def test_focus(self) -> None:
        """A focus replaces the settings that it names, and only those."""
        seed_options = drawn_options(5, HAFocus())
        settings = {"slaves": 7, "slave": {"ha_verify_size": 9}}
        focused = drawn_options(5, HAFocus(settings=settings, faults=("darken",)))
        self.assertEqual((focused.slaves, focused.faults), (7, ("darken",)))
        self.assertEqual(focused.slave["ha_verify_size"], 9)
        same = {"slaves": 7, "faults": ("darken",), "slave": focused.slave}
        self.assertEqual(attrs.evolve(seed_options, **same), focused)

    def test_exception_is_reported(self) -> None:
        """A bug that raises is a failure with its traceback."""
        name = "dledger.rocketmq.replication.master.SlaveView.reported"
        with mock.patch(name, side_effect=ZeroDivisionError("made up")):
            outcome = run_ha_schedule(1, seconds=5)
        self.assertIn("ZeroDivisionError", outcome.failure)
        self.assertGreater(len(outcome.lines), 1)


class InvariantTests(HACase):
    """Every promise, broken by hand."""

    def world(self, focus: HAFocus = CALM, seconds: float = 3) -> HAWorld:
        """Three seconds of peace."""
        world = HAWorld(1, drawn_options(1, focus))
        world.clock.after(1, world.master.start)
        world.clock.after(200_000, world.slaves[0].start)
        world._run_until(seconds)
        self.assertGreater(len(world.invariants.history), 500)
        self.assertGreater(world.invariants.answered[PutStatus.PUT_OK], 3)
        return world

    def assertBroken(self, number: int, call: Any, *arguments: Any, **named: Any) -> None:
        """C{call} finds that promise broken."""
        error = self.assertRaises(HAInvariantError, call, *arguments, **named)
        self.assertTrue(str(error).startswith(f"H{number}: "), str(error))

    def test_peace(self) -> None:
        """Nothing is wrong."""
        world = self.world()
        world.invariants.judge()
        world.invariants.overdue(world.clock.now_us / 1000, world.master.life)

    def test_h1_slave_differs(self) -> None:
        """A byte of a slave is another one."""
        world = self.world()
        world.invariants.history[100] ^= 1
        self.assertBroken(1, world.invariants.slave_started, world.slaves[0])

    def test_h1_shipped_and_lost(self) -> None:
        """A master that ships only what is flushed comes back without what a slave has."""
        master = {"ha_transfer_flushed_only": True, "flush_disk_type": "ASYNC_FLUSH"}
        world = self.world(calm(master=master))
        world.invariants._flushed_offset = 0
        world.invariants.master_ends(power=True)
        world.master.log.cut(300)
        self.assertBroken(1, world.invariants.master_started)

    def test_h2_nobody_has_it(self) -> None:
        """A put is answered that no slave has."""
        world = self.world()
        end = len(world.invariants.history)
        world.invariants.history += bytes(50)
        put = world.invariants.put(end, end + 50, 0)
        self.assertBroken(2, world.invariants.answer, put, PutStatus.PUT_OK, 1)

    def test_h2_begins_after_it(self) -> None:
        """A put is answered, and a slave that lost its disk holds only what came after it."""
        world = self.world()
        invariants, slave = world.invariants, world.slaves[0]
        put = invariants.put(0, 100, 0)
        invariants.answer(put, PutStatus.PUT_OK, 1)
        held = invariants.held[slave.name]
        held.earlier, held.own_begin = [], 4096
        again = invariants.put(0, 100, 0)
        self.assertBroken(2, invariants.answer, again, PutStatus.PUT_OK, 1)
        held.own_begin = 0
        held.lose_disk()  # a report of before may still be under way
        invariants.answer(invariants.put(0, 100, 0), PutStatus.PUT_OK, 1)

    def test_h3_gone(self) -> None:
        """An answered put is not in the log of a master that waits for its disk."""
        master = {"flush_disk_type": "SYNC_FLUSH", "ha_transfer_flushed_only": False}
        world = self.world(calm(master=master))
        world.invariants._flushed_offset = 0
        world.invariants.master_ends(power=True)
        world.master.log.cut(300)
        self.assertBroken(3, world.invariants.master_started)

    def test_h4_never_answered(self) -> None:
        """A put is forgotten; another is answered twice, or late."""
        world = self.world()
        now_ms = world.clock.now_us / 1000
        put = world.invariants.put(0, 10, now_ms)
        world.invariants.overdue(now_ms + 2900, world.master.life)
        self.assertBroken(4, world.invariants.overdue, now_ms + 2901, world.master.life)
        self.assertBroken(4, world.invariants.answer, put, PutStatus.FLUSH_SLAVE_TIMEOUT, now_ms + 5000)
        self.assertBroken(4, world.invariants.answer, put, PutStatus.FLUSH_SLAVE_TIMEOUT, now_ms)

    def test_h5_reported_and_gone(self) -> None:
        """A slave with SYNC_FLUSH comes back with less than it has reported."""
        world = self.world(calm(slave={"flush_disk_type": "SYNC_FLUSH"}))
        world.slaves[0].log.cut(300)
        world.invariants.held[world.slaves[0].name].shadow = b""  # H8 looks at this, and comes first
        self.assertBroken(5, world.invariants.slave_started, world.slaves[0])

    def test_h8_reported_and_cut(self) -> None:
        """A slave cuts a record that it has reported; with an operator, it must be kept beside the log."""
        for is_resolving in (False, True):
            world = self.world()
            if is_resolving:
                world.invariants.resolving(world.slaves[0])
            world.slaves[0].log.cut(300)
            self.assertBroken(8, world.invariants.slave_event, world.slaves[0])
        world = self.world()
        world.invariants.resolving(world.slaves[0])
        world.slaves[0].log.set_aside(0)
        world.invariants.slave_event(world.slaves[0])

    def test_h6_not_caught_up(self) -> None:
        """A slave stays behind, or away."""
        world = self.world()
        world.invariants.history += b"x"
        self.assertBroken(6, world.invariants.judge)
        world = self.world()
        world.slaves[0].kill()
        self.assertBroken(6, world.invariants.judge)

    def test_older_disk_keeps_its_rot(self) -> None:
        """The flipped bits of a copied disk are known when the copy comes back, and can be repaired."""
        world = self.world()
        at = world.invariants.history.find(b"KEYS\x01") - 5
        world._kill(world.master)
        world._flip(at, 0)
        world.invariants.master_flipped(at, 1)
        world.master.start()
        world._run_until(3.05)
        world._older_master(world.master)
        flips = dict(world.invariants.flips)
        self.assertEqual(flips, {at: 1})
        world._repair_master()
        self.assertEqual(world.invariants.flips, {})
        world._older_master(world.master)
        self.assertEqual(world.invariants.flips, flips)
        world._repair_master()
        begin, content = world.master.content()
        self.assertEqual((begin, content[: len(world.invariants.history)]), (0, world.invariants.history))

    def test_h7_master_lost_without_a_power_cut(self) -> None:
        """A killed process has lost nothing."""
        world = self.world()
        world.invariants.master_ends(power=False)
        world.master.log.cut(300)
        self.assertBroken(7, world.invariants.master_started)

    def test_needed(self) -> None:
        """How many slaves must hold a put, at the least."""
        for options, needed in (
            ({}, 0), ({"broker_role": "SYNC_MASTER"}, 1),
            ({"broker_role": "SYNC_MASTER", "sync_rule": "in_sync_replicas", "in_sync_replicas": 3}, 2),
            ({"broker_role": "SYNC_MASTER", "sync_rule": "in_sync_replicas", "in_sync_replicas": 3,
              "enable_auto_in_sync_replicas": True, "min_in_sync_replicas": 2}, 1),
        ):
            self.assertEqual(needed_at_least(HAConfig(**options)), needed)


class RunnerTests(HACase):
    """The command."""

    def run_main(self, *arguments: str) -> tuple[int, str]:
        """Exit status and output."""
        result = CliRunner().invoke(main, ["--logs", "--jobs", "1", *arguments])
        return result.exit_code, result.output

    def test_good(self) -> None:
        """Status 0, and a line that says how many."""
        status, output = self.run_main("--schedules", "2", "--seed", "5")
        self.assertEqual(status, 0, output)
        self.assertIn("2 schedules, 0 failed", output)

    def test_bad(self) -> None:
        """Status 1, the seed, the sentence, the last events, and how to see it again."""
        with mock.patch.object(HAInvariants, "judge", side_effect=HAInvariantError("H6: made up")):
            status, output = self.run_main("--schedules", "3", "--seed", "5", "--stop-at", "1")
        self.assertEqual(status, 1)
        self.assertIn("seed 5 FAILED: H6: made up", output)
        self.assertIn("10.0.0.1 started at 0..0", output)
        self.assertIn("brokers --logs --schedules 1 --seed 5 --trace", output)
        self.assertIn("1 schedules, 1 failed", output)
