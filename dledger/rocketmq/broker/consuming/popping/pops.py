# -*- test-case-name: tests.broker.popping.test_pops -*-
"""
Gives the messages of a topic to the consumers of a group that pop them. It answers three requests::

    POP_MESSAGE (200050)     takes messages; they are invisible to the group's other consumers for a time
    NOTIFICATION (200054)    asks only whether there are messages to take
    POLLING_INFO (200055)    asks how many requests wait for the messages of a topic for a group

A request for which there is no message waits until one arrives, or until its deadline. POP_MESSAGE is
answered 0 with messages, 210 (POLLING_TIMEOUT) at its deadline, and 209 (POLLING_FULL) if too many requests
wait already.

The broker first stores a check point, which names the messages that it is about to give. Then it moves the
offset of the group past them, and then it sends them. A crash between these steps may deliver messages twice;
it never loses one.

L{PopReading} reads a request, L{PopTaking} finds its messages, and L{PopGiving} gives them; this module has
the requests that wait.

Rule 1: a request is answered once. While a check point of a queue is being stored for a group, no other pop
of the group takes messages of this queue.
Rule 2: at most L{POLLS_MAX} requests wait. L{PopCommands.sweep} checks all deadlines, once a second. One turn
of the reactor examines at most L{WOKEN_MAX} waiting requests.
Rule 3: a connection whose answers are not read gets no messages until they are.
Rule 4: a group that holds L{UNACKED_MAX} messages of a queue, or a few more, gets none from it until it has
acknowledged some, or they are visible again.
Rule 5: only a master gives messages.
Rule 6: a pop in order takes no retries and stores no check point
(L{dledger.rocketmq.broker.consuming.popping.in_order}).

Source: PopMessageProcessor, PopLongPollingService, NotificationProcessor (5.3.3).
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice

import attrs
from twisted.internet.interfaces import IDelayedCall
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
from dledger.rocketmq.broker.consuming.popping.given import answer_none
from dledger.rocketmq.broker.consuming.popping.giving import PopGiving
from dledger.rocketmq.broker.consuming.popping.in_order import InOrder, Releases
from dledger.rocketmq.broker.consuming.popping.pop_requests import PopReading, PopRequest
from dledger.rocketmq.broker.consuming.popping.retries import RetryTopics
from dledger.rocketmq.broker.consuming.popping.taking import PopTaking
from dledger.rocketmq.broker.options.inside import BrokerInside
from dledger.rocketmq.store.records.events import Arrived
from protocols.rocketmq.commands import CommandConnection
from protocols.wire.remoting import RemotingCommand

POP_MESSAGE, NOTIFICATION, POLLING_INFO = 200_050, 200_054, 200_055
#: The most requests that wait.
POLLS_MAX = 65_536
#: The longest time for which a request waits, in milliseconds.
POLL_MS_MAX = 600_000
#: The most waiting requests that one turn of the reactor examines, and that one event wakes for each group.
WOKEN_MAX = 64


#: The requests for messages of one topic for one group wait together: the names of both.
_Waiting = tuple[str, str]


@attrs.define(eq=False)
class _Poll(HeldRequest):
    """A request that waits, with its fields."""

    pop: PopRequest


class PopCommands(CommandGroup):
    """
    The commands that take messages.

    Invariant: each waiting request is in C{polls}, by its topic and group. C{_topics} has the keys of
    C{_polls} to wake by the name of a topic with new messages: the topic itself, or one of the group's
    retries. C{_clogged} has the connections that had too much unread output when a request of theirs was
    examined.

    @ivar taking: finds messages.
    """

    log = Logger()

    def __init__(
        self, inside: BrokerInside, reading: PopReading, taking: PopTaking, giving: PopGiving,
        in_order: InOrder, retries: RetryTopics,
    ) -> None:
        self._reading = reading
        self.taking = taking
        self._giving = giving
        self._clock = inside.clock
        self._wall_ms = inside.wall_ms
        self.polls: HeldRequests[_Waiting, _Poll] = HeldRequests()
        self._topics: dict[str, dict[_Waiting, None]] = {}
        self._clogged: dict[CommandConnection, None] = {}
        self._call: IDelayedCall | None = None
        self._retries = retries
        self._in_order = in_order
        self._releases = Releases(inside, in_order, self.freed)
        self._is_stopped = False

    def __len__(self) -> int:
        """Number of waiting requests."""
        return len(self.polls)

    @property
    def popped(self) -> int:
        """Number of messages that were given since the start."""
        return self._giving.popped

    def handlers(self) -> Handlers:
        """The method for each request code."""
        return {POP_MESSAGE: self._pop, NOTIFICATION: self._notify, POLLING_INFO: self._answer_polling}

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

    def _answer_polling(self, connection: CommandConnection, request: RemotingCommand) -> None:
        fields = Fields(request.ext_fields)
        topic, group = fields.text("topic"), fields.text("consumerGroup")
        count = len(self.polls.of((topic, group)))
        connection.answer(request, ext_fields={"pollingNum": str(count)})

    # -- messages --------------------------------------------------------------------------------

    def _try(self, connection: CommandConnection, request: RemotingCommand, pop: PopRequest) -> bool:
        """
        Give messages to a request, if there are any for it.

        @return: whether the request is answered, now or as soon as its check points are stored. If not, it
            may wait.
        @raise Refused: messages cannot be read, or check points cannot be stored.
        """
        if not self._giving.is_ready:
            return False
        if not pop.takes:
            if any(end > at for _queue, at, end in self.taking.queues(pop)):
                connection.answer(request, ext_fields={"hasMsg": "true", "pollingFull": "false"})
                return True
            return False
        if not connection.may_answer:
            self._clogged[connection] = None
            return False
        if self._giving.is_full:
            return False
        taken, rest, is_cut = self.taking.take(pop)
        if not taken:
            if is_cut:
                self._wake_later((pop.topic, pop.group))
            return False
        self._giving.give(connection, request, pop, taken, rest, self._given)
        return True

    def _given(self, pop: PopRequest) -> None:
        """Wake the requests of a group, because the queues of a pop are free again."""
        self._wake((pop.topic, pop.group), WOKEN_MAX)

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
            answer_none(connection, request, pop, Code.POLLING_TIMEOUT, self._wall_ms())
            return
        if len(self) >= POLLS_MAX:
            answer_none(connection, request, pop, Code.POLLING_FULL, self._wall_ms())
            return
        # The request is due a second early, because sweeps are a second apart, and the client does not wait
        # much longer than it has asked for.
        poll = _Poll(connection, request, self._clock.seconds() + max(poll_ms / 1000 - 1, 0), pop)
        self._hold(poll)

    def _hold(self, poll: _Poll) -> None:
        """Add a request to those that wait."""
        waiting = topic, group = poll.pop.topic, poll.pop.group
        self.polls.hold(waiting, poll)
        for name in (topic, *self._retries.read(topic, group)):
            self._topics.setdefault(name, {})[waiting] = None
        if poll.pop.in_order:
            self._releases.watch(topic, group)

    def _release(self, poll: _Poll) -> None:
        """Remove a request from those that wait."""
        waiting = (poll.pop.topic, poll.pop.group)
        if self.polls.release(poll):
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
        self._wake_all(islice(self.polls.of(waiting), most))

    def _wake_all(self, polls: Iterable[_Poll]) -> None:
        for poll in polls:
            self.polls.wake(poll)
        if self.polls.has_woken and self._call is None:
            self._call = self._clock.callLater(0, self._examine)

    def _wake_later(self, waiting: _Waiting) -> None:
        """Wake one request in the next turn, because a filter has passed over messages, and more follow."""
        self._clock.callLater(0, self._wake, waiting, 1)

    def _examine(self) -> None:
        """Examine woken requests, at most L{WOKEN_MAX} in one turn of the reactor."""
        self._call = None
        for poll in self.polls.woken(WOKEN_MAX):
            self._try_again(poll)
        if self.polls.has_woken:
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
        Answer the requests whose deadline has passed, and wake one request for each topic and group, because
        messages may have become free that no event reports. Called once a second.
        """
        now_s = self._clock.seconds()
        for poll in self.polls.due(now_s):
            self._try_again(poll, is_over=True)
        for waiting in self.polls.by_key:
            self._wake(waiting, 1)
        self._in_order.sweep()

    def drained(self, connection: CommandConnection) -> None:
        """The connection takes output again: examine its requests, as one may have been passed over."""
        if connection in self._clogged:
            del self._clogged[connection]
            self._wake_all(self.polls.of_connection(connection))

    def connection_lost(self, connection: CommandConnection) -> None:
        """Forget the waiting requests of a connection that has ended."""
        self._clogged.pop(connection, None)
        for poll in self.polls.of_connection(connection):
            self._release(poll)

    def answer_waiting(self) -> None:
        """Answer all waiting requests with no message. Their clients ask again."""
        for poll in self.polls:
            self._release(poll)
            answer_none(poll.connection, poll.request, poll.pop, Code.POLLING_TIMEOUT, self._wall_ms())

    def stop(self) -> None:
        """Answer all waiting requests with no message. Requests that come later do not wait."""
        self._is_stopped = True
        self.answer_waiting()
        self._releases.stop()
        if self._call is not None:
            self._call.cancel()
            self._call = None
        self.polls.forget_woken()
