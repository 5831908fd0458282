# -*- test-case-name: tests.namesrv.test_commands -*-
"""A name server without a network: fake connections, the clock of the test, a disk in memory."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from twisted.internet.defer import Deferred, succeed
from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from dledger.rocketmq.answering.answering import AnsweringSide
from dledger.rocketmq.answering.pieces import at_once
from dledger.rocketmq.namesrv.changes import ChangeableConfig
from dledger.rocketmq.namesrv.commands import NameServerCommands
from dledger.rocketmq.namesrv.config import NameServerConfig, name_server_from_mapping
from dledger.rocketmq.namesrv.key_values import KeyValues
from dledger.rocketmq.namesrv.registrations import BrokerTopics
from dledger.rocketmq.namesrv.routes import MasterAddresses, RouteTable
from dledger.testing.world.memory_disk import MemoryDisk
from protocols.rocketmq.commands import CommandConnection
from protocols.wire.remoting import RemotingCommand, encode_command
from tests.protocols.fakes import FakeTransport, plug, sent_commands, turn_of

KV = "kv/kvConfig.json"


def header_of(
    *, name: str = "bk", address: str = "127.0.0.1:1", cluster: str = "C", broker_id: int = 0
) -> dict[str, str]:
    """The header of a registration."""
    return {"brokerName": name, "brokerAddr": address, "clusterName": cluster, "brokerId": str(broker_id),
            "haServerAddr": "127.0.0.1:9"}


def registration_document(topics: BrokerTopics) -> bytes:
    """The uncompressed body of a registration, as 4.9 writes it."""
    table = {
        name: {
            "order": False, "perm": queues.perm, "readQueueNums": queues.read_queue_nums,
            "topicFilterType": "SINGLE_TAG", "topicName": name, "topicSysFlag": queues.sys_flag,
            "writeQueueNums": queues.write_queue_nums,
        }
        for name, queues in topics.topics.items()
    }
    return json.dumps({
        "filterServerList": list(topics.filter_servers or ()),
        "topicConfigSerializeWrapper": {
            "dataVersion": topics.version.document(), "topicConfigTable": table,
        },
    }, ensure_ascii=False, separators=(",", ":")).encode("utf-8")


class WholeRoutes(RouteTable):
    """A table whose work in pieces is done at once."""

    def register(self, *arguments: Any, **options: Any) -> MasterAddresses:
        """See L{RouteTable.registering}."""
        return at_once(self.registering(*arguments, **options))


def run_now(call: Callable[[], None]) -> Deferred[None]:
    """A disk thread that has no thread."""
    call()
    return succeed(None)


class NameServerCase(SynchronousTestCase):
    """One name server; C{answers_as} and further options are set by subclasses."""

    options: Mapping[str, object] = {}  # noqa: RUF012

    def setUp(self) -> None:
        self.clock = Clock()
        self.disk = MemoryDisk()
        self.make()

    def make(self) -> None:
        """Start it (again), on the same disk."""
        self.config: NameServerConfig = name_server_from_mapping({
            "kv": KV, "change_hosts": "*", **self.options,
        })
        self.routes = RouteTable(self.config.limits, is_5=self.config.is_5)
        self.values = KeyValues(self.disk, KV, run_now, entries_max=self.config.kv_entries_max,
                                bytes_max=self.config.kv_bytes_max)
        self.values.load()
        self.changeable = ChangeableConfig(self.config)
        self.commands = NameServerCommands(self.changeable, self.routes, self.values, clock=self.clock)
        self.side = AnsweringSide(turn_of(self.clock), [self.commands], gate=self.commands.gate)
        self.connection, self.transport = self.connect()

    def connect(self) -> tuple[CommandConnection, FakeTransport]:
        """A new connection."""
        connection = self.side.buildProtocol(None)
        assert connection is not None
        return connection, plug(connection)

    def ask(
        self, code: int, fields: Mapping[str, str] | None = None, body: bytes = b"", *, version: int = 409,
        over: tuple[CommandConnection, FakeTransport] | None = None, flag: int = 0,
    ) -> RemotingCommand:
        """The answer to one request."""
        found = self.asked(code, fields, body, version=version, over=over, flag=flag)
        self.assertEqual(len(found), 1)
        return found[0]

    def asked(
        self, code: int, fields: Mapping[str, str] | None = None, body: bytes = b"", *, version: int = 409,
        over: tuple[CommandConnection, FakeTransport] | None = None, flag: int = 0,
    ) -> list[RemotingCommand]:
        """All answers to one request."""
        connection, transport = over or (self.connection, self.transport)
        before = len(sent_commands(transport.value()))
        connection.dataReceived(encode_command(RemotingCommand(
            code=code, opaque=7, flag=flag, version=version, language="JAVA", ext_fields=fields or {},
            body=body,
        )))
        self.clock.advance(0)
        return sent_commands(transport.value())[before:]
