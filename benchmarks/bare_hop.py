# -*- test-case-name: tests.interop.test_ha_benchmark -*-
"""
The least cost of the way to a slave and back: one process sends some bytes, another receives and writes them
and answers with 8 bytes, over the loopback, without looking at them.

    python -m benchmarks.bare_hop TARGET BYTES

It prints one line of JSON: C{bytes}, C{count}, C{p50_us} and C{p99_us}. TARGET must not exist.
"""

from __future__ import annotations

import json
import os
import socket
import time

import click

#: Size of the target; when it is full, writing continues at its beginning.
TARGET_BYTES = 256 * 1024 * 1024

#: Round trips that are not counted.
_WARM_UP = 500

_REPORT = bytes(8)


def _answer(link: socket.socket, target: int, size: int) -> None:
    buffer = memoryview(bytearray(size))
    offset = 0
    while True:
        got = 0
        while got < size:
            received = link.recv_into(buffer[got:])
            if not received:
                return
            got += received
        os.pwrite(target, buffer, offset)
        offset = (offset + size) % (TARGET_BYTES - size)
        link.sendall(_REPORT)


def _ask(link: socket.socket, size: int, count: int) -> list[float]:
    data = bytes(size)
    taken = []
    for _ in range(_WARM_UP + count):
        began_s = time.perf_counter()
        link.sendall(data)
        left = len(_REPORT)
        while left:
            left -= len(link.recv(left)) or left  # an end of the connection ends the wait
        taken.append(time.perf_counter() - began_s)
    return sorted(taken[_WARM_UP:])


@click.command()
@click.argument("target", type=click.Path(exists=False))
@click.argument("size", type=click.IntRange(1, TARGET_BYTES // 2))
@click.option("--count", default=10_000, show_default=True, type=click.IntRange(min=100))
def main(target: str, size: int, count: int) -> None:
    """Send, write and answer, many times; print the times."""
    if os.path.exists(target):
        raise click.BadParameter(f"{target} exists already")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        child = os.fork()
        if not child:
            file = os.open(target, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
            os.posix_fallocate(file, 0, TARGET_BYTES)
            with socket.create_connection(listener.getsockname()) as link:
                link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                _answer(link, file, size)
            os._exit(0)
        link, _ = listener.accept()
        with link:
            link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            taken = _ask(link, size, count)
        os.waitpid(child, 0)
    click.echo(json.dumps({
        "bytes": size, "count": count, "p50_us": taken[count // 2] * 1e6,
        "p99_us": taken[count * 99 // 100] * 1e6,
    }))


if __name__ == "__main__":
    main()
