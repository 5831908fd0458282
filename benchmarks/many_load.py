# -*- test-case-name: tests.processes.test_load -*-
"""Load of many clients, or of many readers, in one process, for L{benchmarks.many}; prints a line of JSON."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import attrs
import click
from twisted.internet.defer import Deferred, gatherResults

from benchmarks.load import Meter
from dledger.client.appender import AppendOutcome
from dledger.client.client import LogClient
from dledger.client.errors import AppendError

BODY = b"x" * 100


@attrs.define
class Writer:
    """
    One client with its own connection. Invariant: C{window} appends of one entry are under way until the end.

    @ivar appended: its appends that were acknowledged in the measured span.
    """

    client: LogClient
    window: int
    meter: Meter
    appended: int = 0

    def begin(self) -> None:
        """Fill the window."""
        for _ in range(self.window):
            self._submit()

    def _submit(self) -> None:
        self.client.submit((BODY,), partial(self._settled, time.perf_counter()))

    def _settled(self, sent_s: float, outcome: AppendOutcome) -> None:
        now_s = time.perf_counter()
        if now_s >= self.meter.end_s:
            return
        if isinstance(outcome, AppendError):
            self.meter.not_done(str(outcome))
        else:
            self.meter.acknowledged(sent_s, now_s)
            self.appended += self.meter.begin_s <= now_s
        self._submit()


def run_writers(
    reactor: Any, connect: Callable[[], LogClient], count: int, window: int, warm_up_s: float, seconds: float
) -> dict[str, object]:
    """
    Append by C{count} clients at once.

    @return: the fields of L{benchmarks.load.Sample}, and C{least} and C{most}: appends of one client.
    """
    meter = Meter(begin_s=float("inf"), end_s=float("inf"))
    writers = [Writer(connect(), window, meter) for _ in range(count)]

    def begin(_: object) -> None:
        meter.begin_s = time.perf_counter() + warm_up_s
        meter.end_s = meter.begin_s + seconds
        reactor.callLater(warm_up_s + seconds, reactor.stop)
        for writer in writers:
            writer.begin()

    gatherResults([writer.client.metadata() for writer in writers]).addCallbacks(begin, _give_up)
    reactor.run()
    counts = [writer.appended for writer in writers]
    return {**attrs.asdict(meter.sample()), "least": min(counts), "most": max(counts)}


def run_readers(
    reactor: Any, connect: Callable[[], LogClient], count: int, kind: str
) -> dict[str, object]:
    """
    Read the whole log by C{count} clients at once.

    @return: C{entries} of all, C{seconds}, C{least_s} and C{most_s} of one, and C{client_cpu_share}.
    """
    spans: list[float] = []
    counts: list[int] = []

    async def read(client: LogClient) -> None:
        begin_s, entries = time.perf_counter(), 0
        if kind == "batches":
            async for batch in client.tail_batches(0, False, timeout_s=60):
                entries += len(batch.bodies)
        else:
            async for _ in client.tail(0, False, timeout_s=60):
                entries += 1
        spans.append(time.perf_counter() - begin_s)
        counts.append(entries)

    clients = [connect() for _ in range(count)]
    begun: list[tuple[float, float]] = []

    def begin(_: object) -> Deferred[Any]:
        begun.append((time.perf_counter(), time.process_time()))
        return gatherResults([Deferred.fromCoroutine(read(client)) for client in clients])

    def done(_: object) -> None:
        begun.append((time.perf_counter(), time.process_time()))
        reactor.stop()

    gatherResults([client.metadata() for client in clients]).addCallback(begin).addCallbacks(done, _give_up)
    reactor.run()
    (begin_s, begin_cpu_s), (end_s, end_cpu_s) = begun
    return {
        "entries": sum(counts), "seconds": end_s - begin_s, "least_s": min(spans), "most_s": max(spans),
        "client_cpu_share": (end_cpu_s - begin_cpu_s) / (end_s - begin_s),
    }


def _give_up(failure: Any) -> None:
    from twisted.internet import reactor as _reactor

    reactor: Any = _reactor
    click.echo(failure.getTraceback(), err=True)
    reactor.stop()


@click.command()
@click.option("--peers", required=True)
@click.option("--group", default="default", show_default=True)
@click.option("--kind", type=click.Choice(["writers", "entries", "batches"]), default="writers")
@click.option("--count", default=1, show_default=True, help="clients")
@click.option("--window", default=4, show_default=True, help="appends under way, of each writer")
@click.option("--warm-up", default=1.0, show_default=True, help="seconds before the measured span")
@click.option("--seconds", default=3.0, show_default=True, help="length of the measured span")
def main(
    peers: str, group: str, kind: str, count: int, window: int, warm_up: float, seconds: float
) -> None:
    """Load a group by many clients in one process."""
    from twisted.internet import reactor

    connect = partial(LogClient, peers, group=group, reactor=reactor, wire="binary")
    if kind == "writers":
        found = run_writers(reactor, connect, count, window, warm_up, seconds)
    else:
        found = run_readers(reactor, connect, count, kind)
    click.echo(json.dumps(found))


if __name__ == "__main__":
    main()
