# -*- test-case-name: tests.twistd.test_tracing -*-
"""Spans of members and brokers as OpenTelemetry gets them, and what its environment variables say."""

from __future__ import annotations

import os
import threading
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from twisted.internet.testing import MemoryReactorClock
from twisted.python.usage import UsageError
from twisted.trial.unittest import SynchronousTestCase

import dledger
from dledger.base.reactor import whole_reactor
from dledger.base.tracing.spans import SpanContext
from dledger.core.driver import Driver
from dledger.daemons.ledger import member
from dledger.daemons.rocketmq import broker
from dledger.daemons.settings import tracing as option
from dledger.daemons.tracing import opentelemetry_spans as tracing
from dledger.daemons.tracing.opentelemetry_spans import OpenTelemetrySpans, make_provider
from dledger.node.work.tracing import OpenSpans, TracedDriver
from dledger.raft_broker.service import RaftBrokerService
from dledger.rocketmq.broker.producing.tracing import MessageTrace
from tests.broker.send_support import Sending, send_of
from tests.node.rig import Rig


class _Failing(trace.NonRecordingSpan):
    """A span of which nothing works."""

    def get_span_context(self) -> trace.SpanContext:
        raise RuntimeError("no context")

    def end(self, end_time: int | None = None) -> None:
        raise RuntimeError("no end")


class SpansTests(SynchronousTestCase):
    """What is exported."""

    def setUp(self) -> None:
        self.exporter = InMemorySpanExporter()
        self.provider = TracerProvider(shutdown_on_exit=False)
        self.provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.spans = OpenTelemetrySpans(self.provider, {"group": "g", "member": "n0"})

    def test_member(self) -> None:
        """One trace for an append, with its attributes; our version; no body."""
        rig = Rig(make_driver=partial(TracedDriver, trace=OpenSpans(self.spans)))
        rig.lead()
        self.exporter.clear()
        result = rig.node.append((b"first secret", b"second"))
        rig.clock.advance(0)
        committed = self.successResultOf(result)
        found = {span.name: span for span in self.exporter.get_finished_spans()}
        append, commit = found["dledger.append"], found["dledger.commit"]
        self.assertEqual(dict(append.attributes or {}), {
            "dledger.group": "g", "dledger.member": "n0", "dledger.requests": 1, "dledger.count": 2,
            "dledger.bytes": 18, "dledger.first_index": committed.index, "dledger.term": committed.term,
            "dledger.result": "SUCCESS",
        })
        self.assertIsNone(append.parent)
        for name in ("dledger.write", "dledger.commit"):
            parent = found[name].parent
            assert parent is not None
            self.assertEqual(parent.span_id, append.context.span_id)
            self.assertEqual(found[name].context.trace_id, append.context.trace_id)
        self.assertEqual((commit.attributes or {})["dledger.result"], "committed")
        self.assertEqual(append.instrumentation_scope.version, dledger.__version__)
        self.assertNotIn("secret", "".join(span.to_json() for span in found.values()))

    def test_messages(self) -> None:
        """From a producer's own span, by the broker's, to the delivery: one trace."""
        tracer = self.provider.get_tracer("shop")
        with tracer.start_as_current_span("order") as order:
            headers: dict[str, str] = {}
            TraceContextTextMapPropagator().inject(headers)
        trace_of = MessageTrace(self.spans)
        self.patch(Sending, "trace", trace_of)
        broker = Sending()
        self.addCleanup(broker.stop)
        producer = broker.connect()
        producer.send(send_of(b"secret", properties=f"traceparent\x01{headers['traceparent']}"))
        producer.send(send_of(b"secret"))
        for one in broker.stored():
            trace_of.delivered([broker.store.log.read(one.physical_offset, one.size)], "G", "T1", 0)
        found = self.exporter.get_finished_spans()
        of_shop = [one.name for one in found if one.context.trace_id == order.get_span_context().trace_id]
        self.assertEqual(of_shop, ["order", "dledger.store", "dledger.send", "dledger.deliver"])
        own = found[-1]
        send = [one for one in found if one.name == "dledger.send"][1]
        assert own.parent is not None
        self.assertEqual((own.parent.span_id, own.parent.is_remote), (send.context.span_id, True))
        self.assertNotIn("secret", "".join(span.to_json() for span in found))

    def test_links(self) -> None:
        """To other traces; a span that is not sampled has no context for others."""
        spans = OpenTelemetrySpans(
            TracerProvider(shutdown_on_exit=False, sampler=ALWAYS_OFF), {"broker": "b"}
        )
        self.assertIsNone(spans.context_of(spans.begin("send", {}, None)))
        others = (SpanContext(1, 2, 1), SpanContext(3, 4, 0))
        span = self.spans.begin("deliver", {}, None, others)
        self.spans.end(span, {})
        (found,) = self.exporter.get_finished_spans()
        context = self.spans.context_of(span)
        assert context is not None
        self.assertEqual((*context[:2], context.flags & 1), (*found.context[:2], 1))
        self.assertEqual([tuple(one.context[:2]) for one in found.links], [(1, 2), (3, 4)])

    def test_own_context(self) -> None:
        """A span that is open in the reactor's thread is nobody's parent."""
        with self.provider.get_tracer("other").start_as_current_span("other"):
            self.spans.end(self.spans.begin("append", {}, None), {})
        self.assertIsNone(self.exporter.get_finished_spans()[0].parent)

    def test_errors(self) -> None:
        """Do not reach the member; the first is logged."""

        class Broken(trace.NoOpTracerProvider):
            """Its spans cannot be begun."""

            def get_tracer(self, *_: Any, **__: Any) -> Any:
                """Nothing."""

        spans = OpenTelemetrySpans(Broken(), {"group": "g", "member": "n0"})
        rig = Rig(make_driver=partial(TracedDriver, trace=OpenSpans(spans)))
        rig.lead()
        result = rig.node.append(b"one")
        rig.clock.advance(0)
        self.successResultOf(result)
        self.assertIsNone(spans.context_of(Broken()))
        self.assertEqual(len(self.flushLoggedErrors(AttributeError)), 1)

    def test_errors_of_a_broker(self) -> None:
        """Neither is a message lost, nor do the spans that are open grow in number."""
        self.patch(trace.NoOpTracer, "start_span", lambda *_, **__: object.__new__(_Failing))
        messages = MessageTrace(OpenTelemetrySpans(trace.NoOpTracerProvider(), {}), spans_max=3)
        self.patch(Sending, "trace", messages)
        broker = Sending()
        self.addCleanup(broker.stop)
        producer = broker.connect()
        for _ in range(5):
            (answer,) = producer.send(send_of())
            self.assertEqual(answer.code, 0)
        self.assertEqual((messages.left_out, messages._open), (0, 0))
        self.assertEqual(len(self.flushLoggedErrors(RuntimeError)), 1)


class EnvironmentTests(SynchronousTestCase):
    """The effect of the variables of OpenTelemetry."""

    def setUp(self) -> None:
        # (OpenTelemetry holds the mapping itself.)
        kept = mock.patch.dict(os.environ)
        kept.start()
        self.addCleanup(kept.stop)
        for name in [name for name in os.environ if name.startswith("OTEL_")]:
            del os.environ[name]

    def provider(self) -> TracerProvider:
        """A new one."""
        made, leave = make_provider()
        assert isinstance(made, TracerProvider)
        self.addCleanup(leave)
        return made

    def test_exporters(self) -> None:
        """OTLP by HTTP without a word; several; none; what is not installed is said."""
        os.environ["OTEL_TRACES_EXPORTER"] = "console, none"
        self.assertEqual(len(self.provider()._active_span_processor._span_processors), 1)
        os.environ["OTEL_TRACES_EXPORTER"] = "none"
        self.assertEqual(self.provider()._active_span_processor._span_processors, ())
        for name, protocol, said in (
            ("zipkin", "", "OTEL_TRACES_EXPORTER=zipkin: no such exporter is installed; there are"),
            ("otlp", "grpc", "OTEL_TRACES_EXPORTER=otlp: no such exporter is installed; there are"),
        ):
            os.environ["OTEL_TRACES_EXPORTER"], os.environ["OTEL_EXPORTER_OTLP_PROTOCOL"] = name, protocol
            self.assertIn(said, str(self.assertRaises(ValueError, make_provider)))
        del os.environ["OTEL_TRACES_EXPORTER"], os.environ["OTEL_EXPORTER_OTLP_PROTOCOL"]
        self.assertEqual(len(self.provider()._active_span_processor._span_processors), 1)

    def test_name(self) -> None:
        """Ours, unless there is one."""
        os.environ["OTEL_TRACES_EXPORTER"] = "none"
        for environment, name in (
            ({}, "dledger"), ({"OTEL_SERVICE_NAME": "orders"}, "orders"),
            ({"OTEL_RESOURCE_ATTRIBUTES": "service.name=log"}, "log"),
        ):
            with mock.patch.dict(os.environ, environment):
                self.assertEqual(self.provider().resource.attributes["service.name"], name)

    def test_set_before(self) -> None:
        """A provider of the program is used as it is, and not ended here."""
        there = TracerProvider(shutdown_on_exit=False)
        self.patch(trace, "get_tracer_provider", lambda: there)
        ended: list[bool] = []
        self.patch(there, "shutdown", lambda: ended.append(True))
        provider, leave = make_provider()
        leave()
        self.assertIs(provider, there)
        self.assertEqual(ended, [])

    def test_leave(self) -> None:
        """The last spans go; an exporter that hangs does not hold up the end."""
        os.environ["OTEL_TRACES_EXPORTER"] = "none"
        provider, leave = make_provider()
        assert isinstance(provider, TracerProvider)
        exporter = InMemorySpanExporter()
        provider.add_span_processor(tracing.BatchSpanProcessor(exporter))
        spans = OpenTelemetrySpans(provider, {"group": "g", "member": "n0"})
        spans.end(spans.begin("append", {}, None), {})
        self.patch(tracing, "LEAVE_S", 30.0)
        leave()
        self.assertEqual([span.name for span in exporter.get_finished_spans()], ["dledger.append"])
        self.patch(tracing, "LEAVE_S", 0.01)
        provider, leave = make_provider()
        hangs = threading.Event()
        self.patch(provider, "shutdown", hangs.wait)
        leave()
        hangs.set()


class OptionTests(SynchronousTestCase):
    """The option C{tracing}."""

    def service(self, *words: str) -> Any:
        """What twistd makes."""
        options = member.Options()
        options.parseOptions(["--store", str(Path(self.mktemp())), *words])
        self.reactor = MemoryReactorClock()
        return member.make_service(options, whole_reactor(self.reactor))

    def test_off(self) -> None:
        """The plain driver, and nothing at the end."""
        self.assertIs(self.service().extras.make_driver, Driver)
        self.assertEqual(self.reactor.triggers, {})

    def test_on(self) -> None:
        """Spans for this member, and their end with the process."""
        provider = TracerProvider(shutdown_on_exit=False)
        left: list[bool] = []
        self.patch(tracing, "make_provider", lambda: (provider, lambda: left.append(True)))
        made = self.service("--set", "tracing=true", "--group", "g").extras.make_driver
        self.assertIs(made.func, TracedDriver)
        traced = made.keywords["trace"]
        self.assertEqual(traced._spans.common, {"dledger.group": "g", "dledger.member": "n0"})
        self.assertFalse(traced._has_machine)
        ((call, _args, _options),) = self.reactor.triggers["during"]["shutdown"]
        call()
        self.assertEqual(left, [True])

    def test_refused(self) -> None:
        """In one line: the package that is not installed, or the wrong variable."""

        def wrong() -> None:
            raise ValueError("OTEL_TRACES_EXPORTER=x: no")

        self.patch(tracing, "make_provider", wrong)
        said = self.assertRaises(UsageError, self.service, "--set", "tracing=true")
        self.assertEqual(str(said), "tracing: OTEL_TRACES_EXPORTER=x: no")

        def absent(name: str) -> None:
            raise ModuleNotFoundError(f"No module named {name!r}")

        self.patch(option.importlib, "import_module", absent)
        said = self.assertRaises(UsageError, self.service, "--set", "tracing=true")
        self.assertIn("pip install 'dledger[tracing]'", str(said))


class BrokerOptionTests(SynchronousTestCase):
    """The option C{tracing} of a broker, with each kind of log."""

    RAFT = ("enableDLegerCommitLog=true", "dLegerPeers=n0-127.0.0.1:20911", "dLegerSelfId=n0")

    def trace_of(self, *settings: str) -> Any:
        """The trace of the broker that twistd makes."""
        words = [word for setting in settings for word in ("--set", setting)]
        options = broker.Options()
        options.parseOptions(["--store", self.mktemp(), "--name", "b", *words])
        self.reactor = MemoryReactorClock()
        made = broker.make_service(options, whole_reactor(self.reactor))
        whole = made.broker if isinstance(made, RaftBrokerService) else made
        return whole.around.trace

    def test_off(self) -> None:
        """None, and OpenTelemetry is not asked."""
        self.patch(option.importlib, "import_module", None)
        for log in ((), self.RAFT):
            self.assertIsNone(self.trace_of(*log))

    def test_on(self) -> None:
        """Its spans name the broker."""
        provider = TracerProvider(shutdown_on_exit=False)
        self.patch(tracing, "make_provider", lambda: (provider, lambda: None))
        for log in ((), self.RAFT):
            found = self.trace_of("tracing=true", *log)
            self.assertEqual(
                found._spans.common, {"dledger.cluster": "DefaultCluster", "dledger.broker": "b"}
            )
            self.assertEqual(len(self.reactor.triggers["during"]["shutdown"]), 1)
