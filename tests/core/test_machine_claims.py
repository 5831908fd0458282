# -*- test-case-name: tests.core.test_machine_claims -*-
"""Members whose state machines do not run: the leader, and the reasons of the others."""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from dledger.core.election.transfer import PREFERRED_CHECK_INTERVAL_MS
from dledger.core.state import inputs as ev
from protocols.wire.ledger.codes import WIRE_FLAG_MACHINE_RUNS, WIRE_VERSION
from protocols.wire.ledger.messages import VoteRequest
from tests.core.helpers import Bench, ListLedger, events, heart_beat
from tests.core.test_transfer import asks, leader

USUAL = WIRE_VERSION


class LeaderTests(SynchronousTestCase):
    """A leader whose machine has no state hands over to a member whose machine runs."""

    def bench(self, *running: str, runs: bool = False, **options: object) -> Bench:
        """A leader with two followers; C{running}: those whose machines run."""
        bench = leader("n1", "n2", **options)
        for peer_id in ("n1", "n2"):
            flag = WIRE_FLAG_MACHINE_RUNS if peer_id in running else 0
            bench.core.member.peers.heard_state(peer_id, USUAL | flag, bench.core.member.out.now_ms)
        bench.step(ev.MachineChecked(runs=runs, is_unfit=not runs))
        return bench

    def looks(self, bench: Bench) -> list[tuple[str, int]]:
        """It looks once, and asks those."""
        bench.now_ms += PREFERRED_CHECK_INTERVAL_MS
        bench.core.member.peers.last_heard_ms.update(dict.fromkeys(("n1", "n2"), bench.now_ms))
        effects = bench.step(ev.Ticked())
        self.named = events(effects)
        return asks(effects)

    def test_a_leader_without_a_state_hands_over(self) -> None:
        """To that one, not to the first."""
        self.assertEqual([peer_id for peer_id, _ in self.looks(self.bench("n2"))], ["n2"])
        self.assertIn("leaving-machine", self.named)

    def test_a_leader_goes_on_where_no_machine_runs(self) -> None:
        """Where no machine runs, this member goes on: the log needs a leader."""
        self.assertEqual(self.looks(self.bench()), [])

    def test_a_leader_with_a_running_machine_stays(self) -> None:
        """A machine that runs is no reason; and no preference makes one lead whose machine does not run."""
        self.assertEqual(self.looks(self.bench("n1", "n2", runs=True)), [])
        self.assertEqual(self.looks(self.bench("n2", runs=True, preferred_leader_ids=("n1",))), [])
        found = self.looks(self.bench("n1", runs=True, preferred_leader_ids=("n1",)))
        self.assertEqual([peer_id for peer_id, _ in found], ["n1"])


class FollowerTests(SynchronousTestCase):
    """The answers of a follower, and when it becomes a candidate."""

    def test_a_follower_reports_that_its_machine_runs(self) -> None:
        """That its machine runs, in each answer to a heartbeat."""
        bench = Bench.make(ListLedger.of(1)).follow("n1", 2)
        for runs, is_unfit, reported in ((False, False, False), (True, False, True), (True, True, False)):
            bench.step(ev.MachineChecked(runs=runs, is_unfit=is_unfit))
            answer = bench.ask(heart_beat("n1", 2))
            self.assertEqual(bool(answer.wire_version & WIRE_FLAG_MACHINE_RUNS), reported)

    def waited(self, *, is_unfit: bool = False, knows: bool = True) -> int:
        """For how long a member waits before it is a candidate. @param knows: the state of the group."""
        ledger = ListLedger.of(1)
        if not knows:
            ledger.group = None
        bench = Bench.make(ledger).follow("n1", 2)
        bench.step(ev.MachineChecked(runs=not is_unfit, is_unfit=is_unfit))
        began_ms = bench.now_ms
        bench.run_until(VoteRequest)
        return bench.now_ms - began_ms

    def test_a_member_without_a_state_is_a_candidate_last(self) -> None:
        """A member whose machine has no state gives the others another patience first."""
        self.assertGreater(self.waited(is_unfit=True), self.waited() + 800)

    def test_a_member_without_producers_is_a_candidate_last(self) -> None:
        """So does one that does not know the state of the group: it could answer no producer."""
        self.assertGreater(self.waited(knows=False), self.waited() + 800)
