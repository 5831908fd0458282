# -*- test-case-name: tests.processes.test_ledgers -*-
"""The comparison of files notices every kind of difference."""

from __future__ import annotations

import tempfile
from pathlib import Path

from twisted.trial.unittest import SynchronousTestCase

from protocols.wire.ledger.entry import BLANK, BLANK_MAGIC, INDEX_UNIT, MAGIC, pack_record
from tests.processes.ledgers import LedgerFault, assert_identical, index_units, read_records

FILE_BYTES = 256
INDEX_BYTES = 32 * 3


def write_ledger(path: Path, bodies: list[bytes], *, first_index: int = 0) -> None:
    """Write a ledger as a member does, in tiny files."""
    (path / "data").mkdir(parents=True)
    (path / "index").mkdir()
    data, index, pos, chain = bytearray(), bytearray(32 * first_index), 0, 0
    for number, body in enumerate(bodies):
        left = FILE_BYTES - pos % FILE_BYTES
        if 48 + len(body) + 8 > left:
            data += BLANK.pack(BLANK_MAGIC, left) + bytes(left - BLANK.size)
            pos += left
        entry_index = first_index + number
        record, chain = pack_record(body, index=entry_index, term=1, pos=pos, previous_chain_crc=chain)
        data += record
        index += INDEX_UNIT.pack(MAGIC, pos, len(record), entry_index, 1)
        pos += len(record)
    for name, content, size in (("data", data, FILE_BYTES), ("index", index, INDEX_BYTES)):
        for offset in range(0, max(len(content), 1), size):
            piece = bytes(content[offset : offset + size])
            (path / name / f"{offset:020}").write_bytes(piece.ljust(size, b"\0"))


class LedgerTests(SynchronousTestCase):
    """Ledgers of three members."""

    def setUp(self) -> None:
        """Three directories."""
        held = tempfile.TemporaryDirectory()
        self.addCleanup(held.cleanup)
        self.paths = [Path(held.name) / name for name in ("n0", "n1", "n2")]
        self.bodies = [b"body %d" % number * number for number in range(12)]

    def write(self, *ledgers: list[bytes]) -> None:
        """One ledger per member."""
        for path, bodies in zip(self.paths, ledgers, strict=True):
            write_ledger(path, bodies)

    def test_read(self) -> None:
        """Every record over several files, without the blanks and the bytes after the end."""
        self.write(self.bodies, self.bodies, self.bodies)
        records = list(read_records(self.paths[0]))
        self.assertEqual([record.body for record in records], self.bodies)
        self.assertEqual([record.index for record in records], list(range(12)))
        self.assertGreater(len(list((self.paths[0] / "data").iterdir())), 2)

    def test_identical(self) -> None:
        """Equal ledgers are equal, even if one is longer than the end that was asked for."""
        self.write(self.bodies, self.bodies, [*self.bodies, b"more"])
        self.assertEqual(assert_identical(self.paths, 11), 12)

    def test_one_body_differs(self) -> None:
        """The error names the entry."""
        self.write(self.bodies, self.bodies, [*self.bodies[:7], b"x" * len(self.bodies[7]), *self.bodies[8:]])
        error = self.assertRaises(LedgerFault, assert_identical, self.paths, 11)
        self.assertIn("entry 7", str(error))

    def test_one_is_shorter(self) -> None:
        """A missing end is a difference."""
        self.write(self.bodies, self.bodies, self.bodies[:-1])
        self.assertRaises(LedgerFault, assert_identical, self.paths, 11)

    def test_all_are_shorter(self) -> None:
        """The ledgers must reach the expected end."""
        self.write(self.bodies, self.bodies, self.bodies)
        self.assertRaises(LedgerFault, assert_identical, self.paths, 12)

    def test_one_is_empty(self) -> None:
        """An empty ledger is a difference, too."""
        self.write(self.bodies, self.bodies, [])
        self.assertRaises(LedgerFault, assert_identical, self.paths, 11)

    def test_index_differs(self) -> None:
        """Index units are compared, too."""
        self.write(self.bodies, self.bodies, self.bodies)
        path = self.paths[1] / "index" / f"{INDEX_BYTES:020}"
        path.write_bytes(b"\x01" + path.read_bytes()[1:])
        error = self.assertRaises(LedgerFault, assert_identical, self.paths, 11)
        self.assertIn("index files", str(error))

    def test_wrong_position(self) -> None:
        """A record whose header has another position is a fault."""
        self.write(self.bodies, self.bodies, self.bodies)
        path = self.paths[0] / "data" / f"{FILE_BYTES:020}"
        content = bytearray(path.read_bytes())
        content[31] ^= 1
        path.write_bytes(bytes(content))
        self.assertRaises(LedgerFault, list, read_records(self.paths[0]))

    def test_index_units(self) -> None:
        """Units are found across files."""
        self.write(self.bodies, self.bodies, self.bodies)
        units = index_units(self.paths[0], 2, 5)
        self.assertEqual([unit[3] for unit in INDEX_UNIT.iter_unpack(units)], [2, 3, 4, 5, 6])
