# -*- test-case-name: tests.broker.popping.test_popped -*-
"""
The check points of a master that are not finished: what is given to consumers and not acknowledged.

A message of a check point is C{open} (given), C{settling} (its ack is being stored), or done and forgotten.

Rule 1: an ack counts from its receipt on; a message whose ack cannot be stored is open again. A message that
is being stored for a retry takes no ack of a consumer, who gets it again.
Rule 2: the offset that a queue of the revive topic has reached is the last one before the first unfinished
check point. The next master reads again from there.
Rule 3: of two check points in the log that have the same message, the later one counts for a start: the
former master did not know that the earlier one is stored, and gave the message again.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence

import attrs

from dledger.rocketmq.broker.popping.check_points import SET_BACK_MS, Ack, CheckPoint, PopKey

#: Topic, group and number of a queue.
GroupQueue = tuple[str, str, int]
#: Most finished check points that are kept, beyond the number of unfinished ones.
SPARE_MAX = 1_024


class MoveOrder:
    """
    The puts of check points whose groups have not moved past their messages. They end in any order: one waits
    for slaves, the next one ends at once, as there are none.

    Invariant: C{_waiting} has each put under way, the oldest first, and those that have ended after it;
    C{_places} has the queue offsets of those under way.
    """

    #: See L{dledger.rocketmq.broker.popping.past_points.PastPoints.is_moved}.
    known: int | None = None

    def __init__(self) -> None:
        self._waiting: dict[int, int | None] = {}
        self._places: dict[int, Sequence[int]] = {}
        self._last = 0

    def begin(self, offsets: Sequence[int]) -> int:
        """
        A put. @return: its number.

        @param offsets: of its messages in the revive topic, the first check point first; empty until the log
            gives them, in the order of the puts.
        """
        self._last += 1
        self._waiting[self._last] = None
        self._places[self._last] = offsets
        return self._last

    @property
    def first(self) -> int | None:
        """Offset of the first check point of the puts under way; None: there is none."""
        return min((offsets[0] for offsets in self._places.values() if offsets), default=None)

    def end(self, number: int, offset: int) -> int:
        """
        A put has ended.

        @param offset: of its last check point in the revive topic; -1: none was stored.
        @return: the last check point before all puts under way; -1: there is no new one.
        """
        if number not in self._places:
            return -1  # of an earlier life as a master
        self._waiting[number] = offset
        del self._places[number]
        reached = -1
        for one, done in list(self._waiting.items()):
            if done is None:
                break
            reached = max(reached, done)
            del self._waiting[one]
        return reached


@attrs.define(eq=False)
class Popped:
    """
    A check point that is not finished.

    @ivar at: its queue in the revive topic, and its offset there.
    @ivar open, settling: queue offsets, see the module.
    @ivar reviving: those of C{settling} that are being stored for a retry.
    """

    point: CheckPoint
    at: tuple[int, int]
    open: set[int]
    settling: set[int] = attrs.Factory(set)
    reviving: set[int] = attrs.Factory(set)

    @property
    def is_finished(self) -> bool:
        """Whether all its messages are done."""
        return not (self.open or self.settling)

    def takes(self, ack: Ack) -> bool:
        """Whether a consumer may still acknowledge all these messages."""
        return (self.open | self.settling).difference(self.reviving).issuperset(ack.offsets)


class PoppedTable:
    """
    Invariant: C{_counts} has, for each queue of a group, the number of its messages that are not done. The
    messages of check points in C{_by_key}, and no others, are open or settling.

    @ivar moves: the puts of check points under way.
    @ivar unmoved: while a start reads the check points: after the last message of those that the offset of
        their group is not known to have moved past.
    """

    def __init__(self) -> None:
        self.moves = MoveOrder()
        self.unmoved: dict[GroupQueue, int] = {}
        #: While a start reads the check points: who has a message.
        self._holders: dict[GroupQueue, dict[int, Popped]] | None = {}
        self._by_key: dict[PopKey, Popped] = {}
        self._due: list[tuple[int, int, Popped]] = []
        self._now_ms: int | None = None
        self._places: dict[int, list[tuple[int, int, Popped]]] = {}
        self._last: dict[int, int] = {}
        self._counts: dict[GroupQueue, int] = {}
        self._turn = 0

    def __len__(self) -> int:
        """Number of check points."""
        return len(self._by_key)

    def count(self, queue: GroupQueue) -> int:
        """Number of messages of a queue that a group has and that are not done."""
        return self._counts.get(queue, 0)

    def held(self) -> int:
        """Number of messages of all queues that groups have and that are not done."""
        return sum(self._counts.values())

    # -- additions ---------------------------------------------------------------------------------

    def add(self, point: CheckPoint, queue_id: int, offset: int) -> None:
        """
        A check point is stored.

        @param queue_id, offset: in the revive topic.
        """
        self.passed(queue_id, offset)
        before = self._by_key.pop(point.key, None)
        if before is not None:
            self._count(before, -len(before.open) - len(before.settling))
            before.open.clear()
            before.settling.clear()
        if not point.offsets:
            return
        popped = Popped(point, (queue_id, offset), set(point.offsets))
        self._by_key[point.key] = popped
        self._count(popped, len(popped.open))
        self._take_over(popped)
        self.again(popped, self._bounded(popped, point.due_ms))
        heapq.heappush(self._places.setdefault(queue_id, []), (offset, self._turn, popped))

    def _take_over(self, popped: Popped) -> None:
        """Rule 3."""
        if self._holders is None:
            return
        topic, group, number, _, pop_ms, _ = popped.point.key
        holders = self._holders.setdefault((topic, group, number), {})
        for offset in popped.point.offsets:
            before = holders.get(offset)
            if before is not None and offset in before.open and before.point.key.pop_ms <= pop_ms:
                before.open.remove(offset)
                self._done(before, 1)
            holders[offset] = popped

    def is_read(self) -> None:
        """A start has read all check points."""
        self.unmoved = {}
        self._holders = None

    def passed(self, queue_id: int, offset: int) -> None:
        """A message of the revive topic needs no more attention, except what L{add} says of it."""
        self._last[queue_id] = max(self._last.get(queue_id, -1), offset)

    def again(self, popped: Popped, due_ms: int) -> None:
        """Look at a check point at this time, ms since 1970."""
        self._turn += 1
        heapq.heappush(self._due, (due_ms, self._turn, popped))

    # -- acks --------------------------------------------------------------------------------------

    def settle(self, ack: Ack, *, revives: bool = False) -> bool:
        """
        An ack is being stored.

        @param revives: it is ours: the messages are being stored for a retry.
        @return: whether all its messages are known. If not, nothing has changed.
        """
        popped = self._by_key.get(ack.key)
        if popped is None or not popped.takes(ack):
            return False
        popped.open.difference_update(ack.offsets)
        popped.settling.update(ack.offsets)
        if revives:
            popped.reviving.update(ack.offsets)
        return True

    def get(self, key: PopKey) -> Popped | None:
        """A check point that is not finished; None if there is none of this name."""
        return self._by_key.get(key)

    def of_group(self, group: str) -> list[PopKey]:
        """The check points of a group that are not finished, the oldest first."""
        return [key for key in self._by_key if key.group == group]

    def has(self, ack: Ack) -> bool:
        """Whether all its messages are known."""
        popped = self._by_key.get(ack.key)
        return popped is not None and popped.takes(ack)

    def settled(self, ack: Ack, *, is_stored: bool) -> None:
        """The end of L{settle}. One that is stored counts, also if another one for its messages is not."""
        popped = self._by_key.get(ack.key)
        if popped is None:
            return
        known = popped.settling.union(popped.open if is_stored else ()).intersection(ack.offsets)
        popped.settling -= known
        popped.reviving -= known
        if is_stored:
            popped.open -= known
            self._done(popped, len(known))
        else:
            popped.open |= known

    def finish(self, ack: Ack) -> None:
        """An ack that is stored already; messages that are unknown count for nothing."""
        popped = self._by_key.get(ack.key)
        if popped is not None:
            known = popped.open.intersection(ack.offsets)
            popped.open -= known
            self._done(popped, len(known))

    def _done(self, popped: Popped, count: int) -> None:
        self._count(popped, -count)
        if popped.is_finished:
            self._by_key.pop(popped.point.key, None)
            self._trim()

    def _trim(self) -> None:
        """Drop finished check points when they are the majority: their own time may be hours away."""
        most = 2 * len(self._by_key) + SPARE_MAX
        if len(self._due) > most:
            self._due = [one for one in self._due if not one[2].is_finished]
            heapq.heapify(self._due)
        for queue_id, places in self._places.items():
            if len(places) > most:
                left = self._places[queue_id] = [one for one in places if not one[2].is_finished]
                heapq.heapify(left)

    def _count(self, popped: Popped, change: int) -> None:
        key = popped.point.key
        queue = (key.topic, key.group, key.queue_id)
        count = self._counts.get(queue, 0) + change
        if count:
            self._counts[queue] = count
        else:
            self._counts.pop(queue, None)

    # -- time --------------------------------------------------------------------------------------

    def due(self, now_ms: int, count_max: int) -> list[Popped]:
        """
        Take unfinished check points whose time is over; those that stay unfinished need L{again}.

        @param count_max: the most messages; one check point at least.
        """
        if self._now_ms is None or now_ms < self._now_ms - SET_BACK_MS:
            self._now_ms = now_ms
            self._due = [(self._bounded(one, due_ms), turn, one) for due_ms, turn, one in self._due]
            heapq.heapify(self._due)
        self._now_ms = now_ms
        found: list[Popped] = []
        count = 0
        while self._due and self._due[0][0] <= now_ms and count < count_max:
            popped = heapq.heappop(self._due)[2]
            if not popped.is_finished:
                found.append(popped)
                count += len(popped.open)
        return found

    def _bounded(self, popped: Popped, due_ms: int) -> int:
        """A time that is not later than the clock allows: it may have been set back since the pop."""
        if self._now_ms is None:
            return due_ms
        return min(due_ms, self._now_ms + popped.point.invisible_ms + SET_BACK_MS)

    def reach(self) -> dict[int, int]:
        """By queue of the revive topic: the offset of the last finished message; -1: none."""
        reached = {}
        for queue_id, last in self._last.items():
            places = self._places.get(queue_id, [])
            while places and places[0][2].is_finished:
                heapq.heappop(places)
            reached[queue_id] = places[0][0] - 1 if places else last
        return reached
