# -*- test-case-name: tests.aio.test_readers -*-
"""A named reader in an event loop: real sockets, members in memory."""

from __future__ import annotations

import asyncio
from typing import Any

from twisted.trial.unittest import SynchronousTestCase

from dledger.client.errors import LeaseHeld, LeaseLost
from dledger.values.errors import DLedgerError
from protocols.wire.ledger.readers import NO_END
from tests.aio.served import ServedGroup, play


class AsyncReaderTests(SynchronousTestCase):
    """Read, commit, cancel."""

    def played(self, story: Any) -> None:
        """Nothing is left behind."""
        self.assertEqual(play(story), [])

    def test_goes_on(self) -> None:
        """What was committed does not come again."""

        async def story(group: ServedGroup) -> None:
            group.log += [b"%d" % number for number in range(6)]
            async with group.open() as log:
                async with log.reader("billing") as reader:
                    async for entry in reader:
                        if entry.body == b"3":
                            break
                    self.assertEqual(await reader.commit(), 4)
                    self.assertGreaterEqual(reader.token, 6)
                    self.assertIn(":", reader.holder)
                async with log.reader("billing", follow=False) as reader:
                    self.assertEqual([entry.body async for entry in reader], [b"4", b"5"])
                (info,) = await log.readers()
                self.assertEqual((info.name, info.next_index), ("billing", 4))
                self.assertEqual(await log.move_reader("billing", 1), 1)
                await log.forget_reader("billing")
                self.assertEqual(await log.readers(), ())
                self.assertIsNone(await log.last_sequence("billing"))

        self.played(story)

    def test_commit_leaves_out(self) -> None:
        """Also what was read ahead."""

        async def story(group: ServedGroup) -> None:
            group.log += [b"%d" % number for number in range(6)]
            async with group.open() as log, log.reader("billing") as reader:
                self.assertEqual((await reader.__anext__()).body, b"0")
                await reader.commit(3)
                self.assertEqual((await reader.__anext__()).body, b"4")

        self.played(story)

    def test_cancelled(self) -> None:
        """Cancelling stops the wait; the reader goes on."""

        async def story(group: ServedGroup) -> None:
            group.log += [b"0"]
            async with group.open() as log, log.reader("billing", begin=NO_END) as reader:
                with self.assertRaises(TimeoutError):
                    async with asyncio.timeout(0.05):
                        await reader.__anext__()
                group.log.append(b"later")
                async with asyncio.timeout(20):
                    self.assertEqual((await reader.__anext__()).body, b"later")

        self.played(story)

    def test_cancelled_with_an_answer(self) -> None:
        """A wait that is cancelled when the entries are there leaves none of them out."""

        async def story(group: ServedGroup) -> None:
            group.log += [b"0", b"1", b"2"]
            async with group.open() as log, log.reader("billing", follow=False) as reader:
                waiting = asyncio.ensure_future(reader.__anext__())
                async with asyncio.timeout(20):
                    while not (reader._ahead is not None and reader._ahead.done()):
                        await asyncio.sleep(0)
                waiting.cancel()
                with self.assertRaises(asyncio.CancelledError):
                    await waiting
                self.assertEqual([entry.body async for entry in reader], [b"0", b"1", b"2"])

        self.played(story)

    def test_cancelled_often(self) -> None:
        """Wherever a wait is cancelled."""

        async def story(group: ServedGroup) -> None:
            group.log += [b"%d" % number for number in range(40)]
            found: list[bytes] = []
            async with group.open() as log, log.reader("billing", share=3) as reader:
                for turns in range(2000):
                    waiting = asyncio.ensure_future(reader.__anext__())
                    for _ in range(turns % 23):
                        await asyncio.sleep(0)
                    waiting.cancel()
                    try:
                        found.append((await waiting).body)
                    except asyncio.CancelledError:
                        await asyncio.sleep(0.001)
                    if len(found) == 40:
                        break
            self.assertEqual(found, [b"%d" % number for number in range(40)])

        self.played(story)

    def test_closed_after_the_log(self) -> None:
        """Nothing to do."""

        async def story(group: ServedGroup) -> None:
            group.log += [b"0"]
            log = group.open()
            await log.__aenter__()
            reader = log.reader("billing")
            await reader.__anext__()
            await log.__aexit__(None, None, None)
            await reader.close()

        self.played(story)

    def test_two(self) -> None:
        """The second one learns the name of the first; one whose reader was moved has lost its lease."""

        async def story(group: ServedGroup) -> None:
            group.log += [b"0", b"1"]
            async with group.open() as log:
                async with log.reader("billing", holder="me") as reader:
                    await reader.__anext__()
                    async with log.reader("billing", timeout=0.0) as second:
                        with self.assertRaisesRegex(LeaseHeld, "me reads as billing"):
                            await second.__anext__()
                    await log.move_reader("billing", 0)
                    with self.assertRaises(LeaseLost):
                        await reader.commit()
                    with self.assertRaises(LeaseLost):
                        await reader.__anext__()
                with self.assertRaises(DLedgerError):
                    log.reader("a\n")

        self.played(story)
