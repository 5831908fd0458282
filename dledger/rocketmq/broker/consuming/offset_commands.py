# -*- test-case-name: tests.broker.consuming.test_offset_commands -*-
"""
Offsets in queues: the committed offsets of groups, the beginnings and ends of queues, and single messages::

    14  QUERY_CONSUMER_OFFSET         31  GET_MIN_OFFSET
    15  UPDATE_CONSUMER_OFFSET        32  GET_EARLIEST_MSG_STORETIME
    29  SEARCH_OFFSET_BY_TIMESTAMP    33  VIEW_MESSAGE_BY_ID
    30  GET_MAX_OFFSET

Rule: a group that has never committed an offset in a queue gets the first offset of the queue while the first
message is recent, so that a new consumer of a new topic misses no message. Otherwise, or if the request asks
for it (C{setZeroIfNotFound}), the answer is QUERY_NOT_FOUND, and the consumer chooses its first offset. The
first offset of a queue is 0, unless its topic was deleted and made again.

What a consumer commits is judged by L{dledger.rocketmq.broker.consuming.commits}.

Source: ConsumerManageProcessor, AdminBrokerProcessor, QueryMessageProcessor (4.9.8, 5.3.3).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from twisted.internet.defer import Deferred

from dledger.rocketmq.answering.refusals import (
    LONG_MAX,
    LONG_MIN,
    Code,
    CommandGroup,
    Fields,
    Handlers,
    Refused,
)
from dledger.rocketmq.broker.consuming.commits import CommitJudge
from dledger.rocketmq.broker.options.groups import OWN_GROUPS
from dledger.rocketmq.broker.options.inside import BrokerInside
from dledger.rocketmq.store.queries import offset_at, stored_ms
from dledger.rocketmq.store.queues.consume_queue import ConsumeQueue
from dledger.values.errors import StoreError
from protocols.rocketmq.commands import CommandConnection
from protocols.wire.fastjson import shown, shown_bare
from protocols.wire.remoting import RemotingCommand
from protocols.wire.rocketmq.layout import HEAD_SIZE, WALKED

QUERY_CONSUMER_OFFSET = 14
UPDATE_CONSUMER_OFFSET = 15
SEARCH_OFFSET_BY_TIMESTAMP = 29
GET_MAX_OFFSET = 30
GET_MIN_OFFSET = 31
GET_EARLIEST_MSG_STORETIME = 32
VIEW_MESSAGE_BY_ID = 33

QUEUE_ID_MAX = 65_535

_T = TypeVar("_T")


class OffsetCommands(CommandGroup):
    """The commands that ask for offsets, or set them."""

    small_codes = frozenset({
        QUERY_CONSUMER_OFFSET, UPDATE_CONSUMER_OFFSET, SEARCH_OFFSET_BY_TIMESTAMP, GET_MAX_OFFSET,
        GET_MIN_OFFSET, GET_EARLIEST_MSG_STORETIME,
    })

    def __init__(
        self, inside: BrokerInside, commits: CommitJudge, *, settled: Callable[[], Deferred[None]],
        slow_bytes: int = 0,
    ) -> None:
        """
        @param settled: see L{dledger.rocketmq.broker.replication.Replication.settled}.
        @param slow_bytes: a message further than this before the end of the log is not recent; 0: no limit.
        """
        self._config = inside.config
        self._store = inside.store
        self._metadata = inside.metadata
        self._commits = commits
        self._wall_ms = inside.wall_ms
        self._slow_bytes = slow_bytes
        self._settled = settled

    def handlers(self) -> Handlers:
        """The method for each request code."""
        return {
            QUERY_CONSUMER_OFFSET: self._query,
            UPDATE_CONSUMER_OFFSET: self._update,
            SEARCH_OFFSET_BY_TIMESTAMP: self._search,
            GET_MAX_OFFSET: self._max,
            GET_MIN_OFFSET: self._min,
            GET_EARLIEST_MSG_STORETIME: self._earliest,
            VIEW_MESSAGE_BY_ID: self._view,
        }

    # -- offsets of groups -----------------------------------------------------------------------

    def _query(self, connection: CommandConnection, request: RemotingCommand) -> None:
        fields = Fields(request.ext_fields)
        group, topic, queue_id = fields.text("consumerGroup"), fields.text("topic"), fields.number("queueId")
        offset = self._metadata.consumer_offsets.query(group, topic, queue_id)
        if offset is None:
            first = self._first_offset(topic, queue_id)
            if first is None or not fields.flag("setZeroIfNotFound", True):
                raise Refused(Code.QUERY_NOT_FOUND, "Not found, maybe this group consumer boot first")
            offset = first
        _reading(lambda: self._commits.reads(connection, group, topic, queue_id))
        _answer_offset(connection, request, offset)

    def _first_offset(self, topic: str, queue_id: int) -> int | None:
        """
        Where a new group begins.

        @return: the first offset of the queue; None if its first messages have expired, or if its first
            message is far before the end of the log. The consumer decides then.
        @raise Refused: the store cannot be read.
        """
        queue = self._store.queues.get(topic, queue_id)
        if queue is None:
            return 0
        begin = _reading(lambda: self._store.deleted.begin_of(topic, queue))
        if 0 < begin == queue.begin_index:
            return None
        if not self._slow_bytes or begin == queue.next_index:
            return begin
        (unit,) = _reading(lambda: queue.read(begin, 1))
        return None if self._store.log.end_offset - unit.offset > self._slow_bytes else begin

    def _update(self, connection: CommandConnection, request: RemotingCommand) -> None:
        fields = Fields(request.ext_fields)
        group, topic = fields.text("consumerGroup"), fields.text("topic")
        queue_id = fields.number("queueId", least=0, most=QUEUE_ID_MAX)
        offset = fields.number("commitOffset", least=0, most=LONG_MAX)
        if group in OWN_GROUPS:
            raise Refused(Code.NO_PERMISSION, f"the offsets of group {group} are the broker's own")
        # A slave takes the offset, because it may not have copied the group from its master yet.
        if self._metadata.groups.get(group) is None and not self._config.role.is_slave:
            raise Refused(Code.SUBSCRIPTION_GROUP_NOT_EXIST, f"Group {shown_bare(group)} not exist!")
        if self._metadata.topics.get(topic) is None:
            raise Refused(Code.TOPIC_NOT_EXIST, f"Topic {shown_bare(topic)} not exist!")
        problem = _reading(lambda: self._commits.problem(connection, group, topic, queue_id, offset))
        if problem:
            raise Refused(Code.SYSTEM_ERROR, problem)
        offsets = self._metadata.consumer_offsets
        if offsets.query(group, topic, queue_id) != offset:
            self._metadata.order_info.clear((topic, group, queue_id))
            offsets.commit(group, topic, queue_id, offset, self._wall_ms())
        if self._config.role.is_slave:
            connection.answer(request)
        elif not request.is_oneway:
            self._settled().addCallbacks(
                lambda _: connection.answer(request),
                lambda failure: connection.answer(
                    request, code=Code.SYSTEM_ERROR, remark=failure.getErrorMessage()
                ),
            )

    # -- bounds of queues ------------------------------------------------------------------------

    def _queue(self, request: RemotingCommand) -> tuple[ConsumeQueue | None, int]:
        """
        The queue that a request names, and the first offset in it that consumers can read.

        @return: None and 0 if there is no such queue.
        """
        fields = Fields(request.ext_fields)
        topic, store = fields.text("topic"), self._store
        queue = store.queues.get(topic, fields.number("queueId"))
        return queue, 0 if queue is None else _reading(lambda: store.deleted.begin_of(topic, queue))

    def _max(self, connection: CommandConnection, request: RemotingCommand) -> None:
        queue, _ = self._queue(request)
        _answer_offset(connection, request, 0 if queue is None else queue.next_index)

    def _min(self, connection: CommandConnection, request: RemotingCommand) -> None:
        _answer_offset(connection, request, self._queue(request)[1])

    def _search(self, connection: CommandConnection, request: RemotingCommand) -> None:
        fields = Fields(request.ext_fields)
        boundary = fields.text("boundaryType", "LOWER")
        if boundary.upper() not in ("LOWER", "UPPER"):
            raise Refused(Code.SYSTEM_ERROR, f"boundaryType={shown(boundary)}: write LOWER or UPPER")
        is_upper = boundary.upper() == "UPPER"
        timestamp_ms = fields.number("timestamp", least=LONG_MIN, most=LONG_MAX)
        topic, queue_id = fields.text("topic"), fields.number("queueId")
        offset = _reading(lambda: offset_at(self._store, topic, queue_id, timestamp_ms + is_upper))
        if is_upper:  # the last message of this time, or of an earlier one
            offset = max(offset - 1, self._queue(request)[1])
        _answer_offset(connection, request, offset)

    def _earliest(self, connection: CommandConnection, request: RemotingCommand) -> None:
        queue, begin = self._queue(request)
        timestamp_ms = -1
        if queue is not None and begin < queue.next_index:
            timestamp_ms = _reading(lambda: self._stored_ms(queue, begin)) or -1
        connection.answer(request, ext_fields={"timestamp": str(timestamp_ms)})

    def _stored_ms(self, queue: ConsumeQueue, index: int) -> int:
        (unit,) = queue.read(index, 1)
        return stored_ms(self._store, unit)

    # -- one message -----------------------------------------------------------------------------

    def _damage_at(self, offset: int) -> str:
        """Why the record at C{offset} is damaged; empty if it is sound, or if no record begins there."""
        log = self._store.log
        if not log.begin_offset <= offset <= log.record_end - HEAD_SIZE:
            return ""
        size, _, own = WALKED.unpack(_reading(lambda: log.read(offset, HEAD_SIZE)).ljust(HEAD_SIZE, b"\0"))
        room = log.file_size - offset % log.file_size
        return (log.problem_at(offset) or "") if own == offset and 0 < size <= room else ""

    def _view(self, connection: CommandConnection, request: RemotingCommand) -> None:
        offset = Fields(request.ext_fields).number("offset", least=LONG_MIN, most=LONG_MAX)
        record = _reading(lambda: self._store.sound.at(offset))
        if record is None:
            log = self._store.log
            problem = self._damage_at(offset)
            if problem:
                raise Refused(Code.SYSTEM_ERROR, f"the message at {offset} is damaged: {problem}")
            raise Refused(
                Code.SYSTEM_ERROR,
                f"can not find message by the offset, {offset}: none begins there; the log holds "
                f"{log.begin_offset} to {log.record_end}",
            )
        connection.answer(request, body=record)


def _reading(read: Callable[[], _T]) -> _T:
    """Call C{read}. @raise Refused: the store cannot be read."""
    try:
        return read()
    except (OSError, StoreError) as error:
        raise Refused(Code.SYSTEM_ERROR, str(error)) from error


def _answer_offset(connection: CommandConnection, request: RemotingCommand, offset: int) -> None:
    connection.answer(request, ext_fields={"offset": str(offset)})
