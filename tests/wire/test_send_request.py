# -*- test-case-name: tests.wire.test_send_request -*-
"""The short way for sends reads the same from every frame as the long way."""

from __future__ import annotations

import json
import random
from typing import Any

from twisted.trial.unittest import SynchronousTestCase

from protocols.wire.errors import WireError
from protocols.wire.remoting import RemotingCommand, decode_command, encode_command
from protocols.wire.rocketmq.send_request import (
    LAYOUTS_MAX,
    SHAPES_MAX,
    SendMessageRequest,
    SendReader,
    SentAnswers,
)
from tests.fuzz.mutation import damaged

#: As a Java producer of 4.9.8 writes it (captured), except the names.
CAPTURED = (
    b'{"code":310,"extFields":{"a":"P","b":"T1","c":"TBW102","d":"4","e":"2","f":"0","g":"1795190400123",'
    b'"h":"0","i":"UNIQ_KEY\\u00017F00000148C318B4AAC2928C7F0A0000\\u0002WAIT\\u0001true\\u0002TAGS\\u0001A",'
    b'"j":"0","k":"false","m":"false"},"flag":0,"language":"JAVA","opaque":17,'
    b'"serializeTypeCurrentRPC":"JSON","version":401}'
)

#: And one of 5.3.3, which says which broker it means, and ends its properties.
CAPTURED_5 = (
    b'{"code":310,"extFields":{"a":"producers","b":"numbers","c":"TBW102","d":"4","e":"2","f":"0",'
    b'"g":"1795279901287","h":"0","i":"number\\u00010\\u0002KEYS\\u0001k0 all\\u0002UNIQ_KEY\\u0001FD00'
    b'\\u0002WAIT\\u0001true\\u0002TAGS\\u0001even\\u0002","j":"0","k":"false","m":"false",'
    b'"n":"broker-a"},"flag":0,"language":"JAVA","opaque":5,"serializeTypeCurrentRPC":"JSON","version":479}'
)


def framed(header: bytes, body: bytes = b"hello") -> bytes:
    """Without its length word, as the framing hands it out."""
    return len(header).to_bytes(4, "big") + header + body


def java(opaque: int = 1, body: bytes = b"hello", **fields: object) -> bytes:
    """A frame as Java writes it; fields by their short names, None leaves one out."""
    named: dict[str, object] = {
        "a": "P", "b": "T1", "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "1795190400123", "h": "0",
        "i": "", "j": "0", "k": "false", "m": "false", **fields,
    }
    flag = named.pop("flag", 0)
    document = {
        "code": 310,
        "extFields": {name: str(named[name]) for name in sorted(named) if named[name] is not None},
        "flag": flag, "language": "JAVA", "opaque": opaque, "serializeTypeCurrentRPC": "JSON", "version": 401,
    }
    return framed(json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode(), body)


class ReadTests(SynchronousTestCase):
    """One connection's requests."""

    def setUp(self) -> None:
        self.reader = SendReader()
        self.taken = 0

    def read(self, frame: bytes) -> SendMessageRequest | None:
        """By both ways, which must agree."""
        found = self.reader.read(frame)
        if found is None:
            return None
        self.taken += 1
        command = decode_command(frame)
        fields = command.ext_fields
        self.assertEqual(
            (found.opaque, found.queue_id, found.born_timestamp, found.properties, found.body),
            (command.opaque, int(fields["e"]), int(fields["g"]), fields["i"].encode(), command.body),
        )
        self.assertEqual((command.is_oneway, command.is_response, command.code), (False, False, 310))
        like = found.shape.command
        places = {"e": "", "g": "", "i": ""}
        self.assertEqual({**fields, **places}, {**like.ext_fields, **places})
        self.assertEqual((command.language, command.version), (like.language, like.version))
        self.assertEqual(found.frame, frame)
        return found

    def test_captured(self) -> None:
        """A real one."""
        found = self.read(framed(CAPTURED))
        assert found is not None
        properties = b"UNIQ_KEY\x017F00000148C318B4AAC2928C7F0A0000\x02WAIT\x01true\x02TAGS\x01A"
        self.assertEqual(found[2:], (17, 2, 1795190400123, properties, b"hello"))

    def test_captured_of_5(self) -> None:
        """Another version's, with a field more."""
        found = self.read(framed(CAPTURED_5))
        assert found is not None
        self.assertEqual(found[2:5], (5, 2, 1795279901287))
        self.assertTrue(found.properties.endswith(b"\x02TAGS\x01even\x02"))

    def test_one_shape(self) -> None:
        """Requests that differ in the four places only are of one shape; others are of another."""
        shapes = [self.read(java(opaque=at, e=at % 4, g=1000 + at, i=f"KEYS\x01{at}", body=b"%d" % at))
                  for at in range(1, 30)]
        self.assertEqual(len({id(one.shape) for one in shapes if one is not None}), 1)
        for fields in ({"b": "T2"}, {"a": "Q"}, {"d": "8"}, {"f": "1"}, {"h": "7"}, {"j": "3"}, {"m": "true"},
                       {"n": "broker-a"}, {"l": "16"}):
            found = self.read(java(**fields))
            assert found is not None and shapes[0] is not None
            self.assertIsNot(found.shape, shapes[0].shape, fields)

    def test_other_lengths_with_the_same_sum(self) -> None:
        """Pieces of other lengths are found, also when the whole header is as long as one before."""
        for queue, opaque, text in (1, 10, "ab"), (10, 1, "ab"), (1, 1, "abc"), (1, 10, "ab"), (10, 10, "a"):
            found = self.read(java(opaque=opaque, e=queue, i=text))
            assert found is not None
            self.assertEqual(found[2:6], (opaque, queue, 1795190400123, text.encode()))
        self.read(framed(CAPTURED))
        self.assertIsNone(self.reader.read(framed(CAPTURED.replace(b"WAIT", b'WA"T'))))
        self.assertIsNone(self.reader.read(framed(CAPTURED)[:80]))
        for length in range(3 * LAYOUTS_MAX):
            found = self.read(java(i="x" * length))
            assert found is not None
            self.assertLessEqual(len(found.shape.layouts), LAYOUTS_MAX)

    def test_left_to_the_long_way(self) -> None:
        """Everything else: other codes, orders, signs, escapes, answers, those who want no answer."""
        self.read(java())
        for frame in (
            java(e=-1), java(g=-5), java(opaque=-1), java(i='a\x01"'), java(i="a\x01\\"), java(i="a\x01\n"),
            java(i="a\x01\x00"), java(i="a\x01\\u0001"), java(flag=1), java(flag=2), java(b='T"'),
            java(e="1 "), java(g="1" * 19), java(e="1" * 10), java(e=""), java(i=None), java(z='"'),
            framed(CAPTURED.replace(b"310", b"320")), framed(CAPTURED.replace(b'"e"', b'"x"')),
            framed(CAPTURED.replace(b'"a":"P","b":"T1"', b'"b":"T1","a":"P"')),
            framed(CAPTURED.replace(b'"j":"0"', b'"e":"3"')),
            framed(CAPTURED.replace(b'"opaque":17', b'"opaque":017')),
            framed(CAPTURED.replace(b"17", b"2147483648")), framed(CAPTURED.replace(b"TAGS", b"T\xff")),
            framed(CAPTURED.replace(b"{", b"{ ", 1)), framed(CAPTURED + b" "), b"", b"\0\0\0",
            framed(CAPTURED)[:50], b"\x01" + framed(CAPTURED)[1:], b"\xff\xff\xff\xff" + CAPTURED,
        ):
            self.assertIsNone(self.reader.read(frame), frame)

    def test_texts(self) -> None:
        """Properties of any text: the same bytes, or the long way."""
        for text in ("é\x01ü\x02", "\x01\x02" * 50, "a b", "🙂\x01x", "\u2028", "\x7f", "\x02\x01", "'", "/",
                     "<"):
            self.read(java(i=text))
        self.assertGreaterEqual(self.taken, 7)

    def test_shapes_keep_no_bodies(self) -> None:
        """What is remembered of a request is small."""
        found = self.read(java(body=bytes(1_000_000)))
        assert found is not None
        self.assertEqual((len(found.body), found.shape.command.body), (1_000_000, b""))

    def test_shapes_are_bounded(self) -> None:
        """A producer whose headers never repeat is still parsed, and its shapes are evicted."""
        for at in range(100):
            self.assertIsNotNone(self.read(java(b=f"T{at}")))
        self.assertLessEqual(len(self.reader._shapes), SHAPES_MAX)

    def test_damage(self) -> None:
        """Of any damaged frame the short way agrees with the long way, or gives up."""
        rng = random.Random(7)
        sound = [java(opaque=at, e=at % 4, i=f"KEYS\x01{at}\x02WAIT\x01true", b=f"T{at % 3}", body=b"x" * at)
                 for at in range(20)]
        for _ in range(3000):
            frame = rng.choice(sound)
            self.read(frame)
            hurt = damaged(frame, tuple(sound), rng)
            try:
                decode_command(hurt)
            except WireError:
                self.assertIsNone(self.reader.read(hurt), hurt)
            else:
                self.read(hurt)
        self.assertGreater(self.taken, 3000)


class AnswerTests(SynchronousTestCase):
    """Answers from a form."""

    def test_bytes(self) -> None:
        """Those of the long way, whatever is reported besides."""
        for reported in (
            {}, {"MSG_REGION": "DefaultRegion", "TRACE_ON": "true"}, {"MSG_REGION": 'ä"%d\\', "zz": ""}
        ):
            answers = SentAnswers(reported, language="PYTHON", version=409)
            for opaque, code, offset, queue_id, queue_offset in (
                (1, 0, 0, 0, 0), (2**31 - 1, 12, 2**62, 65535, 2**40)
            ):
                fields: dict[str, Any] = {
                    **reported, "msgId": f"7F00000100002A9F{offset:016X}", "queueId": str(queue_id),
                    "queueOffset": str(queue_offset),
                }
                made = answers.frames(
                    [(opaque, queue_id, 1)], code, b"7F00000100002A9F", [7, offset], [7, queue_offset]
                )
                self.assertEqual(made, [encode_command(RemotingCommand(
                    code=code, opaque=opaque, flag=1, version=409, ext_fields=fields
                ))])
