# -*- test-case-name: tests.admin.test_broker_actions -*-
"""
What a person can let a broker do by its pages, and what that would do. A broker on a raft log has the
L{effects<dledger.admin.actions.effects>} of its member.
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Protocol
from urllib.parse import urlencode

from dledger.admin.actions.effects import Effects
from dledger.admin.actions.table import FLUSH, Action
from dledger.admin.browsing.query import Query
from dledger.rocketmq.broker.options.operators import NotDone
from dledger.rocketmq.broker.showing.status import BrokerStatus
from protocols.wire.fastjson import JsonObject


class BrokerActs(Protocol):
    """The part of L{dledger.rocketmq.broker.admin.log_acts.LogActs} that the pages need."""

    def flush(self) -> Awaitable[int]:
        """Put the log on stable storage. @raise NotDone: it fails."""

    def stopped(self) -> Awaitable[JsonObject]:
        """Why replication has stopped. @raise NotDone: it is a master."""

    def resolve(self, how: str, *, common_end: int, our_end: int) -> Awaitable[JsonObject]:
        """Decide how a slave goes on. @raise NotDone: it is refused."""


async def log_effects_of(status: BrokerStatus, acts: BrokerActs, action: Action, query: Query) -> Effects:
    """What an action would do with the commit log of a broker. @param query: checked by the action."""
    if action is FLUSH:
        return Effects(action=action.name, target=action.name, problem="", effects=(
            f"{status.name} puts its log up to {status.end_offset:,} on stable storage; it is there up to "
            f"{status.flushed_offset:,}.",
            "Messages are taken meanwhile; they may take longer while the disk writes.",
        ))
    try:
        return _resolve(await acts.stopped(), query.text("how"))
    except NotDone as error:
        return Effects(
            action=action.name, target=action.name, problem=str(error),
            effects=("Only a slave whose replication has stopped waits for a decision.",),
        )


def _resolve(found: JsonObject, how: str) -> Effects:
    is_decidable = found["decidable"] if how == "take-master" else found["stopped"]
    problem = "" if is_decidable else "replication has not stopped: there is nothing to decide"
    said = [str(found["reason"] if "reason" in found else found["problem"] or "Replication goes on.")]
    target = {"how": how}
    if how == "try-again":
        said.append("The slave compares its log with the master's once more; nothing is cut.")
    elif "commonEnd" in found:
        target |= {"common_end": str(found["commonEnd"]), "our_end": str(found["ourEnd"])}
        if found["masterProblem"] and not found["ourProblem"]:
            problem = "only the slave's record is sound: mend the master from this slave's files first"
        said += [
            f"The slave gives up {found['bytes']:,} bytes, {found['messages']:,} messages or more, from "
            f"{found['commonEnd']:,} on, and follows the master.",
            "Nothing is deleted: its files from there on move to a directory of their own beside the log.",
        ]
    return Effects(
        action="resolve", target=f"resolve?{urlencode(target)}", problem=problem, effects=tuple(said)
    )
