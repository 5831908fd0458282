# -*- test-case-name: tests.hostile.test_tls -*-
"""
Strangers at the ports of secured servers: each kind of wrong key sends each kind of forged message, many
times. All are refused, the group serves, and memory stays flat.

The members of the group are played by nobody: whoever forges has the wire, and sound or wrong keys.
"""

from __future__ import annotations

import contextlib
import os
import socket
import ssl
import struct
import tempfile
import threading
import warnings
from pathlib import Path

import attrs
from twisted.trial.unittest import SynchronousTestCase

from dledger.base.serving.tokens import new_token
from dledger.base.tls.certificates import CertifiedKey, issue
from dledger.values.rights import ClientRole
from dledger.values.tls_files import TlsFiles
from protocols.wire.ledger.codes import PushType
from protocols.wire.ledger.messages import AppendRequest, GetRequest, Request
from protocols.wire.ledger.push import encode_request_frame
from tests.base.keys import KeyRoom
from tests.hostile.forger import base, batch, beat, push, transfer, vote
from tests.hostile.target import MIB, notify, resident_mib
from tests.processes.brokers import Broker
from tests.processes.children import free_ports, free_triple, wait_until
from tests.processes.members import Member
from tests.processes.test_group import FILES
from tests.processes.test_tls import LONG_S, TlsCase

#: How often each stranger tries each message.
TRIES = int(os.environ.get("DLEDGER_TLS_TRIES", "12"))
#: More than this is no flat memory, MiB. (The first handshakes load parts of OpenSSL.)
GROWTH_MIB = 24.0
#: These may ask for a transfer: they are an administrator, or a member.
STOLEN = "stolen, while it lives"
MAY_TRANSFER = ("administrator", "another member", STOLEN)


def context_of(files: TlsFiles | None, *, old: bool = False) -> ssl.SSLContext:
    """A program that checks nothing. @param files: the certificate that it shows. @param old: TLS 1.1."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    if old:
        context.set_ciphers("ALL:@SECLEVEL=0")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            context.minimum_version = context.maximum_version = ssl.TLSVersion.TLSv1_1
    if files is not None:
        context.load_cert_chain(files.certificate, files.key)
    return context


class Strangers:
    """Keys of all wrong kinds: a name for each, and a context; None: without TLS."""

    def __init__(self, room: KeyRoom, other: KeyRoom, *, claimed: str, known: str) -> None:
        """@param claimed: the member whose name is used. @param known: another member of the group."""
        self.kinds: dict[str, ssl.SSLContext | None] = {
            "plain": None,
            "no certificate": context_of(None),
            "another authority": context_of(other.member(claimed)),
            "expired": context_of(self._kept(room, "expired", issue(
                room.authority, claimed, members=(claimed,), days=-1))),
            "downgraded": context_of(self._kept(room, "old", issue(
                room.authority, claimed, members=(claimed,), days=1)), old=True),
            "another member": context_of(self._kept(room, "known", issue(
                room.authority, known, members=(known,), days=1))),
            "no member": context_of(self._kept(room, "n9", issue(
                room.authority, "n9", members=("n9",), days=1))),
            "wildcards": context_of(room.client("wild", hosts=("*", "n*", claimed.upper(), f"{claimed}."))),
            "administrator": context_of(room.client("admin", ClientRole.ADMIN)),
        }

    @staticmethod
    def _kept(room: KeyRoom, name: str, made: CertifiedKey) -> TlsFiles:
        return room.keep(f"stranger-{name}", made)


def heard(address: str, context: ssl.SSLContext | None, data: bytes, *, seconds: float = 0.3) -> bytes:
    """The answer to C{data}, until the connection ends or is silent."""
    host, _, port = address.rpartition(":")
    got = b""
    with contextlib.suppress(OSError), socket.create_connection((host, int(port)), timeout=LONG_S) as bare:
        with bare if context is None else context.wrap_socket(bare) as stream:
            stream.sendall(data)
            stream.settimeout(seconds)
            while piece := stream.recv(65536):
                got += piece
    return got


class SecuredGroupTests(TlsCase):
    """Three members with TLS."""

    def forged(self, claimed: str, target: str, term: int) -> dict[str, Request]:
        """One of each kind, in the name of C{claimed}."""
        entries = batch(0, term=term + 5)
        return {
            "vote": vote(claimed, target, term + 5, ledger_end_index=1 << 20, ledger_end_term=term + 4),
            "heartbeat": beat(claimed, target, term + 5),
            "push": push(claimed, target, term + 5, PushType.APPEND, entries, commit_index=0),
            "truncate": push(claimed, target, term, PushType.TRUNCATE, entries),
            "transfer": transfer(claimed, target, term, giver=claimed, taker=target),
        }

    def test_every_stranger(self) -> None:
        """No message of any of them is answered as a member's, and no election is caused."""
        self.begin()
        log = self.log(ClientRole.APPEND)
        log.append(b"first")
        leader = self.settled(log)
        term = log.append(b"term").term
        others = sorted(set(self.group.peers) - {leader})
        target, away = others
        # (The true one is away: its own connection would keep a stranger out, too.)
        self.group.members[away].kill()
        strangers = Strangers(self.room, KeyRoom(self.directory / "other"), claimed=away, known=leader)
        # The key of a member itself is refused while that one lives.
        strangers.kinds[STOLEN] = context_of(self.room.keep("stolen", issue(
            self.room.authority, leader, members=(leader,), days=1)))
        peers = self.group.peers
        pid = self.group.members[target].pid
        before_mib, forged = 0.0, 0
        for attempt in range(TRIES):
            for who, context in strangers.kinds.items():
                claimed = leader if who == STOLEN else away
                for what, request in self.forged(claimed, target, term).items():
                    if what == "transfer" and who in MAY_TRANSFER:
                        continue
                    got = heard(peers[target], context, encode_request_frame(request, 1), seconds=0.05)
                    self.assertEqual(b"" if what == "transfer" else got, b"", f"{who}: {what}")
                    forged += 1
            if attempt == 1:
                before_mib = resident_mib(pid)
            self.assertEqual(log.append(b"under attack").term, term, "an election was caused")
        growth_mib = resident_mib(pid) - before_mib
        notify(f"{forged} forged messages of strangers; memory grew {growth_mib:.1f} MiB")
        self.assertLess(growth_mib, GROWTH_MIB)
        self.group.members[away].start()
        self.assertEqual(self.settled(log), leader)
        bodies = [entry.body for entry in log.tail(0) if entry.body]
        self.assertEqual(bodies, [b"first", b"term", *TRIES * [b"under attack"]])
        self.clients(strangers, term)
        text = self.group.members[target].log_path.read_text()
        self.assertNotIn("Traceback", text)
        self.assertLess(len(text), MIB)

    def clients(self, strangers: Strangers, term: int) -> None:
        """Nothing is read or appended with the keys of strangers, except by the administrator's."""
        address = self.group.peers["n0"]  # leads or not: a stranger learns nothing
        requests = (
            AppendRequest(**base(None, "n0", -1), bodies=(b"a stranger's",)),
            GetRequest(**base(None, "n0", -1), begin_index=0),
        )
        for who in ("plain", "no certificate", "another authority", "expired", "downgraded", "wildcards",
                    "no member"):
            for request in requests:
                got = heard(address, strangers.kinds[who], encode_request_frame(request, 1))
                self.assertNotIn(b"first", got, who)
        log = self.log(ClientRole.APPEND)
        self.assertNotIn(b"a stranger's", [entry.body for entry in log.tail(0)])
        self.assertEqual(log.append(b"last").term, term)


class Recorder(threading.Thread):
    """Passes one connection on, and keeps the bytes of the client."""

    def __init__(self, port: int) -> None:
        super().__init__(daemon=True)
        self.kept = b""
        self._to = port
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._server.getsockname()[1]

    def run(self) -> None:
        """One connection."""
        with self._server, contextlib.suppress(OSError):
            client, _ = self._server.accept()
            with client, socket.create_connection(("127.0.0.1", self._to)) as server:
                back = threading.Thread(target=self._pass, args=(server, client), daemon=True)
                back.start()
                while data := client.recv(65536):
                    self.kept += data
                    server.sendall(data)
                back.join(5)

    @staticmethod
    def _pass(source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                sink.sendall(data)


class ReplayTests(TlsCase):
    """The bytes of a request with a token, sent again."""

    def test_replayed_token(self) -> None:
        """By TLS they mean nothing: neither leadership moves, nor is the token in them."""
        (port,) = free_ports(1)
        token, line = new_token("ops")
        (self.directory / "tokens").write_text(line)
        options = {**FILES, **self.options("n0"), "admin_tls": True,
                   "admin_token_file": str(self.directory / "tokens")}
        member = self.group.members["n0"] = Member(
            "n0", {"n0": self.group.peers["n0"]}, self.directory / "n0", options=options,
            extra=("--admin", f"tcp:{port}:interface=127.0.0.1"),
        )
        member.start()
        self.wait_said(member, "listens on")
        request = f"POST /flush HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {token}\r\n\r\n".encode()
        context = context_of(None)
        wait_until(lambda: b" 200 " in heard(f"127.0.0.1:{port}", context, request), seconds=LONG_S,
                   what="the pages answer")
        recorder = Recorder(port)
        recorder.start()
        self.assertIn(b" 200 ", heard(f"127.0.0.1:{recorder.port}", context, request, seconds=2.0))
        recorder.join(10)
        self.assertNotIn(token.encode(), recorder.kept)
        asked = member.log_path.read_text().count("asks POST /flush")
        for _ in range(5):
            self.assertNotIn(b" 200 ", heard(f"127.0.0.1:{port}", None, recorder.kept))
        self.assertIn(b" 200 ", heard(f"127.0.0.1:{port}", context, request))
        self.assertEqual(member.log_path.read_text().count("asks POST /flush"), asked + 1)


class SlaveReportTests(SynchronousTestCase):
    """The port for slaves of a synchronous master that takes nothing but TLS."""

    def test_reports(self) -> None:
        """No stranger gets a byte of the log, and no report of one counts as a stored message."""
        held = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        self.addCleanup(held.cleanup)
        directory = Path(held.name)
        room = KeyRoom(directory / "keys")
        keys = {f"tls_{name}": path for name, path in attrs.asdict(room.member("broker")).items()}
        broker = Broker("a", directory, role="sync-master", port=free_triple(),
                        options={**keys, "tls_mode": "enforcing"})
        self.addCleanup(broker.kill)
        broker.start()
        wait_until(lambda: "listens at" in broker.log_path.read_text(), seconds=LONG_S, what="it listens")
        strangers = Strangers(room, KeyRoom(directory / "other"), claimed="slave", known="broker")
        believed = ("another member", "no member", "wildcards", "administrator")
        for who, context in strangers.kinds.items():
            if who in believed:
                continue  # every certificate of the authority is a slave's, see docs/security.md
            for said in (0, 1 << 20):
                got = heard(f"127.0.0.1:{broker.port + 1}", context, struct.pack(">q", said))
                self.assertEqual(got, b"", who)
        self.assertTrue(broker.is_running)
        self.assertNotIn("Traceback", broker.log_path.read_text())
