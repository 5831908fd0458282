# -*- test-case-name: tests.node.test_health -*-
"""
Whether a member serves, in one sentence. C{/healthz}, C{/status}, the metrics, and METADATA for the pages of
the other members all say the same. C{/readyz} asks for more, and reports every reason.
"""

from __future__ import annotations

from collections.abc import Iterator

from dledger.node.reporting.status import NodeStatus
from protocols.wire.ledger.memberships import REMOVED

#: What an operator must know about an unsure member without a leader.
UNSURE = (
    "unsure: its directory is new, or a loss of power may have taken entries that it acknowledged, so its "
    "vote counts only together with those of all members: start them all, or see --bootstrap and "
    "accept_unclean_start"
)

#: A member that lacks more than this part of C{healthy_lag_entries} is not ready.
READY_SHARE = 10

#: A state machine whose call lasts for this time is a problem, seconds.
MACHINE_HANGS_S = 5.0

#: A state machine without a state is a problem when all members were asked for theirs this many times.
ROUNDS_IN_VAIN = 3

#: Most characters of a reason that is shown to others.
REPORTED_CHARACTERS_MAX = 300


def health_problem(status: NodeStatus) -> str | None:
    """
    The reason why this member does not serve; None if it serves.

    Of several reasons the one is named that an operator must act on first.
    """
    return next(_problems(status), None)


def readiness_problems(status: NodeStatus) -> tuple[str, ...]:
    """
    All reasons why this member is not ready to serve; empty if it is. It is ready if it serves, holds nearly
    all that its leader has committed, does not hand leadership over, and its state machine has its state.
    """
    member, found = status.member, list(_problems(status))
    lag_max = status.healthy_lag_entries // READY_SHARE
    if 0 < lag_max < member.commit_lag <= status.healthy_lag_entries:
        found.append(
            f"catching up: it lacks {member.commit_lag} committed entries of its leader, more than "
            f"{lag_max}, which is healthy_lag_entries / {READY_SHARE}"
        )
    if member.role == "leader" and member.transferee_id is not None:
        found.append(f"handing over: leadership goes to {member.transferee_id}, and appends are refused")
    machine = status.machine
    if machine is not None and machine.state == "starting":
        waits_for = f" ({machine.installing})" if machine.installing else ""
        found.append(
            f"its state machine is starting: commands and queries wait until it has its state{waits_for}"
        )
    elif machine is not None and machine.state == "installing":
        found.append(f"its state machine waits for a snapshot of another member: {machine.installing}")
    elif machine is not None and machine.state == "running" and 0 < lag_max < machine.lag:
        found.append(f"its state machine lacks {machine.lag} committed entries, more than {lag_max}, "
                     f"which is healthy_lag_entries / {READY_SHARE}")
    return tuple(found)


def _problems(status: NodeStatus) -> Iterator[str]:
    """Why it does not serve; what an operator must act on first comes first."""
    member = status.member
    if status.state != "running":
        yield f"the member is {status.state}" + (f": {status.reason}" if status.reason else "")
    if member.is_diverged:
        yield (
            "diverged: it refuses what its leader pushes, as their ledgers contradict each other; "
            "it answers no reads"
        )
    if member.holes:
        asked = ", ".join(f"{peer}: {why}" for peer, why in sorted(member.hole_asked.items()))
        yield (
            f"repairing: {sum(hole.count for hole in member.holes)} entries are damaged, "
            f"the first is {member.holes[0].first_index}; they are fetched from the other members"
            + (f" (asked {asked})" if asked else "")
        )
    elif member.is_repairing:
        yield (
            f"repairing: entries up to {member.repair_end_index} were lost to damage and are "
            f"not back yet; it has them up to {member.ledger_end_index}"
        )
    if status.store.is_full:
        yield "disk full: it stores no entries until there is room"
    if status.why_state_unknown:
        yield (
            "it does not know the state of the group, and refuses producers and readers: "
            f"{status.why_state_unknown}; if no member knows it, see dledger state begin-anew"
        )
    if status.machine is not None and status.machine.state == "failed":
        yield f"its state machine has stopped, the log goes on: {status.machine.reason}"
    if status.machine is not None and status.machine.rounds_in_vain >= ROUNDS_IN_VAIN:
        yield f"its state machine has no state: {status.machine.installing}"
    if status.machine is not None and status.machine.in_doubt:
        yield f"its state machine is in doubt: {status.machine.in_doubt}"
    if status.machine is not None and status.machine.busy_s >= MACHINE_HANGS_S:
        yield (
            f"its state machine is in {status.machine.busy_with} for {status.machine.busy_s:.0f} s: commands "
            "and queries wait, the log goes on"
        )
    if member.is_dismissed:
        yield f"{REMOVED}: the group has changed its members, and this one is not among them; stop it"
    elif member.leader_id is None and not member.voters:
        yield "joining: it waits for a leader of the group to push to it, see dledger member add"
    elif member.leader_id is None:
        yield "no leader known" + (f"; {UNSURE}" if member.is_unsure else "")
    elif member.is_unsure:
        yield (
            "unsure: its directory is new, or a loss of power may have taken entries that it acknowledged; "
            "it has not reached its leader's end yet"
        )
    if 0 < status.healthy_lag_entries < member.commit_lag:
        yield (
            f"behind: it lacks {member.commit_lag} committed entries of its leader, "
            f"more than healthy_lag_entries={status.healthy_lag_entries}"
        )


def reported_health(status: NodeStatus) -> str:
    """The reason for other members: one bounded line; empty if this member serves."""
    problem = health_problem(status) or ""
    return " ".join(problem.split())[:REPORTED_CHARACTERS_MAX]
