# -*- test-case-name: tests.namesrv.test_config -*-
"""
Options of a name server, with RocketMQ's names in snake_case and its defaults, and how they are read.

A file of RocketMQ's name server works: options that tune its threads and buffers are ignored, and logged
once; options that would change an answer, and that we do not have, are refused unless they have their
default.

Knows values and their limits. Touches neither disk nor network.

Source: NamesrvConfig, NettyServerConfig (4.9.8, 5.3.3).
"""

from __future__ import annotations

from collections.abc import Mapping
from ipaddress import ip_address

import attrs
from attrs.validators import in_

from dledger.rocketmq.answering.answering import CONNECTIONS_MAX
from dledger.rocketmq.namesrv.routes import RouteLimits
from dledger.values.hosts import ChangeHosts, host_list
from dledger.values.option_fields import flag_option, number_option, path_option, text_option
from dledger.values.option_values import (
    converted,
    findings_of,
    made_of,
    our_name,
    raise_findings,
    unknown_option,
    with_values,
)
from dledger.values.tls_files import (
    CLIENT_AUTHS,
    TLS_MODES,
    TlsFiles,
    check_admin_options,
    check_tls_uses,
    tls_files,
)

NAME_SERVER_PORT = 9876

#: Versions of RocketMQ whose answers we can give.
VERSION_4, VERSION_5 = "4.9", "5.3"


@attrs.frozen(kw_only=True)
class NameServerConfig:
    """
    The options of one name server.

    @ivar listen_port: port for brokers and clients.
    @ivar bind_address: IP address of the interface; empty: all.
    @ivar kv_config_path: file of the KV configuration; nothing else is kept on disk.
    @ivar answers_as: the version of RocketMQ whose rules and answers count where 4.9 and 5.3 differ.
    @ivar order_message_enable: routes name the queues of ordered topics.
    @ivar return_order_topic_config_to_broker: brokers get the ordered topics when they register.
    @ivar delete_topic_with_broker_registration: a topic that a master's registration no longer has leaves
        the broker's routes. Recommended: else a topic that was deleted at its broker stays in the route, and
        a producer that follows it makes it again.
    @ivar enable_all_topic_list: the list of all topics is given.
    @ivar enable_topic_list: the lists of a cluster, and of units, are given.
    @ivar product_env_name: text without a meaning here; shown by getNamesrvConfig.
    @ivar scan_not_active_broker_interval: ms between two searches for brokers that have not registered.
    @ivar server_channel_max_idle_time_seconds: time without traffic after which a connection ends.
    @ivar connections_max: open connections.
    @ivar connections_share: percent of the connections for clients that one address may have.
    @ivar brokers_max, topics_max, routes_max, topic_bytes_max: see L{RouteLimits}.
    @ivar kv_entries_max, kv_bytes_max: namespaces and keys of the KV configuration; bytes of its texts.
    @ivar tls_mode: its port takes connections by TLS: none, beside plain ones, or no others.
    @ivar tls_client_auth: C{require}: the other end must show a certificate of C{tls_authority}.
    @ivar change_hosts: IP addresses or networks that may ask for changes, of topics, of the KV configuration,
        of options, besides this machine's loopback interface; C{*} for all, C{none} also without the
        loopback interface. Brokers register from everywhere.
    @ivar tls_certificate, tls_key, tls_authority: PEM files, see L{dledger.values.tls_files.TlsFiles}.
    @ivar admin_tls, admin_token_file, admin_token_reads, insecure: as of a
        L{member <dledger.values.ledger.config.DLedgerConfig>}.
    @ivar ignored: options of RocketMQ that were given and have no meaning here.
    """

    listen_port: int = number_option(NAME_SERVER_PORT, 0, 65535)
    bind_address: str = text_option("")
    kv_config_path: str = path_option("./dledger-namesrv-data/kvConfig.json")
    answers_as: str = attrs.field(default=VERSION_5, validator=in_((VERSION_4, VERSION_5)))
    order_message_enable: bool = flag_option(False)
    return_order_topic_config_to_broker: bool = flag_option(True)
    delete_topic_with_broker_registration: bool = flag_option(False)
    enable_all_topic_list: bool = flag_option(True)
    enable_topic_list: bool = flag_option(True)
    product_env_name: str = text_option("center")
    scan_not_active_broker_interval: int = number_option(5_000, 500, 60_000)
    server_channel_max_idle_time_seconds: int = number_option(120, 10, 3_600)
    connections_max: int = number_option(CONNECTIONS_MAX, 16, 1_000_000)
    connections_share: int = number_option(50, 1, 100)
    brokers_max: int = number_option(RouteLimits().brokers_max, 1, 100_000)
    topics_max: int = number_option(RouteLimits().topics_max, 1, 1_000_000)
    routes_max: int = number_option(RouteLimits().routes_max, 1, 5_000_000)
    topic_bytes_max: int = number_option(RouteLimits().topic_bytes_max, 1024, 12 * 1024 * 1024)
    kv_entries_max: int = number_option(50_000, 1, 1_000_000)
    kv_bytes_max: int = number_option(4 * 1024 * 1024, 1024, 8 * 1024 * 1024)
    tls_mode: str = attrs.field(default="disabled", validator=in_(TLS_MODES))
    tls_client_auth: str = attrs.field(default="none", validator=in_(CLIENT_AUTHS))
    change_hosts: tuple[str, ...] = attrs.field(default=(), converter=host_list)
    tls_certificate: str = path_option("")
    tls_key: str = path_option("")
    tls_authority: str = path_option("")
    admin_tls: bool = flag_option(False)
    admin_token_file: str = path_option("")
    admin_token_reads: bool = flag_option(False)
    insecure: bool = flag_option(False)
    ignored: tuple[str, ...] = ()

    @bind_address.validator
    def _is_an_address(self, attribute: attrs.Attribute[str], value: str) -> None:
        if value:
            try:
                ip_address(value)
            except ValueError:
                raise ValueError(
                    f"{attribute.name}={value!r}: write an IP address of this host, or nothing for all"
                ) from None

    @kv_config_path.validator
    def _is_a_path(self, attribute: attrs.Attribute[str], value: str) -> None:
        if not value or value.endswith("/") or "\0" in value:
            raise ValueError(f"{attribute.name}={value!r}: write the path of a file")

    @change_hosts.validator
    def _changers_are_hosts(self, attribute: attrs.Attribute[object], value: tuple[str, ...]) -> None:
        ChangeHosts(value, java_spelling(attribute.name))

    @tls_authority.validator
    def _tls_is_whole(self, _attribute: attrs.Attribute[str], value: str) -> None:
        check_tls_uses(
            self.tls_files, mode=self.tls_mode, client_auth=self.tls_client_auth,
            others={"admin_tls=true": self.admin_tls},
            hint="say tls_mode=permissive or enforcing for the port, admin_tls=true for the pages",
        )

    @admin_token_reads.validator
    def _admin_has_keys(self, _attribute: attrs.Attribute[bool], value: bool) -> None:
        check_admin_options(
            admin_tls=False, has_keys=False, token_file=self.admin_token_file, token_reads=value
        )

    @property
    def tls_files(self) -> TlsFiles | None:
        """The files of its TLS identity; None without TLS."""
        return tls_files(certificate=self.tls_certificate, key=self.tls_key, authority=self.tls_authority)

    @property
    def is_for_known_only(self) -> bool:
        """Whether everybody who is heard has shown a certificate."""
        return self.tls_mode == "enforcing" and self.tls_client_auth == "require"

    @property
    def is_5(self) -> bool:
        """Whether rules and answers are those of 5.x."""
        return self.answers_as == VERSION_5

    @property
    def limits(self) -> RouteLimits:
        """The bounds of the tables."""
        return RouteLimits(
            brokers_max=self.brokers_max, topics_max=self.topics_max, routes_max=self.routes_max,
            topic_bytes_max=self.topic_bytes_max,
        )


_KNOWN: Mapping[str, attrs.Attribute[object]] = {
    name: one for name, one in attrs.fields_dict(NameServerConfig).items() if name != "ignored"
}
ALIASES: Mapping[str, str] = {"kv": "kv_config_path"}

#: Options of RocketMQ that we have with this value only: another one would change an answer.
_FIXED: Mapping[str, str] = {
    "clusterTest": "false", "enableControllerInNamesrv": "false", "needWaitForService": "false",
    "notifyMinBrokerIdChanged": "false", "supportActingMaster": "false", "useTLS": "false",
}
#: Options of RocketMQ without a meaning here.
_IGNORED = frozenset("""
    clientRequestThreadPoolNums clientRequestThreadPoolQueueCapacity configBlackList configStorePath
    defaultThreadPoolNums defaultThreadPoolQueueCapacity enableShutdownGracefully rocketmqHome
    serverAsyncSemaphoreValue serverCallbackExecutorThreads serverNettyWorkerGroupEnable
    serverOnewaySemaphoreValue serverPooledByteBufAllocatorEnable serverSelectorThreads serverSocketBacklog
    serverSocketRcvBufSize serverSocketSndBufSize serverWorkerThreads shutdownWaitTimeSeconds
    unRegisterBrokerQueueCapacity useEpollNativeSelector waitSecondsForService writeBufferHighWaterMark
    writeBufferLowWaterMark
""".split())

#: Options that UPDATE_NAMESRV_CONFIG changes; the others need a restart.
CHANGEABLE = (
    "delete_topic_with_broker_registration", "enable_all_topic_list", "enable_topic_list",
    "order_message_enable", "product_env_name", "return_order_topic_config_to_broker",
    "scan_not_active_broker_interval",
)
#: Options that change while the server runs when its configuration is read again.
LIMITS = ("connections_max", "connections_share")
#: Options that RocketMQ does not let a client change.
BLACK_LIST = frozenset(("configBlackList", "configStorePath", "kvConfigPath", "rocketmqHome"))


def name_server_option(name: str) -> str | None:
    """
    Our name of an option in any spelling; None for one of RocketMQ that has no meaning here.

    @raise ValueError: the name is unknown; the text contains the nearest known name.
    """
    target = our_name(name, ALIASES, _KNOWN)
    if target in _KNOWN:
        return target
    if name in _IGNORED or name in _FIXED:
        return None
    raise unknown_option(name, target, _KNOWN)


def name_server_from_mapping(
    values: Mapping[str, object], base: NameServerConfig | None = None
) -> NameServerConfig:
    """
    Build a configuration from names in our or RocketMQ's spelling.

    @param values: strings are converted to the option's type.
    @param base: has the other options; None: the defaults.
    @raise ValueError: a name is unknown (the nearest known one is named), a value does not fit, or an option
        is given twice.
    """
    given: dict[str, object] = {}
    ignored, findings = [], []
    for name, value in values.items():
        try:
            target = name_server_option(name)
            if target is None:
                if name in _FIXED and str(value).strip().lower() != _FIXED[name]:
                    raise ValueError(
                        f"{name}={value}: only {_FIXED[name]} is possible here; see docs/namesrv.md"
                    )
                ignored.append(name)
                continue
            if target in given:
                raise ValueError(f"option {target!r} is given twice, once as {name!r}")
            text = value.strip() if isinstance(value, str) else value
            given[target] = converted(target, text, _KNOWN[target].default)
        except ValueError as error:
            findings.append(str(error))
    raise_findings(findings + findings_of(NameServerConfig, given))
    if base is not None:
        return with_values(base, given)
    return made_of(NameServerConfig, {"ignored": tuple(ignored), **given})


def java_spelling(name: str) -> str:
    """RocketMQ's spelling of one of our options."""
    head, *words = name.split("_")
    return head + "".join(word.title() for word in words)


def properties_text(config: NameServerConfig) -> str:
    """All options as lines C{name=value}, as getNamesrvConfig shows them."""
    lines = []
    for name in sorted(_KNOWN, key=java_spelling):
        value = getattr(config, name)
        if isinstance(value, tuple):
            value = ";".join(value)
        lines.append(f"{java_spelling(name)}={str(value).lower() if isinstance(value, bool) else value}\n")
    return "".join(lines)
