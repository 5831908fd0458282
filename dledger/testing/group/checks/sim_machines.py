# -*- test-case-name: tests.sim.test_machines -*-
"""
The state machines of simulated members: a map of registers, in two versions, which may fail in several ways.

Rule 1: every member does the same with a body: it is written into a register, or refused (L{is_refused}), or
stops the machine (L{is_poison}). Rule 2: only an injected failure (L{Frailty}) is of one member.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from zlib import crc32

import attrs

from dledger.client.values import Entry
from dledger.machine.state_machine import RESULT_BYTES_MAX, RefusedCommand, StateMachine
from dledger.storage.files.snapshot_file import SnapshotRefused

#: A piece of a snapshot besides the state, and how often it comes: the file is sent in several pieces.
PADDING = (b"p" * 3000, 5)
#: Number of registers.
REGISTERS = 8
#: Bodies with this stop every machine.
POISON = b":poison"


#: What may go wrong with a machine that has no fault at its entries.
MOODS = ("no snapshot", "half a snapshot", "a snapshot of text", "no digest", "a digest of text",
         "no restore", "half a restore")
#: A query that no machine answers begins with this; the next letter says how it fails.
UNANSWERED = b"!"


#: A digest that no state has; and a machine that cannot be made again.
ANOTHER_DIGEST, NO_MACHINE = "another digest", "no machine"


class Unspeakable(RefusedCommand):
    """A refusal whose reason cannot be said."""

    def __str__(self) -> str:
        raise ValueError("no words")


def mixed(chain: int, index: int, body: bytes) -> int:
    """The checksum after another entry."""
    return crc32(b"%d " % index + body, chain)


def is_refused(body: bytes) -> bool:
    """Whether the machine refuses a command."""
    return not is_poison(body) and crc32(body) % 7 == 0


def is_poison(body: bytes) -> bool:
    """Whether no machine can apply a command."""
    return POISON in body


def register_of(body: bytes) -> bytes:
    """The register that a command writes."""
    return b"r%d" % (crc32(body) % REGISTERS)


@attrs.define
class Frailty:
    """
    The failures of the machine of one member that others do not have.

    @ivar is_due: the next entry stops the machine. @ivar failed: entries at which it did.
    @ivar mood: the failure of the next snapshot, digest or restore, one of L{MOODS}; empty: none.
    @ivar struck: moods that came over the machine.
    """

    is_due: bool = False
    failed: set[int] = attrs.Factory(set)
    mood: str = ""
    struck: list[str] = attrs.Factory(list)

    def is_in(self, mood: str) -> bool:
        """Whether this goes wrong now; it does once."""
        if self.mood != mood:
            return False
        self.mood = ""
        self.struck.append(mood)
        return True

    def strike(self, index: int) -> None:
        """@raise MemoryError: the machine fails at an entry that others can apply."""
        if self.is_due:
            self.is_due = False
            self.failed.add(index)
            raise MemoryError("injected")


class RegisterMachine(StateMachine):
    """
    A map of registers, each with the index of the entry that wrote it last, and a checksum over the indexes
    and bodies of all entries in their order, but those that it refuses.
    """

    name = "registers"

    def __init__(self, frailty: Frailty | None = None) -> None:
        self.chain = 0
        self.last_index = -1
        self.registers: dict[bytes, int] = {}
        self._frailty = frailty or Frailty()

    def apply(self, entries: Sequence[Entry]) -> Iterator[bytes]:
        """Index and checksum of each entry."""
        for entry in entries:
            body = entry.body
            self._frailty.strike(entry.index)
            if is_refused(body):
                kind = crc32(body) % 3
                if kind == 0:
                    yield RefusedCommand("one in seven")  # type: ignore[misc]
                    continue
                raise RefusedCommand("one in seven") if kind == 1 else Unspeakable()
            if is_poison(body):
                yield from self._poisoned(crc32(body) % 6, is_last=entry is entries[-1])
                raise ValueError("poison")
            self.chain = mixed(self.chain, entry.index, body)
            self.last_index = self.registers[register_of(body)] = entry.index
            yield b"%d %d" % (entry.index, self.chain)

    @staticmethod
    def _poisoned(kind: int, *, is_last: bool) -> Iterator[bytes]:
        """Fail at an entry in some way. @param is_last: of its batch."""
        if kind == 0:
            raise SystemExit(2)
        if kind == 1:
            yield bytes(RESULT_BYTES_MAX + 1)
        elif kind == 2:
            yield "no bytes"  # type: ignore[misc]
        elif kind == 3 and is_last:
            yield b"and the end of the batch is an exception"
        elif kind == 4 and is_last:
            yield from (b"one result", b"too many")

    def query(self, request: bytes) -> bytes:
        """The last entry in the state, the last one of a register, -1 for none, and the checksum."""
        if request.startswith(UNANSWERED):
            if request[1:] == b"e":
                raise SystemExit(3)
            return "no bytes" if request[1:] == b"t" else bytes(RESULT_BYTES_MAX + 1)  # type: ignore
        return b"%d %d %d" % (self.last_index, self.registers.get(request, -1), self.chain)

    def digest(self) -> bytes:
        """Of the whole state."""
        if self._frailty.is_in("no digest"):
            raise KeyboardInterrupt
        if self._frailty.is_in(ANOTHER_DIGEST):
            return b"another"
        if self._frailty.is_in("a digest of text"):
            return "text"  # type: ignore[return-value]
        return b"%d %d" % (self.chain, self.last_index)

    def snapshot(self) -> Iterable[bytes]:
        """The state, and padding."""
        registers = b" ".join(b"%b=%d" % one for one in sorted(self.registers.items()))
        if self._frailty.is_in("no snapshot"):
            raise SystemExit(4)
        if self._frailty.is_in("half a snapshot"):
            return self._half()
        if self._frailty.is_in("a snapshot of text"):
            return ["text"]  # type: ignore[list-item]
        return [b"%d %d" % (self.chain, self.last_index), registers, *[PADDING[0]] * PADDING[1]]

    @staticmethod
    def _half() -> Iterator[bytes]:
        yield PADDING[0]
        raise MemoryError("injected")

    def restore(self, chunks: Iterable[bytes]) -> None:
        """The state again."""
        pieces = iter(chunks)
        if self._frailty.is_in("no restore"):
            raise SystemExit(5)
        if self._frailty.is_in("half a restore"):
            next(pieces)
            raise MemoryError("injected")
        self.chain, self.last_index = map(int, next(pieces).split())
        for one in next(pieces).split():
            register, _, index = one.partition(b"=")
            self.registers[register] = int(index)
        assert [*pieces] == [PADDING[0]] * PADDING[1], "the pieces of a snapshot are others than those given"


class Wordless(MemoryError):
    """A failure without words."""

    def __str__(self) -> str:
        raise ValueError("no words")


class EarlierMachine(RegisterMachine):
    """The same, which answers no queries while another member runs a later version."""

    newest_only = True


class LaterMachine(RegisterMachine):
    """
    The next version, which takes the snapshots of the one before; it gets one entry at a time, and goes on
    when a snapshot cannot be read, as if it had become its state.
    """

    version = 2
    oldest_version = 1
    newest_only = True

    def apply(self, entries: Sequence[Entry]) -> list[bytes]:  # type: ignore[override]
        """Index and checksum of the entry."""
        return list(super().apply(entries))

    def restore(self, chunks: Iterable[bytes], version: int) -> None:  # type: ignore[override]
        """The state again. @param version: of the snapshot."""
        assert version in (1, 2), version
        pieces = iter(chunks)
        try:
            super().restore(pieces)
        except (SnapshotRefused, OSError):
            with contextlib.suppress(SnapshotRefused, OSError):
                next(pieces)
