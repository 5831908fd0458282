# -*- test-case-name: tests.client.test_look_back -*-
"""The times of entries, also where a reader begins between two time entries."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import cast

import attrs
from hypothesis import given, settings
from hypothesis import strategies as st
from twisted.internet.defer import Deferred, succeed
from twisted.python.failure import Failure
from twisted.trial.unittest import SynchronousTestCase

from dledger.client import look_back, places
from dledger.client.connection import MemberLink
from dledger.client.look_back import Part, entry_before, pulling, timed_link
from dledger.client.members import Members
from dledger.client.values import Entry
from dledger.values.errors import DLedgerError
from protocols.wire.codes import ResponseCode
from protocols.wire.ledger.messages import PullRequest, PullResponse, Request
from protocols.wire.ledger.own.own_entries import OwnKind
from tests.client.test_tail import TailCase

#: 2026-01-02T03:04:05.678Z
NOW = datetime(2026, 1, 2, 3, 4, 5, 678000, tzinfo=UTC)
NOW_MS = 1_767_323_045_678


@attrs.frozen
class Reported:
    """What a member has said of its log."""

    has_times: bool = True


@attrs.frozen
class FakeLink:
    """A connection to a member that has one answer."""

    member_id: str
    answer: PullResponse | None = None
    native: bool = True
    metadata: Reported = Reported()

    def ask(self, request: PullRequest, timeout_s: float) -> Deferred[PullResponse | None]:
        """The answer."""
        return succeed(self.answer)


@attrs.frozen
class FakeMembers:
    """Members, some of them connected."""

    addresses: list[str]
    leader_id: str
    links: dict[str, MemberLink]

    def connected(self, member_id: str) -> MemberLink | None:
        """The connection, if there is one."""
        return self.links.get(member_id)


class BeforeTests(SynchronousTestCase):
    """The entry before an index, of a scripted log."""

    def setUp(self) -> None:
        self.log: list[Entry] = []
        self.begin, self.most, self.read = 0, 100, 0

    def add(self, count: int, *, term: int = 1, time_ms: int | None = None, body: bytes = b"x") -> None:
        """Entries, the first of which gives a time to all if there is one."""
        for number in range(count):
            self.log.append(Entry(
                index=len(self.log), term=term, pos=0, body=body, time_ms=time_ms,
                kind=OwnKind.TIME if time_ms is not None and not number else None,
            ))

    async def pull(self, begin: int, end: int, before: Entry | None) -> Part:
        """As a member: times follow from those of the entries that were read."""
        if begin < self.begin:
            return Part([], self.begin)
        found: list[Entry] = []
        for entry in self.log[begin : min(end + 1, begin + self.most)]:
            if entry.kind is None:
                known = before is not None and before.term == entry.term
                entry = attrs.evolve(entry, time_ms=before.time_ms if known and before is not None else None)
            found.append(entry)
            before = entry
        self.read += len(found)
        return Part(found, self.begin)

    def before(self, index: int) -> Entry | None:
        """The result."""
        return self.successResultOf(Deferred.fromCoroutine(entry_before(index, self.pull)))

    def test_near_and_far(self) -> None:
        """The time entry is found, and no more is read than eight times the way to it."""
        self.add(3000, time_ms=100)
        for index in (1, 2, 5, 40, 300, 2999):
            self.read = 0
            entry = self.before(index)
            assert entry is not None
            self.assertEqual((entry.index, entry.time_ms), (index - 1, 100))
            self.assertLessEqual(self.read, max(4, 9 * index))

    def test_a_time_counts_in_its_term(self) -> None:
        """A time entry counts in its own term; nothing before the begin of the term is read."""
        self.add(1000, time_ms=100)
        self.add(20, term=2)
        entry = self.before(1010)
        assert entry is not None
        self.assertEqual((entry.index, entry.term, entry.time_ms), (1009, 2, None))
        self.assertLessEqual(self.read, 40)

    def test_an_expired_time_is_not_known(self) -> None:
        """What is left of the log is read; a time entry that has expired is not known."""
        self.add(50, time_ms=100)
        self.add(50, time_ms=200)
        self.begin = 40
        self.assertEqual(self.before(45).time_ms, None)  # type: ignore[union-attr]
        self.assertEqual(self.before(60).time_ms, 200)  # type: ignore[union-attr]
        self.assertIsNone(self.before(40))
        self.begin = 59
        self.assertEqual(self.before(60).index, 59)  # type: ignore[union-attr]

    def test_looking_back_is_bounded(self) -> None:
        """Entries and bytes that are read have a bound."""
        self.patch(look_back, "LOOK_BACK_ENTRIES", 256)
        self.add(1, time_ms=100)
        self.add(2000)
        self.assertIsNone(self.before(2000).time_ms)  # type: ignore[union-attr]
        self.assertLessEqual(self.read, 8 * 256 + 300)
        self.patch(look_back, "LOOK_BACK_ENTRIES", 1 << 20)
        self.patch(look_back, "LOOK_BACK_BYTES", 5000)
        self.read = 0
        self.add(1, time_ms=100)
        self.add(2000, body=b"x" * 1000)
        self.assertIsNone(self.before(4000).time_ms)  # type: ignore[union-attr]
        self.assertLessEqual(self.read, 40)

    @given(st.lists(st.tuples(st.integers(0, 40), st.integers(0, 9)), min_size=1, max_size=20),
           st.integers(0, 300), st.integers(1, 30))
    @settings(max_examples=200, deadline=None)
    def test_any_log_gives_its_times(self, spans: list[tuple[int, int]], begin: int, most: int) -> None:
        """As if the whole log were read from its begin."""
        self.setUp()
        term = 1
        for number, (count, kind) in enumerate(spans):
            term += kind == 0
            self.add(count, term=term, time_ms=None if kind < 4 else 100 + number)
        self.begin, self.most = min(begin, len(self.log)), most
        known: dict[int, int | None] = {}
        last: Entry | None = None
        for entry in self.log[self.begin :]:
            if entry.kind is None:
                time_ms = last.time_ms if last is not None and last.term == entry.term else None
                entry = attrs.evolve(entry, time_ms=time_ms)
            known[entry.index] = entry.time_ms
            last = entry
        for index in range(1, len(self.log) + 1):
            found = self.before(index)
            if index <= self.begin:
                self.assertIsNone(found)
            else:
                assert found is not None
                self.assertEqual((found.index, found.time_ms), (index - 1, known[index - 1]))


class TimedLogTests(TailCase):
    """A group that has times, and a client."""

    def setUp(self) -> None:
        super().setUp()
        self.group.log[:] = []
        for number in range(10):
            self.group.note_time(NOW_MS + 1000 * number)
            self.group.log.extend(b"%d" % number for _ in range(20))

    def times(self, from_index: int) -> list[tuple[int, int]]:
        """What a tail shows: numbers of the bodies, and seconds of their times after the first."""
        reader = self.read(from_index, follow=False)
        self.group.run(1.0)
        return [(int(entry.body), (entry.time_ms or 0) - NOW_MS) for entry in reader.entries]

    def test_a_tail_has_times(self) -> None:
        """Each entry has the time of the entry before it, wherever the tail begins."""
        for first in (0, 1, 5, 21, 22, 100, 205):
            shown = self.times(first)
            self.assertEqual(shown, [(one, 1000 * one) for one, _ in shown], first)
            self.assertEqual(len(shown), sum(1 for at in range(first, 210) if at % 21), first)

    def test_a_time_is_in_utc(self) -> None:
        """In UTC, with milliseconds."""
        (entry, *_) = self.read(3).entries
        self.assertEqual((entry.time, entry.when_ms), (NOW, NOW_MS))

    def test_another_member_gives_the_same_times(self) -> None:
        """A batch that is read again, from another member, has the same times."""
        for member in self.group.members.values():
            member.holds = lambda request: len(member.received) % 7 == 3  # noqa: B023
        reader = self.read(30, follow=True)
        for _ in range(60):
            for member in self.group.members.values():
                if member.held:
                    member.held.clear()
                    member.lose_connections()
            self.group.run(0.3)
        shown = [(int(entry.body), (entry.time_ms or 0) - NOW_MS) for entry in reader.entries]
        self.assertGreater(len(shown), 20)
        self.assertEqual(shown, [(one, 1000 * one) for one, _ in shown])

    def test_nothing_before_a_reset_is_later(self) -> None:
        """A tail, a batch, an entry and a search by time agree: the times of numbers from 3 on were ahead."""
        self.group.time_resets = f"105:{NOW_MS + 2500}"
        times = [1000 * one if one > 4 else min(1000 * one, 2500) for one in range(10)]
        wanted = [(one, times[one]) for one in range(10) for _ in range(20)]
        self.assertEqual(self.times(0), wanted)
        self.assertEqual(self.times(85), [pair for pair in wanted if pair[0] >= 4])
        batches: list[Entry] = []
        tail = self.client.tail_batches(70, follow=False)
        for _ in range(90):
            tail.next_batch().addCallback(batches.extend)
            self.group.run(0.1)
        self.assertEqual([(int(one.body), (one.time_ms or 0) - NOW_MS) for one in batches],
                         [pair for pair in wanted if pair[0] >= 3][70 - 63 - 1 :])
        for index in (63, 70, 104, 106):
            found: list[Entry] = []
            self.client.get(index).addCallback(found.append)
            self.group.run(0.5)
            self.assertEqual((found[0].time_ms or 0) - NOW_MS, 5000 if index > 105 else 2500, index)
        for seconds, index in ((2, 42), (2.2, 63), (2.5, 63), (2.501, 105), (4.5, 105), (5, 105), (5.5, 126)):
            places: list[int] = []
            self.client.find_time(NOW + timedelta(seconds=seconds)).addCallback(places.append)
            self.group.run(3.0)
            self.assertEqual(places, [index], seconds)

    def test_a_get_has_its_time(self) -> None:
        """One entry has its time, too."""
        for index in (1, 20, 22, 100, 209):
            found: list[Entry] = []
            self.client.get(index).addCallback(found.append)
            self.group.run(0.5)
            self.assertEqual(found[0].time_ms, NOW_MS + 1000 * int(found[0].body), index)

    def test_nothing_is_asked_without_times(self) -> None:
        """Where the group has none, nothing more is asked, and the time is not known."""
        self.group.has_times = False
        self.group.log[:] = [b"%d" % number for number in range(50)]
        self.group.handler.own.clear()
        reader = self.read(20, follow=False)
        self.assertEqual({entry.time_ms for entry in reader.entries}, {None})
        self.assertEqual(min(min(self.pulls(one), default=20) for one in self.group.members), 20)

    def test_a_time_is_found_exactly(self) -> None:
        """A time is found exactly, and a reader may begin there."""
        for seconds, index in ((0, 0), (3, 63), (3.5, 84), (9, 189), (9.001, 210), (-5, 0)):
            found: list[int] = []
            self.client.find_time(NOW + timedelta(seconds=seconds)).addCallback(found.append)
            self.group.run(3.0)
            self.assertEqual(found, [index], seconds)

    def test_leader_without_times(self) -> None:
        """Many entries of a leader without times hide none before them; they may be of a later time."""
        self.patch(places, "LOOK_ENTRIES", 3)
        self.group.log.extend(b"0" for _ in range(300))
        self.group.term_of = lambda index: 1 if index < 210 else 2
        for seconds, index in ((0, 0), (3, 63), (9, 189), (9.001, 210)):
            found: list[int] = []
            self.client.find_time(NOW + timedelta(seconds=seconds)).addCallback(found.append)
            for _ in range(100_000):
                if found:
                    break
                self.clock.advance(0)
                for member in self.group.members.values():
                    for wire in list(member.wires):
                        member.deliver(wire)
                    member.end_polls()
            self.assertEqual(found, [index], seconds)

    def test_first_time_has_expired(self) -> None:
        """The log begins after its first time entry: of what is later than a time, nothing is left out."""
        for member in self.group.members.values():
            member.begin_index = 5
        for seconds, index in ((-86_400, 5), (0, 5), (1, 5), (1.001, 42), (9.001, 210)):
            found: list[int] = []
            self.client.find_time(NOW + timedelta(seconds=seconds)).addCallback(found.append)
            self.group.run(3.0)
            self.assertEqual(found, [index], seconds)

    def pulled(self) -> int:
        """Number of pulls so far."""
        return sum(len(self.pulls(one)) for one in self.group.members)

    def test_get_without_a_time(self) -> None:
        """A second entry of a term without times costs no look back."""
        self.group.log.extend(b"0" for _ in range(100))
        self.group.term_of = lambda index: 1 if index < 210 else 2
        for index, is_cheap in ((300, False), (300, True), (250, True), (305, False), (304, True)):
            before, found = self.pulled(), list[Entry]()
            self.client.get(index).addCallback(found.append)
            self.group.run(2.0)
            self.assertIsNone(found[0].time_ms)
            self.assertEqual(self.pulled() == before, is_cheap, index)
        self.assertLess(self.pulled(), 150)

    def test_get_of_a_lost_member(self) -> None:
        """A member that is lost while the time is looked for is asked again, or another one."""
        lost = []

        def hold(request: Request) -> bool:
            if isinstance(request, PullRequest) and len(lost) < 3:
                lost.append(request)
                return True
            return False

        for member in self.group.members.values():
            member.holds = hold
        found: list[Entry] = []
        self.client.get(100).addCallback(found.append)
        for _ in range(20):
            for member in self.group.members.values():
                if member.held:
                    member.held.clear()
                    member.lose_connections()
            self.group.run(0.5)
        self.assertEqual(len(lost), 3)
        self.assertEqual(found[0].time_ms, NOW_MS + 4000)

    def test_get_without_members(self) -> None:
        """In the end it is an error of ours, not a time that is not known."""
        for member in self.group.members.values():
            member.holds = lambda request: isinstance(request, PullRequest)
        failed: list[Failure] = []
        self.client.get(100).addErrback(failed.append)
        self.group.run(60.0)
        self.assertIsInstance(failed[0].value, DLedgerError)

    def test_the_leader_is_asked_first(self) -> None:
        """The leader is asked where it is connected and has times; else another member."""
        names = list(self.group.members)
        links = {name: cast(MemberLink, FakeLink(name)) for name in names}
        for leader_id in names:
            members = FakeMembers(names, leader_id, links)
            self.assertIs(timed_link(cast(Members, members)), links[leader_id])
        del links[names[0]]
        members = FakeMembers(names, names[0], links)
        self.assertIs(timed_link(cast(Members, members)), links[names[1]])

    def test_an_empty_answer_gives_no_time(self) -> None:
        """An answer without entries gives none, also one that succeeds."""
        for code in (ResponseCode.SUCCESS, ResponseCode.INDEX_LESS_THAN_LOCAL_BEGIN):
            link = FakeLink("n0", PullResponse(code=code, ledger_begin_index=7))
            part = self.successResultOf(Deferred.fromCoroutine(
                pulling(cast(MemberLink, link), "g", 1.0)(3, 5, None)  # type: ignore[arg-type]
            ))
            self.assertEqual(part, Part([], 7))

    def test_a_refusing_member_is_left(self) -> None:
        """A member that cannot look back is left; the tail goes on with another."""
        member = self.group["n1"]
        answer = member.pull
        member.pull = lambda request, base: (  # type: ignore[method-assign]
            attrs.evolve(answer(request, base), code=ResponseCode.DISK_ERROR, entries=None)
            if request.end_index >= 0 else answer(request, base)
        )
        shown = self.times(100)
        self.assertEqual(shown, [(one, 1000 * one) for one, _ in shown])
