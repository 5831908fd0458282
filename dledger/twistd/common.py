# -*- test-case-name: tests.twistd,tests.spark.test_sidecar -*-
"""
What the services of C{twistd} have in common: how options are given, and what a process of theirs is like.

What is given on the command line stands above what stands in the configuration file, which stands above the
defaults. What is wrong is one line, with what would be right.
"""

from __future__ import annotations

import atexit
import os
import random
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

from twisted.internet.endpoints import serverFromString
from twisted.logger import Logger
from twisted.python.usage import Options as UsageOptions
from twisted.python.usage import UsageError

from dledger.base.tuning import keep_freed_memory, spare_the_collector


class OptionsOnly(UsageOptions):
    """Options, and nothing else."""

    compData: Any = None

    def parseArgs(self, *arguments: str) -> None:
        """There are none."""
        if arguments:
            raise UsageError(f"{arguments[0]!r} is not an option; all options begin with --")


class ConfigurationOptions(OptionsOnly):
    """
    Options of their own for what is said often, C{--set name=value} for the rest, and C{--config FILE}.

    @ivar settings: what C{--set} was given.
    """

    def __init__(self) -> None:
        super().__init__()
        self.settings: dict[str, str] = {}

    def keep_setting(self, text: str) -> None:
        """Take what one C{--set} was given."""
        name, equals, value = text.partition("=")
        name = name.strip()
        if not equals or not name:
            raise UsageError(f"--set {text!r}: write --set name=value")
        if name in self.settings:
            raise UsageError(f"--set {name}: given twice")
        self.settings[name] = value.strip()

    def given(self, names: Mapping[str, str]) -> dict[str, Any]:
        """
        What stands on the command line, by the names that it has in a configuration.

        @param names: the name of each option there.
        """
        return {name: self[option] for option, name in names.items() if self[option] is not None}

    def from_file(
        self, parse: Callable[[str], Mapping[str, Any]], tables: tuple[str, ...] = ()
    ) -> dict[str, Any]:
        """
        What stands in the file that C{--config} names; nothing without it.

        @param parse: from its text to options; raises C{ValueError}.
        @param tables: options that may be tables.
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
                raise UsageError(f"--config {path}: [{name}] is a table; options stand at the top level")
        return values


def above(*settings: Mapping[str, Any], plain: Callable[[str], str]) -> dict[str, Any]:
    """
    All of them, where each hides an option of those behind it under any spelling.

    @param plain: the same of every spelling of one option.
    """
    found: dict[str, Any] = {}
    for lower in settings:
        hidden = {plain(name) for name in found}
        found = {**{name: value for name, value in lower.items() if plain(name) not in hidden}, **found}
    return found


def usage_error(error: ValueError | TypeError) -> UsageError:
    """One line, of an option's validator or of whoever has converted it."""
    # A validator's error has more arguments, for programs.
    return UsageError(str(error.args[0] if error.args else error))


def check_endpoint(option: str, description: str, example: str) -> None:
    """@raise UsageError: C{description} is no endpoint of a server."""
    try:
        serverFromString(None, description)
    except (ValueError, TypeError, KeyError, IndexError) as error:
        raise UsageError(f"--{option} {description!r} is no endpoint (as {example}): {error}") from None


def make_reactor_monotonic(reactor: Any) -> None:
    """
    Let the reactor's timers run by a clock that nobody sets.

    Twisted's run by the time of day: when that is set back, nothing happens until it has caught up,
    and a member that does not tick loses its leadership or never looks for another leader.
    """
    if not reactor.getDelayedCalls():
        reactor.seconds = time.monotonic


def prepare_process(reactor: Any) -> None:
    """Let the reactor, the allocator and the collector of this process be what a long-lived server needs."""
    make_reactor_monotonic(reactor)
    keep_freed_memory()
    reactor.callWhenRunning(spare_the_collector)


def exit_with(status: int) -> None:
    """Let this process end with C{status}: the reactor knows none."""

    def leave() -> None:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)

    atexit.register(leave)


def seeded_chance(whose: str) -> random.Random:
    """A generator of one's own, whose seed stands in the log. @param whose: as C{member n0}."""
    seed = random.SystemRandom().getrandbits(64)
    Logger().info("chance of {whose} starts from seed {seed}", whose=whose, seed=seed)
    return random.Random(seed)


def end_process(reactor: Any, record: Callable[[], None]) -> Callable[[str], None]:
    """
    The C{failed} callback of a service that has a process of its own: it stops the reactor.

    @param record: sets the exit status that says why.
    """

    def failed(reason: str) -> None:
        record()
        # In the middle of start-up the reactor does not run yet.
        reactor.callWhenRunning(_stop_reactor, reactor)

    return failed


def _stop_reactor(reactor: Any) -> None:
    if reactor.running:
        reactor.stop()
