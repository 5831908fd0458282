# -*- test-case-name: tests.commands.test_dashboard,tests.commands.test_doctor -*-
"""The pages of all members that can be asked, for C{dledger doctor} and C{dledger dashboard}."""

from __future__ import annotations

from collections.abc import Sequence

import attrs
from twisted.internet.defer import Deferred
from twisted.web.iweb import IAgent

from dledger.admin.dashboard.overview import ReportedEvent
from dledger.admin.sites.cluster import fetch_page
from dledger.admin.sites.details import MemberDetails, details_of
from dledger.admin.sites.reports import MemberReport
from dledger.base.reactor import Reactor
from dledger.cli.console.administration import DEADLINE_S, ask_all
from dledger.cli.console.target import AdminAccess
from dledger.cli.ledger.watch import events_of
from protocols.wire.fastjson import JsonObject


@attrs.define
class PagesRead:
    """
    @ivar details: by member id. @ivar events: of all members.
    @ivar unread: member id to the reason why the pages of a member that answers were not read.
    """

    details: dict[str, MemberDetails] = attrs.Factory(dict)
    events: list[ReportedEvent] = attrs.Factory(list)
    unread: dict[str, str] = attrs.Factory(dict)


def read_pages(
    access: AdminAccess, reports: Sequence[MemberReport], urls: tuple[str, ...], *, with_events: bool
) -> PagesRead:
    """
    Ask the administrations that members report, at the same time; each has L{DEADLINE_S} for its pages.

    @param urls: the administrations that the user named: their certificates have the names of their hosts.
    """
    paths = ("/status", "/events") if with_events else ("/status",)
    asked = {one.admin_url: None if one.admin_url in urls else one.member_id
             for one in reports if one.admin_url and not one.problem}
    failures: dict[str, str] = {}

    async def ask(agent: IAgent, url: str, reactor: Reactor) -> tuple[JsonObject, ...]:
        return tuple([await fetch_page(agent, url, path, DEADLINE_S, reactor) for path in paths])

    async def in_time(agent: IAgent, url: str, reactor: Reactor) -> tuple[JsonObject, ...]:
        return await Deferred.fromCoroutine(ask(agent, url, reactor)).addTimeout(DEADLINE_S, reactor, _late)

    def failed(url: str, error: Exception) -> None:
        failures[url] = f"{url}: {error or type(error).__name__}"

    answers, read = ask_all(access, asked, in_time, failed), PagesRead()
    for one in reports:
        try:
            status, *events = answers[one.admin_url]
            details = details_of(one.member_id, status)
            read.events += [event for page in events for event in events_of(one.member_id, page)]
            read.details[one.member_id] = details
        except KeyError:
            if not one.problem:
                named = "it names none that this machine reaches"
                read.unread[one.member_id] = failures.get(one.admin_url, named)
        except ValueError as error:
            read.unread[one.member_id] = f"{one.admin_url}: {error}"
    return read


def _late(_result: object, timeout_s: float) -> tuple[JsonObject, ...]:
    raise ValueError(f"no answer in {timeout_s:g} s")
