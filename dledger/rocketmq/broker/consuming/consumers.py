# -*- test-case-name: tests.broker.consuming.test_consumers -*-
"""
The consumer groups: their members, with their connections, and their subscriptions::

    34  HEART_BEAT                    38  GET_CONSUMER_LIST_BY_GROUP
    35  UNREGISTER_CLIENT             46  CHECK_CLIENT_CONFIG

A client is a member of a group from its first heartbeat until its connection ends, it unregisters, or it is
silent for 120 s. The members of a group divide its queues among themselves: the broker notifies each (40,
NOTIFY_CONSUMER_IDS_CHANGED) when the members change, and each asks for the list (38).

Rule 1: a group's subscriptions are those of the last heartbeat, as in RocketMQ; a subscription with an older
version does not replace a newer one.
Rule 2: a master creates groups and their topics for retries at the first heartbeat. A slave creates nothing:
it copies its master's tables.
Rule 3: the table is bounded; a heartbeat that does not fit is refused with SYSTEM_BUSY.

Source: ClientManageProcessor, ConsumerManager, ConsumerGroupInfo, ConsumerManageProcessor (4.9.8, 5.3.3).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from itertools import islice

import attrs
from twisted.logger import Logger

from dledger.rocketmq.answering.java_json import read_request, wire_items
from dledger.rocketmq.answering.pieces import ITEMS_A_PIECE, Pieces
from dledger.rocketmq.answering.refusals import Code, CommandGroup, Fields, Handlers, Refused
from dledger.rocketmq.broker.consuming.producers import EXPIRED_MS, Member, ProducerRights, ProducerTable
from dledger.rocketmq.broker.consuming.subscriptions import (
    ConsumerData,
    Subscription,
    filter_of,
    read_heartbeat,
    read_subscription,
)
from dledger.rocketmq.broker.options.groups import find_group, retry_topic
from dledger.rocketmq.broker.options.inside import BrokerInside
from protocols.rocketmq.commands import CommandConnection
from protocols.wire.documents import to_object
from protocols.wire.errors import BodyError
from protocols.wire.fastjson import shown
from protocols.wire.remoting import RemotingCommand

HEART_BEAT = 34
UNREGISTER_CLIENT = 35
GET_CONSUMER_LIST_BY_GROUP = 38
NOTIFY_CONSUMER_IDS_CHANGED = 40
CHECK_CLIENT_CONFIG = 46

#: The most groups with members, and the most members of all groups together.
GROUPS_MAX = 16_384
MEMBERS_MAX = 65_536
#: The most topics and tags in the subscriptions of all groups together.
WANTED_MAX = 1_048_576
#: Topics of a member whose last expression is remembered.
SAID_MAX = 16


#: In place of a hash that was not kept.
_UNKNOWN = -1


@attrs.define
class _Member:
    """@ivar said: by topic, a hash of the expression in its last heartbeat; of L{SAID_MAX} topics."""

    client_id: str
    language: str
    version: int
    heard_ms: int
    said: Mapping[str, int] = attrs.Factory(dict)

    def says(self, topic: str) -> int | None:
        """A hash of its expression for a topic; None: it does not subscribe to it."""
        return self.said.get(topic, _UNKNOWN if len(self.said) >= SAID_MAX else None)


@attrs.frozen(kw_only=True)
class GroupMember:
    """A member of a group, for queries."""

    client_id: str
    address: str
    language: str
    version: int


@attrs.define
class _Group:
    """
    Invariant: it has at least one member while it is in the table.

    @ivar wanted: number of topics and tags in C{subscriptions}.
    """

    data: ConsumerData
    members: dict[Member, _Member] = attrs.Factory(dict)
    subscriptions: dict[str, Subscription] = attrs.Factory(dict)
    wanted: int = 0

    def subscribe(self, wanted: Iterable[Subscription], said: Mapping[str, int]) -> bool:
        """
        Replace the subscriptions. Of two members that differ the higher version counts; one that has changed
        its own expression is believed in any case: its clock may have been set back.

        @param said: hashes of the member's expressions in its heartbeat before.
        @return: whether the topics have changed.
        """
        new = {one.topic: one for one in wanted}
        has_changed = new.keys() != self.subscriptions.keys()
        for topic, before in self.subscriptions.items():
            if topic in new and new[topic].version <= before.version:
                own = _hash_of(new[topic])
                if said.get(topic, own) == own:
                    new[topic] = before
        self.subscriptions = new
        self.wanted = _count(new.values())
        return has_changed


    def left(self, gone: _Member) -> None:
        """
        Forget the expressions that only this member has sent, for topics on which others have another one:
        the newer version of a client that is gone, as after a change that was taken back, would have their
        messages passed over. Their pulls are refused until their next heartbeats.
        """
        for topic, own in gone.said.items():
            counts = self.subscriptions.get(topic)
            if counts is None or _hash_of(counts) != own:
                continue
            others = [one.says(topic) for one in self.members.values()]
            if own not in others and _UNKNOWN not in others and set(others) != {None}:
                del self.subscriptions[topic]
        self.wanted = _count(self.subscriptions.values())


def _hash_of(subscription: Subscription) -> int:
    return hash((subscription.expression, subscription.kind))


def _count(subscriptions: Iterable[Subscription]) -> int:
    return sum(1 + len(one.codes or ()) for one in subscriptions)


class ConsumerTable:
    """The groups that have members."""

    log = Logger()

    def __init__(
        self, *, groups_max: int = GROUPS_MAX, members_max: int = MEMBERS_MAX, wanted_max: int = WANTED_MAX
    ) -> None:
        self._groups: dict[str, _Group] = {}
        self._count = 0
        self._wanted = 0
        self._wanted_max = wanted_max
        self._groups_max = groups_max
        self._members_max = members_max

    def __len__(self) -> int:
        """Number of members of all groups."""
        return self._count

    def register(
        self, member: Member, client_id: str, data: ConsumerData, *, now_ms: int, language: str = "",
        version: int = 0, notifies: bool = True,
    ) -> None:
        """
        Record a heartbeat for one group.

        @param notifies: notify the members of a new member or changed topics.
        @raise Refused: SYSTEM_BUSY: the table is full; nothing has changed.
        """
        group = self._groups.get(data.group)
        is_new = group is None or member not in group.members
        wanted = self._wanted - (0 if group is None else group.wanted) + _count(data.subscriptions.values())
        if (
            (group is None and len(self._groups) >= self._groups_max)
            or (is_new and self._count >= self._members_max) or wanted > self._wanted_max
        ):
            raise Refused(
                Code.SYSTEM_BUSY,
                f"{len(self._groups)} groups have {self._count} members and want {self._wanted} topics and "
                "tags; no more are allowed",
            )
        if group is None:
            group = self._groups[data.group] = _Group(data)
        group.data = data
        before = group.members.get(member)
        said = {topic: _hash_of(one) for topic, one in islice(data.subscriptions.items(), SAID_MAX)}
        group.members[member] = _Member(client_id, language, version, now_ms, said)
        self._count += is_new
        self._wanted -= group.wanted
        has_changed = group.subscribe(data.subscriptions.values(), {} if before is None else before.said)
        self._wanted += group.wanted
        if has_changed or is_new:
            self.log.info("group {group}: {client_id} at {address} joins or changes its topics",
                          group=data.group, client_id=client_id, address=member.address)
            if notifies:
                self._notify(data.group, group)

    def unregister(self, member: Member, name: str, *, notifies: bool = True) -> None:
        """Remove a member, if it is one."""
        group = self._groups.get(name)
        if group is None or member not in group.members:
            return
        gone = group.members.pop(member)
        self._count -= 1
        self.log.info("group {group}: {client_id} leaves", group=name, client_id=gone.client_id)
        if not group.members:
            self._wanted -= group.wanted
            del self._groups[name]
            return
        self._wanted -= group.wanted
        group.left(gone)
        self._wanted += group.wanted
        if notifies:
            self._notify(name, group)

    def lost(self, member: Member, *, notifies: Callable[[str], bool] = lambda name: True) -> None:
        """Remove the members whose connection has ended."""
        for name in [name for name, group in self._groups.items() if member in group.members]:
            self.unregister(member, name, notifies=notifies(name))

    def expire(self, now_ms: int, *, notifies: Callable[[str], bool] = lambda name: True) -> None:
        """Remove members that have been silent for longer than L{EXPIRED_MS}."""
        for name, group in list(self._groups.items()):
            late = [one for one, known in group.members.items() if now_ms - known.heard_ms > EXPIRED_MS]
            for member in late:
                self.unregister(member, name, notifies=notifies(name))

    def _notify(self, name: str, group: _Group) -> None:
        command = RemotingCommand(
            code=NOTIFY_CONSUMER_IDS_CHANGED, opaque=0, ext_fields={"consumerGroup": name}
        )
        for member in group.members:
            member.notify(command)

    def notify(self, name: str, command: RemotingCommand) -> int:
        """Send every member of a group a one-way request. @return: the number of members."""
        group = self._groups.get(name)
        members = () if group is None else tuple(group.members)
        for member in members:
            member.notify(command)
        return len(members)

    # -- queries ---------------------------------------------------------------------------------

    def data_of(self, group: str) -> ConsumerData | None:
        """The data of the group's last heartbeat; None without members."""
        found = self._groups.get(group)
        return None if found is None else found.data

    def subscription_of(self, group: str, topic: str) -> Subscription | None:
        """The group's subscription to the topic; None if there is none."""
        found = self._groups.get(group)
        return None if found is None else found.subscriptions.get(topic)

    def subscriptions_of(self, group: str) -> list[Subscription]:
        """All subscriptions of the group."""
        found = self._groups.get(group)
        return [] if found is None else list(found.subscriptions.values())

    def topics_of(self, group: str) -> list[str]:
        """Topics to which the group subscribes."""
        return [one.topic for one in self.subscriptions_of(group)]

    def members_of(self, group: str) -> list[GroupMember]:
        """The members of the group."""
        found = self._groups.get(group)
        return [] if found is None else [
            GroupMember(client_id=one.client_id, address=member.address, language=one.language,
                       version=one.version)
            for member, one in found.members.items()
        ]

    def count_of(self, group: str) -> int:
        """Number of members of the group."""
        found = self._groups.get(group)
        return 0 if found is None else len(found.members)

    def member(self, group: str, client_id: str) -> Member | None:
        """The connection of a client in a group; None: it is not there."""
        found = self._groups.get(group)
        members = {} if found is None else found.members
        return next((one for one, known in members.items() if known.client_id == client_id), None)

    def groups_of(self, topic: str) -> list[str]:
        """Groups that subscribe to the topic."""
        return [name for name, group in self._groups.items() if topic in group.subscriptions]


class ConsumerCommands(CommandGroup):
    """
    The group of commands.

    @ivar table: the groups that have members.
    """

    small_codes = frozenset({HEART_BEAT, UNREGISTER_CLIENT, CHECK_CLIENT_CONFIG})

    def __init__(
        self, inside: BrokerInside, table: ConsumerTable, producers: ProducerTable, *,
        steady_ms: Callable[[], int], rights: ProducerRights | None = None,
    ) -> None:
        """
        @param steady_ms: the same of a clock that nobody sets: for the silence of clients.
        @param rights: of the accounts; None: everybody may do everything. Other producers than those with
            rights are answered, as a consumer's heartbeat names groups of producers, too; they are not known.
        """
        self._rights = rights
        self._producers = producers
        self._config = inside.config
        self._metadata = inside.metadata
        self._wall_ms = inside.wall_ms
        self._steady_ms = steady_ms
        self.table = table

    def handlers(self) -> Handlers:
        """By request code."""
        return {
            HEART_BEAT: self._heart_beat,
            UNREGISTER_CLIENT: self._unregister,
            GET_CONSUMER_LIST_BY_GROUP: self._list,
            CHECK_CLIENT_CONFIG: self._check,
        }

    def connection_lost(self, connection: CommandConnection) -> None:
        """Remove the members of this connection."""
        self.table.lost(connection, notifies=self._notifies)
        self._producers.lost(connection)

    def sweep(self) -> None:
        """Remove silent members. Called every few seconds."""
        now_ms = self._steady_ms()
        self.table.expire(now_ms, notifies=self._notifies)
        self._producers.expire(now_ms)

    def _notifies(self, group: str) -> bool:
        found = self._metadata.groups.get(group)
        return found is None or found.notify_consumer_ids_changed_enable

    def _heart_beat(self, connection: CommandConnection, request: RemotingCommand) -> Pieces[None]:
        said = yield from read_heartbeat(request.body)
        now_ms = self._steady_ms()
        rights = self._rights
        owner = "" if rights is None else rights.owner_of(connection)
        for name in said.producer_groups:
            if rights is None or rights.may_produce(connection, said.client_id, name):
                self._producers.register(
                    connection, said.client_id, name, now_ms, owner, kind=(request.language, request.version)
                )
        for data in said.consumers:
            yield  # (A group's other members are informed of a new one.)
            group = find_group(self._metadata, self._config, data.group, self._wall_ms())
            if group is None:
                continue  # its pulls are refused
            retry_topic(self._metadata, self._config, group, self._wall_ms())
            self.table.register(
                connection, said.client_id, data, now_ms=now_ms, language=request.language,
                version=request.version, notifies=group.notify_consumer_ids_changed_enable,
            )
        connection.answer(request)

    def _unregister(self, connection: CommandConnection, request: RemotingCommand) -> None:
        fields = Fields(request.ext_fields)
        if producer := fields.text("producerGroup", ""):
            self._producers.unregister(connection, producer)
        if group := fields.text("consumerGroup", ""):
            self.table.unregister(connection, group, notifies=self._notifies(group))
        connection.answer(request)

    def _list(self, connection: CommandConnection, request: RemotingCommand) -> Pieces[None]:
        group = Fields(request.ext_fields).text("consumerGroup")
        ids = [member.client_id for member in self.table.members_of(group)]
        if not ids:
            raise Refused(Code.SYSTEM_ERROR, f"no consumer for this group, {shown(group)}")
        listed = yield from wire_items(ids, ITEMS_A_PIECE)
        connection.answer(request, body=b'{"consumerIdList":[' + listed + b"]}")

    def _check(self, connection: CommandConnection, request: RemotingCommand) -> None:
        """Answer whether a subscription is valid."""
        try:
            document = read_request(request.body).get("subscriptionData")
            if document is not None:
                filter_of(
                    read_subscription(to_object(document, "subscriptionData")),
                    is_enabled=self._config.enable_property_filter,
                )
        except BodyError as error:
            raise Refused(Code.SYSTEM_ERROR, f"subscription: {error}") from error
        connection.answer(request)
