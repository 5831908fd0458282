# -*- test-case-name: tests.broker.popping.test_revive -*-
"""
Delivers popped messages again that nobody has acknowledged in time, as PopReviveService does::

    start       a master reads the revive topic, from where the last master has finished, into its table
    each due check point    its open messages are stored again in the topic of retries, with one try more; or
                in the dead letters of the group, if no tries are left; then an ack of theirs: in one put
    each second the reached offsets of the revive topic become those of the broker's own group

Rule 1: only a master pops. Until its table is read, pops wait, and acks are stored and counted later.
Rule 2: a message is stored again before its check point is finished. After a crash between the two, it is
delivered once more; it is never lost.
Rule 3: an offset of a group that a crash took back moves past the check points that are younger than the
table of offsets, so that popped messages do not come once more. What an operator has reset since stays.
Rule 4: what cannot be stored for a retry, because its properties leave no room for what the broker adds, is a
dead letter, whole. What cannot be stored at all is not finished either, and is tried again later.
Rule 5: work is bounded in each turn of the reactor, and one put is under way at most.

Source: PopReviveService (5.3.3).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeVarTuple

from twisted.internet.interfaces import IDelayedCall
from twisted.logger import Logger

from dledger.rocketmq.answering.refusals import Refused
from dledger.rocketmq.broker.consuming.popping.check_points import (
    FIRST_POP_TIME,
    ORIGIN_GROUP,
    OWN_QUEUE,
    POP_RECEIPT,
    POPPED_GROUP,
    RECEIPT_BYTES_MAX,
    REVIVE_GROUP,
    REVIVE_QUEUES,
    Ack,
    CheckPoint,
    PopKey,
    ack_message,
    normal_topic,
    read_revive,
    revive_topic,
)
from dledger.rocketmq.broker.consuming.popping.past_points import PastPoints
from dledger.rocketmq.broker.consuming.popping.popped import Popped, PoppedTable
from dledger.rocketmq.broker.consuming.popping.retries import RetryTopics
from dledger.rocketmq.broker.options.inside import BrokerInside
from dledger.rocketmq.broker.producing.puts import NotPut, Put, PutPipeline
from dledger.rocketmq.broker.producing.send_properties import name_retry_topic
from dledger.rocketmq.broker.producing.topic_checks import DLQ_PREFIX, TopicChecks
from dledger.rocketmq.metadata.tables import PERM_READ, PERM_WRITE, GroupConfig, TopicConfig
from dledger.rocketmq.replication.put_status import PutStatus
from dledger.rocketmq.store.records.plain_records import Placed, PlainMessage, one_try_more
from dledger.rocketmq.store.records.records import NewMessage
from dledger.values.errors import StoreError
from protocols.wire.errors import WireError
from protocols.wire.rocketmq.layout import PROPERTIES_BYTES_MAX, TRANSACTION_MASK
from protocols.wire.rocketmq.message import Message, decode_message, encode_properties

_Ts = TypeVarTuple("_Ts")

#: The most messages that one turn reads of the revive topic, or stores again, and bytes of the latter.
TURN_MESSAGES = 128
TURN_BYTES = 1024 * 1024
#: Pause between two looks, and after the store has refused messages.
LOOK_S = 0.5
#: Acks that may come before the table is read.
EARLY_MAX = 65_536
#: Time after which a check point is looked at again that could not be finished, and one of whose messages
#: cannot be stored anywhere.
AGAIN_MS, STUCK_MS = 1_000, 60_000
#: Pause after a failure that nobody has thought of.
UNEXPECTED_S = 60.0


class ReviveService:
    """
    Invariant: C{call} is the scheduled turn, or None: it does not run, or a put is under way.

    @ivar table: the unfinished check points; of a master that C{is_loaded} all of them.
    @ivar topic: the revive topic. C{call}: the next turn, if there is one.
    @ivar revived, dead, gone: numbers of messages so far: stored for a retry, as dead letters, and not found.
    """

    log = Logger()

    def __init__(self, inside: BrokerInside, pipeline: PutPipeline, checks: TopicChecks) -> None:
        self._config = inside.config
        self._store = inside.store
        self._metadata = inside.metadata
        self._pipeline = pipeline
        self._checks = checks
        self._retries = RetryTopics(inside)
        self._own = inside.own
        self._clock = inside.clock
        self._wall_ms = inside.wall_ms
        self.call: IDelayedCall | None = None
        self._runs = 0
        self._problem = ""
        self.topic = revive_topic(inside.config.broker_cluster_name)
        self._past = PastPoints(inside)
        self.revived = self.dead = self.gone = 0
        self._forget()

    def _forget(self) -> None:
        self.table = PoppedTable()
        self.is_loaded = self._is_running = False
        self._read_at: dict[int, int] = {}
        self._bound = 0
        self._early: list[Ack] = []

    def start(self) -> None:
        """This broker is a master: read the table, then deliver."""
        self.stop()
        self._is_running = True
        self._bound = self._store.log.record_end
        self.topic = self._past.topic_of(self._config.broker_cluster_name)
        self._past.note_table(self.topic)
        self.table.moves.known = self._metadata.consumer_offsets.query(POPPED_GROUP, self.topic, OWN_QUEUE)
        self._again(0.0)

    def stop(self) -> None:
        """Deliver no more, and forget the table."""
        self._runs += 1
        self._forget()
        if self.call is not None:
            self.call.cancel()
            self.call = None

    def _again(self, wait_s: float) -> None:
        self.call = self._clock.callLater(wait_s, self._turn)

    def _turn(self) -> None:
        self.call = None
        if self._pipeline.is_closed:
            return  # the broker stops; the next run delivers the rest
        try:
            if not self.is_loaded:
                self._load()
                self._again(0.0 if self.is_dispatched() else LOOK_S)
                return
            due = self.table.due(self._wall_ms(), TURN_MESSAGES)
            if due:
                self._revive(due)
                return
        except (NotPut, Refused, StoreError, OSError) as error:
            self._failed(str(error))
            return
        except Exception:
            self._again(UNEXPECTED_S)  # one message must not end the deliveries of all groups
            raise
        self._again(LOOK_S)

    def _failed(self, problem: str) -> None:
        if problem != self._problem:
            self._problem = problem
            self.log.warn("popped messages have to wait: {reason}", reason=problem)
        self._again(LOOK_S)

    # -- the table -----------------------------------------------------------------------------------

    def keep_topic(self) -> None:
        """Make the revive topic on first use."""
        topics = self._metadata.topics
        if topics.get(self.topic) is None:
            made = TopicConfig(topic_name=self.topic, read_queue_nums=REVIVE_QUEUES,
                               write_queue_nums=REVIVE_QUEUES, perm=PERM_READ | PERM_WRITE)
            topics.put(made, self._wall_ms())

    def early(self, ack: Ack) -> bool:
        """An ack is stored before the table is read. @return: whether it can be remembered."""
        if len(self._early) >= EARLY_MAX:
            return False
        self._early.append(ack)
        return True

    def is_dispatched(self) -> bool:
        """Whether everything that the log had at the start is in its queue."""
        return self._store.has_dispatched(self._bound)

    def _load(self) -> None:
        """Read some messages of the revive topic."""
        is_dispatched, left = self.is_dispatched(), TURN_MESSAGES
        for queue_id in range(REVIVE_QUEUES):
            queue = self._store.queues.get(self.topic, queue_id)
            if queue is None:
                continue
            if queue_id not in self._read_at:
                known = self._metadata.consumer_offsets.query(REVIVE_GROUP, self.topic, queue_id)
                begin = queue.begin_index if known is None else known + 1
                self._read_at[queue_id] = min(max(begin, queue.begin_index), queue.next_index)
            at = self._read_at[queue_id] = max(self._read_at[queue_id], queue.begin_index)
            for unit in queue.read(at, left) if at < queue.next_index and left else ():
                self._take(unit.offset, queue_id, unit.queue_offset)
                self._read_at[queue_id] = unit.queue_offset + 1
                left -= 1
            is_dispatched = is_dispatched and self._read_at[queue_id] >= queue.next_index
        if is_dispatched:
            self._move()
            for ack in self._early:
                self.table.finish(ack)
            self._early = []
            self.is_loaded = True
            if len(self.table):
                self.log.info("{count} check points of POP are not finished", count=len(self.table))

    def _take(self, offset: int, queue_id: int, queue_offset: int) -> None:
        try:
            record = self._store.sound.at(offset)
            found = None if record is None else read_revive(decode_message(record), self._config.broker_name)
        except (WireError, ValueError) as error:
            self.log.error("the message at {offset} of {topic} is skipped: {reason}",
                           offset=queue_offset, topic=self.topic, reason=str(error))
            found = None
        if isinstance(found, CheckPoint):
            self.table.add(found, queue_id, queue_offset)
            is_old = self._past.is_moved(
                found, queue_id, queue_offset, known=self.table.moves.known
            ) or self.is_over(found.key)
            if found.offsets and not is_old:
                topic, group, number, *_ = found.key
                place, end = (topic, group, number), max(found.offsets) + 1
                self.table.unmoved[place] = max(self.table.unmoved.get(place, 0), end)
            if queue_id == OWN_QUEUE:
                self._note_moved(queue_offset)
            return
        self.table.passed(queue_id, queue_offset)
        if found is not None:
            self.table.finish(found)

    def follow(
        self, put: Put, count: int, then: Callable[[PutStatus, *_Ts], object], *arguments: *_Ts
    ) -> None:
        """
        A put of check points: when it has ended, and C{then} was called with its status, the offsets of the
        groups are after their messages.

        @param count: the number of check points, which come first.
        """
        moves = self.table.moves
        # From now on the table of offsets says itself that no group has moved past these check points.
        self._note_moved(-1)
        number = moves.begin(put.placed.queue_offsets)

        def ended(status: PutStatus) -> None:
            then(status, *arguments)
            if moves is self.table.moves:  # else it is of an earlier life as a master
                last = max(put.placed.queue_offsets[:count]) if status.is_stored else -1
                self._note_moved(moves.end(number, last))

        put.done.addCallback(ended)

    def _note_moved(self, queue_offset: int) -> None:
        offsets = self._metadata.consumer_offsets
        known = offsets.query(POPPED_GROUP, self.topic, OWN_QUEUE)
        if known is None or queue_offset >= known:
            offsets.commit(POPPED_GROUP, self.topic, OWN_QUEUE, queue_offset + 1, self._wall_ms())

    def _move(self) -> None:
        """
        The offsets of groups move past the messages that were popped. (A queue is popped by one request of a
        group at a time, so a message between two check points was passed over.) An offset after the end of a
        queue is of a deleted topic with this name, and does not count.
        """
        offsets = self._metadata.consumer_offsets
        for (topic, group, queue_id), end in self.table.unmoved.items():
            queue, known = self._store.queues.get(topic, queue_id), offsets.query(group, topic, queue_id) or 0
            if queue is None or end > queue.next_index:
                continue  # as above
            if end > known or known > queue.next_index:
                offsets.commit(group, topic, queue_id, end, self._wall_ms())
        self.table.is_read()

    # -- deliveries ----------------------------------------------------------------------------------

    def _revive(self, due: list[Popped]) -> None:
        """Store the open messages of some check points again."""
        messages: list[PlainMessage] = []
        acks: list[Ack] = []
        places: list[tuple[int, int]] = []
        size, dead = 0, 0
        try:
            for popped in due:
                if not popped.open or size >= TURN_BYTES:
                    self.table.again(popped, self._wall_ms() + (0 if popped.open else AGAIN_MS))
                    continue
                copies, stuck, deads, length = self._copies(popped)
                dead, size = dead + deads, size + length
                if stuck:
                    self.table.again(popped, self._wall_ms() + STUCK_MS)
                    if len(stuck) == len(popped.open):
                        continue
                ack = Ack(popped.point.key, tuple(sorted(popped.open - stuck)))
                acks.append(ack)
                last = ack_message(self.topic, ack, self._own.host, self._wall_ms(), queue_id=popped.at[0])
                messages += copies + self._pipeline.checked([last])
                places.append((len(messages) - 1, popped.at[0]))
                self.table.settle(ack, revives=True)
            if not messages:
                self._again(LOOK_S)
                return
            self.keep_topic()
            put = self._pipeline.put(messages)  # slaves have it before they hear that it is finished
        except Exception:
            for ack in acks:
                self.table.settled(ack, is_stored=False)
            for popped in due:
                self.table.again(popped, self._wall_ms() + AGAIN_MS)
            raise
        count = len(messages) - len(acks)
        placed = dict(zip(acks, places, strict=True))
        put.done.addCallback(self._revived, put, due, placed, count, dead, self._runs)

    def _revived(
        self, status: PutStatus, put: Put, due: list[Popped], acks: dict[Ack, tuple[int, int]], count: int,
        dead: int, run: int,
    ) -> None:
        """@param acks: the place of each in the put, and its queue in the revive topic."""
        if run != self._runs:
            return  # of an earlier life as a master: its table is forgotten
        for ack in acks:
            self.table.settled(ack, is_stored=status.is_stored)
        if not status.is_stored:
            for popped in due:
                self.table.again(popped, self._wall_ms() + AGAIN_MS)
            self._failed(status.name)
            return
        for place, queue_id in acks.values():
            self.table.passed(queue_id, put.placed.queue_offsets[place])
        self.revived += count - dead
        self.dead += dead
        if self._problem:
            self._problem = ""
            self.log.info("popped messages are delivered again")
        self._again(0.0)

    def _copies(self, popped: Popped) -> tuple[list[PlainMessage], set[int], int, int]:
        """
        The messages to store again; those that are no more are counted.

        @return: them, the offsets of those that cannot be stored, the number of dead letters, and the bytes.
        """
        key = popped.point.key
        topic, group = normal_topic(key.topic, key.group), self._metadata.groups.get(key.group)
        # (A group that is not in the table was deleted, or a crash or a promotion took it.)
        tries_max = (group or GroupConfig(group_name=key.group)).retry_max_times
        if self._past.is_over(popped):
            self.log.info("{count} popped messages of {topic} are over: deleted with it, or expired",
                          count=len(popped.open), topic=topic)
            self.gone += len(popped.open)
            return [], set(), 0, 0
        queue = self._store.queues.get(key.topic, key.queue_id)
        copies: list[PlainMessage] = []
        stuck: set[int] = set()
        dead = size = 0
        for offset in sorted(popped.open):
            units = queue.read(offset, 1) if queue and queue.begin_index <= offset < queue.next_index else ()
            try:
                record = self._store.sound.at(units[0].offset, size=units[0].size) if units else None
                if record is None:
                    raise ValueError("it is not in the log")
                message = decode_message(record)
            except (WireError, ValueError) as error:
                self.gone += 1
                self.log.error("the popped message at {offset} of {topic}, queue {queue_id} is skipped: "
                               "{reason}", offset=offset, topic=key.topic, queue_id=key.queue_id,
                               reason=str(error))
                continue
            try:
                copy, plain = self._storable(message, popped, topic, tries_max)
            except (ValueError, Refused) as error:
                stuck.add(offset)
                self.log.error("the popped message at {offset} of {topic}, queue {queue_id} cannot be stored "
                               "again, and waits: {reason}", offset=offset, topic=key.topic,
                               queue_id=key.queue_id, reason=str(error))
                continue
            copies += plain
            dead += copy.topic.startswith(DLQ_PREFIX)
            size += len(record)
        return copies, stuck, dead, size

    def is_over(self, key: PopKey) -> bool:
        """See L{PastPoints.is_over}; unknown check points are not."""
        popped = self.table.get(key)
        return popped is not None and self._past.is_over(popped)

    def popped(self, points: Sequence[CheckPoint], placed: Placed) -> list[CheckPoint]:
        """
        Check points are stored in our queue of the revive topic.

        @return: them, without those of a topic that was deleted meanwhile: they are over.
        """
        found = []
        for point, at, offset in zip(points, placed.offsets, placed.queue_offsets, strict=True):
            key = point.key
            topic = normal_topic(key.topic, key.group)
            if self._metadata.topics.get(topic) is None or at < self._store.deleted.place_of(topic):
                self.table.passed(OWN_QUEUE, offset)
            else:
                self.table.add(point, OWN_QUEUE, offset)
                found.append(point)
        return found

    def _storable(
        self, message: Message, popped: Popped, topic: str, tries_max: int
    ) -> tuple[NewMessage, list[PlainMessage]]:
        """
        The copy of a message that can be stored: for a retry, or else as a dead letter, or that without any
        additions.

        @raise ValueError: there is none. @raise Refused: there are too many topics for one more.
        """
        forms = (self._retry, self._dead_letter, self._bare_dead_letter)
        for make in forms[int(message.reconsume_times >= tries_max) :]:
            try:
                copy = make(message, popped, topic)
                plain = self._pipeline.checked([copy], are_copies=True)
            except ValueError as error:
                problem = error
                continue
            self._checks.made_for_retries(copy.topic)
            return copy, plain
        raise problem

    def _retry(self, message: Message, popped: Popped, topic: str) -> NewMessage:
        """@raise ValueError: the consumer's receipt would not fit."""
        key, named = popped.point.key, message.properties
        named.pop(POP_RECEIPT, None)
        named.setdefault(FIRST_POP_TIME, str(key.pop_ms))
        named[ORIGIN_GROUP] = key.group
        copy = self._copy(message, self._retries.written(topic, key.group), named)
        if len(copy.properties_data) + RECEIPT_BYTES_MAX > PROPERTIES_BYTES_MAX:
            raise ValueError(f"properties of {len(copy.properties_data)} bytes leave no room for a receipt")
        return copy

    def _dead_letter(self, message: Message, popped: Popped, topic: str) -> NewMessage:
        key, named = popped.point.key, message.properties
        named.pop(POP_RECEIPT, None)
        named.setdefault(FIRST_POP_TIME, str(key.pop_ms))
        name_retry_topic(named, topic)
        named.setdefault("ORIGIN_MESSAGE_ID", message.message_id)
        return self._copy(message, DLQ_PREFIX + key.group, named)

    def _bare_dead_letter(self, message: Message, popped: Popped, _topic: str) -> NewMessage:
        return self._copy(message, DLQ_PREFIX + popped.point.key.group, message.properties)

    def _copy(self, message: Message, name: str, named: Mapping[str, str]) -> NewMessage:
        return NewMessage(
            topic=name, queue_id=0, body=message.body, properties_data=encode_properties(named),
            flag=message.flag, sys_flag=message.sys_flag & ~TRANSACTION_MASK,
            born_timestamp=message.born_timestamp, born_host=message.born_host, store_host=self._own.host,
            reconsume_times=one_try_more(message.reconsume_times),
        )

    def sweep(self) -> None:
        """Record what is finished. Called once a second."""
        if not (self.is_loaded and self._is_running):
            return
        offsets = self._metadata.consumer_offsets
        first = self.table.moves.first
        for queue_id, reached in self.table.reach().items():
            if queue_id == OWN_QUEUE and first is not None:
                # A later put may have ended first: these check points are not in the table yet.
                reached = min(reached, first - 1)
            if reached >= 0 and offsets.query(REVIVE_GROUP, self.topic, queue_id) != reached:
                offsets.commit(REVIVE_GROUP, self.topic, queue_id, reached, self._wall_ms())
