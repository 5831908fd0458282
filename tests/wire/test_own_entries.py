# -*- test-case-name: tests.wire.test_own_entries -*-
"""Whose an entry is, by its channel; the one rule by which readers leave entries out."""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from protocols.wire.ledger.own.own_entries import (
    HIDDEN,
    OWN_KINDS,
    SLOT_MAX,
    OwnKind,
    is_hidden,
    own_kind,
    slot_channels,
    slot_of,
)


class RuleTests(SynchronousTestCase):
    """What each kind of entry is."""

    def test_channels(self) -> None:
        """Those of programs and producers are shown, whatever their bodies are; the log's own are not."""
        for channel in (0, *slot_channels(1, 0, 2), *slot_channels(SLOT_MAX, 255, 2)):
            self.assertFalse(is_hidden(channel, 1), channel)
            self.assertIsNone(own_kind(channel, 1))
            self.assertTrue(is_hidden(channel | HIDDEN, 1))
            self.assertIs(own_kind(channel | HIDDEN, 1), OwnKind.SINK_MARKER)
        for channel, kind in OWN_KINDS.items():
            self.assertTrue(is_hidden(channel, -5))
            self.assertIs(own_kind(channel, -5), kind)
        for later in (-1, -0x8000_0000, -0x8000_0000 + 99):
            self.assertIs(own_kind(later, 1), OwnKind.UNKNOWN)

    def test_of_java(self) -> None:
        """A record without a chain checksum is of a Java leader, and a program's, whatever its channel is."""
        for channel in (0, 1, HIDDEN, *OWN_KINDS, -1):
            self.assertFalse(is_hidden(channel, 0))
            self.assertIsNone(own_kind(channel, 0))

    def test_slots(self) -> None:
        """
        The slot comes back, with any digits, hidden or not; each channel is a positive number of 32 bits.
        """
        for slot in (1, 2, 255, 256, SLOT_MAX):
            channels = slot_channels(slot, 254, 4)
            self.assertEqual([channel & 0xFF for channel in channels], [254, 255, 0, 1])
            for channel in channels:
                self.assertEqual((slot_of(channel), slot_of(channel | HIDDEN)), (slot, slot))
                self.assertTrue(0 < channel < channel | HIDDEN < 2**31)

    def test_kinds_are_numbers_of_32_bits(self) -> None:
        """As a record has them."""
        self.assertEqual(len(set(OWN_KINDS)), len(OWN_KINDS))
        for channel in OWN_KINDS:
            self.assertEqual(int.from_bytes(channel.to_bytes(4, "big", signed=True), "big") >> 31, 1)
