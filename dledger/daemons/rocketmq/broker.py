# -*- test-case-name: tests.twistd.test_broker -*-
"""
C{twistd -n dledger-broker}: options, and the broker that they describe.

Options of the command line override those of the configuration file, which override the defaults. Every
option of L{BrokerConfig}, of its store and of its replication can be given, in our or in RocketMQ's spelling;
a configuration file of RocketMQ's own broker works. An error is one line that also reports the allowed
values.
"""

from __future__ import annotations

import importlib
import re
import socket
import sys
import time
import tomllib
from collections.abc import Callable, Mapping
from functools import partial
from ipaddress import ip_network

import attrs
from twisted.application.service import IService, MultiService, Service
from twisted.internet.abstract import isIPAddress, isIPv6Address
from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IStreamServerEndpoint
from twisted.python.usage import UsageError

from dledger.base.disk.disk import OsDisk, read_boot_id
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
    seeded_chance,
    tcp_endpoint,
    usage_error,
    with_port,
)
from dledger.daemons.settings.rereading import Rereading, prepare_process
from dledger.daemons.settings.supervisor import Supervisor
from dledger.daemons.settings.tracing import make_spans
from dledger.raft_broker.config import member_config
from dledger.raft_broker.service import RaftBrokerService
from dledger.rocketmq.broker.options.config import (
    FAST_PORT_DISTANCE,
    BrokerConfig,
    all_options,
    broker_from_mapping,
    option_name,
)
from dledger.rocketmq.broker.service import BrokerPorts, BrokerProcess, BrokerService
from dledger.rocketmq.namesrv.config import NAME_SERVER_PORT, NameServerConfig
from dledger.rocketmq.namesrv.service import NameServerService
from dledger.rocketmq.replication.allowed import ANYONE
from dledger.values.addresses import Address
from dledger.values.option_values import listed, read_properties, settings_of

DEFAULT_STORE = "./dledger-broker-data"

#: Command line options, and their names in a configuration.
_NAMES = {
    "role": "broker_role",
    "store": "store_path_root_dir",
    "name": "broker_name",
    "cluster": "broker_cluster_name",
    "broker-id": "broker_id",
    "ha-master": "ha_master_address",
    "namesrv": "namesrv_addr",
    "flush": "flush_disk_type",
}

#: Options of the command line that are no options of a broker: names in a configuration, and there.
_ENDPOINTS = {
    "listen": "listen", "ha_listen": "ha-listen", "admin": "admin", "admin_hosts": "admin-hosts",
    "with_namesrv": "with-namesrv", "namesrv_listen": "namesrv-listen",
}
_PORTS = {"listen": "listen_port", "ha_listen": "ha_listen_port"}


class Options(ConfigurationOptions):
    """Without any: an asynchronous master in ./dledger-broker-data, on RocketMQ's ports."""

    table = "broker"

    optParameters = [
        ["role", "r", None, "async-master, sync-master or slave. [default: async-master]"],
        ["store", "s", None, f"Directory of the store. [default: {DEFAULT_STORE}]"],
        ["listen", "l", None, "Port or endpoint for clients; slaves also use port - 2. [default: 10911]"],
        ["ha-listen", None, None, "Port or endpoint for slaves. [default: one above --listen]"],
        ["ha-master", "m", None, "Of a slave: host:port of the master's --ha-listen. [default: name server]"],
        ["namesrv", "n", None, "Name servers, host:port;host:port. [default: none]"],
        ["name", None, None, "Name of the broker, one for a master and its slaves. [default: this host's]"],
        ["cluster", None, None, "Name of the cluster. [default: DefaultCluster]"],
        ["broker-id", "i", None, "0 for a master, above 0 for slaves. [default: 0, or 1 for a slave]"],
        ["flush", "f", None, "async: answers before fsync; sync: after. [default: async]"],
        ["config", "c", None, "File with options: TOML (*.toml; of several services: its table [broker]), or "
         "properties as for RocketMQ's brokers."],
        ["namesrv-listen", None, None, "With --with-namesrv: its port or endpoint. [default: 9876]"],
        ["admin", "a", None, "Endpoint of the HTTP pages, such as tcp:8080:interface=127.0.0.1."],
        ["admin-hosts", None, None, "Further host names by which browsers may call them: a;b, or * for any."],
    ]

    optFlags = [  # noqa: RUF012
        ["with-namesrv", None, "Run a name server in this process, and register with it, too."],
        ["insecure", None, "The pages may listen beyond the loopback interface without TLS and a token."],
    ]

    def __init__(self) -> None:
        super().__init__()
        self.broker: BrokerConfig = broker_from_mapping({"store": DEFAULT_STORE})
        self.name_server: NameServerConfig | None = None

    def opt_set(self, text: str) -> None:
        """Any other option of a broker, as name=value; may be repeated."""
        self.keep_setting(text)

    def postOptions(self) -> None:
        """
        Combine all given options into C{self.broker}; C{listen} and C{ha-listen} become endpoints.

        @raise SystemExit: an error, below twistd, which would print its whole usage before it.
        """
        try:
            self._combine()
        except UsageError as error:
            if getattr(self, "parent", None) is None:
                raise
            sys.stderr.write(f"twistd dledger-broker: {error}\n")
            raise SystemExit(1) from None

    def _combine(self) -> None:
        values = self.from_file(self._parse_file)
        given = self.given(_NAMES)
        given |= {"insecure": True} if self["insecure"] else {}
        settings, values = self.take(_ENDPOINTS, values, _plain)
        ports = self.take_ports(_PORTS, _ENDPOINTS, set(map(_plain, (*settings, *values))))
        defaults = {"broker_name": _host_name(), "store_path_root_dir": DEFAULT_STORE}
        try:
            self.broker = broker_from_mapping(above(ports, given, settings, values, defaults, plain=_plain))
            if self.broker.raft.enable_dleger_commit_log:
                member_config(self.broker)
        except (ValueError, TypeError) as error:
            raise usage_error(error) from None
        if self["listen"] is None:
            self["listen"] = f"tcp:{self.broker.listen_port}"
        if self["ha-listen"] is None:
            self["ha-listen"] = with_port(self["listen"], self.broker.ha_port)
        if not self.broker.broker_ip1:
            self.broker = attrs.evolve(self.broker, broker_ip1=_own_address(self["listen"]))
        self.broker = _resolved(self.broker)
        self._add_name_server()
        self._check_admin()
        endpoints = {name: self[option] or "" for name, option in _ENDPOINTS.items()}
        in_force = {**all_options(self.broker), **endpoints, "with_namesrv": bool(self["with-namesrv"])}
        places = {
            COMMAND_LINE: {**given, **settings, **self.taken(COMMAND_LINE)},
            ENVIRONMENT: {**self.environment, **self.taken(ENVIRONMENT)},
            FILE: {**values, **self.taken(FILE)},
        }
        self.in_force = settings_of(in_force, places, _plain)

    def _ports(self) -> list[int]:
        """Those of clients and slaves; without those that the system assigns."""
        broker = self.broker
        ports = (broker.listen_port, broker.ha_port, broker.listen_port - FAST_PORT_DISTANCE)
        return sorted(port for port in ports if port > 0)

    def _check_admin(self) -> None:
        """@raise UsageError: the pages cannot, or must not, be served as they are asked for."""
        if not self["admin"]:
            return
        self["admin"] = endpoint_of("admin", self["admin"])
        check_endpoint("admin", self["admin"], "tcp:8080:interface=127.0.0.1")
        if self["admin"].split(":")[1:2][0] in map(str, self._ports()):
            raise UsageError(f"--admin {self['admin']!r}: the broker itself has the ports {self._ports()}")
        finding = admin_finding(
            self["admin"], is_secure=self.broker.admin_tls, has_token=bool(self.broker.admin_token_file),
            is_insecure=self.broker.insecure,
        )
        if finding:
            raise UsageError(finding)

    def _add_name_server(self) -> None:
        """The name server of --with-namesrv, at which the broker registers, too."""
        if not self["with-namesrv"]:
            if self["namesrv-listen"]:
                raise UsageError("--namesrv-listen belongs to --with-namesrv")
            return
        interface = re.search(r":interface=.*", self["listen"])
        said = self["namesrv-listen"] or f"tcp:{NAME_SERVER_PORT}{interface[0] if interface else ''}"
        self["namesrv-listen"], port = tcp_endpoint("namesrv-listen", said)
        if not port:
            raise UsageError("--namesrv-listen 0: write a port, as the broker must know it")
        if port in self._ports():
            raise UsageError(f"--namesrv-listen {port}: the broker itself has the ports {self._ports()}")
        own = str(Address(_own_address(self["namesrv-listen"]), port))
        servers = dict.fromkeys((own, *self.broker.name_servers))
        self.broker = attrs.evolve(self.broker, namesrv_addr=";".join(servers))
        path = f"{self.broker.store.store_path_root_dir}/namesrv/kvConfig.json"
        broker = self.broker
        if broker.tls_mode == "enforcing" and not broker.tls_namesrv_enable:
            raise UsageError(
                "--with-namesrv: with tls_mode=enforcing its name server takes TLS only, so say "
                "tls_namesrv_enable=true; the broker could not register otherwise"
            )
        keys = broker.tls_files if broker.tls_mode != "disabled" else None
        self.name_server = NameServerConfig(
            listen_port=port, kv_config_path=path, tls_mode=broker.tls_mode,
            tls_client_auth=broker.tls_client_auth, tls_certificate=keys.certificate if keys else "",
            tls_key=keys.key if keys else "", tls_authority=keys.authority if keys else "",
            change_hosts=broker.change_hosts,
        )

    def _parse_file(self, text: str) -> Mapping[str, object]:
        return tomllib.loads(text) if self["config"].endswith(".toml") else read_properties(text)


def _plain(name: str) -> str:
    try:
        return option_name(name) or name
    except ValueError:
        return name  # from_mapping reports it


def _host_name() -> str:
    name = re.sub(r"[^a-zA-Z0-9_.-]", "-", socket.gethostname())[:127]
    return name or "DEFAULT_BROKER"


def _own_address(listen: str) -> str:
    """Address of this broker for others: the interface of C{listen}, or that of the default route."""
    match = re.search(r":interface=((?:\\:|[^:])+)", listen)
    interface = match[1].replace("\\:", ":") if match else ""
    if interface not in ("0.0.0.0", "::") and (isIPAddress(interface) or isIPv6Address(interface)):
        return interface
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # an address for documentation; nothing is sent
            return str(probe.getsockname()[0])
        except OSError:
            return "127.0.0.1"


def _resolved(broker: BrokerConfig) -> BrokerConfig:
    """The same with addresses for the names of hosts. @raise UsageError: a name has none."""
    found: list[str] = []
    for host in broker.ha.ha_allowed_hosts:
        is_name = host != ANYONE and not re.fullmatch(r"[0-9.]+(/[0-9]+)?|[0-9a-fA-F:.%]*:.*", host)
        if not is_name and host != ANYONE:
            try:
                ip_network(host.partition("%")[0], strict=False)
            except ValueError as error:
                raise UsageError(f"ha_allowed_hosts: {error}; write addresses, names, or networks such as "
                                 "10.0.0.0/8") from None
        found += _addresses_of("ha_allowed_hosts", host) if is_name else [host]
    return attrs.evolve(
        broker, ha=attrs.evolve(broker.ha, ha_allowed_hosts=found),  # type: ignore[arg-type]
        broker_ip1=_own("broker_ip1", broker.broker_ip1), broker_ip2=_own("broker_ip2", broker.broker_ip2),
    )


def _own(option: str, host: str) -> str:
    is_address = not host or isIPAddress(host) or isIPv6Address(host)
    return host if is_address else _addresses_of(option, host)[0]


def _addresses_of(option: str, name: str) -> list[str]:
    """Addresses of a host; IPv4 first, as clients of RocketMQ expect."""
    try:
        found = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:  # a name with an empty part cannot even be asked for
        raise UsageError(f"{option}={name!r}: the name has no address: {error}") from None
    found.sort(key=lambda one: one[0] != socket.AF_INET)
    return list(dict.fromkeys(str(one[4][0]) for one in found))


def makeService(options: Options) -> BrokerService | RaftBrokerService | BrokerWithNameServer:
    """The service that C{options} describe; called by twistd."""
    from twisted.internet import reactor as global_reactor

    reactor = whole_reactor(global_reactor)
    rereading = Rereading(options)
    prepare_process(reactor, rereading.now)
    service = make_service(options, reactor)
    rereading.take = partial(take_options, service)
    if options.name_server is None:
        return service
    return BrokerWithNameServer(
        _name_server(options.name_server, options["namesrv-listen"], reactor), service
    )


def take_options(
    service: BrokerService | RaftBrokerService, options: Options, changed: Mapping[str, object]
) -> frozenset[str]:
    """
    Let a broker take those options that may change while it runs.

    @param options: as they are written now. @param changed: those of them that are others than before.
    @return: the names of those that it takes.
    @raise ValueError: they do not fit together; it takes none.
    """
    if isinstance(service, RaftBrokerService):
        return service.reread(options.broker, changed)
    return service.reread(changed)


class BrokerWithNameServer(MultiService):
    """Both in one process. The name server starts first and stops last, as the broker unregisters."""

    def __init__(self, name_server: Service, broker: Service) -> None:
        super().__init__()
        self._both = (name_server, broker)
        for service in self._both:
            service.setServiceParent(self)

    def stopService(self) -> Deferred[None]:
        """See L{IService.stopService}."""
        return Deferred.fromCoroutine(self._stop())

    async def _stop(self) -> None:
        Service.stopService(self)
        for service in reversed(self._both):
            ended = service.stopService()
            if ended is not None:
                await ended


def _name_server(config: NameServerConfig, listen: str, reactor: Reactor) -> NameServerService:
    return NameServerService(
        config, reactor, listening_endpoint(reactor, listen), disk=OsDisk(),
        failed=end_process(reactor, lambda: exit_with(1)), wall_s=time.time,
    )


def _admin_maker(
    options: Options, reactor: Reactor, member: Callable[[], object] | None = None,
    transfer: Callable[[str], object] | None = None,
) -> Callable[[BrokerService], IService] | None:
    """
    @param member: returns the C{NodeStatus} of the member that keeps the log, if one does.
    @param transfer: lets another member of its group lead.
    """
    if not options["admin"]:
        return None
    try:
        pages, shared = map(importlib.import_module, ("dledger.admin.broker", "dledger.admin.sites.pages"))
    except ModuleNotFoundError as error:
        raise UsageError(f"--admin: {error}") from None

    def make(broker: BrokerService) -> IService:
        access = shared.PagesAccess(
            hosts=listed(options["admin-hosts"] or ""), keys=broker.keys if broker.config.admin_tls else None,
            token_file=broker.config.admin_token_file, reads_need_token=broker.config.admin_token_reads,
            contents_need_token=broker.config.acl_enable or bool(broker.config.tls_certificate),
        )
        administration: IService = pages.make_broker_pages(
            broker, options["admin"], reactor, wall_s=time.time, access=access, settings=options.settings_now,
            member=member, transfer=transfer,
        )
        return administration

    return make


def make_service(options: Options, reactor: Reactor) -> BrokerService | RaftBrokerService:
    """The service that C{options} describe."""
    broker = options.broker
    fast: IStreamServerEndpoint | None = None
    if broker.listen_port > FAST_PORT_DISTANCE:
        fast = listening_endpoint(reactor, with_port(
            options["listen"], broker.listen_port - FAST_PORT_DISTANCE
        ))
    ports = BrokerPorts(
        clients=listening_endpoint(reactor, options["listen"]), fast=fast,
        slaves=listening_endpoint(reactor, options["ha-listen"]),
    )
    process = BrokerProcess(
        reactor=reactor, disk=OsDisk(), rng=seeded_chance(f"broker {broker.broker_name}"), wall_s=time.time,
        failed=end_process(reactor, lambda: exit_with(1)), serving=Supervisor(reactor).serving,
    )
    service: BrokerService | RaftBrokerService
    if broker.raft.enable_dleger_commit_log:
        both = service = RaftBrokerService(
            broker, process, ports, boot_id=read_boot_id(),
            make_admin=_admin_maker(
                options, reactor, lambda: both.member_status(), lambda to: both.transfer(to)
            ),
        )
        traced = both.broker
    else:
        traced = service = BrokerService(
            broker, process, ports, make_admin=_admin_maker(options, reactor),
        )
    if broker.tracing:
        traced.trace_with(make_spans(
            reactor, {"cluster": broker.broker_cluster_name, "broker": broker.broker_name}
        ))
    return service
