# -*- test-case-name: tests.interop.test_raft_broker -*-
"""
Brokers of RocketMQ 4.9.8 and 5.3.3 and ours in one group in DLedger mode, with RocketMQ's own clients.

    export DLEDGER_RAFT_BROKER_ROUNDS=50 DLEDGER_RAFT_BROKER_SEED=7
    python -m twisted.trial tests.interop.test_raft_broker

play more rounds in each group, with other choices: kills, freezes, stops and hand-overs of leaders and
followers, and directories that change between RocketMQ's brokers and ours.

After each round, every acknowledged message was consumed, and is on all members at the place that its
producer was told; the logs are equal, byte for byte, up to the commit; the queues are equal and dense.
"""

from __future__ import annotations

import contextlib
import os
import random
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from twisted.trial.unittest import SkipTest, SynchronousTestCase

from protocols.wire.ledger.messages import LeadershipTransferRequest
from tests.interop.java import JavaMissing
from tests.interop.raft_brokers import GROUP, OURS, RaftBrokers
from tests.interop.rocketmq import PATIENCE, class_path
from tests.processes.asking import NoAnswer, ask
from tests.processes.children import ChildError, wait_until
from tests.processes.ledgers import read_records

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
                   seconds=PATIENCE, what="all brokers are registered", every=0.5)  # fmt: skip
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

    def back(self, peer_id: str) -> None:
        """Start a broker again."""
        self.group.brokers[peer_id].start()
        self.group.brokers[peer_id].wait_started()

    def leader_of(self, kind: str) -> str:
        """The master; one of this kind, by a hand-over if need be."""
        leader_id = self.group.wait_master()
        if self.group.kinds[leader_id] != kind:
            takers = [peer_id for peer_id, one in self.group.kinds.items() if one == kind]
            self.lead(takers[0])
            leader_id = takers[0]
        return leader_id

    def lead(self, taker_id: str) -> None:
        """Have a member take the leadership by LEADERSHIP_TRANSFER, and become master."""

        def leads() -> bool:
            leader_id = self.group.master()
            if leader_id == taker_id:
                return True
            if leader_id is None:
                return False
            # A leader of RocketMQ wants the term, and tells it nobody: it is that of the newest entry.
            self.group.send(1)
            leader_id = self.group.master() or leader_id
            term = max(record.term for record in read_records(self.group.ledger_path(leader_id)))
            with contextlib.suppress(NoAnswer):
                ask(self.group.peers[leader_id], LeadershipTransferRequest(
                    group=GROUP, remote_id=leader_id, transfer_id=leader_id, transferee_id=taker_id,
                    term=term,
                ), seconds=10.0)  # fmt: skip
            return self.settles(taker_id, 10.0)

        try:
            wait_until(leads, seconds=PATIENCE, what=f"{taker_id} leads", every=0.5)
        except ChildError as error:
            raise ChildError(f"{error}\n{self.group.tails()}") from None

    def settles(self, taker_id: str, seconds: float) -> bool:
        """Wait a while until a member is registered as master. @return: whether it is."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            if self.group.master() == taker_id:
                return True
            time.sleep(0.1)
        return False

    # -- rounds ----------------------------------------------------------------------------------

    def kill(self, peer_id: str) -> None:
        """SIGKILL, messages without it, and its return."""
        self.group.brokers[peer_id].kill()
        self.group.send(MESSAGES)
        self.back(peer_id)

    def stop(self, peer_id: str) -> None:
        """SIGTERM, messages without it, and its return."""
        self.group.brokers[peer_id].stop(seconds=60)
        self.group.send(MESSAGES)
        self.back(peer_id)

    def freeze(self, peer_id: str) -> None:
        """SIGSTOP until the others have taken messages, then SIGCONT."""
        self.group.brokers[peer_id].pause()
        try:
            self.group.send(MESSAGES)
        finally:
            self.group.brokers[peer_id].resume()

    def hand_over(self, peer_id: str) -> None:
        """The leader hands over to this member, or to the next one if it leads already."""
        ids = list(self.group.kinds)
        if self.group.master() == peer_id:
            peer_id = ids[(ids.index(peer_id) + 1) % len(ids)]
        self.lead(peer_id)

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
        self.back(peer_id)

    def more_rounds(self) -> None:
        """As many as asked for."""
        chance = self.chance
        actions: list[Callable[[str], None]] = [
            self.kill, self.kill, self.stop, self.freeze, self.hand_over, self.change_kind
        ]
        for number in range(ROUNDS):
            action = chance.choice(actions)
            leader_id = self.group.wait_master()
            peer_id = leader_id if chance.random() < 0.7 else chance.choice(list(self.group.kinds))
            what = f"round {number}: {action.__name__} {peer_id} ({self.group.kinds}, {leader_id} leads)"
            began = time.monotonic()
            try:
                action(peer_id)
                self.group.wait_master()
                self.judged()
            except ChildError as error:
                raise ChildError(f"{what}: {error}") from None
            sys.stdout.write(f"{what}: {time.monotonic() - began:.1f} s\n")

    # -- compositions ----------------------------------------------------------------------------

    def test_one_of_ours_with_5(self) -> None:
        """5.3.3 twice and ours: kills of a Java leader and of ours, and a Java member's directory is ours."""
        self.group_of((V5, V5, OURS), V5)
        self.kill(self.leader_of(OURS))
        self.judged()
        self.kill(self.leader_of(V5))
        self.judged()
        self.more_rounds()

    def test_two_of_ours_with_5(self) -> None:
        """Ours twice and 5.3.3: a frozen leader, a hand-over to Java, a stop of Java, directories change."""
        self.group_of((OURS, OURS, V5), V5)
        self.freeze(self.leader_of(OURS))
        self.judged()
        self.stop(self.leader_of(V5))
        self.judged()
        self.change_kind("n0")
        self.judged()
        self.change_kind("n0")
        self.judged()
        self.more_rounds()

    def test_two_of_ours_with_4(self) -> None:
        """4.9.8 and ours twice."""
        self.group_of((V4, OURS, OURS), V4)
        self.kill(self.leader_of(OURS))
        self.judged()
        self.kill(self.leader_of(V4))
        self.judged()
        self.more_rounds()

    def test_all_kinds(self) -> None:
        """5.3.3, 4.9.8 and ours: each leads once, and hands over."""
        self.group_of((V5, V4, OURS), V4)
        for kind in (OURS, V4, V5):
            self.leader_of(kind)
            self.group.send(MESSAGES)
        self.judged()
        self.kill(self.leader_of(OURS))
        self.judged()
        self.more_rounds()

    def test_only_ours(self) -> None:
        """Three of ours, with RocketMQ's producer and consumer."""
        self.group_of((OURS, OURS, OURS), V5)
        for action in (self.kill, self.freeze, self.stop, self.kill):
            action(self.group.wait_master())
            self.judged()
        self.more_rounds()
