# -*- test-case-name: tests.spark.test_json_fields -*-
"""
Bodies that are JSON objects, as columns: one for each field of the object, and L{RESCUED} for the rest.

Rule 1: no value is lost or changed. A column has the value itself, or is null and L{RESCUED} has the field.
A body that is no JSON object, or has a field twice, is in L{RESCUED} as a whole. Only C{null} and a missing
field are the same. (The order of fields, and blanks, are not kept.)
Rule 2: the columns follow from the bodies in their order, not from where batches and parts end: the first
value with a type makes the column, and no later value changes its type. (No kind of table can make BIGINT a
DOUBLE.) So a run after a crash writes the same rows.
Rule 3: at most L{FIELDS_MAX} columns.

C{_rescued} is JSON: an object has the fields that did not fit; a string is the body; an array of one string
is the body in Base64, where it is not UTF-8.

Knows nothing of logs, files and tables.
"""

from __future__ import annotations

import base64
import json
import re
import unicodedata
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from decimal import Decimal
from json.decoder import scanstring  # type: ignore[attr-defined]

import pyarrow as pa

#: The column of what no other column holds.
RESCUED = "_rescued"
#: Types of a field's column. C{JSON}: the text of any value; an array or an object makes such a column.
BIGINT, DOUBLE, BOOLEAN, STRING, JSON = "BIGINT", "DOUBLE", "BOOLEAN", "STRING", "JSON"
ARROW_OF: Mapping[str, pa.DataType] = {
    BIGINT: pa.int64(), DOUBLE: pa.float64(), BOOLEAN: pa.bool_(), STRING: pa.string(), JSON: pa.string(),
}
#: Columns of one export that are fields.
FIELDS_MAX = 500
#: Characters of a name that all kinds of tables, and their readers, can have.
NAME_MAX = 128
_NAME = re.compile(rf"[\w@$-]{{1,{NAME_MAX}}}")
#: Arrays and objects inside each other. (Deeper ones would depend on the stack of the caller.)
DEPTH_MAX = 64
#: Bounds of BIGINT, and of whole numbers that are exact as DOUBLE.
_LEAST, _MOST = -(2**63), 2**63 - 1
_EXACT_MAX = 2**53
#: Characters of the longest BIGINT.
_WHOLE_MAX = 20
#: A longer number is not looked at: the shortest text of no DOUBLE has as many digits.
_DIGITS_MAX = 400

_SPACES = " \t\n\r"
_BEGIN = re.compile(rf"[{_SPACES}]*\{{[{_SPACES}]*").match
_COLON = re.compile(rf"[{_SPACES}]*:[{_SPACES}]*").match
_MARK = re.compile(rf"[{_SPACES}]*([,}}])[{_SPACES}]*").match
#: Strings, the last one perhaps without its end, and brackets.
_TOKENS = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*(?:"|\\?\Z)|[\[\]{}]', re.DOTALL)


class Real(str):
    """The text of a number with a fraction or an exponent, or of a whole one that no column has as such."""

    __slots__ = ()


class Nested(str):
    """The text of an array or an object."""

    __slots__ = ()


#: A field and its value: text, number, L{Real}, L{Nested}, boolean, None.
Pair = tuple[str, object]


def _no_json(text: str) -> object:
    raise ValueError(f"{text} is not JSON")


def _whole(text: str) -> object:
    # (Python takes long ones for an attack.)
    return int(text) if len(text) <= _WHOLE_MAX else Real(text)


_FLAT = json.JSONDecoder(
    parse_float=Real, parse_int=_whole, parse_constant=_no_json, object_pairs_hook=tuple
)
#: (Numbers in nested values stay as they are: nobody needs them, and long ones are slow.)
_NESTED = json.JSONDecoder(parse_float=str, parse_int=str, parse_constant=_no_json)


def pairs_of(text: str) -> Sequence[Pair] | None:
    """The fields of an object; None: the text is no JSON object, has a field twice, or is nested too deep."""
    try:
        if text.count("{") == 1 and "[" not in text:
            found: Sequence[Pair] | None = _FLAT.decode(text)
            if type(found) is not tuple:
                return None
        else:
            found = _walked(text)
    except (ValueError, StopIteration):
        return None
    if found is None or (len(found) > 1 and len({name for name, _ in found}) < len(found)):
        return None
    return found


def _walked(text: str) -> Sequence[Pair] | None:
    begin = _BEGIN(text)
    if begin is None or _is_deep(text):
        return None
    at = begin.end()
    found: list[Pair] = []
    if text[at : at + 1] == "}":
        return None if text[at + 1 :].strip(_SPACES) else found
    mark = ","
    while mark == ",":
        colon = None
        if text[at : at + 1] == '"':
            name, name_end = scanstring(text, at + 1, True)
            colon = _COLON(text, name_end)
        if colon is None:
            return None
        begins = colon.end()
        is_nested = text[begins : begins + 1] in ("[", "{")
        value, ends = (_NESTED if is_nested else _FLAT).scan_once(text, begins)  # type: ignore[attr-defined]
        found.append((name, Nested(text[begins:ends]) if is_nested else value))
        after = _MARK(text, ends)
        if after is None:
            return None
        mark, at = after[1], after.end()
    return found if at == len(text) else None


def _is_deep(text: str) -> bool:
    if text.count("[") + text.count("{") <= DEPTH_MAX:
        return False
    depth = 0
    for match in _TOKENS.finditer(text):
        first = text[match.start()]
        if first in "[{":
            depth += 1
            if depth > DEPTH_MAX:
                return True
        elif first in "]}":
            depth -= 1
    return False


def is_text(text: str) -> bool:
    """Whether a text has a form in UTF-8: half of a surrogate pair has none."""
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def text_of(value: object) -> str:
    """A value in JSON."""
    if isinstance(value, Real | Nested):
        return value
    return json.dumps(value, ensure_ascii=isinstance(value, str) and not is_text(value))


def _bigint(value: object) -> object:
    return value if type(value) is int and _LEAST <= value <= _MOST else None


def _double(value: object) -> object:
    if type(value) is int:
        return float(value) if -_EXACT_MAX <= value <= _EXACT_MAX else None
    if type(value) is not Real or len(value) > _DIGITS_MAX:
        return None
    number = float(value)
    shortest = repr(number)
    if shortest == value:
        return number
    try:
        return number if Decimal(shortest) == Decimal(value) else None
    except ArithmeticError:
        return None


def _boolean(value: object) -> object:
    return value if type(value) is bool else None


def _string(value: object) -> object:
    return value if type(value) is str and is_text(value) else None


#: What a column of each type holds for a value; None: the value does not fit.
_FITTING: Mapping[str, Callable[[object], object]] = {
    BIGINT: _bigint, DOUBLE: _double, BOOLEAN: _boolean, STRING: _string, JSON: text_of,
}
_KIND_OF: Mapping[type, str] = {int: BIGINT, Real: DOUBLE, bool: BOOLEAN, str: STRING, Nested: JSON}


def alike(name: str) -> str:
    """The same for names that a reader may take for one."""
    return name.lower() if name.isascii() else unicodedata.normalize("NFKC", name).casefold()


def is_column_name(name: str) -> bool:
    """Whether a field of this name may be a column."""
    return _NAME.fullmatch(name) is not None and is_text(name)


class JsonFields:
    """
    The columns so far.

    @ivar kinds: the type of each field that is a column, in the order of the columns.
    """

    def __init__(self, kinds: Iterable[tuple[str, str]], reserved: Collection[str]) -> None:
        """@param reserved: names of other columns, which no field may have, in any case of letters."""
        self.kinds = dict(kinds)
        self._used = {alike(name) for name in (*reserved, RESCUED, *self.kinds)}

    @property
    def schema(self) -> pa.Schema:
        """Of L{decode}."""
        columns = [pa.field(name, ARROW_OF[kind]) for name, kind in self.kinds.items()]
        return pa.schema([pa.field(RESCUED, pa.string()), *columns])

    def decode(self, bodies: Sequence[bytes | None]) -> pa.RecordBatch:
        """The rows of bodies; from now on their columns are among L{kinds}."""
        columns: dict[str, list[object]] = {}
        rescued = [
            None if body is None else self._take(body, columns, row, len(bodies))
            for row, body in enumerate(bodies)
        ]
        arrays = [pa.array(rescued, pa.string())]
        for name, kind in self.kinds.items():
            values = columns.get(name)
            arrays.append(pa.nulls(len(bodies), ARROW_OF[kind]) if values is None
                          else pa.array(values, ARROW_OF[kind]))
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def _take(self, body: bytes, columns: dict[str, list[object]], row: int, count: int) -> str | None:
        """Give the fields of a body to their columns. @return: what is left, for L{RESCUED}."""
        try:
            text = body.decode()
        except UnicodeDecodeError:
            return json.dumps([base64.b64encode(body).decode("ascii")])
        pairs = pairs_of(text)
        if pairs is None:
            return json.dumps(text, ensure_ascii=False)
        left: list[Pair] = []
        for name, value in pairs:
            if value is None:
                continue
            kind = self.kinds.get(name)
            fitting = _FITTING[kind](value) if kind is not None else self._begun(name, value)
            if fitting is None:
                left.append((name, value))
                continue
            values = columns.get(name)
            if values is None:
                values = columns[name] = [None] * count
            values[row] = fitting
        if not left:
            return None
        return "{" + ",".join([f"{text_of(name)}:{text_of(value)}" for name, value in left]) + "}"

    def _begun(self, name: str, value: object) -> object:
        """The value in a new column; None: there is none."""
        if len(self.kinds) >= FIELDS_MAX or not is_column_name(name) or alike(name) in self._used:
            return None
        kind = _KIND_OF[type(value)]
        fitting = _FITTING[kind](value)
        if fitting is not None:
            self.kinds[name] = kind
            self._used.add(alike(name))
        return fitting
