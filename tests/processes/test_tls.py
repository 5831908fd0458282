# -*- test-case-name: tests.processes.test_tls -*-
"""Real members with TLS: they elect and replicate as without, and strangers change nothing."""

from __future__ import annotations

import socket
import ssl
import tempfile
from collections.abc import Mapping
from pathlib import Path

import attrs
from twisted.trial.unittest import SynchronousTestCase

import dledger
from dledger.client.blocking import Log
from dledger.values.rights import ClientRole
from protocols.wire.codes import ResponseCode
from protocols.wire.ledger.messages import HeartBeatRequest, Request, VoteRequest
from protocols.wire.ledger.push import encode_request_frame
from tests.base.keys import KeyRoom
from tests.processes.children import peers_text, wait_until
from tests.processes.members import Group, Member, ended_well
from tests.processes.test_group import FILES

#: Seconds within which a group on a busy machine must have done something.
LONG_S = 60.0


class TlsCase(SynchronousTestCase):
    """A directory of keys, and members that use them."""

    def setUp(self) -> None:
        held = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        self.addCleanup(held.cleanup)
        self.directory = Path(held.name)
        self.room = KeyRoom(self.directory / "keys")
        self.group = Group(self.directory, options=FILES)
        self.addCleanup(self.group.kill)

    def options(self, peer_id: str) -> dict[str, object]:
        """The options of a member for its keys."""
        return {f"tls_{name}": path for name, path in attrs.asdict(self.room.member(peer_id)).items()}

    def begin(self, **more: object) -> None:
        """Start all members with TLS."""
        for peer_id in self.group.peers:
            self.put(peer_id, {**self.options(peer_id), **more})
            self.group.members[peer_id].start()

    def put(self, peer_id: str, options: Mapping[str, object]) -> None:
        """The next start of a member has these options."""
        self.group.members[peer_id] = Member(
            peer_id, self.group.peers, self.directory / peer_id, options={**FILES, **options}
        )

    def log(self, *roles: ClientRole, room: KeyRoom | None = None, timeout: float = LONG_S) -> Log:
        """A client with these roles."""
        files = (room or self.room).client("-".join(roles) or "nobody", *roles)
        log = dledger.connect(peers_text(self.group.peers), timeout=timeout, tls=files)
        self.addCleanup(log.close)
        return log

    def wait_said(self, member: Member, text: str) -> None:
        """Wait until C{text} is in the log of a member."""
        wait_until(lambda: text in member.log_path.read_text(), seconds=LONG_S, what=text)

    def settled(self, log: Log, *, leader: str | None = None) -> str:
        """Wait until all members are in step. @return: the leader."""
        found: list[str] = []

        def in_step() -> bool:
            said = log.status()
            ends = {info.committed_index for info in said} | {info.end_index for info in said}
            leaders = [info.member_id for info in said if info.role == "leader"]
            found[:] = leaders
            return len(ends) == 1 and len(leaders) == 1 and leader in (None, leaders[0])

        wait_until(in_step, seconds=LONG_S, what="members in step")
        return found[0]


class TlsGroupTests(TlsCase):
    """The usual life of a group."""

    def test_life(self) -> None:
        """Appends, a dead leader, its return, new keys without a restart, a clean stop."""
        self.begin()
        log = self.log(ClientRole.ADMIN)
        bodies = [b"entry %d" % number for number in range(300)]
        log.append_many(bodies)
        leader = self.settled(log)
        self.group.members[leader].kill()
        more = [b"without %d" % number for number in range(300)]
        log.append_many(more)
        self.group.members[leader].start()
        self.settled(log)
        self.assertEqual([entry.body for entry in log.tail(0) if entry.body], bodies + more)
        for peer_id in self.group.peers:
            self.room.member(peer_id, days=20)
        for member in self.group.members.values():
            self.wait_said(member, "new TLS keys are in use")
        follower = min(set(self.group.peers) - {self.settled(log)})
        self.group.members[follower].stop()
        self.group.members[follower].start()
        log.append(b"the last")
        self.settled(log)
        statuses = self.group.stop()
        self.assertTrue(all(ended_well(status) for status in statuses.values()), statuses)
        for member in self.group.members.values():
            self.assertNotIn("TLS: ", member.log_path.read_text())

    def test_from_plain_to_tls(self) -> None:
        """One member after the other, three times: listen to both, speak TLS, refuse the rest; no loss."""
        self.group.start()
        self.group.leader()
        with dledger.connect(self.group.peers_text, timeout=LONG_S) as plain:
            plain.append(b"plain")
            others = ";".join(self.group.peers)
            for more in (
                {"tls_plain_hosts": "127.0.0.1", "tls_plain_members": others},
                {"tls_plain_hosts": "127.0.0.1"},
                {},
            ):
                for peer_id in self.group.peers:
                    self.group.members[peer_id].stop()
                    self.put(peer_id, {**self.options(peer_id), **more})
                    self.group.members[peer_id].start()
                    self.settled(self.log(ClientRole.READ) if not more else plain)
                if more:
                    plain.append(str(more).encode())
        log = self.log(ClientRole.APPEND)
        log.append(b"TLS")
        bodies = [entry.body for entry in log.tail(0) if entry.body]
        self.assertEqual((bodies[0], bodies[-1], len(bodies)), (b"plain", b"TLS", 4))
        plain = dledger.connect(self.group.peers_text, timeout=2.0)
        self.assertRaises(dledger.DLedgerError, plain.append, b"")


class StrangerTests(TlsCase):
    """Who must not get in, and what a client must not do."""

    def ask(self, address: str, context: ssl.SSLContext | None, request: Request) -> bytes:
        """Send one frame. @return: the answer, until the connection ends, or half a second is silent."""
        host, port = address.rsplit(":", 1)
        heard = b""
        try:
            with socket.create_connection((host, int(port)), timeout=LONG_S) as bare:
                stream = context.wrap_socket(bare) if context is not None else bare
                stream.sendall(encode_request_frame(request, 1))
                stream.settimeout(0.5)
                while data := stream.recv(65536):
                    heard += data
        except (OSError, ssl.SSLError):
            pass
        return heard

    def context(self, name: str | None, *roles: ClientRole) -> ssl.SSLContext:
        """A program that checks nothing, and shows the certificate of C{name}, if any."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        if name is not None:
            files = self.room.client(name, *roles) if roles else self.room.member(name)
            context.load_cert_chain(files.certificate, files.key)
        return context

    def test_strangers(self) -> None:
        """Forged votes and heartbeats, wrong or no keys, too few rights: refused, and the group serves."""
        self.begin()
        log = self.log(ClientRole.APPEND)
        log.append(b"first")
        leader = self.settled(log)
        term = log.append(b"term").term
        others = sorted(set(self.group.peers) - {leader})
        target, claimed = others[0], others[1]
        forged: list[Request] = [
            VoteRequest(group="default", remote_id=target, local_id=claimed, leader_id=claimed, term=term + 5,
                        ledger_end_index=1 << 20, ledger_end_term=term + 4),
            HeartBeatRequest(group="default", remote_id=target, local_id=claimed, leader_id=claimed,
                             term=term + 5),
        ]
        for context in (
            None, self.context(None), self.context("ops", ClientRole.ADMIN), self.context(leader),
        ):
            for request in forged:
                self.assertEqual(self.ask(self.group.peers[target], context, request), b"")
        elsewhere = self.log(room=KeyRoom(self.directory / "other"), timeout=2.0)
        self.assertRaises(dledger.DLedgerError, elsewhere.append, b"of another authority")
        for roles in ((), (ClientRole.READ,)):
            error = self.assertRaises(dledger.AppendFailed, self.log(*roles).append, b"not allowed")
            self.assertIs(error.code, ResponseCode.FORBIDDEN)
        self.assertIs(
            self.assertRaises(dledger.DLedgerError, self.log().get, 0).code, ResponseCode.FORBIDDEN
        )
        error = self.assertRaises(dledger.DLedgerError, log.transfer, target, term=term)
        self.assertIs(error.code, ResponseCode.FORBIDDEN)
        after = log.append(b"last")
        self.assertEqual(after.term, term, "an election was caused")
        self.settled(log, leader=leader)
        self.assertEqual([entry.body for entry in log.tail(0) if entry.body], [b"first", b"term", b"last"])
        text = self.group.members[target].log_path.read_text()
        self.assertIn("claim-refused", text)
        self.assertIn("handshake-failed", text)

    def test_stolen_name(self) -> None:
        """A process with the keys of one member that starts as another is not believed."""
        self.begin()
        log = self.log(ClientRole.APPEND)
        log.append(b"first")
        leader = self.settled(log)
        victim = min(set(self.group.peers) - {leader})
        thief = min(set(self.group.peers) - {leader, victim})
        self.group.members[victim].stop()
        self.put(victim, self.options(thief))
        self.group.members[victim].start()
        self.wait_said(self.group.members[leader], "of another name")
        self.assertNotEqual(log.append(b"second").index, -1)
        self.group.members[victim].stop()
        self.put(victim, self.options(victim))
        self.group.members[victim].start()
        self.settled(log)

    def test_missing_keys(self) -> None:
        """A start without sound keys is refused in one sentence; the files of the ledger are not opened."""
        options = {**self.options("n0"), "tls_key": str(self.directory / "no-such.key")}
        self.put("n0", options)
        member = self.group.members["n0"]
        member.start()
        self.assertNotEqual(member.wait(seconds=LONG_S), 0)
        self.assertIn("cannot start with TLS: tls_key=", member.log_tail())
        self.assertFalse(member.ledger_path.exists())
