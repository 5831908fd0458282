# -*- test-case-name: tests.node.test_tap -*-
"""
C{twistd -n dledger}: options, and the service that they describe.

What is given on the command line stands above what stands in the configuration file, which stands
above the defaults. Everything in L{DLedgerConfig} can be given, in our, Java's or RocketMQ's
spelling. What is wrong is one line, with what would be right.
"""

from __future__ import annotations

import atexit
import importlib
import os
import random
import sys
import time
import tomllib
from collections.abc import Callable
from typing import Any

from twisted.application.service import IService
from twisted.internet.endpoints import serverFromString
from twisted.logger import Logger
from twisted.python.usage import Options as UsageOptions
from twisted.python.usage import UsageError

from dledger.config import ALIASES, DLedgerConfig, from_mapping
from dledger.node.node import Node
from dledger.node.service import MemberService, end_process
from dledger.node.tuning import keep_freed_memory, spare_the_collector
from dledger.storage.disk import OsDisk

#: Options of their own, and the names that they have in a configuration.
_NAMES = {
    "node-id": "self_id",
    "peers": "peers",
    "store": "store_base_dir",
    "group": "group",
    "flush-disk-type": "flush_disk_type",
    "wire": "wire",
}

#: What a configuration file may hold beside the options of a member.
_ENDPOINTS = ("listen", "admin")


class Options(UsageOptions):
    """Without any: a log with one member, in ./dledger-data, on 127.0.0.1:20911."""

    optParameters = [
        ["node-id", "i", None, "Id of this member, one of --peers. [default: n0]"],
        ["peers", "p", None, "All members: id-host:port;id-host:port;... [default: n0-127.0.0.1:20911]"],
        ["store", "s", None, "Directory; files are in its dledger-<node-id>. [default: ./dledger-data]"],
        ["group", "g", None, "Name of the group. [default: default]"],
        ["config", "c", None, "TOML file with options, in any of the known spellings."],
        ["listen", "l", None, "Endpoint to listen on. [default: the port of this member's own peer address]"],
        ["admin", "a", None, "Endpoint of the HTTP administration, as in tcp:8080:interface=127.0.0.1."],
        ["flush-disk-type", "f", None, "async: acks before fsync (as Java); sync: after. [default: async]"],
        ["wire", "w", None, "Frames between members: auto, remoting or binary. [default: auto]"],
    ]

    compData: Any = None

    def __init__(self) -> None:
        super().__init__()
        self.settings: dict[str, str] = {}
        self.member: DLedgerConfig = DLedgerConfig()

    def opt_set(self, text: str) -> None:
        """Any other option of a member, as name=value; may be given more than once."""
        name, equals, value = text.partition("=")
        name = name.strip()
        if not equals or not name:
            raise UsageError(f"--set {text!r}: write --set name=value")
        if name in self.settings:
            raise UsageError(f"--set {name}: given twice")
        self.settings[name] = value.strip()

    def parseArgs(self, *arguments: str) -> None:
        """There are none."""
        if arguments:
            raise UsageError(f"{arguments[0]!r} is not an option; all options begin with --")

    def postOptions(self) -> None:
        """Put together what was given; C{self.member} is the result."""
        values = self._from_file()
        try:
            for name in _ENDPOINTS:
                said = values.pop(name, None)
                self[name] = self[name] or said or ""
            given = {name: self[option] for option, name in _NAMES.items() if self[option] is not None}
            self.member = from_mapping(_above(given, _above(self.settings, values)))
        except (ValueError, TypeError) as error:
            # A validator's error has more arguments, for programs.
            raise UsageError(str(error.args[0] if error.args else error)) from None
        for name in _ENDPOINTS:
            if self[name]:
                _check_endpoint(name, self[name])

    def _from_file(self) -> dict[str, Any]:
        path = self["config"]
        if path is None:
            return {}
        try:
            with open(path, "rb") as file:
                values = tomllib.load(file)
        except OSError as error:
            raise UsageError(f"--config {path}: {error.strerror}") from None
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise UsageError(f"--config {path}: {error}") from None
        for name, value in values.items():
            if isinstance(value, dict) and name not in ("peers",):
                raise UsageError(f"--config {path}: [{name}] is a table; options stand at the top level")
        return values


def _check_endpoint(name: str, description: str) -> None:
    try:
        serverFromString(None, description)
    except (ValueError, TypeError, KeyError, IndexError) as error:
        raise UsageError(
            f"--{name} {description!r} is no endpoint (as tcp:20911:interface=127.0.0.1): {error}"
        ) from None


def _above(upper: dict[str, Any], lower: dict[str, Any]) -> dict[str, Any]:
    """Both, where C{upper} hides an option of C{lower} under any spelling."""
    hidden = {_plain(name) for name in upper}
    return {**{name: value for name, value in lower.items() if _plain(name) not in hidden}, **upper}


def _plain(name: str) -> str:
    return ALIASES.get(name, name).replace("_", "").lower()


def make_reactor_monotonic(reactor: Any) -> None:
    """
    Let the reactor's timers run by a clock that nobody sets.

    Twisted's run by the time of day: when that is set back, nothing happens until it has caught up,
    and a member that does not tick loses its leadership or never looks for another leader.
    """
    if not reactor.getDelayedCalls():
        reactor.seconds = time.monotonic


def exit_with(status: int) -> None:
    """Let this process end with C{status}: the reactor knows none."""

    def leave() -> None:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)

    atexit.register(leave)


def _admin_maker(endpoint: str, reactor: Any) -> Callable[[Node], IService] | None:
    if not endpoint:
        return None
    try:
        resource = importlib.import_module("dledger.admin.resource")
    except ModuleNotFoundError as error:
        raise UsageError(f"--admin: {error}") from None
    return lambda node: resource.make_admin_service(node, endpoint, reactor, wall_s=time.time)


def makeService(options: Options) -> MemberService:
    """The service that C{options} describe; called by twistd."""
    from twisted.internet import reactor

    make_reactor_monotonic(reactor)
    keep_freed_memory()
    reactor.callWhenRunning(spare_the_collector)
    return make_service(options, reactor)


def make_service(options: Options, reactor: Any) -> MemberService:
    """The service that C{options} describe."""
    listen = serverFromString(reactor, options["listen"]) if options["listen"] else None
    seed = random.SystemRandom().getrandbits(64)
    self_id = options.member.self_id
    Logger().info("chance of member {self_id} starts from seed {seed}", self_id=self_id, seed=seed)
    return MemberService(
        options.member, reactor, disk=OsDisk(), rng=random.Random(seed),
        failed=end_process(reactor, lambda: exit_with(1)), listen=listen,
        make_admin=_admin_maker(options["admin"], reactor), admin=options["admin"],
    )
