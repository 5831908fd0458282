# -*- test-case-name: tests.sim.test_broker_crashes -*-
"""Crashes of a broker's store: a sample of the full run, and broken guards that it finds."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any
from unittest import mock

from click.testing import CliRunner
from twisted.trial.unittest import SynchronousTestCase

from dledger.base.disk.segment import SegmentList
from dledger.base.disk.two_slots import SlotFile
from dledger.rocketmq.store.queues.consume_queue import ConsumeQueue
from dledger.rocketmq.store.queues.unit_check import TornUnits
from dledger.testing.crashes.__main__ import main
from dledger.testing.crashes.broker_stories import broker_stories
from dledger.testing.crashes.engine import CrashTally, Enumeration

STORIES = {story.name: story for story in broker_stories()}


class BrokerCutTests(SynchronousTestCase):
    """The workloads of a broker's store."""

    def run_one(self, name: str, *, share: float, second_share: float = 0.01) -> CrashTally:
        """Look at some states of one workload."""
        tally = Enumeration(STORIES[name], share=share, second_share=second_share, bad_max=1).run()
        self.flushLoggedErrors()
        return tally

    def test_sample(self) -> None:
        """Every workload, and nothing is bad."""
        whole = CrashTally()
        for name in STORIES:
            whole.add(self.run_one(name, share=0.02))
        self.assertEqual(whole.bad, [])
        self.assertGreater(whole.images, 300)
        self.assertGreater(whole.second_images, 50)

    def finds(self, name: str, broken: AbstractContextManager[Any], *, share: float = 0.2) -> str:
        """The sentence about the first bad state."""
        with broken:
            (sentence,) = self.run_one(name, share=share, second_share=0).bad
        return sentence

    def test_mark_is_late(self) -> None:
        """A mark that is not on the disk before a cut: the log is shorter than it says."""
        broken = mock.patch.object(SlotFile, "write_durably", SlotFile.write)
        self.assertIn("is gone", self.finds("broker-cut", broken, share=0.5))

    def test_cut_is_not_zeroed(self) -> None:
        """Bytes of cut records that come back, and units of them."""
        sound = SegmentList.zero
        for is_queue, sentence in ((False, "the log"), (True, "the queues have")):

            def zero(files: SegmentList, position: int, end: int, is_queue: bool = is_queue) -> None:
                if ("consumequeue" in files.directory) is not is_queue:
                    sound(files, position, end)

            broken = mock.patch.object(SegmentList, "zero", zero)
            self.assertIn(sentence, self.finds("broker-cut", broken))

    def test_names_are_not_synced(self) -> None:
        """A new file whose name is lost with flushed records."""
        broken = mock.patch.object(SegmentList, "sync_directory")
        self.assertIn("broker-roll", self.finds("broker-roll", broken))

    def test_torn_units(self) -> None:
        """Torn units that stay."""
        self.patch(ConsumeQueue, "_falls", lambda *given: False)
        broken = mock.patch.object(TornUnits, "is_torn", return_value=False)
        self.assertIn("the queues have", self.finds("broker-checkpoint", broken, share=0.5))


class BrokerCrashCommandTests(SynchronousTestCase):
    """The program."""

    def test_cuts(self) -> None:
        """The broker's workloads have names of their own."""
        words = ["cuts", "--only", "broker-restart", "--share", "0.02", "--jobs", "1"]
        done = CliRunner().invoke(main, words)
        self.assertEqual(done.exit_code, 0, done.output)
        self.assertRegex(done.output, r"\n\d+ images passed, 0 failed\n$")
