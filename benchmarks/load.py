# -*- test-case-name: tests.processes.test_load -*-
"""
A load generator with little code: a window of appends, on one connection or split among many, plain sockets.

The same program loads our members and Java's, so a difference between them does not come from the client.
Over C{remoting} every append is its own JSON frame, cut from a template; over C{native} appends that become
possible at the same time share a frame.

    python -m benchmarks.load --address 127.0.0.1:20911 --remote-id n0 --window 64 --body-bytes 100

It prints one line of JSON: see L{Sample}. C{--wire client} measures our C{LogClient} instead.
"""

from __future__ import annotations

import base64
import json
import random
import re
import selectors
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import attrs
import click

from benchmarks.common import median
from dledger.values.tls_files import TlsFiles

ROOT = Path(__file__).resolve().parents[1]
_OPAQUE = re.compile(rb'"opaque":(-?\d+)')
_CODE = re.compile(rb'"code":(-?\d+)')
_NATIVE_BODIES_MAX = 512


@attrs.frozen(kw_only=True)
class Sample:
    """
    The results of one run.

    @ivar throughput_per_s: appends acknowledged per second of the measured span.
    @ivar p50_ms, p99_ms: from sending to the acknowledgement, per append.
    @ivar acknowledged: appends in the measured span.
    @ivar refused: answers other than SUCCESS, in the whole run; C{reason} is the first of them.
    @ivar client_cpu_share: processor time of the generator per second of the measured span.
    """

    throughput_per_s: float
    p50_ms: float
    p99_ms: float
    acknowledged: int
    refused: int = 0
    reason: str = ""
    client_cpu_share: float = 0.0


def paired_ratio(above: Sequence[Sample | None], below: Sequence[Sample | None]) -> float:
    """Throughput of one system by another's, round by round, the median; NaN if no round has both."""
    return median([
        one.throughput_per_s / other.throughput_per_s
        for one, other in zip(above, below, strict=False)
        if one is not None and other is not None and other.throughput_per_s
    ])


_SILENCE_S = 10.0
#: Seconds that a generator may take longer than it should.
PATIENCE_S = 30.0


class LoadError(Exception):
    """The run could not be finished; the message says why."""


@attrs.define
class Meter:
    """
    Counts the acknowledgements between the end of the warm-up and the deadline.

    Invariant: C{_spans} holds (milliseconds, appends) of acknowledgements inside the measured span only.
    """

    begin_s: float
    end_s: float
    refused: int = 0
    reason: str = ""
    _spans: list[tuple[float, int]] = attrs.Factory(list)
    _cpu_begin_s: float = -1.0

    def acknowledged(self, sent_s: float, now_s: float, count: int = 1) -> None:
        """C{count} appends that were sent together were acknowledged."""
        if self.begin_s <= now_s < self.end_s:
            if self._cpu_begin_s < 0:
                self._cpu_begin_s = time.process_time()
            self._spans.append(((now_s - sent_s) * 1000, count))

    def not_done(self, reason: str, count: int = 1) -> None:
        """C{count} appends were refused."""
        self.refused += count
        self.reason = self.reason or reason

    def sample(self) -> Sample:
        """The result; call it once, at the end."""
        spent = time.process_time() - self._cpu_begin_s if self._cpu_begin_s >= 0 else 0.0
        self._spans.sort()
        total = sum(count for _span, count in self._spans)
        return Sample(
            throughput_per_s=total / (self.end_s - self.begin_s), p50_ms=self._quantile(total, 0.50),
            p99_ms=self._quantile(total, 0.99), acknowledged=total, refused=self.refused, reason=self.reason,
            client_cpu_share=spent / (self.end_s - self.begin_s),
        )

    def _quantile(self, total: int, share: float) -> float:
        seen = 0
        for span_ms, count in self._spans:
            seen += count
            if seen >= share * total:
                return span_ms
        return float("nan")


class Frames(Protocol):
    """
    The requests and answers of one connection.

    @ivar opening: sent first.
    """

    opening: bytes

    def requests(self, count: int) -> tuple[bytes, list[tuple[int, int]]]:
        """@return: requests for C{count} operations; (id, operations) of each that is answered."""

    def answers(self, data: bytearray) -> Iterator[tuple[int, str]]:
        """Take whole answers from C{data}. @return: id, and what is wrong (empty for nothing)."""


def _problem(code: int) -> str:
    return "" if code == 200 else f"code {code}"


class RemotingFrames:
    """
    Append requests as JSON frames, one per entry, and the parsing of their answers.

    Implements L{Frames}.
    """

    opening = b""

    def __init__(self, *, group: str, remote_id: str, body: bytes) -> None:
        text = base64.b64encode(body).decode()
        self._body = (
            f'{{"body":"{text}","code":200,"group":"{group}","remoteId":"{remote_id}","term":-1}}'.encode()
        )
        self._opaque = 0

    def requests(self, count: int) -> tuple[bytes, list[tuple[int, int]]]:
        parts, ids = [], []
        for _ in range(count):
            self._opaque += 1
            header = (
                b'{"code":50001,"flag":0,"language":"PYTHON","opaque":%d,'
                b'"serializeTypeCurrentRPC":"JSON","version":0}' % self._opaque
            )
            parts.append(struct.pack(">ii", 4 + len(header) + len(self._body), len(header)))
            parts += (header, self._body)
            ids.append((self._opaque, 1))
        return b"".join(parts), ids

    def answers(self, data: bytearray) -> Iterator[tuple[int, str]]:
        at = 0
        while len(data) - at >= 8:
            length, header_length = struct.unpack_from(">ii", data, at)
            end = at + 4 + length
            if len(data) < end:
                break
            opaque = _OPAQUE.search(data, at + 8, end)
            code = _CODE.search(data, at + 8 + (header_length & 0xFFFFFF), end)
            yield int(opaque.group(1)) if opaque else -1, _problem(int(code.group(1)) if code else -1)
            at = end
        del data[:at]


class NativeFrames:
    """
    Append requests as native frames; appends that become possible at the same time share one.

    Implements L{Frames}.
    """

    opening = b""

    def __init__(self, *, group: str, remote_id: str, body: bytes) -> None:
        from protocols.wire.framing import FrameBuffer
        from protocols.wire.ledger.messages import AppendRequest
        from protocols.wire.ledger.push import decode_frame, encode_request_frame

        self._decode, self._encode = decode_frame, encode_request_frame
        self._buffer = FrameBuffer()
        self._make = AppendRequest
        self._group, self._remote_id, self._payload = group, remote_id, body
        self._opaque = 0

    def requests(self, count: int) -> tuple[bytes, list[tuple[int, int]]]:
        parts, ids = [], []
        while count:
            taken = min(count, _NATIVE_BODIES_MAX)
            self._opaque += 1
            bodies = (self._payload,) * taken
            request = self._make(group=self._group, remote_id=self._remote_id, bodies=bodies)
            parts.append(self._encode(request, self._opaque))
            ids.append((self._opaque, taken))
            count -= taken
        return b"".join(parts), ids

    def answers(self, data: bytearray) -> Iterator[tuple[int, str]]:
        frames = self._buffer.feed(bytes(data))
        data.clear()
        for _kind, frame in frames:
            opaque, message = self._decode(frame)
            yield opaque, _problem(int(getattr(message, "code", -1)))


@attrs.define(eq=False)
class Link:
    """One connection. Invariant: its free and its unanswered operations are its share of the window."""

    frames: Frames
    socket: socket.socket
    free: int
    received: bytearray = attrs.Factory(bytearray)
    sent: dict[int, tuple[float, int]] = attrs.Factory(dict)

    def fill(self) -> None:
        """Send what is free."""
        if self.free:
            data, ids = self.frames.requests(self.free)
            now_s = time.perf_counter()
            self.sent.update((one, (now_s, count)) for one, count in ids)
            self.free = 0
            self.socket.sendall(data)

    def read(self, meter: Meter) -> None:
        """Take answers. @raise LoadError: the connection ended."""
        data = self.socket.recv(1 << 18)
        if not data:
            raise LoadError("the server closed a connection")
        self.received += data
        now_s = time.perf_counter()
        for one, problem in self.frames.answers(self.received):
            sent_s, count = self.sent.pop(one)
            self.free += count
            if problem:
                meter.not_done(problem, count)
            else:
                meter.acknowledged(sent_s, now_s, count)


def shares_of(window: int, links: int) -> list[int]:
    """C{window} divided among at most C{links} connections, none without a share."""
    links = min(links, window)
    return [window // links + (number < window % links) for number in range(links)]


def run_links(
    make: Callable[[], Frames], *, address: str, shares: Sequence[int], warm_up_s: float, seconds: float
) -> Sample:
    """
    Keep a share of the window unanswered on each connection until the time is over.

    @raise LoadError: a connection failed, or there was no answer for ten seconds.
    """
    host, _colon, port = address.rpartition(":")
    links = []
    begin_s = time.perf_counter() + warm_up_s
    meter = Meter(begin_s=begin_s, end_s=begin_s + seconds)
    with selectors.DefaultSelector() as selector:
        try:
            for share in shares:
                end = socket.create_connection((host, int(port)), timeout=_SILENCE_S)
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                links.append(Link(make(), end, share))
                end.sendall(links[-1].frames.opening)
                selector.register(end, selectors.EVENT_READ, links[-1])
                links[-1].fill()
            while time.perf_counter() < meter.end_s:
                ready = selector.select(_SILENCE_S)
                if not ready:
                    raise LoadError(f"no answer of {address} for {_SILENCE_S:g} s")
                for key, _events in ready:
                    key.data.read(meter)
                    key.data.fill()
        except OSError as error:
            raise LoadError(f"{address}: {error}") from error
        finally:
            for link in links:
                link.socket.close()
    return meter.sample()


def load_in_child(
    *, address: str, remote_id: str, group: str, wire: str, window: int, body_bytes: int, warm_up_s: float,
    seconds: float, links: int = 1, peers: str = "", watch: Callable[[], None] | None = None,
    keys: TlsFiles | None = None, patience_s: float = PATIENCE_S,
) -> Sample:
    """
    Run a generator in its own process.

    @param window: appends under way on each of C{links} connections.
    @param watch: called a few times a second while it runs.
    @param keys: for TLS; only for the wire C{client}.
    @param patience_s: see L{run_generator}.
    @raise LoadError: it failed or hung.
    """
    command = [
        sys.executable, "-m", "benchmarks.load", "--address", address, "--remote-id", remote_id,
        "--group", group, "--wire", wire, "--links", str(links), "--window", str(window),
        "--body-bytes", str(body_bytes),
        "--warm-up", str(warm_up_s), "--seconds", str(seconds), "--peers", peers,
    ]
    if keys is not None:
        command += ["--keys", keys.certificate, keys.key, keys.authority]
    return run_generator(
        command, what=f"{remote_id} at {address}", seconds=warm_up_s + seconds, watch=watch,
        patience_s=patience_s,
    )


def run_reporter(module: str, *words: object, seconds: float) -> dict[str, Any]:
    """
    Run a program of this package.

    @param module: its name; C{words} are its arguments. @param seconds: that it may take.
    @return: the JSON object that it prints as its last line.
    @raise LoadError: it failed, or was not done in time.
    """
    command = [sys.executable, "-m", f"benchmarks.{module}", *map(str, words)]
    try:
        ran = subprocess.run(
            command, cwd=ROOT, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=seconds,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise LoadError(f"no result after {seconds:g} s: {' '.join(command[2:])}") from None
    if ran.returncode or not ran.stdout:
        raise LoadError(f"{' '.join(command[2:])} failed:\n{ran.stderr[-1500:]}")
    found: dict[str, Any] = json.loads(ran.stdout.splitlines()[-1])
    return found


def run_generator(
    command: Sequence[str], *, what: str, seconds: float, watch: Callable[[], None] | None = None,
    patience_s: float = PATIENCE_S,
) -> Sample:
    """
    Run a program that prints a sample as its last line.

    @param what: is loaded, for messages.
    @param seconds: that it should take. @param patience_s: how many more are allowed.
    @param watch: called a few times a second while it runs.
    @raise LoadError: it failed or hung.
    """
    deadline = time.monotonic() + seconds + patience_s
    running = subprocess.Popen(
        command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        while True:
            try:
                answer, complaint = running.communicate(timeout=0.3)
                break
            except subprocess.TimeoutExpired:
                if time.monotonic() > deadline:
                    raise LoadError(f"the generator for {what} hung") from None
                if watch is not None:
                    watch()
    finally:
        running.kill()
        running.wait()
    if running.returncode:
        raise LoadError(f"the generator for {what} failed:\n{complaint[-1500:]}")
    return Sample(**json.loads(answer.splitlines()[-1]))


@click.command()
@click.option("--address", required=True, help="host:port of the leader")
@click.option("--remote-id", required=True, help="its member id")
@click.option("--group", default="default", show_default=True)
@click.option("--peers", default="", help="all members, for --wire client, aio and exact")
@click.option(
    "--wire", type=click.Choice(["remoting", "native", "client", "aio", "exact"]), default="remoting"
)
@click.option("--window", default=64, show_default=True, help="appends in flight, on each connection")
@click.option("--links", default=1, show_default=True, help="connections, each of a client of its own")
@click.option("--body-bytes", default=100, show_default=True)
@click.option("--keys", nargs=3, help="certificate, key and authority, for --wire client with TLS")
@click.option("--warm-up", default=1.0, show_default=True, help="seconds before the measured span")
@click.option("--seconds", default=3.0, show_default=True, help="length of the measured span")
def main(
    address: str, remote_id: str, group: str, peers: str, wire: str, window: int, links: int, body_bytes: int,
    keys: tuple[str, str, str] | None, warm_up: float, seconds: float,
) -> None:
    """Load one member; print one line of JSON."""
    body = random.Random(1).randbytes(body_bytes)
    try:
        if wire == "aio":
            from benchmarks.aio_load import run_aio

            sample = run_aio(
                peers=peers, group=group, body=body, window=window, warm_up_s=warm_up, seconds=seconds
            )
        elif wire in ("client", "exact"):
            from benchmarks.client_load import run_client

            sample = run_client(
                peers=peers, group=group, body=body, window=window, links=links, warm_up_s=warm_up,
                seconds=seconds,
                tls=TlsFiles(certificate=keys[0], key=keys[1], authority=keys[2]) if keys else None,
                exactly_once=wire == "exact",
            )
        else:
            make = partial(
                RemotingFrames if wire == "remoting" else NativeFrames, group=group, remote_id=remote_id,
                body=body,
            )
            sample = run_links(
                make, address=address, shares=[window] * links, warm_up_s=warm_up, seconds=seconds
            )
    except LoadError as error:
        raise click.ClickException(str(error)) from error
    click.echo(json.dumps(attrs.asdict(sample)))


if __name__ == "__main__":
    main()
