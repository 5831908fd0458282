# -*- test-case-name: tests.twistd.test_namesrv -*-
"""
C{twistd -n dledger-namesrv}: options, and the name server that they describe.

Options of the command line override those of the configuration file, which override the defaults. Every
option of L{NameServerConfig} can be given, in our or in RocketMQ's spelling; a file of RocketMQ's
own name server works. An error is one line that also tells the allowed values.
"""

from __future__ import annotations

import importlib
import time
import tomllib
from collections.abc import Callable, Mapping
from typing import Any

import attrs
from twisted.application.service import IService
from twisted.internet.endpoints import serverFromString
from twisted.python.usage import UsageError

from dledger.base.disk.disk import OsDisk
from dledger.base.option_values import read_properties, settings_of
from dledger.base.reactor import Reactor
from dledger.namesrv.config import NameServerConfig, name_server_from_mapping, name_server_option
from dledger.namesrv.service import NameServerService
from dledger.twistd.common import (
    COMMAND_LINE,
    FILE,
    ConfigurationOptions,
    above,
    check_endpoint,
    end_process,
    endpoint_of,
    exit_with,
    prepare_process,
    tcp_endpoint,
    usage_error,
)


class Options(ConfigurationOptions):
    """Without any: port 9876 on all interfaces, KV configuration below ./dledger-namesrv-data."""

    optParameters = [
        ["listen", "l", None, "Port or endpoint for brokers and clients. [default: 9876]"],
        ["kv", "k", None, "File of the KV configuration. [default: ./dledger-namesrv-data/kvConfig.json]"],
        ["admin", "a", None, "Endpoint of the HTTP pages, such as tcp:8080:interface=127.0.0.1."],
        ["admin-hosts", None, "", "Further host names by which browsers may call them: a;b, or * for any."],
        ["config", "c", None, "File with options: TOML (*.toml), or properties as RocketMQ's name server."],
    ]

    def __init__(self) -> None:
        super().__init__()
        self.name_server: NameServerConfig = NameServerConfig()

    def opt_set(self, text: str) -> None:
        """Any other option of a name server, as name=value; may be repeated."""
        self.keep_setting(text)

    def postOptions(self) -> None:
        """Combine all given options into C{self.name_server}; C{listen} becomes an endpoint."""
        values = self.from_file(self._parse_file)
        given = self.given({"kv": "kv_config_path"})
        port = None
        if self["listen"] is not None:
            self["listen"], port = tcp_endpoint("listen", self["listen"])
            given["listen_port"] = port
        try:
            self.name_server = name_server_from_mapping(above(given, self.settings, values, plain=_plain))
        except (ValueError, TypeError) as error:
            raise usage_error(error) from None
        config = self.name_server
        if self["listen"] is None:
            interface = config.bind_address.replace(":", "\\:")
            kind = "tcp6" if interface and ":" in interface else "tcp"
            self["listen"] = f"{kind}:{config.listen_port}" + (f":interface={interface}" if interface else "")
        elif config.bind_address:
            raise UsageError("bind_address and --listen both name an interface: give one of them")
        if self["admin"]:
            self["admin"] = endpoint_of("admin", self["admin"])
            check_endpoint("admin", self["admin"], "tcp:8080:interface=127.0.0.1")
            if self["admin"].split(":")[1:2] == [str(config.listen_port)]:
                raise UsageError(f"--admin {self['admin']!r} has the port of the name server itself")
        in_force = {**attrs.asdict(config), "listen": self["listen"], "admin": self["admin"] or ""}
        given |= self.given({"listen": "listen", "admin": "admin"})
        places = {COMMAND_LINE: {**given, **self.settings}, FILE: values}
        self.in_force = settings_of(in_force, places, _plain)

    def _parse_file(self, text: str) -> Mapping[str, object]:
        return tomllib.loads(text) if self["config"].endswith(".toml") else read_properties(text)


def _plain(name: str) -> str:
    try:
        return name_server_option(name) or name
    except ValueError:
        return name  # from_mapping reports it


def _admin_maker(options: Options, reactor: Reactor) -> Callable[[NameServerService], IService] | None:
    if not options["admin"]:
        return None
    try:
        pages = importlib.import_module("dledger.admin.name_server")
    except ModuleNotFoundError as error:
        raise UsageError(f"--admin: {error}") from None

    def make(server: NameServerService) -> IService:
        service: Any = pages.make_name_server_pages(
            server, options["admin"], reactor, wall_s=time.time,
            hosts=[one.strip() for one in options["admin-hosts"].split(";") if one.strip()],
            settings=options.in_force,
        )
        administration: IService = service
        return administration

    return make


def makeService(options: Options) -> NameServerService:
    """The service that C{options} describe; called by twistd."""
    from twisted.internet import reactor

    prepare_process(reactor)
    return make_service(options, reactor)


def make_service(options: Options, reactor: Reactor) -> NameServerService:
    """The service that C{options} describe."""
    return NameServerService(
        options.name_server, reactor, serverFromString(reactor, options["listen"]), disk=OsDisk(),
        failed=end_process(reactor, lambda: exit_with(1)), make_admin=_admin_maker(options, reactor),
    )
