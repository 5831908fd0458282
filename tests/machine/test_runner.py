# -*- test-case-name: tests.machine.test_runner -*-
"""A machine follows the log, takes snapshots and takes them up again, and stops when it fails."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from twisted.trial.unittest import SynchronousTestCase

from dledger.client.values import Entry
from dledger.core.state.inputs import Origin
from dledger.machine import runner, writing
from dledger.machine.files import snapshots
from dledger.machine.guarded import MachineFailed
from dledger.machine.reading_ahead import BATCH_COUNT_MAX
from dledger.machine.state_machine import RESULT_BYTES_MAX
from dledger.machine.waiting import RECENT_BYTES, RECENT_OVERHEAD, MachineWaits, WaitBounds
from dledger.node.reporting.health import health_problem, readiness_problems
from dledger.storage.files.snapshot_file import SnapshotRefused
from dledger.testing.world.memory_disk import MemoryDisk
from dledger.values.errors import DamagedEntryError, DLedgerError, StoreError
from protocols.wire.codes import ResponseCode
from tests.machine.machines import Journal, MovedJournal, NextJournal
from tests.machine.rig import HostedRig


class FollowTests(SynchronousTestCase):
    """Committed entries, in their order, each once."""

    def test_committed_entries_are_applied_once(self) -> None:
        """Those that were there before, and those that come; empty ones, too, but none of the log's own."""
        rig = HostedRig()
        rig.lead()
        rig.append(b"a", b"", b"b")
        self.assertEqual(rig.journal.bodies, [])
        rig.run()
        rig.append(b"c")
        self.assertEqual(rig.journal.bodies, [b"a", b"", b"b", b"c"])
        self.assertEqual(rig.journal.indexes, [1, 2, 3, 4])
        status = rig.node.status().machine
        assert status is not None
        found = (status.state, status.applied_index, status.lag, status.applied)
        self.assertEqual(found, ("running", 4, 0, 4))
        self.assertIsNone(health_problem(rig.node.status()))

    def test_a_slow_machine_gives_way(self) -> None:
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

    def test_a_quick_machine_gets_bigger_batches(self) -> None:
        """A quick machine gets bigger ones, up to a bound."""
        rig = HostedRig().run()
        rig.append(*[b"x"] * 60)
        for _ in range(8):
            rig.node.append([b"x"] * 3000)
            rig.pass_turns()
        self.assertEqual(max(rig.journal.batches), BATCH_COUNT_MAX)

    def test_a_damaged_entry_is_waited_for(self) -> None:
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

    def test_a_failed_store_ends_the_member(self) -> None:
        """A store that has failed ends the member: its machine is not said to have failed."""
        rig = HostedRig().run()

        def broken(first_index: int, *, max_bytes: int) -> None:
            raise StoreError("the store has failed before")

        rig.node.read_committed = broken  # type: ignore[method-assign,assignment]
        rig.append(b"a")
        self.assertEqual((rig.journal.bodies, rig.runner.state), ([], "running"))

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
        """It has stopped, and everybody is informed why."""
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

    def test_a_failure_names_its_entry(self) -> None:
        """A generator that raises names its entry."""
        rig = HostedRig().run()

        def fails(entry: Entry) -> None:
            if entry.body == b"bad":
                raise ValueError("what is this")

        rig.journal.fails = fails
        rig.append(b"good", b"bad", b"good")
        self.failed(rig, "apply() raised at the entry 2: ValueError: what is this")
        self.assertEqual(rig.journal.bodies, [b"good"])

    def test_any_exception_is_a_failure(self) -> None:
        """
        What is not a C{Exception} is a failure, too: the entries before it count as applied, nothing that was
        read ahead is skipped, and no snapshot of that state gets a name, not even one that is being written.
        """
        for error in (SystemExit(2), KeyboardInterrupt(), GeneratorExit("odd")):
            rig = HostedRig(snapshot_entries=2).run()
            rig.append(b"1", b"2", b"3")
            rig.machine_thread.is_lazy = True
            rig.append(b"4")
            rig.append(b"5")
            self.assertTrue(rig.runner.status().is_writing)

            def fails(entry: Entry, error: BaseException = error) -> None:
                if entry.body == b"bad":
                    raise error

            rig.journal.fails = fails
            results = [rig.runner.result_of(index) for index in (6, 7, 8)]
            rig.append(b"good", b"bad", *[b"later"] * 200)
            self.assertEqual(self.successResultOf(results[0]), b"6:good")
            for result in results[1:]:
                self.failureResultOf(result, DLedgerError)
            self.failed(rig, f"apply() raised at the entry 7: {type(error).__name__}")
            self.assertEqual((rig.runner.applied_index, rig.journal.indexes), (6, [1, 2, 3, 4, 5, 6]))
            while rig.machine_thread.waiting:
                rig.machine_thread.finish()
            self.assertEqual([head.index for head in rig.snapshots.heads], [1, 3])
            self.assertIn("has failed", rig.runner.status().snapshot_problem)
            self.flushLoggedErrors()

    def test_a_failed_query_is_its_answer(self) -> None:
        """An exception of any kind in a query is its answer; a machine that failed answers none."""
        rig = HostedRig().run()
        rig.append(b"1")

        def exits(request: bytes) -> bytes:
            raise SystemExit("no such option")

        rig.journal.query = exits  # type: ignore[method-assign]
        error = self.failureResultOf(rig.runner.query(b""), DLedgerError).value
        self.assertIs(error.code, ResponseCode.INTERNAL_ERROR)
        self.assertIn("query() raised SystemExit: no such option", str(error))
        self.assertEqual(rig.runner.state, "running")

        def fails(entry: Entry) -> None:
            raise SystemExit

        rig.journal.fails = fails
        rig.append(b"2")
        error = self.failureResultOf(rig.runner.query(b""), DLedgerError).value
        self.assertIs(error.code, ResponseCode.MACHINE_STOPPED)

    def test_end_of_apply(self) -> None:
        """What C{apply} does after its last result belongs to the last entry."""
        def apply(entries: Sequence[Entry]) -> Iterable[bytes]:
            for entry in entries:
                yield entry.body
            raise SystemExit

        self.failed(self.broken(apply), "apply() raised at the entry 3: SystemExit")

    def broken(self, apply: Callable[[Sequence[Entry]], Iterable[bytes]]) -> HostedRig:
        """A machine that applies like that gets three entries."""
        rig = HostedRig().run()
        rig.journal.apply = apply  # type: ignore[method-assign,assignment]
        rig.append(b"1", b"2", b"3")
        return rig

    def test_wrong_results_are_a_failure(self) -> None:
        """Too few, too many, of another kind, too long; a function that raises names the range."""
        self.failed(self.broken(lambda entries: [b"x"]), "1 results for 3 entries: none for the entry 2")
        self.failed(self.broken(lambda entries: [b"x"] * 4), "more than 3 results for the entries 1 to 3")
        texts: Any = ["x"] * 3
        self.failed(self.broken(lambda entries: texts), "a str instead of bytes for the entry 1")
        long = bytes(RESULT_BYTES_MAX + 1)
        self.failed(self.broken(lambda entries: [b"", long, b""]), "1048577 bytes", "for the entry 2")

        def raises(entries: Sequence[Entry]) -> Iterable[bytes]:
            raise KeyError("x")

        self.failed(self.broken(raises), "apply() raised at the entry 1: KeyError: 'x'")

    def test_waiting_callers_hear_the_failure(self) -> None:
        """Callers that wait are informed: a command is unknown, a query is refused."""
        rig = HostedRig().run()
        rig.journal.fails = lambda entry: 1 / 0  # type: ignore[assignment,return-value]
        result, query = rig.runner.result_of(1), rig.runner.when_applied(1)
        rig.append(b"x")
        error = self.failureResultOf(result, DLedgerError).value
        self.assertIs(error.code, ResponseCode.WAIT_QUORUM_ACK_TIMEOUT)
        error = self.failureResultOf(query, DLedgerError).value
        self.assertIs(error.code, ResponseCode.MACHINE_STOPPED)


class SnapshotTests(SynchronousTestCase):
    """Taken after a number of entries or bytes, taken up at the start."""

    def setUp(self) -> None:
        self.disk = MemoryDisk()
        self.rig = HostedRig(disk=self.disk, snapshot_entries=3).run()
        for number in range(8):
            self.rig.append(b"%d" % number)

    def test_two_snapshots_are_kept(self) -> None:
        """Two are kept, and the log is kept from the last entry of the older one on."""
        self.assertEqual([head.index for head in self.rig.snapshots.heads], [5, 8])
        self.assertEqual(self.rig.node.machine_requests.needed_index, 4)
        self.assertEqual(self.rig.node.handlers.keep_from_index(), 5)
        self.assertEqual(HostedRig().run().node.handlers.keep_from_index(), 0)
        status = self.rig.runner.status()
        self.assertEqual((status.snapshot_index, status.snapshots, status.snapshot_problem), (8, 3, ""))
        self.assertGreater(status.snapshot_size, 0)

    def test_after_every_entry(self) -> None:
        """One entry is a number of entries, too."""
        rig = HostedRig(disk=MemoryDisk(), snapshot_entries=1).run()
        rig.append(b"0")
        rig.append(b"1")
        self.assertEqual([head.index for head in rig.snapshots.heads], [1, 2])

    def restarted(self, factory: type[Journal] = Journal) -> HostedRig:
        """A new process with the log and the snapshots of the old one."""
        rig = HostedRig(disk=self.disk, factory=factory)
        rig.node.read_committed = self.rig.node.read_committed  # type: ignore[method-assign]
        rig.node.core = self.rig.node.core
        self.assertTrue(rig.node.members.is_settled)
        rig.runner.start()
        rig.pass_turns()
        return rig

    def test_a_start_takes_up_a_snapshot(self) -> None:
        """The state is that of the snapshot and of the entries after it; no entry is applied twice."""
        self.rig.append(b"8")
        rig = self.restarted()
        self.assertEqual(rig.journal.bodies, [b"%d" % number for number in range(9)])
        self.assertEqual(rig.journal.indexes, [9])

    def test_results_are_in_the_snapshot(self) -> None:
        """The last results of producers are in a snapshot."""
        self.rig.node.handlers.appends.append_command(b"once", Origin("p", 0))
        self.rig.pass_turns()
        for number in range(4):
            self.rig.append(b"%d" % number)
        self.assertEqual(self.rig.runner.kept_result(10), b"10:once")
        rig = self.restarted()
        self.assertNotIn(10, rig.journal.indexes)
        self.assertEqual(rig.runner.kept_result(10), b"10:once")
        self.assertIsNone(rig.runner.kept_result(11))

    def test_a_start_falls_back_to_older_snapshots(self) -> None:
        """To the older one, then to the beginning of the log."""
        bodies = list(self.rig.journal.bodies)
        self.disk.write_file("s/machine/snapshot-8-1", b"")
        rig = self.restarted()
        self.assertEqual((rig.journal.bodies, rig.journal.indexes), (bodies, [6, 7, 8]))
        self.assertIn("snapshot-8-1 is cut", rig.runner.status().refused[0])
        self.disk.write_file("s/machine/snapshot-5-1", b"")
        rig = self.restarted()
        self.assertEqual((rig.journal.bodies, rig.journal.indexes), (bodies, [1, 2, 3, 4, 5, 6, 7, 8]))

    def test_another_version_begins_anew(self) -> None:
        """A machine of another version begins with the log."""
        rig = self.restarted(NextJournal)
        self.assertEqual(rig.journal.indexes, [1, 2, 3, 4, 5, 6, 7, 8])
        self.assertEqual(len(rig.runner.status().refused), 2)

    def test_an_older_version_is_named(self) -> None:
        """A machine that takes older snapshots is given the version; a later one is refused."""
        rig = self.restarted(MovedJournal)
        self.assertEqual(rig.journal.bodies[:2], [b"moved from 1", b"0"])
        self.assertEqual((rig.journal.indexes, rig.runner.status().refused), ([], ()))
        self.patch(MovedJournal, "version", 0)
        self.patch(MovedJournal, "oldest_version", 0)
        rig = self.restarted(MovedJournal)
        self.assertEqual(rig.journal.indexes, [1, 2, 3, 4, 5, 6, 7, 8])
        self.assertIn("takes those from 0 on", rig.runner.status().refused[0])

    def test_older_snapshots_need_a_version(self) -> None:
        """Who takes older snapshots must be able to distinguish them."""
        self.patch(Journal, "oldest_version", 0)
        self.assertIn("restore(chunks, version)", str(self.assertRaises(MachineFailed, HostedRig)))

    def test_each_try_has_a_new_machine(self) -> None:
        """Each try gets a new machine."""
        class Picky(Journal):
            def restore(self, chunks: Iterable[bytes]) -> None:
                self.bodies = [b"half"]
                raise ValueError("not mine")

        rig = self.restarted(Picky)
        self.assertEqual(rig.journal.bodies, self.rig.journal.bodies)
        self.assertEqual(len(rig.made), 3)
        self.assertIn("restore() raised ValueError: not mine", rig.runner.status().refused[0])

    def test_another_log_is_refused(self) -> None:
        """A snapshot after an entry that the log has otherwise is refused."""
        rig = HostedRig(disk=self.disk)
        rig.lead()
        rig.append(*[b"other"] * 9)
        rig.runner.start()
        rig.pass_turns()
        self.assertEqual(rig.journal.bodies, [b"other"] * 9)
        self.assertIn("is of another log", rig.runner.status().refused[0])

    def test_ahead_of_the_log(self) -> None:
        """A loss of power took the end of the log: the snapshot ahead of it is refused, with the reason."""
        rig = HostedRig(disk=self.disk).run()
        self.assertEqual((rig.runner.state, rig.runner.applied_index), ("running", 0))
        self.assertEqual(rig.journal.bodies, [])
        for reason in rig.runner.status().refused:
            self.assertIn("it is ahead of the log, which ends at 0: a loss of power", reason)
        result = rig.runner.result_of(1)
        rig.append(*[b"other"] * 9)
        self.assertEqual(self.successResultOf(result), b"1:other")
        self.assertEqual(rig.journal.bodies, [b"other"] * 9)

    def waiting(self) -> HostedRig:
        """A member whose log is not known to have settled, and that has snapshots ahead of it."""
        rig = HostedRig(disk=self.disk)
        self.patch(type(rig.node.members), "is_settled", property(lambda _: False))
        rig.run()
        self.assertEqual(rig.runner.state, "starting")
        refusal = rig.runner.refusal
        assert refusal is not None
        self.assertIs(refusal.code, ResponseCode.LEADER_NOT_READY)
        self.assertIn("it waits until both can be compared", str(refusal))
        ready = "; ".join(readiness_problems(rig.node.status()))
        self.assertIn("its snapshot is after the entry 8", ready)
        self.assertEqual(rig.node.machine_requests.needed_index, -1)
        return rig

    def test_waits_for_the_log(self) -> None:
        """Nobody is answered until the log has come there; then both are compared."""
        rig = self.waiting()
        rig.append(*[b"other"] * 9)
        self.assertEqual(rig.runner.state, "starting")
        rig.clock.advance(runner.LOOK_S)
        rig.pass_turns()
        self.assertEqual((rig.runner.state, rig.journal.bodies), ("running", [b"other"] * 9))
        self.assertIn("is of another log", rig.runner.status().refused[0])

    def test_same_log_comes_back(self) -> None:
        """The other members had the entries: the snapshot is used."""
        rig = self.waiting()
        rig.append(*[b"%d" % number for number in range(9)])
        rig.clock.advance(runner.LOOK_S)
        rig.pass_turns()
        self.assertEqual((rig.journal.bodies, rig.journal.indexes), ([b"%d" % n for n in range(9)], [9]))

    def test_stops_while_it_waits(self) -> None:
        """The wait ends with the member."""
        rig = self.waiting()
        self.successResultOf(rig.runner.stop())
        self.assertEqual(rig.runner.state, "stopped")

    def test_name_waits_for_the_log(self) -> None:
        """A snapshot counts only when the log up to its entry is on stable storage, too."""
        rig = HostedRig(disk=MemoryDisk(), snapshot_entries=3, flush_disk_type="async").run()
        rig.thread.is_lazy = True
        for number in range(4):
            rig.append(b"%d" % number)
        self.assertEqual((rig.runner.applied_index, rig.snapshots.heads), (4, []))
        self.assertEqual(rig.disk.listdir("s/machine"), ["unfinished"])
        for _ in range(100):
            rig.clock.advance(0.02)
        self.assertEqual(rig.snapshots.heads, [])
        rig.thread.finish()
        rig.clock.advance(writing.FLUSH_LOOK_S)
        self.assertEqual([head.index for head in rig.snapshots.heads], [2])

    def test_a_swallowed_error_stops_the_machine(self) -> None:
        """A machine that catches what is wrong with a file does not go on with half of it."""
        class Careless(Journal):
            def restore(self, chunks: Iterable[bytes]) -> None:
                try:
                    self.bodies = list(chunks)
                except BaseException:
                    self.bodies = [b"half"]

        real = snapshots.read_pieces

        def cut(disk: MemoryDisk, path: str) -> Iterable[bytes]:
            yield next(iter(real(disk, path)))
            raise SnapshotRefused("it is cut")

        self.patch(snapshots, "read_pieces", cut)
        rig = self.restarted(Careless)
        self.assertEqual(rig.journal.bodies, self.rig.journal.bodies)
        self.assertEqual(len(rig.runner.status().refused), 2)

    def test_a_failed_snapshot_is_tried_again(self) -> None:
        """A failed write is reported, and tried again; the machine goes on."""
        self.rig.machine_thread.is_lazy = True
        for number in range(3):
            self.rig.append(b"%d" % number)
        self.assertTrue(self.rig.runner.status().is_writing)
        self.rig.machine_thread.finish(OSError("no room"))
        self.flushLoggedErrors(OSError)
        self.assertIn("after the entry 11: OSError: no room", self.rig.runner.status().snapshot_problem)
        self.rig.machine_thread.is_lazy = False
        for number in range(3):
            self.rig.append(b"%d" % number)
        self.assertEqual([head.index for head in self.rig.snapshots.heads], [8, 14])
        self.assertEqual(self.rig.runner.status().snapshot_problem, "")

    def test_later_entries_are_not_in_a_snapshot(self) -> None:
        """Entries that are applied while it is written are not in it."""
        self.rig.machine_thread.is_lazy = True
        for number in range(6):
            self.rig.append(b"%d" % number)
        self.rig.machine_thread.is_lazy = False
        self.rig.machine_thread.finish()
        head = self.rig.snapshots.heads[-2]
        self.assertEqual((head.index, len(list(self.rig.snapshots.read(head)))), (11, 1 + 11))

    def test_a_stop_waits_for_the_thread(self) -> None:
        """A stop waits for the thread, which gives up."""
        self.rig.machine_thread.is_lazy = True
        for number in range(3):
            self.rig.append(b"%d" % number)
        ended = self.rig.runner.stop()
        self.assertNoResult(ended)
        self.rig.machine_thread.finish()
        self.successResultOf(ended)
        self.assertEqual([head.index for head in self.rig.snapshots.heads], [5, 8])
        self.assertIn("stopped", self.rig.runner.status().snapshot_problem)

    def test_members_snapshot_at_the_same_entries(self) -> None:
        """After the same entries at each member, however they come; so the digests can be compared."""
        rig = HostedRig(disk=MemoryDisk(), snapshot_entries=3).run()
        rig.append(*[b"%d" % number for number in range(8)])
        self.assertEqual(rig.runner.digests, self.rig.runner.digests)
        self.assertEqual(sorted(rig.runner.reported().digests), [2, 5, 8])
        other = HostedRig(disk=MemoryDisk(), snapshot_entries=3).run()
        other.append(b"0", b"1", b"2", b"3", b"x", b"5")
        self.assertEqual(other.runner.digests[2], rig.runner.digests[2])
        self.assertNotEqual(other.runner.digests[5], rig.runner.digests[5])

    def test_a_machine_may_offer_its_digest(self) -> None:
        """A machine may offer one, or none; if it raises, no snapshot is written."""
        for given, reported in ((b"abc", {2: "616263"}), (b"", {})):
            self.patch(Journal, "digest", lambda machine, given=given: given)
            rig = HostedRig(disk=MemoryDisk(), snapshot_entries=3).run()
            rig.append(b"0", b"1")
            self.assertEqual((rig.runner.digests, len(rig.snapshots.heads)), (reported, 1))
        self.patch(Journal, "digest", lambda machine: bytes(33))
        rig = HostedRig(disk=MemoryDisk(), snapshot_entries=3).run()
        rig.append(b"0", b"1")
        self.assertIn("digest() gave no bytes", rig.runner.status().snapshot_problem)
        self.assertEqual((rig.runner.state, len(self.flushLoggedErrors())), ("running", 1))

    def test_bytes_of_bodies_make_it_due(self) -> None:
        """Bytes of bodies, too."""
        rig = HostedRig(snapshot_bytes=100).run()
        rig.append(b"x" * 99)
        self.assertEqual(rig.snapshots.heads, [])
        rig.append(b"x")
        self.assertEqual([head.index for head in rig.snapshots.heads], [2])


class WaitsTests(SynchronousTestCase):
    """What waits for the machine, alone."""

    def setUp(self) -> None:
        self.now_ms = 0
        self.waits = MachineWaits(WaitBounds(waits_max=2, wait_ms=100), lambda: self.now_ms)

    def test_results_before_an_end_are_no_answers(self) -> None:
        """Results of before an end are no answers after it: the state may be another one then."""
        self.waits.applied({1: b"one", 2: b"two"}, 2)
        self.assertEqual(self.successResultOf(self.waits.result_of(2, 2)), b"two")
        self.waits.end("the entry 1 is skipped", ResponseCode.LEADER_NOT_READY)
        error = self.failureResultOf(self.waits.result_of(2, 2), DLedgerError).value
        self.assertIs(error.code, ResponseCode.WAIT_QUORUM_ACK_TIMEOUT)
        again = self.waits.result_of(2, 0)
        self.waits.applied({1: b"", 2: b"another"}, 2)
        self.assertEqual(self.successResultOf(again), b"another")

    def test_the_last_results_are_kept(self) -> None:
        """The last results are kept as long as they fit, also after an end, and always the last one."""
        for _ in range(2):
            size = RECENT_BYTES // 4 - RECENT_OVERHEAD
            for index in range(1, 6):
                self.waits.applied({index: bytes(size)}, index)
            self.failureResultOf(self.waits.result_of(1, 5), DLedgerError)
            self.assertEqual(self.successResultOf(self.waits.result_of(2, 5)), bytes(size))
            self.waits.applied({6: bytes(2 * RECENT_BYTES)}, 6)
            self.failureResultOf(self.waits.result_of(5, 6), DLedgerError)
            self.assertEqual(len(self.successResultOf(self.waits.result_of(6, 6))), 2 * RECENT_BYTES)
            self.waits.end("a snapshot is needed", ResponseCode.LEADER_NOT_READY)

    def test_each_wait_ends_in_time(self) -> None:
        """Each wait ends when its time is over, not before; more than the bound are refused."""
        result, query = self.waits.result_of(1, 0), self.waits.when_applied(1)
        self.waits.when_applied(2).addErrback(lambda _: None)
        full = self.failureResultOf(self.waits.when_applied(1), DLedgerError).value
        self.assertIs(full.code, ResponseCode.LEADER_PENDING_FULL)
        self.waits.sweep(99, 0)
        self.assertNoResult(result)
        self.assertNoResult(query)
        self.waits.sweep(100, 0)
        self.assertIs(self.failureResultOf(result, DLedgerError).value.code,
                      ResponseCode.WAIT_QUORUM_ACK_TIMEOUT)
        self.assertIs(self.failureResultOf(query, DLedgerError).value.code, ResponseCode.TIMEOUT)
        self.assertNoResult(self.waits.when_applied(1))
