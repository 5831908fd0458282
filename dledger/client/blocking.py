# -*- test-case-name: tests.client.test_blocking -*-
"""
The client for programs without a reactor: every call waits for its outcome::

    with dledger.connect("n0-host:20911;n1-host:20911;n2-host:20911") as log:
        index = log.append(b"hello").index
        for entry in log.tail(index):
            ...

Times are in seconds. Ctrl-C interrupts every wait; the append that was waiting then has an
unknown outcome. A L{Log} may be used from several threads; the order of calls is kept per thread.
"""

from __future__ import annotations

import random
import threading
import time
from bisect import insort
from collections.abc import Callable, Iterable, Iterator, Mapping, Sized
from datetime import datetime
from functools import partial
from types import TracebackType
from typing import Unpack

import attrs

from dledger.base.process.reactor_thread import Outcome as PendingOutcome
from dledger.base.process.reactor_thread import ReactorThread
from dledger.base.sending.arguments import patience, whole
from dledger.base.sending.bodies import BytesLike, as_body, total_bytes
from dledger.base.serving.endpoints import EndpointFor
from dledger.client.answers.errors import append_error
from dledger.client.answers.summaries import AppendInterrupted, AppendSummary
from dledger.client.answers.values import (
    Appended,
    AppendError,
    AppendFailed,
    Entry,
    MemberInfo,
)
from dledger.client.calls.appender import AppendOutcome
from dledger.client.calls.enveloping import Headers, checked_headers, keyed
from dledger.client.calls.numbered_feed import feed_numbered
from dledger.client.client import LogClient
from dledger.client.links.chain_marks import ChainMark
from dledger.client.links.connect_options import AppendLimits, DoorKeywords, checked_keywords
from dledger.client.reading.blocking_reader import BlockingReader
from dledger.client.reading.places import Place
from dledger.client.reading.tail import Tail
from dledger.values.addresses import DEFAULT_MEMBERS
from protocols.wire.fastjson import JsonObject
from protocols.wire.ledger.codes import Consistency
from protocols.wire.ledger.messages import MembershipResponse
from protocols.wire.ledger.readers import ReaderInfo

_PROGRESS_S = 0.1
#: Most bytes of bodies that one append_many has under way; checked before each body, for any window.
_WINDOW_BYTES = 8 * 1024 * 1024


class Log:
    """A group's log, for one program. Use it as a context manager, or L{close} it."""

    def __init__(
        self,
        peers: str | Mapping[str, str] = DEFAULT_MEMBERS,
        group: str = "default",
        timeout: float = 10.0,
        wire: str = "auto",
        limits: AppendLimits | None = None,
        *,
        endpoint_for: EndpointFor | None = None,
        rng: random.Random | None = None,
        **options: Unpack[DoorKeywords],
    ) -> None:
        """
        Open the log of a group. No connection is made before it is needed.

        @param peers: C{n0-host:port;n1-host:port}; some of the members are enough. Default: the group of one
            that C{twistd dledger} starts without options, C{n0-127.0.0.1:20911}.
        @param timeout: seconds in which a call has an outcome, retries included.
        @param limits: bounds of appends; by default, a call beyond them waits.
        @param endpoint_for, rng: see L{LogClient}.
        @param group, wire, options: C{answer_timeout_s}, C{is_ordered}, C{exactly_once}, C{envelope},
            C{tls}, C{token}: see L{ConnectOptions<dledger.client.links.connect_options.ConnectOptions>}.
        @raise ValueError: C{peers} is malformed, or a file of C{tls} is not sound.
        """
        self._thread: ReactorThread | None = None
        checked_keywords(options)
        reactor_thread = ReactorThread(f"dledger-{group}")
        try:
            self._client = LogClient(
                peers, reactor=reactor_thread.reactor, endpoint_for=endpoint_for, rng=rng, group=group,
                timeout_s=timeout, wire=wire, limits=limits or AppendLimits(when_full="wait"), **options,
            )
        except BaseException:
            reactor_thread.stop(lambda: None)
            raise
        self._thread = reactor_thread

    @property
    def _reactor(self) -> ReactorThread:
        assert self._thread is not None
        return self._thread

    def append(
        self, body: BytesLike, *, expected_end: int | None = None, producer: str | None = None,
        sequence: int | None = None, headers: Headers = None, key: BytesLike | None = None,
    ) -> Appended:
        """
        Append one entry; returns when it is committed.

        @param expected_end: append only if this is the last index of the log; see L{LogClient.append}.
        @param producer, sequence: append only if the log has none of both; see L{LogClient.append}.
        @param headers, key: shown to readers beside the body; see L{LogClient.append}.
        @raise Conflict: the log does not end at C{expected_end}.
        @raise OutOfSequence: C{sequence} does not follow the last one of the producer.
        @raise AppendFailed: the entry is certainly not in the log.
        @raise UnknownOutcome: the entry may be in the log, now or later.
        """
        return self._reactor.wait(lambda: self._client.append(
            body, expected_end=expected_end, producer=producer, sequence=sequence, headers=headers, key=key
        ))

    def append_many(
        self,
        bodies: Iterable[BytesLike],
        window: int = 1000,
        progress: Callable[[int], object] | None = None,
        *,
        producer: str | None = None,
        sequence: int | None = None,
        headers: Headers = None, key: BytesLike | None = None,
    ) -> AppendSummary:
        """
        Append every body that C{bodies} yields, in order, with up to C{window} under way.

        @param bodies: bodies to append. The calling thread pulls them, only as fast as the log takes
            them; each body is sent without waiting for the next.
        @param window: maximum number of bodies under way.
        @param progress: called in the calling thread, repeatedly and at the end, with the number of
            bodies acknowledged so far.
        @param producer, sequence: both or none: of the first body; see L{LogClient.append_many}. Then up to
            C{window} bodies are pulled at a time, and the next ones when these are stored.
        @param headers, key: of each body; see L{LogClient.append}.
        @raise AppendError: a body was not acknowledged. The call then pulls no more bodies, sends none of
            those that were pulled, and waits for those that were sent. L{UnknownOutcome} if any body may
            be in the log without an acknowledgement, else L{AppendFailed}. The fact C{acknowledged} is
            the number of bodies before the first one without acknowledgement; C{acknowledged_later}, if
            present, is the number of acknowledged bodies after that one, sent before its outcome was known.
        @raise AppendInterrupted: Ctrl-C; the exception carries the counts.
        """
        self._reactor.check_process()
        window = whole("window", window, 1)
        headers = checked_headers(headers if key is None else keyed(headers, key))
        if producer is not None or sequence is not None:
            append = partial(self._client.append_many, producer=producer, headers=headers)
            return feed_numbered(self._reactor.wait, append, bodies, window, progress, sequence)
        return _Feed(self._client, self._reactor, window, progress, headers).run(bodies)

    def submit(
        self, command: BytesLike, *, producer: str | None = None, sequence: int | None = None
    ) -> bytes:
        """
        Append a command for the state machine of the group, which applies it once; returns what the machine
        made of it.

        @param producer, sequence: the program numbers its commands, see L{LogClient.submit_command}.
        @raise CommandRefused: the machine has refused the command, which is in the log.
        @raise AppendFailed: the command is certainly not in the log.
        @raise UnknownOutcome: it may be in the log, now or later.
        """
        return self._reactor.wait(
            lambda: self._client.submit_command(command, producer=producer, sequence=sequence)
        )

    def skip(self, index: int) -> int:
        """Let no state machine apply an entry; returns the index of the order. See L{LogClient.skip}."""
        return self._reactor.wait(lambda: self._client.skip(index))

    def query(self, query: BytesLike, *, max_age: float | None = None) -> bytes:
        """
        Ask the state machine of the group. See L{LogClient.query}.

        @param max_age: seconds by which the state may be old; None: it has all that was committed before.
        """
        return self._reactor.wait(lambda: self._client.query(query, max_age_s=max_age))

    def get(self, index: int, consistency: Consistency | str = Consistency.LINEARIZABLE) -> Entry:
        """
        Read one entry.

        @raise NotYet: no such entry is committed yet.
        @raise Expired: expiry has deleted it.
        @raise DLedgerError: the last error before the deadline, such as
            L{NotLeader<dledger.client.answers.errors.NotLeader>} or
            L{Timeout<dledger.client.answers.errors.Timeout>}.
        """
        return self._reactor.wait(lambda: self._client.get(index, consistency))

    def tail(
        self, from_index: int = 0, follow: bool = False, timeout: float | None = None, *,
        control: bool = False,
    ) -> Iterator[Entry]:
        """
        Committed entries from C{from_index} on.

        @param from_index: first index; a negative one counts back from the committed end.
        @param follow: read for ever; else end at the committed index of the start.
        @param timeout: seconds. With C{follow}: end after that time without a new entry. Else: raise
            an error after that time without a serving member.
        @param control: also show the log's own entries; see L{LogClient.tail}.
        @raise Restored: the members have another group's log than before.
        @raise TypeError, ValueError: a number is none, or out of range.
        """
        timeout = patience("timeout", timeout)
        tail = self._client.tail(from_index, follow, timeout_s=None if follow else timeout, control=control)
        return self._entries(tail, timeout if follow else None)

    def _entries(self, tail: Tail, idle_s: float | None) -> Iterator[Entry]:
        reactor = self._reactor
        ahead: PendingOutcome[list[Entry]] | None = None
        try:
            while True:
                ahead = ahead or reactor.begin(tail.next_batch)
                try:
                    entries = ahead.result(idle_s)
                except TimeoutError:
                    return
                ahead = None
                if not entries:
                    return
                yield from entries
        finally:
            if not reactor.is_stopped:
                reactor.run(tail.close)

    def reader(
        self, name: str, *, begin: Place = 0, share: int = 0, lease_s: float = 10.0, follow: bool = True,
        timeout: float | None = None, holder: str = "",
    ) -> BlockingReader:
        """
        Read as a named reader: from the entry after the last one that a process of this name has committed::

            with log.reader("billing") as reader:
                for entry in reader:
                    ...
                    reader.commit()

        @param timeout: seconds to wait while other processes have the entries.
        @param begin, share, lease_s, follow, holder: see L{LogClient.reader}.
        @raise DLedgerError: UNEXPECTED_ARGUMENT: the name or the holder is malformed.
        """
        self._reactor.check_process()
        return BlockingReader(self._reactor, self._client.reader(
            name, begin=begin, share=share, lease_s=lease_s, follow=follow, timeout_s=timeout, holder=holder
        ))

    def readers(self) -> tuple[ReaderInfo, ...]:
        """The named readers of the group and their lag, by name."""
        return self._reactor.wait(self._client.readers)

    def find_time(self, moment: datetime) -> int:
        """Index of the first entries of a time. See L{LogClient.find_time}."""
        return self._reactor.wait(lambda: self._client.find_time(moment))

    def move_reader(self, name: str, index: Place) -> int:
        """Put a named reader to an entry, forward or back. See L{LogClient.move_reader}."""
        return self._reactor.wait(lambda: self._client.move_reader(name, index))

    def forget_reader(self, name: str) -> None:
        """Forget a named reader. See L{LogClient.forget_reader}."""
        self._reactor.wait(lambda: self._client.forget_reader(name))

    def status(self) -> tuple[MemberInfo, ...]:
        """The status of each member; a member that does not answer within 2 s has a C{problem}."""
        return self._reactor.wait(self._client.status)

    def chain_marks(self) -> tuple[ChainMark, ...]:
        """What each member holds at one committed index: see L{LogClient.chain_marks}."""
        return self._reactor.wait(self._client.chain_marks)

    def metadata(self) -> MemberInfo:
        """The leader's own status. @raise DLedgerError: no leader answered in time."""
        return self._reactor.wait(self._client.metadata)

    def transfer(self, to: str, term: int | None = None) -> int:
        """Hand leadership over to member C{to}; returns the new term. See L{LogClient.transfer}."""
        return self._reactor.wait(lambda: self._client.transfer(to, term=term))

    def change_members(
        self, change: str, member_id: str, address: str = "", *, is_dry: bool = False, is_forced: bool = False
    ) -> MembershipResponse:
        """Change the members of the group. See L{LogClient.change_members}."""
        return self._reactor.wait(lambda: self._client.change_members(
            change, member_id, address, is_dry=is_dry, is_forced=is_forced
        ))

    def close(self) -> None:
        """End every connection; calls that wait in other threads fail."""
        if self._thread is not None:
            self._thread.stop(self._client.close)

    def __enter__(self) -> Log:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class _Feed:
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
        client: LogClient,
        reactor: ReactorThread,
        window: int,
        progress: Callable[[int], object] | None,
        headers: Headers = None,
    ) -> None:
        self._headers = headers
        self._client = client
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
        self._client.submit(
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


#: Opens the log of a group; no connection is made before it is needed.
connect = Log
