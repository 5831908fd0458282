# -*- test-case-name: tests.base.test_spans -*-
"""The context of a span as text, and the bound of those that are open."""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from dledger.base.tracing.spans import BoundedSpans, SpanContext, read_context, write_context
from tests.base.reported_spans import ReportedSpans

#: The example of the W3C.
TEXT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


class ContextTests(SynchronousTestCase):
    """C{traceparent}."""

    def test_both_ways(self) -> None:
        """Read, and written as it was."""
        context = read_context(TEXT)
        assert context is not None
        self.assertEqual(
            context, SpanContext(0x4BF92F3577B34DA6A3CE929D0E0E4736, 0x00F067AA0BA902B7, 1)
        )
        self.assertEqual(write_context(context), TEXT)

    def test_later_version(self) -> None:
        """Its parts that version 0 has are read."""
        self.assertEqual(read_context("cc" + TEXT[2:]), read_context(TEXT))
        self.assertEqual(read_context("cc" + TEXT[2:] + "-what-comes"), read_context(TEXT))

    def test_malformed(self) -> None:
        """No context."""
        for text in (
            "", TEXT[:-1], TEXT + "0", TEXT + "-00", "ff" + TEXT[2:], TEXT.upper(), TEXT + "\n",
            "cc" + TEXT[2:] + "-" + "x" * 512, "00-" + "0" * 32 + TEXT[35:], TEXT[:36] + "0" * 16 + "-01",
            TEXT.replace("4bf9", "٤bf9"),
        ):
            self.assertIsNone(read_context(text), text)


class BoundedTests(SynchronousTestCase):
    """Spans that are open."""

    def test_bound(self) -> None:
        """One more is left out, and counted; an end makes room."""
        reported = ReportedSpans()
        spans = BoundedSpans(reported, spans_max=2)
        first, _second = spans.begin("a", {}), spans.begin("b", {})
        self.assertIsNone(spans.begin("c", {}))
        self.assertEqual(spans.left_out, 1)
        spans.end(None)
        self.assertIsNone(spans.context_of(None))
        spans.end(first, result="x")
        self.assertIsNotNone(spans.begin("d", {}))
        self.assertEqual([one.name for one in reported.all], ["a", "b", "d"])
