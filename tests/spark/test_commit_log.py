# -*- test-case-name: tests.spark.test_commit_log -*-
"""A broker's commit log: every whole message once, wherever it is cut and however it ends."""

from __future__ import annotations

import os
import random
import shutil
import struct
from contextlib import closing
from pathlib import Path
from typing import Any

from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxBytes, ReadMaxRows

from dledger.base.disk.disk import ReadOnlyDisk
from dledger.base.disk.segment import SegmentReader
from dledger.spark.formats.log import DamageError, DataLossError, ReadError
from dledger.spark.formats.option_texts import OptionError
from dledger.spark.rocketmq import commit_log
from dledger.spark.scans.scan import Scan
from dledger.spark.source import LogStreamReader
from protocols.wire.rocketmq.layout import MAGIC_BLANK
from protocols.wire.rocketmq.message import Message, decode_message, encode_message, make_message
from tests.spark.ledgers import scanned
from tests.spark.test_messages import message_at, row_of
from tests.spark.test_scan import LedgerCase

SIZE = 16_384

_BY_JAVA = bytes.fromhex(
    "0000007b daa320a7 3610a686 00000000 00000000 0000000000000000 0000000000000000 00000000"
    "000001a1fba34b5a 7f000001 0000cc30 000001a1fba34b91 7f000001 000051af 00000000 0000000000000000"
    "00000005 68656c6c6f 02 5431 0019 4b455953016b3102 434c555354455201433102 5441475301 41"
)


class BrokerLog:
    """Files as a broker writes them, by the rule of where a record goes; the next file is made ahead."""

    def __init__(self, directory: str, *, first: int = 0) -> None:
        self.directory = Path(directory)
        self.directory.mkdir(parents=True)
        self.first = self.end = first
        self.written: list[int] = []
        self.sizes: list[int] = []
        self._make(first)

    def path(self, position: int) -> Path:
        """The file that holds C{position}."""
        return self.directory / f"{position // SIZE * SIZE:020d}"

    def _make(self, base: int) -> None:
        for offset in (base, base + SIZE):
            if not self.path(offset).exists():
                self.path(offset).write_bytes(bytes(SIZE))

    def write(self, position: int, data: bytes) -> None:
        """Into one file."""
        with open(self.path(position), "r+b") as file:
            file.seek(position % SIZE)
            file.write(data)

    def append(self, number: int, *, seed: int = 5) -> None:
        """One message."""
        def make(at: int) -> bytes:
            return message_at(at, number, chance=random.Random(seed * 10**6 + number))

        room, size = SIZE - self.end % SIZE, len(make(0))
        if size + 8 > room:
            # The bytes of before are not erased.
            self.write(self.end, struct.pack(">ii", room, MAGIC_BLANK) + b"\x55" * (room - 8))
            self.end += room
            self._make(self.end)
        self.write(self.end, make(self.end))
        self.written.append(self.end)
        self.sizes.append(size)
        self.end += size

    def rows(self) -> list[tuple[Any, ...]]:
        """What must be read."""
        found = []
        for at in self.written:
            if self.path(at).exists():
                data = self.path(at).read_bytes()
                found.append(row_of(decode_message(data, at % SIZE, physical_offset=at), None, None))
        return found


class CommitLogTests(LedgerCase):
    """Reading."""

    def setUp(self) -> None:
        self.path = os.path.abspath(self.mktemp())
        self.log = BrokerLog(f"{self.path}/commitlog", first=3 * SIZE)
        for number in range(150):
            self.log.append(number)
        self.options: dict[str, object] = {"path": self.path, "format": "rocketmq"}

    def test_value_by_value(self) -> None:
        """All columns; from the store's root and from the directory itself, whatever the cuts."""
        expected = self.log.rows()
        self.assertGreater(len(os.listdir(self.log.directory)), 6)
        for options in (
            {}, {"path": str(self.log.directory)}, {"fetchBytes": 1}, {"fetchBytes": 5000},
            {"minPartitions": 9}, {"partitionBytes": 700}, {"verifyCrc": "true"}, {"minPartitions": 3000},
        ):
            with self.subTest(**options):
                self.assertEqual(scanned({**self.options, **options}), expected)

    def test_offsets_are_bytes(self) -> None:
        """A range may begin and end anywhere: what begins in it is read."""
        extent = Scan.of({name: str(value) for name, value in self.options.items()}).extent()
        self.assertEqual((extent.begin, extent.end), (3 * SIZE, self.log.end))
        starts = self.log.written
        for begin, end in (
            (starts[7], starts[9]), (starts[7] - 1, starts[9] + 1), (starts[7] + 1, starts[8]),
            (extent.begin, starts[1]), (starts[-1], self.log.end), (starts[40] - 90, starts[80]),
        ):
            with self.subTest(begin=begin, end=end):
                found = scanned({**self.options, "startingOffsets": begin, "endingOffsets": end}, [
                    ("physicalOffset", "bigint")])
                self.assertEqual(found, [(at,) for at in starts if begin <= at < end])

    def test_an_end_that_is_being_written(self) -> None:
        """At every byte of the record that is being written, what is whole is read; then the record, too."""
        wanted = [("physicalOffset", "bigint")]
        for number in range(1000, 1006):
            at, before = self.log.end, self.log.path(self.log.end).read_bytes()
            self.log.append(number)
            if self.log.written[-1] != at:
                continue  # in another file
            after = self.log.path(at).read_bytes()
            first = self.log.written[-3]
            for cut in {*range(at % SIZE, self.log.end % SIZE, 97), *range(-24, 0)}:
                cut = cut if cut >= 0 else self.log.end % SIZE + cut
                seen = after[:cut] + before[cut:]
                self.log.path(at).write_bytes(seen)
                found = scanned({**self.options, "startingOffsets": first}, wanted)
                last = len(self.log.written) if seen == after else -1
                self.assertEqual(found, [(place,) for place in self.log.written[-3:last]], (number, cut))
            self.log.path(at).write_bytes(after)
        self.assertEqual(scanned(self.options, wanted), [(place,) for place in self.log.written])

    def test_growing(self) -> None:
        """One open log sees new messages, over the ends of files; limits by number end at records."""
        log = Scan.of({name: str(value) for name, value in self.options.items()}).log()
        self.addCleanup(log.close)
        for number in range(200, 260):
            end = log.extent().end
            self.assertEqual(end, self.log.end)
            self.log.append(number)
        starts = self.log.written
        self.assertEqual(log.after(starts[10], self.log.end, 5), starts[15])
        self.assertEqual(log.after(starts[3], self.log.end, 150), starts[153])
        self.assertEqual(log.after(starts[3], starts[5], 150), starts[5])

    def test_stream(self) -> None:
        """
        Batches of a number of messages or bytes, each message once, while the log grows over ends of files.
        """
        given = {name: str(value) for name, value in self.options.items()}
        reader = LogStreamReader(Scan.of({**given, "startingOffsets": "earliest"}, is_stream=True,
                                         wanted=[("physicalOffset", "bigint")]))
        self.addCleanup(reader.stop)
        offset, found = reader.initialOffset(), []
        limits = [ReadMaxRows(7), ReadMaxBytes(9000), ReadMaxRows(1), ReadAllAvailable(), ReadAllAvailable()]
        for number, limit in enumerate(limits):
            end = reader.latestOffset(offset, limit)
            rows = [value for part in reader.partitions(offset, end) for batch in reader.read(part)
                    for value in batch.column(0).to_pylist()]
            if isinstance(limit, ReadMaxRows):
                self.assertEqual(len(rows), limit.max_rows)
            found += rows
            offset = end
            self.log.append(500 + number)
        self.assertEqual(found, self.log.written[:-1])
        self.assertEqual(offset["default"], self.log.written[-1])

    def test_expiry(self) -> None:
        """Old files go: an error, or the rest."""
        scan = Scan.of({name: str(value) for name, value in self.options.items()})
        extent = scan.extent()
        parts = scan.parts(extent.begin, extent.end)
        for base in (3, 4):
            self.log.path(base * SIZE).unlink()
        self.assertEqual(scanned(self.options), self.log.rows())
        self.assertRaises(DataLossError, lambda: [list(scan.batches(part)) for part in parts])
        said = self.warned()
        loose = Scan.of({**{name: str(value) for name, value in self.options.items()},
                         "failOnDataLoss": "false"}, wanted=[("physicalOffset", "bigint")])
        found = [value for part in parts for batch in loose.batches(part)
                 for value in batch.column(0).to_pylist()]
        self.assertEqual(found, [at for at in self.log.written if at >= 5 * SIZE])
        self.assertIn("have expired", said[0])

    def test_damage(self) -> None:
        """A size that makes no sense hides the rest of its file; a length within a message hides it alone."""
        at = self.log.written[20]
        data = self.log.path(at).read_bytes()
        wanted = [("physicalOffset", "bigint")]
        self.log.write(at, struct.pack(">i", 7))
        error = self.assertRaises(DamageError, scanned, self.options)
        self.assertIn(f"{self.log.path(at)} at {at % SIZE}: there is no sound message", str(error))
        said = self.warned()
        found = [row[0] for row in scanned({**self.options, "failOnDamage": "false"}, wanted)]
        hidden = [place for place in self.log.written if at <= place < (at // SIZE + 1) * SIZE]
        self.assertEqual(found, [place for place in self.log.written if place not in hidden])
        self.assertIn("bytes after damaged records were skipped", said[0])
        self.log.path(at).write_bytes(data)
        flags = struct.unpack_from(">i", data, at % SIZE + 36)[0]
        addresses = (20 if flags & 0x10 else 8) + (20 if flags & 0x20 else 8)
        self.log.write(at + 48 + addresses + 20, b"\x7f\xff")  # the length of its body
        error = self.assertRaises(DamageError, scanned, self.options)
        self.assertIn(f"the message at {at} is not a sound message", str(error))
        found = [row[0] for row in scanned({**self.options, "failOnDamage": "false"}, wanted)]
        self.assertEqual(found, [place for place in self.log.written if place != at])

    def test_damage_in_the_last_file(self) -> None:
        """A damaged message is not taken for the end of the log, if sound ones follow."""
        wanted = [("physicalOffset", "bigint")]
        last = self.log.written[-1] // SIZE * SIZE
        there = [at for at in self.log.written if at >= last]
        self.assertGreater(len(there), 3)
        for at in (there[0], there[1], there[-2]):
            data = self.log.path(at).read_bytes()
            for place, word in ((0, bytes(4)), (4, b"\0"), (4, bytes(60)), (28, b"\1")):
                self.log.write(at + place, word)
                error = self.assertRaises(DamageError, scanned, self.options)
                words = f"{self.log.path(at)} at {at - last}: there is no sound message, but one follows"
                self.assertIn(words, str(error))
                said = self.warned()
                found = scanned({**self.options, "failOnDamage": "false"}, wanted)
                self.assertEqual(found, [(place,) for place in self.log.written if place < at])
                self.assertIn("bytes after damaged records were skipped", said[0])
                self.log.path(at).write_bytes(data)
        self.assertEqual(scanned(self.options), self.log.rows())

    def test_body(self) -> None:
        """A changed body is found by C{verifyCrc}."""
        record = encode_message(make_message("T", b"the body", physical_offset=self.log.end))
        self.log.write(self.log.end, record.replace(b"the body", b"The body"))
        self.log.end += len(record)
        self.log.append(2000)
        scanned(self.options)
        error = self.assertRaises(DamageError, scanned, {**self.options, "verifyCrc": "true"})
        self.assertIn("bodyCRC", str(error))

    def test_a_record_of_another_place(self) -> None:
        """The bytes after the end may look like a record; the place that it names is another one."""
        self.log.write(self.log.end, message_at(self.log.written[2], 3, chance=random.Random(1)))
        self.assertEqual(scanned(self.options), self.log.rows())

    def test_wrong_use(self) -> None:
        """What makes no sense for bytes, and directories that are none."""
        self.assertRaisesRegex(OptionError, "take partitionBytes", scanned,
                               {**self.options, "maxRecordsPerPartition": 5})
        self.assertRaisesRegex(ReadError, "is not a member's directory", scanned, {"path": self.path})
        for name in list(self.log.directory.iterdir()):
            name.unlink()
        self.assertRaisesRegex(ReadError, "is not a member's directory", scanned, self.options)

    def test_written_by_java(self) -> None:
        """A message as a broker of RocketMQ 4.9.8 has written it: topic T1, tag A, key k1, body hello."""
        path = os.path.abspath(self.mktemp())
        os.makedirs(f"{path}/commitlog")
        Path(f"{path}/commitlog/{0:020d}").write_bytes(_BY_JAVA.ljust(1 << 20, b"\0"))
        (row,) = scanned({"path": path, "format": "rocketmq", "verifyCrc": "true"})
        self.assertEqual(row[:8], (None, None, "T1", 0, 0, 0, "k1", "A"))
        self.assertEqual([int(time.timestamp() * 1000 + 0.5) for time in row[8:10]],
                         [0x1A1FBA34B5A, 0x1A1FBA34B91])
        self.assertEqual(row[10:], (0, 0, 0, 0, 0x3610A686, [
            ("KEYS", "k1"), ("CLUSTER", "C1"), ("TAGS", "A"),
        ], b"hello"))

    def test_empty(self) -> None:
        """A broker that has stored nothing."""
        path = os.path.abspath(self.mktemp())
        BrokerLog(f"{path}/commitlog")
        self.assertEqual(scanned({"path": path, "format": "rocketmq"}), [])


class SmallBlockTests(CommitLogTests):
    """The same with blocks of less than a file, so that a search does not begin with the file."""

    def setUp(self) -> None:
        super().setUp()
        self.patch(commit_log, "_BLOCK_BYTES", 4096)

    def test_head_of_a_file_is_not_read(self) -> None:
        """Neither to plan, nor by a task that begins at the end of a file."""
        reads: list[int] = []
        real = SegmentReader.pread

        def pread(files: SegmentReader, size: int, position: int) -> bytes:
            reads.append(position)
            return real(files, size, position)

        self.patch(SegmentReader, "pread", pread)
        at = next(one for one in self.log.written if one % SIZE > 12_000)
        found = scanned({**self.options, "startingOffsets": at + 1, "endingOffsets": at - at % SIZE + SIZE}, [
            ("physicalOffset", "bigint")])
        self.assertEqual(found, [(one,) for one in self.log.written if at < one < at - at % SIZE + SIZE])
        self.assertEqual([one for one in reads if at - at % SIZE <= one < at - 4096], [])


class StretchTests(LedgerCase):
    """A file of many blocks, less than half full."""

    def setUp(self) -> None:
        self.patch(commit_log, "_BLOCK_BYTES", 1024)
        self.path = os.path.abspath(self.mktemp())
        os.makedirs(f"{self.path}/commitlog")
        self.file = Path(f"{self.path}/commitlog/{0:020d}")
        data = b""
        for number in range(120):
            data += encode_message(make_message("T", b"x" * (number % 200), physical_offset=len(data)))
        self.end = len(data)
        self.data = data.ljust(1 << 16, b"\0")
        self.assertTrue(len(self.data) // 4 < self.end < len(self.data) // 2)

    def test_zeroes(self) -> None:
        """A stretch of zeroes of any length does not hide the messages after it."""
        self.file.write_bytes(self.data)
        count = len(scanned({"path": self.path, "format": "rocketmq"}))
        self.assertEqual(count, 120)
        for first in range(1000, self.end - 200, 1500):
            for behind in range(first + 1500, self.end, 1500):
                self.file.write_bytes(self.data[:first] + bytes(behind - first) + self.data[behind:])
                self.assertRaises(DamageError, scanned, {"path": self.path, "format": "rocketmq"})

    def test_looked_through_once(self) -> None:
        """A stream does not read a file that a broker has made ahead again and again."""
        self.file.write_bytes(self.data)
        ahead = self.file.with_name(f"{1 << 16:020d}")
        ahead.write_bytes(bytes(1 << 16))
        scan = Scan.of({"path": self.path, "format": "rocketmq"})
        with closing(scan.log()) as log:
            reads: list[int] = []
            real = SegmentReader.pread

            def pread(files: SegmentReader, size: int, position: int) -> bytes:
                reads.append(position)
                return real(files, size, position)

            self.patch(SegmentReader, "pread", pread)
            self.assertEqual(log.extent().end, self.end)
            self.assertGreater(len(reads), 64)
            reads.clear()
            self.assertEqual(log.extent().end, self.end)
            self.assertLess(len(reads), 16)


class EmbeddedTests(LedgerCase):
    """Bodies that hold the bytes of messages, with the places at which they lie."""

    def setUp(self) -> None:
        self.path = os.path.abspath(self.mktemp())
        self.patch(commit_log, "_BLOCK_BYTES", 4096)
        self.log = BrokerLog(f"{self.path}/commitlog")
        self.forged: list[int] = []
        for number in range(12):
            self.log.append(number)
            self.embed(number)

    def embed(self, number: int) -> None:
        """One message whose body is three messages, one of them cut."""
        at, inner = self.log.end, b""
        outer = encode_message(make_message("T", b"", physical_offset=at))
        begin = at + len(outer) - len(b"T") - 3  # the body lies before the topic and the properties
        for _ in range(3):
            inner += encode_message(make_message("T", b"forged", physical_offset=begin + len(inner)))
        record = encode_message(make_message("T", inner[:-5], physical_offset=at, queue_offset=number))
        if SIZE - at % SIZE < len(record) + 8:
            return
        self.log.write(at, record)
        self.assertIsInstance(decode_message(record[begin - at :], physical_offset=begin), Message)
        self.forged.append(begin)
        self.log.written.append(at)
        self.log.end += len(record)

    def test_not_taken_for_messages(self) -> None:
        """Wherever a range begins, also at one of them."""
        options = {"path": self.path, "format": "rocketmq"}
        expected = self.log.rows()
        self.assertEqual(scanned(options), expected)
        for parts in (2, 7, 40):
            self.assertEqual(scanned({**options, "minPartitions": parts}), expected)
        for begin in self.forged:
            found = scanned({**options, "startingOffsets": begin}, [("physicalOffset", "bigint")])
            self.assertEqual(found, [(at,) for at in self.log.written if at >= begin])


class TimeTests(LedgerCase):
    """Files that are left out by their times."""

    def setUp(self) -> None:
        self.path = os.path.abspath(self.mktemp())
        directory = Path(self.path, "commitlog")
        directory.mkdir(parents=True)
        self.times: list[int] = []
        for number in range(20):
            data = b""
            for _ in range(3):
                # Two steps forward, one back.
                self.times.append(1000 * (len(self.times) + 10) - 1500 * (len(self.times) % 2))
                data += encode_message(make_message(
                    "T", b"x" * 50, queue_id=0, queue_offset=len(self.times), store_timestamp=self.times[-1],
                    physical_offset=number * SIZE + len(data),
                ))
            blank = struct.pack(">ii", SIZE - len(data), MAGIC_BLANK) if number < 19 else b""
            Path(directory, f"{number * SIZE:020d}").write_bytes((data + blank).ljust(SIZE, b"\0"))

    def planned(self, given: dict[str, object]) -> tuple[list[int], int]:
        """The times of a batch, and the bytes of its range."""
        options = {name: str(value) for name, value in given.items()}
        scan = Scan.of(options, wanted=[("storeTimestamp", "TIMESTAMP")])
        parts = scan.plan()
        times = [row.timestamp() for part in parts for batch in scan.batches(part)
                 for row in batch.column(0).to_pylist()]
        return [int(1000 * time) for time in times], sum(part.end - part.begin for part in parts)

    def test_every_range(self) -> None:
        """No message is missing, and few files are read that have none."""
        for first in range(8_000, 72_000, 2_500):
            for size in (1, 2_000, 15_000, 60_000):
                given: dict[str, object] = {"path": self.path, "format": "rocketmq"}
                given |= {"storedFrom": first, "storedBefore": first + size}
                wanted = [time for time in self.times if first <= time < first + size]
                self.assertEqual(self.planned(given)[0], wanted)
                found, read_bytes = self.planned({**given, "clockBackMs": 1500})
                self.assertEqual(found, wanted)
                self.assertLess(read_bytes // SIZE, size // 3000 + 5)

    def test_files_opened(self) -> None:
        """Tasks open no file that is left out; to plan, a head and one message of each file are read."""
        given: dict[str, object] = {"path": self.path, "format": "rocketmq", "storedFrom": 40_000,
                                    "storedBefore": 46_000}
        opened: list[str] = []
        read_bytes: list[int] = []
        open_file, read = ReadOnlyDisk.open, SegmentReader.pread

        def opening(disk: ReadOnlyDisk, path: str) -> Any:
            opened.append(path)
            return open_file(disk, path)

        def pread(files: SegmentReader, size: int, position: int) -> bytes:
            data = read(files, size, position)
            read_bytes.append(len(data))
            return data

        self.patch(ReadOnlyDisk, "open", opening)
        self.patch(SegmentReader, "pread", pread)
        counts = {}
        for back_ms in (None, 1500):
            options = given if back_ms is None else {**given, "clockBackMs": back_ms}
            scan = Scan.of({name: str(value) for name, value in options.items()})
            with closing(scan.log()) as log:
                log.extent()
            opened.clear()
            read_bytes.clear()
            parts = scan.plan()
            planned = sum(read_bytes)
            opened.clear()
            read_bytes.clear()
            rows = sum(batch.num_rows for part in parts for batch in scan.batches(part))
            counts[back_ms] = (rows, len(set(opened)), sum(read_bytes), planned)
        self.assertEqual(counts[None][:2], (6, 20))
        self.assertEqual(counts[1500][0], 6)
        self.assertLessEqual(counts[1500][1], 5)
        self.assertLess(counts[1500][2], counts[None][2] // 3)
        # At most the head and the first message, of about 150 bytes, of each of 20 files.
        self.assertLess(counts[1500][3] - counts[None][3], 20 * 300)

    def test_one_side(self) -> None:
        """A begin or an end alone; without either the option makes no sense."""
        given: dict[str, object] = {"path": self.path, "format": "rocketmq", "clockBackMs": 1500}
        for name, at in (("storedFrom", 50_000), ("storedBefore", 30_000)):
            found, read_bytes = self.planned({**given, name: at})
            self.assertLess(read_bytes, 10 * SIZE)
            wanted = [time for time in self.times if (time >= at) == (name == "storedFrom")]
            self.assertEqual(found, wanted)
        self.assertRaises(OptionError, scanned, given)


class LostEndTests(LedgerCase):
    """Files that are missing at the end of a log are noticed by consume queues and checkpoint."""

    def setUp(self) -> None:
        self.path = os.path.abspath(self.mktemp())
        self.log = BrokerLog(f"{self.path}/commitlog")
        for number in range(150):
            self.log.append(number)
        self.options: dict[str, object] = {"path": self.path, "format": "rocketmq"}
        self.messages = [
            decode_message(self.log.path(at).read_bytes(), at % SIZE, physical_offset=at)
            for at in self.log.written
        ]

    def write_queues(self, count: int = 150, *, units: int = 40) -> None:
        """Consume queues of the first C{count} messages, in files of C{units} units, one of them ahead."""
        queues: dict[str, list[bytes]] = {}
        for message, at, size in zip(self.messages[:count], self.log.written, self.log.sizes, strict=False):
            name = f"{self.path}/consumequeue/{message.topic}/{message.queue_id}"
            queues.setdefault(name, []).append(struct.pack(">qiq", at, size, -1))
        for name, found in queues.items():
            os.makedirs(name)
            for first in range(0, len(found) + units, units):
                data = b"".join(found[first : first + units]).ljust(20 * units, b"\0")
                Path(name, f"{20 * first:020d}").write_bytes(data)

    def checkpoint(self, stored_ms: int) -> None:
        """The store's, of a message that was stored at this time."""
        Path(self.path, "checkpoint").write_bytes(stored_ms.to_bytes(8, "big").ljust(4096, b"\0"))

    def damages(self) -> dict[str, Any]:
        """Ways in which an end gets lost."""
        last = self.log.path(self.log.written[-1])
        before = self.log.path(int(last.name) - 1)

        def gone() -> None:
            last.unlink()
            for ahead in self.log.directory.iterdir():
                if int(ahead.name) > int(last.name):
                    ahead.unlink()

        def two_gone() -> None:
            gone()
            before.unlink()

        return {
            "gone": gone, "two gone": two_gone, "zeroed": lambda: last.write_bytes(bytes(SIZE)),
            "cut": lambda: os.truncate(last, 100),
            "length": lambda: self.log.write(self.log.written[-1], bytes(4)),
        }

    def assertLost(self, says: str) -> None:
        """An error by default, else a warning and what is left."""
        error = self.assertRaises(DamageError, scanned, self.options)
        self.assertIn(says, str(error))
        self.assertIn("start the broker once", str(error))
        self.assertRaises(DamageError, scanned, {**self.options, "path": f"{self.path}/commitlog"})
        said = self.warned()
        rows = scanned({**self.options, "failOnDamage": "false"})
        self.assertLess(len(rows), 150)
        self.assertTrue(any(says in one for one in said), said)

    def test_sound(self) -> None:
        """Queues that name all messages or fewer, fillers, and a checkpoint of the last ones are no error."""
        latest = max(message.store_timestamp for message in self.messages[-20:])
        for units in (3, 40, 1000):
            for count in (0, 1, 149, 150):
                self.write_queues(count, units=units)
                self.checkpoint(latest)
                self.assertEqual(len(scanned(self.options)), 150)
                shutil.rmtree(f"{self.path}/consumequeue", ignore_errors=True)
        os.makedirs(f"{self.path}/consumequeue/filled/0")
        filler = struct.pack(">qiq", 0, 0x7FFFFFFF, 0) * 10
        Path(self.path, "consumequeue/filled/0", f"{0:020d}").write_bytes(filler + bytes(200))
        Path(self.path, "consumequeue/lonely").touch()
        self.assertEqual(len(scanned(self.options)), 150)

    def test_queues(self) -> None:
        """Each way to lose an end, known by the queues; and a stream that begins."""
        for name in self.damages():
            with self.subTest(name):
                self.setUp()
                self.write_queues()
                self.damages()[name]()
                self.assertLost("names a message that ends at")
                reader = LogStreamReader(Scan.of(
                    {name: str(value) for name, value in self.options.items()}, is_stream=True))
                self.addCleanup(reader.stop)
                self.assertRaises(DamageError, reader.initialOffset)

    def test_checkpoint(self) -> None:
        """A time that the last messages of the log do not reach."""
        latest = max(message.store_timestamp for message in self.messages)
        self.checkpoint(latest + 1)
        error = self.assertRaises(DamageError, scanned, self.options)
        self.assertIn(f"records a message with the storeTimestamp {latest + 1}", str(error))
        self.checkpoint(0)
        self.assertEqual(len(scanned(self.options)), 150)
