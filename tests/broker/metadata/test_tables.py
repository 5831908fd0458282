# -*- test-case-name: tests.broker.metadata.test_tables -*-
"""Tables of metadata: as Java has them, taken over whole or not at all."""

from __future__ import annotations

import json
from typing import Any

from twisted.trial.unittest import SynchronousTestCase

from dledger.rocketmq.answering.pieces import at_once
from dledger.rocketmq.metadata.offsets import ConsumerOffsets, DelayOffsets
from dledger.rocketmq.metadata.tables import (
    GroupConfig,
    Groups,
    RequestModes,
    Table,
    TopicConfig,
    Topics,
)
from protocols.wire.errors import BodyError

#: A topic in the files of 4.9.7 and of 5.3.3, cut out of both.
JAVA_TOPICS_4 = (
    b'{\n\t"dataVersion":{\n\t\t"counter":5,\n\t\t"timestamp":1795265115563\n\t},\n\t"topicConfigTable":{\n'
    b'\t\t"C1":{\n\t\t\t"order":false,\n\t\t\t"perm":7,\n\t\t\t"readQueueNums":16,\n'
    b'\t\t\t"topicFilterType":"SINGLE_TAG",\n\t\t\t"topicName":"C1",\n\t\t\t"topicSysFlag":0,\n'
    b'\t\t\t"writeQueueNums":16\n\t\t}\n\t}\n}'
)
JAVA_TOPICS_5 = JAVA_TOPICS_4.replace(
    b'5,\n\t\t"timestamp', b'4,\n\t\t"stateVersion":0,\n\t\t"timestamp'
).replace(b'\t\t\t"order"', b'\t\t\t"attributes":{},\n\t\t\t"order"')

#: Answers of a 4.9.7 broker.
JAVA_43 = (
    b'{"offsetTable":{"T1@G2":{0:3,1:4,2:5},"T1@G1":{0:3,1:4,2:5},'
    b'"RMQ_SYS_TRANS_HALF_TOPIC@CID_RMQ_SYS_TRANS":{0:41}}}'
)
JAVA_45 = b'{"offsetTable":{1:18,2:22,3:22}}'
JAVA_201 = (
    b'{"dataVersion":{"counter":2,"timestamp":1795265098068},"subscriptionGroupTable":{"G1":{"brokerId":0,'
    b'"consumeBroadcastEnable":true,"consumeEnable":true,"consumeFromMinEnable":true,"groupName":"G1",'
    b'"notifyConsumerIdsChangedEnable":true,"retryMaxTimes":16,"retryQueueNums":1,'
    b'"whichBrokerWhenConsumeSlowly":1}}}'
)
#: Of a 5.3.3 broker: fields that we do not know.
JAVA_201_5 = JAVA_201.replace(b'"counter":2', b'"counter":2,"stateVersion":0').replace(
    b'"groupName"', b'"consumeMessageOrderly":false,"groupRetryPolicy":{"type":"CUSTOMIZED"},"groupName"'
)


class TopicsTests(SynchronousTestCase):
    """Topics."""

    def setUp(self) -> None:
        self.topics = Topics(1)

    def test_files_keep_their_bytes(self) -> None:
        """What Java wrote is what we write after having read it, 4.9 or 5.x."""
        for data in (JAVA_TOPICS_4, JAVA_TOPICS_5):
            self.topics.load(data)
            self.assertEqual(self.topics.file_bytes(), data)
            self.assertFalse(self.topics.is_dirty)

    def test_fields(self) -> None:
        """By their names."""
        self.topics.load(JAVA_TOPICS_4)
        topic = self.topics.get("C1")
        assert topic is not None
        self.assertEqual(topic, TopicConfig(topic_name="C1", perm=7))
        self.assertEqual((topic.can_read, topic.can_write), (True, True))

    def test_version_steps_with_changes_only(self) -> None:
        """One per change; none when nothing changes."""
        self.topics.put(TopicConfig(topic_name="A"), 10)
        self.topics.put(TopicConfig(topic_name="A"), 20)
        self.assertEqual((self.topics.version.counter, self.topics.version.timestamp), (1, 10))
        self.assertTrue(self.topics.delete("A", 30))
        self.assertFalse(self.topics.delete("A", 40))
        self.assertEqual((self.topics.version.counter, self.topics.version.timestamp), (2, 30))
        self.assertTrue(self.topics.is_dirty)

    def test_created_on_send(self) -> None:
        """As RocketMQ does: from the default topic, if that may be inherited from."""
        self.topics.add_system_topics(cluster="C1", broker="b0", now_ms=1)
        made = self.topics.create_on_send("New", default_topic="TBW102", queue_nums=4, now_ms=2)
        self.assertEqual(made, TopicConfig(topic_name="New", read_queue_nums=4, write_queue_nums=4, perm=6))
        many = self.topics.create_on_send("Many", default_topic="TBW102", queue_nums=99, now_ms=2)
        assert many is not None
        self.assertEqual(many.write_queue_nums, 8)
        again = self.topics.create_on_send("New", default_topic="TBW102", queue_nums=7, now_ms=3)
        self.assertEqual(again, made)
        for default in ("New", "nothing"):
            self.assertIsNone(
                self.topics.create_on_send("X", default_topic=default, queue_nums=1, now_ms=4))

    def test_system_topics(self) -> None:
        """Those of a 4.9 broker; what is there is left alone."""
        self.topics.put(TopicConfig(topic_name="TBW102", perm=6), 1)
        self.topics.add_system_topics(cluster="C1", broker="b0", now_ms=1)
        self.assertEqual(sorted(self.topics.entries), sorted([
            "C1", "SCHEDULE_TOPIC_XXXX", "SELF_TEST_TOPIC", "C1_REPLY_TOPIC", "b0", "TBW102", "BenchmarkTest",
            "RMQ_SYS_TRANS_HALF_TOPIC", "OFFSET_MOVED_EVENT",
        ]))
        self.assertEqual(self.topics.entries["TBW102"].perm, 6)
        version = self.topics.version
        self.topics.add_system_topics(cluster="C1", broker="b0", now_ms=2)
        self.assertEqual(self.topics.version, version)

    def test_answer(self) -> None:
        """Strict JSON that slaves of all versions take: a complete version, no attributes, empty tables."""
        attributes = b'"attributes":{"+message.type":"NORMAL"}'
        self.topics.load(JAVA_TOPICS_4.replace(b'"order"', attributes + b',"order"'))
        answer = json.loads(at_once(self.topics.wire_pieces()))
        self.assertEqual(answer["dataVersion"], {"counter": 5, "stateVersion": 0, "timestamp": 1795265115563})
        self.assertEqual(answer["topicConfigTable"]["C1"]["attributes"], {})
        self.assertEqual((answer["topicQueueMappingDetailMap"], answer["topicQueueMappingInfoMap"]), ({}, {}))
        self.assertIn(b"+message.type", self.topics.file_bytes())

    def test_kept_for_a_version(self) -> None:
        """The answer is made once for a version; every change makes another."""
        first = at_once(self.topics.wire_pieces())
        self.assertIs(at_once(self.topics.wire_pieces()), first)
        self.topics.put(TopicConfig(topic_name="another"), 5)
        second = at_once(self.topics.wire_pieces())
        self.assertIn("another", json.loads(second)["topicConfigTable"])
        self.topics.delete("another", 6)
        self.assertNotIn("another", json.loads(at_once(self.topics.wire_pieces()))["topicConfigTable"])
        self.assertTrue(self.topics.adopt(second))
        self.assertIn("another", json.loads(at_once(self.topics.wire_pieces()))["topicConfigTable"])

    def test_adopt(self) -> None:
        """Another version replaces everything; the same version is not looked at."""
        self.topics.put(TopicConfig(topic_name="Mine"), 5)
        self.assertTrue(self.topics.adopt(JAVA_TOPICS_5))
        self.assertEqual(list(self.topics.entries), ["C1"])
        self.assertTrue(self.topics.is_dirty)
        self.topics.is_dirty = False
        self.assertFalse(self.topics.adopt(JAVA_TOPICS_5.replace(b'"perm":7', b'"perm":6')))
        self.assertEqual((self.topics.entries["C1"].perm, self.topics.is_dirty), (7, False))

    def test_from_ours_to_ours(self) -> None:
        """A slave of ours has what its master has, and says the same."""
        self.topics.add_system_topics(cluster="C1", broker="b0", now_ms=77)
        slave = Topics(1)
        self.assertTrue(slave.adopt(at_once(self.topics.wire_pieces())))
        self.assertFalse(slave.adopt(at_once(self.topics.wire_pieces())))
        theirs = at_once(self.topics.wire_pieces())
        self.assertEqual(json.loads(at_once(slave.wire_pieces())), json.loads(theirs))


class GroupsTests(SynchronousTestCase):
    """Subscription groups."""

    def test_java(self) -> None:
        """Both versions; unknown fields stay."""
        for data in (JAVA_201, JAVA_201_5):
            groups = Groups(1)
            self.assertTrue(groups.adopt(data))
            again = Groups(1)
            again.load(groups.file_bytes())
            self.assertEqual(again.entries, groups.entries)
            self.assertEqual(b"CUSTOMIZED" in groups.file_bytes(), data is JAVA_201_5)
            self.assertEqual(json.loads(at_once(groups.wire_pieces()))["forbiddenTable"], {})

    def test_first_use(self) -> None:
        """A group that nobody knows is made."""
        groups = Groups(1)
        self.assertEqual(groups.find("G", 7), GroupConfig(group_name="G"))
        version = groups.version
        groups.find("G", 8)
        self.assertEqual((groups.version, version.counter), (version, 1))


class ConsumerOffsetsTests(SynchronousTestCase):
    """Offsets of consumers."""

    def setUp(self) -> None:
        self.offsets = ConsumerOffsets(1)

    def test_commit_and_query(self) -> None:
        """By group, topic and queue; a group's offset may also be set back."""
        self.assertIsNone(self.offsets.query("G", "T", 0))
        self.offsets.commit("G", "T", 0, 5, 10)
        self.offsets.commit("G", "T", 0, 3, 11)
        self.assertEqual(self.offsets.query("G", "T", 0), 3)
        self.offsets.delete_topic("T", 12)
        self.assertIsNone(self.offsets.query("G", "T", 0))

    def test_java(self) -> None:
        """Integer keys without quotes; and no version."""
        self.assertTrue(self.offsets.adopt(JAVA_43))
        self.assertEqual([self.offsets.query("G1", "T1", at) for at in range(4)], [3, 4, 5, None])
        self.assertFalse(self.offsets.adopt(JAVA_43))
        fresh = ConsumerOffsets(1)
        fresh.load(JAVA_43)
        self.assertIsNone(fresh.version)
        self.assertNotIn(b"dataVersion", fresh.file_bytes())
        self.assertEqual(json.loads(at_once(fresh.wire_pieces()))["dataVersion"],
                         {"counter": 0, "stateVersion": 0, "timestamp": 0})

    def test_merge(self) -> None:
        """
        The master's number counts, forward and back; but what a consumer committed here beyond it stays until
        the master has caught up.
        """
        self.offsets.adopt(b'{"offsetTable":{"T@G":{0:10,1:10},"U@G":{0:1}}}')
        self.offsets.commit("G", "T", 0, 20, 5)
        self.offsets.adopt(b'{"offsetTable":{"T@G":{0:15,1:4}}}')
        self.assertEqual([self.offsets.query("G", "T", at) for at in (0, 1)], [20, 4])
        self.assertEqual(self.offsets.query("G", "U", 0), 1)
        self.offsets.adopt(b'{"offsetTable":{"T@G":{0:25}}}')
        self.assertEqual(self.offsets.query("G", "T", 0), 25)
        self.offsets.adopt(b'{"offsetTable":{"T@G":{0:2}}}')
        self.assertEqual(self.offsets.query("G", "T", 0), 2)

    def test_file(self) -> None:
        """As Java writes it, found again."""
        self.offsets.commit("G", "T", 1, 7, 10)
        data = self.offsets.file_bytes()
        self.assertIn(b'"T@G":{1:7\n\t\t}', data)
        again = ConsumerOffsets(1)
        again.load(data)
        self.assertEqual((again.query("G", "T", 1), again.version), (7, self.offsets.version))


class DelayOffsetsTests(SynchronousTestCase):
    """Offsets of delay levels."""

    def test_life(self) -> None:
        """By level; Java's answer replaces them."""
        offsets = DelayOffsets(1)
        offsets.put(1, 5, 10)
        offsets.put(1, 5, 11)
        self.assertEqual((offsets.get(1), offsets.get(2)), (5, 0))
        assert offsets.version is not None
        self.assertEqual(offsets.version.counter, 1)
        self.assertTrue(offsets.adopt(JAVA_45))
        self.assertFalse(offsets.adopt(JAVA_45))
        self.assertEqual([offsets.get(level) for level in (1, 2, 3, 4)], [18, 22, 22, 0])
        again = DelayOffsets(1)
        again.load(offsets.file_bytes())
        self.assertEqual(again.get(3), 22)


class AtomicTests(SynchronousTestCase):
    """What makes no sense changes nothing."""

    def damaged(self, data: bytes) -> list[bytes]:
        """Every truncation, and some that are JSON but no table."""
        return [*(data[:size] for size in range(len(data))), b"{}", b"[]", b'{"offsetTable":5}',
                b'{"dataVersion":{"counter":9,"timestamp":9}}']

    def test_every_table(self) -> None:
        """An error, and the table is as before."""
        modes = b'{"messageRequestModeMap":{"T":{"G":{"mode":"POP","popShareQueueNum":0}}}}'
        cases: list[tuple[Table, bytes]] = [
            (Topics(1), JAVA_TOPICS_5), (Groups(1), JAVA_201_5), (ConsumerOffsets(1), JAVA_43),
            (DelayOffsets(1), JAVA_45), (RequestModes(), modes),
        ]
        for table, data in cases:
            before = table.file_bytes()
            for damaged in self.damaged(data):
                self.assertRaises(BodyError, table.adopt, damaged)
                self.assertRaises(BodyError, table.load, damaged)
                self.assertEqual((table.file_bytes(), table.is_dirty), (before, False))
            self.assertTrue(table.adopt(data))
            self.assertFalse(table.adopt(data))
            self.assertTrue(table.is_dirty)

    def test_wrong_types(self) -> None:
        """Named in the message."""
        cases: list[tuple[Any, bytes, bytes, str]] = [
            (Topics(1), JAVA_TOPICS_5, b'"perm":"x"', "perm of C1='x' is not a number"),
            (Topics(1), JAVA_TOPICS_5, b'"perm":true', "perm"),
            (Topics(1), JAVA_TOPICS_5, b'"order":1,"perm":7', "order of C1=1 is neither true nor false"),
            (Topics(1), JAVA_TOPICS_5, b'"topicName":"C2","perm":7', "'C1' is the key of another name"),
        ]
        for table, data, change, part in cases[:1] + cases[2:]:
            if b"topicName" in change:
                data = data.replace(b'"topicName":"C1",', b"")
            if b"order" in change:
                data = data.replace(b'"order":false,', b"")
            with self.assertRaises(BodyError) as caught:
                table.adopt(data.replace(b'"perm":7', change))
            self.assertIn(part, str(caught.exception))
        for data in (b'{"offsetTable":{"T@G":{"x":1}}}', b'{"offsetTable":{"T@G":{-1:1}}}',
                     b'{"offsetTable":{"T@G":{0:"y"}}}', b'{"offsetTable":{"T@G":[]}}'):
            self.assertRaises(BodyError, ConsumerOffsets(1).adopt, data)


class CarriedTests(SynchronousTestCase):
    """Parts of a 5.x master's tables that we do not read."""

    def test_forbidden_table(self) -> None:
        """It is adopted, written, loaded and handed on as it came; a master without it leaves ours."""
        groups = Groups(1)
        master = b'{"dataVersion":{"counter":2,"timestamp":7},"forbiddenTable":{"G":{"T":3}},' \
                 b'"subscriptionGroupTable":{}}'
        self.assertTrue(groups.adopt(master))
        self.assertIn(b'"forbiddenTable":{"G":{"T":3}}', at_once(groups.wire_pieces()))
        fresh = Groups(2)
        fresh.load(groups.file_bytes())
        self.assertIn(b'"forbiddenTable":{"G":{"T":3}}', at_once(fresh.wire_pieces()))

    def test_group_topic_map(self) -> None:
        """The same for the topics of groups."""
        offsets = ConsumerOffsets(1)
        data = b'{"groupTopicMap":{"G":["T"]},"offsetTable":{"T@G":{0:1}}}'
        self.assertTrue(offsets.adopt(data))
        self.assertFalse(offsets.adopt(data))
        self.assertIn(b'"groupTopicMap":{"G":["T"]}', at_once(offsets.wire_pieces()))
        fresh = ConsumerOffsets(2)
        fresh.load(offsets.file_bytes())
        self.assertIn(b'"groupTopicMap":{"G":["T"]}', at_once(fresh.wire_pieces()))
