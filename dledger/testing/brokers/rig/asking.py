# -*- test-case-name: tests.sim.test_pairs -*-
"""
A machine with clients of brokers: real connections and commands, over the simulated network.

Every request has a deadline. A connection whose request is not answered in time is given up. A client may
send our native frames, too, over the same connection.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Coroutine, Mapping
from typing import TypeVar

from twisted.internet.defer import Deferred
from twisted.internet.task import deferLater
from twisted.python.failure import Failure

from dledger.base.keeper import Keeper
from dledger.base.reactor import whole_reactor
from dledger.base.serving.endpoints import connect_with
from dledger.testing.world.clock import SimClock
from dledger.testing.world.process import ProcessReactor, SimProcess
from dledger.testing.world.streams import ByteNetwork, StreamClient
from protocols.rocketmq.broker import BrokerConnection
from protocols.rocketmq.commands import CommandConnection, OnlyAsking
from protocols.turn import Turn
from protocols.wire.remoting import RemotingCommand
from protocols.wire.rocketmq.broker_frames import BrokerAnswer, BrokerRequest

TIMEOUT_S = 3.0

_T = TypeVar("_T")


class _Link(OnlyAsking):
    """The connection to one port of one broker."""

    def __init__(self, client: ClientMachine, target: str) -> None:
        self._client = client
        self._target = target
        self.keeper: Keeper[BrokerConnection] = Keeper(self._attempt, stops_alone=True)

    def _attempt(self) -> Deferred[BrokerConnection]:
        client = self._client
        endpoint = StreamClient(client.network, client.name, client.process, self._target)
        made: Deferred[BrokerConnection] = connect_with(endpoint, BrokerConnection(self, client.turn))
        return made

    def commands_received(self, connection: CommandConnection, commands: list[RemotingCommand]) -> None:
        for command in commands:
            self._client.asked(self._target, command)

    def connection_lost(self, connection: CommandConnection, reason: str) -> None:
        assert isinstance(connection, BrokerConnection)
        self.keeper.lost(connection)

    def give_up(self) -> None:
        """The other end does not answer."""
        if self.keeper.connection is not None:
            self.keeper.connection.abort("no answer")


class ClientMachine:
    """
    @ivar asked: called with the name of a port and each request that a broker sends us.
    @ivar wrong: called with each error of a story.
    """

    is_dying = False

    def __init__(
        self, name: str, *, clock: SimClock, network: ByteNetwork, rng: random.Random,
        wrong: Callable[[BaseException], None],
    ) -> None:
        self.name = name
        self.network = network
        self.wrong = wrong
        self.process = SimProcess(clock, rng, self)
        self.asked: Callable[[str, RemotingCommand], None] = lambda target, command: None
        self.reactor = whole_reactor(ProcessReactor(self.process))
        self.turn = Turn(self.reactor, self._wrong)
        self._links: dict[str, _Link] = {}

    def event_ended(self) -> None:
        """See L{dledger.testing.world.process.ProcessOwner.event_ended}."""

    def begin(self, story: Coroutine[Deferred[object], object, None]) -> None:
        """Let a story run; its errors are noted."""
        Deferred.fromCoroutine(story).addErrback(self._wrong)

    def _wrong(self, failure: Failure) -> None:
        error = failure.value
        assert error is not None
        self.wrong(error)

    def pause(self, seconds: float) -> Deferred[None]:
        """@return: fires after this time."""
        return deferLater(self.reactor, seconds, lambda: None)

    async def ask(
        self, target: str, code: int, fields: Mapping[str, object], body: bytes = b"", *, version: int = 0
    ) -> RemotingCommand | None:
        """
        Send a request.

        @param target: the name of a port. @param version: of the client, as RocketMQ counts them.
        @return: the answer; None if there is none, and the request may have been carried out.
        """
        command = RemotingCommand(code=code, opaque=0, body=body, ext_fields=_texts(fields), language="JAVA",
                                  version=version)
        link = self._link(target)
        return await self._in_time(link, link.keeper.ready().addCallback(lambda one: one.ask(command)))

    async def ask_natives(self, target: str, *requests: BrokerRequest) -> list[BrokerAnswer | None]:
        """
        Send native requests, all at once.

        @param target: the name of a port.
        @return: the answer to each; None if there is none, and the request may have been carried out.
        """
        link = self._link(target)
        asking = [link.keeper.ready().addCallback(_asked, one) for one in requests]
        found: list[BrokerAnswer | None] = []
        for one in asking:
            answer = await self._in_time(link, one)
            found.append(answer)
        return found

    async def _in_time(self, link: _Link, asking: Deferred[_T]) -> _T | None:
        asking.addTimeout(TIMEOUT_S, self.reactor)
        try:
            return await asking
        except TimeoutError:
            link.give_up()
            return None
        except Exception:  # the connection is lost, or was never made
            return None

    def connection(self, target: str) -> object:
        """The connection to a port, to be compared; None: there is none."""
        return self._links[target].keeper.connection if target in self._links else None

    def hang_up(self, target: str) -> None:
        """End the connection to a port, if there is one."""
        if target in self._links:
            self._links[target].give_up()

    def _link(self, target: str) -> _Link:
        link = self._links.get(target)
        if link is None:
            link = self._links[target] = _Link(self, target)
        return link


def _asked(connection: BrokerConnection, request: BrokerRequest) -> Deferred[BrokerAnswer]:
    done: Deferred[BrokerAnswer] = Deferred()

    def answered(answer: BrokerAnswer | Exception) -> None:
        if done.called:
            return  # it came too late
        if isinstance(answer, Exception):
            done.errback(answer)
        else:
            done.callback(answer)

    connection.request(request, answered)
    return done


def _texts(fields: Mapping[str, object]) -> dict[str, str]:
    return {name: str(value) for name, value in fields.items()}
