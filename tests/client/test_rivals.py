# -*- test-case-name: tests.client.test_rivals -*-
"""A leader that stands still is left as soon as another one leads, and not before."""

from __future__ import annotations

from typing import Any

from dledger.client.connect_options import AppendLimits
from dledger.client.errors import AppendTimeout, UnknownOutcome
from dledger.client.rivals import AGAIN_S, SILENT_S
from dledger.client.values import Entry
from protocols.wire.ledger.messages import GetRequest, MetadataRequest
from tests.client.test_appender import GroupCase, is_append


class SilentLeaderTests(GroupCase):
    """n0 leads, and stands still from some moment on; a look takes no time here."""

    options = {"timeout_s": 10.0, "answer_timeout_s": 4.0, "limits": AppendLimits(frame_count_max=1)}

    def setUp(self) -> None:
        super().setUp()
        self.submit(b"before")
        self.group.settle()

    def stop_n0(self) -> None:
        """Its connections stay, and new ones can be made, as with a process that is stopped."""
        self.group["n0"].is_silent = True

    def elect(self, member_id: str) -> None:
        """The others have another leader, and n0 has not heard of it."""
        self.group.lead(member_id)
        self.group["n0"].leader_id = "n0"
        self.group["n0"].term -= 1

    def asked(self, member_id: str) -> int:
        """How often a member was asked for METADATA since the first append."""
        count = sum(isinstance(request, MetadataRequest) for request in self.group[member_id].received)
        return count - 1

    def test_left_when_another_leads(self) -> None:
        """What was under way is unknown, as with a lost connection; what waited goes to the new leader."""
        self.stop_n0()
        under_way = [self.submit(b"%d" % number) for number in range(8)]
        self.group.settle()
        waiting = [self.submit(b"%d" % number) for number in range(8, 12)]
        self.group.run(SILENT_S / 2)
        self.elect("n1")
        self.group["n2"].is_silent = True  # is not waited for
        self.group.run(SILENT_S / 2 - 0.1)
        self.assertEqual([len(outcomes) for outcomes in under_way], [0] * 8)
        self.group.run(0.5)
        for (outcome,) in under_way:
            assert isinstance(outcome, UnknownOutcome)
            self.assertIn("no answer, and n1 leads in term 2", str(outcome))
        self.assertEqual([len(outcomes) for outcomes in waiting], [1] * 4)
        self.assertEqual(self.group.log, [b"before", b"8", b"9", b"10", b"11"])
        self.assertEqual(self.appends_at("n1"), [(b"8",), (b"9",), (b"10",), (b"11",)])

    def test_a_late_answer_is_not_heard(self) -> None:
        """Of a leader that was left nothing is heard any more: an outcome is given once."""
        self.stop_n0()
        outcomes = self.submit(b"a")
        self.group.settle()
        self.elect("n1")
        self.group.run(SILENT_S + 0.5)
        self.group["n0"].release()
        self.group.settle()
        self.assertEqual([type(outcome) for outcome in outcomes], [AppendTimeout])

    def test_a_later_leader_is_found(self) -> None:
        """Looks are repeated: the new leader is found soon after there is one."""
        self.stop_n0()
        outcomes = self.submit(b"a")
        self.group.run(2.5)
        self.assertEqual(outcomes, [])
        self.elect("n2")
        self.group.run(AGAIN_S + 0.2)
        self.assertEqual([type(outcome) for outcome in outcomes], [AppendTimeout])

    def test_a_slow_commit_is_waited_for(self) -> None:
        """Nobody else leads: the answer is waited for, and the others are asked now and then only."""
        self.group["n0"].holds = is_append
        outcomes = self.submit(b"a")
        self.group.run(SILENT_S - 0.1)
        self.assertEqual((self.asked("n1"), self.asked("n2")), (0, 0))
        self.group.run(2.6)
        self.assertEqual(outcomes, [])
        for member_id in ("n1", "n2"):
            self.assertIn(self.asked(member_id), range(3, 8))
        self.group["n0"].release()
        self.group.run(1.0)
        self.assertEqual(self.group.log, [b"before", b"a"])
        self.assertEqual(len(outcomes[0]), 1)  # type: ignore[arg-type]

    def test_a_deposed_rival_is_no_reason(self) -> None:
        """Who has led in an older term, and does not know better, is no reason to leave."""
        self.group.lead("n0")
        self.client.close()
        self.client = self.group.client(**self.options)
        self.submit(b"b")
        self.group.settle()
        self.group["n1"].leader_id, self.group["n1"].term = "n1", 1
        self.group["n0"].holds = is_append
        outcomes = self.submit(b"c")
        self.group.run(3.0)
        self.assertEqual(outcomes, [])
        self.group["n0"].release()
        self.group.settle()
        self.assertEqual(self.group.log, [b"before", b"b", b"c"])

    def test_deposed_rival_beside_the_new_leader(self) -> None:
        """The one that counts is found, though the other one answers first."""
        self.stop_n0()
        outcomes = self.submit(b"a")
        self.group.settle()
        self.elect("n2")
        self.group["n1"].leader_id, self.group["n1"].term = "n1", 1
        self.group.run(SILENT_S + 0.5)
        self.assertIn("n2 leads in term 2", str(outcomes))

    def test_one_look_at_a_time(self) -> None:
        """However long it takes; a member that stands still, too, is not piled up with questions."""
        self.group["n0"].holds = is_append
        self.group["n2"].is_silent = True
        self.submit(b"a")
        self.group.run(3.9)
        self.assertIn(self.asked("n2"), range(2, 4))

    def test_java_leader_is_waited_for(self) -> None:
        """It does not report its term, so nobody knows whether the other leader is the later one."""
        self.group["n0"].wire_version = 0
        self.client.close()
        self.client = self.group.client(**self.options)
        self.group["n0"].holds = is_append
        outcomes = self.submit(b"a")
        self.group.settle()
        self.elect("n1")
        self.group.run(3.5)
        self.assertEqual(outcomes, [])
        self.group.run(1.0)
        (error,) = outcomes
        self.assertIn("not answered within 4 s", str(error))

    def test_closed_while_looking(self) -> None:
        """Nothing is left of a look that was under way."""
        self.stop_n0()
        self.group["n1"].is_silent = self.group["n2"].is_silent = True
        outcomes = self.submit(b"a")
        self.group.run(SILENT_S + 0.2)
        self.client.close()
        self.assertIsInstance(outcomes[0], UnknownOutcome)

    def test_reads_go_on_at_the_new_leader(self) -> None:
        """A linearizable read goes on at the new leader."""
        self.stop_n0()
        got: list[Any] = []
        self.client.get(0).addBoth(got.append)
        self.group.settle()
        self.elect("n1")
        self.group.run(SILENT_S + 0.5)
        (entry,) = got
        assert isinstance(entry, Entry)
        self.assertEqual(entry.body, b"before")
        reads = [member_id for member_id, member in self.group.members.items()
                 if any(isinstance(request, GetRequest) for request in member.received)]
        self.assertEqual(reads, ["n0", "n1"])
