# -*- test-case-name: tests.broker.sending.test_timers -*-
"""
Delivers messages at the times that their producers have set; see
L{dledger.rocketmq.broker.producing.delays.timed}.

The waiting messages are read in the order of their queue, and kept in memory as time and place. When a
message is due, it is stored again in its real topic and queue, in one put with a note that it is delivered. A
master that begins reads the messages and the notes again, from the first message that waits.

Rule 1: a message is delivered at least once; twice only if the log has lost the note.
Rule 2: work is bounded in each turn of the reactor. At most L{TIMERS_MAX} messages wait: more are refused.
Rule 3: only a master delivers: a slave copies the delivered messages.
Rule 4: a message that cannot be delivered (it is gone from the log, its topic was deleted) is skipped, and
logged.
Rule 5: a message that its producer has recalled is not delivered: a note names its topic, unique key and
time, and counts until then, and until all messages in the queue are read. It does not count for messages
after it, nor for the same message with another time.
Rule 6: a delay that began while the clock was ahead ends when the clock has been set back, see
L{dledger.rocketmq.broker.producing.delays.waiting}.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Mapping

from twisted.internet.interfaces import IDelayedCall
from twisted.logger import Logger

from dledger.rocketmq.answering.java_json import read_document, to_long, wire_json
from dledger.rocketmq.broker.options.inside import BrokerInside
from dledger.rocketmq.broker.producing.delays.recalled import RecalledMessages
from dledger.rocketmq.broker.producing.delays.timed import (
    DONE_TOPIC,
    OUT_MS,
    REAL_QUEUE,
    REAL_TOPIC,
    TIMED_TOPIC,
    TimedKey,
    delay_ms_of,
    timed_key,
)
from dledger.rocketmq.broker.producing.delays.waiting import WaitingMessages
from dledger.rocketmq.broker.producing.halves import real_place
from dledger.rocketmq.broker.producing.puts import NotPut, Put, PutPipeline
from dledger.rocketmq.broker.producing.topic_checks import queue_now
from dledger.rocketmq.metadata.tables import PERM_READ, PERM_WRITE, TopicConfig
from dledger.rocketmq.replication.put_status import PutStatus
from dledger.rocketmq.store.queues.queue_begins import index_at
from dledger.rocketmq.store.queues.queue_files import Unit
from dledger.rocketmq.store.records.events import Arrived
from dledger.rocketmq.store.records.plain_records import PlainMessage
from dledger.rocketmq.store.records.records import NewMessage
from dledger.values.errors import StoreError
from protocols.wire.errors import BodyError, WireError
from protocols.wire.rocketmq.message import Message, decode_message, encode_properties

#: The broker's own group: its offsets in the two topics are where a next master begins to read.
TIMER_GROUP = "CID_RMQ_SYS_TIMER"
#: Messages that wait.
TIMERS_MAX = 262_144
#: Messages that one turn reads; those that it delivers, and their bytes, one at least.
TURN_READS = 256
TURN_MESSAGES = 64
TURN_BYTES = 1024 * 1024
#: The longest sleep, as the wall clock may be set meanwhile.
SLEEP_S_MAX = 1.0
#: Pause after the store has refused messages.
RETRY_S = 0.2
#: Pause after a failure that nobody has thought of: one message must not end all deliveries.
UNEXPECTED_S = 60.0
#: Messages that were recalled before their time.
RECALLED_MAX = 65_536


class TimerService:
    """
    Invariant: C{_open} has the messages that were read and are not delivered; each of them is in C{_due}, in
    C{_held}, or in the put that is under way. C{_due} and C{_places} may have others.

    @ivar delivered: number of messages so far.
    @ivar passed_over: number of messages that could not be delivered.
    @ivar pipeline: stores messages whose time has come.
    """

    log = Logger()

    def __init__(
        self, inside: BrokerInside, pipeline: PutPipeline, *,
        topic_of: Callable[[str, int, int], TopicConfig | None],
    ) -> None:
        """
        @param topic_of: as of L{ScheduleMessageService<dledger.rocketmq.broker.producing.delays.schedule>}.
        """
        self._store = inside.store
        self._metadata = inside.metadata
        self.pipeline = pipeline
        self._own = inside.own
        self._clock = inside.clock
        self._wall_ms = inside.wall_ms
        self._topic_of = topic_of
        self._call: IDelayedCall | None = None
        self._runs = 0
        self._problem = ""
        self.delivered = self.passed_over = 0
        self._forget()

    def _forget(self) -> None:
        self._is_running = self._is_loaded = self._is_putting = False
        self._due: list[tuple[int, int, int]] = []
        self._open = WaitingMessages()
        self._recalled = RecalledMessages()
        self._held: list[tuple[int, int, int]] = []
        self._places: list[int] = []
        self._done: set[int] = set()
        self._notes: deque[tuple[int, int, int]] = deque()
        self._read_at = self._noted_at = self._bound = 0

    def may_wait(self) -> bool:
        """Whether one more message may wait. The topics are made on first use."""
        self.keep_topics()
        return len(self._open) < TIMERS_MAX

    def __len__(self) -> int:
        """Number of messages that wait."""
        return len(self._open)

    def keys(self) -> list[TimedKey]:
        """Of the messages that wait."""
        return self._open.keys()

    def start(self) -> None:
        """This broker is a master: read the messages that wait, then deliver."""
        self.stop()
        self._is_running = True
        self._bound = self._store.log.record_end
        self._read_at = self._begin(TIMED_TOPIC)
        self._noted_at = self._begin(DONE_TOPIC)
        self._again(0.0)

    def _begin(self, topic: str) -> int:
        return self._metadata.consumer_offsets.query(TIMER_GROUP, topic, 0) or 0

    def stop(self) -> None:
        """Deliver no more, and forget the messages that wait."""
        self._runs += 1
        self._forget()
        if self._call is not None:
            self._call.cancel()
            self._call = None

    def arrived(self, arrived: Arrived) -> None:
        """These queues have new messages."""
        if self._is_running and (TIMED_TOPIC, 0) in arrived and not self._is_putting:
            self._again(0.0)

    def _again(self, wait_s: float) -> None:
        if self._call is not None:
            self._call.cancel()
        self._call = self._clock.callLater(wait_s, self._turn)

    def keep_topics(self) -> None:
        """Make the two topics on first use."""
        for name in (TIMED_TOPIC, DONE_TOPIC):
            if self._metadata.topics.get(name) is None:
                self._metadata.topics.put(TopicConfig(
                    topic_name=name, read_queue_nums=1, write_queue_nums=1, perm=PERM_READ | PERM_WRITE
                ), self._wall_ms())

    # -- one turn --------------------------------------------------------------------------------

    def _turn(self) -> None:
        self._call = None
        if self.pipeline.is_closed:
            return  # the broker stops; the next run delivers the rest
        try:
            if not self._is_loaded and not self._load_notes():
                self._again(0.0 if self._store.has_dispatched(self._bound) else RETRY_S)
                return
            has_more = self._read()
            if self._deliver():
                return
        except (NotPut, StoreError, OSError) as error:
            self._failed(str(error))
            return
        except Exception:
            self._again(UNEXPECTED_S)
            raise
        wait_s = max(self._due[0][0] - self._wall_ms(), 0) / 1000 if self._due else SLEEP_S_MAX
        if has_more or self._due:
            self._again(0.0 if has_more else min(wait_s, SLEEP_S_MAX))

    def _failed(self, problem: str) -> None:
        if not self._problem:
            self.log.warn("messages with a time have to wait: {reason}", reason=problem)
        self._problem = problem
        self._again(RETRY_S)

    def _load_notes(self) -> bool:
        """Read some notes. @return: whether all of them are read."""
        is_dispatched = self._store.has_dispatched(self._bound)
        queue = self._store.queues.get(DONE_TOPIC, 0)
        if queue is not None:
            at = self._noted_at = max(self._noted_at, queue.begin_index)
            for unit in queue.read(at, TURN_READS) if at < queue.next_index else ():
                self._noted(unit, self._message(unit))
                self._noted_at = unit.queue_offset + 1
            is_dispatched = is_dispatched and self._noted_at >= queue.next_index
        if is_dispatched:
            # The former master may have been further than the log of this one: what came since this one began
            # has the numbers of messages that are lost.
            timed = self._store.queues.get(TIMED_TOPIC, 0)
            self._read_at = 0 if timed is None else min(self._read_at, index_at(timed, self._bound))
            self._is_loaded = True
        return is_dispatched

    def _noted(self, unit: Unit, message: Message | None) -> None:
        """A note: of messages that are delivered, or of one that was recalled."""
        offsets: list[int] = []
        until_ms = 0
        try:
            document = {} if message is None else read_document(message.body)
            listed, recalled = document.get("offsets"), document.get("recalled")
            if isinstance(listed, list):
                offsets = [to_long(one, "item of offsets") for one in listed]
            if isinstance(recalled, dict):
                until_ms = to_long(recalled.get("until"), "until")
                key = timed_key(str(recalled.get("topic")), str(recalled.get("key")), until_ms)
                self._recalled.add(key, unit.offset)
        except BodyError as error:
            self.log.error("a note of messages with a time is skipped: {reason}", reason=str(error))
        self._done.update(offsets)
        self._add_note(unit.queue_offset, max(offsets, default=-1), until_ms)

    def _add_note(self, offset: int, last: int, until_ms: int) -> None:
        """
        Keep a note until it counts no more, in the order of the log. Puts end in another order, and one that
        is made while notes are loaded is read, too: then it is there already, or even over.
        """
        if offset < self._begin(DONE_TOPIC):
            return
        at = len(self._notes)
        while at and self._notes[at - 1][0] > offset:
            at -= 1
        if not at or self._notes[at - 1][0] != offset:
            self._notes.insert(at, (offset, last, until_ms))

    def _read(self) -> bool:
        """Read some messages that wait. @return: whether there are more."""
        queue = self._store.queues.get(TIMED_TOPIC, 0)
        if queue is None:
            return False
        self._read_at = min(max(self._read_at, queue.begin_index), queue.next_index)
        for unit in queue.read(self._read_at, TURN_READS) if self._read_at < queue.next_index else ():
            is_done = unit.queue_offset in self._done
            message = None if is_done else self._message(unit)
            self._read_at = unit.queue_offset + 1
            if is_done:
                self._done.discard(unit.queue_offset)
                continue
            at = "" if message is None else message.properties.get(OUT_MS, "")
            if not (at.isascii() and at.isdigit() and len(at) < 19):
                self._pass_over(unit.offset, "it has no time, or is not in the log")
                continue
            assert message is not None
            named = message.properties
            key = timed_key(named.get(REAL_TOPIC, ""), named.get("UNIQ_KEY", ""), int(at))
            if self._recalled.has(key, unit.offset):
                continue
            self._open.add(unit.queue_offset, key, delay_ms_of(named))
            heapq.heappush(self._places, unit.queue_offset)
            due_ms = self._open.due_ms(unit.queue_offset, int(at), self._wall_ms())
            heapq.heappush(self._due, (due_ms, unit.queue_offset, unit.offset))
        return self._read_at < queue.next_index

    def _look_at_clock(self) -> None:
        """Rule 6: somebody may have set the clock back."""
        now_ms, waiting = self._wall_ms(), self._open
        if waiting.is_set_back(now_ms):
            self._due = [
                (waiting.due_ms(offset, at_ms, now_ms), offset, place) for at_ms, offset, place in self._due
            ]
            heapq.heapify(self._due)
            if not self._is_putting:
                self._again(0.0)

    def _message(self, unit: Unit) -> Message | None:
        record = self._store.sound.at(unit.offset, size=unit.size)
        try:
            return None if record is None else decode_message(record)
        except WireError:
            return None

    # -- deliveries ----------------------------------------------------------------------------------

    def _deliver(self) -> bool:
        """@return: whether a put is under way."""
        taken: list[tuple[int, int, int]] = []
        messages: list[PlainMessage] = []
        size, now_ms, count = 0, self._wall_ms(), 0
        try:
            while self._due and self._due[0][0] <= now_ms:
                if len(taken) >= TURN_MESSAGES or size >= TURN_BYTES:
                    break
                one = heapq.heappop(self._due)
                if one[1] not in self._open:
                    continue  # it was recalled
                if self._recalled.is_unsure(self._open.key(one[1])):
                    self._held.append(one)
                    continue
                taken.append(one)
                found = self._copy(one[2])
                if found is not None:
                    messages.append(found)
                    size += len(found.body)
                    count += 1
            if not taken:
                return False
            self.keep_topics()
            note = self._note({"offsets": [one[1] for one in taken]})
            put = self.pipeline.put([*messages, *note], waits=False)
        except Exception:
            for one in taken:
                heapq.heappush(self._due, one)
            raise
        self._is_putting = True
        if put.is_placed:
            self._add_note(put.placed.queue_offsets[-1], max(one[1] for one in taken), 0)
        put.done.addCallback(self._put_ended, put, taken, count, self._runs)
        return True

    def _note(self, document: Mapping[str, object]) -> list[PlainMessage]:
        return self.pipeline.checked([NewMessage(
            topic=DONE_TOPIC, queue_id=0, body=wire_json(document), flag=0, sys_flag=0, properties_data=b"",
            born_timestamp=self._wall_ms(), born_host=self._own.host, store_host=self._own.host,
        )])

    @property
    def may_recall(self) -> bool:
        """Whether one more message may be recalled."""
        return len(self._recalled) < RECALLED_MAX

    def recall(self, topic: str, key: str, until_ms: int) -> Put:
        """
        Do not deliver the message with this key and time.

        @param key: its unique key. @param until_ms: its time, ms since 1970.
        @return: its C{done} fires when that is stored, or not.
        @raise NotPut: nothing can be stored.
        """
        self.keep_topics()
        note = {"recalled": {"topic": topic, "key": key, "until": until_ms}}
        put, run = self.pipeline.put(self._note(note)), self._runs
        name = timed_key(topic, key, until_ms)
        self._recalled.begin(name)
        if put.is_placed:  # from now on no later note counts as the last one
            self._add_note(put.placed.queue_offsets[0], -1, until_ms)

        def stored(status: PutStatus) -> PutStatus:
            if status.is_stored and run == self._runs:
                self._add_note(put.placed.queue_offsets[0], -1, until_ms)
                place = put.placed.offsets[0]
                self._recalled.add(name, place)
                queue = self._store.queues.get(TIMED_TOPIC, 0)
                for offset in self._open.of(name):
                    units = queue.read(offset, 1) if queue is not None else ()
                    if all(self._recalled.has(name, unit.offset) for unit in units):
                        self._open.end(offset)
            if run == self._runs:
                self._recalled.end(name)
                self._release()
            return status

        put.done.addCallback(stored)
        return put

    def _release(self) -> None:
        """Those whose recall had no outcome may be delivered now, unless they are recalled."""
        held, self._held = self._held, []
        for one in held:
            heapq.heappush(self._due, one)
        if held and not self._is_putting:
            self._again(0.0)

    def _put_ended(
        self, status: PutStatus, put: Put, taken: list[tuple[int, int, int]], count: int, run: int
    ) -> None:
        if run != self._runs:
            return  # of an earlier life as a master
        self._is_putting = False
        if not status.is_stored:
            for one in taken:
                heapq.heappush(self._due, one)
            self._failed(status.name)
            return
        for one in taken:
            self._open.end(one[1])
        self._add_note(put.placed.queue_offsets[-1], max(one[1] for one in taken), 0)
        self.delivered += count
        if self._problem:
            self._problem = ""
            self.log.info("messages with a time are delivered again")
        self._again(0.0)

    def _copy(self, offset: int) -> PlainMessage | None:
        """The message to store again; None if it cannot be delivered."""
        record = self._store.sound.at(offset, size=self._store.log.file_size)
        if record is None:
            self._pass_over(offset, "it is not in the log")
            return None
        try:
            message = decode_message(record)
            topic, queue_id = real_place(message)
            named = message.properties
            for name in (OUT_MS, REAL_TOPIC, REAL_QUEUE):
                named.pop(name, None)
            (checked,) = self.pipeline.checked([NewMessage(
                topic=topic, queue_id=queue_id, body=message.body, flag=message.flag,
                properties_data=encode_properties(named), sys_flag=message.sys_flag,
                born_timestamp=message.born_timestamp, born_host=message.born_host,
                store_host=self._own.host, reconsume_times=message.reconsume_times,
            )], are_copies=True)
        except (WireError, ValueError) as error:
            self._pass_over(offset, str(error))
            return None
        found = self._topic_of(topic, queue_id, offset)
        if found is None:
            self._pass_over(offset, f"topic {topic} was deleted")
            return None
        return checked._replace(queue_id=queue_now(found, queue_id))

    def _pass_over(self, offset: int, reason: str) -> None:
        self.passed_over += 1
        self.log.error("the message with a time at {offset} is skipped: {reason}",
                       offset=offset, reason=reason)

    # -- progress ------------------------------------------------------------------------------------

    def sweep(self) -> None:
        """Record where the next master begins to read. Called once a second."""
        if not (self._is_running and self._is_loaded):
            return
        self._look_at_clock()
        while self._places and self._places[0] not in self._open:
            heapq.heappop(self._places)
        first = self._places[0] if self._places else self._read_at
        self._commit(TIMED_TOPIC, first)
        queue = self._store.queues.get(TIMED_TOPIC, 0)
        if queue is not None and self._read_at < queue.next_index:
            return  # a message that was recalled may be among those that are not read yet
        now_ms, done = self._wall_ms(), self._store.queues.get(DONE_TOPIC, 0)
        while self._notes:
            offset, last, until_ms = self._notes[0]
            if until_ms and last < 0 and done is not None and offset < done.next_index:
                # All messages before the note are read, the recalled one among them. The note counts until
                # they are done: the next master begins with the first that waits.
                last = self._read_at - 1
                self._notes[0] = offset, last, until_ms
            if last >= first or until_ms > now_ms or (until_ms and last < 0):
                break
            self._commit(DONE_TOPIC, self._notes.popleft()[0] + 1)
        self._recalled.expire(now_ms)

    def _commit(self, topic: str, offset: int) -> None:
        offsets = self._metadata.consumer_offsets
        if offset and offsets.query(TIMER_GROUP, topic, 0) != offset:
            offsets.commit(TIMER_GROUP, topic, 0, offset, self._wall_ms())
