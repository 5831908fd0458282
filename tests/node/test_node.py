# -*- test-case-name: tests.node.test_node -*-
"""A node from its start to its end, whatever the cause of that."""

from __future__ import annotations

from twisted.internet.defer import Deferred
from twisted.logger import LogLevel, capturedLogs
from twisted.trial.unittest import SynchronousTestCase

from dledger.core.state import effects as fx
from dledger.core.state import inputs as ev
from dledger.node.maintenance import MAINTENANCE_INTERVAL_S
from dledger.storage.store.store_room import DeletedSegment
from dledger.values.errors import DLedgerError, StoreError
from protocols.wire.codes import ResponseCode
from protocols.wire.ledger.codes import VoteResult
from protocols.wire.ledger.messages import (
    AppendRequest,
    HeartBeatResponse,
    MetadataRequest,
    MetadataResponse,
    PushEntryRequest,
    Request,
    Response,
    VoteRequest,
    VoteResponse,
)
from tests.node.rig import Rig

PEERS = "n0-h:1;n1-h:2;n2-h:3"


def make_leader(rig: Rig) -> None:
    """n1 votes for everything that it is asked for, until n0 leads."""
    rig.node.start()
    for _ in range(400):
        rig.clock.advance(0.02)
        sent, rig.sent[:] = rig.sent[:], []
        for peer_id, request_id, request in sent:
            response: Response | None = None
            if isinstance(request, MetadataRequest):
                response = MetadataResponse(wire_version=1)
            elif isinstance(request, VoteRequest):
                response = VoteResponse(
                    term=request.term - request.pre_vote, vote_result=VoteResult.ACCEPT,
                    pre_vote=request.pre_vote, wire_version=1,
                )
            if peer_id == "n1" and response is not None:
                rig.node.driver.feed(ev.ResponseReceived(
                    peer_id=peer_id, request_id=request_id, response=response
                ))
        if rig.node.status().member.role == "leader":
            return
    raise AssertionError("no leader")


class LifeTests(SynchronousTestCase):
    """Start and stop."""

    def test_a_lone_member_leads(self) -> None:
        """A group of one needs nobody."""
        rig = Rig().lead()
        status = rig.node.status()
        self.assertEqual((status.state, status.member.role, rig.node.leader_id), ("running", "leader", "n0"))
        self.assertTrue(rig.node.is_running)

    def test_a_stop_fires_when_stopped(self) -> None:
        """Fires when the member has stopped; time stands still afterwards."""
        rig = Rig().lead()
        stopped = rig.node.stop()
        rig.clock.advance(0)
        self.successResultOf(stopped)
        self.assertEqual((rig.node.state, rig.node.is_running), ("stopped", False))
        self.assertEqual(rig.clock.getDelayedCalls(), [])
        self.successResultOf(rig.node.stop())
        self.successResultOf(rig.node.when_ended())

    def test_stop_before_start(self) -> None:
        """Nothing has to be handed over."""
        rig = Rig()
        stopped = rig.node.stop()
        rig.clock.advance(0)
        self.successResultOf(stopped)
        rig.node.start()
        self.assertEqual(rig.node.state, "stopped")
        self.assertEqual(rig.clock.getDelayedCalls(), [])

    def test_stop_answers_what_is_pending(self) -> None:
        """An append that has no quorum is answered with an unknown outcome."""
        rig = Rig(peers=PEERS)
        make_leader(rig)
        pending = rig.node.append(b"a")
        rig.clock.advance(0)
        stopped = rig.node.stop()
        rig.clock.pump([0.02] * 300)
        self.successResultOf(stopped)
        self.assertIs(self.failureResultOf(pending, DLedgerError).value.code, ResponseCode.TERM_CHANGED)

    def test_no_answers_from_peers(self) -> None:
        """A leader whose heartbeats fail steps down; the node passes failures on."""
        rig = Rig(peers=PEERS)
        make_leader(rig)
        for _ in range(200):
            rig.clock.advance(0.02)
            sent, rig.sent[:] = rig.sent[:], []
            for peer_id, request_id, _ in sent:
                rig.node.driver.feed(ev.RequestFailed(
                    peer_id=peer_id, request_id=request_id, reason="not connected"
                ))
        self.assertNotEqual(rig.node.status().member.role, "leader")
        self.assertIn("stepping-down", rig.node.status().counts.reports)
        rig.node.driver.feed(ev.ResponseReceived(
            peer_id="n1", request_id=10**9, response=HeartBeatResponse()
        ))
        self.assertTrue(rig.node.is_running)

    def test_peers_of_another_version(self) -> None:
        """The node passes on that pushes are not understood, and that somebody else may be there now."""
        rig = Rig(peers=PEERS)
        make_leader(rig)
        rig.node.append(b"a").addErrback(lambda _: None)
        asked = self.ask_on(rig, seconds=1.0)
        for peer_id in ("n1", "n2"):
            pushed = [one for one in asked if one[0] == peer_id and isinstance(one[2], PushEntryRequest)]
            rig.node.driver.feed(ev.RequestFailed(
                peer_id=peer_id, request_id=pushed[-1][1], reason="answer to PUSH has xIndex",
                is_incompatible=True,
            ))
        self.assertNotEqual(rig.node.status().member.role, "leader")
        self.assertIn("stepping-down", rig.node.status().counts.reports)
        self.assertEqual(self.ask_on(rig, seconds=30.0), [])
        rig.node.driver.feed(ev.PeerConnected(peer_id="n2"))
        self.assertNotEqual(self.ask_on(rig, seconds=30.0), [])

    def ask_on(self, rig: Rig, *, seconds: float) -> list[tuple[str, int, Request]]:
        """The node's questions to its peers as time passes, none of whom answers."""
        del rig.sent[:]
        rig.clock.pump([0.02] * int(seconds * 50))
        return rig.sent[:]

    def test_an_abort_informs_all_callers(self) -> None:
        """All that wait are informed, in the next turn; the state says why."""
        rig = Rig(peers=PEERS)
        make_leader(rig)
        pending = rig.node.append(b"a")
        rig.clock.advance(0)
        rig.node.abort("time is up")
        self.assertNoResult(pending)
        rig.clock.advance(0)
        self.assertIs(self.failureResultOf(pending, DLedgerError).value.code, ResponseCode.TERM_CHANGED)
        self.assertEqual((rig.node.state, rig.node.reason), ("failed", "time is up"))
        rig.node.abort("again")
        self.assertEqual(rig.node.reason, "time is up")

    def test_user_code_in_the_middle_of_a_step(self) -> None:
        """A caller that stops the node when it is informed of its append does no harm."""
        rig = Rig().lead()
        stopped: list[Deferred[None]] = []
        rig.node.append(b"a").addCallback(lambda _: stopped.append(rig.node.stop()))
        rig.clock.advance(0)
        rig.clock.advance(0)
        self.successResultOf(stopped[0])
        self.assertEqual(rig.node.state, "stopped")


class FailureTests(SynchronousTestCase):
    """Something breaks."""

    def test_a_failed_fsync_ends_the_member(self) -> None:
        """Ends the member; the append that waited for it is never acknowledged."""
        rig = Rig(flush_disk_type="sync").lead()
        rig.thread.is_lazy = True
        ended = rig.node.when_ended()
        pending = rig.node.append(b"a")
        rig.clock.advance(0)
        self.assertNoResult(pending)
        with capturedLogs() as events:
            rig.thread.finish(OSError(5, "Input/output error"))
            rig.clock.advance(0)
        self.successResultOf(ended)
        self.assertEqual(rig.node.state, "failed")
        self.assertIn("Input/output error", rig.node.reason)
        self.failureResultOf(pending, DLedgerError)
        self.assertTrue(any(event["log_level"] is LogLevel.critical for event in events))
        self.assertEqual(rig.node.status().counts.fsync_failures, 1)

    def test_sync_waits_for_the_fsync(self) -> None:
        """And the answer comes with it."""
        rig = Rig(flush_disk_type="sync").lead()
        rig.thread.is_lazy = True
        pending = rig.node.append(b"a")
        rig.clock.advance(0)
        self.assertNoResult(pending)
        self.assertGreater(rig.node.status().store.unsynced_bytes, 0)
        rig.thread.finish()
        self.assertEqual(self.successResultOf(pending).index, 0)
        self.assertEqual(rig.node.status().store.unsynced_bytes, 0)
        self.assertEqual(rig.node.status().counts.fsync.count, 1)

    def test_bug_in_the_core(self) -> None:
        """Stops the member, loudly."""
        rig = Rig().lead()

        def wrong(*args: object) -> None:
            raise AssertionError("wrong")

        rig.node.core.step = wrong  # type: ignore[method-assign, assignment]
        rig.clock.advance(0.02)
        rig.clock.advance(0)
        self.assertEqual(rig.node.state, "failed")
        self.assertEqual(len(self.flushLoggedErrors(AssertionError)), 1)
        self.assertEqual(rig.clock.getDelayedCalls(), [])

    def test_bug_in_a_tick(self) -> None:
        """The LoopingCall does not die in silence."""
        rig = Rig().lead()
        ended = rig.node.when_ended()
        rig.node._sweep = lambda now_s: 1 / 0  # type: ignore[method-assign, assignment, return-value]
        rig.clock.pump([0.02] * 20)
        self.successResultOf(ended)
        self.assertIn("tick failed", rig.node.reason)
        self.assertEqual(len(self.flushLoggedErrors(ZeroDivisionError)), 1)

    def test_bug_in_a_turn(self) -> None:
        """Work of a turn that raises ends the member, and is logged."""
        rig = Rig().lead()

        def wrong() -> None:
            raise KeyError("wrong")

        rig.node.turn.work(wrong)
        rig.clock.advance(0)
        self.assertEqual(rig.node.state, "failed")
        self.assertEqual(len(self.flushLoggedErrors(KeyError)), 1)

    def test_a_failed_check_point_ends_the_member(self) -> None:
        """A store that fails at its own business ends the member."""
        rig = Rig().lead()

        def failing(*, force: bool = False) -> None:
            raise StoreError("no")

        rig.store.check_point = failing  # type: ignore[method-assign]
        rig.clock.pump([0.02] * 160)
        self.assertEqual(rig.node.state, "failed")

    def test_broken_maintenance_ends_the_member(self) -> None:
        """Or at keeping house: but only a store that is broken."""
        rig = Rig().lead()
        errors: list[Exception] = [OSError(5, "Input/output error")]

        def failing(now_s: float, local_hour: int, **_: int) -> list[DeletedSegment]:
            raise errors[0]

        rig.store.maintenance = failing  # type: ignore[method-assign]
        rig.clock.pump([0.1] * 120)
        self.assertEqual(rig.node.state, "running")
        errors[0] = StoreError("broken")
        rig.clock.pump([0.1] * 120)
        self.assertEqual(rig.node.state, "failed")


class TimeTests(SynchronousTestCase):
    """The work that the one LoopingCall drives."""

    def test_store_is_looked_after(self) -> None:
        """Checkpoints and house keeping, each at its interval; the deleted is counted."""
        rig = Rig()
        seen: list[str] = []

        def maintenance(
            now_s: float, local_hour: int, *, keep_from_index: int, drop_to_index: int
        ) -> list[DeletedSegment]:
            self.assertEqual(drop_to_index, -1)
            seen.append(f"house {now_s:.0f} {local_hour} {keep_from_index}")
            return [DeletedSegment(path="/some/segment", begin_index=7, why="old enough")]

        rig.store.maintenance = maintenance  # type: ignore[method-assign]
        rig.store.check_point = lambda force=False: seen.append("checkpoint")  # type: ignore[method-assign]
        rig.lead()
        self.assertEqual(seen, ["house 1000000000 4 0"])
        rig.clock.pump([0.1] * int(10 * MAINTENANCE_INTERVAL_S + 2))
        self.assertEqual(seen.count("checkpoint"), 3)
        self.assertEqual(len(seen) - 3, 2)
        self.assertEqual(rig.node.status().counts.segments_deleted, 2)
        self.assertEqual(rig.node.status().store.begin_moved, "/some/segment deleted: old enough")

    def test_connections_are_looked_after(self) -> None:
        """A few times a second."""
        rig = Rig().lead()
        rig.peers.swept.clear()
        rig.clock.pump([0.02] * 100)
        self.assertTrue(5 <= len(rig.peers.swept) <= 20, rig.peers.swept)

    def test_missed_ticks_are_reported(self) -> None:
        """Missed ticks are counted, and a long absence is reported."""
        rig = Rig().lead()
        with capturedLogs() as events:
            rig.clock.advance(0.1)
        self.assertEqual([event for event in events if "stall_s" in event], [])
        self.assertEqual(rig.node.status().counts.stalls, 4)
        with capturedLogs() as events:
            rig.clock.advance(1.0)
        (event,) = [event for event in events if "stall_s" in event]
        self.assertAlmostEqual(event["stall_s"], 0.98)
        self.assertAlmostEqual(rig.node.status().counts.stall_s, 0.08 + 0.98)

    def test_followers_hold_back_expiry(self) -> None:
        """As long as they were heard of lately."""
        rig = Rig(peers=PEERS)
        make_leader(rig)
        self.assertEqual(rig.node.handlers.keep_from_index(), 0)


class CallerTests(SynchronousTestCase):
    """Callers in this process."""

    def setUp(self) -> None:
        self.rig = Rig().lead()

    def test_a_caller_appends_bodies(self) -> None:
        """One body, or several."""
        one = self.rig.node.append(b"a")
        several = self.rig.node.append([b"b", b"c"])
        self.rig.clock.advance(0)
        self.assertEqual(self.successResultOf(one).index, 0)
        result = self.successResultOf(several)
        self.assertEqual((result.index, result.count), (1, 2))

    def test_a_wrong_append_is_refused_here(self) -> None:
        """Without asking anybody."""
        for bodies, code in (
            ([], ResponseCode.REQUEST_WITH_EMPTY_BODYS),
            (bytes(self.rig.config.body_bytes_max + 1), ResponseCode.UNEXPECTED_ARGUMENT),
        ):
            failure = self.failureResultOf(self.rig.node.append(bodies), DLedgerError)  # type: ignore
            self.assertIs(failure.value.code, code)

    def test_a_stopped_member_takes_nothing(self) -> None:
        """A member that has stopped takes nothing."""
        self.rig.node.stop()
        self.rig.clock.advance(0)
        failure = self.failureResultOf(self.rig.node.append(b"a"), DLedgerError)
        self.assertIs(failure.value.code, ResponseCode.NOT_LEADER)

    def test_small_appends_count_one_by_one(self) -> None:
        """The bound of pending appends is felt by small appends one by one."""
        rig = Rig(peers=PEERS, max_pending_requests_num=4)
        make_leader(rig)
        client = rig.client()
        client.send(*[AppendRequest(bodies=(b"a",), **rig.base()) for _ in range(6)])
        answers = client.answers()
        self.assertEqual([answer.code for answer in answers], [ResponseCode.LEADER_PENDING_FULL] * 2)


class ReportTests(SynchronousTestCase):
    """Each report of the core becomes an event and a number."""

    def test_a_report_becomes_an_event(self) -> None:
        """With the facts by name, and a level of its own; facts cannot break the logging."""
        rig = Rig()
        with capturedLogs() as events:
            rig.node.report(fx.Report(event="stepping-down", facts={"term": 3, "format": "x", "level": 1}))
            rig.node.report(fx.Report(event="stepping-down"))
            rig.node.report(fx.Report(event="store-failed", facts={"reason": "full"}))
        levels = [event["log_level"] for event in events]
        self.assertEqual(levels, [LogLevel.warn, LogLevel.warn, LogLevel.error])
        self.assertEqual((events[0]["term"], events[0]["self_id"]), (3, "n0"))
        self.assertEqual(rig.node.status().counts.reports, {"stepping-down": 2, "store-failed": 1})

    def test_ticks_report_nothing(self) -> None:
        """An idle leader is quiet."""
        rig = Rig().lead()
        with capturedLogs() as events:
            rig.clock.pump([0.02] * 50)
        self.assertEqual(events, [])
        self.assertEqual(ev.Ticked(), ev.Ticked())
