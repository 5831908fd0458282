# -*- test-case-name: tests.broker.store.test_log_recovery -*-
"""
Finds the end of a commit log at a start.

Rule 1: below the end that our mark records, nothing is parsed: all of it reached stable storage.
Rule 2: after it, and without a trusted mark, the log extends over all sound records and blanks, with correct
checksums of bodies.
Rule 3: after a crash a record with zeroes in its topic or properties is in doubt: a crash in the middle of
the write leaves such a record, and no checksum covers these fields. The log ends before it: our masters store
no such record, and a slave receives it again. In a log that RocketMQ wrote it stays if a sound record
follows.
Rule 3a: after a crash a blank is in doubt, too, if its size is not that of the rest of its file: a part of it
was written.
Rule 3b: a master whose log would end at damage, before the end that any mark of ours records, refuses to
start, also if another program has opened the store since: what was on stable storage is no torn write.
Rule 4: a blank at the end stays, although RocketMQ would drop it: slaves may have it already.
Rule 5: the bytes after the end are zeroed, durably, before an append.

Source: CommitLog.recoverNormally, recoverAbnormally (4.9.8, 5.3.3).
"""

from __future__ import annotations

import attrs

from dledger.base.disk.disk import Disk
from dledger.base.disk.segment import Listing, SegmentList, file_name, list_segments
from dledger.rocketmq.store.log.log_mark import LOG_MARK_NAME
from dledger.rocketmq.store.records.records import MIN_BLANK_SIZE, check_record, store_timestamp_of
from dledger.values.errors import DirectoryError
from protocols.wire.errors import WireError
from protocols.wire.rocketmq.layout import HEAD_SIZE, MAGIC_BLANK, MAGIC_V1, START, START_SIZE, WALKED

OPTION = "mapped_file_size_commit_log"
_READ_BYTES = 1024 * 1024
_FIRST_RECORD_BYTES = 128
_MAGIC_V1 = (MAGIC_V1 & 0xFFFFFFFF).to_bytes(4, "big")


@attrs.frozen(kw_only=True)
class LogEnd:
    """
    The end of a log.

    @ivar offset: end of the last valid record or blank.
    @ivar why: why no record begins there; empty if only zeroes follow.
    """

    offset: int
    why: str = ""


def list_log_files(
    disk: Disk, directory: str, file_size: int, mark_end: int | None
) -> tuple[tuple[int, ...], tuple[str, ...]]:
    """
    Read the directory of a log; change nothing.

    @param mark_end: everything below it is on stable storage; None: unknown. A power cut may have removed or
        shortened any file after it.
    @return: offsets of the log's files, rising without a gap, and paths of files that a crash left behind.
    @raise DirectoryError: a file is foreign, has another length, or is missing in between.
    """
    listing: Listing = list_segments(disk, directory, file_size, OPTION)
    offsets = listing.offsets
    kept = len(offsets)
    for at, (one, following) in enumerate(zip(offsets, offsets[1:], strict=False)):
        if following != one + file_size:
            if mark_end is None or one + file_size < mark_end:
                raise DirectoryError(
                    f"{directory}/{file_name(one + file_size)} is missing between {file_name(one)} and "
                    f"{file_name(following)}: put it back, or move away the files on one side of it"
                )
            kept = at + 1
            break
    holds_nothing = not any(disk.file_size(f"{directory}/{file_name(one)}") for one in listing.unfinished)
    if listing.unfinished and not _is_explained(listing, file_size, mark_end, holds_nothing=holds_nothing):
        path = f"{directory}/{file_name(listing.unfinished[0])}"
        raise DirectoryError(
            f"{path} has {listing.unfinished_size} bytes, but {OPTION}={file_size}: start with the size that "
            "the log was made with (one for a master and its slaves), or move a damaged file away"
        )
    left = (*listing.unfinished[::-1], *offsets[kept:][::-1])
    return offsets[:kept], tuple(f"{directory}/{file_name(offset)}" for offset in left)


def _is_explained(listing: Listing, file_size: int, mark_end: int | None, *, holds_nothing: bool) -> bool:
    """
    Whether a crash explains the short files: a file gets its length when it is created.

    @param holds_nothing: the first short file and all after it have no byte.
    """
    first = listing.unfinished[0]
    if mark_end is not None:
        return first >= mark_end
    follows = not listing.offsets or first == listing.offsets[-1] + file_size
    return follows and holds_nothing


def check_first(segments: SegmentList) -> None:
    """
    Check that the log begins with a record, as every file of a log does, or with zeroes.

    @raise DirectoryError: the files do not belong to a commit log, or its files have another length.
    """
    if not segments.offsets:
        return
    offset = segments.offsets[0]
    data = segments.pread(_FIRST_RECORD_BYTES, offset)
    if any(data[:START_SIZE]) and not store_timestamp_of(data) and START.unpack_from(data)[1] != MAGIC_BLANK:
        raise DirectoryError(
            f"{segments.path(offset)} does not begin with a record: is it a commit log, and is {OPTION}="
            f"{segments.file_size} the size of its files?"
        )


def check_nothing_follows(segments: SegmentList, end: LogEnd) -> None:
    """
    Check that files after the end hold no records; else the damage at the end is not a torn tail.

    @raise DirectoryError: a file holds records, which a cut at the end would delete.
    """
    for offset in segments.offsets:
        if offset > end.offset and store_timestamp_of(segments.pread(_FIRST_RECORD_BYTES, offset)):
            raise DirectoryError(
                f"{segments.path(segments.base(end.offset))} is damaged at {end.offset} "
                f"({end.why or 'zeroes'}), but {segments.path(offset)} after it holds records. Put a sound "
                "copy of the file back (a slave has one); or, to give up everything after the damage, move "
                "the files after it away"
            )


def check_damage(segments: SegmentList, end: LogEnd, stored_end: int) -> None:
    """
    Check that the log does not end at damage to bytes that were on stable storage.

    @param stored_end: all bytes before it once were, although another program may have used the log since.
    @raise DirectoryError: they are damaged; a cut there would hide the records after the damage.
    """
    if end.why and end.offset < stored_end:
        raise DirectoryError(
            f"{segments.path(segments.base(end.offset))} is damaged at {end.offset} ({end.why}), and records "
            f"up to {stored_end} were on stable storage. Put a sound copy of the file back (a slave has "
            f"one); or remove {LOG_MARK_NAME} to give up everything after the damage"
        )


def start_after_crash(segments: SegmentList, safe_timestamp_ms: int) -> int:
    """
    Offset from which to parse after a crash: the newest file whose first record was stored at or before
    C{safe_timestamp_ms}; else the first file.
    """
    for offset in reversed(segments.offsets):
        first = store_timestamp_of(segments.pread(_FIRST_RECORD_BYTES, offset))
        if first and first <= safe_timestamp_ms:
            return offset
    return segments.offsets[0] if segments.offsets else 0


def start_after_close(segments: SegmentList) -> int:
    """Offset from which to parse after a run that ended in order: the third file from the end."""
    return segments.offsets[max(len(segments.offsets) - 3, 0)] if segments.offsets else 0


def find_end(segments: SegmentList, start: int, *, crashed: bool, is_strict: bool) -> LogEnd:
    """
    Find the end of the sound records from C{start} on, where a record begins.

    @param crashed: rules 3 and 3a apply.
    @param is_strict: drop a record in doubt even if a sound record follows.
    """
    sure = offset = start
    why = doubt = ""
    data, data_at = b"", start
    while segments.has(segments.base(offset)) and not (doubt and is_strict):
        room = segments.file_size - offset % segments.file_size
        have = len(data) - (offset - data_at)
        if have < min(_READ_BYTES // 4, room):
            data, data_at = segments.pread(min(_READ_BYTES, room), offset), offset
        at = offset - data_at
        size, magic = START.unpack_from(data, at) if room >= START_SIZE else (0, 0)
        if not size and not magic:
            break
        if magic == MAGIC_BLANK and room >= MIN_BLANK_SIZE:
            is_beyond_doubt = size == room
            problem, size = f"a blank of {size} bytes where {room} are left in the file", room
        else:
            problem = "zeroes in the topic or properties of the last record"
            if at + size > len(data) and 0 < size <= room:
                data, data_at, at = segments.pread(size, offset), offset, 0
            try:
                size, is_beyond_doubt = check_record(data, at, offset, room - MIN_BLANK_SIZE)
            except WireError as error:
                why = str(error)
                break
        if is_beyond_doubt or not crashed:
            sure, doubt = offset + size, ""
        else:
            doubt = doubt or f"log at {offset}: {problem}"
        offset += size
    return LogEnd(offset=sure, why=why or doubt)


def record_follows(segments: SegmentList, end: int, size: int) -> bool:
    """Whether a record seems to begin in the C{size} bytes after C{end}, which is not a torn write then."""
    at = end
    while at < end + size:
        data = segments.pread(end + size - at, at)
        found = data.find(_MAGIC_V1, 5)
        while found >= 4:
            start = found - 4
            if len(data) - start >= HEAD_SIZE and WALKED.unpack_from(data, start)[2] == at + start:
                return True
            found = data.find(_MAGIC_V1, found + 1)
        at += len(data)
    return False
