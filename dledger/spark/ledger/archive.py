# -*- test-case-name: tests.spark.test_archive -*-
"""
Mode C{path} on what C{dledger archive} or C{dledger backup} made: segments of a log, without an index.

Rule 1: every record is compared with its place, its checksum and the chain before it is shown. One without
checksums (Java's), and the first one of an archive that begins later than its log, are shown when the SHA-256
of their whole segment was compared. A segment that is read from its begin to its end is compared as a whole,
too, before its last records are shown.
Rule 2: a task reads whole segments, unless one is larger than C{partitionBytes} (and than L{_PART_BYTES}), or
C{minPartitions}, C{maxRecordsPerPartition} or the range itself cut one. Planning reads the manifest, and no
segment.
Rule 3: in a segment, a record is found by headers that name their own place. A body may hold bytes that look
like such a header, so a walk over at least L{_SURE_BYTES} of records leads to it, or one from the begin of
the segment.

Ranges are read by C{fetchBytes}, so a task holds one of them, or one record that is larger.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_right
from collections.abc import Iterator

import attrs
import numpy as np

from dledger.spark.formats.log import (
    Chunk,
    DamageError,
    DataLossError,
    Extent,
    LogPart,
    Offsets,
    ReadError,
    await_end,
    capped,
    halved,
    lost,
    skipped,
)
from dledger.spark.formats.options import ScanOptions
from dledger.spark.formats.proof import Proof, of_group, of_record
from dledger.spark.formats.record_headers import HEADER_DTYPE, Place, damage, gather, sound_headers
from dledger.spark.ledger.archive_files import ArchiveFiles
from dledger.storage.manifests.archive_manifest import ArchiveManifest, ArchivePiece
from protocols.wire.ledger.entry import ENTRY_HEADER, ENTRY_HEADER_SIZE, MAGIC

#: A walk over as many bytes has left the body in which it may have begun: the longest that members take.
_SURE_BYTES = 4 * 1024 * 1024 + ENTRY_HEADER_SIZE
#: Bytes before a wanted record from which a walk begins, and within which it is not searched for.
_BACK_BYTES = 2 * _SURE_BYTES
#: A segment is not cut into smaller parts than these because of its size: each part may read a walk more.
_PART_BYTES = 8 * _SURE_BYTES
#: Bytes of one look for a header, and looks for one record at most.
_LOOK_BYTES, _LOOKS = 128 * 1024, 16
#: Bytes of one read of a single record, for a proof.
_PROOF_BYTES = 256 * 1024
_PROOFS_KEPT = 16
_SKIPPED = ". With option failOnDamage=false it is skipped"


@attrs.define(kw_only=True)
class _Walk:
    """
    A place between two records of a segment.

    @ivar index, position: of the record after it.
    @ivar term, chain_crc: of the record before it; C{chain_crc} is None if that is not known.
    """

    index: int
    position: int
    term: int
    chain_crc: int | None


class ArchiveLog:
    """
    An archive. Offsets are indexes; its end is that of its last segment.

    Invariant: C{_manifest} is the newest one that was seen, and has the segments of those before, except the
    first ones that retention has taken since.

    Implements L{dledger.spark.formats.log.ScannedLog}.
    """

    def __init__(self, options: ScanOptions, where: str = "") -> None:
        """@param where: a directory or a URL; empty: C{path}."""
        self._where = where or options.path
        self._options = options if not where else attrs.evolve(options, path=where)
        self._files = ArchiveFiles(options, self._where)
        self._strict = attrs.evolve(options, verify_crc=True, fail_on_damage=False)
        self._manifest: ArchiveManifest | None = None
        self._firsts: list[int] = []
        #: Of segments whose SHA-256 is the one of the manifest; whose length is; and proofs by offset.
        self._verified: set[str] = set()
        self._measured: set[str] = set()
        self._proofs: dict[int, Proof] = {}

    # -- planning -------------------------------------------------------------------------------

    def manifest(self) -> ArchiveManifest:
        """
        As of now.

        @raise DamageError, ReadError: see L{ArchiveFiles.manifest}.
        @raise DataLossError: it is another archive than before.
        """
        found, before = self._files.manifest(), self._manifest
        if before is not None:
            if not _continues(found, before):
                raise DataLossError(f"{self._where} was exchanged for another archive while it was read")
            if found.generation < before.generation:
                raise DamageError(f"{self._where} went back from generation {before.generation}, which ends "
                                  f"with entry {before.end_index}, to {found.generation}: an older copy was "
                                  "put in its place. Put the newer one back, or run dledger archive again")
        elif found.group and self._options.group not in ("default", found.group):
            raise ReadError(f"{self._where} is an archive of group {found.group!r}, and option group is "
                            f"{self._options.group!r}")
        self._manifest = found
        self._firsts = [piece.first_index for piece in found.pieces]
        return found

    def seen(self) -> ArchiveManifest:
        """As of the last look."""
        return self._manifest if self._manifest is not None else self.manifest()

    def extent(self, *, needs_begin: bool = True) -> Extent:
        found = self.manifest()
        return Extent(begin=max(found.begin_index, 0), end=found.end_index + 1)

    def group_id(self) -> str:
        return self.seen().group_id

    def _piece(self, index: int) -> ArchivePiece | None:
        pieces = self.seen().pieces
        at = bisect_right(self._firsts, index) - 1
        return pieces[at] if at >= 0 and index <= pieces[at].last_index else None

    def _pieces(self, begin: int, end: int) -> list[ArchivePiece]:
        return [one for one in self.seen().pieces if one.first_index < end and begin <= one.last_index]

    def proof(self, offset: int) -> Proof:
        facts, index = of_group(self.group_id()), offset - 1
        piece = self._piece(index)
        if piece is None:
            return facts
        if offset not in self._proofs:
            record = self._record(piece, index)
            if record is None:
                return facts
            if len(self._proofs) >= _PROOFS_KEPT:
                self._proofs.pop(next(iter(self._proofs)))
            self._proofs[offset] = {**facts, **(of_record(record, index) or {})}
        return self._proofs[offset]

    def _record(self, piece: ArchivePiece, index: int) -> bytes | None:
        """
        A sound record; None if it is not, or has expired meanwhile, and the option for that says so.

        @raise DamageError: it is not sound, and C{failOnDamage} is set.
        @raise DataLossError: it has expired, and C{failOnDataLoss} is set.
        """
        path = self._files.path(piece.name)
        try:
            walk = self._walk_to(piece, index)
            chunk = self._step(piece, walk, index + 1, _PROOF_BYTES)
            assert chunk.data is not None
            first, last = map(int, chunk.starts[:2])
            record = bytes(memoryview(chunk.data)[first:last])
            at = chunk.place_at + first
            is_last = index == piece.last_index
            if is_last and hashlib.sha256(record).hexdigest() != piece.last_record_sha256:
                raise DamageError(f"entry {index} is damaged: {path} at {at}: it is not the last record that "
                                  f"the manifest names{_SKIPPED}")
            self._check_bare(piece, chunk)
        except DamageError:
            if self._options.fail_on_damage:
                raise
            return None
        except DataLossError:
            if self._options.fail_on_data_loss:
                raise
            return None
        return record

    def position_of(self, offset: int) -> int:
        """
        See L{dledger.spark.formats.log.ScannedLog.position_of}. Within a segment it is an estimate: its
        entries are taken to be of one size.
        """
        piece = self._piece(offset)
        if piece is not None:
            return self._near(piece, offset)
        pieces = self.seen().pieces
        return pieces[-1].end_position if pieces and offset > pieces[-1].last_index else 0

    def _near(self, piece: ArchivePiece, index: int) -> int:
        return piece.position + piece.size * (index - piece.first_index) // _count(piece)

    def after(self, begin: int, end: int, count: int) -> int:
        return min(begin + count, end)

    def own_parts(self, begin: int, end: int) -> list[LogPart]:
        """See L{dledger.spark.formats.log.CutsItself}, and rule 2."""
        parts: list[LogPart] = []
        options = self._options
        for piece in self._pieces(begin, end):
            first, last = max(begin, piece.first_index), min(end, piece.last_index + 1)
            size = piece.size * (last - first) // _count(piece)
            if parts and parts[-1].size_bytes + size <= options.partition_bytes:
                parts[-1] = attrs.evolve(parts[-1], end=last, size_bytes=parts[-1].size_bytes + size)
            else:
                parts.append(LogPart(begin=first, end=last, size_bytes=size))
        if not parts:
            return [LogPart(begin=begin, end=end, size_bytes=0)]  # reading it says what is missing
        # (what the archive lacks is reported, too)
        parts[0] = attrs.evolve(parts[0], begin=begin)
        parts[-1] = attrs.evolve(parts[-1], end=end)
        parts = self._at_least(-(-max(options.min_partitions, 1) // len(parts)), parts)
        return capped(parts, options.max_records_per_partition)

    def _at_least(self, count: int, parts: list[LogPart]) -> list[LogPart]:
        """Cut each part into C{count} pieces, or more if it is larger than a part should be."""
        most = max(self._options.partition_bytes, _PART_BYTES)
        found: list[LogPart] = []
        for part in parts:
            wanted = max(count, part.size_bytes // most)
            finer = attrs.evolve(self._options, min_partitions=wanted, partition_bytes=2**62,
                                 max_records_per_partition=0)
            found += [part] if wanted < 2 else halved(self, finer, part.begin, part.end)
        return found

    # -- reading --------------------------------------------------------------------------------

    def chunks(self, begin: int, end: int, *, with_data: bool) -> Iterator[Chunk]:
        """
        See L{dledger.spark.formats.log.ScannedLog.chunks}. There is always data: an archive has no index.
        """
        if self._manifest is None or self._manifest.end_index + 1 < end:
            await_end(self, self._options, end)
        first = max(self.seen().begin_index, 0)
        if begin < min(first, end):
            begin = lost(self._options, begin, first, end=end)
        unreadable = 0
        for piece in self._pieces(begin, end):
            index, last = max(begin, piece.first_index), min(end, piece.last_index + 1)
            try:
                for chunk in self._piece_chunks(piece, index, last):
                    unreadable += chunk.first - index
                    yield chunk
                    index = chunk.first + chunk.count
            except DataLossError as error:
                if self._options.fail_on_data_loss:
                    raise
                skipped(str(error))
            else:
                unreadable += last - index
        if unreadable:
            skipped(f"{self._where}: {unreadable} damaged entries were skipped")

    def _piece_chunks(self, piece: ArchivePiece, begin: int, end: int) -> Iterator[Chunk]:
        """
        The sound records of a range of one segment.

        @raise DamageError: a record, or the whole segment, is damaged, and C{failOnDamage} is set.
        """
        is_lenient = not self._options.fail_on_damage
        is_whole = begin == piece.first_index and end == piece.last_index + 1
        digest = hashlib.sha256() if is_whole else None
        try:
            walk: _Walk | None = self._walk_to(piece, begin)
        except DamageError:
            if not is_lenient:
                raise
            walk = self._behind_damage(piece, self._begin_of(piece))
        while walk is not None and walk.index < end:
            try:
                chunk = self._step(piece, walk, end, self._options.fetch_bytes)
                self._check_bare(piece, chunk)
            except DamageError:
                if not is_lenient:
                    raise
                digest, walk = None, self._behind_damage(piece, walk)
                continue
            if digest is not None and chunk.data is not None:
                digest.update(memoryview(chunk.data)[int(chunk.starts[0]) : int(chunk.starts[-1])])
                if walk.index == end:
                    self._check_whole(piece, digest.hexdigest(), walk)
            if walk.index > begin:  # (after damage, a walk may begin before the range)
                yield _from(chunk, begin)

    def _check_whole(self, piece: ArchivePiece, sha256: str, walk: _Walk) -> None:
        """@param walk: after the last record."""
        what = ""
        if walk.position != piece.end_position:
            what = f"its last record ends at byte {walk.position - piece.position} of {piece.size}"
        elif sha256 != piece.sha256:
            what = "its SHA-256 is not the one in the manifest"
        elif (walk.term, walk.chain_crc) != (piece.last_term, piece.chain_crc):
            what = "the term or the checksum of its last record is not the one in the manifest"
        if not what:
            self._verified.add(piece.name)
            return
        self._trouble(f"{self._files.path(piece.name)} at 0, entries {piece.first_index} to "
                      f"{piece.last_index}: {what}")

    def _trouble(self, what: str) -> None:
        if self._options.fail_on_damage:
            raise DamageError(f"{what}. With option failOnDamage=false its records are shown that are sound "
                              "by their own checksums")
        skipped(what)

    def _check_bare(self, piece: ArchivePiece, chunk: Chunk) -> None:
        """Compare the whole segment with its SHA-256 if a record of C{chunk} has no checksum; see rule 1."""
        if piece.name in self._verified or not chunk.count:
            return
        assert chunk.data is not None
        headers = gather(chunk.data, chunk.starts[:-1], HEADER_DTYPE)
        if chunk.chain_before is not None and (headers["chain_crc"] != 0).all():
            return
        digest = hashlib.sha256()
        for at in range(0, piece.size, self._options.fetch_bytes):
            digest.update(self._read(piece, at, min(at + self._options.fetch_bytes, piece.size)))
        self._verified.add(piece.name)  # (reported once, if damage is to be skipped)
        if digest.hexdigest() != piece.sha256:
            if self._options.fail_on_damage:
                self._verified.discard(piece.name)
            self._trouble(f"{self._files.path(piece.name)} at 0, entries {piece.first_index} to "
                          f"{piece.last_index}: its SHA-256 is not the one in the manifest, and some of its "
                          "records have no checksums of their own")

    def _read(self, piece: ArchivePiece, begin: int, end: int) -> bytes:
        """Bytes of a segment, all of them. @raise DamageError: it is not there, or not as long as it was."""
        path = self._files.path(piece.name)
        of = f"entries {piece.first_index} to {piece.last_index} cannot be read: {path}"
        try:
            if piece.name not in self._measured:
                size = self._files.size(piece.name)
                if size != piece.size:
                    raise DamageError(f"{of} at {min(size, piece.size)}: it has {size} bytes, but the "
                                      f"manifest lists it with {piece.size}{_SKIPPED}")
                self._measured.add(piece.name)
            data = self._files.read(piece.name, begin, end)
        except FileNotFoundError:
            self.manifest()  # as of now: retention may have taken it since, or a longer one its place
            now = self._piece(piece.first_index)
            if now is not None and now.name != piece.name:
                return self._read(now, begin, end)
            if now is None:
                raise DataLossError(f"{of}: it has expired in the archive meanwhile. With option "
                                    "failOnDataLoss=false its entries are skipped") from None
            raise DamageError(f"{of} at 0: it is missing, but the manifest lists it{_SKIPPED}") from None
        if len(data) != end - begin:
            raise DamageError(f"{of} at {begin + len(data)}: it ends there, but the manifest lists it with "
                              f"{piece.size} bytes{_SKIPPED}")
        return data

    def _step(self, piece: ArchivePiece, walk: _Walk, stop: int, most: int) -> Chunk:
        """
        Sound records from C{walk} on, at least one, up to C{stop} (exclusive); the walk moves past them.

        @param most: bytes of one read.
        @raise DamageError: the first one is not sound.
        """
        at, left = walk.position - piece.position, piece.end_position - walk.position
        data = self._read(piece, at, at + min(most, left))
        size = _size_of(data)
        if len(data) < size <= left:
            data = self._read(piece, at, at + size)
        starts = _starts(data, min(stop, piece.last_index + 1) - walk.index)
        path = self._files.path(piece.name)
        if len(starts) < 2:
            raise DamageError(f"entry {walk.index} is damaged: {path} at {at}: there is no header of a whole "
                              f"record{_SKIPPED}")
        chunk = Chunk(data=data, starts=starts, first=walk.index, place=path, place_at=at,
                      chain_before=walk.chain_crc)
        place = Place(next=walk.index, end=walk.position, term=walk.term, chain_crc=walk.chain_crc)
        headers, is_sound = sound_headers(chunk, self._strict, place)
        is_placed = headers["pos"] == walk.position + starts[:-1]
        is_placed &= (headers["term"] >= piece.first_term) & (headers["term"] <= piece.last_term)
        is_usable = is_sound & is_placed
        if not is_usable[0]:
            raise damage(chunk, 0, "its header does not fit its place" if not is_placed[0] else
                         "its header or its body does not match its checksum")
        count = chunk.count if is_usable.all() else int(np.argmin(is_usable))
        last = headers[count - 1]
        walk.index += count
        walk.position += int(starts[count])
        walk.term = int(last["term"])
        walk.chain_crc = int(last["chain_crc"])
        return attrs.evolve(chunk, starts=starts[: count + 1])

    # -- finding a record -----------------------------------------------------------------------

    def _begin_of(self, piece: ArchivePiece) -> _Walk:
        before = self._piece(piece.first_index - 1)
        chain = before.chain_crc if before is not None else 0 if piece.first_index == 0 else None
        return _Walk(index=piece.first_index, position=piece.position, chain_crc=chain,
                     term=before.last_term if before is not None else -1)

    def _walk_to(self, piece: ArchivePiece, index: int) -> _Walk:
        """
        The place before the record of entry C{index}, with the chain before it.

        @raise DamageError: a record on the way to it is damaged.
        """
        walk = self._guess(piece, index)
        if walk is not None:
            begin = walk.position
            try:
                self._walked(piece, walk, index)
                if walk.position - begin >= _SURE_BYTES:
                    return walk
            except DamageError:
                pass  # it did not begin with a record, or the way from the begin reports the damage
        return self._walked(piece, self._begin_of(piece), index)

    def _walked(self, piece: ArchivePiece, walk: _Walk, index: int) -> _Walk:
        while walk.index < index:
            self._step(piece, walk, index, self._options.fetch_bytes)
        return walk

    def _guess(self, piece: ArchivePiece, index: int) -> _Walk | None:
        """A place before C{index} from which a walk is sure; None: the begin of the segment is near."""
        if self._near(piece, index) - piece.position <= _BACK_BYTES:
            return None
        low = piece.first_index, piece.position
        high = piece.last_index + 1, piece.end_position
        for _ in range(_LOOKS):
            if high[1] - low[1] <= _SURE_BYTES or high[0] - low[0] < 2:
                break
            share = (index - low[0]) / (high[0] - low[0])
            guess = low[1] + int((high[1] - low[1]) * min(max(share, 0.02), 0.98))
            found = self._header_from(piece, guess, min(guess + _LOOK_BYTES, high[1]), low[0] + 1, high[0])
            if found is None:
                break
            if found[0] < index:
                low = found
            else:
                high = found
        begin = low[1] - _BACK_BYTES
        if begin <= piece.position:
            return None
        found = self._header_from(piece, begin, low[1] - _SURE_BYTES, piece.first_index, index)
        if found is None:
            return None
        return _Walk(index=found[0], position=found[1], term=-1, chain_crc=None)

    def _header_from(
        self, piece: ArchivePiece, begin: int, end: int, low: int, high: int
    ) -> tuple[int, int] | None:
        """
        Index and position of the first header between two positions that names its own place, and an entry
        from C{low} to C{high} (exclusive).
        """
        while begin < end:
            last = min(begin + _LOOK_BYTES + ENTRY_HEADER_SIZE - 1, piece.end_position)
            data = self._read(piece, begin - piece.position, last - piece.position)
            for at in _magic_at(data):
                if begin + at >= end:
                    return None
                _, size, index, _, position, _, _, _, length = ENTRY_HEADER.unpack_from(data, at)
                if position == begin + at and low <= index < high and size == length + ENTRY_HEADER_SIZE and (
                        0 <= length <= piece.end_position - position - ENTRY_HEADER_SIZE):
                    return index, position
            begin += _LOOK_BYTES
        return None

    def _behind_damage(self, piece: ArchivePiece, walk: _Walk) -> _Walk | None:
        """The next record after a damaged one, by its looks; None if the segment has none."""
        try:
            found = self._header_from(piece, walk.position + 1, piece.end_position, walk.index,
                                      piece.last_index + 1)
        except DamageError:
            return None
        if found is None:
            return None
        return _Walk(index=found[0], position=found[1], term=walk.term, chain_crc=None)

    def close(self) -> None:
        self._files.close()


def _continues(found: ArchiveManifest, before: ArchiveManifest) -> bool:
    """
    Whether both are of one archive: they list the same, except those that retention has taken, and a last
    piece in whose place a later run has put a longer one.
    """
    begin = max(found.begin_index, before.begin_index)
    ours, theirs = ([piece for piece in one.pieces if piece.first_index >= begin] for one in (found, before))
    count = min(len(ours), len(theirs))
    is_longer = count > 0 and _is_longer(ours[count - 1], theirs[count - 1]) and count == len(theirs)
    same = count - 1 if is_longer else count
    return (ours[:same], found.group_id) == (theirs[:same], before.group_id)


def _is_longer(piece: ArchivePiece, part: ArchivePiece) -> bool:
    """Whether C{piece} can be the one that a later run has put in the place of C{part}."""
    begins = [(one.position, one.first_index, one.first_term) for one in (piece, part)]
    return begins[0] == begins[1] and piece.end_position > part.end_position and (
        piece.last_index > part.last_index and piece.last_term >= part.last_term)


def _count(piece: ArchivePiece) -> int:
    return piece.last_index + 1 - piece.first_index


def _from(chunk: Chunk, begin: int) -> Chunk:
    """The records of a chunk from entry C{begin} on; there is one."""
    if chunk.first >= begin:
        return chunk
    skip = begin - chunk.first
    return attrs.evolve(chunk, first=begin, starts=chunk.starts[skip:], chain_before=None)


def _size_of(data: bytes) -> int:
    """The size that the header at the begin of C{data} names; 0 if there is no header."""
    if len(data) < ENTRY_HEADER_SIZE:
        return 0
    magic, size = ENTRY_HEADER.unpack_from(data)[:2]
    return int(size) if magic == MAGIC and size >= ENTRY_HEADER_SIZE else 0


def _starts(data: bytes, most: int) -> Offsets:
    """
    Where records begin that follow each other, then where the last one ends: whole ones, up to the first that
    has no magic number or no possible size, and at most C{most}.
    """
    total, size = len(data), _size_of(data)
    if not size:
        return np.zeros(1, dtype=np.int64)
    count = min(total // size, most)
    rows = np.frombuffer(data, dtype=np.uint8, count=count * size).reshape(count, size)[:, :8]
    is_equal = (rows == rows[:1]).all(axis=1)
    if is_equal.all() and (count == most or count * size == total):
        return np.arange(0, count * size + 1, size, dtype=np.int64)
    count = int(np.argmin(is_equal)) if not is_equal.all() else count
    starts = list(range(0, count * size + 1, size))
    at, unpack, last = starts[-1], ENTRY_HEADER.unpack_from, total - ENTRY_HEADER_SIZE
    while len(starts) <= most and at <= last:
        magic, size = unpack(data, at)[:2]
        at += size
        if magic != MAGIC or size < ENTRY_HEADER_SIZE or at > total:
            break
        starts.append(at)
    return np.array(starts, dtype=np.int64)


def _magic_at(data: bytes) -> Iterator[int]:
    """Where a whole header could begin: the magic number is there."""
    magic = MAGIC.to_bytes(4, "big")
    at = data.find(magic)
    while 0 <= at <= len(data) - ENTRY_HEADER_SIZE:
        yield at
        at = data.find(magic, at + 1)
