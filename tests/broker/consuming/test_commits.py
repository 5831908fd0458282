# -*- test-case-name: tests.broker.consuming.test_commits -*-
"""A commit counts for the messages that its consumer has read, and for no others."""

from __future__ import annotations

from collections.abc import Mapping

from twisted.trial.unittest import SynchronousTestCase

from dledger.rocketmq.answering.refusals import Code
from dledger.rocketmq.broker.consuming import commits
from protocols.wire.remoting import RemotingCommand
from tests.broker.send_support import Client, Sending, send_of

PULL, QUERY, COMMIT, MAKE, DELETE, RESET, CLONE = 11, 14, 15, 17, 215, 222, 314
PULL_FIELDS = {
    "maxMsgNums": "32", "sysFlag": "4", "commitOffset": "0", "suspendTimeoutMillis": "0", "subscription": "*",
    "subVersion": "0", "expressionType": "TAG",
}
TOPIC_FIELDS = {
    "defaultTopic": "TBW102", "readQueueNums": "4", "writeQueueNums": "4", "perm": "6",
    "topicFilterType": "SINGLE_TAG", "topicSysFlag": "0", "order": "false",
}


class CommitCase(SynchronousTestCase):
    """A consumer of T1, of which two messages are stored."""

    #: Whether the queues of a deleted topic stay, as on a raft log.
    is_kept = False

    def setUp(self) -> None:
        self.broker = Sending(options={"change_hosts": ("*",)})
        self.addCleanup(self.broker.store.abandon)
        if self.is_kept:
            self.patch(type(self.broker.store), "forget_topic", lambda store, topic: None)
        self.parts = self.broker.broker
        self.consumer = self.broker.connect()
        self.send(2)
        self.parts.metadata.groups.find("g", 1)

    def send(self, count: int) -> None:
        """Messages of queue 0."""
        for _ in range(count):
            self.broker.connect().send(send_of())
        self.broker.settle()

    def ask(self, code: int, client: Client | None = None, **fields: object) -> RemotingCommand:
        """One request."""
        named = {"topic": "T1", "consumerGroup": "g", "queueId": "0",
                 **{name: str(value) for name, value in fields.items()}}
        client = client or self.consumer
        answers = client.send(RemotingCommand(code=code, opaque=1, ext_fields=named))
        self.broker.settle()
        (answer,) = answers or client.received()
        return answer

    def pull(self, offset: int, commit: int | None = None, client: Client | None = None) -> RemotingCommand:
        """C{commit}: in the request's own field."""
        fields = {**PULL_FIELDS, "queueOffset": offset}
        if commit is not None:
            fields |= {"sysFlag": 5, "commitOffset": commit}
        return self.ask(PULL, client, **fields)

    def commit(self, offset: int, client: Client | None = None) -> int:
        """@return: the code of the answer."""
        return self.ask(COMMIT, client, commitOffset=offset).code

    @property
    def committed(self) -> int | None:
        """The offset of the group."""
        return self.parts.metadata.consumer_offsets.query("g", "T1", 0)

    def make_again(self, count: int) -> None:
        """The topic is deleted, and made again with this number of messages."""
        admin = self.broker.connect()
        for code in (DELETE, MAKE):
            self.assertEqual(self.ask(code, admin, **TOPIC_FIELDS).code, 0)
        self.send(count)


class EndTests(CommitCase):
    """Offsets end where queues end."""

    def test_commit(self) -> None:
        """A commit beyond the end is refused, one of the end counts."""
        self.assertEqual((self.commit(3), self.committed), (Code.SYSTEM_ERROR, None))
        self.assertEqual((self.commit(2), self.committed), (0, 2))
        self.assertEqual((self.ask(COMMIT, commitOffset=1, queueId=3).code, self.commit(1)), (1, 0))

    def test_pull(self) -> None:
        """That of a pull counts nothing then; the pull is answered."""
        self.assertEqual((self.pull(0, commit=3).code, self.committed), (0, None))
        self.assertEqual((self.pull(0, commit=2).code, self.committed), (0, 2))

    def test_not_dispatched(self) -> None:
        """A slave may have given out messages that are not dispatched here yet."""
        self.broker.connect().send(send_of())
        self.assertEqual(self.parts.store.queues.bounds("T1", 0), (0, 2))
        self.assertEqual(self.parts.pulls.commits.problem(self.consumer.connection, "g", "T1", 0, 3), "")

    def test_slave(self) -> None:
        """A slave's queue may be behind its master's."""
        slave = Sending(broker_role="SLAVE")
        self.addCleanup(slave.store.abandon)
        self.assertEqual(slave.broker.pulls.commits.problem(self.consumer.connection, "g", "T1", 0, 9), "")


#: Roads by which somebody may set the offset of group g in T1, queue 0: a code, and its fields.
ROADS: Mapping[str, tuple[int, Mapping[str, object]]] = {
    "a commit": (COMMIT, {}),
    "a pull's field": (PULL, {**PULL_FIELDS, "queueOffset": 0, "sysFlag": 5}),
    "a reset of one queue": (RESET, {"group": "g", "offset": 0, "timestamp": 0, "isForce": "true"}),
    "a clone": (CLONE, {"srcGroup": "other", "destGroup": "g", "isOffline": "true"}),
}
#: The field of each that has the offset.
ROAD_FIELDS = {COMMIT: "commitOffset", PULL: "commitOffset", RESET: "offset"}


def road_of(name: str, offset: int) -> RemotingCommand:
    """A request that sets the offset by this road."""
    code, fields = ROADS[name]
    named = {"topic": "T1", "consumerGroup": "g", "queueId": 0, **fields}
    if code in ROAD_FIELDS:
        named[ROAD_FIELDS[code]] = offset
    return RemotingCommand(code=code, opaque=1, ext_fields={key: str(one) for key, one in named.items()})


class RoadTests(CommitCase):
    """By no road an offset is beyond the end of its queue; one at the end counts by each that we have."""

    def test_each(self) -> None:
        """The next message comes whatever was asked."""
        offsets = self.parts.metadata.consumer_offsets
        self.parts.metadata.groups.find("other", 1)
        offsets.commit("other", "T1", 0, 9, 1)
        for name, (code, _) in ROADS.items():
            for offset in (3, 1 << 40, 2):
                offsets.commit("g", "T1", 0, 1, 1)
                answers = self.consumer.send(road_of(name, offset))
                self.broker.settle()
                (answer,) = answers or self.consumer.received()
                counts = offset == 2 and code in ROAD_FIELDS
                self.assertEqual(self.committed, 2 if counts else 1, f"{name}: {offset}")
                if code != PULL:
                    self.assertEqual(answer.code == 0, counts, f"{name}: {offset}: {answer.remark}")

    def test_copied_table(self) -> None:
        """A table from a slave, a backup or another log is bounded when the broker becomes a master."""
        self.parts.metadata.consumer_offsets.commit("g", "T1", 0, 9, 1)
        self.parts.offset_bounds.start()
        self.broker.settle()
        self.assertEqual(self.committed, 2)


class LifeTests(CommitCase):
    """A commit is of the life of the topic that its connection has read."""

    def test_late(self) -> None:
        """What a consumer of the deleted topic commits counts nothing in the next one, by either road."""
        self.pull(0)
        self.assertEqual(self.commit(2), 0)
        self.make_again(5)
        self.assertEqual((self.commit(2), self.committed), (Code.SYSTEM_ERROR, None))
        answer = self.pull(self.end - 3, commit=2)
        begin = answer.ext_fields["nextBeginOffset"]
        self.assertEqual((answer.code, int(begin) + 5, answer.body), (21, self.end, b""))
        self.assertEqual((self.commit(int(begin) + 2), self.committed), (Code.SYSTEM_ERROR, None))
        self.assertEqual(self.parts.pulls.commits.refused, 3)
        answer = self.pull(int(begin))  # at its beginning: it knows the new one
        self.assertEqual((answer.code, answer.ext_fields["nextBeginOffset"]), (0, str(self.end)))
        self.assertEqual((self.commit(self.end), self.committed), (0, self.end))

    @property
    def end(self) -> int:
        """Of the queue."""
        return self.parts.pulls.commits.end_of("T1", 0)

    def test_pull_before_the_first_message(self) -> None:
        """A pull of a topic that has no message yet does not say to its consumer that it was deleted."""
        self.pull(0)
        self.assertEqual(self.commit(2), 0)
        self.make_again(0)
        answer = self.pull(2)
        begin = int(answer.ext_fields["nextBeginOffset"])
        self.send(5)
        self.assertEqual(begin + 5, self.end)
        if begin != 2:  # (Where numbers go on, it is at the beginning.)
            self.assertEqual((answer.code, self.commit(2), self.committed), (21, Code.SYSTEM_ERROR, None))
        self.pull(begin)
        self.assertEqual((self.commit(begin + 1), self.committed), (0, begin + 1))

    def test_asks(self) -> None:
        """A consumer that asks for its offset knows the topic as it is now."""
        self.pull(0)
        self.make_again(5)
        self.assertEqual(self.ask(QUERY).code, 0)
        self.assertEqual((self.commit(self.end - 1), self.committed), (0, self.end - 1))
        self.assertEqual(self.pull(self.end - 2).code, 0)

    def test_others(self) -> None:
        """Other groups and queues of the connection are not meant, nor a connection that has read nothing."""
        self.pull(0)
        self.make_again(5)
        self.parts.metadata.groups.find("other", 1)
        self.assertEqual(self.ask(COMMIT, consumerGroup="other", commitOffset=self.end).code, 0)
        self.assertEqual(self.ask(COMMIT, queueId=1, commitOffset=0).code, 0)
        self.assertEqual((self.commit(self.end, self.broker.connect()), self.committed), (0, self.end))

    def test_bounds(self) -> None:
        """What is remembered of a connection ends with it, and is bounded."""
        judge = self.parts.pulls.commits
        self.patch(commits, "READ_MAX", 2)
        for queue_id in range(3):
            self.ask(QUERY, queueId=queue_id)
        self.assertEqual(len(judge), 2)
        self.parts.pulls.connection_lost(self.consumer.connection)
        self.assertEqual(len(judge), 0)


class KeptLifeTests(LifeTests):
    """The queues stay, as on a raft log."""

    is_kept = True
