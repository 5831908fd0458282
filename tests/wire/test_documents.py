# -*- test-case-name: tests.wire.test_documents -*-
"""Fields of documents: what is there, what is missing, and what is something else."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from twisted.trial.unittest import SynchronousTestCase

from protocols.wire.documents import (
    NAME_CHARACTERS_MAX,
    list_in,
    long_in,
    name_in,
    object_in,
    objects_in,
    to_object,
    words_in,
)
from protocols.wire.errors import BodyError


class FieldTests(SynchronousTestCase):
    """Each kind of field."""

    def refuses(self, says: str, call: Callable[..., object], *arguments: Any) -> None:
        """A sentence with the name of the field."""
        error = self.assertRaises(BodyError, call, *arguments)
        self.assertIn(says, str(error))

    def test_there(self) -> None:
        """Values as they are; numbers also as texts, as Java writes them."""
        document = {"n": "name", "l": "7", "o": {"a": 1}, "a": [{"b": 2}], "big": (1 << 63) - 1}
        self.assertEqual(name_in(document, "n"), "name")
        self.assertEqual(words_in(document, "n"), "name")
        self.assertEqual((long_in(document, "l"), long_in(document, "big")), (7, (1 << 63) - 1))
        self.assertEqual(object_in(document, "o"), {"a": 1})
        self.assertEqual(list_in(document, "a", 1), [{"b": 2}])
        self.assertEqual(objects_in(document, "a", 1), [{"b": 2}])

    def test_missing(self) -> None:
        """A default, or nothing; a name without a default is refused."""
        self.assertEqual(name_in({}, "n", "x"), "x")
        self.refuses("n=None must be 1 to 255 characters", name_in, {}, "n")
        self.assertEqual((words_in({}, "w"), words_in({"w": 7}, "w")), ("", ""))
        self.assertEqual((long_in({}, "l"), long_in({"l": None}, "l", 0)), (-1, 0))
        self.assertEqual((object_in({}, "o"), list_in({}, "a"), objects_in({}, "a", 1)), ({}, [], []))

    def test_wrong(self) -> None:
        """Of another type, or beyond a bound."""
        longest = "x" * NAME_CHARACTERS_MAX
        self.assertEqual(name_in({"n": longest}, "n"), longest)
        for value in ("", 7, longest + "x", []):
            self.refuses("n=", name_in, {"n": value}, "n", "default")
        for value in ("seven", 1 << 63, {}):
            self.refuses("l=", long_in, {"l": value}, "l")
        self.refuses("o=7 is not an object", object_in, {"o": 7}, "o")
        self.refuses("part=7 is not an object", to_object, 7, "part")
        self.refuses("a=7 is not an array", list_in, {"a": 7}, "a")
        self.refuses("a has 2 items, 1 are allowed", list_in, {"a": [1, 2]}, "a", 1)
        self.refuses("item of a=1 is not an object", objects_in, {"a": [1]}, "a", 1)
