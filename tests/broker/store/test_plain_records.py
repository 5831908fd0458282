# -*- test-case-name: tests.broker.store.test_plain_records -*-
"""The short road into the log makes the bytes of the long one."""

from __future__ import annotations

import random

from twisted.trial.unittest import SynchronousTestCase

from dledger.base.disk.memory_disk import MemoryDisk
from dledger.broker.store.plain_records import PlainForm, PlainMessage
from dledger.broker.store.records import NewMessage
from protocols.wire.rocketmq.message import Host, encode_properties
from tests.broker.support import HOST, LOG_SIZE, log_bytes, message, messages_in, open_log


class PlainRecordsTests(SynchronousTestCase):
    """Two logs, to which the same is appended."""

    def setUp(self) -> None:
        self.long, self.short = open_log(MemoryDisk()), open_log(MemoryDisk())
        self.rng = random.Random(3)
        v6 = Host.of("2001:db8::1", 7)
        self.likes = [
            message(topic=topic, born_host=born, store_host=store, flag=flag, sys_flag=sys_flag)
            for topic in ("T1", "T" * 127, "T" * 128)
            for born, store, flag, sys_flag in (
                (HOST, HOST, 0, 0), (v6, HOST, 7, 1), (HOST, v6, -1, 0x30), (v6, v6, 2, 2),
            )
        ]  # fmt: skip
        self.forms = [PlainForm(one) for one in self.likes]

    def some(self) -> tuple[NewMessage, PlainMessage]:
        """The same message for both roads."""
        at = self.rng.randrange(len(self.likes))
        like, form = self.likes[at], self.forms[at]
        tags = {"TAGS": "A" * self.rng.randrange(1, 9)}
        properties = encode_properties(tags if self.rng.random() < 0.7 else {})
        body = self.rng.randbytes(self.rng.choice([0, 1, 50, 300, 900]))
        queue_id, born = self.rng.randrange(3), self.rng.randrange(2**40)
        new = NewMessage(
            topic=like.topic, queue_id=queue_id, body=body, properties_data=properties, flag=like.flag,
            sys_flag=like.sys_flag, born_timestamp=born, born_host=like.born_host, store_host=like.store_host,
        )  # fmt: skip
        return new, PlainMessage(form, queue_id, born, properties, body)

    def test_same_bytes(self) -> None:
        """Over many files, in appends of any size; places and offsets are the same."""
        for now_ms in range(60):
            both = [self.some() for _ in range(self.rng.randrange(1, 12))]
            stored = self.long.append([(new,) for new, _ in both], now_ms)
            placed = self.short.append_plain([plain for _, plain in both], now_ms)
            self.assertEqual(placed.offsets, [one.offset for (one,) in stored])
            self.assertEqual(placed.queue_offsets, [one.queue_offset for (one,) in stored])
            self.assertEqual((placed.end, placed.store_timestamp), (self.long.end_offset, now_ms))
        self.assertEqual(log_bytes(self.short), log_bytes(self.long))
        self.assertEqual(self.short.queue_offsets, self.long.queue_offsets)
        self.assertGreater(self.short.end_offset, 20 * LOG_SIZE)
        self.assertEqual(messages_in(self.short), messages_in(self.long))

    def test_ends_of_files(self) -> None:
        """A record with exactly so much room behind it as a blank needs, one byte less, and one more."""
        form, like = self.forms[0], self.likes[0]
        for left in (7, 8, 9):
            long, short = open_log(MemoryDisk()), open_log(MemoryDisk())
            size = LOG_SIZE - 2 * form.overhead - left
            for body in (b"", b"x" * size, b"y"):
                new = message(body, topic=like.topic, properties={})
                long.append([(new,)], 5)
                short.append_plain([PlainMessage(form, 0, new.born_timestamp, b"", body)], 5)
            self.assertEqual(log_bytes(short), log_bytes(long), left)
