# -*- test-case-name: tests.base.test_admin_ports -*-
"""Where an administration may listen."""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from dledger.base.serving.admin_ports import admin_finding, is_beyond_loopback, loopback_unless_reported


class PlaceTests(SynchronousTestCase):
    """What an endpoint string says."""

    def test_loopback_unless_reported(self) -> None:
        """Nobody from elsewhere unless somebody said so."""
        for given, used in (
            ("8080", "tcp:8080:interface=127.0.0.1"),
            ("tcp:8080", "tcp:8080:interface=127.0.0.1"),
            ("tcp:8080:interface=0.0.0.0", "tcp:8080:interface=0.0.0.0"),
            ("tcp6:8080", "tcp6:8080:interface=\\:\\:1"),
            ("unix:admin.sock", "unix:admin.sock"),
        ):
            self.assertEqual(loopback_unless_reported(given), used)

    def test_beyond_loopback(self) -> None:
        """All but the loopback interface, also in other spellings, and what cannot be known."""
        for endpoint in (
            "8080", "tcp:8080", "tcp:8080:interface=127.0.0.1", "tcp:8080:interface=127.1.2.3",
            "tcp:port=8080:interface=localhost", "tcp6:8080", "tcp6:8080:interface=\\:\\:1",
            "tcp6:8080:interface=\\:\\:ffff\\:127.0.0.1", "unix:/run/admin.sock", "unix:a:mode=666",
            "tcp:8080:backlog=5:interface=127.0.0.1", "ssl:8443:privateKey=k.pem",
        ):
            self.assertFalse(is_beyond_loopback(endpoint), endpoint)
        for endpoint in (
            "tcp:8080:interface=0.0.0.0", "tcp:8080:interface=", "tcp:8080:interface=10.0.0.1",
            "tcp:8080:interface=n0.example", "tcp6:8080:interface=\\:\\:", "tcp:8080:0.0.0.0",
            "tcp:8080:interface=127.0.0.1:interface=0.0.0.0", "tcp:8080:0.0.0.0:interface=127.0.0.1",
            "tcp6:8080:interface=\\:\\:ffff\\:10.0.0.1", "systemd:domain=INET:index=0", "haproxy:tcp:8080",
            "ssl:8443:interface=0.0.0.0", "tcp:8080:interface=127.0.0.1.example.org",
        ):
            self.assertTrue(is_beyond_loopback(endpoint), endpoint)

    def test_finding(self) -> None:
        """Beyond it both are needed, or the operator's word; what is lacking is named."""
        wide = "tcp:8080:interface=0.0.0.0"
        for endpoint, secure, token, insecure, words in (
            (wide, False, False, False, ("TLS (admin_tls=true", "and a token", "--insecure")),
            (wide, True, False, False, ("lacks a token (admin_token_file",)),
            (wide, False, True, False, ("lacks TLS",)),
            ("ssl:1:interface=0.0.0.0", False, False, False, ("lacks a token",)),
        ):
            found = admin_finding(endpoint, is_secure=secure, has_token=token, is_insecure=insecure) or ""
            for word in words:
                self.assertIn(word, found)
        for endpoint, secure, token, insecure in (
            (wide, True, True, False), (wide, False, False, True), ("8080", False, False, False),
            ("ssl:1:interface=0.0.0.0", False, True, False),
        ):
            self.assertIsNone(
                admin_finding(endpoint, is_secure=secure, has_token=token, is_insecure=insecure), endpoint
            )
