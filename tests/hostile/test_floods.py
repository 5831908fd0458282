# -*- test-case-name: tests.hostile.test_floods -*-
"""Many connections, many requests, requests that are slow to parse: the group serves its client."""

from __future__ import annotations

import socket
import struct
import threading
import time

import dledger
from dledger.client.errors import AppendFailed, UnknownOutcome
from protocols.wire.ledger.codes import Consistency, RequestCode
from protocols.wire.ledger.messages import GetRequest, MetadataRequest
from protocols.wire.remoting import RemotingCommand, encode_command
from tests.hostile.target import MIB, HostileCase, frames, notify, send_slowly
from tests.processes.children import peers_text

GET = b"GET /%s HTTP/1.1\r\nHost: localhost\r\n\r\n"


class ParsingTests(HostileCase):
    """Bodies that are slow to parse."""

    def test_loose_json(self) -> None:
        """Eight connections send large and small bodies of loose JSON, as fast as the member takes them."""
        leader = self.wait_for_leader()
        large = b"{'x':[" + b"{'a':1}," * 30_000 + b"1]}"
        small = b"{'x':[" + b"{'a':1}," * 500 + b"1]}"
        values = b'{"x":[' + b'{"a":1},' * 60_000 + b"1]}"
        self.serve_through(
            lambda: self.flood(leader, [large, small, values], connections=8, seconds=4.0), share=0.05
        )
        self.assert_all_alive()
        self.assertEqual(self.wait_for_leader(), leader)

    def flood(self, peer_id: str, bodies: list[bytes], *, connections: int, seconds: float) -> None:
        """Send METADATA requests with these bodies."""
        stop = time.monotonic() + seconds
        data = [
            encode_command(RemotingCommand(code=int(RequestCode.METADATA), opaque=1, body=body))
            for body in bodies
        ]

        def work(number: int) -> None:
            while time.monotonic() < stop:
                try:
                    with socket.create_connection(self.host_port(peer_id), timeout=2) as connection:
                        while time.monotonic() < stop:
                            if not send_slowly(connection, data[number % len(data)] * 3, seconds=1.0):
                                break
                except OSError:
                    time.sleep(0.05)

        threads = [threading.Thread(target=work, args=(number,)) for number in range(connections)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def host_port(self, peer_id: str) -> tuple[str, int]:
        """The address of a member."""
        host, _, port = self.peers[peer_id].rpartition(":")
        return host, int(port)


class ReadsTests(HostileCase):
    """Clients that ask for more than the member can send."""

    def test_many_that_read(self) -> None:
        """
        Two hundred connections ask for 700 large entries each, in one piece, and read no answer: the client
        waits for slices of them, not for all.
        """
        leader = self.wait_for_leader()
        with dledger.connect(peers_text(self.peers), timeout=20.0) as log:
            first = min(log.append(b"x" * MIB).index for _ in range(10))
        base = {"group": "default", "remote_id": leader}
        asked = frames(*(
            GetRequest(**base, begin_index=first + number % 10, consistency=Consistency.COMMITTED)
            for number in range(700)
        ))

        def attack() -> None:
            held = [self.connect(leader) for _ in range(200)]
            for connection in held:
                connection.setblocking(False)
                try:
                    connection.send(asked)
                except OSError:
                    pass
            time.sleep(4)
            for connection in held:
                connection.close()

        self.serve_through(attack, share=0.05, longest_ms=1000.0)
        self.assert_all_alive()
        self.assertEqual(self.wait_for_leader(), leader)


class AdminTests(HostileCase):
    """The pages of the administration."""

    def ask(self, peer_id: str, data: bytes) -> socket.socket:
        """A connection on which C{data} was sent."""
        connection = socket.create_connection(("127.0.0.1", self.admin[peer_id]), timeout=5)
        self.addCleanup(connection.close)
        send_slowly(connection, data, seconds=1.0)
        return connection

    def test_pipelined_pages(self) -> None:
        """1,700 pipelined requests in one send, again and again, for each page."""
        leader = self.wait_for_leader()

        def attack() -> None:
            stop = time.monotonic() + 4
            while time.monotonic() < stop:
                for page in (b"metrics", b"status", b"cluster"):
                    self.ask(leader, GET % page * 1700)
                    self.ask(leader, GET % page * 4)

        self.serve_through(attack, share=0.3)
        self.assert_all_alive()
        self.assertEqual(self.wait_for_leader(), leader)

    def test_bodies(self) -> None:
        """A body of 2 GB is refused at its header."""
        leader = self.wait_for_leader()
        connection = self.ask(
            leader, b"POST /status HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2000000000\r\n\r\n"
        )
        self.assertIn(b" 413 ", connection.recv(65536))

    def test_foreign_host(self) -> None:
        """A page of another site cannot read ours under its own name."""
        leader = self.wait_for_leader()
        connection = self.ask(leader, b"GET /status HTTP/1.1\r\nHost: evil.example.com\r\n\r\n")
        self.assertIn(b" 421 ", connection.recv(65536))


class ConnectionTests(HostileCase):
    """Many connections, with few descriptors."""

    descriptors = 300

    def test_idle_connections(self) -> None:
        """A thousand idle connections to each member: all live, the client is served, new clients get in."""

        def attack() -> None:
            for _ in range(1000):
                for peer_id in self.peers:
                    try:
                        self.connect(peer_id)
                    except OSError:
                        pass
            time.sleep(1)

        self.serve_through(attack, share=0.2)
        self.assert_all_alive()
        self.assertTrue(self.calm(1.0).latencies_s)

    def test_places_taken(self) -> None:
        """
        Idle clients have all places that one address may have: the client that was there goes on, and a late
        one is refused before anything of it is in the log.
        """
        leader = self.wait_for_leader()
        idle: list[socket.socket] = []
        with dledger.connect(peers_text(self.peers), timeout=20.0) as early:
            early.append(b"early")
            for peer_id in self.peers:
                ask = frames(MetadataRequest(group="default", remote_id=peer_id))
                for _ in range(150):
                    idle.append(self.connect(peer_id))
                    idle[-1].sendall(ask)
            time.sleep(0.5)
            with self.assertRaises(AppendFailed) as caught, dledger.connect(
                peers_text(self.peers), timeout=3.0
            ) as late:
                late.append(b"late")
            self.assertNotIsInstance(caught.exception, UnknownOutcome)
            self.assertIn("which is the share of one address", str(caught.exception))
            for number in range(100):
                early.append(b"%d" % number)
            for connection in idle:
                connection.close()
        self.assertEqual(self.wait_for_leader(), leader)
        with dledger.connect(peers_text(self.peers), timeout=20.0) as late:
            late.append(b"late")
        self.assert_all_alive()

    def test_log(self) -> None:
        """Strangers do not fill the log: broken frames, refused connections."""
        self.calm(1.0)
        before = self.log_bytes()
        for _ in range(300):
            for peer_id in self.peers:
                for data in (b"GET / HTTP/1.0\r\n\r\n", struct.pack(">i", -1), b"\x16\x03\x01", b"\xd1\x07"):
                    try:
                        with socket.create_connection(self.address(peer_id), timeout=2) as connection:
                            connection.sendall(data)
                    except OSError:
                        pass
        grown = self.log_bytes() - before
        notify(f"logs grew by {grown} bytes")
        self.assertLess(grown, 20_000)
        self.assert_all_alive()

    def address(self, peer_id: str) -> tuple[str, int]:
        """The address of a member."""
        host, _, port = self.peers[peer_id].rpartition(":")
        return host, int(port)
