# -*- test-case-name: tests.node.test_snapshots -*-
"""
Snapshots between members: those of the state machine, and the state of the group
(L{dledger.node.requests.group_states}); and the log after the former that may go.

Rule 1: pieces go to members of the group only, on their own connections, one at a time, within the same quota
of bytes a second as the log of a follower that is far behind.
Rule 2: the log after the oldest snapshot goes only on request (C{machine_keep_entries}), and only if every
other member has said that it runs a machine and takes up snapshots. A Java member never says so.
Rule 3: a follower drops nothing that its leader still has: it may lead next, and a member may need it then.
"""

from __future__ import annotations

from collections.abc import Callable

import attrs
from twisted.internet.defer import Deferred, fail

from dledger.core.state.member_state import MemberState
from dledger.core.status import MemberStatus
from dledger.node.connections.peers import Peers
from dledger.node.reporting.status import Counters, MachineStatus, count
from dledger.node.requests.group_states import GroupOffers
from dledger.node.requests.machine_requests import REASON_CHARACTERS_MAX, HostedMachine
from dledger.values.errors import DLedgerError
from dledger.values.ledger.config import DLedgerConfig
from protocols.ledger.connection import ServerConnection
from protocols.ledger.interfaces import Ticket
from protocols.wire.checksums import crc32
from protocols.wire.codes import ResponseCode
from protocols.wire.ledger.codes import (
    WIRE_FLAG_MACHINE,
    WIRE_FLAG_SNAPSHOTS,
    WIRE_VERSION,
    WIRE_VERSION_MASK,
)
from protocols.wire.ledger.machines import SnapshotRequest, SnapshotResponse
from protocols.wire.ledger.messages import MetadataRequest, MetadataResponse, Response

#: Bytes of one piece, at most; and at least, while the quota has any left: the first one has a whole header.
PIECE_BYTES_MAX = 256 * 1024
PIECE_BYTES_MIN = 4096


#: Seconds between two questions to a member for its state machine.
ASK_MACHINES_S = 2.0


class SnapshotHandler:
    """
    The other members, for the machine of this one: asks them for snapshots, and answers them.

    @ivar log_kept: why the log after the snapshots stays although it may go; empty if it goes, or need not.
    """

    def __init__(
        self, *, config: DLedgerConfig, members: MemberState, machine: Callable[[], HostedMachine | None],
        now_ms: Callable[[], int], counters: Counters, offers: GroupOffers,
    ) -> None:
        """
        @param machine: the machine of this member, if there is one. @param offers: the state of the group.
        """
        self._config = config
        self._members = members
        self._machine = machine
        self._now_ms = now_ms
        self._counters = counters
        self._offers = offers
        self._peers: Peers | None = None
        self.log_kept = ""
        self._machines: dict[str, str] = {}
        self._asked: list[Deferred[MetadataResponse]] = []
        self._next_ask_s = 0.0

    def connect(self, peers: Peers) -> None:
        """Set the connections."""
        self._peers = peers

    @property
    def wire_flags(self) -> int:
        """What METADATA reports of the machine of this member, as flags of C{wire_version}."""
        machine = self._machine()
        if machine is None:
            return 0
        return WIRE_FLAG_MACHINE | (WIRE_FLAG_SNAPSHOTS if machine.gives_snapshots else 0)

    # -- to others ----------------------------------------------------------------------------

    def answer(self, connection: ServerConnection, ticket: Ticket, request: SnapshotRequest) -> None:
        """Answer with a piece, or that nothing may be sent now, or why there is none."""
        try:
            answer = self._answer_to(connection, request)
        except DLedgerError as error:
            count(self._counters.refusals, error.code.name)
            reason = " ".join(str(error.facts.get("reason", error)).split())[:REASON_CHARACTERS_MAX]
            answer = SnapshotResponse(code=error.code, reason=reason)
        connection.answer(ticket, attrs.evolve(
            answer, group=self._config.group, leader_id=self._members.leader_id, wire_version=WIRE_VERSION
        ))

    def _answer_to(self, connection: ServerConnection, request: SnapshotRequest) -> SnapshotResponse:
        machine, peer_id = self._machine(), request.local_id
        if machine is None and request.machine:
            raise DLedgerError(ResponseCode.UNSUPPORTED, reason="this member runs no state machine")
        if peer_id not in self._members.peer_ids or connection.peer_id != peer_id:
            raise DLedgerError(
                ResponseCode.UNKNOWN_MEMBER,
                reason=f"{peer_id!r} is not a member of the group, or does not speak on this connection",
            )
        if not request.machine:
            self._offers.check_known()
        quota = self._members.peers.quota_of(peer_id)
        left = quota.left(self._now_ms())
        if left <= 0 or not connection.may_answer:
            return SnapshotResponse()
        max_bytes = min(PIECE_BYTES_MAX, max(left, PIECE_BYTES_MIN))
        if not request.machine:
            answer = self._offers.piece_for(request, max_bytes)
            quota.spend(len(answer.data or b""))
            return answer
        assert machine is not None
        piece = machine.piece_for(request, max_bytes)
        quota.spend(len(piece.data))
        return SnapshotResponse(
            index=piece.index, index_term=piece.term, size=piece.size, offset=piece.offset, data=piece.data,
            crc=crc32(piece.data),
        )

    # -- from others --------------------------------------------------------------------------

    @property
    def is_in_group(self) -> bool:
        """Whether there are other members."""
        return bool(self._peers is not None and self._peers.connected)

    def senders(self) -> tuple[str, ...]:
        """Ids of the members that give snapshots, the leader first."""
        # (Not by the membership: a member that joins does not know it, and asks those that it may believe.)
        known = () if self._peers is None else self._peers.connected
        able = [one for one in sorted(known) if not self._problem_of(one)]
        return tuple(sorted(able, key=lambda one: one != self._members.leader_id))

    def state_senders(self) -> tuple[str, ...]:
        """Ids of the members of ours that may have the state of the group, the leader first."""
        known = () if self._peers is None else self._peers.connected
        ours = [one for one in sorted(known) if (reported := self.reported(one)) is not None
                and reported.wire_version & WIRE_VERSION_MASK]
        return tuple(sorted(ours, key=lambda one: one != self._members.leader_id))

    def ask(self, peer_id: str, request: SnapshotRequest) -> Deferred[SnapshotResponse]:
        """
        Ask one member for a piece. Cancelling the result forgets the question.

        @param request: its base fields are filled in here.
        @return: fires with the answer, which may have any code; fails with L{DLedgerError} if no answer
            comes.
        """
        config = self._config
        if self._peers is None:
            return fail(DLedgerError(ResponseCode.NETWORK_ERROR, reason="not connected"))
        asked = self._peers.ask(peer_id, attrs.evolve(
            request, group=config.group, remote_id=peer_id, local_id=config.self_id, wire_version=WIRE_VERSION
        ))
        return asked.addCallback(_piece_of)

    # -- the log after snapshots -------------------------------------------------------------

    def drop_to_index(self, status: MemberStatus) -> int:
        """Last entry that may go because snapshots have it; -1: none. C{log_kept} says why."""
        keep, machine = self._config.machine_keep_entries, self._machine()
        self.log_kept = ""
        if not keep or machine is None:
            return -1
        self.log_kept = self._why_kept(machine, status)
        if self.log_kept:
            return -1
        index = machine.proven_index - keep
        if status.role != "leader":
            index = min(index, self._leader_begin(status) - 1)
        return max(index, -1)

    def _why_kept(self, machine: HostedMachine, status: MemberStatus) -> str:
        if machine.refusal is not None:
            return "the state machine does not run"
        if machine.proven_index < 0:
            return "there are no two sound snapshots yet"
        problems = [f"{one} {why}" for one in self._members.peer_ids if (why := self._problem_of(one))]
        if problems:
            return "; ".join(problems)
        if status.role != "leader" and self._leader_begin(status) < 0:
            return "the leader has not said where its log begins"
        return ""

    def _leader_begin(self, status: MemberStatus) -> int:
        reported = self.reported(status.leader_id or "")
        return -1 if reported is None else max(reported.begin_index, -1)

    def _problem_of(self, peer_id: str) -> str:
        """Why a member neither gives nor takes snapshots, as far as this one knows; empty if it does."""
        reported = self.reported(peer_id)
        if reported is None:
            return "has not said yet whether it takes snapshots"
        if not reported.wire_version & WIRE_VERSION_MASK:
            return "is a Java member, which takes no snapshots"
        if not reported.wire_version & WIRE_FLAG_SNAPSHOTS:
            return "runs no state machine with snapshots"
        return ""

    def reported(self, peer_id: str) -> MetadataResponse | None:
        """What a member has reported last; None: nothing yet."""
        reported = None if self._peers is None else self._peers.reported(peer_id)
        if reported is None:
            return None
        return attrs.evolve(reported, machine=self._machines.get(peer_id, reported.machine))

    def ask_machines(self, now_s: float) -> None:
        """
        Ask the other members for their machines, now and then. (The signs of life of idle
        connections have no room for it.)
        """
        if self._peers is None or now_s < self._next_ask_s:
            return
        self._next_ask_s = now_s + ASK_MACHINES_S
        asked, self._asked = self._asked, []
        for one in asked:
            one.cancel()
        for peer_id in self._members.peer_ids:
            question = self.ask_reported(peer_id)
            self._asked.append(question)
            question.addCallbacks(self._machine_reported, lambda _: None, callbackArgs=(peer_id,))

    def ask_reported(self, peer_id: str) -> Deferred[MetadataResponse]:
        """Ask a member what it says of itself. @return: fails with L{DLedgerError}: it does not say."""
        config = self._config
        if self._peers is None:
            return fail(DLedgerError(ResponseCode.NETWORK_ERROR, reason="not connected"))
        return self._peers.ask(peer_id, MetadataRequest(
            group=config.group, remote_id=peer_id, local_id=config.self_id, wire_version=WIRE_VERSION
        )).addCallback(_reported_of)

    def _machine_reported(self, answer: MetadataResponse, peer_id: str) -> None:
        self._machines[peer_id] = answer.machine

    def with_log_kept(self, status: MachineStatus | None) -> MachineStatus | None:
        """The status of the machine, with C{log_kept}."""
        return None if status is None else attrs.evolve(status, log_kept=self.log_kept)


def _piece_of(answer: Response) -> SnapshotResponse:
    if not isinstance(answer, SnapshotResponse):
        raise DLedgerError(ResponseCode.NETWORK_ERROR, reason=f"a {type(answer).__name__} came")
    return answer


def _reported_of(answer: Response) -> MetadataResponse:
    if not isinstance(answer, MetadataResponse) or answer.code is not ResponseCode.SUCCESS:
        raise DLedgerError(ResponseCode.NETWORK_ERROR, reason=f"a {type(answer).__name__} came")
    return answer
