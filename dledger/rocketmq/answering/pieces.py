# -*- test-case-name: tests.base.commands.test_pieces -*-
"""
Requests that take longer than one reactor turn may: their handlers are generators, which yield after each
piece of at most a millisecond or so.

Rule 1: the pieces of all such requests take turns with the other reads (L{protocols.turn}), those of clients
that have cost least first. The further requests of a connection wait until its long one is answered.
Rule 2: one request at a time may be large: of those that have taken longer than L{LARGE_S} one goes on to
its end, the others wait, and hold little more memory together than one alone. The next one is of the host
whose last large ones cost least, so a host that repeats them delays the others by one of them.
Rule 3: a generator is closed when its connection ends; a C{finally} gives back its reservations.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, TypeAlias, TypeVar

import attrs

from dledger.values.hosts import end_host, shared_address

if TYPE_CHECKING:  # tables, whose rows come in pieces, are also read by programs without Twisted
    from protocols.rocketmq.commands import CommandConnection
    from protocols.turn import Turn
    from protocols.wire.remoting import RemotingCommand

_T = TypeVar("_T")

#: Work in pieces, with a result.
Pieces: TypeAlias = Generator[None, None, _T]

#: Seconds of work after which a request is large.
LARGE_S = 0.02
#: Large requests whose costs are remembered.
LARGE_REMEMBERED = 64
#: Items of a table in one piece: a thousand texts are quoted in less than half of a millisecond.
ITEMS_A_PIECE = 500


def at_once(pieces: Pieces[_T]) -> _T:
    """The result of work that need not be done in pieces: at a start, or because it is known to be small."""
    while True:
        try:
            next(pieces)
        except StopIteration as ended:
            result: _T = ended.value
            return result


@attrs.define(eq=False)
class _Long:
    """A request under way. @ivar spent_s: seconds that it has taken."""

    connection: CommandConnection
    request: RemotingCommand
    pieces: Pieces[None]
    spent_s: float = 0.0

    @property
    def host(self) -> str:
        """Of the client."""
        return shared_address(end_host(self.connection.transport.getPeer()))


class LongRequests:
    """
    Those of one server.

    Invariant: each one is in C{_of}, and is the one that runs, or in a call of the turn, or in C{_waiting}.
    """

    def __init__(
        self, turn: Turn, *, ended: Callable[[CommandConnection], None],
        failed: Callable[[CommandConnection, RemotingCommand, Exception], None],
    ) -> None:
        """
        @param ended: called when the long request of a connection is over.
        @param failed: called before that with the exception of its handler.
        """
        self._turn = turn
        self._ended = ended
        self._failed = failed
        self._of: dict[CommandConnection, _Long] = {}
        self._large: _Long | None = None
        self._waiting: deque[_Long] = deque()
        # Hosts of the last large ones, and the seconds of each.
        self._done: deque[tuple[str, float]] = deque(maxlen=LARGE_REMEMBERED)

    def __contains__(self, connection: CommandConnection) -> bool:
        """Whether a connection has one."""
        return connection in self._of

    def begin(self, connection: CommandConnection, request: RemotingCommand, pieces: Pieces[None]) -> None:
        """Handle a request as far as this turn allows; called while a read is handled."""
        long = self._of[connection] = _Long(connection, request, pieces)
        if self._run(long):
            del self._of[connection]

    def lost(self, connection: CommandConnection) -> None:
        """A connection has ended."""
        long = self._of.pop(connection, None)
        if long is not None:
            long.pieces.close()
            if long is self._large:
                self._next_large()
            elif long in self._waiting:
                self._waiting.remove(long)

    def _run(self, long: _Long) -> bool:
        """@return: whether it has ended; if not, it goes on in another turn."""
        seconds, turn = self._turn.seconds, self._turn
        began_s = seconds()
        try:
            next(long.pieces)
            while not turn.is_over:
                next(long.pieces)
        except StopIteration:
            return True
        except Exception as error:
            self._failed(long.connection, long.request, error)
            return True
        long.spent_s += seconds() - began_s
        if long.spent_s < LARGE_S or long is self._large:
            self._later(long)
        elif self._large is None:
            self._large = long
            self._later(long)
        else:
            self._waiting.append(long)
        return False

    def _later(self, long: _Long) -> None:
        connection = long.connection
        self._turn.put_off(lambda: self._go_on(long), connection.spent_s, is_short=False)

    def _go_on(self, long: _Long) -> None:
        connection = long.connection
        if self._of.get(connection) is not long:
            return  # the connection has ended
        is_over = False

        def run(_: bytes) -> None:
            nonlocal is_over
            is_over = self._run(long)

        connection.spent_s += self._turn.read(run, b"")
        if is_over and self._of.get(connection) is long:
            del self._of[connection]
            if long is self._large:
                self._next_large()
            self._ended(connection)

    def _next_large(self) -> None:
        assert self._large is not None
        self._done.append((self._large.host, self._large.spent_s))
        self._large = None
        if self._waiting:
            spent_s: dict[str, float] = {}
            for host, seconds in self._done:
                spent_s[host] = spent_s.get(host, 0.0) + seconds
            self._large = min(self._waiting, key=lambda one: spent_s.get(one.host, 0.0))
            self._waiting.remove(self._large)
            self._later(self._large)
