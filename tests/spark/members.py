# -*- test-case-name: tests.spark.test_members -*-
"""A member for the tests that answers as a test asks: one listening socket, one thread a connection."""

from __future__ import annotations

import json
import socket
import ssl
import threading
from collections.abc import Callable, Mapping, Sequence

import attrs

from dledger.storage.files.records import pack_bodies
from dledger.values.tls_files import TlsFiles
from protocols.wire.codes import ResponseCode
from protocols.wire.framing import FrameBuffer, FrameError
from protocols.wire.ledger.batches import EntryBatch
from protocols.wire.ledger.entry import decode_header
from protocols.wire.ledger.java.json_bodies import encode_response
from protocols.wire.ledger.messages import (
    MetadataRequest,
    MetadataResponse,
    PullRequest,
    PullResponse,
    Request,
    Response,
)
from protocols.wire.ledger.push import decode_frame, encode_response_frame
from protocols.wire.remoting import decode_command, encode_answer


def records_of(
    bodies: list[bytes], channels: Sequence[int] = (), terms: Sequence[int] = ()
) -> list[bytes]:
    """
    A ledger's records, one after the other in one large file.

    @param channels, terms: of each record; by default 0, and a new term after every 50 records.
    """
    found: list[bytes] = []
    pos = chain = 0
    for index, body in enumerate(bodies):
        layout = pack_bodies(
            (body,), first_index=index, term=terms[index] if terms else 1 + index // 50, end_position=pos,
            previous_chain_crc=chain, file_size=1 << 40, channels=channels[index : index + 1],
        )
        found.append(layout.records)
        pos, chain = layout.end_position, layout.chain_crc
    return found


def _server_context(files: TlsFiles) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(files.certificate, files.key)
    context.load_verify_locations(files.authority)
    context.verify_mode = ssl.CERT_REQUIRED
    return context


@attrs.frozen
class Cut:
    """The last that comes over a connection: it is closed after these bytes."""

    data: bytes


class FakeMember:
    """
    @ivar address: where it listens.
    @ivar group_id, is_group_known: the id of its group, and whether a quorum holds it.
    @ivar health: why it does not serve, as it says.
    @ivar is_silent, remoting_role: closes the connection at a remoting frame, too; or the role that it
        reports there, which is empty for Java's.
    @ivar is_full: refuses a remoting frame: it has no place for the connection.
    @ivar token, shown: the one that it knows, and those that it was shown.
    @ivar pulls: first indexes that it was asked for.
    @ivar answer: given the request, says what to answer: None closes the connection, and so does L{Cut}.
    """

    def __init__(
        self, member_id: str, records: list[bytes], *, group: str = "default", tls: TlsFiles | None = None,
        token: str = "",
    ) -> None:
        """@param tls: its keys; it demands a certificate of its clients, or C{token}."""
        self._tls = None if tls is None else _server_context(tls)
        if self._tls is not None and token:
            self._tls.verify_mode = ssl.CERT_OPTIONAL
        self.member_id = member_id
        self.records = records
        self.group = group
        self.begin, self.committed, self.role = 0, len(records) - 1, "follower"
        self.group_id, self.is_group_known, self.health = "", False, ""
        self.is_silent, self.remoting_role = False, ""
        self.is_full = False
        self.token, self.shown = token, list[str]()
        self.pulls: list[int] = []
        self.peers: Mapping[str, str] = {}
        self.answer: Callable[[Request], Response | bytes | Cut | None] = self.sound_answer
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._connections: list[socket.socket] = []
        self._is_closed = False
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            if self._is_closed:
                connection.close()
                return
            self._connections.append(connection)
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        frames = FrameBuffer()
        try:
            if self._tls is not None:
                connection = self._tls.wrap_socket(connection, server_side=True)
            while data := connection.recv(65536):
                for kind, frame in frames.feed(data):
                    if kind == "remoting":
                        if self.is_silent:
                            return
                        connection.sendall(self._named(frame))
                        continue
                    opaque, request = decode_frame(frame)
                    assert isinstance(request, Request)
                    answer = self.answer(request)
                    if answer is None:
                        return
                    if isinstance(answer, Cut):
                        connection.sendall(answer.data)
                        return
                    if isinstance(answer, Response):
                        answer = encode_response_frame(answer, opaque)
                    connection.sendall(answer)
        except (OSError, FrameError):
            return
        finally:
            connection.close()

    def _named(self, frame: bytes) -> bytes:
        """The answer to METADATA in a remoting frame."""
        command = decode_command(frame)
        shown = json.loads(command.body).get("token", "")
        self.shown += [shown] if shown else []
        if shown and shown != self.token:
            refused = MetadataResponse(code=ResponseCode.FORBIDDEN)
            return encode_answer(command.opaque, encode_response(refused))
        if self.is_full:
            refused = MetadataResponse(code=ResponseCode.TOO_MANY_CLIENTS, health="9 clients are connected")
            return encode_answer(command.opaque, encode_response(refused))
        answer = MetadataResponse(
            group=self.group, peers=self.peers, group_id=self.group_id, group_term=1,
            is_group_known=self.is_group_known, role=self.remoting_role, health=self.health,
        )
        return encode_answer(command.opaque, encode_response(answer))

    def sound_answer(self, request: Request) -> Response:
        """What a member of ours answers."""
        if request.group != self.group:
            return MetadataResponse(code=ResponseCode.UNKNOWN_GROUP)
        if isinstance(request, MetadataRequest):
            return MetadataResponse(
                group=self.group, peers=self.peers, begin_index=self.begin, committed_index=self.committed,
                end_index=self.committed, role=self.role, wire_version=1,
            )
        assert isinstance(request, PullRequest)
        self.pulls.append(request.begin_index)
        if request.begin_index < self.begin:
            return PullResponse(code=ResponseCode.INDEX_LESS_THAN_LOCAL_BEGIN, ledger_begin_index=self.begin)
        return PullResponse(group=self.group, ledger_begin_index=self.begin, committed_index=self.committed,
                            leader_id="n0", entries=self.batch(request))

    def batch(self, request: PullRequest) -> EntryBatch | None:
        """The records that it would send."""
        first, last = request.begin_index, min(request.end_index, self.committed)
        if first > last:
            return None
        chosen = [self.records[first]]
        while first + len(chosen) <= last:
            record = self.records[first + len(chosen)]
            if sum(map(len, chosen)) + len(record) > request.max_bytes:
                break
            chosen.append(record)
        return EntryBatch(first_index=first, count=len(chosen), term=decode_header(chosen[-1]).term,
                          records=b"".join(chosen))

    def close(self) -> None:
        """As when a process is killed."""
        self._is_closed = True
        self._listener.close()
        for connection in self._connections:
            try:
                connection.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
