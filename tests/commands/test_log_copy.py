# -*- test-case-name: tests.commands.test_log_copy -*-
"""A broker gets the log of another one: whole, compared, and without the loss of its own files."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from twisted.trial.unittest import SynchronousTestCase

from dledger.base.disk.disk import OsDisk
from dledger.cli.rocketmq import log_copy
from dledger.cli.rocketmq.log_copy import MADE_NAMES, CopyRefused, LogCopy, copy_log
from dledger.rocketmq.broker.store.index.index_mark import INDEX_MARK_NAME
from dledger.rocketmq.broker.store.log.log_mark import LOG_MARK_NAME
from dledger.rocketmq.broker.store.records.checkpoint import ABORT_NAME, CHECKPOINT_NAME

SIZE = 4096


class NameTests(SynchronousTestCase):
    """What is moved aside."""

    def test_names(self) -> None:
        """It is all that a store writes beside its metadata."""
        self.assertLessEqual({LOG_MARK_NAME, CHECKPOINT_NAME, ABORT_NAME, INDEX_MARK_NAME}, {*MADE_NAMES})


class CopyTests(SynchronousTestCase):
    """A slave with two files, and a master with files of its own."""

    def setUp(self) -> None:
        self.slave, self.master = Path(self.mktemp()), Path(self.mktemp())
        self.told: list[tuple[int, int]] = []
        for root, count in ((self.slave, 2), (self.master, 1)):
            (root / "commitlog").mkdir(parents=True)
            for number in range(count):
                (root / "commitlog" / f"{number * SIZE:020d}").write_bytes(os.urandom(SIZE))
            for name in ("commitlogmark", "checkpoint", "indexed", "dispatched", "abort"):
                (root / name).write_bytes(root.name.encode())
            for name in ("consumequeue", "index", "config"):
                (root / name).mkdir()
                (root / name / "file").write_bytes(root.name.encode())

    def copy(self) -> LogCopy:
        """Give the master the slave's log."""
        return copy_log(self.slave, self.master, progress=lambda *counts: self.told.append(counts))

    def everything(self, root: Path) -> dict[str, bytes]:
        """The files of a store, without its lock."""
        return {str(file.relative_to(root)): file.read_bytes() for file in sorted(root.rglob("*"))
                if file.is_file() and file.name != "lock"}

    def test_copied(self) -> None:
        """Only the log comes; all that was made from the old one is set aside, and the metadata stay."""
        before, slave = self.everything(self.master), self.everything(self.slave)
        found = self.copy()
        self.assertEqual((found.files, found.size, self.told[-1]), (2, 2 * SIZE, (4 * SIZE, 4 * SIZE)))
        after = self.everything(self.master)
        logs = {name: data for name, data in slave.items() if name.startswith("commitlog/")}
        old = {f"set-aside-1/{name}": data for name, data in before.items() if not name.startswith("config")}
        self.assertEqual(after, {**logs, **old, "config/file": before["config/file"]})
        self.assertEqual(self.everything(self.slave), slave)
        self.assertEqual(self.copy().set_aside, str(self.master / "set-aside-2"))

    def test_empty_target(self) -> None:
        """A master that lost its disk: there is nothing to set aside."""
        shutil.rmtree(self.master)
        self.master.mkdir()
        self.assertEqual(self.copy().set_aside, "")
        self.assertEqual(len(list((self.master / "commitlog").iterdir())), 2)

    def refused(self, words: str) -> None:
        """Nothing is copied, for this reason; the master is as before."""
        before = self.everything(self.master)
        self.assertIn(words, str(self.assertRaises(CopyRefused, self.copy)))
        self.assertEqual(self.everything(self.master), before)

    def test_running(self) -> None:
        """Neither of them may have a broker."""
        for root in (self.slave, self.master):
            lock = OsDisk().lock(str(root / "lock"))
            self.refused(f"a broker runs on {root}: stop it first")
            lock.close()

    def test_no_log(self) -> None:
        """The source must have a whole one."""
        (self.slave / "commitlog" / f"{SIZE:020d}").write_bytes(b"short")
        self.refused("of 4096 bytes, is needed there")
        (self.slave / "commitlog" / f"{SIZE:020d}").rename(self.slave / "commitlog" / f"{2 * SIZE:020d}")
        self.refused("is needed there")
        (self.slave / "commitlog" / "notes.txt").write_bytes(b"")
        self.refused("needed there")
        shutil.rmtree(self.slave / "commitlog")
        self.refused("has no commit log")
        self.slave = self.slave / "nowhere"
        self.refused("is not a directory")
        self.slave = self.master
        self.refused("is both")

    def test_no_room(self) -> None:
        """It is known before the first byte."""
        usage = shutil.disk_usage(self.master)
        self.patch(log_copy.shutil, "disk_usage", lambda path: usage._replace(free=SIZE))
        self.refused("has room for 4096: make room first")

    def test_not_equal(self) -> None:
        """A copy that reads otherwise than the file is not taken; it is set aside by the next run."""
        before = self.everything(self.master)
        self.patch(log_copy, "crc32", lambda data, start=0: len(self.told))
        self.assertRaises(OSError, self.copy)
        after = self.everything(self.master)
        self.assertEqual({name: after[name] for name in before}, before)
        self.patch(log_copy, "crc32", lambda data, start=0: 0)
        self.assertEqual(self.copy().files, 2)
        self.assertFalse((self.master / "commitlog.copying").exists())
        self.assertTrue((self.master / "set-aside-1" / "commitlog.copying").exists())
