# -*- test-case-name: tests.core.test_mute -*-
"""Answers of a member whose term and vote are not durable."""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from dledger.core.state.mute import mute_answer
from protocols.wire.codes import ResponseCode
from protocols.wire.ledger.codes import WIRE_FLAG_UNSURE_VOTE, WIRE_VERSION, VoteResult
from protocols.wire.ledger.messages import HeartBeatResponse, PushEntryResponse, VoteResponse


class MuteTests(SynchronousTestCase):
    """Nothing of a term or a vote that a crash would forget."""

    def test_a_mute_member_gives_no_vote(self) -> None:
        """A vote is not given; also not as that of a member that is unsure."""
        vote = VoteResponse(
            term=7, leader_id="n1", vote_result=VoteResult.ACCEPT, remote_id="n1", local_id="n0",
            wire_version=WIRE_VERSION | WIRE_FLAG_UNSURE_VOTE,
        )
        self.assertEqual(mute_answer(vote, 5), VoteResponse(
            code=ResponseCode.DISK_FULL, term=5, leader_id=None, vote_result=VoteResult.UNKNOWN,
            remote_id="n1", local_id="n0", wire_version=WIRE_VERSION,
        ))

    def test_a_mute_member_refuses_other_requests(self) -> None:
        """They are refused; a lower term stays as it is."""
        for response in (HeartBeatResponse(term=7, leader_id="n1"), PushEntryResponse(term=7, index=3)):
            for durable_term, term in ((5, 5), (9, 7)):
                answer = mute_answer(response, durable_term)
                self.assertEqual((answer.code, answer.term, answer.leader_id),
                                 (ResponseCode.DISK_FULL, term, None))
                self.assertIs(type(answer), type(response))
