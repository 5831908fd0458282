# -*- test-case-name: tests.processes.test_group -*-
"""
A blocking connection to one member: requests out, answers in, over either wire.

For tests, benchmarks and the demo that must ask one particular member and see its own answer. There are no
redirects and no retries; for those use C{dledger.connect}.
"""

from __future__ import annotations

import socket
import time
from typing import Self

from protocols.connection import STRANGER_FRAME_BYTES_MAX
from protocols.wire.framing import FrameBuffer
from protocols.wire.ledger.codes import RequestCode
from protocols.wire.ledger.java.json_bodies import decode_response, encode_request
from protocols.wire.ledger.messages import MetadataRequest, MetadataResponse, Request, Response
from protocols.wire.ledger.push import decode_frame, encode_request_frame
from protocols.wire.remoting import RemotingCommand, decode_command, encode_command
from tests.slowness import patient


class NoAnswer(Exception):
    """The member did not answer in time, or closed the connection; the outcome is unknown."""


class Asker:
    """
    One connection. Answers may be collected long after the requests were sent.

    @ivar native: requests are sent as native frames, not as remoting frames.
    """

    def __init__(self, address: str, *, native: bool = False, seconds: float = 5.0) -> None:
        """@raise OSError: the connection is refused."""
        host, _colon, port = address.rpartition(":")
        self.native = native
        self._seconds = seconds
        self._socket = socket.create_connection((host, int(port)), timeout=seconds)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._frames = FrameBuffer()
        self._opaque = 0
        self._kinds: dict[int, RequestCode] = {}
        self._answers: dict[int, Response] = {}

    def __enter__(self) -> Self:
        """Close the connection at the end of the block."""
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()

    def send(self, request: Request) -> int:
        """
        Send a request.

        @return: the number for L{collect}.
        """
        self._opaque += 1
        self._kinds[self._opaque] = request.kind
        if self.native:
            data = encode_request_frame(request, self._opaque)
            if self._opaque == 1 and len(data) > STRANGER_FRAME_BYTES_MAX:
                # A member takes a large native frame only after a valid request. (The answer has opaque 0.)
                hello = MetadataRequest(group=request.group, remote_id=request.remote_id)
                data = encode_request_frame(hello, 0) + data
        else:
            data = encode_command(RemotingCommand(
                code=int(request.kind), opaque=self._opaque, body=encode_request(request)
            ))
        self.send_bytes(data)
        return self._opaque

    def send_body(self, kind: RequestCode, body: bytes) -> int:
        """Send a body unchanged, in a remoting frame; as L{send}."""
        self._opaque += 1
        self._kinds[self._opaque] = kind
        self.send_bytes(encode_command(RemotingCommand(code=int(kind), opaque=self._opaque, body=body)))
        return self._opaque

    def send_bytes(self, data: bytes) -> None:
        """Send bytes, which need not be a request."""
        try:
            self._socket.sendall(data)
        except OSError as error:
            raise NoAnswer(f"sending: {error}") from error

    def collect(self, opaque: int, *, seconds: float | None = None) -> Response:
        """
        The answer to one request.

        @raise NoAnswer: the answer did not come in time, or the connection ended.
        """
        deadline = time.monotonic() + patient(self._seconds if seconds is None else seconds)
        while opaque not in self._answers:
            left = deadline - time.monotonic()
            if left <= 0:
                raise NoAnswer(f"no answer to {self._kinds[opaque].name} in time")
            self._socket.settimeout(left)
            try:
                data = self._socket.recv(1 << 18)
            except OSError as error:
                raise NoAnswer(f"waiting: {error}") from error
            if not data:
                raise NoAnswer(f"connection closed before the answer to {self._kinds[opaque].name}")
            for kind, frame in self._frames.feed(data):
                self._take(kind, frame)
        return self._answers.pop(opaque)

    def _take(self, kind: str, frame: bytes) -> None:
        if kind == "native":
            opaque, message = decode_frame(frame)
            assert isinstance(message, Response)
            self._answers[opaque] = message
            return
        command = decode_command(frame)
        if command.opaque in self._kinds:
            if not command.body:
                raise NoAnswer(f"remoting error {command.code}: {command.remark}")
            self._answers[command.opaque] = decode_response(self._kinds[command.opaque], command.body)

    def ask(self, request: Request, *, seconds: float | None = None) -> Response:
        """
        Send a request and wait for its answer.

        @raise NoAnswer: as L{collect}.
        """
        return self.collect(self.send(request), seconds=seconds)


def ask(address: str, request: Request, *, native: bool = False, seconds: float = 5.0) -> Response:
    """
    Send one request over its own connection.

    @raise NoAnswer: the connection is refused, there is no answer in time, or the connection ended.
    """
    try:
        with Asker(address, native=native, seconds=seconds) as asker:
            return asker.ask(request)
    except OSError as error:
        raise NoAnswer(f"{address}: {error}") from error


def metadata_of(peer_id: str, address: str, *, group: str, seconds: float = 2.0) -> MetadataResponse | None:
    """A member's view of itself; None if it does not answer."""
    try:
        answer = ask(address, MetadataRequest(group=group, remote_id=peer_id), seconds=seconds)
    except NoAnswer:
        return None
    assert isinstance(answer, MetadataResponse)
    return answer
