# -*- test-case-name: tests.spark.test_sink_group_log -*-
"""The sink's appends and reads, at members with given answers."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import attrs
from twisted.trial.unittest import SynchronousTestCase

from dledger.spark.sink import group_log
from dledger.spark.sink.batch_append import BatchAppend, SinkBatch, SinkPatience
from dledger.spark.sink.group_log import GroupLog
from dledger.spark.sink.markers import MarkerKind, SinkMarker, encode_marker
from dledger.spark.sink.options import SinkOptions
from dledger.spark.sink.sink_log import (
    BatchRows,
    OutOfStepError,
    PlacedBodies,
    SinkError,
    digest_of_all,
    producer_of,
)
from protocols.wire.codes import ResponseCode
from protocols.wire.ledger.entry import pack_record
from protocols.wire.ledger.messages import AppendOnceRequest, AppendOnceResponse, Request, Response
from tests.spark.members import Cut, FakeMember, records_of

MARKER = SinkMarker(kind=MarkerKind.ROWS, sink="s", batch=1, run="0" * 16, count=3)


class Leader(FakeMember):
    """
    Takes appends.

    @ivar producer: whose appends it takes.
    @ivar asked: number and bodies of each request.
    @ivar answers: its answers to appends, one after the other; then it takes them.
    """

    def __init__(self, member_id: str = "n0", records: list[bytes] | None = None) -> None:
        super().__init__(member_id, records or records_of([b""]))
        self.role, self.producer = "leader", "p"
        self.asked: list[tuple[int, tuple[bytes, ...]]] = []
        self.answers: list[Response | bytes | Cut | None] = []
        self.answer = self.answer_of_leader

    def answer_of_leader(self, request: Request) -> Response | bytes | Cut | None:
        """The next answer."""
        if not isinstance(request, AppendOnceRequest):
            return self.sound_answer(request)
        assert request.producer == self.producer
        self.asked.append((request.sequence, request.bodies))
        if self.answers:
            return self.answers.pop(0)
        return AppendOnceResponse(index=40, pos=0, count=len(request.bodies))


class GroupLogTests(SynchronousTestCase):
    """Members and a log."""

    def make(self, *members: FakeMember, **options: object) -> GroupLog:
        """The log of some members."""
        for member in members:
            self.addCleanup(member.close)
        bootstrap = ";".join(f"{member.member_id}-{member.address}" for member in members)
        given: dict[str, Any] = {"bootstrap": bootstrap, "timeout_ms": 20_000, **options}
        log = GroupLog(SinkOptions(**given))
        self.addCleanup(log.close)
        return log

    def refused(self, run: Callable[[], object], said: str) -> None:
        """The append ends with a sentence, and nothing of it is in the log."""
        error = self.assertRaises(SinkError, run)
        self.assertIn(said, str(error))

    def test_append(self) -> None:
        """One request; the index is that of the first body."""
        leader = Leader()
        log = self.make(leader)
        self.assertEqual(log.append("p", 0, [b"a", b"b"]), PlacedBodies(index=40, count=2))
        leader.answers = [AppendOnceResponse(index=30, pos=0, count=1, is_repeated=True)]
        self.assertEqual(log.append("p", 2, [b"c", b"d"]), PlacedBodies(index=30, count=1, is_repeated=True))
        self.assertEqual(leader.asked, [(0, (b"a", b"b")), (2, (b"c", b"d"))])

    def test_leader_is_found(self) -> None:
        """A member that does not lead names the others."""
        leader, follower = Leader("n1"), FakeMember("n0", records_of([b""]))
        follower.peers = {"n0": follower.address, "n1": leader.address}
        self.addCleanup(leader.close)
        self.assertEqual(self.make(follower).append("p", 0, [b"a"]).index, 40)

    def test_last_sequence(self) -> None:
        """A number that nobody has asks for the last one."""
        leader = Leader()
        leader.answers = [
            AppendOnceResponse(code=ResponseCode.LEADER_NOT_READY),
            AppendOnceResponse(code=ResponseCode.SEQUENCE_GAP, last_sequence=17),
            AppendOnceResponse(code=ResponseCode.UNKNOWN_PRODUCER),
        ]
        log = self.make(leader)
        self.assertEqual([log.last_sequence("p"), log.last_sequence("p")], [17, -1])
        self.assertEqual({sequence for sequence, _ in leader.asked}, {2**62})
        self.refused(lambda: log.last_sequence("p"), "does not report what it knows of 'p'")

    def test_out_of_step(self) -> None:
        """The log does not have the entry before."""
        for code in (ResponseCode.SEQUENCE_GAP, ResponseCode.UNKNOWN_PRODUCER,
                     ResponseCode.SEQUENCE_FORGOTTEN):
            leader = Leader()
            leader.answers = [AppendOnceResponse(code=code, last_sequence=3)]
            error = self.assertRaises(OutOfStepError, self.make(leader).append, "p", 5, [b"a"])
            self.assertIn(f"{code.name} for number 5 of 'p', the last one is 3", str(error))

    def test_passing_refusals(self) -> None:
        """The same bodies are sent again: the leader is full, or leads no more. None of it was written."""
        leader = Leader()
        leader.answers = [AppendOnceResponse(code=code, count=1) for code in (
            ResponseCode.LEADER_PENDING_FULL, ResponseCode.NOT_LEADER, ResponseCode.LEADER_NOT_READY,
            ResponseCode.LEADER_TRANSFERRING)]
        self.assertEqual(self.make(leader).append("p", 7, [b"a"]), PlacedBodies(index=40, count=1))
        self.assertEqual(leader.asked, [(7, (b"a",))] * 5)

    def test_deadline(self) -> None:
        """Refusals end, and so does the search for a leader."""
        leader = Leader()
        leader.answers = [AppendOnceResponse(code=ResponseCode.LEADER_PENDING_FULL)] * 1000
        self.refused(lambda: self.make(leader, timeout_ms=50).append("p", 0, [b"a"]),
                     "has taken no rows for 50 ms (timeoutMs): n0 refuses: LEADER_PENDING_FULL")
        follower = FakeMember("n0", records_of([b""]))
        self.refused(lambda: self.make(follower, timeout_ms=50).append("p", 0, [b"a"]),
                     "no leader found (n0: it is follower, without a leader)")
        follower.close()
        self.refused(lambda: self.make(follower, timeout_ms=50).append("p", 0, [b"a"]),
                     "n0: no connection to")

    def test_final_refusals(self) -> None:
        """They end the batch, with the reason."""
        for code, said in (
            (ResponseCode.UNEXPECTED_ARGUMENT, "the longest body of the request has 3 bytes"),
            (ResponseCode.FORBIDDEN, "the certificate has no role that may append"),
            (ResponseCode.UNSUPPORTED, "a broker alone appends to its log"),
            (ResponseCode.DISK_FULL, "refuses rows: DISK_FULL"),
        ):
            leader = Leader()
            leader.answers = [AppendOnceResponse(code=code)]
            self.refused(partial(self.make(leader).append, "p", 0, [b"a", b"abc"]), said)

    def test_no_outcome(self) -> None:
        """
        A connection that ends, half an answer, codes that say nothing of the log, and a wrong count: the same
        bodies are sent again under the same number, and the outcome says that there was such an answer.
        """
        for answer in (
            None, Cut(b"\xd1\x01"), b"x" * 100, AppendOnceResponse(code=ResponseCode.WAIT_QUORUM_ACK_TIMEOUT),
            AppendOnceResponse(code=ResponseCode.TERM_CHANGED), AppendOnceResponse(index=40, pos=0, count=3),
            AppendOnceResponse(index=40, pos=0, count=0), AppendOnceResponse(index=-1, pos=0, count=2),
        ):
            leader = Leader()
            leader.answers = [answer, AppendOnceResponse(code=ResponseCode.NOT_LEADER)]
            log = self.make(leader)
            placed = PlacedBodies(index=40, count=2, was_unknown=True)
            self.assertEqual(log.append("p", 3, [b"a", b"b"]), placed)
            self.assertEqual(leader.asked, [(3, (b"a", b"b"))] * 3)
            self.assertFalse(log.append("p", 5, [b"c"]).was_unknown)

    def test_no_outcome_for_good(self) -> None:
        """The error says that rows may be there."""
        leader = Leader()
        leader.answers = [AppendOnceResponse(code=ResponseCode.TERM_CHANGED)] * 1000
        self.refused(lambda: self.make(leader, timeout_ms=50).append("p", 0, [b"a"]),
                     "n0 answered TERM_CHANGED, count=1; rows may be in the log. The batch is continued")

    def test_bodies_of_others(self) -> None:
        """
        The first batch of a new sink asks for the newest bytes alone, and a later one for the last entry of
        the sink alone.
        """
        self.patch(group_log, "NEWEST_BYTES", 100)
        done = SinkMarker(kind=MarkerKind.DONE, sink="s", batch=1, run="0" * 16, count=3)
        records = records_of([b"x"] * 5000 + [encode_marker(done)] + [b"x"] * 5000)
        newest = len(records)
        for batch, answers, pulls in (
            (0, [AppendOnceResponse(code=ResponseCode.UNKNOWN_PRODUCER)], [newest - 1, newest - 3]),
            (2, [AppendOnceResponse(code=ResponseCode.SEQUENCE_GAP, last_sequence=4),
                 AppendOnceResponse(index=5000, pos=0, count=1, is_repeated=True)], [5000]),
        ):
            leader = Leader(records=records)
            leader.answers = list(answers)
            leader.producer = producer_of("s")
            rows = BatchRows(count=2, digest=digest_of_all((b"a", b"b")), all=lambda: iter((b"a", b"b")))
            outcome = BatchAppend(
                self.make(leader), rows, SinkBatch(sink="s", number=batch), new_run=lambda: "1" * 16,
                frame_bytes=100, patience=SinkPatience(sleep=lambda _: None, settle_s=0.0),
            ).run()
            self.assertEqual((outcome.appended, leader.pulls), (2, pulls), batch)
            self.assertEqual(leader.asked[-1][1][1:3], (b"a", b"b"))

    def test_reads(self) -> None:
        """Markers with their indexes; rows after one, up to the count, the end, or another term."""
        records, pos, chain = [], 0, 0
        for index, (term, body) in enumerate((
            (1, b""), (1, encode_marker(MARKER)), (1, b"a"), (1, b""), (2, b""), (2, encode_marker(MARKER)),
            (2, b"c"),
        )):
            record, chain = pack_record(body, index=index, term=term, pos=pos, previous_chain_crc=chain)
            records.append(record)
            pos += len(record)
        log = self.make(Leader(records=records))
        self.assertEqual(log.first_index(), 0)
        self.assertEqual(log.markers(0, 7), [(1, MARKER), (5, MARKER)])
        self.assertEqual(log.markers(2, 5), [])
        self.assertEqual(log.rows_behind(1, 3, 7), [b"a", b""])
        self.assertEqual(log.rows_behind(1, 1, 7), [b"a"])
        self.assertEqual(log.rows_behind(5, 3, 7), [b"c"])
        self.assertEqual(log.rows_behind(1, 3, 3), [b"a"])

    def test_newest_markers(self) -> None:
        """Those in the newest bytes; where older entries are longer, the look ends among them."""
        marker = encode_marker(MARKER)
        log = self.make(Leader(records=records_of([b"x" * 5000, marker, *[b"x"] * 20, marker, b"y"])))
        self.assertEqual(log.newest_markers(), [(22, MARKER), (1, MARKER)])
        log._log._options = attrs.evolve(log._log._options, fetch_bytes=100)  # an entry in each answer
        self.assertEqual(log.newest_markers(), [(22, MARKER), (1, MARKER)])
        for newest, found in ((1, []), (1000, [(22, MARKER)]), (2000, [(22, MARKER)])):
            self.patch(group_log, "NEWEST_BYTES", newest)
            self.assertEqual(log.newest_markers(), found, newest)
        self.assertEqual(log.markers(1, 2), [(1, MARKER)])
        self.assertEqual(self.make(Leader(records=records_of([b""]))).newest_markers(), [])
