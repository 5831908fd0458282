# -*- test-case-name: tests.admin.test_actions -*-
"""
What a person can let a member do by its pages, and what that would do, which is shown before.

Nothing here changes anything: each effect names the page that does it, by POST.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from urllib.parse import urlencode

import attrs

from dledger.admin.actions.table import FLUSH, SKIP, SNAPSHOT, TRANSFER, Action
from dledger.admin.browsing.query import Query, QueryProblem
from dledger.admin.dashboard.overview import not_leader
from dledger.node.reporting.status import NodeStatus


@attrs.frozen(kw_only=True)
class Effects:
    """
    What an action would do now.

    @ivar action: its name. @ivar effects: sentences.
    @ivar problem: why it would be refused now; empty: nothing is known against it.
    @ivar target: the page that does it, by POST, with its query.
    """

    action: str
    effects: tuple[str, ...]
    problem: str
    target: str


def effects_of(status: NodeStatus, action: Action, query: Query) -> Effects:
    """
    @param query: checked by the action.
    @raise QueryProblem: it names something that is not there.
    """
    return _EFFECTS[action.name](status, query)


def _transfer(status: NodeStatus, query: Query) -> Effects:
    member, to = status.member, query.text("to")
    target, problem = f"transfer?{urlencode({'to': to})}", not_leader(status)
    if problem:
        leader = member.leader_id
        return Effects(action="transfer", target=target, problem=problem, effects=(
            f"Only the leader hands leadership over: ask the pages of {leader}." if leader
            else "Only a leader hands leadership over, and this member knows none now.",
        ))
    others = sorted(set(status.peers.addresses) - {member.self_id})
    if to not in others:
        raise QueryProblem(400, f"write ?to= with another member of the group: {', '.join(others)}")
    peer = next((one for one in member.peers if one.peer_id == to), None)
    lag = 0 if peer is None else max(0, member.ledger_end_index - peer.match_index)
    if not status.peers.connected.get(to, False):
        problem = f"{to} is not connected"
    return Effects(action="transfer", target=target, problem=problem, effects=(
        f"Leadership of group {member.group} goes from {member.self_id} to {to}, in a term after "
        f"{member.term}.",
        f"{to} lacks {lag:,} entries now: appends wait until it has them, for a moment or at most some "
        "seconds; then clients find the new leader by themselves.",
        "Nothing is lost. If it does not come about in time, this member goes on as the leader.",
    ))


def _flush(status: NodeStatus, query: Query) -> Effects:
    member = status.member
    return Effects(action="flush", target="flush", problem="", effects=(
        f"{member.self_id} puts on stable storage the entries up to {member.ledger_end_index:,}; those up to "
        f"{member.flushed_index:,} are there already, {status.store.unsynced_bytes:,} bytes are not.",
        "Appends go on meanwhile; they may take longer while the disk writes.",
    ))


def _skip(status: NodeStatus, query: Query) -> Effects:
    index, machine = query.number("index", -1), status.machine
    if machine is None:
        problem, name = "this member runs no state machine", "the state machine"
    else:
        name = f"the state machine {machine.name}"
        has_failed = machine.state == "failed" and machine.failed_index == index
        problem = not_leader(status) or (
            "" if has_failed else f"{name} is {machine.state}, and has not failed at {index}"
        )
    return Effects(action="skip", target=f"skip?index={index}", problem=problem, effects=(
        f"An order is written into the log: at every member {name} passes over the entry {index:,}, also "
        "where it could apply it; such a member makes its state again without it.",
        f"The command in the entry {index:,} is answered as refused from then on. The entry itself stays in "
        "the log. This cannot be undone.",
    ))


def _snapshot(status: NodeStatus, query: Query) -> Effects:
    machine, problem = status.machine, ""
    if machine is None:
        return Effects(action="snapshot", target="snapshot", effects=("This member has none to take.",),
                       problem="this member runs no state machine")
    if machine.state != "running":
        problem = f"the state machine {machine.name} is {machine.state}"
    elif machine.is_writing:
        problem = "a snapshot is being written"
    elif machine.in_doubt:
        problem = machine.in_doubt
    elif machine.snapshot_index == machine.applied_index:
        problem = f"there is a snapshot of the state after the entry {machine.applied_index:,}"
    last = f"the newest has those up to {machine.snapshot_index:,}" if machine.snapshot_index >= 0 else (
        "it has none yet"
    )
    return Effects(action="snapshot", target="snapshot", problem=problem, effects=(
        f"{status.member.self_id} writes the state of {machine.name} with the entries up to "
        f"{machine.applied_index:,}, or the last one that is applied then, into a file; {last}.",
        "The log goes on. The machine may answer later while it says what its state is, and the oldest "
        "snapshot goes if there are more than are kept.",
    ))


_EFFECTS: Mapping[str, Callable[[NodeStatus, Query], Effects]] = {
    TRANSFER.name: _transfer, FLUSH.name: _flush, SKIP.name: _skip, SNAPSHOT.name: _snapshot,
}
