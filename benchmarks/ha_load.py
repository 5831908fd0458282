# -*- test-case-name: tests.interop.test_ha_benchmark -*-
"""
The load of L{benchmarks.ha} by our own producer: L{dledger.rocketmq.client.producer.BrokerProducer},
native frames.

    python -m benchmarks.ha_load --address 127.0.0.1:10911 --window 64 --body-bytes 100

A few calls of many messages each fill the window, as in a program that sends a stream; each acknowledged
call is followed by another of the same size. It prints one line of JSON: see L{benchmarks.load.Sample}.
"""

from __future__ import annotations

import json
import random
import time
from functools import partial
from typing import Any

import attrs
import click

from benchmarks.client_load import CALLS
from benchmarks.load import LoadError, Meter, Sample
from dledger.base.serving.endpoints import tcp_endpoints
from dledger.rocketmq.client.link import BrokerLink
from dledger.rocketmq.client.producer import BrokerProducer
from dledger.rocketmq.client.values import PutError, Stored


class _Load:
    """Invariant: the messages submitted and not settled fill the window, until the time is over."""

    def __init__(self, reactor: Any, producer: BrokerProducer, topic: str, meter: Meter) -> None:
        self._reactor = reactor
        self._producer = producer
        self._topic = topic
        self._meter = meter

    def submit(self, bodies: tuple[bytes, ...], queue_id: int) -> None:
        """Submit one call."""
        settled = partial(self._settled, bodies, queue_id, time.perf_counter())
        self._producer.submit(self._topic, bodies, settled, queue_id=queue_id)

    def _settled(
        self, bodies: tuple[bytes, ...], queue_id: int, sent_s: float, outcome: tuple[Stored, ...] | PutError
    ) -> None:
        now_s = time.perf_counter()
        if now_s >= self._meter.end_s:
            return  # the end of the run cuts the connection
        if isinstance(outcome, PutError):
            self._meter.not_done(str(outcome), len(bodies))
            self._reactor.callLater(0.1, self.submit, bodies, queue_id)
            return
        wrong = {stored.status for stored in outcome if stored.status != "PUT_OK"}
        if wrong:
            self._meter.not_done(", ".join(sorted(map(str, wrong))), len(bodies))
        else:
            self._meter.acknowledged(sent_s, now_s, len(bodies))
        self.submit(bodies, queue_id)


def run_producer(
    *, address: str, topic: str, queues: int, body: bytes, window: int, warm_up_s: float, seconds: float
) -> Sample:
    """
    Keep C{window} messages unanswered until the time is over.

    @raise LoadError: the broker cannot be reached, or does not know native frames.
    """
    from twisted.internet import reactor as _reactor

    reactor: Any = _reactor
    link = BrokerLink(address, tcp_endpoints(reactor, 3.0)(address), clock=reactor)
    producer = BrokerProducer(link, clock=reactor, rng=random.Random(1))
    begin_s = time.perf_counter() + warm_up_s
    meter = Meter(begin_s=begin_s, end_s=begin_s + seconds)
    load = _Load(reactor, producer, topic, meter)
    calls = min(CALLS, window)

    def begin() -> None:
        for call in range(calls):
            load.submit((body,) * (window // calls + (call < window % calls)), call % queues)

    reactor.callWhenRunning(begin)
    reactor.callLater(warm_up_s + seconds, reactor.stop)
    reactor.run()
    producer.close()
    return meter.sample()


@click.command()
@click.option("--address", required=True, help="host:port of the master")
@click.option("--topic", default="messages", show_default=True)
@click.option("--queues", default=4, show_default=True)
@click.option("--window", default=64, show_default=True, help="messages in flight")
@click.option("--body-bytes", default=100, show_default=True)
@click.option("--warm-up", default=1.0, show_default=True, help="seconds before the measured span")
@click.option("--seconds", default=3.0, show_default=True, help="length of the measured span")
def main(
    address: str, topic: str, queues: int, window: int, body_bytes: int, warm_up: float, seconds: float
) -> None:
    """Load one master; print one line of JSON."""
    body = random.Random(1).randbytes(body_bytes)
    try:
        sample = run_producer(
            address=address, topic=topic, queues=queues, body=body, window=window, warm_up_s=warm_up,
            seconds=seconds,
        )
    except LoadError as error:
        raise click.ClickException(str(error)) from error
    click.echo(json.dumps(attrs.asdict(sample)))


if __name__ == "__main__":
    main()
