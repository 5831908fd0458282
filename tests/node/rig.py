# -*- test-case-name: tests.node.test_node -*-
"""
A node without files, sockets, threads or real time: a disk in memory, fake clock, fake transports.

Fsyncs run when L{FakeThread.finish} is called, or at once.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any, cast

from twisted.internet.address import IPv4Address
from twisted.internet.defer import Deferred
from twisted.internet.task import Clock
from twisted.python.failure import Failure

from dledger.core.driver import Driver
from dledger.core.state.effects import SendRequest
from dledger.node.connections.peers import Peers
from dledger.node.connections.server import MemberServer
from dledger.node.host import MemberHost, NodeFiles
from dledger.node.node import MakeDriver, Node
from dledger.storage.files.term_file import TermVote
from dledger.storage.store.file_store import FileStore
from dledger.testing.world.memory_disk import MemoryDisk
from dledger.values.ledger.config import DLedgerConfig
from protocols.ledger.connection import ServerConnection
from protocols.wire.ledger.codes import PushType, RequestCode
from protocols.wire.ledger.messages import MetadataResponse, PushEntryRequest, Request
from protocols.wire.ledger.push_layout import KINDS
from tests.protocols.fakes import FakeTransport, native_request, plug, remoting_request, sent_messages

PEERS = "n0-h:1;n1-h:2;n2-h:3"


class ForgetfulTerms:
    """Term and vote, which nobody saves."""

    def save(self, term: int, voted_for: str | None) -> None:
        """Do nothing."""

    def check_point(self) -> None:
        """Do nothing."""


def commit(remote_id: str = "n0", local_id: str | None = "n1", term: int = 1) -> PushEntryRequest:
    """A COMMIT of a leader n1."""
    return PushEntryRequest(
        group="default", remote_id=remote_id, local_id=local_id, leader_id="n1", term=term,
        type=PushType.COMMIT,
    )


class FakeThread:
    """
    Runs its work when asked to, or at once.

    @ivar is_lazy: wait for L{finish}.
    """

    def __init__(self) -> None:
        self.is_lazy = False
        self.waiting: list[tuple[Deferred[None], Callable[[], None]]] = []

    def run(self, call: Callable[[], None]) -> Deferred[None]:
        """See L{dledger.node.work.flush.RunInThread}."""
        done: Deferred[None] = Deferred()
        self.waiting.append((done, call))
        if not self.is_lazy:
            self.finish()
        return done

    def finish(self, error: BaseException | None = None) -> None:
        """The first one ends, well or with C{error}."""
        done, call = self.waiting.pop(0)
        if error is not None:
            done.errback(Failure(error))
            return
        try:
            call()
        except Exception:
            done.errback(Failure())
            return
        done.callback(None)


class FakeClient:
    """Somebody who has connected to the node."""

    def __init__(self, rig: Rig, host: str = "") -> None:
        """@param host: where it comes from; empty: from another machine."""
        self.rig = rig
        connection = rig.server.buildProtocol(None)
        assert isinstance(connection, ServerConnection)
        self.connection = connection
        self.transport: FakeTransport = plug(connection)
        if host:
            self.transport.peerAddr = IPv4Address("TCP", host, 4711)
        self.kinds: dict[int, RequestCode] = {}
        self.opaque = 0

    def send(self, *requests: Request, native: bool = True) -> None:
        """All in one read."""
        frames = []
        for request in requests:
            self.opaque += 1
            self.kinds[self.opaque] = request.kind
            make = native_request if native and request.kind in KINDS else remoting_request
            frames.append(make(request, self.opaque))
        self.connection.dataReceived(b"".join(frames))

    def answers(self) -> list[Any]:
        """What came back since the last time, as messages, in the order in which it came."""
        self.rig.clock.advance(0)
        data = self.transport.value()
        self.transport.clear()
        return [message for _, message in sent_messages(data, self.kinds)]

    def ask(self, request: Request, *, native: bool = True) -> Any:
        """One question whose answer comes in the same turn."""
        self.send(request, native=native)
        (answer,) = self.answers()
        return answer


class Rig:
    """A node and its parts."""

    def __init__(
        self, *, peers: str = "n0-127.0.0.1:20911", make_driver: MakeDriver = Driver, **options: Any
    ) -> None:
        self.clock = Clock()
        self.wall_s = 1e9
        small = {"mapped_file_size_for_entry_data": 65536, "mapped_file_size_for_entry_index": 32000}
        options = {"bootstrap": True, **small, **options}
        self.config = DLedgerConfig(peers=peers, **options)
        self.store = FileStore.open(self.config, MemoryDisk())
        self.thread = FakeThread()
        self.sent: list[tuple[str, int, Request]] = []
        self.node = Node(
            config=self.config,
            files=NodeFiles(store=self.store, terms=ForgetfulTerms(), vote=TermVote()),
            host=MemberHost(
                clock=self.clock, rng=random.Random(1), run_in_thread=self.thread.run,
                wall_clock=lambda: (self.wall_s, 4),
            ),
            make_driver=make_driver,
        )
        self.server = MemberServer(self.node.router, self.node.turn, note=self.node.note)
        self.peers = FakePeers(self)
        self.node.connect(peers=self.peers, server=self.server)

    def lead(self) -> Rig:
        """Start, and let time pass until the only member leads."""
        self.node.start()
        for _ in range(200):
            if self.node.status().member.role == "leader":
                break
            self.clock.advance(0.02)
        return self

    def feed_requests_to(self, take: Callable[..., None]) -> None:
        """The core does not hear of requests; C{take} does."""
        router: Any = self.node.router
        router._feed = router.questions._feed = take

    def client(self, host: str = "") -> FakeClient:
        """Somebody connects. @param host: from there; empty: from another machine."""
        return FakeClient(self, host)

    def base(self, **fields: Any) -> dict[str, Any]:
        """Base fields of a client's request to this member."""
        return {"group": self.config.group, "remote_id": self.config.self_id, **fields}


class FakePeers(Peers):
    """
    Peers that remember what is sent to them and never answer by themselves.

    @ivar absent: those that cannot be reached.
    @ivar asked_again: those that are to report their knowledge.
    """

    def __init__(self, rig: Rig) -> None:
        super().__init__(
            config=rig.config, dial=lambda _peer_id, _address: cast("Any", None), clock=rig.clock,
            turn=rig.node.turn, rng=random.Random(1),
            feed=rig.node.driver.feed, greeting=rig.node.greeting,
        )
        self._rig = rig
        self.absent: set[str] = set()
        self.asked_again: list[str] = []
        self.swept: list[float] = []

    def vouches(self, peer_id: str) -> bool:
        """Unless it is absent."""
        return peer_id not in self.absent

    def ask_again(self, peer_id: str) -> None:
        """Remember."""
        self.asked_again.append(peer_id)

    def answer(self, peer_id: str, response: MetadataResponse) -> None:
        """The member says so at its own address."""
        self._notify(peer_id, response)

    def send(self, effect: SendRequest) -> None:
        """Remember."""
        self._rig.sent.append((effect.peer_id, effect.request_id, effect.request))

    def sweep(self, now_s: float) -> None:
        """Remember."""
        self.swept.append(now_s)
