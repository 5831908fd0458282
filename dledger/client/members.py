# -*- test-case-name: tests.client.test_members -*-
"""
The members of one group as a client sees them: addresses, connections, and the leader; how it knows that a
member is the one that it asks for, and shows the member that it may ask.

Rule 1: at most one connection per member, made on demand and shared by all users.
Rule 2: a connection is handed out only after the member reported its id and wire version in METADATA.
Rule 3: a leader is a member that names itself as leader; of several, the one with the highest term.
Rule 4: a member that is used is asked for the others every L{REFRESH_S} seconds: members come, go and move
while one connection lasts, and after its end nobody else may be left of those that the caller named.
Rule 5: what a member names counts until it names others: at most C{MEMBERS_MAX} members each, and
L{ADDRESSES_MAX} of all. The caller's own are never forgotten.

This module knows nothing of appends or entries.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from itertools import islice

import attrs
from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.error import ConnectionRefusedError, TimeoutError
from twisted.internet.interfaces import IReactorTime, IStreamClientEndpoint
from twisted.logger import Logger
from twisted.python.failure import Failure

from dledger.base.keeper import Keeper
from dledger.base.serving.endpoints import EndpointFor, connect_with
from dledger.base.timing import Alarm, Gathering
from dledger.base.tls.securing import Dialling
from dledger.client.connection import MemberLink, RequestLost
from dledger.client.values import MemberInfo
from dledger.values.addresses import checked_members, is_loopback, parse_address
from dledger.values.client_token import ClientToken
from dledger.values.errors import DLedgerError
from protocols.turn import Turn
from protocols.wire.codes import ResponseCode
from protocols.wire.ledger.codes import MEMBERS_MAX, WIRE_VERSION_MASK
from protocols.wire.ledger.messages import MetadataRequest, MetadataResponse, Response


@attrs.frozen(kw_only=True)
class ClientSecurity:
    """
    @ivar tls: makes the connections by TLS; None: they are plain.
    @ivar token: shown to each member in the first request of a connection; None: there is none.
    """

    tls: Dialling | None = None
    token: ClientToken | None = None

    @property
    def token_text(self) -> str:
        """The token as METADATA has it; empty if there is none."""
        return "" if self.token is None else self.token.text

    def check(self, address: str) -> None:
        """@raise DLedgerError: everybody on the way to C{address} would read the token."""
        token = self.token
        if token is not None and self.tls is None and not (
            token.is_insecure or is_loopback(parse_address(address)[0])
        ):
            raise DLedgerError(
                ResponseCode.FORBIDDEN, reason=f"the token is not shown to {address} without TLS: give the "
                "authority of the members' certificates, or say that it may be (insecure)",
            )

    def dial(self, endpoint: IStreamClientEndpoint, member_id: str) -> IStreamClientEndpoint:
        """The endpoint to a member; by TLS it has to prove that it is C{member_id}."""
        return endpoint if self.tls is None else self.tls.dial(endpoint, member_id)

    @property
    def why_silent(self) -> str:
        """A guess why a member has ended a connection before its first answer."""
        if self.tls is None:
            return "the member may want TLS"
        return "the member may have no TLS, or not take this certificate"


#: Plain connections, without a token.
NO_SECURITY = ClientSecurity()


#: Seconds to wait for other answers after a member has claimed to lead: a leader that was cut off still
#: claims it, and a leader with a higher term wins.
_RIVALS_WAIT_S = 0.05
#: Seconds to wait for other answers after the first one: a frozen member must not hide for a whole
#: time-out that the others have elected a leader meanwhile.
_OTHERS_WAIT_S = 0.25

#: Seconds. The server closes a connection that was idle for 120 s; the client closes it earlier, so
#: that no request meets a connection that is being closed.
IDLE_CLOSE_S = 60.0
#: Seconds between two questions for the members, on a connection that is used.
REFRESH_S = 5.0
#: Most members of the caller and those that were learned, together.
ADDRESSES_MAX = 4 * MEMBERS_MAX


class Members:
    """
    Connections to the members, and the search for the leader.

    Invariant: C{keepers}, one for each member, hold probed connections.

    @ivar problems: member id to the reason why its last request failed; removed once it answers.
    @ivar turn: gathers the output of all connections.
    @ivar leader_id: leader found by the last search; None if it found none.
    @ivar group_id: id of the group, as the first member that knows it reported; empty before.
    @ivar given, named: the addresses that the program gave, and those that each member named last.
    """

    log = Logger()

    def __init__(
        self,
        peers: str | Mapping[str, str],
        *,
        group: str,
        clock: IReactorTime,
        endpoint_for: EndpointFor,
        wire: str = "auto",
        rng: random.Random,
        answer_timeout_s: float = 1.0,
        security: ClientSecurity = NO_SECURITY,
    ) -> None:
        if security.token is not None and wire == "binary":
            raise ValueError("a token needs wire=auto or remoting: native METADATA has no room for it")
        if wire not in ("auto", "remoting", "binary"):
            raise ValueError(f"wire={wire!r} must be auto, remoting or binary")
        self.group = group
        self.addresses = checked_members(peers)
        self.given = dict(self.addresses)
        self.reported: dict[str, str] = {}  # the last address that a member named, which may have moved
        self.named: dict[str, Mapping[str, str]] = {}
        self.problems: dict[str, str] = {}
        self.leader_id: str | None = None
        self.group_id = ""
        self.rng = rng
        self.turn = Turn(clock, self._output_failed)
        self._clock = clock
        self._endpoint_for = endpoint_for
        self._security = security
        self._wire = wire
        self._answer_timeout_s = answer_timeout_s
        self.keepers: dict[str, Keeper[MemberLink]] = {}
        self._gatherings: set[Gathering[MetadataResponse]] = set()
        self._search: Deferred[MemberLink | None] | None = None
        self._seekers: list[Deferred[MemberLink | None]] = []
        self._idle_check = Alarm(clock, self._close_idle)
        self._refresh = Alarm(clock, self._ask_used)
        self._is_closed = False

    def _output_failed(self, failure: Failure) -> None:
        self.log.failure("output to a member failed", failure)

    def connected(self, member_id: str) -> MemberLink | None:
        """The live connection to a member, or None."""
        keeper = self.keepers.get(member_id)
        link = keeper.connection if keeper is not None else None
        return link if link is not None and link.is_connected else None

    def connection(self, member_id: str) -> Deferred[MemberLink]:
        """
        @return: fires with a probed connection; fails with the reason (also noted in
            C{problems}). Cancelling stops the wait only.
        """
        keeper = self.keepers.get(member_id)
        if keeper is None:
            keeper = self.keepers[member_id] = Keeper(partial(self._attempt, member_id))
            if self._is_closed:
                keeper.close(_closed())
        link = keeper.connection
        if link is not None and not link.is_connected:
            keeper.lost(link)  # it is being closed
        return keeper.ready()

    def _attempt(self, member_id: str) -> Deferred[MemberLink]:
        def failed(failure: Failure) -> Failure:
            if member_id in self.addresses:
                self.problems[member_id] = _sentence(failure)
            return failure

        return Deferred.fromCoroutine(self._connect(member_id)).addErrback(failed)

    async def _connect(self, member_id: str) -> MemberLink:
        """Where it was last, where the other members say that it is, and where the caller said."""
        found = (self.addresses, self.reported, self.given)
        addresses = dict.fromkeys(one[member_id] for one in found if member_id in one)
        failed: Exception = DLedgerError(ResponseCode.UNKNOWN_MEMBER, reason=f"{member_id!r} is not a member")
        for address in addresses:
            try:
                link = await self._connect_at(member_id, address)
            except CancelledError:
                raise
            except Exception as error:
                failed = error
            else:
                self.addresses[member_id] = address
                return link
        raise failed

    async def _connect_at(self, member_id: str, address: str) -> MemberLink:
        security = self._security
        security.check(address)
        link = MemberLink(member_id, self._clock, self.turn, wire=self._wire, idle_s=IDLE_CLOSE_S)
        await connect_with(security.dial(self._endpoint_for(address), member_id), link.protocol)
        try:
            await self.metadata(link)
        except RequestLost as lost:
            raise RequestLost(f"{lost} (before its first answer: {security.why_silent})") from None
        except Exception:  # not GeneratorExit: Python may collect a story that nobody waits for
            link.abort("the member could not be probed")
            raise
        link.lost = self._lost
        link.was_used = False
        self._watch_idle()
        if not self._is_closed:
            self._refresh.set(REFRESH_S)
        return link

    def _lost(self, link: MemberLink) -> None:
        keeper = self.keepers.get(link.member_id)
        if keeper is not None:
            keeper.lost(link)

    @property
    def _links(self) -> list[MemberLink]:
        return [keeper.connection for keeper in self.keepers.values() if keeper.connection is not None]

    async def metadata(self, connection: MemberLink) -> MetadataResponse:
        """
        Ask the member at the other end of C{connection}, and learn its wire version.

        @raise DLedgerError: it is another member, or of another group, or does not answer in time.
        @raise RequestLost: the connection ended.
        """
        is_first = connection.metadata is None
        request = MetadataRequest(
            group=self.group, remote_id=connection.member_id,
            token=self._security.token_text if is_first else "",
        )
        response: Response = await connection.ask(request, self._answer_timeout_s)
        assert isinstance(response, MetadataResponse)
        if response.code in (ResponseCode.SUCCESS, ResponseCode.NOT_LEADER):
            self.learn(connection.member_id, response.peers)
        if response.code is ResponseCode.NOT_LEADER:
            raise DLedgerError(response.code, reason=f"member {connection.member_id!r} stops")
        if response.code is ResponseCode.FORBIDDEN:
            raise DLedgerError(
                response.code, reason=f"{connection.member_id} does not know the token, or not for the group "
                f"{self.group!r}",
            )
        if response.code is ResponseCode.TOO_MANY_CLIENTS:
            raise DLedgerError(response.code, reason=f"{connection.member_id}: {response.health}")
        if response.code is not ResponseCode.SUCCESS:
            address = self.addresses.get(connection.member_id, "?")
            raise DLedgerError(
                response.code,
                reason=f"{address} is not member {connection.member_id!r} of group {self.group!r}",
            )
        connection.metadata = response
        if response.is_group_known and not self.group_id:
            self.group_id = response.group_id
        self.problems.pop(connection.member_id, None)
        return response

    def check_group(self, link: MemberLink, **facts: object) -> None:
        """
        Check that a member has the log that this client knows, for a call that names an index of that log.

        @raise DLedgerError: GROUP_RESTORED, with C{facts}.
        """
        refuse_another_group(link, self.group_id, **facts)

    def learn(self, reporter: str, peers: Mapping[str, str]) -> None:
        """A member named these members and their addresses."""
        if not (named := dict(islice(peers.items(), MEMBERS_MAX))):
            return
        self.named[reporter] = named
        known = {*self.given, reporter}.union(*self.named.values())
        for member_id in [one for one in self.addresses if one not in known and self.connected(one) is None]:
            self._forget(member_id)
        for member_id, address in named.items():
            if member_id in self.addresses or len(self.addresses) < ADDRESSES_MAX:
                self.addresses.setdefault(member_id, address)  # a given one: perhaps it alone works from here
                self.reported[member_id] = address

    def _forget(self, member_id: str) -> None:
        """No member names it any more."""
        for found in (self.addresses, self.reported, self.named, self.problems):
            found.pop(member_id, None)
        keeper = self.keepers.pop(member_id, None)
        if keeper is not None:
            keeper.close(DLedgerError(ResponseCode.UNKNOWN_MEMBER, reason=f"{member_id!r} is not a member"))

    async def _ask(self, member_id: str) -> MetadataResponse:
        existing = self.connected(member_id)
        if existing is not None:
            return await self.metadata(existing)
        connection = await self.connection(member_id)
        assert connection.metadata is not None
        return connection.metadata

    def ask(self, member_id: str) -> Deferred[MetadataResponse]:
        """
        @return: fires with the member's current METADATA; fails with the reason (also noted in
            C{problems}).
        """
        asked = Deferred.fromCoroutine(self._ask(member_id))

        def failed(failure: Failure) -> Failure:
            if member_id in self.addresses:
                self.problems[member_id] = _sentence(failure)
            return failure

        return asked.addErrback(failed)

    def leader(self, hint: str | None = None) -> Deferred[MemberLink | None]:
        """
        @param hint: id of the supposed leader; asked first.
        @return: fires with a connection to the member that leads, or None if none is found now.
            Concurrent callers share one search. Cancelling stops the wait only.
        """
        waiter: Deferred[MemberLink | None] = Deferred()
        self._seekers.append(waiter)
        if self._search is None:
            search = self._search = Deferred.fromCoroutine(self._find_leader(hint))
            search.addBoth(self._searched)
        return waiter

    def _searched(self, result: MemberLink | Failure | None) -> MemberLink | None:
        self._search = None
        seekers, self._seekers = self._seekers, []
        if isinstance(result, Failure):
            if not self._is_closed:
                self.log.failure("looking for the leader failed", result)
            result = None
        self.leader_id = result.member_id if result is not None else None
        for waiter in seekers:
            if not waiter.called:
                waiter.callback(result)
        return None

    async def _find_leader(self, hint: str | None) -> MemberLink | None:
        for _hop in range(2):
            if hint is None or hint not in self.addresses:
                break
            try:
                answer = await self.ask(hint)
            except Exception:
                break
            if answer.leader_id == hint:
                return self.connected(hint)
            hint = answer.leader_id
        answers = await self.ask_these(self.addresses, 2 * self._answer_timeout_s, _hurry_when_found)
        leaders = {
            member_id: answer.term
            for member_id, answer in answers.items()
            if not isinstance(answer, Failure) and answer.leader_id == member_id
        }
        if not leaders:
            return await self._follow_rumour(answers)
        return self.connected(max(leaders, key=lambda member_id: leaders[member_id]))

    async def _follow_rumour(
        self, answers: Mapping[str, MetadataResponse | Failure]
    ) -> MemberLink | None:
        """Ask a member that others name as leader, and that was unknown or did not answer in time."""
        named_by_others = dict.fromkeys(
            answer.leader_id for answer in answers.values() if not isinstance(answer, Failure)
        )
        for named in named_by_others:
            if named is None or named in answers or named not in self.addresses:
                continue
            try:
                if (await self.ask(named)).leader_id == named:
                    return self.connected(named)
            except Exception:
                continue  # noted in problems
        return None

    async def ask_all(self, deadline_s: float) -> tuple[MemberInfo, ...]:
        """
        The status of every member, in order of ids; without an answer it has a C{problem}. Members that only
        others name are asked after those have answered.
        """
        began_s = self._clock.seconds()
        answers = await self.ask_these(sorted(self.addresses), deadline_s)
        others = sorted(self.addresses.keys() - answers.keys())
        left_s = deadline_s - (self._clock.seconds() - began_s)
        if any(isinstance(answer, MetadataResponse) for answer in answers.values()) and others and left_s > 0:
            answers = {**answers, **await self.ask_these(others, left_s)}
        infos = []
        for member_id in sorted(self.addresses):
            answer = answers.get(member_id)
            if answer is None:
                infos.append(self._silent(member_id, f"no answer in {deadline_s:g} s"))
            elif isinstance(answer, Failure):
                infos.append(self._silent(member_id, _sentence(answer)))
            else:
                infos.append(self.info(member_id, answer))
        return tuple(infos)

    async def ask_these(
        self,
        member_ids: Iterable[str],
        deadline_s: float,
        answered: Callable[[Gathering[MetadataResponse], str, MetadataResponse], None] | None = None,
    ) -> dict[str, MetadataResponse | Failure]:
        """
        METADATA of the members that answer within C{deadline_s} seconds.

        @param answered: called with every answer as it arrives; it may end the wait.
        """
        asked = {member_id: self.ask(member_id) for member_id in list(member_ids)}
        gathering = Gathering(self._clock, asked, deadline_s=deadline_s, answered=answered)
        self._gatherings.add(gathering)
        try:
            return await gathering.outcome
        except Exception:  # cancelled
            gathering.close()
            raise
        finally:
            self._gatherings.discard(gathering)

    def info(self, member_id: str, answer: MetadataResponse) -> MemberInfo:
        """A member's status: its answer with its address."""
        return MemberInfo(
            member_id=member_id,
            address=self.addresses.get(member_id, "?"),
            role=answer.role or ("leader" if answer.leader_id == member_id else ""),
            term=answer.term,
            begin_index=answer.begin_index,
            end_index=answer.end_index,
            committed_index=answer.committed_index,
            leader_id=answer.leader_id,
            wire_version=answer.wire_version & WIRE_VERSION_MASK,
            health=answer.health,
            admin=answer.admin,
            configuration=answer.configuration,
            peers=answer.peers,
            machine=answer.machine,
            version=answer.version,
        )

    def _silent(self, member_id: str, problem: str) -> MemberInfo:
        return MemberInfo(member_id=member_id, address=self.addresses[member_id], problem=problem)

    def _watch_idle(self) -> None:
        if not self._is_closed:
            self._idle_check.set(IDLE_CLOSE_S / 2)

    def _close_idle(self) -> None:
        now_s = self._clock.seconds()
        for link in self._links:
            if link.protocol.is_idle(now_s) and not link.outstanding:
                link.close()
        if self._links:
            self._watch_idle()

    def _ask_used(self) -> None:
        links = self._links
        for link in links:
            if link.was_used and link.is_connected:
                asked = Deferred.fromCoroutine(self.metadata(link))
                asked.addErrback(lambda _failure: None)  # its user will see the same
            link.was_used = False
        if links:
            self._refresh.set(REFRESH_S)

    def close(self) -> None:
        """End every connection and attempt; later calls fail."""
        self._is_closed = True
        self._idle_check.cancel()
        self._refresh.cancel()
        for gathering in list(self._gatherings):
            gathering.close()
        for keeper in list(self.keepers.values()):
            keeper.close(_closed())
        for link in self._links:
            link.close()


def refuse_another_group(link: MemberLink, read_group_id: str, **facts: object) -> None:
    """
    @param read_group_id: id of the group whose log is known; empty: of none.
    @raise DLedgerError: GROUP_RESTORED: the member reports another id.
    """
    reported = link.metadata
    if reported is None or not reported.is_group_known or read_group_id in ("", reported.group_id):
        return
    raise DLedgerError(
        ResponseCode.GROUP_RESTORED, group_id=reported.group_id, read_group_id=read_group_id, **facts,
        reason=(
            f"{link.member_id} has the log of group {reported.group_id}, and this client knows that of group "
            f"{read_group_id}: it was restored from a backup, or forced to begin anew. Open the log again, "
            "and choose where to begin"
        ),
    )


def _hurry_when_found(
    gathering: Gathering[MetadataResponse], member_id: str, answer: MetadataResponse
) -> None:
    gathering.hurry(_RIVALS_WAIT_S if answer.leader_id == member_id else _OTHERS_WAIT_S)


def _closed() -> DLedgerError:
    return DLedgerError(ResponseCode.NETWORK_ERROR, reason="the client is closed")


def _sentence(failure: Failure) -> str:
    error = failure.value
    if isinstance(error, DLedgerError):
        reason = error.facts.get("reason")
        return str(reason) if reason else str(error)
    if isinstance(error, ConnectionRefusedError):
        return "connection refused"
    if isinstance(error, TimeoutError):
        return "no connection in time"
    return failure.getErrorMessage() or type(error).__name__
