# -*- test-case-name: tests.node.test_service -*-
"""The arguments of the service of a member: its process, its endpoints, and the programs that run with it."""

from __future__ import annotations

import random
import time
from collections.abc import Callable

import attrs
from twisted.application.service import IService
from twisted.internet.interfaces import IStreamServerEndpoint

from dledger.base.disk.disk import Disk
from dledger.base.reactor import Reactor
from dledger.core.driver import Driver
from dledger.node.broker_hooks import Embedding
from dledger.node.connections.peers import Dial
from dledger.node.host import MachineHost
from dledger.node.node import MakeDriver, Node
from dledger.node.requests.machine_requests import Hosting
from dledger.node.threads import MemberThreads

#: Makes the state machine of a node.
MakeMachine = Callable[[Node, MachineHost], Hosting]

#: Returns the seconds since 1970, and the local hour, 0 to 23.
WallClock = Callable[[], tuple[float, int]]


def system_wall_clock() -> tuple[float, int]:
    """The wall clock of this computer: seconds since 1970, and the local hour, 0 to 23."""
    now_s = time.time()
    return now_s, time.localtime(now_s).tm_hour


@attrs.frozen(kw_only=True)
class MemberProcess:
    """
    The process in which a member runs, and the computer that runs it.

    @ivar reactor: a reactor; its clock should be monotonic.
    @ivar disk: holds the member's files.
    @ivar rng: the only source of chance of the member.
    @ivar failed: called with the reason when the member cannot start or continue; the process should then
        end.
    @ivar boot_id: names this boot of the computer; empty if not known.
    @ivar threads: run what would block the reactor; None: the member makes threads of its own.
    @ivar serving: called when the member listens.
    @ivar wall_clock: used by retention, house-keeping and events. The local hour is that of
        C{delete_when}.
    """

    reactor: Reactor
    disk: Disk
    rng: random.Random
    failed: Callable[[str], None]
    boot_id: str = ""
    threads: MemberThreads | None = None
    serving: Callable[[], None] = lambda: None
    wall_clock: WallClock = system_wall_clock


@attrs.frozen(kw_only=True)
class MemberEndpoints:
    """
    Where a member listens, and how it connects to others.

    @ivar listen: endpoint to listen on; None: L{dledger.node.endpoints.listen_description} names it.
    @ivar dial: makes the endpoint to a member from its id and address; None:
        L{dledger.node.endpoints.peer_endpoint} makes it.
    """

    listen: IStreamServerEndpoint | None = None
    dial: Dial | None = None


@attrs.frozen(kw_only=True)
class MemberExtras:
    """
    The parts of a member besides its log.

    @ivar make_admin: makes the service of the admin pages, once the member listens; None: it has no pages.
    @ivar admin: listening address of that service, for people.
    @ivar make_driver: makes the driver of the core; the simulator's driver checks each step.
    @ivar make_machine: makes the state machine of the member; None: it has none.
    @ivar embedding: the program in this process that alone appends; None: clients append.
    @ivar version: of the software.
    """

    make_admin: Callable[[Node], IService] | None = None
    admin: str = ""
    make_driver: MakeDriver = Driver
    make_machine: MakeMachine | None = None
    embedding: Embedding | None = None
    version: str = ""
