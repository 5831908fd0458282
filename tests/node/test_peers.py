# -*- test-case-name: tests.node.test_peers -*-
"""Connections to the other members: ordered, made again, bounded in time."""

from __future__ import annotations

import random
from typing import Any

import attrs
from twisted.internet.defer import Deferred
from twisted.internet.error import ConnectError, ConnectionDone
from twisted.internet.interfaces import IProtocolFactory, IStreamClientEndpoint
from twisted.internet.task import Clock
from twisted.logger import LogLevel, capturedLogs
from twisted.python.failure import Failure
from twisted.trial.unittest import SynchronousTestCase
from zope.interface import implementer

from dledger.core.state import inputs as ev
from dledger.core.state.effects import SendRequest
from dledger.node.connections.greeting import Greeting
from dledger.node.connections.peers import (
    ASK_AGAIN_S,
    PRESENT_S,
    SIGN_OF_LIFE_S,
    Peers,
)
from dledger.node.connections.redial import HURRY_S, RETRY_MAX_S
from dledger.values.errors import DLedgerError
from dledger.values.ledger.config import DLedgerConfig
from dledger.values.ledger.group_name import GroupName
from protocols.wire.codes import ResponseCode
from protocols.wire.ledger.codes import RequestCode
from protocols.wire.ledger.java.json_bodies import decode_request
from protocols.wire.ledger.machines import SnapshotRequest, SnapshotResponse
from protocols.wire.ledger.messages import (
    HeartBeatRequest,
    HeartBeatResponse,
    MetadataRequest,
    MetadataResponse,
    PushEntryRequest,
    Response,
    VoteRequest,
    VoteResponse,
)
from protocols.wire.remoting import RemotingCommand, encode_command
from tests.node.test_greeting import Known
from tests.protocols.fakes import (
    FakeTransport,
    native_response,
    plug,
    remoting_response,
    sent_messages,
    turn_of,
    unplug,
)
from tests.wire.golden import PUSH_ANSWERS_0_4

BEAT = HeartBeatRequest(group="default", remote_id="n1", local_id="n0", leader_id="n0", term=3)


@implementer(IStreamClientEndpoint)
class FakeEndpoint:
    """
    Connects when the test says so.

    @ivar attempts: Deferreds of attempts under way.
    """

    def __init__(self) -> None:
        self.attempts: list[tuple[Deferred[Any], Any]] = []

    def connect(self, factory: IProtocolFactory) -> Deferred[Any]:
        attempt: Deferred[Any] = Deferred()
        self.attempts.append((attempt, factory))
        return attempt

    def succeed(self) -> tuple[Any, FakeTransport]:
        """The oldest attempt succeeds."""
        attempt, factory = self.attempts.pop(0)
        connection = factory.buildProtocol(None)
        transport = plug(connection)
        attempt.callback(connection)
        return connection, transport

    def fail(self) -> None:
        """The oldest attempt fails."""
        self.attempts.pop(0)[0].errback(Failure(ConnectError()))


class PeersTestCase(SynchronousTestCase):
    """Two peers."""

    def setUp(self) -> None:
        self.clock = Clock()
        self.answered: list[tuple[str, list[tuple[int, Response]]]] = []
        self.failed: list[tuple[str, list[tuple[int, str]]]] = []
        self.incompatible: list[tuple[str, int]] = []
        self.connected: list[str] = []
        self.endpoints = {"n1": FakeEndpoint(), "n2": FakeEndpoint()}
        self.group_name = GroupName("a" * 32, 1, True)
        self.greeting = Greeting(
            known=Known(), group_name=lambda: self.group_name
        )
        self.peers = Peers(
            config=DLedgerConfig(peers="n0-h:1;n1-h:2;n2-h:3"), clock=self.clock,
            dial=lambda peer_id, _: self.endpoints[peer_id], turn=turn_of(self.clock), rng=random.Random(1),
            feed=self.fed, greeting=self.greeting,
        )
        self.peers.follow({"n1": "h:2", "n2": "h:3"})
        self.peers.start()

    def fed(self, *happened: ev.Input) -> None:
        """Inputs for the core; those of one call are of one peer."""
        answers = [one for one in happened if isinstance(one, ev.ResponseReceived)]
        failed = [one for one in happened if isinstance(one, ev.RequestFailed)]
        self.connected += [one.peer_id for one in happened if isinstance(one, ev.PeerConnected)]
        if answers:
            heard = [(one.request_id, one.response) for one in answers]
            self.answered.append((answers[0].peer_id, heard))
        for peer_id in dict.fromkeys(one.peer_id for one in failed):
            of_peer = [one for one in failed if one.peer_id == peer_id]
            self.requests_failed(
                peer_id, [(one.request_id, one.reason) for one in of_peer], of_peer[0].is_incompatible
            )

    def requests_failed(self, peer_id: str, failed: list[tuple[int, str]], is_incompatible: bool) -> None:
        """Remember."""
        self.failed.append((peer_id, failed))
        if is_incompatible:
            self.incompatible += [(peer_id, request_id) for request_id, _ in failed]

    def connect(self, peer_id: str = "n1") -> tuple[Any, FakeTransport]:
        """A connection to C{peer_id} comes about; its first messages are read away."""
        connection, transport = self.endpoints[peer_id].succeed()
        self.clock.advance(0)
        transport.clear()
        return connection, transport

    def sent(self, transport: FakeTransport) -> list[tuple[int, Any]]:
        """The requests that the turn sent."""
        self.clock.advance(0)
        data = transport.value()
        transport.clear()
        return sent_messages(data)

    def send(self, peer_id: str, request_id: int, request: Any) -> None:
        """As the driver asks for it."""
        self.peers.send(SendRequest(peer_id=peer_id, request_id=request_id, request=request))


class SendTests(PeersTestCase):
    """Every request ends once."""

    def test_without_a_connection(self) -> None:
        """Fails, but not before C{send} has returned; nothing is kept for later."""
        self.send("n1", 5, BEAT)
        self.send("n1", 6, BEAT)
        self.assertEqual(self.failed, [])
        self.clock.advance(0)
        self.assertEqual(self.failed, [("n1", [(5, "not connected"), (6, "not connected")])])
        _, transport = self.connect()
        self.assertEqual(self.sent(transport), [])

    def test_an_answer_names_its_request(self) -> None:
        """With the peer and the request id."""
        connection, transport = self.connect()
        self.send("n1", 5, BEAT)
        self.send("n1", 6, BEAT)
        (first, _), (second, _) = self.sent(transport)
        connection.dataReceived(
            remoting_response(HeartBeatResponse(term=2), second)
            + remoting_response(HeartBeatResponse(term=1), first)
        )
        ((peer_id, answers),) = self.answered
        self.assertEqual(peer_id, "n1")
        self.assertEqual([(token, answer.term) for token, answer in answers], [(6, 2), (5, 1)])

    def test_beside_the_core(self) -> None:
        """A request of another part: its answer comes there, and so does its failure."""
        self.assertIsNone(self.peers.reported("n1"))
        for peer_id in ("n1", "n9"):
            self.failureResultOf(self.peers.ask(peer_id, SnapshotRequest()), DLedgerError)
        connection, transport = self.connect()
        connection.dataReceived(remoting_response(MetadataResponse(begin_index=7), 1))
        reported = self.peers.reported("n1")
        assert reported is not None
        self.assertEqual(reported.begin_index, 7)
        first, second, third = (self.peers.ask("n1", SnapshotRequest(offset=at)) for at in range(3))
        first.addErrback(lambda _: None)
        first.cancel()
        sent = self.sent(transport)
        for (opaque, _), index in zip(sent[:2], (4, 5), strict=True):
            connection.dataReceived(remoting_response(SnapshotResponse(index=index), opaque))
        self.assertEqual(self.successResultOf(second).index, 5)
        connection.connectionLost(Failure(ConnectionDone()))
        error = self.failureResultOf(third, DLedgerError).value
        self.assertIs(error.code, ResponseCode.NETWORK_ERROR)
        self.assertEqual((self.answered, self.failed), ([], []))

    def test_requests_are_sent_in_order(self) -> None:
        """As sent, in one write."""
        _, transport = self.connect()
        transport.writes.clear()
        for request_id in range(1, 20):
            self.send("n1", request_id, BEAT)
        opaques = [opaque for opaque, _ in self.sent(transport)]
        self.assertEqual(opaques, sorted(opaques))
        self.assertEqual(len(transport.writes), 1)

    def test_pre_votes_are_not_for_java(self) -> None:
        """A pre-vote goes where its like was advertised on this very connection; a vote goes anywhere."""
        vote = VoteRequest(group="default", remote_id="n1", local_id="n0", leader_id="n0", term=3)
        pre_vote = attrs.evolve(vote, pre_vote=True)
        connection, transport = self.connect()
        self.send("n1", 5, pre_vote)
        self.send("n1", 6, vote)
        ((opaque, message),) = self.sent(transport)
        self.assertNotIn(b"preVote", message.body)
        self.assertEqual([token for token, _ in self.failed[0][1]], [5])
        connection.dataReceived(remoting_response(VoteResponse(wire_version=1), opaque))
        self.send("n1", 7, pre_vote)
        self.assertEqual([message for _, message in self.sent(transport)], [pre_vote])

    def test_a_lost_connection_fails_its_requests(self) -> None:
        """Fails everything outstanding; the next request does not wait for the next connection."""
        connection, _ = self.connect()
        self.send("n1", 5, BEAT)
        unplug(connection)
        self.assertEqual(len(self.failed), 1)
        self.assertEqual([token for token, _ in self.failed[0][1]], [5])
        self.send("n1", 6, BEAT)
        self.clock.advance(0)
        self.assertEqual(self.failed[1], ("n1", [(6, "not connected")]))

    def test_answered_in_another_version(self) -> None:
        """Only such an answer is marked: not what was refused, lost, late, or makes no sense."""
        push = PushEntryRequest(group="default", remote_id="n1", local_id="n0", leader_id="n0", term=3)
        self.send("n1", 4, push)
        connection, transport = self.connect()
        for request_id in (5, 6, 7):
            self.send("n1", request_id, push)
        (first, _), (second, _), (third, _) = self.sent(transport)
        for opaque, body in ((first, b"{}}"), (second, PUSH_ANSWERS_0_4[0]), (third, b"")):
            connection.dataReceived(encode_command(RemotingCommand(
                code=200, opaque=opaque, flag=1, body=body
            )))
        self.send("n1", 8, push)
        self.peers.sweep(self.clock.seconds() + 3.0)
        self.send("n1", 9, push)
        unplug(connection)
        self.assertEqual(
            [request_id for _, failed in self.failed for request_id, _ in failed], [4, 5, 6, 7, 8, 9]
        )
        self.assertEqual(self.incompatible, [("n1", 6)])

    def test_a_silent_request_times_out(self) -> None:
        """As configured; a silent connection is ended with it."""
        connection, _ = self.connect()
        self.send("n1", 5, BEAT)
        self.peers.sweep(self.clock.seconds() + 2.9)
        self.assertEqual(self.failed, [])
        self.peers.sweep(self.clock.seconds() + 3.0)
        self.assertEqual(self.failed[0], ("n1", [(5, "no answer in 3 s")]))
        self.assertTrue(connection.is_lost)

    def test_peers_are_apart(self) -> None:
        """What one does concerns no other."""
        connection, _ = self.connect("n1")
        self.connect("n2")
        self.send("n2", 5, BEAT)
        unplug(connection)
        self.assertEqual(self.failed, [])
        self.assertEqual(self.peers.connected, {"n1": False, "n2": True})


class ConnectionTests(PeersTestCase):
    """Made, lost, made again."""

    def test_begins_with_a_question(self) -> None:
        """Asked in JSON; its answer is nobody's business but the connection's, which then speaks native."""
        connection, transport = self.endpoints["n1"].succeed()
        ((opaque, command),) = self.sent(transport)
        self.assertEqual(command.code, RequestCode.METADATA)
        connection.dataReceived(remoting_response(MetadataResponse(wire_version=1), opaque))
        self.assertEqual((self.answered, self.failed), ([], []))
        self.send("n1", 5, BEAT)
        ((opaque, message),) = self.sent(transport)
        self.assertEqual(message, BEAT)
        connection.dataReceived(native_response(HeartBeatResponse(term=1), opaque))
        self.assertEqual(len(self.answered), 1)

    def test_a_foreign_peer_does_not_count(self) -> None:
        """A peer of another group: no later answer counts, of the same read either; it is tried again."""
        for facts in (
            {"group_id": "b" * 32, "is_group_known": True},
            {"peers": {"n0": "h:1", "n1": "h:2"}},
        ):
            connection, transport = self.endpoints["n1"].succeed()
            ((probe, command),) = self.sent(transport)
            asked = decode_request(RequestCode.METADATA, command.body)
            self.assertEqual((asked.group_id, asked.members), ("a" * 32, "n0;n1;n2"))
            self.send("n1", 5, BEAT)
            ((beat, _),) = self.sent(transport)
            connection.dataReceived(
                remoting_response(MetadataResponse(wire_version=1, **facts), probe)
                + remoting_response(HeartBeatResponse(term=1), beat)
            )
            self.assertEqual(self.answered, [])
            self.assertTrue(transport.disconnected)
            self.assertEqual([token for _, failed in self.failed for token, _ in failed], [5])
            self.failed.clear()
            connection.connectionLost(Failure(ConnectionDone()))
            self.clock.advance(RETRY_MAX_S)

    def test_a_greeting_is_passed_on(self) -> None:
        """What a member answers to a greeting at its own address is passed on, after the other answers."""
        reported: list[tuple[str, object, int]] = []
        self.peers.notify_with(lambda peer_id, said: reported.append((peer_id, said, len(self.answered))))
        connection, transport = self.endpoints["n1"].succeed()
        ((probe, _),) = self.sent(transport)
        self.send("n1", 5, BEAT)
        ((beat, _),) = self.sent(transport)
        said = MetadataResponse(wire_version=1, configuration="x")
        connection.dataReceived(
            remoting_response(said, probe) + remoting_response(HeartBeatResponse(term=1), beat))
        self.assertEqual(reported, [("n1", said, 1)])

    def test_reported_by_others(self) -> None:
        """That is not what one of another group says."""
        reported: list[str] = []
        self.peers.notify_with(lambda peer_id, said: reported.append(peer_id))
        connection, transport = self.endpoints["n1"].succeed()
        ((probe, _),) = self.sent(transport)
        facts = {"group_id": "b" * 32, "is_group_known": True}
        connection.dataReceived(remoting_response(MetadataResponse(wire_version=1, **facts), probe))
        self.assertEqual(reported, [])

    def test_a_question_is_asked_again(self) -> None:
        """At once, then once in a fifth of a second, and none of the questions is forgotten."""
        self.peers.ask_again("n2")  # not connected: it is asked when it is
        _connection, transport = self.connect()
        asked = []
        for _ in range(30):
            self.peers.ask_again("n1")
            asked.append(len(self.sent(transport)))
            self.clock.advance(0.01)
            self.peers.sweep(self.clock.seconds())
        self.assertEqual((asked[0], sum(asked)), (1, 2))
        self.clock.advance(ASK_AGAIN_S)
        self.assertEqual(self.sent(transport), [])
        self.peers.sweep(self.clock.seconds())
        ((_, command),) = self.sent(transport)
        self.assertEqual(decode_request(RequestCode.METADATA, command.body).members, "n0;n1;n2")
        self.peers.sweep(self.clock.seconds())
        self.assertEqual(self.sent(transport), [])

    def test_java_stays_with_json(self) -> None:
        """A peer that advertises nothing."""
        connection, transport = self.endpoints["n1"].succeed()
        ((opaque, _),) = self.sent(transport)
        connection.dataReceived(remoting_response(MetadataResponse(), opaque))
        self.send("n1", 5, BEAT)
        ((_, command),) = self.sent(transport)
        self.assertEqual(command.code, RequestCode.HEART_BEAT)

    def test_a_new_connection_asks_again(self) -> None:
        """Another program may listen there now."""
        connection, transport = self.endpoints["n1"].succeed()
        ((opaque, _),) = self.sent(transport)
        connection.dataReceived(remoting_response(MetadataResponse(wire_version=1), opaque))
        unplug(connection)
        self.clock.advance(RETRY_MAX_S)
        _, transport = self.connect()
        self.send("n1", 5, BEAT)
        ((_, command),) = self.sent(transport)
        self.assertEqual(command.code, RequestCode.HEART_BEAT)

    def test_each_connection_is_reported_of(self) -> None:
        """As it is made; failed attempts and lost connections are not."""
        self.endpoints["n1"].fail()
        self.clock.advance(RETRY_MAX_S)
        self.assertEqual(self.connected, [])
        connection, _ = self.connect()
        self.assertEqual(self.connected, ["n1"])
        self.connect("n2")
        unplug(connection)
        self.assertEqual(self.connected, ["n1", "n2"])
        self.clock.advance(RETRY_MAX_S)
        self.connect()
        self.assertEqual(self.connected, ["n1", "n2", "n1"])

    def test_question_that_fails(self) -> None:
        """Concerns nobody else."""
        connection, _ = self.endpoints["n1"].succeed()
        unplug(connection)
        self.clock.advance(0)
        self.assertEqual(self.failed, [])

    def test_a_connection_is_made_again(self) -> None:
        """Within a second, for ever."""
        for _ in range(50):
            self.endpoints["n1"].fail()
            self.clock.advance(RETRY_MAX_S)
            self.assertEqual(len(self.endpoints["n1"].attempts), 1)
        connection, _ = self.connect()
        unplug(connection)
        self.clock.advance(RETRY_MAX_S)
        self.assertEqual(len(self.endpoints["n1"].attempts), 1)

    def test_an_absent_peer_is_reported_once(self) -> None:
        """Reported once while a peer is away, and again when it is the next time."""
        with capturedLogs() as events:
            for _ in range(5):
                self.endpoints["n1"].fail()
                self.clock.advance(RETRY_MAX_S)
            connection, _ = self.connect()
            unplug(connection)
            self.clock.advance(RETRY_MAX_S)
            self.endpoints["n1"].fail()
        reported = [event for event in events if event["log_level"] is LogLevel.warn]
        self.assertEqual([event["peer_id"] for event in reported], ["n1", "n1"])
        self.assertEqual([event for event in events if "Scheduling" in event["log_format"]], [])

    def test_connected_but_never_heard(self) -> None:
        """A port that accepts and closes is tried as seldom as one that refuses, and reported once."""
        endpoint = self.endpoints["n1"]
        with capturedLogs() as events:
            for _ in range(20):
                connection, transport = endpoint.succeed()
                unplug(connection)
                self.clock.advance(RETRY_MAX_S)
            connection, _ = endpoint.succeed()
            unplug(connection)
        self.clock.advance(RETRY_MAX_S / 2 - 0.01)
        self.assertEqual(endpoint.attempts, [])
        self.assertEqual(len([event for event in events if "connected to" in event["log_format"]]), 1)
        self.clock.advance(RETRY_MAX_S)
        connection, transport = endpoint.succeed()
        ((opaque, _),) = self.sent(transport)
        connection.dataReceived(remoting_response(MetadataResponse(), opaque))
        unplug(connection)
        self.clock.advance(0.1)
        self.assertEqual(len(endpoint.attempts), 1)

    def test_an_idle_connection_is_kept_alive(self) -> None:
        """An idle connection is asked something before the other end takes it for dead."""
        connection, transport = self.connect()
        connection.dataReceived(remoting_response(MetadataResponse(), 1))
        self.peers.sweep(59)
        self.assertEqual(self.sent(transport), [])
        self.clock.advance(60)
        self.peers.sweep(60)
        ((_, command),) = self.sent(transport)
        self.assertEqual(command.code, RequestCode.METADATA)
        self.peers.sweep(61)
        self.assertEqual(self.sent(transport), [])

    def test_sign_of_life(self) -> None:
        """A member of ours is asked something every second, unless it is asked something anyway."""
        connection, transport = self.connect()
        connection.dataReceived(remoting_response(MetadataResponse(wire_version=1), 1))
        self.peers.sweep(0)
        self.clock.advance(SIGN_OF_LIFE_S)
        self.peers.sweep(SIGN_OF_LIFE_S)
        ((opaque, request),) = self.sent(transport)
        self.assertIsInstance(request, MetadataRequest, "a native frame: nobody reads the answer")
        # Its members may be others by now, and it has no room for the id of the group: it proves nothing.
        others = MetadataResponse(wire_version=1, peers={"n7": "h:7"})
        connection.dataReceived(native_response(others, opaque))
        self.assertFalse(transport.disconnected)
        self.assertEqual((self.answered, self.failed), ([], []))
        self.send("n1", 5, BEAT)
        self.sent(transport)
        self.clock.advance(SIGN_OF_LIFE_S)
        self.peers.sweep(2 * SIGN_OF_LIFE_S)
        self.assertEqual(self.sent(transport), [])
        self.clock.advance(SIGN_OF_LIFE_S)
        self.peers.sweep(3 * SIGN_OF_LIFE_S)
        self.assertEqual(len(self.sent(transport)), 1)

    def test_a_broken_format_ends_the_connection(self) -> None:
        """Counted; the connection is ended."""
        connection, transport = self.connect()
        connection.dataReceived(b"nonsense")
        self.assertEqual(self.peers.wire_errors, 1)
        self.assertTrue(transport.disconnected)

    def test_a_stop_ends_all_connections(self) -> None:
        """Fires when the connections have ended; nothing is made again."""
        connection, transport = self.connect("n1")
        self.endpoints["n2"].fail()
        stopped = self.peers.stop()
        self.assertNoResult(stopped)
        self.assertTrue(transport.disconnecting)
        unplug(connection)
        self.successResultOf(stopped)
        self.clock.advance(10)
        self.assertEqual([endpoint.attempts for endpoint in self.endpoints.values()], [[], []])

    def test_probe_names_us(self) -> None:
        """So that the peer knows at once that an older connection of ours is dead."""
        _, transport = self.endpoints["n1"].succeed()
        ((_, command),) = self.sent(transport)
        self.assertIn(b'"localId":"n0"', command.body)
        self.assertIn(b'"remoteId":"n1"', command.body)
        self.assertEqual(MetadataRequest.kind, command.code)


class PresenceTests(PeersTestCase):
    """Whose messages may be its own."""

    def answer(self, wire_version: int = 1) -> tuple[Any, FakeTransport]:
        """n1 is reached, and answers the greeting."""
        connection, transport = self.endpoints["n1"].succeed()
        ((opaque, _),) = self.sent(transport)
        connection.dataReceived(
            remoting_response(MetadataResponse(wire_version=wire_version), opaque)
        )
        return connection, transport

    def pass_time(self, seconds: float) -> None:
        """Swept all the while."""
        for _ in range(round(seconds * 10)):
            self.clock.advance(0.1)
            self.peers.sweep(self.clock.seconds())

    def test_a_peer_is_present_after_its_answer(self) -> None:
        """From its first answer to the loss of the connection."""
        self.peers.sweep(0)
        self.assertFalse(self.peers.vouches("n1"))
        connection, _ = self.answer()
        self.assertTrue(self.peers.vouches("n1"))
        self.assertFalse(self.peers.vouches("n2"))
        unplug(connection)
        self.assertFalse(self.peers.vouches("n1"))

    def test_connected_without_an_answer(self) -> None:
        """The kernel of a frozen machine accepts connections, too."""
        self.endpoints["n1"].succeed()
        self.pass_time(0.5)
        self.assertFalse(self.peers.vouches("n1"))

    def test_a_silent_peer_is_not_present(self) -> None:
        """A member of ours answers every second; a Java member is hardly asked."""
        self.answer()
        self.pass_time(PRESENT_S - 0.2)
        self.assertTrue(self.peers.vouches("n1"))
        self.pass_time(0.4)
        self.assertFalse(self.peers.vouches("n1"))

    def test_a_connected_java_peer_is_present(self) -> None:
        """It is present while it is connected."""
        self.answer(wire_version=0)
        self.pass_time(2 * PRESENT_S)
        self.assertTrue(self.peers.vouches("n1"))

    def test_after_a_standstill(self) -> None:
        """Answers may lie unread."""
        self.answer()
        self.pass_time(0.2)
        self.clock.advance(2 * PRESENT_S)
        self.assertTrue(self.peers.vouches("n1"))
        self.pass_time(0.1)
        self.assertFalse(self.peers.vouches("n1"))

    def test_a_peer_without_address_is_present(self) -> None:
        """Nobody can be asked: the core decides whom it knows."""
        self.assertTrue(self.peers.vouches("n7"))

    def test_an_absent_speaker_is_tried_at_once(self) -> None:
        """Who is spoken for is tried at once, but not again and again, and no attempt is given up for it."""
        endpoint = self.endpoints["n1"]
        for _ in range(12):
            endpoint.fail()
            self.clock.advance(RETRY_MAX_S)
        endpoint.fail()
        self.assertFalse(self.peers.vouches("n1"))
        self.assertEqual(len(endpoint.attempts), 1)
        (attempt,) = endpoint.attempts
        self.clock.advance(2 * HURRY_S)
        self.assertFalse(self.peers.vouches("n1"))
        self.assertEqual(endpoint.attempts, [attempt])
        self.assertFalse(attempt[0].called)
        endpoint.fail()
        for _ in range(10):
            self.assertFalse(self.peers.vouches("n1"))
            while endpoint.attempts:
                endpoint.fail()
        self.assertEqual(endpoint.attempts, [])
        self.clock.advance(RETRY_MAX_S)
        self.answer()
        self.assertTrue(self.peers.vouches("n1"))
