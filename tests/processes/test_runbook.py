# -*- test-case-name: tests.processes.test_runbook -*-
"""
Steps of docs/operations.md for the worst days, played as written: a majority that is lost for good, and
damage that no sound copy mends.
"""

from __future__ import annotations

import re
import shutil
import tempfile
from pathlib import Path

from twisted.trial.unittest import SynchronousTestCase

import dledger
from dledger.base.disk.disk import OsDisk
from dledger.storage.store.file_store import FileStore
from dledger.values.ledger.config import DLedgerConfig
from tests.processes.members import Group, Member
from tests.processes.pages import PageCase, commands, sections
from tests.processes.test_backup import OPTIONS


def directory_state(path: Path) -> dict[str, tuple[int, bytes]]:
    """Every file: its length and its first bytes."""
    found: dict[str, tuple[int, bytes]] = {}
    for one in sorted(path.rglob("*")):
        if one.is_file():
            with one.open("rb") as file:  # (a data file may have a length of 1 GiB)
                found[str(one.relative_to(path))] = (one.stat().st_size, file.read(65536))
    return found


class LostMajorityTests(PageCase):
    """Two of three members are lost; the third begins a new group."""

    def setUp(self) -> None:
        super().setUp()
        self.environment["SIZES"] = " ".join(f"--set {name}={value}" for name, value in OPTIONS.items())
        self.old = Group(self.directory, options=OPTIONS)
        self.addCleanup(self.old.kill)
        self.new = Group(self.directory)
        self.addCleanup(self.new.kill)
        ports = dict(zip(("n3", "n4"), list(self.new.peers.values())[1:], strict=True))
        self.new.peers = {"n0": self.old.peers["n0"], **ports}
        self.new.members = {
            one: Member(one, self.new.peers, self.directory / one, options=OPTIONS) for one in self.new.peers
        }

    def force_new(self, *, is_sure: bool) -> str:
        """What one of the two commands of the page says; the first ends with status 1."""
        command = commands("operations.md", "A lost majority")[is_sure]
        self.assertEqual(command.endswith(" --yes"), is_sure)
        (printed,) = re.findall(r"--peers '([^']*)'", command)
        return self.run_printed(command, others={printed: self.new.peers_text}, status=0 if is_sure else 1)

    def test_steps(self) -> None:
        """The survivor's entries go on in the new group; a lost member that comes back is turned away."""
        self.old.start()
        self.old.leader()
        bodies = [b"entry %d" % number for number in range(50)]
        with dledger.connect(self.old.peers_text) as log:
            log.append_many(bodies)
        end_index = self.old.wait_settled()
        for member_id in ("n1", "n2"):
            self.old.members[member_id].kill()
        self.old.members["n0"].stop()
        path = self.old.members["n0"].ledger_path
        before = directory_state(path)
        reported = self.force_new(is_sure=False)
        self.assertIn("nothing has changed", reported)
        self.assertIn(f"ends at {end_index},", reported)
        self.assertEqual(directory_state(path), before)
        self.force_new(is_sure=True)

        self.new.start()
        self.assertEqual(self.new.leader(), "n0")
        with dledger.connect(self.new.peers_text) as log:
            log.append(b"in the new group")
        self.new.wait_settled()
        for member_id, address in self.new.peers.items():
            with dledger.connect(f"{member_id}-{address}") as log:
                found = [one.body for one in log.tail(0, follow=False) if one.body]
            self.assertEqual(found, [*bodies, b"in the new group"], member_id)
        back = self.old.members["n1"]
        back.start()
        self.old.wait_until(lambda: "does not belong" in back.log_tail(200), "the lost member to be refused")
        self.assertEqual(self.new.leader(), "n0")


class NoSoundCopyTests(SynchronousTestCase):
    """A log of one member with damage in its middle: what is before the damage can be kept."""

    def test_steps(self) -> None:
        """As "Repairing" says: a copy first; two files removed; then what is before the damage is there."""
        text = sections("operations.md")["Repairing"]
        self.assertIn("copy its directory, remove `commitmark` and `checkpoint` from it, start", text)
        held = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        self.addCleanup(held.cleanup)
        config = DLedgerConfig(store_base_dir=held.name, bootstrap=True, **OPTIONS)  # type: ignore[arg-type]
        store = FileStore.open(config, OsDisk())
        store.append_bodies((b"x" * 1000,) * 100, 1)
        store.record_commit(store.ledger_end_index)
        damaged = store.position_of(40)
        store.clean_close()
        path = Path(config.self_path)
        data = sorted((path / "data").iterdir())[damaged // OPTIONS["mapped_file_size_for_entry_data"]]
        with data.open("r+b") as file:
            file.seek(damaged % OPTIONS["mapped_file_size_for_entry_data"] + 100)
            file.write(b"damage")
        kept = Path(held.name) / "copy"
        shutil.copytree(path, kept)
        (path / "commitmark").unlink()
        (path / "checkpoint").unlink(missing_ok=True)
        store = FileStore.open(config, OsDisk())
        self.addCleanup(store.clean_close)
        self.assertEqual((store.ledger_begin_index, store.ledger_end_index), (0, 39))
        self.assertEqual(store.holes, ())
        self.assertEqual(directory_state(kept)["data/" + data.name][0], data.stat().st_size)


