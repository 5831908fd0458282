# -*- test-case-name: tests.storage.test_file_store -*-
"""
The files of a ledger in use, and where it begins and ends: the state that the parts of a store share.

L{dledger.storage.store.file_store.FileStore} changes it; L{dledger.storage.store.store_reads.StoreReads} only
reads it. L{dledger.storage.start.mark_writer.MarkWriter} knows how much of it is on stable storage.
"""

from __future__ import annotations

import attrs

from dledger.base.disk.disk import Disk
from dledger.base.disk.guard import DiskGuard
from dledger.base.disk.segment import SegmentList
from dledger.base.disk.set_aside import SetAside
from dledger.storage.files.body_stamps import BodyStamps
from dledger.storage.files.hole_list import HoleList
from dledger.storage.start.directory import RecoveredLedger
from dledger.values.ledger.config import DLedgerConfig


@attrs.frozen(kw_only=True)
class End:
    """Where a ledger ends: last index, its term, stream offset after it."""

    index: int
    term: int
    position: int


@attrs.define(eq=False, kw_only=True)
class OpenLedger:
    """
    Invariants: C{begin_index <= end_index} unless the ledger is empty (both -1); data and index hold only
    zeroes after the end.

    @ivar guard: says whether the files can still be used.
    @ivar begin_index: first index present; -1 when empty.
    @ivar end_index, end_term: of the last entry; -1 when empty.
    @ivar end_position: stream offset in bytes after the last record.
    @ivar chain_crc: C{chainCrc} of the last record, 0 if there is none.
    @ivar is_end_proven: whether C{chain_crc} is known: a start found the record before the last one sound, or
        the last one was written or compared since.
    @ivar committed_index: last index known to be committed; -1 for none.
    @ivar repair_end_index: -1, or the end that a leader must bring the ledger past again.
    @ivar epoch: rises with every cut.
    @ivar holes: entries between C{begin_index} and C{end_index} whose records are damaged.
    @ivar stamps: writes positions into the bodies of clients.
    @ivar aside: keeps data files, and bytes of them, that leave the ledger without having expired.
    """

    config: DLedgerConfig
    disk: Disk
    data: SegmentList
    index: SegmentList
    guard: DiskGuard
    begin_index: int
    end_index: int
    end_term: int
    end_position: int
    chain_crc: int
    committed_index: int
    repair_end_index: int
    holes: HoleList
    is_end_proven: bool = True
    epoch: int = 0
    stamps: BodyStamps = attrs.Factory(BodyStamps)
    aside: SetAside = attrs.Factory(lambda self: SetAside(self.disk), takes_self=True)

    @classmethod
    def of(cls, config: DLedgerConfig, disk: Disk, recovered: RecoveredLedger) -> OpenLedger:
        """The ledger that recovery has found. From now on any damage is borne."""
        found = recovered.found
        for files in (recovered.data, recovered.index):
            files.unreadable.opened()
        return cls(
            config=config, disk=disk, data=recovered.data, index=recovered.index,
            guard=DiskGuard("the store", path=config.self_path), begin_index=found.begin_index,
            end_index=found.end_index, end_term=found.end_term, end_position=found.end_position,
            chain_crc=found.chain_crc, committed_index=recovered.committed_index,
            repair_end_index=recovered.repair_end_index, holes=recovered.holes, aside=recovered.aside,
            is_end_proven=found.end_index < 1 or recovered.holes.end_index < found.end_index - 1,
        )

    @property
    def proven_chain_crc(self) -> int | None:
        """C{chainCrc} of the last record; None if nothing vouches for it."""
        return self.chain_crc if self.is_end_proven else None

    @property
    def end(self) -> End:
        """Where it ends now."""
        return End(index=self.end_index, term=self.end_term, position=self.end_position)
