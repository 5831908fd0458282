# -*- test-case-name: tests.processes.test_upgrade -*-
"""
A rolling upgrade under load, from the wheel of the last release to this tree, and the way back.

The last release is the newest tag C{v*}, or what DLEDGER_RELEASE names; before the first tag it is the last
commit, whose members differ from the tree's in nothing but their files.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from zipfile import ZipFile

from twisted.trial.unittest import SkipTest, SynchronousTestCase

import dledger
from tests.processes.ledgers import assert_identical
from tests.processes.members import ROOT, Group, Member, ended_well
from tests.release_check import wheel

#: Appends that are acknowledged after each restart before the next one.
_BETWEEN = 50


def last_release() -> str:
    """The commit of the last release. @raise SkipTest: git does not say."""
    named = os.environ.get("DLEDGER_RELEASE", "")
    asked = ["git", "-c", "safe.directory=*", "describe", "--tags", "--abbrev=0", "--match", "v*"]
    if not named and (ROOT / ".git").exists():
        done = subprocess.run(asked, cwd=ROOT, capture_output=True, text=True, timeout=60)
        named = done.stdout.strip() or "HEAD"
    if not named:
        raise SkipTest("no repository, and DLEDGER_RELEASE is not set")
    return named


class Appender:
    """
    Numbered appends, one after the other, while members come and go.

    @ivar indexes: of the acknowledged ones, in order.
    """

    def __init__(self, peers: str) -> None:
        self.indexes: list[int] = []
        self.error: BaseException | None = None
        self._peers = peers
        self._is_over = threading.Event()

    def _run(self) -> None:
        try:
            with dledger.connect(self._peers, timeout=120.0) as log:
                while not self._is_over.is_set():
                    number = len(self.indexes)
                    entry = log.append(b"%d" % number, producer="upgrade", sequence=number)
                    self.indexes.append(entry.index)
        except BaseException as error:
            self.error = error

    @contextmanager
    def running(self) -> Iterator[None]:
        """Append meanwhile. @raise Exception: an append failed."""
        thread = threading.Thread(target=self._run)
        thread.start()
        try:
            yield
        finally:
            self._is_over.set()
            thread.join()
        if self.error is not None:
            raise self.error


class UpgradeTests(SynchronousTestCase):
    """Three members, one after the other."""

    def setUp(self) -> None:
        held = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        self.addCleanup(held.cleanup)
        self.home = Path(held.name)
        self.released = self.home / "released"
        made = self.home / "made"
        made.mkdir()
        with ZipFile(wheel(made, last_release())) as packed:
            packed.extractall(self.released)

    def test_there_and_back(self) -> None:
        """No append fails or is lost, all logs are the same, and the way back is as good."""
        done = subprocess.run(
            [sys.executable, "-c", "import dledger; print(dledger.__file__)"], cwd=self.home, check=True,
            capture_output=True, text=True, env={**os.environ, "PYTHONPATH": str(self.released)},
        )
        self.assertEqual(Path(done.stdout.strip()).parents[1], self.released)
        group = Group(self.home / "group")
        self.addCleanup(group.kill)
        for name in group.members:
            self.replace(group, name, self.released)
        group.start()
        group.leader()
        appender = Appender(group.peers_text)
        with appender.running():
            for tree in (ROOT, self.released):
                for name, member in group.members.items():
                    seen = len(appender.indexes)
                    group.wait_until(lambda seen=seen: len(appender.indexes) > seen + _BETWEEN
                                     or appender.error is not None, "appends", seconds=120)
                    self.assertTrue(ended_well(member.stop(seconds=60)))
                    self.replace(group, name, tree).start()
                    group.wait_until(lambda name=name: self.serves(group, name), f"{name} serves",
                                     seconds=120)
        end = group.wait_settled()
        with dledger.connect(group.peers_text, timeout=60.0) as log:
            found = {entry.index: entry.body for entry in log.tail(0, follow=False)}
        self.assertEqual(found, {index: b"%d" % number for number, index in enumerate(appender.indexes)})
        self.assertTrue(all(map(ended_well, group.stop(seconds=60).values())))
        assert_identical([member.ledger_path for member in group.members.values()], end)

    def replace(self, group: Group, name: str, tree: Path) -> Member:
        """The member, with the packages of a tree."""
        group.members[name] = Member(name, group.peers, group.members[name].directory, tree=tree)
        return group.members[name]

    def serves(self, group: Group, name: str) -> bool:
        """Whether a member has what the group has committed."""
        said = group.members[name].metadata(seconds=1.0)
        others = [member.metadata(seconds=1.0) for member in group.members.values()]
        ends = [one.committed_index for one in others if one is not None]
        return said is not None and not said.health and bool(said.leader_id) and said.end_index >= min(ends)
