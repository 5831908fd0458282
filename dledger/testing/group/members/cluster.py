# -*- test-case-name: tests.sim.test_cluster -*-
"""
A whole group: members, disks, network and clock from one seed.

No faults happen here; L{dledger.testing.group.injection.faults} and scenario scripts cause them.
L{SimCluster.settle} judges the end of a run: when all faults are over the group must elect, commit and become
equal, byte for byte.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from typing import Protocol

import attrs

from dledger.core.election.transfer import FULL_AGAIN_JAVA_MS
from dledger.core.state.member_state import Role
from dledger.node.requests.appends import AppendResult
from dledger.storage.files.term_file import encode_term
from dledger.testing.group.checks.history import History, check
from dledger.testing.group.checks.invariants import GroupInvariants
from dledger.testing.group.checks.machines import MachineRules
from dledger.testing.group.checks.readers import check_readers
from dledger.testing.group.checks.require import require
from dledger.testing.group.members.equal_files import FileJudge, holes_to_mend
from dledger.testing.group.members.member import SimMember, World
from dledger.testing.group.members.network import GroupNetwork
from dledger.testing.world.bugs import BugWatch
from dledger.testing.world.clock import SimClock
from dledger.testing.world.host import MachineDisk
from dledger.testing.world.trace import Trace
from dledger.values.ledger.config import DLedgerConfig
from dledger.values.ledger.holes import Hole
from dledger.values.ledger.membership import ADD
from dledger.values.option_values import made_of
from protocols.wire.codes import ResponseCode
from protocols.wire.ledger.messages import MembershipRequest, Response

SECOND_US = 1_000_000
#: Machines on which members can be added to a group.
SPARES = 2

#: Longest time for a group to become equal, with links and disks of any speed.
SETTLE_MAX_US = 300 * SECOND_US

#: Longest time for the last call of a client.
CALLS_END_US = 12 * SECOND_US
#: Longest time for all machines to come to the end of the log.
MACHINES_END_US = 60 * SECOND_US
#: Longest time for all members to know the state of the group.
STATES_END_US = 60 * SECOND_US

#: Slower than the defaults: an idle second costs less, and time-outs stay in proportion.
TIMING: Mapping[str, int] = {
    "tick_ms": 150,
    "heart_beat_time_interval_ms": 600,
    "max_heart_beat_leak": 4,
    "min_vote_interval_ms": 200,
    "max_vote_interval_ms": 1200,
    "rpc_time_out_ms": 2000,
    "max_push_time_out_ms": 1500,
    "max_wait_ack_time_ms": 2500,
    "check_point_interval": 3000,
    "flush_file_interval": 400,
}


class Caller(Protocol):
    """
    A client.

    @ivar is_busy: a call has no outcome yet.
    """

    name: str
    is_busy: bool

    def kill(self) -> None:
        """Its process ends; another one goes on."""

class NotLive(AssertionError):
    """The group did not commit and become equal in time, although all faults were over."""


@attrs.frozen(kw_only=True)
class GroupOptions:
    """
    The options of a group.

    @ivar settings: options of every member; they override L{TIMING} and the small file sizes.
    @ivar member_settings: options of single members.
    @ivar is_native: binary frames, or JSON remoting.
    @ivar clients_wire: the frames of clients: C{auto}, C{remoting} or C{binary}.
    @ivar hides_wire_version: to each other the members look like Java's.
    @ivar has_machines: the members run a state machine.
    """

    members: int = 3
    settings: Mapping[str, object] = attrs.Factory(dict)
    member_settings: Mapping[str, Mapping[str, object]] = attrs.Factory(dict)
    is_native: bool = True
    hides_wire_version: bool = False
    has_machines: bool = False
    clients_wire: str = "auto"
    flush_us: int = 500
    turn_us: int = 0
    delay_us: int = 300
    spread_us: int = 700


class SimCluster:
    """
    A simulated group.

    @ivar members: by id, C{n0} first.
    @ivar history: the calls of the clients.
    @ivar clients: the clients themselves.
    """

    def __init__(
        self, options: GroupOptions, seed: int, *, make_invariants: type[GroupInvariants] = GroupInvariants
    ) -> None:
        self.options = options
        self.seed = seed
        self._branch = ""
        self._streams: list[tuple[str, random.Random]] = []
        self.clock = SimClock()
        self.trace = Trace()
        self.history = History()
        ids = [f"n{number}" for number in range(options.members)]
        self.addresses = {member_id: f"{member_id}.sim:20911" for member_id in ids}
        spare_ids = [f"n{options.members + number}" for number in range(SPARES)]
        self.wire = "auto" if options.is_native and not options.hides_wire_version else "remoting"
        self.network = GroupNetwork(self.clock, self.random("network"), frozenset((*ids, *spare_ids)))
        self.network.hides_make = options.hides_wire_version
        self.network.has_uncommitted = self._has_uncommitted
        self.network.delay_us = options.delay_us
        self.network.spread_us = options.spread_us
        self.bugs = BugWatch()
        configs = {member_id: self._config(member_id) for member_id in ids}
        self.is_sync = all(config.is_sync for config in configs.values())
        self.invariants = make_invariants(ids, is_sync=self.is_sync)
        self.world = World(
            clock=self.clock, network=self.network, invariants=self.invariants, trace=self.trace,
            bugs=self.bugs, ending=self, flush_us=options.flush_us, turn_us=options.turn_us,
            machines=MachineRules(self.invariants) if options.has_machines else None,
        )
        if self.world.machines is not None:
            self.world.machines.moments = self.world.moments
        self.members: dict[str, SimMember] = {}
        for member_id in ids:
            self._install(member_id, configs[member_id])
        self._spare_ids = spare_ids
        self.restarts_us: int | None = 1_500_000
        self.is_calm = False
        self.clients: list[Caller] = []

    def _has_uncommitted(self, member_id: str) -> bool:
        ledger = self.members[member_id].ledger
        return ledger.ledger_end_index > ledger.committed_index

    def _install(self, member_id: str, config: DLedgerConfig) -> SimMember:
        disk = MachineDisk(self.random(f"disk {member_id}"))
        disk.keeps_failed_writes = not self.is_sync
        disk.makedirs(config.store_base_dir)
        rng = self.random(f"member {member_id}")
        member = SimMember(self.world, len(self.members), config, disk, rng)
        self.members[member_id] = member
        self.invariants.add(member)
        return member

    def install_spare(self) -> SimMember | None:
        """
        Start a member on a new machine; it joins the group. @return: None without such a machine, and in a
        group that looks like Java's: its members do not change.
        """
        if not self._spare_ids or self.options.hides_wire_version:
            return None
        member_id = self._spare_ids.pop(0)
        self.addresses[member_id] = f"{member_id}.sim:20911"
        member = self._install(member_id, self._config(member_id, join=True))
        self._start(member)
        return member

    @property
    def drops_log(self) -> bool:
        """Whether the log is to be short, and members that lack what was dropped can be helped."""
        settings = self.options.settings
        is_short = settings.get("retention_bytes") or (
            self.world.machines is not None and settings.get("machine_keep_entries"))
        return bool(is_short)

    @property
    def active(self) -> list[SimMember]:
        """The members of the group, as its log reports: not those that were removed, or not yet added."""
        known = self.invariants.membership.addresses
        return [member for member in self.members.values() if member.member_id in known]

    def change_members(
        self, change: str, member_id: str, *, is_forced: bool = False,
        done: Callable[[Response], None] | None = None,
    ) -> None:
        """Ask the leader for a change of the members, as an operator would."""
        leader = self.leader
        if leader is None:
            return
        config, reported = leader.config, done or _nobody_waits
        request = MembershipRequest(
            group=config.group, remote_id=config.self_id, change=change, member_id=member_id,
            address=self.addresses.get(member_id, "") if change == ADD else "", is_forced=is_forced,
        )
        leader.call(lambda node: node.router.ask(request).addCallbacks(reported, lambda _: None))

    def _config(self, member_id: str, **more: object) -> DLedgerConfig:
        settings: dict[str, object] = {
            **TIMING,
            "mapped_file_size_for_entry_data": 4096,
            "mapped_file_size_for_entry_index": 32 * 16,
            "store_base_dir": "/store",
            # Java's wire has no vote that counts only with all others, which a new group begins with.
            "bootstrap": self.options.hides_wire_version,
            "change_hosts": ("10.1.0.0/16",),  # those of readers
            **self.options.settings,
            **self.options.member_settings.get(member_id, {}),
            **more,
        }
        settings.setdefault("wire", self.wire)
        settings["peers"] = dict(self.addresses)
        return made_of(DLedgerConfig, {"self_id": member_id, **settings})

    def random(self, name: str) -> random.Random:
        """An independent random generator, from the seed, a name, and the last turn."""
        stream = random.Random(f"{self.seed} {name}{self._branch}")
        self._streams.append((name, stream))
        return stream

    def turn(self, branch: str) -> None:
        """All random generators begin anew, those to come as well: the rest depends on C{branch}."""
        self._branch = f" {branch}"
        for name, stream in self._streams:
            stream.seed(f"{self.seed} {name}{self._branch}")

    def forget_acknowledged(self) -> None:
        """Acknowledged entries may be lost: all but those that a running member knows to be committed."""
        known = [member.core.committed_index for member in self.members.values() if member.is_up]
        self.invariants.forget_committed(max(known, default=-1))
        self.history.forget()
        self.world.groups.forget()
        if self.world.machines is not None:
            self.world.machines.forget()
        if self.world.readers is not None:
            self.world.readers.forget()

    # -- running ----------------------------------------------------------------------------------

    def start(self) -> None:
        """Start every member, all within 50 simulated milliseconds."""
        rng = self.random("start")
        for member in self.members.values():
            self.clock.after(int(rng.random() * 50_000), self._start, member)

    def _start(self, member: SimMember) -> None:
        if not member.is_up:
            member.start()

    def run(self, seconds: float) -> None:
        """Let simulated time pass."""
        self.clock.run_until(self.clock.now_us + int(seconds * SECOND_US))

    def process_ended(self, member: SimMember, *, asked: bool) -> None:
        """A member's process ended without a fault of the schedule: restart it later."""
        if self.restarts_us is not None:
            self.restart_later(member, int(self.restarts_us * (0.3 + self.network.chance())))

    def restart_later(self, member: SimMember, delay_us: int) -> None:
        """Start a member again, and retry until it starts."""
        self.clock.after(delay_us, self._restart, member, member.boots)

    def _restart(self, member: SimMember, boots: int) -> None:
        if member.is_up or member.boots != boots:
            return
        if not member.start():
            self.start_failed(member)
            if "currterm" in member.start_error and member.is_small_damaged:
                self._give_new_term(member)
            self.restart_later(member, int(1.5 * SECOND_US))

    def start_failed(self, member: SimMember) -> None:
        """A member could not start; it will be tried again."""

    def _give_new_term(self, member: SimMember) -> None:
        """What an operator does about a vote that is not known, as docs/operations.md says."""
        term = 1 + max(other.persisted_term for other in self.members.values())
        member.note(f"gets term {term} by hand")
        member.is_small_damaged = False
        if member.disk.exists(member.twin_path):
            member.disk.unlink(member.twin_path)
        member.disk.write_file(member.term_path, encode_term(term, None))

    # -- looking ------------------------------------------------------------------------------------

    @property
    def leader(self) -> SimMember | None:
        """The leader of the highest term among the running members, if any leads."""
        leaders = [member for member in self.members.values()
                   if member.is_serving and member.core.member.role is Role.LEADER]
        return max(leaders, key=lambda member: member.core.member.term, default=None)

    def is_converged(self) -> bool:
        """Whether every member runs, is whole, and holds and has committed the same end."""
        ends = set()
        for member in self.active:
            if not member.is_up:
                return False
            state = member.core.member
            ends.add((state.ledger_end_index, state.ledger_end_term, state.committed_index))
            if state.repair_end_index >= 0 or self.owed_holes(member):
                return False
            if state.committed_index != state.ledger_end_index:
                return False
        return len(ends) == 1

    def owed_holes(self, member: SimMember) -> list[Hole]:
        """See L{holes_to_mend}."""
        return holes_to_mend(member, [other for other in self.members.values() if other.is_up])

    # -- the end ----------------------------------------------------------------------------------------

    def end_faults(self) -> None:
        """Heal every link and disk, resume and restart every member."""
        self.is_calm = True
        self.network.heal_all()
        self.network.spike = self.network.twice = 0.0
        self.world.flush_us = self.options.flush_us
        self.restarts_us = SECOND_US
        for member in self.members.values():
            member.disk.disarm()
            member.slow_disk(0)
            member.starve(0)
            member.resume()
            if not member.is_up:
                self.restart_later(member, 200_000)

    def settle(self, seconds: float = 30) -> None:
        """
        After all faults: elect, commit a new entry everywhere, and become equal.

        @param seconds: longest simulated time without progress. Longer where members take each other for
            Java's: a damaged leader offers leadership to such a peer again after C{FULL_AGAIN_JAVA_MS}.
        @raise NotLive: no progress for C{seconds}, or not done within L{SETTLE_MAX_US}.
        """
        if self.options.hides_wire_version:
            seconds += FULL_AGAIN_JAVA_MS / 1000
        began_us = progressed_us = self.clock.now_us
        before = self.invariants.last_committed
        progress, probe_us = -1, 0
        probes: list[ResponseCode] = []
        while True:
            now_us = self.clock.now_us
            is_stuck = now_us - progressed_us >= seconds * SECOND_US
            if is_stuck or now_us - began_us >= SETTLE_MAX_US:
                raise NotLive(f"not live {seconds} s after all faults: {self.describe()}")
            leader = self.leader
            if leader is not None and now_us >= probe_us:
                # Repeated: the entries that a later leader inherits commit only with its own first entry.
                self._probe(leader, probes)
                probe_us = now_us + 2 * SECOND_US
            self.run(0.5)
            done = ResponseCode.SUCCESS in probes and self.invariants.last_committed > before
            if done and self.is_converged():
                return
            if self._progress() < progress:
                progressed_us = self.clock.now_us
            progress = self._progress()

    def _progress(self) -> int:
        """Number of entries that the members lack together; while it falls, a slow member is catching up."""
        ends = [self.invariants.mirror(member.member_id).end_index for member in self.active]
        return sum(max(ends) - end for end in ends)

    def _probe(self, leader: SimMember, probes: list[ResponseCode]) -> None:
        body = f"probe.{len(probes)}.{self.clock.now_us}".encode()
        call = self.history.begin("append", client="probe", body=body)

        def appended(result: AppendResult) -> None:
            probes.append(ResponseCode.SUCCESS)
            self.history.end(call, "ok", index=result.index)

        leader.call(lambda node: node.append(body).addCallbacks(appended, lambda _: None))

    def judge(self) -> None:
        """
        Judge a settled run: the files are equal everywhere, every call is answered, and the history is
        linearizable.
        """
        for member in self.members.values():
            member.disk.disarm()  # a fault that lasted beyond the others is none of the judge's
        self._judge_machines()
        self._judge_states()
        for member in self.members.values():
            self.invariants.expired(member)
            if member.is_up:
                self.world.groups.check(self.invariants, member)
                self.world.times.check(self.invariants, member)
                check_readers(self.world.readers, self.invariants, member)
        FileJudge(self).compare()
        deadline_us = self.clock.now_us + CALLS_END_US
        while self.clock.now_us < deadline_us and (
            any(member.pending for member in self.members.values())
            or any(client.is_busy for client in self.clients)
        ):
            self.run(0.25)
        for member in self.members.values():
            require(member.pending == 0, 7, f"{member.member_id} left {member.pending} calls unanswered")
        for client in self.clients:
            require(not client.is_busy, 7, f"a call of {client.name} was never answered")
        invariants = self.invariants
        rules = self.world.machines
        check(self.history.calls, invariants.body_of, invariants.last_committed,
              next_change=None if rules is None else rules.next_change)

    def start_again(self) -> None:
        """
        All members that run end, are killed or lose power, and start again, and no start may forget (20).

        @raise NotLive: one does not start.
        """
        rng = self.random("last start")
        self.restarts_us = None
        for member in self.members.values():
            if member.is_up and not member.is_paused:
                (member.lose_power if rng.random() < 0.5 else member.kill)()
                if not member.start():
                    raise NotLive(f"{member.member_id} does not start again: {member.start_error}")
                self.bugs.notify()

    def _judge_machines(self) -> None:
        """Every machine comes to the end of the log; an operator may start members again for that."""
        rules, deadline_us = self.world.machines, self.clock.now_us + MACHINES_END_US
        if rules is None:
            return

        def behind() -> dict[str, str]:
            nodes = {member.member_id: member.node for member in self.active if member.is_up}
            return rules.behind(nodes)

        while (behind() or not self.is_converged()) and self.clock.now_us < deadline_us:
            self.run(0.5)
        reported = f"{behind()}, {self.describe()}"
        require(not behind() and self.is_converged(), 10, f"machines are not at the end: {reported}")

    def _judge_states(self) -> None:
        """
        Every member without damage knows what its group knows: the others have given it. Nobody asks Java's
        members for it, nor those that look like them.
        """
        if self.options.hides_wire_version:
            return
        deadline_us = self.clock.now_us + STATES_END_US

        def without() -> dict[str, str]:
            return {member.member_id: member.ledger.why_group_unknown for member in self.active
                    if member.is_up and member.ledger.group is None and not member.ledger.holes}

        while without() and self.clock.now_us < deadline_us:
            self.run(0.5)
        require(not without(), 11, f"members do not know the state of the group: {without()}")

    def describe(self) -> str:
        """The state of every member in a few words."""
        reported = []
        for member in self.members.values():
            if not member.is_up:
                reported.append(f"{member.member_id} down ({member.start_error or 'no error'})")
                continue
            state = member.core.member
            repair = f" repair to {state.repair_end_index}" if state.repair_end_index >= 0 else ""
            for hole in state.view.holes:
                repair += f" lacks {hole.first_index}..{hole.last_index} {member.core.holes.asked}"
            reported.append(f"{member.member_id} {state.role.value} t{state.term} "
                        f"{state.ledger_end_index}/{state.committed_index}{repair}")
        return ", ".join(reported)

    def transfer(self, transferee_id: str, done: Callable[[Response], None] | None = None) -> None:
        """Ask the leader to hand over, as an operator would."""
        leader = self.leader
        if leader is not None and leader.member_id != transferee_id:
            reported = done or _nobody_waits
            leader.call(lambda node: node.transfer(transferee_id).addCallbacks(reported, lambda _: None))


def _nobody_waits(_: Response) -> None:
    """Ignore the answer."""
