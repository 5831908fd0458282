# -*- test-case-name: tests.node.test_changing -*-
"""Options of a member that change while it runs."""

from __future__ import annotations

from typing import Any

import attrs
from twisted.trial.unittest import SynchronousTestCase

from dledger.node.changing import RUN_TIME_OPTIONS, with_changes
from dledger.values.ledger.config import DLedgerConfig
from tests.test_docs import DOCS


class ChangeTests(SynchronousTestCase):
    """L{with_changes}."""

    def test_documented_names_are_options(self) -> None:
        """Each is an option; docs/operations.md names all of them where it speaks of SIGHUP."""
        fields = {field.name for field in attrs.fields(DLedgerConfig)}
        self.assertLessEqual(RUN_TIME_OPTIONS, fields)
        text = (DOCS / "operations.md").read_text("utf-8")
        (reported,) = [line for line in text.splitlines() if line.startswith("* a member: ")]
        self.assertEqual([name for name in sorted(RUN_TIME_OPTIONS) if f"`{name}`" not in reported], [])

    def test_changeable_options_are_taken(self) -> None:
        """Those that may change; others stay as they were."""
        config = DLedgerConfig(retention_bytes=5)
        wanted = attrs.evolve(config, retention_bytes=7, max_connections=100, tick_ms=40)
        now, taken = with_changes(config, wanted)
        self.assertEqual(taken, {"retention_bytes", "max_connections"})
        self.assertEqual((now.retention_bytes, now.max_connections, now.tick_ms), (7, 100, config.tick_ms))
        self.assertEqual(with_changes(now, now), (now, frozenset()))

    def test_unfit_options_are_refused_whole(self) -> None:
        """Options that are sound together only with one that needs a restart are refused as a whole."""
        wanted: Any = attrs.evolve(DLedgerConfig(), enable_disk_force_clean=True)
        object.__setattr__(wanted, "disk_full_ratio", 0.1)
        self.assertRaises(ValueError, with_changes, DLedgerConfig(), wanted)
