# -*- test-case-name: tests.sim.test_exams -*-
"""What a master knows after a restart: all that it had answered in peace, if it was stopped or killed."""

from __future__ import annotations

import attrs

from dledger.testing.brokers.exams.examiner import (
    MAKE_TOPIC,
    MAX_OFFSET,
    QUERY_MESSAGE,
    SEND,
    Examiner,
    messages_in,
    topic_fields,
)
from dledger.testing.brokers.exams.popping_papers import ACK, CHANGE_INVISIBLE, place_of, pop, receipts
from protocols.wire.remoting import RemotingCommand

RECALL, END_TRANSACTION, CHECK_TRANSACTION, HEART_BEAT = 370, 37, 39, 34
COMMIT, ROLLBACK = 8, 12
GROUP, POPPING, IN_ORDER, PRODUCERS = "EY", "EYP", "EYO", "EYT"
#: Tables are on stable storage after this time, s.
KEPT_S = 2.5
#: A master serves again within this time, ms; then it has read its tables within the other one, s.
STARTED_MS, READ_S = 12_000, 1.2
LATE_MS = 2300
#: A producer is asked within this time, ms: it has had its time, and the next round has come.
ASKED_MS = 6000
SHORT_MS, LONG_MS = 4000, 60_000
_PRODUCER = b'{"clientID":"memory","producerDataSet":[{"groupName":"%s"}],"consumerDataSet":[]}' % (
    PRODUCERS.encode()
)


@attrs.define(kw_only=True)
class _Memory:
    """
    The facts from before a restart of the master.

    @ivar due_ms: of messages that will come, by key.
    @ivar killed_ms: when the process was killed; 0: it has ended in order.
    @ivar acked, held: receipts of the messages at 0 and 1.
    @ivar ordered: the receipt of the message at 0 in order.
    @ivar ends: the fields of the ends of four half messages, by key.
    @ivar asked: the keys of half messages about which producers were asked; of those after the restart alone,
        when it has come.
    """

    topic: str
    remade: str
    closed: str
    due_ms: dict[str, int] = attrs.Factory(dict)
    killed_ms: int = 0
    acked: str = ""
    held: str = ""
    ordered: str = ""
    ends: dict[str, dict[str, object]] = attrs.Factory(dict)
    asked: set[str] = attrs.Factory(set)


async def memory_paper(exam: Examiner) -> None:
    """In schedules in which the master may be restarted."""
    if not exam.restarts():
        return
    known = _Memory(topic=await exam.topic(1), remade=await exam.topic(1), closed=await exam.topic(1))
    for number in range(6):
        await exam.send(known.topic, f"k{number}")
    await exam.reaches(known.topic, 6)
    exam.asked.append(lambda command: _hear(known, command))
    await exam.done(HEART_BEAT, {}, _PRODUCER)
    await _half_send(exam, known, "kasked")
    await _end_asked(exam, known)
    await _pop_some(exam, known)
    await _half_send(exam, known, "kopen", "kdone", "kback")
    for key, end in (("kdone", COMMIT), ("kback", ROLLBACK)):
        await exam.done(END_TRANSACTION, {**known.ends[key], "commitOrRollback": end})
    await exam.reaches(known.topic, 7)
    await _send_for_later(exam, known)
    await _change_topics(exam, known)
    await exam.client.pause(KEPT_S)
    began_ms = exam.now_ms()
    known.killed_ms = 0 if exam.restart() else began_ms
    await exam.client.pause(0.3)
    while await exam.client.ask(exam.master(), MAX_OFFSET, {"topic": known.topic, "queueId": 0}) is None:
        exam.prompt(began_ms, "the start of a master", STARTED_MS)
        await exam.client.pause(0.1)
    await exam.done(HEART_BEAT, {}, _PRODUCER)
    await exam.client.pause(READ_S)
    await _judge_offsets(exam, known)
    await _judge_order(exam, known)
    await _judge_topics(exam, known)
    await _judge_ends(exam, known)
    await _judge_late(exam, known)


def _hear(known: _Memory, command: RemotingCommand) -> None:
    if command.code == CHECK_TRANSACTION:
        known.asked.add(command.ext_fields["msgId"])


async def _pop_some(exam: Examiner, known: _Memory) -> None:
    topic = known.topic
    await exam.pull(topic, 0, group=GROUP)
    await exam.commit(GROUP, topic, 0, 3)
    (_, acked), (_, held) = receipts(exam, await pop(
        exam, topic, 2, group=POPPING, invisible_ms=LONG_MS), [0, 1])
    await exam.done(ACK, place_of(topic, acked, POPPING))
    known.acked = acked
    known.held = held
    ((_, short),) = receipts(exam, await pop(exam, topic, 1, group=POPPING, invisible_ms=SHORT_MS), [2])
    known.due_ms["k2"] = sum(map(int, short.split(" ")[1:3]))
    (_, one), (_, two) = receipts(exam, await pop(
        exam, topic, 2, group=IN_ORDER, invisible_ms=900, in_order=True, queueId=0), [0, 1])
    await exam.done(CHANGE_INVISIBLE, {**place_of(topic, one, IN_ORDER), "invisibleTime": LONG_MS})
    await exam.done(ACK, place_of(topic, two, IN_ORDER))
    known.ordered = one


async def _half_send(exam: Examiner, known: _Memory, *keys: str) -> None:
    for key in keys:
        named = {"KEYS": key, "UNIQ_KEY": key, "TAGS": "A", "TRAN_MSG": "true", "PGROUP": PRODUCERS}
        fields = await exam.done(SEND, exam.send_fields(known.topic, 0, named, a=PRODUCERS, f=4))
        known.ends[key] = {
            "producerGroup": PRODUCERS, "tranStateTableOffset": fields["queueOffset"], "msgId": key,
            "commitLogOffset": int(fields["msgId"][-16:], 16), "fromTransactionCheck": "true",
        }


async def _end_asked(exam: Examiner, known: _Memory) -> None:
    """A transaction that was asked about, and so has a copy, ends by the place of its first message."""
    began_ms = exam.now_ms()
    while "kasked" not in known.asked:
        exam.prompt(began_ms, "a question about a transaction", ASKED_MS)
        await exam.client.pause(0.1)
    await exam.done(END_TRANSACTION, {**known.ends["kasked"], "commitOrRollback": ROLLBACK})
    known.asked.clear()


async def _change_topics(exam: Examiner, known: _Memory) -> None:
    for number in range(3):
        await exam.send(known.remade, f"gone{number}")
    await exam.delete(known.remade)
    await exam.done(MAKE_TOPIC, topic_fields(known.remade, 1))
    await exam.send(known.remade, "new")
    await exam.done(MAKE_TOPIC, {**topic_fields(known.closed, 1), "perm": 4})


async def _send_for_later(exam: Examiner, known: _Memory) -> None:
    for key, name, value, wait_ms in (
        ("klevel", "DELAY", "4", 5000), ("ktime", "TIMER_DELAY_MS", "5500", 5500),
        # Its time is over before the restart, while one before it still waits.
        ("ksoon", "TIMER_DELAY_MS", "900", 0), ("kback", "TIMER_DELAY_MS", "5600", 0),
    ):
        sent_ms = exam.now_ms()
        fields = await exam.send(known.topic, key, {name: value})
        if wait_ms:
            known.due_ms[key] = sent_ms + wait_ms
        else:
            await exam.done(RECALL, {
                "producerGroup": "EG", "topic": known.topic, "recallHandle": fields["recallHandle"],
            })


async def _judge_offsets(exam: Examiner, known: _Memory) -> None:
    topic = known.topic
    found = await exam.offset_of(GROUP, topic)
    exam.require(found == 3, f"an offset was 3, and is {found} after a restart")
    answer = await pop(exam, topic, 32, group=POPPING, invisible_ms=LONG_MS)
    messages = messages_in(answer.body)
    offsets = [one.queue_offset for one in messages if one.keys != ("k2",)]
    # (What is due may have come.)
    exam.require(offsets[:4] == [3, 4, 5, 6], f"after a restart a pop gets {offsets}")
    if len(messages) > len(offsets):
        exam.require(exam.now_ms() >= known.due_ms.pop("k2"), "after a restart k2 came again too soon")
    late = await exam.ask(ACK, place_of(topic, known.acked, POPPING))
    exam.require(late.code != 0, "after a restart a message is acknowledged once more")
    await exam.done(ACK, place_of(topic, known.held, POPPING))


async def _judge_order(exam: Examiner, known: _Memory) -> None:
    async def pops() -> RemotingCommand:
        return await pop(exam, known.topic, 1, group=IN_ORDER, in_order=True, queueId=0)

    exam.require((await pops()).code == 210, "after a restart a queue in order is given twice")
    await exam.done(ACK, place_of(known.topic, known.ordered, IN_ORDER))
    receipts(exam, await pops(), [2])


async def _judge_topics(exam: Examiner, known: _Memory) -> None:
    answer = await exam.ask(SEND, exam.send_fields(known.closed, 0, {"KEYS": "kx", "UNIQ_KEY": "kx"}))
    exam.require(answer.code != 0, "after a restart a topic that may only be read takes a message")
    messages = messages_in((await exam.pull(known.remade, 0)).body)
    exam.require([(one.keys, one.queue_offset) for one in messages] == [(("new",), 0)],
                 f"after a restart a topic that was made again has {messages}")
    await exam.reaches(known.remade, 1)
    for topic, key, wanted in ((known.remade, "gone1", []), (known.remade, "new", [("new",)]),
                               (known.topic, "k3", [("k3",)])):
        fields = {"topic": topic, "key": key, "maxNum": 8, "beginTimestamp": 0, "endTimestamp": 1 << 60}
        found = [one.keys for one in messages_in((await exam.ask(QUERY_MESSAGE, fields)).body)]
        exam.require(found == wanted, f"after a restart {found} is found by {key}")
    answered = await exam.send(known.remade, "newer")
    exam.require(answered["queueOffset"] == "1", f"after a restart the second message is at {answered}")


async def _judge_ends(exam: Examiner, known: _Memory) -> None:
    await exam.done(END_TRANSACTION, {**known.ends["kdone"], "commitOrRollback": COMMIT})
    answer = await exam.ask(END_TRANSACTION, {**known.ends["kback"], "commitOrRollback": COMMIT})
    exam.require(answer.code != 0, "after a restart a transaction is committed that was rolled back")
    await exam.done(END_TRANSACTION, {**known.ends["kopen"], "commitOrRollback": COMMIT})


async def _judge_late(exam: Examiner, known: _Memory) -> None:
    """
    The rest of the queue, and the message that comes again, each at its time and once. One that was due
    before the broker was killed may have come then, and come again: the broker may not have noted that.
    """
    began_ms, at = exam.now_ms(), 7
    keys: list[str] = []
    while len(keys) < 3:
        answer = await exam.pull(known.topic, at, wait_ms=900)
        for message in messages_in(answer.body) if answer.code == 0 else ():
            (key,), at = message.keys, message.queue_offset + 1
            due_ms = known.due_ms.get(key, 0)
            if not (key in keys and 0 < due_ms <= known.killed_ms):
                keys.append(key)
            exam.require(message.store_timestamp >= due_ms, f"{key} of {due_ms} came at "
                                                            f"{message.store_timestamp} after a restart")
        last_ms = max(began_ms, *known.due_ms.values())
        exam.prompt(last_ms, f"after a restart {keys} came, and the rest", LATE_MS)
    again = await pop(exam, known.topic, 32, group=POPPING, invisible_ms=LONG_MS)
    found = [one.keys[0] for one in messages_in(again.body)] if again.code == 0 else []
    found = [one for one in found if one not in keys]
    exam.require(found == ["k2"] * ("k2" in known.due_ms), f"after a restart {found} come again")
    await exam.client.pause(max(max(known.due_ms.values()) + 900 - exam.now_ms(), 0) / 1000)
    exam.require(sorted(keys) == ["klevel", "kopen", "ktime"] and await exam.end_of(known.topic) == at,
                 f"after a restart {keys} came, and the queue ends at {await exam.end_of(known.topic)}")
    exam.require(known.asked <= {"kopen"}, f"after a restart producers are asked about {known.asked}")
