# -*- test-case-name: tests.spark.test_topic_queues -*-
"""Option C{byQueues}: the same rows as by the whole log, however wrong the queues are, and fewer bytes."""

from __future__ import annotations

import os
import random
import shutil
import struct
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dledger.base.disk.disk import ReadOnlyDisk
from dledger.base.disk.segment import SegmentReader
from dledger.spark.formats.option_texts import OptionError
from dledger.spark.rocketmq.commit_log import SparkCommitLog
from dledger.spark.scans.scan import Scan
from dledger.testing.world.memory_disk import MemoryDisk
from protocols.wire.rocketmq.layout import MAGIC_BLANK
from protocols.wire.rocketmq.message import encode_message, make_message
from tests.broker.support import LOG_SIZE, Opened, message, plain
from tests.spark.test_scan import LedgerCase

SIZE = 16_384
FILES = 12
TOPICS = ("orders", "payments", "rare")
Unit = tuple[int, int, int]
_WANTED = [("physicalOffset", "bigint"), ("topic", "string"), ("queueOffset", "bigint"), ("body", "binary")]


class QueueCase(LedgerCase):
    """
    A store of twelve files, the last one not full, and its queues.

    @ivar units: by topic and queue, in order.
    @ivar times: store time of the first message of each file.
    """

    said: list[str]

    def setUp(self) -> None:
        self.path = os.path.abspath(self.mktemp())
        self.units: dict[tuple[str, int], list[Unit]] = {}
        self.times: list[int] = []
        self.count = 0
        chance = random.Random(4)
        os.makedirs(f"{self.path}/commitlog")
        for number in range(FILES):
            data = self.file_of(number, chance)
            Path(f"{self.path}/commitlog", f"{number * SIZE:020d}").write_bytes(data.ljust(SIZE, b"\0"))
        self.write_queues()
        self.checkpoint(self.times[-1] + 3000)

    def file_of(self, number: int, chance: random.Random) -> bytes:
        """The messages of a file; a third of the last one."""
        data = b""
        self.times.append(100_000 + 1000 * self.count)
        while len(data) < (SIZE - 700 if number < FILES - 1 else SIZE // 3):
            topic = "rare" if self.count % 97 == 50 else chance.choice(TOPICS[:2])
            units = self.units.setdefault((topic, chance.randrange(2)), [])
            queue_id = next(key[1] for key, value in self.units.items() if value is units)
            record = encode_message(make_message(
                topic, chance.randbytes(chance.randrange(200)), properties={"KEYS": f"k{self.count}"},
                queue_id=queue_id, queue_offset=len(units), physical_offset=number * SIZE + len(data),
                store_timestamp=100_000 + 1000 * self.count, sys_flag=0,
            ))
            units.append((number * SIZE + len(data), len(record), 0))
            data += record
            self.count += 1
        return data + (struct.pack(">ii", SIZE - len(data), MAGIC_BLANK) if number < FILES - 1 else b"")

    def write_queues(self, *, per_file: int = 64) -> None:
        """As they are now."""
        shutil.rmtree(f"{self.path}/consumequeue", ignore_errors=True)
        for (topic, queue_id), units in self.units.items():
            directory = f"{self.path}/consumequeue/{topic}/{queue_id}"
            os.makedirs(directory)
            for first in range(0, len(units), per_file):
                data = b"".join(struct.pack(">qiq", *unit) for unit in units[first : first + per_file])
                Path(directory, f"{first * 20:020d}").write_bytes(data.ljust(per_file * 20, b"\0"))

    def checkpoint(self, stored_ms: int) -> None:
        """Log and queues are on the disk up to this time."""
        Path(self.path, "checkpoint").write_bytes(struct.pack(">qq", stored_ms, stored_ms).ljust(4096, b"\0"))

    def rows(self, **given: object) -> list[tuple[Any, ...]]:
        """As Spark would read them, planned as a batch."""
        options: dict[str, object] = {"path": self.path, "format": "rocketmq", "minPartitions": 8, **given}
        scan = Scan.of({name: str(value) for name, value in options.items()}, wanted=_WANTED)
        return [row for part in scan.plan() for batch in scan.batches(part)
                for row in zip(*[column.to_pylist() for column in batch.columns], strict=True)]

    def check(self, topics: str, **given: object) -> None:
        """Both roads give the same rows."""
        expected = self.rows(topics=topics, **given)
        self.assertEqual(self.rows(topics=topics, byQueues="true", **given), expected)

    def reads(self, act: Callable[[], object]) -> tuple[Counter[str], set[str]]:
        """Bytes read of the log and of the queues, and files opened, by C{act}."""
        found: Counter[str] = Counter()
        opened: set[str] = set()
        read, open_file = SegmentReader.pread, ReadOnlyDisk.open

        def pread(files: SegmentReader, size: int, position: int) -> bytes:
            data = read(files, size, position)
            found["log" if files.directory.endswith("commitlog") else "queues"] += len(data)
            return data

        def opening(disk: ReadOnlyDisk, path: str) -> Any:
            opened.add(path)
            return open_file(disk, path)

        patches = [self.patch(SegmentReader, "pread", pread), self.patch(ReadOnlyDisk, "open", opening)]
        try:
            act()
        finally:
            for one in patches:
                one.restore()
        return found, opened


class SoundTests(QueueCase):
    """Queues that fit."""

    def test_same_rows(self) -> None:
        """Of each topic, and of several; whole, in small parts and chunks, in a range, and by time."""
        self.said = self.warned()
        for topics in ("orders", "rare", "rare,payments,orders"):
            cases: tuple[dict[str, object], ...] = (
                {}, {"minPartitions": 1, "fetchBytes": 2000}, {"minPartitions": 25, "fetchBytes": 3000},
                {"startingOffsets": self.units["orders", 0][20][0] + 1, "endingOffsets": 9 * SIZE + 5},
                {"storedFrom": self.times[3], "storedBefore": self.times[6], "clockBackMs": 10},
            )
            for given in cases:
                self.check(topics, **given)
        self.assertEqual(self.said, [])

    def test_bytes_read(self) -> None:
        """A topic of few messages: they and their units, not the log."""
        self.said = self.warned()
        for name in ("rare", "orders"):
            wanted = sum(size for (topic, _), units in self.units.items() if topic == name
                         for _, size, _ in units)
            whole, _ = self.reads(lambda name=name: self.rows(topics=name))
            found, _ = self.reads(lambda name=name: self.rows(topics=name, byQueues="true"))
            # Planning finds the end of the log; the last file is walked; each part looks at its neighbours.
            last = (FILES - 1) * SIZE
            walked, _ = self.reads(lambda name=name, last=last: self.rows(topics=name, startingOffsets=last))
            if name == "rare":
                self.assertLess(found["log"] - walked["log"], 40 * wanted)
                self.assertLess(found["log"] - walked["log"], (whole["log"] - walked["log"]) // 3)
            self.assertLess(found["queues"], 200_000)
        self.assertEqual(self.said, [])

    def test_parts_without_messages(self) -> None:
        """They are not planned."""
        self.said = self.warned()
        given = {"path": self.path, "format": "rocketmq", "minPartitions": "60", "topics": "rare"}
        planned = len(Scan.of(given).plan())
        self.assertLess(len(Scan.of({**given, "byQueues": "true"}).plan()), planned // 2)
        self.check("rare", minPartitions=60)

    def test_embedded_in_time(self) -> None:
        """Records that the checkpoint does not cover are walked, also where no queue names it."""
        self.said = self.warned()
        for until in (0, 4, 11):
            cut = until * SIZE
            saved = self.units
            self.units = {key: [unit for unit in units if unit[0] < cut] or units[:1]
                          for key, units in saved.items()}
            self.write_queues()
            self.units = saved
            self.checkpoint(self.times[until] + 3000)
            for topic in TOPICS:
                self.check(topic)

    def test_wrong_use(self) -> None:
        """It needs topics, and a broker's store."""
        self.said = self.warned()
        with self.assertRaisesRegex(OptionError, "needs option topics"):
            self.rows(byQueues="true")
        with self.assertRaisesRegex(OptionError, "needs path"):
            Scan.of({"bootstrap": "n0-h:1", "format": "rocketmq", "topics": "a", "byQueues": "true"}).plan()


class MisfitTests(QueueCase):
    """Queues that do not fit: a warning, and the rows of the log."""

    def assertWalked(self, says: str, **given: object) -> None:
        """The rows are right, and a warning has the reason."""
        self.check("orders", **given)
        self.assertTrue(any(says in one and "is walked from" in one for one in self.said), self.said)
        self.said.clear()

    def queue(self) -> list[Unit]:
        """A queue to be changed."""
        return self.units["orders", 0]

    def test_missing(self) -> None:
        """No checkpoint, no queues, no files, another topic's alone."""
        self.said = self.warned()
        shutil.rmtree(f"{self.path}/consumequeue/orders")
        self.assertWalked("the topic has no queues there")
        self.write_queues()
        first = Path(f"{self.path}/consumequeue/orders/0", f"{0:020d}")
        data = first.read_bytes()
        first.unlink()
        self.assertWalked("its first unit is 64")
        first.write_bytes(data[:-20])
        self.assertWalked("files are missing, or have another size")
        first.unlink()
        shutil.rmtree(first.parent)
        first.parent.mkdir()
        self.assertWalked("files are missing")
        shutil.rmtree(f"{self.path}/consumequeue")
        Path(self.path, "checkpoint").unlink()
        self.assertWalked("no checkpoint")

    def test_every_unit(self) -> None:
        """
        Units at the ends and in the middle, one at a time: left out, doubled, of another message, of another
        size, or zero. Never another row, and always a warning.
        """
        self.said = self.warned()
        original = list(self.queue())
        asked = sum(unit[0] < (FILES - 1) * SIZE for unit in original)
        other = self.units["payments", 0][5]
        ways: tuple[dict[str, object], ...] = ({"minPartitions": 1, "fetchBytes": 4000}, {"minPartitions": 5})
        expected = self.rows(topics="orders")
        for at in (0, 1, asked // 2, asked - 1):
            here, ahead = original[:at], original[at + 1 :]
            position, size, _ = original[at]
            for name, units in {
                "left out": here + ahead, "zero": [*here, (0, 0, 0), *ahead],
                "doubled": [*here, original[at], original[at], *ahead], "other": [*here, other, *ahead],
                "size": [*here, (position, size - 1, 0), *ahead],
                "place": [*here, (position + 1, size, 0), *ahead],
                "filler": [*here, (0, 0x7FFFFFFF, 0), *ahead],
                "far": [*here, (10 * SIZE, size, 0), *ahead], "negative": [*here, (-1, size, 0), *ahead],
            }.items():
                self.units["orders", 0] = units
                self.write_queues()
                for given in ways:
                    found = self.rows(topics="orders", byQueues="true", **given)
                    self.assertEqual(found, expected, (name, at, given))
                    self.assertTrue(any("queues do not fit" in one for one in self.said), (name, at, given))
                    self.said.clear()

    def test_another_number(self) -> None:
        """A unit that names a message of its queue with another number, as of a topic that was made again."""
        self.said = self.warned()
        position, _, _ = self.queue()[40]
        path = Path(f"{self.path}/commitlog", f"{position // SIZE * SIZE:020d}")
        data = bytearray(path.read_bytes())
        struct.pack_into(">q", data, position % SIZE + 20, 1040)
        path.write_bytes(data)
        self.assertWalked("is not unit 40 of queue 0", minPartitions=1)

    def test_another_queue(self) -> None:
        """A queue in the place of another, and one of another topic."""
        self.said = self.warned()
        for key in (("orders", 1), ("payments", 0)):
            self.setUp()
            self.units["orders", 0] = self.units[key]
            self.write_queues()
            self.assertWalked("names a message with topic, queue, number and size" if key[0] == "payments"
                              else "do not fit")

    def test_expired(self) -> None:
        """A log without its first files, and a queue that still names messages in them."""
        self.said = self.warned()
        for number in range(3):
            Path(f"{self.path}/commitlog", f"{number * SIZE:020d}").unlink()
        self.check("orders")
        self.check("rare")
        self.assertEqual(self.said, [])


class OwnBrokerTests(QueueCase):
    """A store that a broker of ours has written."""

    def test_same_rows(self) -> None:
        """Its queues fit, so that nothing but the end of the log is walked."""
        self.said = self.warned()
        disk = MemoryDisk(modified_s=0.0)
        opened = Opened(disk)
        opened.settle()
        self.successResultOf(opened.started)
        chance = random.Random(5)
        for number in range(200):
            one = message(chance.randbytes(90), topic=TOPICS[chance.randrange(2)], queue_id=number % 2)
            opened.store.append_plain(plain([one]), 1_000_000 + 1_000 * number)
        opened.settle()
        opened.close()
        self.path = os.path.abspath(self.mktemp())
        for name in disk.files:
            path = Path(self.path, name.removeprefix("base/"))
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(disk.read_file(name))
        for topic in TOPICS[:2]:
            self.check(topic)
            self.assertGreater(len(self.rows(topics=topic)), 60)
        self.assertEqual(self.said, [])
        log = Scan.of({"path": self.path, "format": "rocketmq", "topics": "orders", "byQueues": "true"}).log()
        self.addCleanup(log.close)
        assert isinstance(log, SparkCommitLog)
        log.extent()
        self.assertGreater(log._queue_road().trusted_end, 2 * LOG_SIZE)
