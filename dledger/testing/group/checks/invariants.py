# -*- test-case-name: tests.sim.test_invariants -*-
"""
The invariants of a group, checked after every step; the numbers are those of docs/invariants.md.

Each check looks at one change: the member that stepped, the entries that were just written, the answer that
is being given. The content of every member is mirrored here as a list of terms, read back from its store, so
that the cost of a check depends on the change alone.

A failed check raises L{dledger.testing.group.checks.require.InvariantError}, which names the number.
"""

from __future__ import annotations

import attrs

from dledger.core.election.java_elections import PROBE_TERM
from dledger.core.state.member_state import MemberState, Role
from dledger.storage.files.term_file import TermVote, decode_term, decode_term_twin, later_term
from dledger.testing.group.checks.checked_member import CheckedMember
from dledger.testing.group.checks.mirror import Mirror
from dledger.testing.group.checks.require import InvariantError, require
from dledger.values.errors import DamagedEntryError
from dledger.values.ledger.holes import Hole
from dledger.values.ledger.membership import Membership
from protocols.wire.codes import ResponseCode
from protocols.wire.ledger.codes import WIRE_FLAG_UNSURE_VOTE, PushType, VoteResult
from protocols.wire.ledger.entry import ENTRY_HEADER, decode_header
from protocols.wire.ledger.messages import (
    HeartBeatRequest,
    PushEntryRequest,
    PushEntryResponse,
    Request,
    Response,
    VoteRequest,
    VoteResponse,
)
from protocols.wire.ledger.own.configuration import decode_configuration
from protocols.wire.ledger.own.own_entries import CONFIGURATION_CHANNEL, is_hidden

_EVERYTHING = 1 << 40

#: Requests of a leader that bind the member that answers SUCCESS.
_BINDING = (PushEntryRequest, HeartBeatRequest)


@attrs.define
class _Seen:
    """The last values of one member; C{committed_index} and C{led_term} since its process started."""

    term: int = 0
    saved_term: int = 0
    committed_index: int = -1
    led_term: int = -1
    repair_end_index: int = -1
    follows: str = ""
    mirror: Mirror = attrs.Factory(Mirror)


class GroupInvariants:
    """
    The checks of one group.

    @ivar is_wire_sound: a COMPARE arrives as it was sent. (A member looks at the term and the checksum of its
        entry only.)
    @ivar records: (index, term) to the record that any member ever held there, and the term before it.
    @ivar committed: index to the term of the entry that was committed there.
    @ivar committed_in: index to the term of the leader that committed it.
    @ivar has_forgotten: acknowledged entries may have been lost, and members may know more to be committed.
    @ivar known_index: the highest index that a client may know to be in the log: an append was answered with
        it, or a linearizable read.
    """

    is_wire_sound = True

    def __init__(self, member_ids: list[str], *, is_sync: bool) -> None:
        self.records: dict[tuple[int, int], tuple[bytes, int]] = {}
        self.committed: dict[int, int] = {}
        self.committed_in: dict[int, int] = {}
        self.last_committed = -1
        self.known_index = -1
        self.is_sync = is_sync
        self.has_forgotten = False
        self._wiped: set[str] = set()
        self.configurations: dict[tuple[int, int], Membership] = {}
        self._start = Membership(voters=dict.fromkeys(member_ids, "any:1"))
        self.seen = {member_id: _Seen() for member_id in member_ids}
        self._members: dict[str, CheckedMember] = {}
        self._leaders: dict[int, str] = {}
        self._votes: dict[tuple[str, int], str] = {}
        self._unsure_votes: set[tuple[str, int]] = set()
        #: Voter, term, candidate: of members that lost their directory later. The candidate has the vote.
        self._lost_votes: set[tuple[str, int, str]] = set()

    @property
    def elections(self) -> int:
        """Terms that had a leader."""
        return len(self._leaders)

    def add(self, member: CheckedMember) -> None:
        """Register a member."""
        self._members[member.member_id] = member
        self.seen.setdefault(member.member_id, _Seen())

    def forget(self, member: CheckedMember) -> None:
        """A member has lost its directory: it knows neither its entries nor its votes any more."""
        self.seen[member.member_id] = _Seen()
        self._wiped.add(member.member_id)
        votes = {key: vote for key, vote in self._votes.items() if key[0] == member.member_id}
        self._lost_votes.update((*key, vote) for key, vote in votes.items() if key not in self._unsure_votes)
        self._votes = {key: vote for key, vote in self._votes.items() if key not in votes}

    def forget_committed(self, known_index: int) -> None:
        """Committed entries after C{known_index} may be lost; a mark on a disk may still have them."""
        self.has_forgotten = True
        begins = [seen.mirror.begin_index for seen in self.seen.values()]
        known_index = max(known_index, *(begin - 1 for begin in begins))
        self.committed = {index: term for index, term in self.committed.items() if index <= known_index}
        self.last_committed = max(self.committed, default=-1)
        self.known_index = min(self.known_index, known_index)

    def mirror(self, member_id: str) -> Mirror:
        """The content of a member's store, as of its last event."""
        return self.seen[member_id].mirror

    def is_hidden(self, index: int) -> bool:
        """Whether readers leave out a committed entry."""
        header = decode_header(self.records[index, self.committed[index]][0])
        return is_hidden(header.channel, header.chain_crc)

    def body_of(self, index: int) -> bytes:
        """Body of the committed entry at C{index}."""
        return self.records[index, self.committed[index]][0][ENTRY_HEADER.size :]

    def record_size(self, member_id: str, index: int) -> int:
        """Bytes of the record that a member holds at C{index}."""
        return len(self.records[index, self.seen[member_id].mirror.term_of(index)][0])

    # -- the members ----------------------------------------------------------------------------

    def membership_of(self, member_id: str) -> Membership:
        """The membership of the last configuration entry that a member holds; that of the start if none."""
        mirror = self.seen[member_id].mirror
        held = [one for (index, term), one in self.configurations.items()
                if mirror.term_of(index) == term
                or (index < mirror.begin_index and self.committed.get(index) == term)]
        return max(held, key=lambda one: one.index, default=self._start)

    @property
    def membership(self) -> Membership:
        """The last one that is committed."""
        found = [
            one for (index, term), one in self.configurations.items() if self.committed.get(index) == term
        ]
        return max(found, key=lambda one: one.index, default=self._start)

    @property
    def is_changing(self) -> bool:
        """Whether a member holds a configuration entry that is not committed."""
        return any(self.membership_of(one).index > self.membership.index for one in self.seen)

    def _note_configuration(self, member: CheckedMember, index: int, term: int, body: bytes) -> None:
        """
        A configuration entry was written for the first time. No two of one log that follow each other may
        differ by more than one voter; its leader has committed the one before, and an entry of its term (9).
        """
        before, reported = self.membership_of(member.member_id), f"the configuration entry ({index}, t{term})"
        if member.core.member.role is Role.LEADER and member.core.member.term == term:
            require(before.index < 0 or self.committed.get(before.index) == before.term, 9,
                    f"{reported} was written while that of {before.index} is not committed")
            committed = self.seen[member.member_id].mirror.term_of(member.core.committed_index)
            require(committed == term, 9, f"{reported} was written before an entry of its term was committed")
        now = Membership(index=index, term=term, **decode_configuration(body)._asdict())
        known = self.configurations.setdefault((index, term), now)
        require(known == now, 9, f"two configuration entries at ({index}, t{term})")
        others = now.voters.keys() ^ before.voters.keys()
        require(len(others) <= 1, 9, f"the entry ({index}, t{term}) changes {sorted(others)} at once")

    # -- the ledger ---------------------------------------------------------------------------

    def started(self, member: CheckedMember) -> None:
        """A member has recovered: read all its entries."""
        seen = self.seen[member.member_id]
        require(member.persisted_term >= seen.saved_term, 1,
                f"{member.member_id}'s term fell: {seen.saved_term} to {member.persisted_term} after a start")
        self._wiped.discard(member.member_id)
        seen.term = member.persisted_term
        seen.committed_index = -1
        seen.led_term = -1
        seen.repair_end_index = member.ledger.repair_end_index
        self._reload(member, seen)

    def _reload(self, member: CheckedMember, seen: _Seen) -> None:
        ledger = member.ledger
        begin, before = max(ledger.ledger_begin_index, 0), seen.mirror
        self._deleted(before, begin, member.persisted_term)
        mirror = seen.mirror = Mirror(begin_index=begin)
        at = begin
        while at <= ledger.ledger_end_index:
            hole = next((one for one in ledger.holes if one.last_index >= at), None)
            last = ledger.ledger_end_index if hole is None else hole.first_index - 1
            try:
                if at <= last:
                    self._read(member, mirror, at, last)
            except DamagedEntryError:  # it lies in a hole from now on
                at = mirror.begin_index + len(mirror.terms)
                continue
            if hole is not None:
                self._lose(member, mirror, before, hole)
            at = mirror.begin_index + len(mirror.terms)

    def _deleted(self, mirror: Mirror, begin: int, term: int) -> None:
        """Retention has deleted entries, which it does to committed ones only, forgotten here or not."""
        if self.has_forgotten:
            for index in range(mirror.begin_index, min(begin, mirror.end_index + 1)):
                self.committed.setdefault(index, mirror.term_of(index))
                self.committed_in.setdefault(index, term)

    def _lose(self, member: CheckedMember, mirror: Mirror, before: Mirror, hole: Hole) -> None:
        """A member knows that these records are damaged. It held them before."""
        for index in range(mirror.begin_index + len(mirror.terms), hole.last_index + 1):
            term = before.term_of(index)
            require(term >= 0, 3, f"{member.member_id} lost {index} to damage, but never held it")
            mirror.terms.append(term)
            mirror.ends.append(before.ends[index - before.begin_index])
            mirror.lost.add(index)

    def holes_changed(self, member: CheckedMember) -> None:
        """Entries were found damaged since the last look, or have come back: these are read."""
        mirror, holes = self.seen[member.member_id].mirror, member.ledger.holes
        now = {index for hole in holes for index in range(hole.first_index, hole.last_index + 1)}
        back = sorted(index for index in mirror.lost - now if index <= mirror.end_index)
        mirror.lost = now
        for index in back:
            member.damaged.discard(index)
            copy = Mirror(begin_index=index)
            copy.terms, known = [], mirror.term_of(index)
            self._read(member, copy, index, index, before=mirror.term_of(index - 1))
            require(copy.terms == [known], 3,
                    f"{member.member_id} held ({index}, t{known}), which came back as t{copy.terms[0]}")
            require(copy.ends == [mirror.ends[index - mirror.begin_index]], 3,
                    f"{member.member_id}: {index} came back at another place")

    def written(self, member: CheckedMember, first_index: int, count: int) -> None:
        """A write ended: read the entries back."""
        mirror = self.seen[member.member_id].mirror
        if not mirror.terms:
            mirror.begin_index = first_index
        require(first_index == mirror.begin_index + len(mirror.terms), 3,
                f"{member.member_id} wrote {first_index} after {mirror.end_index}")
        self._read(member, mirror, first_index, first_index + count - 1)

    def truncated(self, member: CheckedMember, end_index: int) -> None:
        """A truncation ended: check that no committed entry was cut."""
        seen = self.seen[member.member_id]
        mirror = seen.mirror
        for index in range(max(end_index, mirror.begin_index), mirror.end_index + 1):
            lost = self.committed.get(index) == mirror.term_of(index)
            if lost and index == end_index:
                lost = member.ledger.term_of(index) != mirror.term_of(index)
            if lost and index in mirror.lost and member.ledger.repair_end_index >= index:
                continue  # it was damaged, and the member remembers that it owes it
            require(not lost, 4, f"{member.member_id} cut the committed entry {index}")
        began_anew = member.ledger.ledger_begin_index != mirror.begin_index
        if mirror.terms and not began_anew and end_index <= mirror.end_index + 1:
            mirror.cut_to(end_index - 1)
            self._read(member, mirror, end_index, end_index)
        else:
            self._reload(member, seen)

    def expired(self, member: CheckedMember) -> None:
        """Old segments may be gone."""
        mirror = self.seen[member.member_id].mirror
        gone = member.ledger.ledger_begin_index - mirror.begin_index
        if gone > 0:
            self._deleted(mirror, member.ledger.ledger_begin_index, member.persisted_term)
            del mirror.terms[:gone]
            del mirror.ends[:gone]
            mirror.begin_index += gone
            mirror.lost = {index for index in mirror.lost if index >= mirror.begin_index}

    def _read(
        self, member: CheckedMember, mirror: Mirror, first_index: int, end_index: int, *,
        before: int | None = None,
    ) -> None:
        records = self.records
        before = mirror.term_of(first_index - 1) if before is None else before
        if first_index > 0 and before < 0:
            before = -2  # the beginning of the ledger has expired
        at = first_index
        while at <= end_index:
            batch = member.ledger.read_batch(at, max_count=end_index - at + 1, max_bytes=_EVERYTHING)
            require(batch.first_index == at, 3, f"{member.member_id} read {batch.first_index} for {at}")
            data, offset = batch.records, 0
            while offset < len(data):
                _, size, index, term, pos, channel, _, _, _ = ENTRY_HEADER.unpack_from(data, offset)
                if index != at or term < before:
                    raise InvariantError(3, f"{member.member_id}: ({index}, t{term}) at {at} after t{before}")
                record = data[offset : offset + size]
                offset += size
                known = records.setdefault((index, term), (record, before))
                if known[0] != record:
                    raise InvariantError(3, f"{member.member_id} holds other bytes at ({index}, t{term})")
                if known[1] == -2:
                    records[index, term] = (record, before)
                elif before not in (known[1], -2):
                    raise InvariantError(3, f"{member.member_id}: before ({index}, t{term}) is t{before}, "
                                         f"elsewhere t{known[1]}")
                if channel == CONFIGURATION_CHANNEL and (index, term) not in self.configurations:
                    self._note_configuration(member, index, term, record[ENTRY_HEADER.size :])
                mirror.terms.append(term)
                mirror.ends.append(pos + size)
                before = term
                at += 1

    # -- after a step -----------------------------------------------------------------------------

    def stepped(self, member: CheckedMember, state: MemberState) -> None:
        """Term, role or commit of a member changed, or may have."""
        seen, member_id = self.seen[member.member_id], member.member_id
        require(state.term >= seen.term, 1, f"{member_id}'s term fell from {seen.term} to {state.term}")
        seen.term = state.term
        if state.role is Role.LEADER and seen.led_term != state.term:
            seen.led_term = state.term
            other = self._leaders.setdefault(state.term, member_id)
            require(other == member_id, 1, f"{other} and {member_id} both lead term {state.term}")
            self._is_elected(member_id, state)
            self._leader_is_complete(member_id, state.term, seen.mirror)
        self._follows_its_log(member_id, state)
        if state.repair_end_index != seen.repair_end_index:
            self._is_whole(member_id, state, seen)
        committed = state.committed_index
        if committed == seen.committed_index:
            return
        require(committed > seen.committed_index, 2,
                f"{member_id}'s commit fell from {seen.committed_index} to {committed}")
        require(committed <= seen.mirror.end_index, 2,
                f"{member_id} committed {committed} beyond its end {seen.mirror.end_index}")
        self._committed(member, state, max(seen.committed_index + 1, seen.mirror.begin_index), committed)
        seen.committed_index = committed

    def _follows_its_log(self, member_id: str, state: MemberState) -> None:
        """A member goes by the last configuration entry that it holds."""
        known, now = self.membership_of(member_id), state.membership
        require((known.index, known.term) == (now.index, now.term) or max(known.index, now.index) < 0, 9,
                f"{member_id} follows the members of ({now.index}, t{now.term}), its ledger has those of "
                f"({known.index}, t{known.term})")

    def _is_elected(self, member_id: str, state: MemberState) -> None:
        """The voters of the leader's own list have elected it: a majority, or all with the unsure ones."""
        term, voters = state.term, self.membership_of(member_id).voters
        require(member_id in voters, 9, f"{member_id} leads term {term}, not a voter of {sorted(voters)}")
        unsure = {one for one in voters if (one, term) in self._unsure_votes}
        gave = {one for one in voters if self._votes.get((one, term)) == member_id} - unsure
        gave |= {one for one in voters if (one, term, member_id) in self._lost_votes}
        if len(voters) == 1 or not (gave or unsure):
            return  # it asked nobody
        require(2 * len(gave) > len(voters) or len(gave | unsure) == len(voters), 9,
                f"{member_id} leads term {term} by votes of {sorted(gave)}; voters are {sorted(voters)}")

    def _leader_is_complete(self, member_id: str, term: int, mirror: Mirror) -> None:
        for index, committed_term in self.committed.items():
            if self.committed_in[index] < term and index >= mirror.begin_index:
                require(mirror.term_of(index) == committed_term, 4,
                        f"{member_id} leads term {term} without the committed entry ({index}, "
                        f"t{committed_term}); it has t{mirror.term_of(index)} there")

    def _is_whole(self, member_id: str, state: MemberState, seen: _Seen) -> None:
        """A repaired member holds all entries that may have been committed with its help before."""
        for index, term in self.committed.items():
            helped = self.committed_in[index] <= state.start_term and index <= seen.repair_end_index
            if helped and index >= seen.mirror.begin_index:
                require(seen.mirror.term_of(index) == term, 4,
                        f"{member_id} considers itself repaired, but lacks the committed ({index}, t{term})")
        seen.repair_end_index = state.repair_end_index

    def _committed(self, member: CheckedMember, state: MemberState, first: int, last: int) -> None:
        mirror = self.seen[member.member_id].mirror
        for index in range(first, last + 1):
            term = mirror.term_of(index)
            known = self.committed.get(index)
            if known is None:
                self.committed[index] = term
                self.committed_in[index] = state.term
            else:
                require(known == term, 4, f"{member.member_id} committed ({index}, t{term}), "
                        f"but (that index, t{known}) was committed before")
        first_new = self.last_committed + 1
        if last > self.last_committed:
            self.last_committed = last
        if state.role is Role.LEADER:
            self._quorum_holds(member, state, first_new, last)

    def _quorum_holds(self, leader: CheckedMember, state: MemberState, first_new: int, index: int) -> None:
        term = self.seen[leader.member_id].mirror.term_of(index)
        require(term == state.term, 5,
                f"{leader.member_id}, leader of term {state.term}, committed up to ({index}, t{term})")
        holders = [member_id for member_id, seen in self.seen.items()
                   if self._owes(member_id, index) or index < min(first_new, seen.mirror.begin_index)
                   or (seen.mirror.term_of(index) == term and self.is_safe(member_id, index))]
        # What is committed now lies in no hole of the majority; what was before may have expired (above).
        holders = [member_id for member_id in holders
                   if not any(first_new <= lost <= index for lost in self.seen[member_id].mirror.lost)]
        voters = self.membership_of(leader.member_id).voters
        require(2 * len(set(holders) & voters.keys()) > len(voters), 6,
                f"{leader.member_id} committed ({index}, t{term}), which only {holders} hold safely")

    def _owes(self, member_id: str, index: int) -> bool:
        """
        Whether a damaged member remembers that it held C{index}, or one that lost power that it may have; it
        votes again when it holds it again.
        """
        ledger = self._members[member_id].ledger
        if member_id in self._wiped:
            return True
        return ledger is not None and bool(ledger.repair_end_index >= index or ledger.identity.is_unsure)

    def is_safe(self, member_id: str, index: int) -> bool:
        """
        Whether a member holds C{index} as this group promises: on stable storage with sync flushing, else
        in its files.
        """
        if not self.is_sync:
            return True
        member = self._members[member_id]
        mirror = self.seen[member_id].mirror
        at = index - mirror.begin_index
        record = self.records[index, mirror.terms[at]][0]
        return member.is_durable(mirror.ends[at] - len(record), len(record))

    # -- messages -------------------------------------------------------------------------------

    def asks(self, member: CheckedMember, request: Request) -> None:
        """A member sends a request."""
        if isinstance(request, VoteRequest):
            if request.pre_vote or request.term == PROBE_TERM:
                return
            self._votes_for(member, request.term, member.member_id)
            vote = (member.member_id, request.term)
            if member.core.member.is_unsure:
                self._unsure_votes.add(vote)
            else:
                self._unsure_votes.discard(vote)
            voters = self.membership_of(member.member_id).voters
            require(member.member_id in voters, 9,
                    f"{member.member_id} stands in term {request.term}, not a voter of {sorted(voters)}")
        require(request.term <= member.persisted_term, 6,
                f"{member.member_id} speaks in term {request.term}, its disk has {member.persisted_term}")

    def answers(self, member: CheckedMember, request: Request, response: Response) -> None:
        """A member answers a request."""
        require(response.term <= member.persisted_term, 6,
                f"{member.member_id} answers in term {response.term}, its disk has {member.persisted_term}")
        if response.code is ResponseCode.SUCCESS and isinstance(request, _BINDING):
            term = member.persisted_term  # the step may enter another one after this answer
            require(request.term == term, 1,
                    f"{member.member_id} of term {term} obeys {request.leader_id} of term {request.term}")
        if isinstance(response, PushEntryResponse):
            if response.code is ResponseCode.SUCCESS:
                self._holds(member, request)
        elif isinstance(response, VoteResponse):
            if response.vote_result is VoteResult.ACCEPT and not response.pre_vote:
                assert isinstance(request, VoteRequest) and request.leader_id is not None
                require(member.ledger.repair_end_index < 0, 6, f"{member.member_id} votes while repairing")
                require(not member.ledger.identity.is_unsure, 6, f"{member.member_id} votes while unsure")
                self._votes_for(member, request.term, request.leader_id)
                self._unsure_votes.discard((member.member_id, request.term))  # it has become sure since
            elif response.wire_version & WIRE_FLAG_UNSURE_VOTE and not response.pre_vote:
                self._unsure_votes.add((member.member_id, request.term))

    def _holds(self, member: CheckedMember, request: Request) -> None:
        """A member that answers SUCCESS to a push holds its entries: these bytes, as safely as promised."""
        assert isinstance(request, PushEntryRequest)
        entries, mirror = request.entries, self.seen[member.member_id].mirror
        if entries is None or request.type is PushType.COMMIT or entries.first_index < mirror.begin_index:
            return
        reported = f"{member.member_id} answers SUCCESS to {request.type.name} of {entries.first_index}"
        at = 0
        for index in range(entries.first_index, entries.last_index + 1):
            known = self.records.get((index, mirror.term_of(index)))
            require(known is not None, 3, f"{reported}, and does not hold {index}")
            assert known is not None
            behind = at + len(known[0])
            is_written = request.type is PushType.APPEND or self.is_wire_sound
            require(not is_written or entries.records[at:behind] == known[0], 3,
                    f"{reported}, and holds other bytes at {index}")
            at = behind
        require(self.is_safe(member.member_id, entries.last_index), 6,
                f"{member.member_id} acknowledged {entries.last_index}, which is not on stable storage")

    def persisted(self, member: CheckedMember, term: int, voted_for: str | None) -> None:
        """Term and vote were saved: a power cut now must leave them."""
        stored = self._stored(member)
        require(stored is not None and (stored.term, stored.voted_for) == (term, voted_for), 6,
                f"{member.member_id} saved term {term} and vote {voted_for}, its disk holds {stored}")
        member.persisted_term = term
        member.persisted_vote = voted_for
        self.seen[member.member_id].saved_term = term
        self.seen[member.member_id].follows = ""

    def settled(self, member: CheckedMember, state: MemberState) -> None:
        """All effects of a step have run."""
        if state.term > member.persisted_term:  # (a sentence for each step would cost more than the check)
            raise InvariantError(6, f"{member.member_id} goes on in term {state.term}, its disk has "
                                 f"{member.persisted_term}")
        leader_id = state.leader_id
        if leader_id is not None and leader_id != self.seen[member.member_id].follows:
            self.seen[member.member_id].follows = leader_id
            require(member.persisted_vote is not None or state.term < member.persisted_term, 6,
                    f"{member.member_id} follows {leader_id} in term {state.term}, its disk has a free vote")

    def _stored(self, member: CheckedMember) -> TermVote | None:
        content = member.disk.durable_content(member.term_path)
        twin = member.disk.durable_content(member.twin_path)
        both = (decode_term(content or b""), decode_term_twin(twin or b""))
        found = [one for one in both if one is not None]
        return later_term(found[0], found[-1]) if found else None

    def _votes_for(self, member: CheckedMember, term: int, candidate: str) -> None:
        voter = member.member_id
        known = self._votes.setdefault((voter, term), candidate)
        require(known == candidate, 1, f"{voter} voted for {known} and {candidate} in term {term}")
        stored = self._stored(member)
        require(stored is not None and (stored.term, stored.voted_for) == (term, candidate), 6,
                f"{voter} votes for {candidate} in term {term}, but its disk holds {stored}")

    def bounded(self, member: CheckedMember) -> None:
        """Tables and queues of a member keep their bounds."""
        core, config = member.core, member.config
        followers = len(core.member.peer_ids) + 2  # (some were removed a moment ago)
        asked = followers * (config.max_inflight_pushes + 8) + 64
        for what, size, most in (
            ("pending appends", len(core.appends), config.max_pending_requests_num),
            ("pending reads", len(core.reads), config.max_pending_reads),
            ("queued pushes", core.handler.queued, 2 * config.max_queued_pushes),
            ("requests without an answer", core.out.outstanding, asked),
        ):
            require(size <= most, 8, f"{member.member_id} has {size} {what}, {most} are allowed")

    def acknowledged(self, member: CheckedMember, first_index: int, bodies: tuple[bytes, ...]) -> None:
        """An append is answered SUCCESS."""
        for index, body in enumerate(bodies, first_index):
            reported = f"{member.member_id} acknowledged {index}"
            require(index in self.committed, 4, f"{reported}, which is not committed")
            require(self.body_of(index) == body, 4, f"{reported} with another body")
        self.known_index = max(self.known_index, first_index + len(bodies) - 1)

    def shows(self, member: CheckedMember, read_index: int, known_index: int) -> None:
        """
        A linearizable read is answered.

        @param known_index: C{known_index} when it came.
        """
        reported = f"{member.member_id} serves a read up to {read_index}"
        require(read_index <= member.core.committed_index, 4, f"{reported}, and has not committed that")
        require(read_index >= known_index, 4, f"{reported}, but {known_index} was in the log before it came")
        self.known_index = max(self.known_index, read_index)
