# -*- test-case-name: tests.sim.test_exams -*-
"""Messages that come later: by a level, at a time of their own, at the end of a transaction."""

from __future__ import annotations

from contextlib import suppress

from dledger.rocketmq.broker.producing.halves import OP_TOPIC
from dledger.testing.brokers.exams.examiner import SEND, Examiner, ExamVoid, Paper, messages_in
from protocols.wire.remoting import RemotingCommand
from protocols.wire.rocketmq.message import Message, decode_message

RECALL, END_TRANSACTION, CHECK_TRANSACTION, HEART_BEAT = 370, 37, 39, 34
#: A message comes after its time within this time, ms.
LATE_MS = 1700
#: A producer is asked within this time, ms: it has had its time, and the next round has come.
ASKED_MS = 6000
COMMIT, ROLLBACK = 8, 12
#: Questions about a half message, until it is given up.
QUESTIONS = 2
UPDATE_OPTIONS, DISCARDED = 25, "TRANS_CHECK_MAX_TIME_TOPIC"


_DELAYS = (
    ("d1", "DELAY", "1", 1000), ("d2", "DELAY", "2", 2000), ("d3", "TIMER_DELAY_SEC", "1", 1000),
    ("d4", "TIMER_DELAY_MS", "700", 700), ("d5", "TIMER_DELIVER_MS", "", 900),
    ("d6", "TIMER_DELAY_MS", "1600", 1600), ("d7", "TIMER_DELIVER_MS", "1", 0),
    ("r1", "TIMER_DELIVER_MS", "", 2500),
)
#: Messages that are sent because others are recalled.
_SENT_LATER = 3


async def delay_paper(exam: Examiner) -> None:
    """All kinds of delays; a message is recalled and sent again, another one gets a new time twice."""
    topic = await exam.topic(1)
    due_ms: dict[str, int] = {}
    for one in _DELAYS:
        exam.client.begin(_unless_void(_delayed(exam, topic, due_ms, *one)))
    at = 0
    while len(due_ms) < len(_DELAYS) + _SENT_LATER or any(due_ms.values()):
        answer = await exam.pull(topic, at, wait_ms=900)
        now_ms = exam.now_ms()
        for message in messages_in(answer.body) if answer.code == 0 else ():
            (key,) = message.keys
            right_ms = due_ms[key]
            due_ms[key] = 0
            exam.require(right_ms > 0, f"{key} came, and was recalled, or came before")
            exam.require(right_ms <= message.store_timestamp and now_ms <= right_ms + LATE_MS,
                         f"{key} was due at {right_ms}, and came at {message.store_timestamp}, {now_ms}")
            exam.require(message.body == key.encode() and "DELAY" not in message.properties
                         and "TIMER_OUT_MS" not in message.properties, f"{key} has {message.properties}")
            at = message.queue_offset + 1
        late = [key for key, right_ms in due_ms.items() if right_ms and now_ms > right_ms + LATE_MS]
        exam.require(not late, f"{late} do not come: {now_ms}, {due_ms}")


async def _unless_void(story: Paper) -> None:
    """The paper itself notices that the master has changed."""
    with suppress(ExamVoid):
        await story


async def _delayed(
    exam: Examiner, topic: str, due_ms: dict[str, int], key: str, name: str, value: str, wait_ms: int, *,
    unique: str = "",
) -> None:
    """
    Send a message.

    @param due_ms: by key, since 1970; 0: it has come, or will not.
    @param unique: its unique key; empty: the same.
    """
    now_ms = exam.now_ms()
    while not value and now_ms + wait_ms in due_ms.values():
        wait_ms += 1  # of one key and time there is one message
    due_ms[key] = now_ms + wait_ms
    more = {name: value or str(now_ms + wait_ms), "UNIQ_KEY": unique or key}
    fields = await exam.send(topic, key, more, body=key.encode())
    exam.require(key not in ("d6", "r1", "r2") or "recallHandle" in fields,
                 f"{key} was due at {now_ms + wait_ms}, and its answer has no recallHandle")
    if key == "d6":
        due_ms[key] = 0
        await exam.done(RECALL, {
            "producerGroup": "EG", "topic": topic, "recallHandle": fields["recallHandle"],
        })
        # The recall is for what came before it, not for the same message that is sent again.
        await _delayed(exam, topic, due_ms, "d8", name, value, wait_ms, unique="d6")
    later = {"r1": ("r2", 2000), "r2": ("r3", 1500)}.get(key)
    if later is not None:
        # The one with the new time is sent first, by the same unique key; the recall takes the old one alone.
        await _delayed(exam, topic, due_ms, later[0], name, value, later[1], unique="r1")
        due_ms[key] = 0
        for _ in range(2):
            await exam.done(RECALL, {
                "producerGroup": "EG", "topic": topic, "recallHandle": fields["recallHandle"],
            })


async def end_paper(exam: Examiner) -> None:
    """Transactions that are committed, rolled back, and asked about."""
    topic, group = await exam.topic(1), "ET"
    questions: list[RemotingCommand] = []

    def hear(command: RemotingCommand) -> None:
        if command.code == CHECK_TRANSACTION:
            questions.append(command)

    exam.asked.append(hear)
    await exam.done(UPDATE_OPTIONS, {}, b"transactionCheckMax=%d\n" % QUESTIONS)
    discarded = await exam.end_of(DISCARDED)
    body = b'{"clientID":"exam","producerDataSet":[{"groupName":"%s"}],"consumerDataSet":[]}' % group.encode()
    await exam.done(HEART_BEAT, {}, body)
    places: dict[str, dict[str, object]] = {}
    open_ms = exam.now_ms()
    for key in ("open", "committed", "back", "lost", "late"):
        named = {"KEYS": key, "UNIQ_KEY": key, "TAGS": "A", "TRAN_MSG": "true", "PGROUP": group}
        fields = await exam.done(SEND, exam.send_fields(topic, 0, named, a=group, f=4), key.encode())
        places[key] = {
            "producerGroup": group, "tranStateTableOffset": fields["queueOffset"], "msgId": key,
            "commitLogOffset": int(fields["msgId"][-16:], 16),
        }
    exam.require(await exam.end_of(topic) == 0, "a half message is in its topic")
    for key, end in (("back", ROLLBACK), ("committed", COMMIT), ("committed", COMMIT)):
        await exam.done(END_TRANSACTION, {**places[key], "commitOrRollback": end,
                                          "fromTransactionCheck": "false"})
    ended_ms = exam.now_ms()
    other = await exam.ask(END_TRANSACTION, {**places["back"], "commitOrRollback": COMMIT,
                                             "fromTransactionCheck": "false"})
    exam.require(other.code != 0, "a transaction was rolled back, and is committed")
    _committed(exam, await exam.pull(topic, 0, wait_ms=900), 0, "committed")
    exam.prompt(ended_ms, "the message of a transaction")
    while len([one for one in questions if one.ext_fields["msgId"] == "open"]) < QUESTIONS:
        await exam.done(HEART_BEAT, {}, body)
        exam.prompt(open_ms, "two questions about a transaction", 2 * ASKED_MS)
        await exam.client.pause(0.2)
    places_asked = [int(str(places["open"]["commitLogOffset"]))]
    asked = [one for one in questions if one.ext_fields["msgId"] == "open"]
    for count, question in enumerate(asked[:2], 1):
        places_asked.append(_right(exam, question, count))
    exam.require(places_asked == sorted(set(places_asked)), f"questions name the places {places_asked}")
    await exam.done(END_TRANSACTION, {
        "producerGroup": group, "commitOrRollback": COMMIT, "msgId": "open", "fromTransactionCheck": "true",
        **{name: asked[1].ext_fields[name] for name in ("tranStateTableOffset", "commitLogOffset")},
    })
    _committed(exam, await exam.pull(topic, 1, wait_ms=900), 1, "open")
    await exam.reaches(topic, 2)
    await _end_by_first(exam, places["late"], questions)
    await _given_up(exam, discarded)
    known = {one.ext_fields["msgId"] for one in questions}
    count = sum(one.ext_fields["msgId"] == "lost" for one in questions)
    exam.require(not known & {"committed", "back"} and count == QUESTIONS,
                 f"producers are asked about {known}, about one that nobody ends {count} times")
    for _ in range(2):  # it may still end, once
        await exam.done(END_TRANSACTION, {**places["lost"], "commitOrRollback": COMMIT,
                                          "fromTransactionCheck": "true"})
    _committed(exam, await exam.pull(topic, 2, wait_ms=900), 2, "lost")
    await exam.reaches(topic, 3)
    await exam.done(UPDATE_OPTIONS, {}, b"transactionCheckMax=1000\n")


async def _end_by_first(exam: Examiner, first: dict[str, object], questions: list[RemotingCommand]) -> None:
    """An end that names the first half message reports its newest copy, too: brokers of RocketMQ need it."""
    copies = [one.ext_fields for one in questions if one.ext_fields["msgId"] == first["msgId"]]
    copy = copies[-1]["tranStateTableOffset"]
    at = await exam.end_of(OP_TOPIC)
    await exam.done(END_TRANSACTION, {**first, "commitOrRollback": ROLLBACK, "fromTransactionCheck": "true"})
    began_ms, reported = exam.now_ms(), {""}
    while not {str(first["tranStateTableOffset"]), copy} <= reported:  # and others, perhaps
        exam.prompt(began_ms, f"the end of {first}, with a copy at {copy}, reports {reported}, which")
        await exam.client.pause(0.1)
        reported = {one.body.decode() for one in messages_in((await exam.pull(OP_TOPIC, at)).body)}


async def _given_up(exam: Examiner, at: int) -> None:
    """A half message about which producers were asked often enough is kept elsewhere."""
    began_ms = exam.now_ms()
    while True:
        answer = await exam.pull(DISCARDED, at, wait_ms=900)
        for message in messages_in(answer.body) if answer.code == 0 else ():
            if message.keys == ("lost",):
                exam.require(message.body == b"lost", f"a half message that is given up is {message}")
                return
            at = message.queue_offset + 1
        exam.prompt(began_ms, "a half message that nobody ends is not given up, which", ASKED_MS)


def _committed(exam: Examiner, answer: RemotingCommand, at: int, key: str) -> None:
    messages: list[Message] = messages_in(answer.body) if answer.code == 0 else []
    found = [(one.keys, one.queue_offset, one.body) for one in messages]
    exam.require(found == [((key,), at, key.encode())],
                 f"{key} is committed, and a pull got {answer.code} {found}")


def _right(exam: Examiner, question: RemotingCommand, count: int) -> int:
    """The fields of a question are those of the copy in it. @return: the place of the copy in the log."""
    fields, message = question.ext_fields, decode_message(question.body)
    places = int(fields["tranStateTableOffset"]), int(fields["commitLogOffset"])
    exam.require(message.keys == ("open",) and places == (message.queue_offset, message.physical_offset),
                 f"a question about {message.keys} at {message.queue_offset}, {message.physical_offset} "
                 f"names {places}")
    times = message.properties.get("TRANSACTION_CHECK_TIMES")
    exam.require(times == str(count) and fields["msgId"] == "open",
                 f"question {count} says {times} {fields}")
    return places[1]
