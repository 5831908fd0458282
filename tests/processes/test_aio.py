# -*- test-case-name: tests.processes.test_aio -*-
"""The client for asyncio with real members, in the loops of asyncio and uvloop."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import uvloop

import dledger
from dledger.client.errors import UnknownOutcome
from dledger.values.rights import ClientRole
from tests.processes.test_tls import LONG_S, TlsCase

#: How a program with either loop begins.
RUNS: dict[str, Callable[[Any], object]] = {"asyncio": asyncio.run, "uvloop": uvloop.run}


class AioTests(TlsCase):
    """One group for each test."""

    def play(self, story: Callable[..., Awaitable[object]], **options: Any) -> None:
        """In both loops."""

        async def bounded(kind: str) -> None:
            async with asyncio.timeout(3 * LONG_S), dledger.AsyncLog(
                self.group.peers, timeout=LONG_S, **options
            ) as log:
                await story(log, kind)

        for kind, run in RUNS.items():
            run(bounded(kind))

    def test_tls(self) -> None:
        """By TLS, as any other client."""
        self.begin()

        async def story(log: dledger.AsyncLog, kind: str) -> None:
            placed = await log.append(kind.encode())
            self.assertEqual((await log.get(placed.index)).body, kind.encode())

        self.play(story, tls=self.room.client("writer", ClientRole.APPEND))

    def test_leader_is_lost(self) -> None:
        """Fifty tasks write while the leader is killed: each acknowledged entry is there, in its place."""
        self.group.start()

        async def story(log: dledger.AsyncLog, kind: str) -> None:
            placed: dict[int, bytes] = {}

            async def write(number: int) -> None:
                for count in range(60):
                    body = f"{kind} {number} {count}".encode()
                    try:
                        placed[(await log.append(body)).index] = body
                    except UnknownOutcome:
                        continue
                    if count == 20 and not number:
                        leader_id = (await log.metadata()).member_id
                        self.group.members[leader_id].kill()

            await log.append(b"first")
            await asyncio.gather(*(write(number) for number in range(50)))
            self.assertGreater(len(placed), 1500)
            found = {entry.index: entry.body async for entry in log.tail(0, follow=False)}
            self.assertEqual({index: found[index] for index in placed}, placed)
            self.group.start()

        self.play(story)
        self.group.wait_settled(seconds=LONG_S)
