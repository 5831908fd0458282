# -*- test-case-name: tests.wire.test_fastjson -*-
"""What fastjson accepts, and what we refuse although it does not."""

from __future__ import annotations

import base64
import json
from decimal import Decimal
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from protocols.wire.errors import BodyError
from protocols.wire.fastjson import (
    DEPTH_MAX,
    INT_BITS,
    LONG_BITS,
    TEXT_CHARACTERS_MAX,
    TOLERANT_BYTES_MAX,
    VALUES_MAX,
    canonical_keys,
    folded,
    read_object,
    shown,
    to_bool,
    to_bytes,
    to_enum,
    to_int,
    to_text,
    write_bytes,
    write_object,
)
from protocols.wire.ledger.codes import PushType, VoteResult
from tests.wire.values import house, texts

values = st.recursive(
    st.none() | st.booleans() | st.integers(-(1 << 63), (1 << 63) - 1) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=8,
)


def loosely(value: Any) -> str:
    """C{value} as only the tolerant parser takes it: comments, single quotes, trailing commas."""
    if isinstance(value, dict):
        return "{" + "".join(f"{loosely(key)}/**/:{loosely(item)} , " for key, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + "".join(f"{loosely(item)}// line\n," for item in value) + "]"
    if isinstance(value, str):
        quoted = json.dumps(value, ensure_ascii=False)[1:-1].replace('\\"', '"').replace("'", "\\'")
        return f"'{quoted}'"
    return json.dumps(value)


class ReadTests(SynchronousTestCase):
    """From bytes to an object."""

    def accepted(self, text: str, document: dict[str, Any]) -> None:
        """C{text} means C{document}."""
        self.assertEqual(read_object(text.encode()), document, text)

    def refused(self, body: bytes, *words: str) -> None:
        """C{body} is refused for a reason."""
        error = self.assertRaises(BodyError, read_object, body)
        for word in words:
            self.assertIn(word, str(error))

    def test_strict(self) -> None:
        """Plain JSON, with the last of equal keys."""
        self.accepted('{"a":1,"b":[true,null,"x"],"a":2}', {"a": 2, "b": [True, None, "x"]})
        self.accepted(' {"a": {"b": 7.9}} \r\n', {"a": {"b": Decimal("7.9")}})

    def test_liberties(self) -> None:
        """Each of them, seen on a Java node."""
        for text in (
            '{"a":1,}', "{'a':1}", "{a:1}", '{/* c */"a":1}', '{"a":1 /* { */ }', '{"a":1// {\n}', "{a:1L}",
            '\ufeff{"a":1}', '{"a":2,a:1}', "{\t\r\n\f\ba\t:\n1}",
        ):
            self.accepted(text, {"a": 1})
        self.accepted("{a:x'6162', b:X, }".replace("X", "undefined"), {"a": b"ab", "b": None})
        self.accepted("{1:2, -3:[4,], $_a1:{}}", {"1": 2, "-3": [4], "$_a1": {}})
        self.accepted("{a:3.5, b:-2e1, c:'}'}", {"a": Decimal("3.5"), "b": Decimal("-2e1"), "c": "}"})
        self.accepted("{a:true,b:false,c:null,}", {"a": True, "b": False, "c": None})
        self.accepted("{}", {})
        self.accepted("{/**/}//", {})

    def test_escapes(self) -> None:
        """Those of JSON, of Java, and of JavaScript."""
        self.accepted(
            r"""{a:'\b\t\n\v\f\F\r\"\'\\\/\0\7\x41\u00e9'}""", {"a": "\b\t\n\v\f\f\r\"'\\/\0\7Aé"}
        )
        self.accepted("{a:'x\ny'}", {"a": "x\ny"})
        self.accepted('{"a":"x\ny"}', {"a": "x\ny"})

    @house
    @given(st.dictionaries(texts, values, max_size=4))
    def test_strict_and_tolerant_agree(self, document: dict[str, Any]) -> None:
        """A text means the same to both parsers."""
        self.assertEqual(read_object(write_object(document)), document)
        self.assertEqual(read_object(loosely(document).encode()), document)

    def test_refused(self) -> None:
        """Neither parser takes these."""
        self.refused(b"", "no body")
        self.refused(b"\xff{}", "not UTF-8 at byte 0")
        self.refused(b'{"a":"\xed\xa0\x80"}', "not UTF-8")
        for body in (b"null", b"[]", b"1", b'"a"', b"[{}]", b"{}{}", b"'a'"):
            self.refused(body)
        for body in (
            b"{", b'{"a"', b'{"a":', b'{"a":1', b'{"a":1}}', b'{"a":1}x', b"{,}", b"{a}", b"{a;1}", b"{a:}",
            b"{a:b}", b"{a:1 b:2}", b"{a:1,,}", b"{a:'", b"{a:'\\", b"{a:'\\q'}", b"{a:'\\u12'}",
            b"{a:'\\xg0'}", b"{a:x'6'}", b"{a:x'6g'}", b"{a:x'61}", b"{a:[1}", b"{a:[1 2]}", b"{/* }",
            b"/", b"{a:-}", b"{a:+1}", b"{a:.5}", b"{a:1..2}", b"{[]:1}", b"{{}:1}", b"{a:new Date()}",
            b"{a:TRUE}",
        ):
            self.refused(body, "not JSON")

    def test_not_numbers(self) -> None:
        """Python's parser would take these for numbers."""
        for word in (b"NaN", b"Infinity", b"-Infinity"):
            self.refused(b'{"a":' + word + b"}")

    def test_absurd_numbers(self) -> None:
        """Neither a crash nor a long calculation."""
        self.refused(b'{"a":' + b"9" * 5000 + b"}", "number")
        number = read_object(b'{"a":1e999999}')["a"]
        self.assertRaises(BodyError, to_int, number, LONG_BITS, "a")
        self.refused(b'{"a":1e' + b"9" * 30 + b"}", "number")

    def test_depth(self) -> None:
        """The tolerant parser follows so far and no further; the strict one never escapes."""

        def nested(levels: int) -> bytes:
            return b"{a:" + b"[" * levels + b"]" * levels + b"}"

        read_object(nested(DEPTH_MAX))
        self.refused(nested(DEPTH_MAX + 1), f"more than {DEPTH_MAX} levels")
        for opening in (b"[", b'{"a":'):
            for levels in (10_000, 200_000):
                self.refused(b'{"a":' + opening * levels)

    def test_tolerance_has_a_size(self) -> None:
        """A large body must be strict JSON."""
        filler = b"x" * TOLERANT_BYTES_MAX
        self.assertEqual(len(read_object(b'{"a":"' + filler + b'"}')["a"]), TOLERANT_BYTES_MAX)
        self.refused(b"{'a':'" + filler + b"'}", "not strict JSON")
        self.assertEqual(len(read_object(b"{'a':'" + filler[:-8] + b"'}")["a"]), TOLERANT_BYTES_MAX - 8)

    def test_number_of_values(self) -> None:
        """Objects of Python are many times larger than the bytes that ask for them."""
        ones = b'{"a":[' + b"1," * (VALUES_MAX - 2) + b"1]}"
        self.assertEqual(len(read_object(ones)["a"]), VALUES_MAX - 1)
        self.refused(ones.replace(b"[", b"[1,"), f"{VALUES_MAX + 1} values, at most {VALUES_MAX}")
        for unit in (b"[]", b"{}"):
            self.refused(b'{"a":[' + (unit + b",") * (VALUES_MAX // 2) + b"1]}", "values")
        base64 = b"A" * (VALUES_MAX + 4)
        self.assertEqual(read_object(b'{"body":"' + base64 + b'"}'), {"body": base64.decode()})

    @house
    @given(st.binary(max_size=40) | st.text("{}[]'\",:ax0-9.\\/* \n", max_size=40).map(str.encode))
    def test_garbage(self, body: bytes) -> None:
        """An object or a L{BodyError}."""
        try:
            self.assertIsInstance(read_object(body), dict)
        except BodyError:
            pass


class KeyTests(SynchronousTestCase):
    """Keys in other spellings."""

    def test_canonical_keys(self) -> None:
        """Case, C{_} and C{-} do not count, the last spelling wins, others are dropped."""
        names = {folded(name): name for name in ("ledgerEndIndex", "term")}
        self.assertEqual(
            canonical_keys({"ledger_end_index": 1, "Term": 2, "LEDGER-END-INDEX": 3, "else": 4}, names),
            {"ledgerEndIndex": 3, "term": 2},
        )


class WriteTests(SynchronousTestCase):
    """From an object to bytes."""

    def test_shape(self) -> None:
        """Sorted, without blanks, other scripts raw, slashes as they are."""
        self.assertEqual(
            write_object({"b": "ü/\"\\\n", "a": [1, True, {"z": {}, "Y": []}], "B": 1 << 62}),
            '{"B":4611686018427387904,"a":[1,true,{"Y":[],"z":{}}],"b":"ü/\\"\\\\\\n"}'.encode(),
        )

    @house
    @given(st.binary(max_size=100))
    def test_bytes(self, value: bytes) -> None:
        """Standard Base64, and back."""
        self.assertEqual(write_bytes(value), base64.b64encode(value).decode())
        self.assertEqual(to_bytes(write_bytes(value), "body"), value)


class ConversionTests(SynchronousTestCase):
    """From a JSON value to a Java one."""

    def test_ints(self) -> None:
        """Text, fractions and booleans count; what is nothing keeps the default."""
        for value, number in (
            (3, 3), ("3", 3), ("-3", -3), ("+3", 3), ("3.0", 3), (Decimal("7.9"), 7), (Decimal("-7.9"), -7),
            (Decimal("3e2"), 300), (Decimal("0.9"), 0), (Decimal("1e-999999"), 0), (True, 1), (False, 0),
            (2147483647, 2147483647), (-2147483648, -2147483648), (None, None), ("", None), ("null", None),
        ):
            self.assertEqual(to_int(value, INT_BITS, "term"), number)
        self.assertIs(type(to_int(True, INT_BITS, "term")), int)
        self.assertEqual(to_int(Decimal("9007199254740993.0"), LONG_BITS, "term"), 9007199254740993)

    def test_ints_refused(self) -> None:
        """Out of range, or no number; the key is named."""
        value: Any
        for value in (
            1 << 31, -(1 << 31) - 1, str(1 << 31), Decimal(1 << 31), Decimal("1e19"), Decimal("1e999999"),
            Decimal("NaN"), Decimal("Infinity"), "x", "3.5", "1e2", "\u0663", " 3", "1" * 21, "1" * 5000, [],
            {}, b"3", 3.0,
        ):
            error = self.assertRaises(BodyError, to_int, value, INT_BITS, "term")
            self.assertIn("term=", str(error))
            self.assertLess(len(str(error)), 200)
        self.assertEqual(to_int((1 << 63) - 1, LONG_BITS, "term"), (1 << 63) - 1)
        self.assertEqual(to_int(str(-(1 << 63)), LONG_BITS, "term"), -(1 << 63))
        for value in (1 << 63, -(1 << 63) - 1, str(1 << 63), Decimal(1 << 63)):
            self.assertRaises(BodyError, to_int, value, LONG_BITS, "term")

    def test_bools(self) -> None:
        """True and false, as such, as numbers, as text."""
        value: Any
        for value in (True, 1, "true", "TRUE"):
            self.assertIs(to_bool(value, "batch"), True)
        for value in (False, 0, "false"):
            self.assertIs(to_bool(value, "batch"), False)
        self.assertIsNone(to_bool(None, "batch"))
        for value in (2, -1, "yes", "", [], {}, Decimal(1), b""):
            self.assertRaises(BodyError, to_bool, value, "batch")

    def test_texts(self) -> None:
        """Numbers become their text, structures do not."""
        value: Any
        for value, text in (("n0", "n0"), (5, "5"), (True, "true"), (False, "false"), (None, None),
                            (Decimal("1.50"), "1.50"), ("", ""), ("é😀", "é😀")):
            self.assertEqual(to_text(value, "group"), text)
        for value in ([], {}, b"", "\ud800", "x" * (TEXT_CHARACTERS_MAX + 1)):
            self.assertRaises(BodyError, to_text, value, "group")
        self.assertEqual(len(to_text("x" * TEXT_CHARACTERS_MAX, "group") or ""), TEXT_CHARACTERS_MAX)

    def test_enums(self) -> None:
        """By name in any case or by ordinal; unknown names are nothing, unknown ordinals wrong."""
        value: Any
        self.assertIs(to_enum("compare", PushType, "type"), PushType.COMPARE)
        self.assertIs(to_enum(3, PushType, "type"), PushType.TRUNCATE)
        self.assertIs(to_enum(11, VoteResult, "voteResult"), VoteResult.REJECT_TAKING_LEADERSHIP)
        for value in (None, "", "NONE"):
            self.assertIsNone(to_enum(value, PushType, "type"))
        for value in (4, -1, True, [], {}, Decimal(1), b""):
            self.assertRaises(BodyError, to_enum, value, PushType, "type")

    def test_base64(self) -> None:
        """Padded or not, on one line or in lines of 76."""
        for value, body in (
            ("", b""), ("aGVsbG8=", b"hello"), ("aGVsbG8", b"hello"), ("YQ", b"a"), ("YWI", b"ab"),
            ([], b""), ([104, -1, 255, 0], b"h\xff\xff\0"), (b"raw", b"raw"), (None, None),
        ):
            self.assertEqual(to_bytes(value, "body"), body)
        body = bytes(range(200))
        plain = base64.b64encode(body).decode()
        lines = "\r\n".join(plain[at : at + 76] for at in range(0, len(plain), 76))
        self.assertEqual(to_bytes(lines, "body"), body)
        self.assertEqual(to_bytes(lines.rstrip("="), "body"), body)
        self.assertEqual(to_bytes(plain.rstrip("="), "body"), body)

    def test_base64_refused(self) -> None:
        """Above all, what fastjson would silently decode to other bytes."""
        value: Any
        for value in (
            "-_-_", "aGVs\nbG8=", "aGVs\r\nbG8=", "aGVsbG8 ", "a", "aGVsb", "aGVsbG8==", "aGVsbG8=x", "====",
            "aGVsbG8é", "\ud800", 5, True, {}, [256], [-129], ["a"], [None], [Decimal(1)], "\r\n",
        ):
            self.assertRaises(BodyError, to_bytes, value, "body")

    def test_shown(self) -> None:
        """Foreign values are cut before they go into a message."""
        self.assertEqual(shown("n0"), "'n0'")
        self.assertLess(len(shown("x" * 10_000)), 80)
        self.assertLess(len(shown(10**3000)), 80)
        self.assertEqual(shown([1] * 5), "an array of 5")
        self.assertEqual(shown({"a": 1}), "an object of 1")
