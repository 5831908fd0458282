# -*- test-case-name: tests.twistd.test_tracing -*-
"""
Hands the spans of a member or a broker to OpenTelemetry, whose own environment variables say where they go.

A program that has set a tracer provider, such as C{opentelemetry-instrument}, keeps it. Otherwise one of the
SDK is made here: C{OTEL_TRACES_EXPORTER} names the exporters (C{otlp} by default, C{console}, C{none}, any
that is installed); C{OTEL_EXPORTER_OTLP_*}, C{OTEL_TRACES_SAMPLER}, C{OTEL_BSP_*}, C{OTEL_SERVICE_NAME} and
so on are the SDK's. Spans wait for their export in a bounded queue of the SDK, and leave in its thread.

Rule: an exception of OpenTelemetry stops nothing; the first is logged.

Needs the extra C{tracing}; imported only with the option of this name.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import entry_points

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.sdk.resources import SERVICE_NAME, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from twisted.logger import Logger

import dledger
from dledger.base.tracing.spans import Facts, SpanContext

#: Seconds that the last spans have at the end of the process.
LEAVE_S = 3.0
_EXPORTERS = "opentelemetry_traces_exporter"
_RESOURCE = "OTEL_RESOURCE_ATTRIBUTES"


class OpenTelemetrySpans:
    """
    See L{dledger.base.tracing.spans.Spans}.

    Implements L{dledger.base.tracing.spans.Spans}.

    @ivar common: facts that every span has.
    """

    log = Logger()

    def __init__(self, provider: trace.TracerProvider, common: Mapping[str, str]) -> None:
        """@param common: facts of each span, such as the name of the member."""
        self._tracer = provider.get_tracer("dledger", dledger.__version__)
        self.common = _named(common)
        self._has_failed = False

    def begin(
        self, name: str, facts: Facts, parent: object | None, links: Sequence[SpanContext] = ()
    ) -> object:
        """See L{dledger.base.tracing.spans.Spans.begin}; C{INVALID_SPAN} if OpenTelemetry raises."""
        try:
            # (Of the thread's own context nothing counts: the reactor works for many callers.)
            context = Context()
            if isinstance(parent, SpanContext):
                parent = trace.NonRecordingSpan(_remote(parent))
            if isinstance(parent, trace.Span):
                context = trace.set_span_in_context(parent, context)
            return self._tracer.start_span(
                f"dledger.{name}", context, attributes=self.common | _named(facts),
                links=[trace.Link(_remote(one)) for one in links],
            )
        except Exception:
            self._failed()
            return trace.INVALID_SPAN

    def end(self, span: object, facts: Facts) -> None:
        try:
            if isinstance(span, trace.Span):
                span.set_attributes(_named(facts))
                span.end()
        except Exception:
            self._failed()

    def context_of(self, span: object) -> SpanContext | None:
        try:
            found = span.get_span_context() if isinstance(span, trace.Span) else trace.INVALID_SPAN_CONTEXT
            if not (found.is_valid and found.trace_flags.sampled):
                return None
            return SpanContext(found.trace_id, found.span_id, int(found.trace_flags))
        except Exception:
            self._failed()
            return None

    def _failed(self) -> None:
        if not self._has_failed:
            self._has_failed = True
            self.log.failure("tracing fails; all else goes on (logged once)")


def _remote(context: SpanContext) -> trace.SpanContext:
    return trace.SpanContext(
        context.trace_id, context.span_id, is_remote=True, trace_flags=trace.TraceFlags(context.flags)
    )


def _named(facts: Facts) -> dict[str, int | str]:
    return {f"dledger.{name}": value for name, value in facts.items()}


def make_provider() -> tuple[trace.TracerProvider, Callable[[], None]]:
    """
    The provider that the program has set, or a new one by the environment.

    @return: also, what to call at the end of the process: it lets the last spans go, within L{LEAVE_S}.
    @raise ValueError: C{OTEL_TRACES_EXPORTER} names an exporter that is not installed, or does not start.
    """
    found = trace.get_tracer_provider()
    if not isinstance(found, trace.ProxyTracerProvider):
        return found, lambda: None
    names = [one.strip() for one in os.environ.get("OTEL_TRACES_EXPORTER", "otlp").split(",")]
    known = {one.name: one for one in entry_points(group=_EXPORTERS)}
    # (What is given to create() counts more than the environment.)
    is_named = "OTEL_SERVICE_NAME" in os.environ or SERVICE_NAME in os.environ.get(_RESOURCE, "")
    provider = TracerProvider(
        resource=Resource.create(None if is_named else {SERVICE_NAME: "dledger"}), shutdown_on_exit=False
    )
    for name in names:
        if name in ("", "none"):
            continue
        chosen = known.get(_transport(name) if name == "otlp" else name)
        if chosen is None:
            raise ValueError(
                f"OTEL_TRACES_EXPORTER={name}: no such exporter is installed; there are "
                f"{', '.join(sorted(known)) or 'none'}, and the extra tracing brings otlp by HTTP"
            )
        try:
            provider.add_span_processor(BatchSpanProcessor(chosen.load()()))
        except Exception as error:
            raise ValueError(f"OTEL_TRACES_EXPORTER={name}: {type(error).__name__}: {error}") from None
    return provider, lambda: _leave(provider)


def _transport(name: str) -> str:
    protocol = os.environ.get("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL") or os.environ.get(
        "OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf"
    )
    return f"{name}_proto_{'grpc' if protocol == 'grpc' else 'http'}"


def _leave(provider: TracerProvider) -> None:
    # A collector that does not answer does not hold up the end: the thread dies with the process.
    leaving = threading.Thread(target=provider.shutdown, name="dledger-tracing", daemon=True)
    leaving.start()
    leaving.join(LEAVE_S)
