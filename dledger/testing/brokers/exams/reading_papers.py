# -*- test-case-name: tests.sim.test_exams -*-
"""What consumers and tools read of a topic whose every message is known."""

from __future__ import annotations

import json

from dledger.testing.brokers.exams.examiner import (
    MAKE_TOPIC,
    PULL,
    SEND,
    Examiner,
    messages_in,
    topic_fields,
)
from protocols.wire.remoting import RemotingCommand
from protocols.wire.rocketmq.message import BatchItem, Message, encode_batch, encode_properties

SEND_BATCH, QUERY_MESSAGE, VIEW_MESSAGE = 320, 12, 33
QUERY_OFFSET, SEARCH_OFFSET, MIN_OFFSET, EARLIEST = 14, 29, 31, 32
TOPIC_STATS, CONSUME_STATS, LOCK, UNLOCK = 202, 208, 41, 42

#: Of the load: its first messages may have expired.
OLD_TOPIC = "T1"


async def read_paper(exam: Examiner) -> None:
    """A producer's messages, one after the other; a consumer that waits for each."""
    topic = await exam.topic()
    waiting = exam.begin(exam.pull(topic, 0, wait_ms=2500))
    await exam.client.pause(0.2)
    sent_ms = exam.now_ms()
    answered = await exam.send(topic, "e0", {"n": "7"}, body=b"first")
    answer = await waiting
    exam.prompt(sent_ms, "the answer to a pull that waits")
    (first,) = _found(exam, answer, 0, 1, 1)
    _same(exam, first, answered, "e0", b"first")
    named = first.properties
    exam.require((named["n"], first.tags, first.reconsume_times, first.flag) == ("7", "A", 0, 0),
                 f"e0 has {named}")
    exam.require(0 <= first.store_timestamp - sent_ms <= 900 and abs(first.born_timestamp - sent_ms) <= 1,
                 f"e0 was sent at {sent_ms}, born at {first.born_timestamp}, stored at "
                 f"{first.store_timestamp}")
    keys = [f"e{number}" for number in range(1, 4)]
    batch = encode_batch([BatchItem(flag=5, body=key.encode(), properties_data=encode_properties(
        {"KEYS": key, "UNIQ_KEY": key, "TAGS": "A"})) for key in keys])
    answered = await exam.done(SEND_BATCH, exam.send_fields(topic, 0, {}, m="true"), batch)
    places = answered["msgId"].split(",")
    exam.require(answered["queueOffset"] == "1" and len(places) == 3, f"a batch is answered with {answered}")
    await exam.client.pause(0.05)
    more = await exam.send(topic, "e4", tag="B", body=b"last")
    exam.require(more["queueOffset"] == "4", f"e4 is answered with {more}")
    await exam.reaches(topic, 5)
    messages = _found(exam, await exam.pull(topic, 0), 0, 5, 5)
    exam.require([one.keys for one in messages] == [(f"e{number}",) for number in range(5)],
                 f"the queue has {[one.keys for one in messages]}")
    for one, key, place in zip(messages[1:4], keys, places, strict=True):
        is_there = one.physical_offset == int(place[-16:], 16)
        exam.require(one.body == key.encode() and one.flag == 5 and is_there,
                     f"{key} of the batch has flag {one.flag}, and is at {one.physical_offset}, not {place}")
    _same(exam, messages[4], more, "e4", b"last")
    await _bounds(exam, topic, messages)
    await _filtered(exam, topic)
    await _looked_up(exam, topic, messages)
    await _several_keys(exam, topic)
    for queue_id in range(2):
        await _expired(exam, OLD_TOPIC, queue_id)
    await _refused(exam, topic, messages[-1].physical_offset)


def _found(exam: Examiner, answer: RemotingCommand, at: int, following: int, end: int) -> list[Message]:
    """The messages of a pull that gets all from C{at} to before C{following}; the queue ends at C{end}."""
    fields, messages = answer.ext_fields, messages_in(answer.body) if answer.code == 0 else []
    exam.require(answer.code == 0 and [one.queue_offset for one in messages] == list(range(at, following)),
                 f"a pull at {at} got {answer.code} {[one.queue_offset for one in messages]}")
    bounds = tuple(int(fields[name]) for name in ("nextBeginOffset", "minOffset", "maxOffset"))
    exam.require(bounds == (following, 0, end),
                 f"a pull at {at} says {bounds}, {(following, 0, end)} is right")
    return messages


def _same(exam: Examiner, message: Message, answered: dict[str, str], key: str, body: bytes) -> None:
    place = int(answered["queueId"]), int(answered["queueOffset"]), int(answered["msgId"][-16:], 16)
    found = message.queue_id, message.queue_offset, message.physical_offset
    exam.require(message.keys == (key,) and message.body == body and found == place,
                 f"{key} was answered with {place}, and is {message.keys} at {found}")


async def _bounds(exam: Examiner, topic: str, messages: list[Message]) -> None:
    """Pulls at every place, and at wrong ones; limits; searches by time."""
    end = len(messages)
    for at in range(end):
        following = min(at + 2, end)
        _found(exam, await exam.pull(topic, at, most=2), at, following, end)
    for at, code, following in ((end, 19, end), (end + 7, 21, 0)):
        answer = await exam.pull(topic, at)
        exam.require((answer.code, int(answer.ext_fields["nextBeginOffset"])) == (code, following),
                     f"a pull at {at} of {end} is answered with {answer.code} {answer.ext_fields}")
    place = {"topic": topic, "queueId": 0}
    exam.require(await exam.end_of(topic) == end, "the end of a queue is wrong")
    exam.require((await exam.done(MIN_OFFSET, place))["offset"] == "0", "the begin of a queue is wrong")
    times = [one.store_timestamp for one in messages]
    exam.require((await exam.done(EARLIEST, place))["timestamp"] == str(times[0]),
                 "the earliest time is wrong")
    for time_ms in sorted({times[0] - 1, *times, *(one + 1 for one in times)}):
        wanted = next((at for at, one in enumerate(times) if one >= time_ms), end)
        found = int((await exam.done(SEARCH_OFFSET, {**place, "timestamp": time_ms}))["offset"])
        exam.require(found == wanted, f"a search for {time_ms} in {times} found {found}")
        fields = {**place, "timestamp": time_ms, "boundaryType": "UPPER"}
        found = int((await exam.done(SEARCH_OFFSET, fields))["offset"])
        wanted = max(sum(one <= time_ms for one in times) - 1, 0)
        exam.require(found == wanted, f"a search for the last of {time_ms} in {times} found {found}")
    stats = await exam.ask(TOPIC_STATS, {"topic": topic})
    reported = b'"topic":"%s"}:{"lastUpdateTimestamp":%d,"maxOffset":%d,"minOffset":0}' % (
        topic.encode(), times[-1], end)
    exam.require(reported in stats.body,
                 f"the statistics of {topic} are {stats.body!r}, without {reported!r}")
    two = messages[0].size + messages[1].size
    for sub, size, wanted in (("*", 1, 1), ("*", two - 1, 1), ("*", two, 2), ("A", two, 2), ("A", 1, 1)):
        answer = await exam.pull(topic, 0, sub=sub, maxMsgBytes=size)
        found = len(messages_in(answer.body))
        exam.require((found, answer.ext_fields["nextBeginOffset"]) == (wanted, str(wanted)),
                     f"a pull of {size} bytes of {sub} got {found}, {wanted} are right")


async def _filtered(exam: Examiner, topic: str) -> None:
    """Tags: what passes, what does not, and a consumer that waits behind what does not."""
    for at, sub, wanted, following in ((0, "B", [4], 5), (0, "A", [0, 1, 2, 3], 5), (4, "A || B", [4], 5),
                                       (1, "C || A", [1, 2, 3], 5)):
        answer = await exam.pull(topic, at, sub=sub)
        found = [one.queue_offset for one in messages_in(answer.body)] if answer.code == 0 else []
        exam.require(found == wanted and int(answer.ext_fields["nextBeginOffset"]) == following,
                     f"a pull of {sub} at {at} got {found} {answer.ext_fields}")
    for most in (1, 2, 3):
        answer = await exam.pull(topic, 0, sub="A", most=most)
        found = [one.queue_offset for one in messages_in(answer.body)]
        exam.require(found == list(range(most)) and answer.ext_fields["nextBeginOffset"] == str(most),
                     f"a pull of {most} with tag A got {found} {answer.ext_fields}")
    answer = await exam.pull(topic, 0, sub="C")
    exam.require((answer.code, answer.ext_fields["nextBeginOffset"]) == (20, "5"),
                 f"a pull of what is not there is answered with {answer.code} {answer.ext_fields}")
    waiting = exam.begin(exam.pull(topic, 5, wait_ms=600, sub="C"))
    await exam.client.pause(0.2)
    await exam.send(topic, "e5")
    answer = await waiting
    exam.require((answer.code, answer.ext_fields["nextBeginOffset"]) == (20, "6"),
                 f"a pull that has waited in vain is answered with {answer.code} {answer.ext_fields}")
    waiting = exam.begin(exam.pull(topic, 6, wait_ms=2500, sub="C"))
    await exam.client.pause(0.1)
    await exam.send(topic, "e6")
    await exam.client.pause(0.1)
    sent_ms = exam.now_ms()
    await exam.send(topic, "e7", tag="C")
    answer = await waiting
    exam.prompt(sent_ms, "the answer to a pull that waits for a tag")
    keys = [one.keys for one in messages_in(answer.body)]
    exam.require(keys == [("e7",)], f"a pull that waits for a tag got {keys}")


async def _looked_up(exam: Examiner, topic: str, messages: list[Message]) -> None:
    """By place, and by key within a time."""
    for one in messages:
        answer = await exam.ask(VIEW_MESSAGE, {"offset": one.physical_offset})
        exam.require(answer.code == 0 and messages_in(answer.body) == [one],
                     f"there is {answer.code} {answer.remark} at {one.physical_offset}")
        (key,), at_ms = one.keys, one.store_timestamp
        for begin_ms, end_ms, is_there in (
            (0, 1 << 60, True), (at_ms - 1500, at_ms + 1500, True), (at_ms + 2500, 1 << 60, False),
            (0, at_ms - 2500, False),
        ):
            found = await _by_key(exam, {
                "topic": topic, "key": key, "maxNum": 8, "beginTimestamp": begin_ms, "endTimestamp": end_ms,
            }, is_there=is_there)
            exam.require(found == ([one] if is_there else []),
                         f"{key} of {at_ms}, from {begin_ms} to {end_ms}: {[each.keys for each in found]}")


async def _by_key(exam: Examiner, fields: dict[str, object], *, is_there: bool) -> list[Message]:
    began_ms = exam.now_ms()
    while True:
        answer = await exam.ask(QUERY_MESSAGE, fields)
        if answer.code == 0:
            return messages_in(answer.body)
        if not is_there:
            return []
        exam.prompt(began_ms, f"the index of {fields['key']}", 3000)  # it is a little behind
        await exam.client.pause(0.2)


async def _several_keys(exam: Examiner, topic: str) -> None:
    """A message is found by each of its keys, and the newest ones by one that several have."""
    for number in range(3):
        await exam.done(SEND, exam.send_fields(topic, 1, {
            "KEYS": f"one{number} all", "UNIQ_KEY": f"u{number}", "TAGS": "A",
        }))
    for key, most, named, wanted in (
        ("one1", 8, {}, [1]), ("all", 8, {}, [0, 1, 2]), ("u2", 1, {"_UNIQUE_KEY_QUERY": "true"}, [2]),
        ("all", 2, {}, [1, 2]), ("al", 8, {}, []), ("one1 all", 8, {}, []), ("k" * 40_000, 8, {}, []),
    ):
        fields = {"topic": topic, "key": key, "maxNum": most, "beginTimestamp": 0, "endTimestamp": 1 << 60}
        began_ms = exam.now_ms()
        while True:  # the index is a little behind
            answer = await exam.ask(QUERY_MESSAGE, {**fields, **named})
            found = [one.queue_offset for one in messages_in(answer.body)] if answer.code == 0 else []
            if found == wanted:
                break
            exam.prompt(began_ms, f"of {wanted} {found} are found by {key:.20}, and the rest", 3000)
            await exam.client.pause(0.2)


async def _expired(exam: Examiner, topic: str, queue_id: int) -> None:
    """A consumer whose messages have expired goes on with the first one that is left."""
    place = {"topic": topic, "queueId": queue_id}
    begin = int((await exam.done(MIN_OFFSET, place))["offset"])
    for boundary in ("LOWER", "UPPER"):
        search = {**place, "timestamp": 1, "boundaryType": boundary}
        found = (await exam.done(SEARCH_OFFSET, search))["offset"]
        exam.require(found == str(begin), f"a search in a queue that begins at {begin} found {found}")
    new = await exam.ask(QUERY_OFFSET, {**place, "consumerGroup": "nobody"})
    reported = new.code, new.ext_fields.get("offset")
    exam.require(reported == ((22, None) if begin else (0, "0")),
                 f"a new group in a queue that begins at {begin} is answered with {reported}")
    if begin > 0:
        answer = await exam.pull(topic, begin - 1, queue_id=queue_id)
        reported = answer.code, answer.ext_fields["nextBeginOffset"]
        exam.require(reported == (21, str(begin)),
                     f"a pull before {begin}, the first message, says {reported}")


async def _refused(exam: Examiner, topic: str, offset: int) -> None:
    """Pulls and views that must be refused."""
    pull = {
        "consumerGroup": "EC", "topic": topic, "queueId": 0, "queueOffset": 0, "maxMsgNums": 8, "sysFlag": 4,
        "commitOffset": 0, "suspendTimeoutMillis": 0, "subVersion": 0, "subscription": "*",
    }
    for what, code, fields in (
        ("a pull of no topic", PULL, {**pull, "topic": "nothing"}),
        ("a pull of no queue", PULL, {**pull, "queueId": 9}),
        ("a pull of a queue below 0", PULL, {**pull, "queueId": -1}),
        ("a pull without a subscription", PULL, {**pull, "sysFlag": 0, "consumerGroup": "nobody"}),
        ("a pull with a strange filter", PULL, {**pull, "expressionType": "XPATH"}),
        ("a view of the middle of a message", VIEW_MESSAGE, {"offset": offset + 1}),
        ("a view of what is not there yet", VIEW_MESSAGE, {"offset": 1 << 40}),
    ):
        answer = await exam.ask(code, fields)
        exam.require(answer.code not in (0, 19, 20, 21), f"{what} is answered with {answer.code}")


async def place_paper(exam: Examiner) -> None:
    """Offsets of a group, and queues that are lent."""
    topic = await exam.topic()
    for number in range(3):
        await exam.send(topic, f"o{number}", queue_id=1)
    await exam.reaches(topic, 3, 1)
    group = "EO"
    await exam.pull(topic, 0, queue_id=1, group=group)
    place = {"consumerGroup": group, "topic": topic, "queueId": 1}
    for offset in (2, 1, 3):
        await exam.commit(group, topic, 1, offset)
        found = (await exam.done(QUERY_OFFSET, place))["offset"]
        exam.require(found == str(offset), f"offset {offset} was committed, and {found} is known")
    other = await exam.ask(QUERY_OFFSET, {**place, "queueId": 0})
    exam.require(other.code == 22 or other.ext_fields.get("offset") == "0",
                 f"a queue without an offset has {other.code} {other.ext_fields}")
    stats = await exam.ask(CONSUME_STATS, {"consumerGroup": group, "topic": topic})
    exam.require(b'"consumerOffset":3' in stats.body, f"the statistics of {group} are {stats.body!r}")
    lent = {"topic": topic, "brokerName": "b", "queueId": 1}

    def asks(client: str) -> bytes:
        return json.dumps({"consumerGroup": group, "clientId": client, "mqSet": [lent]}).encode()

    for code, client, wanted in (
        (LOCK, "one", True), (LOCK, "two", False), (LOCK, "one", True), (UNLOCK, "two", None),
        (LOCK, "two", False), (UNLOCK, "one", None), (LOCK, "two", True), (LOCK, "one", False),
        (UNLOCK, "two", None),
    ):
        answer = await exam.ask(code, {}, asks(client))
        has = len(json.loads(answer.body)["lockOKMQSet"]) == 1 if code == LOCK else None
        exam.require(answer.code == 0 and has is wanted,
                     f"{client} asks for a queue with {code}: {answer.code} {answer.body!r}")


async def refusal_paper(exam: Examiner) -> None:
    """What must be refused stores nothing."""
    topic = await exam.topic()
    await exam.send(topic, "r0")
    named = {"KEYS": "rx", "UNIQ_KEY": "rx", "TAGS": "A"}
    item = encode_batch([BatchItem(flag=0, body=b"x", properties_data=encode_properties(named))])
    later = encode_properties({**named, "DELAY": "1"})
    late = encode_batch([BatchItem(flag=0, body=b"x", properties_data=later)])
    half = {**named, "TRAN_MSG": "true", "PGROUP": "EG"}
    cases: tuple[tuple[str, int, dict[str, object], bytes], ...] = (
        ("a body that no file holds", SEND, exam.send_fields(topic, 0, named), bytes(5 << 20)),
        ("a record that no file of the log holds", SEND, exam.send_fields(topic, 0, named), bytes(200_000)),
        ("a zero byte in a property", SEND, exam.send_fields(topic, 0, {**named, "zero": "a\0b"}), b""),
        ("a queue that is not there", SEND, exam.send_fields(topic, 9, named), b""),
        ("the queue after the last", SEND, exam.send_fields(topic, 2, named), b""),
        ("a topic with a bad name", SEND, exam.send_fields("a topic", 0, named), b""),
        ("a topic with a long name", SEND, exam.send_fields("t" * 200, 0, named), b""),
        ("a half message with a delay", SEND, exam.send_fields(topic, 0, {**half, "DELAY": "1"}, f=4), b""),
        ("a half message with a time", SEND,
         exam.send_fields(topic, 0, {**half, "TIMER_DELAY_SEC": "9"}, f=4), b""),
        ("flags of a half message", SEND, exam.send_fields(topic, 0, named, f=4), b""),
        ("a time that is not a number", SEND,
         exam.send_fields(topic, 0, {**named, "TIMER_DELAY_MS": "x"}), b""),
        ("a time that is far away", SEND,
         exam.send_fields(topic, 0, {**named, "TIMER_DELAY_SEC": "999999"}), b""),
        ("a batch without messages", SEND_BATCH, exam.send_fields(topic, 0, {}, m="true"), b""),
        ("a batch of half a message", SEND_BATCH, exam.send_fields(topic, 0, {}, m="true"), item[:-3]),
        ("a batch with a delay", SEND_BATCH, exam.send_fields(topic, 0, {"DELAY": "1"}, m="true"), item),
        ("a batch with a delayed message", SEND_BATCH, exam.send_fields(topic, 0, {}, m="true"), late),
        ("a batch with a time", SEND_BATCH,
         exam.send_fields(topic, 0, {"TIMER_DELAY_SEC": "9"}, m="true"), item),
        ("a batch of a transaction", SEND_BATCH, exam.send_fields(topic, 0, half, m="true"), item),
        ("a batch with flags of a half message", SEND_BATCH,
         exam.send_fields(topic, 0, {}, m="true", f=4), item),
        ("a batch for retries", SEND_BATCH, exam.send_fields("%RETRY%EC", 0, {}, m="true"), item),
    )
    for what, code, fields, body in cases:
        answer = await exam.ask(code, fields, body)
        exam.require(answer.code != 0, f"{what} is taken")
    answered = await exam.send(topic, "r1")
    changes: tuple[tuple[str, int, dict[str, object]], ...] = (
        ("a queue that is there no more", 1, {"readQueueNums": 1, "writeQueueNums": 1}),
        ("a topic that may only be read", 0, {"perm": 4}),
    )
    for what, queue_id, changed in changes:
        await exam.done(MAKE_TOPIC, {**topic_fields(topic), **changed})
        answer = await exam.ask(SEND, exam.send_fields(topic, queue_id, named))
        exam.require(answer.code != 0, f"a message for {what} is taken")
        await exam.done(MAKE_TOPIC, topic_fields(topic))
    await exam.reaches(topic, 2)
    await exam.reaches(topic, 0, 1)
    exam.require(answered["queueOffset"] == "1", f"after refusals a message is answered with {answered}")
