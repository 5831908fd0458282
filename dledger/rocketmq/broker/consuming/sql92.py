# -*- test-case-name: tests.broker.consuming.test_sql92 -*-
"""
Expressions over the properties of messages, in the part of SQL 92 that RocketMQ knows::

    a BETWEEN 0 AND 9 AND region IN ('eu', 'us') AND NOT (urgent IS NULL) AND name CONTAINS 'x'

An expression is compiled once; its result for a message is true, false or unknown, and only a true one
matches. A property is a text; compared with a number or a truth value it is converted, and the message does
not match if that fails.

Rule 1: grammar and results are RocketMQ's, also where they surprise: C{NOT} binds closer than C{=}, and C{IN}
takes texts alone. One exception: text after the expression is refused here; RocketMQ ignores it.
Rule 2: length and depth are bounded. No expression ends or blocks the broker.

Source: SelectorParser.jj, ComparisonExpression, LogicExpression, UnaryExpression (rocketmq-filter 5.3.3).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import NamedTuple, NoReturn

from protocols.wire.fastjson import shown

#: The longest expression, in characters, and the deepest, in operators.
SQL_CHARACTERS_MAX = 8192
DEPTH_MAX = 64
#: The longest text that is taken for a number, in characters.
TEXT_MAX = 400
#: Compiled expressions that are kept.
_KEPT = 256

_INT_MAX, _LONG_MAX = (1 << 31) - 1, (1 << 63) - 1

#: A value of an expression; None: unknown.
SqlValue = bool | int | float | str | None
Properties = Mapping[str, str]
_Evaluate = Callable[[Properties], SqlValue]

_TOKEN = re.compile(
    r"""(?P<skip>[ \t\n\r\f]+|--[^\n\r]*(?:\r\n|\n|\r)|/\*.*?\*/)
    |(?P<float>[0-9]+\.[0-9]*(?:[eE][+-]?[0-9]+)?|\.[0-9]+(?:[eE][+-]?[0-9]+)?|[0-9]+[eE][+-]?[0-9]+)
    |(?P<int>0|[1-9][0-9]*[lL]?)
    |(?P<text>'(?:''|[^'])*')
    |(?P<word>[A-Za-z_$][A-Za-z0-9_$]*)
    |(?P<sign><>|>=|<=|[=<>()+,-])""",
    re.VERBOSE | re.DOTALL,
)
_WORDS = frozenset(
    "NOT AND OR BETWEEN IN TRUE FALSE NULL IS CONTAINS STARTSWITH ENDSWITH".split()
)
#: Java's texts of numbers: Integer.valueOf, Double.valueOf.
_JAVA_SPACES = "".join(map(chr, range(33)))
_JAVA_INT = re.compile(r"[+-]?[0-9]+", re.ASCII)
_JAVA_FLOAT = re.compile(
    r"[+-]?(NaN|Infinity|([0-9]+(?:\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?[fFdD]?)", re.ASCII
)


class SqlError(ValueError):
    """The text is not an expression; says where, and what would be allowed."""


class _Incomparable(Exception):
    """The values of a message cannot be compared, so it does not match."""


class _Long(int):
    """A number of Java's type long: texts are converted to it within 64 bits, to other integers in 32."""


class _Node(NamedTuple):
    """
    @ivar kind: C{constant}, C{property}, C{boolean}, or C{number} for a negation.
    @ivar value: of a constant.
    @ivar depth: number of nodes below each other.
    """

    kind: str
    evaluate: _Evaluate
    value: SqlValue = None
    depth: int = 1

    @property
    def is_boolean(self) -> bool:
        """Whether its value is a truth value or unknown, whatever the message."""
        return self.kind == "boolean" or (self.kind == "constant" and isinstance(self.value, bool | None))


class SqlFilter:
    """A compiled expression. C{text}: as it was given."""

    def __init__(self, text: str) -> None:
        """@raise SqlError: it is none."""
        self.text = text
        self._evaluate = _Parser(text).parse()

    def matches(self, properties: Properties) -> bool:
        """Whether the expression is true for a message."""
        try:
            return self._evaluate(properties) is True
        except _Incomparable:
            return False


@lru_cache(maxsize=_KEPT)
def compiled(text: str) -> SqlFilter | SqlError:
    """The expression, or why it is none."""
    try:
        return SqlFilter(text)
    except SqlError as error:
        return error


class _Parser:
    """Recursive descent over the tokens: kind, text and place of each."""

    def __init__(self, text: str) -> None:
        if len(text) > SQL_CHARACTERS_MAX:
            raise SqlError(f"an expression of {len(text)} characters; {SQL_CHARACTERS_MAX} are allowed")
        self._tokens = _tokens_of(text)
        self._at = 0
        self._depth = 0

    def parse(self) -> _Evaluate:
        """The whole text."""
        node = self._boolean(self._or())
        if self._kind != "end":
            self._refuse("AND, OR or the end of the expression")
        return node.evaluate

    # -- tokens ----------------------------------------------------------------------------------

    @property
    def _kind(self) -> str:
        return self._tokens[self._at][0]

    def _next(self) -> str:
        text = self._tokens[self._at][1]
        self._at += 1
        return text

    def _takes(self, *words: str) -> bool:
        """Whether these reserved words or signs come next; then they are passed."""
        following = [token[0] for token in self._tokens[self._at : self._at + len(words)]]
        if following != list(words):
            return False
        self._at += len(words)
        return True

    def _expect(self, kind: str, what: str) -> str:
        if self._kind != kind:
            self._refuse(what)
        return self._next()

    def _refuse(self, wanted: str) -> NoReturn:
        _, text, place = self._tokens[self._at]
        found = shown(text) if text else "the end"
        raise SqlError(f"at character {place + 1}: found {found}, expected {wanted}")

    # -- grammar ---------------------------------------------------------------------------------

    def _boolean(self, node: _Node) -> _Node:
        if node.is_boolean:
            return node
        if node.kind == "property":
            return _made("boolean", lambda found: None if node.evaluate(found) is None else False, node)
        raise SqlError(f"{_described(node)} is neither true nor false: compare it with something")

    def _or(self) -> _Node:
        nodes = [self._and()]
        while self._takes("OR"):
            nodes.append(self._and())
        return nodes[0] if len(nodes) == 1 else _combined([self._boolean(one) for one in nodes], True)

    def _and(self) -> _Node:
        nodes = [self._equality()]
        while self._takes("AND"):
            nodes.append(self._equality())
        return nodes[0] if len(nodes) == 1 else _combined([self._boolean(one) for one in nodes], False)

    def _equality(self) -> _Node:
        left = self._comparison()
        while True:
            if self._takes("="):
                left = _equal(left, self._comparison())
            elif self._takes("<>"):
                left = _negated(_equal(left, self._comparison()))
            elif self._takes("IS", "NULL"):
                left = _is_null(left)
            elif self._takes("IS", "NOT", "NULL"):
                left = _negated(_is_null(left))
            elif self._kind == "IS":
                self._next()
                self._refuse("NULL or NOT NULL")
            else:
                return left

    def _comparison(self) -> _Node:
        left = self._unary()
        while True:
            place = self._at
            is_not = self._takes("NOT")
            if not is_not and self._kind in _ORDERS:
                left = _ordered(self._next(), left, self._unary())
            elif self._takes("BETWEEN"):
                low = self._unary()
                self._expect("AND", "AND, and the upper bound of BETWEEN")
                left = _between(left, low, self._unary(), is_not=is_not)
            elif self._takes("IN"):
                left = _one_of(left, self._texts(), is_not=is_not)
            elif self._kind in _SEARCHES:
                word = self._next()
                left = _search(word, left, self._text(), is_not=is_not)
            else:
                self._at = place
                return left

    def _texts(self) -> frozenset[str]:
        self._expect("(", "( and texts in quotes")
        texts = {self._text()}
        while self._takes(","):
            texts.add(self._text())
        self._expect(")", ", or )")
        return frozenset(texts)

    def _text(self) -> str:
        return self._expect("text", "a text in single quotes")

    def _unary(self) -> _Node:
        self._depth += 1
        _check_depth(self._depth)
        if self._takes("+"):
            node = self._unary()
        elif self._takes("-"):
            node = _negative(self._unary())
        elif self._takes("NOT"):
            node = _negated(self._boolean(self._unary()))
        else:
            node = self._primary()
        self._depth -= 1
        return node

    def _primary(self) -> _Node:
        kind = self._kind
        if kind == "(":
            self._next()
            node = self._or()
            self._expect(")", ")")
            return node
        if kind == "word":
            name = self._next()
            return _Node("property", lambda found: found.get(name))
        if kind in ("TRUE", "FALSE", "NULL"):
            self._next()
            return _constant({"TRUE": True, "FALSE": False, "NULL": None}[kind])
        if kind == "text":
            return _constant(self._next())
        if kind == "int":
            digits = self._next().rstrip("lL")
            number = int(digits) if len(digits) < 20 else _LONG_MAX + 1
            if number > _LONG_MAX:
                self._at -= 1
                self._refuse(f"a number up to {_LONG_MAX}")
            return _constant(number if number <= _INT_MAX else _Long(number))
        if kind == "float":
            value = float(self._next())
            # Java's parser refuses 0.0, too, because its least double is above 0.
            if value > 1.7976931348623157e308:
                self._at -= 1
                self._refuse("a number up to 1.7976931348623157E308")
            return _constant(value)
        self._refuse("a property, a number, a text in single quotes, TRUE, FALSE, NULL, NOT or (")


def _tokens_of(text: str) -> list[tuple[str, str, int]]:
    found = []
    at = 0
    while at < len(text):
        token = _TOKEN.match(text, at)
        if token is None:
            found_text = shown(text[at : at + 20])
            raise SqlError(f"at character {at + 1}: {found_text} begins no word, number or text")
        kind, word = str(token.lastgroup), token.group()
        if kind == "text":
            found.append((kind, word[1:-1].replace("''", "'"), at))
        elif kind == "sign":
            found.append((word, word, at))
        elif kind == "word" and word.upper() in _WORDS:
            found.append((word.upper(), word, at))
        elif kind != "skip":
            found.append((kind, word, at))
        at = token.end()
    found.append(("end", "", at))
    return found


# -- nodes ---------------------------------------------------------------------------------------------


def _described(node: _Node) -> str:
    return "a number" if node.kind == "number" else shown(node.value)


def _check_depth(depth: int) -> None:
    if depth > DEPTH_MAX:
        raise SqlError(f"the expression is nested more than {DEPTH_MAX} deep")


def _made(kind: str, evaluate: _Evaluate, *parts: _Node) -> _Node:
    """A node above others. @raise SqlError: there are too many below each other."""
    depth = 1 + max(part.depth for part in parts)
    _check_depth(depth)
    return _Node(kind, evaluate, None, depth)


def _constant(value: SqlValue) -> _Node:
    return _Node("constant", lambda _: value, value)


def _combined(nodes: list[_Node], decisive: bool) -> _Node:
    """OR, of which one true part decides, or AND, of which one false part does."""
    parts = [node.evaluate for node in nodes]

    def evaluate(found: Properties) -> SqlValue:
        result: SqlValue = not decisive
        for part in parts:
            value = part(found)
            if value is decisive:
                return decisive
            if value is None:
                result = None
        return result

    return _made("boolean", evaluate, *nodes)


def _negated(node: _Node) -> _Node:
    def evaluate(found: Properties) -> SqlValue:
        value = node.evaluate(found)
        return None if value is None else not value

    return _made("boolean", evaluate, node)


def _negative(node: _Node) -> _Node:
    def evaluate(found: Properties) -> SqlValue:
        value = node.evaluate(found)
        if value is None or isinstance(value, bool | str):
            return None
        return _Long(-value) if isinstance(value, _Long) else -value

    return _made("number", evaluate, node)


def _is_null(node: _Node) -> _Node:
    return _made("boolean", lambda found: node.evaluate(found) is None, node)


def _equal(left: _Node, right: _Node) -> _Node:
    for node in (left, right):
        if node.kind == "constant" and node.value is None:
            raise SqlError("NULL cannot be compared: write IS NULL or IS NOT NULL")
    if left.kind == right.kind == "constant" and left.is_boolean and not right.is_boolean:
        raise SqlError(f"{shown(left.value)} cannot be compared with {shown(right.value)}")

    def evaluate(found: Properties) -> SqlValue:
        one, other = left.evaluate(found), right.evaluate(found)
        if one is None or other is None:
            return True if one is other else None if one is None else False
        return _compare(one, other) == 0

    return _made("boolean", evaluate, left, right)


_ORDERS: Mapping[str, Callable[[int], bool]] = {
    ">": lambda answer: answer > 0, ">=": lambda answer: answer >= 0,
    "<": lambda answer: answer < 0, "<=": lambda answer: answer <= 0,
}


def _ordered(sign: str, left: _Node, right: _Node) -> _Node:
    for node in (left, right):
        is_text = node.kind == "constant" and isinstance(node.value, str)
        if node.is_boolean or is_text:
            what = shown(node.value) if node.kind == "constant" else "a condition"
            raise SqlError(f"{what} has no order: {sign} compares numbers, and properties that hold numbers")
    decides = _ORDERS[sign]

    def evaluate(found: Properties) -> SqlValue:
        one = left.evaluate(found)
        if one is None:
            return None
        other = right.evaluate(found)
        if other is None:
            return None
        if isinstance(one, str) and isinstance(other, str):
            one, other = _java_float(one), _java_float(other)
        return decides(_compare(one, other))

    return _made("boolean", evaluate, left, right)


def _between(node: _Node, low: _Node, high: _Node, *, is_not: bool) -> _Node:
    if is_not:
        return _combined([_ordered("<", node, low), _ordered(">", node, high)], True)
    if low.kind == high.kind == "constant":
        if low.value is None or high.value is None:
            raise SqlError("NULL is not a bound of BETWEEN")
        try:
            is_empty = _compare(high.value, low.value) < 0
        except _Incomparable as error:
            raise SqlError(f"{shown(low.value)} and {shown(high.value)} are no bounds of BETWEEN") from error
        if is_empty:
            raise SqlError(f"BETWEEN {shown(low.value)} AND {shown(high.value)}: the bounds are reversed")
    return _combined([_ordered(">=", node, low), _ordered("<=", node, high)], False)


def _one_of(node: _Node, texts: frozenset[str], *, is_not: bool) -> _Node:
    if node.kind != "property":
        raise SqlError("IN needs a property before it")

    def evaluate(found: Properties) -> SqlValue:
        value = node.evaluate(found)
        return None if value is None else (value in texts) is not is_not

    return _made("boolean", evaluate, node)


_SEARCHES: Mapping[str, Callable[[str, str], bool]] = {
    "CONTAINS": str.__contains__, "STARTSWITH": str.startswith, "ENDSWITH": str.endswith,
}


def _search(word: str, node: _Node, text: str, *, is_not: bool) -> _Node:
    holds = _SEARCHES[word]

    def evaluate(found: Properties) -> SqlValue:
        value = node.evaluate(found)
        if not text or not isinstance(value, str):
            return False
        return holds(value, text) is not is_not

    return _made("boolean", evaluate, node)


# -- values --------------------------------------------------------------------------------------------


def _compare(one: bool | int | float | str, other: bool | int | float | str) -> int:
    """
    Negative, 0 or positive, as Java's comparison of the two.

    @raise _Incomparable: Java's fails.
    """
    if isinstance(one, str):
        if isinstance(other, str):
            return (one > other) - (one < other)
        return _compare_like(_converted(one, other), other)
    if not isinstance(other, str):
        return _compare_like(one, other)
    if isinstance(one, bool):
        raise _Incomparable  # a failed cast in Java
    return _compare_like(one, _converted(other, one))


def _compare_like(one: bool | int | float, other: bool | int | float) -> int:
    if isinstance(one, bool) is not isinstance(other, bool):
        return -1
    if isinstance(one, float) or isinstance(other, float):
        one, other = float(one), float(other)
        if one != one or other != other:  # Java: NaN is equal to itself, and above all numbers
            return (one != one) - (other != other)
    return (one > other) - (one < other)


def _converted(text: str, like: bool | int | float) -> bool | int | float:
    if isinstance(like, bool):
        return text.lower() == "true"
    if isinstance(like, float):
        return _java_float(text)
    most = _LONG_MAX if isinstance(like, _Long) else _INT_MAX
    if len(text) > TEXT_MAX or not _JAVA_INT.fullmatch(text) or not -most - 1 <= int(text) <= most:
        raise _Incomparable
    return int(text)


def _java_float(text: str) -> float:
    word = text[: TEXT_MAX + 1].strip(_JAVA_SPACES)
    if len(text) > TEXT_MAX or not _JAVA_FLOAT.fullmatch(word):
        raise _Incomparable
    return float(word.rstrip("fFdD") if word[-1:] in "fFdD" else word)
