# -*- test-case-name: tests.base.test_option_values -*-
"""
Names and values of options as people write them, to those of an L{attrs} class.

An option has our name, in snake_case, and may have others: the same in camelCase, and those of a table. Its
default says which type it has.

Knows nothing of any option.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Mapping

_HUMP = re.compile(r"(?<=[a-z0-9])([A-Z])")


def our_name(name: str, aliases: Mapping[str, str], known: Collection[str]) -> str:
    """
    Our name of an option in any spelling. If nobody knows it, it is not in C{known}: see L{unknown_option}.

    @param aliases: our names by others that differ from camelCase.
    """
    return aliases.get(name) or (name if name in known else _HUMP.sub(r"_\1", name).lower())


def unknown_option(name: str, target: str, known: Collection[str]) -> ValueError:
    """
    What to say of a name that is none, with the nearest that is.

    @param target: what L{our_name} made of it.
    """
    near = difflib.get_close_matches(target, known, n=1)
    return ValueError(f"unknown option {name!r}" + (f"; did you mean {near[0]!r}?" if near else ""))


def converted(name: str, value: object, default: object) -> object:
    """
    Text to the type of the default, and whole numbers to fractions where those are wanted; all else as it is.

    @param default: an option's, whatever it has if it must be given: then text stays text.
    @raise ValueError: text that is no truth, or no number, where one is wanted.
    """
    if not isinstance(value, str):
        return float(value) if isinstance(default, float) and isinstance(value, int) else value
    if isinstance(default, bool):
        if value.lower() not in ("true", "false"):
            raise ValueError(f"{name}={value!r}: write true or false")
        return value.lower() == "true"
    try:
        if isinstance(default, int):
            return int(value)
        if isinstance(default, float):
            return float(value)
    except ValueError:
        raise ValueError(f"{name}={value!r}: a number is wanted") from None
    return value


def listed(text: str) -> tuple[str, ...]:
    """The parts of C{a;b}, without the blanks around them and without empty ones."""
    return tuple(part.strip() for part in text.split(";") if part.strip())
