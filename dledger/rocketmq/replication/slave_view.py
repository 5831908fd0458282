# -*- test-case-name: tests.broker.ha.test_slave_view -*-
"""
A master's view of one slave: its first offset, its next offset, and its errors.

    nothing is sent -- first report --> from its offset on, in order -- refused, silent --> closed

Rule 1: nothing is sent before the first report. A report of 0 means an empty slave, which begins at a file.
Rule 2: a report may not exceed the bytes that the slave can hold: at first our end, later the bytes sent to
it. RocketMQ accepts any number, and counts it as an acknowledgement for ever.
Rule 3: a reconnecting slave may hold a tail that our log has lost in a crash. Its first report acknowledges
nothing beyond our end at our start; reports after we sent it more do.
Rule 3a: a slave that holds more than we can vouch for, and whose log does not end where a record of ours
ends, has followed another log. RocketMQ counts it once our end has passed its own.
Rule 4: a requested offset outside of the log ends the connection with a reason. RocketMQ sends heartbeats for
ever, and the slave looks healthy.

This module only decides. It knows nothing of connections.

Source: HAConnection.java (4.9.8), DefaultHAConnection.java (5.3.3); differs: docs/ha.md 7.2, 7.4.
"""

from __future__ import annotations

import attrs

from dledger.rocketmq.replication.ports import LogPort
from protocols.wire.rocketmq.layout import HEAD, HEAD_SIZE, MAGIC_BLANK, MAGIC_V1, MAGIC_V2, START, START_SIZE

#: The first word of a slave in RocketMQ 5's controller mode, read as an offset: state 1, and two flags.
HANDSHAKES = frozenset(1 << 32 | one << 16 | two for one in (0, 1) for two in (0, 1))


def last_file_offset(log: LogPort) -> int:
    """Offset of the beginning of the file that receives the next byte."""
    return max(log.end_offset - log.end_offset % log.file_size, log.begin_offset)


def is_boundary(log: LogPort, offset: int) -> bool:
    """
    Whether a record of the log, or a file, begins at an offset, or the log ends there.

    @param offset: from the beginning of the log to its end.
    """
    if offset in (log.begin_offset, log.end_offset) or offset % log.file_size == 0:
        return True
    data = log.read(offset, HEAD_SIZE)
    if len(data) < START_SIZE:
        return False
    size, magic = START.unpack_from(data)
    if magic == MAGIC_BLANK:
        return bool(size == log.file_size - offset % log.file_size)
    return len(data) == HEAD_SIZE and magic in (MAGIC_V1, MAGIC_V2) and bool(HEAD.unpack(data)[6] == offset)


@attrs.define(kw_only=True)
class SlaveView:
    """
    State of one slave. Times are in milliseconds of one monotonic clock.

    Invariant: C{ack_offset} and C{claimed_offset} never fall, C{ack_offset <= claimed_offset}, and
    C{claimed_offset <= transfer_offset} except for an empty slave's 0.

    @ivar vouched_offset: end of our log when this process started; later puts are after it.
    @ivar request_offset: the first report; -1 before it.
    @ivar claimed_offset: the highest report; -1 before the first.
    @ivar ack_offset: the part of C{claimed_offset} that acknowledges puts.
    @ivar transfer_offset: next offset to send; -1 before the first report.
    @ivar heard_ms: time of the last report, or of the connection.
    @ivar sent_ms: time of the last send, or of the connection.
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
        self, offset: int, log: LogPort, *, now_ms: int, starts_at_first_file: bool = False
    ) -> str | None:
        """
        Take a report of the slave.

        @param offset: the first offset that it does not hold; 0 or more.
        @param starts_at_first_file: send an empty slave the whole log.
        @return: reason for a refusal; None without one.
        """
        self.heard_ms = now_ms
        if self.request_offset < 0:
            begin, end = log.begin_offset, log.end_offset
            if offset > end and offset in HANDSHAKES:
                return "it begins with the handshake of RocketMQ 5's controller mode, which we do not speak"
            if offset > end:
                return f"it reports {offset}, beyond our end at {end}: this is not the log that it followed"
            if 0 < offset < begin:
                return f"it reports {offset}, below our beginning at {begin}: empty it, or give it a copy"
            self.request_offset = offset
            if offset:
                self.transfer_offset = offset
            else:
                self.transfer_offset = begin if starts_at_first_file else last_file_offset(log)
        elif offset < self.request_offset:
            return (
                f"it reports {offset} after {self.request_offset}: it is not a slave of RocketMQ's "
                f"usual mode "
                "(the handshake of controller mode looks like this)"
            )
        elif offset > self.transfer_offset:
            return f"it reports {offset}, but was sent bytes only up to {self.transfer_offset}"
        if offset > self.claimed_offset:
            self.claimed_offset = offset
        proved = offset if offset > self.request_offset else min(offset, self.vouched_offset)
        if proved > self.ack_offset:
            self.ack_offset = proved
        return None

    @property
    def has_all(self) -> bool:
        """Whether it has reported everything that it was sent."""
        return 0 <= self.transfer_offset == self.claimed_offset

    def misplaced(self, begin_offset: int, end_offset: int) -> str | None:
        """
        The reason why its next offset can no longer be sent; None if it can.

        @param begin_offset, end_offset: of our log.
        """
        if self.is_ready and not begin_offset <= self.transfer_offset <= end_offset:
            return (
                f"it needs {self.transfer_offset}, but we hold {begin_offset} to {end_offset}: "
                "it was too slow"
            )
        return None

    def sent(self, size: int, now_ms: int) -> None:
        """Note a send of C{size} bytes of the log."""
        self.transfer_offset += size
        self.sent_ms = now_ms

    def beat(self, now_ms: int) -> None:
        """Note a sent heartbeat."""
        self.sent_ms = now_ms

    def is_beat_due(self, now_ms: int, interval_ms: int) -> bool:
        """Whether nothing was sent for C{interval_ms}, so that a heartbeat is due."""
        return self.is_ready and now_ms - self.sent_ms >= interval_ms

    def is_silent(self, now_ms: int, limit_ms: int) -> bool:
        """Whether the slave has sent no report for more than C{limit_ms}."""
        return now_ms - self.heard_ms > limit_ms
