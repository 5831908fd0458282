# -*- test-case-name: tests.wire.test_entry -*-
"""
Derives a C{struct.Struct} and a numpy dtype from a construct declaration of a fixed-size header.

construct is the specification. On hot paths C{struct} packs the headers; its format is derived here
from the declaration, so that the two cannot drift apart.
"""

from __future__ import annotations

import struct

from construct import FormatField, Renamed, Struct


def _format_of(declaration: Struct) -> list[tuple[str, str]]:
    """Name and C{struct} character of every field."""
    found = []
    for subcon in declaration.subcons:
        field = subcon.subcon if isinstance(subcon, Renamed) else subcon
        if not isinstance(field, FormatField) or not field.fmtstr.startswith(">"):
            raise TypeError(f"{subcon!r} is not a big-endian number of fixed size")
        found.append((subcon.name, field.fmtstr[1:]))
    return found


def struct_of(declaration: Struct) -> struct.Struct:
    """
    The C{struct.Struct} of a declaration whose fields are all big-endian C{FormatField}s.

    @raise TypeError: another kind of field, or another byte order.
    """
    derived = struct.Struct(">" + "".join(character for _, character in _format_of(declaration)))
    assert derived.size == declaration.sizeof()
    return derived


def struct_of_some(declaration: Struct, *names: str) -> struct.Struct:
    """
    As L{struct_of}, of the same size, but only the fields of these names are unpacked, in the order in which
    they stand.

    @raise TypeError: as L{struct_of}.
    """
    fields = _format_of(declaration)
    assert set(names) <= {name for name, _ in fields}, names
    parts = [
        character if name in names else f"{struct.calcsize('>' + character)}x" for name, character in fields
    ]
    return struct.Struct(">" + "".join(parts))


def dtype_of(declaration: Struct) -> list[tuple[str, str]]:
    """
    The numpy dtype of a declaration, as the list that C{numpy.dtype} takes (without importing numpy).
    """
    kinds = {"b": "i1", "B": "u1", "h": ">i2", "H": ">u2", "i": ">i4", "l": ">i4", "I": ">u4",
             "L": ">u4", "q": ">i8", "Q": ">u8"}
    struct_of(declaration)
    return [(subcon.name, kinds[subcon.subcon.fmtstr[1:]]) for subcon in declaration.subcons]
