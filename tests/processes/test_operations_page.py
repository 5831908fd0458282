# -*- test-case-name: tests.processes.test_operations_page -*-
"""
The commands of docs/operations.md that no other test plays, as they are printed there: reading the status,
a rolling restart, changes of members, a broker's store. And a list of all commands with the test of each.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from twisted.trial.unittest import SynchronousTestCase

import dledger
from tests.processes.brokers import Broker, Remoting
from tests.processes.children import Child, free_ports, free_triple
from tests.processes.members import ROOT, Group, Member, ended_well
from tests.processes.test_backup import DLEDGER, PAGE, documented
from tests.slowness import patient
from tests.test_deploy import accepted

_CHANGES = "Changing the members of a running group"
_DEPLOY = "tests.test_deploy, tests.processes.test_deploy: the files; systemd and containers are not run"
_HERE = "tests.processes.test_operations_page"
#: Title of each section with commands, to the test that plays them.
PLAYED = {
    "Start a member": _HERE, "As a service": _DEPLOY,
    "Reading the status": _HERE, "Rolling restart": _HERE, _CHANGES: _HERE, "Verify a broker's store": _HERE,
    "A lost majority": "tests.processes.test_runbook",
    "A group without its state": "tests.commands.test_state",
    "Backup": "tests.processes.test_backup", "Archive": "tests.processes.test_archive",
}


class ListTests(SynchronousTestCase):
    """Every section with commands."""

    def test_sections(self) -> None:
        """Each has a test that exists; a new section with commands needs one."""
        parts = re.split(r"^#+ (.*)$", PAGE.read_text("utf-8"), flags=re.MULTILINE)
        with_commands = {
            title for title, text in zip(parts[1::2], parts[2::2], strict=True)
            if re.search(r"^ {4,8}(?:dledger|twistd|docker|until|cp|python3|systemctl) ", text, re.MULTILINE)
        }
        self.assertEqual(with_commands, {*PLAYED})
        for tests in PLAYED.values():
            for name in re.findall(r"tests(?:\.\w+)+", tests):
                place = ROOT / name.replace(".", "/")
                self.assertTrue(place.with_suffix(".py").exists(), name)

    def test_starts(self) -> None:
        """twistd takes the commands that start a member."""
        section = PAGE.read_text("utf-8").split("## Start a member\n")[1].split("\n## ")[0]
        commands = re.findall(r"^    (twistd (?:.*\\\n)*.*)$", section, re.MULTILINE)
        self.assertEqual(len(commands), 3)
        self.addCleanup(os.chdir, os.getcwd())
        place = Path(self.mktemp())
        place.mkdir()
        os.chdir(place)
        Path("member.toml").write_text('self_id = "n1"\npeers = "n1-127.0.0.1:1"\n')
        words = [shlex.split(command.replace("\\\n", ""), comments=True) for command in commands]
        found = [accepted(one[1:]).subOptions.member for one in words]
        self.assertEqual([member.self_id for member in found], ["n0", "n0", "n1"])
        self.assertEqual([len(member.peers) for member in found], [1, 3, 1])


class PageCase(SynchronousTestCase):
    """A directory for a group, in which commands of the page run."""

    def setUp(self) -> None:
        held = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        self.addCleanup(held.cleanup)
        self.directory = Path(held.name)

    def group(self, *, with_pages: bool = False) -> tuple[Group, list[int]]:
        """Three members that have a leader, and the ports of their pages."""
        group, ports = Group(self.directory), free_ports(3)
        self.addCleanup(group.kill)
        if with_pages:
            group.members = {
                name: Member(name, group.peers, self.directory / name,
                             extra=("--admin", f"tcp:{port}:interface=127.0.0.1"))
                for (name, port) in zip(group.peers, ports, strict=True)
            }
        group.start()
        group.leader()
        return group, ports

    def run_printed(
        self, command: str, peers: str = "", *, others: Mapping[str, str] | None = None, status: int = 0
    ) -> str:
        """
        The output of a command of the page.

        @param others: texts of the page to ours.
        """
        for printed, ours in (others or {}).items():
            self.assertIn(printed, command)
            command = command.replace(printed, ours)
        done = subprocess.run(
            ["bash", "-euc", re.sub(r"^dledger\b", lambda _: DLEDGER, command)], cwd=self.directory,
            env={**os.environ, "PYTHONPATH": str(ROOT), "DLEDGER_PEERS": peers}, capture_output=True,
            text=True, timeout=patient(240),
        )
        self.assertEqual(done.returncode, status, f"{command}\n{done.stdout}{done.stderr}")
        return done.stdout


class ReadingTests(PageCase):
    """A group of three that is well, and one of whose members is restarted."""

    def test_status(self) -> None:
        """All are well, and every command says so."""
        group, _ = self.group(with_pages=True)
        with dledger.connect(group.peers_text) as log:
            log.append(b"one")
        group.wait_settled()
        for start, has in (("dledger health", "n2"), ("dledger cluster", "leader"), ("dledger events", "n1")):
            said = self.run_printed(documented(start, "Reading the status"), group.peers_text)
            self.assertIn(has, said, start)
        doctor = documented("dledger doctor", "Reading the status")
        said = self.run_printed(doctor, group.peers_text, others={
            "/var/lib/dledger/n0": str(group.members["n0"].ledger_path)})
        self.assertIn("n0", said)

    def test_rolling_restart(self) -> None:
        """One after the other, the leader last; no step needs more than the page says."""
        group, ports = self.group(with_pages=True)
        leader = group.leader()
        names = sorted(group.members, key=lambda name: name == leader)
        wait = documented("until curl", "Rolling restart")
        for name in names:
            self.run_printed(documented("dledger health", "Reading the status"), group.peers_text)
            self.assertTrue(ended_well(group.members[name].stop(seconds=60)))
            group.members[name].start()
            self.run_printed(wait, others={"8080": str(ports[[*group.members].index(name)])})
        self.assertNotEqual(group.leader(), "")


class ChangesTests(PageCase):
    """Members come, go and move."""

    def changed(self, group: Group, start: str, **others: str) -> str:
        """The output of a change."""
        return self.run_printed(documented(f"dledger member {start}", _CHANGES), group.peers_text,
                                others=others)

    def joining(self, group: Group) -> tuple[Child, str]:
        """The new member of the page, and its address."""
        address = f"127.0.0.1:{free_ports(1)[0]}"
        known = ";".join(f"{name}-{one}" for name, one in group.peers.items())
        command = documented("twistd -n dledger --node-id n3", _CHANGES)
        command = re.sub(r"--peers '[^']*'", f"--peers 'n3-{address};{known}'", command)
        command = command.replace("twistd -n", "exec twistd -n --pidfile=")
        child = Child("n3", ["bash", "-euc", f'cd "{self.directory}" && {command}'],
                      log_path=self.directory / "n3.log",
                      environment={"PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1",
                                   "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"})
        self.addCleanup(child.kill)
        child.start()
        return child, address

    def listed(self, group: Group) -> str:
        """What C{dledger member list} prints."""
        return self.changed(group, "list")

    def test_one_by_one(self) -> None:
        """A learner is added, and made a voter; one goes; one moves to another address."""
        group, _ = self.group()
        with dledger.connect(group.peers_text) as log:
            log.append_many([b"%d" % number for number in range(100)])
        _, address = self.joining(group)
        self.changed(group, "add n3", **{"10.0.0.4:20911": address})
        self.changed(group, "promote n3")
        self.changed(group, "remove n1")
        self.assertTrue(ended_well(group.members["n1"].stop(seconds=60)))
        moved = f"127.0.0.1:{free_ports(1)[0]}"
        self.changed(group, "move n2", **{"10.0.0.9:20911": moved})
        self.assertTrue(ended_well(group.members["n2"].stop(seconds=60)))
        group.members["n2"] = Member("n2", {**group.peers, "n2": moved}, self.directory / "n2")
        group.members["n2"].start()
        peers = f"n0-{group.peers['n0']};n2-{moved};n3-{address}"
        group.wait_until(lambda: self.is_served(peers), "the moved member", seconds=60)
        listed = self.run_printed(documented("dledger member list", _CHANGES), peers)
        self.assertEqual([name in listed for name in ("n0", "n1", "n2", "n3")], [True, False, True, True])
        self.assertIn(moved, listed)
        with dledger.connect(peers) as log:
            self.assertEqual(len([one for one in log.tail(0, follow=False) if one.body]), 100)

    def is_served(self, peers: str) -> bool:
        """Whether all these members answer, and are well."""
        with dledger.connect(peers) as log:
            return not any(info.problem or info.health for info in log.status())

    def test_replace(self) -> None:
        """All in one."""
        group, _ = self.group()
        _, address = self.joining(group)
        self.changed(group, "replace n1 n3", **{"10.0.0.4:20911": address})
        listed = self.listed(group)
        self.assertEqual([name in listed for name in ("n0", "n1", "n2", "n3")], [True, False, True, True])


class BrokerTests(PageCase):
    """A broker's store."""

    def test_verify(self) -> None:
        """Both commands find nothing wrong in a broker that was stopped."""
        broker = Broker("a", self.directory, role="ASYNC_MASTER", port=free_triple())
        self.addCleanup(broker.kill)
        broker.start()
        broker.wait_started()
        connection = Remoting(broker.address)
        connection.put("orders", 0, b"one")
        self.assertEqual(connection.next().code, 0)
        connection.close()
        broker.end()
        for number, end in enumerate(("ours or RocketMQ's", "--index-entries 20000000")):
            text = PAGE.read_text("utf-8")
            (command,) = re.findall(rf"^    (dledger verify \./a.*{re.escape(end)})$", text, re.MULTILINE)
            # (The test's broker has a small index.)
            command = re.sub(r" --index-\w+ \d+", "", command)
            said = self.run_printed(command, others={"./a": str(broker.store)})
            self.assertIn("{" if number else "clean", said)
