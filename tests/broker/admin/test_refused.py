# -*- test-case-name: tests.broker.admin.test_refused -*-
"""Requests for parts that the broker does not have."""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from dledger.rocketmq.answering.refusals import Code
from dledger.rocketmq.broker.admin.refused import ABSENT, RefusedCommands
from tests.broker.asked import Asked
from tests.import_graph import ROOT


class RefusedTests(SynchronousTestCase):
    """Each of them."""

    def test_by_name(self) -> None:
        """The answer has the name of the request, and the reason."""
        asked = Asked()
        self.addCleanup(asked.close)
        asked.groups = [RefusedCommands()]
        client = asked.client()
        for code, (name, why) in ABSENT.items():
            answer = client.ask(code, {})
            self.assertEqual(answer.code, Code.REQUEST_CODE_NOT_SUPPORTED)
            self.assertEqual(answer.remark, f"{name} is not supported: {why}")

    def test_each_is_in_the_list(self) -> None:
        """docs/ha.md has every one, by its code, in one list."""
        page = (ROOT / "docs" / "ha.md").read_text(encoding="utf-8")
        _, _, behind = page.partition("Requests of mqadmin that are refused by name")
        items, _, _ = behind.partition("Not supported besides")
        cells = [line[2:].partition(" (`")[0] for line in items.splitlines() if line.startswith("* ")]
        codes: set[int] = set()
        for one in ",".join(cells).split(","):
            first, _, last = one.strip().partition(" to ")
            codes |= set(range(int(first), int(last or first) + 1))
        self.assertEqual(codes, set(ABSENT))
