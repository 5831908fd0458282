# -*- test-case-name: tests.admin.test_site -*-
"""
The HTTP server below the pages of the administration, with limits.

The pages are made on the reactor of a member, so a flood of requests must not keep the reactor busy, and a
request must not take memory or disk.

Rule 1: one request of a connection is answered in one turn of the reactor. At most L{PIPELINED_MAX} further
requests may wait; a connection with more ends.
Rule 2: a request with a body is refused (413) before the body is read: no page takes one.
Rule 3: the number of open connections is bounded: they are a part of the descriptors that clients leave
(L{dledger.base.descriptors}). A further one takes the place of that which waits longest for a whole
request: neither idle browsers nor clients that send a byte now and then keep monitoring away.
Rule 4: a request for a foreign host is refused (421). A web page in an operator's browser can let its own
host name point here, and would read the pages otherwise.
Rule 5: requests are not logged, unless the operator asked for that: monitoring asks every few seconds.
Rule 6: the L{AdminGuard} is asked before any page is.
Rule 7: a path that is not UTF-8 is refused (400) here: Klein would write a traceback into the log.
"""

from __future__ import annotations

import json
import re
import socket
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import TYPE_CHECKING
from urllib.parse import unquote_to_bytes

from twisted.internet.abstract import isIPAddress, isIPv6Address
from twisted.internet.interfaces import IAddress, IDelayedCall, ITCPTransport
from twisted.python.failure import Failure
from twisted.web.http import HTTPChannel
from twisted.web.http import Request as HTTPRequest
from twisted.web.resource import IResource
from twisted.web.server import Request, Site

from dledger.admin.sites.guard import AdminGuard
from dledger.base.descriptors import pages_allowed
from dledger.base.reactor import Reactor

#: Requests of one connection that may wait for the one before.
PIPELINED_MAX = 4
#: Bytes of path and query: 16 KiB of arguments take some milliseconds, and many browsers may ask at once.
TARGET_BYTES_MAX = 2048
#: Connections that were ended for others, and whose descriptors are open until the next turn.
ENDED_MAX = 8

if TYPE_CHECKING:
    from twisted.web.http import _GenericHTTPChannelProtocol

#: In C{hosts}: every host is allowed.
ANY_HOST = "*"

_TOO_LARGE = b"HTTP/1.1 413 Content Too Large\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"
_ABSOLUTE = re.compile(rb"(?i:https?)://(?:[^/?@]*@)?([^/?]+)(.*)", re.DOTALL)
_END_OF_HEADERS = b"\r\n\r\n"


class AdminRequest(Request):
    """A request without a body, for one of our hosts."""

    channel: AdminChannel
    #: Of a target in absolute form, as proxies get it; it overrides the Host header (RFC 9112, 3.2.2).
    _authority: bytes | None = None
    _target_bytes = 0

    def requestReceived(self, command: bytes, path: bytes, version: bytes) -> None:
        absolute = _ABSOLUTE.match(path)
        if absolute is not None:
            self._authority, rest = absolute.groups()
            path = rest if rest.startswith(b"/") else b"/" + rest
        if len(path) > TARGET_BYTES_MAX:  # its arguments are not even read
            self._target_bytes, path = len(path), b"/"
        super().requestReceived(command, path, version)

    def gotLength(self, length: int | None) -> None:
        """See L{Request.gotLength}: the length of the body; None if it has no length yet."""
        super().gotLength(0)
        if length != 0:
            self.requestHeaders.removeHeader(b"expect")
            self.channel.refuse_body()

    def process(self) -> None:
        self.channel.site.takes(self.channel)
        # (Not as text, which twisted.web takes for UTF-8.)
        hosts = self.requestHeaders.getRawHeaders(b"host", [])
        if len(hosts) > 1 or (not hosts and self.clientproto != b"HTTP/1.0"):
            self._refuse(400, {"error": f"{len(hosts)} Host headers: HTTP/1.1 has one (RFC 9112, 3.2)"})
            return
        named = self._authority if self._authority is not None else b"".join(hosts)
        host = named.decode("latin-1")
        site: AdminSite = self.channel.site
        if not site.knows(host):
            self._refuse(421, {
                "error": "the Host header names another server",
                "host": host[:256],
                "allowed": "IP addresses, localhost, names of members, and the names in admin_hosts",
            })
            return
        if self._target_bytes:
            self._refuse(414, {
                "error": f"the target has {self._target_bytes} bytes, {TARGET_BYTES_MAX} are allowed",
            })
            return
        if not _is_text(self.path):
            self._refuse(400, {"error": "the path is not UTF-8"})
            return
        refusal = site.guard.refusal(
            self.method.decode("latin-1"), self.path.decode("latin-1"),
            (self.requestHeaders.getRawHeaders("authorization") or [""])[0],
            str(getattr(self.getClientAddress(), "host", "a local socket")),
        )
        if refusal is None:
            super().process()
            return
        if refusal.status == 401:
            self.setHeader(b"www-authenticate", b'Bearer realm="dledger"')
        self._refuse(refusal.status, {"error": refusal.reason})

    def _refuse(self, status: int, reason: Mapping[str, str]) -> None:
        self.setResponseCode(status)
        self.setHeader(b"content-type", b"application/json; charset=utf-8")
        self.setHeader(b"cache-control", b"no-store")
        self.write(json.dumps(reason).encode("ascii") + b"\n")
        self.finish()


class AdminChannel(HTTPChannel):
    """One connection; see the module for its limits."""

    site: AdminSite
    callLater: Callable[..., IDelayedCall]
    transport: ITCPTransport
    #: Browsers send some twenty; Twisted allows 500, which take a millisecond.
    maxHeaders = 100

    def __init__(self) -> None:
        super().__init__()
        self._waiting = 0
        self._is_refused = False
        self._next: IDelayedCall | None = None

    def connectionMade(self) -> None:
        """See L{HTTPChannel.connectionMade}."""
        super().connectionMade()
        self.site.waits(self)

    def end(self) -> None:
        """Another connection takes the place of this one."""
        self._refuse()
        self.transport.abortConnection()

    def rawDataReceived(self, data: bytes) -> None:
        """See L{HTTPChannel.rawDataReceived}: bytes of a body, or of requests that wait."""
        if self._is_refused:
            return
        self._waiting += data.count(_END_OF_HEADERS)
        if self._waiting > PIPELINED_MAX:
            self.end()
            return
        super().rawDataReceived(data)

    def refuse_body(self) -> None:
        """The request has a body."""
        self._refuse()
        self.transport.write(_TOO_LARGE)
        self.transport.loseConnection()

    def _refuse(self) -> None:
        self._is_refused = True
        self._dataBuffer = []

    def dataReceived(self, data: bytes) -> None:
        """See L{HTTPChannel.dataReceived}."""
        if not self._is_refused:
            super().dataReceived(data)

    def requestDone(self, request: Request) -> None:
        """See L{HTTPChannel.requestDone}: the next request waits for the next turn."""
        self._waiting = 0
        self.site.waits(self)
        self._next = self.callLater(0, self._go_on, request)

    def _go_on(self, request: Request) -> None:
        self._next = None
        if not self._is_refused:
            super().requestDone(request)

    def connectionLost(self, reason: Failure) -> None:  # type: ignore[override]
        """See L{HTTPChannel.connectionLost}."""
        if self._next is not None:
            self._next.cancel()
            self._next = None
            del self.requests[0]
        self.site.left(self)
        super().connectionLost(reason)


class AdminSite(Site):
    """
    The factory of L{AdminChannel}.

    Invariant: C{_open} is the number of connections that were made and are not lost; C{_idle} are those
    without a whole request, the one that waits longest first; C{_ended} were ended for others and are not
    lost yet.
    """

    noisy = False
    displayTracebacks = False
    requestFactory = AdminRequest
    protocol = AdminChannel  # type: ignore[assignment]

    def __init__(
        self, resource: IResource, reactor: Reactor, *, hosts: Iterable[str],
        guard: AdminGuard | None = None, connections_max: int | None = None,
    ) -> None:
        """
        @param connections_max: open connections; None: as many as the limit of descriptors allows.
        @param hosts: further host names by which browsers may call this server, or L{ANY_HOST}.
        @param guard: None: nobody has a token.
        """
        super().__init__(resource, reactor=reactor)
        self._hosts = known_hosts(hosts)
        self._open = 0
        self._idle: dict[AdminChannel, None] = {}
        self._ended: set[AdminChannel] = set()
        self._connections_max = pages_allowed() if connections_max is None else connections_max
        self.guard = guard if guard is not None else AdminGuard(reactor.seconds)

    def buildProtocol(self, addr: IAddress | None) -> _GenericHTTPChannelProtocol | None:
        if self._open >= self._connections_max and not self._make_room():
            return None
        self._open += 1
        connection: _GenericHTTPChannelProtocol | None = super().buildProtocol(addr)
        return connection

    def _make_room(self) -> bool:
        if not self._idle or len(self._ended) >= ENDED_MAX:
            return False
        longest = next(iter(self._idle))
        del self._idle[longest]
        self._ended.add(longest)
        longest.end()
        return True

    def waits(self, channel: AdminChannel) -> None:
        """A connection is new, or its request was answered."""
        self._idle[channel] = None

    def takes(self, channel: AdminChannel) -> None:
        """A connection has sent a whole request."""
        self._idle.pop(channel, None)

    def left(self, channel: AdminChannel) -> None:
        """A connection has ended."""
        self._open -= 1
        self._idle.pop(channel, None)
        self._ended.discard(channel)

    def knows(self, host: str) -> bool:
        """Whether a Host header is one of ours. Requests without it do not come from browsers."""
        name = host_name(host)
        return not name or ANY_HOST in self._hosts or name in self._hosts or _is_number(name)

    def log(self, request: HTTPRequest) -> None:
        """Nothing: monitoring asks every second."""


def _is_text(path: bytes) -> bool:
    """Whether a path is UTF-8 after its escapes are undone."""
    try:
        unquote_to_bytes(path).decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


def host_name(host: str) -> str:
    """The name in a Host header, in lower case, without port, brackets and final dot."""
    host = host.strip().lower()
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0].rstrip(".")


def _is_number(name: str) -> bool:
    return bool(isIPAddress(name) or isIPv6Address(name.partition("%")[0]))


def known_hosts(hosts: Iterable[str]) -> Collection[str]:
    """The names of C{hosts}, of this machine, and C{localhost}."""
    return frozenset({"localhost", socket.gethostname().lower(), *map(host_name, hosts)})
