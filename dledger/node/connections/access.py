# -*- test-case-name: tests.node.test_access,tests.node.test_router,tests.node.test_turned_away -*-
"""
Decides which requests each connection may make, and for which member it speaks (L{Speakers}).

The certificate of the other end gives rights, and so does the token that it sends. A group with neither
certificates nor tokens judges by address: every host may make every request that changes nothing, and only
the hosts of C{change_hosts} may change the group.

Rule 1: a request beyond the rights of its connection is answered FORBIDDEN (440). No other part of the
member sees it.
Rule 2: a token counts for the connection that sent it. Only the hash of the token is kept. When the
file of tokens has changed, the grant of each hash is looked up again, and each connection ends whose
token now grants something else, or nothing.
Rule 3: a certificate proves that the other end is a member. Without TLS nothing proves it: then
the id counts by which the connection was taken for a member's, and what members ask needs no role. A change
of the group is not one of these, with one exception: a leader sends
LEADERSHIP_TRANSFER to its successor, and names itself in it.
Rule 4: the requests that change the group are those that need the role C{admin} (L{NEEDED}), and those that
move or forget a reader, which is for its account, too (L{dledger.node.requests.readers.Asker}).
Rule 5: a member without certificates and tokens may be closed. Clients may then ask METADATA only, and the
hosts of C{change_hosts} may change the group.
Rule 6: VOTE, HEART_BEAT, PUSH and a leader's LEADERSHIP_TRANSFER count only on the connection of the member
that they name, and while that member's own address answers; the first message that names its sender
introduces the connection. One that claims to be a member that it may not speak for ends.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

import attrs
from twisted.logger import Logger

from dledger.base.serving.tokens import ClientTokenFile, Grant, hashed_token
from dledger.node.connections.greeting import KnownMembers
from dledger.node.connections.server import Note
from dledger.values.errors import DLedgerError
from dledger.values.hosts import ChangeHosts, end_host, shared_address
from dledger.values.rights import ALL_RIGHTS, INCLUDED_ROLES, ClientRole, Rights
from protocols.ledger.connection import ServerConnection
from protocols.ledger.interfaces import Ticket
from protocols.wire.codes import ResponseCode
from protocols.wire.ledger.codes import RequestCode
from protocols.wire.ledger.message_table import MESSAGES
from protocols.wire.ledger.messages import (
    LeadershipTransferRequest,
    MembershipRequest,
    MetadataRequest,
    ReaderRequest,
    Request,
    VoteRequest,
)
from protocols.wire.ledger.owners import owner_of

#: The role that a client needs, by request; None: it needs none.
NEEDED: Mapping[RequestCode, ClientRole | None] = {
    kind: ClientRole(request.role) if request.role else None for kind, (request, _answer) in MESSAGES.items()
}

#: The rights of every caller of a closed member. (L{Access.refusal_of_change} then judges the address.)
_ONLY_CHANGES = attrs.evolve(ALL_RIGHTS, roles=frozenset({ClientRole.ADMIN}))

#: Finds the rights that its certificate gives to the other end of a connection.
RightsOf = Callable[[ServerConnection], Rights]
#: Answers a request that is refused.
Refuse = Callable[[ServerConnection, Ticket, Request, DLedgerError], None]


class Access:
    """
    The rights of all connections to one member.

    Invariant: C{_rights}, C{_owners} and C{_token_hashes} have only connections that have not ended. A
    connection is in C{_token_hashes} once it has sent a token that granted something in this group.

    @ivar is_guarded: whether L{allowed} may refuse a request: certificates or tokens give rights, or the
        member is closed.
    """

    log = Logger()

    def __init__(self, group: str, refuse: Refuse, note: Note) -> None:
        """
        @param group: name of this member's group; tokens that are for other groups count for nothing here.
        @param refuse: answers a request that is refused.
        @param note: reports an event.
        """
        self._group = group
        self._refuse = refuse
        self._note = note
        self._rights_of: RightsOf | None = None
        self._tokens: ClientTokenFile | None = None
        self._changers = ChangeHosts()
        self._rights: dict[ServerConnection, Rights] = {}
        self._owners: dict[ServerConnection, str] = {}
        self._token_hashes: dict[ServerConnection, str] = {}
        self.is_guarded = self._is_closed = False

    def judge_with(
        self, rights_of: RightsOf | None, tokens: ClientTokenFile | None = None,
        changers: ChangeHosts | None = None, *, is_closed: bool = False,
    ) -> None:
        """
        Set what gives rights. C{changers} and C{is_closed} count only if there are neither certificates nor
        tokens.

        @param rights_of: finds the rights that certificates give; None: certificates give none.
        @param tokens: the tokens of clients; None: tokens give no rights.
        @param changers: the hosts that may change the group; None: only this machine's loopback interface.
        @param is_closed: whether clients may do nothing except ask METADATA, and change the group.
        """
        self._rights_of = rights_of
        self._tokens = tokens
        self._changers = changers or ChangeHosts()
        knows_clients = rights_of is not None or tokens is not None
        self._is_closed = is_closed and not knows_clients
        self.is_guarded = knows_clients or self._is_closed

    def forget(self) -> None:
        """
        Forget the rights of all connections, because the members of the group have changed: the next request
        of each connection looks at its certificate again. Tokens still count.
        """
        self._rights.clear()
        self._owners.clear()

    def lost(self, connection: ServerConnection) -> None:
        """Forget a connection that has ended."""
        self._rights.pop(connection, None)
        self._owners.pop(connection, None)
        self._token_hashes.pop(connection, None)

    def refresh(self) -> None:
        """
        Read the tokens again if their file has changed, and end the connections whose tokens grant something
        else now. A file that is not sound changes nothing.
        """
        tokens = self._tokens
        if tokens is None:
            return
        before = {connection: tokens.grant_of(hashed) for connection, hashed in self._token_hashes.items()}
        try:
            if not tokens.refresh():
                return
        except ValueError as error:
            self.log.error("the tokens of clients stay as they were: {reason}", reason=str(error))
            return
        self.forget()
        for connection, grant in before.items():
            if tokens.grant_of(self._token_hashes[connection]) != grant:
                self._note("token-withdrawn", {"address": connection.address,
                                               "who": "" if grant is None else grant.name})
                connection.abort("its token grants something else now")

    def rights(self, connection: ServerConnection) -> Rights:
        """
        The rights of the other end of a connection.

        Call it from the first request on, not earlier, because a connection is ready before its TLS
        handshake, and so before its certificate is known.
        """
        rights = self._rights.get(connection)
        if rights is None:
            rights = self._rights[connection] = self._find_rights(connection)
        return rights

    def owner_of(self, connection: ServerConnection) -> str:
        """The account of the other end, or its address, as entries name it."""
        owner = self._owners.get(connection)
        if owner is None:
            account = self.rights(connection).who if self.is_guarded else ""
            address = shared_address(end_host(connection.transport.getPeer()))
            owner = self._owners[connection] = owner_of(account, address)
        return owner

    def is_known(self, connection: ServerConnection) -> bool:
        """
        Whether the other end has a role, or may speak for a member. If not, it stays a stranger, although it
        has named the group. Where nothing is guarded, or all is closed, nobody is a stranger.
        """
        if not self.is_guarded or self._is_closed:
            return True
        rights = self.rights(connection)
        return bool(rights.roles) or rights.members is None or bool(rights.members)

    def _find_rights(self, connection: ServerConnection) -> Rights:
        if self._rights_of is not None:
            rights = self._rights_of(connection)
        elif self._tokens is not None:
            rights = attrs.evolve(ALL_RIGHTS, roles=frozenset())
        else:
            return _ONLY_CHANGES if self._is_closed else ALL_RIGHTS
        grant = self._grant(self._token_hashes.get(connection))
        if grant is None or grant.role is None:
            return rights
        return attrs.evolve(
            rights, roles=rights.roles | INCLUDED_ROLES[grant.role], who=rights.who or grant.name)

    def _grant(self, hashed: str | None) -> Grant | None:
        """The grant of a token; None if it is unknown, or is for other groups."""
        if self._tokens is None or hashed is None:
            return None
        grant = self._tokens.grant_of(hashed)
        return grant if grant is not None and (not grant.groups or self._group in grant.groups) else None

    def allowed(
        self, connection: ServerConnection, requests: list[tuple[Ticket, Request]]
    ) -> list[tuple[Ticket, Request]]:
        """
        Refuse the requests that the other end may not make, and take note of the tokens that it sends.

        @return: the other requests, in order.
        """
        if self.rights(connection).roles >= ALL_RIGHTS.roles:
            return requests
        allowed: list[tuple[Ticket, Request]] = []
        for ticket, request in requests:
            needed = NEEDED[request.kind]
            if isinstance(request, MetadataRequest) and request.token:
                if self._takes_token(connection, ticket, request):
                    allowed.append((ticket, request))
                continue
            rights = self.rights(connection)
            is_member = rights.members is None and _is_by_member(connection, request)
            if needed is None or needed in rights.roles or is_member:
                allowed.append((ticket, request))
                continue
            self._note_forbidden(connection, request, rights.who)
            self._refuse(connection, ticket, request, DLedgerError(
                ResponseCode.FORBIDDEN, reason=f"{request.kind.name} needs the role {needed}"))
        return allowed

    def refusal_of_change(self, connection: ServerConnection, request: Request) -> DLedgerError | None:
        """
        Why the sender of a request may not change the group from its address.

        Addresses are judged only without certificates and tokens.

        @return: None if the request changes nothing, or may.
        """
        moves = isinstance(request, ReaderRequest) and request.is_change
        is_change = moves or NEEDED[request.kind] is ClientRole.ADMIN
        if (self.is_guarded and not self._is_closed) or not is_change:
            return None
        what = request.kind.name
        if isinstance(request, ReaderRequest):
            what += f" {request.does}"
        reason = self._changers.refusal(end_host(connection.transport.getPeer()), what)
        if not reason:
            return None
        self._note_forbidden(connection, request, "")
        return DLedgerError(ResponseCode.FORBIDDEN, reason=reason)

    def _note_forbidden(self, connection: ServerConnection, request: Request, who: str) -> None:
        self._note("request-forbidden", {"address": connection.address, "who": who,
                                         "request": request.kind.name, "role": str(NEEDED[request.kind])})

    def _takes_token(self, connection: ServerConnection, ticket: Ticket, request: MetadataRequest) -> bool:
        """
        Take note of the token in a request, or refuse the request.

        @return: whether the request may go on. Where tokens give no rights, it may, and its token is ignored.
        """
        if self._tokens is None:
            return True
        hashed = hashed_token(request.token)
        if self._grant(hashed) is None:
            self._note("token-refused", {"address": connection.address.rpartition(":")[0]})
            self._refuse(connection, ticket, request, DLedgerError(
                ResponseCode.FORBIDDEN, reason="the token is unknown, or of another group"))
            return False
        self._token_hashes[connection] = hashed
        self._rights.pop(connection, None)
        self._owners.pop(connection, None)
        return True


def _is_by_member(connection: ServerConnection, request: Request) -> bool:
    """
    Whether a connection that was taken for a member's makes a request that members make.

    Members make every request that does not change the group. Of the changes they make one: a leader sends
    LEADERSHIP_TRANSFER to its successor, and names itself in it.
    """
    if connection.peer_id is None:
        return False
    if NEEDED[request.kind] is not ClientRole.ADMIN:
        return True
    return isinstance(request, LeadershipTransferRequest) and request.transfer_id == connection.peer_id


#: Requests that only a peer sends.
PEERS_ONLY = frozenset({RequestCode.VOTE, RequestCode.HEART_BEAT, RequestCode.PUSH})


#: Why a request is not heard whose connection was ended for it.
ENDED = DLedgerError(ResponseCode.ILLEGAL_MEMBER_STATE, reason="the connection was ended")


class Claim(Protocol):
    """Claims a connection for a peer, see L{dledger.node.connections.server.MemberServer.claim}."""

    def __call__(self, connection: ServerConnection, peer_id: str, *, is_binding: bool) -> bool:
        """@return: whether it is the peer's; if not, it was aborted, or its request was not binding."""


class Speakers:
    """Decides for which member each connection of this one speaks."""

    def __init__(self, self_id: str, members: KnownMembers, access: Access, note: Note) -> None:
        self._self_id = self_id
        self._members = members
        self._access = access
        self._note = note
        self._claim: Claim = lambda connection, peer_id, *, is_binding: True
        self._vouches: Callable[[str], bool] = lambda peer_id: True

    def claim_with(self, claim: Claim, vouches: Callable[[str], bool]) -> None:
        """Set the functions that claim connections for peers, and that know which peers are present."""
        self._claim = claim
        self._vouches = vouches

    def admit(self, connection: ServerConnection, request: Request) -> bool:
        """Whether the connection may continue; a connection from a peer is claimed for it."""
        speaker = request.local_id
        if speaker is None and request.kind in PEERS_ONLY:
            speaker = request.leader_id  # DLedger 0.2 names itself only there
        if speaker is None or speaker == connection.peer_id or not self._members.knows(speaker):
            return True
        return self._speaks_for(connection, speaker, is_binding=request.kind is not RequestCode.METADATA)

    def is_greeting(self, connection: ServerConnection, request: MetadataRequest) -> bool:
        """Whether a member speaks for itself; not if another connection is taken for that member."""
        return connection.peer_id == request.local_id or not self._members.knows(request.local_id)

    def _speaks_for(self, connection: ServerConnection, peer_id: str, *, is_binding: bool) -> bool:
        """Whether the connection goes on: it is claimed for a member, or its request binds nobody."""
        rights = self._access.rights(connection)
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

    def refusal_for_core(self, connection: ServerConnection, request: Request) -> DLedgerError | None:
        """
        Why the core does not hear a request: a binding one comes in the name of a member that is not present
        (L{Peers.vouches}), or its sender may not change the group. A connection from a peer is claimed for
        it.

        Otherwise whoever speaks for a member that is down could depose leaders, or seem to lead for ever.

        @return: L{ENDED}: it claimed to be another member, and was aborted.
        """
        named, peer_id = None, connection.peer_id
        if request.kind in PEERS_ONLY:
            named = request.leader_id
        elif isinstance(request, LeadershipTransferRequest) and request.transfer_id != self._self_id:
            named = request.transfer_id
        if (peer_id is None or request.local_id != peer_id) and not self.admit(connection, request):
            return ENDED
        if named is None:
            refusal = self._access.refusal_of_change(connection, request)
            if refusal is None and isinstance(request, MembershipRequest) and not request.is_dry:
                self._note("change-asked", {
                    "address": connection.address, "change": request.change, "member_id": request.member_id,
                    "member_address": request.address, "is_forced": request.is_forced,
                    "configuration": self._members.membership.index,
                })
            return refusal
        if named != connection.peer_id and self._members.knows(named):
            self._note("claim-refused", {"peer_id": named, "address": connection.address,
                                         "reason": f"the connection speaks for {connection.peer_id}"})
            connection.abort(f"{request.kind.name} in the name of {named}")
            return ENDED
        if (type(request) is VoteRequest and request.pre_vote) or self._vouches(named):
            return None
        if self._members.knows(named):
            self._note("sender-absent", {"sender_id": named, "kind": request.kind.name,
                                         "address": connection.address})
        return DLedgerError(ResponseCode.ILLEGAL_MEMBER_STATE)
