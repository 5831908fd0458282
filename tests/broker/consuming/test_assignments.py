# -*- test-case-name: tests.broker.consuming.test_assignments -*-
"""Queues that the broker shares out, and whether consumers pull or pop."""

from __future__ import annotations

import json
from typing import Any

from twisted.internet.defer import Deferred, succeed
from twisted.trial.unittest import SynchronousTestCase

from dledger.rocketmq.answering.refusals import Code
from dledger.rocketmq.broker.consuming import assignments
from dledger.rocketmq.broker.consuming.assignments import (
    AVERAGELY,
    BY_CIRCLE,
    QUERY_ASSIGNMENT,
    ROUTE_S,
    SET_MESSAGE_REQUEST_MODE,
    Assignments,
    divided,
    queues_of_route,
    shared_for_pop,
)
from dledger.rocketmq.broker.consuming.consumers import ConsumerTable
from dledger.rocketmq.broker.consuming.subscriptions import ConsumerData
from protocols.wire.errors import BodyError
from protocols.wire.remoting import RemotingCommand
from tests.broker.asked import NOW_MS, Asked

#: Two queues on each of two brokers; a third one must not be read.
ROUTE = json.dumps({"queueDatas": [
    {"brokerName": "b2", "perm": 6, "readQueueNums": 2, "writeQueueNums": 9},
    {"brokerName": "b1", "perm": 4, "readQueueNums": 2, "writeQueueNums": 2},
    {"brokerName": "b3", "perm": 2, "readQueueNums": 2, "writeQueueNums": 2},
]}).encode()
QUEUES = [("b1", 0), ("b1", 1), ("b2", 0), ("b2", 1)]


class RuleTests(SynchronousTestCase):
    """RocketMQ's rules."""

    def test_route(self) -> None:
        """Queues that may be read, by broker and number."""
        self.assertEqual(queues_of_route(ROUTE), QUEUES)
        for body in (b"{}", b'{"queueDatas":[{"perm":6,"readQueueNums":1}]}',
                     b'{"queueDatas":[{"brokerName":"b","perm":6,"readQueueNums":65537}]}',
                     b'{"queueDatas":[{"brokerName":"b","perm":"x","readQueueNums":1}]}'):
            self.assertRaises(BodyError, queues_of_route, body)

    def test_divided(self) -> None:
        """Every queue has one client, for each number of clients, by both rules; the first ones have more."""
        for rule in (AVERAGELY, BY_CIRCLE):
            for count in range(1, 7):
                clients = [f"c{number}" for number in range(count)]
                parts = [divided(QUEUES, clients, one, rule) for one in clients]
                self.assertEqual(sorted(sum(parts, [])), QUEUES)
                sizes = [len(part) for part in parts]
                self.assertEqual((sizes, max(sizes) - min(sizes) < 2), (sorted(sizes, reverse=True), True))
        self.assertEqual(divided(QUEUES, ["a", "b", "c"], "a", AVERAGELY), QUEUES[:2])
        self.assertEqual(divided(QUEUES, ["a", "b", "c"], "a", BY_CIRCLE), [("b1", 0), ("b2", 1)])
        self.assertEqual(divided(QUEUES, ["a"], "b", AVERAGELY), [])

    def test_pop(self) -> None:
        """All queues of all brokers; or a client's own, and those of some others."""
        clients = ["a", "b", "c", "d"]
        everywhere = [("b1", -1), ("b2", -1)]
        for share in (0, 3, 8):
            self.assertEqual(shared_for_pop(QUEUES, clients, "a", AVERAGELY, share), everywhere)
        self.assertEqual(shared_for_pop(QUEUES, clients, "d", AVERAGELY, 1), [("b1", 0), ("b2", 1)])
        self.assertEqual(shared_for_pop(QUEUES[:2], clients, "d", AVERAGELY, 1), [("b1", 1)])


class AssignmentTests(SynchronousTestCase):
    """A broker, and a name server that knows the route."""

    def setUp(self) -> None:
        self.make()

    def make(self, **options: Any) -> None:
        """The broker."""
        self.asked = asked = Asked(**options)
        self.addCleanup(asked.close)
        asked.topic("t", queues=2)
        asked.metadata.groups.find("g", NOW_MS)
        self.table = ConsumerTable()
        self.routes: list[str] = []
        self.answers: list[Deferred[RemotingCommand]] = []
        asked.groups = [Assignments(
            asked.inside, self.table, route_of=self.route, save=lambda: succeed(None)
        )]
        self.clients = [asked.client() for _ in range(2)]
        for number, client in enumerate(self.clients):
            self.table.register(client.connection, f"c{number}", ConsumerData(group="g"), now_ms=NOW_MS)
        for client in self.clients:
            client.received()

    def route(self, topic: str) -> Deferred[RemotingCommand]:
        """What a name server says."""
        self.routes.append(topic)
        if self.answers:
            return self.answers.pop(0)
        return succeed(RemotingCommand(code=0, opaque=0, body=ROUTE))

    def query(self, number: int = 0, **more: object) -> list[tuple[str, int, str]] | None:
        """The assignment of a client; None: it keeps its queues."""
        body = {"topic": "t", "consumerGroup": "g", "clientId": f"c{number}", "strategyName": "AVG",
                "messageModel": "CLUSTERING", **more}
        answer = self.clients[number].ask(QUERY_ASSIGNMENT, {}, json.dumps(body).encode())
        self.assertEqual(answer.code, 0, answer.remark)
        found = json.loads(answer.body).get("messageQueueAssignments")
        return None if found is None else [
            (one["messageQueue"]["brokerName"], one["messageQueue"]["queueId"], one["mode"]) for one in found
        ]

    def set(self, **more: object) -> RemotingCommand:
        """An administrator's request."""
        body = {"topic": "t", "consumerGroup": "g", "mode": "POP", "popShareQueueNum": 8, **more}
        return self.clients[0].ask(SET_MESSAGE_REQUEST_MODE, {}, json.dumps(body).encode())

    def test_pull(self) -> None:
        """The usual mode: each queue has one client."""
        self.assertEqual(self.query(0), [("b1", 0, "PULL"), ("b1", 1, "PULL")])
        self.assertEqual(self.query(1), [("b2", 0, "PULL"), ("b2", 1, "PULL")])
        self.assertEqual(self.routes, ["t"])
        self.asked.clock.advance(ROUTE_S)
        self.assertEqual(len(self.query(0, messageModel="BROADCASTING") or ()), 4)
        self.assertEqual(self.routes, ["t", "t"])

    def test_pop(self) -> None:
        """Each pops from all brokers; also after a start."""
        self.assertEqual(self.set().code, 0)
        for number in range(2):
            self.assertEqual(self.query(number), [("b1", -1, "POP"), ("b2", -1, "POP")])
        self.assertEqual(self.query(0, topic="u"), [("b1", 0, "PULL"), ("b1", 1, "PULL")])
        kept = json.loads(self.asked.metadata.request_modes.file_bytes())["messageRequestModeMap"]
        self.assertEqual(kept, {"t": {"g": {
            "consumerGroup": "g", "mode": "POP", "popShareQueueNum": 8, "topic": "t"
        }}})
        self.assertEqual(self.set(mode="PULL").code, 0)
        self.assertEqual(self.query(0), [("b1", 0, "PULL"), ("b1", 1, "PULL")])

    def test_unknown(self) -> None:
        """Without a route, with another rule, or in a group without members a client keeps its queues."""
        late: Deferred[RemotingCommand] = Deferred()
        self.answers = [succeed(RemotingCommand(code=17, opaque=0)), late,
                        succeed(RemotingCommand(code=0, opaque=0, body=b"{"))]
        self.assertIsNone(self.query())
        late.errback(TimeoutError("late"))
        self.assertIsNone(self.query())
        self.assertIsNone(self.query())
        self.assertIsNone(self.query(strategyName="CONSISTENT_HASH"))
        self.assertIsNone(self.query(consumerGroup="h"))
        self.patch(assignments, "ASKED_MAX", 0)
        self.asked.clock.advance(ROUTE_S)
        self.assertIsNone(self.query())

    def test_bound(self) -> None:
        """The oldest route is forgotten."""
        self.patch(assignments, "ROUTES_MAX", 1)
        for topic in ("t", "u", "t"):
            self.query(topic=topic)
        self.assertEqual(self.routes, ["t", "u", "t"])

    def test_refused(self) -> None:
        """Modes of what is not there; and at a slave."""
        for more, code in (
            ({"topic": "%RETRY%g"}, Code.NO_PERMISSION), ({"topic": "u"}, Code.TOPIC_NOT_EXIST),
            ({"consumerGroup": "a b"}, Code.SUBSCRIPTION_GROUP_NOT_EXIST), ({"mode": "PUSH"}, 1),
            ({"popShareQueueNum": "x"}, 1), ({"topic": 5}, 1),
        ):
            self.assertEqual(self.set(**more).code, code, more)
        self.assertEqual(self.clients[0].ask(QUERY_ASSIGNMENT, {}, b"{").code, Code.SYSTEM_ERROR)
        self.assertEqual(self.asked.metadata.request_modes.names(), [])
        self.make(is_slave=True)
        self.assertEqual(self.set().code, Code.SLAVE_NOT_AVAILABLE)
