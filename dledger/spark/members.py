# -*- test-case-name: tests.spark.test_members -*-
"""
Mode C{bootstrap}: raw committed records from the members of a group, over native frames, without Twisted.

One blocking connection, one request ahead of the decoding. Rules:

 - This reader keeps the next index, so a pull can be repeated on any member: it leaves a member that sends
   other entries, or an answer that is malformed.
 - Followers first, the leader last (or as C{readFrom} says), another member after each trouble; the search
   ends when no member has sent an entry for C{requestTimeoutMs}.
 - Planning asks every member and takes the highest committed index; a member that has not committed as far
   when it is asked for entries has trouble like any other.
 - Entries have expired when every member that answers says so.

The answers are cut into records here by walking over the sizes; if all sizes are equal, which is common, no
walk is needed.
"""

from __future__ import annotations

import random
import socket
import time
from collections import deque
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor, wait

import attrs
import numpy as np

from dledger.base.addresses import parse_address, parse_members
from dledger.spark.log import Chunk, Extent, Offsets, ReadError, lost
from dledger.spark.options import OptionError, ScanOptions
from protocols.wire.errors import WireError
from protocols.wire.layout import struct_of, struct_of_some
from protocols.wire.ledger.codes import RequestCode, ResponseCode
from protocols.wire.ledger.entry import BLANK_DECLARATION, ENTRY_HEADER_SIZE, decode_header
from protocols.wire.ledger.messages import UNCHECKED, MetadataRequest, MetadataResponse, PullRequest, Request
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

_PULL_ANSWER = struct_of(PULL_RESPONSE_DECLARATION)
_PULL_FIELDS = tuple(subcon.name for subcon in PULL_RESPONSE_DECLARATION.subcons)
_PULL_TEXTS = ("group_length", "remote_id_length", "local_id_length", "leader_id_length")
_SIZE = struct_of_some(BLANK_DECLARATION, "size")
#: Longest time to connect, and to ask one member while planning, seconds.
_CONNECT_S = 5.0
#: Planning does not wait longer than this for slow members if others have answered, seconds.
_SLOW_S = 1.0
#: Pauses between rounds over members that all have trouble, seconds.
_PAUSE_S, _PAUSE_MAX_S = 0.02, 0.5
_RECEIVE_BYTES = 1 << 20


class Trouble(Exception):
    """This member cannot serve now; another one, or the same later, may."""


class MemberRefused(Trouble):
    """This member will never serve us: another group, another id."""


class NotNow(Trouble):
    """This member could serve, but another one is better."""


class Expired(Trouble):
    """This member no longer has the entry; C{first_index} is the first that it has."""

    def __init__(self, first_index: int) -> None:
        super().__init__(f"its first entry is {first_index}")
        self.first_index = first_index


@attrs.frozen(kw_only=True)
class Pulled:
    """An answer to a pull: records as received, unchecked; C{records} may be empty."""

    first_index: int
    count: int
    committed_index: int
    records: memoryview


def parse_bootstrap(text: str) -> dict[str, str]:
    """
    Member ids to addresses.

    @param text: C{n0-host:port;n1-host:port}.
    @raise OptionError: it has another form.
    """
    try:
        return parse_members(text, "option bootstrap")
    except ValueError as error:
        raise OptionError(str(error)) from None


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

    def __init__(self, member_id: str, address: str, group: str, timeout_s: float) -> None:
        """@raise Trouble: the address refuses the connection or does not answer."""
        self.member_id = member_id
        self._group = group
        self._opaque = 0
        try:
            self._socket = socket.create_connection(
                parse_address(address), timeout=min(timeout_s, _CONNECT_S)
            )
            self._socket.settimeout(timeout_s)
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        except (OSError, ValueError) as error:  # a member may name others with malformed addresses
            raise Trouble(f"no connection to {address}: {error}") from None

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
                raise Trouble(f"connection lost: {error}") from None
            if not got:
                raise Trouble("connection closed (a Java member does not understand native frames)"
                              if not at and self._opaque == 1 else "connection closed")
            at += got
        return data

    def _frame(self, kind: RequestCode) -> tuple[bytearray, bytearray]:
        """Header and rest of the answer to the last request."""
        header = self._receive(FRAME_HEADER_SIZE)
        first, version, number, flags, opaque, length = FRAME_HEADER.unpack(header)
        if (first, version, number, flags) != (NATIVE_FIRST_BYTE, FRAME_VERSION, KINDS[kind], FLAG_RESPONSE):
            raise Trouble(f"it answered with frame {header.hex()}")
        if opaque != self._opaque or not 0 <= length <= NATIVE_FRAME_BYTES_MAX - FRAME_HEADER_SIZE:
            raise Trouble(f"it answered request {self._opaque} with opaque={opaque}, length={length}")
        return header, self._receive(length)

    def metadata(self) -> MetadataResponse:
        """
        The member's view of itself and of the group.

        @raise Trouble: it does not answer, or refuses.
        """
        self.send(MetadataRequest(group=self._group, remote_id=self.member_id))
        header, rest = self._frame(RequestCode.METADATA)
        try:
            _, answer = decode_frame(bytes(header + rest))
        except WireError as error:
            raise Trouble(str(error)) from None
        assert isinstance(answer, MetadataResponse)
        if answer.code in (ResponseCode.UNKNOWN_GROUP, ResponseCode.UNKNOWN_MEMBER):
            raise MemberRefused(f"it refuses: {answer.code.name}")
        if answer.code is not ResponseCode.SUCCESS:
            raise Trouble(f"it refuses: {answer.code.name}")
        return answer

    def ask_pull(self, begin: int, end: int, max_bytes: int) -> None:
        """Ask for entries from C{begin} to C{end} (exclusive). @raise Trouble: the connection is lost."""
        self.send(PullRequest(group=self._group, remote_id=self.member_id, begin_index=begin,
                              end_index=end - 1, max_bytes=max_bytes, node_id=UNCHECKED))

    def pulled(self) -> Pulled:
        """
        The answer to L{ask_pull}. Its records are not decoded here, but later, all at once.

        @raise Expired: the entries have expired.
        @raise Trouble: there is no answer, or the answer is a refusal or malformed.
        """
        _, rest = self._frame(RequestCode.PULL)
        if len(rest) < _PULL_ANSWER.size:
            raise Trouble(f"an answer of {len(rest)} bytes")
        fields = dict(zip(_PULL_FIELDS, _PULL_ANSWER.unpack_from(rest), strict=True))
        if fields["code"] == ResponseCode.INDEX_LESS_THAN_LOCAL_BEGIN:
            raise Expired(fields["ledger_begin_index"])
        if fields["code"] != ResponseCode.SUCCESS:
            raise Trouble(f"it refuses: {_code_name(fields['code'])}")
        at = _PULL_ANSWER.size + sum(max(fields[name], 0) for name in _PULL_TEXTS)
        if at > len(rest):
            raise Trouble(f"an answer of {len(rest)} bytes whose texts end at {at}")
        return Pulled(first_index=fields["first_index"], count=fields["count"],
                      committed_index=fields["committed_index"], records=memoryview(rest)[at:])

    def close(self) -> None:
        """Release the connection."""
        self._socket.close()


def _code_name(number: int) -> str:
    try:
        return ResponseCode(number).name
    except ValueError:
        return str(number)


class MembersLog:
    """
    A group of members. Offsets are indexes.

    Invariant: C{_pending} is the index of the pull whose answer has not been taken from C{_connection}, or
    -1.
    """

    def __init__(self, options: ScanOptions) -> None:
        """@raise OptionError: C{bootstrap} makes no sense."""
        self._options = options
        self._addresses = parse_bootstrap(options.bootstrap)
        self._timeout_s = options.request_timeout_ms / 1000
        self._connection: MemberConnection | None = None
        self._pending = -1
        self._extent = Extent(begin=0, end=0)
        self._looked: dict[int, tuple[int, int]] = {}

    # -- planning -------------------------------------------------------------------------------

    def extent(self) -> Extent:
        """See L{dledger.spark.log.ScannedLog.extent}. C{begin} is the lowest that any member has."""
        deadline, pause = time.monotonic() + self._timeout_s, _PAUSE_S
        while True:
            answers, problems = self._ask_all()
            if answers:
                break
            is_final = all(isinstance(problem, MemberRefused) for problem in problems.values())
            if is_final or time.monotonic() >= deadline:
                raise ReadError(f"no member of group {self._options.group!r} answers: {_listed(problems)}")
            time.sleep(pause)
            pause = min(2 * pause, _PAUSE_MAX_S)
        self._looked.clear()
        begin = min((answer.begin_index for answer in answers if answer.begin_index >= 0), default=0)
        end = max(answer.committed_index for answer in answers) + 1
        self._extent = Extent(begin=begin, end=max(end, begin))
        return self._extent

    def _ask_all(self) -> tuple[list[MetadataResponse], dict[str, Trouble]]:
        """The answers of the members, and their troubles; waits for slow members only without an answer."""
        problems: dict[str, Trouble] = {}
        answers: list[MetadataResponse] = []

        def ask(member_id: str, address: str) -> None:
            try:
                connection = MemberConnection(
                    member_id, address, self._options.group, min(self._timeout_s, _CONNECT_S)
                )
                try:
                    answers.append(connection.metadata())
                finally:
                    connection.close()
            except Trouble as trouble:
                problems[member_id] = trouble

        pool = ThreadPoolExecutor(max_workers=min(len(self._addresses), 16))
        asked = [pool.submit(ask, *member) for member in self._addresses.items()]
        wait(asked, timeout=_SLOW_S)
        if not answers:
            wait(asked)
        pool.shutdown(wait=False, cancel_futures=True)
        found = list(answers)
        for answer in found:
            self._addresses = {**answer.peers, **self._addresses}
        return found, dict(problems)

    def position_of(self, offset: int) -> int:
        """See L{dledger.spark.log.ScannedLog.position_of}: a record holds its own position."""
        extent = self._extent
        if extent.begin >= extent.end:
            return 0
        if offset < extent.end:
            return self._look(offset)[0]
        return sum(self._look(extent.end - 1))

    def _look(self, index: int) -> tuple[int, int]:
        """Position and size of a record."""
        if index not in self._looked:
            for chunk in self._pull(index, index + 1, ENTRY_HEADER_SIZE):
                assert chunk.data is not None
                header = decode_header(chunk.data)
                # If it has expired meanwhile, this is the first entry that is left.
                self._looked[index] = header.pos, header.size
            if index not in self._looked:
                # All entries up to here have expired; the read will report it.
                self._looked[index] = 0, 0
        return self._looked[index]

    def after(self, begin: int, end: int, count: int) -> int:
        """See L{dledger.spark.log.ScannedLog.after}."""
        return min(begin + count, end)

    # -- reading --------------------------------------------------------------------------------

    def chunks(self, begin: int, end: int, *, with_data: bool) -> Iterator[Chunk]:
        """See L{dledger.spark.log.ScannedLog.chunks}."""
        return self._pull(begin, end, self._options.fetch_bytes)

    def _pull(self, begin: int, end: int, max_bytes: int) -> Iterator[Chunk]:
        if self._pending >= 0:
            self._leave()  # the reader before stopped in the middle
        index, search = begin, _Search(self._timeout_s, random.Random(begin))
        while index < end:
            try:
                connection = self._connected(search)
                if self._pending < 0:
                    connection.ask_pull(index, end, max_bytes)
                    self._pending = index
                pulled = connection.pulled()
                self._pending = -1
                chunk = _chunk_of(pulled, index, end, connection)
            except Trouble as trouble:
                self._leave()
                first = search.failed(trouble)
                if first > index:
                    lost(self._options, index, min(first, end))
                    index, search = first, _Search(self._timeout_s, random.Random(begin))
                continue
            index += pulled.count
            search.succeeded()
            if index < end:
                self._ask_ahead(connection, index, end, max_bytes)
            yield chunk

    def _ask_ahead(self, connection: MemberConnection, index: int, end: int, max_bytes: int) -> None:
        try:
            connection.ask_pull(index, end, max_bytes)
            self._pending = index
        except Trouble:
            self._leave()  # the entries received so far are still good

    def _connected(self, search: _Search) -> MemberConnection:
        """
        The connection to read from.

        @raise Trouble: the next member to try cannot serve, or another one is preferred.
        """
        if self._connection is None:
            member_id, is_last_choice = search.next(self._addresses)
            connection = MemberConnection(
                member_id, self._addresses[member_id], self._options.group, self._timeout_s
            )
            try:
                answer = connection.metadata()
            except Trouble:
                connection.close()
                raise
            self._addresses = {**answer.peers, **self._addresses}
            is_leader = answer.role == "leader"
            wanted = self._options.read_from
            if not is_last_choice and wanted != "any" and is_leader != (wanted == "leader"):
                connection.close()
                search.put_off(member_id)
                raise NotNow(f"it is {answer.role}")
            self._connection = connection
        return self._connection

    def _leave(self) -> None:
        self._pending = -1
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def close(self) -> None:
        """See L{dledger.spark.log.ScannedLog.close}."""
        self._leave()


class _Search:
    """
    Which member to try next, and when to give up. A round tries every member once; members that C{readFrom}
    does not prefer come last in it. A round begins when the member that served has trouble.
    """

    def __init__(self, timeout_s: float, rng: random.Random) -> None:
        self._timeout_s = timeout_s
        self._rng = rng
        self._round: deque[str] = deque()
        self._put_off: list[str] = []
        self._trying = ""
        self._is_round = False
        self.succeeded()

    def succeeded(self) -> None:
        """A member has served."""
        self._deadline = time.monotonic() + self._timeout_s
        self._pause = _PAUSE_S
        self._problems: dict[str, Trouble] = {}
        self._is_round = False
        self._round.clear()
        self._put_off.clear()

    def next(self, addresses: Mapping[str, str]) -> tuple[str, bool]:
        """A member, and whether to take it even if C{readFrom} prefers others."""
        if not self._round and not self._put_off:
            if self._is_round:
                time.sleep(self._pause)
                self._pause = min(2 * self._pause, _PAUSE_MAX_S)
            self._is_round = True
            members = sorted(addresses)
            self._rng.shuffle(members)
            self._round.extend(members)
            self._problems = {}
        is_last_choice = not self._round
        self._trying = self._put_off.pop(0) if is_last_choice else self._round.popleft()
        return self._trying, is_last_choice

    def put_off(self, member_id: str) -> None:
        """Try this member again when no other is left in the round."""
        self._put_off.append(member_id)

    def failed(self, trouble: Trouble) -> int:
        """
        Note why the member could not serve.

        @return: if every member of this round was tried, and some answered that the wanted index has expired:
            the lowest of their first indexes; else -1.
        @raise ReadError: no member has served for C{timeout_s}.
        """
        if isinstance(trouble, NotNow):
            return -1
        self._problems[self._trying] = trouble
        if not self._is_round or self._round or self._put_off:
            return -1
        firsts = [problem.first_index for problem in self._problems.values() if isinstance(problem, Expired)]
        if firsts:
            return min(firsts)
        if time.monotonic() >= self._deadline:
            raise ReadError(
                f"no member has sent an entry for {self._timeout_s:g} s (requestTimeoutMs): "
                f"{_listed(self._problems)}"
            )
        return -1


def _chunk_of(pulled: Pulled, index: int, end: int, connection: MemberConnection) -> Chunk:
    """@raise Trouble: the answer does not fit the request."""
    if not pulled.count:
        raise Trouble(f"entry {index} is not committed there yet: it knows of {pulled.committed_index}")
    if pulled.first_index != index or not 0 < pulled.count <= end - index:
        raise Trouble(f"asked for entries {index}..{end - 1}, it sent {pulled.count} from "
                      f"{pulled.first_index} on")
    return Chunk(data=pulled.records, starts=record_starts(pulled.records, pulled.count), first=index,
                 place=f"answer of member {connection.member_id}")


def _listed(problems: Mapping[str, Trouble]) -> str:
    return "; ".join(f"{member_id}: {trouble}" for member_id, trouble in sorted(problems.items()))
