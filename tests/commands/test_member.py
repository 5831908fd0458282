# -*- test-case-name: tests.commands.test_member -*-
"""C{dledger member}: the members of a running group."""

from __future__ import annotations

import json

import attrs

from dledger.cli.ledger import member
from dledger.client.errors import UnknownChange
from dledger.values.errors import DLedgerError
from protocols.wire.codes import ResponseCode
from protocols.wire.ledger.memberships import MemberLists, ReportedMembership, encode_reported
from protocols.wire.ledger.messages import MembershipResponse
from tests.commands.fakes import CliCase, info

DONE = MembershipResponse(reason="done", voters={"n0": "h:1"}, learners={"n3": "h:4"}, index=7)


class MemberCase(CliCase):
    """The leader gives the answers of the test."""

    def setUp(self) -> None:
        super().setUp()
        self.answers: list[MembershipResponse | DLedgerError] = []
        self.log.change_members = self.change_members  # type: ignore[attr-defined]
        self.log.metadata = lambda: self.log.infos[0]  # type: ignore[attr-defined]
        self.waits: list[float] = []
        self.patch(member.time, "sleep", self.waits.append)

    def change_members(
        self, change: str, member_id: str, address: str = "", *, is_dry: bool, is_forced: bool
    ) -> MembershipResponse:
        """As L{dledger.client.blocking.Log.change_members}."""
        self.log.calls.append((change, member_id, address, is_dry, is_forced))
        answer = self.answers.pop(0) if self.answers else DONE
        if isinstance(answer, DLedgerError):
            raise answer
        return answer


class ChangeTests(MemberCase):
    """Each command is one question to the leader, or several in order."""

    def test_one_change(self) -> None:
        """The arguments arrive; the answer is shown."""
        for words, call in (
            (("add", "n3", "h:4"), ("add", "n3", "h:4", False, False)),
            (("promote", "n3", "--dry-run"), ("promote", "n3", "", True, False)),
            (("remove", "n1", "--force"), ("remove", "n1", "", False, True)),
            (("move", "n1", "h:9"), ("move", "n1", "h:9", False, False)),
        ):
            self.log.calls.clear()
            shown = self.run_cli("member", *words)
            self.assertExit(shown, 0, "done", "voters    n0 h:1", "learners  n3 h:4")
            self.assertEqual(self.log.calls[-1], call)

    def test_json(self) -> None:
        """The same as an object."""
        shown = json.loads(self.run_cli("member", "remove", "n1", "--json").stdout)
        self.assertEqual(shown, {
            "reason": "done", "index": 7, "voters": {"n0": "h:1"}, "learners": {"n3": "h:4"},
        })

    def test_refused(self) -> None:
        """With the leader's reason; an unknown outcome has a status of its own, and says what to do."""
        self.answers = [DLedgerError(ResponseCode.UNSUPPORTED, reason="n2: not known to read")]
        self.assertExit(self.run_cli("member", "remove", "n1"), 1, "UNSUPPORTED (303): n2: not known to read")
        self.answers = [UnknownChange(ResponseCode.METADATA_ERROR, reason="no leader found")]
        shown = self.run_cli("member", "remove", "n1")
        self.assertExit(shown, 2, "may be in force", "give the command again", "no leader found")

    def test_forced(self) -> None:
        """The leader is asked first whether it would; its objection is shown, then the change is made."""
        self.answers = [DLedgerError(ResponseCode.FALL_BEHIND_TOO_MUCH, reason="only n0 are alive"), DONE]
        shown = self.run_cli("member", "remove", "n3", "--force")
        self.assertExit(shown, 0, "done", "forced although: only n0 are alive", "takes no appends")
        self.assertEqual([call[3:] for call in self.log.calls], [(True, False), (False, True)])

    def test_waits_until_caught_up(self) -> None:
        """And says so once per reason; not in a dry run, and not for ever."""
        behind = DLedgerError(ResponseCode.FALL_BEHIND_TOO_MUCH, reason="n3 lacks 9 entries, or is silent")
        self.answers = [behind, behind]
        result = self.run_cli("member", "promote", "n3")
        self.assertExit(result, 0, "done")
        self.assertEqual((result.stderr.count("waiting: n3 lacks 9"), len(self.waits)), (1, 2))
        for words in (("--dry-run",), ("--wait", "0")):
            self.answers = [behind]
            self.assertExit(self.run_cli("member", "promote", "n3", *words), 1, "n3 lacks 9 entries")

    def test_replace(self) -> None:
        """Ask for the members, add, promote, remove; a dry run only asks."""
        before = MembershipResponse(reason="would", voters={"n0": "h:1", "n1": "h:2"}, learners={"n3": "h:4"})
        self.answers = [before]
        self.assertExit(self.run_cli("member", "replace", "n1", "n3", "h:4"), 0, "n3 is a voter", "done")
        self.assertEqual([call[:4] for call in self.log.calls], [
            ("add", "n3", "h:4", True), ("add", "n3", "h:4", False), ("promote", "n3", "", False),
            ("remove", "n1", "", False),
        ])
        self.log.calls.clear()
        self.answers = [before]
        self.assertExit(self.run_cli("member", "replace", "n1", "n3", "h:4", "--dry-run"), 0, "would")
        self.assertEqual(self.log.calls, [("add", "n3", "h:4", True, False)])

    def test_replace_again(self) -> None:
        """After a command that was ended half-way, or was done: nothing is added twice."""
        for voters in ({"n1": "h:2", "n3": "h:4"}, {"n3": "h:4"}):
            self.log.calls.clear()
            self.answers = [MembershipResponse(reason="nothing to change", voters=voters)]
            result = self.run_cli("member", "replace", "n1", "n3", "h:4")
            self.assertExit(result, 0, "done")
            self.assertNotIn("learner", result.stderr)
            self.assertEqual([call[:2] for call in self.log.calls], [("add", "n3"), ("remove", "n1")])

    def test_replace_nobody(self) -> None:
        """A mistyped id: the group would only grow. Nothing is changed."""
        self.answers = [MembershipResponse(voters={"n0": "h:1", "n1": "h:2"}, learners={"n3": "h:4"})]
        shown = self.run_cli("member", "replace", "n11", "n3", "h:4")
        self.assertExit(shown, 64, "n11 is not a member", "members are n0, n1")
        self.assertEqual(len(self.log.calls), 1)


class ListTests(MemberCase):
    """C{dledger member list}."""

    def test_start_list(self) -> None:
        """Without a change all are voters. A member that only the client names is none."""
        leader, *others = self.log.infos
        peers = {one.member_id: one.address for one in self.log.infos}
        self.log.infos = (attrs.evolve(leader, peers=peers), *others, info("n9", role="follower"))
        result = self.run_cli("member", "list")
        self.assertExit(result, 0, "n1\tvoter\tfollower\tlacks 1 entries", "n2\tvoter\t-\tconnection refused")
        self.assertNotIn("n9", result.stdout)

    def test_changed(self) -> None:
        """As the leader's log says."""
        reported = encode_reported([ReportedMembership(7, 2, MemberLists({"n0": "h:1"},
                                                                         {"n1": "h:2", "n3": "h:4"}))])
        self.log.infos = (
            info("n0", role="leader", end_index=9, leader_id="n0", configuration=reported),
            *self.log.infos[1:],
        )
        shown = json.loads(self.run_cli("member", "list", "--json").stdout)
        self.assertEqual([(one["member_id"], one["kind"], one["lag"]) for one in shown], [
            ("n0", "voter", 0), ("n1", "learner", 0), ("n3", "learner", "no answer"),
        ])
