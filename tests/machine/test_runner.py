# -*- test-case-name: tests.machine.test_runner -*-
"""A machine follows the log, takes snapshots and takes them up again, and stops when it fails."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from twisted.trial.unittest import SynchronousTestCase

from dledger.base.disk.memory_disk import MemoryDisk
from dledger.base.errors import DamagedEntryError, DLedgerError
from dledger.client.values import Entry
from dledger.machine import runner
from dledger.machine.state_machine import RESULT_BYTES_MAX
from dledger.node.health import health_problem
from protocols.wire.ledger.codes import ResponseCode
from tests.machine.machines import Journal, NextJournal
from tests.machine.rig import HostedRig


class FollowTests(SynchronousTestCase):
    """Committed entries, in their order, each once."""

    def test_applies(self) -> None:
        """Those that were there before, and those that come; entries without a body are not passed."""
        rig = HostedRig()
        rig.lead()
        rig.append(b"a", b"", b"b")
        self.assertEqual(rig.journal.bodies, [])
        rig.run()
        rig.append(b"c")
        self.assertEqual(rig.journal.bodies, [b"a", b"b", b"c"])
        self.assertEqual(rig.journal.indexes, [1, 3, 4])
        status = rig.node.status().machine
        assert status is not None
        found = (status.state, status.applied_index, status.lag, status.applied)
        self.assertEqual(found, ("running", 4, 0, 3))
        self.assertIsNone(health_problem(rig.node.status()))

    def test_gives_way(self) -> None:
        """A slow machine gets smaller batches, and the reactor a turn between them."""
        rig = HostedRig().run()
        rig.journal.fails = lambda entry: rig_sleep(rig, 0.001)
        between: list[int] = []

        def look() -> None:
            between.append(len(rig.journal.bodies))
            if len(between) < 50:
                rig.clock.callLater(0, look)

        look()
        rig.append(*[b"%d" % number for number in range(300)])
        self.assertEqual(len(rig.journal.bodies), 300)
        self.assertGreater(len(set(between)), 10)
        self.assertLessEqual(rig.journal.batches[-1], 8)

    def test_quick(self) -> None:
        """A quick machine gets bigger ones, up to a bound."""
        rig = HostedRig().run()
        rig.append(*[b"x"] * 60)
        for _ in range(8):
            rig.node.append([b"x"] * 3000)
            rig.pass_turns()
        self.assertEqual(max(rig.journal.batches), runner.BATCH_COUNT_MAX)

    def test_damaged(self) -> None:
        """An entry that is damaged here is waited for."""
        rig = HostedRig().run()
        real = rig.node.read_committed

        def damaged(first_index: int, *, max_bytes: int) -> None:
            raise DamagedEntryError(first_index, "it lies in a hole")

        rig.node.read_committed = damaged  # type: ignore[method-assign,assignment]
        rig.append(b"a")
        self.assertEqual((rig.journal.bodies, rig.runner.state), ([], "running"))
        rig.node.read_committed = real  # type: ignore[method-assign]
        rig.runner.sweep(rig.clock.seconds())
        rig.pass_turns()
        self.assertEqual(rig.journal.bodies, [b"a"])

    def test_log_begins_later(self) -> None:
        """Without the first entries there is no state: it says so, and what to do."""
        rig = HostedRig()
        rig.lead()

        def expired(first_index: int, *, max_bytes: int) -> None:
            raise DLedgerError(
                ResponseCode.INDEX_LESS_THAN_LOCAL_BEGIN, index=first_index, ledger_begin_index=7
            )

        rig.node.read_committed = expired  # type: ignore[method-assign,assignment]
        rig.runner.start()
        rig.pass_turns()
        self.assertEqual(rig.runner.state, "failed")
        self.assertIn("the log begins at 7, the state ends at -1", rig.runner.reason)
        self.flushLoggedErrors()


def rig_sleep(rig: HostedRig, seconds: float) -> None:
    """Time passes while the machine works; nothing else is called."""
    rig.clock.rightNow += seconds


class FailureTests(SynchronousTestCase):
    """The machine stops, and says which entry; the log goes on."""

    def failed(self, rig: HostedRig, *says: str) -> None:
        """It has stopped, and everybody is told why."""
        self.assertEqual(rig.runner.state, "failed")
        problem = health_problem(rig.node.status())
        assert problem is not None
        for one in says:
            self.assertIn(one, rig.runner.reason)
            self.assertIn(one, problem)
        refusal = rig.runner.refusal
        assert refusal is not None
        self.assertIs(refusal.code, ResponseCode.MACHINE_STOPPED)
        before = rig.node.committed_index
        rig.append(b"more")
        self.assertEqual(rig.node.committed_index, before + 1)
        self.assertEqual(rig.runner.state, "failed")

    def test_raises(self) -> None:
        """A generator that raises names its entry."""
        rig = HostedRig().run()

        def fails(entry: Entry) -> None:
            if entry.body == b"bad":
                raise ValueError("what is this")

        rig.journal.fails = fails
        rig.append(b"good", b"bad", b"good")
        self.failed(rig, "apply() raised at the entry 2: ValueError: what is this")
        self.assertEqual(rig.journal.bodies, [b"good"])

    def broken(self, apply: Callable[[Sequence[Entry]], Iterable[bytes]]) -> HostedRig:
        """A machine that applies like that gets three entries."""
        rig = HostedRig().run()
        rig.journal.apply = apply  # type: ignore[method-assign,assignment]
        rig.append(b"1", b"2", b"3")
        return rig

    def test_wrong_results(self) -> None:
        """Too few, too many, of another kind, too long; a function that raises names the range."""
        self.failed(self.broken(lambda entries: [b"x"]), "1 results for 3 entries: none for the entry 2")
        self.failed(self.broken(lambda entries: [b"x"] * 4), "more than 3 results for the entries 1 to 3")
        texts: Any = ["x"] * 3
        self.failed(self.broken(lambda entries: texts), "a str instead of bytes for the entry 1")
        long = bytes(RESULT_BYTES_MAX + 1)
        self.failed(self.broken(lambda entries: [b"", long, b""]), "1048577 bytes", "for the entry 2")

        def raises(entries: Sequence[Entry]) -> Iterable[bytes]:
            raise KeyError("x")

        self.failed(self.broken(raises), "apply() raised at one of the entries 1 to 3: KeyError: 'x'")

    def test_waits(self) -> None:
        """Who waits is told: a command is unknown, a query is refused."""
        rig = HostedRig().run()
        rig.journal.fails = lambda entry: 1 / 0  # type: ignore[assignment,return-value]
        result, query = rig.runner.result_of(1), rig.runner.when_applied(1)
        rig.append(b"x")
        error = self.failureResultOf(result, DLedgerError).value
        self.assertIs(error.code, ResponseCode.WAIT_QUORUM_ACK_TIMEOUT)
        error = self.failureResultOf(query, DLedgerError).value
        self.assertIs(error.code, ResponseCode.MACHINE_STOPPED)


class SnapshotTests(SynchronousTestCase):
    """Taken behind so many entries or bytes, taken up at the start."""

    def setUp(self) -> None:
        self.disk = MemoryDisk()
        self.rig = HostedRig(disk=self.disk, snapshot_entries=3).run()
        for number in range(8):
            self.rig.append(b"%d" % number)

    def test_taken(self) -> None:
        """Two are kept, and the log is kept from the last entry of the older one on."""
        self.assertEqual([head.index for head in self.rig.snapshots.heads], [5, 8])
        self.assertEqual(self.rig.node.desk.needed_index, 4)
        self.assertEqual(self.rig.node._keep_from_index(), 5)
        self.assertEqual(HostedRig().run().node._keep_from_index(), 0)
        status = self.rig.runner.status()
        self.assertEqual((status.snapshot_index, status.snapshots, status.snapshot_problem), (8, 3, ""))
        self.assertGreater(status.snapshot_size, 0)

    def restarted(self, factory: type[Journal] = Journal) -> HostedRig:
        """A new process with the log and the snapshots of the old one."""
        rig = HostedRig(disk=self.disk, factory=factory)
        rig.node.read_committed = self.rig.node.read_committed  # type: ignore[method-assign]
        rig.node._core = self.rig.node._core
        rig.runner.start()
        rig.pass_turns()
        return rig

    def test_taken_up(self) -> None:
        """The state is that of the snapshot and of the entries behind it; no entry is applied twice."""
        self.rig.append(b"8")
        rig = self.restarted()
        self.assertEqual(rig.journal.bodies, [b"%d" % number for number in range(9)])
        self.assertEqual(rig.journal.indexes, [9])

    def test_falls_back(self) -> None:
        """To the older one, then to the beginning of the log."""
        bodies = list(self.rig.journal.bodies)
        self.disk.write_file("s/machine/snapshot-8-1", b"")
        rig = self.restarted()
        self.assertEqual((rig.journal.bodies, rig.journal.indexes), (bodies, [6, 7, 8]))
        self.assertIn("snapshot-8-1 is cut", rig.runner.status().refused[0])
        self.disk.write_file("s/machine/snapshot-5-1", b"")
        rig = self.restarted()
        self.assertEqual((rig.journal.bodies, rig.journal.indexes), (bodies, [1, 2, 3, 4, 5, 6, 7, 8]))

    def test_other_version(self) -> None:
        """A machine of another version begins with the log."""
        rig = self.restarted(NextJournal)
        self.assertEqual(rig.journal.indexes, [1, 2, 3, 4, 5, 6, 7, 8])
        self.assertEqual(len(rig.runner.status().refused), 2)

    def test_restore_raises(self) -> None:
        """Each try gets a new machine."""
        class Picky(Journal):
            def restore(self, chunks: Iterable[bytes]) -> None:
                self.bodies = [b"half"]
                raise ValueError("not mine")

        rig = self.restarted(Picky)
        self.assertEqual(rig.journal.bodies, self.rig.journal.bodies)
        self.assertEqual(len(rig.made), 3)
        self.assertIn("restore() raised ValueError: not mine", rig.runner.status().refused[0])

    def test_another_log(self) -> None:
        """A snapshot behind an entry that the log has otherwise is refused."""
        rig = HostedRig(disk=self.disk)
        rig.lead()
        rig.append(*[b"other"] * 9)
        rig.runner.start()
        rig.pass_turns()
        self.assertEqual(rig.journal.bodies, [b"other"] * 9)
        self.assertIn("is of another log", rig.runner.status().refused[0])

    def test_another_log_later(self) -> None:
        """Where the log ends before the snapshot, that is found when it has come so far."""
        rig = HostedRig(disk=self.disk).run()
        self.assertEqual(rig.runner.applied_index, 8)
        rig.append(*[b"other"] * 9)
        self.assertEqual(rig.runner.state, "failed")
        self.assertIn("is of another log", rig.runner.reason)

    def test_not_written(self) -> None:
        """A failed write is told, and tried again; the machine goes on."""
        self.rig.machine_thread.is_lazy = True
        for number in range(3):
            self.rig.append(b"%d" % number)
        self.assertTrue(self.rig.runner.status().is_writing)
        self.rig.machine_thread.finish(OSError("no room"))
        self.flushLoggedErrors(OSError)
        self.assertIn("behind the entry 11: OSError: no room", self.rig.runner.status().snapshot_problem)
        self.rig.machine_thread.is_lazy = False
        for number in range(3):
            self.rig.append(b"%d" % number)
        self.assertEqual([head.index for head in self.rig.snapshots.heads], [8, 14])
        self.assertEqual(self.rig.runner.status().snapshot_problem, "")

    def test_stable_view(self) -> None:
        """Entries that are applied while it is written are not in it."""
        self.rig.machine_thread.is_lazy = True
        for number in range(6):
            self.rig.append(b"%d" % number)
        self.rig.machine_thread.finish()
        head = self.rig.snapshots.heads[-1]
        self.assertEqual((head.index, len(list(self.rig.snapshots.read(head)))), (11, 11))

    def test_stops(self) -> None:
        """A stop waits for the thread, which gives up."""
        self.rig.machine_thread.is_lazy = True
        for number in range(3):
            self.rig.append(b"%d" % number)
        ended = self.rig.runner.stop()
        self.assertNoResult(ended)
        self.rig.machine_thread.finish()
        self.successResultOf(ended)
        self.assertEqual([head.index for head in self.rig.snapshots.heads], [5, 8])
        self.assertEqual(len(self.flushLoggedErrors()), 1)

    def test_by_bytes(self) -> None:
        """Bytes of bodies, too."""
        rig = HostedRig(snapshot_bytes=100).run()
        rig.append(b"x" * 99)
        self.assertEqual(rig.snapshots.heads, [])
        rig.append(b"x")
        self.assertEqual([head.index for head in rig.snapshots.heads], [2])
