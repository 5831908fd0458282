# -*- test-case-name: tests.sim.test_pairs,tests.sim.test_raft_clients -*-
"""
The course of a schedule with clients, of either kind of log: clients begin, faults happen, all is healed, and
the promises of the brokers are judged, which a subclass knows.
"""

from __future__ import annotations

import random
import traceback
from collections.abc import Collection, Mapping
from functools import partial

import attrs

from dledger.testing.brokers.admin_traffic import TrafficWorld
from dledger.testing.brokers.asked_traffic import AskedTraffic
from dledger.testing.brokers.bad_logs import BadLogs
from dledger.testing.brokers.exams.exam import drawn_papers, examine
from dledger.testing.brokers.exams.lasting_papers import Loan
from dledger.testing.brokers.group_traffic import GroupStories
from dledger.testing.brokers.operator_traffic import OperatorStories
from dledger.testing.brokers.pair_faults import CLIENT, OTHER_CLIENT, SECOND_US, PairFaults
from dledger.testing.brokers.rig.accounts import ACKED, TrafficRecord, require_pair
from dledger.testing.brokers.rig.asking import ClientMachine
from dledger.testing.brokers.rig.machine import CLIENT_PORT, BrokerMachine
from dledger.testing.brokers.rig.states import check_stopped, has_ended_in_order
from dledger.values.errors import StoreError

#: Simulated seconds with faults, and after them at most until all is delivered and equal.
FAULTS_S, SETTLE_S = 25, 90
#: With faults, if there are no clients.
BARE_S = 16
#: The machine of a client that borrows a queue.
BORROWER = "10.0.1.11"


@attrs.frozen(kw_only=True)
class ClientsOutcome:
    """
    The end of a schedule.

    @ivar failure: what is wrong; empty if it passed.
    @ivar lines: the trace, or its end; empty if it was not asked for.
    @ivar acknowledged: number of messages that were answered with success.
    @ivar deliveries, again: see L{dledger.testing.brokers.rig.accounts.TrafficRecord}.
    @ivar restarts: number of processes after the first one of each machine.
    @ivar groups: the stories of L{dledger.testing.brokers.group_traffic} were played.
    """

    seed: int
    failure: str
    lines: tuple[str, ...]
    digest: int
    acknowledged: int = 0
    deliveries: int = 0
    again: int = 0
    restarts: int = 0
    groups: bool = False


class ClientWorld(PairFaults):
    """
    Brokers, and their clients.

    Implements L{dledger.testing.brokers.traffic.TrafficWorld}.

    @ivar is_loaded, is_over: see L{dledger.testing.brokers.traffic.TrafficWorld}.
    @ivar traffic: all clients; a subclass makes them with L{clients_of}.
    @ivar bad_logs: pages of logs that cannot be read.
    @ivar has_copies: there are slaves, and the master stays the master when it is restarted.
    @ivar has_clients: they send and consume, and brokers are examined in the end.
    """

    traffic: AskedTraffic
    has_copies = False
    has_clients = True

    def __init__(self, seed: int, name: str, *, wants_all_lines: bool = False) -> None:
        """@param name: of the kind of schedules; each kind draws other numbers from a seed."""
        self.seed = seed
        self.rng = random.Random(f"{seed} {name}")
        super().__init__(seed, wants_all_lines=wants_all_lines)
        self.accounts = TrafficRecord()
        self.is_over = False
        self.bad_logs = BadLogs(self)
        self.bugs.expects = partial(_is_of_a_disk, self.machines)

    # -- what the stories ask --------------------------------------------------------------------

    def master(self) -> str:
        """See L{dledger.testing.brokers.traffic.TrafficWorld}: the newest one, although it may have ended."""
        return f"{self._master}:{CLIENT_PORT}"

    def any_broker(self) -> str:
        return f"{self.rng.choice(list(self.machines))}:{CLIENT_PORT}"

    def any_of(self, draws: random.Random) -> str:
        return f"{draws.choice(list(self.machines))}:{CLIENT_PORT}"

    def process_of(self, target: str) -> tuple[int, int]:
        machine = self.machines[target.partition(":")[0]]
        return machine.disks, machine.boots

    def wall_ms(self) -> int:
        return int((1.7e9 + self.clock.now_us / 1e6) * 1000)

    def _spoil_log(self, machine: BrokerMachine) -> None:
        """A page of a log cannot be read."""
        self.bad_logs.spoil(machine)

    @staticmethod
    def log_has_ended(machine: BrokerMachine) -> bool:
        """Whether a machine says that its log was closed in order."""
        return has_ended_in_order(machine)

    # -- the course ------------------------------------------------------------------------------

    def run(self) -> None:
        """
        Play the schedule.

        @raise AssertionError: a promise was broken, or the code under test has failed.
        """
        with self.bugs.listening():
            for machine in self.machines.values():
                machine.exits = partial(
                    check_stopped, log_path=self.log_path(machine), log_has_ended=self.log_has_ended,
                )
                self.clock.after(int(self.fault_rng.random() * 500_000), machine.start)
            self.begin_load()
            self.clock.after(3 * SECOND_US if self.has_clients else 1, self.harm)
            self.clock.after(1, self._watch)
            self.clock.run_until((FAULTS_S if self.has_clients else BARE_S) * SECOND_US)
            self.heal()
            loan = _begin_loan(self) if self.has_clients else None
            _settle(self)
            self._judge()
            self.traffic.probe()
            self.clock.run_until(self.clock.now_us + 4 * SECOND_US)
            code = self.traffic.probed
            require_pair(code in self._answers_at_end(), 14, f"a message is answered with {code}")
            if self.has_clients:
                examine(self, drawn_papers(self.seed), loan)
            self.is_over = True
        reasons = [reason for machine in self.machines.values() for reason in machine.reasons]
        require_pair(not reasons, 13, f"ended by themselves: {reasons}")

    def begin_load(self) -> None:
        """Let messages be sent."""
        self.traffic.begin()

    def _watch(self) -> None:
        """Look at the brokers; called again and again."""
        raise NotImplementedError

    def unsettled(self) -> str:
        """What is still to come; empty if all is delivered, and equal."""
        raise NotImplementedError

    def _judge(self) -> None:
        """Judge the files of the brokers when nothing is to come. @raise AssertionError: they are wrong."""
        raise NotImplementedError

    def _answers_at_end(self) -> Collection[int]:
        """The codes of which one is the answer to a message when all is over."""
        return (0,)


def _begin_loan(world: ClientWorld) -> Loan:
    """Let a client borrow a queue."""
    client = ClientMachine(BORROWER, clock=world.clock, network=world.network,
                           rng=random.Random(f"{world.seed} borrower"), wrong=world.bugs.note)
    loan = Loan(world, client)
    client.begin(loan.play())
    return loan


def _settle(world: ClientWorld) -> None:
    """Wait until all is delivered, and equal. @raise AssertionError: B6, or another promise, is broken."""
    clock = world.clock
    end_us = clock.now_us + SETTLE_S * SECOND_US
    while (why := world.unsettled()):
        require_pair(clock.now_us < end_us, 6, f"after {SETTLE_S} s without faults: {why}")
        clock.run_until(clock.now_us + SECOND_US // 2)


def verdict_of(world: ClientWorld) -> str:
    """Play a schedule. @return: which promise was broken, or what has failed; empty: nothing."""
    try:
        world.run()
    except AssertionError as error:
        return str(error) or _traced(error)
    except Exception as error:  # any other exception of a simulated broker is a bug as well
        return _traced(error)
    return ""


def clients_outcome(world: ClientWorld) -> ClientsOutcome:
    """Play a schedule to its end. Never raises for a broken promise."""
    failure, accounts = verdict_of(world), world.accounts
    return ClientsOutcome(
        seed=world.seed, failure=failure, digest=world.digest,
        lines=tuple(world.lines) if failure or world.keeps_all else (),
        acknowledged=sum(one.outcome == ACKED for one in accounts.sent.values()),
        deliveries=accounts.deliveries, again=accounts.again,
        restarts=sum(machine.boots - 1 for machine in world.machines.values()),
        groups=len(world.traffic.parts) > 1,
    )


def draws(seed: int, name: str) -> bool:
    """Whether the mix of a seed has a kind of faults that three seeds in ten have."""
    return random.Random(f"{seed} {name}").random() < 0.3


def clients_of(
    world: TrafficWorld, course: ClientWorld, *, put_s: float, has_groups: bool = False
) -> AskedTraffic:
    """
    All clients of a schedule, on machines of theirs.

    @param world, course: the same world.
    @param has_groups: play the stories of groups and operators also if the seed does not draw them.
    """
    one, other = (ClientMachine(
        name, clock=course.clock, network=course.network, rng=random.Random(f"{course.seed} {own}"),
        wrong=course.bugs.note,
    ) for name, own in ((CLIENT, "client"), (OTHER_CLIENT, "other client")))
    traffic = AskedTraffic(world, one, put_s=put_s)
    if has_groups or draws(course.seed, "more stories"):
        own_draws = random.Random(f"{course.seed} groups")
        traffic.parts += [
            GroupStories(world, traffic, other=other, draws=own_draws),
            OperatorStories(world, traffic, own_draws),
        ]
    return traffic


def _is_of_a_disk(machines: Mapping[str, BrokerMachine], error: BaseException) -> bool:
    """Whether a logged failure may be that of a disk that was made to fail."""
    may_fail = any(machine.may_fail for machine in machines.values())
    return may_fail and isinstance(error, OSError | StoreError)


def _traced(error: Exception) -> str:
    return "".join(traceback.format_exception(error)[-6:])
