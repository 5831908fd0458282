# -*- test-case-name: tests.twistd,tests.spark.test_sidecar -*-
"""
Shared by the services of C{twistd}: options, and the set-up of the process.

Options of the command line override those of the configuration file, which override the defaults. An error is
one line that also reports the allowed values.
"""

from __future__ import annotations

import atexit
import difflib
import os
import random
import re
import sys
import tomllib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Self

import attrs
from twisted.internet.endpoints import serverFromString
from twisted.logger import Logger
from twisted.python.usage import Completions, UsageError
from twisted.python.usage import Options as UsageOptions

from dledger.base.log_lines import LogLevels
from dledger.base.reactor import Reactor
from dledger.daemons.settings.logs import LOG_NAMES, LOG_PARAMETERS, LogOptions
from dledger.daemons.settings.option_files import absolute_path, read_options_file, variables_of_engines
from dledger.values.option_values import (
    Setting,
    check_type,
    converted,
    our_name,
    raise_findings,
    settings_of,
)

#: Places of options, for people.
COMMAND_LINE, ENVIRONMENT, FILE = "command line", "environment", "file"
#: The place of an option that has changed since the start.
CHANGED = "changed since the start"
#: Options of the log on the command line, by their names in a file.
LOG_OPTIONS = {option: name for name, option in LOG_NAMES.items()}


class OptionsOnly(UsageOptions):
    """A command line of options only, without arguments."""

    compData: Completions | None = None

    def parseArgs(self, *arguments: str) -> None:
        """Refuse any argument."""
        if arguments:
            raise UsageError(f"{arguments[0]!r} is not an option; all options begin with --")


class ConfigurationOptions(OptionsOnly):
    """
    Command line options for common settings, C{--set name=value} for the rest, and C{--config FILE}.

    @cvar table: the service's table in a file for several services, and a part of the names of its options in
        the environment.
    @cvar environ: where those are.
    @ivar environment: the options given there.
    @ivar settings: name to value, as given with C{--set}.
    @ivar in_force: every option with its value and its place; known when the options are parsed.
    """

    table: str
    environ: Mapping[str, str] = os.environ
    in_force: tuple[Setting, ...] = ()
    optParameters = LOG_PARAMETERS

    def __init__(self) -> None:
        super().__init__()
        self.settings: dict[str, str] = {}
        self.log_options = LogOptions()
        self._arguments: list[str] = []
        self.environment: dict[str, object] = {}
        self._path: str | None = None
        self._log_given: dict[str, dict[str, object]] = {COMMAND_LINE: {}, ENVIRONMENT: {}, FILE: {}}
        self._places: dict[str, str] = {}
        self._written: set[str] = set()

    def parseOptions(self, options: Sequence[str] | None = None) -> None:
        """
        See L{UsageOptions.parseOptions}. C{twistd} answers a wrong option with its whole help text, and the
        reason below; a service of ours says the reason alone.
        """
        self._arguments = list(options or ())
        try:
            super().parseOptions(options)
            self._log_given[COMMAND_LINE] = self.given(LOG_OPTIONS)
            given = {**self._log_given[FILE], **self._log_given[ENVIRONMENT], **self._log_given[COMMAND_LINE]}
            self.log_options = LogOptions.of(given)
            self._notify_log_options()
            if self.parent is not None:
                self.log_options.give_to(self.parent, is_given=bool(given))
        except UsageError as error:
            findings = [self._with_origin(finding) for finding in str(error).splitlines()]
            if self.parent is None:  # not called by twistd
                raise UsageError("\n".join(findings)) from None
            name = self.parent.subCommand
            said = "".join(f"{name}: {finding}\n" for finding in findings)
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
        The options in the file that C{--config} names, or in the service's own table of it; empty without it.

        @param parse: makes options from the file's text; raises C{ValueError}.
        @param tables: options that may be tables.
        @raise UsageError: the file cannot be read, is malformed, or is for other services only.
        """
        self._read_environment()
        path = self["config"]
        if path is None:
            return {}
        # A daemon changes its directory after the first reading.
        self._path = self._path or absolute_path(path)
        try:
            values = own_options(parse(read_options_file(self._path).decode("utf-8")), self.table, tables)
        except OSError as error:
            raise UsageError(f"--config {path}: {error.strerror}") from None
        except ValueError as error:
            raise _of_file(path, error) from None
        self._log_given[FILE] = {name: values.pop(name) for name in LOG_NAMES if name in values}
        return values

    @property
    def levels(self) -> LogLevels | None:
        """Of the log; None: twistd writes it without us."""
        return self.log_options.levels if self.log_options.is_in_force else None

    @property
    def _prefix(self) -> str:
        """Of this service's variables."""
        return f"DLEDGER_{self.table.upper()}__"

    def _with_origin(self, finding: str) -> str:
        """A finding about a value of the environment names its variable: people look in the file first."""
        for name, value in {**self.environment, **self._log_given[ENVIRONMENT]}.items():
            words = name.replace("_", "[_-]?")
            if re.search(rf"(?i)(?<![a-z0-9]){words}(?![a-z0-9])", finding) and str(value) in finding:
                return f"{finding} (from the environment: {self._prefix}{name.upper()})"
        return finding

    def _read_environment(self) -> None:
        """C{DLEDGER_MEMBER__GROUP} is C{group} of a member; others see L{variables_of_engines}."""
        prefix = self._prefix
        found: dict[str, object] = {
            name.removeprefix(prefix).lower(): self.environ[name]
            for name in sorted(self.environ.keys() - variables_of_engines(self.environ))
            if name.startswith(prefix) and self.environ[name]
        }
        config = found.pop("config", None)
        if self["config"] is None:
            self["config"] = config
        self._log_given[ENVIRONMENT] = {name: found.pop(name) for name in LOG_NAMES if name in found}
        self.environment = found

    @property
    def settings_now(self) -> SettingsNow:
        """What is in force at any time, for pages."""
        return SettingsNow(self)

    def _notify_log_options(self) -> None:
        """Let C{in_force} have the options of the log, too."""
        reported = settings_of(self.log_options.reported(), self._log_given, str)
        self.in_force = (*self.in_force, *reported)

    def again(self) -> Self:
        """
        The options as they are written now.

        @raise UsageError: they are not sound.
        """
        again = type(self)()
        again._path = self._path
        again.parseOptions(self._arguments)
        return again

    def taken_again(self, again: Self, names: Collection[str]) -> None:
        """These options are in force as they are written now."""
        now = {one.name: one for one in again.in_force if one.name in names}
        self.in_force = tuple(now.get(one.name, one) for one in self.in_force)

    def take(
        self, names: Mapping[str, str], values: Mapping[str, object], plain: Callable[[str], str]
    ) -> tuple[dict[str, object], dict[str, object]]:
        """
        Read options of the command line from C{--set}, the environment and the file, too, where they do not
        override it.

        @param names: name in a configuration, in snake_case, to option of the command line.
        @param values: from the file.
        @param plain: maps every spelling of an option to the same name.
        @return: what is left of C{--set}, and of environment and file.
        @raise UsageError: a value does not fit, or an option is given twice in one place.
        """
        flags = {name for name, option in names.items() if isinstance(self[option], int)}
        self._places = {name: COMMAND_LINE for name, option in names.items() if self[option] not in (None, 0)}
        left: list[dict[str, object]] = []
        given = ((COMMAND_LINE, self.settings), (ENVIRONMENT, self.environment), (FILE, values))
        for place, found in given:
            rest: dict[str, object] = {}
            here: set[str] = set()
            for name, value in found.items():
                target = our_name(name, {}, names)
                if target not in names:
                    rest[name] = value
                    continue
                if target in here:
                    raise UsageError(f"option {target!r} is given twice, once as {name!r}")
                here.add(target)
                self._written.add(target)
                fitting = _fitting(target, value, is_flag=target in flags)
                if target not in self._places:
                    self._places[target] = place
                    self[names[target]] = fitting
            left.append(rest)
        return left[0], above(left[1], left[2], plain=plain)

    def take_ports(
        self, ports: Mapping[str, str], names: Mapping[str, str], others: Collection[str]
    ) -> dict[str, object]:
        """
        Make an endpoint of each port that L{take} has found, and show the ports as options.

        @param ports: name of an endpoint to the option that has its port.
        @param names: as of L{take}.
        @param others: the options that L{take} has left, in snake_case.
        @raise UsageError: something is not an endpoint, or both options were written.
        """
        found: dict[str, object] = {}
        for name, port in ports.items():
            if name in self._written and port in others:
                raise UsageError(f"{name} and {port} both name a port: write one of them")
            option = names[name]
            if self[option] is not None:
                self[option], found[port] = tcp_endpoint(option, self[option])
                self._places[port] = self._places[name]
        return found

    def taken(self, place: str) -> dict[str, object]:
        """The options of L{take} that were given in a place, with C{None} for their values."""
        return {name: None for name, found in self._places.items() if found == place}


class SettingsNow:
    """The options in force, with the present levels of the log: those change while the service runs."""

    def __init__(self, options: ConfigurationOptions) -> None:
        self._options = options

    def __iter__(self) -> Iterator[Setting]:
        now = self._options.log_options.levels.text
        for one in self._options.in_force:
            if one.name == "log_level" and one.value != now:
                one = attrs.evolve(one, value=now, origin=CHANGED)
            yield one


def _fitting(name: str, value: object, *, is_flag: bool) -> object:
    """A value from a file for an option of the command line. @raise UsageError: it is of another type."""
    try:
        if is_flag:
            value = converted(name, value, False)
            check_type(name, value, False)
            return int(bool(value))
    except ValueError as error:
        raise usage_error(error) from None
    if isinstance(value, list) and all(isinstance(one, str) for one in value):
        return ";".join(value)
    if isinstance(value, bool) or not isinstance(value, (int, str)):
        raise UsageError(f"{name}={value!r}: write text, or a port")
    return str(value)


#: The tables of a file for several services.
TABLES = ("member", "broker", "namesrv")
_ALLOWED_TABLES = "[member], [broker] and [namesrv] are the tables of a file for several services"


def service_tables(values: Mapping[str, object]) -> tuple[str, ...]:
    """
    Of a file for several services, the tables that it has. Empty if it has none: then it is a file for one
    service, with options at the top level.

    @raise ValueError: there is something beside them; a line for each finding.
    """
    if not any(name in values for name in TABLES):
        return ()
    findings = []
    for name, value in values.items():
        if name in TABLES:
            if not isinstance(value, dict):
                findings.append(f"{name} is not a table: write [{name}], and its options below")
        elif isinstance(value, dict):
            near = difflib.get_close_matches(name, TABLES, n=1)
            hint = f"; did you mean [{near[0]}]?" if near else ""
            findings.append(f"unknown table [{name}]: {_ALLOWED_TABLES}{hint}")
        else:
            findings.append(f"option {name!r} is outside of all tables: {_ALLOWED_TABLES}")
    raise_findings(findings)
    return tuple(name for name in TABLES if name in values)


def tables_in(path: str) -> tuple[str, ...]:
    """
    The services that have tables in a file; empty for a file of one service, or one that cannot be read: the
    service itself says why.

    @raise UsageError: there is something beside the tables; a line for each finding.
    """
    if path.endswith((".properties", ".conf")):
        return ()
    try:
        values = tomllib.loads(read_options_file(path).decode("utf-8"))
    except (OSError, ValueError):
        return ()
    try:
        return service_tables(values)
    except ValueError as error:
        raise _of_file(path, error) from None


def _of_file(path: str, error: ValueError) -> UsageError:
    return UsageError("\n".join(f"--config {path}: {one}" for one in str(error).split("\n")))


def own_options(values: Mapping[str, object], table: str, tables: tuple[str, ...]) -> dict[str, object]:
    """
    The options of one service in a file, which has them at the top level or in tables for several services.

    @param table: of this service.
    @param tables: options that may be tables themselves.
    @raise ValueError: the file has tables, but not this one, or another table.
    """
    found = service_tables(values)
    if found and table not in found:
        has = " and ".join(f"[{name}]" for name in found)
        raise ValueError(f"there is no table [{table}], only {has}: write [{table}], and be it empty")
    own = values[table] if found else values
    assert isinstance(own, Mapping)
    for name, value in own.items():
        if isinstance(value, dict) and name not in tables:
            if found:
                raise ValueError(f"[{table}.{name}] is a table; write options into [{table}] itself")
            raise ValueError(f"[{name}] is a table; write options at the top level. ({_ALLOWED_TABLES})")
    return dict(own)


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
                         "tcp:20911:interface=127.0.0.1")
    text = str(given)
    return f"tcp:{text}" if text.isdecimal() else text


def check_endpoint(option: str, description: str, example: str) -> None:
    """@raise UsageError: C{description} is not a server endpoint, or one whose callers name their address."""
    if description.startswith("haproxy:"):
        raise UsageError(f"--{option} {description!r}: by the PROXY protocol every caller could say that it "
                         f"is on this machine. Write an endpoint such as {example}")
    try:
        serverFromString(None, description)
    except (ValueError, TypeError, KeyError, IndexError, OSError) as error:
        raise UsageError(f"--{option} {description!r}: no endpoint, such as {example}: {error}") from None
    port = _ANY_PORT.match(description)
    if port is not None and int(port["port"]) > 65535:
        raise UsageError(f"--{option} {description!r}: the port {port['port']} is not within 0 to 65535")


_ANY_PORT = re.compile(r"(?:tcp6?|ssl):(?:[^:]*:)*?(?:port=)?(?P<port>[0-9]+)(?::|$)")
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
