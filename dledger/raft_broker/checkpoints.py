# -*- test-case-name: tests.raft_broker.test_store -*-
"""
The checkpoints of a broker on a raft log: C{dispatched}, a small file of ours that reports up to where the
queues are complete, and RocketMQ's C{checkpoint}, with the times.

Rule: C{dispatched} counts only for a log with the same bytes before its place (L{RaftLog.has}): queues that
came from another log, or from a younger one, say nothing of what is in this one. It says nothing about
metadata: see L{dledger.rocketmq.metadata.tables_mark}.
"""

from __future__ import annotations

from typing import NamedTuple

from construct import Int32ub, Int64sb, Struct

from dledger.base.disk.file_table import BROKER_CHECKPOINT, DISPATCHED
from dledger.base.disk.hints import HintFile
from dledger.raft_broker.raft_log import RaftLog
from dledger.rocketmq.metadata.tables_mark import LogPlace
from dledger.rocketmq.store.checkpoints import DispatchFlush
from dledger.rocketmq.store.opened_files import OpenedFiles, StoreSurroundings
from dledger.rocketmq.store.queues.consume_queues import ConsumeQueues
from dledger.rocketmq.store.records.checkpoint import (
    Checkpoint,
    decode_checkpoint,
    encode_checkpoint,
    read_store_checkpoint,
)
from protocols.wire.checksums import crc32
from protocols.wire.layout import struct_of

DISPATCHED_DECLARATION = Struct(
    "offset" / Int64sb, "tail_check" / Int32ub, "file_size" / Int64sb, "units" / Int64sb,
)
_MARK = struct_of(DISPATCHED_DECLARATION)
#: In a mark that was lowered since.
UNITS_UNKNOWN = -1
_CRC = struct_of(Struct("crc" / Int32ub))


class Dispatched(NamedTuple):
    """
    Up to where the queues are complete.

    @ivar place: all messages of the log before it are in their queues.
    @ivar units: number of messages that were ever put into a queue before it: the next offsets of all queues,
        added up; or L{UNITS_UNKNOWN}.
    """

    place: LogPlace
    units: int


def encode_dispatched(mark: Dispatched, file_size: int) -> bytes:
    """The bytes of the file: the mark, the size of the log's files, and their checksum."""
    data = _MARK.pack(*mark.place, file_size, mark.units)
    return data + _CRC.pack(crc32(data))


def decode_dispatched(data: bytes, file_size: int) -> Dispatched | None:
    """The mark in the file; None if it is damaged, or of a log with files of another size."""
    if len(data) != _MARK.size + _CRC.size:
        return None
    offset, tail_check, size, units = _MARK.unpack_from(data)
    if _CRC.unpack_from(data, _MARK.size)[0] != crc32(data[: _MARK.size]) or size != file_size or offset < 0:
        return None
    return Dispatched(LogPlace(offset, tail_check), units)


def units_of(queues: ConsumeQueues) -> int:
    """Number of messages that were ever put into these queues."""
    return sum(queues.next_indexes().values())


class RaftCheckpoints:
    """
    A L{dledger.rocketmq.store.checkpoints.StoreCheckpoints}.

    @ivar settled_offset: the units of all messages before this offset are on stable storage.
    """

    def __init__(
        self, root: str, opened: OpenedFiles[RaftLog], around: StoreSurroundings, *, known: int
    ) -> None:
        """
        @param root: the directory of the store.
        @param known: the queues are complete up to this offset, also if the dispatch begins before it.
        """
        self._times = decode_checkpoint(read_store_checkpoint(opened.hints, root) or b"")
        self.settled_offset = opened.dispatcher.offset
        self._known = known
        self._file = HintFile(opened.hints, BROKER_CHECKPOINT, root)
        self._dispatched = HintFile(opened.hints, DISPATCHED, root)
        self._opened = opened
        self._run_in_thread = around.run_in_thread

    async def write(self) -> None:
        """See L{dledger.rocketmq.store.checkpoints.StoreCheckpoints.write}."""
        opened = self._opened
        dispatched = DispatchFlush(opened, self._run_in_thread)
        units = units_of(opened.queues)  # now: those before dispatched.offset
        place = LogPlace(dispatched.offset, opened.log.tail_check(dispatched.offset))
        await self._record(dispatched.ahead(self._times))
        await dispatched.run()
        self.settled_offset = dispatched.offset
        if place.offset < self._known:
            return  # the queues have more, and the last mark says so
        await self._record(dispatched.times())
        await self._write(self._dispatched, encode_dispatched(Dispatched(place, units), opened.log.file_size))

    async def _record(self, times: Checkpoint) -> None:
        if times != self._times:
            if await self._write(self._file, encode_checkpoint(times)):
                self._times = times

    async def _write(self, file: HintFile, content: bytes) -> bool:
        written: list[bool] = []
        await self._run_in_thread(lambda: written.append(file.write(content)))
        return written[0]
