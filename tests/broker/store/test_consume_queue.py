# -*- test-case-name: tests.broker.store.test_consume_queue -*-
"""Units of a queue: put, read, found again, cut, expired."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any
from unittest import mock

from twisted.trial.unittest import SynchronousTestCase

from dledger.base.disk.disk import Disk, OsDisk
from dledger.rocketmq.store.queues.consume_queue import ConsumeQueue
from dledger.rocketmq.store.queues.queue_begins import begin_from
from dledger.rocketmq.store.queues.queue_files import FILLER_SIZE, UNIT, IsTorn, QueueSegments, Unit
from dledger.rocketmq.store.records.store_config import UNIT_SIZE
from dledger.testing.world.disk import SimDisk
from dledger.testing.world.memory_disk import MemoryDisk
from dledger.values.errors import DirectoryError
from tests.broker.support import QUEUE_SIZE

if TYPE_CHECKING:
    _Case = SynchronousTestCase
else:
    _Case = object  # a contract is no test case by itself

NO_END = 1 << 60


class QueueContract(_Case):
    """C{self.disk} is an empty disk, C{self.root} a path on it."""

    disk: Disk
    root: str

    def open(self, **options: Any) -> ConsumeQueue:
        """The queue as it is on the disk."""
        values = {"log_begin": 0, "log_end": NO_END, "is_trusted": False, "crashed": False,
                  "is_torn": lambda unit, before: False, **options}
        return ConsumeQueue.open(self.disk, self.root, QUEUE_SIZE, **values)  # type: ignore[arg-type]

    def units(self, queue: ConsumeQueue) -> list[tuple[int, int, int, int]]:
        """All of them."""
        return [tuple(one) for one in queue.read(queue.begin_index, 1 << 30)]

    def fill(self, queue: ConsumeQueue, count: int, first: int = 0) -> list[tuple[int, int, int, int]]:
        """Units of records of 100 bytes, two thirds of the log elsewhere."""
        put = [(index, 300 * index, 100, -index) for index in range(first, first + count)]
        for unit in put:
            self.assertTrue(queue.put(*unit))
        return put

    def test_an_empty_queue_has_no_file(self) -> None:
        """Nothing there, no file."""
        queue = self.open()
        self.assertEqual((queue.begin_index, queue.next_index, queue.log_end), (0, 0, 0))
        self.assertEqual(self.units(queue), [])
        self.assertFalse(self.disk.exists(self.root))

    def test_put_and_read(self) -> None:
        """Units can be read before and after they are written, across files."""
        queue = self.open()
        put = self.fill(queue, 17)
        self.assertEqual(self.units(queue), put)
        queue.write()
        put += self.fill(queue, 8, 17)
        self.assertEqual(self.units(queue), put)
        self.assertEqual([tuple(one) for one in queue.read(5, 14)], put[5:19])
        self.assertEqual((queue.next_index, queue.log_end), (25, 300 * 24 + 100))
        queue.write()
        self.assertEqual(self.units(self.open()), put)

    def test_a_missing_file_is_reported(self) -> None:
        """
        A power cut took the name of a file, not those after it. What is before it stays; it is reported,
        before anything changes, if units that were known to be there are after it.
        """
        path = f"{self.root}/{200:020d}"
        for log_end, has_lost in ((300 * 10, False), (300 * 20 + 1, True)):
            queue = self.open()
            put = self.fill(queue, 25)
            queue.write()
            self.disk.unlink(path)
            reported: list[bool] = []

            def losing(reported: list[bool] = reported) -> None:
                reported.append(self.disk.exists(f"{self.root}/{400:020d}"))

            queue = self.open(log_end=log_end, is_trusted=True, crashed=True, losing=losing)
            self.assertEqual((self.units(queue), queue.has_lost), (put[:10], has_lost))
            self.assertEqual(reported, [True] if has_lost else [])
            self.assertFalse(self.disk.exists(f"{self.root}/{400:020d}"))
            self.fill(queue, 15, 10)
            self.assertEqual(self.units(queue), put)
            queue.destroy()

    def test_units_have_their_bytes(self) -> None:
        """20 bytes each: offset, size, code; zeroes after the last, every file of full length."""
        queue = self.open()
        queue.put(0, 0x0102030405060708, 0x0A0B0C0D, 65)
        queue.write()
        data = self.disk.read_file(f"{self.root}/{0:020d}")
        unit = bytes.fromhex("0102030405060708" "0a0b0c0d" "0000000000000041")
        self.assertEqual(data, unit.ljust(200, b"\0"))

    def test_a_unit_put_twice_is_passed_over(self) -> None:
        """What is there already is passed over."""
        queue = self.open()
        self.fill(queue, 5)
        self.assertFalse(queue.put(4, 1200, 100, 0))
        self.assertFalse(queue.put(2, 600, 100, 0))
        self.assertFalse(queue.put(3, 5000, 100, 0))
        self.assertEqual((queue.next_index, queue.misplaced), (5, 0))

    def test_topic_made_again(self) -> None:
        """A topic that was made again counts from 0: nothing old is left, nothing new is lost."""
        for is_written in (True, False):
            queue = self.open()
            self.fill(queue, 15)
            if is_written:
                queue.write()
            for index in range(3):
                self.assertTrue(queue.put(index, 9000 + 100 * index, 100, 7))
            self.assertFalse(queue.put(0, 0, 100, 0))
            self.assertFalse(queue.put(0, 9000, 100, 7))
            self.assertFalse(queue.put(14, 4200, 100, 0))
            new = [(index, 9000 + 100 * index, 100, 7) for index in range(3)]
            self.assertEqual((self.units(queue), queue.begun_anew), (new, 1))
            queue.write()
            again = self.open(log_end=9300, is_trusted=True)
            self.assertEqual(self.units(again), new)
            again.destroy()

    def test_a_misplaced_record_is_counted(self) -> None:
        """A record that belongs further on is put at the end, and counted."""
        queue = self.open()
        self.fill(queue, 3)
        self.assertTrue(queue.put(7, 5000, 100, 1))
        self.assertEqual(self.units(queue)[-1], (3, 5000, 100, 1))
        self.assertEqual(queue.misplaced, 1)
        self.assertFalse(queue.put(7, 5000, 100, 1))
        self.assertEqual((queue.next_index, queue.misplaced), (4, 1))

    def test_begins_in_the_middle(self) -> None:
        """What is before the first unit of its file is filled, and is not a message."""
        queue = self.open()
        self.assertTrue(queue.put(23, 7000, 100, 5))
        queue.write()
        self.assertEqual((queue.begin_index, queue.next_index), (23, 24))
        data = self.disk.read_file(f"{self.root}/{400:020d}")
        filler = bytes(8) + FILLER_SIZE.to_bytes(4, "big") + bytes(8)
        self.assertEqual(data[:60], filler * 3)
        for is_trusted in (True, False):
            again = self.open(is_trusted=is_trusted, log_end=7100)
            self.assertEqual((again.begin_index, self.units(again)), (23, [(23, 7000, 100, 5)]))

    def test_a_queue_whose_records_have_expired_begins_anew(self) -> None:
        """
        The log has no record of the queue any more, and a loss of power took its last units: the next record
        keeps its own index, which is higher, or lower than that of a file that was left.
        """
        for first, last in ((0, 13), (30, 35), (30, 5)):
            queue = self.open()
            if first:
                queue.put(first, 300 * first, 100, 0)
            else:
                self.fill(queue, 12)
            queue.write()
            queue = self.open(log_begin=50_000, log_end=50_000, is_trusted=True, crashed=True)
            self.assertEqual(queue.begin_index, queue.next_index)
            self.assertTrue(queue.put(last, 60_000, 100, 7))
            self.assertTrue(queue.put(last + 1, 60_100, 100, 8))
            self.assertFalse(queue.put(last, 60_000, 100, 7))
            wanted = [(last, 60_000, 100, 7), (last + 1, 60_100, 100, 8)]
            self.assertEqual((self.units(queue), queue.misplaced, queue.begun_anew), (wanted, 0, 0))
            queue.write()
            again = self.open(log_begin=50_000, log_end=60_200, is_trusted=True, crashed=True)
            self.assertEqual(self.units(again), wanted)
            again.destroy()

    def test_torn_units_of_expired_records_hide_nothing(self) -> None:
        """
        A loss of power took the first file and the beginning of a unit, and all that is known to be on stable
        storage has expired: the queue begins anew with the first record that is left.
        """
        queue = self.open()
        put = [(index, 60_000 + 300 * index, 100, -index) for index in range(3, 16)]
        for unit in put:
            queue.put(*unit)
        queue.write()
        self.disk.unlink(f"{self.root}/{0:020d}")
        file = self.disk.open(f"{self.root}/{200:020d}")
        file.pwrite(UNIT.pack(300, 100, 0), 5 * UNIT_SIZE)
        file.close()
        queue = self.open(log_begin=1000, log_end=1000, is_trusted=True, crashed=True)
        self.assertEqual(queue.begin_index, queue.next_index)
        for unit in put:
            self.assertTrue(queue.put(*unit))
        self.assertEqual(self.units(queue), put)

    def test_units_before_a_hole_stay(self) -> None:
        """
        A loss of power took units, and left a torn one far after them that looks like one of an expired
        record: the queue ends before the hole, and all records are dispatched again.
        """
        queue = self.open()
        put = self.fill(queue, 36)
        queue.write()
        for offset, at, data in ((200, 100, bytes(100)), (400, 0, UNIT.pack(300, 100, 0).ljust(200, b"\0"))):
            file = self.disk.open(f"{self.root}/{offset:020d}")
            file.pwrite(data, at)
            file.close()
        reported: list[bool] = []
        queue = self.open(log_begin=2000, log_end=300 * 15, is_trusted=True, crashed=True,
                          losing=lambda: reported.append(True))
        self.assertEqual((self.units(queue), queue.has_lost, reported), (put[7:15], True, [True]))
        self.fill(queue, 21, 15)
        self.assertEqual(self.units(queue), put[7:])

    def test_a_place_that_was_found_before_a_cut_counts_no_more(self) -> None:
        """Other records come after a cut: where those of an offset of the log begin is looked for again."""
        queue = self.open()
        self.fill(queue, 20)
        self.assertEqual(begin_from(queue, 3000), 10)
        queue.cut(1500)
        self.assertEqual(queue.next_index, 5)
        for index in range(5, 9):
            queue.put(index, 3000 + 100 * index, 100, 0)
        self.assertEqual(begin_from(queue, 3000), 5)

    def test_a_begin_that_is_not_dispatched(self) -> None:
        """A reader asks before all records of the deleted topic are in the queue: none of them is shown."""
        queue = self.open()
        self.fill(queue, 3)
        for index in range(3, 6):
            self.assertEqual(begin_from(queue, 3000), index)
            queue.put(index, 300 * index + 300, 100, 0)
        queue.put(6, 3000, 100, 0)
        queue.put(7, 3100, 100, 0)
        self.assertEqual([begin_from(queue, 3000) for _ in range(2)], [6, 6])

    def test_a_cut_removes_later_units(self) -> None:
        """Units from there on are gone, from the disk too, and can be put again."""
        queue = self.open()
        put = self.fill(queue, 35)
        queue.write()
        for log_end, left in ((10**9, 35), (300 * 31 + 1, 32), (300 * 20, 20), (300 * 4 + 100, 5), (0, 0)):
            queue.cut(log_end)
            self.assertEqual(self.units(queue), put[:left])
            self.assertEqual(self.units(self.open()), put[:left])
        self.assertEqual(self.fill(queue, 12), self.units(queue))

    def test_units_of_the_log_are_found_again(self) -> None:
        """Only as far as the records that the log has, trusted or not."""
        queue = self.open()
        put = self.fill(queue, 35)
        queue.write()
        for log_end in (0, 1, 300 * 9, 300 * 10, 300 * 33 + 50, NO_END):
            for is_trusted in (True, False):
                disk_before = self.units(self.open())
                self.assertEqual(disk_before, put)
                left = [unit for unit in put if unit[1] < log_end]
                again = self.open(log_end=log_end, is_trusted=is_trusted)
                self.assertEqual((self.units(again), again.has_lost), (left, False))
                for unit in put[len(left) :]:
                    self.assertTrue(again.put(*unit))
                again.write()

    def test_unknown_units_of_an_earlier_process(self) -> None:
        """A start finds the end of the log among units that say that nobody knows them, wherever it is."""
        root, gone = self.root, range(5, 9)
        for end in range(1, 17):
            self.root = f"{root}{end}"
            queue = self.open()
            put = self.fill(queue, 17)
            queue.write()
            queue.close()
            file = self.disk.open(f"{self.root}/{0:020d}")
            file.pwrite(UNIT.pack(-1, FILLER_SIZE, 0) * len(gone), gone[0] * UNIT_SIZE)
            file.close()
            queue = self.open(is_trusted=True, log_end=put[end - 1][1] + 100)
            is_hidden = gone[0] <= end <= gone[-1] + 1  # the log completes the queue then
            self.assertEqual((queue.next_index, queue.has_lost), (5 if is_hidden else end, is_hidden), end)
            queue.close()

    def test_zeroes_end_it(self) -> None:
        """Untrusted, a queue ends where there is no unit, whatever is after it."""
        queue = self.open()
        put = self.fill(queue, 35)
        queue.write()
        self.disk.open(f"{self.root}/{400:020d}").pwrite(bytes(20), 60)
        again = self.open()
        self.assertEqual(self.units(again), put[:23])

    def test_last_files_alone(self) -> None:
        """Untrusted, the last three files are read unit by unit, as RocketMQ does; those before are not."""
        for at, left in ((5, 60), (29, 60), (33, 33), (45, 45)):
            queue = self.open()
            put = self.fill(queue, 60)
            queue.write()
            file = self.disk.open(f"{self.root}/{at // 10 * 200:020d}")
            file.pwrite(bytes(20), at % 10 * 20)
            file.close()
            again = self.open()
            self.assertEqual(again.next_index, left, at)
            self.assertEqual(again.read(0, 1)[0].offset, put[0][1])
            again.destroy()

    def test_files_without_records_expire(self) -> None:
        """Files go when none of their records is in the log; the last stays, and the count goes on."""
        queue = self.open()
        put = self.fill(queue, 35)
        queue.write()
        for log_begin, first, files in ((0, 0, 4), (300 * 7, 7, 4), (300 * 10 + 1, 11, 3), (10**9, 35, 1)):
            queue.expire(log_begin)
            self.assertEqual((queue.begin_index, queue.next_index), (first, 35))
            self.assertEqual(self.units(queue), put[first:])
            self.assertEqual(len(self.disk.listdir(self.root)), files)
            again = self.open(log_begin=log_begin)
            self.assertEqual((again.begin_index, again.next_index), (first, 35))
        self.assertTrue(queue.put(35, 10**10, 100, 0))
        self.assertEqual(self.units(queue), [(35, 10**10, 100, 0)])

    def test_expired_before_it_was_written(self) -> None:
        """Units that are in no file yet expire like others."""
        queue = self.open()
        self.fill(queue, 5)
        self.assertFalse(self.disk.exists(self.root))
        queue.expire(300 * 3)
        self.assertEqual((queue.begin_index, queue.next_index), (3, 5))
        self.assertEqual([index for index, *_ in self.units(queue)], [3, 4])

    def test_an_expired_queue_begins_anew(self) -> None:
        """An empty queue whose records are all gone begins wherever its next record says."""
        queue = self.open()
        self.fill(queue, 3)
        queue.cut(0)
        self.assertTrue(queue.put(45, 7000, 100, 0))
        queue.write()
        self.assertEqual((queue.begin_index, queue.misplaced), (45, 0))
        self.assertEqual(self.disk.listdir(self.root), [f"{800:020d}"])

    def test_made_again_at_once(self) -> None:
        """The first record of a topic that was made again may be the next one in the log."""
        queue = self.open()
        put = self.fill(queue, 3)
        end = put[-1][1] + put[-1][2]
        self.assertFalse(queue.put(0, end - 1, 100, 0))
        self.assertTrue(queue.put(0, end, 100, 7))
        self.assertEqual((self.units(queue), queue.begun_anew), ([(0, end, 100, 7)], 1))

    def test_a_flush_gets_each_file_once(self) -> None:
        """What was put is handed out once, the directory with it."""
        queue = self.open()
        self.assertTrue(queue.is_clean)
        self.fill(queue, 25)
        self.assertFalse(queue.is_clean)
        files, paths, directory = queue.take_dirty()
        self.assertEqual((len(files), paths, directory), (3, [], self.root))
        self.assertFalse(queue.is_clean)
        queue.release()
        self.assertTrue(queue.is_clean)
        self.assertEqual(queue.take_dirty(), ([], [], ""))
        queue.put(25, 9000, 10, 0)
        self.assertTrue(queue.shed())
        self.assertFalse(queue.is_clean)
        files, paths, directory = queue.take_dirty()
        self.assertEqual((files, len(paths), directory), ([], 1, ""))
        self.assertTrue(queue.is_clean)

    def test_a_destroyed_queue_leaves_no_file(self) -> None:
        """No file is left."""
        queue = self.open()
        self.fill(queue, 25)
        queue.write()
        queue.destroy()
        self.assertEqual((queue.next_index, queue.log_end, self.disk.listdir(self.root)), (0, 0, []))

    def test_gap_between_files(self) -> None:
        """What is before the gap stays; the rest is dispatched again."""
        queue = self.open()
        self.fill(queue, 35)
        queue.write()
        queue.close()
        self.disk.unlink(f"{self.root}/{200:020d}")
        again = self.open()
        self.assertEqual((again.next_index, again.log_end, again.has_lost), (10, 2800, True))

    def test_other_file_size(self) -> None:
        """Refused, and nothing is touched."""
        queue = self.open()
        self.fill(queue, 35)
        queue.write()
        for size in (100, 400):
            with self.assertRaises(DirectoryError):
                ConsumeQueue.open(self.disk, self.root, size, log_begin=0, log_end=NO_END, is_trusted=False,
                                  crashed=False, is_torn=lambda unit, before: False)
        self.assertEqual(self.open().next_index, 35)


class TornTests(SynchronousTestCase):
    """The last units at a start after a crash."""

    def reopened(self, judge: IsTorn, *, crashed: bool = True, last: bytes = b"") -> ConsumeQueue:
        """A queue of five units, of which C{last} overwrites the last ones, after a restart."""
        disk = MemoryDisk()
        options: dict[str, Any] = {"log_begin": 0, "log_end": 1500, "is_trusted": True, "crashed": crashed,
                                   "is_torn": judge}
        queue = ConsumeQueue.open(disk, "queue", QUEUE_SIZE, **options)
        for index in range(5):
            queue.put(index, 300 * index, 100, 7)
        queue.write()
        disk.open(f"queue/{0:020d}").pwrite(last, 5 * UNIT_SIZE - len(last))
        return ConsumeQueue.open(disk, "queue", QUEUE_SIZE, **options)

    def test_torn_units_are_dropped(self) -> None:
        """From the end on, until one is not torn; each is judged beside the unit before it."""
        asked: list[tuple[Unit, int]] = []

        def judge(unit: Unit, before: int) -> bool:
            asked.append((unit, before))
            return unit.queue_offset > 2

        self.assertEqual(self.reopened(judge).next_index, 3)
        self.assertEqual(asked, [
            (Unit(4, 1200, 100, 7), 900), (Unit(3, 900, 100, 7), 600), (Unit(2, 600, 100, 7), 300),
        ])

    def test_all_units_may_be_dropped(self) -> None:
        """The first unit has none before it."""
        befores: list[int] = []
        queue = self.reopened(lambda unit, before: befores.append(before) is None)
        self.assertEqual((queue.next_index, befores), (0, [900, 600, 300, 0, -1]))

    def test_only_after_a_crash(self) -> None:
        """An orderly stop leaves whole units."""
        self.assertEqual(self.reopened(lambda unit, before: True, crashed=False).next_index, 5)

    def test_behind_a_torn_one(self) -> None:
        """Units that are none, or of records that were not dispatched, go with it; a torn filler, too."""
        for unit in ((1200, 0, 7), (1500, 100, 7), (12, FILLER_SIZE, 0)):
            torn = UNIT.pack(*unit) + UNIT.pack(1, 100, 7)
            queue = self.reopened(lambda unit, before: unit.offset == 1, last=torn)
            self.assertEqual(queue.next_index, 3, unit)
        filler = UNIT.pack(0, FILLER_SIZE, 0) + UNIT.pack(1, 100, 7)
        befores: list[int] = []
        queue = self.reopened(lambda unit, before: befores.append(before) is None, last=filler)
        self.assertEqual((queue.next_index, befores), (4, [-1]))


class OnRealFiles(QueueContract, SynchronousTestCase):
    """Files of the operating system."""

    def setUp(self) -> None:
        self.disk = OsDisk()
        self.root = self.mktemp()


class InMemory(QueueContract, SynchronousTestCase):
    """Files in memory."""

    def setUp(self) -> None:
        self.disk = MemoryDisk()
        self.root = "q"


class OnSimulatedDisk(QueueContract, SynchronousTestCase):
    """The disk of the simulator."""

    def setUp(self) -> None:
        self.disk = SimDisk(random.Random(1))
        self.root = "q"

    def test_no_room_for_what_is_before_the_first_unit(self) -> None:
        """A queue that begins in the middle of a file is written when there is room, fillers first."""
        queue = self.open()
        queue.put(23, 7000, 100, 5)
        for _ in range(2):
            with mock.patch.object(QueueSegments, "pwrite", side_effect=OSError(28, "no room")):
                self.assertRaises(OSError, queue.write)
        queue.write()
        again = self.open(log_end=7100)
        self.assertEqual((again.begin_index, self.units(again)), (23, [(23, 7000, 100, 5)]))

    def test_no_room_for_a_file(self) -> None:
        """One that could not get its length is not there: what is written later is found again."""
        queue = self.open()
        put = self.fill(queue, 9)
        queue.write()
        put += self.fill(queue, 4, 9)
        disk = self.disk
        assert isinstance(disk, SimDisk)
        disk.set_full(True)
        self.assertRaises(OSError, queue.write)
        self.assertEqual(len(disk.listdir(self.root)), 1)
        disk.set_full(False)
        queue.write()
        self.assertEqual(self.units(self.open(crashed=True)), put)

    def test_an_unreadable_file_behind_a_gap(self) -> None:
        """A power cut took a file, and the disk cannot read the next one: all is dispatched again."""
        queue = self.open()
        put = self.fill(queue, 35)
        queue.write()
        queue.close()
        disk = self.disk
        assert isinstance(disk, SimDisk)
        disk.unlink(f"{self.root}/{200:020d}")
        disk.unlink(f"{self.root}/{600:020d}")
        disk.spoil(f"{self.root}/{400:020d}", 0)
        again = self.open()
        self.assertEqual((self.units(again), again.has_lost), (put[:10], True))


class KilledTests(SynchronousTestCase):
    """A cut of a queue, after which the process is killed."""

    def test_cut_units_stay_cut(self) -> None:
        """The flush of the next process makes it durable: no power cut brings units back."""
        disk = SimDisk(random.Random(1))
        options: dict[str, Any] = {"log_begin": 0, "log_end": 1500, "is_trusted": True,
                                   "is_torn": lambda unit, before: False}
        queue = ConsumeQueue.open(disk, "queue", QUEUE_SIZE, crashed=False, **options)
        for index in range(15):
            queue.put(index, 100 * index, 100, 7)
        self.flush(queue, disk)
        queue.cut(300)
        disk.end_process()
        path = f"queue/{0:020d}"
        self.assertFalse(disk.is_durable(path, 0, QUEUE_SIZE))
        self.flush(ConsumeQueue.open(disk, "queue", QUEUE_SIZE, crashed=True, **options), disk)
        self.assertTrue(disk.is_durable(path, 0, QUEUE_SIZE))
        disk.lose_power()
        again = ConsumeQueue.open(disk, "queue", QUEUE_SIZE, crashed=False, **options)
        self.assertEqual((again.next_index, disk.listdir("queue")), (3, [f"{0:020d}"]))

    def flush(self, queue: ConsumeQueue, disk: SimDisk) -> None:
        """As a store does it."""
        files, paths, directory = queue.take_dirty()
        for file in (*files, *map(disk.open, paths)):
            file.datasync()
        if directory:
            disk.sync_directory(directory)
        queue.release()
