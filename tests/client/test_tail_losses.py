# -*- test-case-name: tests.client.test_tail_losses -*-
"""A tail while members come and go, and where there is no PULL."""

from __future__ import annotations

from typing import Any

import attrs
from hypothesis import given, settings
from hypothesis import strategies as st
from twisted.internet.task import Clock

from dledger.client.errors import Expired
from dledger.client.tails import ABSENT_S
from protocols.wire.codes import ResponseCode
from protocols.wire.ledger.messages import GetRequest, PullRequest, PullResponse
from tests.client.fakes import FakeGroup
from tests.client.test_tail import STEPS, Reader, TailCase


class LossTests(TailCase):
    """Members come and go."""

    def test_a_dead_member_is_replaced(self) -> None:
        """The next one goes on where the lost one stopped."""
        self.group["n1"].holds = self.group["n2"].holds = self.group["n0"].holds = (
            lambda r: isinstance(r, PullRequest) and r.begin_index == 4
        )
        reader = self.read(0)
        self.assertEqual(reader.indexes, [0, 1, 2, 3])
        for member in self.group.members.values():
            member.holds = lambda r: False
            if member.held:
                member.is_up = False
                member.held.clear()
                member.lose_connections()
        self.group.run(1.0)
        self.assertEqual(reader.indexes, list(range(10)))

    def test_everybody_dies_and_returns(self) -> None:
        """A following tail outlives an outage of any length."""
        reader = self.read(8)
        for member in self.group.members.values():
            member.is_up = False
            member.lose_connections()
        self.group.run(20.0)
        self.assertIsNone(reader.failure)
        self.group.log += [b"10"]
        for member in self.group.members.values():
            member.is_up = True
        self.group.run(2.0)
        self.assertEqual(reader.indexes, [8, 9, 10])

    def test_a_tail_without_members_times_out(self) -> None:
        """One that does not follow gives up when nobody serves, and says why."""
        for member in self.group.members.values():
            member.is_up = False
        reader = self.read(0, follow=False, timeout_s=3.0)
        self.assertIsNone(reader.failure)
        self.group.run(5.0)
        self.assertIn("connection refused", str(self.assertRefused(reader, ResponseCode.NETWORK_ERROR)))

    def test_silent_member_is_left(self) -> None:
        """A member that stops answering is left after a while."""
        reader = self.read(8)
        for member_id in ("n1", "n2"):
            self.group[member_id].is_silent = True
        self.group.log += [b"10"]
        self.group.run(8.0)
        self.assertEqual(reader.indexes, [8, 9, 10])
        self.assertEqual(self.group["n1"].wires + self.group["n2"].wires, [])

    def test_cut_off_member_is_left(self) -> None:
        """A follower that knows no leader and has nothing is left for one that is in touch."""
        for member_id in ("n1", "n2"):
            self.group[member_id].committed_index = 5
            self.group[member_id].leader_id = None
        reader = self.read(4)
        self.group.run(3.0)
        self.assertEqual(reader.indexes, [4, 5, 6, 7, 8, 9])

    def test_lagging_member_does_not_end_it(self) -> None:
        """The end that was promised is reached although a member does not have it yet."""
        for member_id in ("n1", "n2"):
            self.group[member_id].committed_index = 5
        reader = self.read(0, follow=False)
        self.group.run(1.0)
        self.assertEqual(reader.indexes, list(range(10)))

    def test_a_wrong_batch_is_not_shown(self) -> None:
        """A member that sends another index than asked for is left; nothing of it is shown."""
        for member_id in ("n1", "n2"):
            self.group[member_id].pull = (
                lambda request, base: PullResponse(entries=self.group.batch(0, 2), committed_index=9, **base)
            )
        reader = self.read(4, follow=False)
        self.group.run(1.0)
        self.assertEqual(reader.indexes, [4, 5, 6, 7, 8, 9])

    def test_a_damaged_body_is_not_shown(self) -> None:
        """A body that is not what its checksum says is not shown; the member is left."""
        for member_id in ("n1", "n2"):
            self.group[member_id].pull = (
                lambda request, base: PullResponse(
                    entries=self.damaged(request.begin_index), committed_index=9, **base
                )
            )
        reader = self.read(8, follow=False)
        self.group.run(1.0)
        self.assertEqual([entry.body for entry in reader.entries], [b"8", b"9"])

    def damaged(self, index: int) -> Any:
        """A batch with a flipped bit in its body."""
        batch = self.group.batch(index, 1)
        records = bytearray(batch.records)
        records[-1] ^= 1
        return attrs.evolve(batch, records=bytes(records))

    def test_an_expired_begin_is_named(self) -> None:
        """When no member has the beginning any more, the error names the first that is left."""
        for number, member in enumerate(self.group.members.values()):
            member.begin_index = 5 + number
        reader = self.read(2, follow=False)
        self.group.run(0.5)
        error = self.assertRefused(reader, ResponseCode.INDEX_LESS_THAN_LOCAL_BEGIN)
        self.assertEqual(error.facts["first_index"], 5)
        self.assertIn("entry 2 has expired; the first remaining entry is 5", str(error))

    def test_expired_at_some(self) -> None:
        """A member that still has it serves."""
        self.group["n1"].begin_index = self.group["n0"].begin_index = 5
        self.assertEqual(self.read(2, follow=False).indexes, list(range(2, 10)))

    def test_a_member_that_is_down_may_have_it(self) -> None:
        """It is waited for; after ten seconds, or the time-out, the entry counts as expired."""
        self.group["n1"].begin_index = self.group["n2"].begin_index = 5
        down = self.group["n0"]
        down.is_up = False
        reader = self.read(2)
        self.group.run(3.0)
        self.assertIsNone(reader.failure)
        down.is_up = True
        self.group.run(2.0)
        self.assertEqual(reader.indexes, list(range(2, 10)))
        down.is_up = False
        down.lose_connections()
        for options, seconds in (({}, ABSENT_S), ({"timeout_s": 4.0}, 4.0)):
            reader = self.read(2, **options)
            self.group.run(seconds - 1.0)
            self.assertIsNone(reader.failure)
            self.group.run(3.0)
            error = self.assertRefused(reader, ResponseCode.INDEX_LESS_THAN_LOCAL_BEGIN)
            self.assertEqual(error.facts["first_index"], 5)
            self.assertIn(f"(no answer of n0 in {seconds:g} s)", str(error))

    def test_an_entry_expires_where_it_is_read(self) -> None:
        """A member that served has dropped the next entry: another one that has it goes on."""
        tail = self.client.tail(0, follow=True)
        read: list[int] = []
        for served in range(2):
            for who, member in self.group.members.items():
                if self.pulls(who):
                    member.begin_index = 9
            self.assertEqual([bool(self.pulls(who)) for who in self.group.members].count(True), served)
            for _ in range(2):  # the second one is under way when the first one is shown
                batch = tail.next_batch()
                self.group.run(1.0)
                read.extend(entry.index for entry in self.successResultOf(batch))
        self.assertEqual(read, list(range(8)))
        for member in self.group.members.values():
            member.begin_index = 12
        self.group.log += [b"a", b"b", b"c"]
        batch = tail.next_batch()  # 8 and 9 are under way
        self.group.run(1.0)
        self.assertEqual([entry.index for entry in self.successResultOf(batch)], [8, 9])
        late = tail.next_batch()
        self.group.run(1.0)
        self.assertEqual(self.failureResultOf(late, Expired).value.facts["first_index"], 12)

    @settings(derandomize=True, max_examples=60, deadline=None)
    @given(steps=st.lists(st.sampled_from(STEPS), max_size=25))
    def test_no_gap_no_repeat(self, steps: list[str]) -> None:
        """Whatever happens: what was shown is the beginning of the log; at last, all of it."""
        clock = Clock()
        group = FakeGroup(clock)
        client = group.client()
        reader = Reader(client.tail(0, follow=True))
        for number, step in enumerate(steps):
            member = group[f"n{number % 3}"]
            if step == "append":
                group.log += [b"x", b"y", b"z"]
            elif step == "kill":
                member.is_up = False
                member.lose_connections()
            elif step == "raise":
                member.is_up = True
            elif step == "lose":
                member.lose_connections()
            elif step == "lag":
                member.committed_index = max(-1, len(group.log) - 2)
            elif step == "silent":
                member.is_silent = not member.is_silent
            group.run(0.3)
            self.assertEqual(reader.indexes, list(range(len(reader.indexes))))
        for member in group.members.values():
            member.is_up, member.is_silent, member.committed_index = True, False, None
        group.run(6.0)
        self.assertEqual(reader.indexes, list(range(len(group.log))))
        client.close()
        group.settle()
        self.assertEqual(clock.getDelayedCalls(), [])


class RemotingTests(TailCase):
    """Where there is no PULL."""

    def gets(self, member_id: str) -> int:
        """How many GETs a member was sent."""
        return sum(isinstance(r, GetRequest) for r in self.group[member_id].received)

    def test_our_members_over_remoting(self) -> None:
        """Entries are read one by one, committed ones only, from any member."""
        self.client.close()
        self.client = self.group.client(wire="remoting")
        self.assertEqual(self.read(0, follow=False).indexes, list(range(10)))
        received = [request for member in self.group.members.values() for request in member.received]
        kinds = {request.consistency.value for request in received if isinstance(request, GetRequest)}
        self.assertEqual(kinds, {"committed"})

    def test_cut_off_member_is_left_over_remoting(self) -> None:
        """A member that was removed, or is cut off, has no leader; it is left for one that has."""
        self.client.close()
        self.client = self.group.client(wire="remoting")
        for member_id in ("n1", "n2"):
            self.group[member_id].committed_index = 5
            self.group[member_id].leader_id = None
        reader = self.read(4)
        self.group.run(5.0)
        self.assertEqual(reader.indexes, [4, 5, 6, 7, 8, 9])

    def test_a_java_leader_is_read(self) -> None:
        """From the leader, up to the end that it shows."""
        for member in self.group.members.values():
            member.wire_version = 0
        self.assertEqual(self.read(3, follow=False).indexes, list(range(3, 10)))
        self.assertEqual((self.gets("n1"), self.gets("n2")), (0, 0))

    def test_a_java_leader_is_followed(self) -> None:
        """The end is looked at again and again."""
        for member in self.group.members.values():
            member.wire_version = 0
        reader = self.read(9)
        self.group.log += [b"10", b"11"]
        self.group.run(0.5)
        self.assertEqual(reader.indexes, [9, 10, 11])

    def test_java_leader_changes(self) -> None:
        """The next leader is found."""
        for member in self.group.members.values():
            member.wire_version = 0
        reader = self.read(9)
        self.group["n0"].is_up = False
        self.group["n0"].lose_connections()
        self.group.lead("n2")
        self.group.log += [b"10"]
        self.group.run(2.0)
        self.assertEqual(reader.indexes, [9, 10])

    def test_java_does_not_notify_its_end(self) -> None:
        """The last few cannot be found there."""
        for member in self.group.members.values():
            member.wire_version = 0
        self.assertRefused(self.read(-3, follow=False), ResponseCode.UNSUPPORTED)

    def test_no_pull_at_a_native_member(self) -> None:
        """A member that answers PULL with UNSUPPORTED is asked with GET."""
        for member in self.group.members.values():
            member.pull = (
                lambda request, base: PullResponse(code=ResponseCode.UNSUPPORTED, **base)
            )
        self.assertEqual(self.read(0, follow=False).indexes, list(range(10)))

    def test_expired_entries_are_not_there(self) -> None:
        """GET does not say what is left; METADATA of our members does, and Java's does not."""
        self.client.close()
        self.client = self.group.client(wire="remoting")
        for wire_version, first_index in ((1, 5), (0, 1)):
            for member in self.group.members.values():
                member.begin_index = 5
                member.wire_version = wire_version
            reader = self.read(0, follow=False)
            self.group.run(1.0)
            error = self.assertRefused(reader, ResponseCode.INDEX_LESS_THAN_LOCAL_BEGIN)
            self.assertEqual(error.facts["first_index"], first_index)
