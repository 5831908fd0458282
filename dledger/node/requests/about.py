# -*- test-case-name: tests.node.test_status -*-
"""What a member says about itself to others: where it listens, and how it is."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import attrs

from dledger.core.status import MemberStatus
from dledger.node.connections.peers import Peers
from dledger.node.connections.server import MemberServer
from dledger.node.reporting.health import reported_health
from dledger.node.reporting.status import (
    ConnectionsStatus,
    NodeStatus,
    PeersStatus,
    bytes_behind,
)
from dledger.storage.store.file_store import FileStore


@attrs.frozen
class Reported:
    """
    What METADATA says about a member besides the core's facts.

    @ivar admin: C{host:port} of the HTTP administration; empty for none.
    @ivar health: reason why the member does not serve; empty if it serves.
    @ivar machine: its state machine as a text; empty for none.
    @ivar has_times: its log has time entries, or will have.
    @ivar time_resets: of these, as a text.
    @ivar state_digest: see L{dledger.node.work.state_digests}.
    @ivar version: of its software.
    """

    admin: str
    health: str
    machine: str = ""
    has_times: bool = False
    time_resets: str = ""
    state_digest: str = ""
    version: str = ""


class AboutMember:
    """
    @ivar listen: its listening address, for people; empty before it listens.
    @ivar admin: listening address of the HTTP administration, for people; empty without one.
    @ivar reported_admin: C{host:port} of it for the other members; empty if they cannot ask there.
    @ivar version: of the software.
    """

    def __init__(
        self, status: Callable[[], NodeStatus], machine: Callable[[], str], has_times: Callable[[], bool],
        time_resets: Callable[[], str], state_digest: Callable[[], str],
    ) -> None:
        """
        @param machine: reports the state machine; empty for none.
        @param has_times, time_resets, state_digest: see L{Reported}.
        """
        self.listen = ""
        self.admin = ""
        self.reported_admin = self.version = ""
        self._status = status
        self._machine = machine
        self._has_times = has_times
        self._time_resets = time_resets
        self._state_digest = state_digest
        self._reported: Reported | None = None

    def reported(self) -> Reported:
        """Made at most once between two sweeps, however often METADATA is asked for."""
        if self._reported is None:
            self._reported = Reported(
                self.reported_admin, reported_health(self._status()), self._machine(), self._has_times(),
                self._time_resets(), self._state_digest(), self.version,
            )
        return self._reported

    def sweep(self) -> None:
        """Time passed: what was reported may not be true any more."""
        self._reported = None


def connections_status(server: MemberServer | None, peers: Peers | None) -> ConnectionsStatus:
    """The connections of a member. @param server, peers: None: it has none yet."""
    if server is None or peers is None:
        return ConnectionsStatus()
    return ConnectionsStatus(
        incoming=server.connections, refused=server.connections_refused,
        replaced=server.connections_replaced, answers_held_bytes=server.budgets.answers.held,
        unfinished_frame_bytes=server.budgets.unfinished.held,
        wire_errors=server.wire_errors + peers.wire_errors, body_errors=server.body_errors,
    )


def peers_status(
    member: MemberStatus, ledger: FileStore, peers: Peers | None, addresses: Mapping[str, str]
) -> PeersStatus:
    """
    The other members as this one sees them.

    @param addresses: of all members, by id.
    """
    return PeersStatus(
        connected=peers.connected if peers is not None else {}, addresses=addresses,
        lag_bytes={
            peer.peer_id: bytes_behind(ledger, peer.match_index, unknown=-1) for peer in member.peers
        } if member.role == "leader" else {},
    )
