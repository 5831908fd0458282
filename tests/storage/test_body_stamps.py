# -*- test-case-name: tests.storage.test_body_stamps -*-
"""Bodies are stamped with the place of their record, before checksums, once for each write that happens."""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from dledger.storage.files.records import BodyStamps, Stamp, pack_bodies
from dledger.storage.store.file_store import FileStore
from dledger.testing.world.memory_disk import MemoryDisk
from dledger.values.errors import DLedgerError
from dledger.values.ledger.config import DLedgerConfig


class Numbering(BodyStamps):
    """Writes the position into the first eight bytes; counts."""

    term_start_body = b"term"

    def __init__(self) -> None:
        self.begun = self.done = 0

    def begin(self) -> Stamp:
        self.begun += 1
        return lambda body, position: position.to_bytes(8, "big") + body[8:]

    def written(self) -> None:
        self.done += 1


class PackTests(SynchronousTestCase):
    """The hot loop."""

    def test_each_body_gets_its_position(self) -> None:
        """Every body gets its own position, over the end of a file too; checksums are of the stamped body."""
        bodies = [bytes(900 + number) for number in range(5)]
        seen: list[int] = []

        def stamp(body: bytes, position: int) -> bytes:
            seen.append(position)
            return position.to_bytes(8, "big") + body[8:]

        common = {"first_index": 0, "term": 1, "end_position": 0, "previous_chain_crc": 0, "file_size": 2048}
        layout = pack_bodies(bodies, **common, stamp=stamp)
        self.assertEqual(seen, layout.positions)
        self.assertIn(2048, seen)
        stamped = [place.to_bytes(8, "big") + body[8:] for place, body in zip(seen, bodies, strict=True)]
        self.assertEqual(layout, pack_bodies(stamped, **common))


class StoreTests(SynchronousTestCase):
    """A store that stamps."""

    def setUp(self) -> None:
        self.config = DLedgerConfig(
            store_base_dir="base", mapped_file_size_for_entry_data=2048, mapped_file_size_for_entry_index=320,
        )
        self.disk = MemoryDisk()
        self.store = FileStore.open(self.config, self.disk)
        self.addCleanup(self.store.abandon)
        self.stamps = Numbering()
        self.store.use(self.stamps)

    def test_written_bodies_are_reported_once(self) -> None:
        """What is read is stamped; the write is reported once."""
        positions = self.store.append_bodies((bytes(20), bytes(30)), 1)
        records = self.store.read_range(0, end_index=1, max_bytes=10_000).records
        self.assertEqual(records[48:56], positions[0].to_bytes(8, "big"))
        self.assertEqual(records[116:124], positions[1].to_bytes(8, "big"))
        self.assertEqual((self.stamps.begun, self.stamps.done), (1, 1))

    def test_a_refused_write_is_not_reported(self) -> None:
        """A write that did not happen is not reported."""
        self.assertRaises(DLedgerError, self.store.append_bodies, (bytes(3000),), 1)
        self.assertEqual((self.stamps.begun, self.stamps.done), (1, 0))

    def test_foreign_bodies_stay_unchanged(self) -> None:
        """The bodies of a leader's entries come as they are."""
        other = FileStore.open(self.config, MemoryDisk())
        self.addCleanup(other.abandon)
        other.append_bodies((b"x" * 20,), 1)
        self.store.append_entries(other.read_range(0, end_index=0, max_bytes=1000))
        self.assertEqual(self.stamps.begun, 0)

    def test_a_full_disk_takes_the_term_start(self) -> None:
        """The entry at the beginning of a term is taken though the disk is full; no other one is."""
        room = self.store.parts.room
        self.patch(room.expiry, "why_full", "full")
        self.assertRaises(DLedgerError, self.store.append_bodies, (b"other body",), 1)
        self.store.append_bodies((b"term",), 1)
        self.assertRaises(DLedgerError, self.store.append_bodies, (b"term",), 1)
        self.assertRaises(DLedgerError, self.store.append_bodies, (b"",), 2)
