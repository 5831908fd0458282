# -*- test-case-name: tests.machine.test_runner -*-
"""Small state machines."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from dledger.client.values import Entry
from dledger.machine.state_machine import StateMachine


class Journal(StateMachine):
    """
    Remembers the bodies that it applied. A result is C{index:body}, a query's answer all bodies.

    @ivar fails: called with each entry before it is applied.
    """

    name = "journal"
    version = 1

    def __init__(self) -> None:
        self.bodies: list[bytes] = []
        self.indexes: list[int] = []
        self.batches: list[int] = []
        self.fails: Callable[[Entry], None] = lambda entry: None

    def apply(self, entries: Sequence[Entry]) -> Iterator[bytes]:
        """One result after the other."""
        self.batches.append(len(entries))
        for entry in entries:
            self.fails(entry)
            self.bodies.append(entry.body)
            self.indexes.append(entry.index)
            yield b"%d:%s" % (entry.index, entry.body)

    def query(self, request: bytes) -> bytes:
        """All bodies; the request is a text between them."""
        if request == b"raise":
            raise KeyError("no such thing")
        return request.join(self.bodies) if request != b"long" else bytes((1 << 20) + 1)

    def snapshot(self) -> Iterable[bytes]:
        """One piece for each body."""
        bodies = list(self.bodies)
        return (body for body in bodies)

    def restore(self, chunks: Iterable[bytes]) -> None:
        """The bodies again."""
        self.bodies = list(chunks)


class NextJournal(Journal):
    """Of a later version."""

    version = 2


class MovedJournal(Journal):
    """Of a later version, which takes the snapshots of the first one."""

    version = 2
    oldest_version = 1
    newest_only = True

    def restore(self, chunks: Iterable[bytes], version: int) -> None:
        """The bodies again, with a mark."""
        self.bodies = [b"moved from %d" % version, *chunks]


class OtherJournal(Journal):
    """Of another name."""

    name = "other"


class Nameless(Journal):
    """Without a name."""

    name = ""


def not_a_machine() -> object:
    """Makes something else."""
    return object()


def exiting() -> Journal:
    """Makes nothing, as a parser of arguments would."""
    raise SystemExit("usage")


def raising() -> Journal:
    """Makes nothing."""
    raise OSError("no room")
