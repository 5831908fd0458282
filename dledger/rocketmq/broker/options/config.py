# -*- test-case-name: tests.broker.common.test_config -*-
"""
Options of a broker, with RocketMQ's names in snake_case and its defaults, and how they are made of what a
file says: of its own options, those of its store, and those of replication.

Knows values and their limits. Touches neither disk nor network.

Source: BrokerConfig, MessageStoreConfig, NettyServerConfig (4.9.8, 5.3.3).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from ipaddress import ip_address

import attrs
from attrs.validators import in_

from dledger.rocketmq.broker.options.raft_options import RaftOptions
from dledger.rocketmq.broker.options.rocketmq_options import check_ignored, is_rocketmq_option
from dledger.rocketmq.broker.options.role import MASTER_ID, BrokerRole
from dledger.rocketmq.replication.config import SLAVE, HAConfig
from dledger.rocketmq.store.records.store_config import EXPIRY_OPTIONS, StoreConfig
from dledger.values.addresses import Address, parse_address
from dledger.values.hosts import ChangeHosts, host_list
from dledger.values.option_fields import (
    INT_MAX,
    flag_option,
    number_option,
    options_of,
    path_option,
    text_option,
)
from dledger.values.option_values import (
    converted,
    findings_of,
    listed,
    made_of,
    our_name,
    raise_findings,
    unknown_option,
    with_values,
)
from dledger.values.tls_files import (
    CLIENT_AUTHS,
    SLAVE_AUTHS,
    TLS_MODES,
    TlsFiles,
    check_admin_options,
    check_tls_uses,
    tls_files,
)

LISTEN_PORT = 10911

#: Slaves ask for topics at the listen port minus this number.
FAST_PORT_DISTANCE = 2

_NAME = re.compile(r"[%|a-zA-Z0-9_.-]{1,127}")


#: A name that may have an address: not only digits and points.
_HOST = re.compile(r"(?=[^a-zA-Z]*[a-zA-Z])[a-zA-Z0-9]([a-zA-Z0-9.-]{0,252}[a-zA-Z0-9])?")


def _addresses(attribute: str, text: str) -> tuple[str, ...]:
    """The addresses in C{a;b}. @raise ValueError: a part is not C{host:port}."""
    found = listed(text)
    for part in found:
        try:
            parse_address(part)
        except ValueError as error:
            raise ValueError(f"{attribute}={error}") from None
    return found


def _set_option(config: object, attribute: attrs.Attribute[object], value: object) -> object:
    """Hook of attrs: only L{change_options} may set an option, and only these."""
    if attribute.name not in RUN_TIME_OPTIONS:
        raise attrs.exceptions.FrozenAttributeError
    return attrs.setters.validate(config, attribute, value)


@attrs.define(kw_only=True, on_setattr=_set_option)
class BrokerConfig:
    """
    The options of one broker. Times are in milliseconds, except where the name ends in C{_sec}. Those of
    L{RUN_TIME_OPTIONS} may change while it runs, so their users ask for them each time.

    @ivar store, ha, raft: the options of its store, of replication by slaves, and of a raft log.
    @ivar broker_name, broker_cluster_name: the same for a master and its slaves.
    @ivar broker_id: 0 for a master, above 0 for a slave.
    @ivar broker_ip1: address for clients, registered with name servers, or a host's name, whose address is
        looked up at the start; empty: detected at the start.
    @ivar broker_ip2: address of its HA port for slaves; empty: as C{broker_ip1}.
    @ivar listen_port: port for clients; slaves also ask at C{listen_port - 2}.
    @ivar ha_listen_port: port for slaves; 0: C{listen_port + 1}.
    @ivar ha_master_address: C{host:port} of a master's HA port; empty: a name server supplies it.
    @ivar master_address: C{host:port} of a master's listen port; empty: a name server supplies it, or else
        the port below C{ha_master_address}.
    @ivar namesrv_addr: C{host:port} of each name server, separated by semicolons; empty for none.
    @ivar auto_create_topic_enable: a message creates its topic, with the settings of C{TBW102}.
    @ivar auto_create_subscription_group: a consumer creates its group with its first request.
    @ivar cluster_topic_enable: clients may use the topic with the name of the cluster.
    @ivar default_topic_queue_nums: queues of C{TBW102}, the maximum for a topic that a message creates.
    @ivar connections_share: percent of the connections for clients that one address may have.
    @ivar topics_max: number of topics from which on no message makes another one; an administrator may.
    @ivar broker_permission: sum of 4 (read) and 2 (write) for the whole broker.
    @ivar register_name_server_period: time between two registrations with a name server.
    @ivar flush_consumer_offset_interval: time between two writes of committed offsets.
    @ivar long_polling_enable: a consumer may wait for messages that do not exist yet.
    @ivar enable_property_filter: consumers may filter by expressions of SQL 92.
    @ivar enable_mixed_message_type: a topic may have C{message.type=MIXED}.
    @ivar recall_message_enable: producers may recall messages that wait for such a time.
    @ivar timer_wheel_enable: messages may have a delivery time of their own.
    @ivar timer_max_delay_sec: the furthest such time.
    @ivar enable_retry_topic_v2: retries of POP have topics whose names say where the group ends; a broker
        of RocketMQ in the same raft group needs the same value.
    @ivar store_reply_message_enable: replies to requests are stored, besides being passed on.
    @ivar reject_transaction_message: half messages are refused.
    @ivar transaction_check_interval: time between two rounds of questions about half messages.
    @ivar transaction_time_out: age from which the producer of a half message is asked.
    @ivar transaction_check_max: number of questions about one half message.
    @ivar slave_read_enable: consumers that are far behind are directed to a slave.
    @ivar offset_check_in_slave: a slave corrects offsets that its log does not have.
    @ivar region_id, trace_on: part of each answer to producers.
    @ivar max_transfer_bytes_on_message_in_memory, max_transfer_count_on_message_in_memory: limits of a pull.
    @ivar tls_mode: its ports take connections by TLS: none, beside plain ones, or no others.
    @ivar tls_client_auth: C{require}: clients must show a certificate of C{tls_authority}. The port for
        slaves demands one of each connection by TLS in any case.
    @ivar tls_slave_auth: C{role}: that of a slave must say that it is one; C{any}: it need not.
    @ivar tls_enable: a slave connects to its master by TLS.
    @ivar tls_namesrv_enable: it connects to name servers by TLS.
    @ivar tls_members_enable: the member of a raft log speaks TLS with the other members and its clients.
    @ivar client_token_file: hashes of tokens for clients at the port of that member, as of a member.
    @ivar tls_certificate, tls_key, tls_authority: PEM files, see L{dledger.values.tls_files.TlsFiles}.
    @ivar admin_tls, admin_token_file, admin_token_reads, insecure: of its pages, as of a member's.
    @ivar change_hosts: IP addresses or networks that may ask for changes, of topics, groups, options, where
        there are no accounts, besides this machine's loopback interface; C{*} for all, C{none}
        also without the loopback interface.
    @ivar acl_enable: requests must be signed with an account of C{acl_file}.
    @ivar acl_file: a file in the form of C{plain_acl.yml}, or a directory of them.
    @ivar acl_credentials_file: a file as C{tools.yml}: the account that signs its own requests; empty: none.
    @ivar tracing: hand spans of messages to OpenTelemetry; needs the extra C{tracing}.
    @ivar stop_timeout: time for the answers to waiting sends when the broker stops.
    @ivar ignored: options of RocketMQ that were given and have no meaning here.
    @ivar role: its role now; the options give the first one.
    """

    store: StoreConfig
    ha: HAConfig = attrs.Factory(HAConfig)
    raft: RaftOptions = attrs.Factory(RaftOptions)
    broker_name: str = text_option("DEFAULT_BROKER")
    broker_cluster_name: str = text_option("DefaultCluster")
    broker_id: int = number_option(MASTER_ID, most=INT_MAX)
    broker_ip1: str = text_option()
    broker_ip2: str = text_option()
    listen_port: int = number_option(LISTEN_PORT, 0, 65534)
    ha_listen_port: int = number_option(0, 0, 65535)
    ha_master_address: str = text_option()
    master_address: str = text_option()
    namesrv_addr: str = text_option()
    auto_create_topic_enable: bool = flag_option(True)
    auto_create_subscription_group: bool = flag_option(True)
    cluster_topic_enable: bool = flag_option(True)
    default_topic_queue_nums: int = number_option(8, 1, 65535)
    topics_max: int = number_option(20_000, 1, 1_000_000)
    connections_share: int = number_option(50, 1, 100)
    broker_permission: int = number_option(6, 0, 7)
    register_name_server_period: int = number_option(30_000, 10_000, 60_000)
    flush_consumer_offset_interval: int = number_option(5_000, 100, 3_600_000)
    long_polling_enable: bool = flag_option(True)
    store_reply_message_enable: bool = flag_option(True)
    reject_transaction_message: bool = flag_option(False)
    transaction_check_interval: int = number_option(30_000, 100, 3_600_000)
    transaction_time_out: int = number_option(6_000, 0, INT_MAX)
    transaction_check_max: int = number_option(15, 1, INT_MAX)
    slave_read_enable: bool = flag_option(False)
    enable_property_filter: bool = flag_option(False)
    enable_mixed_message_type: bool = flag_option(False)
    recall_message_enable: bool = flag_option(False)
    timer_wheel_enable: bool = flag_option(True)
    timer_max_delay_sec: int = number_option(3 * 86_400, 1, 3_650 * 86_400)
    offset_check_in_slave: bool = flag_option(False)
    enable_retry_topic_v2: bool = flag_option(True)
    region_id: str = text_option("DefaultRegion")
    trace_on: bool = flag_option(True)
    max_transfer_bytes_on_message_in_memory: int = number_option(256 * 1024, 1, 8 * 1024 * 1024)
    max_transfer_count_on_message_in_memory: int = number_option(32, 1, 65535)
    stop_timeout: int = number_option(5_000, 0, 600_000)
    tls_mode: str = attrs.field(default="disabled", validator=in_(TLS_MODES))
    tls_client_auth: str = attrs.field(default="none", validator=in_(CLIENT_AUTHS))
    tls_slave_auth: str = attrs.field(default="role", validator=in_(SLAVE_AUTHS))
    tls_enable: bool = flag_option(False)
    tls_namesrv_enable: bool = flag_option(False)
    tls_members_enable: bool = flag_option(False)
    client_token_file: str = path_option()
    tls_certificate: str = path_option()
    tls_key: str = path_option()
    tls_authority: str = path_option()
    admin_tls: bool = flag_option(False)
    admin_token_file: str = path_option()
    admin_token_reads: bool = flag_option(False)
    insecure: bool = flag_option(False)
    change_hosts: tuple[str, ...] = attrs.field(default=(), converter=host_list)
    acl_enable: bool = flag_option(False)
    acl_file: str = path_option()
    acl_credentials_file: str = path_option()
    tracing: bool = flag_option(False)
    ignored: tuple[str, ...] = ()
    role: BrokerRole = attrs.field(init=False, eq=False, repr=False)

    @role.default
    def _first_role(self) -> BrokerRole:
        if self.raft.enable_dleger_commit_log:
            return BrokerRole(name=SLAVE, broker_id=self.raft.slave_id)
        return BrokerRole(name=self.ha.broker_role, broker_id=self.broker_id)

    @broker_name.validator
    @broker_cluster_name.validator
    def _is_a_name(self, attribute: attrs.Attribute[str], value: str) -> None:
        if not _NAME.fullmatch(value):
            raise ValueError(f"{attribute.name}={value!r}: write 1 to 127 letters, digits or any of %|_.-")

    @broker_id.validator
    def _id_fits_the_role(self, attribute: attrs.Attribute[str], value: int) -> None:
        if self.ha.is_slave and value == MASTER_ID:
            raise ValueError("broker_id=0 is the master's: a slave has one above 0")
        if not self.ha.is_slave and value != MASTER_ID:
            raise ValueError(f"broker_id={value} with broker_role={self.ha.broker_role}: a master has 0; for "
                             f"a slave say broker_role={SLAVE}")

    @ha_master_address.validator
    @master_address.validator
    def _is_one_address(self, attribute: attrs.Attribute[str], value: str) -> None:
        if value and _addresses(attribute.name, value) != (value,):
            raise ValueError(f"{attribute.name}={value!r}: write one host:port; a slave has one master")
        if value and not self.ha.is_slave:
            raise ValueError(f"{attribute.name}={value!r}, but broker_role={self.ha.broker_role} follows "
                             f"no master: for a slave say broker_role={SLAVE}")

    @broker_ip1.validator
    @broker_ip2.validator
    def _is_a_host(self, attribute: attrs.Attribute[str], value: str) -> None:
        if value and not _HOST.fullmatch(value):
            try:
                ip_address(value)
            except ValueError:
                raise ValueError(f"{attribute.name}={value!r}: write an address, 10.0.0.1 or fd00::1, or a "
                                 "host's name; the address becomes part of every message") from None

    @ha_listen_port.validator
    def _is_no_other_port(self, attribute: attrs.Attribute[int], value: int) -> None:
        if value and value in (self.listen_port, self.listen_port - FAST_PORT_DISTANCE):
            raise ValueError(
                f"{attribute.name}={value}: clients have listen_port={self.listen_port} and the port "
                f"{FAST_PORT_DISTANCE} below; give slaves another one"
            )

    @namesrv_addr.validator
    def _are_addresses(self, attribute: attrs.Attribute[str], value: str) -> None:
        _addresses(attribute.name, value)

    @tls_authority.validator
    def _tls_is_whole(self, _attribute: attrs.Attribute[str], value: str) -> None:
        check_tls_uses(
            tls_files(certificate=self.tls_certificate, key=self.tls_key, authority=value),
            mode=self.tls_mode, client_auth=self.tls_client_auth,
            others={"tls_enable=true": self.tls_enable, "tls_namesrv_enable=true": self.tls_namesrv_enable,
                    "tls_members_enable=true": self.tls_members_enable, "admin_tls=true": self.admin_tls},
            hint="say tls_mode=permissive or enforcing for the ports, tls_enable=true for a slave's "
                 "connections, admin_tls=true for the pages",
        )

    @client_token_file.validator
    def _has_member(self, attribute: attrs.Attribute[str], value: str) -> None:
        if not self.raft.enable_dleger_commit_log and (value or self.tls_members_enable):
            raise ValueError(
                f"{attribute.name if value else 'tls_members_enable'} is of the member that has a raft log: "
                "it needs enableDLegerCommitLog=true"
            )

    @admin_token_reads.validator
    def _admin_has_keys(self, _attribute: attrs.Attribute[bool], value: bool) -> None:
        # (That admin_tls has its keys was checked with the other uses of TLS.)
        check_admin_options(
            admin_tls=False, has_keys=True, token_file=self.admin_token_file, token_reads=value
        )

    @property
    def tls_files(self) -> TlsFiles | None:
        """Its keys; None without TLS."""
        return tls_files(certificate=self.tls_certificate, key=self.tls_key, authority=self.tls_authority)

    @change_hosts.validator
    def _changers_are_hosts(self, _attribute: attrs.Attribute[object], value: tuple[str, ...]) -> None:
        ChangeHosts(value, "changeHosts")

    @acl_file.validator
    def _has_accounts(self, attribute: attrs.Attribute[str], value: str) -> None:
        if self.acl_enable and not value:
            raise ValueError("acl_enable=true needs acl_file: a file like RocketMQ's plain_acl.yml")
        if value and not self.acl_enable:
            raise ValueError(f"acl_file={value!r}, but acl_enable is false: requests would not be checked")

    @property
    def ha_port(self) -> int:
        """The port for slaves; 0: the system assigns one."""
        return self.ha_listen_port or (self.listen_port + 1 if self.listen_port else 0)

    @property
    def name_servers(self) -> tuple[str, ...]:
        """C{host:port} of each name server."""
        return _addresses("namesrv_addr", self.namesrv_addr)

    @property
    def master_remoting_address(self) -> str | None:
        """C{host:port} at which a slave asks its master for metadata; None: a name server supplies it."""
        if self.master_address:
            return self.master_address
        if not self.ha_master_address:
            return None
        host, port = parse_address(self.ha_master_address)
        return str(Address(host, port - 1)) if port > 1 else None


#: Options that may change while the broker runs.
RUN_TIME_OPTIONS = frozenset({
    "auto_create_topic_enable", "auto_create_subscription_group", "topics_max", "broker_permission",
    "flush_consumer_offset_interval", "long_polling_enable", "store_reply_message_enable",
    "reject_transaction_message", "transaction_check_interval", "transaction_time_out",
    "transaction_check_max", "slave_read_enable", "enable_property_filter", "offset_check_in_slave",
    "enable_mixed_message_type", "recall_message_enable", "connections_share",
    "max_transfer_bytes_on_message_in_memory", "max_transfer_count_on_message_in_memory", "stop_timeout",
}) | EXPIRY_OPTIONS

#: Names of RocketMQ that differ from the camel case of ours, and short names of our own.
ALIASES: Mapping[str, str] = {
    "brokerIP1": "broker_ip1",
    "brokerIP2": "broker_ip2",
    "enableDLegerCommitLog": "enable_dleger_commit_log",
    "dLegerGroup": "dleger_group",
    "dLegerPeers": "dleger_peers",
    "dLegerSelfId": "dleger_self_id",
    "storePathDLedgerCommitLog": "store_path_dledger_commit_log",
    "fileReservedTime": "file_reserved_time_h",
    "file_reserved_time": "file_reserved_time_h",
    "mapedFileSizeCommitLog": "mapped_file_size_commit_log",
    "mapedFileSizeConsumeQueue": "mapped_file_size_consume_queue",
    "haSlaveFallbehindMax": "ha_max_gap_not_in_sync",
    "ha_slave_fallbehind_max": "ha_max_gap_not_in_sync",
    "haMaxGapNotInSync": "ha_max_gap_not_in_sync",
    "haMasterAddress": "ha_master_address",
    "name": "broker_name",
    "cluster": "broker_cluster_name",
    "role": "broker_role",
    "store": "store_path_root_dir",
    "namesrv": "namesrv_addr",
    "flush": "flush_disk_type",
}

_ROLES = {"async-master": "ASYNC_MASTER", "sync-master": "SYNC_MASTER", "slave": "SLAVE"}
_FLUSHES = {"async": "ASYNC_FLUSH", "sync": "SYNC_FLUSH"}
_OWN = ("store", "ha", "raft", "ignored", "role")
#: Shares of the disk: 0.9 in 4.9, 90 in 5.x.
_SHARES = ("disk_space_warning_level_ratio", "disk_space_clean_forcibly_ratio")


def _fields() -> dict[str, tuple[type, attrs.Attribute[object]]]:
    """Every option by name, with the class that has it."""
    return {
        name: (kind, attrs.fields_dict(kind)[name])
        for kind in (StoreConfig, HAConfig, RaftOptions, BrokerConfig) for name in options_of(kind)
        if name not in _OWN
    }


_KNOWN: Mapping[str, tuple[type, attrs.Attribute[object]]] = _fields()


def option_name(name: str) -> str | None:
    """
    Our name of an option in any spelling; None for an option of RocketMQ that has no meaning here, and for a
    value that is fixed.

    @raise ValueError: the name is unknown; the text contains the nearest known name.
    """
    target = our_name(name, ALIASES, _KNOWN)
    if target in _KNOWN:
        return target
    if is_rocketmq_option(name) or target in attrs.fields_dict(HAConfig):
        return None
    raise unknown_option(name, target, _KNOWN)


def broker_from_mapping(values: Mapping[str, object]) -> BrokerConfig:
    """
    Build a configuration from names in our or RocketMQ's spelling.

    @param values: strings are converted to the option's type.
    @raise ValueError: a name is unknown (the nearest known one is named), a value does not fit, an option is
        given twice, or C{store_path_root_dir} is missing; the text has a line for each finding.
    """
    given: dict[type, dict[str, object]] = {
        StoreConfig: {}, HAConfig: {}, RaftOptions: {}, BrokerConfig: {}
    }
    ignored, findings = [], []
    for name, value in values.items():
        try:
            target = option_name(name)
            if target is None:
                if check_ignored(name, value):
                    ignored.append(name)
                continue
            owner, field = _KNOWN[target]
            if target in given[owner]:
                raise ValueError(f"option {target!r} is given twice, once as {name!r}")
            given[owner][target] = _value(target, value, field.default)
        except ValueError as error:
            findings.append(str(error))
    if "store_path_root_dir" not in given[StoreConfig]:
        findings.append("store_path_root_dir is missing: name the directory that holds the store")
        raise_findings(findings)
    for make in (StoreConfig, HAConfig, RaftOptions):
        findings += findings_of(make, given[make])
    raise_findings(findings)
    own = given[BrokerConfig]
    ha = made_of(HAConfig, given[HAConfig])
    raft = made_of(RaftOptions, given[RaftOptions])
    if raft.enable_dleger_commit_log and ha.is_slave:
        raise ValueError("broker_role=SLAVE with enableDLegerCommitLog=true: the raft group gives the roles; "
                         "leave broker_role out")
    if ha.is_slave:
        own.setdefault("broker_id", MASTER_ID + 1)
    store = made_of(StoreConfig, given[StoreConfig])
    parts = {"store": store, "ha": ha, "raft": raft, "ignored": tuple(ignored)}
    raise_findings(findings_of(BrokerConfig, {**parts, **own}))
    return made_of(BrokerConfig, {**parts, **own})


def run_time_options(config: BrokerConfig) -> frozenset[str]:
    """Those of L{RUN_TIME_OPTIONS} that count for this broker: a raft log has its own rules of expiry."""
    return RUN_TIME_OPTIONS - (EXPIRY_OPTIONS if config.raft.enable_dleger_commit_log else frozenset())


def all_options(config: BrokerConfig) -> dict[str, object]:
    """The present value of every option, by our names."""
    return {name: option_value(config, name) for name in _KNOWN}


def option_value(config: BrokerConfig, name: str) -> object:
    """The present value of an option. @param name: ours."""
    return getattr(_owner(config, name), name)


def _owner(config: BrokerConfig, name: str) -> attrs.AttrsInstance:
    owner = _KNOWN[name][0]
    parts: dict[type, attrs.AttrsInstance] = {
        StoreConfig: config.store, HAConfig: config.ha, RaftOptions: config.raft
    }
    return parts.get(owner, config)


def change_options(config: BrokerConfig, values: Mapping[str, object]) -> dict[str, object]:
    """
    Change options of a broker that runs: all, or none.

    @param values: from names in our or RocketMQ's spelling; strings are converted to the option's type.
    @return: the previous values of those that are another now, by our names.
    @raise ValueError: a name is unknown, has no meaning here, or is given twice, a value does not fit, or the
        option counts from the start on; the text names those that change while the broker runs.
    """
    changes: dict[str, object] = {}
    may_change = run_time_options(config)
    for name, value in values.items():
        target = option_name(name)
        if target is None:
            if check_ignored(name, value):
                raise ValueError(f"option {name!r} of RocketMQ has no meaning here: nothing would change")
            continue
        if target in changes:
            raise ValueError(f"option {target!r} is given twice, once as {name!r}")
        changes[target] = found = _value(target, value, _KNOWN[target][1].default)
        if target not in may_change and found != option_value(config, target):
            raise ValueError(
                f"option {name!r} counts from the start on: change the configuration, and start the broker "
                f"again. These change while it runs: {', '.join(sorted(may_change))}"
            )
    for name, found in changes.items():  # the validators of all, before anything changes
        with_values(_owner(config, name), {name: found})
    before = {name: option_value(config, name) for name in changes}
    changed = [name for name in changes if changes[name] != before[name]]
    for name in changed:
        setattr(_owner(config, name), name, changes[name])
    return {name: before[name] for name in changed}


def _value(name: str, value: object, default: object) -> object:
    if isinstance(value, str):
        value = value.strip()
        if name == "ha_allowed_hosts":
            return listed(value)
        if name == "broker_role":
            return _ROLES.get(value.lower(), value)
        if name == "flush_disk_type":
            return _FLUSHES.get(value.lower(), value)
    found = converted(name, value, default)
    if name in _SHARES and isinstance(found, float) and found > 1:
        found /= 100  # 5.x writes percent
    return found
