# -*- test-case-name: tests.client.test_tail -*-
"""A tail shows every committed entry once, in order, whatever becomes of the members."""

from __future__ import annotations

from typing import Any

from twisted.internet.defer import Deferred
from twisted.internet.task import Clock
from twisted.python.failure import Failure
from twisted.trial.unittest import SynchronousTestCase

from dledger.client.errors import Restored
from dledger.client.tails import Tail
from dledger.client.values import Entry
from dledger.values.errors import DLedgerError
from protocols.wire.codes import ResponseCode
from protocols.wire.ledger.messages import PullRequest
from protocols.wire.ledger.own.own_entries import HIDDEN, TERM_START_CHANNEL, OwnKind, slot_channels
from tests.client.fakes import FakeGroup

STEPS = ("append", "kill", "raise", "lose", "wait", "lag", "silent")


class Reader:
    """Reads a tail as far as it goes; C{failure} is how it ended."""

    def __init__(self, tail: Tail) -> None:
        self.tail = tail
        self.entries: list[Entry] = []
        self.failure: Failure | None = None
        self.is_done = False
        self._story = Deferred.fromCoroutine(self._read())
        self._story.addErrback(self._failed)

    async def _read(self) -> None:
        async for entry in self.tail:
            self.entries.append(entry)
        self.is_done = True

    def _failed(self, failure: Failure) -> None:
        self.failure = failure

    @property
    def indexes(self) -> list[int]:
        """Of what came."""
        return [entry.index for entry in self.entries]


class TailCase(SynchronousTestCase):
    """Three members, ten entries, and a client."""

    def setUp(self) -> None:
        self.clock = Clock()
        self.group = FakeGroup(self.clock)
        self.group.log = [b"%d" % number for number in range(10)]
        self.client = self.group.client()
        self.addCleanup(self.close)

    def close(self) -> None:
        """A closed client has no timers."""
        self.client.close()
        self.group.settle()
        self.assertEqual(self.clock.getDelayedCalls(), [])

    def read(self, *args: Any, **options: Any) -> Reader:
        """Read what there is, and follow."""
        if len(args) < 2:
            options.setdefault("follow", True)
        reader = Reader(self.client.tail(*args, **options))
        self.group.run(0.2)
        return reader

    def pulls(self, member_id: str) -> list[int]:
        """First indexes that a member was asked for."""
        return [r.begin_index for r in self.group[member_id].received if isinstance(r, PullRequest)]

    def assertRefused(self, reader: Reader, code: ResponseCode) -> DLedgerError:
        """It failed with this code."""
        assert reader.failure is not None
        error = reader.failure.value
        assert isinstance(error, DLedgerError)
        self.assertIs(error.code, code)
        return error


class RestoredTests(TailCase):
    """The group at the members' addresses is another one than before."""

    def setUp(self) -> None:
        super().setUp()
        self.name_group("a" * 32)

    def name_group(self, group_id: str) -> None:
        """All members report this id; their processes are others than before."""
        for member in self.group.members.values():
            member.group_id = group_id
            member.lose_connections()

    def test_a_restored_log_is_noticed(self) -> None:
        """A reader gets an error with both ids, also if the new log has more entries than it has read."""
        reader = self.read(0)
        self.assertEqual(reader.indexes, list(range(10)))
        self.group.log = [b"%d" % number for number in range(5)] + [b"new"] * 20
        self.name_group("b" * 32)
        self.group.run(3.0)
        error = self.assertRefused(reader, ResponseCode.GROUP_RESTORED)
        assert isinstance(error, Restored)
        self.assertEqual((error.group_id, error.read_group_id), ("b" * 32, "a" * 32))
        self.assertIn("restored from a backup", str(error))
        self.assertEqual(reader.indexes, list(range(10)))

    def test_a_later_tail_notices_the_log(self) -> None:
        """An index above 0 is one of the log that the client knows; 0 and the last ones are of any log."""
        self.read(0, follow=False)
        self.name_group("b" * 32)
        self.group.run(0.1)
        self.assertRefused(self.read(3, follow=False), ResponseCode.GROUP_RESTORED)
        self.assertEqual(self.read(0, follow=False).indexes, list(range(10)))
        self.assertEqual(self.read(-2, follow=False).indexes, [8, 9])

    def test_calls_with_an_index(self) -> None:
        """So are other calls that name an index of the old log; what names none goes on."""
        self.read(0, follow=False)
        self.successResultOf(self.settled(self.client.get(3)))
        self.name_group("b" * 32)
        self.group.run(0.1)
        for call in (
            lambda: self.client.get(3), lambda: self.client.move_reader("r", 3),
            lambda: self.client.append(b"x", expected_end=9),
        ):
            error = self.failureResultOf(self.settled(call()), DLedgerError).value
            assert isinstance(error, DLedgerError)
            self.assertIs(error.code, ResponseCode.GROUP_RESTORED)
            self.assertEqual(error.facts["read_group_id"], "a" * 32)
        self.assertEqual(len(self.group.log), 10)
        self.assertEqual(self.successResultOf(self.settled(self.client.append(b"x"))).index, 10)
        self.assertEqual(self.successResultOf(self.settled(self.client.readers())), ())

    def settled(self, call: Deferred[Any]) -> Deferred[Any]:
        """The group has answered."""
        self.group.run(0.5)
        return call

    def test_a_lagging_member_is_no_other_log(self) -> None:
        """In the same group, a member that has less than the reader is one that lags."""
        reader = self.read(0)
        for member in self.group.members.values():
            member.committed_index = 3
            member.lose_connections()
        self.group.run(3.0)
        self.assertIsNone(reader.failure)
        for member in self.group.members.values():
            member.committed_index = None
        self.group.log += [b"10"]
        self.group.run(3.0)
        self.assertEqual(reader.indexes, list(range(11)))

    def test_not_named_yet(self) -> None:
        """Members of a new group do not know their id at first: entries count when they do."""
        reader = self.read(0)
        self.name_group("")
        self.group.run(3.0)
        self.assertIsNone(reader.failure)
        self.group.log += [b"10"]
        for member in self.group.members.values():
            member.group_id = "b" * 32
        self.group.run(3.0)
        self.assertRefused(reader, ResponseCode.GROUP_RESTORED)
        self.assertEqual(reader.indexes, list(range(10)))

    def test_a_group_without_id_is_read(self) -> None:
        """A group without an id is read on: there is nothing to compare."""
        reader = self.read(0)
        self.name_group("")
        self.group.log += [b"10"]
        self.group.run(3.0)
        self.assertEqual(reader.indexes, list(range(11)))


class ReadingTests(TailCase):
    """Where it begins and ends."""

    def test_a_tail_reads_everything(self) -> None:
        """From 0 to what is committed now, and no further."""
        reader = self.read(0, follow=False)
        self.assertEqual(reader.indexes, list(range(10)))
        self.assertEqual(reader.entries[3], Entry(index=3, term=1, pos=300, body=b"3"))
        self.assertTrue(reader.is_done)

    def test_end_is_fixed_at_the_beginning(self) -> None:
        """What is appended while reading is not waited for."""
        self.group["n1"].holds = self.group["n2"].holds = lambda r: isinstance(r, PullRequest)
        reader = self.read(0, follow=False)
        self.group.log += [b"later"]
        self.group["n1"].holds = self.group["n2"].holds = lambda r: False
        for member_id in ("n1", "n2"):
            self.group[member_id].release(len(self.group[member_id].held))
        self.group.run(0.2)
        self.assertEqual(reader.indexes, list(range(10)))

    def test_a_negative_index_counts_from_the_end(self) -> None:
        """A negative index counts from the end."""
        self.assertEqual(self.read(-3, follow=False).indexes, [7, 8, 9])

    def test_control_entries_are_hidden(self) -> None:
        """Entries of the members are not shown, nor counted from the end, unless they are asked for."""
        self.group.handler.own = {1, 7, 9}
        self.assertEqual(self.read(0, follow=False).indexes, [0, 2, 3, 4, 5, 6, 8])
        self.assertEqual(self.read(-3, follow=False).indexes, [5, 6, 8])
        self.assertEqual(self.read(-3, follow=False, control=True).indexes, [7, 8, 9])
        self.assertEqual(self.read(-9, follow=False).indexes, [0, 2, 3, 4, 5, 6, 8])
        following = self.read(-1)
        self.assertEqual(following.indexes, [8])
        self.group.handler.own = set(range(10))
        self.assertEqual(self.read(-3, follow=False).indexes, [])
        self.group.log += [b"10"]
        self.group.run(1.0)
        self.assertEqual(following.indexes, [8, 10])

    def test_term_starts_are_hidden(self) -> None:
        """A leader's own entry is not shown; a program's empty body is, also where it begins a term."""
        self.group.log[0] = self.group.log[3] = self.group.log[4] = self.group.log[6] = b""
        self.group.term_of = lambda index: 1 + index // 3
        self.group.channels = {6: TERM_START_CHANNEL}
        for first in range(10):
            shown = [index for index in range(first, 10) if index != 6]
            self.assertEqual(self.read(first, follow=False).indexes, shown)
            all_of_them = self.read(first, follow=False, control=True)
            self.assertEqual(all_of_them.indexes, list(range(first, 10)))
            control = [entry.index for entry in all_of_them.entries if entry.is_control]
            self.assertEqual(control, [6] if first <= 6 else [])
        self.assertEqual(self.read(-4, follow=False).indexes, [5, 7, 8, 9])

    def test_sink_markers_are_hidden(self) -> None:
        """The markers of the Spark sink are entries of the log's own, too."""
        self.group.log[2] = self.group.log[5] = b"a marker"
        self.group.channels = {2: slot_channels(1, 0, 1)[0] | HIDDEN, 5: slot_channels(1, 1, 1)[0] | HIDDEN}
        self.assertEqual(self.read(0, follow=False).indexes, [0, 1, 3, 4, 6, 7, 8, 9])
        kinds = [entry.kind for entry in self.read(1, follow=False, control=True).entries[:2]]
        self.assertEqual(kinds, [None, OwnKind.SINK_MARKER])

    def test_last_few_of_fewer(self) -> None:
        """No further back than the beginning."""
        for member in self.group.members.values():
            member.begin_index = 4
        self.assertEqual(self.read(-30, follow=False).indexes, [4, 5, 6, 7, 8, 9])

    def test_an_empty_log_ends_at_once(self) -> None:
        """An empty log ends at once."""
        self.group.log = []
        reader = self.read(0, follow=False)
        self.assertTrue(reader.is_done)

    def test_behind_the_end(self) -> None:
        """Nothing there yet: the end, not an error."""
        self.assertTrue(self.read(10, follow=False).is_done)

    def test_a_following_tail_gets_new_entries(self) -> None:
        """New entries come as they are committed."""
        reader = self.read(8)
        self.assertEqual(reader.indexes, [8, 9])
        self.group.log += [b"10", b"11", b"12"]
        self.group.run(1.0)
        self.assertEqual(reader.indexes, [8, 9, 10, 11, 12])
        self.assertFalse(reader.is_done)

    def test_follow_from_the_last_few(self) -> None:
        """Both together."""
        reader = self.read(-2)
        self.group.log += [b"10"]
        self.group.run(1.0)
        self.assertEqual(reader.indexes, [8, 9, 10])

    def test_followers_are_asked_first(self) -> None:
        """The leader has enough to do."""
        self.client.metadata()
        self.group.settle()
        self.read(0, follow=False)
        self.assertEqual(self.pulls("n0"), [])

    def test_a_slow_client_gets_two_batches(self) -> None:
        """A client that does not read is sent two batches ahead, not more."""
        tail = self.client.tail(0, follow=True)
        batch = tail.next_batch()
        self.group.run(0.5)
        self.assertEqual([entry.index for entry in self.successResultOf(batch)], [0, 1])
        self.assertEqual(self.pulls("n1") + self.pulls("n2"), [0, 2, 4])
        batch = tail.next_batch()
        self.assertEqual([entry.index for entry in self.successResultOf(batch)], [2, 3])
        self.group.run(0.5)
        self.assertEqual(self.pulls("n1") + self.pulls("n2"), [0, 2, 4, 6])

    def test_member_that_does_not_let_us_wait(self) -> None:
        """An empty answer at once is not met with the next question at once."""
        for member in self.group.members.values():
            member.refuses_polls = True
        reader = self.read(10)
        self.group.run(1.0)
        self.assertLess(len(self.pulls("n1") + self.pulls("n2")), 15)
        self.group.log += [b"10"]
        self.group.run(0.3)
        self.assertEqual(reader.indexes, [10])

    def test_closing_ends_it(self) -> None:
        """Nothing is asked for after it was closed."""
        reader = self.read(0)
        count = len(self.pulls("n1") + self.pulls("n2"))
        reader.tail.close()
        self.group.log += [b"10"]
        self.group.run(2.0)
        self.assertEqual(reader.indexes, list(range(10)))
        self.assertEqual(len(self.pulls("n1") + self.pulls("n2")), count)
