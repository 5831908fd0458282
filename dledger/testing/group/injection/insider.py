# -*- test-case-name: tests.sim.test_visits -*-
"""
A program in the process of a member, as a broker on a raft log is: it reads entries, waits for a commit, and
looks at the health. An operator beside it lets the member take other options while it runs.

Rule 1: a linearizable read is one more call of the history; what is read as committed is committed.
Rule 2: a wait ends with its entry, when its time is over, or with its member.
Rule 3: a member that calls itself ready follows a leader or leads, is sure, and repairs nothing; when all
faults are over, every member is ready, or has a hole whose first entry no other member has.
"""

from __future__ import annotations

import random
from functools import partial

import attrs
from twisted.internet.defer import CancelledError
from twisted.python.failure import Failure

from dledger.node.node import Node
from dledger.node.reporting.health import health_problem, readiness_problems
from dledger.testing.group.checks.require import require
from dledger.testing.group.members.cluster import SECOND_US, SimCluster
from dledger.testing.group.members.member import SimMember
from dledger.values.errors import DLedgerError
from protocols.wire.codes import ResponseCode
from protocols.wire.ledger.entry import ENTRY_HEADER

#: Numbers in docs/invariants.md.
COMMITTED, ANSWERED, READY = 4, 7, 15
#: A member of a settled group is ready after this time.
READY_US = 15 * SECOND_US
#: The clock of a member is wrong by no more than this part.
CLOCK_PART = 0.9


class Insider:
    """
    See the module.

    @ivar reported: answers so far, by kind: C{get}, C{wait}, C{batch}, C{ready}, C{taken}, C{slip}.
    """

    def __init__(self, cluster: SimCluster, rng: random.Random) -> None:
        self.reported: dict[str, int] = {}
        self._cluster = cluster
        self._rng = rng

    def call(self, member: SimMember) -> None:
        """Some calls to a running member, in one event."""
        if member.is_serving and member.service.node is not None:
            acts = (self._get, self._get, self._wait, self._batch, self._look, self._reread, self._slip)
            for _ in range(1 + int(self._rng.random() * 6)):
                act = self._rng.choice(acts)
                member.call(partial(act, member))

    def _count(self, kind: str) -> None:
        self.reported[kind] = self.reported.get(kind, 0) + 1

    def _index(self) -> int:
        end = self._cluster.invariants.last_committed
        return max(int(self._rng.random() * (end + 2)), end - 3 + int(self._rng.random() * 6), 0)

    def _get(self, member: SimMember, node: Node) -> None:
        history = self._cluster.history
        index = self._index()
        call = history.begin("get", client=f"in {member.member_id}", index=index)

        def found(body: bytes) -> None:
            self._count("get")
            history.end(call, "ok", body=body)

        def failed(failure: Failure) -> None:
            failure.trap(DLedgerError, CancelledError)
            code = getattr(failure.value, "code", None)
            history.end(call, "beyond" if code is ResponseCode.INDEX_OUT_OF_RANGE else "failed")

        asked = node.read(index)
        asked.addCallbacks(found, failed).addErrback(self._broken)
        if self._rng.random() < 0.05:
            asked.cancel()

    def _slip(self, member: SimMember, node: Node) -> None:
        """Appends that no member takes, and what a program asks of a member that it is in."""
        none: tuple[bytes, ...] = ()
        for wrong in (none, bytes(node.config.body_bytes_max + 1)):
            node.append(wrong).addCallbacks(self._taken, self._refused).addErrback(self._broken)
        core = member.core.member
        reported = node.is_leader, node.term, node.is_running
        require(reported == (core.is_leader, core.term, True), READY,
                f"{member.member_id} notifies its program {reported}: {core}")
        require(node.is_leader or not node.is_settled_leader, READY,
                f"{member.member_id} leads, and does not")
        require(node.leader_id in (None, *self._cluster.members), READY, f"{node.leader_id} leads")
        self._count("slip")

    def _taken(self, result: object) -> None:
        require(False, ANSWERED, f"an append without a body, or with one too long, was taken: {result}")

    @staticmethod
    def _refused(failure: Failure) -> None:
        failure.trap(DLedgerError)

    def _wait(self, member: SimMember, node: Node) -> None:
        cluster, index = self._cluster, self._index() + int(self._rng.random() * 4)
        time_out_ms, began_us = self._rng.choice((0, 300, 2000)), cluster.clock.now_us
        era = cluster.history.era

        def reported(committed: int) -> None:
            self._count("wait")
            waited_ms = (cluster.clock.now_us - began_us) / 1000
            is_over = waited_ms >= CLOCK_PART * time_out_ms or not node.is_running
            require(committed >= index or is_over, ANSWERED,
                    f"{member.member_id} waited {waited_ms} of {time_out_ms} ms for {index}: {committed}")
            require(era != cluster.history.era or committed <= cluster.invariants.last_committed, COMMITTED,
                    f"{member.member_id} calls {committed} committed")

        waited = node.wait_for(index, time_out_ms=time_out_ms)
        waited.addCallbacks(reported, lambda failure: failure.trap(DLedgerError) and None)
        waited.addErrback(self._broken)

    def _broken(self, failure: Failure) -> None:
        assert failure.value is not None
        self._cluster.bugs.note(failure.value)

    def _batch(self, member: SimMember, node: Node) -> None:
        """What a member shows without a proof that it leads."""
        try:
            batch = node.read_committed(self._index(), max_bytes=self._rng.choice((1, 400, 1 << 20)))
        except DLedgerError:
            return
        invariants, at = self._cluster.invariants, 0
        while batch is not None and at < len(batch.records):
            self._count("batch")
            _, size, index, term, *_ = ENTRY_HEADER.unpack_from(batch.records, at)
            record, _ = invariants.records[index, term]
            require(batch.records[at : at + size] == record, COMMITTED,
                    f"{member.member_id} shows other bytes at {index}")
            known = invariants.committed.get(index, term)
            require(known == term, COMMITTED, f"{member.member_id} shows {index} of t{term}, not of t{known}")
            at += size

    def _look(self, member: SimMember, node: Node) -> None:
        status = node.status()
        found, state = readiness_problems(status), status.member
        require(bool(found) or health_problem(status) is None, READY,
                f"{member.member_id} is ready, but does not serve: {status}")
        require(state.committed_index <= state.ledger_end_index, READY, f"{member.member_id}: {state}")
        if found:
            return
        self._count("ready")
        core = member.core.member
        is_well = core.leader_id is not None and not core.is_unsure and not member.ledger.holes
        require(is_well and core.repair_end_index < 0, READY,
                f"{member.member_id} calls itself ready: {state}")

    def _reread(self, member: SimMember, node: Node) -> None:
        """Options that may change while it runs."""
        rng, config = self._rng, member.service.config
        wanted = attrs.evolve(
            config, scrub_bytes_per_s=rng.choice((0, 20_000, 200_000)),
            max_connections=rng.choice((100, 1000)),
            retention_bytes=config.retention_bytes and rng.choice((1, 2)) * config.retention_bytes,
        )
        taken = member.service.reread(wanted)
        self._count("taken")
        require(member.service.config == wanted and node.config == wanted, READY,
                f"{member.member_id} took {sorted(taken)} of the options that may change")

    def judge(self) -> None:
        """
        A member may have asked its leader for its end only a moment ago.

        @raise InvariantError: a member of the settled group does not become ready in time.
        """
        until_us = self._cluster.clock.now_us + READY_US
        while (found := self._not_ready()) and self._cluster.clock.now_us < until_us:
            self._cluster.run(0.5)
        require(not found, READY, f"not ready when all faults are over: {found}")

    def _not_ready(self) -> dict[str, tuple[str, ...]]:
        """
        The members that are not, and why; without one with a hole whose first entry nobody has, and one
        without the state of the group, where members that look like Java's ask nobody for it.
        """
        hides = self._cluster.options.hides_wire_version
        looked = {
            one.member_id: readiness_problems(one.node.status()) for one in self._cluster.active
            if len(one.ledger.holes) == len(self._cluster.owed_holes(one))
            and not (hides and one.ledger.group is None)
        }
        return {member_id: why for member_id, why in looked.items() if why}
