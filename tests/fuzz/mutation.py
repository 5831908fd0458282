# -*- test-case-name: tests.fuzz.test_decoders -*-
"""Damage to bytes, and damage to JSON that keeps it JSON."""

from __future__ import annotations

import json
import random
import struct
from collections.abc import Callable, Sequence
from typing import Any

#: Numbers at the edges of ranges and formats.
EDGES = (
    0, 1, 2, 3, 4, 7, 8, 12, 16, 47, 48, 49, 127, 128, 255, 256, 0x7FFF, 0x8000, 0xFFFF, 0x10000, 0xFFFFFF,
    0x1000000, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, -1, -2, -48, -0x80000000,
)
LONG_EDGES = (*EDGES, 1 << 32, (1 << 63) - 1, -(1 << 63), 1 << 62)

Bytes = bytes | bytearray


def _flip(data: bytearray, rng: random.Random) -> None:
    if data:
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)


def _overwrite(data: bytearray, rng: random.Random) -> None:
    if data:
        data[rng.randrange(len(data))] = rng.choice((0, 1, 0x16, 0x22, 0x5C, 0x7B, 0x7F, 0x80, 0xD1, 0xFF))


def _insert(data: bytearray, rng: random.Random) -> None:
    at = rng.randrange(len(data) + 1)
    data[at:at] = rng.randbytes(rng.randrange(1, 9))


def _delete(data: bytearray, rng: random.Random) -> None:
    at = rng.randrange(len(data) + 1)
    del data[at : at + rng.randrange(1, 9)]


def _repeat(data: bytearray, rng: random.Random) -> None:
    at = rng.randrange(len(data) + 1)
    piece = data[at : at + rng.randrange(1, 65)]
    data[at:at] = piece * rng.choice((1, 2, 10))


def _cut(data: bytearray, rng: random.Random) -> None:
    del data[rng.randrange(len(data) + 1) :]


def _set_number(data: bytearray, rng: random.Random) -> None:
    size, form = rng.choice(((2, ">H"), (4, ">I"), (8, ">Q")))
    if len(data) >= size:
        number = rng.choice(LONG_EDGES) & ((1 << 8 * size) - 1)
        struct.pack_into(form, data, rng.randrange(len(data) - size + 1), number)


_DAMAGES: tuple[Callable[[bytearray, random.Random], None], ...] = (
    _flip, _overwrite, _insert, _delete, _repeat, _cut, _set_number, _set_number,
)


def damaged(data: bytes, corpus: Sequence[bytes], rng: random.Random) -> bytes:
    """
    C{data} after one to four accidents; in one case of ten its end is from another part of the corpus.
    """
    result = bytearray(data)
    for _ in range(rng.randrange(1, 5)):
        rng.choice(_DAMAGES)(result, rng)
    if rng.random() < 0.1:
        other = rng.choice(corpus)
        result[rng.randrange(len(result) + 1) :] = other[rng.randrange(len(other) + 1) :]
    return bytes(result)


_STRANGE: tuple[Any, ...] = (
    None, True, False, "", "x", "null", "3", "3.0", "-1", 1.5, 1e300, [], {}, [[]], [1, -1, 256], {"a": 1},
    "aGVsbG8", "-_-_", "COMPARE", "ACCEPT", "\ud800", "é😀", "x" * 5000,
)


def _strange(rng: random.Random) -> Any:
    return rng.choice(LONG_EDGES) if rng.random() < 0.5 else rng.choice(_STRANGE)


def _respelled(key: str, rng: random.Random) -> str:
    how = rng.randrange(4)
    if how == 0:
        return key.upper()
    if how == 1 and key:
        at = rng.randrange(len(key))
        return key[:at] + rng.choice("_-") + key[at:]
    return rng.choice(("entry", "batchEntry", "entries", "preLogIndex", "wireVersion", "else", ""))


def damaged_json(document: Any, rng: random.Random) -> Any:
    """
    C{document} with one value changed, one key respelled, or one member lost, at any depth.
    """
    if isinstance(document, dict) and document:
        members = list(document.items())
        at = rng.randrange(len(members))
        key, value = members[at]
        how = rng.randrange(6)
        if how == 0:
            members[at] = (_respelled(key, rng), value)
        elif how == 1:
            del members[at]
        elif how == 2:
            members.append((rng.choice(members)[0], _strange(rng)))
        elif how == 3:
            members[at] = (key, _strange(rng))
        else:
            members[at] = (key, damaged_json(value, rng))
        return dict(members)
    if isinstance(document, list) and document:
        at = rng.randrange(len(document))
        how = rng.randrange(4)
        if how == 0:
            return [*document, *document]
        return [*document[:at], *([] if how == 1 else [damaged_json(document[at], rng)]), *document[at + 1 :]]
    return _strange(rng)


def loosely(value: Any, rng: random.Random) -> str:
    """
    C{value} as JSON with the liberties that fastjson allows.
    """
    space = rng.choice(("", "", "", " ", "\n", "/* , */", "//\n"))
    if isinstance(value, dict):
        members = [
            f"{key if key.isidentifier() and rng.random() < 0.5 else loosely(key, rng)}:{loosely(item, rng)}"
            for key, item in value.items()
        ]
        return space + "{" + ",".join(members) + (rng.choice(("", "", ",")) if members else "") + "}"
    if isinstance(value, list):
        items = ",".join(loosely(item, rng) for item in value)
        return space + "[" + items + (rng.choice(("", ",")) if value else "") + "]"
    text = json.dumps(value, ensure_ascii=rng.random() < 0.5)
    if isinstance(value, str) and rng.random() < 0.5:
        text = "'" + text[1:-1].replace('\\"', '"').replace("'", "\\'") + "'"
    return space + text
