# -*- test-case-name: tests.core -*-
"""
For the tests of the core: a ledger in a list, members and cores in a given state, and a bench
that runs one core's writes and keeps every other effect in order.

The records here are not those of the wire: the core never looks into them.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

import attrs

from dledger.core.replica import DLedgerCore
from dledger.core.state import effects as fx
from dledger.core.state import inputs as ev
from dledger.core.state.member_state import MemberState, Outbox
from dledger.core.state.recovered import RecoveredState
from dledger.storage.files.records import marks_of_channels
from dledger.testing.search.member import Ends
from dledger.values.errors import DamagedEntryError, DLedgerError, StoreError
from dledger.values.ledger.config import DLedgerConfig
from dledger.values.ledger.group_name import GroupName
from dledger.values.ledger.group_state import GroupFold, GroupState
from dledger.values.ledger.holes import Hole, joined_holes
from dledger.values.ledger.membership import Membership
from protocols.wire.codes import ResponseCode
from protocols.wire.ledger.batches import EntryBatch
from protocols.wire.ledger.codes import PushType, VoteResult
from protocols.wire.ledger.messages import (
    HeartBeatRequest,
    HeartBeatResponse,
    PushEntryRequest,
    PushEntryResponse,
    Request,
    Response,
    VoteRequest,
    VoteResponse,
)
from protocols.wire.ledger.own.configuration import encode_configuration
from protocols.wire.ledger.own.own_entries import CONFIGURATION_CHANNEL, is_hidden
from tests.core.listed import ListedChunks

AnyEffect = TypeVar("AnyEffect", bound=fx.Effect)
AnyRequest = TypeVar("AnyRequest", bound=Request)

_HEADER = struct.Struct(">qqi")
MEMBERS = ("n0", "n1", "n2", "n3", "n4")


def record(index: int, term: int, body: bytes = b"") -> bytes:
    """One entry as bytes."""
    return _HEADER.pack(index, term, len(body)) + body


def batch(first_index: int, *entries: int | tuple[int, bytes]) -> EntryBatch:
    """Consecutive entries; each a term, or a term and a body."""
    pairs = [entry if isinstance(entry, tuple) else (entry, b"") for entry in entries]
    records = b"".join(record(first_index + at, term, body) for at, (term, body) in enumerate(pairs))
    return EntryBatch(first_index=first_index, count=len(pairs), term=pairs[-1][0], records=records)


def unpack(entries: EntryBatch) -> list[tuple[int, int, bytes]]:
    """Index, term and body of each entry."""
    found, at = [], 0
    while at < len(entries.records):
        index, term, size = _HEADER.unpack_from(entries.records, at)
        at += _HEADER.size
        found.append((index, term, entries.records[at : at + size]))
        at += size
    assert len(found) == entries.count
    return found


@attrs.define
class ListLedger(ListedChunks):
    """
    A ledger in memory, with the reads of a view and the writes of a store.

    @ivar entries: term and body of each, from C{begin_index} on.
    @ivar refuse: the next write is refused with this code, once.
    @ivar broken: every call raises L{StoreError}.
    """

    entries: list[tuple[int, bytes]] = attrs.Factory(list)
    begin_index: int = 0
    refuse: ResponseCode | None = None
    broken: bool = False
    commits: list[int] = attrs.Factory(list)
    repairs_ended: int = 0
    group_name: GroupName = GroupName()
    repair_end_index: int = -1
    owes_after_cut: int = -1
    holes: tuple[Hole, ...] = ()
    filled: list[tuple[EntryBatch, bool]] = attrs.Factory(list)
    group: GroupFold | None = attrs.field(factory=lambda: GroupFold(GroupState()), eq=False)
    channels: dict[int, int] = attrs.field(factory=dict, eq=False)

    @property
    def holes_end_index(self) -> int:
        """Last index of the last hole."""
        return self.holes[-1].last_index if self.holes else -1

    @property
    def is_end_proven(self) -> bool:
        """Whether the entry before the last one is there."""
        return not self.holes or self.holes_end_index != self.ledger_end_index - 1

    def lose(self, first_index: int, last_index: int) -> ListLedger:
        """These entries cannot be read from now on."""
        self.holes = joined_holes((*self.holes, Hole(
            first_index=first_index, last_index=last_index, position=self.position_of(first_index),
            end_position=self.position_of(last_index + 1),
        )))
        return self

    def _readable(self, index: int) -> None:
        if any(hole.holds(index) for hole in self.holes):
            raise DamagedEntryError(index, "it lies in a hole")

    def look_again(self, index: int) -> bool:
        """Nothing is found."""
        return False

    def fill_hole(self, entries: EntryBatch, *, is_committed: bool) -> None:
        """Remember, and close the hole."""
        self._refuse_once()
        self.filled.append((entries, is_committed))
        self.holes = tuple(hole for hole in self.holes if hole.first_index != entries.first_index)

    @classmethod
    def of(cls, *terms: int, begin_index: int = 0) -> ListLedger:
        """A ledger with one empty entry of each term."""
        return cls([(term, b"") for term in terms], begin_index)

    def _check(self) -> None:
        if self.broken:
            raise StoreError("the disk is gone")

    @property
    def ends(self) -> Ends:
        """Where it begins and ends."""
        return Ends(self.ledger_begin_index, self.ledger_end_index, self.ledger_end_term)

    @property
    def ledger_begin_index(self) -> int:
        """First index present."""
        return self.begin_index if self.entries or self.begin_index else -1

    @property
    def ledger_end_index(self) -> int:
        """Last index present."""
        return self.begin_index + len(self.entries) - 1 if self.entries else -1

    @property
    def ledger_end_term(self) -> int:
        """Term of the last entry."""
        return self.entries[-1][0] if self.entries else -1

    def term_of(self, index: int) -> int:
        """Term of one entry."""
        return self.entries[index - self.begin_index][0]

    def position_of(self, index: int) -> int:
        """Offset of a record, as if every record were a kibibyte."""
        return index * 1024

    def read_batch(self, first_index: int, *, max_count: int, max_bytes: int) -> EntryBatch:
        """Records of one term."""
        self._check()
        at = first_index - self.begin_index
        assert 0 <= at < len(self.entries), f"{first_index} is not in the ledger"
        self._readable(first_index)
        taken: list[tuple[int, bytes]] = []
        term, size = self.entries[at][0], 0
        for number, entry in enumerate(self.entries[at : at + max_count], first_index):
            if taken and any(hole.holds(number) for hole in self.holes):
                break
            size += _HEADER.size + len(entry[1])
            if taken and (entry[0] != term or size > max_bytes):
                break
            taken.append(entry)
        return batch(first_index, *taken)

    def holds(self, entry: EntryBatch) -> bool:
        """Whether the single entry is here."""
        self._check()
        at = entry.first_index - self.begin_index
        if not 0 <= at < len(self.entries):
            return False
        self._readable(entry.first_index)
        return batch(entry.first_index, self.entries[at]).records == entry.records

    def _refuse_once(self) -> None:
        self._check()
        if self.refuse is not None:
            code, self.refuse = self.refuse, None
            raise DLedgerError(code, reason="reported to refuse")

    def append_bodies(
        self, bodies: tuple[bytes, ...], term: int, *, channels: Sequence[int] = ()
    ) -> tuple[int, ...]:
        """Write after the end."""
        self._refuse_once()
        first_index = self.begin_index + len(self.entries)
        if self.group is not None:
            self.group.take(marks_of_channels(channels, bodies, first_index, term))
        self.channels.update(enumerate(channels, first_index))
        self.entries.extend((term, body) for body in bodies)
        return tuple(self.position_of(first_index + at) for at in range(len(bodies)))

    def append_entries(self, entries: EntryBatch) -> None:
        """Write a leader's records."""
        self._refuse_once()
        for index, term, body in unpack(entries):
            assert index == self.begin_index + len(self.entries), "the core let a gap through"
            self.entries.append((term, body))

    def append_configuration(self, membership: Membership, term: int) -> tuple[int, ...]:
        """Write it after the end."""
        body = encode_configuration(membership.voters, membership.learners)
        return self.append_bodies((body,), term, channels=(CONFIGURATION_CHANNEL,))

    @property
    def last_program_index(self) -> int:
        """Of the last entry that is not hidden."""
        index = self.ledger_end_index
        while index >= self.begin_index and is_hidden(self.channels.get(index, 0), 1):
            index -= 1
        return index

    def truncate_to(
        self, entry: EntryBatch, *, anew: bool = False, reported: tuple[Membership, ...] = ()
    ) -> None:
        """Make this entry the last one."""
        self._refuse_once()
        ((index, term, body),) = unpack(entry)
        if anew or not self.begin_index <= index <= self.begin_index + len(self.entries):
            self.entries, self.begin_index = [], index
        del self.entries[index - self.begin_index :]
        self.entries.append((term, body))

    def record_commit(self, committed_index: int) -> None:
        """Remember."""
        self._check()
        self.commits.append(committed_index)

    def end_repair(self) -> None:
        """Remember."""
        self.repairs_ended += 1

    @property
    def identity(self) -> ListLedger:
        """It keeps its own record."""
        return self

    @property
    def is_unsure(self) -> bool:
        """It has lost nothing."""
        return False

    @property
    def forgot_terms(self) -> bool:
        """Nor that."""
        return False

    def record_group(self, name: GroupName) -> None:
        """Remember."""
        self.group_name = name

    def end_unsure(self) -> None:
        """Nothing to do."""


def make_config(self_id: str = "n0", members: int = 3, **options: Any) -> DLedgerConfig:
    """A configuration of C{members} members, n0 and so on."""
    peers = {member_id: f"127.0.0.1:{20911 + at}" for at, member_id in enumerate(MEMBERS[:members])}
    return DLedgerConfig(group="g", self_id=self_id, peers=peers, **options)


def make_member(
    ledger: ListLedger | None = None, *, self_id: str = "n0", members: int = 3, term: int = 1,
    voted_for: str | None = None, committed_index: int = -1, repair_end_index: int = -1, **options: Any,
) -> MemberState:
    """A member's state without its parts."""
    config = make_config(self_id, members, **options)
    member = MemberState(
        config=config, view=ListLedger() if ledger is None else ledger,
        out=Outbox(request_time_out_ms=2 * config.rpc_time_out_ms), term=term, voted_for=voted_for,
        committed_index=committed_index, repair_end_index=repair_end_index, start_term=term,
    )
    member.refresh_end()
    member.flushed_index = member.ledger_end_index
    return member


def quiet(effects: Iterable[fx.Effect]) -> tuple[fx.Effect, ...]:
    """The effects without the reports."""
    return tuple(effect for effect in effects if not isinstance(effect, fx.Report))


def of_type(effects: Iterable[fx.Effect], wanted: type[AnyEffect]) -> list[AnyEffect]:
    """The effects of one type, in order."""
    return [effect for effect in effects if isinstance(effect, wanted)]


def kinds(effects: Iterable[fx.Effect]) -> list[str]:
    """The names of the effects without the reports, requests and replies with their types and codes."""
    names = []
    for effect in quiet(effects):
        name = type(effect).__name__
        if isinstance(effect, fx.SendRequest):
            request = effect.request
            what = request.type.name if isinstance(request, PushEntryRequest) else type(request).__name__
            name = f"{effect.peer_id}<-{what}"
        elif isinstance(effect, fx.Reply):
            name = f"Reply {effect.response.code.name}"
        names.append(name)
    return names


def events(effects: Iterable[fx.Effect]) -> list[str]:
    """The names of the reports."""
    return [effect.event for effect in effects if isinstance(effect, fx.Report)]


def sent(effects: Iterable[fx.Effect], wanted: type[AnyRequest]) -> list[tuple[str, int, AnyRequest]]:
    """Peer, id and request of every request of one class that was sent."""
    return [
        (effect.peer_id, effect.request_id, effect.request)
        for effect in of_type(effects, fx.SendRequest) if isinstance(effect.request, wanted)
    ]


def pushes(
    effects: Iterable[fx.Effect], type: PushType | None = None, peer_id: str | None = None
) -> list[fx.SendRequest]:
    """The pushes that were sent."""
    return [
        effect for effect in of_type(effects, fx.SendRequest)
        if isinstance(effect.request, PushEntryRequest)
        and type in (None, effect.request.type) and peer_id in (None, effect.peer_id)
    ]


def vote_request(
    candidate: str = "n1", term: int = 2, *, end_index: int = -1, end_term: int = -1, pre_vote: bool = False,
    transfer: bool = False, wire_version: int = 1,
) -> VoteRequest:
    """A candidate asks n0."""
    return VoteRequest(
        group="g", remote_id="n0", local_id=candidate, leader_id=candidate, term=term,
        ledger_end_index=end_index, ledger_end_term=end_term, pre_vote=pre_vote, transfer=transfer,
        wire_version=wire_version,
    )


def heart_beat(leader: str = "n1", term: int = 1, interval_ms: int = 200) -> HeartBeatRequest:
    """A leader beats to n0."""
    return HeartBeatRequest(
        group="g", remote_id="n0", local_id=leader, leader_id=leader, term=term,
        heart_beat_interval_ms=interval_ms, wire_version=1,
    )


def push(
    type: PushType, entries: EntryBatch | None = None, *, leader: str = "n1", term: int = 1,
    commit_index: int = -1,
) -> PushEntryRequest:
    """A leader pushes to n0."""
    return PushEntryRequest(
        group="g", remote_id="n0", local_id=leader, leader_id=leader, term=term, type=type,
        commit_index=commit_index, entries=entries, is_batch=entries is not None and entries.count > 1,
        wire_version=1,
    )


def pushed(
    code: ResponseCode = ResponseCode.SUCCESS, *, term: int = 1, begin_index: int = 0, end_index: int = -1,
) -> PushEntryResponse:
    """A follower's answer to a push."""
    return PushEntryResponse(
        group="g", code=code, term=term, begin_index=begin_index, end_index=end_index, wire_version=1
    )


@attrs.define
class Bench:
    """
    One core over a L{ListLedger}. Writes run and their outcomes are fed, as by the driver; everything
    else is kept.

    @ivar seen: every effect so far, in the order in which it would have run.
    """

    core: DLedgerCore
    ledger: ListLedger
    config: DLedgerConfig
    now_ms: int = 10_000
    seen: list[fx.Effect] = attrs.Factory(list)
    last_token: int = 0

    @classmethod
    def make(
        cls, ledger: ListLedger | None = None, *, self_id: str = "n0", members: int = 3, term: int = 1,
        voted_for: str | None = None, committed_index: int = -1, repair_end_index: int = -1, seed: int = 1,
        is_unsure: bool = False, forgot_terms: bool = False, **options: Any,
    ) -> Bench:
        """A started core, of a group whose id is known."""
        ledger = ListLedger() if ledger is None else ledger
        config = make_config(self_id, members, **options)
        core = DLedgerCore(
            config=config, view=ledger, rng=random.Random(seed), recovered=RecoveredState(
                term=term, voted_for=voted_for, committed_index=committed_index,
                repair_end_index=repair_end_index, is_unsure=is_unsure, forgot_terms=forgot_terms,
                group_name=GroupName("a" * 32, 1, True),
            ),
        )
        bench = cls(core, ledger, config)
        bench.step(ev.Started())
        return bench

    @property
    def term(self) -> int:
        """The core's term."""
        return self.core.status().term

    @property
    def role(self) -> str:
        """The core's role."""
        return self.core.status().role

    def next_token(self) -> int:
        """A token that was not used."""
        self.last_token += 1
        return self.last_token

    def step(self, happened: ev.Input) -> tuple[fx.Effect, ...]:
        """Take an input, run its writes and their outcomes. @return: all effects, in order."""
        effects: list[fx.Effect] = []
        todo: list[ev.Input] = [happened]
        while todo:
            for effect in self.core.step(todo.pop(), self.now_ms):
                effects.append(effect)
                outcome = self._run(effect)
                if outcome is not None:
                    todo.append(outcome)
        self.seen.extend(effects)
        return tuple(effects)

    def _run(self, effect: fx.Effect) -> ev.Input | None:
        ledger = self.ledger
        try:
            if isinstance(effect, fx.WriteBodies):
                assert effect.first_index == ledger.begin_index + len(ledger.entries)
                positions = ledger.append_bodies(effect.bodies, effect.term)
                return ev.EntriesWritten(
                    first_index=effect.first_index, count=len(positions), positions=positions
                )
            if isinstance(effect, fx.WriteConfiguration):
                positions = ledger.append_configuration(effect.membership, effect.term)
                return ev.EntriesWritten(first_index=effect.first_index, count=1, positions=positions)
            if isinstance(effect, fx.WriteEntries):
                ledger.append_entries(effect.entries)
                return ev.EntriesWritten(
                    first_index=effect.entries.first_index, count=effect.entries.count
                )
            if isinstance(effect, fx.LookAgain):
                has_shrunk = ledger.look_again(effect.first_index)
                return ev.HoleHandled(reason="" if has_shrunk else "nothing is found")
            if isinstance(effect, fx.FillHole):
                return self._fill(effect)
            if isinstance(effect, fx.TruncateLedger):
                ledger.truncate_to(effect.entries, anew=effect.anew)
                return ev.LedgerTruncated(
                    end_index=ledger.ledger_end_index, end_term=ledger.ledger_end_term,
                    repair_end_index=ledger.owes_after_cut,
                )
        except DLedgerError as error:
            return ev.WriteRefused(code=error.code, reason=str(error))
        return None

    def _fill(self, effect: fx.FillHole) -> ev.Input:
        try:
            self.ledger.fill_hole(effect.entries, is_committed=effect.is_committed)
        except DLedgerError as error:
            return ev.HoleHandled(reason=str(error))
        return ev.HoleHandled()

    def request(self, request: Request) -> tuple[fx.Effect, ...]:
        """A request comes, with a fresh token."""
        return self.step(ev.RequestReceived(token=self.next_token(), request=request))

    def ask(self, request: Request) -> Response:
        """A request that is answered at once. @return: its answer."""
        effects = self.request(request)
        (reply,) = [reply for reply in of_type(effects, fx.Reply) if reply.token == self.last_token]
        return reply.response

    def answer(self, request: fx.SendRequest, response: Response) -> tuple[fx.Effect, ...]:
        """A peer answers what was sent."""
        return self.step(ev.ResponseReceived(
            peer_id=request.peer_id, request_id=request.request_id, response=response
        ))

    def fail(
        self, request: fx.SendRequest, reason: str = "connection lost", *, is_incompatible: bool = False
    ) -> tuple[fx.Effect, ...]:
        """What was sent will not be answered, or was so in another version of the protocol."""
        return self.step(ev.RequestFailed(
            peer_id=request.peer_id, request_id=request.request_id, reason=reason,
            is_incompatible=is_incompatible,
        ))

    def tick(self, ms: int | None = None) -> tuple[fx.Effect, ...]:
        """Time passes at once, then one tick."""
        self.now_ms += self.config.tick_ms if ms is None else ms
        return self.step(ev.Ticked())

    def run(self, ms: int) -> tuple[fx.Effect, ...]:
        """Time passes, tick by tick."""
        effects: list[fx.Effect] = []
        for _ in range(ms // self.config.tick_ms):
            effects.extend(self.tick())
        return tuple(effects)

    def run_until(self, wanted: type[Request], limit_ms: int = 20_000) -> tuple[fx.Effect, ...]:
        """Time passes until a request of this class is sent. @return: the effects of that tick."""
        for _ in range(limit_ms // self.config.tick_ms):
            effects = self.tick()
            if sent(effects, wanted):
                return effects
        raise AssertionError(f"no {wanted.__name__} within {limit_ms} ms")

    def follow(self, leader: str = "n1", term: int = 1, interval_ms: int = 200) -> Bench:
        """Follow a leader."""
        self.request(heart_beat(leader, term, interval_ms))
        assert self.core.leader_id == leader
        return self

    def lead(self) -> Bench:
        """Win an election, whatever the peers' logs; see C{seen} for what became of it."""
        peers = [peer_id for peer_id in self.config.peers if peer_id != self.config.self_id]
        for peer_id in peers:  # they have been heard of, so that pre-votes are sent
            self.core.member.peers.heard(peer_id, 1, self.core.member.out.now_ms)
        self.run_until(VoteRequest) if peers else self.run(4_000)
        for pre_vote in (True, False):
            for peer_id, request_id, request in sent(tuple(self.seen), VoteRequest):
                if request.pre_vote is pre_vote and self.role != "leader":
                    self.step(ev.ResponseReceived(peer_id=peer_id, request_id=request_id, response=granted(
                        request.term - 1 if pre_vote else request.term, pre_vote=pre_vote
                    )))
        assert self.role == "leader"
        return self

    def confirm(self, peer_id: str) -> tuple[fx.Effect, ...]:
        """C{peer_id} answers the last heartbeat that was sent to it."""
        beats = [found for found in sent(self.seen, HeartBeatRequest) if found[0] == peer_id]
        return self.step(ev.ResponseReceived(
            peer_id=peer_id, request_id=beats[-1][1],
            response=HeartBeatResponse(group="g", term=self.term, wire_version=1),
        ))

    def match(self, peer_id: str) -> tuple[fx.Effect, ...]:
        """C{peer_id} answers pushes, as one whose ledger equals this one's, until there are no more."""
        effects: list[fx.Effect] = []
        todo: Sequence[fx.SendRequest] = pushes(self.seen, peer_id=peer_id)
        while todo:
            came: list[fx.Effect] = []
            for one in todo:
                came.extend(self.answer(one, pushed(
                    term=self.term, begin_index=self.ledger.ledger_begin_index, end_index=self._end_for(one)
                )))
            effects.extend(came)
            todo = pushes(came, peer_id=peer_id)
        return tuple(effects)

    @staticmethod
    def _end_for(one: fx.SendRequest) -> int:
        assert isinstance(one.request, PushEntryRequest)
        return -1 if one.request.entries is None else one.request.entries.last_index

    def replies(self, token: int) -> list[Response]:
        """What was answered to a token so far."""
        return [reply.response for reply in of_type(self.seen, fx.Reply) if reply.token == token]


def granted(term: int, *, pre_vote: bool = False, result: VoteResult = VoteResult.ACCEPT) -> VoteResponse:
    """A voter's answer."""
    return VoteResponse(
        group="g", term=term, vote_result=result, pre_vote=pre_vote, wire_version=1
    )


def propose(bench: Bench, *sizes: int) -> tuple[list[int], tuple[fx.Effect, ...]]:
    """Propose, in one turn, one body of each size. @return: tokens and effects."""
    proposals = tuple(
        ev.Proposal(token=bench.next_token(), bodies=(b"x" * size,)) for size in sizes
    )
    effects = bench.step(ev.AppendProposed(proposals))
    return [proposal.token for proposal in proposals], effects


def seeded(seed: int) -> random.Random:
    """A source of chance that is the same every time."""
    return random.Random(seed)
