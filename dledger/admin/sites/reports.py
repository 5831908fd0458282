# -*- test-case-name: tests.admin.test_cluster -*-
"""
What is known of each member of a group: from its C{/status} page, or from its METADATA.

Rule: no member's word leads to another host: its administration is on the host of its own address.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

import attrs

from dledger.values.addresses import Address, checked_members, is_loopback, parse_address
from protocols.wire.fastjson import JsonObject, as_int
from protocols.wire.ledger.codes import MEMBERS_MAX

if TYPE_CHECKING:
    from dledger.client.values import MemberInfo

#: Characters of a member's own words that are shown.
_WORDS_MAX = 300

#: Before the address of an administration by TLS.
_SECURE = "https://"
NOT_A_PAGE = "not a status page of a dledger member"


@attrs.frozen(kw_only=True)
class MemberReport:
    """
    Status of one member, as it describes itself.

    @ivar source: way of asking: C{self}, C{admin} or C{log}.
    @ivar lag: number of entries from its end to the leader's end; -1 if not known.
    @ivar problem: reason for a missing answer; empty if it answered.
    @ivar health: reason why it answers but does not serve; empty if it serves, or did not say.
    @ivar begin_moved: why its first index rose last; empty if it did not, or did not say.
    @ivar version: of its software; empty if it did not say.
    @ivar members: ids of the members of its group as it says; empty if it did not say.
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
    begin_moved: str = ""
    version: str = ""
    members: tuple[str, ...] = ()


def group_problems(reports: Iterable[MemberReport]) -> tuple[str, ...]:
    """What is wrong with the group as a whole: who leads, and whom its members hold for its members."""
    reports, found = tuple(reports), []
    leaders = [report for report in reports if report.role == "leader"]
    if not leaders:
        found.append("no member leads")
    elif len(leaders) > 1:
        named = ", ".join(f"{report.member_id} in term {report.term}" for report in leaders)
        found.append(f"{len(leaders)} members lead: {named}")
    lists: dict[tuple[str, ...], list[str]] = {}
    for report in reports:
        if report.members:
            lists.setdefault(tuple(sorted(report.members)), []).append(report.member_id)
    if len(lists) > 1:
        reported = "; ".join(f"{', '.join(who)} know {' '.join(known)}" for known, who in lists.items())
        found.append(f"the members do not agree on who they are: {reported}")
    return tuple(found)


def gone_members(reports: Iterable[MemberReport]) -> tuple[str, ...]:
    """The ids of those that do not answer, and that the leader of the highest term does not name."""
    reports = tuple(reports)
    leaders = [report for report in reports if report.role == "leader" and report.members]
    if not leaders:
        return ()
    members = max(leaders, key=lambda report: report.term).members
    return tuple(one.member_id for one in reports if one.problem and one.member_id not in members)


def report_of_status(member_id: str, address: str, url: str, document: Mapping[str, object]) -> MemberReport:
    """
    The report of a member from its C{/status} page.

    @raise ValueError: C{document} is not such a page, or of another member.
    """
    member = _member_of(document)
    if member.get("self_id") != member_id:
        raise ValueError(f"it is member {member.get('self_id')!r}")
    addresses = document.get("peer_addresses")
    try:
        return MemberReport(
            member_id=member_id,
            address=address,
            source="admin",
            admin_url=url,
            role=one_line(member["role"]),
            term=as_int(member["term"]),
            leader_id=None if member["leader_id"] is None else one_line(member["leader_id"]),
            begin_index=as_int(member["ledger_begin_index"]),
            end_index=as_int(member["ledger_end_index"]),
            committed_index=as_int(member["committed_index"]),
            health=one_line(document.get("problem", "")),
            begin_moved=one_line(document.get("begin_moved", "")),
            version=one_line(document.get("version", "")),
            members=tuple(sorted(map(one_line, [*addresses][:MEMBERS_MAX]))) if isinstance(addresses, dict)
            else (),
        )
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise ValueError(f"{NOT_A_PAGE}: {error!r}") from None


def identity_of_status(document: Mapping[str, object]) -> tuple[str, str, dict[str, str]]:
    """
    Id and group of the member that sent a C{/status} page, and the addresses of its group by member id.

    @raise ValueError: C{document} is not such a page.
    """
    member, addresses = _member_of(document), document.get("peer_addresses")
    member_id, group = member.get("self_id"), member.get("group")
    if not (isinstance(addresses, dict) and isinstance(group, str) and member_id in addresses):
        raise ValueError(NOT_A_PAGE)
    return str(member_id), group, checked_members({name: str(text) for name, text in addresses.items()})


def one_line(said: object) -> str:
    """What a member says, as one line without control characters."""
    return "".join(one if one.isprintable() else " " for one in str(said)[:_WORDS_MAX])


def followed_url(address: str, admin: str) -> str:
    """
    The base URL at which to ask a member that reports its administration.

    @param address: C{host:port} of the member's log port; its host is asked.
    @param admin: C{host:port} as the member reports it, after C{https://} if it is by TLS; only its port is
        used.
    @return: empty if C{admin} is not an address, or is on the loopback interface of another machine.
    """
    try:
        host, reported = parse_address(address).host, parse_address(admin.removeprefix(_SECURE))
    except ValueError:
        return ""
    if is_loopback(reported.host) and not is_loopback(host):
        return ""
    return f"{_SECURE if admin.startswith(_SECURE) else 'http://'}{Address(host, reported.port)}"


def _member_of(document: Mapping[str, object]) -> JsonObject:
    member = document.get("member")
    if not isinstance(member, dict):
        raise ValueError(NOT_A_PAGE)
    return member


def report_of_info(info: MemberInfo) -> MemberReport:
    """The report of a member from its METADATA."""
    return MemberReport(
        member_id=info.member_id,
        address=info.address,
        source="log",
        admin_url=followed_url(info.address, info.admin),
        role=info.role,
        term=info.term,
        leader_id=info.leader_id,
        begin_index=info.begin_index,
        end_index=info.end_index,
        committed_index=info.committed_index,
        problem=info.problem,
        health=one_line(info.health),
        version=one_line(info.version),
        members=tuple(sorted(info.peers)),
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
