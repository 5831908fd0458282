# -*- test-case-name: tests.protocols.test_budgets -*-
"""
Budgets of bytes that the connections of one process share, so that many connections together cannot hold
more memory than one process may use.
"""

from __future__ import annotations

from protocols.framing import FrameBuffer

MIB = 1024 * 1024

#: Bytes of answers that one connection may hold before its next large answer is made.
HELD_BYTES_MAX = 8 * MIB

#: Bytes of the largest single answer: a PULL, or one entry.
ANSWER_BYTES_MAX = 4 * MIB

#: Default budgets of a process.
ANSWERS_BYTES_MAX = 256 * MIB
UNFINISHED_BYTES_MAX = 64 * MIB

#: Seconds for which a connection may hold answers without reading, while the budget of answers is scarce.
STALL_S = 10.0

#: A connection whose unfinished frame is smaller never ends for want of budget.
SMALL_FRAME_BYTES = 4096

#: Seconds within which a frame must be complete, and the rate in bytes per second that gives it more time: a
#: batch of 1 MiB takes half a minute on a link of 256 kbit/s.
FRAME_S = 30.0
FRAME_RATE = 4096

#: A connection may hold at most this fraction of the free part of the budget of answers.
_SHARE = 8


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

    @ivar answers: bytes of large answers that were made and are not sent yet.
    @ivar unfinished: bytes of frames whose end has not come, on all connections.
    @ivar strangers: the same, on connections that have not identified themselves: a quarter of it.
    """

    def __init__(
        self, *, answers: int = ANSWERS_BYTES_MAX, unfinished: int = UNFINISHED_BYTES_MAX
    ) -> None:
        """@param answers, unfinished: bytes."""
        self.answers = ByteBudget(answers)
        self.unfinished = ByteBudget(unfinished)
        self.strangers = ByteBudget(unfinished // 4)

    def may_answer(self, held: int) -> bool:
        """
        Whether a connection that holds C{held} bytes of answers may be given another large one.

        The less is free, the less may each connection hold; a connection that holds nothing is served as
        long as the largest answer fits twice. So connections that do not read cannot shut out those that do.
        """
        free = self.answers.free
        if held == 0:
            return free >= 2 * ANSWER_BYTES_MAX
        return held < min(HELD_BYTES_MAX, free // _SHARE)


class Account:
    """
    One connection's part of the budgets, and the deadlines that go with it.

    Invariant: C{held_bytes} and C{unfinished_bytes} are this connection's part of its budgets.

    @ivar held_bytes: bytes of large answers that were made since the transport was last known to be drained.
    @ivar unfinished_bytes: bytes of its unfinished frame.
    @ivar is_proven: whether the other end has identified itself: a valid request to this server.
    """

    __slots__ = (
        "_budgets", "_frame_bytes_max", "_held_since_s", "_late_serial", "_late_since_s", "held_bytes",
        "is_proven", "unfinished_bytes",
    )

    def __init__(self, budgets: Budgets, *, stranger_frame_bytes_max: int) -> None:
        """@param stranger_frame_bytes_max: bytes of a native frame before the other end is known."""
        self._budgets = budgets
        self._frame_bytes_max = stranger_frame_bytes_max
        self._held_since_s: float | None = None
        self._late_since_s: float | None = None
        self._late_serial = -1
        self.held_bytes = 0
        self.unfinished_bytes = 0
        self.is_proven = False

    # -- large answers ---------------------------------------------------------------------------

    @property
    def may_answer(self) -> bool:
        """See L{Budgets.may_answer}."""
        return self._budgets.may_answer(self.held_bytes)

    def hold(self, size: int) -> None:
        """An answer of C{size} bytes was made."""
        self.held_bytes += size
        self._budgets.answers.held += size

    def release(self) -> None:
        """All answers have been sent."""
        self._budgets.answers.held -= self.held_bytes
        self.held_bytes = 0
        self._held_since_s = None

    def is_stalled(self, now_s: float) -> bool:
        """Whether it has not read its answers for L{STALL_S} while others need the memory."""
        if not self.held_bytes or not self._budgets.answers.is_scarce:
            self._held_since_s = None
        elif self._held_since_s is None:
            self._held_since_s = now_s
        else:
            return now_s - self._held_since_s >= STALL_S
        return False

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
            self._late_since_s, self._late_serial = now_s, serial
        else:
            return now_s - self._late_since_s >= FRAME_S + buffer.kept_bytes / FRAME_RATE
        return False

    # -- life ------------------------------------------------------------------------------------

    def prove(self) -> None:
        """The other end has identified itself, or this end has asked it: it may send large frames."""
        if not self.is_proven:
            self.is_proven = True
            self._budgets.strangers.held -= self.unfinished_bytes

    def close(self) -> None:
        """The connection has ended: give everything back."""
        self.release()
        self._budgets.unfinished.held -= self.unfinished_bytes
        if not self.is_proven:
            self._budgets.strangers.held -= self.unfinished_bytes
        self.unfinished_bytes = 0
