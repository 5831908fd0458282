# -*- test-case-name: tests.spark.test_sidecar -*-
"""C{twistd dledger-export}: options, turns in its thread, an orderly stop; and once for real."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from twisted.application.service import IServiceMaker
from twisted.internet.task import Clock
from twisted.internet.testing import MemoryReactorClock
from twisted.logger import LogLevel, capturedLogs
from twisted.plugin import getPlugins
from twisted.python.failure import Failure
from twisted.python.usage import UsageError
from twisted.trial.unittest import SynchronousTestCase

from dledger.daemons.data.export import ExportService, Options, make_service
from dledger.spark.export.engine import ExportPlan, ExportRun
from dledger.spark.export.exporter import Exporter
from dledger.spark.formats.log import DamageError, ReadError
from tests.processes.children import Child, ending, wait_until
from tests.processes.members import ROOT, ended_well
from tests.spark.ledgers import plain_rows
from tests.spark.test_export import ExportCase, parquet_rows, ranges


class OptionsTests(ExportCase):
    """What may be said, and how."""

    def parse(self, *arguments: str) -> Options:
        """Options of a command line."""
        options = Options()
        options.parseOptions(list(arguments))
        return options

    def test_good(self) -> None:
        """A directory, and all that can be chosen."""
        options = self.parse(
            "--source", self.ledger.path, "--out", "out", "--format", "jsonl",
            "--columns", "index, term,body", "--partition-by", "term", "--part-bytes", "1000",
            "--max-delay", "2.5", "--option", "verifyCrc=true",
        )
        settings = options.plan.settings
        self.assertEqual((settings.format, settings.part_bytes, settings.max_delay_ms), ("jsonl", 1000, 2500))
        self.assertEqual(settings.columns, ("index", "term", "body"))
        self.assertEqual(settings.partition_by, ("term",))
        self.assertTrue(options.plan.source.scan.options.verify_crc)

    def test_bad(self) -> None:
        """Each mistake is one line that says what would be right."""
        source = ("--source", self.ledger.path)
        for arguments, part in (
            (("--out", "o"), "give --source"),
            (source, "give --out"),
            (("--source", "h:1", "--out", "o"), "port of 1 to 65535 (as in n0-127.0.0.1:20911)"),
            ((*source, "--out", "o", "--format", "csv"), "is not one of parquet, jsonl"),
            ((*source, "--out", "o", "--columns", "terms"), "did you mean term"),
            ((*source, "--out", "o", "--interval", "soon"), "is not a number"),
            ((*source, "--out", "o", "--interval", "0"), "at least 0.001"),
            ((*source, "--out", "o", "--max-delay", "nan"), "at least 0"),
            ((*source, "--out", "o", "--option", "verifyCrcs=true"), "did you mean verifyCrc"),
            ((*source, "--out", "o", "--option", "verifyCrc"), "write name=value"),
            ((*source, "--out", "o", "more"), "is not an option"),
            ((*source, "--out", "o", "--compact"), "need --to"),
            ((*source, "--out", "o", "--admin", "port"), "no endpoint, such as"),
            ((*source, "--out", "o", "--admin", "tcp:8080:interface=0.0.0.0"), "or say --insecure"),
            ((*source, "--out", "o", "--admin", "haproxy:tcp:80", "--insecure"), "PROXY protocol"),
        ):
            message = str(self.assertRaises(UsageError, self.parse, *arguments))
            self.assertIn(part, message)
            self.assertNotIn("\n", message)

    def test_tables(self) -> None:
        """Flags, and what belongs to tables and pages."""
        options = self.parse(
            "--source", self.ledger.path, "--out", "out", "--to", "delta", "--compact", "--expire-snapshots",
            "7", "--decode", "json", "--field", "a=double,b=STRING", "--admin", "tcp:0:interface=0.0.0.0",
            "--insecure", "--max-lag", "5",
        )
        plan = options.plan
        self.assertEqual((plan.compacts, plan.expire_days, plan.max_lag_ms), (True, 7, 5000))
        self.assertEqual(plan.settings.fields, (("a", "DOUBLE"), ("b", "STRING")))
        self.assertEqual((plan.admin, plan.insecure), ("tcp:0:interface=0.0.0.0", True))
        plain = self.parse("--source", self.ledger.path, "--out", "out").plan
        self.assertEqual((plain.compacts, plain.insecure, plain.admin), (False, False, ""))

    def test_plugin(self) -> None:
        """twistd knows it by its name."""
        found = [maker for maker in getPlugins(IServiceMaker) if maker.tapname == "dledger-export"]
        self.assertEqual([maker.options for maker in found], [Options])


class FakePool:
    """A thread that works when it is asked to."""

    def __init__(self) -> None:
        self.life: list[str] = []
        self.work: list[tuple[Callable[..., None], Callable[[], object]]] = []

    def start(self) -> None:
        """Remember."""
        self.life.append("started")

    def stop(self) -> None:
        """Remember."""
        self.life.append("stopped")

    def callInThreadWithCallback(
        self, done: Callable[..., None], function: Callable[..., object], *arguments: object, **more: object
    ) -> None:
        """Take work."""
        self.work.append((done, lambda: function(*arguments, **more)))

    def run(self) -> None:
        """Do one piece of it."""
        done, function = self.work.pop(0)
        try:
            result = function()
        except BaseException:
            done(False, Failure())
        else:
            done(True, result)


class FakeReactor(Clock):
    """A clock that takes calls from threads."""

    def callFromThread(self, function: Callable[..., object], *arguments: object, **more: object) -> None:
        """At once: there are no threads."""
        function(*arguments, **more)


class FakeExporter:
    """Counts steps, fails when asked to."""

    def __init__(self) -> None:
        self.steps: list[int] = []
        self.errors: list[Exception] = []
        self.is_closed = self.is_finished = False
        self.on_part: Any = None
        self.should_stop: Any = None

    def step(self, now_ms: int, *, is_last: bool) -> None:
        """Fail with the next error, if there is one."""
        self.steps.append(now_ms)
        if self.errors:
            raise self.errors.pop(0)

    def finish(self) -> None:
        """Fail with the next error, if there is one."""
        self.is_finished = True
        if self.errors:
            raise self.errors.pop(0)

    def close(self) -> None:
        """Remember."""
        self.is_closed = True


class ServiceTests(SynchronousTestCase):
    """The service on a clock of its own."""

    def setUp(self) -> None:
        """A service that was started; its first turn is in the thread."""
        self.reactor, self.pool, self.exporter = FakeReactor(), FakePool(), FakeExporter()
        self.reactor.advance(7.0)
        self.failures = 0
        self.opened = 0
        self.served: list[int] = []
        self.service = ExportService(
            self.open, reactor=self.reactor, failed=self.fail_process, serving=lambda: self.served.append(1),
            pool=self.pool,  # type: ignore[arg-type]
        )
        self.service.startService()

    def open(self) -> ExportRun:
        """A run of the exporter."""
        self.opened += 1
        plan = SimpleNamespace(interval_ms=500, out="out", max_lag_ms=0, compacts=False, expire_days=None)
        return ExportRun(cast("ExportPlan", plan), cast("Exporter", self.exporter))

    def fail_process(self) -> None:
        """What would end the process."""
        self.failures += 1

    def test_turns(self) -> None:
        """One turn after the other, each an interval after the end of the one before."""
        self.assertEqual((self.pool.life, self.opened, self.served), (["started"], 0, []))
        self.pool.run()
        self.assertEqual(self.served, [1])
        self.reactor.advance(0.499)
        self.assertEqual(self.pool.work, [])
        self.reactor.advance(0.001)
        self.reactor.advance(9)
        self.assertEqual(len(self.pool.work), 1)
        self.pool.run()
        self.assertEqual((self.exporter.steps, self.opened, self.served), ([7000, 7500], 1, [1]))

    def test_trouble(self) -> None:
        """Trouble that passes is a warning, and another turn later on."""
        self.pool.run()
        self.reactor.advance(0.5)
        self.exporter.errors = [ReadError("the member is down")]
        with capturedLogs() as events:
            self.pool.run()
        self.assertEqual([event["log_level"] for event in events], [LogLevel.warn])
        self.assertEqual((events[0]["error"], events[0]["wait_ms"]), ("the member is down", 1000))
        self.reactor.advance(1)
        self.assertEqual((len(self.pool.work), self.failures), (1, 0))

    def test_failure(self) -> None:
        """Trouble that does not pass ends the process, with a line that says why and no traceback."""
        self.exporter.errors = [DamageError("entry 7 is damaged")]
        with capturedLogs() as events:
            self.pool.run()
        self.assertEqual([event["error"] for event in events], ["entry 7 is damaged"])
        self.assertEqual((self.failures, self.reactor.getDelayedCalls()), (1, []))
        self.successResultOf(self.service.stopService())
        self.assertEqual((self.exporter.is_finished, self.exporter.is_closed), (False, True))

    def test_our_fault(self) -> None:
        """Any other error has its traceback in the log."""
        self.exporter.errors = [AssertionError("a bug")]
        self.pool.run()
        self.assertEqual(self.failures, 1)
        self.assertEqual(len(self.flushLoggedErrors(AssertionError)), 1)

    def test_stop_between_turns(self) -> None:
        """Nothing is left waiting; the directory is free."""
        self.pool.run()
        stopped = self.service.stopService()
        self.assertEqual((self.exporter.is_finished, self.exporter.is_closed), (False, False))
        self.pool.run()  # the rows that were read become visible
        self.successResultOf(stopped)
        self.assertTrue(self.exporter.is_finished)
        self.assertEqual((self.reactor.getDelayedCalls(), self.pool.work), ([], []))
        self.assertEqual((self.exporter.is_closed, self.pool.life), (True, ["started", "stopped"]))

    def test_stop_in_a_turn(self) -> None:
        """The turn is asked to stop, and waited for."""
        self.pool.run()
        self.reactor.advance(0.5)
        self.assertFalse(self.exporter.should_stop())
        stopped = self.service.stopService()
        self.assertNoResult(stopped)
        self.assertTrue(self.exporter.should_stop())
        self.assertFalse(self.exporter.is_closed)
        self.pool.run()
        self.assertFalse(self.exporter.is_closed)
        self.exporter.errors = [OSError(28, "no room")]
        with capturedLogs() as events:
            self.pool.run()
        self.assertEqual([event["error"] for event in events], ["[Errno 28] no room"])
        self.successResultOf(stopped)
        self.assertTrue(self.exporter.is_closed)
        self.assertEqual((self.reactor.getDelayedCalls(), self.failures), ([], 0))

    def test_stop_in_a_turn_that_fails(self) -> None:
        """An error at the very end is logged, and does not keep the process from stopping."""
        stopped = self.service.stopService()
        self.exporter.errors = [DamageError("entry 7 is damaged")]
        with capturedLogs() as events:
            self.pool.run()
        self.successResultOf(stopped)
        self.assertEqual((len(events), self.failures), (1, 0))


class MakeTests(ExportCase):
    """What twistd makes of the options."""

    def test_directory_in_use(self) -> None:
        """What keeps the export from starting ends the process, and the reason is in the log."""
        options = Options()
        options.parseOptions(["--source", self.ledger.path, "--out", str(self.out)])
        recorded: list[str] = []
        reactor = MemoryReactorClock()
        reactor.stop = lambda: recorded.append("stopped")
        service = make_service(options, reactor, lambda: recorded.append("failed"))
        pool = FakePool()
        service._pool = pool  # type: ignore[assignment]
        reactor.callFromThread = lambda function, *arguments: function(*arguments)
        with self.exporter():
            service.startService()
            with capturedLogs() as events:
                pool.run()
        self.assertIn("another export", events[0]["error"])
        self.assertEqual(recorded, ["failed", "stopped"])
        self.assertIn("another export", service.failure)

    def test_pages(self) -> None:
        """With --admin they listen on the loopback interface, and end with the service."""
        options = Options()
        options.parseOptions(["--source", self.ledger.path, "--out", str(self.out), "--admin", "8080"])
        reactor = MemoryReactorClock()
        reactor.callFromThread = lambda function, *arguments: function(*arguments)
        service = make_service(options, reactor, lambda: None)
        pool = FakePool()
        service._pool = pool  # type: ignore[assignment]
        service.startService()
        port, _, _, interface = reactor.tcpServers[0]
        self.assertEqual((port, interface), (8080, "127.0.0.1"))
        self.assertEqual(service.status().problems, ("the export is not open yet",))
        pool.run()
        self.assertEqual((service.status().problems, service.failure), ((), ""))
        stopped = service.stopService()
        pool.run()
        self.successResultOf(stopped)


class ProcessTests(ExportCase):
    """twistd."""

    def child(self, *words: str) -> Child:
        """A sidecar of the ledger."""
        command = [
            sys.executable, "-c", "from twisted.scripts.twistd import run; run()", "-n", "--pidfile=",
            "dledger-export", "--out", str(self.out), "--interval", "0.02", "--max-delay", "0",
            *words,
        ]
        return Child("export", command, log_path=Path(self.mktemp()) / "log",
                     environment={"PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"})

    def test_segments(self) -> None:
        """Closed segments are exported while the log grows; killed, started again, and stopped in order."""
        child = self.child("--source", self.ledger.path)
        with ending(child):
            for number in range(3):
                child.start()
                self.ledger.fill(60, seed=number)
                self.ledger.commit()
                rows = plain_rows(self.ledger.path)
                size = self.ledger.config.mapped_file_size_for_entry_data
                closed = [row for row in rows if row[2] // size < rows[-1][2] // size]
                wait_until(
                    lambda closed=closed: parquet_rows(self.out) == closed, seconds=60,
                    what="the closed segments as files",
                )
                if number == 1:
                    child.kill()
                else:
                    status = child.stop()
                    self.assertTrue(ended_well(status), f"{status}\n{child.log_tail()}")
                self.assertEqual(parquet_rows(self.out), closed)
        edges = ranges(self.out)
        self.assertTrue(all(one[1] + 1 == other[0] for one, other in zip(edges, edges[1:], strict=False)))

    def test_no_ledger(self) -> None:
        """A log that is not there: status 1 and a line."""
        os.makedirs("empty", exist_ok=True)
        child = self.child("--source", "empty")
        with ending(child):
            child.start()
            self.assertEqual(child.wait(seconds=60), 1)
        self.assertIn("not a member's directory", child.log_tail())
