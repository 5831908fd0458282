# -*- test-case-name: tests.interop.test_directories -*-
"""
Directories that one kind has written and the other continues, and the findings of C{dledger verify}.
"""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path

from click.testing import CliRunner
from twisted.trial.unittest import SkipTest, SynchronousTestCase

from dledger.base.disk.disk import OsDisk
from dledger.cli.main import cli
from dledger.storage.start.verify import VerifyReport, verify_directory
from protocols.wire.codes import ResponseCode
from protocols.wire.ledger.entry import ENTRY_HEADER_SIZE
from protocols.wire.ledger.messages import GetRequest
from tests.interop.java import JavaMember, JavaMissing, class_path
from tests.interop.load import Load
from tests.interop.mixed import DATA_FILE_BYTES, DEADLINE_S, INDEX_FILE_BYTES, JAVA, OURS, MixedGroup
from tests.interop.test_mixed_groups import bodies
from tests.processes.asking import ask
from tests.processes.children import wait_until
from tests.processes.ledgers import read_records

#: Expiry deletes files that are old enough at any hour of the day.
EVERY_HOUR = ";".join(str(hour) for hour in range(24))
JAVA_EXPIRY: dict[str, object] = {"fileReservedHours": 1, "deleteWhen": EVERY_HOUR}
OUR_EXPIRY: dict[str, object] = {"file_reserved_hours": 1, "delete_when": EVERY_HOUR}


class DirectoryCase(SynchronousTestCase):
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
        self.ledger = self.directory / "n0" / "dledger-n0"

    def group_of(self, kind: str, **options: dict[str, object]) -> MixedGroup:
        """One member."""
        group = MixedGroup(self.directory, (kind,), java=options.get("java"), ours=options.get("ours"))
        self.addCleanup(group.kill)
        return group

    def report(self) -> VerifyReport:
        """The report of C{dledger verify}."""
        return verify_directory(OsDisk(), str(self.ledger))

    def judge(self, end_index: int | None = None) -> None:
        """C{dledger verify} finds no damage, and the expected number of entries."""
        report = self.report()
        self.assertEqual(report.findings, [])
        held = [record.index for record in read_records(self.ledger)]
        self.assertEqual((report.begin_index, report.end_index), (held[0], held[-1]))
        if end_index is not None:
            self.assertEqual(report.end_index, end_index)

    def begin_index(self, group: MixedGroup) -> int:
        """The first index that the running member holds, by its own word."""
        member = group.members["n0"]
        if isinstance(member, JavaMember):
            return int(member.status()["begin"])
        said = member.metadata()
        return -2 if said is None else said.begin_index

    def go_on(self, group: MixedGroup, text: str) -> None:
        """The running member has all entries, refuses those below its begin, and takes more."""
        group.leader()
        begin_index = max(self.begin_index(group), 0)
        for index in [index for index in group.acknowledged if index < begin_index]:
            del group.acknowledged[index]
        for index in sorted(group.acknowledged)[:: max(1, len(group.acknowledged) // 20)]:
            self.assertEqual(group.get(index), group.acknowledged[index])
        if begin_index:
            request = GetRequest(group=group.name, remote_id="n0", begin_index=begin_index - 1)
            self.assertIs(ask(group.peers["n0"], request).code, ResponseCode.INDEX_LESS_THAN_LOCAL_BEGIN)
        group.append_pipelined(bodies(text, 300))

    def wholly_there(self, group: MixedGroup) -> None:
        """Every acknowledged entry is in the stopped member's files."""
        found = {record.index: record.body for record in read_records(self.ledger)}
        for index, body in group.acknowledged.items():
            self.assertEqual(found.get(index), body, f"entry {index}")


class HandsTests(DirectoryCase):
    """After a clean stop and after SIGKILL under load, over several files."""

    def kill_under_load(self, group: MixedGroup, seed: int) -> None:
        """SIGKILL while appends are under way; entries acknowledged before it count."""
        load = Load(group.peers, group.name, group.acknowledged, seed=seed, rate=3000.0)
        before = len(group.acknowledged)
        load.go()
        wait_until(
            lambda: len(group.acknowledged) > before + 300, seconds=DEADLINE_S, what="appends under way"
        )
        group.members["n0"].kill()
        load.pause()
        load.close()
        self.assertEqual(load.twice, [])

    def judge_killed(self, group: MixedGroup) -> None:
        """Findings, if any, are after the last acknowledged entry."""
        last = max(group.acknowledged)
        report = self.report()
        self.assertGreaterEqual(report.end_index, last)
        for finding in report.findings:
            self.assertGreater(finding.index, last, str(finding))

    def change_hands(self, first: str, second: str) -> None:
        """The kinds take turns on the same files."""
        group = self.group_of(first)
        group.start()
        self.go_on(group, "written by the first")
        for number, (kind, how) in enumerate(
            ((second, "kill"), (first, "stop"), (second, "stop"), (first, "kill"), (first, "kill"))
        ):
            if how == "kill":
                self.kill_under_load(group, number)
                self.judge_killed(group)
            else:
                group.stop()
                self.judge()
            group.replace("n0", kind)
            group.start()
            self.go_on(group, f"{number}: {kind} after {how}")
        group.stop()
        self.judge()
        self.wholly_there(group)
        self.assertGreater(len(list((self.ledger / "data").iterdir())), 5)
        self.assertGreater(len(list((self.ledger / "index").iterdir())), 5)

    def test_java_first(self) -> None:
        """Ours opens the files of Java, and Java the additions of ours."""
        self.change_hands(JAVA, OURS)

    def test_ours_first(self) -> None:
        """Java opens the files of ours, and ours the additions of Java."""
        self.change_hands(OURS, JAVA)

    def test_unmade_files(self) -> None:
        """An empty file, as a killed Java leaves it, keeps Java from starting, but not ours."""
        group = self.group_of(JAVA)
        group.start()
        self.go_on(group, "written by Java")
        group.stop()
        for name, size in (("data", DATA_FILE_BYTES), ("index", INDEX_FILE_BYTES)):
            last = max((self.ledger / name).iterdir())
            (self.ledger / name / f"{int(last.name) + size:020d}").touch()
        member = group.members["n0"]
        assert isinstance(member, JavaMember)
        member.tidies = False
        member.start()
        self.assertNotEqual(member.wait(seconds=DEADLINE_S), 0)
        self.assertIn("length not matched", member.log_path.read_text())
        group.replace("n0", OURS)
        group.start()
        self.go_on(group, "ours goes on")
        group.stop()
        self.judge()
        self.wholly_there(group)


class ExpiryTests(DirectoryCase):
    """One kind deletes old files, the other continues with the rest."""

    def expire(self, first: str, second: str) -> None:
        """The first kind writes and deletes; then the second does both; then the first again."""
        group = self.group_of(first, java=JAVA_EXPIRY, ours=OUR_EXPIRY)
        begin_index = 0
        for kind in (first, second, first):
            group.replace("n0", kind)
            group.start()
            self.go_on(group, f"written by {kind}")
            group.append_pipelined(bodies(f"more by {kind}", 500))
            group.stop()
            self.judge()
            old = time.time() - 5 * 3600
            for path in sorted((self.ledger / "data").iterdir())[:2]:
                os.utime(path, (old, old))
            group.start()
            wait_until(
                lambda before=begin_index: self.begin_index(group) > before, seconds=DEADLINE_S, every=0.2,
                what=f"expired files of {kind}",
            )
            begin_index = self.begin_index(group)
            self.go_on(group, f"{kind} has deleted")
            group.stop()
            self.judge()
        self.wholly_there(group)
        self.assertGreater(min(group.acknowledged), 0)

    def test_java_first(self) -> None:
        """Each kind opens a directory in which the other has deleted files."""
        self.expire(JAVA, OURS)

    def test_ours_first(self) -> None:
        """The same with the first files written by ours."""
        self.expire(OURS, JAVA)


class DamageTests(DirectoryCase):
    """C{dledger verify} finds damage in the files of either kind."""

    def find(self, kind: str) -> None:
        """A damaged header, a damaged index unit, and a damaged body, which only our checksums show."""
        group = self.group_of(kind)
        group.start()
        self.go_on(group, f"written by {kind}")
        group.stop()
        self.judge()
        record = next(record for record in read_records(self.ledger) if record.index == 100)
        data, index = self.ledger / "data" / f"{0:020d}", self.ledger / "index" / f"{0:020d}"
        self.assertLess(record.pos + len(record.raw), DATA_FILE_BYTES)
        for path, offset, is_found in (
            (data, record.pos + 4, True), (index, 100 * 32 + 12, True),
            (data, record.pos + ENTRY_HEADER_SIZE, kind == OURS),
        ):
            whole = path.read_bytes()
            path.write_bytes(whole[:offset] + bytes([whole[offset] ^ 0xFF]) + whole[offset + 1 :])
            said = CliRunner().invoke(cli, ["verify", str(self.ledger)])
            self.assertEqual(said.exit_code != 0, is_found, said.output)
            path.write_bytes(whole)
        said = CliRunner().invoke(cli, ["verify", str(self.ledger)])
        self.assertEqual(said.exit_code, 0, said.output)

    def test_java(self) -> None:
        """Java writes no checksums: a changed body is a sound record."""
        self.find(JAVA)

    def test_ours(self) -> None:
        """Every changed byte is found."""
        self.find(OURS)
