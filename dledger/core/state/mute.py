# -*- test-case-name: tests.core.test_mute -*-
"""
What a member answers while its term and its vote are not durable, for want of room on its disk.

Rule: an answer says nothing of them, so that a crash, which forgets them, contradicts nothing that was said.
"""

from __future__ import annotations

import attrs

from protocols.wire.codes import ResponseCode
from protocols.wire.ledger.codes import WIRE_VERSION, VoteResult
from protocols.wire.ledger.messages import Response, VoteResponse


def mute_answer(response: Response, durable_term: int) -> Response:
    """
    The refusal that goes out in place of an answer.

    @param durable_term: the last term on stable storage, as far as it is known.
    """
    term = min(response.term, durable_term)
    if isinstance(response, VoteResponse):
        # (Without the flag of an unsure member: that vote can count, too.)
        return attrs.evolve(
            response, code=ResponseCode.DISK_FULL, term=term, vote_result=VoteResult.UNKNOWN,
            wire_version=WIRE_VERSION, leader_id=None,
        )
    return attrs.evolve(response, code=ResponseCode.DISK_FULL, term=term, leader_id=None)
