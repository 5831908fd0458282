# -*- test-case-name: tests.commands.test_main -*-
"""A log that does as it is asked, for the command line."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime
from typing import Any

from click.testing import CliRunner, Result
from twisted.internet.defer import Deferred, succeed
from twisted.python.failure import Failure
from twisted.trial.unittest import SynchronousTestCase

import dledger
from dledger.cli.main import cli
from dledger.client.blocking import AppendSummary
from dledger.client.places import find_time, milliseconds
from dledger.client.values import Entry, EnvelopedEntry, LastSequence, MemberInfo
from dledger.values.errors import DLedgerError
from protocols.wire.codes import ResponseCode
from protocols.wire.ledger.envelopes import decode_envelope
from protocols.wire.ledger.own.own_entries import SESSION_CHANNEL, own_kind
from protocols.wire.ledger.readers import ReaderInfo


def info(member_id: str, **facts: Any) -> MemberInfo:
    """What a member says."""
    facts.setdefault("address", f"{member_id}.test:20911")
    return MemberInfo(member_id=member_id, **facts)


class SearchedTail:
    """Entries for C{async for}."""

    def __init__(self, entries: Iterator[Entry]) -> None:
        self._entries = entries

    def __aiter__(self) -> SearchedTail:
        return self

    async def __anext__(self) -> Entry:
        try:
            return next(self._entries)
        except StopIteration:
            raise StopAsyncIteration from None

    def close(self) -> None:
        """No more are wanted."""


class SearchedLog:
    """A L{FakeLog} for L{find_time}."""

    has_times = False

    def __init__(self, log: FakeLog) -> None:
        self._log = log

    def metadata(self) -> Deferred[MemberInfo]:
        """As L{dledger.client.client.LogClient.metadata}."""
        return succeed(self._log.metadata())

    def tail(
        self, from_index: int, follow: bool, *, timeout_s: float | None, control: bool,
        looks_back: bool = True,
    ) -> SearchedTail:
        """As L{dledger.client.client.LogClient.tail}."""
        return SearchedTail(self._log.tail(from_index, follow, timeout_s, control=control))


class FakeLog:
    """
    Implements L{dledger.Log}.

    @ivar fails: raised by the next call.
    @ivar fails_after: C{append_many} fails when this number is in.
    """

    def __init__(self) -> None:
        self.bodies: list[bytes] = []
        self.fails: BaseException | None = None
        self.fails_after = -1
        self.calls: list[tuple[Any, ...]] = []
        self.is_closed = False
        self.reader_infos: tuple[ReaderInfo, ...] = ()
        self.sequences: dict[str, LastSequence | DLedgerError] = {}
        self.control: set[int] = set()
        self.following: Callable[[], None] | None = None
        self.infos: tuple[MemberInfo, ...] = (
            info("n0", role="leader", term=3, begin_index=0, end_index=41, committed_index=41,
                 leader_id="n0"),
            info("n1", role="follower", begin_index=0, end_index=40, committed_index=39, leader_id="n0"),
            info("n2", problem="connection refused"),
        )

    def __enter__(self) -> FakeLog:
        return self

    def __exit__(self, *_exit: object) -> None:
        self.is_closed = True

    def _called(self, *call: Any) -> None:
        self.calls.append(call)
        if self.fails is not None and self.fails_after < 0:
            raise self.fails

    def append_many(
        self, bodies: Iterable[bytes], window: int = 1000, progress: Callable[[int], object] | None = None,
        *, headers: Mapping[str, bytes] | None = None,
    ) -> AppendSummary:
        """As L{dledger.client.blocking.Log.append_many}."""
        self._called("append_many", window, *([headers] if headers else []))
        first = len(self.bodies)
        for body in bodies:
            if self.fails is not None and len(self.bodies) == self.fails_after:
                raise self.fails
            self.bodies.append(body)
            if progress is not None:
                progress(len(self.bodies) - first)
        count = len(self.bodies) - first
        return AppendSummary(
            count=count, first_index=first if count else -1, last_index=len(self.bodies) - 1 if count else -1,
            seconds=0.5,
        )

    def entry(self, index: int) -> Entry:
        """One of those appended."""
        channel = SESSION_CHANNEL if index in self.control else 0
        envelope = decode_envelope(self.bodies[index])
        if envelope is None:
            return Entry(index=index, term=1, pos=100 * index, body=self.bodies[index], channel=channel,
                         kind=own_kind(channel, 1))
        return EnvelopedEntry(
            index=index, term=1, pos=100 * index, body=envelope.body, timestamp=envelope.time_ms,
            headers=envelope.headers,
        )

    def get(self, index: int, consistency: str) -> Entry:
        """As L{dledger.client.blocking.Log.get}."""
        self._called("get", index, consistency)
        if index >= len(self.bodies):
            raise DLedgerError(ResponseCode.INDEX_OUT_OF_RANGE, index=index)
        return self.entry(index)

    def find_time(self, moment: datetime) -> int:
        """The real search of L{dledger.client.blocking.Log.find_time}, in this log."""
        found = Deferred.fromCoroutine(find_time(SearchedLog(self), milliseconds(moment), 10.0))
        results: list[Any] = []
        found.addBoth(results.append)
        (result,) = results
        if isinstance(result, Failure):
            result.raiseException()
        return int(result)

    def tail(
        self, from_index: int = 0, follow: bool = False, timeout: float | None = None, *,
        control: bool = False,
    ) -> Iterator[Entry]:
        """As L{dledger.client.blocking.Log.tail}."""
        self._called("tail", from_index, follow)
        first = from_index if from_index >= 0 else max(0, len(self.bodies) + from_index)
        for index in range(first, len(self.bodies)):
            if control or not self.entry(index).is_control:
                yield self.entry(index)
        if follow:
            if self.following is not None:
                self.following()
            raise KeyboardInterrupt

    def status(self) -> tuple[MemberInfo, ...]:
        """As L{dledger.client.blocking.Log.status}."""
        self._called("status")
        return self.infos

    def metadata(self) -> MemberInfo:
        """As L{dledger.client.blocking.Log.metadata}."""
        self._called("metadata")
        return self.infos[0]

    def readers(self) -> tuple[ReaderInfo, ...]:
        """As L{dledger.client.blocking.Log.readers}."""
        self._called("readers")
        return self.reader_infos

    def last_sequence(self, producer: str) -> LastSequence | None:
        """As L{dledger.client.blocking.Log.last_sequence}."""
        self._called("last_sequence", producer)
        found = self.sequences.get(producer)
        if isinstance(found, DLedgerError):
            raise found
        return found

    def skip(self, index: int) -> int:
        self._called("skip", index)
        return 17

    def begin_state(self, *, insists: bool = False) -> int:
        self._called("begin_state", insists)
        return 18

    def reset_times(self) -> int:
        self._called("reset_times")
        return 19

    def move_reader(self, name: str, index: int) -> int:
        """As L{dledger.client.blocking.Log.move_reader}."""
        self._called("move_reader", name, index)
        return 17

    def forget_reader(self, name: str) -> None:
        """As L{dledger.client.blocking.Log.forget_reader}."""
        self._called("forget_reader", name)

    def transfer(self, to: str, term: int | None = None) -> int:
        """As L{dledger.client.blocking.Log.transfer}."""
        self._called("transfer", to, term)
        return 4


class CliCase(SynchronousTestCase):
    """Runs commands against a fake log."""

    def setUp(self) -> None:
        self.log = FakeLog()
        self.opened: list[tuple[Any, ...]] = []

        def connect(peers: str, **options: Any) -> FakeLog:
            self.opened.append((peers, options))
            return self.log

        self.patch(dledger, "connect", connect)

    def run_cli(self, *args: str, stdin: bytes | None = None, env: dict[str, str] | None = None) -> Result:
        """One command; C{--peers} is given unless the environment does."""
        runner = CliRunner()
        return runner.invoke(cli, args, input=stdin, env={"DLEDGER_PEERS": "n0-h:1", **(env or {})})

    def assertExit(self, result: Result, status: int, *texts: str) -> None:
        """Exit status, and the output."""
        shown = result.stdout + result.stderr
        self.assertEqual(result.exit_code, status, f"{shown}\n{result.exception!r}")
        for text in texts:
            self.assertIn(text, shown)
