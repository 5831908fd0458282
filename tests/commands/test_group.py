# -*- test-case-name: tests.commands.test_group -*-
"""C{dledger group}: the directory of a member that does not run."""

from __future__ import annotations

import json
import os

from dledger.base.disk.disk import OsDisk
from dledger.storage.store.file_store import FileStore
from dledger.values.ledger.config import DLedgerConfig
from tests.commands.fakes import CliCase

THREE = "n0-h:1;n1-h:2;n2-h:3"
SIZES = ("--set", "mapped_file_size_for_entry_data=4096", "--set", "mappedFileSizeForEntryIndex=3200")


class GroupCase(CliCase):
    """A store directory of its own."""

    def setUp(self) -> None:
        super().setUp()
        self.store = self.mktemp()

    def group(self, command: str, *more: str, peers: str = THREE) -> tuple[str, ...]:
        """The arguments of a command about n0."""
        return ("group", command, "--store", self.store, "--node-id", "n0", "--peers", peers, *SIZES, *more)

    def open_store(self, **options: object) -> FileStore:
        """As n0 starts."""
        config = DLedgerConfig(
            store_base_dir=self.store, mapped_file_size_for_entry_data=4096,
            mapped_file_size_for_entry_index=3200, **{"peers": THREE, **options},  # type: ignore[arg-type]
        )
        return FileStore.open(config, OsDisk())


class FirstTests(GroupCase):
    """Before the first start."""

    def test_create(self) -> None:
        """The vote of the member counts at once."""
        self.assertExit(self.run_cli(*self.group("create")), 0, "member n0 of a new group of n0, n1, n2")
        store = self.open_store()
        self.assertFalse(store.identity.is_unsure)
        store.clean_close()
        self.assertExit(self.run_cli(*self.group("create")), 1, "member n0 of group default already")

    def test_join(self) -> None:
        """It does not; the id is that of the group."""
        done = self.run_cli(*self.group("join", "--id", "a" * 32))
        self.assertExit(done, 0, "joins the group of n0, n1, n2")
        store = self.open_store()
        self.assertTrue(store.identity.is_unsure)
        self.assertEqual(store.identity.group_name.id, "a" * 32)
        store.clean_close()
        self.assertExit(self.run_cli(*self.group("show")), 0, f"{'a' * 32} (known)", "unsure", "n0, n1, n2")

    def test_wrong(self) -> None:
        """Each says what is allowed."""
        for arguments, words in (
            (self.group("join", "--id", "x"), "32 digits"),
            (self.group("create", peers="n1-h:1"), "not among the peers"),
            (self.group("create", peers="n0"), "id-host:port"),
            (self.group("create", "--set", "x"), "name=value"),
            (self.group("create", "--set", "x=1"), "unknown"),
        ):
            self.assertExit(self.run_cli(*arguments), 64, words)
        self.assertFalse(os.path.exists(self.store))


class ForceTests(GroupCase):
    """A majority is lost."""

    def test_force_new(self) -> None:
        """Without --yes nothing changes; with it the member goes on alone, and never with the old ones."""
        store = self.open_store(bootstrap=True)
        store.append_bodies((b"a", b"b"), 1)
        store.clean_close()
        alone = self.group("force-new", peers="n0-h:1")
        self.assertExit(self.run_cli(*alone), 1, "ends at 1", "new members    n0", "nothing has changed")
        self.assertExit(self.run_cli(*alone, "--yes"), 0, "its ledger ends at 1")
        shown = json.loads(self.run_cli(*self.group("show", "--json", peers="n0-h:1")).output)
        self.assertEqual((shown["identity"]["members"], shown["identity"]["is_group_known"]), ("n0", 1))
        self.open_store(peers="n0-h:1").clean_close()

    def test_nothing_there(self) -> None:
        """A wrong directory."""
        for more in ((), ("--yes",)):
            self.assertExit(self.run_cli(*self.group("force-new", *more)), 1, "dledger: ", "holds no ledger")
        self.assertExit(self.run_cli(*self.group("show")), 0, "no member has run here")
