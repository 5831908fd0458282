# -*- test-case-name: tests.commands.test_main -*-
"""
Shared by the commands: errors become one line (L{dledger.cli.console.failures}) and an exit status, entries
become output.

L{EXIT_STATUSES} has the exit statuses.
"""

from __future__ import annotations

import base64
import errno
import json
import os
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click

from dledger.cli.console.failures import Failure, JsonFailures, described_failure
from dledger.cli.console.signals import interrupted_by_sigterm
from dledger.client.errors import AppendError, UnknownChange, UnknownOutcome
from dledger.values.errors import DirectoryError, DLedgerError
from protocols.wire.code_help import cause_of

if TYPE_CHECKING:
    from dledger.client.values import Entry
    from protocols.wire.fastjson import JsonObject

EXIT_FAILED = 1
EXIT_UNKNOWN = 2
EXIT_USAGE = 64
EXIT_INTERRUPTED = 130
#: For operators; docs/reference.md shows them.
EXIT_STATUSES: Mapping[int, str] = {
    0: "done",
    EXIT_FAILED: "failed; nothing happened except the actions reported as done",
    EXIT_UNKNOWN: "an append has an unknown outcome: it may be in the log now, or get there later; or a "
                  "change of "
                  "the members may be in force: give the command again",
    EXIT_USAGE: "the command line is invalid",
    EXIT_INTERRUPTED: "interrupted, by Ctrl-C or SIGTERM",
}

FORMATS = ("text", "json", "raw")
#: Characters of a command's first sentence in the list of commands: all of them.
_SENTENCE_MAX = 1000


def say(text: str) -> None:
    """Write a line for people to standard error."""
    click.echo(text, err=True)


def describe_error(error: DLedgerError) -> str:
    """One line: code, reason and facts of an error; of a directory that cannot be opened, the sentence."""
    if isinstance(error, DirectoryError):
        return str(error)
    facts = {name: value for name, value in error.facts.items() if value not in (None, "")}
    reason = facts.pop("reason", None) or cause_of(error.code)
    acknowledged = facts.pop("acknowledged", None)
    later = facts.pop("acknowledged_later", 0)
    line = f"{error.code.name} ({int(error.code)}): {reason}"
    if facts:
        line += " [" + ", ".join(f"{name}={value}" for name, value in facts.items()) + "]"
    if isinstance(error, AppendError):
        done = acknowledged if acknowledged is not None else sum(run.count for run in error.appended)
        line += f"; acknowledged {done}"
        if later:
            line += f" from the start and {later} after the first failure"
        line += f", unknown {error.unknown}, not appended {error.failed}"
    return line


class Later(click.Command):
    """
    A command whose module is loaded when it is called: no command waits for the modules of the others.

    @param place: C{module:name} of the command itself.
    @param text: the first sentence of its help.
    """

    def __init__(self, name: str, place: str, text: str) -> None:
        super().__init__(name, help=text)
        self.place = place

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: object
    ) -> click.Context:
        """As C{click.Command.make_context}, of the command itself."""
        return loaded(self).make_context(info_name, args, parent, **extra)


def loaded(command: click.Command) -> click.Command:
    """The command itself, with its parameters and its help."""
    if not isinstance(command, Later):
        return command
    module, _, name = command.place.partition(":")
    found = getattr(import_module(module), name)
    assert isinstance(found, click.Command)
    return found


class Commands(click.Group):
    """A group of commands whose errors end as one line and an exit status."""

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        **extra: Any,
    ) -> Any:
        """As C{click.Group.main}; L{EXIT_STATUSES} has the exit statuses."""
        if not standalone_mode:
            return super().main(args, prog_name, complete_var, standalone_mode=False, **extra)
        _open_closed_streams()
        failures = JsonFailures(sys.argv[1:] if args is None else args)
        failure: Failure | None = None
        try:
            with interrupted_by_sigterm(), failures.hearing():
                status = super().main(args, prog_name, complete_var, standalone_mode=False, **extra)
            ends_with = status if isinstance(status, int) else 0
        except (KeyboardInterrupt, click.Abort):
            ends_with = EXIT_INTERRUPTED
        except (click.ClickException, DLedgerError, OSError) as error:
            if isinstance(error, OSError) and error.errno == errno.EPIPE:
                _leave_pipe()
            ends_with, sentence = _end_of(error)
            failure = described_failure(error, sentence.removeprefix("dledger: "))
            if not failures.is_on:
                _show(error, sentence)
        if failures.is_on:
            failures.write(failure, ends_with)
        sys.exit(ends_with)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The list of commands, each with its whole first sentence: C{click} would cut it."""
        commands = [(name, self.get_command(ctx, name)) for name in self.list_commands(ctx)]
        with formatter.section("Commands"):
            formatter.write_dl(
                [(name, one.get_short_help_str(_SENTENCE_MAX)) for name, one in commands if one])


def _end_of(error: click.ClickException | DLedgerError | OSError) -> tuple[int, str]:
    """Exit status and sentence."""
    if isinstance(error, click.ClickException):
        return EXIT_USAGE if isinstance(error, click.UsageError) else EXIT_FAILED, error.format_message()
    if isinstance(error, UnknownOutcome):
        return EXIT_UNKNOWN, f"dledger: unknown outcome: {describe_error(error)}"
    if isinstance(error, UnknownChange):
        return EXIT_UNKNOWN, ("dledger: the change may be in force, or come into force: give the command "
                              f"again ({describe_error(error)})")
    if isinstance(error, DLedgerError):
        return EXIT_FAILED, f"dledger: {describe_error(error)}"
    return EXIT_FAILED, f"dledger: {error}"


def _show(error: Exception, sentence: str) -> None:
    if isinstance(error, click.ClickException):
        error.show()
    else:
        say(sentence)


def _leave_pipe() -> NoReturn:
    """The reader of our output is gone: exit without a message, also at the interpreter's last flush."""
    _drop_output()
    sys.exit(EXIT_FAILED)


def _drop_output() -> None:
    try:
        sys.stdout.close()
    except OSError:
        pass


def _open_closed_streams() -> None:
    """
    Open the standard streams that the caller has closed, as C{dledger tail >&-} does: the interpreter leaves
    None in their place. Reading and writing then fail with C{EBADF}, as with a full disk; the last words on
    standard error go nowhere.
    """
    if sys.stdin is None:
        sys.stdin = os.fdopen(os.open(os.devnull, os.O_WRONLY), "r")
    if sys.stdout is None:
        sys.stdout = os.fdopen(os.open(os.devnull, os.O_RDONLY), "w")
    if sys.stderr is None:
        sys.stderr = os.fdopen(os.open(os.devnull, os.O_WRONLY), "w")


def show_result(document: Mapping[str, object] | Sequence[object], *lines: str, as_json: bool) -> None:
    """
    Write the result of a deed to standard output, as JSON or as lines. If the output takes nothing, such as a
    full disk, the deed has not failed, and no script must do it again: the lines go to standard error. They
    are left out if the reader of a pipe has left.
    """
    try:
        write_json(document) if as_json else click.echo("\n".join(lines))
    except OSError as error:
        _drop_output()
        if error.errno != errno.EPIPE:
            say(f"dledger: {' '.join(lines)}; standard output does not take this: {error.strerror}")


def shown_body(body: bytes) -> str:
    """A body on one line: printable text unchanged, everything else escaped."""
    text = body.decode("utf-8", "backslashreplace")
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)


def entry_json(entry: Entry) -> JsonObject:
    """
    An entry as an object: C{body} if that is UTF-8, else C{body_base64}; C{time_ms} of its leader,
    C{timestamp} of its client in milliseconds, and C{headers} if it has them, those that are not UTF-8 in
    C{headers_base64}.
    """
    document: JsonObject = {"index": entry.index, "term": entry.term, "pos": entry.pos}
    if entry.time_ms is not None:
        document["time_ms"] = entry.time_ms
    if entry.timestamp is not None:
        document["timestamp"] = entry.timestamp
    headers: dict[str, dict[str, str]] = {}
    for name, value in entry.headers.items():
        kind, text = _json_text(value)
        headers.setdefault(f"headers{kind}", {})[name] = text
    document |= headers
    kind, text = _json_text(entry.body)
    document[f"body{kind}"] = text
    return document


def _json_text(value: bytes) -> tuple[str, str]:
    """What to put after the name of a value, and the value."""
    try:
        return "", value.decode("utf-8")
    except UnicodeDecodeError:
        return "_base64", base64.b64encode(value).decode("ascii")


def shown_time(time_ms: int | None) -> str:
    """A time in UTC; C{-} without one."""
    if time_ms is None:
        return "-"
    moment = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=time_ms)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def shown_headers(headers: Mapping[str, bytes]) -> str:
    """C{name=value name=value} on one line, with blanks in them escaped; C{-} without headers."""
    shown = (f"{shown_body(name.encode())}={shown_body(value)}" for name, value in headers.items())
    return " ".join(one.replace(" ", "\\x20") for one in shown) or "-"


def _text_line(entry: Entry, *, with_headers: bool) -> str:
    reported = f"{shown_time(entry.when_ms)}\t{shown_headers(entry.headers)}\t" if with_headers else ""
    return f"{entry.index}\t{entry.term}\t{reported}{shown_body(entry.body)}\n"


def write_entries(entries: Sequence[Entry], style: str, *, with_headers: bool = False) -> None:
    """
    Write entries to standard output. C{text}: index, term, body; C{json}: objects; C{raw}: bodies.

    @param with_headers: in C{text}, time and headers before the body.
    """
    if style == "raw":
        data = b"".join(entry.body + b"\n" for entry in entries)
    elif style == "json":
        lines = [json.dumps(entry_json(entry), ensure_ascii=False) for entry in entries]
        data = "".join(line + "\n" for line in lines).encode("utf-8")
    else:
        data = "".join(_text_line(entry, with_headers=with_headers) for entry in entries).encode("utf-8")
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()


def write_json_line(document: Mapping[str, object]) -> None:
    """Write a document to standard output, on one line, at once."""
    click.echo(json.dumps(document, ensure_ascii=False, default=str))
    sys.stdout.flush()


def write_json(document: Mapping[str, object] | Sequence[object]) -> None:
    """Write a document to standard output."""
    click.echo(json.dumps(document, indent=1, ensure_ascii=False, default=str))


def replace_file(path: Path, text: str) -> None:
    """
    Write a file anew: a reader finds the old one or the new one, whole. A link stays one, and the rights of
    the old file stay; a new one only its owner may read.
    """
    path = path.resolve()
    new = path.with_name(f"{path.name}.new")
    new.unlink(missing_ok=True)
    mode = path.stat().st_mode & 0o777 if path.exists() else 0o600
    descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(new, path)
