# -*- test-case-name: tests.interop.test_directories -*-
"""Directories that one kind has written and the other goes on with."""

from __future__ import annotations

import tempfile
from pathlib import Path

from twisted.trial.unittest import SkipTest, SynchronousTestCase

from dledger.storage.disk import OsDisk
from dledger.storage.verify import verify_directory
from protocols.wire.codes import ResponseCode
from protocols.wire.messages import GetRequest
from tests.interop.java import JavaMissing, class_path
from tests.interop.mixed import JAVA, OURS, MixedGroup
from tests.interop.test_mixed_groups import bodies
from tests.processes.asking import ask
from tests.processes.ledgers import read_records


class DirectoryTests(SynchronousTestCase):
    """A group of one member, whose kind changes."""

    def setUp(self) -> None:
        """The directory."""
        try:
            class_path()
        except JavaMissing as missing:
            raise SkipTest(str(missing)) from None
        held = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        self.addCleanup(held.cleanup)
        self.directory = Path(held.name)

    def group_of(self, kind: str) -> MixedGroup:
        """One member."""
        group = MixedGroup(self.directory, (kind,))
        self.addCleanup(group.kill)
        group.start()
        return group

    def expire(self, group: MixedGroup, count: int = 2) -> int:
        """
        Delete the first data files of the stopped member, as expiry does.

        @return: the first index that is left.
        """
        ledger = self.directory / "n0" / "dledger-n0"
        for path in sorted((ledger / "data").iterdir())[:count]:
            path.unlink()
        begin_index = next(read_records(ledger)).index
        for index in [index for index in group.acknowledged if index < begin_index]:
            del group.acknowledged[index]
        return begin_index

    def judge(self) -> None:
        """C{dledger verify} finds nothing wrong."""
        report = verify_directory(OsDisk(), str(self.directory / "n0" / "dledger-n0"))
        self.assertEqual(report.findings, [])

    def go_on(self, group: MixedGroup, text: str, first_index: int) -> None:
        """The running member has everything, refuses what is below its begin, and takes more."""
        for index in sorted(group.acknowledged)[:: max(1, len(group.acknowledged) // 20)]:
            self.assertEqual(group.get(index), group.acknowledged[index])
        if first_index:
            request = GetRequest(group=group.name, remote_id="n0", begin_index=first_index - 1)
            self.assertIs(ask(group.peers["n0"], request).code, ResponseCode.INDEX_LESS_THAN_LOCAL_BEGIN)
        group.append_pipelined(bodies(text, 500))

    def change_hands(self, first: str, second: str) -> None:
        """Stopped, killed, and with first files expired: the second kind goes on, then the first again."""
        group = self.group_of(first)
        self.go_on(group, "written by the first", 0)
        begin_index = 0
        for number, (kind, how) in enumerate(
            ((second, "stop"), (first, "kill"), (second, "kill"), (first, "expire"), (second, "expire"))
        ):
            if how == "kill":
                group.members["n0"].kill()
            else:
                group.stop()
            if how == "expire":
                begin_index = self.expire(group)
            self.judge()
            group.replace("n0", kind)
            group.start()
            self.go_on(group, f"{number}: {kind} after {how}", begin_index)
        group.stop()
        self.judge()

    def test_java_first(self) -> None:
        """Ours opens what Java has written."""
        self.change_hands(JAVA, OURS)

    def test_ours_first(self) -> None:
        """Java opens what ours has written."""
        self.change_hands(OURS, JAVA)
