# -*- test-case-name: tests.sim.test_slips -*-
"""Mistakes of operators: each happens, changes nothing, and a product that takes one is noticed."""

from __future__ import annotations

from typing import Any
from unittest import mock

import attrs
from twisted.trial.unittest import SynchronousTestCase

from dledger.core.election.changes import MembershipChanges
from dledger.storage.backups import archive, restore
from dledger.storage.backups.reader import verify_archive
from dledger.testing.group.focuses import FOCUSES
from dledger.testing.group.injection import slips, visits
from dledger.testing.group.injection.slips import Slips
from dledger.testing.group.schedule import run_schedule
from protocols.wire.ledger.messages import MembershipRequest

COPIES = FOCUSES["copies-and-slips"][1]
ORDERS = FOCUSES["orders-that-change-nothing"][1]


class SlipsTests(SynchronousTestCase):
    """In some seeds of their focuses."""

    def test_every_kind_of_mistake_happens(self) -> None:
        """Orders, places, rot, and groups that survivors begin; they change nothing."""
        made: list[Slips] = []

        def make(*arguments: object) -> Slips:
            made.append(Slips(*arguments))  # type: ignore[arg-type]
            return made[-1]

        with mock.patch.object(visits, "Slips", make):
            for seed in (2, 4):
                self.assertEqual(run_schedule(seed, focus=COPIES).failure, "")
        for kind in ("order", "place", "rot", "survivor"):
            self.assertGreater(sum(one.reported.get(kind, 0) for one in made), 5, kind)

    def test_dry_order_that_is_obeyed_is_noticed(self) -> None:
        """A change that was only asked about."""
        on_request = MembershipChanges.on_request

        def obey(self: MembershipChanges, token: int, request: MembershipRequest, *more: Any) -> None:
            on_request(self, token, attrs.evolve(request, is_dry=False), *more)

        with mock.patch.object(MembershipChanges, "on_request", obey):
            self.assertIn("invariant 9", self.failure(ORDERS))

    def test_overlooked_rot_of_a_copy_is_noticed(self) -> None:
        """A look at it finds nothing."""
        look = verify_archive
        with mock.patch.object(slips, "verify_archive",
                               lambda disk, path: attrs.evolve(look(disk, path), findings=[])):
            self.assertIn("finds nothing", self.failure(COPIES))

    def test_copy_at_a_wrong_place_is_noticed(self) -> None:
        """A backup beside other files, and a restore onto a member."""
        with mock.patch.object(archive, "_check_usable", lambda *given: None), \
                mock.patch.object(restore, "_check_free", lambda *given: None):
            self.assertIn("invariant 14", self.failure(COPIES))

    def failure(self, focus: object) -> str:
        """The first one of some seeds."""
        for seed in (2, 3, 4, 5):
            failure = run_schedule(seed, focus=focus).failure  # type: ignore[arg-type]
            if failure:
                return failure
        return ""
