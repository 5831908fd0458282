# -*- test-case-name: tests.test_pages -*-
"""Each section of an operator's page that has commands has a test that plays them as they are printed."""

from __future__ import annotations

import os
import re
import shlex
from pathlib import Path

from twisted.trial.unittest import SynchronousTestCase

from tests.processes.members import ROOT
from tests.processes.pages import WORDS, commands, joined, sections, shown
from tests.test_deploy import accepted

_DEPLOY = "tests.test_deploy, tests.processes.test_deploy: the files; systemd and containers are not run"
_OPERATIONS = "tests.processes.test_operations_page"
_BROKERS = "tests.processes.test_broker_pages"
_SECURED = "tests.processes.test_secured_pages"
_TUTORIAL = "tests.processes.test_broker_tutorial"
#: Page to the title of each section with commands, to their number and the test that plays them.
PLAYED: dict[str, dict[str, tuple[int, str]]] = {
    "operations.md": {
        "Start a member": (3, "tests.test_pages: parsed; many tests start groups"),
        "As a service": (10, _DEPLOY),
        "Reading the status": (5, _OPERATIONS),
        "Rolling restart": (1, _OPERATIONS),
        "Changing the members of a running group": (7, _OPERATIONS),
        "A lost majority": (2, "tests.processes.test_runbook"),
        "A group without its state": (1, _OPERATIONS),
        "Backup": (11, f"tests.processes.test_backup, {_OPERATIONS}: s3://"),
        "Archive": (10, f"tests.processes.test_archive, {_OPERATIONS}: s3://, --expire, --verify"),
        "Verify a broker's store": (2, _OPERATIONS),
    },
    "ha.md": {
        "Running a broker": (5, _BROKERS),
        "Pages and metrics": (2, _BROKERS),
        "Ours and ours": (3, _BROKERS),
        "Master of RocketMQ, slave of ours": (1, f"{_BROKERS}, tests.interop.test_ha_pages: with RocketMQ"),
        "Master of ours, slave of RocketMQ": (1, f"{_BROKERS}, tests.interop.test_ha_pages: with RocketMQ"),
        "Frames of our own": (1, _BROKERS),
    },
    "raft-broker.md": {
        "Three brokers": (4, _BROKERS),
        "Who may read at the member's port": (1, _SECURED),
    },
    "namesrv.md": {
        "The name server": (5, _BROKERS),
        "Who may change something": (1, _BROKERS),
    },
    "security.md": {
        "A secured group in three steps": (4, _SECURED),
        "Tokens for clients": (2, _SECURED),
        "New certificates": (1, _SECURED),
        "TLS of brokers": (3, _SECURED),
        "TLS of name servers": (4, _SECURED),
        "Access control of brokers": (3, _SECURED),
    },
    "broker-tutorial.md": {
        "1. Install": (3, "tests.test_packaging: the wheel; git and pip are not run"),
        "2. A name server": (1, _TUTORIAL),
        "3. A master and its slave": (4, _TUTORIAL),
        "4. Send messages": (1, _TUTORIAL),
        "5. Read them": (3, _TUTORIAL),
        "6. A delayed message": (2, _TUTORIAL),
        "7. A group of consumers": (2, _TUTORIAL),
        "8. Kill the master": (6, _TUTORIAL),
        "9. Read the topic with Spark": (1, _TUTORIAL),
        "10. Clean up": (3, _TUTORIAL),
    },
}


class ListTests(SynchronousTestCase):
    """Every section with commands."""

    def test_sections(self) -> None:
        """Each has a test that exists; a new command, or a new section with commands, needs one."""
        for page, played in PLAYED.items():
            found = {title: len(commands(page, title)) for title in sections(page)}
            self.assertEqual({title: count for title, count in found.items() if count},
                             {title: count for title, (count, _) in played.items()}, page)
            for _, tests in played.values():
                for name in re.findall(r"tests(?:\.\w+)+", tests):
                    place = ROOT / name.replace(".", "/")
                    self.assertTrue(place.with_suffix(".py").exists(), name)

    def test_words(self) -> None:
        """Each command begins with the name of a program: no other text is taken for commands."""
        every = [command for page, played in PLAYED.items() for title in played
                 for command in commands(page, title)]
        self.assertEqual([command for command in every if command.split()[0] not in WORDS], [])
        self.assertEqual([command for command in every if "\\" in command], [])
        self.assertEqual(joined("a \\\n    b\nc\n"), ["a b", "c"])

    def test_extras(self) -> None:
        """pip is not run; the extras that it is asked for exist."""
        asked = [command for page, played in PLAYED.items() for title in played
                 for command in commands(page, title) if "pip install" in command]
        extras = {extra for command in asked for part in re.findall(r"\[(.*?)\]", command)
                  for extra in part.split(",")}
        self.assertEqual(extras, {"tls", "acl", "spark"})
        text = (ROOT / "setup.py").read_text("utf-8")
        self.assertEqual([extra for extra in extras if f'"{extra}":' not in text], [])

    def test_starts(self) -> None:
        """twistd takes the commands that start a member."""
        found = commands("operations.md", "Start a member")
        self.addCleanup(os.chdir, os.getcwd())
        place = Path(self.mktemp())
        place.mkdir()
        os.chdir(place)
        Path("member.toml").write_text('self_id = "n1"\npeers = "n1-127.0.0.1:1"\n')
        members = [
            accepted(shlex.split(command, comments=True)[1:]).subOptions.member for command in found
        ]
        self.assertEqual([member.self_id for member in members], ["n0", "n0", "n1"])
        self.assertEqual([len(member.peers) for member in members], [1, 3, 1])

    def test_tables(self) -> None:
        """A member's file takes the table of TLS."""
        (table,) = shown("security.md", "A secured group in three steps", "toml")
        place = Path(self.mktemp())
        place.write_text(table)
        member = accepted(["-n", "dledger", "--config", str(place)]).subOptions.member
        self.assertEqual((member.tls_certificate, member.tls_key, member.tls_authority),
                         ("keys/n0.pem", "keys/n0.key", "keys/authority.pem"))
