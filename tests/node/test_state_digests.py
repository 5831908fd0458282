# -*- test-case-name: tests.node.test_state_digests -*-
"""Digests of the state: who writes them, and who drops its state by them."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import cast

from twisted.internet.defer import Deferred, fail, succeed
from twisted.trial.unittest import SynchronousTestCase

from dledger.core.state.effects import Report
from dledger.core.state.member_state import MemberState
from dledger.node.work.state_digests import ASK_S, ASKED_OFTEN, EVERY_BYTES, FIRST_S, StateDigests
from dledger.values.errors import DLedgerError
from dledger.values.ledger.group_state import GroupFold, GroupState, Marked, Producer
from protocols.wire.codes import ResponseCode
from protocols.wire.ledger.messages import MetadataResponse
from protocols.wire.ledger.own.own_entries import STATE_CHANNEL
from protocols.wire.ledger.own.state_entries import (
    StateEntry,
    StateWord,
    decode_state_entry,
    encode_state_entry,
)

NAMES = ("n0", "n1", "n2")


class Member:
    """One member; the log is the group's."""

    def __init__(self, case: GroupCase, name: str) -> None:
        self.case = case
        self.name = name
        self.group: GroupFold | None = GroupFold(GroupState())
        assert self.group is not None
        self.group.state.restored([Producer(f"p{number}", number + 1, 0) for number in range(8000)], ())
        self.end_position = 1000
        self.voided: list[str] = []
        self.reports: list[str] = []
        self.heirs: list[str] = []
        self.later: list[object] = []
        self.facts = SimpleNamespace(
            is_leader=name == "n0", self_id=name, term=3, membership=SimpleNamespace(voters=NAMES),
            voter_ids=tuple(one for one in NAMES if one != name), peer_ids=tuple(set(NAMES) - {name}),
        )
        self.digests = StateDigests(
            self, cast(MemberState, self.facts), ask=case.ask, report=self.report, append=self.append,
            void=self.void, hand_over=self.heirs.append, later=self.later.append,
        )

    def report(self, report: Report) -> None:
        """An event."""
        self.reports.append(report.event)

    def void(self, why: str) -> None:
        """Its state is wrong."""
        self.voided.append(why)
        self.group = None

    def append(self, body: bytes, ended: Callable[[object], None]) -> None:
        """Committed everywhere at once."""
        ended(self.case.write(body))

    def spoil(self) -> None:
        """A producer has another number."""
        assert self.group is not None
        self.group.state.put(Producer("p7", 8, 0, 55))


class GroupCase(SynchronousTestCase):
    """Three members, n0 leads."""

    def setUp(self) -> None:
        self.now_s = 0.0
        self.written: list[StateEntry] = []
        self.end = 10
        self.silent: set[str] = set()
        self.members = {name: Member(self, name) for name in NAMES}

    def ask(self, peer_id: str) -> Deferred[MetadataResponse]:
        """What a member says."""
        if peer_id in self.silent:
            return fail(DLedgerError(ResponseCode.NETWORK_ERROR))
        return succeed(MetadataResponse(state_digest=self.members[peer_id].digests.reported))

    def write(self, body: bytes) -> int:
        """A state entry, at all members that fold."""
        self.written.append(decode_state_entry(body))
        self.end += 1
        for member in self.members.values():
            if member.group is not None:
                member.group.take([Marked(self.end, 3, STATE_CHANNEL, 1, body)])
                member.group.commit(self.end)
        return self.end

    def pass_time(self, seconds: float) -> None:
        """In steps; calls that were put off are made."""
        for _ in range(int(seconds / ASK_S) + 1):
            self.now_s += ASK_S
            for member in self.members.values():
                member.digests.sweep(self.now_s)
                while member.later:
                    member.later.pop(0)()  # type: ignore[operator]

    def words(self) -> list[StateWord]:
        """Of all entries."""
        return [one.word for one in self.written]


class LeaderTests(GroupCase):
    """What the leader writes."""

    def test_one_after_a_while(self) -> None:
        """And its digest when a majority has it; then nothing more in an idle group."""
        self.pass_time(FIRST_S - 2 * ASK_S)
        self.assertEqual(self.written, [])
        self.pass_time(20 * FIRST_S)
        self.assertEqual(self.words(), [StateWord.TAKE_DIGEST, StateWord.DIGEST])
        reported = {member.digests.reported for member in self.members.values()}
        self.assertEqual(reported, {f"11:3:{self.written[1].digest:016x}"})
        self.assertEqual([member.voided for member in self.members.values()], [[], [], []])

    def test_the_next_one_when_the_log_has_grown(self) -> None:
        """By EVERY_BYTES, whichever member leads."""
        self.pass_time(2 * FIRST_S)
        for member in self.members.values():
            member.end_position += EVERY_BYTES
        self.members["n0"].facts.is_leader = False
        self.members["n1"].facts.is_leader = True
        self.pass_time(4 * ASK_S)
        self.assertEqual(self.words(), 2 * [StateWord.TAKE_DIGEST, StateWord.DIGEST])

    def test_not_without_need(self) -> None:
        """Not by a follower, without producers, in a group of one, or without the state."""
        leader = self.members["n0"]
        leader.facts.is_leader = False
        self.pass_time(2 * FIRST_S)
        leader.facts.is_leader = True
        leader.facts.voter_ids = ()
        self.pass_time(2 * FIRST_S)
        leader.facts.voter_ids = ("n1", "n2")
        leader.group = GroupFold(GroupState())
        self.pass_time(2 * FIRST_S)
        leader.group = None
        self.pass_time(2 * FIRST_S)
        self.assertEqual(self.written, [])

    def test_no_turn_does_much(self) -> None:
        """A digest is made in turns of their own."""
        leader = self.members["n0"]
        leader.facts.is_leader = False
        self.write(encode_state_entry(StateEntry(StateWord.TAKE_DIGEST)))
        leader.digests.sweep(1.0)
        turns = 0
        while leader.later:
            self.assertEqual(leader.digests.reported, "")
            leader.later.pop(0)()  # type: ignore[operator]
            turns += 1
        self.assertEqual(turns, 3)
        self.assertTrue(leader.digests.reported.startswith("11:3:"))

    def test_a_minority_confirms_nothing(self) -> None:
        """The digest waits for a majority."""
        self.silent = {"n1", "n2"}
        self.pass_time(4 * FIRST_S)
        self.assertEqual(self.words(), [StateWord.TAKE_DIGEST])
        self.silent = {"n1"}
        self.pass_time(2 * FIRST_S)
        self.assertEqual(self.words(), [StateWord.TAKE_DIGEST, StateWord.DIGEST])

    def test_nonsense_confirms_nothing(self) -> None:
        """Two members that say the same nonsense are no majority."""
        self.patch(self, "ask", lambda peer_id: succeed(MetadataResponse(state_digest="11:3:" + 16 * "z")))
        for member in self.members.values():
            member.digests._ask = self.ask
        self.pass_time(4 * FIRST_S)
        self.assertEqual(self.words(), [StateWord.TAKE_DIGEST])


class MemberTests(GroupCase):
    """Who drops its state."""

    def test_a_follower_that_differs(self) -> None:
        """It, and nobody else."""
        self.members["n2"].spoil()
        self.pass_time(2 * FIRST_S)
        self.assertEqual([len(member.voided) for member in self.members.values()], [0, 0, 1])
        self.assertEqual(self.members["n2"].reports, ["state-differs"])
        self.assertIn(f"that of a majority {self.written[1].digest:016x}", self.members["n2"].voided[0])
        self.assertEqual(self.members["n2"].digests.reported, "")

    def test_a_leader_that_differs(self) -> None:
        """It writes the digest of the others, drops its own state, and hands over to one of them."""
        self.members["n0"].spoil()
        self.pass_time(2 * FIRST_S)
        self.assertEqual([len(member.voided) for member in self.members.values()], [1, 0, 0])
        self.assertEqual(self.members["n0"].heirs, ["n1"])

    def test_all_differ(self) -> None:
        """Nobody drops its state, and the leader says so once."""
        self.members["n0"].spoil()
        assert self.members["n1"].group is not None
        self.members["n1"].group.state.has_forgotten = True
        self.pass_time(FIRST_S + ASKED_OFTEN * ASK_S * 4)
        self.assertEqual(self.words(), [StateWord.TAKE_DIGEST])
        self.assertEqual(self.members["n0"].reports, ["state-undecided"])
        self.assertEqual([member.voided for member in self.members.values()], [[], [], []])

    def test_who_took_none_is_not_judged(self) -> None:
        """It got its state after the entry."""
        self.silent = {"n1", "n2"}
        self.pass_time(2 * FIRST_S)
        late = self.members["n2"] = Member(self, "n2")
        late.spoil()
        self.silent.clear()
        self.pass_time(2 * FIRST_S)
        self.assertEqual(self.words(), [StateWord.TAKE_DIGEST, StateWord.DIGEST])
        self.assertEqual(late.voided, [])
