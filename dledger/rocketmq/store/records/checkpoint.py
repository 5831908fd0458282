# -*- test-case-name: tests.broker.store.test_checkpoint -*-
"""
Two small files that show the next start how the last run ended: C{checkpoint} and C{abort}.

C{abort} exists while a store is open: a start that finds it knows that the last run crashed. C{checkpoint}
has 4096 bytes, of which five numbers are used; the first three are store timestamps of the last record
that was on stable storage in the log, in the consume queues and in the index.

Source: StoreCheckpoint.java, DefaultMessageStore.createTempFile (4.9.8, 5.3.3).
"""

from __future__ import annotations

import attrs
from construct import Int64sb, Struct

from dledger.base.disk.disk import Disk
from dledger.base.disk.file_table import BROKER_CHECKPOINT
from dledger.base.disk.hints import HintFile, Hints
from protocols.wire.layout import struct_of

ABORT_NAME = "abort"
CHECKPOINT_SIZE = 4096

CHECKPOINT_DECLARATION = Struct(
    "physic_msg_timestamp" / Int64sb,  # of the last record on stable storage, ms
    "logics_msg_timestamp" / Int64sb,  # of the last record whose consume queue unit is
    "index_msg_timestamp" / Int64sb,  # of the last record whose index entry is, or is about to be
    "master_flushed_offset" / Int64sb,  # 5.x only
    "confirm_phy_offset" / Int64sb,  # 5.x only
)
_NUMBERS = struct_of(CHECKPOINT_DECLARATION)

#: Java subtracts this from the older of the timestamps.
_MARGIN_MS = 3_000


@attrs.frozen(kw_only=True)
class Checkpoint:
    """The numbers of the file; fields as in the declaration, 0 for unknown."""

    physic_msg_timestamp: int = 0
    logics_msg_timestamp: int = 0
    index_msg_timestamp: int = 0
    master_flushed_offset: int = 0
    confirm_phy_offset: int = 0

    @property
    def safe_timestamp(self) -> int:
        """Store timestamp, ms, up to which log and queues are on stable storage; 0 if unknown."""
        return max(min(self.physic_msg_timestamp, self.logics_msg_timestamp) - _MARGIN_MS, 0)


def encode_checkpoint(checkpoint: Checkpoint) -> bytes:
    """The bytes of the file."""
    return _NUMBERS.pack(
        checkpoint.physic_msg_timestamp, checkpoint.logics_msg_timestamp, checkpoint.index_msg_timestamp,
        checkpoint.master_flushed_offset, checkpoint.confirm_phy_offset,
    ).ljust(CHECKPOINT_SIZE, b"\0")


def decode_checkpoint(data: bytes) -> Checkpoint:
    """
    The numbers of a file; all 0 if it is too short: recovery then begins at the first file.
    """
    if len(data) < _NUMBERS.size:
        return Checkpoint()
    physic, logics, index, flushed, confirmed = _NUMBERS.unpack_from(data)
    return Checkpoint(
        physic_msg_timestamp=physic, logics_msg_timestamp=logics, index_msg_timestamp=index,
        master_flushed_offset=flushed, confirm_phy_offset=confirmed,
    )


def read_store_checkpoint(hints: Hints, root: str) -> bytes | None:
    """Content of C{checkpoint} in the directory of a store; None if it is absent, or cannot be read."""
    return HintFile(hints, BROKER_CHECKPOINT, root).read(lambda data: data)


class AbortFile:
    """The file that says "a store is open, or was when its process ended"."""

    def __init__(self, disk: Disk, root: str) -> None:
        self._disk = disk
        self._path = f"{root}/{ABORT_NAME}"

    @property
    def is_there(self) -> bool:
        """Whether the last run crashed."""
        return self._disk.exists(self._path)

    def put(self, text: str) -> None:
        """Create it, durably. @param text: the process id, as 5.x writes it."""
        if not self.is_there:
            self._disk.write_file(self._path, text.encode("ascii"))

    def remove(self) -> None:
        """Remove it, durably: the run has ended in order."""
        if self.is_there:
            self._disk.unlink(self._path)
            self._disk.sync_directory(self._path.rpartition("/")[0])
