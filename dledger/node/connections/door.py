# -*- test-case-name: tests.node.test_door -*-
"""
What the other end of each connection may ask: by its certificate, by its token, or, in a group without both,
by its address: everything but changes from everywhere, changes from the hosts that may (C{change_hosts}).

Rule 1: a request beyond the rights of its connection is answered FORBIDDEN (440), and reaches nobody.
Rule 2: a token counts for the connection on which it was shown. Here is only its hash, and its grant is
looked up again whenever the file has changed: a connection whose token grants something else, or nothing,
ends.
Rule 3: a member is known by its certificate. Without TLS nobody is, and a connection that was taken for a
member's needs no role for what members ask one another. No member asks another for a change of the group: a
leader's LEADERSHIP_TRANSFER to its successor, which names itself, is a member's word like a push.
Rule 4: what changes the group is what needs the role C{admin}.
Rule 5: a door without certificates and tokens may be closed: then clients may ask METADATA only, and for
changes from where they may.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import attrs
from twisted.logger import Logger

from dledger.base.serving.tokens import ClientTokenFile, Grant, hashed_token
from dledger.node.connections.server import Note
from dledger.values.errors import DLedgerError
from dledger.values.hosts import ChangeHosts, end_host
from dledger.values.rights import ALL_RIGHTS, INCLUDED_ROLES, ClientRole, Rights
from protocols.ledger.connection import ServerConnection
from protocols.ledger.interfaces import Ticket
from protocols.wire.codes import ResponseCode
from protocols.wire.ledger.codes import RequestCode
from protocols.wire.ledger.messages import LeadershipTransferRequest, MetadataRequest, Request

#: What a client must be allowed to do, for every request. METADATA needs nothing (None); what only members
#: ask is judged by their connections.
NEEDED: Mapping[RequestCode, ClientRole | None] = {
    RequestCode.METADATA: None,
    RequestCode.VOTE: None,
    RequestCode.HEART_BEAT: None,
    RequestCode.PUSH: None,
    RequestCode.SNAPSHOT: None,
    RequestCode.GET: ClientRole.READ,
    RequestCode.PULL: ClientRole.READ,
    RequestCode.APPEND: ClientRole.APPEND,
    RequestCode.APPEND_IF: ClientRole.APPEND,
    RequestCode.APPEND_ONCE: ClientRole.APPEND,
    RequestCode.SUBMIT: ClientRole.APPEND,
    RequestCode.READER: ClientRole.APPEND,
    RequestCode.QUERY: ClientRole.READ,
    RequestCode.LEADERSHIP_TRANSFER: ClientRole.ADMIN,
    RequestCode.MEMBERSHIP: ClientRole.ADMIN,
    RequestCode.SKIP: ClientRole.ADMIN,
}

#: Of everybody at a closed door. (Who may change something is judged by the address then.)
_ONLY_CHANGES = attrs.evolve(ALL_RIGHTS, roles=frozenset({ClientRole.ADMIN}))

#: The rights of the other end of a connection by its certificate.
RightsOf = Callable[[ServerConnection], Rights]
#: Answers a request that is refused.
Refuse = Callable[[ServerConnection, Ticket, Request, DLedgerError], None]


class Door:
    """
    Invariant: C{_rights} has nothing of a connection that has ended, C{_shown} the hashes of the tokens that
    were known when they were shown.

    @ivar is_guarded: whether certificates or tokens decide.
    """

    log = Logger()

    def __init__(self, group: str, refuse: Refuse, note: Note) -> None:
        """@param group: of this member; a token may be one of others."""
        self._group = group
        self._refuse = refuse
        self._note = note
        self._rights_of: RightsOf | None = None
        self._tokens: ClientTokenFile | None = None
        self._changers = ChangeHosts()
        self._rights: dict[ServerConnection, Rights] = {}
        self._shown: dict[ServerConnection, str] = {}
        self.is_guarded = self._is_closed = False

    def judge_with(
        self, rights_of: RightsOf | None, tokens: ClientTokenFile | None = None,
        changers: ChangeHosts | None = None, *, is_closed: bool = False,
    ) -> None:
        """
        Set what gives rights.

        @param rights_of: None: certificates give none. Without tokens, too, everybody may do everything but
            change the group.
        @param changers: who may do that then; None: this machine's loopback interface.
        @param is_closed: and clients may do nothing else then.
        """
        self._rights_of, self._tokens = rights_of, tokens
        self._changers = changers or ChangeHosts()
        knows_clients = rights_of is not None or tokens is not None
        self._is_closed = is_closed and not knows_clients
        self.is_guarded = knows_clients or self._is_closed

    def forget(self) -> None:
        """The members of the group are others now: look at the certificates again."""
        self._rights.clear()

    def lost(self, connection: ServerConnection) -> None:
        """A connection has ended."""
        self._rights.pop(connection, None)
        self._shown.pop(connection, None)

    def refresh(self) -> None:
        """Read the tokens again if their file has changed, and end the connections that this concerns."""
        tokens = self._tokens
        if tokens is None:
            return
        before = {connection: tokens.grant_of(hashed) for connection, hashed in self._shown.items()}
        try:
            if not tokens.refresh():
                return
        except ValueError as error:
            self.log.error("the tokens of clients stay as they were: {reason}", reason=str(error))
            return
        self._rights.clear()
        for connection, grant in before.items():
            if tokens.grant_of(self._shown[connection]) != grant:
                self._note("token-withdrawn", {"address": connection.address,
                                               "who": "" if grant is None else grant.name})
                connection.abort("its token grants something else now")

    def rights(self, connection: ServerConnection) -> Rights:
        """Of the other end; not before its first request: a connection is ready before its handshake."""
        rights = self._rights.get(connection)
        if rights is None:
            rights = self._rights[connection] = self._looked_up(connection)
        return rights

    def is_known(self, connection: ServerConnection) -> bool:
        """Whether the other end may do anything: else it stays a stranger, although it knows the group."""
        if not self.is_guarded or self._is_closed:
            return True
        rights = self.rights(connection)
        return bool(rights.roles) or rights.members is None or bool(rights.members)

    def _looked_up(self, connection: ServerConnection) -> Rights:
        if self._rights_of is not None:
            rights = self._rights_of(connection)
        elif self._tokens is not None:
            rights = attrs.evolve(ALL_RIGHTS, roles=frozenset())
        else:
            return _ONLY_CHANGES if self._is_closed else ALL_RIGHTS
        grant = self._grant(self._shown.get(connection))
        if grant is None or grant.role is None:
            return rights
        return attrs.evolve(
            rights, roles=rights.roles | INCLUDED_ROLES[grant.role], who=rights.who or grant.name)

    def _grant(self, hashed: str | None) -> Grant | None:
        """What a token grants in this group."""
        if self._tokens is None or hashed is None:
            return None
        grant = self._tokens.grant_of(hashed)
        return grant if grant is not None and (not grant.groups or self._group in grant.groups) else None

    def allowed(
        self, connection: ServerConnection, requests: list[tuple[Ticket, Request]]
    ) -> list[tuple[Ticket, Request]]:
        """Those of C{requests} that the other end may make; the others are refused."""
        if self.rights(connection).roles >= ALL_RIGHTS.roles:
            return requests
        allowed: list[tuple[Ticket, Request]] = []
        for ticket, request in requests:
            needed = NEEDED[request.kind]
            if isinstance(request, MetadataRequest) and request.token:
                if self._is_shown(connection, ticket, request):
                    allowed.append((ticket, request))
                continue
            rights = self.rights(connection)
            is_member = rights.members is None and _is_of_member(connection, request)
            if needed is None or needed in rights.roles or is_member:
                allowed.append((ticket, request))
                continue
            self._note_forbidden(connection, request, rights.who)
            self._refuse(connection, ticket, request, DLedgerError(
                ResponseCode.FORBIDDEN, reason=f"{request.kind.name} needs the role {needed}"))
        return allowed

    def refusal_of_change(self, connection: ServerConnection, request: Request) -> DLedgerError | None:
        """Why a request that L{allowed} has passed is refused by the address of its sender."""
        if (self.is_guarded and not self._is_closed) or NEEDED[request.kind] is not ClientRole.ADMIN:
            return None
        reason = self._changers.refusal(end_host(connection.transport.getPeer()), request.kind.name)
        if not reason:
            return None
        self._note_forbidden(connection, request, "")
        return DLedgerError(ResponseCode.FORBIDDEN, reason=reason)

    def _note_forbidden(self, connection: ServerConnection, request: Request, who: str) -> None:
        self._note("request-forbidden", {"address": connection.address, "who": who,
                                         "request": request.kind.name, "role": str(NEEDED[request.kind])})

    def _is_shown(self, connection: ServerConnection, ticket: Ticket, request: MetadataRequest) -> bool:
        """Whether the request goes on: its token counts from now on, or there are none here."""
        if self._tokens is None:
            return True
        hashed = hashed_token(request.token)
        if self._grant(hashed) is None:
            self._note("token-refused", {"address": connection.address.rpartition(":")[0]})
            self._refuse(connection, ticket, request, DLedgerError(
                ResponseCode.FORBIDDEN, reason="the token is unknown, or of another group"))
            return False
        self._shown[connection] = hashed
        self._rights.pop(connection, None)
        return True


def _is_of_member(connection: ServerConnection, request: Request) -> bool:
    """Whether a request is one of those that members make, on a connection that was taken for a member's."""
    if connection.peer_id is None or NEEDED[request.kind] is not ClientRole.ADMIN:
        return connection.peer_id is not None
    return isinstance(request, LeadershipTransferRequest) and request.transfer_id == connection.peer_id
