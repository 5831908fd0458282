# -*- test-case-name: tests.base.test_time_text -*-
"""Moments in words and numbers."""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from dledger.base.time_text import MOMENT_MS_MAX, moment_ms, time_text

NOON_MS = 1_769_860_800_000


class TimeTextTests(SynchronousTestCase):
    """Both ways."""

    def test_moments(self) -> None:
        """Every way to write one."""
        for text in ("2026-01-31T12:00:00", "2026-01-31 12:00", "2026-01-31T14:00:00+02:00", "1769860800",
                     "1769860800.0", "1769860800000", "2026-01-31T12:00:00Z"):
            self.assertEqual(moment_ms(text), NOON_MS, text)
        self.assertEqual(moment_ms("1769860800.25"), NOON_MS + 250)

    def test_no_moments(self) -> None:
        """The error says what is allowed; a long text is cut."""
        for text in ("", "now", "12", "1" * 16, "2026-13-01", "\u0661" * 10, "x" * 1000):
            error = self.assertRaises(ValueError, moment_ms, text)
            self.assertIn("seconds (9 to 11 digits)", str(error))
            self.assertTrue(len(str(error)) < 300)
        error = self.assertRaises(ValueError, moment_ms, "1969-12-31T23:00:00")
        self.assertIn("is not from 1970 to 9999", str(error))

    def test_text(self) -> None:
        """In UTC; what is no moment stays a number."""
        self.assertEqual(time_text(NOON_MS + 7), "2026-01-31 12:00:00.007")
        self.assertEqual(time_text(MOMENT_MS_MAX), "9999-12-31 23:59:59.999")
        for time_ms in (-1, MOMENT_MS_MAX + 1, 1 << 70):
            self.assertEqual(time_text(time_ms), str(time_ms))
