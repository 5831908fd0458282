# -*- test-case-name: tests.commands.test_administration -*-
"""C{dledger token}, C{dledger flush}, and what commands show to administrations."""

from __future__ import annotations

import os
import stat
import sys
from pathlib import Path
from typing import Any

from twisted.internet.defer import Deferred, fail, succeed

from dledger.base.serving.tokens import ClientTokenFile, TokenFile
from dledger.cli.console import administration
from tests.base.keys import KeyRoom
from tests.commands.fakes import CliCase


class TokenCommandTests(CliCase):
    """C{dledger token}."""

    def setUp(self) -> None:
        super().setUp()
        self.path = Path(self.mktemp())

    def make(self, *words: str) -> str:
        """A token."""
        result = self.run_cli("token", str(self.path), *words)
        self.assertExit(result, 0, "is not kept anywhere")
        return str(result.stdout).strip()

    def test_life(self) -> None:
        """Made, a second one beside it, the first taken out."""
        first, second = self.make("ops"), self.make("night")
        self.assertEqual(stat.S_IMODE(self.path.stat().st_mode), 0o600)
        file = TokenFile(str(self.path))
        self.assertEqual((file.holder(first), file.holder(second)), ("ops", "night"))
        self.assertNotIn(first, self.path.read_text())
        self.assertExit(self.run_cli("token", str(self.path), "ops", "--remove"), 0, "no token any more")
        file = TokenFile(str(self.path))
        self.assertEqual((file.holder(first), file.holder(second)), (None, "night"))

    def test_refused(self) -> None:
        """Names, files of another kind, the last token; nothing is changed."""
        self.assertExit(self.run_cli("token", str(self.path), "two words"), 64, "is not a name")
        self.make("ops")
        held = self.path.read_text()
        self.assertExit(self.run_cli("token", str(self.path), "ops", "--remove"), 1, "would have no token")
        self.assertExit(self.run_cli("token", str(self.path), "x", "--remove"), 1, "has no token of x")
        self.assertEqual(self.path.read_text(), held)
        self.path.write_text("tick_ms = 20\n")
        self.assertExit(self.run_cli("token", str(self.path), "ops"), 1, "line 1 is not NAME sha256 HASH")
        self.assertEqual(self.path.read_text(), "tick_ms = 20\n")

    def test_other_kind(self) -> None:
        """The sentence names the option that makes tokens of the kind that the file has."""
        self.make("app", "--role", "append")
        result = self.run_cli("token", str(self.path), "app", "--replace")
        self.assertExit(result, 1, "are of the other kind, give --role, too")
        self.make("app", "--replace", "--role", "append")
        self.path.unlink()
        self.make("ops")
        self.assertExit(self.run_cli("token", str(self.path), "app", "--role", "read"), 1, "leave --role out")

    def test_replaced(self) -> None:
        """Of all tokens of a name the new one alone counts; the last token is replaced, too."""
        old, other = self.make("ops"), self.make("ops")
        new = self.make("ops", "--replace")
        file = TokenFile(str(self.path))
        self.assertEqual([file.holder(one) for one in (old, other, new)], [None, None, "ops"])
        self.assertExit(self.run_cli("token", str(self.path), "x", "--replace"), 1, "has no token of x")
        result = self.run_cli("token", str(self.path), "ops", "--remove", "--replace")
        self.assertExit(result, 64, "give one of them")

    def test_output_is_hidden(self) -> None:
        """A file that takes the token is readable for its owner alone."""
        with open(self.mktemp(), "w") as output:
            os.fchmod(output.fileno(), 0o644)
            self.patch(sys, "stdout", output)
            administration._hide_output()
            self.assertEqual(stat.S_IMODE(os.fstat(output.fileno()).st_mode), 0o600)

    def test_of_clients(self) -> None:
        """With a role, and groups; files of both kinds do not mix."""
        token = self.make("app", "--role", "append", "--group", "orders", "--group", "a b")
        grant = ClientTokenFile(str(self.path)).grant(token)
        assert grant is not None
        self.assertEqual((grant.name, grant.role, grant.groups), ("app", "append", {"orders", "a b"}))
        self.assertExit(self.run_cli("token", str(self.path), "ops"), 1, "line 1 is not NAME sha256 HASH:")
        self.assertExit(self.run_cli("token", str(self.path), "x", "--group", "g"), 64, "needs --role")
        self.make("other", "--role", "read")
        result = self.run_cli("token", str(self.path), "app", "--remove")
        self.assertExit(result, 0, "no token any more")

    def test_mode_stays(self) -> None:
        """A file that its group may read stays so."""
        self.make("ops")
        self.path.chmod(0o640)
        self.make("night")
        self.assertEqual(stat.S_IMODE(self.path.stat().st_mode), 0o640)


class FlushTests(CliCase):
    """C{dledger flush}."""

    def setUp(self) -> None:
        super().setUp()
        self.asked: list[tuple[object, ...]] = []
        self.pages: dict[str, Any] = {"https://a:1": {"flushed_index": 41, "end_index": 41}}

        async def fetch(agent: Any, url: str, path: str, timeout_s: float, clock: object, method: str) -> Any:
            self.asked.append((url, path, method, getattr(agent, "token", "")))
            page = self.pages.get(url)
            answer: Deferred[Any] = fail(ValueError("HTTP status 401")) if page is None else succeed(page)
            return await answer

        self.patch(administration, "fetch_page", fetch)
        room = KeyRoom(Path(self.mktemp()))
        self.authority = str(room.directory / "authority.pem")
        self.token_path = Path(self.mktemp())
        self.token_path.write_text("secret\n")

    def test_flush(self) -> None:
        """Each member is asked with the token; one that refuses makes status 1."""
        access = ("--admin-authority", self.authority, "--admin-token-file", str(self.token_path))
        self.assertExit(self.run_cli(*access, "flush", "--admin", "https://a:1"), 0, "flushed up to 41")
        self.assertEqual(self.asked, [("https://a:1", "/flush", "POST", "secret")])
        result = self.run_cli(*access, "flush", "--admin", "https://a:1", "--admin", "http://127.0.0.1:2")
        self.assertExit(result, 1, "flushed up to 41", "http://127.0.0.1:2: HTTP status 401")
        self.assertExit(self.run_cli("flush"), 64, "give --admin URL")

    def test_log_level(self) -> None:
        """As a query; a level that there is."""
        self.pages["https://a:1"] = {"log_level": "info,dledger.node=debug"}
        command = ("--admin-authority", self.authority, "log-level", "debug", "--admin", "https://a:1")
        self.assertExit(self.run_cli(*command, "--room", "dledger.node"), 0, "info,dledger.node=debug")
        self.assertExit(self.run_cli(*command, "--json"), 0, '"log_level": "info,dledger.node=debug"')
        self.assertEqual([one[1:3] for one in self.asked], [
            ("/log-level?level=debug&room=dledger.node", "POST"), ("/log-level?level=debug", "POST"),
        ])
        self.assertExit(self.run_cli(*command, "--room", ""), 64, "--room has no name")
        self.assertExit(self.run_cli("log-level", "loud"), 64, "'debug', 'info', 'warn'")

    def test_snapshot(self) -> None:
        """Of the state machine: written, or under way; one that refuses makes status 1."""
        self.pages = {"https://a:1": {"snapshot_index": 41, "snapshot_size": 7, "is_writing": False},
                      "https://a:2": {"snapshot_index": -1, "snapshot_size": -1, "is_writing": True}}
        command = ("--admin-authority", self.authority, "machine", "snapshot")
        members = [word for at in (1, 2, 3) for word in ("--admin", f"https://a:{at}")]
        result = self.run_cli(*command, *members)
        self.assertExit(result, 1, "a:1\tafter the entry 41, 7 bytes", "a:2\tis being written",
                        "https://a:3: HTTP status 401")
        self.assertEqual({one[1:3] for one in self.asked}, {("/snapshot", "POST")})
        self.assertExit(self.run_cli(*command), 64, "give --admin URL")
        self.assertExit(self.run_cli(*command, "--json", "--admin", "https://a:1"), 0, '"snapshot_index": 41')

    def test_environment(self) -> None:
        """All of it."""
        env = {"DLEDGER_ADMIN": "https://a:1", "DLEDGER_ADMIN_AUTHORITY": self.authority,
               "DLEDGER_ADMIN_TOKEN_FILE": str(self.token_path)}
        self.assertExit(self.run_cli("flush", "--json", env=env), 0, '"flushed_index": 41')

    def test_files(self) -> None:
        """A token or an authority that cannot be read is an error of one line."""
        for text in ("", "two words\n", "x" * 1000, "\u00e9"):
            self.token_path.write_text(text)
            result = self.run_cli("--admin-token-file", str(self.token_path), "flush", "--admin", "http://a")
            self.assertExit(result, 64, "write the token into it")
        self.assertExit(self.run_cli("--admin-token-file", "nowhere", "flush"), 64, "No such file")
        result = self.run_cli("--admin-authority", "nowhere", "flush", "--admin", "https://a:1")
        self.assertExit(result, 1, "nowhere")
