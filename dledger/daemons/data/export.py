# -*- test-case-name: tests.spark.test_sidecar -*-
"""
C{twistd -n dledger-export}: an export that runs beside a member and writes segments as they close.

One thread of the service reads the log and writes the files; the reactor only waits. A stop waits for the
batch under way: finished files stay, the next start reads the rest again.

An error that waiting cannot cure (a full disk, lost or damaged entries, another log) ends the process with
status 1 and a line in its log; its supervisor starts it again after the repair.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Protocol

from twisted.application.service import Service
from twisted.internet.defer import Deferred, succeed
from twisted.internet.interfaces import IDelayedCall
from twisted.internet.threads import deferToThreadPool
from twisted.logger import Logger
from twisted.python.failure import Failure
from twisted.python.threadpool import ThreadPool
from twisted.python.usage import UsageError

from dledger.base.process.reactor import Reactor, make_reactor_monotonic, whole_reactor
from dledger.daemons.basics.common import OptionsOnly, exit_with
from dledger.values.local_paths import check_local_path

_MISSING = "dledger-export needs Arrow: pip install 'dledger[export]' ({0})"


def _number(name: str, text: object, least: float) -> float:
    try:
        value = float(str(text))
    except ValueError:
        raise UsageError(f"--{name} {text!r} is not a number") from None
    if not value >= least:
        raise UsageError(f"--{name} {text}: must be at least {least:g}")
    return value


class Options(OptionsOnly):
    """Options: the log, and the directory of the files."""

    optParameters = [
        ["source", "s", None, "A member's directory, such as ./dledger-data/dledger-n0; or an archive."],
        ["bootstrap", "b", None, "Instead of --source: members, as n0-host:port;n1-host:port."],
        ["group", "g", "default", "With --bootstrap: name of the group."],
        ["out", "o", None, "Directory for the files."],
        ["format", "f", "parquet", "parquet or jsonl."],
        ["to", "t", "", "Into a table in the directory: delta or iceberg; none: files alone."],
        ["columns", "c", "", "Columns, comma-separated, in this order; none: all."],
        ["partition-by", None, "", "One folder for each value of these columns."],
        ["compression", None, "snappy", "Compression of Parquet: snappy, zstd, gzip or none."],
        ["part-bytes", None, 128 * 1024 * 1024, "Approximate maximum of log bytes in one file."],
        ["max-delay", None, 0, "Seconds after which a file is finished before its segment is; 0: never."],
        ["interval", None, 1, "Seconds between two reads of the log."],
    ]

    def __init__(self) -> None:
        super().__init__()
        self.set: dict[str, str] = {}
        self.log: object = None
        self.settings: object = None

    def opt_set(self, text: str) -> None:
        """Any option of the Spark source, such as verifyCrc=true; may be repeated."""
        name, equals, value = text.partition("=")
        if not equals or not name.strip():
            raise UsageError(f"--set {text!r}: write --set name=value")
        self.set[name.strip()] = value.strip()

    def postOptions(self) -> None:
        """Check all options; C{self.log} and C{self.settings} are the result."""
        try:
            from dledger.spark.basics.option_texts import OptionError
            from dledger.spark.export.exporter import ExportSettings, ExportSource
            from dledger.spark.export.files import ExportError
        except ImportError as error:
            raise UsageError(_MISSING.format(error)) from None
        if bool(self["source"]) == bool(self["bootstrap"]):
            raise UsageError("give either --source (a directory) or --bootstrap (members)")
        if not self["out"]:
            raise UsageError("no directory for the files: give --out")
        try:
            check_local_path("--out", self["out"])
        except ValueError as error:
            raise UsageError(str(error)) from None
        given = {"path": self["source"]} if self["source"] else {
            "bootstrap": self["bootstrap"], "group": self["group"],
        }
        names = {
            option: tuple(name.strip() for name in self[option].split(",") if name.strip())
            for option in ("columns", "partition-by")
        }
        try:
            self.settings = ExportSettings(
                to=self["to"], format=self["format"], columns=names["columns"],
                partition_by=names["partition-by"], compression=self["compression"],
                part_bytes=int(_number("part-bytes", self["part-bytes"], 1)),
                max_delay_ms=round(_number("max-delay", self["max-delay"], 0) * 1000),
            )
            self.log = ExportSource.of(
                {**given, **self.set}, names["columns"], names["partition-by"], follows=True
            )
        except (ExportError, OptionError) as error:
            raise UsageError(str(error)) from None
        self["interval"] = _number("interval", self["interval"], 0.001)


class ExportedPart(Protocol):
    """A part that has become visible; see L{dledger.spark.export.files}."""

    @property
    def first(self) -> int:
        """Its first index."""

    @property
    def last(self) -> int:
        """Its last index."""

    @property
    def rows(self) -> int:
        """The number of its rows."""


class OpenExport(Protocol):
    """
    The part of L{dledger.spark.export.exporter} that counts here: Arrow may be missing.

    @ivar should_stop: asked before every batch. @ivar on_part: called with every part.
    """

    should_stop: Callable[[], bool]
    on_part: Callable[..., None]

    def close(self) -> None:
        """Release the directory."""


class _Turning(Protocol):
    """The part of L{dledger.spark.export.follow} that counts here."""

    on_trouble: Callable[..., None]

    def turn(self, now_ms: int) -> int:
        """Run a turn. @return: milliseconds until the next one."""

    def end(self) -> None:
        """Make visible what was read."""


class ExportService(Service):
    """
    Runs the turns of a follower in the thread, one at a time.

    Invariant: at most one of C{_waiting} (timer of the next turn) and C{_turning} (turn under way) is set.
    """

    log = Logger()

    def __init__(
        self, open_exporter: Callable[[], OpenExport], *, interval_ms: int, reactor: Reactor,
        failed: Callable[[], None], pool: ThreadPool | None = None,
    ) -> None:
        """
        @param open_exporter: opens the exporter; called in the thread.
        @param interval_ms: milliseconds between two reads of the log.
        @param reactor: reactor with a monotonic clock.
        @param failed: called when the export has failed for good; ends the process.
        """
        self._open_exporter = open_exporter
        self._interval_ms = interval_ms
        self._reactor = reactor
        self._failed = failed
        self._pool = pool if pool is not None else ThreadPool(1, 1, "export")
        self._stopping = threading.Event()
        self._exporter: OpenExport | None = None
        self._follower: _Turning | None = None
        self._waiting: IDelayedCall | None = None
        self._turning: Deferred[None] | None = None

    def startService(self) -> None:
        """Start the thread and the first turn."""
        super().startService()
        self._stopping.clear()
        self._pool.start()
        self._turn()

    def _turn(self) -> None:
        self._waiting = None
        turn = deferToThreadPool(self._reactor, self._pool, self._work, round(self._reactor.seconds() * 1000))
        # stopService waits for this Deferred, so it must not fail.
        self._turning = turn.addCallbacks(self._turned, self._turn_failed)

    def _work(self, now_ms: int) -> int:
        """Run one turn, in the thread."""
        from dledger.spark.export.follow import Follower

        if self._follower is None:
            self._exporter = exporter = self._open_exporter()
            exporter.should_stop = self._stopping.is_set
            exporter.on_part = self._tell
            made: Callable[..., _Turning] = Follower
            self._follower = made(exporter, interval_ms=self._interval_ms)
            self._follower.on_trouble = self._warn
        return self._follower.turn(now_ms)

    def _tell(self, part: ExportedPart) -> None:
        self.log.info(
            "exported {first} to {last}: {rows} rows", first=part.first, last=part.last, rows=part.rows
        )

    def _warn(self, error: Exception, wait_ms: int) -> None:
        self.log.warn("{error}; trying again in {wait_ms} ms", error=str(error), wait_ms=wait_ms)

    def _turned(self, wait_ms: int) -> None:
        self._turning = None
        if not self._stopping.is_set():
            self._waiting = self._reactor.callLater(wait_ms / 1000, self._turn)

    def _turn_failed(self, failure: Failure) -> None:
        self._turning = self._follower = None
        self.log.critical("the export has failed: {error}", error=failure.getErrorMessage())
        if not _is_expected(failure):
            self.log.failure("the cause is neither the log nor the disk", failure)
        if not self._stopping.is_set():
            self._failed()

    def stopService(self) -> Deferred[None]:
        """@return: fires when the turn under way has ended and the directory is unlocked."""
        super().stopService()
        self._stopping.set()
        if self._waiting is not None:
            self._waiting.cancel()
            self._waiting = None
        ended = succeed(None) if self._turning is None else self._turning
        return ended.addCallback(lambda _: self._end()).addCallback(lambda _: self._close())

    def _end(self) -> Deferred[None]:
        """The rows that were read become visible, in the thread."""
        if self._follower is None:
            return succeed(None)
        return deferToThreadPool(self._reactor, self._pool, self._follower.end).addErrback(self._turn_failed)

    def _close(self) -> None:
        # The thread is idle: its last turn has ended.
        if self._exporter is not None:
            self._exporter.close()
            self._exporter = self._follower = None
        self._pool.stop()


def _is_expected(failure: Failure) -> bool:
    from dledger.spark.basics.log import ReadError
    from dledger.spark.basics.option_texts import OptionError
    from dledger.spark.export.files import ExportError

    return failure.check(ExportError, ReadError, OptionError, OSError) is not None


def makeService(options: Options) -> ExportService:
    """The service that C{options} describe; called by twistd."""
    from twisted.internet import reactor as global_reactor

    reactor = whole_reactor(global_reactor)
    make_reactor_monotonic(reactor)
    return make_service(options, reactor, lambda: exit_with(1))


def make_service(options: Options, reactor: Reactor, failed: Callable[[], None]) -> ExportService:
    """The service that C{options} describe. @param failed: called before the reactor is stopped."""
    from dledger.spark.export.tables import open_export

    def end() -> None:
        failed()
        reactor.stop()

    opened: Callable[..., OpenExport] = open_export
    return ExportService(
        lambda: opened(options["out"], options.log, options.settings),
        interval_ms=max(1, round(options["interval"] * 1000)), reactor=reactor, failed=end,
    )
