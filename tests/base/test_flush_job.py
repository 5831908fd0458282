# -*- test-case-name: tests.base.test_flush_job -*-
"""What a flush takes with it, and in which order it reaches stable storage."""

from __future__ import annotations

import random

import attrs
from construct import Int32sb, Int64sb, Struct
from twisted.trial.unittest import SynchronousTestCase

from dledger.base.disk.flush_job import FlushJob
from dledger.base.disk.segment import SegmentList
from dledger.base.disk.two_slots import SlotFile, SlotForm
from dledger.testing.world.disk import SimDisk

_DECLARATION = Struct(
    "magic" / Int32sb, "version" / Int32sb, "generation" / Int64sb, "end" / Int64sb, "clean" / Int32sb
)


@attrs.frozen(kw_only=True)
class Mark:
    """An end."""

    end: int = 0
    clean: bool = False


class MarkFile(SlotFile[Mark]):
    """A mark file."""

    form = SlotForm(Mark, _DECLARATION, magic=1, version=1, unsound="unsound")


class JobTests(SynchronousTestCase):
    """L{FlushJob}."""

    def setUp(self) -> None:
        self.disk = SimDisk(random.Random(1))
        self.disk.makedirs("/d")
        self.segments = SegmentList(self.disk, "/d/log", 100)
        self.marks, _ = MarkFile.open(self.disk, "/d/mark", Mark())

    def test_files(self) -> None:
        """Content and names of what was written before; what is written during it is left for the next."""
        self.segments.create(0)
        self.segments.pwrite(b"one", 0)
        job = FlushJob(epoch=0)
        job.add_files(self.segments)
        self.segments.create(100)
        self.segments.pwrite(b"two", 100)
        job.run()
        self.segments.release()
        self.assertTrue(self.disk.is_durable("/d/log/" + "0" * 20, 0, 3))
        following = FlushJob(epoch=0)
        following.add_files(self.segments)
        following.run()
        self.assertTrue(self.disk.is_durable("/d/log/" + "0" * 17 + "100", 0, 3))
        self.assertEqual(self.segments.begin_flush(), [])

    def test_mark(self) -> None:
        """A mark that is durable already is not taken, a newer one is."""
        job = FlushJob(epoch=0)
        job.add_mark(self.marks)
        self.assertEqual(job.mark_generation, -1)
        self.marks.write(Mark(end=7))
        job.add_mark(self.marks)
        self.assertEqual(job.mark_generation, self.marks.generation)
        job.run()
        self.marks.synced(job.mark_generation)
        self.assertFalse(self.marks.needs_sync)

    def test_order(self) -> None:
        """A step runs after those that were added before it; a failure ends the job."""
        ran: list[int] = []

        def fails() -> None:
            raise OSError(5, "Input/output error")

        job = FlushJob(epoch=0)
        for step in (lambda: ran.append(1), lambda: ran.append(2), fails, lambda: ran.append(3)):
            job.add_step(step)
        self.assertRaises(OSError, job.run)
        self.assertEqual(ran, [1, 2])
