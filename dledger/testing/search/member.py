# -*- test-case-name: tests.sim.test_search -*-
"""
One member of the searched group: the real core and driver over a ledger in a list.

Time does not pass here. Every step is made at L{NOW_MS}, and every timer is an event of its own: the field
that holds it is set to a time in the past, then the member ticks. After a step the fields that only measure
time, count refusals for a report, or number requests are set to one value (L{settle}), so that two members
which act alike are equal. Reads, heartbeats, transfers, holes and Java peers are not part of the search.

An entry is known by its term and the leader that wrote it, so two leaders of a term write different entries;
a configuration entry also by the members that it names.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from functools import cache
from typing import NamedTuple

import attrs

from dledger.core.driver import Driver
from dledger.core.election.elector import LeaderElector
from dledger.core.replica import DLedgerCore
from dledger.core.replication.catch_up import TURN_BYTES_MAX, TURN_ENTRIES_MAX
from dledger.core.replication.dispatcher import EntryDispatcher
from dledger.core.replication.proofs import BeginProof
from dledger.core.state import effects as fx
from dledger.core.state import inputs as ev
from dledger.core.state.member_state import Role
from dledger.core.state.recovered import RecoveredState
from dledger.values.ledger.chunks import ChunkSum
from dledger.values.ledger.config import DLedgerConfig
from dledger.values.ledger.group_name import GroupName
from dledger.values.ledger.group_state import GroupFold, GroupState
from dledger.values.ledger.holes import Hole
from dledger.values.ledger.membership import Membership
from protocols.wire.ledger.batches import EntryBatch
from protocols.wire.ledger.messages import HeartBeatRequest, Request, Response

#: The time of every step, milliseconds.
NOW_MS = 10_000_000
_PAST_MS = 0
_FUTURE_MS = 1 << 50
#: Requests to one peer are numbered from 1; the core knows them by C{place * PER_PEER + number}.
PER_PEER = 64


class Ends(NamedTuple):
    """Implements L{dledger.core.state.ports.LedgerEnds}."""

    begin_index: int
    end_index: int
    end_term: int


class SearchedEntry(NamedTuple):
    """
    An entry: its term, and the member that wrote it.

    @ivar voters, learners: of a configuration entry; no other has voters.
    """

    term: int
    leader_id: str
    voters: frozenset[str] = frozenset()
    learners: frozenset[str] = frozenset()


def addresses_of(member_ids: Iterable[str]) -> dict[str, str]:
    """An address for each member. Nobody connects there."""
    return {member_id: f"127.0.0.1:{20911 + int(member_id[1:])}" for member_id in sorted(member_ids)}


@cache
def membership_at(
    index: int, term: int, voters: frozenset[str], learners: frozenset[str]
) -> Membership:
    """The members that a configuration entry names; the same object each time."""
    return Membership(
        voters=addresses_of(voters), learners=addresses_of(learners), index=index, term=term
    )


def batch_of(first_index: int, entries: tuple[SearchedEntry, ...]) -> EntryBatch:
    """Entries as the core passes them on."""
    records = "".join(
        f"{entry.term} {entry.leader_id} {','.join(sorted(entry.voters))} {','.join(sorted(entry.learners))};"
        for entry in entries
    ).encode()
    return EntryBatch(first_index=first_index, count=len(entries), term=entries[-1].term, records=records)


def entries_in(batch: EntryBatch) -> tuple[SearchedEntry, ...]:
    """The entries of a batch."""
    found = []
    for record in batch.records.decode().split(";")[:-1]:
        term, leader_id, voters, learners = record.split(" ")
        members = (frozenset(filter(None, ids.split(","))) for ids in (voters, learners))
        found.append(SearchedEntry(int(term), leader_id, *members))
    return tuple(found)


class Fixed(random.Random):
    """No chance: the lowest value always. Which timer ends first is a choice of the search."""

    def random(self) -> float:
        """The lowest."""
        return 0.0

    def randint(self, a: int, b: int) -> int:
        """The lowest."""
        return a


@attrs.frozen
class SearchedIdentity:
    """No member of the search is unsure, and all know the id of their group."""

    is_unsure: bool = False
    forgot_terms: bool = False
    group_name: GroupName = GroupName("0" * 32, 0, True)

    def end_unsure(self) -> None:
        """Never needed."""

    def record_group(self, name: GroupName) -> None:
        """Never needed."""


@attrs.define
class SearchedLedger:
    """
    A ledger in a list: view and store. It refuses to cut committed entries, as the real one does.

    @ivar durable: number of entries that survive a loss of power.
    @ivar is_cut: whether it was cut since the fsync began that is under way.
    """

    self_id: str
    entries: tuple[SearchedEntry, ...] = ()
    committed_index: int = -1
    durable: int = 0
    is_cut: bool = False
    holes: tuple[Hole, ...] = ()
    holes_end_index: int = -1
    is_end_proven: bool = True
    repair_end_index: int = -1

    @property
    def membership(self) -> Membership | None:
        """That of the last configuration entry."""
        return self.memberships[-1] if self.memberships else None

    @property
    def memberships(self) -> tuple[Membership, ...]:
        """Those of all configuration entries."""
        return tuple(
            membership_at(index, one.term, one.voters, one.learners)
            for index, one in enumerate(self.entries) if one.voters
        )

    @property
    def ends(self) -> Ends:
        """It begins with entry 0."""
        entries = self.entries
        return Ends(0 if entries else -1, len(entries) - 1, entries[-1].term if entries else -1)

    def term_of(self, index: int) -> int:
        """Of one entry."""
        return self.entries[index].term

    def position_of(self, index: int) -> int:
        """As if each record had a kibibyte."""
        return index * 1024

    def read_batch(self, first_index: int, *, max_count: int, max_bytes: int) -> EntryBatch:
        """Entries of one term."""
        last = first_index
        while last + 1 < min(len(self.entries), first_index + max_count) and (
            self.entries[last + 1].term == self.entries[first_index].term
        ):
            last += 1
        return batch_of(first_index, self.entries[first_index : last + 1])

    @property
    def group(self) -> GroupFold:
        """Nothing is known beside the entries."""
        return GroupFold(GroupState())

    @property
    def last_program_index(self) -> int:
        """Never asked for."""
        return len(self.entries) - 1

    def chunk_from(self, index: int) -> None:
        """It has no chunks."""

    def read_chunk(self, chunk: ChunkSum) -> None:
        """Never asked for."""

    def holds(self, entry: EntryBatch) -> bool:
        """Whether it has this one."""
        index = entry.first_index
        return index < len(self.entries) and entries_in(entry)[0] == self.entries[index]

    def append_bodies(
        self, bodies: tuple[bytes, ...], term: int, *, channels: Sequence[int] = ()
    ) -> tuple[int, ...]:
        """Write after the end."""
        assert not channels or channels[0] < 0, "the clients of the search are no producers"
        first = len(self.entries)
        self.entries += (SearchedEntry(term, self.self_id),) * len(bodies)
        return tuple(self.position_of(first + at) for at in range(len(bodies)))

    def append_entries(self, entries: EntryBatch) -> None:
        """Write a leader's."""
        assert entries.first_index == len(self.entries), "the core let a gap through"
        written = entries_in(entries)
        self.entries += written
        if any(entry.voters for entry in written):
            self.durable = len(self.entries)  # the real one is flushed before it counts

    def append_configuration(self, membership: Membership, term: int) -> tuple[int, ...]:
        """Write after the end, durably."""
        voters, learners = frozenset(membership.voters), frozenset(membership.learners)
        self.entries += (SearchedEntry(term, self.self_id, voters, learners),)
        self.durable = len(self.entries)
        return (self.position_of(len(self.entries) - 1),)

    def truncate_to(
        self, entry: EntryBatch, *, anew: bool = False, reported: tuple[Membership, ...] = ()
    ) -> None:
        """Make it the last one, durably."""
        index = entry.first_index
        assert not anew and index <= len(self.entries), "no ledger of the search begins later"
        self.entries = (*self.entries[:index], entries_in(entry)[0])
        self.durable = len(self.entries)
        self.is_cut = True

    def flushed(self, end_index: int) -> None:
        """An fsync ended that had begun when the ledger ended at C{end_index}."""
        if not self.is_cut:
            self.durable = max(self.durable, end_index + 1)

    def record_commit(self, committed_index: int) -> None:
        """Remember."""
        self.committed_index = committed_index

    def look_again(self, index: int) -> bool:
        """There are no holes."""
        raise AssertionError("no holes in the search")

    def fill_hole(self, entries: EntryBatch, *, is_committed: bool) -> None:
        """There are no holes."""
        raise AssertionError("no holes in the search")

    def end_repair(self) -> None:
        """No member of the search is damaged."""

    @property
    def identity(self) -> SearchedIdentity:
        """The same for all."""
        return SearchedIdentity()


@attrs.define
class SearchedTerms:
    """Term and vote, durable at once."""

    term: int = 0
    voted_for: str | None = None

    def save(self, term: int, voted_for: str | None) -> None:
        """Save both."""
        self.term = term
        self.voted_for = voted_for

    def check_point(self) -> None:
        """Nothing is owed."""


class Sent(NamedTuple):
    """A message that a step sent. C{number}: of the request, see L{SearchedMember}."""

    peer_id: str
    message: Request | Response
    number: int


@attrs.define(eq=False)
class SearchedMember:
    """
    A member between two steps.

    @ivar flush: id and end index of the fsync that is under way; None without one.
    @ivar asked: for each unanswered request its token, the sender, and the sender's number of it; 0: the
        sender has forgotten it.
    """

    config: DLedgerConfig
    core: DLedgerCore
    ledger: SearchedLedger
    terms: SearchedTerms
    flush: tuple[int, int] | None = None
    asked: dict[int, tuple[str, int]] = attrs.Factory(dict)

    @classmethod
    def begin(cls, config: DLedgerConfig, ledger: SearchedLedger, terms: SearchedTerms) -> SearchedMember:
        """A process starts on these files."""
        core = DLedgerCore(config=config, view=ledger, rng=CHANCE, recovered=RecoveredState(
            term=terms.term, voted_for=terms.voted_for, committed_index=ledger.committed_index,
            group_name=ledger.identity.group_name,
        ))
        member = cls(config, core, ledger, terms)
        StepRun(member).feed(ev.Started())
        return member


class StepRun:
    """
    The surroundings of one step. See L{dledger.core.driver.Surroundings}.

    @ivar sent: the messages that it sent, in order.
    @ivar succeeded: last index of an append that was answered with SUCCESS; -1 for none.
    @ivar bug: an exception in the member; empty if there was none.
    """

    def __init__(self, member: SearchedMember) -> None:
        self.member = member
        self.sent: list[Sent] = []
        self.succeeded = -1
        self.bug = ""

    def feed(self, happened: ev.Input) -> None:
        """Take one input, run its effects, and settle."""
        member = self.member
        Driver(member.core, member.ledger, member.terms, self).feed(happened)

    @staticmethod
    def seconds() -> float:
        """Always the same."""
        return NOW_MS / 1000

    def send_request(self, effect: fx.SendRequest) -> None:
        """Heartbeats only keep patience up, and there is none here."""
        if not isinstance(effect.request, HeartBeatRequest):
            self.sent.append(Sent(effect.peer_id, effect.request, effect.request_id))

    def continue_later(self, effect: fx.ContinueLater) -> None:
        """Ledgers are too short for that."""
        raise AssertionError("a budget for thousands of entries is spent")

    def reply(self, effect: fx.Reply) -> None:
        """Answer."""
        sender_id, number = self.member.asked.pop(effect.token)
        if number:
            self.sent.append(Sent(sender_id, effect.response, number))

    def answer_append(self, answer: fx.AnswerAppend) -> None:
        """An append ended."""
        if answer.code.name == "SUCCESS":
            self.succeeded = max(self.succeeded, answer.first_index + answer.count - 1)

    def answer_read(self, answer: fx.AnswerRead) -> None:
        """There are no reads."""

    def start_flush(self, effect: fx.FlushLedger) -> None:
        """The end of the fsync is an event of the search."""
        assert self.member.flush is None, "two fsyncs"
        self.member.ledger.is_cut = False
        self.member.flush = effect.flush_id, effect.end_index

    def committed(self, committed_index: int) -> None:
        """The ledger has heard it."""

    def follow_membership(self, effect: fx.FollowMembership) -> None:
        """All are connected to all, always."""

    def report(self, report: fx.Report) -> None:
        """Nobody reads it."""

    def stop_member(self, stop: fx.StopMember) -> None:
        """No member of the search may stop."""
        self.bug = f"it stops: {stop.reason}"

    def broken(self, error: BaseException) -> None:
        """An assertion failed."""
        self.bug = f"{type(error).__name__}: {error}"


#: The one source of chance.
CHANCE = Fixed()


# -- settling ---------------------------------------------------------------------------------------


def settle(member: SearchedMember) -> dict[int, tuple[str, int]]:
    """
    Forget what only measures time or counts, and number the requests without an outcome.

    @return: for each id that the core used for a request that may still be answered, peer and new number.
    """
    core = member.core
    numbers = _renumber(core)
    state, out = core.member, core.out
    out._next_request_id = 1 + PER_PEER * len(member.config.peers)
    peers = others_of(core)
    state.peers.last_heard_ms = dict.fromkeys(peers, NOW_MS)
    state.peers.wire_versions = dict.fromkeys(peers, 1)
    state.peers.refused_by.clear()  # nobody is informed that it was removed
    state.peers.leader_committed_index = -1
    elector = core.elector
    elector.deadline_ms = _FUTURE_MS
    elector._last_tick_ms = NOW_MS
    elector.patience.leader_lost(jitter=0.0)
    elector.patience.heard_ms = _PAST_MS
    elector.voter._asked_ms.clear()
    for dispatcher in core.leading.dispatchers.values():
        _settle_dispatcher(dispatcher)
    core.leading.budget.entries = TURN_ENTRIES_MAX
    core.leading.budget.size = TURN_BYTES_MAX
    _settle_follower(member)
    beats = core.leading.beats
    if beats is not None:
        beats.last_round = 1
        beats.confirmed_round = beats.excused_ms = beats.patient_until_ms = 0
        beats._sent_ms = {1: NOW_MS}
        beats.last_quorum_ms = beats._last_sent_ms = beats.looked_ms = NOW_MS
        beats._outstanding.clear()
        beats._answered.clear()
    core.appends._waiting._forget_stale()
    if core.changes._pending is not None:
        core.changes._pending.deadline_ms = _FUTURE_MS
    core.leading.next_term_start_ms = NOW_MS + 1
    return numbers


def _settle_follower(member: SearchedMember) -> None:
    core = member.core
    handler, flusher = core.handler, core.flusher
    handler._channel = -1
    handler._refused = 0
    handler.is_diverged = False
    handler._durable._forget_stale()
    if member.flush is not None:
        member.flush = 1, member.flush[1]
        flusher._under_way = 1
    else:
        member.ledger.is_cut = False
    flusher._next_id = 2
    flusher._last_start_ms = _PAST_MS
    if not member.config.is_sync:
        # Nothing waits for an fsync, and only processes end: no fsync is needed.
        flusher._last_start_ms = NOW_MS
        core.member.flushed_index = core.ledger_end_index
        member.ledger.durable = len(member.ledger.entries)


def _settle_dispatcher(dispatcher: EntryDispatcher) -> None:
    config = dispatcher.member.config
    dispatcher._last_push_ms = NOW_MS
    dispatcher._wait_until_ms = _PAST_MS
    dispatcher._pushes_max = dispatcher._pushes_fine = config.max_inflight_pushes
    dispatcher._setbacks = 0
    dispatcher._is_unreachable = dispatcher._is_behind = False
    dispatcher.quota._second = -1
    dispatcher.quota._spent = 0


def _renumber(core: DLedgerCore) -> dict[int, tuple[str, int]]:
    """Number the requests that matter, for each peer by age; forget the others: they count as lost."""
    out, numbers = core.out, {}
    current = set(map(id, core.leading.dispatchers.values()))
    known, counts = out._owners, dict.fromkeys(others_of(core), 0)
    out._owners = {}
    for request_id, (peer_id, owner, _) in sorted(known.items()):
        if isinstance(owner, EntryDispatcher):
            matters = id(owner) in current and request_id in owner._inflight
        elif isinstance(owner, LeaderElector):
            matters = request_id in owner._outstanding
        else:
            matters = isinstance(owner, BeginProof) and owner._asked_id == request_id
        if matters:
            counts[peer_id] += 1
            numbers[request_id] = peer_id, counts[peer_id]
            out._owners[request_of(core, peer_id, counts[peer_id])] = peer_id, owner, NOW_MS
    renamed = {old: request_of(core, *place) for old, place in numbers.items()}
    for dispatcher in core.leading.dispatchers.values():
        dispatcher._inflight = {
            renamed[old]: pushed._replace(sent_ms=NOW_MS) for old, pushed in dispatcher._inflight.items()
        }
    elector, proof = core.elector, core.handler._proof
    elector._outstanding = {
        renamed[old]: peer for old, peer in elector._outstanding.items() if old in renamed
    }
    proof._asked_id = renamed.get(proof._asked_id) if proof._asked_id is not None else None
    return numbers


def others_of(core: DLedgerCore) -> tuple[str, ...]:
    """All other members of the search, in order; some may be no members of the group now."""
    config = core.member.config
    return tuple(sorted(config.peers.keys() - {config.self_id}))


def request_of(core: DLedgerCore, peer_id: str, number: int) -> int:
    """The core's id of its request C{number} to C{peer_id}, after L{settle}."""
    return others_of(core).index(peer_id) * PER_PEER + number


# -- the timers -------------------------------------------------------------------------------------


def end_patience(core: DLedgerCore) -> None:
    """A member without a leader, or that does not hear it, asks for votes at the next tick."""
    core.elector.deadline_ms = _PAST_MS


def end_quorum(core: DLedgerCore) -> None:
    """A leader that hears no quorum steps down at the next tick."""
    assert core.leading.beats is not None
    core.leading.beats.last_quorum_ms = -NOW_MS


def end_push(core: DLedgerCore, peer_id: str) -> None:
    """The answer to the pushes to C{peer_id} is late at the next tick."""
    dispatcher = core.leading.dispatchers[peer_id]
    dispatcher._inflight = {
        number: pushed._replace(sent_ms=-NOW_MS) for number, pushed in dispatcher._inflight.items()
    }


def is_leader(core: DLedgerCore) -> bool:
    """Whether it leads."""
    return core.member.role is Role.LEADER
