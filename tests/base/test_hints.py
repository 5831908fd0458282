# -*- test-case-name: tests.base.test_hints -*-
"""Hints: no failure of theirs is raised, each is reported once, and none says what is not so."""

from __future__ import annotations

import errno
from unittest import mock

from twisted.trial.unittest import SynchronousTestCase

from dledger.base.disk.file_table import BROKER_FILES, LEDGER_CHECKPOINT, MEMBER_FILES, Worth, row_of
from dledger.base.disk.hints import HintFile, Hints
from dledger.testing.world.memory_disk import MemoryDisk

BROKEN = OSError(errno.EIO, "Input/output error")
PATH = "d/checkpoint"


class HintTests(SynchronousTestCase):
    """One file."""

    def setUp(self) -> None:
        self.disk = MemoryDisk()
        self.disk.makedirs("d")
        self.hints = Hints(self.disk)
        self.file = HintFile(self.hints, LEDGER_CHECKPOINT, "d")

    def test_there_and_back(self) -> None:
        """Nothing without a file; else its content, and nothing to report."""
        self.assertIsNone(self.file.read(bytes))
        self.assertTrue(self.file.write(b"a"))
        self.assertEqual((self.file.read(bytes), self.hints.news()), (b"a", {}))

    def test_damaged(self) -> None:
        """A damaged or unreadable file counts as absent, and is reported with its source."""
        self.file.write(b"a")
        self.assertIsNone(self.file.read(lambda _: None))
        self.assertEqual(self.hints.news(), {PATH: "it is damaged; `commitmark` has both"})
        with mock.patch.object(self.disk, "read_file", side_effect=BROKEN):
            self.assertIsNone(self.file.read(bytes))
        self.assertIn("cannot be read: [Errno 5]", self.hints.news()[PATH])

    def test_reported_once(self) -> None:
        """A failure that lasts is reported once; one that comes back is reported again."""
        for _ in range(2):
            with mock.patch.object(self.disk, "write_file", side_effect=BROKEN):
                self.assertEqual([self.file.write(b"a"), self.file.write(b"a")], [False, False])
                self.assertIn("cannot be written: [Errno 5]", self.hints.news()[PATH])
                self.assertFalse(self.file.write(b"a"))
                self.assertEqual(self.hints.news(), {})
            self.assertTrue(self.file.write(b"a"))

    def test_lowered(self) -> None:
        """What would become false is written again; or removed; or it is an error."""
        self.assertTrue(self.file.lower(b"high"))
        self.assertTrue(self.file.lower(b"low"))
        self.assertEqual(self.file.read(bytes), b"low")
        with mock.patch.object(self.disk, "write_file", side_effect=BROKEN):
            with mock.patch.object(self.disk, "unlink", side_effect=BROKEN):
                self.assertRaises(OSError, self.file.lower, b"lower")
            self.assertFalse(self.file.lower(b"lower"))
            self.assertFalse(self.disk.exists(PATH))
            self.assertFalse(self.file.lower(b"lower"))

    def test_hints_only(self) -> None:
        """A file of another column is none: its failures are not to be passed over."""
        for row in (*MEMBER_FILES, *BROKER_FILES):
            if row.worth is not Worth.HINT:
                self.assertRaises(AssertionError, HintFile, self.hints, row, "d")


class RowTests(SynchronousTestCase):
    """From the name of a file to its row."""

    def test_names(self) -> None:
        """Digits are digits, names are names; the next content of a file belongs to it."""
        for name, found in (
            (f"data/{0:020d}", "data/<position>"), ("data/x", ""), ("checkpoint.tmp", "checkpoint"),
            ("checkpoint.old", ""), ("machine/snapshot-7-1", "machine/snapshot-<index>-<term>"),
            ("data.set-aside/x.set-aside-3", "data.set-aside/<name>"), ("data.set-aside/x/y", ""),
        ):
            row = row_of(MEMBER_FILES, name)
            self.assertEqual(found, row.name if row is not None else "", name)
