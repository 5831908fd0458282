# -*- test-case-name: tests.core.test_undecided -*-
"""Outcomes of appends that waited when a leadership ended."""

from __future__ import annotations

from unittest import mock

from hypothesis import given, settings
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from dledger.core.state.undecided import UndecidedAppends, WrittenProposal
from dledger.values.errors import DamagedEntryError
from protocols.wire.codes import ResponseCode
from tests.core.helpers import ListLedger

IN_LOG, NOT_IN_LOG, UNKNOWN = ResponseCode.SUCCESS, ResponseCode.NOT_LEADER, ResponseCode.TERM_CHANGED


def appends(first_index: int, *counts: int, term: int = 5) -> UndecidedAppends:
    """Proposals 0, 1, ... one after the other."""
    waiting, index = {}, first_index
    for token, count in enumerate(counts):
        waiting[token] = WrittenProposal(index, count, 0, 1, 1)
        index += count
    return UndecidedAppends(term, index - 1, 0, waiting)


class DecideTests(SynchronousTestCase):
    """Two old entries (terms 1 and 2), then three proposals of term 5: entry 2, entries 3 and 4, entry 5."""

    def decided(
        self, committed_index: int, *terms: int, found: UndecidedAppends | None = None
    ) -> list[ResponseCode]:
        """The codes by token. @param terms: of the ledger's entries after the two old ones."""
        found = found or appends(2, 1, 2, 1)
        outcomes = found.decide(ListLedger.of(1, 2, *terms), committed_index)
        self.assertEqual([token for token, _, _ in outcomes], list(range(len(outcomes))))
        self.assertEqual([*found.waiting], list(range(len(outcomes), 3)))
        return [code for _, _, code in outcomes]

    def test_entries_before_the_commit_are_committed(self) -> None:
        """Entries before them are committed."""
        self.assertEqual(self.decided(1, 5, 5, 5, 5), [])
        self.assertEqual(self.decided(-1, 5, 5, 5, 5), [])

    def test_one_by_one(self) -> None:
        """Each when its last entry is committed, under any leader."""
        self.assertEqual(self.decided(2, 5, 5, 5, 5), [IN_LOG])
        self.assertEqual(self.decided(3, 5, 5, 5, 5), [IN_LOG])
        self.assertEqual(self.decided(4, 5, 5, 5, 5), [IN_LOG] * 2)
        self.assertEqual(self.decided(6, 5, 5, 5, 5, 6), [IN_LOG] * 3)

    def test_another_entry_in_its_place_decides(self) -> None:
        """An entry of a later term in the place of one decides about all after it."""
        self.assertEqual(self.decided(3, 5, 6), [IN_LOG, NOT_IN_LOG, NOT_IN_LOG])
        self.assertEqual(self.decided(4, 5, 5, 6), [IN_LOG, UNKNOWN, NOT_IN_LOG])
        self.assertEqual(self.decided(2, 6), [NOT_IN_LOG] * 3)
        self.assertEqual(self.decided(2, 5, 6), [IN_LOG])

    def test_an_uncommitted_entry_decides_nothing(self) -> None:
        """An entry of a later term that is not committed says nothing."""
        self.assertEqual(self.decided(2, 5, 6, 6), [IN_LOG])
        self.assertEqual(self.decided(1, 6, 6), [])

    def test_entry_of_an_earlier_term(self) -> None:
        """A leader of a later term may commit an old entry in the place of the first."""
        self.assertEqual(self.decided(2, 3, 6), [NOT_IN_LOG] * 3)
        self.assertEqual(self.decided(5, 3, 3, 3, 4, 6), [NOT_IN_LOG] * 3)

    def test_later_term_before_them(self) -> None:
        """The new leader's ledger was shorter: entries of term 5 never follow one of term 6."""
        found = appends(3, 1, 2, 1)
        self.assertEqual(self.decided(2, 6, found=found), [NOT_IN_LOG] * 3)
        self.assertEqual(self.decided(2, 4, found=appends(3, 1, 2, 1)), [])

    def test_expired_entries_cannot_be_decided(self) -> None:
        """Their place is gone: nothing can be known."""
        found = appends(2, 1)
        for begin, committed in ((3, 4), (7, 5)):
            self.assertEqual(found.decide(ListLedger([(5, b"")] * 5, begin), committed), [])

    def test_a_damaged_entry_decides_nothing(self) -> None:
        """An entry that cannot be read says nothing, until a peer has given it back."""
        found, ledger = appends(2, 1), ListLedger.of(1, 2, 5)
        with mock.patch.object(ListLedger, "term_of", side_effect=DamagedEntryError(2, "rotten")):
            self.assertEqual(found.decide(ledger, 2), [])
        self.assertEqual(len(found.decide(ledger, 2)), 1)

    @settings(derandomize=True, max_examples=300)
    @given(
        st.lists(st.integers(1, 3), min_size=1, max_size=5), st.integers(0, 12), st.integers(0, 6),
        st.integers(0, 12), st.booleans(),
    )
    def test_every_small_ledger_is_decided_rightly(
        self, counts: list[int], kept: int, others: int, committed: int, is_old: bool
    ) -> None:
        """Compared with a look at each entry: C{kept} of term 5 stay, then come others."""
        kept = min(kept, sum(counts))
        terms = [1, 2] + [5] * kept + ([4] * (is_old and not kept) + [6] * others)
        committed = min(committed, len(terms) - 1)
        found = appends(2, *counts)
        places = dict(found.waiting)
        outcomes = {token: code for token, _, code in found.decide(ListLedger.of(*terms), committed)}
        is_over = committed >= 2 + kept
        for token, place in places.items():
            indexes = range(place.first_index, place.first_index + place.entries)
            there = sum(index < 2 + kept and index <= committed for index in indexes)
            expected = IN_LOG if there == place.entries else None
            if expected is None and is_over:
                expected = UNKNOWN if there else NOT_IN_LOG
            self.assertEqual(outcomes.get(token), expected)
