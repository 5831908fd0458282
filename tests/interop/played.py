# -*- test-case-name: tests.interop.test_weaknesses -*-
"""
One real member, Java's or ours, among peers that the test plays.

The member is C{n1} of three. The test sends the requests of C{n0} or C{n2}, byte for byte as a Java member
would, and answers the member's own. So a schedule that needs minutes, or luck, in a real group takes a second
with one member, and both kinds get the same stimulus.

Rule: played members answer loyally (as a sound follower with an empty ledger that gives every vote) unless a
test says otherwise; they record every request.
"""

from __future__ import annotations

import contextlib
import socketserver
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

import attrs
from twisted.trial.unittest import SkipTest, SynchronousTestCase

from protocols.wire.codes import ResponseCode
from protocols.wire.errors import BodyError
from protocols.wire.framing import FrameBuffer
from protocols.wire.ledger.batches import EntryBatch
from protocols.wire.ledger.codes import PushType, RequestCode, VoteResult
from protocols.wire.ledger.entry import (
    ENTRY_HEADER_SIZE,
    MAGIC,
    MIN_BLANK_SIZE,
    EntryHeader,
    encode_header,
    iterate_records,
)
from protocols.wire.ledger.java.json_bodies import decode_request, encode_response
from protocols.wire.ledger.message_table import MESSAGES
from protocols.wire.ledger.messages import (
    AppendRequest,
    AppendResponse,
    GetRequest,
    GetResponse,
    HeartBeatRequest,
    HeartBeatResponse,
    LeadershipTransferRequest,
    MetadataRequest,
    MetadataResponse,
    PushEntryRequest,
    PushEntryResponse,
    Request,
    Response,
    VoteRequest,
    VoteResponse,
)
from protocols.wire.remoting import FLAG_RESPONSE, RemotingCommand, decode_command, encode_command
from tests.interop.java import JavaMember, JavaMissing, class_path
from tests.processes.asking import Asker, NoAnswer, ask
from tests.processes.children import ChildError, free_ports, wait_until
from tests.processes.members import Member

JAVA, OURS = "java", "ours"
GROUP = "played"
SELF = "n1"
DATA_FILE_BYTES = 1 << 16
INDEX_FILE_BYTES = 32 * 256

_Outcome = TypeVar("_Outcome")

#: The answer of a played member; None for silence.
Answer = Callable[[str, Request], Response | None]


def entry(index: int, term: int, body: bytes, pos: int) -> EntryBatch:
    """One entry as Java writes it, without checksums."""
    size = ENTRY_HEADER_SIZE + len(body)
    header = EntryHeader(
        magic=MAGIC, size=size, index=index, term=term, pos=pos, channel=0, chain_crc=0, body_crc=0,
        body_length=len(body),
    )
    return EntryBatch(first_index=index, count=1, term=term, records=encode_header(header) + body)


def entries(
    terms: tuple[int, ...], *, name: str = "entry", size: int = 20, file_bytes: int = DATA_FILE_BYTES
) -> list[EntryBatch]:
    """Entries from index 0 on, one for each of these terms, with bodies of equal size."""
    made, pos = [], 0
    for index, term in enumerate(terms):
        left = file_bytes - pos % file_bytes
        if left < ENTRY_HEADER_SIZE + size + MIN_BLANK_SIZE:
            pos += left
        body = f"{name} {index} of {term}".encode().ljust(size, b".")
        made.append(entry(index, term, body, pos))
        pos += ENTRY_HEADER_SIZE + size
    return made


@attrs.define
class Follower:
    """The ledger of a played follower, by index: it accepts every push."""

    records: dict[int, bytes] = attrs.Factory(dict)

    def answer(self, request: PushEntryRequest) -> PushEntryResponse:
        """The answer of a Java follower."""
        code = ResponseCode.SUCCESS
        batch = request.entries
        if batch is not None:
            held = self.records.get(batch.first_index)
            if request.type is PushType.COMPARE and held != batch.records:
                code = ResponseCode.INCONSISTENT_STATE
            elif request.type is PushType.TRUNCATE:
                first = batch.first_index
                self.records = {index: kept for index, kept in self.records.items() if index < first}
            if request.type in (PushType.TRUNCATE, PushType.APPEND):
                for header, body in iterate_records(batch):
                    self.records[header.index] = encode_header(header) + body
        return PushEntryResponse(
            group=request.group, term=request.term, code=code,
            index=None if batch is None else batch.first_index, count=0 if batch is None else batch.count,
            begin_index=min(self.records, default=-1), end_index=max(self.records, default=-1),
        )


class Cast:
    """
    The played members: they listen, record the requests, and answer.

    @ivar asked: (id of the played member, request), in order of arrival.
    @ivar answer: gives their answers; tests replace it.
    @ivar followers: ledgers of the played members, when they follow.
    """

    def __init__(self, peers: Mapping[str, str]) -> None:
        """@param peers: the whole group."""
        self.peers = dict(peers)
        self.asked: list[tuple[str, Request]] = []
        self.followers = {peer_id: Follower() for peer_id in peers if peer_id != SELF}
        self.answer: Answer = self.loyal
        self._servers = [self._listen(peer_id) for peer_id in self.followers]

    def loyal(self, peer_id: str, request: Request) -> Response | None:
        """Give every vote, accept every heartbeat and every push."""
        if isinstance(request, VoteRequest):
            return VoteResponse(
                group=GROUP, remote_id=request.remote_id, local_id=request.local_id,
                leader_id=request.leader_id, term=request.term, vote_result=VoteResult.ACCEPT,
            )
        if isinstance(request, HeartBeatRequest):
            return HeartBeatResponse()
        if isinstance(request, MetadataRequest):
            return MetadataResponse(group=GROUP, peers=self.peers)
        if isinstance(request, PushEntryRequest):
            return self.followers[peer_id].answer(request)
        if isinstance(request, GetRequest):  # a follower asks for the begin of its leader's ledger
            return GetResponse(group=GROUP, code=ResponseCode.INDEX_LESS_THAN_LOCAL_BEGIN)
        return None

    def elects_only(self, peer_id: str, request: Request) -> Response | None:
        """Answer votes and heartbeats, but no pushes."""
        return None if isinstance(request, PushEntryRequest) else self.loyal(peer_id, request)

    def silent(self, peer_id: str, request: Request) -> Response | None:
        """Answer METADATA, which says that the member is there, and nothing else."""
        return self.loyal(peer_id, request) if isinstance(request, MetadataRequest) else None

    def seen(self, kind: type[Request]) -> list[Request]:
        """The requests of one kind, to any of them."""
        return [request for _peer_id, request in list(self.asked) if isinstance(request, kind)]

    def close(self) -> None:
        """Stop listening."""
        for server in self._servers:
            server.shutdown()
            server.server_close()

    def _listen(self, peer_id: str) -> socketserver.ThreadingTCPServer:
        cast = self

        class Connection(socketserver.BaseRequestHandler):
            def handle(self) -> None:
                frames = FrameBuffer()
                with contextlib.suppress(OSError):
                    while data := self.request.recv(1 << 18):
                        for _kind, frame in frames.feed(data):
                            if (reply := cast.reply(peer_id, decode_command(frame))) is not None:
                                self.request.sendall(reply)

        class Server(socketserver.ThreadingTCPServer):
            allow_reuse_address = True
            daemon_threads = True
            block_on_close = False

        host, _colon, port = self.peers[peer_id].rpartition(":")
        server = Server((host, int(port)), Connection)
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        return server

    def reply(self, peer_id: str, command: RemotingCommand) -> bytes | None:
        """The frame that answers C{command}; None without an answer."""
        if command.is_response or command.code not in {int(code) for code in MESSAGES}:
            return None
        try:
            request = decode_request(RequestCode(command.code), command.body)
        except BodyError:  # a Java leader with its memory store sends entries of size 0
            return None
        self.asked.append((peer_id, request))
        answer = self.answer(peer_id, request)
        if answer is None:
            return None
        body = encode_response(answer)
        return encode_command(
            RemotingCommand(code=200, opaque=command.opaque, flag=FLAG_RESPONSE, language="JAVA", body=body)
        )


class Stage:
    """
    A real member of either kind, and its cast.

    @ivar cast: the other two members.
    @ivar peers: C{host:port} by id.
    """

    def __init__(
        self, kind: str, directory: Path, *, java: Mapping[str, object] | None = None,
        ours: Mapping[str, object] | None = None, peers: Mapping[str, str] | None = None,
    ) -> None:
        """
        @param java, ours: further options of a member of that kind.
        @param peers: the whole group, if it is another than three members.
        """
        self.kind = kind
        self.peers = dict(peers or {
            f"n{number}": f"127.0.0.1:{port}" for number, port in enumerate(free_ports(3))
        })
        self.cast = Cast(self.peers)
        self._lines: dict[str, Asker] = {}
        self.directory = directory
        self.ledger_path = directory / f"dledger-{SELF}"
        self.member: Member | JavaMember
        if kind == JAVA:
            self.member = JavaMember(SELF, self.peers, directory, group=GROUP, options={
                "mappedFileSizeForEntryData": DATA_FILE_BYTES,
                "mappedFileSizeForEntryIndex": INDEX_FILE_BYTES, **(java or {}),
            })
        else:
            self.member = Member(SELF, self.peers, directory, group=GROUP, options={
                "mapped_file_size_for_entry_data": DATA_FILE_BYTES,
                "mapped_file_size_for_entry_index": INDEX_FILE_BYTES,
                "bootstrap": True,  # the parts that tests play never vote all together
                **(ours or {}),
            })

    @property
    def address(self) -> str:
        """The address of the real member."""
        return self.peers[SELF]

    def start(self) -> None:
        """Start the real member; see L{wait_started}."""
        self.member.start()

    def wait_started(self) -> None:
        """Wait until it answers."""
        if isinstance(self.member, JavaMember):
            self.member.wait_started(seconds=60.0)
        request = MetadataRequest(group=GROUP, remote_id=SELF)

        def answers() -> bool:
            with contextlib.suppress(NoAnswer):
                return ask(self.address, request, seconds=1.0) is not None
            return False

        wait_until(answers, seconds=60, what=f"an answer of the {self.kind} member", every=0.05)

    def restart(self, *, kill: bool = False) -> None:
        """Restart it, after a clean stop or SIGKILL, on the same files."""
        if kill:
            self.member.kill()
        else:
            self.member.stop()
        self._hang_up()
        self.start()
        self.wait_started()

    def close(self) -> None:
        """End the member and its cast."""
        self._hang_up()
        self.member.kill()
        self.cast.close()

    def ask(self, request: Request, *, seconds: float = 15.0) -> Response:
        """
        Ask on the line of the played member that asks, or on a connection of its own.

        @raise NoAnswer: there is no answer in time, or one without a body.
        """
        speaker = request.local_id
        if speaker is None or speaker not in self.cast.followers:
            return ask(self.address, request, seconds=seconds)
        try:
            return self.line(speaker).ask(request, seconds=seconds)
        except NoAnswer:
            self._lines.pop(speaker).close()
            raise

    def line(self, speaker: str) -> Asker:
        """The connection of a played member: a member of ours takes a push only after those on the same."""
        if speaker not in self._lines:
            try:
                self._lines[speaker] = Asker(self.address, seconds=15.0)
            except OSError as error:
                raise NoAnswer(f"connecting: {error}") from error
        return self._lines[speaker]

    def _hang_up(self) -> None:
        for line in self._lines.values():
            line.close()
        self._lines.clear()

    def beat(self, leader_id: str, term: int) -> HeartBeatRequest:
        """A heartbeat as a played leader sends it."""
        return HeartBeatRequest(
            group=GROUP, remote_id=SELF, local_id=leader_id, leader_id=leader_id, term=term
        )

    def follow(self, leader_id: str, term: int) -> None:
        """Let C{leader_id} send heartbeats until the member follows it in C{term}."""
        said: list[Response] = []

        def followed() -> bool:
            said.append(self.ask(self.beat(leader_id, term)))
            return said[-1].code is ResponseCode.SUCCESS

        try:
            wait_until(followed, seconds=30, what="a follower", every=0.02)
        except ChildError as error:
            raise ChildError(f"{error}; {said[-1]}\n{self.member.log_tail()}") from None

    def vote(
        self, candidate_id: str, term: int, *, ledger_end_index: int = -1, ledger_end_term: int = -1
    ) -> VoteResult:
        """Ask for the vote as a played candidate; repeat it, as Java does, while the term is not ready."""
        request = VoteRequest(
            group=GROUP, remote_id=SELF, local_id=candidate_id, leader_id=candidate_id, term=term,
            ledger_end_index=ledger_end_index, ledger_end_term=ledger_end_term,
        )
        said: list[VoteResult] = []

        def decided() -> bool:
            answer = self.ask(request)
            assert isinstance(answer, VoteResponse)
            said.append(answer.vote_result)
            is_reached = answer.code is not ResponseCode.ILLEGAL_MEMBER_STATE
            return is_reached and answer.vote_result is not VoteResult.REJECT_TERM_NOT_READY

        self.wait(decided, f"a vote in term {term}")
        return said[-1]

    def pushing(
        self, kind: PushType, batch: EntryBatch | None, *, leader_id: str, term: int, commit_index: int = -1
    ) -> PushEntryRequest:
        """A push of the played leader."""
        return PushEntryRequest(
            group=GROUP, remote_id=SELF, local_id=leader_id, leader_id=leader_id, term=term, type=kind,
            commit_index=commit_index, entries=batch,
        )

    def push(
        self, kind: PushType, batch: EntryBatch | None, *, leader_id: str = "n0", term: int,
        commit_index: int = -1, seconds: float = 15.0,
    ) -> PushEntryResponse:
        """Send one push and return its answer."""
        request = self.pushing(kind, batch, leader_id=leader_id, term=term, commit_index=commit_index)
        answer = self.ask(request, seconds=seconds)
        assert isinstance(answer, PushEntryResponse)
        return answer

    def fill(
        self, batches: list[EntryBatch], *, leader_id: str = "n0", term: int, commit_index: int = -1
    ) -> None:
        """
        Give an empty follower these entries, as a leader does: TRUNCATE with the first, then APPEND.

        The member must follow a leader of C{term}, whose heartbeats continue.
        """
        beat_s = 0.0
        for batch in batches:
            if time.monotonic() > beat_s + 1.0:
                self.ask(self.beat(leader_id, term))
                beat_s = time.monotonic()
            kind = PushType.APPEND if batch.first_index else PushType.TRUNCATE
            answer = self.ask(self.pushing(
                kind, batch, leader_id=leader_id, term=term, commit_index=commit_index
            ))
            if answer.code is not ResponseCode.SUCCESS:
                raise ChildError(f"{self.kind}: {kind.name} {batch.first_index}: {answer}")

    def commit(self, index: int, *, leader_id: str = "n0", term: int) -> PushEntryResponse:
        """Send a COMMIT, which carries no entry."""
        return self.push(PushType.COMMIT, None, leader_id=leader_id, term=term, commit_index=index)

    def end_index(self) -> int:
        """The last index of its ledger."""
        if isinstance(self.member, JavaMember):
            return int(self.member.status()["end"])
        return self._metadata().end_index

    def begin_index(self) -> int:
        """The first index of its ledger."""
        if isinstance(self.member, JavaMember):
            return int(self.member.status()["begin"])
        return self._metadata().begin_index

    def committed_index(self) -> int:
        """The index up to which it knows entries as committed."""
        if isinstance(self.member, JavaMember):
            return int(self.member.status()["committed"])
        return self._metadata().committed_index

    def role(self) -> str:
        """C{leader}, C{follower} or C{candidate}."""
        if isinstance(self.member, JavaMember):
            return self.member.status()["role"].lower()
        return self._metadata().role

    def _metadata(self) -> MetadataResponse:
        answer = self.ask(MetadataRequest(group=GROUP, remote_id=SELF))
        assert isinstance(answer, MetadataResponse)
        return answer

    def wait_leads(self, *, seconds: float = 40.0) -> None:
        """Wait until the played members have elected it."""
        self.wait(lambda: self.role() == "leader", "a leader", seconds=seconds)

    def hand_over(self, *, leader_id: str = "n0", term: int) -> None:
        """The played leader, which it follows in C{term}, transfers leadership to it."""
        request = LeadershipTransferRequest(
            group=GROUP, remote_id=SELF, local_id=leader_id, leader_id=leader_id, term=term,
            transfer_id=leader_id, transferee_id=SELF, take_leadership_ledger_index=self.end_index(),
        )
        with contextlib.suppress(NoAnswer):
            self.ask(request)
        self.wait_leads()

    def wait(self, condition: Callable[[], object], what: str, *, seconds: float = 30.0) -> None:
        """@raise ChildError: not in time; names the kind of the member and the end of its log."""
        try:
            wait_until(condition, seconds=seconds, what=what)
        except ChildError as error:
            raise ChildError(f"{self.kind}: {error}\n{self.member.log_tail()}") from None

    def holds(self, condition: Callable[[], bool], *, java: float, ours: float) -> bool:
        """
        Whether a condition stays true, polled often.

        @param java, ours: seconds, for a member of that kind. Long if the condition should become false,
            which ends the wait; short if it should not.
        """
        deadline = time.monotonic() + (java if self.kind == JAVA else ours)
        while time.monotonic() < deadline:
            if not condition():
                return False
            time.sleep(0.05)
        return True

    def append(self, body: bytes, *, seconds: float = 20.0) -> AppendResponse | None:
        """Append one body; None without an answer in time."""
        try:
            answer = self.ask(AppendRequest(group=GROUP, remote_id=SELF, bodies=(body,)), seconds=seconds)
        except NoAnswer:
            return None
        assert isinstance(answer, AppendResponse)
        return answer

    def get(self, index: int, *, seconds: float = 20.0) -> GetResponse | None:
        """Read one entry; None without an answer in time."""
        try:
            answer = self.ask(GetRequest(group=GROUP, remote_id=SELF, begin_index=index), seconds=seconds)
        except NoAnswer:
            return None
        assert isinstance(answer, GetResponse)
        return answer

    def asker(self, *, seconds: float = 15.0) -> Asker:
        """A connection to it."""
        return Asker(self.address, seconds=seconds)


class SideBySide(SynchronousTestCase):
    """Tests that play one schedule to a Java member and to one of ours, at the same time."""

    def play(
        self, schedule: Callable[[Stage], _Outcome], *, java: Mapping[str, object] | None = None,
        ours: Mapping[str, object] | None = None, alone: bool = False, start: bool = True,
    ) -> tuple[_Outcome, _Outcome]:
        """
        Play a schedule to both.

        @param java, ours: further options of the member of that kind.
        @param alone: the member is the whole group.
        @param start: start it first.
        @return: the results with Java's member, and with ours.
        """
        try:
            class_path()
        except JavaMissing as missing:
            raise SkipTest(str(missing)) from None
        held = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        self.addCleanup(held.cleanup)
        # Children end with the thread that started them, so the threads live until the stages are closed.
        pool = ThreadPoolExecutor(2)
        self.addCleanup(pool.shutdown)
        stages = []
        for kind in (JAVA, OURS):
            peers = {SELF: f"127.0.0.1:{free_ports(1)[0]}"} if alone else None
            stage = Stage(kind, Path(held.name) / kind, java=java, ours=ours, peers=peers)
            self.addCleanup(stage.close)
            stages.append(stage)

        def run(stage: Stage) -> _Outcome:
            if start:
                stage.start()
                stage.wait_started()
            return schedule(stage)

        outcomes = [pool.submit(run, stage) for stage in stages]
        first, second = (outcome.result(240) for outcome in outcomes)
        return first, second
