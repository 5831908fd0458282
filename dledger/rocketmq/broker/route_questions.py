# -*- test-case-name: tests.broker.test_parts -*-
"""Asks the name servers where a topic is."""

from __future__ import annotations

from collections.abc import Sequence

from twisted.internet.defer import Deferred

from dledger.rocketmq.broker.command_client import CommandClient
from protocols.rocketmq.commands import NotAsked
from protocols.wire.remoting import RemotingCommand

GET_ROUTE_BY_TOPIC = 105
#: Seconds that a name server may take to report a route.
ROUTE_TIMEOUT_S = 3.0


class RouteQuestions:
    """Asks the name servers of one broker, one after the other, until one answers."""

    def __init__(self, name_servers: Sequence[str], client: CommandClient) -> None:
        self._name_servers = name_servers
        self._client = client

    def ask(self, topic: str) -> Deferred[RemotingCommand]:
        """Ask the name servers for the queues of a topic, one after the other."""
        return Deferred.fromCoroutine(self._ask(topic))

    async def _ask(self, topic: str) -> RemotingCommand:
        problem = "there is no name server"
        for address in self._name_servers:
            try:
                return await self._client.ask(address, RemotingCommand(
                    code=GET_ROUTE_BY_TOPIC, opaque=0, ext_fields={"topic": topic}
                ), timeout_s=ROUTE_TIMEOUT_S)
            except Exception as error:
                problem = str(error)
        raise NotAsked(problem)
