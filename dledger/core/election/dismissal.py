# -*- test-case-name: tests.core.test_dismissal -*-
"""
A member that was removed while it could not be informed: how it learns of that.

No leader pushes to a removed member, so its ledger never has the entry that removed it. It hears no leader,
and asks for votes that it cannot get. So a member without a leader asks a member of ours that refused it a
vote for its memberships, over its own connection. If the last committed one that it reports is later than its
own and does not name it, it is I{dismissed}: it is not a candidate any more, and its status says so. Nothing
is recorded. A later entry of its own ledger, or a later word of those that reported it, overrides that. One
of the two must know the id of the group, which is the id of both: the other may not have learned it in time.

Only a committed membership counts: a member that trusted one that is taken back might be the only one that
can lead.

Source: none, this is ours; docs/membership.md.
"""

from __future__ import annotations

import attrs

from dledger.core.state.member_state import MemberState
from protocols.wire.codes import ResponseCode
from protocols.wire.ledger.codes import WIRE_VERSION
from protocols.wire.ledger.memberships import decode_reported
from protocols.wire.ledger.messages import MetadataRequest, MetadataResponse, Response


@attrs.define
class Dismissal:
    """Invariant: a peer is asked once for a refusal, and at most once in a patience."""

    member: MemberState
    _asked_ms: int = -(1 << 40)

    def tick(self) -> None:
        """Time passed."""
        member, config = self.member, self.member.config
        refused_by = member.peers.refused_by
        if not refused_by:
            return
        if member.leader_id is not None:
            refused_by.clear()
            return
        patience_ms = config.heart_beat_time_interval_ms * config.max_heart_beat_leak
        if member.out.now_ms - self._asked_ms < patience_ms:
            return
        self._asked_ms = member.out.now_ms
        for peer_id in sorted(refused_by):
            if member.peers.is_ours(peer_id) and member.group_name.id:
                member.out.send(peer_id, MetadataRequest(
                    group=config.group, remote_id=peer_id, local_id=member.self_id, wire_version=WIRE_VERSION,
                ), self)
        refused_by.clear()

    def on_response(self, peer_id: str, request_id: int, response: Response) -> None:
        """A member reported its memberships."""
        member = self.member
        if not isinstance(response, MetadataResponse) or response.code is not ResponseCode.SUCCESS or (
            not response.configuration or response.group_id != member.group_name.id
        ):
            return
        if not (member.group_name.is_known or response.is_group_known):
            return  # (Each may have been given the id of a group that never came to be.)
        try:
            reported = decode_reported(response.configuration)
        except ValueError:
            return
        committed = [one for one in reported if one.index <= response.committed_index]
        for one in committed[-1:]:
            is_later = one.index > max(member.membership.index, member.dismissed_index)
            if is_later and member.self_id in {**one.members.voters, **one.members.learners}:
                member.dismissed_index = -1  # it was added again
            elif is_later:
                member.dismissed_index = one.index
                member.out.report("dismissed", index=one.index, reported_by=peer_id,
                                  voters=";".join(sorted(one.members.voters)))

    def on_request_failed(self, peer_id: str, request_id: int, reason: str) -> None:
        """It is asked again."""
