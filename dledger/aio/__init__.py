# -*- test-case-name: tests.aio -*-
"""
The client for asyncio::

    async with dledger.aio.connect("n0-host:20911;n1-host:20911;n2-host:20911") as log:
        index = (await log.append(b"hello")).index
        async for entry in log.tail(index, follow=True):
            ...

It runs in the program's event loop, asyncio's or uvloop's: no thread, no second reactor.
"""

from __future__ import annotations

from dledger.aio.log import AsyncLog, connect

__all__ = ("AsyncLog", "connect")
