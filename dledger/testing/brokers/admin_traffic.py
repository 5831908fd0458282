# -*- test-case-name: tests.sim.test_pairs -*-
"""The stories of administrators: topics and groups come and go, a topic is made again, offsets are reset."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from typing import Protocol

from dledger.testing.brokers.rig.accounts import UNSURE, ProducedMessage, TrafficRecord
from dledger.testing.brokers.rig.asking import ClientMachine
from dledger.testing.brokers.rig.states import OffsetKey
from protocols.wire.remoting import RemotingCommand

QUERY_OFFSET = 14
MAKE_TOPIC, DELETE_TOPIC, MAKE_GROUP, DELETE_GROUP, RESET_OFFSETS = 17, 215, 200, 207, 222

KEPT, REMADE = ("T1", "T2"), "X1"
QUEUES = 2
RESET_GROUP = "GR"


class TrafficWorld(Protocol):
    """What the stories know of the schedule."""

    accounts: TrafficRecord
    rng: random.Random

    @property
    def is_loaded(self) -> bool:
        """Whether producers and administrators go on."""

    @property
    def is_over(self) -> bool:
        """Whether all stories end."""

    def master(self) -> str:
        """The port of the master, or of one that may be it."""

    def any_broker(self) -> str:
        """The port of some broker."""

    def any_of(self, draws: random.Random) -> str:
        """As L{any_broker}, drawn by somebody else."""

    def is_sound(self, target: str) -> bool:
        """Whether a broker has the master's messages, and no others: else its consumers go elsewhere."""

    def wall_ms(self) -> int:
        """Ms since 1970."""

    def placed(self, sent: ProducedMessage, code: int) -> None:
        """A message was stored."""

    def reign(self) -> int:
        """A number that changes when there is another master; below 0: L{master} may be none at present."""

    def committing(self, target: str, key: OffsetKey, offset: int) -> Callable[[bool], None]:
        """A consumer is about to commit an offset. @return: called with whether that succeeded."""

    def resetting(self, target: str, key: OffsetKey, offset: int) -> Callable[[bool], None]:
        """An administrator is about to set an offset. @return: as by L{committing}."""

    def asking(self, target: str, key: OffsetKey) -> Callable[[int], None]:
        """A consumer is about to ask for its offset. @return: called with the answer."""

    def process_of(self, target: str) -> tuple[int, int]:
        """Numbers of the disk and of the process of a broker."""

    def deleting(self, topic: str) -> None:
        """A topic is about to be deleted, or has just been."""


class AdminTraffic:
    """
    @ivar paused: the consumers of L{REMADE} wait, as it is deleted and made again.
    """

    def __init__(self, world: TrafficWorld, client: ClientMachine) -> None:
        self._world = world
        self.client = client
        self._rng = world.rng
        self.accounts = world.accounts
        self._busy = 0
        self.paused = False

    async def ask_master(
        self, code: int, fields: Mapping[str, object], body: bytes = b""
    ) -> RemotingCommand | None:
        """@return: its answer; None as of L{ClientMachine.ask}."""
        return await self.client.ask(self._world.master(), code, fields, body)

    async def ask_until_done(self, code: int, fields: Mapping[str, object]) -> bool:
        """Ask the master until it has done it. @return: False: the schedule is over."""
        while not self._world.is_over:
            answer = await self.ask_master(code, fields)
            if answer is not None and answer.code == 0:
                return True
            await self.client.pause(0.3)
        return False

    @staticmethod
    def topic_fields(name: str, queues: int = QUEUES) -> dict[str, object]:
        """Of a request that makes a topic."""
        return {"topic": name, "readQueueNums": queues, "writeQueueNums": queues, "perm": 6,
                "topicFilterType": "SINGLE_TAG", "order": "false", "defaultTopic": "TBW102"}

    async def _make_topics(self) -> None:
        for name in (*KEPT, REMADE):
            await self.ask_until_done(MAKE_TOPIC, self.topic_fields(name))

    async def _administrate(self) -> None:
        """Topics and groups that nobody uses come and go."""
        rng = self._rng
        while self._world.is_loaded:
            await self.client.pause(rng.expovariate(1 / 0.8))
            name, kind = f"a{rng.randrange(5)}", rng.random()
            if kind < 0.4:
                await self.ask_master(MAKE_TOPIC, self.topic_fields(name, 1 + rng.randrange(8)))
            elif kind < 0.5:
                await self.ask_master(DELETE_TOPIC, {"topic": name})
            elif kind < 0.9:
                body = b'{"groupName":"%s","retryMaxTimes":%d}' % (name.encode(), rng.randrange(20))
                await self.ask_master(MAKE_GROUP, {}, body)
            else:
                await self.ask_master(DELETE_GROUP, {"groupName": name, "cleanOffset": "true"})

    async def _remake(self) -> None:
        """Delete a topic and make it again, while its consumers wait."""
        rng, eras = self._rng, self.accounts.eras
        while self._world.is_loaded:
            await self.client.pause(rng.uniform(2.0, 8.0))
            self.paused = True
            while self._busy:
                await self.client.pause(0.1)
            accounts = self.accounts
            eras[REMADE], life = UNSURE, accounts.life
            accounts.lives += 1
            self._world.deleting(REMADE)
            if not await self.ask_until_done(DELETE_TOPIC, {"topic": REMADE}):
                return
            self._world.deleting(REMADE)
            await self.client.pause(rng.random())
            if not await self.ask_until_done(MAKE_TOPIC, self.topic_fields(REMADE)):
                return
            if accounts.life == life:  # else the next master may not know of the deletion
                eras[REMADE] = accounts.lives
            self.paused = False

    async def _reset(self) -> None:
        """A group consumes a queue again from an offset on."""
        rng, world, topic = self._rng, self._world, KEPT[0]
        while world.is_loaded:
            await self.client.pause(rng.uniform(1.0, 4.0))
            queue_id = rng.randrange(QUEUES)
            place = {"consumerGroup": RESET_GROUP, "topic": topic, "queueId": queue_id}
            answer = await self.ask_master(QUERY_OFFSET, place)
            if answer is None or answer.code != 0:
                continue
            offset = int(int(answer.ext_fields["offset"]) * rng.random())
            target = world.master()
            ended = world.resetting(target, (RESET_GROUP, topic, queue_id), offset)
            answer = await self.client.ask(target, RESET_OFFSETS, {
                "topic": topic, "group": RESET_GROUP, "timestamp": 0, "isForce": "true",
                "queueId": queue_id, "offset": offset,
            })
            ended(answer is not None and answer.code == 0)
