# -*- test-case-name: tests.damage.test_file_table -*-
"""
The table of files: every file is in it, a failure of one does what its column says, and C{dledger verify}
finds damage. A part of the cases; C{python -m tests.damage.table_play} plays them all.
"""

from __future__ import annotations

import contextlib
import io
from itertools import islice
from unittest import mock

import attrs
from twisted.trial.unittest import SynchronousTestCase

from dledger.base.disk.file_table import FileRow, Worth
from tests.damage.table_play import CUT, FLIPPED, GONE, Judgement, TableCase, main, problem_of_flips
from tests.damage.table_rigs import RIGS, TableRig

#: Cases of each kind of directory, and flips of each file, in the unit tests.
CASES, FLIPS = 40, 12
#: Rows without a file in a process that nothing has happened to.
RARE = {
    "holes", "machine/unfinished", "machine/incoming", "data.set-aside/<name>",
    "commitlog.set-aside-<number>/<name>", "abort", "lock",
}


class TableTests(SynchronousTestCase):
    """All kinds of directories."""

    def setUp(self) -> None:
        self.table = Judgement(self.flushLoggedErrors)

    def test_every_file(self) -> None:
        """No file is without a row, and no row without a file."""
        self.assertEqual(self.table.unknown, [])
        for kind, make in RIGS.items():
            self.assertEqual({row.name for row in make.table} - self.table.files(kind).keys() - RARE, set())

    def test_cases(self) -> None:
        """Some of all kinds have the outcome of their column."""
        for kind in RIGS:
            cases = [case for case in self.table.cases(seed=3) if case.rig == kind]
            for case in islice(cases, CASES):
                self.assertEqual(self.table.play(case), "", str(case))
        for outcome in ("hint", "ended", "went on"):
            self.assertGreater(self.table.seen[outcome], 5, self.table.seen)

    def test_the_rename_of_a_hint(self) -> None:
        """A checkpoint that cannot be renamed ends nobody."""
        for kind in RIGS:
            if "checkpoint" in self.table.files(kind):
                case = TableCase(kind, "checkpoint", "rename", "EIO", "run")
                self.assertEqual(self.table.play(case), "", kind)
        self.assertGreater(self.table.seen["hint"], 1)

    def test_known_faults(self) -> None:
        """Those that have ended processes, or refused starts, before."""
        queue = self.table.files("broker")["consumequeue/<topic>/<queue>/<position>"]
        index = self.table.files("member")["index/<position>"]
        for case in (
            TableCase("broker", queue, CUT), TableCase("member", index, "read", "EIO", "start"),
            TableCase("broker", "checkpoint", "write", "EIO", "run"),
            TableCase("broker", "consumequeue.list", "read", "EIO", "start"),
            TableCase("raft-broker", "dispatched", "read", "EIO", "start"),
        ):
            self.assertEqual(self.table.play(case), "", str(case))

    def test_a_list_of_members_alone(self) -> None:
        """One of the two is enough, whatever became of the other."""
        for name in ("members", "members.copy"):
            for kind in (GONE, CUT, FLIPPED):
                self.assertEqual(self.table.play(TableCase("member", name, kind)), "", (name, kind))

    def test_flips(self) -> None:
        """Each flipped bit is found; those that cannot be are in the table."""
        for kind in RIGS:
            for row, seen in self.table.flips(kind, FLIPS, seed=5).items():
                self.assertEqual(problem_of_flips(kind, row, seen), "")

    def test_a_judge_that_judges(self) -> None:
        """A file of the truth that the table calls a hint is noticed."""
        real = Judgement._row

        def wrong(judge: Judgement, make: type[TableRig], name: str) -> FileRow | None:
            row = real(judge, make, name)
            return row and attrs.evolve(row, worth=Worth.HINT)

        with mock.patch.object(Judgement, "_row", wrong):
            for name in ("commitmark", "identity"):
                case = TableCase("member", name, FLIPPED)
                self.assertIn("a hint ended the process", self.table.play(case))

    def test_program(self) -> None:
        """A case that fails is named with the command that plays it again; the last line counts."""
        out = io.StringIO()
        name = "member checkpoint rename EIO run"
        with contextlib.redirect_stdout(out):
            with mock.patch.object(Judgement, "play", lambda judge, case: "made up"):
                self.assertEqual(main(["--only", name, "--flips", "0"]), 1)
        self.assertIn(f'{name}: made up\nagain: python -m tests.damage.table_play --only "{name}"\n',
                      out.getvalue())
        self.assertTrue(out.getvalue().endswith("0 table cases passed, 1 failed\n"))
