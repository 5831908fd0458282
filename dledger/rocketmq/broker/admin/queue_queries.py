# -*- test-case-name: tests.broker.admin.test_queue_queries -*-
"""
Questions of administrators about queues, and how fast they fill and empty::

    315  VIEW_BROKER_STATS_DATA      317  GET_BROKER_CONSUME_STATS
    321  QUERY_CONSUME_QUEUE

Messages that were put into a topic are counted by their times in the log, for the last minute, hour and day,
also those from before a start. Messages that a group got are counted since the start.

Source: AdminBrokerProcessor, BrokerStatsManager (4.9.8, 5.3.3).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from dledger.rocketmq.answering.java_json import wire_json
from dledger.rocketmq.answering.pieces import ITEMS_A_PIECE, Pieces
from dledger.rocketmq.answering.refusals import LONG_MAX, Code, CommandGroup, Fields, Handlers, Refused
from dledger.rocketmq.broker.admin.stats import QUEUES_MAX, StatsCommands, queue_table
from dledger.rocketmq.broker.consuming.consumers import ConsumerTable
from dledger.rocketmq.broker.consuming.pull_progress import WINDOWS_MS, PullProgress
from dledger.rocketmq.broker.options.inside import BrokerInside
from dledger.rocketmq.metadata.tables import TopicConfig
from dledger.rocketmq.store.queries import offset_at
from dledger.values.errors import StoreError
from protocols.rocketmq.commands import CommandConnection
from protocols.wire.fastjson import shown_bare
from protocols.wire.remoting import RemotingCommand

VIEW_BROKER_STATS_DATA, GET_BROKER_CONSUME_STATS, QUERY_CONSUME_QUEUE = 315, 317, 321

TOPIC_PUT_NUMS, GROUP_GET_NUMS = "TOPIC_PUT_NUMS", "GROUP_GET_NUMS"
#: Queues of a topic whose messages are counted: each takes some reads of the log.
COUNTED_MAX = 256
#: Units in one answer.
UNITS_MAX = 1_024

_WINDOWS = ("statsMinute", "statsHour", "statsDay")


class _Stats(NamedTuple):
    """
    Offsets of a group in a topic.

    @ivar lag: number of messages that it has not consumed. @ivar held: of them, those with its consumers.
    """

    document: bytes
    lag: int
    held: int


class QueueQueries(CommandGroup):
    """The group of commands."""

    def __init__(
        self, inside: BrokerInside, table: ConsumerTable, stats: StatsCommands, *, progress: PullProgress
    ) -> None:
        self._config = inside.config
        self._store = inside.store
        self._metadata = inside.metadata
        self._table = table
        self._stats = stats
        self._progress = progress
        self._own = inside.own
        self._wall_ms = inside.wall_ms

    def handlers(self) -> Handlers:
        """By request code."""
        return {
            VIEW_BROKER_STATS_DATA: self._view, GET_BROKER_CONSUME_STATS: self._consumed,
            QUERY_CONSUME_QUEUE: self._units,
        }

    # -- figures ---------------------------------------------------------------------------------

    def _view(self, connection: CommandConnection, request: RemotingCommand) -> Pieces[None]:
        fields = Fields(request.ext_fields)
        name, key = fields.text("statsName"), fields.text("statsKey")
        if name == TOPIC_PUT_NUMS and self._metadata.topics.get(key) is not None:
            sums: Iterable[float] = yield from self._put(key)
        elif name == GROUP_GET_NUMS and (group := key.rpartition("@")[2]) and "@" in key:
            sums = self._progress.rates.last((group, key.rpartition("@")[0]))
        else:
            raise Refused(
                Code.SYSTEM_ERROR, f"The stats <{shown_bare(name)}> <{shown_bare(key)}> not exist: here are "
                f"{TOPIC_PUT_NUMS} of topics, and {GROUP_GET_NUMS} of topic@group",
            )
        connection.answer(request, body=wire_json({
            window: {"sum": round(count), "tps": round(count * 1000 / window_ms, 4)}
            for window, window_ms, count in zip(_WINDOWS, WINDOWS_MS, sums, strict=True)
        }))

    def _put(self, topic: str) -> Pieces[tuple[float, ...]]:
        """Messages of the last minute, hour and day."""
        numbers = [queue_id for name, queue_id in self._store.queues.keys() if name == topic]
        if len(numbers) > COUNTED_MAX:
            raise Refused(Code.SYSTEM_ERROR, f"{topic} has {len(numbers)} queues with messages, those of "
                                             f"{COUNTED_MAX} are counted")
        now_ms, sums = self._wall_ms(), []
        try:
            for window_ms in WINDOWS_MS:
                count = 0
                for queue_id in numbers:
                    queue = self._store.queues.get(topic, queue_id)
                    begin = offset_at(self._store, topic, queue_id, now_ms - window_ms)
                    yield
                    count += 0 if queue is None else queue.next_index - begin
                sums.append(float(count))
        except StoreError as error:
            raise Refused(Code.SYSTEM_ERROR, str(error)) from error
        return tuple(sums)

    # -- all groups ------------------------------------------------------------------------------

    def _consumed(self, connection: CommandConnection, request: RemotingCommand) -> Pieces[None]:
        is_ordered = Fields(request.ext_fields).flag("isOrder", False)
        parts, lag, held, left = [], 0, 0, QUEUES_MAX
        committed: dict[str, list[str]] = {}
        for number, (group, topic, _) in enumerate(list(self._metadata.consumer_offsets.rows()), 1):
            committed.setdefault(group, []).append(topic)
            if not number % ITEMS_A_PIECE:
                yield
        for number, group in enumerate(sorted(self._metadata.groups.entries), 1):
            if not number % ITEMS_A_PIECE:
                yield
            found: list[_Stats] = []
            for config in self._topics_of(group, committed.get(group, ()), is_ordered=is_ordered):
                left -= config.write_queue_nums
                if left < 0:
                    raise Refused(Code.SYSTEM_ERROR, f"more than {QUEUES_MAX} queues: ask for a group (208)")
                found.append((yield from self._of(group, config.topic_name, config.write_queue_nums)))
                yield
            lag += sum(one.lag for one in found)
            held += sum(one.held for one in found)
            parts.append(wire_json({group: []})[:-2] + b",".join(one.document for one in found) + b"]}")
        head = wire_json({"brokerAddr": self._own.text, "totalDiff": lag, "totalInflightDiff": held})
        connection.answer(request, body=head[:-1] + b',"consumeStatsList":[' + b",".join(parts) + b"]}")

    def _topics_of(
        self, group: str, committed: Iterable[str], *, is_ordered: bool
    ) -> Iterator[TopicConfig]:
        """@param committed: topics in which the group has committed."""
        subscribed = self._table.topics_of(group)
        for name in sorted(committed):
            topic = self._metadata.topics.get(name)
            if topic is None or (is_ordered and not topic.order):
                continue
            if not subscribed or name in subscribed:
                yield topic

    def _of(self, group: str, topic: str, queues: int) -> Pieces[_Stats]:
        lag = held = 0

        def of(queue_id: int) -> tuple[str, int, bytes]:
            nonlocal lag, held
            one = self._stats.consumed(group, topic, queue_id)
            lag += one["brokerOffset"] - one["consumerOffset"]
            held += one["pullOffset"] - one["consumerOffset"]
            return topic, queue_id, wire_json(one)

        tps = round(self._progress.rates.per_second((group, topic)), 4)
        table = yield from queue_table(self._config.broker_name, map(of, range(queues)), consumeTps=tps)
        return _Stats(table, lag, held)

    # -- units of a queue ------------------------------------------------------------------------

    def _units(self, connection: CommandConnection, request: RemotingCommand) -> None:
        fields = Fields(request.ext_fields)
        topic, queue_id = fields.text("topic"), fields.number("queueId", least=0)
        index = fields.number("index", least=0, most=LONG_MAX)
        count, group = fields.number("count", least=0, most=UNITS_MAX), fields.text("consumerGroup", "")
        queue = self._store.queues.get(topic, queue_id)
        if queue is None:
            raise Refused(Code.SYSTEM_ERROR, f"{queue_id}@{shown_bare(topic)} is not exist!")
        try:
            begin = self._store.deleted.begin_of(topic, queue)
            is_there = begin <= index < queue.next_index
            units = queue.read(index, min(count, queue.next_index - index)) if is_there and count else []
        except OSError as error:
            raise Refused(Code.SYSTEM_ERROR, f"reading queue {queue_id} of {topic}: {error}") from error
        body: dict[str, object] = {
            "maxQueueIndex": queue.next_index, "minQueueIndex": begin, "queueData": [
                {"eval": False, "physicOffset": one.offset, "physicSize": one.size, "tagsCode": one.tags_code}
                for one in units
            ],
        }
        if group:
            found = self._table.subscription_of(group, topic)
            if found is None:
                body["filterData"] = f"{group}@{topic} is not online!"
            else:
                body["subscriptionData"] = found.document()
        remark = None if is_there else f"Index {index} of {queue_id}@{topic} is not exist!"
        connection.answer(request, remark=remark, body=wire_json(body))
