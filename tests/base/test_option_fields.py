# -*- test-case-name: tests.base.test_option_fields -*-
"""Fields of options: their types, and their bounds at both ends."""

from __future__ import annotations

from typing import Any

import attrs
from twisted.trial.unittest import SynchronousTestCase

from dledger.values.option_fields import (
    INT_MAX,
    LONG_MAX,
    flag_option,
    number_option,
    share_option,
    text_option,
)


@attrs.frozen(kw_only=True)
class Options:
    """One of each kind."""

    count: int = number_option(5, 1, 10)
    size: int = number_option(0)
    share: float = share_option(0.5)
    is_on: bool = flag_option(False)
    name: str = text_option("n")


class FieldTests(SynchronousTestCase):
    """What is taken, and what is refused."""

    def assertTaken(self, **value: Any) -> None:
        """The value is kept."""
        ((name, wanted),) = value.items()
        self.assertEqual(getattr(Options(**value), name), wanted)

    def assertRefused(self, kind: type[Exception], **value: Any) -> None:
        """The error has the name of the option."""
        (name,) = value
        self.assertIn(name, str(self.assertRaises(kind, Options, **value)))

    def test_numbers(self) -> None:
        """Both bounds are inside; without bounds it is a long that is not negative."""
        for count in (1, 10):
            self.assertTaken(count=count)
        for count in (0, 11):
            self.assertRefused(ValueError, count=count)
        self.assertTaken(size=LONG_MAX)
        self.assertRefused(ValueError, size=LONG_MAX + 1)
        self.assertRefused(ValueError, size=-1)
        self.assertRefused(TypeError, count=1.0)
        self.assertEqual((INT_MAX, LONG_MAX), (0x7FFFFFFF, 0x7FFFFFFFFFFFFFFF))

    def test_shares(self) -> None:
        """All of it, but not nothing."""
        self.assertTaken(share=1.0)
        self.assertRefused(ValueError, share=0.0)
        self.assertRefused(ValueError, share=1.01)
        self.assertRefused(TypeError, share=1)

    def test_others(self) -> None:
        """A number is no flag, and bytes are no text."""
        self.assertTaken(is_on=True)
        self.assertRefused(TypeError, is_on=1)
        self.assertTaken(name="")
        self.assertRefused(TypeError, name=b"n")
