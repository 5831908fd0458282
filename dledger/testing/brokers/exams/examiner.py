# -*- test-case-name: tests.sim.test_exams -*-
"""
Asks a master in peace, and its slaves, and compares each answer with the only right one.

B25. When all faults are over, answers are exact and come in time: places, bounds, times and counts are those
of the messages; a caller that waits hears at once; what is delayed, popped or sent back comes at its time and
not before; what must be refused is refused, and stores nothing; what is made again has nothing of before;
slaves answer as their master does; a master that is restarted knows its answers of before.

While faults happen, most answers may be one of several. After them each has one right value, in a store that
has lived through crashes, cuts and expired files. So small faults of plain logic come out here.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Coroutine, Mapping
from functools import partial
from typing import Protocol, TypeAlias, TypeVar

from twisted.internet.defer import Deferred

from dledger.rocketmq.broker.replication import HAReplication
from dledger.testing.brokers.rig.accounts import require_pair
from dledger.testing.brokers.rig.asking import ClientMachine
from dledger.testing.brokers.rig.machine import CLIENT_PORT, BrokerMachine
from dledger.testing.brokers.rig.states import OffsetKey
from dledger.testing.world.clock import SimClock
from protocols.wire.remoting import RemotingCommand
from protocols.wire.rocketmq.broker_frames import BrokerAnswer, BrokerRequest
from protocols.wire.rocketmq.message import Message, decode_message, encode_properties

MAKE_TOPIC, DELETE_TOPIC, DELETE_GROUP, MAX_OFFSET, PULL, SEND = 17, 215, 207, 30, 11, 310
COMMIT_OFFSET, QUERY_OFFSET, RESET_OFFSETS, QUERY_MESSAGE = 15, 14, 222, 12
#: An answer in time has come after this time, at most, ms.
PROMPT_MS = 900
QUEUES = 2
PRODUCER = "EG"
#: The clients' machines, beside those of the load.
EXAMINER, OTHER_EXAMINER = "10.0.1.9", "10.0.1.10"

_T = TypeVar("_T")
Paper: TypeAlias = Coroutine[Deferred[object], object, None]


class ExamVoid(Exception):
    """The master has changed meanwhile: nothing can be said."""


class ExamWorld(Protocol):
    """
    What the exam knows of the schedule.

    A part of L{dledger.testing.brokers.admin_traffic.TrafficWorld}.

    @ivar has_copies: see L{dledger.testing.brokers.client_world.ClientWorld}.
    """

    seed: int
    clock: SimClock
    has_copies: bool

    def master(self) -> str:
        """The port of the master."""

    def wall_ms(self) -> int:
        """Ms since 1970."""

    def reign(self) -> int:
        ...

    def committing(self, target: str, key: OffsetKey, offset: int) -> Callable[[bool], None]:
        ...

    def resetting(self, target: str, key: OffsetKey, offset: int) -> Callable[[bool], None]:
        ...

    def deleting(self, topic: str) -> None:
        ...

    @property
    def master_machine(self) -> BrokerMachine:
        """The machine of the master."""

    @property
    def slave_machines(self) -> list[BrokerMachine]:
        """The machines of the slaves."""


class RenewedLoan(Protocol):
    """A loan of a queue: L{dledger.testing.brokers.exams.lasting_papers.Loan}."""

    @property
    def is_renewed(self) -> bool:
        """Whether it is still lent, by its renewal alone."""

    @property
    def may_be_renewed(self) -> bool:
        """Whether it is lent, or will be."""

    async def ask(self, who: str) -> bool:
        """@param who: a client of the group. @return: whether it has the queue."""


class Examiner:
    """
    @ivar client, other: two machines with clients.
    @ivar asked, other_asked: called with each request that a broker sends to the first, to the other.
    @ivar loan: of a queue, which has begun before the exam; None: there is none.
    """

    def __init__(
        self, world: ExamWorld, client: ClientMachine, other: ClientMachine, loan: RenewedLoan | None = None
    ) -> None:
        self.loan = loan
        self._world = world
        self.client = client
        self.other = other
        self._reign = world.reign()
        self._names = 0
        self.asked: list[Callable[[RemotingCommand], None]] = []
        self.other_asked: list[Callable[[RemotingCommand], None]] = []
        client.asked = partial(_hear, self.asked)
        other.asked = partial(_hear, self.other_asked)

    def now_ms(self) -> int:
        """Ms since 1970."""
        return self._world.wall_ms()

    def master(self) -> str:
        """The port of the master."""
        return self._world.master()

    def copies(self) -> list[str]:
        """The ports of the slaves: each has all that its master has."""
        return [f"{one.name}:{CLIENT_PORT}" for one in self._world.slave_machines if self._world.has_copies]

    def file_of_master(self, path: str) -> bytes:
        """@return: the content of a file of the master; empty: there is none."""
        disk = self._world.master_machine.disk
        return disk.cached_content(path) if disk.exists(path) else b""

    def copy_tables(self) -> None:
        """Let each slave copy its master's tables now: by itself it does so every ten seconds."""
        for slave in self._world.slave_machines:
            slave.call(_copy_tables, slave)

    def restarts(self) -> bool:
        """Whether the master may be restarted: of one seed in five."""
        return self._world.has_copies and random.Random(f"{self._world.seed} restarts").random() < 0.2

    def waits(self) -> bool:
        """Whether the exam may last for more than half a minute: of one seed in six."""
        return random.Random(f"{self._world.seed} waits").random() < 1 / 6

    def restart(self) -> bool:
        """
        End the master, by an order, a kill or a loss of power; another process starts on its disk.

        @return: whether the process ends in order.
        """
        machine, rng = self._world.master_machine, random.Random(f"{self._world.seed} how it ends")
        ends_in_order = rng.random() < 0.5
        if ends_in_order:
            machine.stop()
            if rng.random() < 0.5:
                self._world.clock.after(500_000, machine.lose_power)  # the process has ended by then
        elif rng.random() < 0.5:
            machine.kill()
        else:
            machine.lose_power()
        return ends_in_order

    def require(self, condition: bool, sentence: str) -> None:
        """@raise ExamVoid: it may be because the master has changed. @raise PairBroken: B25."""
        if not condition and self._world.reign() != self._reign:
            raise ExamVoid
        require_pair(condition, 25, sentence)

    async def ask(
        self, code: int, fields: Mapping[str, object], body: bytes = b"", *, version: int = 0
    ) -> RemotingCommand:
        """@return: the answer of the master, with any code."""
        answer = await self.client.ask(self._world.master(), code, fields, body, version=version)
        self.require(answer is not None, f"request {code} with {dict(fields)} is not answered")
        assert answer is not None
        return answer

    async def natives(self, *requests: BrokerRequest) -> list[BrokerAnswer]:
        """Send native requests, all at once. @return: the answer of the master to each."""
        found = []
        for request, answer in zip(
            requests, await self.client.ask_natives(self._world.master(), *requests), strict=True
        ):
            self.require(answer is not None, f"a native {request.kind.name} is not answered")
            assert answer is not None
            found.append(answer)
        return found

    async def done(
        self, code: int, fields: Mapping[str, object], body: bytes = b"", *, version: int = 0
    ) -> dict[str, str]:
        """@return: the fields of an answer with success."""
        answer = await self.ask(code, fields, body, version=version)
        self.require(answer.code == 0, f"request {code} with {dict(fields)} is answered with {answer.code} "
                                       f"{answer.remark}")
        return dict(answer.ext_fields)

    @staticmethod
    def begin(asking: Coroutine[Deferred[object], object, _T]) -> Deferred[_T]:
        """Ask, and look at the answer later."""
        return Deferred.fromCoroutine(asking)

    # -- topics and messages -----------------------------------------------------------------------

    async def topic(self, queues: int = QUEUES) -> str:
        """@return: the name of a new topic."""
        self._names += 1
        name = f"exam{self._names}"
        while True:  # connections of before may have ended unseen
            answer = await self.client.ask(self._world.master(), MAKE_TOPIC, topic_fields(name, queues))
            if answer is not None and answer.code == 0:
                self._reign = self._world.reign()
                return name
            await self.client.pause(0.3)

    def send_fields(
        self, topic: str, queue_id: int, properties: Mapping[str, str], **more: object
    ) -> dict[str, object]:
        """Of a send, by their short names."""
        return {
            "a": PRODUCER, "b": topic, "c": "TBW102", "d": QUEUES, "e": queue_id, "f": 0, "g": self.now_ms(),
            "h": 0, "i": encode_properties(dict(properties)).decode(), "j": 0, "k": "false", **more,
        }

    async def send(
        self, topic: str, key: str, more: Mapping[str, str] | None = None, *, queue_id: int = 0,
        tag: str = "A", body: bytes = b"",
    ) -> dict[str, str]:
        """Send a message. @param more: its properties. @return: the fields of the answer."""
        named = {"KEYS": key, "UNIQ_KEY": key, "TAGS": tag, **(more or {})}
        began_ms = self.now_ms()
        fields = await self.done(SEND, self.send_fields(topic, queue_id, named), body)
        self.prompt(began_ms, f"the answer to the send of {key}", 1500)
        return fields

    def prompt(self, since_ms: int, what: str, late_ms: int = PROMPT_MS) -> None:
        """Something has come."""
        took_ms = self.now_ms() - since_ms
        self.require(took_ms <= late_ms, f"{what} took {took_ms} ms")

    async def pull(
        self, topic: str, at: int, *, queue_id: int = 0, most: int = 32, wait_ms: int = 0, sub: str = "*",
        kind: str = "TAG", group: str = "EC", **more: object,
    ) -> RemotingCommand:
        """Pull from a queue. @param more: further fields. @return: the answer."""
        return await self.ask(PULL, {
            "consumerGroup": group, "topic": topic, "queueId": queue_id, "queueOffset": at,
            "maxMsgNums": most,
            "sysFlag": 6 if wait_ms else 4, "commitOffset": 0, "suspendTimeoutMillis": wait_ms,
            "subVersion": 0, "subscription": sub, "expressionType": kind, **more,
        })

    async def commit(
        self, group: str, topic: str, queue_id: int, offset: int, *, target: str = ""
    ) -> None:
        """Set the offset of a group. @param target: the port of a broker; empty: the master's."""
        target = target or self._world.master()
        ended = self._world.committing(target, (group, topic, queue_id), offset)
        answer = await self.client.ask(target, COMMIT_OFFSET, {
            "consumerGroup": group, "topic": topic, "queueId": queue_id, "commitOffset": offset,
        })
        self.require(answer is not None and answer.code == 0, f"a commit is answered with {answer}")
        ended(True)

    async def delete(self, topic: str) -> None:
        """Delete a topic."""
        self._world.deleting(topic)
        await self.done(DELETE_TOPIC, {"topic": topic})
        self._world.deleting(topic)

    async def delete_group(self, group: str, topic: str) -> None:
        """Delete a group with its offsets, which are in queue 0 of a topic."""
        ended = self._world.resetting(self._world.master(), (group, topic, 0), 0)
        await self.done(DELETE_GROUP, {"groupName": group, "cleanOffset": "true"})
        ended(False)  # an offset that is not there is that of the first message

    async def reset(self, topic: str, group: str, wanted: int, **fields: object) -> RemotingCommand:
        """
        Let a group begin anew in queue 0 of a topic.

        @param wanted: the offset that it may get. @param fields: of the request. @return: the answer.
        """
        ended = self._world.resetting(self._world.master(), (group, topic, 0), wanted)
        answer = await self.ask(RESET_OFFSETS, {"topic": topic, "group": group, **fields})
        ended(answer.code == 0)
        return answer

    async def offset_of(self, group: str, topic: str, queue_id: int = 0, *, target: str = "") -> int:
        """@param target: the port of a broker; empty: the master's. @return: the offset; -1: none."""
        answer = await self.client.ask(target or self._world.master(), QUERY_OFFSET, {
            "consumerGroup": group, "topic": topic, "queueId": queue_id, "setZeroIfNotFound": "false",
        })
        self.require(answer is not None and answer.code in (0, 22), f"an offset of {group} is answered with "
                                                                    f"{answer}")
        assert answer is not None
        return int(answer.ext_fields["offset"]) if answer.code == 0 else -1

    async def end_of(self, topic: str, queue_id: int = 0) -> int:
        """@return: the next offset of a queue."""
        return int((await self.done(MAX_OFFSET, {"topic": topic, "queueId": queue_id}))["offset"])

    async def reaches(self, topic: str, end: int, queue_id: int = 0) -> None:
        """A queue soon has the messages before C{end}, and no more: it may be a turn behind the log."""
        began_ms = self.now_ms()
        while (found := await self.end_of(topic, queue_id)) != end:
            self.prompt(began_ms, f"queue {queue_id} of {topic} ends at {found}, and {end}")
            await self.client.pause(0.05)


def _copy_tables(slave: BrokerMachine) -> None:
    replication = slave.parts.replication if slave.parts is not None else None
    if isinstance(replication, HAReplication) and replication.following is not None:
        replication.following.synchronize.synchronize()


def _hear(reported: list[Callable[[RemotingCommand], None]], _target: str, command: RemotingCommand) -> None:
    for one in reported:
        one(command)


def topic_fields(name: str, queues: int = QUEUES) -> dict[str, object]:
    """Of a request that makes or changes a topic."""
    return {"topic": name, "readQueueNums": queues, "writeQueueNums": queues, "perm": 6,
            "topicFilterType": "SINGLE_TAG", "order": "false", "defaultTopic": "TBW102"}


def messages_in(body: bytes) -> list[Message]:
    """The records of an answer."""
    found, at = [], 0
    while at < len(body):
        found.append(decode_message(body, at))
        at += int.from_bytes(body[at : at + 4], "big")
    return found
