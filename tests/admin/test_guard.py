# -*- test-case-name: tests.admin.test_guard -*-
"""Who may ask for what, and what is in the log of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from twisted.internet.task import Clock
from twisted.logger import capturedLogs, formatEvent

from dledger.admin.sites.guard import LOOK_S, AdminGuard
from dledger.base.serving.tokens import new_token
from tests.admin.test_site import SiteCase


class GuardCase(SiteCase):
    """A guard with the token of C{ops}."""

    def setUp(self) -> None:
        self.clock = Clock()
        self.path = Path(self.mktemp())
        self.token, line = new_token("ops")
        self.path.write_text(line)
        super().setUp()

    def guard(self, **options: Any) -> AdminGuard:
        """A guard with these options."""
        return AdminGuard(self.clock.seconds, **options)


class RightsTests(GuardCase):
    """By method and token."""

    def refused(self, guard: AdminGuard, method: str, token: str = "", path: str = "/a") -> int:
        """The status; 0 if it is taken."""
        refusal = guard.refusal(method, path, token and f"Bearer {token}", "10.0.0.7")
        return refusal.status if refusal is not None else 0

    def test_changes(self) -> None:
        """Every method but GET and HEAD, known or not, needs the right token."""
        guard = self.guard(token_file=str(self.path))
        for method in ("POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "get", "", "X" * 50):
            self.assertEqual(self.refused(guard, method), 401, method)
            self.assertEqual(self.refused(guard, method, self.token + "x"), 401, method)
            self.assertEqual(self.refused(guard, method, self.token), 0, method)
        for method in ("GET", "HEAD"):
            self.assertEqual(self.refused(guard, method), 0)
        for header in (self.token, f"Basic {self.token}", "Bearer", "Bearer ", f"Bearer{self.token}"):
            refusal = guard.refusal("POST", "/a", header, "h")
            assert refusal is not None
            self.assertEqual(refusal.status, 401, header)
        self.assertIsNone(guard.refusal("POST", "/a", f"bEARER   {self.token} ", "h"))

    def test_contents(self) -> None:
        """Pages of what clients have stored need a token where there are tokens, or rights of clients."""
        paths = ("/entries", "/messages", "//entries", "/entries/", "/%65ntries", "/x/../messages")
        for guard, without in (
            (self.guard(token_file=str(self.path)), 401), (self.guard(contents_need_token=True), 403),
        ):
            for path in paths:
                self.assertEqual(self.refused(guard, "GET", path=path), without, path)
            for path in ("/", "/browse", "/status", "/topics"):
                self.assertEqual(self.refused(guard, "GET", path=path), 0, path)
        guard = self.guard(token_file=str(self.path))
        self.assertEqual(self.refused(guard, "GET", self.token, path="/entries"), 0)
        self.assertEqual(self.refused(self.guard(), "GET", path="/entries"), 0)

    def test_effects(self) -> None:
        """What an action would do is shown to who may do it; its forms to everybody."""
        paths = ("/effects", "//effects", "/effects/", "/%65ffects")
        for guard, without in ((self.guard(token_file=str(self.path)), 401), (self.guard(), 403)):
            for path in paths:
                self.assertEqual(self.refused(guard, "GET", path=path), without, path)
            self.assertEqual(self.refused(guard, "GET", path="/actions"), 0)
        guard = self.guard(token_file=str(self.path), reads_need_token=True)
        self.assertEqual(self.refused(guard, "GET", path="/actions"), 0)
        self.assertEqual(self.refused(guard, "GET", self.token, path="/effects"), 0)

    def test_without_tokens(self) -> None:
        """Nothing can be changed, whatever is sent."""
        guard = self.guard()
        self.assertEqual(self.refused(guard, "POST", self.token), 403)
        self.assertEqual(self.refused(guard, "GET"), 0)

    def test_reads(self) -> None:
        """If they need a token, all but two do."""
        guard = self.guard(token_file=str(self.path), reads_need_token=True)
        for path in ("/status", "/metrics", "/live", "/healthz/", "/healthz/../status", "/HEALTHZ"):
            self.assertEqual(self.refused(guard, "GET", path=path), 401, path)
            self.assertEqual(self.refused(guard, "GET", self.token, path), 0, path)
        for path in ("/", "/healthz", "/readyz"):
            self.assertEqual(self.refused(guard, "GET", path=path), 0, path)
            self.assertEqual(self.refused(guard, "POST", path=path), 401, path)
        self.assertEqual(self.refused(self.guard(reads_need_token=True), "GET"), 403)

    def test_another_file(self) -> None:
        """It counts after a moment, without a restart; one that is not sound changes nothing."""
        guard = self.guard(token_file=str(self.path))
        new, line = new_token("night")
        self.path.write_text(line)
        with capturedLogs() as events:
            self.clock.advance(LOOK_S)
            self.assertEqual(self.refused(guard, "POST", self.token), 401)
            self.assertEqual(self.refused(guard, "POST", new), 0)
            self.path.write_text("nonsense\n")
            for _ in range(3):
                self.clock.advance(LOOK_S)
                self.assertEqual(self.refused(guard, "POST", new), 0)
        lines = [str(formatEvent(event)) for event in events]
        self.assertEqual(len([line for line in lines if "new tokens" in line]), 1, lines)
        self.assertEqual(len([line for line in lines if "old tokens: admin_token_file" in line]), 1, lines)

    def test_log(self) -> None:
        """Who asked is there each time; a refusal once, and no token ever."""
        guard = self.guard(token_file=str(self.path))
        with capturedLogs() as events:
            for _ in range(50):
                self.refused(guard, "POST", "a-wrong-token")
            self.refused(guard, "POST", self.token, "/transfer")
            self.refused(guard, "GET", self.token, "/status")
        lines = [str(formatEvent(event)) for event in events]
        self.assertEqual(guard.refused, 50)
        self.assertEqual(len(lines), 2, lines)
        self.assertIn("10.0.0.7 was refused: the token is not known", lines[0])
        self.assertIn("ops at 10.0.0.7 asks POST /transfer", lines[1])
        for secret in ("a-wrong-token", self.token):
            self.assertNotIn(secret, "".join(lines))


class AskedTests(GuardCase):
    """The site asks the guard."""

    def head(self, method: str, authorization: str = "", host: str = "localhost") -> bytes:
        """The answer to a request."""
        channel, transport = self.connect()
        more = f"Authorization: {authorization}\r\n" if authorization else ""
        channel.dataReceived(f"{method} /a HTTP/1.1\r\nHost: {host}\r\n{more}\r\n".encode())
        self.addCleanup(channel.connectionLost, None)
        answer: bytes = transport.value()
        return answer

    def test_before_the_page(self) -> None:
        """A refused request never reaches a page; its answer names the missing right."""
        self.build(hosts=(), guard=self.guard(token_file=str(self.path), reads_need_token=True))
        refused = self.head("GET")
        self.assertIn(b" 401 ", refused.split(b"\r\n")[0])
        self.assertIn(b'Bearer realm="dledger"', refused)
        self.assertIn(b"this needs a token", refused)
        self.assertEqual(self.page.times, 0)
        foreign = self.head("GET", f"Bearer {self.token}", host="evil.example")
        self.assertIn(b" 421 ", foreign.split(b"\r\n")[0])
        self.assertEqual(self.page.times, 0)
        self.assertIn(b" 200 ", self.head("GET", f"Bearer {self.token}").split(b"\r\n")[0])
        self.assertEqual(self.page.times, 1)

    def test_by_default(self) -> None:
        """A site without a guard takes no changes."""
        self.assertIn(b" 403 ", self.head("POST").split(b"\r\n")[0])
        self.assertIn(b" 200 ", self.head("GET").split(b"\r\n")[0])
