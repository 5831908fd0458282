# -*- test-case-name: tests.sim.test_group_traffic -*-
"""
Stories of groups: members that register and lend queues, acknowledgements in batches, messages that are given
up and become dead letters, and a topic that is deleted while it is popped.

B15, B6 also count for what was given up: it is in the group's topic of dead letters.
B22. A message is given again at most as often as its group says.
B23. A master lends a queue to one client of a group at a time.
"""

from __future__ import annotations

import base64
import json
import random
from collections.abc import Sequence

from dledger.rocketmq.broker.producing.topic_checks import DLQ_PREFIX
from dledger.testing.brokers.admin_traffic import (
    DELETE_GROUP,
    DELETE_TOPIC,
    KEPT,
    MAKE_GROUP,
    MAKE_TOPIC,
    QUEUES,
    RESET_OFFSETS,
    TrafficWorld,
)
from dledger.testing.brokers.asked_traffic import AskedTraffic, Story
from dledger.testing.brokers.more_traffic import ORDER_QUEUE, SEND_BACK
from dledger.testing.brokers.rig.accounts import (
    PLAIN,
    UNKNOWN,
    UNSURE,
    Given,
    GroupFilter,
    ProducedMessage,
    require_pair,
)
from dledger.testing.brokers.rig.asking import ClientMachine
from dledger.testing.brokers.traffic import (
    ACK,
    CHANGE_INVISIBLE,
    CLIENT_ID,
    HEART_BEAT,
    POP,
    SEND,
    UNSURE_ENDS,
    messages_of,
)
from protocols.wire.remoting import RemotingCommand
from protocols.wire.rocketmq.message import Message

BATCH_ACK, NOTIFICATION = 200_151, 200_054
LOCK, UNLOCK, LIST_MEMBERS, UNREGISTER, CHECK_CONFIG, LITE_PULL = 41, 42, 38, 35, 46, 361
RESET_CLIENT = 220
#: Its messages are acknowledged in batches.
BATCH_GROUP = GroupFilter("PB", "A || B", tags=frozenset("AB"))
#: It gives up many messages.
DEAD_GROUP = GroupFilter("PD", "n > 25 AND n BETWEEN -1 AND 99 AND TAGS IN ('A', 'B')", "SQL92",
                         tags=frozenset("AB"), above=25)
DEAD_TRIES = 1
#: It pulls, and sends messages back as dead letters.
GIVING_GROUP = GroupFilter("GD")
#: It gets the dead letters of both.
GRAVE_GROUP = GroupFilter("GX")
#: Its members register, and pull by their subscriptions.
MEMBER_GROUP = GroupFilter("GC", "B || C", tags=frozenset("BC"))
#: It is deleted while it pulls.
LOST_GROUP = GroupFilter("GZ")
LOCK_GROUP, ATTEMPT_GROUP, POPPED_GROUP = "GL", "PI", "PX"
#: It is deleted and made again while it is popped.
POPPED_TOPIC = "X2"
LOCKED = {"topic": KEPT[0], "brokerName": "b", "queueId": 0}
#: From this version on a client says how often a message may come again.
VERSION = 317


class GroupStories:
    """
    They are a L{dledger.testing.brokers.asked_traffic.StoriesPart}.

    Implements L{dledger.testing.brokers.asked_traffic.StoriesPart}.
    """

    def __init__(
        self, world: TrafficWorld, traffic: AskedTraffic, *, other: ClientMachine, draws: random.Random
    ) -> None:
        """@param traffic: all clients. @param other: another machine with clients."""
        self._world = world
        self._traffic = traffic
        self.client = traffic.client
        self.accounts = world.accounts
        self._draws = draws
        self._others = (traffic.client, other)
        #: The one that has the lent queue: client, broker and process; until when, ms since 1970.
        self._holder: tuple[int, tuple[str, tuple[int, int]], int] | None = None
        #: Clients, and processes that may still carry out a request of theirs to give the queue back.
        self._unsure: set[tuple[int, tuple[str, tuple[int, int]]]] = set()
        self._was_reset = False
        other.asked = traffic.client.asked

    def stories(self) -> list[Story]:
        traffic, graves = self._traffic, (DEAD_GROUP.name, GIVING_GROUP.name)
        kept = [(topic, queue_id) for topic in KEPT for queue_id in range(QUEUES)]
        return [
            self._pop_batches(BATCH_GROUP, KEPT[1]), self._pop_batches(DEAD_GROUP, KEPT[0]),
            self._pop_popped(), self._fill_popped(), self._remake_popped(),
            *(traffic.pull(GIVING_GROUP, topic, queue_id) for topic, queue_id in kept[QUEUES:]),
            *(traffic.pull(LOST_GROUP, topic, queue_id) for topic, queue_id in kept[:QUEUES]),
            *(traffic.pull(GRAVE_GROUP, DLQ_PREFIX + name, 0) for name in graves),
            *(self._pull_as_member(queue_id) for queue_id in range(QUEUES)),
            *(self._pop_attempts(queue_id) for queue_id in range(QUEUES)),
            *(story(index) for index in range(2) for story in (self._attend, self._lend)),
            self._lose_group(), self._reset_members(),
        ]

    def why_unsettled(self) -> str:
        """See L{dledger.testing.brokers.asked_traffic.StoriesPart}. B6."""
        accounts, one, other = self.accounts, frozenset(KEPT[:1]), frozenset(KEPT[1:])
        buried = accounts.got.get(GRAVE_GROUP.name, set())
        found = {
            BATCH_GROUP.name: accounts.unacknowledged(other, BATCH_GROUP.name, BATCH_GROUP),
            DEAD_GROUP.name: [key for key in accounts.unacknowledged(one, DEAD_GROUP.name, DEAD_GROUP)
                              if key not in buried],
            POPPED_GROUP: accounts.unacknowledged(frozenset({POPPED_TOPIC}), POPPED_GROUP),
            ATTEMPT_GROUP: accounts.missing(one, GroupFilter(ATTEMPT_GROUP)),
            GIVING_GROUP.name: accounts.missing(other, GIVING_GROUP),
            LOST_GROUP.name: accounts.missing(one, LOST_GROUP),
            MEMBER_GROUP.name: accounts.missing(one, MEMBER_GROUP),
        }
        return next((f"{name} waits for {keys[:3]} and others, {len(keys)}"
                     for name, keys in found.items() if keys), "")

    # -- POP -------------------------------------------------------------------------------------

    async def _popped(self, group: GroupFilter, topic: str, **more: object) -> RemotingCommand | None:
        """Messages for a group; None: none came, and a while has passed."""
        draws = self._draws
        answer = await self._traffic.ask_master(POP, {
            "consumerGroup": group.name, "topic": topic, "queueId": -1, "maxMsgNums": draws.choice((4, 16)),
            "invisibleTime": draws.choice((800, 1500)), "pollTime": 1500, "bornTime": self._world.wall_ms(),
            "initMode": 0, "expType": group.kind, "exp": group.expression, "order": "false", **more,
        })
        if answer is not None and answer.code == 0:
            return answer
        await self.client.pause(0.3 if answer is None or answer.code != 210 else 0.01)
        return None

    async def _pop_batches(self, group: GroupFilter, topic: str) -> None:
        draws, world = self._draws, self._world
        if group is DEAD_GROUP:
            await self._limit_tries()
        while not world.is_over:
            era = self.accounts.era(topic)
            answer = await self._popped(group, topic)
            if answer is None:
                continue
            taken = [self.taken(group, message, answer, era) for message in messages_of(answer.body)]
            if group is DEAD_GROUP:
                taken = [one for one in taken if draws.random() < 0.5]
            elif world.is_loaded and draws.random() < 0.2:
                taken = taken[1:]
            if taken:
                self.client.begin(self._acknowledge(group, topic, taken))

    async def _limit_tries(self) -> None:
        body = json.dumps({"groupName": DEAD_GROUP.name, "retryMaxTimes": DEAD_TRIES}).encode()
        while not self._world.is_over:
            answer = await self._traffic.ask_master(MAKE_GROUP, {}, body)
            if answer is not None and answer.code == 0:
                return
            await self.client.pause(0.3)

    def taken(
        self, group: GroupFilter, message: Message, answer: RemotingCommand, era: int
    ) -> tuple[Given, list[str]]:
        """A message that was popped. @return: with its receipt."""
        fields, accounts = answer.ext_fields, self.accounts
        sent = accounts.delivered(group.name, message, now_ms=self._world.wall_ms(), era=era, passes=group)
        if group is DEAD_GROUP and not accounts.life and not sent.may_be_lost:
            require_pair(message.reconsume_times <= DEAD_TRIES, 22,
                         f"{group.name} got {sent.key} for the {message.reconsume_times + 1}. time")
        receipt = message.properties.get("POP_CK")
        if receipt is None:
            starts = dict(part.rsplit(" ", 1) for part in fields["startOffsetInfo"].split(";"))
            receipt = (f"{starts[f'0 {message.queue_id}']} {fields['popTime']} {fields['invisibleTime']} "
                       f"{fields['reviveQid']} 0 b {message.queue_id} {message.queue_offset}")
        parts = receipt.split(" ")
        return accounts.popped(
            group.name, sent, pop_ms=int(parts[1]), visible_ms=int(parts[1]) + int(parts[2]),
            copy=(message.reconsume_times, message.queue_offset),
        ), parts

    async def _acknowledge(
        self, group: GroupFilter, topic: str, taken: Sequence[tuple[Given, list[str]]]
    ) -> None:
        """Acknowledge messages with one request."""
        await self.client.pause(self._draws.random() * 0.5)
        losses, items = self.accounts.losses, []
        for given, (start, pop_ms, _, revive, kind, _, queue_id, offset) in taken:
            given.acked = UNKNOWN
            at = int(offset) - int(start)
            bits = bytearray(at // 8 + 1)
            bits[at // 8] |= 1 << at % 8
            items.append({
                "t": topic, "c": group.name, "r": kind, "q": int(queue_id), "so": int(start),
                "rq": int(revive), "pt": int(pop_ms), "b": base64.b64encode(bits).decode(),
            })
        body = json.dumps({"brokerName": "b", "acks": items}).encode()
        answer = await self._traffic.ask_master(BATCH_ACK, {}, body)
        if answer is None or losses != self.accounts.losses:
            return
        for given, _ in taken:
            # (A batch of which some are too late is answered with success.)
            given.acked = UNKNOWN if answer.code in (0, *UNSURE_ENDS) else ""

    async def _pop_attempts(self, queue_id: int) -> None:
        """Consumers in order that name their attempts, and give messages more time."""
        draws, world, topic = self._draws, self._world, KEPT[0]
        number = 0
        while not world.is_over:
            number += draws.random() < 0.9
            era = self.accounts.era(topic)
            answer = await self._popped(GroupFilter(ATTEMPT_GROUP), topic, queueId=queue_id, order="true",
                                        attemptId=f"attempt-{queue_id}-{number}")
            if answer is None:
                continue
            fields, messages = answer.ext_fields, messages_of(answer.body)
            starts = dict(part.rsplit(" ", 1) for part in fields["startOffsetInfo"].split(";"))
            start = starts[f"0 {queue_id}"]
            offsets = [one.queue_offset for one in messages]
            require_pair(offsets == sorted(set(offsets)), 1, f"{ATTEMPT_GROUP} got {offsets} of {queue_id}")
            for message in messages:
                self.accounts.delivered(ATTEMPT_GROUP, message, now_ms=world.wall_ms(), era=era)
                place = {
                    "consumerGroup": ATTEMPT_GROUP, "topic": topic, "queueId": queue_id,
                    "offset": message.queue_offset,
                    "extraInfo": f"{start} {fields['popTime']} {fields['invisibleTime']} {ORDER_QUEUE} 0 b "
                                 f"{queue_id} {message.queue_offset}",
                }
                if world.is_loaded and draws.random() < 0.15:
                    await self._traffic.ask_master(CHANGE_INVISIBLE, {**place, "invisibleTime": 600})
                    break
                await self._traffic.ask_master(ACK, place)

    # -- a topic that is deleted while it is popped ------------------------------------------------

    async def _fill_popped(self) -> None:
        await self._traffic.ask_until_done(MAKE_TOPIC, self._traffic.topic_fields(POPPED_TOPIC))
        while self._world.is_loaded:
            await self.client.pause(self._draws.expovariate(1 / 0.3) + 1e-6)
            sent = plain_message(self._world, self._draws, POPPED_TOPIC)
            named = {"KEYS": sent.key, "UNIQ_KEY": sent.key, "TAGS": sent.tag}
            answer = await self._traffic.ask_master(SEND, self._traffic.send_fields(sent, named), sent.body)
            self._traffic.note_sent([sent], answer)

    async def _pop_popped(self) -> None:
        world, group = self._world, GroupFilter(POPPED_GROUP)
        while not world.is_over:
            if self._draws.random() < 0.2:
                await self._traffic.ask_master(NOTIFICATION, {
                    "consumerGroup": group.name, "topic": POPPED_TOPIC, "queueId": -1, "pollTime": 1200,
                    "bornTime": world.wall_ms(),
                })
            era = self.accounts.era(POPPED_TOPIC)
            answer = await self._popped(group, POPPED_TOPIC)
            for message in messages_of(answer.body) if answer is not None else ():
                given, parts = self.taken(group, message, answer, era)  # type: ignore[arg-type]
                if not world.is_loaded or self._draws.random() < 0.8:
                    self.client.begin(self._acknowledge(group, POPPED_TOPIC, [(given, parts)]))

    async def _remake_popped(self) -> None:
        draws, accounts = self._draws, self.accounts
        while self._world.is_loaded:
            await self.client.pause(draws.uniform(3.0, 9.0))
            accounts.eras[POPPED_TOPIC], life = UNSURE, accounts.life
            accounts.lives += 1
            number = accounts.lives
            self._world.deleting(POPPED_TOPIC)
            if not await self._traffic.ask_until_done(DELETE_TOPIC, {"topic": POPPED_TOPIC}):
                return
            self._world.deleting(POPPED_TOPIC)
            await self.client.pause(draws.random())
            if not await self._traffic.ask_until_done(MAKE_TOPIC, self._traffic.topic_fields(POPPED_TOPIC)):
                return
            if accounts.life == life:
                accounts.eras[POPPED_TOPIC] = number

    # -- dead letters ----------------------------------------------------------------------------

    def got(self, group: str, message: Message, sent: ProducedMessage) -> None:
        if group == GIVING_GROUP.name and self._world.is_loaded and self._draws.random() < 0.1:
            self.client.begin(self._give_up(message, sent))

    async def _give_up(self, message: Message, sent: ProducedMessage) -> None:
        accounts, level = self.accounts, self._draws.choice((-1, 0))
        losses, life = accounts.losses, accounts.life
        answer = await self.client.ask(self._world.master(), SEND_BACK, {
            "group": GIVING_GROUP.name, "offset": message.physical_offset, "delayLevel": level,
            "originMsgId": sent.key, "originTopic": sent.topic, "unitMode": "false", "maxReconsumeTimes": 0,
        }, version=VERSION)
        is_sure = (losses, life) == (accounts.losses, accounts.life) and not sent.may_be_lost
        if answer is not None and answer.code == 0 and is_sure:
            accounts.sent_back[GRAVE_GROUP.name, sent.key] = None

    # -- members ---------------------------------------------------------------------------------

    async def _attend(self, index: int) -> None:
        """One of two members says that it is there; now and then it leaves."""
        draws, world, client = self._draws, self._world, self._others[index]
        wanted = {"topic": KEPT[0], "subString": MEMBER_GROUP.expression, "expressionType": "TAG",
                  "codeSet": [66, 67], "tagsSet": ["B", "C"], "subVersion": 1}
        body = json.dumps({"clientID": f"{CLIENT_ID}-{index}", "producerDataSet": [], "consumerDataSet": [{
            "groupName": MEMBER_GROUP.name, "consumeType": "CONSUME_PASSIVELY", "messageModel": "CLUSTERING",
            "consumeFromWhere": "CONSUME_FROM_FIRST_OFFSET", "subscriptionDataSet": [wanted],
        }]}).encode()
        check = json.dumps({"clientId": CLIENT_ID, "group": MEMBER_GROUP.name, "subscriptionData": wanted})
        while not world.is_over:
            target = world.master()
            await client.ask(target, HEART_BEAT, {}, body)
            answer = await client.ask(target, LIST_MEMBERS, {"consumerGroup": MEMBER_GROUP.name})
            if answer is not None and answer.code == 0:
                ids = json.loads(answer.body)["consumerIdList"]
                require_pair(set(ids) <= {f"{CLIENT_ID}-0", f"{CLIENT_ID}-1"}, 1, f"members {ids}")
            await client.ask(target, CHECK_CONFIG, {}, check.encode())
            await client.pause(0.7)
            if world.is_loaded and draws.random() < 0.2:
                await client.ask(target, UNREGISTER, {"clientID": f"{CLIENT_ID}-{index}",
                                                      "consumerGroup": MEMBER_GROUP.name})

    async def _pull_as_member(self, queue_id: int) -> None:
        """Pull what the member has subscribed in its heartbeat."""
        world, at = self._world, -1
        place: dict[str, object] = {
            "consumerGroup": MEMBER_GROUP.name, "topic": KEPT[0], "queueId": queue_id,
        }
        while not world.is_over:
            if at < 0 or self._was_reset:
                self._was_reset = False
                at = await self._traffic.first_offset(world.master(), place)
            if at < 0:
                await self.client.pause(0.2)
                continue
            era = self.accounts.era(KEPT[0])
            # Flags: suspend, and commit the offset.
            answer = await self.client.ask(world.master(), self._draws.choice((11, LITE_PULL)), {
                **place, "queueOffset": at, "maxMsgNums": 16, "sysFlag": 2, "commitOffset": 0,
                "suspendTimeoutMillis": 800, "subVersion": 1,
            })
            if answer is None or answer.code not in (0, 19, 20, 21):
                at = -1
                continue
            for message in messages_of(answer.body) if answer.code == 0 else ():
                self.accounts.delivered(MEMBER_GROUP.name, message, now_ms=world.wall_ms(), era=era,
                                        passes=MEMBER_GROUP)
            following = int(answer.ext_fields["nextBeginOffset"])
            if following > at and self._draws.random() < 0.4:
                await self._traffic.commit(world.master(), place, following)
            at = following

    def asked(self, command: RemotingCommand) -> None:
        if command.code == RESET_CLIENT:
            self._was_reset = True

    async def _reset_members(self) -> None:
        """An administrator lets the members begin again at a time; they hear of it."""
        while self._world.is_loaded:
            await self.client.pause(self._draws.uniform(2.0, 5.0))
            await self._traffic.ask_master(RESET_OFFSETS, {
                "topic": KEPT[0], "group": MEMBER_GROUP.name,
                "isForce": self._draws.choice(("true", "false")),
                "timestamp": self._draws.choice((-1, 0, self._world.wall_ms() - 4000)),
            })

    async def _lose_group(self) -> None:
        """A group is deleted, with its offsets, while it pulls."""
        draws, world = self._draws, self._world
        while world.is_loaded:
            await self.client.pause(draws.uniform(3.0, 8.0))
            target = world.master()
            keys = [(LOST_GROUP.name, KEPT[0], queue_id) for queue_id in range(QUEUES)]
            ended = [world.resetting(target, key, 0) for key in keys]
            await self.client.ask(target, DELETE_GROUP, {"groupName": LOST_GROUP.name, "cleanOffset": "true"})
            for one in ended:
                one(False)  # an offset that is not there is that of the first message

    # -- queues that are lent ----------------------------------------------------------------------

    async def _lend(self, index: int) -> None:
        """
        B23. One of two clients asks for a queue, has it for a while, and gives it back. If this last request
        has no answer, it may be carried out while the client has the queue again.
        """
        draws, world, client = self._draws, self._world, self._others[index]
        body = json.dumps({
            "consumerGroup": LOCK_GROUP, "clientId": f"{CLIENT_ID}-{index}", "mqSet": [LOCKED],
        }).encode()
        while not world.is_over:
            await client.pause(draws.expovariate(1 / 0.5))
            target = world.master()
            process = target, world.process_of(target)
            answer = await client.ask(target, LOCK, {}, body)
            if answer is None or answer.code or process[1] != world.process_of(target):
                continue
            if not json.loads(answer.body)["lockOKMQSet"]:
                continue
            holder = self._holder
            require_pair(holder is None or holder[0] == index or holder[1] != process
                         or holder[2] < world.wall_ms(), 23,
                         f"a queue is lent to client {index}, and another one has it")
            if (index, process) not in self._unsure:
                self._holder = index, process, world.wall_ms() + 55_000
            await client.pause(draws.random())
            if self._holder is not None and self._holder[0] == index:
                self._holder = None
            if await client.ask(target, UNLOCK, {}, body) is None:
                self._unsure.add((index, (target, world.process_of(target))))


def plain_message(world: TrafficWorld, draws: random.Random, topic: str) -> ProducedMessage:
    """A plain message that is about to be sent."""
    accounts = world.accounts
    key = f"x{len(accounts.sent)}"
    sent = accounts.sent[key] = ProducedMessage(
        key=key, topic=topic, queue_id=draws.randrange(QUEUES), tag=draws.choice("ABC"),
        number=draws.randrange(40), body=draws.randbytes(draws.choice((0, 30, 300))),
        due_ms=world.wall_ms(), kind=PLAIN, era=accounts.era(topic), life=accounts.life,
        losses=accounts.losses,
    )
    return sent
