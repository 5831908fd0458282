# -*- test-case-name: tests.broker.store.test_queue_list -*-
"""The list of queues, and the starts that find by it that a queue has lost its files."""

from __future__ import annotations

import itertools
from zlib import crc32

from twisted.logger import capturedLogs
from twisted.trial.unittest import SynchronousTestCase

from dledger.base.disk.hints import Hints
from dledger.rocketmq.store.queues.queue_list import (
    ListedQueue,
    QueueList,
    decode_queue_list,
    encode_queue_list,
)
from dledger.testing.world.memory_disk import MemoryDisk
from tests.broker.store.test_reput import expected
from tests.broker.store.test_store import filled
from tests.broker.support import QUEUE_SIZE, Opened, message, plain

_PATH = "base/consumequeue.list"
_QUEUES = {("T", 0): ListedQueue(0, 7), ("T", 10): ListedQueue(None, 12), ("%RETRY%g", 2): ListedQueue(3, 3)}


class FormatTests(SynchronousTestCase):
    """The file."""

    def test_a_list_is_written_and_read(self) -> None:
        """Lines of names and indexes, sorted."""
        data = encode_queue_list(_QUEUES)
        self.assertEqual(data.splitlines()[1:], [b"%RETRY%g/2 3 3", b"T/0 0 7", b"T/10 - 12"])
        self.assertEqual(decode_queue_list(data), _QUEUES)
        self.assertEqual(decode_queue_list(encode_queue_list({})), {})

    def test_a_damaged_list_says_nothing(self) -> None:
        """Any flipped bit, any cut, and lines that are no queues: it says nothing."""
        data = encode_queue_list(_QUEUES)
        for at in range(len(data) * 8):
            flipped = bytearray(data)
            flipped[at // 8] ^= 1 << at % 8
            self.assertIsNone(decode_queue_list(bytes(flipped)), at)
        for size in range(len(data)):
            self.assertIsNone(decode_queue_list(data[:size]), size)
        for lines in (b"T\n", b"T/x\n", b"\xff/1\n", b"T/1 2\n", b"T/1 2 3 4\n", b"T/1 2 -\n"):
            self.assertIsNone(decode_queue_list(b"%08x\n" % crc32(lines) + lines), lines)


class ListTests(SynchronousTestCase):
    """Deletions."""

    def setUp(self) -> None:
        self.disk = MemoryDisk()
        self.list = QueueList(Hints(self.disk), "base")
        self.list.writing(_QUEUES)()

    def listed(self) -> object:
        """The content of the file."""
        return decode_queue_list(self.disk.read_file(_PATH))

    def test_taken_out_during_a_flush(self) -> None:
        """A flush that began before a deletion does not list the deleted queue again; the next one may."""
        more = {**_QUEUES, ("U", 1): ListedQueue(0, 1)}
        write = self.list.writing(more)
        self.list.take_out(frozenset({("T", 0)}))
        self.assertEqual(self.listed(), {key: _QUEUES[key] for key in _QUEUES if key != ("T", 0)})
        write()
        self.assertEqual(self.listed(), {key: more[key] for key in more if key != ("T", 0)})
        self.list.writing(more)()
        self.assertEqual(self.listed(), more)

    def test_a_full_disk_lets_topics_go(self) -> None:
        """On a full disk a topic can be deleted: the list is removed before the queue is."""
        def full(_path: str, _data: bytes) -> None:
            raise OSError(28, "No space left on device")

        self.patch(self.disk, "write_file", full)
        self.list.take_out(frozenset({("T", 0)}))
        self.assertFalse(self.disk.exists(_PATH))
        self.assertEqual(QueueList(Hints(self.disk), "base").lacks(set()), frozenset())


class StartTests(SynchronousTestCase):
    """A store, closed or crashed, and opened again."""

    def setUp(self) -> None:
        self.disk = MemoryDisk(modified_s=0.0)

    def open(self) -> Opened:
        """The store, started and caught up."""
        opened = Opened(self.disk)
        opened.settle()
        self.successResultOf(opened.started)
        return opened

    def left(self, *, is_clean: bool = True) -> Opened:
        """A store with messages in several queues that has ended."""
        opened = self.open()
        filled(opened, 1)
        opened.settle()
        self.end(opened, is_clean=is_clean)
        return opened

    def end(self, opened: Opened, *, is_clean: bool) -> None:
        """Close the store, or crash some time after a checkpoint."""
        if is_clean:
            opened.close()
        else:
            opened.store.checkpoint()
            opened.settle()
            opened.store.abandon()

    def remove(self, start: str, *, with_directories: bool) -> int:
        """Delete files; how many."""
        files = [path for path in self.disk.files if path.startswith(start)]
        for path in files:
            self.disk.unlink(path)
        if with_directories:
            self.disk.directories -= {path for path in self.disk.directories if path.startswith(start)}
        return len(files)

    def test_a_lost_queue_is_completed(self) -> None:
        """A lost topic, or a queue whose files alone are lost, is completed from the log; the log says so."""
        for is_clean in (True, False):
            for start, with_directories in (("T1", True), ("T1/1/", False)):
                start = f"base/consumequeue/{start}"
                self.disk = MemoryDisk(modified_s=0.0)
                units = self.left(is_clean=is_clean).units()
                self.assertGreater(len({topic for topic, _ in units}), 1)
                self.assertGreater(self.remove(start, with_directories=with_directories), 0)
                with capturedLogs() as events:
                    again = self.open()
                self.assertEqual(again.units(), units)
                said = [event for event in events if "lost files" in event["log_format"]]
                self.assertEqual([event["first"].partition("/")[0] for event in said], ["T1"])
                filled(again, 2)
                again.settle()
                self.assertEqual(again.units(), expected(again.store.log))
                self.assertEqual(again.store.queues.misplaced, 0)
                again.close()
                last = self.open()
                self.assertEqual(last.store.dispatcher.dispatched, 0)
                last.close()

    def test_any_lost_file_is_noticed(self) -> None:
        """
        A queue without its first files is put again as a whole: they are not taken for expired ones. One
        without its last ones does not end before them.
        """
        for is_clean, gone in itertools.product((True, False), range(3)):
            self.disk = MemoryDisk(modified_s=0.0)
            opened = self.open()
            for number in range(25):
                opened.store.append_plain(plain([message(b"%d" % number)]), 1_000_000)
            opened.settle()
            units = opened.units()
            self.end(opened, is_clean=is_clean)
            path = f"base/consumequeue/T1/0/{gone * QUEUE_SIZE:020d}"
            self.assertEqual(self.remove(path, with_directories=False), 1)
            with capturedLogs() as events:
                again = self.open()
            self.assertEqual(again.units(), units)
            said = [event for event in events if "lost files" in event["log_format"]]
            self.assertEqual(len(said), int(gone != 1))  # (a hole has no sentence)
            again.close()
            last = self.open()
            self.assertEqual((last.units(), last.store.dispatcher.dispatched), (units, 0))
            last.close()

    def test_an_older_copy_of_a_file_is_noticed(self) -> None:
        """Units that it does not have are put again, also if others are after them."""
        for is_clean, count in itertools.product((True, False), (8, 28)):
            self.disk = MemoryDisk(modified_s=0.0)
            opened = self.open()
            for number in range(count):
                if number == 4 * count // 8:
                    opened.store.checkpoint()
                    opened.settle()
                    path = f"base/consumequeue/T1/0/{number // 10 * QUEUE_SIZE:020d}"
                    older = self.disk.read_file(path)
                opened.store.append_plain(plain([message(b"%d" % number)]), 1_000_000)
                opened.settle()
            units = opened.units()
            self.end(opened, is_clean=is_clean)
            self.disk.write_file(path, older)
            again = self.open()
            self.assertEqual(again.units(), units)
            again.close()

    def test_a_deleted_topic_stays_deleted(self) -> None:
        """A topic that was deleted stays so, and its name begins anew."""
        for is_clean in (True, False):
            self.disk = MemoryDisk(modified_s=0.0)
            self.left()
            opened = self.open()
            opened.store.forget_topic("T1")
            opened.close() if is_clean else opened.store.abandon()
            again = self.open()
            self.assertEqual(again.store.dispatcher.dispatched, 0)
            self.assertNotIn("T1", {topic for (topic, _), units in again.units().items() if units})
            again.close()

    def test_without_a_list(self) -> None:
        """As RocketMQ left it, or damaged: nothing is dispatched again; a new list is written."""
        for content in (None, b"", b"00000000\nT/1\n"):
            self.disk = MemoryDisk(modified_s=0.0)
            self.left()
            listed = self.disk.read_file(_PATH)
            self.disk.unlink(_PATH)
            if content is not None:
                self.disk.write_file(_PATH, content)
            again = self.open()
            self.assertEqual(again.store.dispatcher.dispatched, 0)
            again.close()
            self.assertEqual(self.disk.read_file(_PATH), listed)
