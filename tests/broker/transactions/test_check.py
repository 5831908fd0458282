# -*- test-case-name: tests.broker.transactions.test_check -*-
"""Producers are asked about half messages that nobody has ended."""

from __future__ import annotations

from unittest import mock

from dledger.rocketmq.broker.producing import rules
from dledger.rocketmq.broker.producing.halves import DISCARDED_TOPIC, HALF_TOPIC, OP_TOPIC, TRANSACTION_GROUP
from dledger.rocketmq.broker.producing.puts import NotPut
from dledger.rocketmq.broker.producing.transactions.check import TURN_HALVES
from dledger.rocketmq.broker.producing.transactions.ends import COMMIT, ROLLBACK
from dledger.rocketmq.replication.put_status import PutStatus
from protocols.wire.rocketmq.layout import PROPERTIES_BYTES_MAX
from protocols.wire.rocketmq.message import decode_message
from tests.broker.transactions.rig import TransactionCase


class CheckTests(TransactionCase):
    """Rounds of questions."""

    def at(self, topic: str) -> int | None:
        """The broker's own offset."""
        return self.parts.metadata.consumer_offsets.query(TRANSACTION_GROUP, topic, 0)

    def test_a_producer_is_asked_about_a_copy(self) -> None:
        """About a copy, which the producer then commits."""
        half = self.half(b"paid")
        (asked,) = self.wait(10.5)
        copy = self.of(HALF_TOPIC)[1]
        self.assertEqual(asked.ext_fields["tranStateTableOffset"], str(copy.queue_offset))
        self.assertEqual(asked.ext_fields["commitLogOffset"], str(copy.physical_offset))
        self.assertEqual((asked.ext_fields["msgId"], asked.ext_fields["transactionId"]), ("K1", "K1"))
        reported = decode_message(asked.body)
        self.assertEqual((reported.topic, reported.queue_id, reported.body), ("T1", 1, b"paid"))
        self.assertEqual(reported.properties["TRANSACTION_CHECK_TIMES"], "1")
        self.assertEqual(copy.born_timestamp, half.born_timestamp)
        self.assertEqual(self.end(copy, COMMIT, fromTransactionCheck="true").code, 0)
        self.assertEqual(len(self.of("T1")), 1)
        self.assertEqual(self.wait(60), [])
        self.assertEqual((self.at(HALF_TOPIC), self.at(OP_TOPIC)), (2, 1))

    def test_nobody_is_asked_about_ended_messages(self) -> None:
        """Nobody is asked about what has ended, in whatever order; what 5.x joins is read."""
        halves = [self.half(key=f"K{number}") for number in range(5)]
        for half, kind in zip(halves[::-1], (COMMIT, ROLLBACK, COMMIT, ROLLBACK, COMMIT), strict=True):
            self.end(half, kind)
        self.assertEqual(self.wait(60), [])
        self.assertEqual((self.at(HALF_TOPIC), self.at(OP_TOPIC)), (5, 5))

    def test_young_messages_are_not_asked_about(self) -> None:
        """Nobody is asked before the time is over; those after it wait, too."""
        self.broker.clock.advance(9)
        self.half()
        self.assertEqual(self.wait(2), [])
        self.assertEqual(len(self.wait(10)), 1)

    def test_an_immune_message_is_set_aside(self) -> None:
        """It is set aside at the end of the queue, so that others are asked about; its end counts there."""
        first = self.half(key="slow", CHECK_IMMUNITY_TIME_IN_SECONDS="100")
        self.half(key="other")
        asked = self.wait(10.5)
        self.assertEqual([one.ext_fields["msgId"] for one in asked], ["other"])
        self.assertEqual(self.end(first).code, 0)
        asked = self.wait(150)
        self.assertEqual({one.ext_fields["msgId"] for one in asked}, {"other"})
        self.assertEqual(len(self.of("T1")), 1)

    def test_a_producer_is_asked_after_the_immunity(self) -> None:
        """Its producer is asked when its own time is over."""
        self.half(key="slow", CHECK_IMMUNITY_TIME_IN_SECONDS="30")
        self.assertEqual(self.wait(29), [])
        self.assertEqual([one.ext_fields["msgId"] for one in self.wait(22)][:1], ["slow"])

    def test_an_unanswered_message_is_discarded(self) -> None:
        """After all questions it is set aside, and kept."""
        self.parts.checks_of_halves.stop()
        self.broker.store.abandon()
        self.make(transaction_check_max=3)
        self.half(b"lost")
        self.assertEqual(len(self.wait(100)), 3)
        (kept,) = self.of(DISCARDED_TOPIC)
        self.assertEqual((kept.body, kept.properties["REAL_TOPIC"]), (b"lost", "T1"))
        self.assertEqual(self.parts.checks_of_halves.discarded, 1)
        self.assertEqual(self.at(HALF_TOPIC), 4)  # the half message and three copies

    def test_a_full_message_blocks_no_other(self) -> None:
        """A half message that has no room for one more property keeps nobody else from being asked about."""
        self.patch(rules, "PROPERTIES_ROOM", 0)  # as it was taken in before
        spare = PROPERTIES_BYTES_MAX - len(self.half(key="long", X="x").properties_data)
        self.end(self.of(HALF_TOPIC)[0], ROLLBACK)
        self.half(key="long", X="x" * (spare - 5))
        self.half(key="other")
        asked = self.wait(10.5)
        self.assertEqual([one.ext_fields["msgId"] for one in asked], ["other"])
        self.assertEqual([one.properties["UNIQ_KEY"] for one in self.of(DISCARDED_TOPIC)], ["long"])

    def test_a_busy_round_forgets_nothing(self) -> None:
        """A round that could store nothing forgets nothing: what has ended is not asked about later."""
        self.end(self.half(key="ended"))
        self.half(key="open")
        self.patch(type(self.parts.pipeline), "refusal", lambda pipeline: _REFUSED)
        self.assertEqual(self.wait(10.5), [])
        self.patch(type(self.parts.pipeline), "refusal", lambda pipeline: None)
        self.assertEqual([one.ext_fields["msgId"] for one in self.wait(10)], ["open"])

    def test_born_in_the_future(self) -> None:
        """A producer whose clock is wrong keeps nobody else from being asked."""
        self.half(key="future", born=1 << 62)
        self.half(key="other")
        asked = self.wait(10.5)
        self.assertEqual([one.ext_fields["msgId"] for one in asked], ["future", "other"])

    def test_changed_limits_pass_over_messages(self) -> None:
        """A half message that may not be stored any more is passed over; it stays in the log."""
        self.half(b"x" * 5000, key="long")
        self.half(key="other")
        self.parts.checks_of_halves.stop()
        self.broker.store.abandon()
        self.make(max_message_size=4096)
        asked = self.wait(10.5)
        self.assertEqual([one.ext_fields["msgId"] for one in asked], ["other"])
        self.assertEqual(len(self.of(HALF_TOPIC)), 3)

    def test_a_producer_cannot_end_foreign_messages(self) -> None:
        """A producer cannot use up the end of another's half message by naming it."""
        self.half(key="thief", TRAN_PREPARED_QUEUE_OFFSET="1", TRANSACTION_CHECK_TIMES="99")
        self.end(self.half(key="ended"))
        asked = self.wait(10.5)
        self.assertEqual([one.ext_fields["msgId"] for one in asked], ["thief"])
        self.assertEqual(self.of(DISCARDED_TOPIC), [])

    def test_ended_copies_are_forgotten(self) -> None:
        """Nothing is kept about half messages with an immunity that have ended, or are asked about."""
        self.end(self.half(key="slow", CHECK_IMMUNITY_TIME_IN_SECONDS="45"))
        self.wait(5)
        later = self.half(key="later", CHECK_IMMUNITY_TIME_IN_SECONDS="45")
        self.wait(20)
        self.end(later)
        self.wait(60)
        checks = self.parts.checks_of_halves
        self.assertEqual(checks.progress.ended, set())
        self.assertEqual(checks.asked, 0)

    def test_a_message_without_a_producer_is_kept(self) -> None:
        """Without a producer it is kept for other rounds."""
        self.half()
        self.parts.producer_table.lost(self.client.connection)
        self.broker.clock.pump([0.5] * 42)
        self.broker.settle()
        self.assertEqual(self.parts.checks_of_halves.asked, 2)
        self.assertEqual(self.of(DISCARDED_TOPIC), [])

    def test_many_messages_take_several_turns(self) -> None:
        """More than a turn examines, some of them ended."""
        count = 2 * TURN_HALVES + 10
        halves = [self.half(b"%d" % number, key=f"K{number}") for number in range(count)]
        for half in halves[::2]:
            self.end(half, ROLLBACK)
        asked = self.wait(10.5)
        self.assertEqual([one.ext_fields["msgId"] for one in asked], [f"K{at}" for at in range(1, count, 2)])
        self.assertEqual(self.at(HALF_TOPIC), count)

    def test_again_after_a_crash(self) -> None:
        """Without its offsets a broker begins at the beginning: what has ended has ended."""
        self.end(self.half(key="ended"))
        self.half(key="open")
        self.parts.checks_of_halves.stop()
        self.broker.store.abandon()
        self.make()
        self.broker.settle()
        self.assertEqual([one.ext_fields["msgId"] for one in self.wait(10.5)], ["open"])

    def test_a_refused_round_asks_later(self) -> None:
        """A broker that takes no messages now asks in a later round; nothing is passed meanwhile."""
        self.half()
        self.patch(type(self.parts.pipeline), "refusal", lambda pipeline: _REFUSED)
        self.assertEqual(self.wait(30), [])
        self.assertIsNone(self.at(HALF_TOPIC))
        self.patch(type(self.parts.pipeline), "refusal", lambda pipeline: None)
        self.assertEqual(len(self.wait(10)), 1)

    def test_a_surprise_does_not_end_the_rounds(self) -> None:
        """A failure that nobody has thought of is for the log; half messages are examined a minute later."""
        self.half()
        for name in ("_walk", "_put"):
            with mock.patch.object(self.parts.checks_of_halves, name, side_effect=RuntimeError("a test")):
                self.assertRaises(RuntimeError, self.wait, 61)
        self.assertEqual(len(self.wait(61)), 1)

    def test_a_surprise_does_not_end_the_start(self) -> None:
        """The same, while the ends of before are read."""
        self.half()
        self.parts.checks_of_halves.stop()
        self.parts.checks_of_halves.start()
        with mock.patch.object(self.parts.checks_of_halves.progress, "find_begin", side_effect=KeyError()):
            self.assertRaises(KeyError, self.wait, 1)
        self.assertEqual(len(self.wait(72)), 1)

    def test_a_slave_asks_no_producer(self) -> None:
        """A slave asks nobody."""
        self.half()
        self.parts.checks_of_halves.stop()
        self.assertEqual(self.wait(100), [])


_REFUSED = NotPut(PutStatus.SERVICE_NOT_AVAILABLE, "a test")
