# -*- test-case-name: tests.processes.test_load -*-
"""
The load of C{benchmarks.load} by our own client: L{dledger.client.client.LogClient} over the native wire.

A few calls of many bodies each fill the window, as in a program that appends a stream; each acknowledged
call is followed by another of the same size.
"""

from __future__ import annotations

import time
from functools import partial
from typing import Any

from twisted.internet.defer import gatherResults

from benchmarks.load import LoadError, Meter, Sample, shares_of
from dledger.client.appender import AppendOutcome
from dledger.client.client import LogClient
from dledger.client.errors import AppendError
from dledger.values.tls_files import TlsFiles

#: Number of calls that share the window.
CALLS = 8


class _Load:
    """Invariant: the bodies submitted and not settled fill the window, until the time is over."""

    def __init__(self, reactor: Any, client: LogClient, meter: Meter) -> None:
        self._reactor = reactor
        self._client = client
        self._meter = meter

    def submit(self, bodies: tuple[bytes, ...]) -> None:
        """Submit one call."""
        self._client.submit(bodies, partial(self._settled, bodies, time.perf_counter()))

    def _settled(self, bodies: tuple[bytes, ...], sent_s: float, outcome: AppendOutcome) -> None:
        now_s = time.perf_counter()
        if now_s >= self._meter.end_s:
            return  # the end of the run cuts the connection
        if isinstance(outcome, AppendError):
            self._meter.not_done(str(outcome), len(bodies))
            self._reactor.callLater(0.1, self.submit, bodies)
            return
        self._meter.acknowledged(sent_s, now_s, len(bodies))
        self.submit(bodies)


def run_client(
    *, peers: str, group: str, body: bytes, window: int, links: int = 1, warm_up_s: float, seconds: float,
    tls: TlsFiles | None = None, exactly_once: bool = False,
) -> Sample:
    """
    Keep C{window} appends of each of C{links} clients unanswered until the time is over.

    @raise LoadError: no leader was found in time.
    """
    from twisted.internet import reactor as _reactor

    reactor: Any = _reactor
    clients = [
        LogClient(peers, group=group, reactor=reactor, wire="binary", tls=tls, exactly_once=exactly_once)
        for _ in range(links)
    ]
    failures: list[str] = []
    meters: list[Meter] = []

    def begin(_info: object) -> None:
        begin_s = time.perf_counter() + warm_up_s
        meter = Meter(begin_s=begin_s, end_s=begin_s + seconds)
        meters.append(meter)
        reactor.callLater(warm_up_s + seconds, reactor.stop)
        for client in clients:
            load = _Load(reactor, client, meter)
            for share in shares_of(window, CALLS):
                load.submit((body,) * share)

    def failed(failure: Any) -> None:
        failures.append(failure.getErrorMessage())
        reactor.stop()

    reactor.callWhenRunning(
        lambda: gatherResults([client.metadata() for client in clients]).addCallbacks(begin, failed))
    reactor.run()
    for client in clients:
        client.close()
    if failures:
        raise LoadError(failures[0])
    return meters[0].sample()
