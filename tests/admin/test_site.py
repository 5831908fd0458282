# -*- test-case-name: tests.admin.test_site -*-
"""Floods, bodies and foreign hosts at the port of the administration."""

from __future__ import annotations

from typing import Any

from klein import Klein
from twisted.internet.address import IPv4Address
from twisted.internet.testing import MemoryReactorClock, StringTransport
from twisted.logger import capturedLogs
from twisted.python.failure import Failure
from twisted.trial.unittest import SynchronousTestCase
from twisted.web.resource import Resource
from twisted.web.server import NOT_DONE_YET

from dledger.admin.sites import site as module
from dledger.admin.sites.site import ENDED_MAX, PIPELINED_MAX, TARGET_BYTES_MAX, AdminSite, host_name
from dledger.base import descriptors

GET = b"GET /a HTTP/1.1\r\nHost: localhost\r\n\r\n"


class Page(Resource):
    """Counts how often it is asked."""

    isLeaf = True
    times = 0

    def render_GET(self, request: Any) -> bytes:
        """A page."""
        self.times += 1
        return b"page"


class Slow(Resource):
    """Answers later."""

    isLeaf = True

    def render_GET(self, request: Any) -> int:
        """Not yet."""
        return NOT_DONE_YET


class Wire(StringTransport):
    """A transport that says when it was aborted."""

    is_aborted = False

    def abortConnection(self) -> None:
        """Remember."""
        self.is_aborted = True
        super().abortConnection()


class SiteCase(SynchronousTestCase):
    """A site without sockets."""

    def setUp(self) -> None:
        self.reactor = MemoryReactorClock()
        self.page = Page()
        self.build(hosts=("n0.example.com:20911",))

    def build(self, **options: Any) -> None:
        """Another site."""
        self.site = AdminSite(self.page, self.reactor, **options)
        self.site.doStart()
        self.addCleanup(self.site.doStop)

    def connect(self) -> tuple[Any, Wire]:
        """A browser connects."""
        channel = self.site.buildProtocol(IPv4Address("TCP", "127.0.0.1", 5))
        transport = Wire()
        channel.makeConnection(transport)
        return channel, transport

    def one_turn(self) -> None:
        """The calls that are due run, and not those that they ask for."""
        for call in list(self.reactor.getDelayedCalls()):
            if call.getTime() <= self.reactor.seconds():
                self.reactor.calls.remove(call)
                call.called = 1
                call.func(*call.args, **call.kw)

    def status(self, request: bytes) -> int:
        """The status of the answer to one request on a connection of its own."""
        channel, transport = self.connect()
        channel.dataReceived(request)
        answer = transport.value()
        self.assertTrue(answer.startswith(b"HTTP/1."), answer)
        channel.connectionLost(Failure(Exception()))
        return int(answer.split()[1])


class FloodTests(SiteCase):
    """Many requests at once."""

    def test_one_request_a_turn(self) -> None:
        """The requests after the first one wait for a turn each."""
        channel, transport = self.connect()
        channel.dataReceived(GET * (PIPELINED_MAX + 1))
        for times in range(1, PIPELINED_MAX + 2):
            self.assertEqual(self.page.times, times)
            self.one_turn()
        self.assertEqual(transport.value().count(b"200 OK"), PIPELINED_MAX + 1)
        channel.dataReceived(GET)
        self.assertEqual(self.page.times, PIPELINED_MAX + 2)
        self.assertFalse(transport.is_aborted)

    def test_too_many_at_once(self) -> None:
        """The connection ends, and nothing more is made for it."""
        channel, transport = self.connect()
        channel.dataReceived(GET * 1700)
        self.assertTrue(transport.is_aborted)
        for _ in range(5):
            self.one_turn()
            channel.dataReceived(GET * 10)
        self.assertEqual(self.page.times, 1)

    def test_too_many_one_after_the_other(self) -> None:
        """However they are cut."""
        channel, transport = self.connect()
        for _ in range(PIPELINED_MAX + 1):
            channel.dataReceived(GET)
        self.assertFalse(transport.is_aborted)
        channel.dataReceived(GET)
        self.assertTrue(transport.is_aborted)

    def test_connections(self) -> None:
        """As many as the limit of descriptors allows, and one more when one has ended."""
        self.patch(descriptors, "limit", lambda: 128)
        self.build(hosts=())
        self.site.resource = Slow()
        channels = [self.connect()[0] for _ in range(8)]
        for channel in channels:
            channel.dataReceived(GET)
        self.assertIsNone(self.site.buildProtocol(None))
        channels[0].connectionLost(Failure(Exception()))
        self.assertIsNotNone(self.site.buildProtocol(None))

    def test_idle_ones_make_room(self) -> None:
        """The one that waits longest for a whole request goes; not one whose answer is under way."""
        self.build(hosts=(), connections_max=4)
        one, slow, busy, two = (self.connect() for _ in range(4))
        one[0].dataReceived(GET)  # (it is answered, and waits again)
        slow[0].dataReceived(GET[:-2])
        self.site.resource = Slow()
        busy[0].dataReceived(GET)
        for wire, ended in ((slow, slow), (two, two), (one, one)):
            for _ in range(3):
                wire[0].dataReceived(b"a")
            self.assertIsNotNone(self.site.buildProtocol(None))
            self.assertTrue(ended[1].is_aborted)
            ended[0].connectionLost(Failure(Exception()))
        self.assertIsNone(self.site.buildProtocol(None))
        self.assertFalse(busy[1].is_aborted)

    def test_ended_ones_have_descriptors(self) -> None:
        """Until they are lost: a flood in one turn does not open more and more."""
        self.build(hosts=(), connections_max=20)
        for _ in range(20 + ENDED_MAX):
            self.connect()
        self.assertIsNone(self.site.buildProtocol(None))

    def test_lost_between_two_requests(self) -> None:
        """Nothing is left over."""
        channel, _ = self.connect()
        channel.dataReceived(GET * 2)
        channel.connectionLost(Failure(Exception()))
        self.assertEqual([call for call in self.reactor.getDelayedCalls() if call.func == channel._go_on], [])
        self.assertEqual(self.page.times, 1)


class BodyTests(SiteCase):
    """No page takes a body."""

    def test_refused(self) -> None:
        """413 at the end of the headers; no byte of the body is kept."""
        for header in (b"Content-Length: 2000000000", b"Transfer-Encoding: chunked"):
            for more in (b"", b"Expect: 100-continue\r\n"):
                channel, transport = self.connect()
                head = b"POST /a HTTP/1.1\r\nHost: localhost\r\n" + more + header + b"\r\n\r\n"
                channel.dataReceived(head + b"x" * 1000)
                for _ in range(10):
                    channel.dataReceived(b"y" * 65536)
                    self.one_turn()
                self.assertTrue(transport.value().startswith(b"HTTP/1.1 413"), transport.value())
                self.assertEqual(transport.value().count(b"HTTP/1.1"), 1)
                self.assertTrue(transport.disconnecting)
        self.assertEqual(self.page.times, 0)

    def test_empty_body(self) -> None:
        """Is none."""
        self.assertEqual(self.status(GET[:-2] + b"Content-Length: 0\r\n\r\n"), 200)


class PathTests(SiteCase):
    """Paths that no page has."""

    def test_path_without_text(self) -> None:
        """Bytes that are not UTF-8, escaped or not, are refused before Klein logs a traceback for each."""
        self.site.resource = Klein().resource()
        self.site.resource.isLeaf = True
        for path in (b"/%ff", b"/\xff", b"/status%c3", b"//%80/a"):
            self.assertEqual(self.status(b"GET %b HTTP/1.1\r\nHost: localhost\r\n\r\n" % path), 400)
        self.assertEqual(self.flushLoggedErrors(), [])
        self.assertEqual(self.status(b"GET /%c3%a9 HTTP/1.1\r\nHost: localhost\r\n\r\n"), 404)


class TargetTests(SiteCase):
    """Path and query of a request have a bound."""

    def test_long(self) -> None:
        """One byte more is refused, without a look at its arguments, and the next request is answered."""
        for size, status in ((TARGET_BYTES_MAX, b"200"), (TARGET_BYTES_MAX + 1, b"414")):
            channel, transport = self.connect()
            target = b"/a?" + b"b" * (size - 3)
            channel.dataReceived(b"GET " + target + b" HTTP/1.1\r\nHost: localhost\r\n\r\n")
            self.assertTrue(transport.value().startswith(b"HTTP/1.1 " + status), transport.value()[:99])
            self.one_turn()
            transport.clear()
            channel.dataReceived(GET)
            self.assertTrue(transport.value().startswith(b"HTTP/1.1 200"), transport.value()[:99])


class HostTests(SiteCase):
    """A page of the operator's browser must not read ours under its own name."""

    def test_hosts(self) -> None:
        """Addresses and our names are allowed, others are not."""
        self.patch(module.socket, "gethostname", lambda: "Machine")
        self.build(hosts=("n0.example.com:20911", "[fe80::1]:5"))
        for host, status in (
            (b"localhost", 200), (b"LOCALHOST:8080", 200), (b"127.0.0.1:8080", 200), (b"10.1.2.3", 200),
            (b"[::1]:8080", 200), (b"n0.example.com:8080", 200), (b"n0.example.com.", 200), (b"machine", 200),
            (b"\xff", 421), (b"\xc3\xa4", 421), (b"\xb2.1.1.1", 421),
            (b"", 200), (b"evil.example.com", 421), (b"localhost.evil.com", 421),
            (b"127.0.0.1.evil.com", 421), (b"n0.example.com.evil", 421), (b"*", 421),
        ):
            request = b"GET /a HTTP/1.1\r\nHost: " + host + b"\r\n\r\n"
            self.assertEqual(self.status(request), status, host)
        self.assertEqual(self.status(b"GET /a HTTP/1.0\r\n\r\n"), 200)

    def test_one_host(self) -> None:
        """A request of HTTP/1.1 has one Host header, and none has two: a proxy may have read the other."""
        two = b"Host: localhost\r\nHost: localhost\r\n"
        for target in (b"/a", b"http://localhost/a"):
            for version, headers in ((b"1.1", b""), (b"1.1", two), (b"1.0", two)):
                request = b"GET %b HTTP/%b\r\n%b\r\n" % (target, version, headers)
                self.assertEqual(self.status(request), 400, request)

    def test_absolute_targets(self) -> None:
        """As a proxy sends them: their host counts, whatever the header says."""
        self.site.resource = Resource()
        self.site.resource.putChild(b"a", self.page)
        for target, host, status in (
            (b"http://localhost:8080/a", b"localhost", 200), (b"HTTPS://10.1.2.3/a?x=1", b"evil.test", 200),
            (b"http://evil.test/a", b"localhost", 421), (b"http://evil.test", b"localhost", 421),
            (b"http://localhost", b"localhost", 404), (b"http://localhost?a", b"localhost", 404),
            (b"http://u:p@evil.test/a", b"localhost", 421), (b"ftp://localhost/a", b"localhost", 404),
            (b"http:///a", b"localhost", 404), (b"http:///a", b"evil.test", 421),
        ):
            request = b"GET " + target + b" HTTP/1.1\r\nHost: " + host + b"\r\n\r\n"
            self.assertEqual(self.status(request), status, target)

    def test_any(self) -> None:
        """If the operator says so."""
        self.build(hosts=("*",))
        self.assertEqual(self.status(b"GET /a HTTP/1.1\r\nHost: anything.test\r\n\r\n"), 200)

    def test_names(self) -> None:
        """Without port, brackets, capitals and final dot."""
        for host, name in (("A.b:1", "a.b"), ("[::1]:5", "::1"), ("a.", "a"), (" x ", "x"), ("", "")):
            self.assertEqual(host_name(host), name)


class LogTests(SiteCase):
    """Monitoring asks every second."""

    def test_quiet(self) -> None:
        """No line for a request."""
        with capturedLogs() as events:
            self.status(GET)
        self.assertEqual(list(events), [])
