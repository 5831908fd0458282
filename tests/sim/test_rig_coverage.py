# -*- test-case-name: tests.sim.test_rig_coverage -*-
"""What the rigs play, and that their lines are noted."""

from __future__ import annotations

from pathlib import Path

from twisted.trial.unittest import SynchronousTestCase

from dledger.testing.group.focuses import FOCUSES
from dledger.values.ledger.group_state import GroupFold, GroupState
from tests.rig_coverage import KINDS, RIGS, ROOMS, ROOT, measured


class PlayTests(SynchronousTestCase):
    """The rigs, and their kinds."""

    def test_kinds(self) -> None:
        """A rig with kinds is a rig; each focus is played."""
        self.assertEqual(KINDS.keys() - RIGS.keys(), set())
        self.assertGreater(len(KINDS["group"]()), 2 * len(FOCUSES))
        for name, make in KINDS.items():
            self.assertGreater(len(make()), 5, name)

    def test_rooms(self) -> None:
        """Each is a folder."""
        self.assertEqual([room for room in ROOMS if not (ROOT / "dledger" / room).is_dir()], [])

    def test_contexts(self) -> None:
        """A line has the contexts in which it was executed; one that was not has none."""
        fold = GroupFold(GroupState())
        found = measured(
            {"cuts": lambda: fold.cut(0), "commits": lambda: fold.commit(0)}, Path(self.mktemp())
        )
        path = ROOT / "dledger" / "values" / "ledger" / "group_state.py"
        contexts = found.get_data().contexts_by_lineno(str(path))
        self.assertEqual({name for names in contexts.values() for name in names}, {"cuts", "commits"})
        self.assertEqual({len(names) for names in contexts.values()}, {1})
