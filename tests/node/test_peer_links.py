# -*- test-case-name: tests.node.test_peer_links -*-
"""Who leaves, who is greeted, and who is tried again at once; see L{tests.node.test_peers}."""

from __future__ import annotations

from twisted.internet.error import ConnectionDone
from twisted.python.failure import Failure

from dledger.node.connections.peers import SIGN_OF_LIFE_S
from dledger.node.connections.redial import HURRY_S
from dledger.values.ledger.membership import Membership
from protocols.wire.ledger.machines import SnapshotRequest
from protocols.wire.ledger.messages import MetadataResponse
from tests.node.test_peers import PeersTestCase
from tests.protocols.fakes import remoting_response, unplug


class LinkTests(PeersTestCase):
    """Two peers."""

    def test_foreign_after_a_change(self) -> None:
        """After a change of members, too, a format with the id of the group shows who is of another one."""
        self.patch(Membership, "is_changed", True)
        connection, transport = self.endpoints["n1"].succeed()
        ((probe, _),) = self.sent(transport)
        connection.dataReceived(remoting_response(MetadataResponse(wire_version=1, group_id="b" * 32,
                                                                   is_group_known=True), probe))
        self.assertTrue(transport.disconnected)

    def test_one_peer_or_all_are_greeted(self) -> None:
        """One peer, or all of them, hear of this member again."""
        transports = {peer_id: self.connect(peer_id)[1] for peer_id in ("n1", "n2")}
        for asked, reported in (("n1", ["n1"]), ("n2", ["n2"]), ("n9", []), (None, ["n1", "n2"])):
            self.peers.greet(asked)
            self.assertEqual([one for one, transport in transports.items() if self.sent(transport)], reported)

    def test_any_question_is_a_sign(self) -> None:
        """One of another part than the core, too."""
        connection, transport = self.connect()
        connection.dataReceived(remoting_response(MetadataResponse(wire_version=1), 1))
        self.peers.sweep(0)
        self.peers.ask("n1", SnapshotRequest()).addErrback(lambda _: None)
        self.sent(transport)
        self.clock.advance(SIGN_OF_LIFE_S)
        self.peers.sweep(SIGN_OF_LIFE_S)
        self.assertEqual(self.sent(transport), [])

    def test_a_link_to_a_member_that_left_ends(self) -> None:
        """The connection to a member that has left, or moved, ends; nobody tries to make it again."""
        connection, transport = self.connect("n1")
        self.peers.follow({"n2": "h:3"})
        self.assertTrue(transport.disconnecting)
        stopped = self.peers.stop()
        self.endpoints["n2"].fail()
        self.assertNoResult(stopped)  # it waits for that one, too
        unplug(connection)
        self.successResultOf(stopped)
        self.clock.advance(10)
        self.assertEqual(self.endpoints["n1"].attempts, [])

    def test_hurry_after_a_loss(self) -> None:
        """So is one whose connection has just ended, without the pause before the next attempt."""
        connection, transport = self.endpoints["n1"].succeed()
        ((opaque, _),) = self.sent(transport)
        connection.dataReceived(remoting_response(MetadataResponse(wire_version=1), opaque))
        self.clock.advance(2 * HURRY_S)
        connection.connectionLost(Failure(ConnectionDone()))
        self.assertEqual(self.endpoints["n1"].attempts, [])
        self.assertFalse(self.peers.vouches("n1"))
        self.assertEqual(len(self.endpoints["n1"].attempts), 1)
