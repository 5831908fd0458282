# -*- test-case-name: tests.sim.test_misfortunes -*-
"""Faults of directories, machines and operators: they happen, and the group survives them."""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from dledger.testing.group.checks.require import InvariantError
from dledger.testing.group.injection.faults import Nemesis
from dledger.testing.group.injection.misfortunes import KINDS, Misfortunes
from dledger.testing.group.members.cluster import GroupOptions, SimCluster
from dledger.testing.group.schedule import Focus, run_schedule


class HappenTests(SynchronousTestCase):
    """Each kind, in a seed whose group can have it."""

    def lines(self, kind: str, sign: str, **settings: object) -> None:
        """Some seed shows the sign, and all pass."""
        seen = False
        for seed in range(1, 9):
            focus = Focus(faults=(kind,), pace_s=1.0, settings=settings)
            outcome = run_schedule(seed, seconds=15, members=3, focus=focus, wants_all_lines=True)
            self.assertEqual(outcome.failure, "", seed)
            seen = seen or any(sign in line for line in outcome.lines)
            if seen:
                return
        self.fail(f"{sign} never came")

    def test_wipe(self) -> None:
        """A member loses its directory, and comes back."""
        self.lines("wipe", "has lost its directory")

    def test_wipe_while_the_members_change(self) -> None:
        """Both in one schedule."""
        focus = Focus(
            faults=("change_members", "wipe"), pace_s=1.0,
            group={"hides_wire_version": False, "is_native": True},
        )
        for seed in range(1, 9):
            outcome = run_schedule(seed, seconds=15, members=5, focus=focus, wants_all_lines=True)
            self.assertEqual(outcome.failure, "", seed)
            text = "\n".join(outcome.lines)
            if "has lost its directory" in text and text.count("WriteConfiguration(") > 1:
                return
        self.fail("they never came together")

    def test_exchange(self) -> None:
        """Two members find each other's directory, and refuse it."""
        self.lines("exchange", "cannot start: cannot open the store: /store/dledger-n0 belongs to member")

    def test_misconfigure(self) -> None:
        """Options that do not fit are refused."""
        self.lines("misconfigure", "cannot start")

    def test_copy_back(self) -> None:
        """Older copies of small files do no harm."""
        self.lines("copy_back", "gets an older")

    def test_black_out(self) -> None:
        """With async, what a mark has stays."""
        self.lines("black_out", "power lost", flush_disk_type="async")


class CheckTests(SynchronousTestCase):
    """A member that takes what is not its own fails the run."""

    def misfortunes(self) -> Misfortunes:
        """Those of a running group."""
        cluster = SimCluster(GroupOptions(settings={"flush_disk_type": "sync"}), 1)
        nemesis = Nemesis(cluster, cluster.random("faults"), seconds=10)
        cluster.start()
        cluster.run(5)
        return nemesis.misfortunes

    def test_changed_directory(self) -> None:
        """It runs on another one's directory, or has changed it."""
        found = self.misfortunes()
        one, other, _ = found.members
        contents = [found._content(member) for member in (one, other)]
        with self.assertRaises(InvariantError):
            found._exchange_back(one, other, contents)
        one.kill()
        other.kill()
        one.disk.replace(one.term_path, b"other")
        with self.assertRaises(InvariantError):
            found._exchange_back(one, other, contents)

    def test_runs_misconfigured(self) -> None:
        """It started with options that do not fit."""
        found = self.misfortunes()
        with self.assertRaises(InvariantError):
            found._configure(found.members[0], {})

    def test_minority(self) -> None:
        """No majority loses its directories at a time."""
        found = self.misfortunes()
        found._damage.minority = set()
        one, other, _ = found.members
        self.assertTrue(found.may_lose(one))
        one.lose_directory()
        self.assertTrue(one.is_doubtful)
        self.assertFalse(found.may_lose(other))
        self.assertTrue(found.may_lose(one))

    def test_every_kind(self) -> None:
        """Some group can have each."""
        seen: set[str] = set()
        for seed in range(30):
            for flush in ("sync", "async"):
                cluster = SimCluster(GroupOptions(settings={"flush_disk_type": flush}), seed)
                seen |= set(Nemesis(cluster, cluster.random("faults"), seconds=1).misfortunes.names)
        self.assertEqual(seen, set(KINDS) - {"lose_write"})
