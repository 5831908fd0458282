# -*- test-case-name: tests.broker.consuming.test_offset_bounds -*-
"""A master does not let a group pass over messages because the log has lost its end."""

from __future__ import annotations

from twisted.logger import LogLevel, capturedLogs

from dledger.rocketmq.broker.consuming import offset_bounds
from tests.broker.popping.rig import PopCase


class OffsetBoundsTests(PopCase):
    """A log that ends at 5, in queue 0 of T1."""

    def setUp(self) -> None:
        super().setUp()
        self.send(b"a", b"b", b"c", b"d", b"e")
        self.offsets = self.parts.metadata.consumer_offsets
        self.addCleanup(self.parts.offset_bounds.stop)

    def commit(self, offset: int, *, group: str = "G", queue: int = 0) -> None:
        """The content of the table."""
        self.offsets.commit(group, "T1", queue, offset, 1)

    def compared(self) -> dict[tuple[str, int], int]:
        """Become a master. @return: the offset of each group and queue."""
        self.parts.offset_bounds.start()
        self.settle()
        rows = self.offsets.rows()
        return {(group, queue): at for group, _, queues in rows for queue, at in queues.items()}

    def test_taken_back(self) -> None:
        """Only what is beyond the end, with one line each; also in a queue that is not there."""
        self.commit(9)
        self.commit(5, group="fits")
        self.commit(0, group="new")
        self.commit(3, group="no queue", queue=2)
        with capturedLogs() as events:
            found = self.compared()
        self.assertEqual(found, {("G", 0): 5, ("fits", 0): 5, ("new", 0): 0, ("no queue", 2): 0})
        self.assertEqual([one["log_level"] for one in events], [LogLevel.warn, LogLevel.warn])
        self.assertEqual(self.parts.offset_bounds.taken_back, 2)

    def test_messages_come_first(self) -> None:
        """The end is that of the time when the broker became a master, although messages have come since."""
        self.commit(9)
        self.patch(type(self.parts.store.reput), "behind_bytes", 1)
        self.compared()
        self.send(*(b"%d" % number for number in range(15)))
        self.patch(type(self.parts.store.reput), "behind_bytes", 0)
        self.broker.clock.advance(offset_bounds.LOOK_S)
        self.assertEqual(self.offsets.query("G", "T1", 0), 5)
        self.assertEqual(self.pop()[0].body, b"0")

    def test_committed_since(self) -> None:
        """An offset that a consumer has committed meanwhile stays."""
        self.commit(9)
        self.patch(type(self.parts.store.reput), "behind_bytes", 1)
        self.compared()
        self.send(*(b"%d" % number for number in range(15)))
        self.commit(12)
        self.patch(type(self.parts.store.reput), "behind_bytes", 0)
        self.broker.clock.advance(offset_bounds.LOOK_S)
        self.assertEqual(self.offsets.query("G", "T1", 0), 12)

    def test_cut(self) -> None:
        """What a slave gets after a cut is passed over by no group, and by no delay level."""
        log = self.parts.store.log
        for number in range(3):
            self.send(b"late", queue=0, properties=f"DELAY\x01{number + 1}\x02")
        self.parts.metadata.delay_offsets.put(2, 1, 1)
        self.parts.metadata.delay_offsets.put(1, 0, 1)
        self.commit(5)
        self.commit(3, group="fits")
        self.commit(9, group="no queue", queue=2)
        messages = self.broker.stored()
        log.cut(messages[3].physical_offset)
        self.assertEqual([self.offsets.query(group, "T1", queue) for group, queue in
                          (("G", 0), ("fits", 0), ("no queue", 2))], [3, 3, 0])
        self.assertEqual([self.parts.metadata.delay_offsets.get(level) for level in (1, 2)], [0, 0])

    def test_bounded(self) -> None:
        """Many offsets are compared in several turns."""
        self.patch(offset_bounds, "TURN_OFFSETS", 2)
        for number in range(7):
            self.commit(9, group=f"g{number}")
        bounds, seen = self.parts.offset_bounds, []
        look = bounds._look

        def watched() -> None:
            look()
            seen.append(bounds.taken_back)

        self.patch(bounds, "_look", watched)
        bounds.start()
        self.settle()
        self.assertEqual(seen, [2, 4, 6, 7])
