# -*- test-case-name: tests.wire.test_values -*-
"""Values of the hot roads: they are as those of C{attrs.frozen} in all that can be seen of them."""

from __future__ import annotations

import attrs
from twisted.trial.unittest import SynchronousTestCase

from protocols.wire.ledger.batches import EntryBatch, EntryChunk
from protocols.wire.ledger.message_table import MESSAGES
from protocols.wire.values import value_class


@attrs.frozen(kw_only=True)
class Frozen:
    """The plain twin of the function."""

    index: int
    bodies: tuple[bytes, ...] = ()


@value_class(kw_only=True)
class Checked:
    """The same fields."""

    index: int
    bodies: tuple[bytes, ...] = ()


class ValueTests(SynchronousTestCase):
    """See the module. That an assignment is a mistake for mypy: L{tests.client.test_top_level}."""

    def test_as_frozen(self) -> None:
        """Equality, hash, text, slots, and what is refused."""
        for cls in (Frozen, Checked):
            one, same, other = cls(index=1, bodies=(b"x",)), cls(index=1, bodies=(b"x",)), cls(index=2)
            self.assertEqual((one, hash(one)), (same, hash(same)))
            self.assertNotEqual(one, other)
            self.assertEqual(repr(one), f"{cls.__name__}(index=1, bodies=(b'x',))")
            self.assertEqual(attrs.evolve(one, index=2, bodies=()), other)
            self.assertFalse(hasattr(one, "__dict__"))
            self.assertRaises(TypeError, cls, 1)
            self.assertRaises(TypeError, cls)
        self.assertNotEqual(Frozen(index=1), Checked(index=1))

    def test_subclass(self) -> None:
        """A value with more fields is not equal to one without them."""
        fields = {"first_index": 1, "count": 1, "term": 1, "records": b"x"}
        self.assertNotIsInstance(EntryBatch(**fields), EntryChunk)  # type: ignore[arg-type]
        self.assertTrue(issubclass(EntryChunk, EntryBatch))
        self.assertEqual(EntryBatch(**fields), EntryBatch(**fields))  # type: ignore[arg-type]

    def test_messages(self) -> None:
        """Every message is equal to one with the same fields."""
        for request, response in MESSAGES.values():
            for cls in (request, response):
                self.assertEqual(cls(term=1), cls(term=1))
                self.assertNotEqual(cls(term=1), cls(term=2))
