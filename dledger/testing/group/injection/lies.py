# -*- test-case-name: tests.sim.test_liars -*-
"""
What a lying member says: any well-formed message, with any numbers within the bounds of the protocol.

Most numbers are near true ones: those are believed most easily.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping

import attrs

from dledger.values.option_values import with_values
from protocols.wire.codes import ResponseCode
from protocols.wire.ledger.batches import EntryBatch
from protocols.wire.ledger.bounds import INDEX_MAX, TERM_JUMP_MAX, TERM_MAX
from protocols.wire.ledger.codes import PushType, VoteResult
from protocols.wire.ledger.entry import ENTRY_HEADER, pack_record
from protocols.wire.ledger.messages import (
    GetResponse,
    HeartBeatRequest,
    HeartBeatResponse,
    LeadershipTransferRequest,
    LeadershipTransferResponse,
    MessageFields,
    MetadataRequest,
    MetadataResponse,
    PullResponse,
    PushEntryRequest,
    PushEntryResponse,
    Request,
    Response,
    VoteRequest,
    VoteResponse,
)

#: About what a member may lie: each is one kind of messages.
SUBJECTS: Mapping[str, tuple[type[Request | Response], ...]] = {
    "votes": (VoteRequest,),
    "vote answers": (VoteResponse,),
    "heartbeats": (HeartBeatRequest,),
    "heartbeat answers": (HeartBeatResponse,),
    "pushes": (PushEntryRequest,),
    "push answers": (PushEntryResponse,),
    "transfers": (LeadershipTransferRequest, LeadershipTransferResponse),
    "metadata": (MetadataRequest, MetadataResponse),
    "entries": (GetResponse, PullResponse),
}

#: Lies about these can make members commit different entries: no protocol of this kind prevents that.
SPLITTING = frozenset({"votes", "vote answers", "heartbeats", "pushes", "push answers"})


class Lies:
    """
    One liar's inventions.

    @param near: the highest term and the last index of the group now.
    """

    def __init__(
        self, rng: random.Random, *, group: str, self_id: str, ids: tuple[str, ...],
        near: Callable[[], tuple[int, int]],
    ) -> None:
        self._rng = rng
        self._group = group
        self._self_id = self_id
        self._ids = ids
        self._near = near

    # -- numbers --------------------------------------------------------------------------------

    def term(self) -> int:
        """A term."""
        now, rng = self._near()[0], self._rng
        term = rng.choice((
            now, now, now, now + 1, now + 1, now - 1, now + 2, now + 1000, now + TERM_JUMP_MAX,
            now + TERM_JUMP_MAX + 1, 0, -1, TERM_MAX, TERM_MAX - 1,
        ))
        return max(-1, min(term, TERM_MAX))

    def index(self) -> int:
        """An index."""
        last, rng = self._near()[1], self._rng
        index = rng.choice((
            last, last, last + 1, last - 1, last + 2, last + 1000, int(rng.random() * (last + 2)), 0, -1,
            INDEX_MAX, INDEX_MAX - 1,
        ))
        return max(-1, min(index, INDEX_MAX))

    def _who(self) -> str | None:
        return self._rng.choice((*self._ids, *self._ids, None, "n9", ""))

    def _version(self) -> int:
        return self._rng.choice((0, 1, 1, 2, 0x101, 0x201, 0x301, self._rng.getrandbits(15), (1 << 31) - 1))

    # -- entries --------------------------------------------------------------------------------

    def batch(self, true: EntryBatch | None) -> EntryBatch | None:
        """Entries that were never appended, or those of C{true} under other numbers."""
        rng = self._rng
        if rng.random() < 0.1:
            return None
        index, term, pos, chain = max(self.index(), 0), max(self.term(), 0), 0, rng.getrandbits(31)
        if true is not None:
            _, _, at, known, pos, _, chain, _, _ = ENTRY_HEADER.unpack_from(true.records)
            if rng.random() < 0.7:
                index = at
            if rng.random() < 0.7:
                term = known
        if rng.random() < 0.2:
            pos = rng.choice((0, 1, 4096, 1 << 40, (1 << 62) - 1))
        count = rng.choice((1, 1, 1, 2, 5))
        records = b""
        index = min(index, INDEX_MAX - count)
        for number in range(count):
            body = rng.randbytes(int(rng.random() * 60))
            record, chain = pack_record(
                body, index=index + number, term=term, pos=pos, previous_chain_crc=chain
            )
            pos += len(record)
            records += record
            if pos >= 1 << 62:
                return None
        return EntryBatch(first_index=index, count=count, term=term, records=records)

    # -- messages -------------------------------------------------------------------------------

    def about(self, message: Request | Response) -> Request | Response:
        """A lie instead of C{message}."""
        inventions = self._inventions(message)
        chosen = {
            name: invent() for name, invent in inventions.items()
            if self._rng.random() < max(0.3, 1.5 / len(inventions))
        }
        if not chosen:
            return message
        lie = with_values(message, chosen)
        return _formed(lie) if isinstance(lie, PushEntryRequest) else lie

    def _inventions(self, message: Request | Response) -> dict[str, Callable[[], object]]:
        rng = self._rng
        of: dict[str, Callable[[], object]] = {"term": self.term, "wire_version": self._version}
        if isinstance(message, Response):
            of["code"] = lambda: rng.choice((ResponseCode.SUCCESS, *ResponseCode))
            of["leader_id"] = self._who
        if isinstance(message, VoteRequest):
            of |= {"ledger_end_index": self.index, "ledger_end_term": self.term,
                   "pre_vote": self._bool, "transfer": self._bool}
        elif isinstance(message, VoteResponse):
            of |= {"vote_result": lambda: rng.choice((VoteResult.ACCEPT, *VoteResult)),
                   "pre_vote": self._bool}
        elif isinstance(message, HeartBeatRequest):
            of["heart_beat_interval_ms"] = lambda: rng.choice((0, 1, 600, 60_000, (1 << 31) - 1))
        elif isinstance(message, PushEntryRequest):
            of |= {"type": lambda: rng.choice(list(PushType)), "commit_index": self.index,
                   "entries": lambda: self.batch(message.entries)}
        elif isinstance(message, PushEntryResponse):
            of |= {"index": self.index, "count": lambda: rng.choice((0, 1, 5, 1 << 30)),
                   "begin_index": self.index, "end_index": self.index}
        elif isinstance(message, (LeadershipTransferRequest, MetadataResponse, GetResponse, PullResponse)):
            of |= self._other_inventions(message)
        return of

    def _other_inventions(self, message: Request | Response) -> dict[str, Callable[[], object]]:
        rng = self._rng
        if isinstance(message, LeadershipTransferRequest):
            return {"transfer_id": self._who, "transferee_id": self._who,
                    "take_leadership_ledger_index": self.index}
        if isinstance(message, MetadataResponse):
            return {"begin_index": self.index, "end_index": self.index, "committed_index": self.index,
                    "role": lambda: rng.choice(("", "leader", "follower", "x" * 300)),
                    "group_id": self._group_id, "group_term": self.term, "is_group_known": self._bool,
                    "admin": lambda: rng.choice(("", "n9:1", "x" * 1000)),
                    "health": lambda: rng.choice(("", "x" * 1000)),
                    "peers": lambda: {self._who() or "n9": "n9.sim:1"}}
        if isinstance(message, PullResponse):
            return {"entries": lambda: self.batch(message.entries), "ledger_begin_index": self.index,
                    "committed_index": self.index}
        return {"entries": lambda: self._one(message)}

    def _one(self, message: Request | Response) -> EntryBatch | None:
        batch = self.batch(message.entries if isinstance(message, GetResponse) else None)
        return batch if batch is None or batch.count == 1 else None

    def _bool(self) -> bool:
        return self._rng.random() < 0.5

    def _group_id(self) -> str:
        return self._rng.choice(("", "x", "0" * 32, "f" * 32, "x" * 500))

    def request(
        self, member_id: str, allowed: tuple[type[Request | Response], ...]
    ) -> Request | None:
        """Any request to a member, of one of these types."""
        base: MessageFields = {
            "group": self._group, "remote_id": member_id, "local_id": self._self_id,
            "leader_id": self._self_id, "term": max(self.term(), 0), "wire_version": 1,
        }
        requests: list[Request] = [
            VoteRequest(**base), HeartBeatRequest(**base, heart_beat_interval_ms=600),
            _formed(PushEntryRequest(**base, type=self._rng.choice(list(PushType)),
                                     commit_index=self.index(), entries=self.batch(None))),
            LeadershipTransferRequest(**base, transfer_id=self._self_id, transferee_id=member_id),
            MetadataRequest(**base, members=self._rng.choice(("", "n0;n9")), group_id=self._group_id()),
        ]
        chosen = [request for request in requests if isinstance(request, allowed)]
        if not chosen:
            return None
        request = self._rng.choice(chosen)
        lie = self.about(request) if self._rng.random() < 0.7 else request
        assert isinstance(lie, Request)
        return lie


def _formed(push: PushEntryRequest) -> PushEntryRequest:
    """The wire has no COMMIT with entries, no other push without, and several entries only in an APPEND."""
    entries = push.entries
    if entries is None:
        return attrs.evolve(push, type=PushType.COMMIT)
    if push.type is PushType.COMMIT or entries.count > 1:
        return attrs.evolve(push, type=PushType.APPEND, is_batch=entries.count > 1)
    return push
