# -*- test-case-name: tests.broker.ha.test_allowed -*-
"""Whose slaves a master accepts."""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from dledger.rocketmq.replication.allowed import AllowedHosts


class AllowedTests(SynchronousTestCase):
    """Addresses, networks, anyone, this host."""

    def test_each_list_allows_its_hosts(self) -> None:
        """What each list allows."""
        for hosts, host, is_allowed in (
            ((), "127.0.0.1", True), ((), "::1", True), ((), "10.0.0.9", True), ((), "10.0.0.1", False),
            ((), "::ffff:10.0.0.9", True), ((), "a.name", False),
            (("*",), "10.0.0.1", True), (("*",), "a.name", True),
            (("10.0.0.1",), "10.0.0.1", True), (("10.0.0.1",), "10.0.0.2", False),
            (("10.0.0.1",), "127.0.0.1", False), (("10.0.0.0/8",), "10.200.0.1", True),
            (("10.0.0.0/8",), "::ffff:10.200.0.1", True), (("10.0.0.0/8",), "11.0.0.1", False),
            (("fd00::/8",), "fd00::7", True), (("fd00::/8",), "fe80::7%eth0", False),
        ):
            self.assertEqual(AllowedHosts(hosts).refusal(host, "10.0.0.9") == "", is_allowed, (hosts, host))

    def test_the_rule_is_reported_at_start(self) -> None:
        """The rule is reported at the start."""
        self.assertIn("this host only", AllowedHosts(()).sentence())
        self.assertIn("anyone", AllowedHosts(("*",)).sentence())
        self.assertIn("10.0.0.0/8", AllowedHosts(("10.0.0.0/8",)).sentence())
