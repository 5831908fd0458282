# -*- test-case-name: tests.machine.test_runner -*-
"""
A guarded state machine: all calls to it are here, and no exception of any kind passes.

Rule 1: what leaves the machine is a failed call, C{BaseException} included: C{SystemExit} of a parser of
commands, C{KeyboardInterrupt}.
Rule 2: only C{RefusedCommand} is an answer: to its entry, and the machine goes on with the next one.
Rule 3: a machine whose C{apply} or C{restore} failed has no state any more: it is asked nothing else.
Rule 4: a machine whose C{apply} is a generator gets many entries, any other one entry a call. So every
failure names its entry, and what becomes of an entry does not depend on where a batch ends, which is another
place at each member.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator, Sequence

import attrs

from dledger.client.values import Entry
from dledger.machine.state_machine import (
    RESULT_BYTES_MAX,
    MachineFactory,
    RefusedAnswer,
    RefusedCommand,
    StateMachine,
)
from dledger.storage.files.snapshot_file import SnapshotRefused
from dledger.values.errors import DLedgerError
from protocols.wire.codes import ResponseCode

#: Most characters of what an exception says.
REASON_CHARACTERS_MAX = 500


#: Most bytes of a digest.
DIGEST_BYTES_MAX = 32


class MachineFailed(Exception):
    """The machine cannot go on. The text says why."""


class SnapshotFailed(Exception):
    """The machine has not given its state. The text says why; the machine goes on."""


@attrs.frozen(kw_only=True)
class Applied:
    """
    What became of some entries.

    @ivar results: of the first ones, in their order; of all, unless C{failure} says why not.
    @ivar failure: why the machine cannot go on, with the entry after those of C{results}; or empty.
    """

    results: list[bytes]
    failure: str = ""


def sentence_of(error: BaseException) -> str:
    """An exception in a sentence."""
    try:
        text = str(error)
    except BaseException as another:
        text = f"(and its text raised {type(another).__name__})"
    return f"{type(error).__name__}: {text}"[:REASON_CHARACTERS_MAX]


class GuardedMachine:
    """
    One machine.

    @ivar name, version, oldest_version, newest_only: of the machine, as they were when it was made.
    @ivar failure: why it has no state any more; empty while it has.
    @ivar entry: index of the entry that is applied now, or was last; -1 before any.
    """

    def __init__(self, factory: MachineFactory) -> None:
        """@raise MachineFailed: the factory failed, or made something else."""
        try:
            machine = factory()
            self.name = machine.name
            self.version = machine.version
            oldest = machine.oldest_version
            self.oldest_version = self.version if oldest is None else min(int(oldest), self.version)
            self.newest_only = bool(machine.newest_only)
            takes = len(inspect.signature(machine.restore).parameters)
            if oldest is not None and takes < 2:
                raise TypeError("oldest_version is given, so it must have restore(chunks, version)")
            self._takes_version = takes >= 2
            self._takes_many = inspect.isgeneratorfunction(machine.apply) or machine.takes_many
        except BaseException as error:
            raise MachineFailed(f"the factory raised {sentence_of(error)}") from error
        self._machine: StateMachine = machine
        self.failure = ""
        self.entry = -1

    def apply(self, entries: Sequence[Entry]) -> Applied:
        """Apply entries in their order, until one fails."""
        results: list[bytes] = []
        assert not self.failure
        try:
            while len(results) < len(entries):
                begin = len(results)
                self._apply(entries[begin:] if self._takes_many else (entries[begin],), results)
        except MachineFailed as failed:
            self.failure = str(failed)
        return Applied(results=results, failure=self.failure)

    def _apply(self, entries: Sequence[Entry], results: list[bytes]) -> None:
        """
        Apply entries until one is refused: the call has ended then.

        @raise MachineFailed: with the entry. C{results} has those before.
        """
        self.entry = entries[0].index
        try:
            given: object = self._machine.apply(entries)
            walk: Iterator[object] = iter(given)  # type: ignore[call-overload]  # (what else is an exception)
        except RefusedCommand as refused:
            results.append(_answer_of(refused))
            return
        except BaseException as error:
            raise _failed_at(self.entry, error) from error
        for number, entry in enumerate(entries):
            self.entry = entry.index
            try:
                result = next(walk)
            except RefusedCommand as refused:
                results.append(_answer_of(refused))
                return
            except StopIteration:
                raise MachineFailed(
                    f"apply() gave {number} results for {len(entries)} entries: none for the entry "
                    f"{entry.index}"
                ) from None
            except BaseException as error:
                raise _failed_at(entry.index, error) from error
            if isinstance(result, RefusedCommand):
                result = _answer_of(result)
            problem = problem_of_result(result)
            if problem:
                raise MachineFailed(f"apply() gave {problem} for the entry {entry.index}")
            assert isinstance(result, bytes)
            results.append(result)
        self._end(walk, entries, results)

    def _end(self, walk: Iterator[object], entries: Sequence[Entry], results: list[bytes]) -> None:
        """The rest of C{apply} runs after its last result; a failure there is one at the last entry."""
        last_index = entries[-1].index
        try:
            next(walk)
        except StopIteration:
            return
        except BaseException as error:
            results.pop()
            raise _failed_at(last_index, error) from error
        results.pop()
        raise MachineFailed(
            f"apply() gave more than {len(entries)} results for the entries {entries[0].index} to "
            f"{last_index}"
        )

    def query(self, request: bytes) -> bytes:
        """@raise DLedgerError: INTERNAL_ERROR, it has no answer; MACHINE_STOPPED, it has no state."""
        if self.failure:
            raise DLedgerError(
                ResponseCode.MACHINE_STOPPED, reason=f"the state machine has failed: {self.failure}"
            )
        try:
            result: object = self._machine.query(request)
        except BaseException as error:
            reason = f"query() raised {sentence_of(error)}"
            raise DLedgerError(ResponseCode.INTERNAL_ERROR, reason=reason) from error
        problem = problem_of_result(result)
        if problem:
            raise DLedgerError(ResponseCode.INTERNAL_ERROR, reason=f"query() gave {problem}")
        assert isinstance(result, bytes)
        return result

    def snapshot(self) -> Iterator[bytes]:
        """
        The present state in pieces.

        @raise SnapshotFailed: now, or between two pieces: it is not to be had.
        """
        if self.failure:
            raise SnapshotFailed(f"the state machine has failed: {self.failure}")
        try:
            pieces: Iterator[bytes] = iter(self._machine.snapshot())
        except BaseException as error:
            raise SnapshotFailed(f"snapshot() raised {sentence_of(error)}") from error
        return _guarded(pieces)

    def digest(self) -> bytes | None:
        """See L{StateMachine.digest}. @raise SnapshotFailed: it is not to be had."""
        try:
            given: object = self._machine.digest()
        except BaseException as error:
            raise SnapshotFailed(f"digest() raised {sentence_of(error)}") from error
        if given is not None and (not isinstance(given, bytes) or len(given) > DIGEST_BYTES_MAX):
            raise SnapshotFailed(f"digest() gave no bytes of at most {DIGEST_BYTES_MAX}, nor None")
        return given

    def restore(self, chunks: Iterable[bytes], version: int) -> None:
        """
        Become the state of a snapshot of a version.

        @raise SnapshotRefused: the machine does not take it, or has not been given all of it.
        """
        walk = _Walk(chunks)
        try:
            if self._takes_version:
                self._machine.restore(walk, version)
            else:
                self._machine.restore(walk)
        except BaseException as error:
            self.failure = f"restore() raised {sentence_of(error)}"
        walk.finish()  # (A machine may have caught what is wrong with the file.)
        if self.failure:
            raise SnapshotRefused(self.failure)


class _Walk:
    """Gives pieces, and remembers why they ended."""

    def __init__(self, chunks: Iterable[bytes]) -> None:
        self._chunks = iter(chunks)
        self._error: BaseException | None = None

    def __iter__(self) -> Iterator[bytes]:
        return self

    def __next__(self) -> bytes:
        if self._error is not None:
            raise self._error
        try:
            return next(self._chunks)
        except BaseException as error:
            self._error = error
            raise

    def finish(self) -> None:
        """Read the rest. @raise SnapshotRefused, OSError: the pieces ended before the state did."""
        while self._error is None:
            try:
                next(self)
            except BaseException:
                continue
        if not isinstance(self._error, StopIteration):
            raise self._error


def _guarded(pieces: Iterator[bytes]) -> Iterator[bytes]:
    while True:
        try:
            piece = next(pieces)
        except StopIteration:
            return
        except BaseException as error:
            raise SnapshotFailed(f"snapshot() raised {sentence_of(error)} between two pieces") from error
        yield piece


def problem_of_result(result: object) -> str:
    """What is wrong with a result of a machine; empty if nothing is."""
    if not isinstance(result, bytes):
        return f"a {type(result).__name__} instead of bytes"
    if len(result) > RESULT_BYTES_MAX:
        return f"a result of {len(result)} bytes (at most {RESULT_BYTES_MAX} are allowed)"
    return ""


def _failed_at(index: int, error: BaseException) -> MachineFailed:
    return MachineFailed(f"apply() raised at the entry {index}: {sentence_of(error)}")


def _answer_of(refused: RefusedCommand) -> RefusedAnswer:
    try:
        text = str(refused)
    except BaseException as error:
        text = f"(the reason raised {type(error).__name__})"
    return RefusedAnswer(text[:REASON_CHARACTERS_MAX].encode("utf-8", "replace"))
