# -*- test-case-name: tests.sim.test_crashes -*-
"""
What a member's directory must hold after a crash, and the check that it does.

A crash during an operation may leave the ledger as before it or as after it, but no entry that was on stable
storage in both may be missing or different, and nothing else may be in its place.
"""

from __future__ import annotations

from zlib import crc32

import attrs

from dledger.base.disk.set_aside import set_aside_directory
from dledger.storage.files.term_file import TermFile, TermVote
from dledger.storage.start.verify import verify_directory
from dledger.storage.store.file_store import FileStore
from dledger.testing.crashes.disk import CrashDisk
from dledger.testing.crashes.engine import BadImage, demand
from dledger.values.errors import DLedgerError
from dledger.values.ledger.config import DLedgerConfig
from dledger.values.option_values import made_of
from protocols.wire.ledger.entry import iterate_records

#: Files so small that a workload of a few entries meets blanks, new data files and new index files.
DATA_BYTES = 1024
INDEX_BYTES = 320


def crash_config(**options: object) -> DLedgerConfig:
    """A member of a group of three with small files."""
    peers = {f"n{number}": f"127.0.0.1:{20911 + number}" for number in range(3)}
    values: dict[str, object] = {
        "group": "g", "self_id": "n0", "peers": peers, "store_base_dir": "base", "file_reserved_hours": 1,
        "mapped_file_size_for_entry_data": DATA_BYTES, "mapped_file_size_for_entry_index": INDEX_BYTES,
        "push_chunk_bytes": 0,
    }
    return made_of(DLedgerConfig, {**values, **options})


@attrs.frozen(eq=False)
class KnownLog:
    """
    A ledger that a crash may leave: a prefix of C{entries}.

    @ivar begin: index of the first of C{entries}.
    @ivar entries: term and body of each.
    @ivar begin_max: retention may have deleted the entries before this index.
    """

    begin: int = 0
    entries: tuple[tuple[int, bytes], ...] = ()
    begin_max: int = 0

    @property
    def end(self) -> int:
        """Index of the last entry; C{begin - 1} if there is none."""
        return self.begin + len(self.entries) - 1


@attrs.frozen(eq=False, kw_only=True)
class LedgerPromise:
    """
    What was promised before the crash.

    @ivar logs: the ledgers that may be found.
    @ivar floor: every entry up to here is there, whichever of them it is.
    @ivar acknowledged: entries up to here were acknowledged, with C{async} flushing from the page cache: if a
        power cut took one of them, the member is unsure.
    @ivar owed: if the first of C{logs} is found and ends before here, the member is repairing; -1: it must
        not be.
    @ivar terms: values of term and vote, one of which is found.
    @ivar committed: no higher index is called committed.
    @ivar damaged: indexes of entries that may lie in a hole.
    @ivar kept: bytes that are still in some file, in use or set aside.
    """

    logs: tuple[KnownLog, ...] = (KnownLog(),)
    floor: int = -1
    acknowledged: int = -1
    owed: int = -1
    terms: tuple[TermVote, ...] = (TermVote(),)
    committed: int = -1
    damaged: frozenset[int] = frozenset()
    kept: tuple[bytes, ...] = ()


def start(config: DLedgerConfig, disk: CrashDisk, *, boots: int) -> tuple[FileStore, TermFile, TermVote]:
    """
    Start on a directory, as a member does.

    @param boots: number of the machine's boot.
    """
    store = FileStore.open(config, disk, boot_id=f"boot {boots}")
    try:
        terms = TermFile(disk, config.self_path, member_ids=config.peers)
        found = terms.take_up(ledger_end_term=store.ledger_end_term, has_ledger=store.identity.has_terms)
        store.identity.note_terms()
    except BaseException:
        store.abandon()
        raise
    return store, terms, found


def readable_entries(store: FileStore) -> dict[int, tuple[int, bytes]]:
    """Term and body of every entry that is in no hole."""
    found: dict[int, tuple[int, bytes]] = {}
    index = store.ledger_begin_index
    while 0 <= index <= store.ledger_end_index:
        hole = next((hole for hole in store.holes if hole.holds(index)), None)
        if hole is not None:
            index = hole.last_index + 1
            continue
        batch = store.read_range(index, end_index=store.ledger_end_index, max_bytes=1 << 20)
        for header, body in iterate_records(batch):
            found[header.index] = (header.term, body)
        index = batch.last_index + 1
    return found


def _differs(
    promise: LedgerPromise, log: KnownLog, store: FileStore, found: dict[int, tuple[int, bytes]]
) -> str:
    """Why the ledger that was found is none of C{log}; empty if it is."""
    begin, end = store.ledger_begin_index, store.ledger_end_index
    if end > log.end:
        return f"it ends at {end}, after {log.end}"
    if begin >= 0 and not log.begin <= begin <= max(log.begin, log.begin_max):
        return f"it begins at {begin}, not at {log.begin}..{max(log.begin, log.begin_max)}"
    for index in range(max(begin, 0), end + 1):
        if index not in found:
            if index not in promise.damaged:
                return f"entry {index} is in a hole"
        elif found[index] != log.entries[index - log.begin]:
            return f"entry {index} is {found[index]}, not {log.entries[index - log.begin]}"
    return ""


def check_ledger(
    config: DLedgerConfig, disk: CrashDisk, promise: LedgerPromise, *, boots: int
) -> tuple[FileStore, TermFile]:
    """
    Start on what a crash left, and check it.

    @raise BadImage: a promise is broken, or it does not start.
    """
    try:
        store, terms, found_terms = start(config, disk, boots=boots)
    except (DLedgerError, OSError, AssertionError) as error:
        raise BadImage(f"it does not start: {type(error).__name__}: {error}") from error
    try:
        found = readable_entries(store)
    except (DLedgerError, AssertionError) as error:
        raise BadImage(f"it cannot be read: {type(error).__name__}: {error}") from error
    why = [_differs(promise, log, store, found) for log in promise.logs]
    demand("" in why, f"the ledger is not one of the possible ones: {'; or '.join(why)}")
    end = store.ledger_end_index
    demand(end >= promise.floor, f"it ends at {end}, but entry {promise.floor} was on stable storage")
    if promise.owed < 0:
        demand(store.repair_end_index == -1, f"it is repairing up to {store.repair_end_index}")
    elif why[0] == "" and end < promise.owed:
        demand(store.repair_end_index >= promise.owed, f"it ends at {end}, and does not say that it owes "
               f"{promise.owed}: repairing up to {store.repair_end_index}")
    if end < promise.acknowledged:
        demand(store.identity.is_unsure or store.repair_end_index >= promise.acknowledged,
               f"it ends at {end}, acknowledged {promise.acknowledged}, and is sure of itself")
    demand(found_terms in promise.terms, f"term and vote are {found_terms}, not one of {promise.terms}")
    demand(store.committed_index <= min(promise.committed, end) or end < store.ledger_begin_index,
           f"committed {store.committed_index}, but only {promise.committed} was")
    _check_kept(config, disk, promise)
    if not promise.damaged:
        _check_chunks(store)
    return store, terms


def _check_chunks(store: FileStore) -> None:
    """Every chunk that the store reports has the bytes of the ledger, and their checksums."""
    index = store.ledger_begin_index
    while 0 <= index <= store.ledger_end_index:
        chunk = store.chunk_from(index)
        entries = None if chunk is None else store.read_chunk(chunk)
        if chunk is None or entries is None:
            index += 1
            continue
        demand(chunk.last_index <= store.ledger_end_index, f"the chunk {chunk} is after the end")
        batch = store.read_range(chunk.first_index, end_index=chunk.last_index, max_bytes=1 << 20)
        demand(entries.records == batch.records and crc32(batch.records) == chunk.records_crc
               and crc32(entries.units) == chunk.units_crc, f"the chunk {chunk} is of other bytes")
        index = chunk.last_index + 1


def _check_kept(config: DLedgerConfig, disk: CrashDisk, promise: LedgerPromise) -> None:
    if not promise.kept:
        return
    places = (f"{config.self_path}/data/", f"{set_aside_directory(f'{config.self_path}/data')}/")
    contents = [content for path, content in disk.image().contents().items() if path.startswith(places)]
    for record in promise.kept:
        demand(any(record in content for content in contents), f"the bytes {record[:60]!r} are in no file")


def check_goes_on(config: DLedgerConfig, disk: CrashDisk, store: FileStore, *, boots: int) -> None:
    """
    A recovered ledger is sound in every byte, takes an entry, and still has it after a kill.

    @raise BadImage: it is not, or does not.
    """
    before, holes = readable_entries(store), store.holes
    if not holes and store.repair_end_index < 0:
        report = verify_directory(disk, config.self_path)
        demand(report.is_clean, f"verify finds {report.findings[:2]}")
    term, body = max(store.ledger_end_term, 1), b"one more"
    store.append_bodies((body,), term)
    index = store.ledger_end_index
    job = store.prepare_flush()
    assert job is not None
    job.run()
    store.finish_flush(job)
    store.abandon()
    again, _, _ = start(config, disk, boots=boots)
    wanted = {**before, index: (term, body)}
    demand(readable_entries(again) == wanted, "after one more entry and a kill it differs")
    demand(again.holes == holes, f"the holes {holes} became {again.holes}")
    again.abandon()
