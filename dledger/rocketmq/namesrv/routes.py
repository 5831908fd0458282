# -*- test-case-name: tests.namesrv.test_routes -*-
"""
The tables of a name server: brokers by name and by cluster, topics and their queues, and the brokers that
live::

    cluster -> broker names        broker name -> {id -> address}        topic -> {broker name -> queues}
    (cluster, address) -> last registration, its version, its connection

Rule 1: a broker lives until its connection ends, until it unregisters, or until its last registration is
older than its timeout. Then its address goes; with the last address of a name go the name and its queues.
Rule 2: a registration beyond a bound of L{RouteLimits} is refused, and changes nothing.
Rule 3: only the master's topics count, and in 5.x those of the smallest id of a group without a master, if
its brokers send C{enableActingMaster}. Topics are added or changed, never removed, by a registration.

Rule 4: work on many topics is done in pieces (L{dledger.rocketmq.answering.pieces}). A broker is in
the tables as soon as its registration is found to be within the bounds; its topics follow, and its version
last. Of a broker that is forgotten, L{DROPPED_AT_ONCE} topics go at once, further ones by
L{RouteTable.drop_some}; no route shows them.

Knows no connection and no clock. Source: RouteInfoManager (4.9.8, 5.3.3).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from itertools import islice

import attrs

from dledger.rocketmq.answering.java_json import DataVersion
from dledger.rocketmq.answering.pieces import Pieces, at_once
from dledger.rocketmq.answering.refusals import Code, Refused
from dledger.rocketmq.namesrv.registrations import PERM_READ_WRITE, PERM_WRITE, BrokerTopics, TopicQueues

#: The id of a master.
MASTER_ID = 0
#: Seconds after its last registration for which a broker lives, unless it names another time.
EXPIRY_S = 120.0
#: The longest such time.
EXPIRY_MAX_S = 86_400.0

#: Pairs of topic and broker that are taken out in one piece.
DROPPED_AT_ONCE = 1000

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
    it has queues; C{_keys_of} are the live brokers of each connection. C{_dropping} has the topics that
    brokers had, and that still have a pair with them; they count no longer.
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
        self._dropping: dict[str, set[str]] = {}
        #: What registrations under way will add, at most.
        self._coming = dict.fromkeys(("topics", "routes", "topic_bytes"), 0)
        self._pairs = 0
        self.routes = 0
        self.topic_bytes = 0

    # -- registration ----------------------------------------------------------------------------

    def registering(
        self, asked: Registering, body: BrokerTopics, channel: Hashable, now_s: float, *, drops: bool = False,
        judge: Callable[[], None] = lambda: None,
    ) -> Pieces[MasterAddresses]:
        """
        Take over one registration.

        @param judge: called just before the first change; it refuses by an exception.
        @param channel: the connection; when it ends, see L{channel_lost}.
        @param drops: topics that it lacks leave the broker's routes. (So 4.9 reports one new topic: not.)
        @raise Refused: beyond a bound, or (5.x) a first registration with exactly one topic. Nothing has
            changed.
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
        topics = (yield from self._topics_taken(asked, body, known, is_first)) if decides else {}
        more = yield from self._more_with(topics, asked.name)
        self._check_topics(more)
        # (While the topics were looked at, others may have come or gone.)
        self._check_brokers(asked, self.live.get(key))
        judge()
        for what, count in more.items():
            self._coming[what] += count
        try:
            group = self._enter(asked, self.groups.get(asked.name))
            live = self._keep_alive(key, asked, body, channel, now_s)
            if drops and decides and len(body.topics) > 1:
                gone = []
                for number, name in enumerate(list(self._topics_of.get(asked.name, ())), 1):
                    if name not in body.topics:
                        gone.append(name)
                    if not number % DROPPED_AT_ONCE:
                        yield
                for at in range(0, len(gone), DROPPED_AT_ONCE):
                    self._drop_pairs(gone[at : at + DROPPED_AT_ONCE], asked.name)
                    yield
            coming = iter(topics.items())
            while some := list(islice(coming, DROPPED_AT_ONCE)):
                if self.live.get(key) is not live:  # it is gone, or has registered again
                    return MasterAddresses()
                self._put_some(some, asked.name, more)
                if len(some) == DROPPED_AT_ONCE:
                    yield
        finally:
            for what, count in more.items():
                self._coming[what] -= count
        live.version = body.version
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
    ) -> Pieces[Mapping[str, TopicQueues]]:
        """Topics of a registration that change the table."""
        topics = body.topics
        if asked.broker_id != MASTER_ID and asked.acting:
            topics = {}
            changed: dict[TopicQueues, TopicQueues] = {}
            for number, (name, one) in enumerate(body.topics.items(), 1):
                if one not in changed:
                    changed[one] = attrs.evolve(one, perm=one.perm & ~PERM_WRITE)
                topics[name] = changed[one]
                if not number % DROPPED_AT_ONCE:
                    yield
        if is_first or known is None or not known.version.is_same(body.version):
            return topics
        if not self._is_5:
            return {}
        missing, mine = {}, self._topics_of.get(asked.name) or set()
        for number, (name, one) in enumerate(topics.items(), 1):
            if name not in mine:
                missing[name] = one
            if not number % DROPPED_AT_ONCE:
                yield
        return missing

    def _more_with(self, topics: Mapping[str, TopicQueues], broker: str) -> Pieces[dict[str, int]]:
        """By how much the bounded numbers rise with these topics of a broker."""
        fresh = unknown = size = 0
        mine = self._topics_of.get(broker) or set()
        for number, name in enumerate(topics, 1):
            if name not in mine:
                fresh += 1
                if name not in self.topics:
                    unknown += 1
                    size += len(name.encode("utf-8"))
            if not number % DROPPED_AT_ONCE:
                yield
        return {"topics": unknown, "routes": fresh, "topic_bytes": size}

    def _check_topics(self, more: Mapping[str, int]) -> None:
        """@param more: see L{_more_with}. @raise Refused: there would be too many."""
        limits, coming = self.limits, self._coming
        for what, now, most in (
            ("topics", len(self.topics), limits.topics_max), ("routes", self.routes, limits.routes_max),
            ("topic_bytes", self.topic_bytes, limits.topic_bytes_max),
        ):
            count = now + coming[what] + more[what]
            if count > most and more["routes"]:
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
    ) -> LiveBroker:
        """
        @return: without its new version: until its topics are in the table, its next registration is read as
            one that changes them.
        """
        before = self.live.get(key)
        servers = body.filter_servers
        if servers is None:
            servers = () if before is None else before.filter_servers
        names = {asked.name} if before is None else before.names | {asked.name}
        if before is not None:
            self._leave_channel(key, before.channel)
        self._keys_of.setdefault(channel, set()).add(key)
        version = DataVersion() if before is None else before.version
        live = self.live[key] = LiveBroker(
            heard_s=now_s, timeout_s=asked.timeout_s, version=version, channel=channel,
            ha_address=asked.ha_address, filter_servers=servers, names=names,
        )
        return live

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
        topics = self._topics_of.pop(name, set())
        if len(topics) <= DROPPED_AT_ONCE and name not in self._dropping:
            self._drop_pairs(topics, name)
            return
        self.routes -= len(topics)
        before = self._dropping.get(name, set())
        small, large = sorted((before, topics), key=len)
        large |= small
        self._dropping[name] = large

    @property
    def is_dropping(self) -> bool:
        """Whether L{drop_some} has something to do."""
        return bool(self._dropping)

    def drop_some(self) -> None:
        """Take out some pairs of brokers that were forgotten."""
        name = next(iter(self._dropping))
        topics = self._dropping[name]
        for _ in range(min(DROPPED_AT_ONCE, len(topics))):
            self._drop_pair(topics.pop(), name)
        if not topics:
            del self._dropping[name]

    # -- topics ----------------------------------------------------------------------------------

    def _put_some(
        self, topics: Iterable[tuple[str, TopicQueues]], broker: str, coming: dict[str, int]
    ) -> None:
        """@param coming: the part of C{_coming} for the topics of this registration."""
        before = len(self.topics), self.routes, self.topic_bytes
        for name, queues in topics:
            self._put(name, broker, queues)
        for what, then, now in zip(
            coming, before, (len(self.topics), self.routes, self.topic_bytes), strict=True
        ):
            self._coming[what] -= now - then
            coming[what] -= now - then

    def _put(self, topic: str, broker: str, queues: TopicQueues) -> None:
        pairs = self.topics.get(topic)
        if pairs is None:
            pairs = self.topics[topic] = {}
            self.topic_bytes += len(topic.encode("utf-8"))
        mine = self._topics_of.setdefault(broker, set())
        if topic not in mine:
            mine.add(topic)
            self.routes += 1
            if broker in self._dropping:
                self._dropping[broker].discard(topic)
        pairs[broker] = queues

    def _drop_pairs(self, topics: Iterable[str], broker: str) -> None:
        mine = self._topics_of.get(broker, set())
        for topic in topics:
            self.routes -= 1
            mine.discard(topic)
            self._drop_pair(topic, broker)

    def _drop_pair(self, topic: str, broker: str) -> None:
        pairs = self.topics[topic]
        del pairs[broker]
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
            self._check_topics(at_once(self._more_with({topic: one}, broker)))
            self._put(topic, broker, one)

    def delete_topic(self, topic: str, cluster: str | None) -> None:
        """@param cluster: only at brokers of this cluster; None: everywhere."""
        brokers = self.topics.get(topic, {}) if cluster is None else self.clusters.get(cluster, ())
        for broker in list(brokers):
            if topic in self._topics_of.get(broker, ()):
                self._drop_pairs((topic,), broker)

    def set_writable(self, broker: str, is_writable: bool) -> Pieces[int]:
        """Take the permission to write from all topics of a broker, or give it. @return: their number."""
        topics = list(self._topics_of.get(broker, ()))
        changed: dict[TopicQueues, TopicQueues] = {}  # most topics of a broker have the same numbers
        for number, topic in enumerate(topics, 1):
            if not number % DROPPED_AT_ONCE:
                yield
            if topic not in self._topics_of.get(broker, ()):
                continue  # it has gone meanwhile
            pairs = self.topics[topic]
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
        if self._dropping:
            dropping = self._dropping
            queues = {name: one for name, one in queues.items() if topic not in dropping.get(name, ())}
        groups = tuple(self.groups[name] for name in sorted(queues) if name in self.groups)
        servers = {
            address: live.filter_servers
            for group in groups for address in group.addresses.values()
            if (live := self.live.get((group.cluster, address))) is not None and live.filter_servers
        }
        return TopicRoute(queues=queues, groups=groups, filter_servers=servers) if groups else None

    def topics_of_cluster(self, cluster: str) -> Pieces[set[str]]:
        """Topics with queues at a broker of the cluster."""
        found: set[str] = set()
        for name in list(self.clusters.get(cluster, ())):
            topics = list(self._topics_of.get(name, ()))
            for at in range(0, len(topics), DROPPED_AT_ONCE):
                found.update(topics[at : at + DROPPED_AT_ONCE])
                yield
        return found

    def topics_by_flag(self, *, wanted: int, unwanted: int = 0) -> Pieces[list[str]]:
        """Topics whose first queues have the bits C{wanted}, and none of C{unwanted}."""
        found = []
        for number, topic in enumerate(list(self.topics), 1):
            if not number % DROPPED_AT_ONCE:
                yield
            pairs = self.topics.get(topic)
            if pairs:
                flag = next(iter(pairs.values())).sys_flag
                if flag & wanted and not flag & unwanted:
                    found.append(topic)
        return found
