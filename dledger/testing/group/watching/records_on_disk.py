# -*- test-case-name: tests.sim.test_records_on_disk -*-
"""
The records on the disk of a member, compared with its process while it runs; and a start, compared with the
records that it finds.

A member that remembers too little is seldom wrong: its peers give the rest back, or it does not vote for a
while. So nobody else sees that something was not recorded, or was recorded and not read.
"""

from __future__ import annotations

from collections import deque
from typing import Protocol

import attrs

from dledger.base.disk.two_slots import SLOT_SIZE
from dledger.node.maintenance import MAINTENANCE_INTERVAL_S
from dledger.storage.files.commit_mark import COMMIT_MARK_NAME, CommitMark, decode_mark
from dledger.storage.files.state_file import STATE_NAME, decode_state
from dledger.storage.files.term_file import TermVote, decode_term, decode_term_twin, later_term
from dledger.storage.start.configurations import MEMBERS_NAME, encode_memberships
from dledger.storage.start.identity import IDENTITY_NAME, Identity, decode_identity
from dledger.testing.group.checks.apart import ApartInvariants
from dledger.testing.group.checks.checked_member import CheckedMember
from dledger.testing.group.checks.group_folds import stored_problem
from dledger.testing.group.checks.invariants import GroupInvariants
from dledger.testing.group.checks.require import require
from protocols.wire.errors import WireError

#: Number in docs/invariants.md.
RECORDS = 20
#: The mark says what was durable this number of checkpoints, and of ticks, ago.
_CHECKPOINTS, _TICKS = 2, 30
#: The chunks of this number of entries are looked at.
_NEWEST = 20


class RecordingMember(CheckedMember, Protocol):
    """A member, and what may keep it from recording."""

    is_small_damaged: bool

    @property
    def is_dying(self) -> bool:
        """Whether its process has died inside the present event."""


@attrs.frozen(kw_only=True)
class FoundByStart:
    """
    The records of a member before a start.

    @ivar last_whole: the last entry that lies on it as the process before held it, after others that do.
    """

    identity: Identity | None
    mark: CommitMark | None
    vote: TermVote | None
    last_whole: int


def mark_in(content: bytes | None) -> CommitMark | None:
    """The newest mark of a file; None without one."""
    content = content or b""
    slots = [decode_mark(content[:SLOT_SIZE]), decode_mark(content[SLOT_SIZE : 2 * SLOT_SIZE])]
    return max((one for one in slots if one is not None), key=lambda one: one[0], default=(0, None))[1]


class RecordRules:
    """
    The rules of one member, for all its processes.

    @ivar found: the records before the start that is under way; None: it is not judged.
    @ivar failed: calls of its disk that had failed when the process started: if others have since, something
        may not be recorded yet.
    """

    def __init__(self, member: RecordingMember, invariants: GroupInvariants) -> None:
        self._member = member
        self._invariants = invariants
        self.found: FoundByStart | None = None
        self._settled: deque[tuple[int, int]] = deque()
        self._looks = 0
        self.failed = 0
        self._apart = 0
        self._state = b""
        self._stale_index = -1  # up to here a loss of power may have brought rows of former chunks back

    @property
    def _is_judged(self) -> bool:
        member = self._member
        return not (isinstance(self._invariants, ApartInvariants) or member.is_small_damaged
                    or member.damaged)

    def _path(self, name: str) -> str:
        return f"{self._member.config.self_path}/{name}"

    def _content(self, name: str) -> bytes | None:
        """As processes read it."""
        disk, path = self._member.disk, self._path(name)
        return disk.cached_content(path) if disk.exists(path) else None

    def _says(self, what: str, has: object, wanted: object, is_so: bool) -> None:
        if not is_so:
            reported = f"the disk says of {what} {has}, it is {wanted}"
            require(is_so, RECORDS, f"{self._member.member_id}: {reported}")

    # -- while a process runs ---------------------------------------------------------------------

    def look(self) -> None:
        """At a tick, once in a while."""
        member, disk = self._member, self._member.disk
        self._looks += 1
        if not self._is_judged or member.is_dying:
            return
        state, ledger = member.core.member, member.ledger
        is_undisturbed = disk.errors + disk.refusals == self.failed and not disk.is_armed
        if is_undisturbed:
            self._look_at_lists()
        self._look_at_state()
        identity = decode_identity(disk.durable_content(self._path(IDENTITY_NAME)) or b"")
        if identity is not None and is_undisturbed:
            name = state.group_name
            has = identity.group_id, identity.group_term, bool(identity.is_group_known)
            wanted = name.id, name.term, name.is_known
            self._says("the group", has, wanted, has == wanted)
            self._says("doubt", identity.unsure, state.is_unsure, bool(identity.unsure) == state.is_unsure)
        if is_undisturbed and (ledger.memberships or disk.exists(self._path(MEMBERS_NAME))):
            listed = disk.durable_content(self._path(MEMBERS_NAME))
            wanted_list = encode_memberships(ledger.memberships)
            self._says("the members", listed, wanted_list, listed == wanted_list)
        # (A member looks for room while it keeps house.)
        self._apart = 0 if state.is_full == ledger.disk_full else self._apart + 1
        self._says("room, late: full", ledger.disk_full, state.is_full,
                   10 * self._apart * member.config.tick_ms <= 1500 * MAINTENANCE_INTERVAL_S)
        self._look_at_mark(mark_in(self._content(COMMIT_MARK_NAME)), is_undisturbed=is_undisturbed)

    def _look_at_lists(self) -> None:
        """What is listed of the log lies in it: members, and the newest chunks."""
        member, mirror = self._member, self._invariants.mirror(self._member.member_id)
        for one in member.ledger.memberships:
            if one.index >= max(mirror.begin_index, 0):
                term = mirror.term_of(one.index)
                self._says(f"members at {one.index}, of term", one.term, term, one.term == term)
        if mirror.lost or not mirror.terms:
            return
        index, end_index = max(mirror.end_index - _NEWEST, mirror.begin_index), mirror.end_index
        while index <= end_index and (chunk := member.ledger.chunk_from(index)) is not None:
            held = chunk.term, mirror.term_of(chunk.last_index), mirror.ends[
                min(chunk.last_index, end_index) - mirror.begin_index]
            is_right = held == (chunk.term, chunk.term, chunk.end_position)
            self._says("a chunk", chunk, held, is_right or chunk.last_index <= self._stale_index)
            index = chunk.last_index + 1

    def _look_at_state(self) -> None:
        """The states in the file say what the log says up to their entries."""
        member, content = self._member, self._content(STATE_NAME)
        if content is None or content == self._state or member.ledger.group is None:
            return
        self._state = content
        mirror = self._invariants.mirror(member.member_id)
        for slot in (content[: len(content) // 2], content[len(content) // 2 :]):
            try:
                stored = decode_state(slot)
            except WireError:
                continue  # (It is being written, or was when the power went.)
            problem = stored_problem(stored, self._invariants, mirror, member.ledger.repair_end_index)
            self._says("the group", problem, "right", not problem)

    def _look_at_mark(self, mark: CommitMark | None, *, is_undisturbed: bool) -> None:
        """It says no more than is so, and says it soon."""
        member = self._member
        state, mirror = member.core.member, self._invariants.mirror(member.member_id)
        flushed = min(state.flushed_index, mirror.end_index)
        if flushed >= mirror.begin_index and mirror.terms and flushed not in mirror.lost:
            size = self._invariants.record_size(member.member_id, flushed)
            at = mirror.ends[flushed - mirror.begin_index] - size
            self._says("the flushed entry", flushed, "not durable", member.is_durable(at, size))
        if mark is None:
            return
        if mark.end_index >= max(mirror.begin_index, 0):
            at = mark.end_index - mirror.begin_index
            has = mark.end_term, mark.end_position
            wanted = (mirror.term_of(mark.end_index), mirror.ends[at] if at < len(mirror.ends) else -1)
            self._says(f"the end at {mark.end_index}", has, wanted, has == wanted)
        committed = mark.committed_index
        self._says("the commit", committed, state.committed_index, committed <= state.committed_index)
        owed = member.ledger.repair_end_index
        if is_undisturbed:
            self._says("the repair", mark.repair_end_index, owed, mark.repair_end_index == owed)
        else:
            self._settled.clear()
        config, settled = member.config, self._settled
        settled.append((self._looks, min(state.committed_index, flushed)))
        after = 1 + (_CHECKPOINTS * config.check_point_interval // config.tick_ms + _TICKS) // 10
        while settled[0][0] <= self._looks - after:
            _, known = settled.popleft()
            self._says("the commit, late", committed, known, committed >= known)

    # -- starts -----------------------------------------------------------------------------------

    def before_start(self) -> None:
        """A process will start: read the records first."""
        self.found = None
        self._apart = 0
        self._state = b""
        self._settled.clear()
        self.failed = self._member.disk.errors + self._member.disk.refusals
        if not self._is_judged or self._invariants.mirror(self._member.member_id).lost:
            return
        member = self._member
        votes = [one for one in (
            decode_term(self._content(member.term_path.rpartition("/")[2]) or b""),
            decode_term_twin(self._content(member.twin_path.rpartition("/")[2]) or b""),
        ) if one is not None]
        self.found = FoundByStart(
            identity=decode_identity(self._content(IDENTITY_NAME) or b""),
            mark=mark_in(self._content(COMMIT_MARK_NAME)),
            vote=later_term(votes[0], votes[-1]) if votes else None, last_whole=self._last_whole(),
        )

    def _last_whole(self) -> int:
        """Compare the records on the disk with those that the last process held."""
        member, mirror = self._member, self._invariants.mirror(self._member.member_id)
        size, found, base, content = member.config.mapped_file_size_for_entry_data, -1, -1, b""
        for index, (term, end) in enumerate(zip(mirror.terms, mirror.ends, strict=True), mirror.begin_index):
            record = self._invariants.records[index, term][0]
            start = (end - len(record)) % size
            if base != end - len(record) - start:
                base = end - len(record) - start
                content = self._content(f"data/{base:020d}") or b""
            if content[start : start + len(record)] != record:
                break
            found = index
        return found

    def after_start(self) -> None:
        """A process has started, and its log is read."""
        found, self.found = self.found, None
        member = self._member
        self._stale_index = member.ledger.ledger_end_index if member.disk.power_cuts else -1
        if found is None:
            return
        state, ledger = member.core.member, member.ledger
        end_index = ledger.ledger_end_index
        self._says("the last whole entry", found.last_whole, end_index, end_index >= found.last_whole)
        if found.vote is not None and state.term == found.vote.term:
            self._says("the vote", found.vote, state.voted_for, found.vote.voted_for == state.voted_for)
        identity, mark, config = found.identity, found.mark, member.config
        if identity is not None:
            name, has = state.group_name, (identity.group_id, identity.group_term)
            self._says("the group", has, name, has == (name.id, name.term))
            trusts = config.accept_unclean_start or config.bootstrap
            is_heeded = trusts or state.is_unsure or not identity.unsure
            self._says("doubt", identity.unsure, state.is_unsure, is_heeded)
            lineage = ledger.identity.lineage
            if lineage is not None and lineage.incarnation == identity.incarnation:
                starts = max(identity.starts, 0) + 1
                self._says("starts before this", identity.starts, lineage.starts, lineage.starts == starts)
        if mark is not None:
            known = min(mark.committed_index, end_index)
            self._says("the commit", known, ledger.committed_index, ledger.committed_index >= known)
            owed = ledger.repair_end_index
            self._says("the repair", mark.repair_end_index, owed, (mark.repair_end_index < 0) == (owed < 0)
                       or end_index >= mark.repair_end_index)
