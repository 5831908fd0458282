# -*- test-case-name: tests.client.test_misuse,tests.base.test_sender -*-
"""The bodies that a program gives to append or to put: what is a body, and what is refused."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias, cast

#: A body as callers may give it; those that can be changed are copied at once.
BytesLike: TypeAlias = bytes | bytearray | memoryview

_BUFFERS = (bytes, bytearray, memoryview)
_BYTES = {bytes}


def as_body(body: BytesLike) -> bytes:
    """A body that nobody can change afterwards. What is not a body at all stays as it is, for L{misfit}."""
    return bytes(body) if isinstance(body, _BUFFERS) else body


def as_bodies(bodies: Sequence[BytesLike]) -> Sequence[bytes]:
    """As L{as_body}, for many. @return: C{bodies} itself if all are bytes already."""
    if type(bodies[0]) is bytes and (len(bodies) == 1 or set(map(type, bodies)) == _BYTES):
        return cast("Sequence[bytes]", bodies)
    return list(map(as_body, bodies))


def checked_bodies(
    bodies: Sequence[BytesLike], body_bytes_max: int
) -> tuple[Sequence[bytes], int, str]:
    """@return: L{as_bodies}, their bytes, and why they are refused, see L{misfit}."""
    kept = as_bodies(bodies)
    size = total_bytes(kept)
    return kept, size, misfit(kept, size, body_bytes_max)


def total_bytes(bodies: Sequence[bytes]) -> int:
    """Bytes of all bodies; 0 if one of them is not a sequence at all, which L{misfit} reports."""
    try:
        return sum(map(len, bodies))
    except TypeError:
        return 0


def misfit(bodies: Sequence[bytes], size: int, body_bytes_max: int) -> str:
    """
    The reason why these bodies are refused; empty if they are not.

    @param size: bytes of all bodies.
    """
    if len(bodies) == 1 and type(bodies[0]) is bytes and size <= body_bytes_max:
        return ""
    for kind in set(map(type, bodies)):
        if kind is not bytes:
            return f"a body must be bytes, not {kind.__name__}"
    if size > body_bytes_max and (longest := max(map(len, bodies))) > body_bytes_max:
        return f"a body has {longest} bytes; at most {body_bytes_max} can be stored"
    return ""
