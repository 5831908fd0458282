# -*- test-case-name: tests.sim.test_pairs -*-
"""
The stories of clients: producers, consumers that pull, consumers that pop, administrators. Each goes on until
the world is over, with any answer to its requests.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from dledger.rocketmq.broker.consuming.popping.check_points import pop_retry_topic
from dledger.testing.brokers.admin_traffic import (
    KEPT,
    MAKE_TOPIC,
    QUERY_OFFSET,
    QUEUES,
    REMADE,
    RESET_GROUP,
    AdminTraffic,
    TrafficWorld,
)
from dledger.testing.brokers.rig.accounts import (
    ACKED,
    COMMIT,
    DELAYED,
    HALF,
    PLAIN,
    REFUSED,
    ROLLBACK,
    UNKNOWN,
    Given,
    GroupFilter,
    ProducedMessage,
    require_pair,
)
from dledger.testing.brokers.rig.asking import ClientMachine
from dledger.testing.brokers.rig.states import OffsetKey
from protocols.wire.remoting import RemotingCommand
from protocols.wire.rocketmq.message import (
    BatchItem,
    Message,
    decode_message,
    encode_batch,
    encode_properties,
)

SEND, SEND_BATCH, PULL, COMMIT_OFFSET = 310, 320, 11, 15
QUERY_MESSAGE, END_TRANSACTION, CHECK_TRANSACTION, HEART_BEAT = 12, 37, 39, 34
POP, ACK, CHANGE_INVISIBLE = 200_050, 200_051, 200_053
#: Codes of a send that was stored.
STORED = (0, 10, 11, 12)
#: Codes of an acknowledgement that may have been stored.
UNSURE_ENDS = (1, 10)
#: Codes of a put that was not stored, for sure.
NOT_STORED = (2, 13, 14, 16, 17)

POP_GROUP, PRODUCER, CLIENT_ID = "P1", "PG", "c1"
#: It sends messages back, and gets them again.
BACK_GROUP = "GB"
GROUPS = (
    GroupFilter("G1"), GroupFilter("G2", "A || B", tags=frozenset("AB")),
    GroupFilter("G3", "TAGS = 'A' AND n > 20", "SQL92", tags=frozenset("A"), above=20),
    GroupFilter(RESET_GROUP), GroupFilter(BACK_GROUP),
)
#: Delay of each level, see L{dledger.testing.brokers.pairs.TIMING}.
LEVELS_MS = (1000, 2000, 4000)


class _Late(NamedTuple):
    """
    Where a consumer was in a queue, when its topic was deleted.

    @ivar at: its offset. @ivar era: of the topic. @ivar connection: the one by which it has read.
    @ivar reign: see L{TrafficWorld.reign}.
    """

    target: str
    at: int
    era: int
    connection: object
    reign: int


def messages_of(body: bytes) -> list[Message]:
    """The records of an answer."""
    found, at = [], 0
    while at < len(body):
        found.append(decode_message(body, at))
        at += int.from_bytes(body[at : at + 4], "big")
    return found


def _key(place: dict[str, object]) -> OffsetKey:
    return str(place["consumerGroup"]), str(place["topic"]), int(str(place["queueId"]))


def _end_fields(sent: ProducedMessage, end: str, queue_offset: int, offset: int) -> dict[str, object]:
    return {
        "producerGroup": PRODUCER, "tranStateTableOffset": queue_offset, "commitLogOffset": offset,
        "commitOrRollback": 8 if end == COMMIT else 12, "msgId": sent.key,
    }


def _wanted(sent: ProducedMessage) -> str:
    return COMMIT if sent.number % 3 else ROLLBACK


def _properties(sent: ProducedMessage, **more: str) -> dict[str, str]:
    return {"KEYS": sent.key, "UNIQ_KEY": sent.key, "TAGS": sent.tag, "n": str(sent.number), **more}


class Traffic(AdminTraffic):
    """
    All clients of a schedule, on one machine.

    @ivar paused: the consumers of L{REMADE} wait, as it is deleted and made again.
    @ivar probed: the answer to L{probe}; -1: none.
    """

    def __init__(self, world: TrafficWorld, client: ClientMachine, *, put_s: float) -> None:
        super().__init__(world, client)
        self._put_s = put_s
        self._number = 0
        self._halves: dict[str, ProducedMessage] = {}
        self.probed = -1
        client.asked = self.check_asked

    def begin(self) -> None:
        """Let all stories begin."""
        begin = self.client.begin
        begin(self._make_topics())
        begin(self._produce())
        begin(self._beat())
        begin(self._query())
        begin(self._administrate())
        begin(self._remake())
        begin(self._reset())
        for group in GROUPS:
            for topic in (*KEPT, REMADE):
                for queue_id in range(QUEUES):
                    if group.name != RESET_GROUP or topic == KEPT[0]:
                        begin(self.pull(group, topic, queue_id))
        for topic in (*KEPT, REMADE):
            begin(self._pop(topic))
            begin(self._pop(topic))

    # -- producers -------------------------------------------------------------------------------

    async def _produce(self) -> None:
        while self._world.is_loaded:
            await self.client.pause(self._rng.expovariate(1 / self._put_s) + 1e-6)
            kind = self._rng.random()
            if kind < 0.1:
                self.client.begin(self._send_batch())
            elif kind < 0.25:
                self.client.begin(self._send_half())
            else:
                self.client.begin(self._send_one(DELAYED if kind < 0.4 else PLAIN))

    def _new(self, kind: str, topic: str = "", queue_id: int = -1) -> ProducedMessage:
        rng, self._number = self._rng, self._number + 1
        topic = topic or rng.choice((*KEPT, *KEPT, REMADE))
        sent = ProducedMessage(
            key=f"m{self._number}", topic=topic, queue_id=rng.randrange(QUEUES) if queue_id < 0 else queue_id,
            tag=rng.choice("ABC"), number=rng.randrange(40),
            body=rng.randbytes(rng.choice((0, 10, 200, 700))),
            due_ms=self._world.wall_ms(), kind=kind, era=self.accounts.era(topic),
            life=self.accounts.life, losses=self.accounts.losses,
        )
        self.accounts.sent[sent.key] = sent
        return sent

    def send_fields(
        self, sent: ProducedMessage, properties: Mapping[str, str], sys_flag: int = 0
    ) -> dict[str, object]:
        """Of a send, by their short names."""
        return {
            "a": PRODUCER, "b": sent.topic, "c": "TBW102", "d": QUEUES, "e": sent.queue_id, "f": sys_flag,
            "g": self._world.wall_ms(), "h": 0, "i": encode_properties(properties).decode(), "j": 0,
            "k": "false",
        }

    async def _send_one(self, kind: str) -> None:
        rng, sent = self._rng, self._new(kind)
        more = {}
        if kind == DELAYED and rng.random() < 0.5:
            level = rng.randrange(len(LEVELS_MS))
            more = {"DELAY": str(level + 1)}
            sent.due_ms += LEVELS_MS[level]
        elif kind == DELAYED:
            wait_ms = rng.randrange(200, 4000)
            more = {"TIMER_DELAY_MS": str(wait_ms)}
            sent.due_ms += wait_ms
        answer = await self.ask_master(SEND, self.send_fields(sent, _properties(sent, **more)), sent.body)
        self.note_sent([sent], answer)
        if answer is not None and sent.outcome == ACKED:
            self._stored(sent, answer)

    async def send_to(self, target: str) -> None:
        """Send a message to a broker that may be no master."""
        sent = self._new(PLAIN)
        fields = self.send_fields(sent, _properties(sent))
        self.note_sent([sent], await self.client.ask(target, SEND, fields, sent.body))

    def _stored(self, sent: ProducedMessage, answer: RemotingCommand) -> None:
        """A message that was sent alone is stored."""

    async def _send_batch(self) -> None:
        first = self._new(PLAIN)
        batch = [first, *(self._new(PLAIN, first.topic, first.queue_id) for _ in range(2))]
        body = encode_batch([BatchItem(
            flag=0, body=one.body, properties_data=encode_properties(_properties(one))
        ) for one in batch])
        answer = await self.ask_master(SEND_BATCH, {"m": "true", **self.send_fields(first, {})}, body)
        self.note_sent(batch, answer)

    def note_sent(self, batch: list[ProducedMessage], answer: RemotingCommand | None) -> None:
        """A send has an answer, or none."""
        outcome = UNKNOWN
        if answer is not None:
            outcome = ACKED if answer.code in STORED else REFUSED if answer.code in NOT_STORED else UNKNOWN
        for sent in batch:
            self.accounts.answered(sent, outcome)
        if outcome == ACKED and answer is not None:
            place, ids = int(answer.ext_fields["queueOffset"]), answer.ext_fields["msgId"].split(",")
            for at, (sent, message_id) in enumerate(zip(batch, ids, strict=True)):
                sent.offset = int(message_id[-16:], 16)
                sent.queue_offset = place + at
                self._world.placed(sent, answer.code)

    def probe(self) -> None:
        """Send a message to learn how it is answered."""
        self.client.begin(self._probe())

    async def _probe(self) -> None:
        # The next master may not know a topic that was made just before, and tables may be lost.
        for topic in KEPT:
            await self.ask_until_done(MAKE_TOPIC, self.topic_fields(topic))
        sent = self._new(PLAIN, KEPT[0])
        answer = await self.ask_master(SEND, self.send_fields(sent, _properties(sent)), sent.body)
        self.probed = -1 if answer is None else answer.code

    # -- transactions ----------------------------------------------------------------------------

    async def _send_half(self) -> None:
        rng, sent = self._rng, self._new(HALF)
        self._halves[sent.key] = sent
        target = self._world.master()
        named = _properties(sent, TRAN_MSG="true", PGROUP=PRODUCER)
        answer = await self.client.ask(target, SEND, self.send_fields(sent, named, 4), sent.body)
        self.note_sent([sent], answer)
        if answer is None or sent.outcome != ACKED or rng.random() < 0.3:
            return
        await self.client.pause(rng.random() * rng.choice((1, 1, 1, 7)))  # some are asked about before
        place = (int(answer.ext_fields["queueOffset"]), sent.offset)
        if rng.random() < 0.15:
            self.client.begin(self._end(target, sent, COMMIT, *place))
            self.client.begin(self._end(target, sent, ROLLBACK, *place))
        else:
            await self._end(target, sent, _wanted(sent), *place)

    async def _end(
        self, target: str, sent: ProducedMessage, end: str, queue_offset: int, offset: int
    ) -> None:
        fields = _end_fields(sent, end, queue_offset, offset)
        await self._ask_end(target, sent, end, {**fields, "fromTransactionCheck": "false"})

    async def _ask_end(
        self, target: str, sent: ProducedMessage, end: str, fields: Mapping[str, object]
    ) -> None:
        sent.asked.add(end)
        losses = self.accounts.losses
        answer = await self.client.ask(target, END_TRANSACTION, fields)
        if answer is not None and answer.code == 0 and losses == self.accounts.losses:
            self.accounts.ended(sent, end)

    def check_asked(self, target: str, command: RemotingCommand) -> None:
        """A broker asks how a transaction has ended; or it says something else."""
        if command.code != CHECK_TRANSACTION or self._rng.random() < 0.2:
            return
        fields = command.ext_fields
        sent = self._halves[fields["transactionId"]]
        end = _wanted(sent)
        place = int(fields["tranStateTableOffset"]), int(fields["commitLogOffset"])
        named = {**_end_fields(sent, end, *place), "fromTransactionCheck": "true"}
        self.client.begin(self._ask_end(target, sent, end, named))

    async def _beat(self) -> None:
        """Producers register at the master."""
        body = (b'{"clientID":"%s","producerDataSet":[{"groupName":"%s"}],"consumerDataSet":[]}'
                % (CLIENT_ID.encode(), PRODUCER.encode()))
        while not self._world.is_over:
            await self.ask_master(HEART_BEAT, {}, body)
            await self.client.pause(1.0)

    # -- consumers that pull ---------------------------------------------------------------------

    async def pull(self, group: GroupFilter, topic: str, queue_id: int) -> None:
        """A group pulls from a queue until all is over."""
        rng, world = self._rng, self._world
        at, target = -1, ""
        last: _Late | None = None
        place = {"consumerGroup": group.name, "topic": topic, "queueId": queue_id}
        while not world.is_over:
            if topic == REMADE and self.paused:
                at = -1
                await self.client.pause(0.1)
                continue
            self._busy += topic == REMADE
            try:
                if at < 0 and last is not None and topic == REMADE:
                    await self._commit_late(last, place)
                    last = None
                if at >= 0 and not world.is_sound(target):
                    at = -1
                if at < 0 or (target != world.master() and rng.random() < 0.3):
                    target = world.master() if rng.random() < 0.9 or topic == REMADE else world.any_broker()
                    if world.is_sound(target):
                        at = await self.first_offset(target, place)
                if at >= 0:
                    era = self.accounts.era(topic)
                    at = await self._pull_once(target, group, place, at)
                    if at > 0:
                        last = _Late(target, at, era, self.client.connection(target), world.reign())
            finally:
                self._busy -= topic == REMADE
            if at < 0:
                await self.client.pause(0.2)
            elif rng.random() < 0.03:
                at = -1  # it begins anew

    async def _commit_late(self, last: _Late, place: dict[str, object]) -> None:
        """
        A consumer commits an offset once more, and does not know that the topic was deleted: RocketMQ's
        clients do so every five seconds. B28. (One that the next topic may have soon.)
        """
        target, world, offset = last.target, self._world, -(-last.at // 3)
        await self.client.pause(last.at % 4 / 2)

        def is_same() -> bool:
            return target == world.master() and self.client.connection(target) is last.connection is not None

        if not is_same() or not 0 <= last.era < self.accounts.era(REMADE):
            return
        if last.at % 2:  # it does so with its next pull; B6 shows whether that counts
            ended = world.committing(target, _key(place), offset)
            await self.client.ask(target, PULL, {
                **place, "queueOffset": last.at, "maxMsgNums": 1, "sysFlag": 5, "commitOffset": offset,
                "suspendTimeoutMillis": 0, "subVersion": 0, "subscription": "*", "expressionType": "TAG",
            })
            ended(False)
            return
        is_done = await self.commit(target, place, offset)
        is_sure = is_same() and 0 <= last.reign == world.reign()
        self.accounts.late += is_sure
        require_pair(not (is_done and is_sure), 28, f"{offset} of a deleted topic counts for {_key(place)}")

    def _got(self, group: str, message: Message, sent: ProducedMessage) -> None:
        """A group has got a message."""

    async def first_offset(self, target: str, place: dict[str, object]) -> int:
        """@return: where a group begins in a queue; below 0: a broker does not say."""
        ended = self._world.asking(target, _key(place))
        answer = await self.client.ask(target, QUERY_OFFSET, place)
        if answer is None or answer.code not in (0, 22):
            return -1
        offset = int(answer.ext_fields["offset"]) if answer.code == 0 else 0
        ended(offset)
        return offset

    async def _pull_once(self, target: str, group: GroupFilter, place: dict[str, object], at: int) -> int:
        """@return: the next offset; below 0: ask for it."""
        topic, rng = str(place["topic"]), self._rng
        era = self.accounts.era(topic)
        # Flags: suspend, and the subscription is in the request.
        answer = await self.client.ask(target, PULL, {
            **place, "queueOffset": at, "maxMsgNums": rng.choice((1, 8, 32)), "sysFlag": 6,
            "commitOffset": 0, "suspendTimeoutMillis": 800, "subVersion": 0,
            "subscription": group.expression, "expressionType": group.kind,
        })
        if answer is None or answer.code not in (0, 19, 20, 21):
            return -1
        for message in messages_of(answer.body) if answer.code == 0 else ():
            self._got(group.name, message, self.accounts.delivered(
                group.name, message, now_ms=self._world.wall_ms(), era=era, passes=group
            ))
        following = int(answer.ext_fields["nextBeginOffset"])
        is_due = rng.random() < 0.4 and following > 0 and topic != REMADE
        if is_due and not await self.commit(target, place, following):
            return -1
        return following

    async def commit(self, target: str, place: dict[str, object], offset: int) -> bool:
        """@return: whether an offset of a group was committed with success."""
        ended = self._world.committing(target, _key(place), offset)
        answer = await self.client.ask(target, COMMIT_OFFSET, {**place, "commitOffset": offset})
        is_done = answer is not None and answer.code == 0
        ended(is_done)
        return is_done

    # -- consumers that pop ----------------------------------------------------------------------

    async def _pop(self, topic: str) -> None:
        rng, world = self._rng, self._world
        while not world.is_over:
            if topic == REMADE and self.paused:
                await self.client.pause(0.1)
                continue
            self._busy += topic == REMADE
            era, invisible_ms = self.accounts.era(topic), rng.choice((1500, 3000))
            answer = await self.ask_master(POP, {
                "consumerGroup": POP_GROUP, "topic": topic, "queueId": -1,
                "maxMsgNums": rng.choice((1, 4, 16)), "invisibleTime": invisible_ms, "pollTime": 1500,
                "bornTime": world.wall_ms(), "initMode": 0, "expType": "TAG", "exp": "*", "order": "false",
            })
            self._busy -= topic == REMADE
            if answer is None or answer.code != 0:
                await self.client.pause(0.3 if answer is None or answer.code != 210 else 0.01)
                continue
            for message in messages_of(answer.body):
                self._take(message, answer, era)

    def _take(self, message: Message, answer: RemotingCommand, era: int) -> None:
        fields, world, topic = answer.ext_fields, self._world, message.topic
        sent = self.accounts.delivered(POP_GROUP, message, now_ms=world.wall_ms(), era=era)
        receipt = message.properties.get("POP_CK")
        if receipt is None:
            starts = dict(part.rsplit(" ", 1) for part in fields["startOffsetInfo"].split(";"))
            receipt = (f"{starts[f'0 {message.queue_id}']} {fields['popTime']} {fields['invisibleTime']} "
                       f"{fields['reviveQid']} 0 b {message.queue_id} {message.queue_offset}")
        parts = receipt.split(" ")
        given = self.accounts.popped(
            POP_GROUP, sent, pop_ms=int(parts[1]), visible_ms=int(parts[1]) + int(parts[2]),
            copy=(message.reconsume_times, message.queue_offset),
        )
        is_named = parts[4] == "1"  # a retry whose topic has a name of version 1, which a client knows
        place = {
            "consumerGroup": POP_GROUP, "queueId": parts[6], "offset": parts[7],
            "topic": pop_retry_topic(topic, POP_GROUP, version=1) if is_named else topic,
            "extraInfo": receipt,
        }
        self.client.begin(self._settle(given, place))

    async def _settle(self, given: Given, place: Mapping[str, object]) -> None:
        rng = self._rng
        await self.client.pause(rng.random() * 0.8)
        if self._world.is_loaded and rng.random() < 0.3:
            if rng.random() < 0.5:
                return  # it comes again
            before_ms, given.visible_ms = given.visible_ms, 0
            losses = self.accounts.losses
            invisible_ms = rng.choice((500, 2000))
            answer = await self.ask_master(CHANGE_INVISIBLE, {**place, "invisibleTime": invisible_ms})
            if answer is None or losses != self.accounts.losses:
                return  # the master has lost the pop, too, and knows nothing of its time
            if answer.code == 0:
                fields = answer.ext_fields
                given.visible_ms = int(fields["popTime"]) + int(fields["invisibleTime"])
            elif answer.code not in UNSURE_ENDS:
                given.visible_ms = before_ms
            return
        given.acked = UNKNOWN
        losses = self.accounts.losses
        answer = await self.ask_master(ACK, place)
        if answer is not None and losses == self.accounts.losses:
            given.acked = ACKED if answer.code == 0 else UNKNOWN if answer.code in UNSURE_ENDS else ""

    async def _query(self) -> None:
        """Look for messages by their keys: what is found is right."""
        rng = self._rng
        while not self._world.is_over:
            await self.client.pause(rng.expovariate(1 / 0.5))
            if not self.accounts.sent:
                continue
            sent = rng.choice(list(self.accounts.sent.values()))
            answer = await self.client.ask(self._world.any_broker(), QUERY_MESSAGE, {
                "topic": sent.topic, "key": sent.key, "maxNum": 8, "beginTimestamp": 0,
                "endTimestamp": 1 << 60,
            })
            for message in messages_of(answer.body) if answer is not None and answer.code == 0 else ():
                require_pair(message.keys == (sent.key,) and message.body == sent.body, 1,
                             f"a query for {sent.key} found {message.keys}")
