# -*- test-case-name: tests.interop.test_ha_benchmark -*-
"""
What a broker's native frames buy: the same Python program, once with them, once with RocketMQ's frames.

    python -m benchmarks.native_frames --rounds 5 --json native-frames.json

One master of ours stores; a producer, then a reader, of each kind take turns with it. The producers keep the
same number of messages unanswered:

    native   our producer: all messages that wait travel in one frame
    batch    RocketMQ's batch request (320): as many messages in one as a call of the native producer has
    single   one ordinary request (310) for each message

The readers read the same messages from the beginning to the end: C{native} takes records from the log,
C{pull} pulls the queues and merges them, as L{dledger.rocketmq.broker.client.pull_tail.PullTail} does.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import attrs
import click
from rich.progress import Progress, TextColumn, TimeElapsedColumn
from twisted.internet.defer import Deferred
from twisted.python.failure import Failure

from benchmarks.client_load import CALLS
from benchmarks.common import console, median, number, probe_machine, table, work_directory, write_json
from benchmarks.ha_brokers import ASYNC_MASTER, QUEUES, TOPIC, our_broker
from benchmarks.ha_load import run_producer
from benchmarks.load import LoadError, Meter, Sample, paired_ratio
from dledger.base.serving.endpoints import tcp_endpoints
from dledger.rocketmq.broker.client.link import BrokerLink
from dledger.rocketmq.broker.client.native_tail import NativeTail, Reading
from dledger.rocketmq.broker.client.pull_tail import PullTail
from protocols.rocketmq.broker import BrokerConnection
from protocols.wire.remoting import RemotingCommand
from protocols.wire.rocketmq.message import BatchItem, encode_batch
from tests.processes.children import ChildError, end_all
from tests.processes.members import ROOT

NATIVE, BATCH, SINGLE, PULL = "native", "batch", "single", "pull"
PRODUCERS = (NATIVE, BATCH, SINGLE)
READERS = (NATIVE, PULL)
_SEND, _SEND_BATCH = 310, 320


class _OrdinaryLoad:
    """Requests of RocketMQ's clients. Invariant: the messages not answered fill the window."""

    def __init__(self, reactor: Any, connection: BrokerConnection, meter: Meter, body: bytes) -> None:
        self._reactor = reactor
        self._connection = connection
        self._meter = meter
        self._body = body

    def submit(self, count: int, queue_id: int) -> None:
        """Send one request of C{count} messages; the answer is followed by another of them."""
        fields = {
            "a": "load", "b": TOPIC, "c": "TBW102", "d": str(QUEUES), "e": str(queue_id), "f": "0",
            "g": str(int(time.time() * 1000)), "h": "0", "i": "", "j": "0", "k": "false", "m": "false",
        }
        code, body = _SEND, self._body
        if count > 1:
            code, fields["m"] = _SEND_BATCH, "true"
            body = encode_batch([BatchItem(flag=0, body=self._body, properties_data=b"")] * count)
        done = self._connection.ask(RemotingCommand(code=code, opaque=0, ext_fields=fields, body=body))
        sent_s = time.perf_counter()
        done.addCallbacks(partial(self._answered, count, queue_id, sent_s), partial(self._failed, count))

    def _answered(self, count: int, queue_id: int, sent_s: float, answer: RemotingCommand) -> None:
        if answer.code:
            self._meter.not_done(f"{answer.code} {answer.remark}", count)
            self._reactor.callLater(0.1, self.submit, count, queue_id)
            return
        self._meter.acknowledged(sent_s, time.perf_counter(), count)
        self.submit(count, queue_id)

    def _failed(self, count: int, failure: Failure) -> None:
        if time.perf_counter() < self._meter.end_s:  # the end of the run cuts the connection
            self._meter.not_done(failure.getErrorMessage(), count)


def run_ordinary(
    kind: str, *, address: str, body: bytes, window: int, warm_up_s: float, seconds: float
) -> Sample:
    """Keep C{window} messages unanswered until the time is over, with RocketMQ's requests."""
    from twisted.internet import reactor as _reactor

    reactor: Any = _reactor
    link = BrokerLink(address, tcp_endpoints(reactor, 3.0)(address), clock=reactor)
    begin_s = time.perf_counter() + warm_up_s
    meter = Meter(begin_s=begin_s, end_s=begin_s + seconds)
    calls = window if kind == SINGLE else min(CALLS, window)

    def begin(connection: BrokerConnection) -> None:
        load = _OrdinaryLoad(reactor, connection, meter, body)
        for call in range(calls):
            load.submit(window // calls + (call < window % calls), call % QUEUES)

    def failed(failure: Failure) -> None:
        meter.not_done(failure.getErrorMessage())

    reactor.callWhenRunning(lambda: link.ready().addCallback(begin).addErrback(failed))
    reactor.callLater(warm_up_s + seconds, reactor.stop)
    reactor.run()
    return meter.sample()


def read_all(kind: str, address: str) -> tuple[int, float]:
    """Read every message of the topic. @return: how many, and the seconds from the first batch's request."""
    from twisted.internet import reactor as _reactor

    reactor: Any = _reactor
    link = BrokerLink(address, tcp_endpoints(reactor, 3.0)(address), clock=reactor)
    options: dict[str, Any] = {
        "clock": reactor, "rng": random.Random(1), "from_offset": "begin", "follow": False,
    }
    tail: Reading = NativeTail(link, **options) if kind == NATIVE else PullTail(
        link, topics=[TOPIC], **options
    )
    found: list[tuple[int, float]] = []
    problems: list[str] = []

    async def read() -> None:
        await link.ready()
        begin_s, count = time.perf_counter(), 0
        while (batch := await tail.next_batch()) is not None:
            count += sum(1 for _ in batch.records())
        found.append((count, time.perf_counter() - begin_s))

    def finished(result: object) -> None:
        if isinstance(result, Failure):
            problems.append(result.getErrorMessage())
        reactor.stop()

    reactor.callWhenRunning(lambda: Deferred.fromCoroutine(read()).addBoth(finished))
    reactor.run()
    if not found:
        raise LoadError(f"the {kind} reader failed: {problems}")
    return found[0]


# -- one child of one run --------------------------------------------------------------------------------


@click.group(invoke_without_command=True)
@click.option("--windows", default="1,64,1000", show_default=True, help="messages in flight")
@click.option("--body-bytes", default=100, show_default=True)
@click.option("--rounds", default=5, show_default=True)
@click.option("--seconds", default=2.0, show_default=True, help="measured span of one run")
@click.option("--json", "json_path", metavar="FILE", help="write the results to this file")
@click.option("--dir", "parent", type=click.Path(exists=True, file_okay=False), help="the disk to measure")
@click.pass_context
def main(
    context: click.Context, windows: str, body_bytes: int, rounds: int, seconds: float,
    json_path: str | None, parent: str | None,
) -> None:
    """Measure what native frames buy a Python producer and a Python reader."""
    if context.invoked_subcommand is None:
        plan = Plan([int(word) for word in windows.split(",")], body_bytes, rounds, seconds)
        try:
            measure(plan, json_path, parent)
        except (ChildError, LoadError) as error:
            raise click.ClickException(str(error)) from error


@main.command()
@click.argument("kind", type=click.Choice(PRODUCERS))
@click.argument("address")
@click.argument("window", type=int)
@click.argument("body_bytes", type=int)
@click.argument("seconds", type=float)
def load(kind: str, address: str, window: int, body_bytes: int, seconds: float) -> None:
    """Produce; print one line of JSON."""
    body = random.Random(1).randbytes(body_bytes)
    if kind == NATIVE:
        sample = run_producer(address=address, topic=TOPIC, queues=QUEUES, body=body, window=window,
                              warm_up_s=1.0, seconds=seconds)
    else:
        sample = run_ordinary(kind, address=address, body=body, window=window, warm_up_s=1.0, seconds=seconds)
    click.echo(json.dumps(attrs.asdict(sample)))


@main.command()
@click.argument("kind", type=click.Choice(READERS))
@click.argument("address")
def read(kind: str, address: str) -> None:
    """Read all messages; print one line of JSON."""
    count, seconds = read_all(kind, address)
    sample = Sample(throughput_per_s=count / seconds, p50_ms=float("nan"), p99_ms=float("nan"),
                    acknowledged=count)
    click.echo(json.dumps(attrs.asdict(sample)))


# -- the whole -------------------------------------------------------------------------------------------


@attrs.frozen
class Plan:
    """The extent of the measurements."""

    windows: Sequence[int]
    body_bytes: int
    rounds: int
    seconds: float


def run_child(*words: str, seconds: float) -> Sample:
    """One run in a process of its own. @raise LoadError: it failed."""
    command = [sys.executable, "-m", "benchmarks.native_frames", *words]
    try:
        done = subprocess.run(command, cwd=ROOT, stdin=subprocess.DEVNULL, capture_output=True, text=True,
                              timeout=seconds)
    except subprocess.TimeoutExpired:
        raise LoadError(f"{' '.join(words)} hung") from None
    if done.returncode:
        raise LoadError(f"{' '.join(words)} failed:\n{done.stderr[-1500:]}")
    sample = Sample(**json.loads(done.stdout.splitlines()[-1]))
    if sample.refused or not sample.acknowledged:
        raise LoadError(f"{' '.join(words)}: {sample.refused} refused: {sample.reason}")
    return sample


def measure(plan: Plan, json_path: str | None, parent: str | None) -> None:
    """Run everything, print the tables, write the file."""
    found: dict[tuple[str, str], list[Sample | None]] = {}
    with (
        work_directory(parent) as directory,
        Progress(TextColumn("{task.description}"), TimeElapsedColumn(), console=console, transient=True)
        as progress,
    ):
        machine = probe_machine(directory)
        step = progress.add_task("starting the broker")
        broker = our_broker("master", _made(directory / "master"), ASYNC_MASTER)
        broker.start()
        try:
            broker.wait_started()
            for turn in range(plan.rounds):
                for window in plan.windows:
                    for kind in PRODUCERS if turn % 2 == 0 else reversed(PRODUCERS):
                        if kind == BATCH and window == 1:
                            continue
                        progress.update(step, description=f"round {turn + 1}: {kind} x {window}")
                        words = ("load", kind, broker.address, str(window), str(plan.body_bytes),
                                 str(plan.seconds))
                        sample = run_child(*words, seconds=plan.seconds + 60)
                        found.setdefault((f"put x {window}", kind), []).append(sample)
                if turn == 0:
                    continue  # the readers measure a store of some size
                for kind in READERS if turn % 2 == 0 else reversed(READERS):
                    progress.update(step, description=f"round {turn + 1}: {kind} reads")
                    sample = run_child("read", kind, broker.address, seconds=600)
                    found.setdefault(("read", kind), []).append(sample)
        finally:
            end_all()
    report(found, plan)
    console.print(machine.line())
    write_json(json_path, [
        {"road": road, "kind": kind, "per_s": median([s.throughput_per_s for s in samples if s]),
         "p50_ms": median([s.p50_ms for s in samples if s]),
         "cpu_share": median([s.client_cpu_share for s in samples if s]),
         "native_by_it": paired_ratio(found[road, NATIVE], samples)}
        for (road, kind), samples in found.items()
    ], machine)


def report(found: dict[tuple[str, str], list[Sample | None]], plan: Plan) -> None:
    """Print the table."""
    rows = []
    for (road, kind), samples in found.items():
        sound = [sample for sample in samples if sample is not None]
        ratios = [
            one.throughput_per_s / other.throughput_per_s
            for one, other in zip(found[road, NATIVE], samples, strict=False) if one and other
        ]
        rows.append([
            road, kind, number(median([sample.throughput_per_s for sample in sound])),
            number(median([sample.p50_ms for sample in sound])),
            number(paired_ratio(found[road, NATIVE], samples)),
            f"{number(min(ratios))} to {number(max(ratios))}",
        ])
    columns = ["road", "frames", "messages/s", "p50 ms", "native by it", "spread"]
    table(f"{plan.body_bytes} B, {plan.rounds} rounds", columns, rows, left=2)


def _made(path: Path) -> Path:
    path.mkdir(parents=True)
    return path


if __name__ == "__main__":
    main()
