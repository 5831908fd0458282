# -*- test-case-name: tests.base.test_rights -*-
"""What a certificate allows."""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from dledger.values.rights import ALL_RIGHTS, GROUP_URI, ClientRole, Rights, named_uri, rights_of


def of(*, dns_names: tuple[str, ...] = (), uris: tuple[str, ...] = ()) -> Rights:
    """The rights by these names, in a group of n0 and n1."""
    return rights_of(dns_names=dns_names, uris=uris, member_ids=("n0", "n1"), who="CN=x", group="a group/1")


class RightsTests(SynchronousTestCase):
    """Names become rights."""

    def test_members(self) -> None:
        """A DNS name that is a member's id; a member may do what a client may."""
        rights = of(dns_names=("n1", "example.org"))
        self.assertEqual(rights.members, {"n1"})
        self.assertEqual(rights.roles, set(ClientRole))
        self.assertEqual((rights.speak_for("n1"), rights.speak_for("n0"), rights.speak_for("n9")),
                         (True, False, False))

    def test_groups(self) -> None:
        """One that names groups counts in these only; one that names none counts in all."""
        own, other = named_uri(GROUP_URI, "a group/1"), named_uri(GROUP_URI, "another")
        self.assertEqual(own, "dledger:group:a%20group%2F1")
        for uris, counts in (((), True), ((own,), True), ((other,), False), ((other, own), True),
                             (("dledger:group:",), False)):
            rights = of(dns_names=("n1",), uris=(*uris, "dledger:role:admin"))
            self.assertEqual((rights.speak_for("n1"), bool(rights.roles)), (counts, counts), uris)
            self.assertEqual(rights.who, "CN=x")

    def test_roles(self) -> None:
        """A URI names a role; a stronger one includes the weaker ones; what is unknown means nothing."""
        for uri, roles in (
            ("dledger:role:read", {ClientRole.READ}),
            ("dledger:role:append", {ClientRole.READ, ClientRole.APPEND}),
            ("dledger:role:admin", set(ClientRole)),
            ("dledger:role:READ", set()),
            ("dledger:role:", set()),
            ("read", set()),
            ("https://dledger:role:admin", set()),
        ):
            rights = of(uris=(uri,))
            self.assertEqual((rights.roles, rights.members), (roles, frozenset()), uri)
            self.assertFalse(rights.speak_for("n0"), uri)

    def test_nothing(self) -> None:
        """A certificate without such names allows nothing."""
        rights = of(dns_names=("n2", "N0", "n0.example.org"))
        self.assertEqual((rights.roles, rights.members), (frozenset(), frozenset()))

    def test_all(self) -> None:
        """Without TLS, everybody may speak for everybody."""
        self.assertTrue(ALL_RIGHTS.speak_for("n7"))
        self.assertEqual(ALL_RIGHTS.roles, set(ClientRole))
