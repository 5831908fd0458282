# -*- test-case-name: tests.hostile.test_peers -*-
"""Members that stop: frozen and thawed, killed all at once, restarted one after the other."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time

from tests.hostile.target import HostileCase, notify
from tests.processes.members import ended_well
from tests.slowness import patient

#: How often all members are restarted in turn, and the environment variable for more.
ROLLS = int(os.environ.get("DLEDGER_ROLLING_RESTARTS", "6"))
#: Seconds for which the machine is too busy, and the environment variable for more; the number of processes
#: that want to run all the time.
STARVED_S = float(os.environ.get("DLEDGER_STARVED_SECONDS", "20"))
STARVING = 50
#: Seconds within which every member must be in step after a fault has ended.
IN_STEP_S = 10.0


class FrozenTests(HostileCase):
    """SIGSTOP and SIGCONT, as a paused virtual machine has it."""

    def test_frozen_and_thawed(self) -> None:
        """The leader, then a follower, for 4 to 7 seconds: in step soon after the thaw."""
        chance = random.Random(7)
        for role in ("leader", "follower"):
            leader = self.wait_for_leader()
            victim = leader if role == "leader" else min(set(self.peers) - {leader})
            with self.client.working() as seen:
                time.sleep(0.5)
                self.members[victim].pause()
                time.sleep(chance.uniform(4.0, 7.0))
                self.members[victim].resume()
                thawed = time.monotonic()
                for peer_id in self.peers:
                    self.wait_in_step(peer_id, seconds=IN_STEP_S)
                took = time.monotonic() - thawed
                time.sleep(0.5)
            notify(f"{role} frozen: in step {took:.1f} s after the thaw, worst pause "
                 f"{seen.longest_pause_s:.2f} s")
            self.assertEqual(seen.failed, [])
            self.assertLess(seen.longest_pause_s, patient(12.0))
        self.assert_all_alive()
        self.assert_nothing_lost()


class KilledTests(HostileCase):
    """A loss of all processes under load."""

    options = {"flush_disk_type": "sync"}

    def test_all_killed(self) -> None:
        """Three times: what was acknowledged is there."""
        for _ in range(3):
            with self.client.working():
                time.sleep(1.0)
                for member in self.members.values():
                    member.kill()
                for member in self.members.values():
                    member.start()
                self.wait_for_leader()
                time.sleep(0.5)
            for peer_id in self.peers:
                self.wait_in_step(peer_id, seconds=IN_STEP_S)
        self.assert_nothing_lost()


class RollingTests(HostileCase):
    """Orderly restarts under a client with one append at a time."""

    def test_rolling_restarts(self) -> None:
        """Each member in turn by SIGTERM: every append is acknowledged, the worst pause is short."""
        with self.client.working() as seen:
            for _ in range(ROLLS):
                for peer_id, member in self.members.items():
                    self.assertTrue(ended_well(member.stop()), member.log_tail())
                    member.start()
                    self.wait_in_step(peer_id, seconds=30)
        notify(f"{ROLLS} rolling restarts in {seen.seconds:.0f} s: {len(seen.latencies_s)} appends, "
             f"worst pause {seen.longest_pause_s:.2f} s")
        self.assertEqual((seen.unknown, seen.failed), ([], []))
        self.assertLess(seen.longest_pause_s, patient(1.0))
        self.assert_all_alive()
        self.assert_nothing_lost()


class StarvedTests(HostileCase):
    """Members that get a small share of the processor."""

    def test_no_false_election(self) -> None:
        """With fifty processes that never sleep beside them, nobody votes the leader out."""
        terms = self.known_terms()
        with self.client.working() as seen:
            busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(STARVING)]
            try:
                end = time.monotonic() + STARVED_S
                while time.monotonic() < end and terms.items() >= self.known_terms().items():
                    time.sleep(0.5)
            finally:
                for process in busy:
                    process.kill()
                for process in busy:
                    process.wait()
        notify(f"starved for {seen.seconds:.0f} s: {len(seen.latencies_s)} appends, worst pause "
             f"{seen.longest_pause_s:.2f} s")
        self.assertEqual(self.known_terms(), terms)
        self.assertEqual((seen.unknown, seen.failed), ([], []))
        self.assert_all_alive()
        self.assert_nothing_lost()

    def known_terms(self) -> dict[str, int]:
        """Of the members that answered in time."""
        return {peer_id: term for peer_id, term in self.terms().items() if term >= 0}
