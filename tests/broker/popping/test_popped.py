# -*- test-case-name: tests.broker.popping.test_popped -*-
"""The table of check points that are not finished."""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from dledger.rocketmq.broker.popping.check_points import Ack, CheckPoint, PopKey
from dledger.rocketmq.broker.popping.popped import SPARE_MAX, MoveOrder, PoppedTable


def point(start: int, *offsets: int, pop_ms: int = 1000) -> CheckPoint:
    """Of one queue, for ten seconds."""
    return CheckPoint(PopKey("T", "G", 0, start, pop_ms, "b"), 10_000, offsets or (start,))


class PoppedTests(SynchronousTestCase):
    """The table alone."""

    def setUp(self) -> None:
        self.table = PoppedTable()
        self.one, self.two = point(5, 5, 6), point(7)
        self.table.add(self.one, 0, 100)
        self.table.add(self.two, 0, 101)

    def test_a_clock_that_is_set_back_hides_nothing(self) -> None:
        """After its time, and a minute, a message comes, also with a check point that is stored then."""
        late = point(9, 9, pop_ms=5_000_000)
        self.table.add(late, 0, 102)
        self.assertEqual(self.table.due(5_000_000, 1)[0].point, self.one)
        self.assertEqual(self.table.due(4_950_000, 9)[0].point, self.two)
        self.assertEqual(self.table.due(2_000_000, 9), [])
        later = point(10, 10, pop_ms=5_000_001)
        self.table.add(later, 0, 103)
        self.assertEqual(self.table.due(2_069_999, 9), [])
        self.assertEqual({one.point for one in self.table.due(2_070_000, 9)}, {late, later})

    def test_a_clock_that_was_set_back_before_the_start(self) -> None:
        """The first look knows the time."""
        late = point(9, 9, pop_ms=5_000_000)
        self.table.add(late, 0, 102)
        self.assertEqual(len(self.table.due(100_000, 9)), 2)
        self.assertEqual([one.point for one in self.table.due(170_000, 9)], [late])

    def test_a_message_of_two_check_points(self) -> None:
        """While a start reads, the later one counts; what a running master adds takes nothing over."""
        later = point(6, 6, 7, pop_ms=4000)
        self.table.add(later, 0, 102)
        self.assertEqual([one.point for one in self.table.due(11_000, 9)], [self.one])
        self.assertEqual((self.count(), self.table.has(Ack(self.one.key, (6,)))), (3, False))
        self.table.finish(Ack(self.one.key, (5, 6)))
        self.assertEqual(self.count(), 2)
        self.table.add(point(6, 6, pop_ms=3000), 1, 0)  # from another queue, which is read later
        self.assertTrue(self.table.has(Ack(later.key, (6, 7))))
        self.table.is_read()
        self.table.add(point(7, pop_ms=5000), 0, 103)
        self.assertTrue(self.table.has(Ack(later.key, (6, 7))))

    def count(self) -> int:
        """Messages that are not done."""
        return self.table.count(("T", "G", 0))

    def test_acks_count_from_their_receipt(self) -> None:
        """They count from their receipt on, and are taken back if they cannot be stored."""
        ack = Ack(self.one.key, (5,))
        self.assertTrue(self.table.settle(ack))
        self.assertEqual([len(one.open) for one in self.table.due(20_000, 10)], [1, 1])
        self.table.settled(ack, is_stored=False)
        self.assertEqual(self.count(), 3)
        self.assertTrue(self.table.settle(ack) and self.table.settle(ack))
        self.table.settled(ack, is_stored=True)
        self.table.settled(ack, is_stored=True)
        self.assertEqual((self.count(), len(self.table), self.table.has(ack)), (2, 2, False))
        self.assertFalse(self.table.settle(ack))
        self.assertFalse(self.table.settle(Ack(self.one.key, (6, 9))))
        self.assertEqual(self.count(), 2)

    def test_a_message_being_revived_takes_no_ack(self) -> None:
        """A message that is being stored again takes no ack; it does if it cannot be stored."""
        ours, theirs = Ack(self.one.key, (5, 6)), Ack(self.one.key, (6,))
        self.assertTrue(self.table.settle(ours, revives=True))
        self.assertEqual((self.table.settle(theirs), self.table.has(theirs)), (False, False))
        self.table.settled(ours, is_stored=False)
        self.assertTrue(self.table.has(theirs) and self.table.settle(theirs))
        self.table.settled(theirs, is_stored=True)
        self.assertEqual(self.count(), 2)

    def test_one_of_two_acks_fails(self) -> None:
        """An ack that is stored counts, although another one for the message was not."""
        ack = Ack(self.one.key, (5,))
        self.assertTrue(self.table.settle(ack) and self.table.settle(ack))
        self.table.settled(ack, is_stored=False)
        self.table.settled(ack, is_stored=True)
        self.assertEqual((self.count(), self.table.has(ack)), (2, False))

    def test_the_reach_stops_at_an_unfinished_check_point(self) -> None:
        """It stops before the first check point that is not finished."""
        self.assertEqual(self.table.reach(), {0: 99})
        self.table.finish(Ack(self.two.key, (7,)))
        self.table.passed(0, 102)
        self.assertEqual(self.table.reach(), {0: 99})
        self.table.finish(Ack(self.one.key, (5, 6)))
        self.assertEqual((self.table.reach(), len(self.table), self.count()), ({0: 102}, 0, 0))

    def test_due_check_points_come_in_order(self) -> None:
        """In the order of time, bounded, each once; finished ones not at all."""
        late = point(1, pop_ms=500)
        self.table.add(late, 3, 0)
        self.assertEqual(self.table.due(10_499, 10), [])
        self.assertEqual([one.point for one in self.table.due(20_000, 2)], [late, self.one])
        self.table.finish(Ack(self.two.key, (7,)))
        self.assertEqual(self.table.due(20_000, 2), [])
        self.assertEqual(self.table.reach(), {0: 99, 3: -1})

    def test_a_second_check_point_replaces_the_first(self) -> None:
        """The same name once more replaces the first."""
        self.table.add(self.one, 0, 102)
        self.assertEqual((self.count(), len(self.table)), (3, 2))
        self.table.finish(Ack(self.one.key, (5, 6)))
        self.table.finish(Ack(self.two.key, (7,)))
        self.assertEqual((self.count(), self.table.reach()), (0, {0: 102}))
        self.assertEqual(self.table.due(99_999, 10), [])

    def test_a_check_point_read_again_is_the_same(self) -> None:
        """A stored check point that is read once more is the same one."""
        self.table.add(self.one, 0, 100)
        self.assertEqual((self.count(), len(self.table), self.table.reach()), (3, 2, {0: 99}))

    def test_finished_check_points_leave_memory(self) -> None:
        """Finished check points do not wait for their time, nor for one before them that is not finished."""
        self.table.is_read()
        for number in range(3 * SPARE_MAX):
            one = point(number, pop_ms=2000 + number)
            self.table.add(one, 0, 102 + number)
            self.table.finish(Ack(one.key, one.offsets))
            self.assertLessEqual(len(self.table._due), SPARE_MAX + 6)
            self.assertLessEqual(len(self.table._places[0]), SPARE_MAX + 6)
        self.assertEqual((len(self.table), self.table.reach()), (2, {0: 99}))
        self.assertEqual([one.point for one in self.table.due(1 << 60, 10)], [self.one, self.two])

    def test_moves_may_end_in_any_order(self) -> None:
        """Puts end in any order; those before the oldest that has not count."""
        moves = MoveOrder()
        self.assertIsNone(moves.first)
        first, second, third, last = (moves.begin(one) for one in ((5,), (6, 7), (), (9,)))
        self.assertEqual(moves.first, 5)
        self.assertEqual([moves.end(second, 7), moves.end(third, -1), moves.end(first, 5)], [-1, -1, 7])
        self.assertEqual(moves.first, 9)
        self.assertEqual([moves.end(last, 9), moves.end(last, 9), moves.end(99, 1)], [9, -1, -1])

    def test_an_empty_check_point_is_finished(self) -> None:
        """A check point of which everything is done."""
        self.table.add(CheckPoint(self.one.key._replace(start=50), 1, ()), 0, 103)
        self.assertEqual(len(self.table), 2)
