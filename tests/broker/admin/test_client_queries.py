# -*- test-case-name: tests.broker.admin.test_client_queries -*-
"""What administrators ask about clients, and through the broker of clients."""

from __future__ import annotations

import json

from twisted.trial.unittest import SynchronousTestCase

from dledger.rocketmq.answering.refusals import Code
from dledger.rocketmq.broker.admin import client_queries
from dledger.rocketmq.broker.admin.client_queries import (
    CONSUME_MESSAGE_DIRECTLY,
    CONSUME_MSG_TIMEOUT,
    GET_ALL_PRODUCER_INFO,
    GET_CONSUMER_RUNNING_INFO,
    GET_PRODUCER_CONNECTION_LIST,
    ClientQueries,
)
from dledger.rocketmq.broker.consuming.consumers import ConsumerTable
from dledger.rocketmq.broker.consuming.producers import ProducerTable
from dledger.rocketmq.broker.consuming.subscriptions import ConsumerData
from protocols.wire.remoting import RemotingCommand, encode_command
from protocols.wire.rocketmq.message import decode_message
from tests.broker.asked import NOW_MS, Asked
from tests.broker.support import message

FIELDS = {"consumerGroup": "g", "clientId": "c1", "jstackEnable": "true", "AccessKey": "k", "Signature": "s"}


class Case(SynchronousTestCase):
    """An administrator, and a client that is a consumer of g and a producer of p."""

    def setUp(self) -> None:
        self.asked = Asked()
        self.addCleanup(self.asked.close)
        self.asked.topic("t")
        self.consumers, self.producers = ConsumerTable(), ProducerTable()
        self.asked.groups = [ClientQueries(self.asked.inside, self.consumers, self.producers)]
        self.admin, self.client = self.asked.client(), self.asked.client()
        self.consumers.register(self.client.connection, "c1", ConsumerData(group="g"), now_ms=NOW_MS)
        self.client.received()
        self.producers.register(self.client.connection, "c1", "p", NOW_MS, kind=("JAVA", 409))


class ProducerTests(Case):
    """Requests 204 and 328."""

    def test_of_a_group(self) -> None:
        """Its connections."""
        answer = self.admin.ask(GET_PRODUCER_CONNECTION_LIST, {"producerGroup": "p"})
        (one,) = json.loads(answer.body)["connectionSet"]
        self.assertEqual(one, {"clientAddr": self.client.connection.address, "clientId": "c1",
                               "language": "JAVA", "version": 409})
        answer = self.admin.ask(GET_PRODUCER_CONNECTION_LIST, {"producerGroup": "q"})
        self.assertEqual((answer.code, answer.remark), (1, "the producer group[q] not exist"))

    def test_all(self) -> None:
        """By group; too many are refused."""
        data = json.loads(self.admin.ask(GET_ALL_PRODUCER_INFO, {}).body)["data"]
        self.assertEqual(data, {"p": [{
            "clientId": "c1", "remoteIP": self.client.connection.address, "language": "JAVA", "version": 409,
            "lastUpdateTimestamp": NOW_MS,
        }]})
        self.producers.register(self.client.connection, "c1", "q", NOW_MS)
        self.patch(client_queries, "PRODUCERS_MAX", 1)
        self.assertEqual(self.admin.ask(GET_ALL_PRODUCER_INFO, {}).code, Code.SYSTEM_ERROR)
        self.producers.lost(self.client.connection)
        self.assertEqual(json.loads(self.admin.ask(GET_ALL_PRODUCER_INFO, {}).body), {"data": {}})


class ConsumerTests(Case):
    """Requests 307 and 309."""

    def test_passed_on(self) -> None:
        """The question goes to the consumer without the signature, its answer to the administrator."""
        opaque = self.admin.send(GET_CONSUMER_RUNNING_INFO, FIELDS)
        (reported,) = self.client.received()
        self.assertEqual((reported.code, reported.is_oneway), (GET_CONSUMER_RUNNING_INFO, False))
        self.assertEqual(reported.ext_fields,
                         {"consumerGroup": "g", "clientId": "c1", "jstackEnable": "true"})
        self.client.connection.dataReceived(encode_command(RemotingCommand(
            code=0, opaque=reported.opaque, flag=1, body=b'{"jstack":"x"}', remark="r"
        )))
        (answer,) = self.admin.received()
        self.assertEqual((answer.opaque, answer.code, answer.body, answer.remark),
                         (opaque, 0, b'{"jstack":"x"}', "r"))

    def test_a_message(self) -> None:
        """The consumer gets the whole record."""
        self.asked.append(message(b"hello", topic="t"))
        self.admin.send(CONSUME_MESSAGE_DIRECTLY, {**FIELDS, "msgId": "0A000001" + "0" * 24})
        (reported,) = self.client.received()
        self.assertEqual(reported.code, CONSUME_MESSAGE_DIRECTLY)
        self.assertEqual((decode_message(reported.body).body, reported.ext_fields["brokerName"]),
                         (b"hello", "DEFAULT_BROKER"))
        for text in ("", "x" * 32, "0A000001", "0A000001" + "0" * 23 + "9"):
            answer = self.admin.ask(CONSUME_MESSAGE_DIRECTLY, {**FIELDS, "msgId": text})
            self.assertEqual(answer.code, Code.SYSTEM_ERROR, text)
        self.assertEqual(self.client.received(), [])

    def test_not_there(self) -> None:
        """Neither another client, nor another group."""
        for fields in ({**FIELDS, "clientId": "c2"}, {**FIELDS, "consumerGroup": "h"}):
            answer = self.admin.ask(GET_CONSUMER_RUNNING_INFO, fields)
            self.assertEqual(answer.code, Code.SYSTEM_ERROR)
            self.assertIn("not online", answer.remark or "")

    def test_silent(self) -> None:
        """A consumer that does not answer, or leaves, is reported; the number of those asked is bounded."""
        self.patch(client_queries, "ASKED_MAX", 1)
        self.admin.send(GET_CONSUMER_RUNNING_INFO, FIELDS)
        self.assertEqual(self.admin.ask(GET_CONSUMER_RUNNING_INFO, FIELDS).code, Code.SYSTEM_BUSY)
        self.asked.clock.advance(10)
        (answer,) = self.admin.received()
        self.assertEqual(answer.code, CONSUME_MSG_TIMEOUT)
        self.admin.send(GET_CONSUMER_RUNNING_INFO, FIELDS)
        self.client.lose()
        (answer,) = self.admin.received()
        self.assertEqual(answer.code, Code.SYSTEM_ERROR)
        self.assertIn("invoke consumer <g> <c1> Exception", answer.remark or "")
