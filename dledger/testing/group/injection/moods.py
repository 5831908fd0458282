# -*- test-case-name: tests.sim.test_moods -*-
"""
State machines of a simulated group that are in a bad mood: snapshots, digests and restores that raise,
queries without an answer, calls that hang, and snapshots that rot on the disk of one member.

Rule 1: a machine that fails in a query answers the next one: the answer is an error, and that is all.
Rule 2: a failure outside its entries stops no machine for good: in the end each is at the end of the
log, as in every run.
"""

from __future__ import annotations

import random
from functools import partial

from twisted.internet.defer import CancelledError
from twisted.python.failure import Failure

from dledger.machine.guarded import SnapshotFailed
from dledger.machine.runner import MachineRunner
from dledger.testing.group.checks.machines import MachineRules
from dledger.testing.group.checks.require import require
from dledger.testing.group.checks.sim_machines import ANOTHER_DIGEST, MOODS, NO_MACHINE, UNANSWERED
from dledger.testing.group.members.cluster import SECOND_US, SimCluster
from dledger.testing.group.members.member import SimMember
from dledger.values.errors import DLedgerError
from protocols.wire.codes import ResponseCode
from protocols.wire.ledger.machines import QueryRequest
from protocols.wire.ledger.messages import Response

#: Number in docs/invariants.md.
MACHINES = 10
#: Mean time of a call that hangs.
HANG_US = 9 * SECOND_US


class Moods:
    """
    See the module.

    @ivar reported: what happened so far, by kind: C{mood}, C{question}, C{rot}, C{hang}.
    """

    def __init__(self, cluster: SimCluster, rng: random.Random) -> None:
        self.reported: dict[str, int] = {}
        self._cluster = cluster
        self._rng = rng
        self._rotten = rng.choice(list(cluster.members))

    def _count(self, kind: str) -> None:
        self.reported[kind] = self.reported.get(kind, 0) + 1

    def strike(self, member: SimMember) -> None:
        """Its machine fails at the next call that is not for entries. The operator wants a snapshot."""
        rules = self._cluster.world.machines
        assert rules is not None, "these members run no machine"
        if not member.is_serving or member.service.node is None:
            return
        rules.frailties[member.member_id].mood = mood = self._rng.choice(MOODS)
        member.note(f"fault: its machine: {mood}")
        self._cluster.bugs.expects = lambda error: isinstance(error, SnapshotFailed)  # (it is logged)
        self._count("mood")
        if self._rng.random() < 0.5:
            member.call(lambda node: node.ask_snapshot())

    def differ(self, member: SimMember) -> None:
        """The next digest of its machine is of no state: it must come into doubt, or all members."""
        self._upset(member, ANOTHER_DIGEST).has_differed = True

    def unmake(self, member: SimMember) -> None:
        """Its machine cannot be made again, once."""
        self._upset(member, NO_MACHINE)

    def _upset(self, member: SimMember, mood: str) -> MachineRules:
        rules = self._cluster.world.machines
        assert rules is not None, "these members run no machine"
        if member.member_id in rules.frailties:
            rules.frailties[member.member_id].mood = mood
            member.note(f"fault: its machine: {mood}")
            self._count(mood)
        return rules

    def upgrade(self, member: SimMember) -> None:
        """It is stopped, and starts again with the next version of the machine; or goes back to the first."""
        rules = self._cluster.world.machines
        assert rules is not None, "these members run no machine"
        goes_back = rules.versions.get(member.member_id, 1) > 1
        if goes_back and self._rng.random() < 0.5:
            return
        version = rules.versions[member.member_id] = 1 if goes_back else 2
        member.note(f"fault: version {version} of its machine")
        self._count("upgrade")
        member.stop()

    def skip(self, member: SimMember) -> None:
        """An operator wants an entry skipped at which no machine has failed."""
        if member.is_serving and member.service.node is not None:
            index = self._cluster.invariants.last_committed + 1000
            member.call(lambda node: node.skip(index).addCallbacks(
                self._not_skipped, lambda failure: failure.trap(DLedgerError, CancelledError) and None
            ).addErrback(self._broken))

    def _not_skipped(self, answer: Response) -> None:
        self._count("skip")
        require(answer.code is not ResponseCode.SUCCESS, MACHINES, f"skipped without a reason: {answer}")

    def rot_head(self) -> None:
        """The head of a snapshot of one member rots, or two have each other's name, or one is gone."""
        member, rng = self._cluster.members[self._rotten], self._rng
        names = sorted(member.disk.files_below(f"{member.config.self_path}/machine"))
        if not names or member.is_away:
            return
        path, chance = rng.choice(names), rng.random()
        content = member.disk.read_anyway(path)
        if chance < 0.5 and content:
            at = int(rng.random() * min(len(content), 48))
            member.disk.overwrite(path, at, bytes([content[at] ^ 1 << int(rng.random() * 8)]))
        elif chance < 0.8 and len(names) > 1:
            other = rng.choice([one for one in names if one != path])
            member.disk.replace(path, member.disk.read_anyway(other))
        else:
            member.disk.unlink(path)
        member.note(f"fault: the head of {path} rots")
        self._count("rot")
        if rng.random() < 0.5:
            member.kill()
            self._cluster.restart_later(member, 1000)

    def hang(self, member: SimMember) -> None:
        """Its calls, or its snapshots, take many seconds for a while."""
        is_calls = self._rng.random() < 0.7
        member.hang_machine(HANG_US, is_calls=is_calls)
        us = int(2 * SECOND_US * self._rng.random()) + 1000
        self._cluster.clock.after(us, partial(member.hang_machine, 0, is_calls=is_calls))
        self._count("hang")

    def ask(self, member: SimMember) -> None:
        """Send a query that the machine does not answer."""
        if not member.is_serving or member.service.node is None:
            return
        request = QueryRequest(
            group=member.config.group, remote_id=member.member_id,
            query=UNANSWERED + self._rng.choice((b"e", b"t", b"l")), max_age_ms=self._rng.choice((-1, 5000)),
        )
        rules = self._cluster.world.machines
        assert rules is not None, "these members run no machine"
        handler, reported = rules.hosted[member.member_id].handler, partial(self._answered, member)
        member.call(lambda _: handler.answer(request, lambda: True, "").addCallbacks(
            reported, lambda failure: failure.trap(DLedgerError, CancelledError) and None
        ).addErrback(self._broken))

    def _answered(self, member: SimMember, answer: Response) -> None:
        self._count("question")
        require(answer.code is not ResponseCode.SUCCESS, MACHINES,
                f"{member.member_id} answered a query that its machine fails at: {answer}")

    def _broken(self, failure: Failure) -> None:
        assert failure.value is not None
        self._cluster.bugs.note(failure.value)

    def rot(self) -> None:
        """A snapshot of one member rots, always of the same one; it must not be taken up, nor sent."""
        member, rng = self._cluster.members[self._rotten], self._rng
        names = sorted(member.disk.files_below(f"{member.config.self_path}/machine"))
        if not names or member.is_away:
            return
        path, chance = rng.choice(names), rng.random()
        content = member.disk.read_anyway(path)
        if not content:
            return
        at = int(rng.random() * len(content))
        if chance < 0.7:
            member.disk.overwrite(path, at, bytes([content[at] ^ 1 << int(rng.random() * 8)]))
        elif chance < 0.85:
            member.disk.replace(path, content[:at])
        else:
            member.disk.replace(path, content + b"more")
        member.note(f"fault: {path} rots at {at} of {len(content)}")
        self._count("rot")
        if rng.random() < 0.5:
            member.kill()
            self._cluster.restart_later(member, 1000)

    def judge(self) -> None:
        """
        All faults are over.

        @raise InvariantError: a machine does not run.
        """
        if not self.reported:
            return
        for member in self._cluster.active:
            runner = member.node.machine_requests.machine
            assert isinstance(runner, MachineRunner)
            require(runner.state == "running", MACHINES,
                    f"{member.member_id}: {runner.state} {runner.reason}")
