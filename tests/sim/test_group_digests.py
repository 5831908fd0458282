# -*- test-case-name: tests.sim.test_group_digests -*-
"""Simulated groups whose members have a wrong state of the group, or none."""

from __future__ import annotations

from twisted.internet.defer import Deferred
from twisted.trial.unittest import SynchronousTestCase

from dledger.core.state.inputs import Origin
from dledger.node.node import Node
from dledger.node.requests.appends import AppendResult
from dledger.node.work.state_digests import FIRST_S
from dledger.storage.files.state_file import STATE_NAME, StateEncoding, StateFile
from dledger.testing.group.members.cluster import GroupOptions, SimCluster
from dledger.testing.group.members.member import SimMember
from dledger.values.errors import DLedgerError
from protocols.wire.codes import ResponseCode
from protocols.wire.ledger.messages import BeginStateResponse, Response


class GroupCase(SynchronousTestCase):
    """A group with a producer."""

    def begin(self, members: int = 3, **settings: object) -> None:
        """It has elected, and has some numbers."""
        self.cluster = SimCluster(GroupOptions(members=members, settings=settings), 1)
        self.cluster.start()
        self.cluster.run(4)
        self.assertEqual([self.append(number) for number in range(5)], ["SUCCESS"] * 5)

    @property
    def leader(self) -> SimMember:
        """Who leads."""
        assert self.cluster.leader is not None
        return self.cluster.leader

    def followers(self) -> list[SimMember]:
        """The others."""
        return [one for one in self.cluster.members.values() if one is not self.leader]

    def append(self, sequence: int, producer: str = "p") -> str:
        """The code of the answer to a numbered append at the leader."""
        codes: list[str] = []
        body = f"{producer} {sequence}".encode().ljust(100)

        def call(node: Node) -> None:
            asked: Deferred[AppendResult] = node.handlers.appends.append_command(
                body, Origin(producer, sequence, (), "")
            )
            asked.addCallbacks(lambda _: codes.append("SUCCESS"), lambda failure: codes.append(
                failure.value.code.name if failure.check(DLedgerError) else "?"))

        self.leader.call(call)
        self.cluster.run(1)
        return codes[0] if codes else "none"

    def order(self, *, insists: bool = False) -> BeginStateResponse:
        """The leader's answer to an operator."""
        answers: list[Response] = []
        self.leader.call(lambda node: node.begin_state(insists=insists).addCallback(answers.append))
        self.cluster.run(3)
        answer, = answers
        assert isinstance(answer, BeginStateResponse)
        return answer

    def path(self, member: SimMember) -> str:
        """Of its file."""
        return f"{member.config.self_path}/{STATE_NAME}"


class DigestTests(GroupCase):
    """A state that is wrong, with right checksums."""

    def spoil(self, member: SimMember) -> None:
        """Its memory is wrong."""
        assert member.ledger.group is not None
        self.cluster.world.groups.spoiled.add(member.member_id)
        self.wrong = member.ledger.group
        self.wrong.state.hidden += 7

    def reports(self, member: SimMember) -> int:
        """How often it has noticed that it differs."""
        return member.node.status().counts.reports.get("state-differs", 0)

    def judge(self) -> None:
        """All members have the same, right state again."""
        self.cluster.run(5)
        self.cluster.world.groups.spoiled.clear()  # (Now each state is compared again.)
        self.assertNotIn(self.append(5), ("none", "?"))
        self.cluster.settle()
        self.cluster.judge()

    def test_a_wrong_follower(self) -> None:
        """It drops its state, and gets the right one; the others keep theirs."""
        self.begin()
        wrong, leader = self.followers()[0], self.leader
        self.spoil(wrong)
        self.cluster.run(FIRST_S + 10)
        self.assertEqual([self.reports(one) for one in self.cluster.members.values()],
                         [int(one is wrong) for one in self.cluster.members.values()])
        self.assertIs(self.leader, leader)
        self.judge()

    def test_a_wrong_leader(self) -> None:
        """It hands over, and gets the state of the others."""
        self.begin()
        wrong = self.leader
        self.spoil(wrong)
        self.cluster.run(FIRST_S + 10)
        self.assertEqual(self.reports(wrong), 1)
        self.assertIsNot(self.leader, wrong)
        self.judge()

    def test_a_wrong_file(self) -> None:
        """A member that starts with it drops it, and does not find it again."""
        self.begin()
        wrong = self.followers()[0]
        wrong.stop()
        self.cluster.run(1)
        self.assertFalse(wrong.is_up)
        stored = StateFile(wrong.disk, self.path(wrong)).read()[0]
        stored.state.hidden += 7
        data = b"".join(StateEncoding(stored.state.capture(), stored.place, 1).run()).ljust(1 << 16, b"\0")
        wrong.disk.write_file(self.path(wrong), 2 * data)
        self.cluster.world.groups.spoiled.add(wrong.member_id)
        self.cluster.run(FIRST_S + 10)
        self.assertEqual(self.reports(wrong), 1)
        self.judge()
        wrong.kill()
        self.cluster.restart_later(wrong, 1000)
        self.cluster.run(5)
        self.assertIsNotNone(wrong.ledger.group)
        self.judge()

    def test_an_idle_group_writes_nothing(self) -> None:
        """Beyond the first digest."""
        self.begin()
        self.cluster.run(FIRST_S + 10)
        end = self.leader.ledger.ledger_end_index
        self.cluster.run(10 * FIRST_S)
        self.assertEqual(self.leader.ledger.ledger_end_index, end)


class BeginAnewTests(GroupCase):
    """No member has the state, and the begin of the log is gone."""

    def lose(self, members: int = 3) -> None:
        """All files are lost while all are down."""
        self.begin(members, mapped_file_size_for_entry_data=1024, retention_bytes=2048)
        for number in range(5, 60):
            self.assertEqual(self.append(number), "SUCCESS")
        self.cluster.run(60)
        for member in self.cluster.members.values():
            self.assertGreater(member.ledger.ledger_begin_index, 5)
            member.kill()
            member.disk.unlink(self.path(member))
            self.cluster.restart_later(member, 1000)
        self.cluster.run(20)

    def test_ordered(self) -> None:
        """Producers are refused, and health says why; after the order they are served, at all members."""
        for members in (3, 1):
            self.lose(members)
            self.assertIn("LEADER_NOT_READY", self.append(60))
            self.assertIn("no state of the group before it", self.leader.node.status().why_state_unknown)
            answer = self.order()
            self.assertEqual((answer.code, answer.reason), (ResponseCode.SUCCESS, ""))
            self.assertEqual(self.append(60), "PRODUCER_FORGOTTEN")
            self.assertEqual(self.append(0, "q"), "SUCCESS")
            self.cluster.run(5)
            states = [one.ledger.group for one in self.cluster.members.values()]
            self.assertEqual([one and set(one.state.producers) for one in states], [{"q"}] * members)
            self.cluster.settle()

    def test_refused_while_a_member_has_it(self) -> None:
        """Unless the operator insists."""
        self.begin()
        self.assertIn("this leader has the state", self.order().reason)
        answer = self.order(insists=True)
        self.assertIs(answer.code, ResponseCode.SUCCESS)
        self.assertNotEqual(self.append(5), "SUCCESS")
        self.assertEqual(self.append(0, "q"), "SUCCESS")
        self.cluster.settle()
