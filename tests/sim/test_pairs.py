# -*- test-case-name: tests.sim.test_pairs -*-
"""Schedules of whole masters and slaves with their clients: they pass and repeat; what is wrong comes out."""

from __future__ import annotations

from functools import partial
from typing import Any
from unittest import mock

import attrs
from click.testing import CliRunner
from twisted.trial.unittest import SynchronousTestCase

from dledger.rocketmq.broker.consuming.commits import CommitJudge
from dledger.rocketmq.broker.producing.halves import HALF_TOPIC, OP_TOPIC
from dledger.rocketmq.store.log_checkpoints import LogCheckpoints
from dledger.rocketmq.store.queues.consume_queue import ConsumeQueue
from dledger.rocketmq.store.records.store_config import UNIT_SIZE
from dledger.testing.brokers.__main__ import main
from dledger.testing.brokers.admin_traffic import KEPT
from dledger.testing.brokers.asked_traffic import MAX_OFFSET, MIN_OFFSET, PUSH_REPLY, SEARCH_OFFSET
from dledger.testing.brokers.pair_schedule import PairFocus, PairWorld, run_pair_schedule
from dledger.testing.brokers.rig.accounts import (
    ACKED,
    ASKED,
    COMMIT,
    DONE,
    HALF,
    PLAIN,
    ROLLBACK,
    GroupFilter,
    PairBroken,
    ProducedMessage,
    TrafficRecord,
)
from dledger.testing.brokers.rig.machine import FLUSH_US
from dledger.testing.brokers.rig.states import (
    ABORT_PATH,
    COPIED_US,
    OffsetWatch,
    check_ahead,
    check_by_key,
    check_queues,
    check_stopped,
    records_of,
)
from protocols.wire.remoting import RemotingCommand
from protocols.wire.rocketmq.message import Message, encode_properties, make_message
from tests.broker.support import HOST

#: In the suite; more on request: C{python -m dledger.testing.brokers --schedules 1000}.
SEEDS = (1001, 1002)  # (The stage sim-pairs plays those from 1 on.)
CALM = PairFocus(faults=("nothing",), role="SYNC_MASTER")


class PairCase(SynchronousTestCase):
    """What dying processes log is no failure of a test: the rig itself hears of bugs."""

    def tearDown(self) -> None:
        self.flushLoggedErrors()

    def assertBroken(self, number: int, call: Any, *arguments: Any, **named: Any) -> None:
        """C{call} finds that promise broken."""
        error = self.assertRaises(PairBroken, call, *arguments, **named)
        self.assertTrue(str(error).startswith(f"B{number}: "), str(error))


def calm_world(focus: PairFocus, seconds: float, *, seed: int = 1) -> PairWorld:
    """A world without faults, after this time."""
    world = PairWorld(seed, focus)
    with world.bugs.listening():
        for machine in world.machines.values():
            world.clock.after(1, machine.start)
        world.traffic.begin()
        world.clock.after(1, world._watch)
        world.clock.run_until(int(seconds * 1e6))
    return world


class ScheduleTests(PairCase):
    """Sound code."""

    def test_some_seeds(self) -> None:
        """A few schedules hold."""
        outcomes = [run_pair_schedule(seed) for seed in SEEDS]
        self.assertEqual([one.failure for one in outcomes], [""] * len(SEEDS))
        self.assertGreater(sum(one.acknowledged for one in outcomes), 100)
        self.assertGreater(sum(one.restarts for one in outcomes), 5)
        self.assertGreater(sum(one.deliveries for one in outcomes), 500)

    def test_the_same_seed_gives_the_same_run(self) -> None:
        """Event for event."""
        focus = PairFocus(faults=("kill", "cut_client"), groups=True, pace_s=1.0)
        self.assertEqual(run_pair_schedule(5, focus=focus), run_pair_schedule(5, focus=focus))

    def test_unreadable_units_are_made_again(self) -> None:
        """Disks cannot read parts of queues: no message is lost or another one, and units are mended."""
        focus = PairFocus(faults=("spoil_queue", "read_error", "kill"), role="SYNC_MASTER", pace_s=0.7)
        mended: list[int] = []
        rewrite = ConsumeQueue.rewrite

        def rewritten(queue: ConsumeQueue, index: int, units: bytes) -> bool:
            mended.append(len(units) // UNIT_SIZE)
            return rewrite(queue, index, units)

        self.patch(ConsumeQueue, "rewrite", rewritten)
        self.assertEqual(run_pair_schedule(3, focus=focus).failure, "")
        self.assertGreater(sum(mended), 30)

    def test_exception_is_reported(self) -> None:
        """A bug that raises is a failure with its traceback."""
        name = "dledger.rocketmq.broker.consuming.pulls.PullCommands._answer"
        with mock.patch(name, side_effect=ZeroDivisionError("made up")):
            outcome = run_pair_schedule(1, focus=CALM)
        self.assertIn("ZeroDivisionError", outcome.failure)

    def test_slow_checkpoints_end(self) -> None:
        """A disk is fast again after two slow checkpoints, of which the second began within the first."""
        world = calm_world(CALM, 2.0)
        machine = world.slave_machine
        for us in (0, 500_000):
            world.clock.after(us, machine.slow_checkpoint, 1_000_000)
        with world.bugs.listening():
            world.clock.run_until(2_900_000)
            self.assertGreater(machine.flush_us, FLUSH_US)
            world.clock.run_until(4_000_000)
            self.assertEqual(machine.flush_us, FLUSH_US)

    def test_late_commits(self) -> None:
        """B28, in peace: some are sent, and count nothing; a broker that takes them is noticed."""
        world = calm_world(CALM, 25.0, seed=4)
        self.assertGreater(world.accounts.late, 3)
        with mock.patch.object(CommitJudge, "is_former", return_value=False):
            outcome = run_pair_schedule(4, focus=CALM)
        self.assertIn("of a deleted topic counts for", outcome.failure)

    def test_command(self) -> None:
        """Status 1, the seed, the sentence, and how to see it again; status 0 without a failure."""
        with mock.patch.object(PairWorld, "run", side_effect=PairBroken("B6: made up")):
            arguments = ["--schedules", "2", "--seed", "5", "--jobs", "1", "--stop-at", "1"]
            bad = CliRunner().invoke(main, arguments)
        self.assertEqual(bad.exit_code, 1)
        self.assertIn("seed 5 FAILED: B6: made up", bad.output)
        self.assertIn("python -m dledger.testing.brokers --bare --schedules 1 --seed 5 --trace", bad.output)
        with mock.patch.object(PairWorld, "run"):
            good = CliRunner().invoke(main, ["--schedules", "2", "--jobs", "1"])
        self.assertEqual(good.exit_code, 0, good.output)
        self.assertIn("2 schedules, 0 failed", good.output)


class RecordTests(PairCase):
    """B1 to B6, broken by hand."""

    def setUp(self) -> None:
        self.record = TrafficRecord()

    def sent(self, **fields: Any) -> ProducedMessage:
        """An acknowledged message."""
        values: dict[str, Any] = {
            "key": "m1", "topic": "T1", "queue_id": 0, "tag": "A", "number": 3, "body": b"b", "due_ms": 50,
            "kind": PLAIN, "era": 0, "outcome": ACKED, **fields,
        }
        made = self.record.sent["m1"] = ProducedMessage(**values)
        return made

    def got(self, body: bytes = b"b", key: str = "m1") -> Message:
        """It, as a consumer gets it."""
        return make_message(
            "T1", body, properties_data=encode_properties({"KEYS": key}), queue_id=0, flag=0, sys_flag=0,
            born_timestamp=1, born_host=HOST, store_host=HOST, store_timestamp=1, physical_offset=0,
            queue_offset=0, reconsume_times=0, prepared_transaction_offset=0,
        )

    def test_right(self) -> None:
        """It is got once, and nothing is missing then."""
        sent, group = self.sent(), GroupFilter("G", tags=frozenset("A"), above=2)
        self.assertEqual(self.record.missing(frozenset({"T1"}), group), ["m1"])
        self.record.delivered("G", self.got(), now_ms=50, era=0, passes=group)
        self.assertEqual(self.record.missing(frozenset({"T1"}), group), [])
        self.assertEqual(self.record.unacknowledged(frozenset({"T1"}), "P"), ["m1"])
        self.record.popped("P", sent, pop_ms=60, visible_ms=70).acked = ACKED
        self.assertEqual(self.record.unacknowledged(frozenset({"T1"}), "P"), [])

    def test_b1(self) -> None:
        """Another body, another key, a filter that excludes it."""
        self.sent()
        deliver = self.record.delivered
        self.assertBroken(1, deliver, "G", self.got(b"c"), now_ms=50, era=0)
        self.assertBroken(1, deliver, "G", self.got(key="m2"), now_ms=50, era=0)
        for group in (GroupFilter("G", tags=frozenset("B")), GroupFilter("G", above=3)):
            self.assertBroken(1, deliver, "G", self.got(), now_ms=50, era=0, passes=group)

    def test_b2(self) -> None:
        """A millisecond too early."""
        self.sent()
        self.assertBroken(2, self.record.delivered, "G", self.got(), now_ms=49, era=0)

    def test_b3(self) -> None:
        """A half message that nobody committed, that was rolled back; two ends."""
        sent = self.sent(kind=HALF)
        self.assertBroken(3, self.record.delivered, "G", self.got(), now_ms=50, era=0)
        sent.asked.add(COMMIT)
        self.record.delivered("G", self.got(), now_ms=50, era=0)
        self.record.ended(sent, ROLLBACK)
        self.assertBroken(3, self.record.delivered, "G", self.got(), now_ms=50, era=0)
        self.assertBroken(3, self.record.ended, sent, COMMIT)

    def test_b4(self) -> None:
        """A message of the life before."""
        self.sent()
        self.assertBroken(4, self.record.delivered, "G", self.got(), now_ms=50, era=1)

    def test_b5(self) -> None:
        """While it is invisible, and after its acknowledgement; not across a promotion."""
        sent = self.sent()
        given = self.record.popped("P", sent, pop_ms=60, visible_ms=70)
        self.assertBroken(5, self.record.popped, "P", sent, pop_ms=69, visible_ms=80)
        given.acked = ACKED
        self.assertBroken(5, self.record.popped, "P", sent, pop_ms=99, visible_ms=100)
        late = self.record.popped("P", sent, pop_ms=50, visible_ms=60)
        self.assertIsNot(late, self.record.given["P", "m1"])
        self.record.life += 1
        self.record.popped("P", sent, pop_ms=99, visible_ms=100)

    def test_two_copies_of_one_pop(self) -> None:
        """They may come at once, also if one of them has come again since; two pops of one copy may not."""
        for group, first in (("P1", (1, 13)), ("P2", (1, 15))):
            sent = self.sent()
            self.record.popped(group, sent, pop_ms=10, visible_ms=20, copy=first)
            self.record.popped(group, sent, pop_ms=30, visible_ms=90, copy=(2, 14))
        self.record.popped("P1", sent, pop_ms=31, visible_ms=91, copy=(1, 15))
        self.assertBroken(5, self.record.popped, "P2", sent, pop_ms=31, visible_ms=91, copy=(1, 15))

    def test_ends_of_transactions(self) -> None:
        """Those that the next master has not are open again; the others are not."""
        sent = self.sent(kind=HALF)
        half = attrs.evolve(self.got(), topic=HALF_TOPIC, queue_offset=7)
        over = [encode_properties({"TRAN_END": end}) for end in ("8", "12")]
        kinds = [attrs.evolve(self.got(b"7,"), topic=OP_TOPIC, properties_data=one) for one in over]
        for end, records, is_kept in (
            (COMMIT, [half, self.got()], True), (COMMIT, [half], False), (ROLLBACK, [half], False),
            (ROLLBACK, [half, kinds[0]], False), (ROLLBACK, [half, kinds[1]], True),
            (ROLLBACK, [attrs.evolve(half, queue_offset=8), kinds[1]], False),
        ):
            sent.ended = end
            self.record.keep_ends(records)
            self.assertEqual(sent.ended, end if is_kept else "")

    def test_b15_and_b16(self) -> None:
        """A message that was sent back comes as a retry; one that was recalled does not come."""
        sent = self.sent()
        self.record.sent_back["G", "m1"] = None
        self.record.delivered("G", self.got(), now_ms=50, era=0)
        self.assertEqual(list(self.record.sent_back), [("G", "m1")])
        retry = attrs.evolve(self.got(), topic="%RETRY%G", properties_data=encode_properties(
            {"KEYS": "m1", "RETRY_TOPIC": "T1"}
        ))
        self.assertBroken(1, self.record.delivered, "H", retry, now_ms=50, era=0)
        self.record.delivered("G", retry, now_ms=50, era=0)
        self.assertEqual(self.record.sent_back, {})
        sent.recall = ASKED
        self.record.delivered("G", self.got(), now_ms=50, era=0)
        self.assertEqual(list(self.record.needed(frozenset({"T1"}))), [])
        sent.recall = DONE
        self.assertBroken(16, self.record.delivered, "G", self.got(), now_ms=50, era=0)
        self.record.doubt()
        self.record.delivered("G", self.got(), now_ms=50, era=0)


class WorldTests(PairCase):
    """B7 to B15, broken by hand in a calm world."""

    def world(self, seconds: float = 6) -> PairWorld:
        """Some seconds of peace."""
        return calm_world(CALM, seconds)

    def test_b7(self) -> None:
        """A unit of another record; a queue that is not there."""
        world = self.world()
        parts = world.master_machine.parts
        assert parts is not None
        check_queues("m", parts)
        queue = parts.store.queues.get("T1", 0)
        assert queue is not None
        queue.put(queue.next_index, parts.store.log.record_end, 100, 0)
        self.assertBroken(7, check_queues, "m", parts)
        check_queues("m", parts, without=frozenset({"T1"}))
        parts.store.queues.destroy("T2")
        self.assertBroken(7, check_queues, "m", parts, without=frozenset({"T1"}))
        check_ahead("m", parts)
        parts.store.dispatcher.offset = parts.store.log.record_end + 1
        self.assertBroken(7, check_ahead, "m", parts)

    def test_b8(self) -> None:
        """What a slave lacks is reported, of each table."""
        world = self.world()
        with world.bugs.listening():
            world.heal()
            while world.unsettled():
                world.clock.run_until(world.clock.now_us + 500_000)
        slave = world.slave_machine.parts
        assert slave is not None
        slave.metadata.consumer_offsets.commit("G1", "T1", 0, 1 << 40, 1)
        self.assertIn("the offset of G1", world.unsettled())
        world.watch.committing(world.slave_machine.name, ("G1", "T1", 0), 1 << 40)
        self.assertEqual(world.unsettled(), "")
        slave.metadata.groups.delete("G1", 1)
        self.assertIn("group G1", world.unsettled())
        slave.metadata.topics.delete("T1", 1)
        self.assertIn("topic T1", world.unsettled())

    def test_more_stories(self) -> None:
        """In peace messages are sent back and come again, others are recalled, and a group pops in order."""
        world = self.world(13)
        accounts = world.accounts
        self.assertGreater(len(accounts.got["PO"]), 3)
        self.assertGreater(accounts.returned, 0)
        self.assertTrue(any(one.recall == DONE for one in accounts.sent.values()))
        with world.bugs.listening():
            world.heal()
            while world.unsettled():
                world.clock.run_until(world.clock.now_us + 500_000)
        accounts.sent_back["GB", "m1"] = None
        self.assertIn("sent back", world.unsettled())

    def test_b17(self) -> None:
        """A reply of nobody, one with another body, and one that comes twice; and none after the faults."""
        world = self.world(8)
        traffic = world.traffic
        self.assertGreater(len(traffic.pushed), 3)
        self.assertFalse(traffic.has_come)
        traffic.replies["own"] = b"body"

        def reply(key: str, body: bytes) -> RemotingCommand:
            named = encode_properties({"CORRELATION_ID": key}).decode()
            return RemotingCommand(code=PUSH_REPLY, opaque=0, body=body, ext_fields={"properties": named})

        for wrong in (reply("nobody", b""), reply("own", b"other")):
            self.assertBroken(17, traffic.check_asked, "m", wrong)
        traffic.check_asked("m", reply("own", b"body"))
        self.assertBroken(17, traffic.check_asked, "m", reply("own", b"body"))
        with world.bugs.listening():
            world.heal()
            while (why := world.unsettled()):
                world.clock.run_until(world.clock.now_us + 500_000)
        self.assertEqual((why, traffic.has_come), ("", True))
        traffic.has_come = False
        self.assertEqual(world.unsettled(), "no reply came")

    def test_b18(self) -> None:
        """A queue that ends earlier than it did, or begins after its end; another message at a place."""
        for code, answered in ((MAX_OFFSET, 0), (MIN_OFFSET, 1 << 30), (SEARCH_OFFSET, 1 << 30)):
            world = self.world(8)
            ask = world.traffic.client.ask

            async def changed(
                target: str, asked: int, *given: Any, code: int = code, answered: int = answered,
                ask: Any = ask,
            ) -> RemotingCommand | None:
                if asked == code:
                    return RemotingCommand(code=0, opaque=0, ext_fields={"offset": str(answered)})
                answer: RemotingCommand | None = await ask(target, asked, *given)
                return answer

            with mock.patch.object(world.traffic.client, "ask", changed), world.bugs.listening():
                self.assertBroken(18, world.clock.run_until, world.clock.now_us + 5_000_000)
        world = self.world(8)
        sent = next(one for one in world.accounts.needed(frozenset(KEPT)) if one.kind == PLAIN)
        other = next(one for one in world.accounts.needed(frozenset(KEPT)) if one is not sent)
        sent.offset = other.offset
        tools = world.traffic.parts[0]
        with mock.patch.object(tools, "_some_sent", lambda life: sent), world.bugs.listening():
            self.assertBroken(18, world.clock.run_until, world.clock.now_us + 5_000_000)

    def test_b9(self) -> None:
        """An offset that goes back, at the master and at its slave, for no reason."""
        world, key = self.world(), ("G", "T1", 0)
        parts = world.master_machine.parts
        assert parts is not None
        for masters in (True, False):
            watch = OffsetWatch(lambda: 10 * COPIED_US)
            for offset in (3, 5, 4):
                parts.metadata.consumer_offsets.commit(*key, offset, 1)
                if offset != 4:
                    watch.look("m", 1, parts, masters=masters)
            self.assertBroken(9, watch.look, "m", 1, parts, masters=masters)
            watch.look("m", 2, parts, masters=masters)
            watch.committing("m", key, 3)
            parts.metadata.consumer_offsets.commit(*key, 3, 1)
            watch.look("m", 2, parts, masters=masters)
            for offset in (9, 8):
                parts.metadata.consumer_offsets.commit(*key, offset, 1)
                if offset == 9:
                    watch.look("m", 2, parts, masters=masters)
                watch.deleting("T1")
            watch.look("m", 2, parts, masters=masters)
            parts.metadata.consumer_offsets.commit(*key, 3, 1)
            # A slave began with 3: its master's offset replaces it.
            watch = OffsetWatch(lambda: 10 * COPIED_US)
            watch.look("m", 3, parts, masters=masters)
            parts.metadata.consumer_offsets.commit(*key, 2, 1)
            if masters:
                self.assertBroken(9, watch.look, "m", 3, parts, masters=masters)
            else:
                watch.look("m", 3, parts, masters=masters)

    def test_b10(self) -> None:
        """A message that no key finds."""
        world = self.world()
        parts = world.master_machine.parts
        assert parts is not None
        sent = next(one for one in world.accounts.needed(frozenset({"T1"})) if one.kind == PLAIN)
        begins = {record.physical_offset for record in records_of(parts)}
        check_by_key("m", parts, sent, begins)
        assert parts.store.indexing is not None
        index = parts.store.indexing.index
        # Also an entry of a record that a cut has taken: the middle of another one is there now.
        with mock.patch.object(index, "search", lambda *_: iter((sent.offset + 1, sent.offset))):
            check_by_key("m", parts, sent, begins)
        self.assertBroken(10, check_by_key, "m", parts, sent, begins - {sent.offset})
        sent.key = "another"
        self.assertBroken(10, check_by_key, "m", parts, sent, begins)

    def test_b11_and_b12(self) -> None:
        """An acknowledged message that the slave has not, or the next master."""
        world = self.world()
        sent = next(world.accounts.needed(frozenset({"T1"})))
        world.placed(sent, 0)
        sent.offset = 1 << 40
        self.assertBroken(11, world.placed, sent, 0)
        sent.is_replicated = True
        self.assertBroken(12, world._count_losses)
        sent.offset = next(one.offset for one in world.accounts.needed(frozenset({"T2"})))
        self.assertBroken(12, world._count_losses)  # another message is there
        sent.is_replicated = False
        world._count_losses()
        self.assertTrue(sent.may_be_lost)

    def test_b12_after_a_loss_of_power(self) -> None:
        """A master has lost an acknowledged message; one that was not flushed in time may be lost."""
        world = self.world()
        sent = next(world.accounts.needed(frozenset({"T1"})))
        sent.is_safe = True
        machine = world.master_machine
        world._ended_at[machine.name] = 1 << 40
        machine.kill()
        machine.lose_power()
        world._ended_at[machine.name] = 1 << 40
        sent.offset = 1 << 39
        self.assertBroken(12, world._start, machine)
        machine.kill()
        machine.lose_power()
        world._ended_at[machine.name] = 1 << 40
        sent.is_safe = False
        world._start(machine)
        self.assertTrue(sent.may_be_lost)

    def test_b12_after_a_kill(self) -> None:
        """A master that was killed has lost bytes; it may if a sync of its disk had failed."""
        world = self.world()
        machine = world.master_machine
        for failed in (True, False):
            parts = machine.parts
            assert parts is not None
            if failed:
                machine.disk.open("/store/written", create=True).pwrite(b"1", 0)
                machine.disk.keeps_failed_writes = False
                machine.disk.arm(syncs=1)
                self.assertRaises(OSError, machine.disk.open("/store/written").datasync)
            machine.kill()
            world._ended_at[machine.name] = 1 << 40
            if failed:
                world._start(machine)
                self.assertEqual(world.accounts.losses, 1)
            else:
                self.assertBroken(12, world._start, machine)

    def test_b13(self) -> None:
        """A broker that gives up although its disk is well."""
        world = PairWorld(1, CALM)
        world.clock.after(5_000_000, lambda: world.master_machine.failed("made up"))
        self.assertBroken(13, world.run)

    def test_b14(self) -> None:
        """A SYNC_MASTER whose slave is frozen in the end."""
        world = PairWorld(1, CALM)
        probe = world.traffic.probe

        def alone() -> None:
            world.slave_machine.freeze()
            probe()

        self.patch(world.traffic, "probe", alone)
        self.assertBroken(14, world.run)

    def test_b27(self) -> None:
        """A stop without a checkpoint leaves units of queues unwritten; one that fails says so."""
        world = calm_world(CALM, 2)
        machine = world.master_machine
        assert machine.parts is not None
        path = world.log_path(machine)
        self.assertTrue(machine.disk.exists(ABORT_PATH))
        check_stopped(machine, path)
        machine.exits = partial(check_stopped, log_path=path)

        async def write(checkpoints: LogCheckpoints) -> None:
            """Nothing."""

        self.patch(LogCheckpoints, "write", write)
        machine.stop()
        with world.bugs.listening():
            self.assertBroken(27, world.clock.run_until, world.clock.now_us + 5_000_000)
