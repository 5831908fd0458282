# -*- test-case-name: tests.sim.test_crashes -*-
"""Crashes in every changing disk call, and flipped bits: nothing bad is found, and what is broken is."""

from __future__ import annotations

import random
from collections.abc import Callable
from unittest import mock

from click.testing import CliRunner
from twisted.trial.unittest import SynchronousTestCase

from dledger.base.disk.segment import SegmentList
from dledger.base.disk.two_slots import SlotFile
from dledger.storage.files.commit_mark import CommitMark
from dledger.storage.files.term_file import TermFile
from dledger.testing.crashes.__main__ import main
from dledger.testing.crashes.disk import CrashDisk
from dledger.testing.crashes.engine import BadImage, CrashTally, Enumeration, subsets
from dledger.testing.crashes.image import DiskImage
from dledger.testing.crashes.ledger_flips import Flipping, FlipTally, situations
from dledger.testing.crashes.ledger_stories import ledger_stories

STORIES = {story.name: story for story in ledger_stories()}


def outcomes(image: DiskImage) -> list[dict[str, bytes]]:
    """The contents that power cuts leave, each once."""
    found: list[dict[str, bytes]] = []
    for kept in subsets(image.pending, random.Random(1), subsets_max=1 << 10):
        left = image.after_power_cut(kept).contents()
        if left not in found:
            found.append(left)
    return found


class DiskTests(SynchronousTestCase):
    """The states that a power cut may leave, and those that it may not."""

    def setUp(self) -> None:
        self.disk = CrashDisk()
        self.disk.makedirs("d")
        self.disk.makedirs("e")
        self.file = self.disk.open("d/a", create=True, size=4)
        self.disk.settle()

    def test_writes_are_independent(self) -> None:
        """Any of two writes may be lost, the later one alone, too."""
        self.file.pwrite(b"x", 0)
        self.file.pwrite(b"y", 3)
        found = {left["d/a"] for left in outcomes(self.disk.image())}
        self.assertEqual(found, {b"\0\0\0\0", b"x\0\0\0", b"\0\0\0y", b"x\0\0y"})

    def test_synced(self) -> None:
        """Nothing that was synced is lost."""
        self.file.pwrite(b"x", 0)
        self.file.datasync()
        self.assertEqual(outcomes(self.disk.image()), [{"d/a": b"x\0\0\0"}])

    def test_sync_that_began_earlier(self) -> None:
        """Writes after its beginning may be lost."""
        self.file.pwrite(b"x", 0)
        number = self.disk.begin_sync()
        self.file.pwrite(b"y", 1)
        with self.disk.syncing_up_to(number):
            self.file.datasync()
        self.assertEqual({left["d/a"] for left in outcomes(self.disk.image())}, {b"x\0\0\0", b"xy\0\0"})

    def test_sectors_are_independent(self) -> None:
        """Of one write over a sector's end, either part may be lost."""
        file = self.disk.open("d/b", create=True, size=1024)
        self.disk.settle()
        file.pwrite(b"xy", 511)
        self.assertEqual({left["d/b"][511:513] for left in outcomes(self.disk.image())},
                         {b"\0\0", b"x\0", b"\0y", b"xy"})

    def test_length(self) -> None:
        """A new file may be without its name; with it, without its length, and then without its bytes."""
        self.disk.open("d/b", create=True, size=4).pwrite(b"x", 1)
        found = {left.get("d/b") for left in outcomes(self.disk.image())}
        self.assertEqual(found, {None, b"", b"\0\0\0\0", b"\0x\0\0"})

    def test_rename(self) -> None:
        """The file has its old name, the new one, or both, and never none."""
        with mock.patch.object(CrashDisk, "sync_directory"):
            self.disk.rename("d/a", "e/b")
        names = [sorted(left) for left in outcomes(self.disk.image())]
        self.assertEqual(sorted(names), [["d/a"], ["d/a", "e/b"], ["e/b"]])

    def test_rename_is_one(self) -> None:
        """A sync of the old directory alone does not lose the file."""
        with mock.patch.object(CrashDisk, "sync_directory"):
            self.disk.rename("d/a", "e/b")
        self.disk.sync_directory("d")
        self.assertEqual([sorted(left) for left in outcomes(self.disk.image())], [["e/b"]])

    def test_replacement(self) -> None:
        """A file that is replaced as a whole has the old content or the new one."""
        self.disk.write_file("d/c", b"old")
        seen: set[bytes] = set()
        self.disk.watcher = lambda _: seen.update(left["d/c"] for left in outcomes(self.disk.image()))
        self.disk.write_file("d/c", b"new")
        self.assertEqual(seen, {b"old", b"new"})

    def test_changes_of_a_name_in_order(self) -> None:
        """Of one name, a later change is not kept without the earlier one."""
        self.disk.unlink("d/a")
        self.disk.open("d/a", create=True, size=2)
        self.assertEqual({left.get("d/a") for left in outcomes(self.disk.image())},
                         {b"\0\0\0\0", None, b"", b"\0\0"})

    def test_images_do_not_change(self) -> None:
        """An image is a value: later changes are not in it."""
        image = self.disk.image()
        self.file.pwrite(b"x", 0)
        self.file.datasync()
        self.assertEqual(image.contents(), {"d/a": b"\0\0\0\0"})


class OneFileStory:
    """Replaces a file; with or without waiting for its content."""

    name = "one file"

    def __init__(self, is_sound: bool) -> None:
        self.is_sound = is_sound

    def run(self, disk: CrashDisk, promised: Callable[[tuple[bytes, ...]], None]) -> None:
        """Write one value, then another."""
        disk.makedirs("d")
        file = disk.open("d/a", create=True, size=3)
        disk.settle()
        promised((b"\0\0\0", b"one"))
        file.pwrite(b"one", 0)
        if self.is_sound:
            file.datasync()
        promised((b"one",))

    def check(
        self, disk: CrashDisk, promise: tuple[bytes, ...], *, boots: int, goes_on: Callable[[], bool]
    ) -> None:
        """One of the promised values is there, or a part of the new one."""
        content = disk.read_file("d/a").rstrip(b"\0")
        if promise == (b"one",) and content != b"one":
            raise BadImage(f"{content!r}")


class EngineTests(SynchronousTestCase):
    """The machinery, on the smallest story."""

    def test_sound(self) -> None:
        """All states of a write and a sync: before, after, and after one or two bytes of three."""
        tally = Enumeration(OneFileStory(True)).run()
        self.assertEqual((tally.calls, tally.bad), (3, []))
        self.assertGreaterEqual(tally.images, 6)

    def test_broken(self) -> None:
        """A promise without a sync is found out."""
        (sentence,) = Enumeration(OneFileStory(False)).run().bad
        self.assertIn("power cut at the end, kept [] of [3]: b''", sentence)

    def test_samples(self) -> None:
        """Of many changes: none, all, each one alone, all but each one."""
        numbers = list(range(20))
        found = set(subsets(numbers, random.Random(1), subsets_max=100))
        self.assertLess(len(found), 101)
        for number in numbers:
            self.assertIn(frozenset((number,)), found)
            self.assertIn(frozenset(numbers) - {number}, found)


class LedgerCutTests(SynchronousTestCase):
    """The workloads of a ledger; a sample of the full run."""

    def run_one(self, name: str, *, share: float, second_share: float = 0.01) -> CrashTally:
        """Look at some states of one workload."""
        return Enumeration(STORIES[name], share=share, second_share=second_share, bad_max=1).run()

    def test_sample(self) -> None:
        """Every workload, and nothing is bad."""
        whole = CrashTally()
        for name in STORIES:
            whole.add(self.run_one(name, share=0.003))
        self.assertEqual(whole.bad, [])
        self.assertGreater(whole.images, 80)
        self.assertGreater(whole.second_images, 100)

    def finds(self, name: str, *, share: float = 0.1) -> str:
        """The sentence about the first bad state."""
        (sentence,) = self.run_one(name, share=share, second_share=0).bad
        return sentence

    def test_mark_is_not_synced(self) -> None:
        """A mark that is not on the disk before a cut."""
        with mock.patch.object(SlotFile, "datasync"), mock.patch.object(
            SlotFile, "write_durably", SlotFile.write
        ):
            self.assertIn("repairing", self.finds("truncate-sync"))

    def test_cut_is_not_zeroed(self) -> None:
        """Bytes of cut entries that come back."""
        with mock.patch.object(SegmentList, "zero"):
            self.assertIn("truncate-sync", self.finds("truncate-sync"))

    def test_names_are_not_synced(self) -> None:
        """A new file whose name is lost with flushed entries."""
        with mock.patch.object(SegmentList, "sync_directory"):
            self.assertIn("roll-sync", self.finds("roll-sync"))

    def test_new_beginning_needs_a_person(self) -> None:
        """The old files of a ledger that starts anew, taken for settled."""
        broken = property(lambda mark: mark.end_position)
        with mock.patch.object(CommitMark, "settled_position", broken):
            self.assertIn("DirectoryError", self.finds("install-sync"))

    def test_vote_is_late(self) -> None:
        """A vote that is written when the disk has time."""
        def save(terms: TermFile, term: int, voted_for: str | None) -> None:
            terms._disk.write_file(f"{terms._directory}/later", b"")

        with mock.patch.object(TermFile, "save", save):
            self.assertIn("term and vote are", self.finds("vote-sync"))


class LedgerFlipTests(SynchronousTestCase):
    """Flipped bits; a sample of the full run."""

    def flipped(self, every: int) -> FlipTally:
        """Flip some bits in every directory."""
        whole = FlipTally()
        for situation in situations():
            kind = "async" if situation.name.endswith("async") else "sync"
            whole.add(Flipping(situation, kind=kind).run(every=every))
        return whole

    def test_sample(self) -> None:
        """No lie, nothing lost, and hardly any needs a person."""
        tally = self.flipped(211)
        self.assertEqual(tally.bad, [])
        self.assertGreater(tally.flips, 1000)
        self.assertGreater(tally.repaired, 300)
        self.assertLess(tally.refused, tally.flips / 100)

    def test_liar(self) -> None:
        """A start that does not compare the end with the recorded one."""
        with mock.patch.object(CommitMark, "recorded_end_index", property(lambda mark: -1)):
            self.assertIn("does not say that it owes", self.flipped(97).bad[0])


class CrashCommandTests(SynchronousTestCase):
    """The program."""

    def run_it(self, *arguments: str) -> tuple[int, str]:
        """Status and output."""
        done = CliRunner().invoke(main, list(arguments))
        return done.exit_code, done.output

    def test_cuts(self) -> None:
        """Sums, and a line for the runner of all checks."""
        status, output = self.run_it("cuts", "--only", "vote-sync", "--share", "0.02", "--jobs", "1")
        self.assertEqual(status, 0, output)
        self.assertRegex(output, r"\n\d+ images passed, 0 failed\n$")

    def test_flips(self) -> None:
        """The same for bits."""
        status, output = self.run_it("flips", "--only", "closed", "--every", "5000", "--jobs", "1")
        self.assertEqual(status, 0, output)
        self.assertRegex(output, r"\n\d+ flips passed, 0 failed\n$")

    def test_unknown(self) -> None:
        """A name that there is not is refused, with those that there are."""
        status, output = self.run_it("cuts", "--only", "nonsense")
        self.assertEqual(status, 2)
        self.assertIn("append-sync", output)
