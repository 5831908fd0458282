# -*- test-case-name: tests.core.test_witnesses -*-
"""
Whether the other members confirm that entries of this member may be set aside.

One member's word is no proof: whoever plays a leader that is down could say that its ledger begins far after
the end of ours, and every follower would set its whole ledger aside. So a member that holds entries
asks the other voters as well, each over its own connection to that voter's address. With the leader, a quorum
must confirm, and this member does not count.

A voter confirms that a ledger may begin at an index if its own begins after the entries in question, too, or
if it has committed the entries up to that index: then it holds those that its own ledger begins with, and the
index is none that somebody made up.

A voter that is known to be Java's cannot be asked, as it gives no indexes: it neither confirms nor is it
missed. In a group whose other voters are all Java's, the leader's word alone counts. The same holds for a
voter of our list that says of itself that it was removed: this member was away, and its list is an old one.

Source: ours.
"""

from __future__ import annotations

import attrs

from dledger.core.state.member_state import MemberState
from protocols.wire.codes import ResponseCode
from protocols.wire.ledger.codes import WIRE_VERSION
from protocols.wire.ledger.memberships import REMOVED
from protocols.wire.ledger.messages import MetadataRequest, MetadataResponse, Response


@attrs.frozen
class VoterExtent:
    """What a voter said of its ledger: both only grow. @ivar committed_index: -1 for none."""

    begin_index: int
    committed_index: int


@attrs.define
class BeginWitnesses:
    """
    The last answer of each voter in this term, and the questions under way.

    Invariant: at most one question is under way to each voter.
    """

    member: MemberState
    _term: int = -1
    _said: dict[str, VoterExtent] = attrs.Factory(dict)
    _removed: set[str] = attrs.Factory(set)
    _asked: dict[int, str] = attrs.Factory(dict)

    def confirm(self, *, lacks_index: int, begin_index: int) -> bool:
        """
        Whether a quorum confirms it.

        @param lacks_index: the first entry that this member does not have, and would not get.
        @param begin_index: where the leader's ledger begins, and that of this member would.
        """
        member = self.member
        self._forget_older_terms()
        leader_id = member.leader_id
        confirming = {
            voter_id for voter_id, said in self._said.items()
            if said.begin_index > lacks_index or said.committed_index >= begin_index
        }
        silent = {voter_id for voter_id in member.voter_ids if member.peers.is_java(voter_id)}
        counted = confirming | silent | self._removed
        return leader_id is not None and member.membership.is_quorum(counted | {leader_id})

    @property
    def unheard(self) -> list[str]:
        """The voters that should say something, and have not said it in this term."""
        self._forget_older_terms()
        return [voter_id for voter_id in self._voters() if voter_id not in self._said]

    def ask(self) -> None:
        """Ask every other voter but the leader, unless a question to it is under way."""
        self._forget_older_terms()
        member = self.member
        for voter_id in self._voters():
            if voter_id not in self._asked.values():
                request = MetadataRequest(
                    group=member.config.group, remote_id=voter_id, local_id=member.self_id,
                    wire_version=WIRE_VERSION,
                )
                self._asked[member.out.send(voter_id, request, self)] = voter_id

    def on_response(self, peer_id: str, request_id: int, response: Response) -> None:
        """A voter answered; numbers that make no sense say nothing."""
        if self._asked.pop(request_id, None) != peer_id:
            return
        if isinstance(response, MetadataResponse) and response.code is ResponseCode.SUCCESS and (
            response.begin_index >= 0 and -1 <= response.committed_index <= response.end_index
        ):
            self._said[peer_id] = VoterExtent(response.begin_index, response.committed_index)
            if response.health.partition(":")[0] == REMOVED:
                self._removed.add(peer_id)

    def on_request_failed(self, peer_id: str, request_id: int, reason: str) -> None:
        """No answer; the next TRUNCATE asks again."""
        self._asked.pop(request_id, None)

    def _voters(self) -> list[str]:
        member = self.member
        return [
            voter_id for voter_id in member.voter_ids
            if voter_id != member.leader_id and not member.peers.is_java(voter_id)
        ]

    def _forget_older_terms(self) -> None:
        if self._term != self.member.term:
            self._term = self.member.term
            self._said.clear()
            self._removed.clear()
            self._asked.clear()
