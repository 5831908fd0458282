# -*- test-case-name: tests.node.test_incompatible -*-
"""A whole member among peers of DLedger 0.4, from the bytes that they answer to the role that it takes."""

from __future__ import annotations

from typing import Any

from dledger.node.connections.redial import RETRY_MAX_S
from dledger.node.service import MemberService
from dledger.values.errors import DLedgerError
from protocols.wire.codes import ResponseCode
from protocols.wire.ledger.codes import PushType, RequestCode, VoteResult
from protocols.wire.ledger.java.json_bodies import decode_request, encode_response
from protocols.wire.ledger.messages import (
    HeartBeatRequest,
    HeartBeatResponse,
    MetadataRequest,
    MetadataResponse,
    PushEntryRequest,
    Request,
    VoteRequest,
    VoteResponse,
)
from protocols.wire.remoting import RemotingCommand, encode_command
from tests.node.test_service import PEERS, ServiceTestCase
from tests.protocols.fakes import sent_commands, unplug
from tests.wire.golden import PUSH_ANSWERS_0_4


def java_answer(request: Request) -> bytes:
    """What a member of DLedger 0.4 answers that knows no leader and votes for whoever asks."""
    if isinstance(request, MetadataRequest):
        return encode_response(MetadataResponse(group="default"))
    if isinstance(request, VoteRequest):
        return encode_response(VoteResponse(term=request.term, vote_result=VoteResult.ACCEPT))
    if isinstance(request, HeartBeatRequest):
        return encode_response(HeartBeatResponse(term=request.term))
    assert isinstance(request, PushEntryRequest)
    return PUSH_ANSWERS_0_4[0]


class GroupTests(ServiceTestCase):
    """One member of ours, two of 0.4."""

    def setUp(self) -> None:
        super().setUp()
        self.asked: list[Request] = []
        self.connections: dict[str, tuple[Any, Any]] = {}
        self.service: MemberService = self.make(peers=PEERS)
        self.service.startService()
        self.addCleanup(self.service.stopService)
        for peer_id in ("n1", "n2"):
            self.connections[peer_id] = self.endpoints[peer_id].succeed()

    def play(self, seconds: float) -> None:
        """Time passes; the peers answer."""
        for _ in range(int(seconds / 0.02)):
            self.reactor.advance(0.02)
            for connection, transport in self.connections.values():
                commands = sent_commands(transport.value())
                transport.clear()
                for command in commands:
                    request = decode_request(RequestCode(command.code), command.body)
                    self.asked.append(request)
                    connection.dataReceived(encode_command(RemotingCommand(
                        code=200, opaque=command.opaque, flag=1, body=java_answer(request)
                    )))

    def role(self) -> str:
        """Its effects."""
        return self.node_of(self.service).status().member.role

    def test_a_leader_gives_way_to_older_members(self) -> None:
        """It leads until its first push is answered; then no more, until one has another connection."""
        self.play(5)
        self.assertIn("VoteRequest", [type(one).__name__ for one in self.asked])
        self.assertEqual(self.role(), "follower")
        append = self.node_of(self.service).append(b"a")
        self.play(0.5)
        self.assertIs(self.failureResultOf(append, DLedgerError).value.code, ResponseCode.NOT_LEADER)
        self.assertEqual({one.type for one in self.asked if isinstance(one, PushEntryRequest)},
                         {PushType.COMMIT})
        del self.asked[:]
        self.play(30)
        self.assertEqual([one for one in self.asked if isinstance(one, VoteRequest)], [])
        unplug(self.connections.pop("n2")[0])
        self.play(RETRY_MAX_S)
        self.connections["n2"] = self.endpoints["n2"].succeed()
        self.play(5)
        self.assertIn("VoteRequest", [type(one).__name__ for one in self.asked])
        self.assertEqual(self.role(), "follower")  # the same program was there
