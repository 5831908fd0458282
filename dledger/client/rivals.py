# -*- test-case-name: tests.client.test_rivals -*-
"""
A leader that owes an answer: ask the other members whether one of them leads by now.

A frozen process (SIGSTOP, swap, a frozen virtual machine) keeps its connections, so it looks like a slow one.
Its group elects another leader within a second or two; a client that waited for the whole time-out would lose
twice that time. A slow commit is no reason to leave: the connection is given up only when another member
claims to lead in a higher term than ours did. Requests sent over it then have the outcome of a lost
connection, no better and no worse than after the time-out.

Java members do not report their term, so the client waits for them.
"""

from __future__ import annotations

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IReactorTime
from twisted.logger import Logger
from twisted.python.failure import Failure

from dledger.base.timing import Gathering
from dledger.client.connection import MemberLink
from dledger.client.members import Members
from protocols.wire.ledger.messages import MetadataResponse, Request, Response

#: Seconds without an answer after which another leader is looked for.
SILENT_S = 1.0
#: Seconds between two looks.
AGAIN_S = 0.4
#: Seconds to wait for the answers of the others.
_OTHERS_S = 1.0


class Rivals:
    """Looks for another leader on behalf of all waiting requests, one look at a time."""

    log = Logger()

    def __init__(self, members: Members, clock: IReactorTime) -> None:
        self._members = members
        self._clock = clock
        self._is_looking = False
        self._next_s = float("-inf")

    def look(self, leader: MemberLink) -> None:
        """
        Look for another leader, as a request has waited for C{leader} for L{SILENT_S} or longer. If another
        member leads instead, the connection is ended soon; if not, nothing happens. May be called often.
        """
        if self._is_looking or self._clock.seconds() < self._next_s or not leader.is_connected:
            return
        self._is_looking = True
        Deferred.fromCoroutine(self._look(leader)).addErrback(self._failed).addBoth(self._looked)

    async def _look(self, leader: MemberLink) -> None:
        if leader.metadata is None or leader.metadata.term < 0:
            return
        term = leader.metadata.term
        others = [member_id for member_id in self._members.addresses if member_id != leader.member_id]

        def answered(
            gathering: Gathering[MetadataResponse], member_id: str, answer: MetadataResponse
        ) -> None:
            if answer.leader_id == member_id and answer.term > term:
                gathering.close()

        answers = await self._members.ask_these(others, _OTHERS_S, answered)
        rivals = {
            answer.term: member_id
            for member_id, answer in answers.items()
            if not isinstance(answer, Failure) and answer.leader_id == member_id and answer.term > term
        }
        if rivals and leader.is_connected:
            highest = max(rivals)
            self._members.leader_id = rivals[highest]
            leader.abort(f"no answer, and {rivals[highest]} leads in term {highest}")

    def _failed(self, failure: Failure) -> None:
        self.log.failure("looking for another leader failed", failure)

    def _looked(self, _nothing: object) -> None:
        self._is_looking = False
        self._next_s = self._clock.seconds() + AGAIN_S

    def ask(self, leader: MemberLink, request: Request, timeout_s: float) -> Deferred[Response]:
        """As L{MemberLink.ask}, and look for another leader while the answer is missing."""
        answer = leader.ask(request, timeout_s)
        if answer.called:
            return answer

        looking = self._clock.callLater(SILENT_S, lambda: look())

        def look() -> None:
            nonlocal looking
            looking = self._clock.callLater(AGAIN_S, look)
            self.look(leader)

        def done(result: Response | Failure) -> Response | Failure:
            if looking.active():
                looking.cancel()
            return result

        return answer.addBoth(done)
