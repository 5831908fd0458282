# -*- test-case-name: tests.protocols.test_connection,tests.protocols.test_budgets -*-
"""
What both ends of a framed connection share, whichever protocol speaks on it.

Rule 1: the frames of one read are handed over in one call; the output of a reactor turn is written in one
call.
Rule 2: unanswered requests are bounded: a server stops reading, a client refuses to ask.
Rule 3: when the connection ends, by either side, its owner is told once, after everything outstanding has
failed.

Rule 4: the memory that a stranger can take is bounded, for one connection and for all of them together
(L{Budgets}): unfinished frames, and large answers that are not sent yet.

This module starts no timers: owners call C{sweep}.
"""

from __future__ import annotations

import typing
from collections.abc import Callable, Sequence

from twisted.internet.error import VerifyError
from twisted.internet.interfaces import IPushProducer, ITCPTransport
from twisted.internet.protocol import Protocol, connectionDone
from twisted.python.failure import Failure
from zope.interface import implementer

from protocols.budgets import FRAME_S, STALL_S, Account, Budgets
from protocols.framing import Frame, FrameBuffer, FrameError
from protocols.outlet import Outlet, read_directly
from protocols.put_off import PutOffReads
from protocols.transports import StreamTransport
from protocols.turn import Turn
from protocols.wire.errors import LooseError, WireError
from protocols.wire.remoting import FRAME_BYTES_MAX, RemotingCommand, decode_command

#: Seconds without traffic in either direction after which a connection is closed, as in Java.
IDLE_S = 120.0

#: Unanswered requests of one connection at a server, and bytes of their frames. More than the appends that
#: a leader lets wait by default (10,000, as in Java), so that a client above that bound is answered
#: LEADER_PENDING_FULL at once instead of being throttled.
UNANSWERED_MAX = 16384
UNANSWERED_BYTES_MAX = 32 * 1024 * 1024

#: Bytes that may wait for a congested transport.
UNSENT_BYTES_MAX = 32 * 1024 * 1024

#: Headers and bodies of one read that may be loose JSON: the tolerant parser is slow.
LOOSE_PER_READ = 4

#: Largest native frame to a member from a connection that has not identified itself; our clients begin
#: with METADATA. Other frames may be larger, as the first frame of a Java client can be an append. All
#: their unfinished frames share L{Budgets.strangers}.
STRANGER_FRAME_BYTES_MAX = 64 * 1024


#: How L{loss_sentence} begins when TLS is the reason.
TLS_LOSS = "TLS: "


def loss_sentence(reason: Failure) -> str:
    """Why a connection ended, in one line; of OpenSSL's errors only the reasons."""
    error = reason.value
    assert error is not None
    kind = f"{type(error).__module__}.{type(error).__qualname__}"
    if kind == "OpenSSL.SSL.Error":
        queue = error.args[0] if error.args else ()
        reasons = [str(entry[-1]) for entry in queue if isinstance(entry, tuple) and entry]
        return f"{TLS_LOSS}{', '.join(reasons) or 'handshake failed'}"
    if isinstance(error, VerifyError):
        return f"{TLS_LOSS}the certificate at the other end is of another name: {error.args[0]}"
    return reason.getErrorMessage()


@implementer(IPushProducer)
class Connection(Protocol):
    """
    The common part of both ends: frames in, gathered output out, and the time of the last traffic.

    @ivar is_lost: the connection has ended: output and input are dropped.
    @ivar is_congested: the transport's buffer is full.
    @ivar spent_s: seconds that its requests have cost lately; a sweep halves them.
    @ivar unsent_bytes: bytes handed to the transport since it was last known to be drained, or measured.
    """

    def __init__(self, turn: Turn, *, frame_bytes_max: int = FRAME_BYTES_MAX, idle_s: float = IDLE_S) -> None:
        self._turn = turn
        self._buffer = FrameBuffer(frame_bytes_max=frame_bytes_max)
        self._idle_s = idle_s
        self._out: list[bytes] = []
        self._is_flush_asked = False
        self._was_active = True
        self._was_heard = False
        self._active_s = turn.seconds()
        self._is_closing = False
        self.spent_s = 0.0
        self._outlet: Outlet | None = None
        self.is_lost = False
        self.is_congested = False
        self.unsent_bytes = 0

    transport: StreamTransport

    @property
    def is_open(self) -> bool:
        """Whether it is connected and not being closed."""
        return not (self.is_lost or self._is_closing or self._outlet is None)

    @property
    def address(self) -> str:
        """The address of the other end, for logs."""
        peer = self.transport.getPeer() if self.transport is not None else None
        host, port = getattr(peer, "host", None), getattr(peer, "port", None)
        return f"{host}:{port}" if host is not None else str(peer)

    def connectionMade(self) -> None:
        """See L{Protocol.connectionMade}."""
        if ITCPTransport.providedBy(self.transport):
            self.transport.setTcpNoDelay(True)
        self.transport.registerProducer(self, True)
        self._outlet = Outlet(self.transport)
        read_directly(self.transport, self)

    def dataReceived(self, data: bytes) -> None:
        """See L{Protocol.dataReceived}."""
        if self.is_lost or self._is_closing:
            return
        self._was_active = self._was_heard = True
        self.spent_s += self._turn.read(self._deal_with, data)

    def _deal_with(self, data: bytes) -> None:
        broken: WireError | None = None
        try:
            frames = self._buffer.feed(data)
        except FrameError as error:
            frames, broken = error.frames, error
        if frames:
            # The valid frames before the damage are handled, even if they came in the same read.
            broken = self._frames_received(frames) or broken
        if broken is None:
            broken = self._frames_cut()
        if broken is not None and not self.is_lost:
            self._wire_broken(broken)
            self.abort(f"broken format: {broken}")

    def _frames_cut(self) -> WireError | None:
        """A read has been handled; an end that answers counts the bytes of the unfinished frame."""
        return None

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        """See L{Protocol.connectionLost}."""
        self._lose(loss_sentence(reason))

    def close(self) -> None:
        """End the connection when all output has been sent; further input is dropped."""
        if not (self.is_lost or self._is_closing) and self.transport is not None:
            self._flush()
            self._is_closing = True
            # A transport with a producer would wait for it.
            self.transport.unregisterProducer()
            self.transport.loseConnection()

    def abort(self, reason: str) -> None:
        """End the connection now; unsent output is lost. The owner is told before this returns."""
        if not self.is_lost and self.transport is not None:
            self._lose(reason)
            self.transport.abortConnection()

    def pauseProducing(self) -> None:
        """See L{IPushProducer}: the transport's buffer is full."""
        self.is_congested = True

    def resumeProducing(self) -> None:
        """See L{IPushProducer}: the transport has sent everything."""
        self.is_congested = False
        self.unsent_bytes = 0
        if not self._is_closing and getattr(self.transport, "disconnecting", False):
            self._is_closing = True
            # Other code called loseConnection; with a registered producer it would never end.
            self.transport.unregisterProducer()

    def stopProducing(self) -> None:
        """See L{IPushProducer}: C{connectionLost} follows."""

    def is_idle(self, now_s: float) -> bool:
        """Whether there was no traffic for the idle time. Must be called regularly."""
        if self._was_active:
            self._was_active = False
            self._active_s = now_s
        return now_s - self._active_s >= self._idle_s

    def _write(self, parts: Sequence[bytes]) -> None:
        self._out += parts
        if not self._is_flush_asked:
            self._is_flush_asked = True
            self._turn.output(self._flush)

    def _flush(self) -> None:
        self._is_flush_asked = False
        out, self._out = self._out, []
        if self.is_lost or not out:
            return
        if not self.is_congested:
            self.unsent_bytes = 0
        self._was_active = True
        assert self._outlet is not None, "no connection yet"
        self.unsent_bytes += self._outlet.send(*out)

    def _lose(self, reason: str) -> None:
        if not self.is_lost:
            self.is_lost = True
            self._out.clear()
            self._ended(reason)

    def _frames_received(self, frames: list[Frame]) -> WireError | None:
        raise NotImplementedError

    def _wire_broken(self, error: WireError) -> None:
        raise NotImplementedError

    def _ended(self, reason: str) -> None:
        raise NotImplementedError


class _Owner(typing.Protocol):
    """What an L{AnsweringConnection} calls of its owner, each with the connection first."""

    @property
    def drained(self) -> Callable[..., None]:
        """The transport has sent everything."""

    @property
    def wire_broken(self) -> Callable[..., None]:
        """The other end has broken the format; the second argument is the error."""


class AnsweringConnection(Connection):
    """
    An end that answers. It stops reading while too many requests are unanswered, or while the other end
    does not read the answers.

    Subclasses count requests and answers, and call C{_regulate} after each read. Code that makes large
    answers asks C{may_answer} before, and tells C{account.hold} after each.

    @ivar account: the connection's part of the memory that the process may use.
    @ivar put_off: its reads that wait for a later turn; an owner that puts requests off holds them.
    @ivar unanswered: number of unanswered requests.
    @ivar unanswered_bytes: memory that they hold, approximately.
    """

    #: Owner of the connection; this class calls its C{drained} and C{wire_broken}.
    _sink: _Owner

    #: Bytes of a native frame before the other end has identified itself.
    _stranger_frame_bytes_max: int = FRAME_BYTES_MAX

    def __init__(
        self, turn: Turn, *, unanswered_max: int, unanswered_bytes_max: int, frame_bytes_max: int,
        idle_s: float, budgets: Budgets | None = None,
    ) -> None:
        super().__init__(turn, frame_bytes_max=frame_bytes_max, idle_s=idle_s)
        self._unanswered_max = unanswered_max
        self._unanswered_bytes_max = unanswered_bytes_max
        self._is_reading, self._has_heard = True, False
        self.put_off = PutOffReads(
            turn, super().dataReceived, changed=self._regulate, cost_s=lambda: self.spent_s
        )
        self._loose_left = LOOSE_PER_READ
        self.account = Account(
            budgets if budgets is not None else Budgets(),
            stranger_frame_bytes_max=self._stranger_frame_bytes_max,
        )
        self.unanswered = 0
        self.unanswered_bytes = 0

    @property
    def is_urgent(self) -> bool:
        """Whether its reads are handled even when a turn has taken long."""
        return False

    def dataReceived(self, data: bytes) -> None:
        """
        See L{Protocol.dataReceived}. When this turn has taken long, later ones handle the read, a long one
        slice by slice: reads of connections that have cost little time lately come first.
        """
        self._has_heard = True
        if self.put_off.is_waiting or (self._turn.is_late and not self.is_urgent):
            self.put_off.add(data)
        else:
            super().dataReceived(data)

    def _command(self, frame: bytes) -> RemotingCommand:
        """
        Decode a remoting frame.

        @raise WireError: malformed, or one loose header too many in this read.
        """
        try:
            return decode_command(frame, tolerant_bytes_max=0)
        except LooseError:
            self._use_loose()
            return decode_command(frame)

    def _use_loose(self) -> None:
        """@raise LooseError: too many in this read."""
        if not self._loose_left:
            raise LooseError(f"more than {LOOSE_PER_READ} requests of one read are not strict JSON")
        self._loose_left -= 1

    @property
    def may_answer(self) -> bool:
        """Whether another large answer may be made now; if not, C{drained} of the owner follows."""
        return not self.is_congested and self.account.may_answer

    def resumeProducing(self) -> None:
        """See L{IPushProducer}."""
        super().resumeProducing()
        if not self.is_lost:
            self.account.release()
            self._sink.drained(self)
            self._regulate()

    def pauseProducing(self) -> None:
        """See L{IPushProducer}: a peer that does not read answers may not ask further."""
        super().pauseProducing()
        self._regulate()

    def sweep(self, now_s: float) -> None:
        """
        Abort the connection if it is idle, if a frame is not complete in time, or if it does not read its
        answers while others need the memory. Called regularly.
        """
        self.spent_s /= 2
        if self.is_idle(now_s):
            self.abort(f"idle for {self._idle_s:g} s")
        elif self.account.is_late(self._buffer, now_s, is_reading=self._is_reading):
            self.abort(f"a frame was not complete within {FRAME_S:g} s, and came slowly")
        elif self.account.is_stalled(now_s):
            self.abort(f"{self.account.held_bytes} bytes of answers were not read within {STALL_S:g} s")

    def _flush(self) -> None:
        super()._flush()
        if not self.is_lost:
            if self.account.held_bytes and not self.is_congested:
                self.account.release()
            if self.is_congested or not self._is_reading:
                self._regulate()

    def _frames_cut(self) -> WireError | None:
        self._loose_left = LOOSE_PER_READ
        if self.is_lost or self._buffer.kept_bytes == self.account.unfinished_bytes:
            return None
        refused = self.account.count_unfinished(self._buffer)
        return None if refused is None else WireError(refused)

    def _lose(self, reason: str) -> None:
        if not self.is_lost:
            self.account.close()
            self.put_off.drop()
        super()._lose(reason)

    def _regulate(self) -> None:
        # While nothing was read, TLS may wait for the other end, and is congested until then.
        wanted = not (
            (self.is_congested and self._has_heard) or self.put_off.is_waiting
            or self.unanswered >= self._unanswered_max
            or self.unanswered_bytes >= self._unanswered_bytes_max
        )
        if wanted != self._is_reading and not (self.is_lost or self._is_closing):
            self._is_reading = wanted
            change = self.transport.resumeProducing if wanted else self.transport.pauseProducing
            change()

    def _wire_broken(self, error: WireError) -> None:
        self._sink.wire_broken(self, error)
