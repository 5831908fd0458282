# -*- test-case-name: tests.broker.verify.test_store_check -*-
"""A store is sound; or each kind of damage is found, with its file and what mends it, and nothing changes."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from typing import Any
from unittest import SkipTest

from twisted.trial.unittest import SynchronousTestCase

from dledger.base.disk.disk import ReadOnlyDisk
from dledger.rocketmq.metadata.files import Metadata
from dledger.rocketmq.store.index.index_file import IndexShape
from dledger.rocketmq.store.index.index_mark import IndexMark, encode_index_mark, is_whole_mark
from dledger.rocketmq.store.queues.queue_files import UNIT
from dledger.rocketmq.store.records.store_config import StoreConfig
from dledger.rocketmq.verify import queue_check, store_check
from dledger.rocketmq.verify.report import StoreReport
from dledger.rocketmq.verify.store_check import checked_tables, is_store, verify_store
from dledger.testing.world.memory_disk import MemoryDisk
from protocols.wire.remoting import RemotingCommand
from protocols.wire.rocketmq.layout import MAGIC_BLANK
from tests.broker.send_support import send_of
from tests.broker.support import message, packed
from tests.broker.test_service import ServiceCase

#: Some hundred bytes of a message and its record.
BODY = b"x" * 300
MESSAGES = 40
LOG = "base/commitlog/00000000000000000000"
SECOND = "base/commitlog/00000000000000004096"


class StoreCase(ServiceCase):
    """A store of a broker that was stopped: some messages in two queues, in several files of the log."""

    def setUp(self) -> None:
        super().setUp()
        self.start()
        for first in range(0, MESSAGES, 8):
            self.ask(*(
                send_of(BODY, opaque=n + 1, queueId=n % 2, properties=f"KEYS\x01k{n}\x02TAGS\x01t\x02")
                for n in range(first, first + 8)
            ))
        self.settle(1.0)
        self.more()
        self.stop()

    def more(self) -> None:
        """What else the broker does."""

    def verify(self) -> StoreReport:
        """The report; nothing has changed."""
        before = self.snapshot()
        config = StoreConfig(store_path_root_dir="base", max_hash_slot_num=16, max_index_num=64)
        seen: list[tuple[int, int]] = []
        report = verify_store(self.disk, config, progress=lambda done, total: seen.append((done, total)))
        self.assertEqual(self.snapshot(), before)
        self.assertTrue(all(done <= total for done, total in seen))
        return report

    def snapshot(self) -> dict[str, bytes]:
        """Every file of the store."""
        disk: Any = self.disk
        return {path: disk.read_file(path) for path in self.paths("base")}

    def paths(self, directory: str) -> list[str]:
        """Of all files below a directory."""
        found: list[str] = []
        for name in self.disk.listdir(directory):
            path = f"{directory}/{name}"
            try:
                found += self.paths(path)
            except NotADirectoryError:
                found.append(path)
        return found

    def change(self, path: str, at: int, data: bytes) -> None:
        """Damage."""
        file = self.disk.open(path)
        file.pwrite(data, at)
        file.close()

    def finding(self, *words: str, count: int = 1) -> None:
        """There is one of this kind, and no more than C{count} of any."""
        report = self.verify()
        self.assertEqual(report.findings_count, count, report.findings)
        reported = [f"{one.file}: {one.sentence}; {one.mend}" for one in report.findings]
        self.assertTrue(any(all(word in one for word in words) for one in reported), reported)
        self.assertFalse(report.is_clean)


class OddFilesTests(StoreCase):
    """Files that should not be there, cannot be read, or are far too large, are findings, and end nothing."""

    def test_log_is_gone(self) -> None:
        """A store with a checkpoint had a log of its own."""
        disk: Any = self.disk
        for path in [path for path in self.paths("base") if "/commitlog/" in path]:
            disk.unlink(path)
        disk.directories -= {path for path in disk.directories if path.endswith("/commitlog")}
        self.finding("the commit log is gone", "checkpoint", count=self.verify().findings_count)

    def test_file_among_the_queues(self) -> None:
        """A file where a topic should be."""
        self.disk.write_file("base/consumequeue/stray", b"x")
        self.finding("base/consumequeue/stray", "not a directory with queues")

    def test_unreadable_log(self) -> None:
        """A pipe in the place of a log's file, or one that must not be opened, ends nothing."""
        last = max(path for path in self.paths("base") if "/commitlog/" in path)
        for name in ("file_size", "open"):
            real = getattr(self.disk, name)

            def refusing(path: str, *more: Any, real: Any = real, **named: Any) -> Any:
                if path == last:
                    raise OSError(errno.EISDIR, "not a regular file", path)
                return real(path, *more, **named)

            patched = self.patch(self.disk, name, refusing)
            report = self.verify()
            self.assertIn((last, "it cannot be read: not a regular file"),
                          [(one.file, one.sentence) for one in report.findings])
            self.assertGreater(report.queues, 0)
            patched.restore()

    def test_far_too_large(self) -> None:
        """What is far too large is not read."""
        self.patch(store_check, "SMALL_BYTES_MAX", 5)
        report = self.verify()
        self.assertTrue(all("at most 5 are read" in one.sentence for one in report.findings), report.findings)
        files = {one.file.rpartition("/")[2] for one in report.findings}
        self.assertLessEqual({"topics.json", "checkpoint"}, files)

    def test_other_digits(self) -> None:
        """Digits of other scripts do not name a file."""
        self.disk.write_file("base/commitlog/0000000000000000000\u0663", b"x")
        self.finding("not a file of the log")


class OwnFilesTests(StoreCase):
    """Small files of ours have a checksum."""

    def test_random(self) -> None:
        """Random bytes are a finding in each of them, and so is an empty file."""
        for path in ("base/consumequeue.list", "base/indexed"):
            whole = self.disk.read_file(path)
            for data in (b"", b"\0" * len(whole), bytes(range(256)), whole[:-1] + bytes((whole[-1] ^ 1,))):
                self.disk.write_file(path, data)
                self.finding(f"{path}: its checksum is not right", "remove it")
            self.disk.write_file(path, whole)
            self.assertTrue(self.verify().is_clean)

    def test_mended(self) -> None:
        """Without them the next start goes on, and makes them again."""
        for path in ("base/consumequeue.list", "base/indexed"):
            self.disk.unlink(path)
        self.assertTrue(self.verify().is_clean)
        self.start()
        self.assertIn(BODY, self.pull().body)
        self.stop()
        self.assertTrue(self.disk.exists("base/indexed"))
        self.assertTrue(self.verify().is_clean)

    def test_other_shape(self) -> None:
        """The mark of an index of another shape is no damaged one."""
        self.assertTrue(is_whole_mark(encode_index_mark(IndexMark(offset=7), IndexShape(3, 5))))


class SparseTests(SynchronousTestCase):
    """On a file system that knows holes."""

    SIZE = 1 << 40

    def setUp(self) -> None:
        self.root = self.mktemp()
        os.makedirs(f"{self.root}/commitlog")
        self.path = f"{self.root}/commitlog/{0:020d}"
        self.records = b"".join(
            packed(message(b"x" * 100), queue_offset=at, offset=offset, now_ms=7)
            for at, offset in self.places(0)
        )
        with open(self.path, "wb") as file:
            try:
                file.truncate(self.SIZE)
            except OSError as error:
                raise SkipTest(f"no such file here: {error.strerror}") from None
            file.write(self.records)
            file.flush()
            if os.lseek(file.fileno(), 1 << 30, os.SEEK_HOLE) != 1 << 30:
                raise SkipTest("this file system does not know its holes")

    def places(self, begin: int) -> list[tuple[int, int]]:
        """Number and offset of five records of one size."""
        size = len(packed(message(b"x" * 100), queue_offset=0, offset=0, now_ms=7))
        return [(at, begin + at * size) for at in range(5)]

    def verify(self) -> StoreReport:
        """The report, in no time."""
        return verify_store(ReadOnlyDisk(), StoreConfig(store_path_root_dir=self.root))

    def test_end(self) -> None:
        """What follows the log takes no room, and is not read."""
        report = self.verify()
        self.assertEqual((report.messages, report.end_offset, report.is_clean), (5, len(self.records), True))
        self.assertGreaterEqual(report.log_bytes, len(self.records))
        self.assertLess(report.log_bytes, 64 * 1024 * 1024)

    def test_damage(self) -> None:
        """A record that follows a hole is found, also if its first bytes are in the hole."""
        for offset, is_written_from in (((1 << 39) + 100, 0), ((1 << 39) - 2, 2)):
            record = packed(message(b"y"), queue_offset=5, offset=offset, now_ms=7)
            self.assertEqual(record[:2], b"\0\0")
            with open(self.path, "r+b") as file:
                file.seek(offset + is_written_from)
                file.write(record[is_written_from:])
            report = self.verify()
            self.assertEqual(report.messages, 6)
            self.assertIn("a sound one follows", report.findings[0].sentence)
            with open(self.path, "r+b") as file:
                file.truncate(1 << 38)
                file.truncate(self.SIZE)


class PartsTests(SynchronousTestCase):
    """The parts of a broker that a verification needs."""

    def test_tables(self) -> None:
        """Each table of the metadata is read."""
        metadata = Metadata(MemoryDisk(), "config", now_ms=0)
        self.assertEqual([type(one) for one in checked_tables()], [type(one) for one in metadata.tables])

    def test_no_reactor(self) -> None:
        """A verification is a program without Twisted."""
        program = ("import sys, dledger.rocketmq.verify.store_check, dledger.storage.start.verify; "
                   "print([name for name in sys.modules if name.startswith('twisted')])")
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60,
                              stdin=subprocess.DEVNULL)
        self.assertEqual((done.stdout.strip(), done.stderr), ("[]", ""))


class SoundTests(StoreCase):
    """Nothing is wrong."""

    def more(self) -> None:
        """Delayed, half and popped messages have topics of the broker's own."""
        self.ask(send_of(b"later", properties="DELAY\x0118\x02"))
        self.ask(send_of(b"half", properties="TRAN_MSG\x01true\x02PGROUP\x01P\x02"))
        self.ask(RemotingCommand(code=200_050, opaque=1, ext_fields={
            "topic": "T1", "consumerGroup": "G", "queueId": "0", "maxMsgNums": "8", "invisibleTime": "60000",
            "pollTime": "0", "initMode": "0",
        }))
        self.settle(1.0)

    def test_clean(self) -> None:
        """Every message is counted, with its unit."""
        report = self.verify()
        self.assertEqual(report.findings, [])
        self.assertGreaterEqual(report.messages, MESSAGES + 2)
        self.assertEqual(report.units, report.messages)
        self.assertGreater(report.index_entries, 2 * MESSAGES - 1)
        self.assertEqual((report.undispatched, report.repeated, report.is_clean_close), (0, 0, True))
        self.assertGreaterEqual(report.log_bytes, report.end_offset)
        self.assertEqual(report.known_end_offset, report.end_offset)
        self.assertTrue(is_store(self.disk, "base"))

    def test_few_blocks(self) -> None:
        """The memory for units is bounded, and what is found does not depend on it."""
        self.patch(queue_check, "BLOCKS_MAX", 1)
        self.patch(queue_check, "_BLOCK", 2)
        self.assertEqual(self.verify().findings, [])

    def test_deleted_topic(self) -> None:
        """Messages of a topic that is gone have no queue, and that is right."""
        self.start()
        self.ask(RemotingCommand(code=215, opaque=1, ext_fields={"topic": "T1"}))
        self.settle(2.0)
        self.stop()
        self.assertEqual(self.verify().findings, [])


class LogTests(StoreCase):
    """Damage in the log."""

    def test_body(self) -> None:
        """One flipped byte of a body costs one message; those after it are found."""
        self.change(SECOND, 200, b"y")
        report = self.verify()
        self.assertEqual(report.messages, MESSAGES - 1)
        self.finding(SECOND, "a sound one follows", "a slave or the master has a copy")

    def test_length(self) -> None:
        """A damaged length, too."""
        first = self.broker.store.log.begin_offset
        self.change(SECOND, 0, b"\x00\x00\x00\x01")
        self.assertEqual(self.verify().messages, MESSAGES - 1)
        self.finding(SECOND, "4096 on", "a sound one follows")
        self.assertEqual(first, 0)

    def test_a_blank_that_ends_elsewhere(self) -> None:
        """A slave has taken its master's messages for a part of it, if the sizes of their files differed."""
        data = self.disk.read_file(SECOND)
        at = data.rindex((MAGIC_BLANK & 0xFFFFFFFF).to_bytes(4, "big")) - 4
        self.change(SECOND, at, bytes(4))  # torn
        self.assertTrue(self.verify().is_clean)
        self.change(SECOND, at, (len(data) - at - 9).to_bytes(4, "big"))
        self.finding(SECOND, f"a blank of {len(data) - at - 9} bytes, and {len(data) - at} are left")

    def test_zeroes(self) -> None:
        """Zeroes in the middle, and at the end before that of the mark."""
        self.change(SECOND, 0, bytes(900))
        self.finding(SECOND, "a sound one follows")

    def test_end(self) -> None:
        """What was on stable storage is missing at the end."""
        end = self.verify().end_offset
        path = f"base/commitlog/{end - end % 4096:020d}"
        self.change(path, end % 4096 - 300, bytes(300))
        report = self.verify()
        self.assertLess(report.end_offset, end)
        self.assertTrue(any("mark" in one.sentence for one in report.findings), report.findings)

    def test_torn(self) -> None:
        """After the end that is known a crash may have left anything: no finding."""
        end = self.verify().end_offset
        self.change(f"base/commitlog/{end - end % 4096:020d}", end % 4096, b"\x00\x00\x01\x90\xda")
        self.assertEqual(self.verify().findings, [])

    def test_files(self) -> None:
        """A file that is missing, one of another length, and a foreign one."""
        self.disk.unlink(SECOND)
        report = self.verify()
        self.assertIn(SECOND, {one.file for one in report.findings})
        self.disk.write_file("base/commitlog/notes.txt", b"")
        self.assertIn("base/commitlog/notes.txt", {one.file for one in self.verify().findings})


class QueueTests(StoreCase):
    """Damage in queues."""

    QUEUE = "base/consumequeue/T1/0"

    def test_wrong_place(self) -> None:
        """A unit points somewhere else: its message has no unit, and the unit no message."""
        self.change(f"{self.QUEUE}/00000000000000000000", 40, UNIT.pack(7, 300, 0))
        self.finding(self.QUEUE, "points to 7", "move this directory away", count=2)

    def test_wrong_code(self) -> None:
        """The hash of the tags is another one."""
        path = f"{self.QUEUE}/00000000000000000000"
        file = self.disk.open(path)
        offset, size, code = UNIT.unpack(file.pread(UNIT.size, 60))
        file.close()
        self.change(path, 60, UNIT.pack(offset, size, code + 1))
        self.finding(self.QUEUE, "tagsCode")

    def test_missing(self) -> None:
        """A queue that is gone, while its topic is there."""
        for path in self.paths(self.QUEUE):
            self.disk.unlink(path)
        report = self.verify()
        self.assertEqual(report.findings_count, MESSAGES // 2)
        self.assertIn("there is no such queue", report.findings[0].sentence)

    def test_undispatched(self) -> None:
        """Messages after all that the queues have are dispatched by the next start."""
        for queue in ("0", "1"):
            path = f"base/consumequeue/T1/{queue}/00000000000000000000"
            self.change(path, 3 * UNIT.size, bytes(200 - 3 * UNIT.size))
            for later in self.paths(f"base/consumequeue/T1/{queue}"):
                if later != path:
                    self.disk.unlink(later)
        report = self.verify()
        self.assertEqual((report.findings, report.undispatched), ([], MESSAGES - 6))

    def test_mended(self) -> None:
        """The remedy in the report mends it."""
        self.change(f"{self.QUEUE}/00000000000000000000", 40, UNIT.pack(7, 300, 0))
        self.assertFalse(self.verify().is_clean)
        for path in self.paths(self.QUEUE):
            self.disk.unlink(path)
        self.start()
        self.settle(2.0)
        self.stop()
        self.assertEqual(self.verify().findings, [])


class SmallFileTests(StoreCase):
    """Index, checkpoint, mark, metadata."""

    def test_index(self) -> None:
        """A header, an entry, another size."""
        (path, *_) = [one for one in self.paths("base/index") if one.rpartition("/")[2].isdecimal()]
        self.change(path, 36, b"\x7f\xff\xff\xff")
        self.finding(path, "indexCount", "move it away")
        self.change(path, 32, b"\x00\x00\x00\x00\x00\x00\x00\x09")
        self.change(path, 40 + 16 * 4 + 20 * 2 + 4, b"\x7f")
        self.finding(path, "the entry 2 points to")

    def test_checkpoint(self) -> None:
        """Short, or of a later time than the newest message."""
        self.disk.write_file("base/checkpoint", b"\x7f" * 100)
        report = self.verify()
        reported = " ".join(one.sentence for one in report.findings)
        self.assertIn("it has 100 bytes", reported)
        self.assertIn("is after the newest message", reported)

    def test_mark(self) -> None:
        """Neither slot is sound."""
        self.disk.write_file("base/commitlogmark", b"\x00" * 200)
        self.finding("base/commitlogmark", "neither slot", "remove it")

    def test_metadata(self) -> None:
        """A malformed file is a complaint; with a sound copy the next start takes that."""
        self.disk.write_file("base/config/topics.json.bak", self.disk.read_file("base/config/topics.json"))
        self.disk.write_file("base/config/topics.json", b"{nonsense")
        reported = [one for one in self.verify().findings if one.file == "base/config/topics.json"]
        self.assertEqual(len(reported), 1)
        self.assertIn("topics.json.bak is there", reported[0].mend)
