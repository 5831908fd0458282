# -*- test-case-name: tests.wire.test_own_entries -*-
"""The one rule by which readers leave out the log's own entries."""

from __future__ import annotations

from zlib import crc32

from twisted.trial.unittest import SynchronousTestCase

from protocols.wire.ledger.own.configuration import CONFIGURATION_CHANNEL, encode_configuration
from protocols.wire.ledger.own.machine_entries import encode_skip
from protocols.wire.ledger.own.own_entries import (
    MARKER_BYTES,
    MARKER_MAGIC,
    MARKER_TEXT_AT,
    OwnKind,
    is_marker,
    own_kind,
)
from protocols.wire.ledger.own.producer_entries import encode_producer_entry
from protocols.wire.ledger.producers import PRODUCER_CHANNEL, ProducerRun
from protocols.wire.ledger.readers import ReaderState, encode_reader_entry


def marker() -> bytes:
    """A marker as far as the rule looks at it."""
    text = b"{}".ljust(MARKER_BYTES - MARKER_TEXT_AT)
    return MARKER_MAGIC + b"%08x " % crc32(text) + text


class RuleTests(SynchronousTestCase):
    """What each kind of entry is."""

    def test_channels(self) -> None:
        """Whatever has a channel is no program's; the first word of its body names its kind."""
        producer = encode_producer_entry([ProducerRun("p", 0, 1, 1)])
        reader = encode_reader_entry(ReaderState("billing", -1, 0))
        for channel, body, kind in (
            (CONFIGURATION_CHANNEL, encode_configuration({"n0": "h:1"}, {}), OwnKind.CONFIGURATION),
            (PRODUCER_CHANNEL, producer, OwnKind.PRODUCER), (PRODUCER_CHANNEL, reader, OwnKind.READER),
            (PRODUCER_CHANNEL, encode_skip(7), OwnKind.MACHINE), (7, producer, OwnKind.UNKNOWN),
            (PRODUCER_CHANNEL, b"", OwnKind.UNKNOWN), (CONFIGURATION_CHANNEL, producer, OwnKind.UNKNOWN),
        ):
            self.assertIs(own_kind(channel, body, begins_term=False), kind)
            self.assertIs(own_kind(channel, memoryview(body), begins_term=True), kind)
            if channel:
                self.assertIsNone(own_kind(0, body or b"x", begins_term=True), kind)

    def test_term_start(self) -> None:
        """An empty body is a leader's if the term begins with it; else a program's."""
        self.assertIs(own_kind(0, b"", begins_term=True), OwnKind.TERM_START)
        self.assertIsNone(own_kind(0, b"", begins_term=False))
        self.assertIsNone(own_kind(0, b"x", begins_term=True))

    def test_marker(self) -> None:
        """A marker by length, magic and checksum; every changed byte makes it a program's body."""
        body = marker()
        self.assertIs(own_kind(0, body, begins_term=False), OwnKind.SINK_MARKER)
        for at in range(len(body)):
            self.assertFalse(is_marker(body[:at] + bytes([body[at] ^ 1]) + body[at + 1 :]), at)
        self.assertFalse(is_marker(body[:-1]))
        self.assertIsNone(own_kind(0, MARKER_MAGIC.ljust(MARKER_BYTES), begins_term=True))
