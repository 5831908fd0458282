# -*- test-case-name: tests.broker.consuming.test_offset_commands -*-
"""Offsets that consumers ask for and commit."""

from __future__ import annotations

from typing import Any

from twisted.internet.defer import succeed
from twisted.trial.unittest import SynchronousTestCase

from dledger.rocketmq.answering.refusals import Code
from dledger.rocketmq.broker.consuming.commits import CommitJudge
from dledger.rocketmq.broker.consuming.offset_commands import (
    GET_EARLIEST_MSG_STORETIME,
    GET_MAX_OFFSET,
    GET_MIN_OFFSET,
    QUERY_CONSUMER_OFFSET,
    SEARCH_OFFSET_BY_TIMESTAMP,
    UPDATE_CONSUMER_OFFSET,
    VIEW_MESSAGE_BY_ID,
    OffsetCommands,
)
from dledger.rocketmq.broker.options.groups import OWN_GROUPS
from dledger.rocketmq.metadata.order_info import OrderInfo
from dledger.rocketmq.metadata.tables import GroupConfig
from protocols.wire.remoting import RemotingCommand
from protocols.wire.rocketmq.message import decode_message
from tests.broker.asked import NOW_MS, Asked
from tests.broker.support import LOG_SIZE, message

QUEUE = {"consumerGroup": "g", "topic": "t", "queueId": 0}


class OffsetTests(SynchronousTestCase):
    """A master with topic t."""

    def setUp(self) -> None:
        self.build()

    def build(self, **options: Any) -> None:
        """Make it."""
        self.asked = Asked()
        self.addCleanup(self.asked.close)
        self.asked.topic("t")
        self.asked.metadata.groups.find("g", NOW_MS)
        self.asked.metadata.groups.is_dirty = False
        self.asked.groups = [OffsetCommands(
            self.asked.inside, CommitJudge(self.asked.inside), settled=lambda: succeed(None), **options
        )]
        self.client = self.asked.client()

    def ask(self, code: int, **fields: object) -> RemotingCommand:
        """One question about queue 0 of topic t."""
        return self.client.ask(code, {**QUEUE, **fields})

    def offset(self, code: int, **fields: object) -> int:
        """The offset of an answer that is no refusal."""
        answer = self.ask(code, **fields)
        self.assertEqual(answer.code, 0, answer.remark)
        return int(answer.ext_fields["offset"])

    def fill(self, count: int, size: int = 100) -> None:
        """Messages, a second apart."""
        for _ in range(count):
            self.asked.append(message(b"x" * size, topic="t"))
            self.asked.clock.advance(1)

    def test_commit_and_query(self) -> None:
        """What was committed comes back, for this group and queue only."""
        self.fill(7)
        self.assertEqual(self.ask(UPDATE_CONSUMER_OFFSET, commitOffset=7).code, 0)
        self.assertEqual(self.offset(QUERY_CONSUMER_OFFSET), 7)
        self.assertEqual(self.offset(QUERY_CONSUMER_OFFSET, queueId=1), 0)
        self.assertEqual(self.offset(QUERY_CONSUMER_OFFSET, consumerGroup="h"), 0)

    def test_one_way_commit(self) -> None:
        """Consumers want no answer to a commit, and get none."""
        self.fill(5)
        self.client.send(UPDATE_CONSUMER_OFFSET, {**QUEUE, "commitOffset": 5}, flag=2)
        self.assertEqual(self.client.received(), [])
        self.assertEqual(self.offset(QUERY_CONSUMER_OFFSET), 5)

    def test_commit_refused(self) -> None:
        """Offsets of what is not there, or is the broker's, or that make no sense, are not kept."""
        for name in OWN_GROUPS:
            self.asked.metadata.groups.put(GroupConfig(group_name=name), NOW_MS)
        for fields, code in (
            ({"topic": "u"}, Code.TOPIC_NOT_EXIST),
            ({"consumerGroup": "a/b"}, Code.SUBSCRIPTION_GROUP_NOT_EXIST),
            ({"consumerGroup": "new"}, Code.SUBSCRIPTION_GROUP_NOT_EXIST),
            *(({"consumerGroup": name}, Code.NO_PERMISSION) for name in OWN_GROUPS),
            ({"queueId": -1}, Code.SYSTEM_ERROR), ({"queueId": 65536}, Code.SYSTEM_ERROR),
            ({"commitOffset": -1}, Code.SYSTEM_ERROR), ({"commitOffset": 2**63}, Code.SYSTEM_ERROR),
        ):
            answer = self.ask(UPDATE_CONSUMER_OFFSET, **{"commitOffset": 1, **fields})
            self.assertEqual(answer.code, code, fields)
        self.assertFalse(self.asked.metadata.consumer_offsets.is_dirty)
        self.assertNotIn("new", self.asked.metadata.groups.entries)
        self.assertEqual(self.ask(UPDATE_CONSUMER_OFFSET, commitOffset=1, consumerGroup="new").remark,
                         "Group new not exist!")

    def test_set_for_a_pop(self) -> None:
        """What a group holds in order does not count when its offset is set."""
        self.fill(7)
        infos, place = self.asked.metadata.order_info, ("t", "g", 0)
        infos.put(place, OrderInfo(pop_ms=1, invisible_ms=1, offsets=(0,)))
        self.assertEqual(self.ask(UPDATE_CONSUMER_OFFSET, commitOffset=7).code, 0)
        self.assertIsNone(infos.get(place))
        infos.put(place, OrderInfo(pop_ms=1, invisible_ms=1, offsets=(7,)))
        self.assertEqual(self.ask(UPDATE_CONSUMER_OFFSET, commitOffset=7).code, 0)
        self.assertIsNotNone(infos.get(place))

    def test_never_committed(self) -> None:
        """
        A new group begins at 0 while that is not long past; otherwise the answer says that there is none.
        """
        self.build(slow_bytes=1000)
        self.fill(2)
        self.assertEqual(self.offset(QUERY_CONSUMER_OFFSET), 0)
        answer = self.ask(QUERY_CONSUMER_OFFSET, setZeroIfNotFound="false")
        self.assertEqual(answer.code, Code.QUERY_NOT_FOUND)
        self.fill(6)
        self.assertEqual(self.ask(QUERY_CONSUMER_OFFSET).code, Code.QUERY_NOT_FOUND)

    def test_first_message_gone(self) -> None:
        """Nor does it begin at 0 when that has been deleted."""
        self.fill(8, size=1000)
        self.asked.store.log.expire_first()
        self.asked.store.queues.expire(self.asked.store.log.begin_offset)
        self.assertEqual(self.asked.store.log.begin_offset, LOG_SIZE)
        self.assertEqual(self.ask(QUERY_CONSUMER_OFFSET).code, Code.QUERY_NOT_FOUND)
        self.assertEqual(self.offset(GET_MIN_OFFSET), 3)

    def test_ends(self) -> None:
        """Where a queue begins and ends; one that was never written to is empty."""
        self.fill(3)
        self.assertEqual((self.offset(GET_MIN_OFFSET), self.offset(GET_MAX_OFFSET)), (0, 3))
        self.assertEqual(self.offset(GET_MAX_OFFSET, queueId=2), 0)
        self.assertEqual(self.offset(GET_MIN_OFFSET, queueId=2), 0)

    def test_times(self) -> None:
        """The first message that was stored at a time or later, and when the first one was."""
        self.fill(3)
        for timestamp, offset in ((0, 0), (NOW_MS + 1000, 1), (NOW_MS + 1001, 2), (NOW_MS * 2, 3)):
            self.assertEqual(self.offset(SEARCH_OFFSET_BY_TIMESTAMP, timestamp=timestamp), offset)
        self.assertEqual(self.ask(SEARCH_OFFSET_BY_TIMESTAMP, timestamp=1, boundaryType="x").code,
                         Code.SYSTEM_ERROR)
        answer = self.ask(GET_EARLIEST_MSG_STORETIME)
        self.assertEqual(answer.ext_fields["timestamp"], str(NOW_MS))
        answer = self.ask(GET_EARLIEST_MSG_STORETIME, queueId=3)
        self.assertEqual(answer.ext_fields["timestamp"], "-1")

    def test_the_last_message_of_a_time(self) -> None:
        """With the upper boundary of 5.x: the last message that was stored at a time or before."""
        self.asked.append(*(message(topic="t") for _ in range(2)))
        self.asked.clock.advance(1)
        self.fill(2)
        for timestamp, lower, upper in (
            (0, 0, 0), (NOW_MS, 0, 1), (NOW_MS + 1, 2, 1), (NOW_MS + 1000, 2, 2), (NOW_MS + 2000, 3, 3),
            (NOW_MS * 2, 4, 3), (2**63 - 1, 4, 3),
        ):
            for boundary, offset in (("LOWER", lower), ("UPPER", upper), ("upper", upper)):
                found = self.offset(SEARCH_OFFSET_BY_TIMESTAMP, timestamp=timestamp, boundaryType=boundary)
                self.assertEqual(found, offset, (timestamp, boundary))
        self.assertEqual(
            self.offset(SEARCH_OFFSET_BY_TIMESTAMP, timestamp=1, boundaryType="UPPER", queueId=3), 0
        )

    def test_view(self) -> None:
        """A record by its offset; nothing else has one."""
        self.fill(9, size=300)
        (unit,) = self.asked.store.queues.get("t", 0).read(4, 1)  # type: ignore[union-attr]
        answer = self.ask(VIEW_MESSAGE_BY_ID, offset=unit.offset)
        self.assertEqual(decode_message(answer.body).queue_offset, 4)
        self.assertEqual(len(answer.body), unit.size)
        looks_like = bytes.fromhex("00000064daa320a7") + bytes(100)
        self.asked.append(message(looks_like, topic="t"))
        (last,) = self.asked.store.queues.get("t", 0).read(9, 1)  # type: ignore[union-attr]
        end = self.asked.store.log.end_offset
        self.assertEqual(self.asked.store.log.read(last.offset + 88, 8), looks_like[:8])
        for offset in (last.offset + 88, -1, 1, unit.offset + 8, end - 1, end, end + 1, LOG_SIZE - 8):
            answer = self.ask(VIEW_MESSAGE_BY_ID, offset=offset)
            self.assertEqual((answer.code, answer.body), (Code.SYSTEM_ERROR, b""), offset)
            self.assertIn(f"offset, {offset}", answer.remark or "")
