# -*- test-case-name: tests.commands.test_main -*-
"""The commands that talk to a group."""

from __future__ import annotations

import base64
import json
import subprocess
import sys
from pathlib import Path

from click.testing import CliRunner

import dledger
from dledger.cli.console.command import Commands, describe_error, entry_json, shown_body
from dledger.cli.main import cli, main
from dledger.client.errors import AppendFailed, UnknownOutcome
from dledger.client.values import AppendInterrupted, Entry
from dledger.values.errors import DLedgerError
from dledger.values.ledger.config import DLedgerConfig
from protocols.wire.codes import ResponseCode
from tests.commands.fakes import CliCase


class GlobalTests(CliCase):
    """Which group is meant."""

    def test_options(self) -> None:
        """Peers, group, time-out, wire and keys go to the client."""
        self.log.bodies = [b"a"]
        self.run_cli("--peers", "n0-x:2", "--group", "g", "--timeout", "3", "--wire", "remoting", "get", "0")
        options = {"group": "g", "timeout": 3.0, "wire": "remoting", "tls": None, "token": None,
                   "envelope": False}
        self.assertEqual(self.opened, [("n0-x:2", options)])
        self.assertTrue(self.log.is_closed)

    def test_environment(self) -> None:
        """C{DLEDGER_PEERS} and C{DLEDGER_GROUP} stand in."""
        self.log.bodies = [b"a"]
        self.run_cli("get", "0", env={"DLEDGER_PEERS": "n0-y:3", "DLEDGER_GROUP": "h"})
        options = {"group": "h", "timeout": 10.0, "wire": "auto", "tls": None, "token": None,
                   "envelope": False}
        self.assertEqual(self.opened, [("n0-y:3", options)])

    def test_keys(self) -> None:
        """All three files, or none."""
        self.log.bodies = [b"a"]
        files = {"DLEDGER_TLS_CERTIFICATE": "a.pem", "DLEDGER_TLS_KEY": "a.key"}
        self.assertExit(self.run_cli("get", "0", env=files), 64, "missing: tls_authority")
        self.run_cli("--tls-authority", "ca.pem", "get", "0", env=files)
        self.assertEqual(
            self.opened[-1][1]["tls"],
            dledger.TlsFiles(certificate="a.pem", key="a.key", authority="ca.pem"),
        )

    def test_token(self) -> None:
        """From a file; it goes to the client with the word of who calls. The authority alone does for TLS."""
        self.log.bodies = [b"a"]
        path = Path(self.mktemp())
        path.write_text("secret\n")
        for words, is_insecure in (([], False), (["--insecure"], True)):
            named = {"DLEDGER_TOKEN_FILE": str(path)}
            self.run_cli(*words, "--tls-authority", "ca.pem", "get", "0", env=named)
            options = self.opened[-1][1]
            self.assertEqual(options["token"], dledger.ClientToken("secret", is_insecure))
            self.assertEqual(options["tls"], dledger.TlsFiles(authority="ca.pem"))
        path.write_text("two words\n")
        result = self.run_cli("--token-file", str(path), "get", "0")
        self.assertExit(result, 64, "--token-file", "write the token into it")
        self.assertNotIn("two words", result.output)

    def test_no_peers(self) -> None:
        """The member that starts without options is asked, and the command says so, once."""
        self.log.bodies = [b"x"]
        result = self.run_cli("get", "0", env={"DLEDGER_PEERS": ""})
        self.assertExit(result, 0, "asking n0-127.0.0.1:20911", "--peers", "DLEDGER_PEERS", "dledger context")
        self.assertEqual(self.opened[-1][0], "n0-127.0.0.1:20911")
        self.assertEqual(result.stdout, "0\t1\tx\n")
        self.assertEqual(DLedgerConfig().peers, {"n0": "127.0.0.1:20911"})

    def test_wrong_peers(self) -> None:
        """What is wrong with them is said."""
        self.patch(dledger, "connect", lambda peers, **options: int("nonsense"))
        self.assertExit(self.run_cli("get", "0"), 64, "nonsense")

    def test_unknown_command(self) -> None:
        """An error of usage."""
        self.assertExit(self.run_cli("gett"), 64, "gett")

    def test_help(self) -> None:
        """Every command has a sentence."""
        result = self.run_cli("--help")
        names = ("append", "get", "readfile", "status", "tail", "transfer", "verify", "version")
        self.assertExit(result, 0, *names)

    def test_version(self) -> None:
        """Needs no group."""
        for word in ("version", "--version"):
            self.assertExit(self.run_cli(word, env={"DLEDGER_PEERS": ""}), 0, dledger.__version__, "Twisted")

    def test_entry_point(self) -> None:
        """C{dledger} on its own is a usage error, not a trace."""
        self.patch(Commands, "main", lambda self, **options: options)
        self.assertIsNone(main())


class AppendTests(CliCase):
    """C{dledger append}."""

    def test_arguments(self) -> None:
        """Each is an entry."""
        result = self.run_cli("append", "a", "é")
        self.assertExit(result, 0, "appended 2 entries, indexes 0 to 1, in 0.500 s (4/s)")
        self.assertEqual(self.log.bodies, [b"a", "é".encode()])

    def test_one(self) -> None:
        """In the singular."""
        self.assertExit(self.run_cli("append", "a"), 0, "appended 1 entry, index 0")

    def test_standard_input(self) -> None:
        """Every line, without its end; the last one may have none."""
        self.run_cli("append", stdin=b"a\n\nb\r\nc")
        self.assertEqual(self.log.bodies, [b"a", b"", b"b", b"c"])

    def test_files(self) -> None:
        """Every line of each file, in order; any bytes."""
        first, second = Path(self.mktemp()), Path(self.mktemp())
        first.write_bytes(b"a\n\xff\xfe\n")
        second.write_bytes(b"c\n")
        self.assertExit(self.run_cli("append", "--file", str(first), "--file", str(second), "--progress"), 0)
        self.assertEqual(self.log.bodies, [b"a", b"\xff\xfe", b"c"])

    def test_both(self) -> None:
        """Arguments and files together are not understood."""
        self.assertExit(self.run_cli("append", "a", "--file", "-"), 64, "either")

    def test_no_such_file(self) -> None:
        """Said so."""
        self.assertExit(self.run_cli("append", "--file", "/nonexistent/file"), 64, "/nonexistent/file")

    def test_nothing(self) -> None:
        """Empty input is no error."""
        self.assertExit(self.run_cli("append", stdin=b""), 0, "nothing to append")

    def test_window(self) -> None:
        """Goes to the client; zero makes no sense."""
        self.run_cli("append", "--window", "7", "a")
        self.assertEqual(self.log.calls, [("append_many", 7)])
        self.assertExit(self.run_cli("append", "--window", "0", "a"), 64)

    def test_json(self) -> None:
        """The summary for programs."""
        document = json.loads(self.run_cli("append", "--json", "a", "b").stdout)
        self.assertEqual(
            document, {"count": 2, "first_index": 0, "last_index": 1, "seconds": 0.5, "rate": 4.0}
        )

    def test_failed(self) -> None:
        """Certainly not in the log: exit status 1, one line."""
        self.log.fails = AppendFailed(
            ResponseCode.DISK_FULL, failed=1, reason="no room", acknowledged=1
        )
        self.log.fails_after = 1
        result = self.run_cli("append", "a", "b", "c")
        self.assertExit(result, 1, "DISK_FULL (415): no room; acknowledged 1, unknown 0, not appended 1")
        self.assertEqual((result.stdout, result.stderr.count("\n")), ("", 1))

    def test_rest_of_the_input(self) -> None:
        """Nobody has counted it, and that is said; not when all was read."""
        self.log.fails = AppendFailed(ResponseCode.DISK_FULL, failed=1, acknowledged=1)
        self.log.fails_after = 1
        path = Path(self.mktemp())
        path.write_text("a\nb\nc\n")
        self.assertExit(self.run_cli("append", "--file", str(path)), 1, "the rest of the input was not read")

    def test_failed_in_the_middle(self) -> None:
        """Entries after a refused one are reported: appending the rest again would double it."""
        self.log.fails = AppendFailed(ResponseCode.DISK_FULL, failed=1, acknowledged=1, acknowledged_later=2)
        self.assertExit(self.run_cli("append", "a"), 1,
                        "acknowledged 1 from the start and 2 after the first failure, unknown 0")

    def test_unknown(self) -> None:
        """May be in the log: exit status 2."""
        self.log.fails = UnknownOutcome(ResponseCode.TIMEOUT, unknown=2, acknowledged=5)
        self.assertExit(
            self.run_cli("append", "a"), 2, "unknown outcome: TIMEOUT (300)", "acknowledged 5, unknown 2"
        )

    def test_interrupted(self) -> None:
        """Ctrl-C while something is under way: unknown, and how many were acknowledged."""
        self.log.fails = AppendInterrupted(2, 5)
        result = self.run_cli("append", "a", "b", "c")
        self.assertExit(result, 2, "interrupted; 2 entries were acknowledged", "up to 5 more may be")

    def test_interrupted_while_nothing_was_under_way(self) -> None:
        """Then everything is known."""
        self.log.fails = AppendInterrupted(2, 0)
        result = self.run_cli("append")
        self.assertExit(result, 130, "interrupted; 2 entries were acknowledged")
        self.assertNotIn("unknown", result.stderr)


class GetTests(CliCase):
    """C{dledger get}."""

    def setUp(self) -> None:
        super().setUp()
        self.log.bodies = [b"a", b"tab\there", b"\xff"]

    def test_text(self) -> None:
        """Index, term, body; what cannot be shown is escaped."""
        self.assertEqual(self.run_cli("get", "1").stdout, "1\t1\ttab\\there\n")

    def test_raw(self) -> None:
        """The bytes."""
        self.assertEqual(self.run_cli("get", "2", "--format", "raw").stdout_bytes, b"\xff\n")

    def test_json(self) -> None:
        """Text as text, bytes as Base64."""
        document = json.loads(self.run_cli("get", "0", "--format", "json").stdout)
        self.assertEqual(document, {"index": 0, "term": 1, "pos": 0, "body": "a"})
        document = json.loads(self.run_cli("get", "2", "--format", "json").stdout)
        self.assertEqual(base64.b64decode(document["body_base64"]), b"\xff")

    def test_consistency(self) -> None:
        """Linearizable unless set otherwise."""
        self.run_cli("get", "0")
        self.run_cli("get", "0", "--consistency", "committed")
        self.assertEqual(self.log.calls, [("get", 0, "linearizable"), ("get", 0, "committed")])

    def test_out_of_range(self) -> None:
        """One line, exit status 1."""
        result = self.run_cli("get", "9")
        cause = "nothing committed at that index (yet)"
        self.assertExit(result, 1, f"dledger: INDEX_OUT_OF_RANGE (410): {cause} [index=9]\n")

    def test_negative(self) -> None:
        """There is none."""
        self.assertExit(self.run_cli("get", "--", "-1"), 64)


class TailTests(CliCase):
    """C{dledger tail}."""

    def setUp(self) -> None:
        super().setUp()
        self.log.bodies = [b"%d" % number for number in range(30)]

    def indexes(self, *args: str, status: int = 0) -> list[int]:
        """Indexes that are shown."""
        result = self.run_cli("tail", *args)
        self.assertExit(result, status)
        return [int(line.partition("\t")[0]) for line in result.stdout.splitlines()]

    def test_last_ten(self) -> None:
        """Unless set otherwise."""
        self.assertEqual(self.indexes(), list(range(20, 30)))

    def test_last_few(self) -> None:
        """With C{-n}."""
        self.assertEqual(self.indexes("-n", "2"), [28, 29])

    def test_from(self) -> None:
        """With C{--from}, to the end, or as many as C{-n} says."""
        self.assertEqual(self.indexes("--from", "27"), [27, 28, 29])
        self.assertEqual(self.indexes("--from", "3", "-n", "2"), [3, 4])

    def test_none(self) -> None:
        """C{-n 0} shows nothing."""
        self.assertEqual(self.indexes("-n", "0"), [])
        self.assertEqual(self.indexes("--from", "3", "-n", "0"), [])

    def test_follow(self) -> None:
        """What is there goes out before anything is waited for; Ctrl-C ends it quietly."""
        result = self.run_cli("tail", "-f", "--from", "28")
        self.assertExit(result, 130)
        self.assertEqual(result.stdout, "28\t1\t28\n29\t1\t29\n")
        self.assertEqual(result.stderr.strip(), "")

    def test_follow_from_now(self) -> None:
        """C{-f -n 0}: only what is new."""
        self.run_cli("tail", "-f", "-n", "0")
        self.assertEqual(self.log.calls[-1], ("tail", 42, True))

    def test_formats(self) -> None:
        """As with get."""
        self.assertEqual(self.run_cli("tail", "-n", "2", "--format", "raw").stdout, "28\n29\n")
        lines = self.run_cli("tail", "-n", "2", "--format", "json").stdout.splitlines()
        self.assertEqual([json.loads(line)["index"] for line in lines], [28, 29])

    def test_expired(self) -> None:
        """The error names the first index that is left."""
        self.log.fails = DLedgerError(
            ResponseCode.INDEX_LESS_THAN_LOCAL_BEGIN, first_index=5, reason="entry 2 has expired"
        )
        self.assertExit(self.run_cli("tail", "--from", "2"), 1, "entry 2 has expired [first_index=5]")

    def test_reader_goes_away(self) -> None:
        """A closed pipe is no error message."""
        self.log.fails = BrokenPipeError(32, "Broken pipe")
        result = self.run_cli("tail")
        self.assertEqual((result.exit_code, result.stderr), (1, ""))

    def run_closed(self, *args: str, fds: tuple[int, ...]) -> subprocess.CompletedProcess[bytes]:
        """A command as a process of its own that some standard streams are not given to."""
        command = [sys.executable, "-c", "from dledger.cli.main import main; main()", *args]
        code = f"import os; [os.close(fd) for fd in {fds!r}]; os.execv({sys.executable!r}, {command!r})"
        return subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=60, check=False)

    def test_closed_standard_streams(self) -> None:
        """An output or input that is closed is like one that fails: one line, no traceback."""
        for closed in ((1,), (0, 1)):
            done = self.run_closed("--help", fds=closed)
            self.assertEqual((done.returncode, done.stderr), (1, b"dledger: [Errno 9] Bad file descriptor\n"))
        done = self.run_closed("--peers", "n0-127.0.0.1:1", "append", "--file", "-", fds=(0,))
        self.assertEqual((done.returncode, done.stderr.count(b"\n")), (1, 1), done.stderr)
        self.assertEqual(self.run_closed("nothing", fds=(2,)).returncode, 64)


class TransferTests(CliCase):
    """C{dledger transfer}."""

    def test_transfer(self) -> None:
        """Says who leads now."""
        self.assertExit(self.run_cli("transfer", "n1"), 0, "n1 leads, term 4")
        self.assertEqual(self.log.calls, [("transfer", "n1", None)])

    def test_term(self) -> None:
        """For a Java leader."""
        self.run_cli("transfer", "n1", "--term", "3")
        self.assertEqual(self.log.calls, [("transfer", "n1", 3)])

    def test_refused(self) -> None:
        """With the reason."""
        self.log.fails = DLedgerError(ResponseCode.FALL_BEHIND_TOO_MUCH, transferee_id="n1")
        self.assertExit(self.run_cli("transfer", "n1"), 1, "FALL_BEHIND_TOO_MUCH (417): the target",
                        "[transferee_id=n1]")

    def test_unknown(self) -> None:
        """A time-out says nothing about what happened."""
        self.log.fails = DLedgerError(ResponseCode.TIMEOUT, reason="no answer")
        self.assertExit(self.run_cli("transfer", "n1"), 1, "it is unknown", "no answer")


class CommonTests(CliCase):
    """The common parts of the commands."""

    def test_describe(self) -> None:
        """One line; facts that say nothing are left out."""
        error = DLedgerError(ResponseCode.NOT_LEADER, leader_id=None, member_id="n1", reason="")
        self.assertEqual(describe_error(error), "NOT_LEADER (404): the member does not lead [member_id=n1]")

    def test_shown(self) -> None:
        """Printable text as it is, everything else so that it harms no terminal."""
        self.assertEqual(shown_body("grüß 你".encode()), "grüß 你")
        self.assertEqual(shown_body(b"\x1b[31m\n\xff"), "\\x1b[31m\\n\\xff")

    def test_entry_json(self) -> None:
        """Not text: Base64."""
        document = entry_json(Entry(index=1, term=2, pos=3, body=b"\x80"))
        self.assertEqual(document, {"index": 1, "term": 2, "pos": 3, "body_base64": "gA=="})

    def test_os_error(self) -> None:
        """One line."""
        self.log.fails = PermissionError(13, "Permission denied")
        self.assertExit(self.run_cli("get", "0"), 1, "dledger: [Errno 13] Permission denied")

    def test_a_bug_is_not_hidden(self) -> None:
        """What is our fault keeps its trace."""
        self.log.fails = AssertionError("we are wrong")
        self.assertIsInstance(self.run_cli("get", "0").exception, AssertionError)

    def test_not_standalone(self) -> None:
        """As a part of another program, errors are exceptions."""
        self.log.fails = DLedgerError(ResponseCode.NOT_LEADER)
        runner = CliRunner()
        result = runner.invoke(
            cli, ["get", "0"], env={"DLEDGER_PEERS": "n0-h:1"}, standalone_mode=False
        )
        self.assertIsInstance(result.exception, DLedgerError)
