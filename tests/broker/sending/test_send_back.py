# -*- test-case-name: tests.broker.sending.test_send_back -*-
"""What a consumer could not deal with comes once more, later, and at last goes to the dead letters."""

from __future__ import annotations

from typing import Any

from twisted.trial.unittest import SynchronousTestCase

from dledger.rocketmq.answering.refusals import Code
from dledger.rocketmq.broker.producing.sending.send_back import CONSUMER_SEND_MSG_BACK
from dledger.rocketmq.metadata.tables import GroupConfig, TopicConfig
from dledger.rocketmq.store.records.records import SCHEDULE_TOPIC
from protocols.wire.remoting import RemotingCommand
from protocols.wire.rocketmq.message import Host, Message
from tests.broker.put_support import WALL_MS
from tests.broker.send_support import Sending
from tests.broker.support import message, plain


class SendBackTests(SynchronousTestCase):
    """A master with one message in topic T1."""

    def setUp(self) -> None:
        self.build()

    def build(self, **more: Any) -> None:
        """Make it."""
        self.broker = Sending(**more)
        self.addCleanup(self.broker.stop)
        self.client = self.broker.connect()

    def put(self, **fields: Any) -> int:
        """A message that somebody has consumed. @return: its offset."""
        # Another broker stored it: test_the_copy distinguishes the two.
        new = message(
            b"bad", topic="T1", store_host=Host.of("10.0.0.9", 10911),
            properties={"TAGS": "A", "DELAY": "7"}, **fields,
        )
        put = self.broker.pipeline.put(plain([new]))
        return put.placed.offsets[0]

    def back(self, offset: int, level: int = 0, **more: object) -> RemotingCommand:
        """Send it back."""
        fields = {"group": "g", "offset": offset, "delayLevel": level, "originMsgId": "X",
                  "originTopic": "T1", "unitMode": "false", **more}
        (answer,) = self.client.send(RemotingCommand(
            code=CONSUMER_SEND_MSG_BACK, opaque=1, version=409,
            ext_fields={name: str(value) for name, value in fields.items()},
        ))
        return answer

    def copy(self) -> Message:
        """What was stored last."""
        return self.broker.stored()[-1]

    def test_later(self) -> None:
        """It waits in the level that its times say, for the group's topic for retries."""
        for times, level in ((0, 3), (2, 5), (14, 17), (15, 18)):
            self.assertEqual(self.back(self.put(reconsume_times=times)).code, 0)
            found = self.copy()
            self.assertEqual((found.topic, found.queue_id), (SCHEDULE_TOPIC, level - 1))
            self.assertEqual((found.properties["DELAY"], found.reconsume_times), (str(level), times + 1))
            self.assertEqual(found.properties["REAL_TOPIC"], "%RETRY%g")

    def test_the_largest_number_of_tries(self) -> None:
        """A producer may send a message with it: the copy has it, too."""
        for level, topic in ((0, SCHEDULE_TOPIC), (-1, "%DLQ%g")):
            offset = self.put(reconsume_times=2**31 - 1)
            self.assertEqual(self.back(offset, level, maxReconsumeTimes=2**31 - 1 + level).code, 0)
            self.assertIn(self.copy().topic, (topic, "%DLQ%g"))
            self.assertEqual(self.copy().reconsume_times, 2**31 - 1)

    def test_the_copy(self) -> None:
        """It has the properties of the message, and the id of the first one."""
        offset = self.put(flag=9)
        self.back(offset)
        first, found = self.broker.stored()
        self.assertEqual((found.body, found.flag, found.tags), (b"bad", 9, "A"))
        self.assertEqual((found.born_timestamp, found.born_host), (first.born_timestamp, first.born_host))
        self.assertEqual(found.properties["RETRY_TOPIC"], "T1")
        self.assertEqual(found.properties["ORIGIN_MESSAGE_ID"], first.message_id)
        hosts = (str(first.store_host), str(found.store_host))
        self.assertEqual(hosts, ("10.0.0.9:10911", "10.0.0.1:10911"))
        self.back(found.physical_offset)
        again = self.copy()
        self.assertEqual(again.properties["RETRY_TOPIC"], "T1")
        self.assertEqual(again.properties["ORIGIN_MESSAGE_ID"], first.message_id)

    def test_wanted_level(self) -> None:
        """A consumer may say how long it is to wait; no longer than the last level."""
        for wanted, level in ((1, 1), (18, 18), (99, 18)):
            self.back(self.put(), wanted)
            self.assertEqual(self.copy().properties["DELAY"], str(level))

    def test_dead(self) -> None:
        """After as many times as the group or its consumer allows, or if the consumer has had enough."""
        for times, level, more in ((16, 0, {}), (0, -1, {}), (2, 0, {"maxReconsumeTimes": 2})):
            self.assertEqual(self.back(self.put(reconsume_times=times), level, **more).code, 0)
            found = self.copy()
            self.assertEqual((found.topic, found.queue_id, found.reconsume_times), ("%DLQ%g", 0, times + 1))
            self.assertNotIn("DELAY", found.properties)
        self.back(self.put(reconsume_times=16), maxReconsumeTimes=17)
        self.assertEqual(self.copy().topic, SCHEDULE_TOPIC)

    def test_topics(self) -> None:
        """They are made as the group says; one that is closed takes nothing."""
        self.broker.metadata.groups.put(GroupConfig(group_name="g", retry_queue_nums=3), WALL_MS)
        queues = set()
        for _ in range(30):
            self.back(self.put())
            queues.add(self.copy().properties["REAL_QID"])
        self.assertEqual(queues, {"0", "1", "2"})
        topic = self.broker.metadata.topics.get("%RETRY%g")
        assert topic is not None
        self.assertEqual((topic.write_queue_nums, topic.perm), (3, 6))
        self.broker.metadata.topics.put(TopicConfig(topic_name="%RETRY%g", perm=4), WALL_MS)
        self.assertEqual(self.back(self.put()).code, Code.NO_PERMISSION)

    def test_only_queues_that_are_there(self) -> None:
        """The group has got more queues than its topic, which nobody would read."""
        self.broker.metadata.topics.put(
            TopicConfig(topic_name="%RETRY%g", read_queue_nums=2, write_queue_nums=3), WALL_MS
        )
        self.broker.metadata.groups.put(GroupConfig(group_name="g", retry_queue_nums=8), WALL_MS)
        queues = set()
        for _ in range(30):
            self.back(self.put())
            queues.add(self.copy().properties["REAL_QID"])
        self.assertEqual(queues, {"0", "1"})

    def test_no_retries(self) -> None:
        """A group without queues for retries is answered yes, and nothing comes."""
        self.broker.metadata.groups.put(GroupConfig(group_name="g", retry_queue_nums=0), WALL_MS)
        self.assertEqual(self.back(self.put()).code, 0)
        self.assertEqual(len(self.broker.stored()), 1)

    def test_refused(self) -> None:
        """Nothing is stored, and the consumer is informed why."""
        offset = self.put()
        for fields, code, word in (
            ({"offset": 7}, Code.SYSTEM_ERROR, "look message by offset failed, 7"),
            ({"group": "a/b"}, Code.SUBSCRIPTION_GROUP_NOT_EXIST, "a/b"),
            ({"offset": "x"}, Code.SYSTEM_ERROR, "not a number"),
        ):
            answer = self.back(**{"offset": offset, **fields})  # type: ignore[arg-type]
            self.assertEqual(answer.code, code)
            self.assertIn(word, answer.remark or "")
        self.assertEqual(len(self.broker.stored()), 1)
        self.build(options={"broker_permission": 4})
        self.assertEqual(self.back(self.put()).code, Code.NO_PERMISSION)

    def test_slave(self) -> None:
        """A slave stores nothing."""
        self.build(broker_role="SLAVE")
        answer = self.back(0)
        self.assertEqual(answer.code, Code.SYSTEM_ERROR)
        self.assertIn("slave", answer.remark or "")

    def test_closed(self) -> None:
        """Nor does a broker that stops."""
        offset = self.put()
        self.broker.pipeline.close("the broker stops")
        self.assertEqual(self.back(offset).code, Code.SYSTEM_ERROR)
