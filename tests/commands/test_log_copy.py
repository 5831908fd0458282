# -*- test-case-name: tests.commands.test_log_copy -*-
"""A broker gets the log of another one: whole, compared, and without the loss of its own files."""

from __future__ import annotations

import contextlib
import os
import shutil
from pathlib import Path
from typing import Any
from unittest import mock

from twisted.trial.unittest import SynchronousTestCase

from dledger.base.disk.disk import OsDisk
from dledger.base.disk.file_table import BROKER_CHECKPOINT, INDEXED
from dledger.cli.rocketmq import log_copy
from dledger.cli.rocketmq.log_copy import MADE_NAMES, CopyRefused, LogCopy, copy_log
from dledger.rocketmq.store.log.log_mark import LOG_MARK_NAME
from dledger.rocketmq.store.opened_files import COPY_NAME
from dledger.rocketmq.store.records.checkpoint import ABORT_NAME
from dledger.values.errors import DirectoryError
from tests.broker.send_support import Sending
from tests.broker.test_files_put_together import SERVED, Files, FilesCase, disk_of, served

SIZE = 4096


class NameTests(SynchronousTestCase):
    """What is moved aside."""

    def test_names(self) -> None:
        """It is all that a store writes beside its metadata."""
        self.assertLessEqual({LOG_MARK_NAME, BROKER_CHECKPOINT.name, ABORT_NAME, INDEXED.name}, {*MADE_NAMES})
        self.assertEqual(log_copy.COPY_NAME, COPY_NAME)


class CopyTests(SynchronousTestCase):
    """A slave with two files, and a master with files of its own."""

    def setUp(self) -> None:
        self.slave, self.master = Path(self.mktemp()), Path(self.mktemp())
        self.reported: list[tuple[int, int]] = []
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
        return copy_log(self.slave, self.master, progress=lambda *counts: self.reported.append(counts))

    def everything(self, root: Path) -> dict[str, bytes]:
        """The files of a store, without its lock."""
        return {str(file.relative_to(root)): file.read_bytes() for file in sorted(root.rglob("*"))
                if file.is_file() and file.name != "lock"}

    def test_copied(self) -> None:
        """Only the log comes; all that was made from the old one is set aside, and the metadata stay."""
        before, slave = self.everything(self.master), self.everything(self.slave)
        found = self.copy()
        self.assertEqual((found.files, found.size, self.reported[-1]), (2, 2 * SIZE, (4 * SIZE, 4 * SIZE)))
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
        self.patch(log_copy, "crc32", lambda data, start=0: len(self.reported))
        self.assertRaises(OSError, self.copy)
        after = self.everything(self.master)
        self.assertEqual({name: after[name] for name in before}, before)
        self.patch(log_copy, "crc32", lambda data, start=0: 0)
        self.assertEqual(self.copy().files, 2)
        self.assertFalse((self.master / "commitlog.copying").exists())
        self.assertTrue((self.master / "set-aside-1" / "commitlog.copying").exists())

    def test_no_room_for_the_next(self) -> None:
        """A run that is refused after one that was killed does not let a broker start without its log."""
        self.patch(log_copy, "_move_aside", lambda *_: 1 // 0)
        self.assertRaises(ZeroDivisionError, self.copy)
        usage = shutil.disk_usage(self.master)
        self.patch(log_copy.shutil, "disk_usage", lambda path: usage._replace(free=SIZE))
        self.refused("make room first")
        self.assertTrue((self.master / "commitlog.copying").exists())


class Killed(BaseException):
    """The process ends here."""


class KillTests(FilesCase):
    """The command is killed before and after each change, and run again; a broker starts in between."""

    def put(self, files: Files) -> Path:
        """A store in a directory."""
        root = Path(self.mktemp())
        root.mkdir()
        for name, data in files.items():
            path = root / name.removeprefix("base/")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
        return root

    def held(self, root: Path) -> Files:
        """The files of a store, without its lock."""
        return {f"base/{file.relative_to(root)}": file.read_bytes() for file in sorted(root.rglob("*"))
                if file.is_file() and file.name != "lock"}

    def logs(self, files: Files) -> Files:
        """The files of the log among them."""
        return {name: data for name, data in files.items() if name.startswith("base/commitlog/")}

    def serves(self, root: Path) -> set[bytes]:
        """What a broker serves that starts there. @raise DirectoryError: it does not start."""
        disk = disk_of(self.held(root))
        for path in root.rglob("*"):
            if path.is_dir():
                disk.makedirs(f"base/{path.relative_to(root)}")
        broker = Sending(disk)
        broker.settle()
        broker.broker.lost_topics.restore()
        found = served(broker.broker)
        broker.store.abandon()
        return found

    def killed(self, source: Path, target: Path, number: int) -> bool:
        """Run the command, up to this call. @return: whether it was killed."""
        left = number

        def count(*_: object) -> None:
            nonlocal left
            left -= 1
            if left == 0:
                raise Killed

        with contextlib.ExitStack() as patches:
            for name in ("rename", "mkdir", "fsync"):
                real = getattr(os, name)

                def counted(*given: Any, real: Any = real, **named: Any) -> None:
                    count()
                    real(*given, **named)
                    count()

                patches.enter_context(mock.patch.object(os, name, counted))
            try:
                copy_log(source, target, progress=count)
            except Killed:
                return True
        return False

    def test_each(self) -> None:
        """No file of either is lost; a broker starts with its old log or the new one whole, or not at all."""
        for old in ("old", "empty", ""):
            before = self.master[old] if old else {}
            number, refused, is_killed = 0, 0, True
            while is_killed:
                number += 1
                source, target = self.put(self.slave["young"]), self.put(before)
                given = self.held(source)
                is_killed = self.killed(source, target, number)
                case = f"{old or 'nothing'}, call {number}"
                self.assertEqual(self.held(source), given, case)
                self.assertEqual(set(before.values()) - set(self.held(target).values()), set(), case)
                try:
                    serves = self.serves(target)
                except DirectoryError as error:
                    refused += 1
                    self.assertIn("ha-resolve --copy-log", str(error), case)
                else:
                    has_copy = (target / "commitlog" / f"{0:020d}").exists() and not list(
                        self.logs(given).items() - self.logs(self.held(target)).items()
                    )
                    self.assertEqual(serves, SERVED["young"] if has_copy else SERVED.get(old, set()), case)
                    self.assertTrue(has_copy or not list(target.glob("set-aside-*")), case)
                self.assertFalse(self.killed(source, target, 0), case)
                self.assertEqual(self.serves(target), SERVED["young"], case)
                self.assertEqual(set(before.values()) - set(self.held(target).values()), set(), case)
            self.assertGreaterEqual(refused, 8)
