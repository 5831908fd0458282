# -*- test-case-name: tests.node.test_turned_away -*-
"""Requests that are turned away: the member has stopped, their sender is another one, or has no right."""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from dledger.core.state import inputs as ev
from dledger.values.errors import DLedgerError
from dledger.values.rights import ALL_RIGHTS, ClientRole, Rights
from protocols.wire.codes import ResponseCode
from protocols.wire.ledger.messages import (
    AppendRequest,
    GetRequest,
    HeartBeatRequest,
    LeadershipTransferRequest,
    MetadataRequest,
    MetadataResponse,
    PullRequest,
    Request,
    VoteRequest,
)
from tests.node.rig import PEERS, FakeClient, Rig, commit
from tests.protocols.fakes import native_request


class StoppedTests(SynchronousTestCase):
    """A member that has stopped still answers requests."""

    def test_after_the_stop(self) -> None:
        """Clients are sent elsewhere, peers hear the reason."""
        rig = Rig().lead()
        client = rig.client()
        rig.node.stop()
        rig.clock.advance(0)
        self.assertEqual(client.ask(AppendRequest(bodies=(b"a",), **rig.base())).code, 404)
        self.assertEqual(client.ask(GetRequest(begin_index=0, **rig.base())).code, 404)
        self.assertEqual(client.ask(commit()).code, ResponseCode.ILLEGAL_MEMBER_STATE)

    def test_whom_to_ask(self) -> None:
        """A client that knew this member only learns the others."""
        rig = Rig(peers=PEERS)
        rig.node.start()
        client = rig.client()
        rig.node.stop()
        rig.clock.advance(0)
        reported = client.ask(MetadataRequest(**rig.base()))
        assert isinstance(reported, MetadataResponse)
        self.assertEqual((reported.code, dict(reported.peers)), (404, dict(rig.node.config.peers)))
        self.assertEqual(client.ask(MetadataRequest(group="other", remote_id="n0")).peers, {})

    def test_at_the_stop(self) -> None:
        """Requests that the core never answered are answered."""
        rig = Rig(peers=PEERS)
        rig.node.start()
        client = rig.client()
        rig.feed_requests_to(lambda *inputs: None)
        client.send(commit())
        local = rig.node.transfer("n1")
        rig.node.abort("test")
        (answer,) = client.answers()
        self.assertEqual(answer.code, ResponseCode.ILLEGAL_MEMBER_STATE)
        self.failureResultOf(local, DLedgerError)

    def test_frames_are_bytes(self) -> None:
        """The client of these tests speaks the real format."""
        self.assertEqual(native_request(commit(), 1)[0], 0xD1)


class AbsentTests(SynchronousTestCase):
    """Requests in the name of a member whose own address does not answer."""

    def setUp(self) -> None:
        self.rig = Rig(peers=PEERS)
        self.rig.node.start()
        self.fed: list[ev.Input] = []
        self.rig.feed_requests_to(lambda *happened: self.fed.extend(happened))
        self.base = self.rig.base(local_id="n1", leader_id="n1", term=7)

    def binding(self) -> list[Request]:
        """One of each kind."""
        taking = LeadershipTransferRequest(**self.base, transfer_id="n1", transferee_id="n0")
        return [VoteRequest(**self.base), HeartBeatRequest(**self.base), commit(term=7), taking]

    def test_an_absent_member_binds_nobody(self) -> None:
        """The core hears nothing that binds; the log reports it."""
        self.rig.peers.absent.add("n1")
        client = self.rig.client()
        for request in self.binding():
            self.assertIs(client.ask(request).code, ResponseCode.ILLEGAL_MEMBER_STATE)
        self.assertEqual(self.fed, [])
        self.assertEqual(self.rig.node.status().counts.reports["sender-absent"], 4)

    def test_a_present_member_is_heard_again(self) -> None:
        """On the same connection, when it answers again."""
        self.rig.peers.absent.add("n1")
        client = self.rig.client()
        client.ask(self.binding()[0])
        self.rig.peers.absent.clear()
        client.send(*self.binding())
        self.assertEqual(len(self.fed), 4)

    def test_what_binds_nobody(self) -> None:
        """METADATA is answered, and a pre-vote comes to the core."""
        self.rig.peers.absent.add("n1")
        client = self.rig.client()
        self.assertIs(client.ask(MetadataRequest(**self.base)).code, ResponseCode.SUCCESS)
        client.send(VoteRequest(**self.base, pre_vote=True))
        self.assertEqual(len(self.fed), 1)


class TakenTests(SynchronousTestCase):
    """A member finds that somebody else speaks for it."""

    def setUp(self) -> None:
        self.rig = Rig(peers=PEERS)
        self.rig.node.start()
        self.first = self.rig.client()
        self.ask = MetadataRequest(**self.rig.base(local_id="n1"))
        self.first.ask(self.ask)

    def test_metadata_is_answered(self) -> None:
        """So it can follow; it is not taken for the member."""
        second = self.rig.client()
        self.assertIs(second.ask(self.ask).code, ResponseCode.SUCCESS)
        self.assertIsNone(second.connection.peer_id)
        self.assertEqual(self.rig.node.status().counts.reports["claim-refused"], 1)

    def test_its_list_does_not_count(self) -> None:
        """Nor is it turned away for it."""
        second = self.rig.client()
        foreign = MetadataRequest(**self.rig.base(local_id="n1"), members="n1;n7")
        self.assertIs(second.ask(foreign, native=False).code, ResponseCode.SUCCESS)
        self.assertFalse(second.transport.disconnected)

    def test_a_binding_request_ends_the_second_connection(self) -> None:
        """Ends the second connection."""
        second = self.rig.client()
        second.ask(self.ask)
        second.send(commit())
        self.assertTrue(second.transport.disconnected)
        self.assertFalse(self.first.transport.disconnected)


class RightsTests(SynchronousTestCase):
    """What certificates allow."""

    def client_with(self, rig: Rig, rights: Rights) -> FakeClient:
        """A client with these rights."""
        rig.node.router.access.judge_with(lambda connection: rights)
        return rig.client()

    def test_each_request_needs_its_role(self) -> None:
        """Each request needs its role, METADATA none; a refused append is certainly not in the log."""
        requests = {
            ClientRole.READ: (GetRequest, {"begin_index": 99}),
            ClientRole.APPEND: (AppendRequest, {"bodies": (b"a",)}),
            ClientRole.ADMIN: (LeadershipTransferRequest, {"transfer_id": "n0", "transferee_id": "n7"}),
        }
        read, append = ClientRole.READ, ClientRole.APPEND
        for roles in (set[ClientRole](), {read}, {read, append}, set(ClientRole)):
            rig = Rig().lead()
            client = self.client_with(rig, Rights(members=frozenset(), roles=frozenset(roles), who="CN=bob"))
            for needed, (request_class, facts) in requests.items():
                for native in (True, False):
                    client.send(request_class(**rig.base(), **facts), native=native)
                    answers = client.answers()
                    is_refused = [answer.code for answer in answers] == [ResponseCode.FORBIDDEN]
                    self.assertEqual(is_refused, needed not in roles, (roles, needed, native))
            self.assertEqual(client.ask(MetadataRequest(**rig.base())).code, 200)
            if not roles:
                self.assertEqual(rig.store.ledger_end_index, -1)
                self.assertEqual(rig.node.status().counts.refusals["FORBIDDEN"], 6)

    def test_a_pull_needs_the_role_to_read(self) -> None:
        """Reading in bulk is reading."""
        rig = Rig().lead()
        client = self.client_with(rig, Rights(members=frozenset(), roles=frozenset()))
        self.assertEqual(client.ask(PullRequest(begin_index=0, **rig.base())).code, ResponseCode.FORBIDDEN)

    def test_allowed_requests_of_a_read_are_answered(self) -> None:
        """What is allowed in one read is answered, too."""
        rig = Rig().lead()
        client = self.client_with(rig, Rights(members=frozenset(), roles=frozenset({ClientRole.READ})))
        client.send(AppendRequest(bodies=(b"a",), **rig.base()), MetadataRequest(**rig.base()))
        self.assertEqual([answer.code for answer in client.answers()], [ResponseCode.FORBIDDEN, 200])

    def test_a_connection_claims_its_members_only(self) -> None:
        """A connection is taken for members that its certificate names; it ends when it claims another."""
        beat = HeartBeatRequest(group="default", remote_id="n0", local_id="n1", leader_id="n1", term=5)
        for members, is_taken in (({"n1"}, True), ({"n2"}, False), (set[str](), False)):
            rig = Rig(peers=PEERS)
            rig.node.start()
            rights = Rights(members=frozenset(members), roles=frozenset(ClientRole), who="CN=x")
            client = self.client_with(rig, rights)
            client.send(beat)
            self.assertEqual([answer.code for answer in client.answers()], [200] if is_taken else [], members)
            self.assertEqual(client.connection.is_lost, not is_taken)
            self.assertEqual(rig.node.status().member.term, 5 if is_taken else 0)

    def test_asked_when_the_first_request_comes(self) -> None:
        """Before that, the handshake may not be over; later, the answer is remembered."""
        asked = []

        def rights_of(connection: object) -> Rights:
            asked.append(connection)
            return ALL_RIGHTS

        rig = Rig().lead()
        rig.node.router.access.judge_with(rights_of)
        client = rig.client()
        self.assertEqual(asked, [])
        for _ in range(2):
            self.assertEqual(client.ask(MetadataRequest(**rig.base())).code, 200)
        self.assertEqual(asked, [client.connection])
