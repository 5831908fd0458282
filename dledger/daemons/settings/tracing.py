# -*- test-case-name: tests.twistd.test_tracing -*-
"""
The option C{tracing} of a service: OpenTelemetry is imported with it only, as it may be missing.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping

from twisted.python.usage import UsageError

from dledger.base.reactor import Reactor
from dledger.base.tracing.spans import Spans


def make_spans(reactor: Reactor, common: Mapping[str, str]) -> Spans:
    """
    Spans that go where OpenTelemetry's environment variables say, until the process ends.

    @param common: facts of each span, such as the name of the member.
    @raise UsageError: it is not installed, or the environment is wrong.
    """
    try:
        ours = importlib.import_module("dledger.daemons.tracing.opentelemetry_spans")
        provider, leave = ours.make_provider()
    except ModuleNotFoundError as error:
        raise UsageError(f"tracing: {error}; pip install 'dledger[tracing]'") from None
    except ValueError as error:
        raise UsageError(f"tracing: {error}") from None
    # (The services have stopped by then.)
    reactor.addSystemEventTrigger("during", "shutdown", leave)
    spans: Spans = ours.OpenTelemetrySpans(provider, common)
    return spans
