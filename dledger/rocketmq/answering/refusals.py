# -*- test-case-name: tests.base.commands.test_refusals -*-
"""
Groups of commands, the codes of their refusals, and the fields of a request, checked against their limits.

L{dledger.rocketmq.answering.answering.AnsweringSide} has all groups of a server, and answers for a handler
that raises L{Refused}.

Source: ResponseCode.java (RocketMQ), RemotingCommand.decodeCommandCustomHeader (4.9.8).
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from enum import IntEnum
from typing import ClassVar

from twisted.logger import Logger

from protocols.rocketmq.commands import CommandConnection
from protocols.wire.fastjson import shown
from protocols.wire.remoting import RemotingCommand

#: Answers one request exactly once, now or later, or raises L{Refused}.
Handler = Callable[[CommandConnection, RemotingCommand], Generator[None, None, None] | None]
Handlers = Mapping[int, Handler]

#: Pairs of request code and answer that are counted apart.
PAIRS_MAX = 256

INT_MIN, INT_MAX = -(2**31), 2**31 - 1
LONG_MIN, LONG_MAX = -(2**63), 2**63 - 1


#: Bytes of the body of a request, unless its group allows more: the largest heartbeats and lists of queues
#: of RocketMQ's clients have some hundred kilobytes.
BODY_BYTES_MAX = 256 * 1024


class CommandGroup:
    """
    Base of the groups; a group with state of connections overrides more than L{handlers}.

    @cvar small_codes: those of its codes whose answers have few kilobytes, however much is stored: they are
        made even when other connections do not read theirs.
    @cvar body_bytes_max: by request code, where it is more than L{BODY_BYTES_MAX}.
    """

    small_codes: ClassVar[frozenset[int]] = frozenset()
    body_bytes_max: ClassVar[Mapping[int, int]] = {}

    def handlers(self) -> Handlers:
        """By request code."""
        raise NotImplementedError

    def drained(self, connection: CommandConnection) -> None:
        """The connection takes output again after it was congested."""

    def connection_lost(self, connection: CommandConnection) -> None:
        """The connection has ended; later answers are dropped."""


class Code(IntEnum):
    """The codes of RocketMQ that our servers use in answers."""

    SUCCESS = 0
    SYSTEM_ERROR = 1
    SYSTEM_BUSY = 2
    REQUEST_CODE_NOT_SUPPORTED = 3
    FLUSH_DISK_TIMEOUT = 10
    SLAVE_NOT_AVAILABLE = 11
    FLUSH_SLAVE_TIMEOUT = 12
    MESSAGE_ILLEGAL = 13
    SERVICE_NOT_AVAILABLE = 14
    NO_PERMISSION = 16
    TOPIC_NOT_EXIST = 17
    PULL_NOT_FOUND = 19
    PULL_RETRY_IMMEDIATELY = 20
    PULL_OFFSET_MOVED = 21
    QUERY_NOT_FOUND = 22
    SUBSCRIPTION_PARSE_FAILED = 23
    SUBSCRIPTION_NOT_EXIST = 24
    SUBSCRIPTION_NOT_LATEST = 25
    SUBSCRIPTION_GROUP_NOT_EXIST = 26
    INVALID_PARAMETER = 29
    NO_MESSAGE = 208
    POLLING_FULL = 209
    POLLING_TIMEOUT = 210
    ILLEGAL_OPERATION = 604


class Refused(Exception):
    """
    A request is answered with another code than success.

    @ivar code: code of the answer, see L{Code}.
    @ivar remark: text for the client: the fault, and the allowed values.
    """

    def __init__(self, code: int, remark: str) -> None:
        super().__init__(code, remark)
        self.code = int(code)
        self.remark = remark

    def __str__(self) -> str:
        return f"{self.remark} ({self.code})"


class RefusalCounts:
    """
    Number of refused requests, by request code and code of the answer, for all parts of a server.

    The first of each pair is logged. Further pairs beyond L{PAIRS_MAX} are counted together.

    @ivar counts: request code and code of the answer to number of requests.
    @ivar others: requests that were refused with none of these pairs.
    """

    log = Logger()

    def __init__(self) -> None:
        self.counts: dict[tuple[int, int], int] = {}
        self.others = 0

    def refused(self, address: str, code: int, answer: int, reason: str, by: int = 1) -> None:
        """@param by: number of equal requests."""
        kind = (code, int(answer))
        if kind not in self.counts:
            if len(self.counts) >= PAIRS_MAX:
                self.others += by
                return
            self.log.info(
                "request {code} of {address} refused with {answer}: {reason} (logged once, then counted)",
                code=code, address=address, answer=int(answer), reason=reason,
            )
        self.counts[kind] = self.counts.get(kind, 0) + by

    def __str__(self) -> str:
        shown = [f"{code}:{answer}={times}" for (code, answer), times in sorted(self.counts.items())]
        return " ".join([*shown, f"others={self.others}"] if self.others else shown)


class Fields:
    """
    The C{extFields} of a request. Missing or malformed fields are refused with SYSTEM_ERROR, as in Java.
    """

    def __init__(self, fields: Mapping[str, str]) -> None:
        self._fields = fields

    def text(self, name: str, default: str | None = None) -> str:
        """
        @param default: value of an absent field; None: the field is required.
        @raise Refused: the field is missing.
        """
        value = self._fields.get(name, default)
        if value is None:
            raise Refused(Code.SYSTEM_ERROR, f"the custom field <{name}> is null")
        return value

    def number(
        self, name: str, default: int | None = None, *, least: int = INT_MIN, most: int = INT_MAX
    ) -> int:
        """
        @param default: value of an absent field; None: the field is required.
        @raise Refused: the field is missing, or is not a number from C{least} to C{most}.
        """
        text = self._fields.get(name)
        if text is None:
            if default is None:
                raise Refused(Code.SYSTEM_ERROR, f"the custom field <{name}> is null")
            return default
        digits = text[1:] if text[:1] in ("-", "+") else text
        if not (digits.isascii() and digits.isdecimal() and len(digits) <= 20):
            raise Refused(Code.SYSTEM_ERROR, f"{name}={shown(text)} is not a number")
        value = int(text)
        if not least <= value <= most:
            raise Refused(Code.SYSTEM_ERROR, f"{name}={value} is outside {least}..{most}")
        return value

    def flag(self, name: str, default: bool | None = None) -> bool:
        """
        @param default: value of an absent field; None: the field is required.
        @raise Refused: the field is missing, or is neither true nor false.
        """
        text = self._fields.get(name)
        if text is None:
            if default is None:
                raise Refused(Code.SYSTEM_ERROR, f"the custom field <{name}> is null")
            return default
        if text.lower() not in ("true", "false"):
            raise Refused(Code.SYSTEM_ERROR, f"{name}={shown(text)} is neither true nor false")
        return text.lower() == "true"
