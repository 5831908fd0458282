# -*- test-case-name: tests.node.test_greeting -*-
"""
Whether a member that calls, or answers, belongs to this group. Every connection between members of ours
begins with METADATA; each side tells the id of its group and the ids of its members, and each side judges.

Two lists of members make two majorities, and members of two groups that share their names would cut each
other's logs: so one difference ends the connection, on both sides, with a sentence that says which is which.
A side that does not tell (Java, an earlier version, a group that has no id yet) is not judged.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import attrs

from dledger.base.group_name import GroupName
from protocols.wire.ledger.messages import MetadataRequest, MetadataResponse


@attrs.frozen(kw_only=True)
class Greeting:
    """
    What this member tells about itself, and expects of the others.

    @ivar group_name: the id of the group at the moment.
    """

    peers: Mapping[str, str]
    group_name: Callable[[], GroupName]

    @property
    def group_id(self) -> str:
        """The id that members are told; empty until it is known."""
        name = self.group_name()
        return name.id if name.is_known else ""

    @property
    def members(self) -> str:
        """The ids of all members, C{n0;n1;n2} in order."""
        return ";".join(sorted(self.peers))

    def problem_of_call(self, request: MetadataRequest) -> str:
        """Why the member that sent C{request} does not belong here; empty if it may."""
        return self._problem(request.group_id, request.members.split(";") if request.members else ())

    def problem_of_answer(self, response: MetadataResponse) -> str:
        """Why the member that sent C{response} does not belong here; empty if it may."""
        if response.wire_version < 1:
            return ""
        return self._problem(response.group_id if response.is_group_known else "", response.peers)

    def _problem(self, group_id: str, members: Iterable[str]) -> str:
        own_id = self.group_id
        if group_id and own_id and group_id != own_id:
            return f"it belongs to the group with the id {group_id[:64]}, this member to that with {own_id}"
        theirs = ";".join(sorted(members))
        if theirs and theirs != self.members:
            return f"its --peers names the members {theirs[:200]}, this member's names {self.members[:200]}"
        return ""
