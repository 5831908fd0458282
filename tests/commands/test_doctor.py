# -*- test-case-name: tests.commands.test_doctor -*-
"""C{dledger doctor}: each finding, with its meaning and the way to mend it."""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from twisted.internet.defer import fail, succeed
from twisted.internet.error import ConnectionRefusedError

from dledger.admin.sites import cluster
from dledger.admin.sites.reports import MemberReport
from dledger.cli.ledger import doctor
from dledger.cli.ledger.doctor import (
    FINE,
    LOOK,
    PROBES,
    WRONG,
    Diagnosis,
    backup_diagnosis,
    directory_diagnoses,
    group_diagnoses,
    member_diagnoses,
)
from tests.commands.fakes import CliCase, info
from tests.processes.members import ROOT

MEMBERS = ("n0", "n1", "n2")


def report(member_id: str, **facts: Any) -> MemberReport:
    """A healthy member."""
    values = {"address": "h:1", "source": "log", "role": "follower", "version": "1", "members": MEMBERS}
    return MemberReport(member_id=member_id, **{**values, **facts})


def group(**facts: Any) -> list[MemberReport]:
    """Three, of which the last has these facts."""
    return [report("n0", role="leader"), report("n1"), report("n2", **facts)]


class FindingCase(CliCase):
    """Findings."""

    def one(self, found: Iterable[Diagnosis], level: str, *words: str) -> None:
        """Exactly one finding, with a meaning and a way to mend it."""
        (finding,) = found
        self.assertEqual(finding.level, level, finding)
        for word in words:
            self.assertIn(word, finding.found)
        if level != FINE:
            self.assertTrue(finding.means and finding.mend, finding)


class GroupTests(FindingCase):
    """From the log ports."""

    def test_group(self) -> None:
        """Well; silent, ill and old members; no leader; numbers of members that bear less."""
        self.one(group_diagnoses(group()), FINE, "3 members serve")
        self.one(group_diagnoses(group(problem="connection refused")), WRONG, "does not answer at h:1")
        self.one(group_diagnoses(group(health="disk full")), WRONG, "disk full")
        level = [one.level for one in group_diagnoses(group(version="2"))]
        self.assertEqual(level, [LOOK, FINE])
        (no_leader, *_) = group_diagnoses([report("n0"), report("n1"), report("n2")])
        self.assertEqual((no_leader.level, no_leader.found), (WRONG, "no member leads"))
        for members, bears in ((("n0",), "0"), (("n0", "n1"), "0"), (("n0", "n1", "n2", "n3"), "1, as 3")):
            (found, _fine) = group_diagnoses([report("n0", role="leader", members=members)])
            self.assertEqual((found.level, f"the loss of {bears}" in found.means), (LOOK, True), found)


class StatusTests(FindingCase):
    """From the pages."""

    def test_well(self) -> None:
        """Nothing to say; a value of a wrong type is nothing."""
        self.assertEqual([*member_diagnoses("n0", {})], [])
        well = {"disk_free_bytes": 50, "disk_total_bytes": 100, "uptime_s": 1000.0, "stall_s": 1.0,
                "readers": [], "tls_expires_s": 90 * 86400.0,
                "fsync": {"bounds": [0.01, 1.0], "counts": [1000, 1, 0]}}
        self.assertEqual([*member_diagnoses("n0", well)], [])
        strange = {"fsync": "x", "readers": "x", "machine": 7, "stall_s": "x"}
        self.assertEqual([*member_diagnoses("n0", strange)], [])

    def test_each(self) -> None:
        """Each has a level."""
        slow = {"bounds": [0.01, 0.1, 1.0], "counts": [90, 10, 0, 0]}
        dead = {"bounds": [0.01, 0.1, 1.0], "counts": [0, 0, 0, 3]}
        for page, level, words in (
            ({"disk_free_bytes": 14 << 30, "disk_total_bytes": 100 << 30}, LOOK, "14.0 of 100 GiB"),
            ({"fsync_failures": 2}, WRONG, "2 fsyncs have failed"),
            ({"fsync": slow}, LOOK, "more than 0.1 s"), ({"fsync": dead}, WRONG, "more than inf s"),
            ({"uptime_s": 100.0, "stall_s": 2.0}, LOOK, "stood still for 2 of 100 s"),
            ({"set_aside_files": 1, "set_aside_bytes": 5}, LOOK, "1 files (5 bytes)"),
            ({"tls_expires_s": 20 * 86400.0}, LOOK, "ends in 20 days"),
            ({"tls_expires_s": 86400.0}, WRONG, "ends in 1 days"),
            ({"times_ahead_ms": 7_200_000}, WRONG, "7200 s ahead"),
            ({"connections_refused": 3}, LOOK, "3 connections were refused"),
            ({"machine": {"snapshot_problem": "no room"}}, WRONG, "no room"),
            ({"machine": {"log_kept": "a reader needs it"}}, LOOK, "a reader needs it"),
            ({"readers": [{"name": "r", "lag": 200_000}, {"name": "s", "lag": 5}]}, LOOK, "reader r lacks"),
        ):
            self.one(member_diagnoses("n0", page), level, words)


class DirectoryTests(FindingCase):
    """A disk of this machine."""

    def setUp(self) -> None:
        super().setUp()
        self.directory = Path(self.mktemp()).resolve()
        self.directory.mkdir()
        self.mounts = Path(self.mktemp())
        self.patch(shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(100, 10, 90))

    def look(self, fsync_s: float = 0.001, kind: str = "ext4") -> list[Diagnosis]:
        """With fsyncs of this length."""
        self.mounts.write_text(f"disk / other rw 0 0\ndisk {self.directory.parent} {kind} rw 0 0\n")
        now = iter(value for number in range(PROBES) for value in (2.0 * number, 2.0 * number + fsync_s))
        return [*directory_diagnoses(self.directory, mounts=self.mounts, seconds=lambda: next(now))]

    def test_disks(self) -> None:
        """Its kind, its room, its speed; nothing is left there."""
        self.assertEqual([one.level for one in self.look()], [FINE, FINE])
        for kind, level in (("tmpfs", WRONG), ("nfs4", LOOK), ("overlay", LOOK)):
            self.assertEqual([one.level for one in self.look(kind=kind)], [level, FINE])
        for fsync_s, level in ((0.02, LOOK), (0.3, WRONG)):
            self.assertEqual([one.level for one in self.look(fsync_s)], [FINE, level])
        self.patch(shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(100, 90, 10))
        self.assertEqual([one.level for one in self.look()], [FINE, LOOK, FINE])
        self.patch(shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(0, 0, 0))
        self.assertEqual([one.level for one in self.look()], [FINE, FINE])
        self.assertEqual(os.listdir(self.directory), [])

    def test_a_disk_that_fails(self) -> None:
        """A failed fsync is a finding; its file is gone."""
        def broken(descriptor: int) -> None:
            raise OSError(errno.EIO, "Input/output error")

        self.patch(os, "fdatasync", broken)
        _kind, found = self.look()
        self.assertEqual((found.level, "Input/output error" in found.found), (WRONG, True))
        self.assertEqual(os.listdir(self.directory), [])


class CommandTests(FindingCase):
    """The whole command."""

    def test_group_and_pages(self) -> None:
        """Pages that cannot be read are named; what is wrong makes status 1."""
        peers = {name: f"{name}.test:1" for name in MEMBERS}
        self.log.infos = tuple(
            info(name, role="leader" if name == "n0" else "follower", peers=peers, term=1,
                 admin=f"{name}.test:8080") for name in MEMBERS
        )

        async def fetch(agent: object, url: str, timeout_s: float, clock: object) -> Any:
            return await (fail(ConnectionRefusedError()) if "n1" in url else succeed({"stall_s": 0}))

        self.patch(cluster, "fetch_status", fetch)
        result = self.run_cli("doctor")
        self.assertExit(result, 0)
        unread = r"look   n1: its page was not read: http://n1.test:8080: .*\n +nothing"
        self.assertRegex(result.stdout, unread)
        self.assertIn("fine   group: 3 members serve", result.stdout)
        self.log.infos = (*self.log.infos[:2], info("n2", problem="connection refused"))
        result = self.run_cli("doctor", "--json")
        self.assertExit(result, 1)
        document = json.loads(result.stdout)
        self.assertEqual((document["is_well"], document["findings"][0]["about"]), (False, "n2"))

    def test_backups(self) -> None:
        """One that is old, and one that is none."""
        self.assertEqual(backup_diagnosis("t", 0, 1.0, 3000.0).level, FINE)
        self.assertIn("2.0 hours ago", backup_diagnosis("t", 0, 1.0, 7200.0).found)
        directory = self.mktemp()
        os.mkdir(directory)
        result = self.run_cli("doctor", "--backup", directory)
        self.assertExit(result, 1)
        self.assertIn(f"wrong  {directory}: ", result.stdout)

    def test_pages_of_the_documents(self) -> None:
        """Each section that a finding names is there."""
        text = Path(doctor.__file__).read_text("utf-8")
        named = re.findall(r"docs/(\w+\.md), ([A-Z][a-z A-Z]+)", text)
        self.assertGreater(len(named), 4)
        for page, section in named:
            lines = (ROOT / "docs" / page).read_text("utf-8").splitlines()
            self.assertTrue({f"## {section}", f"### {section}"} & {*lines}, (page, section))
