# -*- test-case-name: tests.broker.client.test_producer -*-
"""
The path of messages to one broker: one queue, native frames in flight, outcomes::

    call -> queue -> frame in flight -> stored | refused | unknown

Rule 1: messages are sent in the order of the calls; neighbours in the queue with the same topic, queue,
properties and flag share a frame.
Rule 2: no message is sent twice. A refusal, a connection that cannot be made and a time-out before sending
mean "refused"; a lost connection, a time-out after sending and messages that the broker stored without a
promise mean "unknown".
Rule 3: everything is bounded: pending messages and bytes, frames in flight.
Rule 4: a connection is made when there are messages to send, and again when it is lost; messages wait for it
until their own time-out.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache

import attrs
from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IDelayedCall, IReactorTime
from twisted.python.failure import Failure

from dledger.base.errors import DLedgerError
from dledger.base.timing import Backoff
from dledger.broker.client.link import BrokerLink
from dledger.broker.client.values import (
    STATUSES,
    PutError,
    PutRefused,
    PutUnknown,
    Stored,
    refusal_of,
)
from protocols.rocketmq.broker import BrokerConnection
from protocols.rocketmq.commands import NotAsked
from protocols.wire.ledger.codes import ResponseCode
from protocols.wire.rocketmq.broker_frames import BrokerAnswer, PutAnswer, PutRequest
from protocols.wire.rocketmq.layout import PROPERTIES_BYTES_MAX, TOPIC_BYTES_MAX
from protocols.wire.rocketmq.message import encode_properties

_SWEEP_S = 0.1
#: Seconds. A broker closes a connection that was idle for 120 s; the producer closes it earlier, so that no
#: message meets a connection that is being closed.
IDLE_CLOSE_S = 60.0
#: Largest body that a dledger broker can be configured to store.
BODY_BYTES_MAX = 8 * 1024 * 1024

#: Called once per call, with the places of its messages or the error.
Done = Callable[[tuple[Stored, ...] | PutError], None]
#: Topic, queue, properties and flag, which the messages of a frame share.
_Key = tuple[str, int, bytes, int]


@attrs.frozen(kw_only=True)
class PutLimits:
    """
    Bounds of one producer.

    @ivar pending_count_max, pending_bytes_max: number and bytes of messages without an outcome; a call
        beyond these bounds is refused.
    @ivar frame_count_max, frame_bytes_max: number and bytes of messages in one frame.
    @ivar frames_in_flight_max: frames without an answer; messages gather meanwhile.
    """

    pending_count_max: int = 100_000
    pending_bytes_max: int = 64 * 1024 * 1024
    frame_count_max: int = 512
    frame_bytes_max: int = 128 * 1024
    frames_in_flight_max: int = 8


class _Call:
    """One call. C{sent} bodies are or were in frames; C{open} of them have no outcome."""

    __slots__ = (
        "bodies", "deadline_s", "done", "error", "is_finished", "key", "open", "refused", "sent", "size",
        "stored", "unknown",
    )  # fmt: skip

    def __init__(self, key: _Key, bodies: Sequence[bytes], size: int, done: Done, deadline_s: float) -> None:
        self.key = key
        self.bodies = bodies
        self.size = size
        self.done = done
        self.deadline_s = deadline_s
        self.sent = 0
        self.open = 0
        self.stored: list[Stored] = []
        self.refused = 0
        self.unknown = 0
        self.error: DLedgerError | None = None
        self.is_finished = False

    def outcome(self) -> tuple[Stored, ...] | PutError:
        """The outcome for the callback."""
        if self.error is None:
            return tuple(self.stored)
        kind = PutUnknown if self.unknown else PutRefused
        return kind(self.error.code, stored=tuple(self.stored), refused=self.refused, unknown=self.unknown,
                    **self.error.facts)  # fmt: skip


class _Frame:
    """Messages that are sent together; each part is a call, its first body here and the number of bodies."""

    __slots__ = ("connection", "count", "parts", "sent_s")

    def __init__(
        self, connection: BrokerConnection, parts: list[tuple[_Call, int, int]], count: int, sent_s: float
    ) -> None:
        self.connection = connection
        self.parts = parts
        self.count = count
        self.sent_s = sent_s


@lru_cache(maxsize=1024)
def _topic_problem(topic: str) -> str:
    size = len(topic.encode("utf-8", "replace"))
    return "" if 0 < size <= TOPIC_BYTES_MAX[2] else (
        f"the topic has {size} bytes; 1 to {TOPIC_BYTES_MAX[2]} are allowed"
    )  # fmt: skip


class BrokerProducer:
    """
    Queues and sends the messages for one broker.

    Invariant: C{_queue} holds the calls with unsent messages, C{_frames} the frames without an answer,
    both in order.
    """

    def __init__(
        self, link: BrokerLink, *, clock: IReactorTime, rng: random.Random, timeout_s: float = 10.0,
        limits: PutLimits | None = None,
    ) -> None:
        """
        @param link: a link that is used only here.
        @param timeout_s: seconds in which a call has an outcome.
        """
        self.pending_count = 0
        self.pending_bytes = 0
        self._link = link
        self._clock = clock
        self._timeout_s = timeout_s
        self._limits = limits or PutLimits()
        self._queue: deque[_Call] = deque()
        self._frames: dict[_Frame, None] = {}
        self._calls: dict[_Call, None] = {}
        self._backoff = Backoff(rng=rng, most_s=0.5)
        self._problem: DLedgerError | None = None
        self._pumping: IDelayedCall | None = None
        self._sweeping: IDelayedCall | None = None
        self._idling: IDelayedCall | None = None
        self._used_s = clock.seconds()
        self._is_connecting = False
        self._is_closed = False
        link.lost = self._lost

    # -- calls -----------------------------------------------------------------------------------

    def put(
        self, topic: str, body: bytes, *, queue_id: int = -1,
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
        done: Deferred[Stored] = Deferred(lambda _: None)

        def settle(outcome: tuple[Stored, ...] | PutError) -> None:
            if isinstance(outcome, PutError):
                done.errback(Failure(outcome))
            else:
                done.callback(outcome[0])

        self.submit(topic, (body,), settle, queue_id=queue_id, properties=properties, flag=flag)
        return done

    def put_many(
        self, topic: str, bodies: Sequence[bytes], *, queue_id: int = -1,
        properties: Mapping[str, str] | bytes = b"", flag: int = 0,
    ) -> Deferred[tuple[Stored, ...]]:
        """
        Store messages that differ in their bodies only, in order. With C{queue_id} -1 they may be spread over
        several queues, in runs.

        @return: as of L{put}, with all runs.
        """
        done: Deferred[tuple[Stored, ...]] = Deferred(lambda _: None)

        def settle(outcome: tuple[Stored, ...] | PutError) -> None:
            if isinstance(outcome, PutError):
                done.errback(Failure(outcome))
            else:
                done.callback(outcome)

        self.submit(topic, bodies, settle, queue_id=queue_id, properties=properties, flag=flag)
        return done

    def submit(
        self, topic: str, bodies: Sequence[bytes], done: Done, *, queue_id: int = -1,
        properties: Mapping[str, str] | bytes = b"", flag: int = 0,
    ) -> None:
        """
        As L{put_many}. C{done} is called once, and within this call only if there are no messages or they are
        refused here. The sequence must not be changed afterwards.
        """
        count, size = len(bodies), sum(map(len, bodies))
        if not count:
            done(())
            return
        try:
            raw = properties if isinstance(properties, bytes) else encode_properties(properties)
        except ValueError as error:
            done(PutRefused(ResponseCode.UNEXPECTED_ARGUMENT, refused=count, reason=str(error)))
            return
        problem = self._misfit(topic, bodies, size, raw)
        if problem:
            done(PutRefused(ResponseCode.UNEXPECTED_ARGUMENT, refused=count, reason=problem))
            return
        limits = self._limits
        if self._is_closed:
            done(PutRefused(ResponseCode.NETWORK_ERROR, refused=count, reason="the client is closed"))
            return
        if self.pending_count and (
            self.pending_count + count > limits.pending_count_max
            or self.pending_bytes + size > limits.pending_bytes_max
        ):
            done(PutRefused(
                ResponseCode.LEADER_PENDING_FULL, refused=count,
                reason=f"{self.pending_count} messages of {self.pending_bytes} bytes are pending in this "
                f"client; at most {limits.pending_count_max} of {limits.pending_bytes_max} bytes are allowed",
            ))  # fmt: skip
            return
        self._used_s = self._clock.seconds()
        deadline_s = self._used_s + self._timeout_s
        call = _Call((topic, queue_id, raw, flag), bodies, size, done, deadline_s)
        self._calls[call] = None
        self._queue.append(call)
        self.pending_count += count
        self.pending_bytes += size
        if self._sweeping is None:
            self._sweeping = self._clock.callLater(_SWEEP_S, self._sweep)
        self._pump_soon()

    @staticmethod
    def _misfit(topic: str, bodies: Sequence[bytes], size: int, properties: bytes) -> str:
        for kind in set(map(type, bodies)):
            if kind is not bytes:
                return f"a body must be bytes, not {kind.__name__}"
        if size > BODY_BYTES_MAX and (longest := max(map(len, bodies))) > BODY_BYTES_MAX:
            return f"a body has {longest} bytes; at most {BODY_BYTES_MAX} are allowed"
        if len(properties) > PROPERTIES_BYTES_MAX:
            return f"the properties have {len(properties)} bytes; at most {PROPERTIES_BYTES_MAX} are allowed"
        return _topic_problem(topic)

    # -- sending ---------------------------------------------------------------------------------

    def _pump_soon(self) -> None:
        if self._pumping is None:
            self._pumping = self._clock.callLater(0, self._pump)

    def _pump(self) -> None:
        if self._pumping is not None and self._pumping.active():
            self._pumping.cancel()
        self._pumping = None
        if self._is_closed:
            return
        connection = self._link.connection
        if connection is None:
            self._connect()
            return
        limits = self._limits
        while self._queue and len(self._frames) < limits.frames_in_flight_max:
            self._send_frame(connection)

    def _send_frame(self, connection: BrokerConnection) -> None:
        key, bodies, parts = self._cut()
        if not parts:
            return
        topic, queue_id, properties, flag = key
        frame = _Frame(connection, parts, len(bodies), self._clock.seconds())
        self._frames[frame] = None
        request = PutRequest(
            topic=topic, bodies=tuple(bodies), queue_id=queue_id, properties=properties, flag=flag
        )
        connection.request(request, lambda result: self._answered(frame, result))

    def _cut(self) -> tuple[_Key, list[bytes], list[tuple[_Call, int, int]]]:
        """Content of the next frame: at least one message if any waits, then up to both bounds."""
        limits, queue = self._limits, self._queue
        bodies: list[bytes] = []
        parts: list[tuple[_Call, int, int]] = []
        size = 0
        key: _Key = ("", 0, b"", 0)
        while queue and len(bodies) < limits.frame_count_max:
            call = queue[0]
            if call.is_finished:
                queue.popleft()
                continue
            if parts and call.key != key:
                break
            key = call.key
            start, end = call.sent, call.sent
            last = min(len(call.bodies), start + limits.frame_count_max - len(bodies))
            if not start and last == len(call.bodies) and size + call.size <= limits.frame_bytes_max:
                end, size = last, size + call.size
            while end < last and (not bodies and end == start
                                  or size + len(call.bodies[end]) <= limits.frame_bytes_max):  # fmt: skip
                size += len(call.bodies[end])
                end += 1
            if end == start:
                break
            bodies += call.bodies if end - start == len(call.bodies) else call.bodies[start:end]
            parts.append((call, start, end - start))
            call.sent, call.open = end, call.open + end - start
            if end < len(call.bodies):
                break
            queue.popleft()
        return key, bodies, parts

    def _connect(self) -> None:
        if self._queue and not self._is_connecting:
            self._is_connecting = True
            self._link.ready().addCallbacks(self._connected, self._not_connected)

    def _connected(self, connection: BrokerConnection) -> None:
        self._is_connecting = False
        if self._link.wire_version < 1:
            self._is_closed = True
            error = DLedgerError(
                ResponseCode.UNSUPPORTED,
                reason=f"{self._link.address} does not understand native frames; use RocketMQ's own client",
            )
            self._link.close()
            self._give_up(error)
            return
        self._backoff.reset()
        self._problem = None
        connection.read_ended = self._pump
        if self._idling is None:
            self._idling = self._clock.callLater(IDLE_CLOSE_S, self._look_idle)
        self._pump()

    def _look_idle(self) -> None:
        self._idling = None
        connection = self._link.connection
        if connection is None:
            return
        left_s = self._used_s + IDLE_CLOSE_S - self._clock.seconds()
        if self._calls or left_s > 0:
            self._idling = self._clock.callLater(max(left_s, 1.0), self._look_idle)
        else:
            connection.abort("idle")

    def _not_connected(self, failure: Failure) -> None:
        self._is_connecting = False
        if isinstance(failure.value, DLedgerError):
            self._problem = failure.value
        self._retry_later()

    def _retry_later(self) -> None:
        if self._queue and not self._is_closed and self._pumping is None:
            self._pumping = self._clock.callLater(self._backoff.next_s(), self._pump)

    def _lost(self, reason: str) -> None:
        self._retry_later()

    # -- outcomes --------------------------------------------------------------------------------

    def _answered(self, frame: _Frame, result: BrokerAnswer | Exception) -> None:
        if self._frames.pop(frame, False) is False:
            return
        if isinstance(result, PutAnswer):
            if result.code in STATUSES and len(result.offsets) == frame.count:
                self._settle_stored(frame, result)
                return
            address = self._link.address
            if result.code in STATUSES:
                reason = f"{len(result.offsets)} offsets for {frame.count} messages"
                frame.connection.abort(reason)
                self._settle(frame, DLedgerError(ResponseCode.UNKNOWN, reason=f"{address}: {reason}"), True)
            else:
                error = refusal_of(result.code, result.remark, address)
                self._settle(frame, error, bool(result.offsets))
            return
        error = DLedgerError(ResponseCode.NETWORK_ERROR, reason=f"{self._link.address}: {result}")
        self._settle(frame, error, not isinstance(result, NotAsked))

    def _settle_stored(self, frame: _Frame, answer: PutAnswer) -> None:
        at = 0
        status = STATUSES[answer.code]
        finished = []
        for call, first, count in frame.parts:
            if not call.is_finished:
                call.stored.append(Stored(
                    status=status, queue_id=answer.queue_id, queue_offset=answer.queue_offset + at,
                    offsets=answer.offsets[at : at + count], store_timestamp=answer.store_timestamp,
                    first=first,
                ))  # fmt: skip
                if self._close_part(call, count):
                    finished.append(call)
            at += count
        self._tell(finished)

    def _settle(self, frame: _Frame, error: DLedgerError, is_unknown: bool) -> None:
        finished = []
        for call, _, count in frame.parts:
            if not call.is_finished:
                call.error = call.error or error
                if is_unknown:
                    call.unknown += count
                else:
                    call.refused += count
                if self._close_part(call, count):
                    finished.append(call)
        self._tell(finished)

    def _close_part(self, call: _Call, count: int) -> bool:
        call.open -= count
        if call.error is not None and call.sent < len(call.bodies):
            # Do not send messages behind one that was not stored: on a retry they would precede it.
            call.refused += len(call.bodies) - call.sent
            call.sent = len(call.bodies)
            if self._queue and self._queue[0] is call:
                self._queue.popleft()
        return not call.open and call.sent == len(call.bodies) and self._finish(call)

    def _finish(self, call: _Call) -> bool:
        call.is_finished = True
        self._calls.pop(call, None)
        self.pending_count -= len(call.bodies)
        self.pending_bytes -= call.size
        return True

    @staticmethod
    def _tell(finished: Sequence[_Call]) -> None:
        for call in finished:
            call.done(call.outcome())

    def _sweep(self) -> None:
        self._sweeping = None
        now_s = self._clock.seconds()
        late = []
        for call in self._calls:  # in the order of their deadlines
            if call.deadline_s > now_s:
                break
            late.append(call)
        for call in late:
            self._expire(call)
        for frame in list(self._frames):
            if now_s - frame.sent_s >= self._timeout_s:
                frame.connection.abort(f"no answer within {self._timeout_s:g} s")
        self._tell(late)
        if self._calls:
            self._sweeping = self._clock.callLater(_SWEEP_S, self._sweep)

    def _expire(self, call: _Call) -> None:
        reason = f"{self._link.address}: no outcome within {self._timeout_s:g} s"
        if self._problem is not None and not call.open:
            reason = str(self._problem.facts.get("reason"))
        call.error = call.error or DLedgerError(ResponseCode.TIMEOUT, reason=reason)
        call.unknown += call.open
        call.refused += len(call.bodies) - call.sent
        if self._queue and self._queue[0] is call:
            self._queue.popleft()
        self._finish(call)

    def _give_up(self, error: DLedgerError) -> None:
        self._queue.clear()
        calls = list(self._calls)
        for call in calls:
            call.error = call.error or error
            call.unknown += call.open
            call.refused += len(call.bodies) - call.sent
            self._finish(call)
        self._frames.clear()
        self._tell(calls)

    def close(self) -> None:
        """
        End the connection. Unsent messages are refused, sent ones without an answer are unknown.
        """
        self._is_closed = True
        for timer in (self._pumping, self._sweeping, self._idling):
            if timer is not None and timer.active():
                timer.cancel()
        self._pumping = self._sweeping = self._idling = None
        self._link.close()
        self._give_up(DLedgerError(ResponseCode.NETWORK_ERROR, reason="the client is closed"))
