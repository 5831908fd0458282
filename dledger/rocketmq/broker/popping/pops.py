# -*- test-case-name: tests.broker.popping.test_pops -*-
"""
Gives the messages of a topic to the consumers of a group that pop them. It answers three requests:

    POP_MESSAGE (200050)     takes messages; they are invisible to the group's other consumers for a time
    NOTIFICATION (200054)    asks only whether there are messages to take
    POLLING_INFO (200055)    asks how many requests wait for the messages of a topic for a group

A request for which there is no message waits until one arrives, or until its deadline. POP_MESSAGE is
answered 0 with messages, 210 (POLLING_TIMEOUT) at its deadline, and 209 (POLLING_FULL) if too many requests
wait already.

The broker first stores a check point, which names the messages that it is about to give. Then it moves the
offset of the group past them, and then it sends them. A crash between these steps may deliver messages twice;
it never loses one.

Rule 1: a request is answered once. While a check point of a queue is being stored for a group, no other pop
of the group takes messages of this queue.
Rule 2: at most L{POLLS_MAX} requests wait. L{PopCommands.sweep} checks all deadlines, once a second. One turn
of the reactor examines at most L{WOKEN_MAX} waiting requests.
Rule 3: a connection whose answers are not read gets no messages until they are.
Rule 4: a group that holds L{UNACKED_MAX} messages of a queue, or a few more, gets none from it until it has
acknowledged some, or they are visible again.
Rule 5: only a master gives messages.
Rule 6: a pop in order takes no retries and stores no check point
(L{dledger.rocketmq.broker.popping.in_order}).

Source: PopMessageProcessor, PopLongPollingService, NotificationProcessor (5.3.3).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import islice

import attrs
from twisted.internet.interfaces import IDelayedCall, IReactorTime
from twisted.logger import Logger

from dledger.rocketmq.answering.held import HeldRequest, HeldRequests
from dledger.rocketmq.answering.refusals import (
    LONG_MAX,
    LONG_MIN,
    Code,
    CommandGroup,
    Fields,
    Handlers,
    Refused,
)
from dledger.rocketmq.broker.basics.events import Arrived
from dledger.rocketmq.broker.common.config import BrokerConfig
from dledger.rocketmq.broker.common.own_address import OwnAddress
from dledger.rocketmq.broker.consuming.pull_progress import PullProgress
from dledger.rocketmq.broker.ha.put_status import PutStatus
from dledger.rocketmq.broker.metadata.files import Metadata
from dledger.rocketmq.broker.popping.check_points import (
    ORDER_QUEUE,
    OWN_QUEUE,
    CheckPoint,
    PopKey,
    check_point_message,
    kind_of,
)
from dledger.rocketmq.broker.popping.first_offsets import FirstOffsets
from dledger.rocketmq.broker.popping.given import Taken, answer_fields, body_of
from dledger.rocketmq.broker.popping.in_order import InOrder, Releases
from dledger.rocketmq.broker.popping.pop_requests import FROM_FIRST, PopRequest, read_pop
from dledger.rocketmq.broker.popping.popped import GroupQueue
from dledger.rocketmq.broker.popping.retries import RetryTopics
from dledger.rocketmq.broker.popping.revive import ReviveService
from dledger.rocketmq.broker.puts.answers import put_refusal
from dledger.rocketmq.broker.puts.puts import NotPut, Put, PutPipeline
from dledger.rocketmq.broker.store.queries import GetStatus, Got, get_messages
from dledger.rocketmq.broker.store.store import MessageStore
from dledger.values.errors import StoreError
from protocols.rocketmq.commands import CommandConnection
from protocols.wire.remoting import RemotingCommand

POP_MESSAGE, NOTIFICATION, POLLING_INFO = 200_050, 200_054, 200_055
#: The most requests that wait.
POLLS_MAX = 65_536
#: The longest time for which a request waits, in milliseconds.
POLL_MS_MAX = 600_000
#: With this many messages of a queue not acknowledged by a group, the group gets no more of it
#: (C{popInflightMessageThreshold}).
UNACKED_MAX = 10_000
#: With this many check points of all groups together, no group gets messages.
CHECK_POINTS_MAX = 262_144
#: The most waiting requests that one turn of the reactor examines, and that one event wakes for each group.
WOKEN_MAX = 64
#: The most queues from which one request reads messages.
READS_MAX = 32
#: The most queues for which one request commits the first offset of its group. (A topic may have 65,535
#: queues, and every client may name a new group.)
FIRSTS_MAX = 256
#: With this many bytes of messages whose check points are being stored, no request gets messages.
PUT_BYTES_MAX = 64 * 1024 * 1024
#: One search in this number begins with the topics of retries (C{popFromRetryProbability}).
RETRIES_FIRST = 5


#: The requests for messages of one topic for one group wait together: the names of both.
_Waiting = tuple[str, str]


@attrs.define(eq=False)
class _Poll(HeldRequest):
    """A request that waits, with its fields."""

    pop: PopRequest


class PopCommands(CommandGroup):
    """
    The commands that take messages.

    Invariant: each waiting request is in C{_polls}, by its topic and group. C{_topics} has the keys of
    C{_polls} to wake by the name of a topic with new messages: the topic itself, or one of the group's
    retries. C{_locked} has the queues, each for a group, of which a check point is being stored.

    @ivar popped: number of messages that were given since the start.
    """

    log = Logger()

    def __init__(
        self, config: BrokerConfig, store: MessageStore, metadata: Metadata, pipeline: PutPipeline,
        revive: ReviveService, in_order: InOrder, *, own: OwnAddress, clock: IReactorTime,
        wall_ms: Callable[[], int], progress: PullProgress,
    ) -> None:
        """
        @param wall_ms: milliseconds since 1970.
        @param progress: is informed of the messages that groups get.
        """
        self._config = config
        self._store = store
        self._metadata = metadata
        self._pipeline = pipeline
        self._revive = revive
        self._own = own
        self._clock = clock
        self._wall_ms = wall_ms
        self._polls: HeldRequests[_Waiting, _Poll] = HeldRequests()
        self._topics: dict[str, dict[_Waiting, None]] = {}
        self._call: IDelayedCall | None = None
        self._retries = RetryTopics(config, metadata)
        self._begins = FirstOffsets(config, store)
        self._in_order = in_order
        self._releases = Releases(in_order, self.freed, clock=clock, wall_ms=wall_ms)
        self._locked: set[GroupQueue] = set()
        self._progress = progress
        self._put_bytes = 0
        self._searches = 0
        self._is_stopped = False
        self.popped = 0

    def __len__(self) -> int:
        """Number of waiting requests."""
        return len(self._polls)

    def handlers(self) -> Handlers:
        """The method for each request code."""
        return {POP_MESSAGE: self._pop, NOTIFICATION: self._notify, POLLING_INFO: self._answer_polling}

    # -- a request -------------------------------------------------------------------------------

    def _pop(self, connection: CommandConnection, request: RemotingCommand) -> None:
        fields = Fields(request.ext_fields)
        pop = self._read(fields)
        if not self._try(connection, request, pop):
            self._wait(connection, request, pop, fields)

    def _notify(self, connection: CommandConnection, request: RemotingCommand) -> None:
        fields = Fields(request.ext_fields)
        pop = self._read(fields, takes=False)
        if not self._try(connection, request, pop):
            self._wait(connection, request, pop, fields)

    def _answer_polling(self, connection: CommandConnection, request: RemotingCommand) -> None:
        fields = Fields(request.ext_fields)
        topic, group = fields.text("topic"), fields.text("consumerGroup")
        count = len(self._polls.of((topic, group)))
        connection.answer(request, ext_fields={"pollingNum": str(count)})

    def _read(self, fields: Fields, *, takes: bool = True) -> PopRequest:
        return read_pop(
            fields, self._config, self._metadata, self._retries, takes=takes,
            topic_characters_max=self._pipeline.topic_characters_max, now_ms=self._wall_ms(),
        )

    # -- messages --------------------------------------------------------------------------------

    def _try(self, connection: CommandConnection, request: RemotingCommand, pop: PopRequest) -> bool:
        """
        Give messages to a request, if there are any for it.

        @return: whether the request is answered, now or as soon as its check points are stored. If not, it
            may wait.
        @raise Refused: messages cannot be read, or check points cannot be stored.
        """
        revive = self._revive
        if not revive.is_loaded or self._put_bytes >= PUT_BYTES_MAX:
            return False
        if not pop.takes:
            if any(end > at for _queue, at, end in self._queues(pop)):
                connection.answer(request, ext_fields={"hasMsg": "true", "pollingFull": "false"})
                return True
            return False
        if not connection.may_answer or len(revive.table) >= CHECK_POINTS_MAX:
            return False
        taken, rest, is_cut = self._take(pop)
        if not taken:
            if is_cut:
                self._wake_later((pop.topic, pop.group))
            return False
        if pop.in_order:
            self._give_in_order(connection, request, pop, taken, rest)
            return True
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
        self._locked.update(_queue_of(one.point) for one in taken)
        size = sum(len(record) for one in taken for record in one.records)
        self._put_bytes += size
        connection.account.reserve(size)
        stored = (put, connection, request, pop, taken, rest, size, revive.table)
        revive.follow(put, len(taken), self._stored, *stored)
        return True

    def _queues(self, pop: PopRequest) -> Iterator[tuple[GroupQueue, int, int]]:
        """
        The queues that have messages for a request now, or in which the offset of the group is after the end.
        Each search begins with another queue of the topic, so that all queues get their turn.

        @return: the queue, the offset of the first message to take, and the offset after its last message.
        """
        self._searches += 1
        firsts = 0
        retries = () if pop.in_order else self._retries.read(pop.topic, pop.group)
        topics = ((pop.topic, pop.queue_id), *((name, -1) for name in retries))
        for topic, wanted in reversed(topics) if self._searches % RETRIES_FIRST == 0 else topics:
            found = self._metadata.topics.get(topic)
            count = 0 if found is None else found.read_queue_nums
            numbers: Iterable[int] = (wanted,) if wanted >= 0 else range(count)
            for number in numbers:
                queue_id = number if wanted >= 0 else (number + self._searches) % count
                key = (topic, pop.group, queue_id)
                if key in self._locked or self._revive.table.count(key) >= UNACKED_MAX:
                    continue
                if pop.in_order and self._in_order.blocks(key, pop.attempt):
                    continue
                at = self._metadata.consumer_offsets.query(pop.group, topic, queue_id)
                if at is not None and kind_of(topic):
                    # If the topic was deleted and made again, its earlier retries are over.
                    at = max(at, self._begins.of(key, is_first=True))
                elif at is None:
                    at = self._begins.of(key, is_first=pop.init_mode == FROM_FIRST)
                    firsts += 1
                    if pop.takes and not kind_of(topic) and firsts <= FIRSTS_MAX:
                        # The group keeps this place, so that it gets the messages that arrive until its
                        # next pop.
                        offsets, now_ms = self._metadata.consumer_offsets, self._wall_ms()
                        offsets.commit(pop.group, topic, queue_id, at, now_ms)
                queue = self._store.queues.get(topic, queue_id)
                if queue is not None and at != queue.next_index:
                    yield key, at, queue.next_index

    def _take(self, pop: PopRequest) -> tuple[list[Taken], int, bool]:
        """
        Read messages for a request, from one queue after the other until it has enough.

        If a filter passes over all messages that were read of a queue, the offset of the group moves past
        them.

        @return: the messages of each queue; about how many messages are left in the queues; and whether the
            request should be examined again soon, because offsets have moved and not all messages were read.
        @raise Refused: messages cannot be read.
        """
        taken: list[Taken] = []
        count, rest, reads, is_cut, has_moved = pop.count_max, 0, 0, False, False
        bytes_max, now_ms = self._config.max_transfer_bytes_on_message_in_memory, self._wall_ms()
        for (topic, group, queue_id), at, end in self._queues(pop):
            if not count or bytes_max <= 0 or reads >= READS_MAX:
                rest += max(end - at, 0)
                is_cut = True
                continue
            reads += 1
            got = self._get(pop, topic, queue_id, at, count, bytes_max)
            if not got.records:
                if got.next_offset != at:
                    self._metadata.consumer_offsets.commit(group, topic, queue_id, got.next_offset, now_ms)
                    has_moved, is_cut = True, is_cut or got.end_offset > got.next_offset
                rest += max(got.end_offset - got.next_offset, 0)
                continue
            offsets = tuple(int.from_bytes(record[20:28], "big") for record in got.records)
            # The check point begins at the first message that was read: before it, from the offset of the
            # group on, messages may have expired, or the filter may have passed over them.
            key = PopKey(topic, group, queue_id, offsets[0], now_ms, self._config.broker_name)
            taken.append(Taken(
                CheckPoint(key, pop.invisible_ms, offsets), got.records, got.next_offset,
                self._metadata.consumer_offsets.query(group, topic, queue_id),
            ))
            count -= len(offsets)
            bytes_max -= sum(map(len, got.records))
            rest += max(got.end_offset - got.next_offset, 0)
        return taken, rest, is_cut and has_moved

    def _get(self, pop: PopRequest, topic: str, queue_id: int, at: int, count: int, bytes_max: int) -> Got:
        """
        Read messages of one queue; from the nearest offset that is in the queue, if C{at} is not.

        @raise Refused: they cannot be read.
        """
        matches = self._retries.belongs(topic, pop.group, codes=pop.codes, matches=pop.matches) or pop.matches
        try:
            for _attempt in range(2):
                got = get_messages(
                    self._store, topic, queue_id, at, tags_codes=pop.codes, matches=matches,
                    is_slave=False, count_max=count, bytes_max=bytes_max,
                )
                if got.status not in (GetStatus.OFFSET_TOO_SMALL, GetStatus.OFFSET_OVERFLOW_BADLY):
                    break
                at = got.next_offset
            return got
        except StoreError as error:
            raise Refused(Code.SYSTEM_ERROR, str(error)) from error

    def _stored(
        self, status: PutStatus, put: Put, connection: CommandConnection, request: RemotingCommand,
        pop: PopRequest, taken: list[Taken], rest: int, size: int, table: object,
    ) -> None:
        """
        Give the messages whose check points are stored. If they could not be stored, refuse the request.

        @param status: the outcome of the put of the check points.
        @param taken: the messages of each queue.
        @param rest: about how many messages are left.
        @param size: bytes of the messages, reserved until now.
        @param table: the table of check points when the put began. The broker has another one if it has been
            a slave meanwhile; its check points were then read again from the log.
        """
        self._put_bytes -= size
        connection.account.unreserve(size)
        self._locked.difference_update(_queue_of(one.point) for one in taken)
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
            self._answer_none(connection, request, pop, Code.POLLING_TIMEOUT)
            return
        connection.answer(request, remark=GetStatus.FOUND.value, body=body,
                          ext_fields=answer_fields(points, revive_queue=OWN_QUEUE, rest=rest))
        self._wake((pop.topic, pop.group), WOKEN_MAX)

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

    def freed(self, topic: str, group: str) -> None:
        """Wake the requests of a group, because it may pop a queue in order again."""
        self._wake((topic, group), WOKEN_MAX)

    # -- requests that wait --------------------------------------------------------------------------

    def _wait(
        self, connection: CommandConnection, request: RemotingCommand, pop: PopRequest, fields: Fields
    ) -> None:
        """Hold a request that has no messages yet. If it cannot wait, answer it at once with no message."""
        poll_ms = min(max(fields.number("pollTime", 0, least=LONG_MIN, most=LONG_MAX), 0), POLL_MS_MAX)
        if not poll_ms or self._is_stopped or connection.is_lost or request.is_oneway:
            self._answer_none(connection, request, pop, Code.POLLING_TIMEOUT)
            return
        if len(self) >= POLLS_MAX:
            self._answer_none(connection, request, pop, Code.POLLING_FULL)
            return
        # The request is due a second early, because sweeps are a second apart, and the client does not wait
        # much longer than it has asked for.
        poll = _Poll(connection, request, self._clock.seconds() + max(poll_ms / 1000 - 1, 0), pop)
        self._hold(poll)

    def _answer_none(
        self, connection: CommandConnection, request: RemotingCommand, pop: PopRequest, code: Code
    ) -> None:
        """Answer a request with no message. @param code: why, if it is a pop."""
        if pop.takes:
            connection.answer(request, code=code, remark=GetStatus.NO_MESSAGE_IN_QUEUE.value, ext_fields={
                "popTime": str(self._wall_ms()), "invisibleTime": str(pop.invisible_ms),
                "reviveQid": str(ORDER_QUEUE if pop.in_order else OWN_QUEUE), "restNum": "0",
                "startOffsetInfo": "", "msgOffsetInfo": "",
            })
        else:
            is_full = "true" if code == Code.POLLING_FULL else "false"
            connection.answer(request, ext_fields={"hasMsg": "false", "pollingFull": is_full})

    def _hold(self, poll: _Poll) -> None:
        """Add a request to those that wait."""
        waiting = topic, group = poll.pop.topic, poll.pop.group
        self._polls.hold(waiting, poll)
        for name in (topic, *self._retries.read(topic, group)):
            self._topics.setdefault(name, {})[waiting] = None
        if poll.pop.in_order:
            self._releases.watch(topic, group)

    def _release(self, poll: _Poll) -> None:
        """Remove a request from those that wait."""
        waiting = (poll.pop.topic, poll.pop.group)
        if self._polls.release(poll):
            self._releases.forget(*waiting)
            for name in (waiting[0], *self._retries.read(*waiting)):
                del self._topics[name][waiting]
                if not self._topics[name]:
                    del self._topics[name]

    def arrived(self, arrived: Arrived) -> None:
        """
        Wake the requests for topics with new messages.

        @param arrived: the queues that have them.
        """
        if len(self):
            for topic in sorted({topic for topic, _ in arrived}):
                for waiting in self._topics.get(topic, ()):
                    self._wake(waiting, WOKEN_MAX)

    def _wake(self, waiting: _Waiting, most: int) -> None:
        """Examine requests for a topic and a group in a later turn, at most C{most} of them."""
        for poll in islice(self._polls.of(waiting), most):
            self._polls.wake(poll)
        if self._polls.has_woken and self._call is None:
            self._call = self._clock.callLater(0, self._examine)

    def _wake_later(self, waiting: _Waiting) -> None:
        """Wake one request in the next turn, because a filter has passed over messages, and more follow."""
        self._clock.callLater(0, self._wake, waiting, 1)

    def _examine(self) -> None:
        """Examine woken requests, at most L{WOKEN_MAX} in one turn of the reactor."""
        self._call = None
        for poll in self._polls.woken(WOKEN_MAX):
            self._try_again(poll)
        if self._polls.has_woken:
            self._call = self._clock.callLater(0, self._examine)

    def _try_again(self, poll: _Poll, *, is_over: bool = False) -> None:
        """
        Examine a waiting request once more.

        @param is_over: its deadline has passed, so it is answered even if there is no message.
        """
        connection, request = poll.connection, poll.request
        self._release(poll)
        try:
            # The request is read again, because the topic, the group and the rights may have changed.
            pop = self._read(Fields(request.ext_fields), takes=poll.pop.takes)
            is_answered = self._try(connection, request, pop)
        except Refused as error:
            connection.answer(request, code=error.code, remark=error.remark)
            return
        except Exception as error:
            self.log.failure("a waiting pop failed")
            connection.answer(request, code=Code.SYSTEM_ERROR, remark=str(error))
            return
        if is_answered:
            return
        if is_over:
            self._answer_none(connection, request, pop, Code.POLLING_TIMEOUT)
            return
        self._hold(poll)

    def sweep(self) -> None:
        """
        Answer the requests whose deadline has passed, and wake one request for each topic and group, because
        messages may have become free that no event reports. Called once a second.
        """
        now_s = self._clock.seconds()
        for poll in self._polls.due(now_s):
            self._try_again(poll, is_over=True)
        for waiting in self._polls.keys:
            self._wake(waiting, 1)
        self._in_order.sweep()

    def connection_lost(self, connection: CommandConnection) -> None:
        """Forget the waiting requests of a connection that has ended."""
        for poll in self._polls.of_connection(connection):
            self._release(poll)

    def answer_waiting(self) -> None:
        """Answer all waiting requests with no message. Their clients ask again."""
        for poll in self._polls:
            self._release(poll)
            self._answer_none(poll.connection, poll.request, poll.pop, Code.POLLING_TIMEOUT)

    def stop(self) -> None:
        """Answer all waiting requests with no message. Requests that come later do not wait."""
        self._is_stopped = True
        self.answer_waiting()
        self._releases.stop()
        if self._call is not None:
            self._call.cancel()
            self._call = None
        self._polls.forget_woken()


def _queue_of(point: CheckPoint) -> GroupQueue:
    return point.key.topic, point.key.group, point.key.queue_id

