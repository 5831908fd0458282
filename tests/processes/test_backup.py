# -*- test-case-name: tests.processes.test_backup -*-
"""
The steps of "Backup" in docs/operations.md, played on real members: backups of a group that takes appends,
and a new group of three from the last one.

"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

from twisted.trial.unittest import SynchronousTestCase

import dledger
from dledger.base.disk.disk import OsDisk
from dledger.storage.backups.reader import verify_archive
from dledger.storage.files.reader import LogReader
from dledger.storage.manifests.archive_manifest import read_archive
from dledger.storage.store.file_store import FileStore
from dledger.values.ledger.config import DLedgerConfig
from tests.processes.children import Child, free_ports, wait_until
from tests.processes.members import ROOT, Group, Member, ended_well
from tests.processes.pages import PageCase, documented
from tests.slowness import patient

OPTIONS = {"mapped_file_size_for_entry_data": 64 * 1024, "mapped_file_size_for_entry_index": 32 * 1024}


class InterruptedTests(SynchronousTestCase):
    """A backup that takes long, and a user that does not wait for it."""

    def test_interrupted(self) -> None:
        """Ctrl-C, SIGTERM and SIGKILL leave the backup of before; the next one goes on."""
        held = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        self.addCleanup(held.cleanup)
        config = DLedgerConfig(store_base_dir=held.name, bootstrap=True, **OPTIONS)  # type: ignore[arg-type]
        store = FileStore.open(config, OsDisk())
        place = Path(held.name) / "log"
        command = [sys.executable, "-c", "from dledger.cli.main import main; main()", "backup",
                   str(config.self_path), str(place)]
        count = 0
        for number, status in ((signal.SIGINT, 130), (signal.SIGTERM, 130), (signal.SIGKILL, -9)):
            store.append_bodies((b"x" * 1000,) * 200, 1)
            store.record_commit(store.ledger_end_index)
            store.check_point(force=True)
            child = Child("backup", [*command, "--rate", "30000"], log_path=place.with_suffix(".log"))
            self.addCleanup(child.kill)
            child.start()
            wait_until(lambda: list(place.glob("data/*.part")), seconds=120, what="a piece that is written")
            child.send(number)
            self.assertEqual(child.wait(seconds=120), status)
            found = read_archive(OsDisk(), str(place)).manifest
            self.assertGreaterEqual(0 if found is None else found.end_index + 1, count)
            subprocess.run(command, check=True, capture_output=True, timeout=240)
            count += 200
            self.assertEqual(verify_archive(OsDisk(), str(place)).entries, count)
        store.clean_close()


class RestoredTests(SynchronousTestCase):
    """A group is restored at the addresses of the old one, while programs follow its log."""

    def test_readers_are_reported(self) -> None:
        """A tail, a named reader and C{dledger tail} end with an error; a new one reads the new log."""
        held = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        self.addCleanup(held.cleanup)
        directory = Path(held.name)
        peers = {"n0": f"127.0.0.1:{free_ports(1)[0]}"}
        peers_text = f"n0-{peers['n0']}"
        old, new = (
            Member("n0", peers, directory / name, options={**OPTIONS, "bootstrap": True})
            for name in ("old", "new")
        )
        for member in (old, new):
            self.addCleanup(member.kill)
        old.start()
        command = [sys.executable, "-c", "from dledger.cli.main import main; main()"]
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        log = dledger.connect(peers_text, timeout=60)
        self.addCleanup(log.close)
        log.append_many(b"old %d" % number for number in range(50))
        old.stop()
        place = str(directory / "log")
        subprocess.run([*command, "backup", str(old.ledger_path), place], check=True, capture_output=True,
                       env=environment)
        old.start()
        log.append_many(b"old %d" % number for number in range(50, 100))
        follower = subprocess.Popen([*command, "--peers", peers_text, "tail", "-f", "--from", "0"],
                                    stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                    env=environment)
        self.addCleanup(follower.kill)
        assert follower.stdout is not None
        while not follower.stdout.readline().endswith("old 99\n"):
            pass
        tail, reader = iter(log.tail(0, follow=True)), log.reader("billing")
        while next(tail).body != b"old 99":
            pass
        while next(reader).body != b"old 99":
            pass
        old.stop()
        subprocess.run([*command, "restore", place, "--store", str(directory / "new"), "--node-id", "n0",
                        "--peers", peers_text], check=True, capture_output=True, env=environment)
        new.start()
        with dledger.connect(peers_text, timeout=60) as other:
            other.append_many(b"new %d" % number for number in range(100))
            self.assertEqual([one.body for one in other.tail(-1)], [b"new 99"])
        error = self.assertRaises(dledger.Restored, next, tail)
        self.assertNotEqual(error.group_id, error.read_group_id)
        self.assertRaises(dledger.Restored, reader.commit)
        self.assertRaises(dledger.Restored, log.get, 60)
        _, said = follower.communicate(timeout=patient(60))
        self.assertEqual(follower.returncode, 1)
        self.assertIn("GROUP_RESTORED (450)", said)
        reader.close()
        new.stop()


class MachineTests(SynchronousTestCase):
    """A member with a state machine, whose log was trimmed after snapshots."""

    def test_restored_state(self) -> None:
        """A group from its first backup, and one from its archive, have the state of before."""
        held = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        self.addCleanup(held.cleanup)
        self.home = Path(held.name)
        old, peers_text = self.member("old")
        old.start()
        log = dledger.connect(peers_text, timeout=60)
        self.addCleanup(log.close)
        for number in range(500):
            log.submit(json.dumps({"does": "put", "key": f"k{number % 90}", "value": "x" * 50}).encode())
        wait_until(lambda: log.metadata().begin_index > 100, seconds=patient(60), what="a trimmed log")
        state = [log.query(b"k%d" % number) for number in range(90)]
        end_index = log.metadata().committed_index
        self.cli("backup", str(old.ledger_path), str(self.home / "backup"))
        self.cli("archive", str(old.ledger_path), str(self.home / "archive"))
        old.stop()  # (its mark has the last commit)
        self.assertIn("the machine's snapshot after", self.cli(
            "backup", str(old.ledger_path), str(self.home / "backup")))
        for kind in ("backup", "archive"):
            self.assertIn("clean", self.cli(kind, "--verify", str(self.home / kind)))
            new, new_peers = self.member(f"new-{kind}")
            self.cli("restore", str(self.home / kind), "--store", str(new.directory), "--node-id", "n0",
                     "--peers", new_peers)
            new.start()
            with dledger.connect(new_peers, timeout=patient(60)) as other:
                found = [other.query(b"k%d" % number) for number in range(90)]
                if kind == "backup":  # (the archive lacks the last segment)
                    self.assertEqual(found, state)
                self.assertEqual([one for one in found if json.loads(one)["value"] != "x" * 50], [])
                self.assertGreater(other.metadata().begin_index, 100)
                self.assertGreaterEqual(end_index + 9, other.metadata().committed_index)
            self.assertTrue(ended_well(new.stop()))

    def member(self, name: str) -> tuple[Member, str]:
        """With the key-value store of the examples, in a directory of this name; and its peers."""
        peers = {"n0": f"127.0.0.1:{free_ports(1)[0]}"}
        member = Member(
            "n0", peers, self.home / name, modules=ROOT / "examples" / "kv",
            extra=("--machine", "store:KeyValueStore"),
            options={"mapped_file_size_for_entry_data": 16384, "mapped_file_size_for_entry_index": 3200,
                     "machine_snapshot_entries": 100, "machine_keep_entries": 1, "bootstrap": True},
        )
        self.addCleanup(member.kill)
        return member, f"n0-{peers['n0']}"

    def cli(self, *words: str) -> str:
        """What a command writes; it ends well."""
        done = subprocess.run(
            [sys.executable, "-c", "from dledger.cli.main import main; main()", *words], capture_output=True,
            text=True, timeout=patient(120), env={**os.environ, "PYTHONPATH": str(ROOT)}, check=False,
        )
        self.assertEqual(done.returncode, 0, f"{words}: {done.stdout}{done.stderr}")
        return done.stdout


class BackupTests(PageCase):
    """Three members that run, a backup, and three others."""

    def setUp(self) -> None:
        """Start the first three."""
        super().setUp()
        self.old = Group(self.directory, options=OPTIONS)
        self.addCleanup(self.old.kill)
        self.new = Group(self.directory, options=OPTIONS)
        self.sizes = " ".join(f"--set {name}={value}" for name, value in OPTIONS.items())
        for number in self.new.members:
            self.new.members[number] = Member(number, self.new.peers, self.directory / f"new-{number}")
        self.addCleanup(self.new.kill)
        self.environment |= {"NEW_PEERS": self.new.peers_text, "SIZES": self.sizes}

    def shell(self, start: str) -> str:
        """Run a command of the page. @return: its output."""
        command = documented(start, "Backup")
        is_placed = "/backup/log" in command
        return self.run_printed(
            command, others={"/backup/log": str(self.directory / "log")} if is_placed else None)

    def append(self, what: str, count: int, *, group: Group | None = None) -> list[bytes]:
        """Bodies that were acknowledged."""
        bodies = [b"%s %d " % (what.encode(), number) + b"x" * (number % 300) for number in range(count)]
        with dledger.connect((group or self.old).peers_text) as log:
            self.assertEqual(log.append_many(bodies).count, count)
        return bodies

    def entries(self, group: Group, member_id: str = "") -> list[tuple[int, int, int, bytes]]:
        """Every committed entry, by one member or by the leader."""
        peers = f"{member_id}-{group.peers[member_id]}" if member_id else group.peers_text
        with dledger.connect(peers) as log:
            return [(one.index, one.term, one.pos, one.body) for one in log.tail(0, follow=False)]

    def wait_recorded(self) -> None:
        """Until the mark of n0 records the last commit."""
        end_index = self.old.wait_settled()
        path = str(self.old.members["n0"].ledger_path)

        def is_recorded() -> bool:
            reader = LogReader.open(path)
            reader.close()
            return reader.committed_index == end_index

        self.old.wait_until(is_recorded, "a mark that records the last commit")

    def start_new(self, member_id: str) -> Child:
        """As the page starts this one."""
        # (The three share a machine, and a working directory.)
        command = documented(f"twistd -n dledger --node-id {member_id}", "Backup")
        return self.start_printed(f"new-{member_id}", command, others={"twistd -n": "twistd -n --pidfile="})

    def test_steps(self) -> None:
        """Backups before, during and after appends; the new group has each acknowledged entry of before."""
        self.old.start()
        self.old.leader()
        sent = self.append("before", 400)
        self.wait_recorded()
        self.shell("dledger backup ./n0")
        writer = subprocess.Popen(
            ["bash", "-c", "for n in $(seq 3000); do echo during $n; done | dledger append"],
            env={**self.environment, "DLEDGER_PEERS": self.old.peers_text}, stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL, cwd=self.directory,
        )
        self.addCleanup(writer.kill)
        for _ in range(4):
            self.shell("dledger backup ./n0")
        self.assertEqual(writer.wait(timeout=120), 0)
        sent += [b"during %d" % number for number in range(1, 3001)]
        sent += self.append("after", 300)
        self.wait_recorded()
        ends = self.entries(self.old)
        self.assertEqual([body for *_, body in ends if body], sent)
        self.assertIn(f"0 to {ends[-1][0]},", self.shell("dledger backup ./n0"))
        self.assertTrue(all(ended_well(status) for status in self.old.stop().values()))

        self.assertIn("clean", self.shell("dledger backup --verify"))
        self.assertIn(self.sizes, self.shell("dledger restore"))
        self.assertIn("clean", self.shell("dledger verify"))
        self.assertIn("(known)", self.shell("dledger group show"))
        started = {member_id: self.start_new(member_id) for member_id in self.new.peers}
        self.assertEqual(self.new.leader(), "n0")
        later = self.append("in the new group", 50, group=self.new)
        self.new.wait_settled()
        for member_id in self.new.peers:
            found = self.entries(self.new, member_id)
            self.assertEqual(found[: len(ends)], ends)
            self.assertEqual([body for *_, body in found[len(ends) :] if body], later)

        # A member of the old group that comes back in the place of a new one is turned away.
        started["n1"].kill()
        lost = Member("n1", self.new.peers | {"n1": self.old.peers["n1"]}, self.directory / "n1",
                      options={**OPTIONS, "accept_new_members": True})
        self.addCleanup(lost.kill)
        lost.start()
        self.new.wait_until(lambda: "does not belong" in lost.log_tail(200), "the old member to be refused")
        self.assertEqual(self.new.leader(among=("n0", "n2")), "n0")
