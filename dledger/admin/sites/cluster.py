# -*- test-case-name: tests.admin.test_cluster -*-
"""
Asks every member of a group at once: on its log port, or over HTTP where the caller knows its administration.

Rule 1: a member that does not answer is in the result with the reason; the deadline bounds every wait.
Rule 2: redirections are not followed.
"""

from __future__ import annotations

import json
import random
import typing
from collections.abc import Awaitable, Callable, Mapping

import treq
from twisted.internet.defer import Deferred
from twisted.internet.error import ConnectionRefusedError
from twisted.internet.interfaces import IReactorTime, ITCPTransport
from twisted.internet.protocol import Protocol, connectionDone
from twisted.python.failure import Failure
from twisted.web._newclient import _WrapperException
from twisted.web.client import ResponseDone
from twisted.web.http import PotentialDataLoss
from twisted.web.iweb import IAgent, IResponse

import dledger
from dledger.admin.sites.asking import admin_agent
from dledger.admin.sites.reports import (
    NOT_A_PAGE,
    MemberReport,
    one_line,
    report_of_info,
    report_of_status,
    with_lag,
)
from dledger.base.reactor import Reactor
from dledger.base.serving.endpoints import tcp_endpoints
from dledger.base.timing import Gathering
from dledger.base.tls.securing import Dialling
from dledger.client.members import ClientSecurity, Members
from dledger.node.reporting.health import health_problem
from dledger.node.reporting.status import NodeStatus
from protocols.wire.fastjson import JsonObject

#: Longest wait for an answer, seconds.
DEADLINE_S = 2.0
#: Longest status page that is read.
ANSWER_BYTES_MAX = 1 << 20


async def fetch_status(agent: IAgent, url: str, timeout_s: float, clock: IReactorTime) -> JsonObject:
    """The document at C{url}/status, see L{fetch_page}."""
    return await fetch_page(agent, url, "/status", timeout_s, clock)


async def fetch_page(
    agent: IAgent, url: str, path: str, timeout_s: float, clock: IReactorTime, method: str = "GET"
) -> JsonObject:
    """
    The document at C{path} of an administration.

    @param url: base of the administration.
    @param timeout_s: seconds for the head of the answer, and again for its body.
    @raise ValueError: the answer's status is not 200 or 202, it is not complete in time, it is longer than
        L{ANSWER_BYTES_MAX}, or it is not a JSON object. The connection is then closed.
    """
    client = treq.client.HTTPClient(agent)
    # (treq wants more of a reactor than its time, which alone it uses here.)
    ask: Callable[..., Awaitable[IResponse]] = client.request
    try:
        response = await ask(
            method, f"{url.rstrip('/')}{path}", timeout=timeout_s, reactor=clock, unbuffered=True,
            allow_redirects=False,
        )
    except _WrapperException as error:  # its text is a list of failures
        raise ValueError(_not_http(error)) from None
    body = _BoundedBody()
    response.deliverBody(body)
    try:
        if response.code not in (200, 202):
            reason = await _reason(body, response.code, timeout_s, clock)
            raise ValueError(f"HTTP status {response.code}{reason}")
        document = json.loads(await body.whole.addTimeout(timeout_s, clock, _incomplete))
    except RecursionError:
        raise ValueError(f"{NOT_A_PAGE}: too many brackets") from None
    finally:
        body.end()
    if not isinstance(document, dict):
        raise ValueError(NOT_A_PAGE)
    return document


def _not_http(error: _WrapperException) -> str:
    """Why a request got no answer in HTTP."""
    reasons = "; ".join(one.getErrorMessage() for one in error.reasons)
    return f"it did not answer in HTTP ({reasons}): is that the port of the admin pages, and not of the log?"


async def _reason(body: _BoundedBody, code: int, timeout_s: float, clock: IReactorTime) -> str:
    """What a page says of its refusal; empty if it does not say."""
    if not 400 <= code < 500:
        return ""
    try:
        said = json.loads(await body.whole.addTimeout(timeout_s, clock, _incomplete))
    except Exception:  # another kind of server; its status is enough
        return ""
    return f": {one_line(said['error'])}" if isinstance(said, dict) and "error" in said else ""


def _incomplete(_result: object, timeout_s: float) -> bytes:
    raise ValueError(f"the answer is not complete after {timeout_s:g} s")


class _BoundedBody(Protocol):
    """
    Reads the body of an answer up to L{ANSWER_BYTES_MAX}, and closes the connection when it is longer.

    @ivar whole: fires with the body. Fails with C{ValueError} if it is too long, or with the reason of its
        early end.
    """

    transport: ITCPTransport

    def __init__(self) -> None:
        self.whole: Deferred[bytes] = Deferred()
        self._parts: list[bytes] = []
        self._size = 0
        self._is_ended = False

    def dataReceived(self, data: bytes) -> None:
        if self._is_ended:
            return
        self._size += len(data)
        if self._size > ANSWER_BYTES_MAX:
            self.end()
            self.whole.errback(ValueError(f"{NOT_A_PAGE}: an answer of more than {ANSWER_BYTES_MAX} bytes"))
            return
        self._parts.append(data)

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        """See L{Protocol.connectionLost}: the end of the body."""
        if self._is_ended:
            return
        self._is_ended = True
        if reason.check(ResponseDone, PotentialDataLoss):
            self.whole.callback(b"".join(self._parts))
        else:
            self.whole.errback(reason)

    def end(self) -> None:
        """Close the connection unless the body is complete; further data is dropped."""
        if not self._is_ended:
            self._is_ended = True
            self._parts.clear()
            self.transport.loseConnection()


class _Status(typing.Protocol):
    dialling: Dialling | None

    def status(self) -> NodeStatus:
        """The current status."""


class ClusterSurvey:
    """
    Asks the members of one node's group.

    @param admin_urls: member id to the base URL of its administration. Every other member is asked on its log
        port.
    """

    def __init__(
        self,
        node: _Status,
        reactor: Reactor,
        *,
        admin_urls: Mapping[str, str],
        agent: IAgent | None = None,
        members: Members | None = None,
        deadline_s: float = DEADLINE_S,
    ) -> None:
        self._node = node
        self._reactor = reactor
        self._admin_urls = dict(admin_urls)
        self._agent = agent
        self._members = members
        self._deadline_s = deadline_s

    async def run(self) -> tuple[MemberReport, ...]:
        """Reports of all members, this one included, in order of ids."""
        status = self._node.status()
        me = status.member.self_id
        asked: dict[str, Deferred[MemberReport]] = {}
        for member_id, address in sorted(status.peers.addresses.items()):
            if member_id != me:
                story = self._ask_http if member_id in self._admin_urls else self._ask_log
                asked[member_id] = Deferred.fromCoroutine(story(member_id, address))
        outcome = await Gathering(self._reactor, asked, deadline_s=self._deadline_s).outcome
        reports = []
        for member_id, address in sorted(status.peers.addresses.items()):
            if member_id == me:
                reports.append(_own_report(status, address))
                continue
            answer = outcome.get(member_id)
            if isinstance(answer, MemberReport):
                reports.append(answer)
                continue
            problem = f"no answer in {self._deadline_s:g} s" if answer is None else cluster_sentence(answer)
            reports.append(
                MemberReport(
                    member_id=member_id, address=address, problem=problem,
                    source="admin" if member_id in self._admin_urls else "log",
                )
            )
        return with_lag(tuple(reports))

    async def _ask_http(self, member_id: str, address: str) -> MemberReport:
        agent = self._agent or admin_agent(
            self._reactor, self._deadline_s, trust=self._node.dialling, name=member_id
        )
        url = self._admin_urls[member_id]
        document = await fetch_status(agent, url, self._deadline_s, self._reactor)
        return report_of_status(member_id, address, url, document)

    async def _ask_log(self, member_id: str, _address: str) -> MemberReport:
        if self._members is None:
            status = self._node.status()
            self._members = Members(
                status.peers.addresses,
                group=status.member.group,
                clock=self._reactor,
                endpoint_for=tcp_endpoints(self._reactor, self._deadline_s),
                rng=random.Random(),
                answer_timeout_s=self._deadline_s,
                security=ClientSecurity(tls=self._node.dialling),
            )
        answer = await self._members.ask(member_id)
        return report_of_info(self._members.info(member_id, answer))

    def close(self) -> None:
        """End the connections to the other members."""
        if self._members is not None:
            self._members.close()


def _own_report(status: NodeStatus, address: str) -> MemberReport:
    member = status.member
    return MemberReport(
        member_id=member.self_id,
        address=address,
        source="self",
        role=member.role,
        term=member.term,
        leader_id=member.leader_id,
        begin_index=member.ledger_begin_index,
        end_index=member.ledger_end_index,
        committed_index=member.committed_index,
        health=health_problem(status) or "",
        begin_moved=status.store.begin_moved,
        version=dledger.__version__,
        members=tuple(sorted(status.peers.addresses)),
    )


def cluster_sentence(failure: Failure) -> str:
    """The reason for a missing answer, in few words."""
    if failure.check(ConnectionRefusedError):
        return "connection refused"
    error = failure.value
    facts = getattr(error, "facts", None)
    if isinstance(facts, dict) and facts.get("reason"):
        return str(facts["reason"])
    return failure.getErrorMessage() or type(error).__name__
