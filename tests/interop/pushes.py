# -*- test-case-name: tests.interop.test_gallop -*-
"""
A leader's pushes to one follower, observed on the connection between them, in either format.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import attrs

from protocols.wire.codes import ResponseCode
from protocols.wire.framing import FrameBuffer
from protocols.wire.ledger.codes import PushType, RequestCode
from protocols.wire.ledger.java.json_bodies import decode_request, decode_response
from protocols.wire.ledger.messages import PushEntryRequest, PushEntryResponse, Request, Response
from protocols.wire.ledger.push import decode_frame
from protocols.wire.remoting import FLAG_RESPONSE, decode_command


@attrs.define
class Push:
    """
    A push and its answer.

    @ivar sent, answered: seconds, monotonic; C{answered} is 0 until there is an answer.
    @ivar index: of its first entry, as the answer says; None for COMMIT.
    """

    type: PushType
    sent: float
    answered: float = 0.0
    code: ResponseCode | None = None
    index: int | None = None


class PushTap:
    """
    Records the pushes to one follower, from a leader's first connection until the first APPEND is accepted;
    later ones are too many to record.

    @ivar pushes: in the order in which they were sent.
    @ivar connected: time of the connection that carried the first push; seconds, monotonic.
    """

    def __init__(self, follower_id: str) -> None:
        self.pushes: list[Push] = []
        self.connected = 0.0
        self._follower_id = follower_id
        self._over = threading.Event()

    def tap(self, source: str, target: str) -> tuple[Callable[[bytes], None], Callable[[bytes], None]]:
        """See L{tests.interop.links.Tap}."""
        if target != self._follower_id:
            return _nothing, _nothing
        made = time.monotonic()
        asked: dict[int, Push] = {}
        there, back = FrameBuffer(), FrameBuffer()

        def sent(data: bytes) -> None:
            for opaque, message in self._messages(there, data):
                if isinstance(message, PushEntryRequest):
                    if not self.pushes:
                        self.connected = made
                    asked[opaque] = push = Push(message.type, time.monotonic())
                    self.pushes.append(push)

        def answered(data: bytes) -> None:
            for opaque, message in self._messages(back, data, asked):
                if isinstance(message, PushEntryResponse) and opaque in asked:
                    push = asked.pop(opaque)
                    push.answered, push.code, push.index = time.monotonic(), message.code, message.index
                    if push.type is PushType.APPEND and push.code is ResponseCode.SUCCESS:
                        self._over.set()

        return sent, answered

    def _messages(
        self, frames: FrameBuffer, data: bytes, asked: dict[int, Push] | None = None
    ) -> list[tuple[int, Request | Response]]:
        """Whole messages; remoting answers only to known pushes, as the others do not report their kind."""
        found: list[tuple[int, Request | Response]] = []
        if self._over.is_set():
            return found
        for kind, frame in frames.feed(data):
            if kind == "native":
                found.append(decode_frame(frame))
                continue
            command = decode_command(frame)
            if command.flag & FLAG_RESPONSE:
                if asked and command.opaque in asked and command.body:
                    found.append((command.opaque, decode_response(RequestCode.PUSH, command.body)))
            elif command.code == RequestCode.PUSH:
                found.append((command.opaque, decode_request(RequestCode.PUSH, command.body)))
        return found

    def wait(self, *, seconds: float) -> bool:
        """Wait for the first accepted APPEND. @return: whether it came in time."""
        return self._over.wait(seconds)


def _nothing(_data: bytes) -> None:
    """Ignore the bytes: they are not for the observed follower."""
