# -*- test-case-name: tests.spark.test_members -*-
"""
One blocking connection to a member, over native frames, without Twisted, and the troubles it may have.

A request may be under way while the previous answer is used. The answers are cut into records by walking over
the sizes; if all sizes are equal, which is common, no walk is needed.

Knows nothing of groups, nor of other members.
"""

from __future__ import annotations

import os
import socket
from contextlib import closing
from typing import Any

import attrs
import numpy as np

from dledger.spark.formats.log import Offsets, ReadError
from dledger.spark.ledger.member_tls import NotThatMember, shake_hands
from dledger.values.addresses import is_loopback, parse_address
from dledger.values.client_token import read_token
from dledger.values.tls_files import TlsFiles
from protocols.wire.codes import ResponseCode
from protocols.wire.errors import WireError
from protocols.wire.layout import struct_of, struct_of_some
from protocols.wire.ledger.codes import RequestCode
from protocols.wire.ledger.entry import BLANK_DECLARATION, ENTRY_HEADER_SIZE
from protocols.wire.ledger.java.json_bodies import decode_response, encode_request
from protocols.wire.ledger.messages import (
    UNCHECKED,
    AppendOnceRequest,
    AppendOnceResponse,
    MetadataRequest,
    MetadataResponse,
    PullRequest,
    ReaderRequest,
    ReaderResponse,
    Request,
    Response,
)
from protocols.wire.ledger.push import decode_frame, encode_request_frame
from protocols.wire.ledger.push_layout import KINDS, PULL_RESPONSE_DECLARATION
from protocols.wire.native import (
    FLAG_RESPONSE,
    FRAME_HEADER,
    FRAME_HEADER_SIZE,
    FRAME_VERSION,
    NATIVE_FIRST_BYTE,
    NATIVE_FRAME_BYTES_MAX,
)
from protocols.wire.remoting import LENGTH_WORD_SIZE, RemotingCommand, decode_command, encode_command

_PULL_ANSWER = struct_of(PULL_RESPONSE_DECLARATION)
_PULL_FIELDS = tuple(subcon.name for subcon in PULL_RESPONSE_DECLARATION.subcons)
_PULL_TEXTS = ("group_length", "remote_id_length", "local_id_length", "leader_id_length")
_SIZE = struct_of_some(BLANK_DECLARATION, "size")
#: Longest time to connect, and to ask one member while planning, seconds.
CONNECT_S = 5.0
_RECEIVE_BYTES = 1 << 20
#: Answers that this member will always give.
_FOR_GOOD = (ResponseCode.UNKNOWN_GROUP, ResponseCode.UNKNOWN_MEMBER, ResponseCode.FORBIDDEN)
#: Bytes of an answer in JSON, such as the list of the members, at most.
_JSON_BYTES_MAX = 1 << 20


class Trouble(Exception):
    """This member cannot serve now; another one, or the same later, may."""


class MemberRefused(Trouble):
    """This member will never serve us: another group, another id."""


class NotNative(Trouble):
    """This member understands remoting frames, but not native ones, as Java's do: it cannot be heard."""


class NotNow(Trouble):
    """This member could serve, but another one is better."""


class LogExpired(Trouble):
    """This member no longer has the entry; C{first_index} is the first that it has."""

    def __init__(self, first_index: int) -> None:
        super().__init__(f"its first entry is {first_index}")
        self.first_index = first_index


class _Unanswered(Trouble):
    """The member closed the connection at the first request."""


@attrs.frozen(kw_only=True)
class Pulled:
    """An answer to a pull: records as received, unchecked; C{records} may be empty."""

    first_index: int
    count: int
    committed_index: int
    records: memoryview


def record_starts(records: memoryview, count: int) -> Offsets:
    """
    Where each of C{count} records begins, then where the last one ends.

    @raise Trouble: the sizes do not add up.
    """
    total = len(records)
    size = _SIZE.unpack_from(records)[0] if total >= 8 else 0
    if size >= ENTRY_HEADER_SIZE and size * count == total:
        rows = np.frombuffer(records, dtype=np.uint8).reshape(count, size)[:, 4:8]
        if (rows == rows[0]).all():
            return np.arange(0, total + 1, size, dtype=np.int64)
    starts, at = [0], 0
    unpack = _SIZE.unpack_from
    for _ in range(count):
        if at + ENTRY_HEADER_SIZE > total:
            raise Trouble(f"{total} bytes are too few for {count} entries")
        (size,) = unpack(records, at)
        if size < ENTRY_HEADER_SIZE:
            raise Trouble(f"an entry of {size} bytes")
        at += size
        starts.append(at)
    if at != total:
        raise Trouble(f"{count} entries end at byte {at} of {total}")
    return np.array(starts, dtype=np.int64)


class MemberConnection:
    """
    One connection. A request may be under way while the previous answer is used.

    Every wait ends after C{timeout_s} without a byte.
    """

    def __init__(
        self, member_id: str, address: str, group: str, timeout_s: float, tls: TlsFiles | None = None,
        token_file: str = "",
    ) -> None:
        """
        @param tls: None: without TLS.
        @param token_file: with the token that is shown to the member; empty: none.
        @raise MemberRefused: by its certificate it is not this member, or it does not know the token.
        @raise Trouble: the address refuses the connection or does not answer.
        @raise ReadError: a file of C{tls} is missing here, or not sound.
        """
        self.member_id = member_id
        self._tls = tls
        self._address = address
        self._timeout_s = timeout_s
        self._group = group
        self._opaque = 0
        token = _token(token_file, address, is_secure=tls is not None)
        try:
            self._socket = socket.create_connection(
                parse_address(address), timeout=min(timeout_s, CONNECT_S)
            )
        except (OSError, ValueError) as error:  # a member may name others with malformed addresses
            raise Trouble(f"no connection to {address}: {error}") from None
        try:
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if tls is not None:
                self._socket = shake_hands(self._socket, tls, member_id, group)
            self._socket.settimeout(timeout_s)
            if token:
                self._show(token, token_file)
        except NotThatMember as error:
            self._socket.close()
            raise MemberRefused(f"{address}: {error}") from None
        except OSError as error:
            self._socket.close()
            raise Trouble(f"no TLS connection to {address}: {error}") from None
        except BaseException:
            self._socket.close()
            raise

    def _show(self, token: str, path: str) -> None:
        """@raise MemberRefused: the member does not know the token."""
        if self.remoting_metadata(token).code is ResponseCode.FORBIDDEN:
            raise MemberRefused(f"it does not know the token of tokenFile={path}, or not for this group")
        self._opaque = 0  # the first request that counts is still to come

    def send(self, request: Request) -> None:
        """Send a request. @raise Trouble: the connection is lost."""
        self._opaque += 1
        try:
            self._socket.sendall(encode_request_frame(request, self._opaque))
        except OSError as error:
            raise Trouble(f"connection lost: {error}") from None

    def _receive(self, size: int) -> bytearray:
        data = bytearray(size)
        view, at = memoryview(data), 0
        while at < size:
            try:
                got = self._socket.recv_into(view[at:], min(size - at, _RECEIVE_BYTES))
            except TimeoutError:
                raise Trouble("no answer in time") from None
            except OSError as error:
                raise Trouble(f"connection lost: {error}{self._hint}") from None
            if not got and not at and self._opaque == 1:
                raise _Unanswered(f"connection closed without an answer{self._hint}")
            if not got:
                raise Trouble("connection closed")
            at += got
        return data

    @property
    def _hint(self) -> str:
        """How a connection to a member with TLS ends, if this one is without."""
        may_be = self._opaque == 1 and self._tls is None
        return " (a group with TLS needs the option tlsCertificate)" if may_be else ""

    def _frame(self, kind: RequestCode) -> tuple[bytearray, bytearray]:
        """Header and rest of the answer to the last request."""
        header = self._receive(FRAME_HEADER_SIZE)
        first, version, number, flags, opaque, length = FRAME_HEADER.unpack(header)
        if (first, version, number, flags) != (NATIVE_FIRST_BYTE, FRAME_VERSION, KINDS[kind], FLAG_RESPONSE):
            raise Trouble(f"it answered with frame {header.hex()}{self._hint}")
        if opaque != self._opaque or not 0 <= length <= NATIVE_FRAME_BYTES_MAX - FRAME_HEADER_SIZE:
            raise Trouble(f"it answered request {self._opaque} with opaque={opaque}, length={length}")
        return header, self._receive(length)

    def metadata(self) -> MetadataResponse:
        """
        The member's view of itself and of the group.

        @raise NotNative: it answers remoting frames only.
        @raise Trouble: it does not answer, or refuses.
        """
        self.send(MetadataRequest(group=self._group, remote_id=self.member_id))
        try:
            header, rest = self._frame(RequestCode.METADATA)
        except _Unanswered as trouble:
            raise self._java_or(trouble) from None
        try:
            _, answer = decode_frame(bytes(header + rest))
        except WireError as error:
            raise Trouble(str(error)) from None
        assert isinstance(answer, MetadataResponse)
        if answer.code in _FOR_GOOD:
            raise MemberRefused(f"it refuses: {answer.code.name}")
        if answer.code is not ResponseCode.SUCCESS:
            raise Trouble(f"it refuses: {answer.code.name}")
        return answer

    def _java_or(self, trouble: Trouble) -> Trouble:
        """
        L{NotNative} if the member proves to be Java's; else C{trouble}: a member of ours that is ending, or a
        proxy without a member, closes its connections, too, and must not be passed by as a Java member.
        """
        try:
            with closing(MemberConnection(
                self.member_id, self._address, self._group, self._timeout_s, self._tls
            )) as connection:
                answer = connection.remoting_metadata()
        except Trouble:
            return trouble
        # Only our members report their role.
        return trouble if answer.role else NotNative("it answers remoting frames only, as Java members do")

    def remoting_metadata(self, token: str = "") -> MetadataResponse:
        """
        As L{metadata}, in a remoting frame, which Java members understand, too.

        @param token: of this client; empty: none.
        @raise Trouble: it does not answer, the answer is malformed, or it has no place for this connection.
        """
        answer = self._asked(MetadataRequest(group=self._group, remote_id=self.member_id, token=token))
        assert isinstance(answer, MetadataResponse)
        if answer.code is ResponseCode.TOO_MANY_CLIENTS:
            raise Trouble(f"it refuses: {answer.health}")
        return answer

    def ask_reader(self, does: str, name: str, **fields: int | str) -> ReaderResponse:
        """
        A request about a named reader. @param fields: of L{ReaderRequest}.

        @raise Trouble: the outcome is not known.
        """
        given: dict[str, Any] = {**fields, "does": does, "name": name}
        answer = self._asked(ReaderRequest(group=self._group, remote_id=self.member_id, **given))
        assert isinstance(answer, ReaderResponse)
        return answer

    def _asked(self, request: Request) -> Response:
        """The answer to a request in a remoting frame. @raise Trouble: there is none, or it is malformed."""
        self._opaque += 1
        command = RemotingCommand(
            code=int(request.kind), opaque=self._opaque, ext_fields={}, body=encode_request(request)
        )
        try:
            self._socket.sendall(encode_command(command))
            length = int.from_bytes(self._receive(LENGTH_WORD_SIZE), "big")
            if length > _JSON_BYTES_MAX:
                raise Trouble(f"an answer of {length} bytes")
            frame = decode_command(bytes(self._receive(length)))
            return decode_response(request.kind, frame.body)
        except (OSError, WireError) as error:
            raise Trouble(str(error)) from None

    def ask_pull(self, begin: int, end: int, max_bytes: int) -> None:
        """Ask for entries from C{begin} to C{end} (exclusive). @raise Trouble: the connection is lost."""
        self.send(PullRequest(group=self._group, remote_id=self.member_id, begin_index=begin,
                              end_index=end - 1, max_bytes=max_bytes, node_id=UNCHECKED))

    def pulled(self) -> Pulled:
        """
        The answer to L{ask_pull}. Its records are not decoded here, but later, all at once.

        @raise LogExpired: the entries have expired.
        @raise Trouble: there is no answer, or the answer is a refusal or malformed.
        """
        _, rest = self._frame(RequestCode.PULL)
        if len(rest) < _PULL_ANSWER.size:
            raise Trouble(f"an answer of {len(rest)} bytes")
        fields = dict(zip(_PULL_FIELDS, _PULL_ANSWER.unpack_from(rest), strict=True))
        if fields["code"] == ResponseCode.INDEX_LESS_THAN_LOCAL_BEGIN:
            raise LogExpired(fields["ledger_begin_index"])
        if fields["code"] == ResponseCode.FORBIDDEN:
            raise MemberRefused("it refuses: FORBIDDEN, certificate and token have no role that may read")
        if fields["code"] != ResponseCode.SUCCESS:
            raise Trouble(f"it refuses: {_code_name(fields['code'])}")
        at = _PULL_ANSWER.size + sum(max(fields[name], 0) for name in _PULL_TEXTS)
        if at > len(rest):
            raise Trouble(f"malformed answer: {len(rest)} bytes, but its strings end at byte {at}")
        return Pulled(first_index=fields["first_index"], count=fields["count"],
                      committed_index=fields["committed_index"], records=memoryview(rest)[at:])

    def append_once(
        self, producer: str, sequence: int, bodies: tuple[bytes, ...], hidden: tuple[int, ...]
    ) -> AppendOnceResponse:
        """
        Append numbered bodies in one request; after another request on this connection, as members want it
        for large ones.

        @param hidden: numbers of the bodies that readers leave out.
        @raise Trouble: the outcome is not known.
        """
        self.send(AppendOnceRequest(
            group=self._group, remote_id=self.member_id, producer=producer, sequence=sequence, bodies=bodies,
            hidden=hidden,
        ))
        header, rest = self._frame(RequestCode.APPEND_ONCE)
        try:
            _, answer = decode_frame(bytes(header + rest))
        except WireError as error:
            raise Trouble(str(error)) from None
        assert isinstance(answer, AppendOnceResponse)
        return answer

    def close(self) -> None:
        """Release the connection."""
        self._socket.close()


def _token(path: str, address: str, *, is_secure: bool) -> str:
    """
    The token of a file; empty without one.

    @raise MemberRefused: everybody on the way to C{address} would read it.
    @raise ReadError: the file is missing on this machine, or has no token.
    """
    if not path:
        return ""
    if not is_secure and not is_loopback(address.rpartition(":")[0].strip("[]")):
        raise MemberRefused(f"the token is not shown to {address} without TLS: give tlsAuthority")
    try:
        return read_token(path, "option tokenFile")
    except ValueError as error:
        raise ReadError(f"{error}, on machine {os.uname().nodename}") from None


def _code_name(number: int) -> str:
    try:
        return ResponseCode(number).name
    except ValueError:
        return str(number)
