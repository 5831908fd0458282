# -*- test-case-name: tests.client.test_appender -*-
"""
The data of L{dledger.client.appender}: calls, frames, bounds, and the meaning of answers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import attrs

from dledger.base.errors import DLedgerError
from dledger.client.connection import MemberConnection
from dledger.client.values import Appended, AppendError, AppendFailed, UnknownOutcome
from dledger.config import ENTRY_HEADER_BYTES, MAX_RECORD_BYTES
from protocols.wire.ledger.codes import ResponseCode

#: Temporary refusals: the same bodies are sent again, in order.
PASSING = frozenset(
    {
        ResponseCode.NOT_LEADER,
        ResponseCode.LEADER_PENDING_FULL,
        ResponseCode.LEADER_NOT_READY,
        ResponseCode.LEADER_TRANSFERRING,
    }
)
#: Final refusals, which precede any write.
FINAL = frozenset(
    {
        ResponseCode.UNSUPPORTED,
        ResponseCode.UNKNOWN_GROUP,
        ResponseCode.UNKNOWN_MEMBER,
        ResponseCode.UNEXPECTED_ARGUMENT,
        ResponseCode.DISK_FULL,
        ResponseCode.REQUEST_WITH_EMPTY_BODYS,
    }
)
#: Largest body that any member can store.
BODY_BYTES_MAX = MAX_RECORD_BYTES - ENTRY_HEADER_BYTES

Outcome = tuple[Appended, ...] | AppendError
#: Called once per call, with the appended entries or the error.
Done = Callable[[Outcome], None]


@attrs.frozen(kw_only=True)
class AppendLimits:
    """
    Bounds of one client's appends.

    @ivar pending_count_max, pending_bytes_max: number and bytes of bodies without an outcome.
    @ivar when_full: C{fail}: a call beyond these bounds fails at once with LEADER_PENDING_FULL;
        C{wait}: it waits, and at most C{waiting_calls_max} calls wait.
    @ivar frame_count_max, frame_bytes_max: bodies in one native frame, and their bytes; a remoting
        frame has one body.
    @ivar frames_in_flight_max: native frames without an answer; bodies gather meanwhile.
    @ivar remoting_in_flight_max: remoting frames without an answer, to a member of ours.
    @ivar in_flight_bytes_max: bytes of bodies in frames without an answer.
    """

    pending_count_max: int = 100_000
    pending_bytes_max: int = 64 * 1024 * 1024
    when_full: str = attrs.field(default="fail", validator=attrs.validators.in_(("fail", "wait")))
    waiting_calls_max: int = 1_000
    frame_count_max: int = 512
    frame_bytes_max: int = 128 * 1024
    frames_in_flight_max: int = 8
    remoting_in_flight_max: int = 1_024
    in_flight_bytes_max: int = 16 * 1024 * 1024


class Call:
    """One call: its bodies, the number of them in frames, and their outcomes."""

    __slots__ = (
        "bodies", "deadline_s", "done", "error", "failed", "is_admitted", "is_finished", "open",
        "outcomes", "sent", "size", "unknown",
    )  # fmt: skip

    def __init__(self, bodies: Sequence[bytes], size: int, done: Done, deadline_s: float) -> None:
        self.bodies = bodies
        self.size = size  # bytes of all bodies
        self.done = done
        self.deadline_s = deadline_s
        self.sent = 0  # bodies that are or were in frames; the next to send is bodies[sent]
        self.open = 0  # bodies in frames without an outcome
        self.outcomes: list[Appended] = []
        self.failed = 0
        self.unknown = 0
        self.error: DLedgerError | None = None
        self.is_admitted = False  # counted as pending; False while the call waits for room
        self.is_finished = False


class Frame:
    """Bodies that are sent together; C{refusal} is set while a refused frame is held."""

    __slots__ = ("count", "is_settled", "leader", "number", "parts", "refusal", "sent_s", "size")

    def __init__(
        self,
        number: int,
        leader: MemberConnection,
        parts: list[tuple[Call, int, int]],
        count: int,
        size: int,
        sent_s: float,
    ) -> None:
        self.number = number  # in the order of sending
        self.leader = leader
        self.parts = parts  # call, offset of its first body here, number of bodies
        self.count = count
        self.size = size
        self.sent_s = sent_s
        self.refusal: DLedgerError | None = None
        self.is_settled = False


def outcome_of(call: Call) -> Outcome:
    """The outcome of a finished call, for its callback."""
    error = call.error
    appended = tuple(sorted(call.outcomes, key=_offset) if len(call.outcomes) > 1 else call.outcomes)
    if error is None:
        return appended
    kind = UnknownOutcome if call.unknown else AppendFailed
    return kind(
        error.code, appended=appended, failed=call.failed, unknown=call.unknown, **error.facts
    )


def _offset(appended: Appended) -> int:
    return appended.offset
