# -*- test-case-name: tests.namesrv.test_commands -*-
"""
The requests that a name server answers: those of brokers, of clients, and of C{mqadmin}.

Rule 1: where RocketMQ 4.9 and 5.3 differ, C{answers_as} decides; an unknown code is always answered with 3.
Rule 2: an answer that does not fit a frame is refused.
Rule 3: every code is in one of L{READS}, L{OF_BROKERS} and L{CHANGES}. A change is taken only from those who
may ask for one. A broker registers from everywhere, and ends its own registration: 104 and 217 are changes
unless they come over the connection on which the broker that they name has registered.
Rule 4: the last registration of a name and an id counts, as in Java: a master that takes over must not wait
for the end of the one before. If that one is still connected, from another host, the log warns, and the
answer names the address of that one. Where everybody shows a certificate, the certificate must name the
broker then, or the registration is refused.

Source: DefaultRequestProcessor, ClientRequestProcessor (4.9.8, 5.3.3).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Mapping
from typing import ClassVar, NoReturn

from twisted.internet.interfaces import IReactorTime
from twisted.logger import Logger
from twisted.python.failure import Failure

from dledger.base.serving.folding import Folding
from dledger.rocketmq.answering.changes import ChangeGate
from dledger.rocketmq.answering.java_json import read_request
from dledger.rocketmq.answering.pieces import Pieces
from dledger.rocketmq.answering.refusals import (
    LONG_MAX,
    LONG_MIN,
    Code,
    CommandGroup,
    Fields,
    Handlers,
    Refused,
)
from dledger.rocketmq.namesrv.answers import (
    STRICT_VERSION,
    cluster_body,
    member_group_body,
    route_body,
    table_body,
    topics_body,
    version_body,
)
from dledger.rocketmq.namesrv.changes import ChangeableConfig
from dledger.rocketmq.namesrv.key_values import ORDER_NAMESPACE, KeyValues
from dledger.rocketmq.namesrv.registrations import (
    BODY_BYTES_MAX,
    read_data_version,
    read_name,
    read_registration,
    read_topic_route,
)
from dledger.rocketmq.namesrv.routes import (
    EXPIRY_MAX_S,
    EXPIRY_S,
    UNIT,
    UNIT_SUB,
    LiveKey,
    Registering,
    RouteTable,
)
from dledger.values.hosts import ChangeHosts, host_text
from dledger.values.rights import BROKER_URI, named_uri
from protocols.rocketmq.commands import CommandConnection, hosts_of
from protocols.wire.checksums import crc32
from protocols.wire.errors import BodyError
from protocols.wire.remoting import FRAME_BYTES_MAX, RemotingCommand

#: Requests that change nothing.
READS = frozenset({101, 105, 106, 206, 219, 224, 304, 311, 312, 313, 319, 901})
#: Requests of brokers about themselves: register, unregister, register a topic, live (twice).
OF_BROKERS = frozenset({103, 104, 217, 322, 904})
#: What the others change, for the sentence that refuses them.
CHANGES: Mapping[int, str] = {
    100: "to write the KV configuration", 102: "to delete from the KV configuration",
    205: "to take the permission to write", 216: "to delete a topic", 318: "to change options",
    327: "to give the permission to write",
}

#: Bytes whose checksum is computed in one piece.
CRC_BYTES = 1024 * 1024

#: Bytes of the body of an answer, at most: the header needs some of the frame.
ANSWER_BODY_MAX = FRAME_BYTES_MAX - 64 * 1024

#: The page that Java names for a missing topic, in 5.x and before.
_FAQ = {
    True: "https://rocketmq.apache.org/docs/bestPractice/06FAQ",
    False: "http://rocketmq.apache.org/docs/faq/",
}


def name_server_change(request: RemotingCommand) -> str:
    """What a request changes for all; empty: nothing, or it is one of brokers, and judged when it is read."""
    code = request.code
    return "" if code in READS or code in OF_BROKERS else CHANGES.get(code, "what it asks")


class NameServerCommands(CommandGroup):
    """
    Invariant: no request changes C{routes} or C{values} and is refused.

    @ivar gate: refuses changes.
    @ivar registrations: registrations that were taken. @ivar brokers_expired: brokers that were silent.
    @ivar brokers_lost: brokers whose connection ended.
    @ivar overtaken: registrations that took the place of another broker that is connected.
    @ivar overtaking_refused: those that were refused; the other broker is of another host.
    @ivar uris_of: the URIs in the certificate of a connection, where everybody shows one: then only a
        certificate that names the broker may take such a place. None elsewhere.
    """

    log = Logger()
    small_codes = frozenset({104, 322, 904})
    body_bytes_max: ClassVar = {103: BODY_BYTES_MAX}

    def __init__(
        self, options: ChangeableConfig, routes: RouteTable, values: KeyValues, *, clock: IReactorTime
    ) -> None:
        self._options = options
        self._is_5 = options.config.is_5
        self._routes = routes
        self._values = values
        self._clock = clock
        self._is_dropping = False
        self._seconds = clock.seconds
        self.gate = ChangeGate(ChangeHosts(options.config.change_hosts, "changeHosts"), name_server_change)
        self._folding = Folding(clock.seconds)
        self.registrations = 0
        self.brokers_expired = 0
        self.brokers_lost = 0
        self.overtaken = self.overtaking_refused = 0
        self.uris_of: Callable[[CommandConnection], Collection[str]] | None = None

    def handlers(self) -> Handlers:
        handlers = {
            100: self._put_value, 101: self._get_value, 102: self._delete_value, 103: self._register,
            104: self._unregister, 105: self._route, 106: self._cluster, 205: self._wipe_write,
            206: self._all_topics, 216: self._delete_topic, 219: self._namespace, 224: self._cluster_topics,
            304: self._system_topics, 311: self._unit_topics, 312: self._unit_sub_topics,
            313: self._unit_sub_only_topics, 318: self._update_options, 319: self._get_options,
            322: self._data_version, 327: self._add_write,
        }
        if self._is_5:
            handlers |= {217: self._register_topic, 901: self._member_group, 904: self._heartbeat}
        return handlers

    # -- brokers come and go -----------------------------------------------------------------------

    def connection_lost(self, connection: CommandConnection) -> None:
        """See L{CommandGroup.connection_lost}: the brokers that registered over it are forgotten."""
        gone = self._routes.channel_lost(connection)
        self.brokers_lost += len(gone)
        for key in gone:
            self._log("its connection ended, it is forgotten", key)
        self._drop_rest()

    def _drop_rest(self) -> None:
        """Brokers were forgotten: their topics go in pieces, if they are many."""
        if self._routes.is_dropping and not self._is_dropping:
            self._is_dropping = True
            self._clock.callLater(0, self._drop_some)

    def _drop_some(self) -> None:
        self._is_dropping = False
        self._routes.drop_some()
        self._drop_rest()

    def expire(self) -> None:
        """Forget brokers that have not registered in time, and end their connections. Called regularly."""
        for key, channel in self._routes.expired(self._seconds()):
            self.brokers_expired += 1
            self._log("it has not registered in time, it is forgotten", key)
            self._routes.forget(key)
            if isinstance(channel, CommandConnection):
                channel.abort(f"broker {key[1]} has not registered in time")
        self._drop_rest()

    def sweep(self, now_s: float) -> None:
        """Report repeated log lines that are over. Called regularly."""
        for key, episode in self._folding.sweep(now_s):
            self.log.info("{event}: {times} times in {since_s} s, now over", event=" ".join(map(str, key)),
                          times=episode.times, since_s=round(episode.last_s - episode.begin_s))

    def _log(self, event: str, key: LiveKey) -> None:
        repeated = self._folding.happened(("broker", event))
        if repeated is not None:
            self.log.info("broker {address} of cluster {cluster}: {event}", cluster=key[0], address=key[1],
                          event=event, **repeated)

    def _register(self, connection: CommandConnection, request: RemotingCommand) -> Pieces[None]:
        fields = Fields(request.ext_fields)
        asked = self._registering(fields)
        expected, body = fields.number("bodyCrc32", 0), request.body
        if expected:
            actual = 0
            for at in range(0, len(body), CRC_BYTES):
                actual = crc32(body[at : at + CRC_BYTES], actual)
                yield
            if actual & 0x7FFFFFFF != expected:
                raise Refused(Code.SYSTEM_ERROR, "crc32 not match")
        try:
            topics = yield from read_registration(
                body, version=request.version, is_compressed=fields.flag("compressed", False),
                topics_max=self._options.config.topics_max,
            )
        except BodyError as error:
            raise Refused(Code.SYSTEM_ERROR, f"Failed to decode RegisterBrokerBody: {error}") from None
        order = yield from self._order_table()
        key = (asked.cluster, asked.address)
        is_new = key not in self._routes.live
        before: dict[str, Hashable] = {}
        master = yield from self._routes.registering(
            asked, topics, connection, self._seconds(),
            judge=lambda: before.update(self._judge(connection, asked)),
            drops=self._options.config.delete_topic_with_broker_registration,
        )
        self.registrations += 1
        for address, channel in before.items():
            self._warn_of_overtaking(connection, asked, address, channel)
        if is_new:
            self._log("registered", key)
        found = {"haServerAddr": master.ha_address, "masterAddr": master.address}
        reported = {name: value for name, value in found.items() if value is not None}
        if others := [address for address in before if address != asked.address]:
            reported["otherBrokerAddr"] = others[0]  # ours; Java passes over it
        connection.answer(request, body=order, ext_fields=reported)

    def _judge(self, connection: CommandConnection, asked: Registering) -> dict[str, Hashable]:
        """
        @return: the brokers whose place it takes, see L{RouteTable.holders}.
        @raise Refused: it may not.
        """
        holders = self._routes.holders(asked)
        foreign = {
            address: channel for address, channel in holders.items() if not _is_of_host(connection, channel)
        }
        if foreign and not self._may_overtake(connection, asked):
            self._refuse_overtaking(connection, asked, *next(iter(foreign.items())))
        # Two brokers of one host have one name if nobody gave them any: it is that of the host.
        return foreign | {
            address: channel for address, channel in holders.items()
            if address != asked.address and channel is not connection
        }

    def _may_overtake(self, connection: CommandConnection, asked: Registering) -> bool:
        """Whether it may take the place of a broker that is connected from another host."""
        return self.uris_of is None or named_uri(BROKER_URI, asked.name) in self.uris_of(connection)

    def _refuse_overtaking(
        self, connection: CommandConnection, asked: Registering, address: str, channel: Hashable
    ) -> NoReturn:
        self.overtaking_refused += 1
        needed = named_uri(BROKER_URI, asked.name)
        repeated = self._folding.happened(("refused to take over", asked.name, asked.broker_id))
        if repeated is not None:
            self.log.error(
                "{host} is refused: it registers {address} as broker {name} id {broker_id}, which {before} "
                "is, and its certificate does not name {needed}", host=hosts_of(connection)[0],
                address=asked.address, name=asked.name, broker_id=asked.broker_id, before=address,
                needed=needed, **repeated,
            )
        raise Refused(
            Code.NO_PERMISSION,
            f"broker {asked.name} id {asked.broker_id} is {address}, which is connected from "
            f"{hosts_of(channel)[0] if isinstance(channel, CommandConnection) else '?'}; only a certificate "
            f"that names {needed} may take its place",
        )

    def _warn_of_overtaking(
        self, connection: CommandConnection, asked: Registering, address: str, channel: Hashable
    ) -> None:
        group = self._routes.groups.get(asked.name)
        if group is None or group.addresses.get(asked.broker_id) != asked.address:
            return  # it was outranked
        self.overtaken += 1
        repeated = self._folding.happened(("taken over", asked.name, asked.broker_id))
        if repeated is not None:
            self.log.warn(
                "broker {name} id {broker_id}: {address}, registered from {host}, takes the place of "
                "{before}, whose connection from {before_host} lives",
                name=asked.name, broker_id=asked.broker_id, address=asked.address,
                host=hosts_of(connection)[0], before=address,
                before_host=hosts_of(channel)[0] if isinstance(channel, CommandConnection) else "?",
                **repeated,
            )

    def _order_table(self) -> Pieces[bytes]:
        """The queues of ordered topics, for a broker; empty if there are none."""
        is_given = self._options.config.return_order_topic_config_to_broker or not self._is_5
        order = self._values.table(ORDER_NAMESPACE) if is_given else None
        return b"" if order is None else (yield from self._made(table_body(order)))

    def _registering(self, fields: Fields) -> Registering:
        timeout_ms = fields.number("heartbeatTimeoutMillis", 0, most=LONG_MAX) if self._is_5 else 0
        acting = fields.text("enableActingMaster", "")
        zone = fields.text("zoneName", "")
        try:
            return Registering(
                cluster=read_name(fields.text("clusterName"), "clusterName"),
                name=read_name(fields.text("brokerName"), "brokerName"),
                broker_id=fields.number("brokerId", least=LONG_MIN, most=LONG_MAX),
                address=read_name(fields.text("brokerAddr"), "brokerAddr"),
                ha_address=read_name(fields.text("haServerAddr"), "haServerAddr"),
                timeout_s=min(max(timeout_ms / 1000, 1.0), EXPIRY_MAX_S) if timeout_ms > 0 else EXPIRY_S,
                acting=acting.lower() == "true" if acting else None,
                zone=read_name(zone, "zoneName") if zone else None,
            )
        except BodyError as error:
            raise Refused(Code.SYSTEM_ERROR, str(error)) from None

    def _unregister(self, connection: CommandConnection, request: RemotingCommand) -> None:
        fields = Fields(request.ext_fields)
        cluster, address, name = (
            fields.text("clusterName"), fields.text("brokerAddr"), fields.text("brokerName")
        )
        if self._routes.channels(cluster, address, name) - {connection}:
            self.gate.demand(connection, request, "to unregister another one's broker")
        self._routes.unregister(cluster, address, name)
        self._drop_rest()
        self._log("unregistered", (cluster[:255], address[:255]))
        connection.answer(request)

    def _heartbeat(self, connection: CommandConnection, request: RemotingCommand) -> None:
        fields = Fields(request.ext_fields)
        self._routes.heartbeat(fields.text("clusterName"), fields.text("brokerAddr"), self._seconds())
        connection.answer(request)

    def _data_version(self, connection: CommandConnection, request: RemotingCommand) -> None:
        fields = Fields(request.ext_fields)
        try:
            version = read_data_version(read_request(request.body) if request.body else None)
        except BodyError as error:
            raise Refused(Code.SYSTEM_ERROR, f"the data version: {error}") from None
        changed, known = self._routes.compare(
            fields.text("clusterName"), fields.text("brokerAddr"), version, self._seconds()
        )
        connection.answer(
            request, ext_fields={"changed": "true" if changed else "false"},
            body=b"" if known is None else version_body(known, is_5=self._is_5),
        )

    def _member_group(self, connection: CommandConnection, request: RemotingCommand) -> None:
        cluster, name = request.ext_fields.get("clusterName"), request.ext_fields.get("brokerName")
        group = self._routes.groups.get(name or "")
        addresses = {} if group is None else group.addresses
        connection.answer(
            # The remark is Java's, which forgets to remove it.
            request, remark="not set any response code", body=member_group_body(cluster, name, addresses)
        )

    # -- topics ------------------------------------------------------------------------------------

    def _route(self, connection: CommandConnection, request: RemotingCommand) -> Pieces[None]:
        fields = request.ext_fields
        topic = fields.get("topic")
        route = self._routes.route(topic or "")
        if route is None:
            # Many clients ask for topics that are not there yet: neither counted nor logged.
            connection.answer(
                request, code=Code.TOPIC_NOT_EXIST,
                remark=f"No topic route info in name server for the topic: {_shown(topic)}\n"
                f"See {_FAQ[self._is_5]} for further details.",
            )
            return
        is_strict = request.version >= STRICT_VERSION or fields.get("acceptStandardJsonOnly") == "true"
        is_ordered = self._options.config.order_message_enable
        order = self._values.get(ORDER_NAMESPACE, topic) if is_ordered else None
        yield from self._send(connection, request, route_body(
            route, order_conf=order, is_strict=is_strict, is_5=self._is_5
        ))

    def _cluster(self, connection: CommandConnection, request: RemotingCommand) -> Pieces[None]:
        yield from self._send(connection, request, cluster_body(self._routes, is_5=self._is_5))

    def _set_writable(self, request: RemotingCommand, is_writable: bool) -> Pieces[int]:
        return self._routes.set_writable(request.ext_fields.get("brokerName") or "", is_writable)

    def _wipe_write(self, connection: CommandConnection, request: RemotingCommand) -> Pieces[None]:
        count = yield from self._set_writable(request, False)
        connection.answer(request, ext_fields={"wipeTopicCount": str(count)})

    def _add_write(self, connection: CommandConnection, request: RemotingCommand) -> Pieces[None]:
        count = yield from self._set_writable(request, True)
        connection.answer(request, ext_fields={"addTopicCount": str(count)})

    def _register_topic(self, connection: CommandConnection, request: RemotingCommand) -> None:
        try:
            topic = read_name(Fields(request.ext_fields).text("topic"), "topic")
            queues = read_topic_route(request.body)
        except BodyError as error:
            raise Refused(Code.SYSTEM_ERROR, str(error)) from None
        known = [channels for name in queues if (channels := self._routes.channels_of(name))]
        if any(connection not in channels for channels in known):
            self.gate.demand(connection, request, "to register a topic of another one's broker")
        self._routes.put_topic(topic, queues)
        connection.answer(request)

    def _delete_topic(self, connection: CommandConnection, request: RemotingCommand) -> None:
        self._routes.delete_topic(
            request.ext_fields.get("topic") or "", request.ext_fields.get("clusterName") or None
        )
        connection.answer(request)

    def _topics(
        self, connection: CommandConnection, request: RemotingCommand,
        topics: Callable[[], Pieces[Iterable[str]]],
    ) -> Pieces[None]:
        if not self._options.config.enable_topic_list:
            raise Refused(Code.SYSTEM_ERROR, "disable")
        yield from self._send(connection, request, topics_body((yield from topics())))

    def _all_topics(self, connection: CommandConnection, request: RemotingCommand) -> Pieces[None]:
        if not self._options.config.enable_all_topic_list:
            raise Refused(Code.SYSTEM_ERROR, "disable")
        yield from self._send(connection, request, topics_body(self._routes.topics))

    def _cluster_topics(self, connection: CommandConnection, request: RemotingCommand) -> Pieces[None]:
        cluster = request.ext_fields.get("cluster") or ""
        return self._topics(connection, request, lambda: self._routes.topics_of_cluster(cluster))

    def _by_flag(
        self, connection: CommandConnection, request: RemotingCommand, wanted: int, unwanted: int = 0
    ) -> Pieces[None]:
        return self._topics(
            connection, request, lambda: self._routes.topics_by_flag(wanted=wanted, unwanted=unwanted)
        )

    def _unit_topics(self, connection: CommandConnection, request: RemotingCommand) -> Pieces[None]:
        return self._by_flag(connection, request, UNIT)

    def _unit_sub_topics(self, connection: CommandConnection, request: RemotingCommand) -> Pieces[None]:
        return self._by_flag(connection, request, UNIT_SUB)

    def _unit_sub_only_topics(self, connection: CommandConnection, request: RemotingCommand) -> Pieces[None]:
        return self._by_flag(connection, request, UNIT_SUB, UNIT)

    def _system_topics(self, connection: CommandConnection, request: RemotingCommand) -> Pieces[None]:
        routes = self._routes
        names = set(routes.clusters).union(*routes.clusters.values())
        first = min(routes.groups, default=None)
        addresses = {} if first is None else routes.groups[first].addresses
        address = addresses[min(addresses)] if addresses else None
        yield from self._send(connection, request, topics_body(names, address=address))

    # -- KV configuration, options -------------------------------------------------------------------

    def _put_value(self, connection: CommandConnection, request: RemotingCommand) -> None:
        namespace, key = request.ext_fields.get("namespace"), request.ext_fields.get("key")
        if namespace is None or key is None:
            raise Refused(Code.SYSTEM_ERROR, "namespace or key is null")
        self._change(connection, request, namespace, key, request.ext_fields.get("value"))

    def _delete_value(self, connection: CommandConnection, request: RemotingCommand) -> None:
        namespace, key = request.ext_fields.get("namespace"), request.ext_fields.get("key")
        if namespace is None or key is None or self._values.get(namespace, key) is None:
            connection.answer(request)  # there is no such key
            return
        self._change(connection, request, namespace, key, None)

    def _change(
        self, connection: CommandConnection, request: RemotingCommand, namespace: str, key: str,
        value: str | None,
    ) -> None:
        def failed(failure: Failure) -> None:
            refused = failure.value
            if not isinstance(refused, Refused):
                self.log.failure("a change of the KV configuration failed", failure)
                refused = Refused(Code.SYSTEM_ERROR, failure.getErrorMessage())
            connection.answer(request, code=refused.code, remark=refused.remark)

        changing = self._values.change(namespace, key, value)
        changing.addCallback(lambda _: connection.answer(request)).addErrback(failed)

    def _get_value(self, connection: CommandConnection, request: RemotingCommand) -> None:
        namespace, key = request.ext_fields.get("namespace"), request.ext_fields.get("key")
        value = self._values.get(namespace, key)
        if value is None:
            raise Refused(
                Code.QUERY_NOT_FOUND, f"No config item, Namespace: {_shown(namespace)} Key: {_shown(key)}"
            )
        connection.answer(request, ext_fields={"value": value})

    def _namespace(self, connection: CommandConnection, request: RemotingCommand) -> Pieces[None]:
        namespace = request.ext_fields.get("namespace")
        table = self._values.table(namespace)
        if table is None:
            raise Refused(Code.QUERY_NOT_FOUND, f"No config item, Namespace: {_shown(namespace)}")
        yield from self._send(connection, request, table_body(table))

    def _update_options(self, connection: CommandConnection, request: RemotingCommand) -> None:
        self._options.update(request.body, connection.address)
        connection.answer(request)

    def _get_options(self, connection: CommandConnection, request: RemotingCommand) -> None:
        connection.answer(request, body=self._options.text().encode("utf-8"))

    # -- large answers -------------------------------------------------------------------------------

    def _send(
        self, connection: CommandConnection, request: RemotingCommand, body: Pieces[bytes]
    ) -> Pieces[None]:
        """Answer with a body that may be large. @raise Refused: see rule 2."""
        connection.answer(request, body=(yield from self._made(body)))

    def _made(self, pieces: Pieces[bytes]) -> Pieces[bytes]:
        """A body that may be large. @raise Refused: see rule 2."""
        body = yield from pieces
        if len(body) > ANSWER_BODY_MAX:
            raise Refused(
                Code.SYSTEM_ERROR, f"the answer has {len(body)} bytes, {ANSWER_BODY_MAX} fit a frame"
            )
        return body


def _is_of_host(connection: CommandConnection, channel: Hashable) -> bool:
    """Whether a registration came from where C{connection} comes from. @param channel: its connection."""
    if channel is connection:
        return True
    return isinstance(channel, CommandConnection) and (
        host_text(hosts_of(channel)[0]) == host_text(hosts_of(connection)[0])
    )


def _shown(text: str | None) -> str:
    """A text in a remark, as Java has it; a long one is cut."""
    return "null" if text is None else text[:1000]
