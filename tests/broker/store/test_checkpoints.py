# -*- test-case-name: tests.broker.store.test_checkpoints -*-
"""The order in which a checkpoint brings things to stable storage, and the moment of which it speaks."""

from __future__ import annotations

from typing import Any

from twisted.trial.unittest import SynchronousTestCase

from dledger.rocketmq.store.index.index_file import IndexFile
from dledger.rocketmq.store.index.indexing import DELAY_S
from dledger.rocketmq.store.records.checkpoint import Checkpoint, decode_checkpoint
from dledger.testing.world.memory_disk import MemoryDisk
from tests.broker.support import Opened, Threads, message, plain


class LogCheckpointsTests(SynchronousTestCase):
    """Of a store with a commit log."""

    def setUp(self) -> None:
        self.disk, self.threads = MemoryDisk(modified_s=0.0), Threads()
        self.opened = Opened(self.disk, run_in_thread=self.threads)
        self.addCleanup(self.opened.store.abandon)
        self.opened.settle()
        self.put(1_000_000)
        self.heard: list[str] = []

    def put(self, now_ms: int) -> None:
        """A message, dispatched and in the index."""
        self.opened.store.append_plain(plain([message(properties={"KEYS": "k"})]), now_ms)
        self.opened.settle()
        self.opened.clock.advance(DELAY_S)

    def hear(self, owner: Any, name: str) -> None:
        """Remember each call."""
        call = getattr(owner, name)

        def heard(*args: Any, **options: Any) -> Any:
            self.heard.append(name)
            return call(*args, **options)

        self.patch(owner, name, heard)

    def times(self) -> Checkpoint:
        """In the file."""
        return decode_checkpoint(self.disk.read_file("base/checkpoint"))

    def test_time_of_the_index_first(self) -> None:
        """Whenever the process is killed, no file of the index is younger than the checkpoint says."""
        store = self.opened.store
        index = store.indexing and store.indexing.index
        assert index is not None
        for now_ms in (1_000_000, 2_000_000):
            before = self.times() if now_ms > 1_000_000 else Checkpoint()
            done = store.checkpoint()
            while self.threads.waiting:
                self.threads.run()
                times = self.times() if self.disk.exists("base/checkpoint") else Checkpoint()
                header = IndexFile.open(self.disk, index.files[-1].path, index.shape).header
                self.assertGreaterEqual(times.index_msg_timestamp, header.end_timestamp)
                self.assertIn(times.logics_msg_timestamp, (before.logics_msg_timestamp, now_ms))
            self.successResultOf(done)
            self.assertEqual(header.end_timestamp, now_ms)
            self.put(2_000_000)

    def work(self) -> None:
        """All threads, until nothing waits."""
        while self.threads.waiting:
            self.threads.run()

    def test_each_write_waits_for_the_one_before(self) -> None:
        """The log before what refers to it; the mark before the file; each after the one before has ended."""
        store = self.opened.store
        assert store.indexing is not None
        self.hear(store.log, "flush")
        self.hear(store.indexing.index, "flush")
        self.hear(store.queues, "finish_flush")
        self.hear(store.log.flusher, "record_dispatched")
        self.hear(store.log.flusher, "note_checkpoint")
        self.hear(self.disk, "write_file")
        done, lengths = store.checkpoint(), []
        while self.threads.waiting:
            lengths.append((len(self.threads.waiting), list(self.heard)))
            self.threads.run()
        self.successResultOf(done)
        self.assertEqual({length for length, _ in lengths}, {1})
        self.assertEqual(lengths[0][1], ["flush"])
        self.assertEqual(self.heard, [
            "flush", "note_checkpoint", "write_file",  # the log; the time of the index
            "flush", "write_file",  # the index and its mark
            "write_file", "finish_flush",  # the queues and their list
            "record_dispatched", "note_checkpoint", "write_file",
        ])

    def test_of_one_moment(self) -> None:
        """Messages that are dispatched meanwhile are not in its place, nor in its times."""
        store = self.opened.store
        done, offset = store.checkpoint(), store.reput.offset
        self.put(2_000_000)
        self.assertGreater(store.reput.offset, offset)
        self.work()
        self.successResultOf(done)
        self.assertEqual(store.log.flusher.dispatched_offset, offset)
        self.assertEqual(self.times(), Checkpoint(
            physic_msg_timestamp=1_000_000, logics_msg_timestamp=1_000_000, index_msg_timestamp=1_000_000
        ))

    def test_a_cut_voids_the_checkpoint_under_way(self) -> None:
        """A cut voids the checkpoint that is under way, and no other."""
        store = self.opened.store
        done = store.checkpoint()
        store.log.cut(0)
        self.work()
        self.successResultOf(done)
        self.assertEqual(self.times(), Checkpoint(index_msg_timestamp=1_000_000))
        self.put(3_000_000)
        done = store.checkpoint()
        self.work()
        self.successResultOf(done)
        self.assertEqual(store.log.flusher.dispatched_offset, store.log.end_offset)
        self.assertEqual(self.times().physic_msg_timestamp, 3_000_000)

    def test_nothing_new_is_not_written(self) -> None:
        """A file with the same content is not written again."""
        store = self.opened.store
        store.checkpoint()
        self.work()
        self.hear(self.disk, "write_file")
        done = store.checkpoint()
        self.work()
        self.successResultOf(done)
        self.assertEqual(self.heard, [])
