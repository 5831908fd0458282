# -*- test-case-name: tests.node.test_lineages -*-
"""A member whose directory was remade, put back or copied is noticed by the others, and joins."""

from __future__ import annotations

import json
from typing import Any

import attrs
from twisted.trial.unittest import SynchronousTestCase

from dledger.node.connections.greeting import Greeting
from dledger.node.connections.lineages import RIVAL, Lineages
from dledger.values.ledger.group_name import GroupName
from dledger.values.ledger.lineage import Fault, Lineage, Standing
from protocols.wire.codes import ResponseCode
from protocols.wire.ledger.codes import VoteResult
from protocols.wire.ledger.messages import MetadataRequest, MetadataResponse, VoteRequest
from tests.node.rig import Rig
from tests.node.test_greeting import Known
from tests.node.test_peers import PeersTestCase
from tests.protocols.fakes import remoting_response

PEERS = "n0-h:1;n1-h:2;n2-h:3"
OWN = Lineage(incarnation=1, starts=3, run=10, standing=Standing.TRUSTED)
N1 = Lineage(incarnation=7, starts=5, run=20, standing=Standing.TRUSTED)


class Memory:
    """Of those met."""

    def __init__(self, **met: Lineage) -> None:
        self.met = met
        self.past: dict[str, tuple[int, ...]] = {}

    def was_before(self, member_id: str, incarnation: int) -> bool:
        """As of a L{dledger.storage.files.met_members.MetMembers}."""
        return incarnation in self.past.get(member_id, ())

    def meet(self, member_id: str, lineage: Lineage) -> None:
        """Remember."""
        self.met[member_id] = lineage


class Directory:
    """An identity."""

    def __init__(self, lineage: Lineage | None, **met: Lineage) -> None:
        self.lineage = lineage
        self.others = Memory(**met)


class LineagesCase(SynchronousTestCase):
    """n0's view."""

    def make(self, own: Lineage | None = OWN, *, is_blank: bool = False, **met: Lineage) -> Lineages:
        """With its memory."""
        self.doubts: list[bool] = []
        self.ended: list[str] = []
        self.rechecked: list[str] = []
        self.notes: list[str] = []
        self.directory = Directory(own, **met)
        made = Lineages(
            self.directory, is_blank=lambda: is_blank, doubt=lambda _, is_copy: self.doubts.append(is_copy),
            note=lambda event, _: self.notes.append(event),
        )
        made.connect(end_calls=lambda one, _: self.ended.append(one), recheck=self.rechecked.append)
        return made


class JudgingTests(LineagesCase):
    """Of others."""

    def test_a_met_member_may_start_again(self) -> None:
        """Only at its address; a later start and an orderly joiner are fine, and the latter is reported."""
        lineages = self.make()
        self.assertEqual(lineages.problem_of_call("n1", N1.encode()), "")
        self.assertEqual(lineages.reported_of("n1"), "")
        for reported in (N1, attrs.evolve(N1, starts=6, run=21)):
            self.assertEqual(lineages.problem_of_answer("n1", reported.encode()), "")
            self.assertEqual(lineages.reported_of("n1"), reported.encode())
            self.assertEqual(self.notes, [])
            lineages.lost("n1")
        for standing in (Standing.JOINING, Standing.PROVEN):
            remade = attrs.evolve(N1, incarnation=8, starts=1, run=22, standing=standing)
            self.assertEqual(lineages.problem_of_answer("n1", remade.encode()), "")
        self.assertEqual(self.notes, ["member-remade"])

    def test_a_remade_directory_is_not_believed(self) -> None:
        """Until it joins; both are named, and what was met stays."""
        for reported in (attrs.evolve(N1, incarnation=8, starts=1, run=21),
                         attrs.evolve(N1, starts=4, run=21),
                     attrs.evolve(N1, run=21)):
            lineages = self.make(n1=N1)
            for problem in (lineages.problem_of_call("n1", reported.encode()),
                            lineages.problem_of_answer("n1", reported.encode())):
                self.assertIn(f"{reported.incarnation:016x} with {reported.starts} starts", problem)
                self.assertIn("met it as 0000000000000007 with 5", problem)
            self.assertEqual(self.directory.others.met, {"n1": N1})

    def test_the_address_decides(self) -> None:
        """A copy that calls is refused although it was started more often, and does not count as met."""
        copy = attrs.evolve(N1, starts=9, run=29)
        lineages = self.make()
        lineages.problem_of_answer("n1", N1.encode())
        self.assertEqual(lineages.problem_of_call("n1", N1.encode()), "")
        self.assertFalse("n1" in lineages.suspects)
        self.assertEqual(lineages.problem_of_call("n1", copy.encode()), "")
        self.assertEqual((self.rechecked, self.ended), (["n1"], []))
        self.assertTrue("n1" in lineages.suspects)
        self.assertFalse(lineages.is_rival("n1", copy.encode()))
        self.assertEqual(lineages.problem_of_answer("n1", N1.encode()), "")
        self.assertEqual((self.ended, "n1" in lineages.suspects), (["n1"], False))
        self.assertEqual(lineages.problem_of_call("n1", copy.encode()), RIVAL)
        self.assertTrue(lineages.is_rival("n1", copy.encode()))
        lineages.lost("n1")  # it was stopped
        self.assertEqual(lineages.problem_of_call("n1", copy.encode()), "")

    def test_a_restart_that_nobody_noticed(self) -> None:
        """The connection to the address is one to a machine that lost power: it ends, and all is well."""
        lineages = self.make()
        lineages.problem_of_answer("n1", N1.encode())
        again = attrs.evolve(N1, starts=6, run=21)
        self.assertEqual(lineages.problem_of_call("n1", again.encode()), "")
        self.assertEqual((self.rechecked, "n1" in lineages.suspects), (["n1"], True))
        lineages.lost("n1")
        self.assertFalse("n1" in lineages.suspects)
        self.assertEqual(lineages.problem_of_answer("n1", again.encode()), "")
        self.assertEqual((self.ended, "n1" in lineages.suspects), ([], False))

    def test_the_copy_came_first(self) -> None:
        """Its connection ends when the original has answered."""
        lineages = self.make()
        lineages.problem_of_call("n1", attrs.evolve(N1, starts=9, run=29).encode())
        self.assertEqual(lineages.problem_of_answer("n1", N1.encode()), "")
        self.assertEqual((self.ended, self.directory.others.met), (["n1"], {"n1": N1}))
        self.assertEqual(lineages.problem_of_answer("n1", N1.encode()), "")
        self.assertEqual(self.ended, ["n1"])

    def test_a_silent_member_is_not_judged(self) -> None:
        """Java, clients; and garbage."""
        lineages = self.make(None, n1=N1)
        for text in ("", "x", N1.encode()[:-1]):
            self.assertEqual(lineages.problem_of_call("n1", text), "")
            self.assertEqual(lineages.problem_of_answer("n1", text), "")
        self.assertEqual((lineages.reported, lineages.reported_of("n2"), lineages.reported_of(None)),
                         ("", "", ""))
        lineages.heed("n1", OWN.encode(), "a" * 32)
        self.assertEqual(self.doubts, [])


class HeedingTests(LineagesCase):
    """What others say of this member."""

    def heeded(self, own: Lineage, met: Lineage | None, *, group_id: str = "", is_blank: bool = False) -> Any:
        """The doubt that they raise: None, or whether there is a new incarnation."""
        self.make(own, is_blank=is_blank).heed("n1", met.encode() if met is not None else "", group_id)
        return self.doubts[0] if self.doubts else None

    def test_a_remade_member_joins_as_it_is(self) -> None:
        """Nobody has proved it: it joins as it is. A joiner and a proven one stay so."""
        met = attrs.evolve(OWN, incarnation=9)
        self.assertIs(self.heeded(OWN, met), False)
        for standing in (Standing.JOINING, Standing.PROVEN):
            self.assertIsNone(self.heeded(attrs.evolve(OWN, standing=standing), met))

    def test_a_copy_joins_in_a_new_incarnation(self) -> None:
        """An older one, and one of two: it joins in a new incarnation, whatever it was."""
        for standing in Standing:
            own = attrs.evolve(OWN, standing=standing)
            self.assertIs(self.heeded(own, attrs.evolve(own, starts=4, run=11)), True)
            self.assertIs(self.heeded(own, attrs.evolve(own, run=11)), True)
            for met in (own, attrs.evolve(own, starts=2, run=11), None):
                self.assertIsNone(self.heeded(own, met))

    def test_bootstrapped_beside_a_group(self) -> None:
        """Nothing in the directory, and the others have a group: it is no new one."""
        self.assertIs(self.heeded(OWN, None, group_id="a" * 32, is_blank=True), False)
        self.assertIsNone(self.heeded(OWN, None, group_id="a" * 32))
        self.assertIsNone(self.heeded(OWN, None, is_blank=True))
        joining = attrs.evolve(OWN, standing=Standing.JOINING)
        self.assertIsNone(self.heeded(joining, None, group_id="a" * 32, is_blank=True))


class NodeTests(SynchronousTestCase):
    """In a member."""

    def setUp(self) -> None:
        self.rig = Rig(peers=PEERS)
        self.rig.store.identity.begin_run(1, 10)
        self.rig.node.start()
        self.client = self.rig.client()

    def greeting(self, **fields: Any) -> MetadataRequest:
        """Of n1."""
        return MetadataRequest(
            **self.rig.base(local_id="n1"), wire_version=1, members="n0;n1;n2", **fields)

    def vote(self, *, is_pre_vote: bool = False) -> VoteRequest:
        """n1 asks for one."""
        return VoteRequest(
            **self.rig.base(local_id="n1"), leader_id="n1", term=5, ledger_end_index=9, ledger_end_term=4,
            wire_version=1, pre_vote=is_pre_vote,
        )

    def test_doubted_before_it_votes(self) -> None:
        """The greeting and the request came in one read: the vote is one of a member that joins."""
        remembered = Lineage(incarnation=9, starts=1, run=1, standing=Standing.TRUSTED)
        self.client.send(
            self.greeting(lineage=N1.encode(), met_lineage=remembered.encode()), self.vote(), native=False)
        reported, voted = self.client.answers()
        self.assertEqual(reported.met_lineage, "")
        self.assertNotEqual(voted.vote_result, VoteResult.ACCEPT)
        self.assertTrue(self.rig.store.identity.is_unsure)
        self.assertTrue(self.rig.node.status().member.is_unsure)
        self.assertEqual(self.rig.node.status().counts.reports["doubted"], 1)

    def test_a_member_is_not_doubted_without_memory(self) -> None:
        """The same without that memory."""
        self.client.send(self.greeting(lineage=N1.encode()), self.vote(), native=False)
        reported, voted = self.client.answers()
        self.assertIs(voted.vote_result, VoteResult.ACCEPT)
        self.assertEqual(Lineage.decode(reported.lineage), self.rig.store.identity.lineage)

    def test_strangers_make_nobody_unsure(self) -> None:
        """Nobody becomes unsure by the word of one that is not a member; nor is it remembered."""
        remembered = Lineage(incarnation=9, starts=1, run=1, standing=Standing.TRUSTED)
        for number in range(3):
            self.client.ask(MetadataRequest(
                **self.rig.base(local_id=f"x{number}"), wire_version=1, members="n0;n1;n2",
                lineage=N1.encode(), met_lineage=remembered.encode()), native=False)
        self.assertFalse(self.rig.store.identity.is_unsure)
        lineages = self.rig.node.greeting.lineages
        assert lineages is not None
        self.assertEqual(lineages._calling, {})

    def test_a_leader_steps_down(self) -> None:
        """It does not know forgotten answers."""
        rig = Rig()
        rig.store.identity.begin_run(1, 10)
        rig.lead()
        rig.node._belonging._doubt("for a test", True)
        self.assertEqual(rig.node.status().member.role, "follower")

    def test_a_copy_is_turned_away(self) -> None:
        """A copy is answered, and its connection ends before anything else counts."""
        self.rig.store.identity.others.meet("n1", N1)
        older = attrs.evolve(N1, starts=2, run=2)
        self.client.send(self.greeting(lineage=older.encode()), self.vote(), native=False)
        (reported,) = self.client.answers()
        self.assertEqual(reported.met_lineage, N1.encode())
        self.assertTrue(self.client.transport.disconnecting)
        self.assertEqual(self.rig.node.status().counts.reports["foreign-member"], 1)

    def test_an_incarnation_of_before(self) -> None:
        """A disk that is put back after another incarnation came, proven or not, is reported, and noticed."""
        for standing in Standing:
            self.setUp()
            client, others = self.client, self.rig.store.identity.others
            back = attrs.evolve(N1, standing=standing)
            others.meet("n1", back)
            others.meet("n1", attrs.evolve(N1, incarnation=8, starts=1, run=3, standing=Standing.PROVEN))
            client.send(self.greeting(lineage=attrs.evolve(back, starts=6, run=30).encode()), native=False)
            (reported,) = client.answers()
            met = Lineage.decode(reported.met_lineage)
            self.assertIs(attrs.evolve(back, starts=6, run=30).fault(met), Fault.OLDER)
            self.assertTrue(client.transport.disconnecting)
            lineages = self.rig.node.greeting.lineages
            assert lineages is not None
            self.assertIn("an older copy", lineages.problem_of_answer("n1", back.encode()))

    def test_clients_are_reported_nothing(self) -> None:
        """They are no members."""
        reported = self.client.ask(MetadataRequest(**self.rig.base()), native=False)
        self.assertEqual((reported.lineage, reported.met_lineage, reported.is_rival), ("", "", False))

    def test_a_suspects_vote(self) -> None:
        """It asks for one in the read of its greeting: another process answers at the address."""
        lineages = self.rig.node.greeting.lineages
        assert lineages is not None
        lineages.problem_of_answer("n1", N1.encode())
        self.client.send(self.greeting(lineage=attrs.evolve(N1, run=21, starts=8).encode()), self.vote(),
                         native=False)
        _, voted = self.client.answers()
        self.assertIs(voted.code, ResponseCode.ILLEGAL_MEMBER_STATE)
        self.assertEqual(self.rig.node.status().member.term, 0)

    def test_end_of_a_rivals_connection(self) -> None:
        """The server ends the connection that speaks for the member."""
        self.client.ask(self.greeting(lineage=attrs.evolve(N1, run=21, starts=8).encode()), native=False)
        lineages = self.rig.node.greeting.lineages
        assert lineages is not None
        self.assertFalse(self.client.transport.disconnected)
        lineages.problem_of_answer("n1", N1.encode())
        self.rig.clock.advance(0)
        self.assertFalse(self.client.connection.is_open)


class PeerTests(PeersTestCase):
    """At the member's address."""

    def answer(self, **fields: Any) -> Any:
        """n1 answers the greeting."""
        memory = Directory(OWN, n1=N1)
        self.lineages = Lineages(memory, is_blank=lambda: False, doubt=lambda *_: None, note=lambda *_: None)
        self.greeting = Greeting(
            known=Known(), group_name=lambda: GroupName("a" * 32, 1, True), lineages=self.lineages)
        self.peers._peers["n1"]._greeting = self.greeting
        connection, transport = self.endpoints["n1"].succeed()
        ((opaque, request),) = self.sent(transport)
        asked = json.loads(request.body)
        self.assertEqual((asked["lineage"], asked["metLineage"]), (OWN.encode(), N1.encode()))
        connection.dataReceived(remoting_response(MetadataResponse(
            wire_version=1, peers={"n0": "h:1", "n1": "h:2", "n2": "h:3"}, group="default", **fields,
        ), opaque))
        self.clock.advance(0)
        return connection

    def test_an_answering_member_is_believed(self) -> None:
        """And forgotten as the one that answers when the connection ends."""
        connection = self.answer(lineage=attrs.evolve(N1, starts=6, run=30).encode())
        other = attrs.evolve(N1, starts=7, run=31).encode()
        self.lineages.problem_of_call("n1", other)
        self.assertTrue("n1" in self.lineages.suspects)
        self.assertTrue(self.peers.connected["n1"])
        connection.abort("for a test")
        self.clock.advance(0)
        self.assertFalse("n1" in self.lineages.suspects)

    def test_an_older_copy_is_turned_away(self) -> None:
        """An older copy at the address; and when it says that this process is one of two."""
        for fields in ({"lineage": attrs.evolve(N1, starts=2, run=30).encode()}, {"is_rival": True}):
            with self.subTest(fields):
                self.setUp()
                self.answer(**fields)
                self.assertFalse(self.peers.connected["n1"])
