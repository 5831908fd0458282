# -*- test-case-name: tests.broker.popping.test_pops -*-
"""
POP_MESSAGE (200050): messages of a topic for a group, invisible to its other consumers for a time; and
NOTIFICATION (200054), which only asks whether there are any, POLLING_INFO (200055), how many ask.

    0     messages follow               210   none until the deadline
    209   too many requests wait

A check point of the messages is stored first; then the offset of the group moves past them, and then they
are sent. A crash between the steps may deliver them twice; it never loses them.

Rule 1: a request is answered once. One pop at a time takes messages of a queue for a group.
Rule 2: at most L{POLLS_MAX} requests wait; one sweep checks their deadlines. A turn of the reactor examines
at most L{WOKEN_MAX} of them. A connection that does not read its answers gets no more of them.
Rule 3: a group holds at most about L{UNACKED_MAX} messages of a queue; then it gets none until some are done.
Rule 4: only a master pops.
Rule 5: pops in order, and questions before them, get no retries and store no check points: see
L{dledger.rocketmq.broker.popping.in_order}.

Source: PopMessageProcessor, PopLongPollingService, NotificationProcessor (5.3.3).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import islice
from typing import NamedTuple

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
from dledger.rocketmq.broker.common.groups import find_group
from dledger.rocketmq.broker.common.own_address import OwnAddress
from dledger.rocketmq.broker.consuming.pull_progress import PullProgress
from dledger.rocketmq.broker.consuming.pull_reading import is_matched
from dledger.rocketmq.broker.consuming.subscriptions import SUB_ALL, TAG, filter_of, parse_subscription
from dledger.rocketmq.broker.ha.put_status import PutStatus
from dledger.rocketmq.broker.metadata.files import Metadata
from dledger.rocketmq.broker.metadata.tables import PERM_READ, RETRY_PREFIX
from dledger.rocketmq.broker.popping.check_points import (
    MESSAGES_MAX,
    ORDER_QUEUE,
    OWN_QUEUE,
    CheckPoint,
    PopKey,
    check_point_message,
    kind_of,
)
from dledger.rocketmq.broker.popping.first_offsets import FirstOffsets
from dledger.rocketmq.broker.popping.given import Taken, answer_fields, body_of
from dledger.rocketmq.broker.popping.in_order import ATTEMPT_CHARACTERS_MAX, InOrder, Releases
from dledger.rocketmq.broker.popping.popped import GroupQueue
from dledger.rocketmq.broker.popping.retries import RetryTopics
from dledger.rocketmq.broker.popping.revive import ReviveService
from dledger.rocketmq.broker.puts.answers import told_of
from dledger.rocketmq.broker.puts.puts import NotPut, Put, PutPipeline
from dledger.rocketmq.broker.store.queries import GetStatus, Got, get_messages
from dledger.rocketmq.broker.store.store import MessageStore
from dledger.values.errors import StoreError
from protocols.rocketmq.commands import CommandConnection
from protocols.wire.fastjson import shown_bare
from protocols.wire.remoting import RemotingCommand

POP_MESSAGE, NOTIFICATION, POLLING_INFO = 200_050, 200_054, 200_055
#: Value of C{initMode}: a group that is new begins at the first message of a queue, else at the last.
FROM_FIRST = 0

#: The most requests that wait.
POLLS_MAX = 65_536
#: The longest wait, and the longest time for which a message can be invisible.
POLL_MS_MAX = 600_000
INVISIBLE_MS_MAX = 12 * 3600 * 1000
#: Messages of a queue that a group has not acknowledged, as popInflightMessageThreshold.
UNACKED_MAX = 10_000
#: Check points of all groups together.
CHECK_POINTS_MAX = 262_144
#: Waiting requests that one turn examines, and that one event wakes for each group.
WOKEN_MAX = 64
#: Queues of which one request reads messages.
READS_MAX = 32
#: Queues of which one request commits the first offset: a topic may have 65,535, and anybody names groups.
FIRSTS_MAX = 256
#: Bytes of messages whose check points are being stored.
PUT_BYTES_MAX = 64 * 1024 * 1024
#: One pop of this number looks at the retries first, as popFromRetryProbability.
RETRIES_FIRST = 5


#: Topic and group.
_Waiting = tuple[str, str]


class _Pop(NamedTuple):
    """
    The parameters of a request.

    @ivar queue_id: -1: all.
    @ivar codes, matches: see L{get_messages}.
    @ivar takes: it is not a notification.
    @ivar in_order: messages of a queue go to one consumer at a time.
    @ivar attempt: see L{dledger.rocketmq.broker.metadata.order_info.OrderInfo}.
    """

    topic: str
    group: str
    queue_id: int
    count_max: int
    invisible_ms: int
    init_mode: int
    codes: frozenset[int] | None
    matches: Callable[[bytes], bool] | None
    takes: bool = True
    in_order: bool = False
    attempt: str = ""


@attrs.define(eq=False)
class _Poll(HeldRequest):
    """A request that waits."""

    pop: _Pop


class PopCommands(CommandGroup):
    """
    The group of commands.

    Invariant: a waiting request is in C{_polls}, by topic and group; C{_topics} leads from a topic, or that
    of its retries, there. C{_locked} are the queues of groups of which a check point is being stored.

    @ivar popped: number of messages so far.
    """

    log = Logger()

    def __init__(
        self, config: BrokerConfig, store: MessageStore, metadata: Metadata, pipeline: PutPipeline,
        revive: ReviveService, in_order: InOrder, *, own: OwnAddress, clock: IReactorTime,
        wall_ms: Callable[[], int], progress: PullProgress,
    ) -> None:
        """@param wall_ms: milliseconds since 1970. @param progress: hears what the groups get."""
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
        self._turns = 0
        self._is_stopped = False
        self.popped = 0

    def __len__(self) -> int:
        """Number of waiting requests."""
        return len(self._polls)

    def handlers(self) -> Handlers:
        """By request code."""
        return {POP_MESSAGE: self._pop, NOTIFICATION: self._notify, POLLING_INFO: self._tell}

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

    def _tell(self, connection: CommandConnection, request: RemotingCommand) -> None:
        fields = Fields(request.ext_fields)
        topic, group = fields.text("topic"), fields.text("consumerGroup")
        count = len(self._polls.of((topic, group)))
        connection.answer(request, ext_fields={"pollingNum": str(count)})

    def _read(self, fields: Fields, *, takes: bool = True) -> _Pop:
        """@raise Refused: a field, a permission or the subscription forbids an answer with messages."""
        config = self._config
        group_name, topic = fields.text("consumerGroup"), fields.text("topic")
        queue_id = fields.number("queueId")
        if config.is_slave:
            raise Refused(Code.SLAVE_NOT_AVAILABLE, "a slave gives no messages by POP: ask the master")
        if not config.broker_permission & PERM_READ:
            raise Refused(Code.NO_PERMISSION, f"the broker[{config.broker_ip1}] pop message is forbidden")
        in_order, attempt = fields.flag("order", False), fields.text("attemptId", "")
        if len(attempt) > ATTEMPT_CHARACTERS_MAX:
            raise Refused(Code.INVALID_PARAMETER, f"attemptId has {len(attempt)} characters, "
                                                  f"{ATTEMPT_CHARACTERS_MAX} are allowed")
        if topic.startswith(RETRY_PREFIX) and topic != RETRY_PREFIX + group_name:
            raise Refused(Code.INVALID_PARAMETER, f"topic[{shown_bare(topic)}] has retries: pop their first "
                                                  "topic, they come with its messages")
        found = self._metadata.topics.get(topic)
        if found is None:
            raise Refused(Code.TOPIC_NOT_EXIST, f"topic[{shown_bare(topic)}] not exist, apply first please!")
        if not found.can_read:
            raise Refused(Code.NO_PERMISSION, f"the topic[{topic}] popping message is forbidden")
        if queue_id >= found.read_queue_nums:
            raise Refused(Code.INVALID_PARAMETER, f"queueId[{queue_id}] is illegal, topic:[{topic}] "
                                                  f"readQueueNums:[{found.read_queue_nums}]")
        group = find_group(self._metadata, config, group_name, self._wall_ms())
        if group is None:
            raise Refused(Code.SUBSCRIPTION_GROUP_NOT_EXIST,
                          f"subscription group [{shown_bare(group_name)}] does not exist")
        if not group.consume_enable:
            raise Refused(Code.NO_PERMISSION, f"subscription group no permission, {group_name}")
        why = self._retries.why_unstorable(topic, group_name, self._pipeline.topic_characters_max)
        if why:
            raise Refused(Code.INVALID_PARAMETER, why)
        if not takes:
            return _Pop(topic, group_name, queue_id, 1, 0, FROM_FIRST, None, None, False, in_order, attempt)
        subscription = parse_subscription(
            topic, fields.text("exp", SUB_ALL) or SUB_ALL, kind=fields.text("expType", TAG)
        )
        expression = filter_of(subscription, is_enabled=config.enable_property_filter)
        return _Pop(
            topic, group_name, queue_id, fields.number("maxMsgNums", least=1, most=MESSAGES_MAX),
            fields.number("invisibleTime", least=0, most=INVISIBLE_MS_MAX),
            fields.number("initMode", FROM_FIRST), subscription.codes,
            None if expression is None else partial(is_matched, expression), in_order=in_order,
            attempt=attempt,
        )

    # -- messages --------------------------------------------------------------------------------

    def _try(self, connection: CommandConnection, request: RemotingCommand, pop: _Pop) -> bool:
        """
        Take messages, if there are any for this request.

        @return: whether it is answered, now or when the check points are stored.
        @raise Refused: it is not possible.
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
            raise Refused(*told_of(error)) from error
        self._locked.update(_queue_of(one.point) for one in taken)
        size = sum(len(record) for one in taken for record in one.records)
        self._put_bytes += size
        connection.account.reserve(size)
        stored = (put, connection, request, pop, taken, rest, size, revive.table)
        revive.follow(put, len(taken), self._stored, *stored)
        return True

    def _queues(self, pop: _Pop) -> Iterator[tuple[GroupQueue, int, int]]:
        """Queues of which messages may be taken; where to begin, and their ends."""
        self._turns += 1
        firsts = 0
        retries = () if pop.in_order else self._retries.read(pop.topic, pop.group)
        topics = ((pop.topic, pop.queue_id), *((name, -1) for name in retries))
        for topic, wanted in reversed(topics) if self._turns % RETRIES_FIRST == 0 else topics:
            found = self._metadata.topics.get(topic)
            count = 0 if found is None else found.read_queue_nums
            numbers: Iterable[int] = (wanted,) if wanted >= 0 else range(count)
            for number in numbers:
                queue_id = number if wanted >= 0 else (number + self._turns) % count
                key = (topic, pop.group, queue_id)
                if key in self._locked or self._revive.table.count(key) >= UNACKED_MAX:
                    continue
                if pop.in_order and self._in_order.blocks(key, pop.attempt):
                    continue
                at = self._metadata.consumer_offsets.query(pop.group, topic, queue_id)
                if at is not None and kind_of(topic):  # their topic may have been deleted, and made again
                    at = max(at, self._begins.of(key, is_first=True))
                elif at is None:
                    at = self._begins.of(key, is_first=pop.init_mode == FROM_FIRST)
                    firsts += 1
                    if pop.takes and not kind_of(topic) and firsts <= FIRSTS_MAX:
                        # Nothing between two pops is passed over.
                        offsets, now_ms = self._metadata.consumer_offsets, self._wall_ms()
                        offsets.commit(pop.group, topic, queue_id, at, now_ms)
                queue = self._store.queues.get(topic, queue_id)
                if queue is not None and at != queue.next_index:
                    yield key, at, queue.next_index

    def _take(self, pop: _Pop) -> tuple[list[Taken], int, bool]:
        """
        Read messages.

        @return: them, the number of messages that are left, about, and whether some of these were not looked
            at, because a filter takes time.
        @raise Refused: they cannot be read.
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
            # The check point begins at the first message that the log has.
            key = PopKey(topic, group, queue_id, offsets[0], now_ms, self._config.broker_name)
            taken.append(Taken(
                CheckPoint(key, pop.invisible_ms, offsets), got.records, got.next_offset,
                self._metadata.consumer_offsets.query(group, topic, queue_id),
            ))
            count -= len(offsets)
            bytes_max -= sum(map(len, got.records))
            rest += max(got.end_offset - got.next_offset, 0)
        return taken, rest, is_cut and has_moved

    def _get(self, pop: _Pop, topic: str, queue_id: int, at: int, count: int, bytes_max: int) -> Got:
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
        self, status: PutStatus, put: Put, connection: CommandConnection, request: RemotingCommand, pop: _Pop,
        taken: list[Taken], rest: int, size: int, table: object,
    ) -> None:
        """The check points are stored, or not."""
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
            if offsets.query(key.group, key.topic, key.queue_id) == one.committed:  # else somebody has set it
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
        self, connection: CommandConnection, request: RemotingCommand, pop: _Pop, taken: list[Taken],
        rest: int,
    ) -> None:
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
        """What a group holds in order has changed: a queue may be free."""
        self._wake((topic, group), WOKEN_MAX)

    # -- requests that wait --------------------------------------------------------------------------

    def _wait(
        self, connection: CommandConnection, request: RemotingCommand, pop: _Pop, fields: Fields
    ) -> None:
        asked_ms = min(max(fields.number("pollTime", 0, least=LONG_MIN, most=LONG_MAX), 0), POLL_MS_MAX)
        if not asked_ms or self._is_stopped or connection.is_lost or request.is_oneway:
            self._answer_none(connection, request, pop, Code.POLLING_TIMEOUT)
            return
        if len(self) >= POLLS_MAX:
            self._answer_none(connection, request, pop, Code.POLLING_FULL)
            return
        # The sweep comes once a second, and the client waits for little more than this.
        poll = _Poll(connection, request, self._clock.seconds() + max(asked_ms / 1000 - 1, 0), pop)
        self._hold(poll)

    def _answer_none(
        self, connection: CommandConnection, request: RemotingCommand, pop: _Pop, code: Code
    ) -> None:
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
        waiting = topic, group = poll.pop.topic, poll.pop.group
        self._polls.hold(waiting, poll)
        for name in (topic, *self._retries.read(topic, group)):
            self._topics.setdefault(name, {})[waiting] = None
        if poll.pop.in_order:
            self._releases.watch(topic, group)

    def _release(self, poll: _Poll) -> None:
        waiting = (poll.pop.topic, poll.pop.group)
        if self._polls.release(poll):
            self._releases.forget(*waiting)
            for name in (waiting[0], *self._retries.read(*waiting)):
                del self._topics[name][waiting]
                if not self._topics[name]:
                    del self._topics[name]

    def arrived(self, arrived: Arrived) -> None:
        """These queues have new messages."""
        if len(self):
            for topic in sorted({topic for topic, _ in arrived}):
                for waiting in self._topics.get(topic, ()):
                    self._wake(waiting, WOKEN_MAX)

    def _wake(self, waiting: _Waiting, most: int) -> None:
        """Examine some requests for messages of a topic for a group, in a later turn."""
        for poll in islice(self._polls.of(waiting), most):
            self._polls.wake(poll)
        if self._polls.has_woken and self._call is None:
            self._call = self._clock.callLater(0, self._turn)

    def _wake_later(self, waiting: _Waiting) -> None:
        """A filter has passed over messages, and there are more: look on in the next turn."""
        self._clock.callLater(0, self._wake, waiting, 1)

    def _turn(self) -> None:
        self._call = None
        for poll in self._polls.woken(WOKEN_MAX):
            self._try_again(poll)
        if self._polls.has_woken:
            self._call = self._clock.callLater(0, self._turn)

    def _try_again(self, poll: _Poll, *, is_over: bool = False) -> None:
        connection, request = poll.connection, poll.request
        self._release(poll)
        try:
            # Topic, group and rights may have changed meanwhile.
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
        Answer the requests whose deadline has passed, and look once more for each group: what kept its
        requests from messages may be over. Called once a second.
        """
        now_s = self._clock.seconds()
        for poll in self._polls.due(now_s):
            self._try_again(poll, is_over=True)
        for waiting in self._polls.keys:
            self._wake(waiting, 1)
        self._in_order.sweep()

    def connection_lost(self, connection: CommandConnection) -> None:
        """Release the requests of an ended connection."""
        for poll in self._polls.of_connection(connection):
            self._release(poll)

    def answer_waiting(self) -> None:
        """Answer all waiting requests with no message; their clients ask again."""
        for poll in self._polls:
            self._release(poll)
            self._answer_none(poll.connection, poll.request, poll.pop, Code.POLLING_TIMEOUT)

    def stop(self) -> None:
        """Answer all waiting requests; later ones do not wait."""
        self._is_stopped = True
        self.answer_waiting()
        self._releases.stop()
        if self._call is not None:
            self._call.cancel()
            self._call = None
        self._polls.forget_woken()


def _queue_of(point: CheckPoint) -> GroupQueue:
    return point.key.topic, point.key.group, point.key.queue_id

