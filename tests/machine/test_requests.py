# -*- test-case-name: tests.machine.test_requests -*-
"""SUBMIT and QUERY at a member with a machine."""

from __future__ import annotations

from typing import Any

import attrs
from twisted.internet.defer import Deferred
from twisted.trial.unittest import SynchronousTestCase

from dledger.core.status import MemberStatus
from dledger.machine.requests import MachineHandler
from dledger.node.reporting.health import health_problem
from dledger.node.requests.machine_requests import MachineSurroundings
from dledger.values.errors import DLedgerError
from dledger.values.ledger.group_state import GroupFold
from protocols.wire.codes import ResponseCode
from protocols.wire.ledger.codes import WIRE_FLAG_MACHINE
from protocols.wire.ledger.machines import (
    QueryRequest,
    QueryResponse,
    ReportedMachine,
    SnapshotRequest,
    SubmitRequest,
    SubmitResponse,
    encode_reported_machine,
)
from protocols.wire.ledger.messages import MetadataRequest, MetadataResponse
from tests.machine.machines import MovedJournal
from tests.machine.rig import HostedRig


class HandlerCase(SynchronousTestCase):
    """A member with a machine, and a client."""

    def setUp(self) -> None:
        self.rig = HostedRig(max_wait_ack_time_ms=1000).run()
        self.client = self.rig.client()

    def ask(self, request: SubmitRequest | QueryRequest) -> Any:
        """The answer of this turn."""
        self.client.send(request)
        self.rig.pass_turns()
        (answer,) = self.client.answers()
        return answer

    def submit(self, command: bytes | None) -> SubmitResponse:
        """One command."""
        answer = self.ask(SubmitRequest(**self.rig.base(), command=command))
        assert isinstance(answer, SubmitResponse)
        return answer

    def query(self, query: bytes | None = b",", **fields: int) -> QueryResponse:
        """One question."""
        answer = self.ask(QueryRequest(**self.rig.base(), query=query, **fields))
        assert isinstance(answer, QueryResponse)
        return answer


class SubmitTests(HandlerCase):
    """A command is answered with its own result."""

    def test_each_command_gets_its_result(self) -> None:
        """Each of several commands of one turn, and appends of others between them."""
        for number in range(3):
            self.client.send(SubmitRequest(**self.rig.base(), command=b"%d" % number))
            self.rig.node.append(b"other")
        self.rig.pass_turns()
        answers = self.client.answers()
        self.assertEqual([answer.code for answer in answers], [ResponseCode.SUCCESS] * 3)
        for number, answer in enumerate(answers):
            self.assertEqual(answer.result, b"%d:%d" % (answer.index, number))
            self.assertEqual(self.successResultOf(self._read(answer.index)), b"%d" % number)

    def _read(self, index: int) -> Deferred[bytes]:
        found = self.rig.node.read(index)
        self.rig.pass_turns()
        return found

    def test_a_refused_command_is_not_appended(self) -> None:
        """Before anything is appended, with the reason."""
        end = self.rig.node.committed_index
        for command in (None, b""):
            answer = self.submit(command)
            self.assertIs(answer.code, ResponseCode.UNEXPECTED_ARGUMENT)
            self.assertEqual(answer.reason, "a command has at least one byte")
        self.assertIs(self.submit(bytes(1 << 20)).code, ResponseCode.UNEXPECTED_ARGUMENT)
        self.assertEqual(self.rig.node.committed_index, end)
        self.rig.fail_machine()
        end = self.rig.node.committed_index
        answer = self.submit(b"x")
        self.assertEqual((answer.code, answer.index), (ResponseCode.MACHINE_STOPPED, -1))
        self.assertRegex(answer.reason, "has failed: .*a test")
        self.assertEqual(self.rig.node.committed_index, end)

    def test_a_late_result_is_unknown(self) -> None:
        """A machine that stops at the command, or is late: it is in the log, nobody knows the result."""
        self.rig.runner.turn = lambda: None  # type: ignore[method-assign]
        self.client.send(SubmitRequest(**self.rig.base(), command=b"late"))
        self.rig.pass_turns()
        self.assertEqual(self.client.answers(), [])
        for _ in range(70):
            self.rig.clock.advance(0.02)
        (answer,) = self.client.answers()
        self.assertEqual((answer.code, answer.index), (ResponseCode.WAIT_QUORUM_ACK_TIMEOUT, 1))
        self.assertIn("is not applied yet", answer.reason)

    def test_metadata_reports_the_machine(self) -> None:
        """METADATA says that a machine runs here."""
        reported = self.rig.client().ask(MetadataRequest(**self.rig.base()))
        self.assertEqual(reported.wire_version & WIRE_FLAG_MACHINE, WIRE_FLAG_MACHINE)


class OnceTests(HandlerCase):
    """A command of a producer is applied once, and each answer has its first result."""

    def once(self, command: bytes, sequence: int, **fields: Any) -> SubmitResponse:
        """One command of a producer."""
        answer = self.ask(SubmitRequest(
            **self.rig.base(), command=command, producer="p", sequence=sequence, **fields
        ))
        assert isinstance(answer, SubmitResponse)
        return answer

    def test_a_repeated_command_is_applied_once(self) -> None:
        """Also after others; another command with its number is refused."""
        answers = [self.once(b"a", 0), self.once(b"b", 1), self.once(b"a", 0), self.once(b"b", 1)]
        self.assertEqual([answer.code for answer in answers], [ResponseCode.SUCCESS] * 4)
        found = [(answer.index, answer.result) for answer in answers]
        self.assertEqual(found, [(2, b"2:a"), (3, b"3:b"), (2, b"2:a"), (3, b"3:b")])
        self.assertIs(self.once(b"other", 0).code, ResponseCode.SEQUENCE_TAKEN)
        self.assertEqual(self.rig.journal.bodies, [b"a", b"b"])

    def test_a_forgotten_result_is_not_made_again(self) -> None:
        """Far back: it is applied, and its result is not kept; it is not applied again."""
        for sequence in range(20):
            self.once(b"x", sequence)
        self.rig.runner._waits._recent.clear()
        answer = self.once(b"x", 1)
        self.assertIs(answer.code, ResponseCode.SEQUENCE_FORGOTTEN)
        self.assertIn("its result is no longer kept", answer.reason)
        self.assertEqual(len(self.rig.journal.bodies), 20)

    def test_a_gap_in_sequences_is_refused(self) -> None:
        """A gap, a stranger that goes on, a wrong name."""
        self.assertIs(self.once(b"x", 5).code, ResponseCode.UNKNOWN_PRODUCER)
        self.once(b"x", 0)
        answer = self.once(b"x", 2)
        self.assertEqual((answer.code, answer.last_sequence), (ResponseCode.SEQUENCE_GAP, 0))
        answer = self.once(b"x", -1)
        self.assertEqual((answer.code, answer.last_sequence), (ResponseCode.UNEXPECTED_ARGUMENT, -1))
        self.assertEqual(self.rig.journal.bodies, [b"x"])

    def test_a_doubtful_command_is_not_appended(self) -> None:
        """What may be in the log is not appended by a log that may have forgotten it."""
        self.patch(GroupFold, "may_have_forgotten", lambda fold, producer: True)
        answer = self.once(b"x", 0, is_again=True)
        self.assertIs(answer.code, ResponseCode.SEQUENCE_FORGOTTEN)
        self.assertEqual(self.rig.journal.bodies, [])
        self.assertIs(self.once(b"x", 0).code, ResponseCode.SUCCESS)

    def test_a_kept_result_is_found(self) -> None:
        """The state has the result of an earlier attempt, when nobody else remembers it."""
        self.once(b"x", 0)
        self.rig.runner._waits._recent.clear()
        answer = self.once(b"x", 0)
        self.assertEqual((answer.code, answer.result), (ResponseCode.SUCCESS, b"2:x"))

    def test_a_burst_gets_all_its_results(self) -> None:
        """Of many commands that one proposal or one commit would take, each has its result."""
        rig = HostedRig(max_wait_ack_time_ms=1000).run()
        client = rig.client()
        client.send(*[SubmitRequest(**rig.base(), command=b"%d" % number) for number in range(200)])
        rig.pass_turns(60)
        self.assertEqual([one.code for one in client.answers()], [ResponseCode.SUCCESS] * 200)

    def test_commands_without_room_are_refused(self) -> None:
        """Those for whose results there is no room are refused before they are in the log."""
        rig = HostedRig(max_pending_requests_num=3).run()
        client = rig.client()
        for _ in range(4):  # those that have ended leave as much room as they took
            self.assertIs(client.ask(SubmitRequest(**rig.base(), command=b"x")).code, ResponseCode.SUCCESS)
        rig.runner.turn = lambda: None  # type: ignore[method-assign]
        for number in range(5):
            client.send(SubmitRequest(**rig.base(), command=b"%d" % number))
            rig.pass_turns()
        self.assertEqual([one.code for one in client.answers()], [ResponseCode.LEADER_PENDING_FULL] * 2)
        self.assertEqual(rig.node.committed_index, 7)


class WordTests(SynchronousTestCase):
    """Whether a member may lead for the machine, and answers queries, when it looks at it."""

    def setUp(self) -> None:
        self.rig = HostedRig(peers="n0-127.0.0.1:1;n1-127.0.0.1:2", factory=MovedJournal)
        self.word = self.rig.node.members.peers.machine
        self.reported = ReportedMachine(name="journal", version=2, state="running")
        self.patch(self.rig.node.handlers.snapshots, "reported", lambda peer_id: MetadataResponse(
            machine=encode_reported_machine(self.reported)
        ))
        self.rig.node.start()
        self.rig.runner.start()

    def look(self) -> tuple[bool, bool]:
        """It has looked."""
        self.rig.clock.advance(0.3)
        return self.word.runs, self.word.is_unfit

    def test_the_machine_judges_who_may_lead(self) -> None:
        """It runs; another member has a higher version; it has failed."""
        self.assertEqual(self.look(), (True, False))
        self.reported = attrs.evolve(self.reported, version=3)
        self.assertEqual(self.look(), (True, True))
        status = self.rig.node.status().machine
        assert status is not None
        self.assertIn("n1 runs the version 3 of 'journal'", status.differs)
        answer = self.rig.client().ask(QueryRequest(**self.rig.base(), query=b","))
        self.assertEqual((answer.code, answer.reason), (
            ResponseCode.LEADER_NOT_READY, "this member runs the version 2 of 'journal', n1 the version 3"
        ))
        self.reported = attrs.evolve(self.reported, version=1)
        self.assertEqual(self.look(), (True, False))
        self.reported = attrs.evolve(self.reported, version=2, digests={0: "01"})
        self.rig.runner.digests = {0: "02"}
        self.assertEqual(self.look(), (True, True))
        problem = health_problem(self.rig.node.status())
        assert problem is not None
        self.assertIn("in doubt: after the entry 0 the states differ: n0 against n1", problem)
        refused = self.assertRaises(DLedgerError, self.rig.runner.piece_for, SnapshotRequest(), 100)
        self.assertIn("the states differ", str(refused))
        self.rig.runner.digests = {0: "01"}
        self.assertEqual(self.look(), (True, False))
        self.rig.runner._fail("a test")
        self.assertEqual(self.look(), (False, True))


class QueryTests(HandlerCase):
    """At the leader: after every entry that was committed when it came."""

    def test_a_query_waits_for_the_machine(self) -> None:
        """The machine is behind; the answer waits for it."""
        real = self.rig.runner.turn
        self.rig.runner.turn = lambda: None  # type: ignore[method-assign]
        self.rig.append(b"a", b"b")
        self.client.send(QueryRequest(**self.rig.base(), query=b","))
        self.rig.pass_turns()
        self.assertEqual(self.client.answers(), [])
        real()
        self.rig.pass_turns()
        (answer,) = self.client.answers()
        self.assertEqual((answer.code, answer.result), (ResponseCode.SUCCESS, b"a,b"))
        self.assertEqual((answer.applied_index, answer.age_ms), (2, 0))

    def test_a_late_machine_times_out(self) -> None:
        """A machine that does not come so far in time."""
        self.rig.runner.turn = lambda: None  # type: ignore[method-assign]
        self.rig.append(b"a")
        self.client.send(QueryRequest(**self.rig.base(), query=b","))
        for _ in range(70):
            self.rig.clock.advance(0.02)
        (answer,) = self.client.answers()
        self.assertIs(answer.code, ResponseCode.TIMEOUT)

    def test_a_refused_query_has_a_reason(self) -> None:
        """An exception is an answer, a long result and no question, too."""
        for query, code, says in (
            (b"raise", ResponseCode.INTERNAL_ERROR, "query() raised KeyError: 'no such thing'"),
            (b"long", ResponseCode.INTERNAL_ERROR, "query() gave a result of 1048577 bytes"),
            (None, ResponseCode.UNEXPECTED_ARGUMENT, "query is missing"),
        ):
            answer = self.query(query)
            self.assertIs(answer.code, code)
            self.assertIn(says, answer.reason)
        self.assertIs(self.query().code, ResponseCode.SUCCESS)

    def test_an_unread_connection_is_refused(self) -> None:
        """A connection that does not read is refused, and its commands are not appended."""
        self.rig.append(bytes(1000))
        account, end = self.client.connection.account, self.rig.node.committed_index
        self.assertIs(self.query(b"").code, ResponseCode.SUCCESS)
        self.patch(type(account), "may_answer", False)
        self.assertIs(self.query(b"").code, ResponseCode.LEADER_PENDING_FULL)
        self.assertIs(self.submit(b"x").code, ResponseCode.LEADER_PENDING_FULL)
        self.assertEqual(self.rig.node.committed_index, end)

    def test_a_machine_taking_up_is_not_ready(self) -> None:
        """While it takes up a snapshot, it is asked again later."""
        self.rig.runner.state = "starting"
        answer = self.query()
        self.assertIs(answer.code, ResponseCode.LEADER_NOT_READY)


@attrs.define
class _Follower:
    """What a handler needs of a member."""

    picture: MemberStatus
    now_ms: int = 10_000

    def handler(self, rig: HostedRig) -> MachineHandler:
        """A handler of a follower, with the machine of another member."""
        return MachineHandler(rig.config, rig.runner, MachineSurroundings(
            append=lambda *_: Deferred(), append_order=lambda _: Deferred(), read_index=self.read_index,
            status=lambda: self.picture, group=lambda: None, now_ms=lambda: self.now_ms,
            others=rig.node.handlers.snapshots, judged=lambda **_: None, note=lambda *_: None,
        ))

    def read_index(self) -> Deferred[int]:
        """Only a leader has one."""
        waiter: Deferred[int] = Deferred()
        waiter.errback(DLedgerError(ResponseCode.NOT_LEADER))
        return waiter


class AgeTests(HandlerCase):
    """At any member, with a bound on the age."""

    def setUp(self) -> None:
        super().setUp()
        self.rig.append(b"a")
        picture = attrs.evolve(
            self.rig.node.status().member, role="follower", leader_committed_index=1,
            leader_committed_ms=9_800,
        )
        self.follower = _Follower(picture)

    def answer(self, max_age_ms: int) -> QueryResponse:
        """Of the follower."""
        handler = self.follower.handler(self.rig)
        request = QueryRequest(**self.rig.base(), query=b",", max_age_ms=max_age_ms)
        answer = self.successResultOf(handler.answer(request, lambda: self.client.connection.may_answer))
        assert isinstance(answer, QueryResponse)
        return answer

    def test_the_age_of_a_state_is_bounded(self) -> None:
        """As old as the last push, and a leader's patience more."""
        answer = self.answer(1200)
        self.assertEqual((answer.code, answer.age_ms, answer.result), (ResponseCode.SUCCESS, 1200, b"a"))
        answer = self.answer(1199)
        self.assertIs(answer.code, ResponseCode.FALL_BEHIND_TOO_MUCH)
        self.assertIn("may be 1200 ms old; the query allows 1199 ms", answer.reason)

    def test_a_connection_is_judged_before_the_query(self) -> None:
        """A connection that got other answers while the query waited is refused before the query is made."""
        self.patch(type(self.client.connection.account), "may_answer", False)
        self.assertIs(self.answer(1200).code, ResponseCode.LEADER_PENDING_FULL)

    def test_an_unknown_age_is_refused(self) -> None:
        """A member that learns nothing, or lacks entries that it knows of."""
        for facts in ({"leader_committed_ms": -1}, {"leader_committed_index": 2}):
            self.follower.picture = attrs.evolve(self.follower.picture, **facts)
            self.assertIs(self.answer(1 << 30).code, ResponseCode.FALL_BEHIND_TOO_MUCH)

    def test_a_query_without_a_bound_needs_the_leader(self) -> None:
        """Without a bound only the leader answers."""
        self.assertIs(self.answer(-1).code, ResponseCode.NOT_LEADER)

    def test_a_leader_has_no_age(self) -> None:
        """A leader proves that it leads: its state is not old at all."""
        answer = self.query(max_age_ms=0)
        self.assertEqual((answer.code, answer.age_ms), (ResponseCode.SUCCESS, 0))
