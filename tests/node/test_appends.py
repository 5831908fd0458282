# -*- test-case-name: tests.node.test_appends -*-
"""Appends are gathered per turn, share proposals, and each caller is informed once."""

from __future__ import annotations

from collections.abc import Callable

from twisted.internet.defer import Deferred
from twisted.trial.unittest import SynchronousTestCase

from dledger.core.state.effects import AnswerAppend
from dledger.core.state.inputs import AppendProposed, Origin
from dledger.node.reporting.status import Counters
from dledger.node.requests.appends import SHARED_BYTES_MAX, TURN_BYTES_MAX, AppendGate, AppendResult
from dledger.values.errors import DLedgerError
from protocols.ledger.interfaces import Ticket
from protocols.wire.codes import ResponseCode
from protocols.wire.ledger.codes import RequestCode
from protocols.wire.ledger.messages import (
    AppendIfRequest,
    AppendIfResponse,
    AppendRequest,
    AppendResponse,
)
from tests.node.rig import Rig


class Ledger:
    """Positions as a ledger of 100-byte records has them, with a blank before some index."""

    blank_before = 1 << 60

    def position_of(self, index: int) -> int:
        """148 bytes a record; 1000 more from the blank on."""
        return 148 * index + (1000 if index >= self.blank_before else 0)


class GateTestCase(SynchronousTestCase):
    """A gate whose turns and core are the test's."""

    def setUp(self) -> None:
        self.proposed: list[AppendProposed] = []
        self.calls: list[Callable[[], None]] = []
        self.reads: list[Callable[[], None]] = []
        self.ledger = Ledger()
        self.tokens = 0
        self.now_s, self.counters = 100.0, Counters()
        self.gate = self.make()

    def make(self, shared_count_max: int = 64) -> AppendGate:
        """A gate with a bound of its own."""
        return AppendGate(
            group="g", ledger=self.ledger, propose=self.proposed.append,
            turn=self, seconds=lambda: self.now_s,
            next_token=self.next_token, counters=self.counters, shared_count_max=shared_count_max,
        )

    def work(self, call: Callable[[], None]) -> None:
        """At the end of the turn."""
        self.calls.append(call)

    def soon(self, call: Callable[[], None]) -> None:
        """At the end of a read."""
        self.reads.append(call)

    def next_token(self) -> int:
        """1, 2, ..."""
        self.tokens += 1
        return self.tokens

    def end_turn(self) -> None:
        """Run what was asked for."""
        calls = [*self.reads, *self.calls]
        self.reads.clear()
        self.calls.clear()
        for call in calls:
            call()

    def answer(self, token: int, code: ResponseCode, count: int, index: int = -1) -> None:
        """The core's word."""
        self.gate.answered(AnswerAppend(
            token=token, code=code, term=3, count=count, first_index=index,
            pos=self.ledger.position_of(index) if index >= 0 else -1, leader_id="n1",
        ))


class MeasureTests(GateTestCase):
    """Its counters for the metrics."""

    def test_durations_and_sizes(self) -> None:
        """One of each proposal that commits, one of each turn; none stays behind."""
        for _ in range(70):
            self.gate.append((b"x",)).addErrback(lambda _: None)
        self.end_turn()
        self.now_s += 0.004
        self.answer(1, ResponseCode.SUCCESS, 64, 0)
        self.answer(2, ResponseCode.WAIT_QUORUM_ACK_TIMEOUT, 6, 64)
        durations, sizes = self.counters.append_s.status(), self.counters.batches.status()
        self.assertEqual((durations.count, round(durations.total, 6)), (1, 0.004))
        self.assertEqual((sizes.count, sizes.total), (1, 70))
        self.assertEqual(self.gate._proposed_s, {})


class GatherTests(GateTestCase):
    """One input per turn."""

    def test_neighbours_share_one_proposal(self) -> None:
        """Neighbours share one, and one call at the end of the turn is asked for."""
        for number in range(5):
            self.gate.append((b"%d" % number,))
        self.assertEqual(self.proposed, [])
        self.assertEqual((len(self.reads), len(self.calls)), (1, 0))
        self.end_turn()
        ((proposal,),) = [proposed.proposals for proposed in self.proposed]
        self.assertEqual(proposal.bodies, (b"0", b"1", b"2", b"3", b"4"))

    def test_an_expected_end_has_its_own_proposal(self) -> None:
        """A proposal of its own, between its neighbours."""
        self.gate.append((b"a",))
        ticket = Ticket(opaque=1, kind=RequestCode.APPEND_IF, is_native=False, size=1)
        self.gate.append_if(None, ticket, (b"b",), 7)  # type: ignore[arg-type]
        self.gate.append((b"c",))
        self.end_turn()
        ((first, second, third),) = [proposed.proposals for proposed in self.proposed]
        self.assertEqual([one.expected_end for one in (first, second, third)], [None, 7, None])
        self.assertEqual([one.bodies for one in (first, second, third)], [(b"a",), (b"b",), (b"c",)])

    def test_a_later_append_is_another_input(self) -> None:
        """A later append is another input."""
        self.gate.append((b"a",))
        self.end_turn()
        self.gate.append((b"b",))
        self.end_turn()
        self.assertEqual([proposed.proposals[0].bodies for proposed in self.proposed], [(b"a",), (b"b",)])
        self.end_turn()
        self.assertEqual(len(self.proposed), 2)

    def test_only_an_idle_gate_does_not_wait_for_the_turn(self) -> None:
        """While a proposal is on its way, others are gathered; once it is answered, none is on its way."""
        self.gate.append((b"a",))
        self.assertEqual((len(self.reads), len(self.calls)), (1, 0))
        self.end_turn()
        self.gate.append((b"b",))
        self.assertEqual((len(self.reads), len(self.calls)), (0, 1))
        self.end_turn()
        self.answer(1, ResponseCode.SUCCESS, 1, index=0)
        self.answer(2, ResponseCode.SUCCESS, 1, index=1)
        self.gate.append((b"c",))
        self.assertEqual((len(self.reads), len(self.calls)), (1, 0))

    def test_a_proposal_has_a_bound_of_bodies(self) -> None:
        """A proposal is full at its bound of bodies; all of a turn's are still one input."""
        self.gate = self.make(shared_count_max=2)
        for number in range(5):
            self.gate.append((b"%d" % number,))
        self.end_turn()
        (proposed,) = self.proposed
        self.assertEqual(
            [proposal.bodies for proposal in proposed.proposals], [(b"0", b"1"), (b"2", b"3"), (b"4",)]
        )
        self.assertEqual([proposal.token for proposal in proposed.proposals], [1, 2, 3])

    def test_a_proposal_has_a_bound_of_bytes(self) -> None:
        """Or at its bound of bytes."""
        big = bytes(SHARED_BYTES_MAX)
        self.gate.append((big,))
        self.gate.append((b"a",))
        self.end_turn()
        (proposed,) = self.proposed
        self.assertEqual([proposal.bodies for proposal in proposed.proposals], [(big,), (b"a",)])

    def test_a_long_turn_proposes_early(self) -> None:
        """A turn that reads very much does not wait for its end."""
        big = bytes(SHARED_BYTES_MAX)
        for _ in range(TURN_BYTES_MAX // SHARED_BYTES_MAX):
            self.gate.append((big,))
        self.assertEqual(len(self.proposed), 1)
        self.end_turn()
        self.assertEqual(len(self.proposed), 1)


class AnswerTests(GateTestCase):
    """The way back."""

    def appends(self, *bodies: tuple[bytes, ...]) -> list[Deferred[AppendResult]]:
        """Local callers in one turn."""
        waiters = [self.gate.append(several) for several in bodies]
        self.end_turn()
        return waiters

    def test_each_its_own(self) -> None:
        """Index, count and position of each caller in a shared proposal."""
        waiters = self.appends((bytes(100),), (bytes(100), bytes(100)), (bytes(100),))
        self.answer(1, ResponseCode.SUCCESS, 4, index=7)
        self.assertEqual(
            [(result.index, result.count, result.pos, result.term) for result in map(
                self.successResultOf, waiters)],
            [(7, 1, 7 * 148, 3), (8, 2, 8 * 148, 3), (10, 1, 10 * 148, 3)],
        )

    def test_a_blank_in_between(self) -> None:
        """Where a file ended within the proposal, positions are asked for one by one."""
        for blank_before in range(7, 12):
            self.ledger.blank_before = blank_before
            self.gate = self.make()
            self.tokens = 0
            waiters = self.appends((bytes(100),), (bytes(100), bytes(100)), (bytes(100),))
            self.answer(1, ResponseCode.SUCCESS, 4, index=7)
            self.assertEqual(
                [self.successResultOf(waiter).pos for waiter in waiters],
                [self.ledger.position_of(index) for index in (7, 8, 10)], f"blank before {blank_before}",
            )

    def test_all_sharers_hear_a_refusal(self) -> None:
        """All who share it hear it, with the leader."""
        waiters = self.appends((b"a",), (b"b",))
        self.answer(1, ResponseCode.NOT_LEADER, 2)
        for waiter in waiters:
            error = self.failureResultOf(waiter, DLedgerError).value
            self.assertIs(error.code, ResponseCode.NOT_LEADER)
            self.assertEqual(error.facts["leader_id"], "n1")

    def test_unknown_outcome_names_the_index(self) -> None:
        """Whoever has to find out can look there."""
        for token, first in ((1, 20), (2, 0)):
            waiters = self.appends((b"a",), (b"b", b"c"), (b"d",))
            self.answer(token, ResponseCode.WAIT_QUORUM_ACK_TIMEOUT, 4, index=first)
            indexes = [self.failureResultOf(waiter, DLedgerError).value.facts["index"] for waiter in waiters]
            self.assertEqual(indexes, [first, first + 1, first + 3])

    def test_a_proposal_is_answered_once(self) -> None:
        """A second word on the same proposal is nobody's."""
        (waiter,) = self.appends((b"a",))
        self.answer(1, ResponseCode.SUCCESS, 1, index=0)
        self.answer(1, ResponseCode.TERM_CHANGED, 1)
        self.assertEqual(self.successResultOf(waiter).index, 0)

    def test_out_of_the_table_first(self) -> None:
        """A caller that appends again when it is informed finds the gate in order."""
        (first,) = self.appends((b"a",))
        seconds: list[Deferred[AppendResult]] = []

        def again(_: AppendResult) -> None:
            seconds.append(self.gate.append((b"b",)))

        first.addCallback(again)
        self.answer(1, ResponseCode.SUCCESS, 1, index=0)
        self.end_turn()
        self.answer(2, ResponseCode.SUCCESS, 1, index=1)
        self.assertEqual(self.successResultOf(seconds[0]).index, 1)

    def test_a_cancelled_append_is_not_answered(self) -> None:
        """Stops the wait, not the append; nobody is informed twice."""
        waiter, other = self.appends((b"a",), (b"b",))
        waiter.cancel()
        self.failureResultOf(waiter)
        self.answer(1, ResponseCode.SUCCESS, 2, index=0)
        self.assertEqual(self.successResultOf(other).index, 1)

    def test_a_stop_answers_all_appends(self) -> None:
        """Who was not proposed is certainly not in the log; who was, nobody knows."""
        (proposed,) = self.appends((b"a",))
        waiting = self.gate.append((b"b",))
        self.gate.stop()
        self.assertIs(self.failureResultOf(proposed, DLedgerError).value.code, ResponseCode.TERM_CHANGED)
        self.assertIs(self.failureResultOf(waiting, DLedgerError).value.code, ResponseCode.NOT_LEADER)
        self.end_turn()
        self.assertEqual(len(self.proposed), 1)

    def test_stop_with_sealed_proposals(self) -> None:
        """Those that were sealed but never given to the core are certainly not in the log, too."""
        self.gate = self.make(shared_count_max=1)
        waiters = [self.gate.append((b"a",)) for _ in range(3)]
        self.gate.stop()
        for waiter in waiters:
            self.assertIs(self.failureResultOf(waiter, DLedgerError).value.code, ResponseCode.NOT_LEADER)


class CommandTests(GateTestCase):
    """Commands for a state machine."""

    def test_each_command_has_its_own_proposal(self) -> None:
        """Each has a proposal of its own, in order with other appends: it is answered when it commits."""
        first = self.gate.append((b"a",))
        commands = [self.gate.append_command(b"c", None), self.gate.append_command(b"d", Origin("p", 3))]
        self.end_turn()
        (proposed,) = self.proposed
        reported = [(one.bodies, one.origin) for one in proposed.proposals]
        self.assertEqual(reported, [((b"a",), None), ((b"c",), None), ((b"d",), Origin("p", 3))])
        for token, waiter in zip((1, 2), (first, commands[0]), strict=True):
            self.answer(token, ResponseCode.SUCCESS, 1, index=token)
            self.assertEqual(self.successResultOf(waiter).index, token)
        self.assertNoResult(commands[1])

    def test_a_repeated_command_is_answered(self) -> None:
        """It was in the log before, or is refused for its sequence."""
        commands = [self.gate.append_command(b"c", Origin("p", number)) for number in range(2)]
        self.end_turn()
        self.gate.answered(AnswerAppend(
            token=1, code=ResponseCode.SUCCESS, term=2, count=1, first_index=5, pos=9, is_repeated=True
        ))
        found = self.successResultOf(commands[0])
        self.assertEqual(found, AppendResult(index=5, count=1, term=2, pos=9, is_repeated=True))
        self.gate.answered(AnswerAppend(
            token=2, code=ResponseCode.SEQUENCE_GAP, term=2, count=1, last_sequence=0
        ))
        error = self.failureResultOf(commands[1], DLedgerError).value
        self.assertEqual((error.code, error.facts["last_sequence"]), (ResponseCode.SEQUENCE_GAP, 0))


class ConnectionTests(SynchronousTestCase):
    """Through a node and its connections."""

    def test_both_formats_name_their_entries(self) -> None:
        """Entries of one turn are consecutive, and each answer names its own."""
        rig = Rig().lead()
        first, second = rig.client(), rig.client()
        first.send(*[AppendRequest(bodies=(b"a",), **rig.base()) for _ in range(3)])
        second.send(AppendRequest(bodies=(b"b",), **rig.base()), native=False)
        answers = first.answers()
        self.assertEqual([answer.index for answer in answers], [0, 1, 2])
        self.assertEqual([answer.pos for answer in answers], [0, 49, 98])
        (answer,) = second.answers()
        self.assertEqual(answer, AppendResponse(
            group="default", leader_id="n0", term=answer.term, index=3, pos=147
        ))
        self.assertEqual(rig.node.status().counts.appends, 4)
        self.assertEqual(rig.node.status().counts.append_bytes, 4)

    def test_an_expected_end_is_kept_or_refused(self) -> None:
        """From request to answer: taken after the end, refused with the end, refused without a body."""
        rig = Rig().lead()
        client = rig.client()

        def ask(end: int, body: bytes | None) -> AppendIfResponse:
            answer = client.ask(AppendIfRequest(**rig.base(), body=body, expected_end=end), native=False)
            assert isinstance(answer, AppendIfResponse)
            return answer

        end = rig.store.ledger_end_index
        taken = ask(end, b"x")
        self.assertEqual((taken.code, taken.index, taken.end_index), (200, end + 1, -2))
        refused = ask(end, b"y")
        reported = refused.code, refused.index, refused.end_index
        self.assertEqual(reported, (ResponseCode.CONFLICT, -1, end + 1))
        self.assertIs(ask(end + 1, None).code, ResponseCode.UNEXPECTED_ARGUMENT)
        self.assertIs(ask(end + 1, b"x" * 5_000_000).code, ResponseCode.UNEXPECTED_ARGUMENT)
        self.assertIs(ask(end + 1, b"z").code, ResponseCode.SUCCESS)

    def test_positions_across_files(self) -> None:
        """As the ledger has them, whatever the sizes are."""
        rig = Rig(mapped_file_size_for_entry_data=1024).lead()
        client = rig.client()
        for size in (1, 200, 300, 50, 120):
            bodies = (bytes(size),) * (1 + size % 3)
            client.send(*[AppendRequest(bodies=bodies, **rig.base()) for _ in range(9)])
            for answer in client.answers():
                self.assertEqual(answer.code, ResponseCode.SUCCESS)
                self.assertEqual(answer.pos, rig.store.position_of(answer.index))
