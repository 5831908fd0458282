# -*- test-case-name: tests.storage.test_archive -*-
"""
Small documents that say what files hold: JSON with a checksum, and one of form and version; and the fields in
them. An error says which field is wrong.
"""

from __future__ import annotations

import json
from hashlib import sha256
from typing import TypeVar

from protocols.wire.fastjson import JsonObject

_DIGEST_LENGTH = 64

_Value = TypeVar("_Value", int, str)


class MalformedManifest(ValueError):
    """A manifest that says what cannot be."""


class DamagedManifest(MalformedManifest):
    """A manifest without its checksum: it was cut short, or changed."""


def encode_document(form: str, version: int, name: str, content: JsonObject) -> bytes:
    """
    A manifest of this form: C{content} under C{name}, with its checksum, and one of the version. So a damaged
    version is not taken for that of a later program, which must keep these names.
    """
    document = {"format": form, "version": version, "version_sha256": _digest([form, version]),
                "sha256": _digest(content), name: content}
    return (json.dumps(document, indent=1) + "\n").encode()


def _digest(content: object) -> str:
    return sha256(json.dumps(content, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def decode_document(data: bytes, form: str, version: int, name: str) -> JsonObject:
    """
    The content of a manifest as of L{encode_document}.

    @raise DamagedManifest: it was cut short, or changed.
    @raise ValueError: it is of another form or version.
    """
    try:
        document = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise DamagedManifest(f"no JSON: {error}") from None
    if not isinstance(document, dict) or document.get("format") != form:
        article = "an" if name[0] == "a" else "a"
        raise DamagedManifest(f"no manifest of {article} {name}: it has no \"format\": \"{form}\"")
    found = document.get("version")
    if document.get("version_sha256") != _digest([form, found]):
        raise DamagedManifest(f"damaged: version {found!r} does not fit its checksum")
    if found != version:
        if type(found) is not int or found < 1:
            raise DamagedManifest(f"damaged: version {found!r}, but this program reads version {version}")
        raise MalformedManifest(f"version {found}, but this program reads version {version}")
    content = document.get(name)
    unknown = document.keys() - {"format", "version", "version_sha256", "sha256", name}
    if unknown or not isinstance(content, dict) or document.get("sha256") != _digest(content):
        raise DamagedManifest("damaged: its checksum is another one")
    return content


def field_in(content: JsonObject, name: str, kind: type[_Value]) -> _Value:
    """@raise ValueError: it is of another type."""
    value = content.get(name)
    if type(value) is not kind:
        raise MalformedManifest(f"{name} is {value!r}")
    return value


def place_in(content: JsonObject, name: str, most: int) -> int:
    """@raise ValueError: it is not a number from 0 to C{most}."""
    value = field_in(content, name, int)
    if not 0 <= value <= most:
        raise MalformedManifest(f"{name} is {value}")
    return value


def digest_in(content: JsonObject, name: str) -> str:
    """@raise ValueError: it cannot be a SHA-256."""
    text = field_in(content, name, str)
    if len(text) != _DIGEST_LENGTH:
        raise MalformedManifest(f"{name} is {text!r}")
    return text
