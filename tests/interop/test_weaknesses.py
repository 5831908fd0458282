# -*- test-case-name: tests.interop.test_weaknesses -*-
"""
The known weaknesses of Java DLedger on the wire, side by side: one stimulus, a Java member and one of ours.

Each test asserts both outcomes, so it also fails if Java does not have the weakness. The numbers are those of
docs/divergence.md. Weaknesses that need files or restarts are in L{tests.interop.test_weak_files}.
"""

from __future__ import annotations

from protocols.wire.codes import ResponseCode
from protocols.wire.ledger.codes import PushType, RequestCode, VoteResult
from protocols.wire.ledger.entry import bodies_of
from protocols.wire.ledger.messages import (
    AppendRequest,
    HeartBeatRequest,
    HeartBeatResponse,
    MetadataRequest,
    MetadataResponse,
    PullRequest,
    PushEntryRequest,
    Request,
    Response,
    VoteRequest,
)
from tests.interop.played import GROUP, JAVA, SELF, SideBySide, Stage, entries, entry
from tests.processes.asking import NoAnswer

#: Heartbeats as fast as ours, so that a test need not wait for Java's.
FAST_JAVA = {"heartBeatTimeIntervalMs": 200, "maxHeartBeatLeak": 30}


def compares(stage: Stage) -> list[int]:
    """Indexes of the COMPAREs that the leader on the stage has sent to C{n0}."""
    return [
        request.entries.first_index
        for peer_id, request in list(stage.cast.asked)
        if peer_id == "n0" and isinstance(request, PushEntryRequest)
        and request.type is PushType.COMPARE and request.entries is not None
    ]


class LeaderTests(SideBySide):
    """The real member leads; the played ones elect it and follow."""

    def test_w01_old_term_is_counted(self) -> None:
        """
        W1, figure 8: a majority holds an entry of term 2, the leader is of term 4, and the next leader has an
        entry of term 3 at that index. It replaces the entry that Java has committed.
        """

        def play(stage: Stage) -> tuple[int, ResponseCode]:
            stage.follow("n0", 3)
            stage.fill(entries((2,)), term=3)
            stage.cast.followers["n0"].records[0] = entries((2,))[0].records
            stage.hand_over(term=3)
            stage.wait(lambda: compares(stage), "a COMPARE, which shows that n0 holds the entry")
            stage.holds(lambda: stage.committed_index() < 0, java=20, ours=3)
            committed = stage.committed_index()
            stage.follow("n2", 5)
            other = entries((3,), name="other")[0]
            return committed, stage.push(PushType.TRUNCATE, other, leader_id="n2", term=5).code

        java, ours = self.play(play, java=FAST_JAVA, ours={"term_start_entry": False})
        self.assertEqual(java, (0, ResponseCode.SUCCESS))
        self.assertEqual(ours, (-1, ResponseCode.SUCCESS))

    def test_w02_uncommitted_entry_is_shown(self) -> None:
        """W2: the leader is asked for an entry that no follower has."""

        def play(stage: Stage) -> ResponseCode | bytes:
            stage.wait_leads()
            answer = stage.append(b"acknowledged")
            assert answer is not None and answer.code is ResponseCode.SUCCESS
            stage.cast.answer = stage.cast.elects_only
            with stage.asker() as asker:
                asker.send(AppendRequest(group=GROUP, remote_id=SELF, bodies=(b"of nobody else",)))
                stage.wait(lambda: stage.end_index() > answer.index, "the entry")
            shown = stage.get(answer.index + 1)
            assert shown is not None
            return shown.code if shown.entries is None else bodies_of(shown.entries)[0]

        self.assertEqual(self.play(play), (b"of nobody else", ResponseCode.INDEX_OUT_OF_RANGE))

    def test_w03_deposed_leader_answers(self) -> None:
        """W3: a leader that is cut off is asked for an entry, and for the next one."""

        def play(stage: Stage) -> tuple[ResponseCode, ResponseCode]:
            stage.wait_leads()
            answer = stage.append(b"acknowledged")
            assert answer is not None and answer.code is ResponseCode.SUCCESS
            # The others have elected a new leader by now, and appended after this entry.
            stage.cast.answer = stage.cast.silent
            known, unknown = stage.get(answer.index), stage.get(answer.index + 1)
            assert known is not None and unknown is not None
            return known.code, unknown.code

        java, ours = self.play(play)
        self.assertEqual(java, (ResponseCode.SUCCESS, ResponseCode.INDEX_OUT_OF_RANGE))
        self.assertEqual(ours, (ResponseCode.NOT_LEADER, ResponseCode.NOT_LEADER))

    def test_w12_back_off(self) -> None:
        """W12: a follower whose tail of 140 entries differs; the number of round trips to the common part."""
        common, end = 10, 150

        def play(stage: Stage) -> list[int]:
            stage.follow("n0", 3)
            stage.fill(entries((3,) * (end + 1)), term=3)
            mine = entries((3,) * common + (4,) * (end + 1 - common))
            stage.cast.followers["n0"].records = {batch.first_index: batch.records for batch in mine}
            stage.hand_over(term=3)
            follower = stage.cast.followers["n0"]
            stage.wait(lambda: follower.records.get(end) != mine[end].records, "replication", seconds=120)
            return compares(stage)

        java, ours = self.play(play)
        self.assertEqual(java, list(range(end, common - 2, -1)))
        self.assertLess(len(ours), 30)
        self.assertIn(common - 1, ours)

    def test_w15_no_time_out_behind_31_bits(self) -> None:
        """W15: an append without a majority at an index beyond 31 bits; Java's client waits 3 s."""
        high = (1 << 31) // 256 * 256

        def play(stage: Stage) -> ResponseCode | None:
            stage.follow("n0", 3)
            first = entry(high, 3, b"high", 0)
            # (Ours asks its leader before it begins anywhere but at 0.)
            stage.wait(lambda: stage.push(PushType.TRUNCATE, first, term=3).code is ResponseCode.SUCCESS,
                       "the first entry")
            stage.hand_over(term=3)
            stage.wait(lambda: compares(stage), "a COMPARE")
            assert stage.append(b"with a majority") is not None
            stage.cast.answer = stage.cast.elects_only
            answer = stage.append(b"without a majority", seconds=6 if stage.kind == JAVA else 20)
            return None if answer is None else answer.code

        self.assertEqual(self.play(play), (None, ResponseCode.WAIT_QUORUM_ACK_TIMEOUT))

    def test_w17_pending_when_leadership_ends(self) -> None:
        """W17: an append is pending when its leader learns of another one; Java's client waits 3 s."""

        def play(stage: Stage) -> ResponseCode | None:
            stage.wait_leads()
            stage.cast.answer = stage.cast.elects_only
            with stage.asker() as asker:
                pending = asker.send(AppendRequest(group=GROUP, remote_id=SELF, bodies=(b"pending",)))
                stage.wait(lambda: stage.end_index() >= 0, "the entry")
                stage.follow("n0", 50)
                try:
                    return asker.collect(pending, seconds=5 if stage.kind == JAVA else 20).code
                except NoAnswer:
                    return None

        self.assertEqual(self.play(play), (None, ResponseCode.TERM_CHANGED))

    def test_w19_higher_term_in_a_reply(self) -> None:
        """W19: one of two followers answers heartbeats with a higher term; it would stay outside for ever."""

        def play(stage: Stage) -> bool:
            def stuck(peer_id: str, request: Request) -> Response | None:
                if peer_id == "n2" and isinstance(request, HeartBeatRequest):
                    return HeartBeatResponse(code=ResponseCode.EXPIRED_TERM, term=99)
                return stage.cast.loyal(peer_id, request)

            stage.wait_leads()
            stage.cast.answer = stuck
            votes = stage.cast.seen(VoteRequest)
            return stage.holds(
                lambda: len(stage.cast.seen(VoteRequest)) == len(votes), java=3, ours=20
            )

        self.assertEqual(self.play(play, java=FAST_JAVA), (True, False))


class CandidateTests(SideBySide):
    """The real member asks for votes, or is asked for its own."""

    def test_w19_no_pre_vote(self) -> None:
        """W19: a member starts beside a healthy leader whose heartbeats do not reach it."""

        def play(stage: Stage) -> bool:
            def healthy(_peer_id: str, request: Request) -> Response | None:
                if isinstance(request, MetadataRequest):
                    return MetadataResponse(group=GROUP, peers=stage.peers, leader_id="n0")
                return stage.cast.loyal(_peer_id, request)

            stage.cast.answer = healthy
            stage.wait(lambda: stage.cast.asked, "a question")
            return stage.holds(lambda: not stage.cast.seen(VoteRequest), java=20, ours=3)

        # Java asks for votes before it reports its start; its leader would have been deposed at once.
        self.assertEqual(self.play(play), (False, True))


class FollowerTests(SideBySide):
    """The real member follows a played leader."""

    def test_w07_vote_beside_a_leader(self) -> None:
        """W7: the follower of a leader that it did not vote for is asked for its vote in that term."""

        def play(stage: Stage) -> VoteResult:
            stage.cast.answer = stage.cast.silent
            stage.follow("n0", 5)
            return stage.vote("n2", 5)

        java, ours = self.play(play)
        self.assertIs(java, VoteResult.ACCEPT)
        self.assertIsNot(ours, VoteResult.ACCEPT)

    def test_w08_commit_of_a_stranger(self) -> None:
        """W8: a COMMIT of a term and a leader that the follower does not know."""

        def play(stage: Stage) -> int:
            stage.follow("n0", 5)
            stage.fill(entries((5, 5, 5)), term=5)
            stage.commit(2, leader_id="n9", term=50)
            stage.holds(lambda: stage.committed_index() < 0, java=20, ours=1)
            return stage.committed_index()

        self.assertEqual(self.play(play), (2, -1))

    def test_w09_compare_of_any_term(self) -> None:
        """W9: COMPARE of an old term, and of a second leader of the term."""

        def play(stage: Stage) -> tuple[ResponseCode, ResponseCode]:
            stage.follow("n0", 5)
            batches = entries((5, 5))
            stage.fill(batches, term=5)
            old = stage.push(PushType.COMPARE, batches[1], leader_id="n2", term=3)
            second = stage.push(PushType.COMPARE, batches[1], leader_id="n2", term=5)
            return old.code, second.code

        java, ours = self.play(play)
        self.assertEqual(java, (ResponseCode.SUCCESS, ResponseCode.SUCCESS))
        self.assertEqual(ours, (ResponseCode.INCONSISTENT_TERM, ResponseCode.INCONSISTENT_LEADER))

    def test_w10_pushes_behind_a_gap(self) -> None:
        """W10: two pushes after a gap, the second one sent twice; each is answered or not."""

        def play(stage: Stage) -> list[ResponseCode | None]:
            batches = entries((5,) * 8)
            stage.follow("n0", 5)
            stage.fill(batches[:4], term=5)
            line = stage.line("n0")
            asked = [
                line.send(stage.pushing(PushType.APPEND, batches[index], leader_id="n0", term=5))
                for index in (6, 7, 7)
            ]
            codes: list[ResponseCode | None] = []
            for number, opaque in enumerate(asked):
                seconds = 6 if stage.kind == JAVA and number else 20
                try:
                    codes.append(line.collect(opaque, seconds=seconds).code)
                except NoAnswer:
                    codes.append(None)
            return codes

        java, ours = self.play(play)
        # Java's threads race on which of the equal ones is the repeated one; the other is never answered.
        self.assertEqual(java[0], ResponseCode.INCONSISTENT_STATE)
        self.assertCountEqual(java[1:], [None, ResponseCode.REPEATED_PUSH])
        self.assertNotIn(None, ours)
        self.assertEqual(ours[1], ResponseCode.REPEATED_PUSH)

    def test_w13_other_positions(self) -> None:
        """W13: a leader with another file size sends an entry whose position does not fit the follower."""

        def play(stage: Stage) -> tuple[set[ResponseCode], bool]:
            stage.follow("n0", 5)
            stage.fill(entries((5, 5)), term=5)
            wrong = entry(2, 5, b"elsewhere", 4096)
            codes = {stage.push(PushType.APPEND, wrong, term=5).code for _attempt in range(5)}
            data = b"".join(path.read_bytes() for path in sorted((stage.ledger_path / "data").iterdir()))
            return codes, b"elsewhere" in data

        java, ours = self.play(play)
        self.assertEqual(java, ({ResponseCode.INCONSISTENT_STATE}, True))
        self.assertEqual(ours, ({ResponseCode.INCONSISTENT_STATE}, False))

    def test_w14_truncation_below_the_commit(self) -> None:
        """W14: a leader that wants to truncate committed entries."""

        def play(stage: Stage) -> tuple[ResponseCode, int, int]:
            batches = entries((5,) * 4)
            stage.follow("n0", 5)
            stage.fill(batches, term=5)
            stage.commit(3, term=5)
            stage.wait(lambda: stage.committed_index() == 3, "the commit")
            stage.follow("n2", 6)
            answer = stage.push(PushType.TRUNCATE, batches[1], leader_id="n2", term=6)
            return answer.code, stage.end_index(), stage.committed_index()

        java, ours = self.play(play)
        self.assertEqual(java, (ResponseCode.SUCCESS, 1, 3))
        self.assertEqual(ours, (ResponseCode.INCONSISTENT_STATE, 3, 3))

    def test_w20_answers_without_a_body(self) -> None:
        """W20: a PULL, a METADATA that is not JSON, an append without a body: Java's callers hang on them."""

        def play(stage: Stage) -> list[ResponseCode | str]:
            said: list[ResponseCode | str] = []
            pull = PullRequest(group=GROUP, remote_id=SELF, begin_index=0)
            empty = AppendRequest(group=GROUP, remote_id=SELF)
            for kind, body in (
                (RequestCode.PULL, None), (RequestCode.METADATA, b"{"), (RequestCode.APPEND, None)
            ):
                with stage.asker() as asker:
                    request = pull if kind is RequestCode.PULL else empty
                    opaque = asker.send(request) if body is None else asker.send_body(kind, body)
                    try:
                        said.append(asker.collect(opaque).code)
                    except NoAnswer as error:
                        said.append(str(error).partition(":")[0])
            return said

        stage_java, stage_ours = self.play(lambda stage: (stage.wait_leads(), play(stage))[1])
        self.assertEqual(stage_java, ["remoting error 1"] * 3)
        self.assertEqual(stage_ours, [
            ResponseCode.UNSUPPORTED, ResponseCode.UNEXPECTED_ARGUMENT, ResponseCode.UNEXPECTED_ARGUMENT
        ])
