# -*- test-case-name: tests.node.test_node -*-
"""What expiry must leave in the log of a member."""

from __future__ import annotations

from collections.abc import Iterable

from dledger.core.status import MemberStatus

#: A peer silent for this many milliseconds no longer holds back the expiry of files.
PEER_MEMORY_MS = 60_000


def keep_from_index(status: MemberStatus, needed: Iterable[int]) -> int:
    """
    First index that expiry must keep: it is not committed, or somebody or a live follower lacks it.

    @param needed: indexes after which somebody needs the entries.
    """
    lowest = min([status.committed_index, *needed])
    if status.role == "leader":
        live = [peer.match_index for peer in status.peers if 0 <= peer.last_heard_ms_ago < PEER_MEMORY_MS]
        lowest = min([lowest, *live])
    return lowest + 1
