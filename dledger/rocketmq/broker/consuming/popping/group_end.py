# -*- test-case-name: tests.broker.popping.test_group_end -*-
"""
The end of a group that is deleted with its offsets. The messages that it has popped count as acknowledged:
the next group of that name begins anew, and may acknowledge the same messages.

The acks are stored after the group is deleted: after a crash between the two, messages come once more, and
none is lost. A group that is deleted without its offsets keeps its messages.
"""

from __future__ import annotations

from collections.abc import Callable

from twisted.internet.defer import Deferred

from dledger.rocketmq.answering.refusals import Refused
from dledger.rocketmq.broker.consuming.popping.check_points import Ack, PopKey, ack_message
from dledger.rocketmq.broker.consuming.popping.revive import TURN_MESSAGES, ReviveService
from dledger.rocketmq.broker.options.inside import BrokerInside
from dledger.rocketmq.broker.producing.answers import put_refusal
from dledger.rocketmq.broker.producing.puts import NotPut, PutPipeline


class GroupEnds:
    """Ends what groups have popped, for one broker."""

    def __init__(self, inside: BrokerInside, pipeline: PutPipeline, revive: ReviveService) -> None:
        self._pipeline = pipeline
        self._revive = revive
        self._own = inside.own
        self._wall_ms = inside.wall_ms

    def of(self, group: str) -> Callable[[], Deferred[None]]:
        """
        Note the messages that a group has popped until now.

        @return: call it when the group is deleted. Its Deferred fires when they count as acknowledged, or
            fails with L{Refused}: the rest comes again after its time, as do messages of check points that a
            new master has not read.
        """
        keys = self._revive.table.of_group(group)
        return lambda: Deferred.fromCoroutine(self._end(keys))

    async def _end(self, keys: list[PopKey]) -> None:
        """@raise Refused: an ack could not be stored."""
        table = self._revive.table
        for first in range(0, len(keys), TURN_MESSAGES):
            acks = []
            for key in keys[first : first + TURN_MESSAGES]:
                popped = table.get(key)
                if popped is not None and popped.open:
                    acks.append((Ack(key, tuple(sorted(popped.open))), popped.at[0]))
            if acks:
                await self._store(acks)

    async def _store(self, acks: list[tuple[Ack, int]]) -> None:
        """@param acks: and the queue of the check point of each."""
        revive, table, now_ms = self._revive, self._revive.table, self._wall_ms()
        for ack, _ in acks:
            table.settle(ack)
        is_stored = False
        try:
            revive.keep_topic()
            put = self._pipeline.put([
                plain for ack, queue_id in acks for plain in self._pipeline.checked([
                    ack_message(revive.topic, ack, self._own.host, now_ms, queue_id=queue_id)
                ])
            ])
            status = await put.done
            is_stored = status.is_stored
        except NotPut as error:
            raise Refused(*put_refusal(error)) from error
        finally:
            for ack, _ in acks:
                table.settled(ack, is_stored=is_stored)
        if not is_stored:
            raise Refused(status.remoting_code, status.name)
        for (_, queue_id), offset in zip(acks, put.placed.queue_offsets, strict=True):
            table.passed(queue_id, offset)
