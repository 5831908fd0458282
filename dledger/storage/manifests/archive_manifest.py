# -*- test-case-name: tests.storage.test_archive,tests.storage.test_writers -*-
"""
The manifest of an archive: what is in it, and how far the log in it goes. A backup is an archive that held
all that was committed when it was taken::

    archive-0.json, archive-1.json    the manifest, in two slots
    generations/<generation>.json     the manifest of each generation; the last two of them
    data/<position>-<end position>    a I{piece}: records of one segment, without the blank
    machine/...                       snapshots, see L{dledger.storage.manifests.kept_snapshot}

A piece has all records of a closed segment, or, from a backup, those of the open segment so far. A later run
puts a longer piece in its place, in a file of its own.

Rule 1: a file counts when a sound manifest lists it, with its length and SHA-256. Any other file in C{data}
is what a run that was cut short has left.
Rule 2: the sound manifest with the highest generation counts, wherever it is, and the next one goes to the
other slot. So a store needs no atomic replacement: a manifest that was cut short is not a manifest, and the
one before counts.
Rule 3: the first manifest lists no piece, and is there before the first piece. So an archive with pieces
always has a sound manifest, or was damaged; and then nothing is written to it.
Rule 4: a manifest is written below C{generations} first, under a name that must be free, then to its slot.
So of two programs that go on from the same manifest one succeeds, where the place can say; and older copies
that are put in place of the slots do not count.

Positions are those of the log (stream offsets), so the bytes of a piece are those of every member's segment.
"""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from dledger.base.disk.disk import Disk
from dledger.storage.manifests.document import (
    DamagedManifest,
    MalformedManifest,
    decode_document,
    digest_in,
    encode_document,
    field_in,
    place_in,
)
from dledger.storage.manifests.kept_snapshot import KeptMachine, KeptSnapshot, snapshots_in, snapshots_of
from dledger.values.errors import DirectoryError, StoreError
from protocols.wire.ledger.bounds import INDEX_MAX, POSITION_MAX
from protocols.wire.ledger.entry import ENTRY_HEADER_SIZE

SLOT_NAMES = ("archive-0.json", "archive-1.json")
GENERATIONS = "generations"
_FORMAT, _VERSION = "dledger-archive", 1
#: Bytes of a manifest, at most: about 35,000 segments. To read one takes five times as much memory.
MANIFEST_BYTES_MAX = 16 << 20


class ArchiveTargetError(StoreError):
    """The place of the archive failed; the same call may succeed later."""


class ArchiveBusy(DirectoryError):
    """Another program writes to the archive; the same call may succeed later, and goes on after that one."""


@attrs.frozen(kw_only=True)
class ArchiveEnd:
    """
    The last entry, by which the next run knows the log again.

    @ivar position: stream offset after the record.
    @ivar chain_crc: its C{chainCrc}, 0 if it has none.
    @ivar record_sha256: of the whole record, in hexadecimal digits.
    """

    index: int
    term: int
    position: int
    chain_crc: int
    record_sha256: str


@attrs.frozen(kw_only=True)
class ArchivePiece:
    """
    A file of records of one segment, from the first one on.

    @ivar position, end_position: stream offsets of the first record, and after the last one.
    @ivar first_index, last_index: entries in it, inclusive.
    @ivar sha256: of the file, in hexadecimal digits.
    @ivar first_term, last_term: terms of the first and of the last entry.
    @ivar chain_crc: C{chainCrc} of the last record, 0 if it has none.
    @ivar last_record_sha256: of the last record, in hexadecimal digits.
    @ivar shipped_s: when it was listed, in seconds since 1970.
    """

    position: int
    end_position: int
    first_index: int
    last_index: int
    sha256: str
    first_term: int
    last_term: int
    chain_crc: int
    last_record_sha256: str
    shipped_s: int = attrs.field(eq=False)

    @property
    def size(self) -> int:
        """Length in bytes."""
        return self.end_position - self.position

    @property
    def name(self) -> str:
        """Path of the file, below the place of the archive."""
        return piece_name(self.position, self.end_position)

    @property
    def end(self) -> ArchiveEnd:
        """The last entry."""
        return ArchiveEnd(index=self.last_index, term=self.last_term, position=self.end_position,
                          chain_crc=self.chain_crc, record_sha256=self.last_record_sha256)


def piece_name(position: int, end_position: int) -> str:
    """Path of a piece, below the place of the archive."""
    return f"data/{position:020d}-{end_position:020d}"


def piece_span(name: str) -> tuple[int, int] | None:
    """The stream offsets in the path of a piece; None: it is called otherwise."""
    folder, _, file = name.rpartition("/")
    first, _, end = file.partition("-")
    is_one = folder == "data" and all(
        len(one) == 20 and one.isascii() and one.isdecimal() for one in (first, end))
    return (int(first), int(end)) if is_one else None


@attrs.frozen(kw_only=True)
class ArchiveManifest:
    """
    Content of the manifest.

    @ivar generation: grows by one with every manifest; the first one is 1.
    @ivar group, group_id, member_id: as the member's identity says; empty where it says nothing. The member
        is the one of the last run.
    @ivar data_file_size, index_file_size: of the member's files, in bytes.
    @ivar taken_s: time of the last run that added something, in seconds since 1970.
    @ivar pieces: in the order of the log; none in the first manifest. No entry is missing between them.
    @ivar machine: None: no member that has shipped anything has run a state machine.
    @ivar group_state: None: none of them was of ours.
    """

    generation: int
    group: str
    group_id: str
    member_id: str
    data_file_size: int
    index_file_size: int
    taken_s: int
    pieces: tuple[ArchivePiece, ...] = ()
    machine: KeptMachine | None = None
    group_state: KeptMachine | None = None

    @property
    def name(self) -> str:
        """Path of the file for this generation that is never replaced."""
        return generation_name(self.generation)

    @property
    def slot_name(self) -> str:
        """Name of the file for this generation."""
        return SLOT_NAMES[self.generation % 2]

    @property
    def begin_index(self) -> int:
        """Index of the first entry; -1 for none."""
        return self.pieces[0].first_index if self.pieces else -1

    @property
    def end_index(self) -> int:
        """Index of the last entry; -1 for none."""
        return self.pieces[-1].last_index if self.pieces else -1

    @property
    def size(self) -> int:
        """Bytes of all pieces."""
        return sum(piece.size for piece in self.pieces)

    @property
    def snapshots(self) -> tuple[KeptSnapshot, ...]:
        """Of the machine, and of the group."""
        return snapshots_of(self.machine, self.group_state)

    def names(self) -> list[str]:
        """Paths of all listed files."""
        return [piece.name for piece in self.pieces] + [one.name for one in self.snapshots]


def encode_archive_manifest(manifest: ArchiveManifest) -> bytes:
    """
    The bytes of the file.

    @raise ValueError: the pieces do not follow each other.
    @raise DirectoryError: they are too many.
    """
    if manifest.pieces:
        check_pieces(manifest.data_file_size, manifest.index_file_size, manifest.pieces)
    data = encode_document(_FORMAT, _VERSION, "archive", attrs.asdict(manifest))
    if len(data) > MANIFEST_BYTES_MAX:
        raise DirectoryError(
            f"the manifest of {len(manifest.pieces)} segments would have {len(data)} bytes, and "
            f"{MANIFEST_BYTES_MAX} are allowed: let old segments go (--expire), or take the next archive to "
            "another place"
        )
    return data


def decode_archive_manifest(data: bytes) -> ArchiveManifest:
    """
    @raise DamagedManifest: it was cut short, or changed.
    @raise ValueError: it is of another version, or says what cannot be.
    """
    content = decode_document(data, _FORMAT, _VERSION, "archive")
    pieces = content.get("pieces")
    if not isinstance(pieces, list):
        raise MalformedManifest("it has no pieces")
    manifest = ArchiveManifest(
        generation=place_in(content, "generation", INDEX_MAX), group=field_in(content, "group", str),
        group_id=field_in(content, "group_id", str), member_id=field_in(content, "member_id", str),
        data_file_size=place_in(content, "data_file_size", POSITION_MAX),
        index_file_size=place_in(content, "index_file_size", POSITION_MAX),
        taken_s=field_in(content, "taken_s", int), pieces=tuple(map(_piece_in, pieces)),
        machine=snapshots_in(content, "machine"),
        group_state=snapshots_in(content, "group_state"),
    )
    if manifest.pieces:
        check_pieces(manifest.data_file_size, manifest.index_file_size, manifest.pieces)
    return manifest


def _piece_in(piece: object) -> ArchivePiece:
    if not isinstance(piece, dict):
        raise MalformedManifest(f"a piece is {piece!r}")
    first, last = place_in(piece, "first_term", INDEX_MAX), place_in(piece, "last_term", INDEX_MAX)
    if first > last:
        raise MalformedManifest(f"a piece begins with term {first} and ends with term {last}")
    return ArchivePiece(
        position=place_in(piece, "position", POSITION_MAX),
        end_position=place_in(piece, "end_position", POSITION_MAX),
        first_index=place_in(piece, "first_index", INDEX_MAX),
        last_index=place_in(piece, "last_index", INDEX_MAX), sha256=digest_in(piece, "sha256"),
        first_term=first, last_term=last, chain_crc=field_in(piece, "chain_crc", int),
        last_record_sha256=digest_in(piece, "last_record_sha256"),
        shipped_s=field_in(piece, "shipped_s", int),
    )


def check_pieces(data_file_size: int, index_file_size: int, pieces: Sequence[ArchivePiece]) -> None:
    """
    @param pieces: of one log, whose files have these sizes; at least one.
    @raise ValueError: the pieces do not follow each other, or are no segments.
    """
    size = data_file_size
    if not size or not index_file_size:
        raise MalformedManifest("a file size is 0")
    before = None
    for piece in pieces:
        count = piece.last_index - piece.first_index + 1
        is_in_order = before is None or (
            piece.first_index == before.last_index + 1 and piece.position >= before.end_position)
        if (
            not is_in_order or count < 1 or piece.size < count * ENTRY_HEADER_SIZE or piece.position % size
            or piece.size > size
        ):
            raise MalformedManifest(f"the piece {piece.name} does not fit the one before it, or no segment")
        before = piece


def generation_name(generation: int) -> str:
    """Path of a manifest, below the place of the archive."""
    return f"{GENERATIONS}/{generation:020d}.json"


def generation_of(name: str) -> int:
    """The generation that a name below C{generations} shows; -1 if it reports none."""
    digits, dot, kind = name.partition(".")
    is_one = len(digits) == 20 and digits.isascii() and digits.isdecimal() and f"{dot}{kind}" == ".json"
    return int(digits) if is_one else -1


@attrs.frozen(kw_only=True)
class ArchiveState:
    """
    What the manifests say.

    @ivar manifest: the one that counts; None if none is sound.
    @ivar trouble: sentences about manifests that are damaged, or missing although they were written.
    @ivar newest: the highest generation that was begun, sound or not; 0 for none.
    @ivar slotted: the highest generation in a slot, sound; 0 for none.
    @ivar others: the other sound ones that were read.
    """

    manifest: ArchiveManifest | None
    trouble: tuple[str, ...] = ()
    newest: int = 0
    slotted: int = 0
    others: tuple[ArchiveManifest, ...] = ()

    @property
    def manifests(self) -> tuple[ArchiveManifest, ...]:
        """All sound ones that were read."""
        return self.others if self.manifest is None else (self.manifest, *self.others)


class _Look:
    """The manifests of a place, as they are read."""

    def __init__(self, disk: Disk, directory: str) -> None:
        self._disk = disk
        self._directory = directory
        self.found: list[ArchiveManifest] = []
        self.trouble: list[str] = []

    def read(self, name: str, *, needed: bool) -> ArchiveManifest | None:
        """
        A sound manifest. @param needed: it is one that must be there.

        @raise DirectoryError, ArchiveTargetError: see L{read_archive}.
        """
        path = f"{self._directory}/{name}"
        try:
            if not needed and not self._disk.exists(path):
                return None
            if (size := self._disk.file_size(path)) > MANIFEST_BYTES_MAX:
                raise MalformedManifest(f"it has {size} bytes, and {MANIFEST_BYTES_MAX} are allowed")
            manifest = decode_archive_manifest(self._disk.read_file(path))
        except DamagedManifest as error:
            self.trouble.append(f"{path}: {error}")
            return None
        except ValueError as error:
            raise DirectoryError(f"{path}: {error}. Nothing was changed; use the program that wrote it, or "
                                 "take the next archive to another place") from None
        except FileNotFoundError:
            return None  # listed, and removed since: a later one is there
        except OSError as error:
            raise ArchiveTargetError(f"{path} cannot be read: {error}", file=path) from error
        if name not in (manifest.name, manifest.slot_name):
            what = "another name" if name.startswith(GENERATIONS) else "the other slot"
            self.trouble.append(f"{path}: generation {manifest.generation} belongs into {what}")
            return None
        self.found.append(manifest)
        return manifest

    def generations(self) -> list[int]:
        """Those that have a file, the highest first. @raise ArchiveTargetError: they cannot be listed."""
        path = f"{self._directory}/{GENERATIONS}"
        try:
            names = self._disk.listdir(path) if self._disk.exists(path) else []
        except OSError as error:
            raise ArchiveTargetError(f"{path} cannot be read: {error}", file=path) from error
        return sorted((one for one in map(generation_of, names) if one >= 0), reverse=True)


def read_archive(disk: Disk, directory: str, *, reads_all: bool = False) -> ArchiveState:
    """
    The manifest of an archive. Nothing is changed.

    @param reads_all: read copies of what was read, too, so that each one that is damaged is reported.
    @raise DirectoryError: a manifest is whole, but of a later version, or says what cannot be.
    @raise ArchiveTargetError: one cannot be read.
    """
    look = _Look(disk, directory)
    # The slots first: what is written meanwhile has a higher generation than they show.
    for name in SLOT_NAMES:
        look.read(name, needed=False)
    slots = sorted(look.found, key=lambda one: one.generation)
    top = slots[-1].generation if slots else 0
    if len(slots) == 1 and not look.trouble and top > 1:
        look.trouble.append(f"{directory}/{SLOT_NAMES[(top + 1) % 2]} is missing")
    known = look.generations()
    for generation in known if reads_all or known[:1] > [top] else ():
        if look.read(generation_name(generation), needed=True) is not None and not reads_all:
            break
    for one in slots:
        # Once a later one is there, those before it may have been removed, perhaps just now.
        is_behind = known[:1] < [one.generation] or (reads_all and known[0] == top)
        if is_behind and one.generation not in known:
            look.trouble.append(f"{directory}/{one.name} is missing")
    newest = max(look.found, key=lambda one: one.generation, default=None)
    if newest is not None and not look.trouble and newest.generation > top + 1:
        look.trouble.append(
            f"{directory} has generation {newest.generation}, but its slots ({' and '.join(SLOT_NAMES)}) "
            f"have generation {top or 'none'} at most: they were lost, or older copies were put there"
        )
    return ArchiveState(
        manifest=newest, trouble=tuple(look.trouble), newest=max([top, *known[:1]]), slotted=top,
        others=tuple(one for one in look.found if newest is None or one.generation != newest.generation),
    )


def is_begun_manifest(data: bytes) -> bool:
    """Whether these bytes are the first ones of a manifest: what a write that was cut short may leave."""
    head = f'{{\n "format": "{_FORMAT}"'.encode()
    return data[: len(head)] == head[: len(data)]
