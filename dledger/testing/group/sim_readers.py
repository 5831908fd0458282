# -*- test-case-name: tests.sim.test_sim_readers -*-
"""
Processes of named readers of a simulated group, and their operator.

A process takes the entries one by one, commits now and then, is killed or frozen, and begins again. Some
commits leave entries out. The operator moves readers, forgets them, and asks for the list. Every answer and
every entry is compared with the log, see L{dledger.testing.group.checks.readers}.
"""

from __future__ import annotations

import random
from functools import partial

import attrs
from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IStreamClientEndpoint
from twisted.internet.task import deferLater
from twisted.python.failure import Failure

from dledger.client.client import LogClient
from dledger.client.readers import NamedReader, ReaderCalls, ReaderOptions
from dledger.testing.group.checks.readers import ReaderRules
from dledger.testing.group.checks.require import require
from dledger.testing.group.clients import ANSWER_S
from dledger.testing.group.members.cluster import SECOND_US, SimCluster
from dledger.testing.world.process import ProcessReactor, SimProcess
from dledger.testing.world.streams import StreamClient
from dledger.values.errors import DLedgerError
from protocols.wire.codes import ResponseCode
from protocols.wire.ledger.messages import ReaderRequest, ReaderResponse
from protocols.wire.ledger.readers import NO_END

#: A process gives up a request after this time.
PATIENCE_S = 6.0
#: Longest time without an entry for a process that reads what is left: leases of others may have to end.
DRAIN_US = 60 * SECOND_US
#: Share of the entries that are committed then one by one.
DRAIN_COMMITS = 0.03
#: Chances for each entry: to commit it, to leave some out, to begin again, to be frozen, to be killed.
_COMMITS, _LEAVES_OUT, _BEGINS_AGAIN, _FREEZES, _DIES = 0.3, 0.02, 0.04, 0.03, 0.02


@attrs.frozen(kw_only=True)
class ReaderLoad:
    """
    @ivar names: number of readers.
    @ivar processes: of them together.
    @ivar share: see L{LogClient.reader}.
    @ivar lease_s: of each lease.
    @ivar orders: share of the turns of a process in which it acts as the operator.
    """

    names: int = 1
    processes: int = 2
    share: int = 0
    lease_s: float = 1.0
    orders: float = 0.03


@attrs.frozen
class WatchedCalls(ReaderCalls):
    """The requests of a client, each answer compared with the log."""

    cluster: SimCluster
    rules: ReaderRules

    async def ask(self, request: ReaderRequest) -> ReaderResponse:
        asked_us, known, era = self.cluster.clock.now_us, self.rules.fold(), self.cluster.history.era
        if request.does in ("move", "forget"):
            self.rules.ordered(request.name)
        answer = await super().ask(request)
        if era == self.cluster.history.era:
            self.rules.answered(request, answer, asked_us, known)
        return answer


class SimReader:
    """
    A process of a reader, through its deaths, until L{stop}.

    @ivar is_busy: it does something that must come to an end.
    @ivar reader_name: of its reader. @ivar rules: of all readers.
    """

    is_dying = False

    def __init__(
        self, cluster: SimCluster, rules: ReaderRules, name: str, reader: str, load: ReaderLoad,
        rng: random.Random,
    ) -> None:
        """@param name: address of the process. @param reader: name of the reader."""
        self.name = name
        self.is_busy = False
        self._cluster = cluster
        self.rules = rules
        self.reader_name = reader
        self._load = load
        self._rng = rng
        self._lives = 0
        self._is_stopped = False
        self._process: SimProcess
        self._reactor: ProcessReactor
        self._client: LogClient
        self._reader: NamedReader | None = None
        self._boot()
        cluster.clients.append(self)

    def _boot(self) -> None:
        self._lives += 1
        cluster = self._cluster
        self._process = SimProcess(cluster.clock, self._rng, self)
        self._reactor = ProcessReactor(self._process)
        self._client = LogClient(
            cluster.addresses, reactor=self._reactor, wire=cluster.options.clients_wire, timeout_s=PATIENCE_S,
            answer_timeout_s=ANSWER_S, endpoint_for=self._endpoint_for, rng=self._rng,
        )
        self._reader = None

    def _endpoint_for(self, address: str) -> IStreamClientEndpoint:
        return StreamClient(self._cluster.network, self.name, self._process, address.partition(".")[0])

    def event_ended(self) -> None:
        """See L{dledger.testing.world.process.ProcessOwner.event_ended}."""
        self._cluster.bugs.notify()

    # -- life -------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin."""
        self._cluster.clock.after(int(SECOND_US * self._rng.random()), self._process.run, self, self._run)

    def _run(self) -> None:
        Deferred.fromCoroutine(self._live()).addErrback(self._broken)

    def _broken(self, failure: Failure) -> None:
        assert failure.value is not None
        self._cluster.bugs.note(failure.value)

    def stop(self) -> None:
        """Stop reading, and give the lease back."""
        self._is_stopped = True
        self._process.run(self, self._close)

    def _close(self) -> None:
        if self._reader is not None:
            self._reader.close()

    def kill(self) -> None:
        """The process ends; another one goes on."""
        self._process.end()
        self._cluster.network.died(self.name, self._process, silently=False)
        self.is_busy = False
        self._boot()
        self.start()

    def _freeze(self) -> None:
        self._process.freeze()
        held_us = int(3 * SECOND_US * self._load.lease_s * self._rng.random())
        self._cluster.clock.after(held_us, self._process.thaw)

    async def _pause(self, seconds: float) -> None:
        await deferLater(self._reactor, seconds * self._rng.random())

    # -- a life ----------------------------------------------------------------------------

    def _calls(self) -> WatchedCalls:
        return WatchedCalls(self._client._commands.appends, self._cluster, self.rules)

    def open(self, *, follow: bool, begin: int = 0) -> NamedReader:
        """A reader whose answers are checked."""
        client = self._client
        reader = self._reader = NamedReader(
            self._calls(), partial(client.tail, follow=True, control=True),
            partial(client._find_begin, begin) if begin < 0 else None, ReaderOptions(
                name=self.reader_name, begin=max(begin, 0), share=self._load.share,
                lease_s=self._load.lease_s, follow=follow, timeout_s=None if follow else 3 * PATIENCE_S,
                holder=f"{self.name}:{self._rng.getrandbits(40)}",
            ),
        )
        return reader

    async def _live(self) -> None:
        while not self._is_stopped:
            try:
                if self._rng.random() < self._load.orders:
                    await self._order()
                begin = self._rng.choice((0, 0, -3, NO_END))
                await self._read(self.open(follow=self._rng.random() < 0.8, begin=begin))
            except DLedgerError as error:
                self._expect(error)
            await self._pause(1.0)

    def _expect(self, error: DLedgerError) -> None:
        """Requests may fail in many ways, but readers never reach what was not committed."""
        require(error.code is not ResponseCode.INTERNAL_ERROR, 12, f"{self.name}: {error}")

    async def _order(self) -> None:
        calls, chance = self._calls(), self._rng.random()
        if chance < 0.6:
            await calls.infos()
        elif chance < 0.9:
            end = self._cluster.invariants.last_committed + 1
            await calls.move(self.reader_name, self._rng.choice((0, end // 2, end, NO_END)))
        else:
            await calls.forget(self.reader_name)

    async def _read(self, reader: NamedReader) -> None:
        """Take entries until something ends it. (No C{finally}: a process that was killed closes nothing.)"""
        try:
            await self._take(reader)
        except DLedgerError as error:
            self._expect(error)
            if error.code is ResponseCode.INDEX_LESS_THAN_LOCAL_BEGIN:
                await self._leave_out_deleted(reader, error)
        await reader.close()

    async def _leave_out_deleted(self, reader: NamedReader, error: DLedgerError) -> None:
        try:
            await reader.commit(int(str(error.facts["first_index"])) - 1)
        except DLedgerError as refused:
            self._expect(refused)

    async def _take(self, reader: NamedReader) -> None:
        token, next_index, era = -1, -1, self._cluster.history.era
        while not self._is_stopped:
            entry = await anext(reader, None)
            if era != self._cluster.history.era or entry is None:
                return  # (What is committed may have been lost.)
            if reader.token != token:
                token, next_index = reader.token, reader.done_index + 1
            self.rules.check_handed(self.reader_name, token, next_index, entry)
            next_index = max(entry.index + 1, await self._work(reader, entry.index))

    async def _work(self, reader: NamedReader, index: int) -> int:
        """Do something with an entry. @return: the entries before this one were left out."""
        chance = self._rng.random()
        if chance < _COMMITS:
            await reader.commit()
        elif chance < _COMMITS + _LEAVES_OUT and not self._load.share:
            await reader.commit(index + 1)
            return index + 2
        elif chance < 0.5 and self._rng.random() < 0.2:
            await self._pause(self._load.lease_s)
        elif chance > 1 - _DIES:
            self._cluster.clock.after(1, self.kill)
            await self._pause(1.0)
        elif chance > 1 - _DIES - _FREEZES:
            self._freeze()
            await self._pause(0.1)
        elif chance > 1 - _DIES - _FREEZES - _BEGINS_AGAIN:
            await reader.close()
        return 0

    # -- the end ----------------------------------------------------------------------------------

    def begin_drain(self, index: int) -> None:
        """Read and commit all up to an entry at least; C{is_busy} says for how long."""
        self._process.run(self, self._run_drain, index)

    def _run_drain(self, index: int) -> None:
        Deferred.fromCoroutine(self._drain(index)).addErrback(self._broken)

    def judge_drain(self, index: int) -> None:
        """All that was committed before is done. @param index: the last entry then."""
        require(not self.is_busy, 12, f"{self.name} did not come to {index} after all faults")

    async def _drain(self, index: int) -> None:
        while not self.rules.done_by(self.reader_name, index):
            try:
                await self._drain_once()
            except DLedgerError as error:  # (It may have been frozen a moment ago.)
                self._expect(error)
            await self._pause(1.0)  # (Others may have shares, until their leases are over.)
        self.is_busy = False

    async def _drain_once(self) -> None:
        reader = self.open(follow=False)
        try:
            await self._finish(reader)
        except DLedgerError as error:
            if error.code is not ResponseCode.INDEX_LESS_THAN_LOCAL_BEGIN:
                raise
            await self._leave_out_deleted(reader, error)
            await reader.close()

    async def _finish(self, reader: NamedReader) -> None:
        """Read to the end of the log, commit, and close."""
        token, next_index = -1, -1
        while (entry := await anext(reader, None)) is not None:
            if reader.token != token:
                token, next_index = reader.token, reader.done_index + 1
            self.rules.check_handed(self.reader_name, token, next_index, entry)
            next_index = entry.index + 1
            if self._rng.random() < DRAIN_COMMITS:
                await reader.commit()
        if reader.handed_index >= 0:
            await reader.commit()
        await reader.close()


class SimReaders:
    """The processes of the readers of a schedule."""

    def __init__(self, cluster: SimCluster, processes: list[SimReader]) -> None:
        self._cluster = cluster
        self._processes = processes

    @classmethod
    def of(cls, cluster: SimCluster, load: ReaderLoad | None) -> SimReaders:
        """Those of a load; None: no reader."""
        if load is None:
            return cls(cluster, [])
        clock = cluster.clock
        rules = cluster.world.readers = ReaderRules(cluster.invariants, lambda: clock.now_us)
        return cls(cluster, [
            SimReader(cluster, rules, f"10.1.0.{number}", f"reader {number % load.names}", load,
                      cluster.random(f"reader {number}"))
            for number in range(max(load.processes, load.names))
        ])

    def start(self) -> None:
        """Begin."""
        for process in self._processes:
            process.start()

    def stop(self) -> None:
        """All processes stop reading, and give their leases back."""
        for process in self._processes:
            process.stop()

    def drain(self) -> bool:
        """
        After all faults: one process of each reader reads what is left, which is then done.

        @return: whether there are readers, which have appended since.
        @raise InvariantError: it does not come to the end in time.
        """
        for process in {process.reader_name: process for process in self._processes}.values():
            process.is_busy = True
            last = self._cluster.invariants.last_committed
            while last >= 0 and not process.rules.is_owed(last):
                last -= 1  # one of a member's own
            process.begin_drain(last)
            handed, until_us = -1, 0
            while process.is_busy and self._cluster.clock.now_us < until_us or handed < process.rules.handed:
                if handed < process.rules.handed:
                    handed, until_us = process.rules.handed, self._cluster.clock.now_us + DRAIN_US
                self._cluster.run(0.5)
                self._cluster.bugs.notify()
            process.judge_drain(last)
        return bool(self._processes)
