# -*- test-case-name: tests.client.test_arguments -*-
"""Numbers are checked by the client, at once."""

from __future__ import annotations

from typing import Any

from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from dledger.base.sending.arguments import patience, seconds, text, whole
from tests.client.fakes import FakeGroup


class AccessTests(SynchronousTestCase):
    """Each call refuses what is not a number, or is out of range, and nothing is sent."""

    def setUp(self) -> None:
        self.group = FakeGroup(Clock())
        self.client = self.group.client()
        self.addCleanup(self.client.close)

    def test_each_call_checks_its_numbers(self) -> None:
        """With the name of the parameter, the value, and the range."""
        client: Any = self.client
        calls: list[tuple[Any, tuple[object, ...], dict[str, object], type[Exception], str]] = [
            (client.get, ("0",), {}, TypeError, "index='0'"),
            (client.get, (True,), {}, TypeError, "index=True"),
            (client.get, (1.5,), {}, TypeError, "index=1.5"),
            (client.get, (2**70,), {}, ValueError, f"from 0 to {2**63 - 1}"),
            (client.get, (-5,), {}, ValueError, "tail() counts a negative one back"),
            (client.tail, ("0",), {}, TypeError, "from_index='0'"),
            (client.tail, (2**70,), {}, ValueError, "from_index"),
            (client.tail, (0,), {"timeout_s": "3"}, TypeError, "timeout_s='3'"),
            (client.tail, (0,), {"timeout_s": float("nan")}, ValueError, "timeout_s=nan"),
            (client.append, (b"x",), {"expected_end": "1"}, TypeError, "expected_end='1'"),
            (client.append, (b"x",), {"producer": 7, "sequence": 0}, TypeError, "producer=7"),
            (client.append, (b"x",), {"producer": "p", "sequence": 1.0}, TypeError, "sequence=1.0"),
            (client.append, (b"x",), {"producer": "p"}, TypeError, "both producer and sequence"),
            (client.append_many, ([b"x"],), {"sequence": 1}, TypeError, "both producer and sequence"),
            (client.append_many, ([b"x"],), {"producer": "p", "sequence": None}, TypeError, "both producer"),
            (client.query, (b"x",), {"max_age_s": "1"}, TypeError, "max_age_s='1'"),
            (client.reader, ("r",), {"begin": None}, TypeError, "begin=None"),
            (client.reader, ("r",), {"lease_s": -1}, ValueError, "lease_s=-1"),
            (client.reader, (b"r",), {}, TypeError, "name=b'r'"),
            (client.move_reader, ("r", "7"), {}, ValueError, "index='7'"),
            (client.status, (0,), {}, ValueError, "deadline_s=0"),
            (client.transfer, ("n1",), {"term": "1"}, TypeError, "term='1'"),
            (self.group.client, (), {"timeout_s": "1"}, TypeError, "timeout_s='1'"),
            (self.group.client, (), {"answer_timeout_s": 0}, ValueError, "answer_timeout_s=0"),
        ]
        for call, words, options, kind, part in calls:
            error = self.assertRaises(kind, call, *words, **options)
            self.assertIn(part, str(error))
        self.group.settle()
        self.assertEqual([member.received for member in self.group.members.values()], [[], [], []])

    def test_rules_have_their_bounds(self) -> None:
        """The bounds belong to the ranges."""
        self.assertEqual((whole("n", 0), whole("n", 2**63 - 1), whole("n", -3, -3)), (0, 2**63 - 1, -3))
        self.assertRaises(ValueError, whole, "n", -4, -3)
        self.assertEqual((seconds("s", 2), patience("s", 0), patience("s", None)), (2.0, 0.0, None))
        for value in (0, -1, float("inf"), 1e10):
            self.assertRaises(ValueError, seconds, "s", value)
        for bad in (True, "1", None, b"1"):
            self.assertRaises(TypeError, seconds, "s", bad)
        self.assertEqual(text("t", "x"), "x")
