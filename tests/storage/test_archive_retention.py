# -*- test-case-name: tests.storage.test_archive_retention -*-
"""What goes from an archive by retention, when, and what is left of a run that is cut short."""

from __future__ import annotations

import random
from collections.abc import Callable

import attrs

from dledger.storage.backups.archive import ArchiveSummary, archive_log
from dledger.storage.backups.reader import verify_archive
from dledger.storage.backups.source import ArchiveSource
from dledger.storage.manifests.archive_manifest import SLOT_NAMES, ArchiveBusy, ArchiveManifest, read_archive
from dledger.storage.manifests.archive_place import ArchivePlace, DirectoryPlace
from dledger.storage.manifests.archive_retention import ArchiveRetention, ExpirySummary, expire_archive
from dledger.testing.crashes.disk import CrashDisk
from dledger.testing.crashes.engine import Enumeration, demand
from dledger.testing.world.memory_disk import MemoryDisk
from dledger.values.errors import DirectoryError, StoreError
from tests.storage.archive_store import AFTER, BEFORE, FaultyStore, Killed
from tests.storage.archived_member import PLACE, body_of
from tests.storage.support import ROOT
from tests.storage.test_place import SEEDS, URL
from tests.storage.test_writers import WritersCase

DAY_S = 86_400
ALL = ArchiveRetention(keep_bytes=0)


class RetentionCase(WritersCase):
    """An archive with many segments."""

    def ship_to(
        self, place: ArchivePlace, disk: MemoryDisk | None = None, *, is_backup: bool = False
    ) -> ArchiveSummary:
        """One run, as of a Java member: no entry is needed for the state of the group."""
        source = attrs.evolve(ArchiveSource.open(self.disk if disk is None else disk, ROOT), group_state=None)
        try:
            return archive_log(source, place, is_backup=is_backup, taken_s=1)
        finally:
            source.close()

    def expire(
        self, files: FaultyStore, retention: ArchiveRetention = ALL, *, now_s: float = 2, deletes: bool = True
    ) -> ExpirySummary:
        """One run."""
        return expire_archive(self.remote(files), retention, now_s=now_s, deletes=deletes)

    def manifest_of(self, files: FaultyStore) -> ArchiveManifest:
        """The one that counts."""
        found = read_archive(self.remote(files).disk, URL).manifest
        assert found is not None
        return found


class RuleTests(RetentionCase):
    """Which segments go."""

    def test_days(self) -> None:
        """Those that were shipped longer ago, up to the first that was not."""
        pieces = tuple(attrs.evolve(piece, shipped_s=number * DAY_S)
                       for number, piece in enumerate(self.manifest_of(self.begun(3)).pieces))
        rule = ArchiveRetention(keep_s=2 * DAY_S)
        for day in range(len(pieces) + 9):
            wanted = min(max(day - 2, 0), len(pieces) - 1)
            self.assertEqual(len(rule.expired(pieces, day * DAY_S)), wanted, day)
        self.assertEqual(rule.expired(pieces, -1e9), ())

    def test_bytes(self) -> None:
        """Those with enough bytes after them; never the last one."""
        pieces = self.manifest_of(self.begun(3)).pieces
        sizes = [piece.size for piece in pieces]
        for keep in (0, 1, sizes[-1], sizes[-1] + 1, sum(sizes[3:]), sum(sizes), 10**9):
            count = len(ArchiveRetention(keep_bytes=keep).expired(pieces, 0))
            self.assertGreaterEqual(sum(sizes[count:]), min(keep, sum(sizes)))
            self.assertTrue(count == len(sizes) - 1 or sum(sizes[count + 1:]) < keep)
        self.assertEqual(ArchiveRetention().expired(pieces, 1e12), ())
        self.assertEqual(ALL.expired((), 0), ())

    def test_either(self) -> None:
        """One of the two is enough."""
        pieces = self.manifest_of(self.begun(3)).pieces
        rule = ArchiveRetention(keep_bytes=10**9, keep_s=5)
        self.assertEqual(len(rule.expired(pieces, 100)), len(pieces) - 1)


class ExpireTests(RetentionCase):
    """A run."""

    def test_dry_run(self) -> None:
        """Says what a run would do, and changes nothing."""
        files = self.begun(3)
        before = files.contents()
        reported = self.expire(files, deletes=False)
        self.assertEqual(files.contents(), before)
        done = self.expire(files)
        self.assertEqual(attrs.evolve(reported, is_dry_run=False), done)
        self.assertEqual((done.segments, done.end_index), (1, self.whole[3] - 1))
        self.assertEqual(len([path for path in files.contents() if "/data/" in path]), 1)

    def test_goes_on(self) -> None:
        """A member continues the archive, which is sound; what has gone does not come back."""
        files = self.begun(2)
        begin = self.expire(files).begin_index
        self.ship_to(self.remote(files), self.stages[3])
        self.assertEqual(self.bodies_at(self.remote(files)), list(map(body_of, range(begin, self.whole[3]))))
        self.assertEqual(self.expire(files, ArchiveRetention(keep_bytes=10**9)).expired_segments, 0)

    def test_refused(self) -> None:
        """A damaged manifest, a file to stay that is missing, and no archive: nothing goes."""
        files = self.begun(3)
        piece = self.manifest_of(files).pieces[-1]
        for path, words in ((f"{URL}/{SLOT_NAMES[0]}", SLOT_NAMES[0]), (f"{URL}/{piece.name}", piece.name)):
            hurt = self.copied(files)
            hurt.rm_file(path)
            before = hurt.contents()
            error = self.assertRaises(DirectoryError, self.expire, hurt)
            self.assertIn(words, str(error))
            self.assertIn("nothing was removed", str(error))
            self.assertEqual(hurt.contents(), before)
        self.assertIn("no archive", str(self.assertRaises(DirectoryError, self.expire, FaultyStore())))

    def test_every_step(self) -> None:
        """A run that ends at any step leaves every listed file there; the next one removes the rest."""
        begun = self.begun(3)
        count = len(self.manifest_of(begun).pieces)
        rule = ArchiveRetention(keep_bytes=sum(piece.size for piece in self.manifest_of(begun).pieces[4:]))
        whole = self.copied(begun)
        self.assertEqual(self.expire(whole, rule).expired_segments, 4)
        calls = len(whole.calls)
        kept = self.manifest_of(whole).pieces
        self.assertEqual(len(kept), count - 4)
        for number in range(calls):
            for kind, kills in ((BEFORE, True), (AFTER, True), (BEFORE, False)):
                files = self.copied(begun)
                files.faults, files.kills = {number: kind}, kills
                self.assertRaises(Killed if kills else StoreError, self.expire, files, rule)
                files.faults = {}
                self.assert_whole(self.remote(files))
                if read_archive(self.remote(files).disk, URL, reads_all=True).trouble:
                    self.ship_to(self.remote(files), self.stages[3])
                self.expire(files, rule)
                self.assert_whole(self.remote(files))
                self.assertEqual(self.manifest_of(files).pieces, kept)
                self.assertEqual(len([one for one in files.contents() if "/data/" in one]), len(kept))

    def test_seeds(self) -> None:
        """Runs that ship and runs that remove, of two programs in turns, with kills at random."""
        for seed in range(1, SEEDS + 1):
            chance = random.Random(f"retention {seed}")
            files, end = self.begun(0), 0

            def one(chance: random.Random = chance, files: FaultyStore = files) -> None:
                stage = chance.randrange(len(self.stages))
                rule = ArchiveRetention(keep_bytes=chance.randrange(5000))
                try:
                    if chance.random() < 0.5:
                        self.expire(files, rule)
                    else:
                        self.ship_to(self.remote(files), self.stages[stage], is_backup=chance.random() < 0.5)
                except (StoreError, Killed):
                    pass

            for _ in range(chance.randrange(2, 8)):
                files.calls = []
                files.kills = chance.random() < 0.5
                files.faults = {chance.randrange(40): chance.choice((BEFORE, AFTER))
                                for _ in range(chance.randrange(2))}
                files.between = {chance.randrange(40): one for _ in range(chance.randrange(2))}
                one()
                files.faults, files.between = {}, {}
                now = self.manifest_of(files)
                self.assertGreaterEqual(now.end_index, end, seed)
                end = now.end_index
                # (one that slept may have put an old manifest into a slot, where it does not count)
                self.assert_whole(self.remote(files), seed, newest=2)
            self.ship_to(self.remote(files), self.stages[-1], is_backup=True)
            begin = self.manifest_of(files).begin_index
            self.assertEqual(self.bodies_at(self.remote(files)),
                             list(map(body_of, range(begin, self.store.ledger_end_index + 1))), seed)

    def test_second_writer(self) -> None:
        """A run of another program between the manifests and the first removal: no file goes."""
        files = self.begun(1)
        whole = self.copied(files)
        self.expire(whole)
        first = whole.calls.index("rm_file", whole.calls.index("pipe_file") + 1)
        refused = 0
        for number in range(first + 1):
            other = self.copied(files)
            other.between[number] = lambda other=other: self.ship_to(  # type: ignore[misc]
                self.remote(other), self.stages[3])
            try:
                self.expire(other)
            except ArchiveBusy:
                refused += 1
            except DirectoryError as error:
                self.assertIn("nothing was removed", str(error))
            self.assert_whole(self.remote(other))
            self.assertEqual(self.manifest_of(other).end_index + 1, self.whole[3])
        self.assertGreater(refused, 5)


@attrs.frozen
class _Story:
    """Retention on a directory; the only promise is that everything that is listed is there."""

    case: RetentionCase
    name: str = "archive retention"

    def run(self, disk: CrashDisk, promised: Callable[[int], None]) -> None:
        """Ship and remove."""
        case = self.case
        promised(0)
        case.ship_to(DirectoryPlace(disk, PLACE), case.stages[1])
        expire_archive(DirectoryPlace(disk, PLACE), ALL, now_s=2, deletes=True)

    def check(self, disk: CrashDisk, promise: int, *, boots: int, goes_on: object) -> None:
        """All that is listed is there, and the next runs go on."""
        place = DirectoryPlace(disk, PLACE)
        if disk.exists(PLACE) and read_archive(disk, PLACE).manifest is not None:
            self.case.assert_whole(place)
        self.case.ship_to(place, self.case.stages[1])
        expire_archive(place, ALL, now_s=2, deletes=True)
        report = verify_archive(disk, PLACE)
        demand(report.is_clean and not report.left_over, "the next run does not complete it")
        demand(report.end_index + 1 == self.case.whole[1], "its end is lost")


class CrashTests(RetentionCase):
    """In a directory."""

    def test_every_crash(self) -> None:
        """The end of the process, and power cuts, at every file call."""
        tally = Enumeration(_Story(self), second_share=0.0).run()
        self.assertEqual(tally.bad, [])
        self.assertGreater(tally.images, 100)
