# -*- test-case-name: tests.node.test_node -*-
"""What the connections to the other members report, as inputs of the core."""

from __future__ import annotations

from collections.abc import Callable

import attrs

from dledger.core.state.inputs import PeerConnected, RequestFailed, ResponseReceived
from protocols.wire.ledger.messages import Response


@attrs.frozen
class PeerInputs:
    """A L{dledger.node.connections.peers.PeerListener}. @ivar _feed: takes inputs for the core."""

    _feed: Callable[..., None]

    def answered(self, peer_id: str, answers: list[tuple[int, Response]]) -> None:
        """The peer answered."""
        self._feed(*[
            ResponseReceived(peer_id=peer_id, request_id=request_id, response=response)
            for request_id, response in answers
        ])

    def failed(self, peer_id: str, failed: list[tuple[int, str]], is_incompatible: bool = False) -> None:
        """The peer will not answer, or answered in another version of the protocol."""
        self._feed(*[
            RequestFailed(
                peer_id=peer_id, request_id=request_id, reason=reason, is_incompatible=is_incompatible
            )
            for request_id, reason in failed
        ])

    def connected(self, peer_id: str) -> None:
        """A new connection to the peer is open."""
        self._feed(PeerConnected(peer_id=peer_id))
