# -*- test-case-name: tests.storage.test_met_members -*-
"""The other members as they were met last, over restarts."""

from __future__ import annotations

import attrs
from twisted.trial.unittest import SynchronousTestCase

from dledger.base.disk.hints import Hints
from dledger.storage.files.met_members import MET_MAX, PAST_MAX, MetMembers, decode_met
from dledger.values.ledger.lineage import Lineage, Standing
from tests.storage.support import BROKEN, NO_SPACE, ROOT, HookedDisk

PATH = f"{ROOT}/met"
N1 = Lineage(incarnation=7, starts=5, run=1, standing=Standing.TRUSTED)


class MetMembersTests(SynchronousTestCase):
    """A file beside the identity."""

    def setUp(self) -> None:
        self.disk = HookedDisk()
        self.disk.makedirs(ROOT)

    def test_met_members_are_remembered(self) -> None:
        """The last one of each; a process without a file has met nobody."""
        first = MetMembers(Hints(self.disk), ROOT)
        self.assertEqual(first.met, {})
        first.meet("n1", N1)
        first.meet("n 2", N1)
        first.meet("n1", attrs.evolve(N1, starts=6))
        again = MetMembers(Hints(self.disk), ROOT)
        self.assertEqual(again.met, {"n 2": N1, "n1": attrs.evolve(N1, starts=6)})

    def test_written_only_when_it_changes(self) -> None:
        """Members greet often."""
        met = MetMembers(Hints(self.disk), ROOT)
        met.meet("n1", N1)
        self.disk.unlink(PATH)
        met.meet("n1", N1)
        self.assertFalse(self.disk.exists(PATH))

    def test_of_a_damaged_file_nobody_was_met(self) -> None:
        """Whatever bit of it flips: another id would be another member."""
        MetMembers(Hints(self.disk), ROOT).meet("n1", N1)
        data = self.disk.read_file(PATH)
        for at in range(len(data)):
            self.disk.write_file(PATH, data[:at] + bytes([data[at] ^ 4]) + data[at + 1 :])
            self.assertEqual(MetMembers(Hints(self.disk), ROOT).met, {})

    def test_a_row_that_is_not_sound_is_left_out(self) -> None:
        """The rest counts."""
        MetMembers(Hints(self.disk), ROOT).meet("n1", N1)
        line = self.disk.read_file(PATH).splitlines(keepends=True)[0]
        found = decode_met(b"\xff\n" + line.replace(b"n1", b"n2") + line[:-3] + b"\n \n" + line[2:])
        self.assertEqual(found, {"n2": N1})

    def test_earlier_incarnations_are_known(self) -> None:
        """An incarnation that another one has followed is known, over restarts, among the last ones."""
        first = MetMembers(Hints(self.disk), ROOT)
        for incarnation in (7, 8, 9):
            first.meet("n1", attrs.evolve(N1, incarnation=incarnation))
        for met in (first, MetMembers(Hints(self.disk), ROOT)):
            self.assertEqual([met.was_before("n1", one) for one in (7, 8, 9, 10)], [True, True, False, False])
            self.assertFalse(met.was_before("n2", 7))
            self.assertEqual(met.met, {"n1": attrs.evolve(N1, incarnation=9)})
        for incarnation in range(10, 10 + PAST_MAX):
            first.meet("n1", attrs.evolve(N1, incarnation=incarnation))
        self.assertEqual((first.was_before("n1", 8), first.was_before("n1", 9)), (False, True))

    def test_the_first_members_are_forgotten(self) -> None:
        """The first ones are forgotten."""
        met = MetMembers(Hints(self.disk), ROOT)
        for number in range(MET_MAX + 2):
            met.meet(f"n{number}", N1)
        self.assertEqual((len(met.met), "n1" in met.met, "n2" in met.met), (MET_MAX, False, True))

    def test_a_full_disk_remembers_in_memory(self) -> None:
        """It is remembered as long as the process lives."""
        met = MetMembers(Hints(self.disk), ROOT)
        self.disk.failures = {("write_file", "met"): NO_SPACE}
        met.meet("n1", N1)
        self.assertEqual((met.met, self.disk.exists(PATH)), ({"n1": N1}, False))

    def test_an_unreadable_file_met_nobody(self) -> None:
        """Nobody was met; the start goes on."""
        MetMembers(Hints(self.disk), ROOT).meet("n1", N1)
        self.disk.failures = {("read_file", "met"): BROKEN}
        self.assertEqual(MetMembers(Hints(self.disk), ROOT).met, {})
