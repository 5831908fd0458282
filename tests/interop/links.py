# -*- test-case-name: tests.interop.test_links -*-
"""
Loopback connections that lose the bytes from one member to another, while the other direction stays open.

Rule 1: every ordered pair of members has its own link: a port in place of the second member's, known only to
the first one.
Rule 2: bytes are lost in whole directions: bytes from C{a} to C{b} are dropped on the connections that C{a}
made and on those that C{b} made. A connection that has lost bytes cannot be decoded any more, so it is
aborted when the loss ends, as in a network that lets packets through again after a time-out.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import Future

from tests.processes.children import free_ports

_CHUNK_BYTES = 1 << 16
#: Observes a connection: called with the ids of its client and its server; returns the receivers of the bytes
#: from the first, and of those from the second.
Tap = Callable[[str, str], tuple[Callable[[bytes], None], Callable[[bytes], None]]]
_Accept = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


def _untapped(_data: bytes) -> None:
    """Ignore the bytes."""


class Links:
    """
    Forwarders between all members of a group, run by their own thread.

    @ivar lost: number of bytes dropped so far, by sender and receiver.
    """

    def __init__(self, peers: Mapping[str, str], *, tap: Tap | None = None) -> None:
        """@param peers: the addresses of the members, C{host:port} by id."""
        self._tap = tap
        self.lost: Counter[tuple[str, str]] = Counter()
        self._peers = dict(peers)
        pairs = [(source, target) for source in peers for target in peers if source != target]
        self._ports = dict(zip(pairs, free_ports(len(pairs)), strict=True))
        self._dropped: frozenset[tuple[str, str]] = frozenset()
        self._maimed: set[asyncio.StreamWriter] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._listen(), self._loop).result(10)

    def peers_of(self, source: str) -> dict[str, str]:
        """The peers in this member's configuration: its own address, and links in place of the others."""
        return {
            target: address if target == source else f"127.0.0.1:{self._ports[source, target]}"
            for target, address in self._peers.items()
        }

    def lose(self, *pairs: tuple[str, str]) -> None:
        """Drop all bytes from the first to the second of each pair from now on, and no others."""
        done: Future[None] = Future()

        def change() -> None:
            self._dropped = frozenset(pairs)
            for writer in self._maimed:
                writer.transport.abort()
            self._maimed.clear()
            done.set_result(None)

        self._loop.call_soon_threadsafe(change)
        done.result(10)

    def heal(self) -> None:
        """End all losses; connections that lost bytes are aborted."""
        self.lose()

    def close(self) -> None:
        """Stop listening and forwarding."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()
        for task in asyncio.all_tasks(self._loop):
            task.cancel()
        with contextlib.suppress(Exception):
            self._loop.run_until_complete(asyncio.sleep(0))
        self._loop.close()

    async def _listen(self) -> None:
        for (source, target), port in self._ports.items():
            await asyncio.start_server(self._accepter(source, target), "127.0.0.1", port)

    def _accepter(self, source: str, target: str) -> _Accept:
        async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            # At the end the task is cancelled, which the streams do not expect.
            with contextlib.suppress(asyncio.CancelledError):
                await connect(reader, writer)

        async def connect(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            host, _colon, port = self._peers[target].rpartition(":")
            try:
                far_reader, far_writer = await asyncio.open_connection(host, int(port))
            except OSError:
                writer.transport.abort()
                return
            there, back = self._tap(source, target) if self._tap else (_untapped, _untapped)
            await asyncio.gather(
                self._forward(reader, far_writer, (source, target), there),
                self._forward(far_reader, writer, (target, source), back),
                return_exceptions=True,
            )

        return accept

    async def _forward(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, way: tuple[str, str],
        tap: Callable[[bytes], None],
    ) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(_CHUNK_BYTES):
                if way in self._dropped:
                    self.lost[way] += len(data)
                    self._maimed.add(writer)
                    continue
                if writer in self._maimed:
                    break
                tap(data)
                writer.write(data)
                await writer.drain()
        self._maimed.discard(writer)
        writer.transport.abort()
