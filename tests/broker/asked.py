# -*- test-case-name: tests.broker.consuming.test_pulls -*-
"""
A broker's groups of commands, asked over connections of their own, for the tests of each group.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from twisted.internet.task import Clock

from dledger.rocketmq.answering.refusals import CommandGroup
from dledger.rocketmq.broker.access.router import CommandRouter, SendHandlers
from dledger.rocketmq.broker.options.config import BrokerConfig
from dledger.rocketmq.metadata.tables import TopicConfig
from dledger.rocketmq.replication.config import SLAVE, HAConfig
from dledger.rocketmq.store.records.records import NewMessage
from dledger.testing.world.memory_disk import MemoryDisk
from protocols.wire.remoting import RemotingCommand, encode_command
from tests.broker.support import Made, config_of
from tests.protocols.fakes import FakeTransport, plug, sent_commands, unplug

#: When the tests take place, ms since 1970.
NOW_MS = 1_700_000_000_000


class Client:
    """A connection to the broker, and what came back on it."""

    def __init__(self, asked: Asked) -> None:
        made = asked.router().buildProtocol(None)
        assert made is not None
        self.connection = made
        self.transport: FakeTransport = plug(made)
        self._asked = asked
        self._last = 0

    def send(self, code: int, fields: Mapping[str, object], body: bytes = b"", **more: Any) -> int:
        """Ask. @return: the number of the request."""
        self._last += 1
        self.connection.dataReceived(encode_command(RemotingCommand(
            code=code, opaque=self._last, ext_fields={key: str(value) for key, value in fields.items()},
            body=body, **more,
        )))
        return self._last

    def received(self) -> list[RemotingCommand]:
        """The frames that the broker has sent since the last call."""
        self._asked.clock.advance(0)
        found = sent_commands(self.transport.value())
        self.transport.clear()
        return found

    def ask(self, code: int, fields: Mapping[str, object], body: bytes = b"", **more: Any) -> RemotingCommand:
        """Ask, and be answered at once."""
        opaque = self.send(code, fields, body, **more)
        (answer,) = [one for one in self.received() if one.is_response]
        assert answer.opaque == opaque, (answer.opaque, opaque)
        return answer

    def lose(self) -> None:
        """The connection ends."""
        unplug(self.connection)


class Asked(Made):
    """
    A broker whose router has the groups under test.

    @ivar groups: groups of commands.
    """

    def __init__(self, *, is_slave: bool = False, **options: Any) -> None:
        ha = HAConfig(broker_role=SLAVE) if is_slave else HAConfig()
        config = BrokerConfig(
            store=config_of(), ha=ha, broker_id=int(is_slave), broker_ip1="10.0.0.1", **options
        )
        super().__init__(config, MemoryDisk(), Clock(), wall_ms=NOW_MS)
        self.groups: Sequence[CommandGroup] = ()
        self._routers: dict[tuple[CommandGroup, ...], CommandRouter] = {}

    def router(self) -> CommandRouter:
        """One for each set of groups."""
        groups = tuple(self.groups)
        if groups not in self._routers:
            self._routers[groups] = CommandRouter(
                self.broker.turn, groups, SendHandlers(together=self.broker.sends)
            )
        return self._routers[groups]

    def topic(self, name: str, queues: int = 4, perm: int = 6) -> None:
        """Add a topic."""
        self.metadata.topics.put(
            TopicConfig(topic_name=name, read_queue_nums=queues, write_queue_nums=queues, perm=perm), NOW_MS
        )

    def append(self, *messages: NewMessage) -> None:
        """Messages arrive, and are dispatched."""
        self.store.log.append([messages], self.wall_ms())
        self.settle()

    def client(self) -> Client:
        """Somebody connects."""
        return Client(self)

    def close(self) -> None:
        """Give the store back."""
        self.store.abandon()
