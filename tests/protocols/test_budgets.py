# -*- test-case-name: tests.protocols.test_budgets -*-
"""The memory that strangers, half frames and unread answers can take is bounded."""

from __future__ import annotations

from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from protocols.budgets import (
    ANSWER_BYTES_MAX,
    ASKED_SHARE_BYTES,
    BEYOND_BYTES,
    EXHAUSTED_S,
    FRAME_S,
    HELD_BYTES_MAX,
    MIB,
    REQUEST_BYTES,
    SMALL_FRAME_BYTES,
    STALL_S,
    UNREAD_S,
    Budgets,
)
from protocols.connection import STRANGER_FRAME_BYTES_MAX
from protocols.ledger.connection import FRAMES_MAX, ServerConnection
from protocols.outlet import Outlet
from protocols.rocketmq.commands import CommandConnection, OnlyAsking
from protocols.wire.ledger.messages import AppendRequest, MetadataRequest, MetadataResponse
from protocols.wire.remoting import RemotingCommand, encode_command
from tests.protocols.fakes import (
    FakeTransport,
    SeenRequests,
    native_request,
    plug,
    remoting_request,
    turn_of,
)

ASK = MetadataRequest(group="g", remote_id="n0")


def large_append(size: int) -> AppendRequest:
    """An append of one body."""
    return AppendRequest(group="g", remote_id="n0", bodies=(b"x" * size,))


class ShareTests(SynchronousTestCase):
    """How the budget of answers is shared."""

    def test_alone(self) -> None:
        """A single connection may hold its bound, and no more."""
        budgets = Budgets()
        self.assertTrue(budgets.may_answer(0))
        self.assertTrue(budgets.may_answer(HELD_BYTES_MAX - 1))
        self.assertFalse(budgets.may_answer(HELD_BYTES_MAX))

    def test_the_less_is_free_the_less_may_be_held(self) -> None:
        """Connections that hold answers stop before those that hold none."""
        budgets = Budgets(answers=60 * MIB)
        budgets.answers.held = 48 * MIB
        self.assertFalse(budgets.may_answer(2 * MIB))
        self.assertTrue(budgets.may_answer(2 * MIB - 1))
        self.assertTrue(budgets.may_answer(0))
        self.assertEqual([budgets.may_serve(held) for held in (0, 2 * MIB - 1, 2 * MIB)], [True, True, False])

    def test_exhausted(self) -> None:
        """Without room for another large answer only small ones are made, for those that have read theirs."""
        budgets = Budgets(answers=64 * MIB)
        budgets.answers.held = 64 * MIB - 2 * ANSWER_BYTES_MAX + 1
        self.assertEqual((budgets.may_answer(0), budgets.may_serve(0)), (False, True))
        budgets.answers.held = 64 * MIB
        self.assertEqual((budgets.may_serve(0), budgets.may_serve(1)), (True, False))

    def test_greedy_connections_leave_room(self) -> None:
        """Connections that take all they may, and read nothing, leave room for one that reads."""
        budgets = Budgets(answers=256 * MIB)
        held = [0] * 20
        for _ in range(1000):
            for number, mine in enumerate(held):
                if budgets.may_answer(mine):
                    held[number] += MIB
                    budgets.answers.held += MIB
        self.assertTrue(budgets.may_answer(0))
        self.assertLessEqual(sum(held), 256 * MIB)


class ServerCase(SynchronousTestCase):
    """Connections to one member that share budgets."""

    def setUp(self) -> None:
        self.clock = Clock()
        self.sink = SeenRequests()
        self.budgets = Budgets(unfinished=8 * MIB)

    def open(self) -> tuple[ServerConnection, FakeTransport]:
        """One more connection."""
        connection = ServerConnection(self.sink, turn_of(self.clock), budgets=self.budgets)
        return connection, plug(connection)


class UnfinishedTests(ServerCase):
    """Frames whose end does not come."""

    def test_counted_and_given_back(self) -> None:
        """While the frame is unfinished, and no longer."""
        connection, _ = self.open()
        frame = remoting_request(large_append(100_000), 1)
        connection.dataReceived(frame[:1000])
        self.assertEqual((self.budgets.unfinished.held, self.budgets.strangers.held), (1000, 1000))
        connection.dataReceived(frame[1000:5000])
        self.assertEqual(self.budgets.unfinished.held, 5000)
        connection.dataReceived(frame[5000:])
        self.assertEqual((self.budgets.unfinished.held, self.budgets.strangers.held), (0, 0))
        self.assertEqual(len(self.sink.requests), 1)

    def test_given_back_when_the_connection_ends(self) -> None:
        """However it ends, proven or not."""
        for is_proven in (False, True):
            connection, _ = self.open()
            connection.dataReceived(remoting_request(large_append(100_000), 1)[:9000])
            if is_proven:
                connection.account.prove()
                self.assertEqual(self.budgets.strangers.held, 0)
            connection.abort("test")
            self.assertEqual((self.budgets.unfinished.held, self.budgets.strangers.held), (0, 0))

    def test_strangers_share_a_bound(self) -> None:
        """Whoever asks for more than all strangers may hold is cut off; the others stay."""
        piece = remoting_request(large_append(3 * MIB), 1)[:MIB]
        connections = [self.open()[0] for _ in range(8)]
        for connection in connections:
            connection.dataReceived(piece)
        self.assertLessEqual(self.budgets.strangers.held, 2 * MIB)
        self.assertEqual([connection.is_lost for connection in connections], [False] * 2 + [True] * 6)
        self.assertIn("connections without a valid request hold", str(self.sink.broken[0]))

    def test_members_and_clients_have_room_beside_strangers(self) -> None:
        """The strangers' part is a quarter of the whole."""
        piece = remoting_request(large_append(3 * MIB), 1)[:MIB]
        for _ in range(8):
            self.open()[0].dataReceived(piece)
        known, _ = self.open()
        known.account.prove()
        known.dataReceived(remoting_request(large_append(3 * MIB), 1))
        self.assertFalse(known.is_lost)
        self.assertEqual(len(self.sink.requests), 1)

    def test_all_share_a_bound(self) -> None:
        """Known clients too."""
        connections = [self.open()[0] for _ in range(12)]
        for connection in connections:
            connection.account.prove()
            connection.dataReceived(remoting_request(large_append(3 * MIB), 1)[:MIB])
        self.assertLessEqual(self.budgets.unfinished.held, 8 * MIB)
        self.assertEqual(sum(connection.is_lost for connection in connections), 4)

    def test_small_pieces_are_never_refused(self) -> None:
        """A client whose request was cut by the network does not pay for others."""
        self.budgets.strangers.held = 100 * MIB
        connection, _ = self.open()
        connection.dataReceived(remoting_request(large_append(SMALL_FRAME_BYTES), 1)[:SMALL_FRAME_BYTES])
        self.assertFalse(connection.is_lost)

    def test_large_native_frame_of_a_stranger(self) -> None:
        """Refused as soon as its length is known: our clients begin with METADATA."""
        connection, _ = self.open()
        connection.dataReceived(native_request(large_append(STRANGER_FRAME_BYTES_MAX), 1)[:100])
        self.assertTrue(connection.is_lost)
        self.assertIn("before any valid request", str(self.sink.broken[0]))

    def test_large_native_frame_of_a_client(self) -> None:
        """Welcome, even if it begins in the read that has the client's first request."""
        connection, _ = self.open()
        self.sink.requests_received = (  # type: ignore[method-assign]
            lambda connection, requests: connection.account.prove()
        )
        connection.dataReceived(native_request(ASK, 1) + native_request(large_append(MIB), 2)[:100])
        self.assertFalse(connection.is_lost)

    def test_a_frame_has_a_deadline(self) -> None:
        """A byte now and then does not help."""
        connection, _ = self.open()
        frame = remoting_request(large_append(1000), 1)
        for at in range(int(FRAME_S) + 2):
            connection.dataReceived(frame[at : at + 1])
            connection.sweep(self.clock.seconds())
            self.clock.advance(1)
        for _ in range(4):
            connection.sweep(self.clock.seconds())
            self.clock.advance(1)
        self.assertTrue(connection.is_lost)
        self.assertIn("not complete within", self.sink.lost[0])

    def test_a_slow_link(self) -> None:
        """A large frame that comes steadily has the time it needs."""
        connection, _ = self.open()
        connection.account.prove()
        frame = remoting_request(large_append(MIB), 1)
        step = 16 * 1024
        for at in range(0, len(frame), step):
            connection.dataReceived(frame[at : at + step])
            connection.sweep(self.clock.seconds())
            self.clock.advance(1)
        self.assertGreater(self.clock.seconds(), 2 * FRAME_S)
        self.assertEqual(len(self.sink.requests), 1)
        self.assertFalse(connection.is_lost)

    def test_many_frames_cut_anywhere_are_in_time(self) -> None:
        """A busy connection always has an unfinished frame; it is never the same one."""
        connection, _ = self.open()
        stream = remoting_request(ASK, 1) * 3
        step = len(stream) // 3
        rest = b""
        for _ in range(3 * int(FRAME_S)):
            rest += stream
            connection.dataReceived(rest[: -step // 2])
            rest = rest[-step // 2 :]
            for ticket, _ in self.sink.requests:
                connection.unanswered -= 1
                connection.unanswered_bytes -= ticket[3]
            self.sink.calls.clear()
            connection.sweep(self.clock.seconds())
            self.clock.advance(1)
        self.assertFalse(connection.is_lost)

    def test_time_in_which_this_end_does_not_read_does_not_count(self) -> None:
        """The other end cannot finish a frame that we do not read."""
        connection, _ = self.open()
        connection.dataReceived(remoting_request(large_append(1000), 1)[:50])
        connection.pauseProducing()
        for _ in range(2 * int(FRAME_S)):
            connection.sweep(self.clock.seconds())
            self.clock.advance(1)
        self.assertFalse(connection.is_lost)


class HeldTests(ServerCase):
    """Answers that are not read."""

    def settled(self, connection: ServerConnection) -> tuple[int, int]:
        """What is held by all connections and by this one."""
        return self.budgets.answers.held, connection.account.held_bytes

    def test_every_write_is_counted(self) -> None:
        """Small ones together, in the turn that makes them; and all of them as long as they are not sent."""
        connection, _ = self.open()
        for _ in range(10):
            connection.write((b"x" * 10_000,))
        self.assertEqual(self.settled(connection), (70_000, 70_000))
        self.assertEqual(connection.turn.made_bytes, 70_000)
        self.clock.advance(0)
        self.assertEqual(self.settled(connection), (0, 0))
        connection.pauseProducing()
        connection.write((b"x" * 300,))
        self.clock.advance(0)
        self.assertEqual(self.settled(connection), (100_300, 100_300))
        self.assertFalse(connection.may_answer)
        connection.resumeProducing()
        self.assertEqual(self.settled(connection), (0, 0))
        self.assertTrue(connection.may_answer)

    def test_released_when_the_connection_ends(self) -> None:
        """The memory is free, also that of an answer that was to be made later."""
        connection, _ = self.open()
        connection.account.hold(1000)
        connection.account.reserve(500)
        self.assertEqual(self.budgets.answers.held, 1500)
        connection.abort("test")
        self.assertEqual(self.budgets.answers.held, 0)
        connection.account.unreserve(500)
        connection.account.reserve(500)
        self.assertEqual(self.budgets.answers.held, 0)

    def test_ended_connection_keeps_nothing(self) -> None:
        """No output, in the transport either, and no requests."""
        connection, _ = self.open()
        dropped: list[Outlet] = []
        self.patch(Outlet, "drop", lambda outlet: dropped.append(outlet))
        connection.account.reserve(HELD_BYTES_MAX)
        connection.dataReceived(native_request(ASK, 1) * (2 * FRAMES_MAX))
        self.assertGreater(connection._buffer.uncut_bytes, 0)
        connection.write((b"x",))
        connection.abort("test")
        self.assertEqual((dropped, connection._out), ([connection.outlet], []))
        self.assertEqual((connection._buffer.uncut_bytes, self.budgets.waiting.held), (0, 0))

    def test_reserved(self) -> None:
        """An answer that will be made later is counted until it is made, whatever is sent meanwhile."""
        connection, _ = self.open()
        connection.account.reserve(HELD_BYTES_MAX)
        connection.write((b"x",))
        self.clock.advance(0)
        self.assertEqual(self.settled(connection), (HELD_BYTES_MAX, HELD_BYTES_MAX))
        self.assertTrue(connection.is_clogged)
        connection.account.unreserve(HELD_BYTES_MAX)
        self.assertFalse(connection.is_clogged)

    def test_requests_wait(self) -> None:
        """Those of a clogged connection wait as bytes, and are handled when it has read its answers."""
        connection, transport = self.open()
        connection.account.reserve(HELD_BYTES_MAX)
        connection.dataReceived(native_request(ASK, 1) * (3 * FRAMES_MAX))
        first = len(self.sink.requests)
        self.assertLess(first, FRAMES_MAX + 1)
        self.clock.pump([0.1] * 5)
        self.assertEqual((len(self.sink.requests), transport.producerState), (first, "paused"))
        self.assertEqual(self.budgets.waiting.held, (3 * FRAMES_MAX - first) * len(native_request(ASK, 1)))
        connection.account.unreserve(HELD_BYTES_MAX)
        connection.sweep(1.0)
        self.clock.pump([0.1] * 50)
        self.assertEqual((len(self.sink.requests), transport.producerState), (3 * FRAMES_MAX, "producing"))
        self.assertEqual((self.budgets.waiting.held, self.sink.drains), (0, 1))

    def test_a_peer_does_not_wait_for_others(self) -> None:
        """Its requests are handled although clients have taken the budget."""
        connection, _ = self.open()
        connection.peer_id = "n1"
        connection.account.hold(1)
        self.budgets.answers.held += self.budgets.answers.bytes_max
        self.assertTrue(connection.is_clogged)
        connection.dataReceived(native_request(ASK, 1) * (3 * FRAMES_MAX))
        self.assertEqual(len(self.sink.requests), 3 * FRAMES_MAX)

    def test_waiting_requests_are_bounded(self) -> None:
        """Connections that do not read end when too many bytes of requests wait; those that read do not."""
        data = native_request(ASK, 1) * 20_000
        clogged, reading = [self.open()[0] for _ in range(8)], self.open()[0]
        for connection in clogged:
            connection.account.reserve(HELD_BYTES_MAX)
            connection.dataReceived(data)
        kept = self.budgets.waiting.bytes_max // (len(data) - FRAMES_MAX * len(native_request(ASK, 1)))
        self.assertEqual([one.is_lost for one in clogged], [False] * kept + [True] * (8 - kept))
        self.assertLessEqual(self.budgets.waiting.held, self.budgets.waiting.bytes_max)
        self.assertIn("after unread answers", self.sink.lost[0])
        reading.turn.is_late = True
        reading.dataReceived(data)
        self.assertFalse(reading.is_lost)

    def test_too_many_at_once(self) -> None:
        """Answers that came late, and all together, end their connection if they exceed every bound."""
        connection, _ = self.open()
        connection.pauseProducing()
        connection.write((b"x" * (BEYOND_BYTES + 1),))
        self.clock.advance(0)
        self.assertTrue(connection.is_lost)
        self.assertEqual(self.budgets.answers.held, 0)

    def ends_after(self, connection: ServerConnection, *, most_s: int = 200) -> int:
        """Seconds after which it is ended because it does not read."""
        for seconds in range(most_s):
            connection.dataReceived(b"")
            connection.sweep(self.clock.seconds())
            if connection.is_lost:
                return seconds
            self.clock.advance(1)
        return most_s

    def unread(self, size: int = 1000) -> ServerConnection:
        """A connection that does not read an answer."""
        connection, _ = self.open()
        connection.pauseProducing()
        connection.write((b"x" * size,))
        self.clock.advance(0)
        return connection

    def test_one_that_does_not_read_ends(self) -> None:
        """Sooner when memory is scarce, and at once when there is none."""
        self.assertEqual(self.ends_after(self.unread()), int(UNREAD_S))
        self.assertIn("were not read in time", self.sink.lost[0])
        self.budgets.answers.held += self.budgets.answers.bytes_max * 3 // 4
        self.assertEqual(self.ends_after(self.unread()), int(STALL_S))
        self.budgets.answers.held += self.budgets.answers.bytes_max
        self.assertEqual(self.ends_after(self.unread()), int(EXHAUSTED_S))

    def test_slow_reader(self) -> None:
        """It may take its time, as long as others do not need the memory."""
        connection = self.unread(100_000)
        assert connection.outlet is not None
        for _ in range(2 * int(UNREAD_S)):
            connection.dataReceived(b"")
            connection.unsent_bytes -= 100
            connection.sweep(self.clock.seconds())
            self.clock.advance(1)
        self.assertFalse(connection.is_lost)
        self.budgets.answers.held += self.budgets.answers.bytes_max * 3 // 4
        self.assertLess(self.ends_after(connection), int(STALL_S) + 2)


class AskedTests(ServerCase):
    """Requests that an owner answers late, as reads that wait for a majority."""

    def setUp(self) -> None:
        super().setUp()
        self.budgets = Budgets(asked=4 * ASKED_SHARE_BYTES)
        self.data = native_request(ASK, 1) * (ASKED_SHARE_BYTES // REQUEST_BYTES)

    def ask(self, transport: FakeTransport, connection: ServerConnection, *, reads: int = 3) -> None:
        """Send requests of more than a share, as long as the other end reads."""
        for _ in range(reads):
            if transport.producerState == "producing":
                connection.dataReceived(self.data)
                self.clock.pump([0.1] * 20)

    def answer_all(self, connection: ServerConnection) -> None:
        """Answer all that has come."""
        for ticket, _ in self.sink.requests:
            connection.answer(ticket, MetadataResponse(group="g"))
        self.clock.advance(0)

    def test_all_share_a_bound(self) -> None:
        """At the bound, a connection that owes more than its share waits, and one with few does not."""
        greedy = [self.open() for _ in range(20)]
        for connection, transport in greedy:
            self.ask(transport, connection)
        beyond = 20 * (len(self.data) + ASKED_SHARE_BYTES)
        self.assertGreater(self.budgets.asked.held, self.budgets.asked.bytes_max)
        self.assertLess(self.budgets.asked.held, self.budgets.asked.bytes_max + beyond)
        self.assertEqual({transport.producerState for _, transport in greedy[4:]}, {"paused"})
        modest, transport = self.open()
        modest.dataReceived(native_request(ASK, 1))
        self.assertEqual(transport.producerState, "producing")

    def test_goes_on(self) -> None:
        """Whoever waited goes on when its requests are answered."""
        self.budgets.asked.held = self.budgets.asked.bytes_max
        connection, transport = self.open()
        self.ask(transport, connection)
        self.assertEqual(transport.producerState, "paused")
        self.assertLess(connection.account.asked_bytes, 2 * (len(self.data) + ASKED_SHARE_BYTES))
        self.answer_all(connection)
        self.assertEqual((transport.producerState, connection.account.asked_bytes), ("producing", 0))

    def test_goes_on_after_others(self) -> None:
        """Whoever waited goes on when others have left room, also because they have ended."""
        other, transport = self.open()
        self.ask(transport, other, reads=1)
        self.budgets.asked.held += self.budgets.asked.bytes_max - other.account.asked_bytes
        connection, transport = self.open()
        self.ask(transport, connection)
        self.assertEqual(transport.producerState, "paused")
        other.abort("test")
        self.budgets.asked.held -= connection.account.asked_bytes
        connection.sweep(1.0)
        self.assertEqual(transport.producerState, "producing")

    def test_given_back(self) -> None:
        """A connection that ends owes nothing."""
        connection, transport = self.open()
        self.ask(transport, connection)
        self.assertGreater(self.budgets.asked.held, 0)
        connection.abort("test")
        self.answer_all(connection)
        connection.sweep(1.0)
        self.assertEqual(self.budgets.asked.held, 0)

    def test_members_do_not_wait(self) -> None:
        """The requests of clients take nothing from a member of the group."""
        connection, transport = self.open()
        connection.peer_id = "n1"
        self.budgets.asked.held = 2 * self.budgets.asked.bytes_max
        self.ask(transport, connection)
        self.assertEqual(transport.producerState, "producing")


class BrokerTests(SynchronousTestCase):
    """Connections that carry RocketMQ's commands."""

    def test_known_after_the_first_command(self) -> None:
        """RocketMQ has no introduction: any valid command is one."""
        budgets = Budgets()
        connection = CommandConnection(OnlyAsking(), turn_of(Clock()), budgets=budgets)
        plug(connection)
        self.assertFalse(connection.account.is_proven)
        connection.dataReceived(encode_command(RemotingCommand(code=10, opaque=1)))
        self.assertTrue(connection.account.is_proven)

    def test_the_asking_end_knows_the_other(self) -> None:
        """Its answers may be large."""
        connection = CommandConnection(OnlyAsking(), turn_of(Clock()))
        plug(connection)
        connection.ask(RemotingCommand(code=10, opaque=0))
        self.assertTrue(connection.account.is_proven)
