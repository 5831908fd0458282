# -*- test-case-name: tests.interop.test_sql92 -*-
"""Expressions of SQL 92 mean the same here as in RocketMQ: drawn ones, and those that surprise."""

from __future__ import annotations

import random
from pathlib import Path

from twisted.trial.unittest import SkipTest, SynchronousTestCase

from dledger.rocketmq.broker.consuming.sql92 import SqlError, SqlFilter
from tests.interop.java import JavaMissing
from tests.interop.rocketmq import PATIENCE, Codec

DRAWN = 4000
NAMES = ("a", "b", "c", "_x$1")
TEXTS = (
    "1", "2", "10", "-3", "+4", "1.5", "1e3", " 7 ", "", "x", "abc", "true", "TRUE", "false", "NaN", "-0",
    "Infinity", "2147483648", "9223372036854775808", "0x10", "1d", "it's", "größe", "\U0001f600",
)
LITERALS = (
    "0", "1", "2", "-3", "10", "+4", "1.5", ".5", "1.", "1e3", "2147483647", "2147483648", "-2147483648",
    "7L",
    "9223372036854775807", "'1'", "'x'", "'it''s'", "''", "'abc'", "TRUE", "FALSE", "NULL", "'true'", "- -1",
)
#: What people write, and what is easily read otherwise.
WRITTEN = (
    "a > 1 AND b = 'x'", "a BETWEEN 0 AND 9", "NOT a BETWEEN 0 AND 9", "a NOT BETWEEN 0 AND 9", "NOT a = 1",
    "NOT (a = 1)", "a IN ('1', 'x')", "a NOT IN ('1')", "a IS NULL OR b IS NOT NULL", "a", "NOT a", "a = a",
    "a = b = TRUE", "a CONTAINS 'b'", "a NOT CONTAINS 'b'", "a STARTSWITH 'a' AND NOT (a ENDSWITH 'c')",
    "a -- a comment\n = 1", "a /* one */ = /* two **/ 1", "a between 1 and 2 or a in ('x')", "TRUE", "NULL",
    "a = NULL", "TRUE = 1", "1 = TRUE", "'x' > 1", "a > 'x'", "a > TRUE", "a BETWEEN 9 AND 1", "a IN (1)",
    "1 IN ('1')", "a <> 1", "a = -1", "-a = 1", "(a)", "((a = 1))", "(a = 1", "a = ", "= 1", "a == 1", "1",
    "'text'", "a = 1e400", "a = 99999999999999999999", "a # 1", "", "   ", "a = 'open", "a IS 1",
    "a CONTAINS ''", "'abc' CONTAINS 'b'", "1 CONTAINS '1'", "a = 1 AND", "AND", "a AND b", "a OR TRUE",
    "(a = 1) = (b = 1)", "(a = 1) = b", "b = (a = 1)", "TRUE = a", "a = TRUE", "a <> TRUE", "a = 0",
    "a < 1.5",
    "a BETWEEN 'a' AND 'b'", "a BETWEEN 1 AND 'x'", "a BETWEEN NULL AND 1", "a BETWEEN 1 AND 1.5", "a = .5",
    "a BETWEEN b AND c", "1 BETWEEN a AND b", "a > b", "a >= b OR b >= a", "a IS NULL IS NULL",
    "NOT NOT a IS NULL", "+a = 1", "+ 'x' = a", "- 'x' = a", "-TRUE = a", "a = - - 1", "a=1--",
    "a=00", "a=1l",
)


def drawn(rng: random.Random, depth: int = 0) -> str:
    """An expression, most often one that is sound."""

    def operand() -> str:
        kind = rng.random()
        if kind < 0.55:
            return rng.choice(NAMES)
        return rng.choice(LITERALS) if kind < 0.95 or depth > 3 else f"({drawn(rng, depth + 1)})"

    kind = rng.random()
    if depth < 3 and kind < 0.35:
        sides = f"{drawn(rng, depth + 1)} {rng.choice(('AND', 'OR'))} {drawn(rng, depth + 1)}"
        return sides if rng.random() < 0.5 else f"({sides})"
    if depth < 3 and kind < 0.45:
        return f"NOT {drawn(rng, depth + 1)}" if rng.random() < 0.5 else f"NOT ({drawn(rng, depth + 1)})"
    no = rng.choice(("", "", "NOT "))
    return rng.choice((
        lambda: f"{operand()} {rng.choice(('=', '<>', '>', '<', '>=', '<='))} {operand()}",
        lambda: f"{operand()} {no}BETWEEN {operand()} AND {operand()}",
        lambda: f"{operand()} {no}IN ('1', 'x', 'it''s')",
        lambda: f"{operand()} IS {no}NULL",
        lambda: f"{operand()} {no}{rng.choice(('CONTAINS', 'STARTSWITH', 'ENDSWITH'))} '{rng.choice('1xb')}'",
        operand,
    ))()


class FilterTests(SynchronousTestCase):
    """Both evaluate the same expressions."""

    def setUp(self) -> None:
        directory = Path(self.mktemp())
        directory.mkdir()
        try:
            self.java = Codec("Filter", directory, "5.3.3")
        except JavaMissing as missing:
            raise SkipTest(str(missing)) from None
        self.addCleanup(self.java.kill)
        self.java.start()
        self.java.wait_started(seconds=PATIENCE)
        self.wrong: list[str] = []

    def said(self, text: str, properties: dict[str, str]) -> str:
        """RocketMQ's result."""
        words = [text, *(word for pair in properties.items() for word in pair)]
        return self.java.said_of(*(word.encode() for word in words))

    @staticmethod
    def ours(text: str, properties: dict[str, str]) -> str:
        """Our result, in its words."""
        try:
            return str(SqlFilter(text).matches(properties)).lower()
        except SqlError:
            return "refused"

    def compare(self, text: str, rng: random.Random, times: int) -> str:
        """Several messages. @return: the last result."""
        said = ""
        for _ in range(times):
            properties = {name: rng.choice(TEXTS) for name in NAMES if rng.random() < 0.8}
            ours, said = self.ours(text, properties), self.said(text, properties)
            if ours != said and not (ours == "refused" and _has_rest(text)):
                self.wrong.append(f"{text!r} of {properties}: {ours}, RocketMQ says {said}")
        return said

    def test_written(self) -> None:
        """What people write."""
        rng = random.Random(1)
        for text in WRITTEN:
            self.compare(text, rng, 10)
        self.assertEqual(self.wrong, [])

    def test_zero_with_a_fraction(self) -> None:
        """RocketMQ refuses 0.0, because Java's least double is above 0; ours compares with it."""
        for value, result in (("0", "true"), ("0.5", "false")):
            self.assertEqual(self.said("a = 0.0", {"a": value}), "refused")
            self.assertEqual(self.ours("a = 0.0", {"a": value}), result)

    def test_drawn(self) -> None:
        """Thousands of expressions, of which many are sound and many match."""
        rng = random.Random(92)
        said = [self.compare(drawn(rng), rng, 1) for _ in range(DRAWN)]
        self.assertEqual(self.wrong, [])
        for result in ("true", "false", "refused"):
            self.assertGreater(said.count(result), DRAWN // 20, result)


def _has_rest(text: str) -> bool:
    """Whether an expression ends before the end of the text, which RocketMQ does not notice."""
    for end in range(len(text) - 1, 0, -1):
        try:
            SqlFilter(text[:end])
        except SqlError:
            continue
        return True
    return False
