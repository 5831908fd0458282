# -*- test-case-name: tests.broker.consuming.test_consumers -*-
"""Who consumes: members come, go, and hear of each other."""

from __future__ import annotations

import json

from twisted.trial.unittest import SynchronousTestCase

from dledger.rocketmq.answering.refusals import Code
from dledger.rocketmq.broker.consuming.consumers import (
    CHECK_CLIENT_CONFIG,
    EXPIRED_MS,
    GET_CONSUMER_LIST_BY_GROUP,
    HEART_BEAT,
    NOTIFY_CONSUMER_IDS_CHANGED,
    SAID_MAX,
    UNREGISTER_CLIENT,
    ConsumerCommands,
    ConsumerTable,
)
from dledger.rocketmq.broker.consuming.producers import ProducerTable
from dledger.rocketmq.broker.options.groups import OWN_GROUPS, find_group
from dledger.rocketmq.metadata.tables import GroupConfig
from protocols.wire.remoting import RemotingCommand
from tests.broker.asked import NOW_MS, Asked, Client


def heartbeat(
    client_id: str, *topics: str, group: str = "g", version: int = 1, expression: str = "*"
) -> bytes:
    """The body of one for one group."""
    subscriptions = [{"topic": topic, "subString": expression, "subVersion": version} for topic in topics]
    data = {"groupName": group, "subscriptionDataSet": subscriptions}
    return json.dumps({"clientID": client_id, "consumerDataSet": [data]}).encode()


class ConsumerTests(SynchronousTestCase):
    """A master."""

    def setUp(self) -> None:
        self.asked = Asked()
        self.addCleanup(self.asked.close)
        self.table, self.producers = ConsumerTable(), ProducerTable()
        self.commands = self.commands_of(self.asked, self.table)
        self.client = self.asked.client()

    def commands_of(self, asked: Asked, table: ConsumerTable) -> ConsumerCommands:
        """The group of commands under test."""
        commands = ConsumerCommands(asked.inside, table, self.producers, steady_ms=asked.wall_ms)
        asked.groups = [commands]
        return commands

    def beat(self, client: Client, client_id: str, *topics: str, **more: object) -> None:
        """A heartbeat that is taken."""
        client.send(HEART_BEAT, {}, heartbeat(client_id, *topics, **more))  # type: ignore[arg-type]

    def members(self) -> list[str]:
        """What request 38 says."""
        answer = self.client.ask(GET_CONSUMER_LIST_BY_GROUP, {"consumerGroup": "g"})
        return list(json.loads(answer.body)["consumerIdList"]) if answer.code == 0 else []

    def notified(self, client: Client) -> int:
        """How often a client was informed of a change in its group; each is one-way and names it."""
        found = [one for one in client.received() if one.code == NOTIFY_CONSUMER_IDS_CHANGED]
        for command in found:
            self.assertTrue(command.is_oneway)
            self.assertEqual(dict(command.ext_fields), {"consumerGroup": "g"})
        return len(found)

    def test_members(self) -> None:
        """Each client once, however often it beats; a group without members has no list."""
        answer = self.client.ask(GET_CONSUMER_LIST_BY_GROUP, {"consumerGroup": "g"})
        self.assertEqual(answer.code, Code.SYSTEM_ERROR)
        self.assertIn("no consumer for this group", answer.remark or "")
        other = self.asked.client()
        for _ in range(2):
            self.beat(self.client, "c1", "t")
            self.beat(other, "c2", "t")
        self.client.received()
        self.assertEqual(self.members(), ["c1", "c2"])
        self.assertEqual(len(self.table), 2)

    def test_notified(self) -> None:
        """All members hear of a new one, of one that goes, and of other topics; of nothing else."""
        other = self.asked.client()
        self.beat(self.client, "c1", "t")
        self.assertEqual(self.notified(self.client), 1)
        self.beat(other, "c2", "t")
        self.assertEqual((self.notified(self.client), self.notified(other)), (1, 1))
        self.beat(other, "c2", "t", version=2)
        self.assertEqual((self.notified(self.client), self.notified(other)), (0, 0))
        self.beat(other, "c2", "t", "u")
        self.assertEqual((self.notified(self.client), self.notified(other)), (1, 1))
        other.send(UNREGISTER_CLIENT, {"clientID": "c2", "consumerGroup": "g"})
        self.assertEqual((self.notified(self.client), self.notified(other)), (1, 0))

    def test_silent_group(self) -> None:
        """A group whose settings say so is not notified."""
        quiet = GroupConfig(group_name="g", notify_consumer_ids_changed_enable=False)
        self.asked.metadata.groups.put(quiet, NOW_MS)
        other = self.asked.client()
        self.beat(self.client, "c1", "t")
        self.beat(other, "c2", "t")
        other.lose()
        self.assertEqual(self.notified(self.client), 0)

    def test_lost(self) -> None:
        """With its connection a member is gone, and the others hear of it."""
        other = self.asked.client()
        self.beat(self.client, "c1", "t")
        self.beat(other, "c2", "t")
        self.client.received()
        other.lose()
        self.assertEqual(self.notified(self.client), 1)
        self.assertEqual(self.members(), ["c1"])
        self.client.lose()
        self.assertEqual((len(self.table), self.table.groups_of("t")), (0, []))

    def test_expired(self) -> None:
        """Who beats stays; who has been silent for 120 s is gone."""
        other = self.asked.client()
        self.beat(self.client, "c1", "t")
        self.beat(other, "c2", "t")
        self.asked.clock.advance(EXPIRED_MS / 1000)
        self.commands.sweep()
        self.assertEqual(len(self.table), 2)
        self.beat(self.client, "c1", "t")
        self.asked.clock.advance(0.001)
        self.commands.sweep()
        self.client.received()
        self.assertEqual(self.members(), ["c1"])

    def test_subscriptions(self) -> None:
        """
        The last heartbeat counts, except one of an older version; topics that are not named again are gone.
        """
        other = self.asked.client()
        self.beat(self.client, "c1", "t", "u", version=5, expression="A")
        self.beat(other, "c2", "t", version=4, expression="B")
        found = self.table.subscription_of("g", "t")
        assert found is not None
        self.assertEqual((found.version, found.expression), (5, "A"))
        self.assertIsNone(self.table.subscription_of("g", "u"))
        self.beat(self.client, "c1", "t", version=6, expression="B")
        found = self.table.subscription_of("g", "t")
        assert found is not None
        self.assertEqual(found.expression, "B")

    def test_clock_set_back(self) -> None:
        """A member that has changed its own expression is believed, though its version is older."""
        other = self.asked.client()

        def expression() -> str:
            found = self.table.subscription_of("g", "t")
            assert found is not None
            return found.expression

        self.beat(self.client, "c1", "t", version=60_000, expression="A")
        self.beat(other, "c2", "t", version=50_000, expression="B")
        self.assertEqual(expression(), "A")
        self.beat(self.client, "c1", "t", version=10, expression="A || B")
        self.assertEqual(expression(), "A || B")
        self.beat(other, "c2", "t", version=5, expression="B")
        self.assertEqual(expression(), "A || B")
        self.beat(other, "c2", "t", version=4, expression="*")
        self.assertEqual(expression(), "*")

    def test_the_expression_of_a_member_that_has_left(self) -> None:
        """A change that is taken back: the newer expression goes with the only member that has sent it."""
        other, third = self.asked.client(), self.asked.client()
        self.beat(self.client, "c1", "t", "u", version=10, expression="A")
        self.beat(other, "c2", "t", "u", version=20, expression="B")
        self.beat(third, "c3", "u", version=5, expression="B")
        other.lose()
        self.assertIsNone(self.table.subscription_of("g", "t"))
        found = self.table.subscription_of("g", "u")
        assert found is not None
        self.assertEqual(found.expression, "B")
        self.beat(self.client, "c1", "t", "u", version=10, expression="A")
        found = self.table.subscription_of("g", "t")
        assert found is not None
        self.assertEqual(found.expression, "A")

    def test_an_expression_that_others_share_stays(self) -> None:
        """So do one on a topic that nobody else has, and one of a member with more topics than are noted."""
        other, many = self.asked.client(), self.asked.client()
        topics = [f"t{number}" for number in range(SAID_MAX + 1)]
        self.beat(self.client, "c1", "t", version=10, expression="A")
        self.beat(other, "c2", "t", version=20, expression="A")
        other.lose()
        self.assertEqual(self.table.topics_of("g"), ["t"])
        other = self.asked.client()
        self.beat(other, "c2", "t", "u", version=30, expression="B")
        self.beat(many, "c3", *topics, version=5, expression="C")
        self.beat(other, "c2", "t", "u", version=30, expression="B")
        other.lose()
        self.assertEqual(self.table.topics_of("g"), ["t", "u"])

    def test_what_a_heartbeat_makes(self) -> None:
        """The group, and its topic for retries with as many queues as the group says."""
        self.beat(self.client, "c1", "t")
        topic = self.asked.metadata.topics.get("%RETRY%g")
        assert topic is not None
        self.assertEqual((topic.read_queue_nums, topic.perm), (1, 6))
        self.assertIsNotNone(self.asked.metadata.groups.get("g"))
        self.asked.metadata.groups.put(GroupConfig(group_name="h", retry_queue_nums=3), NOW_MS)
        self.beat(self.client, "c1", "t", group="h")
        topic = self.asked.metadata.topics.get("%RETRY%h")
        assert topic is not None
        self.assertEqual(topic.write_queue_nums, 3)

    def test_slave_makes_nothing(self) -> None:
        """A slave's tables are its master's; members are known all the same."""
        asked = Asked(is_slave=True)
        self.addCleanup(asked.close)
        table = ConsumerTable()
        self.commands_of(asked, table)
        self.beat(asked.client(), "c1", "t")
        self.assertEqual((asked.metadata.topics.entries, asked.metadata.groups.entries), ({}, {}))
        self.assertEqual([member.client_id for member in table.members_of("g")], ["c1"])

    def test_groups_that_cannot_be(self) -> None:
        """
        A name that is no part of a topic makes no group, nor does any where none is to be made; and nobody
        consumes as one of the broker's own groups, with whose offsets it knows what is done.
        """
        for name in OWN_GROUPS:
            self.asked.metadata.groups.put(GroupConfig(group_name=name), NOW_MS)
        for name in ("a/b", "g" * 121, "", *OWN_GROUPS):
            self.assertIsNone(find_group(self.asked.metadata, self.asked.config, name, NOW_MS))
        asked = Asked(auto_create_subscription_group=False)
        self.addCleanup(asked.close)
        self.assertIsNone(find_group(asked.metadata, asked.config, "g", NOW_MS))
        asked.metadata.groups.put(GroupConfig(group_name="g"), NOW_MS)
        self.assertIsNotNone(find_group(asked.metadata, asked.config, "g", NOW_MS))

    def test_full(self) -> None:
        """
        A client for which there is no place is informed of that, and the others stay; with a place free it is
        taken.
        """
        for bounds in ({"groups_max": 1}, {"members_max": 1}):
            table = ConsumerTable(**bounds)
            self.commands_of(self.asked, table)
            one, two = self.asked.client(), self.asked.client()
            self.assertEqual(one.ask(HEART_BEAT, {}, heartbeat("c1", "t")).code, 0)
            self.assertEqual(two.ask(HEART_BEAT, {}, heartbeat("c2", group="h")).code, Code.SYSTEM_BUSY)
            self.assertEqual(one.ask(HEART_BEAT, {}, heartbeat("c1", "t")).code, 0)
            one.lose()
            self.assertEqual(two.ask(HEART_BEAT, {}, heartbeat("c2", group="h")).code, 0)

    def test_wanted_too_much(self) -> None:
        """Topics and tags of all groups together are bounded; what is not wanted any more counts no more."""
        self.commands_of(self.asked, ConsumerTable(wanted_max=4))
        one, two = self.asked.client(), self.asked.client()
        self.assertEqual(one.ask(HEART_BEAT, {}, heartbeat("c1", "t", expression="A || B")).code, 0)
        for _ in range(3):
            self.assertEqual(one.ask(HEART_BEAT, {}, heartbeat("c1", "t", expression="A || B")).code, 0)
        self.assertEqual(two.ask(HEART_BEAT, {}, heartbeat("c2", "u", group="h")).code, 0)
        self.assertEqual(two.ask(HEART_BEAT, {}, heartbeat("c2", "u", "v", group="h")).code, Code.SYSTEM_BUSY)
        one.lose()
        self.assertEqual(two.ask(HEART_BEAT, {}, heartbeat("c2", "u", "v", group="h")).code, 0)

    def test_nonsense(self) -> None:
        """A heartbeat that makes no sense is refused with a reason."""
        answer = self.client.ask(HEART_BEAT, {}, b"{")
        self.assertEqual(answer.code, Code.SYSTEM_ERROR)
        self.assertIn("heartbeat", answer.remark or "")

    def test_check(self) -> None:
        """Tags would be understood, SQL92 would not."""
        for kind, code in (("TAG", 0), ("SQL92", Code.SYSTEM_ERROR)):
            body = {"subscriptionData": {"topic": "t", "subString": "a", "expressionType": kind}}
            answer: RemotingCommand = self.client.ask(CHECK_CLIENT_CONFIG, {}, json.dumps(body).encode())
            self.assertEqual(answer.code, code)
