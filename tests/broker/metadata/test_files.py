# -*- test-case-name: tests.broker.metadata.test_files -*-
"""Metadata on disk: atomic, with a copy of what was there before."""

from __future__ import annotations

import random
from collections.abc import Callable

from twisted.internet.defer import Deferred, succeed
from twisted.trial.unittest import SynchronousTestCase

from dledger.base.disk.disk import Disk
from dledger.rocketmq.metadata.files import Metadata
from dledger.rocketmq.metadata.tables import TopicConfig
from dledger.testing.world.disk import PowerLoss, SimDisk
from dledger.testing.world.memory_disk import MemoryDisk
from dledger.values.errors import DirectoryError, StoreError
from tests.broker.support import Threads, inline


class MortalThread:
    """A thread that has always run already, or never ends, because the power was cut."""

    has_died = False

    def __call__(self, call: Callable[[], None]) -> Deferred[None]:
        try:
            call()
        except PowerLoss:
            self.has_died = True
            return Deferred()
        return succeed(None)


def loaded(disk: Disk) -> Metadata:
    """What is on the disk."""
    metadata = Metadata(disk, "base/config", now_ms=1)
    metadata.load()
    return metadata


class FilesTests(SynchronousTestCase):
    """Saved and loaded."""

    def setUp(self) -> None:
        self.disk = MemoryDisk()
        self.metadata = loaded(self.disk)

    def test_life(self) -> None:
        """Every table is found again; only what changed is written."""
        self.successResultOf(self.metadata.save(inline))
        self.assertEqual(self.disk.files, {})
        metadata = self.metadata
        metadata.topics.put(TopicConfig(topic_name="T"), 5)
        metadata.groups.find("G", 6)
        metadata.consumer_offsets.commit("G", "T", 0, 7, 8)
        metadata.delay_offsets.put(1, 9, 10)
        metadata.request_modes.adopt(b'{"messageRequestModeMap":{"T":{"G":{"mode":"PULL"}}}}')
        self.successResultOf(metadata.save(inline))
        again = loaded(self.disk)
        self.assertEqual([one.file_bytes() for one in again.tables],
                         [one.file_bytes() for one in metadata.tables])
        self.assertEqual(sorted(self.disk.listdir("base/config")), [
            "consumerOffset.json", "delayOffset.json", "messageRequestMode.json", "subscriptionGroup.json",
            "topics.json",
        ])
        metadata.topics.put(TopicConfig(topic_name="U"), 11)
        self.successResultOf(metadata.save(inline))
        self.assertEqual([name for name in self.disk.listdir("base/config") if name.endswith(".bak")],
                         ["topics.json.bak"])

    def test_damaged_file(self) -> None:
        """The copy is read, and the file is written again at the next save."""
        for number in (1, 2):
            self.metadata.topics.put(TopicConfig(topic_name=f"T{number}"), number)
            self.successResultOf(self.metadata.save(inline))
        whole = self.disk.read_file("base/config/topics.json")
        for damaged in (b"", whole[:40], b"\0" * 50):
            self.disk.write_file("base/config/topics.json", damaged)
            again = loaded(self.disk)
            self.assertEqual(list(again.topics.entries), ["T1"])
            self.assertEqual(again.restored, ["base/config/topics.json"])
            self.assertTrue(again.topics.is_dirty)
            copy = self.disk.read_file("base/config/topics.json.bak")
            self.successResultOf(again.save(inline))
            self.assertEqual(self.disk.read_file("base/config/topics.json.bak"), copy)
            self.assertEqual(again.restored, [])
        self.disk.unlink("base/config/topics.json")
        self.assertEqual(list(loaded(self.disk).topics.entries), ["T1"])

    def test_both_damaged(self) -> None:
        """Refused, with what to do; a table of topics is not begun anew by accident."""
        self.disk.write_file("base/config/topics.json", b"{")
        self.disk.write_file("base/config/topics.json.bak", b"")
        text = str(self.assertRaises(DirectoryError, loaded, self.disk))
        self.assertIn("topics.json.bak is empty", text)
        self.assertIn("Put a sound copy there", text)

    def test_one_save_at_a_time(self) -> None:
        """What changes during a save is written by the next; each ends when its own is durable."""
        threads = Threads()
        self.metadata.topics.put(TopicConfig(topic_name="A"), 1)
        first = self.metadata.save(threads)
        self.metadata.topics.put(TopicConfig(topic_name="B"), 2)
        second, third = self.metadata.save(threads), self.metadata.save(threads)
        self.assertEqual(len(threads.waiting), 1)
        threads.run()
        self.successResultOf(first)
        self.assertEqual(list(loaded(self.disk).topics.entries), ["A"])
        threads.run()
        self.successResultOf(second)
        self.successResultOf(third)
        self.assertEqual((list(loaded(self.disk).topics.entries), threads.waiting), (["A", "B"], []))

    def test_many_during_a_save(self) -> None:
        """A thousand changes that are asked for at once: two writes, and every one of them ends."""
        threads = Threads()
        asked = []
        for number in range(1000):
            self.metadata.topics.put(TopicConfig(topic_name=f"T{number}"), number)
            asked.append(self.metadata.save(threads))
        threads.run()
        threads.run()
        for one in asked:
            self.successResultOf(one)
        self.assertEqual((len(loaded(self.disk).topics.entries), threads.waiting), (1000, []))
        self.metadata.topics.put(TopicConfig(topic_name="later"), 1)
        later = self.metadata.save(threads)
        threads.run()
        self.successResultOf(later)

    def test_log_first(self) -> None:
        """The messages of that moment are durable before a table that may be about them."""
        flushes: list[Deferred[None]] = []

        def flush() -> Deferred[None]:
            flushes.append(Deferred())
            return flushes[-1]

        self.metadata._flush_log = flush
        for fails in (True, False):
            self.metadata.consumer_offsets.commit("G", "T", 0, 5, 1)
            saved = self.metadata.save(inline)
            self.assertNoResult(saved)
            self.assertIsNone(loaded(self.disk).consumer_offsets.query("G", "T", 0))
            if fails:
                flushes[-1].errback(StoreError("the log has failed"))
                self.failureResultOf(saved, StoreError)
                self.assertTrue(self.metadata.consumer_offsets.is_dirty)
            else:
                flushes[-1].callback(None)
                self.successResultOf(saved)
        self.assertEqual(loaded(self.disk).consumer_offsets.query("G", "T", 0), 5)

    def test_failed(self) -> None:
        """It stays dirty, and the next save writes it."""
        disk = SimDisk(random.Random(1))
        metadata = loaded(disk)
        metadata.topics.put(TopicConfig(topic_name="A"), 1)
        disk.arm(writes=1)
        self.failureResultOf(metadata.save(inline), StoreError)
        self.assertTrue(metadata.topics.is_dirty)
        self.successResultOf(metadata.save(inline))
        self.assertEqual(list(loaded(disk).topics.entries), ["A"])

    def test_power_cuts(self) -> None:
        """At any moment: a state that was saved, never an older one than the last that ended."""
        deaths = 0
        for seed in range(60):
            disk = SimDisk(random.Random(seed))
            disk.arm(die_in=2 + seed)
            metadata = loaded(disk)
            saved = -1
            for number in range(12):
                metadata.topics.put(TopicConfig(topic_name="T", read_queue_nums=number), number)
                thread = MortalThread()
                metadata.save(thread)
                if thread.has_died:
                    deaths += 1
                    break
                saved = number
            disk.lose_power()
            disk.disarm()
            topic = loaded(disk).topics.get("T")
            found = -1 if topic is None else topic.read_queue_nums
            self.assertTrue(saved <= found <= saved + 1, (seed, saved, found))
        self.assertGreater(deaths, 50)
