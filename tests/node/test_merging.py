# -*- test-case-name: tests.node.test_merging -*-
"""Pushes that came in one read are one write, and each gets its own answer."""

from __future__ import annotations

from typing import Any

import attrs
from twisted.trial.unittest import SynchronousTestCase

from dledger.node.requests import merging
from dledger.node.requests.merging import Merged, merge
from protocols.ledger.interfaces import Ticket
from protocols.wire.codes import ResponseCode
from protocols.wire.ledger.batches import EntryBatch
from protocols.wire.ledger.codes import PushType, RequestCode
from protocols.wire.ledger.entry import pack_record
from protocols.wire.ledger.messages import (
    HeartBeatRequest,
    PushEntryRequest,
    PushEntryResponse,
    Request,
)
from tests.node.rig import FakeClient, Rig

PEERS = "n0-h:1;n1-h:2;n2-h:3"


def entry(index: int, *, term: int = 3, body: bytes = b"12345678") -> EntryBatch:
    """One entry as Java writes it, without checksums, of 56 bytes."""
    record, _ = pack_record(body, index=index, term=term, pos=index * 56, previous_chain_crc=0)
    bare = record[:36] + bytes(8) + record[44:]
    return EntryBatch(first_index=index, count=1, term=term, records=bare)


def push(index: int, **fields: Any) -> PushEntryRequest:
    """An APPEND of one entry by the leader n1 of term 3."""
    base: dict[str, Any] = {
        "group": "default", "remote_id": "n0", "local_id": "n1", "leader_id": "n1", "term": 3,
        "type": PushType.APPEND, "commit_index": index - 1, "entries": entry(index),
    }
    return PushEntryRequest(**{**base, **fields})


def ticket(opaque: int, *, native: bool = False) -> Ticket:
    """As a connection gives it."""
    return Ticket(opaque, native, RequestCode.PUSH, 400)


def runs_of(*requests: Request, next_index: int = 5, native: bool = False) -> list[int]:
    """How many requests became each one that the core gets, in order."""
    asked = [(ticket(opaque, native=native), request) for opaque, request in enumerate(requests)]
    return [len(whence.parts) if isinstance(whence, Merged) else 1 for whence, _ in merge(asked, next_index)]


class MergeTests(SynchronousTestCase):
    """What is merged, and what is not."""

    def test_entries_that_follow_each_other(self) -> None:
        """Are one batch: the same bytes, the latest commit, and who is to be answered."""
        asked = [(ticket(index), push(index)) for index in (5, 6, 7)]
        ((whence, request),) = merge(asked, 5)
        assert isinstance(whence, Merged) and isinstance(request, PushEntryRequest)
        self.assertEqual(whence.parts, tuple((ticket(index), index, 1) for index in (5, 6, 7)))
        records = b"".join(entry(index).records for index in (5, 6, 7))
        batch = EntryBatch(first_index=5, count=3, term=3, records=records)
        self.assertEqual((request.entries, request.commit_index, request.is_batch), (batch, 6, True))

    def test_a_long_read_makes_several_pushes(self) -> None:
        """More than one merged push may hold are several of them."""
        self.patch(merging, "COUNT_MAX", 3)
        self.assertEqual(runs_of(*[push(index) for index in range(5, 13)]), [3, 3, 2])

    def test_batches_are_merged_too(self) -> None:
        """Pushes that hold several entries are merged likewise."""
        two = EntryBatch(first_index=5, count=2, term=3, records=entry(5).records + entry(6).records)
        ((whence, request),) = merge([(ticket(1), push(5, entries=two)), (ticket(2), push(7))], 5)
        assert isinstance(whence, Merged) and isinstance(request, PushEntryRequest)
        self.assertEqual(whence.parts, ((ticket(1), 5, 2), (ticket(2), 7, 1)))
        assert request.entries is not None
        self.assertEqual((request.entries.first_index, request.entries.count), (5, 3))

    def test_a_single_push_stays_unchanged(self) -> None:
        """A single one goes on as it came."""
        request = push(5)
        self.assertEqual(list(merge([(ticket(1), request)], 5)), [(ticket(1), request)])

    def test_what_does_not_follow(self) -> None:
        """A gap, another term, leader or sender, a term of entries that falls: the run ends there."""
        for other in (
            push(7), push(6, term=4), push(6, leader_id="n2"), push(6, local_id="n2"),
            push(6, wire_version=1), push(6, entries=entry(6, term=2)),
        ):
            self.assertEqual(runs_of(push(5), other), [1, 1], str(other))
        self.assertEqual(runs_of(push(5), push(6, entries=entry(6, term=3))), [2])

    def test_other_requests_stand_between(self) -> None:
        """What is no APPEND keeps its place, and what follows it may be a run again."""
        beat = HeartBeatRequest(group="default", remote_id="n0", leader_id="n1", term=3)
        self.assertEqual(runs_of(push(5), push(6), beat, push(7), push(8)), [2, 1, 2])
        for kind in (PushType.COMPARE, PushType.TRUNCATE):
            self.assertEqual(runs_of(push(5), push(6, type=kind), push(7)), [1, 1, 1])

    def test_not_at_the_end_of_the_ledger(self) -> None:
        """A push that is repeated, or comes after a gap, is the core's to judge, by itself."""
        self.assertEqual(runs_of(push(4), push(5), push(6)), [1, 2])
        self.assertEqual(runs_of(push(6), push(7)), [1, 1])

    def test_native_pushes_are_not_merged(self) -> None:
        """Native pushes are batches already."""
        self.assertEqual(runs_of(push(5), push(6), native=True), [1, 1])

    def test_a_merged_push_is_bounded(self) -> None:
        """No more entries and bytes than a batch may have; the rest is the next run."""
        self.patch(merging, "COUNT_MAX", 3)
        self.assertEqual(runs_of(*[push(index) for index in range(5, 13)]), [3, 3, 2])
        self.patch(merging, "COUNT_MAX", 100)
        self.patch(merging, "BYTES_MAX", 2 * 56)
        self.assertEqual(runs_of(*[push(index) for index in range(5, 10)]), [2, 2, 1])

    def test_each_push_gets_its_answer(self) -> None:
        """Each has its own index and count; the rest is what was said of all."""
        merged = Merged(((ticket(1), 5, 1), (ticket(2), 6, 2)))
        said = PushEntryResponse(
            group="g", code=ResponseCode.INCONSISTENT_STATE, term=9, index=5, count=3, begin_index=1,
            end_index=4, wire_version=1,
        )
        self.assertEqual(list(merged.answers(said)), [
            (ticket(1), attrs.evolve(said, index=5, count=1)),
            (ticket(2), attrs.evolve(said, index=6, count=2)),
        ])


class FollowerTests(SynchronousTestCase):
    """A member that follows a leader which pushes entry by entry."""

    def setUp(self) -> None:
        self.rig = Rig(peers=PEERS)
        self.rig.node.start()
        self.leader: FakeClient = self.rig.client()
        beat = HeartBeatRequest(group="default", remote_id="n0", local_id="n1", leader_id="n1", term=3)
        self.assertEqual(self.leader.ask(beat, native=False).code, ResponseCode.SUCCESS)
        first = push(0, type=PushType.TRUNCATE)
        self.assertEqual(self.leader.ask(first, native=False).code, ResponseCode.SUCCESS)
        self.writes: list[EntryBatch] = []
        write = self.rig.store.append_entries

        def watched(entries: EntryBatch) -> None:
            self.writes.append(entries)
            write(entries)

        self.patch(self.rig.store, "append_entries", watched)

    def pushed(self, *indexes: int) -> list[tuple[int, int, int]]:
        """Code, index and count of the answers to what is pushed in one read."""
        self.leader.send(*[push(index) for index in indexes], native=False)
        return [(int(answer.code), answer.index, answer.count) for answer in self.leader.answers()]

    def test_merged_pushes_are_one_write(self) -> None:
        """Ten frames in one read are one write, and ten answers in their order."""
        self.assertEqual(self.pushed(*range(1, 11)), [(200, index, 1) for index in range(1, 11)])
        self.assertEqual([(batch.first_index, batch.count) for batch in self.writes], [(1, 10)])
        self.assertEqual(self.rig.store.ledger_end_index, 10)

    def test_the_last_commit_counts(self) -> None:
        """The commit of the last of them counts."""
        self.pushed(*range(1, 11))
        self.assertEqual(self.rig.node.status().member.committed_index, 9)

    def test_a_misfit_refuses_all_merged_pushes(self) -> None:
        """When one does not fit, none is written, and each is answered 406: the leader compares again."""
        self.leader.send(push(1), push(2, entries=entry(2, body=b"x")), push(3), native=False)
        answers = [(int(answer.code), answer.index) for answer in self.leader.answers()]
        self.assertEqual(answers, [(406, 1), (406, 2), (406, 3)])
        self.assertEqual(self.rig.store.ledger_end_index, 0)

    def test_repeated_and_new(self) -> None:
        """A push that comes again is answered by itself, and what is new after it is written."""
        self.assertEqual(self.pushed(1, 2), [(200, 1, 1), (200, 2, 1)])
        self.assertEqual(self.pushed(2, 3, 4), [(200, 2, 1), (200, 3, 1), (200, 4, 1)])
        self.assertEqual([(batch.first_index, batch.count) for batch in self.writes], [(1, 2), (3, 2)])

    def test_connection_is_lost(self) -> None:
        """Merged pushes that wait for an fsync are abandoned with their connection, and nothing is left."""
        rig = Rig(peers=PEERS, flush_disk_type="sync")
        rig.node.start()
        leader = rig.client()
        leader.ask(HeartBeatRequest(group="default", remote_id="n0", local_id="n1", leader_id="n1", term=3))
        leader.send(push(0, type=PushType.TRUNCATE), native=False)
        leader.answers()
        rig.thread.is_lazy = True
        leader.send(push(1), push(2), native=False)
        self.assertEqual(leader.answers(), [])
        self.assertEqual(rig.node.router.questions.unanswered, 1)
        leader.connection.abort("away")
        self.assertEqual(rig.node.router.questions.unanswered, 0)

    def test_a_stopping_member_answers_merged_pushes(self) -> None:
        """Merged pushes that the core still holds are answered, each."""
        rig = Rig(peers=PEERS, flush_disk_type="sync")
        rig.node.start()
        leader = rig.client()
        leader.ask(HeartBeatRequest(group="default", remote_id="n0", local_id="n1", leader_id="n1", term=3))
        leader.send(push(0, type=PushType.TRUNCATE), native=False)
        leader.answers()
        rig.thread.is_lazy = True
        leader.send(push(1), push(2), native=False)
        rig.node.router.stop()
        codes = [answer.code for answer in leader.answers()]
        self.assertEqual(codes, [ResponseCode.ILLEGAL_MEMBER_STATE] * 2)
