# -*- test-case-name: tests.core.test_peer_knowledge -*-
"""
Which entries of a later version the other members know, by their last answers to heartbeats, also on earlier
connections.

A member that cannot read a producer entry or a time entry refuses it, and gets no entry after it. So a leader
writes none of a kind that a member may not know, unless the log has one already.
"""

from __future__ import annotations

from collections.abc import Iterable

import attrs

from protocols.wire.ledger.codes import WIRE_FLAG_OPEN_RUNS, WIRE_FLAG_TIMES, WIRE_VERSION_MASK


@attrs.define
class PeerKnowledge:
    """
    @ivar open_runs: peers that know open runs of producers.
    @ivar times: peers that take time entries. A Java member takes any entry.
    """

    open_runs: set[str] = attrs.Factory(set)
    times: set[str] = attrs.Factory(set)

    def heard(self, peer_id: str, wire_version: int) -> None:
        """A peer answered a heartbeat."""
        if wire_version & WIRE_FLAG_OPEN_RUNS:
            self.open_runs.add(peer_id)
        else:
            self.open_runs.discard(peer_id)
        if wire_version & WIRE_FLAG_TIMES or not wire_version & WIRE_VERSION_MASK:
            self.times.add(peer_id)
        else:
            self.times.discard(peer_id)

    def all_take_times(self, peer_ids: Iterable[str]) -> bool:
        """Whether all of C{peer_ids} take time entries, as they said."""
        return self.times.issuperset(peer_ids)
