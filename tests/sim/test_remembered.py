# -*- test-case-name: tests.sim.test_remembered -*-
"""What a process remembers or forgets with a step, made wrong by hand; each check must fail."""

from __future__ import annotations

import random
from unittest import mock

import attrs
from twisted.trial.unittest import SynchronousTestCase

from dledger.core.state import inputs as ev
from dledger.storage.files.snapshot_file import SnapshotHead
from dledger.testing.group.checks.machine_files import MachineFileRules
from dledger.testing.group.checks.require import InvariantError
from dledger.testing.world.disk import SimDisk
from dledger.values.ledger.group_name import GroupName
from dledger.values.ledger.membership import Membership
from protocols.wire.codes import ResponseCode
from protocols.wire.ledger.messages import MetadataRequest, MetadataResponse, VoteRequest
from tests.sim.test_words import GroupOfThree


class StepTests(GroupOfThree):
    """The steps of a follower, and of a leader."""

    def setUp(self) -> None:
        """The rules of the follower."""
        super().setUp()
        self.cluster.run(8)
        self.rules = self.follower.driver.memory
        self.mirror = self.cluster.invariants.mirror(self.follower.member_id)

    def test_a_flush_of_entries_that_are_not_there(self) -> None:
        """It counts up to the end of the log, and not further."""
        self.rules.before(ev.EntriesFlushed(flush_id=1, end_index=self.mirror.end_index))
        too_far = ev.EntriesFlushed(flush_id=1, end_index=self.mirror.end_index + 1)
        self.assertIn("counts 3 as flushed", self.broken(20, lambda: self.rules.before(too_far)))

    def cut(self, end_index: int) -> None:
        """The mirror of the follower is cut as the store would have cut its log."""
        self.rules.before(ev.LedgerTruncated(end_index=end_index, end_term=1))
        self.mirror.cut_to(end_index)
        self.rules.cut(end_index)

    def test_a_cut_of_what_the_leader_has(self) -> None:
        """The leader has the entry after the cut at its place."""
        self.assertIn("which its leader", self.broken(4, lambda: self.cut(1)))

    def test_a_cut_of_damaged_entries_is_owed(self) -> None:
        """A member that could not read entries of the cut owes all that it had."""
        self.mirror.lost.add(2)
        self.assertIn("and owes -1", self.broken(20, lambda: self.cut(1)))

    def test_a_leader_gives_way_to_nobody(self) -> None:
        """It enters the term of a candidate only if it hands over."""
        rules, state = self.leader.driver.memory, self.leader.core.member
        asked = ev.RequestReceived(token=1, request=VoteRequest(
            group="default", remote_id=state.self_id, leader_id=self.follower.member_id, term=state.term + 1))
        rules.before(asked)
        rules.after(asked)
        rules.before(asked)
        state.term += 1
        self.assertIn("gives way to a candidate", self.broken(18, lambda: rules.after(asked)))

    def test_ids_that_are_taken_up_wrongly(self) -> None:
        """An id of an earlier term; one that is known, and that no majority has."""
        tick = ev.Ticked()
        self.state.group_name = GroupName("a" * 32, self.state.term - 1)
        self.assertIn("takes up", self.broken(13, lambda: self.rules.after(tick)))
        self.cluster.world.names.known = ""
        self.state.group_name = GroupName("a" * 32, self.state.term, True)
        self.assertIn("alone have taken up", self.broken(13, lambda: self.rules.after(tick)))

    def test_the_list_before_the_last(self) -> None:
        """A member believes those of the list before an entry that may be cut."""
        before = Membership(index=5, term=1, voters={**self.state.membership.voters, "n7": "n7.sim:1"})
        self.state.membership = attrs.evolve(self.state.membership, index=1 << 20)
        with mock.patch.object(type(self.follower.ledger), "memberships", (before,)):
            self.rules.after(ev.Ticked())
        with mock.patch.object(type(self.follower.ledger), "memberships", (before,)), mock.patch.object(
            type(self.state), "speakers", frozenset({"n0", "n1", "n2"})
        ):
            self.assertIn("the members were", self.broken(9, lambda: self.rules.after(ev.Ticked())))

    def asks(self, peer_id: str, request_id: int, *, is_later: bool = False) -> None:
        """A member without a leader asks a peer that refused it a vote. C{is_later}: another part asks."""
        self.state.leader_id, self.state.peers.refused_by = None, {peer_id}
        self.rules.before(ev.Ticked())
        self.rules.asks(peer_id, request_id, MetadataRequest(group="default"))
        if not is_later:
            self.state.peers.refused_by.clear()
        self.rules.after(ev.Ticked())

    def test_a_list_that_a_member_hears_of(self) -> None:
        """Who is in no committed later list takes itself for no voter, if it has asked for lists."""
        peer_id = self.leader.member_id
        reported = '{"memberships":[{"index":90,"term":1,"voters":{"n8":"n8.sim:1"},"learners":{}}]}'
        response = MetadataResponse(
            group="default", code=ResponseCode.SUCCESS, term=self.state.term, committed_index=95,
            group_id=self.state.group_name.id, is_group_known=True, configuration=reported,
        )
        heard = ev.ResponseReceived(peer_id=peer_id, request_id=7, response=response)
        self.rules.after(heard)  # (it was no answer to its question)
        self.asks(peer_id, 7, is_later=True)
        self.rules.after(heard)
        for committed_index in (80, 95):
            self.asks(peer_id, 7)
            response = attrs.evolve(response, committed_index=committed_index)
            heard = ev.ResponseReceived(peer_id=peer_id, request_id=7, response=response)
            if committed_index < 90:
                self.rules.after(heard)
        self.assertIn("heard of the list at 90", self.broken(9, lambda: self.rules.after(heard)))


class MachineFileTests(SynchronousTestCase):
    """Two machines at one entry."""

    def setUp(self) -> None:
        """What a runner keeps, and its snapshots."""
        self.disk = SimDisk(random.Random(1))
        self.rules = MachineFileRules()
        self.kept = mock.Mock(**{"encode.return_value": b"one"})
        self.snapshots: mock.Mock | None = None

    def look(self, member_id: str, *, is_new: bool = False) -> None:
        """The machine of a member has gone on."""
        runner = mock.Mock(applied_index=8, _kept=self.kept, _snapshots=self.snapshots,
                           _skips=mock.Mock(left_out=set()))
        self.rules.look(member_id, runner, self.disk, is_new=is_new)

    def test_members_that_keep_other_results(self) -> None:
        """The same entries make the same results; of others nothing is known."""
        self.look("n0")
        self.look("n1")
        self.kept.encode.return_value = b"another"
        with self.assertRaisesRegex(InvariantError, "n1 and n0 keep other results"):
            self.look("n1")
        self.rules.forget()
        self.look("n1")

    def test_a_snapshot_that_a_loss_of_power_would_take(self) -> None:
        """A snapshot with a name is on stable storage."""
        self.disk.makedirs("/m")
        self.snapshots = mock.Mock(path="/m", heads=[SnapshotHead(
            index=8, term=1, chain_crc=0, machine="m", machine_version=1)])
        file = self.disk.open("/m/snapshot-8-1", create=True)
        file.pwrite(b"abc", 0)
        with self.assertRaisesRegex(InvariantError, "not on stable storage"):
            self.look("n0")
        file.datasync()
        self.disk.sync_directory("/m")
        self.look("n1")
