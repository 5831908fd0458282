# -*- test-case-name: tests.interop.test_links -*-
"""Connections that lose bytes in one direction."""

from __future__ import annotations

import contextlib
import socket

from twisted.trial.unittest import SynchronousTestCase

from tests.interop.links import Links
from tests.processes.children import free_ports, wait_until


class LinksTests(SynchronousTestCase):
    """Two members; the second one listens."""

    def setUp(self) -> None:
        """A link from a to b, and a connection over it."""
        here, there = free_ports(2)
        self.listener = socket.create_server(("127.0.0.1", there))
        self.addCleanup(self.listener.close)
        self.links = Links({"a": f"127.0.0.1:{here}", "b": f"127.0.0.1:{there}"})
        self.addCleanup(self.links.close)
        self.near, self.far = self.connect()

    def connect(self) -> tuple[socket.socket, socket.socket]:
        """Both ends of a connection that a makes to b."""
        host, _colon, port = self.links.peers_of("a")["b"].rpartition(":")
        near = socket.create_connection((host, int(port)), timeout=5)
        far, _address = self.listener.accept()
        far.settimeout(5)
        self.addCleanup(near.close)
        self.addCleanup(far.close)
        return near, far

    def test_own_address(self) -> None:
        """A member gets its own address, and links in place of the others'."""
        self.assertEqual(self.links.peers_of("b")["b"], f"127.0.0.1:{self.listener.getsockname()[1]}")
        self.assertNotEqual(self.links.peers_of("a")["b"], self.links.peers_of("b")["b"])

    def test_both_ways(self) -> None:
        """Without a loss, both directions work."""
        self.near.sendall(b"question")
        self.assertEqual(self.far.recv(100), b"question")
        self.far.sendall(b"answer")
        self.assertEqual(self.near.recv(100), b"answer")

    def test_one_way(self) -> None:
        """Bytes from a are lost, bytes from b arrive; after the loss the connection is aborted."""
        self.links.lose(("a", "b"))
        self.near.sendall(b"lost")
        wait_until(lambda: self.links.lost["a", "b"] == 4, seconds=5, what="four lost bytes")
        self.far.sendall(b"heard")
        self.assertEqual(self.near.recv(100), b"heard")
        self.links.heal()
        with contextlib.suppress(ConnectionResetError):
            self.assertEqual(self.far.recv(100), b"")
        near, far = self.connect()
        near.sendall(b"again")
        self.assertEqual(far.recv(100), b"again")
