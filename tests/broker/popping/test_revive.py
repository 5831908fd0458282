# -*- test-case-name: tests.broker.popping.test_revive -*-
"""What is not acknowledged is delivered again, also after a crash."""

from __future__ import annotations

import json
from typing import Any
from unittest import mock

from twisted.internet.defer import succeed

from dledger.rocketmq.answering.refusals import Code, Refused
from dledger.rocketmq.broker.consuming.popping import revive
from dledger.rocketmq.broker.consuming.popping.check_points import (
    POPPED_GROUP,
    REVIVE_GROUP,
    Ack,
    pop_retry_topic,
    revive_topic,
)
from dledger.rocketmq.broker.producing.puts import NotPut
from dledger.rocketmq.metadata.tables import TopicConfig
from dledger.rocketmq.replication.put_status import PutStatus
from protocols.wire.rocketmq.layout import DELETED_TOPIC
from tests.broker.popping.rig import RETRIES, REVIVE, Given, PopCase, pop_of


class ReviveTests(PopCase):
    """Messages whose time is over."""

    def test_an_undone_message_is_stored_again(self) -> None:
        """With all its fields, one try more, and the time of the first pop."""
        self.send(b"a", properties="TAGS\x01A\x02KEYS\x01k\x02")
        (first,) = self.pop()
        self.wait(9)
        self.assertEqual(self.pop(), [])
        self.wait(2)
        (given,) = self.pop(exp="A")
        message = given.message
        self.assertEqual((message.topic, message.body, message.flag), ("T1", b"a", 7))
        self.assertEqual((message.tags, message.keys, given.tries), ("A", ("k",), 1))
        self.assertEqual(message.properties["1ST_POP_TIME"], first.receipt.split(" ")[1])
        self.assertEqual(message.born_timestamp, first.message.born_timestamp)
        self.assertEqual([one.tags for one in self.of(REVIVE)], ["ck", "ack", "ck"])
        self.assertEqual((self.pop(), self.parts.revive.revived), ([], 1))

    def test_a_message_dies_after_its_last_try(self) -> None:
        """After the last try it is a dead letter of its group."""
        self.send(b"a")
        for tries in range(17):
            (given,) = self.pop(invisibleTime=1000)
            self.assertEqual(given.tries, tries)
            self.wait(3)
        self.assertEqual(self.pop(), [])
        (dead,) = self.of("%DLQ%G")
        self.assertEqual((dead.body, dead.properties["RETRY_TOPIC"]), (b"a", "T1"))
        self.assertEqual((self.parts.revive.dead, self.parts.revive.revived), (1, 16))
        self.wait(30)
        self.assertEqual(len(self.of("%DLQ%G")), 1)

    def test_messages_of_a_deleted_topic_are_passed(self) -> None:
        """Messages of a topic that was deleted are passed."""
        self.send(b"a")
        self.pop()
        self.parts.metadata.topics.delete("T1", 0)
        self.wait(12)
        self.assertEqual((self.of(RETRIES), self.parts.revive.gone, len(self.parts.revive.table)), ([], 1, 0))

    def test_a_lost_group_gets_its_messages(self) -> None:
        """A group that a crash took from the table gets its messages again: nothing is lost."""
        self.send(b"a")
        self.pop(invisibleTime=1000)
        self.parts.metadata.groups.delete("G", 0)
        self.wait(3)
        (given,) = self.pop(invisibleTime=1000)
        self.assertEqual((given.message.body, given.tries), (b"a", 1))

    def test_a_refused_put_is_repeated(self) -> None:
        """It is repeated; nothing is passed before."""
        self.send(b"a")
        self.pop()
        put, refused = self.parts.pipeline.put, [3]

        def failing(*arguments: Any, **named: Any) -> Any:
            if refused[0]:
                refused[0] -= 1
                raise NotPut(PutStatus.OS_PAGE_CACHE_BUSY, "a test")
            return put(*arguments, **named)

        self.patch(self.parts.pipeline, "put", failing)
        self.wait(11)
        self.assertEqual(self.of(RETRIES), [])
        self.wait(10)
        self.assertEqual((len(self.of(RETRIES)), len(self.pop())), (1, 1))

    def test_the_largest_number_of_tries(self) -> None:
        """A producer may send a message with it, and consumers a dead letter: the others come again, too."""
        self.send(b"a")
        self.send(b"b", reconsumeTimes=2**31 - 1)
        self.send(b"c")
        self.pop(invisibleTime=1000)
        self.wait(3)
        self.assertEqual([one.body for one in self.pop()], [b"a", b"c"])
        (dead,) = self.of("%DLQ%G")
        self.assertEqual((dead.body, dead.reconsume_times), (b"b", 2**31 - 1))

    def test_a_surprise_does_not_end_deliveries(self) -> None:
        """A failure that nobody has thought of is for the log; what waits is tried again a minute later."""
        self.send(b"a")
        self.pop(invisibleTime=1000)
        with mock.patch.object(self.parts.revive, "_copies", side_effect=RuntimeError("a test")):
            self.assertRaises(RuntimeError, self.wait, 3)
        self.wait(55)
        self.assertEqual(self.of(RETRIES), [])
        self.wait(10)
        self.assertEqual(len(self.of(RETRIES)), 1)

    def test_a_group_without_a_topic_blocks_no_other(self) -> None:
        """There are too many topics for one more: what that group has popped waits until there is room."""
        self.send(b"a")
        self.pop(consumerGroup="H", invisibleTime=1000)
        self.pop(invisibleTime=1000)
        make = self.parts.checks.made_for_retries

        def refusing(name: str) -> TopicConfig:
            if "%H" in name:
                raise Refused(Code.SYSTEM_ERROR, "too many topics, a test")
            return make(name)

        with mock.patch.object(self.parts.checks, "made_for_retries", refusing):
            self.wait(3)
            self.assertEqual([one.body for one in self.pop()], [b"a"])
        self.wait(revive.STUCK_MS / 1000)
        self.assertEqual(len(self.of(pop_retry_topic("T1", "H"))), 1)

    def test_a_turn_revives_a_bounded_number(self) -> None:
        """Many messages whose time is over are stored again in several turns."""
        self.patch(revive, "TURN_MESSAGES", 4)
        self.patch(revive, "TURN_BYTES", 300)
        self.send(*(b"%d" % number for number in range(30)))
        for _ in range(10):
            self.pop(maxMsgNums=3)
        self.wait(20)
        self.assertEqual(sorted(int(one.body) for one in self.of(RETRIES)), list(range(30)))

    def test_unreadable_records_are_passed(self) -> None:
        """What is no check point in the revive topic is passed."""
        self.send(b"a")
        self.pop()
        self.settle()
        self.parts.revive.stop()
        found: list[object] = []
        self.patch(revive, "read_revive", lambda *words: found.append(words) or json.loads("{"))
        self.parts.revive.start()
        self.settle()
        self.flushLoggedErrors()
        self.assertTrue(self.parts.revive.is_loaded)
        self.assertEqual((len(found), len(self.parts.revive.table)), (1, 0))


class StartTests(PopCase):
    """Another life of the broker, or another master."""

    def test_pending_messages_come_after_a_start(self) -> None:
        """Acknowledged ones are not delivered again, others are, with their receipts valid until then."""
        self.send(b"a", b"b", b"c")
        a, b, _c = self.pop()
        self.assertEqual(self.ack(a).code, 0)
        self.again()
        self.assertEqual((len(self.parts.revive.table), self.pop()), (1, []))
        self.assertEqual(self.ack(b).code, 0)
        self.wait(12)
        self.assertEqual([one.body for one in self.pop()], [b"c"])

    def test_a_renamed_cluster_keeps_what_was_popped(self) -> None:
        """
        The revive topic is named after the cluster: a start with another name goes on with the former
        topic, and so does the start after that one.
        """
        self.send(b"a", b"b", b"c")
        a, b, _c = self.pop()
        self.assertEqual(self.ack(a).code, 0)
        self.again(broker_cluster_name="D")
        self.assertEqual((len(self.parts.revive.table), self.pop()), (1, []))
        self.assertEqual(self.ack(b).code, 0)
        self.wait(12)
        self.assertEqual([one.body for one in self.pop()], [b"c"])
        self.again(broker_cluster_name="D")
        self.wait(24)
        self.assertEqual([one.body for one in self.pop()], [b"c"])
        self.assertEqual(self.of(revive_topic("D")), [])

    def test_a_cluster_goes_on_with_its_own_topic(self) -> None:
        """A topic of another cluster beside the own one changes nothing."""
        self.put(b"{}", topic=revive_topic("Z"))
        self.send(b"a")
        self.again()
        self.assertEqual(self.parts.revive.topic, revive_topic("Z"))
        self.put(b"{}", topic=REVIVE)
        self.again()
        self.assertEqual(self.parts.revive.topic, REVIVE)

    def test_a_smaller_size_loses_no_popped_message(self) -> None:
        """Somebody lowers max_message_size: what was stored before comes again all the same."""
        self.send(bytes(70_000), b"a")
        self.pop()
        self.again(max_message_size=1000)
        self.wait(12)
        self.assertEqual([one.body for one in self.pop()], [bytes(70_000), b"a"])
        self.assertEqual(self.parts.revive.gone, 0)

    def test_finished_check_points_are_not_read_again(self) -> None:
        """The next one reads only what is not finished."""
        self.send(b"a", b"b")
        a, b = self.pop()
        self.ack(a)
        self.wait(1)
        self.assertIsNone(self.parts.metadata.consumer_offsets.query(REVIVE_GROUP, REVIVE, 0))
        self.ack(b)
        self.wait(1)
        self.assertEqual(self.parts.metadata.consumer_offsets.query(REVIVE_GROUP, REVIVE, 0), 2)
        self.again()
        self.assertEqual((len(self.parts.revive.table), self.parts.revive._read_at), (0, {0: 3}))
        self.wait(12)
        self.assertEqual(self.pop(), [])

    def test_an_early_ack_counts(self) -> None:
        """An ack that comes before the table is read counts."""
        self.send(b"a")
        (a,) = self.pop()
        self.again()
        reading = self.parts.revive.is_dispatched
        self.parts.revive.is_dispatched = lambda: False  # type: ignore[method-assign]
        self.parts.revive.start()
        self.wait(1)
        self.assertFalse(self.parts.revive.is_loaded)
        self.send(b"b")
        self.assertEqual((self.pop(), self.change(a, 5000).code), ([], 2))
        self.assertEqual(self.ack(a).code, 0)
        self.parts.revive.is_dispatched = reading  # type: ignore[method-assign]
        self.wait(12)
        self.assertEqual([one.body for one in self.pop()], [b"b"])

    def test_ack_before_its_queue(self) -> None:
        """An ack whose record is not in its queue yet when the table is read."""
        self.send(b"a")
        (a,) = self.pop()
        key = self.parts.revive.table.due(1 << 60, 1)[0].point.key
        self.again()
        self.parts.revive.start()
        self.assertTrue(self.parts.revive.early(Ack(key, (0,))))
        self.settle()
        self.assertEqual((self.parts.revive.is_loaded, len(self.parts.revive.table)), (True, 0))
        self.assertEqual(self.ack(a).code, 208)
        self.patch(revive, "EARLY_MAX", 0)
        self.assertFalse(self.parts.revive.early(Ack(key, (0,))))

    def test_a_put_of_another_life_is_harmless(self) -> None:
        """A put of an earlier life as a master ends in a later one."""
        self.send(b"a")
        self.pop()
        held = self.hold_puts()
        self.wait(12)
        self.assertEqual((len(held), self.parts.revive.call), (1, None))
        self.parts.revive.stop()
        held[0].callback(PutStatus.PUT_OK)
        self.assertIsNone(self.parts.revive.call)

    def test_crash_before_offsets(self) -> None:
        """The offsets of the last seconds are lost: check points report them, and nothing comes once more."""
        self.send(b"a", b"b", b"c", b"d")
        self.pop(maxMsgNums=1)
        self.again()
        a, _b = self.late_pop()
        self.assertEqual(self.ack(a).code, 0)
        self.again(crash=True)
        self.assertEqual([one.body for one in self.pop()], [b"d"])
        self.wait(30)
        self.assertEqual(sorted(one.body for one in self.pop()), [b"a", b"c", b"d"])

    def test_crash_before_any_table(self) -> None:
        """The table of offsets was never saved: no group has moved past its messages."""
        self.send(b"a", b"b")
        self.parts.metadata.topics.put(self.parts.metadata.topics.entries["T1"], self.broker.wall_ms())
        self.parts.metadata.save(lambda work: succeed(work()))
        self.assertEqual([path for path in self.disk.files if path.endswith("consumerOffset.json")], [])
        self.wait(1)
        self.pop(maxMsgNums=1)
        self.again(crash=True)
        self.assertEqual([one.body for one in self.pop()], [b"b"])

    def test_first_pops_before_another_master(self) -> None:
        """
        The table is older than the first pop, and a group has committed an offset here since, as consumers
        do at a slave, so it seems younger. That counts if there are check points of RocketMQ's.
        """
        self.send(b"a", b"b")
        self.pop(maxMsgNums=1)
        self.settle()
        service, offsets = self.parts.revive, self.parts.metadata.consumer_offsets
        for rocketmq, moved in ((None, 1), ((0, 1), None)):
            for group in ("G", REVIVE_GROUP, POPPED_GROUP):
                offsets.delete_group(group, 0)
            offsets.commit("other", "T1", 0, 1, self.broker.wall_ms() + 1000)
            self.patch(
                self.parts.store.queues, "bounds",
                lambda topic, number, known=rocketmq: None if topic == DELETED_TOPIC else known,
            )
            service.start()
            self.settle()
            self.assertEqual((service.is_loaded, offsets.query("G", "T1", 0)), (True, moved))
            offsets.delete_group("other", 0)

    def test_crash_with_an_offset_of_before(self) -> None:
        """The table has an offset of a deleted topic with this name, after the end of the queue."""
        self.send(b"a", b"b")
        offsets = self.parts.metadata.consumer_offsets
        offsets.commit("G", "T1", 0, 21, self.broker.wall_ms())
        self.parts.metadata.save(lambda work: succeed(work()))
        offsets.commit("G", "T1", 0, 0, self.broker.wall_ms())
        self.wait(1)
        self.pop(maxMsgNums=1)
        self.again(crash=True)
        self.assertEqual([one.body for one in self.pop()], [b"b"])

    def test_check_points_of_before(self) -> None:
        """Those of a deleted topic of this name move no offset, nor does one after the end of the queue."""
        self.send(b"a", b"b")
        self.pop()
        self.settle()
        service, offsets = self.parts.revive, self.parts.metadata.consumer_offsets
        for begins_at, moved in ((0, 2), (1 << 40, None)):
            for group in ("G", REVIVE_GROUP, POPPED_GROUP):
                offsets.delete_group(group, 0)
            self.patch(self.parts.store.deleted, "place_of", lambda topic, at=begins_at: at)
            service.start()
            self.settle()
            self.assertEqual((service.is_loaded, offsets.query("G", "T1", 0)), (True, moved))
        service.table.unmoved = {("T1", "G", 0): 3}
        service._move()
        self.assertIsNone(offsets.query("G", "T1", 0))

    def test_crash_after_reset(self) -> None:
        """What an operator has reset since the pop stays reset."""
        self.send(b"a", b"b", b"c")
        self.pop(maxMsgNums=1)
        self.again()
        self.late_pop()
        self.wait(1)
        self.parts.metadata.consumer_offsets.commit("G", "T1", 0, 0, self.broker.wall_ms())
        self.again()
        self.assertEqual([one.body for one in self.pop()], [b"a", b"b", b"c"])

    def test_crash_after_a_long_put(self) -> None:
        """The table was saved while a check point waited for slaves: the pop is not repeated."""
        self.send(b"a", b"b", b"c")
        self.pop(maxMsgNums=1)
        held = self.hold_puts()
        self.client.send(pop_of(maxMsgNums=1))
        self.wait(1)
        self.parts.metadata.consumer_offsets.commit("other", "T1", 0, 1, self.broker.wall_ms())
        self.parts.metadata.save(lambda work: succeed(work()))
        held[0].callback(PutStatus.PUT_OK)
        self.settle()
        self.again(crash=True)
        self.assertEqual([one.body for one in self.pop()], [b"c"])

    def test_crash_after_the_very_first_put(self) -> None:
        """It was long, or began in the millisecond of the table: the pop is not repeated."""
        self.send(b"a", b"b", b"c")
        held = self.hold_puts()
        offsets = self.parts.metadata.consumer_offsets
        for waits in (False, True):
            offsets.commit("other", "T1", 0, 1 + waits, self.broker.wall_ms())
            if not waits:
                self.client.send(pop_of(maxMsgNums=1))
                self.wait(1)
        self.parts.metadata.save(lambda work: succeed(work()))
        held[0].callback(PutStatus.PUT_OK)
        self.settle()
        self.again(crash=True)
        self.assertEqual([one.body for one in self.pop()], [b"b", b"c"])

    def test_put_that_ends_late(self) -> None:
        """A check point whose put waits while a later one has ended is read by the next master."""
        self.send(b"a", b"b")
        held = self.hold_puts()
        self.client.send(pop_of(maxMsgNums=1))
        self.client.send(pop_of(maxMsgNums=1, consumerGroup="H"))
        held[1].callback(PutStatus.SLAVE_NOT_AVAILABLE)
        self.settle()
        (popped,) = self.parts.revive.table.due(1 << 60, 1)
        self.parts.revive.table.finish(Ack(popped.point.key, (0,)))
        self.wait(1)
        held[0].callback(PutStatus.PUT_OK)
        self.settle()
        self.again()
        self.wait(15)
        self.assertEqual([(one.body, one.tries) for one in self.pop()][-1:], [(b"a", 1)])

    def test_reset_after_a_crash(self) -> None:
        """What is reset after a start that has found check points stays reset."""
        self.send(b"a", b"b", b"c")
        self.pop(maxMsgNums=1)
        self.again()
        self.late_pop()
        self.again(crash=True)
        self.parts.metadata.consumer_offsets.commit("G", "T1", 0, 0, self.broker.wall_ms())
        self.again()
        self.assertEqual([one.body for one in self.pop()], [b"a", b"b", b"c"])

    def dispatch(self) -> None:
        """Let the records go to their queues, which takes some milliseconds."""
        self.broker.clock.advance(0.01)
        self.settle()

    def late_pop(self) -> list[Given]:
        """Two messages, a second after the table of offsets was saved."""
        self.wait(1)
        return self.pop(maxMsgNums=2)

    def test_check_points_expire_while_they_are_read(self) -> None:
        """All that a master has still to read has expired: it goes on from the first that is there."""
        self.patch(revive, "TURN_MESSAGES", 1)
        self.send(b"a", b"b", b"c")
        self.pop()
        self.dispatch()
        service, queue = self.parts.revive, self.broker.store.queues.get(REVIVE, 0)
        assert queue is not None
        for body in (b"d", b"e"):
            self.send(body)
            self.pop()
        self.dispatch()
        reading = service.is_dispatched
        service.is_dispatched = lambda: False  # type: ignore[method-assign]
        service.start()
        self.settle()
        self.assertEqual((service.is_loaded, len(service.table)), (False, 1))
        self.patch(queue, "_begin_index", queue.next_index)
        service.is_dispatched = reading  # type: ignore[method-assign]
        self.wait(1)
        self.assertEqual((service.is_loaded, len(service.table)), (True, 1))
        self.wait(15)
        self.send(b"f")
        self.assertEqual([one.body for one in self.pop()], [b"f"], "their messages have expired before them")
