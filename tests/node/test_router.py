# -*- test-case-name: tests.node.test_router -*-
"""Every request is answered once, by whom it concerns, with a code in a body."""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from dledger.core.state import effects as fx
from dledger.core.state import inputs as ev
from dledger.values.errors import DLedgerError
from protocols.wire.codes import ResponseCode
from protocols.wire.ledger.batches import EntryBatch
from protocols.wire.ledger.codes import WIRE_VERSION, Consistency, PushType, RequestCode, VoteResult
from protocols.wire.ledger.entry import pack_record
from protocols.wire.ledger.machines import SubmitRequest
from protocols.wire.ledger.message_table import MESSAGES
from protocols.wire.ledger.messages import (
    AppendIfRequest,
    AppendOnceRequest,
    AppendRequest,
    GetRequest,
    HeartBeatRequest,
    LeadershipTransferRequest,
    LeadershipTransferResponse,
    MembershipRequest,
    MetadataRequest,
    PullRequest,
    PushEntryRequest,
    Request,
    VoteRequest,
    VoteResponse,
)
from protocols.wire.ledger.own.own_entries import HIDDEN_MAGIC
from protocols.wire.remoting import RemotingCommand, encode_command
from tests.node.rig import PEERS, Rig, commit
from tests.protocols.fakes import sent_commands
from tests.wire.golden import PUSHES_0_4


def append_push(index: int, *, term: int) -> PushEntryRequest:
    """One entry of a leader n1, which can be merged with its neighbours over remoting."""
    record, _chain_crc = pack_record(b"a", index=index, term=term, pos=49 * index, previous_chain_crc=0)
    entries = EntryBatch(first_index=index, count=1, term=term, records=record)
    return PushEntryRequest(
        group="default", remote_id="n0", local_id="n1", leader_id="n1", term=term, type=PushType.APPEND,
        commit_index=-1, entries=entries,
    )


class AccessTests(SynchronousTestCase):
    """Whom and what a request is for."""

    def setUp(self) -> None:
        self.rig = Rig().lead()
        self.client = self.rig.client()

    def test_every_request_has_a_row(self) -> None:
        """In one table of the router; others but these would reach the core, which answers none of them."""
        router = self.rig.node.router
        of_core = {
            VoteRequest, HeartBeatRequest, PushEntryRequest, LeadershipTransferRequest, MembershipRequest,
        }
        rows = [AppendRequest, *router._of_clients, *router._of_members, *of_core]
        self.assertEqual(len(set(rows)), len(rows))
        self.assertEqual({request for request, _answer in MESSAGES.values()}, set(rows))

    def every_request(self, **base: object) -> list[Request]:
        """One of each kind."""
        return [
            request_class(**base) if kind.name != "PUSH" else PushEntryRequest(type=PushType.COMMIT, **base)
            for kind, (request_class, _) in MESSAGES.items()
        ]

    def test_a_request_for_another_member_is_refused(self) -> None:
        """401, before the group is looked at; base fields come back, with the leader."""
        for native in (True, False):
            for request in self.every_request(group="other", remote_id="n7", local_id="x", term=5):
                answer = self.client.ask(request, native=native)
                base = (answer.code, answer.group, answer.remote_id, answer.local_id, answer.term)
                self.assertIsInstance(answer, MESSAGES[request.kind][1])
                self.assertEqual(base, (401, "other", "n7", "x", 5), request)
                self.assertEqual(answer.leader_id, "n0")

    def test_a_request_for_another_group_is_refused(self) -> None:
        """400."""
        for request in self.every_request(group="other", remote_id="n0"):
            self.assertEqual(self.client.ask(request).code, ResponseCode.UNKNOWN_GROUP, request)

    def test_a_request_for_nobody_is_refused(self) -> None:
        """A request without remoteId is for nobody here."""
        self.assertEqual(self.client.ask(GetRequest(group="default", begin_index=0)).code, 401)

    def test_metadata_works_in_any_role(self) -> None:
        """Works in any role, and says more than Java does."""
        answer = self.client.ask(MetadataRequest(**self.rig.base()), native=False)
        self.assertEqual((answer.code, answer.group, answer.leader_id), (200, "default", "n0"))
        self.assertEqual(answer.peers, {"n0": "127.0.0.1:20911"})
        reported = WIRE_VERSION
        self.assertEqual((answer.wire_version, answer.role, answer.end_index), (reported, "leader", -1))
        follower = Rig(peers=PEERS)
        follower.node.start()
        answer = follower.client().ask(MetadataRequest(**follower.base()), native=False)
        self.assertEqual((answer.code, answer.leader_id, answer.role), (200, None, "follower"))

    def test_metadata_notifies_health(self) -> None:
        """And where the administration is: in JSON only."""
        follower = Rig(peers=PEERS)
        follower.node.about.reported_admin = "0.0.0.0:8080"
        follower.node.start()
        follower.clock.advance(0.3)
        client = follower.client()
        answer = client.ask(MetadataRequest(**follower.base()), native=False)
        self.assertEqual((answer.admin, answer.health), ("0.0.0.0:8080", "no leader known"))
        self.assertEqual(client.ask(MetadataRequest(**follower.base())).health, "")
        self.rig.clock.advance(0.3)
        answer = self.client.ask(MetadataRequest(**self.rig.base()), native=False)
        self.assertEqual((answer.admin, answer.health, answer.code), ("", "", 200))

    def test_health_is_reported_afresh(self) -> None:
        """It is worked out once between two sweeps, if METADATA is asked for, however often."""
        follower = Rig(peers=PEERS)
        follower.node.start()
        follower.clock.advance(0.3)
        client, status, looks = follower.client(), follower.node.status, []
        self.patch(follower.node.about, "_status", lambda: looks.append(1) or status())
        question = MetadataRequest(**follower.base())
        self.assertEqual(client.ask(question, native=False).health, "no leader known")
        self.assertEqual(client.ask(question, native=False).health, "no leader known")
        self.assertEqual(len(looks), 1)
        client.ask(HeartBeatRequest(group="default", remote_id="n0", local_id="n1", leader_id="n1", term=5))
        follower.clock.advance(2)
        self.assertEqual(client.ask(question, native=False).health, "")
        self.assertEqual(len(looks), 2)

    def test_refusals_are_counted(self) -> None:
        """By the name of their code."""
        self.client.ask(GetRequest(group="other", remote_id="n0", begin_index=0))
        self.client.ask(GetRequest(begin_index=99, **self.rig.base()))
        status = self.rig.node.status()
        self.assertEqual(status.counts.refusals, {"UNKNOWN_GROUP": 1, "INDEX_OUT_OF_RANGE": 1})
        self.assertEqual(status.counts.requests, 2)

    def test_refusals_of_the_core_are_counted(self) -> None:
        """A push that was merged with its neighbours counts as often as it was answered."""
        rig = Rig(peers=PEERS)
        rig.node.start()
        client = rig.client()
        beat = HeartBeatRequest(
            group="default", remote_id="n0", local_id="n1", leader_id="n1", term=5,
        )
        self.assertEqual(client.ask(beat).code, ResponseCode.SUCCESS)
        self.assertEqual(rig.node.status().counts.refusals, {})
        self.assertEqual(client.ask(commit(term=1)).code, ResponseCode.INCONSISTENT_TERM)
        self.assertEqual(rig.node.status().counts.refusals, {"INCONSISTENT_TERM": 1})
        client.send(*[append_push(index, term=1) for index in range(3)], native=False)
        self.assertEqual([answer.code for answer in client.answers()], [ResponseCode.INCONSISTENT_TERM] * 3)
        self.assertEqual(rig.node.status().counts.refusals, {"INCONSISTENT_TERM": 4})

    def test_refused_pulls_are_counted(self) -> None:
        """Their answers have the same shape as good ones."""
        answer = self.client.ask(PullRequest(begin_index=-1, **self.rig.base()))
        self.assertEqual(answer.code, ResponseCode.INDEX_OUT_OF_RANGE)
        self.assertEqual(self.rig.node.status().counts.refusals, {"INDEX_OUT_OF_RANGE": 1})


class AppendTests(SynchronousTestCase):
    """What may be appended."""

    def setUp(self) -> None:
        self.rig = Rig().lead()
        self.client = self.rig.client()

    def test_a_json_request_needs_a_body(self) -> None:
        """A JSON request without one: 411 (Java: no body in the answer, and its client hangs)."""
        answer = self.client.ask(AppendRequest(**self.rig.base()), native=False)
        self.assertEqual((answer.code, answer.index, answer.pos), (411, -1, -1))

    def test_a_native_request_needs_a_body(self) -> None:
        """A native request without any: 420."""
        self.assertEqual(self.client.ask(AppendRequest(**self.rig.base())).code, 420)

    def test_an_empty_body_is_appended(self) -> None:
        """Is a body."""
        for native in (True, False):
            answer = self.client.ask(AppendRequest(bodies=(b"",), **self.rig.base()), native=native)
            self.assertEqual(answer.code, 200)

    def test_a_long_body_is_refused(self) -> None:
        """411; one byte less is taken."""
        longest = self.rig.config.body_bytes_max
        for bodies in ((bytes(longest + 1),), (b"a", bytes(longest + 1))):
            answer = self.client.ask(AppendRequest(bodies=bodies, **self.rig.base()))
            self.assertEqual(answer.code, ResponseCode.UNEXPECTED_ARGUMENT)
        self.assertEqual(self.rig.store.ledger_end_index, -1)
        answer = self.client.ask(AppendRequest(bodies=(bytes(longest),), **self.rig.base()))
        self.assertEqual(answer.code, ResponseCode.SUCCESS)

    def test_too_long_otherwise(self) -> None:
        """So it is for a command, for the bodies of a producer, and for an append at a place."""
        body = bytes(self.rig.config.body_bytes_max + 1)
        base = self.rig.base()
        once = AppendOnceRequest(**base, producer="p", bodies=(body,))
        for request in (SubmitRequest(**base, command=body), once, AppendIfRequest(**base, body=body)):
            self.assertEqual(self.client.ask(request).code, 411)
        self.assertEqual(self.rig.store.ledger_end_index, -1)

    def test_a_hidden_body_is_like_a_marker(self) -> None:
        """Readers of Spark take any other one for damage, so it is refused; a marker is not."""
        marker = HIDDEN_MAGIC + b"sink/1 "
        base = {**self.rig.base(), "producer": "p", "sequence": 0}
        answer = self.client.ask(AppendOnceRequest(**base, bodies=(marker, b"row"), hidden=(0, 1)))
        self.assertEqual(answer.code, ResponseCode.UNEXPECTED_ARGUMENT)
        answer = self.client.ask(AppendOnceRequest(**base, hidden=(0,)), native=False)
        self.assertEqual(answer.code, ResponseCode.UNEXPECTED_ARGUMENT)
        self.assertEqual(self.rig.store.ledger_end_index, -1)
        answer = self.client.ask(AppendOnceRequest(**base, bodies=(marker, b"row"), hidden=(0,)))
        self.assertEqual(answer.code, ResponseCode.SUCCESS)

    def test_a_repeated_answer_is_no_new_append(self) -> None:
        """A repeated answer has the same place, and is no new append."""
        request = AppendOnceRequest(**self.rig.base(), producer="p", sequence=0, bodies=(b"a", b"b"))
        answers = [self.client.ask(request) for _ in range(2)]
        self.assertEqual([(one.code, one.index, one.count, one.is_repeated) for one in answers],
                         [(200, 1, 2, False), (200, 1, 2, True)])
        self.assertEqual((self.rig.node.status().counts.appends, self.rig.store.ledger_end_index), (2, 2))

    def test_a_follower_refuses_appends(self) -> None:
        """404, through the gate and the core."""
        rig = Rig(peers=PEERS)
        rig.node.start()
        answer = rig.client().ask(AppendRequest(bodies=(b"a",), **rig.base()), native=False)
        self.assertEqual((answer.code, answer.index), (404, -1))

    def test_a_nonsense_body_is_answered(self) -> None:
        """411 with a body that Java can read, and the connection lives."""
        nonsense = RemotingCommand(code=50001, opaque=4, body=b"{:")
        self.client.connection.dataReceived(encode_command(nonsense))
        self.rig.clock.advance(0)
        (command,) = sent_commands(self.client.transport.value())
        self.assertEqual((command.code, command.flag, command.opaque), (200, 1, 4))
        self.assertIn(b'"code":411', command.body)
        self.assertIn(b'"leaderId":"n0"', command.body)
        self.assertFalse(self.client.connection.is_lost)


class CoreTests(SynchronousTestCase):
    """Requests for the core, as the core sees them."""

    def setUp(self) -> None:
        self.rig = Rig(peers=PEERS)
        self.rig.node.start()
        self.fed: list[ev.Input] = []
        self.rig.feed_requests_to(lambda *inputs: self.fed.extend(inputs))

    def tokens(self) -> list[int]:
        """Of the requests that the core got."""
        return [happened.token for happened in self.fed if isinstance(happened, ev.RequestReceived)]

    def test_one_read_one_feed(self) -> None:
        """In order, with tokens of their own."""
        feeds: list[int] = []
        self.rig.feed_requests_to(lambda *inputs: feeds.append(len(inputs)))
        self.rig.client().send(commit(), commit(), commit())
        self.assertEqual(feeds, [3])

    def test_a_reply_goes_to_its_connection(self) -> None:
        """Goes to the connection that asked; once."""
        client, other = self.rig.client(), self.rig.client()
        client.send(commit())
        (token,) = self.tokens()
        response = self.rig.node.handlers.refusals.refusal_of(commit(), DLedgerError(ResponseCode.SUCCESS))
        self.rig.node.reply(fx.Reply(token=token, response=response))
        self.rig.node.reply(fx.Reply(token=token, response=response))
        self.assertEqual(len(client.answers()), 1)
        self.assertEqual(other.answers(), [])
        self.assertEqual(self.rig.node.router.questions.unanswered, 0)

    def test_an_abandoned_request_is_dropped(self) -> None:
        """What a lost connection had asked is dropped in the core, and its answers go nowhere."""
        client = self.rig.client()
        client.send(commit(), commit())
        first, second = self.tokens()
        response = self.rig.node.handlers.refusals.refusal_of(commit(), DLedgerError(ResponseCode.SUCCESS))
        self.rig.node.reply(fx.Reply(token=first, response=response))
        client.connection.abort("gone")
        self.assertEqual(
            self.fed[2:], [ev.RequestAbandoned(token=second), ev.PeerDisconnected(peer_id="n1")]
        )
        self.rig.node.reply(fx.Reply(token=second, response=response))
        self.assertEqual(self.rig.node.router.questions.unanswered, 0)
        self.assertEqual(self.rig.node.status().counts.requests_abandoned, 1)

    def test_a_new_connection_of_a_peer(self) -> None:
        """What was queued on the old one is dropped before the first request of the new one."""
        old, new = self.rig.client(), self.rig.client()
        old.send(commit())
        for _ in range(4):
            self.rig.clock.advance(1)
            self.rig.server.sweep(self.rig.clock.seconds())
        self.fed.clear()
        self.fed.append(ev.RequestReceived(token=1, request=commit(), channel=1))
        new.send(commit())
        first, second = self.tokens()
        self.assertEqual([type(happened) for happened in self.fed], [
            ev.RequestReceived, ev.RequestAbandoned, ev.RequestReceived,
        ])
        self.assertEqual(self.fed[1], ev.RequestAbandoned(token=first))
        self.assertTrue(old.connection.is_lost)
        self.assertNotEqual(first, second)

    def test_the_old_connection_speaks_last(self) -> None:
        """Its requests never reach the core, nor do those after them in the same read."""
        old, new = self.rig.client(), self.rig.client()
        new.send(commit())
        old.send(commit(), commit())
        self.assertEqual(len(self.tokens()), 1)
        self.assertTrue(old.connection.is_lost)
        self.assertFalse(new.connection.is_lost)

    def test_peers_name_themselves(self) -> None:
        """Every way in which a peer names itself; clients and strangers name nobody."""
        base = {"group": "default", "remote_id": "n0", "term": 1}
        cases: list[tuple[Request, str | None]] = [
            (VoteRequest(local_id="n1", leader_id="n1", **base), "n1"),
            (HeartBeatRequest(local_id="n2", leader_id="n2", **base), "n2"),
            (commit(local_id=None), "n1"),
            (MetadataRequest(local_id="n1", **base), "n1"),
            (LeadershipTransferRequest(local_id="n1", leader_id="n1", **base), "n1"),
            (LeadershipTransferRequest(leader_id="n1", **base), None),
            (MetadataRequest(**base), None),
            (HeartBeatRequest(local_id="n9", leader_id="n9", **base), None),
            (HeartBeatRequest(local_id="n0", leader_id="n0", **base), None),
        ]
        for request, peer_id in cases:
            client = self.rig.client()
            client.send(request)
            self.assertEqual(client.connection.peer_id, peer_id, request)
            self.assertFalse(client.connection.is_lost)
            client.connection.abort("the next one may speak for the same member")

    def test_a_peer_that_connects_is_dialed(self) -> None:
        """Whoever connects in the name of a member makes this one try to reach that member, once."""
        asked: list[str] = []

        def vouches(peer_id: str) -> bool:
            asked.append(peer_id)
            return False

        self.rig.node.router.claim_with(self.rig.server.claim, vouches, self.rig.server)
        client = self.rig.client()
        for _ in range(2):
            client.send(MetadataRequest(group="default", remote_id="n0", local_id="n1"))
        self.assertEqual(asked, ["n1"])
        self.rig.client().send(MetadataRequest(group="default", remote_id="n0"))
        self.assertEqual(asked, ["n1"])

    def test_in_the_name_of_another(self) -> None:
        """What binds counts only on the connection of the member that it names; others are ended."""
        base = {"group": "default", "remote_id": "n0", "term": 1}
        for request in (
            VoteRequest(local_id="n2", leader_id="n1", **base),
            VoteRequest(local_id="n9", leader_id="n1", **base),
            HeartBeatRequest(local_id="n2", leader_id="n1", **base),
            commit(local_id="n2"), commit(local_id=""),
            LeadershipTransferRequest(transfer_id="n1", transferee_id="n0", **base),
            LeadershipTransferRequest(local_id="n2", transfer_id="n1", transferee_id="n0", **base),
        ):
            client = self.rig.client()
            client.send(request)
            self.assertTrue(client.connection.is_lost, request)
            self.assertEqual(self.tokens(), [], request)
        client = self.rig.client("127.0.0.1")
        client.send(LeadershipTransferRequest(transfer_id="n0", transferee_id="n1", **base))
        self.assertEqual(len(self.tokens()), 1)  # a client of this machine may ask the leader

    def test_push_of_another_version(self) -> None:
        """The core is informed which member sent it; a connection that spoke for no member says nothing."""
        for beat, reported in ((True, [ev.PeerIncompatible(peer_id="n1")]), (False, [])):
            client = self.rig.client()
            if beat:
                client.send(MetadataRequest(group="default", remote_id="n0", local_id="n1"))
            client.connection.dataReceived(encode_command(
                RemotingCommand(code=int(RequestCode.PUSH), opaque=9, body=PUSHES_0_4[0])
            ))
            self.assertEqual([one for one in self.fed if isinstance(one, ev.PeerIncompatible)], reported)
            self.fed.clear()
            client.connection.abort("done")

    def test_reads_at_a_diverged_member(self) -> None:
        """504: its ledger may differ from that of the group."""
        client = self.rig.client()
        read = GetRequest(
            group="default", remote_id="n0", begin_index=0, consistency=Consistency.COMMITTED
        )
        self.assertIs(client.ask(read).code, ResponseCode.INDEX_OUT_OF_RANGE)
        self.rig.node.core.handler.is_diverged = True
        for request in (read, PullRequest(group="default", remote_id="n0", begin_index=0)):
            self.assertIs(client.ask(request).code, ResponseCode.ILLEGAL_MEMBER_STATE)

    def test_the_core_learns_the_channel(self) -> None:
        """The core is informed which requests came on one connection."""
        first, second = self.rig.client(), self.rig.client()
        first.send(commit(), commit())
        second.send(HeartBeatRequest(group="default", remote_id="n0", term=1, local_id="n2", leader_id="n2"))
        channels = [happened.channel for happened in self.fed if isinstance(happened, ev.RequestReceived)]
        self.assertEqual(channels[0], channels[1])
        self.assertNotEqual(channels[0], channels[2])
        self.assertNotIn(0, channels)

    def test_a_local_question_is_answered(self) -> None:
        """Its answer fires; cancelling forgets it."""
        asked = self.rig.node.transfer("n1")
        (token,) = self.tokens()
        self.rig.node.reply(fx.Reply(token=token, response=LeadershipTransferResponse(term=4)))
        self.assertEqual(self.successResultOf(asked), LeadershipTransferResponse(term=4))
        other = self.rig.node.transfer("n1")
        other.cancel()
        self.failureResultOf(other)
        self.assertEqual(self.rig.node.router.questions.unanswered, 0)

    def test_votes_are_counted(self) -> None:
        """By their result."""
        client = self.rig.client()
        client.send(VoteRequest(group="default", remote_id="n0", local_id="n1", leader_id="n1", term=1))
        (token,) = self.tokens()
        self.rig.node.reply(fx.Reply(token=token, response=VoteResponse(vote_result=VoteResult.ACCEPT)))
        self.assertEqual(self.rig.node.status().counts.votes, {"ACCEPT": 1})

    def test_an_exception_stops_the_member(self) -> None:
        """An exception of ours stops the member; Twisted would only end the connection."""

        def wrong(*inputs: object) -> None:
            raise KeyError("wrong")

        self.rig.feed_requests_to(wrong)
        self.rig.client().send(commit())
        self.assertEqual(self.rig.node.state, "failed")
        self.assertEqual(len(self.flushLoggedErrors(KeyError)), 1)
