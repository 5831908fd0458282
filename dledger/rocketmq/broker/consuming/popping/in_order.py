# -*- test-case-name: tests.broker.popping.test_in_order -*-
"""
POP in order: for FIFO topics, and for groups with C{consumeMessageOrderly=true}.

Messages of a queue are given to one consumer of a group at a time: the next ones, or the same ones once more,
come when all are acknowledged, or when those that are not are visible again. There is no check point and no
topic of retries: the committed offset stays at the first message that is not done, and what the group holds
is in L{dledger.rocketmq.metadata.order_info}.

Rule 1: the same attempt, asked again, is answered with the same messages: its answer may have been lost.
Rule 2: an ack counts with the receipt of the last pop. Another one, or one without an entry in the table, is
answered with NO_MESSAGE, and its message comes again. (Java commits its offset, so that after a crash the
messages before it are lost; and answers with success.)
Rule 3: only an ack moves the committed offset, and never backwards.

Source: ConsumerOrderInfoManager, ConsumerOrderInfoLockManager, AckMessageProcessor.ackOrderly,
ChangeInvisibleTimeProcessor.processChangeInvisibleTimeForOrder, ExtraInfoUtil (5.3.3).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import attrs
from twisted.internet.interfaces import IDelayedCall

from dledger.rocketmq.answering.refusals import Code, Refused
from dledger.rocketmq.broker.consuming.popping.check_points import (
    SET_BACK_MS,
    Ack,
    CheckPoint,
    PopKey,
    kind_of,
)
from dledger.rocketmq.broker.options.inside import BrokerInside
from dledger.rocketmq.metadata.order_info import OrderInfo, OrderPlace
from protocols.wire.fastjson import shown_bare

#: The most characters of the name of an attempt.
ATTEMPT_CHARACTERS_MAX = 255


class InOrder:
    """Decides who gets messages of a queue, for one broker."""

    def __init__(self, inside: BrokerInside) -> None:
        self._metadata = inside.metadata
        self._infos = inside.metadata.order_info
        self._wall_ms = inside.wall_ms

    def blocks(self, place: OrderPlace, attempt: str) -> bool:
        """Whether a queue has nothing for this attempt now: others hold messages of it."""
        info = self._infos.get(place)
        if info is None:
            return not self._infos.has_room(place)
        if attempt and info.attempt == attempt:
            return False
        now_ms = self._wall_ms()
        return now_ms < info.free_ms() and info.pop_ms <= now_ms + SET_BACK_MS

    def given(self, point: CheckPoint, attempt: str) -> str:
        """
        Messages are given to a consumer.

        @param point: names them.
        @return: how often each was popped before, for the answer's C{orderCountInfo}.
        """
        key, offsets = point.key, point.offsets
        place = key.topic, key.group, key.queue_id
        before, tries = self._infos.get(place), {}
        if before is not None and attempt and before.attempt == attempt:
            tries = dict(before.tries)
        elif before is not None:
            tries = {one: before.tries.get(one, 0) + 1 for one in offsets if one in before.offsets}
        self._infos.put(place, OrderInfo(
            pop_ms=key.pop_ms, invisible_ms=point.invisible_ms, offsets=offsets, attempt=attempt,
            tries=tries, last_ms=self._wall_ms(),
        ))
        if self._metadata.consumer_offsets.query(key.group, key.topic, key.queue_id) is None:
            self._commit(key, offsets[0])
        return order_counts(key.topic, key.queue_id, offsets, tries)

    def _commit(self, key: PopKey, offset: int) -> None:
        self._metadata.consumer_offsets.commit(
            key.group, key.topic, key.queue_id, offset, self._wall_ms()
        )

    def acknowledge(self, acks: Iterable[Ack]) -> int:
        """
        Messages are done. Those before the committed offset were so before.

        @return: the number of messages that are known.
        @raise Refused: none is known; or the topic, the group or the queue does not exist.
        """
        count, late = 0, ""
        for ack in acks:
            self._refuse_unknown(ack.key)
            for offset in ack.offsets:
                if self._acknowledge(ack.key, offset):
                    count += 1
                else:
                    late = late or _late(ack.key, offset)
        if late and not count:
            raise Refused(Code.NO_MESSAGE, late)
        return count

    def _acknowledge(self, key: PopKey, offset: int) -> bool:
        """@return: whether the message is known."""
        if offset < self._committed(key):
            return True
        info = self._held(key, offset)
        if info is None:
            return False
        info = attrs.evolve(info, done=info.done | {offset})
        self._infos.put((key.topic, key.group, key.queue_id), info)
        if info.next_offset > self._committed(key):
            self._commit(key, info.next_offset)
        return True

    def _committed(self, key: PopKey) -> int:
        return self._metadata.consumer_offsets.query(key.group, key.topic, key.queue_id) or 0

    def _held(self, key: PopKey, offset: int) -> OrderInfo | None:
        """The pop to which a receipt belongs; None: another one came after it."""
        info = self._infos.get((key.topic, key.group, key.queue_id))
        return info if info is not None and info.pop_ms == key.pop_ms and offset in info.offsets else None

    def _refuse_unknown(self, key: PopKey) -> None:
        """@raise Refused: the topic, the group or the queue does not exist."""
        topic = self._metadata.topics.get(key.topic)
        if topic is None:
            raise Refused(
                Code.TOPIC_NOT_EXIST, f"topic[{shown_bare(key.topic)}] not exist, apply first please!"
            )
        if self._metadata.groups.get(key.group) is None:
            raise Refused(Code.SUBSCRIPTION_GROUP_NOT_EXIST,
                          f"subscription group [{shown_bare(key.group)}] does not exist")
        if not 0 <= key.queue_id < topic.read_queue_nums:
            raise Refused(Code.MESSAGE_ILLEGAL, f"queueId[{key.queue_id}] is illegal, topic:[{key.topic}] "
                                                f"topicConfig.readQueueNums:[{topic.read_queue_nums}]")

    def change(self, key: PopKey, offset: int, invisible_ms: int) -> int:
        """
        A message stays invisible for another time, from now.

        @return: the invisible time for its receipt, which counts from the pop, in ms.
        @raise Refused: it is not known.
        """
        self._refuse_unknown(key)
        visible_ms = self._wall_ms() + invisible_ms
        info = self._held(key, offset)
        if info is None and offset >= self._committed(key):
            raise Refused(Code.NO_MESSAGE, _late(key, offset))
        if info is not None:
            self._infos.put((key.topic, key.group, key.queue_id), attrs.evolve(
                info, visible_ms={**info.visible_ms, offset: visible_ms}
            ))
        return max(visible_ms - key.pop_ms, 0)

    def first_free_ms(self, topic: str, group: str) -> int | None:
        """When the first of the queues that a group holds is free, ms since 1970; None: none is held."""
        now_ms = self._wall_ms()
        times = (info.free_ms() for info in self._infos.of(topic, group).values())
        return min((one for one in times if one > now_ms), default=None)

    def sweep(self) -> None:
        """Forget old entries."""
        topics, groups = self._metadata.topics, self._metadata.groups
        self._infos.expire(
            self._wall_ms(),
            lambda topic, group: topics.get(topic) is not None and groups.get(group) is not None,
        )


class Releases:
    """Wakes the requests that wait for messages in order, when a queue is free because time has passed."""

    def __init__(self, inside: BrokerInside, in_order: InOrder, wake: Callable[[str, str], None]) -> None:
        """@param wake: examines the requests of a topic and a group."""
        self._in_order = in_order
        self._wake = wake
        self._clock = inside.clock
        self._wall_ms = inside.wall_ms
        self._calls: dict[tuple[str, str], IDelayedCall] = {}

    def watch(self, topic: str, group: str) -> None:
        """A request of a group waits: remember the time of the first queue that is free."""
        self.forget(topic, group)
        free_ms = self._in_order.first_free_ms(topic, group)
        if free_ms is not None:
            wait_s = max(free_ms - self._wall_ms(), 0) / 1000
            self._calls[topic, group] = self._clock.callLater(wait_s, self._free, topic, group)

    def _free(self, topic: str, group: str) -> None:
        del self._calls[topic, group]
        self._wake(topic, group)

    def forget(self, topic: str, group: str) -> None:
        """Nobody waits any more."""
        call = self._calls.pop((topic, group), None)
        if call is not None:
            call.cancel()

    def stop(self) -> None:
        """Wake nobody any more."""
        for place in list(self._calls):
            self.forget(*place)


def order_counts(topic: str, queue_id: int, offsets: Iterable[int], tries: Mapping[int, int]) -> str:
    """
    C{orderCountInfo} of one queue: how often each message was popped before; and for earlier clients, which
    know none of it, the least number of the queue.
    """
    kind, known = kind_of(topic), [one for one in offsets if one in tries]
    parts = [f"{kind} qo{queue_id}%{one} {tries[one]}" for one in known]
    least = min((tries.get(one, 0) for one in offsets), default=0)
    return ";".join([*parts, f"{kind} {queue_id} {least}"])


def _late(key: PopKey, offset: int) -> str:
    return (f"the message at {offset} of {shown_bare(key.topic)}, queue {key.queue_id}, is not given to "
            f"{shown_bare(key.group)} in order (any more): it was popped again, or its offset was set")
