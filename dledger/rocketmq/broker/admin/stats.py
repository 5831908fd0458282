# -*- test-case-name: tests.broker.admin.test_stats -*-
"""
Queries of administrators about topics and groups::

    202  GET_TOPIC_STATS_INFO            300  QUERY_TOPIC_CONSUME_BY_WHO
    203  GET_CONSUMER_CONNECTION_LIST    351  GET_TOPIC_CONFIG
    208  GET_CONSUME_STATS               352  GET_SUBSCRIPTIONGROUP_CONFIG

Tables by queue have objects as keys: this is not JSON, but fastjson writes and reads it.

Source: AdminBrokerProcessor (4.9.8, 5.3.3).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from dledger.rocketmq.answering.java_json import wire_items, wire_json
from dledger.rocketmq.answering.pieces import ITEMS_A_PIECE, Pieces
from dledger.rocketmq.answering.refusals import Code, CommandGroup, Fields, Handlers, Refused
from dledger.rocketmq.broker.consuming.consumers import ConsumerTable
from dledger.rocketmq.broker.consuming.pull_progress import PullProgress
from dledger.rocketmq.broker.options.inside import BrokerInside
from dledger.rocketmq.metadata.files import Metadata
from dledger.rocketmq.metadata.slave_synchronize import ITEMS, WHOLE, metadata_answer
from dledger.rocketmq.metadata.tables import TopicConfig
from dledger.rocketmq.store.queries import stored_ms
from protocols.rocketmq.commands import CommandConnection
from protocols.wire.fastjson import shown_bare
from protocols.wire.remoting import RemotingCommand

GET_TOPIC_STATS_INFO = 202
GET_CONSUMER_CONNECTION_LIST = 203
GET_CONSUME_STATS = 208
QUERY_TOPIC_CONSUME_BY_WHO = 300
GET_TOPIC_CONFIG = 351
GET_SUBSCRIPTIONGROUP_CONFIG = 352

CONSUMER_NOT_ONLINE = 206

#: The most queues in one answer: each takes up to 200 bytes, and reads of the store.
QUEUES_MAX = 16_384


#: Queues of one piece: of each some bytes of the store are read.
QUEUES = 32


def queue_table(
    broker_name: str, entries: Iterable[tuple[str, int, bytes]], **more: object
) -> Pieces[bytes]:
    """
    A document with C{offsetTable}, whose keys are queues; in pieces.

    @param entries: topic, number of the queue, and the value as JSON.
    @param more: further fields of the document.
    @raise Refused: more than L{QUEUES_MAX} queues.
    """
    parts = []
    for topic, queue_id, value in entries:
        key = wire_json({"brokerName": broker_name, "queueId": queue_id, "topic": topic})
        parts.append(key + b":" + value)
        if len(parts) > QUEUES_MAX:
            raise Refused(Code.SYSTEM_ERROR, f"more than {QUEUES_MAX} queues: ask for one topic")
        if not len(parts) % QUEUES:
            yield
    head = wire_json(more)[:-1] + (b"," if more else b"")
    return head + b'"offsetTable":{' + b",".join(parts) + b"}}"


class StatsCommands(CommandGroup):
    """The group of commands."""

    def __init__(self, inside: BrokerInside, table: ConsumerTable, *, progress: PullProgress) -> None:
        self._progress = progress
        self._config = inside.config
        self._store = inside.store
        self._metadata = inside.metadata
        self._table = table

    def handlers(self) -> Handlers:
        """By request code."""
        return {
            GET_TOPIC_STATS_INFO: self._topic_stats,
            GET_CONSUMER_CONNECTION_LIST: self._connections,
            GET_CONSUME_STATS: self._consume_stats,
            QUERY_TOPIC_CONSUME_BY_WHO: self._groups,
            GET_TOPIC_CONFIG: self._topic,
            GET_SUBSCRIPTIONGROUP_CONFIG: self._group,
        }

    # -- by queue --------------------------------------------------------------------------------

    def _table_body(
        self, entries: Iterable[tuple[str, int, Mapping[str, object]]], **more: object
    ) -> Pieces[bytes]:
        named = ((topic, queue_id, wire_json(value)) for topic, queue_id, value in entries)
        return queue_table(self._config.broker_name, named, **more)

    def _known_topic(self, name: str) -> TopicConfig:
        found = self._metadata.topics.get(name)
        if found is None:
            raise Refused(Code.TOPIC_NOT_EXIST, f"topic[{shown_bare(name)}] not exist")
        return found

    def _ends(self, topic: str, queue_id: int) -> tuple[int, int]:
        queue = self._store.queues.get(topic, queue_id)
        if queue is None:
            return 0, 0
        try:
            return self._store.deleted.begin_of(topic, queue), queue.next_index
        except OSError as error:
            raise Refused(Code.SYSTEM_ERROR, f"reading queue {queue_id} of {topic}: {error}") from error

    def _stored_ms(self, topic: str, queue_id: int, index: int) -> int:
        """Store timestamp of a message, ms since 1970; 0 if the message does not exist."""
        queue = self._store.queues.get(topic, queue_id)
        if queue is None or not queue.begin_index <= index < queue.next_index:
            return 0
        try:
            (unit,) = queue.read(index, 1)
            return stored_ms(self._store, unit)
        except OSError as error:
            raise Refused(Code.SYSTEM_ERROR, f"reading {topic}, queue {queue_id}: {error}") from error

    def _topic_stats(self, connection: CommandConnection, request: RemotingCommand) -> Pieces[None]:
        topic = self._known_topic(Fields(request.ext_fields).text("topic"))
        name = topic.topic_name

        def of(queue_id: int) -> tuple[str, int, Mapping[str, object]]:
            begin, end = self._ends(name, queue_id)
            return name, queue_id, {
                "lastUpdateTimestamp": self._stored_ms(name, queue_id, end - 1),
                "maxOffset": end, "minOffset": begin,
            }

        body = yield from self._table_body(map(of, range(topic.write_queue_nums)))
        connection.answer(request, body=body)

    def _consume_stats(self, connection: CommandConnection, request: RemotingCommand) -> Pieces[None]:
        """Answer a group's offsets in one topic, or in all topics of its subscriptions and commits."""
        fields = Fields(request.ext_fields)
        group, wanted = fields.text("consumerGroup"), fields.text("topic", "")
        topics = {wanted} if wanted else {
            *self._metadata.consumer_offsets.topics_of(group), *self._table.topics_of(group)
        }
        entries = (
            (name, queue_id, self.consumed(group, name, queue_id))
            for name in sorted(topics) if (topic := self._metadata.topics.get(name)) is not None
            for queue_id in range(topic.read_queue_nums)
        )
        tps = 0.0 + sum(self._progress.rates.per_second((group, name)) for name in topics)
        connection.answer(request, body=(yield from self._table_body(entries, consumeTps=round(tps, 4))))

    def consumed(self, group: str, topic: str, queue_id: int) -> dict[str, int]:
        """How far a group is in a queue. @raise Refused: the store cannot be read."""
        consumed = max(self._metadata.consumer_offsets.query(group, topic, queue_id) or 0, 0)
        return {
            "brokerOffset": self._ends(topic, queue_id)[1], "consumerOffset": consumed,
            "lastTimestamp": self._stored_ms(topic, queue_id, consumed - 1),
            "pullOffset": self._progress.offset(group, topic, queue_id, consumed),
        }

    # -- others ----------------------------------------------------------------------------------

    def _connections(self, connection: CommandConnection, request: RemotingCommand) -> Pieces[None]:
        group = Fields(request.ext_fields).text("consumerGroup")
        data = self._table.data_of(group)
        if data is None:
            raise Refused(CONSUMER_NOT_ONLINE, f"the consumer group[{shown_bare(group)}] not online")
        subscriptions = {
            one.topic: one.document()
            for one in self._table.subscriptions_of(group)
        }
        members = yield from wire_items(
            {"clientAddr": member.address, "clientId": member.client_id,
             "language": member.language or "OTHER", "version": member.version}
            for member in self._table.members_of(group)
        )
        rest = wire_json({
            "consumeFromWhere": data.consume_from, "consumeType": data.consume_type,
            "messageModel": data.message_model, "subscriptionTable": subscriptions,
        })
        connection.answer(request, body=b'{"connectionSet":[' + members + b"]," + rest[1:])

    def _groups(self, connection: CommandConnection, request: RemotingCommand) -> Pieces[None]:
        topic = Fields(request.ext_fields).text("topic")
        groups = {*self._table.groups_of(topic), *self._metadata.consumer_offsets.groups_of(topic)}
        listed = yield from wire_items(sorted(groups), ITEMS_A_PIECE)
        connection.answer(request, body=b'{"groupList":[' + listed + b"]}")

    def _topic(self, connection: CommandConnection, request: RemotingCommand) -> None:
        topic = self._known_topic(Fields(request.ext_fields).text("topic"))
        connection.answer(request, body=wire_json(topic.document()))

    def _group(self, connection: CommandConnection, request: RemotingCommand) -> None:
        name = Fields(request.ext_fields).text("group")
        found = self._metadata.groups.get(name)
        if found is None:
            raise Refused(Code.SUBSCRIPTION_GROUP_NOT_EXIST, f"group[{shown_bare(name)}] not exist")
        connection.answer(request, body=wire_json(found.document()))


class TableCommands(CommandGroup):
    """The commands by which slaves copy the tables of their master; see L{ITEMS}."""

    def __init__(self, metadata: Metadata) -> None:
        self._metadata = metadata

    def handlers(self) -> Handlers:
        """By request code."""
        return dict.fromkeys(ITEMS, self._answer)

    def _answer(self, connection: CommandConnection, request: RemotingCommand) -> Pieces[None]:
        is_whole = Fields(request.ext_fields).flag(WHOLE, False)
        body = yield from metadata_answer(self._metadata, request.code, is_whole=is_whole)
        assert body is not None
        connection.answer(request, body=body)
