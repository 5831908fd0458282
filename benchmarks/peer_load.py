# -*- test-case-name: tests.test_benchmarks -*-
"""
The load of L{benchmarks.load} for systems that are not ours: the same bodies, window and measured span.

NATS and Redis have text protocols, so their requests are cut from templates, as those for our members and
Java's: no client library costs them anything. etcd has gRPC and is loaded by C{grpcio}.

    python -m benchmarks.peer_load redis 127.0.0.1:6379 --window 64 --body-bytes 100
"""

from __future__ import annotations

import json
import random
import threading
import time
from collections.abc import Iterator
from typing import Any

import attrs
import click

from benchmarks.load import LoadError, Meter, Sample, run_links, shares_of

STREAM = "bench"
#: Redis keeps about this many entries: its log is in memory as a whole.
REDIS_KEPT = 100_000
#: Connections that share Redis's window, as WAIT blocks its connection: with one the server idles while the
#: client reads, with eight it wakes up more often; two were the fastest at windows of 64 and 1000.
REDIS_LINKS = 2
_SILENCE_S = 10.0


class NatsFrames:
    """
    Publications with an inbox of their own, so that the stream acknowledges each.

    The inboxes are those of this connection alone: the acknowledgements that an earlier run left outstanding
    still come, and must not count here.

    Implements L{Frames}.
    """

    def __init__(self, body: bytes, inbox: str = "") -> None:
        self._inbox = (inbox or f"{random.SystemRandom().randrange(1 << 48):012x}").encode()
        self.opening = (
            b'CONNECT {"verbose":false,"pedantic":false,"lang":"python","version":"1","protocol":1}\r\n'
            b"SUB %s.* 1\r\n" % self._inbox
        )
        self._middle = b" %d\r\n%s\r\n" % (len(body), body)
        self._number = 0
        self._pongs = b""

    def requests(self, count: int) -> tuple[bytes, list[tuple[int, int]]]:
        """Publications, each with its own inbox."""
        first, self._number = self._number, self._number + count
        numbers = range(first, first + count)
        data = b"".join(
            b"PUB %s %s.%d%s" % (STREAM.encode(), self._inbox, number, self._middle) for number in numbers
        )
        pongs, self._pongs = self._pongs, b""
        return pongs + data, [(number, 1) for number in numbers]

    def answers(self, data: bytearray) -> Iterator[tuple[int, str]]:
        """Acknowledgements of the stream."""
        at, found = 0, []
        while (end := data.find(b"\r\n", at)) >= 0:
            line = bytes(data[at:end])
            if line.startswith(b"MSG "):
                # MSG <subject> <sid> <bytes>, then the message
                words = line.split()
                size = int(words[-1])
                if len(data) < end + 2 + size + 2:
                    break
                text = bytes(data[end + 2 : end + 2 + size])
                is_stored = b'"seq":' in text and b'"error"' not in text
                problem = "" if is_stored else text.decode(errors="replace")
                found.append((int(words[1].rpartition(b".")[2]), problem))
                at = end + 2 + size + 2
                continue
            if line == b"PING":
                self._pongs += b"PONG\r\n"
            elif line.startswith(b"-ERR"):
                raise LoadError(line.decode(errors="replace"))
            at = end + 2
        del data[:at]
        return iter(found)



class RedisFrames:
    """
    Entries of a stream, and after each share of the window a WAIT for one of the two replicas.

    Implements L{Frames}.
    """

    opening = b""

    def __init__(self, body: bytes) -> None:
        words = (b"XADD", STREAM.encode(), b"MAXLEN", b"~", b"%d" % REDIS_KEPT, b"*", b"b", body)
        self._add = _redis_command(*words)
        self._wait = _redis_command(b"WAIT", b"1", b"0")
        self._number = 0
        self._expected: list[int] = []
        self._problem = ""

    def requests(self, count: int) -> tuple[bytes, list[tuple[int, int]]]:
        """Entries, and one WAIT after them."""
        self._number += 1
        self._expected.append(self._number)
        return self._add * count + self._wait, [(self._number, count)]

    def answers(self, data: bytearray) -> Iterator[tuple[int, str]]:
        """Answers to WAIT."""
        at, found = 0, []
        while (end := data.find(b"\r\n", at)) >= 0:
            kind, text = data[at : at + 1], bytes(data[at + 1 : end])
            if kind == b"$":
                size = int(text)
                if len(data) < end + 2 + size + 2:
                    break
                at = end + 2 + size + 2
                continue
            if kind == b":":
                problem = self._problem or ("" if int(text) >= 1 else "no replica acknowledged")
                found.append((self._expected.pop(0), problem))
                self._problem = ""
            else:
                self._problem = text.decode(errors="replace")
            at = end + 2
        del data[:at]
        return iter(found)


def _redis_command(*words: bytes) -> bytes:
    return b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%s\r\n" % (len(word), word) for word in words)


# -- etcd -------------------------------------------------------------------------------------------


def put_request(key: bytes, value: bytes) -> bytes:
    """An C{etcdserverpb.PutRequest}: fields 1 and 2 are bytes."""
    return b"\x0a" + _varint(len(key)) + key + b"\x12" + _varint(len(value)) + value


def _varint(number: int) -> bytes:
    found = bytearray()
    while number > 0x7F:
        found.append(number & 0x7F | 0x80)
        number >>= 7
    found.append(number)
    return bytes(found)


def run_etcd(*, address: str, body: bytes, window: int, warm_up_s: float, seconds: float) -> Sample:
    """
    Keep C{window} puts of new keys outstanding on one channel. Callbacks run in a thread of C{grpcio}.

    @raise LoadError: the leader cannot be reached.
    """
    import grpc

    channel = grpc.insecure_channel(address)
    try:
        grpc.channel_ready_future(channel).result(timeout=_SILENCE_S)
    except grpc.FutureTimeoutError:
        raise LoadError(f"{address} cannot be reached") from None
    put = channel.unary_unary("/etcdserverpb.KV/Put")
    begin_s = time.perf_counter() + warm_up_s
    meter = Meter(begin_s=begin_s, end_s=begin_s + seconds)
    free, number, run = threading.Semaphore(window), 0, random.SystemRandom().randrange(1 << 48)

    def settled(sent_s: float, call: Any) -> None:
        if call.code() == grpc.StatusCode.OK:
            meter.acknowledged(sent_s, time.perf_counter())
        else:
            meter.not_done(f"{call.code().name} {call.details()}")
        free.release()

    while time.perf_counter() < meter.end_s:
        if free.acquire(timeout=0.1):
            number += 1
            sent_s = time.perf_counter()
            request = put_request(b"%012x/%09d" % (run, number), body)
            call = put.future(request, timeout=_SILENCE_S)
            call.add_done_callback(lambda done, sent_s=sent_s: settled(sent_s, done))
    for _operation in range(window):
        free.acquire(timeout=_SILENCE_S)
    channel.close()
    return meter.sample()


@click.command()
@click.argument("system", type=click.Choice(["nats", "redis", "etcd"]))
@click.argument("address")
@click.option("--window", default=64, show_default=True, help="operations in flight, on each connection")
@click.option("--body-bytes", default=100, show_default=True)
@click.option("--warm-up", default=1.0, show_default=True, help="seconds before the measured span")
@click.option("--seconds", default=3.0, show_default=True, help="length of the measured span")
@click.option("--links", default=1, show_default=True, help="connections, each of a client of its own")
def main(
    system: str, address: str, window: int, body_bytes: int, warm_up: float, seconds: float, links: int
) -> None:
    """Load one server; print one line of JSON."""
    body = random.Random(1).randbytes(body_bytes)
    try:
        if system == "etcd":
            sample = run_etcd(address=address, body=body, window=window, warm_up_s=warm_up, seconds=seconds)
        else:
            frames = {"nats": NatsFrames, "redis": RedisFrames}[system]
            shares = shares_of(window, REDIS_LINKS if system == "redis" else 1) * links
            sample = run_links(
                lambda: frames(body), address=address, shares=shares, warm_up_s=warm_up, seconds=seconds
            )
    except LoadError as error:
        raise click.ClickException(str(error)) from error
    click.echo(json.dumps(attrs.asdict(sample)))


if __name__ == "__main__":
    main()
