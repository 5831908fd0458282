# -*- test-case-name: tests.broker.sending.test_recalls -*-
"""
Which messages with a time of their own are recalled, as far as a master knows: by topic and unique key.

Rule: a recall is for the messages before it in the log. A producer may send the same message again after it
has recalled it, with another time: clients keep its unique key.
"""

from __future__ import annotations

from dledger.rocketmq.broker.delays.timed import TimedKey


class RecalledMessages:
    """
    Invariant: C{_found} has, for each key, the time of its message, ms since 1970, and the place in the log
    of the last note of a recall.
    """

    def __init__(self) -> None:
        self._found: dict[TimedKey, tuple[int, int]] = {}

    def __len__(self) -> int:
        """Number of keys."""
        return len(self._found)

    def add(self, key: TimedKey, until_ms: int, place: int) -> None:
        """
        A note says that a message is recalled.

        @param until_ms: its time, ms since 1970.
        @param place: offset of the note in the log.
        """
        before_ms, before = self._found.get(key, (0, 0))
        self._found[key] = max(until_ms, before_ms), max(place, before)

    def has(self, key: TimedKey, place: int) -> bool:
        """Whether a message is recalled. @param place: its offset in the log."""
        found = self._found.get(key)
        return found is not None and place < found[1]

    def expire(self, now_ms: int) -> None:
        """Forget what is over. @param now_ms: ms since 1970."""
        for key in [key for key, (until_ms, _) in self._found.items() if until_ms <= now_ms]:
            del self._found[key]
