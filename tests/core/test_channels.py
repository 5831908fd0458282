# -*- test-case-name: tests.core.test_channels -*-
"""In step is a property of a connection: a new one begins with COMPARE, on both sides."""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from dledger.core.state import effects as fx
from dledger.core.state import inputs as ev
from protocols.wire.codes import ResponseCode
from protocols.wire.ledger.codes import PushType
from protocols.wire.ledger.messages import PushEntryRequest
from tests.core.helpers import Bench, ListLedger, batch, heart_beat, of_type, push, pushes

OK, NO = ResponseCode.SUCCESS, ResponseCode.INCONSISTENT_STATE


class FollowerTests(SynchronousTestCase):
    """A follower of n1 that is in step on channel 1."""

    def setUp(self) -> None:
        self.bench = Bench.make(ListLedger.of(1, 1), term=3).follow("n1", 3)
        self.assertIs(self.on(1, push(PushType.COMPARE, batch(1, 1), term=3)), OK)

    def on(self, channel: int, request: PushEntryRequest) -> ResponseCode:
        """The answer to a push on a connection."""
        token = self.bench.next_token()
        effects = self.bench.step(ev.RequestReceived(token=token, request=request, channel=channel))
        (code,) = [reply.response.code for reply in of_type(effects, fx.Reply) if reply.token == token]
        return code

    def test_an_append_on_another_channel_is_not_written(self) -> None:
        """On another connection nothing is written, and nothing is queued; the first one stays in step."""
        for first_index in (2, 3):
            self.assertIs(self.on(2, push(PushType.APPEND, batch(first_index, 3), term=3)), NO)
        self.assertIs(self.on(1, push(PushType.APPEND, batch(2, 3), term=3)), OK)
        self.assertEqual(len(self.bench.ledger.entries), 3)
        self.assertIs(self.on(2, push(PushType.APPEND, batch(2, 3), term=3)), NO)

    def test_compare_moves_it(self) -> None:
        """To the connection of the last successful COMPARE."""
        self.assertIs(self.on(2, push(PushType.COMPARE, batch(1, 1), term=3)), OK)
        self.assertIs(self.on(1, push(PushType.APPEND, batch(2, 3), term=3)), NO)
        self.assertIs(self.on(2, push(PushType.APPEND, batch(2, 3), term=3)), OK)

    def test_truncate_moves_it(self) -> None:
        """So does a TRUNCATE."""
        self.assertIs(self.on(2, push(PushType.TRUNCATE, batch(1, 1), term=3)), OK)
        self.assertIs(self.on(1, push(PushType.APPEND, batch(2, 3), term=3)), NO)
        self.assertIs(self.on(2, push(PushType.APPEND, batch(2, 3), term=3)), OK)

    def test_a_commit_on_another_channel_does_not_count(self) -> None:
        """Entries found equal are committed by the connection that found them, and by no other."""
        self.assertIs(self.on(2, push(PushType.COMMIT, term=3, commit_index=1 << 50)), NO)
        self.assertIs(self.on(2, push(PushType.COMPARE, batch(0, 2), term=3, commit_index=1)), NO)
        self.assertEqual(self.bench.core.committed_index, -1)
        self.assertIs(self.on(1, push(PushType.COMMIT, term=3, commit_index=1)), NO)  # that COMPARE failed
        self.assertIs(self.on(2, push(PushType.COMPARE, batch(1, 1), term=3, commit_index=1)), OK)
        self.assertEqual(self.bench.core.committed_index, 1)
        self.assertIs(self.on(2, push(PushType.COMMIT, term=3, commit_index=1)), OK)

    def test_a_channel_does_not_outlive_its_leader(self) -> None:
        """What was found equal with one leader says nothing of the next one."""
        self.bench.request(heart_beat("n2", 4))
        request = push(PushType.COMMIT, leader="n2", term=4, commit_index=1)
        self.assertIs(self.on(1, request), NO)
        self.assertEqual(self.bench.core.committed_index, -1)


class LeaderTests(SynchronousTestCase):
    """A leader, and a new connection to a follower that is in step."""

    def test_compares_at_once(self) -> None:
        """It does not wait for a refusal, and what was under way is forgotten."""
        bench = Bench.make(ListLedger.of(1)).lead()
        bench.match("n1")
        (compare,) = pushes(bench.step(ev.PeerConnected(peer_id="n1")))
        assert isinstance(compare.request, PushEntryRequest)
        self.assertEqual((compare.peer_id, compare.request.type), ("n1", PushType.COMPARE))
        self.assertEqual(pushes(bench.tick(), PushType.APPEND, "n1"), [])

    def test_ends_a_wait(self) -> None:
        """A follower that comes back is not punished for the time that it was away."""
        bench = Bench.make(ListLedger.of(1)).lead()
        for one in pushes(bench.seen, PushType.COMPARE, "n1"):
            bench.fail(one)
        for _ in range(20):
            bench.confirm("n2")
            for one in pushes(bench.run(200), PushType.COMPARE, "n1"):
                bench.fail(one)
        self.assertEqual(len(pushes(bench.step(ev.PeerConnected(peer_id="n1")), PushType.COMPARE, "n1")), 1)

    def test_followers_do_not_compare_on_new_connections(self) -> None:
        """A follower has nothing to compare."""
        bench = Bench.make(ListLedger.of(1), term=3).follow("n1", 3)
        self.assertEqual(bench.step(ev.PeerConnected(peer_id="n1")), ())
