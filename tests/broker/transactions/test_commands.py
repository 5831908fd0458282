# -*- test-case-name: tests.broker.transactions.test_commands -*-
"""Producers commit and roll back half messages."""

from __future__ import annotations

from dledger.rocketmq.answering.refusals import Code
from dledger.rocketmq.broker.producing.halves import DISCARDED_TOPIC, HALF_TOPIC, OP_TOPIC
from dledger.rocketmq.broker.producing.transactions.commands import immunity_ms
from dledger.rocketmq.broker.producing.transactions.ends import COMMIT, ROLLBACK, UNKNOWN_END
from dledger.rocketmq.metadata.tables import TopicConfig
from protocols.wire.rocketmq.message import encode_properties
from tests.broker.send_support import send_of
from tests.broker.transactions.rig import TransactionCase


class EndTests(TransactionCase):
    """Request 37."""

    def test_a_half_message_is_not_consumed(self) -> None:
        """No consumer of its topic sees it; the topic is made for it all the same."""
        half = self.half(b"secret")
        self.assertEqual((half.topic, half.queue_id, half.queue_offset, half.sys_flag), (HALF_TOPIC, 0, 0, 0))
        named = half.properties
        self.assertEqual((named["REAL_TOPIC"], named["REAL_QID"], named["TRAN_MSG"]), ("T1", "1", "true"))
        self.assertEqual(named["__transactionId__"], "K1")
        self.assertEqual(self.of("T1"), [])
        self.assertIsNotNone(self.parts.metadata.topics.get("T1"))
        self.assertIsNone(self.broker.store.queues.get("T1", 1))

    def test_a_committed_message_is_in_its_topic(self) -> None:
        """The message is in its topic, and the half message has ended."""
        self.half(b"first", key="K0")
        half = self.half(b"paid")
        self.assertEqual(self.end(half).code, 0)
        (found,) = self.of("T1")
        self.assertEqual((found.body, found.queue_id, found.queue_offset, found.sys_flag), (b"paid", 1, 0, 8))
        self.assertEqual(found.prepared_transaction_offset, half.physical_offset)
        self.assertEqual(found.properties_data, half.properties_data)
        self.assertEqual((found.born_timestamp, found.born_host), (half.born_timestamp, half.born_host))
        self.assertEqual(self.ended, [b"1"])
        self.assertEqual(self.of(OP_TOPIC)[0].tags, "d")
        self.assertEqual(self.parts.transactions.committed, 1)
        for topic in (OP_TOPIC, DISCARDED_TOPIC):
            made = self.parts.metadata.topics.get(topic)
            assert made is not None
            self.assertEqual((made.read_queue_nums, made.perm), (1, 6))

    def test_a_rollback_ends_the_half_message(self) -> None:
        """Only the half message has ended."""
        self.assertEqual(self.end(self.half(), ROLLBACK).code, 0)
        self.assertEqual((self.of("T1"), self.ended), ([], [b"0"]))
        self.assertEqual(self.parts.transactions.rolled_back, 1)

    def test_an_unknown_end_changes_nothing(self) -> None:
        """Nothing changes."""
        self.assertEqual(self.end(self.half(), UNKNOWN_END).code, 0)
        self.assertEqual((self.of("T1"), self.ended), ([], []))

    def test_a_wrong_name_ends_nothing(self) -> None:
        """Whoever does not name the half message rightly ends nothing."""
        half, other = self.half(), self.half(key="K2")
        self.client.send()
        for fields, words in (
            ({"producerGroup": "Q"}, "The producer group wrong"),
            ({"tranStateTableOffset": 9}, "The transaction state table offset wrong"),
            ({"commitLogOffset": half.physical_offset + 1}, "Find prepared transaction message failed"),
            ({"commitLogOffset": -1}, "Find prepared transaction message failed"),
            ({"commitLogOffset": 1 << 60}, "Find prepared transaction message failed"),
            ({"commitLogOffset": other.physical_offset}, "The transaction state table offset wrong"),
            ({"msgId": "K2"}, "The message id wrong"),
            ({"msgId": other.message_id}, "The message id wrong"),
            ({"commitOrRollback": 4}, "0, 8 and 12 are allowed"),
            ({"tranStateTableOffset": "x"}, "tranStateTableOffset"),
        ):
            answer = self.end(half, COMMIT, **fields)
            self.assertEqual(answer.code, Code.SYSTEM_ERROR, words)
            self.assertIn(words, answer.remark or "")
        self.assertEqual((self.of("T1"), self.ended), ([], []))

    def test_names_of_a_half_message(self) -> None:
        """Clients name it by its key, by the broker's id, or by its places alone."""
        for number, named in enumerate(("K", "", None)):
            half = self.half(key=f"K{number}")
            named_id = half.message_id if named is None else named and f"K{number}"
            answer = self.end(half, COMMIT, msgId=named_id)
            self.assertEqual(answer.code, 0, answer.remark)

    def test_an_ordinary_message_cannot_be_committed(self) -> None:
        """What is no half message cannot be committed, whatever its properties say."""
        named = "PGROUP\x01P\x02REAL_TOPIC\x01T2\x02REAL_QID\x010"
        (answer,) = self.client.send(send_of(b"x", properties=named))
        self.assertEqual(answer.code, 0)
        (stored,) = self.of("T1")
        self.assertIn("Find prepared", self.end(stored).remark or "")

    def test_cannot_be_committed(self) -> None:
        """A half message whose message would be too long for a file of the log is not taken."""
        named = encode_properties({"TRAN_MSG": "true", "UNIQ_KEY": "k", "PGROUP": "P"}).decode()
        codes = set()
        self.parts.checks_of_halves.stop()
        self.broker.store.abandon()
        self.make(max_message_size=1 << 17)
        for size in range(130_400, 131_072, 8):
            (answer,) = self.client.send(send_of(bytes(size), topic="t" * 100, properties=named, sysFlag=4))
            codes.add(answer.code)
            if answer.code == 0:
                self.assertEqual(self.end(self.of(HALF_TOPIC)[-1]).code, 0)
        self.assertEqual(codes, {0, Code.MESSAGE_ILLEGAL})

    def test_a_late_end_waits_for_the_question(self) -> None:
        """With an immunity of its own, a half message is ended in time, or when its producer is asked."""
        half = self.half(CHECK_IMMUNITY_TIME_IN_SECONDS="2")
        self.broker.clock.advance(3)
        self.assertEqual(self.end(half).code, Code.ILLEGAL_OPERATION)
        self.assertEqual(self.end(half, fromTransactionCheck="true").code, 0)

    def test_a_queue_that_is_gone(self) -> None:
        """The topic has fewer queues by now: the message comes in one that consumers read."""
        half = self.half()
        topics = self.parts.metadata.topics
        topics.put(TopicConfig(topic_name="T1", read_queue_nums=1, write_queue_nums=1), 1)
        self.assertEqual(self.end(half).code, 0)
        self.assertEqual([one.queue_id for one in self.of("T1")], [0])

    def test_a_full_broker_ends_nothing(self) -> None:
        """A broker that takes no messages ends nothing: its producer is asked later."""
        half = self.half()
        self.parts.pipeline.close("a test")
        self.assertEqual(self.end(half).code, Code.SERVICE_NOT_AVAILABLE)
        self.assertEqual((self.of("T1"), self.ended), ([], []))

    def test_a_malformed_immunity_means_the_default(self) -> None:
        """Whatever is not a number of seconds means the default."""
        for text, expected in ((None, 6000), ("", 6000), ("5", 5000), ("-1", 6000), ("x", 6000),
                               ("9" * 99, 6000), ("\u0665", 6000)):
            self.assertEqual(immunity_ms(text, 6000), expected)
