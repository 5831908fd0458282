# -*- test-case-name: tests.sim.test_machines -*-
"""
Commands and queries of a client of a simulated group, to its state machine.

A part of the commands are numbered by the program: it asks again for the result of one until it has an
outcome, also after the end of its process. Such a command is one call of the history, from its first attempt
to its last: its entry may be written by any of them, and is in the log once.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import attrs
from twisted.internet.defer import Deferred

from dledger.client.client import LogClient
from dledger.client.errors import AppendError, AppendFailed, CommandRefused, OutOfSequence
from dledger.testing.group.checks.history import Call
from dledger.testing.group.checks.machines import MachineRules
from dledger.testing.group.checks.require import require
from dledger.testing.group.checks.sim_machines import POISON, REGISTERS
from dledger.values.errors import DLedgerError
from protocols.wire.codes import ResponseCode

if TYPE_CHECKING:
    from dledger.testing.group.members.cluster import SimCluster

#: Share of commands that the program numbers, and of queries with a bound on the age.
NUMBERED, AGED = 0.4, 0.4
#: Most a program asks so often for one result.
ATTEMPTS_MAX = 12


@attrs.define
class _Numbered:
    """A command with a number of the program. @ivar attempts: those that have begun."""

    body: bytes
    producer: str
    sequence: int
    call: Call
    attempts: int = 0


class SimCommands:
    """
    The commands and queries of one client, through the ends of its processes.

    @ivar repeated: numbered commands that were asked for again, and had a result then.
    """

    def __init__(
        self, cluster: SimCluster, rules: MachineRules, name: str, rng: random.Random, *, poison: float,
        body_bytes_max: int,
    ) -> None:
        """@param poison: share of commands that stop every machine."""
        self._history = cluster.history
        self._rules = rules
        self._name = name
        self._rng = rng
        self._poison = poison
        self._body_bytes_max = body_bytes_max
        self._count = self._lives = 0
        self._sequence = -1
        self._numbered: _Numbered | None = None
        self.repeated = 0

    def _body(self) -> bytes:
        self._count += 1
        kind = POISON if self._rng.random() < self._poison else b""
        size = int(self._body_bytes_max * self._rng.random() ** 2)
        return (b"%b.s%d:" % (self._name.encode(), self._count)).ljust(size - len(kind), b"x") + kind

    # -- commands -----------------------------------------------------------------------------

    def submit(self, client: LogClient) -> Deferred[None]:
        """Send a command, a new one or the numbered one again. @return: fires when it has an outcome."""
        if self._numbered is not None or self._rng.random() < NUMBERED:
            return Deferred.fromCoroutine(self._submit_numbered(client))
        return Deferred.fromCoroutine(self._submit(client))

    async def _submit(self, client: LogClient) -> None:
        body, era = self._body(), self._history.era
        call = self._history.begin("append", client=self._name, body=body)
        try:
            index = self._reported(await client.submit_command(body), era)
        except CommandRefused as refused:
            index = self._reported_refused(refused, era)
        except AppendError as error:
            self._history.end(call, "failed" if isinstance(error, AppendFailed) else "unknown")
            return
        self._history.end(call, "ok", index=index)

    async def _submit_numbered(self, client: LogClient) -> None:
        now, era = self._numbered or self._next(), self._history.era
        now.attempts += 1
        try:
            index = self._reported(await client.submit_command(
                now.body, producer=now.producer, sequence=now.sequence
            ), era)
        except CommandRefused as refused:
            index = self._reported_refused(refused, era)
        except AppendError as error:
            self._has_failed(now, error)
            return
        self.repeated += now.attempts > 1
        self._numbered = None
        self._history.end(now.call, "ok", index=index)

    def _next(self) -> _Numbered:
        self._sequence += 1
        body = self._body()
        call = self._history.begin("append", client=self._name, body=body)
        self._numbered = now = _Numbered(body, f"{self._name}-l{self._lives}", self._sequence, call)
        return now

    def _has_failed(self, now: _Numbered, error: AppendError) -> None:
        is_first = now.attempts == 1
        is_lost = isinstance(error, OutOfSequence) or error.code is ResponseCode.SEQUENCE_FORGOTTEN
        if is_lost or now.attempts >= ATTEMPTS_MAX:
            # its producer is forgotten: a new one
            self._lives += 1
            self._sequence = -1
        elif is_first and isinstance(error, AppendFailed):
            self._sequence -= 1
        else:
            return  # asked for again
        is_certain = is_first and isinstance(error, AppendFailed)
        self._numbered = None
        self._history.end(now.call, "failed" if is_certain else "unknown")

    def _reported(self, result: bytes, era: int) -> int:
        index, chain = map(int, result.split())
        if era == self._history.era:
            self._rules.answered(index, chain)
        return index

    def _reported_refused(self, refused: CommandRefused, era: int) -> int:
        index = int(str(refused.facts["index"]))
        if era == self._history.era:
            self._rules.refused(index, str(refused.facts["reason"]))
        return index

    # -- queries ------------------------------------------------------------------------------

    def query(self, client: LogClient) -> Deferred[None]:
        """Ask for a register. @return: fires when there is an answer, or none."""
        return Deferred.fromCoroutine(self._query(client))

    async def _query(self, client: LogClient) -> None:
        register = b"r%d" % int(self._rng.random() * REGISTERS)
        max_age_s = 5 * self._rng.random() if self._rng.random() < AGED else None
        call = self._history.begin("state", client=self._name) if max_age_s is None else None
        era = self._history.era
        try:
            answer = await client.query(register, max_age_s=max_age_s)
        except DLedgerError as error:
            require(error.code is not ResponseCode.INTERNAL_ERROR, 10, f"a query has failed: {error}")
            if call is not None:
                self._history.end(call, "failed")
            return
        last, value, chain = map(int, answer.split())
        if era == self._history.era:
            self._rules.shown(register, last, value, chain)
        if call is not None:
            self._history.end(call, "ok", index=last)
