# -*- test-case-name: tests.storage.test_chunk_sums -*-
"""Chunks: their checksums are made while entries are written, reported while they are true, and checked."""

from __future__ import annotations

import errno
from unittest import mock
from zlib import crc32

import attrs
from twisted.trial.unittest import SynchronousTestCase

from dledger.storage.files.chunk_rows import NO_ROW, pack_row, unpack_rows
from dledger.storage.start.verify import verify_directory
from dledger.storage.store.file_store import FileStore
from dledger.testing.world.memory_disk import MemoryDisk
from dledger.values.errors import DLedgerError
from dledger.values.ledger.chunks import ChunkSum
from dledger.values.ledger.membership import Membership
from protocols.wire.ledger.batches import EntryBatch, EntryChunk
from protocols.wire.ledger.entry import ENTRY_HEADER, ENTRY_HEADER_SIZE, INDEX_UNIT, INDEX_UNIT_SIZE
from protocols.wire.ledger.own.own_entries import CONFIGURATION_CHANNEL
from tests.storage.support import DATA_SIZE, append_bare, bodies_in, config_of, entry_at, our_record

#: Bytes of records and index units: three records of 50 bytes, with their bodies.
CHUNK = 400


def opened(disk: MemoryDisk | None = None, **options: object) -> FileStore:
    """A store with small chunks."""
    return FileStore.open(config_of(**{"push_chunk_bytes": CHUNK, **options}), disk or MemoryDisk())


def filled(*sizes: int, disk: MemoryDisk | None = None, term: int = 1) -> FileStore:
    """A store with one entry for each size."""
    store = opened(disk)
    for number, size in enumerate(sizes):
        store.append_bodies((b"%d" % (number % 10) * size,), term)
    return store


def chunks_of(store: FileStore) -> list[ChunkSum]:
    """All chunks that it shows."""
    found: list[ChunkSum] = []
    index = max(store.ledger_begin_index, 0)
    while index <= store.ledger_end_index:
        chunk = store.chunk_from(index)
        if chunk is not None and chunk not in found:
            found.append(chunk)
        index = index + 1 if chunk is None else chunk.last_index + 1
    return found


def entries_of(store: FileStore, number: int = 0) -> EntryChunk:
    """The entries of one of them."""
    entries = store.read_chunk(chunks_of(store)[number])
    assert entries is not None
    return entries


def raised(error: OSError) -> bytes:
    """Raise it."""
    raise error


def follower_of(leader: FileStore, upto: int) -> FileStore:
    """Another store with the entries before this index."""
    follower = opened()
    for index in range(leader.ledger_begin_index, upto):
        follower.append_entries(entry_at(leader, index))
    return follower


class MakingTests(SynchronousTestCase):
    """Which chunks there are."""

    def check(self, store: FileStore) -> list[ChunkSum]:
        """@return: the chunks, whose sums are those of their bytes, and whose entries follow each other."""
        chunks = chunks_of(store)
        for chunk in chunks:
            batch = store.read_range(chunk.first_index, end_index=chunk.last_index, max_bytes=1 << 20)
            entries = store.read_chunk(chunk)
            assert entries is not None
            self.assertEqual((entries.first_index, entries.count, entries.term, entries.records),
                             (batch.first_index, batch.count, batch.term, batch.records))
            self.assertEqual(chunk.records_crc, crc32(batch.records))
            self.assertEqual(chunk.units_crc, crc32(entries.units))
            self.assertEqual([unit[3] for unit in INDEX_UNIT.iter_unpack(entries.units)],
                             list(range(chunk.first_index, chunk.last_index + 1)))
        return chunks

    def test_one_by_one(self) -> None:
        """Chunks have about the wanted size, however the entries come; the last one still grows."""
        chunks = self.check(filled(*[50] * 20))
        spans = [(chunk.first_index, chunk.last_index) for chunk in chunks]
        self.assertEqual(spans[:3], [(0, 2), (3, 5), (6, 8)])
        self.assertTrue(all(chunk.size <= CHUNK for chunk in chunks))
        self.assertLess(chunks[-1].last_index, 19)

    def test_one_large_batch(self) -> None:
        """A batch is cut into chunks at the same places as single entries, and where a data file ends."""
        store = opened()
        store.append_bodies(tuple(b"%d" % (number % 10) * 50 for number in range(60)), 1)
        chunks = self.check(store)
        self.assertGreater(len(store.parts.data.offsets), 4)
        for chunk in chunks:
            self.assertEqual(chunk.position // DATA_SIZE, (chunk.end_position - 1) // DATA_SIZE)
        self.assertEqual(chunks, chunks_of(filled(*[50] * 60)))

    def test_a_long_record_is_one_chunk(self) -> None:
        """A record that is longer than a chunk is one of its own."""
        store = filled(10, 700, 10, 10)
        self.assertIn((1, 1), [(chunk.first_index, chunk.last_index) for chunk in self.check(store)])

    def test_a_chunk_has_one_term(self) -> None:
        """A chunk ends where a term ends."""
        store = filled(*[50] * 5)
        for _ in range(5):
            store.append_bodies((b"next" * 10,), 2)
        chunks = self.check(store)
        self.assertEqual([(chunk.first_index, chunk.term) for chunk in chunks][:3], [(0, 1), (3, 1), (5, 2)])

    def test_no_chunk_has_a_configuration(self) -> None:
        """No chunk has one, as a leader and as a follower."""
        store = filled(*[50] * 4)
        store.append_configuration(Membership(voters={"n0": "a:1"}, learners={}), 1)
        for _ in range(8):
            store.append_bodies((b"x" * 50,), 1)
        follower = opened()
        follower.append_entries(store.read_range(0, end_index=99, max_bytes=500))
        following = follower.ledger_end_index + 1
        follower.append_entries(store.read_range(following, end_index=99, max_bytes=1 << 20))
        for one in (store, follower):
            for chunk in self.check(one):
                self.assertFalse(chunk.first_index <= 4 <= chunk.last_index, chunk)
        self.assertTrue(chunks_of(store))

    def test_a_follower_makes_chunks_too(self) -> None:
        """A follower of a Java leader, whose records have no checksums, makes chunks, too."""
        store = opened()
        append_bare(store, [b"java" * 10] * 12, 1)
        self.assertGreater(len(self.check(store)), 2)

    def test_no_chunk_is_made_without_a_size(self) -> None:
        """Without a size nothing is made."""
        disk = MemoryDisk()
        store = opened(disk, push_chunk_bytes=0)
        store.append_bodies((b"x" * 50,) * 30, 1)
        self.assertEqual(chunks_of(store), [])
        self.assertFalse(disk.exists("base/dledger-n0/chunks"))


class KeepingTests(SynchronousTestCase):
    """How long a chunk is reported."""

    def setUp(self) -> None:
        self.disk = MemoryDisk()
        self.store = filled(*[50] * 40, disk=self.disk)
        self.chunks = chunks_of(self.store)

    def again(self) -> FileStore:
        """Kill the process and open the directory again."""
        self.store.abandon()
        self.store = opened(self.disk)
        return self.store

    def test_chunks_outlive_their_process(self) -> None:
        """They outlive their process; the one that grew is not made, and the next one begins at the end."""
        self.assertEqual(chunks_of(self.again()), self.chunks)
        end = self.store.ledger_end_index
        self.store.append_bodies((b"y" * 50,) * 9, 1)
        new = chunks_of(self.store)[len(self.chunks) :]
        self.assertEqual(new[0].first_index, end + 1)
        self.assertEqual(chunks_of(self.again()), [*self.chunks, *new])

    def test_closed_in_order(self) -> None:
        """A clean end writes the one that grew, if it is worth it."""
        self.store.append_bodies((b"y" * 50,), 1)
        self.store.clean_close()
        self.store = opened(self.disk)
        self.assertEqual(chunks_of(self.store)[-1].last_index, 40)

    def test_a_cut_chunk_is_not_reported(self) -> None:
        """What is cut is not reported again, not after a restart, and not when other entries follow."""
        self.store.truncate_to(entry_at(self.store, 16))
        kept = [chunk for chunk in self.chunks if chunk.last_index <= 16]
        self.assertEqual(chunks_of(self.store), kept)
        self.store.append_bodies((b"other" * 10,) * 20, 2)
        later = chunks_of(self.store)
        self.assertEqual(later[: len(kept)], kept)
        self.assertFalse(set(later[len(kept) :]) & set(self.chunks))
        self.assertEqual(chunks_of(self.again()), later)
        MakingTests().check(self.store)

    def test_cut_without_room(self) -> None:
        """A cut that finds no room for its row is a cut all the same."""
        failing = mock.patch.object(self.store.parts.sums, "_write", side_effect=OSError(errno.ENOSPC, "no"))
        with failing:
            self.store.truncate_to(entry_at(self.store, 16))
        self.assertEqual(chunks_of(self.store), [chunk for chunk in self.chunks if chunk.last_index <= 16])

    def test_rows_that_come_back(self) -> None:
        """A loss of power takes the cut of the rows back: no chunk of other bytes is read."""
        path = "base/dledger-n0/chunks/" + "0" * 20
        old = self.disk.read_file(path)
        self.store.truncate_to(entry_at(self.store, 2))
        self.store.append_bodies(tuple(b"%d" % (number % 10) * 50 for number in range(3, 12)), 2)
        self.store.abandon()
        self.disk.write_file(path, old)
        self.store = opened(self.disk)
        stale = [chunk for chunk in chunks_of(self.store) if chunk.first_index > 2]
        self.assertTrue(stale)
        self.assertIsNone(self.store.read_chunk(stale[0]))
        self.assertNotIn(stale[0], chunks_of(self.store), "it is reported once")

    def test_behind_the_end(self) -> None:
        """Rows of entries that were lost do not count."""
        path = "base/dledger-n0/chunks/" + "0" * 20
        old = self.disk.read_file(path)
        self.store.truncate_to(entry_at(self.store, 4))
        self.store.abandon()
        self.disk.write_file(path, old)
        self.store = opened(self.disk)
        self.assertEqual([chunk.last_index for chunk in chunks_of(self.store)], [2])

    def test_a_new_ledger_has_no_old_chunks(self) -> None:
        """A ledger that begins anew has none of the old chunks."""
        entry = our_first(100, 20 * DATA_SIZE)
        self.store.truncate_to(entry, anew=True)
        self.assertEqual(chunks_of(self.store), [])
        self.assertEqual(self.disk.listdir("base/dledger-n0/chunks"), [])

    def test_chunks_expire_with_their_file(self) -> None:
        """The rows of a data file go with it."""
        self.store.record_commit(39)
        self.store.check_point(force=True)
        options = {"retention_bytes": 2 * DATA_SIZE}
        self.store.abandon()
        self.store = opened(self.disk, **options)
        deleted = self.store.maintenance(1e10, 4, keep_from_index=39)
        self.assertTrue(deleted)
        self.assertEqual([int(name) for name in self.disk.listdir("base/dledger-n0/chunks")],
                         [one for one in self.store.parts.data.offsets if one in
                          {chunk.position - chunk.position % DATA_SIZE for chunk in self.chunks}])

    def test_a_torn_row_ends_its_file(self) -> None:
        """A torn row ends its file; the next row takes its place."""
        path = "base/dledger-n0/chunks/" + "0" * 20
        rows = unpack_rows(self.disk.read_file(path))
        content = b"".join(map(pack_row, rows))
        for cut in (1, 20, 55):
            torn = content[: -len(pack_row(rows[0])) + cut]
            self.assertEqual(unpack_rows(torn), rows[:-1])
        flipped = bytearray(content)
        flipped[len(pack_row(rows[0])) + 9] ^= 1
        self.assertEqual(unpack_rows(bytes(flipped)), rows[:1])

    def files(self) -> list[str]:
        """Paths of the files with rows."""
        directory = "base/dledger-n0/chunks"
        return [f"{directory}/{name}" for name in sorted(self.disk.listdir(directory))]

    def tear(self, path: str, number: int) -> None:
        """A write of a row has reached the disk in part."""
        data = bytearray(self.disk.read_file(path))
        at = number * len(NO_ROW)
        data[at + 20 : at + len(NO_ROW)] = bytes(len(NO_ROW) - 20)
        self.disk.write_file(path, bytes(data))

    def damaged(self) -> list[str]:
        """The files with rows that verification finds damaged."""
        found = verify_directory(self.disk, "base/dledger-n0").findings
        return [one.file for one in found if "/chunks/" in one.file]

    def test_a_start_ends_files_before_torn_rows(self) -> None:
        """A loss of power has torn rows of files that get no other row: nothing finds them after a start."""
        first, second, *_ = self.files()
        rows = [unpack_rows(self.disk.read_file(path)) for path in (first, second)]
        self.tear(first, 0)
        self.tear(second, 1)
        self.assertEqual(self.damaged(), [first, second])
        self.assertEqual(chunks_of(self.again()), [
            chunk for chunk in self.chunks if chunk not in rows[0] + rows[1][1:]])
        self.assertEqual(self.damaged(), [])
        MakingTests().check(self.store)

    def test_house_keeping_ends_files_before_torn_rows(self) -> None:
        """A write of a row has failed, and has torn it: the next house-keeping ends the file there."""
        path = self.files()[0]

        def failing(base: int, number: int, data: bytes) -> None:
            self.tear(path, 1)
            raise OSError(errno.EIO, "no")

        with mock.patch.object(self.store.parts.sums, "_write", failing):
            self.store.append_bodies((b"x" * 50,) * 10, 1)
        self.assertEqual((self.damaged(), chunks_of(self.store)), ([path], []))
        self.store.maintenance(0, 4, keep_from_index=0)
        self.assertEqual((self.damaged(), self.store.parts.sums.trouble), ([], ""))
        self.assertEqual(len(unpack_rows(self.disk.read_file(path))), 1)

    def test_a_file_that_cannot_be_read_costs_its_own_chunks(self) -> None:
        """A bad block in one of them: a start uses the others."""
        path, read = self.files()[0], self.disk.read_file
        with mock.patch.object(self.disk, "read_file", side_effect=lambda asked: read(asked) if (
                asked != path) else raised(OSError(errno.EIO, "bad block"))):
            sums = self.again().parts.sums
            self.assertEqual(sums.trouble, "")
            last = self.chunks[-1]
            self.assertEqual(sums.behind(last.first_index, last.position), last)

    def test_rows_of_a_former_tail_give_way(self) -> None:
        """They came back with a loss of power, and the ledger has other entries there since."""
        path = self.files()[0]
        rows = unpack_rows(self.disk.read_file(path))
        for stale in (rows[1], rows[1]._replace(last_index=rows[0].last_index + 1)):
            self.disk.write_file(path, b"".join(map(pack_row, (rows[0], stale, stale))) + NO_ROW)
            self.again()
            new = rows[1]._replace(first_index=rows[0].last_index + 2)
            self.store.parts.sums._record(new)
            self.assertEqual(unpack_rows(self.disk.read_file(path)), [rows[0], new])
            self.assertEqual(self.damaged(), [])

    def test_a_damaged_chunk_is_not_reported(self) -> None:
        """A chunk with a damaged entry is not reported until that is mended."""
        chunk = self.chunks[1]
        self.spoil(chunk.position + ENTRY_HEADER_SIZE)
        with self.assertRaises(DLedgerError):
            self.store.read_batch(chunk.first_index, max_count=1, max_bytes=0)
        self.assertTrue(self.store.holes)
        self.assertNotIn(chunk, chunks_of(self.store))

    def spoil(self, position: int) -> None:
        """Flip a bit."""
        file = self.disk.open(f"base/dledger-n0/data/{position - position % DATA_SIZE:020d}")
        at = position % DATA_SIZE
        file.pwrite(bytes([file.pread(1, at)[0] ^ 1]), at)
        file.close()

    def test_a_failing_disk_costs_chunks_alone(self) -> None:
        """A disk that cannot write the rows costs the chunks, and no entry."""
        for number, kept in ((errno.EIO, False), (errno.ENOSPC, True)):
            store = filled(*[50] * 10)
            failing = mock.patch.object(store.parts.sums, "_write", side_effect=OSError(number, "no"))
            with failing:
                store.append_bodies((b"x" * 50,) * 10, 1)
            store.append_bodies((b"x" * 50,) * 10, 1)
            self.assertEqual(store.ledger_end_index, 29)
            self.assertEqual(bool(chunks_of(store)), kept)
            self.assertEqual(len(bodies_in(store)), 30)


def our_first(index: int, position: int) -> EntryBatch:
    """The first record of a later file."""
    record = our_record(b"new", index=index, term=3, pos=position, chain=5)
    return EntryBatch(first_index=index, count=1, term=3, records=record)


class TakingTests(SynchronousTestCase):
    """A follower takes a chunk, or refuses it and changes nothing."""

    def setUp(self) -> None:
        self.leader = filled(*[50, 30, 70] * 12)
        self.chunk = entries_of(self.leader, 1)
        self.follower = follower_of(self.leader, self.chunk.first_index)

    def refused(self, chunk: EntryChunk, word: str, follower: FileStore | None = None) -> None:
        """It is refused for this reason."""
        store = follower or self.follower
        before = store.ledger_end_index, store.end_position
        error = self.assertRaises(DLedgerError, store.append_entries, chunk)
        self.assertIn(word, str(error))
        self.assertEqual((store.ledger_end_index, store.end_position), before)

    def resummed(self, **changes: object) -> EntryChunk:
        """The chunk with other bytes and right sums of them."""
        chunk = attrs.evolve(self.chunk, **changes)
        return attrs.evolve(chunk, records_crc=crc32(chunk.records), units_crc=crc32(chunk.units))

    def test_chunks_make_the_same_ledger(self) -> None:
        """Chunks and the entries between them make the same files, and the same chunks."""
        self.leader.append_bodies((b"",) * 30, 4)
        store = opened()
        index = 0
        while index <= self.leader.ledger_end_index:
            chunk = self.leader.chunk_from(index)
            entries: EntryBatch | None = None
            if chunk is not None and chunk.first_index == index:
                entries = self.leader.read_chunk(chunk)
            entries = entries or self.leader.read_batch(index, max_count=1, max_bytes=0)
            store.append_entries(entries)
            index = entries.last_index + 1
        self.assertEqual(bodies_in(store), bodies_in(self.leader))
        self.assertEqual((store.end_position, store.ledger_end_term), (self.leader.end_position, 4))
        for name in ("_data", "_index"):
            ours, theirs = getattr(store, name), getattr(self.leader, name)
            for offset in theirs.offsets:
                self.assertEqual(ours.pread(ours.file_size, offset), theirs.pread(theirs.file_size, offset))
        self.assertEqual([one for one in chunks_of(self.leader) if one not in chunks_of(store)], [])
        for at in range(store.ledger_end_index + 1):
            self.assertEqual((store.term_of(at), store.position_of(at)),
                             (self.leader.term_of(at), self.leader.position_of(at)))
        store.append_bodies((b"more",), 4)
        self.assertEqual(store.term_of(store.ledger_end_index), 4)

    def test_rotten_at_the_leader(self) -> None:
        """Every flipped bit of records and units is noticed: the sums are those of the bytes once written."""
        for name in ("records", "units"):
            content = getattr(self.chunk, name)
            for bit in range(0, 8 * len(content), 7):
                spoilt = bytearray(content)
                spoilt[bit // 8] ^= 1 << bit % 8
                self.refused(attrs.evolve(self.chunk, **{name: bytes(spoilt)}), "checksums")

    def test_a_chunk_must_follow_the_end(self) -> None:
        """It must follow the end: index, position, term and chain."""
        self.refused(entries_of(self.leader, 2), "do not follow")
        moved = opened()
        for number in range(self.chunk.first_index):
            moved.append_bodies((b"%d" % number,), 1)
        self.refused(self.chunk, "units", moved)
        other = opened()
        for index in range(self.chunk.first_index):
            other.append_bodies((b"9" * (len(entry_at(self.leader, index).records) - 48),), 1)
        self.refused(self.chunk, "chainCrc", other)
        later = opened()
        for index in range(self.chunk.first_index):
            later.append_bodies((b"9" * (len(entry_at(self.leader, index).records) - 48),), 2)
        self.refused(self.chunk, "term=1", later)

    def test_another_file_size(self) -> None:
        """A follower with other files would put the records elsewhere."""
        leader = opened(mapped_file_size_for_entry_data=4 * DATA_SIZE, push_chunk_bytes=3 * DATA_SIZE)
        leader.append_bodies((b"x" * 50,) * 40, 1)
        self.refused(entries_of(leader), "do not fit", opened())

    def test_units_must_fit_their_records(self) -> None:
        """The index units must be those of the records, even if their sum is right."""
        self.leader = opened(push_chunk_bytes=900)
        for number in range(20):
            self.leader.append_bodies((b"x" * (30 + number % 3),), 1)
        self.chunk, self.follower = entries_of(self.leader), opened()
        size = len(self.chunk.units)
        middle = 4 * INDEX_UNIT_SIZE
        self.assertGreater(self.chunk.count, 7)
        for at in (*range(size - INDEX_UNIT_SIZE, size), *range(INDEX_UNIT_SIZE),
                   middle, middle + 3, middle + 12, middle + 15, middle + 23, middle + 24, middle + 31):
            units = bytearray(self.chunk.units)
            units[at] ^= 1
            self.refused(self.resummed(units=bytes(units)), "chunk refused")
        self.refused(self.resummed(units=self.chunk.units[:-INDEX_UNIT_SIZE]), "units")
        same = self.chunk.units[:INDEX_UNIT_SIZE] * self.chunk.count
        self.refused(self.resummed(units=same), "chunk refused")

    def test_first_and_last_record(self) -> None:
        """They are checked whole, even if the sum is right."""
        begin_position = self.leader.position_of(self.chunk.first_index)
        last = self.leader.position_of(self.chunk.last_index) - begin_position
        for begin in (0, last):
            for at in range(begin, begin + ENTRY_HEADER_SIZE + 4):
                records = bytearray(self.chunk.records)
                records[at] ^= 2
                self.refused(self.resummed(records=bytes(records)), "chunk refused")

    def test_a_chunk_with_a_configuration_is_refused(self) -> None:
        """A chunk with a configuration entry is refused: its follower would not notice it."""
        for sizes in ([50, 30, 70], [50]):
            leader = filled(*sizes * 12)
            self.chunk = entries_of(leader, 1)
            store = follower_of(leader, self.chunk.first_index)
            begin = leader.position_of(self.chunk.first_index)
            records = bytearray(self.chunk.records)
            at = leader.position_of(self.chunk.first_index + 1) - begin
            fields = list(ENTRY_HEADER.unpack_from(records, at))
            fields[5] = CONFIGURATION_CHANNEL
            ENTRY_HEADER.pack_into(records, at, *fields)
            self.refused(self.resummed(records=bytes(records)), "chunk refused", store)

    def test_word_of_the_channel_in_a_body(self) -> None:
        """Bodies may hold that word."""
        word = CONFIGURATION_CHANNEL.to_bytes(4, "big", signed=True)
        for body in (b"a" * 20 + word + b"b" * 20, word * 20):
            leader = opened(push_chunk_bytes=900)
            for number in range(8):
                leader.append_bodies((body + b"." * number,), 1)
            store = opened()
            chunk = entries_of(leader)
            store.append_entries(chunk)
            self.assertEqual(store.ledger_end_index, chunk.last_index)

    def test_a_chunk_may_follow_a_blank(self) -> None:
        """A chunk that begins a data file is written after a blank."""
        chunks = chunks_of(self.leader)
        begins = [chunk for chunk in chunks if chunk.position and not chunk.position % DATA_SIZE]
        store = follower_of(self.leader, begins[0].first_index)
        entries = self.leader.read_chunk(begins[0])
        assert entries is not None
        store.append_entries(entries)
        self.assertEqual(store.end_position, begins[0].end_position)
        self.assertEqual(store.parts.data.pread(DATA_SIZE, 0), self.leader.parts.data.pread(DATA_SIZE, 0))
        store.abandon()
