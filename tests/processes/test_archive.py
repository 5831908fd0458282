# -*- test-case-name: tests.processes.test_archive -*-
"""
The steps of "Archive" in docs/operations.md, played on real members: an archiver that follows a group and is
killed meanwhile, and a member that has lost its files and begins with the archive.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

from twisted.trial.unittest import SynchronousTestCase

import dledger
from dledger.base.disk.disk import OsDisk, ReadOnlyDisk
from dledger.storage.backups.reader import verify_archive
from dledger.storage.manifests.archive_manifest import read_archive
from dledger.storage.store.file_store import FileStore
from dledger.values.ledger.config import DLedgerConfig
from tests.processes.children import Child, wait_until
from tests.processes.members import ROOT, Group
from tests.processes.pages import PageCase, documented
from tests.processes.test_backup import OPTIONS

#: Kills of an archiver on a member's directory that grows. Each takes more than a second, so CI does without.
KILLS = int(os.environ.get("DLEDGER_ARCHIVE_KILLS", "0"))


class KilledTests(SynchronousTestCase):
    """An archiver that is killed while it works."""

    def test_killed(self) -> None:
        """Nothing that counted is lost, nothing counts twice, and the last run completes the archive."""
        held = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        self.addCleanup(held.cleanup)
        config = DLedgerConfig(store_base_dir=held.name, bootstrap=True, **OPTIONS)  # type: ignore[arg-type]
        store = FileStore.open(config, OsDisk())
        self.addCleanup(store.abandon)
        place = Path(held.name) / "log"
        command = [sys.executable, "-c", "from dledger.cli.main import main; main()", "archive",
                   str(config.self_path), str(place), "--follow", "--interval", "0.1"]
        store.append_bodies((b"x" * 1000,) * 200, 1)
        store.record_commit(store.ledger_end_index)
        store.check_point(force=True)
        rng, count = random.Random(KILLS), 0
        for number in range(KILLS):
            # The rate lets a segment of 64 KiB take a third of a second.
            child = Child("archive", [*command, "--rate", "200000"], log_path=place.with_suffix(".log"),
                          environment={"PYTHONPATH": str(ROOT)})
            self.addCleanup(child.kill)
            (mark := place.with_suffix(".mark")).write_text("")
            child.start()
            store.append_bodies((b"%d " % number + b"x" * 1000,) * 300, 1)
            store.record_commit(store.ledger_end_index)
            store.check_point(force=True)
            wanted, least = self.entries(place) + rng.randrange(100), rng.randrange(60_000)
            wait_until(
                lambda wanted=wanted, least=least, mark=mark: self.unfinished(place, mark) >= least
                or self.entries(place) > wanted, seconds=60, what="a run that ships", every=0.01,
            )
            child.kill()
            report = verify_archive(ReadOnlyDisk(), str(place)) if self.entries(place) >= 0 else None
            self.assertEqual([] if report is None else report.findings, [])
            self.assertGreaterEqual(self.entries(place), count)
            count = self.entries(place)
        done = subprocess.run([*command[:-3]], check=True, capture_output=True, text=True, timeout=240,
                              env={**os.environ, "PYTHONPATH": str(ROOT)})
        report = verify_archive(ReadOnlyDisk(), str(place))
        self.assertEqual((report.findings, report.left_over), ([], []))
        base = store.position_of(store.ledger_end_index) // OPTIONS["mapped_file_size_for_entry_data"]
        last = store.position_of(report.end_index) // OPTIONS["mapped_file_size_for_entry_data"]
        self.assertEqual((last, report.begin_index), (base - 1, 0), done.stdout)
        self.assertEqual(report.entries, report.end_index + 1)

    def unfinished(self, place: Path, mark: Path) -> int:
        """Bytes of a file that is being written, after C{mark} was; -1 without one."""
        since = mark.stat().st_mtime_ns
        try:
            found = [path.stat() for path in place.glob("data/*.part")]
            return max((one.st_size for one in found if one.st_mtime_ns > since), default=-1)
        except FileNotFoundError:  # it has got its name
            return -1

    def entries(self, place: Path) -> int:
        """In the archive; -1 before it begins."""
        found = read_archive(ReadOnlyDisk(), str(place)).manifest if place.exists() else None
        return -1 if found is None else found.end_index + 1


class ArchiveTests(PageCase):
    """Three members that run, and an archive."""

    def setUp(self) -> None:
        """Start them."""
        super().setUp()
        self.place = self.directory / "log"
        self.group = Group(self.directory, options=OPTIONS)
        self.addCleanup(self.group.kill)
        sizes = " ".join(f"--set {name}={value}" for name, value in OPTIONS.items())
        self.environment |= {"PEERS": self.group.peers_text, "SIZES": sizes}
        self.group.start()
        self.group.leader()
        self.sent: list[bytes] = []

    def shell(self, start: str) -> str:
        """Run a command of the page. @return: its output."""
        return self.run_printed(documented(start, "Archive"), others={"/archive/log": str(self.place)})

    def append(self, count: int) -> None:
        """Bodies that are acknowledged: about a segment for sixty of them."""
        first = len(self.sent)
        bodies = [b"%d " % number + b"x" * 1000 for number in range(first, first + count)]
        with dledger.connect(self.group.peers_text) as log:
            self.assertEqual(log.append_many(bodies).count, count)
        self.sent += bodies

    def archived(self) -> int:
        """Files that count in the archive."""
        found = read_archive(ReadOnlyDisk(), str(self.place)).manifest
        return 0 if found is None else len(found.pieces)

    def entries_of(self, member_id: str) -> list[bytes]:
        """Bodies of programs, by one member."""
        with dledger.connect(f"{member_id}-{self.group.peers[member_id]}") as log:
            return [one.body for one in log.tail(0, follow=False) if one.body]

    def followed(self) -> Child:
        """The archiver of the page, started."""
        follow = documented("dledger archive ./n0/dledger-n0 /archive/log --follow", "Archive")
        return self.start_printed("archive", f"{follow} --interval 0.3",
                                  others={"/archive/log": str(self.place)})

    def test_steps(self) -> None:
        """An archiver that is killed goes on; a lost member has every entry again, votes, and counts."""
        archiver = self.followed()
        self.append(180)
        self.group.wait_until(lambda: self.archived() >= 2, "two segments")
        archiver.kill()
        archiver = self.followed()
        self.append(180)
        self.group.wait_until(lambda: self.archived() >= 4, "four segments")
        archiver.send(signal.SIGINT)
        self.assertEqual(archiver.wait(seconds=120), 130)
        report = verify_archive(ReadOnlyDisk(), str(self.place))
        self.assertEqual(report.findings, [])  # (a file that it was writing does not count, and may be left)

        self.group.members["n1"].kill()
        shutil.rmtree(self.group.members["n1"].directory / "dledger-n1")
        self.append(60)
        self.assertIn("joins the group default", self.shell("dledger restore"))
        self.start_printed("n1", documented("twistd -n dledger --node-id n1", "Archive"))
        self.group.leader()  # (no member is unsure any more)
        self.group.wait_settled()
        self.assertEqual(self.entries_of("n1"), self.sent)
        self.group.members["n2"].kill()
        self.group.leader(among=("n0", "n1"))
        self.append(5)
        self.assertEqual(self.entries_of("n0"), self.sent)
