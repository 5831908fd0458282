# -*- test-case-name: tests.client.test_arguments -*-
"""
The numbers that programs give to the client, checked once, when it is called: an index, a count, a time.

Each error names the parameter, the value, and what is allowed.
"""

from __future__ import annotations

from operator import index as as_int
from typing import Final

#: Largest index, offset and count.
INDEX_MAX: Final = (1 << 63) - 1
#: Longest time, seconds: about thirty years.
SECONDS_MAX: Final = 1e9


def whole(name: str, value: object, least: int = 0, most: int = INDEX_MAX, *, hint: str = "") -> int:
    """
    A whole number.

    @param name: of the parameter.
    @param hint: what to do instead, for the message about a number that is out of range.
    @raise TypeError: it is none (a C{bool} is none either).
    @raise ValueError: it is out of range.
    """
    try:
        if isinstance(value, bool):
            raise TypeError
        number = as_int(value)  # type: ignore[arg-type]
    except TypeError:
        raise TypeError(
            f"{name}={value!r}: write a whole number from {least} to {most}, not {type(value).__name__}"
        ) from None
    if not least <= number <= most:
        raise ValueError(
            f"{name}={number}: write a whole number from {least} to {most}" + (f"; {hint}" if hint else "")
        )
    return number


def seconds(
    name: str, value: object, *, is_zero_allowed: bool = False, most: float = SECONDS_MAX
) -> float:
    """
    A time in seconds, above 0.

    @raise TypeError: it is not a number.
    @raise ValueError: it is out of range.
    """
    try:
        if isinstance(value, bool | str | bytes):
            raise TypeError
        number = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        raise TypeError(f"{name}={value!r}: write a number of seconds, not {type(value).__name__}") from None
    if not (0 <= number <= most and (number or is_zero_allowed)):  # (A NaN is in no range.)
        bound = "from 0" if is_zero_allowed else "above 0,"
        raise ValueError(f"{name}={value!r}: write seconds, {bound} to {most:g}")
    return number


def patience(name: str, value: object) -> float | None:
    """A time to wait, in seconds: as L{seconds}, and 0 and None are allowed."""
    return None if value is None else seconds(name, value, is_zero_allowed=True)


def text(name: str, value: object) -> str:
    """A text. @raise TypeError: another type."""
    if not isinstance(value, str):
        raise TypeError(f"{name}={value!r}: write a str, not {type(value).__name__}")
    return value
