# -*- test-case-name: tests.broker.store.test_consume_queues -*-
"""All queues of a store."""

from __future__ import annotations

import errno
import os
import resource
from unittest import mock

from twisted.trial.unittest import SynchronousTestCase

from dledger.base.disk.hints import Hints
from dledger.rocketmq.store.queues import consume_queues, queue_losses
from dledger.rocketmq.store.queues.consume_queues import ConsumeQueues, is_topic
from dledger.rocketmq.store.queues.queue_files import unit_at
from dledger.rocketmq.store.queues.queue_list import ListedQueue, decode_queue_list
from dledger.rocketmq.store.queues.unit_check import TornUnits
from dledger.rocketmq.store.records.store_config import UNIT_SIZE
from dledger.testing.world.memory_disk import MemoryDisk
from dledger.values.errors import DirectoryError, StoreError
from tests.broker.support import QUEUE_SIZE, config_of


class ConsumeQueuesTests(SynchronousTestCase):
    """By topic and number."""

    def setUp(self) -> None:
        self.disk = MemoryDisk()
        self.queues = ConsumeQueues(config_of(), Hints(self.disk))

    def open(self, log_end: int = 1 << 60) -> ConsumeQueues:
        """As they are on the disk."""
        return ConsumeQueues.open(
            config_of(), Hints(self.disk), log_begin=0, log_end=log_end, is_trusted=False, crashed=False,
            torn=TornUnits(lambda at, size: b"", range(0), 0),
        )

    def put(self, topic: str, queue_id: int, index: int, offset: int) -> bool:
        """The unit of a record of 10 bytes."""
        return self.queues.put(topic, queue_id, index, offset, 10, 0)

    def test_queues_are_found_again(self) -> None:
        """Each with its units; and where the last record of any ends."""
        for number in range(30):
            self.assertTrue(self.put(f"%RETRY%g{number % 3}", number % 2, number // 6, number * 10))
        self.queues.write()
        again = self.open()
        self.assertEqual(again.next_indexes(), self.queues.next_indexes())
        self.assertEqual((len(again.keys()), again.log_end), (6, 300))
        self.assertTrue(self.disk.exists(f"base/consumequeue/%RETRY%g1/0/{0:020d}"))
        self.assertEqual(self.open(log_end=60).log_end, 60)
        self.assertEqual(again.last(), (again.get("%RETRY%g2", 1), 4))
        self.assertIsNone(ConsumeQueues(config_of(), Hints(MemoryDisk())).last())

    def test_no_room_for_a_flush(self) -> None:
        """It begins anew: with the queues before the one that has no room, and with those after it."""
        for topic in ("A", "B", "C"):
            self.put(topic, 0, 0, 0)
        queue = self.queues.get("B", 0)
        assert queue is not None

        def fail() -> None:
            raise OSError(28, "no room")

        self.patch(queue, "write", fail)
        self.assertRaises(OSError, self.queues.prepare_flush)
        del queue.write  # type: ignore[method-assign]
        for step in self.queues.prepare_flush():
            step()
        self.queues.finish_flush()
        for topic in ("A", "B", "C"):
            found = self.queues.get(topic, 0)
            assert found is not None
            self.assertTrue(found.is_clean, topic)

    def test_topics_that_are_no_names(self) -> None:
        """A record cannot choose a path: refused, counted, nothing is made."""
        for topic in ("..", ".", "", "a/b", "/etc", "a\0", "ü", "x" * 256, "a b"):
            self.assertFalse(is_topic(topic))
            self.assertFalse(self.put(topic, 0, 0, 0))
        self.assertFalse(self.put("T", -1, 0, 0))
        self.assertFalse(self.put("T", 0, -1, 0))
        self.assertEqual((self.queues.refused, self.disk.files), (11, {}))

    def test_foreign_entries_are_named(self) -> None:
        """What is not a topic's directory is named."""
        self.disk.makedirs("base/consumequeue/T")
        self.disk.write_file("base/consumequeue/T/x", b"")
        self.assertIn("T/x is not a directory", str(self.assertRaises(DirectoryError, self.open)))
        self.disk.unlink("base/consumequeue/T/x")
        self.disk.write_file("base/consumequeue/notes", b"")
        self.assertIn("notes is not a directory", str(self.assertRaises(DirectoryError, self.open)))

    def test_few_queues_stay_open(self) -> None:
        """Queues that were not used for longest give their files back; nothing is lost by it."""
        self.queues._open_max = 5
        for number in range(40):
            self.put("T", number % 20, number // 20, number * 10)
            for step in self.queues.prepare_flush():
                step()
            self.queues.finish_flush()
        self.assertEqual(set(self.queues.next_indexes().values()), {2})
        self.assertLessEqual(len(self.queues._touched), 5)
        for queue_id in range(20):
            queue = self.queues.get("T", queue_id)
            assert queue is not None
            self.assertEqual([unit.offset for unit in queue.read(0, 9)], [queue_id * 10, queue_id * 10 + 200])

    def test_dirty_ones_are_closed(self) -> None:
        """A closed queue with writes that are not on stable storage is not forgotten by the next flush."""
        self.queues._open_max = 2
        for number in range(10):
            self.put("T", number, 0, number * 10)
        self.assertLessEqual(len(self.queues._touched), 2)
        self.assertEqual(len(self.queues.prepare_flush()), 21)  # a file and a directory each, and the list
        self.queues.finish_flush(has_failed=True)
        steps = self.queues.prepare_flush()
        self.assertEqual(len(steps), 21)
        for step in steps:
            step()
        self.queues.finish_flush()
        self.assertEqual(self.queues.prepare_flush(), [])
        self.queues.finish_flush()

    def flush(self) -> object:
        """A whole flush. @return: the queues that are listed then."""
        for step in self.queues.prepare_flush():
            step()
        self.queues.finish_flush()
        return decode_queue_list(self.disk.read_file("base/consumequeue.list"))

    def test_a_flush_lists_the_queues(self) -> None:
        """Every flush lists the queues that have files: new ones, and not deleted ones."""
        self.put("T", 0, 0, 0)
        self.assertEqual(self.flush(), {("T", 0): (0, 1)})
        self.put("T", 1, 15, 10)
        first = QUEUE_SIZE // UNIT_SIZE
        self.assertEqual(self.flush(), {("T", 0): (0, 1), ("T", 1): (first, 16)})
        self.queues.cut(10)
        self.assertEqual(self.flush(), {("T", 0): (0, 1), ("T", 1): (first, 15)})
        self.queues.destroy("T")
        self.assertEqual(self.flush(), {})

    def filled(self) -> None:
        """A flushed queue with a message every hundred bytes, in three files."""
        for index in range(25):
            self.put("T", 0, index, 100 * index)
        self.flush()

    def opened(self, log_begin: int, *, is_lost: bool) -> ConsumeQueues:
        """The queues of a log that ends at 2500. @param is_lost: the start must notice a loss."""
        reported: list[bool] = []
        again = ConsumeQueues.open(
            config_of(), Hints(self.disk), log_begin=log_begin, log_end=2500, is_trusted=True, crashed=False,
            torn=TornUnits(lambda at, size: b"", range(0), 0), losing=lambda: reported.append(True),
        )
        self.assertEqual((again.has_lost, bool(reported)), (is_lost, is_lost))
        return again

    def test_expired_files_are_not_missed(self) -> None:
        """Neither if the list says that they are gone, nor if it does not yet, unless the log has more."""
        self.filled()
        self.queues.expire(1200)
        begun = ListedQueue(QUEUE_SIZE // UNIT_SIZE, 25)
        self.assertEqual(self.opened(1200, is_lost=False).bounds("T", 0), (12, 25))
        self.assertEqual(self.flush(), {("T", 0): begun})
        for log_begin in (1200, 1000, 900):
            self.assertEqual(self.opened(log_begin, is_lost=False).bounds("T", 0),
                             (max(log_begin // 100, 10), 25))

    def test_lost_first_files_are_missed(self) -> None:
        """If the log has their records, or the first unit that is left cannot be read; it goes to the end."""
        paths = [f"base/consumequeue/T/0/{QUEUE_SIZE * number:020d}" for number in range(3)]

        def fail(*given: object) -> None:
            raise OSError(code, os.strerror(code))

        for log_begin, code, is_lost in ((900, 0, True), (1100, errno.EIO, True), (1100, 0, False)):
            self.disk = MemoryDisk()
            self.queues = ConsumeQueues(config_of(), Hints(self.disk))
            self.filled()
            self.disk.unlink(paths[0])
            with mock.patch.object(queue_losses, "unit_at", fail if code else unit_at):
                again = self.opened(log_begin, is_lost=is_lost)
            self.assertEqual([self.disk.exists(path) for path in paths[1:]], [not is_lost] * 2)
            self.assertEqual(again.bounds("T", 0), (25, 25) if is_lost else (11, 25))
        code = errno.EMFILE
        with mock.patch.object(queue_losses, "unit_at", fail):
            self.assertRaises(StoreError, self.opened, 900, is_lost=True)
        self.assertTrue(self.disk.exists(paths[1]), "too few descriptors are no loss")

    def test_a_lost_queue_goes_on_where_it_ended(self) -> None:
        """
        The log has none of its records any more: no index is given twice, at any of the next starts. If the
        log has one after all, the queue goes on there.
        """
        self.filled()
        for path in list(self.disk.files):
            if path.startswith("base/consumequeue/"):
                self.disk.unlink(path)
        for is_lost in (True, False):
            self.queues = self.opened(2500 - is_lost, is_lost=is_lost)
            self.assertEqual(self.queues.next_indexes(), {("T", 0): 25})
            self.assertEqual(self.flush(), {("T", 0): (None, 25)})
        self.assertTrue(self.put("T", 0, 25, 2500))
        self.assertEqual(self.flush(), {("T", 0): (2 * QUEUE_SIZE // UNIT_SIZE, 26)})
        self.assertEqual(self.open().bounds("T", 0), (25, 26))
        self.queues = self.opened(2499, is_lost=False)
        self.assertTrue(self.put("T", 0, 7, 700))
        self.assertEqual(self.queues.bounds("T", 0), (7, 8))

    def test_the_list_has_the_next_index(self) -> None:
        """Of each queue that was flushed; also when its last record has expired."""
        for index in range(2):
            self.put("T", 0, index, 10 * index)
            self.assertEqual(self.flush(), {("T", 0): (0, index + 1)})
        self.queues.expire(20)
        self.assertEqual(self.queues.prepare_flush(), [])
        self.queues.finish_flush()

    def test_list_not_written(self) -> None:
        """The next flush writes it."""
        self.put("T", 0, 0, 0)
        self.flush()
        self.queues.destroy("T")
        for _ in range(2):
            self.assertEqual(len(self.queues.prepare_flush()), 1)
            self.queues.finish_flush(has_failed=True)
        self.flush()
        self.assertEqual(self.queues.prepare_flush(), [])

    def test_a_loss_is_recorded_first(self) -> None:
        """That all must be dispatched again is recorded first; an empty log has lost nothing."""
        self.put("T", 0, 0, 0)
        self.flush()
        self.disk.unlink(f"base/consumequeue/T/0/{0:020d}")
        reported: list[bool] = []
        for log_end, lost in ((0, []), (10, [True])):
            again = ConsumeQueues.open(
                config_of(), Hints(self.disk), log_begin=0, log_end=log_end, is_trusted=True, crashed=False,
                torn=TornUnits(lambda at, size: b"", range(0), 0), losing=lambda: reported.append(True),
            )
            self.assertEqual((reported, again.has_lost), (lost, bool(lost)))

    def test_open_queues_are_bounded(self) -> None:
        """A share of the descriptors, within bounds."""
        for soft, most in ((64, 16), (16, 8), (1024, 256), (1 << 20, 512), (resource.RLIM_INFINITY, 512)):
            self.patch(resource, "getrlimit", lambda _, soft=soft: (soft, soft))
            self.assertEqual(consume_queues.open_queues_max(), most)

    def test_cut_expire_destroy(self) -> None:
        """What changes with the log changes in every queue."""
        for number in range(30):
            self.put("T", number % 3, number // 3, number * 10)
        self.queues.cut(150)
        self.assertEqual((self.queues.log_end, sum(self.queues.next_indexes().values())), (150, 15))
        self.queues.expire(60)
        self.assertEqual([self.queues.get("T", at).begin_index for at in range(3)], [2, 2, 2])  # type: ignore
        self.put("U", 0, 0, 500)
        self.queues.write()
        self.queues.destroy("T")
        self.assertEqual(self.queues.keys(), [("U", 0)])
        self.assertIsNone(self.queues.get("T", 0))
        self.queues.destroy()
        self.assertEqual(self.open().keys(), [("T", 0), ("T", 1), ("T", 2), ("U", 0)])
        self.assertEqual(self.open().log_end, 0)
