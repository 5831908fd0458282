# -*- test-case-name: tests.sim.test_pairs -*-
"""
Stories of clients that ask: a producer that waits for replies, and tools that look at queues and messages.

B17. A reply is pushed to the producer that waits for it, at most once and with its body; when all faults are
over, replies come.
B18. The bounds of a queue fit together: the highest offset does not fall, a search by time stays within the
bounds, and the message at the place of an acknowledged one is that message.
"""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Protocol, TypeAlias

from twisted.internet.defer import Deferred

from dledger.testing.brokers.admin_traffic import KEPT, QUEUES, REMADE, RESET_GROUP, TrafficWorld
from dledger.testing.brokers.more_traffic import ORDER_GROUP, MoreTraffic
from dledger.testing.brokers.rig.accounts import (
    ACKED,
    GroupFilter,
    ProducedMessage,
    TrafficRecord,
    require_pair,
)
from dledger.testing.brokers.rig.asking import ClientMachine
from dledger.testing.brokers.traffic import CLIENT_ID, GROUPS, POP_GROUP, PRODUCER
from protocols.wire.remoting import RemotingCommand
from protocols.wire.rocketmq.message import (
    Message,
    decode_message,
    decode_properties,
    encode_properties,
)

SEND_REPLY_V2, PUSH_REPLY = 325, 326
SEARCH_OFFSET, MAX_OFFSET, MIN_OFFSET, VIEW_MESSAGE = 29, 30, 31, 33
REPLY_TOPIC = "DefaultCluster_REPLY_TOPIC"

Story: TypeAlias = Coroutine[Deferred[object], object, None]


class StoriesPart(Protocol):
    """Further stories of clients."""

    def stories(self) -> list[Story]:
        """All of them, not begun."""

    def got(self, group: str, message: Message, sent: ProducedMessage) -> None:
        """A group that pulls has got a message."""

    def asked(self, command: RemotingCommand) -> None:
        """A broker asks, or says, something."""

    def why_unsettled(self) -> str:
        """What is still to come; empty if all is delivered."""


class AskedTraffic(MoreTraffic):
    """
    All clients of a schedule.

    @ivar parts: further stories.
    @ivar replies: by key, the bodies of those that were sent. @ivar pushed: keys of those that came.
    @ivar has_come: a reply has come since the faults were over.
    """

    def __init__(self, world: TrafficWorld, client: ClientMachine, *, put_s: float) -> None:
        super().__init__(world, client, put_s=put_s)
        self.parts: list[StoriesPart] = [QueueTools(world, self)]
        self.replies: dict[str, bytes] = {}
        self.pushed: set[str] = set()
        self.has_come = False

    def begin(self) -> None:
        """Let all stories begin."""
        super().begin()
        self.client.begin(self._reply())
        for part in self.parts:
            for story in part.stories():
                self.client.begin(story)

    def _got(self, group: str, message: Message, sent: ProducedMessage) -> None:
        super()._got(group, message, sent)
        for part in self.parts:
            part.got(group, message, sent)

    # -- replies ---------------------------------------------------------------------------------

    async def _reply(self) -> None:
        """A consumer answers requests of a producer, with large and small bodies."""
        rng, world = self._rng, self._world
        while not world.is_over:
            await self.client.pause(rng.expovariate(1 / 0.7))
            key = f"r{len(self.replies)}"
            body = self.replies[key] = rng.randbytes(rng.choice((0, 20, 400)))
            named = {"KEYS": key, "UNIQ_KEY": key, "CORRELATION_ID": key, "REPLY_TO_CLIENT": CLIENT_ID}
            await self.ask_master(SEND_REPLY_V2, {
                "a": PRODUCER, "b": REPLY_TOPIC, "c": "TBW102", "d": 1, "e": 0, "f": 0, "g": world.wall_ms(),
                "h": 0, "i": encode_properties(named).decode(), "j": 0, "k": "false",
            }, body)

    def check_asked(self, target: str, command: RemotingCommand) -> None:
        if command.code == PUSH_REPLY:
            self._replied(command)
        for part in self.parts:
            part.asked(command)
        super().check_asked(target, command)

    def _replied(self, command: RemotingCommand) -> None:
        """B17."""
        key = decode_properties(command.ext_fields["properties"].encode()).get("CORRELATION_ID", "")
        require_pair(self.replies.get(key) == command.body, 17,
                     f"a reply {key or 'of nobody'} came with {len(command.body)} bytes")
        require_pair(key not in self.pushed, 17, f"the reply {key} came twice")
        self.pushed.add(key)
        self.has_come = self.has_come or not self._world.is_loaded


class QueueTools:
    """B18, as a L{StoriesPart}: tools that look at queues and messages. Implements L{StoriesPart}."""

    def __init__(self, world: TrafficWorld, traffic: AskedTraffic) -> None:
        self._world = world
        self._traffic = traffic
        self.accounts = world.accounts
        #: By queue: number of promotions and of losses, and the highest offset that was seen since.
        self._ends: dict[tuple[str, int], tuple[tuple[int, int], int]] = {}

    def stories(self) -> list[Story]:
        return [self._measure(), self._view()]

    def got(self, group: str, message: Message, sent: ProducedMessage) -> None:
        ...

    def asked(self, command: RemotingCommand) -> None:
        ...

    def why_unsettled(self) -> str:
        return ""

    def _life(self) -> tuple[int, int]:
        return self.accounts.life, self.accounts.losses

    def _is_same(self, life: tuple[int, int], reign: int) -> bool:
        """Whether the master of before is still the one."""
        return life == self._life() and 0 <= reign == self._world.reign()

    async def _offset(self, code: int, topic: str, queue_id: int, **fields: int) -> int:
        """@return: the offset that the master answers; -1: none."""
        answer = await self._traffic.ask_master(code, {"topic": topic, "queueId": queue_id, **fields})
        return int(answer.ext_fields["offset"]) if answer is not None and answer.code == 0 else -1

    async def _measure(self) -> None:
        """B18, of queues."""
        rng, world = self._world.rng, self._world
        while not world.is_over:
            await self._traffic.client.pause(rng.expovariate(1 / 0.4))
            queue, life, reign = (rng.choice(KEPT), rng.randrange(QUEUES)), self._life(), world.reign()
            begin = await self._offset(MIN_OFFSET, *queue)
            at = await self._offset(SEARCH_OFFSET, *queue, timestamp=rng.choice((0, world.wall_ms() - 3000)))
            end = await self._offset(MAX_OFFSET, *queue)
            if -1 in (begin, at, end) or not self._is_same(life, reign):
                continue
            require_pair(begin <= at <= end, 18, f"{queue}: {begin} to {end}, and by time {at}")
            before = self._ends.get(queue, (life, 0))
            require_pair(before[0] != life or end >= before[1], 18,
                         f"{queue} ended at {before[1]}, and now at {end}")
            self._ends[queue] = life, end

    async def _view(self) -> None:
        """B18, of messages."""
        rng = self._world.rng
        while not self._world.is_over:
            await self._traffic.client.pause(rng.expovariate(1 / 0.4))
            life, reign = self._life(), self._world.reign()
            sent = self._some_sent(life)
            if sent is None:
                continue
            answer = await self._traffic.ask_master(VIEW_MESSAGE, {"offset": sent.offset})
            if answer is None or sent.may_be_lost or not self._is_same(life, reign):
                continue
            keys = decode_message(answer.body).keys if answer.code == 0 else ()
            if answer.code:
                await self._traffic.client.pause(2.0)  # a file that was old enough is noticed a little later
            require_pair(keys == (sent.key,) or self.accounts.sent[sent.key].may_be_lost, 18,
                         f"{sent.key} was acknowledged at {sent.offset}: there is {keys or answer.remark}")

    def _some_sent(self, life: tuple[int, int]) -> ProducedMessage | None:
        """An acknowledged message of this life of the master."""
        known = [one for one in self.accounts.sent.values()
                 if one.outcome == ACKED and one.offset >= 0 and (one.life, one.losses) == life]
        return self._world.rng.choice(known) if known else None


def why_unsettled(traffic: AskedTraffic) -> str:
    """B6, B15 and B17: the messages for which the clients still wait; empty if all are delivered."""
    topics, accounts = frozenset((*KEPT, REMADE)), traffic.accounts
    wanted = {one: frozenset({KEPT[0]}) if one.name == RESET_GROUP else topics for one in GROUPS}
    for group, its in {**wanted, GroupFilter(ORDER_GROUP): frozenset({KEPT[1]})}.items():
        missing = accounts.missing(its, group)
        if missing:
            return f"{group.name} has not got {len(missing)} messages: {_reported(accounts, missing)}"
    if accounts.sent_back:
        return f"messages that were sent back did not come again: {list(accounts.sent_back)[:3]}"
    open_ones = accounts.unacknowledged(topics, POP_GROUP)
    if open_ones:
        return f"{POP_GROUP} has not acknowledged {len(open_ones)} messages: {_reported(accounts, open_ones)}"
    if not traffic.has_come:
        return "no reply came"
    return next(filter(None, (part.why_unsettled() for part in traffic.parts)), "")


def _reported(accounts: TrafficRecord, keys: list[str]) -> str:
    sent = [accounts.sent[key] for key in keys[:3]]
    return "; ".join(f"{one.key} {one.kind} in {one.topic}/{one.queue_id} at {one.offset} era {one.era} "
                     f"{one.outcome} {one.ended}" for one in sent)
