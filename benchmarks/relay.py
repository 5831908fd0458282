# -*- test-case-name: tests.test_latency -*-
"""
The least work that a replicated append can be: a leader that writes each message to a file, sends it to two
followers, and answers its client when the first of them has written it, too. No format, no checks, no terms.

    python -m benchmarks.relay epoll|twisted leader|follower SIZE FILE [PORT PORT]

Each process prints its port; a leader is given those of two followers. C{epoll} is plain Python with one
epoll loop, C{twisted} is protocols on Twisted's reactor.
"""

from __future__ import annotations

import os
import select
import socket
import sys
from collections.abc import Callable

#: Size of the file; when it is full, writing goes on at its beginning.
FILE_BYTES = 64 * 1024 * 1024
ANSWER = bytes(8)


class Target:
    """A file that is written round and round."""

    def __init__(self, path: str, size: int) -> None:
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)
        os.posix_fallocate(self._file, 0, FILE_BYTES)
        self._size = size
        self._offset = 0

    def write(self, data: bytes) -> None:
        """Write one message."""
        os.pwrite(self._file, data, self._offset)
        self._offset = (self._offset + self._size) % (FILE_BYTES - self._size)


def listener() -> socket.socket:
    """A port that is free, printed."""
    listening = socket.create_server(("127.0.0.1", 0))
    sys.stdout.write(f"{listening.getsockname()[1]}\n")
    sys.stdout.flush()
    return listening


def dialled(port: int) -> socket.socket:
    """A connection without delay."""
    link = socket.create_connection(("127.0.0.1", port))
    link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return link


def run_epoll(role: str, size: int, path: str, ports: list[int]) -> None:
    """Serve one client until it ends the connection."""
    target, followers = Target(path, size), [dialled(port) for port in ports]
    client, _ = listener().accept()
    client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    poll = select.epoll()
    for link in (client, *followers):
        link.setblocking(False)
        poll.register(link.fileno(), select.EPOLLIN)
    links = {link.fileno(): link for link in (client, *followers)}
    counts = {link.fileno(): 0 for link in followers}
    kept, answered = b"", 0
    while True:
        for number, _ in poll.poll():
            data = links[number].recv(65536)
            if not data:
                return
            if number != client.fileno():
                counts[number] += len(data)
                if max(counts.values()) // len(ANSWER) > answered:
                    answered += 1
                    client.send(ANSWER)
                continue
            kept += data
            if len(kept) < size:
                continue
            message, kept = kept[:size], kept[size:]
            target.write(message)
            for follower in followers:
                follower.send(message)
            if role == "follower":
                client.send(ANSWER)


def run_twisted(role: str, size: int, path: str, ports: list[int]) -> None:
    """Serve one client until it ends the connection."""
    from twisted.internet import reactor as installed
    from twisted.internet.endpoints import TCP4ClientEndpoint, TCP4ServerEndpoint, connectProtocol
    from twisted.internet.protocol import Factory, Protocol

    reactor: object = installed
    target = Target(path, size)
    followers: list[FromFollower] = []
    clients: list[FromClient] = []

    class FromFollower(Protocol):
        count = 0
        answered = 0

        def connectionMade(self) -> None:
            self.transport.setTcpNoDelay(True)

        def dataReceived(self, data: bytes) -> None:
            self.count += len(data)
            if max(one.count for one in followers) // len(ANSWER) > FromFollower.answered:
                FromFollower.answered += 1
                clients[0].transport.write(ANSWER)

    class FromClient(Protocol):
        kept = b""

        def connectionMade(self) -> None:
            self.transport.setTcpNoDelay(True)
            clients.append(self)

        def dataReceived(self, data: bytes) -> None:
            self.kept += data
            if len(self.kept) < size:
                return
            message, self.kept = self.kept[:size], self.kept[size:]
            target.write(message)
            for one in followers:
                one.transport.write(message)
            if role == "follower":
                self.transport.write(ANSWER)

        def connectionLost(self, reason: object = None) -> None:
            if reactor.running:
                reactor.stop()

    for port in ports:
        one = FromFollower()
        followers.append(one)
        connectProtocol(TCP4ClientEndpoint(reactor, "127.0.0.1", port), one)
    listening = TCP4ServerEndpoint(reactor, 0, interface="127.0.0.1").listen(Factory.forProtocol(FromClient))
    listening.addCallback(lambda port: (sys.stdout.write(f"{port.getHost().port}\n"), sys.stdout.flush()))
    reactor.run()


KINDS: dict[str, Callable[[str, int, str, list[int]], None]] = {"epoll": run_epoll, "twisted": run_twisted}


def main() -> None:
    """Run one process."""
    kind, role, size, path, *ports = sys.argv[1:]
    KINDS[kind](role, int(size), path, [int(port) for port in ports])


if __name__ == "__main__":
    main()
