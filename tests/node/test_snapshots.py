# -*- test-case-name: tests.node.test_snapshots -*-
"""Pieces of snapshots for other members, and when the log after snapshots may go."""

from __future__ import annotations

from typing import Any, cast
from unittest import mock
from zlib import crc32

import attrs
from twisted.internet.defer import Deferred, succeed
from twisted.trial.unittest import SynchronousTestCase

from dledger.core.state.beliefs import Quota
from dledger.node.reporting.status import Counters
from dledger.node.requests.group_states import GroupOffers
from dledger.node.requests.snapshots import PIECE_BYTES_MAX, PIECE_BYTES_MIN, SnapshotHandler
from dledger.values.errors import DLedgerError
from dledger.values.ledger.config import DLedgerConfig
from protocols.wire.codes import ResponseCode
from protocols.wire.ledger.codes import (
    WIRE_FLAG_MACHINE,
    WIRE_FLAG_SNAPSHOTS,
    WIRE_VERSION,
)
from protocols.wire.ledger.machines import SnapshotRequest, SnapshotResponse
from protocols.wire.ledger.messages import GetResponse, MetadataRequest, MetadataResponse, Request, Response
from tests.machine.machines import Journal
from tests.machine.rig import HostedRig
from tests.node.rig import Rig

ABLE = WIRE_VERSION | WIRE_FLAG_MACHINE | WIRE_FLAG_SNAPSHOTS
PLAIN = SnapshotRequest(group="default", remote_id="n0", local_id="n1", machine="journal", machine_version=1)


class LongJournal(Journal):
    """With a snapshot of a megabyte."""

    def snapshot(self) -> list[bytes]:
        """Its content does not matter here."""
        return [b"x" * 1_000_000]


class Peers:
    """
    The other members.

    @ivar answer: to all that is asked.
    """

    def __init__(self) -> None:
        self.metadata: dict[str, MetadataResponse] = {}
        self.asked: list[tuple[str, Request]] = []
        self.answer: Response = SnapshotResponse(index=7)
        self.connected = {"n1": True, "n2": True}

    def ask(self, peer_id: str, request: Request) -> Deferred[Response]:
        """At once."""
        self.asked.append((peer_id, request))
        return succeed(self.answer)

    def reported(self, peer_id: str) -> MetadataResponse | None:
        """See L{dledger.node.connections.peers.Peers.reported}."""
        return self.metadata.get(peer_id)


class SnapshotCase(SynchronousTestCase):
    """A member n0 of three, which leads, and has snapshots after 5 and 8."""

    def setUp(self) -> None:
        self.rig = HostedRig(factory=LongJournal, snapshot_entries=3).run()
        for number in range(8):
            self.rig.append(b"%d" % number)
        self.quota, self.now_ms = Quota(600_000), 5_000
        self.members = mock.Mock(peer_ids=("n1", "n2"), leader_id="n0")
        self.members.peers.quota_of = lambda peer_id: self.quota
        self.peers = Peers()
        self.handler = self.handler_of()

    def handler_of(self, **options: Any) -> SnapshotHandler:
        """With options."""
        handler = SnapshotHandler(
            config=DLedgerConfig(peers="n0-h:1;n1-h:2;n2-h:3", **options), members=self.members,
            machine=lambda: self.rig.node.machine_requests.machine, now_ms=lambda: self.now_ms,
            counters=Counters(),
            offers=GroupOffers(self.rig.store, lambda: self.now_ms / 1000, lambda call: call()),
        )
        handler.connect(self.peers)
        return handler


class AnswerTests(SnapshotCase):
    """What a member is sent."""

    def setUp(self) -> None:
        super().setUp()
        self.connection = mock.Mock(may_answer=True, peer_id="n1")

    def ask(self, **fields: Any) -> SnapshotResponse:
        """A piece."""
        self.handler.answer(self.connection, mock.Mock(), attrs.evolve(PLAIN, **fields))
        return cast("SnapshotResponse", self.connection.answer.call_args.args[1])

    def test_not_on_its_connection(self) -> None:
        """A client that knows the id of a member gets nothing, and uses up nothing of its quota."""
        for speaker in (None, "n2"):
            self.connection.peer_id = speaker
            answer = self.ask()
            self.assertEqual((answer.code, answer.data), (ResponseCode.UNKNOWN_MEMBER, None))
        self.assertEqual(self.quota.left(self.now_ms), Quota(600_000).left(self.now_ms))

    def test_pieces_have_their_checksums(self) -> None:
        """Each with its checksum, and not larger than the bound."""
        answer = self.ask()
        assert answer.data is not None
        self.assertEqual((answer.code, answer.index, answer.index_term), (ResponseCode.SUCCESS, 8, 1))
        self.assertEqual((answer.offset, len(answer.data)), (0, PIECE_BYTES_MAX))
        self.assertEqual(answer.crc, crc32(answer.data))
        last = self.ask(index=8, index_term=1, offset=answer.size - 10)
        self.assertEqual(len(last.data or b""), 10)

    def test_the_quota_throttles_pieces(self) -> None:
        """The quota of a second is that of the follower's log; then nothing is sent, and nothing refused."""
        sizes = [len(self.ask().data or b"") for _ in range(5)]
        self.assertEqual(sizes, [PIECE_BYTES_MAX, PIECE_BYTES_MAX, 600_000 - 2 * PIECE_BYTES_MAX, 0, 0])
        answer = self.ask()
        self.assertEqual((answer.code, answer.data), (ResponseCode.SUCCESS, None))
        self.now_ms += 1_000
        self.assertEqual(len(self.ask().data or b""), PIECE_BYTES_MAX)
        self.quota.spend(600_000)  # by the log
        self.assertIsNone(self.ask().data)

    def test_a_small_quota_allows_the_header(self) -> None:
        """A whole header always comes."""
        self.quota = Quota(1)
        self.assertEqual(len(self.ask().data or b""), PIECE_BYTES_MIN)
        self.assertIsNone(self.ask().data)

    def test_does_not_read(self) -> None:
        """A connection that does not read its answers is made none."""
        self.connection.may_answer = False
        self.assertIsNone(self.ask().data)

    def test_wrong_askers_are_refused(self) -> None:
        """A stranger, another machine, and a member without one: each with a code and a sentence."""
        answer = self.ask(local_id="n7")
        self.assertIs(answer.code, ResponseCode.UNKNOWN_MEMBER)
        self.assertIn("'n7' is not a member", answer.reason)
        self.assertIs(self.ask(machine="x").code, ResponseCode.UNSUPPORTED)
        self.rig.node.machine_requests.hosting = None
        answer = self.ask()
        self.assertEqual((answer.code, answer.reason),
                         (ResponseCode.UNSUPPORTED, "this member runs no state machine"))


class RouteTests(SynchronousTestCase):
    """The whole member."""

    def test_metadata_reports_who_gives_snapshots(self) -> None:
        """METADATA says who gives snapshots."""
        for rig, flags in ((HostedRig().run(), ABLE), (Rig().lead(), WIRE_VERSION)):
            answer = rig.client().ask(MetadataRequest(**rig.base()))
            self.assertEqual(answer.wire_version, flags)

    def test_a_stranger_gets_no_snapshot(self) -> None:
        """A stranger gets no snapshot, nor does one of another group."""
        rig = HostedRig(snapshot_entries=1).run()
        rig.append(b"x")
        client = rig.client()
        answer = client.ask(SnapshotRequest(**rig.base(), machine="journal", machine_version=1))
        self.assertIs(answer.code, ResponseCode.UNKNOWN_MEMBER)
        answer = client.ask(SnapshotRequest(group="other", remote_id="n0", local_id="n1"))
        self.assertIs(answer.code, ResponseCode.UNKNOWN_GROUP)


class AskTests(SnapshotCase):
    """Who is asked for a snapshot."""

    def test_the_leader_is_asked_first(self) -> None:
        """Those that say that they give snapshots; no Java member gets a message that it does not know."""
        self.peers.metadata = dict.fromkeys(("n1", "n2"), MetadataResponse(wire_version=ABLE))
        self.assertEqual(self.handler.senders(), ("n1", "n2"))
        self.members.leader_id = "n2"
        self.assertEqual(self.handler.senders(), ("n2", "n1"))
        self.peers.metadata["n2"] = MetadataResponse()
        self.assertEqual(self.handler.senders(), ("n1",))
        self.peers.metadata["n1"] = MetadataResponse(wire_version=WIRE_VERSION | WIRE_FLAG_MACHINE)
        self.assertEqual(self.handler.senders(), ())

    def test_a_member_asks_in_its_name(self) -> None:
        """In the name of this member."""
        answer = self.successResultOf(self.handler.ask("n1", SnapshotRequest(machine="journal", offset=3)))
        self.assertEqual(answer.index, 7)
        ((peer_id, request),) = self.peers.asked
        self.assertEqual((peer_id, request.group, request.remote_id, request.local_id),
                         ("n1", "default", "n1", "n0"))
        self.peers.answer = GetResponse()
        self.failureResultOf(self.handler.ask("n1", SnapshotRequest()), DLedgerError)


class MachinesTests(SnapshotCase):
    """What other members report of their machines: signs of life have no room for it."""

    def test_other_machines_are_asked_for(self) -> None:
        """Now and then; the answer counts until the next one, and an unanswered question is forgotten."""
        self.peers.metadata = {"n1": MetadataResponse(wire_version=ABLE, machine="at first")}
        self.peers.answer = MetadataResponse(machine="later")
        for now_s in (10.0, 10.5):
            self.handler.ask_machines(now_s)
        asked = [(peer_id, type(request), request.local_id) for peer_id, request in self.peers.asked]
        self.assertEqual(asked, [("n1", MetadataRequest, "n0"), ("n2", MetadataRequest, "n0")])
        reported = self.handler.reported("n1")
        assert reported is not None
        self.assertEqual((reported.machine, reported.wire_version), ("later", ABLE))
        self.assertIsNone(self.handler.reported("n2"))
        waiting: Deferred[Response] = Deferred()
        self.peers.ask = lambda peer_id, request: waiting  # type: ignore[method-assign]
        self.members.peer_ids = ("n1",)
        self.handler.ask_machines(20.0)
        self.handler.ask_machines(30.0)
        self.assertTrue(waiting.called)
        reported = self.handler.reported("n1")
        assert reported is not None
        self.assertEqual(reported.machine, "later")


class DropTests(SnapshotCase):
    """Which entries may go because snapshots have them."""

    def setUp(self) -> None:
        super().setUp()
        self.leader = self.rig.node.status().member
        self.rig.snapshots.proven_index = 5
        self.peers.metadata = {
            "n1": MetadataResponse(wire_version=ABLE, begin_index=2),
            "n2": MetadataResponse(wire_version=ABLE, begin_index=4),
        }

    def drop(self, keep: int = 1, **facts: Any) -> int:
        """Up to which entry."""
        self.handler = self.handler_of(machine_keep_entries=keep)
        return self.handler.drop_to_index(attrs.evolve(self.leader, **facts))

    def test_behind_the_oldest(self) -> None:
        """Not its last entry, which says whether it is of this log; and not those that are to be kept."""
        self.assertEqual([self.drop(keep) for keep in (1, 3, 99)], [4, 2, -1])
        self.assertEqual(self.handler.log_kept, "")

    def test_nothing_is_dropped_without_a_request(self) -> None:
        """Nothing goes without a request."""
        self.assertEqual(self.handler_of().drop_to_index(self.leader), -1)

    def kept(self, why: str, **facts: Any) -> None:
        """Nothing goes, and the status says why."""
        self.assertEqual(self.drop(**facts), -1)
        self.assertIn(why, self.handler.log_kept)
        shown = self.handler.with_log_kept(self.rig.runner.status())
        assert shown is not None
        self.assertEqual(shown.log_kept, self.handler.log_kept)

    def test_a_java_member_prevents_dropping(self) -> None:
        """In a group with a Java member the request is refused; so it is with an earlier or a silent one."""
        self.peers.metadata["n2"] = MetadataResponse()
        self.kept("n2 is a Java member, which takes no snapshots")
        self.peers.metadata["n2"] = MetadataResponse(wire_version=WIRE_VERSION)
        self.kept("n2 runs no state machine with snapshots")
        del self.peers.metadata["n2"]
        self.kept("n2 has not said yet whether it takes snapshots")

    def test_a_follower_drops_with_its_leader(self) -> None:
        """It drops what its leader has dropped: it may lead next."""
        for leader_id, index in (("n1", 1), ("n2", 3)):
            self.assertEqual(self.drop(role="follower", leader_id=leader_id), index)
        self.kept("the leader has not said", role="follower", leader_id=None)

    def test_no_sound_snapshots(self) -> None:
        """Two are needed, and a machine that runs."""
        self.rig.snapshots.proven_index = -1
        self.kept("no two sound snapshots")
        self.rig.runner.state = "failed"
        self.kept("does not run")
        self.rig.node.machine_requests.hosting = None
        self.assertEqual(self.drop(), -1)
