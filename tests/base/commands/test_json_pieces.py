# -*- test-case-name: tests.base.commands.test_json_pieces -*-
"""A long JSON object is read like a short one, in pieces of bounded size."""

from __future__ import annotations

import json

from twisted.trial.unittest import SynchronousTestCase

from dledger.rocketmq.answering import json_pieces
from dledger.rocketmq.answering.json_pieces import VALUE_BYTES_MAX, WORDS, JsonPieces
from dledger.rocketmq.answering.pieces import Pieces, at_once
from protocols.wire.errors import BodyError


def members(body: bytes, skipped: str = "-") -> Pieces[dict[str, object]]:
    """All members of an object; of those whose key begins with C{skipped} only the keys."""
    pieces, found = JsonPieces(body), dict[str, object]()
    yield from pieces.begin("it")
    while (key := (yield from pieces.key())) is not None:
        if key.startswith(skipped):
            yield from pieces.skip()
            found[key] = None
        else:
            found[key] = yield from pieces.value()
    yield from pieces.end()
    return found


class ReadTests(SynchronousTestCase):
    """Against the decoder that reads a text at once."""

    def test_wherever_it_is_cut(self) -> None:
        """The bytes of a piece end anywhere: in a number, a text, an escape, a character."""
        document = {"a": 12345, "b": "größe \u2028 \\ \" \U0001f600", "c": [1.5, None, {"x": [True]}], "": {}}
        for text in (json.dumps(document), json.dumps(document, ensure_ascii=False, indent=1)):
            for size in range(1, 40):
                self.patch(json_pieces, "CHUNK_BYTES", size)
                self.assertEqual(at_once(members(text.encode())), json.loads(text), size)

    def test_skipped(self) -> None:
        """Values that are not wanted may be long, and have bare numbers as keys."""
        loose = '{0:{1:[2,"}",{}],-3:"\\""}} '
        long = "[" + ",".join(['"x"'] * 60_000) + "]"
        text = f'{{"-a":{loose},"b":1,"-c":{long},"-d":12,"-e":"y","f":2}}'
        for size in (1, 7, 32 * 1024):
            self.patch(json_pieces, "CHUNK_BYTES", size)
            found = at_once(members(text.encode() if size > 1 else text.replace(long, "[]").encode()))
            self.assertEqual(found, {"-a": None, "b": 1, "-c": None, "-d": None, "-e": None, "f": 2})

    def test_endless(self) -> None:
        """All that is skipped in one text has a bound."""
        self.patch(json_pieces, "SKIPPED_MAX", 5000)
        many = ",".join("1" * 2000)
        self.assertEqual(at_once(members(f'{{"-a":[{many}]}}'.encode())), {"-a": None})
        error = self.assertRaises(BodyError, at_once, members(f'{{"-a":[{many}],"-b":[{many}]}}'.encode()))
        self.assertIn("5000 words that nobody reads", str(error))

    def test_refused(self) -> None:
        """Bytes that are not an object of JSON."""
        for body in (
            b"", b"[]", b"1", b"{", b'{"a"', b'{"a":', b'{"a":1', b'{"a":1,', b'{"a":1,}', b'{,"a":1}',
            b'{a:1}',
            b'{"a" 1}', b'{"a":1 "b":2}', b'{"a":1}x', b'{"a":nope}', b'{"a":"\xff"}', b'{"-a":"x',
            b'{"-a":[1',
            b'{"a":NaN}', b'{"a":' + b"[" * 30_000, b'{1:2}', b"{}{}",
        ):
            self.assertRaises(BodyError, at_once, members(body))

    def test_long_values(self) -> None:
        """A value beyond the bound is refused before more of it is decoded."""
        fits = b'{"a":"' + b"x" * (VALUE_BYTES_MAX - 10) + b'"}'
        self.assertEqual(len(str(at_once(members(fits))["a"])), VALUE_BYTES_MAX - 10)
        for name in (b"a", b"-a"):
            body = b'{"%s":"' % name + b"x" * (1 << 20)
            self.assertLess(len(list(self.refused(members(body)))), 8)

    def refused(self, pieces: Pieces[object]) -> list[None]:
        """The pieces before it is refused."""
        found = []
        with self.assertRaises(BodyError):
            for one in pieces:
                found.append(one)
        return found

    def test_pieces(self) -> None:
        """Many short members, and many words of what is skipped, are many pieces."""
        many = b"{" + b",".join(b'"a":1' for _ in range(2000)) + b"}"
        self.assertGreaterEqual(len(list(members(many))), 2000 // json_pieces.MEMBERS)
        deep = b'{"-a":' + b"[" * 10_000 + b"]" * 10_000 + b"}"
        self.assertGreaterEqual(len(list(members(deep))), 20_000 // WORDS)
