# -*- test-case-name: tests.node.test_group_states -*-
"""A member without the state of its group asks others for it, piece by piece."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from types import ModuleType

import attrs
from twisted.internet.defer import CancelledError, Deferred
from twisted.logger import Logger, formatEvent
from twisted.trial.unittest import SynchronousTestCase

from dledger.node.requests.group_states import (
    OFFERED_S,
    PATIENCE_S,
    PAUSE_S,
    WARNED_S,
    GroupFetch,
    GroupOffers,
)
from dledger.storage.files.state_file import STEP_BYTES, StateEncoding, StatePlace, StoredState
from dledger.values.errors import DLedgerError
from dledger.values.ledger.group_state import GroupFold, GroupState, Producer
from protocols.wire.codes import ResponseCode
from protocols.wire.ledger.machines import SnapshotRequest, SnapshotResponse

PIECE_BYTES = 100


def test_module() -> ModuleType:
    """This one."""
    return sys.modules[__name__]


class Ledger:
    """One that knows the state, or not; C{wrong} is why it takes up none."""

    def __init__(self, state: GroupState | None) -> None:
        self.group = None if state is None else GroupFold(state)
        self.why_group_unknown = "" if state is not None else "it is new"
        self.committed_index = 40
        self.wrong = ""
        self.may_begin_group_anew = False

    def begin_group_anew(self) -> None:
        """With an empty state."""
        self.group = GroupFold(GroupState())

    def encoding_group(self) -> tuple[StatePlace, StateEncoding]:
        """As of its committed entry."""
        assert self.group is not None
        state = self.group.state
        place = StatePlace(state.index, 3, 1000, 5)
        return place, StateEncoding(state.capture(), place)

    def install_group(self, stored: StoredState) -> str:
        """Take it up if its entry is committed."""
        if stored.place.entry_index > self.committed_index:
            return "the log must be committed further"
        if not self.wrong:
            self.group = GroupFold(stored.state)
        return self.wrong


def state_of(index: int) -> GroupState:
    """A state of some hundred bytes."""
    state = GroupState()
    state.index = index
    state.restored([Producer(f"p{number}", number + 1, 0).wrote(number, 1, 0) for number in range(20)], [])
    return state


class GroupCase(SynchronousTestCase):
    """A member that needs the state, and two that have it."""

    def setUp(self) -> None:
        self.now_s = 100.0
        self.later: list[Callable[[], None]] = []
        self.ledger = Ledger(None)
        self.sources = {name: Ledger(state_of(40)) for name in ("n1", "n2")}
        self.offers = {
            name: GroupOffers(one, lambda: self.now_s, self.later.append)
            for name, one in self.sources.items()
        }
        self.senders = ["n1", "n2"]
        self.asked: list[str] = []
        self.changed: Callable[[SnapshotResponse], SnapshotResponse] = lambda answer: answer
        self.is_silent = False
        self.pieces = 1 << 30
        self.waiting: list[Deferred[SnapshotResponse]] = []
        self.fetch = GroupFetch(self.ledger, self_id="n0", senders=lambda: self.senders, ask=self.ask,
                                later=self.later.append)

    def ask(self, peer_id: str, request: SnapshotRequest) -> Deferred[SnapshotResponse]:
        """Answered by the member, or by nobody."""
        self.asked.append(peer_id)
        answered: Deferred[SnapshotResponse] = Deferred()
        if self.is_silent:
            self.waiting.append(answered)
            return answered
        self.pieces -= 1
        try:
            answer = self.offers[peer_id].piece_for(request, PIECE_BYTES) if self.pieces >= 0 else (
                SnapshotResponse())
        except DLedgerError as error:
            answer = SnapshotResponse(code=error.code, reason=str(error.facts.get("reason", "")))
        answered.callback(self.changed(answer))
        return answered

    def pass_time(self, seconds: float = 2 * PAUSE_S) -> None:
        """In steps."""
        for _ in range(int(seconds / PAUSE_S) + 1):
            self.now_s += PAUSE_S
            self.fetch.sweep(self.now_s)
            self.end_turns()

    def end_turns(self) -> None:
        """What was put off is done."""
        while self.later:
            self.later.pop(0)()


class FetchTests(GroupCase):
    """The member that asks."""

    def test_the_state_comes_in_pieces(self) -> None:
        """And counts when it is whole."""
        self.pass_time()
        assert self.ledger.group is not None
        self.assertEqual(self.ledger.group.state.producers, state_of(40).producers)
        self.assertGreater(len(self.asked), 5)
        self.pass_time()
        self.assertEqual(self.fetch.progress, "")

    def test_who_knows_it_asks_nobody(self) -> None:
        """From the start, and when a hole is mended meanwhile."""
        self.ledger.group = GroupFold(GroupState())
        self.pass_time(10)
        self.assertEqual(self.asked, [])

    def test_it_waits_until_its_own_log_is_there(self) -> None:
        """The entry of the state must be committed here; it is not asked for again meanwhile."""
        self.ledger.committed_index = 39
        self.pass_time()
        number = len(self.asked)
        self.pass_time(5)
        self.assertIsNone(self.ledger.group)
        self.assertEqual(len(self.asked), number)
        self.assertIn("committed", self.fetch.progress)
        self.ledger.committed_index = 40
        self.pass_time()
        self.assertIsNotNone(self.ledger.group)

    def test_a_state_of_another_log_is_refused(self) -> None:
        """And another member is asked."""
        self.ledger.wrong = "its entry is another one"
        self.pass_time(4)
        self.assertIsNone(self.ledger.group)
        self.assertEqual(set(self.asked), {"n1", "n2"})
        self.assertIn("another one", self.fetch.progress)

    def test_damage_on_the_way_is_noticed(self) -> None:
        """In each field of an answer; the next member's whole state counts."""
        def other(**changes: object) -> None:
            self.setUp()
            evolved: Callable[[SnapshotResponse], SnapshotResponse] = partial(attrs.evolve, **changes)
            self.changed = lambda answer: evolved(answer) if self.asked[-1] == "n1" else answer
            self.pass_time(PAUSE_S)
            self.assertIsNone(self.ledger.group, changes)
            self.pass_time(3)
            self.assertIsNotNone(self.ledger.group, changes)

        for changes in ({"data": b"x" * 50}, {"offset": 7}, {"size": 1 << 40}, {"size": 50}, {"data": b""},
                        {"crc": 1}, {"code": ResponseCode.LEADER_NOT_READY}):
            other(**changes)

    def test_a_quota_that_is_smaller_than_the_state(self) -> None:
        """The transfer goes on where it was, at the same member, and with the state that was begun."""
        self.ledger.committed_index = 100
        for _ in range(40):
            self.pieces = 2
            self.pass_time(0)
            assert self.sources["n1"].group is not None
            self.sources["n1"].group.state.index += 1
        self.assertIsNotNone(self.ledger.group)
        self.assertEqual(set(self.asked), {"n1"})

    def test_one_question_at_a_time(self) -> None:
        """A member that does not answer holds none up for ever: the connection ends the question."""
        self.is_silent = True
        self.pass_time(10)
        self.assertEqual(self.asked, ["n1"])
        self.is_silent = False
        self.waiting[0].errback(DLedgerError(ResponseCode.NETWORK_ERROR))
        self.pass_time(3)
        self.assertIsNotNone(self.ledger.group)

    def test_a_stop_asks_nobody_any_more(self) -> None:
        """The question under way is cancelled."""
        self.is_silent = True
        self.pass_time()
        self.waiting[0].addErrback(lambda failure: failure.trap(CancelledError))
        self.fetch.stop()
        self.assertTrue(self.waiting[0].called)

    def test_the_log_says_that_it_is_unknown(self) -> None:
        """Not at once, and then once an hour."""
        warned: list[str] = []
        self.patch(self.fetch, "log", Logger(observer=lambda event: warned.append(formatEvent(event))))
        self.senders.clear()
        for second in range(int(PATIENCE_S) + 60):
            self.fetch.sweep(self.now_s + second)
            self.assertEqual(len(warned), int(second >= PATIENCE_S))
        self.assertIn("it is new; no member can be asked", warned[0])
        self.fetch.sweep(self.now_s + PATIENCE_S + WARNED_S)
        self.assertEqual(len(warned), 2)

    def test_a_directory_of_java_waits_for_others(self) -> None:
        """It begins with an empty state when nobody has given one for a while; with another one's before."""
        self.ledger.may_begin_group_anew = True
        self.pass_time(3)
        assert self.ledger.group is not None
        self.assertEqual(self.ledger.group.state.producers, state_of(40).producers)
        self.setUp()
        self.ledger.may_begin_group_anew = True
        self.ledger.committed_index = 39
        self.pass_time(2 * PATIENCE_S)
        self.assertIsNone(self.ledger.group, "a state waits for the log")
        self.setUp()
        self.ledger.may_begin_group_anew = True
        self.senders = []
        self.pass_time(PATIENCE_S - 2)
        self.assertIsNone(self.ledger.group)
        self.pass_time(4)
        assert self.ledger.group is not None
        self.assertEqual(self.ledger.group.state.producers, {})

    def test_nobody_to_ask(self) -> None:
        """The status says so."""
        self.senders = []
        self.pass_time()
        self.assertIn("no member", self.fetch.progress)


class OfferTests(GroupCase):
    """The members that are asked."""

    def refused(self, **fields: int) -> ResponseCode:
        """How a question is refused."""
        request = SnapshotRequest(**fields)  # type: ignore[arg-type]
        return self.assertRaises(DLedgerError, self.offers["n1"].piece_for, request, 10).code

    def test_what_is_not_offered_is_refused(self) -> None:
        """Without a state; an offset beyond it; a state that was not begun, or is dropped."""
        self.assertIs(self.refused(index=40, index_term=3, offset=10),
                      ResponseCode.INDEX_LESS_THAN_LOCAL_BEGIN)
        self.offers["n1"].piece_for(SnapshotRequest(), 10)
        self.assertIs(self.refused(index=40, index_term=3, offset=1 << 30), ResponseCode.UNEXPECTED_ARGUMENT)
        self.assertIs(self.refused(index=40, index_term=4, offset=10),
                      ResponseCode.INDEX_LESS_THAN_LOCAL_BEGIN)
        self.now_s += OFFERED_S + 1
        self.offers["n1"].sweep()
        self.assertIs(self.refused(index=40, index_term=3, offset=10),
                      ResponseCode.INDEX_LESS_THAN_LOCAL_BEGIN)
        self.sources["n1"].group = None
        self.assertIs(self.refused(), ResponseCode.LEADER_NOT_READY)

    def test_pieces_are_of_one_state(self) -> None:
        """Whatever is committed meanwhile, the pieces of one transfer fit together."""
        first = self.offers["n1"].piece_for(SnapshotRequest(), 10)
        assert self.sources["n1"].group is not None
        self.sources["n1"].group.state.index = 50
        again = self.offers["n1"].piece_for(SnapshotRequest(index=40, index_term=3, offset=10), 10)
        self.assertEqual((again.index, again.size, again.offset), (first.index, first.size, 10))

    def test_no_turn_does_much(self) -> None:
        """Encoding and decoding a large state goes on a piece at a time; until then a member waits."""
        large, turns = GroupState(), 0
        large.restored((Producer(f"producer {number}", number + 1, 0).wrote(number, 1, 0)
                        for number in range(8000)), [])
        large.index = 40
        self.sources["n1"].group = GroupFold(large)
        self.senders = ["n1"]
        encoded, decoded = [0], [0]
        put, step = GroupState.put, StateEncoding.step

        def counted_put(state: GroupState, producer: Producer) -> None:
            decoded[0] += 1
            put(state, producer)

        def counted_step(encoding: StateEncoding) -> bool:
            before, is_done = encoding.size, step(encoding)
            encoded[0] += encoding.size - before
            return is_done

        self.patch(GroupState, "put", counted_put)
        self.patch(StateEncoding, "step", counted_step)
        self.patch(test_module(), "PIECE_BYTES", 1 << 30)
        for _ in range(100):
            if self.ledger.group is not None:
                break
            encoded[0] = decoded[0] = 0
            calls, self.later[:] = self.later[:1], self.later[1:]
            for call in calls:
                call()
            if not calls:
                self.now_s += PAUSE_S
                self.fetch.sweep(self.now_s)
            self.assertLess(encoded[0], 2 * STEP_BYTES)
            self.assertLess(decoded[0], 2000)
            turns += 1
        assert self.ledger.group is not None
        self.assertEqual(self.ledger.group.state.producers, large.producers)
        self.assertGreater(turns, 15)
        self.assertEqual(set(self.asked), {"n1"})

    def test_two_transfers_at_a_time(self) -> None:
        """One that another member begins ends none; a third one does, the one that was asked for first."""
        for index in (40, 50, 60):
            assert self.sources["n1"].group is not None
            self.sources["n1"].group.state.index = index
            self.now_s += 1
            self.offers["n1"].piece_for(SnapshotRequest(), 10)
            if index < 60:
                self.offers["n1"].piece_for(SnapshotRequest(index=40, index_term=3, offset=10), 10)
        self.offers["n1"].piece_for(SnapshotRequest(index=60, index_term=3, offset=10), 10)
        self.offers["n1"].piece_for(SnapshotRequest(index=50, index_term=3, offset=10), 10)
        self.assertIs(self.refused(index=40, index_term=3, offset=10),
                      ResponseCode.INDEX_LESS_THAN_LOCAL_BEGIN)
