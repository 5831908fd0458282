# -*- test-case-name: tests.broker.test_parts -*-
"""The things that a broker gets from its process, and its replication from the broker."""

from __future__ import annotations

import random
from collections.abc import Callable, Set

import attrs
from twisted.internet.interfaces import IStreamClientEndpoint, IStreamServerEndpoint

from dledger.base.disk.disk import Disk
from dledger.base.reactor import Reactor
from dledger.base.threads import RunInThread
from dledger.rocketmq.broker.command_client import CommandClient
from dledger.rocketmq.broker.options.inside import BrokerInside
from dledger.rocketmq.broker.producing.tracing import MessageTrace
from dledger.rocketmq.store.records.events import BrokerEvents
from protocols.turn import Turn


@attrs.frozen(kw_only=True)
class BrokerSurroundings:
    """
    The parts that a process gives to its broker: all that it knows of its computer.

    @ivar reactor: its clock should be monotonic.
    @ivar wall_s: seconds since 1970.
    @ivar rng: the only source of chance of the broker.
    @ivar run_in_thread: runs calls that would block the reactor, such as fsyncs.
    @ivar endpoint_of: makes the endpoint to an address C{host:port}.
    @ivar failed: called with the reason when the broker cannot continue.
    @ivar ha_listen: the endpoint to which slaves connect; None: no slave can connect.
    @ivar trace: makes the spans of messages; None: messages have no spans.
    """

    reactor: Reactor
    disk: Disk
    rng: random.Random
    wall_s: Callable[[], float]
    run_in_thread: RunInThread
    endpoint_of: Callable[[str], IStreamClientEndpoint]
    failed: Callable[[str], None]
    ha_listen: IStreamServerEndpoint | None = None
    trace: MessageTrace | None = None

    def steady_clock(self) -> Callable[[], int]:
        """
        For spans of time in this process: milliseconds since 1970 that go on evenly from the time of day of
        this call, also when somebody sets the clock of the computer.
        """
        seconds = self.reactor.seconds
        zero_ms = (self.wall_s() - seconds()) * 1000
        return lambda: round(zero_ms + seconds() * 1000)


@attrs.frozen(kw_only=True)
class ReplicationNeeds:
    """
    The parts of a broker that its replication uses.

    @ivar client: sends requests to other brokers.
    @ivar events: the replication calls them when its log has grown.
    @ivar turn: gathers the output of the broker's connections.
    @ivar kept_topics: returns the topics that have messages here which no deletion covers.
    """

    inside: BrokerInside
    around: BrokerSurroundings
    client: CommandClient
    events: BrokerEvents
    turn: Turn
    kept_topics: Callable[[], Set[str]]
