# -*- test-case-name: tests.client.test_chain_marks -*-
"""
Compares the logs of all members at one committed index: an entry's C{chainCrc} goes over all entries before
it, so members with the same one there hold the same entries.

Knows only what members answer; it compares no files.
"""

from __future__ import annotations

import attrs
from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IReactorTime
from twisted.python.failure import Failure

from dledger.base.timing import Gathering
from dledger.client.members import Members
from protocols.wire.codes import ResponseCode
from protocols.wire.errors import WireError
from protocols.wire.ledger.codes import Consistency
from protocols.wire.ledger.entry import ENTRY_HEADER_SIZE, decode_header
from protocols.wire.ledger.messages import GetRequest, GetResponse


@attrs.frozen(kw_only=True)
class ChainMark:
    """
    What one member holds at an index.

    @ivar index: the same of all members; -1 if no entry is committed that all of them have.
    @ivar term, chain_crc: of its entry there; 0 is "not recorded", Java's.
    @ivar is_leader: whether it leads.
    @ivar problem: why it is not known; empty if it is.
    """

    member_id: str
    index: int = -1
    term: int = -1
    chain_crc: int = 0
    is_leader: bool = False
    problem: str = ""


async def ask_chain_marks(
    members: Members, clock: IReactorTime, deadline_s: float
) -> tuple[ChainMark, ...]:
    """
    The marks of all members, in order of ids, at the highest index that all who answer know to be committed.

    @param deadline_s: seconds for each of the two questions.
    """
    infos = await members.ask_all(deadline_s)
    index = min((info.committed_index for info in infos if not info.problem), default=-1)
    begin = max((info.begin_index for info in infos if not info.problem), default=-1)
    marks = {
        info.member_id: ChainMark(
            member_id=info.member_id, index=max(index, -1), problem=info.problem,
            is_leader=info.role == "leader",
        )
        for info in infos
    }
    if index < max(begin, 0):
        return tuple(marks.values())
    asked = {
        member_id: Deferred.fromCoroutine(_ask_mark(members, mark, deadline_s))
        for member_id, mark in marks.items() if not mark.problem
    }
    answers = await Gathering(clock, asked, deadline_s=2 * deadline_s).outcome
    return tuple(_answered(mark, answers.get(member_id), member_id in asked)
                 for member_id, mark in marks.items())


def _answered(mark: ChainMark, answer: ChainMark | Failure | None, was_asked: bool) -> ChainMark:
    if not was_asked:
        return mark
    if isinstance(answer, ChainMark):
        return answer
    why = "no answer in time" if answer is None else answer.getErrorMessage()
    return attrs.evolve(mark, problem=why)


async def _ask_mark(members: Members, mark: ChainMark, deadline_s: float) -> ChainMark:
    connection = await members.connection(mark.member_id)
    answer = await connection.ask(
        GetRequest(group=members.group, remote_id=mark.member_id, begin_index=mark.index,
                   consistency=Consistency.COMMITTED),
        deadline_s,
    )
    assert isinstance(answer, GetResponse)
    if answer.code is not ResponseCode.SUCCESS or answer.entries is None:
        return attrs.evolve(mark, problem=f"entry {mark.index} was answered {answer.code.name}")
    if len(answer.entries.records) < ENTRY_HEADER_SIZE or answer.entries.first_index != mark.index:
        raise WireError(f"asked for entry {mark.index}, received another record")
    header = decode_header(answer.entries.records[:ENTRY_HEADER_SIZE])
    return attrs.evolve(mark, term=header.term, chain_crc=header.chain_crc)


def diverging(marks: tuple[ChainMark, ...]) -> tuple[str, ...]:
    """
    Ids of the members that hold other entries than the leader; without a leader, than most. Members without a
    mark, or without checksums, are not judged.
    """
    known = [mark for mark in marks if not mark.problem and mark.chain_crc]
    held = [(mark.term, mark.chain_crc) for mark in known]
    if not known:
        return ()
    lead = next((pair for mark, pair in zip(known, held, strict=True) if mark.is_leader), None)
    right = lead or max(held, key=held.count)
    return tuple(mark.member_id for mark, pair in zip(known, held, strict=True) if pair != right)
