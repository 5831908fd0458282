# -*- test-case-name: tests.namesrv.test_routes -*-
"""
The tables of a name server: brokers by name and by cluster, topics and their queues, and the brokers that
live.

    cluster -> broker names        broker name -> {id -> address}        topic -> {broker name -> queues}
    (cluster, address) -> last registration, its version, its connection

Rule 1: a broker lives until its connection ends, until it unregisters, or until its last registration is
older than its timeout. Then its address goes; with the last address of a name go the name and its queues.
Rule 2: a registration beyond a bound of L{RouteLimits} is refused, and changes nothing.
Rule 3: only the master's topics count, and in 5.x those of the smallest id of a group without a master, if
its brokers send C{enableActingMaster}. Topics are added or changed, never removed, by a registration.

Knows no connection and no clock. Source: RouteInfoManager (4.9.8, 5.3.3).
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping

import attrs

from dledger.rocketmq.answering.java_json import DataVersion
from dledger.rocketmq.answering.refusals import Code, Refused
from dledger.rocketmq.namesrv.registrations import PERM_READ_WRITE, PERM_WRITE, BrokerTopics, TopicQueues

#: The id of a master.
MASTER_ID = 0
#: Seconds after its last registration for which a broker lives, unless it names another time.
EXPIRY_S = 120.0
#: The longest such time.
EXPIRY_MAX_S = 86_400.0

#: Bits of C{sys_flag}.
UNIT, UNIT_SUB = 1, 2


@attrs.frozen(kw_only=True)
class RouteLimits:
    """
    Bounds of the tables. See docs/namesrv.md.

    @ivar brokers_max: addresses that live, names of brokers, pairs of cluster and name: each at most this.
    @ivar topics_max: topics. @ivar routes_max: pairs of a topic and a broker name.
    @ivar topic_bytes_max: bytes of the names of all topics.
    """

    brokers_max: int = 10_000
    topics_max: int = 200_000
    routes_max: int = 500_000
    topic_bytes_max: int = 8 * 1024 * 1024


@attrs.frozen(kw_only=True)
class Registering:
    """
    The header of a registration.

    @ivar timeout_s: seconds for which it holds.
    @ivar acting: C{enableActingMaster}; None if the sender has no such field (4.9).
    """

    cluster: str
    name: str
    broker_id: int
    address: str
    ha_address: str
    timeout_s: float = EXPIRY_S
    acting: bool | None = None
    zone: str | None = None


@attrs.frozen(kw_only=True)
class MasterAddresses:
    """The answer to a slave: its master's addresses for commands and for replication; None: there is none."""

    address: str | None = None
    ha_address: str | None = None


@attrs.define(kw_only=True)
class BrokerGroup:
    """
    The brokers of one name, by id.

    Invariant: an address has one id; C{ids} has the ids of C{addresses}.

    @ivar cluster: the one that it is shown in: of its first registration. @ivar clusters: all of them.
    """

    cluster: str
    name: str
    addresses: dict[int, str] = attrs.Factory(dict)
    ids: dict[str, int] = attrs.Factory(dict)
    clusters: set[str] = attrs.Factory(set)
    acting: bool = False
    zone: str | None = None

    def give(self, number: int, address: str) -> None:
        """An address has this id now, and no other: a slave may have become the master."""
        self.drop(address)
        before = self.addresses.get(number)
        if before is not None:
            del self.ids[before]
        self.addresses[number], self.ids[address] = address, number

    def drop(self, address: str) -> None:
        """An address has no id now."""
        number = self.ids.pop(address, None)
        if number is not None:
            del self.addresses[number]


@attrs.define(kw_only=True)
class LiveBroker:
    """
    One address that registered.

    @ivar heard_s: seconds of the caller's clock.
    @ivar channel: the connection of its last registration.
    @ivar names: the names under which it registered.
    """

    heard_s: float
    timeout_s: float
    version: DataVersion
    channel: Hashable
    ha_address: str
    filter_servers: tuple[str, ...] = ()
    names: set[str] = attrs.Factory(set)


@attrs.frozen(kw_only=True)
class TopicRoute:
    """
    The brokers of one topic.

    @ivar queues: by broker name. @ivar groups: those with an address. @ivar filter_servers: by address.
    """

    queues: Mapping[str, TopicQueues]
    groups: tuple[BrokerGroup, ...]
    filter_servers: Mapping[str, tuple[str, ...]]


#: Cluster and address.
LiveKey = tuple[str, str]


class RouteTable:
    """
    Invariant: a name is in C{groups} while it has an address, and C{_topics_of} holds the topics in which
    it has queues; C{_keys_of} are the live brokers of each connection.
    """

    def __init__(self, limits: RouteLimits, *, is_5: bool) -> None:
        """@param is_5: the rules of 5.x instead of those of 4.9."""
        self.limits = limits
        self._is_5 = is_5
        self.topics: dict[str, dict[str, TopicQueues]] = {}
        self.groups: dict[str, BrokerGroup] = {}
        self.clusters: dict[str, set[str]] = {}
        self.live: dict[LiveKey, LiveBroker] = {}
        self._topics_of: dict[str, set[str]] = {}
        self._keys_of: dict[Hashable, set[LiveKey]] = {}
        self._pairs = 0
        self.routes = 0
        self.topic_bytes = 0

    # -- registration ----------------------------------------------------------------------------

    def register(
        self, asked: Registering, body: BrokerTopics, channel: Hashable, now_s: float, *, drops: bool = False
    ) -> MasterAddresses:
        """
        Take over one registration.

        @param channel: the connection; when it ends, see L{channel_lost}.
        @param drops: topics that it lacks leave the broker's routes. (So 4.9 reports one new topic: not.)
        @raise Refused: beyond a bound, or (5.x) a first registration with exactly one topic.
        """
        key = (asked.cluster, asked.address)
        group, known = self.groups.get(asked.name), self.live.get(key)
        if self._is_5 and group is not None and self._is_outranked(asked, body, group):
            if known is not None:
                self._forget(key)
            return MasterAddresses()
        is_first = group is None or asked.broker_id not in group.addresses
        if self._is_5 and is_first and len(body.topics) == 1:
            raise Refused(Code.SYSTEM_ERROR, "register broker failed")
        self._check_brokers(asked, known)
        decides = self._decides(asked, group)
        topics = self._topics_taken(asked, body, known, is_first) if decides else {}
        self._check_topics(topics, asked.name)
        group = self._enter(asked, group)
        if drops and decides and len(body.topics) > 1:
            self._drop_pairs(self._topics_of.get(asked.name, set()) - body.topics.keys(), asked.name)
        for name, queues in topics.items():
            self._put(name, asked.name, queues)
        self._keep_alive(key, asked, body, channel, now_s)
        return self._master_for(asked, group)

    def _is_outranked(self, asked: Registering, body: BrokerTopics, group: BrokerGroup) -> bool:
        """Whether another address has this id, with a higher version of the controller's state."""
        holder = group.addresses.get(asked.broker_id, asked.address)
        other = self.live.get((asked.cluster, holder)) if holder != asked.address else None
        return other is not None and (other.version.state_version or 0) > (body.version.state_version or 0)

    def _check_brokers(self, asked: Registering, known: LiveBroker | None) -> None:
        most = self.limits.brokers_max
        # A new name is a new pair, so this bounds the names, too.
        full = (
            (known is None and len(self.live) >= most)
            or (asked.name not in self.clusters.get(asked.cluster, ()) and self._pairs >= most)
        )
        if full:
            raise Refused(Code.SYSTEM_ERROR, f"there are {len(self.live)} brokers; brokers_max={most}")

    def _decides(self, asked: Registering, group: BrokerGroup | None) -> bool:
        """Whether a registration has the topics of its name: of a master, or (5.x) the acting one."""
        others = () if group is None else (
            number for number, address in group.addresses.items() if address != asked.address
        )
        is_prime = self._is_5 and asked.acting is not None and asked.broker_id <= min(others, default=2**63)
        return asked.broker_id == MASTER_ID or is_prime

    def _topics_taken(
        self, asked: Registering, body: BrokerTopics, known: LiveBroker | None, is_first: bool
    ) -> Mapping[str, TopicQueues]:
        """Topics of a registration that change the table."""
        topics = body.topics
        if asked.broker_id != MASTER_ID and asked.acting:
            topics = {
                name: attrs.evolve(one, perm=one.perm & ~PERM_WRITE) for name, one in topics.items()
            }
        if is_first or known is None or not known.version.is_same(body.version):
            return topics
        if not self._is_5:
            return {}
        return {name: one for name, one in topics.items() if asked.name not in self.topics.get(name, ())}

    def _check_topics(self, topics: Mapping[str, TopicQueues], broker: str) -> None:
        mine = self._topics_of.get(broker) or set()
        fresh = [name for name in topics if name not in mine]
        unknown = [name for name in fresh if name not in self.topics]
        limits = self.limits
        for what, count, most in (
            ("topics", len(self.topics) + len(unknown), limits.topics_max),
            ("routes", self.routes + len(fresh), limits.routes_max),
            ("topic_bytes", self.topic_bytes + sum(len(name.encode("utf-8")) for name in unknown),
             limits.topic_bytes_max),
        ):
            if count > most and fresh:
                raise Refused(
                    Code.SYSTEM_ERROR, f"with these topics there would be {count} {what}; {what}_max={most}"
                )

    def _enter(self, asked: Registering, group: BrokerGroup | None) -> BrokerGroup:
        if group is None:
            group = self.groups[asked.name] = BrokerGroup(cluster=asked.cluster, name=asked.name)
        if self._is_5:
            group.acting = bool(asked.acting)
            group.zone = asked.zone
        names = self.clusters.setdefault(asked.cluster, set())
        if asked.name not in names:
            names.add(asked.name)
            group.clusters.add(asked.cluster)
            self._pairs += 1
        group.give(asked.broker_id, asked.address)
        return group

    def _keep_alive(
        self, key: LiveKey, asked: Registering, body: BrokerTopics, channel: Hashable, now_s: float
    ) -> None:
        before = self.live.get(key)
        servers = body.filter_servers
        if servers is None:
            servers = () if before is None else before.filter_servers
        names = {asked.name} if before is None else before.names | {asked.name}
        if before is not None:
            self._leave_channel(key, before.channel)
        self._keys_of.setdefault(channel, set()).add(key)
        self.live[key] = LiveBroker(
            heard_s=now_s, timeout_s=asked.timeout_s, version=body.version, channel=channel,
            ha_address=asked.ha_address, filter_servers=servers, names=names,
        )

    def _master_for(self, asked: Registering, group: BrokerGroup) -> MasterAddresses:
        address = group.addresses.get(MASTER_ID)
        master = None if address is None else self.live.get((asked.cluster, address))
        if asked.broker_id == MASTER_ID or master is None:
            return MasterAddresses()
        return MasterAddresses(address=address, ha_address=master.ha_address)

    def heartbeat(self, cluster: str, address: str, now_s: float) -> None:
        """A broker lives; nothing happens if it did not register."""
        live = self.live.get((cluster, address))
        if live is not None:
            live.heard_s = now_s

    def compare(
        self, cluster: str, address: str, version: DataVersion, now_s: float
    ) -> tuple[bool, DataVersion | None]:
        """
        Whether a version differs from the one that its broker registered; and that version.

        A broker that asks lives: in 4.9 only if its version is the same.
        """
        live = self.live.get((cluster, address))
        if live is None:
            return True, None
        changed = not live.version.is_same(version)
        if self._is_5 or not changed:
            live.heard_s = now_s
        return changed, live.version

    # -- who registered what --------------------------------------------------------------------

    def holders(self, asked: Registering) -> dict[str, Hashable]:
        """
        The live brokers whose place a registration takes: the one that has its name and id, and the one that
        has its address. By address, the connection of each.
        """
        group = self.groups.get(asked.name)
        addresses, clusters = {asked.address}, {asked.cluster}
        if group is not None:
            addresses.add(group.addresses.get(asked.broker_id, asked.address))
            clusters |= group.clusters
        return {
            address: live.channel for address in addresses for cluster in clusters
            if (live := self.live.get((cluster, address))) is not None
        }

    def channels(self, cluster: str, address: str, name: str) -> set[Hashable]:
        """The connections of the registrations that L{unregister} would touch."""
        live = self.live.get((cluster, address))
        if live is not None:
            return {live.channel}
        group = self.groups.get(name)
        if group is None or address not in group.ids:
            return set()
        return self.channels_of(name)

    def channels_of(self, name: str) -> set[Hashable]:
        """The connections over which the brokers of a name registered."""
        group = self.groups.get(name)
        if group is None:
            return set()
        return {
            live.channel for address in group.ids for cluster in group.clusters
            if (live := self.live.get((cluster, address))) is not None
        }

    # -- the end of brokers ----------------------------------------------------------------------

    def unregister(self, cluster: str, address: str, name: str) -> None:
        """A broker has stopped. Other addresses of the name stay, also one that has the same id by now."""
        live = self.live.get((cluster, address))
        if live is not None:
            self._forget((cluster, address))
        elif name in self.groups:
            self._drop_address(name, address)

    def channel_lost(self, channel: Hashable) -> list[LiveKey]:
        """A connection has ended. @return: the brokers that registered over it; they are forgotten."""
        keys = sorted(self._keys_of.get(channel, ()))
        for key in keys:
            self._forget(key)
        return keys

    def expired(self, now_s: float) -> list[tuple[LiveKey, Hashable]]:
        """Brokers that have not registered in time, with their connections. They are still in the tables."""
        return [
            (key, live.channel) for key, live in self.live.items() if now_s - live.heard_s > live.timeout_s
        ]

    def forget(self, key: LiveKey) -> None:
        """Forget a broker; nothing happens if it is unknown."""
        if key in self.live:
            self._forget(key)

    def _forget(self, key: LiveKey) -> None:
        live = self.live.pop(key)
        self._leave_channel(key, live.channel)
        for name in live.names:
            self._drop_address(name, key[1])

    def _leave_channel(self, key: LiveKey, channel: Hashable) -> None:
        keys = self._keys_of.get(channel)
        if keys is not None:
            keys.discard(key)
            if not keys:
                del self._keys_of[channel]

    def _drop_address(self, name: str, address: str) -> None:
        group = self.groups.get(name)
        if group is None:
            return
        group.drop(address)
        if group.addresses:
            return
        del self.groups[name]
        for cluster in group.clusters:
            self.clusters[cluster].discard(name)
            self._pairs -= 1
            if not self.clusters[cluster]:
                del self.clusters[cluster]
        self._drop_pairs(self._topics_of.pop(name, set()), name)

    # -- topics ----------------------------------------------------------------------------------

    def _put(self, topic: str, broker: str, queues: TopicQueues) -> None:
        pairs = self.topics.get(topic)
        if pairs is None:
            pairs = self.topics[topic] = {}
            self.topic_bytes += len(topic.encode("utf-8"))
        if broker not in pairs:
            self.routes += 1
            self._topics_of.setdefault(broker, set()).add(topic)
        pairs[broker] = queues

    def _drop_pairs(self, topics: Iterable[str], broker: str) -> None:
        for topic in topics:
            pairs = self.topics[topic]
            del pairs[broker]
            self._topics_of.get(broker, set()).discard(topic)
            self.routes -= 1
            if not pairs:
                del self.topics[topic]
                self.topic_bytes -= len(topic.encode("utf-8"))

    def put_topic(self, topic: str, queues: Mapping[str, TopicQueues]) -> None:
        """
        REGISTER_TOPIC_IN_NAMESRV: add the queues of one topic, up to the first broker that is unknown; a new
        topic is not added at all then.

        @raise Refused: beyond a bound.
        """
        known: dict[str, TopicQueues] = {}
        for broker, one in queues.items():
            if broker not in self.groups:
                if topic not in self.topics:
                    return
                break
            known[broker] = one
        for broker, one in known.items():
            self._check_topics({topic: one}, broker)
            self._put(topic, broker, one)

    def delete_topic(self, topic: str, cluster: str | None) -> None:
        """@param cluster: only at brokers of this cluster; None: everywhere."""
        brokers = self.topics.get(topic, {}) if cluster is None else self.clusters.get(cluster, ())
        for broker in list(brokers):
            if broker in self.topics.get(topic, ()):
                self._drop_pairs((topic,), broker)

    def set_writable(self, broker: str, is_writable: bool) -> int:
        """Take the permission to write from all topics of a broker, or give it. @return: their number."""
        topics = self._topics_of.get(broker, ())
        changed: dict[TopicQueues, TopicQueues] = {}  # most topics of a broker have the same numbers
        for pairs in (self.topics[topic] for topic in topics):
            before = pairs[broker]
            if before not in changed:
                perm = PERM_READ_WRITE if is_writable else before.perm & ~PERM_WRITE
                changed[before] = attrs.evolve(before, perm=perm)
            pairs[broker] = changed[before]
        return len(topics)

    # -- answers ---------------------------------------------------------------------------------

    def route(self, topic: str) -> TopicRoute | None:
        """The brokers of a topic; None if no broker has it."""
        queues = self.topics.get(topic)
        if queues is None:
            return None
        groups = tuple(self.groups[name] for name in sorted(queues) if name in self.groups)
        servers = {
            address: live.filter_servers
            for group in groups for address in group.addresses.values()
            if (live := self.live.get((group.cluster, address))) is not None and live.filter_servers
        }
        return TopicRoute(queues=queues, groups=groups, filter_servers=servers) if groups else None

    def topics_of_cluster(self, cluster: str) -> set[str]:
        """Topics with queues at a broker of the cluster."""
        return set().union(*(self._topics_of.get(name, ()) for name in self.clusters.get(cluster, ())))

    def topics_by_flag(self, *, wanted: int, unwanted: int = 0) -> Iterator[str]:
        """Topics whose first queues have the bits C{wanted}, and none of C{unwanted}."""
        for topic, pairs in self.topics.items():
            flag = next(iter(pairs.values())).sys_flag
            if flag & wanted and not flag & unwanted:
                yield topic
