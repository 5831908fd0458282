# -*- test-case-name: tests.broker.popping.test_pops -*-
"""A master whose consumers pop."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from twisted.internet.defer import Deferred, succeed
from twisted.trial.unittest import SynchronousTestCase

from dledger.rocketmq.broker.consuming.popping.acks import ACK_MESSAGE, CHANGE_INVISIBLE
from dledger.rocketmq.broker.consuming.popping.check_points import POP_RECEIPT, pop_retry_topic, revive_topic
from dledger.rocketmq.broker.consuming.popping.pops import POP_MESSAGE
from dledger.rocketmq.broker.producing.puts import Put
from dledger.rocketmq.replication.put_status import PutStatus
from dledger.rocketmq.store.records.plain_records import PlainMessage
from dledger.rocketmq.store.records.records import NewMessage
from dledger.testing.world.memory_disk import MemoryDisk
from protocols.wire.remoting import RemotingCommand
from protocols.wire.rocketmq.message import Host, Message, decode_message
from tests.broker.send_support import Sending, send_of

REVIVE = revive_topic("C")
RETRIES = pop_retry_topic("T1", "G")


def pop_of(*, opaque: int = 1, code: int = POP_MESSAGE, **fields: object) -> RemotingCommand:
    """A request for messages of T1, invisible for ten seconds."""
    named = {
        "consumerGroup": "G", "topic": "T1", "queueId": -1, "maxMsgNums": 32, "invisibleTime": 10_000,
        "pollTime": 0, "bornTime": 0, "initMode": 0, "expType": "TAG", "exp": "*", "order": "false", **fields,
    }
    return RemotingCommand(
        code=code, opaque=opaque, ext_fields={name: str(value) for name, value in named.items()}
    )


class Given:
    """
    A popped message.

    @ivar tries: how often it was delivered before.
    """

    def __init__(self, message: Message, answer: RemotingCommand) -> None:
        self.message, self.body, self.tries = message, message.body, message.reconsume_times
        fields, receipt = answer.ext_fields, message.properties.get(POP_RECEIPT)
        self.topic = "T1"
        if receipt is not None:
            self.topic = RETRIES
        else:
            starts = dict(part.rsplit(" ", 1) for part in fields["startOffsetInfo"].split(";"))
            receipt = (f"{starts[f'0 {message.queue_id}']} {fields['popTime']} {fields['invisibleTime']} "
                       f"{fields['reviveQid']} 0 b {message.queue_id} {message.queue_offset}")
        self.receipt = receipt


class PopCase(SynchronousTestCase):
    """A broker that is asked over a connection in memory."""

    def setUp(self) -> None:
        self.disk = MemoryDisk()
        self.make()

    def make(self, **options: Any) -> None:
        """Running; also once more on the same disk."""
        store = {"mapped_file_size_commit_log": 1 << 17}
        if "max_message_size" in options:
            store["max_message_size"] = options.pop("max_message_size")
        self.broker = Sending(self.disk, options=options, store=store)
        self.parts = self.broker.broker
        self.client, self.producer = self.broker.connect(), self.broker.connect()
        self.parts.revive.start()
        self.addCleanup(self.parts.revive.stop)
        self.addCleanup(self.broker.store.abandon)
        self.settle()

    def again(self, *, crash: bool = False, **options: Any) -> None:
        """The broker ends, and another one runs on its disk, with these options."""
        if not crash:
            self.parts.metadata.save(lambda work: succeed(work()))
        self.parts.revive.stop()
        self.broker.store.abandon()
        self.make(**options)

    def put(self, body: bytes, *, topic: str, properties: bytes = b"") -> None:
        """Store a message as it is, as another version may have done."""
        host = Host.of("127.0.0.1", 1)
        self.parts.checks.made_for_retries(topic)
        self.parts.pipeline.put(self.parts.pipeline.checked([NewMessage(
            topic=topic, queue_id=0, body=body, properties_data=properties, flag=0, sys_flag=0,
            born_timestamp=1, born_host=host, store_host=host,
        )]))
        self.settle()

    def settle(self) -> None:
        """What happens without a wait."""
        self.broker.clock.pump([0.0] * 5)
        self.broker.settle()
        self.broker.clock.pump([0.0] * 5)

    def wait(self, seconds: float) -> None:
        """Time goes by."""
        for _ in range(round(seconds)):
            self.broker.clock.pump([0.5, 0.5])
            self.parts.pops.sweep()
            self.parts.revive.sweep()
            self.settle()

    def send(self, *bodies: bytes, queue: int = 0, **fields: object) -> None:
        """A producer's messages in T1."""
        for body in bodies:
            (answer,) = self.producer.send(send_of(body, queueId=queue, **fields))
            self.assertEqual(answer.code, 0)
        self.settle()

    def ask(self, request: RemotingCommand) -> RemotingCommand:
        """@return: its answer, which must come without a wait."""
        found = self.client.send(request)
        if not found:
            self.settle()
            found = self.client.received()
        (answer,) = found
        return answer

    def pop(self, **fields: object) -> list[Given]:
        """@return: the messages of the answer."""
        return self.given(self.ask(pop_of(**fields)))

    def given(self, answer: RemotingCommand) -> list[Given]:
        """@return: the messages of an answer."""
        if answer.code:
            self.assertEqual((answer.code, answer.body), (210, b""), answer.remark)
        found, at = [], 0
        while at < len(answer.body):
            size = int.from_bytes(answer.body[at : at + 4], "big")
            found.append(Given(decode_message(answer.body[at : at + size]), answer))
            at += size
        return found

    def ack(self, given: Given, *, code: int = ACK_MESSAGE, **fields: object) -> RemotingCommand:
        """@return: the answer to an acknowledgement."""
        return self.ask(self.ack_of(given, code=code, **fields))

    def ack_of(self, given: Given, *, code: int = ACK_MESSAGE, **fields: object) -> RemotingCommand:
        """An acknowledgement."""
        named = {
            "consumerGroup": "G", "topic": given.topic, "queueId": given.message.queue_id,
            "extraInfo": given.receipt, "offset": given.message.queue_offset, **fields,
        }
        return RemotingCommand(
            code=code, opaque=3, ext_fields={name: str(value) for name, value in named.items()}
        )

    def change(self, given: Given, ms: int) -> RemotingCommand:
        """@return: the answer to another invisible time."""
        return self.ack(given, code=CHANGE_INVISIBLE, invisibleTime=ms)

    def hold_puts(self) -> list[Deferred[PutStatus]]:
        """From now on puts wait. @return: where they come, to be called back in their order."""
        put, held = self.parts.pipeline.put, []

        def holding(messages: Sequence[PlainMessage], *, waits: bool = True) -> Put:
            done: Deferred[PutStatus] = Deferred()
            held.append(done)
            return put(messages, waits=waits)._replace(done=done)

        self.patch(self.parts.pipeline, "put", holding)
        return held

    def of(self, topic: str) -> list[Message]:
        """The messages of a topic."""
        return [one for one in self.broker.stored() if one.topic == topic]
