# -*- test-case-name: tests.broker.popping.test_pops -*-
"""Consumers pop messages, and wait for them."""

from __future__ import annotations

from twisted.internet.error import ConnectionDone
from twisted.python.failure import Failure

from dledger.rocketmq.answering.refusals import Code
from dledger.rocketmq.broker.consuming.popping import pops, taking
from dledger.rocketmq.broker.consuming.popping.pops import NOTIFICATION, POLLING_INFO
from dledger.rocketmq.metadata.tables import TopicConfig
from dledger.rocketmq.replication.put_status import PutStatus
from protocols import budgets
from tests.broker.popping.rig import REVIVE, PopCase, pop_of
from tests.broker.send_support import Sending, send_of


class PopTests(PopCase):
    """Request 200050."""

    def test_a_pop_takes_each_message_once(self) -> None:
        """Messages of all queues, each once; a check point for each queue comes before them."""
        self.send(b"a", b"b")
        self.send(b"c", queue=2)
        answer = self.ask(pop_of())
        self.assertEqual(sorted(one.body for one in self.given(answer)), [b"a", b"b", b"c"])
        named = answer.ext_fields
        self.assertEqual(set(named["msgOffsetInfo"].split(";")), {"0 0 0,1", "0 2 0"})
        self.assertEqual(set(named["startOffsetInfo"].split(";")), {"0 0 0", "0 2 0"})
        self.assertEqual((named["invisibleTime"], named["reviveQid"], named["restNum"]), ("10000", "0", "0"))
        self.assertEqual([one.tags for one in self.of(REVIVE)], ["ck", "ck"])
        self.assertEqual((self.pop(), len(self.parts.revive.table), self.parts.pops.popped), ([], 2, 3))
        self.assertEqual(len(self.pop(consumerGroup="other")), 3)

    def test_a_pop_keeps_to_its_bounds(self) -> None:
        """One queue only, at most the wanted number, with these tags."""
        self.send(b"a", b"b", b"c", properties="TAGS\x01A\x02")
        self.send(b"d", properties="TAGS\x01B\x02")
        self.send(b"e", queue=1)
        answer = self.ask(pop_of(queueId=0, maxMsgNums=2))
        self.assertEqual([one.body for one in self.given(answer)], [b"a", b"b"])
        self.assertEqual(answer.ext_fields["restNum"], "2")
        self.assertEqual([one.body for one in self.pop(queueId=0, exp="B")], [b"d"])
        self.assertEqual([one.body for one in self.pop()], [b"e"])

    def test_unmatched_messages_are_passed_over(self) -> None:
        """Messages with other tags are passed, without a check point."""
        self.send(b"a", properties="TAGS\x01A\x02")
        self.assertEqual(self.pop(exp="B"), [])
        self.assertEqual((self.pop(), self.of(REVIVE)), ([], []))

    def test_begins_at_the_end(self) -> None:
        """A new group that wants only what is new gets all of a queue that may be in memory, as in Java."""
        self.send(b"a", b"b", b"c")
        self.assertEqual([one.body for one in self.pop(initMode=1)], [b"a", b"b", b"c"])
        self.patch(self.parts.pops.taking.begins, "_memory_bytes", 1)
        self.assertEqual([one.body for one in self.pop(initMode=1, consumerGroup="third")], [b"c"])

    def test_a_group_begins_at_its_first_pop(self) -> None:
        """The first pop says where a group begins, also in queues that are empty: nothing is passed over."""
        self.send(b"x", queue=1)
        self.patch(self.parts.pops.taking.begins, "_memory_bytes", 1)
        groups = ((0, "first"), (1, "last"))
        for mode, group in groups:
            self.ask(pop_of(initMode=mode, consumerGroup=group, code=NOTIFICATION))
            self.assertIsNone(self.parts.metadata.consumer_offsets.query(group, "T1", 0))
            self.assertEqual([one.body for one in self.pop(initMode=mode, consumerGroup=group)], [b"x"])
        self.send(b"a", b"b", b"c")
        self.send(b"d", b"e", queue=3)
        for mode, group in groups:
            found = [one.body for one in self.pop(initMode=mode, consumerGroup=group)]
            self.assertEqual(sorted(found), [b"a", b"b", b"c", b"d", b"e"])

    def test_begins_some_at_a_time(self) -> None:
        """One request makes a bounded number of offsets; the next one goes on."""
        self.patch(taking, "FIRSTS_MAX", 3)
        topics, offsets = self.parts.metadata.topics, self.parts.metadata.consumer_offsets
        topics.put(TopicConfig(topic_name="T1", read_queue_nums=8, write_queue_nums=8), 1)
        for known in (3, 6, 8):
            self.pop()
            self.assertEqual(sum(offsets.query("G", "T1", queue) is not None for queue in range(8)), known)

    def test_a_group_holds_a_bounded_number(self) -> None:
        """A group that acknowledges nothing gets no more, until something is done."""
        self.patch(taking, "UNACKED_MAX", 2)
        self.send(b"a", b"b", b"c", b"d")
        first = self.pop(maxMsgNums=2)
        self.assertEqual(self.pop(), [])
        self.assertEqual(self.ack(first[0]).code, 0)
        self.assertEqual([one.body for one in self.pop(maxMsgNums=1)], [b"c"])

    def test_impossible_pops_are_refused(self) -> None:
        """What is not possible is said, and nothing changes."""
        self.send(b"a")
        for fields, code, words in (
            ({"order": "true", "attemptId": "x" * 256}, Code.INVALID_PARAMETER, "attemptId has 256"),
            ({"topic": "T9"}, Code.TOPIC_NOT_EXIST, "not exist"),
            ({"topic": "%RETRY%G_T1"}, Code.INVALID_PARAMETER, "pop their first topic"),
            ({"queueId": 4}, Code.INVALID_PARAMETER, "queueId[4] is illegal"),
            ({"maxMsgNums": 33}, 1, "maxMsgNums=33 is outside 1..32"),
            ({"invisibleTime": -1}, 1, "invisibleTime"),
            ({"consumerGroup": "a b"}, Code.SUBSCRIPTION_GROUP_NOT_EXIST, "does not exist"),
            ({"expType": "SQL92", "exp": "a > 1"}, 1, "enablePropertyFilter"),
        ):
            answer = self.ask(pop_of(**fields))
            self.assertEqual(answer.code, code, words)
            self.assertIn(words, answer.remark or "")
        self.assertEqual((len(self.pop()), len(self.of(REVIVE))), (1, 1))

    def test_messages_need_a_stored_check_point(self) -> None:
        """Without a check point there are no messages; the next one may get them."""
        self.send(b"a")
        self.parts.pipeline.close("a test")
        self.assertEqual(self.ask(pop_of()).code, Code.SERVICE_NOT_AVAILABLE)
        self.assertEqual(self.parts.metadata.consumer_offsets.query("G", "T1", 0), 0)

    def test_one_at_a_time(self) -> None:
        """While a check point is being stored, nobody else of the group takes messages of the queue."""
        self.send(b"a", b"b")
        self.send(b"c", queue=1)
        held = self.hold_puts()
        self.assertEqual(self.client.send(pop_of(queueId=0, maxMsgNums=1)), [])
        self.assertEqual(self.ask(pop_of(queueId=0)).code, Code.POLLING_TIMEOUT)
        self.assertEqual(self.client.send(pop_of(opaque=2, queueId=1)), [])
        held[0].callback(PutStatus.SERVICE_NOT_AVAILABLE)
        (answer,) = self.client.received()
        self.assertEqual((answer.code, answer.body), (Code.SERVICE_NOT_AVAILABLE, b""))
        self.assertEqual(len(self.parts.revive.table), 0)
        self.assertEqual(self.parts.metadata.consumer_offsets.query("G", "T1", 0), 0)
        held[1].callback(PutStatus.FLUSH_SLAVE_TIMEOUT)
        self.assertEqual([one.body for one in self.given(*self.client.received())], [b"c"])
        self.assertEqual(self.client.send(pop_of(queueId=0)), [])
        held[2].callback(PutStatus.PUT_OK)
        self.assertEqual([one.body for one in self.given(*self.client.received())], [b"a", b"b"])

    def test_an_unread_connection_gets_no_messages(self) -> None:
        """Messages whose check point is being stored count as answers; a connection with too many waits."""
        self.patch(budgets, "HELD_BYTES_MAX", 300)
        self.send(b"a" * 400)
        self.send(b"b", queue=1)
        held = self.hold_puts()
        self.assertEqual(self.client.send(pop_of(queueId=0, maxMsgNums=1)), [])
        account = self.client.connection.account
        self.assertGreater(account.held_bytes, 400)
        self.assertEqual((self.client.send(pop_of(opaque=2, queueId=1)), len(held)), ([], 1))
        held[0].callback(PutStatus.PUT_OK)
        self.assertEqual([one.body for one in self.given(*self.client.received())], [b"a" * 400])
        self.assertEqual(len(held), 2)
        held[1].callback(PutStatus.PUT_OK)
        self.assertEqual([one.body for one in self.given(*self.client.received())], [b"b"])
        self.assertEqual(account.held_bytes, 0)

    def test_producers_cannot_forge_check_points(self) -> None:
        """No producer writes to the topic of check points."""
        self.send(b"a")
        self.pop()
        (answer,) = self.client.send(send_of(topic=REVIVE))
        self.assertEqual(answer.code, Code.NO_PERMISSION)
        (answer,) = self.client.send(send_of(topic="rmq_sys_REVIVE_LOG_X"))
        self.assertEqual(answer.code, Code.NO_PERMISSION)

    def test_a_slave_gives_no_messages(self) -> None:
        """It gives nothing."""
        slave = Sending(broker_role="SLAVE")
        self.addCleanup(slave.store.abandon)
        (answer,) = slave.connect().send(pop_of())
        self.assertEqual(answer.code, Code.SLAVE_NOT_AVAILABLE)


class PollTests(PopCase):
    """Requests that wait."""

    def test_a_message_wakes_a_waiting_request(self) -> None:
        """By a message of its topic, before its time is over; each request once."""
        self.send(b"a")
        self.pop()
        for opaque in (1, 2):
            self.assertEqual(self.client.send(pop_of(opaque=opaque, pollTime=20_000)), [])
        self.assertEqual(self.asking(), 2)
        self.send(b"b")
        (answer,) = self.client.received()
        self.assertEqual([one.body for one in self.given(answer)], [b"b"])
        self.assertEqual(len(self.parts.pops), 1)
        self.client.connection.connectionLost(Failure(ConnectionDone()))
        self.assertEqual((len(self.parts.pops), self.parts.pops._topics), (0, {}))

    def test_answered_when_there_is_room(self) -> None:
        """Its connection was not read when a message came: it is answered when it is, before the sweep."""
        self.send(b"a")
        self.pop()
        connection = self.client.connection
        self.assertEqual(self.client.send(pop_of(pollTime=20_000)), [])
        connection.is_congested = True
        self.send(b"b")
        self.assertEqual((self.client.received(), connection.is_waited_for), ([], True))
        connection.is_congested = False
        connection.unclogged()
        (answer,) = self.client.received()
        self.assertEqual([one.body for one in self.given(answer)], [b"b"])
        self.assertEqual(self.client.send(pop_of(pollTime=20_000)), [])
        connection.is_congested = True
        self.send(b"c")
        connection.connectionLost(Failure(ConnectionDone()))
        self.assertEqual(self.parts.pops._clogged, {})

    def test_a_request_is_answered_at_its_deadline(self) -> None:
        """Nothing has come: 210."""
        self.send(b"a")
        self.pop()
        self.assertEqual(self.client.send(pop_of(pollTime=5_000)), [])
        self.wait(3)
        self.assertEqual(self.client.received(), [])
        self.wait(2)
        (answer,) = self.client.received()
        self.assertEqual((answer.code, answer.ext_fields["restNum"]), (Code.POLLING_TIMEOUT, "0"))

    def test_a_full_table_refuses_requests(self) -> None:
        """More than may wait: 209."""
        self.patch(pops, "POLLS_MAX", 1)
        self.send(b"a")
        self.pop()
        self.assertEqual(self.client.send(pop_of(pollTime=5_000)), [])
        self.assertEqual(self.ask(pop_of(pollTime=5_000)).code, Code.POLLING_FULL)

    def test_a_stop_answers_all_requests(self) -> None:
        """The broker stops: all are answered, and no more wait."""
        self.send(b"a")
        self.pop()
        self.assertEqual(self.client.send(pop_of(pollTime=5_000)), [])
        self.parts.pops.stop()
        self.assertEqual([one.code for one in self.client.received()], [Code.POLLING_TIMEOUT])
        self.assertEqual(self.ask(pop_of(pollTime=5_000)).code, Code.POLLING_TIMEOUT)

    def test_a_notification_takes_no_messages(self) -> None:
        """It says that there are messages, and takes none."""
        self.send(b"a")
        self.assertEqual(self.ask(pop_of(code=NOTIFICATION)).ext_fields["hasMsg"], "true")
        self.assertEqual(len(self.pop()), 1)
        self.assertEqual(self.ask(pop_of(code=NOTIFICATION)).ext_fields["hasMsg"], "false")
        self.assertEqual(self.client.send(pop_of(code=NOTIFICATION, pollTime=5_000)), [])
        self.send(b"b")
        (answer,) = self.client.received()
        self.assertEqual(answer.ext_fields, {"hasMsg": "true", "pollingFull": "false"})
        self.assertEqual(len(self.pop()), 1)

    def asking(self) -> int:
        """How many wait, as the broker says."""
        return int(self.ask(pop_of(code=POLLING_INFO)).ext_fields["pollingNum"])
