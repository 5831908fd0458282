# -*- test-case-name: tests.base.commands.test_changes -*-
"""
The gate of a port of RocketMQ's kind that has no accounts: changes are taken from the hosts that may ask for
them (L{dledger.values.hosts}), and on connections with a certificate of the other end, which a port demands
if it asks for one.
"""

from __future__ import annotations

from collections.abc import Callable

from dledger.rocketmq.answering.refusals import Code, Refused
from dledger.values.hosts import ChangeHosts, end_host
from protocols.rocketmq.commands import CommandConnection
from protocols.wire.remoting import RemotingCommand


class ChangeGate:
    """
    A L{RequestGate <dledger.rocketmq.answering.answering.RequestGate>} that judges no send.

    Rule: what is a change is asked of one function for every request, so a code that it does not know is one.
    """

    judges_sends = False

    def __init__(self, hosts: ChangeHosts, change_of: Callable[[RemotingCommand], str]) -> None:
        """@param change_of: what a request changes, as the subject of a sentence; empty: nothing."""
        self._hosts = hosts
        self._change_of = change_of

    def check(self, connection: CommandConnection, request: RemotingCommand) -> None:
        """@raise Refused: NO_PERMISSION: it is a change, and its sender may ask for none."""
        change = self._change_of(request)
        if change:
            self.demand(connection, request, change)

    def demand(self, connection: CommandConnection, request: RemotingCommand, change: str) -> None:
        """@raise Refused: NO_PERMISSION: the other end may not ask for C{change}."""
        if has_certificate(connection):
            return
        host = end_host(connection.transport.getPeer())
        refusal = self._hosts.refusal(host, f"{change} (request {request.code})")
        if refusal:
            raise Refused(Code.NO_PERMISSION, refusal)


def has_certificate(connection: CommandConnection) -> bool:
    """
    Whether the other end has shown a certificate, which the handshake has found to be of the authority. A
    port that demands none asks for none.
    """
    shown: Callable[[], object] | None = getattr(connection.transport, "getPeerCertificate", None)
    return shown is not None and shown() is not None
