# -*- test-case-name: tests.storage.test_properties -*-
"""
Java's properties text, to the extent that C{currterm} and C{checkpoint} need it; the seal of a text file; the
checkpoint.

A seal is the last line of a file, a comment with the checksum of the lines before it, over which Java reads.

Reading is as tolerant as C{Properties.load}: comments, C{=} or C{:} or blanks, escapes, lines
continued by a backslash. Writing produces the bytes that Java produces.

Source: IOUtils.java, DLedgerMmapFileStore.persistCheckPoint (0.3.1.2).
"""

from __future__ import annotations

import re

from dledger.base.disk.file_table import LEDGER_CHECKPOINT
from dledger.base.disk.hints import HintFile, Hints
from protocols.wire.checksums import crc32

_SEAL = re.compile(rb"^#crc32 ([0-9a-f]{8})\n", re.MULTILINE)
_ESCAPE = re.compile(r"\\(u[0-9a-fA-F]{4}|.)", re.DOTALL)
_ESCAPED = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}


def _unescape(text: str) -> str:
    def one(match: re.Match[str]) -> str:
        letter = match.group(1)
        if len(letter) == 5:
            return chr(int(letter[1:], 16))
        return _ESCAPED.get(letter, letter)

    return _ESCAPE.sub(one, text)


def _logical_lines(text: str) -> list[str]:
    lines: list[str] = []
    pending = ""
    for raw in re.split(r"\r\n|\r|\n", text):
        line = raw.lstrip(" \t\f")
        if not pending and (not line or line[0] in "#!"):
            continue
        pending += line
        if (len(pending) - len(pending.rstrip("\\"))) % 2:
            pending = pending[:-1]
            continue
        lines.append(pending)
        pending = ""
    if pending:
        lines.append(pending)
    return lines


def property_pairs(data: bytes) -> list[tuple[str, str]]:
    """Keys and values in their order. Never fails: malformed lines become odd keys."""
    pairs = []
    for line in _logical_lines(data.decode("latin-1")):
        match = re.match(r"((?:\\.|[^\\=: \t\f])*)[ \t\f]*[=:]?[ \t\f]*(.*)", line, re.DOTALL)
        assert match is not None
        pairs.append((_unescape(match.group(1)), _unescape(match.group(2))))
    return pairs


def parse_properties(data: bytes) -> dict[str, str]:
    """Key to value; of equal keys the last one counts. Never fails, as L{property_pairs}."""
    return dict(property_pairs(data))


def java_long(text: str | None) -> int | None:
    """The value of C{Long.valueOf} for C{text}; None where that would refuse the text."""
    if text is None or not re.fullmatch(r"[+-]?[0-9]{1,19}", text):
        return None
    value = int(text)
    return value if -(2**63) <= value < 2**63 else None


def sealed(lines: bytes) -> bytes:
    """The lines of a file, and their seal."""
    return b"%s#crc32 %08x\n" % (lines, crc32(lines))


def is_sealed(data: bytes) -> bool | None:
    """Whether the seal of a file is that of its lines; None: it has no seal."""
    seal = _SEAL.search(data)
    if seal is None:
        return None
    return seal.end() == len(data) and int(seal[1], 16) == crc32(data[: seal.start()])


def is_commented(data: bytes) -> bool:
    """Whether it may have a comment: Java writes none, and we a seal."""
    return b"#" in data or b"!" in data


def encode_ledger_checkpoint(committed_index: int, end_index: int) -> bytes:
    """Content of the checkpoint: the lines that Java writes, and a seal."""
    return sealed(f"committedIndex={committed_index}\nendIndex={end_index}\n".encode())


def read_checkpoint(hints: Hints, directory: str) -> tuple[int, int] | None:
    """
    C{committedIndex} and C{endIndex} (-2 if absent) of the checkpoint; None if it is absent or malformed.

    Nothing is lost without it: a leader reports the committed index again.
    """
    return HintFile(hints, LEDGER_CHECKPOINT, directory).read(decode_ledger_checkpoint)


def checkpoint_damage(content: bytes) -> str:
    """What is wrong with the bytes of a checkpoint, as we or Java write them; empty if nothing is."""
    keys = [key for key, _ in property_pairs(content)]
    if (decode_ledger_checkpoint(content) is not None and sorted(keys) == ["committedIndex", "endIndex"]
            and (is_sealed(content) or not is_commented(content))):
        return ""
    return "malformed, or its seal does not fit: committedIndex=<number>, endIndex=<number> expected"


def decode_ledger_checkpoint(content: bytes) -> tuple[int, int] | None:
    """C{committedIndex} and C{endIndex} (-2 if absent) of a checkpoint's content; None if it is malformed."""
    if not content.endswith(b"\n"):
        return None  # truncated: a number in it may be truncated, too
    if is_sealed(content) is False:
        return None
    found = parse_properties(content)
    committed = java_long(found.get("committedIndex"))
    if committed is None:
        return None
    end = java_long(found.get("endIndex"))
    return committed, -2 if end is None else end
