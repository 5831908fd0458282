# -*- test-case-name: tests.interop.test_raft_transactions -*-
"""
Transactions of RocketMQ's producer in groups of brokers on a raft log, of RocketMQ's and of ours: a master
that is killed between the two phases, and one of the other kind that finishes transactions of before.

Each round leaves transactions open at a master, and kills it. They get their end from the next master's
questions. At the end, exactly the committed ones were consumed, and the logs and queues of all members are
equal, those of half messages and of ended ones too.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path

from twisted.trial.unittest import SkipTest, SynchronousTestCase

from tests.interop.java import JavaMissing
from tests.interop.raft_brokers import OURS, RaftBrokers
from tests.interop.rocketmq import PATIENCE, TOPIC, class_path
from tests.interop.test_ha_consumers import Consumers
from tests.interop.test_transactions import Producer
from tests.processes.children import ChildError, wait_until

PAID = "paid"
HALF, ENDED = "RMQ_SYS_TRANS_HALF_TOPIC", "RMQ_SYS_TRANS_OP_HALF_TOPIC"
#: Half messages are asked about soon, and as often as it takes until a master of the other kind leads.
_SOON = {
    "transactionCheckInterval": 1000, "transactionTimeOut": 1000, "transactionCheckMax": 10_000,
}


class RaftTransactionTests(SynchronousTestCase):
    """One group for each version."""

    def begin(self, kinds: Sequence[str], version: str) -> None:
        """Start a group, a producer and a consumer."""
        try:
            class_path(version)
        except JavaMissing as missing:
            raise SkipTest(str(missing)) from None
        held = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        self.addCleanup(held.cleanup)
        self.group = RaftBrokers(Path(held.name), kinds, client=version, options=_SOON)
        self.addCleanup(self.group.kill)
        self.group.start()
        self.producer = Producer(self.group.name_server.address, Path(held.name), version)
        self.consumers = Consumers(self.group.name_server.address, Path(held.name), version)
        for child in (self.producer, self.consumers):
            self.addCleanup(child.kill)
            child.start()
            child.wait_started(seconds=PATIENCE)
        self.seen: list[str] = []

    def consume(self, *bodies: str, topic: str = PAID) -> None:
        """Wait until the consumer of a topic has all of these."""

        def are_there() -> bool:
            self.seen += [one.body for one in self.consumers.seen(topic, 1, seconds=1)]
            return set(bodies) <= set(self.seen)

        try:
            wait_until(are_there, seconds=PATIENCE, what=f"{bodies}", every=0.2)
        except ChildError as error:
            raise ChildError(f"{error}; there are {self.seen}\n{self.group.tails()}") from None

    def begin_late(self, peer_id: str, topic: str) -> None:
        """Make a queue that has nothing but what is in the last bytes of the log of a member."""
        self.producer.begin("commit", "commit", topic, topic=topic)

        def is_there() -> bool:
            return any(self.group.queue_of(peer_id, number, topic) for number in range(4))

        wait_until(is_there, seconds=PATIENCE, what=f"a queue of {topic}", every=0.1)

    def pass_on(self, name: str, first: str, second: str) -> None:
        """Transactions that a killed master of one kind began are ended by one of another kind."""
        began = self.group.leader_of(first)
        commit, rollback, fresh = f"{name}-commit", f"{name}-rollback", f"fresh-{name}"
        self.producer.begin("commit", "commit", f"{name}-at-once")
        self.producer.begin("unknown", "unknown", commit, rollback)
        # A topic that the next master has had no time to copy.
        self.producer.begin("unknown", "unknown", fresh, topic=fresh)
        self.begin_late(began, f"late-{name}")
        self.group.brokers[began].kill()
        self.group.wait_master(other_than=began)
        self.group.back(began)
        self.group.leader_of(second)
        self.producer.answer("commit", commit, fresh)
        self.producer.answer("rollback", rollback)
        self.consume(f"{name}-at-once", commit)
        self.consumers.push(fresh, fresh)
        self.consume(fresh, topic=fresh)

    def check(self, java: str) -> None:
        """The whole story."""
        self.group.leader_of(OURS)
        self.producer.begin("commit", "commit", "first")
        self.consumers.push(PAID, PAID)
        self.consume("first")
        self.pass_on("a", OURS, java)
        self.pass_on("b", java, OURS)
        self.producer.begin("rollback", "commit", "never")
        self.producer.begin("commit", "commit", "last")
        self.consume("last")
        committed = {"first", "last"}
        for name in "ab":
            committed |= {f"{name}-at-once", f"{name}-commit", f"fresh-{name}"}
        self.assertEqual(set(self.seen), committed)
        self.group.check((TOPIC, PAID, HALF, ENDED, "late-a", "late-b"))

    def test_with_4(self) -> None:
        """4.9.8 between two of ours; clients of 5.3.3, as those of 4.9 wait 30 s for a killed broker."""
        self.begin((OURS, "4.9.8", OURS), "5.3.3")
        self.check("4.9.8")

    def test_with_5(self) -> None:
        """5.3.3 between two of ours."""
        self.begin((OURS, "5.3.3", OURS), "5.3.3")
        self.check("5.3.3")
