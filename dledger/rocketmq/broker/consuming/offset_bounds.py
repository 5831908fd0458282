# -*- test-case-name: tests.broker.consuming.test_offset_bounds -*-
"""
Takes offsets back that are beyond the end of a queue: those of consumers when a broker becomes a master, and
these and those of delay levels when its log is cut.

The table of offsets may be younger than the log: it is synced each time it is written, the log is not, and a
slave that is promoted may lack the last messages. Messages that come then have the numbers of those that were
lost, and the group would pass over them.

A slave whose log is cut may be a former master, whose consumers were further than the next one's, and that
one may not know their groups. Messages that the slave gets then have the numbers of those that it gave up.

A raft log has offsets and messages in one order, but a master of RocketMQ takes offsets beyond the end.

Rule: an offset is compared with the queue as it was when the broker became a master, since when messages may
have come. One that a consumer has committed since then stays.
"""

from __future__ import annotations

from twisted.internet.interfaces import IDelayedCall
from twisted.logger import Logger

from dledger.rocketmq.broker.options.inside import BrokerInside
from dledger.rocketmq.store.queues.queue_begins import index_at
from dledger.rocketmq.store.records.records import SCHEDULE_TOPIC
from dledger.values.errors import StoreError

#: Pause between two looks whether all messages are in their queues.
LOOK_S = 0.1
#: The most offsets that one turn compares.
TURN_OFFSETS = 256

#: Group, topic, number of the queue and offset.
_Row = tuple[str, str, int, int]


class OffsetBounds:
    """
    Those of one broker.

    @ivar taken_back: number of offsets so far.
    """

    log = Logger()

    def __init__(self, inside: BrokerInside) -> None:
        self._store = inside.store
        self._metadata = inside.metadata
        self._clock = inside.clock
        self._wall_ms = inside.wall_ms
        self._call: IDelayedCall | None = None
        self._bound = 0
        self._rows: list[_Row] = []
        self.taken_back = 0

    def start(self) -> None:
        """This broker has become a master."""
        self.stop()
        self._bound = self._store.log.record_end
        self._rows = [
            (group, topic, queue_id, offset)
            for group, topic, queues in self._metadata.consumer_offsets.rows()
            for queue_id, offset in queues.items() if offset > 0
        ]
        if self._rows:
            self._call = self._clock.callLater(0, self._look)

    def cut(self) -> None:
        """The log was cut, and so were the queues."""
        offsets, levels = self._metadata.consumer_offsets, self._metadata.delay_offsets
        now_ms = self._wall_ms()
        for group, topic, queues in list(offsets.rows()):
            for queue_id, offset in list(queues.items()):
                end = self._end_of(topic, queue_id)
                if offset > end:
                    offsets.commit(group, topic, queue_id, end, now_ms)
                    self.taken_back += 1
        for level in map(int, levels.names()):
            levels.put(level, min(levels.get(level), self._end_of(SCHEDULE_TOPIC, level - 1)), now_ms)

    def _end_of(self, topic: str, queue_id: int) -> int:
        bounds = self._store.queues.bounds(topic, queue_id)
        return 0 if bounds is None else bounds[1]

    def stop(self) -> None:
        """It is a master no longer, or ends."""
        if self._call is not None:
            self._call.cancel()
            self._call = None

    def _look(self) -> None:
        self._call = None
        if not self._store.has_dispatched(self._bound):
            self._call = self._clock.callLater(LOOK_S, self._look)
            return
        rows, self._rows = self._rows[:TURN_OFFSETS], self._rows[TURN_OFFSETS:]
        for row in rows:
            try:
                self._compare(*row)
            except (OSError, StoreError) as error:
                self.log.error(
                    "group {group}: its offset in {topic}, queue {queue_id} cannot be compared with the end: "
                    "{reason}", group=row[0], topic=row[1], queue_id=row[2], reason=str(error),
                )
        if self._rows:
            self._call = self._clock.callLater(0, self._look)

    def _compare(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        queue = self._store.queues.get(topic, queue_id)
        if queue is None:
            end = 0
        elif offset <= queue.begin_index:
            return
        else:
            end = index_at(queue, self._bound)
        offsets = self._metadata.consumer_offsets
        if offset <= end or offsets.query(group, topic, queue_id) != offset:
            return
        offsets.commit(group, topic, queue_id, end, self._wall_ms())
        self.taken_back += 1
        self.log.warn(
            "group {group}: its offset in {topic}, queue {queue_id} was {offset}, after the end of the "
            "queue at {end}: messages were lost. It goes on at the end", group=group, topic=topic,
            queue_id=queue_id, offset=offset, end=end,
        )
