# -*- test-case-name: tests.aio.test_log -*-
"""The log in an event loop: real sockets, members in memory."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
from typing import Any

from twisted.trial.unittest import SynchronousTestCase

import dledger
from dledger.base.forks import OpenedHere
from dledger.client.aio import AsyncLog
from dledger.client.errors import AppendFailed, UnknownOutcome
from dledger.values.errors import DLedgerError
from protocols.wire.codes import ResponseCode
from protocols.wire.ledger.messages import AppendRequest
from tests.aio.served import ServedGroup, play


class AsyncLogTests(SynchronousTestCase):
    """Calls, and how they end."""

    def played(self, story: Any) -> None:
        """Nothing is left behind."""
        self.assertEqual(play(story), [])

    def test_append_and_read(self) -> None:
        """One entry, many entries, and what is read back."""

        async def story(group: ServedGroup) -> None:
            async with group.open() as log:
                self.assertEqual((await log.append(b"a")).index, 0)
                placed = await log.append_many([bytearray(b"b"), memoryview(b"c")])
                self.assertEqual([(run.index, run.count) for run in placed], [(1, 2)])
                self.assertEqual((await log.get(2)).body, b"c")
                found = [entry.body async for entry in log.tail(0, follow=False)]
                self.assertEqual(found, [b"a", b"b", b"c"])
                batches = [batch.bodies async for batch in log.tail_batches(1, follow=False)]
                self.assertEqual([body for bodies in batches for body in bodies], [b"b", b"c"])
                self.assertEqual((await log.metadata()).member_id, "n0")
                self.assertEqual([info.problem for info in await log.status()], [""] * 3)

        self.played(story)

    def test_a_tail_reports_that_another_task_has_closed_the_log(self) -> None:
        """Its end is not that of the log."""

        async def story(group: ServedGroup) -> None:
            log = group.open()
            await log.append(b"a")
            tails: list[Any] = [log.tail(0, follow=True), log.tail_batches(0, follow=True)]
            for tail in tails:
                await anext(tail)
            waiting = [asyncio.ensure_future(anext(tail)) for tail in tails]
            await asyncio.sleep(0)
            await log.close()
            for one in waiting:
                with self.assertRaises(DLedgerError):
                    await one

        self.played(story)

    def test_many_tasks(self) -> None:
        """Their bodies share frames, and each gets its own place."""

        async def story(group: ServedGroup) -> None:
            async with group.open() as log:
                await log.append(b"first")
                placed = await asyncio.gather(*(log.append(b"%d" % number) for number in range(500)))
                self.assertEqual([group.log[one.index] for one in placed],
                                 [b"%d" % number for number in range(500)])
                asked = [one for one in group["n0"].received if isinstance(one, AppendRequest)]
                self.assertLess(len(asked), 50)

        self.played(story)

    def test_refused(self) -> None:
        """The errors are those of the other clients."""

        async def story(group: ServedGroup) -> None:
            async with group.open(timeout=0.5) as log:
                group["n0"].refusals.append(ResponseCode.DISK_FULL)
                with self.assertRaises(AppendFailed) as caught:
                    await log.append(b"a")
                self.assertIs(caught.exception.code, ResponseCode.DISK_FULL)
                with self.assertRaises(DLedgerError) as missing:
                    await log.get(7)
                self.assertIs(missing.exception.code, ResponseCode.INDEX_OUT_OF_RANGE)
                with self.assertRaises(AppendFailed):
                    await log.append("text")  # type: ignore[arg-type]

        self.played(story)

    def test_another_leader(self) -> None:
        """The leader is another member now, and a third one cannot be reached."""

        async def story(group: ServedGroup) -> None:
            async with group.open() as log:
                await log.append(b"a")
                group.lead("n1")
                group.stop("n2")
                self.assertEqual((await log.append(b"b")).index, 1)

        self.played(story)

    def test_follow(self) -> None:
        """A reader at the end waits for the next entry; leaving the loop ends the tail."""

        async def story(group: ServedGroup) -> None:
            async with group.open() as log:
                await log.append(b"a")
                seen = []
                tail = log.tail(0, follow=True)
                async for entry in tail:
                    seen.append(entry.body)
                    if len(seen) == 2:
                        break
                    await log.append(b"b")
                await tail.aclose()
                self.assertEqual(seen, [b"a", b"b"])

        self.played(story)

    def test_cancelled(self) -> None:
        """A wait can be cancelled and timed; the append goes on, and the log too."""

        async def story(group: ServedGroup) -> None:
            async with group.open() as log:
                await log.append(b"a")
                group["n0"].holds = lambda request: isinstance(request, AppendRequest)
                with self.assertRaises(TimeoutError):
                    async with asyncio.timeout(0.05):
                        await log.append(b"b")
                with self.assertRaises(TimeoutError):
                    async with asyncio.timeout(0.05):
                        async for _ in log.tail(1, follow=True):
                            pass
                group["n0"].holds = lambda request: False
                group["n0"].release()
                self.assertEqual((await log.append(b"c")).index, 2)

        self.played(story)

    def test_closed(self) -> None:
        """Calls that wait fail; later ones are refused; closing twice changes nothing."""

        async def story(group: ServedGroup) -> None:
            log = group.open()
            await log.append(b"a")
            group["n0"].holds = lambda request: isinstance(request, AppendRequest)
            waiting = asyncio.ensure_future(log.append(b"b"))
            while not group["n0"].held:
                await asyncio.sleep(0)
            await log.close()
            await log.close()
            with self.assertRaises(UnknownOutcome):
                await waiting
            for call in (log.append(b"c"), log.get(0), log.tail().__anext__()):
                with self.assertRaises(DLedgerError) as caught:
                    await call
                self.assertIn("closed", str(caught.exception))

        self.played(story)

    def test_nobody_there(self) -> None:
        """After the time-out, with the reasons."""

        async def story(group: ServedGroup) -> None:
            for member_id in [*group.servers]:
                group.stop(member_id)
            async with group.open(timeout=0.3) as log:
                with self.assertRaises(AppendFailed) as caught:
                    await log.append(b"a")
                self.assertIn("n1: ", str(caught.exception))

        self.played(story)


class PlaceTests(SynchronousTestCase):
    """A log is of one loop in one process."""

    def test_no_loop(self) -> None:
        """Opened in a loop only."""
        self.assertRaises(RuntimeError, dledger.AsyncLog, "n0-127.0.0.1:1")

    def test_bad_options(self) -> None:
        """As for other clients."""

        async def story(group: ServedGroup) -> None:
            for options in ({"peers": "nonsense"}, {"peers": group.peers, "timeout": 0}):
                with self.assertRaises(ValueError):
                    AsyncLog(**options)  # type: ignore[arg-type]

        self.assertEqual(play(story), [])

    def test_another_loop(self) -> None:
        """A call from the loop of another thread is refused."""

        async def story(group: ServedGroup) -> None:
            refused: list[BaseException] = []

            def elsewhere() -> None:
                try:
                    asyncio.run(log.append(b"a"))
                except DLedgerError as error:
                    refused.append(error)

            async with group.open() as log:
                thread = threading.Thread(target=elsewhere)
                thread.start()
                thread.join()
            self.assertIn("another event loop", str(refused[0]))

        self.assertEqual(play(story), [])

    def test_forked(self) -> None:
        """The child is informed of that, and does not touch the connections of its parent."""

        async def story(group: ServedGroup) -> None:
            async with group.open() as log:
                await log.append(b"a")
                here, log._opened = log._opened, OpenedHere(os.getpid() + 1)
                with self.assertRaises(DLedgerError) as caught:
                    await log.append(b"b")
                self.assertIn("after the fork", str(caught.exception))
                await log.close()
                log._opened = here
                self.assertEqual((await log.append(b"c")).index, 1)

        self.assertEqual(play(story), [])

    def test_no_reactor(self) -> None:
        """The module neither installs a reactor nor starts a thread."""
        program = (
            "import asyncio, sys, threading\n"
            "import dledger\n"
            "async def main():\n"
            "    async with dledger.AsyncLog('n0-127.0.0.1:1', timeout=0.2) as log:\n"
            "        try:\n"
            "            await log.append(b'a')\n"
            "        except dledger.DLedgerError as error:\n"
            "            print(error.code.name)\n"
            "    print(threading.active_count(), 'twisted.internet.reactor' in sys.modules)\n"
            "asyncio.run(main())\n"
        )
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60,
                              env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)})
        self.assertEqual((done.stdout.split(), done.stderr), (["METADATA_ERROR", "1", "False"], ""))
