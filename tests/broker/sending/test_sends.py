# -*- test-case-name: tests.broker.sending.test_sends -*-
"""Sends of producers, the records stored for them, and the answers."""

from __future__ import annotations

from typing import Any

import attrs
from twisted.trial.unittest import SynchronousTestCase

from dledger.rocketmq.answering.refusals import Code, Refused
from dledger.rocketmq.broker.options.groups import retry_topic
from dledger.rocketmq.broker.producing.send_properties import PROPERTIES_ROOM
from dledger.rocketmq.broker.producing.sending.sends import BATCH_MAX
from dledger.rocketmq.metadata.tables import GroupConfig
from protocols.wire.remoting import RemotingCommand, encode_command
from protocols.wire.rocketmq.layout import PROPERTIES_BYTES_MAX
from protocols.wire.rocketmq.message import BatchItem, Host, decode_properties, encode_batch
from tests.broker.put_support import WALL_MS
from tests.broker.send_support import EVERY, Sending, send_of
from tests.protocols.fakes import sent_commands


class SendCase(SynchronousTestCase):
    """A broker and a producer."""

    def make(self, **options: Any) -> Sending:
        """Running."""
        self.broker = Sending(**options)
        self.addCleanup(self.broker.stop)
        self.client = self.broker.connect()
        return self.broker

    def setUp(self) -> None:
        self.make()

    def send(self, body: bytes = b"hello", **fields: Any) -> RemotingCommand:
        """One message. @return: its answer."""
        (answer,) = self.client.send(send_of(body, **fields))
        return answer

    def refused(self, expected: int, words: str, body: bytes = b"hello", **fields: Any) -> None:
        """A message that is not stored, for this reason."""
        before = len(self.broker.stored())
        answer = self.send(body, **fields)
        self.assertEqual((answer.code, answer.opaque), (expected, 1), answer.remark)
        self.assertIn(words, answer.remark or "")
        self.assertEqual(len(self.broker.stored()), before)


class CountTests(SendCase):
    """Answers that are no success are counted by code, by all roads."""

    def test_counted(self) -> None:
        """A refused topic, a message that is too large, and sends while the broker takes none."""
        counts = self.broker.broker.refusals.counts
        self.send(b"x")
        self.assertEqual(counts, {})
        for _ in range(2):
            self.send(topic="TBW102 x")
            self.send(code=10, sysFlag=4)
        self.assertEqual(counts, {(310, 1): 2, (10, 16): 2})
        self.broker.broker.pipeline.close("a test")
        for _ in range(3):
            self.send(b"x")
        self.assertEqual(counts[310, 14], 3)


class RetryTopicTests(SendCase):
    """Topics for retries and dead letters have bounds of their own."""

    def test_bounded(self) -> None:
        """Twice C{topicsMax}; messages that make topics take none of their places."""
        topics = self.broker.broker.metadata.topics
        self.make(options={"topics_max": len(topics.entries) + 1})
        topics = self.broker.broker.metadata.topics
        self.assertEqual(self.send(topic="New").code, Code.SUCCESS)
        self.refused(Code.SYSTEM_ERROR, "as topics_max allows", topic="Newer")
        checks, most = self.broker.broker.checks, self.broker.broker.config.topics_max
        for number in range(most):
            checks.made_for_retries(f"%DLQ%g{number}")
        refused = self.assertRaises(Refused, checks.made_for_retries, "%DLQ%more")
        self.assertIn("twice topics_max", str(refused))
        self.assertEqual(checks.made_for_retries("%DLQ%g0").topic_name, "%DLQ%g0")
        self.assertEqual(len(topics.entries), 2 * most)
        group = GroupConfig(group_name="late")
        retry_topic(self.broker.broker.metadata, self.broker.broker.config, group, 0)
        self.assertEqual(len(topics.entries), 2 * most)


class SendTests(SendCase):
    """A message is stored as it was sent."""

    def test_stored(self) -> None:
        """Every field, by long names and by short ones."""
        properties = "TAGS\x01A\x02UNIQ_KEY\x01u\x02WAIT\x01true"
        fields = {"queueId": 2, "properties": properties, "reconsumeTimes": 3, "sysFlag": 1}
        for code in (10, 310):
            answer = self.send(b"body", code=code, **fields)
            self.assertEqual(answer.code, Code.SUCCESS, answer.remark)
        first, second = self.broker.stored()
        self.assertEqual(first.body, b"body")
        self.assertEqual(first.properties, {"TAGS": "A", "UNIQ_KEY": "u", **EVERY})
        self.assertEqual((first.topic, first.queue_id, first.flag, first.sys_flag), ("T1", 2, 7, 1))
        self.assertEqual((first.born_timestamp, first.store_timestamp), (1_700_000_000_000, WALL_MS))
        self.assertEqual((first.reconsume_times, first.prepared_transaction_offset), (3, 0))
        self.assertEqual(first.store_host, Host.of("10.0.0.1", 10911))
        self.assertEqual(first.born_host, Host.of("192.168.1.1", 54321))
        self.assertEqual((first.queue_offset, second.queue_offset), (0, 1))
        self.assertEqual(second.properties_data, first.properties_data)

    def test_answer(self) -> None:
        """Its name, its queue, its place there; region and trace switch."""
        self.send()
        answer = self.send(queueId=0)
        stored = self.broker.stored()[1]
        self.assertEqual(answer.ext_fields, {
            "msgId": stored.message_id, "queueId": "0", "queueOffset": "1", "MSG_REGION": "DefaultRegion",
            "TRACE_ON": "true",
        })
        self.assertEqual(answer.remark, None)

    def appends(self) -> list[int]:
        """Grows with each."""
        grown: list[int] = []
        before = self.broker.broker.grown
        self.patch(self.broker.broker, "grown", lambda: (grown.append(1), before())[1])
        return grown

    def test_one_read(self) -> None:
        """Messages of one read are appended together, each answered; a wrong one costs itself only."""
        for queue_id, is_short in (("x", False), (99, True)):
            self.make()
            if not is_short:
                self.client.connection._short = None  # all requests are commands
            grown = self.appends()
            answers = self.client.send(
                send_of(b"a", opaque=1), send_of(b"b", opaque=2, queueId=queue_id), send_of(b"c", opaque=3),
                send_of(b"d", opaque=4, properties="a\x01\0\x02"),
            )
            self.assertEqual({one.opaque: one.code for one in answers}, {1: 0, 2: 1, 3: 0, 4: 13})
            self.assertEqual([one.body for one in self.broker.stored()], [b"a", b"c"])
            self.assertEqual(len(grown), 1)
            self.assertEqual(self.client.connection.unanswered, 0)

    def test_oneway(self) -> None:
        """Stored, not answered."""
        self.assertEqual(self.client.send(send_of(oneway=True)), [])
        self.assertEqual(len(self.broker.stored()), 1)

    def test_any_queue(self) -> None:
        """One after the other, when the producer leaves it to the broker."""
        queues = [self.send(queueId=-1).ext_fields["queueId"] for _ in range(8)]
        self.assertEqual(sorted(queues), sorted([*"0123"] * 2))
        self.assertEqual([str(one.queue_id) for one in self.broker.stored()], queues)

    def test_multi_tags(self) -> None:
        """A topic's kind of filter shows in its messages."""
        self.send()
        topics = self.broker.metadata.topics
        topics.load(topics.file_bytes().replace(b'SINGLE_TAG', b'MULTI_TAG'))
        self.send()
        self.assertEqual([one.sys_flag for one in self.broker.stored()], [0, 2])


class WaitTests(SendCase):
    """Puts that wait for slaves, and puts that do not."""

    def test_waits(self) -> None:
        """The answer comes when the slave has it."""
        broker = self.make(broker_role="SYNC_MASTER")
        slave = broker.slave()
        self.assertEqual(self.client.send(send_of()), [])
        self.assertEqual(self.client.connection.unanswered, 1)
        broker.report(slave)
        # (in the same turn: the reactor need not come round once more)
        (answer,) = sent_commands(self.client.transport.value())
        self.assertEqual(answer.code, 0)

    def test_does_not_wait(self) -> None:
        """C{WAIT=false} is answered at once, beside others that wait."""
        broker = self.make(broker_role="SYNC_MASTER")
        broker.slave()
        answers = self.client.send(send_of(opaque=1), send_of(opaque=2, properties="WAIT\x01false"))
        self.assertEqual([(one.opaque, one.code) for one in answers], [(2, 0)])

    def test_codes(self) -> None:
        """No slave, and a slave that is too late: stored, and answered so with everything else."""
        broker = self.make(broker_role="SYNC_MASTER")
        answer = self.send()
        self.assertEqual(answer.code, Code.SLAVE_NOT_AVAILABLE)
        self.assertEqual(answer.ext_fields["msgId"], broker.stored()[0].message_id)
        broker.slave()
        self.client.send(send_of())
        broker.pass_time(3_200)
        (answer,) = self.client.received()
        self.assertEqual((answer.code, answer.ext_fields["queueOffset"]), (Code.FLUSH_SLAVE_TIMEOUT, "1"))

    def test_lost_connection(self) -> None:
        """Who is gone is not answered; nothing breaks."""
        broker = self.make(broker_role="SYNC_MASTER")
        slave = broker.slave()
        self.client.send(send_of())
        self.client.connection.abort("gone")
        broker.report(slave)
        self.assertEqual(len(broker.stored()), 1)
        self.assertEqual(self.client.received(), [])


class TopicTests(SendCase):
    """Topics are made on first use, where that is allowed."""

    def test_made(self) -> None:
        """As many queues as the producer wants; logged once; then it is there."""
        self.assertEqual(self.send(defaultTopicQueueNums=3).code, 0)
        made = self.broker.metadata.topics.get("T1")
        assert made is not None
        self.assertEqual((made.write_queue_nums, made.perm), (3, 6))
        self.send()
        self.assertEqual(self.broker.created, 1)

    def test_units(self) -> None:
        """A producer of units makes a topic of units."""
        self.send(unitMode="true")
        made = self.broker.metadata.topics.get("T1")
        assert made is not None
        self.assertEqual(made.topic_sys_flag, 1)

    def test_not_made(self) -> None:
        """No such default topic; one that may not be inherited from; creation switched off."""
        self.refused(Code.TOPIC_NOT_EXIST, "topic[T1] not exist", defaultTopic="nothing")
        self.refused(Code.TOPIC_NOT_EXIST, "topic[T1] not exist", defaultTopic="BenchmarkTest")
        self.make(options={"auto_create_topic_enable": False})
        self.refused(Code.TOPIC_NOT_EXIST, "topic[T1] not exist")
        self.assertEqual(self.send(defaultTopic="C").code, 0)

    def test_names(self) -> None:
        """No topic may have such a name."""
        self.refused(Code.SYSTEM_ERROR, "is blank", topic=" ")
        self.refused(Code.SYSTEM_ERROR, "illegal characters", topic="a b")
        self.refused(Code.SYSTEM_ERROR, "illegal characters", topic="a\0b")
        self.refused(Code.SYSTEM_ERROR, "longer than topic max length", topic="x" * 128)
        self.assertIsNone(self.broker.metadata.topics.get("a b"))
        self.assertEqual(self.send(topic="x" * 127).code, 0)

    def test_system_topics(self) -> None:
        """Those are the broker's own."""
        for topic in ("SCHEDULE_TOPIC_XXXX", "RMQ_SYS_TRANS_HALF_TOPIC", "RMQ_SYS_TRANS_OP_HALF_TOPIC"):
            self.refused(Code.NO_PERMISSION, "is forbidden", topic=topic)

    def test_permission(self) -> None:
        """A topic that may not be written to."""
        self.send()
        topics = self.broker.metadata.topics
        topics.load(topics.file_bytes().replace(b'"perm":6', b'"perm":4'))
        self.refused(Code.NO_PERMISSION, "the topic[T1] sending message is forbidden")

    def test_queue_beyond(self) -> None:
        """More than there are to write to and to read from."""
        self.send()
        self.refused(Code.SYSTEM_ERROR, "request queueId[4] is illegal", queueId=4)
        topics = self.broker.metadata.topics
        topics.load(topics.file_bytes().replace(b'"writeQueueNums":4', b'"writeQueueNums":0'))
        self.refused(Code.NO_PERMISSION, "no queue to write to", queueId=-1)

    def test_slave(self) -> None:
        """A slave takes nothing, and makes no topic."""
        broker = self.make(broker_role="SLAVE")
        self.refused(Code.SERVICE_NOT_AVAILABLE, "service not available now")
        self.assertIsNone(broker.metadata.topics.get("T1"))


class IllegalTests(SendCase):
    """What cannot be stored, and what makes no sense."""

    def test_fields(self) -> None:
        """Missing, no number, too large, no flag."""
        for name, short in (("topic", "b"), ("queueId", "e"), ("bornTimestamp", "g"), ("producerGroup", "a")):
            self.refused(Code.SYSTEM_ERROR, f"the custom field <{short}> is null", without=name)
            self.refused(Code.SYSTEM_ERROR, f"the custom field <{name}> is null", without=name, code=10)
        self.refused(Code.SYSTEM_ERROR, "is not a number", queueId="one")
        self.refused(Code.SYSTEM_ERROR, "is outside", sysFlag=2**31)
        self.refused(Code.SYSTEM_ERROR, "is outside", flag=-(2**31) - 1)
        self.refused(Code.SYSTEM_ERROR, "is outside", bornTimestamp=2**63)
        self.refused(Code.SYSTEM_ERROR, "neither true nor false", unitMode="maybe")

    def test_too_large(self) -> None:
        """A body beyond the limit, or beyond a file; properties beyond what a record holds."""
        self.refused(Code.MESSAGE_ILLEGAL, "do not fit into a file", bytes(5000))
        self.refused(Code.MESSAGE_ILLEGAL, "properties of 32768 bytes", properties="a\x01" + "b" * 32766)
        self.make(store={"max_message_size": 100})
        self.refused(Code.MESSAGE_ILLEGAL, "max_message_size=100", bytes(101))
        self.assertEqual(self.send(bytes(100)).code, 0)

    def test_zero_byte(self) -> None:
        """What a crash leaves of a record would look like it."""
        self.refused(Code.MESSAGE_ILLEGAL, "a zero byte", properties="a\x01b\0\x02")

    def test_transactions(self) -> None:
        """A half message waits in its own topic; a flag without the property is refused, and a batch, too."""
        for flag in (4, 8, 12):
            self.refused(Code.NO_PERMISSION, "sending transaction message is forbidden", sysFlag=flag)
        half = "TRAN_MSG\x01true\x02UNIQ_KEY\x01K1\x02PGROUP\x01G\x02"
        answer = self.send(b"body", properties=half, sysFlag=4, queueId=1)
        self.assertEqual((answer.code, answer.ext_fields["transactionId"]), (0, "K1"))
        self.assertEqual((answer.ext_fields["queueId"], answer.ext_fields["queueOffset"]), ("1", "0"))
        self.assertNotIn("transactionId", self.send(b"x").ext_fields)
        self.refused(Code.MESSAGE_ILLEGAL, "transaction cannot be delayed", properties=half + "DELAY\x013")
        self.assertEqual(self.send(properties=half + "DELAY\x010").code, 0)
        self.make(options={"reject_transaction_message": True})
        self.refused(Code.NO_PERMISSION, "sending transaction message is forbidden", properties=half)

    def test_timers(self) -> None:
        """Where a time of its own is turned off, it is refused, not passed over; one sent back is taken."""
        self.make(options={"timer_wheel_enable": False})
        self.refused(Code.SYSTEM_ERROR, "timer message is not enabled", properties="TIMER_DELAY_SEC\x017\x02")
        answer = self.send(topic="%RETRY%G", properties="TIMER_DELAY_SEC\x017\x02")
        self.assertEqual(answer.code, 0)


class PlainTests(SendCase):
    """Of what is known of earlier requests nothing is taken for a later one that differs."""

    def test_topic_changes(self) -> None:
        """What is known of a topic is forgotten when any of them changes."""
        self.send()
        self.assertEqual(self.send(queueId=3).code, 0)
        made = self.broker.metadata.topics.get("T1")
        assert made is not None
        self.broker.metadata.topics.put(attrs.evolve(made, perm=4), WALL_MS)
        self.refused(Code.NO_PERMISSION, "forbidden")
        self.broker.metadata.topics.delete("T1", WALL_MS)
        self.assertEqual(self.send().code, 0)
        self.assertEqual(self.broker.created, 2)

    def test_answer(self) -> None:
        """The same bytes as those of the long way."""
        self.send()
        (answer,) = self.client.send(send_of(opaque=77))
        self.client.connection.dataReceived(encode_command(send_of(opaque=77)))
        self.broker.clock.advance(0)
        stored = self.broker.stored()[2]
        self.assertEqual(self.client.transport.value(), encode_command(attrs.evolve(answer, ext_fields={
            **answer.ext_fields, "msgId": stored.message_id, "queueOffset": "2",
        })))

    def test_binary_header(self) -> None:
        """Who writes headers the other way is answered so."""
        (answer,) = self.client.send(attrs.evolve(send_of(), serialize_type=1))
        self.assertEqual((answer.code, answer.serialize_type), (0, 1))


class DelayTests(SendCase):
    """Messages that wait stand in the topic of the schedule until their time."""

    def test_no_levels(self) -> None:
        """A broker without delay levels stores a message where it goes."""
        self.make(store={"message_delay_level": ""})
        self.assertEqual(self.send(queueId=2, properties="DELAY\x013\x02TAGS\x01A").code, 0)
        (stored,) = self.broker.stored()
        self.assertEqual((stored.topic, stored.queue_id, stored.properties["DELAY"]), ("T1", 2, "3"))

    def test_delayed(self) -> None:
        """In the queue of its level; the producer is informed of its own."""
        answer = self.send(queueId=2, properties="DELAY\x013\x02TAGS\x01A\x02UNIQ_KEY\x01u")
        (stored,) = self.broker.stored()
        self.assertEqual((stored.topic, stored.queue_id), ("SCHEDULE_TOPIC_XXXX", 2))
        self.assertEqual(stored.properties, {
            "DELAY": "3", "TAGS": "A", "UNIQ_KEY": "u", **EVERY, "REAL_TOPIC": "T1", "REAL_QID": "2",
        })
        self.assertEqual((answer.code, answer.ext_fields["queueId"]), (0, "2"))

    def test_highest_level(self) -> None:
        """There is none beyond it."""
        self.send(properties="DELAY\x0199")
        (stored,) = self.broker.stored()
        self.assertEqual((stored.queue_id, stored.properties["DELAY"]), (17, "18"))

    def test_no_delay(self) -> None:
        """0 and less are none; what is not a number is refused."""
        self.send(properties="DELAY\x010")
        self.assertEqual(self.broker.stored()[0].topic, "T1")
        self.refused(Code.MESSAGE_ILLEGAL, "is not a number", properties="DELAY\x01soon")


class RetryTests(SendCase):
    """What a consumer sends back by itself."""

    def test_retry(self) -> None:
        """Once more, in a topic of its group that is made."""
        self.assertEqual(self.send(topic="%RETRY%G", reconsumeTimes=15, maxReconsumeTimes=16).code, 0)
        self.assertEqual(self.broker.stored()[0].topic, "%RETRY%G")
        self.assertIsNotNone(self.broker.metadata.groups.get("G"))

    def test_without_a_default_topic(self) -> None:
        """A retry topic is made in any case."""
        self.make(options={"auto_create_topic_enable": False})
        self.assertEqual(self.send(topic="%RETRY%G").code, 0)
        made = self.broker.metadata.topics.get("%RETRY%G")
        assert made is not None
        self.assertEqual((made.write_queue_nums, made.perm), (1, 6))
        self.assertEqual(self.broker.created, 1)

    def test_dead(self) -> None:
        """Tried often enough: at once into the dead letter queue, whatever its delay."""
        for fields in ({"maxReconsumeTimes": 2, "reconsumeTimes": 2}, {"reconsumeTimes": 16}):
            self.send(topic="%RETRY%G", properties="DELAY\x013", **fields)
            stored = self.broker.stored()[-1]
            self.assertEqual((stored.topic, stored.queue_id), ("%DLQ%G", 0))
            self.assertNotIn("DELAY", stored.properties)

    def test_old_client(self) -> None:
        """One before 3.4.9 does not say how often: the group does."""
        self.send(topic="%RETRY%G", reconsumeTimes=2, maxReconsumeTimes=2, version=100)
        self.assertEqual(self.broker.stored()[0].topic, "%RETRY%G")

    def test_committed(self) -> None:
        """A retry of what a transaction has committed is no half message again, wherever it goes."""
        committed = "TRAN_MSG\x01true\x02PGROUP\x01p\x02UNIQ_KEY\x01u\x02REAL_TOPIC\x01T1\x02DELAY\x013"
        self.assertEqual(self.send(topic="%RETRY%G", reconsumeTimes=1, properties=committed).code, 0)
        self.assertEqual(self.send(reconsumeTimes=1, properties=committed).code, 0)
        self.assertEqual(self.send(topic="%RETRY%G", properties=committed.replace("DELAY", "X")).code, 0)
        self.assertEqual([one.topic for one in self.broker.stored()],
                         ["SCHEDULE_TOPIC_XXXX", "SCHEDULE_TOPIC_XXXX", "%RETRY%G"])
        self.send(reconsumeTimes=1, properties=committed.replace("DELAY", "X"))
        self.assertEqual(self.broker.stored()[-1].topic, "RMQ_SYS_TRANS_HALF_TOPIC")

    def test_unknown_group(self) -> None:
        """Where groups are not made by themselves."""
        self.make(options={"auto_create_subscription_group": False})
        self.refused(Code.SUBSCRIPTION_GROUP_NOT_EXIST, "subscription group not exist", topic="%RETRY%G")


class OfBrokersTests(SendCase):
    """What another broker has written for its consumers, and what this one will write."""

    def test_dropped(self) -> None:
        """A message that is sent on does not bring the receipt of its delivery."""
        receipt = "POP_CK\x010 1 2 0 0 b 0\x021ST_POP_TIME\x017\x02ORIGIN_GROUP\x01g\x02"
        marked = f"A\x01b\x02{receipt}TAGS\x01T\x02"
        item = encode_batch([BatchItem(flag=0, body=b"c", properties_data=marked.encode())])
        self.send(properties=marked)
        self.send(properties=marked, code=10)
        self.send(item, code=320, batch="true")
        self.send(topic="%RETRY%G", properties=marked)
        self.send(properties="XPOP_CK\x01kept\x02")
        kept = [{**one.properties} for one in self.broker.stored()]
        for named in kept:
            for name in (*EVERY, "UNIQ_KEY"):
                named.pop(name)
        self.assertEqual(kept, [{"A": "b", "TAGS": "T"}] * 4 + [{"XPOP_CK": "kept"}])

    def test_room(self) -> None:
        """Properties leave room for what brokers add; those of a retry have it."""
        added = len("CLUSTER\x01C\x02MSG_REGION\x01DefaultRegion\x02TRACE_ON\x01true\x02")
        added += len("UNIQ_KEY\x01\x02") + 32
        for room, code in ((PROPERTIES_ROOM, 0), (PROPERTIES_ROOM - 1, Code.MESSAGE_ILLEGAL)):
            size = PROPERTIES_BYTES_MAX - room - added
            properties = "K\x01".ljust(size - 1, "x") + "\x02"
            self.make(store={"mapped_file_size_commit_log": 1 << 18})
            item = encode_batch([BatchItem(flag=0, body=b"c", properties_data=properties.encode())])
            self.assertEqual(self.send(properties=properties).code, code)
            self.assertEqual(self.send(properties=properties, code=10).code, code)
            self.assertEqual(self.send(item, code=320, batch="true").code, code)
            self.assertEqual(self.send(topic="%RETRY%G", properties=properties).code, 0)


class BatchTests(SendCase):
    """Many messages in one request."""

    def batch(self, *bodies: bytes) -> bytes:
        """A body of these."""
        return encode_batch([
            BatchItem(flag=number, body=body, properties_data=b"KEYS\x01k%d\x02UNIQ_KEY\x01u" % number)
            for number, body in enumerate(bodies)
        ])

    def test_stored(self) -> None:
        """Each for itself, one after the other, with the batch's properties after its own."""
        answer = self.send(self.batch(b"a", b"b"), code=320, batch="true", queueId=1, properties="X\x01y\x02")
        self.assertEqual(answer.code, 0, answer.remark)
        stored = self.broker.stored()
        self.assertEqual([(one.body, one.flag, one.queue_offset, one.queue_id) for one in stored],
                         [(b"a", 0, 0, 1), (b"b", 1, 1, 1)])
        self.assertEqual(decode_properties(stored[1].properties_data),
                         {"KEYS": "k1", "UNIQ_KEY": "u", "X": "y", **EVERY})
        self.assertEqual(answer.ext_fields["msgId"], ",".join(one.message_id for one in stored))
        self.assertEqual(answer.ext_fields["queueOffset"], "0")

    def test_not_split(self) -> None:
        """A batch is in one file."""
        self.send(bytes(3500))
        self.send(self.batch(bytes(200), bytes(200)), code=320, batch="true")
        first, second = self.broker.stored()[1:]
        self.assertEqual((first.physical_offset, second.physical_offset), (4096, 4096 + first.size))

    def test_refused(self) -> None:
        """Damaged, empty, delayed, for a retry, half of a transaction, too large."""
        whole = self.batch(b"a", b"b")
        for words, body, fields in (
            ("batch:", whole[:-1], {}), ("without messages", b"", {}),
            ("cannot be delayed", whole, {"properties": "DELAY\x011"}),
            ("retry group", whole, {"topic": "%RETRY%G"}),
            ("part of a transaction", whole, {"sysFlag": 4}),
            ("part of a transaction", whole, {"properties": "TRAN_MSG\x01true"}),
            ("delivery time", whole, {"properties": "TIMER_DELAY_SEC\x0160"}),
            ("do not fit", self.batch(bytes(5000)), {}),
        ):
            self.refused(Code.MESSAGE_ILLEGAL, words, body, code=320, batch="true", **fields)

    def test_most_messages(self) -> None:
        """A batch is stored in one turn, so it has a bound."""
        item = BatchItem(flag=0, body=b"", properties_data=b"")
        self.refused(
            Code.MESSAGE_ILLEGAL, f"a batch of {BATCH_MAX + 1} messages: write 1 to {BATCH_MAX}",
            encode_batch([item] * (BATCH_MAX + 1)), code=320, batch="true",
        )

    def test_refused_items(self) -> None:
        """One message of a batch that asks for more than to be stored at once: nothing is stored."""
        for words, properties in (
            ("cannot be delayed", b"DELAY\x015\x02"), ("part of a transaction", b"TRAN_MSG\x01true\x02"),
            ("delivery time", b"TIMER_DELAY_SEC\x0160\x02"), ("delivery time", b"TIMER_DELIVER_MS\x0160\x02"),
        ):
            items = [BatchItem(flag=0, body=b"a", properties_data=one) for one in (b"", properties)]
            self.refused(Code.MESSAGE_ILLEGAL, words, encode_batch(items), code=320, batch="true")
