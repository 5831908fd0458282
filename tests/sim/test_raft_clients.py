# -*- test-case-name: tests.sim.test_raft_clients -*-
"""Groups of brokers on raft logs with clients: schedules pass and repeat; what is wrong comes out."""

from __future__ import annotations

import random
from typing import Any

import attrs
from twisted.internet.defer import succeed
from twisted.trial.unittest import SynchronousTestCase

from dledger.raft_broker.raft_log import RaftLog
from dledger.raft_broker.replication import RaftReplication
from dledger.raft_broker.stamps import MessageStamps
from dledger.testing.brokers.admin_traffic import KEPT
from dledger.testing.brokers.pair_schedule import PairFocus, run_pair_schedule
from dledger.testing.brokers.rig.accounts import (
    DELAYED,
    PLAIN,
    REFUSED,
    PairBroken,
)
from dledger.testing.brokers.rig.machine import BrokerMachine
from dledger.testing.brokers.rig.states import (
    NO_MESSAGE,
    check_stopped,
    has_ended_in_order,
    records_of,
)
from dledger.testing.raft_brokers.kept_offsets import KeptOffsets
from dledger.testing.raft_brokers.raft import is_ledger_closed
from dledger.testing.raft_brokers.schedule import RaftWorld, check_once, run_raft_schedule

KEY = ("G", "T1", 0)
#: Those that mutants of a group do not survive.
FAULTS = ("kill", "kill", "cut_off", "hand_over", "kill_in_write", "kill_after_mark", "end_in_changes")


class RaftCase(SynchronousTestCase):
    """What dying processes log is no failure of a test: the rig itself hears of bugs."""

    def tearDown(self) -> None:
        self.flushLoggedErrors()

    def assertBroken(self, number: int, call: Any, *arguments: Any) -> None:
        """C{call} finds that promise broken."""
        error = self.assertRaises(PairBroken, call, *arguments)
        self.assertTrue(str(error).startswith(f"B{number}: "), str(error))


class RaftClientsTests(RaftCase):
    """Sound code, and the bugs that the schedules found."""

    def test_seeds_that_found_bugs(self) -> None:
        """Resets, first check points, topics that were not committed or begin too early."""
        outcomes = [run_raft_schedule(seed) for seed in (41, 160)]
        self.assertEqual([one.failure for one in outcomes], ["", ""])
        self.assertGreater(sum(one.masters for one in outcomes), 3)
        self.assertGreater(sum(one.changes for one in outcomes), 20)
        self.assertEqual(run_raft_schedule(41), outcomes[0])

    def test_several_slaves_with_old_files(self) -> None:
        """A master with three slaves whose files grow old, and promotions."""
        focus = PairFocus(faults=("age", "promote", "kill"), slaves=3, pace_s=1.5)
        outcome = run_pair_schedule(2, focus=focus)
        self.assertEqual(outcome.failure, "")
        self.assertGreater(outcome.promotions, 0)

    def test_young_files_stay(self) -> None:
        """B21: a log that begins after the files that were old enough."""
        world = RaftWorld(1, faults=("nothing",))
        with world.bugs.listening():
            for machine in world.machines.values():
                world.clock.after(1, machine.start)
            world.clock.run_until(3_000_000)
        machine, machines = world.machines["n0"], world.machines.values()
        world.old_files.check(machine, machines)
        world.old_files.end = -1
        self.assertRaises(PairBroken, world.old_files.check, machine, machines)
        machine.may_fail = True
        world.old_files.check(machine, machines)


class MutantTests(RaftCase):
    """Broken code: some schedule notices it."""

    def assertNoticed(self) -> None:
        """A promise is broken. A change of the product draws other schedules for a seed."""
        self.assertTrue(any(run_raft_schedule(seed, faults=FAULTS).failure for seed in range(1, 20)))

    def test_queues_stay_open(self) -> None:
        """Queue offsets are given out by one who leads no more."""
        self.patch(MessageStamps, "close", lambda self: None)
        self.assertNoticed()

    def test_offsets_kept(self) -> None:
        """Queue offsets are not taken from the queues when leadership is gained."""
        opened = MessageStamps.open

        def kept(stamps: MessageStamps, queue_offsets: Any) -> None:
            opened(stamps, {**queue_offsets, **stamps.queue_offsets})

        self.patch(MessageStamps, "open", kept)
        self.assertNoticed()

    def test_uncommitted_shown(self) -> None:
        """What is not committed is dispatched."""
        self.patch(RaftLog, "committed", _all_is_committed)
        self.assertNoticed()

    def test_master_too_early(self) -> None:
        """A leader does not wait until all is committed and dispatched."""
        self.patch(RaftReplication, "_may_be_master", lambda self: self._store.is_ready)
        self.assertNoticed()

    def test_settled_too_early(self) -> None:
        """A change of metadata is acknowledged before it is committed."""
        self.patch(RaftReplication, "settled", lambda self: succeed(self.metadata.settled() and None))
        self.assertNoticed()

    def test_metadata_not_applied(self) -> None:
        """Metadata in the log are not applied."""
        self.patch(RaftReplication, "metadata_logged", lambda self, *where, is_kept: None)
        self.assertNoticed()


_COMMITTED = RaftLog.committed


def _all_is_committed(log: RaftLog, committed_index: int) -> bool:
    return _COMMITTED(log, log._ledger.ledger_end_index)


class ChecksTests(RaftCase):
    """B20, B26, B27 and B29, broken by hand in a calm world."""

    def setUp(self) -> None:
        self.world = world = RaftWorld(1, faults=("nothing",))
        for machine in world.machines.values():
            world.clock.after(1, machine.start)
        world.traffic.begin()
        world.clock.after(1, world._watch)
        world.clock.run_until(8_000_000)
        self.name = world.master_machine.name
        parts = world.master_machine.parts
        assert parts is not None
        self.parts = parts

    def test_b20(self) -> None:
        """A message at another place, one that was refused, one that is there twice, and a gap."""
        world, records = self.world, list(records_of(self.parts))
        places = {record.physical_offset: record for record in records}
        sent = [one for one in world.accounts.needed(frozenset(KEPT)) if one.kind == PLAIN]
        self.assertGreater(len(sent), 3)
        for one in sent:
            world._check_place("m", one, places)
        known = world.accounts.sent
        check_once("m", known, records)
        self.assertBroken(20, check_once, "m", known, [*records, *records[-1:]])
        twice = next(one for one in records if one.keys == (sent[0].key,) and one.topic == sent[0].topic)
        ends = [one for one in records if one.topic == twice.topic and one.queue_id == twice.queue_id]
        again = attrs.evolve(twice, queue_offset=ends[-1].queue_offset + 1)
        self.assertBroken(20, check_once, "m", known, [*records, again])
        sent[0].kind = DELAYED  # its leader may not know that it has put it into its queue
        check_once("m", known, [*records, again])
        self.assertBroken(20, check_once, "m", known, [attrs.evolve(again, queue_offset=2), again])
        sent[1].outcome = REFUSED
        self.assertBroken(20, check_once, "m", known, records)
        sent[2].queue_offset += 1
        self.assertBroken(20, world._check_place, "m", sent[2], places)

    def test_b27(self) -> None:
        """A member that cannot write its ledger while its broker ends in order says nothing of its log."""
        world = self.world
        slaves = [one for one in world.machines.values() if one is not world.master_machine]
        said = []

        def ended(machine: BrokerMachine) -> None:
            path = world.log_path(machine)
            check_stopped(machine, path, is_ledger_closed)
            said.append((has_ended_in_order(machine), is_ledger_closed(machine)))
            if said[-1][1]:
                machine.disk.open(max(machine.disk.files_below(path))).pwrite(b"x", 0)
            judged = is_ledger_closed if said[-1][1] else has_ended_in_order
            self.assertBroken(27, check_stopped, machine, path, judged)

        for machine in slaves:
            machine.exits = ended
            machine.stop()
        slaves[0].disk.fail_under(world.log_path(slaves[0]))
        world.clock.run_until(11_000_000)
        self.assertEqual(sorted(said), [(True, False), (True, True)])

    def test_a_bad_page_beside_what_is_no_message(self) -> None:
        """Records that are no messages are not among those that cannot be read."""
        world, machine = self.world, self.world.master_machine
        for _ in range(20):
            world._append_strangely(machine)
        world.clock.run_until(9_000_000)
        log, path = self.parts.store.log, world.log_path(machine)
        data = b"".join(machine.disk.files_below(path).values())
        self.assertGreater(data.count(NO_MESSAGE), 20)
        places = {one.physical_offset for one in records_of(self.parts)}
        pages = world.bad_logs.pages
        for number in range(60):
            found = pages.spoil(machine.name, machine.disk, path, before=log.end_offset,
                                rng=random.Random(number), lead=log.record_lead)
            self.assertTrue(places.issuperset(one.physical_offset for one in found))
        self.assertGreater(len(pages), 5)

    def test_b29(self) -> None:
        """What was acknowledged is missing, and what was deleted is there."""
        facts, metadata = self.world.facts, self.parts.metadata
        for _ in range(40):
            self.world._change(self.world.master_machine)
        self.world.clock.run_until(10_000_000)
        self.assertGreater(facts.judged, 30)
        facts.check("m", metadata)
        self.assertEqual(
            {table for table, _ in facts.known}, {"topics", "groups", "consumerOffsets", "delayOffsets"}
        )
        known = dict(facts.known)
        for key in (*known, ("topics", "another"), ("groups", "another"), ("consumerOffsets", "another")):
            facts.known[key] = 1 << 40
            self.assertBroken(29, facts.check, "m", metadata)
            facts.known = dict(known)
        for key in (key for key in known if key[0] in ("topics", "groups")):
            facts.deleted.add(key)
            self.assertBroken(29, facts.check, "m", metadata)
            facts.deleted.discard(key)
        facts.check("m", metadata)

    def test_acknowledged_before_the_log_has_it(self) -> None:
        """A change that is acknowledged has a record of the same term, or lies in a range of one."""
        world = self.world
        world.acknowledged(self.parts, "topics", KEPT[0])
        world.acknowledged(self.parts, "groups", "of nobody")  # in a range: there is none
        world.bugs.notify()
        world.acknowledged(self.parts, "consumerOffsets", "of nobody")
        self.assertBroken(26, world.bugs.notify)

class KeptOffsetsTests(SynchronousTestCase):
    """B19, broken by hand."""

    def test_last_success_counts(self) -> None:
        """What was set last with success is the answer; before any success, every answer is right."""
        kept = KeptOffsets()
        kept.asking(KEY)(77)
        for offset in (5, 3):
            kept.setting(KEY, offset)(True)
        kept.asking(KEY)(3)
        self.assertRaises(PairBroken, kept.asking(KEY), 5)

    def test_doubtful_and_concurrent_ones(self) -> None:
        """What nobody has answered, or is set at the same time, may be the answer."""
        kept = KeptOffsets()
        kept.setting(KEY, 1)(True)
        kept.setting(KEY, 9)(False)
        kept.asking(KEY)(9)
        one, other = kept.setting(KEY, 4), kept.setting(KEY, 5)
        one(True)
        other(True)
        kept.asking(KEY)(4)
        answered = kept.asking(KEY)
        kept.setting(KEY, 6)(True)
        answered(6)
        self.assertRaises(PairBroken, kept.asking(KEY), 1)
