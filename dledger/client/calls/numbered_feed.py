# -*- test-case-name: tests.client.test_numbered_appends -*-
"""Appends with the program's own numbers from an iterator, for programs without a reactor."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sized
from typing import Protocol

import attrs
from twisted.internet.defer import Deferred

from dledger.base.sending.bodies import BytesLike, as_body, total_bytes
from dledger.client.answers.errors import AppendError
from dledger.client.answers.summaries import AppendInterrupted, AppendSummary
from dledger.client.answers.values import Appended

#: Most bytes of bodies in one part, checked before each body.
_PART_BYTES = 8 * 1024 * 1024
_Runs = tuple[Appended, ...]


class _AppendPart(Protocol):
    """L{LogClient.append_many<dledger.client.client.LogClient.append_many>} with a producer."""

    def __call__(self, bodies: list[bytes], *, sequence: int | None) -> Deferred[_Runs]: ...


def _parts(bodies: Iterable[BytesLike], window: int) -> Iterator[list[bytes]]:
    """The bodies in lists of up to C{window} of them; one list at least."""
    part: list[bytes] = []
    size, is_first = 0, True
    for body in bodies:
        part.append(as_body(body))
        size += total_bytes(part[-1:])
        if len(part) >= window or size >= _PART_BYTES:
            yield part
            part, size, is_first = [], 0, False
    if part or is_first:
        yield part


def feed_numbered(
    wait: Callable[[Callable[[], Deferred[_Runs]]], _Runs], append: _AppendPart, bodies: Iterable[BytesLike],
    window: int, progress: Callable[[int], object] | None, sequence: int | None,
) -> AppendSummary:
    """
    See L{dledger.client.blocking.Log.append_many}.

    @param wait: runs a call in the reactor's thread, and waits for its result.
    @param sequence: of the first body; None: C{append} says what is missing.
    """
    began_s, runs, done = time.monotonic(), list[Appended](), 0

    def note(stored: _Runs) -> None:
        runs.extend(attrs.evolve(run, offset=run.offset + done) for run in stored)

    for part in _parts(bodies, window):
        first = None if sequence is None else sequence + done

        def story(part: list[bytes] = part, first: int | None = first) -> Deferred[_Runs]:
            return append(part, sequence=first)

        try:
            stored = wait(story)
        except KeyboardInterrupt:
            raise AppendInterrupted(done, len(part)) from None
        except AppendError as error:
            note(error.appended)
            acknowledged = sum(run.count for run in runs)
            failed = error.failed
            if isinstance(bodies, Sized):  # Of others nobody knows how many would have come.
                failed = len(bodies) - acknowledged - error.unknown
            facts = {**error.facts, "acknowledged": acknowledged}
            raise type(error)(
                error.code, appended=tuple(runs), failed=failed, unknown=error.unknown, **facts
            ) from None
        note(stored)
        done += len(part)
        if progress is not None:
            progress(done)
    return AppendSummary(
        count=done, first_index=runs[0].index if runs else -1,
        last_index=runs[-1].last_index if runs else -1, seconds=time.monotonic() - began_s, runs=tuple(runs),
    )
