# -*- test-case-name: tests.broker.sending.test_sends -*-
"""
A broker that is asked over connections in memory, by the roads of its clients.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dledger.base.disk.disk import Disk
from protocols.rocketmq.broker import BrokerConnection
from protocols.wire.remoting import RemotingCommand, encode_command
from protocols.wire.rocketmq.message import Message
from tests.broker.put_support import Writing
from tests.broker.support import messages_in
from tests.protocols.fakes import plug, sent_commands

#: Fields of a message that a producer sends, by their long names.
FIELDS: Mapping[str, str] = {
    "producerGroup": "P", "topic": "T1", "defaultTopic": "TBW102", "defaultTopicQueueNums": "4",
    "queueId": "0", "sysFlag": "0", "bornTimestamp": "1700000000000", "flag": "7", "properties": "",
    "reconsumeTimes": "0", "unitMode": "false",
}
#: The properties that the broker adds to every message.
EVERY: Mapping[str, str] = {"CLUSTER": "C", "MSG_REGION": "DefaultRegion", "TRACE_ON": "true"}
_SHORT = dict(zip(
    ("producerGroup", "topic", "defaultTopic", "defaultTopicQueueNums", "queueId", "sysFlag", "bornTimestamp",
     "flag", "properties", "reconsumeTimes", "unitMode", "maxReconsumeTimes", "batch"),
    "abcdefghijklm", strict=True,
))


def send_of(
    body: bytes = b"hello", *, code: int = 310, opaque: int = 1, oneway: bool = False, version: int = 409,
    without: str = "", **fields: object,
) -> RemotingCommand:
    """A request; fields by their long names."""
    named = {**FIELDS, **{name: str(value) for name, value in fields.items()}}
    named.pop(without, None)
    if code != 10:
        named = {_SHORT[name]: value for name, value in named.items()}
    return RemotingCommand(
        code=code, opaque=opaque, flag=2 * oneway, version=version, ext_fields=named, body=body,
        language="JAVA",
    )


class Sending(Writing):
    """
    A master (or slave) whose router is asked.

    @ivar created: how often topics were made.
    """

    def __init__(
        self, disk: Disk | None = None, *, options: dict[str, Any] | None = None,
        store: dict[str, Any] | None = None, **ha: Any,
    ) -> None:
        super().__init__(disk, options=options, store=store, **ha)
        self.created = 0
        notify = self.broker.topics_changed

        def topics_changed() -> None:
            self.created += 1
            notify()

        self.broker.topics_changed = topics_changed  # type: ignore[method-assign]

    def connect(self) -> Client:
        """Somebody connects."""
        return Client(self)

    def stored(self) -> list[Message]:
        """What is in the log."""
        return messages_in(self.store.log)


class Client:
    """One connection."""

    def __init__(self, sending: Sending) -> None:
        made = sending.broker.router.buildProtocol(None)
        assert isinstance(made, BrokerConnection)
        self.connection = made
        self.transport = plug(made)
        self._clock = sending.clock

    def send(self, *commands: RemotingCommand) -> list[RemotingCommand]:
        """In one read. @return: what was answered at once."""
        self.connection.dataReceived(b"".join(map(encode_command, commands)))
        return self.received()

    def received(self) -> list[RemotingCommand]:
        """What was answered since the last call."""
        self._clock.advance(0)
        found = sent_commands(self.transport.value())
        self.transport.clear()
        return found
