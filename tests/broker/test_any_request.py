# -*- test-case-name: tests.broker.test_any_request -*-
"""Whatever is asked, the broker answers, once; nothing that a request says makes a handler fail."""

from __future__ import annotations

import json
import random

from protocols.wire.remoting import RemotingCommand, encode_command
from tests.broker.send_support import send_of
from tests.broker.test_service import ServiceCase
from tests.protocols.fakes import sent_commands

ROUNDS = 4000

#: Names that some request has in its header.
FIELDS = (
    "consumerGroup", "topic", "queueId", "queueOffset", "maxMsgNums", "sysFlag", "commitOffset", "offset",
    "suspendTimeoutMillis", "subscription", "subVersion", "expressionType", "timestamp", "group",
    "delayLevel", "unitMode", "maxReconsumeTimes", "clientID", "readQueueNums", "writeQueueNums", "perm",
    "order", "isForce",
    "topicFilterType", "topicSysFlag", "attributes", "groupName", "cleanOffset", "setZeroIfNotFound",
    "boundaryType", "maxMsgBytes", "producerGroup", "defaultTopic", "defaultTopicQueueNums", "bornTimestamp",
    "flag", "properties", "reconsumeTimes", "batch", *"abcdefghijklmn", "statsName", "statsKey", "index",
    "count", "msgId", "clientId", "isOrder", "attemptId", "extraInfo", "invisibleTime", "pollTime",
    "initMode", "exp", "expType", "withAttributes",
)
VALUES = (
    "", "0", "1", "2", "3", "-1", "4", "6", "7", "32", "T1", "%RETRY%g", "SCHEDULE_TOPIC_XXXX", "TBW102", "g",
    "*", "A || B", "TAG", "SQL92", "true", "false", "maybe", "x" * 300, "2147483647", "2147483648",
    "-2147483648", "9223372036854775807", "9223372036854775808", "1e5", "0x10", " 1", "\u0663", "a/b", "\0",
    "DELAY\x011\x02", "DELAY\x01-1", "15000", "123", "280",
)
KEYS = (
    "clientID", "clientId", "consumerDataSet", "producerDataSet", "groupName", "subscriptionDataSet", "topic",
    "subString", "subVersion", "codeSet", "tagsSet", "expressionType", "mqSet", "brokerName", "queueId",
    "consumerGroup", "retryQueueNums", "consumeEnable", "subscriptionData", "topicConfigList",
    "groupConfigList", "topicName", "attributes", "acks",
)


def any_json(chance: random.Random, depth: int = 0) -> object:
    """A document, or a part of one."""
    kind = chance.randrange(8) if depth < 4 else chance.randrange(6)
    if kind < 6:
        return chance.choice([None, True, 0, -1, 2**40, 1.5, "\ud800", *VALUES])
    if kind == 6:
        return [any_json(chance, depth + 1) for _ in range(chance.randrange(3))]
    return {key: any_json(chance, depth + 1) for key in chance.sample(KEYS, chance.randrange(7))}


def any_body(chance: random.Random) -> bytes:
    """A document as a rule; anything else now and then."""
    if chance.random() < 0.2:
        return chance.randbytes(chance.randrange(40))
    document = {key: any_json(chance, 1) for key in chance.sample(KEYS, chance.randrange(8))}
    for key in ("clientID", "clientId", "consumerGroup", "groupName"):  # or it would seldom get further
        if chance.random() < 0.8:
            document[key] = chance.choice(["c1", "g", "\ud800"])
    for key in ("consumerDataSet", "mqSet"):
        if chance.random() < 0.5:
            document[key] = [{name: any_json(chance, 3) for name in chance.sample(KEYS, 5)}]
    return json.dumps(document).encode()


class AnyRequestTests(ServiceCase):
    """A master, and a slave, that are asked anything."""

    def ask_anything(self, seed: int) -> None:
        """Requests of every code with fields and bodies by chance; all are answered when the broker stops."""
        chance = random.Random(seed)
        router = self.broker.router
        failed: list[object] = []
        self.patch(router, "_failed", lambda connection, code, failure: failed.append((code, failure)))
        transport = self.connect()
        codes = router.codes
        for opaque in range(1, ROUNDS + 1):
            names = chance.sample(FIELDS, chance.randrange(len(FIELDS)))
            request = RemotingCommand(
                code=chance.choice(codes), opaque=opaque, version=chance.choice([0, 409]),
                ext_fields={name: chance.choice(VALUES) for name in names}, body=any_body(chance),
            )
            self.connection.dataReceived(encode_command(request))
            if opaque % 200 == 0:
                self.settle(0.05)
        self.assertEqual(failed[:3], [], f"{len(failed)} requests, seed {seed}")
        self.settle(1.2)
        self.stop(3)
        answered = [one.opaque for one in sent_commands(transport.value()) if one.is_response]
        self.assertEqual(sorted(answered), list(range(1, ROUNDS + 1)))
        self.assertEqual(self.reasons, [])

    def test_master(self) -> None:
        """Which has messages."""
        self.start()
        self.ask(*[send_of(b"x%d" % number, opaque=number) for number in range(1, 9)])
        self.ask_anything(1)

    def test_slave(self) -> None:
        """Which has none."""
        self.start(brokerRole="SLAVE")
        self.ask_anything(2)
