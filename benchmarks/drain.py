# -*- test-case-name: tests.interop.test_ha_benchmark -*-
"""
A push consumer of Java's reads a whole topic: from a master of RocketMQ's (4.9.8), from ours, and from our
three brokers on a raft log.

    python -m benchmarks.drain --messages 200000 --rounds 3

Each broker is filled by Java's producer with messages of 100 bytes. Then they take turns, and those that wait
are paused; the consumer is of a new group each time, in one process that was warmed up by a round that does
not count. A figure is the median over the rounds, a ratio the median of the rounds' ratios.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import attrs
import click

from benchmarks.broker import RaftGroup
from benchmarks.common import console, median, number, probe_machine, table, work_directory, write_json
from benchmarks.ha_brokers import ASYNC_MASTER, JAVA, OURS, JavaLoad, make_broker, wait_for_rest
from benchmarks.load import LoadError
from tests.interop.java import JavaMissing
from tests.interop.name_servers import OurNameServer
from tests.processes.children import Child, ChildError, end_all

RAFT = "raft"
BODY_BYTES, WINDOW = 100, 1000
#: Ours by Java's, at least.
AIM = 1.0


@attrs.frozen
class Source:
    """
    Brokers that are read.

    @ivar name_server: the only one that they register with.
    @ivar address: of the one that takes messages.
    """

    name_server: OurNameServer
    children: tuple[Child, ...]
    address: Callable[[], str | None]

    def pause(self) -> None:
        """They use no processor time."""
        for child in self.children:
            child.pause()

    def resume(self) -> None:
        """Go on."""
        for child in self.children:
            child.resume()

    def fill(self, load: JavaLoad, count: int) -> None:
        """Send C{count} messages or more. @raise LoadError: some were refused."""
        done = 0
        while done < count:
            address = self.address()
            assert address is not None, "nobody takes messages"
            sample = load.run(address, body_bytes=BODY_BYTES, window=WINDOW, warm_up_s=0.0, seconds=1.0)
            if sample.refused:
                raise LoadError(f"{sample.refused} messages refused: {sample.reason}")
            done += sample.acknowledged


def _started(directory: Path, kind: str, load: JavaLoad) -> Source:
    home = directory / kind
    home.mkdir()
    names = OurNameServer(home)
    names.start()
    names.wait_started()
    if kind == RAFT:
        group = RaftGroup(home, is_java=False, name_server=names.address)
        group.start()
        group.settle(load)
        return Source(names, tuple(group.children.values()), group.address)
    broker = make_broker(kind, kind, home / "master", ASYNC_MASTER, name_server=names.address)
    broker.start()
    broker.wait_started()
    return Source(names, (broker,), lambda: broker.address)


def measure(directory: Path, kinds: tuple[str, ...], messages: int, rounds: int) -> dict[str, list[float]]:
    """@return: for each kind, messages per second of each round."""
    load = JavaLoad(directory)
    load.start()
    found: dict[str, list[float]] = {kind: [] for kind in kinds}
    sources = {}
    for kind in kinds:
        console.print(f"filling {kind}")
        sources[kind] = _started(directory, kind, load)
        sources[kind].fill(load, messages)
        wait_for_rest(sources[kind].children, kind)  # they still put keys into their indexes
        sources[kind].pause()
    for turn in range(rounds + 1):
        for kind in kinds if turn % 2 else reversed(kinds):
            source = sources[kind]
            source.resume()
            rate = load.drain(source.name_server.address, f"drain-{kind}-{turn}", messages)
            source.pause()
            if turn:
                found[kind].append(rate)
    return found


def ratio(found: dict[str, list[float]], kind: str) -> float:
    """By Java's, the median of the rounds; NaN without one."""
    return median([ours / java for ours, java in zip(found[kind], found.get(JAVA, ()), strict=False)])


@click.command()
@click.option("--json", "json_path", type=click.Path(dir_okay=False), help="write the results to this file")
@click.option("--messages", default=200_000, show_default=True, help="in the topic, at least")
@click.option("--rounds", default=3, show_default=True)
@click.option("--kinds", default=f"{JAVA},{OURS},{RAFT}", show_default=True)
@click.option("--dir", "parent", type=click.Path(file_okay=False), help="a directory on the disk to measure")
def main(json_path: str | None, messages: int, rounds: int, kinds: str, parent: str | None) -> None:
    """Measure how fast a push consumer of Java's reads a topic."""
    with work_directory(parent) as directory:
        machine = probe_machine(directory)
        try:
            found = measure(directory, tuple(kinds.split(",")), messages, rounds)
        except (ChildError, JavaMissing, LoadError) as error:
            raise click.ClickException(str(error)) from error
        finally:
            end_all()
    rows = [
        [kind, number(median(rates)), number(min(rates)), number(max(rates)), f"{ratio(found, kind):.2f}"]
        for kind, rates in found.items()
    ]
    table(f"A push consumer reads {messages} messages of {BODY_BYTES} bytes", [
        "brokers", "messages/s", "least", "most", "/ java",
    ], rows)
    for kind in found:
        if kind != JAVA and ratio(found, kind) == ratio(found, kind):
            verdict = "reached" if ratio(found, kind) >= AIM else "MISSED"
            console.print(f"aim: {kind} at least {AIM:g} of java: {ratio(found, kind):.2f} {verdict}")
    console.print(machine.line())
    write_json(json_path, [{"system": kind, "rounds_per_s": rates} for kind, rates in found.items()], machine)


if __name__ == "__main__":
    main()
