# -*- test-case-name: tests.core.test_dispatcher -*-
"""What may be sent in a second to a member that is far behind: its log, and snapshots."""

from __future__ import annotations

import attrs


@attrs.define
class Quota:
    """
    Bytes per second for a follower that is far behind.

    Source: Quota.java; differs: it never sleeps, the dispatcher waits for the next second.
    """

    per_second: int
    _second: int = -1
    _spent: int = 0

    def left(self, now_ms: int) -> int:
        """Bytes that may still be sent in this second."""
        second = now_ms // 1000
        if second != self._second:
            self._second, self._spent = second, 0
        return self.per_second - self._spent

    def spend(self, size: int) -> None:
        """C{size} bytes were sent. L{left} drops the count when a new second begins."""
        self._spent += size
