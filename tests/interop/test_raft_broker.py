# -*- test-case-name: tests.interop.test_raft_broker -*-
"""
Brokers of RocketMQ 4.9.8 and 5.3.3 and ours in one group in DLedger mode, with RocketMQ's own clients.

    export DLEDGER_RAFT_BROKER_ROUNDS=50 DLEDGER_RAFT_BROKER_SEED=7
    python -m twisted.trial tests.interop.test_raft_broker

play more rounds in each group, with other choices: kills, freezes, stops and hand-overs of leaders and
followers, and directories that change between RocketMQ's brokers and ours.

After each round, every acknowledged message was consumed, and is on all members at the place that its
producer knows; the logs are equal, byte for byte, up to the commit; the queues are equal and dense.
"""

from __future__ import annotations

import itertools
import os
import random
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from twisted.trial.unittest import SkipTest, SynchronousTestCase

from tests.interop.java import JavaMissing
from tests.interop.raft_brokers import OURS, RaftBrokers
from tests.interop.rocketmq import PATIENCE, class_path
from tests.processes.children import ChildError, wait_until

ROUNDS = int(os.environ.get("DLEDGER_RAFT_BROKER_ROUNDS", "0"))
SEED = int(os.environ.get("DLEDGER_RAFT_BROKER_SEED", "1"))
V4, V5 = "4.9.8", "5.3.3"
MESSAGES = 10


class RaftBrokersTests(SynchronousTestCase):
    """One group for each composition; each loses leaders of both kinds."""

    def setUp(self) -> None:
        """Choices that are the same again."""
        self.chance = random.Random(SEED)

    def group_of(self, kinds: Sequence[str], client: str) -> None:
        """Start a group that ends with the test; send and consume the first messages."""
        try:
            for version in {client, *kinds} - {OURS}:
                class_path(version)
        except JavaMissing as missing:
            raise SkipTest(str(missing)) from None
        held = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        self.addCleanup(held.cleanup)
        self.group = RaftBrokers(Path(held.name), kinds, client=client)
        self.addCleanup(self.group.kill)
        self.group.start()
        # A producer that asks for a new topic while the name server knows no master never finds one. The
        # first elections of RocketMQ's brokers take such a moment.
        wait_until(lambda: {"0"} < set(self.group.route()) and len(self.group.route()) == len(kinds),
                   seconds=PATIENCE, what="all brokers are registered", every=0.5)
        self.group.send(MESSAGES)
        self.consumed()

    def consumed(self) -> None:
        """All that was acknowledged so far came to the consumer, with the right bodies."""
        count = len(self.group.sent)
        seen, wrong = self.group.messages.received(count)
        if wrong or seen < count:
            raise ChildError(f"{seen} of {count} consumed, {wrong} wrong\n{self.group.tails()}")

    def judged(self) -> None:
        """Send, consume, compare; every member runs."""
        self.group.send(MESSAGES)
        self.consumed()
        self.group.check()

    # -- rounds ----------------------------------------------------------------------------------

    def kill(self, peer_id: str) -> None:
        """SIGKILL, messages without it, and its return."""
        self.group.brokers[peer_id].kill()
        self.group.send(MESSAGES)
        self.group.back(peer_id)

    def stop(self, peer_id: str) -> None:
        """SIGTERM, messages without it, and its return."""
        self.group.brokers[peer_id].stop(seconds=60)
        self.group.send(MESSAGES)
        self.group.back(peer_id)

    def freeze(self, peer_id: str) -> None:
        """SIGSTOP until the others have taken messages, then SIGCONT."""
        self.group.brokers[peer_id].pause()
        try:
            self.group.send(MESSAGES)
        finally:
            self.group.brokers[peer_id].resume()

    def absent(self, peer_id: str) -> None:
        """SIGTERM, a term of each other member, with messages; it returns, and reads all that at once."""
        self.group.brokers[peer_id].stop(seconds=60)
        self.group.wait_master(other_than=peer_id)
        for other_id in self.group.kinds:
            if other_id != peer_id:
                self.group.lead(other_id)
                self.group.send(MESSAGES)
        self.group.back(peer_id)

    def hand_over(self, peer_id: str) -> None:
        """The leader hands over to this member, or to the next one if it leads already."""
        ids = list(self.group.kinds)
        if self.group.master() == peer_id:
            peer_id = ids[(ids.index(peer_id) + 1) % len(ids)]
        self.group.lead(peer_id)

    def change_kind(self, peer_id: str) -> None:
        """The directory of a member goes from RocketMQ's broker to ours, or from ours to RocketMQ's 5.3.3."""
        old = self.group.kinds[peer_id]
        # A group keeps one of ours, whose files are compared.
        others = [kind for one, kind in self.group.kinds.items() if one != peer_id]
        new = (V5 if OURS in others else OURS) if old == OURS else OURS
        if self.chance.random() < 0.5:
            self.group.brokers[peer_id].stop(seconds=60)
        else:
            self.group.brokers[peer_id].kill()
        self.group.brokers[peer_id] = self.group.made(peer_id, new)
        self.group.kinds[peer_id] = new
        self.group.send(MESSAGES)
        self.group.back(peer_id)

    def more_rounds(self) -> None:
        """As many as asked for."""
        chance = self.chance
        actions: list[Callable[[str], None]] = [
            self.kill, self.kill, self.stop, self.absent, self.freeze, self.hand_over, self.change_kind
        ]
        for number in range(ROUNDS):
            action = chance.choice(actions)
            leader_id = self.group.wait_master()
            peer_id = leader_id if chance.random() < 0.7 else chance.choice(list(self.group.kinds))
            what = f"round {number}: {action.__name__} {peer_id} ({self.group.kinds}, {leader_id} leads)"
            times = [time.monotonic()]
            steps: list[Callable[[], object]] = [
                partial(action, peer_id), self.group.wait_master, partial(self.group.send, MESSAGES),
                self.consumed, self.group.check,
            ]
            try:
                for step in steps:
                    step()
                    times.append(time.monotonic())
            except ChildError as error:
                raise ChildError(f"{what}: {error}") from None
            took = [f"{after - before:.1f}" for before, after in itertools.pairwise(times)]
            sys.stdout.write(f"{what}: {times[-1] - times[0]:.1f} s ({' '.join(took)})\n")
            sys.stdout.flush()

    # -- compositions ----------------------------------------------------------------------------

    def test_one_of_ours_with_5(self) -> None:
        """5.3.3 twice and ours: kills of a Java leader and of ours, and a Java member's directory is ours."""
        self.group_of((V5, V5, OURS), V5)
        self.kill(self.group.leader_of(OURS))
        self.judged()
        self.kill(self.group.leader_of(V5))
        self.judged()
        self.more_rounds()

    def test_two_of_ours_with_5(self) -> None:
        """Ours twice and 5.3.3: a frozen leader, a hand-over to Java, a stop of Java, directories change."""
        self.group_of((OURS, OURS, V5), V5)
        self.freeze(self.group.leader_of(OURS))
        self.judged()
        self.stop(self.group.leader_of(V5))
        self.judged()
        self.absent("n2")
        self.judged()
        self.change_kind("n0")
        self.judged()
        self.change_kind("n0")
        self.judged()
        self.more_rounds()

    def test_two_of_ours_with_4(self) -> None:
        """4.9.8 and ours twice."""
        self.group_of((V4, OURS, OURS), V4)
        self.kill(self.group.leader_of(OURS))
        self.judged()
        self.kill(self.group.leader_of(V4))
        self.judged()
        self.absent("n0")
        self.judged()
        self.more_rounds()

    def test_all_kinds(self) -> None:
        """5.3.3, 4.9.8 and ours: each leads once, and hands over."""
        self.group_of((V5, V4, OURS), V4)
        for kind in (OURS, V4, V5):
            self.group.leader_of(kind)
            self.group.send(MESSAGES)
        self.judged()
        self.kill(self.group.leader_of(OURS))
        self.judged()
        self.more_rounds()

    def test_only_ours(self) -> None:
        """Three of ours, with RocketMQ's producer and consumer."""
        self.group_of((OURS, OURS, OURS), V5)
        for action in (self.kill, self.freeze, self.stop, self.kill):
            action(self.group.wait_master())
            self.judged()
        self.more_rounds()
