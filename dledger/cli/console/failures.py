# -*- test-case-name: tests.commands.test_failures -*-
"""
How a command says that it has failed: in lines for people, or with C{--json} as one object on the last line
of standard error::

    {"error": {"code": "NOT_LEADER", "number": 404, "message": "...", "remedy": "...", "facts": {...},
               "details": ["..."]}, "exit_status": 1}

Rule: the exit status is the same either way.
"""

from __future__ import annotations

import errno
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import attrs
import click

from dledger.values.errors import DLedgerError
from protocols.wire.code_help import CODE_HELP

#: Codes of failures that are no outcome of a call.
USAGE, FAILED, INTERRUPTED = "USAGE", "FAILED", "INTERRUPTED"


@attrs.frozen(kw_only=True)
class Failure:
    """
    Why a command ends with another exit status than 0.

    @ivar code: a name of a response code, of an error of the system (C{ENOENT}), or of those above.
    @ivar number: of the code; None: it has none. @ivar remedy: what to do; may be empty.
    """

    code: str
    message: str
    number: int | None = None
    remedy: str = ""
    facts: Mapping[str, object] = attrs.Factory(dict)


@attrs.define
class _Said:
    """
    What a command with C{--json} has said so far.

    @ivar complaints: why it fails. @ivar remarks: what it says besides.
    """

    complaints: list[str] = attrs.Factory(list)
    remarks: list[str] = attrs.Factory(list)


class _Hearing:
    """
    Of this process: what is said belongs to the command under way, in whichever thread.

    @ivar said: of that command; None: it goes to people at once.
    """

    said: _Said | None = None


_HEARING = _Hearing()


def wants_json(words: Sequence[str]) -> bool:
    """Whether a command line asks for JSON."""
    for number, word in enumerate(words):
        if word == "--":
            break
        is_format = word == "--format" and list(words[number + 1 : number + 2]) == ["json"]
        if is_format or word in ("--json", "--format=json"):
            return True
    return False


def complain(text: str) -> None:
    """Say why the command fails; with C{--json} in the document."""
    said = _HEARING.said
    if said is None:
        click.echo(f"dledger: {text}", err=True)
    else:
        said.complaints.append(text)


def remark(text: str) -> None:
    """Say something that is no failure; with C{--json} in the document of one, or at the end."""
    said = _HEARING.said
    if said is None:
        click.echo(text, err=True)
    else:
        said.remarks.append(text)


def described_failure(error: Exception, message: str) -> Failure:
    """@param message: one line about the error."""
    if isinstance(error, DLedgerError):
        facts = {name: value for name, value in error.facts.items() if value not in (None, "")}
        return Failure(code=error.code.name, number=int(error.code), message=message, facts=facts,
                       remedy=CODE_HELP[error.code].remedy)
    if isinstance(error, click.UsageError):
        command = "dledger" if error.ctx is None else error.ctx.command_path
        return Failure(code=USAGE, message=message, remedy=f"{command} --help shows what it takes")
    if isinstance(error, OSError):
        return Failure(code=errno.errorcode.get(error.errno or 0, "OSERROR"), message=message)
    return Failure(code=FAILED, message=message)


class JsonFailures:
    """Writes the failure of one command as JSON, if it is to be JSON. @ivar is_on: whether it is."""

    def __init__(self, words: Sequence[str]) -> None:
        self.is_on = wants_json(words)
        self._said = _Said()

    @contextmanager
    def hearing(self) -> Iterator[None]:
        """What is said meanwhile belongs to this command."""
        before, _HEARING.said = _HEARING.said, self._said if self.is_on else None
        try:
            yield
        finally:
            _HEARING.said = before

    def write(self, failure: Failure | None, exit_status: int) -> None:
        """
        The end of the command.

        @param failure: None: the complaints are the reason; without any, standard output has it.
        """
        said = self._said
        details = [*said.complaints, *said.remarks]
        if failure is None and exit_status and said.complaints:
            failure = Failure(code=FAILED, message="; ".join(said.complaints))
            details = said.remarks
        if failure is None:
            for text in details:
                click.echo(text, err=True)
            return
        click.echo(json.dumps({
            "error": {**attrs.asdict(failure, recurse=False), "details": details}, "exit_status": exit_status,
        }, ensure_ascii=False, default=str), err=True)
