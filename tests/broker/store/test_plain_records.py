# -*- test-case-name: tests.broker.store.test_plain_records -*-
"""Messages are laid out as the readable codec would, file by file."""

from __future__ import annotations

import random
from collections.abc import Sequence

from twisted.trial.unittest import SynchronousTestCase

from dledger.rocketmq.store.records.plain_records import PlainForm, PlainMessage
from dledger.rocketmq.store.records.records import NewMessage
from dledger.testing.world.memory_disk import MemoryDisk
from protocols.wire.rocketmq.message import Host, encode_message, encode_properties
from tests.broker.support import HOST, LOG_SIZE, log_bytes, message, messages_in, open_log, plain, twin_of


class Slow:
    """
    A log in memory, one message after the other by the readable codec.

    @ivar offsets, places: of every message, in the log and in its queue.
    """

    def __init__(self) -> None:
        self.data = b""
        self.queues: dict[tuple[str, int], int] = {}
        self.offsets: list[int] = []
        self.places: list[int] = []

    def append(self, batches: Sequence[Sequence[NewMessage]], now_ms: int) -> None:
        """A batch is not split: what is left of a file that has no room for all of it is a blank."""
        for batch in batches:
            size = sum(twin_of(new, offset=0, queue_offset=0, now_ms=0).size for new in batch)
            room = LOG_SIZE - len(self.data) % LOG_SIZE
            if size + 8 > room:
                self.data += (room.to_bytes(4, "big") + bytes.fromhex("cbd43194")).ljust(room, b"\0")
            for new in batch:
                self._store(new, now_ms)

    def _store(self, new: NewMessage, now_ms: int) -> None:
        key = (new.topic, new.queue_id)
        place = self.queues.get(key, 0) if new.is_queued else 0
        if new.is_queued:
            self.queues[key] = place + 1
        self.offsets.append(len(self.data))
        self.places.append(place)
        self.data += encode_message(twin_of(new, offset=len(self.data), queue_offset=place, now_ms=now_ms))


class PlainRecordsTests(SynchronousTestCase):
    """A log, and its slow twin."""

    def setUp(self) -> None:
        self.log, self.slow = open_log(MemoryDisk()), Slow()
        self.rng = random.Random(3)
        v6 = Host.of("2001:db8::1", 7)
        self.likes = [
            message(topic=topic, born_host=born, store_host=store, flag=flag, sys_flag=sys_flag)
            for topic in ("T1", "T" * 127, "T" * 128)
            for born, store, flag, sys_flag in (
                (HOST, HOST, 0, 0), (v6, HOST, 7, 1), (HOST, v6, -1, 0x30), (v6, v6, 2, 2),
            )
        ]
        self.forms = [PlainForm(one) for one in self.likes]

    def some(self) -> tuple[NewMessage, PlainMessage]:
        """The same message for both."""
        at = self.rng.randrange(len(self.likes))
        like, form = self.likes[at], self.forms[at]
        tags = {"TAGS": "A" * self.rng.randrange(1, 9)}
        properties = encode_properties(tags if self.rng.random() < 0.7 else {})
        body = self.rng.randbytes(self.rng.choice([0, 1, 50, 300, 900]))
        queue_id, born = self.rng.randrange(3), self.rng.randrange(2**40)
        new = NewMessage(
            topic=like.topic, queue_id=queue_id, body=body, properties_data=properties, flag=like.flag,
            sys_flag=like.sys_flag, born_timestamp=born, born_host=like.born_host, store_host=like.store_host,
        )
        return new, PlainMessage(form, queue_id, born, properties, body)

    def same(self) -> None:
        """Their bytes, and the next places in all queues."""
        self.assertEqual(log_bytes(self.log), self.slow.data)
        self.assertEqual(self.log.queue_offsets, self.slow.queues)
        self.assertGreater(self.log.end_offset, 20 * LOG_SIZE)
        self.assertEqual(len(messages_in(self.log)), len(self.slow.offsets))

    def test_numbers_without_room(self) -> None:
        """A number of a message that its record cannot hold is refused before anything is laid out."""
        for name in ("flag", "sys_flag", "reconsume_times"):
            for number in (2**31, -(2**31) - 1):
                error = self.assertRaises(ValueError, plain, [message(**{name: number})])
                self.assertIn(f"{name}={number} is outside", str(error))

    def test_both_ways_write_the_same_bytes(self) -> None:
        """Over many files, in appends of any size; places and offsets are the same."""
        for now_ms in range(60):
            both = [self.some() for _ in range(self.rng.randrange(1, 12))]
            before = len(self.slow.offsets)
            self.slow.append([(new,) for new, _ in both], now_ms)
            placed = self.log.append_plain([plain for _, plain in both], now_ms)
            self.assertEqual(placed.offsets, self.slow.offsets[before:])
            self.assertEqual(placed.queue_offsets, self.slow.places[before:])
            self.assertEqual((placed.end, placed.store_timestamp), (len(self.slow.data), now_ms))
        self.same()

    def any_message(self) -> NewMessage:
        """With everything that a message may have, transactions and times of trying among it."""
        new, _ = self.some()
        return message(
            new.body[:200], topic=new.topic, queue_id=new.queue_id, sys_flag=self.rng.choice([0, 4, 8, 12]),
            reconsume_times=self.rng.randrange(3), prepared_transaction_offset=self.rng.randrange(3),
            born_host=new.born_host,
        )

    def test_a_batch_is_not_split(self) -> None:
        """No batch is split, however much room is left; each message of it has its own form."""
        for now_ms in range(100):
            batches = [
                [self.any_message() for _ in range(self.rng.choice((1, 1, 2, 5)))]
                for _ in range(self.rng.randrange(1, 5))
            ]
            self.slow.append(batches, now_ms)
            if now_ms % 2:
                self.log.append_plain(plain(*batches), now_ms)
            else:
                before = len(self.slow.offsets) - sum(map(len, batches))
                placed = self.log.append(batches, now_ms)
                self.assertEqual(placed.offsets, self.slow.offsets[before:])
                self.assertEqual(placed.queue_offsets, self.slow.places[before:])
        self.same()

    def test_ends_of_files(self) -> None:
        """A record with exactly the room after it that a blank needs, one byte less, and one more."""
        form, like = self.forms[0], self.likes[0]
        for left in (7, 8, 9):
            log, slow = open_log(MemoryDisk()), Slow()
            size = LOG_SIZE - 2 * form.overhead - left
            for body in (b"", b"x" * size, b"y"):
                new = message(body, topic=like.topic, properties={})
                slow.append([(new,)], 5)
                log.append_plain([PlainMessage(form, 0, new.born_timestamp, b"", body)], 5)
            self.assertEqual(log_bytes(log), slow.data, left)
