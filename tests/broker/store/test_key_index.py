# -*- test-case-name: tests.broker.store.test_key_index -*-
"""All files of the index: what is found, and what every kind of end leaves."""

from __future__ import annotations

import random
from typing import Any

from twisted.internet.defer import Deferred
from twisted.trial.unittest import SynchronousTestCase

from dledger.base.disk.file_table import INDEXED
from dledger.base.disk.hints import Hints
from dledger.rocketmq.store.index import key_index
from dledger.rocketmq.store.index.index_directory import index_file_name
from dledger.rocketmq.store.index.index_file import ENTRY, HEADER, IndexFile, IndexHeader
from dledger.rocketmq.store.index.key_index import (
    IndexFlush,
    IndexMark,
    KeyIndex,
    decode_index_mark,
    encode_index_mark,
)
from dledger.testing.world.memory_disk import MemoryDisk
from tests.broker.support import config_of, inline

ALL = (0, 2**62)
NOW_MS = 1_700_000_000_000


class FakeLog:
    """A log with a record at every tenth offset."""

    record_lead = 0
    file_size = 1 << 30

    def __init__(self) -> None:
        self.queue_offsets: dict[tuple[str, int], int] = {}
        self.begin_offset = 0
        self.end_offset = self.record_end = self.flushed_offset = 1 << 20

    def read(self, offset: int, size: int) -> bytes:
        """Not needed."""
        raise AssertionError

    def problem_at(self, offset: int) -> str | None:
        """Nothing but records."""
        if not self.begin_offset <= offset < self.record_end:
            raise ValueError(offset)
        return "" if offset % 10 == 0 else "no record"


class Rig(SynchronousTestCase):
    """An index of files with 16 slots and 64 entries."""

    def setUp(self) -> None:
        self.disk = MemoryDisk()
        self.log = FakeLog()
        self.index = self.open()

    def open(self, *, crashed: bool = False, timestamp: int = 0, **options: Any) -> KeyIndex:
        """A process starts."""
        return KeyIndex.open(
            config_of(**options), Hints(self.disk), self.log, log_end=self.log.record_end, crashed=crashed,
            timestamp=timestamp,
        )

    def put(self, first: int, count: int) -> None:
        """The records with these numbers, each with the hash of its number modulo 20."""
        for number in range(first, first + count):
            self.index.put([(number % 20, number * 10, NOW_MS + number * 100)], number * 10 + 10)

    def flush(self) -> None:
        """Bring everything to stable storage."""
        flush = self.index.prepare_flush()
        if flush is not None:
            self.successResultOf(_fired(self.index, flush))

    def found(self, key_hash: int, begin_ms: int = 0, end_ms: int = 2**62) -> list[int]:
        """Numbers of the records found, the youngest first."""
        return [offset // 10 for offset in self.index.search(key_hash, begin_ms, end_ms) if offset >= 0]

    def check(self, count: int) -> None:
        """All records below this number are found, and none above."""
        for key_hash in range(20):
            expected = [number for number in range(count) if number % 20 == key_hash]
            self.assertEqual(sorted(set(self.found(key_hash))), expected)

    def names(self) -> list[str]:
        """The files."""
        return self.disk.listdir("base/index")

    def catch_up(self, count: int) -> None:
        """Put the records that the index lacks, of C{count}."""
        self.assertEqual(self.index.offset % 10, 0)
        first = self.index.offset // 10
        self.put(first, count - first)


def _fired(index: KeyIndex, flush: IndexFlush) -> Deferred[None]:


    return Deferred.fromCoroutine(index.flush(flush, inline))


class SearchTests(Rig):
    """What is found."""

    def test_all_files_are_searched(self) -> None:
        """A full file is followed by another; each is found, the youngest first."""
        self.put(0, 200)
        self.assertEqual(len(self.names()), 4)
        self.assertEqual(self.found(3), list(range(183, 0, -20)))
        self.check(200)
        self.flush()
        self.check(200)
        self.assertEqual(self.index.last_put, (NOW_MS + 19_900, 1990))
        self.assertEqual(self.index.end_timestamp, NOW_MS + 19_900)

    def test_times_bound_the_search(self) -> None:
        """Within a time; a second more is tolerated, since entries have seconds only."""
        self.put(0, 200)
        for begin, end in ((0, 199), (50, 60), (120, 121), (190, 500), (-5, 3), (63, 63)):
            for key_hash in range(20):
                found = self.found(key_hash, NOW_MS + begin * 100, NOW_MS + end * 100)
                wanted = {one for one in range(200) if one % 20 == key_hash and begin <= one <= end}
                self.assertTrue(wanted <= set(found), (begin, end, key_hash))
                for one in found:
                    self.assertTrue(begin - 10 <= one <= end + 10, (begin, end, one))

    def test_a_search_counts_its_steps(self) -> None:
        """Each entry of another key is a step."""
        self.index.put([(0, 0, NOW_MS), (16, 10, NOW_MS), (0, 20, NOW_MS)], 30)
        self.assertEqual(list(self.index.search(0, *ALL)), [20, -1, 0])
        self.assertEqual(list(self.index.search(16, *ALL)), [-1, 10, -1])
        self.assertEqual(list(self.index.search(1, *ALL)), [])

    def test_slots_in_memory_are_bounded(self) -> None:
        """Slots in memory are bounded: before a flush only some files are begun."""
        self.put(0, 64 * 5)
        self.assertTrue(self.index.is_stuffed)
        self.flush()
        self.assertFalse(self.index.is_stuffed)

    def test_names_of_files_rise(self) -> None:
        """Names are times, and rise in any case."""
        self.assertEqual(index_file_name(-5), index_file_name(0))
        self.assertEqual(len(str(index_file_name(2**63))), 17)
        self.assertEqual(index_file_name(NOW_MS + 7) % 1000, 7)
        for number, time_ms in enumerate((NOW_MS, NOW_MS, NOW_MS - 10**9)):
            self.index.put([(1, number, time_ms)] * 63, 0)
        names = [int(name) for name in self.names()]
        self.assertEqual(names, [index_file_name(NOW_MS) + at for at in range(3)])


class EndTests(Rig):
    """Starts after every kind of end."""

    def test_a_closed_index_is_believed(self) -> None:
        """After an orderly end everything is believed as it is."""
        self.put(0, 100)
        self.flush()
        self.index.close(is_clean=True)
        self.index = self.open()
        self.assertEqual(self.index.offset, 1000)
        self.check(100)
        self.put(100, 100)
        self.check(200)

    def test_a_crashed_index_goes_on(self) -> None:
        """After a crash the index goes on from its mark, and nothing is missing."""
        for seed in range(30):
            rng = random.Random(seed)
            self.setUp()
            count = 0
            for _ in range(rng.randrange(1, 6)):
                for _ in range(rng.randrange(1, 5)):
                    more = rng.randrange(60)
                    self.put(count, more)
                    count += more
                    if rng.random() < 0.5:
                        self.index.write()
                    if rng.random() < 0.5:
                        self.flush()
                if rng.random() < 0.5:  # in the middle of a flush
                    flush = self.index.prepare_flush()
                    for step in flush.steps[: rng.randrange(len(flush.steps) + 1)] if flush else ():
                        step()
                self.index = self.open(crashed=True)
                self.catch_up(count)
                self.check(count)

    def test_java_after_a_kill(self) -> None:
        """RocketMQ goes on after the record that the last header names: the files have all before it."""
        ends = set()
        for seed in range(60):
            rng = random.Random(seed)
            self.setUp()
            for _ in range(rng.randrange(1, 8)):
                self.put(self.index.offset // 10, rng.randrange(60))
                for sometimes in (self.index.write, self.flush):
                    if rng.random() < 0.4:
                        sometimes()
            flush = self.index.prepare_flush() if rng.random() < 0.5 else None
            for step in flush.steps[: rng.randrange(len(flush.steps) + 1)] if flush else ():
                step()
            shape = self.index.shape
            self.index = KeyIndex(config_of(), Hints(self.disk), self.log)
            self.index.files = [
                IndexFile.open(self.disk, f"base/index/{name}", shape) for name in self.names()
            ]
            _, end = self.index.last_put
            ends.add(end)
            for number in range(end // 10):
                self.assertIn(number, self.found(number % 20), (seed, end))
        self.assertGreater(len(ends), 20)

    def test_java_went_on(self) -> None:
        """RocketMQ has put more and closed in order: the index goes on after its last record."""
        self.put(0, 30)
        self.flush()
        self.index.close(is_clean=True)
        path = f"base/{INDEXED.name}"
        mark = self.disk.read_file(path)
        self.index = self.open()
        self.put(30, 50)
        self.flush()
        self.disk.write_file(path, mark)  # RocketMQ does not know it
        self.index = self.open()
        self.assertEqual(self.index.offset, 790)
        self.catch_up(100)
        self.check(100)

    def test_a_directory_of_java_is_read(self) -> None:
        """Without a mark: closed in order it is believed; else files younger than the checkpoint go."""
        self.put(0, 100)
        self.flush()
        self.disk.unlink(f"base/{INDEXED.name}")
        self.index = self.open()
        self.assertEqual(self.index.offset, 990)
        self.check(100)
        self.disk.unlink(f"base/{INDEXED.name}")
        self.index = self.open(crashed=True, timestamp=NOW_MS + 6200)
        self.assertEqual(self.index.offset, 620)
        self.assertEqual(len(self.names()), 1)
        self.catch_up(100)
        self.check(100)
        self.disk.unlink(f"base/{INDEXED.name}")
        self.index = self.open(crashed=True, timestamp=0)
        self.assertEqual((self.index.offset, self.names()), (0, []))

    def test_a_lost_file_is_made_again(self) -> None:
        """The file of the mark is gone, as RocketMQ's start deletes it: its records are put again."""
        self.put(0, 100)
        self.flush()
        self.disk.unlink(f"base/index/{self.names()[-1]}")
        self.index = self.open(crashed=True)
        self.assertEqual(self.index.offset, 620)
        self.catch_up(100)
        self.check(100)

    def test_a_file_that_is_missing_before_others(self) -> None:
        """It is noticed by the number in the mark: the index is built again. Expired ones are not missed."""
        for which in (0, 1):
            self.put(0, 250)
            self.flush()
            self.assertGreater(len(self.names()), 3)
            self.disk.unlink(f"base/index/{self.names()[which]}")
            self.index = self.open(crashed=True)
            self.assertEqual((self.index.offset, self.names()), (0, []))
            self.catch_up(250)
            self.check(250)
            self.flush()
            if which:
                break
            self.index.clear(0)
        for name in (f"index/{self.names()[0]}", INDEXED.name):
            self.disk.unlink(f"base/{name}")  # (And without a mark by the begin of the log.)
        self.index = self.open(crashed=False)
        self.assertEqual((self.index.offset, self.names()), (0, []))
        self.catch_up(250)
        self.flush()
        names = self.names()
        self.index.expire(self.index.files[1].header.end_offset + 1)
        self.assertEqual(self.names(), names[2:])
        self.index = self.open(crashed=True)
        self.assertEqual((self.index.offset, self.names()), (2500, names[2:]))

    def test_another_size_builds_anew(self) -> None:
        """Files of another size are set aside, and the index is built again."""
        self.put(0, 100)
        self.flush()
        self.index.close(is_clean=True)
        names = self.names()
        self.index = self.open(max_index_num=63)
        self.assertEqual((self.index.offset, self.names()), (0, []))
        self.assertEqual(self.disk.listdir("base/index.set-aside-1"), names)

    def test_an_empty_last_file_is_removed(self) -> None:
        """A crash in its creation leaves it: the others stay."""
        self.put(0, 100)
        self.flush()
        names = self.names()
        self.disk.write_file(f"base/index/{int(names[-1]) + 1:017d}", b"")
        self.index = self.open(crashed=True)
        self.assertEqual((self.index.offset, self.names()), (1000, names))
        self.check(100)

    def test_a_power_cut_among_deletions_hides_nothing(self) -> None:
        """All files go, and a power cut keeps one in the middle: all records are put again."""
        self.put(0, 250)
        self.flush()
        names = self.names()
        self.assertGreater(len(names), 3)
        middle = self.disk.read_file(f"base/index/{names[1]}")
        disk = self.disk
        sound = disk.unlink

        def cut(path: str) -> None:
            sound(path)
            if path.endswith(names[0]):
                raise OSError(28, "the start fails here")

        for is_other_size in (True, False):
            self.disk.unlink = cut  # type: ignore[method-assign]
            if is_other_size:
                self.index = self.open(max_index_num=63)
            else:
                disk.open(f"base/index/{names[0]}").pwrite(HEADER.pack(0, 0, 0, 0, 0, -1), 0)
                self.index = self.open(crashed=True)
            self.disk.unlink = sound  # type: ignore[method-assign]
            for name in self.names():
                disk.unlink(f"base/index/{name}")
            disk.write_file(f"base/index/{names[1]}", middle)
            self.index = self.open(crashed=True)
            self.assertEqual((self.index.offset, self.names()), (0, []))
            self.catch_up(250)
            self.flush()
            self.check(250)
            names = self.names()

    def test_a_torn_mark_says_nothing(self) -> None:
        """A mark that is torn, or of another shape, is none."""
        shape = self.index.shape
        header = IndexHeader(1, 2, 3, 4, 5, 6)
        mark = IndexMark(offset=5, first=3, file=7, count=2, is_clean=True, header=header)
        data = encode_index_mark(mark, shape)
        self.assertEqual(decode_index_mark(data, shape), mark)
        for damaged in (None, b"", data[:-1], data + b"x", b"\1" + data[1:], data[:-1] + b"\0\0"):
            self.assertIsNone(decode_index_mark(damaged, shape))
        self.assertIsNone(decode_index_mark(data, type(shape)(shape.slots + 1, shape.entries)))


class DamageTests(Rig):
    """A damaged file never stops anything."""

    def damage(self, at: int, position: int, data: bytes) -> None:
        """Change bytes of a file."""
        self.disk.open(f"base/index/{self.names()[at]}").pwrite(data, position)

    def test_a_damaged_header_drops_files(self) -> None:
        """A file with a bad header goes, with those after it; their records are put again."""
        self.put(0, 200)
        self.flush()
        self.index.close(is_clean=True)
        self.damage(1, 0, HEADER.pack(0, 0, 0, 0, 0, -1))
        self.index = self.open()
        self.assertEqual((len(self.names()), self.index.offset), (1, 620))
        self.catch_up(200)
        self.check(200)

    def test_a_circle_ends_the_search(self) -> None:
        """A search that meets a circle ends; the file is built again."""
        self.put(0, 200)
        self.flush()
        shape = self.index.shape
        entry = self.index.files[1].entry(40)
        self.damage(1, shape.entry_at(40), ENTRY.pack(entry.key_hash, entry.offset, entry.seconds, 40))
        found = self.found(entry.key_hash)
        self.assertTrue(set(found) < set(range(200)))
        self.assertEqual((len(self.names()), self.index.offset), (1, 620))
        self.catch_up(200)
        self.check(200)
        self.assertGreater(len(self.names()), 2)
        self.flush()
        self.index = self.open(crashed=True)
        self.catch_up(200)
        self.check(200)

    def test_any_bytes_raise_nothing(self) -> None:
        """Any bytes anywhere, at any time: nothing is raised, searches end, new records are found."""
        for seed in range(150):
            rng = random.Random(seed)
            self.setUp()
            self.put(0, 200)
            self.flush()
            crashed = rng.random() < 0.5
            if not crashed:
                self.index.close(is_clean=True)
            if rng.random() < 0.7:
                self.index = self.open(crashed=crashed)
            for _ in range(rng.randrange(1, 6)):
                place = rng.choice((rng.randrange(40), rng.randrange(40, 104), rng.randrange(1384)))
                self.damage(rng.randrange(4), place, rng.choice((rng.randbytes(4), b"\0" * 20, b"\xff" * 4)))
            if rng.random() < 0.5:
                self.index = self.open(crashed=crashed)
            for key_hash in range(20):
                self.assertLess(len(self.found(key_hash)), 400)
            self.catch_up(300)
            self.flush()
            for key_hash in range(20):
                self.assertTrue({200 + key_hash, 280 + key_hash} <= set(self.found(key_hash)), seed)

    def test_during_a_flush(self) -> None:
        """Damage found while a thread flushes: its handles stay, and its mark does not count."""
        self.put(0, 200)
        flush = self.index.prepare_flush()
        assert flush is not None
        self.index._rebuild(1, ValueError("damage"))
        self.successResultOf(_fired(self.index, flush))
        self.assertEqual(self.index.offset, 620)
        mark = decode_index_mark(self.disk.read_file(f"base/{INDEXED.name}"), self.index.shape)
        assert mark is not None
        self.assertEqual(mark.offset, 620)

    def test_an_unreadable_index_stops(self) -> None:
        """An index that cannot be read: the log says so, and nothing is put."""
        self.put(0, 10)
        self.flush()
        self.disk.unlink(f"base/index/{self.names()[0]}")
        self.disk.makedirs(f"base/index/{index_file_name(NOW_MS)}")
        self.index = self.open(crashed=True)
        self.assertNotEqual(self.index.why_failed, "")
        self.assertIsNone(self.index.prepare_flush())


class RoomTests(Rig):
    """A full disk."""

    def test_entries_in_memory_are_bounded(self) -> None:
        """Entries in memory are bounded: while they cannot be written, none is put."""
        self.patch(key_index, "PENDING_BYTES_MAX", 20 * 10)
        self.put(0, 5)

        def fail() -> None:
            raise OSError(28, "no room")

        self.patch(self.index.files[0], "write", fail)
        self.assertRaises(OSError, self.put, 5, 30)
        self.assertEqual(self.index.offset, 100)
        del self.index.files[0].write  # type: ignore[method-assign]
        self.catch_up(100)
        self.check(100)

    def test_a_flush_without_room_is_repeated(self) -> None:
        """A flush that finds no room is repeated by the next one; the mark says no more than is there."""
        self.put(0, 30)
        flush = self.index.prepare_flush()
        assert flush is not None

        def fail() -> None:
            raise OSError(28, "no room")

        flush.steps.insert(1, fail)
        self.successResultOf(_fired(self.index, flush))
        self.assertEqual(self.index.why_failed, "")
        self.assertEqual(self.index.end_timestamp, 0)
        self.flush()
        self.assertEqual(self.index.end_timestamp, NOW_MS + 2900)
        self.index = self.open(crashed=True)
        self.assertEqual(self.index.offset, 300)
        self.check(30)

    def test_a_mark_without_room_is_repeated(self) -> None:
        """No room for the mark: full files keep their slots for the flush that repeats it."""
        self.put(0, 80)
        flush = self.index.prepare_flush()
        assert flush is not None
        write_file = self.disk.write_file

        def fail(path: str, data: bytes) -> None:
            raise OSError(28, "no room")

        self.disk.write_file = fail  # type: ignore[assignment]
        self.successResultOf(_fired(self.index, flush))
        self.index.cut(700)
        self.disk.write_file = write_file  # type: ignore[method-assign]
        self.catch_up(80)
        self.flush()
        self.index = self.open(crashed=True)
        self.assertEqual(self.index.offset, 800)
        self.check(80)

    def test_cut_of_what_is_not_flushed(self) -> None:
        """The mark says nothing of it, also if the log is cut between two flushes."""
        self.put(0, 30)
        self.flush()
        self.put(30, 50)
        self.index.cut(700)
        self.index = self.open(crashed=True)
        self.assertEqual(self.index.offset, 300)
        self.catch_up(70)
        self.check(70)

    def test_cut_during_a_flush(self) -> None:
        """The mark names the place of the cut, although the index is further when the flush ends."""
        self.put(0, 80)
        flush = self.index.prepare_flush()
        assert flush is not None
        self.index.cut(700)
        self.put(70, 100)
        self.successResultOf(_fired(self.index, flush))
        self.index = self.open(crashed=True)
        self.assertEqual(self.index.offset, 700)

    def test_mark_after_a_cut(self) -> None:
        """No room for the mark of a log that was cut during a flush: the next flush writes it."""
        self.put(0, 80)
        flush = self.index.prepare_flush()
        assert flush is not None
        self.index.cut(700)

        def fail(path: str, data: bytes) -> None:
            raise OSError(28, "no room")

        self.patch(self.disk, "write_file", fail)
        self.successResultOf(_fired(self.index, flush))
        del self.disk.write_file  # type: ignore[method-assign]
        self.flush()
        self.index = self.open(crashed=True)
        self.assertEqual(self.index.offset, 700)


class LogTests(Rig):
    """Changes of the log."""

    def test_files_without_records_expire(self) -> None:
        """Files whose records are gone go, but never the last, nor one with changes."""
        self.put(0, 200)
        self.index.expire(1 << 20)
        self.assertEqual(len(self.names()), 4)
        self.flush()
        self.index.expire(620)
        self.assertEqual(len(self.names()), 4)
        self.index.expire(621)
        self.assertEqual(len(self.names()), 3)
        self.index.expire(1 << 20)
        self.assertEqual(len(self.names()), 1)

    def test_a_cut_log_is_indexed_again(self) -> None:
        """Records after a cut are put; a crash right after it does not forget the cut."""
        self.put(0, 100)
        self.flush()
        self.index.cut(500)
        self.assertEqual(self.index.offset, 500)
        self.index = self.open(crashed=True)
        self.assertEqual(self.index.offset, 500)
        self.catch_up(120)
        self.check(120)

    def test_a_cleared_index_is_empty(self) -> None:
        """The log begins elsewhere: nothing stays."""
        self.put(0, 100)
        self.index.clear(5000)
        self.assertEqual((self.names(), self.index.offset), ([], 5000))

    def test_log_is_shorter(self) -> None:
        """A start with a log that ends, or begins, elsewhere."""
        self.put(0, 100)
        self.flush()
        self.index.close(is_clean=True)
        self.log.record_end = 400
        self.assertEqual(self.open().offset, 400)
        self.log.begin_offset, self.log.record_end = 5000, 6000
        self.assertEqual(self.open().offset, 5000)
