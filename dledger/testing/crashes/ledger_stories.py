# -*- test-case-name: tests.sim.test_crashes -*-
"""
The workloads of a ledger: each makes every changing disk call of one activity, in several situations.

The steps are those of a member: an entry of a term is written after the term was saved; a flush is captured,
runs, and counts when it has ended; a checkpoint follows a commit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from unittest import mock

import attrs

from dledger.storage.files.term_file import TermVote
from dledger.storage.store import store_cuts
from dledger.storage.store.file_store import FileStore
from dledger.testing.crashes.disk import CrashDisk
from dledger.testing.crashes.engine import Story
from dledger.testing.crashes.ledger_check import (
    DATA_BYTES,
    KnownLog,
    LedgerPromise,
    check_goes_on,
    check_ledger,
    crash_config,
    start,
)
from dledger.testing.world.memory_disk import MemoryDisk
from dledger.values.errors import DamagedEntryError
from dledger.values.ledger.config import DLedgerConfig
from protocols.wire.ledger.batches import EntryBatch
from protocols.wire.ledger.entry import (
    ENTRY_HEADER_SIZE,
    MIN_BLANK_SIZE,
    decode_header,
    iterate_records,
    pack_record,
)

#: After this many bytes a cut is set aside in these workloads.
CUT_BYTES = 300
#: Bytes of records and index units of a chunk.
CHUNK_BYTES = 400


class LedgerActor:
    """
    A member's store at work, and the promises that it has made.

    @ivar log: what was written.
    @ivar flushed: last index on stable storage.
    """

    def __init__(
        self, config: DLedgerConfig, disk: CrashDisk, promised: Callable[[LedgerPromise], None]
    ) -> None:
        self.config = config
        self.disk = disk
        self.log = KnownLog()
        self.flushed = -1
        self.committed = -1
        self.term = TermVote()
        self.damaged: frozenset[int] = frozenset()
        self.owed = -1
        self._promised = promised
        self._serial = 0
        self.boots = 0
        self.promise()
        self.store, self.terms, _ = start(config, disk, boots=0)

    # -- promises ---------------------------------------------------------------------------------

    def promise(
        self, *other_logs: KnownLog, floor: int | None = None, acknowledged: int | None = None,
        owed: int | None = None, terms: tuple[TermVote, ...] = (), kept: tuple[bytes, ...] = (),
    ) -> None:
        """These hold from now on; what is not given is as now."""
        floor = self.flushed if floor is None else floor
        if acknowledged is None:
            acknowledged = self.log.end if not other_logs and not self.config.is_sync else floor
        self._promised(LedgerPromise(
            logs=(self.log, *other_logs), floor=floor,
            acknowledged=acknowledged,
            owed=self.owed if owed is None else owed, terms=terms or (self.term,), committed=self.committed,
            damaged=self.damaged, kept=kept,
        ))

    def _is_now(self, log: KnownLog, *, flushed: int | None = None) -> None:
        self.log = log
        self.flushed = log.end if flushed is None else flushed
        self.promise()

    # -- the work ---------------------------------------------------------------------------------

    def body(self, size: int) -> bytes:
        """A body that no other entry has."""
        self._serial += 1
        return (b"%d " % self._serial).ljust(size, b".")[:max(size, 4)]

    def vote(self, term: int, voted_for: str | None) -> None:
        """Save term and vote."""
        wanted = TermVote(term, voted_for)
        self.promise(terms=(self.term, wanted))
        self.terms.save(term, voted_for)
        self.term = wanted
        self.promise()

    def append(self, *sizes: int, flush: bool = False) -> None:
        """A leader's batch."""
        if self.term.term == 0:
            self.vote(1, "n0")
        term = self.term.term
        bodies = tuple(self.body(size) for size in sizes)
        log = attrs.evolve(self.log, entries=(*self.log.entries, *((term, body) for body in bodies)))
        # No promise is made for the new entries before the write has ended.
        self.promise(log, acknowledged=self.flushed if self.config.is_sync else self.log.end)
        self.store.append_bodies(bodies, term)
        self._is_now(log, flushed=self.flushed)
        if flush:
            self.flush()

    def take(self, entries: EntryBatch, *, flush: bool) -> None:
        """A leader's push, of a chunk or of entries."""
        new = tuple((header.term, body) for header, body in iterate_records(entries))
        log = attrs.evolve(self.log, entries=(*self.log.entries, *new))
        self.promise(log, acknowledged=self.flushed if self.config.is_sync else self.log.end)
        self.store.append_entries(entries)
        self._is_now(log, flushed=self.flushed)
        if flush:
            self.flush()

    def flush(self, *, meanwhile: Callable[[], None] | None = None) -> None:
        """Capture a flush, do something, let it run."""
        job = self.store.prepare_flush()
        if job is None:
            return
        number = self.disk.begin_sync()
        if meanwhile is not None:
            meanwhile()
        with self.disk.syncing_up_to(number):
            job.run()
        self.store.finish_flush(job)
        self._is_now(self.log, flushed=max(self.flushed, job.end_index))

    def commit(self, index: int) -> None:
        """A leader's commit reached this member."""
        self.committed = index
        self.promise()
        self.store.record_commit(index)

    def check_point(self, *, force: bool = False) -> None:
        """As it comes every few seconds."""
        self.store.check_point(force=force)
        if force:
            self._is_now(self.log)

    def expire(self, keep_from_index: int) -> None:
        """House keeping, long after."""
        begin_max = self.log.begin + max(self.committed - self.log.begin, 0)
        before = self.log
        self.log = attrs.evolve(before, begin_max=begin_max)
        self.promise()
        self.store.maintenance(1e10, 4, keep_from_index=keep_from_index)
        gone = self.store.ledger_begin_index - before.begin
        left = KnownLog(before.begin + gone, before.entries[gone:], before.begin + gone)
        self._is_now(left, flushed=self.flushed)

    def entry(self, index: int) -> EntryBatch:
        """A single entry of this store."""
        return self.store.read_batch(index, max_count=1, max_bytes=0)

    def record(self, index: int, size: int, *, term: int) -> tuple[EntryBatch, bytes]:
        """Another leader's entry after the one before C{index}."""
        header = decode_header(self.entry(index - 1).records)
        body, pos = self.body(size), header.pos + header.size
        if ENTRY_HEADER_SIZE + size + MIN_BLANK_SIZE > DATA_BYTES - pos % DATA_BYTES:
            pos += DATA_BYTES - pos % DATA_BYTES
        packed = pack_record(body, index=index, term=term, pos=pos, previous_chain_crc=header.chain_crc)[0]
        return EntryBatch(first_index=index, count=1, term=term, records=packed), body

    def truncate(self, index: int, *, size: int | None = None, is_kept: bool = False) -> None:
        """
        A leader's TRUNCATE to C{index}.

        @param size: of the body of its own entry there; None: this ledger has the entry.
        """
        gone = tuple(self.entry(at).records for at in range(index + (size is None), self.log.end + 1))
        if size is None:
            entry, log = self.entry(index), self._first(index + 1)
        else:
            self.vote(self.term.term + 1, "n1")
            entry, body = self.record(index, size, term=self.term.term)
            shorter = self._first(index)
            log = attrs.evolve(shorter, entries=(*shorter.entries, (self.term.term, body)))
        floor = min(index if size is None else index - 1, self.flushed)
        kept = gone if is_kept else ()
        self.promise(log, floor=floor, kept=kept)
        self.store.truncate_to(entry)
        self._is_now(log)
        self.promise(kept=kept)

    def _first(self, count: int) -> KnownLog:
        return attrs.evolve(self.log, entries=self.log.entries[: count - self.log.begin])

    def install(self, index: int, *, files: int) -> None:
        """A leader's ledger begins after this one: start anew with the first record of a file."""
        self.vote(self.term.term + 1, "n1")
        term, body = self.term.term, self.body(30)
        pos = (self.store.end_position // DATA_BYTES + 1 + files) * DATA_BYTES
        packed = pack_record(body, index=index, term=term, pos=pos, previous_chain_crc=7)[0]
        log, owed = KnownLog(index, ((term, body),), index), max(self.flushed, self.owed)
        self.committed = max(self.committed, index - 1)
        self.promise(log, floor=-1, owed=owed)
        batch = EntryBatch(first_index=index, count=1, term=term, records=packed)
        self.store.truncate_to(batch, anew=True)
        self._is_now(log)

    def close(self) -> None:
        """Stop in order."""
        self.store.clean_close()
        self.terms.close()
        self._is_now(self.log)

    def kill(self) -> None:
        """End the process."""
        self.store.abandon()
        self.terms.close()

    def reopen(self) -> None:
        """Start again on the same machine; a start brings everything to stable storage."""
        self.store, self.terms, _ = start(self.config, self.disk, boots=self.boots)
        self._is_now(self.log)

    def rot(self, *indexes: int) -> None:
        """One bit of the record of each rots; the directory is opened again afterwards."""
        self.check_point(force=True)  # after the newest durable mark a damaged record looks like a torn one
        places = [(self.store.position_of(index), index) for index in indexes]
        self.kill()
        for position, _ in places:
            base = position - position % DATA_BYTES
            path = f"{self.config.self_path}/data/{base:020d}"
            self.disk.flip_bit(path, position - base + ENTRY_HEADER_SIZE, 3)
        self.damaged |= {index for _, index in places}
        self.promise()
        self.reopen()


class Leader:
    """The ledger of a leader, in memory, with the entries of a follower and more."""

    def __init__(self, follower: LedgerActor) -> None:
        self._follower = follower
        self._store = FileStore.open(follower.config, MemoryDisk())
        for index in range(follower.log.end + 1):
            self._store.append_entries(follower.entry(index))

    @property
    def end(self) -> int:
        """Its last index."""
        return self._store.ledger_end_index

    def append(self, *sizes: int) -> None:
        """Write entries."""
        for size in sizes:
            self._store.append_bodies((self._follower.body(size),), self._follower.term.term)

    def next(self, index: int) -> EntryBatch:
        """Its push of the entries from C{index} on: a chunk, or what is before the next one."""
        chunk = self._store.chunk_from(index)
        if chunk is not None and chunk.first_index == index:
            entries = self._store.read_chunk(chunk)
            assert entries is not None, "its own bytes"
            return entries
        end_index = self.end if chunk is None else chunk.first_index - 1
        return self._store.read_range(index, end_index=end_index, max_bytes=1 << 20)


@attrs.frozen(eq=False)
class LedgerStory:
    """See L{Story}. C{work} does it. Implements L{Story}."""

    name: str
    work: Callable[[LedgerActor], None]
    config: DLedgerConfig

    def run(self, disk: CrashDisk, promised: Callable[[LedgerPromise], None]) -> None:
        with _cuts_are_large():
            self.work(LedgerActor(self.config, disk, promised))

    def check(
        self, disk: CrashDisk, promise: LedgerPromise, *, boots: int, goes_on: Callable[[], bool]
    ) -> None:
        store, terms = check_ledger(self.config, disk, promise, boots=boots)
        if goes_on() and store.ledger_end_index >= 0:
            check_goes_on(self.config, disk, store, boots=boots)
        store.abandon()
        terms.close()


@contextmanager
def _cuts_are_large() -> Iterator[None]:
    with mock.patch.object(store_cuts, "CUT_BYTES_MAX", CUT_BYTES):
        yield


# -- the workloads --------------------------------------------------------------------------------


def _append(actor: LedgerActor) -> None:
    actor.append(5, flush=True)
    actor.append(30, 60, 0)
    actor.append(200)
    actor.flush(meanwhile=lambda: actor.append(10))
    actor.append(1, 2, 3, 4)
    actor.flush()


def _roll(actor: LedgerActor) -> None:
    actor.append(400, flush=True)
    actor.append(400, 300, flush=True)
    actor.append(900)
    actor.append(10, 700)
    actor.flush(meanwhile=lambda: actor.append(500))
    actor.append(300, 300, 300, 300, 300, flush=True)


def _flush(actor: LedgerActor) -> None:
    for number in range(11):
        actor.append(20 + number)
        actor.flush(meanwhile=(lambda: actor.append(9)) if number % 3 == 0 else None)
        if number % 4 == 3:
            actor.commit(actor.flushed)
            actor.check_point()


def _truncate(actor: LedgerActor) -> None:
    actor.append(40, 40, 40, 40, 40, 40, flush=True)
    actor.append(50)
    actor.truncate(4)
    actor.append(60, 60)
    actor.truncate(5, size=70)
    actor.append(80)
    actor.truncate(actor.log.end)
    actor.append(20, 20)
    actor.flush(meanwhile=lambda: actor.truncate(6))
    actor.append(33, flush=True)


def _truncate_files(actor: LedgerActor) -> None:
    actor.append(400, 400, 400, flush=True)
    actor.append(400, 10, 10)
    actor.truncate(3, size=10)
    actor.append(500, 500, 500, flush=True)
    actor.truncate(1, size=600)
    actor.append(12, flush=True)


def _set_aside(actor: LedgerActor) -> None:
    actor.append(100, 100, 100, 100, 300, 300, 300, flush=True)
    actor.truncate(1, is_kept=True)
    actor.append(400, 400, flush=True)
    actor.truncate(2, size=90, is_kept=True)


def _check_point(actor: LedgerActor) -> None:
    actor.append(20, 20, flush=True)
    actor.commit(0)
    actor.check_point()
    actor.append(20)
    actor.check_point()
    actor.flush()
    actor.commit(2)
    actor.check_point()
    actor.check_point()
    actor.append(30, 30)
    actor.commit(3)
    actor.check_point(force=True)


def _expire(actor: LedgerActor) -> None:
    actor.append(*[200] * 16, flush=True)
    actor.commit(13)
    actor.check_point(force=True)
    actor.expire(9)
    actor.append(20)
    actor.expire(99)
    actor.flush()
    actor.expire(99)
    actor.kill()
    actor.reopen()


def _vote(actor: LedgerActor) -> None:
    actor.vote(1, "n1")
    actor.vote(2, None)
    actor.vote(2, "n2")
    actor.kill()
    actor.reopen()
    actor.vote(3, "n0")
    actor.append(10, flush=True)
    actor.vote(4, None)
    actor.vote(7, "n1")


def _reopen(actor: LedgerActor) -> None:
    actor.append(40, 300, 500, flush=True)
    actor.kill()
    actor.reopen()
    actor.append(50)
    actor.kill()
    actor.reopen()
    actor.append(700, 10)
    actor.close()
    actor.reopen()
    actor.commit(1)
    actor.close()
    actor.reopen()
    actor.append(20)
    actor.kill()
    actor.reopen()


def _install(actor: LedgerActor) -> None:
    actor.append(100, 200, 300, 400, flush=True)
    actor.install(30, files=0)
    actor.append(40, 500, 600)
    actor.install(50, files=3)
    actor.append(40, flush=True)
    actor.kill()
    actor.reopen()


def _install_new(actor: LedgerActor) -> None:
    actor.vote(1, None)
    actor.install(30, files=2)
    actor.append(40, flush=True)
    actor.commit(31)
    actor.check_point(force=True)


def _sound_twin(actor: LedgerActor) -> dict[int, EntryBatch]:
    return {index: actor.entry(index) for index in range(actor.log.begin, actor.log.end + 1)}


def _fill(actor: LedgerActor) -> None:
    actor.append(*[120] * 12, flush=True)
    actor.commit(11)
    actor.check_point(force=True)
    twin = _sound_twin(actor)
    actor.rot(2, 5, 6)
    _fill_all(actor, twin)
    actor.append(30, flush=True)
    actor.rot(3, 9)
    try:
        actor.entry(3)
    except DamagedEntryError:
        pass
    _fill_all(actor, twin)
    actor.close()


def _fill_all(actor: LedgerActor, twin: dict[int, EntryBatch]) -> None:
    while actor.store.holes:
        if not actor.store.look_again():
            actor.store.fill_hole(twin[actor.store.holes[0].first_index], is_committed=True)
    # Only a flush makes the healing known to be durable; a hole that is seen again does no harm.
    actor.store.check_point(force=True)


def _cut_in_hole(actor: LedgerActor) -> None:
    actor.append(*[120] * 9, flush=True)
    actor.rot(5)
    actor.owed = actor.log.end
    entry, log = actor.entry(3), attrs.evolve(actor.log, entries=actor.log.entries[:4])
    actor.promise(log, floor=3)
    actor.store.truncate_to(entry)
    actor.log = log
    actor.flushed = 3
    actor.damaged = frozenset()
    actor.promise()
    actor.append(50, 50, 50, 50, 50)
    actor.flush()
    actor.owed = -1
    _end_repair(actor)




def _end_repair(actor: LedgerActor) -> None:
    actor.store.end_repair()
    actor.promise()


def _unsure(actor: LedgerActor) -> None:
    actor.append(20, 20, flush=True)
    actor.append(20)
    actor.store.identity.end_unsure()
    actor.store.identity.note_terms()
    actor.close()
    actor.reopen()
    actor.append(30)
    actor.store.identity.end_unsure()


def _take_chunks(actor: LedgerActor) -> None:
    actor.append(20, flush=True)
    leader = Leader(actor)
    leader.append(*[60] * 6, 700, *[40] * 9)
    while leader.end > actor.log.end:
        actor.take(leader.next(actor.log.end + 1), flush=actor.log.end % 2 == 0)
    actor.flush()
    actor.append(30, flush=True)


def _cut_chunks(actor: LedgerActor) -> None:
    actor.append(*[50] * 9, flush=True)
    actor.truncate(5)
    actor.append(*[50] * 4)
    actor.truncate(2, size=70)
    actor.append(*[90] * 5, flush=True)


def _expire_chunks(actor: LedgerActor) -> None:
    actor.append(*[300] * 9, flush=True)
    actor.commit(8)
    actor.check_point(force=True)
    actor.expire(99)
    actor.append(*[100] * 4)


WORKLOADS: dict[str, Callable[[LedgerActor], None]] = {
    "append": _append, "roll": _roll, "flush": _flush, "truncate": _truncate,
    "truncate-files": _truncate_files, "set-aside": _set_aside, "checkpoint": _check_point, "expire": _expire,
    "vote": _vote, "reopen": _reopen, "install": _install, "install-new": _install_new, "fill-hole": _fill,
    "cut-in-hole": _cut_in_hole, "identity": _unsure,
}

CHUNK_WORKLOADS: dict[str, Callable[[LedgerActor], None]] = {
    "take-chunks": _take_chunks, "cut-chunks": _cut_chunks, "expire-chunks": _expire_chunks,
}


def ledger_stories() -> list[Story[LedgerPromise]]:
    """Every workload, with both kinds of flushing; those of chunks with small ones."""
    stories: list[Story[LedgerPromise]] = []
    for kind in ("sync", "async"):
        config = crash_config(flush_disk_type=kind)
        stories += [LedgerStory(f"{name}-{kind}", work, config) for name, work in WORKLOADS.items()]
        config = crash_config(flush_disk_type=kind, push_chunk_bytes=CHUNK_BYTES)
        stories += [LedgerStory(f"{name}-{kind}", work, config) for name, work in CHUNK_WORKLOADS.items()]
    return stories
