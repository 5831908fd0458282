# -*- test-case-name: tests.broker.client.test_producer -*-
"""
The path of messages to one broker: calls go through a L{WindowedSender}, in native frames.

Rule 1: messages are sent in the order of the calls; neighbours in the queue with the same topic, queue,
properties and flag share a frame.
Rule 2: no message is sent twice. A refusal, a connection that cannot be made and a time-out before sending
mean "refused"; a lost connection, a time-out after sending and messages that the broker stored without a
promise mean "unknown".
Rule 3: a connection is made when there are messages to send, and again when it is lost; messages wait for it
until their own time-out.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache, partial
from typing import NamedTuple

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IReactorTime
from twisted.python.failure import Failure

from dledger.base.sending.arguments import seconds, whole
from dledger.base.sending.bodies import BytesLike, as_bodies, misfit, total_bytes
from dledger.base.sending.send_queue import SendCall, SendLimits, SentFrame, Window
from dledger.base.sending.sender import WindowedSender, fire_all, fire_one
from dledger.base.timing import Alarm, Backoff
from dledger.rocketmq.client.link import BrokerLink
from dledger.rocketmq.client.values import (
    STATUSES,
    PutError,
    PutRefused,
    PutUnknown,
    Stored,
    refusal_of,
)
from dledger.values.errors import DLedgerError
from protocols.rocketmq.broker import BrokerConnection
from protocols.rocketmq.commands import NotAsked
from protocols.wire.codes import ResponseCode
from protocols.wire.rocketmq.broker_frames import BrokerAnswer, PutAnswer, PutRequest
from protocols.wire.rocketmq.layout import PROPERTIES_BYTES_MAX, TOPIC_BYTES_MAX
from protocols.wire.rocketmq.message import encode_properties

#: Seconds. A broker closes a connection that was idle for 120 s; the producer closes it earlier, so that no
#: message meets a connection that is being closed.
IDLE_CLOSE_S = 60.0
#: Largest body that a dledger broker can be configured to store.
BODY_BYTES_MAX = 8 * 1024 * 1024

PutOutcome = tuple[Stored, ...] | PutError
#: Called once per call, with the places of its messages or the error.
PutDone = Callable[[PutOutcome], None]
_Call = SendCall[Stored]
_Frame = SentFrame[Stored]


_INT_MAX = (1 << 31) - 1


class _Alike(NamedTuple):
    """The facts that the messages of a frame share."""

    topic: str
    queue_id: int
    properties: bytes
    flag: int


class PutLimits(SendLimits):
    """Bounds of one producer."""


@lru_cache(maxsize=1024)
def _topic_problem(topic: str) -> str:
    size = len(topic.encode("utf-8", "replace"))
    return "" if 0 < size <= TOPIC_BYTES_MAX[2] else (
        f"the topic has {size} bytes; 1 to {TOPIC_BYTES_MAX[2]} are allowed"
    )


class BrokerProducer:
    """
    The messages for one broker: the target of their sender.

    @ivar sender: its queue and its frames.
    """

    def __init__(
        self, link: BrokerLink, *, clock: IReactorTime, rng: random.Random, timeout_s: float = 10.0,
        limits: PutLimits | None = None,
    ) -> None:
        """
        @param link: a link that is used only here.
        @param timeout_s: seconds in which a call has an outcome.
        """
        self._link = link
        self._clock = clock
        self._timeout_s = seconds("timeout_s", timeout_s)
        self._limits = limits or PutLimits()
        self.sender: WindowedSender[Stored] = WindowedSender(
            self, clock=clock, turn=link.turn, limits=self._limits, noun="messages"
        )
        self._window = Window(self._limits.frames_in_flight_max, sys.maxsize, self._limits.frame_count_max)
        self._backoff = Backoff(rng=rng, most_s=0.5)
        self._problem: DLedgerError | None = None
        self._end: DLedgerError | None = None
        self._idling = Alarm(clock, self._look_idle)
        self._used_s = clock.seconds()
        self._is_connecting = False
        link.lost = self._lost

    # -- calls -----------------------------------------------------------------------------------

    def put(
        self, topic: str, body: BytesLike, *, queue_id: int = -1,
        properties: Mapping[str, str] | bytes = b"", flag: int = 0,
    ) -> Deferred[Stored]:
        """
        Store one message.

        @param queue_id: the queue; -1: the broker chooses one.
        @param properties: names and values (C{TAGS}, C{KEYS}, ...), or their bytes as in a record.
        @param flag: flag of the application.
        @return: fires with the place of the message. Fails with L{PutRefused} or L{PutUnknown}; cancelling
            does not undo the put.
        """
        waiter: Deferred[Stored] = Deferred()
        done = partial(fire_one, waiter)
        self.submit(topic, (body,), done, queue_id=queue_id, properties=properties, flag=flag)
        return waiter

    def put_many(
        self, topic: str, bodies: Sequence[BytesLike], *, queue_id: int = -1,
        properties: Mapping[str, str] | bytes = b"", flag: int = 0, stream: object = None,
    ) -> Deferred[tuple[Stored, ...]]:
        """
        Store messages that differ in their bodies only, in order. With C{queue_id} -1 they may be spread over
        several queues, in runs.

        @param stream: calls with the same object belong together: when a message of one was not acknowledged,
            the unsent ones of all fail. None: on its own.
        @return: as of L{put}, with all runs.
        """
        waiter: Deferred[tuple[Stored, ...]] = Deferred()
        done = partial(fire_all, waiter)
        self.submit(
            topic, bodies, done, queue_id=queue_id, properties=properties, flag=flag, stream=stream
        )
        return waiter

    def submit(
        self, topic: str, bodies: Sequence[BytesLike], done: PutDone, *, queue_id: int = -1,
        properties: Mapping[str, str] | bytes = b"", flag: int = 0, stream: object = None,
    ) -> None:
        """
        As L{put_many}. C{done} is called once, and within this call only if there are no messages or they are
        refused here. The sequence must not be changed afterwards.

        @raise TypeError, ValueError: C{queue_id} or C{flag} is not a number, or out of range.
        """
        if not (type(queue_id) is type(flag) is int and -1 <= queue_id <= _INT_MAX >= abs(flag)):
            queue_id = whole("queue_id", queue_id, -1, _INT_MAX)
            flag = whole("flag", flag, -_INT_MAX, _INT_MAX)
        if not bodies:
            done(())
            return
        kept = as_bodies(bodies)
        size = total_bytes(kept)
        self._used_s = self._clock.seconds()
        call: _Call = SendCall(kept, size, done, self._used_s + self._timeout_s, stream=stream)
        try:
            raw = properties if isinstance(properties, bytes) else encode_properties(properties)
        except ValueError as error:
            self.sender.refuse(call, ResponseCode.UNEXPECTED_ARGUMENT, str(error))
            return
        call.key = _Alike(topic, queue_id, raw, flag)
        problem = misfit(kept, size, BODY_BYTES_MAX) or _topic_problem(topic)
        if len(raw) > PROPERTIES_BYTES_MAX:
            problem = f"the properties have {len(raw)} bytes; at most {PROPERTIES_BYTES_MAX} are allowed"
        if problem:
            self.sender.refuse(call, ResponseCode.UNEXPECTED_ARGUMENT, problem)
        else:
            self.sender.submit(call)

    def close(self) -> None:
        """
        End the connection. Unsent messages are refused, sent ones without an answer are unknown.
        """
        self._close(DLedgerError(ResponseCode.NETWORK_ERROR, reason="the client is closed"))

    def _close(self, error: DLedgerError) -> None:
        self._end = self._end or error
        self._idling.cancel()
        self._link.close()
        self.sender.close()

    # -- SendTarget ------------------------------------------------------------------------------

    def window(self) -> Window | None:
        """See L{SendTarget.window}."""
        if self._link.connection is not None:
            return self._window
        if not self._is_connecting:
            self._is_connecting = True
            self._link.ready().addCallbacks(self._connected, self._not_connected)
        return None

    def transmit(self, frame: _Frame, bodies: list[bytes]) -> None:
        """See L{SendTarget.transmit}."""
        connection, alike = self._link.connection, frame.parts[0][0].key
        assert connection is not None and isinstance(alike, _Alike)
        frame.connection = connection
        request = PutRequest(
            topic=alike.topic, bodies=tuple(bodies), queue_id=alike.queue_id, properties=alike.properties,
            flag=alike.flag,
        )
        connection.request(request, partial(self._answered, connection, frame))

    def is_silent(self, frame: _Frame, waited_s: float) -> None:
        """See L{SendTarget.is_silent}."""
        if waited_s >= self._timeout_s:
            assert isinstance(frame.connection, BrokerConnection)
            frame.connection.abort(f"no answer within {self._timeout_s:g} s")

    def pause_s(self) -> float:
        """See L{SendTarget.pause_s}."""
        return self._backoff.next_s()

    def overdue(self, call: _Call) -> DLedgerError:
        """See L{SendTarget.overdue}."""
        known = call.error or self._end
        if known is not None:
            return known
        if self._problem is not None and not call.open:
            reason = f"not connected within {self._timeout_s:g} s: {self._problem.facts.get('reason')}"
            return DLedgerError(ResponseCode.NETWORK_ERROR, reason=reason)
        reason = f"{self._link.address}: no outcome within {self._timeout_s:g} s"
        return DLedgerError(ResponseCode.TIMEOUT, reason=reason)

    def outcome(self, call: _Call) -> PutOutcome:
        """See L{SendTarget.outcome}."""
        if call.error is None:
            return tuple(call.results)
        kind = PutUnknown if call.unknown else PutRefused
        return kind(call.error.code, stored=tuple(call.results), refused=call.failed, unknown=call.unknown,
                    **call.error.facts)

    # -- the connection --------------------------------------------------------------------------

    def _connected(self, connection: BrokerConnection) -> None:
        self._is_connecting = False
        if self._link.wire_version < 1:
            self._close(DLedgerError(
                ResponseCode.UNSUPPORTED,
                reason=f"{self._link.address} does not understand native frames; use RocketMQ's own client",
            ))
            return
        self._backoff.reset()
        self._problem = None
        connection.read_ended = self.sender.turn_ended
        self._idling.set(IDLE_CLOSE_S)
        self.sender.pump()

    def _not_connected(self, failure: Failure) -> None:
        self._is_connecting = False
        if isinstance(failure.value, DLedgerError):
            self._problem = failure.value
        self._retry_later()

    def _lost(self, reason: str) -> None:
        self._retry_later()
        self.sender.turn_ended()

    def _retry_later(self) -> None:
        if self.sender.has_unsent:
            self.sender.pause()

    def _look_idle(self) -> None:
        connection = self._link.connection
        if connection is None:
            return
        left_s = self._used_s + IDLE_CLOSE_S - self._clock.seconds()
        if self.sender.pending_count or left_s > 0:
            self._idling.set(max(left_s, 1.0))
        else:
            connection.abort("idle")

    # -- answers ---------------------------------------------------------------------------------

    def _answered(
        self, connection: BrokerConnection, frame: _Frame, result: BrokerAnswer | Exception
    ) -> None:
        sender, address = self.sender, self._link.address
        if not sender.answered(frame):
            return
        if not isinstance(result, PutAnswer):
            error = DLedgerError(ResponseCode.NETWORK_ERROR, reason=f"{address}: {result}")
            settle = sender.settle_failed if isinstance(result, NotAsked) else sender.settle_unknown
            settle(frame, error)
        elif result.code not in STATUSES:
            settle = sender.settle_unknown if result.offsets else sender.settle_failed
            settle(frame, refusal_of(result.code, result.remark, address))
        elif len(result.offsets) != frame.count:
            reason = f"{len(result.offsets)} offsets for {frame.count} messages"
            connection.abort(reason)
            sender.settle_unknown(frame, DLedgerError(ResponseCode.UNKNOWN, reason=f"{address}: {reason}"))
        else:
            sender.settle_stored(frame, _runs(frame, result))


def _runs(frame: _Frame, answer: PutAnswer) -> list[Stored]:
    status, at, runs = STATUSES[answer.code], 0, []
    for _call, first, count in frame.parts:
        runs.append(Stored(
            status=status, queue_id=answer.queue_id, queue_offset=answer.queue_offset + at,
            offsets=answer.offsets[at : at + count], store_timestamp=answer.store_timestamp, first=first,
        ))
        at += count
    return runs
