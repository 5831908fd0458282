# -*- test-case-name: tests.sim.test_group_traffic -*-
"""
Stories of operators and of their tools: lists of topics and groups, attributes, request modes and options
that change in flight, tidying up, and questions that change nothing.

B24. An option that was changed with success has that value, also after later starts on the same disk, until
it is changed again.
"""

from __future__ import annotations

import json
import random
from collections.abc import Mapping

from dledger.rocketmq.broker.producing.topic_checks import DLQ_PREFIX
from dledger.testing.brokers.admin_traffic import DELETE_GROUP, KEPT, MAKE_TOPIC, QUEUES, TrafficWorld
from dledger.testing.brokers.asked_traffic import AskedTraffic, Story
from dledger.testing.brokers.group_traffic import DEAD_GROUP, MEMBER_GROUP, POPPED_TOPIC, plain_message
from dledger.testing.brokers.rig.accounts import DELAYED, PLAIN, RETRY_PREFIX, ProducedMessage, require_pair
from dledger.testing.brokers.traffic import BACK_GROUP, POP_GROUP, PRODUCER
from protocols.wire.remoting import RemotingCommand
from protocols.wire.rocketmq.message import Message, encode_properties

MAKE_TOPICS, MAKE_GROUPS, SET_MODE, QUERY_ASSIGNMENT = 18, 225, 401, 400
UPDATE_OPTIONS, GET_OPTIONS = 25, 26
SEND_V1 = 10
CLEAN_QUEUES, CLEAN_TOPICS, DELETE_FILES = 306, 316, 329
#: An option, and the values that operators give it.
OPTION, VALUES = "maxTransferCountOnMessageInMemory", ("8", "16", "32")

_Fields = Mapping[str, object]


def _questions(group: str, topic: str, queue_id: int) -> tuple[tuple[int, _Fields], ...]:
    """What tools ask: codes and fields."""
    both = {"consumerGroup": group, "topic": topic}
    return (
        (28, {}), (32, {"topic": topic, "queueId": queue_id}), (202, {"topic": topic}),
        (203, {"consumerGroup": group}), (204, {"producerGroup": PRODUCER}), (208, {"consumerGroup": group}),
        (208, both), (300, {"topic": topic}), (305, {}), (315, {"statsName": "TOPIC_PUT_NUMS",
                                                               "statsKey": topic}),
        (315, {"statsName": "GROUP_GET_NUMS", "statsKey": f"{topic}@{group}"}),
        (317, {"isOrder": "false"}), (321, {**both, "queueId": queue_id, "index": 0, "count": 5}),
        (328, {}), (351, {"topic": topic}), (352, {"group": group}), (907, {}), (21, {}), (43, {}), (45, {}),
        (201, {}), (402, {}), (90_907, {}), (307, {"consumerGroup": group, "clientId": "c1-0"}),
        (200_055, {**both, "queueId": queue_id, "bornTime": 0}), (50, {}),
    )


class OperatorStories:
    """
    They are a L{dledger.testing.brokers.asked_traffic.StoriesPart}.

    Implements L{dledger.testing.brokers.asked_traffic.StoriesPart}.
    """

    def __init__(self, world: TrafficWorld, traffic: AskedTraffic, draws: random.Random) -> None:
        """@param traffic: all clients."""
        self._world = world
        self._traffic = traffic
        self.client = traffic.client
        self.accounts = world.accounts
        self._draws = draws

    def stories(self) -> list[Story]:
        return [
            self._change_tables(), self._change_options(), self._ask_tools(), self._send_as_before(),
            self._send_again(),
        ]

    def got(self, group: str, message: Message, sent: ProducedMessage) -> None:
        ...

    def asked(self, command: RemotingCommand) -> None:
        ...

    def why_unsettled(self) -> str:
        """See L{dledger.testing.brokers.asked_traffic.StoriesPart}: others wait for what is sent here."""
        return ""

    async def _change_tables(self) -> None:
        """Topics and groups that nobody uses change, many at a time; B8 compares the tables."""
        draws = self._draws
        while self._world.is_loaded:
            await self.client.pause(draws.expovariate(1 / 0.6))
            names = [f"b{draws.randrange(4)}" for _ in range(2)]
            kind = draws.randrange(7)
            if kind == 0:
                body = json.dumps({"topicConfigList": [{
                    "topicName": name, "readQueueNums": 1 + draws.randrange(4), "writeQueueNums": 2,
                    "perm": 6, "topicFilterType": "SINGLE_TAG", "attributes": draws.choice((
                        {}, {"+message.type": "NORMAL"}, {"+message.type": "FIFO"}, {"-message.type": ""},
                    )),
                } for name in names]})
                await self._traffic.ask_master(MAKE_TOPICS, {}, body.encode())
            elif kind == 1:
                await self._traffic.ask_master(MAKE_TOPIC, {
                    **self._traffic.topic_fields(names[0]), "attributes": draws.choice((
                        "+message.type=DELAY", "-message.type", "+cleanup.policy=DELETE",
                        "+queue.type=BatchCQ",
                    )),
                })
            elif kind == 2:
                body = json.dumps({"groupConfigList": [{
                    "groupName": name, "retryQueueNums": 1, "retryMaxTimes": draws.randrange(9),
                    "consumeEnable": True,
                } for name in names]})
                await self._traffic.ask_master(MAKE_GROUPS, {}, body.encode())
            elif kind == 3:
                await self._traffic.ask_master(DELETE_GROUP, {"groupName": names[0], "cleanOffset": "false"})
            elif kind == 4:
                body = json.dumps({
                    "topic": draws.choice((names[0], KEPT[0], "%RETRY%x")), "consumerGroup": names[1],
                    "mode": draws.choice(("PULL", "POP", "NONE")), "popShareQueueNum": draws.randrange(3),
                })
                await self._traffic.ask_master(SET_MODE, {}, body.encode())
            elif kind == 5:
                body = json.dumps({
                    "topic": KEPT[0], "consumerGroup": MEMBER_GROUP.name, "clientId": "c1-0",
                    "strategyName": "AVG", "messageModel": "CLUSTERING",
                })
                await self._traffic.ask_master(QUERY_ASSIGNMENT, {}, body.encode())
            else:
                code = draws.choice((CLEAN_QUEUES, CLEAN_TOPICS, DELETE_FILES))
                await self.client.ask(self._world.any_of(draws), code, {})

    async def _change_options(self) -> None:
        """B24."""
        draws, world = self._draws, self._world
        #: By broker and disk: the values that the option may have.
        known: dict[tuple[str, int], set[str]] = {}
        while not world.is_over:
            await self.client.pause(draws.expovariate(1 / 0.8))
            target = world.any_of(draws)
            disk, _ = world.process_of(target)
            may_be = known.setdefault((target, disk), {"32"})
            if world.is_loaded and draws.random() < 0.5:
                value = draws.choice(VALUES)
                may_be.add(value)
                answer = await self.client.ask(target, UPDATE_OPTIONS, {}, f"{OPTION}={value}\n".encode())
                # (Without an answer the request may come at any later time.)
                if answer is not None and answer.code == 0 and not self._is_doubtful(may_be):
                    known[target, disk] = {value}
                elif answer is None:
                    may_be.add("")
                continue
            answer = await self.client.ask(target, GET_OPTIONS, {})
            if answer is None or answer.code or world.process_of(target)[0] != disk:
                continue
            found = dict(line.partition("=")[::2] for line in answer.body.decode().splitlines())[OPTION]
            require_pair(found in may_be, 24, f"{OPTION} is {found} at {target}, and may be {sorted(may_be)}")

    @staticmethod
    def _is_doubtful(may_be: set[str]) -> bool:
        return "" in may_be

    async def _ask_tools(self) -> None:
        """Questions that change nothing, of any broker."""
        draws, world = self._draws, self._world
        groups = (POP_GROUP, BACK_GROUP, MEMBER_GROUP.name, DEAD_GROUP.name, "nobody")
        topics = (*KEPT, POPPED_TOPIC, DLQ_PREFIX + DEAD_GROUP.name, "nothing")
        while not world.is_over:
            await self.client.pause(draws.expovariate(1 / 0.15))
            code, fields = draws.choice(_questions(
                draws.choice(groups), draws.choice(topics), draws.randrange(QUEUES)
            ))
            await self.client.ask(world.any_of(draws), code, fields)

    # -- other ways to send ------------------------------------------------------------------------

    async def _send_as_before(self) -> None:
        """A producer of RocketMQ with C{SEND_MESSAGE} of version 1, whose requests have long names."""
        while self._world.is_loaded:
            await self.client.pause(self._draws.expovariate(1 / 0.5) + 1e-6)
            sent = plain_message(self._world, self._draws, self._draws.choice(KEPT))
            named = {"KEYS": sent.key, "UNIQ_KEY": sent.key, "TAGS": sent.tag, "n": str(sent.number)}
            if self._draws.random() < 0.3:
                del named["UNIQ_KEY"]  # the broker makes one
            if self._draws.random() < 0.3:
                sent.kind = DELAYED
                sent.due_ms += 1000
                named["TIMER_DELIVER_MS"] = str(sent.due_ms)
            answer = await self._traffic.ask_master(SEND_V1, {
                "producerGroup": PRODUCER, "topic": sent.topic, "defaultTopic": "TBW102",
                "defaultTopicQueueNums": QUEUES, "queueId": sent.queue_id, "sysFlag": 0,
                "bornTimestamp": self._world.wall_ms(), "flag": 0,
                "properties": encode_properties(named).decode(), "reconsumeTimes": 0, "unitMode": "false",
            }, sent.body)
            self._traffic.note_sent([sent], answer)

    async def _send_again(self) -> None:
        """A consumer sends a message to its own topic for retries, as it does when sending back fails."""
        draws, accounts = self._draws, self.accounts
        while self._world.is_loaded:
            await self.client.pause(draws.expovariate(1 / 0.8))
            got = accounts.got.get(BACK_GROUP, ())
            known = [one for one in accounts.sent.values()
                     if one.kind == PLAIN and one.topic in KEPT and one.key in got]
            if not known:
                continue
            sent = draws.choice(known)
            times, most = draws.choice(((1, 16), (2, 2)))
            await self._traffic.ask_master(SEND_V1, {
                "producerGroup": "CLIENT_INNER_PRODUCER", "topic": RETRY_PREFIX + BACK_GROUP,
                "defaultTopic": "TBW102", "defaultTopicQueueNums": 1, "queueId": 0, "sysFlag": 0,
                "bornTimestamp": self._world.wall_ms(), "flag": 0, "reconsumeTimes": times,
                "maxReconsumeTimes": most, "unitMode": "false", "properties": encode_properties({
                    "KEYS": sent.key, "UNIQ_KEY": sent.key, "TAGS": sent.tag, "n": str(sent.number),
                    "RETRY_TOPIC": sent.topic, **({"DELAY": "1"} if times == 1 else {}),
                }).decode(),
            }, sent.body)
