# -*- test-case-name: tests.client.test_client -*-
"""Members without sockets: a group of scripted ones, and wires that deliver when asked to."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from twisted.internet.defer import Deferred, fail, succeed
from twisted.internet.error import ConnectionDone, ConnectionRefusedError
from twisted.internet.task import Clock
from twisted.python.failure import Failure

from dledger.client.client import LogClient
from dledger.core.replication.appends import REFUSALS
from dledger.node.requests import reader_rules as rules
from dledger.values.errors import DLedgerError
from dledger.values.ledger.group_state import GroupFold, GroupState, Known, Marked
from protocols.wire.codes import ResponseCode
from protocols.wire.framing import FrameBuffer
from protocols.wire.ledger.batches import EntryBatch
from protocols.wire.ledger.codes import WIRE_VERSION, RequestCode
from protocols.wire.ledger.entry import pack_record
from protocols.wire.ledger.java.json_bodies import decode_request, encode_response
from protocols.wire.ledger.machines import (
    QueryRequest,
    QueryResponse,
    SkipRequest,
    SkipResponse,
    SubmitRequest,
    SubmitResponse,
)
from protocols.wire.ledger.messages import (
    AppendIfRequest,
    AppendIfResponse,
    AppendOnceRequest,
    AppendOnceResponse,
    AppendRequest,
    AppendResponse,
    BeginStateRequest,
    BeginStateResponse,
    GetRequest,
    GetResponse,
    LeadershipTransferRequest,
    LeadershipTransferResponse,
    MembershipRequest,
    MembershipResponse,
    MetadataRequest,
    MetadataResponse,
    PullRequest,
    PullResponse,
    ReaderRequest,
    ReaderResponse,
    Request,
    Response,
    SequenceRequest,
    SequenceResponse,
)
from protocols.wire.ledger.own.own_entries import READER_CHANNEL, SESSION_CHANNEL, TIME_CHANNEL, slot_channels
from protocols.wire.ledger.own.session_entries import Session, encode_session_entry
from protocols.wire.ledger.own.time_entries import encode_time_entry
from protocols.wire.ledger.push import decode_frame, encode_response_frame
from protocols.wire.remoting import RemotingCommand, decode_command, encode_command
from tests.client.fake_readers import FakeHandler
from tests.wire.marked import marked


class Wire:
    """The client's end of a connection; also its transport."""

    def __init__(self, member: FakeMember, protocol: Any) -> None:
        self.member = member
        self.protocol = protocol
        self.outbox = bytearray()
        self.frames = FrameBuffer()
        self.is_open = True
        self.is_ending = False

    def registerProducer(self, producer: Any, streaming: bool) -> None:
        pass

    def unregisterProducer(self) -> None:
        pass

    def write(self, data: bytes) -> None:
        assert self.is_open
        self.outbox += data

    def writeSequence(self, pieces: list[bytes]) -> None:
        self.write(b"".join(pieces))

    def loseConnection(self) -> None:
        self.is_ending = True

    abortConnection = loseConnection

    def lose(self) -> None:
        """The connection breaks now; what was not delivered is lost."""
        if self.is_open:
            self.is_open = False
            self.member.wires.remove(self)
            self.protocol.connectionLost(Failure(ConnectionDone()))


class Answerer:
    """One request that waits for its answer."""

    def __init__(self, wire: Wire, opaque: int, native: bool, request: Request) -> None:
        self.wire = wire
        self.opaque = opaque
        self.native = native
        self.request = request

    def send(self, response: Response) -> None:
        """Answer, if the connection is still open."""
        if not self.wire.is_open:
            return
        if self.native:
            data = encode_response_frame(response, self.opaque)
        else:
            data = encode_command(
                RemotingCommand(code=200, flag=1, opaque=self.opaque, body=encode_response(response))
            )
        self.wire.protocol.dataReceived(data)


class FakeMember:
    """
    A member that does as it is asked.

    @ivar held: requests that C{holds} said are to wait; answered by the test.
    @ivar refusals: codes for the next appends, before any is accepted.
    """

    def __init__(self, group: FakeGroup, member_id: str) -> None:
        self.group = group
        self.member_id = member_id
        self.is_up = True
        self.is_silent = False
        self.is_stopping = False
        self.wire_version = WIRE_VERSION
        self.leader_id: str | None = "n0"
        self.term = 1
        self.begin_index = 0
        self.committed_index: int | None = None  # None: as far as the group
        self.refusals: deque[ResponseCode] = deque()
        self.holds: Callable[[Request], bool] = lambda request: False
        self.held: list[Answerer] = []
        self.polls: list[tuple[float, Answerer]] = []
        self.refuses_polls = False
        self.remoting_refusals: deque[int] = deque()
        self.answer_transfer: Response | None = None
        self.answer_change: Response | None = None
        self.wires: list[Wire] = []
        self.received: list[Request] = []
        self.formats: list[str] = []
        self.admin = self.health = self.version = self.group_id = ""

    @property
    def end(self) -> int:
        """Its committed index."""
        return len(self.group.log) - 1 if self.committed_index is None else self.committed_index

    def deliver(self, wire: Wire) -> bool:
        """Take what is in the outbox; whether there was anything."""
        if wire.is_ending:
            wire.lose()
            return True
        data = bytes(wire.outbox)
        wire.outbox.clear()
        for kind, frame in wire.frames.feed(data):
            if kind == "native":
                opaque, request = decode_frame(frame)
            else:
                command = decode_command(frame)
                opaque = command.opaque
                request = decode_request(RequestCode(command.code), command.body)
            assert isinstance(request, Request)
            self.received.append(request)
            self.formats.append(kind)
            answerer = Answerer(wire, opaque, kind == "native", request)
            if self.remoting_refusals and isinstance(request, AppendRequest):
                code = self.remoting_refusals.popleft()
                refusal = RemotingCommand(code=code, flag=1, opaque=opaque, remark="refused")
                wire.protocol.dataReceived(encode_command(refusal))
            elif self.is_silent or self.holds(request):
                self.held.append(answerer)
            elif isinstance(request, PullRequest) and request.wait_ms and not self.refuses_polls:
                self.polls.append((self.group.clock.seconds() + request.wait_ms / 1000, answerer))
            else:
                answerer.send(self.answer(request))
        return bool(data)

    def end_polls(self) -> bool:
        """Answer long polls for which there is something, or that have waited long enough."""
        now_s = self.group.clock.seconds()
        for at, (deadline_s, answerer) in enumerate(self.polls):
            assert isinstance(answerer.request, PullRequest)
            answer = self.answer(answerer.request)
            assert isinstance(answer, PullResponse)
            is_due = answer.entries is not None or answer.code != 200 or now_s >= deadline_s
            if is_due or not answerer.wire.is_open:
                del self.polls[at]
                answerer.send(answer)
                return True
        return False

    def release(self, count: int = 1) -> None:
        """Answer the oldest held requests after all."""
        for _ in range(count):
            answerer = self.held.pop(0)
            answerer.send(self.answer(answerer.request))

    def lose_connections(self) -> None:
        """Break every connection."""
        for wire in list(self.wires):
            wire.lose()

    def answer(self, request: Request) -> Response:
        """What a member answers."""
        base: dict[str, Any] = {"group": request.group, "leader_id": self.leader_id}
        if isinstance(request, MetadataRequest):
            if request.remote_id != self.member_id:
                return MetadataResponse(code=ResponseCode.UNKNOWN_MEMBER)
            if self.is_stopping:
                return MetadataResponse(code=ResponseCode.NOT_LEADER, peers=self.group.peers, **base)
            if not self.wire_version:
                return MetadataResponse(peers=self.group.peers, **base)
            return MetadataResponse(
                peers=self.group.peers, wire_version=self.wire_version, term=self.term,
                begin_index=self.begin_index, end_index=self.end, committed_index=self.end,
                role="leader" if self.leader_id == self.member_id else "follower",
                admin=self.admin, health=self.health, version=self.version, group_id=self.group_id,
                is_group_known=bool(self.group_id), has_times=self.group.has_times,
                time_resets=self.group.time_resets, **base,
            )
        if isinstance(request, AppendRequest):
            return self.append(request, base)
        if isinstance(request, AppendIfRequest):
            return self.append_if(request, base)
        if isinstance(request, AppendOnceRequest):
            return self.append_once(request, base)
        if isinstance(request, SubmitRequest):
            return self.submit(request, base)
        if isinstance(request, SkipRequest):
            if request.index != 4:
                return SkipResponse(code=ResponseCode.UNEXPECTED_ARGUMENT, reason="4 failed, not 3", **base)
            return SkipResponse(index=5, **base)
        if isinstance(request, BeginStateRequest):
            if not request.insists:
                return BeginStateResponse(
                    code=ResponseCode.UNEXPECTED_ARGUMENT, reason="n2 has the state", **base
                )
            return BeginStateResponse(index=6, **base)
        if isinstance(request, QueryRequest):
            return self.query(request, base)
        if isinstance(request, ReaderRequest):
            return self.keep_reader(request, base)
        if isinstance(request, SequenceRequest):
            code, last, index = self.group.sequences.get(
                request.producer, (ResponseCode.UNKNOWN_PRODUCER, -1, -1))
            if self.leader_id != self.member_id:
                code = ResponseCode.NOT_LEADER
            return SequenceResponse(code=code, last_sequence=last, index=index, **base)
        if isinstance(request, GetRequest):
            return self.get(request, base)
        if isinstance(request, PullRequest):
            return self.pull(request, base)
        if isinstance(request, MembershipRequest):
            return self.answer_change or MembershipResponse(reason="done", **base)
        assert isinstance(request, LeadershipTransferRequest)
        return self.answer_transfer or LeadershipTransferResponse(term=request.term + 1)

    def append(self, request: AppendRequest, base: dict[str, Any]) -> Response:
        """Refuse as scripted, else append."""
        if self.refusals:
            return AppendResponse(code=self.refusals.popleft(), **base)
        if self.leader_id != self.member_id:
            return AppendResponse(code=ResponseCode.NOT_LEADER, **base)
        index = len(self.group.log)
        self.group.log += request.bodies
        return AppendResponse(index=index, pos=100 * index, count=len(request.bodies), term=self.term, **base)

    def append_if(self, request: AppendIfRequest, base: dict[str, Any]) -> Response:
        """Refuse as scripted, else append if the log ends where the client expects it."""
        if self.refusals:
            return AppendIfResponse(code=self.refusals.popleft(), **base)
        if self.leader_id != self.member_id:
            return AppendIfResponse(code=ResponseCode.NOT_LEADER, **base)
        index = len(self.group.log)
        if request.expected_end != index - 1:
            return AppendIfResponse(code=ResponseCode.CONFLICT, end_index=index - 1, **base)
        assert request.body is not None
        self.group.log.append(request.body)
        return AppendIfResponse(index=index, pos=100 * index, term=self.term, **base)

    def append_once(self, request: AppendOnceRequest, base: dict[str, Any]) -> Response:
        """Refuse as scripted, else append each sequence once."""
        if self.refusals:
            return AppendOnceResponse(code=self.refusals.popleft(), **base)
        if self.leader_id != self.member_id:
            return AppendOnceResponse(code=ResponseCode.NOT_LEADER, **base)
        count = len(request.bodies)
        known, index, found, last = self.group.fold.judge(
            request.producer, request.sequence, count
        )
        if known is Known.NEW:
            index = self.group.append_numbered(request.producer, request.sequence, request.bodies)
            found = count
        elif known is not Known.REPEATED:
            return AppendOnceResponse(code=REFUSALS[known], last_sequence=last, **base)
        elif self.group.log[index] != request.bodies[0]:
            return AppendOnceResponse(
                code=ResponseCode.SEQUENCE_TAKEN, index=index, last_sequence=last, **base
            )
        return AppendOnceResponse(
            index=index, pos=100 * index, count=found, term=self.term,
            is_repeated=known is Known.REPEATED, **base,
        )

    def submit(self, request: SubmitRequest, base: dict[str, Any]) -> Response:
        """Append, and answer with the command after its index."""
        if self.refusals:
            return SubmitResponse(code=self.refusals.popleft(), reason="scripted", index=7, **base)
        if self.leader_id != self.member_id:
            return SubmitResponse(code=ResponseCode.NOT_LEADER, **base)
        assert request.command is not None
        origin = (request.producer, request.sequence)
        index = self.group.commands.get(origin, -1) if request.producer else -1
        if index < 0:
            if request.sequence > 0 and (request.producer, request.sequence - 1) not in self.group.commands:
                return SubmitResponse(code=ResponseCode.UNKNOWN_PRODUCER, **base)
            self.group.log.append(request.command)
            index = self.group.commands[origin] = len(self.group.log) - 1
        command = self.group.log[index]
        return SubmitResponse(index=index, term=self.term, result=b"%d:%s" % (index, command), **base)

    def query(self, request: QueryRequest, base: dict[str, Any]) -> Response:
        """The question, after the name of the member."""
        if self.refusals:
            return QueryResponse(code=self.refusals.popleft(), reason="scripted", **base)
        if request.max_age_ms < 0 and self.leader_id != self.member_id:
            return QueryResponse(code=ResponseCode.NOT_LEADER, **base)
        assert request.query is not None
        return QueryResponse(result=self.member_id.encode() + b" " + request.query, applied_index=3, **base)

    def keep_reader(self, request: ReaderRequest, base: dict[str, Any]) -> Response:
        """As a leader does, without another member."""
        if self.leader_id != self.member_id:
            return ReaderResponse(code=ResponseCode.NOT_LEADER, **base)
        try:
            return self.group.handler.answer(request, rules.Span(self.begin_index, self.end), base)
        except DLedgerError as error:
            return ReaderResponse(code=error.code, reason=str(error.facts.get("reason", "")), **base)

    def get(self, request: GetRequest, base: dict[str, Any]) -> Response:
        """One entry."""
        index = request.begin_index
        assert index is not None
        if self.leader_id != self.member_id and (
            request.consistency == "linearizable" or not self.wire_version
        ):
            return GetResponse(code=ResponseCode.NOT_LEADER, **base)
        if index < self.begin_index:
            return GetResponse(code=ResponseCode.INDEX_LESS_THAN_LOCAL_BEGIN, **base)
        if index > self.end:
            return GetResponse(code=ResponseCode.INDEX_OUT_OF_RANGE, **base)
        return GetResponse(entries=self.group.batch(index, 1), **base)

    def pull(self, request: PullRequest, base: dict[str, Any]) -> Response:
        """Up to two entries at a time."""
        numbers = {"ledger_begin_index": self.begin_index, "committed_index": self.end}
        if request.begin_index < self.begin_index:
            return PullResponse(code=ResponseCode.INDEX_LESS_THAN_LOCAL_BEGIN, **numbers, **base)
        end = self.end if request.end_index < 0 else min(self.end, request.end_index)
        count = min(2, end - request.begin_index + 1)
        entries = self.group.batch(request.begin_index, count) if count > 0 else None
        return PullResponse(entries=entries, **numbers, **base)


class _Endpoint:
    def __init__(self, group: FakeGroup, address: str) -> None:
        self.group = group
        self.address = address

    def connect(self, factory: Any) -> Deferred[Any]:
        """Refused when the member is down, else at once."""
        member = self.group.by_address.get(self.address)
        if member is None or not member.is_up:
            return fail(ConnectionRefusedError())
        protocol = factory.buildProtocol(None)
        wire = Wire(member, protocol)
        member.wires.append(wire)
        protocol.makeConnection(wire)
        return succeed(protocol)


class FakeGroup:
    """Members n0, n1, n2; n0 leads. The log is what was committed."""

    def __init__(self, clock: Clock, count: int = 3) -> None:
        self.clock = clock
        self.log: list[bytes] = []
        self.term_of: Callable[[int], int] = lambda index: 1
        self.has_times = False
        self.time_resets = ""
        self.commands: dict[tuple[str, int], int] = {}
        self.fold = GroupFold(GroupState())
        self.sequences: dict[str, tuple[ResponseCode, int, int]] = {}
        self.channels: dict[int, int] = {}
        self.handler = FakeHandler(self.log, lambda: 0.0 if clock is None else clock.seconds())
        self.members = {f"n{i}": FakeMember(self, f"n{i}") for i in range(count)}
        self.peers = {member_id: f"{member_id}.test:20911" for member_id in self.members}
        self.by_address = {self.peers[member_id]: member for member_id, member in self.members.items()}

    def __getitem__(self, member_id: str) -> FakeMember:
        return self.members[member_id]

    def endpoint_for(self, address: str) -> _Endpoint:
        """As L{LogClient} wants it."""
        return _Endpoint(self, address)

    def client(self, **options: Any) -> LogClient:
        """A client of this group."""
        options.setdefault("peers", self.peers)
        return LogClient(
            reactor=self.clock, endpoint_for=self.endpoint_for, rng=random.Random(1), **options
        )

    def lead(self, member_id: str) -> None:
        """Everybody knows that this member leads now."""
        for member in self.members.values():
            member.leader_id = member_id
            member.term += 1

    def append_numbered(self, name: str, number: int, bodies: Sequence[bytes]) -> int:
        """
        The leader writes bodies of a producer, with a session entry if it has none.

        @return: the first index.
        """
        producer = self.fold.producer(name)
        if producer is None:
            (slot,) = self.fold.free_slots(1)
            session = encode_session_entry([Session(slot, name)])
            self.fold.take([Marked(len(self.log), 1, SESSION_CHANNEL, body=session)])
            self.channels[len(self.log)] = SESSION_CHANNEL
            self.log.append(session)
            producer = self.fold.producer(name)
        assert producer is not None
        first, channels = len(self.log), slot_channels(producer.slot, number, len(bodies))
        self.fold.take([Marked(first, 1, channels[0], len(bodies))])
        self.channels.update(enumerate(channels, first))
        self.log += bodies
        return first

    def note_time(self, time_ms: int) -> None:
        """The leader writes a time entry."""
        self.has_times = True
        self.handler.own.add(len(self.log))
        self.log.append(encode_time_entry(time_ms))

    def settle(self) -> None:
        """Deliver everything that is under way, without time passing."""
        for _ in range(1000):
            self.clock.advance(0)
            moved = False
            for member in self.members.values():
                for wire in list(member.wires):
                    moved = member.deliver(wire) or moved
                moved = member.end_polls() or moved
            now_s = self.clock.seconds()
            if not moved and all(call.getTime() > now_s for call in self.clock.getDelayedCalls()):
                return
        raise AssertionError("the group never comes to rest")

    def run(self, seconds: float) -> None:
        """Let time pass in small steps."""
        for _ in range(round(seconds / 0.01)):
            self.settle()
            self.clock.advance(0.01)
        self.settle()

    def batch(self, first: int, count: int) -> EntryBatch:
        """Records of committed entries."""
        records = b""
        for index in range(first, first + count):
            body = self.log[index]
            term = self.term_of(index)
            record = pack_record(body, index=index, term=term, pos=100 * index, previous_chain_crc=0)[0]
            channel = self.channels.get(index, 0)
            if index in self.handler.own:
                channel = TIME_CHANNEL if body.startswith(b"TIME") else READER_CHANNEL
            records += marked(record, channel)
        term = self.term_of(first + count - 1)
        return EntryBatch(first_index=first, count=count, term=term, records=records)
