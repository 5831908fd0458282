# -*- test-case-name: tests.sim.test_sim_readers -*-
"""Named readers in the simulator: they do what is checked, and the checks notice what is wrong."""

from __future__ import annotations

from collections.abc import Sequence
from unittest import mock

from twisted.trial.unittest import SynchronousTestCase

from dledger.client.values import Entry
from dledger.testing.group.checks.invariants import GroupInvariants
from dledger.testing.group.checks.readers import ReaderRules, change_problem, undone, without
from dledger.testing.group.checks.require import InvariantError
from dledger.testing.group.members.cluster import GroupOptions, SimCluster
from dledger.testing.group.schedule import EVERYTHING, Focus, member_options, reader_load, run_schedule
from dledger.testing.group.sim_readers import ReaderLoad, SimReaders
from dledger.values.ledger.group_state import GroupFold, GroupState, Marked
from protocols.wire.ledger.entry import ENTRY_HEADER
from protocols.wire.ledger.messages import ReaderRequest, ReaderResponse
from protocols.wire.ledger.own.own_entries import READER_CHANNEL
from protocols.wire.ledger.readers import (
    NO_END,
    ReaderInfo,
    ReaderPart,
    ReaderState,
    encode_reader_entry,
    encode_readers,
)


def part(begin: int, end: int = NO_END, token: int = -1, holder: str = "p") -> ReaderPart:
    """A part with a lease of a second."""
    return ReaderPart(begin, end, token, 1000, holder)


def state(previous: int, *parts: ReaderPart, given: int = NO_END, **fields: bool) -> ReaderState:
    """Of the reader r."""
    return ReaderState("r", previous, given, parts, **fields)


class ChangeTests(SynchronousTestCase):
    """What a process can do to a reader."""

    def test_ranges(self) -> None:
        """What is not done, and differences."""
        self.assertEqual(undone(state(-1, part(2, 4), part(4, 4), given=9)), [(2, 4), (9, NO_END)])
        self.assertEqual(undone(state(-1, part(2))), [(2, NO_END)])
        self.assertEqual(without([(0, 5), (7, 9)], [(1, 2), (4, 8)]), [(0, 1), (2, 4), (8, 9)])
        self.assertEqual(without([(0, 5)], []), [(0, 5)])

    def test_allowed(self) -> None:
        """A part is taken, its begin done, given back, taken over, dropped when it is done."""
        steps = [
            state(-1, given=0), state(1, part(0, 4, 2), given=4), state(2, part(3, 4, 2), given=4),
            state(3, part(3, 4, 2, ""), given=4), state(4, part(3, 4, 5, "q"), given=4),
            state(5, part(4, 4, 5, "q"), given=4), state(6, part(4, NO_END, 7)),
        ]
        for at, (before, after) in enumerate(zip(steps, steps[1:], strict=False)):
            self.assertEqual(change_problem(before, after, at + 2), "")

    def test_refused(self) -> None:
        """Done entries that come back, are left out, belong to a token of nobody, to another holder."""
        before = state(1, part(3, 6, 2), part(6, 9, 1, "q"), given=9)
        for words, after in (
            ("are not any more", state(2, part(2, 6, 2), part(6, 9, 1, "q"), given=9)),
            ("are done, by their parts", state(2, part(3, 6, 2), given=9)),
            ("are done, by their parts", state(2, part(4, 6, 2), part(7, 9, 1, "q"), given=9)),
            ("are done, by their parts", state(2, part(3, 6, 2), part(6, 9, 1, "q"), given=12)),
            ("which nobody had", state(2, part(3, 6, 2), part(6, 9, 0, "q"), given=9)),
            ("has become", state(2, part(3, 6, 2), part(6, 9, 1, "z"), given=9)),
        ):
            self.assertIn(words, change_problem(before, after, 5))


class RulesTests(SynchronousTestCase):
    """The rules, and their breaches."""

    def setUp(self) -> None:
        """Three entries, then r is taken at 3, 1 is done at 4; void: 5; taken over at 6, at 7 s."""
        self.now_us = 7_000_000
        self.log = mock.Mock(records={}, committed={}, last_committed=-1)
        self.log.body_of = lambda index: self.log.records[index, 1][0][ENTRY_HEADER.size :]
        self.log.is_hidden = lambda index: GroupInvariants.is_hidden(self.log, index)
        self.rules = ReaderRules(self.log, lambda: self.now_us)
        for body in (b"a", b"b", b"c"):
            self.add(body)
        self.add(state(-1, part(0)))
        self.add(state(3, part(2, token=3)))
        self.add(state(3, part(0, token=3)))
        self.add(state(4, part(2, holder="q")))

    def add(self, body: bytes | ReaderState) -> int:
        """A committed entry. @return: its index."""
        log, channel = self.log, 0
        if isinstance(body, ReaderState):
            body, channel = encode_reader_entry(body), READER_CHANNEL
        index = log.last_committed = log.last_committed + 1
        header = ENTRY_HEADER.pack(1, 48 + len(body), index, 1, 0, channel, 1, 0, len(body))
        log.records[index, 1] = (header + body, 1)
        log.committed[index] = 1
        return int(index)

    def answered(
        self, does: str, *, asked_us: int = 0, known: int = -1, holder: str = "p", sent: int = -1,
        index: int = 0, **fields: object,
    ) -> None:
        """An answer to a request of r."""
        name = "r" if does != "list" else str(fields.pop("after", ""))
        request = ReaderRequest(does=does, name=name, holder=holder, token=sent, index=index, lease_ms=1000)
        self.rules.answered(request, ReaderResponse(**fields), asked_us, known)  # type: ignore[arg-type]

    def wrong(self, words: str, does: str, **fields: object) -> None:
        """The same, and it is refused."""
        error = self.assertRaises(InvariantError, self.answered, does, **fields)
        self.assertIn(words, str(error))

    def took(self, holder: str, token: int, begin: int, **fields: int) -> None:
        """A lease was given."""
        self.answered("take", holder=holder, token=token, begin_index=begin, end_index=NO_END,
                      next_index=begin, **fields)

    def test_takes(self) -> None:
        """A lease is of the entry of its token, and of its holder."""
        self.took("p", 3, 0)
        self.took("q", 6, 2, asked_us=6_500_000)
        self.assertEqual(self.rules.taken_over, 1)
        for words, fields in (
            ("nobody has given", {"token": 5}), ("is of ReaderPart", {"token": 6, "holder": "p"}),
            ("is of ReaderPart", {"begin_index": 1}), ("next entry was never", {"next_index": 9}),
            ("is of ReaderPart", {"end_index": 9}),
        ):
            right = {"holder": "q", "token": 6, "begin_index": 2, "end_index": NO_END, "next_index": 2}
            self.wrong(words, "take", **{**right, **fields})

    def test_leases(self) -> None:
        """No part is given away within the time of a lease, whatever was answered first."""
        self.took("p", 3, 0, asked_us=6_500_000)
        self.wrong("good until 7400000", "take", holder="q", token=6, begin_index=2, end_index=NO_END,
                   next_index=2)
        self.rules.forget()
        self.took("p", 3, 0, asked_us=1_000_000)
        self.took("q", 6, 2)
        self.answered("renew", sent=3, asked_us=6_000_000, next_index=2)
        self.wrong("good until 7400000", "renew", sent=3, asked_us=6_500_000, next_index=2)

    def test_commits(self) -> None:
        """The log says that it is done."""
        self.answered("commit", sent=3, index=1, next_index=2)
        self.wrong("2 is done, the log says 2", "commit", sent=3, index=2, next_index=2)
        self.wrong("the log says 2", "commit", sent=6, index=2, next_index=2)

    def test_orders(self) -> None:
        """Given back, moved, forgotten."""
        self.wrong("it still has", "release", holder="q", sent=6, next_index=2)
        self.wrong("the log does not say so", "move", next_index=2, known=5)
        self.rules.ordered("r")
        self.add(state(6, given=1))
        self.answered("release", holder="q", sent=6, next_index=1, known=6)
        self.answered("move", next_index=1, known=6)
        self.wrong("the log does not say so", "forget", known=7)
        self.add(state(7, given=0, is_forgotten=True))
        self.answered("forget", known=7)

    def test_not_ordered(self) -> None:
        """A reader goes back, and nobody has asked for it."""
        self.add(state(6, given=1))
        self.assertIn("are not any more", str(self.assertRaises(InvariantError, self.rules.fold)))

    def test_list(self) -> None:
        """One of the states between question and answer."""
        for next_index in (0, 2):
            self.answered("list", known=3, readers=encode_readers([ReaderInfo("r", next_index, 0, ())]))
        self.wrong("says 0", "list", known=4, readers=encode_readers([ReaderInfo("r", 0, 0, ())]))
        self.wrong("says None", "list", known=4, readers=b"[]")
        self.answered("list", known=4, readers=b"[]", after="r")
        self.answered("list", known=4, readers=encode_readers([ReaderInfo("a", 0, 0, ())]), more=1)

    def test_handed(self) -> None:
        """In order, without a gap, from where the lease begins, as committed."""
        entry = Entry(index=2, term=1, pos=0, body=b"c")
        self.rules.check_handed("r", 6, 2, entry)
        self.rules.check_handed("r", 3, 2, entry)
        for token, from_index, body in ((5, 2, b"c"), (6, 1, b"c"), (3, 0, b"c"), (3, 3, b"c"), (3, 2, b"x")):
            wrong = Entry(index=2, term=1, pos=0, body=body)
            self.assertRaises(InvariantError, self.rules.check_handed, "r", token, from_index, wrong)

    def group(self, committed_index: int, **readers: ReaderState) -> GroupFold:
        """What a member knows that has these reader entries, by C{at} and their indexes."""
        group = GroupFold(GroupState())
        group.take([Marked(int(at[2:]), 1, READER_CHANNEL, body=encode_reader_entry(one))
                    for at, one in readers.items()])
        group.commit(committed_index)
        return group

    def test_states(self) -> None:
        """What a member knows is the fold."""
        known = {"at3": state(-1, part(0)), "at4": state(3, part(2, token=3))}
        self.rules.check_state("n0", self.group(5, **known))
        self.rules.check_state("n0", self.group(3, **known))
        self.rules.check_state("n0", self.group(2))
        self.rules.check_state("n0", None)
        another = {**known, "at4": state(3, part(1, token=3))}
        for wrong in (self.group(6, **known), self.group(3), self.group(5, **another)):
            self.assertRaises(InvariantError, self.rules.check_state, "n0", wrong)

    def test_states_of_what_may_be_lost(self) -> None:
        """One of a later entry than is known to be committed is not compared."""
        self.rules.check_state("n0", self.group(9, at8=state(-1, part(0))))


class ScheduleTests(SynchronousTestCase):
    """Schedules with readers."""

    def run_all(self, seeds: Sequence[int], focus: Focus) -> list[ReaderRules]:
        """Run some seeds, which pass. @return: their rules."""
        found = []
        make = SimReaders.of

        def noted(cluster: SimCluster, load: ReaderLoad | None) -> SimReaders:
            made = make(cluster, load)
            assert cluster.world.readers is not None
            found.append(cluster.world.readers)
            return made

        self.patch(SimReaders, "of", noted)
        for seed in seeds:
            self.assertEqual(run_schedule(seed, focus=focus).failure, "", seed)
        return found

    def test_everything_happens(self) -> None:
        """Requests of each kind are answered and compared, entries are handed out, leases end."""
        focus = Focus(readers={"names": 1, "processes": 3, "lease_s": 0.5, "orders": 0.3},
                      group={"hides_wire_version": False, "members": 3}, load={"body_bytes_max": 50})
        rules = self.run_all((8, 14), focus)
        for does in ("take", "renew", "commit", "release", "move", "forget", "list"):
            self.assertGreater(sum(one.answers.get(does, 0) for one in rules), 0, does)
        self.assertGreater(sum(one.handed for one in rules), 100)
        self.assertGreater(sum(one.taken_over for one in rules), 0)

    def test_share(self) -> None:
        """Of the ordinary schedules some have readers; none whose members look like Java's."""
        drawn = []
        for seed in range(200):
            options = member_options(seed)[0]
            load = reader_load(seed, options)
            drawn.append(load is not None)
            self.assertFalse(drawn[-1] and options.hides_wire_version)
        self.assertTrue(0.2 < sum(drawn) / len(drawn) < 0.4)
        self.assertIsNone(reader_load(1, GroupOptions(), Focus(faults=("kill",))))
        self.assertIsNotNone(reader_load(1, GroupOptions(), Focus(readers={})))
        self.assertIs(EVERYTHING.readers, None)
