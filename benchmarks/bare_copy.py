# -*- test-case-name: tests.interop.test_ha_benchmark -*-
"""
The least cost of copying a file through a connection: C{sendfile} in one process, C{recv_into} and C{pwrite}
into a preallocated file in another, over the loopback, without looking at the bytes.

    python -m benchmarks.bare_copy SOURCE TARGET BYTES

It prints one line of JSON: C{bytes}, C{seconds} and C{cpu_s} of both processes. BYTES is the number of bytes
to copy; TARGET must not exist.
"""

from __future__ import annotations

import json
import os
import resource
import socket
import time

import click

#: The receive buffer of a slave of ours has the same size.
RECEIVE_SIZE = 256 * 1024

_SEND_SIZE = 4 * 1024 * 1024


def _send(source: int, size: int, link: socket.socket) -> None:
    offset = 0
    while offset < size:
        offset += os.sendfile(link.fileno(), source, offset, min(size - offset, _SEND_SIZE))


def _receive(link: socket.socket, target: int) -> int:
    buffer = bytearray(RECEIVE_SIZE)
    view = memoryview(buffer)
    offset = 0
    while size := link.recv_into(buffer):
        offset += os.pwrite(target, view[:size], offset)
    return offset


def _cpu_s(who: int) -> float:
    used = resource.getrusage(who)
    return used.ru_utime + used.ru_stime


@click.command()
@click.argument("source", type=click.Path(exists=True, dir_okay=False))
@click.argument("target", type=click.Path(exists=False))
@click.argument("size", type=click.IntRange(min=1))
def main(source: str, target: str, size: int) -> None:
    """Copy the first SIZE bytes of a file and print the time it took."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        source_file = os.open(source, os.O_RDONLY)
        size = min(size, os.fstat(source_file).st_size)
        child = os.fork()
        if not child:
            with socket.create_connection(listener.getsockname()) as link:
                _send(source_file, size, link)
            os._exit(0)
        target_file = os.open(target, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        os.posix_fallocate(target_file, 0, size)
        link, _ = listener.accept()
        begin_s, begin_cpu_s = time.perf_counter(), _cpu_s(resource.RUSAGE_SELF)
        with link:
            got = _receive(link, target_file)
        seconds = time.perf_counter() - begin_s
        cpu_s = _cpu_s(resource.RUSAGE_SELF) - begin_cpu_s
        os.waitpid(child, 0)
        if got != size:
            raise click.ClickException(f"{got} of {size} bytes arrived")
    click.echo(json.dumps({
        "bytes": got, "seconds": seconds, "cpu_s": cpu_s + _cpu_s(resource.RUSAGE_CHILDREN),
    }))


if __name__ == "__main__":
    main()
