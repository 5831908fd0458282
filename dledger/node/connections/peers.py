# -*- test-case-name: tests.node.test_peers,tests.node.test_peer_links -*-
"""
This member's connections to the other members: one each, ordered, reconnected when lost.

Rule 1: requests to one peer arrive in the order in which they were sent, or never. Without a
connection a request fails at once; it is not kept for the next connection.
Rule 2: every request ends once, as an answer or as a failure, which is an input of the core, and never before
C{send} has returned.
Rule 3: a connection begins with a METADATA request; its answer says whether the peer understands
native frames. With C{wire=auto} requests are JSON until then.
Rule 4: that answer also names the peer's group and its list of members. If they are not ours, the connection
ends before any later answer counts, see L{dledger.node.connections.greeting}.
Rule 5: an idle connection to a member of ours carries a METADATA request every L{SIGN_OF_LIFE_S}, so that
the peer knows it to live, and lets no other connection speak for this member.
Rule 6: what a member reports counts from its own address only: if one that calls seems to know more, it is
asked there, at most once in L{ASK_AGAIN_S}.
Rule 7: a member is I{present} while its own address answers: a message in its name while it is not present
comes from somebody else, or will be repeated when this member has reached it. See L{Peers.vouches}.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping

from twisted.internet.defer import Deferred, fail, gatherResults
from twisted.internet.interfaces import (
    IAddress,
    IReactorTime,
    IStreamClientEndpoint,
)
from twisted.internet.protocol import Factory
from twisted.logger import Logger

from dledger.core.state.effects import SendRequest
from dledger.core.state.inputs import PeerConnected, RequestFailed, ResponseReceived
from dledger.node.connections.greeting import Greeting
from dledger.node.connections.redial import Redial
from dledger.node.connections.server import STOOD_STILL_S
from dledger.values.errors import DLedgerError
from dledger.values.ledger.config import DLedgerConfig
from protocols.connection import IDLE_S, TLS_LOSS
from protocols.ledger.connection import ClientConnection
from protocols.turn import Turn
from protocols.wire.codes import ResponseCode
from protocols.wire.errors import WireError
from protocols.wire.ledger.codes import WIRE_VERSION
from protocols.wire.ledger.messages import MetadataRequest, MetadataResponse, Request, Response, VoteRequest
from protocols.wire.remoting import RemotingCommand

#: Most seconds between two requests on a connection to a member of ours.
SIGN_OF_LIFE_S = 1.0

#: A member of ours that has answered nothing for this many seconds is not present.
PRESENT_S = 4.0

#: A member is asked for its list, because a caller in its name seems to have a later one, not sooner than
#: this after the last time, seconds.
ASK_AGAIN_S = 0.2

#: Tokens of the METADATA requests of this module; the core's ids are positive. The answer to the first kind
#: says whether the peer belongs to the group. That to the second does not: a native one has no room for the
#: id of the group. Below it are the tokens of L{Peers.ask}.
PROBE = 0
SIGN_OF_LIFE = -1

#: Makes the endpoint to a member from its id and its C{host:port}.
Dial = Callable[[str, str], IStreamClientEndpoint]
Reported = Callable[[str, MetadataResponse], None]


class Peers:
    """
    The connections to all other members.

    @param dial: makes the endpoint to a member.
    @param feed: takes inputs for the core: the outcome of every request that L{send} takes, once, and new
        connections, before any request on them.
    """

    def __init__(
        self,
        *,
        config: DLedgerConfig,
        dial: Dial,
        clock: IReactorTime,
        turn: Turn,
        rng: random.Random,
        feed: Callable[..., None],
        greeting: Greeting,
    ) -> None:
        def make(peer_id: str, address: str) -> _Peer:
            return _Peer(
                peer_id, Redial(peer_id, dial(peer_id, address), clock, rng), config=config, turn=turn,
                feed=feed, greeting=greeting, reported=lambda greeted: self._notify(peer_id, greeted),
            )

        self._notify: Reported = lambda _peer_id, _greeted: None
        self._make = make
        self._turn = turn
        self._feed = feed
        self._peers: dict[str, _Peer] = {}
        self._addresses: dict[str, str] = {}
        self._strays: list[tuple[str, int]] = []
        self._leaving: list[Deferred[None]] = []
        self._is_started = False

    def follow(self, addresses: Mapping[str, str]) -> None:
        """Be connected to these members, id to C{host:port}, from now on, and to no others."""
        for peer_id in [one for one, there in self._addresses.items() if addresses.get(one) != there]:
            del self._addresses[peer_id]
            peer = self._peers.pop(peer_id)
            if self._is_started:
                self._leaving = [one for one in self._leaving if not one.called]
                self._leaving.append(peer.stop())
        for peer_id, address in addresses.items():
            if peer_id not in self._peers:
                self._addresses[peer_id] = address
                peer = self._peers[peer_id] = self._make(peer_id, address)
                if self._is_started:
                    peer.start()

    def notify_with(self, notify: Reported) -> None:
        """Set the function that hears the answer of each member to a greeting."""
        self._notify = notify

    def ask_again(self, peer_id: str) -> None:
        """Ask a connected member for its list, soon."""
        peer = self._peers.get(peer_id)
        if peer is not None:
            peer.ask_again()

    def greet(self, peer_id: str | None = None) -> None:
        """Send a connected member, or every one, what there is to say about this one."""
        for known_id, peer in self._peers.items():
            if peer_id in (None, known_id):
                peer.greet()

    def start(self) -> None:
        """Start connecting."""
        self._is_started = True
        for peer in self._peers.values():
            peer.start()

    def stop(self) -> Deferred[None]:
        """@return: fires when every connection has ended."""
        stopping = [peer.stop() for peer in self._peers.values()] if self._is_started else []
        return gatherResults([*stopping, *self._leaving]).addCallback(lambda _: None)

    def abort(self, reason: str) -> None:
        """End the connections now; C{stop} must still be called."""
        for peer in self._peers.values():
            peer.abort(reason)

    def send(self, effect: SendRequest) -> None:
        """Send a request of the core after the earlier ones; its outcome is fed later."""
        peer = self._peers.get(effect.peer_id)
        if peer is None:
            if not self._strays:
                self._turn.work(self._notify_strays)
            self._strays.append((effect.peer_id, effect.request_id))
            return
        connection, request, peer.was_used = peer.connection, effect.request, True
        if connection is None:
            peer.refuse(effect.request_id, "not connected")
        elif (
            type(request) is VoteRequest and request.pre_vote
            and not connection.is_native and connection.peer_wire_version < 1
        ):
            # Java would count this as a vote, and the peer may be another program than before.
            peer.refuse(effect.request_id, "the peer has not advertised pre-votes on this connection")
        elif not connection.ask(request, effect.request_id):
            peer.refuse(effect.request_id, "too many requests are outstanding, or too many bytes unsent")

    def ask(self, peer_id: str, request: Request) -> Deferred[Response]:
        """
        Ask for a part of this member that is not its core. Cancelling forgets the request.

        @return: fires with the answer; fails with L{DLedgerError}, NETWORK_ERROR: there is none.
        """
        peer = self._peers.get(peer_id)
        return _no_answer("its address is not known") if peer is None else peer.ask(request)

    def reported(self, peer_id: str) -> MetadataResponse | None:
        """What the member has reported last, since it got its present address; None: nothing yet."""
        peer = self._peers.get(peer_id)
        return None if peer is None else peer.reported

    def _notify_strays(self) -> None:
        strays, self._strays = self._strays, []
        self._feed(*[
            RequestFailed(peer_id=peer_id, request_id=request_id, reason="its address is not known")
            for peer_id, request_id in strays
        ])

    def vouches(self, peer_id: str) -> bool:
        """
        Whether a message in the name of C{peer_id} may be its own: its address answers this member. If it
        does not, a new attempt to reach it begins soon. A member whose address is not known passes.
        """
        peer = self._peers.get(peer_id)
        return peer is None or peer.vouches()

    def sweep(self, now_s: float) -> None:
        """Fail overdue requests, end silent connections, keep idle ones alive. Called regularly."""
        for peer in self._peers.values():
            peer.sweep(now_s)

    @property
    def connected(self) -> dict[str, bool]:
        """Peer id to whether there is a connection to it."""
        return {peer_id: peer.is_connected for peer_id, peer in self._peers.items()}

    @property
    def wire_errors(self) -> int:
        """Number of connections aborted because the peer broke the format."""
        return sum(peer.wire_errors for peer in self._peers.values())


class _Peer(Factory):
    """
    One peer: the way to it, and the current connection.

    Invariant: C{connection} is the newest connection, and None once it is lost.

    @ivar was_used: whether it was asked anything since the last sweep.
    """

    log = Logger()
    noisy = False
    read_ended = None

    def __init__(
        self,
        peer_id: str,
        redial: Redial,
        *,
        config: DLedgerConfig,
        turn: Turn,
        feed: Callable[..., None],
        greeting: Greeting,
        reported: Callable[[MetadataResponse], None],
    ) -> None:
        self._greeting = greeting
        self._notify_reported = reported
        self._peer_id = peer_id
        self._redial = redial
        self._config = config
        self._turn = turn
        self._feed = feed
        self._is_foreign = False
        self.connection: ClientConnection[int] | None = None
        self._refused: list[tuple[int, str]] = []
        self._probed_s = 0.0
        self._heard_s = self._swept_s = 0.0
        self._asked_again_s = -ASK_AGAIN_S
        self._is_to_ask = False
        self.was_used = False
        self._asked: dict[int, Deferred[Response]] = {}
        self._last_token = SIGN_OF_LIFE
        self.reported: MetadataResponse | None = None
        self.wire_errors = 0

    @property
    def is_connected(self) -> bool:
        return self.connection is not None

    def vouches(self) -> bool:
        """Whether it is present. If not, the next attempt to connect does not wait."""
        connection, now_s = self.connection, self._turn.seconds()
        if connection is not None and not self._redial.unheard and (
            now_s - self._heard_s < PRESENT_S
            or connection.peer_wire_version < 1  # Java members are asked once a minute only
            # (A member that stood still has not read the answers that came meanwhile.)
            or now_s - self._swept_s > STOOD_STILL_S
        ):
            return True
        self._redial.hurry(now_s)
        return False

    def start(self) -> None:
        self._redial.start(self)

    def stop(self) -> Deferred[None]:
        return self._redial.stop()

    def abort(self, reason: str) -> None:
        if self.connection is not None:
            self.connection.abort(reason)

    def buildProtocol(self, addr: IAddress | None) -> ClientConnection[int]:
        connection: ClientConnection[int] = ClientConnection(self, self._turn, wire=self._config.wire)
        connection.factory = self
        return connection

    def ask(self, request: Request) -> Deferred[Response]:
        self._last_token -= 1
        token, connection, self.was_used = self._last_token, self.connection, True
        if connection is None:
            return _no_answer("not connected")
        if not connection.ask(request, token):
            return _no_answer("too many requests are outstanding, or too many bytes unsent")

        def forget(_: Deferred[Response]) -> None:
            self._asked.pop(token, None)

        waiter = self._asked[token] = Deferred(forget)
        return waiter

    def refuse(self, request_id: int, reason: str) -> None:
        """A request was not sent."""
        if not self._refused:
            # Reported at the end of the turn, because the sender is in the middle of a step.
            self._turn.work(self._notify_refused)
        self._refused.append((request_id, reason))

    def _notify_refused(self) -> None:
        refused, self._refused = self._refused, []
        self._feed_failed(refused)

    def _feed_failed(self, failed: list[tuple[int, str]], *, is_incompatible: bool = False) -> None:
        """
        The peer will not answer these requests.

        @param failed: request ids and reasons.
        @param is_incompatible: it answered them, in another version of the protocol.
        """
        self._feed(*[
            RequestFailed(
                peer_id=self._peer_id, request_id=request_id, reason=reason, is_incompatible=is_incompatible
            )
            for request_id, reason in failed
        ])

    def sweep(self, now_s: float) -> None:
        self._swept_s = now_s
        connection = self.connection
        if connection is None:
            return
        connection.sweep(now_s, self._config.rpc_time_out_ms / 1000)
        if self._is_to_ask:
            self.ask_again()
        if self.was_used:
            self.was_used = False
            self._probed_s = now_s
        wait_s = SIGN_OF_LIFE_S if connection.peer_wire_version >= 1 else IDLE_S / 2
        if now_s - self._probed_s >= wait_s and not connection.is_lost:
            self._probe(connection)

    def greet(self) -> None:
        """The members of the group are others: inform the peer, which may not know this member yet."""
        if self.connection is not None:
            self._probe(self.connection, is_sign_of_life=False)

    def ask_again(self) -> None:
        """A caller in its name seems to have a later list."""
        now_s = self._turn.seconds()
        self._is_to_ask = now_s - self._asked_again_s < ASK_AGAIN_S
        if not self._is_to_ask:
            self._asked_again_s = now_s
            self.greet()

    def _probe(self, connection: ClientConnection[int], *, is_sign_of_life: bool = True) -> None:
        self._probed_s = self._turn.seconds()
        config = self._config
        request = self._greeting.call(MetadataRequest(
            group=config.group, remote_id=self._peer_id, local_id=config.self_id, wire_version=WIRE_VERSION,
        ))
        token = SIGN_OF_LIFE if is_sign_of_life else PROBE
        connection.ask(request, token, is_sign_of_life=is_sign_of_life)

    # -- AnswerSink of the connection --------------------------------------------------------

    def connected(self, connection: ClientConnection[int]) -> None:
        previous, self.connection = self.connection, connection
        if previous is not None:
            previous.abort("there is a newer connection")
        if self._redial.connected():
            self.log.info(
                "connected to peer {peer_id} at {address}", peer_id=self._peer_id, address=connection.address
            )
        self._feed(PeerConnected(peer_id=self._peer_id))
        self._probe(connection, is_sign_of_life=False)

    def answers_received(
        self, connection: ClientConnection[int], answers: list[tuple[int, Response]]
    ) -> None:
        reported: MetadataResponse | None = None
        if answers[0][0] <= PROBE or (answers[1:] and [one for one in answers if one[0] <= PROBE]):
            greetings = [answer for token, answer in answers if token == PROBE]
            beside = [answer for answer in answers if answer[0] < PROBE]
            answers = [answer for answer in answers if answer[0] > PROBE]
            for greeting in greetings:
                assert isinstance(greeting, MetadataResponse)
                problem = self._greeting.problem_of_answer(
                    greeting, peer_id=self._peer_id, is_whole=self._config.wire != "binary"
                )
                if problem:
                    self._foreign(connection, [token for token, _ in [*answers, *beside]], problem)
                    return
                self._is_foreign = False
                self.reported = reported = greeting
            self._answered_beside(beside)
        self._redial.unheard = 0
        self._heard_s = self._turn.seconds()
        if answers:
            self._feed(*[
                ResponseReceived(peer_id=self._peer_id, request_id=request_id, response=response)
                for request_id, response in answers
            ])
        if reported is not None:  # last: this may end the connection, because the member is elsewhere now
            self._notify_reported(reported)

    def _answered_beside(self, answers: list[tuple[int, Response]]) -> None:
        """Answers to signs of life, and to L{ask}."""
        for token, answer in answers:
            if token == SIGN_OF_LIFE:
                assert isinstance(answer, MetadataResponse)
                self.reported = answer
            elif token in self._asked:
                self._asked.pop(token).callback(answer)

    def _foreign(self, connection: ClientConnection[int], tokens: list[int], problem: str) -> None:
        """
        The peer is of another group: logged once, and tried again at the slowest pace.

        @param tokens: of the requests whose answers came with the greeting, and do not count.
        """
        self._notify_failed(tokens, problem, is_incompatible=False)
        if not self._is_foreign:
            self._is_foreign = True
            self.log.error(
                "peer {peer_id} at {address} does not belong to this group: {problem}",
                peer_id=self._peer_id, address=connection.address, problem=problem,
            )
        connection.abort(problem)

    def requests_failed(
        self, connection: ClientConnection[int], tokens: list[int], reason: str, *,
        is_incompatible: bool = False, answer: RemotingCommand | None = None,
    ) -> None:
        self._notify_failed(tokens, reason, is_incompatible=is_incompatible)

    def _notify_failed(self, tokens: list[int], reason: str, *, is_incompatible: bool) -> None:
        failed = [(token, reason) for token in tokens if token > PROBE]
        if failed:
            self._feed_failed(failed, is_incompatible=is_incompatible)
        for token in tokens:
            waiter = self._asked.pop(token, None)
            if waiter is not None:
                waiter.errback(DLedgerError(ResponseCode.NETWORK_ERROR, reason=reason))

    def wire_broken(self, connection: ClientConnection[int], error: WireError) -> None:
        self.wire_errors += 1
        self.log.error(
            "peer {peer_id} at {address} broke the format, connection aborted: {reason}",
            peer_id=self._peer_id, address=connection.address, reason=str(error),
        )

    def connection_lost(self, connection: ClientConnection[int], reason: str) -> None:
        if self.connection is connection:
            self.connection = None
            self._greeting.lost(self._peer_id)
            if not self._redial.lost():
                return  # only the end of the first of them is logged
            notify = self.log.warn if reason.startswith(TLS_LOSS) else self.log.info
            notify("connection to peer {peer_id} ended: {reason}", peer_id=self._peer_id, reason=reason)


def _no_answer(reason: str) -> Deferred[Response]:
    return fail(DLedgerError(ResponseCode.NETWORK_ERROR, reason=reason))
