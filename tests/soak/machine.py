# -*- test-case-name: tests.hostile.test_soak -*-
"""
The state machine of a soak: a digest of all entries of programs in their order, which shows one that is left
out, or applied twice.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from hashlib import sha256

from dledger import Entry
from dledger.machine import StateMachine

_BEGIN = sha256().digest()


def digest_after(digest: bytes, index: int, body: bytes) -> bytes:
    """The digest after one more entry."""
    return sha256(digest + b"%d:" % index + body).digest()


def states_of(programs: Mapping[int, bytes]) -> Iterator[tuple[int, bytes]]:
    """The answers of L{Digests} after each entry. @param programs: bodies by index, in order."""
    digest = _BEGIN
    for index, body in programs.items():
        if body:
            digest = digest_after(digest, index, body)
            yield index, _answer(index, digest)


def _answer(index: int, digest: bytes) -> bytes:
    return b"%d:%s" % (index, digest.hex().encode())


class Digests(StateMachine):
    """A result, and the answer to every query: index of the last entry, and the digest of all."""

    name = "soak"

    def __init__(self) -> None:
        self._index, self._digest = -1, _BEGIN

    def apply(self, entries: Sequence[Entry]) -> Iterator[bytes]:
        """See L{StateMachine.apply}."""
        for entry in entries:
            self._index, self._digest = entry.index, digest_after(self._digest, entry.index, entry.body)
            yield _answer(self._index, self._digest)

    def query(self, request: bytes) -> bytes:
        """See L{StateMachine.query}."""
        return _answer(self._index, self._digest)

    def snapshot(self) -> Iterable[bytes]:
        """See L{StateMachine.snapshot}."""
        return [b"%d" % self._index, self._digest]

    def digest(self) -> bytes:
        """See L{StateMachine.digest}."""
        return self._digest

    def restore(self, chunks: Iterable[bytes]) -> None:
        """See L{StateMachine.restore}."""
        index, self._digest = chunks
        self._index = int(index)
