# -*- test-case-name: tests.damage.test_slice -*-
"""
Cases: a shape, a class of byte positions, a kind of damage, a way to read. The rows must be equal, or an
error must name a file.

The exceptions are the table L{UNPROVABLE}, each with its reason: a file without a checksum cannot prove that
a number in it is the one that was written.
"""

from __future__ import annotations

import contextlib
import os
import random
import tempfile
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import attrs

import dledger.spark.ledger.ends
from dledger.spark.export.files import ExportError
from dledger.spark.formats.log import ReadError
from dledger.values.errors import StoreError
from protocols.wire.fastjson import JsonObject
from tests.damage.directories import Area, Shape, shapes
from tests.damage.readers import READINGS, Interrupted, StateUnknown, start, stream
from tests.spark.ledgers import Row

#: In place of a reading: a member starts, see L{tests.damage.readers.start}.
START = "start"
#: Changes the bytes of an area.
Change = Callable[[bytes, random.Random], bytes]


def _flip(data: bytes, chance: random.Random) -> bytes:
    at = chance.randrange(len(data))
    return data[:at] + bytes([data[at] ^ (1 << chance.randrange(8))]) + data[at + 1 :]


def _byte(data: bytes, chance: random.Random) -> bytes:
    at = chance.randrange(len(data))
    return data[:at] + bytes([chance.choice((0, 0xFF, chance.randrange(256)))]) + data[at + 1 :]


#: Kinds of damage within an area.
CHANGES: dict[str, Change] = {
    "bit": _flip,
    "byte": _byte,
    "zeros": lambda data, chance: bytes(len(data)),
    "ones": lambda data, chance: b"\xff" * len(data),
    "random": lambda data, chance: chance.randbytes(len(data)),
    "digits": lambda data, chance: bytes(chance.choice(b"0123456789") for _ in data),
}
#: Kinds of damage to a whole file; None: it is gone.
FILE_CHANGES: dict[str, Callable[[bytes, random.Random], bytes | None]] = {
    "gone": lambda data, chance: None,
    "empty": lambda data, chance: b"",
    "cut": lambda data, chance: data[: chance.randrange(len(data))],
    "longer": lambda data, chance: data + bytes(chance.randrange(1, 2000)),
    "sector": lambda data, chance: data[: len(data) // 2] + bytes(len(data) - len(data) // 2),
}


@attrs.frozen(kw_only=True)
class Case:
    """
    One case.

    @ivar reading: name in L{READINGS}, or L{START}.
    @ivar change: name in L{CHANGES}, or in L{FILE_CHANGES} if C{is_whole}.
    @ivar start: whether a stream continues from an offset, or begins.
    """

    shape: Shape
    area: Area
    change: str
    is_whole: bool
    reading: str
    start: bool
    seed: int

    def __str__(self) -> str:
        """As a failure names it."""
        kind = f"{self.change} file" if self.is_whole else self.change
        return (f"{self.shape.name} {self.area.role} {self.area.name} ({self.area.file} at {self.area.at}, "
                f"{self.area.size}) {kind} {self.reading} start={self.start} seed={self.seed}")


def all_cases(found: Sequence[Shape], count: int, seed: int) -> Iterator[Case]:
    """C{count} cases, spread evenly over the product of everything: a seeded shuffle, again and again."""
    chance = random.Random(seed)
    kinds: list[tuple[Shape, Area, str, bool, str]] = []
    for shape in found:
        files: set[str] = set()
        for area in shape.areas:
            changes = [(name, False) for name in CHANGES] if area.size else []
            if area.file not in files:
                changes += [(name, True) for name in FILE_CHANGES]
                files.add(area.file)
            readings = [*READINGS, START] if shape.has_producers else READINGS
            kinds += [(shape, area, change, is_whole, reading)
                      for change, is_whole in changes for reading in readings]
    made = 0
    while made < count:
        chance.shuffle(kinds)
        for shape, area, change, is_whole, reading in kinds[: count - made]:
            yield Case(shape=shape, area=area, change=change, is_whole=is_whole, reading=reading,
                       start=chance.random() < 0.5, seed=chance.randrange(2**32))
        made += len(kinds[: count - made])


class Bench:
    """
    Runs cases in a directory for each shape.

    @ivar seen: how often each outcome was.
    """

    def __init__(self, base: str) -> None:
        self._base = base
        self.shapes = shapes(f"{base}/make")
        self._starts: dict[str, JsonObject] = {}
        self.seen: Counter[str] = Counter()
        for shape in self.shapes:
            path = self._path(shape)
            shape.write(path)
            for name, reading in READINGS.items():
                rows = reading(path, f"{base}/out", {})
                expected = _expected(name, shape.rows)
                assert rows == expected, (shape.name, name, len(rows), len(expected))
            self._starts[shape.name] = _offset_of(path, shape.rows[8][0])
            if shape.has_producers:
                assert start(path, f"{base}/out", shape.records) == shape.records[shape.first :]

    def _path(self, shape: Shape) -> str:
        return f"{self._base}/{shape.name}/dledger-n0"

    def run(self, case: Case) -> str:
        """@return: the problem; empty if there is none."""
        path = self._path(case.shape)
        name = f"{path}/{case.area.file}"
        content = case.shape.files[case.area.file]
        chance = random.Random(case.seed)
        changed: bytes | None
        if case.is_whole:
            changed = FILE_CHANGES[case.change](content, chance)
        else:
            first, last = case.area.at, case.area.at + case.area.size
            changed = content[:first] + CHANGES[case.change](content[first:last], chance) + content[last:]
        if changed is None:
            os.unlink(name)
        else:
            _write(name, changed)
        try:
            return self._judge(case, path, changed)
        finally:
            _write(name, content)

    def _judge(self, case: Case, path: str, changed: bytes | None) -> str:
        if case.reading == START:
            return self._judge_start(case, path)
        start = self._starts[case.shape.name] if case.start and case.reading == "stream" else {}
        expected = _expected(case.reading, case.shape.rows)
        if start:
            expected = [row for row in expected if row[0] >= case.shape.rows[8][0]]
        try:
            rows = READINGS[case.reading](path, f"{self._base}/out", start)
        except Interrupted as interrupted:
            if interrupted.rows != expected[: len(interrupted.rows)]:
                return f"{len(interrupted.rows)} rows are visible that are not the first ones"
            return self._judge_error(interrupted.error, path)
        except Exception as error:
            return self._judge_error(error, path)
        if rows == expected:
            self.seen["equal"] += 1
            return ""
        for reason, is_so in UNPROVABLE.items():
            if is_so(case, rows, expected):
                self.seen[reason] += 1
                return ""
        return f"{len(rows)} rows without an error, expected {len(expected)}"

    def _judge_start(self, case: Case, path: str) -> str:
        is_of_state = case.area.role == "groupstate"
        try:
            records = start(path, f"{self._base}/out", case.shape.records)
        except StateUnknown as unknown:
            # It is needed only where the log does not have its first entries, and each slot is enough.
            if is_of_state and not (case.is_whole and case.shape.first):
                return str(unknown)
            return self._judge_error(unknown, path)
        except Exception as error:
            return f"no start: {error}" if is_of_state else self._judge_error(error, path)
        wanted = case.shape.records[case.shape.first :]
        if not is_of_state:
            wanted = [found and record for found, record in zip(records, wanted, strict=False)]
        if records == wanted:
            self.seen["equal"] += 1
            return ""
        return f"the member has {len(records)} entries, of which some are others"

    def _judge_error(self, error: Exception, path: str) -> str:
        if not isinstance(error, ReadError | ExportError | StoreError | StateUnknown):
            return f"{type(error).__name__}: {error}"
        if path not in str(error):
            return f"the error names no file: {error}"
        self.seen["error"] += 1
        return ""


def _write(name: str, content: bytes) -> None:
    with open(name, "wb") as file:
        file.write(content)


def _expected(reading: str, rows: list[Row]) -> list[Any]:
    return [row[:4] for row in rows] if reading == "batch-index" else list(rows)


def _offset_of(path: str, index: int) -> JsonObject:
    """The offset of an entry, with its proof."""
    from dledger.spark.scans.scan import Scan
    from dledger.spark.source import LogStreamReader

    reader = LogStreamReader(Scan.of({"path": path, "startingOffsets": str(index)}, is_stream=True))
    try:
        return reader.initialOffset()
    finally:
        reader.stop()


def _in_fields(case: Case, *fields: str) -> bool:
    name = case.area.name
    is_field = any(name.endswith(f".{field}") for field in fields)
    return case.area.role == "data" and (is_field or name.endswith("-file"))


def _differ_in(rows: Sequence[Row], expected: Sequence[Row], columns: Sequence[int]) -> bool:
    """Whether the rows are equal except in these columns."""
    def rest(row: Row) -> list[object]:
        return [value for column, value in enumerate(row) if column not in columns]

    return list(map(rest, rows)) == list(map(rest, expected))


def _is_unverified(case: Case, rows: list[Row], expected: list[Row]) -> bool:
    fields = ("channel", "chain_crc", "body_crc", "body-begin", "body-end")
    return (case.reading == "batch-default" and _in_fields(case, *fields)
            and _differ_in(rows, expected, (4, 5, 6, 7)))


def _is_shown(case: Case, rows: list[Row], expected: list[Row]) -> bool:
    entry = case.area.entry
    return (case.reading in ("batch-default", "batch-index") and _in_fields(case, "channel", "chain_crc")
            and entry in [row[0] for row in rows] and [row for row in rows if row[0] != entry] == expected)


def _is_bare(case: Case, rows: list[Row], expected: list[Row]) -> bool:
    return (case.shape.is_java and _in_fields(case, "channel", "body-begin", "body-end")
            and _differ_in(rows, expected, (4, 7)))


def _is_other_checkpoint(case: Case, rows: list[Row], expected: list[Row]) -> bool:
    is_alone = case.shape.is_java or case.shape.name == "checkpoint-ahead"
    is_lower, is_higher = rows == expected[: len(rows)], expected == rows[: len(expected)]
    # Java may have used the directory since our mark was written, so a higher number counts everywhere.
    return case.area.role == "checkpoint" and (is_higher or (is_alone and is_lower))


def _is_expiry(case: Case, rows: list[Row], expected: list[Row]) -> bool:
    first = min(name for name in case.shape.files if name.startswith("data/"))
    return (case.shape.is_java and case.area.file == first and case.change == "gone"
            and rows == expected[len(expected) - len(rows) :])


#: Reason to accept other rows: a condition of the case, the rows, and the sound rows.
UNPROVABLE: dict[str, Callable[[Case, list[Row], list[Row]], bool]] = {
    "without verifyCrc no checksum is compared": _is_unverified,
    "without verifyCrc a hidden entry may be shown": _is_shown,
    "Java's records have no checksums": _is_bare,
    "a checkpoint has no checksum, and no newer mark is there": _is_other_checkpoint,
    "Java's first file may have expired": _is_expiry,
}


@contextlib.contextmanager
def bench() -> Iterator[Bench]:
    """A bench on the fastest file system there is, without pauses before second looks."""
    base = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    before = dledger.spark.ledger.ends.LOOK_AGAIN_S, dledger.spark.ledger.ends.PASSING_S
    dledger.spark.ledger.ends.LOOK_AGAIN_S, dledger.spark.ledger.ends.PASSING_S = 0.0, 0.005
    with tempfile.TemporaryDirectory(dir=base, prefix="dledger-damage-") as held, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            yield Bench(held)
        finally:
            dledger.spark.ledger.ends.LOOK_AGAIN_S, dledger.spark.ledger.ends.PASSING_S = before


assert stream is READINGS["stream"]
