# -*- test-case-name: tests.node.test_greeting -*-
"""
Whether a member that calls, or answers, belongs to this group. Every connection between members of ours
begins with METADATA; each side reports the id of its group and the ids of its members, and each side judges.

Two lists of members make two majorities, and members of two groups that share their names would cut each
other's logs: so one difference ends the connection, on both sides, with a sentence that says which is which.
When the members of the group have changed by its log, two lists may differ for a while: then the id of the
group decides alone. A member that was away may not know it yet: its list must be one that this log had, and
it takes the other side's word for a later one. A side that does not report (Java, an earlier version, a group
that has no id yet) is not judged. Then the directories of the two are judged, see
L{dledger.node.connections.lineages}.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Protocol

import attrs

from dledger.ledger.group_name import GroupName
from dledger.ledger.membership import Membership
from dledger.node.connections.lineages import OWN_RIVAL, Lineages
from protocols.wire.ledger.memberships import MemberLists, ToldMembership, encode_told
from protocols.wire.ledger.messages import MetadataRequest, MetadataResponse


class KnownMembers(Protocol):
    """The members of the group, as the core knows them at the moment."""

    @property
    def membership(self) -> Membership:
        """By the member's own log."""

    @property
    def introduced(self) -> Mapping[str, str]:
        """Id to C{host:port} of the members in later lists, as far as known members reported them."""

    @property
    def speakers(self) -> frozenset[str]:
        """Ids of all that may speak as members."""

    def had_members(self, ids: str) -> bool:
        """Whether the log has had this list of members, C{n0;n1;n2} in order."""

    def knows(self, member_id: str | None) -> bool:
        """Whether this may be another member of the group."""


@attrs.frozen(kw_only=True)
class Greeting:
    """
    What this member says about itself, and expects of the others.

    @ivar known: the members at the moment, by the own log.
    @ivar group_name: the id of the group at the moment.
    @ivar lineages: judges directories; None: they are not judged.
    """

    known: KnownMembers
    group_name: Callable[[], GroupName]
    lineages: Lineages | None = None

    @property
    def group_id(self) -> str:
        """The id for members; empty until it is known."""
        name = self.group_name()
        return name.id if name.is_known else ""

    @property
    def members(self) -> str:
        """The ids of all members, C{n0;n1;n2} in order; empty if this member joins, and knows none."""
        return ";".join(sorted(self.known.membership.addresses))

    @property
    def configuration(self) -> str:
        """The present membership as METADATA reports it; empty while it is that of the start list."""
        now = self.known.membership
        if not now.is_changed:
            return ""
        lists = MemberLists(dict(now.voters), dict(now.learners))
        return encode_told((ToldMembership(now.index, now.term, lists),))

    def call(self, request: MetadataRequest) -> MetadataRequest:
        """The METADATA request that greets a member, with what there is to report."""
        lineages = self.lineages
        return attrs.evolve(
            request, group_id=self.group_id, members=self.members, configuration=self.configuration,
            lineage="" if lineages is None else lineages.told,
            met_lineage="" if lineages is None else lineages.told_of(request.remote_id),
        )

    def answer(self, request: MetadataRequest, response: MetadataResponse) -> MetadataResponse:
        """The answer to a METADATA request: a member that greets is informed about directories, too."""
        lineages, sender_id = self.lineages, request.local_id
        if lineages is None or not request.lineage:
            return response
        return attrs.evolve(
            response, lineage=lineages.told, met_lineage=lineages.told_of(sender_id, request.lineage),
            is_rival=lineages.is_rival(sender_id, request.lineage),
        )

    def problem_of_call(self, request: MetadataRequest) -> str:
        """Why the member that sent C{request} does not belong here; empty if it may."""
        members = request.members.split(";") if request.members else ()
        problem = self._problem(request.group_id, members, request.configuration)
        if problem or self.lineages is None or request.local_id is None or (
            not self.known.knows(request.local_id)
        ):
            return problem  # (The word of a stranger counts for nothing.)
        self.lineages.heed(request.local_id, request.met_lineage, request.group_id)
        return self.lineages.problem_of_call(request.local_id, request.lineage)

    def problem_of_answer(
        self, response: MetadataResponse, *, peer_id: str = "", is_whole: bool = True
    ) -> str:
        """
        Why the member that sent C{response} does not belong here; empty if it may.

        @param peer_id: who answered, at its address.
        @param is_whole: False: its format has no room for the id of the group. Then members that differ prove
            nothing once the log of the group changes them.
        """
        if response.wire_version < 1 or (not is_whole and self.known.membership.is_changed):
            return ""
        group_id = response.group_id if response.is_group_known else ""
        problem = self._problem(group_id, response.peers, response.configuration)
        if problem or self.lineages is None or not peer_id:
            return problem
        self.lineages.heed(peer_id, response.met_lineage, group_id)
        return OWN_RIVAL if response.is_rival else self.lineages.problem_of_answer(peer_id, response.lineage)

    def lost(self, peer_id: str) -> None:
        """The connection to a member has ended."""
        if self.lineages is not None:
            self.lineages.lost(peer_id)

    def _problem(self, group_id: str, members: Iterable[str], configuration: str) -> str:
        own_id = self.group_id
        if group_id and own_id and group_id != own_id:
            return f"it belongs to the group with the id {group_id[:64]}, this member to that with {own_id}"
        theirs, ours = ";".join(sorted(members)), self.members
        if not theirs or not ours or theirs == ours:
            return ""
        if configuration or self.known.membership.is_changed:
            # The members of this group change by its log, so one of the two may know it better.
            is_behind = not own_id and bool(configuration)
            if (group_id and own_id) or is_behind or self.known.had_members(theirs):
                return ""
            return (f"it names the members {theirs[:200]}, which this group never had, and not the id of its "
                    f"group; this member names {ours[:200]}: a new member starts with an empty directory and "
                    "join=true")
        return f"its --peers names the members {theirs[:200]}, this member's names {ours[:200]}"
