# -*- test-case-name: tests.node.test_reader_rules -*-
"""The decisions about readers: cases, and long random plays of several processes against a plain model."""

from __future__ import annotations

from random import Random

import attrs
from twisted.trial.unittest import SynchronousTestCase

from dledger.node.requests import reader_rules as rules
from dledger.values.errors import DLedgerError
from dledger.values.ledger.group_state import GroupFold, GroupState, Marked
from dledger.values.ledger.reader_table import KnownReader
from protocols.wire.codes import ResponseCode
from protocols.wire.ledger.messages import ReaderRequest
from protocols.wire.ledger.own.own_entries import READER_CHANNEL
from protocols.wire.ledger.readers import (
    NO_END,
    READER_PARTS_MAX,
    ReaderPart,
    ReaderState,
    encode_reader_entry,
)


class _Play:
    """
    A log of reader entries and others, a reader, and processes with leases that end at random.

    @ivar done: the entries whose commit counted, each once.
    @ivar tokens: of all leases, in order.
    """

    def __init__(self, rng: Random) -> None:
        self.rng = rng
        self.fold = GroupFold(GroupState())
        self.end = 20
        self.over: set[int] = set()
        self.held: dict[str, tuple[int, int, int]] = {}
        self.done: dict[int, int] = {}
        self.tokens: list[int] = []
        self.places = [0]

    @property
    def known(self) -> KnownReader | None:
        """The reader."""
        return self.fold.state.readers.get("r")

    @property
    def state(self) -> ReaderState:
        """The one in force."""
        known = self.known
        return known.state if known is not None else ReaderState("r", -1, 0)

    def write(self, state: ReaderState) -> int:
        """As a leader does. @return: its index."""
        known = self.known
        state = state._replace(previous=-1 if known is None else known.entry_index)
        self.end += 1
        self.fold.take([Marked(self.end, 1, READER_CHANNEL, body=encode_reader_entry(state))])
        self.fold.commit(self.end)
        known = self.known
        assert known is not None and known.entry_index == self.end
        self.check()
        return self.end

    def check(self) -> None:
        """The parts are in order and disjoint; nothing that is done is in one; the place never goes back."""
        behind = 0
        for part in self.state.parts:
            assert behind <= part.begin <= part.end <= self.state.given_index, self.state
            behind = part.end
            assert not any(part.begin <= index < part.end for index in self.done), self.state
        self.places.append(self.state.next_index)
        assert self.places[-1] >= self.places[-2], self.places[-2:]
        assert all(index in self.done for index in range(min(self.places[-1], self.end + 1))), self.state

    def step(self) -> None:
        """One thing happens."""
        holder = self.rng.choice("pqst")
        what = self.rng.choice(
            ("take", "take", "commit", "commit", "commit", "late", "over", "release", "grow")
        )
        span = rules.Span(0, self.end)
        if what == "grow":
            self.end += self.rng.randrange(9)
        elif what == "take":
            self.take(holder, span)
        elif what == "late" and self.tokens:
            self.commit(self.rng.choice(self.tokens), self.rng.randrange(self.end + 1), span)
        elif holder in self.held:
            token, _begin, end = self.held[holder]
            if what == "over":
                self.over.add(token)
            elif what == "commit":
                self.commit(token, self.rng.randrange(min(end, self.end + 1)), span)
            else:
                decision = rules.release(self.state, ReaderRequest(does="release", name="r", token=token))
                if decision.state is not None:
                    self.write(decision.state)

    def share_end(self, begin: int, count: int) -> int:
        """All entries are of programs."""
        return min(begin + count, self.end + 1)

    def take(self, holder: str, span: rules.Span) -> None:
        """A process asks for a part."""
        share = self.rng.choice((0, 1, 3, 7))
        request = ReaderRequest(does="take", name="r", holder=holder, lease_ms=1000, share=share)

        def is_live(part: ReaderPart) -> bool:
            return bool(part.holder) and part.token not in self.over

        before = self.state
        try:
            decision = rules.take(before, request, span, is_live, self.share_end)
        except DLedgerError as error:
            assert error.code is ResponseCode.LEASE_HELD
            assert any(is_live(part) and part.holder != holder for part in before.parts)
            return
        part = decision.part
        if part is None:
            return
        token = part.token
        if decision.state is not None:
            token = self.write(decision.state)
            assert part.token == -1 and token > max(self.tokens, default=-1)
            self.tokens.append(token)
        if part.end == NO_END:
            others = [one for one in self.state.parts if one.token != token and one.begin < one.end]
            assert not any(is_live(one) for one in others), self.state
        self.held[holder] = token, part.begin, part.end

    def commit(self, token: int, index: int, span: rules.Span) -> None:
        """Somebody commits, perhaps with a token of long ago."""
        request = ReaderRequest(does="commit", name="r", token=token, index=index)
        try:
            part = rules.part_of(self.state, request)
            decision = rules.commit(self.state, request, span)
        except DLedgerError as error:
            assert error.code in (ResponseCode.LEASE_LOST, ResponseCode.UNEXPECTED_ARGUMENT), error
            return
        if decision.state is not None:
            for one in range(part.begin, index + 1):
                assert one not in self.done, "an entry is done twice"
                self.done[one] = token
            self.write(decision.state)


class PlayTests(SynchronousTestCase):
    """Random plays."""

    def test_each_entry_is_done_once(self) -> None:
        """Each entry is done once, in whatever order leases come and end."""
        shared = 0
        for seed in range(60):
            play = _Play(Random(seed))
            for _ in range(250):
                play.step()
            shared += len(set(play.done.values())) > 3
        self.assertGreater(shared, 40)


class CaseTests(SynchronousTestCase):
    """What a play does not come to. C{own_from}: from here on the log has entries of readers alone."""

    own_from = 100

    def take(
        self, state: ReaderState, holder: str = "p", share: int = 0, *, live: bool = True
    ) -> rules.Decision:
        """With a log of a hundred entries."""
        request = ReaderRequest(does="take", name="r", holder=holder, lease_ms=1000, share=share)
        return rules.take(
            state, request, rules.Span(0, 99), lambda part: live and bool(part.holder),
            lambda begin, count: min(begin + count, 100) if begin < self.own_from else begin,
        )

    def test_too_many_parts(self) -> None:
        """A bound, in words."""
        parts = tuple(ReaderPart(at, at + 1, at, 1000, f"p{at}") for at in range(READER_PARTS_MAX))
        state = ReaderState("r", -1, READER_PARTS_MAX, parts)
        error = self.assertRaises(DLedgerError, self.take, state, "q", 1)
        self.assertIn("64 processes read as r", str(error))
        self.assertIsNotNone(self.take(state, "q", 1, live=False).part)

    def test_deleted_entries(self) -> None:
        """A process with a share leaves out what was deleted; the next share has all of it."""
        state = ReaderState("r", -1, 10, (ReaderPart(5, 10, 7, 1000, "p"),))
        span = rules.Span(40, 99)
        request = ReaderRequest(does="commit", name="r", token=7, index=39)
        done = rules.commit(state, request, span).state
        assert done is not None
        self.assertEqual((done.next_index, done.given_index), (10, 10))
        for index, begin in ((39, 39), (40, 40), (10, 0)):
            self.assertRaises(
                DLedgerError, rules.commit, state, attrs.evolve(request, index=index), rules.Span(begin, 99)
            )
        take = ReaderRequest(does="take", name="r", holder="q", lease_ms=1000, share=3)
        part = rules.take(done, take, span, lambda part: bool(part.holder), lambda begin, count: 13).part
        assert part is not None
        self.assertEqual((part.begin, part.end), (10, 40))

    def test_own_entries_alone(self) -> None:
        """A share of readers' own entries is not given; one with another entry is, and so is all."""
        self.own_from = 40
        self.assertEqual(self.take(ReaderState("r", -1, 40), share=9), rules.Decision(None))
        self.assertIsNotNone(self.take(ReaderState("r", -1, 39), share=9).part)
        self.assertIsNotNone(self.take(ReaderState("r", -1, 40)).part)

    def test_alone_takes_parts_in_turn(self) -> None:
        """A process that wants all gets what others have left, part by part, before the rest."""
        state = ReaderState("r", -1, 20, (ReaderPart(3, 5, 1, 1000, ""), ReaderPart(9, 20, 2, 1000, "")))
        for begin, end in ((3, 5), (9, 20), (20, NO_END)):
            decision = self.take(state)
            assert decision.part is not None and decision.state is not None
            self.assertEqual((decision.part.begin, decision.part.end), (begin, end))
            given = tuple(
                one._replace(token=50 + begin) if one.token < 0 else one for one in decision.state.parts
            )
            state = decision.state._replace(parts=given)
            if end < NO_END:
                request = ReaderRequest(does="commit", name="r", token=50 + begin, index=end - 1)
                done = rules.commit(state, request, rules.Span(0, 99)).state
                assert done is not None
                state = done

    def test_begins_behind_what_expired(self) -> None:
        """A new reader begins where the log does."""
        self.assertEqual(rules.begin_of(0, rules.Span(40, 99)), 40)
        self.assertEqual(rules.begin_of(-1000, rules.Span(40, 99)), 40)
        self.assertEqual(rules.begin_of(100, rules.Span(40, 99)), 100)
        self.assertEqual(rules.begin_of(0, rules.Span(-1, -1)), 0)
        self.assertEqual(rules.begin_of(NO_END, rules.Span(-1, -1)), 0)
        self.assertRaises(DLedgerError, rules.begin_of, 1, rules.Span(-1, -1))
