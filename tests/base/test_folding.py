# -*- test-case-name: tests.base.test_folding -*-
"""Repetitions are counted and not logged; the number of distinguished events is bounded."""

from __future__ import annotations

from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from dledger.base.serving.folding import AGAIN_S, KEYS_MAX, QUIET_S, Folding


class FoldingTests(SynchronousTestCase):
    """One clock, many events."""

    def setUp(self) -> None:
        self.clock = Clock()
        self.folding = Folding(self.clock.seconds)

    def test_first_and_again(self) -> None:
        """The first is logged, then one in a minute, with the number."""
        said = []
        for _ in range(int(2 * AGAIN_S) + 1):
            said.append(self.folding.happened(("x",)))
            self.clock.advance(1)
        reported = [one for one in said if one is not None]
        self.assertEqual(reported, [{}, {"times": 61, "since_s": 60}, {"times": 121, "since_s": 120}])

    def test_end(self) -> None:
        """An episode that was not reported to its end is reported when it is over; then it begins again."""
        for _ in range(5):
            self.folding.happened(("x", 1))
        self.folding.happened(("y",))
        self.clock.advance(QUIET_S - 1)
        self.assertEqual(self.folding.sweep(self.clock.seconds()), [])
        self.clock.advance(1)
        ((key, episode),) = self.folding.sweep(self.clock.seconds())
        self.assertEqual((key, episode.times), (("x", 1), 5))
        self.assertEqual(self.folding.happened(("x", 1)), {})

    def test_bounded(self) -> None:
        """Facts that vary get a line each at first, and then one for all."""
        lines = [self.folding.happened(("x", number)) for number in range(10 * KEYS_MAX)]
        self.assertEqual(sum(line is not None for line in lines), KEYS_MAX + 1)
        self.assertLessEqual(len(self.folding._episodes), KEYS_MAX + 1)
