# -*- test-case-name: tests.broker.ha.test_slave_view -*-
"""
A master's view of one slave: where to begin, what comes next, when it has gone wrong.

    nothing is sent -- first report --> from its offset on, in order -- refused, silent --> closed

Rule 1: nothing is sent before the first report. 0 says "I am empty": such a slave begins at a file.
Rule 2: a report may not exceed what the slave can have: our end at first, later what it was sent. RocketMQ
believes any number, and counts it as an acknowledgement for the rest of its life.
Rule 3: a slave that comes back may hold the tail of a log that we have lost in a crash. What it reports first
is no acknowledgement of anything beyond our end when we started; what it reports after we sent it more is.
Rule 4: what cannot be sent, as it lies outside of the log, ends the connection with a reason. RocketMQ sends
heartbeats for ever, and the slave looks well.

Decides, knows nothing of connections.

Source: HAConnection.java (4.9.8), DefaultHAConnection.java (5.3.3); differs: docs/ha.md 7.2, 7.4.
"""

from __future__ import annotations

import attrs

from dledger.broker.ha.ports import CommitLog


def last_file_offset(log: CommitLog) -> int:
    """Where the file begins that the next byte goes to; the whole log is in it or before it."""
    return max(log.end_offset - log.end_offset % log.file_size, log.begin_offset)


@attrs.define(kw_only=True)
class SlaveView:
    """
    Times in milliseconds of one monotonic clock.

    Invariant: C{ack_offset} and C{claimed_offset} never fall, C{ack_offset <= claimed_offset}, and
    C{claimed_offset <= transfer_offset} but for an empty slave's 0.

    @ivar vouched_offset: where our log ended when this process began: what was sent since is behind it.
    @ivar request_offset: the first report; -1 before it.
    @ivar claimed_offset: the highest report; -1 before the first.
    @ivar ack_offset: as much of it as answers for puts.
    @ivar transfer_offset: what is sent next; -1 before the first report.
    @ivar heard_ms: when something came last, or the connection was made.
    @ivar sent_ms: when something was sent last, or the connection was made.
    """

    heard_ms: int
    sent_ms: int
    vouched_offset: int
    request_offset: int = -1
    claimed_offset: int = -1
    ack_offset: int = -1
    transfer_offset: int = -1

    @property
    def is_ready(self) -> bool:
        """Whether frames may be sent."""
        return self.transfer_offset >= 0

    def reported(
        self, offset: int, log: CommitLog, *, now_ms: int, starts_at_first_file: bool = False
    ) -> str | None:
        """
        The slave has told what it holds.

        @param offset: the first byte that it does not have; 0 or more.
        @param starts_at_first_file: an empty slave is sent everything.
        @return: why it is refused; None if it is not.
        """
        self.heard_ms = now_ms
        begin, end = log.begin_offset, log.end_offset
        if self.request_offset < 0:
            if offset > end:
                return f"it reports {offset}, beyond our end at {end}: this is not the log that it followed"
            if 0 < offset < begin:
                return f"it reports {offset}, below our beginning at {begin}: wipe it, or give it a copy"
            self.request_offset = offset
            if offset:
                self.transfer_offset = offset
            else:
                self.transfer_offset = begin if starts_at_first_file else last_file_offset(log)
        elif offset > self.transfer_offset:
            return f"it reports {offset}, but was sent no more than up to {self.transfer_offset}"
        self.claimed_offset = max(self.claimed_offset, offset)
        proved = offset if offset > self.request_offset else min(offset, self.vouched_offset)
        self.ack_offset = max(self.ack_offset, proved)
        return None

    def misplaced(self, log: CommitLog) -> str | None:
        """Why what it wants next cannot be sent any more; None if it can."""
        if self.is_ready and not log.begin_offset <= self.transfer_offset <= log.end_offset:
            return (
                f"it needs {self.transfer_offset}, and we hold {log.begin_offset} to {log.end_offset}: "
                "it was too slow"
            )
        return None

    def sent(self, size: int, now_ms: int) -> None:
        """C{size} bytes of the log are on their way."""
        self.transfer_offset += size
        self.sent_ms = now_ms

    def beat(self, now_ms: int) -> None:
        """A heartbeat is on its way."""
        self.sent_ms = now_ms

    def is_beat_due(self, now_ms: int, interval_ms: int) -> bool:
        """Whether it has heard nothing for so long that it must hear something."""
        return self.is_ready and now_ms - self.sent_ms >= interval_ms

    def is_silent(self, now_ms: int, limit_ms: int) -> bool:
        """Whether it has said nothing for too long."""
        return now_ms - self.heard_ms > limit_ms
