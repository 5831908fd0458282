# -*- test-case-name: tests.client.test_misuse -*-
"""A log in a forked process, and bodies that are no bytes."""

from __future__ import annotations

import os
import signal
import struct
from array import array
from collections.abc import Callable, Iterator

from twisted.trial.unittest import SynchronousTestCase

from dledger.base.sending.bodies import as_bodies
from dledger.client.errors import AppendFailed
from dledger.values.errors import DLedgerError
from tests.client.test_blocking import LiveGroup


class MisuseTests(SynchronousTestCase):
    """Every mistake has an error that says it."""

    def setUp(self) -> None:
        self.log = LiveGroup().open()
        self.addCleanup(self.log.close)

    def test_a_forked_process_is_reported(self) -> None:
        """A forked process has no thread and no connections: every call says so at once."""
        self.log.append(b"a")

        def tried() -> bytes:
            said = []
            calls: list[Callable[[], object]] = [
                lambda: self.log.append(b"b"), lambda: self.log.get(0), lambda: next(self.log.tail(0)),
                lambda: self.log.append_many([b"c"]), self.log.status,
            ]
            for call in calls:
                try:
                    call()
                    said.append("nothing")
                except DLedgerError as error:
                    said.append("forked" if "after the fork" in str(error) else str(error))
            self.log.close()
            return " ".join(said).encode()

        reading, writing = os.pipe()
        child = os.fork()
        if not child:
            try:
                signal.alarm(20)
                os.write(writing, tried())
            finally:
                os._exit(0)
        os.close(writing)
        with open(reading, "rb") as pipe:
            self.assertEqual(pipe.read(), b"forked forked forked forked forked")
        os.waitpid(child, 0)
        self.assertEqual(self.log.append(b"d").index, 1)

    def test_buffers_are_copied_at_once(self) -> None:
        """They are copied: a program may fill its buffer again at once."""
        buffer = bytearray(b"first")

        def refilled() -> Iterator[bytearray]:
            yield buffer
            buffer[:] = b"other"
            yield buffer

        self.log.append_many(refilled())
        self.log.append(memoryview(array("i", [1, 2])))
        bodies = [self.log.get(index).body for index in range(3)]
        self.assertEqual(bodies, [b"first", b"other", struct.pack("=ii", 1, 2)])

    def test_mixed_bodies_are_copied(self) -> None:
        """Bytes stay as they are; buffers behind them are copied, too."""
        buffer = bytearray(b"b")
        kept = as_bodies([b"a", buffer, memoryview(b"c")])
        buffer[:] = b"x"
        self.assertEqual(kept, [b"a", b"b", b"c"])
        self.assertEqual(set(map(type, kept)), {bytes})
        plain = [b"a", b"b"]
        self.assertIs(as_bodies(plain), plain)

    def test_a_text_is_refused(self) -> None:
        """A clear refusal, whatever it is."""
        for body in (None, "text", 5, [b"x"], {}):
            for call in (self.log.append, lambda one: self.log.append_many([one])):
                error = self.assertRaises(AppendFailed, call, body)
                self.assertIn(f"a body must be bytes, not {type(body).__name__}", str(error))
