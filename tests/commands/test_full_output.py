# -*- test-case-name: tests.commands.test_full_output -*-
"""Standard output on a full disk, or on a pipe that nobody reads: what is done is not called failed."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Sequence
from functools import partial

import click

from protocols.wire.ledger.readers import ReaderInfo
from tests.commands.fakes import CliCase
from tests.commands.test_member import DONE


class OutputCase(CliCase):
    """Only standard error takes something."""

    def fill(self, number: int = errno.ENOSPC) -> None:
        """From now on."""
        self.patch(click, "echo", partial(self.no_room, number))

    def no_room(self, number: int, text: object, err: bool = False) -> None:
        """As C{click.echo}."""
        if not err:
            raise OSError(number, "it takes nothing")
        sys.stderr.write(f"{text}\n")

    def check(self, words: Sequence[str], said: str) -> None:
        """The command has done its work, and standard error has the result."""
        result = self.run_cli(*words)
        self.assertEqual(result.exit_code, 0, (words, result.stderr))
        self.assertIn(said, result.stderr)
        self.assertEqual(result.stderr.count("standard output does not take this"), 1)


class DeedTests(OutputCase):
    """Commands that change something."""

    def test_deeds_in_group(self) -> None:
        """A script must not give the command again: not the append above all."""
        self.log.change_members = lambda *words, **how: DONE  # type: ignore[attr-defined]
        self.log.reader_infos = (ReaderInfo("billing", 10, 0, ()),)
        self.fill()
        for words, said in (
            (("append", "a"), "appended 1 entry, index"),
            (("transfer", "n1"), "n1 leads, term 4"),
            (("member", "add", "n3", "h:4"), "done"),
            (("machine", "skip", "7"), "the entry 7 is skipped, by the order at 17"),
            (("readers", "move", "billing", "end"), "billing goes on at 17"),
            (("readers", "forget", "billing"), "billing is forgotten"),
        ):
            self.check(words, said)
            self.check((*words, "--json"), said)

    def test_deeds_in_directories(self) -> None:
        """A directory that is there cannot be made a second time."""
        self.fill()
        store = self.mktemp()
        words = ("group", "create", "--store", store, "--node-id", "n0", "--peers", "n0-h:1")
        self.check(words, "member n0 of a new group of n0")
        self.assertEqual(os.listdir(store), ["dledger-n0"])

    def test_reader_has_left(self) -> None:
        """Nobody waits for a sentence."""
        self.fill(errno.EPIPE)
        result = self.run_cli("append", "a")
        self.assertEqual((result.exit_code, result.stderr), (0, ""))

    def test_token_unseen(self) -> None:
        """It does not count: nobody has seen it, and nothing else can show it."""
        self.fill()
        path = self.mktemp()
        self.assertExit(self.run_cli("token", path, "ops"), 1, "it takes nothing")
        self.assertFalse(os.path.exists(path))
