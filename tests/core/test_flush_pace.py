# -*- test-case-name: tests.core.test_flush_pace -*-
"""A leader with a slow disk gives way to a follower with a fast one, for good reason and seldom."""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from dledger.core.election.transfer import PREFERRED_CHECK_INTERVAL_MS, LeadershipTransfer
from dledger.core.state.beliefs import FRESH_MS, SLOW_AGAIN_MS, SLOW_FOR_MS, FlushPace
from protocols.wire.ledger.codes import WIRE_FLAG_DISK_FULL, WIRE_VERSION, flush_time_flags, flush_time_of
from tests.core.helpers import Bench, ListLedger, events, heart_beat
from tests.core.test_transfer import asks, leader

LEAST_MS = 100


def flushed(pace: FlushPace, now_ms: int, took_ms: int) -> None:
    """A flush ends now."""
    pace.began(now_ms - took_ms)
    pace.ended(now_ms)


def reported(time_ms: float) -> int:
    """What a follower answers."""
    return WIRE_VERSION | flush_time_flags(time_ms)


class WireTests(SynchronousTestCase):
    """The flush time in the flags."""

    def test_a_flush_time_survives_the_wire(self) -> None:
        """Within a tenth, over the whole range; bounded at both ends; the version and flags stay readable."""
        for time_ms in (1, 2, 3, 9, 10, 55, 100, 1_000, 30_000, 45_000):
            version = reported(time_ms) | WIRE_FLAG_DISK_FULL
            found = flush_time_of(version)
            assert found is not None
            self.assertLess(abs(found / time_ms - 1), 0.1, time_ms)
            self.assertEqual(version & 0xFFFF, WIRE_VERSION | WIRE_FLAG_DISK_FULL)
            self.assertLess(version, 1 << 31)
        self.assertEqual((flush_time_of(reported(0)), flush_time_of(reported(10**9))), (1.0, 2 ** 15.5))
        self.assertEqual((flush_time_flags(None), flush_time_of(WIRE_VERSION)), (0, None))

    def test_in_answers_to_heartbeats(self) -> None:
        """A follower reports its flush time; a leader takes it from the answers."""
        bench = Bench.make(ListLedger.of(1)).follow("n1", 2)
        flushed(bench.core.member.peers.pace, bench.now_ms, 40)
        answer = bench.ask(heart_beat("n1", 2))
        found = flush_time_of(answer.wire_version)
        assert found is not None
        self.assertLess(abs(found - 40), 4)
        member = leader("n1", "n2").core.member
        member.peers.heard_state("n1", answer.wire_version, member.out.now_ms)
        self.assertEqual(member.peers.pace.peer_ms("n1", member.out.now_ms), found)


class PaceTests(SynchronousTestCase):
    """The flush time of one member."""

    def setUp(self) -> None:
        self.pace = FlushPace()

    def test_the_flush_time_is_a_moving_mean(self) -> None:
        """The first flush counts whole, later ones in part; after a pause it begins anew."""
        self.assertIsNone(self.pace.time_ms(1_000))
        flushed(self.pace, 1_000, 80)
        self.assertEqual(self.pace.time_ms(1_000), 80)
        flushed(self.pace, 2_000, 0)
        self.assertEqual(self.pace.time_ms(2_000), 70)
        self.assertIsNone(self.pace.time_ms(2_000 + FRESH_MS))
        flushed(self.pace, 50_000, 8)
        self.assertEqual(self.pace.time_ms(50_000), 8)

    def test_only_a_much_slower_leader_is_slow(self) -> None:
        """A peer gives leadership back only if it is slow, and three times as slow as this member."""
        for theirs, ours, least_ms, expected in (
            (400, 100, LEAST_MS, True), (400, 200, LEAST_MS, False), (60, 1, LEAST_MS, False),
            (400, 100, 0, False), (None, 100, LEAST_MS, False), (400, None, LEAST_MS, False),
        ):
            pace = FlushPace()
            if theirs is not None:
                pace.heard("n1", reported(theirs), 1_000)
            if ours is not None:
                flushed(pace, 1_000, ours)
            self.assertIs(pace.is_much_slower("n1", 1_000, least_ms), expected, (theirs, ours, least_ms))

    def test_one_that_does_not_end(self) -> None:
        """It counts while it runs, also when it is the first one, or for long."""
        self.pace.began(0)
        self.assertIsNone(self.pace.time_ms(FRESH_MS - 1))
        self.assertEqual(self.pace.time_ms(FRESH_MS), FRESH_MS)
        self.pace.ended(FRESH_MS)
        self.pace.began(FRESH_MS)
        self.assertEqual(self.pace.time_ms(5 * FRESH_MS), 4 * FRESH_MS)

    def test_knowledge_of_a_peer_ages(self) -> None:
        """What a peer reported counts for a while, and until it says nothing."""
        self.pace.heard("n1", reported(8), 1_000)
        self.assertEqual(self.pace.peer_ms("n1", 1_000), 8)
        self.assertIsNone(self.pace.peer_ms("n1", 1_000 + FRESH_MS))
        self.pace.heard("n1", reported(8), 30_000)
        self.pace.heard("n1", WIRE_VERSION, 30_001)
        self.assertIsNone(self.pace.peer_ms("n1", 30_001))

    def look(
        self, ours_ms: int, theirs_ms: float | None, *, seconds: int, began_ms: int = 100_000
    ) -> list[int]:
        """Look once a second. @return: the seconds at which n1 should lead."""
        found = []
        for second in range(seconds):
            now_ms = began_ms + second * 1_000
            flushed(self.pace, now_ms, ours_ms)
            self.pace.heard("n1", WIRE_VERSION if theirs_ms is None else reported(theirs_ms), now_ms)
            if self.pace.better(["n1"], now_ms, LEAST_MS) is not None:
                found.append(second)
        return found

    def test_after_a_minute(self) -> None:
        """Not before."""
        self.assertEqual(self.look(400, 8, seconds=70), list(range(SLOW_FOR_MS // 1000, 70)))

    def test_leadership_stays_without_a_faster_peer(self) -> None:
        """A peer that is not fast enough, or says nothing; a leader that is not slow; no peer."""
        self.assertEqual(self.look(400, 64, seconds=90), [])
        self.assertEqual(self.look(400, None, seconds=90), [])
        self.assertEqual(self.look(90, 1, seconds=90), [])
        self.assertEqual(self.pace.better([], 200_000, LEAST_MS), None)

    def test_no_leader_is_slow_with_the_option_off(self) -> None:
        """With 0 no leader is slow."""
        self.look(400, 8, seconds=59)
        self.assertIsNone(self.pace.better(["n1"], 160_000, 0))

    def test_without_a_pause(self) -> None:
        """One fast second begins the minute anew; so does a time in which this member did not lead."""
        self.look(4_000, 8, seconds=59)
        self.pace.better(["n1"], 159_000, 100_000)
        self.assertEqual(self.look(4_000, 8, seconds=60, began_ms=160_000), [])
        self.assertEqual(self.look(4_000, 8, seconds=60, began_ms=240_000), [])

    def test_one_slow_flush_is_forgotten(self) -> None:
        """However rare the others are: the process may have been stopped during it."""
        for every_s in (1, 2, 5):
            self.setUp()
            self.pace.began(0)
            self.pace.ended(100_000)
            found = [
                second for second in range(0, 120, every_s)
                if self.look(1, 1, seconds=1, began_ms=100_000 + second * 1_000)
            ]
            self.assertEqual(found, [], every_s)
            self.assertLess(self.pace.time_ms(100_000 + 119_000) or 0, LEAST_MS)

    def test_transfers_for_slow_disks_are_rare(self) -> None:
        """After a transfer there is none for minutes."""
        self.pace.transferred(100_000)
        self.assertEqual(self.look(400, 8, seconds=400), list(range(SLOW_AGAIN_MS // 1000, 400)))


class LeaderTests(SynchronousTestCase):
    """A leader with two followers that hold everything."""

    def slow(self, seconds: int, *, theirs_ms: float | None = 8, **options: object) -> list[tuple[str, int]]:
        """Its flushes take 400 ms. @return: who was asked to take over."""
        self.patch(LeadershipTransfer, "_live", lambda *_: ["n1", "n2"])  # pushes are not answered here
        bench = self.bench = leader("n1", "n2", **options)
        member, seen = bench.core.member, []
        for _ in range(seconds * 5):
            for peer_id in ("n1", "n2"):
                bench.confirm(peer_id)
                version = WIRE_VERSION if theirs_ms is None else reported(theirs_ms)
                member.peers.heard_state(peer_id, version, member.out.now_ms)
            flushed(member.peers.pace, bench.now_ms, 400)
            effects = bench.run(200)
            self.events = events(effects)
            seen += asks(effects)
            if seen:
                break
        return seen

    def test_a_slow_leader_hands_over(self) -> None:
        """After a minute, to a fast one."""
        self.assertEqual(self.slow(59), [])
        self.assertEqual(self.slow(70), [("n1", 1)])
        self.assertIn("leaving-slow-disk", self.events)

    def test_not_to_a_member_that_says_nothing(self) -> None:
        """Java members do not, nor do idle ones."""
        self.assertEqual(self.slow(200, theirs_ms=None), [])

    def test_the_option_bounds_what_is_slow(self) -> None:
        """0 means never; a high bound means slow disks are usual here."""
        self.assertEqual(self.slow(70, slow_flush_hand_over_ms=0), [])
        self.assertEqual(self.slow(70, slow_flush_hand_over_ms=1_000), [])

    def test_preferred_leader_with_a_slow_disk(self) -> None:
        """It does not get leadership back while its disk is slow."""
        for time_ms, expected in ((400.0, []), (8.0, [("n1", 1)])):
            bench = leader("n1", "n2", preferred_leader_ids=("n1",))
            member = bench.core.member
            flushed(member.peers.pace, bench.now_ms, 20)
            member.peers.heard_state("n1", reported(time_ms), member.out.now_ms)
            self.assertEqual(asks(bench.run(PREFERRED_CHECK_INTERVAL_MS)), expected)
