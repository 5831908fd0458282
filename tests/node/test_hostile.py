# -*- test-case-name: tests.node.test_hostile -*-
"""
No message ends a member: cores with their drivers and stores take messages of all kinds, from every sender,
in every order, with numbers near those that matter.
"""

from __future__ import annotations

import random

import attrs
from twisted.trial.unittest import SynchronousTestCase

from dledger.core.driver import Driver
from dledger.core.replica import DLedgerCore
from dledger.core.state import effects as fx
from dledger.core.state import inputs as ev
from dledger.core.state.recovered import RecoveredState
from dledger.storage.store.file_store import FileStore
from dledger.testing.world.memory_disk import MemoryDisk
from dledger.values.ledger.config import DLedgerConfig
from protocols.wire.codes import ResponseCode
from protocols.wire.errors import WireError
from protocols.wire.ledger import push
from protocols.wire.ledger.batches import EntryBatch
from protocols.wire.ledger.bounds import INDEX_MAX, TERM_JUMP_MAX, TERM_MAX
from protocols.wire.ledger.codes import PushType, VoteResult
from protocols.wire.ledger.entry import pack_record
from protocols.wire.ledger.java import json_bodies
from protocols.wire.ledger.messages import (
    GetRequest,
    GetResponse,
    HeartBeatRequest,
    HeartBeatResponse,
    LeadershipTransferRequest,
    LeadershipTransferResponse,
    MetadataRequest,
    MetadataResponse,
    PushEntryRequest,
    PushEntryResponse,
    Request,
    Response,
    VoteRequest,
    VoteResponse,
)
from tests.core.helpers import make_config

MEMBERS = ("n0", "n1", "n2", "n3", "n4")
SPEAKERS = (*MEMBERS, "n1", "n2", "n1", "stranger", None)


class World:
    """The surroundings of one member; its writes are real."""

    def __init__(self, config: DLedgerConfig, rng: random.Random, term: int) -> None:
        self.config = config
        self.clock_ms = 10_000
        self.sent: list[fx.SendRequest] = []
        self.tokens = self.led = 0
        self.waiting: set[int] = set()
        self.flushes: list[tuple[int, int]] = []
        self.terms: list[int] = [term]
        self.failure: BaseException | None = None
        self.stopped: list[fx.StopMember] = []
        self.store = FileStore.open(config, MemoryDisk())
        self.core = DLedgerCore(
            config=config, view=self.store, rng=rng, recovered=RecoveredState(term=term),
        )
        self.driver = Driver(self.core, self.store, self, self)
        self.driver.feed(ev.Started())

    def save(self, term: int, voted_for: str | None) -> None:
        """A term is persisted."""
        assert self.terms[-1] <= term <= TERM_MAX, term
        assert term - self.terms[-1] <= TERM_JUMP_MAX, (self.terms[-1], term)
        self.terms.append(term)

    def seconds(self) -> float:
        """The time."""
        return self.clock_ms / 1000

    def send_request(self, effect: fx.SendRequest) -> None:
        """Whatever is sent can be encoded."""
        request = effect.request
        push.encode_request_frame(request, 1)
        json_bodies.encode_request(attrs.evolve(request, is_batch=True)
                                   if isinstance(request, PushEntryRequest) else request)
        self.sent = [*self.sent[-63:], effect]

    def reply(self, effect: fx.Reply) -> None:
        """Whatever is answered can be encoded, and is answered once."""
        push.encode_response_frame(effect.response, 1)
        json_bodies.encode_response(effect.response)
        self.waiting.remove(effect.token)

    def answer_append(self, answer: fx.AnswerAppend) -> None:
        """Ignored."""

    def answer_read(self, answer: fx.AnswerRead) -> None:
        """Ignored."""

    def start_flush(self, effect: fx.FlushLedger) -> None:
        """Ends when the schedule says so."""
        self.flushes.append((effect.flush_id, effect.end_index))

    def continue_later(self, effect: fx.ContinueLater) -> None:
        """Ends when the schedule says so."""

    def follow_membership(self, effect: fx.FollowMembership) -> None:
        """Ignored."""

    def committed(self, committed_index: int) -> None:
        """Ignored."""

    def report(self, report: fx.Report) -> None:
        """The leaderships are counted."""
        self.led += report.event == "role-changed" and report.facts["role"] == "leader"

    def stop_member(self, stop: fx.StopMember) -> None:
        """Must not happen."""
        self.stopped.append(stop)

    def broken(self, error: BaseException) -> None:
        """Must not happen."""
        self.failure = error


class Attacker:
    """Random messages, with numbers near those that matter at this moment."""

    def __init__(self, world: World, rng: random.Random) -> None:
        self.world = world
        self.rng = rng
        self.leader = "n1"

    def _term(self) -> int:
        rng, term = self.rng, self.world.core.status().term
        if rng.random() < 0.8:
            return term
        return rng.choice((
            term + 1, term + 2, term - 1, 0, -1, term + TERM_JUMP_MAX, term + TERM_JUMP_MAX + 1,
            TERM_MAX - 1, TERM_MAX, rng.randrange(TERM_MAX),
        ))

    def _index(self) -> int:
        rng, status = self.rng, self.world.core.status()
        end = status.ledger_end_index
        return rng.choice((
            end, end + 1, end + 1, end + 1, end + 2, end - 1, status.committed_index,
            status.committed_index + 1, 0, -1, -2, rng.randrange(INDEX_MAX), INDEX_MAX,
        ))

    def _entries(self, term: int) -> EntryBatch | None:
        rng, store = self.rng, self.world.store
        if rng.random() < 0.1:
            return None
        index, end = max(0, self._index()), store.ledger_end_index
        if store.ledger_begin_index <= index <= end and store.ledger_begin_index >= 0 and rng.random() < 0.5:
            return store.read_batch(index, max_count=rng.choice((1, 1, 3)), max_bytes=4096)
        pos = store.end_position if index == end + 1 or rng.random() < 0.3 else self._index() * 57 % (1 << 62)
        records, chain, terms = b"", 0, sorted(
            max(0, rng.choice((term, term, term, self._term()))) for _ in range(rng.choice((1, 1, 2, 5)))
        )
        for at, entry_term in enumerate(terms):
            record, chain = pack_record(
                bytes(rng.randrange(40)), index=index + at, term=entry_term, pos=pos,
                previous_chain_crc=chain,
            )
            if rng.random() < 0.8:
                record = record[:36] + bytes(8) + record[44:]  # no checksums, like Java
            records, pos = records + record, pos + len(record)
        return EntryBatch(first_index=index, count=len(terms), term=terms[-1], records=records)

    def request(self) -> Request:
        """Any request that the core takes."""
        rng, term = self.rng, self._term()
        speaker = self.leader if rng.random() < 0.6 else rng.choice(SPEAKERS)
        base = {"group": "g", "remote_id": "n0", "local_id": speaker, "leader_id": speaker, "term": term,
                "wire_version": rng.choice((0, 1))}
        kind = rng.randrange(8)
        if kind == 0:
            return VoteRequest(
                **base, ledger_end_index=self._index(), ledger_end_term=self._term(),
                pre_vote=rng.random() < 0.3, transfer=rng.random() < 0.3,
            )
        if kind == 1:
            return HeartBeatRequest(**base, heart_beat_interval_ms=rng.choice((0, 1, 200, 1 << 30)))
        if kind == 2:
            return LeadershipTransferRequest(
                **base, transfer_id=rng.choice(SPEAKERS), transferee_id=rng.choice(SPEAKERS),
                take_leadership_ledger_index=self._index(),
            )
        if kind == 3:
            return MetadataRequest(**base)
        push_type = rng.choice(list(PushType))
        entries = None if push_type is PushType.COMMIT else self._entries(term)
        return PushEntryRequest(
            **base, type=push_type, commit_index=self._index(), entries=entries,
            is_batch=entries is not None and entries.count > 1,
        )

    def response(self, request: Request) -> Response:
        """Any answer to a request of the member."""
        rng = self.rng
        base = {"group": "g", "term": self._term(), "wire_version": rng.choice((0, 1)),
                "code": rng.choice((*[ResponseCode.SUCCESS] * 5, *ResponseCode))}
        if isinstance(request, VoteRequest):
            return VoteResponse(**base, vote_result=rng.choice((*[VoteResult.ACCEPT] * 8, *VoteResult)))
        if isinstance(request, HeartBeatRequest):
            return HeartBeatResponse(**base)
        if isinstance(request, MetadataRequest):
            return MetadataResponse(**base, leader_id=rng.choice(SPEAKERS), begin_index=self._index(),
                                    end_index=self._index(), committed_index=self._index())
        if isinstance(request, GetRequest):
            return GetResponse(**base)
        if isinstance(request, LeadershipTransferRequest):
            return LeadershipTransferResponse(**base)
        return PushEntryResponse(**base, index=self._index(), count=rng.randrange(3),
                                 begin_index=self._index(), end_index=self._index())


def decoded(message: Request | Response, rng: random.Random) -> Request | Response | None:
    """The message as a decoder reads it; None if it refuses it."""
    try:
        if rng.random() < 0.5:
            frame = (push.encode_request_frame(message, 1) if isinstance(message, Request)
                     else push.encode_response_frame(message, 1))
            return push.decode_frame(frame)[1]
        if isinstance(message, Request):
            return json_bodies.decode_request(message.kind, json_bodies.encode_request(message))
        return json_bodies.decode_response(message.kind, json_bodies.encode_response(message))
    except WireError:
        return None


def attack(seed: int, steps: int) -> World:
    """One member under attack."""
    rng = random.Random(seed)
    config = make_config(
        members=rng.choice((2, 3, 5)), flush_disk_type=rng.choice(("async", "sync")),
        pre_vote=rng.random() < 0.7, max_queued_pushes=8,
        mapped_file_size_for_entry_data=1 << 20, mapped_file_size_for_entry_index=32 * 1024,
    )
    term = rng.choice((0, 1, 7, TERM_MAX - 3, TERM_MAX - 1))
    world = World(config, random.Random(seed + 1), term)
    attacker = Attacker(world, rng)
    requests = rng.choice((0.5, 0.1))
    for step in range(steps):
        dice = rng.random()
        if dice < requests:
            request = decoded(attacker.request(), rng)
            if request is not None:
                world.tokens += 1
                world.waiting.add(world.tokens)
                assert isinstance(request, Request)
                world.driver.feed(ev.RequestReceived(token=world.tokens, request=request))
        elif dice < 0.75 and world.sent:
            one = rng.choice(world.sent)
            response = decoded(attacker.response(one.request), rng)
            if isinstance(response, Response):
                world.driver.feed(ev.ResponseReceived(
                    peer_id=one.peer_id, request_id=one.request_id, response=response
                ))
        elif dice < 0.9:
            world.clock_ms += rng.choice((1, 50, 50, 400, 3000))
            world.driver.feed(ev.Ticked())
        elif dice < 0.92 and world.flushes:
            flush_id, end_index = world.flushes.pop()
            world.driver.feed(ev.EntriesFlushed(flush_id=flush_id, end_index=end_index))
        elif dice < 0.94:
            attacker.leader = rng.choice(("n1", "n2"))
            world.driver.feed(ev.PeerDisconnected(peer_id="n1"), ev.PeerConnected(peer_id="n2"))
        elif dice < 0.96:
            world.driver.feed(ev.AppendProposed((ev.Proposal(token=step, bodies=(b"x",)),)))
        elif world.waiting:
            token = rng.choice(sorted(world.waiting))
            world.waiting.discard(token)
            world.driver.feed(ev.RequestAbandoned(token=token))
        if world.failure is not None or world.stopped:
            break
    return world


class HostileTests(SynchronousTestCase):
    """The member outlives everything, and its state stays small."""

    def test_nothing_ends_a_member(self) -> None:
        """Neither an exception nor a stop; no term beyond its bounds; no queue without one."""
        led = followed = committed = 0
        for seed in range(120):
            world = attack(seed, 250)
            if world.failure is not None:
                raise AssertionError(f"seed {seed}") from world.failure
            self.assertEqual(world.stopped, [], seed)
            status = world.core.status()
            self.assertLessEqual(status.term, TERM_MAX)
            self.assertLessEqual(status.committed_index, status.ledger_end_index)
            self.assertLessEqual(world.core.handler.queued, 2 * world.config.max_queued_pushes)
            self.assertLessEqual(world.core.out.outstanding, 250 * len(world.config.peers))
            committed += status.committed_index >= 0
            led += world.led
            followed += status.leader_id not in (None, "n0")
        # The attack comes far enough to mean something.
        self.assertTrue(min(led, followed, committed) >= 3, (led, followed, committed))
