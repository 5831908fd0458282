# -*- test-case-name: tests.core.test_origins -*-
"""Appends of producers at the leader, in a core of one member and in one that waits for its followers."""

from __future__ import annotations

import attrs
from twisted.trial.unittest import SynchronousTestCase

from dledger.core.replication.appends import PendingAppends
from dledger.core.state import effects as fx
from dledger.core.state.inputs import EntriesWritten, Origin, Proposal
from dledger.core.state.member_state import Role
from dledger.ledger.producers import OPEN_ENTRIES, NotedRun, SequenceTable
from protocols.wire.codes import ResponseCode
from protocols.wire.ledger.producers import ProducerRun
from tests.core.helpers import ListLedger, make_member


class CarefulLedger(ListLedger):
    """Its terms are those of entries that can be read."""

    def term_of(self, index: int) -> int:
        """Term of one entry."""
        self._readable(index)
        return super().term_of(index)


class OriginTests(SynchronousTestCase):
    """What is taken, repeated and refused."""

    def setUp(self) -> None:
        """A leader whose log ends at index 2; nothing commits by itself."""
        self.ledger = CarefulLedger.of(1, 1, 1)
        self.member = make_member(self.ledger, term=1)
        self.member.committed_index = 2
        self.member.role, self.member.leader_id = Role.LEADER, "n0"
        self.appends = PendingAppends(self.member)
        self.token = 0

    def proposal(self, producer: str, sequence: int, *bodies: bytes, end: int | None = None) -> Proposal:
        """With the next token."""
        self.token += 1
        return Proposal(
            token=self.token, bodies=bodies, origin=Origin(producer, sequence) if producer else None,
            expected_end=end,
        )

    def propose(self, *proposals: Proposal, refusal: ResponseCode | None = None) -> list[fx.AnswerAppend]:
        """In one turn, written at once. @return: what is answered."""
        self.member.out.begin(0)
        self.appends.propose(proposals, refusal)
        answers = []
        self.written: tuple[bytes, ...] = ()
        for effect in self.member.out.take():
            if isinstance(effect, fx.WriteBodies):
                first, self.written = effect.first_index, effect.bodies
                positions = self.ledger.append_bodies(
                    effect.bodies, effect.term, producers_at=effect.producers_at
                )
                self.producers_at, self.runs = effect.producers_at, effect.runs
                at = first + effect.producers_at
                if effect.producers_at >= 0 and self.ledger.producers is not None:
                    self.ledger.producers.close(at)
                for name, sequence, distance, count in effect.runs:
                    assert self.ledger.producers is not None
                    open_term = -1 if count else effect.term
                    self.ledger.producers.note(NotedRun(
                        name, sequence, at + distance, count or OPEN_ENTRIES, at, open_term
                    ))
                self.member.refresh_end()
                self.appends.on_written(EntriesWritten(
                    first_index=first, count=len(effect.bodies), positions=positions
                ))
            elif isinstance(effect, fx.AnswerAppend):
                answers.append(effect)
        return answers

    def commit(self) -> list[fx.AnswerAppend]:
        """All that was written."""
        self.member.out.begin(0)
        self.member.commit(self.member.ledger_end_index)
        self.appends.committed(self.member.committed_index)
        return [effect for effect in self.member.out.take() if isinstance(effect, fx.AnswerAppend)]

    def test_a_new_run_begins_with_a_producer_entry(self) -> None:
        """A producer entry, then the bodies; the caller is informed of the bodies alone."""
        self.assertEqual(self.propose(self.proposal("p", 0, b"a", b"b")), [])
        self.assertEqual(self.written[1:], (b"a", b"b"))
        self.assertEqual(self.producers_at, 0)
        self.assertEqual(self.runs, (ProducerRun("p", 0, 1, 2),))
        (answer,) = self.commit()
        told = answer.code, answer.first_index, answer.count, answer.pos, answer.is_repeated
        self.assertEqual(told, (ResponseCode.SUCCESS, 4, 2, 4 * 1024, False))

    def test_one_entry_for_a_turn(self) -> None:
        """It is in front of the first body of a producer; neighbours are one run."""
        self.propose(
            self.proposal("", 0, b"x"), self.proposal("p", 0, b"a"), self.proposal("p", 1, b"b", b"c"),
            self.proposal("", 0, b"y"), self.proposal("q", 0, b"d"), self.proposal("p", 3, b"e"),
        )
        self.assertEqual(self.producers_at, 1)
        self.assertEqual(self.written[:1] + self.written[2:], (b"x", b"a", b"b", b"c", b"y", b"d", b"e"))
        self.assertEqual(self.runs, (
            ProducerRun("p", 0, 1, 3), ProducerRun("q", 0, 5, 1), ProducerRun("p", 3, 6, 1),
        ))
        answers = self.commit()
        self.assertEqual([answer.first_index for answer in answers], [3, 5, 6, 8, 9, 10])

    def test_a_repeated_body_is_reported_once_committed(self) -> None:
        """Reported where it is once that is committed; not before, as it may still go."""
        self.propose(self.proposal("p", 0, b"a", b"b"))
        (answer,) = self.propose(self.proposal("p", 0, b"a", b"b"))
        self.assertIs(answer.code, ResponseCode.LEADER_NOT_READY)
        self.assertEqual(self.written, ())
        self.commit()
        (answer,) = self.propose(self.proposal("p", 1, b"b", b"c"))
        told = answer.code, answer.first_index, answer.count, answer.pos, answer.term, answer.is_repeated
        self.assertEqual(told, (ResponseCode.SUCCESS, 5, 1, 5 * 1024, 1, True))
        self.assertEqual(self.written, ())

    def test_twice_in_a_turn(self) -> None:
        """The second one waits for the first."""
        (answer,) = self.propose(self.proposal("p", 0, b"a"), self.proposal("p", 0, b"a"))
        self.assertEqual((answer.token, answer.code), (2, ResponseCode.LEADER_NOT_READY))
        self.assertEqual(len(self.written), 2)

    def test_a_gap_or_an_unknown_producer_is_refused(self) -> None:
        """A gap, a producer that is not known, and one that was forgotten."""
        self.propose(self.proposal("p", 0, b"a"))
        (answer,) = self.propose(self.proposal("p", 2, b"c"))
        self.assertEqual((answer.code, answer.last_sequence), (ResponseCode.SEQUENCE_GAP, 0))
        (answer,) = self.propose(self.proposal("q", 1, b"c"))
        self.assertEqual((answer.code, answer.last_sequence), (ResponseCode.UNKNOWN_PRODUCER, -1))
        assert self.ledger.producers is not None
        self.ledger.entries.extend([(1, b"")] * 10_000)
        self.member.refresh_end()
        for at in range(1, 5000):
            self.ledger.producers.note(NotedRun("p", at, 2 * at, 1, 2 * at - 1))
            self.ledger.producers.settle(2 * at)
        (answer,) = self.propose(self.proposal("p", 0, b"a"))
        self.assertEqual((answer.code, answer.last_sequence), (ResponseCode.SEQUENCE_FORGOTTEN, 4999))
        self.assertEqual(self.written, ())

    def test_nothing_is_taken_while_entries_are_damaged(self) -> None:
        """While entries are damaged, nothing of a producer is taken; other appends are."""
        self.ledger.producers = None
        (answer,) = self.propose(self.proposal("p", 0, b"a"), self.proposal("", 0, b"x"))
        self.assertIs(answer.code, ResponseCode.LEADER_NOT_READY)
        self.assertEqual((self.written, self.producers_at), ((b"x",), -1))
        self.ledger.producers = SequenceTable()
        self.assertEqual(self.propose(self.proposal("p", 0, b"a")), [])

    def test_a_follower_takes_no_numbered_bodies(self) -> None:
        """As every other append."""
        (answer,) = self.propose(self.proposal("p", 0, b"a"), refusal=ResponseCode.NOT_LEADER)
        self.assertIs(answer.code, ResponseCode.NOT_LEADER)

    def test_an_expected_end_counts_the_producer_entry(self) -> None:
        """An append that expects an end counts the producer entry in front of it."""
        (answer,) = self.propose(
            self.proposal("", 0, b"x", end=2), self.proposal("p", 0, b"a"), self.proposal("", 0, b"y", end=4)
        )
        self.assertEqual((answer.code, answer.end_index), (ResponseCode.CONFLICT, 5))
        self.propose(self.proposal("", 0, b"y", end=5))
        self.assertEqual([answer.first_index for answer in self.commit()], [3, 5, 6])

    def test_a_full_producer_entry_leaves_the_rest(self) -> None:
        """A producer entry has a bound; what does not fit comes in a later turn."""
        proposals = [self.proposal(f"p{at}", 0, b"a") for at in range(1100)]
        answers = self.propose(*proposals)
        self.assertEqual({answer.code for answer in answers}, {ResponseCode.LEADER_PENDING_FULL})
        self.assertEqual(len(answers), 1100 - 1024)

    def test_a_refused_write_is_not_noted(self) -> None:
        """Nothing is noted."""
        self.member.out.begin(0)
        self.appends.propose((self.proposal("p", 0, b"a"),), None)
        self.member.out.take()
        self.appends.on_write_refused(ResponseCode.DISK_FULL)
        (answer,) = [effect for effect in self.member.out.take() if isinstance(effect, fx.AnswerAppend)]
        self.assertIs(answer.code, ResponseCode.DISK_FULL)
        self.assertEqual(self.propose(self.proposal("p", 0, b"a")), [])
        self.assertEqual(len(self.commit()), 1)

    def test_a_damaged_entry_is_not_reported(self) -> None:
        """An index of an entry that cannot be read is not reported before a peer has given it back."""
        self.propose(self.proposal("p", 0, b"a"))
        self.commit()
        self.ledger.lose(4, 4)
        (answer,) = self.propose(self.proposal("p", 0, b"a"))
        self.assertIs(answer.code, ResponseCode.LEADER_NOT_READY)


class SessionTests(OriginTests):
    """The same where every member knows open runs, and a producer entry lasts for a session."""

    def setUp(self) -> None:
        """As before."""
        super().setUp()
        self.member.knowledge.open_runs.update(self.member.peer_ids)

    def shape(self, *proposals: Proposal) -> tuple[int, tuple[ProducerRun, ...], int]:
        """Number of the producer entry in the write, its runs, bodies in all."""
        self.assertEqual(self.propose(*proposals), [])
        return self.producers_at, self.runs, len(self.written)

    def test_a_new_run_begins_with_a_producer_entry(self) -> None:
        """The first run of a session is open."""
        self.assertEqual(self.shape(self.proposal("p", 0, b"a", b"b")), (0, (ProducerRun("p", 0, 1, 0),), 3))

    def test_one_entry_for_a_turn(self) -> None:
        """The last run may be open, if the session begins with it."""
        write = self.shape(
            self.proposal("p", 0, b"a"), self.proposal("q", 0, b"d"), self.proposal("p", 1, b"e")
        )
        runs = ProducerRun("p", 0, 1, 1), ProducerRun("q", 0, 2, 1), ProducerRun("p", 1, 3, 1)
        self.assertEqual(write, (0, runs, 4))

    def test_an_expected_end_counts_the_producer_entry(self) -> None:
        """An append that expects an end counts the producer entry in front of it, and its own."""
        (answer,) = self.propose(
            self.proposal("", 0, b"x", end=2), self.proposal("p", 0, b"a"), self.proposal("", 0, b"y", end=4)
        )
        self.assertEqual((answer.code, answer.end_index), (ResponseCode.CONFLICT, 5))
        (answer,) = self.propose(self.proposal("", 0, b"y", end=5))
        self.assertEqual((answer.code, answer.end_index), (ResponseCode.CONFLICT, 6))
        self.propose(self.proposal("", 0, b"y", end=6))
        self.assertEqual([answer.first_index for answer in self.commit()], [3, 5, 7])

    def test_a_session_needs_one_producer_entry(self) -> None:
        """One producer entry for all its appends; another body needs an entry in front of it."""
        self.shape(self.proposal("p", 0, b"a"))
        for sequence in (1, 2):
            self.assertEqual(self.shape(self.proposal("p", sequence, b"b")), (-1, (), 1))
        self.assertEqual(self.shape(self.proposal("p", 3, b"b"), self.proposal("", 0, b"x")), (1, (), 3))
        self.assertEqual(self.shape(self.proposal("", 0, b"y")), (-1, (), 1))
        self.assertEqual([answer.first_index for answer in self.commit()], [4, 5, 6, 7, 9, 10])
        (answer,) = self.propose(self.proposal("p", 3, b"b"))
        self.assertEqual((answer.is_repeated, answer.first_index), (True, 7))

    def test_an_interrupted_run_is_closed(self) -> None:
        """Where others append between, no run is open; where none does any more, it is again."""
        self.shape(self.proposal("p", 0, b"a"))
        self.shape(self.proposal("", 0, b"x"))
        self.assertEqual(self.shape(self.proposal("p", 1, b"b")), (0, (ProducerRun("p", 1, 1, 1),), 2))
        self.assertEqual(self.shape(self.proposal("", 0, b"y")), (-1, (), 1))
        self.assertEqual(self.shape(self.proposal("p", 2, b"c")), (0, (ProducerRun("p", 2, 1, 1),), 2))
        self.assertEqual(self.shape(self.proposal("p", 3, b"d")), (0, (ProducerRun("p", 3, 1, 0),), 2))
        self.assertEqual(self.shape(self.proposal("p", 4, b"e")), (-1, (), 1))
        self.assertEqual(self.shape(self.proposal("q", 0, b"f")), (0, (ProducerRun("q", 0, 1, 0),), 2))

    def test_an_expected_end_closes_the_run(self) -> None:
        """It would not get the index after that end: the run is closed, and the next attempt does."""
        self.shape(self.proposal("p", 0, b"a"))
        (answer,) = self.propose(self.proposal("", 0, b"x", end=3))
        self.assertEqual((answer.code, answer.end_index, self.written), (ResponseCode.CONFLICT, 4, ()))
        (answer,) = self.propose(self.proposal("", 0, b"x", end=4))
        self.assertEqual((answer.code, answer.end_index), (ResponseCode.CONFLICT, 5))
        self.assertEqual((self.producers_at, self.runs, len(self.written)), (0, (), 1))
        self.assertEqual(self.shape(self.proposal("", 0, b"x", end=5)), (-1, (), 1))
        self.assertEqual([answer.first_index for answer in self.commit()], [4, 6])

    def test_an_entry_of_the_member_ends_the_run(self) -> None:
        """After an entry that a member has made for itself, and in another term, the run has ended."""
        self.shape(self.proposal("p", 0, b"a"))
        self.ledger.append_bodies((b"members",), 1)
        self.member.refresh_end()
        assert self.ledger.producers is not None
        self.ledger.producers.close(5)
        self.assertEqual(self.shape(self.proposal("p", 1, b"b")), (0, (ProducerRun("p", 1, 1, 1),), 2))
        self.shape(self.proposal("p", 2, b"c"))
        self.member.term = 2
        self.ledger.producers.superseded(self.member.ledger_end_index + 1)
        self.assertEqual(self.shape(self.proposal("", 0, b"x")), (-1, (), 1))

    def test_a_reader_entry_ends_the_run(self) -> None:
        """An entry of the log's own ends a run by itself."""
        self.shape(self.proposal("p", 0, b"a"))
        self.assertEqual(self.shape(attrs.evolve(self.proposal("", 0, b"RDNM"), is_control=True)), (0, (), 1))
        self.assertEqual(self.written, (b"RDNM",))
        self.assertEqual(self.shape(self.proposal("", 0, b"x")), (-1, (), 1))

    def test_not_known_in_a_session(self) -> None:
        """While entries are damaged, other appends end the run as always."""
        self.shape(self.proposal("p", 0, b"a"))
        self.ledger.producers = None
        self.assertEqual(self.shape(self.proposal("", 0, b"x")), (0, (), 2))

    def test_refused_write_in_a_session(self) -> None:
        """The run that was to be closed is open still."""
        self.shape(self.proposal("p", 0, b"a"))
        self.member.out.begin(0)
        self.appends.propose((self.proposal("", 0, b"x"),), None)
        self.member.out.take()
        self.appends.on_write_refused(ResponseCode.DISK_FULL)
        self.member.out.take()
        self.assertEqual(self.shape(self.proposal("p", 1, b"b")), (-1, (), 1))

    def test_unknown_to_one(self) -> None:
        """A member of an earlier version, or one that was not heard yet, would refuse the entry."""
        self.member.knowledge.open_runs.discard(self.member.peer_ids[-1])
        self.assertEqual(self.shape(self.proposal("p", 0, b"a"))[1], (ProducerRun("p", 0, 1, 1),))
        self.member.knowledge.open_runs.update(self.member.peer_ids)
        self.assertEqual(self.shape(self.proposal("q", 0, b"a"))[1], (ProducerRun("q", 0, 1, 0),))
        self.member.knowledge.open_runs.clear()  # A new leader has not heard of those who are away.
        self.assertEqual(self.shape(self.proposal("r", 0, b"a"))[1], (ProducerRun("r", 0, 1, 0),))
