# -*- test-case-name: tests.broker.consuming.test_pulls -*-
"""
PULL_MESSAGE (11): messages of one queue from an offset on, now or as soon as one arrives::

    0   messages follow                 20  no message matched: ask again, further on
    19  no message yet                  21  the offset is outside: ask at the corrected one

A request that finds no message, and may wait, is held until its queue has a matching message, its deadline
passes, or its connection ends.

Rule 1: a request is answered once. New messages with other tags do not answer a held request; its offset
advances past them.
Rule 2: at most C{held_max} requests are held; the next one is answered at once. One sweep checks the
deadlines.
Rule 3: work and output are bounded, too: a turn of the reactor examines at most L{WOKEN_MAX} woken requests,
and a connection that does not read its answers gets no more of them until it does.
Rule 4: a slave does not correct offsets (it may only be behind), and commits none.
Rule 5: a consumer that has read a deleted topic of this name is sent to the beginning, and its commits
do not count: see L{dledger.rocketmq.broker.consuming.commits}.

Source: PullMessageProcessor, PullRequestHoldService (4.9.8, 5.3.3).
"""

from __future__ import annotations

import os

import attrs
from twisted.internet.interfaces import IDelayedCall
from twisted.logger import Logger

from dledger.base.histogram import Histogram
from dledger.rocketmq.answering.held import HeldRequest, HeldRequests
from dledger.rocketmq.answering.refusals import (
    Code,
    CommandGroup,
    Handlers,
    Refused,
)
from dledger.rocketmq.broker.consuming.pull_progress import Deliveries, PullProgress
from dledger.rocketmq.broker.consuming.pull_reading import Key, Pull, PullReading
from dledger.rocketmq.broker.options.inside import BrokerInside
from dledger.rocketmq.store.queries import GetStatus, Got, get_messages
from dledger.rocketmq.store.records.events import Arrived
from dledger.values.errors import StoreError
from protocols.rocketmq.commands import CommandConnection
from protocols.wire.remoting import RemotingCommand

PULL_MESSAGE = 11
LITE_PULL_MESSAGE = 361

#: The most held requests of all connections together.
HELD_MAX = 65_536
#: The most requests that one turn examines because messages have arrived.
WOKEN_MAX = 64
#: Bytes of answers in one turn, for all connections, after which further requests wait for the next turn.
TURN_BYTES_MAX = 4 * 1024 * 1024

#: To examine the properties of a message takes the time of this number of bytes of answers.
EXAMINED_BYTES = 16 * 1024

_CODES = {
    GetStatus.FOUND: Code.SUCCESS,
    GetStatus.NO_MATCHED_MESSAGE: Code.PULL_RETRY_IMMEDIATELY,
    GetStatus.MESSAGE_WAS_REMOVING: Code.PULL_RETRY_IMMEDIATELY,
    GetStatus.OFFSET_FOUND_NULL: Code.PULL_NOT_FOUND,
    GetStatus.OFFSET_OVERFLOW_ONE: Code.PULL_NOT_FOUND,
    GetStatus.OFFSET_OVERFLOW_BADLY: Code.PULL_OFFSET_MOVED,
    GetStatus.OFFSET_TOO_SMALL: Code.PULL_OFFSET_MOVED,
    GetStatus.NO_MATCHED_LOGIC_QUEUE: Code.PULL_OFFSET_MOVED,
    GetStatus.NO_MESSAGE_IN_QUEUE: Code.PULL_OFFSET_MOVED,
}
_NO_QUEUE = (GetStatus.NO_MATCHED_LOGIC_QUEUE, GetStatus.NO_MESSAGE_IN_QUEUE)


def usual_slow_bytes() -> int:
    """Lag in bytes that makes a consumer slow: 40 % of memory, as accessMessageInMemoryMaxRatio."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") * 40 // 100


@attrs.define(eq=False)
class _Held(HeldRequest):
    """
    A held request.

    @ivar pull: its parameters; its offset advances past messages that do not match.
    @ivar has_moved: whether its offset has advanced.
    @ivar is_postponed: its connection has too much unread output, or the turn had enough answers; it may be
        answered at any time.
    """

    pull: Pull
    has_moved: bool = False
    is_postponed: bool = False


class PullCommands(CommandGroup):
    """
    The group of commands.

    @ivar commits: judges what consumers commit.
    @ivar held: the requests that wait.
    @ivar progress: how far the groups have pulled.
    @ivar found: number of answers with messages.
    @ivar missed: number of other answers, except refusals.
    @ivar messages: number of messages sent.
    @ivar get_s: seconds of each look for messages, without the wait for them.
    """

    log = Logger()

    def __init__(
        self, inside: BrokerInside, reading: PullReading, *, trace: Deliveries | None = None,
        slow_bytes: int = 0, held_max: int = HELD_MAX,
    ) -> None:
        """
        @param slow_bytes: a consumer further than this behind the end of the log is directed to a slave, if
            C{slave_read_enable} allows it; 0: never.
        """
        self._config = inside.config
        self._store = inside.store
        self._metadata = inside.metadata
        self._reading = reading
        self.commits = reading.commits
        self._clock = inside.clock
        self._wall_ms = inside.wall_ms
        self._slow_bytes = slow_bytes
        self._held_max = held_max
        self.held: HeldRequests[Key, _Held] = HeldRequests()
        self._call: IDelayedCall | None = None
        self._turn_bytes = 0
        self._is_stopped = False
        self.progress = PullProgress(inside.wall_ms, trace)
        self.found = 0
        self.missed = 0
        self.messages = 0
        self.get_s = Histogram()

    def __len__(self) -> int:
        """Number of held requests."""
        return len(self.held)

    def handlers(self) -> Handlers:
        """By request code."""
        return {PULL_MESSAGE: self._pull, LITE_PULL_MESSAGE: self._pull}

    # -- a request -------------------------------------------------------------------------------

    def _pull(self, connection: CommandConnection, request: RemotingCommand) -> None:
        pull = self._reading.read(connection, request)
        commit = pull.commit
        reader = connection, pull.group.group_name, *pull.key
        try:
            does_commit = commit >= 0 and not self._config.role.is_slave
            does_commit = does_commit and not self.commits.problem(*reader, commit)
            is_former = self._is_former(reader, pull)
        except (OSError, StoreError) as error:
            raise Refused(Code.SYSTEM_ERROR, str(error)) from error
        is_clogged = not connection.may_answer
        if is_clogged or self._turn_bytes >= TURN_BYTES_MAX:
            held = self._hold(connection, request, pull)
            if held is None:
                raise Refused(Code.SYSTEM_BUSY, f"{len(self)} requests are held, and there is no room for "
                                                "another answer now: ask again")
            held.is_postponed = True
            if not is_clogged:
                self.held.wake(held)
        else:
            got = self._get(pull)
            if is_former:
                got = attrs.evolve(
                    got, status=GetStatus.OFFSET_OVERFLOW_BADLY, records=(), next_offset=got.begin_offset
                )
            code = self._code_of(pull, got)
            waits = code == Code.PULL_NOT_FOUND and pull.suspend_ms > 0
            if not (waits and self._hold(connection, request, pull)):
                self._answer(connection, request, pull, got, code)
        if does_commit:
            self._metadata.consumer_offsets.commit(pull.group.group_name, *pull.key, commit, self._wall_ms())

    def _is_former(self, reader: tuple[CommandConnection, str, str, int], pull: Pull) -> bool:
        """Whether a consumer goes on in a queue of a deleted topic. @raise OSError: reading failed."""
        topic, queue_id = pull.key
        if self.commits.is_former(*reader):
            queue = self._store.queues.get(topic, queue_id)
            if pull.offset > (0 if queue is None else self._store.deleted.begin_of(topic, queue)):
                return True  # (None: the next topic has no message yet)
        self.commits.reads(*reader)
        return False

    # -- messages --------------------------------------------------------------------------------

    @property
    def _is_lenient(self) -> bool:
        return self._config.role.is_slave and not self._config.offset_check_in_slave

    def _get(self, pull: Pull) -> Got:
        topic, queue_id = pull.key
        began_s = self._clock.seconds()
        try:
            got = get_messages(
                self._store, topic, queue_id, pull.offset, tags_codes=pull.codes, matches=pull.matches,
                is_slave=self._is_lenient, count_max=pull.count_max, bytes_max=pull.bytes_max,
            )
        except StoreError as error:
            self.log.failure("messages of {topic}, queue {queue_id} cannot be read",
                             topic=topic, queue_id=queue_id)
            raise Refused(Code.SYSTEM_ERROR, str(error)) from error
        self.get_s.observe(self._clock.seconds() - began_s)
        if got.examined:
            self._spend(got.examined * EXAMINED_BYTES)
        return got

    def _spend(self, cost: int) -> None:
        """Count work against the bound of this turn. @param cost: in bytes of answers."""
        self._turn_bytes += cost
        if self._call is None:
            self._call = self._clock.callLater(0, self._turn)

    def _code_of(self, pull: Pull, got: Got) -> Code:
        if got.status in _NO_QUEUE and pull.offset == 0:
            return Code.PULL_NOT_FOUND
        code = _CODES[got.status]
        return Code.PULL_RETRY_IMMEDIATELY if code == Code.PULL_OFFSET_MOVED and self._is_lenient else code

    def _answer(
        self, connection: CommandConnection, request: RemotingCommand, pull: Pull, got: Got, code: Code
    ) -> None:
        broker_id = 0
        if self._config.slave_read_enable:
            is_slow = self._slow_bytes and got.records and self._lack(got) > self._slow_bytes
            broker_id = pull.group.which_broker_when_consume_slowly if is_slow else pull.group.broker_id
        body = b"".join(got.records)
        self.messages += len(got.records)
        topic, queue_id = pull.key
        self.progress.pulled(pull.group.group_name, topic, queue_id, got.next_offset, got.records)
        if not body:
            self.missed += 1
        else:
            self.found += 1
            self._spend(len(body))
        connection.answer(request, code=code, remark=got.status.value, body=body, ext_fields={
            "suggestWhichBrokerId": str(broker_id), "nextBeginOffset": str(got.next_offset),
            "minOffset": str(got.begin_offset), "maxOffset": str(got.end_offset),
        })

    def _lack(self, got: Got) -> int:
        """Bytes from the last message to the end of the log."""
        return self._store.log.end_offset - int.from_bytes(got.records[-1][28:36], "big")

    # -- held requests ---------------------------------------------------------------------------

    def _hold(self, connection: CommandConnection, request: RemotingCommand, pull: Pull) -> _Held | None:
        """Hold a request. @return: None if it cannot be held."""
        if len(self) >= self._held_max or self._is_stopped or connection.is_lost or request.is_oneway:
            return None
        held = _Held(connection, request, self._clock.seconds() + pull.suspend_ms / 1000, pull)
        self.held.hold(pull.key, held)
        return held

    def arrived(self, arrived: Arrived) -> None:
        """These queues have new messages."""
        for key in sorted(arrived) if len(self) else ():
            for held in self.held.of(key):
                self.held.wake(held)
        self._look()

    def _turn(self) -> None:
        self._call = None
        self._turn_bytes = 0
        self._look()

    def _look(self) -> None:
        """Examine the woken requests now, or in the next turn if one is scheduled."""
        if self._call is not None:
            return
        for held in self.held.woken(WOKEN_MAX):
            self._try_again(held)
            if self._turn_bytes >= TURN_BYTES_MAX:
                break
        if self.held.has_woken and self._call is None:
            self._call = self._clock.callLater(0, self._turn)

    def _try_again(self, held: _Held, *, is_over: bool = False) -> None:
        """Answer if messages match, if the answer is another than "no message yet", or at its deadline."""
        if not held.connection.may_answer:
            held.is_postponed = True
            return
        if self._turn_bytes >= TURN_BYTES_MAX:
            self.held.wake(held)
            return
        pull = held.pull
        try:
            if is_over:
                pull = attrs.evolve(self._reading.read(held.connection, held.request), offset=pull.offset)
            got = self._get(pull)
        except Exception as error:
            self.held.release(held)
            self._refuse(held, error)
            return
        code = self._code_of(pull, got)
        is_behind = got.status is GetStatus.NO_MATCHED_MESSAGE and got.next_offset >= got.end_offset
        if not is_over and pull.suspend_ms and (code == Code.PULL_NOT_FOUND or is_behind):
            held.is_postponed = False
            if is_behind:
                held.pull = attrs.evolve(pull, offset=got.next_offset)
                held.has_moved = True
            return
        if code == Code.PULL_NOT_FOUND and held.has_moved:
            code = Code.PULL_RETRY_IMMEDIATELY  # so that its next request uses the advanced offset
        self.held.release(held)
        self._answer(held.connection, held.request, pull, got, code)

    def _refuse(self, held: _Held, error: Exception) -> None:
        if isinstance(error, Refused):
            held.connection.answer(held.request, code=error.code, remark=error.remark)
        else:
            self.log.failure("a held request failed")
            held.connection.answer(held.request, code=Code.SYSTEM_ERROR, remark=str(error))

    def sweep(self) -> None:
        """Answer the requests whose deadline has passed. Called about once a second."""
        now_s = self._clock.seconds()
        for held in self.held:
            is_over = held.deadline_s <= now_s
            if held.is_postponed or is_over:
                self._try_again(held, is_over=is_over)

    def drained(self, connection: CommandConnection) -> None:
        """The connection takes output again."""
        for held in self.held.of_connection(connection):
            if held.is_postponed:
                self.held.wake(held)
        self._look()

    def connection_lost(self, connection: CommandConnection) -> None:
        """Release the requests of an ended connection."""
        self.commits.connection_lost(connection)
        for held in self.held.of_connection(connection):
            self.held.release(held)

    def answer_held(self, remark: str) -> None:
        """Answer all held requests with no message; their clients ask again. @param remark: the reason."""
        for held in self.held:
            self.held.release(held)
            code = Code.PULL_RETRY_IMMEDIATELY if held.has_moved else Code.PULL_NOT_FOUND
            held.connection.answer(
                held.request, code=code, remark=remark, ext_fields={
                    "suggestWhichBrokerId": "0", "nextBeginOffset": str(held.pull.offset),
                    "minOffset": "0", "maxOffset": str(held.pull.offset),
                },
            )

    def stop(self) -> None:
        """Answer all held requests; later requests are not held."""
        self._is_stopped = True
        self.answer_held("the broker stops")
        if self._call is not None:
            self._call.cancel()
            self._call = None
        self.held.forget_woken()
