# -*- test-case-name: tests.wire.test_documents -*-
"""
Fields of JSON documents, with their bounds; every error names the field and shows its value.

L{protocols.wire.fastjson.read_object} reads the document itself.
"""

from __future__ import annotations

from collections.abc import Mapping

from protocols.wire.errors import BodyError
from protocols.wire.fastjson import LONG_BITS, JsonObject, shown, to_int

#: Most characters of a name: of a topic, a group, a client, a broker.
NAME_CHARACTERS_MAX = 255


def to_object(value: object, name: str) -> JsonObject:
    """@raise BodyError: C{value} is not an object."""
    if not isinstance(value, dict):
        raise BodyError(f"{name}={shown(value)} is not an object")
    return value


def name_in(document: Mapping[str, object], name: str, default: str | None = None) -> str:
    """
    A name.

    @param default: if it is missing; None: it must be there.
    @raise BodyError: it is not a text of 1 to L{NAME_CHARACTERS_MAX} characters.
    """
    value = document.get(name)
    if value is None and default is not None:
        return default
    if not isinstance(value, str) or not value or len(value) > NAME_CHARACTERS_MAX:
        raise BodyError(f"{name}={shown(value)} must be 1 to {NAME_CHARACTERS_MAX} characters")
    return value


def words_in(document: Mapping[str, object], name: str) -> str:
    """A text for people; empty if there is none."""
    value = document.get(name)
    return value if isinstance(value, str) else ""


def long_in(document: Mapping[str, object], name: str, default: int = -1) -> int:
    """A number of 64 bits. @param default: if it is missing. @raise BodyError: it is not one."""
    number = to_int(document.get(name), LONG_BITS, name)
    return default if number is None else number


def object_in(document: Mapping[str, object], name: str) -> JsonObject:
    """An object; empty if it is missing. @raise BodyError: it is not one."""
    value = document.get(name)
    return {} if value is None else to_object(value, name)


def list_in(document: Mapping[str, object], name: str, most: int | None = None) -> list[object]:
    """
    An array; empty if it is missing.

    @param most: bound of its items; None: that of the document.
    @raise BodyError: it is not one, or longer.
    """
    value = document.get(name)
    if value is None:
        return []
    if not isinstance(value, list):
        raise BodyError(f"{name}={shown(value)} is not an array")
    if most is not None and len(value) > most:
        raise BodyError(f"{name} has {len(value)} items, {most} are allowed")
    return value


def objects_in(document: Mapping[str, object], name: str, most: int) -> list[JsonObject]:
    """An array of objects, see L{list_in}. @raise BodyError: an item is not an object."""
    return [to_object(item, f"item of {name}") for item in list_in(document, name, most)]
