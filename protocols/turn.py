# -*- test-case-name: tests.protocols.test_turn -*-
"""
Gathers calls until the end of a reactor turn, so that each runs once per turn.

Work (many appends become one proposal) runs before output (many answers become one write), both in
the order of their requests. Work requested while the turn ends runs in the next one: a turn always
ends.

Output caused by a read does not wait for the end of the turn: it runs when the read has been handled,
which saves an idle member one round of its reactor on each leg of an append. Work requested by
L{soon<Turn.soon>} does the same; callers use it when there is no other work to gather it with.

One timed call per turn, for any number of connections.

When the reads of a turn have taken L{READS_S}, or made L{ANSWERS_BYTES} of answers, the turn is late:
connections put further reads off, so that timers, peers and the other sockets come first. The next turns
handle them: short ones before long ones, those in slices (L{protocols.put_off}), at least one in each turn;
among equals those of the least cost first. So a client with one request at a time waits for one slice, not
for the floods of all others.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable

from twisted.internet.interfaces import IReactorTime
from twisted.python.failure import Failure

#: Seconds that the reads of one turn may take before further ones are put off, and bytes of their answers.
READS_S = 0.004
ANSWERS_BYTES = 8 * 1024 * 1024


class Turn:
    """
    Invariant: while calls are gathered, a timed call is outstanding or (for C{soon} and output) a read
    is being handled.

    @param clock: the reactor.
    @ivar seconds: the clock's time.
    @ivar is_late: whether reads should be put off to the next turn.
    @ivar made_bytes: size of the answers made in this turn.
    @ivar short_reads, long_reads: reads that were put off, heaps: when each is due, its number, the call.
    @param failed: called with an exception of a call; the other calls still run.
    """

    def __init__(self, clock: IReactorTime, failed: Callable[[Failure], None]) -> None:
        self._clock = clock
        self.seconds = clock.seconds
        self._failed = failed
        self._work: list[Callable[[], None]] = []
        self._output: list[Callable[[], None]] = []
        self._soon: list[Callable[[], None]] = []
        self._is_scheduled = False
        self._is_reading = False
        self._spent_s = self._began_s = self._ended_s = self._piece_s = 0.0
        self.made_bytes = 0
        self.short_reads: list[tuple[float, int, Callable[[], None]]] = []
        self.long_reads: list[tuple[float, int, Callable[[], None]]] = []
        self._put_offs = 0
        self._is_next_asked = False
        self.is_late = False

    def work(self, call: Callable[[], None]) -> None:
        """Run C{call} when this turn ends, before any output."""
        self._work.append(call)
        if not self._is_scheduled:
            self._schedule()

    def soon(self, call: Callable[[], None]) -> None:
        """Run C{call} at the end of the current read, before its output; without a read, as L{work}."""
        if self._is_reading:
            self._soon.append(call)
        else:
            self.work(call)

    def output(self, call: Callable[[], None]) -> None:
        """Run C{call} at the end of the current read, or else of this turn; after all work."""
        self._output.append(call)
        if not (self._is_reading or self._is_scheduled):
            self._schedule()

    def read(self, deal_with: Callable[..., None], *data: bytes) -> float:
        """Handle received C{data}, then run the output that this has caused. @return: the seconds it took."""
        if self._is_reading:  # one of several in a pass
            began_s = self._piece_s = self.seconds()
            deal_with(*data)
            now_s = self.seconds()
            if (
                self._spent_s + now_s - self._began_s >= READS_S or self.made_bytes >= ANSWERS_BYTES
            ) and not self.is_late:
                self._be_late()
            return now_s - began_s
        self._is_reading = True
        began_s = self._began_s = self._piece_s = self.seconds()
        if began_s - self._ended_s > READS_S:
            # the reactor has waited since: this is another turn
            self._spent_s = 0.0
            self.made_bytes = 0
        try:
            deal_with(*data)
        finally:
            soon, self._soon = self._soon, []
            for call in soon:  # (as _run: here goes each append to an idle member, and each answer)
                try:
                    call()
                except Exception:
                    self._failed(Failure())
            self._is_reading = False
            for call in self._soon:  # asked for by those: they would wait for the next read, perhaps for ever
                self.work(call)
            self._soon = []
            if self._output:
                output, self._output = self._output, []
                for call in output:
                    try:
                        call()
                    except Exception:
                        self._failed(Failure())
            ended_s = self._ended_s = self.seconds()
            took_s = ended_s - began_s
            spent_s = self._spent_s = self._spent_s + took_s
            if (spent_s >= READS_S or self.made_bytes >= ANSWERS_BYTES) and not self.is_late:
                self._be_late()
        return took_s

    def put_off(self, read: Callable[[], None], cost_s: float, *, is_short: bool = True) -> None:
        """
        Call C{read} in one of the next turns: the turn is late, or the read must wait for something else.

        @param cost_s: for this time, cheaper reads that come later pass it; not for ever, or newcomers
            could keep a client back.
        @param is_short: short reads pass long ones, of which each turn handles one all the same.
        """
        self._put_offs += 1
        waiting = self.short_reads if is_short else self.long_reads
        heapq.heappush(waiting, (self.seconds() + cost_s, self._put_offs, read))
        self._ask_next_reads()

    def begin_pass(self) -> None:
        """
        A reader of many connections begins, once in a turn. The reads that were put off leave it half of the
        time.
        """
        self.is_late = False
        if self._is_next_asked:
            self._spent_s = min(self._spent_s, READS_S / 2)
            self.made_bytes = min(self.made_bytes, ANSWERS_BYTES // 2)
        else:
            self._spent_s = 0.0
            self.made_bytes = 0

    def _be_late(self) -> None:
        self.is_late = True
        self._ask_next_reads()

    def _ask_next_reads(self) -> None:
        if not self._is_next_asked:
            self._is_next_asked = True
            self._clock.callLater(0, self.next_reads)

    def next_reads(self) -> None:
        """A turn begins: run reads that were put off; the clock calls this once there are some."""
        self.is_late = self._is_next_asked = False
        self._spent_s = 0.0
        self.made_bytes = 0
        while self.short_reads and not self.is_late:
            self._run([heapq.heappop(self.short_reads)[2]])
        if self.long_reads:
            self._run([heapq.heappop(self.long_reads)[2]])
        # (What is left of a long read may be short.)
        while (self.short_reads or self.long_reads) and not self.is_late:
            self._run([heapq.heappop(self.short_reads or self.long_reads)[2]])

    @property
    def is_over(self) -> bool:
        """Whether the reads of this turn have taken their time, with the one that is being handled."""
        return self._is_reading and (
            self.made_bytes >= ANSWERS_BYTES or self._spent_s + self.seconds() - self._began_s >= READS_S
        )

    def has_room(self) -> bool:
        """A piece of a read was handled. @return: whether another that takes as long ends in this turn."""
        now_s, began_s = self.seconds(), self._piece_s
        self._piece_s = now_s
        ends_s = self._spent_s + now_s - self._began_s + now_s - began_s
        return ends_s < READS_S and self.made_bytes < ANSWERS_BYTES

    def made(self, size: int) -> None:
        """Answers of C{size} bytes were made."""
        self.made_bytes += size

    def act(self, call: Callable[[], None]) -> None:
        """Run C{call} like a read: the output that it causes does not wait for the end of the turn."""
        self.read(call)

    def _schedule(self) -> None:
        self._is_scheduled = True
        self._clock.callLater(0, self._end)

    def _end(self) -> None:
        self._is_scheduled = False
        work, self._work = self._work, []
        # Output that the work requests belongs to this turn; further work does not.
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
