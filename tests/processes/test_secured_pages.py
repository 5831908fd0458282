# -*- test-case-name: tests.processes.test_secured_pages -*-
"""
The commands of docs/security.md, and those of docs/raft-broker.md that make keys, as they are printed there.

pip is not run, see L{tests.test_pages}.
"""

from __future__ import annotations

from cryptography import x509

from tests.processes.children import Child, free_ports, free_triple, peers_text, wait_until
from tests.processes.pages import commands, shown
from tests.processes.test_broker_pages import NAMES, SERVES, BrokerPageCase, local

_GROUP, _TOKENS, _BROKERS = "A secured group in three steps", "Tokens for clients", "TLS of brokers"
_NAMES, _ACCOUNTS = "TLS of name servers", "Access control of brokers"
_PEERS, _CLIENT_PEERS = "'n0-...;n1-...;n2-...'", "--peers ..."


class SecuredCase(BrokerPageCase):
    """With an authority, and certificates of members and clients."""

    def setUp(self) -> None:
        super().setUp()
        _, self.make_keys, self.start, self.append = commands("security.md", _GROUP)
        self.run_printed(self.make_keys)

    def member(self, name: str, peers: str, words: str = "") -> Child:
        """A member of the page, started."""
        command = self.placed(self.start, {
            _PEERS: f"'{peers}'", "--node-id n0": f"--node-id {name}", "./n0": f"./{name}",
            "keys/n0.pem": f"keys/{name}.pem", "keys/n0.key": f"keys/{name}.key"})
        return self.start_printed(name, command + words, until="listens on")

    def python(self, program: str) -> None:
        """Run a program in the directory of the keys."""
        (self.directory / "program.py").write_text(program)
        self.run_printed("python program.py")


class GroupTests(SecuredCase):
    """Members with TLS."""

    def test_three_steps(self) -> None:
        """A client with a certificate appends, one without does not; new certificates need no restart."""
        addresses = {f"n{number}": f"127.0.0.1:{port}" for number, port in enumerate(free_ports(3))}
        peers = peers_text(addresses)
        members = [self.member(name, peers) for name in addresses]
        at = {_CLIENT_PEERS: f"--peers '{peers}'"}
        self.assertIn("appended 1 entry", self.run_printed(self.append, others=at))
        (program,) = shown("security.md", _GROUP, "python")
        self.python(f"import dledger\npeers = {peers!r}\n{program}")
        said = self.run_printed(f"dledger --timeout 1 --peers '{peers}' append hello", status=1)
        self.assertIn("the member may want TLS", said)
        (renew,) = commands("security.md", "New certificates")
        self.run_printed(renew)
        self.assertTrue((self.directory / "keys" / "n0.pem.old").exists())
        for member in members:
            wait_until(lambda member=member: "new TLS keys are in use" in member.log_path.read_text("utf-8"),
                       seconds=60, what="new keys", notify=member.log_tail)
        self.assertIn("appended 1 entry", self.run_printed(self.append, others=at))
        self.end(*members)

    def test_tokens(self) -> None:
        """A client without a certificate appends with its token, also in a program."""
        make, append = commands("security.md", _TOKENS)
        self.run_printed(make)
        peers = f"n0-127.0.0.1:{free_ports(1)[0]}"
        member = self.member("n0", peers, " --group orders --bootstrap --set client_token_file=tokens")
        at = {_CLIENT_PEERS: f"--peers {peers}"}
        self.assertIn("appended 1 entry", self.run_printed(append, others=at))
        (program,) = shown("security.md", _TOKENS, "python")
        self.python(f"import dledger\npeers = {peers!r}\n"
                    f"text = open('orders.token').read().strip()\n{program}")
        self.end(member)

    def test_raft_broker(self) -> None:
        """Each certificate has its member's id, the group and the broker."""
        (make,) = commands("raft-broker.md", "Who may read at the member's port")
        self.run_printed(make, others={"certs keys": "certs others"})
        text = (self.directory / "others" / "n1.pem").read_bytes()
        names = x509.load_pem_x509_certificate(text).extensions.get_extension_for_class(
            x509.SubjectAlternativeName)
        self.assertEqual([str(one.value) for one in names.value],
                         ["n1", "dledger:broker:broker-a", "dledger:group:broker-a"])


class BrokerTests(SecuredCase):
    """A broker and a name server with TLS."""

    def test_tls(self) -> None:
        """A client with a certificate is answered; one without learns what may be wrong."""
        make, start, status = commands("security.md", _BROKERS)
        self.run_printed(make)
        port = free_triple()
        broker = self.started("broker", start, SERVES, listen=local(port))
        at = {"127.0.0.1:10911": f"127.0.0.1:{port}"}
        self.assertIn("#SlaveNum", self.run_printed(status, others=at))
        said = self.run_printed(f"dledger ha-status --broker 127.0.0.1:{port}", status=1)
        self.assertIn("Perhaps one end wants TLS, and the other does not", said)
        self.end(broker)

    def test_name_server(self) -> None:
        """The broker registers by TLS."""
        make, start, broker_start, brokers = commands("security.md", _NAMES)
        self.run_printed(commands("security.md", _BROKERS)[0])
        self.run_printed(make)
        names, page = free_ports(2)
        server = self.started("names", self.placed(start, {"--admin 8080": f"--admin {page}"}), NAMES,
                              listen=local(names))
        broker = self.started("broker", self.placed(broker_start, {"10.0.0.9:9876": f"127.0.0.1:{names}"}),
                              SERVES, listen=local(free_triple()))
        self.wait_printed(brokers, '"broker-a"', {"8080": str(page)})
        self.end(broker, server)


class AccountTests(BrokerPageCase):
    """A broker with accounts."""

    def test_accounts(self) -> None:
        """The administrator sees the status, the program sends; without an account nobody does."""
        _, start, status = commands("security.md", _ACCOUNTS)
        (accounts,) = shown("security.md", _ACCOUNTS, "yaml")
        (program,) = shown("security.md", _ACCOUNTS, "python")
        (self.directory / "plain_acl.yml").write_text(accounts)
        (self.directory / "tools.yml").write_text("accessKey: operations\nsecretKey: another-secret\n")
        port = free_triple()
        start = self.placed(start, {"/etc/rocketmq/": ""})
        broker = self.started("broker", start, SERVES, listen=local(port))
        at = {"10.0.0.1:10911": f"127.0.0.1:{port}"}
        self.assertIn("#SlaveNum", self.run_printed(status, others=at))
        said = self.run_printed(f"dledger ha-status --broker 127.0.0.1:{port}", status=1)
        self.assertIn("this broker has access control", said)
        (self.directory / "send.py").write_text(self.placed(program, at))
        self.run_printed("python send.py")
        self.end(broker)
