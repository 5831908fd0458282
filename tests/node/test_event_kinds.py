# -*- test-case-name: tests.node.test_event_kinds -*-
"""The catalogue of events is that of the code, and the page is that of the catalogue."""

from __future__ import annotations

import re

from twisted.logger import LogLevel
from twisted.trial.unittest import SynchronousTestCase

from dledger.node.reporting.event_kinds import EVENT_KINDS
from tests.events import PAGE, page, reported
from tests.import_graph import ROOT


class CatalogueTests(SynchronousTestCase):
    """Names, levels, and where they are used."""

    def test_every_reported_event_has_a_kind(self) -> None:
        """What is reported has a kind, and each kind is reported."""
        named, texts = reported()
        self.assertEqual(named - set(EVENT_KINDS), set())
        self.assertEqual(set(EVENT_KINDS) - texts, set())
        self.assertGreater(len(named), 50)

    def test_each_kind_has_a_level(self) -> None:
        """Each is one of Twisted's; a meaning is a sentence for the table."""
        for name, kind in EVENT_KINDS.items():
            self.assertIsNotNone(LogLevel.lookupByName(kind.level), name)
            self.assertRegex(kind.meaning, r"^[a-zA-Z][^|\n]{10,110}$", name)

    def test_the_page_lists_all_kinds(self) -> None:
        """C{python -m tests.events --write} would change nothing."""
        self.assertEqual(PAGE.read_text(encoding="utf-8"), page(), "python -m tests.events --write")

    def test_alerts_name_known_events(self) -> None:
        """Alerts name events that there are."""
        text = (ROOT / "deploy" / "prometheus-alerts.yaml").read_text(encoding="utf-8")
        named = set(re.findall(r'event="([^"]+)"', text))
        self.assertTrue(named)
        self.assertEqual(named - set(EVENT_KINDS), set())
