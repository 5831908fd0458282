# -*- test-case-name: tests.base.test_spans -*-
"""
Spans: pieces of work with a beginning, an end, and facts. This module knows what a span is, not who shows it:
see L{dledger.daemons.tracing.opentelemetry_spans}.

The context of a span travels between processes as text, the C{traceparent} of the W3C::

    00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01
    version, trace id, span id, flags

Rule: at most L{SPANS_MAX} spans of a L{BoundedSpans} are open. One more is left out, and counted.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

#: Spans that are open at the same time, at most.
SPANS_MAX = 1024

#: What a span says, by name.
Facts = Mapping[str, int | str]

#: Of a later version only the parts that version 0 has are read, as the W3C demands; ff is none.
_CONTEXT = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?", re.ASCII)
#: Characters of a C{traceparent}, at most: those of version 0 have 55.
CONTEXT_CHARACTERS_MAX = 512


class SpanContext(NamedTuple):
    """
    A span of any process.

    @ivar trace_id, span_id: not 0. @ivar flags: bit 0: it is recorded.
    """

    trace_id: int
    span_id: int
    flags: int


def read_context(text: str) -> SpanContext | None:
    """The context that a C{traceparent} names; None: it is malformed."""
    found = _CONTEXT.fullmatch(text) if len(text) <= CONTEXT_CHARACTERS_MAX else None
    if found is None or found[1] == "ff" or (found[1] == "00" and found[5]):
        return None
    context = SpanContext(int(found[2], 16), int(found[3], 16), int(found[4], 16))
    return context if context.trace_id and context.span_id else None


def write_context(context: SpanContext) -> str:
    """The C{traceparent} of a context."""
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.flags:02x}"


class Spans(Protocol):
    """Makes spans. No method raises."""

    def begin(
        self, name: str, facts: Facts, parent: object | None, links: Sequence[SpanContext] = ()
    ) -> object:
        """
        Begin a span now.

        @param parent: a span, or the L{SpanContext} of one; None: it is the root of a trace.
        @param links: other spans that it belongs to.
        """

    def end(self, span: object, facts: Facts) -> None:
        """End a span now, with further facts."""

    def context_of(self, span: object) -> SpanContext | None:
        """Its context, for other processes; None: it is not recorded."""


class BoundedSpans:
    """
    Spans, of which at most C{spans_max} are open.

    @ivar left_out: spans that were not begun, as there were too many.
    """

    def __init__(self, spans: Spans, *, spans_max: int = SPANS_MAX) -> None:
        self._spans = spans
        self._spans_max = spans_max
        self._open = self.left_out = 0

    def begin(
        self, name: str, facts: Facts, parent: object | None = None, links: Sequence[SpanContext] = ()
    ) -> object | None:
        """@return: a span; None: it is left out."""
        if self._open >= self._spans_max:
            self.left_out += 1
            return None
        self._open += 1
        return self._spans.begin(name, facts, parent, links)

    def end(self, span: object | None, **facts: int | str) -> None:
        """End what L{begin} returned."""
        if span is not None:
            self._open -= 1
            self._spans.end(span, facts)

    def context_of(self, span: object | None) -> SpanContext | None:
        """See L{Spans.context_of}; that of a span that is left out is None."""
        return None if span is None else self._spans.context_of(span)
