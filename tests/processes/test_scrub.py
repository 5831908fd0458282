# -*- test-case-name: tests.processes.test_scrub -*-
"""Bits flip in the files of real members that run; nobody reads the entries, and nobody intervenes."""

from __future__ import annotations

import os
import random
import tempfile
from pathlib import Path

from twisted.trial.unittest import SynchronousTestCase

import dledger
from dledger.base.disk.disk import ReadOnlyDisk
from dledger.storage.start.verify import verify_directory
from tests.processes.members import Group

SIZE = 64 * 1024
OPTIONS = {
    "mapped_file_size_for_entry_data": SIZE, "mapped_file_size_for_entry_index": 32 * 1024,
    "scrub_bytes_per_s": 50_000_000, "scrub_pause_ms": 100,
}
FLIPS = int(os.environ.get("DLEDGER_SCRUB_FLIPS", "200")) // 2


class ScrubTests(SynchronousTestCase):
    """Three members with entries in many segments."""

    def test_flips(self) -> None:
        """Flips at every member, one member after the other: all entries come back."""
        held = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        self.addCleanup(held.cleanup)
        group = Group(Path(held.name), options=OPTIONS)
        self.addCleanup(group.kill)
        group.start()
        group.leader()
        bodies = [b"%d " % number + b"x" * (number % 500) for number in range(3000)]
        with dledger.connect(group.peers_text) as log:
            log.append_many(bodies)
        group.wait_settled()
        rng = random.Random(3)
        for member_id, member in group.members.items():
            paths = sorted((member.ledger_path / "data").iterdir())[:-1]
            self.assertGreater(len(paths), 5)
            for _ in range(FLIPS // 3):
                self.flip(rng, rng.choice(paths))
            group.wait_until(lambda path=str(member.ledger_path): self.is_clean(path),  # type: ignore[misc]
                             f"what has rotted at {member_id} to come back", seconds=120)
        with dledger.connect(group.peers_text) as log:
            self.assertEqual([one.body for one in log.tail(0, follow=False) if one.body], bodies)

    def flip(self, rng: random.Random, path: Path) -> None:
        """One bit of a file."""
        with path.open("r+b") as file:
            at = rng.randrange(SIZE)
            file.seek(at)
            byte = file.read(1)[0] ^ (1 << rng.randrange(8))
            file.seek(at)
            file.write(bytes([byte]))

    def is_clean(self, path: str) -> bool:
        """By its files."""
        return verify_directory(ReadOnlyDisk(), path).is_clean
