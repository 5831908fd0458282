# -*- test-case-name: tests.broker.admin.test_refused -*-
"""Requests for parts that the broker does not have."""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from dledger.rocketmq.answering.refusals import Code
from dledger.rocketmq.broker.admin.refused import ABSENT, RefusedCommands
from tests.broker.asked import Asked


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
