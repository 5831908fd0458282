# -*- test-case-name: tests.commands.test_backup -*-
"""C{dledger backup} and C{dledger restore}."""

from __future__ import annotations

import json
import os

from twisted.trial.unittest import SynchronousTestCase

from dledger.base.disk.disk import OsDisk
from dledger.cli.data.backup import RatePace
from dledger.storage.files.snapshot_file import SnapshotHead, write_snapshot
from tests.commands.test_group import GroupCase
from tests.storage.support import bodies_in, flush

BODIES = tuple(b"%d" % number * 40 for number in range(200))
NEW_PEERS = "n0-h:4;n1-h:5;n2-h:6"


class ArchivedCase(GroupCase):
    """A member with entries in several segments, which runs."""

    def setUp(self) -> None:
        super().setUp()
        self.member = self.open_store(bootstrap=True)
        self.addCleanup(self.member.abandon)
        self.place, self.new_store = self.mktemp(), self.mktemp()
        self.path = f"{self.store}/dledger-n0"
        self.append(*BODIES)

    def append(self, *bodies: bytes) -> None:
        """Committed, and on record, one after the other, as at a member that runs."""
        for body in bodies:
            self.member.append_bodies((body,), 1)
            self.member.record_commit(self.member.ledger_end_index)
            flush(self.member)
        self.member.check_point(force=True)

    def expire(self, *snapshots: int) -> None:
        """The member has a state machine, and these snapshots of it; the log begins later than entry 0."""
        self.member.clean_close()
        self.member = self.open_store(retention_bytes=8192)
        while self.member.maintenance(1e9, 4, keep_from_index=199):
            pass
        self.append(b"later")
        os.makedirs(f"{self.path}/machine", exist_ok=True)
        for index in snapshots:
            self.snapshot(index)

    def snapshot(self, index: int) -> None:
        """The machine has written one."""
        head = SnapshotHead(index=index, term=1, chain_crc=0, machine="kv", machine_version=1)
        write_snapshot(OsDisk(), f"{self.path}/machine/snapshot-{index}-1", head, (b"kept", b"x"), str)

    def restore(self, *more: str) -> tuple[str, ...]:
        """The arguments."""
        return ("restore", self.place, "--store", self.new_store, "--node-id", "n0", "--peers", NEW_PEERS,
                *more)


class BackupCommandsTests(ArchivedCase):
    """C{dledger backup}, and C{dledger restore}."""

    def test_there_and_back(self) -> None:
        """Backup, another one, its verification, and the restored member with every entry."""
        self.assertExit(self.run_cli("backup", self.path, self.place), 0, "8 segments, 200 entries",
                        "0 to 199")
        self.assertExit(self.run_cli("backup", self.path, self.place), 0, "nothing new", "0 to 199")
        self.append(b"later")
        done = self.run_cli("backup", self.path, self.place, "--json")
        self.assertExit(done, 0)
        self.assertEqual(json.loads(done.stdout)["new_entries"], 1)
        self.assertExit(self.run_cli("backup", "--verify", self.place), 0, "201 entries", "clean", "default")
        done = self.run_cli(*self.restore())
        self.assertExit(done, 0, "entries 0 to 200", "mapped_file_size_for_entry_data=4096", "n0, n1, n2")
        self.assertEqual(os.listdir(self.new_store), ["dledger-n0"])
        self.assertExit(self.run_cli("verify", f"{self.new_store}/dledger-n0"), 0, "clean")
        self.assertExit(self.run_cli(*self.restore("--json")), 1, "exists")
        self.member.abandon()
        self.store = self.new_store
        store = self.open_store(peers=NEW_PEERS)
        self.addCleanup(store.abandon)
        self.assertEqual(bodies_in(store), [*BODIES, b"later"])

    def test_machine(self) -> None:
        """The snapshot of a state machine comes with the log, and is in the restored member."""
        self.expire(198)
        words = "the machine's snapshot after entry 198"
        self.assertExit(self.run_cli("backup", self.path, self.place), 0, words)
        self.assertExit(self.run_cli("backup", "--verify", self.place), 0, "machine after entry 198", "clean")
        self.assertExit(self.run_cli(*self.restore()), 0, words)
        self.assertEqual(os.listdir(f"{self.new_store}/dledger-n0/machine"), ["snapshot-198-1"])

    def test_machine_without_a_snapshot(self) -> None:
        """Exit status 1, and a sentence: of the backup, of its verification, and of a restore."""
        self.expire()
        words = ("has no snapshot of the machine", "could not start from it")
        self.assertExit(self.run_cli("backup", self.path, self.place), 1, *words, "name another member")
        self.assertExit(self.run_cli("backup", self.path, self.place, "--no-check"), 1, *words)
        self.assertExit(self.run_cli("backup", "--verify", self.place), 1, *words, "1 finding")
        self.assertExit(self.run_cli(*self.restore()), 1, *words, "Restore another backup", "--join")
        self.assertFalse(os.path.exists(self.new_store))
        self.expire(198)
        path = f"{self.path}/machine/snapshot-198-1"
        with open(path, "r+b") as file:
            file.truncate(70)
        done = self.run_cli("backup", self.path, self.place)
        self.assertExit(done, 1, "is left out", "snapshot-198-1 is cut")

    def test_restore_as_json(self) -> None:
        """The facts."""
        self.run_cli("backup", self.path, self.place)
        done = self.run_cli(*self.restore("--json"))
        self.assertExit(done, 0)
        found = json.loads(done.stdout)
        self.assertEqual((found["end_index"], found["index_file_size"]), (199, 3200))
        shown = self.run_cli("group", "show", "--store", self.new_store, "--node-id", "n0", "--peers",
                             NEW_PEERS, "--set", "mapped_file_size_for_entry_data=4096",
                             "--set", "mapped_file_size_for_entry_index=3200")
        self.assertExit(shown, 0, found["group_id"], "(known)")

    def test_store(self) -> None:
        """An object store: a backup, an archive run into it, its verification, and back."""
        self.place = f"memory://{self.id()}/log"
        self.assertExit(self.run_cli("backup", self.path, self.place), 0, "200 entries", "0 to 199")
        self.append(*BODIES)
        self.assertExit(self.run_cli("archive", self.path, self.place), 0, "are in a segment that is not")
        done = self.run_cli("backup", self.path, self.place, "--json")
        self.assertExit(done, 0)
        found = json.loads(done.stdout)
        self.assertEqual((found["end_index"], found["open_entries"], found["findings"]), (399, 0, []))
        self.assertExit(self.run_cli("backup", "--verify", self.place), 0, "400 entries", "clean")
        self.assertExit(self.run_cli(*self.restore()), 0, "entries 0 to 399")

    def test_another_name(self) -> None:
        """A forgotten C{--group} is reported: the member would not start under the old name."""
        self.run_cli("backup", self.path, self.place)
        done = self.run_cli("--group", "g2", *self.restore())
        self.assertExit(done, 0, "new group      g2", "the backup is of group default", "--group default")

    def test_damage(self) -> None:
        """Exit status 1, and the place; at the member, and in a backup."""
        self.run_cli("backup", self.path, self.place)
        self.append(*BODIES)
        last = sorted(os.listdir(f"{self.path}/data"))[-2]
        with open(f"{self.path}/data/{last}", "r+b") as file:
            file.seek(60)
            file.write(b"\xff")
        self.assertExit(self.run_cli("backup", self.path, self.place), 1, f"data/{last} at 0", "bodyCrc")
        self.assertExit(self.run_cli("backup", "--verify", self.place), 0, "clean")
        first = sorted(os.listdir(f"{self.place}/data"))[0]
        with open(f"{self.place}/data/{first}", "r+b") as file:
            file.seek(60)
            file.write(b"\xff")
        done = self.run_cli("backup", "--verify", self.place)
        self.assertExit(done, 1, f"data/{first} at 0", "1 finding")
        done = self.run_cli("backup", "--verify", self.place, "--json")
        self.assertEqual((done.exit_code, json.loads(done.stdout)["is_clean"]), (1, False))

    def test_damaged_backup(self) -> None:
        """The next backup says so, whether there is something new or not; unless it shall not look."""
        self.run_cli("backup", self.path, self.place)
        first = sorted(os.listdir(f"{self.place}/data"))[0]
        with open(f"{self.place}/data/{first}", "r+b") as file:
            file.seek(60)
            file.write(b"\xff")
        for _ in range(2):
            self.assertExit(self.run_cli("backup", self.path, self.place), 1, f"data/{first} at 0",
                            f"{self.place} is damaged", "to another target")
            self.append(b"later")
        done = self.run_cli("backup", self.path, self.place, "--json")
        self.assertEqual((done.exit_code, len(json.loads(done.stdout)["findings"])), (1, 1))
        self.assertExit(self.run_cli("backup", self.path, self.place, "--no-check"), 0, "nothing new")
        self.assertExit(self.run_cli("backup", "--verify", self.place, "--no-check"), 64, "--verify")

    def test_wrong(self) -> None:
        """Each says what is allowed."""
        for arguments, status, words in (
            (("backup", self.path), 64, "MEMBER and TARGET"),
            (("backup", self.path, self.place, "--verify", self.path), 64, "takes no other"),
            (("backup", "--verify", self.path), 1, "no archive-0.json"),
            (("backup", self.place, self.path), 1, "does not exist"),
            (("backup", self.path, self.path), 1, "in the member's directory"),
            (("backup", "memory://a", self.place), 64, "is a URL"),
            (("backup", self.path, "nowhere://a"), 1, "nowhere"),
            (("backup", self.path, self.place, "-o", "x=1"), 1, "no options of a store"),
            (("backup", self.path, self.place, "--rate", "-1"), 64, "rate"),
            (("restore", self.path, "--node-id", "n0", "--peers", NEW_PEERS), 1, "no archive-0.json"),
        ):
            self.assertExit(self.run_cli(*arguments), status, words)


class RatePaceTests(SynchronousTestCase):
    """No more bytes than the rate allows."""

    def test_waits(self) -> None:
        """As long as it is ahead, and not at all without a bound."""
        now, slept = [10.0], []

        def sleep(seconds: float) -> None:
            slept.append(seconds)
            now[0] += seconds

        pace = RatePace(100, lambda: now[0], sleep)
        pace(50)
        now[0] += 1.0
        pace(25)
        pace(150)
        self.assertEqual(slept, [0.5, 0.75])
        RatePace(0, lambda: now[0], sleep)(10**9)
        self.assertEqual(len(slept), 2)
