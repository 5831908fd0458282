# -*- test-case-name: tests.client.test_blocking,tests.client.test_numbered_appends -*-
"""
Appends the bodies that a program's thread gives one by one, with a window of them under way; with the numbers
of the program, if it has some.
"""

from __future__ import annotations

import threading
import time
from bisect import insort
from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
from typing import Protocol

import attrs
from twisted.internet.defer import Deferred

from dledger.base.reactor_thread import ReactorThread
from dledger.base.sending.bodies import BytesLike, as_body, total_bytes
from dledger.client.appender import AppendDone, AppendOutcome
from dledger.client.enveloping import Headers
from dledger.client.errors import AppendError, AppendFailed, append_error
from dledger.client.values import Appended, AppendInterrupted, AppendSummary
from protocols.wire.fastjson import JsonObject

_PROGRESS_S = 0.1
#: Most bytes of bodies that one append_many has under way; checked before each body, for any window.
_WINDOW_BYTES = 8 * 1024 * 1024


class Submit(Protocol):
    """The part of L{LogClient<dledger.client.client.LogClient>} that is needed here."""

    def __call__(
        self, bodies: Sequence[BytesLike], done: AppendDone, stream: object = None, headers: Headers = None
    ) -> None:
        """Append in the order of calls; C{done} gets the outcome."""


class Feed:
    """
    Hands bodies from the calling thread to the reactor's, all gathered ones at once.

    C{_lock} guards all state below, in both threads. C{_news} is locked except between a change that the
    calling thread waits for and that thread's reaction to it.

    Both are plain locks instead of a Condition: Ctrl-C may come between any two Python instructions
    in the calling thread. C{with} acquires and releases a plain lock without executing Python code; in
    C{Condition.__enter__} Ctrl-C could leave the lock taken, and the reactor's thread would block.
    """

    def __init__(
        self,
        submit: Submit,
        reactor: ReactorThread,
        window: int,
        progress: Callable[[int], object] | None,
        headers: Headers = None,
    ) -> None:
        self._headers = headers
        self._hand_over = submit
        self._reactor = reactor
        self._window = window
        self._progress = progress
        self._lock = threading.Lock()
        self._news = threading.Lock()
        self._news.acquire()
        self._gathered: list[bytes] = []
        self._is_scheduled = False
        self._wake_below = window
        self._under_way = 0
        self._under_way_bytes = 0
        self._put = 0
        self._acknowledged = 0
        self._unbroken = -1  # bodies acknowledged before the first failure; -1 without a failure
        self._failed = 0
        self._total = 0  # bodies, if their number is known
        self._unknown = 0
        self._runs: list[Appended] = []
        self._error: AppendError | None = None

    def run(self, bodies: Iterable[BytesLike]) -> AppendSummary:
        """Append all bodies, and wait for their outcomes."""
        started_s = time.monotonic()
        self._total = len(bodies) if isinstance(bodies, Sized) else 0
        try:
            try:
                self._pull(bodies)
            except Exception:
                # The source has failed: wait for the outcomes of the bodies that it gave before.
                self._wait_for_all()
                raise
            self._wait_for_all()
        except KeyboardInterrupt:
            raise AppendInterrupted(*self._outcomes(), self._outcomes) from None
        if self._progress is not None:
            self._progress(self._acknowledged)
        if self._error is not None:
            raise self._broken(self._error)
        runs = tuple(self._runs)
        return AppendSummary(
            count=self._acknowledged,
            first_index=runs[0].index if runs else -1,
            last_index=runs[-1].last_index if runs else -1,
            seconds=time.monotonic() - started_s,
            runs=runs,
        )

    def _outcomes(self) -> tuple[int, int]:
        return self._acknowledged, self._under_way + self._unknown

    def _pull(self, bodies: Iterable[BytesLike]) -> None:
        shown_s = time.monotonic()
        for body in bodies:
            if not self._put_one(body):
                break
            if self._progress is not None:
                now_s = time.monotonic()
                if now_s - shown_s >= _PROGRESS_S:
                    shown_s = now_s
                    self._progress(self._acknowledged)

    def _broken(self, error: AppendError) -> AppendError:
        unbroken = max(self._unbroken, 0)
        facts: JsonObject = {**error.facts, "acknowledged": unbroken}
        if self._acknowledged > unbroken:
            facts["acknowledged_later"] = self._acknowledged - unbroken
        kind = append_error(error.code, is_unknown=self._unknown > 0)
        failed = max(self._failed, self._total - self._acknowledged - self._unknown)
        return kind(error.code, appended=tuple(self._runs), failed=failed, unknown=self._unknown, **facts)

    def _put_one(self, given: BytesLike) -> bool:
        body = as_body(given)
        while True:
            with self._lock:
                if self._error is not None:
                    return False
                if self._under_way < self._window and self._under_way_bytes < _WINDOW_BYTES:
                    self._wake_below = -1
                    self._under_way += 1
                    self._under_way_bytes += total_bytes((body,))
                    self._put += 1
                    self._gathered.append(body)
                    if self._is_scheduled:
                        return True
                    self._is_scheduled = True
                    break
                # Wake up when half the window is free, not for each acknowledged body: fewer switches.
                self._wake_below = self._window // 2
            self._news.acquire()
        self._reactor.run(self._submit)
        return True

    def _wait_for_all(self) -> None:
        while True:
            with self._lock:
                if not self._under_way:
                    return
                self._wake_below = 0
            self._news.acquire(timeout=-1 if self._progress is None else _PROGRESS_S)
            if self._progress is not None:
                self._progress(self._acknowledged)

    def _submit(self) -> None:
        with self._lock:
            self._is_scheduled = False
            bodies, self._gathered = self._gathered, []
            offset, error = self._put - len(bodies), self._error
        if error is not None:  # an earlier body was not acknowledged: there may be a hole before these
            self._settled(bodies, offset, AppendFailed(
                error.code, failed=len(bodies), reason="an earlier body was not acknowledged"
            ))
            return
        self._hand_over(
            bodies, lambda outcome: self._settled(bodies, offset, outcome), stream=self, headers=self._headers
        )

    def _settled(self, bodies: list[bytes], offset: int, outcome: AppendOutcome) -> None:
        runs = outcome.appended if isinstance(outcome, AppendError) else outcome
        with self._lock:
            for run in runs:
                self._acknowledged += run.count
                self._add(run, offset + run.offset)
            if isinstance(outcome, AppendError):
                self._error = self._error or outcome
                self._failed += outcome.failed
                self._unknown += outcome.unknown
                unbroken = offset + _unbroken(runs)
                self._unbroken = unbroken if self._unbroken < 0 else min(self._unbroken, unbroken)
            self._under_way -= len(bodies)
            self._under_way_bytes -= total_bytes(bodies)
            if self._under_way <= self._wake_below or self._error is not None:
                if self._news.locked():  # no other thread releases it
                    self._news.release()

    def _add(self, run: Appended, offset: int) -> None:
        """Note the place of bodies. One run grows until another writer's entry comes between."""
        runs, index, pos, count = self._runs, run.index, run.pos, run.count
        last = runs[-1] if runs else None
        if last is not None and offset < last.offset:
            insort(runs, attrs.evolve(run, offset=offset), key=_offset)
            return
        if last is not None and (index, run.term, offset) == (
            last.last_index + 1, last.term, last.offset + last.count
        ):
            del runs[-1]
            index, pos, count, offset = last.index, last.pos, last.count + count, last.offset
        runs.append(Appended(index=index, term=run.term, pos=pos, count=count, offset=offset))


def _offset(run: Appended) -> int:
    return run.offset


def _unbroken(runs: tuple[Appended, ...]) -> int:
    end = 0
    for run in runs:
        if run.offset != end:
            break
        end += run.count
    return end


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
