# -*- test-case-name: tests.test_benchmarks -*-
"""
The log of a peer, read from its begin by one consumer in this process.

    python -m benchmarks.peer_read nats 127.0.0.1:4222 --entries 200000

NATS: a push consumer of a stream, without acknowledgements and with flow control, as its clients' ordered
consumers. etcd: a watch of all keys from the first revision, by C{grpcio}. The protocols are parsed only
so far that entries are counted, so no client library slows a peer down. It prints one line of JSON.
"""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable, Iterator

import attrs
import click

from benchmarks.load import LoadError
from benchmarks.peer_load import STREAM

_SILENCE_S = 20.0
_INBOX = b"in"
#: A message of the stream has its subject, and the number of the subscription to the inbox.
_MESSAGE = b"MSG %s 1 " % STREAM.encode()
_EVENT = 11  # field number of the events in etcd's WatchResponse
_GRPC_BYTES_MAX = 64 << 20


@attrs.frozen
class Read:
    """The result: C{entries} in C{seconds}, from the request to the last entry."""

    entries: int
    seconds: float


class NatsMessages:
    """Counts the messages to one inbox. C{replies}: what the server is owed for its flow control."""

    def __init__(self) -> None:
        self.count = 0
        self.replies = bytearray()
        self._data = bytearray()

    def feed(self, piece: bytes) -> None:
        """The next bytes of the connection. @raise LoadError: the server reports an error."""
        data = self._data
        data += piece
        at = 0
        while (end := data.find(b"\r\n", at)) >= 0:
            line = bytes(data[at:end])
            if line.startswith((b"MSG ", b"HMSG ")):
                after = end + 4 + int(line[line.rindex(b" ") + 1 :])
                if len(data) < after:
                    break
                if line.startswith(_MESSAGE):
                    self.count += 1
                else:
                    self._other(line, bytes(data[end + 2 : after - 2]))
                at = after
                continue
            if line == b"PING":
                self.replies += b"PONG\r\n"
            elif line.startswith(b"-ERR"):
                raise LoadError(line.decode(errors="replace"))
            at = end + 2
        del data[:at]

    def _other(self, line: bytes, text: bytes) -> None:
        words = line.split()
        if text.startswith(b"NATS/1.0 100") and len(words) == 6:  # flow control waits for an answer
            self.replies += b"PUB %s 0\r\n\r\n" % words[3]
        elif b'"error"' in text:
            raise (_NotYetError if b'"code":503' in text else LoadError)(text.decode(errors="replace"))


class _NotYetError(LoadError):
    """The servers have no leader for it yet."""


def read_nats(address: str, entries: int) -> Read:
    """Read C{entries} messages of the stream. @raise LoadError: they do not come."""
    deadline_s = time.monotonic() + _SILENCE_S
    while True:
        try:
            return _read_stream(address, entries)
        except _NotYetError:
            if time.monotonic() > deadline_s:
                raise
            time.sleep(0.5)


def _read_stream(address: str, entries: int) -> Read:
    host, _colon, port = address.rpartition(":")
    config = json.dumps({"stream_name": STREAM, "config": {
        "deliver_subject": _INBOX.decode(), "deliver_policy": "all", "ack_policy": "none", "max_deliver": 1,
        "replay_policy": "instant", "flow_control": True, "idle_heartbeat": 5_000_000_000,
        "mem_storage": True, "num_replicas": 1, "inactive_threshold": 5_000_000_000,
    }}).encode()
    messages = NatsMessages()
    try:
        with socket.create_connection((host, int(port)), timeout=_SILENCE_S) as link:
            begin_s = time.perf_counter()
            link.sendall(
                b'CONNECT {"verbose":false,"headers":true,"no_responders":true}\r\n'
                b"SUB %s 1\r\nSUB answer 2\r\n"
                b"PUB $JS.API.CONSUMER.CREATE.%s answer %d\r\n%s\r\n"
                % (_INBOX, STREAM.encode(), len(config), config)
            )
            while messages.count < entries:
                piece = link.recv(1 << 18)
                if not piece:
                    raise LoadError("the server closed the connection")
                messages.feed(piece)
                if messages.replies:
                    link.sendall(bytes(messages.replies))
                    messages.replies.clear()
    except OSError as error:
        raise LoadError(f"{address}: {error}; {messages.count} of {entries} messages came") from error
    return Read(messages.count, time.perf_counter() - begin_s)


def fields_of(message: bytes) -> Iterator[tuple[int, int]]:
    """The fields of a protobuf message: number, and wire type. @raise ValueError: it is malformed."""
    at = 0

    def varint() -> int:
        nonlocal at
        shift = found = 0
        while True:
            byte = message[at]
            at += 1
            found |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return found

    while at < len(message):
        key = varint()
        kind = key & 7
        yield key >> 3, kind
        if kind == 0:
            varint()
        elif kind == 2:
            size = varint()
            at += size
        else:
            raise ValueError(f"field {key >> 3} has the wire type {kind}")


def watch_request() -> bytes:
    """An C{etcdserverpb.WatchRequest}: create a watch of all keys from revision 1 on."""
    create = b"\x0a\x01\0" + b"\x12\x01\0" + b"\x18\x01"
    return b"\x0a" + bytes([len(create)]) + create


def read_etcd(address: str, entries: int) -> Read:
    """Watch until C{entries} events have come. @raise LoadError: they do not come."""
    import grpc

    channel = grpc.insecure_channel(address, options=[("grpc.max_receive_message_length", _GRPC_BYTES_MAX)])
    try:
        grpc.channel_ready_future(channel).result(timeout=_SILENCE_S)
        begin_s, count = time.perf_counter(), 0
        watch = channel.stream_stream("/etcdserverpb.Watch/Watch")
        answers = watch(iter([watch_request()]), timeout=10 * _SILENCE_S)
        for answer in answers:
            count += sum(number == _EVENT for number, _kind in fields_of(answer))
            if count >= entries:
                break
        answers.cancel()
    except (grpc.RpcError, grpc.FutureTimeoutError) as error:
        raise LoadError(f"{address}: {error}") from error
    finally:
        channel.close()
    if count < entries:
        raise LoadError(f"{address}: {count} of {entries} events came")
    return Read(count, time.perf_counter() - begin_s)


READERS: dict[str, Callable[[str, int], Read]] = {"nats": read_nats, "etcd": read_etcd}


@click.command()
@click.argument("system", type=click.Choice([*READERS]))
@click.argument("address")
@click.option("--entries", default=100_000, show_default=True)
def main(system: str, address: str, entries: int) -> None:
    """Read the log of one server; print one line of JSON."""
    try:
        found = READERS[system](address, entries)
    except LoadError as error:
        raise click.ClickException(str(error)) from error
    click.echo(json.dumps(attrs.asdict(found)))


if __name__ == "__main__":
    main()
