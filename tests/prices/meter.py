# -*- test-case-name: tests.prices.test_prices -*-
"""
Measures what requests cost a server in process: the processor time of each reactor turn, and memory.

The reactor is a clock that goes on with the processor time of this thread, so that work that is cut at a
number of milliseconds is cut here as in production, however busy the machine is.
"""

from __future__ import annotations

import gc
import time
import tracemalloc
from collections.abc import Callable, Iterable, Sequence

import attrs
from twisted.internet.task import Clock

from protocols.connection import AnsweringConnection
from tests.protocols.fakes import FakeTransport

#: Bytes of one read of a socket.
READ_BYTES = 64 * 1024
#: Turns after which an answer is not waited for any longer.
TURNS_MAX = 20_000
#: Turns in which nothing happens, a hundredth of a second each, after which there will be no answer.
IDLE_MAX = 30


class TurnClock(Clock):
    """A clock that runs the calls of one reactor turn."""

    def turn(self) -> bool:
        """Run what is due, and not what that asks for. @return: whether anything was due."""
        now_s = self.seconds()
        due = [call for call in sorted(self.calls, key=lambda one: one.getTime()) if call.getTime() <= now_s]
        for call in due:
            if call.active():
                self.calls.remove(call)
                call.called = 1
                call.func(*call.args, **call.kw)
        return bool(due)


class MeteredReactor(TurnClock):
    """A clock whose seconds are those of the processor, and those by which it was set on."""

    def __init__(self) -> None:
        super().__init__()
        self._began_s = time.thread_time()

    def seconds(self) -> float:
        """See L{Clock.seconds}."""
        return self.rightNow + time.thread_time() - self._began_s


class Sink(FakeTransport):
    """A transport that sends everything at once, and keeps only the size."""

    def __init__(self) -> None:
        super().__init__()
        self.sent_bytes = 0

    def write(self, data: bytes) -> None:
        """Count it."""
        self.sent_bytes += len(data)

    def writeSequence(self, data: Iterable[bytes]) -> None:
        """Count it."""
        self.sent_bytes += sum(map(len, data))


@attrs.frozen(kw_only=True)
class Cost:
    """
    What requests cost.

    @ivar turn_s: seconds of the processor of the longest turn. @ivar all_s: those of all turns.
    @ivar peak_bytes: memory that was held at most, beyond what there was before; 0: not measured.
    @ivar sent_bytes: of answers. @ivar turns: their number.
    @ivar is_answered: whether everything was answered.
    """

    turn_s: float
    all_s: float
    turns: int
    sent_bytes: int
    is_answered: bool
    peak_bytes: int = 0


class Meter:
    """Asks one server."""

    def __init__(self, reactor: MeteredReactor) -> None:
        self.reactor = reactor

    def plug(self, connection: AnsweringConnection) -> Sink:
        """Connect it."""
        transport = Sink()
        connection.makeConnection(transport)  # type: ignore[arg-type]
        self.settle()
        return transport

    def settle(self) -> None:
        """Run what is due, until nothing is."""
        for _ in range(TURNS_MAX):
            if not self.reactor.turn():
                return

    def ask(self, asked: Sequence[tuple[AnsweringConnection, bytes]]) -> Cost:
        """Send each connection its bytes, all at the same time, as a reactor would read them."""
        reactor, seconds = self.reactor, time.thread_time
        rests = [(connection, memoryview(data)) for connection, data in asked]
        sent = sum(connection.transport.sent_bytes for connection, _ in asked)
        spans: list[float] = []
        idle = 0
        for _ in range(TURNS_MAX):
            began_s = seconds()
            was_due = reactor.turn()
            left = []
            for connection, data in rests:
                if connection.transport.producerState == "producing" and not connection.is_lost:
                    connection.dataReceived(bytes(data[:READ_BYTES]))
                    data = data[READ_BYTES:]
                if data and not connection.is_lost:
                    left.append((connection, data))
            rests = left
            spans.append(seconds() - began_s)
            if not rests and all(one.is_lost or not (one.unanswered or one.put_off.is_waiting)
                                 for one, _ in asked):
                break
            idle = 0 if was_due or rests else idle + 1
            if idle:
                reactor.rightNow += 0.01
                if idle > IDLE_MAX:
                    break
        is_answered = all(not (one.is_lost or one.unanswered) for one, _ in asked)
        return Cost(
            turn_s=max(spans), all_s=sum(spans), turns=len(spans), is_answered=is_answered,
            sent_bytes=sum(connection.transport.sent_bytes for connection, _ in asked) - sent,
        )

    def turns(self, begin: Callable[[], object]) -> Cost:
        """The turns from one in which C{begin} is called to one in which nothing is due."""
        seconds, spans = time.thread_time, list[float]()
        for number in range(TURNS_MAX):
            began_s = seconds()
            was_due = self.reactor.turn()
            if not number:
                begin()
            spans.append(seconds() - began_s)
            if number and not was_due:
                break
        return Cost(turn_s=max(spans), all_s=sum(spans), turns=len(spans), sent_bytes=0, is_answered=True)


def measured(ask: Callable[[], Cost], times: int = 3) -> Cost:
    """The least of some measurements, and the memory of one more."""
    gc.collect()
    gc.disable()
    try:
        best = min((ask() for _ in range(times)), key=lambda one: one.turn_s)
        tracemalloc.start()
        try:
            ask()
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
    finally:
        gc.enable()
    return attrs.evolve(best, peak_bytes=peak)
