# -*- test-case-name: tests.broker.test_command_client -*-
"""
Sends requests to brokers and name servers, over one connection per address, opened on demand and kept.

Knows addresses and commands, not their meaning. Every request has a deadline. A connection that has answered
nothing since a request that is late is given up: the next request gets another one.
"""

from __future__ import annotations

from collections.abc import Callable

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IReactorTime, IStreamClientEndpoint
from twisted.logger import Logger

from dledger.base.keeper import Keeper
from dledger.base.serving.endpoints import connect_with
from protocols.rocketmq.commands import CommandConnection, NotAsked, OnlyAsking
from protocols.rocketmq.signing import Credentials
from protocols.turn import Turn
from protocols.wire.errors import WireError
from protocols.wire.remoting import RemotingCommand


class _Peer(OnlyAsking):
    """One address."""

    def __init__(self, client: CommandClient, address: str) -> None:
        self._client = client
        self._address = address
        self.keeper: Keeper[CommandConnection] = Keeper(self._attempt, stops_alone=True)
        self.answered = 0

    def answers(self, answer: RemotingCommand) -> RemotingCommand:
        """An answer has come."""
        self.answered += 1
        return answer

    def _attempt(self) -> Deferred[CommandConnection]:
        endpoint = self._client.endpoint_of(self._address)
        connecting: Deferred[CommandConnection] = connect_with(
            endpoint, CommandConnection(self, self._client.turn, credentials=self._client.credentials)
        )
        return connecting

    def wire_broken(self, connection: CommandConnection, error: WireError) -> None:
        self._client.log.warn(
            "{address} broke the format: {reason}", address=self._address, reason=str(error)
        )

    def connection_lost(self, connection: CommandConnection, reason: str) -> None:
        self.keeper.lost(connection)

    def close(self) -> None:
        self.keeper.close(NotAsked("the client is closed"))
        if self.keeper.connection is not None:
            self.keeper.connection.abort("closed by us")


class CommandClient:
    """
    Connections by address.

    @ivar endpoint_of: from C{host:port} to the endpoint of that address.
    @ivar credentials: requests are signed with them; None: they are not signed.
    """

    log = Logger()

    def __init__(
        self, *, clock: IReactorTime, turn: Turn, endpoint_of: Callable[[str], IStreamClientEndpoint],
        credentials: Credentials | None = None,
    ) -> None:
        self._clock = clock
        self._peers: dict[str, _Peer] = {}
        self._is_closed = False
        self.turn = turn
        self.endpoint_of = endpoint_of
        self.credentials = credentials

    def ask(self, address: str, command: RemotingCommand, *, timeout_s: float) -> Deferred[RemotingCommand]:
        """
        Send a request; connect first if necessary.

        @param timeout_s: seconds for connecting and the answer together.
        @return: fires with the answer, of any code. Fails with C{TimeoutError}, L{NotAsked}, or the error of
            the connection attempt.
        """
        if self._is_closed:
            done: Deferred[RemotingCommand] = Deferred()
            done.errback(NotAsked("the client is closed"))
            return done
        peer = self._peers.get(address)
        if peer is None:
            peer = self._peers[address] = _Peer(self, address)
        asking = peer.keeper.ready().addCallback(lambda connection: connection.ask(command))
        asking.addCallback(peer.answers)
        connection, answered = peer.keeper.connection, peer.answered

        def timed_out(_: object, seconds: float) -> RemotingCommand:
            if connection is not None and peer.answered == answered:
                connection.abort("it has not answered in time")
            raise TimeoutError(f"{address} has not answered request {command.code} within {seconds:g} s")

        asking.addTimeout(timeout_s, self._clock, onTimeoutCancel=timed_out)
        return asking

    def is_connected(self, address: str) -> bool:
        """Whether a connection is open now; a connection that has just been lost is not."""
        peer = self._peers.get(address)
        return peer is not None and peer.keeper.connection is not None

    def forget(self, address: str) -> None:
        """Close the connection to an address that is no longer needed."""
        peer = self._peers.pop(address, None)
        if peer is not None:
            peer.close()

    def sweep(self, now_s: float) -> None:
        """Close connections that are idle. Called regularly."""
        for peer in self._peers.values():
            if peer.keeper.connection is not None:
                peer.keeper.connection.sweep(now_s)

    def close(self) -> None:
        """Close every connection; pending and later requests fail."""
        self._is_closed = True
        for address in list(self._peers):
            self.forget(address)
