# -*- test-case-name: tests.twistd.test_namesrv -*-
"""
C{twistd -n dledger-namesrv}: options, and the name server that they describe.

Options of the command line override those of the configuration file, which override the defaults. Every
option of L{NameServerConfig} can be given, in our or in RocketMQ's spelling; a file of RocketMQ's
own name server works. An error is one line that also reports the allowed values.
"""

from __future__ import annotations

import importlib
import time
import tomllib
from collections.abc import Callable, Mapping

import attrs
from twisted.application.service import IService
from twisted.python.usage import UsageError

from dledger.base.disk.disk import OsDisk
from dledger.base.reactor import Reactor, whole_reactor
from dledger.base.serving.admin_ports import admin_finding
from dledger.base.serving.endpoints import listening_endpoint
from dledger.daemons.settings.options import (
    COMMAND_LINE,
    ENVIRONMENT,
    FILE,
    ConfigurationOptions,
    above,
    check_endpoint,
    end_process,
    endpoint_of,
    exit_with,
    usage_error,
)
from dledger.daemons.settings.rereading import Rereading, prepare_process
from dledger.daemons.settings.supervisor import Supervisor
from dledger.rocketmq.namesrv.config import NameServerConfig, name_server_from_mapping, name_server_option
from dledger.rocketmq.namesrv.service import NameServerService
from dledger.values.option_values import listed, read_properties, settings_of

#: Options of the command line that are no options of a name server: names in a configuration, and there.
_ENDPOINTS = {"listen": "listen", "admin": "admin", "admin_hosts": "admin-hosts"}


class Options(ConfigurationOptions):
    """Without any: port 9876 on all interfaces, KV configuration below ./dledger-namesrv-data."""

    table = "namesrv"

    optParameters = [
        ["listen", "l", None, "Port or endpoint for brokers and clients. [default: 9876]"],
        ["kv", "k", None, "File of the KV configuration. [default: ./dledger-namesrv-data/kvConfig.json]"],
        ["admin", "a", None, "Endpoint of the HTTP pages, such as tcp:8080:interface=127.0.0.1."],
        ["admin-hosts", None, None, "Further host names by which browsers may call them: a;b, or * for any."],
        ["config", "c", None, "File with options: TOML (*.toml; of several services: its table [namesrv]), "
         "or properties as RocketMQ's name server."],
    ]

    optFlags = [  # noqa: RUF012
        ["insecure", None, "The pages may listen beyond the loopback interface without TLS and a token."],
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
        given |= {"insecure": True} if self["insecure"] else {}
        settings, values = self.take(_ENDPOINTS, values, _plain)
        ports = self.take_ports({"listen": "listen_port"}, _ENDPOINTS, set(map(_plain, (*settings, *values))))
        try:
            self.name_server = name_server_from_mapping(above(ports, given, settings, values, plain=_plain))
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
            finding = admin_finding(
                self["admin"], is_secure=config.admin_tls, has_token=bool(config.admin_token_file),
                is_insecure=config.insecure,
            )
            if finding:
                raise UsageError(finding)
        endpoints = {name: self[option] or "" for name, option in _ENDPOINTS.items()}
        places = {
            COMMAND_LINE: {**given, **settings, **self.taken(COMMAND_LINE)},
            ENVIRONMENT: {**self.environment, **self.taken(ENVIRONMENT)},
            FILE: {**values, **self.taken(FILE)},
        }
        self.in_force = settings_of({**attrs.asdict(config), **endpoints}, places, _plain)

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
        shared = importlib.import_module("dledger.admin.sites.pages")
    except ModuleNotFoundError as error:
        raise UsageError(f"--admin: {error}") from None

    def make(server: NameServerService) -> IService:
        config = options.name_server
        access = shared.PagesAccess(
            hosts=listed(options["admin-hosts"] or ""), keys=server.keys if config.admin_tls else None,
            token_file=config.admin_token_file, reads_need_token=config.admin_token_reads,
        )
        administration: IService = pages.make_name_server_pages(
            server, options["admin"], reactor, access=access, settings=options.settings_now
        )
        return administration

    return make


def makeService(options: Options) -> NameServerService:
    """The service that C{options} describe; called by twistd."""
    from twisted.internet import reactor as global_reactor

    reactor = whole_reactor(global_reactor)
    rereading = Rereading(options)
    prepare_process(reactor, rereading.now)
    service = make_service(options, reactor)
    rereading.take = lambda again, _: service.reread(again.name_server)
    return service


def make_service(options: Options, reactor: Reactor) -> NameServerService:
    """The service that C{options} describe."""
    return NameServerService(
        options.name_server, reactor, listening_endpoint(reactor, options["listen"]), disk=OsDisk(),
        failed=end_process(reactor, lambda: exit_with(1)), wall_s=time.time,
        make_admin=_admin_maker(options, reactor), serving=Supervisor(reactor).serving,
    )
