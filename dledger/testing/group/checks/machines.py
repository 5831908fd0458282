# -*- test-case-name: tests.sim.test_machines -*-
"""
State machines of simulated members, and their rules: the state of every member is the fold of the committed
entries up to its applied index, through drops of the log, installs, restarts and skipped entries; so is the
state after every answer that a client gets.

The machines: L{dledger.testing.group.checks.sim_machines}.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from itertools import combinations

import attrs

from dledger.base.disk.disk import Disk
from dledger.machine.loading import hosting_of
from dledger.machine.runner import MachineRunner
from dledger.machine.state_machine import StateMachine
from dledger.machine.tracing import TracedMachine, traced_factory
from dledger.node.host import MachineHost
from dledger.node.node import Node
from dledger.node.requests.machine_requests import Hosting
from dledger.node.work.tracing import OpenSpans
from dledger.testing.group.checks.invariants import GroupInvariants
from dledger.testing.group.checks.machine_files import MachineFileRules
from dledger.testing.group.checks.moments import INSTALLED, RECEIVED, Moments
from dledger.testing.group.checks.require import require
from dledger.testing.group.checks.sim_machines import (
    NO_MACHINE,
    EarlierMachine,
    Frailty,
    LaterMachine,
    RegisterMachine,
    Wordless,
    is_poison,
    is_refused,
    mixed,
    register_of,
)
from dledger.testing.world.disk import SimDisk
from protocols.wire.ledger.entry import ENTRY_HEADER, decode_header
from protocols.wire.ledger.own.machine_entries import decode_skip
from protocols.wire.ledger.own.own_entries import MACHINE_CHANNEL, is_hidden

#: Skipped entries of which nobody knows whether a state was made with them, at most, for a check of a result.
OPEN_MAX = 6


@attrs.define
class Fold:
    """
    What the committed entries make, but some.

    @ivar chains, lasts: checksum, and last entry in the state, after each entry.
    @ivar writes: the entries that wrote a register, in order.
    """

    without: frozenset[int]
    chains: list[int] = attrs.Factory(list)
    lasts: list[int] = attrs.Factory(list)
    writes: dict[bytes, list[int]] = attrs.Factory(dict)

    def add(self, body: bytes | None) -> None:
        """The next entry. @param body: None: the machine is not passed it."""
        index = len(self.chains)
        chain, last = (self.chains[-1], self.lasts[-1]) if index else (0, -1)
        if body is not None and index not in self.without and not is_refused(body) and not is_poison(body):
            chain, last = mixed(chain, index, body), index
            self.writes.setdefault(register_of(body), []).append(index)
        self.chains.append(chain)
        self.lasts.append(last)

    def register(self, register: bytes, index: int) -> int:
        """The last entry of a register in the state after an entry; -1: none."""
        written = self.writes.get(register, [])
        at = bisect_right(written, index)
        return written[at - 1] if at else -1


@attrs.define
class MachineRules:
    """
    @ivar moments: those of members that come seldom.
    @ivar installed: snapshots of other members that were taken up so far.
    @ivar applied: number of checks with another applied index than before.
    @ivar results, queries: commands, and queries, whose answer was compared.
    @ivar frailties: of the members.
    @ivar hosted: the machines of the last processes.
    @ivar orders: those in the log: index of the order, and of the entry that is skipped.
    @ivar versions: of the machines that members make from their next start on; empty: all make the first one.
    @ivar has_differed: a machine has reported another digest than that of its state.
    """

    invariants: GroupInvariants
    moments: Moments = attrs.Factory(Moments)
    installed: int = 0
    applied: int = 0
    results: int = 0
    queries: int = 0
    frailties: dict[str, Frailty] = attrs.Factory(dict)
    hosted: dict[str, Hosting] = attrs.Factory(dict)
    orders: list[tuple[int, int]] = attrs.Factory(list)
    versions: dict[str, int] = attrs.Factory(dict)
    has_differed: bool = False
    _bodies: list[bytes | None] = attrs.Factory(list)
    _poisons: list[int] = attrs.Factory(list)
    _folds: dict[frozenset[int], Fold] = attrs.Factory(dict)
    _seen: dict[str, tuple[int, int, str, object]] = attrs.Factory(dict)
    files: MachineFileRules = attrs.Factory(MachineFileRules)

    def make(
        self, node: Node, host: MachineHost, *, member_id: str, disk: Disk, trace: OpenSpans | None = None
    ) -> Hosting:
        """A machine for the node of a new process. @param trace: for its spans."""
        frailty = self.frailties[member_id] = Frailty()
        factory: Callable[[], StateMachine] = partial(self._made, member_id, frailty)
        if trace is not None:
            factory = traced_factory(factory, trace)
        hosted = self.hosted[member_id] = hosting_of(node, factory, host, disk=disk)
        return hosted

    def _made(self, member_id: str, frailty: Frailty) -> StateMachine:
        if frailty.is_in(NO_MACHINE):
            raise Wordless
        if not self.versions:
            return RegisterMachine(frailty)
        return (LaterMachine if self.versions.get(member_id, 1) > 1 else EarlierMachine)(frailty)

    def forget(self) -> None:
        """Committed entries may be lost, and others come to their places."""
        self.orders.clear()
        self._bodies.clear()
        self._poisons.clear()
        self._folds.clear()
        self.files.forget()

    # -- members ------------------------------------------------------------------------------

    def check(self, member_id: str, boots: int, node: Node, disk: SimDisk) -> None:
        """Something happened at a member: compare its state. @param disk: of its machine."""
        runner = node.machine_requests.machine
        assert isinstance(runner, MachineRunner)
        if runner.is_applying and runner.state == "running":
            return  # its state is ahead of its index
        if runner.state == "installing" and self.files.look_at_snapshots(member_id, runner, disk):
            self.moments.came(member_id, RECEIVED)
        seen = (boots, runner.applied_index, runner.state, runner.machine)
        before = self._seen.get(member_id)
        if seen == before:
            return
        self._seen[member_id] = seen
        if runner.state == "failed":
            self._may_fail(member_id, runner)
        if runner.state != "running":
            return
        if before is not None and before[0] == boots and (before[3] is seen[3] or before[2] == "installing"):
            if before[2] == "installing":
                self.installed += 1
                self.moments.came(member_id, INSTALLED)
            require(seen[1] >= before[1], 10,
                    f"the machine of {member_id} goes back from {before[1]} to {seen[1]}")
        self.applied += 1
        may_doubt = bool(self.orders) or self.has_differed
        require(not runner.in_doubt or may_doubt, 10, f"{member_id} is in doubt: {runner.in_doubt}")
        self._compare(member_id, runner)
        is_same = before is not None and (before[0], before[2:]) == (boots, seen[2:])
        self.files.look(member_id, runner, disk, is_new=not is_same)

    def _compare(self, member_id: str, runner: MachineRunner) -> None:
        index, left_out = runner.applied_index, runner._skips.left_out
        self._scan(index)
        without = self._skipped_at(index) | left_out
        for poison in self._poisons:
            require(poison > index or poison in without, 10,
                    f"the machine of {member_id} has applied {poison}, which no machine can apply")
        ordered = self._ordered()
        require(left_out <= ordered, 10,
                f"{member_id} leaves {sorted(left_out)} out, and the log says so of {sorted(ordered)} only")
        machine = runner.machine._machine
        if isinstance(machine, TracedMachine):
            machine = machine._machine
        assert isinstance(machine, RegisterMachine)
        fold = self._fold(index, without)
        due = (fold.chains[index], fold.lasts[index]) if index >= 0 else (0, -1)
        require((machine.chain, machine.last_index) == due, 10,
                f"the machine of {member_id} has the state {machine.chain}, {machine.last_index} at {index}, "
                f"not {due}")
        registers = {one: fold.register(one, index) for one in fold.writes}
        require(machine.registers == {one: at for one, at in registers.items() if at >= 0}, 10,
                f"the registers of {member_id} at {index} are {machine.registers}, not {registers}")

    def _may_fail(self, member_id: str, runner: MachineRunner) -> None:
        index, frailty = runner.failed_index, self.frailties[member_id]
        if index < 0 and NO_MACHINE in frailty.struck:
            return
        if index >= 0:
            self._scan(index)
        is_right = index >= 0 and (index in frailty.failed or is_poison(self._bodies[index] or b""))
        require(is_right and runner.applied_index < index, 10,
                f"the machine of {member_id} failed after {runner.applied_index}: {runner.reason}")

    def behind(self, nodes: Mapping[str, Node]) -> dict[str, str]:
        """The machines that have not applied all that their members know to be committed, or are in doubt."""
        found = {}
        for member_id, node in nodes.items():
            runner = node.machine_requests.machine
            assert isinstance(runner, MachineRunner)
            status = runner.status()
            if runner.state != "running" or status.lag or runner.in_doubt:
                reported = f"{runner.state} at {runner.applied_index} {status.installing} {runner.in_doubt}"
                found[member_id] = f"{reported} {runner.reason}".strip()
        return found

    # -- clients ------------------------------------------------------------------------------

    def answered(self, index: int, chain: int) -> None:
        """A client was informed of the result of its command."""
        self.results += 1
        due = {fold.chains[index] for fold in self._may_be(index)}
        require(chain in due, 10, f"the command at {index} was answered {chain}, not {sorted(due)}")

    def refused(self, index: int, reason: str) -> None:
        """A client was informed that its command was refused."""
        self.results += 1
        self._scan(index)
        is_skipped = reason.startswith("skipped") and index in self._ordered()
        require(is_skipped or is_refused(self._bodies[index] or b""), 10,
                f"the command at {index} is answered as refused: {reason}")

    def shown(self, register: bytes, last: int, value: int, chain: int) -> None:
        """A client was shown a state after the entry C{last}."""
        self.queries += 1
        due = {(fold.lasts[last], fold.register(register, last), fold.chains[last])
               for fold in self._may_be(last)} if last >= 0 else {(-1, -1, 0)}
        require((last, value, chain) in due, 10,
                f"a query was answered {(last, value, chain)}, not {sorted(due)}")

    def next_change(self, index: int) -> int:
        """The next entry after another one that changes the state in the end; beyond the log: none."""
        self._scan(self.invariants.last_committed)
        ordered = self._ordered()
        for at in range(index + 1, len(self._bodies)):
            body = self._bodies[at]
            if body and at not in ordered and not is_refused(body) and not is_poison(body):
                return at
        return len(self._bodies)

    # -- the log ------------------------------------------------------------------------------

    def fold(self, index: int) -> int:
        """The checksum of the state that the committed entries up to C{index} make in the end."""
        self._scan(index)
        return self._fold(index, self._skipped_at(index)).chains[index] if index >= 0 else 0

    def _fold(self, index: int, without: Iterable[int]) -> Fold:
        self._scan(index)
        key = frozenset(without)
        fold = self._folds.setdefault(key, Fold(key))
        for body in self._bodies[len(fold.chains) : index + 1]:
            fold.add(body)
        return fold

    def _scan(self, index: int) -> None:
        """Read the committed entries up to C{index}: as the machine is passed them, and the orders."""
        invariants = self.invariants
        while len(self._bodies) <= index:
            at = len(self._bodies)
            require(at in invariants.committed, 10, f"the entry {at} was applied, and is not committed")
            record = invariants.records[at, invariants.committed[at]][0]
            header, body = decode_header(record), record[ENTRY_HEADER.size :]
            if is_hidden(header.channel, header.chain_crc):
                if header.channel == MACHINE_CHANNEL:
                    self.orders.append((at, decode_skip(body)))
                self._bodies.append(None)
                continue
            if is_poison(body):
                self._poisons.append(at)
            self._bodies.append(body)

    def _ordered(self) -> set[int]:
        self._scan(self.invariants.last_committed)
        return {skipped for _, skipped in self.orders}

    def _skipped_at(self, index: int) -> set[int]:
        return {skipped for order, skipped in self.orders if order <= index}

    def _may_be(self, index: int) -> list[Fold]:
        """
        The states that may have been after an entry: until an order comes, some members have made theirs
        with the entry that it skips, others without.
        """
        self._scan(index)
        self._ordered()
        surely = self._skipped_at(index)
        unsure = {one for _, one in self.orders if one <= index} - surely - set(self._poisons)
        unsure = set(sorted(unsure)[:OPEN_MAX])
        return [
            self._fold(index, surely.union(chosen))
            for count in range(len(unsure) + 1) for chosen in combinations(sorted(unsure), count)
        ]
