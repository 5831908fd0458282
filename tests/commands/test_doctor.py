# -*- test-case-name: tests.commands.test_doctor -*-
"""C{dledger doctor}: each finding, with its meaning and the way to mend it."""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
from pathlib import Path
from typing import Any

from twisted.internet.defer import fail, succeed
from twisted.internet.error import ConnectionRefusedError

from dledger.admin.sites import diagnoses
from dledger.admin.sites.diagnoses import FINE, LOOK, WRONG, Diagnosis
from dledger.cli.ledger import doctor, member_pages
from dledger.cli.ledger.doctor import PROBES, backup_diagnosis, directory_diagnoses
from tests.commands.fakes import CliCase, info
from tests.processes.members import ROOT

MEMBERS = ("n0", "n1", "n2")


class DirectoryTests(CliCase):
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


class CommandTests(CliCase):
    """The whole command."""

    def test_group_and_pages(self) -> None:
        """Pages that cannot be read are named; what is wrong makes status 1."""
        peers = {name: f"{name}.test:1" for name in MEMBERS}
        self.log.infos = tuple(
            info(name, role="leader" if name == "n0" else "follower", peers=peers, term=1,
                 admin=f"{name}.test:8080") for name in MEMBERS
        )

        async def fetch(agent: object, url: str, path: str, timeout_s: float, clock: object) -> Any:
            page = {"member": {"self_id": url[7:9]}, "stall_s": 0}
            return await (fail(ConnectionRefusedError()) if "n1" in url else succeed(page))

        self.patch(member_pages, "fetch_page", fetch)
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
        text = "".join(Path(one.__file__).read_text("utf-8") for one in (doctor, diagnoses))
        named = re.findall(r"docs/(\w+\.md), ([A-Z][a-z A-Z]+)", text)
        self.assertGreater(len(named), 4)
        for page, section in named:
            lines = (ROOT / "docs" / page).read_text("utf-8").splitlines()
            self.assertTrue({f"## {section}", f"### {section}"} & {*lines}, (page, section))
