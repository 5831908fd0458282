# -*- test-case-name: tests.protocols.test_turn -*-
"""
Gathers what is to be done at the end of one reactor turn, so that it is done once.

Work (many appends become one proposal) runs before output (many answers become one write), and
both in the order in which they were asked for. Work asked for while the turn ends runs in the
next one: a turn always ends.

Output that a read has caused does not wait for the end of the turn: it goes out when the read has
been dealt with, which spares an idle member a round of its reactor on each leg of an append. So does
work that is asked for L{soon<Turn.soon>}, because nothing is there that it could be gathered with.

One timed call per turn, whatever the number of connections.
"""

from __future__ import annotations

from collections.abc import Callable

from twisted.internet.interfaces import IReactorTime
from twisted.python.failure import Failure


class Turn:
    """
    Invariant: while there is something to do, a timed call is outstanding or (for output) a read is
    being dealt with.

    @param clock: whose turns are meant.
    @param failed: told of an exception in a call; the other calls still run.
    """

    def __init__(self, clock: IReactorTime, failed: Callable[[Failure], None]) -> None:
        self._clock = clock
        self._failed = failed
        self._work: list[Callable[[], None]] = []
        self._output: list[Callable[[], None]] = []
        self._soon: list[Callable[[], None]] = []
        self._is_scheduled = False
        self._is_reading = False

    def seconds(self) -> float:
        """The clock's time."""
        return self._clock.seconds()

    def work(self, call: Callable[[], None]) -> None:
        """Run C{call} when this turn ends, before any output."""
        self._work.append(call)
        if not self._is_scheduled:
            self._schedule()

    def soon(self, call: Callable[[], None]) -> None:
        """Run C{call} when the read that is being dealt with ends, before its output; else like L{work}."""
        if self._is_reading:
            self._soon.append(call)
        else:
            self.work(call)

    def output(self, call: Callable[[], None]) -> None:
        """Run C{call} when the read that is being dealt with, or else this turn, ends; after all work."""
        self._output.append(call)
        if not (self._is_scheduled or self._is_reading):
            self._schedule()

    def read(self, deal_with: Callable[[bytes], None], data: bytes) -> None:
        """Deal with C{data} that came in, then run the output that this has caused."""
        if self._is_reading:
            deal_with(data)
            return
        self._is_reading = True
        try:
            deal_with(data)
        finally:
            if self._soon:
                soon, self._soon = self._soon, []
                self._run(soon)
            self._is_reading = False
            if self._output:
                output, self._output = self._output, []
                self._run(output)

    def _schedule(self) -> None:
        self._is_scheduled = True
        self._clock.callLater(0, self._end)

    def _end(self) -> None:
        self._is_scheduled = False
        work, self._work = self._work, []
        # What the work writes belongs to this turn; what it asks to be done next does not.
        self._run(work)
        output, self._output = self._output, []
        self._run(output)
        if (self._work or self._output) and not self._is_scheduled:
            self._schedule()

    def _run(self, calls: list[Callable[[], None]]) -> None:
        for call in calls:
            try:
                call()
            except Exception:
                self._failed(Failure())
