# -*- test-case-name: tests.broker.store.test_reput -*-
"""Records find their queues, in slices, after whoever appends."""

from __future__ import annotations

import random

from twisted.internet.task import Clock
from twisted.python.failure import Failure
from twisted.trial.unittest import SynchronousTestCase

from dledger.base.disk.hints import Hints
from dledger.rocketmq.store.log.commit_log import CommitLog
from dledger.rocketmq.store.queues.consume_queues import UNWRITTEN_MAX, ConsumeQueues
from dledger.rocketmq.store.queues.reput import (
    BULK_BYTES,
    BULK_PAUSE_TURNS,
    BULK_TURNS,
    DEFERRED_S,
    SLICE_BYTES_MAX,
    SLICE_RECORDS_MAX,
    SLICE_RECORDS_MIN,
    Dispatcher,
    ReputMessageService,
)
from dledger.rocketmq.store.records.events import Arrived
from dledger.testing.world.memory_disk import MemoryDisk
from dledger.values.errors import StoreError
from protocols.wire.rocketmq.message import tags_code_of
from tests.broker.support import (
    LOG_SIZE,
    config_of,
    log_bytes,
    message,
    messages_in,
    open_log,
    some_message,
)

Units = dict[tuple[str, int], list[tuple[int, int, int, int]]]


def expected(log: CommitLog) -> Units:
    """The units that the queues must hold, by the readable codec."""
    levels = config_of().delay_levels_ms
    units: Units = {}
    for one in messages_in(log):
        if one.transaction in ("prepared", "rollback"):
            continue
        code = tags_code_of(one.tags)
        if one.topic == "SCHEDULE_TOPIC_XXXX":
            code = one.store_timestamp + levels[min(int(one.properties["DELAY"]), 18) - 1]
        units.setdefault((one.topic, one.queue_id), []).append(
            (one.queue_offset, one.physical_offset, one.size, code)
        )
    return units


def found(queues: ConsumeQueues) -> Units:
    """Their units."""
    units: Units = {}
    for key in queues.keys():
        queue = queues.get(*key)
        assert queue is not None
        units[key] = [tuple(unit) for unit in queue.read(queue.begin_index, 1 << 30)]
    return units


class Rig(SynchronousTestCase):
    """A log with any messages, empty queues, a dispatcher."""

    def setUp(self) -> None:
        self.disk = MemoryDisk()
        self.log = open_log(self.disk)
        rng = random.Random(1)
        for number in range(80):
            self.log.append([[some_message(rng)]], 1_000 + number)
        self.queues = ConsumeQueues(config_of(), Hints(self.disk))
        self.dispatcher = self.new_dispatcher()

    def new_dispatcher(self, offset: int = 0) -> Dispatcher:
        """One that begins at C{offset}."""
        return Dispatcher(self.log, self.queues, config_of().delay_levels_ms, offset=offset)

    def run_all(self, dispatcher: Dispatcher, bytes_max: int = 1000) -> int:
        """@return: the number of steps."""
        steps = 0
        before = -1
        while dispatcher.offset != before:
            before = dispatcher.offset
            dispatcher.step(bound=self.log.end_offset, bytes_max=bytes_max)
            steps += 1
        return steps


class DispatcherTests(Rig):
    """The work."""

    def test_records_of_any_kind_are_dispatched(self) -> None:
        """Tags, delays, transactions: as the readable codec says, in slices of any size."""
        for bytes_max in (1, 100, 1000, 1 << 20):
            self.queues.destroy()
            steps = self.run_all(self.new_dispatcher(), bytes_max)
            self.assertEqual(found(self.queues), expected(self.log))
            self.assertTrue(steps > 40 if bytes_max == 1 else steps > 1)

    def test_each_step_names_its_queues(self) -> None:
        """Each step says which queues have new messages."""
        seen = set()
        while arrived := self.dispatcher.step(bound=self.log.end_offset, bytes_max=2000):
            seen |= arrived
        self.assertEqual(seen, set(expected(self.log)))
        self.assertEqual(self.dispatcher.store_timestamp, 1_079)

    def test_written_now_and_then(self) -> None:
        """When many units wait, those of all queues; before that the queues only show them."""
        self.run_all(self.dispatcher)
        self.assertFalse(self.disk.exists(config_of().consume_queue_path))
        self.assertEqual(found(self.queues), expected(self.log))
        written = self.queues.unwritten
        for number in range(UNWRITTEN_MAX - written):
            self.log.append([[message(topic=f"New{number % 2}")]], 9_000)
        self.run_all(self.dispatcher, SLICE_BYTES_MAX)
        self.assertEqual(self.queues.unwritten, 0)
        for topic in ("New0", "New1"):
            queue = self.queues.get(topic, 0)
            assert queue is not None
            self.assertFalse(queue.has_pending)

    def test_a_dispatch_resumes_anywhere(self) -> None:
        """From any record again: what is there already is not put twice."""
        self.run_all(self.dispatcher)
        for one in messages_in(self.log)[::7]:
            again = self.new_dispatcher(one.physical_offset)
            self.run_all(again)
            self.assertEqual(again.offset, self.log.end_offset)
            self.assertEqual(found(self.queues), expected(self.log))

    def test_the_bound_hides_later_records(self) -> None:
        """A record is visible when it ends at or below the bound, wherever that is."""
        ends = [one.physical_offset + one.size for one in messages_in(self.log)]
        for bound in (*range(0, 700, 7), *range(LOG_SIZE - 300, LOG_SIZE + 300, 7), *ends[::9]):
            self.queues.destroy()
            dispatcher = self.new_dispatcher()
            for _ in range(30):
                dispatcher.step(bound=bound, bytes_max=100_000)
            whole = sum(end <= bound for end in ends)
            self.assertEqual(dispatcher.dispatched, whole, bound)

    def test_part_of_a_record_on_a_slave(self) -> None:
        """The rest comes later; until then nothing is wrong."""
        stream = log_bytes(self.log)
        self.log, source = open_log(MemoryDisk(), is_slave=True), self.log
        dispatcher = self.new_dispatcher()
        at = 0
        while at < len(stream):
            size = min(97, LOG_SIZE - at % LOG_SIZE, len(stream) - at)
            self.log.append_raw(at, stream[at : at + size])
            at += size
            dispatcher.step(bound=self.log.end_offset)
        self.assertEqual(found(self.queues), expected(source))

    def test_log_that_begins_later(self) -> None:
        """It goes on at the log's beginning."""
        self.log.flusher.sync()
        self.log.expire_first()
        self.run_all(self.dispatcher)
        self.assertEqual(found(self.queues), expected(self.log))

    def test_damage_stops_the_dispatch(self) -> None:
        """It stops there, and says so; what was before is in its queue."""
        broken = messages_in(self.log)[20]
        self.disk.open(f"base/commitlog/{broken.physical_offset // LOG_SIZE * LOG_SIZE:020d}").pwrite(
            b"\0\0\0\0", broken.physical_offset % LOG_SIZE + 84
        )
        for at in range(100):
            if at == 99:
                self.fail("the damage was not noticed")
            try:
                self.dispatcher.step(bound=self.log.end_offset, bytes_max=300)
            except StoreError as error:
                self.assertIn(f"log at {broken.physical_offset}", str(error))
                break
        self.assertEqual(self.dispatcher.dispatched, 20)

    def test_topic_that_is_no_name(self) -> None:
        """Passed over and counted; the log goes on."""
        self.log.append([[message(topic="../x")], [message(topic="T9")]], 5_000)
        self.run_all(self.dispatcher)
        self.assertEqual(self.queues.refused, 1)
        self.assertEqual(len(found(self.queues)["T9", 0]), 1)


class ServiceTests(Rig):
    """The work, a slice per turn of the reactor."""

    def setUp(self) -> None:
        super().setUp()
        self.clock = Clock()
        self.failures: list[Failure] = []
        self.arrived: list[set[tuple[str, int]]] = []
        self.service = ReputMessageService(
            self.dispatcher, clock=self.clock, bound=lambda: self.log.record_end,
            arrived=self.arrived.append, failed=self.failures.append,
        )

    def test_not_before_start(self) -> None:
        """Nothing is scheduled."""
        self.service.wake()
        self.assertEqual(self.clock.getDelayedCalls(), [])
        self.successResultOf(self.service.caught_up())

    def test_the_service_catches_up_in_slices(self) -> None:
        """Slice by slice; then it rests until it is woken."""
        self.service.start()
        caught_up = self.service.caught_up()
        self.assertNoResult(caught_up)
        for _ in range(20):
            self.clock.advance(0)
        self.successResultOf(caught_up)
        self.assertEqual((self.service.behind_bytes, self.clock.getDelayedCalls()), (0, []))
        self.log.append([[message(topic="New")]], 9_000)
        self.service.wake()
        self.service.wake()
        self.clock.advance(0)
        self.assertEqual(self.arrived[-1], {("New", 0)})

    def test_new_records_may_be_deferred(self) -> None:
        """New records wait until they are released, or for a while; not those that one turn has left over."""
        self.service.start()
        while self.service.behind_bytes:
            self.clock.advance(0)
        for number, release in enumerate((True, False)):
            self.log.append([[message(topic=f"New{number}")]], 9_000)
            self.service.wake(defers=True)
            self.clock.advance(DEFERRED_S / 2)
            self.assertGreater(self.service.behind_bytes, 0)
            if release:
                self.service.release()
                self.service.release()
            self.clock.advance(0 if release else DEFERRED_S / 2)
            self.assertEqual(self.service.behind_bytes, 0)
        for _ in range(16 * SLICE_RECORDS_MIN):
            self.log.append([[message(topic="Many")]], 9_000)
        self.service.wake(defers=True)
        before = len(self.arrived)
        self.clock.advance(DEFERRED_S)
        self.assertGreater(len(self.arrived), before + 1)
        self.assertEqual((self.service.behind_bytes, self.clock.getDelayedCalls()), (0, []))
        self.service.release()  # there is nothing to be released

    def test_records_gather_while_nobody_waits(self) -> None:
        """One turn takes those of many puts, also after slaves have them; a reader that waits gets each."""
        self.service.start()
        while self.service.behind_bytes:
            self.clock.advance(0)
        for is_awaited, turns in ((False, 1), (True, 3)):
            self.service._is_awaited = lambda is_awaited=is_awaited: is_awaited  # type: ignore[misc]
            before = len(self.arrived)
            for number in range(3):
                self.log.append([[message(topic=f"New{number}")]], 9_000)
                self.service.wake(defers=bool(number))
                self.clock.advance(0)
                self.service.release()
                self.clock.advance(0)
            self.clock.advance(DEFERRED_S)
            self.assertEqual((len(self.arrived) - before, self.service.behind_bytes), (turns, 0))

    def test_shown_to_those_who_ask(self) -> None:
        """Records that gather are dispatched before a request that could miss them; nothing else is."""
        self.service._is_awaited = lambda: False
        self.service.start()
        while self.service.behind_bytes:
            self.clock.advance(DEFERRED_S)
        self.service.show()
        self.log.append([[message(topic="New")]], 9_000)
        self.service.wake()
        self.assertGreater(self.service.behind_bytes, 0)
        self.service.show()
        self.assertEqual(self.service.behind_bytes, 0)
        self.assertEqual(self.clock.getDelayedCalls(), [])
        self.service._is_awaited = lambda: True
        self.log.append([[message(topic="New")]], 9_000)
        self.service.wake()
        self.service.show()  # (the next turn dispatches it anyhow)
        self.assertGreater(self.service.behind_bytes, 0)

    def test_who_waits_for_all_hurries_it(self) -> None:
        """Records that gather are dispatched at once when somebody asks for that."""
        self.service._is_awaited = lambda: False
        self.service.start()
        caught_up = self.service.caught_up()
        for _ in range(20):
            self.clock.advance(0)
        self.successResultOf(caught_up)
        self.log.append([[message(topic="New")]], 9_000)
        self.service.wake()
        self.clock.advance(0)
        self.assertGreater(self.service.behind_bytes, 0)
        caught_up = self.service.caught_up()
        self.clock.advance(0)
        self.successResultOf(caught_up)

    def turns(self, grown: int, *, gives_way: bool) -> list[int]:
        """In which turns something is dispatched, when the bound has risen by a step in each."""
        asked = 0

        def bound() -> int:
            nonlocal asked
            asked += 1
            return asked * grown

        service = ReputMessageService(
            self.dispatcher, clock=self.clock, bound=bound, arrived=lambda _: None,
            failed=self.failures.append, gives_way=gives_way,
        )
        steps: list[int] = []
        self.patch(self.dispatcher, "step", lambda bound, bytes_max: steps.append(asked - 1) or set())
        service.start()
        for _ in range(3):
            service.wake()
            self.clock.advance(0)
        return steps

    def slices(self, size: int, *, behind: int) -> list[int]:
        """Bytes in each of three turns, with records of one size; a fixed number is behind, all the time."""
        reported: list[int] = []

        def step(bound: int, bytes_max: int) -> Arrived:
            reported.append(bytes_max)
            self.dispatcher.offset += 20 * size
            self.dispatcher.dispatched += 20
            return set()

        service = ReputMessageService(
            self.dispatcher, clock=self.clock, bound=lambda: self.dispatcher.offset + behind * size,
            arrived=lambda _: None, failed=self.failures.append,
        )
        self.patch(self.dispatcher, "step", step)
        service.start()
        for _ in range(3):
            service._turn()
        service.stop()
        return reported[1:3]

    def test_a_turn_is_kept_short(self) -> None:
        """Few records in a turn; a part of what is behind, if that is more; never more than both bounds."""
        least, most = SLICE_RECORDS_MIN * 100, SLICE_RECORDS_MAX * 100
        for behind, expected in ((1, least), (4 * 130, 13000), (4 * 1000, 100_000), (1 << 20, most)):
            self.assertEqual(self.slices(100, behind=behind), [expected, expected])
        self.assertEqual(self.slices(5000, behind=1 << 20), [SLICE_BYTES_MAX, SLICE_BYTES_MAX])

    def test_dispatching_gives_way_to_copying(self) -> None:
        """While a log is copied in bulk one turn of many dispatches; no turn is passed over otherwise."""
        self.assertEqual(
            self.turns(BULK_BYTES, gives_way=True), [BULK_TURNS, 2 * BULK_TURNS, 3 * BULK_TURNS]
        )
        self.assertEqual(self.turns(BULK_BYTES - 1, gives_way=True), [1, 2, 3])
        self.assertEqual(self.turns(BULK_BYTES, gives_way=False), [1, 2, 3])

    def test_gives_way_for_a_while(self) -> None:
        """Some turns more, as the copy may be waiting for the master; then everything is dispatched."""
        asked: list[int] = []

        def bound() -> int:
            asked.append(BULK_BYTES if asked else 0)
            return asked[-1]

        service = ReputMessageService(
            self.dispatcher, clock=self.clock, bound=bound, arrived=lambda _: None,
            failed=self.failures.append, gives_way=True,
        )
        steps: list[int] = []
        self.patch(self.dispatcher, "step", lambda bound, bytes_max: steps.append(len(asked) - 1) or set())
        service.start()
        self.clock.advance(0)
        service.stop()
        self.assertEqual(steps, [BULK_PAUSE_TURNS + 1])

    def test_a_passed_turn_is_made_up(self) -> None:
        """A turn that was passed over is followed by another one: nothing is forgotten."""
        self.service._gives_way = True
        self.service.start()
        self.service.bound = lambda: self.log.record_end + (1 << 40)
        for _ in range(20):
            self.clock.advance(0)
        self.assertEqual((self.dispatcher.offset, self.clock.getDelayedCalls()), (self.log.record_end, []))

    def test_the_owner_hears_of_damage_once(self) -> None:
        """The owner is informed once; nothing more is scheduled, and nobody waits for ever."""
        self.disk.open(f"base/commitlog/{0:020d}").pwrite(b"\1\2\3\4", 4)
        self.service.start()
        caught_up = self.service.caught_up()
        self.clock.advance(0)
        self.assertEqual([failure.type for failure in self.failures], [StoreError])
        self.assertEqual(len(self.flushLoggedErrors(StoreError)), 1)
        self.successResultOf(caught_up)
        self.service.wake()
        self.assertEqual(self.clock.getDelayedCalls(), [])

    def test_a_stop_cancels_the_turn(self) -> None:
        """A turn that was scheduled does not come."""
        self.service.start()
        self.service.stop()
        self.assertEqual(self.clock.getDelayedCalls(), [])
        self.assertEqual(self.dispatcher.dispatched, 0)
