# -*- test-case-name: tests.commands.test_bench -*-
"""
C{dledger bench}: whether a group keeps up with a load, as C{etcdctl check perf}. It writes to the log.

An append is due at a time of its own, and its latency begins then: an append that waits for those before it
is late, too.
"""

from __future__ import annotations

import math
import sys
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import attrs
import click

from dledger.cli.console.command import EXIT_FAILED, EXIT_UNKNOWN, describe_error, write_json
from dledger.cli.console.failures import complain
from dledger.cli.console.numbers import RealRange, WholeRange
from dledger.values.errors import DLedgerError

if TYPE_CHECKING:
    import dledger

#: The share of the wanted rate that must be reached.
_RATE_SHARE = 0.9

_seconds = time.monotonic
_sleep = time.sleep


@attrs.define
class _Load:
    """
    The appends of a run, and their outcomes; shared by the threads of all clients.

    @ivar latencies_s: of the appends that were acknowledged.
    @ivar errors: the first error; how many appends failed for certain; how many may be in the log.
    """

    rate: float
    count: int
    begin_s: float
    latencies_s: list[float] = attrs.Factory(list)
    first_error: str = ""
    failed: int = 0
    unknown: int = 0
    end_s: float = 0.0
    is_stopped: bool = False
    _next: int = 0
    _lock: threading.Lock = attrs.Factory(threading.Lock)

    def take(self) -> float | None:
        """When the next append is due; None if there is none."""
        with self._lock:
            due_s = self.begin_s + self._next / self.rate
            late_s = _seconds() - (self.begin_s + self.count / self.rate)
            if self.is_stopped or self._next >= self.count or late_s >= 0:
                return None
            self._next += 1
            return due_s

    def done(self, due_s: float) -> None:
        """An append was acknowledged."""
        with self._lock:
            self.end_s = _seconds()
            self.latencies_s.append(self.end_s - due_s)

    def lost(self, error: DLedgerError) -> None:
        """An append was not acknowledged."""
        with self._lock:
            is_unknown = bool(getattr(error, "unknown", 0))
            self.unknown += is_unknown
            self.failed += not is_unknown
            self.first_error = self.first_error or describe_error(error)


def _quantile(sorted_s: list[float], share: float) -> float:
    return sorted_s[max(math.ceil(share * len(sorted_s)) - 1, 0)] if sorted_s else math.nan


def _run_client(log: dledger.Log, body: bytes, load: _Load) -> None:
    while (due_s := load.take()) is not None:
        wait_s = due_s - _seconds()
        if wait_s > 0:
            _sleep(wait_s)
        try:
            log.append(body)
        except DLedgerError as error:
            load.lost(error)
        else:
            load.done(due_s)


@click.command()
@click.option("--yes-write", is_flag=True, help="Do not ask: the entries stay in the log.")
@click.option("--seconds", type=RealRange(min=0.1, max=3600), default=10.0, show_default=True,
              help="Length of the load.")
@click.option("--rate", type=RealRange(min=1, max=100_000), default=150.0, show_default=True,
              help="Appends per second.")
@click.option("--size", type=WholeRange(min=1), default=1024, show_default=True, help="Bytes of a body.")
@click.option("--clients", type=WholeRange(min=1, max=500), default=50, show_default=True,
              help="Most appends under way at once.")
@click.option("--p99", "p99_ms", type=RealRange(min=0), default=100.0, show_default=True,
              help="Longest latency of 99 of 100 appends, milliseconds.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_context
def bench(
    context: click.Context, yes_write: bool, seconds: float, rate: float, size: int, clients: int,
    p99_ms: float, as_json: bool,
) -> None:
    """
    Append at a steady rate for some seconds, and say PASS or FAIL.

    PASS: every append was acknowledged, at nine tenths of the rate or more, and 99 of 100 within --p99.
    Exit status 1 for FAIL, 2 if appends have an unknown outcome. The entries are bodies of "b", and stay.
    """
    count = max(round(seconds * rate), 1)
    if not yes_write:
        if not sys.stdin.isatty():
            raise click.UsageError("it writes to the log: give --yes-write")
        click.confirm(f"append {count} entries of {size} bytes to the log of group "
                      f"{context.obj.group!r}, where they stay?", abort=True, err=True)
    with context.obj.open() as log:
        log.append(b"b" * size)  # connected now, and the leader is known
        load = _Load(rate, count, _seconds())
        _run_threads(lambda: _run_client(log, b"b" * size, load), min(clients, count), load)
    _notify(context, load, p99_ms, as_json=as_json)


def _run_threads(run: Callable[[], None], number: int, load: _Load) -> None:
    threads = [threading.Thread(target=run, name=f"dledger-bench-{n}", daemon=True) for n in range(number)]
    for thread in threads:
        thread.start()
    try:
        for thread in threads:
            thread.join()
    except KeyboardInterrupt:
        load.is_stopped = True
        complain(f"interrupted; {len(load.latencies_s)} entries were acknowledged")
        raise


def _notify(context: click.Context, load: _Load, p99_ms: float, *, as_json: bool) -> None:
    latencies_s = sorted(load.latencies_s)
    took_s = max(load.end_s - load.begin_s, load.count / load.rate)
    reached, p99_s = len(latencies_s) / took_s, _quantile(latencies_s, 0.99)
    reasons = []
    if load.failed or load.unknown:
        reasons.append(f"{load.failed} appends failed, {load.unknown} have an unknown outcome; the first: "
                       f"{load.first_error}")
    if reached < _RATE_SHARE * load.rate:
        reasons.append(f"{reached:,.0f}/s is below {_RATE_SHARE:.0%} of {load.rate:,.0f}/s")
    if not p99_s <= p99_ms / 1000:
        reasons.append(f"p99 {p99_s * 1000:.1f} ms is above {p99_ms:g} ms")
    p50_s = _quantile(latencies_s, 0.5)
    if as_json:
        write_json({
            "is_passed": not reasons, "reasons": reasons, "acknowledged": len(latencies_s),
            "failed": load.failed, "unknown": load.unknown, "entries_per_s": round(reached, 3),
            "p50_ms": round(p50_s * 1000, 3) if latencies_s else None,
            "p99_ms": round(p99_s * 1000, 3) if latencies_s else None,
        })
    else:
        click.echo(f"{len(latencies_s):,} entries, {reached:,.0f}/s, p50 {p50_s * 1000:.1f} ms, "
                   f"p99 {p99_s * 1000:.1f} ms")
        for reason in reasons:
            click.echo(f"FAIL: {reason}")
        if not reasons:
            click.echo("PASS")
    if reasons:
        context.exit(EXIT_UNKNOWN if load.unknown else EXIT_FAILED)
