# -*- test-case-name: tests.processes.test_writer -*-
"""
A process that appends steadily through real clients and records the outcome of every append.

    python -m tests.processes.writer --peers n0-127.0.0.1:20911;... --history FILE

Each writer has its own L{dledger.client.client.LogClient}. No body is used twice, and no append is repeated.
A line of the history, written when the outcome is known:

    writer sequence outcome index sent_ms done_ms

C{outcome} is C{ok}, C{failed} (certainly not in the log) or C{unknown}; the times are of the machine's
monotonic clock. Commands: C{stop} ends submitting, waits for the missing outcomes, and prints
C{stopped}. The end of the input ends the process.
"""

from __future__ import annotations

import hashlib
import sys
import time
from functools import partial
from typing import IO, Any

import attrs
import click
from twisted.internet.stdio import StandardIO
from twisted.internet.task import LoopingCall
from twisted.protocols.basic import LineOnlyReceiver
from twisted.python.failure import Failure

from dledger.client.appender import AppendOutcome
from dledger.client.client import LogClient
from dledger.client.errors import AppendError, AppendFailed

_TURN_S = 0.01


def body_of(writer: int, sequence: int, size: int) -> bytes:
    """The body of one append: its name, then bytes that depend on the name."""
    name = b"%d-%d;" % (writer, sequence)
    filling = hashlib.blake2b(name, digest_size=32).digest()
    wanted = max(0, size - len(name))
    return name + (filling * (wanted // len(filling) + 1))[:wanted]


def name_of(body: bytes) -> tuple[int, int]:
    """Writer and sequence number of a body."""
    writer, _dash, sequence = body.partition(b";")[0].partition(b"-")
    return int(writer), int(sequence)


@attrs.frozen(kw_only=True)
class Attempt:
    """
    One line of a history.

    @ivar index: -1 unless C{outcome} is C{ok}.
    @ivar sent_ms, done_ms: monotonic.
    """

    writer: int
    sequence: int
    outcome: str
    index: int
    sent_ms: float
    done_ms: float


def parse_line(line: str) -> Attempt:
    """A line of a history as a value."""
    writer, sequence, outcome, index, sent_ms, done_ms = line.split()
    return Attempt(
        writer=int(writer), sequence=int(sequence), outcome=outcome, index=int(index), sent_ms=float(sent_ms),
        done_ms=float(done_ms),
    )


class Writing:
    """
    The writers of this process.

    Invariant: C{_open} counts appends without an outcome; a writer has at most C{window} of them.
    """

    def __init__(
        self, reactor: Any, clients: list[LogClient], history: IO[str], *, window: int, rate: float, size: int
    ) -> None:
        self._reactor = reactor
        self._clients = clients
        self._history = history
        self._window = window
        self._per_turn = max(1, round(rate * _TURN_S / len(clients)))
        self._size = size
        self._sequences = [0] * len(clients)
        self._open = [0] * len(clients)
        self._stopping = False

    def turn(self) -> None:
        """Submit as many appends as the rate and the window allow."""
        if self._stopping:
            if not any(self._open):
                self.finish()
            return
        for writer, client in enumerate(self._clients):
            for _ in range(min(self._per_turn, self._window - self._open[writer])):
                sequence = self._sequences[writer]
                self._sequences[writer] += 1
                self._open[writer] += 1
                body = body_of(writer, sequence, self._size)
                client.submit((body,), partial(self._settled, writer, sequence, time.monotonic() * 1000))
        self._history.flush()

    def _settled(self, writer: int, sequence: int, sent_ms: float, outcome: AppendOutcome) -> None:
        self._open[writer] -= 1
        done_ms = time.monotonic() * 1000
        index = -1
        if not isinstance(outcome, AppendError):
            word, index = "ok", outcome[0].index
        else:
            word = "failed" if isinstance(outcome, AppendFailed) else "unknown"
        self._history.write(f"{writer} {sequence} {word} {index} {sent_ms:.3f} {done_ms:.3f}\n")

    def stop(self) -> None:
        """Submit no more appends; finish when every outcome is known."""
        self._stopping = True

    def finish(self) -> None:
        """Close the history, and end the process."""
        self._history.close()
        sys.stdout.write("stopped\n")
        sys.stdout.flush()
        self._reactor.stop()


class _Commands(LineOnlyReceiver):
    """Commands on standard input."""

    delimiter = b"\n"

    def __init__(self, reactor: Any, writing: Writing) -> None:
        self._reactor = reactor
        self._writing = writing

    def lineReceived(self, line: bytes) -> None:
        if line == b"stop":
            self._writing.stop()

    def connectionLost(self, reason: object = None) -> None:
        if self._reactor.running:
            self._reactor.stop()


@click.command()
@click.option("--peers", required=True)
@click.option("--group", default="default")
@click.option("--history", required=True, type=click.Path(dir_okay=False))
@click.option("--writers", default=2)
@click.option("--window", default=64, help="appends in flight, of one writer")
@click.option("--rate", default=2000.0, help="appends per second, of all writers")
@click.option("--body-bytes", default=200)
@click.option("--wire", default="auto")
def main(
    peers: str, group: str, history: str, writers: int, window: int, rate: float, body_bytes: int, wire: str
) -> None:
    """Append until C{stop}."""
    from twisted.internet import reactor as _reactor

    reactor: Any = _reactor
    with open(history, "a") as file:
        clients = [LogClient(peers, group=group, reactor=reactor, wire=wire) for _ in range(writers)]
        writing = Writing(reactor, clients, file, window=window, rate=rate, size=body_bytes)

        def broken(failure: Failure) -> None:
            failure.printTraceback(sys.stderr)
            reactor.stop()

        turning = LoopingCall(writing.turn)
        reactor.callWhenRunning(lambda: turning.start(_TURN_S).addErrback(broken))
        StandardIO(_Commands(reactor, writing), reactor=reactor)
        sys.stdout.write("started\n")
        sys.stdout.flush()
        reactor.run()


if __name__ == "__main__":
    main()
