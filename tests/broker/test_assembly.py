# -*- test-case-name: tests.broker.test_assembly -*-
"""Every group of commands has its place in a broker."""

from __future__ import annotations

import json

from protocols.wire.remoting import RemotingCommand, encode_command
from tests.broker.send_support import send_of
from tests.broker.test_service import ServiceCase
from tests.protocols.fakes import sent_commands

#: By what RocketMQ calls them; see docs/ha.md.
CODES = {
    10, 310, 320, 36, 11, 361, 14, 15, 29, 30, 31, 32, 33, 34, 35, 38, 46, 41, 42, 17, 215, 200, 207, 26, 28,
    907, 222, 202, 203, 208, 300, 351, 352, 21, 43, 45, 201, 402,
}  # fmt: skip


class AssemblyTests(ServiceCase):
    """A whole master."""

    def test_codes(self) -> None:
        """Everything that is said to be answered is."""
        service = self.start()
        assert service.router is not None
        self.assertEqual(CODES - set(service.router.codes), set())
        self.stop()

    def test_administration(self) -> None:
        """What was sent is counted, replication is told of, and a new topic is on disk with the answer."""
        self.start()
        self.ask(send_of(), send_of())
        made, runtime, ha = self.ask(
            RemotingCommand(code=17, opaque=1, ext_fields={
                "topic": "new", "defaultTopic": "TBW102", "readQueueNums": "4", "writeQueueNums": "4",
                "perm": "6", "topicFilterType": "SINGLE_TAG",
            }),
            RemotingCommand(code=28, opaque=2), RemotingCommand(code=907, opaque=3),
        )  # fmt: skip
        self.assertEqual([made.code, runtime.code, ha.code], [0, 0, 0])
        self.assertIn(b'"new"', self.disk.read_file("base/config/topics.json"))
        self.assertEqual(json.loads(runtime.body)["table"]["msgPutTotalTodayNow"], "2")
        self.assertIs(json.loads(ha.body)["master"], True)
        self.stop()

    def test_delayed(self) -> None:
        """A master delivers, and says so; a slave never does."""
        self.start()
        self.ask(send_of(properties="DELAY\x011\x02"))
        self.settle(0.7)
        self.assertEqual(self.pull().code, 19)
        self.settle(0.3)
        self.assertEqual(self.pull().code, 0)
        assert self.service.metadata is not None
        self.assertEqual(self.service.metadata.delay_offsets.get(1), 1)
        self.stop()
        self.assertIn(b"1:1", self.disk.read_file("base/config/delayOffset.json"))

    def test_held_pull(self) -> None:
        """A pull that waits is answered by the next message, and by the end of the broker."""
        self.start()
        self.ask(send_of())
        transport = self.connect()
        for opaque, queue_id, offset in ((1, 0, 1), (2, 1, 0)):
            self.connection.dataReceived(encode_command(RemotingCommand(code=11, opaque=opaque, ext_fields={
                "consumerGroup": "g", "topic": "T1", "queueId": str(queue_id),
                "queueOffset": str(offset), "maxMsgNums": "32", "sysFlag": "6", "commitOffset": "0",
                "suspendTimeoutMillis": "15000", "subVersion": "0",
            })))  # fmt: skip
        self.settle()
        self.assertEqual(transport.value(), b"")
        held = self.connection
        self.ask(send_of())
        self.connection = held
        self.settle()
        self.assertEqual([(one.opaque, one.code) for one in sent_commands(transport.value())], [(1, 0)])
        transport.clear()
        self.stop()
        self.assertEqual([(one.opaque, one.code) for one in sent_commands(transport.value())], [(2, 19)])
