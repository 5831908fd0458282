# -*- test-case-name: tests.aio.test_tail -*-
"""Tails in an event loop whose waits are cancelled, and that are left."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from twisted.trial.unittest import SynchronousTestCase

from dledger.base.forks import OpenedHere
from tests.aio.served import ServedGroup, play


class AsyncTailTests(SynchronousTestCase):
    """The next call, after the end of a wait."""

    def played(self, story: Any) -> None:
        """Nothing is left behind."""
        self.assertEqual(play(story), [])

    def test_a_cancelled_wait_leaves_nothing_out(self) -> None:
        """Wherever it is cancelled: the next call goes on."""

        async def story(group: ServedGroup) -> None:
            group.log += [b"%d" % number for number in range(40)]
            async with group.open() as log:
                opens: list[Callable[[int], Any]] = [log.tail, log.tail_batches]
                for opened in opens:
                    tail, found = opened(0), list[bytes]()
                    for turns in range(2000):
                        waiting = asyncio.ensure_future(anext(tail))
                        for _ in range(turns % 23):
                            await asyncio.sleep(0)
                        waiting.cancel()
                        try:
                            one = await waiting
                            found += getattr(one, "bodies", None) or [one.body]
                        except asyncio.CancelledError:
                            await asyncio.sleep(0.001)
                        if len(found) == 40:
                            break
                    self.assertEqual(found, group.log)
                    await tail.aclose()
                    self.assertEqual([one async for one in tail], [])

        self.played(story)

    def test_a_timed_wait_at_the_end_goes_on(self) -> None:
        """A program that looks what is new, and does something else meanwhile."""

        async def story(group: ServedGroup) -> None:
            async with group.open() as log:
                await log.append(b"a")
                tail = log.tail(0, follow=True)
                self.assertEqual((await anext(tail)).body, b"a")
                for _ in range(3):
                    with self.assertRaises(TimeoutError):
                        async with asyncio.timeout(0.02):
                            await anext(tail)
                await log.append(b"b")
                async with asyncio.timeout(20):
                    self.assertEqual((await anext(tail)).body, b"b")

        self.played(story)

    def test_a_tail_that_is_left_is_closed(self) -> None:
        """Whoever drops it leaves no request behind; a copy in a child that was forked closes nothing."""

        async def story(group: ServedGroup) -> None:
            async with group.open() as log:
                await log.append(b"a")
                for is_here in (False, True):
                    entries = log.tail(0, follow=True)
                    await anext(entries)
                    tail = entries.batches.tail
                    if not is_here:
                        self.patch(OpenedHere, "is_here", False)
                        entries.batches.__del__()
                        self.patch(OpenedHere, "is_here", True)
                    else:
                        del entries
                    await asyncio.sleep(0.01)
                    self.assertEqual(tail.is_closed, is_here)

        self.played(story)
