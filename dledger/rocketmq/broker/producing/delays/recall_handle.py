# -*- test-case-name: tests.broker.sending.test_recalls -*-
"""
The handle with which a producer recalls a message that waits for its time.

Source: RecallMessageHandle (5.3.3).
"""

from __future__ import annotations

from base64 import urlsafe_b64decode, urlsafe_b64encode
from typing import NamedTuple

from protocols.wire.fastjson import shown

HANDLE_CHARACTERS_MAX = 1_024


class RecallHandle(NamedTuple):
    """Names a message that waits. @ivar at_ms: its time, ms since 1970. @ivar key: its unique key."""

    topic: str
    broker: str
    at_ms: int
    key: str

    def text(self) -> str:
        """As a producer gets it."""
        words = f"v1 {self.topic} {self.broker} {self.at_ms} {self.key}"
        return urlsafe_b64encode(words.encode()).decode()

    @classmethod
    def read(cls, text: str) -> RecallHandle:
        """@raise ValueError: it is none."""
        try:
            words = urlsafe_b64decode(text[:HANDLE_CHARACTERS_MAX].encode()).decode().split(" ")
        except ValueError:
            words = []
        if len(words) < 5 or words[0] != "v1" or not (words[3].isdecimal() and len(words[3]) < 19):
            raise ValueError(f"recall handle is invalid: {shown(text)}")
        return cls(words[1], words[2], int(words[3]), words[4])
