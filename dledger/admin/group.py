# -*- test-case-name: tests.admin.test_group -*-
"""
The dashboard of a whole group, for a program that asks the members from outside::

    GET /          the dashboard for browsers, else the list of pages
    GET /live      the dashboard, as its script asks for it
    GET /cluster   every member, or the reason why it did not answer; JSON

No page changes anything. The limits are those of L{AdminSite <dledger.admin.sites.site.AdminSite>}.

Rule 1: one look at the group is made at a time, at most one in L{KEPT_S}, and only while somebody asks.
Rule 2: no page waits longer than L{WAIT_S} for a look: then it shows the last one, and how old that is.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import attrs
from klein import Klein
from twisted.internet.defer import Deferred, TimeoutError
from twisted.internet.interfaces import IReactorTime
from twisted.internet.protocol import ServerFactory
from twisted.web.iweb import IRequest
from twisted.web.resource import IResource, Resource

from dledger.admin.dashboard.frame import send_html, wants_html
from dledger.admin.dashboard.overview import Overview
from dledger.admin.dashboard.page import dashboard_page
from dledger.admin.sites.pages import PagesAccess, answer_errors, json_page
from dledger.admin.sites.reports import group_problems
from dledger.base.reactor import Reactor

#: Seconds for which a look is shown again.
KEPT_S = 1.0
#: Seconds within which a page is answered; its script gives up after 6.
WAIT_S = 3.0
#: A look of this age in seconds is said to be old.
OLD_S = 5.0

_PAGES = {
    "/live": "the dashboard, for browsers",
    "/cluster": "every member, or the reason why it did not answer",
}


class Looks:
    """
    The last look at a group, and those who wait for the next one. For one thread.

    Invariant: while somebody waits, C{_is_looking}.
    """

    def __init__(self, first: Overview, clock: IReactorTime, begin: Callable[[], object]) -> None:
        """
        @param first: made just now.
        @param clock: monotonic.
        @param begin: has a look made, which ends with a call of L{publish}; it does not wait for that.
        """
        self._last = first
        self._clock = clock
        self._begin = begin
        self._made_s = clock.seconds()
        self._is_looking = False
        self._waiting: list[Deferred[None]] = []

    def publish(self, overview: Overview) -> None:
        """Show this look from now on."""
        self._last = overview
        self._made_s = self._clock.seconds()
        self._is_looking = False
        waiting, self._waiting = self._waiting, []
        for waiter in waiting:
            waiter.callback(None)

    async def latest(self) -> Overview:
        """A look of the last L{KEPT_S} seconds; if none is made within L{WAIT_S}, the last one."""
        if self._clock.seconds() - self._made_s >= KEPT_S:
            waiter: Deferred[None] = Deferred(lambda one: self._waiting.remove(one))
            self._waiting.append(waiter)
            if not self._is_looking:
                self._is_looking = True
                self._begin()
            try:
                await waiter.addTimeout(WAIT_S, self._clock)
            except TimeoutError:
                pass
        age_s = self._clock.seconds() - self._made_s
        if age_s < OLD_S:
            return self._last
        old = f"these are the answers of {age_s:.0f} s ago; none since"
        return attrs.evolve(self._last, problems=(old, *self._last.problems))


class GroupPages:
    """The pages."""

    app = Klein()

    def __init__(self, latest: Callable[[], Awaitable[Overview]]) -> None:
        self._latest = latest

    @app.route("/", methods=["GET"])
    async def index(self, request: IRequest) -> bytes:
        """The dashboard, or the list of pages."""
        if not wants_html(request):
            return json_page(request, 200, {"service": "dledger-dashboard", "pages": _PAGES})
        return send_html(request, dashboard_page(await self._latest()))

    @app.route("/live", methods=["GET"])
    async def live(self, request: IRequest) -> bytes:
        """The dashboard."""
        return send_html(request, dashboard_page(await self._latest()))

    @app.route("/cluster", methods=["GET"])
    async def cluster(self, request: IRequest) -> bytes:
        """The members."""
        overview = await self._latest()
        return json_page(request, 200, {
            "at_s": overview.at_s, "group": overview.group,
            "problems": [*overview.problems, *group_problems(overview.reports)],
            "findings": [attrs.asdict(one) for one in overview.findings],
            "members": [attrs.asdict(one) for one in overview.reports],
        })

    answer_errors(app, _PAGES)


def group_site(
    latest: Callable[[], Awaitable[Overview]], reactor: Reactor, *, path: str = ""
) -> ServerFactory:
    """
    What listens.

    @param path: first part of the path of every page; empty: none.
    """
    pages: IResource = GroupPages(latest).app.resource()
    if path:
        root = Resource()
        root.putChild(path.encode("ascii"), pages)
        pages = root
    return PagesAccess().site(pages, reactor)
