# -*- test-case-name: tests.client.test_blocking -*-
"""The client for programs without a reactor: real threads and a real reactor, members in memory."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import _base as futures
from dis import opname
from functools import partial
from queue import SimpleQueue
from types import FrameType
from typing import Any

from twisted.internet.defer import Deferred, fail, succeed
from twisted.internet.error import ConnectionRefusedError
from twisted.trial.unittest import SynchronousTestCase

from dledger.base import reactor_thread as client_thread
from dledger.base.sending import blocking_batches
from dledger.client import blocking, feed
from dledger.client.appender import AppendOutcome
from dledger.client.blocking import Log
from dledger.client.errors import AppendFailed, UnknownOutcome
from dledger.client.feed import Feed
from dledger.client.values import Appended, AppendInterrupted, AppendSummary
from dledger.values.errors import DLedgerError
from protocols.wire.codes import ResponseCode
from protocols.wire.ledger.messages import AppendRequest
from tests.client.fakes import FakeGroup, FakeMember, Wire


class LiveWire(Wire):
    """Delivers by itself, in the reactor's next turn."""

    reactor: Any = None
    is_scheduled = False

    def write(self, data: bytes) -> None:
        super().write(data)
        self.schedule()

    def loseConnection(self) -> None:
        super().loseConnection()
        self.schedule()

    abortConnection = loseConnection

    def schedule(self) -> None:
        """Once per turn."""
        if not self.is_scheduled:
            self.is_scheduled = True
            self.reactor.callLater(0, self.deliver)

    def deliver(self) -> None:
        """To the member."""
        self.is_scheduled = False
        if self.is_open:
            self.member.deliver(self)


class LiveEndpoint:
    """Connects to a member of the group."""

    def __init__(self, member: FakeMember, reactor: Any) -> None:
        self.member = member
        self.reactor = reactor

    def connect(self, factory: Any) -> Deferred[Any]:
        """At once, or refused."""
        if not self.member.is_up:
            return fail(ConnectionRefusedError())
        protocol = factory.buildProtocol(None)
        wire = LiveWire(self.member, protocol)
        wire.reactor = self.reactor
        self.member.wires.append(wire)
        protocol.makeConnection(wire)
        return succeed(protocol)


class LiveGroup(FakeGroup):
    """A group for the reactor of a log."""

    def __init__(self) -> None:
        super().__init__(clock=None)
        self.reactor: Any = None
        for member in self.members.values():
            member.refuses_polls = True

    def open(self, **options: Any) -> Log:
        """A log of this group."""
        options.setdefault("timeout", 5.0)
        log = Log(
            self.peers,
            endpoint_for=lambda address: LiveEndpoint(self.by_address[address], self.reactor),
            **options,
        )
        assert log._thread is not None
        self.reactor = log._thread.reactor
        return log


class _AnsweringClient:
    """Client and reactor in one, in a thread: every call of L{submit} is settled at once."""

    def __init__(self) -> None:
        self._calls: SimpleQueue[Callable[[], object]] = SimpleQueue()
        self._thread = threading.Thread(target=self._main, daemon=True)
        self._thread.start()

    def _main(self) -> None:
        while (call := self._calls.get()) != self.stop:
            call()

    def run(self, call: Callable[[], object]) -> None:
        """As L{ReactorThread.run}."""
        self._calls.put(call)

    def submit(
        self, bodies: Sequence[bytes], done: Callable[[AppendOutcome], None], **_options: object
    ) -> None:
        """As L{LogClient.submit}."""
        done((Appended(index=0, term=1, pos=0, count=len(bodies), offset=0),))

    def stop(self) -> bool:
        """Whether the thread comes to its end."""
        self.run(self.stop)
        self._thread.join(5.0)
        return not self._thread.is_alive()


#: After these the interpreter looks for signals, and nowhere else (Python 3.11 and later).
_CHECKING = ("RESUME", "CALL", "CALL_KW", "CALL_FUNCTION_EX", "JUMP_BACKWARD")


def interrupted_at(step: int, call: Callable[[], object]) -> bool:
    """
    Call it, and raise KeyboardInterrupt at the place number C{step} at which Ctrl-C could do so.

    @return: whether it came so far.
    """
    left = step
    previous: dict[FrameType, int] = {}

    def trace(frame: FrameType, event: str, _argument: object) -> Any:
        nonlocal left
        modules = (blocking, blocking_batches, feed, client_thread, threading, futures)
        files = tuple(module.__file__ for module in modules)
        if frame.f_code.co_filename not in files:
            return None  # also finalizers, which swallow what is raised in them
        frame.f_trace_opcodes = True
        if event == "opcode":
            code = frame.f_code.co_code
            is_checked = frame in previous and opname[code[previous[frame]]] in _CHECKING
            previous[frame] = frame.f_lasti
            left -= is_checked
            if left < 0:
                sys.settrace(None)
                raise KeyboardInterrupt
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        call()
    except KeyboardInterrupt:  # L{AppendInterrupted}, except at the first and the last places
        return True
    finally:
        sys.settrace(before)
    return False


class LogTests(SynchronousTestCase):
    """Every call waits for its outcome."""

    def setUp(self) -> None:
        self.group = LiveGroup()
        self.log = self.group.open()
        self.addCleanup(self.log.close)

    def test_append_and_get(self) -> None:
        """One entry there and back."""
        appended = self.log.append(b"a")
        self.assertEqual((appended.index, self.log.get(0).body), (0, b"a"))

    def test_failure_is_raised(self) -> None:
        """As itself, in the calling thread."""
        self.group["n0"].refusals.append(ResponseCode.DISK_FULL)
        self.assertRaises(AppendFailed, self.log.append, b"a")
        self.assertRaises(DLedgerError, self.log.get, 0)
        self.assertRaises(ValueError, self.log.get, 0, "perhaps")

    def test_status_metadata_transfer(self) -> None:
        """The rest of the calls."""
        self.assertEqual([info.member_id for info in self.log.status()], ["n0", "n1", "n2"])
        self.assertEqual(self.log.metadata().member_id, "n0")
        self.assertEqual(self.log.transfer("n1"), 2)

    def test_a_tail_ends_at_the_end(self) -> None:
        """Ends at the end; can be left before."""
        self.group.log = [b"%d" % number for number in range(7)]
        self.assertEqual([entry.index for entry in self.log.tail(2)], [2, 3, 4, 5, 6])
        self.assertEqual([entry.index for entry in self.log.tail(-2)], [5, 6])
        for entry in self.log.tail(0, follow=True):
            if entry.index == 3:
                break

    def test_tail_batches_have_the_bodies_of_a_tail(self) -> None:
        """They end at the end, or after a time without a new entry; can be left before, and closed."""
        self.group.log = [b"%d" % number for number in range(7)]
        batches = list(self.log.tail_batches(2))
        self.assertEqual([body for batch in batches for body in batch.bodies], self.group.log[2:])
        self.assertEqual([entry.index for batch in batches for entry in batch], [2, 3, 4, 5, 6])
        self.assertEqual(batches[-1].next_index, 7)
        for batch in self.log.tail_batches(0, follow=True):
            if 3 in batch.indexes:
                break
        following = self.log.tail_batches(0, follow=True, timeout=0.05)
        self.assertEqual([index for batch in following for index in batch.indexes], list(range(7)))

    def test_a_tail_reports_that_its_log_was_closed(self) -> None:
        """By another thread: its end is not that of the log."""
        self.group.log = [b"a", b"b", b"c"]
        for follow in (True, False):
            log = self.group.open()
            batches = log.tail_batches(0, follow=follow)
            self.assertEqual(next(batches).bodies, [b"a", b"b"])
            log.close()
            self.assertRaises(DLedgerError, list, batches)

    def test_following_tail_with_a_time_limit(self) -> None:
        """Ends when nothing came for so long."""
        self.group.log = [b"a", b"b", b"c"]
        self.assertEqual(len(list(self.log.tail(0, follow=True, timeout=0.05))), 3)

    def test_a_closed_log_says_so(self) -> None:
        """Later calls say so; callers that wait are informed; closing again is nothing."""
        self.group["n0"].holds = self.group["n1"].holds = self.group["n2"].holds = lambda _: True
        errors: list[Exception] = []
        waiting = threading.Event()

        def wait() -> None:
            waiting.set()
            try:
                self.log.get(0)
            except DLedgerError as error:
                errors.append(error)

        thread = threading.Thread(target=wait)
        thread.start()
        waiting.wait(5)
        self.log.status()  # takes a turn, so that the read is under way
        self.log.close()
        self.log.close()
        thread.join(5)
        self.assertIn("closed", str(errors))
        self.assertRaises(DLedgerError, self.log.append, b"a")

    def test_each_thread_keeps_its_order(self) -> None:
        """Each keeps its own order."""

        def append(name: int) -> None:
            for number in range(20):
                self.log.append(b"%d.%d" % (name, number))

        threads = [threading.Thread(target=append, args=(name,)) for name in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(10)
        for name in range(3):
            mine = [body for body in self.group.log if body.startswith(b"%d." % name)]
            self.assertEqual(mine, [b"%d.%d" % (name, number) for number in range(20)])


class AppendManyTests(SynchronousTestCase):
    """Streams of bodies."""

    def setUp(self) -> None:
        self.group = LiveGroup()
        self.log = self.group.open()
        self.addCleanup(self.log.close)

    def test_order_and_summary(self) -> None:
        """Everything in order, whatever the window."""
        for window in (1, 2, 7, 1000):
            self.group.log = []
            bodies = [b"%d" % number for number in range(500)]
            summary = self.log.append_many(iter(bodies), window=window)
            self.assertEqual(self.group.log, bodies)
            self.assertEqual((summary.count, summary.first_index, summary.last_index), (500, 0, 499))
            self.assertEqual([(run.offset, run.index, run.count) for run in summary.runs], [(0, 0, 500)])

    def test_each_body_has_its_place(self) -> None:
        """The place of each body, whatever other writers put between."""
        bodies = [b"%d" % number for number in range(300)]

        def interrupted() -> Iterator[bytes]:
            for number, body in enumerate(bodies):
                if number % 37 == 5:
                    self.log.append(b"another's")
                yield body

        summary = self.log.append_many(interrupted(), window=3)
        self.assertGreater(len(summary.runs), 3)
        for number, body in enumerate(bodies):
            self.assertEqual(self.group.log[summary.index_of(number)], body)
        self.assertRaises(IndexError, summary.index_of, 300)

    def test_an_empty_stream_appends_nothing(self) -> None:
        """No bodies: an empty summary."""
        summary = self.log.append_many([])
        self.assertEqual((summary.count, summary.first_index, summary.rate > -1), (0, -1, True))

    def test_a_window_bounds_the_stream(self) -> None:
        """No more than the window is ever under way; each body goes out before the next is pulled."""
        pulled: list[int] = []
        seen: list[int] = []
        plain = self.group["n0"].append

        def watch(request: AppendRequest, base: dict[str, Any]) -> Any:
            seen.append(len(pulled) - len(self.group.log))
            return plain(request, base)

        self.group["n0"].append = watch

        def bodies() -> Iterator[bytes]:
            for number in range(300):
                pulled.append(number)
                yield b"x"

        self.log.append_many(bodies(), window=5)
        self.assertLessEqual(max(seen), 6)  # one more is pulled before there is room for it

    def test_body_goes_out_while_the_source_waits(self) -> None:
        """A slow source does not hold back bodies that it has given."""

        def bodies() -> Iterator[bytes]:
            yield b"a"
            for _ in range(1000):
                if self.group.log:
                    break
                self.log.metadata()
            self.assertEqual(self.group.log, [b"a"])
            yield b"b"

        self.log.append_many(bodies())
        self.assertEqual(self.group.log, [b"a", b"b"])

    def test_progress_is_reported_to_the_caller(self) -> None:
        """Reported in the calling thread; the last is the whole."""
        reported: list[int] = []
        threads: set[int] = set()

        def progress(count: int) -> None:
            reported.append(count)
            threads.add(threading.get_ident())

        self.log.append_many([b"x"] * 50, window=3, progress=progress)
        self.assertEqual((reported[-1], threads), (50, {threading.get_ident()}))
        self.assertEqual(reported, sorted(reported))

    def test_the_first_failure_ends_the_stream(self) -> None:
        """The first failure ends it; what is acknowledged from the start is counted."""
        plain = self.group["n0"].append
        pulled: list[int] = []

        def bodies() -> Iterator[bytes]:
            for number in range(10_000):
                pulled.append(number)
                yield b"%d" % number

        self.group["n0"].append = self.three_then(plain)
        error = self.assertRaises(AppendFailed, self.log.append_many, bodies(), window=1)
        self.assertEqual(error.facts["acknowledged"], 3)
        self.assertEqual((error.failed, error.unknown), (1, 0))
        self.assertLess(len(pulled), 10)
        self.assertEqual(self.group.log, [b"0", b"1", b"2"])

    def test_failure_in_a_list(self) -> None:
        """Those that were never sent count as failed, as their number is known."""
        self.group["n0"].append = self.three_then(self.group["n0"].append)
        error = self.assertRaises(AppendFailed, self.log.append_many, [b"x"] * 500, window=1)
        self.assertEqual((error.facts["acknowledged"], error.unknown, error.failed), (3, 0, 497))

    def test_what_goes_through_behind_a_failure(self) -> None:
        """Small bodies that still fit after a large one that did not are counted apart."""
        plain = self.group["n0"].append
        all_put = threading.Event()

        def bodies() -> Iterator[bytes]:
            yield from (b"s" * 40_000, b"s" * 40_000, b"l" * 200_000, b"s" * 40_000)
            all_put.set()

        def append(request: AppendRequest, base: dict[str, Any]) -> Any:
            all_put.wait(10.0)  # else the failure may come before the last of them is pulled
            self.group["n0"].refusals.clear()
            if any(len(body) > 50_000 for body in request.bodies):
                self.group["n0"].refusals.append(ResponseCode.DISK_FULL)
            return plain(request, base)

        self.group["n0"].append = append
        error = self.assertRaises(AppendFailed, self.log.append_many, bodies(), window=100)
        later = error.facts.get("acknowledged_later", 0)
        self.assertEqual(error.facts["acknowledged"] + later, len(self.group.log))
        self.assertEqual(error.facts["acknowledged"] + later + error.failed, 4)

    def three_then(self, plain: Any) -> Any:
        """Takes three, then refuses for good."""

        def append(request: AppendRequest, base: dict[str, Any]) -> Any:
            self.group["n0"].refusals.clear()
            if len(self.group.log) >= 3:
                self.group["n0"].refusals.append(ResponseCode.DISK_FULL)
            return plain(request, base)

        return append

    def test_an_unknown_body_makes_all_unknown(self) -> None:
        """An unknown one makes the whole unknown."""
        plain = self.group["n0"].append

        def append(request: AppendRequest, base: dict[str, Any]) -> Any:
            if len(self.group.log) >= 4:
                self.group["n0"].refusals.append(ResponseCode.WAIT_QUORUM_ACK_TIMEOUT)
            return plain(request, base)

        self.group["n0"].append = append
        error = self.assertRaises(UnknownOutcome, self.log.append_many, [b"x"] * 9, window=2)
        self.assertGreaterEqual(error.unknown, 1)
        self.assertGreaterEqual(error.facts["acknowledged"], 4)
        self.assertEqual(len(self.group.log), error.facts["acknowledged"])

    def test_source_that_fails(self) -> None:
        """Bodies that it gave before are in the log, in order, when its exception comes out."""

        def bodies() -> Iterator[bytes]:
            for number in range(25):
                yield b"%d" % number
            raise RuntimeError("the source is dry")

        self.assertRaises(RuntimeError, self.log.append_many, bodies(), window=10)
        self.assertEqual(self.group.log, [b"%d" % number for number in range(25)])

    def test_an_interrupt_reports_the_rest(self) -> None:
        """Ctrl-C is not waited with: what was acknowledged and what was under way are reported at once."""

        def bodies() -> Iterator[bytes]:
            yield from [b"a", b"b", b"c"]
            while len(self.group.log) < 3:
                self.log.metadata()
            self.log.metadata()  # one more turn: the answers are in
            self.group["n0"].holds = lambda request: isinstance(request, AppendRequest)
            yield b"d"
            raise KeyboardInterrupt

        error = self.assertRaises(AppendInterrupted, self.log.append_many, bodies())
        self.assertEqual((error.acknowledged, error.unknown), (3, 1))
        self.log.metadata()  # the last body has been sent
        self.log.close()
        self.assertEqual((error.acknowledged, error.unknown), (3, 1))
        self.assertIsInstance(error, KeyboardInterrupt)

    def test_interrupted_before_anything_was_sent(self) -> None:
        """When the log is closed, it is certain that these bodies are not in it."""
        for member in self.group.members.values():
            member.is_up = False

        def bodies() -> Iterator[bytes]:
            yield from [b"a", b"b"]
            raise KeyboardInterrupt

        error = self.assertRaises(AppendInterrupted, self.log.append_many, bodies())
        self.assertEqual((error.acknowledged, error.unknown), (0, 2))
        self.log.close()
        self.assertEqual((error.acknowledged, error.unknown), (0, 0))

    def test_an_interrupt_leaves_nothing_locked(self) -> None:
        """
        Wherever Ctrl-C meets the calling thread, it leaves nothing locked: the reactor's thread would wait
        for that for ever, and whoever closes the log for the reactor's thread.
        """
        step, is_interrupted = 0, True
        while is_interrupted:
            client: Any = _AnsweringClient()
            feed = Feed(client.submit, client, 2, lambda _: None)
            is_interrupted = interrupted_at(step, partial(feed.run, [b"a"] * 20))
            self.assertTrue(client.stop(), f"the other thread waits for ever after step {step}")
            step += 1
        self.assertGreater(step, 60)

    def test_window_is_checked(self) -> None:
        """None is too few."""
        self.assertRaises(ValueError, self.log.append_many, [b"x"], window=0)

    def test_the_rate_is_entries_over_seconds(self) -> None:
        """Entries over seconds."""
        summary = AppendSummary(count=10, first_index=0, last_index=9, seconds=2.0)
        self.assertEqual(summary.rate, 5.0)
