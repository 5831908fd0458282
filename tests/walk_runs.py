# -*- test-case-name: tests.test_walks -*-
"""
The runs that the walks of docs/ are compared with: each makes one call, with everything else at rest.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

from twisted.internet.defer import Deferred
from twisted.python.failure import Failure

from dledger.client.client import LogClient
from dledger.client.readers import NamedReader
from dledger.testing.brokers.client_world import ClientWorld
from dledger.testing.brokers.pair_schedule import PairFocus, PairWorld
from dledger.testing.brokers.pairs import CLIENT_PORT
from dledger.testing.brokers.rig.asking import ClientMachine
from dledger.testing.group.checks.sim_machines import is_refused
from dledger.testing.group.clients import Load, SimClient
from dledger.testing.group.members.cluster import SECOND_US, GroupOptions, SimCluster
from dledger.testing.raft_brokers.schedule import RaftWorld
from dledger.values.ledger.membership import PROMOTE
from protocols.wire.remoting import RemotingCommand
from tests.broker.popping.rig import PopCase, pop_of
from tests.broker.send_support import send_of
from tests.broker.transactions.rig import TransactionCase
from tests.walks import Calls

#: Brokers make it when it is first sent to.
TOPIC = "orders"
#: A seed of a group of brokers that makes topics.
RAFT_SEED = 3
#: Of the client: from elsewhere it may not change the members.
HOST = "127.0.0.1"
#: A command that the simulator's machine does not refuse.
TAKEN = next(body for body in (b"a", b"b", b"c", b"d") if not is_refused(body))


#: Files in which no run comes to the end of one: to make another is not on the road.
_WIDE: dict[str, object] = {
    "mapped_file_size_for_entry_data": 1 << 20, "mapped_file_size_for_entry_index": 1 << 16,
}


class _Group:
    """Three simulated members with a leader, whose client has found it."""

    def __init__(self, *, has_machines: bool = False, **settings: object) -> None:
        self.cluster = SimCluster(GroupOptions(settings=_WIDE | settings, has_machines=has_machines), 1)
        self.cluster.start()
        self.cluster.run(4)
        self._caller = SimClient(self.cluster, HOST, Load(), self.cluster.random("client"))
        self.run(lambda client: client.append(b"first"))

    def run(
        self, call: Callable[[LogClient], Deferred[Any]], seconds: float = 1, *, calls: Calls | None = None
    ) -> None:
        """
        Make a call of the client in its process, and wait.

        @raise AssertionError: it has failed, or has no answer yet.
        """
        found: list[object] = []

        def answered(result: object) -> None:
            found.append(result)
            if calls is not None:
                calls.note_answer()

        caller = self._caller
        caller._process.run(caller, lambda: call(caller._client).addBoth(answered))
        self.cluster.run(seconds)
        assert found and not isinstance(found[0], Failure), found


def append() -> Calls:
    """An append with C{flush_disk_type=sync}."""
    group = _Group(flush_disk_type="sync")
    with Calls() as calls:
        group.run(lambda client: client.append(b"body"), calls=calls)
    return calls


def command() -> Calls:
    """A command for the state machine."""
    group = _Group(has_machines=True)
    group.run(lambda client: client.submit_command(TAKEN))
    with Calls() as calls:
        group.run(lambda client: client.submit_command(TAKEN), calls=calls)
    return calls


def reader_commit() -> Calls:
    """A commit of a named reader."""
    group = _Group()
    readers: list[NamedReader] = []

    def begin(client: LogClient) -> Deferred[Any]:
        readers.append(client.reader("orders", begin=0))
        return readers[0].next_batch()

    group.run(begin, 3)
    with Calls() as calls:
        group.run(lambda _client: readers[0].commit(1), 0.4, calls=calls)
    return calls


def member_change() -> Calls:
    """A learner that is promoted."""
    group = _Group()
    spare = group.cluster.install_spare()
    assert spare is not None
    group.cluster.change_members("add", spare.member_id)
    group.cluster.run(5)
    with Calls() as calls:
        group.run(lambda client: client.change_members(PROMOTE, spare.member_id))
    return calls


def put() -> Calls:
    """A message to a master that waits for its slave, both whole brokers."""
    world = PairWorld(1, PairFocus(faults=("nothing",), role="SYNC_MASTER"))
    world.options["autoCreateTopicEnable"] = True
    return _put(world, world.master)


def raft_put() -> Calls:
    """A message to the master of three brokers on a raft log."""
    world = RaftWorld(RAFT_SEED, faults=("nothing",))

    def master() -> str:
        return next(
            f"{name}:{CLIENT_PORT}" for name, machine in world.machines.items()
            if machine.parts is not None and not machine.parts.config.role.is_slave
        )

    return _put(world, master)


def _put(world: ClientWorld, master: Callable[[], str]) -> Calls:
    clock = world.clock
    answers: list[RemotingCommand | None] = []
    client = ClientMachine(
        "producer", clock=clock, network=world.network, rng=Random(1), wrong=world.bugs.note
    )

    async def send(body: bytes) -> None:
        command = send_of(body, topic=TOPIC)
        answers.append(await client.ask(master(), command.code, command.ext_fields, body))
        calls.note_answer()

    calls = Calls()
    with world.bugs.listening():
        for machine in world.machines.values():
            machine.start()
        clock.run_until(15 * SECOND_US)
        for body in (b"first", b"second"):  # (the first one of a shape goes the long way)
            client.begin(send(body))
            clock.run_until(clock.now_us + SECOND_US)
        with calls:
            client.begin(send(b"third"))
            clock.run_until(clock.now_us + SECOND_US // 10)
    assert [answer is not None and answer.code for answer in answers] == [0] * 3, answers
    return calls


def pop() -> Calls:
    """A POP that waits, a message for it, and its acknowledgement."""
    case = PopCase("setUp")
    case.setUp()
    case.send(b"first")
    (given,) = case.pop()
    case.ack(given)
    case.settle()
    with Calls() as calls:
        case.client.send(pop_of(pollTime=10_000, bornTime=case.parts.wall_ms()))
        case.settle()
        case.send(b"body")
        (answer,) = case.client.received()
        (given,) = case.given(answer)
        case.ack(given)
        case.settle()
    case.doCleanups()
    return calls


def transaction() -> Calls:
    """A half message whose producer is asked, and commits it."""
    case = TransactionCase("setUp")
    case.setUp()
    with Calls() as calls:
        half = case.half()
        case.wait(20)
        case.end(half)
        case.broker.settle()
    case.doCleanups()
    return calls
