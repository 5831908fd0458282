# -*- test-case-name: tests.machine.test_skips -*-
"""Commands that are refused, and entries that no machine applies."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any
from unittest import mock

from twisted.internet.defer import Deferred
from twisted.trial.unittest import SynchronousTestCase

from dledger.client.values import Entry
from dledger.machine import failed_entry, reading_ahead
from dledger.machine import skips as skips_module
from dledger.machine.skips import SKIPPED, UNSEEN, Skips
from dledger.machine.state_machine import RefusedAnswer, RefusedCommand
from dledger.storage.files.snapshot_file import SnapshotRefused
from dledger.testing.world.memory_disk import MemoryDisk
from dledger.values.errors import DLedgerError
from protocols.wire.codes import ResponseCode
from protocols.wire.ledger.entry import iterate_records
from protocols.wire.ledger.machines import SkipRequest, SkipResponse, SubmitRequest
from protocols.wire.ledger.own.machine_entries import encode_skip
from protocols.wire.ledger.own.own_entries import MACHINE_CHANNEL
from tests.machine.machines import Journal
from tests.machine.rig import HostedRig


def bad(entry: Entry) -> None:
    """Called with each entry: one kind cannot be applied."""
    if entry.body == b"bad":
        raise ValueError("no such command")


class BadJournal(Journal):
    """It cannot apply some entries."""

    def __init__(self) -> None:
        super().__init__()
        self.fails = bad


class ListJournal(Journal):
    """It gives a list, from one call for each entry."""

    def apply(self, entries: Sequence[Entry]) -> Iterable[bytes]:  # type: ignore[override]
        """At once."""
        return list(super().apply(entries))


class RefusedTests(SynchronousTestCase):
    """A refusal is the answer to its command, and nothing else."""

    def test_a_raised_refusal_is_the_answer(self) -> None:
        """In a generator, in a function that gives a list; as a result, too. The rest goes on."""
        for factory in (Journal, ListJournal):
            rig = HostedRig(factory=factory).run()

            def refuses(entry: Entry) -> None:
                if entry.body.startswith(b"no"):
                    raise RefusedCommand(f"I do not like {entry.body.decode()} \udcff")

            rig.journal.fails = refuses
            results = [rig.runner.result_of(index) for index in range(1, 6)]
            rig.append(b"a", b"no 1", b"no 2", b"b", b"no 3")
            answers = [self.successResultOf(result) for result in results]
            self.assertEqual(answers[::3], [b"1:a", b"4:b"])
            for number, answer in enumerate((answers[1], answers[2], answers[4]), 1):
                self.assertIsInstance(answer, RefusedAnswer)
                self.assertEqual(answer, b"I do not like no %d ?" % number)
            self.assertEqual((rig.runner.state, rig.journal.bodies), ("running", [b"a", b"b"]))

    def test_a_given_refusal_is_the_answer(self) -> None:
        """A generator may give it and go on."""
        rig = HostedRig().run()
        given: Any = [RefusedCommand("why"), b"2"]
        rig.journal.apply = lambda entries: iter(given)  # type: ignore[method-assign,assignment]
        results = [rig.runner.result_of(index) for index in (1, 2)]
        rig.append(b"a", b"b")
        self.assertEqual([self.successResultOf(result) for result in results], [b"why", b"2"])

    def test_a_client_gets_the_refusal_again(self) -> None:
        """A client learns it by a code, each time it asks for the same command."""
        rig = HostedRig().run()

        def refuses(entry: Entry) -> None:
            raise RefusedCommand("not now")

        rig.journal.fails = refuses
        client = rig.client()
        for _ in range(2):
            client.send(SubmitRequest(**rig.base(), command=b"x", producer="p", sequence=0))
            rig.pass_turns()
            (answer,) = client.answers()
            found = (answer.code, answer.index, answer.reason, answer.result)
            self.assertEqual(found, (ResponseCode.COMMAND_REFUSED, 2, "not now", None))


class SkipTests(SynchronousTestCase):
    """An order in the log: the entry is in no state."""

    def setUp(self) -> None:
        self.disk = MemoryDisk()
        self.rig = HostedRig(disk=self.disk, factory=BadJournal, snapshot_entries=3).run()
        for number in range(4):
            self.rig.append(b"%d" % number)

    def order(self, index: int, rig: HostedRig | None = None) -> SkipResponse:
        """Ask the leader for it."""
        rig = rig or self.rig
        client = rig.client("127.0.0.1")
        client.send(SkipRequest(**rig.base(), index=index))
        rig.pass_turns()
        (answer,) = client.answers()
        assert isinstance(answer, SkipResponse)
        return answer

    def look(self, rig: HostedRig) -> None:
        """The member looks at its log."""
        rig.runner.sweep(rig.clock.seconds())
        rig.pass_turns()

    def test_a_skipped_entry_is_in_no_state(self) -> None:
        """The machine goes on without the entry, from its snapshot, and in a process that begins later."""
        self.rig.append(b"bad", b"4")
        self.assertEqual((self.rig.runner.state, self.rig.runner.failed_index), ("failed", 5))
        answer = self.order(5)
        self.assertEqual((answer.code, answer.index), (ResponseCode.SUCCESS, 7))
        self.look(self.rig)
        self.assertEqual((self.rig.runner.state, self.rig.runner.applied_index), ("running", 7))
        self.assertEqual(self.rig.journal.bodies, [b"0", b"1", b"2", b"3", b"4"])
        self.assertEqual(self.rig.runner.result_of(5).result, SKIPPED)
        self.assertEqual(self.rig.snapshots.heads[-1].index, 7)  # (after the order)
        self.rig.append(b"5")
        self.assertEqual(self.rig.snapshots.heads[-1].index, 8)
        again = HostedRig(disk=self.disk, factory=BadJournal)
        again.node.read_committed = self.rig.node.read_committed  # type: ignore[method-assign]
        again.node.core = self.rig.node.core
        again.runner.start()
        again.pass_turns()
        self.assertEqual((again.runner.state, again.journal.indexes), ("running", []))
        self.assertEqual(again.journal.bodies, self.rig.journal.bodies)

    def test_the_last_state_without_the_entry_is_kept(self) -> None:
        """
        The order is written and not yet committed, and this member starts again; the entry can be applied
        now, as the failure was a passing one: the snapshot before it stays until no order can come.
        """
        self.rig.append(b"bad", b"4")
        term = self.rig.node.core.member.term
        for noted, is_kept in ((term, True), (term - 1, False)):
            disk = MemoryDisk()
            disk.files = dict(self.disk.files)
            again = HostedRig(disk=disk, factory=Journal, snapshot_entries=3)
            again.snapshots.note_skip(5, noted)
            again.node.read_committed = self.rig.node.read_committed  # type: ignore[method-assign]
            again.node.core = self.rig.node.core
            again.runner.start()
            again.pass_turns()
            for number in range(12):
                self.rig.append(b"%d" % number)
                again.runner.committed()
                again.pass_turns()
            heads = [head.index for head in again.snapshots.heads]
            kept = [self.rig.snapshots.heads[-1].index] if is_kept else []
            self.assertLess(self.rig.snapshots.heads[-1].index, 5)
            self.assertEqual((heads[:-2], again.runner.needed_index), (kept, heads[0] - 1))
            again.snapshots.look()  # as at the next start
            self.assertEqual(again.snapshots.skipping, {5: noted} if is_kept else {})

    def test_an_order_that_cannot_be_noted_is_refused(self) -> None:
        """A full disk: nothing is written into the log."""
        self.rig.append(b"bad", b"4")
        with mock.patch.object(self.disk, "write_file", side_effect=OSError(28, "no space")):
            answer = self.order(5)
        self.assertEqual((answer.code, answer.index), (ResponseCode.DISK_ERROR, -1))
        self.assertIn("no space", answer.reason)
        self.assertEqual(self.order(5).code, ResponseCode.SUCCESS)

    def test_all_of_the_log_is_needed_without_a_state(self) -> None:
        """If no snapshot is before the entry, the log must be there from its begin."""
        rig = HostedRig(disk=MemoryDisk(), factory=Journal, snapshot_entries=3).run()
        self.successResultOf(Deferred.fromCoroutine(rig.runner.note_skip(1, 1)))
        for number in range(9):
            rig.append(b"%d" % number)
        self.assertEqual((len(rig.snapshots.heads), rig.runner.needed_index), (2, -1))
        self.assertEqual(rig.snapshots.proven_index, -1)

    def test_a_skip_needs_a_failed_machine(self) -> None:
        """Only where the leader's machine has failed; only from those who may change the group."""
        self.assertIn("is running, it has not failed", self.order(3).reason)
        self.rig.append(b"bad")
        answer = self.order(3)
        self.assertIs(answer.code, ResponseCode.UNEXPECTED_ARGUMENT)
        self.assertIn("has failed at the entry 5", answer.reason)
        client = self.rig.client()
        client.send(SkipRequest(**self.rig.base(), index=5))
        self.rig.pass_turns()
        self.assertIs(client.answers()[0].code, ResponseCode.FORBIDDEN)

    def test_an_applied_entry_is_taken_back(self) -> None:
        """A member that could apply the entry makes its state again, and refuses its snapshots with it."""
        rig = HostedRig(snapshot_entries=3).run()
        rig.append(b"0", b"1")
        rig.append(b"bad")
        rig.append(b"3")
        self.assertEqual([head.index for head in rig.snapshots.heads], [2])
        waiting = rig.runner.when_applied(9)
        rig.node.handlers.appends.append_own(MACHINE_CHANNEL, encode_skip(3))
        rig.pass_turns()
        self.assertEqual((rig.runner.state, rig.journal.bodies), ("running", [b"0", b"1", b"3"]))
        self.failureResultOf(waiting)
        rig = HostedRig(snapshot_entries=2).run()
        rig.append(b"0", b"1", b"bad")
        self.assertEqual([head.index for head in rig.snapshots.heads], [1, 3])
        rig.node.handlers.appends.append_own(MACHINE_CHANNEL, encode_skip(3))
        rig.pass_turns()
        self.assertIn("it has the entry 3, which is skipped", rig.runner.status().refused[0])
        self.assertEqual(rig.journal.bodies, [b"0", b"1"])

    def test_a_snapshot_that_gets_its_name_late_leaves_no_digest(self) -> None:
        """It has an entry that was skipped meanwhile: compared with others, it would be wrong."""
        rig = HostedRig(snapshot_entries=3).run()
        rig.machine_thread.is_lazy = True
        rig.append(b"0", b"bad")
        rig.machine_thread.finish()  # it is written, and gets its name next
        rig.pass_turns()
        self.assertEqual(len(rig.machine_thread.waiting), 1)
        rig.node.handlers.appends.append_own(MACHINE_CHANNEL, encode_skip(2))
        rig.pass_turns()
        self.assertEqual(rig.runner.state, "starting")
        rig.machine_thread.finish()
        self.assertEqual(rig.runner.digests, {})
        rig.machine_thread.is_lazy = False
        while rig.machine_thread.waiting:
            rig.machine_thread.finish()
        rig.pass_turns()
        self.assertEqual((rig.runner.state, rig.journal.bodies), ("running", [b"0"]))
        self.assertEqual(rig.runner.digests[2], rig.runner.digests[3])  # (both of the state without it)

    def test_an_order_that_the_log_no_longer_has(self) -> None:
        """The log begins after it: the machine needs another member's snapshot, as after a start."""
        self.rig.append(b"1", b"bad", b"3")
        self.assertEqual(self.rig.runner.state, "failed")

        def gone(first_index: int, *, max_bytes: int) -> None:
            raise DLedgerError(ResponseCode.INDEX_LESS_THAN_LOCAL_BEGIN, ledger_begin_index=begin_index)

        self.rig.node.read_committed = gone  # type: ignore[method-assign]
        begin_index = self.rig.runner.failed_index + 1
        self.look(self.rig)
        self.assertEqual(self.rig.runner.state, "failed", "the order may still come")
        begin_index += 5
        self.look(self.rig)
        self.assertEqual(self.rig.runner.failed_index, -1)
        self.assertIn("the log begins at 12, the state ends at 5", self.rig.runner.reason)
        self.flushLoggedErrors()

    def test_a_second_order_changes_nothing(self) -> None:
        """A second order for the same entry changes nothing, also in a process that began between the two."""
        disk = MemoryDisk()
        rig = HostedRig(disk=disk, snapshot_entries=1000).run()
        rig.append(b"0", b"bad", b"1")
        made = []
        again = rig
        for _ in range(2):
            rig.node.handlers.appends.append_own(MACHINE_CHANNEL, encode_skip(2))
            for one in (rig, again):
                one.runner.committed()
                one.pass_turns()
            if again is rig:
                again = self.again(rig, disk)
            made.append((len(rig.made), len(again.made)))
        self.assertEqual(made[0], made[1])
        self.assertEqual((again.runner.state, again.runner.applied_index), ("running", 5))
        self.assertEqual(again.journal.bodies, [b"0", b"1"])

    def test_behind_an_order(self) -> None:
        """A snapshot is taken there, also where none is due; but not where none is wanted at all."""
        for entries, heads in ((1000, [4]), (0, [])):
            rig = HostedRig(disk=MemoryDisk(), snapshot_entries=entries, snapshot_bytes=0).run()
            rig.append(b"0", b"bad", b"1")
            rig.node.handlers.appends.append_own(MACHINE_CHANNEL, encode_skip(2))
            rig.pass_turns()
            self.assertEqual([head.index for head in rig.snapshots.heads], heads)

    def test_snapshots_of_others(self) -> None:
        """One between the entry and the order is of use if it says that it was made without the entry."""
        skips = Skips({3: 9, 5: UNSEEN})
        self.assertIn("may have the entry 3", str(self.assertRaises(SnapshotRefused, skips.check, (), 4)))
        for left_out, last_index in (((3,), 4), ((), 2), ((), 9)):
            skips.check(left_out, last_index)
        skips.restored((5,), 9)
        self.assertEqual(skips.left_out, {3, 5})

    def test_a_snapshot_says_what_it_skipped(self) -> None:
        """A snapshot between the entry and the order says that it was made without the entry."""
        skips = Skips({3: UNSEEN})
        batch = [(header, body) for header, body in self.entries()]
        self.assertEqual(skips.results_in(batch[3:4]), {3: SKIPPED})
        self.assertEqual(skips, Skips({3: UNSEEN}, {3}))
        again = Skips()
        again.restored(skips.left_out, 3)
        self.assertEqual(again.look(batch[4:], 3), -1)
        again.results_in(batch[4:])
        self.assertEqual(again, Skips({3: 5}, {3}, has_passed=True))
        self.assertEqual([again.has_passed(), again.has_passed()], [True, False])

    def test_the_highest_skips_are_remembered(self) -> None:
        """The entries with the highest indexes are remembered."""
        skips = Skips({index: UNSEEN for index in range(5)}, set(range(5)))
        self.patch(skips_module, "SKIPS_MAX", 3)
        skips.results_in([])
        self.assertEqual((set(skips.ordered), skips.left_out), ({2, 3, 4}, {2, 3, 4}))
        self.assertEqual(Skips().look(self.entries()[4:], 3), 3)

    def again(self, rig: HostedRig, disk: MemoryDisk) -> HostedRig:
        """A process that begins with the same snapshots and the same log."""
        again = HostedRig(disk=disk, snapshot_entries=1000)
        again.node.read_committed = rig.node.read_committed  # type: ignore[method-assign]
        again.node.core = rig.node.core
        again.runner.start()
        again.pass_turns()
        return again

    def entries(self) -> list[tuple[object, bytes]]:
        """0 to 4, and an order to skip 3."""
        rig = HostedRig().run()
        rig.append(b"1", b"2", b"3", b"4")
        rig.node.handlers.appends.append_own(MACHINE_CHANNEL, encode_skip(3))
        rig.pass_turns()
        batch = rig.node.read_committed(0, max_bytes=100_000)
        assert batch is not None
        return list(iterate_records(batch))

    def test_a_later_start_finds_the_order(self) -> None:
        """A process that begins after neither comes to the entry first: it looks ahead for the order."""
        self.rig.append(b"bad", *[b"x"] * 3)
        self.order(5)
        again = HostedRig(factory=BadJournal)
        again.node.read_committed = self.rig.node.read_committed  # type: ignore[method-assign]
        again.node.core = self.rig.node.core
        self.patch(reading_ahead, "READ_BYTES", 100)
        self.patch(failed_entry, "READ_BYTES", 100)
        again.runner.start()
        again.pass_turns()
        self.assertEqual(again.runner.state, "failed")
        self.look(again)
        self.assertEqual((again.runner.state, again.runner.applied_index), ("running", 9))
        self.assertNotIn(b"bad", again.journal.bodies)
        self.flushLoggedErrors()
