# -*- test-case-name: tests.sim.test_exams -*-
"""Our own producers and readers: native frames that put messages and read the log."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import attrs

from dledger.testing.brokers.exams.examiner import Examiner, messages_in
from protocols.wire.rocketmq.broker_frames import (
    PULL_OFFSET_MOVED,
    QUERY_NOT_FOUND,
    OffsetsAnswer,
    OffsetsRequest,
    PutAnswer,
    PutRequest,
    ReadAnswer,
    ReadRequest,
)
from protocols.wire.rocketmq.broker_layout import BROKER_WIRE_VERSION, WIRE_VERSION_CODE, WIRE_VERSION_FIELD
from protocols.wire.rocketmq.message import Message, encode_properties

#: A message comes after its delay within this time, ms.
LATE_MS = 1700


async def native_paper(exam: Examiner) -> None:
    """Messages of several frames, some of them wrong; a reader that waits, and that begins everywhere."""
    topic = await exam.topic()
    reported = await exam.done(WIRE_VERSION_CODE, {})
    exam.require(reported[WIRE_VERSION_FIELD] == str(BROKER_WIRE_VERSION),
                 f"the version of frames is {reported}")
    bounds = await _bounds(exam)
    reading = exam.begin(_read_to(exam, bounds.end_offset, topic, 5))
    await exam.client.pause(0.1)
    sent_ms = exam.now_ms()
    good = PutRequest(
        topic=topic, queue_id=1, bodies=(b"n0", b"", b"n2"), flag=7, born_timestamp=sent_ms - 5,
        properties=encode_properties({"KEYS": "native", "TAGS": "A", "n": "3"}),
    )
    first, wrong, other = cast(Sequence[PutAnswer], await exam.natives(
        good, attrs.evolve(good, queue_id=9), attrs.evolve(
            good, bodies=(b"n3", b"n4"), born_timestamp=0,
            properties=encode_properties({"KEYS": "native", "TAGS": "A", "n": "3", "WAIT": "false"}),
        ),
    ))
    exam.prompt(sent_ms, "the answer to native frames", 1500)
    _refused(exam, "a queue that is not there", wrong)
    for answer, at, count in ((first, 0, 3), (other, 3, 2)):
        exam.require((answer.code, answer.queue_id, answer.queue_offset, len(answer.offsets))
                     == (0, 1, at, count), f"{count} messages are answered with {answer}")
    await exam.reaches(topic, 5, 1)
    messages = messages_in((await exam.pull(topic, 0, queue_id=1)).body)
    places = [*first.offsets, *other.offsets]
    exam.require([one.physical_offset for one in messages] == places,
                 f"messages at {places} are in their queue as {messages}")
    for number, one in enumerate(messages):
        found = one.body, one.flag, one.keys, one.tags, one.properties["n"], one.queue_offset
        wanted = ((b"n0", b"", b"n2", b"n3", b"n4")[number], 7, ("native",), "A", "3", number)
        exam.require(found == wanted, f"a native message is {found}, not {wanted}")
        answered = first if number < 3 else other
        exam.require(one.store_timestamp == answered.store_timestamp,
                     f"a message of {one.store_timestamp} is answered with {answered.store_timestamp}")
        born = one.born_timestamp == sent_ms - 5 if number < 3 else 0 <= one.born_timestamp - sent_ms < 900
        exam.require(born, f"{one.body!r} of {sent_ms} was born at {one.born_timestamp}")
    read = await reading
    if read:  # a raft log has other readers
        exam.prompt(sent_ms, "what a reader waits for")
        exam.require(read == messages, f"a reader got {read} of {messages}")
        await _read_anywhere(exam, messages)
    await _put_otherwise(exam, topic)
    await _delayed(exam, topic)


async def _bounds(exam: Examiner) -> OffsetsAnswer:
    (answer,) = await exam.natives(OffsetsRequest())
    bounds = cast(OffsetsAnswer, answer)
    exam.require(bounds.code == 0 and bounds.broker_name == "b" and bounds.file_size > 0
                 and 0 <= bounds.begin_offset <= bounds.flushed_offset
                 and bounds.begin_offset <= bounds.end_offset, f"the bounds of the log are {bounds}")
    return bounds


async def _read(exam: Examiner, at: int, max_bytes: int = 1 << 20, wait_ms: int = 0) -> ReadAnswer:
    (answer,) = await exam.natives(ReadRequest(begin_offset=at, max_bytes=max_bytes, wait_ms=wait_ms))
    return cast(ReadAnswer, answer)


async def _read_to(exam: Examiner, at: int, topic: str, count: int) -> list[Message]:
    """
    Follow the log.

    @return: the first C{count} messages of a topic from C{at} on; none if the log is that of a raft group.
    """
    found: list[Message] = []
    while len(found) < count:
        answer = await _read(exam, at, wait_ms=2500)
        if answer.code == QUERY_NOT_FOUND and answer.log_begin_offset <= at and "raft" in answer.remark:
            return []
        found += [one for one in _records(exam, answer, at) if one.topic == topic]
        at = answer.next_offset
    return found[:count]


def _records(exam: Examiner, answer: ReadAnswer, at: int) -> list[Message]:
    """The records of an answer: whole ones, one after the other, at their places."""
    exam.require(answer.code == 0, f"a reader at {at} is answered with {answer.code} {answer.remark}")
    if not answer.records:
        exam.require(answer.next_offset >= at, f"a reader at {at} goes on at {answer.next_offset}")
        return []
    exam.require(answer.log_begin_offset <= at <= answer.begin_offset < answer.next_offset
                 <= answer.log_end_offset, f"a reader at {at} got {attrs.evolve(answer, records=b'')}")
    messages, place = messages_in(answer.records), answer.begin_offset
    for one in messages:
        exam.require(one.physical_offset == place, f"the record of {one.physical_offset} is at {place}")
        place += one.size
    exam.require(place <= answer.next_offset, f"records up to {place} lead to {answer.next_offset}")
    return messages


async def _read_anywhere(exam: Examiner, messages: Sequence[Message]) -> None:
    """One record at a time, from each on; and from wrong places."""
    for one in messages:
        answer = await _read(exam, one.physical_offset, 1)
        exam.require(_records(exam, answer, one.physical_offset) == [one],
                     f"a byte from {one.physical_offset} on is answered with {answer}")
    many = _records(exam, await _read(exam, messages[0].physical_offset), messages[0].physical_offset)
    exam.require(many[0] == messages[0], f"{messages[0].physical_offset} has {many[0]}")
    bounds = await _bounds(exam)
    for at, code in ((messages[0].physical_offset + 1, QUERY_NOT_FOUND), (bounds.begin_offset, 0),
                     (bounds.begin_offset - 1, PULL_OFFSET_MOVED), (bounds.end_offset + 4096, 0)):
        answer = await _read(exam, at)
        is_right = answer.code == code and (code != PULL_OFFSET_MOVED
                                            or answer.next_offset == bounds.begin_offset)
        exam.require(is_right, f"a reader at {at}, of {bounds}, is answered with {answer.code} "
                               f"{answer.next_offset} {answer.remark}")


def _refused(exam: Examiner, what: str, answer: PutAnswer) -> None:
    is_refused = answer.code not in (0, 10, 11, 12) and not answer.offsets
    exam.require(is_refused, f"{what} is answered with {answer}")


async def _put_otherwise(exam: Examiner, topic: str) -> None:
    """What must be refused; and a queue that the broker chooses."""
    good = PutRequest(topic=topic, queue_id=0, bodies=(b"x",), properties=encode_properties({"KEYS": "nx"}))
    half = encode_properties({"TRAN_MSG": "true", "PGROUP": "EG"})
    cases = (
        ("a topic with a bad name", attrs.evolve(good, topic="a topic")),
        ("a frame without messages", attrs.evolve(good, bodies=())),
        ("a half message", attrs.evolve(good, properties=half)),
        ("flags of a half message", attrs.evolve(good, sys_flag=4)),
        ("a time", attrs.evolve(good, properties=encode_properties({"TIMER_DELAY_SEC": "1"}))),
        ("a body that no file holds", attrs.evolve(good, bodies=(b"x", bytes(5 << 20)))),
        ("long properties", attrs.evolve(good, properties=b"long\x01" + b"x" * 32_000)),
    )
    for (what, _), answer in zip(cases, await exam.natives(*(one for _, one in cases)), strict=True):
        _refused(exam, what, cast(PutAnswer, answer))
    await exam.reaches(topic, 0, 0)
    await exam.reaches(topic, 5, 1)
    (answer,) = await exam.natives(attrs.evolve(good, queue_id=-1))
    chosen = cast(PutAnswer, answer)
    exam.require((chosen.code, chosen.queue_offset) == (0, (0, 5)[chosen.queue_id]),
                 f"a message for any queue is answered with {chosen}")
    await exam.reaches(topic, chosen.queue_offset + 1, chosen.queue_id)


async def _delayed(exam: Examiner, topic: str) -> None:
    """A message with a level comes at its time, in its own queue."""
    at = await exam.end_of(topic, 0)
    due_ms = exam.now_ms() + 2000
    (answer,) = await exam.natives(PutRequest(
        topic=topic, queue_id=0, bodies=(b"later",), properties=encode_properties({"DELAY": "2"}),
    ))
    put = cast(PutAnswer, answer)
    exam.require((put.code, put.queue_id) == (0, 0), f"a message for later is answered with {put}")
    came = await exam.pull(topic, at, wait_ms=2900)
    while came.code != 0:
        exam.prompt(due_ms, "a native message for later", LATE_MS)
        came = await exam.pull(topic, at, wait_ms=900)
    exam.prompt(due_ms, "a native message for later", LATE_MS)
    (message,) = messages_in(came.body)
    exam.require(message.body == b"later" and message.store_timestamp >= due_ms,
                 f"a message for {due_ms} is {message}")
