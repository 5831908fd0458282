# -*- test-case-name: tests.processes.test_ledgers -*-
"""
Reads data directories with little code, independent of the store that it checks.

Works on our directories and on Java's. The members must have stopped, or the entries asked for must be
committed.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from itertools import islice, zip_longest
from pathlib import Path

import attrs

from protocols.wire.ledger.entry import BLANK_MAGIC, ENTRY_HEADER, ENTRY_HEADER_SIZE, INDEX_UNIT_SIZE


@attrs.frozen(kw_only=True)
class Record:
    """One record as on disk; C{raw} is the header and the body."""

    index: int
    term: int
    pos: int
    channel: int
    chain_crc: int
    raw: bytes

    @property
    def body(self) -> bytes:
        """The bytes that a client sent."""
        return self.raw[ENTRY_HEADER_SIZE:]


class LedgerFault(Exception):
    """Files are not a ledger, or ledgers differ; the message says where."""


def _files(directory: Path) -> list[tuple[int, Path]]:
    return sorted((int(path.name), path) for path in directory.iterdir() if path.name.isdecimal())


def _mapped(path: Path) -> mmap.mmap | bytes:
    """The bytes of a file, mapped: segments have their full length from the start."""
    with open(path, "rb") as file:
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) if path.stat().st_size else b""


def read_records(ledger_path: Path) -> Iterator[Record]:
    """
    Every record from the first file up to the first place without one.

    @param ledger_path: holds C{data} and C{index}.
    @raise LedgerFault: a record has another position than its header says, or an index is missing.
    """
    expected = -1
    for offset, path in _files(ledger_path / "data"):
        data = _mapped(path)
        at = 0
        while len(data) - at >= ENTRY_HEADER_SIZE:
            (magic, size, index, term, pos, channel, chain_crc, _crc, length,
             ) = ENTRY_HEADER.unpack_from(data, at)
            if magic == BLANK_MAGIC:
                break
            if size == 0:
                return
            if pos != offset + at or size != ENTRY_HEADER_SIZE + length:
                raise LedgerFault(f"{path} at {at}: pos={pos}, size={size}, body_length={length}")
            if expected not in (-1, index):
                raise LedgerFault(f"{path} at {at}: index {index} follows {expected - 1}")
            expected = index + 1
            yield Record(index=index, term=term, pos=pos, channel=channel, chain_crc=chain_crc,
                         raw=data[at : at + size])
            at += size


def index_units(ledger_path: Path, first_index: int, count: int) -> bytes:
    """The index units of C{count} entries, as on disk."""
    wanted_from, wanted_to = first_index * INDEX_UNIT_SIZE, (first_index + count) * INDEX_UNIT_SIZE
    parts = []
    for offset, path in _files(ledger_path / "index"):
        parts.append(_mapped(path)[max(wanted_from - offset, 0) : max(wanted_to - offset, 0)])
    return b"".join(parts)


def assert_identical(ledger_paths: list[Path], end_index: int) -> int:
    """
    Check that the ledgers hold the same bytes, in data and in index, from the highest first index to
    C{end_index}.

    @return: number of entries compared.
    @raise LedgerFault: they differ.
    """
    firsts = [next(read_records(path), None) for path in ledger_paths]
    if end_index < 0:
        return 0
    if any(first is None for first in firsts):
        raise LedgerFault(f"an empty ledger among {[str(path) for path in ledger_paths]}")
    begin = max(first.index for first in firsts if first is not None)
    runs = [
        islice((record for record in read_records(path) if record.index >= begin), end_index - begin + 1)
        for path in ledger_paths
    ]
    count = 0
    for column in zip_longest(*runs):
        if any(record is None or record.raw != column[0].raw for record in column):
            raise LedgerFault(f"entry {begin + count} differs: {[str(record)[:160] for record in column]}")
        count += 1
    if count != end_index - begin + 1:
        raise LedgerFault(f"the ledgers end at {begin + count - 1}, not at {end_index}")
    units = {index_units(path, begin, count) for path in ledger_paths}
    if len(units) != 1 or len(units.pop()) != count * INDEX_UNIT_SIZE:
        raise LedgerFault(f"the index files differ between {begin} and {end_index}")
    return count
