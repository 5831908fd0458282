# -*- test-case-name: tests.broker.ha.test_put_status -*-
"""What a producer hears."""

from __future__ import annotations

import itertools

from twisted.internet.defer import Deferred
from twisted.trial.unittest import SynchronousTestCase

from dledger.rocketmq.replication.put_status import PutStatus, combined, done, worse

OK = PutStatus.PUT_OK
SLOW_DISK = PutStatus.FLUSH_DISK_TIMEOUT
NO_SLAVE = PutStatus.SLAVE_NOT_AVAILABLE
SLOW_SLAVE = PutStatus.FLUSH_SLAVE_TIMEOUT
BROKEN = PutStatus.UNKNOWN_ERROR


class StatusTests(SynchronousTestCase):
    """Names and numbers."""

    def test_codes_are_those_of_rocketmq(self) -> None:
        """As RocketMQ's producers know them."""
        codes = {status.name: status.remoting_code for status in PutStatus}
        self.assertEqual(codes, {
            "PUT_OK": 0, "FLUSH_DISK_TIMEOUT": 10, "SLAVE_NOT_AVAILABLE": 11, "FLUSH_SLAVE_TIMEOUT": 12,
            "SERVICE_NOT_AVAILABLE": 14, "OS_PAGE_CACHE_BUSY": 2, "IN_SYNC_REPLICAS_NOT_ENOUGH": 1,
            "UNKNOWN_ERROR": 1,
        })

    def test_stored_means_sent_for_producers(self) -> None:
        """Exactly what a producer takes for sent is stored."""
        for status in PutStatus:
            self.assertEqual(status.is_stored, status.remoting_code in (0, 10, 11, 12), status)


class CombinedTests(SynchronousTestCase):
    """Both halves make one answer."""

    def test_the_worse_half_is_the_answer(self) -> None:
        """The replica's word counts where both failed; a broken disk above all."""
        for flush, replica, answer in (
            (OK, OK, OK), (SLOW_DISK, OK, SLOW_DISK), (OK, SLOW_SLAVE, SLOW_SLAVE), (OK, NO_SLAVE, NO_SLAVE),
            (SLOW_DISK, SLOW_SLAVE, SLOW_SLAVE), (SLOW_DISK, NO_SLAVE, NO_SLAVE), (BROKEN, OK, BROKEN),
            (BROKEN, SLOW_SLAVE, BROKEN),
        ):
            self.assertIs(worse(flush, replica), answer, (flush, replica))

    def test_waits_for_both(self) -> None:
        """In either order, the answer comes with the second."""
        for first, second in itertools.permutations(range(2)):
            halves: list[Deferred[PutStatus]] = [Deferred(), Deferred()]
            answer = combined(*halves)
            halves[first].callback(OK)
            self.assertNoResult(answer)
            halves[second].callback(OK)
            self.assertIs(self.successResultOf(answer), OK)

    def test_combined_results_may_be_ready(self) -> None:
        """Nothing to wait for."""
        self.assertIs(self.successResultOf(combined(done(OK), done(NO_SLAVE))), NO_SLAVE)
