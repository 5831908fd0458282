# -*- test-case-name: tests.processes.test_operations_page -*-
"""
The commands of docs/operations.md that no other test plays, as they are printed there: reading the status,
a rolling restart, changes of members, a group without its state, object stores, a broker's store.
"""

from __future__ import annotations

import os
import re
import signal
import urllib.request

from twisted.trial.unittest import SkipTest

import dledger
from dledger.base.disk.disk import OsDisk
from dledger.storage.files.state_file import STATE_NAME
from dledger.storage.store.file_store import FileStore
from dledger.values.ledger.config import DLedgerConfig
from tests.processes.brokers import Broker, Remoting
from tests.processes.children import Child, free_ports, free_triple, wait_until
from tests.processes.members import Group, Member, ended_well
from tests.processes.pages import PageCase, commands, documented
from tests.processes.test_backup import OPTIONS
from tests.storage.s3_server import MISSING, S3Server

_CHANGES = "Changing the members of a running group"


class GroupPageCase(PageCase):
    """Groups whose members the page's commands look at, or change."""

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


class ReadingTests(GroupPageCase):
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
        self.environment["DLEDGER_PEERS"] = group.peers_text
        dashboard = self.start_printed("dashboard", documented("dledger dashboard", "Reading the status"),
                                       until="Ctrl-C ends it")
        (address,) = re.findall(r"http://\S+", dashboard.log_path.read_text("utf-8"))
        asked = urllib.request.Request(address, headers={"Accept": "text/html"})
        with urllib.request.urlopen(asked, timeout=60) as page:
            self.assertIn("Named readers", page.read().decode())
        os.kill(dashboard.pid, signal.SIGINT)
        self.assertEqual(dashboard.wait(seconds=60), 0, dashboard.log_tail())
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


class ChangesTests(GroupPageCase):
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
        return self.start_printed("n3", command), address

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
        for number, command in enumerate(commands("operations.md", "Verify a broker's store")):
            # (The test's broker has a small index.)
            command = re.sub(r" --index-\w+ \d+", "", command)
            said = self.run_printed(command, others={"./a": str(broker.store)})
            self.assertIn("{" if number else "clean", said)


class StoreCase(PageCase):
    """The directory of a member that is down."""

    def stored(self, **options: object) -> FileStore:
        """With entries in six segments, of which the mark has all; open."""
        config = DLedgerConfig(store_base_dir=str(self.directory / "n0"), bootstrap=True, **OPTIONS,
                               **options)  # type: ignore[arg-type]
        store = FileStore.open(config, OsDisk())
        store.append_bodies((b"x" * 1000,) * 360, 1)
        store.record_commit(store.ledger_end_index)
        store.check_point(force=True)
        return store


class StateTests(StoreCase):
    """No member has the state of the group."""

    def test_begin_anew(self) -> None:
        """Readers are refused until an administrator lets the state begin anew; entries are not."""
        store = self.stored(retention_bytes=1)
        store.maintenance(0, 0, keep_from_index=store.ledger_end_index)
        self.assertGreater(store.ledger_begin_index, 0)
        store.clean_close()
        place = self.directory / "n0" / "dledger-n0"
        (place / STATE_NAME).unlink(missing_ok=True)
        # (As the page says of a vote that is not known.)
        (place / "currterm").write_text("voteLeader=\ncurrTerm=2\n")
        peers = {"n0": f"127.0.0.1:{free_ports(1)[0]}"}
        member = Member("n0", peers, self.directory / "n0", options=OPTIONS)
        self.addCleanup(member.kill)
        member.start()
        text = f"n0-{peers['n0']}"
        health = documented("dledger health", "Reading the status")
        wait_until(lambda: "does not know the state of the group" in self.said(health, text), seconds=60,
                   what="a member that says so", notify=member.log_tail)
        (command,) = commands("operations.md", "A group without its state")
        self.assertIn("begins anew", self.run_printed(command, text))
        self.run_printed(health, text)
        with dledger.connect(text, timeout=60) as log:
            reader = log.reader("billing")
            log.append(b"one")
            reader.close()
        self.assertTrue(ended_well(member.stop(seconds=60)))

    def said(self, command: str, peers: str) -> str:
        """What a command says that may end with status 1."""
        return self.run_printed(f"{command.partition(' #')[0]} || true", peers)


class StoresTests(StoreCase):
    """Backups and archives: in object stores, and their retention."""

    def test_directory(self) -> None:
        """An archive is verified; nothing goes before --delete, and then only what has its age."""
        self.stored().clean_close()
        place = {"/archive/log": str(self.directory / "log")}
        archive, _, _, verify, show, expire = commands("operations.md", "Archive")[:6]
        self.assertIn("copied", self.run_printed(archive, others=place))
        self.assertIn("clean", self.run_printed(verify, others=place))
        for command in (show, expire):
            self.assertIn("0 segments", self.run_printed(command, others=place))
        self.assertIn("clean", self.run_printed(verify, others=place))

    def test_s3(self) -> None:
        """Both into one bucket, and the note that the last command leaves at the member."""
        if MISSING:
            raise SkipTest(MISSING)
        server = S3Server()
        self.addCleanup(server.stop)
        self.environment |= {"AWS_ACCESS_KEY_ID": "x", "AWS_SECRET_ACCESS_KEY": "y",
                             "AWS_DEFAULT_REGION": "us-east-1", "AWS_ENDPOINT_URL": server.plain_url}
        self.stored().clean_close()
        _, _, archive, *_, follow = [one for one in commands("operations.md", "Archive")
                                     if one.startswith("dledger archive ./n0")]
        self.assertIn("copied", self.run_printed(archive, others={"http://10.0.0.9:9000": server.plain_url}))
        self.assertIn("log/archive-0.json", server.keys())
        backup = documented("dledger backup ./n1/dledger-n1 s3://", "Backup")
        self.run_printed(backup, others={"n1/dledger-n1": "n0/dledger-n0"})
        archiver = self.start_printed("archive", follow)
        note = self.directory / "n0" / "dledger-n0" / "archived"
        wait_until(note.exists, seconds=60, what="the note", notify=archiver.log_tail)
        archiver.send(signal.SIGINT)
        self.assertEqual(archiver.wait(seconds=60), 130)
