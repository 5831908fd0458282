# -*- test-case-name: tests.storage.test_properties -*-
"""Java's properties text: written as Java writes it, read as Java reads it."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from dledger.base.disk.hints import Hints
from dledger.storage.files.properties import (
    encode_ledger_checkpoint,
    java_long,
    parse_properties,
    read_checkpoint,
)
from dledger.testing.world.memory_disk import MemoryDisk
from protocols.wire.checksums import crc32


class PropertiesTests(SynchronousTestCase):
    """Reading."""

    def test_every_form_is_read(self) -> None:
        """Comments, separators, escapes, continued lines, any line end."""
        for text, expected in (
            ("a=1\nb=2\n", {"a": "1", "b": "2"}),
            ("a:1\r\nb 2\rc\t=\t3", {"a": "1", "b": "2", "c": "3"}),
            ("# x=1\n  ! y=2\n\n   a = 1 ", {"a": "1 "}),
            ("a=1\\\n   2\n", {"a": "12"}),
            ("a\\=b=\\u0041\\t\\q\n", {"a=b": "A\tq"}),
            ("a=1\na=2", {"a": "2"}),
            ("a", {"a": ""}),
            ("a\\\n", {"a": ""}),
            ("a=1\\\n# 2\nb=3\\", {"a": "1# 2", "b": "3"}),
            ("voteLeader=\ncurrTerm=1\n", {"voteLeader": "", "currTerm": "1"}),
            ("a=b=c", {"a": "b=c"}),
            ("\\u00g=1", {"u00g": "1"}),
        ):
            self.assertEqual(parse_properties(text.encode("latin-1")), expected, text)

    @given(st.binary(max_size=80))
    @settings(max_examples=300, deadline=None, derandomize=True)
    def test_any_bytes_are_read(self, data: bytes) -> None:
        """Nothing makes it fail."""
        parse_properties(data)

    def test_numbers_are_read_like_java(self) -> None:
        """Numbers are read as Long.valueOf reads them."""
        for text, expected in (("1", 1), ("-1", -1), ("+7", 7), ("007", 7),
                               ("9223372036854775807", 2**63 - 1),
                               ("9223372036854775808", None), ("", None), (" 1", None),
                               ("1.0", None),
                               ("0x1", None), (None, None), ("--1", None)):
            self.assertEqual(java_long(text), expected, repr(text))


class CheckpointTests(SynchronousTestCase):
    """The checkpoint file."""

    def test_golden_bytes_are_written(self) -> None:
        """The lines of Java, and a comment."""
        for numbers, lines in (((1, 5), b"committedIndex=1\nendIndex=5\n"),
                               ((-1, -1), b"committedIndex=-1\nendIndex=-1\n")):
            self.assertEqual(encode_ledger_checkpoint(*numbers), lines + b"#crc32 %08x\n" % crc32(lines))

    def test_a_checkpoint_is_read_in_any_order(self) -> None:
        """Either order; what makes no sense counts as absent."""
        disk = MemoryDisk()
        self.assertIsNone(read_checkpoint(Hints(disk), "d"))
        for content, expected in ((b"endIndex=5\ncommittedIndex=1\n", (1, 5)),
                                  (b"committedIndex=3\n", (3, -2)),
                                  (b"", None), (b"committedIndex=x\nendIndex=5\n", None),
                                  (b"committedIndex=1\nendIndex=5", None),
                                  (encode_ledger_checkpoint(1, 5), (1, 5)),
                                  (encode_ledger_checkpoint(1, 5).replace(b"5", b"4", 1), None)):
            disk.write_file("d/checkpoint", content)
            self.assertEqual(read_checkpoint(Hints(disk), "d"), expected, content)
