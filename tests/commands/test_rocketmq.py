# -*- test-case-name: tests.commands.test_rocketmq -*-
"""Entries of a RocketMQ broker on the command line."""

from __future__ import annotations

import base64
import json
import zlib
from typing import Any

from dledger.base.disk.disk import OsDisk
from dledger.cli.rocketmq.rocketmq import message_json, message_line, read_entry
from dledger.client.values import Entry
from dledger.storage.store.file_store import FileStore
from dledger.values.ledger.config import DLedgerConfig
from protocols.wire.rocketmq.layout import TERM_START_TOPIC, SysFlag
from protocols.wire.rocketmq.message import Host, encode_message, make_message
from tests.commands.fakes import CliCase

HOST = Host.of("10.0.0.7", 10911)


def body(index: int, text: bytes = b"hello", *, pos: int | None = None, **fields: Any) -> bytes:
    """The message of the entry at C{index}, by default where L{tests.commands.fakes.FakeLog} has it."""
    fields.setdefault("properties", {"KEYS": "k1 k2", "TAGS": "A", "colour": "bl\tue"})
    fields.setdefault("topic", "orders")
    at = 100 * index if pos is None else pos
    topic = fields.pop("topic")
    return encode_message(
        make_message(topic, text, physical_offset=at + 48, queue_id=3, queue_offset=17, born_host=HOST,
                     store_host=HOST, born_timestamp=1700000000000, store_timestamp=1700000000005, **fields)
    )


def damaged(record: bytes) -> bytes:
    """The same with another body than its checksum says."""
    assert b"hello" in record
    return record.replace(b"hello", b"hallo")


class RocketMqCase(CliCase):
    """A log with messages, a term-start entry, a damaged message, and something else."""

    def setUp(self) -> None:
        super().setUp()
        self.log.bodies = [b"", body(1), damaged(body(2)), b"something else", body(4, b"last\n\xff")]


class TailTests(RocketMqCase):
    """C{dledger tail --format rocketmq}."""

    def test_lines(self) -> None:
        """Each entry has its line, whatever it is; none ends the output."""
        result = self.run_cli("tail", "--format", "rocketmq")
        self.assertExit(result, 0)
        lines = [line.split("\t") for line in result.stdout.splitlines()]
        self.assertEqual([line[:2] for line in lines], [[f"index={index}", "term=1"] for index in range(5)])
        begins = "no message: empty body, or the record of a broker, as at the start of a term"
        self.assertEqual(lines[0][2:], [begins])
        self.assertEqual(
            lines[1][2:],
            ["topic=orders", "queue=3", "queueOffset=17", "tags=A", "keys=k1 k2",
             'properties={"KEYS":"k1 k2","TAGS":"A","colour":"bl\\tue"}', "body=hello"],
        )
        self.assertTrue(lines[2][2].startswith("DAMAGED: message at 0: bodyCRC="), lines[2])
        self.assertEqual(lines[3][2:], ["no message: 14 bytes: something else"])
        self.assertEqual(lines[4][-1], "body=last\\n\\xff")

    def test_json(self) -> None:
        """An object a line; C{kind} says what each is."""
        result = self.run_cli("tail", "--format", "rocketmq", "--json")
        self.assertExit(result, 0)
        documents = [json.loads(line) for line in result.stdout.splitlines()]
        self.assertEqual([document["kind"] for document in documents],
                         ["empty", "message", "damaged", "other", "message"])
        self.assertIn("bodyCRC=", documents[2]["problem"])
        self.assertEqual(base64.b64decode(documents[4]["body_base64"]), b"last\n\xff")
        self.assertEqual(documents[3]["body"], "something else")
        self.assertEqual(documents[0], {"index": 0, "term": 1, "pos": 0, "kind": "empty", "body": ""})

    def test_from(self) -> None:
        """The other options keep their effect."""
        result = self.run_cli("tail", "--format", "rocketmq", "--from", "1", "-n", "2")
        self.assertEqual([line.split("\t")[0] for line in result.stdout.splitlines()], ["index=1", "index=2"])

    def test_follow(self) -> None:
        """What is there goes out before anything is waited for."""
        result = self.run_cli("tail", "--format", "rocketmq", "-f", "--from", "3")
        self.assertExit(result, 130)
        self.assertEqual(len(result.stdout.splitlines()), 2)

    def test_json_of_other_formats(self) -> None:
        """Of text it is the format of that name; with raw it makes no sense, which is said before asking."""
        as_flag = self.run_cli("tail", "-n", "1", "--json")
        self.assertEqual(as_flag.stdout, self.run_cli("tail", "-n", "1", "--format", "json").stdout)
        self.assertEqual(as_flag.stdout, self.run_cli("tail", "-n", "1", "--format", "json", "--json").stdout)
        self.opened.clear()
        result = self.run_cli("tail", "--format", "raw", "--json")
        self.assertExit(result, 64, "--format raw writes bodies as they are, so it excludes --json")
        self.assertEqual(self.opened, [])

    def test_unknown_format(self) -> None:
        """Those that there are are named."""
        self.assertExit(self.run_cli("tail", "--format", "kafka"), 64, "'kafka'", "'rocketmq'")


class GetTests(RocketMqCase):
    """C{dledger get --format rocketmq}."""

    def test_line(self) -> None:
        """The same line."""
        result = self.run_cli("get", "1", "--format", "rocketmq")
        self.assertEqual(result.stdout.split("\t")[2], "topic=orders")

    def test_json(self) -> None:
        """Every field of the record."""
        document = json.loads(self.run_cli("get", "1", "--format", "rocketmq", "--json").stdout)
        self.assertEqual(document, {
            "index": 1, "term": 1, "pos": 100, "kind": "message", "topic": "orders", "queue_id": 3,
            "queue_offset": 17, "physical_offset": 148, "message_id": "0A00000700002A9F0000000000000094",
            "unique_key": None, "tags": "A", "keys": ["k1", "k2"],
            "properties": {"KEYS": "k1 k2", "TAGS": "A", "colour": "bl\tue"}, "flag": 0, "sys_flag": 0,
            "compression": "none", "transaction": "none", "born_timestamp": 1700000000000,
            "born_host": "10.0.0.7:10911", "store_timestamp": 1700000000005, "store_host": "10.0.0.7:10911",
            "reconsume_times": 0, "prepared_transaction_offset": 0, "body": "hello",
        })

    def test_raw_and_json(self) -> None:
        """Refused here, too."""
        self.assertExit(self.run_cli("get", "1", "--format", "raw", "--json"), 64, "excludes --json")


class EntryTests(CliCase):
    """What an entry is."""

    def kind(self, data: bytes, pos: int = 100) -> str:
        """Of an entry with this body."""
        return read_entry(Entry(index=1, term=1, pos=pos, body=data)).kind

    def test_kinds(self) -> None:
        """By magic, by lengths, by position, and by the bytes after it."""
        self.assertEqual(self.kind(body(1)), "message")
        self.assertEqual(self.kind(body(1, topic=TERM_START_TOPIC, sys_flag=int(SysFlag.ROLLBACK))), "empty")
        self.assertEqual(self.kind(body(1, sys_flag=int(SysFlag.ROLLBACK))), "message")
        self.assertEqual(self.kind(body(1), pos=101), "damaged")
        self.assertEqual(self.kind(body(1)[:-1]), "damaged")
        self.assertEqual(self.kind(body(1) + b"x"), "damaged")
        self.assertEqual([self.kind(data) for data in (b"", b"1234567", b"x" * 200)],
                         ["empty", "other", "other"])

    def test_compressed(self) -> None:
        """Bodies are shown as they were sent; what cannot be unpacked is shown as it is stored."""
        packed = Entry(index=1, term=1, pos=100, body=body(1, zlib.compress(b"hello"), sys_flag=1))
        self.assertTrue(message_line(packed).endswith("\tbody=hello"))
        self.assertEqual(message_json(packed)["compression"], "zlib")
        foreign = Entry(index=1, term=1, pos=100, body=body(1, b"abc", sys_flag=0x201))
        self.assertIn("\tNOT UNPACKED: body is compressed by zstd", message_line(foreign))
        document = message_json(foreign)
        self.assertEqual((document["kind"], document["body"]), ("message", "abc"))
        self.assertIn("zstd", document["problem"])

    def test_transactions(self) -> None:
        """Shown only where there is one."""
        self.assertNotIn("transaction", message_line(Entry(index=1, term=1, pos=100, body=body(1))))
        prepared = Entry(index=1, term=1, pos=100, body=body(1, sys_flag=4))
        self.assertIn("\ttransaction=prepared\t", message_line(prepared))

    def test_no_terminal_is_harmed(self) -> None:
        """Control characters of topic, tags, keys and values are escaped."""
        fields = {"topic": "a\x1b[31m", "properties": {"TAGS": "\x07", "KEYS": "\t"}}
        line = message_line(Entry(index=1, term=1, pos=100, body=body(1, **fields)))
        self.assertEqual([c for c in line.replace("\t", "") if not c.isprintable()], [])
        self.assertEqual(line.count("\t"), 8)

    def test_no_properties(self) -> None:
        """Then tags and keys are empty."""
        line = message_line(Entry(index=1, term=1, pos=100, body=body(1, properties={})))
        self.assertIn("\ttags=\tkeys=\tproperties={}\t", line)


class ReadFileTests(CliCase):
    """C{dledger readfile --format rocketmq}."""

    def test_records(self) -> None:
        """After each header, what its body is."""
        config = DLedgerConfig(
            store_base_dir=self.mktemp(), mapped_file_size_for_entry_data=1024,
            mapped_file_size_for_entry_index=32 * 16,
        )
        store = FileStore.open(config, OsDisk())
        store.append_bodies((b"",), 1)
        store.append_bodies((body(1, pos=48),), 1)
        store.clean_close()
        result = self.run_cli("readfile", config.self_path, "--format", "rocketmq")
        self.assertExit(result, 0)
        first, second = result.stdout.splitlines()
        self.assertIn("\tno message: empty body, or the record of a broker,", first)
        self.assertTrue(second.startswith("index=1 term=1 pos=48 "))
        self.assertIn("\ttopic=orders\tqueue=3\t", second)
