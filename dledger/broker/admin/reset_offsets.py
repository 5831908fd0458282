# -*- test-case-name: tests.broker.admin.test_reset_offsets -*-
"""
INVOKE_BROKER_TO_RESET_OFFSET (222): an administrator lets a group consume a topic again from a given time on.

Consumers hold their offsets in memory and would commit them again. So the broker sends them the new offsets
(220); they stop, and commit the new ones. Without consumers the answer says so (206), and the administrator's
tool commits the offsets.

Source: Broker2Client.resetOffset (4.9.8).
"""

from __future__ import annotations

from collections.abc import Iterator

from twisted.logger import Logger

from dledger.base.commands.refusals import LONG_MAX, LONG_MIN, Code, CommandGroup, Fields, Handlers, Refused
from dledger.base.errors import StoreError
from dledger.broker.admin.stats import CONSUMER_NOT_ONLINE, queue_table
from dledger.broker.common.config import BrokerConfig
from dledger.broker.consuming.consumers import ConsumerTable
from dledger.broker.metadata.files import Metadata
from dledger.broker.metadata.tables import TopicConfig
from dledger.broker.store.queries import offset_at
from dledger.broker.store.store import MessageStore
from protocols.rocketmq.commands import CommandConnection
from protocols.wire.fastjson import shown
from protocols.wire.remoting import RemotingCommand

RESET_CONSUMER_CLIENT_OFFSET = 220
INVOKE_BROKER_TO_RESET_OFFSET = 222

#: A time that means the end of each queue.
END = -1


class ResetOffsets(CommandGroup):
    """The group of commands."""

    log = Logger()

    def __init__(
        self, config: BrokerConfig, store: MessageStore, metadata: Metadata, table: ConsumerTable
    ) -> None:
        self._config = config
        self._store = store
        self._metadata = metadata
        self._table = table

    def handlers(self) -> Handlers:
        """By request code."""
        return {INVOKE_BROKER_TO_RESET_OFFSET: self._reset}

    def _reset(self, connection: CommandConnection, request: RemotingCommand) -> None:
        fields = Fields(request.ext_fields)
        name, group = fields.text("topic"), fields.text("group")
        timestamp_ms = fields.number("timestamp", least=LONG_MIN, most=LONG_MAX)
        is_forced = fields.flag("isForce")
        topic = self._metadata.topics.get(name)
        if topic is None:
            raise Refused(Code.SYSTEM_ERROR, f"reset offset failed, no topic in this broker: {shown(name)}")
        if fields.number("offset", -1, least=LONG_MIN, most=LONG_MAX) != -1:  # of 5.x, where -1 is none
            raise Refused(Code.SYSTEM_ERROR, "offsets are reset to a time here, not to an offset")
        try:
            entries = list(self._offsets(topic, group, timestamp_ms, is_forced=is_forced))
        except (OSError, StoreError) as error:
            raise Refused(Code.SYSTEM_ERROR, str(error)) from error
        body = queue_table(self._config.broker_name, entries)
        told = self._table.tell(group, RemotingCommand(
            code=RESET_CONSUMER_CLIENT_OFFSET, opaque=0, body=body,
            ext_fields={"topic": name, "group": group, "timestamp": str(timestamp_ms), "isForce": "true"},
        ))  # fmt: skip
        if not told:
            raise Refused(CONSUMER_NOT_ONLINE, "Consumer not online, so can not reset offset, "
                          f"Group: {group} Topic: {name} Timestamp: {timestamp_ms}")  # fmt: skip
        self.log.info(
            "offsets of group {group} in {topic} are reset to {timestamp_ms} by {address}, {count} consumers",
            group=group, topic=name, timestamp_ms=timestamp_ms, address=connection.address, count=told,
        )
        connection.answer(request, body=body)

    def _offsets(
        self, topic: TopicConfig, group: str, timestamp_ms: int, *, is_forced: bool
    ) -> Iterator[tuple[str, int, bytes]]:
        """The group's new offset in each queue. @raise Refused: the group has no offset in a queue."""
        name = topic.topic_name
        for queue_id in range(topic.write_queue_nums):
            consumed = self._metadata.consumer_offsets.query(group, name, queue_id)
            if consumed is None:
                raise Refused(Code.SYSTEM_ERROR, f"THe consumer group <{group}> not exist: it has committed "
                                                 f"no offset in queue {queue_id} of {name}")  # fmt: skip
            if timestamp_ms == END:
                queue = self._store.queues.get(name, queue_id)
                offset = 0 if queue is None else queue.next_index
            else:
                offset = offset_at(self._store, name, queue_id, timestamp_ms)
            if not is_forced:  # only backwards
                offset = min(offset, consumed)
            yield name, queue_id, b"%d" % offset
