# -*- test-case-name: tests.client.test_members -*-
"""How a client knows that a member is the one that it asks for, and shows the member that it may ask."""

from __future__ import annotations

import attrs
from twisted.internet.interfaces import IStreamClientEndpoint

from dledger.base.tls.securing import Dialling
from dledger.values.addresses import is_loopback, parse_address
from dledger.values.client_token import ClientToken
from dledger.values.errors import DLedgerError
from protocols.wire.codes import ResponseCode


@attrs.frozen(kw_only=True)
class ClientSecurity:
    """
    @ivar tls: makes the connections by TLS; None: they are plain.
    @ivar token: shown to each member in the first request of a connection; None: there is none.
    """

    tls: Dialling | None = None
    token: ClientToken | None = None

    @property
    def token_text(self) -> str:
        """The token as METADATA has it; empty if there is none."""
        return "" if self.token is None else self.token.text

    def check(self, address: str) -> None:
        """@raise DLedgerError: everybody on the way to C{address} would read the token."""
        token = self.token
        if token is not None and self.tls is None and not (
            token.is_insecure or is_loopback(parse_address(address)[0])
        ):
            raise DLedgerError(
                ResponseCode.FORBIDDEN, reason=f"the token is not shown to {address} without TLS: give the "
                "authority of the members' certificates, or say that it may be (insecure)",
            )

    def dial(self, endpoint: IStreamClientEndpoint, member_id: str) -> IStreamClientEndpoint:
        """The endpoint to a member; by TLS it has to prove that it is C{member_id}."""
        return endpoint if self.tls is None else self.tls.dial(endpoint, member_id)

    @property
    def why_silent(self) -> str:
        """A guess why a member has ended a connection before its first answer."""
        if self.tls is None:
            return "the member may want TLS"
        return "the member may have no TLS, or not take this certificate"


#: Plain connections, without a token.
NO_SECURITY = ClientSecurity()
