# -*- test-case-name: tests.broker.sending.test_sends -*-
"""
A broker's router with its sends, asked over connections in memory.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dledger.broker.common.config import BrokerConfig
from dledger.broker.ha.config import HAConfig
from dledger.broker.metadata.files import Metadata
from dledger.broker.router import CommandRouter
from dledger.broker.sending.sends import SEND_CODES, Sends
from dledger.broker.sending.topic_checks import TopicChecks
from protocols.rocketmq.commands import CommandConnection
from protocols.wire.remoting import RemotingCommand, encode_command
from protocols.wire.rocketmq.message import Host, Message
from tests.broker.put_support import WALL_MS, Writing
from tests.broker.support import config_of, messages_in
from tests.protocols.fakes import plug, sent_commands, turn_of

#: Fields of a message that a producer sends, by their long names.
FIELDS: Mapping[str, str] = {
    "producerGroup": "P", "topic": "T1", "defaultTopic": "TBW102", "defaultTopicQueueNums": "4",
    "queueId": "0", "sysFlag": "0", "bornTimestamp": "1700000000000", "flag": "7", "properties": "",
    "reconsumeTimes": "0", "unitMode": "false",
}  # fmt: skip
_SHORT = dict(zip(
    ("producerGroup", "topic", "defaultTopic", "defaultTopicQueueNums", "queueId", "sysFlag", "bornTimestamp",
     "flag", "properties", "reconsumeTimes", "unitMode", "maxReconsumeTimes", "batch"),
    "abcdefghijklm", strict=True,
))  # fmt: skip


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


class Broker:
    """
    A master (or slave) whose router is asked.

    @ivar created: how often topics were made.
    """

    def __init__(
        self, *, options: dict[str, Any] | None = None, store: dict[str, Any] | None = None, **ha: Any
    ) -> None:
        self.writing = Writing(store=store, **ha)
        config = HAConfig(**ha)
        self.config = BrokerConfig(
            store=config_of(**(store or {})), ha=config, broker_id=int(config.is_slave),
            broker_ip1="10.0.0.1", broker_name="b", broker_cluster_name="C", **(options or {}),
        )  # fmt: skip
        self.metadata = Metadata(self.writing.disk, "base/config", now_ms=WALL_MS)
        self.metadata.topics.add_system_topics(cluster="C", broker="b", now_ms=WALL_MS)
        self.created = 0
        self.checks = TopicChecks(
            self.metadata, self.config, wall_ms=self.writing.wall_ms, on_created=self._created
        )
        self.sends = Sends(
            self.writing.pipeline, self.checks, self.metadata, self.config,
            store_host=Host.of("10.0.0.1", 10911), wall_ms=self.writing.wall_ms,
        )  # fmt: skip
        self.turn = turn_of(self.writing.clock)
        self.router = CommandRouter(self.turn)
        self.router.add_together(SEND_CODES, self.sends.received)
        self.router.add_metadata(self.metadata)

    def _created(self) -> None:
        self.created += 1

    def connect(self) -> Client:
        """Somebody connects."""
        return Client(self)

    def stored(self) -> list[Message]:
        """What is in the log."""
        return messages_in(self.writing.store.log)

    def stop(self) -> None:
        """In order."""
        self.writing.stop()


class Client:
    """One connection."""

    def __init__(self, broker: Broker) -> None:
        made = broker.router.buildProtocol(None)
        assert made is not None
        self.connection: CommandConnection = made
        self.transport = plug(made)
        self._clock = broker.writing.clock

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
