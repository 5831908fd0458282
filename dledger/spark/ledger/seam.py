# -*- test-case-name: tests.spark.test_seam -*-
"""
Option C{archive}: the entries that a live log does not have any more come from an archive of it.

Rule 1: what the live log has is read there. Entries never change, so it does not matter when an entry has
moved from one to the other: planning says which tasks read the archive, and a task whose entries expire
meanwhile goes on there.
Rule 2: the two are of one log: the last record of the archive is the one that the live log has there, or the
first live record continues from it. That is checked whenever the archive has grown or is needed anew.
Rule 3: an entry that is in neither is lost, and a live log that ends before the archive lags behind and is
waited for.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from hashlib import sha256

import attrs

from dledger.spark.formats.log import (
    PAUSE_MAX_S,
    PAUSE_S,
    Chunk,
    DataLossError,
    Extent,
    LogPart,
    NotCommittedError,
    ReadError,
    ScannedLog,
    cut,
    lost,
)
from dledger.spark.formats.options import ScanOptions
from dledger.spark.formats.proof import Proof
from dledger.spark.ledger.archive import ArchiveLog
from dledger.storage.files.records import chain_of
from dledger.storage.manifests.archive_manifest import ArchivePiece
from protocols.wire.ledger.entry import ENTRY_HEADER, ENTRY_HEADER_SIZE


class JoinedLog:
    """
    An archive, and after it a ledger. Offsets are indexes.

    Invariant: C{_archived} is what the archive had when the two were compared last; None: they were not.

    Implements L{dledger.spark.formats.log.ScannedLog}.
    """

    def __init__(self, options: ScanOptions, live: ScannedLog, reading: ScannedLog) -> None:
        """
        @param live: a ledger.
        @param reading: the same, with an error wherever entries have expired.
        """
        self._options = options
        self._live = live
        self._reading = reading
        self._archive = ArchiveLog(options, options.archive)
        self._archived: Extent | None = None
        self._live_begin = 0

    def extent(self, *, needs_begin: bool = True) -> Extent:
        """
        See L{dledger.spark.formats.log.ScannedLog.extent}.

        @raise NotCommittedError: the live log ends before the archive, also after C{requestTimeoutMs}.
        @raise ReadError: the two are of different logs.
        """
        live = self._live.extent(needs_begin=needs_begin)
        known = self._archived
        if needs_begin or known is None or live.begin > known.end:
            if not needs_begin:
                live = self._live.extent(needs_begin=True)
            known = self._archive.extent()
            if known.end > known.begin:
                live = self._caught_up(live, known)
                self._compare(live)
            self._archived = known
        self._live_begin = live.begin
        if known.begin >= min(known.end, live.begin):
            return live
        if live.begin > known.end:
            note = (f"{live.note}. The archive {self._options.archive} ends with entry {known.end - 1}, and "
                    f"the log begins with entry {live.begin}: those between are in neither. Let dledger "
                    "archive run, or name a member that still has them")
            return attrs.evolve(live, note=note, is_lost=True)
        return Extent(begin=known.begin, end=live.end)

    def _caught_up(self, live: Extent, archived: Extent) -> Extent:
        deadline, pause = time.monotonic() + self._options.request_timeout_ms / 1000, PAUSE_S
        while live.end < archived.end:
            left = deadline - time.monotonic()
            if left <= 0:
                raise NotCommittedError(
                    f"{self._options.source} ends with entry {live.end - 1}, but the archive "
                    f"{self._options.archive} with entry {archived.end - 1}: the log lags behind, is not the "
                    f"one that was archived, or was made anew. It was waited for "
                    f"{self._options.request_timeout_ms} ms (requestTimeoutMs)"
                )
            time.sleep(min(pause, left))
            pause = min(2 * pause, PAUSE_MAX_S)
            live = self._live.extent(needs_begin=True)
        return live

    def _compare(self, live: Extent) -> None:
        """@raise ReadError: the archive is none of the live log's, which ends after it."""
        manifest, options = self._archive.seen(), self._options
        if options.bootstrap and manifest.group and manifest.group != options.group:
            raise self._foreign(f"it is of group {manifest.group!r}")
        ids = manifest.group_id, self._live.group_id()
        if all(ids) and ids[0] != ids[1]:
            raise self._foreign(f"it is of the group with the id {ids[0]}, and that one of {ids[1]}")
        last = manifest.pieces[-1]
        if live.begin <= last.last_index:
            record = self._live_record(last.last_index)
            if record is not None and sha256(record).hexdigest() != last.last_record_sha256:
                term, position, size = (ENTRY_HEADER.unpack_from(record)[at] for at in (3, 4, 1))
                raise self._foreign(
                    f"entry {last.last_index}, the last one of the archive, has term {last.last_term} and "
                    f"ends at byte {last.end_position} there; in the log it has term {term}, ends at byte "
                    f"{position + size}, and has another content, or is damaged (dledger verify says which)"
                )
        elif live.begin == last.last_index + 1 < live.end:
            self._check_adjoining(last, manifest.data_file_size, is_one_group=all(ids))

    def _live_record(self, index: int) -> bytes | None:
        """None: it was skipped, because it is damaged or has expired meanwhile, and an option allows that."""
        for chunk in self._live.chunks(index, index + 1, with_data=True):
            if chunk.data is not None and chunk.first == index:
                return bytes(memoryview(chunk.data)[int(chunk.starts[0]) : int(chunk.starts[1])])
        return None

    def _foreign(self, what: str) -> ReadError:
        return ReadError(f"option archive={self._options.archive!r} is not an archive of "
                         f"{self._options.source}: "
                         f"{what}. Name the archive of this log, or leave the option out")

    def _check_adjoining(self, last: ArchivePiece, file_size: int, *, is_one_group: bool) -> None:
        """The live log begins right after the archive: its first record covers the archive's last one."""
        index = last.last_index + 1
        record = self._live_record(index)
        if record is None:
            return
        header = record[:ENTRY_HEADER_SIZE]
        _, _, number, term, position, _, chain_crc, _, _ = ENTRY_HEADER.unpack(header)
        what = f"entry {index}, the first one of the log, "
        is_covered = bool(last.chain_crc and chain_crc)
        is_placed = number == index and position >= last.end_position and position % file_size == 0
        if not is_placed or term < last.last_term or (
                is_covered and chain_of(header, last.chain_crc) != chain_crc):
            raise self._foreign(what + "does not continue from the last one of the archive")
        if not is_covered and not is_one_group:
            raise self._foreign(what + "has no checksum that would prove that it continues from the last one "
                                "of the archive, and one of the two does not know the id of its group")

    def group_id(self) -> str:
        return self._live.group_id() or self._archive.group_id()

    def proof(self, offset: int) -> Proof:
        if offset <= self._live_begin and self._has(offset - 1):
            return self._archive.proof(offset)
        return self._live.proof(offset)

    def _has(self, index: int) -> bool:
        """Whether the archive, as far as it was compared, has this entry."""
        return self._archived is not None and self._archived.begin <= index < self._archived.end

    def position_of(self, offset: int) -> int:
        """See L{dledger.spark.formats.log.ScannedLog.position_of}, and L{ArchiveLog.position_of}."""
        if offset < self._live_begin and self._has(offset):
            return self._archive.position_of(offset)
        return self._live.position_of(offset)

    def after(self, begin: int, end: int, count: int) -> int:
        return min(begin + count, end)

    def own_parts(self, begin: int, end: int) -> list[LogPart]:
        """See L{dledger.spark.formats.log.CutsItself}: no part is in both."""
        seam = min(max(begin, self._live_begin), end)
        if not self._has(begin) or seam == begin:
            return cut(self._live, self._options, begin, end)
        older = [attrs.evolve(part, is_archived=True) for part in self._archive.own_parts(begin, seam)]
        return older + cut(self._live, self._options, seam, end)

    def chunks(self, begin: int, end: int, *, with_data: bool) -> Iterator[Chunk]:
        """See L{dledger.spark.formats.log.ScannedLog.chunks}, and rule 1."""
        index = begin
        if index < self._live_begin and self._has(index):
            until = min(end, self._live_begin)
            yield from self._archive.chunks(index, until, with_data=with_data)
            index = until
        while index < end:
            try:
                for chunk in self._reading.chunks(index, end, with_data=with_data):
                    yield chunk
                    index = chunk.first + chunk.count
                return
            except DataLossError:
                extent = self.extent()
                if self._live_begin <= index:
                    raise
                older = min(end, self._live_begin)
                if not extent.begin <= index:
                    index = lost(self._options, index, self._live_begin, end=end, note=extent.note)
                    continue
            yield from self._archive.chunks(index, older, with_data=with_data)
            index = older

    def close(self) -> None:
        self._live.close()
        self._reading.close()
        self._archive.close()
