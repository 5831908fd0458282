# -*- test-case-name: tests.sim.test_replicated_logs -*-
"""Schedules of masters and slaves without clients: they pass, they repeat, and what is wrong comes out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from unittest import mock

import attrs
from twisted.trial.unittest import SynchronousTestCase

from dledger.rocketmq.replication import slave_session
from dledger.rocketmq.replication.config import HAConfig
from dledger.rocketmq.replication.put_status import PutStatus
from dledger.testing.brokers.invariants import (
    HAInvariantError,
    HAInvariants,
    content_of,
    log_of,
    needed_at_least,
)
from dledger.testing.brokers.pair_faults import PairFaults
from dledger.testing.brokers.pair_schedule import PairFocus, PairWorld, run_pair_schedule
from dledger.testing.brokers.replicated_logs import (
    BARE_FAULTS,
    BARE_POWER,
    EMPTIED,
    REPLACED,
    bare_options,
)

#: One slave, nothing happens by itself.
CALM: Mapping[str, Any] = {
    "slaves": 1, "pace_s": 1e6, "put_us": 100_000, "delay_us": 100, "spread_us": 100,
    "master": {"broker_role": "SYNC_MASTER", "sync_rule": "any_slave"}, "slave": {"ha_full_history": True},
}


def bare(**fields: Any) -> PairFocus:
    """Schedules without clients."""
    return PairFocus(bare=True, **fields)


def calm(**options: Mapping[str, object]) -> PairFocus:
    """L{CALM}, with other options of the master or its slave."""
    merged = {role: {**CALM[role], **more} for role, more in options.items()}
    return bare(settings={**CALM, **merged}, faults=("nothing",))


class LogsCase(SynchronousTestCase):
    """What dying processes log is no failure of a test: the rig itself hears of bugs."""

    def tearDown(self) -> None:
        self.flushLoggedErrors()


class ScheduleTests(LogsCase):
    """One seed, one outcome."""

    def test_some_seeds(self) -> None:
        """A few schedules hold."""
        outcomes = [run_pair_schedule(seed, focus=bare()) for seed in range(1001, 1009)]
        self.assertEqual([one.failure for one in outcomes], [""] * 8)
        self.assertGreater(min(one.puts for one in outcomes), 0)
        self.assertGreater(sum(one.restarts for one in outcomes), 10)

    def test_the_same_seed_gives_the_same_run(self) -> None:
        """Event for event; another seed gives another one. Half of the seeds draw this kind."""
        one, again, other = (run_pair_schedule(seed, focus=bare()) for seed in (11, 11, 12))
        self.assertEqual(one, again)
        self.assertNotEqual(one.digest, other.digest)
        drawn = [seed for seed in range(100) if not PairWorld(seed, PairFocus()).has_clients]
        self.assertTrue(30 < len(drawn) < 70, drawn)
        self.assertEqual(run_pair_schedule(drawn[0]), run_pair_schedule(drawn[0], focus=bare()))

    def test_variety(self) -> None:
        """All kinds of pairs come up."""
        options = [bare_options(seed, {}) for seed in range(200)]
        self.assertEqual({option.slaves for option in options}, {1, 2, 3})
        for name, values in (
            ("broker_role", {"SYNC_MASTER", "ASYNC_MASTER"}), ("ha_transfer_flushed_only", {True, False}),
            ("flush_disk_type", {"SYNC_FLUSH", "ASYNC_FLUSH"}),
        ):
            self.assertEqual({option.master[name] for option in options}, values)
        usual = {BARE_FAULTS, BARE_FAULTS + BARE_POWER}
        usual |= {one + REPLACED for one in usual}
        usual |= {one + EMPTIED for one in usual}
        self.assertEqual({option.faults for option in options}, usual)

    def test_slaves_mend_their_master(self) -> None:
        """Flipped bits of the master's disk are replaced by copies of slaves, mostly without an operator."""
        settings = {"slave": {"ha_verify_size": 65536}, "master": {"flush_disk_type": "SYNC_FLUSH"}}
        focus = bare(settings={**settings, "pace_s": 1.5}, faults=("flip_master",))
        found = [run_pair_schedule(seed, focus=focus) for seed in range(4)]
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
        focus = bare(settings={**settings, "pace_s": 0.7}, faults=("lose_power",))
        self.patch(PairWorld, "_lose_power",
                   lambda world, _: PairFaults._lose_power(world, world.slave_machine))
        is_hole, verdicts = slave_session._has_holes, []

        def judged(ours: bytes, theirs: bytes) -> bool:
            bits = sum((one ^ other).bit_count() for one, other in zip(ours, theirs, strict=True))
            verdicts.append((bits, is_hole(ours, theirs)))
            return verdicts[-1][1]

        found = []
        for seed in (2, 5, 6, 11, 16):
            verdicts.clear()
            with mock.patch.object(slave_session, "_has_holes", judged):
                outcome = run_pair_schedule(seed, focus=focus)
            self.assertEqual(outcome.failure, "", seed)
            # A hole in place of a single bit looks like a bit that has flipped in the master's log: 6 and 16.
            self.assertEqual([bits for bits, is_found in verdicts if not is_found and bits > 1], [], seed)
            self.assertLessEqual(outcome.resolved, sum(bits == 1 for bits, _ in verdicts), seed)
            found += verdicts
        self.assertTrue(any(is_found for _, is_found in found), found)

    def test_settings(self) -> None:
        """They replace the options that they name, and only those."""
        settings = {"slaves": 7, "slave": {"ha_verify_size": 9}}
        drawn, focused = bare_options(5, {}), bare_options(5, settings, ("darken",))
        self.assertEqual((focused.slaves, focused.faults), (7, ("darken",)))
        self.assertEqual(focused.slave, {**drawn.slave, "ha_verify_size": 9})
        self.assertEqual(attrs.evolve(drawn, slaves=7, faults=("darken",), slave=focused.slave), focused)


class InvariantCase(LogsCase):
    """A calm world without clients."""

    def world(self, **options: Mapping[str, object]) -> PairWorld:
        """Three seconds of peace. @param options: others of the master or its slave."""
        world = PairWorld(1, calm(**options))
        world.clock.after(1, world.master_machine.start)
        world.clock.after(200_000, world.slave_machine.start)
        world.begin_load()
        world.clock.run_until(3_000_000)
        self.assertGreater(len(self.logs(world).history), 500)
        self.assertGreater(self.logs(world).answered[PutStatus.PUT_OK], 3)
        return world

    @staticmethod
    def logs(world: PairWorld) -> HAInvariants:
        """What is judged."""
        assert world.logs is not None
        return world.logs

    def assertBroken(self, number: int, call: Any, *arguments: Any, **named: Any) -> None:
        """C{call} finds that promise broken."""
        error = self.assertRaises(HAInvariantError, call, *arguments, **named)
        self.assertTrue(str(error).startswith(f"H{number}: "), str(error))


class InvariantTests(InvariantCase):
    """Every promise, broken by hand."""

    def test_peace(self) -> None:
        """Nothing is wrong."""
        world = self.world()
        self.logs(world).judge()
        self.logs(world).overdue(world.clock.now_us / 1000)

    def test_h1_slave_differs(self) -> None:
        """A byte of a slave is another one."""
        world = self.world()
        self.logs(world).history[100] ^= 1
        self.assertBroken(1, self.logs(world).slave_started, world.slave_machine)

    def test_h1_shipped_and_lost(self) -> None:
        """A master that ships only what is flushed comes back without what a slave has."""
        master = {"ha_transfer_flushed_only": True, "flush_disk_type": "ASYNC_FLUSH"}
        world = self.world(master=master)
        self.logs(world)._flushed_offset = 0
        self.logs(world).master_ends(power=True)
        log_of(world.master_machine).cut(300)
        self.assertBroken(1, self.logs(world).master_started)

    def test_h2_nobody_has_it(self) -> None:
        """A put is answered that no slave has."""
        world = self.world()
        end = len(self.logs(world).history)
        self.logs(world).history += bytes(50)
        put = self.logs(world).put(end, end + 50, 0)
        self.assertBroken(2, self.logs(world).answer, put, PutStatus.PUT_OK, 1)

    def test_h2_begins_after_it(self) -> None:
        """A put is answered, and a slave that lost its disk holds only what came after it."""
        world = self.world()
        invariants, slave = self.logs(world), world.slave_machine
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
        world = self.world(master=master)
        self.logs(world)._flushed_offset = 0
        self.logs(world).master_ends(power=True)
        log_of(world.master_machine).cut(300)
        self.assertBroken(3, self.logs(world).master_started)

    def test_h4_never_answered(self) -> None:
        """A put is forgotten; another is answered twice, or late."""
        world = self.world()
        now_ms = world.clock.now_us / 1000
        put = self.logs(world).put(0, 10, now_ms)
        self.logs(world).overdue(now_ms + 2900)
        self.assertBroken(4, self.logs(world).overdue, now_ms + 2901)
        self.assertBroken(4, self.logs(world).answer, put, PutStatus.FLUSH_SLAVE_TIMEOUT, now_ms + 5000)
        self.assertBroken(4, self.logs(world).answer, put, PutStatus.FLUSH_SLAVE_TIMEOUT, now_ms)

    def test_h5_reported_and_gone(self) -> None:
        """A slave with SYNC_FLUSH comes back with less than it has reported."""
        world = self.world(slave={"flush_disk_type": "SYNC_FLUSH"})
        log_of(world.slave_machine).cut(300)
        self.logs(world).held[world.slave_machine.name].shadow = b""  # H8 looks at this, and comes first
        self.assertBroken(5, self.logs(world).slave_started, world.slave_machine)

    def test_h8_reported_and_cut(self) -> None:
        """A slave cuts a record that it has reported; with an operator, it must be kept beside the log."""
        for is_resolving in (False, True):
            world = self.world()
            if is_resolving:
                self.logs(world).resolving(world.slave_machine)
            log_of(world.slave_machine).cut(300)
            self.assertBroken(8, self.logs(world).slave_event, world.slave_machine)
        world = self.world()
        self.logs(world).resolving(world.slave_machine)
        log_of(world.slave_machine).set_aside(0)
        self.logs(world).slave_event(world.slave_machine)

    def test_h6_not_caught_up(self) -> None:
        """A slave stays behind, or away."""
        world = self.world()
        self.logs(world).history += b"x"
        self.assertBroken(6, self.logs(world).judge)
        world = self.world()
        world.slave_machine.kill()
        self.assertBroken(6, self.logs(world).judge)

    def test_older_disk_keeps_its_rot(self) -> None:
        """The flipped bits of a copied disk are known when the copy comes back, and can be repaired."""
        world = self.world()
        at = self.logs(world).history.find(b"KEYS\x01") - 5
        world._kill(world.master_machine)
        world._flip(at, 0)
        self.logs(world).master_flipped(at, 1)
        world.master_machine.start()
        world.clock.run_until(3_050_000)
        world._older_master(world.master_machine)
        flips = dict(self.logs(world).flips)
        self.assertEqual(flips, {at: 1})
        world.repair_master()
        self.assertEqual(self.logs(world).flips, {})
        world._older_master(world.master_machine)
        self.assertEqual(self.logs(world).flips, flips)
        world.repair_master()
        begin, content = content_of(world.master_machine.disk)
        self.assertEqual((begin, content[: len(self.logs(world).history)]), (0, self.logs(world).history))

    def test_h7_master_lost_without_a_power_cut(self) -> None:
        """A killed process has lost nothing."""
        world = self.world()
        self.logs(world).master_ends(power=False)
        log_of(world.master_machine).cut(300)
        self.assertBroken(7, self.logs(world).master_started)

    def test_needed(self) -> None:
        """How many slaves must hold a put, at the least."""
        for options, needed in (
            ({}, 0), ({"broker_role": "SYNC_MASTER"}, 1),
            ({"broker_role": "SYNC_MASTER", "sync_rule": "in_sync_replicas", "in_sync_replicas": 3}, 2),
            ({"broker_role": "SYNC_MASTER", "sync_rule": "in_sync_replicas", "in_sync_replicas": 3,
              "enable_auto_in_sync_replicas": True, "min_in_sync_replicas": 2}, 1),
        ):
            self.assertEqual(needed_at_least(HAConfig(**options)), needed)


class WatchedTests(InvariantCase):
    """Which pairs are watched, and what is wrong there."""

    def test_with_clients(self) -> None:
        """Their puts are judged, also those of the next master; a slave that differs is noticed."""
        world = PairWorld(1, PairFocus(faults=("nothing",), role="SYNC_MASTER", slaves=1))
        for machine in world.machines.values():
            world.clock.after(1, machine.start)
        world.begin_load()
        world.clock.after(1, world._watch)
        world.clock.run_until(6_000_000)
        logs, old = self.logs(world), world.master_machine
        self.assertGreater(logs.answered[PutStatus.PUT_OK], 20)
        world._promote(world.slave_machine)
        world.clock.run_until(12_000_000)
        self.assertGreater(self.logs(world).answered[PutStatus.PUT_OK], 20)
        self.assertIsNot(self.logs(world), logs)
        self.logs(world).history[100] ^= 1
        old.kill()
        self.assertBroken(1, old.start)

    def test_others(self) -> None:
        """Logs whose files may go are not watched, from the time on when one goes."""
        for fault in ("age", "spoil_log", "put_back", "spoil_queue"):
            self.assertIs(PairWorld(1, PairFocus(faults=("kill", fault))).logs, None)
        world = PairWorld(1, PairFocus(faults=("nothing",)))
        world.clock.after(1, world.master_machine.start)
        world.clock.run_until(1_000_000)
        with mock.patch.object(type(log_of(world.master_machine)), "begin_offset", 4096):
            world.clock.run_until(1_500_000)
        self.assertIs(world.logs, None)

    def test_wrong_answer(self) -> None:
        """It is noticed, although the broker catches what its answers raise."""
        with mock.patch.object(HAInvariants, "answer", side_effect=HAInvariantError("H2: made up")):
            self.assertEqual(run_pair_schedule(1, focus=calm()).failure, "H2: made up")

    def test_frozen_master(self) -> None:
        """Puts that it has not answered yet may be answered at any later time."""
        world = self.world()
        now_ms = world.clock.now_us / 1000
        logs = self.logs(world)
        logs.put(0, 10, now_ms)
        self.assertBroken(4, logs.overdue, now_ms + 5000)
        world._freeze(world.slave_machine)
        self.assertBroken(4, logs.overdue, now_ms + 5000)
        world._freeze(world.master_machine)
        logs.overdue(now_ms + 5000)
