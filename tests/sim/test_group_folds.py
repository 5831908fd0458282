# -*- test-case-name: tests.sim.test_group_folds -*-
"""The folds of what a group knows: by hand, and against states, places and logs that are wrong."""

from __future__ import annotations

from unittest import mock

from twisted.trial.unittest import SynchronousTestCase

from dledger.core.state.inputs import Origin
from dledger.storage.files.state_file import StatePlace, StoredState, decode_state, encode_state
from dledger.testing.group.checks.apart import ApartInvariants
from dledger.testing.group.checks.group_folds import (
    GroupRules,
    fold,
    group_problem,
    held_records,
    stored_problem,
)
from dledger.testing.group.checks.mirror import Mirror
from dledger.testing.group.checks.moments import STATE_PIECE, STATE_TAKEN, Moments
from dledger.testing.group.checks.require import InvariantError
from dledger.values.ledger.group_state import GroupFold, GroupState, Marked
from dledger.values.ledger.reader_table import KnownReader
from protocols.wire.ledger.entry import ENTRY_HEADER, decode_header
from protocols.wire.ledger.own.age_entries import AGE_STEP_MS, encode_age_entry
from protocols.wire.ledger.own.own_entries import (
    AGE_CHANNEL,
    HIDDEN,
    SESSION_CHANNEL,
    TERM_START_CHANNEL,
    slot_channels,
)
from protocols.wire.ledger.own.session_entries import Session, encode_session_entry
from protocols.wire.ledger.readers import ReaderState


def record(index: int, term: int, channel: int = 0, body: bytes = b"x", *, chain_crc: int = 1) -> bytes:
    """As a ledger has it; the other checksum and the position count for nothing here."""
    return ENTRY_HEADER.pack(1, 48 + len(body), index, term, 0, channel, chain_crc, 0, len(body)) + body


def begins(index: int, *sessions: Session, term: int = 1) -> bytes:
    """A session entry."""
    return record(index, term, SESSION_CHANNEL, encode_session_entry(sessions))


def numbered(index: int, slot: int, number: int, term: int = 1, **fields: int) -> bytes:
    """An entry of a producer."""
    return record(index, term, slot_channels(slot, number, 1)[0] | fields.pop("hidden", 0), **fields)


def marks_of(records: list[bytes]) -> list[Marked]:
    """What a member folds."""
    headers = [(decode_header(one), one) for one in records]
    return [Marked(header.index, header.term, header.channel, body=one[ENTRY_HEADER.size :])
            for header, one in headers if header.channel and header.chain_crc]


class FoldCase(SynchronousTestCase):
    """Two producers whose entries lie between others, one of them by Java with a channel of ours."""

    def setUp(self) -> None:
        self.log = [
            record(0, 1, TERM_START_CHANNEL, b""), begins(1, Session(3, "p"), Session(4, "q")),
            numbered(2, 3, 0), numbered(3, 4, 0), record(4, 1), numbered(5, 3, 1),
            numbered(6, 3, 2, chain_crc=0),
            numbered(7, 3, 2, term=2, hidden=HIDDEN), record(8, 2, 0, b""),
        ]
        terms = [decode_header(one).term for one in self.log]
        self.mirror = Mirror(terms=terms)
        self.invariants = mock.Mock(committed=dict(enumerate(terms)), last_committed=8, has_forgotten=False)
        self.invariants.records = {(index, terms[index]): (one, -1) for index, one in enumerate(self.log)}
        self.invariants.mirror = lambda name: self.mirror

    def group(self, committed_index: int = 8, records: list[bytes] | None = None) -> GroupFold:
        """What a member knows that has the log."""
        group = GroupFold(GroupState())
        group.take(marks_of(self.log if records is None else records))
        group.commit(committed_index)
        return group


class FoldTests(FoldCase):
    """The rules, and what differs from them."""

    def test_places(self) -> None:
        """Each number has one; entries of Java are nobody's, and members that expire them change nothing."""
        folded = fold(self.log)
        self.assertEqual(folded.wrong, "")
        self.assertEqual({name: one.places for name, one in folded.producers.items()},
                         {"p": [2, 5, 7], "q": [3]})
        self.assertEqual(held_records(self.invariants, self.mirror), self.log)
        self.mirror.begin_index = 4
        del self.mirror.terms[:4]
        self.assertEqual(held_records(self.invariants, self.mirror), self.log)
        self.assertEqual(held_records(self.invariants, self.mirror, 2), self.log[:3])
        del self.invariants.committed[2]
        self.assertIsNone(held_records(self.invariants, self.mirror))

    def test_breaches(self) -> None:
        """A slot or a producer with two sessions, a number that is left out or twice, a slot of nobody."""
        for wrong in (begins(9, Session(3, "r")), begins(9, Session(5, "p")), numbered(9, 3, 4),
                      numbered(9, 3, 2), numbered(9, 9, 0)):
            self.assertNotEqual(fold([*self.log, wrong]).wrong, "")
        self.assertEqual(fold([*self.log, numbered(9, 3, 3)]).wrong, "")

    def test_age(self) -> None:
        """Those that were quiet for long are forgotten, an entry counts an hour, and a slot is free again."""
        hour = AGE_STEP_MS
        for number, clock_ms in enumerate((10 * hour, 99 * hour, 5 * hour)):
            self.log.append(record(9 + number, 2, AGE_CHANNEL, encode_age_entry(clock_ms, 2 * hour)))
        self.assertEqual(sorted(fold(self.log).producers), ["p", "q"])
        self.log += [numbered(12, 4, 1), record(13, 2, AGE_CHANNEL, encode_age_entry(100 * hour, 2 * hour)),
                     begins(14, Session(3, "r"), Session(5, "p"))]
        folded = fold(self.log)
        self.assertEqual((folded.wrong, folded.age_ms), ("", 2 * hour))
        self.assertEqual({name: len(one.places) for name, one in folded.producers.items()},
                         {"q": 2, "r": 0, "p": 0})
        self.assertEqual(folded.forgotten, set())
        self.assertEqual(group_problem(self.group(14), folded), "")

    def test_same(self) -> None:
        """Whether they are committed or not."""
        for committed_index in (-1, 2, 8):
            self.assertEqual(group_problem(self.group(committed_index), fold(self.log)), "")

    def test_differs(self) -> None:
        """A producer, a number or a slot that the log has not, or that is missing."""
        whole = fold(self.log)
        shorter = self.group(5, self.log[:6])
        self.assertIn("p has the slot 3 and the numbers up to 2", group_problem(shorter, whole))
        without = [begins(1, Session(3, "p")), self.log[2], *self.log[4:]]
        self.assertIn("it knows {'q'}", group_problem(self.group(), fold(without)))
        moved = [record(0, 1), *self.log[:4], numbered(6, 3, 1), self.log[7]]
        self.assertIn("p is said to have {1: 6}", group_problem(self.group(7, moved), whole))
        again = fold([*self.log, begins(9, Session(3, "r"))])
        self.assertIn("a second session", group_problem(self.group(), again))


class StoredTests(FoldCase):
    """States in files."""

    def stored(self, index: int, records: list[bytes] | None = None, **place: int) -> StoredState:
        """One of an entry."""
        state = self.group(index, records or self.log[: index + 1]).state
        header = decode_header(self.log[min(index, 8)])
        named = StatePlace(index, header.term, header.pos, header.chain_crc)._replace(**place)
        return decode_state(encode_state(state, named))

    def problem(self, stored: StoredState, owed_index: int = -1) -> str:
        """What is wrong with it."""
        return stored_problem(stored, self.invariants, self.mirror, owed_index)

    def test_of_the_past(self) -> None:
        """It says what the log says up to its entry; one from before the log is not judged."""
        self.assertEqual(self.problem(self.stored(5)), "")
        self.assertIn("p has the slot 3", self.problem(self.stored(5, self.log[:3])))
        self.assertIn("its file names", self.problem(self.stored(5, term=9)))
        self.assertIn("its file names", self.problem(self.stored(5, chain_crc=9)))
        self.mirror.begin_index = 7
        del self.mirror.terms[:7]
        self.assertEqual(self.problem(self.stored(5, self.log[:3])), "")

    def test_of_what_may_be_lost(self) -> None:
        """It names no entry after the end of the log."""
        self.assertIn("its file is of the entry 9, the log ends at 8", self.problem(self.stored(9)))
        self.mirror.lost.add(3)
        self.assertEqual(self.problem(self.stored(9)), "")

    def test_of_what_is_owed(self) -> None:
        """It may name an entry of the group that the member owes; it must be right there, too."""
        self.mirror.terms = []
        self.assertIn("its file is of the entry 5, the log ends at -1", self.problem(self.stored(5)))
        self.assertIn("its file is of the entry 5", self.problem(self.stored(5), owed_index=4))
        self.assertEqual(self.problem(self.stored(5), owed_index=5), "")
        self.assertIn("p has the slot 3", self.problem(self.stored(5, self.log[:3]), owed_index=5))
        self.assertIn("its file names", self.problem(self.stored(5, chain_crc=9), owed_index=5))
        self.assertIn("which nobody wrote", self.problem(self.stored(5, term=9), owed_index=5))
        self.invariants.committed[5] = 2
        self.assertEqual(self.problem(self.stored(5, self.log[:3]), owed_index=5), "")


class RulesTests(FoldCase):
    """A member, and what clients hear of it."""

    def setUp(self) -> None:
        super().setUp()
        self.rules = GroupRules()
        self.member = mock.Mock(member_id="n0")
        self.member.ledger.group = self.group()

    def broken(self, says: str) -> None:
        """The member is wrong."""
        error = self.assertRaises(InvariantError, self.rules.check, self.invariants, self.member)
        self.assertEqual(error.number, 11)
        self.assertIn(says, str(error))

    def test_states_are_equal(self) -> None:
        """As of the same entry, also when a process begins with an earlier one, and while none is known."""
        for index in (3, 8, 5):
            self.member.ledger.group = self.group(index)
            self.rules.check(self.invariants, self.member)
        self.assertEqual(self.rules.compared, 3)
        self.member.ledger.group = None
        self.rules.check(self.invariants, self.member)
        self.assertEqual(self.rules.compared, 3)

    def test_a_state_that_differs(self) -> None:
        """In any part of it."""
        for name, value in (("age_ms", 7), ("clock_ms", 7), ("has_forgotten", True), ("hidden", 4)):
            group = self.member.ledger.group = self.group()
            setattr(group.state, name, value)
            self.broken("n0 has the state")
        group = self.member.ledger.group = self.group()
        group.state.readers.put(KnownReader(3, ReaderState("r", -1, 0), 0))
        self.broken("n0 has the state")

    def test_a_producer_that_differs(self) -> None:
        """This is seen in the end of the log, too."""
        self.member.ledger.group = self.group(8, self.log[:6])
        self.broken("p has the slot 3")

    def test_a_committed_log_that_is_wrong(self) -> None:
        """It says nothing that a member could fold."""
        self.invariants.records[3, 1] = (numbered(3, 9, 0), -1)
        self.mirror.lost.add(3)
        self.broken("the committed log: entry 3 is of the slot 9")

    def test_what_may_be_lost_is_not_compared(self) -> None:
        """Until it is committed again; nor what liars say."""
        self.rules.check(self.invariants, self.member)
        self.rules.forget()
        term = self.invariants.committed.pop(8)
        self.broken("n0 has the state of 8, and 8 is not committed")
        self.invariants.has_forgotten = True
        self.rules.check(self.invariants, self.member)
        self.assertEqual(self.rules.compared, 1)
        self.invariants.committed[8] = term
        self.rules.check(self.invariants, self.member)
        self.assertEqual(self.rules.compared, 2)
        self.rules.check(ApartInvariants(["n0"], is_sync=True), self.member)
        self.assertEqual(self.rules.compared, 2)

    def test_acknowledged_numbers(self) -> None:
        """Each is where the log has it, and a producer that was forgotten has none."""
        self.rules.answered(self.invariants, Origin("p", 1), 5, 1)
        self.assertEqual(self.rules.acknowledged, 1)
        for origin, index, count in ((Origin("p", 1), 2, 1), (Origin("p", 1), 5, 2), (Origin("p", 3), 8, 1),
                                     (Origin("r", 0), 4, 1)):
            with self.assertRaises(InvariantError) as caught:
                self.rules.answered(self.invariants, origin, index, count)
            self.assertIn("the log has them at", str(caught.exception))
        for index in (9, 10):
            body = encode_age_entry(index * AGE_STEP_MS, AGE_STEP_MS)
            self.invariants.records[index, 2] = (record(index, 2, AGE_CHANNEL, body), -1)
            self.invariants.committed[index] = 2
        self.invariants.last_committed = 10
        self.rules.answered(self.invariants, Origin("p", 1), 5, 1)
        self.assertEqual(self.rules.acknowledged, 1)

    def test_transfers_are_noticed(self) -> None:
        """Each piece that comes, and the state."""
        moments, node = Moments(), mock.Mock()
        for progress in ("", "nobody can be asked", "n1 sends: 3 of 9 bytes", "n1 sends: 6 of 9 bytes", ""):
            node.handlers.group_fetch.progress = progress
            self.rules.look("n0", 1, node, moments)
            self.rules.look("n0", 1, node, moments)
        self.assertEqual(moments.seen, {STATE_PIECE: 2, STATE_TAKEN: 1})
