# -*- test-case-name: tests.core.test_beliefs,tests.core.test_flush_pace,tests.core.test_machine_claims -*-
"""
What one member believes of the others, by what each has said last.

A belief may be old, and a Java member says less than one of ours: the log is decided by
L{dledger.core.state.member_state} alone. Beliefs decide whom to ask, whom to hand leadership to, and how to
speak with a peer.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

import attrs

from dledger.core.state.inputs import MachineChecked, MembersIntroduced
from dledger.values.ledger.membership import Membership
from protocols.wire.codes import ResponseCode
from protocols.wire.ledger.codes import (
    MEMBERS_MAX,
    WIRE_FLAG_DISK_FULL,
    WIRE_FLAG_MACHINE_RUNS,
    WIRE_VERSION_MASK,
    VoteResult,
    flush_time_flags,
    flush_time_of,
)

#: A follower must be this many times faster than its leader.
SLOW_FACTOR = 10
#: A member that was this many times slower than its leader, or more, is not given leadership back.
STILL_SLOW_FACTOR = 3
#: The leader's disk is slow for this long, without a pause, before it hands over; milliseconds.
SLOW_FOR_MS = 60_000
#: Milliseconds between a transfer and the next one for this reason.
SLOW_AGAIN_MS = 300_000
#: A flush time counts for this many milliseconds after the last flush, and a clock after it was reported.
FRESH_MS = 10_000
#: Least weight of one flush in the mean.
_WEIGHT = 0.125
#: Members that others introduce, at most: one false list of full length leaves room for a true one.
INTRODUCED_MAX = 2 * MEMBERS_MAX


@attrs.define
class FlushPace:
    """
    How long the flushes of this member take, and which of its peers flush much faster; milliseconds, as seen
    by the core.

    Followers of ours report their flush time in each answer to a heartbeat (L{flush_time_flags}); a Java
    member says nothing, and is never compared. A leader gives way if for L{SLOW_FOR_MS} its flushes take at
    least C{slow_flush_hand_over_ms}, and L{SLOW_FACTOR} times as long as those of one live follower. A leader
    that got leadership by a transfer, for any reason, waits for L{SLOW_AGAIN_MS} first.

    @ivar _mean_ms: of the last flushes; -1 before the first.
    @ivar began_ms: begin of the flush that is under way; None without one.
    @ivar _slow_since_ms: since when each peer has been much faster than this member.
    """

    _mean_ms: float = -1.0
    began_ms: int | None = None
    _ended_ms: int = 0
    _reported: dict[str, tuple[float, int]] = attrs.Factory(dict)
    _slow_since_ms: dict[str, int] = attrs.Factory(dict)
    _quiet_until_ms: int = 0
    _looked_ms: int = 0

    def ended(self, now_ms: int) -> None:
        """It has ended."""
        if self.began_ms is None:
            return
        # (The process may have been stopped meanwhile.)
        took_ms, self.began_ms = min(now_ms - self.began_ms, FRESH_MS), None
        # Of rare flushes each one counts for more: one that was slow is to be forgotten in L{SLOW_FOR_MS}.
        weight = 1.0 if self._mean_ms < 0 else min(1.0, max(_WEIGHT, (now_ms - self._ended_ms) / FRESH_MS))
        self._mean_ms += weight * (took_ms - self._mean_ms)
        self._ended_ms = now_ms

    def time_ms(self, now_ms: int) -> float | None:
        """The present flush time; None if there was no flush lately. One that does not end counts, too."""
        running_ms = 0 if self.began_ms is None else now_ms - self.began_ms
        known_ms = self._mean_ms if now_ms - self._ended_ms < FRESH_MS else -1.0
        if known_ms < 0 and running_ms < FRESH_MS:
            return None
        return max(known_ms, running_ms)

    def flags(self, now_ms: int) -> int:
        """The flags of a C{wire_version} that report the flush time."""
        return flush_time_flags(self.time_ms(now_ms))

    def heard(self, peer_id: str, wire_version: int, now_ms: int) -> None:
        """A peer answered a heartbeat."""
        reported_ms = flush_time_of(wire_version)
        if reported_ms is None:
            self._reported.pop(peer_id, None)
        else:
            self._reported[peer_id] = (reported_ms, now_ms)

    def peer_ms(self, peer_id: str, now_ms: int) -> float | None:
        """The flush time that a peer reported lately; None if it reported none."""
        reported_ms, heard_ms = self._reported.get(peer_id, (0.0, -FRESH_MS))
        return reported_ms if now_ms - heard_ms < FRESH_MS else None

    def is_much_slower(self, peer_id: str, now_ms: int, least_ms: int) -> bool:
        """Whether a peer flushes so slowly that it would give leadership back; C{least_ms} 0: never."""
        theirs, ours = self.peer_ms(peer_id, now_ms), self.time_ms(now_ms)
        if theirs is None or ours is None or not least_ms:
            return False
        return theirs >= least_ms and theirs >= STILL_SLOW_FACTOR * max(ours, 1.0)

    def transferred(self, now_ms: int) -> None:
        """Leadership was, or is being, handed over: no other transfer for a slow disk for a while."""
        self._quiet_until_ms = now_ms + SLOW_AGAIN_MS
        self._slow_since_ms.clear()

    def better(self, peer_ids: Sequence[str], now_ms: int, least_ms: int) -> str | None:
        """
        The peer that should lead instead of this leader. Called regularly while this member leads.

        @param peer_ids: those that could take over, the best first; a peer that is absent begins anew.
        @param least_ms: a leader with a shorter flush time is not slow; 0: no leader is.
        """
        if now_ms - self._looked_ms >= FRESH_MS:
            self._slow_since_ms.clear()  # this member did not lead meanwhile
        self._looked_ms = now_ms
        ours = self.time_ms(now_ms)
        since: dict[str, int] = {}
        if least_ms and ours is not None and ours >= least_ms:
            for peer_id in peer_ids:
                theirs = self.peer_ms(peer_id, now_ms)
                if theirs is not None and SLOW_FACTOR * max(theirs, 1.0) <= ours:
                    since[peer_id] = self._slow_since_ms.get(peer_id, now_ms)
        self._slow_since_ms = since
        if now_ms < self._quiet_until_ms:
            return None
        return next((one for one, began_ms in since.items() if now_ms - began_ms >= SLOW_FOR_MS), None)


@attrs.define
class Quota:
    """
    Bytes per second for a follower that is far behind.

    Source: Quota.java; differs: it never sleeps, the dispatcher waits for the next second.
    """

    per_second: int
    _second: int = -1
    _spent: int = 0

    def left(self, now_ms: int) -> int:
        """Bytes that may still be sent in this second."""
        second = now_ms // 1000
        if second != self._second:
            self._second = second
            self._spent = 0
        return self.per_second - self._spent

    def spend(self, size: int) -> None:
        """C{size} bytes were sent. L{left} drops the count when a new second begins."""
        self._spent += size


@attrs.define
class MachineClaims:
    """
    Which members could lead for the state machine of the group.

    Rule: a leader whose machine has no state hands over to a member that has said that its machine runs, and
    is a candidate last. With a machine that runs, leadership goes to no other member by itself.

    @ivar runs: whether the machine of this member runs; False without one.
    @ivar is_unfit: whether this member runs a machine that should not lead: it has failed, has no state, or
        is in doubt.
    """

    runs: bool = False
    is_unfit: bool = False
    _running: set[str] = attrs.Factory(set)

    def checked(self, checked: MachineChecked) -> None:
        """The machine of this member was looked at."""
        self.runs = checked.runs
        self.is_unfit = checked.is_unfit

    def heard(self, peer_id: str, wire_version: int) -> None:
        """A peer answered a heartbeat."""
        if wire_version & WIRE_FLAG_MACHINE_RUNS:
            self._running.add(peer_id)
        else:
            self._running.discard(peer_id)

    @property
    def flags(self) -> int:
        """For answers to heartbeats."""
        return WIRE_FLAG_MACHINE_RUNS if self.runs and not self.is_unfit else 0

    def able(self, peer_ids: Iterable[str]) -> tuple[str, ...]:
        """Those of C{peer_ids} that could lead for the machine; all of them in a group without one."""
        is_needed = self.runs or self.is_unfit
        return tuple(one for one in peer_ids if not is_needed or one in self._running)


@attrs.define
class PeerClocks:
    """
    The clocks of the peers, as their votes and their answers to heartbeats said in the present term. A
    candidate with the votes of a majority knows their clocks before it leads. A Java member never says.

    @ivar _said: by peer: its clock, and the monotonic time of this member then, milliseconds.
    """

    _said: dict[str, tuple[int, int]] = attrs.Factory(dict)

    def heard(self, peer_id: str, clock_ms: int, now_ms: int) -> None:
        """A peer answered. @param clock_ms: -1: it does not say."""
        if clock_ms >= 0:
            self._said[peer_id] = clock_ms, now_ms

    def now(self, now_ms: int, fresh_ms: int) -> dict[str, int]:
        """
        What the clocks show now, by peer, milliseconds since 1970.

        @param fresh_ms: what was said longer ago does not count.
        """
        return {
            peer_id: clock_ms + now_ms - at_ms for peer_id, (clock_ms, at_ms) in self._said.items()
            if now_ms - at_ms <= fresh_ms
        }

    def forget(self) -> None:
        """A term begins."""
        self._said.clear()


@attrs.define
class PeerBeliefs:
    """
    A peer is I{of Java} if its messages name no version of our wire, I{ours} if one did on the present
    connection, and I{unheard} before any message on it.

    @ivar push_quota: bytes in a second for a peer that is far behind.
    @ivar wire_versions: the version that each peer named: 0 for Java, and none for a peer that is unheard. A
        message without a version never lowers one.
    @ivar last_heard_ms: when each peer was heard last; it outlives connections.
    @ivar incompatible: peers that answered a request in another version of the protocol on the present
        connection, or sent one. They cannot acknowledge pushes; their votes and heartbeats are refused.
    @ivar full: peers whose disks were full in their last answer to a heartbeat.
    @ivar refused_by: peers that refused a vote because they follow a leader, or do not know this member, and
        have not been asked for their members since.
    @ivar pace: flush times of this member and of its peers.
    @ivar machine: the state machines of this member and of its peers.
    @ivar clocks: the clocks of its peers.
    @ivar leader_committed_index: commit index in the last push of a leader; -1 before any.
    @ivar leader_committed_ms: a time before that push came, see C{MemberState.awake_ms}; -1: not known.
    @ivar seeks_java_leader: this leader has lost an entry to damage, no member of ours has it, and Java
        members give entries only while they lead.
    """

    push_quota: int
    wire_versions: dict[str, int] = attrs.Factory(dict)
    last_heard_ms: dict[str, int] = attrs.Factory(dict)
    incompatible: set[str] = attrs.Factory(set)
    full: set[str] = attrs.Factory(set)
    refused_by: set[str] = attrs.Factory(set)
    pace: FlushPace = attrs.Factory(FlushPace)
    machine: MachineClaims = attrs.Factory(MachineClaims)
    clocks: PeerClocks = attrs.Factory(PeerClocks)
    leader_committed_index: int = -1
    leader_committed_ms: int = -1
    seeks_java_leader: bool = False
    _quotas: dict[str, Quota] = attrs.Factory(dict)

    def is_ours(self, peer_id: str | None) -> bool:
        """Whether the peer speaks our wire."""
        return peer_id is not None and self.wire_versions.get(peer_id, 0) >= 1

    def is_java(self, peer_id: str) -> bool:
        """Whether the peer was heard, and is of Java."""
        return self.wire_versions.get(peer_id) == 0

    def is_unheard(self, peer_id: str) -> bool:
        """Whether nothing came from the peer yet."""
        return peer_id not in self.wire_versions

    def heard(self, peer_id: str, wire_version: int, now_ms: int) -> None:
        """A message of C{peer_id} arrived."""
        self.last_heard_ms[peer_id] = now_ms
        wire_version &= WIRE_VERSION_MASK
        if wire_version > 0 or peer_id not in self.wire_versions:
            self.wire_versions[peer_id] = wire_version

    def heard_state(
        self, peer_id: str, wire_version: int, now_ms: int, code: ResponseCode = ResponseCode.SUCCESS
    ) -> None:
        """
        A peer answered a heartbeat; its flags report its room on the disk, its speed, its state machine.

        A refusal says nothing: a member that cannot place its sender yet answers without flags.
        """
        if code is not ResponseCode.SUCCESS:
            return
        self.pace.heard(peer_id, wire_version, now_ms)
        self.machine.heard(peer_id, wire_version)
        if wire_version & WIRE_FLAG_DISK_FULL:
            self.full.add(peer_id)
        else:
            self.full.discard(peer_id)

    def heard_vote(self, peer_id: str, result: VoteResult) -> None:
        """A peer answered this candidate: it may refuse because this member was removed."""
        if result in (VoteResult.REJECT_ALREADY_HAS_LEADER, VoteResult.REJECT_UNKNOWN_LEADER):
            self.refused_by.add(peer_id)

    def connected(self, peer_id: str) -> None:
        """A connection to C{peer_id} is new: another program may listen there, for example a Java member."""
        self.incompatible.discard(peer_id)
        self.wire_versions.pop(peer_id, None)

    def quota_of(self, peer_id: str) -> Quota:
        """What may be sent in a second to C{peer_id} when it is far behind."""
        return self._quotas.setdefault(peer_id, Quota(self.push_quota))


@attrs.frozen
class _Reported:
    """A list of members from another member. C{was_trusted}: that was a member of this ledger then."""

    membership: Membership
    was_trusted: bool


@attrs.define
class IntroducedMembers:
    """
    The members that this ledger does not have, and others report.

    @ivar start_list: ids and C{host:port} of the members that this one was started with.
    @ivar members: id to C{host:port} of the members in later lists than this ledger has, as far as known
        members reported them, at most L{INTRODUCED_MAX}; none once this ledger has caught up.
    @ivar known: ids of all whose word counts: the members of this ledger, and C{members}.
    """

    self_id: str
    start_list: Mapping[str, str]
    members: Mapping[str, str] = attrs.Factory(dict)
    known: Collection[str] = frozenset()
    _own: Membership = attrs.field(init=False)
    _reported: dict[str, _Reported] = attrs.Factory(dict)
    _trusted: Mapping[str, str] = attrs.Factory(dict)

    def follow(self, own: Membership) -> None:
        """The ledger of this member has this list now."""
        self._own = own
        # A member that joins is in no list before the end of the ledger. Until then it takes the start list
        # besides for those that it may believe: all members of the past may be gone.
        listed = own.addresses
        self._trusted = listed if self.self_id in listed else {**self.start_list, **listed}
        self._gather()

    def on_introduced(self, reported: MembersIntroduced) -> None:
        """A known member has reported a list of members."""
        reporter_id = reported.reporter_id
        self._reported[reporter_id] = _Reported(reported.membership, reporter_id in self._trusted)
        self._gather()

    def _gather(self) -> None:
        """
        Gather what others reported. Each one's last word counts for itself, so a false one hides no true one.
        The members of this ledger come first, then those that they introduced: these may know of still
        others. A list of the past may lack a member that reported the present one: its word counts until the
        present is reached.
        """
        own, first = self._own, self._trusted
        found: dict[str, str] = {}
        kept: dict[str, _Reported] = {}
        for reporter_id, reported in sorted(self._reported.items(), key=lambda one: one[0] not in first):
            if reported.membership.index <= own.index or not (
                reported.was_trusted or reporter_id in first or reporter_id in found
            ):
                continue
            kept[reporter_id] = reported
            for member_id, address in reported.membership.addresses.items():
                if member_id != self.self_id and len(found) < INTRODUCED_MAX:
                    found.setdefault(member_id, address)
        self._reported = kept
        self.members = found
        self.known = frozenset({*first, *found}) - {self.self_id}
