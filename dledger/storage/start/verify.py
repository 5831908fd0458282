# -*- test-case-name: tests.storage.test_verify -*-
"""
Verification of a member's directory, without changing it.

Checks each record (place, index, term, size, checksums), its index unit, each blank, the file names and
lengths, and every other file that a start reads: each of them has checksums, so one flipped bit in it is
found, also where it is harmless. The sentence says what the next start does. Works on Java's directories,
whose records have no checksums (such records are counted), and on those of live members: entries beyond the
recorded end (mark or checkpoint) may still change, so a bad record there is taken for the end and is not a
finding.
"""

from __future__ import annotations

from collections.abc import Callable

import attrs

from dledger.base.disk.disk import Disk, File
from dledger.base.disk.file_table import ARCHIVED, CHUNKS, HOLES, LEDGER_CHECKPOINT, MET
from dledger.base.disk.hints import Hints
from dledger.base.disk.set_aside import KeptFile, kept_files
from dledger.base.disk.sparse import next_data
from dledger.storage.files.chunk_rows import row_damage
from dledger.storage.files.commit_mark import COMMIT_MARK_NAME, CommitMark, mark_damage, read_mark
from dledger.storage.files.hole_list import HoleList
from dledger.storage.files.properties import (
    checkpoint_damage,
    is_sealed,
    read_checkpoint,
)
from dledger.storage.files.reader import LogReader
from dledger.storage.files.records import DamagedRecord, Walk, record_fits, walk_records
from dledger.storage.files.snapshot_file import SnapshotRefused, check_snapshot
from dledger.storage.files.state_file import STATE_NAME, StateFile, state_damage
from dledger.storage.files.term_file import (
    TERM_FILE_NAME,
    TERM_TWIN_NAME,
    decode_term,
    decode_term_twin,
    later_term,
    term_damage,
    twin_damage,
)
from dledger.storage.manifests.archived_note import decode_note
from dledger.storage.manifests.kept_snapshot import MACHINE_DIRECTORY, parsed_snapshot_name
from dledger.storage.start.configurations import COPY_SUFFIX, MEMBERS_NAME, check_memberships, has_list
from dledger.storage.start.identity import IDENTITY_NAME, identity_damage, read_identity
from dledger.values.errors import DirectoryError, StoreError
from dledger.values.ledger.holes import Hole
from protocols.wire.ledger.entry import (
    BLANK,
    BLANK_MAGIC,
    ENTRY_HEADER,
    ENTRY_HEADER_SIZE,
    INDEX_UNIT,
    INDEX_UNIT_SIZE,
    MAGIC,
    MIN_BLANK_SIZE,
    decode_header,
)

_CHUNK = 1024 * 1024
#: Bytes of index units that are read at once.
_UNITS_BYTES = 32_768 * INDEX_UNIT_SIZE
#: Findings beyond this number are counted, not kept.
FINDINGS_MAX = 1000

#: Reads of a small file that changes while it is read.
_READS_MAX = 5

Progress = Callable[[int, int], None]


@attrs.frozen(kw_only=True)
class Finding:
    """
    A problem in a directory.

    @ivar file: path of the file.
    @ivar offset, index: byte in the file, and index of the entry; -1 where not applicable.
    @ivar sentence: description of the problem.
    """

    file: str
    offset: int = -1
    index: int = -1
    sentence: str


@attrs.define(kw_only=True)
class VerifyReport:
    """
    Result of a verification.

    @ivar findings: at most L{FINDINGS_MAX} findings; C{findings_count} counts all.
    @ivar entries, data_bytes: sound records, and their bytes.
    @ivar begin_index, end_index, committed_index: indexes of the ledger; -1 for none.
    @ivar settled_index: entries after this index may still change.
    @ivar without_body_crc, without_chain_crc: records without this checksum (Java's).
    @ivar blanks: files that end in a blank.
    @ivar repair_end_index: the member is repairing up to this index; -1 if healthy.
    @ivar holes: what the member remembers as damaged and fetches from its peers.
    @ivar set_aside: files of cut data, kept beside the ledger; they are no findings.
    """

    path: str
    findings: list[Finding] = attrs.Factory(list)
    findings_count: int = 0
    entries: int = 0
    data_bytes: int = 0
    begin_index: int = -1
    end_index: int = -1
    committed_index: int = -1
    settled_index: int = -1
    without_body_crc: int = 0
    without_chain_crc: int = 0
    blanks: int = 0
    repair_end_index: int = -1
    holes: list[Hole] = attrs.Factory(list)
    set_aside: list[KeptFile] = attrs.Factory(list)

    @property
    def is_clean(self) -> bool:
        """Whether there are no findings."""
        return self.findings_count == 0

    def add(self, file: str, sentence: str, *, offset: int = -1, index: int = -1) -> None:
        """Add a finding."""
        self.findings_count += 1
        if len(self.findings) < FINDINGS_MAX:
            self.findings.append(Finding(file=file, offset=offset, index=index, sentence=sentence))


def verify_directory(
    disk: Disk, path: str, *, data_path: str = "", progress: Progress | None = None
) -> VerifyReport:
    """
    Check everything in a member's directory. A malformed commit mark ends the check.

    @param path: C{<store_base_dir>/dledger-<self_id>}.
    @param progress: called repeatedly with the bytes checked and the bytes to check.
    @raise DirectoryError: C{path} is not a member's directory.
    @raise StoreError: the directory cannot be read.
    """
    report = VerifyReport(path=path)
    try:
        _verify(disk, data_path, report, progress)
    except OSError as error:
        raise StoreError(f"{path} cannot be read: {error}", path=path) from error
    return report


def _verify(disk: Disk, data_path: str, report: VerifyReport, progress: Progress | None) -> None:
    path = report.path
    report.set_aside = kept_files(disk, data_path or f"{path}/data")
    _check_mark(disk, path, report)
    _check_holes(disk, path, report)
    _check_small_files(disk, path, report)
    try:
        reader = LogReader.open(path, data_path=data_path, disk=disk)
    except DirectoryError as error:
        if not disk.exists(data_path or f"{path}/data"):
            raise
        report.add(path, str(error))
        return
    except StoreError:
        if report.is_clean:
            raise
        report.add(path, "its records were not looked at, as a file above cannot be read")
        return
    try:
        _Verifier(disk, reader, report, progress).run()
    finally:
        reader.close()


def _damage(disk: Disk, path: str, damage_in: Callable[[bytes], str]) -> str:
    """
    The damage of a file; empty without any, and without a file.

    A member that runs may be writing the file: it is damaged if it is so for as long as it does not change.
    """
    before = b""
    for _ in range(_READS_MAX):
        if not disk.exists(path):
            return ""
        try:
            data = disk.read_file(path)
        except FileNotFoundError:
            return ""
        except OSError as error:
            return f"it cannot be read: {error.strerror}"
        if not (damage := damage_in(data)) or data == before:
            return damage
        before = data
    return ""


def _check_mark(disk: Disk, path: str, report: VerifyReport) -> None:
    file = f"{path}/{COMMIT_MARK_NAME}"
    damage = _damage(disk, file, mark_damage)
    if damage:
        report.add(file, damage)
    try:
        found = read_mark(disk, file)
    except (DirectoryError, OSError):
        return
    if found is None:
        return
    mark = found[1]
    report.repair_end_index = mark.repair_end_index
    if mark.repair_end_index >= 0:
        report.add(file, "the member is repairing: entries up to "
                   f"{mark.repair_end_index} were lost and a leader has not brought them back yet",
                   index=mark.repair_end_index)
    if mark.damaged_index >= 0:
        report.add(file, "a damaged entry was noted while reading", index=mark.damaged_index)


def _check_small_files(disk: Disk, path: str, report: VerifyReport) -> None:
    def check(name: str, damage_in: Callable[[bytes], str], consequence: str) -> None:
        if damage := _damage(disk, f"{path}/{name}", damage_in):
            report.add(f"{path}/{name}", f"{damage}{consequence}")

    def list_damage(data: bytes) -> str:
        try:
            check_memberships(f"{path}/{MEMBERS_NAME}", data)
        except DirectoryError as error:
            return str(error)
        return ""

    copy = MEMBERS_NAME + COPY_SUFFIX
    check(IDENTITY_NAME, identity_damage, "")
    check(TERM_TWIN_NAME, twin_damage, "")
    check(STATE_NAME, state_damage, "")
    check(MET.name, lambda data: "" if is_sealed(data) else "its seal does not fit its lines",
          ": the next start has met nobody, and meets the members again")
    check(ARCHIVED.name, lambda data: "" if decode_note(data) is not None else "no sound note",
          f": {ARCHIVED.without}")
    directory = CHUNKS.name.partition("/")[0]
    for name in disk.listdir(f"{path}/{directory}") if disk.exists(f"{path}/{directory}") else ():
        check(f"{directory}/{name}", row_damage, f": {CHUNKS.without}")
    check(MEMBERS_NAME, list_damage, "")
    check(copy, list_damage, "")
    found = _sound_lists(disk, path)
    if len(found) == 1:
        missing = MEMBERS_NAME if copy in found else copy
        if not disk.exists(f"{path}/{missing}"):
            report.add(f"{path}/{missing}", "missing: the next start writes it again")
    elif len(set(found.values())) > 1 and _sound_lists(disk, path) == found:
        report.add(f"{path}/{copy}", f"differs from {MEMBERS_NAME}: the next start writes it again")
    elif not found and _is_listed(disk, path) and not has_list(disk, f"{path}/{MEMBERS_NAME}"):
        report.add(f"{path}/{MEMBERS_NAME}", "missing, and so is its copy: the member does not start without")
    if disk.exists(f"{path}/{COMMIT_MARK_NAME}") and not disk.exists(f"{path}/{IDENTITY_NAME}"):
        report.add(f"{path}/{IDENTITY_NAME}", "missing: the next start takes the directory for that of the "
                   "member that it starts as")
    if disk.exists(f"{path}/{MACHINE_DIRECTORY}"):
        for name in sorted(disk.listdir(f"{path}/{MACHINE_DIRECTORY}")):
            if parsed_snapshot_name(name) is not None:
                _check_snapshot(disk, f"{path}/{MACHINE_DIRECTORY}/{name}", report)


def _sound_lists(disk: Disk, path: str) -> dict[str, bytes]:
    """The lists of members that are sound, by their names."""
    found = {}
    for name in (MEMBERS_NAME, MEMBERS_NAME + COPY_SUFFIX):
        try:
            data = disk.read_file(f"{path}/{name}") if disk.exists(f"{path}/{name}") else b""
            check_memberships(name, data)
        except (DirectoryError, OSError):
            continue
        found[name] = data
    return found


def _is_listed(disk: Disk, path: str) -> bool:
    try:
        found = read_identity(disk, f"{path}/{IDENTITY_NAME}")
    except (DirectoryError, OSError):
        return False
    return found is not None and bool(found[1].is_listed)


def _check_snapshot(disk: Disk, path: str, report: VerifyReport) -> None:
    try:
        check_snapshot(disk, path)
    except FileNotFoundError:
        return  # the member has a newer one, and has removed this one just now
    except SnapshotRefused as error:
        report.add(path, f"{error}: the machine begins with another snapshot, also of another member")


def _check_holes(disk: Disk, path: str, report: VerifyReport) -> None:
    found = HoleList.recorded(Hints(disk), path)
    if found is None:
        report.add(f"{path}/{HOLES.name}", "not sound: the next start looks at every record")
        return
    report.holes = list(found)
    for hole in found:
        report.add(
            f"{path}/{HOLES.name}", f"{hole.count} entries from {hole.first_index} on are noted as damaged, "
            f"log offsets {hole.position} to {hole.end_position}; entry {hole.last_index + 1} is after "
            "them. The running member fetches them from its peers", index=hole.first_index,
        )


class _Verifier:
    """One pass over a directory."""

    def __init__(
        self, disk: Disk, reader: LogReader, report: VerifyReport, progress: Progress | None
    ) -> None:
        self._disk = disk
        self._reader = reader
        self._report = report
        self._progress = progress
        self._mark: CommitMark | None = reader.mark
        self._term = -1

    def run(self) -> None:
        """Check the whole directory."""
        report, reader = self._report, self._reader
        checkpoint = read_checkpoint(Hints(self._disk), reader.path)
        if self._mark is not None:
            report.settled_index = self._mark.recorded_end_index
        elif checkpoint is not None:
            report.settled_index = max(checkpoint)
        self._check_files()
        self._check_records()
        committed = max(checkpoint[0] if checkpoint else -1, self._mark.committed_index if self._mark else -1)
        report.committed_index = min(committed, report.end_index)
        if report.end_index < report.settled_index:
            report.add(reader.path, f"the ledger ends at {report.end_index}, but is recorded up to "
                       f"{report.settled_index}", index=report.end_index + 1)
        self._check_checkpoint(checkpoint)
        self._check_term()
        self._check_state()

    def _check_files(self) -> None:
        for files, option, recorded in (
            (self._reader.data, "data", self._mark.data_file_size if self._mark else 0),
            (self._reader.index, "index", self._mark.index_file_size if self._mark else 0),
        ):
            size = recorded or files.file_size
            previous = None
            for offset in files.offsets:
                found = self._disk.file_size(files.path(offset))
                if found != size or offset % max(size, 1):
                    self._report.add(files.path(offset), f"{option} file of {found} bytes: it must have "
                                     f"{size} bytes, at an offset that is a multiple of {size}")
                if previous is not None and offset != previous + size:
                    self._report.add(files.path(offset),
                                     f"{option} file missing between {previous} and {offset}")
                previous = offset

    def _check_checkpoint(self, checkpoint: tuple[int, int] | None) -> None:
        path = f"{self._reader.path}/{LEDGER_CHECKPOINT.name}"
        damage = _damage(self._disk, path, checkpoint_damage)
        if damage:
            self._report.add(path, f"{damage}. It is a hint, and written again")
        elif checkpoint is not None and checkpoint[0] > max(
            self._report.end_index, self._report.repair_end_index  # (that of the mark is a finding)
        ):
            self._report.add(path, f"committedIndex={checkpoint[0]} lies after the end "
                             f"{self._report.end_index}", index=checkpoint[0])

    def _check_term(self) -> None:
        path = f"{self._reader.path}/{TERM_FILE_NAME}"
        twin = None
        if self._disk.exists(f"{self._reader.path}/{TERM_TWIN_NAME}"):
            twin = decode_term_twin(self._disk.read_file(f"{self._reader.path}/{TERM_TWIN_NAME}"))
        if not self._disk.exists(path):
            if self._report.entries:
                self._report.add(path, "missing, although the ledger has entries")
            return
        damage = _damage(self._disk, path, term_damage)
        found = decode_term(self._disk.read_file(path))
        if damage:
            self._report.add(path, damage)
        elif found is not None and found.term < self._term:
            self._report.add(path, f"currTerm={found.term} is below the last entry's term {self._term}")
        elif found is not None and twin is not None and later_term(found, twin) is None:
            self._report.add(path, f"the vote for {found.voted_for} in term {found.term} is another one in "
                             f"{TERM_TWIN_NAME}, for {twin.voted_for}")

    def _check_state(self) -> None:
        """The states of the group are those of entries of this ledger."""
        path, report = f"{self._reader.path}/{STATE_NAME}", self._report
        for stored in StateFile(self._disk, path).read():
            place = stored.place
            if not max(report.begin_index, 0) <= place.entry_index <= report.end_index:
                continue
            unit = self._reader.unit(place.entry_index)
            head = b"" if unit is None else self._reader.data.pread(ENTRY_HEADER_SIZE, unit[1])
            if len(head) < ENTRY_HEADER_SIZE:
                continue
            header = decode_header(head)
            if place[1:] != (header.term, header.pos, header.chain_crc):
                report.add(path, f"its state after entry {place.entry_index} is of another log: it is void",
                           index=place.entry_index)

    # -- records ---------------------------------------------------------------------------------

    def _check_records(self) -> None:
        reader, report = self._reader, self._report
        if not reader.data.offsets:
            return
        begin = self._indexed_begin()
        report.begin_index = begin
        total = len(reader.data.offsets) * reader.data_file_size
        walk = Walk(index=begin, position=reader.data.offsets[0], chain_crc=0 if begin == 0 else None)
        if begin < 0:
            if any(reader.data.pread(ENTRY_HEADER_SIZE, walk.position)):
                report.add(reader.data.path(walk.position), "no record at the beginning", offset=0)
            return
        more = True
        for offset in reader.data.offsets:
            if not more:
                break
            walk.position = max(walk.position, offset)
            more = self._check_file(walk, offset, total)
        self._term = walk.term
        report.end_index = walk.index - 1 if report.entries else -1
        if self._mark is not None and self._mark.clean:
            self._check_rest(walk.position)

    def _indexed_begin(self) -> int:
        """The first entry's index from the index files; from its record if the index has no unit of it."""
        first = self._reader.data.offsets[0]
        for base in self._reader.index.offsets[:1]:
            file = self._disk.open(self._reader.index.path(base))
            try:
                found = _unit_at(file, first, self._reader.index_file_size)
            finally:
                file.close()
            if found >= 0:
                return found
        return self._reader.begin_index

    def _check_file(self, walk: Walk, offset: int, total: int) -> bool:
        """Walk one file; False at the end of the ledger."""
        reader = self._reader
        file_end = offset + reader.data_file_size
        while walk.position < file_end:
            if self._progress is not None:
                self._progress(walk.position - reader.data.offsets[0], total)
            data = reader.data.pread(_CHUNK, walk.position)
            if len(data) >= MIN_BLANK_SIZE and BLANK.unpack_from(data)[0] == BLANK_MAGIC:
                self._check_blank(walk, BLANK.unpack_from(data)[1], file_end)
                walk.position = file_end
                return True
            what = self._check_next(data, walk, file_end)
            if what and not self._damage(walk, what, file_end):
                return False
        return True

    def _check_next(self, data: bytes, walk: Walk, file_end: int) -> str:
        """Pass the sound records at the start of C{data}. @return: the problem that follows them, or ""."""
        if len(data) < MIN_BLANK_SIZE:
            return "the file ends without a blank"
        size = BLANK.unpack_from(data)[1]
        if size == 0:
            return "no record"
        if size > len(data) and record_fits(size, file_end - walk.position):
            data = self._reader.data.pread(size, walk.position)
        try:
            self._check_chunk(data, walk)
        except DamagedRecord as damage:
            return damage.what
        return "" if walk.count else f"no record of {size} bytes fits here"

    def _check_chunk(self, data: bytes, walk: Walk) -> None:
        units: list[bytes] = []
        first = walk.index
        walk.count = walk.length = 0
        try:
            walk_records(data, walk, max_count=len(data), one_term=False,
                         size_max=self._reader.data_file_size, units=units)
        except DamagedRecord:
            magic, size = BLANK.unpack_from(data, walk.length)
            if not walk.count or (magic != BLANK_MAGIC and size != 0):
                raise
        finally:
            self._report.entries += walk.count
            self._report.data_bytes += walk.length
            self._count_bare(data, walk.length)
            self._check_units(first, units)

    def _count_bare(self, data: bytes, length: int) -> None:
        offset = 0
        while offset < length:
            fields = ENTRY_HEADER.unpack_from(data, offset)
            self._report.without_chain_crc += not fields[6]
            self._report.without_body_crc += not fields[7]
            offset += fields[1]

    def _check_units(self, first_index: int, units: list[bytes]) -> None:
        files = self._reader.index
        stored = b""
        wanted = b"".join(units)
        while len(stored) < len(wanted):
            piece = files.pread(len(wanted) - len(stored), first_index * INDEX_UNIT_SIZE + len(stored))
            if not piece:
                break
            stored += piece
        if stored == wanted:
            return
        for number, unit in enumerate(units):
            index = first_index + number
            at = number * INDEX_UNIT_SIZE
            if stored[at : at + INDEX_UNIT_SIZE] != unit and index <= self._report.settled_index:
                position = index * INDEX_UNIT_SIZE
                base = files.base(position)
                self._report.add(files.path(base) if base >= 0 else files.directory,
                                 "the index unit is missing, or differs from its record",
                                 offset=position - max(base, 0), index=index)

    def _damage(self, walk: Walk, what: str, file_end: int) -> bool:
        """
        Report damage and skip it: continue at the next record that the index leads to, or at the next
        file. False: the ledger ends here.
        """
        reader = self._reader
        if walk.index > self._report.settled_index:
            return False
        base = reader.data.base(walk.position)
        self._report.add(reader.data.path(base), what, offset=walk.position - base, index=walk.index)
        walk.chain_crc = None
        walk.count = walk.length = 0
        for index in range(walk.index + 1, min(walk.index + 1000, self._report.settled_index + 1)):
            unit = reader.unit(index)
            if unit is not None and unit[1] > walk.position and reader.data.base(unit[1]) >= 0:
                walk.index = index
                walk.position = unit[1]
                return True
        if walk.index < 0 or walk.index >= self._report.settled_index:
            return False
        walk.position = file_end
        walk.index += 1
        return True

    def _check_blank(self, walk: Walk, size: int, file_end: int) -> None:
        reader = self._reader
        self._report.blanks += 1
        base = reader.data.base(walk.position)
        room = file_end - walk.position
        place = {"offset": walk.position - base, "index": walk.index}
        if size != room and walk.index <= self._report.settled_index:
            self._report.add(reader.data.path(base), f"blank of {size} bytes where {room} are left", **place)
        position = walk.position + MIN_BLANK_SIZE
        if self._is_nonzero(position, file_end) and walk.index <= self._report.settled_index:
            self._report.add(reader.data.path(base), "bytes in a blank that are not zero", **place)

    def _check_rest(self, position: int) -> None:
        """After a clean close the rest of the last record's file must be zero."""
        reader = self._reader
        base = reader.data.base(position)
        if base >= 0 and self._is_nonzero(position, base + reader.data_file_size):
            self._report.add(reader.data.path(base), "bytes after the end that are not zero",
                             offset=position - base)

    def _is_nonzero(self, position: int, end: int) -> bool:
        """Whether a byte of a file is not zero. Holes of a sparse file are not read."""
        base = self._reader.data.base(position)
        file = self._disk.open(self._reader.data.path(base))
        try:
            while (position := base + next_data(file, position - base, end - base)) < end:
                data = file.pread(min(_CHUNK, end - position), position - base)
                if not data:
                    return False
                if data.count(0) != len(data):
                    return True
                position += len(data)
        finally:
            file.close()
        return False


def _unit_at(file: File, position: int, size: int) -> int:
    """
    The index in the first unit of an index file that leads to a position in the log; -1: none does.

    @param size: of the file.
    """
    at = 0
    while (at := next_data(file, at, size) // INDEX_UNIT_SIZE * INDEX_UNIT_SIZE) + INDEX_UNIT_SIZE <= size:
        units = file.pread(min(_UNITS_BYTES, size - at), at)
        whole = len(units) // INDEX_UNIT_SIZE * INDEX_UNIT_SIZE
        if not whole:
            break
        for magic, pos, _, index, _ in INDEX_UNIT.iter_unpack(units[:whole]):
            if magic == MAGIC and pos == position:
                return int(index)
        at += whole
    return -1
