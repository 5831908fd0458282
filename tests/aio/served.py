# -*- test-case-name: tests.aio.test_log -*-
"""Members in memory behind real sockets of an event loop, for a test that is one coroutine."""

from __future__ import annotations

import asyncio
import gc
import warnings
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from twisted.internet.task import Clock

from dledger.client.aio import AsyncLog
from tests.client.fakes import FakeGroup, FakeMember, Wire

#: Seconds that one test may take.
PATIENCE_S = 30.0


class _Served(asyncio.Protocol):
    """One connection to a member."""

    def __init__(self, member: FakeMember) -> None:
        self._member = member

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        self.wire = Wire(self._member, self)
        self._member.wires.append(self.wire)

    def data_received(self, data: bytes) -> None:
        self.wire.outbox += data
        self._member.deliver(self.wire)

    def dataReceived(self, data: bytes) -> None:
        """The member answers."""
        self.transport.write(data)

    def connection_lost(self, exc: Exception | None) -> None:
        if self.wire.is_open:
            self.wire.is_open = False
            self._member.wires.remove(self.wire)

    def connectionLost(self, reason: object) -> None:
        """The member ends it."""
        self.transport.abort()


class ServedGroup(FakeGroup):
    """
    A group that listens on free ports.

    @ivar servers: by member id.
    """

    def __init__(self) -> None:
        super().__init__(clock=Clock())
        self.servers: dict[str, asyncio.Server] = {}

    async def start(self) -> None:
        """Listen."""
        loop = asyncio.get_running_loop()
        for member_id, member in self.members.items():
            member.refuses_polls = True
            server = await loop.create_server(partial(_Served, member), "127.0.0.1", 0)
            self.servers[member_id] = server
            self.peers[member_id] = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"

    def stop(self, member_id: str) -> None:
        """The member refuses connections, and ends those that it has."""
        self.servers.pop(member_id).close()
        for wire in [*self.members[member_id].wires]:
            wire.protocol.transport.abort()

    @property
    def is_connected(self) -> bool:
        """Whether a connection to a member is open."""
        return any(member.wires for member in self.members.values())

    def open(self, **options: Any) -> AsyncLog:
        """A log of this group."""
        return AsyncLog(self.peers, **options)


def play(story: Callable[[ServedGroup], Awaitable[object]]) -> list[str]:
    """
    Run a coroutine with a group, in a loop of its own.

    @return: the complaints of the loop, and of Python about unclosed objects: none is right.
    """
    said: list[str] = []

    async def run() -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: said.append(str(context)))
        group = ServedGroup()
        await group.start()
        try:
            async with asyncio.timeout(PATIENCE_S):
                await story(group)
        finally:
            for member_id in [*group.servers]:
                group.stop(member_id)
            while group.is_connected:
                await asyncio.sleep(0)

    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always", ResourceWarning)
        asyncio.run(run())
        gc.collect()
    return said + [str(one.message) for one in warned if one.category is ResourceWarning]
