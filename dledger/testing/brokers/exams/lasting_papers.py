# -*- test-case-name: tests.sim.test_exams -*-
"""What lasts for longer than an exam, or is to be found on the disk."""

from __future__ import annotations

import json
from typing import Protocol

from dledger.testing.brokers.exams.examiner import Examiner
from dledger.testing.brokers.rig.asking import ClientMachine
from dledger.testing.brokers.rig.machine import BrokerMachine

LOCK = 41
TOPICS_FILE = "/store/config/topics.json"
#: A table is in its file within this time, ms.
SAVED_MS = 3000
#: Tries to borrow a queue, and the time from then to the next request of its holder, s.
TRIES, RENEWED_S = 10, 30.0
#: A queue is lent for a minute after the last request of its holder; sooner or later by this, ms.
LENT_MS, NEAR_MS = 60_000, 1000


class LoanWorld(Protocol):
    """What a loan knows of the schedule."""

    def master(self) -> str:
        """The port of the master."""

    def wall_ms(self) -> int:
        """Ms since 1970."""

    @property
    def master_machine(self) -> BrokerMachine:
        """The machine of the master."""


class Loan:
    """
    A queue that a master lends to a client, which asks for it once more half a minute later: while the load
    of a schedule settles.
    """

    def __init__(self, world: LoanWorld, client: ClientMachine) -> None:
        self._world = world
        self._client = client
        self._first_ms = self._renewed_ms = 0
        self._lender: tuple[str, int] = "", 0

    def _process(self) -> tuple[str, int]:
        """The newest process of the master."""
        machine = self._world.master_machine
        return machine.name, machine.boots

    async def play(self) -> None:
        """Borrow the queue, and ask once more."""
        for _ in range(TRIES):
            await self._client.pause(1.0)
            self._lender = self._process()
            if await self.ask("one"):
                break
        self._first_ms = self._world.wall_ms()
        await self._client.pause(RENEWED_S)
        renewed_ms = self._world.wall_ms()
        if await self.ask("one"):
            self._renewed_ms = renewed_ms

    async def ask(self, who: str) -> bool:
        """@param who: a client of the group. @return: whether it has the queue."""
        answer = await self._client.ask(self._world.master(), LOCK, {}, json.dumps({
            "consumerGroup": "EL", "clientId": who,
            "mqSet": [{"topic": "T1", "brokerName": "b", "queueId": 0}],
        }).encode())
        return answer is not None and answer.code == 0 and b'"queueId"' in answer.body

    @property
    def is_renewed(self) -> bool:
        """Whether the queue is still lent, by the second request alone."""
        is_last = self._world.wall_ms() - self._first_ms > LENT_MS + NEAR_MS
        return is_last and self.may_be_renewed and self._renewed_ms > 0

    @property
    def may_be_renewed(self) -> bool:
        """Whether it is lent, or will be."""
        last_ms = max(self._first_ms, self._renewed_ms)
        return self._world.wall_ms() - last_ms < LENT_MS - NEAR_MS and self._lender == self._process()


async def loan_paper(exam: Examiner) -> None:
    """Who has asked for a queue within a minute has it."""
    loan = exam.loan
    while loan is not None and exam.waits() and not loan.is_renewed and loan.may_be_renewed:
        await exam.client.pause(0.5)
    if loan is not None and loan.is_renewed:
        exam.require(not await loan.ask("two"), "a queue is lent to a client, and another one gets it")


async def file_paper(exam: Examiner) -> None:
    """Beside the file of a table there is what was in it before."""
    if exam.copies():
        name = await exam.topic(1)
        await _written(exam, TOPICS_FILE, name)
        await _written(exam, TOPICS_FILE, await exam.topic(1))
        content = exam.file_of_master(TOPICS_FILE + ".bak")
        exam.require(name.encode() in content, f"the former topics, with {name}, are {content!r}")


async def _written(exam: Examiner, path: str, name: str) -> None:
    began_ms = exam.now_ms()
    while b'"%s"' % name.encode() not in exam.file_of_master(path):
        exam.prompt(began_ms, f"{name} in {path}", SAVED_MS)
        await exam.client.pause(0.1)
