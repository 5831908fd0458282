# -*- test-case-name: tests.client.test_machines -*-
"""Commands and queries to a state machine, from the client's side."""

from __future__ import annotations

from twisted.internet.defer import Deferred
from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from dledger.client import commands
from dledger.client.errors import AppendError, AppendFailed, CommandRefused, Timeout, UnknownOutcome
from dledger.machine.kept_results import RESULTS_MAX
from dledger.values.errors import DLedgerError
from protocols.wire.codes import ResponseCode
from protocols.wire.ledger.codes import WIRE_FLAG_MACHINE
from protocols.wire.ledger.machines import QueryRequest, SubmitRequest
from protocols.wire.ledger.producers import RUNS_MAX
from tests.client.fakes import FakeGroup


class MachineClientCase(SynchronousTestCase):
    """Three members with a machine, and a client."""

    def setUp(self) -> None:
        self.clock = Clock()
        self.group = FakeGroup(self.clock)
        self.group.log = [b"0"]
        for member_id in ("n0", "n1", "n2"):
            self.group[member_id].wire_version = 1 | WIRE_FLAG_MACHINE
        self.client = self.group.client()

    def tearDown(self) -> None:
        self.client.close()
        self.group.settle()

    def settled(self, waiter: Deferred[bytes], seconds: float = 0.0) -> Deferred[bytes]:
        """Everything that can happen, has."""
        self.group.settle()
        for _ in range(int(seconds * 10)):
            self.clock.advance(0.1)
            self.group.settle()
        return waiter


class SubmitTests(MachineClientCase):
    """A command has a result, is certainly not in the log, or is unknown."""

    def submit(self, command: bytes = b"x", seconds: float = 0.0) -> Deferred[bytes]:
        """Called, and settled."""
        return self.settled(self.client.submit_command(command), seconds)

    def failed(self, waiter: Deferred[bytes], kind: type[AppendError], code: ResponseCode) -> AppendError:
        """How it failed."""
        error = self.failureResultOf(waiter, AppendError).value
        assert isinstance(error, AppendError)
        self.assertIsInstance(error, kind)
        self.assertIs(error.code, code)
        return error

    def test_a_command_returns_its_result(self) -> None:
        """The results of the machine."""
        self.assertEqual(self.successResultOf(self.submit(b"x")), b"1:x")

    def test_a_refused_command_is_sent_again(self) -> None:
        """While it is certainly not in the log, it is sent again."""
        self.group["n0"].refusals.extend([ResponseCode.NOT_LEADER, ResponseCode.LEADER_NOT_READY])
        self.assertEqual(self.successResultOf(self.submit(b"x", 5)), b"1:x")
        self.assertEqual(self.group.log, [b"0", b"x"])

    def test_a_command_is_applied_once(self) -> None:
        """After a lost answer and an unknown outcome: sent again, applied once, the first result."""
        self.group["n0"].refusals.append(ResponseCode.WAIT_QUORUM_ACK_TIMEOUT)
        self.assertEqual(self.successResultOf(self.submit(b"x", 5)), b"1:x")
        self.group["n0"].holds = lambda request: isinstance(request, SubmitRequest)
        waiter = self.submit(b"y")
        self.group["n0"].answer(self.group["n0"].held.pop().request)
        self.group["n0"].holds = lambda request: False
        self.group["n0"].lose_connections()
        self.assertEqual(self.successResultOf(self.settled(waiter, 5)), b"2:y")
        self.assertEqual(self.group.log, [b"0", b"x", b"y"])
        sent = [one for one in self.group["n0"].received if isinstance(one, SubmitRequest)]
        self.assertEqual([(one.sequence, one.is_again) for one in sent],
                         [(0, False), (0, True), (1, False), (1, True)])
        self.assertEqual(len({one.producer for one in sent}), 1)

    def sent(self, member_id: str = "n0") -> list[SubmitRequest]:
        """The commands that a member was sent."""
        return [one for one in self.group[member_id].received if isinstance(one, SubmitRequest)]

    def test_commands_at_once_are_one_producer(self) -> None:
        """They are under way at once, and in the log in order; a bound holds the rest back."""
        self.patch(commands, "COMMANDS_MAX", 3)
        self.client.close()
        self.client = self.group.client()
        self.group["n0"].holds = lambda request: isinstance(request, SubmitRequest)
        waiters = [self.client.submit_command(b"%d" % number) for number in range(8)]
        self.group.settle()
        self.assertEqual([one.command for one in self.sent()], [b"0", b"1", b"2"])
        self.group["n0"].holds = lambda request: False
        self.group["n0"].release(3)
        self.group.settle()
        self.assertEqual([self.successResultOf(one) for one in waiters],
                         [b"%d:%d" % (number + 1, number) for number in range(8)])
        self.assertEqual(len({one.producer for one in self.sent()}), 1)
        self.assertEqual([one.sequence for one in self.sent()], list(range(8)))

    def test_as_many_as_are_remembered(self) -> None:
        """Each of those under way can be sent again: the log knows its place, the machine its result."""
        self.assertLessEqual(commands.COMMANDS_MAX, min(RUNS_MAX, RESULTS_MAX))

    def test_lost_answers_of_many(self) -> None:
        """A connection is lost after some were appended: each is in the log once, in order."""
        self.group["n0"].holds = lambda request: isinstance(request, SubmitRequest)
        waiters = [self.client.submit_command(b"%d" % number) for number in range(6)]
        self.group.settle()
        for held in self.group["n0"].held[:3]:
            self.group["n0"].answer(held.request)
        self.group["n0"].held.clear()
        self.group["n0"].holds = lambda request: False
        self.group["n0"].lose_connections()
        self.settled(waiters[0], 3)
        self.assertEqual([self.successResultOf(one) for one in waiters],
                         [b"%d:%d" % (number + 1, number) for number in range(6)])
        self.assertEqual(self.group.log[1:], [b"%d" % number for number in range(6)])
        self.assertEqual({one.is_again for one in self.sent()[6:]}, {True})

    def test_a_refused_one_of_many(self) -> None:
        """One that is refused for good is not in the log; those after it go on with another producer."""
        self.group["n0"].holds = lambda request: isinstance(request, SubmitRequest)
        waiters = [self.client.submit_command(b"%d" % number) for number in range(3)]
        self.group.settle()
        self.group["n0"].holds = lambda request: False
        self.group["n0"].refusals.append(ResponseCode.MACHINE_STOPPED)
        self.group["n0"].release(3)
        self.settled(waiters[0], 3)
        self.failed(waiters[0], AppendFailed, ResponseCode.MACHINE_STOPPED)
        self.assertEqual([self.successResultOf(one) for one in waiters[1:]], [b"1:1", b"2:2"])
        self.assertEqual(len({one.producer for one in self.sent()}), 2)

    def test_an_unknown_one_of_many(self) -> None:
        """Those after one without an outcome may be in the log, too, if they may have been taken."""
        self.group["n0"].holds = lambda request: isinstance(request, SubmitRequest)
        waiters = [self.client.submit_command(b"%d" % number) for number in range(3)]
        self.settled(waiters[0], 12)
        for waiter in waiters:
            self.failed(waiter, UnknownOutcome, ResponseCode.TIMEOUT)
        self.group["n0"].held.clear()
        self.group["n0"].holds = lambda request: False
        self.assertEqual(self.successResultOf(self.submit(b"3", 12)), b"1:3")

    def test_a_late_command_is_certain(self) -> None:
        """A command whose turn does not come is certainly not in the log."""
        self.patch(commands, "COMMANDS_MAX", 1)
        self.client.close()
        self.client = self.group.client()
        self.group["n0"].holds = lambda request: isinstance(request, SubmitRequest)
        first, second = self.client.submit_command(b"1"), self.client.submit_command(b"2")
        self.settled(second, 12)
        self.failed(first, UnknownOutcome, ResponseCode.TIMEOUT)
        self.failed(second, AppendFailed, ResponseCode.NETWORK_ERROR)
        self.group["n0"].holds = lambda request: False
        self.assertEqual(self.successResultOf(self.submit(b"3", 12))[-2:], b":3")

    def test_a_closed_client(self) -> None:
        """Commands that are under way end with it."""
        self.group["n0"].holds = lambda request: isinstance(request, SubmitRequest)
        waiter = self.client.submit_command(b"1")
        self.group.settle()
        self.client.close()
        self.failed(waiter, UnknownOutcome, ResponseCode.NETWORK_ERROR)
        self.failed(self.client.submit_command(b"2"), AppendFailed, ResponseCode.NETWORK_ERROR)

    def test_with_appends_on_one_connection(self) -> None:
        """Neither waits for the other's turn to end."""
        for number in range(5):
            append = self.client.append(b"a%d" % number)
            command = self.client.submit_command(b"c%d" % number)
            self.settled(command)
            self.successResultOf(append)
            self.successResultOf(command)

    def test_a_lost_producer_is_replaced(self) -> None:
        """A command without a known outcome may be in the log: the next one takes another producer."""
        self.group["n0"].holds = lambda request: isinstance(request, SubmitRequest)
        self.failed(self.submit(b"x", 12), UnknownOutcome, ResponseCode.TIMEOUT)
        self.group["n0"].answer(self.group["n0"].held.pop().request)
        self.group["n0"].holds = lambda request: False
        self.assertEqual(self.successResultOf(self.submit(b"y", 1)), b"2:y")

    def test_a_forgotten_producer_begins_anew(self) -> None:
        """A log that has forgotten the producer: the command begins another one."""
        self.submit(b"x")
        self.group.commands.clear()
        self.assertEqual(self.successResultOf(self.submit(b"y", 1)), b"2:y")
        self.assertEqual(self.group.log, [b"0", b"x", b"y"])

    def test_a_refused_command_has_a_reason(self) -> None:
        """The machine's reason; the next command goes on after it."""
        self.group["n0"].refusals.append(ResponseCode.COMMAND_REFUSED)
        failure = self.failureResultOf(self.submit(b"x"), CommandRefused)
        self.assertIn("scripted", str(failure.value))
        sent = [one for one in self.group["n0"].received if isinstance(one, SubmitRequest)]
        self.group.commands[sent[0].producer, 0] = 0
        self.assertEqual(self.successResultOf(self.submit(b"y")), b"1:y")

    def test_a_skip_asks_the_leader(self) -> None:
        """The leader is asked."""
        self.assertEqual(self.successResultOf(self.settled(self.client.skip(4))), 5)
        failure = self.failureResultOf(self.settled(self.client.skip(3)), DLedgerError)
        self.assertIn("not 3", str(failure.value))

    def test_the_state_begins_anew_by_the_leader(self) -> None:
        """A member of ours is asked, with the word of the operator; its reason comes back."""
        self.group["n0"].wire_version = 0
        failure = self.failureResultOf(self.settled(self.client.begin_state()), DLedgerError)
        self.assertIs(failure.value.code, ResponseCode.UNSUPPORTED)
        self.group["n0"].wire_version = 1
        self.client.close()
        self.client = self.group.client()
        failure = self.failureResultOf(self.settled(self.client.begin_state()), DLedgerError)
        self.assertIn("n2 has the state", str(failure.value))
        self.assertEqual(self.successResultOf(self.settled(self.client.begin_state(insists=True))), 6)

    def test_a_program_repeats_its_command(self) -> None:
        """The program repeats its question."""
        for _ in range(2):
            asked = self.client.submit_command(b"x", producer="p", sequence=0)
            self.assertEqual(self.successResultOf(self.settled(asked)), b"1:x")
        self.group["n0"].refusals.append(ResponseCode.WAIT_QUORUM_ACK_TIMEOUT)
        asked = self.client.submit_command(b"y", producer="p", sequence=1)
        self.assertEqual(self.successResultOf(self.settled(asked, 3)), b"2:y")
        self.failureResultOf(self.settled(self.client.submit_command(b"x", producer="p")), TypeError)

    def test_a_refusal_is_not_repeated(self) -> None:
        """A machine that has stopped, no command, and a leader without a machine: nothing is sent twice."""
        self.group["n0"].refusals.append(ResponseCode.MACHINE_STOPPED)
        error = self.failed(self.submit(b"x", 1), AppendFailed, ResponseCode.MACHINE_STOPPED)
        self.assertEqual(error.facts["reason"], "scripted")
        self.failed(self.submit(b""), AppendFailed, ResponseCode.UNEXPECTED_ARGUMENT)
        self.assertEqual(self.group.log, [b"0"])

    def test_a_missing_machine_is_reported(self) -> None:
        """Reported before anything is sent."""
        for version in (0, 1):
            self.group["n0"].wire_version = version
            self.client.close()
            self.client = self.group.client()
            error = self.failed(self.submit(b"x"), AppendFailed, ResponseCode.UNSUPPORTED)
            self.assertIn("n0 runs no state machine: it is a Java member", str(error))
            failure = self.failureResultOf(self.settled(self.client.query(b"x")), DLedgerError)
            self.assertIs(failure.value.code, ResponseCode.UNSUPPORTED)
        sent = [one for one in self.group["n0"].received if isinstance(one, (SubmitRequest, QueryRequest))]
        self.assertEqual(sent, [])


class QueryTests(MachineClientCase):
    """A query is asked again; with a bound on the age, of any member."""

    def test_the_leader_answers_queries(self) -> None:
        """The leader answers, also after refusals and a lost connection."""
        self.group["n0"].refusals.extend([ResponseCode.LEADER_NOT_READY, ResponseCode.TIMEOUT])
        self.assertEqual(self.successResultOf(self.settled(self.client.query(b"x"), 5)), b"n0 x")
        self.group["n0"].holds = lambda request: isinstance(request, QueryRequest)
        waiter = self.settled(self.client.query(b""))
        self.group["n0"].holds = lambda request: False
        self.group["n0"].lose_connections()
        self.assertEqual(self.successResultOf(self.settled(waiter, 5)), b"n0 ")

    def test_any_member_answers_old_queries(self) -> None:
        """A follower answers; where it does not know, the leader does."""
        self.settled(self.client.query(b"a"))
        answer = self.successResultOf(self.settled(self.client.query(b"x", max_age_s=2.0)))
        self.assertIn(answer, (b"n1 x", b"n2 x"))
        for member_id in ("n1", "n2"):
            self.group[member_id].refusals.append(ResponseCode.FALL_BEHIND_TOO_MUCH)
        answer = self.successResultOf(self.settled(self.client.query(b"x", max_age_s=0.5), 3))
        self.assertEqual(answer, b"n0 x")
        asked = [one for one in self.group["n0"].received if isinstance(one, QueryRequest)]
        self.assertEqual([one.max_age_ms for one in asked], [-1, 500])

    def test_a_refused_query_is_final(self) -> None:
        """An answer of the machine is final, and so is a bound that is none."""
        self.group["n0"].refusals.append(ResponseCode.INTERNAL_ERROR)
        error = self.failureResultOf(self.settled(self.client.query(b"x")), DLedgerError).value
        self.assertEqual((error.code, error.facts["reason"]), (ResponseCode.INTERNAL_ERROR, "scripted"))
        for age in (-1.0, float("nan"), 1e9):
            refused = self.assertRaises(ValueError, self.client.query, b"x", max_age_s=age)
            self.assertIn("write seconds, from 0 to 1e+06", str(refused))

    def test_a_query_ends_at_its_deadline(self) -> None:
        """Nobody answers: the last error, in time."""
        for member_id in ("n0", "n1", "n2"):
            self.group[member_id].is_silent = True
        waiter = self.settled(self.client.query(b"x"), 30)
        self.failureResultOf(waiter, DLedgerError, Timeout)
