# -*- test-case-name: tests.broker.metadata.test_changed_options -*-
"""The file of changed options."""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from dledger.rocketmq.metadata.changed_options import ChangedOption, ChangedOptions
from protocols.wire.errors import BodyError


class ChangedOptionsTests(SynchronousTestCase):
    """What is kept, and what is read."""

    def test_put(self) -> None:
        """The configured value is that of before the first change; a change back is forgotten."""
        options = ChangedOptions()
        options.put("broker_permission", 4, 6)
        options.put("broker_permission", 2, 4)
        self.assertEqual(options.entries, {"broker_permission": ChangedOption(2, 6)})
        self.assertTrue(options.is_dirty)
        options.put("broker_permission", 6, 2)
        self.assertEqual(options.entries, {})

    def test_file(self) -> None:
        """Every type of value comes back."""
        options, read = ChangedOptions(), ChangedOptions()
        for name, value, before in (("a", 1, 2), ("b", True, False), ("c", 0.5, 0.25), ("d", "x", "größe")):
            options.put(name, value, before)
        read.load(options.file_bytes())
        self.assertEqual(read.entries, options.entries)
        self.assertFalse(read.is_dirty)

    def test_malformed(self) -> None:
        """Nothing changes."""
        options = ChangedOptions()
        options.put("a", 1, 2)
        for data in (
            b"", b"{", b"[]", b"{}", b'{"options": 1}', b'{"options": {"a": 1}}', b"\xff",
            b'{"options": {"a": {"value": [], "configured": 1}}}', b'{"options": {"a": {"value": 1}}}',
        ):
            self.assertRaises(BodyError, options.load, data)
        self.assertEqual(options.entries, {"a": ChangedOption(1, 2)})
