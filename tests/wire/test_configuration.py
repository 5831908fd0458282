# -*- test-case-name: tests.wire.test_configuration -*-
"""The body of a configuration entry, and memberships in METADATA."""

from __future__ import annotations

from zlib import crc32

from twisted.trial.unittest import SynchronousTestCase

from protocols.connection import STRANGER_FRAME_BYTES_MAX
from protocols.wire.errors import WireError
from protocols.wire.ledger.codes import MEMBERS_MAX, RequestCode
from protocols.wire.ledger.java.json_bodies import decode_response, encode_request, encode_response
from protocols.wire.ledger.memberships import (
    MemberLists,
    ReportedMembership,
    decode_reported,
    encode_reported,
)
from protocols.wire.ledger.messages import MetadataRequest, MetadataResponse
from protocols.wire.ledger.own.configuration import (
    decode_configuration,
    encode_configuration,
)

TEXT = b'{"learners":{"n3":"h:4"},"voters":{"n0":"h:1"}}'
GOLDEN = b"DLCF\0\0\0\x01" + crc32(TEXT).to_bytes(4, "big") + len(TEXT).to_bytes(4, "big") + TEXT


class BodyTests(SynchronousTestCase):
    """Sixteen bytes and a text."""

    def test_golden(self) -> None:
        """Both ways."""
        self.assertEqual(encode_configuration({"n0": "h:1"}, {"n3": "h:4"}), GOLDEN)
        self.assertEqual(decode_configuration(GOLDEN), MemberLists({"n0": "h:1"}, {"n3": "h:4"}))

    def test_every_truncation_and_flip(self) -> None:
        """Nothing passes that differs in one byte."""
        for size in range(len(GOLDEN)):
            self.assertRaises(WireError, decode_configuration, GOLDEN[:size])
        for at in range(len(GOLDEN)):
            spoilt = bytearray(GOLDEN)
            spoilt[at] ^= 1
            self.assertRaises(WireError, decode_configuration, bytes(spoilt))
        self.assertRaises(WireError, decode_configuration, GOLDEN + b" ")

    def test_later_version(self) -> None:
        """Says what to do."""
        error = self.assertRaises(WireError, decode_configuration, GOLDEN[:7] + b"\x02" + GOLDEN[8:])
        self.assertIn("upgrade this member", str(error))

    def test_wrong_text(self) -> None:
        """With a right checksum."""
        many = {f"n{number}": "h:1" for number in range(MEMBERS_MAX + 1)}
        for voters, learners in (({"n0": ""}, {}), ({"n0": "h:1"}, {"n0": "h:1"}), (many, {}),
                                 ({"n" * 256: "h:1"}, {})):
            self.assertRaises(WireError, decode_configuration, encode_configuration(voters, learners))


class ReportedTests(SynchronousTestCase):
    """Memberships as one text."""

    def test_both_ways(self) -> None:
        """In order; none is an empty text."""
        reported = tuple(ReportedMembership(at, 1, MemberLists({"n0": "h:1"}, {})) for at in (3, 9))
        self.assertEqual(decode_reported(encode_reported(reported)), reported)
        self.assertEqual(decode_reported(""), ())

    def test_largest(self) -> None:
        """Two groups with the longest names pass in METADATA."""
        most = {f"{number:03}".ljust(255, "x"): "h" * 255 for number in range(MEMBERS_MAX)}
        text = encode_reported([ReportedMembership(at, 1, MemberLists(most, {}))
                                for at in (1 << 50, 1 << 51)])
        answer = MetadataResponse(configuration=text)
        self.assertEqual(decode_response(RequestCode.METADATA, encode_response(answer)), answer)
        self.assertEqual(len(decode_reported(text)), 2)
        request = MetadataRequest(configuration=text)
        self.assertLess(len(encode_request(request)) // 2, STRANGER_FRAME_BYTES_MAX)

    def test_malformed(self) -> None:
        """An error of one kind."""
        for text in ("{", "[]", "{}", '{"memberships":[1]}', '{"memberships":[{"index":1}]}',
                     '{"memberships":[{"index":-2,"term":1,"voters":{},"learners":{}}]}',
                     '{"memberships":[{"index":1,"term":1,"voters":{"n0":1},"learners":{}}]}'):
            self.assertRaises(ValueError, decode_reported, text)
