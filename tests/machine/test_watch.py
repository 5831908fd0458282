# -*- test-case-name: tests.machine.test_watch -*-
"""The machines of other members."""

from __future__ import annotations

from collections.abc import Mapping

import attrs
from twisted.trial.unittest import SynchronousTestCase

from dledger.machine.watch import MachineWatch
from protocols.wire.ledger.machines import ReportedMachine, encode_reported_machine

MINE = ReportedMachine(name="kv", version=2, state="running")


class WatchTests(SynchronousTestCase):
    """The machines that they run, and the judgement here."""

    def setUp(self) -> None:
        self.reported: dict[str, str | None] = {}
        self.noted: list[str] = []
        self.watch = MachineWatch("n0", self.reported.get, self.note)

    def note(self, event: str, facts: Mapping[str, object]) -> None:
        """An event."""
        self.noted.append(f"{event} {facts['reason']}")

    def look(self, mine: ReportedMachine = MINE, **others: ReportedMachine | str) -> None:
        """They report, and are compared."""
        self.reported.clear()
        for peer_id, one in others.items():
            self.reported[peer_id] = encode_reported_machine(one) if isinstance(one, ReportedMachine) else one
        self.watch.look(mine, ["n1", "n2", "n3"])

    def test_equal_machines_do_not_differ(self) -> None:
        """The same machine, none, nonsense, and silence are no difference."""
        self.look(n1=MINE, n2="", n3="[")
        self.assertEqual((self.watch.differs, self.noted), ("", []))

    def test_a_difference_is_reported_once(self) -> None:
        """Another version or name: reported once, with the names, until it changes."""
        newer = attrs.evolve(MINE, version=3)
        for _ in range(3):
            self.look(n1=newer, n2=attrs.evolve(MINE, name="other"))
        says = "n1 runs the version 3 of 'kv'; n2 runs the version 2 of 'other'"
        self.assertEqual(self.watch.differs, says)
        self.assertEqual(
            self.noted, [f"machine-differs this member runs the version 2 of 'kv', {says}"]
        )
        self.look(n1=MINE)
        self.assertEqual((self.watch.differs, len(self.noted)), ("", 1))

    def test_different_digests_raise_doubt(self) -> None:
        """
        Of the newest entry that both report; who is not with the majority is in doubt, and so are equals.
        """
        def notifies(**digests: str) -> ReportedMachine:
            return attrs.evolve(MINE, digests={int(index[2:]): one for index, one in digests.items()})

        mine = notifies(at5="aa", at9="bb")
        for others, doubt in (
            ({"n1": notifies(at9="bb")}, ""), ({"n1": notifies(at5="aa")}, ""),
            ({"n1": notifies(at7="cc")}, ""),
            ({"n1": notifies(at9="cc"), "n2": notifies(at9="bb")}, ""),
            ({"n1": notifies(at9="cc"), "n2": notifies(at9="cc")}, "n0 against n1, n2"),
            ({"n1": notifies(at9="cc")}, "n0 against n1"),
            ({"n1": notifies(at9="cc"), "n2": notifies(at9="dd")}, "n0 against n1 against n2"),
            ({"n1": attrs.evolve(notifies(at9="cc"), version=3)}, ""),
        ):
            self.look(mine, **others)
            text = f"after the entry 9 the states differ: {doubt}" if doubt else ""
            self.assertEqual(self.watch.in_doubt, text)
        self.assertTrue(any("n0, n2 against n1" in one for one in self.noted))

    def test_an_outdated_machine_may_ask(self) -> None:
        """Only if the machine asks for it, and the newer one runs and is of the same name."""
        newer = attrs.evolve(MINE, version=3)
        picky = attrs.evolve(MINE, newest_only=True)
        for mine, other, is_outdated in (
            (MINE, newer, False), (picky, newer, True), (picky, attrs.evolve(newer, state="starting"), False),
            (picky, attrs.evolve(newer, name="x"), False), (picky, attrs.evolve(newer, version=1), False),
        ):
            self.look(mine, n1=other)
            self.assertEqual(bool(self.watch.outdated), is_outdated)
