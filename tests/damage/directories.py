# -*- test-case-name: tests.damage.test_slice -*-
"""
Sound directories of several shapes, and the places in them where damage may hit.

A place is a byte range of one file with a name of its class: a field of a certain record, of an index unit, a
part of the commit mark, and so on. L{places_of} lists every class of a shape.
"""

from __future__ import annotations

import os
import shutil
import struct
from collections.abc import Iterator
from pathlib import Path

import attrs

from dledger.base.disk.two_slots import SLOT_SIZE
from dledger.spark.sink.markers import MarkerKind, SinkMarker, encode_marker
from dledger.storage.files.commit_mark import decode_mark, encode_mark
from protocols.wire.ledger.own.age_entries import encode_age_entry
from protocols.wire.ledger.own.own_entries import (
    AGE_CHANNEL,
    READER_CHANNEL,
    TERM_START_CHANNEL,
    is_hidden,
)
from protocols.wire.ledger.readers import ReaderState, encode_reader_entry
from tests.processes.ledgers import read_records
from tests.spark.ledgers import Ledger, Row, expire, plain_rows, set_group

GROUP_ID = "0123456789abcdef" * 2
DATA_BYTES, INDEX_BYTES, UNIT_BYTES = 1024, 320, 32
COMMITTED, ENTRIES = 50, 60
#: Field, its first byte, and its bytes.
HEADER_FIELDS = (("magic", 0, 4), ("size", 4, 4), ("index", 8, 8), ("term", 16, 8), ("pos", 24, 8),
                 ("channel", 32, 4), ("chain_crc", 36, 4), ("body_crc", 40, 4), ("body_length", 44, 4))
STATE_FIELDS = (("magic", 0, 4), ("version", 4, 4), ("head_crc", 8, 4), ("generation", 12, 8),
                ("index", 20, 8), ("term", 28, 8), ("position", 36, 8), ("chain_crc", 44, 4),
                ("length", 48, 8), ("crc", 56, 4))
UNIT_FIELDS = (("magic", 0, 4), ("pos", 4, 8), ("size", 12, 4), ("index", 16, 8), ("term", 24, 8))


@attrs.frozen(kw_only=True)
class Area:
    """
    A class of byte positions.

    @ivar role: of the file: C{data}, C{index}, or its name.
    @ivar entry: the entry that it belongs to; -1 for none.
    """

    role: str
    name: str
    file: str
    at: int
    size: int
    entry: int = -1


@attrs.frozen(kw_only=True)
class Shape:
    """
    A sound directory.

    @ivar files: relative path to content.
    @ivar rows: those that must be read.
    @ivar is_java: no checksums, no marks of ours.
    @ivar records: those of all entries, of deleted ones and of those that are not committed, too.
    @ivar count: entries that are still there.
    """

    name: str
    files: dict[str, bytes]
    rows: list[Row]
    is_java: bool
    areas: list[Area]
    records: list[bytes]
    count: int

    @property
    def first(self) -> int:
        """Index of the first entry that is still there."""
        return len(self.records) - self.count

    @property
    def has_producers(self) -> bool:
        """Whether it has entries of producers, and the state of a group."""
        return self.name.startswith("numbered")

    def write(self, path: str) -> None:
        """Make the directory."""
        for name, content in self.files.items():
            target = Path(path) / name
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(content)


def shapes(base: str) -> list[Shape]:
    """Every shape. @param base: directory for the ledgers, which are removed again."""
    found = []
    for name in ("live", "mark-ahead", "checkpoint-ahead", "closed", "expired", "java", "java-expired",
                 "numbered", "numbered-expired"):
        path, records = _make(f"{base}/{name}", name)
        files = {
            str(file.relative_to(path)): file.read_bytes()
            for file in sorted(Path(path).rglob("*")) if file.is_file()
        }
        count = len(plain_rows(path))
        rows = [row for row in plain_rows(path, COMMITTED) if not is_hidden(row[4], row[5])]
        is_java = name.startswith("java")
        areas = [area for area in places_of(plain_rows(path), files) if area.file in files]
        found.append(Shape(
            name=name, files=files, rows=rows, is_java=is_java, areas=areas, records=records,
            count=count,
        ))
        shutil.rmtree(f"{base}/{name}")
    return found


def _numbered(ledger: Ledger) -> None:
    """Entries of programs and producers, one of which is forgotten; the state is saved twice."""
    reader, turn = -1, 0
    while ledger.store.ledger_end_index < ENTRIES - 1:
        left, term = ENTRIES - 1 - ledger.store.ledger_end_index, 1 + turn // 3
        body = bytes([turn]) * (turn * 7 % 90)
        if turn % 3 == 0:
            ledger.append([b""], term=term, channels=[TERM_START_CHANNEL])
        elif turn == 1:
            ledger.append_once("old", [body] * 3, term=term)
        elif turn in (4, 8):
            ledger.append([encode_age_entry(turn * 10**6, 10**6)], term=term, channels=[AGE_CHANNEL])
        elif turn % 5 == 0:
            billing = ReaderState("billing", reader, turn)
            ledger.append([encode_reader_entry(billing)], term=term, channels=[READER_CHANNEL])
            reader = ledger.store.ledger_end_index
        else:
            marker = encode_marker(SinkMarker(kind=MarkerKind.DONE, sink="s", batch=turn, run="0" * 16))
            ledger.append_once(f"p{turn % 2}", [body, body, marker][:left], hidden=[2][: left - 2], term=term)
            ledger.append([body][: left - 3] or [body], term=term)
        if turn in (9, 12):
            ledger.commit(min(ledger.store.ledger_end_index, COMMITTED - 1))
            ledger.store.parts.state.save()
        turn += 1


def _make(base: str, name: str) -> tuple[str, list[bytes]]:
    """A directory, and the records of its entries."""
    ledger = Ledger(base)
    if name.startswith("numbered"):
        _numbered(ledger)
    elif name.startswith("java"):
        for number in range(ENTRIES):
            body = bytes([number]) * (number * 7 % 120)
            ledger.append_without_checksums([body], term=1 + number // 13)
    else:
        ledger.fill(ENTRIES, per_term=13)
    ledger.commit(COMMITTED - 1)
    records = [record.raw for record in read_records(Path(ledger.path))]
    set_group(ledger.path, GROUP_ID)
    Path(f"{ledger.path}/currterm").write_text("voteLeader=n0\ncurrTerm=5\n")
    if name == "closed":
        ledger.store.clean_close()
    else:
        ledger.close()
    if name.endswith("expired"):
        expire(ledger.path, 2)
        first = plain_rows(ledger.path)[0][0]
        for file in sorted(os.listdir(f"{ledger.path}/index")):
            if int(file) + INDEX_BYTES <= first * UNIT_BYTES:
                os.unlink(f"{ledger.path}/index/{file}")
    if name == "mark-ahead":
        Path(f"{ledger.path}/checkpoint").write_text(f"committedIndex={COMMITTED - 20}\nendIndex=45\n")
    if name == "checkpoint-ahead":
        _lower_mark(ledger.path, COMMITTED - 20)
    if name.startswith("java"):
        for file in os.listdir(ledger.path):
            if file not in ("checkpoint", "currterm", "data", "index"):
                os.unlink(f"{ledger.path}/{file}")
    return ledger.path, records


def _lower_mark(path: str, committed_index: int) -> None:
    """The commit mark as it was when less was committed; one slot is older still."""
    content = Path(f"{path}/commitmark").read_bytes()
    decoded = max(filter(None, (decode_mark(content[:SLOT_SIZE]), decode_mark(content[SLOT_SIZE:]))),
                  key=lambda found: found[0])
    mark = attrs.evolve(decoded[1], committed_index=committed_index)
    older = attrs.evolve(decoded[1], committed_index=committed_index - 10)
    slots = (encode_mark(mark, decoded[0]), encode_mark(older, decoded[0] - 1))
    Path(f"{path}/commitmark").write_bytes(b"".join(slot.ljust(SLOT_SIZE, b"\0") for slot in slots))


def places_of(rows: list[Row], files: dict[str, bytes]) -> Iterator[Area]:
    """Every class of a directory. @param rows: all, committed or not."""
    first, last_committed = rows[0][0], COMMITTED - 1
    ends = [row[0] for row, after in zip(rows, rows[1:], strict=False)
            if row[2] // DATA_BYTES != after[2] // DATA_BYTES]
    terms = [row[0] for row, after in zip(rows, rows[1:], strict=False) if row[1] != after[1]]
    chosen = {
        "first": first, "second": first + 1, "file-end": ends[1], "file-begin": ends[1] + 1, "middle": 33,
        "term-end": terms[0], "term-begin": terms[0] + 1, "unit-file-end": 39, "unit-file-begin": 40,
        "last-but-one": last_committed - 1, "last": last_committed, "behind": COMMITTED, "tail": ENTRIES - 1,
    }
    by_index = {row[0]: row for row in rows}
    for which, index in chosen.items():
        if index in by_index:
            yield from _of_entry(which, by_index[index])
    for which, index in (("first-file", ends[0]), ("later-file", ends[2]), ("last-file", ends[-1])):
        yield from _of_blank(which, by_index[index])
    for role in ("data", "index"):
        names = [name for name in files if name.startswith(f"{role}/")]
        for which, name in (("first", names[0]), ("middle", names[len(names) // 2]), ("last", names[-1])):
            yield Area(role=role, name=f"{which}-file", file=name, at=0, size=len(files[name]))
    tail = rows[-1][2] + rows[-1][3]
    if tail % DATA_BYTES:
        yield Area(role="data", name="zeros", file=f"data/{tail // DATA_BYTES * DATA_BYTES:020d}",
                   at=tail % DATA_BYTES, size=DATA_BYTES - tail % DATA_BYTES)
    for name in ("checkpoint", "commitmark", "currterm", "identity"):
        for part in range(8):
            content = files.get(name, b"")
            size = -(-len(content) // 8)
            yield Area(role=name, name=f"part-{part}", file=name, at=part * size,
                       size=max(min(size, len(content) - part * size), 0))
    yield Area(role="checkpoint", name="digits", file="checkpoint", at=len("committedIndex="), size=2)
    if "groupstate" in files:
        yield from _of_state(files["groupstate"])
    for slot in (0, 1):
        # The fields and their checksum; after them is padding.
        yield Area(role="commitmark", name=f"slot-{slot}", file="commitmark", at=slot * SLOT_SIZE, size=116)


def _of_state(content: bytes) -> Iterator[Area]:
    """The fields of both slots, and some parts of the state in each."""
    half = len(content) // 2
    for slot, begin in enumerate((0, half)):
        head, length = 60, int.from_bytes(content[begin + 48 : begin + 56])
        parts = [(f"part-{part}", head + part * length // 8, length // 8) for part in range(8)]
        padding = ("padding", head + length, half - head - length)
        for name, at, size in (*STATE_FIELDS, *parts, padding):
            yield Area(role="groupstate", name=f"slot-{slot}.{name}", file="groupstate", at=begin + at,
                       size=size)


def _of_entry(which: str, row: Row) -> Iterator[Area]:
    index, position = row[0], row[2]
    file, at = f"data/{position // DATA_BYTES * DATA_BYTES:020d}", position % DATA_BYTES
    for name, offset, size in HEADER_FIELDS:
        yield Area(role="data", name=f"{which}.{name}", file=file, at=at + offset, size=size, entry=index)
    if row[7]:
        for name, offset in (("body-begin", 0), ("body-end", len(row[7]) - 1)):
            yield Area(role="data", name=f"{which}.{name}", file=file, at=at + 48 + offset, size=1,
                       entry=index)
    file = f"index/{index * UNIT_BYTES // INDEX_BYTES * INDEX_BYTES:020d}"
    for name, offset, size in UNIT_FIELDS:
        yield Area(role="index", name=f"{which}.{name}", file=file,
                   at=index * UNIT_BYTES % INDEX_BYTES + offset, size=size, entry=index)


def _of_blank(which: str, row: Row) -> Iterator[Area]:
    end = row[2] + row[3]
    file, at = f"data/{end // DATA_BYTES * DATA_BYTES:020d}", end % DATA_BYTES
    for name, offset, size in (("magic", 0, 4), ("size", 4, 4), ("padding", 8, DATA_BYTES - at - 8)):
        if size > 0:
            yield Area(role="data", name=f"blank-of-{which}.{name}", file=file, at=at + offset, size=size)


assert struct.calcsize(">iiqqqiiii") == 48
