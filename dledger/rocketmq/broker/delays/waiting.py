# -*- test-case-name: tests.broker.sending.test_timers -*-
"""
The messages that wait for a time of their own, as a master knows them: by their numbers in the queue, and by
their keys.

Rule: as with delay levels, no message waits longer from now on than the delay that its producer has asked
for. It was stored while the clock was ahead, and is due when the clock has been set back.
"""

from __future__ import annotations

from collections.abc import Iterator

from dledger.rocketmq.broker.delays.timed import TimedKey


class WaitingMessages:
    """
    Invariant: C{_by_key} leads from each key in C{_keys} back to its messages: a producer that had no answer
    may have sent one twice.
    """

    def __init__(self) -> None:
        self._keys: dict[int, TimedKey] = {}
        self._by_key: dict[TimedKey, int | set[int]] = {}
        self._delays_ms: dict[int, int] = {}
        self._seen_ms = 0

    def __len__(self) -> int:
        """Number of messages."""
        return len(self._keys)

    def __contains__(self, offset: int) -> bool:
        """Whether the message with this number waits."""
        return offset in self._keys

    def keys(self) -> list[TimedKey]:
        """Of all messages."""
        return list(self._keys.values())

    def key(self, offset: int) -> TimedKey:
        """Of a message that waits."""
        return self._keys[offset]

    def add(self, offset: int, key: TimedKey, delay_ms: int | None) -> None:
        """A message waits. @param delay_ms: for which its producer has asked; None: it has named a time."""
        self._keys[offset] = key
        if delay_ms is not None:
            self._delays_ms[offset] = delay_ms
        before = self._by_key.setdefault(key, offset)
        if isinstance(before, set):
            before.add(offset)
        elif before != offset:
            self._by_key[key] = {before, offset}

    def end(self, offset: int) -> None:
        """A message waits no more."""
        self._delays_ms.pop(offset, None)
        key = self._keys.pop(offset, None)
        if key is None:
            return
        found = self._by_key[key]
        if isinstance(found, set) and len(found) > 1:
            found.discard(offset)
        else:
            del self._by_key[key]

    def of(self, key: TimedKey) -> Iterator[int]:
        """The messages with a key."""
        found = self._by_key.get(key, set())
        yield from [*found] if isinstance(found, set) else [found]

    def due_ms(self, offset: int, at_ms: int, now_ms: int) -> int:
        """When a message is due, ms since 1970. @param at_ms: its time, as it is stored."""
        delay_ms = self._delays_ms.get(offset)
        return now_ms if delay_ms is not None and at_ms > now_ms + delay_ms else at_ms

    def is_set_back(self, now_ms: int) -> bool:
        """Whether the clock was set back since the last call, and messages may be due for that."""
        is_back = now_ms < self._seen_ms and bool(self._delays_ms)
        self._seen_ms = now_ms
        return is_back
