# -*- test-case-name: tests.broker.admin.test_reset_offsets -*-
"""
INVOKE_BROKER_TO_RESET_OFFSET (222): an administrator lets a group consume a topic again from a given time on,
or one queue of it from an offset on.

Consumers hold their offsets in memory and would commit them again. So the broker sends them the new offsets
(220); they stop, and commit the new ones. Without consumers the answer to a time says so (206), and the
administrator's tool commits the offsets.

Rule 1: an offset for one queue is committed here, too; and so is a time if the group has popped in order,
whose consumers hold no offsets. What such a group holds does not count any more. A slave commits none, as its
master would overwrite it.
Rule 2: what is committed here is known to the next master when the answer is sent.

Source: Broker2Client.resetOffset (4.9.8), AdminBrokerProcessor.resetOffsetInner (5.3.3).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from twisted.internet.defer import Deferred
from twisted.logger import Logger

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
from dledger.rocketmq.broker.admin.stats import CONSUMER_NOT_ONLINE, queue_table
from dledger.rocketmq.broker.consuming.consumers import ConsumerTable
from dledger.rocketmq.broker.options.groups import OWN_GROUPS
from dledger.rocketmq.broker.options.inside import BrokerInside
from dledger.rocketmq.metadata.tables import TopicConfig
from dledger.rocketmq.store.queries import offset_at
from dledger.values.errors import StoreError
from protocols.rocketmq.commands import CommandConnection
from protocols.wire.fastjson import shown, shown_bare
from protocols.wire.remoting import RemotingCommand

RESET_CONSUMER_CLIENT_OFFSET = 220
INVOKE_BROKER_TO_RESET_OFFSET = 222

#: A time that means the end of each queue.
END = -1


class ResetOffsets(CommandGroup):
    """The group of commands."""

    log = Logger()

    def __init__(
        self, inside: BrokerInside, table: ConsumerTable, *, settled: Callable[[], Deferred[None]]
    ) -> None:
        """@param settled: see L{dledger.rocketmq.broker.replication.Replication.settled}."""
        self._wall_ms = inside.wall_ms
        self._settled = settled
        self._config = inside.config
        self._store = inside.store
        self._metadata = inside.metadata
        self._table = table

    def handlers(self) -> Handlers:
        """By request code."""
        return {INVOKE_BROKER_TO_RESET_OFFSET: self._reset}

    def _reset(self, connection: CommandConnection, request: RemotingCommand) -> Pieces[None]:
        fields = Fields(request.ext_fields)
        name, group = fields.text("topic"), fields.text("group")
        timestamp_ms = fields.number("timestamp", least=LONG_MIN, most=LONG_MAX)
        is_forced = fields.flag("isForce")
        topic = self._metadata.topics.get(name)
        if group in OWN_GROUPS:
            raise Refused(Code.SYSTEM_ERROR, f"the offsets of group {group} are the broker's own")
        if topic is None:
            raise Refused(Code.SYSTEM_ERROR, f"reset offset failed, no topic in this broker: {shown(name)}")
        queue_id = fields.number("queueId", -1)
        offset = fields.number("offset", -1, least=LONG_MIN, most=LONG_MAX)  # of 5.x, where -1 is none
        if queue_id >= topic.write_queue_nums and queue_id >= topic.read_queue_nums:
            raise Refused(Code.SYSTEM_ERROR, f"queueId={queue_id}: {name} has no such queue")
        pops = bool(self._metadata.order_info.of(name, group))
        try:
            if queue_id >= 0 and offset != -1:
                entries = [(queue_id, self._checked(name, group, queue_id, offset))]
            else:
                entries = []
                for entry in self._offsets(
                    topic, group, timestamp_ms, is_forced=is_forced,
                    queues=range(topic.write_queue_nums) if queue_id < 0 else (queue_id,),
                ):
                    entries.append(entry)
                    yield
        except (OSError, StoreError) as error:
            raise Refused(Code.SYSTEM_ERROR, str(error)) from error
        is_ours = pops or (queue_id >= 0 and offset != -1)
        if is_ours and self._config.role.is_slave:
            raise Refused(Code.SYSTEM_ERROR, "Can not reset offset in slave broker")
        body = yield from queue_table(
            self._config.broker_name, ((name, one, b"%d" % at) for one, at in entries)
        )
        if is_ours:
            self._commit(name, group, entries)
        reported = self._table.notify(group, RemotingCommand(
            code=RESET_CONSUMER_CLIENT_OFFSET, opaque=0, body=body,
            ext_fields={"topic": name, "group": group, "timestamp": str(timestamp_ms), "isForce": "true"},
        ))
        if not reported and not is_ours:
            raise Refused(CONSUMER_NOT_ONLINE, "Consumer not online, so can not reset offset, "
                          f"Group: {group} Topic: {name} Timestamp: {timestamp_ms}")
        self.log.info(
            "offsets of group {group} in {topic} are reset to {timestamp_ms} by {address}, {count} consumers",
            group=group, topic=name, timestamp_ms=timestamp_ms, address=connection.address, count=reported,
        )
        if not is_ours:
            connection.answer(request, body=body)
            return
        self._settled().addCallbacks(
            lambda _: connection.answer(request, body=body),
            lambda failure: connection.answer(
                request, code=Code.SYSTEM_ERROR, remark=failure.getErrorMessage()
            ),
        )

    def _checked(self, topic: str, group: str, queue_id: int, offset: int) -> int:
        """@raise Refused: the queue has no such offset, or the group does not exist."""
        if self._metadata.groups.get(group) is None:
            raise Refused(Code.SUBSCRIPTION_GROUP_NOT_EXIST, f"Group {shown_bare(group)} does not exist")
        queue = self._store.queues.get(topic, queue_id)
        begin = 0 if queue is None else self._store.deleted.begin_of(topic, queue)
        end = 0 if queue is None else queue.next_index
        if not begin <= offset <= end:
            raise Refused(
                Code.SYSTEM_ERROR, f"Target offset {offset} not in consume queue range [{begin}-{end}]"
            )
        return offset

    def _commit(self, topic: str, group: str, entries: list[tuple[int, int]]) -> None:
        for queue_id, offset in entries:
            self._metadata.order_info.clear((topic, group, queue_id))
            self._metadata.consumer_offsets.commit(group, topic, queue_id, offset, self._wall_ms())

    def _offsets(
        self, topic: TopicConfig, group: str, timestamp_ms: int, *, is_forced: bool, queues: Iterable[int]
    ) -> Iterator[tuple[int, int]]:
        """The group's new offset in these queues. @raise Refused: the group has no offset in a queue."""
        name = topic.topic_name
        for queue_id in queues:
            consumed = self._metadata.consumer_offsets.query(group, name, queue_id)
            if consumed is None:
                raise Refused(Code.SYSTEM_ERROR, f"THe consumer group <{group}> not exist: it has committed "
                                                 f"no offset in queue {queue_id} of {name}")
            if timestamp_ms == END:
                queue = self._store.queues.get(name, queue_id)
                offset = 0 if queue is None else queue.next_index
            else:
                offset = offset_at(self._store, name, queue_id, timestamp_ms)
            if not is_forced:  # only backwards
                offset = min(offset, consumed)
            yield queue_id, offset
