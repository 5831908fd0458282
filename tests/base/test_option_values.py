# -*- test-case-name: tests.base.test_option_values -*-
"""Names and values of options, as people write them."""

from __future__ import annotations

import attrs
from twisted.trial.unittest import SynchronousTestCase

from dledger.values.option_values import converted, listed, our_name, unknown_option

KNOWN = ("tick_ms", "broker_ip1", "TICK")


class NameTests(SynchronousTestCase):
    """One option, many spellings."""

    def test_spellings(self) -> None:
        """Ours as it is, others from the table, and else camelCase."""
        aliases = {"brokerIP1": "broker_ip1"}
        for name, expected in (
            ("tick_ms", "tick_ms"), ("tickMs", "tick_ms"), ("TICK", "TICK"), ("brokerIP1", "broker_ip1"),
            ("brokerIP2", "broker_ip2"), ("a1B", "a1_b"),
        ):
            self.assertEqual(our_name(name, aliases, KNOWN), expected)

    def test_unknown(self) -> None:
        """The nearest is named, if one is near."""
        error = unknown_option("tickMS", "tick_m_s", KNOWN)
        self.assertEqual(str(error), "unknown option 'tickMS'; did you mean 'tick_ms'?")
        self.assertEqual(str(unknown_option("zzz", "zzz", KNOWN)), "unknown option 'zzz'")


class ValueTests(SynchronousTestCase):
    """The default says what is wanted."""

    def test_text(self) -> None:
        """Converted, or left as it is where text is wanted, or nobody knows."""
        for text, default, expected in (
            ("7", 1, 7), ("0.5", 1.0, 0.5), ("TRUE", False, True), ("false", True, False), (" 7", "", " 7"),
            ("7", attrs.NOTHING, "7"), ("7", (), "7"),
        ):
            value = converted("name", text, default)
            self.assertEqual((type(value), value), (type(expected), expected))

    def test_other_values(self) -> None:
        """As they are, except whole numbers where fractions are wanted."""
        for given, default, expected in (
            (7, 1, 7), (7, 1.0, 7.0), (0.5, 1, 0.5), (None, 1, None), (7, "", 7),
        ):
            value = converted("name", given, default)
            self.assertEqual((type(value), value), (type(expected), expected))

    def test_refused(self) -> None:
        """By name, with what is wanted."""
        for text, default, words in (
            ("yes", True, "name='yes': write true or false"), ("1", True, "name='1': write true or false"),
            ("many", 1, "name='many': write a whole number"), ("1.5", 1, "name='1.5': write a whole number"),
            ("much", 1.0, "name='much': write a number"),
        ):
            self.assertEqual(str(self.assertRaises(ValueError, converted, "name", text, default)), words)

    def test_listed(self) -> None:
        """Parts between semicolons; blanks and empty parts do no harm."""
        self.assertEqual(listed(" a ;; b c;"), ("a", "b c"))
        self.assertEqual(listed(" ; "), ())
