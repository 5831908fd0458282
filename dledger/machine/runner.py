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
Rule 2: the machine runs in a thread of its own, and is given one batch at a time; batches grow and shrink so
that one takes about L{TURN_S}. While it works the member goes on: only commands and queries wait.
Rule 3: an exception of any kind, another number of results than entries, or a result that is too long stops
the machine and says which entry. The entries before it count as applied, no other does, and no snapshot is
finished from then on. The log goes on: only requests to the machine are refused. The next start begins with
the last snapshot again.
Rule 4: a snapshot that cannot be written is tried again after as many entries; the machine goes on.
Rule 5: a snapshot gets its name when the log up to its last entry is on stable storage. At the start it is
taken up when this member knows that entry to be committed, and both agree; a log that has settled before it
refuses it. So a loss of power makes no state that the log does not have.
Rule 6: where the log begins after the state, a snapshot of another member takes the place of the state: one
that is newer, that the log goes on after, and whose last entry the log has. Until then nobody is answered.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable, Iterator
from contextlib import contextmanager

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IDelayedCall
from twisted.internet.task import deferLater
from twisted.logger import Logger
from twisted.python.failure import Failure

from dledger.client.values import Entry
from dledger.machine.answering import AnsweringMachine
from dledger.machine.calls import MachineCalls
from dledger.machine.failed_entry import FailedEntry
from dledger.machine.files.fetching import SnapshotFetch
from dledger.machine.files.offering import SnapshotOffers
from dledger.machine.files.snapshots import SnapshotDirectory
from dledger.machine.guarded import Applied, GuardedMachine, MachineFailed, sentence_of
from dledger.machine.kept_results import KeptResults, kept_in
from dledger.machine.log_reach import (
    ahead_of_log,
    check_base,
    is_reached,
    lacks_entries,
    lowest_usable,
    waits_for_log,
)
from dledger.machine.reading_ahead import TURN_S, ReadAhead
from dledger.machine.skips import Skips
from dledger.machine.state_machine import MachineFactory
from dledger.machine.waiting import MachineWaits, WaitBounds
from dledger.machine.writing import SnapshotsDue, SnapshotWriter, pieces_of
from dledger.node.host import MachineHost
from dledger.node.node import Node
from dledger.node.requests.snapshots import SnapshotHandler
from dledger.storage.files.snapshot_file import SnapshotHead, SnapshotRefused
from dledger.values.errors import DamagedEntryError, DLedgerError, StoreError
from protocols.wire.codes import ResponseCode
from protocols.wire.ledger.entry import EntryHeader
from protocols.wire.ledger.machines import DIGESTS_MAX
from protocols.wire.ledger.own.own_entries import is_hidden

#: Seconds between two looks whether the log has come to the end of a snapshot that another member sent, and
#: before another one is asked for if it was refused.
LOOK_S, REFUSED_S, REFUSED_MAX_S = 0.2, 5.0, 600.0
_TAKES_UP = ("starting", "installing")


class _MadeOtherwise(Exception):
    """The state has an entry that an order says to skip."""

    def __init__(self, index: int) -> None:
        super().__init__(index)
        self.index = index


class MachineRunner(AnsweringMachine):
    """
    See L{dledger.node.requests.machine_requests.HostedMachine}.

    Invariant: the state of C{machine}, which C{calls} alone calls, has the entries up to C{applied_index};
    C{_ahead} has those that follow, as far as they were read.
    """

    log = Logger()

    def __init__(
        self, factory: MachineFactory, entries: Node, host: MachineHost, *, waits: WaitBounds,
        snapshots: SnapshotDirectory | None, due: SnapshotsDue | None = None,
        source: SnapshotHandler | None = None,
    ) -> None:
        """
        @param waits: for requests that wait.
        @param snapshots: None: none are taken; the log is applied from its beginning at each start.
        @param due: when a snapshot is; None: never by itself.
        @param source: sends snapshots; None: nobody does.
        """
        self._factory = factory
        self._entries = entries
        self._host = host
        self._clock = clock = host.clock
        self._snapshots = snapshots
        self._source = source
        self._fetch: SnapshotFetch | None = None
        self._offers = None if snapshots is None else SnapshotOffers(snapshots, clock.seconds)
        self.state = "starting"
        self.reason = ""
        self.applied_index = -1
        self.machine = GuardedMachine(factory)
        self._kept = KeptResults()
        self._skips = Skips()
        self._failed_at = FailedEntry(entries, self._skips)
        self._last: EntryHeader | None = None
        self._ahead = ReadAhead(entries)
        self._call: IDelayedCall | None = None
        self._waits = MachineWaits(waits, self._now_ms)
        self._applied = 0
        self.is_applying = False
        self.calls = MachineCalls(host)
        self._writer = None if snapshots is None else SnapshotWriter(
            snapshots, entries, host, due or SnapshotsDue(), why_not=self._why_no_snapshot, pause=self._pause
        )
        self._in_thread: Deferred[None] | None = None
        self._pausing: Deferred[None] | None = None
        self._waits_for = self.in_doubt = ""
        self.digests = {}

    # -- life ---------------------------------------------------------------------------------

    def start(self) -> None:
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
        if self.state == "running" and not self.is_applying:
            self._take_snapshot_if_due()

    def stop(self) -> Deferred[None]:
        self.state = "stopped" if self.state != "failed" else self.state
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
        if self._call is not None:
            self._call.cancel()
            self._call = None
        self._ahead.clear()

    def _fail(self, reason: str) -> None:
        if self.state in ("failed", "stopped"):
            return
        self.state = "failed"
        self.reason = reason
        self.log.critical(
            "the state machine {machine} of member {self_id} stops, the log goes on: {reason}",
            machine=self.machine.name, self_id=self._host.self_id, reason=reason,
        )
        self._rest()
        self._waits.end(reason, ResponseCode.MACHINE_STOPPED)

    async def _take_up(self, *, is_first: bool = True) -> None:
        """Become the state of the newest snapshot that is sound, then follow the log."""
        snapshots = self._snapshots
        if snapshots is not None:
            if is_first:
                await self._host.run_in_thread(snapshots.look)
                for reason in snapshots.refused:
                    self._notify_refused(reason)
            while self.state == "starting" and snapshots.heads:
                if await self._is_taken_up(snapshots, snapshots.heads[-1]):
                    break
                self._renew()
        if self.state == "starting":
            self.state = "running"
            self._waits_for = ""
            self.log.info(
                "the state machine {machine} of member {self_id} begins after the entry {index}",
                machine=self.machine.name, self_id=self._host.self_id, index=self.applied_index,
            )
            self.committed()

    def _renew(self) -> None:
        """Another machine, with an empty state. @raise MachineFailed: it cannot be made."""
        self.machine = GuardedMachine(self._factory)
        self._kept = KeptResults()

    async def _is_taken_up(self, snapshots: SnapshotDirectory, head: SnapshotHead) -> bool:
        """Whether the machine has become the state of a snapshot of this member, or the member stops."""
        while not is_reached(self._entries, head):
            if self._entries.members.is_settled and head.index > self._entries.committed_index:
                reason = ahead_of_log(self._entries)
                snapshots.refuse(head, reason)
                self._notify_refused(f"after the entry {head.index}: {reason}")
                return False
            self._waits_for = self._waits_for or waits_for_log(self._entries, head)
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
        machine, restored = self.machine, [(KeptResults(), frozenset[int]())]

        def restore() -> None:
            pieces = _until_stopped(snapshots.read(head), lambda: self.state not in _TAKES_UP)
            restored[0] = kept_in(next(pieces, b""))
            self._skips.check(restored[0][1], head.index)
            machine.restore(pieces, head.machine_version)

        try:
            check_base(self._entries, head)
            await self._host.run_in_thread(restore)
        except Exception as error:
            reason = str(error) if isinstance(error, SnapshotRefused) else sentence_of(error)
            snapshots.refuse(head, reason)
            self._notify_refused(f"after the entry {head.index}: {reason}")
            return self.state not in _TAKES_UP
        self.applied_index = head.index
        self._kept, left_out = restored[0]
        self._skips.restored(left_out, head.index)
        self._forget_entries()
        return True

    def _notify_refused(self, reason: str) -> None:
        self.log.warn(
            "member {self_id} does not use a snapshot of its state machine: {reason}",
            self_id=self._host.self_id, reason=reason,
        )

    # -- entries ------------------------------------------------------------------------------

    def committed(self) -> None:
        if self.state == "running" and self._call is None and not self.is_applying and self._has_more():
            self._call = self._clock.callLater(0, self.turn)

    def _has_more(self) -> bool:
        return self._entries.committed_index > self.applied_index

    def turn(self) -> None:
        """Apply entries until the turn is over, or none is left; the clock calls this."""
        self._call = None
        began_s = self._clock.seconds()
        with self._failing():
            while self.state == "running" and not self.is_applying and (self._ahead or self._read()):
                self._apply_batch()
                if self._clock.seconds() - began_s >= TURN_S:
                    self.committed()
                    return

    @contextmanager
    def _failing(self) -> Iterator[None]:
        """A failure stops the machine; a damaged entry is waited for; a store that fails ends all."""
        try:
            yield
        except (DamagedEntryError, StoreError):
            return  # a peer gives it back, and L{sweep} looks again; or the member ends, and says why
        except _MadeOtherwise as other:
            self._make_again(other.index)
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
            self._ahead.read(self.applied_index + 1)
        except DLedgerError as error:
            if error.code is not ResponseCode.INDEX_LESS_THAN_LOCAL_BEGIN:
                raise
            if self._begin_install():
                return False
            raise MachineFailed(lacks_entries(error, self.applied_index)) from error
        return bool(self._ahead)

    def _apply_batch(self) -> None:
        """@raise MachineFailed: at an entry; those before it are applied."""
        began_s = self._clock.seconds()
        writer = self._writer
        batch = self._ahead.batch(None if writer is None else writer.entries_left(self.applied_index))
        made_with = self._skips.look(batch, self.applied_index)
        if made_with >= 0:
            raise _MadeOtherwise(made_with)
        ordered = self._skips.ordered
        entries = [
            Entry(index=header.index, term=header.term, pos=header.pos, body=body)
            for header, body in batch
            if not is_hidden(header.channel, header.chain_crc) and not (ordered and header.index in ordered)
        ]
        machine, self.is_applying = self.machine, True
        if not entries:
            self._applied_batch(machine, batch, entries, Applied(results=[]), began_s)
            return
        self.calls.call("apply()", lambda: machine.apply(entries)).addCallbacks(
            lambda applied: self._applied_batch(machine, batch, entries, applied, began_s),
            self._thread_failed,
        )

    def _applied_batch(
        self, machine: GuardedMachine, batch: list[tuple[EntryHeader, bytes]], entries: list[Entry],
        applied: Applied, began_s: float,
    ) -> None:
        """The machine has been given a batch, and nothing since."""
        self.is_applying = False
        if machine is not self.machine or self.state != "running":
            return
        with self._failing():
            if applied.failure:
                failed_index = entries[len(applied.results)].index
                self._failed_at.note(failed_index)
                batch = [one for one in batch if one[0].index < failed_index]
            self._took(batch, entries[: len(applied.results)], applied.results)
            if applied.failure:
                raise MachineFailed(applied.failure)
            self._take_snapshot_if_due()
        self._ahead.paced(self._clock.seconds() - began_s)
        self.committed()

    def _took(
        self, batch: list[tuple[EntryHeader, bytes]], entries: list[Entry], results: list[bytes]
    ) -> None:
        """The first entries that were read ahead are in the state; C{entries} are those with results."""
        self._ahead.took(len(batch))
        if batch:
            self._last = batch[-1][0]
            self.applied_index = self._last.index
        self._applied += len(entries)
        by_index = {entry.index: result for entry, result in zip(entries, results, strict=True)}
        if self._skips.ordered:
            by_index.update(self._skips.results_in(batch))
        if self._writer is not None:
            self._writer.note(self.applied_index, batch, self._skips)
        self._kept.fold(batch, by_index)
        self._waits.applied(by_index, self.applied_index)

    # -- entries that are skipped -------------------------------------------------------------

    def _make_again(self, index: int) -> None:
        """
        The state was made with an entry that is skipped, or could not be: make it without that entry. -1: the
        log no longer says which; a snapshot of another member does.
        """
        does = f"skips the entry {index}, and makes its state" if index >= 0 else "waits for a snapshot"
        self.log.warn("the state machine {machine} of member {self_id} {does}",
                      machine=self.machine.name, self_id=self._host.self_id, does=does)
        self._skips.begin_again(index)
        if index >= 0 and self._snapshots is not None:
            self._snapshots.refuse_from(index, f"it has the entry {index}, which is skipped")
        self.state = "starting"
        self.reason = ""
        self._failed_at.note(-1)
        self._rest()
        self._waits.end(f"the state machine {does}", ResponseCode.LEADER_NOT_READY)
        self.applied_index = -1
        self.is_applying = False
        self.digests.clear()
        self._forget_entries()
        if self._in_thread is None:
            self._make_again_now()
        else:
            self._in_thread.addBoth(lambda _: self._make_again_now())

    def _forget_entries(self) -> None:
        """The state is another one, and has no entries since."""
        self._last = None
        if self._writer is not None:
            self._writer.begin_again()

    def _make_again_now(self) -> None:
        """Nothing runs in the thread."""
        if self.state == "starting":
            try:
                self._renew()
            except MachineFailed as failed:
                self._fail(str(failed))
            else:
                self._begin(self._take_up(is_first=False))

    # -- snapshots ----------------------------------------------------------------------------

    def _take_snapshot_if_due(self) -> None:
        writer, last = self._writer, self._last
        if writer is not None and writer.is_due and last is not None and self._in_thread is None:
            assert self._snapshots is not None and self._offers is not None
            writer.begin_again()
            self._snapshots.held = self._offers.held()
            self._begin(self._write(writer, last))

    async def _write(self, writer: SnapshotWriter, last: EntryHeader) -> None:
        """Write a snapshot, and remember the digest of its state, unless that is made again meanwhile."""
        machine, first = self.machine, self._kept.encode(self._skips.left_out)
        digests: list[bytes] = []
        await writer.write(last, lambda: pieces_of(machine, self.calls, first, digests))
        if not writer.problem and any(digests) and self.applied_index >= last.index:
            self.digests[last.index] = digests[0].hex()
            while len(self.digests) > DIGESTS_MAX:
                del self.digests[min(self.digests)]

    def _why_no_snapshot(self) -> str:
        return self.in_doubt if self.state == "running" else f"the state machine has {self.state}"

    # -- snapshots of other members ------------------------------------------------------------

    def _begin_install(self) -> bool:
        """The log lacks the next entry. @return: whether another member can be asked for a snapshot."""
        source = self._source
        if self._snapshots is None or source is None or not source.is_in_group:
            return False
        self.state = "installing"
        self.log.warn(
            "the log of member {self_id} begins after the state of {machine}, which ends with the entry "
            "{index}: another member is asked for a snapshot",
            self_id=self._host.self_id, machine=self.machine.name, index=self.applied_index,
        )
        self._ahead.clear()
        self._waits.end("the state machine waits for a snapshot", ResponseCode.LEADER_NOT_READY)
        self._go_on_installing()
        return True

    def _go_on_installing(self) -> None:
        if self.state == "installing" and self._in_thread is None:
            assert self._snapshots is not None and self._source is not None
            self._begin(self._install(self._snapshots, self._source))

    async def _install(self, snapshots: SnapshotDirectory, source: SnapshotHandler) -> None:
        """Become the state of a snapshot of another member, then follow the log again."""
        fetch = self._fetch = SnapshotFetch(
            snapshots, source, self._host, machine=self.machine.name, machine_version=self.machine.version,
            oldest_version=self.machine.oldest_version, lowest_index=self._lowest_index,
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
                "the state machine {machine} of member {self_id} has taken up a snapshot and goes on after "
                "the entry {index}",
                machine=self.machine.name, self_id=self._host.self_id, index=self.applied_index,
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
        self._renew()
        if await self._restored(snapshots, head):
            return True
        await self._host.run_in_thread(lambda: snapshots.discard(head))
        await fetch.pause(refused_s)
        return False

    def _lowest_index(self) -> int:
        return lowest_usable(self._entries, self.applied_index)

    # -- requests -----------------------------------------------------------------------------

    def sweep(self, now_s: float) -> None:
        """End the waits whose time is over; look again at entries that could not be read."""
        self._waits.sweep(int(now_s * 1000), self.applied_index)
        self.calls.watch(self.machine)
        self.committed()
        self._go_on_installing()
        if self.failed_index >= 0 and (index := self._failed_at.skipped(self.applied_index)) is not None:
            self._make_again(index)

    def _now_ms(self) -> int:
        return int(self._clock.seconds() * 1000)


def _until_stopped(chunks: Iterable[bytes], is_stopped: Callable[[], bool]) -> Iterator[bytes]:
    for chunk in chunks:
        if is_stopped():
            raise SnapshotRefused("the member stops")
        yield chunk

