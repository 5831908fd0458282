# -*- test-case-name: tests.broker.consuming.test_sql92 -*-
"""
Expressions over properties. L{tests.interop.test_sql92} compares thousands of them with RocketMQ's own; here
are the rules that a reader of the code looks for, the bounds, and the errors.
"""

from __future__ import annotations

import random
from time import process_time

from twisted.trial.unittest import SynchronousTestCase

from dledger.rocketmq.broker.consuming.sql92 import (
    DEPTH_MAX,
    SQL_CHARACTERS_MAX,
    SqlError,
    SqlFilter,
    compiled,
)

ORDER = {"amount": "12", "region": "eu", "price": "9.5", "urgent": "true", "note": "it's 5"}
#: Beyond this number a text may be refused or not, but soon.
_FUZZED = 3000


class ResultTests(SynchronousTestCase):
    """What matches."""

    def test_results(self) -> None:
        """Each kind of condition, on one message."""
        for text, expected in (
            ("amount = 12", True), ("amount = '12'", True), ("amount <> 12", False), ("amount > 11.5", True),
            ("price > 9", False), ("price > 9.0", True), ("price BETWEEN 9.0 AND 10.0", True),
            ("price NOT BETWEEN 9.0 AND 10.0", False), ("region IN ('us', 'eu')", True),
            ("region NOT IN ('us', 'eu')", False), ("nothing IN ('x')", False),
            ("nothing NOT IN ('x')", False), ("nothing IS NULL", True), ("region IS NOT NULL", True),
            ("nothing = 1", False), ("NOT (nothing = 1)", False), ("nothing = 1 OR amount = 12", True),
            ("nothing = 1 AND amount = 12", False), ("urgent = TRUE", True), ("urgent", False),
            ("note CONTAINS 'it''s'", True), ("note STARTSWITH 'it'", True), ("note ENDSWITH '4'", False),
            ("note NOT ENDSWITH '4'", True), ("nothing NOT CONTAINS 'x'", False), ("region = 5", False),
            ("NOT amount = 12", False), ("NOT (amount = 13)", True), ("amount = 12 -- twelve\n", True),
            ("/* now */ amount /* is */ = 12", True), ("Amount = 12", False),
            ("amount bEtWeEn 1 aNd 99", True),
            ("amount > 2 AND (region = 'us' OR region = 'eu') AND NOT (price > 10.0)", True),
        ):
            self.assertIs(SqlFilter(text).matches(ORDER), expected, text)

    def test_numbers(self) -> None:
        """A text is converted as Java converts it to the type of the number that it is compared with."""
        for text, value, expected in (
            ("a = 1", "1", True), ("a = 1", "+1", True), ("a = 1", " 1", False), ("a = 1", "1.0", False),
            ("a = 0.0", "0", True), ("a > 0.0", "0", False), ("a > 0.0", "0.5", True),
            ("a < 0.0", "-1", True),
            ("a = 1.0", " 1 ", True), ("a = 1.0", "1d", True), ("a = 1.0", "1_0", False),
            ("a < 5", "-2147483648", True), ("a < 5", "-2147483649", False),
            ("a < 3000000000", "-2147483649", True), ("a < 3000000000", "-9223372036854775809", False),
            ("a = a", "NaN", True), ("a > 1.0", "NaN", True), ("a > 1.0", "Infinity", True),
            ("a = 1", "\u0661", False), ("a = 1", "9" * 100_000, False), ("a >= b", "x", False),
        ):
            self.assertIs(SqlFilter(text).matches({"a": value, "b": "y"}), expected, (text, value[:30]))

    def test_long_values(self) -> None:
        """A text of any length is compared with a number in no time to speak of."""
        began = process_time()
        for value in ("1" * 100_000 + "x", "1" * 400 + "x", " " * 100_000, "." * 100_000, "1e" * 50_000):
            for text in ("a > 1.5", "a = 1", "a BETWEEN 1.0 AND 2.0"):
                self.assertFalse(SqlFilter(text).matches({"a": value}))
        self.assertLess(process_time() - began, 2)

    def test_kept(self) -> None:
        """The same text is compiled once; so is one that is not an expression."""
        self.assertIs(compiled("a = 1"), compiled("a = 1"))
        self.assertIsInstance(compiled("a ="), SqlError)
        self.assertIs(compiled("a ="), compiled("a ="))


class RefusalTests(SynchronousTestCase):
    """What is not an expression, and why."""

    def test_errors(self) -> None:
        """Where it is wrong, and what would be allowed there."""
        for text, words in (
            ("", "at character 1: found the end, expected a property"),
            ("a =", "at character 4: found the end, expected a property"),
            ("a = 1 b = 2", "at character 7: found 'b', expected AND, OR or the end"),
            ("a == 1", "at character 4: found '=', expected a property"),
            ("a # 1", "at character 3: '# 1' begins no word"), ("a = 'open", "at character 5"),
            ("a IS 1", "expected NULL or NOT NULL"), ("a IN (1)", "a text in single quotes"),
            ("a IN ('1'", "expected , or )"), ("(a = 1", "expected )"), ("a BETWEEN 1", "the upper bound"),
            ("a BETWEEN 2 AND 1", "the bounds are reversed"), ("a BETWEEN NULL AND 1", "NULL is not a bound"),
            ("a = NULL", "write IS NULL"), ("a > 'x'", "has no order"), ("a > (b = 1)", "has no order"),
            ("1", "neither true nor false"), ("-a", "neither true nor false"), ("1 IN ('1')", "a property"),
            ("a = 99999999999999999999", "a number up to 9223372036854775807"),
            ("a = 1e999", "a number up to 1.7"),
            ("TRUE = 1", "cannot be compared"), ("a" * (SQL_CHARACTERS_MAX + 1), "are allowed"),
        ):
            error = self.assertRaises(SqlError, SqlFilter, text)
            self.assertIn(words, str(error), text[:40])

    def test_depth(self) -> None:
        """As deep as allowed it is evaluated; deeper it is refused, however it is nested."""
        deepest = "(" * (DEPTH_MAX - 1) + "a = 1" + ")" * (DEPTH_MAX - 1)
        self.assertTrue(SqlFilter(deepest).matches({"a": "1"}))
        for text in (
            "(" * 4000 + "a" + ")" * 4000, "NOT " * 2000 + "a", "-" * 8000 + "1 = a",
            "(" + " = 1) AND (".join(["a" + " = 1" * 80] * 2) + " = 1)",
            "(" * 30 + "a = 1" + " = 1 = 1 = 1)" * 30, "a" + " = a" * 2000, "a" + " IS NULL" * 1000,
            "a" + " > a" * 2000,
        ):
            self.assertRaises(SqlError, SqlFilter, text)

    def test_long(self) -> None:
        """Long rows of conditions are no depth."""
        text = " OR ".join(f"a = {number}" for number in range(500))
        self.assertTrue(SqlFilter(text).matches({"a": "499"}))
        self.assertFalse(SqlFilter(text).matches({"a": "500"}))

    def test_any_text(self) -> None:
        """Whatever is sent: an expression or a refusal, in no time to speak of."""
        rng = random.Random(7)
        words = [
            "a", "=", "<", ">", "(", ")", "'x'", "'", "1", ".", "e", "-", "/*", "*/", "--", "\n", "NOT",
            "AND", "OR", "IN", "BETWEEN", "IS", "NULL", "TRUE", ",", "CONTAINS", " ", "\0", "\ud800", "é",
        ]
        began = process_time()
        for _ in range(_FUZZED):
            text = rng.choice(("", " ")).join(rng.choice(words) for _ in range(rng.randrange(40)))
            try:
                SqlFilter(text).matches(ORDER)
            except SqlError:
                pass
        for text in ("/*" * 4000, "'" * 8191, "1" * 8192, "a=" * 4000, "." * 8000, "/*" + "*" * 8000):
            self.assertRaises(SqlError, SqlFilter, text)
        self.assertLess(process_time() - began, 30)
