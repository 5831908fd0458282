# -*- test-case-name: tests.broker.store.test_scrub -*-
"""The log is read again in the background."""

from __future__ import annotations

from typing import Any
from unittest import mock

from twisted.logger import capturedLogs
from twisted.trial.unittest import SynchronousTestCase

from dledger.rocketmq.store.log.scrub import Scrub
from dledger.rocketmq.store.records.bad_records import BadRecords
from dledger.testing.world.memory_disk import MemoryDisk
from tests.broker.support import LOG_SIZE, Threads, inline, message, messages_in, open_log

LOG = "base/commitlog"


class ScrubTests(SynchronousTestCase):
    """A log of several files."""

    def setUp(self) -> None:
        self.disk = MemoryDisk()
        self.log = open_log(self.disk)
        for number in range(60):
            self.log.append([[message(b"%d" % number * 150)]], 1)
        self.successResultOf(self.log.flush())
        self.bad = BadRecords()

    def scrub(self, *, rate: int = 1000, run_in_thread: Any = inline) -> Scrub:
        """At the beginning."""
        return Scrub(self.log, self.bad, self.disk, LOG, bytes_per_s=rate, run_in_thread=run_in_thread)

    def rounds(self, scrub: Scrub, count: int, *, most: int = 300) -> int:
        """Tick until it was at the end C{count} times. @return: number of ticks."""
        for tick in range(most):
            if scrub.rounds >= count:
                return tick
            scrub.tick()
        raise AssertionError("it does not get there")

    def flip(self, offset: int, at: int) -> None:
        """A bit of the record at C{offset} of the log."""
        base = offset - offset % LOG_SIZE
        self.disk.files[f"{LOG}/{base:020d}"].data[offset - base + at] ^= 1

    def test_a_sound_log_has_no_finding(self) -> None:
        """Nothing is found, in pieces of any size; the rate bounds a tick."""
        for rate in (100, 1000, 1 << 20):
            scrub = self.scrub(rate=rate)
            ticks = self.rounds(scrub, 2)
            self.assertGreaterEqual(ticks, min(self.log.record_end // rate, 10))
        self.assertEqual(self.bad.count, 0)

    def test_each_damaged_body_is_found(self) -> None:
        """Each damaged body is found, also in old files, and those after it, too."""
        messages = messages_in(self.log)
        victims = [messages[number].physical_offset for number in (2, 3, 30, 59)]
        for offset in victims:
            self.flip(offset, 90)
        self.rounds(self.scrub(), 2)
        self.assertEqual(self.bad.offsets(), victims)

    def test_a_mended_head_is_checked_again(self) -> None:
        """After a head that was mended, in this round; while a piece is read, after it."""
        messages = messages_in(self.log)
        first, second = messages[3].physical_offset, messages[5].physical_offset
        self.flip(first, 0)  # its length: the rest of the file cannot be checked
        self.flip(second, 90)
        threads = Threads()
        scrub = self.scrub(rate=1 << 20, run_in_thread=threads)
        for _ in range(50):
            scrub.tick()
            if first in self.bad.offsets():
                break
            if threads.waiting:  # there is none at the end of a round
                threads.run()
        self.assertEqual(self.bad.offsets(), [first])
        scrub.tick()
        self.flip(first, 0)
        scrub.check_from(first)
        threads.run()
        scrub.tick()
        threads.run()
        self.assertEqual(self.bad.offsets(), [first, second])

    def test_last_files_first(self) -> None:
        """The first round begins with the third last file."""
        first = messages_in(self.log)[0].physical_offset
        self.flip(first, 90)
        scrub = self.scrub()
        self.assertEqual(scrub.offset, self.log.record_end // LOG_SIZE * LOG_SIZE - 2 * LOG_SIZE)
        self.rounds(scrub, 1)
        self.assertEqual(self.bad.count, 0)
        self.rounds(scrub, 2)
        self.assertEqual(self.bad.offsets(), [first])

    def test_what_came_since_is_read_slowly(self) -> None:
        """The log of a new slave is read at the usual rate; one that was there at the start, faster."""
        there = self.scrub(rate=400)
        there.tick()
        with mock.patch.object(type(self.log), "record_end", 0):
            since = self.scrub(rate=400)
        self.assertEqual(since.offset, 0)
        since.tick()
        self.assertGreater(there.offset, 2000)
        self.assertTrue(0 < since.offset <= 400, since.offset)

    def test_a_damaged_length_skips_the_file(self) -> None:
        """The rest of its file cannot be checked; the next file is."""
        messages = messages_in(self.log)
        self.flip(messages[1].physical_offset, 2)
        other = next(one for one in messages if one.physical_offset > LOG_SIZE).physical_offset
        self.flip(other, 90)
        self.rounds(self.scrub(), 2)
        self.assertEqual(self.bad.offsets(), [messages[1].physical_offset, other])

    def test_a_rate_of_zero_reads_nothing(self) -> None:
        """A rate of 0 reads nothing."""
        scrub = self.scrub(rate=0)
        scrub.offset = 0
        for _ in range(50):
            scrub.tick()
        self.assertEqual((scrub.offset, scrub.rounds), (0, 0))

    def test_one_at_a_time(self) -> None:
        """A slow disk is not asked again; a log that was cut meanwhile has no damage there."""
        threads = Threads()
        messages = messages_in(self.log)
        self.flip(messages[-1].physical_offset, 90)
        scrub = self.scrub(rate=1 << 20, run_in_thread=threads)
        for _ in range(5):
            scrub.tick()
        self.assertEqual(len(threads.waiting), 1)
        scrub = self.scrub(rate=1 << 20, run_in_thread=threads)
        threads.waiting.clear()
        while self.log.record_end - scrub.offset > LOG_SIZE:
            scrub.tick()
            threads.run()
        scrub.tick()
        self.log.cut(messages[-1].physical_offset)
        threads.run()
        self.assertEqual(self.bad.count, 0)

    def test_cannot_be_read(self) -> None:
        """
        A file that cannot be read is reported once and passed over; one that has expired is not reported.
        """
        reads = self.disk.open

        def fail(path: str, **options: Any) -> Any:
            if path.endswith("0" * 20):
                raise OSError(5, "Input/output error")
            return reads(path, **options)

        self.patch(self.disk, "open", fail)
        with capturedLogs() as events:
            self.rounds(self.scrub(), 4)
        reported = [one for one in events if "checking the log" in one["log_format"]]
        self.assertGreaterEqual(len(reported), 1)
        with capturedLogs() as events, mock.patch.object(self.disk, "open", side_effect=OSError(5, "broken")):
            self.rounds(self.scrub(), 4)
        self.assertEqual(len([one for one in events if "checking the log" in one["log_format"]]), 1)
        self.log.expire_first()
        scrub = self.scrub()
        scrub.offset = 0
        scrub.tick()
        self.assertGreaterEqual(scrub.offset, LOG_SIZE)
