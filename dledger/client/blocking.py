# -*- test-case-name: tests.client.test_blocking,tests.client.test_readers,tests.client.test_blocking_tail -*-
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
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from functools import partial
from types import TracebackType
from typing import TypeVar, Unpack

from dledger.base.reactor_thread import Outcome, ReactorThread
from dledger.base.sending.arguments import patience, whole
from dledger.base.sending.blocking_batches import BlockingBatches
from dledger.base.sending.bodies import BytesLike
from dledger.base.serving.endpoints import EndpointFor
from dledger.client.client import LogClient
from dledger.client.connect_options import AppendLimits, LogKeywords, checked_keywords
from dledger.client.enveloping import Headers, checked_headers, keyed
from dledger.client.feed import Feed, feed_numbered
from dledger.client.places import Place
from dledger.client.readers import NamedReader
from dledger.client.tail_batch import TailBatch
from dledger.client.tails import TailReading
from dledger.client.values import (
    Appended,
    AppendSummary,
    ChainMark,
    Entry,
    LastSequence,
    MemberInfo,
)
from dledger.values.addresses import DEFAULT_MEMBERS
from dledger.values.errors import DLedgerError
from protocols.wire.ledger.codes import Consistency
from protocols.wire.ledger.messages import MembershipResponse
from protocols.wire.ledger.readers import ReaderInfo


class BlockingEntries:
    """An iterator of entries; one thread uses it. @ivar batches: those that have them."""

    def __init__(self, batches: BlockingBatches[list[Entry]]) -> None:
        self.batches = batches
        self._ready: Iterator[Entry] = iter(())

    def __iter__(self) -> BlockingEntries:
        return self

    def __next__(self) -> Entry:
        while True:
            for entry in self._ready:  # the rest of a batch
                return entry
            batch = self.batches.peek()
            self._ready = iter(batch)  # from here to the next line nothing interrupts
            self.batches.ahead = None

    def close(self) -> None:
        """Read no more."""
        self._ready = iter(())
        self.batches.close()


class BlockingReader:
    """
    An iterator of the entries that no process of this name has committed. Use it as a context manager, or
    L{close} it; one thread uses it.
    """

    def __init__(self, thread: ReactorThread, reader: NamedReader) -> None:
        self._thread = thread
        self._reader = reader
        self._ready: deque[Entry] = deque()
        self._ahead: Outcome[list[Entry]] | None = None

    @property
    def name(self) -> str:
        """Of the reader."""
        return self._reader.name

    @property
    def holder(self) -> str:
        """Id of this process."""
        return self._reader.holder

    @property
    def token(self) -> int:
        """Fencing token of the lease; see L{NamedReader.token}."""
        return self._reader.token

    def __iter__(self) -> BlockingReader:
        return self

    def __next__(self) -> Entry:
        """
        The next entry; waits for it.

        @raise LeaseLost: another process has the entries of this one, or may get them.
        @raise LeaseHeld: other processes had them until the time-out.
        @raise Expired: expiry has deleted the next entry. L{commit} of a later one goes on.
        """
        while True:
            if self._reader.must_check:
                self._thread.wait(self._reader.check_lease)
            while self._ready:
                entry = self._ready.popleft()
                if entry.index > self._reader.done_index:
                    self._reader.handed_index = entry.index
                    return entry
            # (Ctrl-C may come while this waits: what was asked for is kept for the next call.)
            if self._ahead is None:
                self._ahead = Outcome()
            if not self._ahead.is_begun:
                self._thread.begin(self._reader.next_batch, self._ahead)
            try:
                entries = self._ahead.result()
            except DLedgerError:
                self._ahead = None
                raise
            ready = deque(entries)
            self._ready = ready  # from here to the next line nothing interrupts
            self._ahead = None
            if not entries:
                raise StopIteration

    def commit(self, index: int | None = None, *, wait: bool = True) -> int:
        """
        All entries up to one are done; returns when the group knows it. Asking twice does no harm.

        @param index: the last one; None: the last one that was handed out.
        @param wait: False: return at once; the place is committed within about a second, together with those
            that follow, and by L{close}. After a crash, what was done since is handed out again.
        @return: the next index of the reader: all before it is done.
        @raise LeaseLost: nothing was committed: another process has these entries, or may get them.
        @raise NotYet: it is not in the log.
        @raise Timeout: it may have been committed: commit again.
        """
        return self._thread.wait(lambda: self._reader.commit(index, wait=wait))

    def close(self) -> None:
        """
        Read no more, and give the lease back. Nothing is committed, but what L{commit} was
        given with C{wait=False}.
        """
        self._ready.clear()
        if not self._thread.is_stopped:
            self._thread.wait(self._reader.close)

    def __enter__(self) -> BlockingReader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


#: A batch of entries, in the form in which a program gets it.
_B = TypeVar("_B", bound=Sequence[Entry])


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
        **options: Unpack[LogKeywords],
    ) -> None:
        """
        Open the log of a group. No connection is made before it is needed.

        @param peers: C{n0-host:port;n1-host:port}; some of the members are enough. Default: the group of one
            that C{twistd dledger} starts without options, C{n0-127.0.0.1:20911}.
        @param timeout: seconds in which a call has an outcome, retries included.
        @param limits: bounds of appends; by default, a call beyond them waits.
        @param endpoint_for, rng: see L{LogClient}.
        @param group, wire, options: C{answer_timeout_s}, C{is_ordered}, C{exactly_once}, C{envelope},
            C{tls}, C{token}: see L{ConnectOptions<dledger.client.connect_options.ConnectOptions>}.
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
        reactor_thread.when_forgotten(self._client.close)
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
        return Feed(self._client.submit, self._reactor, window, progress, headers).run(bodies)

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

    def begin_state(self, *, insists: bool = False) -> int:
        """
        Let the state of the group begin anew; returns the index of the order. See L{LogClient.begin_state}.
        """
        return self._reactor.wait(lambda: self._client.begin_state(insists=insists))

    def reset_times(self) -> int:
        """Let times that are ahead go on from true ones; returns the index of the order."""
        return self._reactor.wait(self._client.reset_times)

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
            L{NotLeader<dledger.client.errors.NotLeader>} or
            L{Timeout<dledger.client.errors.Timeout>}.
        """
        return self._reactor.wait(lambda: self._client.get(index, consistency))

    def tail(
        self, from_index: int = 0, follow: bool = False, timeout: float | None = None, *,
        control: bool = False,
    ) -> BlockingEntries:
        """
        Committed entries from C{from_index} on.

        @param from_index: first index; a negative one counts back from the committed end.
        @param follow: read for ever; else end at the committed index of the start.
        @param timeout: seconds. With C{follow}: end after that time without a new entry. Else: raise
            an error after that time without a serving member.
        @param control: also show the log's own entries; see L{LogClient.tail}.
        @return: after an error, or Ctrl-C, the next call goes on where it was.
        @raise Restored: the members have another group's log than before.
        @raise TypeError, ValueError: a number is none, or out of range.
        """
        timeout = patience("timeout", timeout)
        tail = self._client.tail(from_index, follow, timeout_s=None if follow else timeout, control=control)
        return BlockingEntries(self._batches(tail, timeout if follow else None))

    def tail_batches(
        self, from_index: int = 0, follow: bool = False, timeout: float | None = None, *,
        control: bool = False,
    ) -> BlockingBatches[TailBatch]:
        """
        As L{tail}, many entries at a time::

            for batch in log.tail_batches(0):
                for body in batch.bodies:
                    ...
                place = batch.next_index

        A program that needs only bodies and indexes reads several times as many small entries per second: the
        batch makes its L{Entry} objects when they are asked for.
        """
        timeout = patience("timeout", timeout)
        tail = self._client.tail_batches(
            from_index, follow, timeout_s=None if follow else timeout, control=control
        )
        return self._batches(tail, timeout if follow else None)

    def _batches(self, tail: TailReading[_B], idle_s: float | None) -> BlockingBatches[_B]:
        return BlockingBatches(self._reactor, tail, tail.close, idle_s=idle_s)

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

    def last_sequence(self, producer: str) -> LastSequence | None:
        """The last sequence of a producer; None: it never had one. See L{LogClient.last_sequence}."""
        return self._reactor.wait(lambda: self._client.last_sequence(producer))

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


#: Opens the log of a group; no connection is made before it is needed.
connect = Log
