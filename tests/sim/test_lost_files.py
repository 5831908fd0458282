# -*- test-case-name: tests.sim.test_lost_files -*-
"""What the queues of simulated brokers lose."""

from __future__ import annotations

import random

from twisted.trial.unittest import SynchronousTestCase

from dledger.testing.brokers.rig.lost_files import TABLES, LostFiles
from dledger.testing.world.host import MachineDisk


class UnharmedTests(SynchronousTestCase):
    """What a rig changes."""

    def test_faults_wait(self) -> None:
        """No armed fault hits it, and each hits the next process."""
        disk = MachineDisk(random.Random(1))
        disk.makedirs("/s")
        disk.write_file("/s/a", b"1")
        disk.fail_under("/s")
        disk.arm(opens=1)
        with disk.unharmed():
            disk.unlink("/s/a")
            disk.write_file("/s/a", b"2")
            disk.open("/s/a").close()
        self.assertRaises(OSError, disk.unlink, "/s/a")
        self.assertRaises(OSError, disk.open, "/s/a")
        self.assertEqual(disk.read_file("/s/a"), b"2")


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

    def test_parts(self) -> None:
        """Each part is lost or comes back as a whole; the log and other tables stay."""
        rng = random.Random(1)
        disk, lost = MachineDisk(rng), LostFiles()
        marks = ["/s/commitlogmark", "/s/checkpoint", "/s/abort"]
        parts = [
            ["/s/index/1", "/s/index/2", "/s/indexed"], marks,
            ["/s/consumequeue.list", "/s/consumequeue/T/0/0"],
            ["/s/config/topics.json", "/s/config/consumerOffset.json"],
        ]
        kept = ["/s/commitlog/0", "/s/config/subscriptionGroup.json"]
        seen = set()
        for path in [*sum(parts, []), *kept]:
            disk.makedirs(path.rpartition("/")[0])
        for turn in range(200):
            for path in [*sum(parts, []), *kept]:
                disk.write_file(path, b"%d" % turn)
            is_old = lost.put_back(disk, "/s", rng, (TABLES,))
            self.assertEqual(is_old, disk.exists(marks[0]) and disk.read_file(marks[0]) != b"%d" % turn)
            for files in parts:
                held = {disk.read_file(file) if disk.exists(file) else b"" for file in files}
                self.assertEqual(len(held), 1, "a part is whole")
                age = "" if held == {b""} else turn - int(held.pop())
                seen.add(age)
            self.assertEqual({disk.read_file(file) for file in kept}, {b"%d" % turn})
        self.assertEqual(seen, {"", 0, 1})
        self.assertGreater(lost.parts, 300)
        self.assertGreater(lost.tables, 50)
