# -*- test-case-name: tests.node.test_health -*-
"""
Whether a member serves, in one sentence. C{/healthz}, C{/status}, the metrics, and METADATA for the pages of
the other members all say the same.
"""

from __future__ import annotations

from dledger.node.status import NodeStatus

#: What an operator must know about an unsure member without a leader.
UNSURE = (
    "unsure: its directory is new, or a loss of power may have taken entries that it acknowledged, so its "
    "vote counts only together with those of all members: start them all, or see --bootstrap and "
    "accept_unclean_start"
)

#: Characters of a reason that is told to others, at most.
TOLD_CHARACTERS_MAX = 300


def health_problem(status: NodeStatus) -> str | None:
    """
    The reason why this member does not serve; None if it serves.

    Of several reasons the one is named that an operator must act on first.
    """
    member = status.member
    if status.state != "running":
        return f"the member is {status.state}" + (f": {status.reason}" if status.reason else "")
    if member.is_diverged:
        return (
            "diverged: it refuses what its leader pushes, as their ledgers contradict each other; "
            "it answers no reads"
        )
    if member.holes:
        asked = ", ".join(f"{peer}: {why}" for peer, why in sorted(member.hole_asked.items()))
        return (
            f"repairing: {sum(hole.count for hole in member.holes)} entries are damaged, "
            f"the first is {member.holes[0].first_index}; they are fetched from the other members"
            + (f" (asked {asked})" if asked else "")
        )
    if member.is_repairing:
        return (
            f"repairing: entries up to {member.repair_end_index} were lost to damage and are "
            f"not back yet; it has them up to {member.ledger_end_index}"
        )
    if status.is_disk_full:
        return "disk full: it stores no entries until there is room"
    if status.machine is not None and status.machine.state == "failed":
        return f"its state machine has stopped, the log goes on: {status.machine.reason}"
    if member.is_dismissed:
        return "removed: the group has changed its members, and this one is not among them; stop it"
    if member.leader_id is None and not member.voters:
        return "joining: it waits for a leader of the group to push to it, see dledger member add"
    if member.leader_id is None:
        return "no leader known" + (f"; {UNSURE}" if member.is_unsure else "")
    if member.is_unsure:
        return (
            "unsure: its directory is new, or a loss of power may have taken entries that it acknowledged; "
            "it has not reached its leader's end yet"
        )
    if 0 < status.healthy_lag_entries < member.commit_lag:
        return (
            f"behind: it lacks {member.commit_lag} committed entries of its leader, "
            f"more than healthy_lag_entries={status.healthy_lag_entries}"
        )
    return None


def told_health(status: NodeStatus) -> str:
    """The reason for other members: one bounded line; empty if this member serves."""
    problem = health_problem(status) or ""
    return " ".join(problem.split())[:TOLD_CHARACTERS_MAX]
