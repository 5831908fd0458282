# -*- test-case-name: tests.commands.test_main -*-
"""The group on which the commands work, as the options before the command name it."""

from __future__ import annotations

import attrs
import click

import dledger
from dledger.commands.administration import AdminAccess
from protocols.rocketmq.signing import Credentials


@attrs.frozen(kw_only=True)
class Target:
    """
    The group on which the commands work.

    @ivar problem: why the context that is meant is not known; empty: nothing.
    @ivar without_context: what of this holds for addresses that a command names itself; None: all of it.
    """

    peers: str
    group: str
    timeout: float
    wire: str
    tls: dledger.TlsFiles | None = None
    token: dledger.ClientToken | None = None
    token_file: str = ""
    credentials: Credentials | None = None
    admin: AdminAccess = AdminAccess()
    problem: str = ""
    without_context: Target | None = None

    @property
    def elsewhere(self) -> Target:
        """The same for a command that names addresses itself."""
        return self.without_context or self

    def open(self, *, envelope: bool = False) -> dledger.Log:
        """Open its log. @raise UsageError: the peers are missing or malformed, or the context is unknown."""
        if self.problem:
            raise click.UsageError(self.problem)
        if not self.peers:
            raise click.UsageError(
                "no members named: give --peers 'n0-host:port;n1-host:port', set DLEDGER_PEERS, or name them "
                "in a context: see dledger context"
            )
        try:
            return dledger.connect(
                self.peers, group=self.group, timeout=self.timeout, wire=self.wire, tls=self.tls,
                token=self.token, envelope=envelope,
            )
        except ValueError as error:
            raise click.UsageError(str(error)) from None
