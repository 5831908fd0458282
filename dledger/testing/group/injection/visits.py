# -*- test-case-name: tests.sim.test_visits -*-
"""
Faults and visitors that no seed draws by itself, but some focuses do: operators who keep copies, programs
inside members, members that are late for the log, and pushes that overtake each other.

(A seed whose mix had them would play another schedule than before they came.)
"""

from __future__ import annotations

import random

from dledger.storage.start.verify import verify_directory
from dledger.testing.group.checks.require import require
from dledger.testing.group.injection.damage import Rot
from dledger.testing.group.injection.frames import Jumble
from dledger.testing.group.injection.insider import Insider
from dledger.testing.group.injection.inspections import Inspections
from dledger.testing.group.injection.keeper import CopyKeeper
from dledger.testing.group.injection.lateness import LATE_US, Lateness
from dledger.testing.group.injection.misfortunes import Misfortunes
from dledger.testing.group.injection.moods import Moods
from dledger.testing.group.injection.older_copies import OlderCopies
from dledger.testing.group.injection.slips import Slips
from dledger.testing.group.injection.strangers import Stranger
from dledger.testing.group.members.cluster import SECOND_US, SimCluster
from dledger.testing.group.members.member import SimMember

#: Every kind there is.
VISITS = ("keep", "restore", "call_inside", "outlast", "wipe_late", "jumble", "ask", "order", "misplace",
          "spoil", "survive", "upset", "question", "rot_snapshot", "rot_ahead",
          "rot_beside", "rot_apart", "stop_late", "hang_machine", "bury", "look_at_files", "look_at_copies",
          "roll_back", "differ", "unmake", "upgrade", "skip_wrongly", "rot_head", "crowd")
#: For so long a leader that is buried is down: longer than a group of well members may have no leader.
BURIED_US = 50 * SECOND_US
#: A member whose scrub rests for less has mended what rots beside records after L{SCRUBBED_US}.
SCRUBBED_MS, SCRUBBED_US = 1000, 150 * SECOND_US


class Visits:
    """
    See the module.

    @ivar keeper: keeps copies. @ivar insider: calls members from within.
    @ivar slips: mistakes of the operator. @ivar moods: of the state machines.
    @ivar inspections: looks at damaged files. @ivar older: puts older copies of directories back.
    @ivar lateness: lets members come back late.
    @ivar way: lets pushes overtake each other; None: never yet.
    """

    def __init__(
        self, cluster: SimCluster, rng: random.Random, damage: Rot, misfortunes: Misfortunes
    ) -> None:
        self.keeper = CopyKeeper(cluster, cluster.random("keeper"), damage)
        self.insider = Insider(cluster, cluster.random("insider"))
        self.slips = Slips(cluster, cluster.random("slips"), self.keeper)
        self.moods = Moods(cluster, cluster.random("moods"))
        self.inspections = Inspections(cluster, cluster.random("inspections"), self.keeper, damage)
        self.older = OlderCopies(cluster, cluster.random("older copies"), damage, misfortunes)
        self.lateness = Lateness(cluster, damage, misfortunes)
        self.way: Jumble | None = None
        self._cluster = cluster
        self._clock = cluster.clock
        self._rng = rng
        self._misfortunes = misfortunes
        self._damage = damage
        self._stranger: Stranger | None = None
        self._is_scrubbed = self._has_buried = False
        self._members_before: frozenset[str] = frozenset()

    def _member(self) -> SimMember:
        leader = self._cluster.leader
        if leader is not None and self._rng.random() < 0.4:
            return leader
        return self._rng.choice(list(self._cluster.members.values()))

    def keep(self) -> None:
        """An operator copies the log of a member to a backup or an archive."""
        self.keeper.keep(self._member())

    def restore(self) -> None:
        """A member has a new disk, and begins with a copy of the log."""
        self._misfortunes.wipe(self.keeper)

    def call_inside(self) -> None:
        """A program in the process of a member calls it, and an operator changes its options."""
        self.insider.call(self._member())

    def order(self) -> None:
        """An operator asks for changes of the members that make no sense, or for dry runs."""
        for _ in range(3):
            self.slips.order(self._member())

    def misplace(self) -> None:
        """An operator names a wrong directory for a copy, or of one."""
        self.slips.misplace(self._member())

    def spoil(self) -> None:
        """Files of a copy rot."""
        self.slips.spoil(self._member())

    def survive(self) -> None:
        """A member begins a new group beside this one."""
        self.slips.survive(self._member())

    def roll_back(self) -> None:
        """The directory of a member becomes an older copy of itself; or it is copied."""
        self.older.strike(self._rng.choice(list(self._cluster.members.values())))

    def look_at_files(self) -> None:
        """An operator looks at damaged copies of the files of a member, and starts on them."""
        self.inspections.look(self._member())

    def look_at_copies(self) -> None:
        """The same, of a backup or an archive."""
        self.inspections.look_at_copy(self._member())

    def upset(self) -> None:
        """A state machine fails at its next snapshot, digest or restore."""
        self.moods.strike(self._member())

    def question(self) -> None:
        """A state machine gets a query that it does not answer."""
        self.moods.ask(self._member())

    def rot_snapshot(self) -> None:
        """A snapshot of a state machine rots."""
        self.moods.rot()

    def differ(self) -> None:
        """A state machine reports a digest of no state."""
        self.moods.differ(self._member())

    def unmake(self) -> None:
        """A state machine cannot be made again."""
        self.moods.unmake(self._member())

    def upgrade(self) -> None:
        """A member gets the next version of the state machine."""
        self.moods.upgrade(self._rng.choice(list(self._cluster.members.values())))

    def skip_wrongly(self) -> None:
        """An operator orders to skip an entry at which nobody has failed."""
        self.moods.skip(self._member())

    def rot_head(self) -> None:
        """The head of a snapshot rots."""
        self.moods.rot_head()

    def rot_ahead(self) -> None:
        """A member is cut off; entries that it lacks rot at the leader before it is back."""
        leader, member = self._cluster.leader, self._rng.choice(list(self._cluster.members.values()))
        if leader is None or member is leader:
            return
        network, us = self._cluster.network, int((2 + 3 * self._rng.random()) * SECOND_US)
        for other in self._cluster.members:
            if other != member.member_id:
                for source, target in ((other, member.member_id), (member.member_id, other)):
                    network.cut(source, target)
                    self._clock.after(us, network.heal, source, target)
        self._clock.after(us - int(us * self._rng.random() * 0.2) - 1, self._rot_behind, leader, member)

    def _rot_behind(self, leader: SimMember, member: SimMember) -> None:
        end_index = self._cluster.invariants.mirror(member.member_id).end_index
        if self._damage.rot_after(leader, end_index) and self._rng.random() < 0.4:
            leader.kill()
            self._cluster.restart_later(leader, 1000)

    def rot_beside(self) -> None:
        """Index units and blanks of closed files rot."""
        self._is_scrubbed = all(
            one.config.scrub_bytes_per_s and one.config.scrub_pause_ms < SCRUBBED_MS
            for one in self._cluster.members.values()
        )
        for _ in range(4):
            self._damage.rot_beside(self._member())

    def stop_late(self) -> None:
        """A member that comes back too late for the log is stopped while it catches up."""
        members = self._cluster.members
        before = {one.member_id: one.boots for one in members.values() if one.is_up}
        self.lateness.outlast(only_down=True)
        for member_id, boots in before.items():
            if not members[member_id].is_up:
                self._stop_when_back(members[member_id], boots, self._clock.now_us + 2 * LATE_US)

    def _stop_when_back(self, member: SimMember, boots: int, until_us: int) -> None:
        if member.is_up and member.boots > boots:
            self._clock.after(int(2 * SECOND_US * self._rng.random() ** 2), member.stop)
        elif self._clock.now_us < until_us:
            self._clock.after(100_000, self._stop_when_back, member, boots, until_us)

    def hang_machine(self) -> None:
        """A call of a state machine takes many seconds."""
        self.moods.hang(self._member())

    def bury(self) -> None:
        """
        A member that may lead is cut off from a leader, which goes for long when that one is back: of those
        that are left, one with all entries may have to help one that lacks some. (Once in a schedule.)
        """
        leader, members = self._cluster.leader, self._cluster.members
        others = [one for one in members.values() if one is not leader and not one.config.never_lead]
        if leader is None or not others or self._has_buried:
            return
        self._has_buried = True
        network, member, us = self._cluster.network, self._rng.choice(others), 2 * SECOND_US
        for other in members:
            if other != member.member_id:
                for source, target in ((other, member.member_id), (member.member_id, other)):
                    network.cut(source, target)
                    self._clock.after(us, network.heal, source, target)
        self._clock.after(us - 1, leader.kill)
        self._cluster.restart_later(leader, BURIED_US)

    def outlast(self) -> None:
        """A member is away until the log of the leader begins after its end: it needs more than the log."""
        self.lateness.outlast()

    def rot_apart(self) -> None:
        """A leader is cut off with entries of its own, and one of them rots."""
        self.lateness.rot_apart()

    def wipe_late(self) -> None:
        """A member has a new disk when the log of the others has lost its beginning."""
        leader = self._cluster.leader
        if leader is not None and self._cluster.invariants.mirror(leader.member_id).begin_index > 0:
            self._misfortunes.kind("wipe")()

    def jumble(self) -> None:
        """Pushes of members overtake each other for a while."""
        if self.way is None:
            self.way = Jumble(self._cluster.random("jumble"))
            self._cluster.network.rewriters.append(self.way)
        self.way.chance = self._rng.choice((0.05, 0.3))
        self._clock.after(int(10 * SECOND_US * self._rng.random() ** 2) + 1000, self._in_order)

    def _in_order(self) -> None:
        if self.way is not None:
            self.way.chance = 0.0

    def ask(self) -> None:
        """Somebody whom the members do not know asks them as a client and as an operator."""
        if self._stranger is None:
            self._stranger = Stranger(self._cluster)
            self._members_before = frozenset(self._cluster.invariants.membership.addresses)
        self._stranger.ask()

    def crowd(self) -> None:
        """Many whom a member does not know connect to it at once, and ask for much."""
        self.ask()
        assert self._stranger is not None
        self._stranger.crowd()

    def judge(self) -> None:
        """
        All faults are over, and the group has settled.

        @raise InvariantError: a copy is wrong, a member is not ready, or a stranger was obeyed.
        """
        if self._stranger is not None:
            now = frozenset(self._cluster.invariants.membership.addresses)
            require(now == self._members_before, 9, f"a stranger has changed the members: {sorted(now)}")
        self._judge_scrub()
        self.keeper.judge()
        self.insider.judge()
        self.moods.judge()

    def _judge_scrub(self) -> None:
        """What rotted beside records was mended, though nobody read it."""
        cluster, until_us = self._cluster, self._clock.now_us + SCRUBBED_US
        while self._is_scrubbed and (found := self._rotten()):
            require(cluster.clock.now_us < until_us, 4, f"not mended by the scrub: {found[:3]}")
            cluster.run(0.5)

    def _rotten(self) -> list[str]:
        """What an operator finds in the files of the members."""
        found = []
        for member in self._cluster.active:
            report = verify_directory(member.disk.clone(), member.config.self_path)
            found += [f"{one.file} at {one.offset}: {one.sentence}" for one in report.findings]
        return found
