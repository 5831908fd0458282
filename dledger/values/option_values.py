# -*- test-case-name: tests.base.test_option_values -*-
"""
Converts names and values of options from text to those of an C{attrs} class.

An option has a name in snake_case; it may also be written in camelCase, or under an alias from a table. The
type of its default is the type of the option.

A program that runs can report the value of each option, and where it comes from: L{Setting}.

Knows no particular option.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TypeVar

import attrs

#: Types of options, and the words for them.
_KINDS = ((bool, "true or false"), (int, "a whole number"), (float, "a number"), (str, "text"))
_HUMP = re.compile(r"(?<=[a-z0-9])([A-Z])")


_T = TypeVar("_T")
_AttrsT = TypeVar("_AttrsT", bound=attrs.AttrsInstance)

#: The place of a value that nobody gave.
DEFAULT = "default"


@attrs.frozen(kw_only=True)
class Setting:
    """
    An option in force.

    @ivar value: after conversion; paths only of what is secret.
    @ivar origin: where it was given, such as C{file}, or C{default}.
    """

    name: str
    value: object
    origin: str


def settings_of(
    values: Mapping[str, object], places: Mapping[str, Mapping[str, object]], plain: Callable[[str], str]
) -> tuple[Setting, ...]:
    """
    The options in force, each with its place.

    @param values: option to the value in force.
    @param places: place to the options given there, in any spelling; the first place that has one counts.
    @param plain: maps every spelling of an option to the same name.
    """
    names = {place: {plain(name) for name in given} for place, given in places.items()}
    return tuple(
        Setting(
            name=name, value=value,
            origin=next((place for place, found in names.items() if plain(name) in found), DEFAULT),
        )
        for name, value in values.items()
    )


def findings_of(
    make: type[attrs.AttrsInstance], values: Mapping[str, object], unread: Collection[str] = ()
) -> list[str]:
    """
    Everything that the converters and validators of a class have against values: attrs itself ends at the
    first. Of one option, the first objection.

    @param values: for the fields of C{make}.
    @param unread: options whose values are not among them, as they are wrong: what only follows from their
        absence is left out.
    """
    try:
        make(**values)
    except (ValueError, TypeError):
        pass
    else:
        return []
    values, wrong, found = dict(values), set(unread), []
    fields = attrs.fields(make)
    for field in fields:
        convert: Callable[[object], object] | None = field.converter
        try:
            if convert is not None and field.name in values:
                convert(values[field.name])
        except (ValueError, TypeError) as error:
            found.append(str(error))
            wrong.add(field.name)
            del values[field.name]
    with attrs.validators.disabled():
        made = make(**values)
    for field in fields:
        try:
            if field.validator is not None:
                field.validator(made, field, getattr(made, field.name))
        except (ValueError, TypeError) as error:
            text = str(error.args[0])  # a validator's error has more arguments, for programs
            if not any(name in text for name in wrong):
                found.append(text)
    return found


def made_of(make: Callable[..., _T], values: Mapping[str, object]) -> _T:
    """C{make}, called with values by name; its converters and validators judge them, not a type checker."""
    return make(**values)


def with_values(made: _AttrsT, values: Mapping[str, object]) -> _AttrsT:
    """A copy of C{made} with other values of some fields; see L{made_of}."""
    evolve: Callable[..., _AttrsT] = attrs.evolve
    return evolve(made, **values)


def raise_findings(findings: Sequence[str]) -> None:
    """@raise ValueError: there are findings; one line each."""
    if findings:
        raise ValueError("\n".join(findings))


def our_name(name: str, aliases: Mapping[str, str], known: Collection[str]) -> str:
    """
    Our name of an option in any spelling. The name of an unknown option is not in C{known}: see
    L{unknown_option}.

    @param aliases: alias to our name, for spellings other than camelCase.
    """
    return aliases.get(name) or (name if name in known else _HUMP.sub(r"_\1", name).lower())


def unknown_option(name: str, target: str, known: Collection[str]) -> ValueError:
    """
    The error for an unknown option name; its text names the nearest known one.

    @param target: result of L{our_name} for C{name}.
    """
    near = difflib.get_close_matches(target, known, n=1)
    return ValueError(f"unknown option {name!r}" + (f"; did you mean {near[0]!r}?" if near else ""))


def converted(name: str, value: object, default: object) -> object:
    """
    Convert text to the type of the default, and an int to a float if the default is one; other values
    stay unchanged.

    @param default: default of the option. If it is not a bool, int or float, text stays text.
    @raise ValueError: the option is a bool or a number, and the text is not.
    """
    if not isinstance(value, str):
        return float(value) if isinstance(default, float) and isinstance(value, int) else value
    if isinstance(default, bool):
        if value.lower() not in ("true", "false"):
            raise ValueError(f"{name}={value!r}: write true or false")
        return value.lower() == "true"
    if isinstance(default, (int, float)):
        kind = "a whole number" if isinstance(default, int) else "a number"
        try:
            return type(default)(value)
        except ValueError:
            raise ValueError(f"{name}={value!r}: write {kind}") from None
    return value


def check_type(name: str, value: object, default: object) -> None:
    """
    Compare the type of a value with that of its option's default.

    @raise ValueError: the types differ; the text names the needed one.
    """
    for kind, needed in _KINDS:
        if isinstance(default, kind):
            fits = isinstance(value, kind) and (kind is bool or not isinstance(value, bool))
            if not fits:
                raise ValueError(f"{name}={value!r}: write {needed}")
            return


def listed(text: str) -> tuple[str, ...]:
    """The parts of C{a;b}, without surrounding blanks and without empty parts."""
    return tuple(part.strip() for part in text.split(";") if part.strip())


def read_properties(text: str) -> dict[str, str]:
    """
    Read lines of C{name=value}, RocketMQ's format; C{#} and C{!} begin comments.

    @raise ValueError: a line has no C{=}, or a name occurs twice.
    """
    found: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), 1):
        line = line.strip()
        if not line or line[0] in "#!":
            continue
        name, equals, value = line.partition("=")
        name = name.strip()
        if not equals or not name:
            raise ValueError(f"line {number}: {line!r} is not name=value")
        if name in found:
            raise ValueError(f"line {number}: {name} is given twice")
        found[name] = value.strip()
    return found
