# -*- test-case-name: tests.namesrv.test_registrations -*-
"""Bodies of registrations: every form, and everything that is refused."""

from __future__ import annotations

import struct
import zlib

from twisted.trial.unittest import SynchronousTestCase

from dledger.rocketmq.answering.java_json import DataVersion
from dledger.rocketmq.answering.pieces import at_once
from dledger.rocketmq.namesrv import registrations
from dledger.rocketmq.namesrv.registrations import (
    BrokerTopics,
    TopicQueues,
    read_registration,
    read_topic_route,
)
from protocols.wire.errors import BodyError
from tests.namesrv.support import registration_document

#: Of a broker of 5.3.3.
GOLDEN_5 = (
    b'{"filterServerList":[],"topicConfigSerializeWrapper":{"dataVersion":{"counter":2,"stateVersion":0,'
    b'"timestamp":111},"mappingDataVersion":{"counter":0,"stateVersion":0,"timestamp":5},'
    b'"topicConfigTable":{"T":{"attributes":{},"order":false,"perm":7,"readQueueNums":8,'
    b'"topicFilterType":"SINGLE_TAG","topicName":"T","topicSysFlag":1,"writeQueueNums":4}},'
    b'"topicQueueMappingDetailMap":{},"topicQueueMappingInfoMap":{}}}'
)


def piece(text: bytes) -> bytes:
    """With its length."""
    return struct.pack(">i", len(text)) + text


def packed(*topics: bytes, count: int | None = None, tail: bytes = b"") -> bytes:
    """The compressed form."""
    parts = [piece(b'{"counter":3,"timestamp":5}'),
             struct.pack(">i", len(topics) if count is None else count), *map(piece, topics),
             piece(b'["f1","f2"]'), tail]
    return zlib.compress(b"".join(parts))


class ReadTests(SynchronousTestCase):
    """What is read."""

    def read(self, body: bytes, *, version: int = 479, is_compressed: bool = False) -> BrokerTopics:
        """Any form."""
        return at_once(read_registration(
            body, version=version, is_compressed=is_compressed, topics_max=2
        ))

    def refused(self, body: bytes, *, is_compressed: bool = False) -> str:
        """The reason."""
        return str(self.assertRaises(BodyError, self.read, body, is_compressed=is_compressed))

    def test_json(self) -> None:
        """That of 5.3.3; defaults are Java's."""
        found = self.read(GOLDEN_5)
        self.assertEqual(found.version, DataVersion(counter=2, timestamp=111))
        self.assertEqual(found.topics, {
            "T": TopicQueues(read_queue_nums=8, write_queue_nums=4, perm=7, sys_flag=1)
        })
        self.assertEqual(self.read(b'{"topicConfigSerializeWrapper":{"topicConfigTable":{"A":{}}}}').topics,
                         {"A": TopicQueues()})
        self.assertEqual(self.read(registration_document(found)), found)

    def test_old(self) -> None:
        """Below version 37 the inner object is the body, and filter servers stay."""
        found = self.read(b'{"topicConfigTable":{"A":{"topicName":"A2","readQueueNums":1}}}', version=36)
        self.assertEqual(found.topics, {"A2": TopicQueues(read_queue_nums=1)})
        self.assertIsNone(found.filter_servers)

    def test_nothing(self) -> None:
        """Without a body there are no topics."""
        self.assertEqual(self.read(b""), BrokerTopics())

    def test_compressed(self) -> None:
        """Of 4.9 with five fields, of 5.x with attributes and a count of mappings at the end."""
        queues = TopicQueues(read_queue_nums=4, write_queue_nums=5)
        for body in (packed(b"A 4 5 6 SINGLE_TAG"),
                     packed(b'A 4 5 6 SINGLE_TAG {"a": "b c"}', tail=struct.pack(">i", 0))):
            found = self.read(body, is_compressed=True)
            self.assertEqual(found.topics, {"A": queues})
            self.assertEqual((found.filter_servers, found.version.counter), (("f1", "f2"), 3))

    def test_compressed_refused(self) -> None:
        """Counts and lengths beyond the body, cut and malformed streams, and what grows without end."""
        whole = packed(b"A 4 5 6 SINGLE_TAG")
        for body, reason in (
            (packed(count=2**31 - 1), "2147483647 topics are announced"), (packed(count=-1), "-1 topics"),
            (whole[:-1], "cut"), (b"no zlib", "malformed"), (packed(b"A 4 5"), "3 fields"),
            (packed(b"A x 5 6 T"), "not a number"), (packed(b"\xff 4 5 6 T"), "UTF-8"),
            (zlib.compress(struct.pack(">i", 100)), "length of 100"), (zlib.compress(b"\0"), "ends before"),
            (zlib.compress(struct.pack(">i", -1)), "length of -1"), (packed(b" 4 5 6 T"), "topicName"),
        ):
            self.assertIn(reason, self.refused(body, is_compressed=True))

    def test_bomb(self) -> None:
        """A small body that is large when unpacked is refused before it is."""
        self.patch(registrations, "BODY_BYTES_MAX", 1000)
        self.assertIn("more than 1000 bytes", self.refused(zlib.compress(b"x" * 1001), is_compressed=True))

    def test_blocks_without_content(self) -> None:
        """Blocks that unpack to nothing are read in pieces, too: they cost as much time as others."""
        body = b"\x78\x9c" + b"\0\0\0\xff\xff" * 20_000
        reading = read_registration(body, version=479, is_compressed=True, topics_max=2)
        for _ in range(len(body) // registrations.PACKED_BYTES):
            next(reading)
        self.assertIn("cut", str(self.assertRaises(BodyError, at_once, reading)))

    def test_too_many_topics(self) -> None:
        """More topics than the table may have are refused unread: half a megabyte could hold a million."""
        wrong = b"A x 5 6 T"
        self.assertEqual(self.refused(packed(wrong, wrong, wrong), is_compressed=True),
                         "it has 3 topics; topics_max=2")
        table = '{"A":1,"B":1,"C":1}'
        for version, text in ((479, '{"topicConfigSerializeWrapper":{"topicConfigTable":%s}}'),
                              (36, '{"topicConfigTable":%s}')):
            error = self.assertRaises(BodyError, self.read, (text % table).encode(), version=version)
            self.assertEqual(str(error), "it has 3 topics; topics_max=2")
        self.assertEqual(len(self.read(packed(b"A 4 5 6 T", b"B 4 5 6 T"), is_compressed=True).topics), 2)

    def test_each_has_its_numbers(self) -> None:
        """Topics with the same numbers share them, and others do not."""
        found = self.read(packed(b"A 4 5 6 T", b"B 4 5 4 T"), is_compressed=True).topics
        self.assertEqual([found[name].perm for name in "AB"], [6, 4])
        self.assertIn("topicName", self.refused(packed(b"A 4 5 6 T", b" 4 5 6 T"), is_compressed=True))

    def test_json_refused(self) -> None:
        """Wrong types, long names, deep nesting, half texts."""
        for text, reason in (
            ('{"topicConfigSerializeWrapper":[]}', "not an object"),
            ('{"topicConfigSerializeWrapper":{"topicConfigTable":[1]}}', "not an object"),
            ('{"topicConfigSerializeWrapper":{"topicConfigTable":{"A":1}}}', "not an object"),
            ('{"topicConfigSerializeWrapper":{"topicConfigTable":{"%s":{}}}}' % ("x" * 256), "1 to 255"),
            ('{"topicConfigSerializeWrapper":{"topicConfigTable":{"A":{"perm":"x"}}}}', "not a number"),
            ('{"topicConfigSerializeWrapper":{"topicConfigTable":{"A":{"perm":[]}}}}', "not a number"),
            ('{"topicConfigSerializeWrapper":{"topicConfigTable":{"A":{"perm":99999999999}}}}', "range"),
            ('{"topicConfigSerializeWrapper":{"topicConfigTable":{"A":{"topicName":"\\ud800"}}}}', "pair"),
            (f'{{"filterServerList":[{",".join(["1"] * 65)}]}}', "at most 64"),
            ('{"filterServerList":{}}', "at most 64"), ('{"a"', "colon"), ('{"a":' * 700, "levels"),
            ("[]", "object"),
        ):
            self.assertIn(reason, self.refused(text.encode()))

    def test_single_topic(self) -> None:
        """REGISTER_TOPIC: queues by broker."""
        body = b'{"queueDatas":[{"brokerName":"bk","perm":6,"readQueueNums":4,"writeQueueNums":5}],"x":1}'
        self.assertEqual(read_topic_route(body),
                         {"bk": TopicQueues(read_queue_nums=4, write_queue_nums=5, perm=6)})
        self.assertEqual((read_topic_route(b""), read_topic_route(b"{}")), ({}, {}))
        for wrong in (b'{"queueDatas":{}}', b'{"queueDatas":[1]}', b'{"queueDatas":[{}]}'):
            self.assertRaises(BodyError, read_topic_route, wrong)
