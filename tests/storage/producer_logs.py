# -*- test-case-name: tests.storage.test_producer_list -*-
"""Logs of producers: written as a leader writes them, and read without the code that is tested."""

from __future__ import annotations

from typing import NamedTuple
from unittest import mock

from twisted.trial.unittest import SynchronousTestCase

from dledger.base.disk.memory_disk import MemoryDisk
from dledger.ledger.config import DLedgerConfig
from dledger.ledger.membership import Membership
from dledger.ledger.producers import Known, SequenceTable, Verdict
from dledger.storage.store.file_store import FileStore
from dledger.storage.store.producer_list import PRODUCERS_NAME
from protocols.wire.ledger.entry import iterate_records
from protocols.wire.ledger.own.producer_entries import decode_producer_entry, encode_producer_entry
from protocols.wire.ledger.producers import PRODUCER_CHANNEL, ProducerRun

MEMBERS = Membership(voters={"n0": "n0-h:1", "n1": "n1-h:2", "n2": "n2-h:3"})


def announced(*runs: ProducerRun, entries: int = 0) -> tuple[bytes, ...]:
    """
    A producer entry and its entries; each body names its producer and sequence.

    @param entries: of an open run, which come at once.
    """
    bodies: list[bytes] = [encode_producer_entry(runs)]
    for producer, sequence, distance, told in runs:
        assert distance == len(bodies)
        bodies += [f"{producer} {sequence + at}".encode() for at in range(told or entries)]
    return tuple(bodies)


def append(
    store: FileStore, term: int, producer: str, sequence: int, entries: int = 1, *, leaves_open: bool = False
) -> None:
    """As a leader does, in one write."""
    if open_at_end(store, term) == producer:
        bodies = tuple(f"{producer} {sequence + at}".encode() for at in range(entries))
        store.append_bodies(bodies, term)
        return
    run = ProducerRun(producer, sequence, 1, 0 if leaves_open else entries)
    store.append_bodies(announced(run, entries=entries), term, producers_at=0)


def append_plain(store: FileStore, term: int, *bodies: bytes) -> None:
    """As a leader does: bodies without a producer."""
    if open_at_end(store, term):
        store.append_bodies((encode_producer_entry(()), *bodies), term, producers_at=0)
    else:
        store.append_bodies(bodies, term)


class Placed(NamedTuple):
    """An entry of a producer that the log has."""

    index: int
    producer: str
    sequence: int


def placed(store: FileStore) -> tuple[list[Placed], tuple[int, str]]:
    """
    The entries of producers, by producer entries and terms alone.

    @return: them, and the term and the producer of the run that is open at the end.
    """
    found: list[Placed] = []
    announced_at: dict[int, tuple[int, str, int]] = {}
    nobody = (-1, "", 0, 0)
    opened = nobody
    index = max(store.ledger_begin_index, 0)
    while index <= store.ledger_end_index:
        batch = store.read_range(index, end_index=store.ledger_end_index, max_bytes=1000)
        for header, body in iterate_records(batch):
            at, term = header.index, header.term
            if header.channel or term != opened[0]:
                opened = nobody
            if header.channel == PRODUCER_CHANNEL and body.startswith(b"PRDC"):
                for producer, sequence, distance, entries in decode_producer_entry(body):
                    for number in range(entries):
                        announced_at[at + distance + number] = (term, producer, sequence + number)
                    if not entries:
                        opened = (term, producer, sequence, at + distance)
            if header.channel:
                continue
            if announced_at.get(at, (-1,))[0] == term:
                found.append(Placed(at, *announced_at[at][1:]))
            elif opened is not nobody and at >= opened[3]:
                found.append(Placed(at, opened[1], opened[2] + at - opened[3]))
            else:
                continue
            assert body == f"{found[-1].producer} {found[-1].sequence}".encode(), (found[-1], body)
        index += batch.count
    return found, opened[:2]


def in_log(store: FileStore) -> dict[tuple[str, int], int]:
    """Producer and sequence of each entry to its index; each is there once."""
    entries = placed(store)[0]
    found = {(one.producer, one.sequence): one.index for one in entries}
    assert len(found) == len(entries), "twice in one log"
    return found


def open_at_end(store: FileStore, term: int) -> str:
    """The producer of the run that a leader of this term finds open; empty: there is none."""
    opened = placed(store)[1]
    return opened[1] if opened[0] == term else ""


def config_of(self_id: str = "n0", **options: object) -> DLedgerConfig:
    """Small files, small chunks."""
    return DLedgerConfig(
        self_id=self_id, peers="n0-h:1;n1-h:2;n2-h:3",
        mapped_file_size_for_entry_data=4096, mapped_file_size_for_entry_index=3200,
        **{"push_chunk_bytes": 400, "store_base_dir": "/s", **options},  # type: ignore[arg-type]
    )


class TableCase(SynchronousTestCase):
    """A store with small files on a disk in memory. C{path}: its file of producers, readers and times."""

    def setUp(self) -> None:
        self.disk = MemoryDisk()
        self.path = f"{config_of().self_path}/{PRODUCERS_NAME}"
        self.store = FileStore.open(config_of(), self.disk)

    def fill(self, count: int, size: int = 900) -> None:
        """Bodies of programs, one by one."""
        for _ in range(count):
            self.store.append_bodies((b"x" * size,), 1)

    def reopen(self, *, clean: bool = True) -> None:
        """After a stop, or as after kill -9."""
        if clean:
            self.store.clean_close()
        else:
            self.store.abandon()
        self.store = FileStore.open(config_of(), self.disk)


class ListCase(TableCase):
    """The producers of a store."""

    def table(self, store: FileStore | None = None) -> SequenceTable:
        """It is known."""
        table = (store or self.store).producers
        assert table is not None
        return table

    def judge(self, producer: str, sequence: int, store: FileStore | None = None) -> Verdict:
        """About one body."""
        store = store or self.store
        return self.table(store).judge(producer, sequence, 1, store.ledger_end_index)

    def check(self, store: FileStore | None = None) -> None:
        """The table fits the log: each sequence is known, and the next one is new."""
        store = store or self.store
        log = in_log(store)
        for (producer, sequence), index in log.items():
            known, found, _, _ = self.judge(producer, sequence, store)
            self.assertEqual((known, found), (Known.REPEATED, index), (producer, sequence))
        for name in {name for name, _ in log}:
            last = max(sequence for one, sequence in log if one == name)
            self.assertEqual(self.judge(name, last + 1, store).known, Known.NEW, name)
        names = {name for name, _ in log}
        for name in "pqr":
            if name not in names:
                self.assertEqual(self.judge(name, 0, store), Verdict(Known.NEW))

    def look_at(self, store: FileStore, first: int) -> None:
        """As if recovery had looked at the entries from C{first} on only."""
        with mock.patch.object(store.parts.producers, "_scanned_from", first):
            store.parts.producers.begin()
