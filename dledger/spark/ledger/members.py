# -*- test-case-name: tests.spark.test_members -*-
"""
Mode C{bootstrap}: raw committed records from the members of a group, over native frames, without Twisted.

One blocking connection, one request ahead of the decoding. Rules:

 - This reader keeps the next index, so a pull can be repeated on any member: it leaves a member that sends
   other entries, or an answer that is malformed.
 - Followers first, the leader last (or as C{readFrom} says), another member after each trouble; the search
   ends when no member has sent an entry for C{requestTimeoutMs}.
 - Planning asks every member, hears a majority, and takes the highest committed index; a member that has not
   committed as far when it is asked for entries has trouble like any other.
 - Entries have expired when every member says so. Members that cannot be heard are waited for, then named.
 - All members that are heard while planning name the same id of their group, as far as they know it. One that
   was removed from the group says so: its log ends there, so it counts as not heard, except that the members
   which it names are asked.
"""

from __future__ import annotations

import random
import time
from collections import deque
from collections.abc import Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import closing

import attrs

from dledger.spark.formats.log import (
    PAUSE_MAX_S,
    PAUSE_S,
    Chunk,
    DamageError,
    Extent,
    ReadError,
    lost,
    skipped,
)
from dledger.spark.formats.option_texts import OptionError
from dledger.spark.formats.options import ScanOptions
from dledger.spark.formats.proof import Proof, of_group, of_record
from dledger.spark.ledger.member_connection import (
    CONNECT_S,
    LogExpired,
    MemberConnection,
    MemberRefused,
    NotNative,
    NotNow,
    Pulled,
    Trouble,
    record_starts,
)
from dledger.values.addresses import parse_members
from protocols.wire.ledger.entry import ENTRY_HEADER_SIZE, decode_header
from protocols.wire.ledger.memberships import REMOVED
from protocols.wire.ledger.messages import MetadataResponse

#: Planning does not wait longer than this for slow members if the answers of the others suffice, seconds.
_SLOW_S = 1.0
#: A stream asks its members again whether they were removed, seconds.
_ASK_MORE_S = 30.0
_EARLIER = ". Not heard, and may have earlier ones: "


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


class MembersLog:
    """
    A group of members. Offsets are indexes.

    Invariant: C{_pending} is the index of the pull whose answer has not been taken from C{_connection}, or
    -1.

    Implements L{dledger.spark.formats.log.ScannedLog}.
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
        #: The id of the group, asked for once; the records distinguish logs of one group.
        self._group_id = ""
        self._is_named = False
        self._said: set[str] = set()
        #: From then on members are asked for all that they say, not only for their ends.
        self._asks_more_s = 0.0

    # -- planning -------------------------------------------------------------------------------

    def extent(self, *, needs_begin: bool = True) -> Extent:
        """
        See L{dledger.spark.formats.log.ScannedLog.extent}. C{begin} is the lowest that any member has.

        @raise ReadError: no majority of the members answers, and C{failOnDataLoss} is set; or none answers.
        """
        deadline, pause = time.monotonic() + self._timeout_s, PAUSE_S
        while True:
            heard = self._hear(needs_begin)
            if heard.is_majority:
                break
            is_final = all(isinstance(problem, MemberRefused) for problem in heard.problems.values())
            if is_final or time.monotonic() >= deadline:
                self._too_few(heard)
                break
            time.sleep(pause)
            pause = min(2 * pause, PAUSE_MAX_S)
        self._looked.clear()
        if time.monotonic() >= self._asks_more_s:
            self._asks_more_s = time.monotonic() + _ASK_MORE_S
        if not self._is_named:
            self._group_id = self._common_id(heard)
            self._is_named = True
        end = max(answer.committed_index for answer in heard.answers.values()) + 1
        note = f"{_EARLIER}{heard.unheard}" if heard.begin and heard.unheard else ""
        self._extent = Extent(begin=heard.begin, end=max(end, heard.begin), note=note)
        return self._extent

    def _too_few(self, heard: _Heard) -> None:
        group = self._options.group
        if not heard.answers:
            raise ReadError(f"no member of group {group!r} answers: {_listed(heard.problems)}")
        what = (f"only {', '.join(sorted(heard.answers))} of group {group!r} answered within "
                f"{self._timeout_s:g} s (requestTimeoutMs), which is not a majority, so later entries may be "
                f"committed; not heard: {heard.unheard}")
        if self._options.fail_on_data_loss:
            raise ReadError(f"{what}. With option failOnDataLoss=false the entries that are known are read")
        self._say(what)

    def _say(self, what: str) -> None:
        if what not in self._said:
            self._said.add(what)
            skipped(what)

    def _common_id(self, heard: _Heard) -> str:
        ids = {answer.group_id: member_id for member_id, answer in sorted(heard.answers.items())
               if answer.is_group_known and answer.group_id}
        if len(ids) > 1:
            named = ", ".join(f"{member_id} is of {group_id}" for group_id, member_id in ids.items())
            raise ReadError(f"option bootstrap names members of different groups: {named}")
        return next(iter(ids), "")

    def _hear(self, needs_begin: bool) -> _Heard:
        """
        Ask all members, also those that the answers name. Waits for slow ones as long as the answers do not
        suffice, but not longer than one connection does.
        """
        asked: dict[str, Future[MetadataResponse]] = {}
        slow_s = time.monotonic() + _SLOW_S
        pool = ThreadPoolExecutor(max_workers=16)
        try:
            while True:
                for member_id, address in self._addresses.items():
                    if member_id not in asked:
                        asked[member_id] = pool.submit(self._ask, member_id, address)
                waiting = [future for future in asked.values() if not future.done()]
                heard = _Heard.of(asked, self._addresses)
                if any(member_id not in asked for member_id in (*heard.members, *heard.addresses)):
                    self._addresses = {**heard.addresses, **self._addresses}
                    continue
                left = slow_s - time.monotonic()
                if not waiting or (left <= 0 and heard.suffices(needs_begin)):
                    return heard
                wait(waiting, timeout=max(left, PAUSE_S), return_when=FIRST_COMPLETED)
        finally:
            pool.shutdown(wait=False, cancel_futures=True)

    def _ask(self, member_id: str, address: str) -> MetadataResponse:
        timeout_s = min(self._timeout_s, CONNECT_S)
        with closing(self._connect(member_id, address, timeout_s)) as connection:
            answer = connection.metadata()
        if time.monotonic() < self._asks_more_s:
            return answer
        try:
            # A connection speaks one dialect, and only the JSON of remoting frames has the id and the health.
            with closing(self._connect(member_id, address, timeout_s)) as connection:
                more = connection.remoting_metadata()
        except Trouble:
            return answer  # (Only just now: it has answered before.)
        group_id = more.group_id if more.is_group_known else ""
        return attrs.evolve(answer, group_id=group_id, is_group_known=bool(group_id), health=more.health)

    def _connect(self, member_id: str, address: str, timeout_s: float) -> MemberConnection:
        options = self._options
        tls = None if member_id in options.tls_plain_members else options.tls
        return MemberConnection(member_id, address, options.group, timeout_s, tls, options.token_file)

    def group_id(self) -> str:
        return self._group_id

    def proof(self, offset: int) -> Proof:
        facts, index = of_group(self._group_id), offset - 1
        if not self._extent.begin <= index < self._extent.end:
            return facts
        for chunk in self._pull(index, offset, ENTRY_HEADER_SIZE):
            assert chunk.data is not None
            found = of_record(chunk.data, index)
            if found is None and self._options.fail_on_damage:
                raise DamageError(f"entry {index} is damaged: {chunk.place} at {chunk.place_at}. With option "
                                  "failOnDamage=false it is skipped")
            facts |= found or {}
        return facts

    def position_of(self, offset: int) -> int:
        """See L{dledger.spark.formats.log.ScannedLog.position_of}: a record holds its own position."""
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
        return min(begin + count, end)

    # -- reading --------------------------------------------------------------------------------

    def chunks(self, begin: int, end: int, *, with_data: bool) -> Iterator[Chunk]:
        for chunk in self._pull(begin, end, self._options.fetch_bytes):
            yield attrs.evolve(chunk, chain_before=0) if chunk.first == 0 else chunk

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
                    index = lost(self._options, index, first, end=end, note=search.note)
                    search = _Search(self._timeout_s, random.Random(begin))
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
            connection = self._connect(member_id, self._addresses[member_id], self._timeout_s)
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
        self._pause = PAUSE_S
        self._problems: dict[str, Trouble] = {}
        self._is_round = False
        self._round.clear()
        self._put_off.clear()

    def next(self, addresses: Mapping[str, str]) -> tuple[str, bool]:
        """A member, and whether to take it even if C{readFrom} prefers others."""
        if not self._round and not self._put_off:
            if self._is_round:
                time.sleep(self._pause)
                self._pause = min(2 * self._pause, PAUSE_MAX_S)
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

        @return: if every member of this round was tried, and all that can serve answered that the wanted
            index has expired: the lowest of their first indexes; else -1. Members that do not answer are
            tried for C{timeout_s}.
        @raise ReadError: no member has served for C{timeout_s}, or all have refused for good.
        """
        if isinstance(trouble, NotNow):
            return -1
        self._problems[self._trying] = trouble
        if not self._is_round or self._round or self._put_off:
            return -1
        problems = self._problems.values()
        firsts = [problem.first_index for problem in problems if isinstance(problem, LogExpired)]
        are_sure = all(isinstance(problem, LogExpired | MemberRefused | NotNative) for problem in problems)
        if firsts and (are_sure or time.monotonic() >= self._deadline):
            return min(firsts)
        if all(isinstance(problem, MemberRefused) for problem in self._problems.values()):
            raise ReadError(f"no member sends entries: {_listed(self._problems)}")
        if time.monotonic() >= self._deadline:
            raise ReadError(
                f"no member has sent an entry for {self._timeout_s:g} s (requestTimeoutMs): "
                f"{_listed(self._problems)}"
            )
        return -1


    @property
    def note(self) -> str:
        """The members that could not be asked, for a message about expired entries; or nothing."""
        unheard = {member_id: problem for member_id, problem in self._problems.items()
                   if not isinstance(problem, LogExpired)}
        return f"{_EARLIER}{_listed(unheard)}" if unheard else ""


@attrs.frozen(kw_only=True)
class _Heard:
    """
    The members' answers to one question.

    @ivar members: of the group, as far as they are known.
    @ivar addresses: of members that the answers name.
    @ivar problems: of members that did not answer.
    """

    members: frozenset[str]
    addresses: Mapping[str, str]
    answers: Mapping[str, MetadataResponse]
    problems: Mapping[str, Trouble]

    @classmethod
    def of(cls, asked: Mapping[str, Future[MetadataResponse]], named: Mapping[str, str]) -> _Heard:
        """@param named: the members known so far; they count until an answer lists the members."""
        answers: dict[str, MetadataResponse] = {}
        problems: dict[str, Trouble] = {}
        addresses: dict[str, str] = {}
        removed: dict[str, str] = {}
        for member_id, future in asked.items():
            if not future.done():
                problems[member_id] = Trouble("no answer yet")
                continue
            error = future.exception()
            if error is None and future.result().health.partition(":")[0] == REMOVED:
                problems[member_id] = MemberRefused("it was removed from the group, and its log ends there")
                removed.update(future.result().peers)
            elif error is None:
                answers[member_id] = future.result()
                addresses.update(answers[member_id].peers)
            elif isinstance(error, Trouble):
                problems[member_id] = error
            else:
                raise error
        return cls(members=frozenset(addresses or named), addresses={**removed, **addresses},
                   answers=answers, problems=problems)

    @property
    def begin(self) -> int:
        """The lowest first entry that a member has; 0 if none has an entry."""
        return min((answer.begin_index for answer in self.answers.values() if answer.begin_index >= 0),
                   default=0)

    @property
    def is_majority(self) -> bool:
        """Whether a majority has answered of the members that understand native frames."""
        able = {member_id for member_id in self.members
                if not isinstance(self.problems.get(member_id), NotNative)}
        return bool(self.answers) and len(able & self.answers.keys()) > len(able) // 2

    def suffices(self, needs_begin: bool) -> bool:
        """Whether members that have not answered yet need not be waited for."""
        return self.is_majority and not (needs_begin and self.begin)

    @property
    def unheard(self) -> str:
        """The members that did not answer, with their problems; empty if all have."""
        return _listed({
            member_id: self.problems.get(member_id, Trouble("not asked"))
            for member_id in self.members - self.answers.keys()
        })


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
