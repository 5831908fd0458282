# -*- test-case-name: tests.machine.test_snapshots -*-
"""Snapshots: written, read again, kept, refused; and crashes in every disk call of a write."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from twisted.trial.unittest import SynchronousTestCase

from dledger.base.disk.disk import Disk, File
from dledger.machine.files import snapshots
from dledger.machine.files.snapshots import SnapshotDirectory
from dledger.storage.files.snapshot_file import (
    CHUNK_BYTES_MAX,
    STEP_BYTES,
    SnapshotHead,
    SnapshotRefused,
    check_snapshot,
    read_pieces,
    write_snapshot,
)
from dledger.testing.crashes.disk import CrashDisk
from dledger.testing.crashes.engine import Enumeration, demand
from dledger.testing.world.memory_disk import MemoryDisk

PIECES = (b"first", b"", b"second" * 10)


class StepsDisk(MemoryDisk):
    """@ivar unsynced: bytes of its one file that are not durable. @ivar most_unsynced: their maximum."""

    unsynced = most_unsynced = 0

    def open(self, path: str, *, create: bool = False, size: int = 0, reserved: int = -1) -> File:
        """A file that is watched."""
        file = super().open(path, create=create, size=size, reserved=reserved)
        write, sync = file.pwrite, file.datasync

        def pwrite(data: bytes | memoryview, position: int) -> None:
            self.unsynced += len(data)
            self.most_unsynced = max(self.most_unsynced, self.unsynced)
            write(data, position)

        def datasync() -> None:
            self.unsynced = 0
            sync()

        if create:
            file.pwrite, file.datasync = pwrite, datasync  # type: ignore[method-assign]
        return file


def directory(disk: Disk, *, machine: str = "m", version: int = 1) -> SnapshotDirectory:
    """A directory on a disk, as a machine sees it."""
    found = SnapshotDirectory(disk, "s/machine", machine=machine, machine_version=version)
    found.look()
    return found


def write(
    found: SnapshotDirectory, index: int, chunks: Iterable[bytes] = PIECES,
    problem: Callable[[], str] = lambda: "",
) -> int:
    """A snapshot after an entry."""
    written = found.write(index=index, term=3, chain_crc=-5, chunks=chunks, problem=problem)
    found.name(written)
    return written.size


class SnapshotTests(SynchronousTestCase):
    """A directory of snapshots."""

    def setUp(self) -> None:
        self.disk = MemoryDisk()
        self.disk.makedirs("s")
        self.found = directory(self.disk)

    def names(self) -> list[str]:
        """The files."""
        return self.disk.listdir("s/machine")

    def test_a_snapshot_is_read_again(self) -> None:
        """What was written is there at the next start, in the same pieces."""
        size = write(self.found, 7)
        self.assertEqual(self.disk.file_size("s/machine/snapshot-7-3"), size)
        again = directory(self.disk)
        (head,) = again.heads
        self.assertEqual((head.index, head.term, head.chain_crc, head.machine), (7, 3, -5, "m"))
        self.assertEqual(tuple(again.read(head)), PIECES)

    def test_two_are_kept(self) -> None:
        """The last two; a file that is none of them stays."""
        self.disk.write_file("s/machine/notes", b"x")
        for index in (1, 5, 12):
            write(self.found, index)
        self.assertEqual(self.names(), ["notes", "snapshot-12-3", "snapshot-5-3"])
        self.assertEqual([head.index for head in directory(self.disk).heads], [5, 12])

    def test_appends_have_the_disk(self) -> None:
        """Each step is durable before the next one, and the writer rests after it."""
        head = SnapshotHead(index=7, term=3, chain_crc=0, machine="m", machine_version=1)
        state, disk, unsynced = b"x" * (4 * STEP_BYTES), StepsDisk(), list[int]()
        write_snapshot(
            disk, "snapshot", head, (state,), lambda: "",
            lambda: unsynced.append(disk.unsynced) or STEP_BYTES,
        )
        self.assertEqual(unsynced, [0] * 4)
        self.assertLessEqual(disk.most_unsynced, 2 * STEP_BYTES)
        self.assertEqual(b"".join(read_pieces(disk, "snapshot")), state)

    def test_every_cut_and_bit(self) -> None:
        """A file that is cut anywhere, or has a bit flipped in any byte, is refused with a sentence."""
        write(self.found, 7)
        path = "s/machine/snapshot-7-3"
        whole = self.disk.read_file(path)
        for size in range(len(whole)):
            self.disk.write_file(path, whole[:size])
            self.assertRaises(SnapshotRefused, check_snapshot, self.disk, path)
        for at in range(len(whole)):
            for bit in (1, 128):
                self.disk.write_file(path, whole[:at] + bytes((whole[at] ^ bit,)) + whole[at + 1 :])
                error = self.assertRaises(SnapshotRefused, check_snapshot, self.disk, path)
                self.assertIn(path, str(error))
        self.disk.write_file(path, whole + b"\0")
        self.assertRaises(SnapshotRefused, check_snapshot, self.disk, path)

    def test_a_refused_snapshot_keeps_the_older(self) -> None:
        """A refused snapshot leaves the older one; it is never removed, and its name can be taken again."""
        write(self.found, 5)
        write(self.found, 9)
        content = self.disk.read_file("s/machine/snapshot-9-3")[:-3]
        self.disk.write_file("s/machine/snapshot-9-3", content)
        again = directory(self.disk)
        self.assertEqual([head.index for head in again.heads], [5])
        self.assertEqual(len(again.refused), 1)
        self.assertIn("snapshot-9-3 is cut", again.refused[0])
        for index in (9, 11, 13):
            write(again, index)
        self.assertEqual(self.names(), ["snapshot-11-3", "snapshot-13-3", "snapshot-9-3.refused-1"])
        self.assertEqual(self.disk.read_file("s/machine/snapshot-9-3.refused-1"), content)

    def test_foreign_snapshots_are_refused(self) -> None:
        """Other machines, other versions, other names and other formats are refused, each with a sentence."""
        write(self.found, 5)
        for machine, version, says in (("x", 1, "of the machine 'm'"), ("m", 2, "has the version 1 of 'm'")):
            other = directory(self.disk, machine=machine, version=version)
            self.assertEqual(other.heads, [])
            self.assertIn(says, other.refused[0])
        content = self.disk.read_file("s/machine/snapshot-5-3")
        self.disk.write_file("s/machine/snapshot-6-3", content)
        self.disk.write_file("s/machine/snapshot-8-3", b"\0" * len(content))
        again = directory(self.disk)
        self.assertEqual([head.index for head in again.heads], [5])
        self.assertIn("it was renamed", again.refused[0])
        self.assertIn("is not a snapshot", again.refused[1])

    def test_a_write_given_up_leaves_nothing(self) -> None:
        """A write that is given up, or gets what is no piece, leaves nothing; the older one stays."""
        write(self.found, 5)
        error = self.assertRaises(SnapshotRefused, write, self.found, 9, problem=lambda: "it takes too long")
        self.assertEqual(str(error), "it takes too long")
        for piece, says in ((bytes(CHUNK_BYTES_MAX + 1), f"{CHUNK_BYTES_MAX + 1} bytes"), ("text", "a str")):
            error = self.assertRaises(SnapshotRefused, write, self.found, 9, [piece])
            self.assertIn(says, str(error))

        def broken() -> Iterable[bytes]:
            yield b"x"
            raise KeyError("y")

        self.assertRaises(KeyError, write, self.found, 9, broken())
        self.assertEqual(self.names(), ["snapshot-5-3"])
        self.assertEqual([head.index for head in self.found.heads], [5])


class _Story:
    """Three snapshots, one after the other. A promise: the index of the last one that was written."""

    name = "snapshots"

    def run(self, disk: CrashDisk, promised: Callable[[int], None]) -> None:
        """Write them."""
        disk.makedirs("s")
        disk.settle()
        promised(-1)
        found = directory(disk)
        for index in (4, 8, 12):
            write(found, index, [b"state %d" % index, b"x" * 20])
            promised(index)

    def check(self, disk: CrashDisk, promise: int, *, boots: int, goes_on: Callable[[], bool]) -> None:
        """The last one that was written is there, whole; nothing unsound is; the next one can be written."""
        found = directory(disk)
        indexes = [head.index for head in found.heads]
        demand(promise < 0 or promise in indexes, f"{promise} is gone, there are {indexes}")
        demand(not found.refused, f"refused: {found.refused}")
        for head in found.heads:
            pieces = list(found.read(head))
            demand(pieces[0] == b"state %d" % head.index, f"{head.index} has the state {pieces[0]!r}")
        if goes_on():
            write(found, 99, [b"state 99"])
            again = [head.index for head in directory(disk).heads]
            demand(again == [*indexes[-1:], 99], f"{again} after {indexes}")


class CrashTests(SynchronousTestCase):
    """The process or the machine ends in every changing call, also in those of the next start."""

    def test_a_crash_costs_no_snapshot(self) -> None:
        """No crash costs a snapshot that was written, and none leaves an unsound one."""
        tally = Enumeration(_Story()).run()
        self.assertEqual(tally.bad, [])
        self.assertGreater(tally.images, 50)
        self.assertGreater(tally.second_images, 20)

    def test_a_missing_flush_is_noticed(self) -> None:
        """Without the flush before the name, it finds a bad state."""
        real = snapshots.write_snapshot

        def careless(disk: CrashDisk, path: str, *rest: object) -> int:
            file_class = type(disk.open(path, create=True))
            disk.unlink(path)
            self.patch(file_class, "datasync", lambda file: None)
            return real(disk, path, *rest)  # type: ignore[arg-type]

        self.patch(snapshots, "write_snapshot", careless)
        self.assertNotEqual(Enumeration(_Story(), second_share=0).run().bad, [])
