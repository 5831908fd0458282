# -*- test-case-name: tests.broker.popping.test_pops -*-
"""
Gives the messages that were taken for a pop: a check point of them is stored first; then the offset of the
group moves past them, and then they are sent. A crash between the steps may deliver them twice; it never
loses them.

Pops in order store no check points: see L{dledger.rocketmq.broker.consuming.popping.in_order}.

Source: PopMessageProcessor (5.3.3).
"""

from __future__ import annotations

from collections.abc import Callable

from dledger.rocketmq.answering.refusals import Code, Refused
from dledger.rocketmq.broker.consuming.popping.check_points import (
    ORDER_QUEUE,
    OWN_QUEUE,
    CheckPoint,
    check_point_message,
)
from dledger.rocketmq.broker.consuming.popping.given import Taken, answer_fields, answer_none, body_of
from dledger.rocketmq.broker.consuming.popping.in_order import InOrder
from dledger.rocketmq.broker.consuming.popping.pop_requests import PopRequest
from dledger.rocketmq.broker.consuming.popping.popped import GroupQueue
from dledger.rocketmq.broker.consuming.popping.revive import ReviveService
from dledger.rocketmq.broker.consuming.popping.taking import PopTaking
from dledger.rocketmq.broker.consuming.pull_progress import PullProgress
from dledger.rocketmq.broker.options.inside import BrokerInside
from dledger.rocketmq.broker.producing.answers import put_refusal
from dledger.rocketmq.broker.producing.puts import NotPut, Put, PutPipeline
from dledger.rocketmq.replication.put_status import PutStatus
from dledger.rocketmq.store.queries import GetStatus
from protocols.rocketmq.commands import CommandConnection
from protocols.wire.remoting import RemotingCommand

#: With this many check points of all groups together, no group gets messages.
CHECK_POINTS_MAX = 262_144
#: With this many bytes of messages whose check points are being stored, no request gets messages.
PUT_BYTES_MAX = 64 * 1024 * 1024


class PopGiving:
    """
    Invariant: C{locked} of the taking has the queues of groups whose check points are being stored.

    @ivar popped: number of messages so far.
    """

    def __init__(
        self, inside: BrokerInside, pipeline: PutPipeline, taking: PopTaking, revive: ReviveService,
        in_order: InOrder, *, progress: PullProgress,
    ) -> None:
        """@param progress: hears what the groups get."""
        self._taking = taking
        self._metadata = inside.metadata
        self._pipeline = pipeline
        self._revive = revive
        self._in_order = in_order
        self._own = inside.own
        self._wall_ms = inside.wall_ms
        self._progress = progress
        self._put_bytes = 0
        self.popped = 0

    @property
    def is_ready(self) -> bool:
        """Whether check points are known, and those that are being stored have not too many messages."""
        return self._revive.is_loaded and self._put_bytes < PUT_BYTES_MAX

    @property
    def is_full(self) -> bool:
        """Whether there are too many check points."""
        return len(self._revive.table) >= CHECK_POINTS_MAX

    def give(
        self, connection: CommandConnection, request: RemotingCommand, pop: PopRequest,
        taken: list[Taken], rest: int, given: Callable[[PopRequest], None],
    ) -> None:
        """
        Answer a pop, now or when the check points are stored.

        @param rest: number of messages that are left, about.
        @param given: called after an answer with messages whose check points were stored.
        @raise Refused: they cannot be stored.
        """
        if pop.in_order:
            self._give_in_order(connection, request, pop, taken, rest)
            return
        revive = self._revive
        revive.keep_topic()
        messages = [
            plain for one in taken for plain in self._pipeline.checked(
                [check_point_message(revive.topic, one.point, self._own.host, self._wall_ms())]
            )
        ]
        try:
            put = self._pipeline.put(messages)
        except NotPut as error:
            raise Refused(*put_refusal(error)) from error
        self._taking.locked.update(_queue_of(one.point) for one in taken)
        size = sum(len(record) for one in taken for record in one.records)
        self._put_bytes += size
        connection.account.reserve(size)
        stored = (put, connection, request, pop, taken, rest, size, revive.table, given)
        revive.follow(put, len(taken), self._stored, *stored)

    def _stored(
        self, status: PutStatus, put: Put, connection: CommandConnection, request: RemotingCommand,
        pop: PopRequest, taken: list[Taken], rest: int, size: int, table: object,
        given: Callable[[PopRequest], None],
    ) -> None:
        """
        Give the messages whose check points are stored. If they could not be stored, refuse the request.

        @param status: the outcome of the put of the check points.
        @param taken: the messages of each queue.
        @param rest: about how many messages are left.
        @param size: bytes of the messages, reserved until now.
        @param table: the table of check points when the put began. The broker has another one if it has been
            a slave meanwhile; its check points were then read again from the log.
        @param given: see L{give}.
        """
        self._put_bytes -= size
        connection.account.unreserve(size)
        self._taking.locked.difference_update(_queue_of(one.point) for one in taken)
        revive = self._revive
        if not status.is_stored or table is not revive.table:
            code = status.remoting_code if not status.is_stored else Code.SERVICE_NOT_AVAILABLE
            connection.answer(request, code=code, remark=f"the check point is not stored: {status.name}")
            return
        now_ms = self._wall_ms()
        points = revive.popped([one.point for one in taken], put.placed)
        taken = [one for one in taken if one.point in points]
        for one in taken:
            key, offsets = one.point.key, self._metadata.consumer_offsets
            if offsets.query(key.group, key.topic, key.queue_id) == one.committed:
                # Otherwise an administrator or a consumer has set the offset meanwhile, and it stays so.
                offsets.commit(key.group, key.topic, key.queue_id, one.following, now_ms)
            self.popped += len(one.records)
            self._progress.popped(key.group, pop.topic, one.records)
        body = b"".join(body_of(one, pop.topic) for one in taken)
        if not body:
            answer_none(connection, request, pop, Code.POLLING_TIMEOUT, now_ms)
            return
        connection.answer(request, remark=GetStatus.FOUND.value, body=body,
                          ext_fields=answer_fields(points, revive_queue=OWN_QUEUE, rest=rest))
        given(pop)

    def _give_in_order(
        self, connection: CommandConnection, request: RemotingCommand, pop: PopRequest, taken: list[Taken],
        rest: int,
    ) -> None:
        """Answer a pop in order, which has no check points to store."""
        points = [one.point for one in taken]
        counts = [self._in_order.given(point, pop.attempt) for point in points]
        records = [record for one in taken for record in one.records]
        self.popped += len(records)
        self._progress.popped(pop.group, pop.topic, records)
        connection.answer(
            request, remark=GetStatus.FOUND.value, body=b"".join(body_of(one, pop.topic) for one in taken),
            ext_fields={
                **answer_fields(points, revive_queue=ORDER_QUEUE, rest=rest),
                "orderCountInfo": ";".join(counts),
            },
        )


def _queue_of(point: CheckPoint) -> GroupQueue:
    return point.key.topic, point.key.group, point.key.queue_id
