# -*- test-case-name: tests.wire.test_machine_entries -*-
"""Machine entries as bytes."""

from __future__ import annotations

import attrs
from twisted.trial.unittest import SynchronousTestCase

from protocols.wire.errors import BodyError, WireError
from protocols.wire.ledger.machines import ReportedMachine, decode_reported_machine, encode_reported_machine
from protocols.wire.ledger.own.machine_entries import (
    MACHINE_ENTRY_DECLARATION,
    decode_skip,
    encode_skip,
)


class SkipTests(SynchronousTestCase):
    """The order to skip an entry."""

    def test_bytes(self) -> None:
        """As they were at first, and as declared."""
        body = encode_skip(77)
        self.assertEqual(body.hex(), "4d43484e00000001" "64c3ef01" "00000001" "000000000000004d")
        self.assertEqual(MACHINE_ENTRY_DECLARATION.parse(body).index, 77)
        self.assertEqual(decode_skip(body), 77)

    def test_malformed(self) -> None:
        """Every cut and every bit."""
        body = encode_skip(77)
        for size in range(len(body)):
            self.assertRaises(WireError, decode_skip, body[:size])
        for bit in range(8 * len(body)):
            wrong = bytearray(body)
            wrong[bit // 8] ^= 1 << bit % 8
            self.assertRaises(WireError, decode_skip, bytes(wrong))


class ReportedTests(SynchronousTestCase):
    """A machine in METADATA."""

    def test_round(self) -> None:
        """All fields, and the last digests only."""
        reported = ReportedMachine(
            name="kv", version=3, state="running", applied_index=70, failed_index=5, newest_only=True,
            digests={index: f"{index:x}" for index in range(20)},
        )
        again = decode_reported_machine(encode_reported_machine(reported))
        self.assertEqual(again,
                         attrs.evolve(reported, digests={index: f"{index:x}" for index in range(12, 20)}))
        self.assertIsNone(decode_reported_machine(""))
        self.assertEqual(decode_reported_machine('{"name":"a","version":1,"state":"failed","more":[]}'),
                         ReportedMachine(name="a", version=1, state="failed"))

    def test_malformed(self) -> None:
        """It is refused as other bodies are."""
        for text in ("x", "[]", "{}", '{"name":"a","version":"x","state":""}',
                     '{"name":"a","version":1,"state":"","digests":{"x":"y"}}', "[" * 5000):
            self.assertRaises(BodyError, decode_reported_machine, text)
