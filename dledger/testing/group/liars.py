# -*- test-case-name: tests.sim.test_liars -*-
"""
Schedules with one member that lies, or with frames that arrive changed.

The liar runs the real service and has real files, but what it says to the other members is changed on the
way: any well-formed message, see L{dledger.testing.group.injection.lies}; it also sends requests of its own.
The other members and their links have faults too, of the kinds that end no process by themselves.

Rule 1: no member ends, logs a failure, or cannot start again.
Rule 2: no member cuts an entry that it knows to be committed, and each keeps its own promises, see
L{dledger.testing.group.checks.apart}.
Rule 3: when the liar has left, and comes back honest with an empty directory, the group elects, commits and
becomes equal; unless two members are split: one holds another entry where the other one has committed. No
protocol of this kind prevents that, so it counts only with lies about L{SPLITTING} subjects.
"""

from __future__ import annotations

import random
import traceback

from dledger.testing.group.checks.apart import ApartInvariants
from dledger.testing.group.checks.require import InvariantError
from dledger.testing.group.clients import Load, SimClient
from dledger.testing.group.injection.faults import Nemesis
from dledger.testing.group.injection.frames import MessageChanger, corrupt
from dledger.testing.group.injection.lies import SPLITTING, SUBJECTS, Lies
from dledger.testing.group.members.cluster import SECOND_US, GroupOptions, NotLive, SimCluster
from dledger.testing.group.members.member import SimMember
from dledger.testing.group.schedule import ScheduleOutcome, member_options, outcome_of
from dledger.testing.world.streams import StreamEnd
from protocols.wire.ledger.messages import Request, Response
from protocols.wire.ledger.push import encode_request_frame

#: Faults beside the lies.
HARMLESS = ("cut_link", "isolate", "break", "break_late", "pause", "kill", "stop", "transfer", "twice")

#: Seconds with lies.
LYING_S = 25.0

#: Seconds without progress after which the group is not live: one that was led to a term far above the others
#: comes back in steps.
SETTLE_S = 280.0

#: Numbers of requests from here on are not used by connections.
_OPAQUE = 0x7000_0000


class UncheckedClient(SimClient):
    """A client that believes nothing: members that were lied to may show it anything."""

    def _shown(self, entries: object, era: int) -> None:
        """Nobody knows what is committed."""


class LyingCluster(SimCluster):
    """A group in which each member is judged by itself. No process may end by itself."""

    def __init__(self, options: GroupOptions, seed: int) -> None:
        super().__init__(options, seed, make_invariants=ApartInvariants)

    def process_ended(self, member: SimMember, *, asked: bool) -> None:
        if not asked:
            raise InvariantError(0, f"{member.member_id} ended: {member.node.reason}")
        super().process_ended(member, asked=asked)

    def start_failed(self, member: SimMember) -> None:
        raise InvariantError(0, f"{member.member_id} cannot start: {member.start_error}")


class Liar:
    """
    Changes what one member says to the others, and speaks for it.

    @ivar is_over: it has stopped lying.
    @ivar subjects: of its lies.
    @ivar corrupted: chance that a write of any member to another one arrives with a byte changed.
    """

    def __init__(self, cluster: LyingCluster, rng: random.Random) -> None:
        self.is_over = False
        self._cluster = cluster
        self._rng = rng
        ids = tuple(cluster.members)
        self.member = cluster.members[rng.choice(ids)]
        self.subjects = [subject for subject in SUBJECTS if rng.random() < rng.choice((0.15, 0.5))]
        self.corrupted = 0.0
        if rng.random() < 0.25 or not self.subjects:
            self.subjects = []
            self.corrupted = rng.choice((0.002, 0.02, 0.2))
        self._types = tuple(kind for subject in self.subjects for kind in SUBJECTS[subject])
        self._chance = rng.choice((0.02, 0.1, 0.5, 1.0))
        self._pause_us = int(rng.choice((0.05, 0.3, 2)) * SECOND_US)
        self._changer = MessageChanger()
        self._sent = 0
        self._lies = Lies(rng, group=self.member.config.group, self_id=self.member.member_id, ids=ids,
                          near=self._near)

    @property
    def may_split(self) -> bool:
        """Whether its lies can make members commit different entries."""
        return bool(self.corrupted or SPLITTING.intersection(self.subjects))

    def _near(self) -> tuple[int, int]:
        members = self._cluster.members.values()
        mirrors = [self._cluster.invariants.mirror(member_id) for member_id in self._cluster.members]
        return max(one.persisted_term for one in members), max(one.end_index for one in mirrors)

    def on_the_way(self, end: StreamEnd, data: bytes) -> bytes:
        """See L{dledger.testing.group.members.network.Rewriter.on_the_way}."""
        if self.is_over:
            return data
        if self.corrupted and self._rng.random() < self.corrupted:
            return corrupt(data, self._rng)
        mine = self.member.member_id
        if mine == end.host:
            return self._changer.change(end, data, self._lie)
        if mine == end.other.host and end.number == 0:
            self._changer.listen(end, data)
        return data

    def _lie(self, message: Request | Response) -> Request | Response:
        if not isinstance(message, self._types) or self._rng.random() >= self._chance:
            return message
        return self._lies.about(message)

    def start(self) -> None:
        """Begin to lie."""
        self._cluster.network.rewriters.append(self)
        if self._types:
            self._cluster.clock.after(self._pause_us, self._speak)

    def _speak(self) -> None:
        if self.is_over:
            return
        cluster, mine = self._cluster, self.member.member_id
        cluster.clock.after(1 + int(2 * self._pause_us * self._rng.random()), self._speak)
        to = self._rng.choice([member_id for member_id in cluster.members if member_id != mine])
        link = cluster.network.link_of(mine, to)
        request = self._lies.request(to, self._types)
        if link is not None and request is not None and self.member.is_serving:
            self._sent += 1
            link.ends[0].write(encode_request_frame(request, _OPAQUE + self._sent))

    def leave(self) -> None:
        """It lies no more; its place is taken by an honest member with an empty directory."""
        self.is_over = True
        cluster, member = self._cluster, self.member
        cluster.trace.note(cluster.clock.now_us, f"{member.member_id} lies no more")
        member.lose_directory()


def run_lying_schedule(
    seed: int, *, seconds: float = LYING_S, members: int | None = None, wants_all_lines: bool = False,
) -> ScheduleOutcome:
    """Run one seed to its verdict. Never raises for a failed check."""
    options, load = _options(seed, members)
    cluster = LyingCluster(options, seed)
    cluster.world.chunks.is_rotten = True  # a chunk whose bytes were changed on the way is refused
    if wants_all_lines:
        cluster.trace.echo = []
    clients = [UncheckedClient(cluster, f"c{number}", load, cluster.random(f"client {number}"))
               for number in range(load.clients)]
    liar = Liar(cluster, cluster.random("liar"))
    cluster.trace.note(0, f"{liar.member.member_id} lies about {liar.subjects}, corrupted {liar.corrupted}")
    nemesis = Nemesis(cluster, cluster.random("faults"), seconds=seconds, only=HARMLESS, pace_s=4.0)
    failure = ""
    try:
        with cluster.bugs.listening():
            cluster.start()
            cluster.clock.after(3 * SECOND_US, liar.start)
            nemesis.start()
            for client in clients:
                client.start()
            cluster.run(seconds)
            for client in clients:
                client.is_stopped = True
            liar.leave()
            cluster.end_faults()
            _settle(cluster, liar)
    except AssertionError as error:
        failure = str(error) or "".join(traceback.format_exception(error)[-12:])
    except Exception as error:  # any other exception of a simulated member is a bug as well
        failure = "".join(traceback.format_exception(error))
    return outcome_of(cluster, seed, failure)


def _options(seed: int, members: int | None) -> tuple[GroupOptions, Load]:
    """The seed's group; all its members may lead, and have files."""
    options, load = member_options(seed, members)
    return GroupOptions(
        members=options.members, settings=options.settings, is_native=options.is_native,
        hides_wire_version=options.hides_wire_version, flush_us=options.flush_us, delay_us=options.delay_us,
        spread_us=options.spread_us, clients_wire=options.clients_wire,
    ), load


def _settle(cluster: LyingCluster, liar: Liar) -> None:
    invariants = cluster.invariants
    assert isinstance(invariants, ApartInvariants)
    try:
        cluster.settle(SETTLE_S)
    except NotLive:
        ids = [member_id for member_id in cluster.members if member_id != liar.member.member_id]
        split = invariants.split(ids)
        if not (split and liar.may_split):
            raise
        cluster.trace.note(cluster.clock.now_us, split)


