# -*- test-case-name: tests.broker.store.test_sound_records -*-
"""Records for consumers: whatever is handed out was checked, and is checked once."""

from __future__ import annotations

import random
from typing import Any

from twisted.trial.unittest import SynchronousTestCase

from dledger.rocketmq.store import sound_records
from dledger.rocketmq.store.records.bad_records import BadRecords
from dledger.rocketmq.store.records.body_check import RUN_MIN
from dledger.rocketmq.store.records.records import problem_of
from dledger.rocketmq.store.sound_records import AHEAD, GAP_BYTES_MAX, SoundRecords
from dledger.testing.world.memory_disk import MemoryDisk
from tests.broker.support import LOG_SIZE, config_of, message, open_log, some_message

BIG = 1 << 22


class Case(SynchronousTestCase):
    """A log, and where its records are."""

    file_size = BIG

    def setUp(self) -> None:
        self.disk = MemoryDisk()
        self.log = open_log(self.disk, config=config_of(mapped_file_size_commit_log=self.file_size))
        self.units: list[tuple[int, int]] = []
        self.bad = BadRecords()
        self.reads: list[tuple[int, int]] = []
        read = self.log.read

        def counted(offset: int, size: int) -> bytes:
            self.reads.append((offset, size))
            return read(offset, size)

        self.patch(self.log, "read", counted)
        self.sound = SoundRecords(self.log, self.bad, record_size_max=BIG)

    def append(self, *messages: Any) -> None:
        """Store them, each by itself."""
        for new in messages:
            placed = self.log.append([[new]], 1)
            self.units.append((placed.offsets[0], placed.end - placed.offsets[0]))

    def hurt(self, offset: int) -> None:
        """Flip a bit of a byte of the log."""
        base = offset - offset % self.file_size
        self.disk.files[f"base/commitlog/{base:020d}"].data[offset - base] ^= 1

    def get(self, *units: tuple[int, int]) -> list[bytes]:
        """These records."""
        return self.sound.read([at for at, _ in units], [size for _, size in units])

    def on_disk(self, *units: tuple[int, int]) -> list[bytes]:
        """What the log has there."""
        found = []
        for offset, size in units:
            base = offset - offset % self.file_size
            data = self.disk.files[f"base/commitlog/{base:020d}"].data
            found.append(bytes(data[offset - base : offset - base + size]))
        return found


class ReadTests(Case):
    """Records of one size, one after the other."""

    def setUp(self) -> None:
        super().setUp()
        self.append(*[message(b"%04d" % at * 20, queue_id=at % 4) for at in range(4 * RUN_MIN)])

    def test_once(self) -> None:
        """Four readers of four queues are served by few reads of the log, and all get theirs."""
        for begin in range(0, len(self.units), 32):
            for queue in range(4):
                wanted = self.units[begin + queue : begin + 32 : 4]
                self.assertEqual(self.get(*wanted), self.on_disk(*wanted))
        span = self.units[-1][0] + self.units[-1][1]
        self.assertLess(len(self.reads), len(self.units) // 8)
        self.assertLess(sum(size for _, size in self.reads), 2 * span)
        self.reads.clear()
        self.assertEqual(self.get(*self.units), self.on_disk(*self.units))
        self.assertEqual(self.reads, [])

    def test_damaged_before(self) -> None:
        """A damaged record is left out for everybody, and noted; those around it are not."""
        for number in (0, 5, RUN_MIN, len(self.units) - 1):
            self.hurt(self.units[number][0] + 100)
            for _ in range(2):
                sound = [unit for unit in self.units if unit != self.units[number]]
                self.assertEqual(self.get(*self.units), self.on_disk(*sound), number)
                self.assertEqual(self.get(self.units[number]), [])
            self.assertEqual(self.bad.offsets(), [self.units[number][0]])
            self.hurt(self.units[number][0] + 100)
            self.assertEqual(self.get(*self.units), self.on_disk(*self.units))  # it was mended
            self.bad.mended(self.units[number][0])
            self.sound.forget()

    def test_damaged_later(self) -> None:
        """What the disk loses does not change what was read before; the next read from it checks again."""
        before = self.get(*self.units)
        for offset, _ in self.units:
            self.hurt(offset + 100)
        self.assertEqual(self.get(*self.units), before)
        self.sound.forget()
        self.assertEqual(self.get(*self.units), [])

    def test_wrong_unit(self) -> None:
        """A unit that leads elsewhere, or has another size, gives nothing."""
        (at, size), (following, _) = self.units[3:5]
        for _ in range(2):
            for wrong in ((at + 1, size), (at, size - 1), (at, size + 1), (at, 50), (at, 0)):
                self.assertEqual(self.get(wrong), [], wrong)
                self.assertEqual(self.get(wrong, (following, size)), self.on_disk((following, size)), wrong)
            self.assertEqual(self.get(*self.units), self.on_disk(*self.units))

    def test_bounds(self) -> None:
        """Little is read for one record; what is kept has a bound, and the oldest goes."""
        size = self.units[0][1]
        self.get(self.units[7])
        self.assertEqual(self.reads, [(self.units[7][0], AHEAD * size)])
        self.sound = SoundRecords(
            self.log, self.bad, record_size_max=BIG, kept_bytes_max=20 * size
        )
        for _ in range(2):
            for unit in self.units[::16]:
                self.reads.clear()
                self.assertEqual(self.get(unit), self.on_disk(unit))
                self.assertEqual(len(self.reads), 1)
            self.assertLessEqual(len(self.sound._pieces) * AHEAD * size, 20 * size)

    def test_far_apart(self) -> None:
        """Records that are far apart are read one by one, and what is between them is not."""
        self.append(*[message(bytes([at]) * (8 if at % 2 else GAP_BYTES_MAX)) for at in range(20)])
        small = self.units[-19::2]
        self.assertEqual(self.get(*small), self.on_disk(*small))
        self.assertEqual(len(self.reads), len(small))

    def test_cut(self) -> None:
        """The store forgets them when the log is cut."""
        self.get(*self.units)
        self.sound.forget()
        self.assertEqual((self.sound._pieces, self.sound._begins, self.sound._kept_bytes), ({}, [], 0))


class AnythingTests(Case):
    """Records of all kinds in many files, asked for in any order, of which some are damaged at any time."""

    file_size = LOG_SIZE

    def test_twin(self) -> None:
        """What is sound on the disk is handed out, and nothing that is not sound."""
        for seed in range(6):
            self.setUp()
            rng = random.Random(seed)
            self.patch(sound_records, "PIECE_BYTES", rng.choice([100, 2000, LOG_SIZE]))
            self.append(*[some_message(rng) for _ in range(60)])
            for at in rng.sample(range(60), 6):
                offset, size = self.units[at]
                self.hurt(offset + rng.randrange(size))
            whole = {}
            for (offset, _), data in zip(self.units, self.on_disk(*self.units), strict=True):
                room = LOG_SIZE - offset % LOG_SIZE
                whole[offset] = problem_of(data, offset, room, LOG_SIZE)
            for _ in range(200):
                first = rng.randrange(60)
                wanted = self.units[first : first + rng.randrange(1, 20) : rng.choice([1, 1, 2, 5])]
                sound = [unit for unit in wanted if whole[unit[0]] == ""]
                self.assertEqual(self.get(*wanted), self.on_disk(*sound))
