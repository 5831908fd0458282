# -*- test-case-name: tests.protocols.test_costly_reads -*-
"""The reads of one connection that wait, because a turn was late; see L{protocols.turn}."""

from __future__ import annotations

from collections.abc import Callable

from protocols.turn import Turn

#: Bytes of a read that was put off which one turn handles, and up to which such a read is short: more than a
#: client with one small request at a time sends. A slice of small requests takes about half of a turn's time.
SLICE_BYTES = 8 * 1024
SHORT_READ_BYTES = 4 * 1024


class PutOffReads:
    """
    Invariant: while bytes wait, and are neither held nor must wait, the turn has one call that handles a
    slice of them.

    @param handle: takes the next bytes in order; none: those that it has not cut yet.
    @param uncut: the number of bytes that it has not cut yet.
    @param must_wait: whether no bytes may be handled before L{wake}.
    @param changed: called when bytes begin or cease to wait, or some were handled.
    @param cost_s: seconds that the connection has cost lately.
    @ivar is_waiting: whether bytes wait, or are held; further ones must wait, too.
    """

    def __init__(
        self, turn: Turn, handle: Callable[[bytes], None], *, changed: Callable[[], None],
        cost_s: Callable[[], float], uncut: Callable[[], int], must_wait: Callable[[], bool],
    ) -> None:
        self._turn = turn
        self._uncut = uncut
        self._must_wait = must_wait
        self._handle = handle
        self._changed = changed
        self._cost_s = cost_s
        self._pieces: list[bytes] = []
        self._is_asked = self._sleeps = False
        self.is_held = self.is_waiting = False

    @property
    def waiting_bytes(self) -> int:
        """Bytes that wait."""
        return self._uncut() + sum(map(len, self._pieces))

    @property
    def is_full(self) -> bool:
        """
        Whether further bytes stay with the other end. A short read that waits for the next turn does not fill
        it: to stop reading for one turn costs two system calls, more than to take a little more.
        """
        return self.is_waiting and (
            self.is_held or self._sleeps or self.waiting_bytes > SHORT_READ_BYTES
        )

    def add(self, data: bytes) -> None:
        """Let a read wait."""
        self._pieces.append(data)
        self.go_on()

    def hold(self) -> None:
        """Requests of the present read wait; further bytes must wait after them, until L{release}."""
        self.is_held = self.is_waiting = True
        self._changed()

    def release(self) -> None:
        """No request waits any more."""
        self.is_held = False
        self.go_on()

    def wake(self) -> None:
        """Bytes that had to wait may be handled."""
        if self._sleeps:
            self._sleeps = False
            self.go_on()

    def drop(self) -> None:
        """
        The connection has ended: refer to it no longer, or it would keep its memory until the collector of
        reference cycles comes.
        """
        self._pieces = []
        self.is_waiting = self.is_held
        self._handle = _no_bytes
        self._changed = _nothing
        self._cost_s = _no_cost
        self._uncut = _none
        self._must_wait = _never

    def go_on(self) -> None:
        """Handle the next slice, or what is uncut, in another turn, if there is any."""
        uncut_bytes = self._uncut()
        has_bytes = uncut_bytes > 0 or bool(self._pieces)
        self.is_waiting = self.is_held or has_bytes
        if has_bytes and not (self._is_asked or self.is_held or self._sleeps):
            self._is_asked = True
            is_short = (uncut_bytes or len(self._pieces[0])) <= SHORT_READ_BYTES
            self._turn.put_off(self._handle_slice, self._cost_s(), is_short=is_short)
        self._changed()

    def _handle_slice(self) -> None:
        self._is_asked = False
        if self.is_held:
            return
        if self._must_wait():
            self._sleeps = True
            return
        data = b""
        if not self._uncut():
            data = b"".join(self._pieces)
            # The rest waits while the slice is handled, and is dropped if that ends the connection.
            self._pieces = [data[SLICE_BYTES:]] if len(data) > SLICE_BYTES else []
        self.is_waiting = bool(self._pieces)
        self._handle(data[:SLICE_BYTES])
        self.go_on()


def _no_bytes(_data: bytes) -> None:
    """Instead of the handler of a connection that has ended."""


def _nothing() -> None:
    """Instead of its listener."""


def _no_cost() -> float:
    return 0.0


def _none() -> int:
    return 0


def _never() -> bool:
    return False
