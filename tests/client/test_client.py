# -*- test-case-name: tests.client.test_client -*-
"""The client's calls, one by one."""

from __future__ import annotations

from twisted.internet.defer import CancelledError, Deferred

from dledger.client.errors import AppendFailed, NotLeader, ProducerForgotten
from dledger.client.values import LastSequence
from dledger.values.errors import DLedgerError
from protocols.wire.codes import ResponseCode
from protocols.wire.ledger.codes import Consistency
from protocols.wire.ledger.messages import (
    AppendRequest,
    GetRequest,
    GetResponse,
    LeadershipTransferRequest,
    LeadershipTransferResponse,
)
from tests.client.test_appender import GroupCase


class AppendTests(GroupCase):
    """Deferreds around L{submit}."""

    def test_an_append_fires_with_its_result(self) -> None:
        """Fires with the one result."""
        waiter = self.client.append(b"a")
        self.group.settle()
        self.assertEqual(self.successResultOf(waiter).index, 0)

    def test_many_appends_fire_with_runs(self) -> None:
        """Fires with the runs."""
        waiter = self.client.append_many([b"a", b"b"])
        self.group.settle()
        (run,) = self.successResultOf(waiter)
        self.assertEqual((run.index, run.count), (0, 2))

    def test_failures_are_the_error_itself(self) -> None:
        """Fail with the error itself."""
        self.group["n0"].refusals.extend([ResponseCode.DISK_FULL] * 2)
        one = self.client.append(b"a")
        self.group.settle()
        many = self.client.append_many([b"a"])
        self.group.settle()
        self.failureResultOf(one, AppendFailed)
        self.failureResultOf(many, AppendFailed)

    def test_cancelling_stops_the_wait(self) -> None:
        """Stops the wait, not the append."""
        waiter = self.client.append(b"a")
        waiter.cancel()
        self.group.settle()
        self.failureResultOf(waiter, CancelledError)
        self.assertEqual(self.group.log, [b"a"])

    def test_times_are_checked(self) -> None:
        """No time is not a time."""
        self.assertRaises(ValueError, self.group.client, timeout_s=0)
        self.assertRaises(ValueError, self.group.client, answer_timeout_s=-1)


class GetTests(GroupCase):
    """Reading one entry."""

    def setUp(self) -> None:
        super().setUp()
        self.group.log = [b"0", b"1", b"2"]

    def gets(self, member_id: str) -> int:
        """GETs that a member was sent."""
        return sum(isinstance(r, GetRequest) for r in self.group[member_id].received)

    def test_a_linearizable_get_asks_the_leader(self) -> None:
        """At the leader."""
        entry = self.client.get(1)
        self.group.settle()
        self.assertEqual(self.successResultOf(entry).body, b"1")
        self.assertEqual(self.gets("n0"), 1)

    def test_a_committed_get_asks_any_member(self) -> None:
        """Anywhere."""
        self.group["n0"].is_up = False
        entry = self.client.get(1, Consistency.COMMITTED)
        self.group.settle()
        self.assertEqual(self.successResultOf(entry).body, b"1")

    def test_an_unknown_consistency_is_refused(self) -> None:
        """Refused by name."""
        self.assertRaises(ValueError, self.client.get, 1, "perhaps")

    def test_out_of_range(self) -> None:
        """Reported at once, with the index."""
        entry = self.client.get(3)
        self.group.settle()
        error = self.failureResultOf(entry, DLedgerError).value
        self.assertIs(error.code, ResponseCode.INDEX_OUT_OF_RANGE)
        self.assertEqual(error.facts["index"], 3)

    def test_no_entries_in_the_answer(self) -> None:
        """Java's memory store says SUCCESS and nothing."""
        self.group["n0"].get = lambda request, base: GetResponse(**base)
        entry = self.client.get(1)
        self.group.settle()
        self.assertIs(self.failureResultOf(entry, DLedgerError).value.code, ResponseCode.INDEX_OUT_OF_RANGE)

    def test_a_read_follows_the_leader(self) -> None:
        """A read is repeated at the next leader."""
        first = self.client.get(0)
        self.group.settle()
        self.successResultOf(first)
        self.group.lead("n2")
        entry = self.client.get(1)
        self.group.run(0.5)
        self.successResultOf(entry)
        self.assertEqual(self.gets("n2"), 1)

    def test_a_java_follower_sends_to_the_leader(self) -> None:
        """A committed read that meets a Java follower goes to the leader."""
        for member in self.group.members.values():
            member.wire_version = 0
        self.group["n0"].is_up = False
        entry = self.client.get(1, "committed")
        self.group.run(0.2)
        self.group["n0"].is_up = True
        self.group.run(2.0)
        self.successResultOf(entry)

    def test_a_lost_read_is_repeated(self) -> None:
        """A read is repeated whatever happened to it."""
        self.group["n0"].holds = lambda r: isinstance(r, GetRequest)
        entry = self.client.get(1)
        self.group.settle()
        self.group["n0"].holds = lambda r: False
        self.group["n0"].lose_connections()
        self.group.run(0.5)
        self.successResultOf(entry)

    def test_a_wrong_answer_is_repeated(self) -> None:
        """More than one entry is no answer; the connection is given up and the read repeated."""
        plain = self.group["n0"].get
        answers = [GetResponse(entries=self.group.batch(0, 2))]
        self.group["n0"].get = (
            lambda request, base: answers.pop() if answers else plain(request, base)
        )
        entry = self.client.get(1)
        self.group.run(0.5)
        self.assertEqual(self.successResultOf(entry).body, b"1")

    def test_a_read_ends_at_its_deadline(self) -> None:
        """Without a leader, the reason is reported in the end."""
        for member in self.group.members.values():
            member.is_up = False
        entry = self.client.get(1)
        self.group.run(9.0)
        self.assertNoResult(entry)
        self.group.run(1.5)
        error = self.failureResultOf(entry, DLedgerError).value
        self.assertIs(error.code, ResponseCode.METADATA_ERROR)
        self.assertIn("n2: connection refused", str(error))

    def test_a_silent_leader_is_left(self) -> None:
        """A leader that does not answer is left, and its connection with it."""
        self.group["n0"].holds = lambda r: isinstance(r, GetRequest)
        entry = self.client.get(1)
        self.group.run(3.5)
        self.group.lead("n1")
        self.group.run(1.0)
        self.assertEqual(self.successResultOf(entry).body, b"1")


class SequenceTests(GroupCase):
    """The last sequence of a producer."""

    def asked(self, producer: str) -> Deferred[LastSequence | None]:
        """Asked, and as much answered as is answered soon."""
        waiter = self.client.last_sequence(producer)
        for _ in range(20):
            self.group.settle()
            self.group.clock.advance(0.05)
        self.group.settle()
        return waiter

    def test_last(self) -> None:
        """Of the leader, also of the next one; None if there was never one."""
        self.group.sequences["p"] = ResponseCode.SUCCESS, 99, 1234
        self.assertEqual(self.successResultOf(self.asked("p")), LastSequence(99, 1234))
        self.assertIsNone(self.successResultOf(self.asked("q")))
        self.group.lead("n1")
        self.assertEqual(self.successResultOf(self.asked("p")), LastSequence(99, 1234))

    def test_refusals(self) -> None:
        """One that may be forgotten, one of another account, a name that is none, a Java leader."""
        for code, kind in ((ResponseCode.PRODUCER_FORGOTTEN, ProducerForgotten),
                           (ResponseCode.FORBIDDEN, DLedgerError)):
            self.group.sequences["p"] = code, -1, -1
            error = self.failureResultOf(self.asked("p"), kind).value
            self.assertIs(error.code, code)
        for name in ("", "x" * 65):
            error = self.failureResultOf(self.client.last_sequence(name), DLedgerError).value
            self.assertIs(error.code, ResponseCode.UNEXPECTED_ARGUMENT)
        self.assertRaises(TypeError, self.client.last_sequence, 7)
        for member in self.group.members.values():
            member.wire_version = 0
            member.lose_connections()
        error = self.failureResultOf(self.asked("p"), DLedgerError).value
        self.assertIs(error.code, ResponseCode.UNSUPPORTED)


class MetadataTests(GroupCase):
    """Who they are."""

    def test_every_member_reports_its_status(self) -> None:
        """Everybody."""
        status = self.client.status()
        self.group.settle()
        roles = [info.role for info in self.successResultOf(status)]
        self.assertEqual(roles, ["leader", "follower", "follower"])

    def test_the_leader_reports_metadata(self) -> None:
        """The leader."""
        metadata = self.client.metadata()
        self.group.settle()
        self.assertEqual(self.successResultOf(metadata).member_id, "n0")

    def test_metadata_of_a_new_leader(self) -> None:
        """A member that does not lead any more is not asked twice."""
        self.client.metadata()
        self.group.settle()
        self.group.lead("n1")
        metadata = self.client.metadata()
        self.group.run(0.5)
        self.assertEqual(self.successResultOf(metadata).member_id, "n1")

    def test_metadata_fails_without_a_leader(self) -> None:
        """Fails at the deadline."""
        for member in self.group.members.values():
            member.leader_id = None
        metadata = self.client.metadata()
        self.group.run(11.0)
        self.failureResultOf(metadata, DLedgerError)


class TransferTests(GroupCase):
    """Handing leadership over."""

    def requests(self) -> list[LeadershipTransferRequest]:
        """The requests that the leader got."""
        return [r for r in self.group["n0"].received if isinstance(r, LeadershipTransferRequest)]

    def test_a_transfer_asks_the_leader(self) -> None:
        """The leader is asked to whom, in its term."""
        self.group["n0"].term = 4
        moved = self.client.transfer("n2")
        self.group.settle()
        self.assertEqual(self.successResultOf(moved), 5)
        (request,) = self.requests()
        self.assertEqual(
            (request.transfer_id, request.transferee_id, request.term, request.remote_id, request.leader_id),
            ("n0", "n2", 4, "n0", "n0"),
        )

    def test_a_leader_need_not_take_over(self) -> None:
        """Nothing to do."""
        moved = self.client.transfer("n0")
        self.group.settle()
        self.assertEqual(self.successResultOf(moved), 1)
        self.assertEqual(self.requests(), [])

    def test_a_member_that_others_name(self) -> None:
        """The client learns of members that it was not given, and asks nobody about those that it knows."""
        self.client.close()
        self.client = self.group.client(peers={"n0": self.group.peers["n0"]})
        moved = self.client.transfer("n2")
        self.group.settle()
        self.assertEqual(self.successResultOf(moved), 2)

    def test_not_a_member(self) -> None:
        """Reported with the members there are."""
        moved = self.client.transfer("n7")
        self.group.settle()
        error = self.failureResultOf(moved, DLedgerError).value
        self.assertIs(error.code, ResponseCode.UNKNOWN_MEMBER)
        self.assertIn("n0, n1, n2", str(error))

    def test_a_refused_transfer_has_a_reason(self) -> None:
        """The leader's reason comes back."""
        self.group["n0"].answer_transfer = LeadershipTransferResponse(code=ResponseCode.FALL_BEHIND_TOO_MUCH)
        moved = self.client.transfer("n2")
        self.group.settle()
        error = self.failureResultOf(moved, DLedgerError).value
        self.assertIs(error.code, ResponseCode.FALL_BEHIND_TOO_MUCH)

    def test_a_transfer_waits_for_another(self) -> None:
        """A leader that took over a moment ago refuses it; the client asks until its time is over."""
        leader = self.group["n0"]
        leader.answer_transfer = LeadershipTransferResponse(code=ResponseCode.LEADER_TRANSFERRING)
        moved = self.client.transfer("n2")
        self.group.run(3.0)
        self.assertNoResult(moved)
        self.assertLess(len(self.requests()), 40)
        leader.answer_transfer = None
        self.group.run(3.0)
        self.assertEqual(self.successResultOf(moved), 2)
        leader.answer_transfer = LeadershipTransferResponse(code=ResponseCode.LEADER_TRANSFERRING)
        moved = self.client.transfer("n2")
        self.group.run(60.0)
        self.assertIn("ask again later", str(self.failureResultOf(moved, NotLeader).value))

    def test_a_java_leader_needs_its_term(self) -> None:
        """A Java leader's term must be given."""
        for member in self.group.members.values():
            member.wire_version = 0
        moved = self.client.transfer("n2")
        self.group.settle()
        self.assertIn("name the term", str(self.failureResultOf(moved, DLedgerError).value))
        moved = self.client.transfer("n2", term=6)
        self.group.settle()
        self.assertEqual(self.successResultOf(moved), 7)

    def test_a_lost_transfer_is_not_repeated(self) -> None:
        """Not repeated: whether it happened is not known."""
        self.group["n0"].holds = lambda r: isinstance(r, LeadershipTransferRequest)
        moved = self.client.transfer("n2")
        self.group.settle()
        self.group["n0"].lose_connections()
        self.group.run(1.0)
        self.assertIs(self.failureResultOf(moved, DLedgerError).value.code, ResponseCode.NETWORK_ERROR)
        self.assertEqual(len(self.requests()), 1)


class ClosingTests(GroupCase):
    """The end."""

    def test_closing_twice_does_nothing(self) -> None:
        """The second time nothing happens."""
        self.client.append(b"a").addErrback(lambda _: None)
        self.client.close()
        self.client.close()
        self.group.settle()
        self.assertEqual([r for r in self.group["n0"].received if isinstance(r, AppendRequest)], [])

    def test_waiting_reads_end(self) -> None:
        """A read that is being repeated ends with what went wrong last."""
        for member in self.group.members.values():
            member.is_up = False
        entry = self.client.get(0)
        self.group.run(0.5)
        self.client.close()
        self.group.run(2.0)
        self.failureResultOf(entry, DLedgerError)
