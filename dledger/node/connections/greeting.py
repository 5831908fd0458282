# -*- test-case-name: tests.node.test_greeting -*-
"""
Decides whether the member at the other end of a connection belongs to this group.

A connection between two members of ours begins with METADATA: each side reports the id of its group and the
ids of its members, and each side judges the other. If they differ, both sides end the connection and log the
difference. Otherwise two lists of members could make two majorities, and members of two groups with the same
name would cut each other's logs.

Rule 1: if both sides know the id of their group, the ids must be equal.
Rule 2: while no configuration entry has changed the members of the group, both sides must name the same
members.
Rule 3: when the log has changed the members, two lists may differ for a while, so equal ids are enough. If
one side does not know the id yet, the list of the other side must be one that this log has had; but a member
that does not know the id itself believes a list from a later configuration.
Rule 4: an id that a side does not report is not judged: a group has no id until its first leader has made
one. A Java member is not judged at all.
Rule 5: a member of ours of another version (L{WIRE_VERSION}) does not belong here.
Rule 6: after that, the directories of the two members are judged (L{dledger.node.connections.lineages}).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Protocol

import attrs

from dledger.node.connections.lineages import OWN_RIVAL, Lineages
from dledger.values.ledger.group_name import GroupName
from dledger.values.ledger.membership import Membership
from protocols.wire.ledger.codes import WIRE_VERSION, WIRE_VERSION_MASK
from protocols.wire.ledger.memberships import MemberLists, ReportedMembership, encode_reported
from protocols.wire.ledger.messages import MetadataRequest, MetadataResponse


class KnownMembers(Protocol):
    """The members of the group, as the core knows them at the moment."""

    @property
    def membership(self) -> Membership:
        """The membership by this member's own log."""

    @property
    def former(self) -> Mapping[str, str]:
        """The list before, while the entry of the present one may still be cut; else empty."""

    @property
    def introduced(self) -> Mapping[str, str]:
        """
        The members in later lists that known members have reported: C{host:port} by id. The own log may not
        have these lists yet.
        """

    @property
    def speakers(self) -> frozenset[str]:
        """Ids of all members that may speak on a connection."""

    def had_members(self, ids: str) -> bool:
        """Whether the log has had this list of members, C{n0;n1;n2} in order."""

    def knows(self, member_id: str | None) -> bool:
        """Whether this is the id of another member of the group, as far as this member knows."""


@attrs.frozen(kw_only=True)
class Greeting:
    """
    Reports this member to others in METADATA, and judges their reports.

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
        """
        The ids of all members, C{n0;n1;n2} in order; empty if this member joins, and knows none. A list that
        may still be cut is not among them: the others may never have had it.
        """
        return ";".join(sorted(self.known.former or self.known.membership.addresses))

    @property
    def configuration(self) -> str:
        """The present membership as METADATA reports it; empty while it is that of the start list."""
        now = self.known.membership
        if not now.is_changed:
            return ""
        lists = MemberLists(dict(now.voters), dict(now.learners))
        return encode_reported((ReportedMembership(now.index, now.term, lists),))

    def call(self, request: MetadataRequest) -> MetadataRequest:
        """Fill the METADATA request that greets a member: with the own group, members and directory."""
        lineages = self.lineages
        return attrs.evolve(
            request, group_id=self.group_id, members=self.members, configuration=self.configuration,
            lineage="" if lineages is None else lineages.reported,
            met_lineage="" if lineages is None else lineages.reported_of(request.remote_id),
        )

    def answer(self, request: MetadataRequest, response: MetadataResponse) -> MetadataResponse:
        """Fill the answer to METADATA; a member that greets also gets the state of directories."""
        lineages, sender_id = self.lineages, request.local_id
        if lineages is None or not request.lineage:
            return response
        return attrs.evolve(
            response, peers=dict(self.known.former) or response.peers, lineage=lineages.reported,
            met_lineage=lineages.reported_of(sender_id, request.lineage),
            is_rival=lineages.is_rival(sender_id, request.lineage),
        )

    def problem_of_call(self, request: MetadataRequest) -> str:
        """Why the member that sent C{request} does not belong here; empty if it may."""
        members = request.members.split(";") if request.members else ()
        problem = _problem_of_version(request.wire_version) or self._problem(
            request.group_id, members, request.configuration
        )
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
        if response.wire_version < 1:
            return ""
        problem = _problem_of_version(response.wire_version)
        if problem or (not is_whole and self.known.membership.is_changed):
            return problem
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


def _problem_of_version(wire_version: int) -> str:
    """Rule 5. @param wire_version: of a greeting or its answer, with flags."""
    version = wire_version & WIRE_VERSION_MASK
    if version in (0, WIRE_VERSION):
        return ""
    return (f"it speaks version {version} of the protocol between members, this member version "
            f"{WIRE_VERSION}: run the same version of dledger on all members")
