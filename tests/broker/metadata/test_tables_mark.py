# -*- test-case-name: tests.broker.metadata.test_tables_mark -*-
"""The mark of the tables: it holds at any moment, and for no other files."""

from __future__ import annotations

import random

from twisted.internet.defer import Deferred, succeed
from twisted.trial.unittest import SynchronousTestCase

from dledger.base.disk.disk import Disk
from dledger.base.disk.file_table import TABLES_APPLIED
from dledger.base.disk.hints import Hints
from dledger.rocketmq.metadata.files import Metadata
from dledger.rocketmq.metadata.tables import TopicConfig
from dledger.rocketmq.metadata.tables_mark import (
    LOGGED_FILES,
    FollowedLog,
    LogPlace,
    decode_tables_mark,
    encode_tables_mark,
    place_of_tables,
)
from dledger.testing.world.disk import SimDisk
from dledger.testing.world.memory_disk import MemoryDisk
from dledger.values.errors import StoreError
from tests.broker.metadata.test_files import MortalThread
from tests.broker.support import inline

DIRECTORY = "base/config"
MARK = f"{DIRECTORY}/{TABLES_APPLIED.name}"


class BytesTests(SynchronousTestCase):
    """The small file."""

    def test_written_and_read(self) -> None:
        """What was written; nothing of any other bytes."""
        sums = {name: (number, 1 << 31 | number) for number, name in enumerate(LOGGED_FILES)}
        data = encode_tables_mark(LogPlace(77, 9), sums)
        self.assertEqual(data.hex()[:24], "000000000000004d00000009")
        self.assertEqual(decode_tables_mark(data), ((77, 9), sums))
        for at in range(len(data)):
            flipped = bytearray(data)
            flipped[at] ^= 1
            self.assertIsNone(decode_tables_mark(bytes(flipped)), at)
            self.assertIsNone(decode_tables_mark(data[:at]))


class HeldTests(SynchronousTestCase):
    """
    Tables that follow a log.

    @ivar offset: of the log; its topic has as many queues.
    """

    def setUp(self) -> None:
        self.disk = MemoryDisk()
        self.metadata = self.following(self.disk)

    def following(self, disk: Disk) -> Metadata:
        """Empty tables, at the begin of a log."""
        self.offset = 0
        metadata = Metadata(disk, DIRECTORY, now_ms=1, followed=FollowedLog(
            lambda: LogPlace(self.offset, self.offset * 2), LogPlace(0, 0)
        ))
        metadata.load()
        return metadata

    def apply(self, offset: int) -> None:
        """The log goes on, with a change."""
        self.offset = offset
        self.metadata.topics.put(TopicConfig(topic_name="T", read_queue_nums=offset), offset)

    def save(self) -> None:
        """Successfully."""
        self.successResultOf(self.metadata.save(inline))

    def held(self) -> LogPlace | str:
        """What a start finds."""
        return place_of_tables(Hints(self.disk), DIRECTORY)

    def test_without_a_change(self) -> None:
        """The mark alone is written, when the log has gone on."""
        self.assertIn("is missing or damaged", str(self.held()))
        self.offset = 5
        self.save()
        self.assertEqual((self.held(), self.disk.listdir(DIRECTORY)), ((5, 10), [TABLES_APPLIED.name]))
        self.disk.unlink(MARK)
        self.save()
        self.assertFalse(self.disk.exists(MARK))

    def test_other_files(self) -> None:
        """A file that is gone, or is another one, leaves nothing certain; nor does a damaged mark."""
        for number in (1, 2, 3):
            self.apply(number)
            self.save()
            self.assertEqual(self.held(), (number, number * 2))
        files = {path: self.disk.read_file(path) for path in self.disk.files}
        for name in LOGGED_FILES:
            path = f"{DIRECTORY}/{name}"
            if self.disk.exists(path):
                self.disk.unlink(path)
            else:
                self.disk.write_file(path, b"{}")
            self.assertIn(f"{path} is not the file", str(self.held()))
            if path in files:
                self.disk.write_file(path, files[path])
            else:
                self.disk.unlink(path)
            self.assertEqual(self.held(), (3, 6))
        topics = f"{DIRECTORY}/topics.json"
        self.disk.write_file(topics, self.disk.read_file(topics + ".bak"))
        self.assertIn("is not the file", str(self.held()))
        self.disk.write_file(MARK, self.disk.read_file(MARK)[:-1])
        self.assertIn("damaged", str(self.held()))

    def test_what_comes_during_a_save(self) -> None:
        """It is not in the place: its tables are not in the files."""
        self.apply(1)

        def flush() -> Deferred[None]:
            self.apply(2)
            return succeed(None)

        self.metadata._flush_log = flush
        self.save()
        self.assertEqual(self.held(), (1, 2))

    def fail_at(self, number: int) -> None:
        """A write of a file fails, the first one with 0."""
        write, left = self.disk.write_file, iter(range(number, -2, -1))

        def failing(path: str, data: bytes) -> None:
            if next(left) == 0:
                self.patch(self.disk, "write_file", write)
                raise OSError("a test")
            write(path, data)

        self.patch(self.disk, "write_file", failing)

    def test_a_failed_save(self) -> None:
        """
        Whichever write fails: the mark says what the files hold, and the next save writes all. The mark is a
        hint: the save goes on without it.
        """
        for number in range(5):  # the mark, the copy of the topics, topics, groups, the mark
            self.disk = MemoryDisk()
            self.metadata = self.following(self.disk)
            self.apply(1)
            self.save()
            self.apply(2)
            self.metadata.groups.find("G", 2)
            self.fail_at(number)
            saved = self.metadata.save(inline)
            if number in (0, 4):
                self.successResultOf(saved)
                self.assertEqual(len(self.metadata.hints.news()), 1)
            else:
                self.failureResultOf(saved, StoreError)
            self.assertEqual(self.held(), (1, 2) if number else (2, 4))
            self.save()
            self.assertEqual(self.held(), (2, 4))

    def test_a_start_goes_on(self) -> None:
        """The next process knows the files that it found, and the place that it was given."""
        self.apply(1)
        self.save()
        held = self.held()
        assert isinstance(held, LogPlace)
        self.metadata = Metadata(
            self.disk, DIRECTORY, now_ms=1, followed=FollowedLog(lambda: LogPlace(4, 8), held)
        )
        self.metadata.load()
        self.metadata.groups.find("G", 2)
        self.fail_at(1)
        self.failureResultOf(self.metadata.save(inline), StoreError)
        self.assertEqual(self.held(), (1, 2))
        self.save()
        self.assertEqual(self.held(), (4, 8))

    def test_power_cuts(self) -> None:
        """At any moment the files hold what the mark says, and all but the last save."""
        deaths = 0
        for seed in range(80):
            disk = SimDisk(random.Random(seed))
            self.metadata = self.following(disk)
            self.apply(1)
            self.save()
            disk.arm(die_in=1 + seed)
            for number in range(2, 14):
                self.apply(number)
                thread = MortalThread()
                self.metadata.save(thread)
                if thread.has_died:
                    deaths += 1
                    break
            disk.lose_power()
            disk.disarm()
            place, found = place_of_tables(Hints(disk), DIRECTORY), Metadata(disk, DIRECTORY, now_ms=1)
            found.load()
            topic = found.topics.get("T")
            assert isinstance(place, LogPlace) and topic is not None, (seed, place)
            self.assertTrue(self.offset - 2 <= place.offset <= topic.read_queue_nums, (seed, place, topic))
        self.assertGreater(deaths, 60)

