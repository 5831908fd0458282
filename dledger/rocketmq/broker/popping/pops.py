# -*- test-case-name: tests.broker.popping.test_pops -*-
"""
POP_MESSAGE (200050): messages of a topic for a group, invisible to its other consumers for a time; and
NOTIFICATION (200054), which only asks whether there are any, POLLING_INFO (200055), how many ask.

    0     messages follow               210   none until the deadline
    209   too many requests wait

L{PopReading} reads a request, L{PopTaking} finds its messages, and L{PopGiving} gives them; this module has
the requests that wait.

Rule 1: a request is answered once.
Rule 2: at most L{POLLS_MAX} requests wait; one sweep checks their deadlines. A turn of the reactor examines
at most L{WOKEN_MAX} of them. A connection that does not read its answers gets no more of them.
Rule 3: only a master pops.
Rule 4: pops in order, and questions before them, get no retries and store no check points: see
L{dledger.rocketmq.broker.popping.in_order}.

Source: PopMessageProcessor, PopLongPollingService, NotificationProcessor (5.3.3).
"""

from __future__ import annotations

from collections.abc import Callable
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
from dledger.rocketmq.broker.popping.given import answer_none
from dledger.rocketmq.broker.popping.giving import PopGiving
from dledger.rocketmq.broker.popping.in_order import InOrder, Releases
from dledger.rocketmq.broker.popping.pop_reading import Pop, PopReading
from dledger.rocketmq.broker.popping.retries import RetryTopics
from dledger.rocketmq.broker.popping.taking import PopTaking
from protocols.rocketmq.commands import CommandConnection
from protocols.wire.remoting import RemotingCommand

POP_MESSAGE, NOTIFICATION, POLLING_INFO = 200_050, 200_054, 200_055

#: The most requests that wait.
POLLS_MAX = 65_536
#: The longest wait.
POLL_MS_MAX = 600_000
#: Waiting requests that one turn examines, and that one event wakes for each group.
WOKEN_MAX = 64


#: Topic and group.
_Waiting = tuple[str, str]


@attrs.define(eq=False)
class _Poll(HeldRequest):
    """A request that waits."""

    pop: Pop


class PopCommands(CommandGroup):
    """
    The group of commands.

    Invariant: a waiting request is in C{_polls}, by topic and group; C{_topics} leads from a topic, or that
    of its retries, there.

    @ivar taking: finds messages.
    """

    log = Logger()

    def __init__(
        self, reading: PopReading, taking: PopTaking, giving: PopGiving, in_order: InOrder,
        retries: RetryTopics, *, clock: IReactorTime, wall_ms: Callable[[], int],
    ) -> None:
        """@param wall_ms: milliseconds since 1970."""
        self._reading = reading
        self.taking = taking
        self._giving = giving
        self._clock = clock
        self._wall_ms = wall_ms
        self._polls: HeldRequests[_Waiting, _Poll] = HeldRequests()
        self._topics: dict[str, dict[_Waiting, None]] = {}
        self._call: IDelayedCall | None = None
        self._retries = retries
        self._in_order = in_order
        self._releases = Releases(in_order, self.freed, clock=clock, wall_ms=wall_ms)
        self._is_stopped = False

    def __len__(self) -> int:
        """Number of waiting requests."""
        return len(self._polls)

    @property
    def popped(self) -> int:
        """Number of messages so far."""
        return self._giving.popped

    def handlers(self) -> Handlers:
        """By request code."""
        return {POP_MESSAGE: self._pop, NOTIFICATION: self._notify, POLLING_INFO: self._tell}

    # -- a request -------------------------------------------------------------------------------

    def _pop(self, connection: CommandConnection, request: RemotingCommand) -> None:
        fields = Fields(request.ext_fields)
        pop = self._reading.read(fields)
        if not self._try(connection, request, pop):
            self._wait(connection, request, pop, fields)

    def _notify(self, connection: CommandConnection, request: RemotingCommand) -> None:
        fields = Fields(request.ext_fields)
        pop = self._reading.read(fields, takes=False)
        if not self._try(connection, request, pop):
            self._wait(connection, request, pop, fields)

    def _tell(self, connection: CommandConnection, request: RemotingCommand) -> None:
        fields = Fields(request.ext_fields)
        topic, group = fields.text("topic"), fields.text("consumerGroup")
        count = len(self._polls.of((topic, group)))
        connection.answer(request, ext_fields={"pollingNum": str(count)})

    # -- messages --------------------------------------------------------------------------------

    def _try(self, connection: CommandConnection, request: RemotingCommand, pop: Pop) -> bool:
        """
        Take messages, if there are any for this request.

        @return: whether it is answered, now or when the check points are stored.
        @raise Refused: it is not possible.
        """
        if not self._giving.is_ready:
            return False
        if not pop.takes:
            if any(end > at for _queue, at, end in self.taking.queues(pop)):
                connection.answer(request, ext_fields={"hasMsg": "true", "pollingFull": "false"})
                return True
            return False
        if not connection.may_answer or self._giving.is_full:
            return False
        taken, rest, is_cut = self.taking.take(pop)
        if not taken:
            if is_cut:
                self._wake_later((pop.topic, pop.group))
            return False
        self._giving.give(connection, request, pop, taken, rest, self._given)
        return True

    def _given(self, pop: Pop) -> None:
        """The queues of a pop are free again."""
        self._wake((pop.topic, pop.group), WOKEN_MAX)

    def freed(self, topic: str, group: str) -> None:
        """What a group holds in order has changed: a queue may be free."""
        self._wake((topic, group), WOKEN_MAX)

    # -- requests that wait --------------------------------------------------------------------------

    def _wait(
        self, connection: CommandConnection, request: RemotingCommand, pop: Pop, fields: Fields
    ) -> None:
        asked_ms = min(max(fields.number("pollTime", 0, least=LONG_MIN, most=LONG_MAX), 0), POLL_MS_MAX)
        if not asked_ms or self._is_stopped or connection.is_lost or request.is_oneway:
            answer_none(connection, request, pop, Code.POLLING_TIMEOUT, self._wall_ms())
            return
        if len(self) >= POLLS_MAX:
            answer_none(connection, request, pop, Code.POLLING_FULL, self._wall_ms())
            return
        # The sweep comes once a second, and the client waits for little more than this.
        poll = _Poll(connection, request, self._clock.seconds() + max(asked_ms / 1000 - 1, 0), pop)
        self._hold(poll)

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
            pop = self._reading.read(Fields(request.ext_fields), takes=poll.pop.takes)
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
            answer_none(connection, request, pop, Code.POLLING_TIMEOUT, self._wall_ms())
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
            answer_none(poll.connection, poll.request, poll.pop, Code.POLLING_TIMEOUT, self._wall_ms())

    def stop(self) -> None:
        """Answer all waiting requests; later ones do not wait."""
        self._is_stopped = True
        self.answer_waiting()
        self._releases.stop()
        if self._call is not None:
            self._call.cancel()
            self._call = None
        self._polls.forget_woken()
