# -*- test-case-name: tests.machine.test_runner -*-
"""
Runs the state machine of one member: takes up a snapshot, applies committed entries, takes snapshots::

    starting --snapshot taken up--> running --stop--> stopped
        |                            |   ^
        |     the log lacks the next |   | taken up
        |        entry               v   |
        |                          installing
        \\---------------failure---------------> failed

Rule 1: entries are applied in their order, each once since the snapshot that was taken up, and only when this
member knows that they are committed.
Rule 2: a turn of the reactor applies for about L{TURN_S}; batches grow and shrink so that one takes less.
Rule 3: an exception of any kind, another number of results than entries, or a result that is too long stops
the machine and says which entry. The entries before it count as applied, no other does, and no snapshot is
finished from then on. The log goes on: only requests to the machine are refused. The next start begins with
the last snapshot again.
Rule 4: a snapshot that cannot be written is tried again after as many entries; the machine goes on.
Rule 5: a snapshot gets its name when the log up to its last entry is on stable storage. At the start it is
taken up when this member knows that entry to be committed, and both agree; a log that has settled before it
refuses it. So a loss of power makes no state that the log does not have.
Rule 6: where the log begins behind the state, a snapshot of another member takes the place of the state: one
that is newer, that the log goes on behind, and whose last entry the log has. Until then nobody is answered.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Coroutine, Iterable, Iterator
from itertools import chain, islice

from twisted.internet.defer import Deferred, fail, succeed
from twisted.internet.interfaces import IDelayedCall, IReactorTime
from twisted.internet.task import deferLater
from twisted.logger import Logger
from twisted.python.failure import Failure

from dledger.base.errors import DamagedEntryError, DLedgerError
from dledger.base.threads import RunInThread
from dledger.client.values import Entry
from dledger.machine.fetching import SnapshotFetch, SnapshotSource
from dledger.machine.guarded import Applied, GuardedMachine, MachineFailed, sentence_of
from dledger.machine.kept_results import KeptResults, kept_in
from dledger.machine.log_reach import CommittedEntries, check_base, is_reached, lowest_usable
from dledger.machine.offering import SnapshotOffers, SnapshotPiece
from dledger.machine.snapshot_file import OLDEST_SNAPSHOT_VERSION, SnapshotHead, SnapshotRefused
from dledger.machine.snapshots import SnapshotDirectory, UnnamedSnapshot
from dledger.machine.state_machine import MachineFactory
from dledger.machine.waiting import MachineWaits, unknown
from dledger.node.status import MachineStatus
from protocols.wire.ledger.codes import ResponseCode
from protocols.wire.ledger.entry import EntryHeader, iterate_records
from protocols.wire.ledger.messages import SnapshotRequest

#: Seconds for which one turn of the reactor applies entries, about.
TURN_S = 0.005
#: Bytes of records that are read at once, and entries that one batch has at most.
READ_BYTES = 256 * 1024
BATCH_COUNT_MAX = 1024
#: Seconds in which a snapshot must be written.
SNAPSHOT_S = 600.0
#: Seconds between two looks whether the log has come to the end of a snapshot that another member sent, and
#: before another one is asked for if it was refused.
LOOK_S, REFUSED_S, REFUSED_MAX_S = 0.2, 5.0, 600.0
#: Seconds between two looks whether the log is on stable storage up to the last entry of a snapshot.
FLUSH_LOOK_S = 0.05
_TAKES_UP = ("starting", "installing")


class MachineRunner:
    """
    See L{dledger.node.hosting.HostedMachine}.

    Invariant: the state of C{_machine} has the entries up to C{applied_index}; C{_ahead} has those that
    follow, as far as they were read.

    @ivar state, reason: as of L{MachineStatus}.
    @ivar applied_index: last entry in the state.
    """

    log = Logger()

    def __init__(
        self, factory: MachineFactory, entries: CommittedEntries, *, clock: IReactorTime,
        run_in_thread: RunInThread, snapshots: SnapshotDirectory | None, self_id: str,
        snapshot_entries: int, snapshot_bytes: int, waits_max: int, wait_ms: int,
        source: SnapshotSource | None = None,
    ) -> None:
        """
        @param run_in_thread: runs snapshots, one at a time.
        @param snapshots: None: none are taken; the log is applied from its beginning at each start.
        @param snapshot_entries, snapshot_bytes: a snapshot is due behind this number of entries, or of bytes
            of bodies; 0: not by these.
        @param waits_max, wait_ms: requests that wait, at most, and for how long.
        @param source: sends snapshots; None: nobody does.
        """
        self._factory = factory
        self._entries = entries
        self._clock = clock
        self._run_in_thread = run_in_thread
        self._snapshots = snapshots
        self._source = source
        self._fetch: SnapshotFetch | None = None
        self._offers = None if snapshots is None else SnapshotOffers(snapshots, clock.seconds)
        self._self_id = self_id
        self._snapshot_entries, self._snapshot_bytes = snapshot_entries, snapshot_bytes
        self.state, self.reason = "starting", ""
        self.applied_index = -1
        self._machine = GuardedMachine(factory)
        self._kept = KeptResults()
        self._last: EntryHeader | None = None
        self._ahead: deque[tuple[EntryHeader, bytes]] = deque()
        self._batch_count = 64
        self._call: IDelayedCall | None = None
        self._waits = MachineWaits(waits_max=waits_max, wait_ms=wait_ms, now_ms=self._now_ms)
        self._applied = self._since_entries = self._since_bytes = 0
        self._written, self._size, self._snapshot_problem = 0, -1, ""
        self._in_thread: Deferred[None] | None = None
        self._pausing: Deferred[None] | None = None
        self._waits_for = ""

    # -- life ---------------------------------------------------------------------------------

    def start(self) -> None:
        """See L{dledger.node.hosting.HostedMachine.start}."""
        self._begin(self._take_up())

    def _begin(self, work: Coroutine[Deferred[object], object, None]) -> None:
        """Begin work in the thread, of which there is one at a time."""
        done = self._in_thread = Deferred.fromCoroutine(work)
        done.addErrback(self._thread_failed)
        done.addBoth(self._left_thread)

    def _thread_failed(self, failure: Failure) -> None:
        error = failure.value
        assert error is not None
        self._fail(str(error) if isinstance(error, MachineFailed) else sentence_of(error))

    def _left_thread(self, _: object) -> None:
        self._in_thread = None

    def stop(self) -> Deferred[None]:
        """See L{dledger.node.hosting.HostedMachine.stop}."""
        if self.state != "failed":
            self.state = "stopped"
        self._rest()
        if self._fetch is not None:
            self._fetch.stop()
        if self._pausing is not None:
            self._pausing.cancel()
        self._waits.end("the member has stopped", ResponseCode.MACHINE_STOPPED)
        ended: Deferred[None] = Deferred()
        if self._in_thread is None:
            ended.callback(None)
        else:
            self._in_thread.addBoth(lambda _: ended.callback(None))
        return ended

    def _rest(self) -> None:
        call, self._call = self._call, None
        if call is not None:
            call.cancel()
        self._ahead.clear()

    def _fail(self, reason: str) -> None:
        if self.state in ("failed", "stopped"):
            return
        self.state, self.reason = "failed", reason
        self.log.critical(
            "the state machine {machine} of member {self_id} stops, the log goes on: {reason}",
            machine=self._machine.name, self_id=self._self_id, reason=reason,
        )
        self._rest()
        self._waits.end(reason, ResponseCode.MACHINE_STOPPED)

    async def _take_up(self) -> None:
        """Become the state of the newest snapshot that is sound, then follow the log."""
        snapshots = self._snapshots
        if snapshots is not None:
            await self._run_in_thread(snapshots.look)
            for reason in snapshots.refused:
                self._tell_refused(reason)
            while self.state == "starting" and snapshots.heads:
                if await self._is_taken_up(snapshots, snapshots.heads[-1]):
                    break
                self._machine = GuardedMachine(self._factory)
                self._kept = KeptResults()
        if self.state == "starting":
            self.state, self._waits_for = "running", ""
            self.log.info(
                "the state machine {machine} of member {self_id} begins behind the entry {index}",
                machine=self._machine.name, self_id=self._self_id, index=self.applied_index,
            )
            self.committed()

    async def _is_taken_up(self, snapshots: SnapshotDirectory, head: SnapshotHead) -> bool:
        """Whether the machine has become the state of a snapshot of this member, or the member stops."""
        while not is_reached(self._entries, head):
            if self._entries.members.is_settled and head.index > self._entries.committed_index:
                reason = (
                    f"it is ahead of the log, which ends at {self._entries.committed_index}: a loss of power "
                    "has taken the end of the log, and with it entries that this snapshot has. Nothing is to "
                    "be done; the file stays, and may go if the log is as it should be"
                )
                snapshots.refuse(head, reason)
                self._tell_refused(f"behind the entry {head.index}: {reason}")
                return False
            if not self._waits_for:
                self._waits_for = (
                    f"its snapshot is behind the entry {head.index}, the log is known to be committed up to "
                    f"{self._entries.committed_index}: it waits until both can be compared"
                )
            await self._pause(LOOK_S)
        return await self._restored(snapshots, head)

    async def _pause(self, seconds: float) -> None:
        """@raise CancelledError: the member stops."""
        self._pausing = deferLater(self._clock, seconds, lambda: None)
        try:
            await self._pausing
        finally:
            self._pausing = None

    async def _restored(self, snapshots: SnapshotDirectory, head: SnapshotHead) -> bool:
        """Whether the machine has become the state of a snapshot, or this member stops."""
        machine, restored = self._machine, [KeptResults()]

        def restore() -> None:
            pieces = self._until_stopped(snapshots.read(head))
            if head.format > OLDEST_SNAPSHOT_VERSION:
                restored[0] = kept_in(next(pieces, b""))
            machine.restore(pieces)

        try:
            check_base(self._entries, head)
            await self._run_in_thread(restore)
        except Exception as error:
            reason = str(error) if isinstance(error, SnapshotRefused) else sentence_of(error)
            snapshots.refuse(head, reason)
            self._tell_refused(f"behind the entry {head.index}: {reason}")
            return self.state not in _TAKES_UP
        self.applied_index, self._kept = head.index, restored[0]
        return True

    def _until_stopped(self, chunks: Iterable[bytes]) -> Iterator[bytes]:
        for chunk in chunks:
            if self.state not in _TAKES_UP:
                raise SnapshotRefused("the member stops")
            yield chunk

    def _tell_refused(self, reason: str) -> None:
        self.log.warn(
            "member {self_id} does not use a snapshot of its state machine: {reason}",
            self_id=self._self_id, reason=reason,
        )

    # -- entries ------------------------------------------------------------------------------

    def committed(self) -> None:
        """See L{dledger.node.hosting.HostedMachine.committed}."""
        if self.state == "running" and self._call is None and self._has_more():
            self._call = self._clock.callLater(0, self._turn)

    def _has_more(self) -> bool:
        return self._entries.committed_index > self.applied_index

    def _turn(self) -> None:
        self._call = None
        began_s = self._clock.seconds()
        try:
            while self.state == "running" and (self._ahead or self._read()):
                self._apply_batch()
                self._take_snapshot_if_due()
                if self._clock.seconds() - began_s >= TURN_S:
                    self.committed()
                    return
        except DamagedEntryError:
            return  # a peer gives it back; L{sweep} looks again
        except (MachineFailed, DLedgerError) as error:
            self._fail(str(error))
        except BaseException as error:
            self.log.failure("the runner of a state machine has a bug", Failure(error))
            self._fail(sentence_of(error))

    def _read(self) -> bool:
        """Read entries ahead. @return: whether there are any."""
        if not self._has_more():
            return False
        try:
            batch = self._entries.read_committed(self.applied_index + 1, max_bytes=READ_BYTES)
        except DLedgerError as error:
            if error.code is not ResponseCode.INDEX_LESS_THAN_LOCAL_BEGIN:
                raise
            if self._begin_install():
                return False
            raise MachineFailed(
                f"the log begins at {error.facts.get('ledger_begin_index')}, the state ends at "
                f"{self.applied_index}: the entries between are gone from this member. Copy a snapshot of "
                "another member into its directory machine, or give this member the whole log again"
            ) from error
        if batch is not None:
            self._ahead.extend(iterate_records(batch))
        return bool(self._ahead)

    def _apply_batch(self) -> None:
        """@raise MachineFailed: at an entry; those before it are applied."""
        began_s = self._clock.seconds()
        batch = list(islice(self._ahead, self._batch_count))
        entries = [
            Entry(index=header.index, term=header.term, pos=header.pos, body=body)
            for header, body in batch if body and not header.channel
        ]
        applied = self._machine.apply(entries) if entries else Applied(results=[])
        if applied.failure:
            failed_index = entries[len(applied.results)].index
            batch = [one for one in batch if one[0].index < failed_index]
        self._took(batch, entries[: len(applied.results)], applied.results)
        if applied.failure:
            raise MachineFailed(applied.failure)
        spent_s = self._clock.seconds() - began_s
        if spent_s > TURN_S:
            self._batch_count = max(1, self._batch_count // 2)
        elif spent_s < TURN_S / 4:
            self._batch_count = min(BATCH_COUNT_MAX, self._batch_count * 2)

    def _took(
        self, batch: list[tuple[EntryHeader, bytes]], entries: list[Entry], results: list[bytes]
    ) -> None:
        """The first entries that were read ahead are in the state; C{entries} are those with results."""
        for _ in batch:
            self._ahead.popleft()
        if batch:
            self._last = batch[-1][0]
            self.applied_index = self._last.index
        self._applied += len(entries)
        self._since_entries += len(batch)
        self._since_bytes += sum(len(body) for _, body in batch)
        by_index = {entry.index: result for entry, result in zip(entries, results, strict=True)}
        self._kept.fold(batch, by_index)
        self._waits.applied(by_index, self.applied_index)

    # -- snapshots ----------------------------------------------------------------------------

    @property
    def needed_index(self) -> int:
        """See L{dledger.node.hosting.HostedMachine.needed_index}: that of the oldest snapshot."""
        if self._snapshots is None:
            return -1
        heads = self._snapshots.heads
        # (With the last entry itself, so that the snapshot can be compared with the log.)
        return heads[0].index - 1 if heads else -1

    def _take_snapshot_if_due(self) -> None:
        is_due = 0 < self._snapshot_entries <= self._since_entries or (
            0 < self._snapshot_bytes <= self._since_bytes
        )
        if is_due and self._snapshots is not None and self._in_thread is None:
            self._since_entries = self._since_bytes = 0
            assert self._offers is not None
            self._snapshots.held = self._offers.held()
            self._begin(self._write(self._snapshots))

    async def _write(self, snapshots: SnapshotDirectory) -> None:
        last = self._last
        assert last is not None
        deadline_s = self._clock.seconds() + SNAPSHOT_S
        written: list[UnnamedSnapshot] = []

        def problem() -> str:
            if self.state != "running":
                return f"the state machine has {self.state}"
            return f"it takes more than {SNAPSHOT_S:g} s" if self._clock.seconds() > deadline_s else ""

        def write() -> None:
            written.append(snapshots.write(
                index=last.index, term=last.term, chain_crc=last.chain_crc, chunks=chunks, problem=problem
            ))

        try:
            chunks = chain((self._kept.encode(),), self._machine.snapshot())
            await self._run_in_thread(write)
            while not (reason := problem()) and self._entries.members.flushed_index < last.index:
                await self._pause(FLUSH_LOOK_S)
            if reason:
                raise SnapshotRefused(f"it gets no name: {reason}")
            await self._run_in_thread(lambda: snapshots.name(written[0]))
        except Exception as error:
            self._snapshot_problem = f"behind the entry {last.index}: {sentence_of(error)}"
            self.log.failure(
                "the snapshot of {machine} at member {self_id} behind the entry {index} was not written",
                Failure(error), machine=self._machine.name, self_id=self._self_id, index=last.index,
            )
            return
        self._written, self._size, self._snapshot_problem = self._written + 1, written[0].size, ""

    # -- snapshots of other members ------------------------------------------------------------

    def _begin_install(self) -> bool:
        """The log lacks the next entry. @return: whether another member can be asked for a snapshot."""
        source = self._source
        if self._snapshots is None or source is None or not source.is_in_group:
            return False
        self.state = "installing"
        self.log.warn(
            "the log of member {self_id} begins behind the state of {machine}, which ends with the entry "
            "{index}: another member is asked for a snapshot",
            self_id=self._self_id, machine=self._machine.name, index=self.applied_index,
        )
        self._ahead.clear()
        self._waits.end("the state machine waits for a snapshot", ResponseCode.LEADER_NOT_READY)
        self._go_on_installing()
        return True

    def _go_on_installing(self) -> None:
        if self.state == "installing" and self._in_thread is None:
            assert self._snapshots is not None and self._source is not None
            self._begin(self._install(self._snapshots, self._source))

    async def _install(self, snapshots: SnapshotDirectory, source: SnapshotSource) -> None:
        """Become the state of a snapshot of another member, then follow the log again."""
        fetch = self._fetch = SnapshotFetch(
            snapshots, source, clock=self._clock, run_in_thread=self._run_in_thread, self_id=self._self_id,
            machine=self._machine.name, machine_version=self._machine.version,
            lowest_index=self._lowest_index,
        )
        try:
            head = await fetch.fetch()
            refused_s = REFUSED_S
            while not await self._installed(snapshots, head, fetch, refused_s):
                head, refused_s = await fetch.fetch(), min(2 * refused_s, REFUSED_MAX_S)
        finally:
            self._fetch = None
        if self.state == "installing":
            self.state = "running"
            self.log.info(
                "the state machine {machine} of member {self_id} has taken up a snapshot and goes on behind "
                "the entry {index}",
                machine=self._machine.name, self_id=self._self_id, index=self.applied_index,
            )
            self.committed()

    async def _installed(
        self, snapshots: SnapshotDirectory, head: SnapshotHead, fetch: SnapshotFetch, refused_s: float
    ) -> bool:
        """Whether the machine has become the state of a snapshot; if not, another one is needed."""
        while head.index >= self._lowest_index() and not is_reached(self._entries, head):
            fetch.progress = f"the log must come to the entry {head.index}, the last one of the snapshot"
            await fetch.pause(LOOK_S)
        if head.index < self._lowest_index():
            return False  # the log has begun anew, further on
        self._machine, self._kept = GuardedMachine(self._factory), KeptResults()
        if await self._restored(snapshots, head):
            return True
        await self._run_in_thread(lambda: snapshots.discard(head))
        await fetch.pause(refused_s)
        return False

    def _lowest_index(self) -> int:
        return lowest_usable(self._entries, self.applied_index)

    @property
    def gives_snapshots(self) -> bool:
        """See L{dledger.node.hosting.HostedMachine.gives_snapshots}."""
        return self._snapshots is not None

    @property
    def proven_index(self) -> int:
        """See L{dledger.node.hosting.HostedMachine.proven_index}."""
        return -1 if self._snapshots is None else self._snapshots.proven_index

    def piece_for(self, request: SnapshotRequest, max_bytes: int) -> SnapshotPiece:
        """See L{dledger.node.hosting.HostedMachine.piece_for}."""
        if self._offers is None:
            raise DLedgerError(ResponseCode.UNSUPPORTED, reason="this member keeps no snapshots")
        return self._offers.piece_for(request, max_bytes)

    # -- requests -----------------------------------------------------------------------------

    @property
    def refusal(self) -> DLedgerError | None:
        """See L{dledger.node.hosting.HostedMachine.refusal}."""
        if self.state == "running":
            return None
        if self.state == "starting":
            return DLedgerError(
                ResponseCode.LEADER_NOT_READY,
                reason=self._waits_for or "the state machine takes up its snapshot",
            )
        if self.state == "installing":
            reason = "the state machine waits for a snapshot of another member"
            return DLedgerError(ResponseCode.LEADER_NOT_READY, reason=reason)
        return DLedgerError(
            ResponseCode.MACHINE_STOPPED, reason=f"the state machine has {self.state}: {self.reason}"
        )

    def result_of(self, index: int) -> Deferred[bytes]:
        """See L{dledger.node.hosting.HostedMachine.result_of}."""
        if self.state != "running":
            return fail(unknown(f"the state machine has {self.state}"))
        return self._waits.result_of(index, self.applied_index)

    def kept_result(self, producer: str, sequence: int) -> tuple[int, bytes] | None:
        """See L{dledger.node.hosting.HostedMachine.kept_result}."""
        last_sequence, found = self._kept.find(producer, sequence)
        if found is not None:
            return found.entry_index, found.result
        if sequence > last_sequence:
            return None
        raise DLedgerError(ResponseCode.SEQUENCE_FORGOTTEN, last_sequence=last_sequence, reason=(
            f"the command {sequence} of {producer} is applied, and its result is not kept any more"
        ))

    def when_applied(self, index: int) -> Deferred[int]:
        """See L{dledger.node.hosting.HostedMachine.when_applied}."""
        refusal = self.refusal
        if refusal is not None:
            return fail(refusal)
        if index <= self.applied_index:
            return succeed(self.applied_index)
        return self._waits.when_applied(index)

    def query(self, request: bytes) -> bytes:
        """See L{dledger.node.hosting.HostedMachine.query}."""
        return self._machine.query(request)

    def sweep(self, now_s: float) -> None:
        """See L{dledger.node.hosting.HostedMachine.sweep}."""
        self._waits.sweep(int(now_s * 1000), self.applied_index)
        self.committed()
        self._go_on_installing()

    def _now_ms(self) -> int:
        return int(self._clock.seconds() * 1000)

    def status(self) -> MachineStatus:
        """See L{dledger.node.hosting.HostedMachine.status}."""
        heads = [] if self._snapshots is None else self._snapshots.heads
        return MachineStatus(
            name=self._machine.name, version=self._machine.version, state=self.state, reason=self.reason,
            applied_index=self.applied_index,
            lag=max(0, self._entries.committed_index - self.applied_index), applied=self._applied,
            snapshot_index=heads[-1].index if heads else -1, snapshot_size=self._size,
            snapshots=self._written, is_writing=self._in_thread is not None and self.state == "running",
            snapshot_problem=self._snapshot_problem,
            installing=self._waits_for if self._fetch is None else self._fetch.progress,
            refused=() if self._snapshots is None else tuple(self._snapshots.refused),
        )
