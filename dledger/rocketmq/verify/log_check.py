# -*- test-case-name: tests.broker.verify.test_store_check -*-
"""
Reads a commit log from its first byte to its end, in pieces: memory is bounded by the longest record.

Rule 1: the log ends where only zeroes follow. Bytes that are no sound record are damage if a sound record
follows them, or if they are before the end that the mark records; else a crash left them, and they are no
finding: the next start drops them.
Rule 2: holes of a sparse file are not read: they are zeroes.
Rule 3: after a damaged record the walk goes on where a record says its own place: the place of a message is
one of its fields.
"""

from __future__ import annotations

from collections.abc import Iterator

import attrs

from dledger.base.disk.disk import Disk, File
from dledger.base.disk.segment import file_name
from dledger.base.disk.sparse import next_data
from dledger.rocketmq.store.records.records import problem_of
from dledger.rocketmq.verify.report import Progress, StoreReport
from protocols.wire.rocketmq.layout import (
    HEAD,
    HEAD_SIZE,
    MAGIC_BLANK,
    MAGIC_V1,
    MAGIC_V2,
    START,
    START_SIZE,
)

_READ_BYTES = 4 * 1024 * 1024
#: No record is longer: the largest message that a broker can be set to take, and what is around it.
RECORD_BYTES_MAX = 64 * 1024 * 1024 + 64 * 1024
#: Of the magic in a record.
_MAGIC_AT = 4
_MAGICS = tuple((magic & 0xFFFFFFFF).to_bytes(4, "big") for magic in (MAGIC_V1, MAGIC_V2))

FROM_A_COPY = (
    "a slave or the master has a copy: start the broker beside it, and its scrub asks for the record; or "
    "copy this file from it while both are stopped"
)

_UNREADABLE = "give the right to read it, or move it away if it is none of the broker's"

_SWALLOWED = (
    "if this is a slave whose mapped_file_size_commit_log was not its master's, the messages after it are in "
    "no queue: start it with the right size and an empty directory. RocketMQ may leave one after a crash, "
    "which needs no mending"
)


@attrs.frozen(kw_only=True)
class LogFiles:
    """The files of a log. @ivar offsets: of the first bytes of the files that follow each other."""

    directory: str
    file_size: int
    offsets: tuple[int, ...]

    def path(self, offset: int) -> str:
        """The file with this byte of the log."""
        return f"{self.directory}/{file_name(offset - offset % self.file_size)}"


def list_log(disk: Disk, directory: str, report: StoreReport) -> LogFiles:
    """The files of a log; what does not fit is a finding."""
    found: list[tuple[int, int]] = []
    for name in sorted(disk.listdir(directory)) if disk.exists(directory) else ():
        path = f"{directory}/{name}"
        if len(name) != 20 or not (name.isascii() and name.isdecimal()):
            report.add(path, "not a file of the log: names are 20 digits", "move it away")
            continue
        try:
            found.append((int(name), disk.file_size(path)))
        except OSError as error:
            report.add(path, f"it cannot be read: {error.strerror}", _UNREADABLE)
    if not found:
        return LogFiles(directory=directory, file_size=1, offsets=())
    file_size = found[0][1]
    offsets: list[int] = []
    for offset, size in found:
        path = f"{directory}/{file_name(offset)}"
        if size != file_size:
            report.add(path, f"it has {size} bytes, and the first file {file_size}",
                       f"a crash may leave it if the log ends before it, and the next start removes it; else "
                       f"{FROM_A_COPY}")
            break
        if offsets and offset != offsets[-1] + file_size:
            missing = f"{directory}/{file_name(offsets[-1] + file_size)}"
            report.add(missing, "it is missing, and files follow it", "put it back. " + FROM_A_COPY)
            break
        offsets.append(offset)
    return LogFiles(directory=directory, file_size=max(file_size, 1), offsets=tuple(offsets))


@attrs.define
class LogWalk:
    """Finds the records of a log."""

    _disk: Disk
    _files: LogFiles
    _report: StoreReport
    _progress: Progress
    _seen_to: int = 0

    def records(self) -> Iterator[tuple[int, bytes]]:
        """Every sound record, and where it begins. Ends with the log."""
        report, files = self._report, self._files
        report.begin_offset = report.end_offset = files.offsets[0] if files.offsets else 0
        for offset in files.offsets:
            try:
                file = self._disk.open(files.path(offset))
            except OSError as error:
                report.add(files.path(offset), f"it cannot be read: {error.strerror}", _UNREADABLE)
                return
            yield from self._in_file(file, offset)

    def _in_file(self, file: File, base: int) -> Iterator[tuple[int, bytes]]:
        file_size, report = self._files.file_size, self._report
        total = len(self._files.offsets) * file_size
        at, data, start = 0, b"", 0
        #: Where damage began; -1: there is none.
        hurt = -1
        try:
            while at + START_SIZE <= file_size:
                if at < start or at + START_SIZE > start + len(data):
                    data, start = file.pread(min(_READ_BYTES, file_size - at), at), at
                    self._seen(base, at, len(data))
                    self._progress(base - self._files.offsets[0] + at, total)
                size, magic = START.unpack_from(data, at - start)
                if hurt < 0 and not size and not magic:
                    hurt, at = at, self._after_zeroes(file, base, at)
                    if at < 0:
                        return
                    continue
                if magic == MAGIC_BLANK:
                    self._blank(base, at, size)
                    self._ended(base, hurt, at)
                    report.end_offset = base + file_size
                    return
                whole = self._record(file, data, at - start, at, size)
                room = file_size - at
                problem = problem_of(whole, base + at, room, RECORD_BYTES_MAX)
                if problem == "":
                    self._ended(base, hurt, at)
                    hurt = -1
                    report.end_offset = base + at + size
                    yield base + at, whole
                    at += size
                    continue
                if hurt < 0:
                    hurt = at
                at = self._next_candidate(file, base, at + 1)
                if at < 0:
                    self._torn(base, hurt, problem or "it is cut short")
                    return
            self._ended(base, hurt, file_size)
        finally:
            file.close()

    def _blank(self, base: int, at: int, size: int) -> None:
        """A blank reports what is left of its file; 0: RocketMQ goes on after a torn one."""
        left = self._files.file_size - at
        if size not in (0, left):
            self._report.add(self._files.path(base), f"a blank of {size} bytes, and {left} are left",
                             _SWALLOWED, offset=base + at)

    def _seen(self, base: int, at: int, size: int) -> None:
        """Bytes of a file were read; those that were read before do not count twice."""
        begin = max(base + at, self._seen_to)
        self._seen_to = max(base + at + size, self._seen_to)
        self._report.log_bytes += self._seen_to - begin if self._seen_to > begin else 0

    @staticmethod
    def _record(file: File, data: bytes, begin: int, at: int, size: int) -> bytes:
        """The bytes of a record, as far as they may be one."""
        if not 0 < size <= RECORD_BYTES_MAX:
            return data[begin : begin + HEAD_SIZE]
        if begin + size <= len(data):
            return data[begin : begin + size]
        return file.pread(size, at)

    def _after_zeroes(self, file: File, base: int, at: int) -> int:
        """Where a record follows zeroes; -1: the log ends before them."""
        found = self._next_candidate(file, base, at)
        if found < 0 and base + at < self._report.known_end_offset:
            self._lost(base, at, self._files.file_size, "zeroes are there")
        return found

    def _next_candidate(self, file: File, base: int, at: int) -> int:
        """Where the next record that has its own place in it may begin; -1: nowhere in this file."""
        file_size = self._files.file_size
        while at + HEAD_SIZE <= file_size:
            # (The first bytes of a record may be zeroes, and in a hole.)
            at = max(at, next_data(file, at, file_size) - HEAD_SIZE)
            piece = file.pread(min(_READ_BYTES, file_size - at), at)
            self._seen(base, at, len(piece))
            look = 0
            while True:
                places = [place for magic in _MAGICS if (place := piece.find(magic, look + _MAGIC_AT)) >= 0]
                if not places:
                    break
                begin = min(places) - _MAGIC_AT
                if begin + HEAD_SIZE > len(piece):
                    break
                if HEAD.unpack_from(piece, begin)[6] == base + at + begin:
                    return at + begin
                look = begin + 1
            if at + len(piece) >= file_size or len(piece) <= HEAD_SIZE:
                return -1
            at += len(piece) - HEAD_SIZE
        return -1

    def _ended(self, base: int, hurt: int, at: int) -> None:
        """Sound bytes follow damage, if there is some."""
        if hurt >= 0:
            self._lost(base, hurt, at, "they are no sound record, and a sound one follows")

    def _torn(self, base: int, hurt: int, problem: str) -> None:
        """Nothing sound follows in this file: damage, or the end of the log."""
        is_last = base == self._files.offsets[-1]
        if base + hurt < self._report.known_end_offset or not is_last:
            self._lost(base, hurt, self._files.file_size, problem)

    def _lost(self, base: int, begin: int, end: int, why: str) -> None:
        self._report.lost(base + begin, base + end)
        self._report.add(
            self._files.path(base + begin), f"{end - begin} bytes from {base + begin} on: {why}", FROM_A_COPY,
            offset=base + begin,
        )
