# -*- test-case-name: tests.broker.admin.test_ha_resolve -*-
"""
An operator's decision about a slave whose replication has stopped: request 90907, a code of our own.

C{action} is C{show} (the default; changes nothing), C{take-master} or C{try-again}. C{take-master} names the
two offsets that C{show} reported, C{commonEnd} and C{ourEnd}: a decision about another state is refused.

Rule 1: our sound record is never given up for a record of the master that is not sound.
Rule 2: the files of the log that are given up are kept; see
L{dledger.rocketmq.store.records.set_aside}.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from twisted.internet.defer import Deferred, succeed
from twisted.logger import Logger
from twisted.python.failure import Failure

from dledger.base.disk.disk import Disk
from dledger.rocketmq.answering.java_json import wire_json
from dledger.rocketmq.answering.refusals import Code, CommandGroup, Fields, Handlers, Refused
from dledger.rocketmq.replication.service import HAService
from dledger.rocketmq.replication.slave import DecisionUnderWay, HAFollower, LogRange
from dledger.rocketmq.replication.slave_session import Difference
from dledger.rocketmq.store.commit_log_store import CommitLogStore
from dledger.rocketmq.store.queries import count_records
from dledger.rocketmq.store.records.set_aside import directories
from protocols.rocketmq.commands import CommandConnection
from protocols.wire.fastjson import JsonObject, shown
from protocols.wire.remoting import RemotingCommand

RESOLVE_HA = 90_907

#: Changes nothing.
SHOW = "show"
ACTIONS = (SHOW, "take-master", "try-again")


class HAResolve(CommandGroup):
    """The group of this one command."""

    log = Logger()

    def __init__(
        self, ha: HAService, store: CommitLogStore, disk: Disk, *,
        master_range: Callable[[], Awaitable[LogRange]],
    ) -> None:
        """@param master_range: asks the master for the bounds of its log."""
        self._ha = ha
        self._store = store
        self._disk = disk
        self._master_range = master_range

    def handlers(self) -> Handlers:
        """By request code."""
        return {RESOLVE_HA: self._resolve}

    def _resolve(self, connection: CommandConnection, request: RemotingCommand) -> None:
        fields = Fields(request.ext_fields)
        action = fields.text("action", SHOW)
        if action not in ACTIONS:
            raise Refused(Code.SYSTEM_ERROR, f"action={shown(action)} is not one of {', '.join(ACTIONS)}")
        coming = self.show() if action == SHOW else self.decide(
            connection.address, action, lambda name: fields.number(name, least=0, most=2**62)
        )
        self._answer_when(coming, connection, request)

    def _slave(self) -> HAFollower:
        slave = self._ha.slave
        if slave is None:
            raise Refused(Code.SYSTEM_ERROR, "this broker is a master: ask its slave")
        return slave

    def show(self) -> Awaitable[JsonObject]:
        """
        The bounds of both logs, and the first difference; changes nothing.

        @raise Refused: at once: this broker is a master.
        """
        return self._shown(self._slave())

    def decide(self, who: str, action: str, said: Callable[[str], int]) -> Awaitable[JsonObject]:
        """
        Let the slave go on.

        @param who: for the log. @param action: one of L{ACTIONS} but the first.
        @param said: by the names C{commonEnd} and C{ourEnd}, the offsets of the decision.
        @raise Refused: at once: it is a decision about another state, or there is nothing to decide.
        """
        slave = self._slave()
        difference = slave.to_decide()
        if difference is None or (action == "try-again" and not slave.is_stopped):
            raise Refused(Code.SYSTEM_ERROR, "replication has not stopped: there is nothing to decide")
        self.log.warn("{address} decides about stopped replication: {action}", address=who, action=action)
        if action == "try-again":
            try:
                slave.try_again()
            except DecisionUnderWay as error:
                raise Refused(Code.SYSTEM_ERROR, str(error)) from error
            return succeed({})
        _check_decision(said, difference)
        return self._taken(slave)

    async def _taken(self, slave: HAFollower) -> JsonObject:
        return {"directory": await slave.take_master()}

    async def _shown(self, slave: HAFollower) -> JsonObject:
        status, log = slave.status(), self._store.log
        try:
            master = await self._master_range()
        except Exception as error:  # any error: the rest is still reported
            self.log.info("the master does not report the bounds of its log: {reason}", reason=str(error))
            master = LogRange()
        document: JsonObject = {
            "master": status.master, "problem": status.problem, "connected": status.is_connected,
            "stopped": status.is_stopped, "decidable": status.difference is not None,
            "ourBegin": log.begin_offset, "ourEnd": log.end_offset,
            "masterBegin": master.begin_offset, "masterEnd": master.end_offset,
            "setAside": directories(self._disk, self._store.config.commit_log_path),
        }
        if status.difference is not None:
            document.update(_reported(status.difference))
            messages, counted_to = count_records(log, status.difference.common_end)
            document.update(messages=messages, countedTo=counted_to)
        return document

    def _answer_when(
        self, coming: Awaitable[JsonObject], connection: CommandConnection, request: RemotingCommand
    ) -> None:
        async def answer() -> None:
            connection.answer(request, body=wire_json(await coming))

        def failed(failure: Failure) -> None:
            if not failure.check(DecisionUnderWay):
                self.log.failure("an operator's decision could not be carried out", failure)
            connection.answer(request, code=Code.SYSTEM_ERROR, remark=failure.getErrorMessage())

        Deferred.fromCoroutine(answer()).addErrback(failed)


def _reported(difference: Difference) -> JsonObject:
    return {
        "reason": difference.reason, "differsAt": difference.offset, "commonEnd": difference.common_end,
        "ourProblem": difference.our_problem, "masterProblem": difference.master_problem,
        "bytes": difference.our_end - difference.common_end,
    }


def _check_decision(offset_of: Callable[[str], int], difference: Difference) -> None:
    """@raise Refused: it is a decision about another state, or would give up the only sound record."""
    for name, offset in (("commonEnd", difference.common_end), ("ourEnd", difference.our_end)):
        said = offset_of(name)
        if said != offset:
            raise Refused(Code.SYSTEM_ERROR, f"{name} is {offset} now, not {said}: look again, then decide")
    if difference.master_problem and not difference.our_problem:
        raise Refused(
            Code.SYSTEM_ERROR,
            f"our record at {difference.common_end} is sound, the master's is not "
            f"({difference.master_problem}): repair the master from this slave's files, then try again",
        )
