# -*- test-case-name: tests.broker.sending.test_unique_ids -*-
"""
The unique key that a broker gives to a message whose producer has set none, in the form of RocketMQ's
clients.

    address   4 bytes, or 16     of this broker
    process   2 bytes            random here
    class     4 bytes            random here
    time      4 bytes            milliseconds since the first of the month, local time
    count     2 bytes

in hexadecimal. Tools read the time from it to bound their search.

Source: MessageClientIDSetter, SendMessageProcessor (5.3.3).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from random import Random
from time import localtime, mktime

from dledger.rocketmq.broker.options.own_address import OwnAddress

UNIQUE_KEY = b"UNIQ_KEY\x01"


#: Finds the unique key of a message in its properties: an empty one is none, nor is one with a longer name.
find_unique_key = re.compile(rb"(?:\A|\x02)UNIQ_KEY\x01[^\x02]").search


class UniqueIds:
    """Those of one run of a broker."""

    def __init__(self, own: OwnAddress, *, wall_ms: Callable[[], int], rng: Random) -> None:
        """@param wall_ms: milliseconds since 1970."""
        self._own = own
        self._wall_ms = wall_ms
        self._process = rng.getrandbits(48).to_bytes(6, "big")
        self._count = rng.getrandbits(16)
        self._month_ms = self._next_ms = 0
        self._host = own.host
        self._start = b""

    def property(self) -> bytes:
        """One more key, as a property with its 0x02."""
        now_ms = self._wall_ms()
        if not self._month_ms <= now_ms < self._next_ms or self._own.host is not self._host:
            self._month_ms, self._next_ms = _month(now_ms)
            self._host = self._own.host
            self._start = UNIQUE_KEY + (self._host.address + self._process).hex().upper().encode()
        self._count = self._count + 1 & 0xFFFF
        return b"%b%08X%04X\x02" % (self._start, now_ms - self._month_ms, self._count)


def _month(now_ms: int) -> tuple[int, int]:
    """Begin and end of the month of a time, ms since 1970."""
    now = localtime(now_ms / 1000)
    year, month = now.tm_year, now.tm_mon
    begin = mktime((year, month, 1, 0, 0, 0, 0, 0, -1))
    end = mktime((year, month + 1, 1, 0, 0, 0, 0, 0, -1))
    return int(begin) * 1000, int(end) * 1000
