# -*- test-case-name: tests.protocols -*-
"""
What both ends of a framed connection share, whichever protocol speaks on it.

Rule 1: the frames of one read are handed over in one call; the output of a reactor turn is written in one
call.
Rule 2: unanswered requests are bounded: a server stops reading, a client refuses to ask.
Rule 3: when the connection ends, by either side, its owner is informed once, after everything outstanding has
failed.

Rule 4: the memory that a stranger can take is bounded, for one connection and for all of them together
(L{Budgets}): unfinished frames, and answers that are not sent yet.
Rule 5: a read is handled in pieces of bounded cost. Between two of them an end that answers looks at the
clock, and at the bytes of the answers that it has made; what must wait then waits as the bytes that came.

This module starts no timers: owners call C{sweep}.
"""

from __future__ import annotations

import sys
import typing
from collections.abc import Callable, Sequence

from twisted.internet.error import VerifyError
from twisted.internet.interfaces import IPushProducer, ITCPTransport
from twisted.internet.protocol import Protocol, connectionDone
from twisted.python.failure import Failure
from zope.interface import implementer

from protocols import unread
from protocols.budgets import FRAME_S, Account, Budgets
from protocols.outlet import Outlet, read_directly
from protocols.transports import StreamTransport
from protocols.turn import Turn
from protocols.wire.errors import LooseError, WireError
from protocols.wire.framing import Frame, FrameBuffer, FrameError
from protocols.wire.remoting import FRAME_BYTES_MAX, RemotingCommand, decode_command

#: Headers and bodies of one read that may be loose JSON.
LOOSE_PER_READ = 4


class LooseRequests:
    """
    Counts the requests of one connection that are not strict JSON: the tolerant parser is slow, so one read
    may have few of them.

    @ivar left: how many the present read may have; its owner sets it to L{LOOSE_PER_READ} before each.
    """

    __slots__ = ("left",)

    def __init__(self) -> None:
        self.left = LOOSE_PER_READ

    def command(self, frame: bytes) -> RemotingCommand:
        """
        Decode a remoting frame.

        @raise WireError: malformed, or one loose header too many in this read.
        """
        try:
            return decode_command(frame, tolerant_bytes_max=0)
        except LooseError:
            self.use()
            return decode_command(frame)

    def use(self) -> None:
        """@raise LooseError: too many in this read."""
        if not self.left:
            raise LooseError(f"more than {LOOSE_PER_READ} requests of one read are not strict JSON")
        self.left -= 1


#: Seconds without traffic in either direction after which a connection is closed, as in Java.
IDLE_S = 120.0

#: Unanswered requests of one connection at a server, and bytes of their frames. More than the appends that
#: a leader lets wait by default (10,000, as in Java), so that a client above that bound is answered
#: LEADER_PENDING_FULL at once instead of being throttled.
UNANSWERED_MAX = 16384
UNANSWERED_BYTES_MAX = 32 * 1024 * 1024

#: Bytes that may wait for a congested transport.
UNSENT_BYTES_MAX = 32 * 1024 * 1024

#: Answers of one connection are counted when they have this size together, or are sent.
COUNTED_BYTES = 64 * 1024

#: A connection that has cost less lately has cost nothing.
_COSTS_NOTHING_S = 1e-6

#: Bytes that the kernel takes for a connection beyond what the other end receives: its memory is ours, too.
KERNEL_UNSENT_BYTES = 64 * 1024

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


def address_text(peer: object) -> str:
    """An address of Twisted's, for logs."""
    host, port = getattr(peer, "host", None), getattr(peer, "port", None)
    return f"{host}:{port}" if host is not None else str(peer)


@implementer(IPushProducer)
class Connection(Protocol):
    """
    The common part of both ends: frames in, gathered output out, and the time of the last traffic.

    @ivar turn: gathers its output, and puts off its reads.
    @ivar outlet: hands bytes to the transport; None until there is one.
    @ivar is_lost: the connection has ended: output and input are dropped.
    @ivar is_closing: it ends when all output has been sent.
    @ivar is_congested: the transport's buffer is full.
    @ivar spent_s: seconds that its requests have cost lately; a sweep halves them.
    @ivar unsent_bytes: bytes handed to the transport since it was last known to be drained, or measured.
    """

    #: Most frames of one piece of a read.
    _frames_max = sys.maxsize
    #: Bytes that the kernel takes beyond what the other end receives, at most; 0: as it likes.
    _kernel_bytes_max = 0
    _is_answering = False  # whether it is an AnsweringConnection; the next three are used there
    _is_reading = is_waited_for = True
    _made_bytes = 0
    account: Account
    _has_counted = False  # whether bytes of an unfinished frame were counted before

    def __init__(self, turn: Turn, *, frame_bytes_max: int = FRAME_BYTES_MAX, idle_s: float = IDLE_S) -> None:
        self.turn = turn
        self._buffer = FrameBuffer(frame_bytes_max=frame_bytes_max, frames_max=self._frames_max)
        self._idle_s = idle_s
        self._out: list[bytes] = []
        self._was_active = True
        self._was_heard = False
        self._active_s = turn.seconds()
        self._is_flush_asked = self.is_closing = False
        self.outlet: Outlet | None = None
        self.is_lost = self.is_congested = False
        self.spent_s = 0.0
        self.unsent_bytes = 0

    transport: StreamTransport

    @property
    def is_open(self) -> bool:
        """Whether it is connected and not being closed."""
        return not (self.is_lost or self.is_closing or self.outlet is None)

    @property
    def address(self) -> str:
        """The address of the other end, for logs."""
        return address_text(None if self.transport is None else self.transport.getPeer())

    def connectionMade(self) -> None:
        if ITCPTransport.providedBy(self.transport):
            self.transport.setTcpNoDelay(True)
        self.transport.registerProducer(self, True)
        self.outlet = Outlet(self.transport, kernel_bytes_max=self._kernel_bytes_max)
        read_directly(self.transport, self)

    def dataReceived(self, data: bytes) -> None:
        if self.is_lost or self.is_closing:
            return
        self._was_active = self._was_heard = True
        self.spent_s += self.turn.read(self._deal_with, data)

    def _deal_with(self, data: bytes) -> None:
        while True:
            broken: WireError | None = None
            try:
                frames = self._buffer.feed(data)
            except FrameError as error:
                frames, broken = error.frames, error
            if frames:
                # The valid frames before the damage are handled, even if they came in the same read.
                broken = self._frames_received(frames) or broken
            if broken is None and (self._buffer.kept or self._has_counted):
                broken = self._frames_cut()
            if broken is not None:
                if not self.is_lost:
                    self._wire_broken(broken)
                    self.abort(f"broken format: {broken}")
                return
            if not (self._buffer.has_uncut and self._goes_on()):
                return
            data = b""

    def _goes_on(self) -> bool:
        """A piece of a read has been handled. @return: whether the next one is handled now."""
        return not (self.is_lost or self.is_closing)

    def _frames_cut(self) -> WireError | None:
        """There is an unfinished frame, or was one before this read: an end that answers counts its bytes."""
        return None

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        self._lose(loss_sentence(reason))

    def close(self) -> None:
        """End the connection when all output has been sent; further input is dropped."""
        if not (self.is_lost or self.is_closing) and self.transport is not None:
            self._flush()
            self.is_closing = True
            # A transport with a producer would wait for it.
            self.transport.unregisterProducer()
            self.transport.loseConnection()

    def abort(self, reason: str) -> None:
        """End the connection now; unsent output is lost. The owner is informed before this returns."""
        if not self.is_lost and self.transport is not None:
            self._lose(reason)
            self.transport.abortConnection()

    def pauseProducing(self) -> None:
        """See C{IPushProducer}: the transport's buffer is full."""
        self.is_congested = True

    def resumeProducing(self) -> None:
        """See C{IPushProducer}: the transport has sent everything."""
        self.is_congested = False
        self.unsent_bytes = 0
        if not self.is_closing and getattr(self.transport, "disconnecting", False):
            self.is_closing = True
            # Other code called loseConnection; with a registered producer it would never end.
            self.transport.unregisterProducer()

    def stopProducing(self) -> None:
        """See C{IPushProducer}: C{connectionLost} follows."""

    def is_idle(self, now_s: float) -> bool:
        """Whether there was no traffic for the idle time. Must be called regularly."""
        if self._was_active:
            self._was_active = False
            self._active_s = now_s
        return now_s - self._active_s >= self._idle_s

    def write(self, parts: Sequence[bytes]) -> None:
        """Send these bytes when the read is handled, or else when the turn ends; dropped if it is lost."""
        self._out += parts
        if not self._is_flush_asked:
            self._is_flush_asked = True
            self.turn.output(self._flush)

    def _flush(self) -> None:
        self._is_flush_asked = False
        out, self._out = self._out, []
        if self.is_lost or not out:
            return
        if not self.is_congested:
            self.unsent_bytes = 0
        self._was_active = True
        assert self.outlet is not None, "no connection yet"
        self.unsent_bytes += self.outlet.send(*out)
        self._made_bytes = 0
        if self._is_answering and (
            self.is_congested or self.is_waited_for or self.account.held_bytes or self.account.asked_bytes
            or not (self._is_reading and self.outlet.is_drained)
        ):
            self._settle(self.outlet)

    def _settle(self, outlet: Outlet) -> None:
        """Output was written: an end that answers looks whether it goes on reading."""

    def _lose(self, reason: str) -> None:
        if not self.is_lost:
            self.is_lost = True
            self._out = []
            if self.outlet is not None:
                self.outlet.drop()
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

    Subclasses count requests and answers, and call C{regulate} after each piece of a read. Their answers are
    counted here. An owner that answers later asks C{may_answer} before it makes a large answer.

    @ivar account: the connection's part of the memory that the process may use.
    @ivar put_off: its reads that wait for a later turn; an owner that puts requests off holds them.
    @ivar is_waited_for: an owner, or C{put_off}, waits until the connection is no longer clogged.
    @ivar unanswered: number of unanswered requests.
    @ivar unanswered_bytes: memory that they hold, approximately.
    """

    #: Owner of the connection; this class calls its C{drained} and C{wire_broken}.
    _sink: _Owner
    _is_answering = True

    #: Bytes of a native frame before the other end has identified itself.
    _stranger_frame_bytes_max: int = FRAME_BYTES_MAX
    _kernel_bytes_max = KERNEL_UNSENT_BYTES

    def __init__(
        self, turn: Turn, *, unanswered_max: int, unanswered_bytes_max: int, frame_bytes_max: int,
        idle_s: float, budgets: Budgets | None = None,
    ) -> None:
        super().__init__(turn, frame_bytes_max=frame_bytes_max, idle_s=idle_s)
        self._unanswered_max = unanswered_max
        self._unanswered_bytes_max = unanswered_bytes_max
        #: Up to these nothing is to be counted, or to be stopped.
        self._few = min(unread.FEW, unanswered_max - 1)
        self._few_bytes = min(unread.FEW_BYTES, unanswered_bytes_max - 1)
        self._is_reading = True
        self._has_heard = False
        self._made_bytes = 0
        self._is_at_rest = False
        self.is_waited_for = False
        self.put_off = unread.put_off_reads(self, turn, self._go_on, self._buffer)
        self._loose = LooseRequests()
        self.account = Account(
            budgets if budgets is not None else Budgets(),
            stranger_frame_bytes_max=self._stranger_frame_bytes_max,
        )
        self.unanswered = self.unanswered_bytes = 0

    @property
    def is_urgent(self) -> bool:
        """Whether its reads are handled even when a turn has taken long."""
        return False

    def dataReceived(self, data: bytes) -> None:
        """
        See C{Protocol.dataReceived}. When this turn has taken long, later ones handle the read, a long one
        slice by slice: reads of connections that have cost little time lately come first.
        """
        if self.is_lost or self.is_closing:
            return
        self._was_active = self._was_heard = self._has_heard = True
        if self.put_off.is_waiting or (self.turn.is_late and not self.is_urgent):
            self.put_off.add(data)
        else:
            self._loose.left = LOOSE_PER_READ
            self.spent_s += self.turn.read(self._deal_with, data)

    def _go_on(self, data: bytes) -> None:
        """Handle the next slice of what was put off; none: the rest of the last one."""
        if data:
            self._loose.left = LOOSE_PER_READ
        super().dataReceived(data)

    def _goes_on(self) -> bool:
        return super()._goes_on() and unread.goes_on(self, self.turn)

    @property
    def is_clogged(self) -> bool:
        """Whether it holds too many answers: its further requests wait until it has read some."""
        return self.is_congested or not self.account.may_serve

    @property
    def may_answer(self) -> bool:
        """See L{unread.may_answer}."""
        return unread.may_answer(self)

    def write(self, parts: Sequence[bytes]) -> None:
        self._out += parts
        if not self._is_flush_asked:
            self._is_flush_asked = True
            self.turn.output(self._flush)
        self._made_bytes += sum(map(len, parts))
        if self._made_bytes >= COUNTED_BYTES and not self.is_lost:
            self.account.hold(self._made_bytes)
            self.turn.made(self._made_bytes)
            self._made_bytes = 0

    def unclogged(self) -> None:
        """See L{unread.Answering}."""
        self._sink.drained(self)

    def resumeProducing(self) -> None:
        super().resumeProducing()
        if not self.is_lost:
            self.is_waited_for = True
            if not self._out and self.outlet is not None:
                unread.count_unsent(self, self.outlet)
            self.regulate()

    def pauseProducing(self) -> None:
        """See C{IPushProducer}: a peer that does not read answers may not ask further."""
        super().pauseProducing()
        self.regulate()

    def sweep(self, now_s: float) -> None:
        """Abort the connection if it is idle, or a frame or reading is late. Called regularly."""
        if self._is_at_rest and not (self._was_active or self.is_waited_for or self.account.held_bytes):
            if now_s - self._active_s >= self._idle_s:
                self.abort(f"idle for {self._idle_s:g} s")
            return
        self._is_at_rest = self._has_nothing
        self.spent_s /= 2
        self.regulate()  # others may have left room for its requests
        if self.is_idle(now_s):
            self.abort(f"idle for {self._idle_s:g} s")
        elif self.account.is_late(self._buffer, now_s, is_reading=self._is_reading):
            self.abort(f"a frame was not complete within {FRAME_S:g} s, and came slowly")
        elif self.outlet is not None and (self.account.held_bytes or self.is_waited_for):
            if not self._out:
                unread.count_unsent(self, self.outlet)
            if not self.is_lost:
                unread.sweep(self, self.outlet, now_s)

    @property
    def _has_nothing(self) -> bool:
        """Whether nothing is under way on it: until something is, only the time counts."""
        return not (
            self._was_active or self.unanswered or self.account.held_bytes or self._buffer.kept
            or self.is_waited_for or self.is_congested or self.put_off.is_waiting
        ) and self._is_reading and self.spent_s < _COSTS_NOTHING_S

    def _settle(self, outlet: Outlet) -> None:
        if self.is_congested or self.account.held_bytes or self.is_waited_for or not outlet.is_drained:
            unread.count_unsent(self, outlet)
        if self.is_congested or not self._is_reading or self.account.asked_bytes:
            self.regulate()

    def _frames_cut(self) -> WireError | None:
        if self.is_lost:
            return None
        refused = self.account.count_unfinished(self._buffer)
        self._has_counted = self.account.unfinished_bytes > 0
        return None if refused is None else WireError(refused)

    def _lose(self, reason: str) -> None:
        if not self.is_lost:
            self.account.close()
            self.put_off.drop()
            self._buffer.drop()
        super()._lose(reason)

    def regulate(self) -> None:
        """Read, or do not read, as the requests that wait demand."""
        size = self.unanswered_bytes
        is_counted = self.account.asked_bytes or self.unanswered > unread.FEW or size > unread.FEW_BYTES
        # While nothing was read, TLS may wait for the other end, and is congested until then.
        wanted = not (
            (self.is_congested and self._has_heard) or (self.put_off.is_waiting and self.put_off.is_full)
            or (is_counted and unread.owes_much(self))
            or self.unanswered >= self._unanswered_max or size >= self._unanswered_bytes_max
        )
        if wanted != self._is_reading and not (self.is_lost or self.is_closing):
            self._is_reading = wanted
            (self.transport.resumeProducing if wanted else self.transport.pauseProducing)()

    def _wire_broken(self, error: WireError) -> None:
        self._sink.wire_broken(self, error)
