# -*- test-case-name: tests.client.test_places -*-
"""Places in the log that programs name, and entries found by their time."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import attrs
from twisted.internet.defer import succeed
from twisted.trial.unittest import SynchronousTestCase

from dledger.client.places import milliseconds, place
from dledger.values.errors import DLedgerError
from protocols.wire.codes import ResponseCode
from protocols.wire.ledger.envelopes import envelope_head
from protocols.wire.ledger.readers import NO_END
from tests.client.test_readers import ReaderCase

#: 2026-01-02T03:04:05.678Z
NOW = datetime(2026, 1, 2, 3, 4, 5, 678000, tzinfo=UTC)


class PlaceTests(SynchronousTestCase):
    """What is allowed."""

    def test_allowed_places_are_taken(self) -> None:
        """Indexes, two words, and times with their zone."""
        self.assertEqual([place("begin", one) for one in (0, -10, "begin", "end")], [0, -10, 0, NO_END])
        self.assertEqual(place("begin", NOW), NOW)
        self.assertEqual(milliseconds(NOW), 1767323045678)
        self.assertEqual(milliseconds(datetime(1960, 1, 1, tzinfo=UTC)), 0)

    def test_wrong_places_are_refused(self) -> None:
        """With the name of the parameter, the value, and what is allowed."""
        for value, error, words in (
            ("start", ValueError, "begin='start': write 'begin', 'end'"), (1.5, TypeError, "begin=1.5"),
            (NOW.replace(tzinfo=None), ValueError, "has no zone"), (None, TypeError, "begin=None"),
        ):
            self.assertIn(words, str(self.assertRaises(error, place, "begin", value)))


class TimeTests(ReaderCase):
    """A hundred entries, one a minute, of a group."""

    def setUp(self) -> None:
        super().setUp()
        first_ms = milliseconds(NOW)
        self.group.log[:] = [
            envelope_head(first_ms + 60_000 * number, {}) + b"%d" % number for number in range(100)
        ]

    def test_a_time_finds_its_entry(self) -> None:
        """The minute before comes first; the end if all are earlier; anything but a time is refused."""
        for minutes, index in ((10, 9), (0, 0), (-5, 0), (99, 98), (102, 100)):
            found = self.clients[0].find_time(NOW + timedelta(minutes=minutes))
            self.assertEqual(self.done(found), index, minutes)
        self.assertRaises(TypeError, self.clients[0].find_time, 17)
        self.assertRaises(ValueError, self.clients[0].find_time, NOW.replace(tzinfo=None))

    def test_readers_begin_at_a_time(self) -> None:
        """They begin at a time, and move to one."""
        reader = self.clients[0].reader("a", begin=NOW + timedelta(minutes=50))
        self.assertEqual(self.done(self.take(reader, 2)), [b"49", b"50"])
        self.assertEqual(self.done(self.clients[0].move_reader("a", NOW + timedelta(minutes=20))), 19)
        self.assertEqual(self.done(self.clients[0].move_reader("a", "begin")), 0)

    def test_a_log_without_times_says_so(self) -> None:
        """Of a log without times nothing is found, and it says so."""
        self.group.log[:] = [b"x"] * 10
        error = self.fails(DLedgerError, self.clients[0].find_time(NOW))
        self.assertIs(error.code, ResponseCode.UNSUPPORTED)
        self.assertIn("none of 10 entries between 0 and 9 has a time", str(error))
        self.assertIn("Give an index instead of a time", str(error))

    def test_a_java_leader_has_no_search(self) -> None:
        """A leader that does not report its begin is named, and what to give instead."""
        known = self.done(self.clients[0].metadata())
        self.patch(self.clients[0], "metadata", lambda: succeed(attrs.evolve(known, begin_index=-2)))
        error = self.fails(DLedgerError, self.clients[0].find_time(NOW))
        self.assertIs(error.code, ResponseCode.UNSUPPORTED)
        self.assertIn("a Java leader", str(error))
        self.assertIn("give an index instead of a time", str(error))
