# -*- test-case-name: tests.twistd,tests.spark.test_sidecar -*-
"""
Shared by the services of C{twistd}: options, and the set-up of the process.

Options of the command line override those of the configuration file, which override the defaults. An error is
one line that also tells the allowed values.
"""

from __future__ import annotations

import atexit
import os
import random
import re
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from twisted.internet.endpoints import serverFromString
from twisted.logger import Logger
from twisted.python.usage import Options as UsageOptions
from twisted.python.usage import UsageError

from dledger.base.descriptors import LEAST, raise_limit
from dledger.base.option_values import Setting
from dledger.base.reactor import Reactor
from dledger.base.tuning import keep_freed_memory, spare_the_collector


class OptionsOnly(UsageOptions):
    """A command line of options only, without arguments."""

    compData: Any = None

    def parseArgs(self, *arguments: str) -> None:
        """Refuse any argument."""
        if arguments:
            raise UsageError(f"{arguments[0]!r} is not an option; all options begin with --")


class ConfigurationOptions(OptionsOnly):
    """
    Command line options for common settings, C{--set name=value} for the rest, and C{--config FILE}.

    @ivar settings: name to value, as given with C{--set}.
    @ivar in_force: every option with its value and its place; known when the options are parsed.
    """

    in_force: tuple[Setting, ...] = ()

    def __init__(self) -> None:
        super().__init__()
        self.settings: dict[str, str] = {}

    def parseOptions(self, options: Sequence[str] | None = None) -> None:
        """
        See L{UsageOptions.parseOptions}. C{twistd} answers a wrong option with its whole help text, and the
        reason below; a service of ours says the reason alone.
        """
        try:
            super().parseOptions(options)
        except UsageError as error:
            if self.parent is None:  # not called by twistd
                raise
            name = self.parent.subCommand
            said = "".join(f"{name}: {finding}\n" for finding in str(error).splitlines())
            sys.stderr.write(f"{said}{name}: all options: twistd {name} --help\n")
            raise SystemExit(1) from None

    def keep_setting(self, text: str) -> None:
        """Store the argument of one C{--set}."""
        name, equals, value = text.partition("=")
        name = name.strip()
        if not equals or not name:
            raise UsageError(f"--set {text!r}: write --set name=value")
        if name in self.settings:
            raise UsageError(f"--set {name}: given twice")
        self.settings[name] = value.strip()

    def given(self, names: Mapping[str, str]) -> dict[str, object]:
        """
        The options given on the command line, by their names in a configuration.

        @param names: command line option to its name in a configuration.
        """
        return {name: self[option] for option, name in names.items() if self[option] is not None}

    def from_file(
        self, parse: Callable[[str], Mapping[str, object]], tables: tuple[str, ...] = ()
    ) -> dict[str, object]:
        """
        The options in the file that C{--config} names; empty without it.

        @param parse: makes options from the file's text; raises C{ValueError}.
        @param tables: options that may be tables.
        @raise UsageError: the file cannot be read, or is malformed.
        """
        path = self["config"]
        if path is None:
            return {}
        try:
            with open(path, "rb") as file:
                values = dict(parse(file.read().decode("utf-8")))
        except OSError as error:
            raise UsageError(f"--config {path}: {error.strerror}") from None
        except ValueError as error:
            raise UsageError(f"--config {path}: {error}") from None
        for name, value in values.items():
            if isinstance(value, dict) and name not in tables:
                raise UsageError(f"--config {path}: [{name}] is a table; write options at the top level")
        return values


#: Places of options, for people.
COMMAND_LINE, FILE = "command line", "file"


def above(*settings: Mapping[str, object], plain: Callable[[str], str]) -> dict[str, object]:
    """
    Merge settings, where an earlier mapping overrides an option of later ones, in any spelling.

    @param plain: maps every spelling of an option to the same name.
    """
    found: dict[str, object] = {}
    for lower in settings:
        hidden = {plain(name) for name in found}
        found = {**{name: value for name, value in lower.items() if plain(name) not in hidden}, **found}
    return found


def usage_error(error: ValueError | TypeError) -> UsageError:
    """An error of one line for each finding, from validators and converters of options."""
    # A validator's error has more arguments, for programs.
    text = str(error.args[0] if error.args else error)
    return UsageError("\n".join(map(_plain_words, text.split("\n"))))


def _plain_words(text: str) -> str:
    """An error of attrs' validators in the form of ours: C{name=value: write ...}."""
    bound = re.fullmatch(r"'(\w+)' must be (>=|<=|>|<) (\S+): (.*)", text)
    if bound is not None:
        name, relation, number, value = bound.groups()
        return f"{name}={value}: write a number {_RELATIONS[relation]} {number}"
    choice = re.fullmatch(r"'(\w+)' must be in \((.*)\) \(got (.*)\)", text)
    if choice is not None:
        name, allowed, value = choice.groups()
        return f"{name}={value}: write one of {allowed.rstrip(',')}"
    return text


_RELATIONS = {">=": "of at least", "<=": "of at most", ">": "above", "<": "below"}


def endpoint_of(option: str, given: object) -> str:
    """
    The endpoint that an option describes; a bare number is a port.

    @raise UsageError: it is neither a port nor text.
    """
    if not isinstance(given, (int, str)) or isinstance(given, bool):
        raise UsageError(f"--{option}={given!r}: write a port, or an endpoint such as "
                         "tcp:20911:interface=127.0.0.1")  # fmt: skip
    text = str(given)
    return f"tcp:{text}" if text.isdecimal() else text


def check_endpoint(option: str, description: str, example: str) -> None:
    """@raise UsageError: C{description} is not a server endpoint."""
    try:
        serverFromString(None, description)
    except (ValueError, TypeError, KeyError, IndexError) as error:
        raise UsageError(f"--{option} {description!r} is no endpoint (such as {example}): {error}") from None


_PORT = re.compile(r"(?P<kind>tcp6?):(?:port=)?(?P<port>[0-9]{1,5})(?P<rest>(?::.*)?)")


def tcp_endpoint(option: str, text: str) -> tuple[str, int]:
    """
    Description and port of a TCP endpoint, which may be given as a port number.

    @raise UsageError: it is neither.
    """
    if text.isascii() and text.isdecimal():
        text = f"tcp:{text}"
    match = _PORT.fullmatch(text)
    if match is None or int(match["port"]) > 65535:
        raise UsageError(f"--{option} {text!r}: write a port (0 to 65535), or tcp:PORT:interface=ADDRESS")
    check_endpoint(option, text, "tcp:10911:interface=127.0.0.1")
    return text, int(match["port"])


def with_port(description: str, port: int) -> str:
    """The same TCP endpoint with another port. @param description: from L{tcp_endpoint}."""
    match = _PORT.fullmatch(description)
    assert match is not None, description
    return f"{match['kind']}:{port}{match['rest']}"


def make_reactor_monotonic(reactor: Reactor) -> None:
    """
    Let the reactor's timers use a monotonic clock.

    Twisted's timers use the time of day. When that is set back, no timer fires until it has caught up,
    and a member that does not tick loses its leadership or never looks for another leader.
    """
    if not reactor.getDelayedCalls():
        reactor.seconds = time.monotonic


def prepare_process(reactor: Reactor) -> None:
    """
    Set up reactor, descriptors, allocator and garbage collector for a long-lived server.

    @raise SystemExit: the system allows too few descriptors.
    """
    make_reactor_monotonic(reactor)
    allowed = raise_limit()
    if allowed < LEAST:
        raise SystemExit(
            f"dledger: this process may open {allowed} files, at least {LEAST} are needed, and some thousand "
            "for many clients: raise the limit (ulimit -n, LimitNOFILE= of a systemd unit)"
        )
    keep_freed_memory()
    reactor.callWhenRunning(spare_the_collector)
    reactor.callWhenRunning(survive_signals)


def survive_signals() -> None:
    """
    Let SIGHUP and SIGUSR1 do no harm: their default ends a process at once, without any hand-over, and
    operators send them to have a log rotated or options read again. Handlers of others stay.
    """
    for number in (signal.SIGHUP, signal.SIGUSR1):
        if signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, _ignore_signal)


def _ignore_signal(number: int, _frame: object) -> None:
    Logger().info(
        "{name} does nothing here: options are read at the start; the log goes to standard output, or is "
        "rotated by twistd --logfile", name=signal.Signals(number).name,
    )


def exit_with(status: int) -> None:
    """Let this process end with C{status}: the reactor cannot set an exit status."""

    def leave() -> None:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)

    atexit.register(leave)


def seeded_chance(whose: str) -> random.Random:
    """A new random generator, whose seed is logged. @param whose: its user, such as C{member n0}."""
    seed = random.SystemRandom().getrandbits(64)
    Logger().info("random generator of {whose}: seed {seed}", whose=whose, seed=seed)
    return random.Random(seed)


def end_process(reactor: Reactor, record: Callable[[], None]) -> Callable[[str], None]:
    """
    The C{failed} callback of a service that has a process of its own: it stops the reactor.

    @param record: sets the exit status that says why.
    """

    def failed(reason: str) -> None:
        record()
        # In the middle of start-up the reactor does not run yet.
        reactor.callWhenRunning(_stop_reactor, reactor)

    return failed


def _stop_reactor(reactor: Reactor) -> None:
    if reactor.running:
        reactor.stop()
