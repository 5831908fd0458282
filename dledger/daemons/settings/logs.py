# -*- test-case-name: tests.twistd.test_logs -*-
"""
The log of a service of C{twistd}: its options, and the observer that twistd is given for them.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Mapping, MutableMapping
from typing import IO, Any, cast

import attrs
from twisted.python.logfile import LogFile
from twisted.python.usage import UsageError

from dledger.base.log_lines import FORMATS, LEVELS, LineWriter, LogLevels, is_journal

LOG_PARAMETERS = [
    ["log-format", None, None, "Lines of the log: text, or json (one object each). [default: text]"],
    ["log-level", None, None, f"Least level that is written: {', '.join(LEVELS)}; rooms may have their own: "
     "info,dledger.node=debug. [default: info]"],
]
#: Names in a configuration file, and options of the command line.
LOG_NAMES = {"log_format": "log-format", "log_level": "log-level"}


@attrs.define
class LogOptions:
    """
    How the log is written.

    @ivar line_format: one of L{FORMATS}.
    @ivar is_in_force: whether twistd writes its log so.
    """

    line_format: str = "text"
    levels: LogLevels = attrs.Factory(LogLevels)
    is_in_force: bool = False

    @classmethod
    def of(cls, given: Mapping[str, object]) -> LogOptions:
        """
        @param given: names as in L{LOG_NAMES}.
        @raise UsageError: a value does not fit.
        """
        line_format, level = given.get("log_format", "text"), given.get("log_level", "info")
        if line_format not in FORMATS:
            raise UsageError(f"log_format={line_format!r}: write {' or '.join(FORMATS)}")
        try:
            return cls(str(line_format), LogLevels(str(level)))
        except ValueError as error:
            raise UsageError(f"log_level={level!r}: {error}") from None

    def reported(self) -> dict[str, object]:
        """The options and their values."""
        return {"log_format": self.line_format, "log_level": self.levels.text}

    def give_to(self, twistd: MutableMapping[str, object], *, is_given: bool) -> None:
        """
        Let twistd write its log so.

        @param twistd: its options.
        @param is_given: whether an option of the log was given.
        @raise UsageError: twistd was asked to write it otherwise.
        """
        other = next((name for name in ("logger", "syslog") if twistd.get(name)), None)
        if other is None:
            _of_process[:] = [(self, twistd)]
            self.is_in_force = True
            twistd["logger"] = f"{__name__}.{make_observer.__name__}"
        elif is_given:
            raise UsageError(f"--log-format and --log-level do not go with twistd --{other}: leave one out")

    def observer(self, path: str | None, *, is_foreground: bool) -> LineWriter:
        """
        What writes the log.

        @param path: a file; None or empty: standard output, of a daemon C{twistd.log}; C{-}: standard output.
        @raise SystemExit: a daemon has none.
        """
        if path == "-" and not is_foreground:
            raise SystemExit("a daemon has no standard output: name a file with twistd --logfile")
        if is_foreground and path in (None, "", "-"):
            stream: IO[str] = sys.stdout
        else:
            stream = cast("IO[str]", _rotated_file(path or "twistd.log"))
        has_priorities = stream is sys.stdout and is_journal(stream, os.environ)
        return LineWriter(stream, FORMATS[self.line_format], self.levels, has_priorities=has_priorities)


#: The log of this process: twistd takes the name of a function without arguments.
_of_process: list[tuple[LogOptions, MutableMapping[str, object]]] = []


def make_observer() -> LineWriter:
    """Called by twistd, with what L{LogOptions.give_to} was given."""
    options, twistd = _of_process[0]
    path = cast("str | None", twistd.get("logfile"))
    return options.observer(path, is_foreground=bool(twistd.get("nodaemon")))


def _rotated_file(path: str) -> LogFile:
    """As twistd has it: SIGUSR1 rotates it."""
    file: LogFile = LogFile.fromFullPath(path)

    def rotate(_number: int, _frame: object) -> None:
        from twisted.internet import reactor

        cast(Any, reactor).callFromThread(file.rotate)

    if not signal.getsignal(signal.SIGUSR1):
        signal.signal(signal.SIGUSR1, rotate)
    return file
