# -*- test-case-name: tests.spark.test_sidecar -*-
"""
C{twistd -n dledger-export}: an export that runs beside a member and writes segments as they close.

One thread of the service reads the log and writes the files; the reactor only waits. A stop waits for the
batch under way: finished files stay, the next start reads the rest again.

An error that waiting cannot cure (a full disk, lost or damaged entries, another log) ends the process with
status 1 and a line in its log; its supervisor starts it again after the repair.
"""

from __future__ import annotations

import importlib
import threading
from collections.abc import Callable

from twisted.application.service import MultiService
from twisted.internet.defer import Deferred, gatherResults, succeed
from twisted.internet.interfaces import IDelayedCall
from twisted.internet.threads import deferToThreadPool
from twisted.logger import Logger
from twisted.python.failure import Failure
from twisted.python.threadpool import ThreadPool
from twisted.python.usage import UsageError

from dledger.base.reactor import Reactor, make_reactor_monotonic, whole_reactor
from dledger.base.serving.admin_ports import is_beyond_loopback
from dledger.daemons.settings.options import OptionsOnly, check_endpoint, endpoint_of, exit_with
from dledger.daemons.settings.supervisor import Supervisor
from dledger.values.exports import (
    EXPORT_OPTIONS,
    PART_REPORTED,
    ExportStatus,
    PlannedExport,
    RunningExport,
    pages_refused,
)
from dledger.values.option_values import listed

_MISSING = "dledger-export needs Arrow: pip install 'dledger[export]' ({0})"


class Options(OptionsOnly):
    """Options: the log, the directory of the files, and L{EXPORT_OPTIONS}."""

    optParameters = [
        ["source", "s", None, "A member's directory, an archive, or members, as n0-host:port;n1-host:port."],
        ["group", "g", "default", "Name of the group, if the source is members."],
        ["out", None, None, "Directory or URL for the files."],
        *([option.name, None, option.default, option.help] for option in EXPORT_OPTIONS
          if not option.once and not option.is_flag and option.kind != "NAME=VALUE"),
    ]

    optFlags = [  # noqa: RUF012
        *([option.name, None, option.help] for option in EXPORT_OPTIONS
          if option.is_flag and not option.once),
    ]

    def __init__(self) -> None:
        super().__init__()
        self.given: dict[str, list[str]] = {}
        self.plan: PlannedExport | None = None

    def opt_option(self, text: str) -> None:
        """Any option of the Spark source, as name=value, such as verifyCrc=true; may be repeated."""
        self.given.setdefault("option", []).append(text)

    def opt_store_option(self, text: str) -> None:
        """With a URL as target: an option of fsspec for its store, as name=value; may be repeated."""
        self.given.setdefault("store_option", []).append(text)

    def opt_catalog_option(self, text: str) -> None:
        """With --catalog: a property of PyIceberg's catalog, as name=value; may be repeated."""
        self.given.setdefault("catalog_option", []).append(text)

    def postOptions(self) -> None:
        """Check all options; C{self.plan} is the result."""
        try:
            from dledger.spark.export.engine import ExportPlan
            from dledger.spark.export.files import ExportError
            from dledger.spark.formats.option_texts import OptionError
        except ImportError as error:
            raise UsageError(_MISSING.format(error)) from None
        for name in ("source", "out"):
            if not self[name]:
                raise UsageError(f"give --{name}")
        texts = {
            option.key: ("yes",) if option.is_flag else (self[option.name],) for option in EXPORT_OPTIONS
            if self.get(option.name) not in (None, 0)
        }
        try:
            self.plan = ExportPlan.of(
                self["source"], self["out"], {**texts, **self.given}, follows=True,
                group=self["group"],
            )
            check_pages(self.plan)
        except (ExportError, OptionError, ValueError) as error:
            raise UsageError(str(error)) from None


def check_pages(plan: PlannedExport) -> None:
    """@raise UsageError: the endpoint of the pages is none, or other machines can reach it."""
    if not plan.admin:
        return
    check_endpoint("admin", endpoint_of("admin", plan.admin), "tcp:8080:interface=127.0.0.1")
    if is_beyond_loopback(plan.admin) and not plan.insecure:
        raise UsageError(pages_refused(plan.admin))


class ExportService(MultiService):
    """
    Runs the turns of a follower in the thread, one at a time.

    Invariant: at most one of C{_waiting} (timer of the next turn) and C{_turning} (turn under way) is set.
    """

    log = Logger()

    def __init__(
        self, open_run: Callable[[], RunningExport], *, reactor: Reactor, failed: Callable[[], None],
        pool: ThreadPool | None = None, serving: Callable[[], None] = lambda: None,
    ) -> None:
        """
        @param open_run: called in the thread.
        @param reactor: reactor with a monotonic clock.
        @param failed: called when the export has failed for good; ends the process.
        @param serving: called once, when the log and the target are open.
        """
        super().__init__()
        self._open_run = open_run
        self._reactor = reactor
        self._failed = failed
        self._serving = serving
        self._is_serving = False
        self._pool = pool if pool is not None else ThreadPool(1, 1, "export")
        self._stopping = threading.Event()
        self._run: RunningExport | None = None
        self._failure = ""
        self._waiting: IDelayedCall | None = None
        self._turning: Deferred[None] | None = None

    def status(self) -> ExportStatus:
        """How far the export is."""
        run = self._run
        if run is None:
            return ExportStatus(problems=("the export is not open yet",))
        return run.status(self._now_ms)

    @property
    def _now_ms(self) -> int:
        return round(self._reactor.seconds() * 1000)

    @property
    def failure(self) -> str:
        """Why it has failed for good; empty: it has not."""
        return self._failure

    def startService(self) -> None:
        """Start the thread and the first turn."""
        super().startService()
        self._stopping.clear()
        self._pool.start()
        self._turn()

    def _turn(self) -> None:
        self._waiting = None
        turn = deferToThreadPool(self._reactor, self._pool, self._work, self._now_ms)
        # stopService waits for this Deferred, so it must not fail.
        self._turning = turn.addCallbacks(self._turned, self._turn_failed)

    def _work(self, now_ms: int) -> int:
        """Run one turn, in the thread."""
        if self._run is None:
            run = self._open_run()
            run.should_stop = self._stopping.is_set
            run.on_part = self._notify
            run.on_trouble = self._warn
            run.on_maintained = self._notify_maintained
            self._run = run
        wait_ms = self._run.turn(now_ms)
        assert wait_ms is not None, "it follows the log"
        return wait_ms

    def _notify(self, first: int, last: int, rows: int) -> None:
        self.log.info(PART_REPORTED, first=first, last=last, rows=rows)

    def _notify_maintained(self, said: str) -> None:
        self.log.info("maintenance: {said}", said=said)

    def _warn(self, error: Exception, wait_ms: int) -> None:
        self.log.warn("{error}; trying again in {wait_ms} ms", error=str(error), wait_ms=wait_ms)

    def _turned(self, wait_ms: int) -> None:
        self._turning = None
        if not self._is_serving:
            self._is_serving = True
            self._serving()
        if not self._stopping.is_set():
            self._waiting = self._reactor.callLater(wait_ms / 1000, self._turn)

    def _turn_failed(self, failure: Failure) -> None:
        self._turning = None
        self._failure = failure.getErrorMessage() or repr(failure.value)
        self.log.critical("the export has failed: {error}", error=failure.getErrorMessage())
        if not _is_expected(failure):
            self.log.failure("the cause is neither the log nor the disk", failure)
        if not self._stopping.is_set():
            self._failed()

    def stopService(self) -> Deferred[None]:
        """@return: fires when the turn under way has ended and the directory is unlocked."""
        stopped = super().stopService()
        self._stopping.set()
        if self._waiting is not None:
            self._waiting.cancel()
            self._waiting = None
        ended = succeed(None) if self._turning is None else self._turning
        ended.addCallback(lambda _: self._end()).addCallback(lambda _: self._close())
        return gatherResults([ended, stopped]).addCallback(lambda _: None)

    def _end(self) -> Deferred[None]:
        """The rows that were read become visible, in the thread."""
        if self._run is None or self._failure:
            return succeed(None)
        return deferToThreadPool(self._reactor, self._pool, self._run.end).addErrback(self._turn_failed)

    def _close(self) -> None:
        # The thread is idle: its last turn has ended.
        if self._run is not None:
            self._run.close()
            self._run = None
        self._pool.stop()


def _is_expected(failure: Failure) -> bool:
    from dledger.spark.export.engine import EXPECTED

    return failure.check(*EXPECTED) is not None


def makeService(options: Options) -> ExportService:
    """The service that C{options} describe; called by twistd."""
    from twisted.internet import reactor as global_reactor

    reactor = whole_reactor(global_reactor)
    make_reactor_monotonic(reactor)
    return make_service(options, reactor, lambda: exit_with(1))


def make_service(options: Options, reactor: Reactor, failed: Callable[[], None]) -> ExportService:
    """The service that C{options} describe. @param failed: called before the reactor is stopped."""
    def end() -> None:
        failed()
        reactor.stop()

    plan = options.plan
    assert plan is not None, "the options were parsed"
    service = ExportService(plan.open, reactor=reactor, failed=end, serving=Supervisor(reactor).serving)
    if plan.admin:
        try:
            pages = importlib.import_module("dledger.admin.exports")
        except ModuleNotFoundError as error:
            raise UsageError(f"--admin: {error}") from None
        service.addService(pages.make_export_pages(
            service.status, plan.admin, reactor, hosts=listed(plan.admin_hosts),
            failure=lambda: service.failure,
        ))
    return service
