# -*- test-case-name: tests.sim.test_lost_files -*-
"""What the queues of simulated brokers lose."""

from __future__ import annotations

import random

from twisted.trial.unittest import SynchronousTestCase

from dledger.testing.brokers.parts.lost_files import LostFiles
from dledger.testing.world.host import MachineDisk


class LostFilesTests(SynchronousTestCase):
    """Two queues of three files each."""

    def test_files_are_lost_or_older(self) -> None:
        """In the end everything has happened; other files stay as they are."""
        rng = random.Random(1)
        disk, lost = MachineDisk(rng), LostFiles()
        paths = [f"/q/T/{queue}/{number}" for queue in range(2) for number in range(3)]
        disk.write_file("/other", b"stays")
        left = set()
        for turn in range(800):
            for path in paths:
                disk.makedirs(path.rpartition("/")[0])
                disk.write_file(path, b"%05d" % turn)
            lost.lose(disk, "/q", rng)
            left.add(sum(disk.exists(path) for path in paths))
        self.assertEqual(left, set(range(7)))
        self.assertGreater(lost.lost, 20)
        self.assertGreater(lost.older, 20)
        self.assertIn(b"00", {disk.read_file(path)[:2] for path in paths if disk.exists(path)})
        self.assertEqual(disk.read_file("/other"), b"stays")
