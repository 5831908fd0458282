# -*- test-case-name: tests.node.test_router,tests.node.test_turned_away -*-
"""
Which connection speaks for which member, and which requests count in the name of one.

VOTE, HEART_BEAT, PUSH and a leader's LEADERSHIP_TRANSFER count only on the connection of the member that they
name, and while that member's own address answers; the first message that names its sender introduces the
connection. One that claims to be a member that it may not speak for ends.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from dledger.node.connections.door import Door
from dledger.node.connections.greeting import KnownMembers
from dledger.node.connections.server import Note
from dledger.values.errors import DLedgerError
from protocols.ledger.connection import ServerConnection
from protocols.wire.codes import ResponseCode
from protocols.wire.ledger.codes import RequestCode
from protocols.wire.ledger.messages import (
    LeadershipTransferRequest,
    MembershipRequest,
    MetadataRequest,
    Request,
    VoteRequest,
)

#: Requests that only a peer sends.
PEERS_ONLY = frozenset({RequestCode.VOTE, RequestCode.HEART_BEAT, RequestCode.PUSH})


class Claim(Protocol):
    """Claims a connection for a peer, see L{dledger.node.connections.server.MemberServer.claim}."""

    def __call__(self, connection: ServerConnection, peer_id: str, *, is_binding: bool) -> bool:
        """@return: whether it is the peer's; if not, it was aborted, or its request was not binding."""


class Speakers:
    """Decides for which member each connection of this one speaks."""

    def __init__(self, self_id: str, members: KnownMembers, door: Door, note: Note) -> None:
        self._self_id = self_id
        self._members = members
        self._door = door
        self._note = note
        self._claim: Claim = lambda connection, peer_id, *, is_binding: True
        self._vouches: Callable[[str], bool] = lambda peer_id: True

    def claim_with(self, claim: Claim, vouches: Callable[[str], bool]) -> None:
        """Set the functions that claim connections for peers, and that know which peers are present."""
        self._claim = claim
        self._vouches = vouches

    def admit(self, connection: ServerConnection, request: Request, named: str | None) -> bool:
        """
        Whether the connection may continue; a connection from a peer is claimed for it.

        @param named: see L{named_by}.
        """
        speaker = request.local_id
        if speaker is None and request.kind in PEERS_ONLY:
            speaker = request.leader_id  # DLedger 0.2 names itself only there
        if speaker is not None and speaker != connection.peer_id and self._members.knows(speaker):
            is_binding = request.kind is not RequestCode.METADATA
            if not self._speaks_for(connection, speaker, is_binding=is_binding):
                return False
        if named is None or named == connection.peer_id or not self._members.knows(named):
            return True
        self._note("claim-refused", {"peer_id": named, "address": connection.address,
                                     "reason": f"the connection speaks for {connection.peer_id}"})
        connection.abort(f"{request.kind.name} in the name of {named}")
        return False

    def is_greeting(self, connection: ServerConnection, request: MetadataRequest) -> bool:
        """Whether a member speaks for itself; not if another connection is taken for that member."""
        return connection.peer_id == request.local_id or not self._members.knows(request.local_id)

    def _speaks_for(self, connection: ServerConnection, peer_id: str, *, is_binding: bool) -> bool:
        """Whether the connection goes on: it is claimed for a member, or its request binds nobody."""
        rights = self._door.rights(connection)
        if rights.speak_for(peer_id):
            if not self._claim(connection, peer_id, is_binding=is_binding):
                return connection.is_open
            # A member that connects is up: if this one waits before its next attempt to reach it, the wait
            # ends. An election may need this member's vote at once.
            self._vouches(peer_id)
            return True
        reason = f"the certificate is of {rights.who or 'nobody'}"
        self._note("claim-refused", {"peer_id": peer_id, "address": connection.address, "reason": reason})
        connection.abort(f"not taken for {peer_id}: {reason}")
        return False

    def refusal_for_core(
        self, connection: ServerConnection, request: Request, named: str | None
    ) -> DLedgerError | None:
        """
        Why the core does not hear a request: a binding one comes in the name of a member that is not present
        (L{Peers.vouches}), or its sender may not change the group.

        Otherwise whoever speaks for a member that is down could depose leaders, or seem to lead for ever.

        @param named: see L{named_by}.
        """
        if named is None:
            refusal = self._door.refusal_of_change(connection, request)
            if refusal is None and isinstance(request, MembershipRequest) and not request.is_dry:
                self._note("change-asked", {
                    "address": connection.address, "change": request.change, "member_id": request.member_id,
                    "member_address": request.address, "is_forced": request.is_forced,
                    "configuration": self._members.membership.index,
                })
            return refusal
        if (type(request) is VoteRequest and request.pre_vote) or self._vouches(named):
            return None
        if self._members.knows(named):
            self._note("sender-absent", {"sender_id": named, "kind": request.kind.name,
                                         "address": connection.address})
        return DLedgerError(ResponseCode.ILLEGAL_MEMBER_STATE)

    def named_by(self, request: Request) -> str | None:
        """The member in whose name a request is binding; None if it binds nobody."""
        if request.kind in PEERS_ONLY:
            return request.leader_id
        if isinstance(request, LeadershipTransferRequest) and request.transfer_id != self._self_id:
            return request.transfer_id
        return None
