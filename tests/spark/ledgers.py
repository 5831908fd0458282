# -*- test-case-name: tests.spark.test_scan -*-
"""
Ledgers for the tests, and what must be read from them: a plain reader that knows nothing of numpy.

The plain reader walks the data files record by record with C{struct}; it does not use the index, nor any
code of L{dledger.spark} or L{dledger.storage.files.reader}.
"""

from __future__ import annotations

import os
import random
import struct
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any
from zlib import crc32

import attrs

from dledger.base.disk.disk import OsDisk
from dledger.base.disk.two_slots import SLOT_SIZE
from dledger.spark.scans.scan import Scan
from dledger.spark.sink.markers import MarkerKind, SinkMarker, encode_marker
from dledger.storage.files.commit_mark import encode_mark, read_mark
from dledger.storage.start.identity import IDENTITY_NAME, Identity, IdentityFile, read_identity
from dledger.storage.store.file_store import FileStore
from dledger.values.ledger.config import DLedgerConfig
from dledger.values.ledger.membership import Membership
from protocols.wire.ledger.own.age_entries import encode_age_entry
from protocols.wire.ledger.own.machine_entries import encode_skip
from protocols.wire.ledger.own.own_entries import (
    AGE_CHANNEL,
    HIDDEN,
    MACHINE_CHANNEL,
    READER_CHANNEL,
    SESSION_CHANNEL,
    STATE_CHANNEL,
    TERM_START_CHANNEL,
    TIME_CHANNEL,
    slot_channels,
)
from protocols.wire.ledger.own.session_entries import Session, encode_session_entry
from protocols.wire.ledger.own.state_entries import StateEntry, StateWord, encode_state_entry
from protocols.wire.ledger.own.time_entries import encode_time_entry
from protocols.wire.ledger.readers import ReaderState, encode_reader_entry
from tests.storage.support import append_bare, config_of, flush

#: A row of C{format=dledger}, in the order of its columns.
Row = tuple[int, int, int, int, int, int, int, bytes]


def mixed_bodies(count: int, *, seed: int, longest: int = 200) -> list[bytes]:
    """Bodies of many sizes, empty ones among them."""
    chance = random.Random(seed)
    return [chance.randbytes(chance.choice((0, 1, 47, 48, 49, chance.randrange(longest + 1))))
            for _ in range(count)]


class Ledger:
    """
    A member's directory with a store that writes to it: small files, so that there are many.

    @ivar path: what a user of Spark names.
    """

    def __init__(self, base: str, **options: Any) -> None:
        self.config: DLedgerConfig = config_of(os.path.abspath(base), **options)
        self.path = self.config.self_path
        self.store = FileStore.open(self.config, OsDisk())

    def append(self, bodies: Iterable[bytes], *, term: int = 0, channels: Sequence[int] = ()) -> None:
        """Entries with checksums, of the term of the last one unless another is named."""
        self.store.append_bodies(tuple(bodies), term or max(self.store.ledger_end_term, 1), channels=channels)

    def append_once(
        self, producer: str, bodies: Sequence[bytes], *, hidden: Sequence[int] = (), term: int = 0
    ) -> None:
        """
        The next bodies of a producer, with a session entry in front if it is new.

        @param hidden: numbers of the bodies that readers leave out.
        """
        group = self.store.group
        assert group is not None
        if group.producer(producer) is None:
            session = Session(group.free_slots(1)[0], producer)
            self.append([encode_session_entry([session])], term=term, channels=[SESSION_CHANNEL])
        known = group.producer(producer)
        assert known is not None
        channels = slot_channels(known.slot, known.last + 1, len(bodies))
        for number in hidden:
            channels[number] |= HIDDEN
        self.append(bodies, term=term, channels=channels)

    def append_without_checksums(self, bodies: Iterable[bytes], *, term: int = 1) -> None:
        """Entries as Java writes them."""
        append_bare(self.store, bodies, term)

    def commit(self, index: int | None = None) -> None:
        """Flush, commit up to C{index} (None: all), and let readers know."""
        flush(self.store)
        self.store.record_commit(self.store.ledger_end_index if index is None else index)
        self.store.check_point()

    def fill(self, count: int, *, seed: int = 1, per_term: int = 25) -> None:
        """C{count} entries of mixed sizes, a new term every C{per_term}."""
        for number, body in enumerate(mixed_bodies(count, seed=seed), self.store.ledger_end_index + 1):
            self.append((body,), term=1 + number // per_term)

    def append_own(self) -> list[bytes]:
        """
        Entries of every kind, in five terms: those of programs, empty ones among them, of two producers, and
        the log's own between them.

        @return: the bodies of programs.
        """
        rows, last = list[bytes](), -1
        for term in range(1, 6):
            self.append([b""], term=term, channels=[TERM_START_CHANNEL])
            marker = encode_marker(SinkMarker(kind=MarkerKind.DONE, sink="s", batch=term, run="0" * 16))
            plain = [b"", b"row", marker, b"", b"x" * len(marker), encode_time_entry(0), b"SESS"]
            self.append(plain, term=term)
            first, second = [marker, b"once", b"", marker], [b"twice"]
            self.append_once("p" * 64, first, hidden=(0, 3), term=term)
            self.append_once(f"q{term}", second, term=term)
            for channel, body in (
                (READER_CHANNEL, encode_reader_entry(ReaderState("billing", last, term))),
                (MACHINE_CHANNEL, encode_skip(term)), (TIME_CHANNEL, encode_time_entry(1000 * term)),
                (AGE_CHANNEL, encode_age_entry(1000 * term, 10**9)),
                (STATE_CHANNEL, encode_state_entry(StateEntry(StateWord.TAKE_DIGEST))),
            ):
                self.append([body], term=term, channels=[channel])
                last = self.store.ledger_end_index if channel == READER_CHANNEL else last
            voters = {f"n{number}": f"h:{number}" for number in range(1, 1 + term)}
            self.store.append_configuration(Membership(voters=voters), term)
            long = [b"y" * 300, b"z" * 900]
            self.append(long, term=term)
            rows += [*plain, *first[1:3], *second, *long]
        self.append([b""], term=6, channels=[TERM_START_CHANNEL])
        return rows

    def expire(self, files: int) -> int:
        """
        Remove the oldest data files, as a live member does: recorded first.

        @return: the first index that is still there.
        """
        expire(self.path, files)
        return plain_rows(self.path)[0][0]

    def close(self) -> None:
        """Release the directory."""
        self.store.abandon()


def expire(path: str, files: int) -> None:
    """Remove the oldest data files of a member's directory, as a live member does."""
    names = sorted(os.listdir(f"{path}/data"))
    name = f"{path}/commitmark"
    found = read_mark(OsDisk(), name)
    assert found is not None
    generation, mark, _slot = found
    begin_crc = crc32(Path(f"{path}/data/{names[files]}").read_bytes()[:48])
    slot = encode_mark(
        attrs.evolve(mark, begin_position=int(names[files]), begin_crc=begin_crc), generation + 1
    )
    Path(name).write_bytes(2 * slot.ljust(SLOT_SIZE, b"\0"))
    for gone in names[:files]:
        os.unlink(f"{path}/data/{gone}")


def set_group(path: str, group_id: str) -> None:
    """Record the id of a group in a member's directory."""
    name = f"{path}/{IDENTITY_NAME}"
    found = read_identity(OsDisk(), name)
    before = found[1] if found is not None else Identity(group="default", member_id="n0", boot_id="")
    now = attrs.evolve(before, group_id=group_id, group_term=1, is_group_known=1)
    IdentityFile.create(OsDisk(), name, now).close()


def plain_rows(path: str, end: int | None = None) -> list[Row]:
    """
    Every row up to C{end} (exclusive), from the data files alone.

    @param path: a member's directory.
    """
    rows: list[Row] = []
    for file in sorted((Path(path) / "data").iterdir()):
        data, at = file.read_bytes(), 0
        while at + 8 <= len(data):
            magic, size = struct.unpack_from(">ii", data, at)
            if magic != 1:
                break  # the blank, or nothing yet
            _, _, index, term, pos, channel, chain, crc, length = struct.unpack_from(">iiqqqiiii", data, at)
            assert pos == int(file.name) + at and size == 48 + length
            rows.append((index, term, pos, size, channel, chain, crc, data[at + 48 : at + size]))
            at += size
    return rows if end is None else [row for row in rows if row[0] < end]


def scanned(
    given: Mapping[str, object], wanted: Sequence[tuple[str, str]] | None = None
) -> list[tuple[Any, ...]]:
    """What a scan gives, part by part, as rows."""
    scan = Scan.of({name: str(value) for name, value in given.items()}, wanted=wanted)
    begin, end = scan.bounds(scan.extent())
    rows: list[tuple[Any, ...]] = []
    following = begin
    for part in scan.parts(begin, end):
        assert part.begin == following < part.end
        following = part.end
        for batch in scan.batches(part):
            assert batch.schema == scan.schema
            batch.validate(full=True)
            rows += zip(*[column.to_pylist() for column in batch.columns], strict=True)
    assert following == end
    return rows
