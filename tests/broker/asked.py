# -*- test-case-name: tests.broker.consuming.test_pulls -*-
"""
A broker's groups of commands, asked over connections of their own: what the tests of each group share.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from twisted.internet.task import Clock

from dledger.base.disk.memory_disk import MemoryDisk
from dledger.broker.common.config import BrokerConfig
from dledger.broker.common.refusals import Handler, Refused
from dledger.broker.ha.config import SLAVE, HAConfig
from dledger.broker.metadata.files import Metadata
from dledger.broker.metadata.tables import TopicConfig
from dledger.broker.store.records import NewMessage
from protocols.rocketmq.commands import CommandConnection
from protocols.wire.errors import WireError
from protocols.wire.remoting import RemotingCommand, encode_command
from tests.broker.support import Opened, config_of
from tests.protocols.fakes import FakeTransport, plug, sent_commands, turn_of, unplug

#: When the tests take place, ms since 1970.
NOW_MS = 1_700_000_000_000


class Client:
    """A connection to the broker, and what came back on it."""

    def __init__(self, asked: Asked) -> None:
        self.connection = CommandConnection(asked, turn_of(asked.clock))
        self.transport: FakeTransport = plug(self.connection)
        self._asked = asked
        self._last = 0

    def send(self, code: int, fields: Mapping[str, object], body: bytes = b"", **more: Any) -> int:
        """Ask. @return: the number of the request."""
        self._last += 1
        self.connection.dataReceived(encode_command(RemotingCommand(
            code=code, opaque=self._last, ext_fields={key: str(value) for key, value in fields.items()},
            body=body, **more,
        )))  # fmt: skip
        return self._last

    def received(self) -> list[RemotingCommand]:
        """What the broker has sent since the last call."""
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


class Asked:
    """
    A store, its metadata, and a sink that hands requests to groups of commands.

    @ivar groups: each has C{handlers()}; those with C{connection_lost} and C{drained} are told, too.
    """

    def __init__(self, *, is_slave: bool = False, **options: Any) -> None:
        self.disk = MemoryDisk()
        self.opened = Opened(self.disk, is_slave=is_slave)
        self.clock: Clock = self.opened.clock
        self.store = self.opened.store
        self.opened.settle()
        ha = HAConfig(broker_role=SLAVE) if is_slave else HAConfig()
        self.config = BrokerConfig(
            store=config_of(), ha=ha, broker_id=int(is_slave), broker_ip1="10.0.0.1", **options
        )
        self.metadata = Metadata(self.disk, "base/config", now_ms=NOW_MS)
        self.groups: list[Any] = []

    def wall_ms(self) -> int:
        """Time goes on with the clock."""
        return NOW_MS + int(self.clock.seconds() * 1000)

    def topic(self, name: str, queues: int = 4, perm: int = 6) -> None:
        """Add a topic."""
        self.metadata.topics.put(
            TopicConfig(topic_name=name, read_queue_nums=queues, write_queue_nums=queues, perm=perm), NOW_MS
        )

    def append(self, *messages: NewMessage) -> None:
        """Messages arrive, and are dispatched."""
        self.store.append([messages], self.wall_ms())
        self.opened.settle()

    def client(self) -> Client:
        """Somebody connects."""
        return Client(self)

    def close(self) -> None:
        """Give the store back."""
        self.store.abandon()

    # -- CommandSink -----------------------------------------------------------------------------

    def connected(self, connection: CommandConnection) -> None:
        """Nothing to do."""

    def commands_received(self, connection: CommandConnection, commands: list[RemotingCommand]) -> None:
        """Hand each to its group."""
        for command in commands:
            handlers: dict[int, Handler] = {}
            for group in self.groups:
                handlers.update(group.handlers())
            try:
                handlers[command.code](connection, command)
            except Refused as refused:
                connection.answer(command, code=refused.code, remark=refused.remark)

    def drained(self, connection: CommandConnection) -> None:
        """Tell who wants to know."""
        for group in self.groups:
            if hasattr(group, "drained"):
                group.drained(connection)

    def wire_broken(self, connection: CommandConnection, error: WireError) -> None:
        """A test never breaks it."""
        raise AssertionError(str(error))

    def connection_lost(self, connection: CommandConnection, reason: str) -> None:
        """Tell who wants to know."""
        for group in self.groups:
            if hasattr(group, "connection_lost"):
                group.connection_lost(connection)
