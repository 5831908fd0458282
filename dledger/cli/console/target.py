# -*- test-case-name: tests.commands.test_main -*-
"""The group on which the commands work, as the options before the command name it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs
import click

import dledger
from dledger.cli.console.failures import remark
from dledger.values.addresses import DEFAULT_MEMBERS

if TYPE_CHECKING:
    from protocols.rocketmq.signing import Credentials


@attrs.frozen(kw_only=True)
class AdminAccess:
    """
    What a command shows to administrations, and whom it believes.

    @ivar token: empty: none. @ivar authority: PEM file; empty: the authorities of this system.
    """

    token: str = attrs.field(default="", repr=False)
    authority: str = ""


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
        """
        Open its log; without members, that of the group of one which C{twistd dledger} starts.

        @raise UsageError: the peers are malformed, or the context is unknown.
        """
        if self.problem:
            raise click.UsageError(self.problem)
        if not self.peers:
            _say_default()
        try:
            return dledger.connect(
                self.peers or DEFAULT_MEMBERS, group=self.group, timeout=self.timeout, wire=self.wire,
                tls=self.tls, token=self.token, envelope=envelope,
            )
        except ValueError as error:
            raise click.UsageError(str(error)) from None


def _say_default() -> None:
    """Say, once in a command, which group is meant where none is named."""
    context = click.get_current_context(silent=True)
    if context is not None and not context.meta.setdefault(f"{__name__}.said", False):
        context.meta[f"{__name__}.said"] = True
        remark(f"no members named: asking {DEFAULT_MEMBERS}. Name others with --peers "
               "'n0-host:port;n1-host:port', DLEDGER_PEERS, or dledger context; dledger local starts some")
