# -*- test-case-name: tests.base.test_option_fields -*-
"""
Fields of the classes of options: of a member, a broker, its replication, and a name server.

A value of another type is a C{TypeError}, one beyond the bounds a C{ValueError}; both name the option.

A field that is I{fixed} is no option: tests set it, and no operator.
"""

from __future__ import annotations

import attrs
from attrs.validators import ge, gt, instance_of, le

from dledger.values.local_paths import check_local_path

#: In the metadata of a field that is fixed.
FIXED = {"is_fixed": True}

#: The largest C{int} and C{long} of Java.
INT_MAX = 2**31 - 1
LONG_MAX = 2**63 - 1


def number_option(default: int, least: int = 0, most: int = LONG_MAX, *, is_fixed: bool = False) -> int:
    """A whole number from C{least} to C{most}."""
    value: int = attrs.field(default=default, validator=[instance_of(int), ge(least), le(most)],
                             metadata={"is_fixed": is_fixed})
    return value


def share_option(default: float, *, is_fixed: bool = False) -> float:
    """A part of one: more than 0, at most 1."""
    value: float = attrs.field(default=default, validator=[instance_of(float), gt(0), le(1)],
                               metadata={"is_fixed": is_fixed})
    return value


def flag_option(default: bool, *, is_fixed: bool = False) -> bool:
    """True or false."""
    value: bool = attrs.field(default=default, validator=instance_of(bool), metadata={"is_fixed": is_fixed})
    return value


def text_option(default: str = "", *, is_fixed: bool = False) -> str:
    """A text, which its class checks further."""
    value: str = attrs.field(default=default, validator=instance_of(str), metadata={"is_fixed": is_fixed})
    return value


def path_option(default: str = "") -> str:
    """A file or a directory of this machine, which its class checks further."""
    value: str = attrs.field(default=default, validator=[instance_of(str), is_local])
    return value


def is_local(_instance: object, attribute: attrs.Attribute[str], value: str) -> None:
    """The validator of a path. @raise ValueError: it is a URL."""
    check_local_path(attribute.name, value)


def is_fixed(field: attrs.Attribute[object]) -> bool:
    """Whether a field is no option."""
    return bool(field.metadata.get("is_fixed"))


def options_of(kind: type[attrs.AttrsInstance]) -> tuple[str, ...]:
    """The names of the options of a class."""
    return tuple(field.name for field in attrs.fields(kind) if not is_fixed(field))
