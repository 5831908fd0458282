# -*- test-case-name: tests.node.test_driver -*-
"""The driver: inputs one at a time, effects in order, outcomes first."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import cast

import attrs
from twisted.trial.unittest import SynchronousTestCase

from dledger.core.driver import SAVE_AGAIN_MS, Driver
from dledger.core.replica import DLedgerCore
from dledger.core.state import effects as fx
from dledger.core.state import inputs as ev
from dledger.core.state.mute import mute_answer
from dledger.core.state.recovered import RecoveredState
from dledger.values.errors import DLedgerError, StoreError
from dledger.values.ledger.membership import Membership
from protocols.wire.codes import ResponseCode
from protocols.wire.ledger.codes import VoteResult
from protocols.wire.ledger.messages import (
    HeartBeatRequest,
    HeartBeatResponse,
    VoteResponse,
)
from tests.core.helpers import ListLedger, batch, make_config


@attrs.define
class ScriptedCore:
    """Answers each input with the effects that were laid out for it; remembers the inputs."""

    script: list[tuple[fx.Effect, ...] | Exception] = attrs.Factory(list)
    seen: list[ev.Input] = attrs.Factory(list)
    times: list[int] = attrs.Factory(list)

    def step(self, happened: ev.Input, now_ms: int) -> tuple[fx.Effect, ...]:
        """One step."""
        self.seen.append(happened)
        self.times.append(now_ms)
        effects = self.script.pop(0) if self.script else ()
        if isinstance(effects, Exception):
            raise effects
        return effects


@attrs.define
class World:
    """Surroundings, terms and a diary of what was done, in order."""

    diary: list[object] = attrs.Factory(list)
    on: dict[str, Callable[[], None]] = attrs.Factory(dict)
    clock_ms: int = 5

    def _did(self, name: str, *what: object) -> None:
        self.diary.append((name, *what))
        self.on.get(name, lambda: None)()

    def seconds(self) -> float:
        """Fake time."""
        return self.clock_ms / 1000

    def send_request(self, effect: fx.SendRequest) -> None:
        """Noted."""
        self._did("send", effect.peer_id, effect.request_id, effect.request)

    def reply(self, effect: fx.Reply) -> None:
        """Noted."""
        self._did("reply", effect.token, effect.response)

    def answer_append(self, answer: fx.AnswerAppend) -> None:
        """Noted."""
        self._did("append", answer.token)

    def answer_read(self, answer: fx.AnswerRead) -> None:
        """Noted."""
        self._did("read", answer.token)

    def continue_later(self, effect: fx.ContinueLater) -> None:
        """Noted."""
        self._did("later")

    def follow_membership(self, effect: fx.FollowMembership) -> None:
        """Noted."""
        self._did("follow", effect.membership)

    def start_flush(self, effect: fx.FlushLedger) -> None:
        """Noted."""
        self._did("flush", effect.flush_id, effect.end_index)

    def committed(self, committed_index: int) -> None:
        """Noted."""
        self._did("committed", committed_index)

    def report(self, report: fx.Report) -> None:
        """Noted."""
        self._did("report", report.event)

    def stop_member(self, stop: fx.StopMember) -> None:
        """Noted."""
        self._did("stop", stop.reason)

    def broken(self, error: BaseException) -> None:
        """Noted."""
        self._did("broken", type(error).__name__)

    def save(self, term: int, voted_for: str | None) -> None:
        """Terms: noted."""
        self._did("save", term, voted_for)

    def check_point(self) -> None:
        """Terms: nothing to do."""


def fails(error: Exception) -> Callable[[], None]:
    """Something that raises."""

    def fail() -> None:
        raise error

    return fail


def reported(token: int) -> fx.AnswerAppend:
    """An effect that is easy to see."""
    return fx.AnswerAppend(token=token, code=ResponseCode.SUCCESS, term=1, count=1)


class DriverCase(SynchronousTestCase):
    """A driver over a scripted core."""

    def setUp(self) -> None:
        self.core = ScriptedCore()
        self.world = World()
        self.ledger = ListLedger()
        self.driver = Driver(cast(DLedgerCore, self.core), self.ledger, self.world, self.world)

    def script(self, *steps: tuple[fx.Effect, ...] | Exception) -> None:
        """Effects of the next steps."""
        self.core.script.extend(steps)


class MuteTests(DriverCase):
    """Without room for term and vote, nothing of them leaves the member, and the member lives."""

    def setUp(self) -> None:
        """A vote for which there is no room, with an answer after it."""
        super().setUp()
        self.world.on["save"] = fails(DLedgerError(ResponseCode.DISK_FULL, reason="no room"))
        self.vote = VoteResponse(term=3, vote_result=VoteResult.ACCEPT)
        self.script((fx.PersistTermVote(term=3, voted_for="n1"), fx.Reply(token=1, response=self.vote)))
        self.driver.feed(ev.Started())

    def test_a_mute_member_refuses_a_vote(self) -> None:
        """It is refused; that is reported once."""
        self.assertEqual(self.world.diary, [
            ("save", 3, "n1"), ("report", "vote-refused"), ("reply", 1, mute_answer(self.vote, 0)),
        ])
        self.assertEqual((self.driver.why_mute, self.driver.is_stopped), ("no room", False))
        self.world.diary.clear()
        self.script((fx.PersistTermVote(term=4, voted_for=None),))
        self.driver.feed(ev.Started())
        self.assertEqual(self.world.diary, [("save", 4, None)])

    def test_a_mute_member_sends_nothing_of_its_term(self) -> None:
        """Requests fail, writes are refused; the member answers its own callers truly."""
        request = HeartBeatRequest()
        for effect in (
            fx.WriteBodies(first_index=0, bodies=(b"a",), term=3),
            fx.WriteEntries(entries=batch(0, (3, b"a"))),
            fx.TruncateLedger(entries=batch(0, (3, b"a"))),
            fx.WriteConfiguration(first_index=0, membership=Membership(voters={"n0": "h:1"}), term=3),
        ):
            self.core.seen.clear()
            self.world.diary.clear()
            self.script((reported(9), fx.SendRequest(peer_id="n2", request_id=5, request=request), effect))
            self.driver.feed(ev.TurnCame())
            self.assertEqual(self.world.diary, [("append", 9)])
            self.assertEqual([type(one) for one in self.core.seen],
                             [ev.TurnCame, ev.WriteRefused, ev.RequestFailed])
            self.assertEqual(self.ledger.ledger_end_index, -1)

    def test_a_mute_member_speaks_when_there_is_room(self) -> None:
        """The last term and vote are saved at a tick, not at each; and what follows goes out."""
        self.world.diary.clear()
        self.driver.feed(ev.Ticked())
        self.assertEqual(self.world.diary, [])
        self.world.clock_ms += SAVE_AGAIN_MS
        self.driver.feed(ev.Ticked(), ev.Ticked())
        self.assertEqual(self.world.diary, [("save", 3, "n1")])
        self.script((fx.PersistTermVote(term=4, voted_for="n2"),))
        self.driver.feed(ev.TurnCame())
        del self.world.on["save"]
        self.world.diary.clear()
        self.world.clock_ms += SAVE_AGAIN_MS
        self.script((fx.Reply(token=2, response=self.vote),))
        self.driver.feed(ev.Ticked())
        self.assertEqual(self.world.diary, [
            ("save", 4, "n2"), ("report", "votes-again"), ("reply", 2, self.vote),
        ])
        self.assertEqual(self.driver.why_mute, "")

    def test_another_failure_ends_the_member(self) -> None:
        """A save that fails otherwise ends the member, then as before."""
        self.world.on["save"] = fails(StoreError("EIO"))
        self.world.clock_ms += SAVE_AGAIN_MS
        self.driver.feed(ev.Ticked())
        self.assertIsInstance(self.core.seen[-1], ev.StoreFailed)


class EffectTests(DriverCase):
    """Every effect is carried out, in order."""

    def test_every_effect_has_a_runner(self) -> None:
        """None is forgotten."""
        self.assertEqual(set(self.driver._runners_now()), set(fx.Effect.__subclasses__()))

    def test_effects_run_in_order(self) -> None:
        """As the core laid them out: the disk before the network."""
        request, response = HeartBeatRequest(), HeartBeatResponse()
        self.script((
            fx.PersistTermVote(term=3, voted_for="n1"),
            fx.SendRequest(peer_id="n2", request_id=8, request=request),
            fx.Reply(token=4, response=response),
            fx.RecordCommit(committed_index=-1),
            reported(1),
            fx.AnswerRead(token=2, code=ResponseCode.SUCCESS),
            fx.FlushLedger(flush_id=6, end_index=9),
            fx.Report(event="x"),
            fx.EndRepair(),
            fx.StopMember(reason="enough"),
        ))
        self.driver.feed(ev.Ticked())
        self.assertEqual(self.world.diary, [
            ("save", 3, "n1"), ("send", "n2", 8, request), ("reply", 4, response), ("committed", -1),
            ("append", 1), ("read", 2), ("flush", 6, 9), ("report", "x"), ("stop", "enough"),
        ])
        self.assertEqual((self.ledger.commits, self.ledger.repairs_ended), ([-1], 1))

    def test_time_is_asked_at_each_step(self) -> None:
        """The core gets the surroundings' time."""
        self.driver.feed(ev.Ticked())
        self.world.clock_ms = 9
        self.driver.feed(ev.Ticked())
        self.assertEqual(self.core.times, [5, 9])


class OutcomeTests(DriverCase):
    """The outcome of a write comes back before any other input."""

    def test_written_bodies_report_positions(self) -> None:
        """With the positions of their records."""
        self.script((fx.WriteBodies(first_index=0, term=1, bodies=(b"a", b"b")),))
        self.driver.feed(ev.Ticked(), ev.StopRequested())
        self.assertEqual(self.core.seen, [
            ev.Ticked(), ev.EntriesWritten(first_index=0, count=2, positions=(0, 1024)), ev.StopRequested(),
        ])

    def test_written_entries_report_their_range(self) -> None:
        """A follower's write."""
        self.script((fx.WriteEntries(entries=batch(0, 1, 1)),))
        self.driver.feed(ev.Ticked(), ev.StopRequested())
        self.assertEqual(self.core.seen[1], ev.EntriesWritten(first_index=0, count=2))

    def test_a_truncation_reports_the_new_end(self) -> None:
        """Where the ledger ends now."""
        self.ledger.entries = [(1, b""), (1, b""), (2, b"")]
        self.script((fx.TruncateLedger(entries=batch(1, 1)),))
        self.driver.feed(ev.Ticked(), ev.StopRequested())
        self.assertEqual(self.core.seen[1], ev.LedgerTruncated(end_index=1, end_term=1))

    def test_a_truncation_anew_reaches_the_store(self) -> None:
        """The flag reaches the store."""
        self.ledger.entries = [(1, b""), (1, b""), (2, b"")]
        self.script((fx.TruncateLedger(entries=batch(2, 3), anew=True),))
        self.driver.feed(ev.Ticked())
        self.assertEqual(self.ledger.ledger_begin_index, 2)

    def test_count_of_the_core(self) -> None:
        """A write that does not fit after the end is our bug."""
        self.script((fx.WriteBodies(first_index=3, term=1, bodies=(b"a",)),))
        self.driver.feed(ev.Ticked())
        self.assertEqual(self.world.diary, [("broken", "AssertionError")])

    def test_a_refused_write_drops_the_rest(self) -> None:
        """The rest of the tuple is dropped, and the core hears why before anything else."""
        for effect in (
            fx.WriteBodies(first_index=0, term=1, bodies=(b"a",)), fx.WriteEntries(entries=batch(0, 1)),
            fx.TruncateLedger(entries=batch(0, 1)),
        ):
            for code in (ResponseCode.DISK_FULL, ResponseCode.INCONSISTENT_STATE):
                self.setUp()
                self.ledger.refuse = code
                self.script((reported(1), effect, reported(2)))
                self.driver.feed(ev.Ticked(), ev.StopRequested())
                refused = self.core.seen[1]
                assert isinstance(refused, ev.WriteRefused)
                self.assertIs(refused.code, code)
                self.assertIn("reported to refuse", refused.reason)
                self.assertEqual(self.world.diary, [("append", 1)])

    def test_refused_for_another_reason(self) -> None:
        """A store refuses for want of room or because it does not fit; anything else is a bug."""
        self.ledger.refuse = ResponseCode.NOT_LEADER
        self.script((fx.WriteEntries(entries=batch(0, 1)),))
        self.driver.feed(ev.Ticked())
        self.assertEqual(self.world.diary, [("broken", "AssertionError")])


class FailureTests(DriverCase):
    """The first effect that fails drops the rest."""

    def test_a_failed_persist_sends_nothing(self) -> None:
        """Term and vote that are not durable are not spoken of."""
        for error in (StoreError("EIO"), OSError(5, "Input/output error")):
            self.setUp()
            self.world.on["save"] = fails(error)
            self.script((
                fx.PersistTermVote(term=3, voted_for="n1"), fx.Reply(token=1, response=HeartBeatResponse())
            ))
            self.driver.feed(ev.Ticked(), ev.StopRequested())
            self.assertEqual(self.world.diary, [("save", 3, "n1")])
            self.assertIsInstance(self.core.seen[1], ev.StoreFailed)
            self.assertEqual(self.core.seen[2:], [ev.StopRequested()])

    def test_a_broken_store_stops_the_member(self) -> None:
        """Whatever touches it."""
        for effect in (
            fx.WriteBodies(first_index=0, term=1, bodies=(b"a",)), fx.WriteEntries(entries=batch(0, 1)),
            fx.TruncateLedger(entries=batch(0, 1)), fx.RecordCommit(committed_index=0),
        ):
            self.setUp()
            self.ledger.broken = True
            self.script((effect, reported(2)))
            self.driver.feed(ev.Ticked())
            self.assertIsInstance(self.core.seen[1], ev.StoreFailed)
            self.assertEqual(self.world.diary, [])

    def test_view_cannot_be_read(self) -> None:
        """A step that could not read comes back as a failure of the store."""
        self.script(StoreError("CRC"))
        self.driver.feed(ev.Ticked())
        failed = self.core.seen[1]
        assert isinstance(failed, ev.StoreFailed)
        self.assertIn("CRC", failed.reason)

    def test_failure_stands_before_an_outcome(self) -> None:
        """An earlier outcome of the same tuple is taken after it, by a core that has stopped."""
        self.ledger.refuse = None
        self.world.on["append"] = fails(StoreError("EIO"))
        self.script((fx.WriteEntries(entries=batch(0, 1)), reported(1)))
        self.driver.feed(ev.Ticked())
        self.assertEqual([type(one) for one in self.core.seen],
                         [ev.Ticked, ev.StoreFailed, ev.EntriesWritten])

    def test_a_bug_stops_the_member(self) -> None:
        """Anything else stops the member, loudly, and no input is taken after it."""
        for error in (AssertionError("ours"), ValueError("ours"), DLedgerError(ResponseCode.NOT_LEADER)):
            self.setUp()
            self.script(error)
            self.driver.feed(ev.Ticked(), ev.StopRequested())
            self.assertEqual(self.world.diary, [("broken", type(error).__name__)])
            self.assertTrue(self.driver.is_stopped)
            self.driver.feed(ev.Ticked())
            self.assertEqual(self.core.seen, [ev.Ticked()])
            self.assertEqual(len(self.driver._inbox), 0)


class OrderTests(DriverCase):
    """Inputs are taken one at a time."""

    def test_feeding_from_within_an_effect_only_queues(self) -> None:
        """The tuple under way is finished first."""
        self.world.on["report"] = lambda: self.driver.feed(ev.StopRequested())
        self.script((fx.Report(event="x"), reported(1)), (reported(2),))
        self.driver.feed(ev.Ticked())
        self.assertEqual(self.world.diary, [("report", "x"), ("append", 1), ("append", 2)])
        self.assertEqual(self.core.seen, [ev.Ticked(), ev.StopRequested()])

    def test_outcome_stands_before_what_was_fed_meanwhile(self) -> None:
        """A request that came during the write waits for its outcome."""
        self.world.on["report"] = lambda: self.driver.feed(ev.StopRequested())
        self.script((fx.Report(event="x"), fx.WriteEntries(entries=batch(0, 1))))
        self.driver.feed(ev.Ticked())
        self.assertEqual(self.core.seen, [
            ev.Ticked(), ev.EntriesWritten(first_index=0, count=1), ev.StopRequested(),
        ])

    def test_runs_again_after_a_turn(self) -> None:
        """The guard against re-entry is lifted."""
        self.driver.feed(ev.Ticked())
        self.driver.feed(ev.Ticked())
        self.assertEqual(len(self.core.seen), 2)


class StopTests(DriverCase):
    """After the stop nothing is fed and nothing runs."""

    def test_by_the_core(self) -> None:
        """Queued inputs are dropped, later ones too, and they do not pile up."""
        self.script((fx.StopMember(reason="x"), reported(1)))
        self.driver.feed(ev.Ticked(), ev.StopRequested())
        self.driver.feed(ev.Ticked())
        self.assertEqual(self.core.seen, [ev.Ticked()])
        self.assertEqual(self.world.diary, [("stop", "x")])
        self.assertTrue(self.driver.is_stopped)
        self.assertEqual(len(self.driver._inbox), 0)

    def test_from_within_an_effect(self) -> None:
        """The rest of the tuple does not run."""
        self.world.on["report"] = self.driver.stop
        self.script((fx.Report(event="x"), reported(1)))
        self.driver.feed(ev.Ticked(), ev.StopRequested())
        self.assertEqual((self.world.diary, self.core.seen), ([("report", "x")], [ev.Ticked()]))

    def test_a_stop_from_outside_counts_at_once(self) -> None:
        """At once."""
        self.assertFalse(self.driver.is_stopped)
        self.driver.stop()
        self.driver.feed(ev.Ticked())
        self.assertEqual(self.core.seen, [])


class RealCoreTests(SynchronousTestCase):
    """With a real core: a group of one appends."""

    def test_a_lone_core_commits_an_append(self) -> None:
        """Vote, first entry, write, commit, answer."""
        world, ledger = World(), ListLedger()
        core = DLedgerCore(
            config=make_config(members=1), view=ledger, rng=random.Random(1), recovered=RecoveredState(),
        )
        driver = Driver(core, ledger, world, world)
        driver.feed(ev.Started(), ev.Ticked())
        driver.feed(ev.AppendProposed((ev.Proposal(token=3, bodies=(b"a", b"b")),)))
        self.assertEqual([done for done in world.diary if done[0] != "report"],  # type: ignore[index]
                         [("save", 1, "n0"), ("committed", 1), ("append", 3)])
        self.assertEqual(ledger.entries, [(1, b"a"), (1, b"b")])
