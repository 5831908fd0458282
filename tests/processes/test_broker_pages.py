# -*- test-case-name: tests.processes.test_broker_pages -*-
"""
The commands of docs/ha.md, docs/raft-broker.md and docs/namesrv.md, as they are printed there.

The options that give a program ports of the tests' own are added at the end of its command.
"""

from __future__ import annotations

import re

from dledger.rocketmq.client.blocking import Broker
from tests.processes.children import Child, free_ports, free_triple, wait_until
from tests.processes.members import ended_well
from tests.processes.pages import PageCase, commands, file_of

SERVES = "its log ends at"
NAMES = "name server listens"
#: What RocketMQ's distribution has in C{conf/broker.conf}.
_ROCKETMQ_CONF = """
brokerClusterName = DefaultCluster
brokerName = broker-a
brokerId = 0
deleteWhen = 04
fileReservedTime = 48
brokerRole = ASYNC_MASTER
flushDiskType = ASYNC_FLUSH
"""


def local(port: int) -> str:
    """The endpoint of a port on loopback."""
    return f"tcp:{port}:interface=127.0.0.1"


class BrokerPageCase(PageCase):
    """Programs with ports of ours."""

    def started(self, name: str, command: str, until: str, **options: str) -> Child:
        """A program of the page. @param options: as C{listen="tcp:..."}, added to the command."""
        words = " ".join(f"--{option.replace('_', '-')} {text}" for option, text in options.items())
        return self.start_printed(name, f"{command.partition(' #')[0].rstrip()} {words}", until=until)

    def wait_printed(self, command: str, has: str, others: dict[str, str]) -> None:
        """Repeat a command that looks, until its output has a text."""
        said = [""]

        def has_it() -> bool:
            said.append(self.run_printed(command, others=others))
            return re.search(has, said[-1], re.DOTALL) is not None

        wait_until(has_it, seconds=60, what=f"{has!r} of {command}", every=0.3, notify=lambda: said[-1])

    def end(self, *children: Child) -> None:
        """Stop them in order."""
        for child in children:
            self.assertTrue(ended_well(child.stop(seconds=60)), child.log_tail())


class AloneTests(BrokerPageCase):
    """One broker, and a name server."""

    def test_running(self) -> None:
        """Each way to start one; it answers, and a name server has it."""
        plain, with_names, from_file, named, status = commands("ha.md", "Running a broker")
        name_server, placed, from_conf, in_broker, brokers = commands("namesrv.md", "The name server")
        self.assertEqual(in_broker.partition(" #")[0].rstrip(), with_names.partition(" #")[0].rstrip())
        (self.directory / "broker.conf").write_text(_ROCKETMQ_CONF)
        names, page, port = *free_ports(2), free_triple()
        address = {"127.0.0.1:10911": f"127.0.0.1:{port}"}
        for number, command in enumerate((plain, with_names, from_file)):
            at = {"namesrv_listen": local(names)} if command is with_names else {}
            broker = self.started(f"broker{number}", command, SERVES, listen=local(port), **at)
            self.assertIn("#SlaveNum", self.run_printed(status, others=address))
            self.end(broker)
        (self.directory / "namesrv.conf").write_text(f"listenPort={names}\nbindAddress=127.0.0.1\n")
        self.end(self.started("names0", name_server, NAMES, listen=local(names)))
        self.end(self.started("names1", from_conf, NAMES))
        place = self.directory / "names" / "kvConfig.json"
        server = self.started("names2", self.placed(placed, {
            "tcp:9876:interface=10.0.0.9": local(names), "/srv/namesrv/kvConfig.json": str(place),
            "--admin 8080": f"--admin {page}"}), NAMES)
        self.assertIn('{"brokers": []}', self.run_printed(brokers, others={"8080": str(page)}))
        broker = self.started("named", self.placed(named, {
            "10.0.0.9:9876": f"127.0.0.1:{names}", "/srv/broker": str(self.directory / "broker"),
            "twistd -n": "twistd -n --pidfile="}),  # (as the page says of a second program)
            SERVES, listen=local(port))
        self.wait_printed(brokers, '"broker-a"', {"8080": str(page)})
        self.end(broker, server)

    def test_change_hosts(self) -> None:
        """The hosts that may change something are among the options in force."""
        (command,) = commands("namesrv.md", "Who may change something")
        names, page = free_ports(2)
        server = self.started("names", command, NAMES, listen=local(names), admin=local(page))
        self.assertIn('"10.0.7.0/24"', self.run_printed(f"curl -s http://127.0.0.1:{page}/config"))
        self.end(server)

    def test_pages(self) -> None:
        """The status; a batch of messages by native frames, and the tail that shows them."""
        start, status = commands("ha.md", "Pages and metrics")
        (tail,) = commands("ha.md", "Frames of our own")
        page, port = free_ports(1)[0], free_triple()
        start = self.placed(start, {"tcp:8090": local(page)})
        broker = self.started("broker", start, SERVES, listen=local(port))
        self.assertIn('"role": "ASYNC_MASTER"', self.run_printed(status, others={"8090": str(page)}))
        program = "from dledger.rocketmq.client.blocking import Broker\nbodies = [b'one', b'two']\n"
        program += self.placed(file_of("ha.md", "Frames of our own"), {"host:10911": f"127.0.0.1:{port}"})
        (self.directory / "send.py").write_text(program)
        self.run_printed("python send.py")
        follower = self.start_printed("tail", tail, others={"host:10911": f"127.0.0.1:{port}"}, until='"two"')
        self.assertEqual(follower.log_path.read_text("utf-8").count('"topic": "orders"'), 3)
        self.end(broker)


class PairTests(BrokerPageCase):
    """A master and its slave."""

    def test_without_name_server(self) -> None:
        """The slave is OK, and has what the master acknowledges."""
        first, second, status = commands("ha.md", "Ours and ours")
        port, other = free_triple(), free_triple()
        master = self.started("a", first, SERVES, listen=local(port))
        slave = self.started("b", self.placed(second, {
            "--listen 20911": f"--listen {local(other)}",
            "127.0.0.1:10912": f"127.0.0.1:{port + 1}"}), SERVES)
        self.check(status, port, other)
        self.end(slave, master)

    def test_with_name_server(self) -> None:
        """As beside a broker of RocketMQ, but both ends are ours."""
        (first,) = commands("ha.md", "Master of ours, slave of RocketMQ")
        (second,) = commands("ha.md", "Master of RocketMQ, slave of ours")
        *_, status = commands("ha.md", "Ours and ours")
        port, other, names = free_triple(), free_triple(), free_ports(1)[0]
        at = {"127.0.0.1:9876": f"127.0.0.1:{names}"}
        start = commands("raft-broker.md", "Three brokers")[0].partition(" --admin")[0]
        server = self.started("names", start, NAMES, listen=local(names))
        master = self.started("a", self.placed(first, at), SERVES, listen=local(port))
        slave = self.started("b", self.placed(
            second, {**at, "--listen 20911": f"--listen {local(other)}"}), SERVES)
        self.check(status, port, other)
        self.end(slave, master, server)

    def check(self, status: str, port: int, other: int) -> None:
        """The slave of the master at C{port} becomes OK, and has the next message."""
        self.wait_printed(status, r"#InSyncSlaveNum\s+1\n.*127\.0\.0\.1:\d+ .* OK ", {
            "127.0.0.1:10911": f"127.0.0.1:{port}"})
        with Broker(f"127.0.0.1:{port}") as broker:
            self.assertEqual(broker.put("orders", b"hello").status, "PUT_OK")
        self.assertIn("hello", self.run_printed(f"dledger tail --broker 127.0.0.1:{other} --topic orders"))


class RaftTests(BrokerPageCase):
    """Three brokers on a raft log."""

    def test_three(self) -> None:
        """One leads, and all three have registered; C{ha-status} names the command for such a log."""
        name_server, start, health, brokers = commands("raft-broker.md", "Three brokers")
        names, page, *ports = free_ports(5)
        clients = [free_triple() for _ in ports]
        (printed,) = re.findall(r"--peers '(.*?)'", health)
        peers = ";".join(f"n{number}-127.0.0.1:{port}" for number, port in enumerate(ports))
        server = self.started("names", self.placed(name_server, {"--admin 8080": f"--admin {page}"}), NAMES,
                              listen=local(names))
        children = []
        for number, port in enumerate(clients):
            (self.directory / f"n{number}.conf").write_text(self.placed(
                file_of("raft-broker.md", "Three brokers"), {
                    "10.0.0.9:9876": f"127.0.0.1:{names}", "/var/lib/rocketmq": f"./store{number}",
                    printed: peers, "dLegerSelfId=n0": f"dLegerSelfId=n{number}"}))
            children.append(self.started(f"n{number}", self.placed(start, {"n0.conf": f"n{number}.conf"}),
                                         "", listen=local(port)))
        self.wait_printed(brokers, r'"broker_ids": \[\s+0\s', {"8080": str(page)})
        said = self.run_printed(health, others={printed: peers})
        self.assertEqual(sorted(line.split()[1:] for line in said.splitlines()),
                         [["ok", "follower"], ["ok", "follower"], ["ok", "leader"]])
        for port in clients:
            self.wait_printed(brokers, f"127.0.0.1:{port}", {"8080": str(page)})
        said = self.run_printed(f"dledger ha-status --broker 127.0.0.1:{clients[0]}", status=1)
        self.assertIn("its log is a raft group: ask the members with dledger health", said)
        self.end(*children, server)
