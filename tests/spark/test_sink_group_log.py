# -*- test-case-name: tests.spark.test_sink_group_log -*-
"""The sink's appends and reads, at members that say what they are told to say."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from twisted.trial.unittest import SynchronousTestCase

from dledger.spark.sink.batch_append import NoOutcomeError, SinkError
from dledger.spark.sink.group_log import GroupLog
from dledger.spark.sink.markers import MarkerKind, SinkMarker, encode_marker
from dledger.spark.sink.options import SinkOptions
from protocols.wire.codes import ResponseCode
from protocols.wire.ledger.entry import pack_record
from protocols.wire.ledger.messages import AppendRequest, AppendResponse, Request, Response
from tests.spark.members import Cut, FakeMember, records_of

MARKER = SinkMarker(kind=MarkerKind.ROWS, sink="s", batch=1, run="0" * 16, count=3)


class Leader(FakeMember):
    """
    Takes appends.

    @ivar asked: the bodies of each request.
    @ivar answers: what it answers to appends, one after the other; then it takes them.
    """

    def __init__(self, member_id: str = "n0", records: list[bytes] | None = None) -> None:
        super().__init__(member_id, records or records_of([b""]))
        self.role = "leader"
        self.asked: list[tuple[bytes, ...]] = []
        self.answers: list[Response | bytes | Cut | None] = []
        self.answer = self.answer_of_leader

    def answer_of_leader(self, request: Request) -> Response | bytes | Cut | None:
        """The next answer."""
        if not isinstance(request, AppendRequest):
            return self.sound_answer(request)
        self.asked.append(request.bodies)
        if self.answers:
            return self.answers.pop(0)
        return AppendResponse(index=40, pos=0, count=len(request.bodies))


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
        self.assertEqual([log.append([b"a", b"b"]), log.append([b"c"])], [40, 40])
        self.assertEqual(leader.asked, [(b"a", b"b"), (b"c",)])

    def test_leader_is_found(self) -> None:
        """A member that does not lead names the others."""
        leader, follower = Leader("n1"), FakeMember("n0", records_of([b""]))
        follower.peers = {"n0": follower.address, "n1": leader.address}
        self.addCleanup(leader.close)
        self.assertEqual(self.make(follower).append([b"a"]), 40)

    def test_passing_refusals(self) -> None:
        """The same bodies are sent again: the leader is full, or leads no more."""
        leader = Leader()
        leader.answers = [AppendResponse(code=code, count=1) for code in (
            ResponseCode.LEADER_PENDING_FULL, ResponseCode.NOT_LEADER, ResponseCode.LEADER_TRANSFERRING)]
        self.assertEqual(self.make(leader).append([b"a"]), 40)
        self.assertEqual(leader.asked, [(b"a",)] * 4)

    def test_deadline(self) -> None:
        """Refusals end, and so does the search for a leader."""
        leader = Leader()
        leader.answers = [AppendResponse(code=ResponseCode.LEADER_PENDING_FULL)] * 1000
        self.refused(lambda: self.make(leader, timeout_ms=50).append([b"a"]),
                     "has taken no rows for 50 ms (timeoutMs): n0 refuses: LEADER_PENDING_FULL")
        follower = FakeMember("n0", records_of([b""]))
        self.refused(lambda: self.make(follower, timeout_ms=50).append([b"a"]),
                     "no leader found (n0: it is follower, without a leader)")
        follower.close()
        self.refused(lambda: self.make(follower, timeout_ms=50).append([b"a"]), "n0: no connection to")

    def test_final_refusals(self) -> None:
        """They end the batch, with the reason."""
        for code, said in (
            (ResponseCode.UNEXPECTED_ARGUMENT, "the longest body of the request has 3 bytes"),
            (ResponseCode.FORBIDDEN, "the certificate has no role that may append"),
            (ResponseCode.UNSUPPORTED, "a broker alone appends to its log"),
            (ResponseCode.DISK_FULL, "refuses rows: DISK_FULL"),
        ):
            leader = Leader()
            leader.answers = [AppendResponse(code=code)]
            self.refused(partial(self.make(leader).append, [b"a", b"abc"]), said)

    def test_no_outcome(self) -> None:
        """A connection that ends, half an answer, codes that say nothing of the log, and a wrong count."""
        for answer in (
            None, Cut(b"\xd1\x01"), b"x" * 100, AppendResponse(code=ResponseCode.WAIT_QUORUM_ACK_TIMEOUT),
            AppendResponse(code=ResponseCode.TERM_CHANGED), AppendResponse(index=40, pos=0, count=1),
        ):
            leader = Leader()
            leader.answers = [answer]
            log = self.make(leader)
            self.assertRaises(NoOutcomeError, log.append, [b"a", b"b"])
            self.assertEqual(leader.asked, [(b"a", b"b")])
            self.assertEqual(log.append([b"c"]), 40)

    def test_reads(self) -> None:
        """Markers with their indexes; rows behind one, up to the count, the end, or another term."""
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
