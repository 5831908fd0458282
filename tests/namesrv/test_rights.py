# -*- test-case-name: tests.namesrv.test_rights -*-
"""Who may change something at a name server, and who may speak for a broker."""

from __future__ import annotations

import json
from collections.abc import Mapping

from twisted.internet.address import IPv4Address
from twisted.logger import LogEvent, LogLevel, capturedLogs

from dledger.rocketmq.namesrv.commands import CHANGES, OF_BROKERS, READS, name_server_change
from protocols.rocketmq.commands import CommandConnection, hosts_of
from protocols.wire.remoting import RemotingCommand
from tests.namesrv.support import NameServerCase, header_of
from tests.namesrv.test_commands import topics
from tests.protocols.fakes import FakeTransport

BODY = topics("A", "B")
TOPIC = {"queueDatas": [{"brokerName": "bk", "readQueueNums": 4, "writeQueueNums": 4, "perm": 6}]}


class RightsCase(NameServerCase):
    """A name server that only its own machine may change; a broker has registered at it from 10.0.0.1."""

    options: Mapping[str, object] = {"change_hosts": ""}  # noqa: RUF012

    def setUp(self) -> None:
        super().setUp()
        self.broker = self.connect_from("10.0.0.1")
        self.assertEqual(self.ask(103, header_of(), BODY, over=self.broker).code, 0)

    def connect_from(self, host: str) -> tuple[CommandConnection, FakeTransport]:
        """A connection from there."""
        connection, transport = self.connect()
        transport.peerAddr = IPv4Address("TCP", host, 4711)
        return connection, transport

    def code(self, host: str, code: int, fields: Mapping[str, str] | None = None, body: bytes = b"") -> int:
        """Of the answer to a request from there."""
        return self.ask(code, fields, body, over=self.connect_from(host)).code


class ChangesTests(RightsCase):
    """Requests of administrators."""

    def test_every_request_is_classified(self) -> None:
        """Each in one table, and nothing else; 4.9 has fewer of them."""
        tables = [set(READS), set(OF_BROKERS), set(CHANGES)]
        self.assertEqual(sum(map(len, tables)), len(set().union(*tables)))
        self.assertEqual(set(self.side.codes), set().union(*tables))
        for code in range(2000):  # one that no table names is a change
            change = name_server_change(RemotingCommand(code=code, opaque=1))
            self.assertEqual(bool(change), code not in READS | OF_BROKERS, code)

    def test_from_another_machine(self) -> None:
        """Refused with a code, and a sentence that names the option; nothing has changed."""
        for code in CHANGES:
            answer = self.ask(code, {"namespace": "N", "key": "k", "value": "v", "brokerName": "bk",
                                     "topic": "A"}, over=self.connect_from("10.0.0.7"))
            self.assertEqual(answer.code, 16)
            for part in (f"(request {code}) is a change", "10.0.0.7", "changeHosts"):
                self.assertIn(part, str(answer.remark))
        self.assertIsNone(self.values.get("N", "k"))
        self.assertEqual(self.routes.topics["A"]["bk"].perm, 6)

    def test_from_this_machine(self) -> None:
        """As ever."""
        for host in ("127.0.0.1", "::1", "::ffff:127.0.0.1"):
            for code in CHANGES:
                found = self.code(host, code, {"namespace": "N", "key": "k", "value": "v", "topic": "A"})
                self.assertEqual(found, 0, code)

    def test_the_rest(self) -> None:
        """Clients and brokers ask from everywhere."""
        for code in READS:
            self.assertNotEqual(self.code("10.0.0.7", code, {"topic": "A"}), 16, code)
        self.assertEqual(self.code("10.0.0.7", 103, header_of(name="x", address="10.0.0.7:1"), BODY), 0)


class HostsTests(RightsCase):
    """The option."""

    options: Mapping[str, object] = {"change_hosts": "10.0.0.0/28;fd00::7"}  # noqa: RUF012

    def test_hosts(self) -> None:
        """And no others."""
        for host, code in (("10.0.0.7", 0), ("::ffff:10.0.0.7", 0), ("fd00::7", 0), ("10.0.0.17", 16)):
            self.assertEqual(self.code(host, 216, {"topic": "Z"}), code, host)

    def test_shown(self) -> None:
        """Among the options; not changed while the server runs."""
        line = "changeHosts=10.0.0.0/28;fd00::7\n"
        self.assertIn(line, self.ask(319).body.decode())
        self.assertEqual(self.code("127.0.0.1", 318, body=line.encode()), 0)
        self.assertEqual(self.code("127.0.0.1", 318, body=b"changeHosts=*"), 1)


class BrokersTests(RightsCase):
    """What brokers say about themselves."""

    def route(self) -> object:
        """The addresses of the broker."""
        group = self.routes.groups.get("bk")
        return None if group is None else dict(group.addresses)

    def test_unregister(self) -> None:
        """Over the connection of the registration; by others, also of that host, it is a change."""
        for fields in (header_of(), header_of(cluster="other"), header_of(name="other")):
            for host in ("10.0.0.1", "10.0.0.7"):
                self.assertEqual(self.code(host, 104, fields), 16, fields)
        self.assertEqual(self.route(), {0: "127.0.0.1:1"})
        self.assertEqual(self.ask(104, header_of(), over=self.broker).code, 0)
        self.assertIsNone(self.route())
        self.ask(103, header_of(), BODY, over=self.broker)
        self.assertEqual(self.code("127.0.0.1", 104, header_of()), 0)
        self.assertIsNone(self.route())

    def test_nobody(self) -> None:
        """To unregister what is not there changes nothing."""
        self.assertEqual(self.code("10.0.0.7", 104, header_of(name="x", address="10.0.0.7:1")), 0)

    def test_register_topic(self) -> None:
        """Of its own."""
        body = json.dumps(TOPIC).encode()
        self.assertEqual(self.code("10.0.0.7", 217, {"topic": "N"}, body), 16)
        self.assertNotIn("N", self.routes.topics)
        of_nobody = body.replace(b"bk", b"unknown")
        self.assertEqual(self.code("10.0.0.7", 217, {"topic": "N"}, of_nobody), 0)  # as in Java
        self.assertNotIn("N", self.routes.topics)
        self.assertEqual(self.ask(217, {"topic": "N"}, body, over=self.broker).code, 0)
        self.assertIn("N", self.routes.topics)

    def register(self, host: str, **header: object) -> list[LogEvent]:
        """Somebody registers from there. @return: the warnings."""
        connection = self.connect_from(host)
        with capturedLogs() as logs:
            answer = self.ask(103, header_of(**header), BODY, over=connection)  # type: ignore[arg-type]
        self.assertEqual(answer.code, 0)
        return [one for one in logs if one["log_level"] is LogLevel.warn]

    def test_overtaking(self) -> None:
        """The last registration counts, as in Java; from another host the log warns, once."""
        (reported,) = self.register("10.0.0.7", address="10.0.0.7:1")
        self.assertEqual(
            (reported["name"], reported["broker_id"], reported["address"], reported["host"],
             reported["before"],
             reported["before_host"]),
            ("bk", 0, "10.0.0.7:1", "10.0.0.7", "127.0.0.1:1", "10.0.0.1"),
        )
        self.assertEqual(self.route(), {0: "10.0.0.7:1"})
        self.assertEqual(self.register("10.0.0.8", address="10.0.0.8:1"), [])  # folded

    def test_reported(self) -> None:
        """Who takes a place hears whose it was, and it is counted; so the true one hears of the other."""
        found = self.ask(103, header_of(address="10.0.0.7:1"), BODY, over=self.connect_from("10.0.0.7"))
        self.assertEqual(found.ext_fields.get("otherBrokerAddr"), "127.0.0.1:1")
        again = self.ask(103, header_of(), BODY, over=self.broker)
        self.assertEqual(again.ext_fields.get("otherBrokerAddr"), "10.0.0.7:1")
        self.assertEqual((self.commands.overtaken, self.commands.overtaking_refused), (2, 0))
        self.assertNotIn("otherBrokerAddr", self.ask(103, header_of(), BODY, over=self.broker).ext_fields)

    def test_with_certificates(self) -> None:
        """Only one that names the broker takes the place of a live one; the same host always may."""
        shown = {"10.0.0.7": ["dledger:broker:other"], "10.0.0.8": ["dledger:broker:bk"]}
        self.commands.uris_of = lambda connection: shown.get(hosts_of(connection)[0], [])
        for header in ({"address": "10.0.0.7:1"}, {"name": "x"}):
            with capturedLogs() as logs:
                found = self.ask(103, header_of(**header), BODY, over=self.connect_from("10.0.0.7"))
            self.assertEqual(found.code, 16)
            self.assertIn("only a certificate that names dledger:broker:", str(found.remark))
            self.assertIn(LogLevel.error, [one["log_level"] for one in logs])
        self.assertEqual(self.route(), {0: "127.0.0.1:1"})
        self.assertEqual(len(self.register("10.0.0.1", address="127.0.0.1:3")), 1)
        self.assertEqual(self.register("10.0.0.7", name="new", address="10.0.0.7:1"), [])
        self.assertEqual(self.register("10.0.0.8", address="10.0.0.8:1"), [])  # folded
        self.assertEqual((self.commands.overtaken, self.commands.overtaking_refused), (2, 2))

    def test_two_brokers_of_one_host(self) -> None:
        """
        With one name, as it is that of the host by default: each hears of the other, which lives. The next
        registration of one alone says nothing, nor does one over another connection.
        """
        (reported,) = self.register("10.0.0.1", address="127.0.0.1:3")
        self.assertEqual((reported["address"], reported["before"]), ("127.0.0.1:3", "127.0.0.1:1"))
        again = self.ask(103, header_of(), BODY, over=self.broker)
        self.assertEqual(again.ext_fields.get("otherBrokerAddr"), "127.0.0.1:3")
        self.assertNotIn("otherBrokerAddr", self.ask(103, header_of(), BODY, over=self.broker).ext_fields)
        over = self.connect_from("10.0.0.1")
        self.assertNotIn("otherBrokerAddr", self.ask(103, header_of(), BODY, over=over).ext_fields)
        self.assertEqual(self.commands.overtaken, 2)

    def test_same_address(self) -> None:
        """A registration of the broker's own address by another host, under whatever name."""
        self.assertEqual(len(self.register("10.0.0.7", name="other")), 1)
        self.assertEqual(len(self.register("10.0.0.8")), 1)

    def test_restart(self) -> None:
        """A broker that comes back on its host, over a new connection or then at a new port, is no news."""
        self.assertEqual(self.register("10.0.0.1"), [])
        over = self.connect_from("10.0.0.1")
        self.ask(103, header_of(), BODY, over=over)
        over[0].connectionLost()
        self.assertEqual(self.register("::ffff:10.0.0.1", address="127.0.0.1:2"), [])
        self.assertEqual(self.register("10.0.0.7", address="127.0.0.1:3", broker_id=1), [])

    def test_the_one_before_is_gone(self) -> None:
        """A master that takes over after the end of the last one."""
        self.broker[0].connectionLost()
        self.assertEqual(self.register("10.0.0.7", address="10.0.0.7:1"), [])
