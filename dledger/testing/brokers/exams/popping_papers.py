# -*- test-case-name: tests.sim.test_exams -*-
"""What a group gets by POP, when it gets it again, and when never."""

from __future__ import annotations

import base64
import json

from dledger.testing.brokers.exams.examiner import SEND, Examiner, messages_in
from dledger.testing.brokers.rig.accounts import RETRY_PREFIX
from protocols.wire.remoting import RemotingCommand
from protocols.wire.rocketmq.message import Message

POP, ACK, BATCH_ACK, CHANGE_INVISIBLE, SEND_BACK = 200_050, 200_051, 200_151, 200_053, 36
#: After its time a message comes again within this time, ms.
LATE_MS = 2300
#: A popped message is invisible for this time, ms: longer than some answers in a row, each of which may wait
#: for slow slaves.
INVISIBLE_MS = 3500
GROUP, ORDER_GROUP, BACK_GROUP = "EP", "EQ", "ES"
#: From this version on a client says how often a message may come again.
VERSION = 317


async def pop(
    exam: Examiner, topic: str, most: int, *, wait_ms: int = 0, invisible_ms: int = INVISIBLE_MS,
    group: str = GROUP, in_order: bool = False, **more: object,
) -> RemotingCommand:
    """Pop from all queues of a topic. @param most: number of messages. @return: the answer."""
    asked_ms = exam.now_ms()
    answer = await exam.ask(POP, {
        "consumerGroup": group, "topic": topic, "queueId": -1, "maxMsgNums": most,
        "invisibleTime": invisible_ms, "pollTime": wait_ms, "bornTime": asked_ms, "initMode": 0,
        "expType": "TAG", "exp": "*", "order": str(in_order).lower(), **more,
    })
    if answer.code == 0:
        fields, count = answer.ext_fields, len(messages_in(answer.body))
        exam.require(0 < count <= most, f"a pop of {most} messages got {count}")
        exam.require(asked_ms <= int(fields["popTime"]) <= exam.now_ms()
                     and fields["invisibleTime"] == str(invisible_ms), f"a pop at {asked_ms} says {fields}")
    return answer


def receipts(exam: Examiner, answer: RemotingCommand, offsets: list[int]) -> list[tuple[Message, str]]:
    """The messages of one queue, which must be at these offsets, with their receipts."""
    messages, fields = messages_in(answer.body) if answer.code == 0 else [], answer.ext_fields
    found = [one.queue_offset for one in messages]
    exam.require(found == offsets, f"a pop got {answer.code} {found}, {offsets} are right")
    reported = fields["startOffsetInfo"], fields["msgOffsetInfo"]
    right = f"0 0 {offsets[0]}", f"0 0 {','.join(map(str, offsets))}"
    exam.require(reported == right, f"a pop of {offsets} says {reported}")
    return [(one, f"{offsets[0]} {fields['popTime']} {fields['invisibleTime']} {fields['reviveQid']} 0 b 0 "
                  f"{one.queue_offset}") for one in messages]


def place_of(topic: str, receipt: str, group: str = GROUP) -> dict[str, object]:
    """The fields by which a request names a popped message of queue 0."""
    return {"consumerGroup": group, "topic": topic, "queueId": 0, "offset": receipt.rpartition(" ")[2],
            "extraInfo": receipt}


async def pop_paper(exam: Examiner) -> None:
    """Six messages: some are acknowledged, one gets another time, two come again."""
    topic = await exam.topic(1)
    for number in range(6):
        await exam.send(topic, f"p{number}")
    await exam.reaches(topic, 6)
    one = receipts(exam, await pop(exam, topic, 2), [0, 1])
    two = receipts(exam, await pop(exam, topic, 3), [2, 3, 4])
    for ack in [exam.begin(exam.ask(ACK, place_of(topic, receipt))) for _, receipt in two[:2]]:
        exam.require((await ack).code == 0, "an acknowledgement is refused")
    pop_ms = int(two[2][1].split(" ")[1])
    await exam.done(BATCH_ACK, {}, json.dumps({"brokerName": "b", "acks": [{
        "t": topic, "c": GROUP, "r": "0", "q": 0, "so": 2, "rq": int(two[2][1].split(" ")[3]), "pt": pop_ms,
        "b": base64.b64encode(bytes([1 << 2])).decode(),
    }]}).encode())
    ((_, receipt),) = receipts(exam, await pop(exam, topic, 32), [5])
    changed = await exam.done(CHANGE_INVISIBLE, {**place_of(topic, receipt), "invisibleTime": 400})
    exam.require(changed["invisibleTime"] == "400", f"a new time of 400 ms is answered with {changed}")
    late = await exam.ask(ACK, place_of(topic, receipt))
    exam.require(late.code != 0, "a receipt counts after another time was given")
    visible_ms, first_ms = {"p5": int(changed["popTime"]) + 400}, {"p5": changed["popTime"]}
    for message, receipt in one:
        visible_ms[message.keys[0]] = sum(map(int, receipt.split(" ")[1:3]))
        first_ms[message.keys[0]] = receipt.split(" ")[1]
    await _again(exam, topic, visible_ms, first_ms)
    late = await exam.ask(ACK, place_of(topic, one[0][1]))
    exam.require(late.code != 0, "the receipt of a message that came again counts")
    answer = await pop(exam, topic, 32, wait_ms=1500)
    exam.require(answer.code == 210 and not answer.body,
                 f"after all acknowledgements a pop got {answer.code}")


async def _again(
    exam: Examiner, topic: str, visible_ms: dict[str, int], first_ms: dict[str, str]
) -> None:
    """
    All of these come again at their time: once, and p5 twice.

    @param visible_ms: by key, since 1970. @param first_ms: by key, when it was given first.
    """
    left, times = dict(visible_ms), dict.fromkeys(visible_ms, 1)
    while left:
        answer = await pop(exam, topic, 32, wait_ms=2500)
        now_ms, acks = exam.now_ms(), []
        for message in messages_in(answer.body) if answer.code == 0 else ():
            (key,), due_ms = message.keys, left.pop(message.keys[0], 0)
            exam.require(due_ms > 0, f"{key} came again, and was done")
            pop_ms = int(answer.ext_fields["popTime"])
            exam.require(due_ms <= pop_ms and now_ms <= due_ms + LATE_MS,
                         f"{key} was due at {due_ms}, and came at {pop_ms}, {now_ms}")
            exam.require((message.reconsume_times, message.topic) == (times[key], topic),
                         f"{key} came again in {message.topic} for the {message.reconsume_times}. time, "
                         f"not the {times[key]}.")
            exam.prompt(message.store_timestamp, f"after {key} was stored for a retry, the pop that waits")
            named = message.properties
            exam.require(named["1ST_POP_TIME"] == first_ms[key],
                         f"{key} was given first at {first_ms[key]}, and says {named['1ST_POP_TIME']}")
            if key == "p5" and times[key] == 1:
                times[key] = 2
                left[key] = pop_ms + INVISIBLE_MS
                continue
            receipt = message.properties["POP_CK"]
            name = topic if receipt.split(" ")[4] != "1" else f"{RETRY_PREFIX}{GROUP}_{topic}"
            place = {**place_of(name, receipt), "queueId": receipt.split(" ")[6]}
            acks.append(exam.begin(exam.ask(ACK, place)))
        for ack in acks:
            answer = await ack
            exam.require(answer.code == 0, f"an ack is answered with {answer.code} {answer.remark}")
        exam.require(all(now_ms <= one + LATE_MS for one in left.values()),
                     f"{left} do not come again: {now_ms}")


async def share_paper(exam: Examiner) -> None:
    """Pops of a topic with several queues: as many messages as they ask for, and each message once."""
    topic = await exam.topic(3)
    for number in range(9):
        await exam.send(topic, f"s{number}", queue_id=number % 3)
    await exam.reaches(topic, 3, 2)
    found: list[str] = []
    for most in (1, 4, 2, 32):
        answer = await pop(exam, topic, most, invisible_ms=60_000, group="EH")
        if answer.code == 0:
            found += [one.keys[0] for one in messages_in(answer.body)]
        exam.require(len(found) >= min(most, 2), f"a pop of {most} messages got {answer.code}: {found}")
    exam.require(sorted(found) == [f"s{number}" for number in range(9)], f"pops of nine messages got {found}")


async def order_paper(exam: Examiner) -> None:
    """A queue in order: nobody gets more of it until all that was given is done, or its time is over."""
    topic = await exam.topic(1)
    for number in range(4):
        await exam.send(topic, f"q{number}")
    await exam.reaches(topic, 4)

    async def pops(most: int, wait_ms: int = 0) -> RemotingCommand:
        return await pop(exam, topic, most, wait_ms=wait_ms, group=ORDER_GROUP, in_order=True, queueId=0)

    one, two = receipts(exam, await pops(2), [0, 1])
    exam.require((await pops(2)).code == 210, "a queue in order was given twice")
    waiting = exam.begin(pops(2, wait_ms=2500))
    await exam.done(ACK, place_of(topic, one[1], ORDER_GROUP))
    await exam.client.pause(0.1)
    exam.require(not waiting.called, "a queue in order was given before all of it was done")
    sent_ms = exam.now_ms()
    await exam.done(ACK, place_of(topic, two[1], ORDER_GROUP))
    three, four = receipts(exam, await waiting, [2, 3])
    exam.prompt(sent_ms, "the answer to a pop in order that waits", 600)
    await exam.done(ACK, place_of(topic, four[1], ORDER_GROUP))
    free_ms = sum(map(int, three[1].split(" ")[1:3]))
    await exam.client.pause(max(free_ms - exam.now_ms() - 500, 0) / 1000)
    answer = await pops(4, wait_ms=2500)
    now_ms = exam.now_ms()
    (again, receipt), *others = receipts(exam, answer, [2]) if answer.code else _of_order(exam, answer)
    exam.require(free_ms <= now_ms <= free_ms + LATE_MS,
                 f"a queue in order is free at {free_ms}, and was given at {now_ms}")
    exam.require(again.queue_offset == 2, f"{again.queue_offset} came again first")
    exam.require("0 qo0%2 1" in answer.ext_fields["orderCountInfo"],
                 f"the second time of a message: {answer.ext_fields['orderCountInfo']}")
    for _, other in others:
        await exam.done(ACK, place_of(topic, other, ORDER_GROUP))
    changed = await exam.done(CHANGE_INVISIBLE, {
        **place_of(topic, receipt, ORDER_GROUP), "invisibleTime": 300,
    })
    pop_ms = receipt.split(" ")[1]
    free_ms = int(changed["popTime"]) + int(changed["invisibleTime"])
    exam.require(changed["popTime"] == pop_ms and 0 <= free_ms - exam.now_ms() <= 300,
                 f"300 ms more for a message in order are answered with {changed}")
    answer = await pops(1, wait_ms=2500)
    exam.require(exam.now_ms() >= free_ms, "a message in order came before its new time")
    exam.prompt(free_ms, "a message in order after its new time")
    ((_, receipt),) = receipts(exam, answer, [2])
    exam.require("0 qo0%2 2" in answer.ext_fields["orderCountInfo"],
                 f"the third time of a message: {answer.ext_fields['orderCountInfo']}")
    await exam.done(ACK, place_of(topic, receipt, ORDER_GROUP))


def _of_order(exam: Examiner, answer: RemotingCommand) -> list[tuple[Message, str]]:
    """The messages of an answer in order: one, and perhaps the one after it."""
    offsets = [one.queue_offset for one in messages_in(answer.body)]
    exam.require(offsets in ([2], [2, 3]), f"a pop in order got {offsets}")
    return receipts(exam, answer, offsets)


async def back_paper(exam: Examiner) -> None:
    """A message that is sent back twice, then given up; and one that a consumer sends itself."""
    topic = await exam.topic(1)
    await exam.send(topic, "b0", {"n": "3"}, body=b"back")
    await exam.reaches(topic, 1)
    (message,) = messages_in((await exam.pull(topic, 0, group=BACK_GROUP)).body)
    retries, graves = RETRY_PREFIX + BACK_GROUP, "%DLQ%" + BACK_GROUP
    origin = message.message_id
    at = {name: await exam.end_of(name) for name in (retries, graves)}
    for times in (1, 2, 3):
        level = 1 if times < 3 else 2
        sent_ms = exam.now_ms()
        await exam.done(SEND_BACK, {
            "group": BACK_GROUP, "offset": message.physical_offset, "delayLevel": level, "originMsgId": "b0",
            "originTopic": topic, "unitMode": "false", "maxReconsumeTimes": 2,
        }, version=VERSION)
        place, due_ms = (retries, sent_ms + 1000) if times < 3 else (graves, sent_ms)
        answer = await exam.pull(place, at[place], wait_ms=2500, group=BACK_GROUP)
        came_ms = exam.now_ms()
        messages = messages_in(answer.body) if answer.code == 0 else []
        exam.require([one.keys for one in messages] == [("b0",)],
                     f"b0 was sent back for the {times}. time: {place} has {answer.code} {answer.remark} "
                     f"{[one.keys for one in messages]}")
        (message,) = messages
        at[place] += 1
        exam.require(due_ms <= came_ms <= due_ms + 1500, f"b0 was due at {due_ms}, and came at {came_ms}")
        named = message.properties
        found = (message.body, message.reconsume_times, named["RETRY_TOPIC"], named["ORIGIN_MESSAGE_ID"],
                 named["n"])
        exam.require(found == (b"back", times, topic, origin, "3"),
                     f"b0 came back as {found}, not of {origin}")
        if times == 1:
            await _by_tries(exam, message)


async def _by_tries(exam: Examiner, message: Message) -> None:
    """
    Without a level of its own, a message that has come again once waits for the level after the first one.
    One that a consumer sends itself is a dead letter if it has no tries left.
    """
    waiting = "SCHEDULE_TOPIC_XXXX"
    before = await exam.end_of(waiting, 3)
    await exam.done(SEND_BACK, {
        "group": "ER", "offset": message.physical_offset, "delayLevel": 0, "originMsgId": "b0",
        "originTopic": message.topic, "unitMode": "false", "maxReconsumeTimes": 9,
    }, version=VERSION)
    await exam.reaches(waiting, before + 1, 3)
    ends = {name: await exam.end_of(name) for name in (f"{RETRY_PREFIX}ER", "%DLQ%ER")}
    for times, name in ((1, f"{RETRY_PREFIX}ER"), (2, "%DLQ%ER"), (3, "%DLQ%ER")):
        named = {"KEYS": "b1", "UNIQ_KEY": f"b{times}", "RETRY_TOPIC": message.topic}
        fields = exam.send_fields(f"{RETRY_PREFIX}ER", 0, named, a="CLIENT_INNER_PRODUCER", d=1, j=times, l=2)
        await exam.done(SEND, fields, version=VERSION)
        ends[name] += 1
        for one, end in ends.items():
            await exam.reaches(one, end)
        (sent,) = messages_in((await exam.pull(name, ends[name] - 1, group="ER")).body)
        exam.require((sent.keys, sent.reconsume_times) == (("b1",), times),
                     f"b1 of try {times} is {sent.keys} of try {sent.reconsume_times} in {name}")

