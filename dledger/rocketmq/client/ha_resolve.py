# -*- test-case-name: tests.broker.client.test_ha_resolve -*-
"""
Asks a slave of ours about its stopped replication, and sends it an operator's decision (request 90907).

L{dledger.rocketmq.broker.admin.ha_resolve} answers.
"""

from __future__ import annotations

import attrs

from dledger.rocketmq.client.ha_status import Ask, sentence
from dledger.values.errors import DLedgerError
from protocols.wire.codes import ResponseCode
from protocols.wire.documents import long_in, words_in
from protocols.wire.errors import BodyError
from protocols.wire.fastjson import read_object, shown
from protocols.wire.remoting import REQUEST_CODE_NOT_SUPPORTED, RemotingCommand

RESOLVE_HA = 90_907


@attrs.frozen(kw_only=True)
class StoppedReplication:
    """
    Both sides of a slave's replication. Offsets are bytes of the log; -1: not known.

    @ivar master: address of the master's log.
    @ivar problem: why the slave is not in order; empty if it is.
    @ivar is_stopped: whether the slave waits for a decision.
    @ivar is_decidable: whether there is something to decide; the fields from C{differs_at} on are about it.
    @ivar our_begin, our_end, master_begin, master_end: bounds of the slave's and of the master's log.
    @ivar differs_at: the first byte that differs.
    @ivar common_end: the slave would give up its log from here on.
    @ivar our_problem, master_problem: why the record there is not sound; empty for a sound one.
    @ivar lost_bytes, lost_messages: the part of the slave's log that it would give up.
    @ivar counted_to: the messages were counted up to here.
    @ivar set_aside: directories with files that earlier decisions, or starts, have set aside.
    """

    address: str
    master: str
    problem: str
    is_stopped: bool
    is_decidable: bool
    our_begin: int
    our_end: int
    master_begin: int
    master_end: int
    differs_at: int = -1
    common_end: int = -1
    our_problem: str = ""
    master_problem: str = ""
    lost_bytes: int = 0
    lost_messages: int = 0
    counted_to: int = -1
    set_aside: tuple[str, ...] = ()


def read_stopped(address: str, body: bytes) -> StoppedReplication:
    """
    Read the answer to C{show}.

    @raise BodyError: it is malformed.
    """
    document = read_object(body)
    aside = document.get("setAside")
    if not isinstance(aside, list):
        raise BodyError(f"setAside={shown(aside)} is not an array")
    return StoppedReplication(
        address=address, master=words_in(document, "master"), problem=words_in(document, "problem"),
        is_stopped=document.get("stopped") is True,
        is_decidable=document.get("decidable") is True, our_begin=long_in(document, "ourBegin"),
        our_end=long_in(document, "ourEnd"), master_begin=long_in(document, "masterBegin"),
        master_end=long_in(document, "masterEnd"), differs_at=long_in(document, "differsAt"),
        common_end=long_in(document, "commonEnd"), our_problem=words_in(document, "ourProblem"),
        master_problem=words_in(document, "masterProblem"), lost_bytes=max(long_in(document, "bytes"), 0),
        lost_messages=max(long_in(document, "messages"), 0), counted_to=long_in(document, "countedTo"),
        set_aside=tuple(str(one) for one in aside),
    )


async def _asked(ask: Ask, address: str, fields: dict[str, str]) -> RemotingCommand:
    try:
        answer = await ask(address, RemotingCommand(code=RESOLVE_HA, opaque=0, ext_fields=fields))
        if answer.code == REQUEST_CODE_NOT_SUPPORTED:
            raise BodyError("it does not know this request: only our brokers do")
        if answer.code:
            raise BodyError(answer.remark or f"it answers with {answer.code}")
    except Exception as error:
        reason = f"broker {address}: {sentence(error)}"
        raise DLedgerError(ResponseCode.NETWORK_ERROR, reason=reason) from error
    return answer


async def show_stopped(ask: Ask, address: str) -> StoppedReplication:
    """
    Both sides of a slave's replication; changes nothing.

    @raise DLedgerError: it does not answer, or is not a slave of ours; C{reason} says so.
    """
    answer = await _asked(ask, address, {"action": "show"})
    try:
        return read_stopped(address, answer.body)
    except BodyError as error:
        raise DLedgerError(ResponseCode.NETWORK_ERROR, reason=f"broker {address}: {error}") from error


async def take_master(ask: Ask, shown_before: StoppedReplication) -> str:
    """
    Let the slave give up its log from C{common_end} on, and follow its master.

    @param shown_before: the state that the operator has seen; the slave refuses if it has changed.
    @return: the slave's directory with the files that it gave up.
    @raise DLedgerError: it refuses or fails; C{reason} says why.
    """
    answer = await _asked(ask, shown_before.address, {
        "action": "take-master", "commonEnd": str(shown_before.common_end),
        "ourEnd": str(shown_before.our_end),
    })
    return words_in(read_object(answer.body), "directory")


async def try_again(ask: Ask, address: str) -> None:
    """
    Let the slave compare its log again, for example after its master was repaired; nothing is cut.

    @raise DLedgerError: it refuses; C{reason} says why.
    """
    await _asked(ask, address, {"action": "try-again"})
