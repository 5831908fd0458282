# -*- test-case-name: tests.spark.test_sink_group_log -*-
"""The sink's appends and reads, at members with given answers."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from twisted.trial.unittest import SynchronousTestCase

from dledger.spark.sink.batch_append import BatchAppend, SinkBatch, SinkPatience
from dledger.spark.sink.group_log import GroupLog
from dledger.spark.sink.markers import MarkerKind, SinkMarker, encode_marker
from dledger.spark.sink.options import SinkOptions
from dledger.spark.sink.sink_log import (
    FORGOTTEN,
    BatchRows,
    OutOfStepError,
    PlacedBodies,
    SinkError,
    digest_of_all,
    producer_of,
)
from protocols.wire.codes import ResponseCode
from protocols.wire.ledger.entry import ENTRY_HEADER
from protocols.wire.ledger.messages import AppendOnceRequest, AppendOnceResponse, Request, Response
from protocols.wire.ledger.own.own_entries import HIDDEN, TERM_START_CHANNEL
from tests.spark.members import Cut, FakeMember, records_of

MARKER = SinkMarker(kind=MarkerKind.PIECE, sink="s", batch=1, run="0" * 16, count=3)


class Leader(FakeMember):
    """
    Takes appends.

    @ivar producer: whose appends it takes.
    @ivar asked: number and bodies of each request.
    @ivar hidden: numbers of the hidden bodies of the last one.
    @ivar answers: its answers to appends, one after the other; then it takes them.
    """

    def __init__(self, member_id: str = "n0", records: list[bytes] | None = None) -> None:
        super().__init__(member_id, records or records_of([b""]))
        self.role, self.producer = "leader", "p"
        self.asked: list[tuple[int, tuple[bytes, ...]]] = []
        self.hidden: tuple[int, ...] = ()
        self.answers: list[Response | bytes | Cut | None] = []
        self.answer = self.answer_of_leader

    def answer_of_leader(self, request: Request) -> Response | bytes | Cut | None:
        """The next answer."""
        if not isinstance(request, AppendOnceRequest):
            return self.sound_answer(request)
        assert request.producer == self.producer
        self.asked.append((request.sequence, request.bodies))
        self.hidden = request.hidden
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
        """One request; the index is that of the first body, or of another one that has its number."""
        leader = Leader()
        log = self.make(leader)
        self.assertEqual(log.append("p", 0, [b"a", b"b"], (0, 1)), PlacedBodies(index=40, count=2))
        self.assertEqual(leader.hidden, (0, 1))
        leader.answers = [
            AppendOnceResponse(index=30, pos=0, count=1, is_repeated=True),
            AppendOnceResponse(code=ResponseCode.SEQUENCE_TAKEN, index=30, count=2, last_sequence=9),
        ]
        self.assertEqual(log.append("p", 2, [b"c", b"d"], ()), PlacedBodies(index=30, count=1))
        self.assertEqual(log.append("p", 2, [b"c", b"d"], ()), PlacedBodies(index=30, count=1, is_other=True))
        self.assertEqual(leader.asked, [(0, (b"a", b"b")), (2, (b"c", b"d")), (2, (b"c", b"d"))])

    def test_leader_is_found(self) -> None:
        """A member that does not lead names the others."""
        leader, follower = Leader("n1"), FakeMember("n0", records_of([b""]))
        follower.peers = {"n0": follower.address, "n1": leader.address}
        self.addCleanup(leader.close)
        self.assertEqual(self.make(follower).append("p", 0, [b"a"], ()).index, 40)

    def test_last_sequence(self) -> None:
        """A number that nobody has asks for the last one."""
        leader = Leader()
        leader.answers = [
            AppendOnceResponse(code=ResponseCode.LEADER_NOT_READY),
            AppendOnceResponse(code=ResponseCode.SEQUENCE_GAP, last_sequence=17),
            AppendOnceResponse(code=ResponseCode.UNKNOWN_PRODUCER),
            AppendOnceResponse(code=ResponseCode.PRODUCER_FORGOTTEN),
        ]
        log = self.make(leader)
        self.assertEqual([log.last_sequence("p") for _ in range(3)], [17, -1, FORGOTTEN])
        self.assertEqual({sequence for sequence, _ in leader.asked}, {2**62})
        self.refused(lambda: log.last_sequence("p"), "does not report what it knows of 'p'")

    def test_out_of_step(self) -> None:
        """The log does not have the entry before, or not any more the one with this number."""
        for code in (ResponseCode.SEQUENCE_GAP, ResponseCode.UNKNOWN_PRODUCER,
                     ResponseCode.PRODUCER_FORGOTTEN, ResponseCode.SEQUENCE_FORGOTTEN):
            leader = Leader()
            leader.answers = [AppendOnceResponse(code=code, last_sequence=3)]
            error = self.assertRaises(OutOfStepError, self.make(leader).append, "p", 5, [b"a"], ())
            self.assertIn(f"{code.name} for number 5 of 'p', the last one is 3", str(error))
            self.assertEqual(error.is_expired, code is ResponseCode.SEQUENCE_FORGOTTEN)

    def test_passing_refusals(self) -> None:
        """The same bodies are sent again: the leader is full, or leads no more. None of it was written."""
        leader = Leader()
        leader.answers = [AppendOnceResponse(code=code, count=1) for code in (
            ResponseCode.LEADER_PENDING_FULL, ResponseCode.NOT_LEADER, ResponseCode.LEADER_NOT_READY,
            ResponseCode.LEADER_TRANSFERRING)]
        self.assertEqual(self.make(leader).append("p", 7, [b"a"], ()), PlacedBodies(index=40, count=1))
        self.assertEqual(leader.asked, [(7, (b"a",))] * 5)

    def test_deadline(self) -> None:
        """Refusals end, and so does the search for a leader."""
        leader = Leader()
        leader.answers = [AppendOnceResponse(code=ResponseCode.LEADER_PENDING_FULL)] * 1000
        self.refused(lambda: self.make(leader, timeout_ms=50).append("p", 0, [b"a"], ()),
                     "has taken no rows for 50 ms (timeoutMs): n0 refuses: LEADER_PENDING_FULL")
        follower = FakeMember("n0", records_of([b""]))
        self.refused(lambda: self.make(follower, timeout_ms=50).append("p", 0, [b"a"], ()),
                     "no leader found (n0: it is follower, without a leader)")
        follower.close()
        self.refused(lambda: self.make(follower, timeout_ms=50).append("p", 0, [b"a"], ()),
                     "n0: no connection to")

    def test_unknown_group(self) -> None:
        """It ends at once if no member has the group; a member that does not answer may have it."""
        other, away = FakeMember("n0", [], group="other"), FakeMember("n1", [])
        away.close()
        self.refused(lambda: self.make(other, timeout_ms=2**31).append("p", 0, [b"a"], ()),
                     "group 'default' takes no rows: no leader found (n0: it refuses: UNKNOWN_GROUP)")
        self.refused(lambda: self.make(other, away, timeout_ms=50).append("p", 0, [b"a"], ()),
                     "has taken no rows for 50 ms")

    def test_final_refusals(self) -> None:
        """They end the batch, with the reason."""
        for code, said in (
            (ResponseCode.UNEXPECTED_ARGUMENT, "the longest body of the request has 3 bytes"),
            (ResponseCode.FORBIDDEN, "the certificate has no role that may append"),
            (ResponseCode.UNSUPPORTED, "a broker alone appends to its log"),
            (ResponseCode.PRODUCERS_FULL, "takes no new sink until it forgets some (producers_expire_hours)"),
            (ResponseCode.DISK_FULL, "refuses rows: DISK_FULL"),
        ):
            leader = Leader()
            leader.answers = [AppendOnceResponse(code=code)]
            self.refused(partial(self.make(leader).append, "p", 0, [b"a", b"abc"], ()), said)

    def test_no_outcome(self) -> None:
        """
        A connection that ends, half an answer, codes that say nothing of the log, and a wrong count: the same
        bodies are sent again under the same number.
        """
        for answer in (
            None, Cut(b"\xd1\x01"), b"x" * 100, AppendOnceResponse(code=ResponseCode.WAIT_QUORUM_ACK_TIMEOUT),
            AppendOnceResponse(code=ResponseCode.TERM_CHANGED), AppendOnceResponse(index=40, pos=0, count=3),
            AppendOnceResponse(index=40, pos=0, count=0), AppendOnceResponse(index=-1, pos=0, count=2),
            AppendOnceResponse(code=ResponseCode.SEQUENCE_TAKEN),
        ):
            leader = Leader()
            leader.answers = [answer, AppendOnceResponse(code=ResponseCode.NOT_LEADER)]
            log = self.make(leader)
            self.assertEqual(log.append("p", 3, [b"a", b"b"], ()), PlacedBodies(index=40, count=2))
            self.assertEqual(leader.asked, [(3, (b"a", b"b"))] * 3)

    def test_no_outcome_for_good(self) -> None:
        """The error says that rows may be there."""
        leader = Leader()
        leader.answers = [AppendOnceResponse(code=ResponseCode.TERM_CHANGED)] * 1000
        self.refused(lambda: self.make(leader, timeout_ms=50).append("p", 0, [b"a"], ()),
                     "n0 answered TERM_CHANGED, count=1; rows may be in the log. The batch is continued")

    def test_bodies_of_others(self) -> None:
        """The first batch of a new sink reads no entry, and a later one the last entry of the sink alone."""
        done = SinkMarker(kind=MarkerKind.DONE, sink="s", batch=1, run="0" * 16, count=3)
        channels = [0] * 5000 + [1 << 8 | HIDDEN] + [0] * 5000
        records = records_of([b"x"] * 5000 + [encode_marker(done)] + [b"x"] * 5000, channels)
        for batch, answers, pulls in (
            (0, [AppendOnceResponse(code=ResponseCode.UNKNOWN_PRODUCER)], []),
            (2, [AppendOnceResponse(code=ResponseCode.SEQUENCE_GAP, last_sequence=4),
                 AppendOnceResponse(code=ResponseCode.SEQUENCE_TAKEN, index=5000)], [5000]),
        ):
            leader = Leader(records=records)
            leader.answers = list(answers)
            leader.producer = producer_of("s")
            rows = BatchRows(count=2, digest=digest_of_all((b"a", b"b")), all=lambda: iter((b"a", b"b")))
            outcome = BatchAppend(
                self.make(leader), rows, SinkBatch(sink="s", number=batch), new_run=lambda: "1" * 16,
                frame_bytes=100, patience=SinkPatience(sleep=lambda _: None),
            ).run()
            self.assertEqual((outcome.appended, leader.pulls), (2, pulls), batch)
            self.assertEqual(leader.asked[-1][1][1:3], (b"a", b"b"))
            self.assertEqual(leader.hidden, (0, 3))

    def test_reads(self) -> None:
        """
        Markers with their indexes; rows after one, up to the count, the end, another term, or an entry of
        somebody else.
        """
        marker, mine, other = encode_marker(MARKER), 3 << 8, 4 << 8
        table = [
            (1, TERM_START_CHANNEL, b""), (1, mine | HIDDEN, marker), (1, mine | 1, b"a"), (1, mine | 2, b""),
            (2, mine | 3, b"later"), (2, mine | HIDDEN | 4, marker), (2, mine | 5, b"c"),
            (2, other | HIDDEN, marker), (2, other | 1, b"d"), (2, mine | 6, b"e"), (2, 0, b"f"),
        ]
        terms, channels, bodies = (list(column) for column in zip(*table, strict=True))
        records = records_of(bodies, channels, terms)
        # As a Java leader would leave it.
        records.append(ENTRY_HEADER.pack(1, 48, 11, 2, sum(map(len, records)), other | 2, 0, 0, 0))
        for options in ({}, {"frame_bytes": 1}):
            log = self.make(Leader(records=records), **options)
            self.assertEqual(log.first_index(), 0)
            self.assertEqual(log.markers(0, 11), [(1, MARKER), (5, MARKER), (7, MARKER)])
            self.assertEqual(log.markers(2, 5), [])
            self.assertEqual(log.rows_behind(1, 3, 11), [b"a", b""])
            self.assertEqual(log.rows_behind(1, 1, 11), [b"a"])
            self.assertEqual(log.rows_behind(5, 3, 11), [b"c"])
            self.assertEqual(log.rows_behind(7, 3, 11), [b"d"])
            self.assertEqual(log.rows_behind(1, 3, 3), [b"a"])
