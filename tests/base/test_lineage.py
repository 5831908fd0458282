# -*- test-case-name: tests.base.test_lineage -*-
"""Lineages as text, and what is wrong with one that was met before."""

from __future__ import annotations

import attrs
from twisted.trial.unittest import SynchronousTestCase

from dledger.values.ledger.lineage import LINEAGE_BITS, LINEAGE_TEXT_MAX, Fault, Lineage, Standing

MET = Lineage(incarnation=7, starts=5, run=1, standing=Standing.TRUSTED)


class TextTests(SynchronousTestCase):
    """There and back; nothing else is one."""

    def test_round_trip(self) -> None:
        """The longest fits."""
        longest = Lineage(
            incarnation=(1 << LINEAGE_BITS) - 1, starts=(1 << 63) - 1, run=(1 << LINEAGE_BITS) - 1,
            standing=Standing.JOINING,
        )
        for one in (MET, longest, *(attrs.evolve(MET, standing=standing) for standing in Standing)):
            self.assertEqual(Lineage.decode(one.encode()), one)
        self.assertLessEqual(len(longest.encode()), LINEAGE_TEXT_MAX)

    def test_every_change_is_noticed(self) -> None:
        """One character, a cut, more; and numbers out of bounds with a sound checksum."""
        text = MET.encode()
        changed = [text[:at] + ("1" if text[at] == "0" else "0") + text[at + 1:] for at in range(len(text))]
        bad = [attrs.evolve(MET, starts=0), attrs.evolve(MET, starts=1 << 63), attrs.evolve(MET, run=1 << 63)]
        for one in [*changed, *(text[:at] for at in range(len(text))), text + "0", "x" * 99,
                    *(one.encode() for one in bad)]:
            self.assertIsNone(Lineage.decode(one), one)


class FaultTests(SynchronousTestCase):
    """A later start of the same directory is right."""

    def test_faults(self) -> None:
        """The table of the module."""
        for changes, fault in (
            ({}, None), ({"starts": 6, "run": 2}, None), ({"standing": Standing.JOINING}, None),
            ({"starts": 4, "run": 2}, Fault.OLDER), ({"run": 2}, Fault.COPIED),
            ({"incarnation": 8}, Fault.REMADE), ({"incarnation": 8, "starts": 9}, Fault.REMADE),
            ({"incarnation": 8, "standing": Standing.JOINING}, None),
            ({"incarnation": 8, "standing": Standing.PROVEN}, None),
        ):
            now = attrs.evolve(MET, **changes)  # type: ignore[arg-type]
            self.assertIs(now.fault(MET), fault, changes)
            self.assertIsNone(now.fault(None))
