# -*- test-case-name: tests.spark.test_options -*-
"""Values of options, from their text. Each error names the option, the value, and what is allowed."""

from __future__ import annotations

import json
import re
from collections.abc import Callable

from dledger.base.time_text import moment_ms
from protocols.wire.fastjson import JsonObject
from protocols.wire.ledger.readers import reader_name_problem

#: Allowed in C{startingOffsets} and C{endingOffsets} besides numbers.
EARLIEST, LATEST = "earliest", "latest"



class OptionError(ValueError):
    """An option does not exist or makes no sense; the message says what is allowed."""


def as_text(name: str, value: str) -> str:
    """A text that is not empty, without blanks at its ends."""
    if not value.strip():
        raise OptionError(f"option {name} is empty")
    return value.strip()


def as_reader_name(name: str, value: str) -> str:
    """The name of a named reader."""
    problem = reader_name_problem(value, f"option {name}, the name of a reader,")
    if problem:
        raise OptionError(problem)
    return value


def as_texts(name: str, value: str) -> tuple[str, ...]:
    """Texts separated by commas."""
    found = tuple(one.strip() for one in value.split(","))
    if not all(found):
        raise OptionError(f"option {name}={value!r}: names separated by commas are allowed")
    return found


def as_flag(name: str, value: str) -> bool:
    """C{true} or C{false}, in any case."""
    lower = value.strip().lower()
    if lower not in ("true", "false"):
        raise OptionError(f"option {name}={value!r}: true or false is allowed")
    return lower == "true"


def whole_number(least: int, most: int) -> Callable[[str, str], int]:
    """A reader of whole numbers from C{least} to C{most}."""
    def read(name: str, value: str) -> int:
        try:
            number = int(value.strip())
        except ValueError:
            raise OptionError(f"option {name}={value!r} is not a whole number") from None
        if not least <= number <= most:
            raise OptionError(f"option {name}={number} is outside {least}..{most}")
        return number

    return read


_UNITS_MS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000}


def as_duration_ms(name: str, value: str) -> int:
    """Milliseconds."""
    found = re.fullmatch(r"\s*(\d{1,9})\s*(ms|s|m|h)\s*", value.lower(), re.ASCII)
    if found is None:
        raise OptionError(f"option {name}={value!r}: a number and its unit are allowed: "
                          f"{', '.join(f'5{unit}' for unit in _UNITS_MS)}")
    return int(found[1]) * _UNITS_MS[found[2]]


def as_moment_ms(name: str, value: str) -> int:
    """Milliseconds since 1970."""
    try:
        return moment_ms(value.strip())
    except ValueError as error:
        raise OptionError(f"option {name}: {error}") from None


def as_facts(name: str, value: str) -> JsonObject:
    """An object of JSON. Its values may be secrets, so no error shows them."""
    try:
        found = json.loads(value)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise OptionError(f"option {name} is not an object of JSON, such as "
                          '{"endpoint_url": "http://10.0.0.9:9000"}')
    return found


def one_of(*allowed: str) -> Callable[[str, str], str]:
    """A reader of one of some words, in any case."""
    def read(name: str, value: str) -> str:
        lower = value.strip().lower()
        if lower not in allowed:
            raise OptionError(f"option {name}={value!r}: allowed are {', '.join(allowed)}")
        return lower

    return read


def as_offset(name: str, value: str) -> str | int | dict[str, int]:
    """C{earliest}, C{latest}, a number, or C{{"group": number}}."""
    text = value.strip()
    if text.lower() in (EARLIEST, LATEST):
        return text.lower()
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    if isinstance(found, int) and not isinstance(found, bool) and found >= 0:
        return found
    if isinstance(found, dict) and len(found) == 1:
        (number,) = found.values()
        if isinstance(number, int) and not isinstance(number, bool) and number >= 0:
            return found
    raise OptionError(
        f"option {name}={value!r}: allowed are {EARLIEST}, {LATEST}, a number from 0 on, or "
        '{"group": number}'
    )
