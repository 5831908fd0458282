# -*- test-case-name: tests.core.test_naming -*-
"""The id of a group: one, whatever leaders come and go."""

from __future__ import annotations

import random
from typing import Any, cast

import attrs
from twisted.trial.unittest import SynchronousTestCase

from dledger.core.election.naming import GroupNaming
from dledger.core.state import effects as fx
from dledger.core.state.beliefs import PeerBeliefs
from dledger.core.state.member_state import MemberState
from dledger.values.ledger.group_name import GroupName
from dledger.values.ledger.membership import Membership
from protocols.wire.codes import ResponseCode
from protocols.wire.ledger.messages import MetadataRequest, MetadataResponse
from tests.core.helpers import make_config

INTERVAL_MS = 200


@attrs.define(eq=False)
class Member:
    """
    What L{GroupNaming} sees of a member, and its disk.

    @ivar asked: questions under way, as peer and request.
    """

    self_id: str
    peer_ids: tuple[str, ...]
    config: Any
    term: int = 0
    leader_id: str | None = None
    peers: PeerBeliefs = attrs.Factory(
        lambda: PeerBeliefs(push_quota=1, wire_versions={f"n{number}": 1 for number in range(5)}))
    group_name: GroupName = GroupName()
    now_ms: int = 0
    asked: list[tuple[str, MetadataRequest]] = attrs.Factory(list)
    known: list[str] = attrs.Factory(list)
    writes: int = 0

    @property
    def membership(self) -> Membership:
        """It and its peers are voters."""
        return Membership(voters=dict.fromkeys((self.self_id, *self.peer_ids), "h:1"))

    @property
    def is_leader(self) -> bool:
        """Whether it leads."""
        return self.leader_id == self.self_id

    @property
    def has_java_peer(self) -> bool:
        """Whether a peer has not advertised our wire; a follower hears its leader only."""
        heard = self.peer_ids if self.is_leader else (self.leader_id or "",)
        return not all(map(self.peers.is_ours, self.peer_ids)) or set(heard) < set(self.peer_ids)

    @property
    def out(self) -> Member:
        """Itself: it is its own outbox."""
        return self

    def send(self, peer_id: str, request: MetadataRequest, owner: object) -> int:
        """A question."""
        self.asked.append((peer_id, request))
        return 0

    def emit(self, effect: fx.Effect) -> None:
        """A durable write."""
        assert isinstance(effect, fx.RecordGroup) and effect.name == self.group_name
        self.writes += 1

    def report(self, event: str, **facts: object) -> None:
        """The id is known."""
        self.known.append(cast("str", facts["group_id"]))

    def answer(self) -> MetadataResponse:
        """Its output."""
        return MetadataResponse(
            term=self.term, leader_id=self.leader_id, wire_version=1, group_id=self.group_name.id,
            group_term=self.group_name.term, is_group_known=self.group_name.is_known,
        )


class World:
    """Members, their parts, and messages under way, each of which may be late or lost."""

    def __init__(self, size: int, seed: int) -> None:
        self.chance = random.Random(seed)
        names = [f"n{number}" for number in range(size)]
        self.members = {
            name: Member(name, tuple(other for other in names if other != name), make_config(name, size))
            for name in names
        }
        self.parts = {
            name: GroupNaming(cast("MemberState", member), self.chance)
            for name, member in self.members.items()
        }
        self.under_way: list[tuple[str, str, MetadataResponse | None]] = []
        self.now_ms = 0
        self.term = 0

    def elect(self, leader_id: str, voters: list[str]) -> None:
        """A leader of the next term; a quorum has raised its term."""
        self.term += 1
        for name in {leader_id, *voters}:
            self.members[name].term, self.members[name].leader_id = self.term, None
        self.members[leader_id].leader_id = leader_id

    def hear(self, name: str) -> None:
        """A member hears the leader of the newest term."""
        leader = next(one.self_id for one in self.members.values() if one.is_leader and one.term == self.term)
        self.members[name].term, self.members[name].leader_id = self.term, leader

    def tick(self, name: str) -> None:
        """Time passes at a member."""
        self.now_ms += INTERVAL_MS
        member = self.members[name]
        member.now_ms = self.now_ms
        self.parts[name].tick()
        self.under_way += [(name, peer_id, None) for peer_id, _ in member.asked]
        member.asked.clear()

    def deliver(self, at: int) -> None:
        """A question arrives and is answered, or an answer arrives."""
        asker, peer_id, answer = self.under_way.pop(at)
        if answer is None:
            self.under_way.append((asker, peer_id, self.members[peer_id].answer()))
        else:
            self.parts[asker].on_response(peer_id, 0, answer)

    def lose_directory(self, name: str) -> None:
        """A member has forgotten the id."""
        self.members[name].group_name = GroupName()
        self.parts[name] = GroupNaming(cast("MemberState", self.members[name]), self.chance)

    def settle(self) -> None:
        """Everything arrives, and everybody asks, until all is quiet."""
        for _ in range(10):
            for name in self.members:
                self.tick(name)
            while self.under_way:
                self.deliver(0)

    @property
    def ids(self) -> set[str]:
        """Ids that any member ever knew."""
        return {known for member in self.members.values() for known in member.known}

    def step(self) -> None:
        """Something happens."""
        names = list(self.members)
        kind = self.chance.random()
        if kind < 0.02:
            # (Elections deal with the term that these members forget.)
            self.lose_directory(self.chance.choice(names[: (len(names) - 1) // 2]))
        elif kind < 0.08:
            voters = self.chance.sample(names, len(names) // 2 + 1)
            self.elect(self.chance.choice(voters), voters)
        elif kind < 0.3 and self.term:
            self.hear(self.chance.choice(names))
        elif kind < 0.55:
            self.tick(self.chance.choice(names))
        elif self.under_way:
            at = self.chance.randrange(len(self.under_way))
            if self.chance.random() < 0.15:
                self.under_way.pop(at)
            else:
                self.deliver(at)


class GuardTests(SynchronousTestCase):
    """Which answers count, one by one: n0 leads term 3 of three members, or follows n1 in it."""

    good: dict[str, Any] = {  # noqa: RUF012
        "term": 3, "leader_id": "n1", "wire_version": 1, "group_id": "a" * 32, "group_term": 3,
    }

    def member(self, leader_id: str | None) -> tuple[Member, GroupNaming]:
        """n0, which has asked once if it has a leader."""
        world = World(3, 1)
        member, part = world.members["n0"], world.parts["n0"]
        member.term, member.leader_id = 3, leader_id
        member.now_ms = INTERVAL_MS
        part.tick()
        return member, part

    def notify(self, part: GroupNaming, peer_id: str = "n1", **facts: Any) -> None:
        """A peer answers, twice."""
        for _ in range(2):
            part.on_response(peer_id, 0, MetadataResponse(**{**self.good, **facts}))

    def test_a_leader_counts_answers_of_its_term(self) -> None:
        """An answer of this term counts for the quorum; no other does."""
        for facts in ({"term": 2}, {"term": 4}, {"code": ResponseCode.UNKNOWN_GROUP}):
            member, part = self.member("n0")
            self.notify(part, **facts)
            part.tick()
            self.assertEqual(member.writes, 0, facts)
        member, part = self.member("n0")
        self.notify(part, group_term=2)
        part.tick()
        self.assertEqual(member.writes, 0, "one of three has an id, and not all have answered")
        self.notify(part, "n2", group_id="", group_term=-1)
        part.tick()
        self.assertEqual((member.writes, member.group_name), (1, GroupName("a" * 32, 3, False)))

    def test_without_an_id(self) -> None:
        """Such a member may have lost one: it counts only where all have answered."""
        member, part = self.member("n0")
        self.notify(part, group_id="", group_term=-1)
        part.tick()
        self.assertEqual(member.writes, 0)
        self.notify(part, "n2", group_id="", group_term=-1)
        part.tick()
        self.assertEqual((member.writes, member.group_name.term), (1, 3))

    def test_known_at_once(self) -> None:
        """An id that one knows is that of the group, whoever else has answered."""
        member, part = self.member("n0")
        self.notify(part, group_term=1, is_group_known=True)
        part.tick()
        self.assertEqual(member.known, ["a" * 32])

    def test_leader_takes_the_newest(self) -> None:
        """Of several ids the one of the highest term, but a known one before all."""
        for first, second, expected in (
            (("b", 1, False), ("c", 2, False), "c"), (("b", 1, True), ("c", 2, False), "b"),
        ):
            member, part = self.member("n0")
            for peer_id, (letter, term, is_known) in (("n1", first), ("n2", second)):
                self.notify(part, peer_id, group_id=letter * 32, group_term=term, is_group_known=is_known)
            part.tick()
            self.assertEqual(member.group_name.id, expected * 32)
            self.assertEqual(member.known, ["b" * 32] if first[2] else [])

    def test_a_follower_takes_the_id_from_its_leader(self) -> None:
        """It takes an id from the leader of its term, and from nobody else."""
        for facts in (
            {"term": 2}, {"term": 4}, {"peer_id": "n2"}, {"leader_id": "n2"}, {"leader_id": None},
            {"group_id": "", "group_term": -1}, {"code": ResponseCode.UNKNOWN_GROUP}, {"group_term": 2},
        ):
            member, part = self.member("n1")
            self.notify(part, **facts)
            self.assertEqual((member.writes, member.group_name), (0, GroupName()), facts)
        member, part = self.member("n1")
        for _ in range(3):
            self.notify(part)
        self.assertEqual((member.writes, member.group_name), (1, GroupName("a" * 32, 3, False)))

    def test_an_id_needs_two_equal_answers(self) -> None:
        """A byte that the network changed makes no id: a second answer must say the same."""
        member, part = self.member("n1")
        for letter in "bab":
            part.on_response("n1", 0, MetadataResponse(**{**self.good, "group_id": letter * 32}))
        self.assertEqual((member.writes, member.group_name), (0, GroupName()))
        part.on_response("n1", 0, MetadataResponse(**{**self.good, "group_id": "b" * 32}))
        self.assertEqual(member.group_name, GroupName("b" * 32, 3, False))

    def test_a_malformed_id_is_not_taken(self) -> None:
        """A text that no member of ours makes is not taken: no file would have room for a longer one."""
        for text in ("x", "a" * 500, "A" * 32, "a" * 31 + "g"):
            member, part = self.member("n1")
            self.notify(part, group_id=text)
            self.assertEqual((member.writes, member.group_name), (0, GroupName()), text)

    def test_a_known_id_never_changes(self) -> None:
        """It never changes, and nothing is asked any more; without a leader nothing is asked either."""
        member, part = self.member("n1")
        self.notify(part, is_group_known=True)
        self.notify(part, group_id="b" * 32, group_term=9, is_group_known=True)
        self.assertEqual((member.group_name.id, member.known), ("a" * 32, ["a" * 32]))
        for leader_id in ("n1", "n0"):
            member.asked.clear()
            member.leader_id, member.now_ms = leader_id, member.now_ms + 10 * INTERVAL_MS
            part.tick()
            self.assertEqual(member.asked, [])
        member, part = self.member(None)
        self.assertEqual(member.asked, [])


class NamingTests(SynchronousTestCase):
    """A group gets one id, and keeps it under every leader."""

    def test_the_first_leader_makes_the_id(self) -> None:
        """The first leader makes it, and all members record it."""
        world = World(3, 1)
        world.elect("n0", ["n1"])
        world.hear("n1")
        world.hear("n2")
        world.settle()
        (group_id,) = world.ids
        self.assertEqual(len(group_id), 32)
        for member in world.members.values():
            self.assertEqual(member.group_name, GroupName(group_id, 1, True))
            self.assertEqual(member.known, [group_id])
            self.assertLess(member.writes, 4)
        asked = world.now_ms
        world.settle()
        self.assertEqual(world.under_way, [], asked)

    def test_a_group_of_one_names_itself(self) -> None:
        """A group of one names itself."""
        world = World(1, 1)
        world.elect("n0", [])
        world.settle()
        self.assertTrue(world.members["n0"].group_name.is_known)

    def test_no_id_is_known_without_a_quorum(self) -> None:
        """Without the answers of a quorum nothing is known."""
        world = World(3, 1)
        world.elect("n0", ["n1"])
        world.tick("n0")
        world.under_way.clear()
        world.tick("n0")
        self.assertEqual(world.members["n0"].group_name, GroupName())

    def test_proposal_of_a_lost_leader(self) -> None:
        """Nobody else has it, and the next leader makes none without its answer: then it takes that one."""
        world = World(3, 1)
        world.elect("n0", ["n1", "n2"])
        for _ in range(2):
            world.tick("n0")
            for _ in range(4):
                world.deliver(0)
        world.tick("n0")
        world.under_way.clear()
        first = world.members["n0"].group_name
        self.assertEqual((first.term, first.is_known), (1, False))
        world.elect("n1", ["n2"])
        world.hear("n2")
        for _ in range(6):
            for name in ("n1", "n2"):
                world.tick(name)
            world.under_way = [one for one in world.under_way if "n0" not in one[:2]]
            while world.under_way:
                world.deliver(0)
        self.assertEqual(world.members["n1"].group_name, GroupName())
        world.hear("n0")
        world.settle()
        self.assertEqual(world.ids, {first.id})

    def test_a_lost_directory_makes_no_second_id(self) -> None:
        """Of the two that know the id one loses its directory, the other is away: the third makes none."""
        world = World(3, 1)
        world.elect("n0", ["n1", "n2"])
        world.hear("n1")
        for number in range(10):
            for name in ("n0", "n1"):
                world.tick(name)
            if number > 2:
                world.under_way = [one for one in world.under_way if "n2" not in one[:2]]
            while world.under_way:
                world.deliver(0)
        self.assertEqual(world.members["n2"].group_name, GroupName())
        (group_id,) = world.ids
        world.lose_directory("n1")
        world.elect("n2", ["n1"])
        world.hear("n1")
        for _ in range(10):
            for name in ("n1", "n2"):
                world.tick(name)
            world.under_way = [one for one in world.under_way if "n0" not in one[:2]]
            while world.under_way:
                world.deliver(0)
        self.assertEqual(world.ids, {group_id})
        world.hear("n0")
        world.settle()
        self.assertEqual({member.group_name.id for member in world.members.values()}, {group_id})
        self.assertEqual(world.ids, {group_id})

    def test_java_members_get_no_id(self) -> None:
        """Java members have no id: nothing is proposed."""
        world = World(3, 1)
        world.elect("n0", ["n1"])
        for name in ("n1", "n2"):
            world.hear(name)
        for member in world.members.values():
            member.peers.wire_versions["n2"] = 0
        world.settle()
        self.assertEqual(world.ids, set())
        self.assertEqual({member.writes for member in world.members.values()}, {0})

    def test_a_group_never_gets_two_ids(self) -> None:
        """
        Leaders change at any moment, messages are late or lost, and so are the directories of a minority:
        never two ids, and in the end one.
        """
        for seed in range(150):
            world = World(3 if seed % 3 else 5, seed)
            for _ in range(300):
                world.step()
                self.assertLess(len(world.ids), 2, seed)
            if world.term == 0:
                continue
            names = list(world.members)
            world.elect(names[0], names)
            for name in names:
                world.hear(name)
            world.settle()
            self.assertEqual(len(world.ids), 1, seed)
            self.assertEqual({member.group_name.id for member in world.members.values()}, world.ids, seed)
