# -*- test-case-name: tests.core.test_origins -*-
"""Appends of producers at the leader: what is taken, repeated and refused, and how it is marked."""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from dledger.core.replication import appends as origins
from dledger.core.replication.appends import PendingAppends
from dledger.core.state import effects as fx
from dledger.core.state.inputs import EntriesWritten, Origin, Proposal
from dledger.core.state.member_state import Role
from dledger.values.ledger import group_state
from dledger.values.ledger.group_state import GroupFold, GroupState, cost_of
from protocols.wire.codes import ResponseCode
from protocols.wire.ledger.batches import EntryBatch
from protocols.wire.ledger.entry import pack_record
from protocols.wire.ledger.envelopes import envelope_head
from protocols.wire.ledger.own.own_entries import HIDDEN, READER_CHANNEL, SESSION_CHANNEL, slot_of
from protocols.wire.ledger.own.session_entries import SESSIONS_MAX, Session, decode_session_entry
from protocols.wire.ledger.producers import RUNS_MAX
from protocols.wire.ledger.readers import ReaderState, encode_reader_entry
from tests.core.helpers import ListLedger, make_member


class RecordLedger(ListLedger):
    """It gives records as files have them."""

    def read_batch(self, first_index: int, *, max_count: int, max_bytes: int) -> EntryBatch:
        """One term; as many as fit."""
        found, size, term = list[bytes](), 0, self.term_of(first_index)
        for at in range(first_index - self.begin_index, len(self.entries)):
            body = self.entries[at][1]
            size += len(body) + 48
            if len(found) == max_count or self.entries[at][0] != term or (found and size > max_bytes):
                break
            self._readable(self.begin_index + at)
            found.append(pack_record(body, index=self.begin_index + at, term=term, pos=0,
                                     previous_chain_crc=0)[0])
        return EntryBatch(first_index=first_index, count=len(found), term=term, records=b"".join(found))

    def term_of(self, index: int) -> int:
        """Term of one entry that can be read."""
        self._readable(index)
        return super().term_of(index)


class OriginTests(SynchronousTestCase):
    """A leader of three whose log ends at index 2; nothing commits by itself."""

    def setUp(self) -> None:
        """Make it."""
        self.ledger = RecordLedger.of(1, 1, 1)
        self.member = make_member(self.ledger, term=1)
        self.member.committed_index = 2
        self.member.role, self.member.leader_id = Role.LEADER, "n0"
        self.appends = PendingAppends(self.member)
        self.token = 0
        self.written: tuple[bytes, ...] = ()
        self.channels: tuple[int, ...] = ()

    @property
    def group(self) -> GroupFold:
        """What the log says."""
        assert self.ledger.group is not None
        return self.ledger.group

    def proposal(
        self, producer: str, sequence: int, *bodies: bytes, end: int | None = None,
        hidden: tuple[int, ...] = (), owner: str = "",
    ) -> Proposal:
        """With the next token."""
        self.token += 1
        origin = Origin(producer, sequence, hidden, owner) if producer else None
        return Proposal(token=self.token, bodies=bodies, origin=origin, expected_end=end)

    def propose(self, *proposals: Proposal, refusal: ResponseCode | None = None) -> list[fx.AnswerAppend]:
        """In one turn, written at once. @return: what is answered."""
        self.member.out.now_ms = 0
        self.appends.propose(proposals, refusal)
        answers = []
        self.written, self.channels = (), ()
        for effect in self.member.out.take():
            if isinstance(effect, fx.WriteBodies):
                self.written, self.channels = effect.bodies, effect.channels
                positions = self.ledger.append_bodies(effect.bodies, effect.term, channels=effect.channels)
                self.member.refresh_end()
                self.appends.on_written(EntriesWritten(
                    first_index=effect.first_index, count=len(effect.bodies), positions=positions
                ))
            elif isinstance(effect, fx.AnswerAppend):
                answers.append(effect)
        return answers

    def refused(self, proposal: Proposal) -> tuple[ResponseCode, int]:
        """Code and last sequence of a refusal; nothing is written."""
        (answer,) = self.propose(proposal)
        self.assertEqual(self.written, ())
        return answer.code, answer.last_sequence

    def commit(self) -> list[fx.AnswerAppend]:
        """All that was written."""
        self.member.out.now_ms = 0
        self.member.commit(self.member.ledger_end_index)
        self.group.commit(self.member.committed_index)
        self.appends.committed(self.member.committed_index)
        return [effect for effect in self.member.out.take() if isinstance(effect, fx.AnswerAppend)]

    def test_a_session_entry_comes_first(self) -> None:
        """In the same write; the caller is informed of the bodies alone. There is no second one."""
        self.assertEqual(self.propose(self.proposal("p", 0, b"a", b"b")), [])
        self.assertEqual(decode_session_entry(self.written[0]), (Session(1, "p"),))
        self.assertEqual((self.written[1:], self.channels), ((b"a", b"b"), (SESSION_CHANNEL, 0x100, 0x101)))
        (answer,) = self.commit()
        reported = answer.code, answer.first_index, answer.count, answer.pos, answer.is_repeated
        self.assertEqual(reported, (ResponseCode.SUCCESS, 4, 2, 4 * 1024, False))
        self.propose(self.proposal("p", 2, b"c"))
        self.assertEqual((self.written, self.channels), ((b"c",), (0x102,)))

    def test_producers_share_a_write(self) -> None:
        """Producers and others interleave as they like; one session entry has all new producers."""
        self.propose(
            self.proposal("", 0, b"x"), self.proposal("p", 0, b"a"), self.proposal("p", 1, b"b", b"c"),
            self.proposal("", 0, b"y"), self.proposal("q", 0, b"d", hidden=(0,)), self.proposal("p", 3, b"e"),
            self.proposal("", 0, b"z"),
        )
        self.assertEqual(decode_session_entry(self.written[0]), (Session(1, "p"), Session(2, "q")))
        self.assertEqual(self.written[1:], (b"x", b"a", b"b", b"c", b"y", b"d", b"e", b"z"))
        self.assertEqual(self.channels[1:], (0, 0x100, 0x101, 0x102, 0, 0x200 | HIDDEN, 0x103, 0))
        self.assertEqual([answer.first_index for answer in self.commit()], [4, 5, 6, 8, 9, 10, 11])

    def test_an_id_belongs_to_its_account(self) -> None:
        """In the write that begins it, before it is committed, and afterwards; nobody's is everybody's."""
        first = self.proposal("p", 0, b"a", owner="alice")
        (answer,) = self.propose(first, self.proposal("p", 1, b"b", owner="bob"))
        self.assertIs(answer.code, ResponseCode.FORBIDDEN)
        self.assertEqual(decode_session_entry(self.written[0]), (Session(1, "p", "alice"),))
        for _ in range(2):
            for sequence in (0, 1, 7):
                (answer,) = self.propose(self.proposal("p", sequence, b"a", owner="bob"))
                self.assertIs(answer.code, ResponseCode.FORBIDDEN)
            self.commit()
        self.assertEqual(self.propose(self.proposal("p", 1, b"b", owner="alice"),
                                      self.proposal("q", 0, b"q")), [])
        self.commit()
        self.assertEqual(self.propose(self.proposal("q", 1, b"q", owner="bob")), [])

    def test_plain_writes_have_no_channels(self) -> None:
        """Nor costs."""
        self.propose(self.proposal("", 0, b"x"))
        self.assertEqual((self.written, self.channels), ((b"x",), ()))

    def test_a_repeated_body_is_reported_once_committed(self) -> None:
        """Reported where it is once that is committed; not before, as it may still go."""
        self.propose(self.proposal("p", 0, b"a", b"b"))
        self.assertIs(self.refused(self.proposal("p", 0, b"a", b"b"))[0], ResponseCode.LEADER_NOT_READY)
        self.commit()
        (answer,) = self.propose(self.proposal("p", 1, b"b", b"c"))
        reported = answer.code, answer.first_index, answer.count, answer.pos, answer.term, answer.is_repeated
        self.assertEqual(reported, (ResponseCode.SUCCESS, 5, 1, 5 * 1024, 1, True))

    def test_another_body_is_refused(self) -> None:
        """
        One that has a number of another body is refused, with its place; the time of an envelope differs.
        """
        self.propose(self.proposal("p", 0, b"a", b"b", envelope_head(1, {"k": b"v"}) + b"c"))
        self.commit()
        (answer,) = self.propose(self.proposal("p", 1, b"B"))
        self.assertEqual((answer.code, answer.first_index, answer.last_sequence),
                         (ResponseCode.SEQUENCE_TAKEN, 5, 2))
        (answer,) = self.propose(self.proposal("p", 2, envelope_head(2, {"k": b"v"}) + b"c"))
        self.assertEqual((answer.code, answer.first_index), (ResponseCode.SUCCESS, 6))
        for other in (envelope_head(2, {"k": b"w"}) + b"c", envelope_head(1, {"k": b"v"}) + b"d", b"c"):
            (answer,) = self.propose(self.proposal("p", 2, other))
            self.assertIs(answer.code, ResponseCode.SEQUENCE_TAKEN)
        (answer,) = self.propose(self.proposal("p", 0, b"a", b"B"))
        self.assertIs(answer.code, ResponseCode.SEQUENCE_TAKEN)

    def test_an_expired_body(self) -> None:
        """What has expired cannot be compared."""
        self.propose(self.proposal("p", 0, b"a"))
        self.commit()
        self.ledger.begin_index, self.ledger.entries = 5, [(1, b"x")]
        self.assertEqual(self.refused(self.proposal("p", 0, b"a")), (ResponseCode.SEQUENCE_FORGOTTEN, 0))

    def test_twice_in_a_turn(self) -> None:
        """The second one waits for the first."""
        (answer,) = self.propose(self.proposal("p", 0, b"a"), self.proposal("p", 0, b"a"))
        self.assertEqual((answer.token, answer.code), (2, ResponseCode.LEADER_NOT_READY))
        self.assertEqual(len(self.written), 2)

    def test_gaps_and_unknown_producers_are_refused(self) -> None:
        """A gap, a producer that was never there, one that may be forgotten, a run that is not remembered."""
        self.propose(self.proposal("p", 0, b"a"))
        self.assertEqual(self.refused(self.proposal("p", 2, b"c")), (ResponseCode.SEQUENCE_GAP, 0))
        self.assertEqual(self.refused(self.proposal("q", 1, b"c")), (ResponseCode.UNKNOWN_PRODUCER, -1))
        for sequence in range(1, RUNS_MAX + 1):
            self.propose(self.proposal("", 0, b"x"))
            self.propose(self.proposal("p", sequence, b"b"))
        self.commit()
        self.assertEqual(self.refused(self.proposal("p", 0, b"a")),
                         (ResponseCode.SEQUENCE_FORGOTTEN, RUNS_MAX))
        (answer,) = self.propose(self.proposal("p", 1, b"b"))
        self.assertIs(answer.code, ResponseCode.SUCCESS)
        state = GroupState()
        state.has_forgotten = True
        self.ledger.group = GroupFold(state)
        self.assertEqual(self.refused(self.proposal("q", 1, b"c")), (ResponseCode.PRODUCER_FORGOTTEN, -1))

    def test_a_full_table(self) -> None:
        """A new producer is refused where no more are remembered; those that are known go on."""
        self.propose(self.proposal("p", 0, b"a"))
        self.patch(group_state, "PRODUCER_BYTES_MAX", 100)
        self.assertEqual(self.refused(self.proposal("q", 0, b"a")), (ResponseCode.PRODUCERS_FULL, -1))
        self.assertEqual(self.propose(self.proposal("p", 1, b"a")), [])

    def test_a_share_of_the_table(self) -> None:
        """An owner has its share, also within one write and before the commit; others have the rest."""
        cost = cost_of("p0", "alice")
        self.patch(group_state, "SHARE_BYTES_MAX", 3 * cost)
        self.patch(group_state, "PRODUCER_BYTES_MAX", 4 * cost)
        self.propose(self.proposal("p0", 0, b"a", owner="alice"))
        answers = self.propose(*(self.proposal(f"p{at}", 0, b"a", owner="alice") for at in (1, 2, 3)))
        self.assertEqual([(answer.token, answer.code) for answer in answers],
                         [(self.token, ResponseCode.SHARE_FULL)])
        answers = self.propose(*(self.proposal(f"q{at}", 0, b"a", owner="bobby") for at in (1, 2)))
        self.assertEqual([(answer.token, answer.code) for answer in answers],
                         [(self.token, ResponseCode.PRODUCERS_FULL)])
        self.assertEqual(self.propose(self.proposal("p0", 1, b"a", owner="alice")), [])

    def test_nothing_is_taken_while_the_state_is_not_known(self) -> None:
        """Nothing of a producer is taken then; other appends are."""
        self.ledger.group = None
        (answer,) = self.propose(self.proposal("p", 0, b"a"), self.proposal("", 0, b"x"))
        self.assertIs(answer.code, ResponseCode.LEADER_NOT_READY)
        self.assertEqual((self.written, self.channels), ((b"x",), ()))

    def test_a_follower_takes_no_numbered_bodies(self) -> None:
        """As every other append."""
        (answer,) = self.propose(self.proposal("p", 0, b"a"), refusal=ResponseCode.NOT_LEADER)
        self.assertIs(answer.code, ResponseCode.NOT_LEADER)

    def test_own_entries_are_no_conflict(self) -> None:
        """An append that expects an end is taken as long as no program has appended after that."""
        own = Proposal(token=100, bodies=(encode_reader_entry(ReaderState("r", -1, 0)),),
                       channel=READER_CHANNEL)
        self.propose(own)
        self.assertEqual(self.channels, (READER_CHANNEL,))
        self.assertEqual(self.propose(self.proposal("", 0, b"y", end=2)), [])
        self.assertEqual(self.member.ledger_end_index, 4)
        for end in (2, 3, 5):
            (answer,) = self.propose(self.proposal("", 0, b"z", end=end))
            self.assertEqual((answer.code, answer.end_index), (ResponseCode.CONFLICT, 4))
        (answer,) = self.propose(
            self.proposal("p", 0, b"a"), self.proposal("", 0, b"y", end=4), self.proposal("", 0, b"z", end=5)
        )
        self.assertEqual((answer.code, answer.token), (ResponseCode.CONFLICT, self.token - 1))

    def test_many_new_producers(self) -> None:
        """A session entry has a bound; what does not fit comes in a later turn."""
        proposals = [self.proposal(f"p{at}", 0, b"a") for at in range(SESSIONS_MAX + 76)]
        answers = self.propose(*proposals)
        self.assertEqual({answer.code for answer in answers}, {ResponseCode.LEADER_PENDING_FULL})
        self.assertEqual(len(answers), 76)
        slots = [slot_of(channel) for channel in self.channels[1:]]
        self.assertEqual(len(set(slots)), SESSIONS_MAX)

    def test_no_free_slot(self) -> None:
        """Without one a new producer waits."""
        self.patch(group_state, "SLOT_MAX", 2)
        self.propose(self.proposal("p", 0, b"a"), self.proposal("q", 0, b"a"))
        self.assertIs(self.refused(self.proposal("r", 0, b"a"))[0], ResponseCode.LEADER_PENDING_FULL)

    def test_a_refused_write_is_not_noted(self) -> None:
        """Nothing is noted."""
        self.member.out.now_ms = 0
        self.appends.propose((self.proposal("p", 0, b"a"),), None)
        self.member.out.take()
        self.appends.on_write_refused(ResponseCode.DISK_FULL)
        (answer,) = [effect for effect in self.member.out.take() if isinstance(effect, fx.AnswerAppend)]
        self.assertIs(answer.code, ResponseCode.DISK_FULL)
        self.assertEqual(self.propose(self.proposal("p", 0, b"a")), [])
        self.assertEqual(len(self.commit()), 1)

    def test_a_session_without_bodies(self) -> None:
        """A producer whose first bodies found no room has its session, and begins with 0."""
        self.patch(origins, "SESSIONS_MAX", 2)
        big = self.proposal("p", 0, bytes(self.member.config.max_pending_bytes))
        (answer,) = self.propose(self.proposal("q", 0, b"a"), big)
        self.assertIs(answer.code, ResponseCode.LEADER_PENDING_FULL)
        self.assertEqual(len(decode_session_entry(self.written[0])), 2)
        self.propose(self.proposal("p", 0, b"a"))
        self.assertEqual((self.written, self.channels), ((b"a",), (0x200,)))

    def test_a_damaged_entry_is_not_reported(self) -> None:
        """An index of an entry that cannot be read is not reported before a peer has given it back."""
        self.propose(self.proposal("p", 0, b"a"))
        self.commit()
        self.ledger.lose(4, 4)
        self.assertIs(self.refused(self.proposal("p", 0, b"a"))[0], ResponseCode.LEADER_NOT_READY)
