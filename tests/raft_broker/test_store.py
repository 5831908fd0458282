# -*- test-case-name: tests.raft_broker.test_store -*-
"""The queues of a broker over its ledger: complete after every kind of end."""

from __future__ import annotations

from typing import Any
from unittest import mock

from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from dledger.base.disk.file_table import DISPATCHED, TABLES_APPLIED
from dledger.raft_broker.checkpoints import (
    Dispatched,
    decode_dispatched,
    encode_dispatched,
)
from dledger.raft_broker.store import RaftStore
from dledger.rocketmq.metadata.files import Metadata
from dledger.rocketmq.metadata.tables_mark import (
    FollowedLog,
    LogPlace,
    decode_tables_mark,
    encode_tables_mark,
)
from dledger.rocketmq.store.queues.consume_queues import ConsumeQueues
from dledger.rocketmq.store.records.events import BrokerEvents
from dledger.values.errors import DirectoryError
from tests.base.test_unreadable import BadFile
from tests.broker.support import QUEUE_SIZE, Threads, config_of, inline, message
from tests.raft_broker.rig import FILE_SIZE, LedgerOfMessages


class MarkTests(SynchronousTestCase):
    """The small file."""

    def test_a_mark_is_written_and_read(self) -> None:
        """What was written; nothing of any other bytes."""
        data = encode_dispatched(Dispatched(LogPlace(77, 9), 5), 4096)
        self.assertEqual(decode_dispatched(data, 4096), ((77, 9), 5))
        self.assertIsNone(decode_dispatched(data, 8192))
        self.assertIsNone(decode_dispatched(encode_dispatched(Dispatched(LogPlace(-1, 0), 5), 4096), 4096))
        for at in range(len(data)):
            flipped = bytearray(data)
            flipped[at] ^= 1
            self.assertIsNone(decode_dispatched(bytes(flipped), 4096), at)
            self.assertIsNone(decode_dispatched(data[:at], 4096))


class MomentTests(SynchronousTestCase):
    """A checkpoint is of one moment."""

    def test_of_one_moment(self) -> None:
        """Messages that are dispatched during a checkpoint are in neither its place nor its count."""
        ledger, clock, threads = LedgerOfMessages(), Clock(), Threads()
        self.addCleanup(ledger.store.abandon)
        ledger.append(message(b"one"))
        store = RaftStore.open(
            config_of(), ledger.disk, ledger.log(), clock=clock, run_in_thread=threads,
            failed=lambda failure: self.fail(str(failure)), events=BrokerEvents(),
        )
        self.addCleanup(store.abandon)
        store.start()
        clock.pump([0.01] * 20)
        done, offset = store.checkpoint(), store.reput.offset
        ledger.append(message(b"two"))
        store.log.committed(1)
        store.reput.wake()
        clock.pump([0.01] * 20)
        self.assertGreater(store.reput.offset, offset)
        while threads.waiting:
            threads.run()
        self.successResultOf(done)
        path = f"{store.config.store_path_root_dir}/{DISPATCHED.name}"
        self.assertEqual(
            decode_dispatched(ledger.disk.read_file(path), store.log.file_size),
            Dispatched(LogPlace(offset, store.log.tail_check(offset)), 1),
        )


class StoreTests(SynchronousTestCase):
    """Opened, closed, and opened again."""

    def setUp(self) -> None:
        self.ledger = LedgerOfMessages()
        self.addCleanup(self.ledger.store.abandon)
        self.clock = Clock()

    def open(self, committed_index: int | None = None) -> RaftStore:
        """A store, started and settled."""
        self.failures: list[Any] = []
        store = RaftStore.open(
            config_of(), self.ledger.disk, self.ledger.log(committed_index), clock=self.clock,
            run_in_thread=inline, failed=self.failures.append, events=BrokerEvents(),
        )
        self.addCleanup(store.abandon)
        self.metadata = Metadata(
            self.ledger.disk, store.config.config_path, now_ms=1,
            followed=FollowedLog(store.applied, store.held),
        )
        started = store.start()
        self.clock.pump([0.01] * 20)
        self.successResultOf(started)
        return store

    def checkpoint(self, store: RaftStore) -> None:
        """Of queues and tables."""
        self.successResultOf(store.checkpoint())
        self.successResultOf(self.metadata.save(inline))

    def close(self, store: RaftStore) -> None:
        """In order."""
        self.successResultOf(self.metadata.save(inline))
        closed = store.close()
        self.clock.pump([0.01] * 20)
        self.successResultOf(closed)

    def size(self, store: RaftStore) -> int:
        """Of the only queue."""
        queue = store.queues.get("T1", 0)
        return 0 if queue is None else queue.next_index

    def fill(self, count: int) -> None:
        """More messages."""
        for _ in range(count):
            self.ledger.append(message(bytes(200)))

    def test_an_orderly_stop_dispatches_nothing_again(self) -> None:
        """After a stop in order nothing is dispatched again."""
        self.fill(30)
        store = self.open()
        self.close(store)
        self.assertFalse(self.ledger.disk.exists("base/abort"))
        again = self.open()
        self.assertEqual((self.size(again), again.dispatcher.dispatched), (30, 0))
        self.assertEqual(again.log.queue_offsets, {("T1", 0): 30})
        self.assertTrue(again.is_ready)

    def test_a_crash_dispatches_later_messages_again(self) -> None:
        """After a crash the messages after the recorded place are dispatched again, each once."""
        self.fill(10)
        store = self.open()
        self.checkpoint(store)
        self.fill(15)
        store.log.committed(24)
        store.reput.wake()
        self.clock.pump([0.01] * 20)
        self.assertEqual(self.size(store), 25)
        store.abandon()
        again = self.open()
        self.assertEqual((self.size(again), again.dispatcher.dispatched), (25, 15))

    def test_a_commit_log_beside_it_is_refused(self) -> None:
        """Its messages would not be shown; the directory stays as it is. An empty one does no harm."""
        disk = self.ledger.disk
        disk.makedirs("base/commitlog")
        disk.write_file("base/commitlog/00000000000000000000", b"a record")
        disk.makedirs("base/consumequeue/T1/0")
        disk.write_file("base/consumequeue/T1/0/00000000000000000000", bytes(QUEUE_SIZE))
        error = self.assertRaises(DirectoryError, self.open)
        self.assertIn("leave out enableDLegerCommitLog", str(error))
        self.assertTrue(disk.exists("base/consumequeue/T1/0/00000000000000000000"))
        self.assertFalse(disk.exists("base/abort"))
        disk.unlink("base/commitlog/00000000000000000000")
        self.fill(10)
        self.ledger.leave()
        self.ledger = LedgerOfMessages(disk)
        self.assertEqual(self.size(self.open()), 10)

    def test_a_missing_mark_rebuilds_all_queues(self) -> None:
        """A directory of RocketMQ, or a lost or damaged mark: all queues are built again."""
        self.fill(10)
        self.close(self.open())
        path = f"base/{DISPATCHED.name}"
        disk = self.ledger.disk
        for damage in (lambda: disk.unlink(path), lambda: disk.write_file(path, b"x")):
            damage()
            again = self.open()
            self.assertEqual((self.size(again), again.dispatcher.dispatched), (10, 10))
            self.close(again)

    def test_a_mark_of_another_log(self) -> None:
        """The mark came with queues of another log, or of a younger one: all queues are built again."""
        self.fill(10)
        self.close(self.open())
        path = f"base/{DISPATCHED.name}"
        disk = self.ledger.disk
        mark = decode_dispatched(disk.read_file(path), FILE_SIZE)
        assert mark is not None and mark.place.tail_check
        place = mark.place
        for other in (
            place._replace(tail_check=place.tail_check ^ 1), place._replace(offset=place.offset + 64),
        ):
            disk.write_file(path, encode_dispatched(mark._replace(place=other), FILE_SIZE))
            again = self.open()
            self.assertEqual((self.size(again), again.dispatcher.dispatched), (10, 10))
            self.close(again)

    def test_tables_of_another_log(self) -> None:
        """The tables were saved with another log, or a younger one: all metadata are read again."""
        self.fill(10)
        self.close(self.open())
        path, disk = f"base/config/{TABLES_APPLIED.name}", self.ledger.disk
        found = decode_tables_mark(disk.read_file(path))
        assert found is not None and found[0].tail_check
        place, sums = found
        for other in (
            place._replace(tail_check=place.tail_check ^ 1), place._replace(offset=place.offset + 64),
        ):
            disk.write_file(path, encode_tables_mark(other, sums))
            again = self.open()
            self.assertEqual((again.held, again.dispatcher.dispatched), (LogPlace(0, 0), 10))
            self.assertEqual(again.queues.next_indexes(), {("T1", 0): 10})
            self.close(again)
        self.assertEqual(self.open().held, place)

    def test_a_checkpoint_on_the_way(self) -> None:
        """Metadata are read again, and the queues have more: the mark of the queues stays as it is."""
        self.fill(10)
        self.close(self.open())
        disk = self.ledger.disk
        mark = disk.read_file(f"base/{DISPATCHED.name}")
        disk.unlink(f"base/config/{TABLES_APPLIED.name}")
        store = RaftStore.open(
            config_of(), disk, self.ledger.log(), clock=self.clock, run_in_thread=inline,
            failed=lambda failure: self.fail(str(failure)), events=BrokerEvents(),
        )
        self.addCleanup(store.abandon)
        self.assertEqual(store.needed_index, -1)
        self.successResultOf(store.checkpoint())
        self.assertEqual(disk.read_file(f"base/{DISPATCHED.name}"), mark)

    def test_killed_without_marks(self) -> None:
        """Mark and abort are gone after a kill: names of queues that are there may be in the cache only."""
        self.fill(10)
        self.close(self.open())
        for gone in ((), (DISPATCHED.name,)):
            for name in gone:
                self.ledger.disk.unlink(f"base/{name}")
            with mock.patch.object(ConsumeQueues, "open", wraps=ConsumeQueues.open) as opening:
                again = self.open()
            self.assertEqual([one.kwargs["crashed"] for one in opening.call_args_list], [bool(gone)])
            self.assertEqual(self.size(again), 10)
            self.close(again)

    def test_deleted_queues_are_built_again(self) -> None:
        """
        Queues that somebody deletes, to have them built again as with RocketMQ, are built again, whichever
        they were: offsets that begin at 0 again would be those of other messages.
        """
        disk = self.ledger.disk
        for _ in range(5):
            self.ledger.append(message(), message(topic="T2"), message(topic="T2", queue_id=3))
        self.close(self.open())
        for deleted in ("T1/0", "T2/3"):
            path = f"base/consumequeue/{deleted}"
            for name in disk.listdir(path):
                disk.unlink(f"{path}/{name}")
            again = self.open()
            self.assertEqual(
                again.queues.next_indexes(), {("T1", 0): 5, ("T2", 0): 5, ("T2", 3): 5}, deleted
            )
            self.assertEqual(again.dispatcher.dispatched, 15)
            self.close(again)
        again = self.open()
        self.assertEqual(again.dispatcher.dispatched, 0)

    def test_unreadable_units_are_made_again(self) -> None:
        """Units that the disk cannot read are made again from the entries, with their places."""
        self.fill(12)
        self.ledger.store.append_bodies((b"no message", b""), 1)
        self.fill(13)
        store = self.open()
        store.queues.write()
        queue = store.queues.get("T1", 0)
        assert queue is not None
        units = queue.read(0, 25)
        for offset, file in queue._segments.handles.items():
            queue._segments.handles[offset] = BadFile(file, {0})  # type: ignore[assignment]
        bad = len(queue._segments.handles)
        self.assertEqual(queue.read(0, 25), units)
        self.assertEqual(store.unit_mending.mended, 10 * (bad - 1) + 5)
        self.assertEqual(self.failures, [])

    def test_a_lost_file_is_dispatched_again(self) -> None:
        """A file of a queue is missing: all is dispatched again, also after a crash on the way."""
        self.fill(40)
        self.close(self.open())
        self.ledger.disk.unlink(f"base/consumequeue/T1/0/{200:020d}")
        RaftStore.open(
            config_of(), self.ledger.disk, self.ledger.log(), clock=self.clock, run_in_thread=inline,
            failed=lambda _: None, events=BrokerEvents(),
        ).abandon()
        again = self.open()
        self.assertEqual(self.size(again), 40)
        queue = again.queues.get("T1", 0)
        assert queue is not None
        self.assertEqual([unit.queue_offset for unit in queue.read(0, 99)], list(range(40)))

    def test_lost_entries_lose_their_units(self) -> None:
        """A power cut took entries that were dispatched: their units go, too, as others may come instead."""
        self.fill(10)
        self.close(self.open())
        self.ledger.store.truncate_to(
            self.ledger.store.read_range(6, end_index=6, max_bytes=5000), anew=False, reported=()
        )
        again = self.open()
        self.assertEqual(self.size(again), 7)

    def test_later_commits_are_dispatched_later(self) -> None:
        """Entries that are not known to be committed are in no queue yet."""
        self.fill(10)
        store = self.open(3)
        self.assertEqual(self.size(store), 4)
        store.log.committed(9)
        store.reput.wake()
        self.clock.pump([0.01] * 20)
        self.assertEqual(self.size(store), 10)

    def test_two_brokers_cannot_share_a_directory(self) -> None:
        """A second broker on the same directory is refused."""
        self.open()
        self.assertRaises(DirectoryError, self.open)

    def test_facts_appear_in_the_runtime_table(self) -> None:
        """Its facts for the runtime table."""
        self.ledger.store.append_bodies((b"foreign",), 1)
        facts = self.open().facts()
        self.assertEqual((facts["entriesPassedOver"], facts["indexProblem"]), (1, ""))

    def test_expired_messages_leave_the_queues(self) -> None:
        """Files of queues go when the ledger has deleted their messages."""
        self.fill(60)
        store = self.open()
        self.successResultOf(store.checkpoint())
        queue = store.queues.get("T1", 0)
        assert queue is not None and queue.begin_index == 0
        store.log.begin_offset = 3 * FILE_SIZE
        store.expire_queues()
        self.assertGreater(queue.begin_index, 0)
