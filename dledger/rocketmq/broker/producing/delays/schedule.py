# -*- test-case-name: tests.broker.sending.test_schedule -*-
"""
Delayed messages: one queue for each level in the topic C{SCHEDULE_TOPIC_XXXX}; when a message is due, it is
stored again, in its real topic and queue.

The consume queue has the due time in place of the tags' hash. The delivered offset of each level is part of
the metadata, written every few seconds and copied by slaves: after a crash, or at a slave that becomes a
master, some messages may be delivered twice, and none is lost.

Rule 1: messages of one level are delivered in order; the due messages of all levels go into one append.
Rule 2: work is bounded in each turn of the reactor, and there is one timer: for the first due
message, and a second at most.
Rule 3: a refused delivery is repeated; a message that can never be delivered (it is gone from the log, or has
no valid topic) is skipped, and logged.
Rule 4: only a master delivers: a slave copies the delivered messages.
Rule 5: messages of a level that C{messageDelayLevel} no longer has come at their time, too.

Source: ScheduleMessageService.java (4.9.8).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from twisted.internet.defer import succeed
from twisted.internet.interfaces import IDelayedCall
from twisted.logger import Logger

from dledger.rocketmq.broker.options.inside import BrokerInside
from dledger.rocketmq.broker.producing.halves import real_place
from dledger.rocketmq.broker.producing.puts import NotPut, PutPipeline
from dledger.rocketmq.broker.producing.topic_checks import queue_now
from dledger.rocketmq.metadata.tables import RETRY_PREFIX, TopicConfig
from dledger.rocketmq.replication.put_status import PutStatus
from dledger.rocketmq.store.queues.queue_begins import index_at
from dledger.rocketmq.store.queues.queue_files import Unit
from dledger.rocketmq.store.records.events import Arrived
from dledger.rocketmq.store.records.plain_records import PlainMessage
from dledger.rocketmq.store.records.records import SCHEDULE_TOPIC, NewMessage
from dledger.values.errors import StoreError
from protocols.wire.rocketmq.message import Message, decode_message, encode_properties

#: The most messages, and bytes of their records, delivered in one turn; one message at least.
TURN_MESSAGES = 128
TURN_BYTES = 1024 * 1024

#: The longest sleep, as the wall clock may be set meanwhile. Not above the shortest delay that the option
#: can express.
SLEEP_S_MAX = 1.0
#: Pause after the store has refused messages.
RETRY_S = 0.2
#: Pause after a failure that nobody has thought of: one message must not end all deliveries.
UNEXPECTED_S = 60.0


class _Due(NamedTuple):
    """
    The due messages of one level.

    @ivar following: queue offset after them.
    @ivar wait_ms: time until the next message is due; -1: no message is left.
    """

    messages: list[PlainMessage]
    size: int
    following: int
    wait_ms: int


class ScheduleMessageService:
    """
    Invariant: C{_call} is the scheduled turn, or None: no message waits, or a put is under way
    (C{_is_putting}); C{_has_arrived}: messages have arrived since that put began. C{_bound} is the end of the
    log when this run began, and C{_bounded} has the levels whose offset was compared with their queue there.

    @ivar delivered: number of messages so far.
    @ivar passed_over: number of messages that could not be delivered.
    """

    log = Logger()

    def __init__(
        self, inside: BrokerInside, pipeline: PutPipeline, *,
        topic_of: Callable[[str, int, int], TopicConfig | None],
        is_over: Callable[[Message], bool] = lambda message: False,
    ) -> None:
        """
        @param topic_of: called with the topic and the queue of each message before it is delivered, and where
            in the log it was stored to wait; see L{LostTopics.found<dledger.rocketmq.broker.lost_topics>}.
        @param is_over: whether a retry is of a topic that was deleted.
        """
        self._is_over = is_over
        self._store = inside.store
        self._offsets = inside.metadata.delay_offsets
        self._pipeline = pipeline
        self._own = inside.own
        self._clock = inside.clock
        self._wall_ms = inside.wall_ms
        self._topic_of = topic_of
        self._delays_ms = inside.store.config.delay_levels_ms
        self._levels = list(range(1, len(self._delays_ms) + 1))
        self._call: IDelayedCall | None = None
        self._is_running = self._is_putting = self._has_arrived = False
        self._bound = 0
        self._bounded: set[int] = set()
        self._problem = ""
        self.delivered = 0
        self.passed_over = 0

    def start(self) -> None:
        """Begin to deliver."""
        self._is_running = True
        self._bound = self._store.log.record_end
        self._bounded.clear()
        self._add_levels(self._store.queues.keys())
        self._again(0.0)

    def stop(self) -> None:
        """Stop delivering."""
        self._is_running = False
        if self._call is not None:
            self._call.cancel()
            self._call = None

    def arrived(self, arrived: Arrived) -> None:
        """These queues have new messages."""
        if self._is_running and any(topic == SCHEDULE_TOPIC for topic, _ in arrived):
            self._add_levels(arrived)
            self._again(0.0)

    def _add_levels(self, queues: Iterable[tuple[str, int]]) -> None:
        """Serve the level of each queue: it may be one of a longer list, which this broker had before."""
        found = {queue_id + 1 for topic, queue_id in queues if topic == SCHEDULE_TOPIC}
        self._levels = sorted(found.union(self._levels))

    @property
    def waiting(self) -> dict[int, int]:
        """By level: the number of messages that wait."""
        found = {}
        for level in self._levels:
            begin, end = self._store.queues.bounds(SCHEDULE_TOPIC, level - 1) or (0, 0)
            found[level] = max(0, end - max(self._offsets.get(level), begin))
        return found

    def _again(self, wait_s: float) -> None:
        """Run a turn in C{wait_s} seconds. A turn that is already scheduled is no later than new messages."""
        if self._is_putting:
            self._has_arrived = True
        elif self._call is None:
            self._has_arrived = False
            self._call = self._clock.callLater(wait_s, self.turn)

    # -- one turn --------------------------------------------------------------------------------

    def turn(self) -> None:
        """Deliver messages whose delay is over; the clock calls this."""
        self._call = None
        if self._pipeline.is_closed:
            return  # the broker stops; the next run delivers the rest
        messages: list[PlainMessage] = []
        moves: dict[int, int] = {}
        wait_ms, size = -1, 0
        try:
            for level in self._levels:
                if len(messages) >= TURN_MESSAGES or size >= TURN_BYTES:
                    wait_ms = 0
                    break
                due = self._due(level, TURN_MESSAGES - len(messages), TURN_BYTES - size)
                messages += due.messages
                size += due.size
                if due.following != self._offsets.get(level):
                    moves[level] = due.following
                if due.wait_ms >= 0 and (wait_ms < 0 or due.wait_ms < wait_ms):
                    wait_ms = due.wait_ms
            done = self._pipeline.put(messages, waits=False).done if messages else succeed(PutStatus.PUT_OK)
        except (NotPut, StoreError, OSError) as error:
            self._failed(str(error))
            return
        except Exception:
            self._again(UNEXPECTED_S)
            raise
        # A commit log has stored them; a raft log may refuse them later, and then the offsets must not move.
        self._is_putting = True
        done.addCallback(self._put_ended, len(messages), moves, wait_ms)

    def _put_ended(self, status: PutStatus, count: int, moves: dict[int, int], wait_ms: int) -> None:
        self._is_putting = False
        if not status.is_stored:
            self._failed(status.name)
            return
        self._done(count, moves)
        if self._is_running and (self._has_arrived or wait_ms >= 0):
            self._again(0.0 if self._has_arrived else min(wait_ms / 1000, SLEEP_S_MAX))

    def _failed(self, problem: str) -> None:
        if not self._problem:
            self.log.warn("delayed messages have to wait: {reason}", reason=problem)
        self._problem = problem
        if self._is_running:
            self._again(RETRY_S)

    def _done(self, count: int, moves: dict[int, int]) -> None:
        now_ms = self._wall_ms()
        for level, offset in moves.items():
            self._offsets.put(level, offset, now_ms)
        self.delivered += count
        if self._problem:
            self._problem = ""
            self.log.info("delayed messages are delivered again")

    # -- one level -------------------------------------------------------------------------------

    def _due(self, level: int, count_max: int, bytes_max: int) -> _Due:
        """The due messages of a level, within the limits, but at least one."""
        queue = self._store.queues.get(SCHEDULE_TOPIC, level - 1)
        at = self._offsets.get(level)
        if queue is None:
            return _Due([], 0, at, -1)
        begin, end = queue.begin_index, queue.next_index
        known = end
        if level not in self._bounded and self._store.has_dispatched(self._bound):
            # The offset may be that of a former master, whose log had more messages, or earlier ones: those
            # that came since this run began have their numbers.
            self._bounded.add(level)
            known = index_at(queue, self._bound)
        if not begin <= at <= known:
            corrected = max(min(at, known), begin)
            self.log.warn(
                "delay level {delay_level}: offset {offset} is outside {begin}..{end}, {corrected} is taken",
                delay_level=level, offset=at, begin=begin, end=known, corrected=corrected,
            )
            at = corrected
        messages: list[PlainMessage] = []
        size, now_ms = 0, self._wall_ms()
        for unit in queue.read(at, count_max):
            due_ms = self._due_ms(unit, level, now_ms)
            if due_ms > now_ms:
                return _Due(messages, size, at, due_ms - now_ms)
            if messages and size + unit.size > bytes_max:
                return _Due(messages, size, at, 0)
            message = self._message(unit)
            at = unit.queue_offset + 1
            if message is not None:
                messages.append(message)
                size += unit.size
        return _Due(messages, size, at, 0 if at < end else -1)

    def _due_ms(self, unit: Unit, level: int, now_ms: int) -> int:
        """
        Time of delivery. If it is further off than the delay, the clock was set back: deliver now. (The delay
        of a level that is no longer there is not known; none is longer than the log is kept.)
        """
        most_ms = self._store.config.file_reserved_time_h * 3_600_000
        if level <= len(self._delays_ms):
            most_ms = self._delays_ms[level - 1]
        return unit.tags_code if unit.tags_code <= now_ms + most_ms else now_ms

    def _message(self, unit: Unit) -> PlainMessage | None:
        """The message to store again; None if it cannot be delivered."""
        record = self._store.sound.at(unit.offset, size=unit.size)
        if record is None:
            self._pass_over(unit, "it is not in the log")
            return None
        message = decode_message(record)
        properties = message.properties
        properties.pop("DELAY", None)
        properties["WAIT"] = "false"
        try:
            topic, queue_id = real_place(message)
            made = NewMessage(
                topic=topic, queue_id=queue_id, body=message.body, flag=message.flag,
                properties_data=encode_properties(properties), sys_flag=message.sys_flag,
                born_timestamp=message.born_timestamp, born_host=message.born_host,
                store_host=self._own.host, reconsume_times=message.reconsume_times,
            )
            (checked,) = self._pipeline.checked([made], are_copies=True)
        except ValueError as error:
            self._pass_over(unit, str(error))
            return None
        found = self._topic_of(topic, queue_id, unit.offset)
        if found is None or (topic.startswith(RETRY_PREFIX) and self._is_over(message)):
            self._pass_over(unit, f"topic {topic} was deleted")
            return None
        return checked._replace(queue_id=queue_now(found, queue_id))

    def _pass_over(self, unit: Unit, reason: str) -> None:
        self.passed_over += 1
        self.log.error("the delayed message at {offset} is skipped: {reason}",
                       offset=unit.offset, reason=reason)
