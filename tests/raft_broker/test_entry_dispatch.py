# -*- test-case-name: tests.raft_broker.test_entry_dispatch -*-
"""Messages of committed entries come into their queues; what is not a message is passed over alone."""

from __future__ import annotations

import random

from twisted.trial.unittest import SynchronousTestCase

from dledger.base.disk.hints import Hints
from dledger.base.disk.unreadable import FILLER
from dledger.raft_broker.entry_dispatch import EntryDispatch
from dledger.raft_broker.stamps import unseen_record
from dledger.rocketmq.store.queues.consume_queues import ConsumeQueues
from dledger.rocketmq.store.records.events import BrokerEvents
from protocols.wire.rocketmq.layout import METADATA_TOPIC
from tests.broker.support import config_of, message, some_message
from tests.raft_broker.rig import LedgerOfMessages


class DispatchTests(SynchronousTestCase):
    """From a ledger into queues."""

    def setUp(self) -> None:
        self.ledger = LedgerOfMessages()
        self.addCleanup(self.ledger.store.abandon)
        self.queues = ConsumeQueues(config_of(), Hints(self.ledger.disk))
        self.addCleanup(self.queues.close)

    def dispatch(self, *, bytes_max: int = 1 << 20, committed_index: int | None = None) -> EntryDispatch:
        """Everything that is committed."""
        log = self.ledger.log(committed_index)
        self.addCleanup(log.abandon)
        levels = config_of().delay_levels_ms
        dispatch = EntryDispatch(log, self.queues, levels, offset=0, events=BrokerEvents())
        before = -1
        while dispatch.offset != before:
            before = dispatch.offset
            dispatch.step(bound=log.record_end, bytes_max=bytes_max)
        return dispatch

    def units(self) -> dict[tuple[str, int], list[tuple[int, int]]]:
        """Queue to the offsets in the log and in the queue of its units."""
        found = {}
        for key in self.queues.keys():
            queue = self.queues.get(*key)
            assert queue is not None
            found[key] = [(unit.offset, unit.queue_offset) for unit in queue.read(0, 1000)]
        return found

    def test_messages_of_any_kind_are_dispatched(self) -> None:
        """Of any kind and size, in slices of any size: queued ones have their places, nothing else has."""
        rng = random.Random(5)
        expected: dict[tuple[str, int], list[tuple[int, int]]] = {}
        for _ in range(60):
            batch = [some_message(rng) for _ in range(rng.randrange(1, 4))]
            first = len(self.ledger.place.offsets)
            self.ledger.append(*batch)
            for number, one in enumerate(batch, first):
                if one.is_queued:
                    unit = (self.ledger.place.offsets[number], self.ledger.place.queue_offsets[number])
                    expected.setdefault((one.topic, one.queue_id), []).append(unit)
        for bytes_max in (1, 700, 1 << 20):
            self.queues.destroy()
            dispatch = self.dispatch(bytes_max=bytes_max)
            self.assertEqual(self.units(), expected)
            self.assertEqual(dispatch.offset, self.ledger.store.end_position)

    def test_uncommitted_messages_are_in_no_queue(self) -> None:
        """Nothing after the committed end is in a queue."""
        self.ledger.append(*[message() for _ in range(6)])
        dispatch = self.dispatch(committed_index=3)
        self.assertEqual(len(self.units()["T1", 0]), 4)
        self.assertEqual(dispatch.offset, self.ledger.store.position_of(4))

    def test_log_that_begins_after_the_place(self) -> None:
        """What expired before it was dispatched leaves a gap: the next message has its own index."""
        self.ledger.append(*[message() for _ in range(6)])
        log = self.ledger.log(None)
        self.addCleanup(log.abandon)
        dispatch = EntryDispatch(
            log, self.queues, config_of().delay_levels_ms, offset=0, events=BrokerEvents(),
            expire=self.queues.expire,
        )
        dispatch.step(bound=self.ledger.store.position_of(2))
        self.assertEqual([place for _, place in self.units()["T1", 0]], [0, 1])
        log.begin_offset = self.ledger.store.position_of(4)
        dispatch.step(bound=log.record_end)
        queue = self.queues.get("T1", 0)
        assert queue is not None
        self.assertEqual((queue.begin_index, queue.next_index, queue.misplaced), (4, 6, 0))
        self.assertEqual([unit.offset for unit in queue.read(4, 9)], self.ledger.place.offsets[4:])

    def test_metadata_are_announced_with_their_age(self) -> None:
        """Those before the place of the saved tables, too: they say where queues end."""
        self.ledger.store.append_bodies((unseen_record(METADATA_TOPIC, b"{}"),) * 2, 3)
        log, heard = self.ledger.log(None), []
        self.addCleanup(log.abandon)
        events = BrokerEvents()
        self.patch(events, "metadata_logged", lambda *where, is_kept: heard.append((*where[1:], is_kept)))
        positions = [self.ledger.store.position_of(index) for index in range(2)]
        dispatch = EntryDispatch(
            log, self.queues, (), offset=0, events=events, held=positions[1],
        )
        dispatch.step(bound=log.record_end)
        self.assertEqual(heard, [(positions[0] + 48, 3, True), (positions[1] + 48, 3, False)])
        dispatch.another(self.queues, 0).step(bound=log.record_end)
        self.assertEqual(len(heard), 2)

    def test_foreign_entries_are_passed_over(self) -> None:
        """Empty, short, or another's: passed over one by one; the messages around them keep their places."""
        self.ledger.append(message(b"a"))
        self.ledger.store.append_bodies((b"", b"x" * 20, b"y" * 300), 1)
        self.ledger.append(message(b"b"))
        dispatch = self.dispatch()
        self.assertEqual((dispatch.passed_over, dispatch.dispatched), (3, 2))
        self.assertEqual([place for _, place in self.units()["T1", 0]], [0, 1])

    def test_a_message_must_fill_its_entry(self) -> None:
        """A message that is shorter than its entry is none: its other bytes have no meaning."""
        (record,) = self.ledger.records([message()])
        self.ledger.store.append_bodies((bytes(record) + b"rest",), 1)
        self.assertEqual(self.dispatch().passed_over, 1)
        self.assertEqual(self.units(), {})

    def test_damage_holds_the_dispatch(self) -> None:
        """Where an entry must begin, there is none: the dispatch waits there until it is mended."""
        self.ledger.append(message())
        log = self.ledger.log()
        self.addCleanup(log.abandon)
        file = self.ledger.disk.open(f"base/dledger-n0/data/{0:020d}")
        start = file.pread(8, 0)
        file.pwrite(b"\x07", 3)
        dispatch = EntryDispatch(log, self.queues, (), offset=0, events=BrokerEvents())
        error = self.assertRaises(OSError, dispatch.step, bound=log.record_end)
        self.assertIn("no entry begins at 0", str(error))
        # What is read where the disk gives nothing is no blank, either.
        file.pwrite(FILLER[:8], 0)
        self.assertRaises(OSError, dispatch.step, bound=log.record_end)
        self.assertEqual(dispatch.offset, 0)
        file.pwrite(start, 0)
        dispatch.step(bound=log.record_end)
        self.assertEqual(dispatch.dispatched, 1)
