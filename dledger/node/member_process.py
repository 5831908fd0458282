# -*- test-case-name: tests.node.test_service -*-
"""The things that the service of a member is given: its process, its endpoints, and what runs with it."""

from __future__ import annotations

import random
import time
from collections.abc import Callable

import attrs
from twisted.application.service import IService
from twisted.internet.interfaces import IStreamServerEndpoint

from dledger.base.disk.disk import Disk
from dledger.base.process.reactor import Reactor
from dledger.driver.driver import Driver
from dledger.node.broker_hooks import Embedding
from dledger.node.connections.peers import Dial
from dledger.node.host import MachineHost
from dledger.node.node import MakeDriver, Node
from dledger.node.requests.machine_requests import Hosting
from dledger.node.threads import MemberThreads

#: Makes a state machine for a node.
MakeMachine = Callable[[Node, MachineHost], Hosting]

#: Seconds since 1970, and the local hour.
WallClock = Callable[[], tuple[float, int]]


def wall_clock() -> tuple[float, int]:
    """Seconds since 1970, and the local hour."""
    now_s = time.time()
    return now_s, time.localtime(now_s).tm_hour


@attrs.frozen(kw_only=True)
class MemberProcess:
    """
    The process in which a member runs, and the machine below it.

    @ivar reactor: a reactor; its clock should be monotonic.
    @ivar failed: called with the reason when the member cannot start or continue; the process should then
        end.
    @ivar boot_id: of this boot of the machine; empty if not known.
    @ivar threads: None: threads of its own.
    @ivar local_time: the wall clock; retention and house-keeping go by it.
    """

    reactor: Reactor
    disk: Disk
    rng: random.Random
    failed: Callable[[str], None]
    boot_id: str = ""
    threads: MemberThreads | None = None
    local_time: WallClock = wall_clock


@attrs.frozen(kw_only=True)
class MemberEndpoints:
    """
    @ivar listen: endpoint to listen on; None: see L{dledger.node.endpoints.listen_description}.
    @ivar dial: makes the endpoint to a member from its id and address; None: see
        L{dledger.node.endpoints.peer_endpoint}.
    """

    listen: IStreamServerEndpoint | None = None
    dial: Dial | None = None


@attrs.frozen(kw_only=True)
class MemberExtras:
    """
    What runs in a member besides its log.

    @ivar make_admin: makes the administration service, once the member listens.
    @ivar admin: listening address of that service, for people.
    @ivar make_driver: see L{Node}.
    @ivar make_machine: makes the state machine of the member.
    @ivar embedding: the program that alone appends.
    """

    make_admin: Callable[[Node], IService] | None = None
    admin: str = ""
    make_driver: MakeDriver = Driver
    make_machine: MakeMachine | None = None
    embedding: Embedding | None = None
