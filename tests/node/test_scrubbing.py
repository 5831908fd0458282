# -*- test-case-name: tests.node.test_scrubbing -*-
"""When a member scrubs: the rate, the pause, and what is reported."""

from __future__ import annotations

from typing import Any

from twisted.internet.task import Clock
from twisted.logger import Logger
from twisted.trial.unittest import SynchronousTestCase

from dledger.node.reporting.status import Counters
from dledger.node.work.scrubbing import STEP_BYTES, TROUBLE_S, Scrubbing
from dledger.storage.store.scrub import ScrubStep
from dledger.values.ledger.config import DLedgerConfig

RATE = 1000


class FakeStore:
    """Does the steps that it is given, then sound ones."""

    def __init__(self) -> None:
        self.steps: list[ScrubStep] = []
        self.asked: list[int] = []
        self.shares: list[float] = []

    def scrub_from(self, share: float) -> None:
        """Note it."""
        self.shares.append(share)

    def scrub(self, bytes_max: int) -> ScrubStep:
        """The next one."""
        self.asked.append(bytes_max)
        return self.steps.pop(0) if self.steps else ScrubStep(checked_bytes=500)


class ScrubbingTests(SynchronousTestCase):
    """A member with a clock that stands still."""

    def setUp(self) -> None:
        self.clock = Clock()
        self.store = FakeStore()
        self.counters = Counters()
        self.events: list[dict[str, Any]] = []
        self.scrubbing = self.of(RATE)

    def of(self, rate: int) -> Scrubbing:
        """With this rate, and a pause of a minute."""
        config = DLedgerConfig(scrub_bytes_per_s=rate, scrub_pause_ms=60_000)
        log = Logger(observer=self.events.append)  # type: ignore[arg-type]
        return Scrubbing(config, self.store, self.clock.seconds, self.counters, log)

    def run_until(self, end_s: float) -> None:
        """As the ticks of a member do."""
        while self.clock.seconds() < end_s:
            if self.clock.seconds() >= self.scrubbing.next_s:
                self.scrubbing.step()
            self.clock.advance(0.02)

    def test_the_scrub_keeps_to_its_rate(self) -> None:
        """Nothing in the first pause; then no more bytes than allowed."""
        self.run_until(59)
        self.assertEqual(self.store.asked, [])
        self.run_until(60 + 10)
        self.assertLessEqual(abs(self.counters.scrubbed_bytes - 10 * RATE), 500 + RATE)
        self.assertEqual(set(self.store.asked), {RATE})
        self.of(1 << 30).step()
        self.assertEqual(self.store.asked[-1], STEP_BYTES)

    def test_the_scrub_begins_anywhere(self) -> None:
        """A member that is started often reads all segments in the end."""
        for _ in range(50):
            self.clock.advance(1.0)
            self.of(RATE)
        self.assertTrue(all(0 <= share < 1 for share in self.store.shares))
        self.assertEqual({int(share * 4) for share in self.store.shares}, {0, 1, 2, 3})

    def test_the_scrub_never_runs_at_rate_zero(self) -> None:
        """With the rate 0."""
        self.assertEqual(self.of(0).next_s, float("inf"))

    def test_a_pause_follows_each_pass(self) -> None:
        """After a pass."""
        self.store.steps = [ScrubStep(is_end=True)]
        self.run_until(61)
        self.assertEqual((self.counters.scrub_passes, len(self.store.asked)), (1, 1))
        self.run_until(119)
        self.assertEqual(len(self.store.asked), 1)
        self.run_until(121)
        self.assertGreater(len(self.store.asked), 1)
        self.assertEqual(self.events, [])

    def test_the_scrub_reports_its_work(self) -> None:
        """What was mended, what could not be read (once a minute), and the sum after the pass."""
        trouble = ScrubStep(trouble="EIO", checked_bytes=1)
        self.store.steps = [
            ScrubStep(mended=2, checked_bytes=1), ScrubStep(damaged=1, checked_bytes=1), trouble, trouble,
            ScrubStep(is_end=True), ScrubStep(is_end=True),
        ]
        for _ in range(6):
            self.scrubbing.step()
        reported = [event["log_format"].split("{")[0] for event in self.events]
        self.assertEqual(reported,
                         ["", "a part of a closed segment cannot be read: ", "the scrub of the closed "
                                "segments has found damage at "])
        self.assertEqual((self.events[0]["mended"], self.events[2]["found"]), (2, 5))
        self.clock.advance(TROUBLE_S)
        self.store.steps = [trouble]
        self.scrubbing.step()
        self.assertEqual(len(self.events), 4)
