# -*- test-case-name: tests.node.test_places -*-
"""Who gets a place at a member."""

from __future__ import annotations

from typing import Any

import attrs
from twisted.trial.unittest import SynchronousTestCase

from dledger.base.serving.client_places import ClientPlaces
from protocols.wire.codes import ResponseCode
from protocols.wire.ledger.messages import AppendRequest, GetRequest, MetadataRequest
from tests.node.rig import Rig

PEERS = "n0-h:1;n1-h:2;n2-h:3"


class PlaceTests(SynchronousTestCase):
    """
    A client for which there is no place is informed of that with its first request, and nobody else ends for
    it.
    """

    def setUp(self) -> None:
        self.rig = Rig(peers=PEERS)
        self.rig.node.start()
        self.rig.server.clients = ClientPlaces(2, share_percent=100)
        self.kept = self.rig.client()
        self.assertIs(self.kept.ask(MetadataRequest(**self.rig.base())).code, ResponseCode.SUCCESS)

    def test_a_client_without_a_place_is_refused(self) -> None:
        """METADATA has the sentence, any other request the code; nothing of them comes to the core."""
        fed: list[Any] = []
        self.rig.feed_requests_to(lambda *inputs: fed.extend(inputs))
        for request in (
            MetadataRequest(**self.rig.base()), AppendRequest(**self.rig.base(), bodies=(b"x",)),
            GetRequest(**self.rig.base(), begin_index=0),
        ):
            late = self.rig.client()
            answer = late.ask(request, native=False)
            self.assertIs(answer.code, ResponseCode.TOO_MANY_CLIENTS)
            if isinstance(request, MetadataRequest):
                self.assertIn("1 clients are connected, which is the limit here", answer.health)
            self.assertFalse(late.connection.account.is_proven)
            self.assertTrue(late.transport.disconnecting)
            late = self.rig.client()
            self.assertIs(late.ask(request, native=True).code, ResponseCode.TOO_MANY_CLIENTS)
        self.assertEqual(fed, [])
        self.assertFalse(self.kept.connection.is_lost)

    def test_all_of_a_read(self) -> None:
        """Every request of the first read is answered, also when the valid one is not the first."""
        late = self.rig.client()
        ask = MetadataRequest(**self.rig.base())
        late.send(attrs.evolve(ask, group="other"), ask, native=False)
        self.assertEqual([one.code for one in late.answers()], [ResponseCode.TOO_MANY_CLIENTS] * 2)

    def test_a_member_needs_no_place(self) -> None:
        """A member needs no place; who only says that it is one, while that member is here, has none."""
        greeting = MetadataRequest(**self.rig.base(local_id="n1"))
        member, other = self.rig.client(), self.rig.client()
        self.assertIs(member.ask(greeting, native=False).code, ResponseCode.SUCCESS)
        self.assertEqual(member.connection.peer_id, "n1")
        self.assertIs(other.ask(greeting, native=False).code, ResponseCode.TOO_MANY_CLIENTS)

    def test_becomes_a_member(self) -> None:
        """A client that turns out to be a member leaves its place."""
        self.kept.ask(MetadataRequest(**self.rig.base(local_id="n2")), native=False)
        self.assertEqual(len(self.rig.server.clients), 0)
        late = self.rig.client()
        self.assertIs(late.ask(MetadataRequest(**self.rig.base())).code, ResponseCode.SUCCESS)

    def test_a_second_request_is_valid(self) -> None:
        """A connection whose first request is another's gets its place with the first valid one."""
        self.rig.server.clients = ClientPlaces(2, share_percent=100)
        late = self.rig.client()
        ask = MetadataRequest(**self.rig.base())
        late.send(attrs.evolve(ask, group="other"), ask, native=False)
        late.answers()
        self.assertTrue(late.connection.account.is_proven)
