# -*- test-case-name: tests.broker.popping.test_retries -*-
"""A retry comes to its group, whatever the names, and whatever else the message holds."""

from __future__ import annotations

from typing import Any

from dledger.rocketmq.answering.refusals import Code
from dledger.rocketmq.broker.consuming.popping import taking
from dledger.rocketmq.broker.consuming.popping.check_points import RECEIPT_BYTES_MAX, pop_retry_topic
from dledger.rocketmq.metadata.tables import PERM_READ, PERM_WRITE, GroupConfig, TopicConfig
from protocols.wire.rocketmq.layout import PROPERTIES_BYTES_MAX
from tests.broker.popping.rig import Given, PopCase, pop_of
from tests.broker.send_support import send_of


class NamesTests(PopCase):
    """Two groups and topics whose names join to the same."""

    def make(self, **options: Any) -> None:
        """With the topics."""
        super().make(**options)
        for topic in ("orders", "eu_orders"):
            self.parts.metadata.topics.put(TopicConfig(
                topic_name=topic, read_queue_nums=1, write_queue_nums=1, perm=PERM_READ | PERM_WRITE
            ), 1)

    def popped(self, group: str, topic: str) -> list[bytes]:
        """The bodies that a group gets, invisible for a second."""
        answer = self.ask(pop_of(consumerGroup=group, topic=topic, invisibleTime=1000))
        return [one.body for one in self.given(answer)]

    def test_a_retry_goes_to_its_own_group(self) -> None:
        """A retry is given to its own group, and to no other one."""
        self.send(b"private", topic="orders")
        self.assertEqual(self.popped("shop_eu", "orders"), [b"private"])
        self.wait(3)
        self.assertEqual([one.topic for one in self.broker.stored() if one.body == b"private"],
                         ["orders", "%RETRY%shop_eu+orders"])
        self.assertEqual(self.popped("shop", "eu_orders"), [])
        self.assertEqual(self.popped("shop_eu", "orders"), [b"private"])

    def test_earlier_names_lead_to_their_group(self) -> None:
        """The joined names, of RocketMQ: a retry is given to its own group."""
        self.again(enable_retry_topic_v2=False)
        self.send(b"private", topic="orders")
        self.assertEqual(self.popped("shop_eu", "orders"), [b"private"])
        self.wait(3)
        self.assertEqual(self.broker.stored()[-2].topic, "%RETRY%shop_eu_orders")
        self.assertEqual(self.broker.stored()[-2].properties["ORIGIN_GROUP"], "shop_eu")
        self.again()
        self.assertEqual(self.popped("shop", "eu_orders"), [])
        self.assertEqual(self.popped("shop_eu", "orders"), [b"private"])
        self.wait(3)
        self.assertEqual(self.popped("shop", "eu_orders"), [])
        self.assertEqual(self.popped("shop_eu", "orders"), [b"private"])

    def test_no_group_reported(self) -> None:
        """
        A record of RocketMQ does not name its group: it is given if there is only one that it may be of.
        """
        name = pop_retry_topic("orders", "shop_eu", version=1)
        self.put(b"old", topic=name)
        self.parts.metadata.groups.put(GroupConfig(group_name="shop_eu"), 1)
        self.assertEqual(self.popped("shop_eu", "orders"), [b"old"])
        for other in ("shop", "shop_eu_orders"):
            self.parts.metadata.groups.put(GroupConfig(group_name=other), 1)
            self.put(b"whose?", topic=name)
            self.assertEqual(self.popped("shop_eu", "orders"), [], other)
            self.assertEqual(self.popped("shop", "eu_orders"), [], other)

    def test_a_filter_holds_for_earlier_names(self) -> None:
        """It holds for the retries of earlier names, too."""
        name = pop_retry_topic("orders", "shop_eu", version=1)
        for tag in ("A", "B"):
            properties = f"TAGS\x01{tag}\x02ORIGIN_GROUP\x01shop_eu\x02"
            self.put(tag.encode(), topic=name, properties=properties.encode())
        answer = self.ask(pop_of(consumerGroup="shop_eu", topic="orders", exp="B"))
        self.assertEqual([one.body for one in self.given(answer)], [b"B"])

    def test_old_clients_acknowledge_with_the_first_topic(self) -> None:
        """They do not know the names with a plus, and acknowledge with the first topic."""
        self.send(b"a")
        self.pop()
        self.wait(11)
        (given,) = self.pop()
        self.assertEqual(given.receipt.split(" ")[4], "2")
        self.assertEqual(self.ack(given, topic="T1").code, 0)
        self.wait(30)
        self.assertEqual((self.pop(), len(self.parts.revive.table)), ([], 0))

    def test_names_without_room_for_retries_are_refused(self) -> None:
        """Where no retry could be stored, nothing is popped, and the refusal says why."""
        self.send(b"a")
        self.patch(self.parts.pipeline, "topic_characters_max", len("%RETRY%G+T1") - 1)
        answer = self.ask(pop_of())
        self.assertEqual(answer.code, Code.INVALID_PARAMETER)
        self.assertIn("would have 11 characters, 10 are allowed here", answer.remark or "")
        self.patch(self.parts.pipeline, "topic_characters_max", len("%RETRY%G+T1"))
        self.assertEqual([one.body for one in self.pop()], [b"a"])

    def test_not_made_by_producers(self) -> None:
        """A plus is in no name that a producer, or a consumer, brings."""
        self.send(b"a")
        for topic in ("a+b", "%RETRY%x+y"):
            (answer,) = self.producer.send(send_of(b"a", topic=topic))
            self.assertNotEqual(answer.code, 0)
            self.assertIn("illegal characters", answer.remark or "")
        self.assertEqual(self.ask(pop_of(consumerGroup="a+b")).code, Code.SUBSCRIPTION_GROUP_NOT_EXIST)


class FullTests(PopCase):
    """Messages that have no room for the properties that the broker adds, as from before, or from Java."""

    def put_full(self, left: int, topic: str = "T1") -> None:
        """A message whose properties leave C{left} bytes."""
        properties = b"K\x01".ljust(PROPERTIES_BYTES_MAX - left - 1, b"x") + b"\x02"
        self.put(b"full", topic=topic, properties=properties)

    def test_a_full_message_becomes_a_dead_letter(self) -> None:
        """No retry fits: it is a dead letter at once, whole; nothing is lost."""
        for left in (0, 10, 60, 120, RECEIPT_BYTES_MAX):
            self.disk, _ = type(self.disk)(), self.broker.store.abandon()
            self.make()
            self.put_full(left)
            self.assertEqual([one.body for one in self.pop()], [b"full"])
            self.wait(12)
            (dead,) = self.of("%DLQ%G")
            self.assertEqual(dead.body, b"full")
            self.assertEqual(len(dead.properties["K"]), PROPERTIES_BYTES_MAX - left - 3)
            self.assertEqual((self.pop(), len(self.parts.revive.table)), ([], 0))

    def test_a_full_retry_blocks_no_other(self) -> None:
        """One that lies among the retries without room for a receipt keeps no other from its consumer."""
        self.send(b"first")
        self.pop()
        self.wait(12)
        self.put_full(20, topic=pop_retry_topic("T1", "G", version=1))
        self.send(b"other")
        found = self.pop()
        self.assertEqual(sorted(one.body for one in found), [b"first", b"other"])
        self.assertEqual(len(self.flushLoggedErrors()), 0)
        self.wait(12)
        self.assertEqual([one.body for one in self.of("%DLQ%G")], [b"full"])

    def test_alone_among_retries(self) -> None:
        """A pop that finds only such a one is answered."""
        self.send(b"x")
        self.pop()
        self.put_full(20, topic=pop_retry_topic("T1", "G", version=1))
        self.assertEqual(self.ask(pop_of()).code, Code.POLLING_TIMEOUT)

    def test_a_message_that_fits_nowhere_stays_unfinished(self) -> None:
        """What can be stored nowhere is not finished; the others of its check point are."""
        self.send(b"a", b"b")
        self.assertEqual(len(self.pop()), 2)
        checked = self.parts.pipeline.checked

        def refusing(batch: Any, **named: Any) -> Any:
            if batch[0].body == b"a":
                raise ValueError("a test")
            return checked(batch, **named)

        self.patch(self.parts.pipeline, "checked", refusing)
        self.wait(12)
        self.assertEqual([one.body for one in self.pop(invisibleTime=600_000)], [b"b"])
        self.assertEqual((self.of("%DLQ%G"), len(self.parts.revive.table)), ([], 2))
        self.patch(self.parts.pipeline, "checked", checked)
        self.wait(70)
        self.assertEqual([one.body for one in self.pop()], [b"a"])


class FilterTests(PopCase):
    """A filter that passes over many messages."""

    def wanted(self, **fields: Any) -> list[Given]:
        """A waiting request gets a message without any other event."""
        found = self.client.send(pop_of(exp="B", pollTime=20_000, **fields))
        self.broker.clock.pump([0.001] * 20)
        self.settle()
        found += self.client.received()
        return self.given(found[0]) if found else []

    def test_a_filter_looks_on_at_once(self) -> None:
        """The request does not wait for the next second while messages are left."""
        self.patch(taking, "READS_MAX", 1)
        for number in range(6):
            self.send(b"%d" % number, queue=number % 3, properties="TAGS\x01A\x02")
        self.send(b"wanted", queue=2, properties="TAGS\x01B\x02")
        self.assertEqual([one.body for one in self.wanted()], [b"wanted"])

    def test_a_request_waits_when_all_was_examined(self) -> None:
        """When all was looked at, it waits."""
        self.send(b"a", properties="TAGS\x01A\x02")
        self.assertEqual(self.wanted(), [])
        self.assertFalse(self.parts.pops.polls.has_woken)
