# -*- test-case-name: tests.broker.sending.test_send_properties -*-
"""Properties between a producer and the log."""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from dledger.rocketmq.broker.producing.send_properties import (
    broker_properties,
    delay_level,
    for_schedule,
    has_timer,
    is_prepared,
    stored_properties,
    waits,
    without_delay,
)
from protocols.wire.rocketmq.message import decode_properties

CLUSTER = b"CLUSTER\x01C1\x02"


class StoredTests(SynchronousTestCase):
    """What is taken out, what is put in, and that the rest stays as it is."""

    def test_added(self) -> None:
        """After what is there, with a separator whether or not the producer wrote one."""
        self.assertEqual(broker_properties("C1", region="R", trace_on=True),
                         CLUSTER + b"MSG_REGION\x01R\x02TRACE_ON\x01true\x02")
        self.assertEqual(stored_properties(b"", CLUSTER), CLUSTER)
        self.assertEqual(stored_properties(b"a\x01b", CLUSTER), b"a\x01b\x02" + CLUSTER)
        self.assertEqual(stored_properties(b"a\x01b\x02", CLUSTER), b"a\x01b\x02" + CLUSTER)

    def test_wait_is_taken_out(self) -> None:
        """At any place, and nothing that only looks like it."""
        for given, kept in (
            (b"WAIT\x01true\x02a\x01b", b"a\x01b\x02"), (b"a\x01b\x02WAIT\x01true", b"a\x01b\x02"),
            (b"a\x01b\x02WAIT\x01true\x02", b"a\x01b\x02"), (b"WAIT\x01true", b""),
            (b"WAIT\x01true\x02", b""),
            (b"a\x01b\x02WAIT\x01true\x02c\x01d", b"a\x01b\x02c\x01d\x02"),
            (b"AWAIT\x01true\x02", b"AWAIT\x01true\x02"), (b"WAIT\x01trueish\x02", b"WAIT\x01trueish\x02"),
            (b"WAIT\x01false\x02", b"WAIT\x01false\x02"),
        ):
            self.assertEqual(stored_properties(given, CLUSTER), kept + CLUSTER, given)

    def test_stored_before(self) -> None:
        """Another cluster's name is not kept beside ours; nor is its region."""
        given = b"CLUSTER\x01other\x02a\x01b\x02MSG_REGION\x01R\x02TRACE_ON\x01false\x02"
        stored = stored_properties(given, CLUSTER)
        self.assertEqual(decode_properties(stored), {"a": "b", "CLUSTER": "C1"})
        self.assertEqual(stored.count(b"CLUSTER"), 1)
        self.assertEqual(stored_properties(b"MYCLUSTER\x01x\x02", CLUSTER), b"MYCLUSTER\x01x\x02" + CLUSTER)


class MeaningTests(SynchronousTestCase):
    """What a broker reads in properties."""

    def test_waits(self) -> None:
        """All, except those that say something else than true."""
        self.assertTrue(waits(b""))
        self.assertTrue(waits(b"WAIT\x01true\x02"))
        self.assertTrue(waits(b"WAIT\x01TRUE"))
        self.assertTrue(waits(b"NOWAIT\x01false\x02"))
        self.assertFalse(waits(b"WAIT\x01false\x02"))
        self.assertFalse(waits(b"a\x01b\x02WAIT\x01no"))

    def test_prepared(self) -> None:
        """Only C{true} makes the half of a transaction."""
        self.assertTrue(is_prepared(b"TRAN_MSG\x01true\x02"))
        self.assertFalse(is_prepared(b"TRAN_MSG\x01false\x02"))
        self.assertFalse(is_prepared(b"XTRAN_MSG\x01true\x02"))
        self.assertFalse(is_prepared(b""))

    def test_timer(self) -> None:
        """Each of the three names, if it has a value."""
        for name in (b"TIMER_DELIVER_MS", b"TIMER_DELAY_SEC", b"TIMER_DELAY_MS"):
            self.assertTrue(has_timer(b"A\x01b\x02" + name + b"\x017\x02"))
            self.assertFalse(has_timer(name + b"\x01\x02"))
            self.assertFalse(has_timer(b"X" + name + b"\x017"))
        self.assertFalse(has_timer(b"TIMER_DONE\x011"))

    def test_delay(self) -> None:
        """A number, or nothing; anything else is refused."""
        self.assertEqual(delay_level(b""), 0)
        self.assertEqual(delay_level(b"DELAY\x013\x02"), 3)
        self.assertEqual(delay_level(b"DELAY\x01-1\x02"), -1)
        self.assertEqual(delay_level(b"NODELAY\x013\x02"), 0)
        for bad in (b"DELAY\x01soon\x02", b"DELAY\x01" + b"9" * 11, b"DELAY\x01-"):
            self.assertIn("is not a number", str(self.assertRaises(ValueError, delay_level, bad)))

    def test_schedule(self) -> None:
        """It has its real place, and how long it waits."""
        made = for_schedule(b"DELAY\x0199\x02a\x01b\x02", topic="T", queue_id=3, level=18)
        self.assertEqual(decode_properties(made),
                         {"DELAY": "18", "a": "b", "REAL_TOPIC": "T", "REAL_QID": "3"})
        self.assertEqual(delay_level(without_delay(made)), 0)
