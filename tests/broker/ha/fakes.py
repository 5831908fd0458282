# -*- test-case-name: tests.broker.ha.test_log_contract -*-
"""
A commit log in memory, records to put into it, and transports that remember.

The log flushes when it is asked to, or at once.
"""

from __future__ import annotations

from typing import Any

from twisted.internet.address import IPv4Address
from twisted.internet.defer import Deferred, fail, succeed
from twisted.internet.error import ConnectionDone
from twisted.internet.interfaces import IAddress
from twisted.internet.testing import StringTransport
from twisted.python.failure import Failure

from dledger.rocketmq.store.records.records import problem_of
from protocols.wire.errors import WireError
from protocols.wire.rocketmq.layout import MAGIC_BLANK, MAGIC_V1, MAGIC_V2, START, START_SIZE
from protocols.wire.rocketmq.message import encode_message, make_message

FILE_SIZE = 4096


def record(offset: int, *, body: bytes = b"hello", at: int = 1) -> bytes:
    """A message at C{offset} of a log, stored at millisecond C{at}."""
    return encode_message(make_message("T1", body, physical_offset=offset, store_timestamp=at))


def blank(size: int) -> bytes:
    """What fills a file of which C{size} bytes are left."""
    return START.pack(size, MAGIC_BLANK).ljust(size, b"\0")


def stream(
    size: int, *, at: int = 1, body: bytes = b"hello", file_size: int = FILE_SIZE, start: int = 0
) -> bytes:
    """Records and blanks from C{start} on, as a master would write them, up to at least C{size} bytes."""
    parts: list[bytes] = []
    offset = start
    while offset < start + size:
        made = record(offset, at=at, body=body)
        room = file_size - offset % file_size
        if len(made) + START_SIZE > room:
            made = blank(room)
        parts.append(made)
        offset += len(made)
    return b"".join(parts)


class MemoryLog:
    """
    See L{dledger.rocketmq.replication.ports.LogPort}.

    @ivar is_lazy: flushes wait for L{finish_flush}.
    @ivar fails: raised by the next write.
    @ivar append_calls: writes of a master's bytes.
    """

    def __init__(self, data: bytes = b"", *, file_size: int = FILE_SIZE, begin: int = 0) -> None:
        self.file_size = file_size
        self.begin_offset = begin
        self.data = bytearray(data)
        self.flushed_offset = begin + len(data)
        self.is_lazy = False
        self.flushes: list[tuple[int, Deferred[int]]] = []
        self.idle_waiters: list[Deferred[None]] = []
        self.fails: Exception | None = None
        self.cuts: list[int] = []
        self.asides: list[bytes] = []
        self.append_calls = 0
        self.doubtful = range(0)

    @property
    def end_offset(self) -> int:
        """See the port."""
        return self.begin_offset + len(self.data)

    def compared(self) -> None:
        """See the port."""
        self.doubtful = range(0)

    def read(self, offset: int, size: int) -> bytes:
        """See the port."""
        assert self.begin_offset <= offset <= self.end_offset, offset
        size = min(size, self.file_size - offset % self.file_size)
        at = offset - self.begin_offset
        return bytes(self.data[at : at + size])

    def put(self, data: bytes) -> int:
        """A broker appends. @return: the end."""
        self.data += data
        return self.end_offset

    def append_raw(self, offset: int, data: bytes | memoryview) -> None:
        """See the port."""
        room = self.file_size - offset % self.file_size
        if not 0 < len(data) <= room:
            raise ValueError(f"{len(data)} bytes at {offset}")
        if not self.data and offset % self.file_size == 0:
            self.begin_offset = self.flushed_offset = offset
        if offset != self.end_offset:
            raise ValueError(f"{offset} is not the end")
        if self.fails is not None:
            fails, self.fails = self.fails, None
            raise fails
        self.append_calls += 1
        self.data += data

    def record_end_below(self, offset: int) -> int:
        """See the port."""
        assert offset >= self.begin_offset
        end = at = max(offset - offset % self.file_size, self.begin_offset)
        while at + START_SIZE <= min(offset, self.end_offset):
            size, magic = START.unpack(self.read(at, START_SIZE))
            if magic not in (MAGIC_V1, MAGIC_V2, MAGIC_BLANK) or not size or at + size > offset:
                break
            at = end = at + size
        return min(end, self.end_offset)

    def problem_at(self, offset: int, data: bytes | bytearray | None = None) -> str | None:
        """See the port."""
        room = self.file_size - offset % self.file_size
        return problem_of(self.read(offset, room) if data is None else data, offset, room, room)

    def set_aside(self, offset: int) -> Deferred[str]:
        """See the port; kept in C{asides}."""
        if self.fails is not None:
            fails, self.fails = self.fails, None
            return fail(fails)
        self.asides.append(bytes(self.data))
        self.cut(offset)
        return succeed("aside")

    def cut(self, offset: int) -> int:
        """See the port."""
        end = self.record_end_below(offset)
        del self.data[end - self.begin_offset :]
        self.flushed_offset = min(self.flushed_offset, end)
        self.doubtful = range(self.doubtful.start, min(self.doubtful.stop, end))
        self.cuts.append(end)
        return end

    def flush(self) -> Deferred[int]:
        """See the port."""
        flushed: Deferred[int] = Deferred()
        self.flushes.append((self.end_offset, flushed))
        if not self.is_lazy:
            self.finish_flush()
        return flushed

    def finish_flush(self, error: Exception | None = None) -> None:
        """The oldest flush ends."""
        end, flushed = self.flushes.pop(0)
        if error is not None:
            flushed.errback(Failure(error))
        else:
            self.flushed_offset = max(self.flushed_offset, min(end, self.end_offset))
            flushed.callback(self.flushed_offset)
        if not self.flushes:
            waiters, self.idle_waiters = self.idle_waiters, []
            for waiter in waiters:
                waiter.callback(None)

    def idle(self) -> Deferred[None]:
        """See the port."""
        waiter: Deferred[None] = Deferred()
        self.idle_waiters.append(waiter)
        if not self.flushes:
            self.idle_waiters.remove(waiter)
            waiter.callback(None)
        return waiter


class BadLog(MemoryLog):
    """Takes nothing for a record."""

    def append_raw(self, offset: int, data: bytes | memoryview) -> None:
        """Refuse."""
        raise WireError("no record")


class HATransport(StringTransport):
    """
    Remembers; can be full; ends when it is asked to, by L{disconnect}.

    @ivar unsent: what was written while it was full.
    """

    def __init__(self, address: IAddress | None = None) -> None:
        super().__init__(peerAddress=address or IPv4Address("TCP", "10.0.0.1", 4711), lenient=True)
        self.is_aborted = False

    def abortConnection(self) -> None:
        """Remember."""
        self.is_aborted = True

    def take(self) -> bytes:
        """What was written since the last time."""
        data = self.value()
        self.clear()
        return data


def plug(protocol: Any, host: str = "10.0.0.1", port: int = 4711) -> HATransport:
    """Connect it to a transport of its own."""
    transport = HATransport(IPv4Address("TCP", host, port))
    protocol.makeConnection(transport)
    return transport


def unplug(protocol: Any) -> None:
    """The other side closes."""
    protocol.connectionLost(Failure(ConnectionDone()))
