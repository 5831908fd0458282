# -*- test-case-name: tests.node.test_reads -*-
"""Nothing uncommitted is shown, reads share a question, and waiting is bounded."""

from __future__ import annotations

from collections.abc import Callable

from twisted.trial.unittest import SynchronousTestCase

from dledger.core.state.effects import AnswerRead
from dledger.core.state.inputs import ReadRequested
from dledger.node.work import reads as module
from dledger.node.work.reads import PULL_BYTES_MAX, PULL_WAIT_MS_MAX
from dledger.values.errors import DLedgerError, StoreError
from protocols import budgets
from protocols.connection import COUNTED_BYTES
from protocols.wire.codes import ResponseCode
from protocols.wire.ledger.batches import EntryBatch
from protocols.wire.ledger.codes import Consistency
from protocols.wire.ledger.entry import ENTRY_HEADER_SIZE, bodies_of
from protocols.wire.ledger.messages import (
    AppendOnceRequest,
    AppendRequest,
    GetRequest,
    MetadataRequest,
    PullRequest,
    SequenceRequest,
    SequenceResponse,
)
from tests.node.rig import FakeClient, Rig


class ReadsTestCase(SynchronousTestCase):
    """A leader with ten entries, of which more may be uncommitted."""

    def setUp(self) -> None:
        self.rig = Rig().lead()
        self.client = self.rig.client()
        for number in range(10):
            self.rig.node.append(b"body %d" % number)
        self.rig.clock.advance(0)
        assert self.rig.node.committed_index == 9

    def write_uncommitted(self, bodies: tuple[bytes, ...] = (b"not yet",)) -> None:
        """Into the store, behind the core's back."""
        self.rig.store.append_bodies(bodies, self.rig.store.ledger_end_term)

    def get(self, index: int | None, consistency: Consistency = Consistency.LINEARIZABLE) -> GetRequest:
        """A GET."""
        return GetRequest(begin_index=index, consistency=consistency, **self.rig.base())

    def pull(self, index: int, **options: object) -> PullRequest:
        """A PULL."""
        return PullRequest(begin_index=index, **options, **self.rig.base())  # type: ignore[arg-type]


class GetTests(ReadsTestCase):
    """One entry."""

    def test_a_linearizable_get_returns_the_entry(self) -> None:
        """The entry, in either format."""
        for native in (True, False):
            answer = self.client.ask(self.get(3), native=native)
            self.assertIs(answer.code, ResponseCode.SUCCESS)
            self.assertEqual(bodies_of(answer.entries), [b"body 3"])

    def test_a_turn_is_one_question(self) -> None:
        """All reads of all connections and local callers."""
        asked: list[ReadRequested] = []
        self.rig.node.handlers.reads.request_reads = asked.append
        other = self.rig.client()
        self.client.send(self.get(3), self.get(4))
        other.send(self.get(5))
        self.rig.node.read(6)
        self.rig.clock.advance(0)
        self.assertEqual([len(question.tokens) for question in asked], [4])

    def test_an_uncommitted_entry_is_not_read(self) -> None:
        """An entry that is there but not committed is out of range, however it is asked for."""
        self.write_uncommitted()
        for consistency in Consistency:
            for index in (10, 11, -1, 1 << 40):
                answer = self.client.ask(self.get(index, consistency))
                self.assertIs(answer.code, ResponseCode.INDEX_OUT_OF_RANGE, f"{index} {consistency}")
        self.assertIs(
            self.failureResultOf(self.read(10), DLedgerError).value.code, ResponseCode.INDEX_OUT_OF_RANGE
        )

    def read(self, index: int) -> object:
        """A local read whose turn has ended."""
        waiter = self.rig.node.read(index)
        self.rig.clock.advance(0)
        return waiter

    def test_up_to_the_read_index(self) -> None:
        """What was committed later than the read index is left for the next read."""
        reads = self.rig.node.handlers.reads
        asked: list[ReadRequested] = []
        reads.request_reads = asked.append
        self.client.send(self.get(5), self.get(6))
        self.rig.clock.advance(0)
        first, second = asked[0].tokens
        for token in (first, second):
            reads.answered(AnswerRead(token=token, code=ResponseCode.SUCCESS, read_index=5))
        answers = self.client.answers()
        self.assertEqual([answer.code.value for answer in answers], [200, 410])

    def test_a_deleted_entry_is_not_read(self) -> None:
        """Below the beginning."""
        self.rig.store.parts.ledger.begin_index = 4
        answer = self.client.ask(self.get(3))
        self.assertIs(answer.code, ResponseCode.INDEX_LESS_THAN_LOCAL_BEGIN)

    def test_a_get_needs_an_index(self) -> None:
        """Java gets an exception there; we say what is wrong."""
        answer = self.client.ask(self.get(None), native=False)
        self.assertIs(answer.code, ResponseCode.UNEXPECTED_ARGUMENT)

    def test_committed_needs_no_leader(self) -> None:
        """A follower serves entries that it knows to be committed; else it refuses, and names its leader."""
        rig = Rig(peers="n0-h:1;n1-h:2;n2-h:3")
        rig.store.append_bodies((b"a", b"b"), 0)
        rig.node.core.member.refresh_end()
        rig.node.core.member.committed_index = 0
        rig.node.start()
        client = rig.client()
        self.assertEqual(
            client.ask(GetRequest(begin_index=0, consistency=Consistency.COMMITTED, **rig.base())).code, 200
        )
        self.assertEqual(
            client.ask(GetRequest(begin_index=1, consistency=Consistency.COMMITTED, **rig.base())).code, 410
        )
        self.assertEqual(client.ask(GetRequest(begin_index=0, **rig.base())).code, 404)

    def rot(self, index: int) -> None:
        """A bit of a record on the disk changes; nothing remembers the record."""
        store = self.rig.store
        position = store.position_of(index) + 50
        byte = store.parts.data.pread(1, position)
        store.parts.data.pwrite(bytes([byte[0] ^ 1]), position)
        store.parts.reads.batches.clear()

    def test_a_damaged_entry_is_an_error(self) -> None:
        """Every way to read it is answered with an error; the member and all other entries go on."""
        self.rot(3)
        for consistency in Consistency:
            for native in (True, False):
                answer = self.client.ask(self.get(3, consistency), native=native)
                self.assertIs(answer.code, ResponseCode.DISK_ERROR)
        self.assertIs(self.failureResultOf(self.read(3), DLedgerError).value.code, ResponseCode.DISK_ERROR)
        self.assertIs(self.client.ask(self.pull(3)).code, ResponseCode.DISK_ERROR)
        self.assertEqual(self.client.ask(self.pull(0)).entries.count, 3)
        self.assertEqual(bodies_of(self.client.ask(self.get(4)).entries), [b"body 4"])
        self.assertEqual(self.rig.node.state, "running")
        self.rig.clock.advance(0.2)
        status = self.rig.node.status()
        self.assertEqual([(hole.first_index, hole.last_index) for hole in status.member.holes], [(3, 3)])
        self.assertTrue(status.member.is_repairing)
        self.assertEqual(status.counts.refusals["DISK_ERROR"], 5)
        self.assertEqual(status.counts.reports["entries-damaged"], 1)
        self.assertEqual(self.successResultOf(self.appended()).index, 10)

    def appended(self) -> object:
        """One more entry."""
        waiter = self.rig.node.append(b"more")
        self.rig.clock.advance(0)
        return waiter

    def test_a_member_that_lost_entries(self) -> None:
        """On the connection of a member C{COMMITTED} shows any entry, on another one it does not."""
        rig = Rig(peers="n0-h:1;n1-h:2;n2-h:3")
        rig.store.append_bodies((b"a", b"b"), 0)
        rig.node.core.member.refresh_end()
        rig.node.core.member.committed_index = 0
        rig.node.start()
        for speaker, code, count in (("n1", 200, 2), (None, 410, 1)):
            client = rig.client()
            client.ask(MetadataRequest(local_id=speaker, **rig.base()))
            for native in (True, False):
                answer = client.ask(
                    GetRequest(begin_index=1, consistency=Consistency.COMMITTED, **rig.base()), native=native
                )
                self.assertEqual(answer.code, code)
            self.assertEqual(client.ask(PullRequest(begin_index=0, **rig.base())).entries.count, count)
            self.assertEqual(client.ask(GetRequest(begin_index=1, **rig.base())).code, 404)

    def test_a_failed_store_stops_the_member(self) -> None:
        """If the store fails, the reader is informed, and the member stops."""

        def damaged(*args: object, **options: object) -> None:
            raise StoreError("entry 3 is damaged", index=3)

        self.rig.store.read_batch = damaged  # type: ignore[method-assign,assignment]
        answer = self.client.ask(self.get(3))
        self.assertIs(answer.code, ResponseCode.DISK_ERROR)
        self.assertEqual(self.rig.node.state, "failed")
        self.assertIn("entry 3 is damaged", self.rig.node.reason)

    def test_a_local_caller_reads_entries(self) -> None:
        """A caller in this process."""
        self.assertEqual(self.successResultOf(self.read(3)), b"body 3")  # type: ignore[arg-type]

    def test_a_cancelled_read_is_forgotten(self) -> None:
        """Forgets the read."""
        waiter = self.rig.node.read(3)
        waiter.cancel()
        self.failureResultOf(waiter)
        self.rig.clock.advance(0)


class SequenceTests(ReadsTestCase):
    """The last number of a producer."""

    def ask(self, producer: str, client: FakeClient | None = None) -> SequenceResponse:
        """One question."""
        answer = (client or self.client).ask(SequenceRequest(producer=producer, **self.rig.base()))
        assert isinstance(answer, SequenceResponse)
        return answer

    def number(self, sequence: int, *bodies: bytes) -> None:
        """Of the producer p."""
        answer = self.client.ask(
            AppendOnceRequest(producer="p", sequence=sequence, bodies=bodies, **self.rig.base())
        )
        self.assertIs(answer.code, ResponseCode.SUCCESS)

    def test_last(self) -> None:
        """With the index of its entry, whatever others append in between."""
        self.number(0, b"a", b"b")
        answer = self.ask("p")
        self.assertEqual((answer.code, answer.last_sequence, answer.index), (ResponseCode.SUCCESS, 1, 12))
        self.rig.node.append(b"x")
        self.rig.clock.advance(0)
        self.number(2, b"c")
        self.assertEqual((self.ask("p").last_sequence, self.ask("p").index), (2, 14))

    def test_never_and_forgotten(self) -> None:
        """Two answers; a name that no producer can have is a third one."""
        answer = self.ask("q")
        self.assertIs(answer.code, ResponseCode.UNKNOWN_PRODUCER)
        self.assertIn("never", answer.reason)
        group = self.rig.store.group
        assert group is not None
        group.state.has_forgotten = True
        answer = self.ask("q")
        self.assertIs(answer.code, ResponseCode.PRODUCER_FORGOTTEN)
        self.assertIn("forgotten", answer.reason)
        for name in ("", "x" * 65):
            self.assertIs(self.ask(name).code, ResponseCode.UNEXPECTED_ARGUMENT)

    def test_of_another_account(self) -> None:
        """Another account is not answered."""
        other = self.rig.client()
        self.rig.node.router.access._owners.update(
            {self.client.connection: "alice", other.connection: "bob"}
        )
        self.number(0, b"a")
        self.assertEqual(self.ask("p").last_sequence, 0)
        answer = self.ask("p", other)
        self.assertEqual((answer.code, answer.last_sequence), (ResponseCode.FORBIDDEN, -1))

    def test_not_known(self) -> None:
        """While the state of the group is not known nothing is answered."""
        self.number(0, b"a")
        self.rig.store.parts.state._lack("an entry is damaged")
        answer = self.ask("p")
        self.assertEqual((answer.code, answer.reason),
                         (ResponseCode.LEADER_NOT_READY, "an entry is damaged"))

    def test_a_follower_answers_nothing(self) -> None:
        """A member that cannot prove that it leads refuses."""
        rig = Rig(peers="n0-127.0.0.1:1;n1-127.0.0.1:2")
        rig.node.start()
        answer = rig.client().ask(SequenceRequest(producer="p", **rig.base()))
        self.assertIs(answer.code, ResponseCode.NOT_LEADER)

    def test_many_have_a_share_of_a_turn(self) -> None:
        """They wait as other reads do."""
        self.number(0, b"a")
        self.client.send(*(
            SequenceRequest(producer="p", **self.rig.base()) for _ in range(module.READS_PER_TURN + 10)
        ))
        self.rig.clock.pump([0.0] * 20)
        answers = self.client.answers()
        self.assertEqual({answer.last_sequence for answer in answers}, {0})
        self.assertEqual(len(answers), module.READS_PER_TURN + 10)


class PullTests(ReadsTestCase):
    """Ranges."""

    def test_all_that_is_committed(self) -> None:
        """And nothing else."""
        self.write_uncommitted()
        answer = self.client.ask(self.pull(2))
        self.assertEqual(bodies_of(answer.entries), [b"body %d" % number for number in range(2, 10)])
        self.assertEqual((answer.committed_index, answer.ledger_begin_index), (9, 0))

    def test_up_to_an_index(self) -> None:
        """Inclusive."""
        answer = self.client.ask(self.pull(2, end_index=4))
        self.assertEqual((answer.entries.first_index, answer.entries.count), (2, 3))

    def test_a_pull_is_bounded_in_bytes(self) -> None:
        """At least one entry, whatever the bound says; never more than we are willing to send."""
        for max_bytes in (-5, 0, 1, 54):
            self.assertEqual(self.client.ask(self.pull(2, max_bytes=max_bytes)).entries.count, 1)
        self.assertEqual(self.client.ask(self.pull(2, max_bytes=2 * 54)).entries.count, 2)
        seen = []
        real = self.rig.store.read_range

        def spy(first_index: int, *, end_index: int, max_bytes: int) -> object:
            seen.append(max_bytes)
            return real(first_index, end_index=end_index, max_bytes=max_bytes)

        self.rig.store.read_range = spy  # type: ignore[method-assign,assignment]
        self.client.ask(self.pull(2, max_bytes=1 << 30))
        self.assertEqual(seen, [PULL_BYTES_MAX])

    def test_an_unchecked_pull_returns_the_same(self) -> None:
        """A reader that says that it checks by itself is given the same, read in the cheaper way."""
        self.write_uncommitted()
        seen = []
        real = self.rig.store.read_unchecked

        def spy(first_index: int, *, end_index: int, max_bytes: int) -> object:
            seen.append((first_index, end_index, max_bytes))
            return real(first_index, end_index=end_index, max_bytes=max_bytes)

        self.rig.store.read_unchecked = spy  # type: ignore[method-assign,assignment]
        checked = self.client.ask(self.pull(2, max_bytes=1 << 30))
        self.assertEqual(seen, [])
        self.assertEqual(self.client.ask(self.pull(2, max_bytes=1 << 30, node_id="unchecked")), checked)
        self.assertEqual(seen, [(2, 9, PULL_BYTES_MAX)])

    def test_an_empty_pull_reports_the_end(self) -> None:
        """Without a wait, an empty answer that says how far it goes."""
        answer = self.client.ask(self.pull(10))
        self.assertEqual((answer.code, answer.entries, answer.committed_index), (200, None, 9))

    def test_out_of_range(self) -> None:
        """Below nothing, and below the beginning; the answer says where that is."""
        self.assertIs(self.client.ask(self.pull(-1)).code, ResponseCode.INDEX_OUT_OF_RANGE)
        self.rig.store.parts.ledger.begin_index = 4
        answer = self.client.ask(self.pull(3, wait_ms=100))
        self.assertIs(answer.code, ResponseCode.INDEX_LESS_THAN_LOCAL_BEGIN)
        self.assertEqual(answer.ledger_begin_index, 4)

    def test_json_frames_have_no_pull(self) -> None:
        """Not there: Java knows no PULL."""
        self.assertIs(self.client.ask(self.pull(2), native=False).code, ResponseCode.UNSUPPORTED)

    def test_a_linearizable_pull_asks_the_core(self) -> None:
        """Asks the core first."""
        answer = self.client.ask(self.pull(2, consistency=Consistency.LINEARIZABLE))
        self.assertEqual(answer.entries.count, 8)

    def test_a_long_poll_is_answered_once(self) -> None:
        """Answered as soon as the entry is committed, once."""
        self.client.send(self.pull(10, wait_ms=5000))
        self.assertEqual(self.client.answers(), [])
        self.assertEqual(self.rig.node.status().pull_waiters, 1)
        self.rig.node.append(b"new")
        self.rig.node.append(b"newer")
        (answer,) = self.client.answers()
        self.assertEqual(bodies_of(answer.entries), [b"new", b"newer"])
        self.assertEqual(self.rig.node.status().pull_waiters, 0)

    def test_a_wait_ends_at_its_time(self) -> None:
        """With nothing, when the time is over."""
        self.client.send(self.pull(10, wait_ms=500))
        self.rig.clock.pump([0.02] * 20)
        self.assertEqual(self.client.answers(), [])
        self.rig.clock.pump([0.02] * 30)
        (answer,) = self.client.answers()
        self.assertEqual((answer.code, answer.entries), (200, None))

    def test_the_longest_wait_is_bounded(self) -> None:
        """Nobody waits for ever."""
        self.client.send(self.pull(10, wait_ms=2**31 - 1))
        self.rig.node.handlers.reads.sweep(self.rig.clock.seconds() + PULL_WAIT_MS_MAX / 1000 - 1)
        self.assertEqual(self.client.answers(), [])
        self.rig.node.handlers.reads.sweep(self.rig.clock.seconds() + PULL_WAIT_MS_MAX / 1000)
        self.assertEqual(len(self.client.answers()), 1)

    def test_bounded_number_of_waiters(self) -> None:
        """One too many is refused."""
        self.patch(module, "PULL_WAITERS_MAX", 3)
        self.client.send(*[self.pull(10, wait_ms=500) for _ in range(4)])
        (answer,) = self.client.answers()
        self.assertIs(answer.code, ResponseCode.LEADER_PENDING_FULL)
        waiter = self.rig.node.wait_for(10, time_out_ms=100)
        self.assertIs(self.failureResultOf(waiter, DLedgerError).value.code, ResponseCode.LEADER_PENDING_FULL)

    def test_a_lost_connection_makes_room(self) -> None:
        """Makes room for others."""
        self.client.send(self.pull(10, wait_ms=500))
        self.client.connection.abort("gone")
        self.assertEqual(self.rig.node.status().pull_waiters, 0)

    def test_a_stop_ends_every_wait(self) -> None:
        """Ends every wait."""
        self.client.send(self.pull(10, wait_ms=5000))
        waiter = self.rig.node.wait_for(10, time_out_ms=5000)
        self.rig.node.stop()
        self.rig.clock.advance(0)
        (answer,) = self.client.answers()
        self.assertIsNone(answer.entries)
        self.assertEqual(self.successResultOf(waiter), 9)


class ParkTests(ReadsTestCase):
    """A connection that does not take its answers is not read for."""

    def test_a_parked_read_waits_for_room(self) -> None:
        """Until it is drained; in order, and no further than it takes."""
        self.client.connection.is_congested = True
        self.client.send(*[self.get(index, Consistency.COMMITTED) for index in range(4)], self.pull(2))
        self.assertEqual(self.client.answers(), [])
        self.assertEqual(self.rig.node.handlers.reads.slowest_index(), 0)
        self.client.connection.resumeProducing()
        answers = self.client.answers()
        self.assertEqual([answer.entries.first_index for answer in answers], [0, 1, 2, 3, 2])

    def test_drained_in_part(self) -> None:
        """The rest stays parked."""
        connection = self.client.connection
        connection.is_congested = True
        self.client.send(*[self.get(index, Consistency.COMMITTED) for index in range(4)])
        real = connection.answer

        def answer(ticket: object, response: object) -> None:
            real(ticket, response)  # type: ignore[arg-type]
            connection.is_congested = True

        connection.answer = answer  # type: ignore[method-assign,assignment]
        connection.resumeProducing()
        self.assertEqual([found.entries.first_index for found in self.client.answers()], [0])
        connection.resumeProducing()
        self.assertEqual([found.entries.first_index for found in self.client.answers()], [1])

    def test_a_lost_connection_parks_nothing(self) -> None:
        """Nothing is parked for the dead."""
        self.client.connection.is_congested = True
        self.client.send(self.get(1, Consistency.COMMITTED))
        self.client.connection.abort("gone")
        self.assertEqual(self.rig.node.handlers.reads.parked, {})


class LocalTests(ReadsTestCase):
    """Callers in this process."""

    def test_a_local_caller_waits_for_commits(self) -> None:
        """Fires with the committed index: at once, later, or when the time is over."""
        self.assertEqual(self.successResultOf(self.rig.node.wait_for(9, time_out_ms=100)), 9)
        later = self.rig.node.wait_for(10, time_out_ms=100)
        over = self.rig.node.wait_for(12, time_out_ms=100)
        self.rig.node.append(b"new")
        self.rig.clock.advance(0)
        self.assertEqual(self.successResultOf(later), 10)
        self.assertNoResult(over)
        self.rig.clock.pump([0.02] * 30)
        self.assertEqual(self.successResultOf(over), 10)

    def test_a_local_caller_reads_committed_records(self) -> None:
        """Records up to the commit, or None."""
        self.write_uncommitted()
        batch = self.rig.node.read_committed(8, max_bytes=1 << 20)
        assert batch is not None
        self.assertEqual(bodies_of(batch), [b"body 8", b"body 9"])
        self.assertIsNone(self.rig.node.read_committed(10, max_bytes=1 << 20))
        self.assertRaises(DLedgerError, self.rig.node.read_committed, -1, max_bytes=1)
        self.rig.store.parts.ledger.begin_index = 4
        error = self.assertRaises(DLedgerError, self.rig.node.read_committed, 3, max_bytes=1)
        self.assertIs(error.code, ResponseCode.INDEX_LESS_THAN_LOCAL_BEGIN)

    def test_a_stopped_member_lets_nobody_wait(self) -> None:
        """Nobody waits for a member that has stopped."""
        pending = self.rig.node.read(3)
        self.rig.node.abort("test")
        self.rig.clock.advance(0)
        self.assertIs(self.failureResultOf(pending, DLedgerError).value.code, ResponseCode.NOT_LEADER)
        later = self.rig.node.read(3)
        self.assertIs(self.failureResultOf(later, DLedgerError).value.code, ResponseCode.NOT_LEADER)
        self.assertEqual(self.successResultOf(self.rig.node.wait_for(50, time_out_ms=100)), 9)

    def test_appends_of_the_setting(self) -> None:
        """The client here may append as well."""
        answer = self.client.ask(AppendRequest(bodies=(b"x",), **self.rig.base()))
        self.assertEqual(answer.index, 10)


class TurnTests(ReadsTestCase):
    """One turn serves a bounded number of reads and bytes."""

    def setUp(self) -> None:
        super().setUp()
        self.turns: list[Callable[[], None]] = []
        self.rig.node.handlers.reads._at_end_of_turn = self.turns.append

    def bound(self, name: str, value: int) -> None:
        """Another bound of a turn."""
        self.patch(module, name, value)
        self.rig.node.handlers.reads._next_turn()

    def end_turn(self) -> None:
        """What was asked for the end of the turn happens."""
        turns, self.turns[:] = list(self.turns), []
        for call in turns:
            call()

    def test_reads_of_a_turn(self) -> None:
        """More of them wait for the next turn; all are answered, in order."""
        self.bound("READS_PER_TURN", 4)
        self.client.send(*[self.get(index, Consistency.COMMITTED) for index in range(10)])
        sizes, bodies = [], []
        for _ in range(4):
            answers = self.client.answers()
            sizes.append(len(answers))
            bodies += [bodies_of(answer.entries)[0] for answer in answers]
            self.end_turn()
        self.assertEqual(bodies, [b"body %d" % number for number in range(10)])
        self.assertEqual(sizes, [4, 4, 2, 0])
        self.assertEqual(self.turns, [])

    def test_bytes_of_a_turn(self) -> None:
        """A turn ends with the answer that reaches the bound."""
        self.bound("READ_BYTES_PER_TURN", 100)
        self.client.send(*[self.get(index, Consistency.COMMITTED) for index in range(5)])
        sizes = []
        for _ in range(4):
            sizes.append(len(self.client.answers()))
            self.end_turn()
        self.assertEqual(sizes, [2, 2, 1, 0])

    def test_connections_take_turns(self) -> None:
        """A connection with few reads does not wait for all of another one."""
        self.bound("READS_PER_TURN", 4)
        other = self.rig.client()
        self.client.send(*[self.get(index % 10, Consistency.COMMITTED) for index in range(100)])
        other.send(self.get(3, Consistency.COMMITTED))
        self.end_turn()
        self.assertEqual(len(other.answers()), 1)
        self.assertEqual(len(self.client.answers()), 4 + 3)

    def test_time_of_a_turn(self) -> None:
        """Expensive reads leave the rest to the next turns."""
        read = self.rig.store.read_batch

        def slow(first_index: int, *, max_count: int, max_bytes: int) -> EntryBatch:
            self.rig.clock.rightNow += 0.6 * module.READ_S_PER_TURN
            return read(first_index, max_count=max_count, max_bytes=max_bytes)

        self.patch(self.rig.store, "read_batch", slow)
        self.client.send(*[self.get(index % 10, Consistency.COMMITTED) for index in range(5)])
        self.assertEqual(len(self.client.answers()), 2)
        self.end_turn()
        self.assertEqual(len(self.client.answers()), 2)
        self.end_turn()
        self.assertEqual(len(self.client.answers()), 1)

    def test_bytes_of_one_read_are_bounded(self) -> None:
        """
        A connection that asks for far more than it reads holds its share; the rest waits, and comes when
        it reads.
        """
        for _ in range(20):
            self.rig.node.append(b"x" * 30_000)
            self.rig.clock.advance(0)
        self.patch(budgets, "HELD_BYTES_MAX", 100_000)
        connection = self.client.connection
        read = connection.turn.read
        # The output of this read waits for the end of the turn.
        connection.turn.read = lambda deal, data: deal(data) or 0.0  # type: ignore[method-assign]
        self.patch(connection.turn, "has_room", lambda: True)
        self.client.send(*[self.get(10 + number % 20, Consistency.COMMITTED) for number in range(200)])
        held = connection.account.held_bytes
        self.assertTrue(100_000 <= held <= 100_000 + COUNTED_BYTES + 30_000 + ENTRY_HEADER_SIZE, held)
        connection.turn.read = read  # type: ignore[method-assign]
        answers = 0
        for _ in range(60):
            connection.resumeProducing()
            self.end_turn()
            answers += len(self.client.answers())
        self.assertEqual(answers, 200)
        self.assertEqual(connection.account.held_bytes, 0)
        self.assertEqual(self.rig.server.budgets.answers.held, 0)
        self.assertEqual(self.rig.node.handlers.reads.parked, {})

    def test_waits_of_one_connection(self) -> None:
        """One connection cannot take all places."""
        self.patch(module, "PULL_WAITERS_OF_ONE_MAX", 3)
        self.client.send(*[self.pull(10, wait_ms=1000) for _ in range(5)])
        refused = self.client.answers()
        self.assertEqual([answer.code for answer in refused], [ResponseCode.LEADER_PENDING_FULL] * 2)
        other = self.rig.client()
        other.send(self.pull(10, wait_ms=1000))
        self.assertEqual(other.answers(), [])
        self.rig.node.append(b"more")
        self.rig.clock.advance(0)
        self.end_turn()
        self.assertEqual((len(self.client.answers()), len(other.answers())), (3, 1))
        self.assertEqual(self.rig.node.handlers.reads.waits_of, {})
        self.client.send(*[self.pull(11, wait_ms=1000) for _ in range(3)])
        self.assertEqual(self.client.answers(), [])
        self.client.connection.abort("test")
        self.assertEqual(self.rig.node.handlers.reads.waits_of, {})
