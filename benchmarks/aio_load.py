# -*- test-case-name: tests.processes.test_load -*-
"""
The load of C{benchmarks.load} by the client for asyncio, in asyncio's own loop: as many tasks as
C{benchmarks.client_load} has calls, each of which appends its part of the window again and again.
"""

from __future__ import annotations

import asyncio
import time

import dledger
from benchmarks.client_load import CALLS
from benchmarks.load import LoadError, Meter, Sample
from dledger.client.errors import AppendError
from dledger.values.errors import DLedgerError


def run_aio(*, peers: str, group: str, body: bytes, window: int, warm_up_s: float, seconds: float) -> Sample:
    """
    Keep C{window} appends unanswered until the time is over.

    @raise LoadError: no leader was found in time.
    """
    return asyncio.run(_run(peers, group, body, window, warm_up_s, seconds))


async def _run(
    peers: str, group: str, body: bytes, window: int, warm_up_s: float, seconds: float
) -> Sample:
    async with dledger.AsyncLog(peers, group=group, wire="binary") as log:
        try:
            await log.metadata()
        except DLedgerError as error:
            raise LoadError(str(error)) from error
        begin_s = time.perf_counter() + warm_up_s
        meter = Meter(begin_s=begin_s, end_s=begin_s + seconds)
        calls = min(CALLS, window)
        tasks = [
            asyncio.create_task(_append(log, meter, (body,) * (window // calls + (number < window % calls))))
            for number in range(calls)
        ]
        await asyncio.sleep(warm_up_s + seconds)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        return meter.sample()


async def _append(log: dledger.AsyncLog, meter: Meter, bodies: tuple[bytes, ...]) -> None:
    while True:
        sent_s = time.perf_counter()
        try:
            if len(bodies) == 1:
                await log.append(bodies[0])
            else:
                await log.append_many(bodies)
        except AppendError as error:
            meter.not_done(str(error), len(bodies))
            await asyncio.sleep(0.1)
            continue
        now_s = time.perf_counter()
        if now_s < meter.end_s:
            meter.acknowledged(sent_s, now_s, len(bodies))
