# -*- test-case-name: tests.client.test_errors -*-
"""
What programs distinguish when a call fails. Each error is also a L{DLedgerError} with the code of the
refusal.

An append that fails is an L{AppendFailed} or an L{UnknownOutcome} in any case; those for want of a leader, or
of an answer in time, are also one of the errors here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from dledger.values.errors import DLedgerError
from dledger.values.ledger.append_refusals import OUT_OF_SEQUENCE
from protocols.wire.codes import ResponseCode

if TYPE_CHECKING:
    from dledger.client.values import Appended


class AppendError(DLedgerError):
    """
    A call in which at least one body was not acknowledged.

    @ivar appended: runs of acknowledged bodies (only in calls with many bodies).
    @ivar failed: number of bodies that are certainly not in the log.
    @ivar unknown: number of bodies that may be in the log, now or later.
    """

    def __init__(
        self,
        code: ResponseCode,
        *,
        appended: tuple[Appended, ...] = (),
        failed: int = 0,
        unknown: int = 0,
        **facts: object,
    ) -> None:
        super().__init__(code, **facts)
        self.appended = appended
        self.failed = failed
        self.unknown = unknown


class AppendFailed(AppendError):
    """The bodies without acknowledgement are certainly not in the log: appending them again is safe."""


class UnknownOutcome(AppendError):
    """
    Bodies of the call may be in the log, now or later: appending them again may append them twice.

    The client never retries them. Read the log to find out.
    """


class NotLeader(DLedgerError):
    """No member led the group until the deadline, or none that may serve yet. Try again later."""


class Timeout(DLedgerError):
    """No answer came until the deadline, or the connection was lost. A change may have happened, or not."""


class Expired(DLedgerError):
    """The entry was in the log; expiry has deleted it."""


class NotYet(DLedgerError):
    """No entry with this index is committed yet."""


class UnknownChange(Timeout):
    """
    A change of the members that may be in force, or come into force. Give it again: one that is in force is
    no change.
    """


class Restored(DLedgerError):
    """
    The members have another group's log than before: it was restored from a backup, or forced to begin anew.
    Entries that were read may not be in it, and an index means another entry. Open the log again, and begin
    where the program knows that its own state ends.
    """

    @property
    def group_id(self) -> str:
        """Id of the group whose log the members have now."""
        return str(self.facts["group_id"])

    @property
    def read_group_id(self) -> str:
        """Id of the group whose log was read before."""
        return str(self.facts["read_group_id"])


class CommandRefused(DLedgerError):
    """
    The state machine has refused a command, with a reason: the command is in the log, at every member alike,
    and has changed nothing.
    """


class LeaseLost(DLedgerError):
    """A process of a named reader has lost its lease: another one has its entries, or may get them."""


class LeaseHeld(DLedgerError):
    """Other processes have all that a named reader may read now. Try again later."""


class ProducerForgotten(DLedgerError):
    """The log does not know the producer, and may have forgotten it."""


class AppendWithoutLeader(AppendFailed, NotLeader):
    """An append that no leader has taken: it is certainly not in the log."""


class Conflict(AppendFailed):
    """An append that expected another end of the log: it is certainly not in the log, somebody was first."""

    @property
    def end_index(self) -> int:
        """Last index of the leader's log then. Entries up to there may not be committed yet."""
        return int(str(self.facts["end_index"]))


class OutOfSequence(AppendFailed):
    """An append of a producer that does not follow its last one: it is certainly not in the log."""

    @property
    def last_sequence(self) -> int:
        """The last one of the producer in the log; -1: the log does not know the producer."""
        return int(str(self.facts.get("last_sequence", -1)))


class SequenceTaken(AppendFailed):
    """An append of a producer whose sequence another body has: it is certainly not in the log."""

    @property
    def index(self) -> int:
        """Of the body that has the sequence, or of the first one if several were appended."""
        return int(str(self.facts["index"]))


class SequenceForgotten(UnknownOutcome):
    """
    An append of a producer with a sequence that a body in the log has or had: this body, or another one. The
    log cannot compare them any more, and the same append ends like this each time.
    """

    @property
    def last_sequence(self) -> int:
        """The last one of the producer in the log: go on with the next one."""
        return int(str(self.facts.get("last_sequence", -1)))


class AppendTimeout(UnknownOutcome, Timeout):
    """An append without an answer in time: it may be in the log, now or later."""


_KINDS: Mapping[ResponseCode, type[DLedgerError]] = {
    ResponseCode.TIMEOUT: Timeout,
    ResponseCode.NETWORK_ERROR: Timeout,
    ResponseCode.WAIT_QUORUM_ACK_TIMEOUT: Timeout,
    ResponseCode.METADATA_ERROR: NotLeader,
    ResponseCode.NOT_LEADER: NotLeader,
    ResponseCode.TERM_CHANGED: NotLeader,
    ResponseCode.LEADER_NOT_READY: NotLeader,
    ResponseCode.LEADER_TRANSFERRING: NotLeader,
    ResponseCode.INDEX_LESS_THAN_LOCAL_BEGIN: Expired,
    ResponseCode.INDEX_OUT_OF_RANGE: NotYet,
    ResponseCode.GROUP_RESTORED: Restored,
    ResponseCode.COMMAND_REFUSED: CommandRefused,
    ResponseCode.LEASE_LOST: LeaseLost,
    ResponseCode.LEASE_HELD: LeaseHeld,
    ResponseCode.PRODUCER_FORGOTTEN: ProducerForgotten,
}


def failure_of(code: ResponseCode, **facts: object) -> DLedgerError:
    """The error of a call that is not an append."""
    return _KINDS.get(code, DLedgerError)(code, **facts)


def reported(error: DLedgerError) -> DLedgerError:
    """An error, as the program is informed of it."""
    return error if isinstance(error, AppendError) else failure_of(error.code, **error.facts)


def append_error(code: ResponseCode, *, is_unknown: bool) -> type[AppendError]:
    """The kind of an append's error. @param is_unknown: at least one body may be in the log."""
    kind = _KINDS.get(code)
    if is_unknown:
        if code is ResponseCode.SEQUENCE_FORGOTTEN:
            return SequenceForgotten
        return AppendTimeout if kind is Timeout else UnknownOutcome
    if code is ResponseCode.CONFLICT:
        return Conflict
    if code in OUT_OF_SEQUENCE:
        return OutOfSequence
    if code is ResponseCode.SEQUENCE_TAKEN:
        return SequenceTaken
    return AppendWithoutLeader if kind is NotLeader else AppendFailed
