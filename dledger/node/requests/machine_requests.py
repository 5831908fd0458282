# -*- test-case-name: tests.node.test_machine_requests -*-
"""
The place of a state machine in a member, and the handler of the requests to it: SUBMIT, QUERY and SKIP.

The part that comes with the machine (L{MachineAnswers}) knows how a request is answered; the protocols here
say which functions it and its member offer each other.

Rule 1: without a machine each request is refused.
Rule 2: a connection that does not read its answers is refused before anything is done for it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol, TypeAlias

import attrs
from twisted.internet.defer import Deferred, succeed
from twisted.python.failure import Failure

from dledger.core.status import MemberStatus
from dledger.node.reporting.status import Counters, MachineStatus, count
from dledger.node.requests.appends import AppendResult
from dledger.values.errors import DLedgerError
from dledger.values.ledger.group_state import GroupFold
from protocols.ledger.connection import ServerConnection
from protocols.ledger.interfaces import Ticket
from protocols.wire.codes import ResponseCode
from protocols.wire.ledger.machines import (
    QueryRequest,
    QueryResponse,
    SkipRequest,
    SkipResponse,
    SnapshotRequest,
    SubmitRequest,
    SubmitResponse,
)
from protocols.wire.ledger.message_table import MESSAGES
from protocols.wire.ledger.messages import MetadataResponse, Response

#: Most characters of a reason in an answer.
REASON_CHARACTERS_MAX = 300

MachineRequest: TypeAlias = SubmitRequest | QueryRequest | SkipRequest


class GivenPiece(Protocol):
    """A piece of the file of a snapshot: L{dledger.machine.files.offering.SnapshotPiece}."""

    @property
    def index(self) -> int:
        """Last entry in the snapshot."""

    @property
    def term(self) -> int:
        """Of that entry."""

    @property
    def size(self) -> int:
        """Bytes of the whole file."""

    @property
    def offset(self) -> int:
        """Where the piece begins."""

    @property
    def data(self) -> bytes:
        """The piece."""


class HostedMachine(Protocol):
    """The state machine of this member: L{dledger.machine.runner.MachineRunner}."""

    @property
    def refusal(self) -> DLedgerError | None:
        """Why it takes no commands and no queries; None if it does."""

    @property
    def needed_index(self) -> int:
        """The log must keep the entries after this index: only they and snapshots make the state."""

    @property
    def gives_snapshots(self) -> bool:
        """Whether it keeps snapshots in files, gives them to other members, and takes up theirs."""

    def ask_snapshot(self) -> str:
        """Take a snapshot of the present state, soon. @return: why none is taken; empty if one is."""

    @property
    def proven_index(self) -> int:
        """Last entry in the oldest of at least two snapshots that were read as a whole; -1: there are not."""

    def piece_for(self, request: SnapshotRequest, max_bytes: int) -> GivenPiece:
        """A piece of a snapshot for another member. @raise DLedgerError: there is none."""

    def committed(self) -> None:
        """More entries are committed. In the middle of a step: it must only take note."""

    def start(self) -> None:
        """The member runs: take up the newest snapshot, then follow the log."""

    def stop(self) -> Deferred[None]:
        """@return: fires when nothing of the machine runs any more."""


class MachineAnswers(Protocol):
    """Answers for the state machine of this member: L{dledger.machine.requests.MachineHandler}."""

    def answer(
        self, request: MachineRequest, may_answer: Callable[[], bool], owner: str
    ) -> Deferred[Response]:
        """
        Answer a request.

        @param owner: the account of the caller, see L{protocols.wire.ledger.owners}.
        @param may_answer: whether the client reads its answers.
        @return: fires with the answer, with any code; a failure is a bug of ours.
        """

    def reported(self) -> str:
        """What other members learn about the machine: a text for METADATA."""

    def sweep(self, now_s: float) -> None:
        """End the waits whose time is over; look again at entries that could not be read."""

    def status(self) -> MachineStatus:
        """The current status."""


@attrs.frozen(kw_only=True)
class Hosting:
    """A state machine at a member. @ivar handler: answers the requests to it."""

    machine: HostedMachine
    handler: MachineAnswers


class OtherMachines(Protocol):
    """The other members: L{dledger.node.requests.snapshots.SnapshotHandler}."""

    def reported(self, peer_id: str) -> MetadataResponse | None:
        """What a member has reported last; None: nothing yet."""

    def ask_machines(self, now_s: float) -> None:
        """Ask them for their machines, now and then."""


class JudgedMachine(Protocol):
    """Takes the judgement of this member's machine, for the core."""

    def __call__(self, *, runs: bool, is_unfit: bool) -> None:
        """
        Take note of the judgement (L{dledger.core.state.inputs.MachineChecked}).

        @param runs: whether the machine runs.
        @param is_unfit: whether this member should not lead, because of its machine.
        """


@attrs.frozen(kw_only=True)
class MachineSurroundings:
    """
    What a member gives to the handler of its state machine.

    @ivar append: appends a command, of a producer with its sequence and owner, or with an empty name of none;
        see
        L{AppendGate.append_command<dledger.node.requests.appends.AppendGate.append_command>}.
    @ivar append_order: appends a machine entry.
    @ivar read_index: fires with the committed index once it is proved that this member leads; fails with
        L{DLedgerError}.
    @ivar status: the core's facts.
    @ivar group: what the log says of producers; None: not known.
    @ivar now_ms: the monotonic clock.
    @ivar others: the machines of other members.
    @ivar judged: informs the core whether a machine runs here, and whether it makes this member unfit to
        lead.
    @ivar note: reports an event.
    """

    append: Callable[[bytes, str, int, str], Deferred[AppendResult]]
    append_order: Callable[[bytes], Deferred[AppendResult]]
    read_index: Callable[[], Deferred[int]]
    status: Callable[[], MemberStatus]
    group: Callable[[], GroupFold | None]
    now_ms: Callable[[], int]
    others: OtherMachines
    judged: JudgedMachine
    note: Callable[[str, Mapping[str, object]], None]


class MachineRequests:
    """
    See the module.

    @ivar hosting: None: the member runs no machine.
    """

    def __init__(
        self, group: str, *, leader_id: Callable[[], str | None], broken: Callable[[BaseException], None],
        counters: Counters,
    ) -> None:
        """@param broken: called with an exception that is a bug of ours."""
        self.hosting: Hosting | None = None
        self._group = group
        self._leader_id = leader_id
        self._broken = broken
        self._counters = counters

    @property
    def machine(self) -> HostedMachine | None:
        """The machine of this member; None: it runs none."""
        return None if self.hosting is None else self.hosting.machine

    @property
    def needed_index(self) -> int:
        """See L{HostedMachine.needed_index}; far above all entries without a machine."""
        return 1 << 62 if self.hosting is None else self.hosting.machine.needed_index

    def status(self) -> MachineStatus | None:
        """The status of the machine; None without one."""
        return None if self.hosting is None else self.hosting.handler.status()

    def reported(self) -> str:
        """The machine in METADATA; empty without one."""
        return "" if self.hosting is None else self.hosting.handler.reported()

    def committed(self) -> None:
        """See L{HostedMachine.committed}."""
        if self.hosting is not None:
            self.hosting.machine.committed()

    def sweep(self, now_s: float) -> None:
        """See L{MachineAnswers.sweep}."""
        if self.hosting is not None:
            self.hosting.handler.sweep(now_s)

    def ask(
        self, connection: ServerConnection, ticket: Ticket, request: MachineRequest, owner: str = ""
    ) -> None:
        """Answer a request, now or later. @param owner: the account of the connection."""
        if not connection.may_answer:
            self._answer(self._refusal(request, ResponseCode.LEADER_PENDING_FULL), connection, ticket)
            return
        self._answered(request, lambda: connection.may_answer, owner).addCallback(
            self._answer, connection, ticket
        ).addErrback(self._failed)

    def ask_snapshot(self) -> str:
        """Let the machine take a snapshot. @return: why it takes none; empty if it does."""
        return "this member runs no state machine" if self.machine is None else self.machine.ask_snapshot()

    def skip(self, index: int) -> Deferred[Response]:
        """The same as a request to skip an entry, for a local caller. @return: fires with any code."""
        return self._answered(SkipRequest(group=self._group, index=index), lambda: True)

    def _answered(
        self, request: MachineRequest, may_answer: Callable[[], bool], owner: str = ""
    ) -> Deferred[Response]:
        if self.hosting is not None:
            return self.hosting.handler.answer(request, may_answer, owner)
        is_skip = isinstance(request, SkipRequest)
        code = ResponseCode.UNEXPECTED_ARGUMENT if is_skip else ResponseCode.UNSUPPORTED
        return succeed(self._refusal(request, code, "this member runs no state machine"))

    def _refusal(self, request: MachineRequest, code: ResponseCode, reason: str = "") -> Response:
        answer_class = MESSAGES[request.kind][1]
        assert issubclass(answer_class, SubmitResponse | QueryResponse | SkipResponse)
        return answer_class(code=code, group=self._group, leader_id=self._leader_id(), reason=reason)

    def _answer(self, answer: Response, connection: ServerConnection, ticket: Ticket) -> None:
        if answer.code is not ResponseCode.SUCCESS:
            count(self._counters.refusals, answer.code.name)
        connection.answer(ticket, answer)

    def _failed(self, failure: Failure) -> None:
        assert failure.value is not None
        self._broken(failure.value)
