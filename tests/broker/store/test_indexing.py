# -*- test-case-name: tests.broker.store.test_indexing -*-
"""Keys find their way into the index, after the dispatch."""

from __future__ import annotations

import random
from typing import Any

from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from dledger.base.disk.hints import Hints
from dledger.rocketmq.store.index.indexing import (
    BEHIND_BYTES_MAX,
    BUSY_BYTES,
    DELAY_S,
    SCARCE_S,
    SLICE_BYTES,
    SLICE_BYTES_MAX,
    KeyIndexing,
    keys_of,
)
from dledger.rocketmq.store.index.key_index import KeyIndex
from dledger.rocketmq.store.records.key_hash import hash_of_key
from dledger.testing.world.memory_disk import MemoryDisk
from protocols.wire.rocketmq.message import Host, Message
from tests.broker.support import HOST, NewMessage, Opened, config_of, message, messages_in, open_log

Found = list[tuple[int, int]]
#: Unique keys of the usual size, and nearly so.
USUAL_PARTS = (
    b"UNIQ_KEY\x017F000001ABCD18B4AAC20000%08d", b"UNIQ_KEY\x017F000001ABCD18B4AAC20000%08d+",
    b"UNIQ_KEY\x017F000001ABCD18B4AAC20000%07d",
)
#: Parts of properties, sound and not.
PARTS = (
    *USUAL_PARTS, b"KEYS\x01order-%d", b"KEYS\x01a b%d  c", b"KEYS\x01 ",
    b"KEYS\x01",
    b"UNIQ_KEY\x01short%d", b"XUNIQ_KEY\x01no%d", b"TAGS\x01UNIQ_KEY", b"UNIQ_KEY\x01",
    "KEYS\x01größe%d".encode(), b"MYKEYS\x01no%d", b"UNIQ_KEY\x01two words%d",
)


def keyed(rng: random.Random) -> NewMessage:
    """Any message, with keys or without."""
    parts = [part % rng.randrange(50) if b"%" in part else part
             for part in rng.sample(PARTS, rng.choice((0, 1, 2, 3)))]
    text = b"\x02".join(parts) + b"\x02" * rng.randrange(2)
    host = Host.of("2001:db8::1", 7) if rng.random() < 0.2 else HOST
    return message(
        rng.randbytes(rng.choice((0, 50, 900))) + b"KEYS\x01body\x02",
        topic=rng.choice(("T1", "Tü", "T" * 130)), properties_data=text,
        sys_flag=rng.choice((0, 0, 0, 4, 8, 12)), born_host=host,
    )


def expected_of(messages: list[Message]) -> Found:
    """Hash and offset of each key, in order, by the readable codec."""
    found = []
    for one in messages:
        if one.transaction == "rollback":
            continue
        words = [word for word in one.properties.get("KEYS", "").split(" ") if word]
        unique = one.properties.get("UNIQ_KEY")
        for key in words if unique is None else [unique, *words]:
            found.append((hash_of_key(one.topic, key), one.physical_offset))
    return found


def entries_of(index: KeyIndex) -> Found:
    """Hash and offset of each entry, in order."""
    return [(entry.key_hash, entry.offset) for file in index.files
            for entry in map(file.entry, range(1, file.header.index_count))]


class SliceTests(SynchronousTestCase):
    """The work."""

    def setUp(self) -> None:
        self.disk = MemoryDisk()
        self.log = open_log(self.disk)

    def indexing(self, root: str) -> KeyIndexing:
        """With an empty index."""
        index = KeyIndex.open(
            config_of(root, max_index_num=100), Hints(self.disk), self.log, log_end=0, crashed=False,
            timestamp=0,
        )
        return KeyIndexing(index, self.log, clock=Clock())

    def test_records_of_any_kind_are_indexed(self) -> None:
        """Of any kind, in slices of any size: the keys that the readable codec finds."""
        rng = random.Random(1)
        for number in range(300):
            self.log.append([[keyed(rng)]], 1_000 + number)
        expected = expected_of(messages_in(self.log))
        self.assertGreater(len(expected), 150)
        for size in (1, 1000, 1_000_000):
            made = self.indexing(f"base{size}")
            while made.index.offset < self.log.record_end:
                made.step(self.log.record_end, size)
                made.index.write()
            self.assertEqual(entries_of(made.index), expected)
            self.assertEqual(made.index.last_put[0], made.index.files[-1].header.end_timestamp)

    def test_usual_keys_are_recognised(self) -> None:
        """Keys that producers make are seen again in part, and keys that are nearly like them follow."""
        rng = random.Random(2)
        ends = (b"", b"\x02", b"\x02WAIT\x01true\x02", b"\x02UNIQ_KEY\x01other", b"\x02KEYS\x01abcd\x02")
        for number in range(600):
            one = rng.choice(USUAL_PARTS[:1] * 4 + USUAL_PARTS) % rng.randrange(4) + rng.choice(ends)
            self.log.append([[message(topic=rng.choice(("T1", "T2", "Tü")), properties_data=one)]], number)
        two_values = USUAL_PARTS[0] % 1 + b"\x01-"
        made = self.indexing("base1")
        calls = []
        of = made._hashes.of
        self.patch(made._hashes, "of", lambda topic, key: calls.append(key) or of(topic, key))
        made.step(self.log.record_end, self.log.file_size)
        while made.index.offset < self.log.record_end:
            made.step(self.log.record_end, self.log.file_size)
        expected = expected_of(messages_in(self.log))
        self.assertEqual(entries_of(made.index), expected)
        self.assertGreater(len(expected) - len(calls), 100)  # those were known
        self.log.append([[message(topic="T1", properties_data=two_values)]], 1_000)
        made.step(self.log.record_end, self.log.file_size)
        self.assertEqual(entries_of(made.index), expected)  # as 4.9

    def test_records_without_keys_make_no_file(self) -> None:
        """Records without a key make no file."""
        for _ in range(10):
            self.log.append([[message(properties={"TAGS": "A"})]], 1)
        made = self.indexing("base1")
        made.step(self.log.record_end, SLICE_BYTES)
        self.assertEqual(made.index.offset, self.log.record_end)
        self.assertEqual(made.index.files, [])

    def test_keys_are_split_like_java(self) -> None:
        """As Java splits them."""
        self.assertEqual(keys_of(b"KEYS\x01a b  c \x02UNIQ_KEY\x01u"), [b"u", b"a", b"b", b"c"])
        self.assertEqual(list(keys_of(b"")), [])
        self.assertEqual(list(keys_of(b"KEYS\x01a\x01b")), [])  # as 4.9
        self.assertEqual(keys_of(b"KEYS\x01a\x02KEYS\x01b"), [b"b"])


class Dispatch:
    """A dispatch with given answers."""

    offset = 0
    behind_bytes = 0


class PaceTests(SynchronousTestCase):
    """When slices are taken."""

    def setUp(self) -> None:
        self.disk, self.clock, self.ahead = MemoryDisk(), Clock(), Dispatch()
        self.log = open_log(self.disk)
        index = KeyIndex.open(config_of(), Hints(self.disk), self.log, log_end=0, crashed=False, timestamp=0)
        self.made = KeyIndexing(index, self.log, clock=self.clock)
        self.steps: list[int] = []
        self.error: Exception | None = None
        self.patch(self.made, "step", self.step)

    def step(self, bound: int, bytes_max: int) -> None:
        """Remember; go on by a KiB."""
        self.steps.append(bytes_max)
        if self.error is not None:
            raise self.error
        self.made.index.offset = min(self.made.index.offset + 1024, bound)

    def test_slices_come_after_the_dispatch(self) -> None:
        """A while after the dispatch, then slice after slice."""
        self.made.start(self.ahead)
        self.clock.advance(1)
        self.assertEqual(self.steps, [])
        self.ahead.offset = 3000
        self.made.wake()
        self.made.wake()
        self.clock.advance(DELAY_S * 0.9)
        self.assertEqual(self.steps, [])
        self.clock.advance(DELAY_S)
        self.clock.pump([0.0] * 5)
        self.assertEqual(self.steps, [SLICE_BYTES] * 3)
        self.assertEqual(self.clock.getDelayedCalls(), [])

    def test_indexing_gives_way_to_dispatching(self) -> None:
        """Not while the dispatch has much to do, unless the index is too far behind."""
        self.ahead.offset, self.ahead.behind_bytes = 3000, BUSY_BYTES + 1
        self.made.start(self.ahead)
        self.clock.pump([DELAY_S] * 10)
        self.assertEqual(self.steps, [])
        self.ahead.offset = BEHIND_BYTES_MAX
        self.clock.advance(DELAY_S)
        self.clock.advance(0)
        self.assertEqual(self.steps, [SLICE_BYTES_MAX])
        self.clock.pump([DELAY_S] * 5)
        self.assertEqual(self.steps, [SLICE_BYTES_MAX])
        self.made.index.offset, self.ahead.behind_bytes = self.ahead.offset - 10, 0
        self.clock.advance(DELAY_S)
        self.assertEqual(self.steps, [SLICE_BYTES_MAX, SLICE_BYTES])

    def test_a_full_disk_is_tried_again(self) -> None:
        """A full disk: tried again. Another failure: nothing more is put, and nothing else stops."""
        self.ahead.offset = 3000
        self.error = OSError(28, "no room")
        self.made.start(self.ahead)
        self.clock.pump([DELAY_S] * 10)
        self.assertEqual((len(self.steps), self.made.index.why_failed), (1, ""))
        self.error = None
        self.clock.advance(SCARCE_S)
        self.assertGreater(len(self.steps), 1)
        self.steps.clear()
        self.ahead.offset = 9000
        self.made.wake()
        self.error = OSError(5, "bad")
        self.clock.pump([SCARCE_S] * 5)
        self.assertEqual(len(self.steps), 1)
        self.assertIn("bad", self.made.index.why_failed)

    def test_damaged_records_are_passed_over(self) -> None:
        """What is not a record any more is passed over; the records before and after it are not."""
        end = self.log.record_end
        self.log.append([[message(properties={"KEYS": f"k{number}"})] for number in range(6)], 1)
        offsets = [one.physical_offset for one in messages_in(self.log) if one.physical_offset >= end]
        file = self.disk.open("base/commitlog/" + "0" * 20)
        for number in (2, 3, 5):
            file.pwrite(b"\xbd" * 60, offsets[number])
        del self.made.step  # type: ignore[method-assign]
        self.ahead.offset = self.log.record_end
        self.made.start(self.ahead)
        self.clock.pump([DELAY_S] * 10)
        self.assertEqual(self.made.index.offset, self.log.record_end)
        found = {offset for _, offset in entries_of(self.made.index)}
        self.assertEqual(found & set(offsets), {offsets[0], offsets[1], offsets[4]})

    def test_an_orderly_end_indexes_the_rest(self) -> None:
        """An orderly end puts the rest at once."""
        self.ahead.offset = 3000
        self.made.start(self.ahead)
        finished = self.made.finish()
        self.assertNoResult(finished)
        self.clock.pump([0.0] * 4)
        self.successResultOf(finished)
        self.assertEqual(len(self.steps), 3)
        self.successResultOf(self.made.finish())


class StoreTests(SynchronousTestCase):
    """The index as a part of a store."""

    def open(self, disk: MemoryDisk, **options: Any) -> Opened:
        """A process starts."""
        opened = Opened(disk, **options)
        opened.settle()
        return opened

    def put(self, opened: Opened, first: int, count: int) -> None:
        """Messages with keys, and time for the index."""
        for number in range(first, first + count):
            opened.store.log.append([[message(properties={"KEYS": f"k{number}"})]], 5_000 + number)
        opened.settle()
        for _ in range(10):
            opened.clock.advance(DELAY_S)

    def check(self, opened: Opened, count: int) -> None:
        """The index has exactly these messages."""
        index = opened.store.indexing.index if opened.store.indexing else None
        assert index is not None
        messages = messages_in(opened.store.log)
        self.assertEqual(len(messages), count)
        self.assertEqual(sorted(set(entries_of(index))), sorted(expected_of(messages)))

    def test_an_index_survives_any_end(self) -> None:
        """Closed, killed, opened: nothing is missing. The checkpoint shows Java how far the index is."""
        disk = MemoryDisk()
        opened = self.open(disk)
        self.put(opened, 0, 50)
        self.check(opened, 50)
        opened.close()
        opened = self.open(disk)
        self.put(opened, 50, 50)
        self.check(opened, 100)
        opened.store.checkpoint()
        checkpoint = disk.read_file("base/checkpoint")
        self.assertEqual(int.from_bytes(checkpoint[16:24], "big"), 5_099)
        self.put(opened, 100, 50)
        opened = self.open(disk.clone())
        opened.clock.pump([DELAY_S] * 10)
        self.check(opened, 150)
        self.assertEqual(opened.failures, [])

    def test_a_cut_log_is_indexed_anew(self) -> None:
        """A slave whose log was cut puts the records that come instead."""
        opened = self.open(MemoryDisk(), is_slave=True)
        self.put(opened, 0, 10)
        store = opened.store
        end = messages_in(store.log)[6].physical_offset
        store.log.cut(end)
        opened.settle()
        self.assertEqual(store.indexing and store.indexing.index.offset, end)

    def test_a_disabled_index_has_no_file(self) -> None:
        """Without the index there is no file of it."""
        disk = MemoryDisk()
        opened = self.open(disk, message_index_enable=False)
        self.put(opened, 0, 10)
        opened.close()
        self.assertFalse(disk.exists("base/index") or disk.exists("base/indexed"))
