"""
pytest with pytest-asyncio: tests of a program that uses a log.

    pytest test_events.py

The fixture opens the log in the event loop of each test and closes it after it; no thread and no reactor of
Twisted is in the way.
"""

import os
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

import dledger


@pytest_asyncio.fixture
async def log() -> AsyncIterator[dledger.AsyncLog]:
    """The log of a group that runs."""
    async with dledger.AsyncLog(os.environ["DLEDGER_PEERS"]) as found:
        yield found


@pytest.mark.asyncio
async def test_comes_back(log: dledger.AsyncLog) -> None:
    """An event that was appended is at the place that the answer names."""
    done = await log.append(b"an event of a test")
    async for entry in log.tail(done.index, follow=True):
        assert (entry.index, entry.body) == (done.index, b"an event of a test")
        break


@pytest.mark.asyncio
async def test_conditional(log: dledger.AsyncLog) -> None:
    """Of two appends that expect the same end, one succeeds."""
    end = (await log.append(b"first")).index
    await log.append(b"second", expected_end=end)
    with pytest.raises(dledger.Conflict):
        await log.append(b"third", expected_end=end)
