# -*- test-case-name: tests.broker.store.test_unit_mending -*-
"""Units of consume queues that the disk cannot read are made again from the log."""

from __future__ import annotations

import errno
import random

from twisted.logger import capturedLogs
from twisted.trial.unittest import SynchronousTestCase

from dledger.rocketmq.store.queries import GetStatus, get_messages, offset_at
from dledger.rocketmq.store.queues import queue_units, unit_mending
from dledger.rocketmq.store.queues.consume_queue import ConsumeQueue
from dledger.rocketmq.store.queues.unit_mending import PAUSE_S
from dledger.rocketmq.store.records.store_config import UNIT_SIZE
from dledger.testing.world.disk import SimDisk
from protocols.wire.rocketmq.message import decode_message
from tests.broker.support import Opened, message, plain

FILE = 400 * UNIT_SIZE
PATH = f"base/consumequeue/T1/0/{0:020d}"
SECOND = f"base/consumequeue/T1/0/{FILE:020d}"
BLOCK = 4096 // UNIT_SIZE


class UnitMendingTests(SynchronousTestCase):
    """A store with a queue of two files and a half, and others."""

    def setUp(self) -> None:
        """Messages of two queues."""
        self.disk = SimDisk(random.Random(1))
        self.open()
        for number in range(1000):
            body = b"%d" % number
            self.opened.store.append_plain(
                plain([message(body), message(body, topic="T2"), message(body, queue_id=1)]), 10_000 + number
            )
        self.opened.settle()
        self.opened.store.queues.write()
        self.units = self.opened.units()["T1", 0]

    def open(self) -> None:
        """The store, started and caught up."""
        self.opened = Opened(
            self.disk, mapped_file_size_consume_queue=FILE, mapped_file_size_commit_log=1 << 20,
            message_index_enable=False,
        )
        self.opened.settle()
        self.successResultOf(self.opened.started)

    def tearDown(self) -> None:
        """Nothing has ended the store."""
        self.assertEqual(self.opened.failures, [])
        self.opened.store.abandon()

    def queue(self) -> ConsumeQueue:
        """The queue of which some is spoilt."""
        found = self.opened.store.queues.get("T1", 0)
        assert found is not None
        return found

    def consumed(self) -> list[bytes]:
        """The bodies of the queue's messages, as a consumer gets them."""
        at, found = 0, list[bytes]()
        while True:
            got = get_messages(self.opened.store, "T1", 0, at, is_slave=False)
            if got.status not in (GetStatus.FOUND, GetStatus.MESSAGE_WAS_REMOVING):
                self.assertIs(got.status, GetStatus.OFFSET_OVERFLOW_ONE)
                return found
            found += [decode_message(record).body for record in got.records]
            at = got.next_offset

    def all_bodies(self) -> list[bytes]:
        """What was sent."""
        return [b"%d" % number for number in range(1000)]

    def test_consumers_get_all(self) -> None:
        """Wherever the sectors are, also at the end; and the disk has them again afterwards."""
        for path, at, size in (
            (PATH, 3000, 1), (PATH, 0, 1), (PATH, FILE - 1, 1), (SECOND, 0, 5000), (PATH, 512, 5 * 512),
            (f"base/consumequeue/T1/0/{2 * FILE:020d}", 199 * UNIT_SIZE, 1),
        ):
            self.disk.spoil(path, at, size)
            with capturedLogs() as events:
                self.assertEqual(self.consumed(), self.all_bodies())
            reported = [event for event in events if "cannot read units" in event["log_format"]]
            self.assertEqual([event["gone"] for event in reported], [0] * len(reported))
            self.assertTrue(reported)
            self.assertEqual(self.opened.units()["T1", 0], self.units)
            self.assertFalse(self.disk._inode(path).bad)
            self.assertEqual(self.queue().mended, {})
            self.opened.store.checkpoint()
            self.assertTrue(self.disk.is_durable(path, 0, FILE))

    def test_units_of_both_queues_are_mended(self) -> None:
        """Files of several queues, read in between by time."""
        self.disk.spoil(PATH, 0, FILE)
        self.disk.spoil(PATH.replace("T1", "T2"), 0, FILE)
        for topic in ("T1", "T2"):
            self.assertEqual(offset_at(self.opened.store, topic, 0, 10_321), 321)
        self.assertEqual(self.consumed(), self.all_bodies())

    def test_sector_that_stays_bad(self) -> None:
        """Units that cannot be written are served from memory, until there are too many of them."""
        self.disk.spoil(PATH, 3000)
        self.disk.spoil(SECOND, 3000)
        queue = self.queue()

        def no_room(index: int, units: bytes) -> bool:
            raise OSError(errno.EIO, "Input/output error")

        self.patch(queue, "rewrite", no_room)
        self.assertEqual(self.consumed(), self.all_bodies())
        self.assertEqual(len(queue.mended), 2 * (BLOCK + 1))
        queue.mended.clear()
        self.patch(unit_mending, "KEPT_MAX", 300)
        self.assertEqual(self.consumed(), self.all_bodies())
        self.assertEqual(len(queue.mended), BLOCK + 1)
        queue.expire(self.units[450][1])
        self.assertEqual((queue.begin_index, sorted(queue.mended)[0]), (450, 450))
        queue.cut(self.units[460][1])
        self.assertEqual((queue.next_index, sorted(queue.mended)[-1]), (460, 459))

    def test_a_long_way_fails_the_read(self) -> None:
        """If the way through the log is long, the read fails until it has been gone; none is passed over."""
        self.patch(unit_mending, "SLICE_BYTES", 1000)
        self.disk.spoil(PATH, 4096)
        got = get_messages(self.opened.store, "T1", 0, BLOCK - 10, is_slave=False)
        self.assertEqual((len(got.records), got.next_offset), (10, BLOCK))
        self.assertEqual(self.opened.store.unit_mending.waiting, 1)
        queue = self.queue()
        caught = self.assertRaises(OSError, queue.read, BLOCK, 1)
        self.assertEqual(caught.errno, errno.EIO)
        for _ in range(1000):
            self.opened.clock.advance(PAUSE_S)
        self.assertEqual(self.opened.store.unit_mending.waiting, 0)
        self.assertEqual(self.opened.units()["T1", 0], self.units)

    def test_log_is_cut_meanwhile(self) -> None:
        """Units that were being made are forgotten; a read of them begins again, and has all."""
        self.patch(unit_mending, "SLICE_BYTES", 1000)
        self.disk.spoil(PATH, 4096)
        get_messages(self.opened.store, "T1", 0, BLOCK - 10, is_slave=False)
        before = len(self.opened.clock.getDelayedCalls())
        self.opened.store.unit_mending.drop()
        self.assertEqual(self.opened.store.unit_mending.waiting, 0)
        self.assertEqual(len(self.opened.clock.getDelayedCalls()), before - 1)
        self.assertRaises(OSError, self.queue().read, BLOCK, 1)
        for _ in range(1000):
            self.opened.clock.advance(PAUSE_S)
        self.assertEqual(self.opened.units()["T1", 0], self.units)

    def test_a_start_finds_all_units(self) -> None:
        """A start finds all messages again, in order or after a crash; and the next ones follow."""
        third = f"base/consumequeue/T1/0/{2 * FILE:020d}"
        for path, at in ((PATH, 4000), (SECOND, 4096), (third, 199 * UNIT_SIZE), (third, 0), (PATH, 0)):
            for is_clean in (True, False):
                if is_clean:
                    self.opened.close()
                else:
                    self.opened.store.abandon()
                self.disk.spoil(path, at)
                self.open()
                self.assertEqual(self.consumed(), self.all_bodies(), (path, at, is_clean))
                self.assertEqual(self.opened.units()["T1", 0], self.units)
                self.assertEqual(self.opened.store.log.queue_offsets["T1", 0], 1000)

    def test_start_with_many_bad_sectors(self) -> None:
        """Also if no readable unit is near the middle."""
        self.patch(queue_units, "_STRETCHES_MAX", 1)
        self.opened.store.abandon()
        self.disk.spoil(SECOND, 0, FILE)
        self.open()
        self.assertTrue(self.opened.store.queues.has_lost)
        self.assertEqual(self.consumed(), self.all_bodies())

    def test_unreadable_units_do_not_expire_others(self) -> None:
        """Units that cannot be read do not let others go that have their messages still."""
        queue = self.queue()
        queue.mend = None
        for path in (PATH, SECOND):
            self.disk.spoil(path, 0, FILE)
            queue.expire(self.units[0][1])
            self.assertEqual(queue.begin_index, 0)
        queue.expire(self.units[900][1])
        self.assertLessEqual(queue.begin_index, 900)

    def test_a_damaged_log_mends_the_rest(self) -> None:
        """Where the log is damaged, too, what can be found is served, and the rest passed over."""
        start = self.units[300][1]
        log = f"base/commitlog/{0:020d}"
        self.disk.overwrite(log, start, b"\x00\xff" * 4)
        self.disk.spoil(PATH, 4096)
        lost = range(4096 // UNIT_SIZE, FILE // UNIT_SIZE)
        self.assertIn(300, lost)
        found = self.consumed()
        self.assertNotIn(b"300", found)
        self.assertEqual(found[:300], self.all_bodies()[:300])
        self.assertEqual(found[-600:], self.all_bodies()[400:])

    def spoil_both(self) -> bytes:
        """A record cannot be read, and the units around its own cannot, either. @return: its first bytes."""
        start, log = self.units[300][1], f"base/commitlog/{0:020d}"
        before = self.disk.cached_content(log)[start : start + 8]
        self.disk.overwrite(log, start, b"\x00\xff" * 4)
        self.disk.spoil(PATH, 4096)
        self.assertNotIn(b"300", self.consumed())
        return before

    def test_what_a_log_lacks_is_made_later(self) -> None:
        """No filler is written beside units that are found: all are made again when the log is sound."""
        sound = self.spoil_both()
        self.assertTrue(self.disk.is_bad(PATH, 4096))
        self.opened.store.abandon()
        self.disk.overwrite(f"base/commitlog/{0:020d}", self.units[300][1], sound)
        self.open()
        self.assertEqual(self.consumed(), self.all_bodies())
        self.assertFalse(self.disk.is_bad(PATH, 4096))
        self.assertEqual(self.opened.units()["T1", 0], self.units)

    def test_unknown_units_mislead_no_search(self) -> None:
        """A search by halves passes over them; one that would end among them fails."""
        self.spoil_both()
        queue = self.queue()
        offsets = [unit[1] for unit in self.units]
        for index in (100, 250, 401, 500, 999):
            self.assertEqual(queue.first_from(offsets[index]), index)
        self.assertEqual(queue.first_from(offsets[999] + 1), 1000)
        self.assertEqual(self.assertRaises(OSError, queue.first_from, offsets[350]).errno, errno.EIO)
        self.assertEqual(self.assertRaises(OSError, queue.cut, offsets[350]).errno, errno.EIO)
        queue.cut(offsets[250])
        self.assertEqual(queue.next_index, 250)
