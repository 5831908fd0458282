# -*- test-case-name: tests.core.test_handler -*-
"""What members have said of their ledgers, put where a follower keeps it."""

from __future__ import annotations

from dledger.core.replication.handler import EntryHandler
from dledger.core.replication.proofs import LeaderBegins
from dledger.core.replication.witnesses import VoterExtent
from protocols.wire.ledger.bounds import INDEX_MAX


def proved(handler: EntryHandler, begin_index: int) -> None:
    """The leader of the present term has said that its ledger begins there, and the others that theirs do."""
    member = handler.member
    assert member.leader_id is not None
    handler._proof._said = LeaderBegins(
        leader_id=member.leader_id, term=member.term, lowest=begin_index, highest=begin_index,
        end_index=INDEX_MAX,
    )
    witnesses = handler._witnesses
    witnesses._term = member.term
    witnesses._said = dict.fromkeys(member.voter_ids, VoterExtent(begin_index, begin_index))
