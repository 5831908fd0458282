# -*- test-case-name: tests.admin.test_actions,tests.admin.test_resource -*-
"""Actions of a member that last: they are begun, and looked at until they end or their time is over."""

from __future__ import annotations

from twisted.internet.interfaces import IReactorTime
from twisted.internet.task import deferLater

from dledger.admin.sites.member_source import StatusSource
from protocols.wire.fastjson import JsonObject

#: Seconds within which an action must end, and between two looks at it.
ACTION_S = 10.0
LOOK_S = 0.05


async def flush_and_wait(node: StatusSource, clock: IReactorTime) -> tuple[int, JsonObject]:
    """
    Wait until the ledger of now is on stable storage.

    @return: status of HTTP, and the document.
    """
    end_index = node.status().member.ledger_end_index
    begin_s = clock.seconds()
    while (member := node.status().member).flushed_index < min(end_index, member.ledger_end_index):
        if clock.seconds() - begin_s >= ACTION_S:
            return 504, {
                "error": f"not on stable storage after {ACTION_S:g} s",
                "flushed_index": member.flushed_index, "end_index": end_index,
            }
        await deferLater(clock, LOOK_S)
    return 200, {"flushed_index": member.flushed_index, "end_index": end_index}


async def snapshot_and_wait(node: StatusSource, clock: IReactorTime) -> tuple[int, JsonObject]:
    """
    Let the state machine take a snapshot, and wait for it for a while; then it goes on.

    @return: status of HTTP, and the document.
    """
    before, begin_s, has_begun = node.status().machine, clock.seconds(), False
    problem = node.ask_snapshot()
    while not problem:
        machine = node.status().machine
        assert before is not None and machine is not None, "a member does not lose its machine"
        shown: JsonObject = {
            "snapshot_index": machine.snapshot_index, "snapshot_size": machine.snapshot_size,
        }
        if machine.snapshots > before.snapshots:
            return 200, {**shown, "is_writing": machine.is_writing}
        if has_begun and not machine.is_writing:
            problem = machine.snapshot_problem or "the state machine has stopped"
        elif clock.seconds() - begin_s >= ACTION_S:
            return 202, {**shown, "is_writing": True}
        has_begun = machine.is_writing
        await deferLater(clock, LOOK_S)
    return 409, {"error": f"no snapshot: {problem}"}
