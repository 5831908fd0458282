# -*- test-case-name: tests.sim.test_machines -*-
"""
Faults of the state machines of a simulated group, and its operator: beside the faults of
L{dledger.testing.group.injection.faults}, and drawn from a stream of their own.

A call of a machine takes seconds; snapshots do; one machine fails at an entry that others can apply. The
operator looks at the group: an entry at which the machine of the leader has failed is skipped, and a member
whose machine alone has failed is started again. Now and then it asks a member for a snapshot: one that
was promised is there in the end, or being written, unless that process has ended or could not write it.
"""

from __future__ import annotations

import random
from functools import partial

from dledger.machine.runner import MachineRunner
from dledger.node.node import Node
from dledger.testing.group.checks.machines import MachineRules
from dledger.testing.group.members.cluster import SECOND_US, SimCluster
from dledger.testing.group.members.member import SimMember
from protocols.wire.codes import ResponseCode
from protocols.wire.ledger.messages import Response

#: Mean time between two faults, and between two looks of the operator.
FAULT_US, LOOK_US = 4 * SECOND_US, SECOND_US
#: Mean time of a call that hangs, and longest time for which all of a member do.
HANG_US, HANGS_US = 2 * SECOND_US, 6 * SECOND_US
#: Share of the looks in which the operator does something; all of them, when the faults are over.
DILIGENCE = 0.4
#: Share of the looks at a member in which the operator asks it for a snapshot.
ASKS = 0.05
#: Snapshots that a member may miss one after the other, and entries more: it writes one at a time.
MISSED, MISSED_MORE = 8, 250


class MachineTroubles:
    """
    The source of these faults in one schedule.

    @ivar skips: orders to skip an entry that were accepted.
    @ivar asked: the last snapshot that each member promised: the process, and the last entry in its state.
    """

    def __init__(
        self, cluster: SimCluster, rules: MachineRules, rng: random.Random, *, seconds: float
    ) -> None:
        self._cluster = cluster
        self._rules = rules
        self._rng = rng
        self._asking = cluster.random("snapshots that are asked for")
        self._again = cluster.random("members that are started again")
        self._until_us = int(seconds * SECOND_US)
        self.skips = 0
        self.asked: dict[str, tuple[Node, int]] = {}
        # A process whose machine runs, and the last entry in the state when that was seen first.
        self._sound_from: dict[str, tuple[Node, int]] = {}

    def start(self) -> None:
        """Begin."""
        self._cluster.clock.after(2 * SECOND_US, self._strike)
        self._cluster.clock.after(LOOK_US, self._look)

    def _members(self) -> list[SimMember]:
        return list(self._cluster.members.values())

    def _strike(self) -> None:
        if self._cluster.clock.now_us >= self._until_us:
            return
        rng = self._rng
        self._cluster.clock.after(int(FAULT_US * 2 * rng.random()), self._strike)
        leader = self._cluster.leader
        member = leader if leader is not None and rng.random() < 0.4 else rng.choice(self._members())
        kind = rng.choice(("calls", "calls", "snapshots", "fails"))
        if not member.is_up:
            return
        member.note(f"fault: its machine: {kind}")
        if kind == "fails":
            self._rules.frailties[member.member_id].is_due = True
            return
        is_calls = kind == "calls"
        member.hang_machine(HANG_US, is_calls=is_calls)
        until_us = int(HANGS_US * rng.random() ** 2) + 1000
        self._cluster.clock.after(until_us, partial(member.hang_machine, 0, is_calls=is_calls))

    def end(self) -> None:
        """The faults are over; the operator still looks."""
        self._until_us = 0
        for member in self._members():
            member.hang_machine(0, is_calls=True)
            member.hang_machine(0, is_calls=False)
        for frailty in self._rules.frailties.values():
            frailty.is_due = False
        for member in self._members() if self._rules.versions else ():
            if self._rules.versions.get(member.member_id, 1) < 2:
                self._rules.versions[member.member_id] = 2  # (an upgrade ends with the last member)
                member.stop()

    # -- the operator -------------------------------------------------------------------------

    def _look(self) -> None:
        cluster = self._cluster
        cluster.clock.after(LOOK_US, self._look)
        is_over = cluster.clock.now_us >= self._until_us
        for member in self._members():
            self._look_at_state(member)
            if not is_over and self._asking.random() < ASKS:
                self._ask(member)
            self._start_again(member, is_over=is_over)
            index = self._failed_index(member)
            if index < 0 or not (is_over or self._rng.random() < DILIGENCE):
                continue
            is_alone = index in self._rules.frailties[member.member_id].failed
            if member is cluster.leader and (not is_alone or self._rng.random() < 0.7):
                self._skip(member, index)
            elif is_alone:
                member.note("the operator starts it again, for its machine")
                member.stop()

    def _start_again(self, member: SimMember, *, is_over: bool) -> None:
        """What has no other cure: a state in doubt, and a machine that cannot be made again."""
        if not member.is_serving or member.service.node is None:
            return
        runner = member.node.machine_requests.machine
        assert isinstance(runner, MachineRunner)
        is_unmade = runner.state == "failed" and runner.failed_index < 0
        is_doubtful = bool(runner.in_doubt) and self._rules.has_differed
        if (is_unmade or is_doubtful) and (is_over or self._again.random() < DILIGENCE):
            member.note(f"the operator starts it again: {runner.reason or runner.in_doubt}")
            member.stop()

    @staticmethod
    def _failed_index(member: SimMember) -> int:
        if not member.is_serving or member.service.node is None:
            return -1
        runner = member.node.machine_requests.machine
        assert isinstance(runner, MachineRunner)
        return runner.failed_index

    def _ask(self, member: SimMember) -> None:
        """Ask for a snapshot, where one can be taken."""
        if not member.is_serving or member.service.node is None:
            return

        def ask(node: Node) -> None:
            runner = node.machine_requests.machine
            assert isinstance(runner, MachineRunner)
            if not node.ask_snapshot():
                self.asked[member.member_id] = node, runner.applied_index

        member.note("the operator asks for a snapshot")
        member.call(ask)

    def judge(self) -> None:
        """
        All faults are over, and everybody had time.

        @raise AssertionError: a snapshot that was promised is not there, or none was taken for long.
        """
        for member in self._cluster.active:
            self._judge_pace(member)
        for member_id, (node, index) in self.asked.items():
            member = self._cluster.members[member_id]
            if not member.is_serving or member.service.node is not node:
                continue
            runner = node.machine_requests.machine
            assert isinstance(runner, MachineRunner)
            status = runner.status()
            has_reason = runner.state != "running" or status.is_writing or status.snapshot_problem
            assert has_reason or status.snapshot_index >= index, (
                f"{member_id} promised a snapshot after the entry {index}, its newest one is after "
                f"{status.snapshot_index}"
            )

    def _look_at_state(self, member: SimMember) -> None:
        if not member.is_serving or member.service.node is None:
            return
        runner = member.node.machine_requests.machine
        assert isinstance(runner, MachineRunner)
        if runner.state != "running" or runner.in_doubt:
            self._sound_from.pop(member.member_id, None)
        elif self._sound_from.get(member.member_id, (None, -1))[0] is not member.node:
            self._sound_from[member.member_id] = member.node, runner.applied_index

    def _judge_pace(self, member: SimMember) -> None:
        """
        A member takes a snapshot now and then: a few may have been missed, not all. (While its state is in
        doubt it takes none.)
        """
        due = member.config.machine_snapshot_entries
        self._look_at_state(member)
        node, sound_from = self._sound_from.get(member.member_id, (None, -1))
        if not due or node is not member.service.node or node is None:
            return
        runner = node.machine_requests.machine
        assert isinstance(runner, MachineRunner)
        status = runner.status()
        if status.snapshot_problem or runner.applied_index - sound_from < MISSED * due + MISSED_MORE:
            return
        oldest = runner.applied_index - MISSED * due - MISSED_MORE
        assert status.is_writing or status.snapshot_index >= oldest, (
            f"{member.member_id} takes a snapshot after each {due} entries, has applied "
            f"{runner.applied_index}, and its newest snapshot is after {status.snapshot_index}"
        )

    def _skip(self, leader: SimMember, index: int) -> None:
        leader.note(f"the operator skips the entry {index}")

        def skip(node: Node) -> None:
            node.skip(index).addCallback(self._skipped)

        leader.call(skip)

    def _skipped(self, answer: Response) -> None:
        self.skips += answer.code is ResponseCode.SUCCESS
