# -*- test-case-name: tests.broker.ha.test_tail -*-
"""Where a comparison begins, and where it ends."""

from __future__ import annotations

import random

from twisted.trial.unittest import SynchronousTestCase

from dledger.rocketmq.replication import tail
from dledger.rocketmq.replication.tail import first_difference, record_start_below, verification_start
from protocols.wire.rocketmq.layout import MAGIC_BLANK, START
from tests.broker.ha.fakes import FILE_SIZE, MemoryLog, blank, record, stream


class RecordStartTests(SynchronousTestCase):
    """L{record_start_below}."""

    def starts(self, log: MemoryLog) -> list[int]:
        """The dumb twin: from the beginning, record by record; blanks are none."""
        found, offset = [], log.begin_offset
        while offset < log.end_offset:
            size, magic = START.unpack(log.read(offset, START.size))
            if magic != MAGIC_BLANK:
                found.append(offset)
            offset += size
        return found

    def test_every_offset_has_its_record_start(self) -> None:
        """For every offset of a log with blanks: the twin's answer, or where the file begins."""
        log = MemoryLog(stream(2 * FILE_SIZE + 900, body=b"x" * 300, start=FILE_SIZE), begin=FILE_SIZE)
        starts = self.starts(log)
        for offset in range(log.begin_offset, log.end_offset + 1):
            low = offset - offset % FILE_SIZE
            expected = max([start for start in starts if low <= start <= offset], default=low)
            self.assertEqual(record_start_below(log, offset), expected, offset)

    def test_a_start_is_found_across_chunks(self) -> None:
        """A start is found far below, and at the seam of two reads."""
        size = 1 << 20
        for length in (tail.CHUNK_SIZE - 50, tail.CHUNK_SIZE, 3 * tail.CHUNK_SIZE + 7):
            log = MemoryLog(record(0), file_size=size)
            start = log.end_offset
            log.put(record(start, body=b"\xda\xa3\x20\xa7" * (length // 4)))
            self.assertEqual(record_start_below(log, log.end_offset), start, length)
            self.assertEqual(record_start_below(log, start - 1), 0)

    def test_a_forged_record_is_no_start(self) -> None:
        """A body that holds a record is not one: it does not know its place."""
        log = MemoryLog(record(0))
        start = log.end_offset
        log.put(record(start, body=record(12345) + bytes(50)))
        self.assertEqual(record_start_below(log, log.end_offset), start)

    def test_nothing_to_find(self) -> None:
        """Without records: where the file begins."""
        log = MemoryLog(bytes(FILE_SIZE + 200))
        self.assertEqual(record_start_below(log, FILE_SIZE + 150), FILE_SIZE)
        self.assertEqual(record_start_below(log, 150), 0)


class VerificationTests(SynchronousTestCase):
    """L{verification_start}."""

    def test_within_a_file(self) -> None:
        """A record's start, at least so far below."""
        log = MemoryLog(stream(3000))
        start = verification_start(log, below=log.end_offset, size=500)
        self.assertLessEqual(start, log.end_offset - 500)
        self.assertGreater(start, log.end_offset - 500 - 200)
        self.assertEqual(record_start_below(log, start), start)

    def test_the_first_report_is_above_zero(self) -> None:
        """0 would say that there is nothing."""
        log = MemoryLog(stream(100))
        self.assertEqual(verification_start(log, below=log.end_offset, size=5000), 1)

    def test_verification_starts_within_the_log(self) -> None:
        """Never below what is held."""
        log = MemoryLog(stream(100, start=FILE_SIZE), begin=FILE_SIZE)
        self.assertEqual(verification_start(log, below=log.end_offset, size=5000), FILE_SIZE)

    def test_a_blank_is_not_enough(self) -> None:
        """A blank alone proves nothing: the record before it is compared, too."""
        log = MemoryLog(record(0))
        start = log.end_offset
        log.put(record(start))
        log.put(blank(FILE_SIZE - log.end_offset))
        self.assertEqual(verification_start(log, below=log.end_offset, size=10), start)


class DifferenceTests(SynchronousTestCase):
    """L{first_difference}."""

    def test_the_first_difference_is_found(self) -> None:
        """The first of any number of differences; the length if there is none."""
        rng = random.Random(3)
        for _ in range(300):
            ours = rng.randbytes(rng.randrange(1, 200))
            theirs = bytearray(ours)
            for _ in range(rng.randrange(3)):
                theirs[rng.randrange(len(theirs))] ^= 1 + rng.randrange(255)
            expected = next(
                (at for at, (one, two) in enumerate(zip(ours, theirs, strict=True)) if one != two), len(ours)
            )
            self.assertEqual(first_difference(ours, memoryview(theirs)), expected)
