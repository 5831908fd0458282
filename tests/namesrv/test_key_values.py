# -*- test-case-name: tests.namesrv.test_key_values -*-
"""The KV configuration: its file, its bounds, and changes that share a write."""

from __future__ import annotations

from collections.abc import Callable

from twisted.internet.defer import Deferred
from twisted.trial.unittest import SynchronousTestCase

from dledger.rocketmq.answering.refusals import Refused
from dledger.rocketmq.namesrv.key_values import KeyValues
from dledger.testing.world.memory_disk import MemoryDisk
from dledger.values.errors import DirectoryError
from tests.namesrv.support import KV, run_now


class KeyValueTests(SynchronousTestCase):
    """One file."""

    def setUp(self) -> None:
        self.disk = MemoryDisk()
        self.calls: list[tuple[Callable[[], None], Deferred[None]]] = []

    def later(self, call: Callable[[], None]) -> Deferred[None]:
        """A slow disk."""
        self.calls.append((call, Deferred()))
        return self.calls[-1][1]

    def end_write(self, error: OSError | None = None) -> None:
        """The oldest write ends."""
        call, done = self.calls.pop(0)
        if error is not None:
            done.errback(error)
        else:
            call()
            done.callback(None)

    def make(self, *, slow: bool = False, entries_max: int = 100, bytes_max: int = 1000) -> KeyValues:
        """With the content of the file."""
        values = KeyValues(self.disk, KV, self.later if slow else run_now, entries_max=entries_max,
                           bytes_max=bytes_max)
        values.load()
        return values

    def test_file(self) -> None:
        """The file is RocketMQ's; it is read again."""
        values = self.make()
        self.successResultOf(values.change("N", "k", 'v"ü'))
        self.successResultOf(values.change("E", "k", None))
        self.assertEqual(self.disk.read_file(KV), '{"configTable":{"N":{"k":"v\\"ü"},"E":{}}}'.encode())
        again = self.make()
        self.assertEqual((again.get("N", "k"), again.table("E"), again.table("X")), ('v"ü', {}, None))
        self.assertEqual((again.entries, again.bytes), (values.entries, values.bytes))

    def test_damaged_file(self) -> None:
        """It is refused, and stays as it is."""
        for data in (b'{"configTable":{"N":{"k":1}}}', b"", b"{", b'{"configTable":[]}', b"{}"):
            self.disk = MemoryDisk()
            self.disk.makedirs("kv")
            self.disk.write_file(KV, data)
            error = self.assertRaises(DirectoryError, self.make)
            self.assertIn("move the file away", str(error))
            self.assertEqual(self.disk.read_file(KV), data)

    def test_shared_write(self) -> None:
        """Changes during a write share the next one; each is answered when its write has ended."""
        values = self.make(slow=True)
        first = values.change("N", "a", "1")
        others = [values.change("N", name, "2") for name in "bcd"]
        self.assertEqual((len(self.calls), values.table("N")), (1, None))
        idle = values.close()
        self.end_write()
        self.successResultOf(first)
        self.assertNoResult(others[0])
        self.assertNoResult(idle)
        self.assertIn("stops", str(self.failureResultOf(values.change("N", "z", "1"), Refused).value))
        self.assertEqual((len(self.calls), values.table("N")), (1, {"a": "1"}))
        self.end_write()
        for one in others:
            self.successResultOf(one)
        self.successResultOf(idle)
        self.assertEqual(self.make().table("N"), {"a": "1", "b": "2", "c": "2", "d": "2"})

    def test_failed_write(self) -> None:
        """Nothing has changed; the next change is tried."""
        values = self.make(slow=True)
        failing = values.change("N", "a", "1")
        self.end_write(OSError(28, "No space left on device"))
        self.assertIn("nothing has changed: No space", str(self.failureResultOf(failing, Refused).value))
        self.assertEqual((values.table("N"), values.entries), (None, 0))
        again = values.change("N", "a", "2")
        self.end_write()
        self.successResultOf(again)

    def test_bounds(self) -> None:
        """Entries, bytes, and the length of each text; a change that makes it smaller always passes."""
        values = self.make(entries_max=2, bytes_max=10)
        self.successResultOf(values.change("N", "k", "v"))
        for namespace, key, value, reason in (
            ("N", "l", "v", "entries; kv_entries_max=2"), ("N", "k", "x" * 9, "bytes; kv_bytes_max=10"),
            ("N", "k" * 4097, "v", "at most 4096"), ("N", "k", "v" * (1 << 20 | 1), "a value 1048576"),
        ):
            error = self.failureResultOf(values.change(namespace, key, value), Refused)
            self.assertIn(reason, str(error.value))
        self.successResultOf(values.change("N", "k", "w"))
        self.successResultOf(values.change("N", "k", None))
        self.assertEqual((values.entries, values.bytes), (1, 1))

    def test_many_waiting(self) -> None:
        """Changes that wait for the disk are bounded."""
        values = self.make(slow=True, entries_max=10_000, bytes_max=100_000)
        waiting = [values.change("N", "k", str(number)) for number in range(4097)]
        refused = values.change("N", "k", "x")
        self.assertEqual(self.failureResultOf(refused, Refused).value.code, 2)
        self.end_write()
        self.end_write()
        for one in waiting:
            self.successResultOf(one)
        self.assertEqual(values.get("N", "k"), "4096")
