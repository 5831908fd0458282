# -*- test-case-name: tests.base.test_hosts -*-
"""Options that name hosts, and who may ask for changes."""

from __future__ import annotations

from twisted.internet.address import IPv4Address, UNIXAddress
from twisted.trial.unittest import SynchronousTestCase

from dledger.values.hosts import (
    ChangeHosts,
    end_host,
    host_list,
    host_text,
    is_within,
    networks_of,
    shared_address,
)


class NetworksTests(SynchronousTestCase):
    """L{networks_of}, L{is_within}."""

    def test_forms(self) -> None:
        """IPv4 in the form of IPv6 is IPv4, in the option and in an address."""
        networks = networks_of(("10.0.0.0/24", "::ffff:10.1.0.0/112", "fd00::/64"), "x")
        for host, is_in in (
            ("10.0.0.7", True), ("::ffff:10.0.0.7", True), ("10.1.255.7", True), ("10.2.0.1", False),
            ("fd00::7", True), ("fd00::7%eth0", True), ("fd01::7", False), ("host", False), ("", False),
        ):
            self.assertIs(is_within(host, networks), is_in, host)

    def test_malformed(self) -> None:
        """Names are not looked up, and bits of a host are a mistake."""
        for bad in ("localhost", "10.0.0.7/24", "10.0.0", ""):
            error = self.assertRaises(ValueError, networks_of, (bad,), "some_hosts")
            self.assertIn(f"some_hosts: {bad!r} is neither an IP address nor a network", str(error))


class EndsTests(SynchronousTestCase):
    """L{end_host}, L{host_text}."""

    def test_hosts(self) -> None:
        """A socket of the file system is of this machine."""
        self.assertEqual(end_host(IPv4Address("TCP", "10.0.0.7", 1)), "10.0.0.7")
        for name in (b"/s", None):
            self.assertTrue(ChangeHosts().allows(end_host(UNIXAddress(name))))
        self.assertFalse(ChangeHosts().allows(end_host(object())))

    def test_text(self) -> None:
        """The usual form."""
        for host, text in (("::ffff:10.0.0.7", "10.0.0.7"), ("fd00::0:7%eth0", "fd00::7"), ("name", "name")):
            self.assertEqual(host_text(host), text)


class ShareTests(SynchronousTestCase):
    """What counts as one address."""

    def test_addresses(self) -> None:
        """IPv4 counts whole, in either form, IPv6 by its first half, and other text as it is."""
        for host, shared in (
            ("10.0.0.7", "10.0.0.7"), ("::ffff:10.0.0.7", "10.0.0.7"), ("localhost", "localhost"), ("", ""),
            ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"), ("2001:db8:1:2::9", "2001:db8:1:2::/64"),
            ("2001:db8:1:3::9", "2001:db8:1:3::/64"), ("fe80::1%eth0", "fe80::/64"),
            ("127.0.0.2", "127.0.0.1"), ("127.255.0.9", "127.0.0.1"), ("::1", "127.0.0.1"),
        ):
            self.assertEqual(shared_address(host), shared, host)


class ChangeHostsTests(SynchronousTestCase):
    """L{ChangeHosts}."""

    def test_loopback(self) -> None:
        """Always."""
        for host in ("127.0.0.1", "127.3.2.1", "::1", "::ffff:127.0.0.1"):
            self.assertTrue(ChangeHosts().allows(host), host)
            self.assertTrue(ChangeHosts(("10.0.0.0/24",)).allows(host), host)

    def test_others(self) -> None:
        """Only if they are named."""
        for host in ("10.0.0.7", "fd00::7", "0.0.0.0", "::", "host", ""):
            self.assertFalse(ChangeHosts().allows(host), host)
            self.assertTrue(ChangeHosts(("*",)).allows(host), host)
        self.assertTrue(ChangeHosts(("10.0.0.7", "fd00::/64")).allows("fd00::7"))

    def test_none(self) -> None:
        """Not even the loopback interface: a proxy on this machine may speak for anybody. It is alone."""
        nobody = ChangeHosts(("none",), "changeHosts")
        for host in ("127.0.0.1", "::1", "localhost", "10.0.0.7", ""):
            self.assertFalse(nobody.allows(host), host)
        self.assertIn("changeHosts=none takes none", nobody.refusal("127.0.0.1", "it"))
        for hosts in (("none", "10.0.0.7"), ("*", "none")):
            self.assertIn("so it is alone", str(self.assertRaises(ValueError, ChangeHosts, hosts)))

    def test_sentence(self) -> None:
        """What was refused, who may, and how to allow it."""
        hosts = ChangeHosts(("10.0.0.0/24",), "changeHosts")
        self.assertEqual(hosts.refusal("10.0.0.9", "X"), "")
        for part in ("X is a change", "10.1.0.9", "loopback", "name 10.1.0.9 in changeHosts"):
            self.assertIn(part, hosts.refusal("10.1.0.9", "X"))

    def test_malformed(self) -> None:
        """The option is named."""
        error = self.assertRaises(ValueError, ChangeHosts, ("*", "localhost"), "changeHosts")
        self.assertIn("changeHosts: 'localhost' is neither", str(error))
        self.assertRaises(ValueError, ChangeHosts, (1,))

    def test_list(self) -> None:
        """Text with semicolons, or a list."""
        self.assertEqual(host_list(" 10.0.0.7; ::1;"), ("10.0.0.7", "::1"))
        self.assertEqual(host_list(["10.0.0.7"]), ("10.0.0.7",))
