# -*- test-case-name: tests.sim.test_exams -*-
"""What begins anew: topics that are made again, groups whose members or offsets change."""

from __future__ import annotations

import json

from dledger.testing.brokers.exams.examiner import (
    COMMIT_OFFSET,
    MAKE_TOPIC,
    SEND,
    Examiner,
    messages_in,
    topic_fields,
)
from dledger.testing.brokers.exams.popping_papers import ACK, place_of, pop, receipts
from dledger.testing.brokers.rig.asking import ClientMachine
from protocols.wire.remoting import RemotingCommand

HEART_BEAT, UNREGISTER, LIST_MEMBERS, MEMBERS, QUERY_MESSAGE, MIN_OFFSET = 34, 35, 38, 203, 12, 31
END_TRANSACTION, CHECK_TRANSACTION, MEMBERS_CHANGED, RESET_CLIENT = 37, 39, 40, 220
#: Producers that register: their half messages are asked about.
TRANSACTION_GROUP = "ET"


async def remade_paper(exam: Examiner) -> None:
    """A topic that is deleted and made again has nothing of before, also not what was popped or half sent."""
    topic, group, popping, late = await exam.topic(1), "EM", "EMP", "EML"

    def hear(command: RemotingCommand) -> None:
        is_old = command.code == CHECK_TRANSACTION and command.ext_fields["msgId"] == "gone"
        exam.require(not is_old, "a producer is asked about a message of a deleted topic")

    exam.asked.append(hear)
    for number in range(3):
        await exam.send(topic, f"g{number}")
    await exam.reaches(topic, 3)
    receipts(exam, await pop(exam, topic, 1, invisible_ms=900, group=popping), [0])
    await exam.pull(topic, 0, group=group)
    await exam.commit(group, topic, 0, 2)
    await exam.pull(topic, 0, group=late)
    named = {"KEYS": "gone", "UNIQ_KEY": "gone", "TAGS": "A", "TRAN_MSG": "true", "PGROUP": TRANSACTION_GROUP}
    half = await exam.done(SEND, exam.send_fields(topic, 0, named, a=TRANSACTION_GROUP, f=4))
    end = {
        "producerGroup": TRANSACTION_GROUP, "tranStateTableOffset": half["queueOffset"], "msgId": "gone",
        "commitLogOffset": int(half["msgId"][-16:], 16), "commitOrRollback": 8,
        "fromTransactionCheck": "false",
    }
    await exam.delete(topic)
    for what, answer in (
        ("a pull", await exam.pull(topic, 0)), ("a pop", await pop(exam, topic, 1, group=popping)),
        ("the end of a half message", await exam.ask(END_TRANSACTION, end)),
    ):
        exam.require(answer.code not in (0, 19, 20, 21, 210), f"{what} of a deleted topic is answered with "
                                                              f"{answer.code} {answer.remark}")
    await exam.done(MAKE_TOPIC, topic_fields(topic, 1))
    known = await exam.offset_of(group, topic)
    answered = await exam.send(topic, "h0")
    first = int(answered["queueOffset"])
    # On a raft log the numbers go on; masters with slaves begin at 0 again.
    exam.require(first == 0 or first == 3 and not exam.copies(),
                 f"the first message of a new topic is answered with {answered}")
    exam.require(known in (-1, first), f"a group has offset {known} in a topic that begins at {first}")
    await exam.reaches(topic, first + 1)
    answer = await exam.ask(COMMIT_OFFSET, {
        "consumerGroup": late, "topic": topic, "queueId": 0, "commitOffset": first + 1,
    })
    exam.require(answer.code != 0, "a commit of who has read the deleted topic counts")
    known = await exam.offset_of(late, topic)
    exam.require(known in (-1, first), f"a late commit has set the offset to {known}")
    found = [one.keys for one in messages_in((await exam.pull(topic, first)).body)]
    exam.require(found == [("h0",)], f"a topic that was made again has {found}")
    begin = (await exam.done(MIN_OFFSET, {"topic": topic, "queueId": 0}))["offset"]
    exam.require(begin == str(first), f"a topic with {first} as its first message begins at {begin}")
    for key, wanted in (("g0", []), ("h0", [("h0",)])):
        fields = {"topic": topic, "key": key, "maxNum": 8, "beginTimestamp": 0, "endTimestamp": 1 << 60}
        began_ms = exam.now_ms()
        while True:  # the index is a little behind
            found = [one.keys for one in messages_in((await exam.ask(QUERY_MESSAGE, fields)).body)]
            if found == wanted:
                break
            exam.prompt(began_ms, f"{key} of a topic that was made again is found as {found}, and that", 3000)
            await exam.client.pause(0.2)
    ((_, receipt),) = receipts(exam, await pop(exam, topic, 32, group=popping), [first])
    await exam.done(ACK, place_of(topic, receipt, popping))
    answer = await pop(exam, topic, 32, group=popping, wait_ms=2500)
    exam.require(answer.code == 210, f"of a deleted topic {[one.keys for one in messages_in(answer.body)]} "
                                     "comes again")
    answer = await exam.ask(END_TRANSACTION, end)
    exam.require(answer.code != 0, "a half message of a deleted topic is committed")
    await exam.reaches(topic, first + 1)


async def member_paper(exam: Examiner) -> None:
    """Two members of a group: their list, their subscriptions, and the notices about each other."""
    topic, group = await exam.topic(1), "EJ"
    for number, tag in enumerate("ABA"):
        await exam.send(topic, f"j{number}", tag=tag)
    await exam.reaches(topic, 3)
    reported = {"one": 0, "two": 0}

    def hear(name: str, command: RemotingCommand) -> None:
        changed = command.code == MEMBERS_CHANGED and command.ext_fields["consumerGroup"] == group
        reported[name] += changed

    exam.asked.append(lambda command: hear("one", command))
    exam.other_asked.append(lambda command: hear("two", command))

    async def beat(client: ClientMachine, name: str, tag: str, version: int) -> None:
        body = json.dumps({"clientID": name, "producerDataSet": [], "consumerDataSet": [{
            "groupName": group, "consumeType": "CONSUME_PASSIVELY", "messageModel": "CLUSTERING",
            "consumeFromWhere": "CONSUME_FROM_FIRST_OFFSET", "subscriptionDataSet": [{
                "topic": topic, "subString": tag, "expressionType": "TAG", "codeSet": [ord(tag)],
                "tagsSet": [tag], "subVersion": version,
            }],
        }]}).encode()
        answer = await client.ask(exam.master(), HEART_BEAT, {}, body)
        exam.require(answer is not None and answer.code == 0, f"a heartbeat is answered with {answer}")

    async def is_right(members: list[str], tag: str, version: int) -> None:
        """The group has these members, and gets the messages with a tag; an empty one: pulls are refused."""
        listed = await exam.ask(LIST_MEMBERS, {"consumerGroup": group})
        ids = json.loads(listed.body)["consumerIdList"] if listed.code == 0 else []
        exam.require(ids == members, f"{group} has the members {ids}, not {members}")
        table = await exam.ask(MEMBERS, {"consumerGroup": group})
        exam.require(table.body.count(b'"clientId"') == len(members),
                     f"of {members} {table.body!r} is reported")
        answer = await exam.pull(topic, 0, group=group, sysFlag=0, subVersion=version)
        found = [one.tags for one in messages_in(answer.body)] if answer.code == 0 else []
        exam.require(found == [one for one in "ABA" if one == tag] and (answer.code == 0) == bool(tag),
                     f"members {members} want {tag}, and get {answer.code} {answer.remark} {found}")

    await is_right([], "", 1)
    await beat(exam.client, "one", "A", 1)
    await is_right(["one"], "A", 1)
    await beat(exam.other, "two", "B", 2)
    await is_right(["one", "two"], "B", 2)
    await is_right(["one", "two"], "", 3)
    await beat(exam.client, "one", "A", 1)
    await is_right(["one", "two"], "B", 2)
    heard = dict(reported)
    answer = await exam.other.ask(exam.master(), UNREGISTER, {"clientID": "two", "consumerGroup": group})
    exam.require(answer is not None and answer.code == 0, f"a member that leaves is answered with {answer}")
    await is_right(["one"], "", 1)
    await beat(exam.client, "one", "A", 1)
    await is_right(["one"], "A", 1)
    exam.require(heard["one"] >= 2 and heard["two"] >= 1 and reported["one"] > heard["one"],
                 f"members heard of changes {heard}, then {reported} times")
    await beat(exam.other, "two", "B", 3)
    exam.other.hang_up(exam.master())
    began_ms = exam.now_ms()
    while b"two" in (await exam.ask(LIST_MEMBERS, {"consumerGroup": group})).body:
        exam.prompt(began_ms, "the end of a member whose connection ended")
        await exam.client.pause(0.1)


async def reset_paper(exam: Examiner) -> None:
    """Offsets that an administrator sets, to a place or to a time, and that a pop must leave alone."""
    topic, group = await exam.topic(1), "EV"
    for number in range(4):
        await exam.send(topic, f"v{number}")
        await exam.client.pause(0.05)
    await exam.reaches(topic, 4)
    messages = messages_in((await exam.pull(topic, 0, group=group)).body)
    times = [one.store_timestamp for one in messages]
    await exam.commit(group, topic, 0, 4)
    for offset, wanted in ((1, 1), (9, 1), (-2, 1), (4, 4), (0, 0)):
        answer = await exam.reset(topic, group, wanted, timestamp=0, isForce="true", queueId=0, offset=offset)
        found = await exam.offset_of(group, topic)
        exam.require((answer.code == 0, found) == (offset == wanted, wanted),
                     f"a reset to {offset} of 4 is answered with {answer.code}, and the offset is {found}")
    nobody = await exam.reset(topic, group, 2, timestamp=times[2], isForce="true")
    exam.require(nobody.code == 206, f"a reset without consumers is answered with {nobody.code}")
    await _reset_by_time(exam, topic, group, times)
    other = "EVP"
    popping = exam.begin(pop(exam, topic, 2, group=other))
    await exam.commit(other, topic, 0, 3)
    receipts(exam, await popping, [0, 1])
    found = await exam.offset_of(other, topic)
    exam.require(found == 3, f"offset 3 was set while messages were popped, and is {found}")
    await _end_group(exam, topic)


async def _reset_by_time(exam: Examiner, topic: str, group: str, times: list[int]) -> None:
    """The consumers of a group hear where to begin."""
    reported: list[bytes] = []

    def hear(command: RemotingCommand) -> None:
        if command.code == RESET_CLIENT and command.ext_fields["group"] == group:
            reported.append(command.body)

    exam.asked.append(hear)
    await exam.done(HEART_BEAT, {}, json.dumps({
        "clientID": "reset", "producerDataSet": [], "consumerDataSet": [{
            "groupName": group, "consumeType": "CONSUME_PASSIVELY", "messageModel": "CLUSTERING",
            "consumeFromWhere": "CONSUME_FROM_FIRST_OFFSET", "subscriptionDataSet": [],
        }],
    }).encode())
    for committed, time_ms, is_forced, wanted in (
        (1, times[2], "true", 2), (1, times[2], "false", 1), (3, times[2], "false", 2), (3, -1, "true", 4),
        (3, times[3] + 1, "true", 4), (3, times[0], "true", 0),
    ):
        await exam.commit(group, topic, 0, committed)
        count = len(reported)
        answer = await exam.reset(topic, group, wanted, timestamp=time_ms, isForce=is_forced)
        right = b'"topic":"%s"}:%d}' % (topic.encode(), wanted)
        exam.require(answer.code == 0 and right in answer.body,
                     f"a reset of {committed} to {time_ms} of {times}, forced: {is_forced}, is answered with "
                     f"{answer.code} {answer.body!r}, {wanted} is right")
        await exam.client.pause(0.05)
        exam.require(reported[count:] == [answer.body],
                     f"consumers hear {reported[count:]} of {answer.body!r}")


async def _end_group(exam: Examiner, topic: str) -> None:
    """What a group has popped counts as acknowledged when it is deleted with its offsets."""
    group = "EVG"
    receipts(exam, await pop(exam, topic, 2, group=group, invisible_ms=700), [0, 1])
    await exam.delete_group(group, topic)
    exam.require(await exam.offset_of(group, topic) <= 0, "a deleted group has an offset")
    answer = await pop(exam, topic, 4, group=group, invisible_ms=60_000)
    receipts(exam, answer, [0, 1, 2, 3])
    answer = await pop(exam, topic, 4, group=group, wait_ms=2500)
    found = [one.keys for one in messages_in(answer.body)] if answer.code == 0 else []
    exam.require(not found, f"{found} come again, which a group popped before it was deleted")
