# -*- test-case-name: tests.broker.sending.test_timed -*-
"""Delivery times that producers set."""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from dledger.rocketmq.answering.refusals import Refused
from dledger.rocketmq.broker.options.config import broker_from_mapping
from dledger.rocketmq.broker.producing.delays.timed import TIMED_TOPIC, max_delay_ms, timed
from protocols.wire.rocketmq.message import decode_properties, encode_properties
from tests.broker.support import message

NOW_MS = 1_700_000_000_000


class TimedTests(SynchronousTestCase):
    """One message."""

    def setUp(self) -> None:
        self.config = self.config_of()

    def config_of(self, **options: object) -> object:
        """A broker's."""
        return broker_from_mapping({"store_path_root_dir": "base", **options})

    def place(self, **properties: str) -> tuple[str, int, dict[str, str]]:
        """Where a message for queue 3 of topic t goes, and its properties."""
        found = timed(message(topic="t", queue_id=3, properties=properties), self.config, NOW_MS)
        return found.topic, found.queue_id, dict(decode_properties(found.properties_data))

    def test_kinds(self) -> None:
        """A time, seconds, milliseconds: seconds count first, as in RocketMQ."""
        for given, at_ms in (
            ({"TIMER_DELIVER_MS": str(NOW_MS + 5)}, NOW_MS + 5), ({"TIMER_DELAY_SEC": "7"}, NOW_MS + 7000),
            ({"TIMER_DELAY_MS": "7"}, NOW_MS + 7),
            ({"TIMER_DELIVER_MS": "1", "TIMER_DELAY_MS": "9", "TIMER_DELAY_SEC": "2"}, NOW_MS + 2000),
        ):
            self.assertEqual(self.place(**given), (TIMED_TOPIC, 0, {
                **given, "TIMER_OUT_MS": str(at_ms), "REAL_TOPIC": "t", "REAL_QID": "3",
            }))

    def test_now(self) -> None:
        """What has no time, or one that has passed, does not wait."""
        for given in ({}, {"TIMER_DELIVER_MS": str(NOW_MS)}, {"TIMER_DELAY_SEC": "0"}, {"TIMER_D": "9"}):
            self.assertEqual(self.place(**given), ("t", 3, given))

    def test_too_far(self) -> None:
        """No further than the option says, and than a file of the log is kept."""
        self.assertEqual(max_delay_ms(self.config), 3 * 86_400_000)
        self.place(TIMER_DELAY_SEC=str(3 * 86_400))
        self.assertRaises(ValueError, self.place, TIMER_DELAY_SEC=str(3 * 86_400 + 1))
        self.config = self.config_of(timerMaxDelaySec="100")
        self.assertRaises(ValueError, self.place, TIMER_DELAY_SEC="101")
        self.config = self.config_of(fileReservedTime="1")
        self.assertRaises(ValueError, self.place, TIMER_DELAY_SEC="3601")
        for text in ("", "x", "-1", "1.5", "1" * 16):
            self.assertRaises(ValueError, self.place, TIMER_DELIVER_MS=text)

    def test_off(self) -> None:
        """Without the option there are no times."""
        self.config = self.config_of(timerWheelEnable="false")
        error = self.assertRaises(Refused, self.place, TIMER_DELAY_SEC="1")
        self.assertIn("timerWheelEnable=false", error.remark)
        self.assertEqual(encode_properties({}), b"")
