# -*- test-case-name: tests.admin.test_cluster -*-
"""
Asks every member of a group at once: over HTTP if its administration is known, else on its log port.

Rule: a member that does not answer is in the result with the reason; the deadline bounds every wait.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any, Protocol

import attrs
import treq
from twisted.internet.defer import Deferred
from twisted.internet.error import ConnectionRefusedError
from twisted.python.failure import Failure
from twisted.web.client import Agent, HTTPConnectionPool
from twisted.web.iweb import IAgent

from dledger.base.endpoints import tcp_endpoints
from dledger.base.timing import Gathering
from dledger.client.members import Members
from dledger.client.values import MemberInfo
from dledger.node.status import NodeStatus

#: Longest wait for an answer, seconds.
DEADLINE_S = 2.0
_ANSWER_BYTES_MAX = 1 << 20


@attrs.frozen(kw_only=True)
class MemberReport:
    """
    Status of one member, as it describes itself.

    @ivar source: way of asking: C{self}, C{admin} or C{log}.
    @ivar lag: number of entries from its end to the leader's end; -1 if not known.
    @ivar problem: reason for a missing answer; empty if it answered.
    @ivar health: reason why it answers but does not serve; empty if it serves, or did not tell.
    """

    member_id: str
    address: str
    source: str
    admin_url: str = ""
    role: str = ""
    term: int = -1
    leader_id: str | None = None
    begin_index: int = -2
    end_index: int = -2
    committed_index: int = -2
    lag: int = -1
    problem: str = ""
    health: str = ""


def report_of_status(member_id: str, address: str, url: str, document: Mapping[str, Any]) -> MemberReport:
    """
    The report of a member from its C{/status} page.

    @raise ValueError: C{document} is not such a page, or of another member.
    """
    member = document.get("member")
    if not isinstance(member, dict):
        raise ValueError("not a status page")
    if member.get("self_id") != member_id:
        raise ValueError(f"it is member {member.get('self_id')!r}")
    return MemberReport(
        member_id=member_id,
        address=address,
        source="admin",
        admin_url=url,
        role=str(member["role"]),
        term=int(member["term"]),
        leader_id=member["leader_id"],
        begin_index=int(member["ledger_begin_index"]),
        end_index=int(member["ledger_end_index"]),
        committed_index=int(member["committed_index"]),
        health=str(document.get("problem", "")),
    )


def report_of_info(info: MemberInfo) -> MemberReport:
    """The report of a member from its METADATA."""
    return MemberReport(
        member_id=info.member_id,
        address=info.address,
        source="log",
        role=info.role,
        term=info.term,
        leader_id=info.leader_id,
        begin_index=info.begin_index,
        end_index=info.end_index,
        committed_index=info.committed_index,
        problem=info.problem,
    )


def with_lag(reports: tuple[MemberReport, ...]) -> tuple[MemberReport, ...]:
    """The reports with their lag behind the leader (of several, the one with the highest term)."""
    leaders = [report for report in reports if report.role == "leader" and report.end_index >= -1]
    if not leaders:
        return reports
    end_index = max(leaders, key=lambda report: report.term).end_index
    return tuple(
        attrs.evolve(report, lag=max(0, end_index - report.end_index)) if report.end_index >= -1 else report
        for report in reports
    )


async def fetch_status(agent: IAgent, url: str, timeout_s: float, clock: Any) -> dict[str, Any]:
    """
    The document at C{url}/status.

    @raise ValueError: the answer's status is not 200, or it is too long or not a JSON object.
    """
    client = treq.client.HTTPClient(agent)
    asked: Deferred[Any] = client.get(f"{url.rstrip('/')}/status", timeout=timeout_s, reactor=clock)
    response = await asked
    if response.code != 200:
        raise ValueError(f"HTTP status {response.code}")
    if isinstance(response.length, int) and response.length > _ANSWER_BYTES_MAX:
        raise ValueError(f"an answer of {response.length} bytes")
    document = await response.json()
    if not isinstance(document, dict):
        raise ValueError("not a status page")
    return document


class _Status(Protocol):
    def status(self) -> NodeStatus:
        """The current status."""


class ClusterSurvey:
    """
    Asks the members of one node's group.

    @param admin_urls: member id to the base URL of its administration.
    """

    def __init__(
        self,
        node: _Status,
        reactor: Any,
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
        for member_id, address in sorted(status.peer_addresses.items()):
            if member_id != me:
                story = self._ask_http if member_id in self._admin_urls else self._ask_log
                asked[member_id] = Deferred.fromCoroutine(story(member_id, address))
        outcome = await Gathering(self._reactor, asked, deadline_s=self._deadline_s).outcome
        reports = []
        for member_id, address in sorted(status.peer_addresses.items()):
            if member_id == me:
                reports.append(_own_report(status, address))
                continue
            answer = outcome.get(member_id)
            if isinstance(answer, MemberReport):
                reports.append(answer)
                continue
            problem = f"no answer in {self._deadline_s:g} s" if answer is None else sentence(answer)
            reports.append(
                MemberReport(
                    member_id=member_id, address=address, problem=problem,
                    source="admin" if member_id in self._admin_urls else "log",
                )
            )  # fmt: skip
        return with_lag(tuple(reports))

    async def _ask_http(self, member_id: str, address: str) -> MemberReport:
        if self._agent is None:
            self._agent = Agent(self._reactor, connectTimeout=self._deadline_s,
                                pool=HTTPConnectionPool(self._reactor, persistent=False))  # fmt: skip
        url = self._admin_urls[member_id]
        document = await fetch_status(self._agent, url, self._deadline_s, self._reactor)
        return report_of_status(member_id, address, url, document)

    async def _ask_log(self, member_id: str, address: str) -> MemberReport:
        if self._members is None:
            status = self._node.status()
            self._members = Members(
                status.peer_addresses,
                group=status.member.group,
                clock=self._reactor,
                endpoint_for=tcp_endpoints(self._reactor, self._deadline_s),
                rng=random.Random(),
                answer_timeout_s=self._deadline_s,
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
    )


def sentence(failure: Failure) -> str:
    """The reason for a missing answer, in few words."""
    if failure.check(ConnectionRefusedError):
        return "connection refused"
    error = failure.value
    facts = getattr(error, "facts", None)
    if isinstance(facts, dict) and facts.get("reason"):
        return str(facts["reason"])
    return failure.getErrorMessage() or type(error).__name__
