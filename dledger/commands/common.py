# -*- test-case-name: tests.commands.test_main -*-
"""
Shared by the commands: errors become one line and an exit status, entries become output.

Exit status: 0 done; 1 failed, with no effect beyond the reported one; 2 an append has an unknown outcome;
64 the command line is invalid; 130 Ctrl-C.
"""

from __future__ import annotations

import base64
import contextlib
import errno
import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NoReturn

import click
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TimeRemainingColumn, TransferSpeedColumn

from dledger.base.errors import DirectoryError, DLedgerError
from dledger.client.values import AppendError, Entry, UnknownOutcome
from protocols.wire.fastjson import JsonObject

EXIT_FAILED = 1
EXIT_UNKNOWN = 2
EXIT_USAGE = 64
EXIT_INTERRUPTED = 130

FORMATS = ("text", "json", "raw")


def say(text: str) -> None:
    """Write a line for people to standard error."""
    click.echo(text, err=True)


def describe_error(error: DLedgerError) -> str:
    """One line: code, reason and facts of an error; of a directory that cannot be opened, the sentence."""
    if isinstance(error, DirectoryError):
        return str(error)
    facts = {name: value for name, value in error.facts.items() if value not in (None, "")}
    reason = facts.pop("reason", None)
    acknowledged = facts.pop("acknowledged", None)
    later = facts.pop("acknowledged_later", 0)
    line = f"{error.code.name} ({int(error.code)})"
    if reason is not None:
        line += f": {reason}"
    if facts:
        line += " [" + ", ".join(f"{name}={value}" for name, value in facts.items()) + "]"
    if isinstance(error, AppendError):
        done = acknowledged if acknowledged is not None else sum(run.count for run in error.appended)
        line += f"; acknowledged {done}"
        if later:
            line += f" from the start and {later} behind the first failure"
        line += f", unknown {error.unknown}, not appended {error.failed}"
    return line


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
        """As C{click.Group.main}; the module docstring lists the exit statuses."""
        if not standalone_mode:
            return super().main(args, prog_name, complete_var, standalone_mode=False, **extra)
        try:
            status = super().main(args, prog_name, complete_var, standalone_mode=False, **extra)
        except click.UsageError as error:
            error.show()
            sys.exit(EXIT_USAGE)
        except click.ClickException as error:
            error.show()
            sys.exit(EXIT_FAILED)
        except (KeyboardInterrupt, click.Abort):
            sys.exit(EXIT_INTERRUPTED)
        except UnknownOutcome as error:
            say(f"dledger: unknown outcome: {describe_error(error)}")
            sys.exit(EXIT_UNKNOWN)
        except DLedgerError as error:
            say(f"dledger: {describe_error(error)}")
            sys.exit(EXIT_FAILED)
        except OSError as error:
            if error.errno == errno.EPIPE:
                _leave_pipe()
            say(f"dledger: {error}")
            sys.exit(EXIT_FAILED)
        sys.exit(status if isinstance(status, int) else 0)


def _leave_pipe() -> NoReturn:
    """The reader of our output is gone: exit without a message, also at the interpreter's last flush."""
    try:
        sys.stdout.close()
    except OSError:
        pass
    sys.exit(EXIT_FAILED)


@contextlib.contextmanager
def bytes_shown(what: str, *, shows: bool | None = None) -> Iterator[Callable[[int, int], None]]:
    """
    A bar on standard error, for a function that is called with the bytes done and the bytes to do.

    @param shows: whether there is a bar; None: on a terminal.
    """
    console = Console(stderr=True)
    columns = (BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    is_shown = console.is_terminal if shows is None else shows
    with Progress(*columns, console=console, transient=True, disable=not is_shown) as bar:
        task = bar.add_task(what, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def shown_body(body: bytes) -> str:
    """A body on one line: printable text unchanged, everything else escaped."""
    text = body.decode("utf-8", "backslashreplace")
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)


def entry_json(entry: Entry) -> JsonObject:
    """An entry as an object: C{body} if that is UTF-8, else C{body_base64}."""
    document: JsonObject = {"index": entry.index, "term": entry.term, "pos": entry.pos}
    try:
        document["body"] = entry.body.decode("utf-8")
    except UnicodeDecodeError:
        document["body_base64"] = base64.b64encode(entry.body).decode("ascii")
    return document


def write_entries(entries: Sequence[Entry], style: str) -> None:
    """Write entries to standard output. C{text}: index, term, body; C{json}: objects; C{raw}: bodies."""
    if style == "raw":
        data = b"".join(entry.body + b"\n" for entry in entries)
    elif style == "json":
        lines = [json.dumps(entry_json(entry), ensure_ascii=False) for entry in entries]
        data = "".join(line + "\n" for line in lines).encode("utf-8")
    else:
        data = "".join(f"{e.index}\t{e.term}\t{shown_body(e.body)}\n" for e in entries).encode("utf-8")
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()


def write_json(document: Mapping[str, object] | Sequence[object]) -> None:
    """Write a document to standard output."""
    click.echo(json.dumps(document, indent=1, ensure_ascii=False, default=str))
