# -*- test-case-name: tests.broker.sending.test_recalls -*-
"""
Which messages with a time of their own are recalled, as far as a master knows: by topic, unique key and time,
as the handle names them.

Rule: a recall is for the messages before it in the log. A producer may send the same message again after it
has recalled it: clients keep its unique key.
Rule 2: while it is not known whether a recall is stored, the message waits, even if its time comes: who is
answered with success does not see it delivered.
"""

from __future__ import annotations

from dledger.rocketmq.broker.delays.timed import TimedKey


class RecalledMessages:
    """
    Invariant: C{_found} has, for each key, the place in the log of the last note of a recall; C{_under_way}
    the number of notes without an outcome.
    """

    def __init__(self) -> None:
        self._found: dict[TimedKey, int] = {}
        self._under_way: dict[TimedKey, int] = {}

    def __len__(self) -> int:
        """Number of keys."""
        return len(self._found)

    def begin(self, key: TimedKey) -> None:
        """A note is being stored."""
        self._under_way[key] = self._under_way.get(key, 0) + 1

    def end(self, key: TimedKey) -> None:
        """A note is stored, or cannot be."""
        self._under_way[key] -= 1
        if not self._under_way[key]:
            del self._under_way[key]

    def is_unsure(self, key: TimedKey) -> bool:
        """Whether a note is being stored."""
        return key in self._under_way

    def add(self, key: TimedKey, place: int) -> None:
        """A note says that a message is recalled. @param place: offset of the note in the log."""
        self._found[key] = max(place, self._found.get(key, 0))

    def has(self, key: TimedKey, place: int) -> bool:
        """Whether a message is recalled. @param place: its offset in the log."""
        return place < self._found.get(key, 0)

    def expire(self, now_ms: int) -> None:
        """Forget what is over. @param now_ms: ms since 1970."""
        for key in [key for key in self._found if key[2] <= now_ms]:
            del self._found[key]
