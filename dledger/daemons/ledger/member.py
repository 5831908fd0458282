# -*- test-case-name: tests.twistd.test_member -*-
"""
C{twistd -n dledger}: options, and the service that they describe.

Options of the command line override those of the configuration file, which override the defaults. Every
option of L{DLedgerConfig} can be given, in our, Java's or RocketMQ's spelling. An error is one line that
also reports the allowed values.
"""

from __future__ import annotations

import importlib
import re
import time
import tomllib
from collections.abc import Callable, Iterable, Mapping
from functools import partial

import attrs
from twisted.application.service import IService
from twisted.logger import Logger
from twisted.python.usage import UsageError

import dledger
from dledger.base.disk.disk import OsDisk, read_boot_id
from dledger.base.log_lines import LogLevels
from dledger.base.reactor import Reactor, whole_reactor
from dledger.base.serving.admin_ports import admin_finding
from dledger.base.serving.endpoints import listening_endpoint
from dledger.core.driver import Driver
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
    usage_error,
)
from dledger.daemons.settings.rereading import Rereading, prepare_process
from dledger.daemons.settings.supervisor import Supervisor
from dledger.daemons.settings.tracing import make_spans
from dledger.machine.loading import hosting_of, load_factory
from dledger.machine.state_machine import MachineFactory
from dledger.machine.tracing import traced_factory
from dledger.node.member_process import MakeMachine, MemberEndpoints, MemberExtras, MemberProcess
from dledger.node.node import Node
from dledger.node.service import MemberService
from dledger.node.work.tracing import OpenSpans, TracedDriver
from dledger.values.addresses import parse_address
from dledger.values.ledger.config import (
    ALIASES,
    JAVA_FILE_DEFAULTS,
    DLedgerConfig,
    broker_warning,
    from_mapping,
    read_java_file,
)
from dledger.values.option_fields import is_fixed
from dledger.values.option_values import Setting, raise_findings, settings_of

#: Command line options, and their names in a configuration.
_NAMES = {
    "node-id": "self_id",
    "peers": "peers",
    "store": "store_base_dir",
    "group": "group",
    "flush-disk-type": "flush_disk_type",
    "wire": "wire",
}

#: Further options of a configuration file, beside those of a member.
_ENDPOINTS = ("listen", "admin")
_MACHINE = "machine"


class Options(ConfigurationOptions):
    """Without any: a log with one member, in ./dledger-data, on 127.0.0.1:20911."""

    table = "member"

    optParameters = [
        ["node-id", "i", None, "Id of this member, one of --peers. [default: n0]"],
        ["peers", "p", None, "All members: id-host:port;id-host:port;... [default: n0-127.0.0.1:20911]"],
        ["store", "s", None, "Directory; files are in its dledger-<node-id>. [default: ./dledger-data]"],
        ["group", "g", None, "Name of the group. [default: default]"],
        ["config", "c", None, "File with options, in any of the known spellings: TOML (of several services: "
         "its table [member]), or Java's properties (*.properties, *.conf), with Java's defaults for "
         "retention."],
        ["listen", "l", None, "Endpoint to listen on. [default: the port of this member's own peer address]"],
        ["admin", "a", None, "Endpoint of the HTTP administration, such as tcp:8080:interface=127.0.0.1."],
        ["machine", "m", None, "State machine to run here: package.module:factory, see docs/machines.md."],
        ["flush-disk-type", "f", None, "async: acks before fsync (as Java); sync: after. [default: async]"],
        ["wire", "w", None, "Frames between members: auto, remoting or binary. [default: auto]"],
    ]

    optFlags = [  # noqa: RUF012
        ["insecure", None, "The administration may listen beyond the loopback interface without TLS and a "
         "token."],
        ["bootstrap", None, "This empty directory begins a new group: do not wait until all members have "
         "voted. Once, and never for a member whose disk was lost."],
    ]

    def __init__(self) -> None:
        super().__init__()
        self.member: DLedgerConfig = DLedgerConfig()
        self.warning = ""
        self.machine: MachineFactory | None = None

    def opt_set(self, text: str) -> None:
        """Any other option of a member, as name=value; may be repeated."""
        self.keep_setting(text)

    def postOptions(self) -> None:
        """Combine all given options; C{self.member} and C{self.machine} are the result."""
        values = self.from_file(self._parse_file, tables=("peers", "tls"))
        findings: list[str] = []
        given = self.given({**_NAMES, **{name: name for name in (*_ENDPOINTS, _MACHINE)}})
        given |= {name: True for name in ("bootstrap", "insecure") if self[name]}
        try:
            values.update(_tls_options(values.pop("tls", {})))
        except ValueError as error:
            findings.append(str(error))
        places = {
            COMMAND_LINE: {**given, **self.settings}, ENVIRONMENT: self.environment, FILE: values,
        }
        java: Mapping[str, object] = JAVA_FILE_DEFAULTS if self._is_java else {}
        merged = above(given, self.settings, self.environment, values, java, plain=_plain)
        for name in _ENDPOINTS:
            try:
                self[name] = endpoint_of(name, merged.pop(name, None) or "")
                if self[name]:
                    check_endpoint(name, self[name], "tcp:20911:interface=127.0.0.1")
            except UsageError as error:
                findings.append(str(error))
                self[name] = ""
        named = merged.pop(_MACHINE, None)
        try:
            self.machine = None if named is None else load_factory(str(named))
        except ValueError as error:
            findings.append(str(error))
        try:
            self.member = from_mapping(merged)
        except (ValueError, TypeError) as error:
            findings += str(usage_error(error)).split("\n")
        else:
            self.warning = broker_warning(merged, self.member)
            findings += self._port_taken_twice()
            findings += self._admin_findings()
        try:
            raise_findings(findings)
        except ValueError as error:
            raise UsageError(str(error)) from None
        self[_MACHINE] = named or ""
        in_force = {**{name: self[name] for name in (*_ENDPOINTS, _MACHINE)}, **attrs.asdict(
            self.member, filter=lambda field, _: not is_fixed(field)
        )}
        self.in_force = settings_of(in_force, {**places, "default of a Java file": java}, _plain)

    def _port_taken_twice(self) -> list[str]:
        own = self["listen"] or str(parse_address(self.member.peers[self.member.self_id]).port)
        port = _port_of(own)
        if port and port == _port_of(self["admin"]):
            return [f"--admin {self['admin']!r} has the port of the log itself, {port}"]
        return []

    def _admin_findings(self) -> list[str]:
        member = self.member
        finding = self["admin"] and admin_finding(
            self["admin"], is_secure=member.admin_tls, has_token=bool(member.admin_token_file),
            is_insecure=member.insecure,
        )
        return [finding] if finding else []

    @property
    def _is_java(self) -> bool:
        return (self["config"] or "").endswith((".properties", ".conf"))

    def _parse_file(self, text: str) -> Mapping[str, object]:
        return read_java_file(text) if self._is_java else tomllib.loads(text)


def _port_of(endpoint: str) -> str:
    """The port of a number or a TCP endpoint; empty if there is none, or the listener chooses it."""
    found = re.match(r"(?:tcp6?:)?(?:port=)?([1-9]\d*)(?::|$)", endpoint)
    return found[1] if found else ""


def _tls_options(table: object) -> dict[str, object]:
    """The options of a table C{[tls]}: C{certificate} there is C{tls_certificate} elsewhere."""
    if not isinstance(table, dict):
        raise ValueError(f"tls={table!r}: write a table [tls] with certificate, key and authority")
    return {f"tls_{name}": value for name, value in table.items()}


def _plain(name: str) -> str:
    return ALIASES.get(name, name).replace("_", "").lower()


def _admin_maker(
    endpoint: str, reactor: Reactor, settings: Iterable[Setting], levels: LogLevels | None
) -> Callable[[Node], IService] | None:
    if not endpoint:
        return None
    try:
        resource = importlib.import_module("dledger.admin.resource")
        pages = importlib.import_module("dledger.admin.sites.pages")
    except ModuleNotFoundError as error:
        raise UsageError(f"--admin: {error}") from None

    def make(node: Node) -> IService:
        config = node.config
        access = pages.PagesAccess(
            hosts=(*config.admin_hosts, *config.peers.values()),
            keys=node.keys if config.admin_tls else None, token_file=config.admin_token_file,
            reads_need_token=config.admin_token_reads, levels=levels,
            contents_need_token=bool(config.tls_certificate or config.client_token_file),
        )
        service = resource.make_admin_service(
            node, endpoint, reactor, wall_s=time.time, access=access, settings=settings
        )
        node.about.reported_admin = service.reported_address
        administration: IService = service
        return administration

    return make


def _machine_maker(factory: MachineFactory | None, disk: OsDisk) -> MakeMachine | None:
    return None if factory is None else lambda node, host: hosting_of(node, factory, host, disk=disk)


def _traced(config: DLedgerConfig, reactor: Reactor, *, has_machine: bool) -> OpenSpans | None:
    """The spans of a member; None if it has none."""
    if not config.tracing:
        return None
    spans = make_spans(reactor, {"group": config.group, "member": config.self_id})
    return OpenSpans(spans, has_machine=has_machine)


def makeService(options: Options) -> MemberService:
    """The service that C{options} describe; called by twistd."""
    from twisted.internet import reactor as global_reactor

    reactor = whole_reactor(global_reactor)
    rereading = Rereading(options)
    prepare_process(reactor, rereading.now)
    service = make_service(options, reactor)
    rereading.take = lambda again, _: service.reread(again.member)
    return service


def make_service(options: Options, reactor: Reactor) -> MemberService:
    """The service that C{options} describe."""
    if options.warning:
        Logger().warn("{warning}", warning=options.warning)
    listen = listening_endpoint(reactor, options["listen"]) if options["listen"] else None
    disk, factory = OsDisk(), options.machine
    trace = _traced(options.member, reactor, has_machine=factory is not None)
    if trace is not None and factory is not None:
        factory = traced_factory(factory, trace)
    return MemberService(
        options.member,
        MemberProcess(
            reactor=reactor, disk=disk, rng=seeded_chance(f"member {options.member.self_id}"),
            failed=end_process(reactor, lambda: exit_with(1)), boot_id=read_boot_id(),
            serving=Supervisor(reactor).serving,
        ),
        MemberEndpoints(listen=listen),
        MemberExtras(
            make_admin=_admin_maker(options["admin"], reactor, options.settings_now, options.levels),
            admin=options["admin"], make_machine=_machine_maker(factory, disk),
            make_driver=Driver if trace is None else partial(TracedDriver, trace=trace),
            version=dledger.__version__,
        ),
    )
