# -*- test-case-name: tests.sim.test_group_traffic -*-
"""Stories of groups and operators: they pass, and reach their ends; a broken promise comes out."""

from __future__ import annotations

import random
from typing import Any
from unittest import mock

import attrs

from dledger.rocketmq.broker.consuming.queue_locks import QueueLocks
from dledger.testing.brokers.group_traffic import (
    DEAD_GROUP,
    GRAVE_GROUP,
    MEMBER_GROUP,
    POPPED_GROUP,
    UNLOCK,
    GroupStories,
    plain_message,
)
from dledger.testing.brokers.pair_schedule import PairFocus, PairWorld, run_pair_schedule
from dledger.testing.brokers.rig.asking import ClientMachine
from dledger.testing.raft_brokers.schedule import run_raft_schedule
from protocols.wire.remoting import RemotingCommand
from protocols.wire.rocketmq.message import Message, encode_properties
from tests.sim.test_pairs import PairCase, calm_world

CALM = PairFocus(faults=("nothing",), role="SYNC_MASTER", groups=True)


class GroupTrafficTests(PairCase):
    """Whole schedules."""

    def test_schedules_with_groups(self) -> None:
        """Of pairs and of a group on a raft log, with faults."""
        focus = PairFocus(faults=("kill", "cut_client"), groups=True, pace_s=1.5)
        self.assertEqual(run_pair_schedule(1, focus=focus).failure, "")
        self.assertEqual(run_raft_schedule(1, faults=("kill", "hand_over"), groups=True).failure, "")


class BrokenTests(PairCase):
    """B6, B15 and B22 to B24, broken by hand in a calm world."""

    def world(self, seconds: float = 8) -> PairWorld:
        """Some seconds of peace."""
        return calm_world(CALM, seconds)

    def test_stories_reach_their_ends(self) -> None:
        """In peace members get their subscriptions, and messages that are given up are dead letters."""
        world = self.world(15)
        got = world.accounts.got
        for group in (MEMBER_GROUP.name, GRAVE_GROUP.name, POPPED_GROUP, DEAD_GROUP.name):
            self.assertGreater(len(got.get(group, ())), 2, group)
        with world.bugs.listening():
            world.heal()
            while world.unsettled():
                world.clock.run_until(world.clock.now_us + 500_000)
        world.accounts.sent_back[GRAVE_GROUP.name, "m1"] = None
        self.assertIn("sent back", world.unsettled())
        world.accounts.sent_back.clear()
        for (group, _), given in world.accounts.given.items():
            if group == DEAD_GROUP.name:
                given.acked, given.was_acked = "", False
        got[GRAVE_GROUP.name].clear()
        self.assertIn(f"{DEAD_GROUP.name} waits", world.unsettled())

    def test_b22(self) -> None:
        """A message comes again more often than its group says."""
        world = self.world(1)
        stories, draws = world.traffic.parts[1], random.Random(1)
        assert isinstance(stories, GroupStories)
        sent = plain_message(world, draws, "T1")
        sent.tag, sent.number = "A", 30
        message = Message(topic="T1", body=sent.body, reconsume_times=1, properties_data=encode_properties(
            {"KEYS": sent.key, "POP_CK": "0 1 800 0 0 b 0 0"}
        ))
        answer = RemotingCommand(code=0, opaque=0)
        stories.taken(DEAD_GROUP, message, answer, 0)
        again = attrs.evolve(message, reconsume_times=2)
        self.assertBroken(22, stories.taken, DEAD_GROUP, again, answer, 0)

    def test_b23(self) -> None:
        """A queue is lent to two clients."""
        with mock.patch.object(QueueLocks, "_take", return_value=True):
            self.assertBroken(23, self.world, 20)

    def test_a_queue_that_is_given_back_late(self) -> None:
        """A client without an answer may lose a queue that it has borrowed again: another one has it."""
        ask = ClientMachine.ask

        async def without_answer(
            client: ClientMachine, target: str, code: int, *rest: Any, **more: Any
        ) -> RemotingCommand | None:
            answer = await ask(client, target, code, *rest, **more)
            return None if code == UNLOCK else answer

        world = self.world(8)
        with world.bugs.listening(), mock.patch.object(ClientMachine, "ask", without_answer):
            world.clock.run_until(12_000_000)
            with mock.patch.object(QueueLocks, "_take", return_value=True):
                world.clock.run_until(20_000_000)

    def test_b24(self) -> None:
        """An option that was changed with success, and was not."""
        with mock.patch("dledger.rocketmq.broker.admin.commands.change_by_request", return_value=False):
            self.assertBroken(24, self.world, 20)
