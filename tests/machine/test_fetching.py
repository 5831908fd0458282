# -*- test-case-name: tests.machine.test_fetching -*-
"""A machine whose log begins after its state: it gets a snapshot of another member, or says why not."""

from __future__ import annotations

from collections.abc import Callable
from zlib import crc32

import attrs
from twisted.internet.defer import Deferred, fail, succeed
from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from dledger.machine.files import fetching
from dledger.machine.files.fetching import THROTTLED_S, TRIES
from dledger.machine.files.offering import HELD_S
from dledger.machine.files.snapshots import SnapshotDirectory
from dledger.machine.runner import MachineRunner
from dledger.machine.waiting import WaitBounds
from dledger.node.host import MachineHost
from dledger.storage.files.snapshot_file import SnapshotRefused
from dledger.testing.crashes.disk import CrashDisk
from dledger.testing.crashes.engine import Enumeration, demand
from dledger.testing.world.memory_disk import MemoryDisk
from dledger.values.errors import DLedgerError
from protocols.wire.codes import ResponseCode
from protocols.wire.ledger.batches import EntryBatch
from protocols.wire.ledger.machines import SnapshotRequest, SnapshotResponse
from tests.machine.machines import Journal, NextJournal
from tests.machine.rig import HostedRig
from tests.node.rig import FakeThread

Bend = Callable[[SnapshotResponse], SnapshotResponse]


class Sender:
    """
    Another member that answers from the snapshots of its machine.

    @ivar piece_bytes: of one piece.
    @ivar is_silent: it never answers; @ivar lost: number of answers that are lost.
    @ivar bend: changes what is answered.
    """

    is_in_group = True

    def __init__(self, rig: HostedRig) -> None:
        self.rig = rig
        self.piece_bytes = 48
        self.is_silent = False
        self.lost = 0
        self.bend: Bend = lambda answer: answer
        self.asked: list[SnapshotRequest] = []
        self.waiting: Deferred[SnapshotResponse] = Deferred()

    def senders(self) -> tuple[str, ...]:
        """One."""
        return ("n1",)

    def ask(self, peer_id: str, request: SnapshotRequest) -> Deferred[SnapshotResponse]:
        """At once."""
        self.asked.append(request)
        if self.is_silent:
            return self.waiting
        if self.lost:
            self.lost -= 1
            return fail(DLedgerError(ResponseCode.NETWORK_ERROR, reason="the connection was lost"))
        try:
            piece = self.rig.runner.piece_for(request, self.piece_bytes)
        except DLedgerError as error:
            return succeed(SnapshotResponse(code=error.code, reason=str(error.facts["reason"])))
        return succeed(self.bend(SnapshotResponse(
            index=piece.index, index_term=piece.term, size=piece.size, offset=piece.offset, data=piece.data,
            crc=crc32(piece.data),
        )))


@attrs.define
class Log:
    """The log of the receiver: that of the sender, from C{begin_index} on, as far as C{committed_index}."""

    rig: HostedRig
    begin_index: int
    committed_index: int

    def read_committed(self, first_index: int, *, max_bytes: int) -> EntryBatch | None:
        """See L{Node.read_committed}."""
        if first_index > self.committed_index:
            return None
        if first_index < self.begin_index:
            raise DLedgerError(
                ResponseCode.INDEX_LESS_THAN_LOCAL_BEGIN, ledger_begin_index=self.begin_index
            )
        return self.rig.store.read_range(first_index, end_index=self.committed_index, max_bytes=max_bytes)


class FetchCase(SynchronousTestCase):
    """A sender with snapshots after 5 and 8, and a member whose log begins with 5."""

    factory: type[Journal] = Journal

    def setUp(self) -> None:
        rig = self.rig = HostedRig(snapshot_entries=3).run()
        for number in range(9):
            rig.append(b"%d" % number)
        self.sender, self.disk, self.clock = Sender(rig), MemoryDisk(), Clock()
        self.disk.makedirs("s")
        self.entries = Log(rig, 5, 9)
        self.made: list[Journal] = []

    def make(self) -> Journal:
        """A new machine."""
        self.made.append(self.factory())
        return self.made[-1]

    def start(self) -> MachineRunner:
        """A process of the receiver."""
        self.thread = FakeThread()
        self.snapshots = SnapshotDirectory(
            self.disk, "s/machine", machine=self.factory.name, machine_version=self.factory.version
        )
        self.runner = MachineRunner(
            self.make, self.entries,
            MachineHost(self_id="n0", clock=self.clock, run_in_thread=self.thread.run),
            snapshots=self.snapshots, waits=WaitBounds(waits_max=10, wait_ms=1000), source=self.sender,
        )
        self.runner.start()
        self.pass_s(0)
        return self.runner

    def pass_s(self, seconds: float) -> None:
        """Time passes."""
        for _ in range(int(seconds / 0.1) + 5):
            self.clock.advance(0.1)
            self.runner.sweep(self.clock.seconds())

    def assert_whole(self) -> None:
        """The machine has the state of the log, and each entry after the snapshot was applied once."""
        self.assertEqual((self.runner.state, self.runner.applied_index), ("running", 9))
        self.assertEqual(self.made[-1].bodies, self.rig.journal.bodies)
        self.assertEqual(self.made[-1].indexes, [9])


class FetchTests(FetchCase):
    """Pieces, one after the other."""

    def test_a_fetched_snapshot_is_installed(self) -> None:
        """The newest snapshot comes in pieces; its state goes on with the log, and the next start has it."""
        self.start()
        self.assert_whole()
        size = self.rig.disk.file_size("s/machine/snapshot-8-1")
        self.assertEqual([asked.offset for asked in self.sender.asked], list(range(0, size, 48)))
        self.assertEqual({asked.index for asked in self.sender.asked[1:]}, {8})
        self.assertEqual(self.disk.listdir("s/machine"), ["snapshot-8-1"])
        self.sender.asked.clear()
        self.start()
        self.assert_whole()
        self.assertEqual(self.sender.asked, [])

    def test_nobody_is_answered_while_fetching(self) -> None:
        """Nobody is answered before the state is whole; callers that waited are informed."""
        self.sender.is_silent = True
        self.start()
        self.assertEqual(self.runner.state, "installing")
        refusal = self.runner.refusal
        assert refusal is not None
        self.assertIs(refusal.code, ResponseCode.LEADER_NOT_READY)
        error = self.failureResultOf(self.runner.when_applied(9), DLedgerError).value
        self.assertIs(error.code, ResponseCode.LEADER_NOT_READY)

    def test_a_lost_piece_is_asked_for_again(self) -> None:
        """An answer that is lost is asked for again, and only that piece."""
        self.sender.lost = 2
        self.start()
        self.pass_s(5)
        self.assert_whole()
        offsets = [asked.offset for asked in self.sender.asked]
        self.assertEqual(offsets[:4], [0, 0, 0, 48])
        self.assertEqual(len(set(offsets)), len(offsets) - 2)

    def test_a_throttled_sender_is_asked_again(self) -> None:
        """A sender that may send nothing now is asked again, for as long as it takes."""
        self.sender.bend = lambda answer: SnapshotResponse()
        self.start()
        self.pass_s(10)
        self.assertEqual(self.runner.state, "installing")
        self.assertGreater(len(self.sender.asked), TRIES)
        self.assertLess(len(self.sender.asked), 12 / THROTTLED_S)
        self.sender.bend = lambda answer: answer
        self.pass_s(1)
        self.assert_whole()

    def test_throttled_for_long(self) -> None:
        """Then the next member is asked, which may have more of its quota left."""
        self.patch(fetching, "THROTTLED_MAX", 5)
        self.sender.senders = lambda: ("n1", "n2")  # type: ignore[method-assign]
        asked: list[str] = []
        answer = self.sender.ask

        def ask(peer_id: str, request: SnapshotRequest) -> Deferred[SnapshotResponse]:
            asked.append(peer_id)
            return succeed(SnapshotResponse()) if peer_id == "n1" else answer(peer_id, request)

        self.sender.ask = ask  # type: ignore[method-assign]
        self.start()
        self.pass_s(5)
        self.assert_whole()
        self.assertEqual(asked.count("n1"), 5)

    def test_a_state_that_is_never_taken(self) -> None:
        """The machine raises each time: the snapshot is sent ever more seldom."""
        self.patch(Journal, "restore", lambda _self, _chunks: 1 // 0)
        self.start()
        times = []
        for _ in range(60):
            before = len(self.sender.asked)
            self.pass_s(10)
            times.append(len(self.sender.asked) > before)
        self.assertTrue(all(times[:2]))
        self.assertLess(sum(times), 15)
        self.assertEqual(self.runner.state, "installing")

    def refused(self, bend: Bend, says: str) -> None:
        """No state of those answers, and nothing of it stays; sound ones are taken then."""
        self.sender.bend = bend
        self.start()
        self.pass_s(12)
        self.assertEqual((self.runner.state, self.runner.applied_index), ("installing", -1))
        self.assertIn(says, self.runner.status().installing)
        self.assertNotIn("snapshot-8-1", self.disk.listdir("s/machine"))
        self.sender.bend = lambda answer: answer
        self.pass_s(20)
        self.assert_whole()

    def test_a_damaged_piece_is_refused(self) -> None:
        """Its checksum does not fit."""
        self.refused(lambda answer: attrs.evolve(answer, data=bytes(48)), "its checksum does not fit")

    def test_damaged_at_the_sender(self) -> None:
        """The checksums of the file do not fit, though those of the pieces do."""

        def bend(answer: SnapshotResponse) -> SnapshotResponse:
            data = answer.data or b""
            if answer.offset:
                data = data[:-1] + bytes((data[-1] ^ 1,))
            return attrs.evolve(answer, data=data, crc=crc32(data))

        self.refused(bend, "is damaged")

    def test_another_piece_is_refused(self) -> None:
        """Another place of the file, more than the file has, nothing, or the file of another snapshot."""
        self.refused(lambda answer: attrs.evolve(answer, offset=answer.offset + 1), "were asked for")
        self.disk = MemoryDisk()
        self.disk.makedirs("s")
        self.refused(lambda answer: attrs.evolve(answer, size=20), "were asked for")
        self.disk = MemoryDisk()
        self.disk.makedirs("s")
        self.refused(lambda answer: attrs.evolve(answer, index=8 + (answer.offset > 0)), "it was (8, 1,")

    def test_an_old_snapshot_is_refused(self) -> None:
        """A snapshot after which the log does not go on is refused before a byte of it is written."""
        self.entries.begin_index = 9
        self.refused(lambda answer: attrs.evolve(answer, index=7), "after the entry 7, here one after 8")
        self.assertEqual(self.runner.state, "running")

    def test_older_than_the_state(self) -> None:
        """So is one that has no more than the state."""
        self.entries.begin_index, self.entries.committed_index = 0, 7
        self.start()
        self.assertEqual(self.runner.applied_index, 7)
        self.entries.begin_index, self.entries.committed_index = 9, 9
        self.sender.bend = lambda answer: attrs.evolve(answer, index=7)
        self.runner.committed()
        self.pass_s(5)
        self.assertEqual((self.runner.state, self.runner.applied_index), ("installing", 7))
        self.assertEqual(self.disk.listdir("s/machine"), [])

    def test_another_machine_is_refused(self) -> None:
        """The sender refuses another name or version, with a code; this member refuses the header, too."""
        self.factory = NextJournal
        self.start()
        self.pass_s(3)
        self.assertIn("UNSUPPORTED its snapshot has the version 1", self.runner.status().installing)
        self.assertGreater(self.runner.status().rounds_in_vain, 0)
        snapshots = self.rig.snapshots
        snapshots.heads = [attrs.evolve(one, machine_version=2) for one in snapshots.heads]
        self.pass_s(16)
        self.assertIn("has the version 1 of 'journal', this member runs", self.runner.status().installing)
        self.assertEqual(self.runner.state, "installing")

    def test_another_log_is_refused(self) -> None:
        """A snapshot of another group is refused when the log has its last entry; the copy is removed."""
        other = HostedRig(snapshot_entries=3).run()
        other.append(b"earlier")
        for number in range(8):
            other.append(b"other %d" % number)
        self.sender.rig = other
        self.start()
        self.pass_s(4)
        self.assertEqual((self.runner.state, self.runner.applied_index), ("installing", -1))
        self.assertIn("is of another log", self.runner.status().refused[0])
        self.assertEqual(self.disk.listdir("s/machine"), [])
        self.sender.rig = self.rig
        self.pass_s(10)
        self.assert_whole()

    def test_waits_for_the_log(self) -> None:
        """The state is not shown before the log has its last entry, so that both can be compared."""
        self.entries.committed_index = 7
        self.start()
        self.pass_s(3)
        self.assertEqual((self.runner.state, len(self.made)), ("installing", 1))
        self.assertIn("must come to the entry 8", self.runner.status().installing)
        self.entries.committed_index = 9
        self.pass_s(1)
        self.assert_whole()

    def test_begins_anew_meanwhile(self) -> None:
        """Where the log begins after the snapshot now, another one is asked for."""
        self.entries.committed_index = 7
        self.start()
        for number in range(3):
            self.rig.append(b"%d" % number)
        self.entries.begin_index, self.entries.committed_index = 11, 12
        self.pass_s(3)
        self.assertEqual((self.runner.state, self.runner.applied_index), ("running", 12))
        self.assertEqual(self.made[-1].bodies, self.rig.journal.bodies)

    def test_a_full_disk_is_tried_again(self) -> None:
        """A disk that takes no piece stops nothing; it is tried again."""
        receive = SnapshotDirectory.receive

        def fails(found: SnapshotDirectory, data: bytes, offset: int) -> None:
            raise OSError(28, "no room")

        self.patch(SnapshotDirectory, "receive", fails)
        self.start()
        self.pass_s(2)
        self.assertIn("no room", self.runner.status().installing)
        self.patch(SnapshotDirectory, "receive", receive)
        self.pass_s(5)
        self.assert_whole()

    def test_a_stop_waits_for_no_answer(self) -> None:
        """A stop does not wait for an answer."""
        self.sender.is_silent = True
        self.start()
        self.successResultOf(self.runner.stop())
        self.assertEqual(self.runner.state, "stopped")

    def test_the_page_says_who_refused(self) -> None:
        """The page says which member has refused, and why."""
        refusal = SnapshotResponse(code=ResponseCode.DISK_ERROR, reason="no such file")
        self.sender.bend = lambda answer: refusal
        self.start()
        self.pass_s(5)
        self.assertEqual(self.runner.state, "installing")
        self.assertIn("(n1: DISK_ERROR no such file)", self.runner.status().installing)

    def test_a_lone_member_stops_its_machine(self) -> None:
        """Without other members the machine stops, and says what to do."""
        self.sender.is_in_group = False
        self.start()
        self.assertEqual(self.runner.state, "failed")
        self.assertIn("Copy a snapshot of another member", self.runner.reason)


class OfferTests(FetchCase):
    """What is sent stays while it is sent."""

    def test_a_snapshot_stays_while_it_is_sent(self) -> None:
        """The snapshot and the log after it, until nobody has asked for a while."""
        runner, clock = self.rig.runner, self.rig.clock
        request = SnapshotRequest(machine="journal", machine_version=1, index=5, index_term=1)
        runner.piece_for(request, 10)
        for number in range(6):
            self.rig.append(b"%d" % number)
        self.assertEqual([head.index for head in self.rig.snapshots.heads], [5, 11, 14])
        self.assertEqual(runner.needed_index, 4)
        clock.advance(HELD_S)
        for number in range(3):
            self.rig.append(b"%d" % number)
        self.assertEqual([head.index for head in self.rig.snapshots.heads], [14, 17])
        error = self.assertRaises(DLedgerError, runner.piece_for, request, 10)
        self.assertIs(error.code, ResponseCode.INDEX_LESS_THAN_LOCAL_BEGIN)

    def test_refusals_have_their_codes(self) -> None:
        """Each with a code."""
        runner = self.rig.runner
        right = SnapshotRequest(machine="journal", machine_version=1)
        for request, code in (
            (attrs.evolve(right, machine="x"), ResponseCode.UNSUPPORTED),
            (attrs.evolve(right, machine_version=2), ResponseCode.UNSUPPORTED),
            (attrs.evolve(right, offset=-1), ResponseCode.UNEXPECTED_ARGUMENT),
            (attrs.evolve(right, offset=1 << 40), ResponseCode.UNEXPECTED_ARGUMENT),
            (attrs.evolve(right, index=8, index_term=2), ResponseCode.INDEX_LESS_THAN_LOCAL_BEGIN),
        ):
            self.assertIs(self.assertRaises(DLedgerError, runner.piece_for, request, 10).code, code)
        self.rig.disk.unlink("s/machine/snapshot-8-1")
        self.assertIs(self.assertRaises(DLedgerError, runner.piece_for, right, 10).code,
                      ResponseCode.DISK_ERROR)
        error = self.assertRaises(DLedgerError, HostedRig().run().runner.piece_for, right, 10)
        self.assertIs(error.code, ResponseCode.INDEX_OUT_OF_RANGE)


class WithoutTests(SynchronousTestCase):
    """A member without a directory for snapshots."""

    def test_without_a_disk_nothing_is_proven(self) -> None:
        """It has none that the log could do without."""
        self.assertEqual(HostedRig(disk=None).run().runner.proven_index, -1)


class ProvenTests(FetchCase):
    """After which snapshot the log may go."""

    def directory(self, *, proves: bool = True) -> SnapshotDirectory:
        """With two snapshots, 5 and 8."""
        found = SnapshotDirectory(
            self.rig.disk, "s/machine", machine="journal", machine_version=1, proves_oldest=proves
        )
        found.look()
        return found

    def write(self, found: SnapshotDirectory, index: int) -> None:
        """Another one."""
        found.name(found.write(index=index, term=1, chain_crc=0, chunks=[b"x"], problem=lambda: ""))

    def test_the_oldest_snapshot_frees_the_log(self) -> None:
        """The oldest of two; none if there is one only, or if nobody looks."""
        found = self.directory()
        self.assertEqual(found.proven_index, 5)
        self.write(found, 11)
        self.assertEqual(found.proven_index, 8)
        self.write(self.directory(proves=False), 14)
        self.assertEqual(self.directory(proves=False).proven_index, 11)
        alone = SnapshotDirectory(
            MemoryDisk(), "machine", machine="m", machine_version=1, proves_oldest=True
        )
        alone.look()
        self.write(alone, 3)
        self.assertEqual(alone.proven_index, -1)

    def test_a_rotten_snapshot_does_not_count(self) -> None:
        """The one that was sound when it was written is read again before it counts; then it is refused."""
        found = self.directory()
        content = self.rig.disk.read_file("s/machine/snapshot-8-1")
        self.rig.disk.write_file("s/machine/snapshot-8-1", content[:-1])
        self.write(found, 11)
        self.assertEqual((found.proven_index, [head.index for head in found.heads]), (-1, [11]))
        self.assertIn("snapshot-8-1", self.rig.disk.listdir("s/machine"))


class _Story:
    """A snapshot comes in three pieces. A promise: whether it has its name."""

    name = "incoming"

    def __init__(self, content: bytes) -> None:
        self.content = content

    def directory(self, disk: CrashDisk) -> SnapshotDirectory:
        """At a start."""
        found = SnapshotDirectory(disk, "s/machine", machine="journal", machine_version=1)
        found.look()
        return found

    def run(self, disk: CrashDisk, promised: Callable[[int], None]) -> None:
        """An own one, older; then that of the other member."""
        disk.makedirs("s")
        disk.settle()
        found = self.directory(disk)
        found.name(found.write(index=3, term=1, chain_crc=0, chunks=[b"old"], problem=lambda: ""))
        promised(3)
        self.receive(found)
        promised(8)

    def receive(self, found: SnapshotDirectory) -> None:
        """All pieces."""
        third = len(self.content) // 3 + 1
        for at in range(0, len(self.content), third):
            found.receive(self.content[at : at + third], at)
        found.received(8, 1)

    def check(self, disk: CrashDisk, promise: int, *, boots: int, goes_on: Callable[[], bool]) -> None:
        """The old one is there, the new one is there as a whole or not at all; it can come again."""
        found = self.directory(disk)
        indexes = [head.index for head in found.heads]
        demand(not found.refused, f"refused: {found.refused}")
        demand(promise in indexes and 3 in indexes, f"{promise} is gone, there are {indexes}")
        demand(not disk.exists("s/machine/incoming"), "half a snapshot stays")
        if goes_on():
            if 8 not in indexes:
                self.receive(found)
            demand([head.index for head in self.directory(disk).heads] == [3, 8], "it does not come again")


class CrashTests(FetchCase):
    """The process or the machine ends in every changing call."""

    def story(self) -> _Story:
        """With the bytes of a real snapshot."""
        return _Story(self.rig.disk.read_file("s/machine/snapshot-8-1"))

    def test_a_crash_leaves_no_half_snapshot(self) -> None:
        """No state of the disk shows half a snapshot."""
        tally = Enumeration(self.story()).run()
        self.assertEqual(tally.bad, [])
        self.assertGreater(tally.images, 30)

    def test_an_unsound_file_is_removed(self) -> None:
        """What does not fit is gone at once, and says why."""
        disk = MemoryDisk()
        disk.makedirs("s")
        found = SnapshotDirectory(disk, "s/machine", machine="journal", machine_version=1)
        found.look()
        content = self.story().content
        found.receive(content[:-1], 0)
        self.assertIn("is cut", str(self.assertRaises(SnapshotRefused, found.received, 8, 1)))
        found.receive(content, 0)
        self.assertIn("renamed", str(self.assertRaises(SnapshotRefused, found.received, 9, 1)))
        self.assertEqual((disk.listdir("s/machine"), found.heads), ([], []))
