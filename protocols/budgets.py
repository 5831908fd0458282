# -*- test-case-name: tests.protocols.test_budgets -*-
"""
Budgets of bytes that the connections of one process share, so that many connections together cannot hold
more memory than one process may use.

The account of a connection counts all its answers, of every size: the connection reports each output to it,
and what its transport has not sent yet. No handler of requests has to.
"""

from __future__ import annotations

from protocols.wire.framing import FrameBuffer

MIB = 1024 * 1024

#: Bytes of answers that one connection may hold before its next request is handled.
HELD_BYTES_MAX = 8 * MIB

#: A connection that holds more ends: its answers came later than their requests were handled, all at once.
BEYOND_BYTES = 32 * MIB

#: Bytes of the largest single answer: a PULL, or one entry.
ANSWER_BYTES_MAX = 4 * MIB

#: Default budgets of a process.
ANSWERS_BYTES_MAX = 48 * MIB
UNFINISHED_BYTES_MAX = 64 * MIB

#: Bytes of requests without an answer that all connections may hold together, with L{REQUEST_BYTES} for each,
#: and that one may hold in any case: a window of some hundred small requests.
ASKED_BYTES_MAX = 256 * MIB
ASKED_SHARE_BYTES = 256 * 1024

#: Memory of a request without an answer, besides its own bytes.
REQUEST_BYTES = 512

#: Seconds for which a connection may hold answers without reading any; while the budget of answers is scarce,
#: without reading all; and without reading any, while no further large answer has room.
UNREAD_S = 60.0
STALL_S = 10.0
EXHAUSTED_S = 2.0

#: A connection whose unfinished frame is smaller never ends for want of budget.
SMALL_FRAME_BYTES = 4096

#: Seconds within which a frame must be complete, and the rate in bytes per second that gives it more time: a
#: batch of 1 MiB takes half a minute on a link of 256 kbit/s.
FRAME_S = 30.0
FRAME_RATE = 4096

#: A connection may hold at most this fraction of the free part of the budget of answers.
_SHARE = 6


class ByteBudget:
    """
    A number of bytes that is shared.

    @ivar bytes_max: the budget.
    @ivar held: bytes in use; may exceed C{bytes_max} by the last piece that each connection took.
    """

    __slots__ = ("bytes_max", "held")

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.held = 0

    @property
    def free(self) -> int:
        """Bytes that are not in use, at least 0."""
        return max(self.bytes_max - self.held, 0)

    @property
    def is_scarce(self) -> bool:
        """Whether less than half of it is free."""
        return 2 * self.held > self.bytes_max


class Budgets:
    """
    The budgets of one process.

    @ivar answers: bytes of answers that were made, or will be, and are not sent yet.
    @ivar unfinished: bytes of frames whose end has not come, on all connections.
    @ivar strangers: the same, on connections that have not identified themselves: a quarter of it.
    @ivar waiting: bytes of whole requests that wait, half of it; connections that read may exceed it.
    @ivar asked: memory of requests that were handed over, and are not answered yet.
    """

    def __init__(
        self, *, answers: int = ANSWERS_BYTES_MAX, unfinished: int = UNFINISHED_BYTES_MAX,
        asked: int = ASKED_BYTES_MAX,
    ) -> None:
        """@param answers, unfinished, asked: bytes."""
        self.asked = ByteBudget(asked)
        self.answers = ByteBudget(answers)
        self.unfinished = ByteBudget(unfinished)
        self.strangers = ByteBudget(unfinished // 4)
        self.waiting = ByteBudget(unfinished // 2)

    def limit(self, *, answers: int, unfinished: int) -> None:
        """Other budgets from now on; what is held beyond them stays until it is given back."""
        self.answers.bytes_max = answers
        self.unfinished.bytes_max = unfinished
        self.strangers.bytes_max = unfinished // 4
        self.waiting.bytes_max = unfinished // 2

    @property
    def is_exhausted(self) -> bool:
        """Whether the largest answer does not fit twice."""
        return self.answers.free < 2 * ANSWER_BYTES_MAX

    def may_serve(self, held: int) -> bool:
        """
        Whether a request with a small answer is handled for a connection that holds C{held} bytes of answers.

        The less is free, the less may each connection hold; one that has read everything is always served.
        So connections that do not read cannot shut out those that do.
        """
        return held == 0 or held < min(HELD_BYTES_MAX, self.answers.free // _SHARE)

    def may_answer(self, held: int) -> bool:
        """As L{may_serve}, for an answer that may be large: it must have room."""
        return self.may_serve(held) and not self.is_exhausted


class Account:
    """
    One connection's part of the budgets, and the deadlines that go with it.

    Invariant: C{held_bytes} and C{unfinished_bytes} are this connection's part of its budgets.

    Implements L{Budgets}.

    @ivar held_bytes: bytes of answers that are not sent, and of those that are reserved.
    @ivar unfinished_bytes: bytes of its unfinished frame.
    @ivar waiting_bytes: bytes of its requests that wait.
    @ivar asked_bytes: memory of its requests without an answer.
    @ivar is_proven: whether the other end has identified itself: a valid request to this server.
    """

    __slots__ = (
        "_budgets", "_frame_bytes_max", "_is_closed", "_late_serial", "_late_since_s", "_moved_s",
        "_reserved", "_scarce_s", "_sent_bytes", "asked_bytes", "held_bytes", "is_proven",
        "unfinished_bytes", "waiting_bytes",
    )

    def __init__(self, budgets: Budgets, *, stranger_frame_bytes_max: int) -> None:
        """@param stranger_frame_bytes_max: bytes of a native frame before the other end is known."""
        self._budgets = budgets
        self._frame_bytes_max = stranger_frame_bytes_max
        self._moved_s: float | None = None
        self._scarce_s: float | None = None
        self._sent_bytes = self._reserved = 0
        self._is_closed = False
        self._late_since_s: float | None = None
        self._late_serial = -1
        self.held_bytes = 0
        self.unfinished_bytes = self.waiting_bytes = self.asked_bytes = 0
        self.is_proven = False

    # -- answers ---------------------------------------------------------------------------------

    @property
    def may_serve(self) -> bool:
        return self._budgets.may_serve(self.held_bytes)

    @property
    def may_answer(self) -> bool:
        return self._budgets.may_answer(self.held_bytes)

    def hold(self, size: int) -> None:
        """Answers of C{size} bytes were made."""
        self.held_bytes += size
        self._budgets.answers.held += size

    def settle(self, unsent_bytes: int) -> None:
        """All answers are with the transport, which has not sent C{unsent_bytes} of them yet."""
        self.hold(unsent_bytes + self._reserved - self.held_bytes)

    def reserve(self, size: int) -> None:
        """An answer of C{size} bytes, whose content is held already, will be made later."""
        if not self._is_closed:
            self._reserved += size
            self.hold(size)

    def unreserve(self, size: int) -> None:
        """It is about to be made now, or never."""
        if not self._is_closed:
            self._reserved -= size
            self.hold(-size)

    def is_stalled(self, now_s: float, sent_bytes: int) -> bool:
        """
        Whether it has not read its answers for longer than it may: L{UNREAD_S} and the other times there.

        @param sent_bytes: what its transport has sent so far.
        """
        budgets = self._budgets
        if self.held_bytes <= self._reserved:
            self._moved_s = self._scarce_s = None
            return False
        if not budgets.answers.is_scarce:
            self._scarce_s = None
        elif self._scarce_s is None:
            self._scarce_s = now_s
        if self._moved_s is None or sent_bytes != self._sent_bytes:
            self._moved_s = now_s
            self._sent_bytes = sent_bytes
        stood_s = now_s - self._moved_s
        is_exhausted = budgets.is_exhausted and stood_s >= EXHAUSTED_S
        is_scarce = self._scarce_s is not None and now_s - self._scarce_s >= STALL_S
        return stood_s >= UNREAD_S or is_scarce or is_exhausted

    # -- unfinished frames -----------------------------------------------------------------------

    def count_unfinished(self, buffer: FrameBuffer) -> str | None:
        """
        Count the bytes of the unfinished frame.

        @return: the reason why the connection must end, if it must.
        """
        kept = buffer.kept_bytes
        more = kept - self.unfinished_bytes
        self.unfinished_bytes = kept
        budget, whose = self._budgets.unfinished, "connections"
        budget.held += more
        if not self.is_proven:
            budget, whose = self._budgets.strangers, "connections without a valid request"
            budget.held += more
            size = buffer.unfinished_bytes
            if size > self._frame_bytes_max and buffer.is_native:
                return (
                    f"native frame of {size} bytes before any valid request: "
                    f"at most {self._frame_bytes_max} are allowed until then"
                )
        if more > 0 and budget.held > budget.bytes_max and kept > SMALL_FRAME_BYTES:
            return (
                f"unfinished frames of all {whose} hold {budget.held} bytes, "
                f"at most {budget.bytes_max} are allowed"
            )
        return None

    def is_late(self, buffer: FrameBuffer, now_s: float, *, is_reading: bool) -> bool:
        """Whether a frame comes more slowly than L{FRAME_RATE} after L{FRAME_S}, in which this end read."""
        serial = buffer.unfinished_serial
        if not (buffer.kept_bytes and is_reading):
            self._late_since_s = None
        elif self._late_since_s is None or self._late_serial != serial:
            self._late_since_s = now_s
            self._late_serial = serial
        else:
            return now_s - self._late_since_s >= FRAME_S + buffer.kept_bytes / FRAME_RATE
        return False

    def count_waiting(self, size: int) -> str | None:
        """
        Count the bytes of requests that have come, and wait until others are answered.

        @return: the reason why the connection must end if it does not read its answers.
        """
        budget = self._budgets.waiting
        budget.held += size - self.waiting_bytes
        more, self.waiting_bytes = size - self.waiting_bytes, size
        if more > 0 and budget.held > budget.bytes_max and size > SMALL_FRAME_BYTES:
            return (
                f"requests after unread answers hold {budget.held} bytes, at most {budget.bytes_max} are "
                "allowed: read the answers"
            )
        return None

    def may_ask(self, requests: int, size: int) -> bool:
        """
        Count the requests without an answer.

        @param requests: their number. @param size: their bytes.
        @return: whether further ones are read; if not, the other end waits until some are answered.
        """
        asked = 0 if self._is_closed else size + requests * REQUEST_BYTES
        budget = self._budgets.asked
        budget.held += asked - self.asked_bytes
        self.asked_bytes = asked
        return asked <= ASKED_SHARE_BYTES or budget.held <= budget.bytes_max

    # -- life ------------------------------------------------------------------------------------

    def prove(self) -> None:
        """The other end has identified itself, or this end has asked it: it may send large frames."""
        if not self.is_proven:
            self.is_proven = True
            self._budgets.strangers.held -= self.unfinished_bytes

    def close(self) -> None:
        """The connection has ended: give everything back."""
        self._is_closed = True
        self.hold(-self.held_bytes)
        self.count_waiting(0)
        self.may_ask(0, 0)
        self._budgets.unfinished.held -= self.unfinished_bytes
        if not self.is_proven:
            self._budgets.strangers.held -= self.unfinished_bytes
        self.unfinished_bytes = 0
