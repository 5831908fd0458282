# -*- test-case-name: tests.broker.test_any_request -*-
"""Whatever a client asks, it is answered once, and no handler fails at it."""

from __future__ import annotations

import random
from collections.abc import Mapping

from dledger.broker.sends import SEND_CODES
from protocols.wire.remoting import RemotingCommand, encode_command
from tests.broker.send_support import FIELDS, send_of
from tests.broker.test_service import ServiceCase
from tests.protocols.fakes import sent_commands

#: What every request of a kind might have, so that some come through.
SOUND: Mapping[str, str] = {
    **FIELDS, "consumerGroup": "g", "group": "g", "groupName": "g", "queueOffset": "0", "maxMsgNums": "32",
    "commitOffset": "0", "suspendTimeoutMillis": "0", "subscription": "*", "subVersion": "0",
    "expressionType": "TAG", "offset": "0", "timestamp": "1700000000000", "clientID": "c", "delayLevel": "1",
    "originTopic": "T1", "originMsgId": "X", "readQueueNums": "4", "writeQueueNums": "4", "perm": "6",
    "topicFilterType": "SINGLE_TAG", "topicSysFlag": "0", "order": "false",
}  # fmt: skip
VALUES = ("", "0", "1", "-1", "3", "x", "true", str(2**31), str(2**63), str(-(2**63)), "T1", "nothing",
          "%RETRY%g", "SCHEDULE_TOPIC_XXXX", "a b", "\0", "\x01", "\U0001f600", "9" * 400, "*", "a||b",
          "DELAY\x013", "../..", "CLUSTER\x01")  # fmt: skip
BODIES = (b"", b"{}", b"[]", b"null", b"{", b"\xff", b"1", b'{"table":1}', b"x" * 3000,
          b'{"clientID":"c","producerDataSet":[{"groupName":"p"}],"consumerDataSet":[{"groupName":"g",'
          b'"consumeType":"CONSUME_PASSIVELY","messageModel":"CLUSTERING","consumeFromWhere":'
          b'"CONSUME_FROM_FIRST_OFFSET","subscriptionDataSet":[{"topic":"T1","subString":"*",'
          b'"subVersion":1}]}]}',
          b'{"groupName":"g"}',
          b'{"consumerGroup":"g","clientId":"c","mqSet":[{"topic":"T1","brokerName":"b","queueId":0}]}',
          b'{"consumerGroup":1,"mqSet":[1]}',
          b'{"clientID":7,"consumerDataSet":[{"subscriptionDataSet":[[]]}]}')  # fmt: skip


class AnyRequestTests(ServiceCase):
    """Requests by chance, on a master and on a slave."""

    def some(self, chance: random.Random, codes: tuple[int, ...], number: int) -> RemotingCommand:
        """A request for which there is somebody, and perhaps something wrong with it."""
        code = chance.choice(codes)
        fields = dict(SOUND)
        if code in SEND_CODES:
            fields = dict(send_of(code=code).ext_fields)
        for name in chance.sample(sorted(fields), chance.choice((0, 0, 1, 2, 5))):
            if chance.random() < 0.4:
                del fields[name]
            else:
                fields[name] = chance.choice(VALUES)
        return RemotingCommand(
            code=code, opaque=number, version=chance.choice((0, 100, 409, 479)), ext_fields=fields,
            body=chance.choice(BODIES), serialize_type=chance.choice((0, 0, 1)) if code < 2**15 else 0,
        )

    def run_some(self, seed: int, *, count: int) -> None:
        """Each of them over a connection with a few others."""
        chance = random.Random(seed)
        router = self.service.router
        assert router is not None
        numbers = iter(range(1, count + 1))
        for _ in range(count // 5):
            requests = [self.some(chance, router.codes, next(numbers)) for _ in range(5)]
            transport = self.connect()
            self.connection.dataReceived(b"".join(map(encode_command, requests)))
            # A pull may be held for as long as it asks for, thirty seconds at most.
            for _ in range(40):
                self.settle(0.05)
                if not self.connection.unanswered:
                    break
                self.clock.advance(1.0)
            said = [one.opaque for one in sent_commands(transport.value()) if one.is_response]
            self.assertEqual(sorted(said), [one.opaque for one in requests], requests)
            self.assertEqual(router.failures, 0, requests)
            self.connection.abort("done")
        self.assertEqual(self.reasons, [])

    def test_master(self) -> None:
        """It takes what is right of it."""
        for seed in range(3):
            self.start(mapped_file_size_commit_log=1 << 20, store=f"m{seed}")
            self.run_some(seed, count=1000)
            self.stop(3.0)

    def test_slave(self) -> None:
        """It takes nothing, but answers all the same."""
        self.start(role="slave", haMasterAddress="m:1")
        self.run_some(4, count=1000)
        self.stop(8.0)
