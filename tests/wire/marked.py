# -*- test-case-name: tests.wire.test_own_entries -*-
"""Records with a C{channel}."""

from __future__ import annotations

from protocols.wire.ledger.entry import CHANNEL_AT


def marked(record: bytes, channel: int) -> bytes:
    """The record with this C{channel}; its C{chainCrc} stays as it is."""
    return record[:CHANNEL_AT] + channel.to_bytes(4, "big", signed=True) + record[CHANNEL_AT + 4 :]
