# -*- test-case-name: tests.broker.ha.test_slave_view -*-
"""A master's view of one slave: where it begins, its reports, and its end."""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from dledger.rocketmq.replication.master import SlaveView, last_file_offset
from tests.broker.ha.fakes import FILE_SIZE, MemoryLog


class StartTests(SynchronousTestCase):
    """The first report."""

    def setUp(self) -> None:
        self.log = MemoryLog(bytes(2 * FILE_SIZE + 100), begin=FILE_SIZE)
        self.view = SlaveView(heard_ms=0, sent_ms=0, vouched_offset=2 * FILE_SIZE)

    def test_nothing_before_it(self) -> None:
        """Nothing is sent, no heartbeat either."""
        self.assertEqual(self.view.transfer_offset, -1)
        self.assertFalse(self.view.is_beat_due(10**9, 5000))
        self.assertIsNone(self.view.misplaced(self.log.begin_offset, self.log.end_offset))

    def test_an_empty_slave_gets_the_last_file(self) -> None:
        """It begins with the last file."""
        self.assertIsNone(self.view.reported(0, self.log, now_ms=1))
        self.assertEqual((self.view.transfer_offset, self.view.ack_offset), (3 * FILE_SIZE, 0))

    def test_empty_slave_wants_everything(self) -> None:
        """It begins with the first file that there is."""
        self.assertIsNone(self.view.reported(0, self.log, now_ms=1, starts_at_first_file=True))
        self.assertEqual(self.view.transfer_offset, FILE_SIZE)

    def test_a_resuming_slave_goes_on(self) -> None:
        """It goes on exactly at its place, anywhere between both ends, which are included."""
        for offset in (FILE_SIZE, 2 * FILE_SIZE - 77, 3 * FILE_SIZE + 100):
            view = SlaveView(heard_ms=0, sent_ms=0, vouched_offset=0)
            self.assertIsNone(view.reported(offset, self.log, now_ms=1))
            self.assertEqual(view.transfer_offset, offset)

    def test_a_misplaced_slave_is_refused(self) -> None:
        """Beyond the end, or below the beginning: refused, with both numbers."""
        for offset, said in (
            (3 * FILE_SIZE + 101, "reports 12389, beyond our end at 12388"),
            (FILE_SIZE - 1, "reports 4095, below our beginning at 4096"),
            (1 << 40, "beyond our end"),
        ):
            view = SlaveView(heard_ms=0, sent_ms=0, vouched_offset=0)
            self.assertIn(said, view.reported(offset, self.log, now_ms=1) or "accepted")
            self.assertEqual(view.transfer_offset, -1)
            self.assertEqual((view.ack_offset, view.claimed_offset), (-1, -1))

    def test_the_last_file_takes_the_next_byte(self) -> None:
        """Where the next byte goes to."""
        for size, begin, offset in ((0, 0, 0), (10, 0, 0), (FILE_SIZE, 0, FILE_SIZE), (0, 8192, 8192)):
            self.assertEqual(last_file_offset(MemoryLog(bytes(size), begin=begin)), offset, (size, begin))


class ReportTests(SynchronousTestCase):
    """Later reports."""

    def setUp(self) -> None:
        self.log = MemoryLog(bytes(1000))
        self.view = SlaveView(heard_ms=0, sent_ms=0, vouched_offset=400)
        self.assertIsNone(self.view.reported(500, self.log, now_ms=1))

    def test_first_report_vouches_for_old_bytes_only(self) -> None:
        """Bytes of the slave from a tail that we have lost acknowledge nothing."""
        self.assertEqual((self.view.ack_offset, self.view.claimed_offset), (400, 500))
        self.assertIsNone(self.view.reported(500, self.log, now_ms=2))
        self.assertEqual(self.view.ack_offset, 400)

    def test_sent_bytes_may_be_acknowledged(self) -> None:
        """What was sent may be acknowledged, piece by piece."""
        self.view.sent(300, 5)
        for offset in (501, 700, 800):
            self.assertIsNone(self.view.reported(offset, self.log, now_ms=7))
            self.assertEqual(self.view.ack_offset, offset)
        self.assertEqual((self.view.heard_ms, self.view.sent_ms), (7, 5))

    def test_more_than_was_sent(self) -> None:
        """A bogus number is refused, although the log has that size, and counts for nothing."""
        self.view.sent(300, 5)
        said = self.view.reported(801, self.log, now_ms=7)
        self.assertEqual(said, "it reports 801, but was sent bytes only up to 800")
        self.assertEqual((self.view.ack_offset, self.view.claimed_offset), (400, 500))

    def test_a_lower_report_changes_nothing(self) -> None:
        """A lower number is heard, and changes nothing."""
        self.view.sent(300, 5)
        self.view.reported(700, self.log, now_ms=7)
        self.assertIsNone(self.view.reported(600, self.log, now_ms=8))
        self.assertEqual((self.view.ack_offset, self.view.heard_ms), (700, 8))

    def test_deleted_under_it(self) -> None:
        """Bytes that it needs are deleted, or (never) cut: it cannot be served any more."""
        self.assertIsNone(self.view.misplaced(self.log.begin_offset, self.log.end_offset))
        log = MemoryLog(bytes(10), begin=FILE_SIZE)
        misplaced = self.view.misplaced(log.begin_offset, log.end_offset)
        self.assertIn("it needs 500, but we hold 4096 to 4106", misplaced or "")
        self.assertIn("it needs 500", self.view.misplaced(0, 499) or "")


class TimeTests(SynchronousTestCase):
    """Heartbeats and house-keeping."""

    def test_a_beat_follows_silence(self) -> None:
        """When nothing was sent for the interval."""
        view = SlaveView(heard_ms=0, sent_ms=0, vouched_offset=0)
        view.reported(0, MemoryLog(), now_ms=100)
        self.assertFalse(view.is_beat_due(4999, 5000))
        self.assertTrue(view.is_beat_due(5000, 5000))
        view.sent(0, 5000)
        self.assertFalse(view.is_beat_due(9999, 5000))
        view.sent(1, 9000)
        self.assertFalse(view.is_beat_due(13_999, 5000))

    def test_a_silent_slave_is_noticed(self) -> None:
        """Longer than the limit, whether it ever said something or not."""
        view = SlaveView(heard_ms=0, sent_ms=0, vouched_offset=0)
        self.assertFalse(view.is_silent(20_000, 20_000))
        self.assertTrue(view.is_silent(20_001, 20_000))
        view.reported(0, MemoryLog(), now_ms=20_000)
        self.assertFalse(view.is_silent(40_000, 20_000))
