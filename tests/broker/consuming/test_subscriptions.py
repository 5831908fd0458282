# -*- test-case-name: tests.broker.consuming.test_subscriptions -*-
"""What consumers want, as they write it."""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from dledger.rocketmq.answering.pieces import at_once
from dledger.rocketmq.answering.refusals import Code, Refused
from dledger.rocketmq.broker.consuming.subscriptions import (
    TAGS_MAX,
    filter_of,
    parse_subscription,
    read_heartbeat,
)

#: In the shape in which a Java 4.9.8 push consumer sends it.
JAVA_HEARTBEAT = (
    b'{"clientID":"10.0.0.7@31#53","consumerDataSet":[{"consumeFromWhere":"CONSUME_FROM_LAST_OFFSET",'
    b'"consumeType":"CONSUME_PASSIVELY","groupName":"g","messageModel":"CLUSTERING","subscriptionDataSet":['
    b'{"classFilterMode":false,"codeSet":[65,66],"expressionType":"TAG","subString":"A || B","subVersion":'
    b'1700000000001,"tagsSet":["A","B"],"topic":"t"},{"classFilterMode":false,"codeSet":[],"expressionType":'
    b'"TAG","subString":"*","subVersion":1700000000002,"tagsSet":[],"topic":"%RETRY%g"}],"unitMode":false}],'
    b'"producerDataSet":[{"groupName":"CLIENT_INNER_PRODUCER"}]}'
)


class SubscriptionTests(SynchronousTestCase):
    """Expressions."""

    def test_everything(self) -> None:
        """A star, and nothing at all, want every message."""
        for expression in ("*", ""):
            self.assertIsNone(parse_subscription("t", expression).codes)

    def test_tags(self) -> None:
        """Tags by Java's hash, blanks around them do not count; nothing but bars wants nothing."""
        self.assertEqual(parse_subscription("t", " A|| TagA ||").codes, {65, 2598919})
        self.assertEqual(parse_subscription("t", "||").codes, frozenset())

    def test_too_many(self) -> None:
        """More tags than anybody needs are refused with the code for it."""
        expression = "||".join(f"t{number}" for number in range(TAGS_MAX + 1))
        refused = self.assertRaises(Refused, parse_subscription, "t", expression)
        self.assertEqual(refused.code, Code.SUBSCRIPTION_PARSE_FAILED)

    def test_other_kinds(self) -> None:
        """SQL92 is kept, and refused where messages are asked for."""
        self.assertIsNone(filter_of(parse_subscription("t", "A"), is_enabled=False))
        sql = parse_subscription("t", "a > 1", kind="SQL92")
        found = filter_of(sql, is_enabled=True)
        assert found is not None
        self.assertTrue(found.matches({"a": "2"}))
        refused = self.assertRaises(Refused, filter_of, sql, is_enabled=False)
        self.assertEqual(refused.code, Code.SYSTEM_ERROR)
        self.assertIn("SQL92", refused.remark)


class HeartbeatTests(SynchronousTestCase):
    """Bodies of request 34."""

    def test_java(self) -> None:
        """Everything that a Java consumer says of itself."""
        said = at_once(read_heartbeat(JAVA_HEARTBEAT))
        self.assertEqual(said.client_id, "10.0.0.7@31#53")
        self.assertEqual(said.producer_groups, ("CLIENT_INNER_PRODUCER",))
        (data,) = said.consumers
        self.assertEqual((data.group, data.consume_type), ("g", "CONSUME_PASSIVELY"))
        tags, retries = data.subscriptions["t"], data.subscriptions["%RETRY%g"]
        self.assertEqual((tags.codes, tags.version), ({65, 66}, 1700000000001))
        self.assertIsNone(retries.codes)

    def test_codes_of_the_client(self) -> None:
        """A client's own hashes count beside ours."""
        body = (b'{"clientID":"c","consumerDataSet":[{"groupName":"g","subscriptionDataSet":'
                b'[{"topic":"t","subString":"A","codeSet":[7]}]}]}')
        self.assertEqual(at_once(read_heartbeat(body)).consumers[0].subscriptions["t"].codes, {65, 7})

    def test_nonsense(self) -> None:
        """Every wrong shape is refused by name."""
        for body, word in (
            (b"", "no body"), (b"[]", "object"), (b"{}", "clientID"), (b'{"clientID":7}', "clientID"),
            (b'{"clientID":"c","consumerDataSet":{}}', "consumerDataSet"),
            (b'{"clientID":"c","consumerDataSet":[7]}', "consumerDataSet"),
            (b'{"clientID":"c","consumerDataSet":[{}]}', "groupName"),
            (b'{"clientID":"c","consumerDataSet":[{"groupName":"g","subscriptionDataSet":[{}]}]}', "topic"),
            (b'{"clientID":"c","consumerDataSet":[{"groupName":"g","subscriptionDataSet":'
             b'[{"topic":"t","subVersion":"x"}]}]}', "subVersion"),
            (b'{"clientID":"c","consumerDataSet":[{"groupName":"' + b"g" * 256 + b'"}]}', "groupName"),
            (b'{"clientID":"c","producerDataSet":[' + b"{}," * 256 + b"{}]}", "257"),
        ):
            refused = self.assertRaises(Refused, at_once, read_heartbeat(body))
            self.assertEqual(refused.code, Code.SYSTEM_ERROR)
            self.assertIn(word, refused.remark)
