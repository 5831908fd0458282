# -*- test-case-name: tests.broker.admin.test_topic_attributes -*-
"""Attributes of topics: what can be read, and what can be changed."""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from dledger.rocketmq.answering.refusals import Code, Refused
from dledger.rocketmq.broker.admin.topic_attributes import (
    MESSAGE_TYPES,
    altered,
    read_attributes,
    read_changes,
)


def changed(before: dict[str, str] | None, text: str, *, allows_mixed: bool = False) -> dict[str, str]:
    """The attributes after a change by text."""
    return altered(before, read_changes(text), allows_mixed=allows_mixed)


class AttributesTests(SynchronousTestCase):
    """As RocketMQ alters them; what this broker would not do is refused by name."""

    def test_read(self) -> None:
        """Signs, names and values."""
        self.assertEqual(read_changes(""), {})
        self.assertEqual(read_changes("+message.type=FIFO,-queue.type"),
                         {"+message.type": "FIFO", "-queue.type": ""})
        for text in ("message.type=FIFO", "+message.type", "-a=b", "+a=1,+a=2", "+a=1,-a", "+=1", "-", ",",
                     "+a-b=1", "+a=" + "x" * 1024):
            self.assertRaises(Refused, read_changes, text)

    def test_types(self) -> None:
        """Every type of 5.x; a type can be changed, and taken away."""
        for name in MESSAGE_TYPES:
            found = changed(None, f"+message.type={name}", allows_mixed=True)
            self.assertEqual(found, {"message.type": name})
        self.assertEqual(changed({"message.type": "FIFO"}, "+message.type=DELAY"), {"message.type": "DELAY"})
        self.assertEqual(changed({"message.type": "FIFO"}, "-message.type"), {})
        self.assertEqual(changed({"message.type": "FIFO"}, ""), {"message.type": "FIFO"})

    def test_mixed(self) -> None:
        """Only with the option, as in RocketMQ."""
        error = self.assertRaises(Refused, changed, None, "+message.type=MIXED")
        self.assertEqual(error.code, Code.INVALID_PARAMETER)
        self.assertIn("MIXED message type is not supported", error.remark)

    def test_what_is_so(self) -> None:
        """What this broker does in any case may be said."""
        both = "+queue.type=SimpleCQ,+cleanup.policy=DELETE"
        found = {"queue.type": "SimpleCQ", "cleanup.policy": "DELETE"}
        self.assertEqual(changed(None, both), found)
        self.assertEqual(changed({}, both), found)

    def test_refused(self) -> None:
        """With the name of what is missing."""
        for before, text, word in (
            (None, "+queue.type=BatchCQ", "BatchCQ"), (None, "+cleanup.policy=COMPACTION", "COMPACTION"),
            (None, "+reserve.time=5", "reserve.time"), (None, "+color=red", "unsupported key: 'color'"),
            (None, "+message.type=fifo", "write one of UNSPECIFIED"), (None, "-message.type", "nonexistent"),
            ({"queue.type": "SimpleCQ"}, "-queue.type", "unchangeable"),
            ({"queue.type": "BatchCQ"}, "+queue.type=SimpleCQ", "unchangeable"),
        ):
            error = self.assertRaises(Refused, changed, before, text)
            self.assertIn(word, error.remark)

    def test_kept(self) -> None:
        """What is not a text in an entry counts for nothing."""
        self.assertEqual(read_attributes({}), {})
        self.assertEqual(read_attributes({"attributes": [1]}), {})
        self.assertEqual(read_attributes({"attributes": {"a": "b", "c": 1}}), {"a": "b"})
