# -*- test-case-name: tests.runner.test_report -*-
"""The report of a run, for machines."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

from twisted.trial.unittest import SynchronousTestCase

from tests.runner.counts import Count, read_check
from tests.runner.playing import Result
from tests.runner.report import Report, tested_tree
from tests.runner.stages import Stage


def result(name: str, *, failed: int = 0, output: str = "", unsteady: tuple[str, ...] = ()) -> Result:
    """The end of a stage."""
    stage = Stage(name=name, command=(), budget_s=9, read=read_check, counts="checks")
    return Result(stage=stage, count=Count(passed=3, failed=failed), seconds=1.26, output=output,
                  unsteady=unsteady)


class TreeTests(SynchronousTestCase):
    """The tree of the working copy."""

    def test_tree(self) -> None:
        """It is the tree of a commit of everything, made without a change of the index."""
        root = Path(self.mktemp())
        root.mkdir()

        def git(*words: str) -> str:
            identity = ("-c", "user.name=t", "-c", "user.email=t@example.org")
            return subprocess.run(["git", *identity, *words], cwd=root, check=True, capture_output=True,
                                  text=True).stdout.strip()

        git("init", "-q")
        (root / ".gitignore").write_text("ignored\n")
        (root / "kept").write_text("1")
        self.assertNotEqual(empty := tested_tree(root), "")
        git("add", "-A")
        git("commit", "-q", "-m", "one")
        self.assertEqual(tested_tree(root), git("rev-parse", "HEAD^{tree}"))
        (root / "ignored").write_text("1")
        self.assertEqual(tested_tree(root), empty)
        (root / "new").write_text("1")
        (root / "kept").write_text("2")
        found = tested_tree(root)
        self.assertEqual(git("status", "--short"), "M kept\n?? new")
        git("add", "-A")
        git("commit", "-q", "-m", "two")
        self.assertEqual(found, git("rev-parse", "HEAD^{tree}"))

    def test_no_repository(self) -> None:
        """Without git there is no tree."""
        self.assertEqual(tested_tree(Path("/")), "")


class ReportTests(SynchronousTestCase):
    """The file."""

    def setUp(self) -> None:
        """A place for it."""
        self.path = Path(self.mktemp()) / "build" / "report.json"

    def report(self, tree: str) -> Report:
        """A report of three stages, with the content of its file."""
        report = Report(self.path, tree, ["a", "b", "c"])
        report.load()
        return report

    def written(self, report: Report) -> dict[str, object]:
        """The content of the file."""
        report.write(seconds=2.0, slowness=1.5)
        return dict(json.loads(self.path.read_text()))

    def test_stages(self) -> None:
        """Every stage has its counts, its unsteady and its slowest tests."""
        report = self.report("t1")
        seconds = "".join(f"tests.x.y.Tests.test_{n} ... [OK]\n(0.{n:03} secs)\n" for n in range(12))
        report.add(result("b", output=seconds, unsteady=("tests.x.y.Tests.test_u",)))
        report.add(result("a", failed=2))
        said = self.written(report)
        self.assertEqual((said["tree"], said["passed"], said["failed"]), ("t1", 6, 2))
        self.assertFalse(said["is_complete"])
        first, second = said["stages"]  # type: ignore[misc]
        self.assertEqual((first["name"], first["failed"], second["unsteady"]),
                         ("a", 2, ["tests.x.y.Tests.test_u"]))
        self.assertEqual(len(second["slowest"]), 10)
        self.assertEqual(second["slowest"][0], {"test": "tests.x.y.Tests.test_11", "seconds": 0.011})

    def test_same_tree(self) -> None:
        """A run of some stages on the same tree replaces them, and leaves the others."""
        report = self.report("t1")
        for name, failed in (("a", 0), ("b", 1), ("c", 0)):
            report.add(result(name, failed=failed))
        self.assertEqual(self.written(report)["failed"], 1)
        report = self.report("t1")
        self.assertEqual([report.is_green(name) for name in "abc"], [True, False, True])
        report.add(result("b"))
        said = self.written(report)
        self.assertEqual((said["failed"], said["passed"], said["is_complete"]), (0, 9, True))

    def test_other_tree(self) -> None:
        """Nothing is taken from a report of another tree, of no tree, or of no sense."""
        report = self.report("t1")
        report.add(result("a"))
        self.written(report)
        self.assertFalse(self.report("t2").is_green("a"))
        self.assertFalse(self.report("").is_green("a"))
        self.path.write_text('{"tree": "t1", "stages": 7}')
        self.assertFalse(self.report("t1").is_green("a"))
