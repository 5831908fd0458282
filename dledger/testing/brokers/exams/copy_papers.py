# -*- test-case-name: tests.sim.test_exams -*-
"""Slaves answer what their master does, correct and commit nothing, and copy its tables."""

from __future__ import annotations

from collections.abc import Mapping

from dledger.testing.brokers.exams.examiner import (
    MAKE_TOPIC,
    MAX_OFFSET,
    PULL,
    QUERY_OFFSET,
    Examiner,
    messages_in,
    topic_fields,
)
from protocols.wire.remoting import RemotingCommand

MIN_OFFSET, SEARCH_OFFSET, VIEW_MESSAGE = 31, 29, 33
TOPIC_NOT_EXIST = 17
#: Of the load: slaves know its topics and its group.
TOPICS, GROUP = ("T1", "T2"), "G1"
#: A slave has what its master has within this time, ms.
COPIED_MS = 3000
#: A slave knows its master's topics within this time, ms.
TABLES_MS = 12_000
#: As many messages as an answer has at least, whatever an operator has set.
MOST = 8
#: Pulls from the begin of a queue on.
PULLS = 3
STRANGE_OFFSET = 7_777_777
#: A round of a slave takes this time at most, s; its log must have what its master's had.
ROUND_S = 0.7


async def copy_paper(exam: Examiner) -> None:
    """A queue of the load at each slave, another one each time."""
    for number, target in enumerate(exam.copies(), exam.now_ms()):
        await _same_queue(exam, target, {"topic": TOPICS[number % 2], "queueId": number // 2 % 2})


async def _ask(exam: Examiner, target: str, code: int, fields: Mapping[str, object]) -> RemotingCommand:
    answer = await exam.client.ask(target, code, fields)
    exam.require(answer is not None, f"request {code} is not answered by {target}")
    assert answer is not None
    return answer


async def _offset(exam: Examiner, target: str, code: int, fields: Mapping[str, object]) -> int:
    return int((await _ask(exam, target, code, fields)).ext_fields["offset"])


async def _same_queue(exam: Examiner, target: str, place: Mapping[str, object]) -> None:
    master, began_ms = exam.master(), exam.now_ms()
    while True:
        end, other = [await _offset(exam, one, MAX_OFFSET, place) for one in (master, target)]
        if end == other:
            break
        what = f"{dict(place)} ends at {end}, and at {target} at {other}, and the rest"
        exam.prompt(began_ms, what, COPIED_MS)
        await exam.client.pause(0.1)
    while (await _ask(exam, target, PULL, _pull(place, end, "*"))).code == TOPIC_NOT_EXIST:
        exam.prompt(began_ms, f"to learn of {place['topic']}", TABLES_MS)  # of a young slave
        await exam.client.pause(0.5)
    at = begin = max([await _offset(exam, one, MIN_OFFSET, place) for one in (master, target)])
    for sub in ("*", "A || B"):
        for _ in range(PULLS):
            found = [await _pulled(exam, one, place, at, sub) for one in (master, target)]
            if max([await _offset(exam, one, MIN_OFFSET, place) for one in (master, target)]) > at:
                return  # files have expired meanwhile
            exam.require(found[0][:3] == found[1][:3] and at <= found[0][2],
                         f"a pull of {sub} at {at} of {dict(place)} gets {found[0][2:]}, at {target} "
                         f"{found[1][2:]}")
            if found[0][0] == 0:
                await _same_message(exam, target, place, found[0][1])
            at = found[0][2]
        at = max(end - MOST, begin)
    for at, code in ((end, 19), (end + 7, 20)) if end else ():  # (A queue may have been made, and be empty.)
        answer = await _ask(exam, target, PULL, _pull(place, at, "*"))
        reported = answer.code, answer.ext_fields["nextBeginOffset"]
        exam.require(reported == (code, str(at)),
                     f"a pull at {at} of {end} is answered by {target} with {reported}")
    await _ask(exam, target, PULL, {**_pull(place, begin, "*"), "sysFlag": 5, "commitOffset": STRANGE_OFFSET})
    known = await _ask(exam, target, QUERY_OFFSET, {**place, "consumerGroup": GROUP})
    exam.require(known.ext_fields.get("offset") != str(STRANGE_OFFSET),
                 f"{target} has committed what a pull says")


def _pull(place: Mapping[str, object], at: int, sub: str) -> dict[str, object]:
    return {
        "consumerGroup": GROUP, **place, "queueOffset": at, "maxMsgNums": MOST, "sysFlag": 4,
        "commitOffset": 0, "suspendTimeoutMillis": 0, "subVersion": 0, "subscription": sub,
        "expressionType": "TAG",
    }


async def _pulled(
    exam: Examiner, target: str, place: Mapping[str, object], at: int, sub: str
) -> tuple[int, bytes, int, list[int]]:
    """The code of a pull, its records, where it goes on, and the offsets of its messages."""
    answer = await _ask(exam, target, PULL, _pull(place, at, sub))
    found = [one.queue_offset for one in messages_in(answer.body)] if answer.code == 0 else []
    return answer.code, answer.body, int(answer.ext_fields["nextBeginOffset"]), found


async def _same_message(exam: Examiner, target: str, place: Mapping[str, object], body: bytes) -> None:
    """A message is found by its place and its time."""
    first = messages_in(body)[0]
    asked: list[tuple[int, dict[str, object]]] = [(VIEW_MESSAGE, {"offset": first.physical_offset})]
    begins = {await _offset(exam, broker, MIN_OFFSET, place) for broker in (exam.master(), target)}
    if len(begins) == 1:  # else one of them may have an older message of this millisecond, which has expired
        asked += [
            (SEARCH_OFFSET, {**place, "timestamp": first.store_timestamp + later}) for later in (0, 1)
        ]
    for code, fields in asked:
        one, other = [await _ask(exam, broker, code, fields) for broker in (exam.master(), target)]
        exam.require((one.code, one.body, one.ext_fields) == (other.code, other.body, other.ext_fields),
                     f"request {code} with {fields} is answered with {one}, by {target} with {other}")


async def table_paper(exam: Examiner) -> None:
    """
    A slave takes an offset of its master that is lower than its own, but not than one that was committed at
    the slave, until the master has had that, too. Offsets of a topic go when it is made again.
    """
    for target in exam.copies()[:1]:
        topic, group = await exam.topic(1), "EB"
        for number in range(4):
            await exam.send(topic, f"o{number}")
        await exam.pull(topic, 0, group=group)
        await exam.commit(group, topic, 0, 2)
        await _copied(exam, target, topic, 2)
        await exam.commit(group, topic, 0, 3, target=target)
        for _ in range(2):
            exam.copy_tables()
            await exam.client.pause(ROUND_S)
        known = await exam.offset_of(group, topic, target=target)
        exam.require(known == 3, f"offset 3 was committed at {target}, and after two rounds it is {known}")
        await exam.commit(group, topic, 0, 4)
        await _copied(exam, target, topic, 4)
        await exam.reset(topic, group, 1, timestamp=0, isForce="true", queueId=0, offset=1)
        await _copied(exam, target, topic, 1)
        await exam.delete(topic)
        await exam.done(MAKE_TOPIC, topic_fields(topic, 1))
        await exam.send(topic, "o")
        await _copied(exam, target, topic, -1)


async def _copied(exam: Examiner, target: str, topic: str, wanted: int) -> None:
    """The offset of a group is soon copied."""
    began_ms = exam.now_ms()
    while (known := await exam.offset_of("EB", topic, target=target)) != wanted:
        exam.prompt(began_ms, f"an offset is {wanted}, and at {target} {known}, and the copy", TABLES_MS)
        exam.copy_tables()
        await exam.client.pause(ROUND_S)
