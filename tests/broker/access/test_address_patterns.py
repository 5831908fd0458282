# -*- test-case-name: tests.broker.access.test_address_patterns -*-
"""Patterns of addresses, as RocketMQ's operators write them."""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from dledger.rocketmq.broker.access.address_patterns import address_pattern
from dledger.values.hosts import host_text


class PatternTests(SynchronousTestCase):
    """Which addresses belong to a pattern."""

    def test_forms(self) -> None:
        """Each form, with addresses inside and outside."""
        for text, inside, outside in (
            ("", [], ["10.0.0.1", ""]), ("  ", [], ["10.0.0.1"]),
            ("*", ["10.0.0.1", "fd00::1", "unknown"], []), ("*.*.*.*", ["10.0.0.1"], []),
            ("10.0.0.1", ["10.0.0.1"], ["10.0.0.10", "110.0.0.1", "10.0.0", ""]),
            ("10.0.0.1, 10.0.0.3", ["10.0.0.1", "10.0.0.3"], ["10.0.0.2"]),
            ("10.0.0.{1,3}", ["10.0.0.1", "10.0.0.3"], ["10.0.0.2", "10.0.0.13"]),
            ("10.0.1-9.*", ["10.0.1.0", "10.0.9.255"], ["10.0.0.1", "10.0.10.1", "11.0.1.1", "10.0.1"]),
            ("192.168.*.*", ["192.168.0.1"], ["192.169.0.1", "x.168.0.1"]),
            ("fd00::1", ["fd00::1"], ["fd00::2"]), ("FD00:0::1", ["fd00::1"], ["fd00::2"]),
            ("::ffff:10.0.0.1", ["10.0.0.1"], ["10.0.0.2"]), ("fe80::1%eth0", ["fe80::1"], ["fe80::2"]),
        ):
            pattern = address_pattern(text)
            for address in inside:
                self.assertTrue(pattern(address), (text, address))
            for address in outside:
                self.assertFalse(pattern(address), (text, address))

    def test_wrong(self) -> None:
        """What has no form is named."""
        for text in ("10.0.0", "10.0.0.256", "10.0.0.1-", "10.0.9-1.*", "10.0.0.{1,2",
                     "10.0.{1,2}.1", "host", "10.0.0.{}", "10.0.0.{1,2}x", "10.0.0.{{1}", "10.0.0{1,2}",
                     "10.0.0.1,,10.0.0.2", "*.0", "fd00::*", "10.0.-1.*", "10.0.0.0-300"):
            error = self.assertRaises(ValueError, address_pattern, text)
            self.assertIn(f"{text!r}: allowed are *, an address", str(error), text)

    def test_host(self) -> None:
        """One text for one address."""
        for text, usual in (
            ("10.0.0.1", "10.0.0.1"), ("::ffff:10.0.0.1", "10.0.0.1"), ("FD00::0001", "fd00::1"),
            ("fe80::1%eth0", "fe80::1"), ("not an address", "not an address"),
        ):
            self.assertEqual(host_text(text), usual)
