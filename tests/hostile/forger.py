# -*- test-case-name: tests.hostile.test_forged -*-
"""
Messages in the name of members: forged requests, and a played member whose answers are forged.

Knows the wire only. A forger can send everything that a broken member can.
"""

from __future__ import annotations

import contextlib
import itertools
import random
import socket
import socketserver
import threading
import time
from collections.abc import Callable, Mapping

import attrs

from protocols.wire.codes import ResponseCode
from protocols.wire.errors import BodyError, WireError
from protocols.wire.framing import FrameBuffer
from protocols.wire.ledger.batches import EntryBatch
from protocols.wire.ledger.bounds import INDEX_MAX, TERM_MAX
from protocols.wire.ledger.codes import WIRE_VERSION, Consistency, PushType, RequestCode, VoteResult
from protocols.wire.ledger.entry import pack_record
from protocols.wire.ledger.java.json_bodies import decode_request, encode_request, encode_response
from protocols.wire.ledger.message_table import MESSAGES
from protocols.wire.ledger.messages import (
    AppendRequest,
    GetRequest,
    HeartBeatRequest,
    HeartBeatResponse,
    LeadershipTransferRequest,
    LeadershipTransferResponse,
    LedgerMessage,
    MetadataRequest,
    MetadataResponse,
    PullRequest,
    PushEntryRequest,
    PushEntryResponse,
    Request,
    Response,
    VoteRequest,
    VoteResponse,
)
from protocols.wire.ledger.push import decode_frame, encode_request_frame, encode_response_frame
from protocols.wire.remoting import FLAG_RESPONSE, RemotingCommand, decode_command, encode_command
from tests.fuzz.mutation import LONG_EDGES, damaged

GROUP = "default"


def batch(
    first_index: int, *, term: int, pos: int = 0, count: int = 1, body: bytes = b"forged", chain_crc: int = 0
) -> EntryBatch:
    """Entries that nobody appended, chained from C{chain_crc}."""
    records = []
    for index in range(first_index, first_index + count):
        record, chain_crc = pack_record(body, index=index, term=term, pos=pos, previous_chain_crc=chain_crc)
        records.append(record)
        pos += len(record)
    return EntryBatch(first_index=first_index, count=count, term=term, records=b"".join(records))


def base(speaker: str | None, to: str, term: int) -> dict[str, object]:
    """The fields that a message of C{speaker} has in every kind."""
    return {
        "group": GROUP, "remote_id": to, "local_id": speaker, "leader_id": speaker, "term": term,
        "wire_version": WIRE_VERSION,
    }


def vote(speaker: str, to: str, term: int, **fields: object) -> VoteRequest:
    """A vote request."""
    return VoteRequest(**{**base(speaker, to, term), **fields})


def beat(speaker: str, to: str, term: int) -> HeartBeatRequest:
    """A heartbeat."""
    return HeartBeatRequest(**base(speaker, to, term), heart_beat_interval_ms=200)


def push(
    speaker: str, to: str, term: int, kind: PushType, entries: EntryBatch | None = None, *,
    commit_index: int = -1,
) -> PushEntryRequest:
    """A push."""
    return PushEntryRequest(
        **base(speaker, to, term), type=kind, entries=entries,
        commit_index=commit_index,
    )


def transfer(speaker: str | None, to: str, term: int, *, giver: str, taker: str) -> LeadershipTransferRequest:
    """A transfer of leadership."""
    return LeadershipTransferRequest(
        **base(speaker, to, term), transfer_id=giver, transferee_id=taker,
    )


def fire(address: str, *requests: Request, seconds: float = 0.3) -> None:
    """Send requests on a connection of their own, and wait a moment for the first answer or the end."""
    host, _, port = address.rpartition(":")
    with contextlib.suppress(OSError), socket.create_connection((host, int(port)), timeout=2) as connection:
        connection.sendall(b"".join(encode_request_frame(one, 1) for one in requests))
        connection.settimeout(seconds)
        connection.recv(65536)


class Repeater:
    """
    Calls a function again and again in a thread, at a rate, until its block ends.

    @ivar calls: number of calls. @ivar is_paused: whether it waits.
    """

    def __init__(self, act: Callable[[], None], *, rate: float = 100.0) -> None:
        """@param rate: calls in a second, at most."""
        self._act, self._rate = act, rate
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.calls = 0
        self.is_paused = True

    def _run(self) -> None:
        due = time.monotonic()
        while not self._over.is_set():
            if self.is_paused:
                self._over.wait(0.01)
                due = time.monotonic()
                continue
            with contextlib.suppress(OSError):
                self._act()
            self.calls += 1
            due = max(due + 1 / self._rate, time.monotonic() - 0.2)
            self._over.wait(max(due - time.monotonic(), 0))

    def __enter__(self) -> Repeater:
        """Start."""
        self._thread.start()
        return self

    def __exit__(self, *_exception: object) -> None:
        self._over.set()
        self._thread.join()


class PlayedMember:
    """
    Listens at a member's address and answers by a function; None is silence.

    @ivar answers: number of answers sent.
    """

    def __init__(self, address: str, answer: Callable[[Request], Response | None]) -> None:
        played = self
        self.answers = 0
        self._lines: list[socket.socket] = []

        class Connection(socketserver.BaseRequestHandler):
            def handle(self) -> None:
                buffer = FrameBuffer()
                played._lines.append(self.request)
                with contextlib.suppress(OSError, WireError, BodyError):
                    while data := self.request.recv(1 << 18):
                        for kind, frame in buffer.feed(data):
                            reply = _reply(kind, frame, answer)
                            if reply is not None:
                                self.request.sendall(reply)
                                played.answers += 1

        class Server(socketserver.ThreadingTCPServer):
            allow_reuse_address = True
            daemon_threads = True
            block_on_close = False

        host, _colon, port = address.rpartition(":")
        self._server = Server((host, int(port)), Connection)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop listening and end the connections."""
        self._server.shutdown()
        self._server.server_close()
        for line in self._lines:
            with contextlib.suppress(OSError):
                line.shutdown(socket.SHUT_RDWR)


def _reply(kind: str, frame: bytes, answer: Callable[[Request], Response | None]) -> bytes | None:
    if kind == "native":
        opaque, request = decode_frame(frame)
        assert isinstance(request, Request)
        response = answer(request)
        return None if response is None else encode_response_frame(response, opaque)
    command = decode_command(frame)
    response = answer(decode_request(RequestCode(command.code), command.body))
    if response is None:
        return None
    return encode_command(RemotingCommand(
        code=200, opaque=command.opaque, flag=FLAG_RESPONSE, body=encode_response(response)
    ))


def answering_with(peers: Mapping[str, str], term: int) -> Callable[[Request], Response]:
    """A function that answers everything kindly, in the name of C{term}."""

    def answer(request: Request) -> Response:
        fields = {
            "group": GROUP, "remote_id": request.remote_id, "local_id": request.local_id,
            "leader_id": request.leader_id, "wire_version": WIRE_VERSION,
        }
        if isinstance(request, MetadataRequest):
            return MetadataResponse(**fields, peers=dict(peers))
        if isinstance(request, VoteRequest):
            return VoteResponse(
                **fields, term=term, vote_result=VoteResult.REJECT_EXPIRED_VOTE_TERM,
                pre_vote=request.pre_vote,
            )
        if isinstance(request, HeartBeatRequest):
            return HeartBeatResponse(**fields, term=term, code=ResponseCode.EXPIRED_TERM)
        if isinstance(request, PushEntryRequest):
            return PushEntryResponse(
                **fields, term=term, code=ResponseCode.INCONSISTENT_STATE,
                index=INDEX_MAX, count=1 << 30, begin_index=INDEX_MAX, end_index=INDEX_MAX,
            )
        if isinstance(request, LeadershipTransferRequest):
            return LeadershipTransferResponse(**fields, term=term)
        return MESSAGES[request.kind][1](**fields, term=term)

    return answer


# -- structure-aware fuzzing -----------------------------------------------------------------------


@attrs.define(kw_only=True)
class StrangeRequests:
    """
    Requests of all kinds, well-formed, with numbers and names that do not fit.

    @ivar ids: the members that they go to.
    @ivar speaker: the member in whose name they are sent; None for a client.
    @ivar known: entries that the members hold.
    @ivar terms: terms that are named most of the time.
    """

    rng: random.Random
    ids: tuple[str, ...]
    speaker: str | None
    known: EntryBatch
    terms: range

    def number(self) -> int:
        """A number at the edge of something."""
        known = self.known
        return self.rng.choice((
            *(edge for edge in LONG_EDGES if abs(edge) < 1 << 63), known.first_index, known.last_index,
            known.last_index + 1, TERM_MAX, INDEX_MAX,
        ))

    def name(self) -> str | None:
        """A member's id, or none of them."""
        return self.rng.choice((None, "", "n9", "x" * 300, *self.ids))

    def term(self) -> int:
        """A likely term, or any number."""
        return self.rng.choice(self.terms) if self.rng.random() < 0.8 else self.number()

    def fields(self) -> dict[str, object]:
        """The fields of every kind."""
        rng = self.rng
        fields = base(self.speaker, rng.choice(self.ids), self.term())
        if rng.random() < 0.1:
            fields["group"] = rng.choice((None, "", "other"))
        if rng.random() < 0.1:
            fields["leader_id"] = self.name()
        if rng.random() < 0.05:
            fields["wire_version"] = rng.choice((0, 1, 2, 0x100, 0x7FFFFFFF))
        return fields

    def entries(self) -> EntryBatch | None:
        """Known entries, or false ones."""
        kind = self.rng.randrange(5)
        if kind < 2:
            return self.known if kind else None
        known = self.known
        index = abs(self.rng.choice((known.first_index, known.last_index + 1, self.number())))
        return batch(index & ((1 << 62) - 1), term=abs(self.term()), pos=abs(self.number()) >> 1,
                     count=self.rng.choice((1, 1, 3)))

    def _of_clients(self) -> Request:
        rng, fields, number = self.rng, self.fields(), self.number
        kind = rng.randrange(4)
        if kind == 0:
            return MetadataRequest(**fields)
        if kind == 1:
            return AppendRequest(**fields, bodies=(b"", b"x" * rng.randrange(100))[: rng.randrange(3)])
        if kind == 2:
            return GetRequest(**fields, begin_index=number(), consistency=rng.choice(tuple(Consistency)))
        return PullRequest(
            **fields, begin_index=number(), end_index=number(), max_bytes=rng.choice((-1, 0, 1, 1 << 20)),
            wait_ms=rng.choice((-1, 0, 1, 50)),
        )

    def _of_members(self) -> Request:
        rng, fields, number = self.rng, self.fields(), self.number
        kind = rng.randrange(4)
        if kind == 0:
            return VoteRequest(
                **fields, ledger_end_index=number(), ledger_end_term=number(), pre_vote=rng.random() < 0.3,
                transfer=rng.random() < 0.3,
            )
        if kind == 1:
            return HeartBeatRequest(**fields, heart_beat_interval_ms=rng.choice((-1, 0, 1, 200, 1 << 30)))
        if kind == 2:
            return PushEntryRequest(
                **fields, type=rng.choice(tuple(PushType)), entries=self.entries(),
                commit_index=min(number(), self.known.last_index),
            )
        return LeadershipTransferRequest(
            **fields, transfer_id=self.name(), transferee_id=self.name(),
            take_leadership_ledger_index=number(),
        )

    def next(self) -> Request:
        """Another one."""
        return self._of_clients() if self.rng.random() < 0.5 else self._of_members()


def encoded(request: LedgerMessage, rng: random.Random, opaque: int, corpus: list[bytes]) -> bytes:
    """A request as bytes of either wire, sometimes damaged."""
    assert isinstance(request, Request)
    try:
        if rng.random() < 0.7:
            data = encode_request_frame(request, opaque)
        else:
            data = encode_command(RemotingCommand(
                code=int(request.kind), opaque=opaque, body=encode_request(request)
            ))
    except (AssertionError, ValueError, OverflowError):
        return b""
    if len(corpus) < 200:
        corpus.append(data)
    return damaged(data, corpus, rng) if rng.random() < 0.03 else data


def fuzz(
    addresses: Mapping[str, str], requests: StrangeRequests, rng: random.Random, *, count: int
) -> int:
    """
    Send C{count} requests to their members, over connections that are opened again when they end.

    @return: bytes of answers.
    """
    corpus: list[bytes] = []
    lines: dict[str, socket.socket] = {}
    answered = 0
    for opaque in itertools.count(1):
        if opaque > count:
            break
        request = requests.next()
        data = encoded(request, rng, opaque & 0x7FFFFFFF, corpus)
        assert request.remote_id is not None
        try:
            line = lines.get(request.remote_id)
            if line is None:
                host, _, port = addresses[request.remote_id].rpartition(":")
                line = lines[request.remote_id] = socket.create_connection((host, int(port)), timeout=5)
            line.sendall(data)
            line.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                received = line.recv(1 << 20)
                answered += len(received)
                if not received:
                    raise ConnectionError("closed")
            line.settimeout(5)
        except OSError:
            lines.pop(request.remote_id, line or socket.socket()).close()
    for line in lines.values():
        line.close()
    return answered
