# -*- test-case-name: tests.processes.test_admin_tls -*-
"""The administration of real members by TLS and with tokens: who is served, who is refused, and new keys."""

from __future__ import annotations

import http.client
import json
import socket
import ssl
import subprocess
import sys
from pathlib import Path
from typing import Any

import attrs

from dledger.base.serving.tokens import new_token
from dledger.base.tls.certificates import issue
from dledger.values.rights import ClientRole
from dledger.values.tls_files import TlsFiles
from tests.base.keys import KeyRoom
from tests.processes.children import free_ports, wait_until
from tests.processes.members import ROOT, Member
from tests.processes.test_group import FILES
from tests.processes.test_tls import LONG_S, TlsCase


class AdminTlsTests(TlsCase):
    """Three members whose pages are by TLS, with a token for what changes something."""

    def setUp(self) -> None:
        super().setUp()
        self.ports = dict(zip(self.group.peers, free_ports(3), strict=True))
        self.tokens = self.directory / "tokens"
        self.token, line = new_token("ops")
        self.tokens.write_text(line)
        for peer_id, port in self.ports.items():
            keys = {f"tls_{name}": path for name, path in attrs.asdict(self.keys(peer_id)).items()}
            self.group.members[peer_id] = Member(
                peer_id, self.group.peers, self.directory / peer_id,
                options={**FILES, **keys, "admin_tls": True, "admin_token_file": str(self.tokens)},
                extra=("--admin", f"tcp:{port}:interface=127.0.0.1"),
            )
            self.group.members[peer_id].start()
        self.client = self.log(ClientRole.ADMIN)

    def keys(self, peer_id: str) -> TlsFiles:
        """A new certificate of a member, which names its address, too."""
        made = issue(self.room.authority, peer_id, members=(peer_id,), hosts=("127.0.0.1",), days=30)
        return self.room.keep(peer_id, made)

    def ask(
        self, peer_id: str, method: str, path: str, token: str = "", *, room: KeyRoom | None = None
    ) -> tuple[int, Any, dict[str, Any]]:
        """Status, document and certificate of an answer. @param room: of the authority that is believed."""
        believed = str((room or self.room).directory / "authority.pem")
        connection = http.client.HTTPSConnection(
            "127.0.0.1", self.ports[peer_id], timeout=20, context=ssl.create_default_context(cafile=believed)
        )
        try:
            connection.request(method, path, headers={"Authorization": f"Bearer {token}"} if token else {})
            shown: Any = connection.sock.getpeercert() if connection.sock is not None else {}
            answer = connection.getresponse()
            body = answer.read().decode()
            return answer.status, json.loads(body) if body[:1] == "{" else body, shown
        finally:
            connection.close()

    def command(self, *words: str, status: int = 0) -> str:
        """The output of a C{dledger} command, which has the token, and no keys."""
        token_path = self.directory / "token"
        token_path.write_text(self.token)
        done = subprocess.run(
            [sys.executable, "-c", "from dledger.cli.main import main; main()", "--admin-authority",
             str(self.room.directory / "authority.pem"), "--admin-token-file", str(token_path), *words],
            cwd=ROOT, capture_output=True, text=True, timeout=240,
        )
        self.assertEqual(done.returncode, status, f"{words}: {done.stdout}{done.stderr}")
        return done.stdout

    def url(self, peer_id: str) -> str:
        """Its administration."""
        return f"https://127.0.0.1:{self.ports[peer_id]}"

    def test_life(self) -> None:
        """Strangers read at most, a token's holder moves leadership; new tokens and keys need no restart."""
        self.client.append(b"one")
        leader = self.settled(self.client)
        follower = next(one for one in self.group.peers if one != leader)
        self.refusals(leader, follower)
        # What Prometheus does.
        code, metrics, _ = self.ask(leader, "GET", "/metrics")
        self.assertEqual(code, 200)
        self.assertRegex(metrics, r"dledger_tls_certificate_end_seconds\{[^}]*\} 1\.\d+e\+09")
        code, answer, _ = self.ask(leader, "POST", "/flush", self.token)
        self.assertEqual((code, answer["flushed_index"] >= answer["end_index"]), (200, True), answer)
        code, answer, _ = self.ask(leader, "POST", f"/transfer?to={follower}", self.token)
        self.assertEqual((code, answer.get("leader_id")), (200, follower), answer)
        self.settled(self.client, leader=follower)
        self.commands(follower)
        self.new_keys(follower, leader)

    def refusals(self, leader: str, follower: str) -> None:
        """Nothing of this moves leadership or ends the pages."""
        for token, code in (("", 401), ("wrong", 401), (self.token[:-1], 401)):
            for path in (f"/transfer?to={follower}", "/flush", "/status", "/nowhere"):
                self.assertEqual(self.ask(leader, "POST", path, token)[0], code, path)
        stranger = KeyRoom(self.directory / "stranger")
        self.assertRaises(ssl.SSLError, self.ask, leader, "GET", "/status", room=stranger)
        with socket.create_connection(("127.0.0.1", self.ports[leader]), timeout=20) as plain:
            plain.sendall(f"POST /flush HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {self.token}"
                          "\r\n\r\n".encode())
            heard = b""
            try:
                while data := plain.recv(4096):
                    heard += data
            except ConnectionError:
                pass
        self.assertNotIn(b"HTTP", heard)
        self.assertEqual(self.settled(self.client), leader)

    def commands(self, leader: str) -> None:
        """The command line, by URL alone, and with keys for the log ports."""
        shown = json.loads(self.command("status", "--json", *(
            word for one in self.group.peers for word in ("--admin", self.url(one))
        )))
        self.assertEqual({row["member_id"]: row["source"] for row in shown},
                         dict.fromkeys(self.group.peers, "admin"))
        self.assertIn("flushed up to", self.command("flush", "--admin", self.url(leader)))
        keys = attrs.asdict(self.room.client("reader", ClientRole.READ))
        by_log = [word for name, path in keys.items() for word in (f"--tls-{name}", path)]
        shown = json.loads(self.command(*by_log, "--peers", self.group.peers_text, "cluster", "--json"))
        # Members report their pages, which are found by the name of the member.
        self.assertEqual([bool(row["version"]) for row in shown["members"]], 3 * [True])

    def new_keys(self, leader: str, follower: str) -> None:
        """Tokens at once, certificates within some seconds."""
        new, line = new_token("night")
        self.tokens.write_text(line)
        wait_until(lambda: self.ask(leader, "POST", "/flush", self.token)[0] == 401, seconds=LONG_S,
                   what="the old token is out")
        self.assertEqual(self.ask(leader, "POST", "/flush", new)[0], 200)
        before = self.ask(follower, "GET", "/healthz")[2]["serialNumber"]
        self.keys(follower)
        wait_until(lambda: self.ask(follower, "GET", "/healthz")[2]["serialNumber"] != before,
                   seconds=LONG_S, what="the new certificate is shown")

    def test_beyond_loopback(self) -> None:
        """Without TLS and a token a member does not start; without its file of tokens, neither."""
        wide = f"tcp:{free_ports(1)[0]}:interface=0.0.0.0"
        for words, reason in (
            (("--admin", wide), "other machines can reach it"),
            (("--admin", "tcp:0", "--set", "admin_token_file=nowhere"), "=nowhere: No such file"),
        ):
            done = subprocess.run(
                [sys.executable, "-m", "twisted", "--log-format=text", "dledger", "--store", "alone",
                 "--peers", f"n0-127.0.0.1:{free_ports(1)[0]}", *words],
                cwd=self.directory, capture_output=True, text=True, timeout=240,
                env={"PYTHONPATH": str(ROOT), "PATH": str(Path(sys.executable).parent)},
            )
            self.assertNotEqual(done.returncode, 0)
            self.assertIn(reason, done.stdout + done.stderr)
