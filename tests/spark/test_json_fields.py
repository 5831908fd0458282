# -*- test-case-name: tests.spark.test_json_fields -*-
"""
Columns of JSON bodies: from each row the body's facts are found again, by another parser.

What a column or C{_rescued} says is put together to an object (L{found_again}), and compared with what the
standard library makes of the body (L{facts_of}), numbers as decimals.
"""

from __future__ import annotations

import base64
import json
import random
from decimal import Decimal, InvalidOperation
from typing import Any

import pyarrow as pa
from twisted.trial.unittest import SynchronousTestCase

from dledger.spark.export import json_fields
from dledger.spark.export.json_fields import (
    DEPTH_MAX,
    FIELDS_MAX,
    NAME_MAX,
    RESCUED,
    JsonFields,
    is_column_name,
)

Kinds = dict[str, str]


class _Pairs(list[tuple[str, Any]]):
    """An object, with all its fields."""


def parse(text: str) -> Any:
    """JSON with exact numbers and each field of each object; ValueError: it is none."""
    def refuse(word: str) -> object:
        raise ValueError(word)

    def number(word: str) -> object:
        try:
            return Decimal(word)
        except InvalidOperation:
            return ("number", word)

    return json.loads(text, parse_float=number, parse_int=number, parse_constant=refuse,
                      object_pairs_hook=_Pairs)


def depth_of(value: Any) -> int:
    """Arrays and objects inside each other."""
    if isinstance(value, _Pairs):
        return 1 + max((depth_of(one) for _, one in value), default=0)
    return 1 + max(map(depth_of, value), default=0) if isinstance(value, list) else 0


def facts_of(body: bytes) -> Any:
    """What a body says: the fields that are not null, if it is a sound object; else the body itself."""
    try:
        found = parse(body.decode())
        is_sound = isinstance(found, _Pairs) and len(dict(found)) == len(found)
        if is_sound and depth_of(found) <= DEPTH_MAX:
            return {name: value for name, value in found if value is not None}
    except (ValueError, RecursionError):
        pass
    return body


def found_again(row: dict[str, Any], kinds: Kinds) -> Any:
    """The same from a row."""
    rescued = row[RESCUED]
    found: dict[str, Any] = {}
    if rescued is not None:
        rest = parse(rescued)
        if not isinstance(rest, _Pairs):
            return base64.b64decode(rest[0]) if isinstance(rest, list) else rest.encode()
        found = dict(rest)
        assert len(found) == len(rest)
    for name, kind in kinds.items():
        value = row[name]
        if value is None:
            continue
        assert name not in found
        is_number = kind in ("BIGINT", "DOUBLE")
        found[name] = parse(value) if kind == "JSON" else Decimal(repr(value)) if is_number else value
    return found


def text_of(body: object) -> bytes:
    """JSON of a value; bytes as they are."""
    return body if isinstance(body, bytes) else json.dumps(body).encode()


def drawn_body(chance: random.Random) -> bytes:
    """Something like an object, and often not quite."""
    numbers = ("0", "-0", "1", "-17", "1.5", "2.0", "1e3", "1E400", "0.1000000000000000055511151231257827",
               "-0.0", "1000000000000000000000", str(2**53 + 1), str(2**63 - 1), str(2**63),
               str(-(2**63)), "1" * 50, "1" * 5000, "0." + "3" * 500,
               "NaN", "Infinity", "01", "1.", "-", "+1", "4.9e-324", "1e-400", "1e99999999999999999999")
    strings = ('"a"', '""', '"\\u0000"', '"\\ud800"', '"\\ud83d\\ude00"', '"é"', '"{"', '"["', '"\\\\"',
               '"\\""', '"x', '"\t"', '"\\q"')
    names = ("a", "b", "c", "A", "ä", "Ä", "", "index", "TERM", "_rescued", "a b", "a,b", "x" * 10_000,
             "n", "m", "\\u0061", "\\ud800", "@t", "$", "ﬁ", "fi")

    def value(depth: int) -> str:
        kind = chance.randrange(8 if depth < 4 else 6)
        if kind < 2:
            return chance.choice(numbers)
        if kind < 4:
            return chance.choice(strings)
        if kind < 6:
            return chance.choice(("true", "false", "null"))
        items = [value(depth + 1) for _ in range(chance.randrange(3))]
        if kind == 6:
            return "[" + ", ".join(items) + "]"
        return "{" + ",".join(f'"{chance.choice(names)}": {item}' for item in items) + "}"

    blank = chance.choice(("", " ", "\n", "\t", "\r"))
    fields = [f'{blank}"{chance.choice(names)}"{blank}:{blank}{value(0)}{blank}'
              for _ in range(chance.randrange(5))]
    text = blank + "{" + ",".join(fields) + "}" + blank
    body = text.encode()
    if chance.random() < 0.2 and body:
        at = chance.randrange(len(body))
        body = body[:at] + chance.choice((b"", b"\xff", b",", b"}", b'"', b"{", b"\x00")) + body[at + 1 :]
    return body


class FactsTests(SynchronousTestCase):
    """Nothing is lost, and nothing invented."""

    def rows(
        self, bodies: list[Any], *, reserved: tuple[str, ...] = (), kinds: Kinds | None = None
    ) -> tuple[list[dict[str, Any]], Kinds]:
        """Rows of bodies, and the columns; their facts are there."""
        fields = JsonFields((kinds or {}).items(), reserved)
        texts = [text_of(body) for body in bodies]
        batch = fields.decode(texts)
        self.assertEqual(batch.schema, fields.schema)
        found = batch.to_pylist()
        for text, row in zip(texts, found, strict=True):
            self.assertEqual(found_again(row, fields.kinds), facts_of(text), text[:200])
        return found, fields.kinds

    def test_types(self) -> None:
        """The first value that has a type makes the column; what does not fit is rescued."""
        rows, kinds = self.rows([
            {"n": 1, "d": 1.5, "b": True, "s": "x", "j": [1, {"a": 2}], "none": None},
            {"n": 1.5, "d": 7, "b": 1, "s": 2, "j": "text"},
            {"n": True, "d": "x", "b": None, "s": {"a": 1}, "j": 17},
            b'{"n": 9223372036854775808, "d": 9007199254740993, "s": "\\ud800"}',
            b'{"n": -9223372036854775808, "d": 0.30000000000000000001}',
        ])
        self.assertEqual(kinds, {"n": "BIGINT", "d": "DOUBLE", "b": "BOOLEAN", "s": "STRING", "j": "JSON"})
        self.assertEqual([[row[name] for name in kinds] for row in rows], [
            [1, 1.5, True, "x", '[1, {"a": 2}]'], [None, 7.0, None, None, '"text"'],
            [None, None, None, None, "17"], [None] * 5, [-(2**63), None, None, None, None],
        ])
        self.assertEqual([row[RESCUED] for row in rows], [
            None, '{"n":1.5,"b":1,"s":2}', '{"n":true,"d":"x","s":{"a": 1}}',
            '{"n":9223372036854775808,"d":9007199254740993,"s":"\\ud800"}', '{"d":0.30000000000000000001}',
        ])

    def test_no_column_from_what_does_not_fit(self) -> None:
        """A value that no type holds makes no column; a later one does."""
        _, kinds = self.rows([b'{"a": 18446744073709551615, "b": 1e999, "c": "\\udc00"}',
                              {"a": "x", "b": 1, "c": 1.5}])
        self.assertEqual(kinds, {"a": "STRING", "b": "BIGINT", "c": "DOUBLE"})

    def test_no_object(self) -> None:
        """Other JSON, no JSON, no text, fields that are there twice, and deep ones: the body as a whole."""
        deep = DEPTH_MAX - 1
        bodies: list[Any] = [
            b"", b"[1]", b"1", b'"{"', b'"{}"', b'"x"', b"null", b"{", b"{}x", b'{"a":1,}', b"{,}", b'{"a"}',
            b"\xff", b"\xef\xbb\xbf{}", b'{"a": NaN}', b'{"a": [NaN]}', b'{"a": 1, "a": 1}',
            b"{'a': 1}", b'{"a": [], "\\u0061": 1}', b'{"a": "\n"}', b'{"a": 1} {"a": 2}', b'{"a": 01}',
            b'{"a": ' + b"[" * DEPTH_MAX + b"]" * DEPTH_MAX + b"}",
            b'{"a": ' + b'{"a":' * 100_000, b'{"a": "' + b'\\"' * 100_000,
        ]
        rows, kinds = self.rows(bodies)
        self.assertEqual(kinds, {})
        self.assertTrue(all(row[RESCUED][0] in '"[' for row in rows))
        rows, kinds = self.rows([b"{}", b" {\n} ", b'{"a":' + b"[" * deep + b"]" * deep + b"}"])
        self.assertEqual([row[RESCUED] for row in rows], [None] * 3)
        brackets = b'{"a": ' + json.dumps("[" * 1000).encode() + b', "b": [[]]}'
        self.assertEqual(self.rows([brackets])[1], {"a": "STRING", "b": "JSON"})

    def test_names(self) -> None:
        """Names of other columns, in any case, those that differ only in case, and those that tables lack."""
        names = ["index", "Term", "_rescued", "Day", "id", "ID", "Id", "ﬁ", "fi", "ä", "Ä", "", "a b", "a.b",
                 "x;y", "z\n", "n" * NAME_MAX, "n" * NAME_MAX + "n", "y" * 10_000, "@timestamp", "$x", "a-b",
                 "数量", "\ud800"]
        _, kinds = self.rows([{name: number for number, name in enumerate(names)}],
                             reserved=("index", "term", "day"))
        self.assertEqual(list(kinds), ["id", "ﬁ", "ä", "n" * NAME_MAX, "@timestamp", "$x", "a-b", "数量"])
        self.assertEqual([is_column_name(name) for name in ("a", "a b", "")], [True, False, False])

    def test_many_names(self) -> None:
        """Of 100,000 fields the first ones are columns, and all are there."""
        _, kinds = self.rows([{f"f{number}": number for number in range(100_000)}, {"f99999": 1, "f7": 2}])
        self.assertEqual(list(kinds), [f"f{number}" for number in range(FIELDS_MAX)])

    def test_drawn(self) -> None:
        """Hostile bodies: all facts are there, and the rows do not depend on where batches end."""
        for seed in range(150):
            chance = random.Random(seed)
            self.patch(json_fields, "FIELDS_MAX", chance.choice((2, 500)))
            bodies = [drawn_body(chance) for _ in range(40)]
            rows, kinds = self.rows(bodies, reserved=("index", "term"))
            for size in (1, 7):
                again = JsonFields((), ("index", "term"))
                cut = [again.decode(bodies[at : at + size]) for at in range(0, len(bodies), size)]
                self.assertEqual(list(again.kinds.items()), list(kinds.items()))
                tables = pa.concat_tables([again.schema.empty_table(), *map(pa.table, cut)],
                                          promote_options="default")
                self.assertEqual(tables.to_pylist(), rows)
            begun = JsonFields(kinds.items(), ("index", "term"))
            self.assertEqual(begun.decode(bodies).schema, begun.schema)

    def test_no_body(self) -> None:
        """A row without a body has no fields."""
        batch = JsonFields((("a", "BIGINT"),), ()).decode([None, b'{"a": 1}'])
        self.assertEqual(batch.to_pylist(), [{RESCUED: None, "a": None}, {RESCUED: None, "a": 1}])
