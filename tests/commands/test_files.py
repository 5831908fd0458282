# -*- test-case-name: tests.commands.test_files -*-
"""The commands that read a member's files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from dledger.base.disk.disk import OsDisk
from dledger.client.values import ChainMark
from dledger.storage.files.term_file import TermFile
from dledger.storage.store.file_store import FileStore
from dledger.values.ledger.config import DLedgerConfig
from tests.broker.put_support import Writing
from tests.broker.support import message, plain
from tests.commands.fakes import CliCase

BODIES = [b"entry %d" % number for number in range(40)]


class FilesCase(CliCase):
    """A member's directory with small files, so that there are several and blanks in them."""

    def setUp(self) -> None:
        super().setUp()
        self.config = DLedgerConfig(
            store_base_dir=self.mktemp(),
            mapped_file_size_for_entry_data=1024,
            mapped_file_size_for_entry_index=32 * 16,
        )
        store = FileStore.open(self.config, OsDisk())
        for body in BODIES:
            store.append_bodies((body,), 1)
        store.record_commit(len(BODIES) - 1)
        store.clean_close()
        TermFile(OsDisk(), self.config.self_path).save(1, None)
        self.path = self.config.self_path
        self.data = sorted(Path(self.path, "data").iterdir())

    def damage(self, offset: int) -> None:
        """Flip a byte of the first data file."""
        with self.data[0].open("r+b") as file:
            file.seek(offset)
            byte = file.read(1)[0]
            file.seek(offset)
            file.write(bytes([byte ^ 0xFF]))


class VerifyGroupTests(CliCase):
    """C{dledger verify --group}."""

    def marks(self, *marks: ChainMark) -> None:
        """The ledgers of the members."""
        log: Any = self.log
        log.chain_marks = lambda: marks

    def mark(self, member_id: str, chain_crc: int = 0xAB, **facts: Any) -> ChainMark:
        """One at entry 7."""
        return ChainMark(member_id=member_id, index=7, term=3, chain_crc=chain_crc, **facts)

    def test_same(self) -> None:
        """Exit status 0."""
        self.marks(self.mark("n0", is_leader=True), self.mark("n1"))
        result = self.run_cli("verify", "--group")
        self.assertExit(result, 0)
        self.assertEqual(result.stdout, "n0\t3\t000000ab\tsame\nn1\t3\t000000ab\tsame\n"
                         "compared up to entry 7: no difference\n")

    def test_different(self) -> None:
        """Who, exit status 1."""
        self.marks(self.mark("n0", is_leader=True), self.mark("n1", 0xCD))
        self.assertExit(self.run_cli("verify", "--group"), 1, "n1\t3\t000000cd\tdiverges", "the logs differ")
        document = json.loads(self.run_cli("verify", "--group", "--json").stdout)
        self.assertEqual((document["index"], document["diverging"]), (7, ["n1"]))
        self.assertEqual(document["not_compared"], {})

    def test_not_compared(self) -> None:
        """Silence is no proof."""
        self.marks(self.mark("n0", is_leader=True), self.mark("n1", problem="connection refused"),
                   self.mark("n2", 0))
        self.assertExit(self.run_cli("verify", "--group"), 1, "n1\t3\t-\tnot compared\tconnection refused",
                        "n2\t3\t00000000\tnot compared\tits entry has no checksum")

    def test_nobody(self) -> None:
        """Nobody answers: that is said, not that nothing is committed."""
        self.marks(ChainMark(member_id="n0", problem="connection refused"))
        result = self.run_cli("verify", "--group")
        self.assertExit(result, 1, "n0\tnot compared\tconnection refused", "no member answered")
        self.assertNotIn("committed", result.stdout)

    def test_one_of_both(self) -> None:
        """A directory, or the group."""
        self.assertExit(self.run_cli("verify"), 64, "give a DIRECTORY, or --group")
        self.assertExit(self.run_cli("verify", "--group", "."), 64, "give a DIRECTORY, or --group")


class VerifyTests(FilesCase):
    """C{dledger verify}."""

    def test_clean(self) -> None:
        """What there is, and that nothing is wrong."""
        self.assertExit(self.run_cli("verify", self.path), 0, "40 entries", "indexes 0 to 39", "clean")

    def test_damaged(self) -> None:
        """Where and what; exit status 1."""
        self.damage(50)
        self.assertExit(self.run_cli("verify", self.path), 1, str(self.data[0]), "finding")

    def test_json(self) -> None:
        """For programs."""
        self.damage(50)
        result = self.run_cli("verify", "--json", self.path)
        self.assertExit(result, 1)
        document = json.loads(result.stdout)
        self.assertFalse(document["is_clean"])
        self.assertGreaterEqual(len(document["findings"]), 1)

    def test_wrong_directory(self) -> None:
        """Said so in one line."""
        result = self.run_cli("verify", self.config.store_base_dir)
        self.assertExit(result, 1, "dledger-n0")
        self.assertExit(self.run_cli("verify", "/nonexistent"), 64)


class StoreTests(CliCase):
    """C{dledger verify} of a broker's store."""

    def setUp(self) -> None:
        super().setUp()
        self.store = Path(self.mktemp())
        (self.store / "commitlog").mkdir(parents=True)
        writing = Writing(store={"store_path_root_dir": "base"})
        writing.pipeline.put(plain([message(b"one"), message(b"two", queue_id=1)]))
        writing.settle()
        end = writing.store.log.end_offset
        record = writing.store.log.read(0, end)
        writing.stop()
        self.log_file = self.store / "commitlog" / ("0" * 20)
        self.log_file.write_bytes(record.ljust(4096, b"\0"))

    def test_clean(self) -> None:
        """For people and for programs; messages without a queue are dispatched by the next start."""
        result = self.run_cli("verify", str(self.store))
        self.assertExit(result, 0, "2 messages", "2 messages are in no queue yet", "clean")
        found = json.loads(self.run_cli("verify", str(self.store), "--json").stdout)
        self.assertEqual((found["messages"], found["is_clean"], found["findings"]), (2, True, []))

    def test_damaged(self) -> None:
        """Exit status 1, the file, and what mends it."""
        data = self.log_file.read_bytes()
        self.log_file.write_bytes(data.replace(b"one", b"One"))
        result = self.run_cli("verify", str(self.store))
        self.assertExit(result, 1, str(self.log_file), "to mend: a slave or the master", "1 finding")
        found = json.loads(self.run_cli("verify", str(self.store), "--json").stdout)
        self.assertEqual((found["findings_count"], found["findings"][0]["offset"]), (1, 0))

    def test_raft(self) -> None:
        """The log of a broker on a raft log is a member's."""
        raft = Path(self.mktemp())
        (raft / "consumequeue").mkdir(parents=True)
        self.assertExit(self.run_cli("verify", str(raft)), 0, "raft log", "dledger-ID")


class ReadFileTests(FilesCase):
    """C{dledger readfile}."""

    def lines(self, *args: str) -> list[str]:
        """Output of a successful run."""
        result = self.run_cli("readfile", *args)
        self.assertExit(result, 0)
        return result.stdout.splitlines()

    def test_directory(self) -> None:
        """Every record of every file, and the blanks between."""
        lines = self.lines(self.path)
        records = [line for line in lines if line.startswith("index=")]
        self.assertEqual([int(line.split()[0].partition("=")[2]) for line in records], list(range(40)))
        self.assertEqual(len(lines) - len(records), len(self.data) - 1)
        self.assertIn("pos=0 size=55 magic=1 channel=0", lines[0])

    def test_file(self) -> None:
        """One file."""
        lines = self.lines(str(self.data[1]))
        self.assertIn("pos=1024", lines[0])

    def test_body(self) -> None:
        """With bodies."""
        self.assertTrue(self.lines(self.path, "--body", "-n", "1")[0].endswith("body=entry 0"))

    def test_range(self) -> None:
        """From a position, a number of bytes or records."""
        self.assertEqual(len(self.lines(self.path, "--pos", "55", "--size", "110")), 2)
        self.assertTrue(self.lines(self.path, "--pos", "55", "-n", "1")[0].startswith("index=1 "))

    def test_index(self) -> None:
        """Units of the index."""
        lines = self.lines(f"{self.path}/index")
        self.assertEqual((lines[0], len(lines)), ("index=0 term=1 pos=0 size=55", 40))

    def test_json(self) -> None:
        """An object a line: records with or without bodies, blanks, units."""
        found = [json.loads(line) for line in self.lines(self.path, "--json")]
        self.assertEqual((found[0]["index"], found[0]["size"], found[0]["is_blank"]), (0, 55, False))
        self.assertNotIn("body", found[0])
        self.assertEqual(sum(one["is_blank"] for one in found), len(self.data) - 1)
        (first,) = self.lines(self.path, "--json", "--body", "-n", "1")
        self.assertEqual(json.loads(first)["body"], "entry 0")
        (first,) = self.lines(self.path, "--json", "--format", "rocketmq", "-n", "1")
        self.assertEqual((json.loads(first)["kind"], json.loads(first)["body"]), ("other", "entry 0"))
        (unit,) = self.lines(f"{self.path}/index", "--json", "-n", "1")
        self.assertEqual(json.loads(unit)["term"], 1)

    def test_no_record(self) -> None:
        """Garbage is named with its place; exit status 1."""
        self.damage(57)
        result = self.run_cli("readfile", self.path)
        self.assertExit(result, 1, "at 55: no record")

    def test_no_files(self) -> None:
        """A directory without data files."""
        empty = Path(self.mktemp())
        empty.mkdir()
        self.assertExit(self.run_cli("readfile", str(empty)), 1, "no data file")
