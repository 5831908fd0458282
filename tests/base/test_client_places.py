# -*- test-case-name: tests.base.test_client_places -*-
"""How many connections clients may have, and one address of them."""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from dledger.base.serving.client_places import NEWCOMERS_PLACES, ClientPlaces, address_key


class AddressTests(SynchronousTestCase):
    """What counts as one address."""

    def test_kinds(self) -> None:
        """IPv4 however it is written; a network of IPv6; anything else as it is."""
        for host, key in (
            ("10.0.0.1", "10.0.0.1"), ("::ffff:10.0.0.1", "10.0.0.1"), ("2001:db8::1", "2001:db8::/64"),
            ("2001:db8::ffff:0:0:2", "2001:db8::/64"), ("2001:db8:0:1::1", "2001:db8:0:1::/64"),
            ("fe80::1%eth0", "fe80::/64"), ("a socket", "a socket"), ("", ""),
        ):
            self.assertEqual(address_key(host), key, host)


class PlacesTests(SynchronousTestCase):
    """Taken, and left."""

    def test_number(self) -> None:
        """All but those of newcomers, a sixteenth, 16 at least; of few, half."""
        for connections, places in ((4096, 4096 - 256), (100, 100 - NEWCOMERS_PLACES), (20, 10), (3, 1)):
            self.assertEqual(ClientPlaces(connections).places, places)

    def test_limit(self) -> None:
        """One too many is informed of that; a place that is left is free."""
        found = ClientPlaces(4, share_percent=100)
        for name in ("a", "b"):
            self.assertEqual(found.refusal(name, name), "")
            found.take(name, name)
        found.take("a", "a")
        self.assertEqual(len(found), 2)
        self.assertIn("2 clients are connected, which is the limit here", found.refusal("c", "c"))
        self.assertEqual(found.refusal("a", "a"), "")
        found.leave("a")
        found.leave("a")
        self.assertEqual(found.refusal("c", "c"), "")

    def test_share(self) -> None:
        """One address has its share, and others have room."""
        found = ClientPlaces(2 * NEWCOMERS_PLACES, share_percent=25)
        for number in range(4):
            found.take(number, "10.0.0.1")
        reported = found.refusal("next", "::ffff:10.0.0.1")
        self.assertIn("10.0.0.1 has 4 connections, which is the share of one address", reported)
        self.assertIn("connections_share", reported)
        self.assertEqual(found.refusal("next", "10.0.0.2"), "")
        found.leave(0)
        self.assertEqual(found.refusal("next", "10.0.0.1"), "")
        for number in range(4):
            found.leave(number)
        self.assertEqual((len(found), found._by_address), (0, {}))

    def test_at_least_one(self) -> None:
        """However small the share."""
        self.assertEqual(ClientPlaces(20, share_percent=1).share, 1)
