# -*- test-case-name: tests.client.test_version -*-
"""The version says what runs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from twisted.trial.unittest import SynchronousTestCase

import dledger
from dledger.version import VERSION, commit_of, version_of

ONE, TWO = "1" * 40, "a2" * 20


class CommitTests(SynchronousTestCase):
    """A work tree reports its commit."""

    def setUp(self) -> None:
        self.root = Path(self.mktemp())
        self.git = self.root / ".git"
        (self.git / "refs" / "heads").mkdir(parents=True)

    def test_every_form_of_head_is_read(self) -> None:
        """A branch, a packed branch, no branch; and what is none."""
        (self.git / "HEAD").write_text("ref: refs/heads/main\n")
        (self.git / "packed-refs").write_text(f"# pack-refs with: peeled\n{TWO} refs/heads/main\n^{ONE}\n")
        self.assertEqual(commit_of(self.root), TWO)
        (self.git / "refs" / "heads" / "main").write_text(f"{ONE}\n")
        self.assertEqual(commit_of(self.root), ONE)
        self.assertEqual(version_of(self.root), f"{VERSION}+g{ONE[:12]}")
        (self.git / "HEAD").write_text(f"{TWO}\n")
        self.assertEqual(commit_of(self.root), TWO)
        for wrong in ("", "x" * 40, "1" * 39, "ref: refs/heads/other"):
            (self.git / "HEAD").write_text(wrong)
            self.assertEqual(commit_of(self.root), "", wrong)
        self.assertEqual(version_of(self.root), VERSION)

    def test_a_further_tree_is_read(self) -> None:
        """A work tree beside the repository has a file C{.git}, and its branch in the common directory."""
        own = self.git / "worktrees" / "side"
        own.mkdir(parents=True)
        (own / "HEAD").write_text("ref: refs/heads/side\n")
        (own / "commondir").write_text("../..\n")
        (self.git / "refs" / "heads" / "side").write_text(f"{ONE}\n")
        side = Path(self.mktemp())
        side.mkdir()
        (side / ".git").write_text(f"gitdir: {own.resolve()}\n")
        self.assertEqual(commit_of(side), ONE)

    def test_a_copy_has_no_commit(self) -> None:
        """A copy of the source has a version without a commit."""
        self.assertEqual(version_of(Path(self.mktemp())), VERSION)

    def test_installed(self) -> None:
        """The keywords of a distribution have its commit; without one it has none."""
        root = Path(self.mktemp()).resolve()
        metadata = root / "dledger-9.1.dist-info" / "METADATA"
        metadata.parent.mkdir(parents=True)
        (root / "dledger").mkdir()
        self.patch(sys, "path", [str(root), *sys.path])
        metadata.write_text(f"Name: dledger\nVersion: 9.1\nKeywords: log,commit-{TWO}\n")
        self.assertEqual(version_of(root), f"9.1+g{TWO[:12]}")
        metadata.write_text("Name: dledger\nVersion: 9.1\n")
        self.assertEqual(version_of(root), "9.1")


class VersionTests(SynchronousTestCase):
    """The version of this tree."""

    def test_the_version_names_this_tree(self) -> None:
        """It is the one that git names, if there is git, and that C{dledger.__version__} has."""
        root = Path(dledger.__file__).resolve().parent.parent
        self.assertEqual(dledger.__version__, version_of(root))
        self.assertTrue(dledger.__version__.startswith(VERSION))
        if (root / ".git").exists():
            reported = subprocess.run(
                ["git", "-C", str(root), "rev-parse", "HEAD"], capture_output=True, text=True
            )
            if reported.returncode == 0:
                self.assertEqual(commit_of(root), reported.stdout.strip())
