# -*- test-case-name: tests.broker.transactions.test_commands -*-
"""A master whose producers begin transactions."""

from __future__ import annotations

from typing import Any

from twisted.trial.unittest import SynchronousTestCase

from dledger.rocketmq.broker.producing.halves import HALF_TOPIC, OP_TOPIC
from dledger.rocketmq.broker.producing.transactions.commands import END_TRANSACTION
from dledger.rocketmq.broker.producing.transactions.ends import COMMIT
from dledger.rocketmq.broker.producing.transactions.questions import CHECK_TRANSACTION_STATE
from dledger.rocketmq.store.records.records import NewMessage
from dledger.testing.world.memory_disk import MemoryDisk
from protocols.wire.remoting import RemotingCommand
from protocols.wire.rocketmq.message import Host, Message, encode_properties
from tests.broker.send_support import Sending, send_of

HEART_BEAT = b'{"clientID":"c1","producerDataSet":[{"groupName":"P"}],"consumerDataSet":[]}'


class TransactionCase(SynchronousTestCase):
    """A broker that is asked over a connection in memory; it examines half messages every ten seconds."""

    def setUp(self) -> None:
        self.disk = MemoryDisk()
        self.make()

    def make(self, *, max_message_size: int = 1 << 16, **options: Any) -> None:
        """Running; also once more on the same disk."""
        self.broker = Sending(
            self.disk, options={"transaction_check_interval": 10_000, **options},
            store={"mapped_file_size_commit_log": 1 << 17, "max_message_size": max_message_size},
        )
        self.parts = self.broker.broker
        self.client = self.broker.connect()
        self.client.send(RemotingCommand(code=34, opaque=1, body=HEART_BEAT))
        self.parts.checks_of_halves.start()
        self.broker.clock.advance(0)
        self.addCleanup(self.parts.checks_of_halves.stop)
        self.addCleanup(self.broker.store.abandon)

    def half(
        self, body: bytes = b"body", *, key: str = "K1", born: int | None = None, **properties: str
    ) -> Message:
        """A half message, born now. @return: as it is stored."""
        named = {"TRAN_MSG": "true", "UNIQ_KEY": key, "PGROUP": "P", "TAGS": "A", **properties}
        (answer,) = self.client.send(send_of(
            body, properties=encode_properties(named).decode(), sysFlag=4, queueId=1,
            bornTimestamp=self.broker.wall_ms() if born is None else born,
        ))
        self.assertEqual((answer.code, answer.ext_fields["transactionId"]), (0, key))
        return self.of(HALF_TOPIC)[-1]

    def of(self, topic: str) -> list[Message]:
        """The messages of a topic."""
        return [one for one in self.broker.stored() if one.topic == topic]

    def end(self, half: Message, kind: int = COMMIT, **fields: object) -> RemotingCommand:
        """The producer ends it. @return: the answer."""
        (answer,) = self.client.send(self.end_of(half, kind, **fields))
        return answer

    def put(self, topic: str, body: bytes, properties: str) -> None:
        """Store a message as it is, as another broker may have done."""
        host = Host.of("127.0.0.1", 1)
        self.parts.pipeline.put(self.parts.pipeline.checked([NewMessage(
            topic=topic, queue_id=0, body=body, properties_data=properties.encode(), flag=0, sys_flag=0,
            born_timestamp=1, born_host=host, store_host=host,
        )]))
        self.broker.settle()

    def end_of(self, half: Message, kind: int = COMMIT, **fields: object) -> RemotingCommand:
        """A request that ends it."""
        named = {
            "producerGroup": "P", "tranStateTableOffset": half.queue_offset, "commitOrRollback": kind,
            "commitLogOffset": half.physical_offset, "msgId": half.unique_key or "",
            "fromTransactionCheck": "false", **fields,
        }
        return RemotingCommand(
            code=END_TRANSACTION, opaque=7, ext_fields={name: str(value) for name, value in named.items()}
        )

    def wait(self, seconds: float) -> list[RemotingCommand]:
        """Time goes by. @return: the questions to the producer."""
        self.broker.clock.pump([0.5] * round(seconds * 2))
        self.broker.settle()
        return [one for one in self.client.received() if one.code == CHECK_TRANSACTION_STATE]

    @property
    def ended(self) -> list[bytes]:
        """The op messages."""
        return [one.body for one in self.of(OP_TOPIC)]


